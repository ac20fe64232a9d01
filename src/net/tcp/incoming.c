/*
 * The accepting side: strangers, and the hand-shake up to a lane. All of it runs under the engine's mu,
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
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/event.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"
#include "net/tcp/engine.h"
#include "net/tcp/sock.h"

enum { HELLO_MS = 5000, INCOMING_MAX = 256, ACCEPTS_PER_EVENT = 64 };

enum incoming_state { READ_HELLO, DEFERRED, READ_PROOF };

struct tcp_incoming {
	struct tcp_source source;
	struct gantry_list node;
	struct gantry_addr addr;
	uint64_t deadline;
	enum incoming_state state;
	uint32_t got;
	uint8_t in[WIRE_HELLO_SIZE];
	uint8_t raw_hello[WIRE_HELLO_SIZE], raw_welcome[WIRE_WELCOME_SIZE];
	struct wire_hello hello;
	uint64_t listener; /* 0: still a stranger */
	int sharing;	   /* it was told to share the link `session`, and has not proved its right to it yet */
	uint8_t session[WIRE_SESSION_SIZE];
	int nic;
};

static struct tcp_link *promised_link(const struct tcp_incoming *in)
{
	gantry_list_each (pos, &tcp_engine.links) {
		struct tcp_link *l = gantry_container(pos, struct tcp_link, node);

		if (l->initiator && memcmp(l->session, in->session, WIRE_SESSION_SIZE) == 0)
			return l;
	}
	return NULL;
}

static void incoming_free(struct tcp_incoming *in)
{
	struct tcp_link *promised = in->sharing ? promised_link(in) : NULL;

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

static void stranger(struct tcp_incoming *in, const char *why)
{
	static struct gantry_ratelimit limit;
	char text[GANTRY_ADDR_TEXT];
	uint32_t more;

	__atomic_fetch_add(&tcp_engine.strangers, 1, __ATOMIC_RELAXED);
	gantry_event_put(GANTRY_EV_STRANGER, (uint32_t)tcp_engine.strangers, 0, 0);
	if (gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(NET, "refused a stranger from %s: %s (%llu so far)", gantry_addr_text(&in->addr, text), why,
			 (unsigned long long)tcp_engine.strangers);
	incoming_free(in);
}

/* ---- verdicts ---- */

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
	incoming_free(in);
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
		struct tcp_link *promised = promised_link(in);

		if (promised) {
			promised->rx_listener = in->listener; /* if it is closed by now, the direction is dropped */
			if (promised->up)
				tcp_link_deliver(promised);
		}
		incoming_free(in);
		return;
	}
	if (!l || in->hello.lane >= l->nlanes || l->lanes[in->hello.lane].fd >= 0) {
		stranger(in, "no link waits for this lane");
		return;
	}
	if (listener)
		ctx = listener->ctx;
	if (gantry_params()->bind_device && gantry_nic_should_bind(&tcp_engine.nics->nics[in->nic], &in->addr))
		device = tcp_engine.nics->nics[in->nic].name;
	epoll_ctl(tcp_engine.epoll_fd, EPOLL_CTL_DEL, in->source.fd, NULL);
	tcp_lane_take(l, in->hello.lane, in->source.fd, &ctx, device);
	in->source.fd = -1;
	incoming_free(in);
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
		stranger(in, "no link waits for this lane");
		return;
	}
	snprintf(w.text, sizeof(w.text), "%s", tcp_engine.self);
	w.unpack = (uint8_t)tcp_home_says(&listener->home);
	w.naddrs = listener->naddrs;
	memcpy(w.addrs, listener->addrs, sizeof(w.addrs));
	if (send_welcome(in, &w)) {
		stranger(in, "it does not take the welcome");
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
			stranger(in, "its listener was closed");
	}
}

/* ---- reading ---- */

static void on_hello(struct tcp_incoming *in)
{
	struct tcp_listener *l;
	struct wire_hello *h = &in->hello;
	int crc = gantry_params()->crc;

	memcpy(in->raw_hello, in->in, WIRE_HELLO_SIZE);
	if (wire_hello_decode(in->raw_hello, h) != GANTRY_OK) {
		stranger(in, "not a hello");
		return;
	}
	l = tcp_listener_find(h->listener);
	if (!l || !gantry_equal_secret(l->cookie, h->cookie, WIRE_COOKIE_SIZE)) {
		struct wire_welcome w = {.verdict = WIRE_REFUSED_LISTENER};

		snprintf(w.text, sizeof(w.text),
			 "no such listener here: it was closed, or the handle is not from this process");
		send_welcome(in, &w);
		stranger(in, "unknown listener or wrong cookie");
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

static void on_proof(struct tcp_incoming *in)
{
	uint8_t mac[WIRE_MAC_SIZE], expected[WIRE_MAC_SIZE];
	int ok = 0;

	if (wire_proof_decode(in->in, &ok, mac) != GANTRY_OK) {
		stranger(in, "not a proof");
		return;
	}
	if (!ok || wire_mac(tcp_engine.secret, 1, in->raw_hello, in->raw_welcome, expected) != GANTRY_OK ||
	    !gantry_equal_secret(mac, expected, WIRE_MAC_SIZE)) {
		refuse(in, WIRE_REFUSED_AUTH, GANTRY_ERR_AUTH, "GANTRY_SECRET differs between the two sides");
		return;
	}
	become_lane(in);
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
		stranger(in, n < 0 ? strerror(errno) : n == 0 ? "it left" : "it does not wait for an answer");
		return;
	}
	in->got += (uint32_t)n;
	if (in->state == READ_HELLO && !wire_hello_may_be(in->in, in->got))
		stranger(in, "it does not speak our protocol");
	else if (in->got == want)
		in->state == READ_HELLO ? on_hello(in) : on_proof(in);
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
	stranger(victim, "too many at once, the oldest goes");
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
			incoming_free(in);
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
			stranger(in, "it never said hello");
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
		incoming_free(gantry_container(pos, struct tcp_incoming, node));
	}
	drop_stale_links(UINT64_MAX);
}
