/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Through the network's reduction: the ranks of a host send to the first of them, which adds its own input and sends the
 * host's sum to the network. What comes back is the sum of all hosts, and goes to the output and to the others.
 *
 * A reduce is the same, but that one rank alone gets the result, and the leaders of other hosts drop it. A reduce-scatter
 * does that for each part and the rank whose it is. All hosts receive all parts: no more bytes than they send. An all_gather
 * does not go this way: a host has to receive the parts of all others, by rings it sends no more (docs/reducer.md).
 *
 *   chunk                  0       1       2       3       4
 *   send, reduce, send     0       1       2       3       4
 *   receive, send on                               0       1
 *
 * The network is a peer like any other, but that it has no rank: it stands in the plan as the rank itself. All hosts send
 * it the same chunks in the same order, for only what all have sent comes back. A chunk is on its way while the next ones
 * are sent: COLLNET_DELAY of them and the one that is worked on, half of them on the way there, half on the way back.
 */
#include "coll/coll.h"
#include "device/k_prim.h"

enum { COLLNET_CHUNKS = 2, COLLNET_DELAY = 2 * COLLNET_CHUNKS - 1 };

/* The first place of a host. */
static int leader_of(const struct coll_topo *topo, int place)
{
	int i = 0;

	while (topo->host[i] != topo->host[place])
		i++;
	return i;
}

/* Ranks of the fullest host. */
static int largest_host(const struct coll_topo *topo)
{
	int most = 0;

	for (int i = 0; i < topo->nranks; i++) {
		int n = 0;

		for (int k = 0; leader_of(topo, i) == i && k < topo->nranks; k++)
			n += topo->host[k] == topo->host[i];
		most = n > most ? n : most;
	}
	return most;
}

const char *coll_network_refuses(const struct coll_topo *topo)
{
	if (topo->nhosts < 2)
		return "all ranks are on one host";
	if (largest_host(topo) > GANTRY_PRIM_PEERS + 1)
		return "a host has more than 9 ranks";
	return NULL;
}
_Static_assert(GANTRY_PRIM_PEERS == 8, "as stated above");

static bool collnet_supports(const struct coll_topo *topo, enum coll_kind kind)
{
	return topo->network && coll_reduces(kind) && !coll_network_refuses(topo);
}

/* What a host's rank needs to know of its host. */
struct host {
	int me, leader, peers[GANTRY_PRIM_PEERS]; /* peers: the others, for the leader */
	uint32_t n;
};

static void find_host(const struct coll_topo *t, struct host *ret)
{
	*ret = (struct host){.me = t->rank, .leader = leader_of(t, t->rank)};
	for (int i = ret->leader + 1; i < t->nranks; i++)
		if (t->host[i] == t->host[ret->leader])
			ret->peers[ret->n++] = i;
}

/* The host's sum of a part to the network. */
static void add_up(struct coll_builder *b, const struct host *h, uint32_t part)
{
	if (h->me != h->leader) {
		coll_add_one(b, GANTRY_PRIM_SEND, part, -1, h->leader, 0);
		return;
	}
	coll_add(b, &(struct coll_spec){.what = PRIM_IN | PRIM_SEND | (h->n ? PRIM_RECV : 0u),
					.part = part,
					.recv = h->peers,
					.nrecv = h->n,
					.send = &h->me,
					.nsend = 1});
}

/*
 * What comes back to the host: to the output of all its ranks (to: -1), or of the one that gets it. Leaders take it in any
 * case, though it is for no rank of theirs: the network has one order for all hosts.
 */
static void add_down(struct coll_builder *b, const struct host *h, uint32_t part, int to)
{
	bool is_here = to >= 0 && b->topo->host[to] == b->topo->host[h->me], all = to < 0;
	struct coll_spec spec = {.what = PRIM_RECV, .part = part, .recv = &h->me, .nrecv = 1, .last = 1};

	if (h->me != h->leader) {
		if (all || to == h->me)
			coll_add_one(b, GANTRY_PRIM_RECV, part, h->leader, -1, 0);
		return;
	}
	if (all || to == h->me)
		spec.what |= PRIM_OUT;
	if (all && h->n) {
		spec.what |= PRIM_SEND;
		spec.send = h->peers;
		spec.nsend = h->n;
	} else if (is_here && to != h->me) {
		spec.what |= PRIM_SEND;
		spec.send = &to;
		spec.nsend = 1;
	}
	coll_add(b, &spec);
}

/* Behind each chunk that is sent comes the one that was sent COLLNET_DELAY before it: of another part if there are several. */
static void collnet_plan(struct coll_builder *b)
{
	int parts = b->kind == COLL_REDUCE_SCATTER ? b->topo->nranks : 1;
	struct host h;

	find_host(b->topo, &h);
	for (int part = 0; part < parts; part++) {
		int back = COLLNET_DELAY - part, turns = back > 0 ? (back + parts - 1) / parts : 0,
		    down = part - COLLNET_DELAY + turns * parts;

		add_up(b, &h, (uint32_t)part);
		b->delay += (uint32_t)turns;
		add_down(b, &h, (uint32_t)down,
			 b->kind == COLL_REDUCE_SCATTER ? down
			 : b->kind == COLL_REDUCE	? b->root
							: -1);
		b->delay -= (uint32_t)turns;
	}
}

static struct coll_hops collnet_hops(const struct coll_topo *topo, enum coll_kind kind)
{
	(void)kind;
	return (struct coll_hops){largest_host(topo) > 1 ? 2 : 0, 2};
}

const struct coll_algo coll_collnet = {.name = "collnet",
				       .chunks = COLLNET_CHUNKS,
				       .supports = collnet_supports,
				       .plan = collnet_plan,
				       .hops = collnet_hops,
				       .network = true};
