/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two binary trees: every second channel uses the other one, in which the leaves of the first are inside. So each rank
 * sends and receives about as much as every other, over a number of hops that grows with the logarithm of the ranks.
 *
 * A tree stands in order over positions 0 .. n - 1: the odd ones are inside, halved again and again; the even ones are
 * leaves between them. The second tree is the first, moved by one rank.
 *
 *   n = 7         3           reduction: up;  result: down
 *               /   \
 *              1     5
 *             / \   / \
 *            0   2 4   6
 *
 * All-reduce goes up and down. What comes down is taken TREE_DELAY chunks later at each level, so that the way up and
 * the way down are busy at once: the top sends a chunk down as soon as it is there, a leaf at depth l has sent 2 l more
 * chunks meanwhile, as many as hops are between, and no FIFO holds more than TREE_DELAY of them.
 *
 * Reduce and broadcast: the root stands above the trees, which hold the others.
 */
#include "coll/coll.h"
#include "device/k_prim.h"

enum { TREE_DELAY = 2 };

static bool tree_supports(const struct coll_topo *topo, enum coll_kind kind)
{
	(void)topo;
	return kind == COLL_ALL_REDUCE || kind == COLL_REDUCE || kind == COLL_BROADCAST;
}

/* Where a position stands; -1: none. */
struct tree_node {
	int parent, left, right;
	uint32_t depth;
};

/* The top of a part of the tree: inner positions 2 i + 1 for i in [a, b), or the leaf in their place. */
static int top_of(int a, int b, int n)
{
	int at = a < b ? 2 * ((a + b) / 2) + 1 : 2 * a;

	return at < n ? at : -1;
}

static void find_node(int at, int n, struct tree_node *ret)
{
	int a = 0, b = n / 2, parent = -1;
	uint32_t depth = 0;

	for (int top = top_of(a, b, n); top != at; top = top_of(a, b, n)) {
		parent = top;
		if (at < top)
			b = (a + b) / 2;
		else
			a = (a + b) / 2 + 1;
		depth++;
	}
	*ret = (struct tree_node){parent, -1, -1, depth};
	if (a < b) {
		ret->left = top_of(a, (a + b) / 2, n);
		ret->right = top_of((a + b) / 2 + 1, b, n);
	}
}

/* Parent and children of this rank. */
struct tree_place {
	int parent, children[2];
	uint32_t nchildren, depth;
};

/* All ranks, or those other than the root, which is then above. */
static void find_place(const struct coll_builder *b, bool rooted, struct tree_place *ret)
{
	int r = b->topo->rank, n = b->topo->nranks - (rooted ? 1 : 0), base = rooted ? b->root + 1 : 0;
	int shift = b->channel & 1, first;
	struct tree_node node;

#define RANK_AT(position) ((base + ((position) + n - shift) % n) % b->topo->nranks)
	*ret = (struct tree_place){.parent = -1};
	if (rooted && r == b->root) {
		ret->children[ret->nchildren++] = RANK_AT(top_of(0, n / 2, n));
		return;
	}
	first = (r - base + b->topo->nranks) % b->topo->nranks; /* among those of the tree */
	find_node((first + shift) % n, n, &node);
	ret->depth = node.depth;
	ret->parent = node.parent >= 0 ? RANK_AT(node.parent) : rooted ? b->root : -1;
	if (node.left >= 0)
		ret->children[ret->nchildren++] = RANK_AT(node.left);
	if (node.right >= 0)
		ret->children[ret->nchildren++] = RANK_AT(node.right);
#undef RANK_AT
}

/* To the parent; at the top the result comes out, and goes down at once. */
static void add_up(struct coll_builder *b, const struct tree_place *p, bool down)
{
	bool top = p->parent < 0;
	struct coll_spec s = {.what = PRIM_IN, .recv = p->children, .nrecv = p->nchildren, .in_at = p->nchildren};

	if (p->nchildren)
		s.what |= PRIM_RECV;
	if (!top) {
		s.what |= PRIM_SEND;
		s.send = &p->parent;
		s.nsend = 1;
	} else {
		s.what |= PRIM_OUT | (down ? PRIM_SEND : 0u);
		s.send = p->children;
		s.nsend = down ? p->nchildren : 0;
		s.last = 1;
	}
	coll_add(b, &s);
}

static void add_down(struct coll_builder *b, const struct tree_place *p, uint32_t delay)
{
	struct coll_spec s = {.what = GANTRY_PRIM_RECV,
			      .recv = &p->parent,
			      .nrecv = 1,
			      .send = p->children,
			      .nsend = p->nchildren,
			      .delay = delay};

	if (p->nchildren)
		s.what |= PRIM_SEND;
	coll_add(b, &s);
}

static void tree_plan(struct coll_builder *b)
{
	struct tree_place p;

	find_place(b, b->kind != COLL_ALL_REDUCE, &p);
	switch (b->kind) {
	case COLL_ALL_REDUCE:
		add_up(b, &p, true);
		if (p.parent >= 0)
			add_down(b, &p, TREE_DELAY * p.depth);
		break;
	case COLL_REDUCE:
		add_up(b, &p, false);
		break;
	default: /* COLL_BROADCAST */
		if (p.parent >= 0)
			add_down(b, &p, 0);
		else
			coll_add_sends(b, GANTRY_PRIM_COPY_SEND, PRIM_IN, 0, p.children, p.nchildren);
	}
}

/* Levels are as many as the number of ranks has digits; those of hosts are on top, if their ranks are neighbours. */
static struct coll_hops tree_hops(const struct coll_topo *topo, enum coll_kind kind)
{
	uint32_t levels = 0, above = 0;

	while (1 << levels < topo->nranks)
		levels++;
	while (1 << above < topo->nhosts)
		above++;
	if (topo->nhosts == topo->nranks)
		above = levels;
	return kind == COLL_ALL_REDUCE ? (struct coll_hops){2 * (levels - above), 2 * above}
				       : (struct coll_hops){levels - above, above};
}

const struct coll_algo coll_tree = {
	.name = "tree", .chunks = TREE_DELAY, .supports = tree_supports, .plan = tree_plan, .hops = tree_hops};
