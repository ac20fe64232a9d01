/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allgathers, at the hub.
 *
 * The hub puts the parts together and sends the whole to every rank. A rank that is gone and parts of different sizes
 * fail it for all, by name; the failure is kept, because some ranks come to it only later. A rank that has got the
 * failure may begin the next one meanwhile. A rank that is here and has not come is late, and has no deadline but
 * GANTRY_CALL_TIMEOUT.
 *
 * In an exchange (ctl_exchange.h) the parts do not come here: ranks report that they begin, with the size of their
 * parts, and then that they have all. The causes of failure, and the rank that is named, are the same; but once all
 * have begun there is a deadline.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "ctl/ctl_member.h"
#include "ctl/hub_priv.h"

/* The allgather that is open does not need this rank any more. */
static bool is_through(const struct hub_rank *rank)
{
	return rank->hub->exchange && rank->hub->gather.size ? rank->has : rank->gave;
}

/* The one that is open waits for it: to come to it, or, in an exchange to which all have come, to have all parts. */
static bool is_missing(const struct hub_rank *rank)
{
	return rank->hub->gather.count < rank->hub->nranks ? !rank->gave : !is_through(rank);
}

static void tell_gathered(struct hub_rank *rank, uint64_t number, gantry_result why, const char *text)
{
	const struct inet_header h = {.kind = CTL_GATHERED, .from = -1, .tag = number, .result = why};

	inet_stream_write(rank->conn, inet_queued_make(hub_text_frame(h, text)));
}

void hub_gather_drop(struct hub *hub)
{
	struct hub_gather *g = &hub->gather;

	inet_frame_put(g->buf);
	g->buf = NULL;
	g->open = 0;
}

/* Ranks that contributed get the failure now; the others when they come. */
static void fail_gather(struct hub *hub, gantry_result why, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail_gather(struct hub *hub, gantry_result why, const char *fmt, ...)
{
	struct hub_gather *g = &hub->gather;
	va_list ap;

	ASSERT(g->open);
	va_start(ap, fmt);
	vsnprintf(g->text, sizeof(g->text), fmt, ap);
	va_end(ap);
	g->error = why;
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE && hub->ranks[i].gave)
			tell_gathered(&hub->ranks[i], g->number, why, g->text);
	hub_gather_drop(hub);
}

void hub_gather_without(const struct hub_rank *rank)
{
	char rank_name[HUB_RANK_TEXT];

	if (rank->hub->gather.open && !is_through(rank))
		fail_gather(rank->hub, rank->why, "allgather failed: %s %s", hub_rank_text(rank, rank_name),
			    rank->why == GANTRY_ERR_PEER_CLOSED ? "has left" : "is lost");
}

static void tell_late(struct hub *hub) REQUIRES(loop_mu)
{
	struct hub_gather *g = &hub->gather;
	char missing[256], seconds[16];
	uint64_t waited;

	if (g->count == hub->nranks || !hub_wait_tells(&g->wait, &waited))
		return;
	hub_list_ranks(hub, is_missing, missing, sizeof(missing));
	LOG_WARN(COMM,
		 "comm %016llx: %d of %d ranks are in a collective call (init, split, grow, window, finalize, "
		 "destroy), waiting for rank%s %s to make it too, for %s so far",
		 (unsigned long long)hub->comm_id, g->count, hub->nranks, hub->nranks - g->count == 1 ? "" : "s",
		 missing, ctl_seconds(waited, seconds));
}

void hub_gather_tick(struct hub *hub)
{
	struct hub_gather *g = &hub->gather;
	char missing[256], seconds[16];

	if (!g->open)
		return;
	if (inet_loop.now < g->deadline) {
		ctl_service_due(g->deadline);
		tell_late(hub);
		return;
	}
	hub_list_ranks(hub, is_missing, missing, sizeof(missing));
	if (g->count == hub->nranks) {
		fail_gather(hub, GANTRY_ERR_TIMEOUT,
			    "only %d of %d ranks received all parts of an allgather in time; missing: %s", g->nhave,
			    hub->nranks, missing);
		return;
	}
	fail_gather(hub, GANTRY_ERR_TIMEOUT,
		    "only %d of %d ranks called allgather within %s (GANTRY_CALL_TIMEOUT); missing: %s", g->count,
		    hub->nranks, ctl_seconds(hub->call_timeout, seconds), missing);
}

/* Of a part. An exchange: as the rank says, UINT32_MAX if it says nonsense. */
static uint32_t part_size(const struct hub *hub, const struct inet_header *h, const uint8_t *body)
{
	if (!hub->exchange)
		return h->size;
	return h->size == 4 ? get32(body) : UINT32_MAX;
}

/* Without memory for the whole, the first part that is given fails it. */
static void begin_gather(struct hub *hub, const struct inet_header *h, uint32_t size) REQUIRES(loop_mu)
{
	struct hub_gather *g = &hub->gather;
	struct inet_header whole = {.kind = CTL_GATHERED, .from = -1, .to = -1, .tag = h->tag};

	ASSERT(!g->open && !g->buf);
	whole.size = hub->exchange ? 0 : (uint32_t)hub->nranks * size;
	g->buf = inet_frame_make(&whole, NULL);
	g->number = h->tag;
	g->size = size;
	g->count = g->nhave = 0;
	g->error = GANTRY_OK;
	g->open = 1;
	g->deadline = hub->call_timeout ? inet_loop.now + hub->call_timeout : UINT64_MAX;
	ctl_service_due(g->deadline);
	hub_wait_begin(&g->wait);
	for (int i = 0; i < hub->nranks; i++)
		hub->ranks[i].gave = hub->ranks[i].has = 0;
}

static const struct hub_rank *somebody_gone(const struct hub *hub)
{
	for (int i = 0; i < hub->nranks && hub->nhere < hub->nranks; i++)
		if (hub->ranks[i].state != HUB_HERE && !is_through(&hub->ranks[i]))
			return &hub->ranks[i];
	return NULL;
}

static void end_gather(struct hub *hub)
{
	struct hub_gather *g = &hub->gather;

	ASSERT(g->open && g->count == hub->nranks);
	hub_tell_all(hub, g->buf);
	g->buf = NULL;
	g->open = 0;
}

static void give_part(struct hub_rank *rank, uint32_t size, const uint8_t *body) REQUIRES(loop_mu)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;
	const struct hub_rank *missing = somebody_gone(hub);
	char rank_name[HUB_RANK_TEXT];

	ASSERT(g->open && !rank->gave);
	rank->gave = 1;
	if (!g->buf) {
		fail_gather(hub, GANTRY_ERR_NOMEM, "no memory at the bootstrap root for an allgather of %u bytes",
			    size);
		return;
	}
	if (missing) {
		hub_gather_without(missing);
		return;
	}
	if (size != g->size) {
		fail_gather(hub, GANTRY_ERR_USAGE, "allgather sizes differ: %s contributed %u bytes, others %u",
			    hub_rank_text(rank, rank_name), size, g->size);
		return;
	}
	if (size && !hub->exchange)
		memcpy(g->buf->bytes + INET_HEADER_SIZE + (size_t)hub_rank_index(rank) * size, body, size);
	if (++g->count < hub->nranks)
		return;
	if (hub->exchange && size) {
		/* A rank that cannot reach another says so by GANTRY_CONNECT_TIMEOUT: this is for those that do not. */
		g->deadline = inet_loop.now + CTL_GATHER_TIMES * hub->connect_timeout;
		ctl_service_due(g->deadline);
		return;
	}
	end_gather(hub);
}

int hub_hear_have(struct hub_rank *rank, const struct inet_header *h, const uint8_t *body)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;
	char rank_name[HUB_RANK_TEXT], cause[CTL_TEXT_MAX];

	if (!hub->exchange || h->tag != g->number || !g->open || !rank->gave || rank->has)
		return 0; /* it has failed meanwhile, and the rank has got the failure */
	if (h->result != GANTRY_OK) {
		ctl_get_text(cause, sizeof(cause), body, h->size);
		fail_gather(hub, (gantry_result)h->result, "%s: %s", hub_rank_text(rank, rank_name), cause);
		return 0;
	}
	rank->has = 1;
	if (++g->nhave == hub->nranks)
		end_gather(hub);
	return 0;
}

int hub_hear_gather(struct hub_rank *rank, const struct inet_header *h, const uint8_t *body)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;
	uint32_t size = part_size(hub, h, body);

	if (h->tag < g->number || (h->tag == g->number && !g->open)) {
		/* The others are through with it: it failed, or this rank does not count as they do. */
		if (g->error == GANTRY_OK)
			tell_gathered(rank, h->tag, GANTRY_ERR_USAGE, "the other ranks have started a later allgather");
		else
			tell_gathered(rank, h->tag, g->error, g->text);
		return 0;
	}
	if (h->tag == g->number && rank->gave) {
		hub_rank_lost(rank, GANTRY_ERR_PROTOCOL, "duplicate contribution to an allgather");
		return 1;
	}
	if (h->tag > g->number && g->open)
		fail_gather(hub, GANTRY_ERR_USAGE, "rank %d has started a later allgather", hub_rank_index(rank));
	if (h->tag > g->number)
		begin_gather(hub, h, size);
	give_part(rank, size, body);
	return 0;
}
