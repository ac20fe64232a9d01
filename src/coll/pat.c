/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One binomial tree per part (the trees of PAT, "parallel aggregated trees"), for many ranks: a rank has as many
 * connections as the number of ranks has digits, where direct ones take one to each, and parts are not handed round the
 * whole ring.
 *
 * A rank stands at place d = rank - part in the tree of a part, and hands to d + 2^k for all 2^k below the lowest digit
 * of d that is set. All ranks are at the same place of different trees at the same time, so that every connection, by
 * 2^k ranks, is used by all.
 *
 * In which order a rank goes through its n places decides what waits for what. Places are taken in groups of 8, and of
 * the groups under way one level each:
 *
 *   turn t     group t: 0     group t - 1: 1 2 4     group t - 2: 3 5 6     group t - 3: 7
 *
 * What a turn sends is what the next turn takes, in the same order: no rank waits for two hops in one turn, no FIFO
 * holds more than a turn's worth (of which 4 are by one connection), and the number of turns is n / 8 + 3. What goes
 * from group to group, by the higher digits, waits for its turn in FIFOs of its own, one at a time.
 *
 * Up to 8 ranks have the order 0, 4, 2 6, 1 5 3 7 instead: what comes from far is handed on first. All that a rank sends by
 * one connection is there when the last of it is, and a peer needs none of it before, so these messages may join
 * (gantry_coll_step): in all, a rank sends log n times.
 *
 * Reductions are the same with time and arrows reversed.
 */
#include "coll/coll.h"
#include "device/k_prim.h"

enum { GROUP = 8, LEVELS = 4 };
static const uint8_t level_places[LEVELS][3] = {{0}, {1, 2, 4}, {3, 5, 6}, {7}};
static const uint8_t level_size[LEVELS] = {1, 3, 3, 1};
static const uint8_t far_first[GROUP] = {0, 4, 2, 6, 1, 5, 3, 7};

/* Ranks that place 0 hands to: digits of n - 1. */
static uint32_t count_digits(int n)
{
	uint32_t k = 0;

	while (1 << k < n)
		k++;
	return k;
}

static bool pat_supports(const struct coll_topo *topo, enum coll_kind kind)
{
	if (kind == COLL_ALL_GATHER)
		return true;
	/* Only the rank whose part it is has an output for partial sums; the others take all of theirs at once. */
	return (kind == COLL_ALL_REDUCE || kind == COLL_REDUCE_SCATTER) &&
	       count_digits(topo->nranks) <= GANTRY_PRIM_PEERS + 1;
}

/* The source of place d's part in this rank's tree of it, and the destination it is sent to. up: the other way. */
static int rank_by(const struct coll_builder *b, int distance, bool up)
{
	int n = b->topo->nranks;

	return (b->topo->rank + (up ? n - distance : distance)) % n;
}

static uint32_t children_of(const struct coll_builder *b, int d, bool up, int *ret)
{
	int n = b->topo->nranks;
	uint32_t count = 0;

	/* The furthest first: others hand it on. */
	for (int k = (int)count_digits(n) - 1; k >= 0; k--)
		if ((d & ((2 << k) - 1)) == 0 && d + (1 << k) < n)
			ret[count++] = rank_by(b, 1 << k, up);
	return count;
}

static void gather_place(struct coll_builder *b, int d)
{
	int children[32], n = b->topo->nranks, parent = rank_by(b, d & -d, true);
	uint32_t nchildren = children_of(b, d, false, children), part = (uint32_t)((b->topo->rank + n - d) % n);
	uint32_t first = nchildren < GANTRY_PRIM_PEERS ? nchildren : GANTRY_PRIM_PEERS;
	const struct coll_spec s = {.what = GANTRY_PRIM_RECV | (nchildren ? PRIM_SEND : 0u),
				    .part = part,
				    .recv = &parent,
				    .nrecv = 1,
				    .send = children,
				    .nsend = first};

	if (d == 0 && b->kind == COLL_ALL_GATHER) {
		coll_add_sends(b, GANTRY_PRIM_COPY_SEND, PRIM_IN, part, children, nchildren);
	} else if (d == 0) {
		coll_add_sends(b, PRIM_ACC | PRIM_SEND, PRIM_ACC, part, children, nchildren);
	} else {
		coll_add(b, &s);
		if (nchildren > first)
			coll_add_sends(b, PRIM_ACC | PRIM_SEND, PRIM_ACC, part, children + first, nchildren - first);
	}
}

static void reduce_place(struct coll_builder *b, int d)
{
	int children[32], n = b->topo->nranks, parent = rank_by(b, d & -d, false);
	uint32_t nchildren = children_of(b, d, true, children), part = (uint32_t)((b->topo->rank + d) % n);

	if (d == 0) {
		coll_add_reduce(b, part, children, nchildren);
		return;
	}
	coll_add(b, &(struct coll_spec){.what = PRIM_IN | PRIM_SEND | (nchildren ? PRIM_RECV : 0u),
					.part = part,
					.recv = children,
					.nrecv = nchildren,
					.send = &parent,
					.nsend = 1});
}

/* All places, or backwards: of one group the furthest first, else in the order of turns. */
static void each_place(struct coll_builder *b, bool backwards, void (*place)(struct coll_builder *b, int d))
{
	int n = b->topo->nranks, turns = (n + GROUP - 1) / GROUP + LEVELS - 1;

	for (int i = 0; i < GROUP && n <= GROUP; i++) {
		int d = far_first[backwards ? GROUP - 1 - i : i];

		if (d < n)
			place(b, d);
	}
	if (n <= GROUP)
		return;
	for (int i = 0; i < turns * GROUP; i++) {
		int k = backwards ? turns * GROUP - 1 - i : i, turn = k / GROUP, at = k % GROUP, level = LEVELS - 1, d;

		/* Groups that began earlier come first. */
		for (; at >= level_size[level]; level--)
			at -= level_size[level];
		d = (turn - level) * GROUP + level_places[level][at];
		if (turn >= level && d < n)
			place(b, d);
	}
}

static void pat_plan(struct coll_builder *b)
{
	if (b->kind == COLL_ALL_REDUCE)
		b->plan->nparts = (uint32_t)b->topo->nranks;
	if (b->kind != COLL_ALL_GATHER)
		each_place(b, true, reduce_place);
	if (b->kind != COLL_REDUCE_SCATTER)
		each_place(b, false, gather_place);
	if (coll_by_rank(b->kind) && b->topo->nranks <= GROUP)
		coll_join_messages(b);
}

/* One for each turn. */
static struct coll_hops pat_hops(const struct coll_topo *topo, enum coll_kind kind)
{
	uint32_t groups = (uint32_t)(topo->nranks + GROUP - 1) / GROUP;
	uint32_t turns = groups > 1 ? groups + LEVELS - 2 : count_digits(topo->nranks);

	return coll_hops_any(topo, kind == COLL_ALL_REDUCE ? 2 * turns : turns);
}

const struct coll_algo coll_pat = {
	.name = "pat", .chunks = 4, .supports = pat_supports, .plan = pat_plan, .hops = pat_hops};
