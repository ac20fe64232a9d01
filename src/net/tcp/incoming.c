/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accepting side: strangers, and (verdict.c) the handshake up to a lane. All of it runs under the engine's mu, the
 * state machines on the service thread.
 *
 * A stranger costs one small object, for at most HELLO_MS. There are at most STRANGERS_MAX of them: when all places are
 * taken, those that have had theirs for CROWD_MS make room, the oldest first, and the others wait in the kernel's
 * backlog. A peer proves itself within a round trip, so a crowd of strangers delays peers and does not keep them out;
 * one that was crowded out, or was too slow, dials again. Strangers are counted, and a line about them is written at
 * most once a second. They never reach a listener.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "inet/sock.h"
#include "net/tcp/incoming.h"

enum { HELLO_MS = 5000, CROWD_MS = 100, OPENING_MS = 50, STRANGERS_MAX = 256, ACCEPTS_PER_EVENT = 64, MS = 1000000 };

void tcp_incoming_free(struct tcp_incoming *in)
{
	inet_source_close(&in->source);
	gantry_list_remove(&in->node);
	tcp_engine.nstrangers -= !in->proved;
	free(in);
}

void tcp_incoming_proved(struct tcp_incoming *in)
{
	in->proved = 1;
	in->deadline = gantry_now_ns() + gantry_params()->connect_timeout;
	tcp_engine.nstrangers--;
}

void tcp_incoming_stranger(struct tcp_incoming *in, const char *why)
{
	static struct gantry_ratelimit limit;
	char text[GANTRY_ADDR_TEXT];
	uint32_t more;

	fetch_add_relaxed(&tcp_engine.strangers, 1);
	gantry_event_put(GANTRY_EV_STRANGER, (uint32_t)tcp_engine.strangers, 0, 0);
	if (gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(NET, "refused a stranger from %s: %s (%llu so far)", gantry_addr_text(&in->addr, text), why,
			 (unsigned long long)tcp_engine.strangers);
	tcp_incoming_free(in);
}

static uint32_t wanted(const struct tcp_incoming *in)
{
	return in->state == READ_PROOF ? WIRE_PROOF_SIZE : WIRE_HELLO_SIZE;
}

/* Whether all of what it has to say now is there to be read. */
static int has_come(const struct tcp_incoming *in)
{
	int bytes = 0;

	return ioctl(in->source.fd, FIONREAD, &bytes) == 0 && in->got + (uint32_t)bytes >= wanted(in);
}

/* The port is shared with other protocols. 1: there is nothing to read here, or not yet. */
static int given_away(struct tcp_incoming *in)
{
	enum port_sorted is = port_sort(&tcp_port_user, in->source.fd);

	if (is == PORT_GIVEN)
		tcp_incoming_free(in);
	return is != PORT_OURS;
}

static void incoming_ready(struct inet_source *s, uint32_t events)
{
	struct tcp_incoming *in = gantry_container(s, struct tcp_incoming, source);
	uint32_t want = wanted(in);
	uint8_t extra;
	ssize_t n;

	(void)events;
	if (in->state == READ_HELLO && !in->got && given_away(in))
		return;
	n = in->state == DEFERRED ? recv(s->fd, &extra, 1, MSG_DONTWAIT)
				  : recv(s->fd, in->in + in->got, want - in->got, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0 || in->state == DEFERRED) { /* while its answer is due, a peer has nothing to say */
		tcp_incoming_stranger(in, n < 0	   ? strerror(errno)
					  : n == 0 ? "it left"
						   : "it does not wait for an answer");
		return;
	}
	in->got += (uint32_t)n;
	if (in->state == READ_HELLO && !wire_hello_may_be(in->in, in->got))
		tcp_incoming_stranger(in, "it does not speak our protocol");
	else if (in->got == want)
		in->state == READ_HELLO ? tcp_incoming_hello(in) : tcp_incoming_proof(in);
}

/* All places are taken: the oldest stranger goes, if it has had its time. 0: none has. */
static int make_room(uint64_t now)
{
	gantry_list_each (pos, &tcp_engine.incoming) {
		struct tcp_incoming *in = gantry_container(pos, struct tcp_incoming, node);

		if (in->proved)
			continue;
		if (now - in->since < (uint64_t)CROWD_MS * MS)
			return 0;
		tcp_incoming_stranger(in, "too many at once, the oldest goes");
		return 1;
	}
	return 0;
}

/* What waits in the kernel's backlog is looked at again in a moment. */
static void pause_port(struct tcp_port *port)
{
	inet_source_set(&port->source, 0);
	port->paused = 1;
}

static void accept_failed(struct tcp_port *port, int e)
{
	static struct gantry_ratelimit limit;
	uint32_t more;

	if (gantry_ratelimit_pass(&limit, &more))
		LOG_WARN(NET, "accept: %s (%s); connections wait%s", strerror(e), sock_errno_hint(e), LEFT_OUT(more));
	pause_port(port); /* out of descriptors, most likely: instead of spinning */
}

static void take_in(struct tcp_port *port, int fd, const struct gantry_addr *addr, uint64_t now)
{
	struct tcp_incoming *in = calloc(1, sizeof(*in));

	if (!in) {
		close(fd);
		return;
	}
	in->source = (struct inet_source){.fd = fd, .ready = incoming_ready};
	in->addr = *addr;
	in->nic = port->nic;
	in->since = now;
	in->deadline = now + (uint64_t)HELLO_MS * MS;
	gantry_list_append(&tcp_engine.incoming, &in->node);
	tcp_engine.nstrangers++;
	if (inet_source_add(&in->source, EPOLLIN) != GANTRY_OK)
		tcp_incoming_free(in);
}

static int has_room(uint64_t now)
{
	return tcp_engine.nstrangers < STRANGERS_MAX || make_room(now);
}

void tcp_ports_take(void)
{
	uint64_t now = gantry_now_ns();

	while (port_waiting(&tcp_port_user) && has_room(now)) {
		struct gantry_addr peer, local;
		int fd = port_take(&tcp_port_user, &peer, &local);
		struct tcp_port *port = fd >= 0 ? tcp_port_at(&local) : NULL;

		if (port)
			take_in(port, fd, &peer, now);
		else if (fd >= 0)
			close(fd);
	}
}

void tcp_port_ready(struct inet_source *s, uint32_t events)
{
	struct tcp_port *port = gantry_container(s, struct tcp_port, source);
	uint64_t now = gantry_now_ns();

	(void)events;
	for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
		struct gantry_addr addr;
		socklen_t len = sizeof(addr);
		int fd;

		if (!has_room(now)) {
			pause_port(port);
			return;
		}
		fd = accept4(s->fd, &addr.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			take_in(port, fd, &addr, now);
		} else if (errno == EAGAIN) {
			return;
		} else if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO && errno != ENETDOWN) {
			accept_failed(port, errno);
			return;
		}
	}
}

/* Links of peers that never finished. A call per lane: now and then. */
static void drop_stale_links(uint64_t now)
{
	if (now - tcp_engine.opening_looked < (uint64_t)OPENING_MS * MS)
		return;
	tcp_engine.opening_looked = now;
	gantry_list_each_safe (pos, &tcp_engine.opening) {
		struct tcp_link *l = gantry_container(pos, struct tcp_link, waiting);
		char c;
		int gone = 0;

		for (int i = 0; i < l->nlanes && !gone; i++)
			gone = l->lanes[i].fd >= 0 && recv(l->lanes[i].fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
		if (gone || now > l->linger_until) {
			LOG_INFO(NET, "%s: %d of %d lanes came, then %s", l->session.peer, l->lanes_here, l->nlanes,
				 gone ? "the peer left" : "nothing more in time");
			tcp_link_forget(l);
			tcp_link_bury(l);
		}
	}
}

void tcp_incoming_tick(uint64_t now)
{
	gantry_list_each_safe (pos, &tcp_engine.incoming) {
		struct tcp_incoming *in = gantry_container(pos, struct tcp_incoming, node);

		if (now <= in->deadline)
			continue;
		/* It may be this thread that was late: what has come counts. */
		if (in->state != DEFERRED && has_come(in))
			incoming_ready(&in->source, EPOLLIN);
		else
			tcp_incoming_stranger(in, in->state == READ_HELLO   ? "it never said hello"
						  : in->state == READ_PROOF ? "it never proved itself"
									    : "its answer was not settled in time");
	}
	tcp_incoming_reconsider();
	tcp_ports_take();
	gantry_list_each (pos, &tcp_engine.ports) {
		struct tcp_port *port = gantry_container(pos, struct tcp_port, node);

		if (port->paused) {
			port->paused = 0;
			inet_source_set(&port->source, EPOLLIN);
		}
	}
	drop_stale_links(now);
}

void tcp_incoming_drop_all(void)
{
	gantry_list_each_safe (pos, &tcp_engine.incoming) {
		tcp_incoming_free(gantry_container(pos, struct tcp_incoming, node));
	}
	drop_stale_links(UINT64_MAX);
}
