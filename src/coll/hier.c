/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hierarchical: inside a host first, then between the ranks that have the same place in their hosts, then inside again.
 * Of each byte of the buffer only the host's sum travels over the network, not each rank's.
 *
 * Parts are named like ranks: part (h, l) is for place l, and ends at host h. In turn k, every host reduces what goes
 * round in a ring of hosts: each rank of a host sends its input of part (s, l), s = h - 1 - k, to its neighbour at
 * place l, which reduces all of them with what came from the host before and sends it to the next host, in one
 * primitive. After
 * a round (h, l) is whole at its rank. Gathering is the same backwards: what comes from the host before goes to the
 * output, to the next host and to all neighbours.
 *
 * Hosts have equal numbers of ranks, at most as many as a primitive has peers.
 */
#include <stdlib.h>

#include "coll/coll.h"
#include "device/k_prim.h"

struct places {
	int hosts, per_host;
	int h, l;   /* mine */
	int *ranks; /* hosts * per_host */
};

static bool find_places(const struct coll_topo *t, struct places *p)
{
	int *n = calloc((size_t)t->nhosts, sizeof(*n));
	bool equal = true;

	p->hosts = t->nhosts;
	p->per_host = t->nranks / t->nhosts;
	p->ranks = calloc((size_t)t->nranks, sizeof(*p->ranks));
	for (int i = 0; n && p->ranks && equal && i < t->nranks; i++) {
		int h = t->host[i], l = n[h]++;

		equal = l < p->per_host;
		if (!equal)
			break;
		p->ranks[h * p->per_host + l] = i;
		if (i == t->rank) {
			p->h = h;
			p->l = l;
		}
	}
	equal = equal && n && p->ranks && t->nranks % t->nhosts == 0;
	free(n);
	return equal;
}

static bool hier_supports(const struct coll_topo *topo, enum coll_kind kind)
{
	struct places p = {0};
	bool ok = kind == COLL_ALL_REDUCE || kind == COLL_ALL_GATHER || kind == COLL_REDUCE_SCATTER;

	ok = ok && topo->nhosts > 1 && topo->nranks > topo->nhosts &&
	     topo->nranks / topo->nhosts <= GANTRY_PRIM_PEERS && find_places(topo, &p);
	free(p.ranks);
	return ok;
}

static int rank_at(const struct places *p, int h, int l)
{
	return p->ranks[(h % p->hosts + p->hosts) % p->hosts * p->per_host + l];
}

/* The others of my host, the next one first, and behind them a rank of another host, if there is one to name. */
static uint32_t list_neighbours(const struct places *p, int other, int *ret)
{
	uint32_t n = 0;

	for (int i = 1; i < p->per_host; i++)
		ret[n++] = rank_at(p, p->h, (p->l + i) % p->per_host);
	if (other >= 0)
		ret[n++] = other;
	return n;
}

/* gather: the result goes on at once. */
static void reduce_round(struct coll_builder *b, const struct places *p, bool gather)
{
	int from[GANTRY_PRIM_PEERS], to[GANTRY_PRIM_PEERS], next = rank_at(p, p->h + 1, p->l);

	for (int k = 0; k < p->hosts; k++) {
		bool last = k == p->hosts - 1;
		struct coll_spec s = {.what = PRIM_IN | PRIM_RECV,
				      .part = (uint32_t)rank_at(p, p->h - 1 - k, p->l),
				      .recv = from,
				      .send = last ? to : &next,
				      .nsend = 1,
				      .last = last};

		for (int i = 1; i < p->per_host; i++) {
			int l = (p->l + i) % p->per_host;

			coll_add_one(b, GANTRY_PRIM_SEND, (uint32_t)rank_at(p, p->h - 1 - k, l), -1,
				     rank_at(p, p->h, l), 0);
		}
		s.nrecv = list_neighbours(p, k ? rank_at(p, p->h - 1, p->l) : -1, from);
		if (last) {
			s.what |= PRIM_OUT;
			s.nsend = gather ? list_neighbours(p, next, to) : 0;
		}
		s.what |= s.nsend ? PRIM_SEND : 0u;
		coll_add(b, &s);
	}
}

/* What my neighbours got or made in turn j. */
static void recv_from_neighbours(struct coll_builder *b, const struct places *p, int j)
{
	for (int i = 1; i < p->per_host; i++) {
		int l = (p->l + i) % p->per_host;

		coll_add_one(b, GANTRY_PRIM_RECV, (uint32_t)rank_at(p, p->h - j, l), rank_at(p, p->h, l), -1, 0);
	}
}

/* Turn 0, by which my own part is sent, is behind us. */
static void gather_round(struct coll_builder *b, const struct places *p)
{
	int to[GANTRY_PRIM_PEERS], prev = rank_at(p, p->h - 1, p->l);

	recv_from_neighbours(b, p, 0);
	for (int j = 1; j < p->hosts; j++) {
		struct coll_spec s = {.what = GANTRY_PRIM_RECV_COPY_SEND,
				      .part = (uint32_t)rank_at(p, p->h - j, p->l),
				      .recv = &prev,
				      .nrecv = 1,
				      .send = to};

		s.nsend = list_neighbours(p, j < p->hosts - 1 ? rank_at(p, p->h + 1, p->l) : -1, to);
		coll_add(b, &s);
		recv_from_neighbours(b, p, j);
	}
}

static void hier_plan(struct coll_builder *b)
{
	int to[GANTRY_PRIM_PEERS];
	struct places p = {0};

	if (!find_places(b->topo, &p)) {
		b->no_memory = true; /* hier_supports() has seen that they are equal */
	} else if (b->kind == COLL_ALL_GATHER) {
		coll_add_sends(b, GANTRY_PRIM_COPY_SEND, PRIM_IN, (uint32_t)b->topo->rank, to,
			       list_neighbours(&p, rank_at(&p, p.h + 1, p.l), to));
		gather_round(b, &p);
	} else if (b->kind == COLL_REDUCE_SCATTER) {
		reduce_round(b, &p, false);
	} else {
		b->plan->nparts = (uint32_t)b->topo->nranks;
		reduce_round(b, &p, true);
		gather_round(b, &p);
	}
	free(p.ranks);
}

static struct coll_hops hier_hops(const struct coll_topo *topo, enum coll_kind kind)
{
	uint32_t between = (uint32_t)topo->nhosts - 1;

	return kind == COLL_ALL_REDUCE ? (struct coll_hops){2, 2 * between} : (struct coll_hops){1, between};
}

const struct coll_algo coll_hier = {
	.name = "hier", .chunks = 2, .supports = hier_supports, .plan = hier_plan, .hops = hier_hops};
