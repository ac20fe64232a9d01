/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a hub: coming, what they send each other and gather, leaving, being lost. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/hub.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"

static const uint64_t beat_min = 10000000, beat_max = 10000000000;

static int index_of(const struct hub_rank *rank)
{
	return (int)(rank - rank->hub->ranks);
}

/* "rank 2 (10.0.0.2:4000, node7 pid 12)" */
enum { HUB_RANK_TEXT = 16 + GANTRY_ADDR_TEXT + CTL_WHO_SIZE };
static const char *rank_text(const struct hub_rank *rank, char buf[HUB_RANK_TEXT])
{
	char addr[GANTRY_ADDR_TEXT];

	snprintf(buf, HUB_RANK_TEXT, "rank %d (%s, %s)", index_of(rank), gantry_addr_text(&rank->addr, addr),
		 rank->who);
	return buf;
}

void hub_list_ranks(const struct hub *hub, int (*pick)(const struct hub *hub, int rank), char *buf, size_t room)
{
	size_t at = 0;

	*buf = 0;
	for (int i = 0; i < hub->nranks; i++) {
		int end = i, n;

		if (!pick(hub, i))
			continue;
		while (end + 1 < hub->nranks && pick(hub, end + 1))
			end++;
		if (end > i)
			n = snprintf(buf + at, room - at, "%s%d-%d", at ? ", " : "", i, end);
		else
			n = snprintf(buf + at, room - at, "%s%d", at ? ", " : "", i);
		if (n < 0 || at + (size_t)n + 1 > room) {
			strcpy(buf + room - 4, "...");
			return;
		}
		at += (size_t)n;
		i = end;
	}
}

/*
 * ---- allgather ----
 *
 * The hub puts the parts together and sends everybody the whole. A rank that is gone, parts of different sizes, or
 * somebody who does not come in time fail it for all, by name; the failure is kept, because some ranks come to it only
 * later. A rank that has heard of the failure may begin the next one meanwhile.
 */

static void tell_gathered(struct hub_rank *rank, uint64_t number, gantry_result why, const char *text)
{
	struct ctl_head h = {.kind = CTL_GATHERED, .from = -1, .to = -1, .tag = number, .result = why};

	h.size = (uint32_t)strlen(text);
	ctl_conn_send(rank->conn, &h, text);
}

static void drop_gather(struct hub_gather *g)
{
	ctl_buf_put(g->buf);
	g->buf = NULL;
	g->open = 0;
}

/* Those who gave are told; those who did not will be when they come. */
static void fail_gather(struct hub *hub, gantry_result why, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail_gather(struct hub *hub, gantry_result why, const char *fmt, ...)
{
	struct hub_gather *g = &hub->gather;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(g->text, sizeof(g->text), fmt, ap);
	va_end(ap);
	g->error = why;
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE && g->given[i])
			tell_gathered(&hub->ranks[i], g->number, why, g->text);
	drop_gather(g);
}

static int is_missing(const struct hub *hub, int rank)
{
	return !hub->gather.given[rank];
}

/* A rank is here no more. */
static void gather_without(struct hub *hub, const struct hub_rank *rank) REQUIRES(loop_mu)
{
	struct hub_gather *g = &hub->gather;
	char who[HUB_RANK_TEXT];

	if (g->open && !g->given[rank - hub->ranks])
		fail_gather(hub, rank->why, "allgather without %s, who %s", rank_text(rank, who),
			    rank->why == GANTRY_ERR_PEER_CLOSED ? "has left" : "is lost");
}

void hub_gather_tick(struct hub *hub)
{
	struct hub_gather *g = &hub->gather;
	char missing[256], seconds[16];

	if (inet_loop.now < g->deadline) {
		ctl_service_due(g->deadline);
		return;
	}
	hub_list_ranks(hub, is_missing, missing, sizeof(missing));
	fail_gather(hub, GANTRY_ERR_TIMEOUT,
		    "%d of %d ranks came to an allgather within %s (GANTRY_CONNECT_TIMEOUT), missing: %s", g->count,
		    hub->nranks, ctl_seconds(hub->connect_timeout, seconds), missing);
}

void hub_gather_free(struct hub *hub)
{
	drop_gather(&hub->gather);
	free(hub->gather.given);
}

/* 0: no memory, and all have been told. */
static int begin_gather(struct hub *hub, const struct ctl_head *h) REQUIRES(loop_mu)
{
	struct hub_gather *g = &hub->gather;
	struct ctl_head whole = {.kind = CTL_GATHERED, .from = -1, .to = -1, .tag = h->tag};

	whole.size = (uint32_t)hub->nranks * h->size;
	if (!g->given)
		g->given = calloc(1, (size_t)hub->nranks);
	g->buf = g->given ? ctl_buf_make(&whole, NULL) : NULL;
	g->number = h->tag;
	g->size = h->size;
	g->count = 0;
	g->error = GANTRY_OK;
	g->open = 1;
	g->deadline = inet_loop.now + hub->connect_timeout;
	ctl_service_due(g->deadline);
	if (g->given)
		memset(g->given, 0, (size_t)hub->nranks);
	return g->buf != NULL;
}

static const struct hub_rank *somebody_gone(const struct hub *hub)
{
	for (int i = 0; i < hub->nranks && hub->nhere < hub->nranks; i++)
		if (hub->ranks[i].state != HUB_HERE && !hub->gather.given[i])
			return &hub->ranks[i];
	return NULL;
}

static void give_part(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;
	int index = (int)(rank - hub->ranks);
	const struct hub_rank *missing = somebody_gone(hub);
	char who[HUB_RANK_TEXT];

	g->given[index] = 1;
	if (missing) {
		gather_without(hub, missing);
		return;
	}
	if (h->size != g->size) {
		fail_gather(hub, GANTRY_ERR_USAGE, "allgather of different sizes: %s gives %u bytes, others %u",
			    rank_text(rank, who), h->size, g->size);
		return;
	}
	if (h->size)
		memcpy(g->buf->bytes + CTL_HEAD_SIZE + (size_t)index * h->size, body, h->size);
	if (++g->count < hub->nranks)
		return;
	hub_tell_all(hub, g->buf);
	g->buf = NULL;
	g->open = 0;
}

static void gather_take(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;

	if (h->tag < g->number || (h->tag == g->number && !g->open)) {
		/* The others are through with it: it failed, or this rank does not count as they do. */
		if (g->error == GANTRY_OK)
			tell_gathered(rank, h->tag, GANTRY_ERR_USAGE, "the others are ahead in their allgathers");
		else
			tell_gathered(rank, h->tag, g->error, g->text);
		return;
	}
	if (h->tag > g->number && g->open)
		fail_gather(hub, GANTRY_ERR_USAGE, "rank %d is ahead in its allgathers", (int)(rank - hub->ranks));
	if (h->tag > g->number && !begin_gather(hub, h)) {
		drop_gather(g);
		g->error = GANTRY_ERR_NOMEM;
		snprintf(g->text, sizeof(g->text), "no memory at the hub for an allgather of %u bytes", h->size);
		tell_gathered(rank, h->tag, g->error, g->text);
		return;
	}
	give_part(rank, h, body);
}

/* ---- leaving and being lost ---- */

static void gone(struct hub_rank *rank, enum hub_rank_state state) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;

	ctl_conn_finish(rank->conn, HUB_SEE_OFF_NS);
	rank->conn = NULL;
	rank->state = state;
	hub->nhere--;
	gather_without(hub, rank);
	if (!hub->nhere) {
		hub->state = HUB_ENDED;
		ctl_service_due(inet_loop.now);
	}
}

void hub_rank_lost(struct hub_rank *rank, gantry_result why, const char *cause)
{
	struct hub *hub = rank->hub;
	struct ctl_head h = {.kind = CTL_LOST, .from = index_of(rank), .to = -1, .result = why};
	char who[HUB_RANK_TEXT], text[CTL_TEXT_MAX];

	snprintf(text, sizeof(text), "%s: %s", rank_text(rank, who), cause);
	if (hub->state != HUB_RUNNING) {
		ctl_conn_close(rank->conn);
		rank->conn = NULL;
		rank->state = HUB_LOST;
		hub->nhere--;
		hub_fail(hub, why, "while the ranks were joining, %s", text);
		return;
	}
	LOG_WARN(COMM, "comm %016llx: lost %s", (unsigned long long)hub->comm_id, text);
	h.size = (uint32_t)strlen(text);
	/* To itself as well: if it was only stopped, it learns what the others think of it. */
	hub_tell_all(hub, ctl_buf_make(&h, text));
	rank->why = why;
	gone(rank, HUB_LOST);
}

static void left(struct hub_rank *rank) REQUIRES(loop_mu)
{
	struct ctl_head h = {.kind = CTL_LEFT, .from = index_of(rank), .to = -1};
	struct hub *hub = rank->hub;
	char who[HUB_RANK_TEXT];

	LOG_DEBUG(COMM, "comm %016llx: %s left", (unsigned long long)hub->comm_id, rank_text(rank, who));
	rank->why = GANTRY_ERR_PEER_CLOSED;
	gone(rank, HUB_LEFT);
	hub_tell_all(hub, ctl_buf_make(&h, NULL));
}

/* ---- frames ---- */

/* Whoever calls a rank that is gone is answered in its place. Messages to it are dropped: the sender has been told. */
static void answer_for(const struct hub_rank *to, struct hub_rank *from, const struct ctl_head *h)
{
	struct ctl_head reply = {.kind = CTL_REPLY, .from = h->to, .to = h->from, .tag = h->tag, .result = to->why};

	if (h->kind == CTL_CALL)
		ctl_conn_send(from->conn, &reply, NULL);
}

static void tell_time(struct hub_rank *rank, const struct ctl_head *h)
{
	struct ctl_head reply = {.kind = CTL_TIME, .from = -1, .to = index_of(rank), .tag = h->tag, .size = 8};
	uint8_t body[8];

	put64(body, gantry_now_ns());
	ctl_conn_send(rank->conn, &reply, body);
}

/* What a rank may say. Each answers whether the connection was closed or given away. */
static int hear_life(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body)
{
	(void)rank, (void)h, (void)body;
	return 0;
}

static int hear_time(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body)
{
	(void)body;
	tell_time(rank, h);
	return 0;
}

static int hear_leave(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	char cause[CTL_TEXT_MAX];

	if (h->result == GANTRY_OK) {
		left(rank);
		return 1;
	}
	ctl_get_text(cause, sizeof(cause), body, h->size);
	hub_rank_lost(rank, GANTRY_ERR_PEER_LOST, cause);
	return 1;
}

static int hear_gather(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	gather_take(rank, h, body);
	return 0;
}

static int hear_for_another(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body)
{
	struct hub_rank *to = &rank->hub->ranks[h->to];

	if (to->state == HUB_HERE)
		ctl_conn_send(to->conn, h, body);
	else
		answer_for(to, rank, h);
	return 0;
}

/* When it may say it. */
enum { ALWAYS = 0, RUNNING = 1, AS_ITSELF = 2, TO_A_RANK = 4, EMPTY = 8 };

static const struct {
	int (*hear)(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body);
	unsigned rules;
} hearing[CTL_KIND_COUNT] = {
	[CTL_LIFE] = {hear_life, ALWAYS},
	[CTL_TIME] = {hear_time, EMPTY},
	[CTL_LEAVE] = {hear_leave, RUNNING},
	[CTL_GATHER] = {hear_gather, RUNNING | AS_ITSELF},
	[CTL_MESSAGE] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
	[CTL_CALL] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
	[CTL_REPLY] = {hear_for_another, RUNNING | AS_ITSELF | TO_A_RANK},
};

static bool may_say(const struct hub_rank *rank, const struct ctl_head *h)
{
	const struct hub *hub = rank->hub;
	unsigned broken = 0;

	if (h->kind >= CTL_KIND_COUNT || !hearing[h->kind].hear)
		return false;
	broken |= hub->state == HUB_RUNNING ? 0 : RUNNING;
	broken |= h->from == index_of(rank) ? 0 : AS_ITSELF;
	broken |= h->to >= 0 && h->to < hub->nranks ? 0 : TO_A_RANK;
	broken |= h->size == 0 ? 0 : EMPTY;
	return !(hearing[h->kind].rules & broken);
}

static int on_frame(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub_rank *rank = c->owner;
	char cause[CTL_TEXT_MAX];

	if (may_say(rank, h))
		return hearing[h->kind].hear(rank, h, body);
	snprintf(cause, sizeof(cause), "it broke the protocol (%s)", ctl_kind_name(h->kind));
	hub_rank_lost(rank, GANTRY_ERR_PROTOCOL, cause);
	return 1;
}

static void on_broken(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	hub_rank_lost(c->owner, why, cause);
}

static const struct ctl_conn_ops rank_ops = {.frame = on_frame, .broken = on_broken};

/* ---- coming ---- */

/* Refused by name, after the proof: this one will go, so it is seen off. */
static void turn_away(struct ctl_conn *c, gantry_result why, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void turn_away(struct ctl_conn *c, gantry_result why, const char *fmt, ...) REQUIRES(loop_mu)
{
	struct ctl_head h = {.kind = CTL_REFUSED, .from = -1, .to = -1, .result = why};
	char text[CTL_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	h.size = (uint32_t)strlen(text);
	ctl_conn_send(c, &h, text);
	ctl_conn_finish(c, HUB_SEE_OFF_NS);
}

static int make_ranks(struct hub *hub, int nranks)
{
	hub->ranks = calloc((size_t)nranks, sizeof(*hub->ranks));
	if (!hub->ranks)
		return 0;
	hub->nranks = nranks;
	for (int i = 0; i < nranks; i++)
		hub->ranks[i].hub = hub;
	/* From now on it is the ranks' patience that counts. */
	hub->until = UINT64_MAX;
	hub->beat = hub->timeout / CTL_BEATS < beat_max ? hub->timeout / CTL_BEATS : beat_max;
	return 1;
}

static const struct hub_rank *first_here(const struct hub *hub)
{
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE)
			return &hub->ranks[i];
	return NULL;
}

/* 1 if the newcomer fits; otherwise everybody has been told why not. */
static int fits(struct hub *hub, struct ctl_conn *c, const struct ctl_hello *h, const char *who) REQUIRES(loop_mu)
{
	const struct hub_rank *other = NULL;
	char text[HUB_RANK_TEXT];

	if (hub->state == HUB_FAILED)
		goto failed;
	if (!hub->ranks && !make_ranks(hub, h->nranks)) {
		hub_fail(hub, GANTRY_ERR_NOMEM, "no memory for %d ranks", h->nranks);
		goto failed;
	}
	if (h->nranks == hub->nranks && hub->ranks[h->rank].state != HUB_ABSENT)
		other = &hub->ranks[h->rank];
	if (h->nranks == hub->nranks && !other)
		return 1;
	if (hub->state == HUB_RUNNING) { /* the others are at work: it is the newcomer who is wrong */
		turn_away(c, GANTRY_ERR_USAGE, "all %d ranks have joined already, here comes %s", hub->nranks, who);
		return 0;
	}
	if (other)
		hub_fail(hub, GANTRY_ERR_USAGE, "rank %d joined twice: %s and %s", h->rank, rank_text(other, text),
			 who);
	else
		hub_fail(hub, GANTRY_ERR_SETTING, "the ranks count differently: %s counts %d ranks, %s %d", who,
			 h->nranks, rank_text(first_here(hub), text), hub->nranks);
failed:
	turn_away(c, hub->error, "%s", hub->text);
	return 0;
}

static void all_here(struct hub *hub) REQUIRES(loop_mu)
{
	struct ctl_head h = {.kind = CTL_READY, .from = -1, .to = -1, .size = ((uint32_t)hub->nranks + 7) / 8};
	uint8_t *bits = calloc(1, h.size);

	if (!bits) {
		hub_fail(hub, GANTRY_ERR_NOMEM, "no memory for %d ranks", hub->nranks);
		return;
	}
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].process == ctl_service.process)
			bits[i / 8] |= (uint8_t)(1 << i % 8);
	hub->state = HUB_RUNNING;
	hub_tell_all(hub, ctl_buf_make(&h, bits));
	free(bits);
	LOG_INFO(COMM, "comm %016llx: all ranks are here, %d", (unsigned long long)hub->comm_id, hub->nranks);
}

void hub_admit(struct hub *hub, struct inet_conn *from, const struct ctl_hello *h)
{
	struct hub_rank newcomer = {.hub = hub, .state = HUB_HERE, .addr = from->addr, .process = h->process};
	uint64_t wait = (uint64_t)h->wait_ms * 1000000, theirs = (uint64_t)h->timeout_ms * 1000000 / CTL_BEATS;
	char who[HUB_RANK_TEXT], addr[GANTRY_ADDR_TEXT];
	struct ctl_conn *c;

	memcpy(newcomer.who, from->shake.peer, sizeof(newcomer.who));
	snprintf(who, sizeof(who), "rank %d (%s, %s)", h->rank, gantry_addr_text(&from->addr, addr), newcomer.who);
	if (ctl_conn_make(inet_conn_take(from), &newcomer.addr, &rank_ops, NULL, &c) != GANTRY_OK)
		return; /* it finds the connection closed, and comes again */
	newcomer.conn = c;
	if (!fits(hub, c, h, who))
		return;
	hub->ranks[h->rank] = newcomer;
	c->owner = &hub->ranks[h->rank];
	hub->nhere++;
	LOG_DEBUG(COMM, "comm %016llx: %s joined, %d of %d", (unsigned long long)hub->comm_id, who, hub->nhere,
		  hub->nranks);
	if (theirs < hub->beat)
		hub->beat = theirs;
	if (hub->beat < beat_min)
		hub->beat = beat_min;
	if (hub->nhere == 1 || hub->next_beat > inet_loop.now + hub->beat)
		hub->next_beat = inet_loop.now + hub->beat;
	if (inet_loop.now + wait < hub->until)
		hub->until = inet_loop.now + wait;
	ctl_service_due(hub->until);
	ctl_service_due(hub->next_beat);
	if (hub->nhere == hub->nranks)
		all_here(hub);
}
