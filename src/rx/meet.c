/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include "rx/meet.h"

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "inet/sock.h"
#include "net/tcp/forget.h"
#include "net/tcp/hello.h"

enum { RETRY_NS = 20000000 };

gantry_result meeting_address(const char *text, int listening, struct gantry_addr *ret_addr)
{
	gantry_result r = GANTRY_OK;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0)};
	struct addrinfo *found = NULL;
	const char *colon = strrchr(text, ':');
	char host[256];
	int e;

	if (!colon || !colon[1] || (size_t)(colon - text) >= sizeof(host) || (colon == text && !listening))
		FAIL(GANTRY_ERR_INVALID, "\"%s\" is not an address: host:port, or [v6]:port", text);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = 0;
		memmove(host, host + 1, strlen(host));
	} else if (strchr(host, ':')) {
		FAIL(GANTRY_ERR_INVALID, "\"%s\" is not an address: write [v6]:port", text);
	}
	e = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &found);
	if (e)
		FAIL(GANTRY_ERR_UNREACHABLE, "%s: %s", text, gai_strerror(e));
	*ret_addr = gantry_addr_of(found->ai_addr);
	if (ret_addr->sa.sa_family == AF_UNSPEC)
		FAIL(GANTRY_ERR_UNREACHABLE, "%s is neither an IPv4 nor an IPv6 address", text);
out:
	if (found)
		freeaddrinfo(found);
	return r;
}

/* Errors of this side's own: they say nothing about the peer. */
static int is_own(gantry_result r)
{
	return r == GANTRY_ERR_SYSTEM || r == GANTRY_ERR_NOMEM || r == GANTRY_ERR_LIMIT || r == GANTRY_ERR_CONFIG ||
	       r == GANTRY_ERR_UNSUPPORTED || r == GANTRY_ERR_USAGE || r == GANTRY_ERR_INTERNAL;
}

static void fail(struct meeting *m, gantry_result r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail(struct meeting *m, gantry_result r, const char *fmt, ...)
{
	va_list args;

	m->state = MEET_FAILED;
	m->error = r;
	m->stranger = !m->dials && !is_own(r);
	va_start(args, fmt);
	vsnprintf(m->text, sizeof(m->text), fmt, args);
	va_end(args);
}

static void fail_protocol(struct meeting *m)
{
	char peer[GANTRY_ADDR_TEXT];

	fail(m, GANTRY_ERR_PROTOCOL, "%s does not speak the protocol of gantry/rx.h", gantry_addr_text(&m->to, peer));
}

/* Both sides say the same about a refusal. */
static void fail_refused(struct meeting *m, enum rx_why why)
{
	static const char *const texts[RX_WHYS] = {
		[RX_WHY_VERSION] = "the two sides speak different versions of the protocol of gantry/rx.h",
		[RX_WHY_ACCEPTING] = "GANTRY_SECRET is set only on the accepting side",
		[RX_WHY_CONNECTING] = "GANTRY_SECRET is set only on the connecting side",
		[RX_WHY_DIFFERS] = "GANTRY_SECRET differs between the two sides",
	};
	char peer[GANTRY_ADDR_TEXT];

	fail(m, why == RX_WHY_VERSION ? GANTRY_ERR_VERSION : GANTRY_ERR_AUTH, "meeting with %s: %s",
	     gantry_addr_text(&m->to, peer), texts[why]);
}

/* The side that connects makes another attempt while there is time; the one that accepts gives up. */
static void again(struct meeting *m, gantry_result r, const char *what, const char *why)
{
	char peer[GANTRY_ADDR_TEXT];

	if (m->fd >= 0)
		close(m->fd);
	m->fd = -1;
	m->at = 0;
	if (!m->dials || gantry_now_ns() + RETRY_NS >= m->deadline) {
		fail(m, r, "%s with %s: %s", what, gantry_addr_text(&m->to, peer), why);
		return;
	}
	m->state = MEET_DIAL;
	m->error = r;
	snprintf(m->text, sizeof(m->text), "%s with %s: %s", what, gantry_addr_text(&m->to, peer), why);
	m->retry_at = gantry_now_ns() + RETRY_NS;
}

/* Everything of the network's that the meeting has made. */
static void drop_net(struct meeting *m)
{
	struct gantry_net *net = m->rx->net;

	if (m->listen)
		net->ops->close_listen(net, m->listen);
	m->listen = NULL;
	tcp_connect_forget(m->handle);
	rx_conn_destroy(m->conn);
	m->conn = NULL;
	m->peer_ready = 0;
	memset(m->handle, 0, sizeof(m->handle));
}

gantry_result meeting_create(struct gantry_rx *rx, int fd, const struct gantry_addr *peer, uint64_t deadline,
			     struct meeting **ret_meeting)
{
	gantry_result r = GANTRY_OK;
	struct meeting *m = calloc(1, sizeof(*m));

	if (!m)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a meeting");
	gantry_list_init(&m->node);
	m->rx = rx;
	m->fd = fd;
	m->to = *peer;
	m->dials = fd < 0;
	m->deadline = deadline;
	m->since = gantry_now_ns();
	m->state = m->dials ? MEET_DIAL : MEET_HEAR_CONNECT;
	*ret_meeting = m;
out:
	return r;
}

void meeting_destroy(struct meeting *m)
{
	if (!m)
		return;
	if (m->fd >= 0)
		close(m->fd);
	drop_net(m);
	gantry_list_remove(&m->node);
	free(m);
}

int meeting_placed(const struct meeting *m)
{
	return m->conn != NULL;
}

/* ---- what is said ---- */

static void say_next(struct meeting *m, enum meeting_state state, const struct rx_hello *h)
{
	rx_hello_encode(h, m->message);
	m->at = 0;
	m->state = state;
}

/* The connection, and the network's listener whose handle goes into our message. */
static gantry_result open_net(struct meeting *m, struct rx_hello *h)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx *rx = m->rx;

	TRY(rx_conn_create(rx, m->id, &m->conn));
	TRY(rx->net->ops->listen(rx->net, m->conn->ctx, rx->net_dev, h->handle, &m->listen));
out:
	return r;
}

static void dial(struct meeting *m)
{
	struct rx_hello h = {
		.version = RX_VERSION,
		.kind = RX_HELLO_CONNECT,
		.auth = m->rx->secret != NULL,
		.epoch = m->rx->epoch,
	};
	gantry_result r;
	int e;

	if (gantry_now_ns() < m->retry_at)
		return;
	drop_net(m);
	h.id = m->id = rx_random();
	r = gantry_random_bytes(h.nonce, sizeof(h.nonce));
	if (r == GANTRY_OK)
		r = open_net(m, &h);
	if (r != GANTRY_OK) {
		fail(m, r, "%s", gantry_last_error());
		return;
	}
	rx_hello_encode(&h, m->connect);
	e = sock_connect(NULL, NULL, &m->to, &m->fd);
	if (e && e != EINPROGRESS)
		again(m, sock_errno_class(e) == SOCK_LIMIT ? GANTRY_ERR_LIMIT : GANTRY_ERR_UNREACHABLE, "connecting",
		      strerror(e));
	else
		say_next(m, MEET_SAY_CONNECT, &h);
}

static void say_challenge(struct meeting *m)
{
	struct rx_hello h = {.version = RX_VERSION, .kind = RX_HELLO_CHALLENGE, .auth = 1, .id = m->id};

	if (gantry_random_bytes(h.nonce, sizeof(h.nonce)) != GANTRY_OK) {
		fail(m, GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
		return;
	}
	rx_hello_encode(&h, m->challenge);
	say_next(m, MEET_SAY_CHALLENGE, &h);
}

static void say_proof(struct meeting *m)
{
	struct rx_hello h = {.version = RX_VERSION, .kind = RX_HELLO_PROOF, .auth = 1, .id = m->id};
	gantry_result r = rx_hello_mac(m->rx->secret, m->connect, m->challenge, NULL, h.mac);

	if (r != GANTRY_OK)
		fail(m, r, "%s", gantry_last_error());
	else
		say_next(m, MEET_SAY_PROOF, &h);
}

void meeting_place(struct meeting *m)
{
	gantry_result r = GANTRY_OK;
	uint8_t raw[RX_HELLO_SIZE];
	char peer[GANTRY_ADDR_TEXT];
	struct rx_hello h = {
		.version = RX_VERSION,
		.kind = RX_HELLO_ACCEPT,
		.auth = m->rx->secret != NULL,
		.epoch = m->rx->epoch,
		.id = m->id,
	};

	TRY(open_net(m, &h));
	if (h.auth) {
		rx_hello_encode(&h, raw);
		TRY(rx_hello_mac(m->rx->secret, m->connect, m->challenge, raw, h.mac));
	}
	m->conn->peer_epoch = m->peer_epoch;
	snprintf(m->conn->peer, sizeof(m->conn->peer), "%s epoch %016llx", gantry_addr_text(&m->to, peer),
		 (unsigned long long)m->peer_epoch);
	m->since = gantry_now_ns();
	say_next(m, MEET_SAY_ACCEPT, &h);
out:
	if (r != GANTRY_OK)
		fail(m, is_own(r) ? r : GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
}

/* It is told why, as far as its socket takes it, and that is all. */
static void refuse(struct meeting *m, enum rx_why why)
{
	struct rx_hello h = {.version = RX_VERSION, .kind = RX_HELLO_REFUSED, .why = (uint8_t)why, .id = m->id};

	rx_hello_encode(&h, m->message);
	if (send(m->fd, m->message, RX_HELLO_SIZE, MSG_NOSIGNAL | MSG_DONTWAIT) != RX_HELLO_SIZE)
		LOG_DEBUG(RX, "a refusal could not be sent: %s", strerror(errno));
	fail_refused(m, why);
}

/* ---- what is heard: all of the message is there ---- */

static void heard_connect(struct meeting *m, const struct rx_hello *h)
{
	int secret = m->rx->secret != NULL;
	struct wire_handle handle;

	if (h->kind != RX_HELLO_CONNECT || wire_handle_decode(h->handle, &handle) != GANTRY_OK) {
		fail_protocol(m);
		return;
	}
	m->id = h->id;
	m->peer_epoch = h->epoch;
	if (h->auth != secret) {
		refuse(m, secret ? RX_WHY_ACCEPTING : RX_WHY_CONNECTING);
		return;
	}
	memcpy(m->connect, m->message, RX_HELLO_SIZE);
	memcpy(m->handle, h->handle, sizeof(m->handle));
	tcp_handle_received(m->handle);
	if (secret)
		say_challenge(m);
	else
		m->state = MEET_PLACE;
}

static void heard_proof(struct meeting *m, const struct rx_hello *h)
{
	uint8_t mac[GANTRY_MAC_SIZE];
	gantry_result r;

	if (h->kind != RX_HELLO_PROOF || h->id != m->id) {
		fail_protocol(m);
		return;
	}
	r = rx_hello_mac(m->rx->secret, m->connect, m->challenge, NULL, mac);
	if (r != GANTRY_OK)
		fail(m, r, "%s", gantry_last_error());
	else if (!gantry_equal_secret(mac, h->mac, sizeof(mac)))
		refuse(m, RX_WHY_DIFFERS);
	else
		m->state = MEET_PLACE;
}

static void heard_accept(struct meeting *m, const struct rx_hello *h)
{
	char peer[GANTRY_ADDR_TEXT];
	uint8_t mac[GANTRY_MAC_SIZE];
	gantry_result r;

	if (h->auth != (m->rx->secret != NULL) || (m->rx->secret && m->state != MEET_HEAR_ACCEPT)) {
		fail_refused(m, m->rx->secret ? RX_WHY_CONNECTING : RX_WHY_ACCEPTING);
		return;
	}
	if (h->auth) {
		r = rx_hello_mac(m->rx->secret, m->connect, m->challenge, m->message, mac);
		if (r != GANTRY_OK) {
			fail(m, r, "%s", gantry_last_error());
			return;
		}
		if (!gantry_equal_secret(mac, h->mac, sizeof(mac))) {
			fail_refused(m, RX_WHY_DIFFERS);
			return;
		}
	}
	memcpy(m->handle, h->handle, sizeof(m->handle));
	tcp_handle_received(m->handle);
	m->conn->peer_epoch = h->epoch;
	snprintf(m->conn->peer, sizeof(m->conn->peer), "%s epoch %016llx", gantry_addr_text(&m->to, peer),
		 (unsigned long long)h->epoch);
	m->state = MEET_NET;
}

/* To CONNECT, and to PROOF. */
static void heard_answer(struct meeting *m, const struct rx_hello *h)
{
	if (h->id != m->id && h->kind != RX_HELLO_REFUSED) {
		fail_protocol(m);
	} else if (h->kind == RX_HELLO_REFUSED) {
		fail_refused(m, (enum rx_why)h->why);
	} else if (h->kind == RX_HELLO_ACCEPT) {
		heard_accept(m, h);
	} else if (h->kind == RX_HELLO_CHALLENGE && m->state == MEET_HEAR_ANSWER) {
		memcpy(m->challenge, m->message, RX_HELLO_SIZE);
		if (m->rx->secret)
			say_proof(m);
		else
			fail_refused(m, RX_WHY_ACCEPTING);
	} else {
		fail_protocol(m);
	}
}

/* ---- steps ---- */

static void say(struct meeting *m, enum meeting_state said)
{
	ssize_t n = send(m->fd, m->message + m->at, RX_HELLO_SIZE - m->at, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN || errno == EINPROGRESS))
		return;
	if (n < 0) {
		again(m, errno == ECONNREFUSED ? GANTRY_ERR_REFUSED : GANTRY_ERR_UNREACHABLE, "connecting",
		      strerror(errno));
		return;
	}
	m->at += (size_t)n;
	if (m->at < RX_HELLO_SIZE)
		return;
	m->at = 0;
	m->state = said;
}

static void hear(struct meeting *m, void (*heard)(struct meeting *, const struct rx_hello *))
{
	ssize_t n = recv(m->fd, m->message + m->at, RX_HELLO_SIZE - m->at, MSG_DONTWAIT);
	struct rx_hello h;
	gantry_result r;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		again(m, n ? GANTRY_ERR_PEER_LOST : GANTRY_ERR_PEER_CLOSED, "meeting",
		      n ? strerror(errno) : "it closed the connection before it said anything");
		return;
	}
	m->at += (size_t)n;
	r = rx_hello_may_be(m->message, m->at);
	if (r == GANTRY_OK && m->at < RX_HELLO_SIZE)
		return;
	if (r == GANTRY_OK)
		r = rx_hello_decode(m->message, &h);
	m->at = 0;
	if (r == GANTRY_OK)
		heard(m, &h);
	else if (r == GANTRY_ERR_VERSION && m->state == MEET_HEAR_CONNECT)
		refuse(m, RX_WHY_VERSION);
	else if (r == GANTRY_ERR_VERSION)
		fail_refused(m, RX_WHY_VERSION);
	else
		fail_protocol(m);
}

/* Has the peer gone before it was ready? */
static int peer_gone(struct meeting *m)
{
	uint8_t byte;
	ssize_t n;

	if (m->peer_ready)
		return 0;
	n = recv(m->fd, &byte, 1, MSG_DONTWAIT);
	m->peer_ready = n == 1;
	return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* While its answer is due a peer has nothing to say. */
static void wait_for_place(struct meeting *m)
{
	if (peer_gone(m))
		again(m, GANTRY_ERR_PEER_LOST, "meeting", "the peer went away");
	else if (m->peer_ready)
		fail_protocol(m);
}

static void make_net(struct meeting *m)
{
	struct gantry_rx_conn *c = m->conn;
	struct gantry_net *net = m->rx->net;
	struct gantry_net_device_handle *filled = &c->device_handle, *none = NULL;
	gantry_result r = GANTRY_OK;
	uint8_t ready = 1;

	if (!c->in.comm)
		TRY(net->ops->accept(net, m->listen, &c->in.comm, &filled));
	if (!c->out.comm && (m->dials || c->in.comm))
		TRY(net->ops->connect(net, c->ctx, m->rx->net_dev, m->handle, &c->out.comm, &none));
	if (!c->out.comm || !c->in.comm) {
		if (peer_gone(m))
			again(m, GANTRY_ERR_PEER_LOST, "meeting", "the peer went away");
		return;
	}
	net->ops->close_listen(net, m->listen);
	m->listen = NULL;
	TRY(rx_conn_start(c));
	if (send(m->fd, &ready, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
		LOG_DEBUG(RX, "%s: the rendezvous ended early: %s", c->peer, strerror(errno));
	m->state = MEET_READY;
out:
	if (r == GANTRY_OK)
		return;
	if (gantry_result_is_remote(r))
		again(m, r, "meeting", gantry_last_error());
	else
		fail(m, r, "%s", gantry_last_error());
}

/* What a state does: `step`, or say `message` and be in `said` then, or hear one and give it to `heard`. */
static const struct {
	void (*step)(struct meeting *m);
	enum meeting_state said;
	void (*heard)(struct meeting *m, const struct rx_hello *h);
} states[MEET_STATES] = {
	[MEET_DIAL] = {.step = dial},
	[MEET_SAY_CONNECT] = {.said = MEET_HEAR_ANSWER},
	[MEET_HEAR_ANSWER] = {.heard = heard_answer},
	[MEET_SAY_PROOF] = {.said = MEET_HEAR_ACCEPT},
	[MEET_HEAR_ACCEPT] = {.heard = heard_answer},
	[MEET_HEAR_CONNECT] = {.heard = heard_connect},
	[MEET_SAY_CHALLENGE] = {.said = MEET_HEAR_PROOF},
	[MEET_HEAR_PROOF] = {.heard = heard_proof},
	[MEET_PLACE] = {.step = wait_for_place},
	[MEET_SAY_ACCEPT] = {.said = MEET_NET},
	[MEET_NET] = {.step = make_net},
};

void meeting_step(struct meeting *m)
{
	char peer[GANTRY_ADDR_TEXT], before[RX_TEXT];

	if (m->state >= MEET_READY)
		return;
	if (states[m->state].step)
		states[m->state].step(m);
	else if (states[m->state].heard)
		hear(m, states[m->state].heard);
	else
		say(m, states[m->state].said);
	if (m->state < MEET_READY && gantry_now_ns() >= m->deadline) {
		snprintf(before, sizeof(before), "%s", m->text);
		fail(m, GANTRY_ERR_TIMEOUT, "%s did not answer in time%s%s", gantry_addr_text(&m->to, peer),
		     before[0] ? "; last: " : "", before);
	}
}
