/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Through the network's reduction: the ranks of a host send to the first of them, which adds its own input and sends the
 * host's sum to the network. What comes back is the sum of all hosts, and goes to the output and to the others.
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
	return topo->network && kind == COLL_ALL_REDUCE && !coll_network_refuses(topo);
}

static void collnet_plan(struct coll_builder *b)
{
	const struct coll_topo *t = b->topo;
	int peers[GANTRY_PRIM_PEERS], me = t->rank, leader = leader_of(t, me);
	uint32_t n = 0;

	if (me != leader) {
		coll_add_one(b, GANTRY_PRIM_SEND, 0, -1, leader, 0);
		b->delay += COLLNET_DELAY;
		coll_add_one(b, GANTRY_PRIM_RECV, 0, leader, -1, 0);
		return;
	}
	for (int i = me + 1; i < t->nranks; i++)
		if (t->host[i] == t->host[me])
			peers[n++] = i;
	coll_add(b, &(struct coll_spec){.what = PRIM_IN | PRIM_SEND | (n ? PRIM_RECV : 0u),
					.recv = peers,
					.nrecv = n,
					.send = &me,
					.nsend = 1});
	b->delay += COLLNET_DELAY;
	coll_add(b, &(struct coll_spec){.what = PRIM_RECV | PRIM_OUT | (n ? PRIM_SEND : 0u),
					.recv = &me,
					.nrecv = 1,
					.send = peers,
					.nsend = n,
					.last = 1});
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
