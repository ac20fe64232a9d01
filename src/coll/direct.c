/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct: one hop, every rank with every other one.
 *
 * All-reduce: every rank sends everything to every other rank, and each reduces for itself, in the order of ranks: the
 * same bits everywhere, in the time of one message. That is n - 1 times the bytes, so for small buffers; and for no
 * more
 * ranks than a primitive has peers, for partial results would stand in the output, which in place is the input that is still to be
 * added. The others are reduced at one place, own input first, and know no such limit.
 *
 * direct2: the same for larger all-reduces, in two hops with the bytes of a ring: rank p gets and reduces part p, and
 * sends the result to all. Each of these is a chunk later than the one before, so that a rank has other chunks to work
 * on while one is on its way:
 *
 *   chunk                0       1       2       3
 *   send parts           0       1       2       3
 *   reduce, send sums            0       1       2
 *   receive sums                         0       1
 *
 * A connection carries two chunks in a turn, and a rank may be a turn ahead of the other: three chunks, or four, since
 * they must divide the steps.
 */
#include "coll/coll.h"
#include "device/k_prim.h"

/* Connections of a rank in each direction, each with rings of its own. */
enum { DIRECT_RANKS = 32 };
enum { DIRECT2_DELAY = 1, DIRECT2_CHUNKS = 4 };

static bool direct_supports(const struct coll_topo *topo, enum coll_kind kind)
{
	return topo->nranks <= (kind == COLL_ALL_REDUCE ? GANTRY_PRIM_PEERS + 1 : DIRECT_RANKS);
}

static bool direct2_supports(const struct coll_topo *topo, enum coll_kind kind)
{
	return kind == COLL_ALL_REDUCE && topo->nranks <= DIRECT_RANKS;
}

/* All ranks but this one, from the next one on: not all begin with the same. */
static uint32_t list_others(const struct coll_builder *b, int *ret)
{
	int r = b->topo->rank, n = b->topo->nranks;

	for (int i = 1; i < n; i++)
		ret[i - 1] = (r + i) % n;
	return (uint32_t)n - 1;
}

static void all_reduce(struct coll_builder *b)
{
	int peers[DIRECT_RANKS] = {0}, r = b->topo->rank;
	uint32_t n = list_others(b, peers);

	coll_add_sends(b, GANTRY_PRIM_SEND, PRIM_IN, 0, peers, n);
	for (int i = 0; i < (int)n; i++)
		peers[i] = i < r ? i : i + 1;
	coll_add(b, &(struct coll_spec){.what = GANTRY_PRIM_RECV_REDUCE_COPY,
					.recv = peers,
					.nrecv = n,
					.in_at = (uint32_t)r,
					.last = 1});
}

/* Each part to whose it is. */
static void send_parts(struct coll_builder *b, const int *peers, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		coll_add_one(b, GANTRY_PRIM_SEND, (uint32_t)peers[i], -1, peers[i], 0);
}

/* Backwards: what the nearest rank below sent first comes first. */
static void recv_parts(struct coll_builder *b, const int *peers, uint32_t n)
{
	for (uint32_t i = n; i-- > 0;)
		coll_add_one(b, GANTRY_PRIM_RECV, (uint32_t)peers[i], peers[i], -1, 0);
}

static void direct_plan(struct coll_builder *b)
{
	int peers[DIRECT_RANKS] = {0}, r = b->topo->rank;
	uint32_t n = list_others(b, peers);

	switch (b->kind) {
	case COLL_ALL_REDUCE:
		all_reduce(b);
		break;
	case COLL_REDUCE_SCATTER:
		send_parts(b, peers, n);
		coll_add_reduce(b, (uint32_t)r, peers, n);
		break;
	case COLL_ALL_GATHER:
		coll_add_sends(b, GANTRY_PRIM_COPY_SEND, PRIM_IN, (uint32_t)r, peers, n);
		recv_parts(b, peers, n);
		break;
	case COLL_BROADCAST:
		if (r == b->root)
			coll_add_sends(b, GANTRY_PRIM_COPY_SEND, PRIM_IN, 0, peers, n);
		else
			coll_add_one(b, GANTRY_PRIM_RECV, 0, b->root, -1, 0);
		break;
	case COLL_ALL_TO_ALL:
		send_parts(b, peers, n);
		coll_add_one(b, PRIM_IN | PRIM_OUT, (uint32_t)r, -1, -1, 0);
		recv_parts(b, peers, n);
		break;
	default: /* COLL_REDUCE */
		if (r == b->root)
			coll_add_reduce(b, 0, peers, n);
		else
			coll_add_one(b, GANTRY_PRIM_SEND, 0, -1, b->root, 0);
	}
}

static void direct2_plan(struct coll_builder *b)
{
	int peers[DIRECT_RANKS] = {0}, r = b->topo->rank;
	uint32_t n = list_others(b, peers);

	b->plan->nparts = n + 1;
	send_parts(b, peers, n);
	b->delay += DIRECT2_DELAY;
	coll_add_reduce(b, (uint32_t)r, peers, n);
	coll_add_sends(b, PRIM_ACC | PRIM_SEND, PRIM_ACC, (uint32_t)r, peers, n);
	b->delay += DIRECT2_DELAY;
	recv_parts(b, peers, n);
}

static struct coll_hops direct_hops(const struct coll_topo *topo, enum coll_kind kind)
{
	(void)kind;
	return coll_hops_any(topo, 1);
}

static struct coll_hops hops2(const struct coll_topo *topo, enum coll_kind kind)
{
	(void)kind;
	return coll_hops_any(topo, 2);
}

const struct coll_algo coll_direct = {.name = "direct",
				      .chunks = 1,
				      .supports = direct_supports,
				      .plan = direct_plan,
				      .hops = direct_hops,
				      .overwrites = true};
const struct coll_algo coll_direct2 = {
	.name = "direct2", .chunks = DIRECT2_CHUNKS, .supports = direct2_supports, .plan = direct2_plan, .hops = hops2};
