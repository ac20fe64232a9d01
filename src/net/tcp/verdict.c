/*
 * The accepting side's hand-shake: what a hello is answered with, and the lane that it becomes. incoming.c has the rest
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

static int send_welcome(struct tcp_incoming *in, struct wire_welcome *w)
{
	w->version = WIRE_VERSION;
	w->process = tcp_engine.process;
	w->host = tcp_engine.host;
	w->window = LINK_WINDOW;
	w->eager_max = (uint32_t)gantry_params()->eager_max;
	gantry_random_bytes(w->nonce, sizeof(w->nonce));
	wire_welcome_encode(w, in->raw_welcome);
	if (w->verdict <= WIRE_USE_SESSION && tcp_engine.secret) {
		if (wire_mac(tcp_engine.secret, 0, in->raw_hello, in->raw_welcome, w->mac) != GANTRY_OK)
			return -1;
		wire_welcome_encode(w, in->raw_welcome);
	}
	/* A fresh socket has room for this; one that has not is no peer. */
	return send(in->source.fd, in->raw_welcome, WIRE_WELCOME_SIZE, MSG_DONTWAIT | MSG_NOSIGNAL) == WIRE_WELCOME_SIZE
		       ? 0
		       : -1;
}

/* A peer that knows the cookie but cannot be accepted: both sides hear why, and accept fails with it at once. */
static void refuse(struct tcp_incoming *in, enum wire_verdict verdict, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void refuse(struct tcp_incoming *in, enum wire_verdict verdict, gantry_result r, const char *fmt, ...)
{
	struct wire_welcome w = {.verdict = (uint8_t)verdict};
	struct tcp_listener *l = tcp_listener_find(in->listener);
	char text[GANTRY_ADDR_TEXT];
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
	tcp_incoming_free(in);
}

/*
 * Would the link do what a new one would? Payload must land where this listener wants it, and the peer must expect it
 * where it does in what it says now. Before the peer has answered only our half is known.
 */
static int same_homes(const struct tcp_link *l, const struct wire_hello *h, const struct tcp_listener *listener)
{
	if (l->own_unpack != (int)tcp_home_says(&listener->home))
		return 0;
	return !l->lanes_here || (l->peer_unpack == h->unpack && (!l->device_rx || l->pool == listener->home.pool));
}

/*
 * A link that this side has opened towards the same peer and that has our receiving direction free. Only one whose
 * control lane the peer has accepted may be promised: before that the peer may still tell us to share a link of its
 * own. If our hello is under way, the process with the smaller id waits with its answer until that is decided
 * (*ret_wait); the other one never waits, so they cannot wait for each other.
 */
static struct tcp_link *link_to_share(const struct wire_hello *h, const struct tcp_listener *listener, int *ret_wait)
{
	*ret_wait = 0;
	gantry_list_each (pos, &tcp_engine.links) {
		struct tcp_link *l = gantry_container(pos, struct tcp_link, node);
		int ours = tcp_engine.process < h->process;

		if (!l->initiator || l->peer_process != h->process || l->comm_id != h->comm_id ||
		    l->dev != listener->dev || l->peer_dev != h->dev || l->rx_state != TCP_UNUSED ||
		    tcp_link_failed(l) || !same_homes(l, h, listener))
			continue;
		if (l->up || (ours && l->lanes_here))
			return l;
		*ret_wait |= ours;
	}
	return NULL;
}

static struct tcp_link *link_of_session(const struct wire_hello *h)
{
	gantry_list_each (pos, &tcp_engine.links) {
		struct tcp_link *l = gantry_container(pos, struct tcp_link, node);

		if (!l->initiator && !l->up && l->peer_process == h->process &&
		    memcmp(l->session, h->session, WIRE_SESSION_SIZE) == 0)
			return l;
	}
	return NULL;
}

static struct tcp_link *new_link(struct tcp_incoming *in, const struct tcp_listener *listener)
{
	const struct wire_hello *h = &in->hello;
	char text[GANTRY_ADDR_TEXT];
	struct tcp_link *l;

	if (tcp_link_for_session(h->lanes, &l) != GANTRY_OK)
		return NULL;
	memcpy(l->session, h->session, WIRE_SESSION_SIZE);
	l->peer_process = h->process;
	l->comm_id = h->comm_id;
	l->dev = listener->dev;
	l->peer_dev = h->dev;
	l->rx_state = TCP_RESERVED;
	l->rx_listener = listener->id;
	l->linger_until = gantry_now_ns() + gantry_params()->connect_timeout; /* until it is up: when to give up */
	snprintf(l->peer, sizeof(l->peer), "%s (%s)", gantry_addr_text(&in->addr, text), h->peer);
	tcp_link_meet(l, &listener->home,
		      &(struct tcp_peer){.host = h->host,
					 .window = h->window,
					 .eager_max = h->eager_max,
					 .unpack = (enum wire_unpack)h->unpack});
	gantry_list_append(&tcp_engine.links, &l->node);
	return l;
}

/* The hand-shake is over: the socket becomes a lane. */
static void become_lane(struct tcp_incoming *in)
{
	struct tcp_listener *listener = tcp_listener_find(in->listener);
	struct tcp_link *l = link_of_session(&in->hello);
	struct tcp_context ctx = {.traffic_class = GANTRY_NET_UNDEF};
	const char *device = NULL;

	if (in->sharing) {
		struct tcp_link *promised = tcp_incoming_promised(in);

		if (promised) {
			promised->rx_listener = in->listener; /* if it is closed by now, the direction is dropped */
			if (promised->up)
				tcp_link_deliver(promised);
		}
		tcp_incoming_free(in);
		return;
	}
	if (!l || in->hello.lane >= l->nlanes || l->lanes[in->hello.lane].fd >= 0) {
		tcp_incoming_stranger(in, "no link waits for this lane");
		return;
	}
	if (listener)
		ctx = listener->ctx;
	if (gantry_params()->bind_device && gantry_nic_should_bind(&tcp_engine.nics->nics[in->nic], &in->addr))
		device = tcp_engine.nics->nics[in->nic].name;
	epoll_ctl(tcp_engine.epoll_fd, EPOLL_CTL_DEL, in->source.fd, NULL);
	tcp_lane_take(l, in->hello.lane, in->source.fd, &ctx, device);
	in->source.fd = -1;
	tcp_incoming_free(in);
	if (l->lanes_here == l->nlanes)
		tcp_link_up(l);
}

static void accept_hello(struct tcp_incoming *in, struct tcp_listener *listener)
{
	struct wire_welcome w = {.verdict = WIRE_OK};
	const struct wire_hello *h = &in->hello;
	struct tcp_link *shared = NULL, *l;
	int wait = 0;

	if (h->lane == 0) {
		shared = link_to_share(h, listener, &wait);
		if (!shared && wait) {
			in->state = DEFERRED;
			return;
		}
		if (shared) {
			w.verdict = WIRE_USE_SESSION;
			memcpy(w.session, shared->session, WIRE_SESSION_SIZE);
			memcpy(in->session, shared->session, WIRE_SESSION_SIZE);
		} else if (!link_of_session(h) && !new_link(in, listener)) {
			refuse(in, WIRE_REFUSED_LIMIT, GANTRY_ERR_LIMIT,
			       "the accepting side is out of file descriptors: raise `ulimit -n` there");
			return;
		}
	}
	l = link_of_session(h);
	if (!shared && (!l || h->lane >= l->nlanes || l->lanes[h->lane].fd >= 0)) {
		tcp_incoming_stranger(in, "no link waits for this lane");
		return;
	}
	snprintf(w.text, sizeof(w.text), "%s", tcp_engine.self);
	w.unpack = (uint8_t)tcp_home_says(&listener->home);
	w.naddrs = listener->naddrs;
	memcpy(w.addrs, listener->addrs, sizeof(w.addrs));
	if (send_welcome(in, &w)) {
		tcp_incoming_stranger(in, "it does not take the welcome");
		return;
	}
	in->got = 0;
	in->sharing = shared != NULL;
	if (shared) {
		shared->rx_state = TCP_RESERVED;
		shared->rx_listener = 0; /* whose it is follows when the peer has proved itself */
	}
	if (tcp_engine.secret)
		in->state = READ_PROOF;
	else
		become_lane(in);
}

void tcp_incoming_reconsider(void)
{
	gantry_list_each_safe (pos, &tcp_engine.incoming) {
		struct tcp_incoming *in = gantry_container(pos, struct tcp_incoming, node);
		struct tcp_listener *l = tcp_listener_find(in->listener);

		if (in->state != DEFERRED)
			continue;
		if (l)
			accept_hello(in, l);
		else
			tcp_incoming_stranger(in, "its listener was closed");
	}
}

void tcp_incoming_hello(struct tcp_incoming *in)
{
	struct tcp_listener *l;
	struct wire_hello *h = &in->hello;
	int crc = gantry_params()->crc;

	memcpy(in->raw_hello, in->in, WIRE_HELLO_SIZE);
	if (wire_hello_decode(in->raw_hello, h) != GANTRY_OK) {
		tcp_incoming_stranger(in, "not a hello");
		return;
	}
	l = tcp_listener_find(h->listener);
	if (!l || !gantry_equal_secret(l->cookie, h->cookie, WIRE_COOKIE_SIZE)) {
		struct wire_welcome w = {.verdict = WIRE_REFUSED_LISTENER};

		snprintf(w.text, sizeof(w.text),
			 "no such listener here: it was closed, or the handle is not from this process");
		send_welcome(in, &w);
		tcp_incoming_stranger(in, "unknown listener or wrong cookie");
		return;
	}
	in->listener = l->id;
	if (h->version != WIRE_VERSION)
		refuse(in, WIRE_REFUSED_VERSION, GANTRY_ERR_VERSION,
		       "protocol version differs: %d (accepting side) and %d (connecting side)", WIRE_VERSION,
		       h->version);
	else if ((h->auth == WIRE_AUTH_HMAC) != (tcp_engine.secret != NULL))
		refuse(in, WIRE_REFUSED_AUTH, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the %s side",
		       tcp_engine.secret ? "accepting" : "connecting");
	else if (h->crc != crc)
		refuse(in, WIRE_REFUSED_SETTING, GANTRY_ERR_SETTING,
		       "GANTRY_CRC differs: %d (accepting side) and %d (connecting side)", crc, h->crc);
	else
		accept_hello(in, l);
}

void tcp_incoming_proof(struct tcp_incoming *in)
{
	uint8_t mac[WIRE_MAC_SIZE], expected[WIRE_MAC_SIZE];
	int ok = 0;

	if (wire_proof_decode(in->in, &ok, mac) != GANTRY_OK) {
		tcp_incoming_stranger(in, "not a proof");
		return;
	}
	if (!ok || wire_mac(tcp_engine.secret, 1, in->raw_hello, in->raw_welcome, expected) != GANTRY_OK ||
	    !gantry_equal_secret(mac, expected, WIRE_MAC_SIZE)) {
		refuse(in, WIRE_REFUSED_AUTH, GANTRY_ERR_AUTH, "GANTRY_SECRET differs between the two sides");
		return;
	}
	become_lane(in);
}
