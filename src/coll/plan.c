/* SPDX-License-Identifier: Apache-2.0 */
/* Plans, and what a block does of one: coll.h. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "coll/coll.h"
#include "device/k_coll.h"

const struct coll_algo *const coll_algos[COLL_ALGOS] = {
	[COLL_RING] = &coll_ring,      [COLL_DIRECT] = &coll_direct, [COLL_DIRECT2] = &coll_direct2,
	[COLL_TREE] = &coll_tree,      [COLL_HIER] = &coll_hier,     [COLL_PAT] = &coll_pat,
	[COLL_COLLNET] = &coll_collnet};

const char *coll_kind_name(enum coll_kind kind)
{
	static const char *const names[COLL_KINDS] = {"all_reduce", "reduce", "broadcast", "all_gather",
						      "reduce_scatter", "all_to_all"};

	return names[kind];
}

struct coll_hops coll_hops_any(const struct coll_topo *topo, uint32_t n)
{
	if (topo->nranks == 1)
		return (struct coll_hops){0, 0};
	return topo->nhosts > 1 ? (struct coll_hops){0, n} : (struct coll_hops){n, 0};
}

/* ---- building ---- */

static bool grow(void **array, uint32_t *room, uint32_t need, size_t size)
{
	uint32_t n = *room ? *room : 16;
	void *p;

	if (need <= *room)
		return true;
	while (n < need)
		n *= 2;
	p = realloc(*array, n * size);
	if (!p)
		return false;
	*array = p;
	*room = n;
	return true;
}

/* Where the peers stand in the table in this order, there already or added. */
static uint32_t add_peers(struct coll_builder *b, const int *ranks, uint32_t n, int send)
{
	struct coll_plan *plan = b->plan;
	uint32_t at, i;

	for (at = 0; at + n <= plan->npeers; at++) {
		for (i = 0; i < n && plan->peers[at + i].rank == ranks[i] && plan->peers[at + i].send == send; i++)
			;
		if (i == n)
			return at;
	}
	at = plan->npeers;
	if (!grow((void **)&plan->peers, &b->room_peers, at + n, sizeof(*plan->peers)) || at + n > UINT16_MAX) {
		b->no_memory = true;
		return 0;
	}
	for (i = 0; i < n; i++)
		plan->peers[at + i] = (struct coll_peer){ranks[i], send};
	plan->npeers += n;
	return at;
}

void coll_add(struct coll_builder *b, const struct coll_spec *spec)
{
	struct coll_plan *plan = b->plan;
	struct gantry_coll_step *t;
	uint32_t recv = spec->nrecv ? add_peers(b, spec->recv, spec->nrecv, 0) : 0;
	uint32_t send = spec->nsend ? add_peers(b, spec->send, spec->nsend, 1) : 0;

	if (!grow((void **)&plan->steps, &b->room_steps, plan->nsteps + 1, sizeof(*plan->steps)))
		b->no_memory = true;
	if (b->no_memory)
		return;
	t = &plan->steps[plan->nsteps++];
	memset(t, 0, sizeof(*t));
	t->what = (uint8_t)spec->what;
	t->last = (uint8_t)spec->last;
	t->in_at = (uint8_t)spec->in_at;
	t->nrecv = (uint8_t)spec->nrecv;
	t->nsend = (uint8_t)spec->nsend;
	t->recv = (uint16_t)recv;
	t->send = (uint16_t)send;
	t->delay = (uint16_t)(spec->delay + b->delay);
	t->part = spec->part;
	if (plan->delay < t->delay)
		plan->delay = t->delay;
}

void coll_add_one(struct coll_builder *b, uint32_t what, uint32_t part, int from, int to, uint32_t last)
{
	const struct coll_spec spec = {.what = what,
				       .part = part,
				       .recv = &from,
				       .send = &to,
				       .nrecv = from >= 0,
				       .nsend = to >= 0,
				       .in_at = from >= 0, /* added to what comes */
				       .last = last};

	coll_add(b, &spec);
}

void coll_add_sends(struct coll_builder *b, uint32_t first, uint32_t more, uint32_t part, const int *ranks, uint32_t n)
{
	uint32_t at = 0;

	do {
		const uint32_t k = n - at < GANTRY_PRIM_PEERS ? n - at : GANTRY_PRIM_PEERS;
		const struct coll_spec spec = {
			.what = at ? more | PRIM_SEND : first, .part = part, .send = ranks + at, .nsend = k};

		coll_add(b, &spec);
		at += k;
	} while (at < n);
}

void coll_add_reduce(struct coll_builder *b, uint32_t part, const int *ranks, uint32_t n)
{
	uint32_t at = 0;

	do {
		const uint32_t k = n - at < GANTRY_PRIM_PEERS ? n - at : GANTRY_PRIM_PEERS;
		const struct coll_spec spec = {.what = PRIM_RECV | PRIM_OUT | (at ? PRIM_ACC : PRIM_IN),
					       .part = part,
					       .recv = ranks + at,
					       .nrecv = k,
					       .last = at + k == n};

		coll_add(b, &spec);
		at += k;
	} while (at < n);
}

/* The plan's steps behind `after` send something to that entry's rank. */
static bool sends_later(const struct coll_plan *plan, uint32_t after, uint32_t entry)
{
	for (uint32_t i = after + 1; i < plan->nsteps; i++)
		for (uint32_t k = 0; k < plan->steps[i].nsend; k++)
			if (plan->peers[plan->steps[i].send + k].rank == plan->peers[entry].rank)
				return true;
	return false;
}

void coll_join_messages(struct coll_builder *b)
{
	struct coll_plan *plan = b->plan;

	ASSERT(coll_by_rank(b->kind));
	for (uint32_t i = 0; i < plan->nsteps; i++)
		for (uint32_t k = 0; k < plan->steps[i].nsend; k++)
			if (sends_later(plan, i, plan->steps[i].send + k))
				plan->steps[i].joins |= (uint8_t)(1u << k);
}

gantry_result coll_builder_begin(struct coll_builder *b, const struct coll_topo *topo)
{
	*b = (struct coll_builder){.topo = topo};
	b->plan = calloc(1, sizeof(*b->plan));
	if (!b->plan)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a plan");
	b->plan->nparts = 1;
	return GANTRY_OK;
}

gantry_result coll_builder_end(struct coll_builder *b, struct coll_plan **ret_plan)
{
	if (b->no_memory) {
		coll_plan_free(b->plan);
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a plan among %d ranks", b->topo->nranks);
	}
	*ret_plan = b->plan;
	return GANTRY_OK;
}

gantry_result coll_plan_make(const struct coll_topo *topo, enum coll_algo_id algo, enum coll_kind kind, int root,
			     int channel, struct coll_plan **ret_plan)
{
	struct coll_builder b;

	TRY_NOW(coll_builder_begin(&b, topo));
	b.kind = kind;
	b.root = root;
	b.channel = channel;
	if (topo->nranks == 1)
		coll_add(&b, &(struct coll_spec){.what = PRIM_IN | PRIM_OUT, .last = 1});
	else
		coll_algos[algo]->plan(&b);
	return coll_builder_end(&b, ret_plan);
}

void coll_plan_free(struct coll_plan *plan)
{
	if (!plan)
		return;
	free(plan->steps);
	free(plan->peers);
	free(plan);
}

/* ---- shares ---- */

/* Elements in multiples of which buffers are cut: whole cache lines, if the buffer begins with one. */
static uint64_t unit_of(uint32_t elem)
{
	return 128 / elem;
}

/* The i-th of n shares of `count`, in units. */
static void cut_share(uint64_t count, uint32_t i, uint32_t n, uint64_t unit, uint64_t *ret_begin, uint64_t *ret_count)
{
	uint64_t units = (count + unit - 1) / unit, per = (units + n - 1) / n * unit, begin = i * per;

	*ret_begin = begin < count ? begin : count;
	*ret_count = count - *ret_begin < per ? count - *ret_begin : per;
}

void coll_share(const struct coll_shape *shape, const struct coll_plan *plan, const struct coll_choice *choice,
		uint32_t channel, struct gantry_coll *ret)
{
	uint64_t unit = unit_of(shape->elem), slice = (uint64_t)choice->step_bytes * choice->slice_steps / shape->elem;
	uint32_t slices =
		choice->proto == GANTRY_PROTO_SIMPLE ? choice->chunk_steps / choice->slice_steps : choice->chunk_steps;

	if (choice->proto != GANTRY_PROTO_SIMPLE)
		slice = choice->step_bytes / shape->elem;
	cut_share(shape->count, channel, choice->channels, unit, &ret->begin, &ret->count);
	ret->whole = UINT64_MAX;
	ret->in_stride = ret->out_stride = 0;
	if (coll_by_rank(shape->kind)) {
		ret->in_stride = coll_in_by_rank(shape->kind) ? shape->count : 0;
		ret->out_stride = coll_out_by_rank(shape->kind) ? shape->count : 0;
	} else if (plan->nparts > 1) {
		uint64_t least = choice->part_bytes / shape->elem;

		ret->whole = ret->count;
		ret->count = ((ret->whole + unit - 1) / unit + plan->nparts - 1) / plan->nparts * unit;
		ret->count = ret->count > least ? ret->count : least;
		ret->in_stride = ret->out_stride = ret->count;
	}
	ret->chunk = slice * slices;
	ret->step_bytes = choice->step_bytes;
	ret->slice_steps = (uint8_t)(choice->proto == GANTRY_PROTO_SIMPLE ? choice->slice_steps : 1);
	ret->chunk_steps = (uint8_t)choice->chunk_steps;
	ret->proto = (uint8_t)choice->proto;
	ret->delay = (uint16_t)plan->delay;
	ret->nsteps = plan->nsteps;
	ret->nconns = plan->npeers;
}

/* Slices of n elements, chunk by chunk. */
static uint64_t slices_of(const struct gantry_coll *c, uint64_t n, uint64_t slice)
{
	uint64_t rest = n % c->chunk, per = (c->chunk + slice - 1) / slice;

	return n / c->chunk * per + (rest + slice - 1) / slice;
}

uint64_t coll_steps_on(const struct coll_plan *plan, const struct gantry_coll *share, uint32_t peer, bool *ret_lent)
{
	const struct coll_peer *p = &plan->peers[peer];
	uint64_t slice = (uint64_t)share->step_bytes * share->slice_steps / coll_type_bytes(share->type), sum = 0;

	*ret_lent = p->send;
	for (uint32_t i = 0; i < plan->nsteps; i++) {
		const struct gantry_coll_step *t = &plan->steps[i];
		uint32_t first = p->send ? t->send : t->recv, n = p->send ? t->nsend : t->nrecv;

		for (uint32_t k = first; k < first + n; k++) {
			if (plan->peers[k].rank != p->rank)
				continue;
			sum += slices_of(share, coll_part(share, t->part), slice);
			*ret_lent &= prim_lends(t->what, t->nrecv, share->op, t->last, share->ptr) != 0;
		}
	}
	return sum * share->slice_steps;
}
