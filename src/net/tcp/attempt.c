/* SPDX-License-Identifier: Apache-2.0 */
/* One socket on its way to become a lane: connect, hello, welcome. connect.c has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "inet/sock.h"
#include "net/tcp/connect.h"

enum { ATTEMPT_MS = 5000 }; /* for TCP to connect; then another address may be tried */

void tcp_attempt_free(struct tcp_attempt *a)
{
	inet_source_close(&a->source);
	gantry_list_remove(&a->node);
	free(a);
}

gantry_result tcp_attempt_add(struct tcp_connector *c, int lane, int candidate, uint64_t start_at)
{
	struct tcp_attempt *a = calloc(1, sizeof(*a));
	const struct tcp_device *d = &tcp_engine.devs[c->dev];

	if (!a)
		return GANTRY_ERR_NOMEM;
	a->source.fd = -1;
	a->connector = c;
	a->lane = lane;
	a->candidate = candidate;
	a->rail = d->rails[lane ? (lane - 1) % d->nrails : 0];
	a->start_at = start_at;
	gantry_list_append(&c->attempts, &a->node);
	return GANTRY_OK;
}

/* Where a lane goes: for a bulk lane, an address of the peer in the rail's own subnet if there is one. */
struct gantry_addr tcp_attempt_target(const struct tcp_attempt *a)
{
	const struct tcp_connector *c = a->connector;
	const struct gantry_nic *nic = &tcp_engine.nics->nics[a->rail];
	struct gantry_addr to;
	int pick = -1, n = c->welcome.naddrs;

	if (a->lane == 0 || n == 0) {
		to = c->handle.addrs[a->candidate % c->handle.naddrs];
	} else {
		/* Several may be (NICs on one switch, link-local addresses): begin with our counterpart. */
		for (int j = 0; j < n && pick < 0 && !a->failures; j++) {
			int i = (a->lane - 1 + j) % n;

			for (int k = 0; k < nic->naddrs && pick < 0; k++)
				if (gantry_nic_same_subnet(nic, k, &c->welcome.addrs[i]))
					pick = i;
		}
		to = c->welcome.addrs[pick >= 0 ? pick : (int)(((uint32_t)a->lane - 1 + a->failures) % (uint32_t)n)];
	}
	/* A link-local address means the link that our own interface is on. */
	if (to.sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to.in6.sin6_addr))
		to.in6.sin6_scope_id = nic->ifindex;
	return to;
}

static void attempt_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu);

void tcp_attempt_start(struct tcp_attempt *a)
{
	const struct gantry_nic *nic = &tcp_engine.nics->nics[a->rail];
	struct gantry_addr to = tcp_attempt_target(a);
	const struct gantry_addr *from = NULL;
	int local = gantry_addr_is_local(&to);
	const char *device = gantry_params()->bind_device && gantry_nic_should_bind(nic, &to) ? nic->name : NULL;
	int e;

	for (int i = 0; i < nic->naddrs && !from; i++)
		if (nic->addrs[i].sa.sa_family == to.sa.sa_family)
			from = &nic->addrs[i];
	/* Loopback can only talk to loopback. */
	if (from && nic->is_loopback && !local)
		from = NULL, device = NULL;
	a->source.ready = attempt_ready;
	a->state = ATTEMPT_CONNECTING;
	a->deadline = gantry_now_ns() + (uint64_t)ATTEMPT_MS * 1000000;
	e = sock_connect(from, device, &to, &a->source.fd);
	if (e)
		tcp_attempt_failed(a, e);
	else if (inet_source_add(&a->source, EPOLLOUT) != GANTRY_OK)
		tcp_connector_fail(a->connector, GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
}

static bool start_hello(struct tcp_attempt *a) REQUIRES(loop_mu)
{
	struct tcp_connector *c = a->connector;
	uint8_t out[WIRE_HELLO_SIZE];
	struct wire_hello h = {
		.listener = c->handle.listener,
		.process = tcp_engine.process,
		.comm_id = c->ctx.comm_id,
		.host = tcp_engine.host,
		.window = LINK_WINDOW,
		.eager_max = (uint32_t)gantry_params()->eager_max,
		.lane = (uint8_t)a->lane,
		.lanes = (uint8_t)c->link->nlanes,
		.unpack = (uint8_t)tcp_home_says(&c->home),
		.dev = (uint16_t)c->dev,
	};

	memcpy(h.cookie, c->handle.cookie, WIRE_COOKIE_SIZE);
	memcpy(h.session, c->link->session.key, WIRE_SESSION_SIZE);
	wire_hello_encode(&h, out);
	if (inet_handshake_start_client(&a->shake, &tcp_service.protocol, &tcp_engine.key, out, sizeof(out)) !=
	    GANTRY_OK) {
		tcp_connector_fail(c, GANTRY_ERR_SYSTEM, "%s", gantry_last_error());
		return false;
	}
	/* From here on a slow peer is waited for: to dial again would only give it more to do. */
	a->state = ATTEMPT_WELCOME;
	a->deadline = UINT64_MAX;
	inet_source_set(&a->source, EPOLLIN);
	/* This address answers: the others need not be tried. */
	gantry_list_each_safe (pos, &c->attempts) {
		struct tcp_attempt *other = gantry_container(pos, struct tcp_attempt, node);

		if (!a->lane && other != a && other->state != ATTEMPT_WELCOME)
			tcp_attempt_free(other);
	}
	return true;
}

static void attempt_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct tcp_attempt *a = gantry_container(s, struct tcp_attempt, source);
	const struct inet_handshake *h = &a->shake;
	socklen_t len = sizeof(int);
	int e = 0;

	(void)events;
	if (a->state == ATTEMPT_CONNECTING) {
		getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &len);
		if (e)
			tcp_attempt_failed(a, e);
		if (e || !start_hello(a))
			return;
	}
	switch (inet_loop.parting ? INET_AGAIN : inet_handshake_move(&a->shake, s->fd)) {
	case INET_DONE:
		tcp_attempt_welcomed(a);
		break;
	case INET_FAILED:
		/* It hung up on our hello: it is restarting, was crowded by strangers, or is not ours. */
		if (h->broken)
			tcp_attempt_failed(a, h->broken_errno ? h->broken_errno : ECONNRESET);
		else
			tcp_connector_fail(a->connector, h->error, "%s%s", h->refused ? "refused by the peer: " : "",
					   h->text);
		break;
	default:
		return;
	}
	tcp_accept_reconsider();
}
