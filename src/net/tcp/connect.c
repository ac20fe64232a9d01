/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connecting side: from a handle to a link. All of it runs under loop_mu, on the service thread's ticks and
 * events.
 *
 * Lane 0 first: the handle's addresses are tried side by side, each a little later than the one before; the first that
 * answers carries the hello. The verdict is to go on (then the bulk lanes are opened, all at once, spread over the
 * rails), to share a link that the peer opens towards us (then its session is waited for), or a refusal. What may pass,
 * such as a refused connection, is tried again with growing pauses until GANTRY_CONNECT_TIMEOUT.
 *
 * Two processes that connect to each other at the same moment each see the other's hello while their own is on its way.
 * Both apply one rule: the process with the smaller id waits with its answer until its own hello is answered, then
 * tells the other to share that link; the other one answers at once.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"
#include "inet/dial.h"
#include "inet/sock.h"
#include "net/tcp/network.h"

/* ATTEMPT: for TCP to connect; then another address may be tried. */
enum { STAGGER_MS = 50, ATTEMPT_MS = 5000, KEEP_RESULT_S = 600 };

/* One socket on its way to become a lane. */
struct tcp_attempt {
	struct inet_dial dial;
	struct gantry_list node;
	struct tcp_connector *connector;
	int lane, candidate, rail;
};

static const struct inet_dial_ops attempt_ops;
static void connector_step(struct tcp_connector *c, uint64_t now) REQUIRES(loop_mu);
static void connector_fail(struct tcp_connector *c, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4))) REQUIRES(loop_mu);

/* ---- attempts ---- */

static void attempt_free(struct tcp_attempt *a) REQUIRES(loop_mu)
{
	inet_dial_end(&a->dial);
	gantry_list_remove(&a->node);
	free(a);
}

/*
 * The hosts may have their rails in different orders, each with those near its GPU first: lane 0 leaves by the one that
 * shares a subnet with where it goes. By another, packets would come to the right host by the wrong interface, whose
 * sockets do not take them.
 */
static int attempt_rail(const struct tcp_connector *c, int lane, int candidate)
{
	const struct tcp_device *d = &tcp_network.devs[c->dev];

	if (lane)
		return d->rails[(lane - 1) % d->nrails];
	for (int i = 0; i < d->nrails; i++) {
		const struct gantry_nic *nic = &tcp_network.nics->nics[d->rails[i]];

		for (int k = 0; k < nic->naddrs; k++)
			if (gantry_nic_same_subnet(nic, k, &c->handle.addrs[candidate % c->handle.naddrs]))
				return d->rails[i];
	}
	return d->rails[0];
}

static gantry_result attempt_add(struct tcp_connector *c, int lane, int candidate, uint64_t start_at) REQUIRES(loop_mu)
{
	struct tcp_attempt *a = calloc(1, sizeof(*a));

	if (!a)
		return GANTRY_ERR_NOMEM;
	inet_dial_init(&a->dial, &attempt_ops);
	a->connector = c;
	a->lane = lane;
	a->candidate = candidate;
	a->rail = attempt_rail(c, lane, candidate);
	gantry_list_append(&c->attempts, &a->node);
	inet_dial_start(&a->dial, start_at);
	return GANTRY_OK;
}

/* Where a lane goes: for a bulk lane, an address of the peer in the rail's own subnet if there is one. */
static struct gantry_addr attempt_target(const struct tcp_attempt *a)
{
	const struct tcp_connector *c = a->connector;
	const struct gantry_nic *nic = &tcp_network.nics->nics[a->rail];
	struct gantry_addr to;
	int pick = -1, n = c->welcome.naddrs;

	if (a->lane == 0 || n == 0) {
		to = c->handle.addrs[a->candidate % c->handle.naddrs];
	} else {
		/* Several may be (NICs on one switch, link-local addresses): begin with our counterpart. */
		for (int j = 0; j < n && pick < 0 && !a->dial.failures; j++) {
			int i = (a->lane - 1 + j) % n;

			for (int k = 0; k < nic->naddrs && pick < 0; k++)
				if (gantry_nic_same_subnet(nic, k, &c->welcome.addrs[i]))
					pick = i;
		}
		to = c->welcome
			     .addrs[pick >= 0 ? pick : (int)(((uint32_t)a->lane - 1 + a->dial.failures) % (uint32_t)n)];
	}
	/* A link-local address means the link that our own interface is on. */
	if (to.sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to.in6.sin6_addr))
		to.in6.sin6_scope_id = nic->ifindex;
	return to;
}

/* ---- connectors ---- */

static void attempts_drop(struct tcp_connector *c) REQUIRES(loop_mu)
{
	gantry_list_each_safe (pos, &c->attempts) {
		attempt_free(gantry_container(pos, struct tcp_attempt, node));
	}
}

static void drop_link(struct tcp_connector *c) REQUIRES(loop_mu)
{
	if (c->link) {
		tcp_link_forget(c->link);
		tcp_link_bury(c->link);
		c->link = NULL;
	}
}

static void connector_fail(struct tcp_connector *c, gantry_result r, const char *fmt, ...)
{
	char cause[256], text[GANTRY_ADDR_TEXT];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(cause, sizeof(cause), fmt, ap);
	va_end(ap);
	snprintf(c->error_text, sizeof(c->error_text), "connect to %s: %s", gantry_addr_text(&c->handle.addrs[0], text),
		 cause);
	c->error = gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__, "%s", c->error_text);
	c->state = TCP_CONNECT_FAILED;
	c->deadline = gantry_now_ns() + (uint64_t)KEEP_RESULT_S * 1000000000;
	attempts_drop(c);
	drop_link(c);
}

/* (Re)starts from lane 0. */
static void begin(struct tcp_connector *c, uint64_t now) REQUIRES(loop_mu)
{
	int nlanes = 1 + gantry_net_tcp_lanes(c->dev, c->ctx.links);
	struct tcp_link *l;

	attempts_drop(c);
	drop_link(c);
	if (tcp_link_for_session(nlanes, &l) != GANTRY_OK) {
		connector_fail(c, GANTRY_ERR_LIMIT, "%s", gantry_last_error());
		return;
	}
	c->link = l;
	c->state = TCP_CONNECTING;
	memcpy(l->entry->key, c->key, sizeof(l->entry->key));
	l->entry->initiator = 1;
	l->entry->peer_process = c->handle.process;
	l->entry->comm_id = c->ctx.comm_id;
	l->session.dev = c->dev;
	l->entry->peer_dev = c->handle.dev;
	l->entry->own_unpack = (int)tcp_rx_memory_says(&c->rx_memory);
	l->entry->tx_state = TCP_RESERVED;
	store_relaxed(&l->tx.wanted, true);
	gantry_list_append(&tcp_network.links, &l->node);
	for (int i = 0; i < c->handle.naddrs; i++)
		if (attempt_add(c, 0, i, now + (uint64_t)i * STAGGER_MS * 1000000) != GANTRY_OK) {
			connector_fail(c, GANTRY_ERR_NOMEM, "no memory");
			return;
		}
}

static void connector_retry(struct tcp_connector *c, int e) REQUIRES(loop_mu)
{
	c->last_errno = e;
	c->retry_at = inet_retry_at(gantry_now_ns(), c->retries++);
	if (c->link && c->link->entry->rx_state != TCP_UNUSED) /* promised to the peer, and that is over */
		gantry_random_bytes(c->key, sizeof(c->key));
	tcp_network.counts.connect_retries++;
	attempts_drop(c);
	drop_link(c);
}

static void try_again(struct tcp_attempt *a) REQUIRES(loop_mu)
{
	struct tcp_connector *c = a->connector;
	int e = a->dial.error;
	int only = c->attempts.next->next == &c->attempts;

	switch (sock_errno_class(e)) {
	case SOCK_LIMIT:
		connector_fail(c, GANTRY_ERR_LIMIT, "%s (%s)", strerror(e), sock_errno_hint(e));
		return;
	case SOCK_FATAL:
		if (only || a->lane) {
			connector_fail(c, GANTRY_ERR_UNREACHABLE, "%s (%s)", strerror(e), sock_errno_hint(e));
			return;
		}
		break;
	case SOCK_RETRY:
		break;
	}
	c->last_errno = e;
	if (a->lane) {
		/* Another address of the peer may be the one this rail can reach. */
		inet_dial_start(&a->dial, inet_dial_retry_at(&a->dial));
	} else if (only) {
		connector_retry(c, e);
	} else {
		attempt_free(a);
	}
}

static void finish(struct tcp_connector *c, struct tcp_link *l) REQUIRES(loop_mu)
{
	l->entry->tx_state = TCP_OPEN;
	c->link = l;
	c->state = TCP_CONNECTED;
	c->deadline = gantry_now_ns() + (uint64_t)KEEP_RESULT_S * 1000000000;
}

/* One that was up is gone before the last one is: to begin anew costs less than a link that fails. */
static bool has_lost_lane(const struct tcp_link *l)
{
	for (int i = 0; i < l->nlanes; i++)
		if (l->lanes[i].io.ops->peek(&l->lanes[i].io) >= TCP_IO_ENDED)
			return true;
	return false;
}

static void lane_up(struct tcp_attempt *a, const struct wire_welcome *w) REQUIRES(loop_mu)
{
	struct tcp_connector *c = a->connector;
	struct tcp_link *l = c->link;
	struct inet_seals seals;
	int lane = a->lane, fd;
	char text[GANTRY_ADDR_TEXT];
	struct gantry_addr to = a->dial.to;

	if (lane == 0) {
		c->welcome = *w;
		snprintf(l->session.peer, sizeof(l->session.peer), "%s (%s)", gantry_addr_text(&to, text),
			 a->dial.shake.peer);
		tcp_link_meet(l, &c->rx_memory,
			      &(struct tcp_peer){.host = w->host,
						 .addr = &to,
						 .window = w->window,
						 .eager_max = w->eager_max,
						 .unpack = (enum wire_unpack)w->unpack,
						 .sealed = a->dial.shake.seals.tx != NULL,
						 .resume = (enum inet_resume)w->resume});
	}
	fd = inet_dial_take(&a->dial, &seals);
	attempt_free(a);
	tcp_lane_take(l, lane, fd, &seals, &to, &c->ctx, NULL);
	if (lane == 0) {
		attempts_drop(c);
		for (int i = 1; i < l->nlanes; i++)
			if (attempt_add(c, i, i, 0) != GANTRY_OK) {
				connector_fail(c, GANTRY_ERR_NOMEM, "no memory");
				return;
			}
		return;
	}
	if (l->entry->lanes_here < l->nlanes)
		return;
	if (!l->resume && has_lost_lane(l)) {
		connector_retry(c, ECONNRESET);
		return;
	}
	finish(c, l);
	tcp_link_up(l);
	tcp_link_confirm(l);
}

static void attempt_welcomed(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct tcp_attempt *a = gantry_container(d, struct tcp_attempt, dial);
	struct tcp_connector *c = a->connector;
	struct wire_welcome w;

	if (wire_welcome_decode(d->shake.payload, d->shake.payload_size, &w) != GANTRY_OK) {
		connector_fail(c, GANTRY_ERR_PROTOCOL, "the process listening there does not speak this protocol");
	} else if (w.verdict == WIRE_UNKNOWN_SESSION) {
		connector_retry(c, ECONNRESET);
	} else if (w.verdict == WIRE_USE_SESSION) {
		memcpy(c->session, w.session, WIRE_SESSION_SIZE);
		c->state = TCP_WAIT_SESSION;
		attempts_drop(c);
		drop_link(c);
		connector_step(c, gantry_now_ns());
	} else {
		lane_up(a, &w);
	}
	tcp_accept_reconsider();
}

/* ---- an attempt's way ---- */

static bool attempt_aim(struct inet_dial *d, struct inet_dial_aim *ret) REQUIRES(loop_mu)
{
	const struct tcp_attempt *a = gantry_container(d, struct tcp_attempt, dial);
	const struct gantry_nic *nic = &tcp_network.nics->nics[a->rail];

	ret->to = attempt_target(a);
	ret->patience = (uint64_t)ATTEMPT_MS * 1000000;
	if (nic->is_loopback && !gantry_addr_is_local(&ret->to)) /* loopback can only talk to loopback */
		return true;
	if (gantry_params()->bind_device && gantry_nic_should_bind(nic, &ret->to))
		ret->device = nic->name;
	for (int i = 0; i < nic->naddrs && !ret->from.sa.sa_family; i++)
		if (nic->addrs[i].sa.sa_family == ret->to.sa.sa_family)
			ret->from = nic->addrs[i];
	return true;
}

static void attempt_hello(struct inet_dial *d, struct inet_dial_hello *ret) REQUIRES(loop_mu)
{
	struct tcp_attempt *a = gantry_container(d, struct tcp_attempt, dial);
	struct tcp_connector *c = a->connector;
	struct wire_hello h = {
		.listener = c->handle.listener,
		.process = tcp_network.process,
		.comm_id = c->ctx.comm_id,
		.host = tcp_network.host,
		.window = LINK_WINDOW,
		.eager_max = (uint32_t)gantry_params()->eager_max,
		.lane = (uint8_t)a->lane,
		.lanes = (uint8_t)c->link->nlanes,
		.unpack = (uint8_t)tcp_rx_memory_says(&c->rx_memory),
		.resume = (uint8_t)inet_resume_says(),
		.dev = (uint16_t)c->dev,
	};

	memcpy(h.cookie, c->handle.cookie, WIRE_COOKIE_SIZE);
	memcpy(h.session, c->link->entry->key, WIRE_SESSION_SIZE);
	wire_hello_encode(&h, ret->payload);
	ret->size = WIRE_HELLO_SIZE;
	ret->protocol = &tcp_service.protocol;
	ret->key = &tcp_network.key;
	/* From here on a slow peer is waited for, until the connector's deadline: to dial again would only give it more to do.
	 * This address answers: the others need not be tried. */
	gantry_list_each_entry_safe (other, &c->attempts, struct tcp_attempt, node)
		if (!a->lane && other != a && other->dial.state != INET_DIAL_SHAKING)
			attempt_free(other);
}

static void attempt_failed(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct tcp_attempt *a = gantry_container(d, struct tcp_attempt, dial);

	if (d->cause == INET_DIAL_EXIT)
		return;
	if (d->cause == INET_DIAL_REFUSED)
		connector_fail(a->connector, d->shake.error, "%s%s", d->shake.refused ? "refused by the peer: " : "",
			       d->text);
	else if (d->cause == INET_DIAL_OWN)
		connector_fail(a->connector, GANTRY_ERR_SYSTEM, "%s", d->text);
	else /* if it hung up on our hello, it is restarting, was crowded by strangers, or is not ours */
		try_again(a);
	tcp_accept_reconsider();
}

static const struct inet_dial_ops attempt_ops = {
	.aim = attempt_aim,
	.hello = attempt_hello,
	.done = attempt_welcomed,
	.failed = attempt_failed,
};

/* ---- the clock ---- */

/* The link that the peer's answer names, to be shared. NULL: not up yet, or, with *ret_gone, it will never be ours. The peer
 * promises only links whose control lane we have accepted, so one that is not here has failed. */
static struct tcp_link *session_link(const struct tcp_connector *c, int *ret_gone) REQUIRES(loop_mu)
{
	struct tcp_link *l = tcp_link_of_session(c->session);

	*ret_gone = !l;
	if (!l || !l->entry->up)
		return NULL;
	link_mu_lock(&l->mu);
	*ret_gone = l->entry->tx_state != TCP_UNUSED || l->end.hung_up || l->tx.peer_closed || tcp_link_failed(l);
	l->tx.wanted |= !*ret_gone;
	link_mu_unlock(&l->mu);
	return *ret_gone ? NULL : l;
}

static int waits_for_welcome(const struct tcp_connector *c)
{
	gantry_list_each (pos, &c->attempts)
		if (gantry_container(pos, struct tcp_attempt, node)->dial.state == INET_DIAL_SHAKING)
			return 1;
	return 0;
}

static void timed_out(struct tcp_connector *c) REQUIRES(loop_mu)
{
	double s = (double)gantry_params()->connect_timeout / 1e9;

	if (c->state == TCP_WAIT_SESSION)
		connector_fail(c, GANTRY_ERR_TIMEOUT,
			       "the peer's own connection to this process did not come up within %.3g s", s);
	else if (c->link && c->link->entry->lanes_here)
		connector_fail(c, GANTRY_ERR_TIMEOUT, "only %d of %d lanes came up within %.3g s, last error: %s",
			       c->link->entry->lanes_here, c->link->nlanes, s,
			       c->last_errno ? strerror(c->last_errno) : "none");
	else if (waits_for_welcome(c))
		connector_fail(c, GANTRY_ERR_TIMEOUT,
			       "the peer accepted the connection but did not answer within %.3g s: it is stopped or "
			       "overloaded",
			       s);
	else
		connector_fail(c, GANTRY_ERR_UNREACHABLE, "no connection within %.3g s and %u retries: %s (%s)", s,
			       c->retries, c->last_errno ? strerror(c->last_errno) : "no answer",
			       sock_errno_hint(c->last_errno ? c->last_errno : ETIMEDOUT));
}

static void connector_step(struct tcp_connector *c, uint64_t now) REQUIRES(loop_mu)
{
	int gone;

	if (c->state == TCP_WAIT_SESSION) {
		struct tcp_link *l = session_link(c, &gone);

		if (l) {
			finish(c, l);
			tcp_link_confirm(l);
		} else if (gone) { /* after a pause: a peer may say so of each hello */
			c->state = TCP_CONNECTING;
			connector_retry(c, ECONNRESET);
		}
	} else if (gantry_list_empty(&c->attempts) && now >= c->retry_at) {
		begin(c, now);
	}
}

/* The caller will not collect the result. */
static void drop(struct tcp_connector *c) REQUIRES(loop_mu)
{
	if (c->state == TCP_CONNECTED)
		tcp_link_drop_tx(c->link);
	tcp_connector_free(c);
}

/* The result was not collected in a long time. */
static void abandon(struct tcp_connector *c) REQUIRES(loop_mu)
{
	LOG_WARN(NET, "the outcome of a connect was never collected: dropping it");
	drop(c);
	tcp_network.users--;
}

int tcp_connectors_drop(const struct tcp_context *ctx)
{
	int n = 0;

	gantry_list_each_entry_safe (c, &tcp_network.connectors, struct tcp_connector, node) {
		if (c->owner != ctx)
			continue;
		drop(c);
		n++;
	}
	return n;
}

int tcp_connectors_busy(void)
{
	gantry_list_each (pos, &tcp_network.connectors) {
		enum tcp_connector_state state = gantry_container(pos, struct tcp_connector, node)->state;

		if (state == TCP_CONNECTING || state == TCP_WAIT_SESSION)
			return 1;
	}
	return 0;
}

void tcp_connector_tick(uint64_t now)
{
	gantry_list_each_entry_safe (c, &tcp_network.connectors, struct tcp_connector, node) {
		if (c->state == TCP_CONNECTED || c->state == TCP_CONNECT_FAILED) {
			if (now > c->deadline)
				abandon(c);
		} else if (now > c->deadline)
			timed_out(c);
		else
			connector_step(c, now);
	}
}

/* Ids are counted in their upper half. */
static struct gantry_list *bucket(uint64_t id)
{
	return &tcp_network.connectors_by_id[(id >> 32) % TCP_BUCKETS];
}

struct tcp_connector *tcp_connector_find(uint64_t id)
{
	gantry_list_each_entry (c, bucket(id), struct tcp_connector, by_id)
		if (c->id == id)
			return c;
	return NULL;
}

gantry_result tcp_connector_open(const struct tcp_context *ctx, struct tcp_rx_memory *rx_memory, int dev,
				 const struct wire_handle *h, struct tcp_connector **ret)
{
	struct tcp_connector *c = calloc(1, sizeof(*c));

	if (!c)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a connection");
	gantry_list_init(&c->attempts);
	c->handle = *h;
	c->ctx = *ctx;
	c->owner = ctx;
	c->rx_memory = tcp_rx_memory_take(rx_memory);
	c->dev = dev;
	gantry_random_bytes(c->key, sizeof(c->key));
	c->id = ++tcp_network.next_id << 32 | (tcp_network.process & 0xffffffff);
	c->deadline = gantry_now_ns() + gantry_params()->connect_timeout;
	gantry_list_append(&tcp_network.connectors, &c->node);
	gantry_list_append(bucket(c->id), &c->by_id);
	inet_loop_wake();
	*ret = c;
	return GANTRY_OK;
}

/* A link that is CONNECTED belongs to the caller that took it. */
void tcp_connector_free(struct tcp_connector *c)
{
	attempts_drop(c);
	if (c->state != TCP_CONNECTED)
		drop_link(c);
	gantry_list_remove(&c->node);
	gantry_list_remove(&c->by_id);
	tcp_rx_memory_close(&c->rx_memory);
	free(c);
}
