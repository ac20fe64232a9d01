/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "inet/listen.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "inet/sock.h"

enum { STRANGERS_MAX = 256, PORT_MAX = 256, ACCEPTS_PER_EVENT = 64, MS = 1000000 };
static const uint64_t stranger_ns = 5000 * (uint64_t)MS, crowd_ns = 100 * MS, tick_ns = 10 * MS;

static struct gantry_list ports GUARDED_BY(loop_mu) = {&ports, &ports};
static struct gantry_list services GUARDED_BY(loop_mu) = {&services, &services}; /* those with a port open */
struct inet_arrivals inet_arrivals GUARDED_BY(loop_mu) = {.conns = {&inet_arrivals.conns, &inet_arrivals.conns}};
static uint64_t ticked GUARDED_BY(loop_mu);
uint64_t inet_strangers;

/* ---- connections ---- */

static void conn_free(struct inet_conn *c) REQUIRES(loop_mu)
{
	inet_source_close(&c->source);
	gantry_list_remove(&c->node);
	inet_handshake_end(&c->shake);
	inet_arrivals.strangers -= !c->shake.proved;
	if (c->port)
		c->port->conns--;
	free(c);
}

int inet_conn_take(struct inet_conn *c, struct inet_seals *ret_seals)
{
	int fd = inet_source_release(&c->source);

	if (ret_seals) {
		*ret_seals = c->shake.seals;
		c->shake.seals = (struct inet_seals){0};
	}
	conn_free(c);
	return fd;
}

/*
 * One that knows what a peer knows, but for the proof, most likely is a peer whose settings differ: the line is a
 * warning then.
 */
static void count_stranger(const struct inet_conn *c, const char *why)
{
	static struct gantry_ratelimit limit, warn_limit;
	gantry_result r = c->shake.error;
	char text[GANTRY_ADDR_TEXT];
	uint64_t n = fetch_add_relaxed(&inet_strangers, 1) + 1;
	uint32_t more;

	gantry_event_put(GANTRY_EV_STRANGER, (uint32_t)n, 0, 0);
	if (c->service && c->service->warns &&
	    (r == GANTRY_ERR_AUTH || r == GANTRY_ERR_VERSION || r == GANTRY_ERR_SETTING) &&
	    gantry_ratelimit_pass(&warn_limit, &more))
		LOG_WARN(NET, "refused unauthenticated connection from %s (%s): %s%s", gantry_addr_text(&c->addr, text),
			 c->shake.peer, why, LEFT_OUT(more));
	if (gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(NET, "refused unknown connection from %s: %s (%llu so far)", gantry_addr_text(&c->addr, text),
			 why, (unsigned long long)n);
}

/* The handshake has failed, or no caller waits for its result. */
static void conn_lost(struct inet_conn *c) REQUIRES(loop_mu)
{
	inet_handshake_move(&c->shake, c->source.fd); /* a refusal, as far as its socket takes it */
	if (c->service && c->service->lost)
		c->service->lost(c);
	if (!c->shake.proved || c->shake.broken || c->shake.error == GANTRY_ERR_PROTOCOL)
		count_stranger(c, c->shake.text);
	conn_free(c);
}

void inet_conn_drop(struct inet_conn *c, const char *why)
{
	ASSERT_HELD(&inet_loop.mu);
	c->shake.broken = true;
	c->shake.state = INET_OVER_FAILED;
	c->shake.out_size = 0;
	snprintf(c->shake.text, sizeof(c->shake.text), "%s", why);
	conn_lost(c);
}

static struct inet_service *find_service(const char *name) REQUIRES(loop_mu)
{
	gantry_list_each_entry (s, &services, struct inet_service, node)
		if (strcmp(s->protocol.name, name) == 0)
			return s;
	return NULL;
}

static void said_hello(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct inet_service *s = find_service(c->shake.name);

	if (!s || inet_loop.parting || (c->service && c->service != s)) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "no %s listener %s", c->shake.name,
				 c->service ? "at this port" : "in this process: it was closed");
		return;
	}
	c->service = s;
	c->shake.protocol = &s->protocol;
	s->hello(c);
}

/* It is a peer: a place for another stranger is free, and it may wait for its answer as long as connecting may take. */
static void admit_peer(struct inet_conn *c) REQUIRES(loop_mu)
{
	c->deadline = inet_loop.now + gantry_params()->connect_timeout;
	c->service->proved(c);
}

static void handle_event(struct inet_conn *c, enum inet_event event) REQUIRES(loop_mu)
{
	switch (event) {
	case INET_HELLO:
		said_hello(c);
		break;
	case INET_PROVED:
		admit_peer(c);
		break;
	case INET_FAILED:
		conn_lost(c);
		break;
	case INET_AGAIN:
	case INET_DONE: /* by inet_conn_accept alone */
		break;
	}
}

/* What makes a peer of a stranger is counted here. When exit has begun no proof is looked at: see loop.h. */
static enum inet_event move_shake(struct inet_conn *c) REQUIRES(loop_mu)
{
	bool was = c->shake.proved;
	enum inet_event event;

	if (inet_loop.parting && c->shake.state == INET_HEAR_PROOF)
		return INET_AGAIN;
	event = inet_handshake_move(&c->shake, c->source.fd);
	inet_source_set(&c->source, inet_handshake_events(&c->shake));
	inet_arrivals.strangers -= !was && c->shake.proved;
	return event;
}

static void conn_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct inet_conn *c = gantry_container(s, struct inet_conn, source);

	(void)events;
	if (inet_loop.parting && c->shake.state == INET_HEAR_PROOF)
		inet_conn_drop(c, "the process exits");
	else
		handle_event(c, move_shake(c));
}

void inet_conn_challenge(struct inet_conn *c, const struct inet_key *key)
{
	enum inet_event event;

	ASSERT_HELD(&inet_loop.mu);
	event = inet_handshake_challenge(&c->shake, key);
	inet_arrivals.strangers -= c->shake.proved;
	handle_event(c, event == INET_AGAIN ? move_shake(c) : event);
}

void inet_conn_refuse(struct inet_conn *c, gantry_result r, const char *fmt, ...)
{
	char text[INET_TEXT_SIZE];
	va_list ap;

	ASSERT_HELD(&inet_loop.mu);
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	inet_handshake_refuse(&c->shake, r, "%s", text);
	conn_lost(c);
}

bool inet_conn_accept(struct inet_conn *c, const void *payload, size_t size)
{
	ASSERT_HELD(&inet_loop.mu);
	/* A fresh socket has room for this; one that has not is no peer. */
	if (!inet_loop.parting && inet_handshake_accept(&c->shake, payload, size) == INET_DONE &&
	    move_shake(c) == INET_DONE)
		return true;
	inet_conn_drop(c, inet_loop.parting ? "the process exits" : "peer is not reading the reply");
	return false;
}

struct inet_conn *inet_conn_waiting(const struct inet_service *s, const struct inet_conn *after)
{
	const struct gantry_list *pos = after ? after->node.next : inet_arrivals.conns.next;

	for (; pos != &inet_arrivals.conns; pos = pos->next) {
		struct inet_conn *c = gantry_container(pos, struct inet_conn, node);

		if (c->service == s && c->shake.state == INET_OWES_ANSWER)
			return c;
	}
	return NULL;
}

struct inet_conn *inet_conn_tagged(const struct inet_service *s, uint64_t tag)
{
	struct inet_conn *c = inet_conn_waiting(s, NULL);

	while (c && c->tag != tag)
		c = inet_conn_waiting(s, c);
	return c;
}

void inet_conns_drop(const struct inet_service *s, uint64_t tag)
{
	gantry_list_each_entry_safe (c, &inet_arrivals.conns, struct inet_conn, node)
		if (c->service == s && c->tag == tag)
			conn_free(c);
}

/* ---- accepting ---- */

/* All places are taken: the oldest stranger goes, of the port (NULL: of all), if it has had its time. */
static bool make_room(const struct inet_port *p) REQUIRES(loop_mu)
{
	gantry_list_each_entry (c, &inet_arrivals.conns, struct inet_conn, node) {
		if (c->shake.proved || (p && c->port != p))
			continue;
		if (inet_loop.now - c->since < crowd_ns)
			return false;
		inet_conn_drop(c, "too many pending connections; dropped the oldest");
		return true;
	}
	return false;
}

static bool has_room(const struct inet_port *p) REQUIRES(loop_mu)
{
	if (p->only && p->conns >= PORT_MAX && !make_room(p))
		return false;
	return inet_arrivals.strangers < STRANGERS_MAX || make_room(NULL);
}

/* What waits in the kernel's backlog is looked at again in a moment. */
static void pause_port(struct inet_port *p) REQUIRES(loop_mu)
{
	inet_source_set(&p->source, 0);
	p->paused = 1;
}

static void accept_failed(struct inet_port *p, int e) REQUIRES(loop_mu)
{
	static struct gantry_ratelimit limit;
	uint32_t more;

	if (gantry_ratelimit_pass(&limit, &more))
		LOG_WARN(NET, "accept: %s (%s); new connections wait in the backlog%s", strerror(e), sock_errno_hint(e),
			 LEFT_OUT(more));
	pause_port(p); /* out of descriptors, most likely: instead of spinning */
}

static void take_in(struct inet_port *p, int fd, const struct gantry_addr *addr) REQUIRES(loop_mu)
{
	struct inet_conn *c = calloc(1, sizeof(*c));

	if (!c) {
		close(fd);
		return;
	}
	c->source = (struct inet_source){.fd = fd, .ready = conn_ready};
	c->addr = *addr;
	gantry_addr_unmap(&c->addr);
	c->port = p;
	c->port->conns++;
	c->service = p->only;
	c->since = inet_loop.now;
	c->deadline = inet_loop.now + stranger_ns;
	inet_handshake_start_server(&c->shake);
	gantry_list_append(&inet_arrivals.conns, &c->node);
	inet_arrivals.strangers++;
	if (inet_source_add(&c->source, EPOLLIN) != GANTRY_OK)
		conn_free(c);
}

static void port_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct inet_port *p = gantry_container(s, struct inet_port, source);

	(void)events;
	for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
		struct gantry_addr addr;
		socklen_t len = sizeof(addr);
		int fd;

		if (!has_room(p)) {
			pause_port(p);
			return;
		}
		fd = accept4(s->fd, &addr.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			take_in(p, fd, &addr);
		} else if (errno == EAGAIN) {
			return;
		} else if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO && errno != ENETDOWN) {
			accept_failed(p, errno);
			return;
		}
	}
}

/* ---- the loop's client ---- */

static uint64_t next_due(void) REQUIRES(loop_mu)
{
	bool waits = !gantry_list_empty(&inet_arrivals.conns);

	gantry_list_each (pos, &ports)
		waits |= gantry_container(pos, struct inet_port, node)->paused;
	return waits ? ticked + tick_ns : UINT64_MAX;
}

/* It may be this thread that was late: what has come counts. */
static void too_late(struct inet_conn *c) REQUIRES(loop_mu)
{
	const char *owes = inet_handshake_owes(&c->shake);
	enum inet_event event = move_shake(c);

	if (event == INET_AGAIN)
		inet_conn_drop(c, owes);
	else
		handle_event(c, event);
}

static void listen_pass(void) REQUIRES(loop_mu)
{
	if (!inet_due(next_due()))
		return;
	ticked = inet_loop.now;
	gantry_list_each_entry_safe (c, &inet_arrivals.conns, struct inet_conn, node)
		if (inet_loop.now > c->deadline)
			too_late(c);
	gantry_list_each_entry (p, &ports, struct inet_port, node) {
		if (p->paused)
			inet_source_set(&p->source, EPOLLIN);
		p->paused = 0;
	}
}

static int listen_busy(void) REQUIRES(loop_mu)
{
	return !gantry_list_empty(&ports);
}

static void drop_conns(void) REQUIRES(loop_mu)
{
	gantry_list_each_safe (pos, &inet_arrivals.conns)
		conn_free(gantry_container(pos, struct inet_conn, node));
}

static void in_child(void) REQUIRES(loop_mu)
{
	inet_abandon(&ports);
	inet_abandon(&inet_arrivals.conns);
	gantry_list_each_entry_safe (s, &services, struct inet_service, node) {
		s->refs = 0;
		gantry_list_remove(&s->node);
	}
	inet_arrivals.strangers = 0;
}

static struct inet_client client = {
	.due = next_due,
	.pass = listen_pass,
	.busy = listen_busy,
	.stop = drop_conns,
	.in_child = in_child,
};

/* ---- ports ---- */

static struct inet_port *find_port(const struct gantry_addr *addr) REQUIRES(loop_mu)
{
	uint16_t wanted = gantry_addr_port(addr);

	gantry_list_each_entry (p, &ports, struct inet_port, node)
		if (!p->only && gantry_addr_same_host(&p->addr, addr) &&
		    (!wanted || wanted == gantry_addr_port(&p->addr)))
			return p;
	return NULL;
}

static gantry_result open_port(const struct gantry_addr *addr, struct inet_service *only, void *owner,
			       struct inet_port **ret_port) REQUIRES(loop_mu)
{
	gantry_result r = GANTRY_OK;
	uint16_t first = gantry_addr_port(addr), last = first;
	struct inet_port *p = calloc(1, sizeof(*p));
	char text[GANTRY_ADDR_TEXT];

	if (!p)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a port");
	gantry_list_init(&p->node);
	p->source = (struct inet_source){.fd = -1, .ready = port_ready};
	p->forks = inet_forks;
	p->only = only;
	p->owner = owner;
	if (!first && !only) /* the range was checked when it was loaded */
		TRY(gantry_parse_port_range(gantry_params()->port_range, &first, &last));
	TRY(sock_listen(addr, first, last, &p->source.fd, &p->addr));
	gantry_list_append(&ports, &p->node);
	TRY(inet_loop_start(&client));
	TRY(inet_source_add(&p->source, EPOLLIN));
	LOG_DEBUG(NET, "listening on %s", gantry_addr_text(&p->addr, text));
	*ret_port = p;
	p = NULL;
out:
	if (p) {
		gantry_list_remove(&p->node);
		inet_source_close(&p->source);
	}
	free(p);
	return r;
}

static void use_port(struct inet_service *s, struct inet_port *p) REQUIRES(loop_mu)
{
	p->refs++;
	if (!s->refs++)
		gantry_list_append(&services, &s->node);
}

gantry_result inet_port_get(struct inet_service *s, const struct gantry_addr *addr, struct inet_port **ret_port)
{
	struct inet_port *p = find_port(addr);

	ASSERT_HELD(&inet_loop.mu);
	if (!p)
		TRY_NOW(open_port(addr, NULL, NULL, &p));
	use_port(s, p);
	*ret_port = p;
	return GANTRY_OK;
}

gantry_result inet_port_open(struct inet_service *s, const struct gantry_addr *addr, void *owner,
			     struct inet_port **ret_port)
{
	ASSERT_HELD(&inet_loop.mu);
	TRY_NOW(open_port(addr, s, owner, ret_port));
	use_port(s, *ret_port);
	return GANTRY_OK;
}

void inet_port_put(struct inet_service *s, struct inet_port *p)
{
	ASSERT_HELD(&inet_loop.mu);
	if (!p || inet_forked(p->forks))
		return;
	if (!--s->refs) {
		gantry_list_remove(&s->node);
		gantry_list_each_entry_safe (c, &inet_arrivals.conns, struct inet_conn, node)
			if (c->service == s)
				conn_free(c);
	}
	if (--p->refs)
		return;
	gantry_list_each_entry_safe (c, &inet_arrivals.conns, struct inet_conn, node) {
		if (c->port != p)
			continue;
		if (p->only)
			conn_free(c);
		else
			c->port = NULL;
	}
	inet_source_close(&p->source);
	gantry_list_remove(&p->node);
	free(p);
	inet_loop_wake();
}
