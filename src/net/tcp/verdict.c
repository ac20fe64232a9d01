/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accepting side's handshake: what a hello is answered with, and the lane that it becomes. incoming.c has the rest
 * of the accepting side.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"
#include "net/tcp/incoming.h"

enum { OPENING_MAX = 16 };

static int send_welcome(struct tcp_incoming *in, struct wire_welcome *w)
{
	w->version = WIRE_VERSION;
	w->process = tcp_engine.process;
	w->host = tcp_engine.host;
	w->window = LINK_WINDOW;
	w->eager_max = (uint32_t)gantry_params()->eager_max;
	gantry_random_bytes(w->nonce, sizeof(w->nonce));
	wire_welcome_encode(w, in->raw_welcome);
	if (in->proved && w->verdict <= WIRE_USE_SESSION && tcp_engine.secret) {
		if (wire_mac(tcp_engine.secret, 0, in->raw_hello, in->raw_welcome, w->mac) != GANTRY_OK)
			return -1;
		wire_welcome_encode(w, in->raw_welcome);
	}
	/* A fresh socket has room for this; one that has not is no peer. */
	return send(in->source.fd, in->raw_welcome, WIRE_WELCOME_SIZE, MSG_DONTWAIT | MSG_NOSIGNAL) == WIRE_WELCOME_SIZE
		       ? 0
		       : -1;
}

/*
 * It hears why it is not accepted. If it is a proved peer, accept fails with the same reason at once. Otherwise it is a
 * stranger, though one that knows the cookie: most likely a peer whose settings differ, so the line is a warning.
 */
static void refuse(struct tcp_incoming *in, enum wire_verdict verdict, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void refuse(struct tcp_incoming *in, enum wire_verdict verdict, gantry_result r, const char *fmt, ...)
{
	static struct gantry_ratelimit limit;
	struct wire_welcome w = {.verdict = (uint8_t)verdict};
	struct tcp_listener *l = in->proved ? tcp_listener_find(in->listener) : NULL;
	char text[GANTRY_ADDR_TEXT];
	uint32_t more;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(w.text, sizeof(w.text), fmt, ap);
	va_end(ap);
	if (l && l->error == GANTRY_OK) {
		l->error = r;
		snprintf(l->error_text, sizeof(l->error_text), "refused %s (%s): %s", gantry_addr_text(&in->addr, text),
			 in->hello.peer, w.text);
		gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__, "%s", l->error_text);
	}
	send_welcome(in, &w);
	if (in->proved) {
		tcp_incoming_free(in);
		return;
	}
	if (gantry_ratelimit_pass(&limit, &more))
		LOG_WARN(NET, "refused %s (%s), which has not proved to be a peer: %s%s",
			 gantry_addr_text(&in->addr, text), in->hello.peer, w.text, LEFT_OUT(more));
	tcp_incoming_stranger(in, w.text);
}

/*
 * Would the link do what a new one would? Payload must land where this listener wants it, and the peer must expect it
 * where it does in what it says now. Before the peer has answered only our half is known.
 */
static int same_homes(const struct tcp_link *l, const struct wire_hello *h, const struct tcp_listener *listener)
{
	if (l->session.own_unpack != (int)tcp_home_says(&listener->home))
		return 0;
	return !l->lanes_here || (l->session.peer_unpack == h->unpack &&
				  (!l->session.device_rx || l->devmem.pool == listener->home.pool));
}

/* Towards the same peer, for the same purpose, and our receiving direction is free. */
static int may_share(const struct tcp_link *l, const struct wire_hello *h, const struct tcp_listener *listener)
{
	return l->session.peer_process == h->process && l->session.comm_id == h->comm_id &&
	       l->session.dev == listener->dev && l->session.peer_dev == h->dev && l->rx_state == TCP_UNUSED &&
	       !tcp_link_failed(l) && same_homes(l, h, listener);
}

/*
 * A link of ours that the peer may share. Only one whose control lane the peer has accepted may be promised: before
 * that the peer may still tell us to share a link of its own. If our hello is under way, the process with the smaller
 * id waits with its answer until that is decided (*ret_wait); the other one never waits, so they cannot wait for each
 * other.
 */
static struct tcp_link *link_to_share(const struct wire_hello *h, const struct tcp_listener *listener, int *ret_wait)
{
	*ret_wait = 0;
	gantry_list_each (pos, &tcp_engine.shareable) {
		struct tcp_link *l = gantry_container(pos, struct tcp_link, waiting);

		if (may_share(l, h, listener))
			return l;
	}
	if (tcp_engine.process >= h->process)
		return NULL;
	gantry_list_each (pos, &tcp_engine.connectors) {
		struct tcp_connector *c = gantry_container(pos, struct tcp_connector, node);

		if (c->state != TCP_CONNECTING || !c->link || !may_share(c->link, h, listener))
			continue;
		if (c->link->lanes_here)
			return c->link;
		*ret_wait = 1;
	}
	return NULL;
}

/* The link that the peer opens by this hello's session, and that is not up yet. */
static struct tcp_link *link_opening(const struct wire_hello *h)
{
	struct tcp_link *l = tcp_link_of_session(h->session);

	return l && !l->up && l->session.peer_process == h->process ? l : NULL;
}

/* A peer opens a link or two for a listener. One that begins many and ends none is at fault: its oldest goes. */
static void limit_opening(const struct tcp_listener *listener)
{
	if (listener->nopening < OPENING_MAX)
		return;
	gantry_list_each (pos, &tcp_engine.opening) {
		struct tcp_link *l = gantry_container(pos, struct tcp_link, waiting);

		if (l->rx_listener != listener->id)
			continue;
		LOG_INFO(NET, "%s: %d connections to one listener wait for their lanes, the oldest goes",
			 l->session.peer, listener->nopening);
		tcp_link_forget(l);
		tcp_link_bury(l);
		return;
	}
}

static struct tcp_link *new_link(struct tcp_incoming *in, struct tcp_listener *listener)
{
	const struct wire_hello *h = &in->hello;
	char text[GANTRY_ADDR_TEXT];
	struct tcp_link *l;

	limit_opening(listener);
	if (tcp_link_for_session(h->lanes, &l) != GANTRY_OK)
		return NULL;
	memcpy(l->session.key, h->session, WIRE_SESSION_SIZE);
	l->session.peer_process = h->process;
	l->session.comm_id = h->comm_id;
	l->session.dev = listener->dev;
	l->session.peer_dev = h->dev;
	l->linger_until = gantry_now_ns() + gantry_params()->connect_timeout; /* until it is up: when to give up */
	snprintf(l->session.peer, sizeof(l->session.peer), "%s (%s)", gantry_addr_text(&in->addr, text), h->peer);
	tcp_link_meet(l, &listener->home,
		      &(struct tcp_peer){.host = h->host,
					 .window = h->window,
					 .eager_max = h->eager_max,
					 .unpack = (enum wire_unpack)h->unpack});
	tcp_link_opening(l, listener);
	return l;
}

/* The handshake is over: the socket becomes a lane. One that the peer has dialled again takes the place of the first.
 */
static void become_lane(struct tcp_incoming *in, struct tcp_link *l, const struct tcp_listener *listener)
{
	const struct gantry_nic *nic = &tcp_engine.nics->nics[in->nic];
	const char *device = NULL;

	if (gantry_params()->bind_device && gantry_nic_should_bind(nic, &in->addr))
		device = nic->name;
	tcp_lane_take(l, in->hello.lane, inet_source_release(&in->source), &listener->ctx, device);
	tcp_incoming_free(in);
	if (l->lanes_here == l->nlanes)
		tcp_link_up(l);
}

/* The listener's direction is the free one of a link that is there: that is told, and this socket has served. */
static void share(struct tcp_incoming *in, const struct tcp_listener *listener, struct tcp_link *l,
		  struct wire_welcome *w)
{
	w->verdict = WIRE_USE_SESSION;
	memcpy(w->session, l->session.key, WIRE_SESSION_SIZE);
	if (send_welcome(in, w)) {
		tcp_incoming_stranger(in, "it does not take the welcome");
		return;
	}
	gantry_list_remove(&l->waiting);
	l->rx_state = TCP_RESERVED;
	l->rx_listener = listener->id;
	if (l->up)
		tcp_link_deliver(l);
	tcp_incoming_free(in);
}

/* Its session is not, or no longer, one that waits for lanes: it is to begin anew. */
static void unknown_session(struct tcp_incoming *in)
{
	struct wire_welcome w = {.verdict = WIRE_UNKNOWN_SESSION};

	snprintf(w.text, sizeof(w.text), "no link waits for lane %d", in->hello.lane);
	send_welcome(in, &w);
	tcp_incoming_stranger(in, w.text);
}

/*
 * Its answer waits until our own hello is answered. As with links that are opening, one listener's are bounded: the
 * time of the oldest is over with the next tick. Not at once, since callers may be going through the list.
 */
static void defer(struct tcp_incoming *in)
{
	struct tcp_incoming *oldest = NULL;
	int n = 0;

	in->state = DEFERRED;
	gantry_list_each (pos, &tcp_engine.incoming) {
		struct tcp_incoming *other = gantry_container(pos, struct tcp_incoming, node);

		if (other->state == DEFERRED && other->listener == in->listener && other->deadline && n++ == 0)
			oldest = other;
	}
	if (n > OPENING_MAX)
		oldest->deadline = 0;
}

/* It is a peer. */
static void accept_hello(struct tcp_incoming *in, struct tcp_listener *listener)
{
	struct wire_welcome w = {.verdict = WIRE_OK, .unpack = (uint8_t)tcp_home_says(&listener->home)};
	const struct wire_hello *h = &in->hello;
	struct tcp_link *l = link_opening(h), *shared = NULL;
	int wait = 0;

	snprintf(w.text, sizeof(w.text), "%s", tcp_engine.self);
	w.naddrs = listener->naddrs;
	memcpy(w.addrs, listener->addrs, sizeof(w.addrs));
	if (!l && h->lane == 0) {
		shared = link_to_share(h, listener, &wait);
		if (shared) {
			share(in, listener, shared, &w);
			return;
		}
		if (wait) {
			defer(in);
			return;
		}
		l = new_link(in, listener);
		if (!l) {
			refuse(in, WIRE_REFUSED_LIMIT, GANTRY_ERR_LIMIT,
			       "the accepting side is out of file descriptors: raise `ulimit -n` there");
			return;
		}
	}
	if (!l || h->lane >= l->nlanes)
		unknown_session(in);
	else if (send_welcome(in, &w))
		tcp_incoming_stranger(in, "it does not take the welcome");
	else
		become_lane(in, l, listener);
}

void tcp_incoming_reconsider(void)
{
	gantry_list_each_safe (pos, &tcp_engine.incoming) {
		struct tcp_incoming *in = gantry_container(pos, struct tcp_incoming, node);
		struct tcp_listener *l;

		if (in->state != DEFERRED)
			continue;
		l = tcp_listener_find(in->listener);
		if (l)
			accept_hello(in, l);
		else
			tcp_incoming_stranger(in, "its listener was closed");
	}
}

/* It knows the secret, or the cookie where there is none. What must agree is compared now, so that both sides hear. */
static void proved(struct tcp_incoming *in)
{
	struct tcp_listener *l = tcp_listener_find(in->listener);
	int crc = gantry_params()->crc;

	tcp_incoming_proved(in);
	if (in->hello.version != WIRE_VERSION)
		refuse(in, WIRE_REFUSED_VERSION, GANTRY_ERR_VERSION,
		       "protocol version differs: %d (accepting side) and %d (connecting side)", WIRE_VERSION,
		       in->hello.version);
	else if (in->hello.auth != (tcp_engine.secret ? WIRE_AUTH_HMAC : WIRE_AUTH_COOKIE))
		refuse(in, WIRE_REFUSED_AUTH, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the connecting side");
	else if (in->hello.crc != crc)
		refuse(in, WIRE_REFUSED_SETTING, GANTRY_ERR_SETTING,
		       "GANTRY_CRC differs: %d (accepting side) and %d (connecting side)", crc, in->hello.crc);
	else if (l)
		accept_hello(in, l);
	else
		tcp_incoming_stranger(in, "its listener was closed");
}

/* Nothing is made or promised for a hello before the secret is proved, however well it is informed. */
static void challenge(struct tcp_incoming *in)
{
	struct wire_welcome w = {.verdict = WIRE_CHALLENGE};

	if (in->hello.version != WIRE_VERSION) {
		refuse(in, WIRE_REFUSED_VERSION, GANTRY_ERR_VERSION,
		       "protocol version differs: %d (accepting side) and %d (connecting side)", WIRE_VERSION,
		       in->hello.version);
	} else if (in->hello.auth != WIRE_AUTH_HMAC) {
		refuse(in, WIRE_REFUSED_AUTH, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the accepting side");
	} else if (send_welcome(in, &w)) {
		tcp_incoming_stranger(in, "it does not take the challenge");
	} else {
		in->state = READ_PROOF;
		in->got = 0;
	}
}

static void refuse_listener(struct tcp_incoming *in)
{
	struct wire_welcome w = {.verdict = WIRE_REFUSED_LISTENER};

	snprintf(w.text, sizeof(w.text),
		 tcp_listener_served(in->hello.listener)
			 ? "this listener has accepted its connection and was closed; a second connect came too late"
			 : "no such listener here: it was closed, or the handle is not from this process");
	send_welcome(in, &w);
	tcp_incoming_stranger(in, "unknown listener or wrong cookie");
}

void tcp_incoming_hello(struct tcp_incoming *in)
{
	const struct wire_hello *h = &in->hello;
	struct tcp_listener *l;

	memcpy(in->raw_hello, in->in, WIRE_HELLO_SIZE);
	if (wire_hello_decode(in->raw_hello, &in->hello) != GANTRY_OK) {
		tcp_incoming_stranger(in, "not a hello");
		return;
	}
	l = tcp_listener_find(h->listener);
	if (!l || !gantry_equal_secret(l->cookie, h->cookie, WIRE_COOKIE_SIZE)) {
		refuse_listener(in);
		return;
	}
	in->listener = l->id;
	tcp_engine.secret ? challenge(in) : proved(in);
}

void tcp_incoming_proof(struct tcp_incoming *in)
{
	uint8_t mac[WIRE_MAC_SIZE], expected[WIRE_MAC_SIZE];

	if (wire_proof_decode(in->in, mac) != GANTRY_OK)
		tcp_incoming_stranger(in, "not a proof");
	else if (wire_mac(tcp_engine.secret, 1, in->raw_hello, in->raw_welcome, expected) != GANTRY_OK ||
		 !gantry_equal_secret(mac, expected, WIRE_MAC_SIZE))
		refuse(in, WIRE_REFUSED_AUTH, GANTRY_ERR_AUTH, "GANTRY_SECRET differs between the two sides");
	else
		proved(in);
}
