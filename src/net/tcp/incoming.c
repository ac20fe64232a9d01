/*
 * The accepting side: strangers, and (verdict.c) the hand-shake up to a lane. All of it runs under the engine's mu,
 * the state machines on the service thread.
 *
 *   hello read ──> verdict written ──> lane          (cookie)
 *              └─> verdict written ──> proof read ──> lane   (secret)
 *
 * A connection is a stranger until its hello names a listener of ours and that listener's cookie. Strangers cost at
 * most one small object for at most HELLO_MS; there are at most INCOMING_MAX of them, the oldest goes first; they are
 * counted, and a line about them is written at most once a second. They never reach a listener.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "net/tcp/incoming.h"
#include "net/tcp/sock.h"

enum { HELLO_MS = 5000, INCOMING_MAX = 256, ACCEPTS_PER_EVENT = 64 };

struct tcp_link *tcp_incoming_promised(const struct tcp_incoming *in)
{
	gantry_list_each (pos, &tcp_engine.links) {
		struct tcp_link *l = gantry_container(pos, struct tcp_link, node);

		if (l->initiator && memcmp(l->session, in->session, WIRE_SESSION_SIZE) == 0)
			return l;
	}
	return NULL;
}

void tcp_incoming_free(struct tcp_incoming *in)
{
	struct tcp_link *promised = in->sharing ? tcp_incoming_promised(in) : NULL;

	if (promised && promised->rx_state == TCP_RESERVED && !promised->rx_listener) {
		promised->rx_state = TCP_UNUSED;
		if (promised->tx_state == TCP_CLOSED)
			tcp_link_put_down(promised);
	}
	tcp_source_close(&in->source);
	gantry_list_remove(&in->node);
	tcp_engine.nincoming--;
	free(in);
}

void tcp_incoming_stranger(struct tcp_incoming *in, const char *why)
{
	static struct gantry_ratelimit limit;
	char text[GANTRY_ADDR_TEXT];
	uint32_t more;

	__atomic_fetch_add(&tcp_engine.strangers, 1, __ATOMIC_RELAXED);
	gantry_event_put(GANTRY_EV_STRANGER, (uint32_t)tcp_engine.strangers, 0, 0);
	if (gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(NET, "refused a stranger from %s: %s (%llu so far)", gantry_addr_text(&in->addr, text), why,
			 (unsigned long long)tcp_engine.strangers);
	tcp_incoming_free(in);
}

static void incoming_ready(struct tcp_source *s, uint32_t events)
{
	struct tcp_incoming *in = gantry_container(s, struct tcp_incoming, source);
	uint32_t want = in->state == READ_PROOF ? WIRE_PROOF_SIZE : WIRE_HELLO_SIZE;
	uint8_t extra;
	ssize_t n = in->state == DEFERRED ? recv(s->fd, &extra, 1, MSG_DONTWAIT)
					  : recv(s->fd, in->in + in->got, want - in->got, MSG_DONTWAIT);

	(void)events;
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

/* Too many at once: the oldest that has not even said hello goes. */
static void make_room(void)
{
	struct tcp_incoming *victim = gantry_container(tcp_engine.incoming.next, struct tcp_incoming, node);

	gantry_list_each (pos, &tcp_engine.incoming) {
		struct tcp_incoming *in = gantry_container(pos, struct tcp_incoming, node);

		if (in->state == READ_HELLO) {
			victim = in;
			break;
		}
	}
	tcp_incoming_stranger(victim, "too many at once, the oldest goes");
}

void tcp_port_ready(struct tcp_source *s, uint32_t events)
{
	struct tcp_port *port = gantry_container(s, struct tcp_port, source);

	(void)events;
	for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
		struct gantry_addr addr;
		socklen_t len = sizeof(addr);
		struct tcp_incoming *in;
		int fd = accept4(s->fd, &addr.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO || errno == ENETDOWN)
				continue;
			if (errno != EAGAIN) {
				/* Out of descriptors: leave them in the backlog for a moment instead of spinning. */
				LOG_WARN(NET, "accept: %s (%s)", strerror(errno), sock_errno_hint(errno));
				tcp_source_set(s, 0);
				port->paused = 1;
			}
			return;
		}
		if (tcp_engine.nincoming >= INCOMING_MAX)
			make_room();
		in = calloc(1, sizeof(*in));
		if (!in) {
			close(fd);
			return;
		}
		in->source = (struct tcp_source){fd, incoming_ready};
		in->addr = addr;
		in->nic = port->nic;
		in->deadline = gantry_now_ns() + (uint64_t)HELLO_MS * 1000000;
		gantry_list_append(&tcp_engine.incoming, &in->node);
		tcp_engine.nincoming++;
		if (tcp_source_add(&in->source, EPOLLIN) != GANTRY_OK)
			tcp_incoming_free(in);
	}
}

/* Half-built links of peers that never finished. */
static void drop_stale_links(uint64_t now)
{
	gantry_list_each_safe (pos, &tcp_engine.links) {
		struct tcp_link *l = gantry_container(pos, struct tcp_link, node);
		char c;
		int gone = 0;

		if (l->up || l->initiator)
			continue;
		for (int i = 0; i < l->nlanes && !gone; i++)
			gone = l->lanes[i].fd >= 0 && recv(l->lanes[i].fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
		if (gone || now > l->linger_until) {
			LOG_INFO(NET, "%s: %d of %d lanes came, then %s", l->peer, l->lanes_here, l->nlanes,
				 gone ? "the peer left" : "nothing more in time");
			gantry_list_remove(&l->node);
			tcp_link_bury(l);
		}
	}
}

void tcp_incoming_tick(uint64_t now)
{
	gantry_list_each_safe (pos, &tcp_engine.incoming) {
		struct tcp_incoming *in = gantry_container(pos, struct tcp_incoming, node);

		if (now > in->deadline)
			tcp_incoming_stranger(in, "it never said hello");
	}
	tcp_incoming_reconsider();
	gantry_list_each (pos, &tcp_engine.ports) {
		struct tcp_port *port = gantry_container(pos, struct tcp_port, node);

		if (port->paused) {
			port->paused = 0;
			tcp_source_set(&port->source, EPOLLIN);
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
