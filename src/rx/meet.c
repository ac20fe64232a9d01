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
#include "inet/loop.h"
#include "inet/sock.h"

enum { LAST_NS = 20000000 }; /* before the deadline: for the last attempt */

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

/* The side that connects makes another attempt while there is time; the one that accepts gives up. */
static void again(struct meeting *m, gantry_result r, const char *what, const char *why)
{
	char peer[GANTRY_ADDR_TEXT];
	uint64_t now = gantry_now_ns();

	if (m->fd >= 0)
		close(m->fd);
	m->fd = -1;
	if (!m->dials || now + LAST_NS >= m->deadline) {
		fail(m, r, "%s with %s: %s", what, gantry_addr_text(&m->to, peer), why);
		return;
	}
	m->state = MEET_DIAL;
	m->error = r;
	snprintf(m->text, sizeof(m->text), "%s with %s: %s", what, gantry_addr_text(&m->to, peer), why);
	m->retry_at = inet_retry_at(now, m->failures++);
	if (m->retry_at > m->deadline - LAST_NS)
		m->retry_at = m->deadline - LAST_NS;
}

/* Everything of the network's that the meeting has made. */
static void drop_net(struct meeting *m) REQUIRES(rx_mu)
{
	struct gantry_net *net = m->rx->net;

	if (m->listen)
		net->ops->close_listen(net, m->listen);
	m->listen = NULL;
	net->ops->cancel_connect(net, m->handle);
	rx_conn_destroy(m->conn);
	m->conn = NULL;
	m->peer_ready = 0;
	memset(m->handle, 0, sizeof(m->handle));
}

gantry_result meeting_create(struct gantry_rx *rx, int fd, const struct gantry_addr *peer, uint64_t deadline,
			     struct meeting **ret_meeting)
{
	struct meeting *m = calloc(1, sizeof(*m));

	if (!m)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a meeting");
	gantry_list_init(&m->node);
	m->rx = rx;
	m->fd = fd;
	m->to = *peer;
	m->dials = fd < 0;
	m->deadline = deadline;
	m->since = gantry_now_ns();
	m->state = m->dials ? MEET_DIAL : MEET_SHAKE;
	if (!m->dials)
		inet_handshake_start_server(&m->shake);
	*ret_meeting = m;
	return GANTRY_OK;
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

/* ---- the hand-shake ---- */

static const struct inet_protocol rx_protocol = {"rx", RX_VERSION, "accepting side", "connecting side", NULL};

/* The connection, and the network's listener whose handle goes into our offer. */
static gantry_result make_offer(struct meeting *m, uint8_t ret_offer[RX_OFFER_SIZE]) REQUIRES(rx_mu)
{
	struct gantry_rx *rx = m->rx;
	struct rx_offer o = {.epoch = rx->epoch, .id = m->id};

	TRY_NOW(rx_conn_create(rx, m->id, &m->conn));
	TRY_NOW(rx->net->ops->listen(rx->net, m->conn->ctx, rx->net_dev, o.handle, &m->listen));
	rx_offer_encode(&o, ret_offer);
	return GANTRY_OK;
}

static gantry_result take_offer(struct meeting *m, const struct rx_offer *o)
{
	struct gantry_net *net = m->rx->net;

	memcpy(m->handle, o->handle, sizeof(m->handle));
	m->peer_epoch = o->epoch;
	return net->ops->take_handle(net, m->handle);
}

static void know_peer(struct meeting *m)
{
	char peer[GANTRY_ADDR_TEXT];

	m->conn->peer_epoch = m->peer_epoch;
	snprintf(m->conn->peer, sizeof(m->conn->peer), "%s epoch %016llx", gantry_addr_text(&m->to, peer),
		 (unsigned long long)m->peer_epoch);
}

static void dial(struct meeting *m) REQUIRES(rx_mu)
{
	uint8_t offer[RX_OFFER_SIZE];
	gantry_result r = GANTRY_OK;
	int e;

	if (gantry_now_ns() < m->retry_at)
		return;
	drop_net(m);
	m->id = rx_random();
	TRY(make_offer(m, offer));
	TRY(inet_handshake_start_client(&m->shake, &rx_protocol, &m->rx->key, offer, sizeof(offer)));
	m->state = MEET_SHAKE;
	e = sock_connect(NULL, NULL, &m->to, &m->fd);
	if (e && e != EINPROGRESS)
		again(m, sock_errno_class(e) == SOCK_LIMIT ? GANTRY_ERR_LIMIT : GANTRY_ERR_UNREACHABLE, "connecting",
		      strerror(e));
out:
	if (r != GANTRY_OK)
		fail(m, r, "%s", gantry_last_error());
}

void meeting_place(struct meeting *m)
{
	uint8_t offer[RX_OFFER_SIZE];
	gantry_result r = GANTRY_OK;

	TRY(make_offer(m, offer));
	know_peer(m);
	m->since = gantry_now_ns();
	inet_handshake_accept(&m->shake, offer, sizeof(offer));
	m->state = MEET_SHAKE;
out:
	if (r != GANTRY_OK)
		fail(m, is_own(r) ? r : GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
}

static enum inet_event heard_hello(struct meeting *m)
{
	struct inet_handshake *h = &m->shake;
	struct rx_offer o;

	h->protocol = &rx_protocol;
	if (strcmp(h->name, rx_protocol.name) != 0)
		return inet_handshake_refuse(h, GANTRY_ERR_REFUSED, "an rx listens here, nobody speaks %s", h->name);
	if (h->peer_version == RX_VERSION) { /* of others nothing is known */
		if (rx_offer_decode(h->payload, h->payload_size, &o) != GANTRY_OK || take_offer(m, &o) != GANTRY_OK) {
			fail_protocol(m);
			return INET_AGAIN;
		}
		m->id = o.id;
	}
	return inet_handshake_challenge(h, &m->rx->key);
}

static void heard_answer(struct meeting *m)
{
	struct rx_offer o;

	if (rx_offer_decode(m->shake.payload, m->shake.payload_size, &o) != GANTRY_OK || o.id != m->id ||
	    take_offer(m, &o) != GANTRY_OK) {
		fail_protocol(m);
		return;
	}
	know_peer(m);
	m->state = MEET_NET;
}

static void shake_failed(struct meeting *m)
{
	const struct inet_handshake *h = &m->shake;
	char peer[GANTRY_ADDR_TEXT];
	int e = h->broken_errno;

	if (h->broken && h->out_size)
		again(m, e == ECONNREFUSED ? GANTRY_ERR_REFUSED : GANTRY_ERR_UNREACHABLE, "connecting", h->text);
	else if (h->broken)
		again(m, e ? GANTRY_ERR_PEER_LOST : GANTRY_ERR_PEER_CLOSED, "meeting",
		      e ? h->text : "it closed the connection before it said anything");
	else if (h->error == GANTRY_ERR_PROTOCOL)
		fail_protocol(m);
	else
		fail(m, h->error, "meeting with %s: %s", gantry_addr_text(&m->to, peer), h->text);
}

static void shake(struct meeting *m)
{
	enum inet_event event = inet_handshake_move(&m->shake, m->fd);

	if (event == INET_HELLO)
		event = heard_hello(m);
	if (event == INET_PROVED)
		m->state = MEET_PLACE;
	else if (event == INET_DONE && m->dials)
		heard_answer(m);
	else if (event == INET_DONE)
		m->state = MEET_NET;
	else if (event == INET_FAILED) {
		inet_handshake_move(&m->shake, m->fd); /* it is told why, as far as its socket takes it */
		shake_failed(m);
	}
}

/* ---- the network ---- */

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

static void make_net(struct meeting *m) REQUIRES(rx_mu)
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

static void (*const steps[])(struct meeting *m) = {
	[MEET_DIAL] = dial,
	[MEET_SHAKE] = shake,
	[MEET_PLACE] = shake, /* while its answer is due a peer has nothing to say */
	[MEET_NET] = make_net,
};

void meeting_step(struct meeting *m)
{
	char peer[GANTRY_ADDR_TEXT], before[RX_TEXT];

	if (m->state >= MEET_READY)
		return;
	steps[m->state](m);
	if (m->state < MEET_READY && gantry_now_ns() >= m->deadline) {
		snprintf(before, sizeof(before), "%s", m->text);
		fail(m, GANTRY_ERR_TIMEOUT, "%s did not answer in time%s%s", gantry_addr_text(&m->to, peer),
		     before[0] ? "; last: " : "", before);
	}
}
