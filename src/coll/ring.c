/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings: every rank sends to the next one and receives from the one before. Bytes are spread over all connections
 * evenly, whatever the number of ranks; a byte travels as many hops as there are ranks, so this is for large buffers.
 *
 * Reductions: part p begins at rank p + 1, goes round and is complete at rank p. All-gather: part p begins at rank p.
 */
#include "coll/coll.h"
#include "device/k_prim.h"

static bool ring_supports(const struct coll_topo *topo, enum coll_kind kind)
{
	(void)topo;
	return kind != COLL_ALL_TO_ALL;
}

static uint32_t wrap_part(int part, int n)
{
	return (uint32_t)((part % n + n) % n);
}

static void reduce_round(struct coll_builder *b, int prev, int next, uint32_t end)
{
	int r = b->topo->rank, n = b->topo->nranks;

	coll_add_one(b, GANTRY_PRIM_SEND, wrap_part(r - 1, n), -1, next, 0);
	for (int k = 2; k < n; k++)
		coll_add_one(b, GANTRY_PRIM_RECV_REDUCE_SEND, wrap_part(r - k, n), prev, next, 0);
	coll_add_one(b, end, (uint32_t)r, prev, end & PRIM_SEND ? next : -1, 1);
}

static void gather_round(struct coll_builder *b, int prev, int next)
{
	int r = b->topo->rank, n = b->topo->nranks;

	for (int k = 1; k < n - 1; k++)
		coll_add_one(b, GANTRY_PRIM_RECV_COPY_SEND, wrap_part(r - k, n), prev, next, 0);
	coll_add_one(b, GANTRY_PRIM_RECV, wrap_part(r + 1, n), prev, -1, 0);
}

static void ring_plan(struct coll_builder *b)
{
	int r = b->topo->rank, n = b->topo->nranks, next = (r + 1) % n, prev = (r + n - 1) % n;

	switch (b->kind) {
	case COLL_ALL_REDUCE:
		b->plan->nparts = (uint32_t)n;
		reduce_round(b, prev, next, GANTRY_PRIM_RECV_REDUCE_COPY_SEND);
		gather_round(b, prev, next);
		break;
	case COLL_REDUCE_SCATTER:
		reduce_round(b, prev, next, GANTRY_PRIM_RECV_REDUCE_COPY);
		break;
	case COLL_ALL_GATHER:
		coll_add_one(b, GANTRY_PRIM_COPY_SEND, (uint32_t)r, -1, next, 0);
		gather_round(b, prev, next);
		break;
	case COLL_BROADCAST:
		if (r == b->root)
			coll_add_one(b, GANTRY_PRIM_COPY_SEND, 0, -1, next, 0);
		else if (next == b->root)
			coll_add_one(b, GANTRY_PRIM_RECV, 0, prev, -1, 0);
		else
			coll_add_one(b, GANTRY_PRIM_RECV_COPY_SEND, 0, prev, next, 0);
		break;
	default: /* COLL_REDUCE */
		if (r == b->root)
			coll_add_one(b, GANTRY_PRIM_RECV_REDUCE_COPY, 0, prev, -1, 1);
		else if (prev == b->root)
			coll_add_one(b, GANTRY_PRIM_SEND, 0, -1, next, 0);
		else
			coll_add_one(b, GANTRY_PRIM_RECV_REDUCE_SEND, 0, prev, next, 0);
	}
}

static struct coll_hops ring_hops(const struct coll_topo *topo, enum coll_kind kind)
{
	uint32_t n = (uint32_t)topo->nranks, all = kind == COLL_ALL_REDUCE ? 2 * (n - 1) : n - 1, between = 0;

	for (uint32_t i = 0; i < n; i++)
		between += topo->host[i] != topo->host[(i + 1) % n];
	between = all * between / n;
	return (struct coll_hops){all - between, between};
}

const struct coll_algo coll_ring = {
	.name = "ring", .chunks = 2, .supports = ring_supports, .plan = ring_plan, .hops = ring_hops};
