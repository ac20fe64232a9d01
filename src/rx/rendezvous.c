/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening, accepting and connecting: the rendezvous of two rx over a TCP connection of its own (rx_wire.h), and then the
 * network's connections. Many at a time, each with a deadline.
 *
 *   connecting:  DIAL -> NET -> UP -> READY
 *   accepting:   (inet/listen.h) -> NET -> UP -> READY
 *
 * Strangers, and peers that wait for their answer, are with inet/listen.h. They have no meeting, no connection and no
 * listener of the network, and they know nothing of this side. gantry_rx_accept answers those that wait, in the
 * order of their coming, as long as there are places. It connects back to the handle in the peer's offer only when the
 * network has accepted the peer's own connection: one that says hello and nothing else makes it dial nowhere.
 *
 * Every state is non-blocking and has the meeting's deadline. A byte on the rendezvous connection says "I am ready", so
 * that an end of it before that means that the peer is gone.
 *
 * A connection that breaks is no end. In DIAL the connecting side dials again, and what the accepting side has made for the
 * attempt goes. In NET both have the other's offer, and nothing they need comes over this connection any more: with
 * GANTRY_RESUME they go on without it, whether it was reset or ended, as the network's connections do that have lost a socket; a
 * peer that is gone is found by these, or by the deadline. In UP the network's connections alone count.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/api.h"
#include "base/clock.h"
#include "base/hmac.h"
#include "base/param.h"
#include "inet/dial.h"
#include "inet/listen.h"
#include "inet/settings.h"
#include "inet/sock.h"
#include "net/tcp/hello.h"
#include "rx/rx.h"

/* Meetings of a listener. When there is no room, the oldest goes that has come to nothing in the time that all have: peers
 * need less, and where they need more they try again. */
enum { MEETINGS_MAX = 128, PLACED_NS = 250000000, BEGUN_NS = 1000000000 };

enum { LAST_NS = 20000000 }; /* before the deadline: for the last attempt */
/* An attempt that stands still, because what was damaged is a length, or because a word of the network's was lost with
 * a socket, is given up after a while, each time a longer one. */
static const uint64_t still_ns = 5000000000;

enum meeting_state {
	MEET_DIAL,
	MEET_NET,
	MEET_UP, /* until the peer has both connections as well */
	MEET_READY,
	MEET_FAILED,
};

/* One byte says "ready": sealed where the connection is. */
enum { READY_SEALED = 1 + GANTRY_SEAL_EXTRA };

struct meeting {
	struct gantry_list node;
	struct gantry_rx *rx; /* borrowed */
	enum meeting_state state;
	int dials; /* this side connects */
	int fd;	   /* -1 while there is none */
	struct gantry_addr to;
	uint64_t to_epoch;	     /* connecting: of the rx that it is for; 0: any */
	char peer[GANTRY_ADDR_TEXT]; /* `to` as text */
	uint64_t deadline;	     /* ns */
	uint32_t misshakes;	     /* attempts whose hand-shake failed, the last one with: */
	gantry_result misshaken;
	uint64_t still_by;     /* ns: connecting, when this attempt is given up */
	uint32_t stills;       /* attempts that were */
	uint64_t since;	       /* ns */
	struct inet_dial dial; /* of an accepted one only the seals of the hand-shake are used */
	uint8_t offer[RX_OFFER_SIZE];
	uint64_t tag; /* accepting: by which inet/listen.h knows it */
	uint64_t id, peer_epoch;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE]; /* the peer's; the network keeps its place in it */
	struct gantry_rx_conn *conn;		/* owned until READY */
	void *listen;				/* of the network, owned */
	int peer_ready;
	uint8_t said[READY_SEALED]; /* with which it says so, as far as that has come */
	size_t said_n;
	int stranger; /* FAILED: because of the peer */
	gantry_result error;
	char text[RX_TEXT];
};

static const struct inet_dial_ops meeting_ops;

/* Errors of this side's own: they say nothing about the peer. */
static int is_own(gantry_result r)
{
	return r == GANTRY_ERR_SYSTEM || r == GANTRY_ERR_NOMEM || r == GANTRY_ERR_LIMIT || r == GANTRY_ERR_CONFIG ||
	       r == GANTRY_ERR_UNSUPPORTED || r == GANTRY_ERR_USAGE || r == GANTRY_ERR_INTERNAL ||
	       r == GANTRY_ERR_DEVICE;
}

__attribute__((format(printf, 3, 4))) static void fail(struct meeting *m, gantry_result r, const char *fmt, ...)
{
	va_list args;

	m->state = MEET_FAILED;
	m->error = r;
	m->stranger = !m->dials && !is_own(r);
	va_start(args, fmt);
	vsnprintf(m->text, sizeof(m->text), fmt, args);
	va_end(args);
}

/* The side that connects makes another attempt while there is time; the one that accepts gives up. */
static void again(struct meeting *m, gantry_result r, const char *what, const char *why)
{
	uint64_t now = gantry_now_ns(), at;

	if (m->fd >= 0)
		close(m->fd);
	m->fd = -1;
	fail(m, r, "%s with %s: %s", what, m->peer, why);
	if (!m->dials || now + LAST_NS >= m->deadline)
		return;
	m->state = MEET_DIAL;
	at = inet_dial_retry_at(&m->dial);
	inet_dial_poll_start(&m->dial, at < m->deadline - LAST_NS ? at : m->deadline - LAST_NS);
}

/* The hand-shake has failed: if that may have been the way's fault, the connecting side makes another attempt. */
static void misshaken(struct meeting *m, gantry_result r, const char *why)
{
	m->misshaken = r;
	if (m->dials && ++m->misshakes < INET_TRIES)
		again(m, r, "meeting", why);
	else
		fail(m, r, "meeting with %s: %s", m->peer, why);
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
	m->said_n = 0;
	memset(m->handle, 0, sizeof(m->handle));
}

static gantry_result create_meeting(struct gantry_rx *rx, int dials, const struct gantry_addr *peer, uint64_t deadline,
				    struct meeting **ret_meeting)
{
	struct meeting *m = calloc(1, sizeof(*m));

	if (!m)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a meeting");
	gantry_list_init(&m->node);
	m->rx = rx;
	m->fd = -1;
	m->to = *peer;
	gantry_addr_text(peer, m->peer);
	m->dials = dials;
	m->deadline = deadline;
	m->since = gantry_now_ns();
	m->state = dials ? MEET_DIAL : MEET_NET;
	inet_dial_init(&m->dial, &meeting_ops);
	if (dials)
		inet_dial_poll_start(&m->dial, 0);
	*ret_meeting = m;
	return GANTRY_OK;
}

/* NULL is fine. */
static void destroy_meeting(struct meeting *m) REQUIRES(rx_mu)
{
	if (!m)
		return;
	if (m->fd >= 0)
		close(m->fd);
	inet_dial_poll_end(&m->dial);
	drop_net(m);
	gantry_list_remove(&m->node);
	free(m);
}

/* ---- the hand-shake ---- */

static const char not_rx[] = "it does not speak the protocol of gantry/rx.h";
static struct inet_service rx_service;

/* The connection, and the network's listener whose handle goes into our offer. */
static gantry_result make_offer(struct meeting *m, uint8_t ret_offer[RX_OFFER_SIZE]) REQUIRES(rx_mu)
{
	struct gantry_rx *rx = m->rx;
	struct rx_offer o = {.epoch = rx->epoch, .id = m->id};

	TRY_NOW(rx_conn_create(rx, m->id, &m->conn));
	TRY_NOW(rx->net->ops->listen(rx->net, m->conn->ctx, rx->listen_dev, o.handle, &m->listen));
	if (m->dials) {
		o.to = inet_target_of(&m->to);
		o.to_epoch = m->to_epoch;
	}
	rx_offer_encode(&o, ret_offer);
	return GANTRY_OK;
}

/* The peer's, with a handle that the network can use. */
static bool read_offer(const struct gantry_rx *rx, const struct inet_handshake *h, struct rx_offer *ret_offer)
{
	return rx_offer_decode(h->payload, h->payload_size, ret_offer) == GANTRY_OK &&
	       rx->net->ops->take_handle(rx->net, ret_offer->handle) == GANTRY_OK;
}

static void take_offer(struct meeting *m, const struct rx_offer *o)
{
	m->id = o->id;
	m->peer_epoch = o->epoch;
	memcpy(m->handle, o->handle, sizeof(m->handle));
}

/* For an attempt, or what follows it. */
static uint64_t patience(const struct meeting *m)
{
	return still_ns * (1 + m->stills);
}

/* Everything of the attempt before goes, and the peer gets a new offer. */
static bool aim_meeting(struct inet_dial *d, struct inet_dial_aim *ret) REQUIRES(rx_mu)
{
	struct meeting *m = gantry_container(d, struct meeting, dial);
	gantry_result r = GANTRY_OK;

	drop_net(m);
	TRY(gantry_random_bytes(&m->id, sizeof(m->id)));
	TRY(make_offer(m, m->offer));
	ret->to = m->to;
	ret->patience = patience(m);
out:
	if (r != GANTRY_OK)
		fail(m, r, "%s", gantry_last_error());
	return r == GANTRY_OK;
}

static void fill_hello(struct inet_dial *d, struct inet_dial_hello *ret)
{
	const struct meeting *m = gantry_container(d, struct meeting, dial);

	memcpy(ret->payload, m->offer, sizeof(m->offer));
	ret->size = sizeof(m->offer);
	ret->protocol = &rx_service.protocol;
	ret->key = &m->rx->key;
	ret->patience = patience(m);
}

static const struct inet_dial_ops meeting_ops = {.aim = aim_meeting, .hello = fill_hello};

/* If a hand-shake has failed before, the peer may not attend to its listener any more: the failure of that hand-shake is the reason. */
static void stood_still(struct meeting *m)
{
	char last[RX_TEXT];

	snprintf(last, sizeof(last), "%s", m->text);
	m->stills++;
	if (m->misshakes)
		fail(m, m->misshaken, "%s", last);
	else
		again(m, GANTRY_ERR_TIMEOUT, "meeting",
		      m->state == MEET_DIAL ? "no answer" : "the network's connections were not made");
}

static gantry_result connect_error(int e)
{
	if (e == ECONNREFUSED)
		return GANTRY_ERR_REFUSED;
	return sock_errno_class(e) == SOCK_LIMIT ? GANTRY_ERR_LIMIT : GANTRY_ERR_UNREACHABLE;
}

static void dial_failed(struct meeting *m)
{
	const struct inet_dial *d = &m->dial;

	switch (d->cause) {
	case INET_DIAL_CONNECT:
		again(m, connect_error(d->error), "connecting", d->text);
		break;
	case INET_DIAL_BROKE:
		again(m, d->shake.broken_errno ? GANTRY_ERR_PEER_LOST : GANTRY_ERR_PEER_CLOSED, "meeting", d->text);
		break;
	case INET_DIAL_REFUSED:
		misshaken(m, d->shake.error, d->shake.error == GANTRY_ERR_PROTOCOL ? not_rx : d->text);
		break;
	case INET_DIAL_FILTERED:
	case INET_DIAL_SILENT:
		stood_still(m);
		break;
	case INET_DIAL_OWN:
	case INET_DIAL_EXIT:
		fail(m, GANTRY_ERR_SYSTEM, "%s", d->text);
		break;
	}
}

/* Both have the other's offer. */
static void begin_net(struct meeting *m)
{
	struct rx_offer o;

	m->fd = inet_dial_poll_take(&m->dial);
	if (!read_offer(m->rx, &m->dial.shake, &o) || o.id != m->id) {
		misshaken(m, GANTRY_ERR_PROTOCOL, not_rx);
		return;
	}
	take_offer(m, &o);
	m->state = MEET_NET;
	m->misshakes = 0;
	m->still_by = gantry_now_ns() + patience(m);
}

static void dial_peer(struct meeting *m) REQUIRES(rx_mu)
{
	switch (inet_dial_poll(&m->dial)) {
	case INET_DONE:
		begin_net(m);
		break;
	case INET_FAILED:
		dial_failed(m);
		break;
	default:
		break;
	}
}

/* ---- the network ---- */

/* The peer's record is complete. One that was tampered with ends the meeting, with the reason. */
static void heard_ready(struct meeting *m)
{
	char why[GANTRY_SEAL_WHY] = "a record is not authentic: it was modified in transit";
	struct gantry_seal *s = m->dial.shake.seals.rx;
	uint8_t byte;

	m->peer_ready = 1;
	if (s &&
	    (gantry_seal_length(s, m->said, why) != 1 || !gantry_seal_open(s, m->said, &(struct iovec){&byte, 1}, 1)))
		fail(m, GANTRY_ERR_CORRUPT, "meeting with %s: %s", m->peer, why);
}

/* Its connection broke (errno), or ended (0) before the peer was ready. False: that is the end. */
static bool survives_break(struct meeting *m, int e)
{
	const char *why = e ? strerror(e) : "closed without a goodbye message";

	if (inet_resume_says() == INET_RESUME_NO)
		return false;
	LOG_DEBUG(RX, "%s: the rendezvous broke, the network's connections go on: %s", m->peer, why);
	snprintf(m->text, sizeof(m->text), "the connection broke: %s", why);
	close(m->fd);
	m->fd = -1;
	return true;
}

/* The peer may say that it is ready, or go before that. */
static void hear_ready(struct meeting *m)
{
	size_t size = m->dial.shake.seals.rx ? READY_SEALED : 1;
	ssize_t n;

	if (m->peer_ready || m->fd < 0)
		return;
	n = recv(m->fd, m->said + m->said_n, size - m->said_n, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0 && survives_break(m, n ? errno : 0))
		return;
	if (n <= 0) {
		again(m, GANTRY_ERR_PEER_LOST, "meeting",
		      m->said_n ? "the peer closed the connection in the middle of a record"
				: "the peer closed the connection");
		return;
	}
	m->said_n += (size_t)n;
	if (m->said_n == size)
		heard_ready(m);
}

static void say_ready(struct meeting *m)
{
	uint8_t said[READY_SEALED] = {1}, byte = 1;
	size_t size = 1;

	if (m->fd < 0)
		return;
	if (m->dial.shake.seals.tx)
		size = gantry_seal_close(m->dial.shake.seals.tx, &(struct iovec){&byte, 1}, 1, said);
	if (send(m->fd, said, size, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)size)
		LOG_DEBUG(RX, "%s: the rendezvous ended early: %s", m->conn->peer, strerror(errno));
}

/* OK is fine. */
static void net_failed(struct meeting *m, gantry_result r, const char *why)
{
	if (r == GANTRY_OK)
		return;
	if (gantry_result_is_remote(r))
		again(m, r, "meeting", why);
	else
		fail(m, r, "%s", why);
}

/* The NICs that lead to those of the peer, which are in its handle. On one host the data passes none of them. */
static gantry_result choose_nics(struct meeting *m)
{
	struct gantry_rx_conn *c = m->conn;
	struct wire_handle h;
	bool is_here = true;

	TRY_NOW(wire_handle_decode(m->handle, &h));
	for (int i = 0; i < h.naddrs; i++)
		is_here &= gantry_addr_is_local(&h.addrs[i]);
	c->net_dev = m->rx->rails.rail[0].dev;
	c->nics = 1;
	return is_here ? GANTRY_OK
		       : gantry_rails_choose(&m->rx->rails, h.addrs, h.naddrs, false, &c->net_dev, &c->nics);
}

static void make_net(struct meeting *m) REQUIRES(rx_mu)
{
	struct gantry_rx_conn *c = m->conn;
	struct gantry_net *net = m->rx->net;
	struct gantry_net_device_handle *filled = &c->device_handle, *none = NULL;
	gantry_result r = GANTRY_OK;

	if (!c->in.comm)
		TRY(net->ops->accept(net, m->listen, &c->in.comm, &filled));
	if (c->net_dev < 0)
		TRY(choose_nics(m));
	if (!c->out.comm && (m->dials || c->in.comm))
		TRY(net->ops->connect(net, c->ctx, c->net_dev, m->handle, &c->out.comm, &none));
	if (!c->out.comm || !c->in.comm) {
		hear_ready(m);
		return;
	}
	net->ops->close_listen(net, m->listen);
	m->listen = NULL;
	c->peer_epoch = m->peer_epoch;
	snprintf(c->peer, sizeof(c->peer), "%s epoch %016llx", m->peer, (unsigned long long)m->peer_epoch);
	TRY(rx_conn_start(c));
	say_ready(m);
	if (!m->dials)
		TRY(rx_head_send(c, &(struct rx_head){.kind = RX_UP}, NULL));
	m->state = MEET_UP;
out:
	net_failed(m, r, gantry_last_error());
}

/* The accepting side says UP first, so the connecting side is the first to be done: from then on it does not begin again. */
static void come_up(struct meeting *m) REQUIRES(rx_mu)
{
	struct gantry_rx_conn *c = m->conn;

	rx_conn_progress(c);
	if (c->error != GANTRY_OK) {
		net_failed(m, c->error, c->error_text);
	} else if (c->up) {
		m->state = MEET_READY;
		if (m->dials)
			net_failed(m, rx_head_send(c, &(struct rx_head){.kind = RX_UP}, NULL), gantry_last_error());
	}
}

static void (*const steps[])(struct meeting *m) = {
	[MEET_DIAL] = dial_peer,
	[MEET_NET] = make_net,
	[MEET_UP] = come_up,
};

/* Never blocks, never fails: state says. */
static void step_meeting(struct meeting *m)
{
	char before[RX_TEXT];

	if (m->state >= MEET_READY)
		return;
	steps[m->state](m);
	if (m->dials && m->state > MEET_DIAL && m->state < MEET_READY && gantry_now_ns() >= m->still_by)
		stood_still(m);
	if (m->state < MEET_READY && gantry_now_ns() >= m->deadline) {
		snprintf(before, sizeof(before), "%s", m->text);
		fail(m, GANTRY_ERR_TIMEOUT, "%s did not answer in time%s%s", m->peer, before[0] ? "; last: " : "",
		     before);
	}
}

/* ---- strangers, and peers that wait: under loop_mu, on the loop's thread ---- */

/* Whether the hello is for this rx, by its epoch, or else by the address that was dialled: the one at which it came in, or that
 * peers are told. Without a secret an address shows nothing, and may be translated on the way. */
static bool is_for_us(const struct gantry_rx_listener *l, const struct inet_conn *c, const struct rx_offer *o)
{
	if (o->to_epoch)
		return o->to_epoch == l->rx->epoch;
	return l->rx->key.auth != INET_AUTH_SECRET || inet_target_is_here(&o->to, c->source.fd, &l->advertised);
}

static void on_hello(struct inet_conn *c) REQUIRES(loop_mu)
{
	const struct gantry_rx_listener *l = c->port->owner;
	const bool known = c->shake.peer_version == RX_VERSION; /* the hand-shake refuses other versions */
	struct rx_offer o;

	if (known && !read_offer(l->rx, &c->shake, &o))
		inet_conn_drop(c, not_rx);
	else if (known && !is_for_us(l, c, &o))
		inet_conn_refuse(c, GANTRY_ERR_REFUSED,
				 "it dialled another address or rx than this one: if its address is translated on "
				 "the way, set GANTRY_ADVERTISE here, or connect to host:port#epoch");
	else
		inet_conn_challenge(c, &l->rx->key);
}

/* It waits for gantry_rx_accept, which knows it by its tag. */
static void on_proved(struct inet_conn *c) REQUIRES(loop_mu)
{
	static uint64_t tags GUARDED_BY(loop_mu);

	c->tag = ++tags;
}

static void turn_away(struct gantry_rx_listener *l, bool stranger, const char *text)
{
	uint32_t more = 0;

	if (stranger)
		fetch_add_relaxed(&l->rx->strangers, 1);
	if (gantry_ratelimit_pass(&l->quiet, &more))
		LOG_WARN(RX, "%s: %s%s", l->address, text, LEFT_OUT(more));
}

static void on_lost(struct inet_conn *c) REQUIRES(loop_mu)
{
	char peer[GANTRY_ADDR_TEXT], text[RX_TEXT];

	snprintf(text, sizeof(text), "meeting with %s: %s", gantry_addr_text(&c->addr, peer),
		 c->shake.error == GANTRY_ERR_PROTOCOL ? not_rx : c->shake.text);
	turn_away(c->port->owner, true, text);
}

static struct inet_service rx_service = {
	.protocol = {"rx", RX_VERSION, "accepting side", "connecting side", NULL},
	.hello = on_hello,
	.proved = on_proved,
	.lost = on_lost,
};

/* ---- listeners ---- */

/* Connections may come as soon as the port is open: all that they need is set before the lock is let go. */
static gantry_result open_listener(struct gantry_rx_listener *l, const struct gantry_addr *at)
{
	gantry_result r = GANTRY_OK;

	inet_loop_lock();
	TRY(inet_port_open(&rx_service, at, l, &l->port));
	gantry_addr_text(&l->port->addr, l->address);
	TRY(inet_advertised(&l->port->addr, &l->advertised));
out:
	if (r != GANTRY_OK)
		inet_port_put(&rx_service, l->port);
	inet_loop_unlock();
	return r;
}

gantry_result gantry_rx_listen(struct gantry_rx *rx, const char *address, struct gantry_rx_listener **ret_listener)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx_listener *l = calloc(1, sizeof(*l));
	struct gantry_addr a;

	memset(&a, 0, sizeof(a));
	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a listener");
	gantry_list_init(&l->meetings);
	l->rx = rx;
	TRY(address ? rx_address_parse(address, 1, &a) : rx_address_own(rx, &a));
	TRY(open_listener(l, &a));
	rx_mu_lock(&rx->mu);
	gantry_list_append(&rx->listeners, &l->node);
	rx_mu_unlock(&rx->mu);
	*ret_listener = l;
	l = NULL;
out:
	free(l);
	return r;
}

const char *gantry_rx_listener_address(const struct gantry_rx_listener *listener)
{
	return listener->address;
}

void gantry_rx_listener_close(struct gantry_rx_listener *listener)
{
	struct gantry_rx *rx;

	if (!listener)
		return;
	rx = listener->rx;
	rx_mu_lock(&rx->mu);
	gantry_list_each_safe (pos, &listener->meetings)
		destroy_meeting(gantry_container(pos, struct meeting, node));
	gantry_list_remove(&listener->node);
	rx_mu_unlock(&rx->mu);
	inet_loop_lock();
	inet_port_put(&rx_service, listener->port);
	inet_loop_unlock();
	free(listener);
}

static void drop_meeting(struct gantry_rx_listener *l, struct meeting *m) REQUIRES(rx_mu)
{
	l->nmeetings--;
	destroy_meeting(m);
}

/* The oldest one whose connections the network has not begun, then the oldest of all: if it has had its time. With a secret all of
 * them are proved, and stay until their deadline. */
static struct meeting *unconnected(struct gantry_rx_listener *l)
{
	uint64_t now = gantry_now_ns();
	struct meeting *begun = NULL;

	gantry_list_each_entry (m, &l->meetings, struct meeting, node) {
		if (l->rx->key.auth != INET_AUTH_NONE || m->state >= MEET_READY)
			continue;
		if (!m->conn->in.comm && now - m->since >= PLACED_NS)
			return m;
		if (!begun && m->conn->in.comm && now - m->since >= BEGUN_NS)
			begun = m;
	}
	return begun;
}

/* The place is needed. A peer that this happens to tries again. */
static void recycle(struct gantry_rx_listener *l, struct meeting *m) REQUIRES(rx_mu)
{
	char text[RX_TEXT];

	snprintf(text, sizeof(text), "%s has sent its hello and nothing else, and a newer connection replaced it",
		 m->peer);
	turn_away(l, true, text);
	drop_meeting(l, m);
}

/* A meeting with the oldest peer that waits for its answer; NULL: none does. */
static struct meeting *meet_waiting(struct gantry_rx_listener *l)
{
	uint64_t deadline = gantry_now_ns() + gantry_params()->connect_timeout;
	struct inet_conn *c = NULL;
	struct meeting *m = NULL;
	struct rx_offer o;

	inet_loop_lock();
	do
		c = inet_conn_waiting(&rx_service, c);
	while (c && c->port != l->port);
	if (c && read_offer(l->rx, &c->shake, &o) && create_meeting(l->rx, 0, &c->addr, deadline, &m) == GANTRY_OK) {
		m->tag = c->tag;
		take_offer(m, &o);
	}
	inet_loop_unlock();
	return m;
}

/* It gets a connection and a listener of the network, and is answered. False: it has left. The lock was let go in
 * between, for what the network does: by the tag it is found again. */
static bool answer_waiting(struct meeting *m) REQUIRES(rx_mu)
{
	uint8_t offer[RX_OFFER_SIZE];
	gantry_result r = make_offer(m, offer);
	struct inet_conn *c;

	if (r != GANTRY_OK)
		fail(m, is_own(r) ? r : GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
	inet_loop_lock();
	c = inet_conn_tagged(&rx_service, m->tag);
	if (c && (r != GANTRY_OK || inet_conn_accept(c, offer, sizeof(offer))))
		m->fd = inet_conn_take(c, &m->dial.shake.seals);
	inet_loop_unlock();
	return m->fd >= 0;
}

/* The next one that waits gets a place. 0: there is none. */
static int take_in(struct gantry_rx_listener *l) REQUIRES(rx_mu)
{
	struct meeting *m, *oldest = NULL;

	if (l->nmeetings >= MEETINGS_MAX && !(oldest = unconnected(l)))
		return 0;
	m = meet_waiting(l);
	if (!m)
		return 0;
	if (oldest)
		recycle(l, oldest);
	gantry_list_append(&l->meetings, &m->node);
	l->nmeetings++;
	if (!answer_waiting(m))
		drop_meeting(l, m);
	return 1;
}

/* One round over all meetings: the first that is ready. */
static struct gantry_rx_conn *attend(struct gantry_rx_listener *l, int *ret_moved) REQUIRES(rx_mu)
{
	struct gantry_rx_conn *ready = NULL;

	for (int n = 0; n < MEETINGS_MAX && take_in(l); n++)
		*ret_moved = 1;
	gantry_list_each_entry_safe (m, &l->meetings, struct meeting, node) {
		enum meeting_state before = m->state;

		step_meeting(m);
		*ret_moved |= m->state != before;
		if (m->state == MEET_FAILED)
			turn_away(l, m->stranger, m->text);
		if (m->state == MEET_READY && !ready) {
			ready = m->conn;
			m->conn = NULL;
		} else if (m->state != MEET_FAILED) {
			continue;
		}
		drop_meeting(l, m);
	}
	return ready;
}

gantry_result gantry_rx_accept(struct gantry_rx_listener *listener, int64_t timeout_ns,
			       struct gantry_rx_conn **ret_conn)
{
	struct gantry_rx *rx = listener->rx;
	uint64_t deadline;
	struct gantry_rx_conn *c;
	struct gantry_waiter idle;

	if (inet_forked(listener->port->forks))
		return inet_refuse_forked("gantry_rx_accept");
	TRY_NOW(gantry_deadline(timeout_ns, gantry_params()->connect_timeout, &deadline));
	gantry_waiter_init(&idle, NULL);
	rx_mu_lock(&rx->mu);
	for (;;) {
		int moved = 0;

		c = attend(listener, &moved);
		if (c || gantry_now_ns() >= deadline)
			break;
		rx_idle(rx, &idle, rx_progress(rx) | moved, deadline);
	}
	rx_mu_unlock(&rx->mu);
	if (!c)
		return GANTRY_ERR_TIMEOUT; /* no peer came: not worth a log line */
	*ret_conn = c;
	return GANTRY_OK;
}

gantry_result gantry_rx_connect(struct gantry_rx *rx, const char *address, int64_t timeout_ns,
				struct gantry_rx_conn **ret_conn)
{
	gantry_result r;
	uint64_t deadline;
	struct gantry_addr to;
	struct meeting *m = NULL;
	struct gantry_waiter idle;
	char at[320];
	uint64_t epoch;

	memset(&to, 0, sizeof(to));
	TRY_NOW(rx_address_epoch(address, at, sizeof(at), &epoch));
	TRY_NOW(rx_address_parse(at, 0, &to));
	TRY_NOW(gantry_deadline(timeout_ns, gantry_params()->connect_timeout, &deadline));
	gantry_waiter_init(&idle, NULL);
	rx_mu_lock(&rx->mu);
	r = create_meeting(rx, 1, &to, deadline, &m);
	if (m)
		m->to_epoch = epoch;
	while (m && m->state < MEET_READY) {
		enum meeting_state before = m->state;

		step_meeting(m);
		rx_idle(rx, &idle, rx_progress(rx) | (m->state != before), deadline);
	}
	if (m && m->state == MEET_READY) {
		*ret_conn = m->conn;
		m->conn = NULL;
	} else if (m) {
		r = gantry_fail(m->error, LOG_SUBSYS, __FILE__, __LINE__, "%s", m->text);
	}
	destroy_meeting(m);
	rx_mu_unlock(&rx->mu);
	return r;
}
