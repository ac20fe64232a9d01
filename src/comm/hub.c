/* SPDX-License-Identifier: Apache-2.0 */
/* A hub's life: making ids, listening, failing, ending; and the clock's part in it. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/hub.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"
#include "inet/settings.h"

/* How many times GANTRY_CONNECT_TIMEOUT an id waits for its first rank: programs make it well before they need it. */
enum { PATIENCE = 10, HUB_REFUSED_TEXT = 128 };

/* ---- connections whose hello names a hub here: until they are proved no hub hears of them ---- */

struct hub *hub_find(uint64_t comm_id)
{
	gantry_list_each (pos, &ctl_service.hubs) {
		struct hub *hub = gantry_container(pos, struct hub, node);

		if (hub->comm_id == comm_id && hub->state != HUB_ENDED && !inet_loop.parting)
			return hub;
	}
	return NULL;
}

static void on_hello(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct ctl_hello h;
	struct hub *hub;

	if (ctl_hello_decode(c->shake.payload, c->shake.payload_size, c->shake.peer_version, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_PROTOCOL, "not a hello");
		return;
	}
	hub = hub_find(h.comm_id);
	if (!hub) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED,
				 "no communicator of this id here: it has ended, or its process was started anew");
		return;
	}
	c->tag = h.comm_id;
	inet_conn_challenge(c, &hub->key);
}

static void on_proved(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct hub *hub = hub_find(c->tag);
	uint8_t answer[CTL_ACCEPTED_SIZE];
	struct ctl_hello h;

	if (!hub || ctl_hello_decode(c->shake.payload, c->shake.payload_size, c->shake.peer_version, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "the communicator has just ended");
		return;
	}
	ctl_accepted_encode(&(struct ctl_accepted){.timeout_ms = (uint32_t)(hub->timeout / 1000000),
						   .same_process = h.process == ctl_service.process},
			    answer);
	if (inet_conn_accept(c, answer, sizeof(answer)))
		hub_admit(hub, c, &h);
}

/* The hub's own ranks will want to know. */
static void on_lost(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct hub *hub = c->tag && !c->shake.proved && c->shake.error != GANTRY_ERR_VERSION ? hub_find(c->tag) : NULL;

	if (!hub)
		return;
	hub->refused++;
	hub->secrets |= c->shake.peer_auth == INET_AUTH_SECRET;
}

struct inet_service hub_service = {
	.protocol = {"ctl", CTL_VERSION, "hub's side", "rank's side", NULL},
	.hello = on_hello,
	.proved = on_proved,
	.lost = on_lost,
};

/* ---- life ---- */

static void hub_free(struct hub *hub) REQUIRES(loop_mu)
{
	if (!hub)
		return;
	gantry_list_remove(&hub->node);
	hub_gather_free(hub);
	inet_conns_drop(&hub_service, hub->comm_id); /* the key is this hub's */
	inet_port_put(&hub_service, hub->port);
	free(hub->ranks);
	free(hub);
}

/* From here on the hub is the service's, also when it fails: only that thread may free what epoll watches. */
static gantry_result hub_open(struct hub *hub, const struct gantry_addr *addr, struct gantry_addr *ret_bound)
	REQUIRES(loop_mu)
{
	gantry_result r = inet_port_get(&hub_service, addr, &hub->port);

	if (r == GANTRY_OK)
		*ret_bound = hub->port->addr;
	else
		hub->state = HUB_ENDED;
	hub->until = gantry_now_ns() + (r == GANTRY_OK ? PATIENCE * hub->connect_timeout : 0);
	ctl_service_due(hub->until);
	gantry_list_append(&ctl_service.hubs, &hub->node);
	return r;
}

/* A hub with the id's number and key, at `addr`. */
static gantry_result hub_start(const struct ctl_id *id, const struct gantry_addr *addr, struct gantry_addr *ret_bound)
{
	gantry_result r = GANTRY_OK;
	struct hub *hub = calloc(1, sizeof(*hub));
	char text[GANTRY_ADDR_TEXT];

	if (!hub)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a hub");
	gantry_list_init(&hub->node);
	hub->timeout = gantry_params()->timeout;
	hub->connect_timeout = gantry_params()->connect_timeout;
	hub->comm_id = id->comm_id;
	TRY(inet_mixed_key(id->key, hub->key_bytes, &hub->key));
	hub->secrets = hub->key.auth == INET_AUTH_SECRET;
	inet_loop_lock();
	r = ctl_service_start();
	if (r == GANTRY_OK) {
		r = hub_open(hub, addr, ret_bound);
		hub = NULL;
		inet_loop_wake();
	}
	inet_loop_unlock();
	TRY(r);
	LOG_INFO(COMM, "comm %016llx: the ranks meet at %s", (unsigned long long)id->comm_id,
		 gantry_addr_text(ret_bound, text));
out:
	free(hub);
	return r;
}

gantry_result gantry_ctl_create_id(struct gantry_unique_id *ret_id)
{
	gantry_result r = GANTRY_OK;
	struct ctl_id id = {.version = CTL_VERSION};
	struct gantry_addr addr, bound;

	TRY(gantry_params_load(0));
	TRY(gantry_random_bytes(&id.comm_id, sizeof(id.comm_id)));
	TRY(gantry_random_bytes(id.key, sizeof(id.key)));
	TRY(inet_listen_addr(&addr));
	TRY(inet_advertised(&addr, &id.addr));
	TRY(hub_start(&id, &addr, &bound));
	if (!gantry_addr_port(&id.addr))
		gantry_addr_set_port(&id.addr, gantry_addr_port(&bound));
	ctl_id_encode(&id, ret_id);
out:
	return r;
}

gantry_result gantry_ctl_serve(const struct gantry_unique_id *id, const struct gantry_addr *at)
{
	gantry_result r = GANTRY_OK;
	struct gantry_addr any = {.in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT}}, bound;
	struct ctl_id decoded;

	TRY(gantry_params_load(0));
	if (ctl_id_decode(id, &decoded) != GANTRY_OK)
		FAIL(GANTRY_ERR_INVALID, "this is not a unique id");
	if (at)
		any = *at;
	else if (access("/proc/net/if_inet6", F_OK)) /* a kernel without IPv6 */
		any = (struct gantry_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)}};
	gantry_addr_set_port(&any, gantry_addr_port(&decoded.addr));
	TRY(hub_start(&decoded, &any, &bound));
out:
	return r;
}

void hub_tell_all(struct hub *hub, struct ctl_buf *b)
{
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE)
			ctl_conn_share(hub->ranks[i].conn, b);
	ctl_buf_put(b);
}

/* Sends all away with what they were told last. */
static void see_off_all(struct hub *hub) REQUIRES(loop_mu)
{
	for (int i = 0; i < hub->nranks; i++) {
		struct hub_rank *rank = &hub->ranks[i];

		if (rank->state != HUB_HERE)
			continue;
		ctl_conn_finish(rank->conn, HUB_SEE_OFF_NS);
		rank->conn = NULL;
		rank->state = HUB_LEFT;
	}
	hub->nhere = 0;
}

void hub_fail(struct hub *hub, gantry_result why, const char *fmt, ...)
{
	struct ctl_head h = {.kind = CTL_REFUSED, .from = -1, .to = -1, .result = why};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(hub->text, sizeof(hub->text), fmt, ap);
	va_end(ap);
	LOG_INFO(COMM, "comm %016llx: joining failed: %s", (unsigned long long)hub->comm_id, hub->text);
	hub->error = why;
	hub->state = HUB_FAILED;
	h.size = (uint32_t)strlen(hub->text);
	hub_tell_all(hub, ctl_buf_make(&h, hub->text));
	see_off_all(hub);
	hub->until = inet_loop.now + hub->connect_timeout;
	ctl_service_due(hub->until);
}

void hub_bye(void)
{
	gantry_list_each (pos, &ctl_service.hubs) {
		struct hub *hub = gantry_container(pos, struct hub, node);
		struct ctl_head h = {.kind = CTL_BYE, .from = -1, .to = -1};

		if (hub->state == HUB_OPEN)
			hub_fail(hub, GANTRY_ERR_PEER_LOST,
				 "the process that made the id (%s) ended while the ranks "
				 "were joining",
				 ctl_service.who);
		else if (hub->state == HUB_RUNNING)
			hub_tell_all(hub, ctl_buf_make(&h, NULL));
		see_off_all(hub);
		hub->state = HUB_ENDED;
		ctl_service_due(inet_loop.now);
	}
}

/* ---- the clock ---- */

static int is_absent(const struct hub *hub, int rank)
{
	return hub->ranks[rank].state == HUB_ABSENT;
}

/* "" or what to make of connections that proved nothing. */
static const char *refused_text(const struct hub *hub, char buf[HUB_REFUSED_TEXT])
{
	buf[0] = 0;
	if (hub->refused)
		snprintf(buf, HUB_REFUSED_TEXT, "; %u connection%s knew the id but failed to prove the %s",
			 hub->refused, hub->refused == 1 ? "" : "s",
			 hub->secrets ? "secret: does GANTRY_SECRET differ?" : "key in it");
	return buf;
}

void hub_awaits(const struct hub *hub, char *buf, size_t len)
{
	char missing[256], refused[HUB_REFUSED_TEXT];

	buf[0] = 0;
	if (hub->state != HUB_OPEN || !hub->ranks)
		return;
	hub_list_ranks(hub, is_absent, missing, sizeof(missing));
	snprintf(buf, len, "rank%s %s%s", hub->nranks - hub->nhere == 1 ? "" : "s", missing,
		 refused_text(hub, refused));
}

static void waited_enough(struct hub *hub) REQUIRES(loop_mu)
{
	char missing[256], seconds[16], refused[HUB_REFUSED_TEXT];

	if (hub->state == HUB_FAILED || !hub->ranks) {
		if (hub->state == HUB_OPEN)
			LOG_INFO(COMM, "comm %016llx: nobody came", (unsigned long long)hub->comm_id);
		hub->state = HUB_ENDED;
		return;
	}
	hub_list_ranks(hub, is_absent, missing, sizeof(missing));
	hub_fail(hub, GANTRY_ERR_TIMEOUT,
		 "%d of %d ranks came within %s (GANTRY_CONNECT_TIMEOUT), missing: rank%s %s%s", hub->nhere,
		 hub->nranks, ctl_seconds(hub->connect_timeout, seconds), hub->nranks - hub->nhere == 1 ? "" : "s",
		 missing, refused_text(hub, refused));
}

/* Asks all for a sign of life, and counts those as lost that gave none. */
static void beat(struct hub *hub) REQUIRES(loop_mu)
{
	const struct ctl_head h = {.kind = CTL_LIFE, .from = -1, .to = -1};

	if (inet_loop.now >= hub->next_beat) {
		hub_tell_all(hub, ctl_buf_make(&h, NULL));
		/* All hubs of a process at the same time: one turn of the service for all of them. */
		hub->next_beat = (inet_loop.now / hub->beat + 1) * hub->beat;
	}
	for (int i = 0; i < hub->nranks; i++) {
		struct hub_rank *rank = &hub->ranks[i];
		char seconds[16], cause[64];

		if (rank->state != HUB_HERE)
			continue;
		if (!ctl_silent(&rank->conn->heard, hub->timeout)) {
			ctl_service_due(rank->conn->heard + ctl_patience(hub->timeout));
			continue;
		}
		snprintf(cause, sizeof(cause), "no sign of life for %s (GANTRY_TIMEOUT)",
			 ctl_seconds(hub->timeout, seconds));
		hub_rank_lost(rank, GANTRY_ERR_PEER_SILENT, cause);
	}
	ctl_service_due(hub->next_beat);
}

void hub_tick(void)
{
	gantry_list_each_safe (pos, &ctl_service.hubs) {
		struct hub *hub = gantry_container(pos, struct hub, node);

		if (hub->nhere)
			beat(hub);
		if (hub->gather.open)
			hub_gather_tick(hub);
		if (hub->state == HUB_OPEN || hub->state == HUB_FAILED) {
			if (inet_loop.now >= hub->until)
				waited_enough(hub);
			if (hub->state != HUB_ENDED)
				ctl_service_due(hub->until);
		}
		if (hub->state == HUB_ENDED)
			hub_free(hub);
	}
}
