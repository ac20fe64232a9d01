/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hierarchical: inside a host first, then between hosts, then inside again. Of each byte of the buffer only the host's sum
 * travels over the network, not each rank's.
 *
 * The ranks of a host have places. Hosts may have different numbers of ranks; the smallest number is that of the carriers: the
 * ranks at the first places of every host, of which those at the same place form a ring through all hosts. Part (h, j) ends
 * at host h, and carrier j mod carriers has it in every host. all_reduce cuts the buffer into a part for each carrier; the
 * others have a part for each rank, so a carrier may have several of a host, and some belong to ranks that carry nothing. These
 * go round one after the other, in rounds: in each a carrier has at most one part of each host, so that a ring never holds more
 * than its connections do.
 *
 * In turn k, every host reduces what goes round: each of its ranks sends its input of part (s, j), s = h - 1 - k, to the
 * part's carrier, which reduces all of them with what came from the host before and sends it to the next host, in one
 * primitive. After a round (h, j) is whole at its carrier. Gathering is the same backwards: what comes from the host before
 * goes to the output, to the next host and to all neighbours.
 *
 * A host has no more ranks than a primitive has peers.
 */
#include <stdlib.h>

#include "coll/coll.h"
#include "device/k_prim.h"

struct places {
	int hosts, carriers;
	int h, l;   /* mine */
	int *size;  /* ranks of a host */
	int *ranks; /* hosts * GANTRY_PRIM_PEERS: by host and place */
	bool own;   /* every rank has a part, not every carrier */
};

static void places_free(struct places *p)
{
	free(p->size);
	free(p->ranks);
}

/* false: no memory, or a host has too many ranks. */
static bool find_places(const struct coll_topo *t, enum coll_kind kind, struct places *p)
{
	bool ok;

	*p = (struct places){.hosts = t->nhosts, .own = kind != COLL_ALL_REDUCE, .carriers = GANTRY_PRIM_PEERS};
	p->size = calloc((size_t)t->nhosts, sizeof(*p->size));
	p->ranks = calloc((size_t)t->nhosts * GANTRY_PRIM_PEERS, sizeof(*p->ranks));
	ok = p->size && p->ranks;
	for (int i = 0; ok && i < t->nranks; i++) {
		int h = t->host[i], l = p->size[h]++;

		ok = l < GANTRY_PRIM_PEERS;
		if (!ok)
			break;
		p->ranks[h * GANTRY_PRIM_PEERS + l] = i;
		if (i == t->rank) {
			p->h = h;
			p->l = l;
		}
	}
	for (int h = 0; ok && h < t->nhosts; h++)
		p->carriers = p->size[h] < p->carriers ? p->size[h] : p->carriers;
	return ok;
}

static bool hier_supports(const struct coll_topo *topo, enum coll_kind kind)
{
	struct places p = {0};
	bool ok = kind == COLL_ALL_REDUCE || kind == COLL_ALL_GATHER || kind == COLL_REDUCE_SCATTER;

	ok = ok && topo->nhosts > 1 && topo->nranks > topo->nhosts && find_places(topo, kind, &p);
	places_free(&p);
	return ok;
}

static int host_at(const struct places *p, int h)
{
	return (h % p->hosts + p->hosts) % p->hosts;
}

static int rank_at(const struct places *p, int h, int l)
{
	return p->ranks[host_at(p, h) * GANTRY_PRIM_PEERS + l];
}

static int parts_of(const struct places *p, int h)
{
	return p->own ? p->size[host_at(p, h)] : p->carriers;
}

static uint32_t part_at(const struct places *p, int h, int j)
{
	return (uint32_t)(p->own ? rank_at(p, h, j) : host_at(p, h) * p->carriers + j);
}

/* The others of my host, the next one first, and behind them a rank of another host, if there is one to name. */
static uint32_t list_neighbours(const struct places *p, int other, int *ret)
{
	int size = p->size[p->h];
	uint32_t n = 0;

	for (int i = 1; i < size; i++)
		ret[n++] = rank_at(p, p->h, (p->l + i) % size);
	if (other >= 0)
		ret[n++] = other;
	return n;
}

/* In round q each carrier has one part of each host, if that has so many: the q-th of its own there. */
static int part_in(const struct places *p, int q, int carrier)
{
	return q * p->carriers + carrier;
}

static int count_rounds(const struct places *p)
{
	int most = p->carriers;

	for (int h = 0; p->own && h < p->hosts; h++)
		most = p->size[h] > most ? p->size[h] : most;
	return (most + p->carriers - 1) / p->carriers;
}

/* My inputs of the parts of a host that others carry, to those from the next one on. */
static void send_inputs(struct coll_builder *b, const struct places *p, int q, int host)
{
	for (int i = 1; i <= p->carriers; i++) {
		int carrier = (p->l + i) % p->carriers, j = part_in(p, q, carrier);

		if (carrier != p->l && j < parts_of(p, host))
			coll_add_one(b, GANTRY_PRIM_SEND, part_at(p, host, j), -1, rank_at(p, p->h, carrier), 0);
	}
}

/* A part that I carry, in turn k. gather: what is whole goes on at once. */
static void reduce_part(struct coll_builder *b, const struct places *p, int k, int j, bool gather)
{
	int from[GANTRY_PRIM_PEERS], to[GANTRY_PRIM_PEERS], next = rank_at(p, p->h + 1, p->l);
	bool last = k == p->hosts - 1;
	struct coll_spec s = {
		.what = PRIM_IN, .part = part_at(p, p->h - 1 - k, j), .recv = from, .send = to, .last = last};

	s.nrecv = list_neighbours(p, k ? rank_at(p, p->h - 1, p->l) : -1, from);
	if (!last) {
		to[s.nsend++] = next;
	} else if (j != p->l) {
		to[s.nsend++] = rank_at(p, p->h, j);
	} else {
		s.what |= PRIM_OUT;
		s.nsend = gather ? list_neighbours(p, next, to) : 0;
	}
	s.what |= (s.nsend ? PRIM_SEND : 0u) | (s.nrecv ? PRIM_RECV : 0u);
	coll_add(b, &s);
}

static void reduce_round(struct coll_builder *b, const struct places *p, int q, bool gather)
{
	for (int k = 0; k < p->hosts; k++) {
		int host = p->h - 1 - k, j = part_in(p, q, p->l);

		send_inputs(b, p, q, host);
		if (p->l < p->carriers && j < parts_of(p, host))
			reduce_part(b, p, k, j, gather);
	}
	if (q && p->l / p->carriers == q)
		coll_add_one(b, GANTRY_PRIM_RECV, part_at(p, p->h, p->l), rank_at(p, p->h, p->l % p->carriers), -1, 0);
}

/* What neighbours have sent to all of us, which I send on if I carry it and they do not. */
static void gather_host(struct coll_builder *b, const struct places *p, int q)
{
	int size = p->size[p->h], next = rank_at(p, p->h + 1, p->l);

	for (int i = 1; i < size; i++) {
		int j = (p->l + i) % size, from = rank_at(p, p->h, j);

		if (j >= parts_of(p, p->h) || j / p->carriers != q)
			continue;
		if (j % p->carriers == p->l)
			coll_add_one(b, GANTRY_PRIM_RECV_COPY_SEND, part_at(p, p->h, j), from, next, 0);
		else
			coll_add_one(b, GANTRY_PRIM_RECV, part_at(p, p->h, j), from, -1, 0);
	}
}

/* The parts of the host t before mine. */
static void gather_turn(struct coll_builder *b, const struct places *p, int q, int t)
{
	int to[GANTRY_PRIM_PEERS], prev = rank_at(p, p->h - 1, p->l), host = p->h - t, j = part_in(p, q, p->l);
	struct coll_spec s = {.what = GANTRY_PRIM_RECV, .recv = &prev, .nrecv = 1, .send = to};

	if (p->l < p->carriers && j < parts_of(p, host)) {
		s.part = part_at(p, host, j);
		s.nsend = list_neighbours(p, t < p->hosts - 1 ? rank_at(p, p->h + 1, p->l) : -1, to);
		s.what |= s.nsend ? PRIM_SEND : 0u;
		coll_add(b, &s);
	}
	for (int i = 1; i <= p->carriers; i++) {
		int carrier = (p->l + i) % p->carriers;

		j = part_in(p, q, carrier);
		if (carrier != p->l && j < parts_of(p, host))
			coll_add_one(b, GANTRY_PRIM_RECV, part_at(p, host, j), rank_at(p, p->h, carrier), -1, 0);
	}
}

/* own: what is mine has not been sent yet. */
static void gather_round(struct coll_builder *b, const struct places *p, int q, bool own)
{
	int to[GANTRY_PRIM_PEERS];

	if (own && p->l / p->carriers == q)
		coll_add_sends(b, GANTRY_PRIM_COPY_SEND, PRIM_IN, part_at(p, p->h, p->l), to,
			       list_neighbours(p, q ? -1 : rank_at(p, p->h + 1, p->l), to));
	gather_host(b, p, q);
	for (int t = 1; t < p->hosts; t++)
		gather_turn(b, p, q, t);
}

static void hier_plan(struct coll_builder *b)
{
	struct places p;

	if (!find_places(b->topo, b->kind, &p)) {
		b->no_memory = true; /* hier_supports() has seen that they are few enough */
	} else if (b->kind == COLL_ALL_REDUCE) {
		b->plan->nparts = (uint32_t)(p.hosts * p.carriers);
		reduce_round(b, &p, 0, true);
		gather_round(b, &p, 0, false);
	} else {
		for (int q = 0; q < count_rounds(&p); q++) {
			if (b->kind == COLL_ALL_GATHER)
				gather_round(b, &p, q, true);
			else
				reduce_round(b, &p, q, false);
		}
	}
	places_free(&p);
}

static struct coll_hops hier_hops(const struct coll_topo *topo, enum coll_kind kind)
{
	uint32_t between = (uint32_t)topo->nhosts - 1;

	return kind == COLL_ALL_REDUCE ? (struct coll_hops){2, 2 * between} : (struct coll_hops){1, between};
}

const struct coll_algo coll_hier = {
	.name = "hier", .chunks = 2, .supports = hier_supports, .plan = hier_plan, .hops = hier_hops};
