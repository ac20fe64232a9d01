/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers: whatever connects to the listening port, until it has proved to know the key of a hub here. It has one
 * deadline for all of it, little memory, and a place among STRANGERS_MAX; when that is full the oldest goes, of those
 * that owe a proof or of the others, whichever have more than half of the places. So neither silent connections nor
 * hellos without a proof, however many, can keep out a genuine rank that answers at once; one that is crowded out comes
 * again. Whatever a stranger says, no hub hears of it.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hmac.h"
#include "base/log.h"
#include "comm/hub.h"
#include "gantry/version.h"
#include "inet/sock.h"

enum { STRANGERS_MAX = 256, ACCEPTS_PER_EVENT = 64 };
static const uint64_t stranger_ns = 5000000000, pause_ns = 100000000;

enum stranger_state {
	READ_HELLO,
	READ_PROOF,
	TOLD_NO, /* until it has gone, or says anything more */
};

struct stranger {
	struct gantry_list node; /* the oldest first */
	struct ctl_conn *conn;
	enum stranger_state state;
	uint64_t deadline;
	struct ctl_hello hello;
	uint8_t raw_hello[CTL_HELLO_SIZE], raw_challenge[CTL_CHALLENGE_SIZE];
};

static void stranger_free(struct stranger *s) REQUIRES(loop_mu)
{
	ctl_conn_close(s->conn);
	gantry_list_remove(&s->node);
	ctl_service.nstrangers--;
	free(s);
}

static void count(const struct stranger *s, const char *why) REQUIRES(loop_mu)
{
	static struct gantry_ratelimit limit;
	char text[GANTRY_ADDR_TEXT];
	uint32_t more;

	ctl_service.refused++;
	if (gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(COMM, "refused a stranger from %s: %s (%llu so far)", gantry_addr_text(&s->conn->peer, text),
			 why, (unsigned long long)ctl_service.refused);
}

static void send_away(struct stranger *s, const char *why) REQUIRES(loop_mu)
{
	if (s->state != TOLD_NO)
		count(s, why);
	stranger_free(s);
}

/* He hears why: of use to a rank of another version or setting, of none to others. */
static int tell_no(struct stranger *s, gantry_result why, const char *fmt, ...) __attribute__((format(printf, 3, 4)))
REQUIRES(loop_mu);
static int tell_no(struct stranger *s, gantry_result why, const char *fmt, ...) REQUIRES(loop_mu)
{
	struct ctl_head h = {.kind = CTL_REFUSED, .from = -1, .to = -1, .result = why};
	char text[CTL_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	count(s, text);
	h.size = (uint32_t)strlen(text);
	ctl_conn_send(s->conn, &h, text);
	s->state = TOLD_NO;
	return 0;
}

static int on_hello(struct stranger *s, const struct ctl_head *head, const uint8_t *body) REQUIRES(loop_mu)
{
	const struct ctl_head h = {.kind = CTL_CHALLENGE, .from = -1, .to = -1, .size = CTL_CHALLENGE_SIZE};
	struct ctl_challenge c = {.version = CTL_VERSION};
	struct hub *hub;

	if (head->kind != CTL_HELLO || ctl_hello_decode(body, head->size, &s->hello) != GANTRY_OK) {
		send_away(s, "not a hello");
		return 1;
	}
	if (s->hello.version != CTL_VERSION)
		return tell_no(s, GANTRY_ERR_VERSION,
			       "the control plane's protocol version differs: %d (hub, gantry %s) and %u (rank)",
			       CTL_VERSION, GANTRY_VERSION, s->hello.version);
	hub = hub_find(s->hello.comm_id);
	if (!hub)
		return tell_no(s, GANTRY_ERR_REFUSED,
			       "no communicator of this id here: it has ended, or its process was started anew");
	if (s->hello.auth != hub->auth) {
		hub->refused++;
		hub->secrets |= s->hello.auth == CTL_AUTH_SECRET;
		if (s->hello.auth == CTL_AUTH_KEY || hub->auth == CTL_AUTH_KEY)
			return tell_no(s, GANTRY_ERR_AUTH, "the %s's build has no OpenSSL, the %s's has",
				       hub->auth == CTL_AUTH_KEY ? "hub" : "rank",
				       hub->auth == CTL_AUTH_KEY ? "rank" : "hub");
		return tell_no(s, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the %s's side",
			       hub->auth == CTL_AUTH_SECRET ? "hub" : "rank");
	}
	memcpy(s->raw_hello, body, CTL_HELLO_SIZE);
	if (gantry_random_bytes(c.nonce, sizeof(c.nonce)) != GANTRY_OK) {
		send_away(s, "no random bytes");
		return 1;
	}
	ctl_challenge_encode(&c, s->raw_challenge);
	if (ctl_prove(hub->key, 1, s->raw_hello, s->raw_challenge, c.mac) != GANTRY_OK) {
		send_away(s, "no way to authenticate");
		return 1;
	}
	ctl_challenge_encode(&c, s->raw_challenge);
	ctl_conn_send(s->conn, &h, s->raw_challenge);
	s->state = READ_PROOF;
	return 0;
}

static int on_proof(struct stranger *s, const struct ctl_head *head, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub *hub = hub_find(s->hello.comm_id);
	uint8_t expected[CTL_MAC_SIZE];

	if (head->kind != CTL_PROOF || head->size != CTL_MAC_SIZE) {
		send_away(s, "not a proof");
		return 1;
	}
	if (!hub)
		return tell_no(s, GANTRY_ERR_REFUSED, "the communicator has just ended");
	if (ctl_prove(hub->key, 0, s->raw_hello, s->raw_challenge, expected) != GANTRY_OK ||
	    !gantry_equal_secret(expected, body, CTL_MAC_SIZE)) {
		hub->refused++;
		return tell_no(s, GANTRY_ERR_AUTH, "the key does not fit: GANTRY_SECRET differs from the hub's");
	}
	hub_admit(hub, s->conn, &s->hello);
	s->conn = NULL; /* the hub's */
	stranger_free(s);
	return 0; /* what follows is for the rank that he is now */
}

static int on_frame(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct stranger *s = c->owner;

	switch (s->state) {
	case READ_HELLO:
		return on_hello(s, h, body);
	case READ_PROOF:
		return on_proof(s, h, body);
	case TOLD_NO: /* a rank would be silent now */
		break;
	}
	stranger_free(s);
	return 1;
}

/* A rank that finds the hub's MAC wrong leaves without a proof: the hub's own ranks will want to know. */
static void left_unproved(const struct stranger *s) REQUIRES(loop_mu)
{
	struct hub *hub = s->state == READ_PROOF ? hub_find(s->hello.comm_id) : NULL;

	if (hub)
		hub->refused++;
}

static void on_broken(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	(void)why;
	left_unproved(c->owner);
	send_away(c->owner, cause);
}

/* The port is shared: is this connection for the data network? */
static int on_elsewhere(struct ctl_conn *c) REQUIRES(loop_mu)
{
	struct stranger *s = c->owner;
	enum port_sorted is = PORT_OURS;

	if (s->state == READ_HELLO && !c->in.have && !c->in.body)
		is = port_sort(&hub_port_user, c->source.fd);
	if (is == PORT_GIVEN)
		stranger_free(s);
	return is != PORT_OURS;
}

static const struct ctl_conn_ops stranger_ops = {.frame = on_frame, .broken = on_broken, .elsewhere = on_elsewhere};

/* Too many at once: the oldest goes, of the kind that has more than its half. */
static void make_room(void) REQUIRES(loop_mu)
{
	struct stranger *oldest[2] = {NULL, NULL};
	int n[2] = {0, 0};

	gantry_list_each (pos, &ctl_service.strangers) {
		struct stranger *s = gantry_container(pos, struct stranger, node);
		int proof = s->state == READ_PROOF;

		if (!n[proof]++)
			oldest[proof] = s;
	}
	send_away(oldest[n[1] > n[0]], "too many at once, the oldest goes");
}

/* 10.0.0.2 for ::ffff:10.0.0.2, which is how a port of all addresses shows peers of IPv4. */
static void unmap(struct gantry_addr *addr)
{
	struct gantry_addr v4 = {.in = {.sin_family = AF_INET, .sin_port = addr->in6.sin6_port}};

	if (addr->sa.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&addr->in6.sin6_addr))
		return;
	memcpy(&v4.in.sin_addr, &addr->in6.sin6_addr.s6_addr[12], 4);
	*addr = v4;
}

static void take_in(int fd, const struct gantry_addr *addr) REQUIRES(loop_mu)
{
	struct stranger *s;

	if (ctl_service.nstrangers >= STRANGERS_MAX)
		make_room();
	s = calloc(1, sizeof(*s));
	if (!s) {
		close(fd);
		return;
	}
	if (ctl_conn_make(fd, addr, &stranger_ops, s, &s->conn) != GANTRY_OK) {
		free(s);
		return;
	}
	s->deadline = inet_loop.now + stranger_ns;
	ctl_service_due(s->deadline);
	gantry_list_append(&ctl_service.strangers, &s->node);
	ctl_service.nstrangers++;
}

void hub_take_given(void)
{
	struct gantry_addr peer, local;
	int fd;

	while ((fd = port_take(&hub_port_user, &peer, &local)) >= 0)
		take_in(fd, &peer);
}

/* Out of descriptors, most likely: connections stay in the backlog for a moment, instead of spinning over them. */
static void accept_failed(struct inet_source *source, int e) REQUIRES(loop_mu)
{
	static struct gantry_ratelimit limit;
	uint32_t more;

	if (gantry_ratelimit_pass(&limit, &more))
		LOG_WARN(COMM, "accept: %s (%s); connections wait%s", strerror(e), sock_errno_hint(e), LEFT_OUT(more));
	inet_source_set(source, 0);
	ctl_service_due(inet_loop.now + pause_ns);
}

void hub_accept(struct inet_source *source, uint32_t events)
{
	(void)events;
	for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
		struct gantry_addr addr;
		socklen_t len = sizeof(addr);
		int fd = accept4(source->fd, &addr.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			unmap(&addr);
			take_in(fd, &addr);
			continue;
		}
		if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO || errno == ENETDOWN)
			continue;
		if (errno != EAGAIN)
			accept_failed(source, errno);
		return;
	}
}

void hub_strangers_tick(void)
{
	gantry_list_each_safe (pos, &ctl_service.strangers) {
		struct stranger *s = gantry_container(pos, struct stranger, node);

		if (inet_loop.now < s->deadline) {
			ctl_service_due(s->deadline);
			continue;
		}
		left_unproved(s);
		send_away(s, "it did not prove itself in time");
	}
}

void hub_strangers_drop(void)
{
	gantry_list_each_safe (pos, &ctl_service.strangers) {
		stranger_free(gantry_container(pos, struct stranger, node));
	}
}
