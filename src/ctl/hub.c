/* SPDX-License-Identifier: Apache-2.0 */
/* A hub from its start to its end, and the ranks that are here: hub.h has the states, hub_priv.h the other files. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "ctl/hub_priv.h"
#include "inet/settings.h"

enum { PATIENCE = 10 }; /* times GANTRY_CALL_TIMEOUT, if set, an id waits for its first rank: programs make it early */
static const uint64_t late_ns = 10000000000; /* missing ranks are logged after so long */

/* ---- what the hub says ---- */

const char *hub_rank_text(const struct hub_rank *rank, char buf[HUB_RANK_TEXT])
{
	char addr[GANTRY_ADDR_TEXT];

	snprintf(buf, HUB_RANK_TEXT, "rank %d (%s, %s)", hub_rank_index(rank), gantry_addr_text(&rank->addr, addr),
		 rank->who);
	return buf;
}

void hub_list_ranks(const struct hub *hub, bool (*holds)(const struct hub_rank *rank), char *buf, size_t room)
{
	*buf = 0;
	for (int i = 0; i < hub->nranks; i++) {
		int end = i;

		if (!holds(&hub->ranks[i]))
			continue;
		while (end + 1 < hub->nranks && holds(&hub->ranks[end + 1]))
			end++;
		gantry_text_add(buf, room, "%s%d", *buf ? ", " : "", i);
		if (end > i)
			gantry_text_add(buf, room, "-%d", end);
		i = end;
	}
}

struct inet_frame *hub_text_frame(struct inet_header h, const char *text)
{
	h.to = -1;
	h.size = (uint32_t)strlen(text);
	return inet_frame_make(&h, text);
}

void hub_tell_all(struct hub *hub, struct inet_frame *b)
{
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE)
			inet_stream_share(hub->ranks[i].conn, b);
	inet_frame_put(b);
}

void hub_linger_all(struct hub *hub)
{
	for (int i = 0; i < hub->nranks; i++) {
		struct hub_rank *rank = &hub->ranks[i];

		if (rank->state != HUB_HERE)
			continue;
		hub_probe_drop(rank);
		inet_stream_finish(rank->conn, HUB_LINGER_NS);
		rank->conn = NULL;
		rank->state = HUB_LEFT;
	}
	hub->nhere = 0;
}

/* ---- ranks that wait for others ---- */

void hub_wait_begin(struct hub_wait *w)
{
	*w = (struct hub_wait){.since = inet_loop.now, .tell_at = inet_loop.now + late_ns};
	ctl_service_due(w->tell_at);
}

/* After 10, 20, 40 s and so on. */
bool hub_wait_tells(struct hub_wait *w, uint64_t *ret_waited)
{
	bool now = inet_loop.now >= w->tell_at;

	*ret_waited = inet_loop.now - w->since;
	if (now)
		w->tell_at = inet_loop.now + *ret_waited;
	ctl_service_due(w->tell_at);
	return now;
}

/* ---- leaving and being lost ---- */

static void rank_gone(struct hub_rank *rank, enum hub_rank_state state) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;

	ASSERT(rank->conn && hub->state == HUB_RUNNING);
	hub_probe_drop(rank);
	inet_stream_finish(rank->conn, HUB_LINGER_NS);
	rank->conn = NULL;
	rank->state = state;
	hub->nhere--;
	hub_gather_without(rank);
	if (!hub->nhere) {
		hub->state = HUB_ENDED;
		ctl_service_due(inet_loop.now);
	}
}

/*
 * Ranks that leave mostly do so together, and a frame to every rank for each of them would be half the square of their
 * number: those of one pass are reported in one frame. It goes out before any other report about lost ranks, so that
 * the order stays that of cause and consequence.
 */
static void tell_left(struct hub *hub)
{
	struct inet_header h = {.kind = CTL_LEFT, .from = -1, .to = -1};
	struct inet_frame *b;
	uint8_t *at;

	if (!hub->nuntold)
		return;
	hub->nuntold = 0;
	for (int i = 0; i < hub->nranks; i++)
		h.size += 8 * (hub->ranks[i].untold && (!i || !hub->ranks[i - 1].untold));
	b = inet_frame_make(&h, NULL);
	at = b ? b->bytes + INET_HEADER_SIZE : NULL;
	for (int i = 0; i < hub->nranks; i++) {
		struct ctl_range range = {.first = i};

		while (i < hub->nranks && hub->ranks[i].untold) {
			hub->ranks[i++].untold = 0;
			range.count++;
		}
		if (range.count && at) {
			ctl_ranges_encode(&range, 1, at);
			at += 8;
		}
	}
	ASSERT(!b || at == b->bytes + b->size);
	hub_tell_all(hub, b);
}

void hub_rank_lost(struct hub_rank *rank, gantry_result why, const char *cause)
{
	struct hub *hub = rank->hub;
	const struct inet_header h = {.kind = CTL_LOST, .from = hub_rank_index(rank), .result = why};
	char rank_name[HUB_RANK_TEXT], text[CTL_TEXT_MAX];

	ASSERT(rank->state == HUB_HERE && hub->nhere > 0);
	snprintf(text, sizeof(text), "%s: %s", hub_rank_text(rank, rank_name), cause);
	if (hub->state != HUB_RUNNING) {
		hub_probe_drop(rank);
		inet_stream_close(rank->conn);
		rank->conn = NULL;
		rank->state = HUB_LOST;
		hub->nhere--;
		hub_join_fail(hub, why, "while ranks were joining: %s", text);
		return;
	}
	LOG_WARN(COMM, "comm %016llx: lost %s", (unsigned long long)hub->comm_id, text);
	tell_left(hub);
	/* To itself as well: if it was only stopped, it learns what the others think of it. */
	hub_tell_all(hub, hub_text_frame(h, text));
	rank->why = why;
	rank_gone(rank, HUB_LOST);
}

static void rank_left(struct hub_rank *rank) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	char rank_name[HUB_RANK_TEXT];

	ASSERT(rank->state == HUB_HERE && hub->nhere > 0 && !rank->untold);
	LOG_DEBUG(COMM, "comm %016llx: %s left", (unsigned long long)hub->comm_id, hub_rank_text(rank, rank_name));
	rank->why = GANTRY_ERR_PEER_CLOSED;
	rank_gone(rank, HUB_LEFT);
	rank->untold = 1;
	hub->nuntold++;
	ctl_service_due(inet_loop.now);
}

/* ---- frames: what a rank may say. Each answers whether the connection was closed or given away. ---- */

static int hear_life(struct hub_rank *rank, const struct inet_header *h, const uint8_t *body)
{
	(void)rank, (void)h, (void)body;
	return 0;
}

static int hear_time(struct hub_rank *rank, const struct inet_header *h, const uint8_t *none)
{
	struct inet_header reply = {.kind = CTL_TIME, .from = -1, .to = hub_rank_index(rank), .tag = h->tag, .size = 8};
	uint8_t body[8];

	(void)none;
	put64(body, gantry_now_ns());
	inet_stream_send(rank->conn, &reply, body);
	return 0;
}

static int hear_leave(struct hub_rank *rank, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
{
	char cause[CTL_TEXT_MAX];

	if (rank->conn->session.on)
		inet_stream_send_life(
			rank->conn); /* its count says that the leave has come: the end behind it is the answer */
	if (h->result == GANTRY_OK && rank->hub->state == HUB_RUNNING) {
		rank_left(rank);
		return 1;
	}
	ctl_get_text(cause, sizeof(cause), body, h->size);
	hub_rank_lost(rank, GANTRY_ERR_PEER_LOST, *cause ? cause : "it left");
	return 1;
}

/* The hub replies to calls to a rank that is gone. Messages to it are dropped: the sender has been notified. */
static int hear_for_another(struct hub_rank *rank, const struct inet_header *h, const uint8_t *body)
{
	struct hub_rank *to = &rank->hub->ranks[h->to];
	struct inet_header reply = {.kind = CTL_REPLY, .from = h->to, .to = h->from, .tag = h->tag, .result = to->why};

	ASSERT(h->to >= 0 && h->to < rank->hub->nranks); /* may_say */
	if (to->state == HUB_HERE)
		inet_stream_send(to->conn, h, body);
	else if (h->kind == CTL_CALL)
		inet_stream_send(rank->conn, &reply, NULL);
	return 0;
}

/* When it may say it. */
enum { ALWAYS = 0, RUNNING = 1, AS_ITSELF = 2, TO_A_RANK = 4, EMPTY = 8 };

static const struct {
	int (*hear)(struct hub_rank *rank, const struct inet_header *h, const uint8_t *body);
	unsigned rules;
} hearing[CTL_KIND_COUNT] = {
	[CTL_LIFE] = {hear_life, ALWAYS},
	[CTL_TIME] = {hear_time, EMPTY},
	[CTL_LEAVE] = {hear_leave, ALWAYS},
	[CTL_GATHER] = {hub_hear_gather, RUNNING | AS_ITSELF},
	[CTL_HAVE] = {hub_hear_have, RUNNING | AS_ITSELF},
	[CTL_MESSAGE] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
	[CTL_CALL] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
	[CTL_REPLY] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
};

static bool may_say(const struct hub_rank *rank, const struct inet_header *h)
{
	const struct hub *hub = rank->hub;
	unsigned broken = 0;

	if (h->kind >= CTL_KIND_COUNT || !hearing[h->kind].hear)
		return false;
	broken |= hub->state == HUB_RUNNING ? 0 : RUNNING;
	broken |= h->from == hub_rank_index(rank) ? 0 : AS_ITSELF;
	broken |= h->to >= 0 && h->to < hub->nranks ? 0 : TO_A_RANK;
	broken |= h->size == 0 ? 0 : EMPTY;
	return !(hearing[h->kind].rules & broken);
}

static int on_frame(struct inet_stream *c, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub_rank *rank = c->owner;
	char cause[CTL_TEXT_MAX];

	if (may_say(rank, h))
		return hearing[h->kind].hear(rank, h, body);
	snprintf(cause, sizeof(cause), "protocol error (%s)", ctl_kind_name(h->kind));
	hub_rank_lost(rank, GANTRY_ERR_PROTOCOL, cause);
	return 1;
}

static void on_broken(struct inet_stream *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	hub_rank_lost(c->owner, why, cause);
}

const struct inet_stream_ops hub_rank_ops = {.frame = on_frame, .broken = on_broken, .cut = hub_rank_cut};

/* ---- life ---- */

struct hub *hub_find(uint64_t comm_id)
{
	gantry_list_each_entry (hub, &ctl_service.hubs, struct hub, node) {
		if (hub->comm_id == comm_id && hub->state != HUB_ENDED && !inet_loop.parting)
			return hub;
	}
	return NULL;
}

static void hub_free(struct hub *hub) REQUIRES(loop_mu)
{
	ASSERT(hub->state == HUB_ENDED && !hub->nhere);
	LOG_INFO(COMM,
		 "comm %016llx: the bootstrap root is shutting down; %llu bytes received from %d ranks, %llu sent",
		 (unsigned long long)hub->comm_id, (unsigned long long)hub->traffic.in, hub->nranks,
		 (unsigned long long)hub->traffic.out);
	gantry_list_remove(&hub->node);
	hub_join_keep(hub);
	hub_gather_drop(hub);
	inet_conns_drop(&hub_service, hub->comm_id); /* the key is this hub's */
	inet_port_put(&hub_service, hub->port);
	free(hub->addrs);
	free(hub->ranks);
	free(hub);
}

gantry_result hub_start(const struct ctl_id *id, const struct gantry_addr *addr, struct gantry_addr *ret_bound)
{
	gantry_result r = GANTRY_OK;
	struct hub *hub = calloc(1, sizeof(*hub));
	char text[GANTRY_ADDR_TEXT];

	if (!hub)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a bootstrap root");
	hub->timeout = gantry_params()->timeout;
	hub->connect_timeout = gantry_params()->connect_timeout;
	hub->call_timeout = gantry_params()->call_timeout;
	hub->comm_id = id->comm_id;
	hub->fixed = ctl_id_is_fixed(id);
	TRY(inet_mixed_key(id->key, hub->key_bytes, &hub->key));
	hub->secrets = hub->key.auth == INET_AUTH_SECRET;
	inet_loop_lock();
	r = ctl_service_start();
	if (r == GANTRY_OK) {
		r = inet_port_get(&hub_service, addr, &hub->port);
		inet_loop_wake(); /* also if it failed: the service may have started for nothing */
	}
	if (r == GANTRY_OK) {
		*ret_bound = hub->port->addr;
		hub->until = hub->call_timeout ? gantry_now_ns() + PATIENCE * hub->call_timeout : UINT64_MAX;
		ctl_service_due(hub->until);
		gantry_list_append(&ctl_service.hubs, &hub->node);
		hub = NULL; /* the service's */
	}
	inet_loop_unlock();
	TRY(r);
	LOG_INFO(COMM, "comm %016llx: bootstrap root is %s", (unsigned long long)id->comm_id,
		 gantry_addr_text(ret_bound, text));
out:
	free(hub);
	return r;
}

void hub_drop(uint64_t comm_id)
{
	struct hub *hub = hub_find(comm_id);

	if (!hub || hub->ranks)
		return;
	hub->state = HUB_ENDED;
	ctl_service_due(inet_loop.now);
	inet_loop_wake();
}

void hub_fail(uint64_t comm_id, gantry_result why, const char *text)
{
	struct hub *hub = hub_find(comm_id);

	if (!hub || hub->state != HUB_OPEN)
		return;
	hub_join_fail(hub, why, "%s", text);
	if (!hub->ranks)
		hub->until = 0; /* what is kept of it is enough for those that come */
	ctl_service_due(hub->until);
	inet_loop_wake();
}

void hub_bye(void)
{
	gantry_list_each_entry (hub, &ctl_service.hubs, struct hub, node) {
		struct inet_header h = {.kind = CTL_BYE, .from = -1, .to = -1};

		if (hub->state == HUB_OPEN)
			hub_join_fail(hub, GANTRY_ERR_PEER_LOST,
				      "the process that created the unique id (%s) exited while ranks were joining",
				      gantry_self());
		tell_left(hub);
		if (hub->state == HUB_RUNNING)
			hub_tell_all(hub, inet_frame_make(&h, NULL));
		hub_linger_all(hub);
		hub->state = HUB_ENDED;
		ctl_service_due(inet_loop.now);
	}
}

/* ---- the clock ---- */

/* Asks all for a sign of life, and counts those as lost that gave none. */
static void watch_ranks(struct hub *hub) REQUIRES(loop_mu)
{
	if (inet_loop.now >= hub->next_beat) {
		for (int i = 0; i < hub->nranks; i++)
			if (hub->ranks[i].state == HUB_HERE && !inet_stream_is_cut(hub->ranks[i].conn))
				inet_stream_send_life(hub->ranks[i].conn);
		/* All hubs of a process at the same time: one turn of the service for all of them. */
		hub->next_beat = (inet_loop.now / hub->beat + 1) * hub->beat;
	}
	for (int i = 0; i < hub->nranks; i++) {
		struct hub_rank *rank = &hub->ranks[i];
		char seconds[16], cause[128];

		if (rank->state != HUB_HERE)
			continue;
		if (!ctl_silent(&rank->conn->received_at, hub->timeout)) {
			ctl_service_due(rank->conn->received_at + ctl_patience(hub->timeout));
			continue;
		}
		snprintf(cause, sizeof(cause), "no sign of life for %s (GANTRY_TIMEOUT)%s",
			 ctl_seconds(hub->timeout, seconds),
			 inet_stream_is_cut(rank->conn) ? "; its connection broke and it has not reconnected" : "");
		hub_rank_lost(rank, GANTRY_ERR_PEER_SILENT, cause);
	}
	ctl_service_due(hub->next_beat);
}

void hub_tick(void)
{
	gantry_list_each_entry_safe (hub, &ctl_service.hubs, struct hub, node) {
		tell_left(hub);
		if (hub->nhere)
			watch_ranks(hub);
		hub_gather_tick(hub);
		hub_join_tick(hub);
		if (hub->state == HUB_ENDED)
			hub_free(hub);
	}
}
