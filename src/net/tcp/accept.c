/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accepting side: listeners, and what becomes of a connection whose hello names one of them. inet/listen.h has what
 * comes before that: ports and strangers. All of it under loop_mu.
 *
 *   hello ── cookie ──> challenge, where there is a secret ──> proved ──> a lane, or a direction of a link that is there
 *                                                                └──────> waits, until our own hello is answered
 *
 * Any socket may be lost before its answer has arrived, and the peer dials again with the same session: it is answered as the first
 * time. A link is handed out when the peer has shown by a byte on lane 0 that all its answers have arrived; until then
 * each of its lanes may be dialled again. The second direction of a link is handed out when the peer says on lane 0 that it sends
 * there, which shows that the answer with the link's session has arrived.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"
#include "inet/settings.h"
#include "net/tcp/network.h"

enum { OPENING_MAX = 16, OPENING_NS = 50000000 };
/* Without a secret the cookie is all that a peer has to show, and any process that has it could as well take the peer's
 * place: a refusal is most likely that of the real peer, and its user waits for the cause. */
static const uint64_t refused_ns = 2000000000;

static void put_settings(char out[INET_SETTINGS_SIZE])
{
	snprintf(out, INET_SETTINGS_SIZE, "GANTRY_CRC=%d", gantry_params()->crc);
}

static void on_hello(struct inet_conn *c) REQUIRES(loop_mu);
static void on_proved(struct inet_conn *c) REQUIRES(loop_mu);
static void on_lost(struct inet_conn *c) REQUIRES(loop_mu);

struct inet_service tcp_service = {
	.protocol = {"tcp", WIRE_VERSION, "accepting side", "connecting side", put_settings},
	.hello = on_hello,
	.proved = on_proved,
	.lost = on_lost,
	.warns = true,
};

/* ---- listeners ---- */

/* The addresses that peers connect to. */
static gantry_result advertise_addrs(struct tcp_listener *l)
{
	l->naddrs = *gantry_params()->advertise ? 1 : l->nports;
	for (int i = 1; i < l->naddrs; i++)
		l->addrs[i] = l->ports[i]->addr;
	return inet_advertised(&l->ports[0]->addr, &l->addrs[0]);
}

/* Ids are random, but for their last bit. */
static struct gantry_list *bucket_of(uint64_t id)
{
	return &tcp_network.listeners[(id >> 1) % TCP_BUCKETS];
}

struct tcp_listener *tcp_listener_find(uint64_t id)
{
	gantry_list_each_entry (l, bucket_of(id), struct tcp_listener, node)
		if (l->id == id)
			return l;
	return NULL;
}

/* It was closed after it had its connection, not long ago. */
static int was_served(uint64_t id) REQUIRES(loop_mu)
{
	for (int i = 0; i < TCP_SERVED; i++)
		if (id && tcp_network.served[i] == id)
			return 1;
	return 0;
}

gantry_result tcp_listener_open(const struct tcp_context *ctx, struct tcp_rx_memory *rx_memory, int dev, void *handle,
				struct tcp_listener **ret)
{
	const struct tcp_device *d = &tcp_network.devs[dev];
	struct wire_handle h = {.version = WIRE_VERSION, .dev = dev};
	gantry_result r = GANTRY_OK;
	struct tcp_listener *l = calloc(1, sizeof(*l));

	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a listener");
	gantry_list_init(&l->node);
	gantry_list_init(&l->ready);
	l->forks = inet_forks;
	l->ctx = *ctx;
	l->dev = dev;
	TRY(gantry_random_bytes(&l->id, sizeof(l->id)));
	l->id |= 1; /* 0 means none */
	TRY(gantry_random_bytes(l->cookie, sizeof(l->cookie)));
	for (int i = 0; i < d->nrails; i++) {
		TRY(inet_port_get(&tcp_service, &tcp_network.nics->nics[d->rails[i]].addrs[0], &l->ports[i]));
		l->nports++;
	}
	h.process = tcp_network.process;
	h.listener = l->id;
	h.comm_id = ctx->comm_id;
	memcpy(h.cookie, l->cookie, WIRE_COOKIE_SIZE);
	TRY(advertise_addrs(l));
	h.naddrs = l->naddrs;
	memcpy(h.addrs, l->addrs, sizeof(h.addrs));
	wire_handle_encode(&h, handle);
	gantry_list_append(bucket_of(l->id), &l->node);
	l->rx_memory = tcp_rx_memory_take(rx_memory);
	*ret = l;
	l = NULL;
out:
	tcp_listener_close(l);
	return r;
}

void tcp_listener_close(struct tcp_listener *l)
{
	if (!l)
		return;
	gantry_list_remove(&l->node);
	if (l->served)
		tcp_network.served[tcp_network.nserved++ % TCP_SERVED] = l->id;
	gantry_list_each_entry_safe (e, &l->ready, struct tcp_entry, waiting) {
		gantry_list_remove(&e->waiting);
		tcp_link_drop_rx(e->link);
	}
	gantry_list_each_entry_safe (e, &tcp_network.promised, struct tcp_entry, waiting) {
		if (e->rx_listener != l->id)
			continue;
		gantry_list_remove(&e->waiting);
		tcp_link_drop_rx(e->link);
	}
	for (int i = 0; i < l->nports; i++)
		inet_port_put(&tcp_service, l->ports[i]);
	tcp_rx_memory_close(&l->rx_memory);
	free(l);
}

/* ---- what a hello is answered with ---- */

/*
 * Would the link do what a new one would? Payload must land where this listener wants it, and the peer must expect it
 * where it does in what it says now. Before the peer has answered only our half is known.
 */
static int have_same_memory(const struct tcp_link *l, const struct wire_hello *h, const struct tcp_listener *listener)
	REQUIRES(loop_mu)
{
	if (l->entry->own_unpack != (int)tcp_rx_memory_says(&listener->rx_memory))
		return 0;
	return !l->entry->lanes_here || (l->entry->peer_unpack == h->unpack &&
					 (!l->session.device_rx || l->devmem->pool == listener->rx_memory.pool));
}

/* Towards the same peer, for the same purpose, and our receiving direction is free. */
static int may_share(const struct tcp_link *l, const struct wire_hello *h, const struct tcp_listener *listener)
	REQUIRES(loop_mu)
{
	return l->entry->peer_process == h->process && l->entry->comm_id == h->comm_id &&
	       l->session.dev == listener->dev && l->entry->peer_dev == h->dev && l->entry->rx_state == TCP_UNUSED &&
	       !tcp_link_failed(l) && have_same_memory(l, h, listener);
}

/*
 * A link of ours that the peer may share. Only one whose control lane the peer has accepted may be promised, whether its
 * other lanes are there or not: before that the peer may still tell us to share a link of its own. If our hello is
 * under way, the process with the smaller id waits with its answer until that is decided (*ret_wait); the other one
 * never waits, so they cannot wait for each other.
 */
static struct tcp_link *link_to_share(const struct wire_hello *h, const struct tcp_listener *listener, int *ret_wait)
	REQUIRES(loop_mu)
{
	*ret_wait = 0;
	gantry_list_each_entry (e, &tcp_network.shareable, struct tcp_entry, waiting)
		if (may_share(e->link, h, listener))
			return e->link;
	gantry_list_each_entry (c, &tcp_network.connectors, struct tcp_connector, node) {
		if (c->state != TCP_CONNECTING || !c->link || !may_share(c->link, h, listener))
			continue;
		if (c->link->entry->lanes_here)
			return c->link;
		*ret_wait = tcp_network.process < h->process;
	}
	return NULL;
}

/* The link that was promised to a hello with this session: the answer was lost, and the peer has dialled again. Only links that this
 * side opened are ever promised; in others the field is zero. */
static struct tcp_link *link_promised(const struct wire_hello *h) REQUIRES(loop_mu)
{
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node)
		if (l->entry->initiator && l->entry->rx_state != TCP_UNUSED && l->entry->peer_process == h->process &&
		    !tcp_link_failed(l) && memcmp(l->entry->promised, h->session, WIRE_SESSION_SIZE) == 0)
			return l;
	return NULL;
}

/* The link that the peer opens by this hello's session, and that is not up yet. */
static struct tcp_link *link_opening(const struct wire_hello *h) REQUIRES(loop_mu)
{
	struct tcp_link *l = tcp_link_of_session(h->session);

	return l && !l->entry->up && l->entry->peer_process == h->process ? l : NULL;
}

/* A peer opens a link or two for a listener. One that begins many and ends none is at fault: its oldest goes. */
static void limit_opening(const struct tcp_listener *listener) REQUIRES(loop_mu)
{
	if (listener->nopening < OPENING_MAX)
		return;
	gantry_list_each_entry (e, &tcp_network.opening, struct tcp_entry, waiting) {
		struct tcp_link *l = e->link;

		if (e->rx_listener != listener->id)
			continue;
		LOG_INFO(NET, "%s: %d connections to one listener are waiting for their lanes; dropped the oldest",
			 l->session.peer, listener->nopening);
		tcp_link_forget(l);
		tcp_link_bury(l);
		return;
	}
}

static struct tcp_link *new_link(const struct inet_conn *c, const struct wire_hello *h, struct tcp_listener *listener)
	REQUIRES(loop_mu)
{
	char text[GANTRY_ADDR_TEXT];
	struct tcp_link *l;

	limit_opening(listener);
	if (tcp_link_for_session(h->lanes, &l) != GANTRY_OK)
		return NULL;
	memcpy(l->entry->key, h->session, WIRE_SESSION_SIZE);
	l->entry->peer_process = h->process;
	l->entry->comm_id = h->comm_id;
	l->session.dev = listener->dev;
	l->entry->peer_dev = h->dev;
	l->entry->linger_until =
		gantry_now_ns() + gantry_params()->connect_timeout; /* until it is up: when to give up */
	snprintf(l->session.peer, sizeof(l->session.peer), "%s (%s)", gantry_addr_text(&c->addr, text), c->shake.peer);
	tcp_link_meet(l, &listener->rx_memory,
		      &(struct tcp_peer){.host = h->host,
					 .addr = &c->addr,
					 .window = h->window,
					 .eager_max = h->eager_max,
					 .unpack = (enum wire_unpack)h->unpack,
					 .sealed = c->shake.seals.tx != NULL,
					 .resume = (enum inet_resume)h->resume});
	tcp_link_opening(l, listener);
	return l;
}

/* The interface whose port it has come to; NULL: that is not known. */
static const struct gantry_nic *nic_of(const struct inet_conn *c)
{
	for (int i = 0; c->port && i < tcp_network.nics->count; i++)
		if (gantry_addr_same_host(&tcp_network.nics->nics[i].addrs[0], &c->port->addr))
			return &tcp_network.nics->nics[i];
	return NULL;
}

const char *tcp_conn_device(const struct inet_conn *c)
{
	const struct gantry_nic *nic = nic_of(c);

	return nic && gantry_params()->bind_device && gantry_nic_should_bind(nic, &c->addr) ? nic->name : NULL;
}

/* The peer's first byte on lane 0, or its end. A reset may be followed by another socket, or by the deadline. */
static void confirm_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct tcp_link *l = gantry_container(s, struct tcp_entry, confirm)->link;
	enum tcp_io_peek there = l->lanes[0].io.ops->peek(&l->lanes[0].io);

	(void)events;
	if (there == TCP_IO_EMPTY)
		return;
	inet_source_release(s);
	if (there == TCP_IO_READABLE)
		tcp_link_up(l);
}

static void await_confirmation(struct tcp_link *l) REQUIRES(loop_mu)
{
	if (l->entry->confirm.fd >= 0)
		return;
	l->entry->confirm = (struct inet_source){.fd = l->lanes[0].io.fd, .ready = confirm_ready};
	if (inet_source_add(&l->entry->confirm, EPOLLIN) != GANTRY_OK) {
		l->entry->confirm.fd = -1;
		tcp_link_fail(l, 1, GANTRY_ERR_SYSTEM, "cannot wait for the peer: %s", gantry_last_error());
		tcp_link_up(l);
	}
}

/* The hand-shake is over: the socket becomes a lane. One that the peer has dialled again takes the place of the first.
 */
static void become_lane(struct inet_conn *c, int lane, struct tcp_link *l, const struct tcp_listener *listener)
	REQUIRES(loop_mu)
{
	const char *device = tcp_conn_device(c);
	struct gantry_addr peer = c->addr;
	struct inet_seals seals;
	int fd = inet_conn_take(c, &seals);

	tcp_lane_take(l, lane, fd, &seals, &peer, &listener->ctx, device);
	if (l->entry->lanes_here == l->nlanes)
		await_confirmation(l);
}

bool tcp_send_welcome(struct inet_conn *c, struct wire_welcome *w, enum wire_verdict verdict)
{
	uint8_t out[WIRE_WELCOME_SIZE];

	w->verdict = (uint8_t)verdict;
	w->host = tcp_network.host;
	w->window = LINK_WINDOW;
	w->eager_max = (uint32_t)gantry_params()->eager_max;
	w->resume = (uint8_t)inet_resume_says();
	wire_welcome_encode(w, out);
	return inet_conn_accept(c, out, sizeof(out));
}

/* The listener's direction is the free one of an existing link. The answer names that link, and this socket has served its purpose;
 * the peer confirms over the link. */
static void share_link(struct inet_conn *c, const struct wire_hello *h, const struct tcp_listener *listener,
		       struct tcp_link *l, struct wire_welcome *w) REQUIRES(loop_mu)
{
	bool again = memcmp(l->entry->promised, h->session, WIRE_SESSION_SIZE) == 0;

	memcpy(w->session, l->entry->key, WIRE_SESSION_SIZE);
	if (!tcp_send_welcome(c, w, WIRE_USE_SESSION))
		return;
	close(inet_conn_take(c, NULL));
	if (again)
		return;
	memcpy(l->entry->promised, h->session, WIRE_SESSION_SIZE);
	gantry_list_remove(&l->entry->waiting);
	l->entry->rx_state = TCP_RESERVED;
	l->entry->rx_listener = listener->id;
	l->entry->linger_until = gantry_now_ns() + gantry_params()->connect_timeout;
	if (l->entry->up)
		gantry_list_append(&tcp_network.promised, &l->entry->waiting);
}

static void fulfil_promise(struct tcp_link *l) REQUIRES(loop_mu)
{
	gantry_list_remove(&l->entry->waiting);
	tcp_link_deliver(l);
}

void tcp_accept_promised(uint64_t now)
{
	char why[128];

	gantry_list_each_entry_safe (e, &tcp_network.promised, struct tcp_entry, waiting) {
		struct tcp_link *l = e->link;

		tcp_link_service(l, 0); /* no user progresses the link yet */
		if (now > e->linger_until) {
			snprintf(why, sizeof(why),
				 "the peer did not confirm this session within %.3g s (GANTRY_CONNECT_TIMEOUT)",
				 (double)gantry_params()->connect_timeout / 1e9);
			tcp_link_end_rx(l, why);
			fulfil_promise(l);
		} else if (load_relaxed(&l->rx.peer_sends) || load_relaxed(&l->rx.peer_closed) || tcp_link_failed(l) ||
			   !tcp_listener_find(e->rx_listener)) {
			fulfil_promise(l);
		}
	}
}

/*
 * Its answer waits until our own hello is answered. As with links that are opening, one listener's are bounded: the
 * time of the oldest is over with the next tick. Not at once, since callers may be going through the list.
 */
static void limit_waiting(uint64_t listener) REQUIRES(loop_mu)
{
	struct inet_conn *oldest = NULL;
	int n = 0;

	for (struct inet_conn *c = NULL; (c = inet_conn_waiting(&tcp_service, c));)
		if (c->tag == listener && c->deadline && n++ == 0)
			oldest = c;
	if (n > OPENING_MAX)
		oldest->deadline = 0;
}

static void refuse_listener(struct inet_conn *c, uint64_t listener) REQUIRES(loop_mu)
{
	inet_conn_refuse(
		c, GANTRY_ERR_REFUSED, "%s",
		was_served(listener)
			? "this listener has already accepted its connection and was closed; a second connect is too "
			  "late"
			: "no such listener in this process: it was closed, or the handle is from another process");
}

/* A lane of a session that has been up. */
static bool is_resumed(const struct inet_conn *c, struct wire_hello *ret)
{
	return wire_hello_decode(c->shake.payload, c->shake.payload_size, WIRE_VERSION, ret) == GANTRY_OK &&
	       ret->generation;
}

/* It is a peer, and what must agree does. */
static void on_proved(struct inet_conn *c)
{
	struct tcp_listener *listener = tcp_listener_find(c->tag);
	struct wire_hello h;
	struct wire_welcome w = {.naddrs = 0};
	struct tcp_link *l, *shared = NULL;
	int wait = 0;

	if (is_resumed(c, &h)) {
		tcp_resume_accept(c, &h);
		return;
	}
	if (!listener || wire_hello_decode(c->shake.payload, c->shake.payload_size, WIRE_VERSION, &h) != GANTRY_OK) {
		refuse_listener(c, c->tag);
		return;
	}
	w.unpack = (uint8_t)tcp_rx_memory_says(&listener->rx_memory);
	w.naddrs = listener->naddrs;
	memcpy(w.addrs, listener->addrs, sizeof(w.addrs));
	l = link_opening(&h);
	if (!l && h.lane == 0) {
		shared = link_promised(&h);
		if (!shared)
			shared = link_to_share(&h, listener, &wait);
		if (shared) {
			share_link(c, &h, listener, shared, &w);
			return;
		}
		if (wait) {
			limit_waiting(c->tag);
			return;
		}
		l = new_link(c, &h, listener);
		if (!l) {
			inet_conn_refuse(c, GANTRY_ERR_LIMIT,
					 "the accepting side is out of file descriptors: raise `ulimit -n` there");
			return;
		}
	}
	if (!l || h.lane >= l->nlanes) { /* its session is not, or no longer, one that waits for lanes */
		if (tcp_send_welcome(c, &w, WIRE_UNKNOWN_SESSION))
			close(inet_conn_take(c, NULL));
	} else if (tcp_send_welcome(c, &w, WIRE_LANE)) {
		become_lane(c, h.lane, l, listener);
	}
}

void tcp_accept_reconsider(void)
{
	for (struct inet_conn *next, *c = inet_conn_waiting(&tcp_service, NULL); c; c = next) {
		next = inet_conn_waiting(&tcp_service, c);
		on_proved(c);
	}
}

static void on_hello(struct inet_conn *c)
{
	struct inet_handshake *s = &c->shake;
	struct tcp_listener *l;
	struct wire_hello h;

	if (wire_hello_decode(s->payload, s->payload_size, s->peer_version, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_PROTOCOL, "not a hello");
		return;
	}
	if (s->peer_version == WIRE_VERSION && h.generation) {
		if (!tcp_resume_knows(&h)) {
			inet_conn_refuse(c, GANTRY_ERR_REFUSED, "this process has no such session; it may have ended");
			return;
		}
		inet_conn_challenge(c, &tcp_network.key);
		return;
	}
	l = tcp_listener_find(h.listener);
	if (!l || !gantry_equal_secret(l->cookie, h.cookie, WIRE_COOKIE_SIZE)) {
		refuse_listener(c, h.listener);
		return;
	}
	c->tag = l->id;
	inet_conn_challenge(c, &tcp_network.key);
}

/* How long accept waits for another peer after this one was refused, ns. */
static uint64_t patience_after(const struct inet_handshake *s)
{
	uint64_t most = gantry_params()->connect_timeout;

	if (s->key.auth == INET_AUTH_NONE)
		return refused_ns < most ? refused_ns : most;
	return s->proved ? 0 : most;
}

/* A connection with the cookie was refused: accept fails with the same reason, now or when no other connection
 * comes. */
static void on_lost(struct inet_conn *c)
{
	struct tcp_listener *l = c->shake.broken ? NULL : tcp_listener_find(c->tag);
	uint64_t patience = patience_after(&c->shake);
	gantry_result r = c->shake.error;
	char text[GANTRY_ADDR_TEXT];

	if (!l || r == GANTRY_ERR_REFUSED || r == GANTRY_ERR_PROTOCOL)
		return;
	if (l->error != GANTRY_OK && (patience || !l->error_at))
		return; /* the first one is the cause */
	l->error = r;
	l->error_at = patience ? inet_loop.now + patience : 0;
	snprintf(l->error_text, sizeof(l->error_text), "refused %s (%s): %s", gantry_addr_text(&c->addr, text),
		 c->shake.peer, c->shake.text);
	if (!patience)
		gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__, "%s", l->error_text);
	else if (c->shake.proved) /* else it is counted and logged as a stranger */
		LOG_WARN(NET, "%s; accept fails unless another peer connects within %.3g s", l->error_text,
			 (double)patience / 1e9);
}

gantry_result tcp_listener_error(struct tcp_listener *l)
{
	gantry_result r = l->error;

	if (r == GANTRY_OK || (l->error_at && (l->nopening || gantry_now_ns() < l->error_at)))
		return GANTRY_OK;
	l->error = GANTRY_OK;
	if (l->error_at)
		gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__, "%s", l->error_text);
	else
		gantry_set_last_error(l->error_text);
	return r;
}

/* ---- the clock ---- */

/* The peer has given it up. With a reset it may not have, if all lanes are here: then only their confirmation is missing. */
static bool was_left(const struct tcp_link *l) REQUIRES(loop_mu)
{
	const struct tcp_io *io = &l->lanes[0].io;
	enum tcp_io_peek there = io->fd >= 0 ? io->ops->peek(io) : TCP_IO_EMPTY;

	return there == TCP_IO_ENDED || (there == TCP_IO_BROKEN && l->entry->lanes_here < l->nlanes);
}

/* Links of peers that never finished. A call per link: now and then. */
static void drop_stale_links(uint64_t now) REQUIRES(loop_mu)
{
	if (now - tcp_network.opening_looked < OPENING_NS)
		return;
	tcp_network.opening_looked = now;
	gantry_list_each_entry_safe (e, &tcp_network.opening, struct tcp_entry, waiting) {
		struct tcp_link *l = e->link;
		bool left = was_left(l);

		if (!left && now <= e->linger_until)
			continue;
		if (!left && e->lanes_here == l->nlanes && now != UINT64_MAX) {
			/* The peer may consider it established: its accepting side must see the end. */
			tcp_link_fail(
				l, 0, GANTRY_ERR_PEER_LOST,
				"all lanes connected, but the peer sent nothing within %.3g s (GANTRY_CONNECT_TIMEOUT)",
				(double)gantry_params()->connect_timeout / 1e9);
			tcp_link_up(l);
			continue;
		}
		LOG_INFO(NET, "%s: only %d of %d lanes connected, then %s", l->session.peer, e->lanes_here, l->nlanes,
			 left ? "the peer left" : "the time was up");
		tcp_link_forget(l);
		tcp_link_bury(l);
	}
}

void tcp_accept_tick(uint64_t now)
{
	tcp_accept_reconsider();
	tcp_accept_promised(now);
	drop_stale_links(now);
}
