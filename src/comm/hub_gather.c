/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allgather: the hub puts the parts together and sends everybody the whole. A rank that is gone, parts of different
 * sizes, or somebody who does not come in time fail it for all, by name; the failure is kept, because some ranks come
 * to it only later. A rank that has heard of the failure may begin the next one meanwhile.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/hub.h"

static void answer(struct hub_rank *rank, uint64_t number, gantry_result why, const char *text)
{
	struct ctl_head h = {.kind = CTL_GATHERED, .from = -1, .to = -1, .tag = number, .result = why};

	h.size = (uint32_t)strlen(text);
	ctl_conn_send(rank->conn, &h, text);
}

static void drop(struct hub_gather *g)
{
	ctl_buf_put(g->buf);
	g->buf = NULL;
	g->open = 0;
}

/* Those who gave are told; those who did not will be when they come. */
static void fail(struct hub *hub, gantry_result why, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail(struct hub *hub, gantry_result why, const char *fmt, ...)
{
	struct hub_gather *g = &hub->gather;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(g->text, sizeof(g->text), fmt, ap);
	va_end(ap);
	g->error = why;
	for (int i = 0; i < hub->nranks; i++)
		if (hub->ranks[i].state == HUB_HERE && g->given[i])
			answer(&hub->ranks[i], g->number, why, g->text);
	drop(g);
}

static int is_missing(const struct hub *hub, int rank)
{
	return !hub->gather.given[rank];
}

void hub_gather_without(struct hub *hub, const struct hub_rank *rank)
{
	struct hub_gather *g = &hub->gather;
	char who[HUB_RANK_TEXT];

	if (g->open && !g->given[rank - hub->ranks])
		fail(hub, rank->why, "allgather without %s, who %s", hub_rank_text(rank, who),
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
	fail(hub, GANTRY_ERR_TIMEOUT,
	     "%d of %d ranks came to an allgather within %s (GANTRY_CONNECT_TIMEOUT), missing: %s", g->count,
	     hub->nranks, ctl_seconds(hub->connect_timeout, seconds), missing);
}

void hub_gather_free(struct hub *hub)
{
	drop(&hub->gather);
	free(hub->gather.given);
}

/* 0: no memory, and all have been told. */
static int begin(struct hub *hub, const struct ctl_head *h) REQUIRES(loop_mu)
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

static void give(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;
	int index = (int)(rank - hub->ranks);
	const struct hub_rank *missing = somebody_gone(hub);
	char who[HUB_RANK_TEXT];

	g->given[index] = 1;
	if (missing) {
		hub_gather_without(hub, missing);
		return;
	}
	if (h->size != g->size) {
		fail(hub, GANTRY_ERR_USAGE, "allgather of different sizes: %s gives %u bytes, others %u",
		     hub_rank_text(rank, who), h->size, g->size);
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

void hub_gather_take(struct hub_rank *rank, const struct ctl_head *h, const uint8_t *body)
{
	struct hub *hub = rank->hub;
	struct hub_gather *g = &hub->gather;

	if (h->tag < g->number || (h->tag == g->number && !g->open)) {
		/* The others are through with it: it failed, or this rank does not count as they do. */
		if (g->error == GANTRY_OK)
			answer(rank, h->tag, GANTRY_ERR_USAGE, "the others are ahead in their allgathers");
		else
			answer(rank, h->tag, g->error, g->text);
		return;
	}
	if (h->tag > g->number && g->open)
		fail(hub, GANTRY_ERR_USAGE, "rank %d is ahead in its allgathers", (int)(rank - hub->ranks));
	if (h->tag > g->number && !begin(hub, h)) {
		drop(g);
		g->error = GANTRY_ERR_NOMEM;
		snprintf(g->text, sizeof(g->text), "no memory at the hub for an allgather of %u bytes", h->size);
		answer(rank, h->tag, g->error, g->text);
		return;
	}
	give(rank, h, body);
}
