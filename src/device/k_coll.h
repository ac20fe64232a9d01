/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: each block carries out its share. That is a plan, the same for every size: steps, each a primitive on one
 * part of the buffers. For every chunk of the parts the block does all steps, in order; a step with a delay works on an
 * earlier chunk, so that what comes back from far away is not waited for while there is more to send.
 *
 *   chunk   0          1          2          3            4
 *           up(0)      up(1)      up(2)      -            -            delay 0
 *                                 down(0)    down(1)      down(2)      delay 2
 *
 * Primitives block. That no plan waits for itself, whichever way the ranks get ahead of each other, is shown for every
 * algorithm by a simulation (tests/unit/test_coll_plan.c).
 */
#ifndef GANTRY_DEVICE_K_COLL_H
#define GANTRY_DEVICE_K_COLL_H

#include "device/k_prim.h"
#include "device/work.h"

/* Elements of a part in this block's share. */
DEV uint64_t coll_part(const struct gantry_coll *c, uint32_t part)
{
	uint64_t before = part * c->count;

	if (c->whole == UINT64_MAX || before + c->count <= c->whole)
		return c->count;
	return before < c->whole ? c->whole - before : 0;
}

/* Where a collective is: a step's slice of a chunk. */
struct coll_at {
	uint64_t chunks; /* of a part */
	uint64_t turn;	 /* the chunk that steps without a delay work on */
	uint32_t step;
	uint64_t from;	      /* element of the part; UINT64_MAX: not at any step yet */
	uint64_t count, left; /* elements of the slice, and of the chunk from there on */
	uint32_t offered;     /* of its receives, by coll_offer */
};

/* To the next slice that moves something; 0: there is none. */
DEV int coll_next(const struct dev_prims *p, const struct gantry_coll *c, struct coll_at *at)
{
	const uint64_t chunks = at->chunks;
	uint64_t n;

	at->from += at->count;
	at->left -= at->count;
	while (!at->left) {
		const struct gantry_coll_step *t;

		if (++at->step >= c->nsteps) {
			at->step = 0;
			at->turn++;
		}
		if (at->turn >= chunks + c->delay)
			return 0;
		t = &c->steps[at->step];
		if (at->turn < t->delay || at->turn - t->delay >= chunks)
			continue;
		n = coll_part(c, t->part);
		at->from = (at->turn - t->delay) * c->chunk;
		at->left = at->from >= n ? 0 : n - at->from < c->chunk ? n - at->from : c->chunk;
	}
	at->count = at->left < p->slice ? at->left : p->slice;
	at->offered = 0;
	return 1;
}

DEV void coll_begin(const struct gantry_coll *c, struct coll_at *at)
{
	at->chunks = c->count <= c->chunk ? c->count != 0 : (c->count + c->chunk - 1) / c->chunk;
	at->turn = UINT64_MAX; /* the first step of turn 0 is next */
	at->step = c->nsteps - 1;
	at->from = at->count = at->left = 0;
}

DEV char *coll_out(const struct dev_prims *p, const struct gantry_coll *c, const struct coll_at *at)
{
	return c->out + (c->steps[at->step].part * c->out_stride + c->begin + at->from) * p->elem;
}

DEV void coll_fill(struct dev_prims *p, const struct gantry_coll *c, const struct coll_at *at, struct prim_slice *s)
{
	const struct gantry_coll_step *t = &c->steps[at->step];

	p->at = GANTRY_COLL_AT(at->step + 1, c->nsteps, at->turn);
	s->count = at->count;
	s->what = t->what;
	s->last = t->last;
	s->in_at = t->in_at;
	s->nrecv = t->nrecv;
	s->nsend = t->nsend;
	s->recv = c->conns + t->recv;
	s->send = c->conns + t->send;
	s->shifts = c->shifts ? c->shifts + 2 * (uint32_t)t->send : NULL;
	s->in = t->what & PRIM_IN ? c->in + (t->part * c->in_stride + c->begin + at->from) * p->elem : NULL;
	s->out = t->what & (PRIM_OUT | PRIM_ACC) ? coll_out(p, c, at) : NULL;
}

DEV uint32_t coll_slice(struct dev_prims *p, const struct gantry_coll *c, const struct coll_at *at, int unpack)
{
	struct prim_slice s;

	coll_fill(p, c, at, &s);
	return unpack ? dev_prims_move_unpack(p, &s) : dev_prims_move(p, &s);
}

/*
 * Lane 0: offers, as far ahead as there is room, for the receives to come on connections that write to user memory; for
 * those that are reduced the proxy takes memory of its own. Early is safe: what arrives in the output depends on what
 * this rank has sent from there before. more: whether `ahead` is at a slice.
 */
DEV void coll_offer(const struct dev_prims *p, const struct gantry_coll *c, struct coll_at *ahead, int *more)
{
	for (; *more; *more = coll_next(p, c, ahead)) {
		const struct gantry_coll_step *t = &c->steps[ahead->step];
		int lands = prim_lands(t->what, t->nrecv, p->op, t->last, p->ptr);

		for (; ahead->offered < t->nrecv; ahead->offered++) {
			struct gantry_conn *conn = c->conns[t->recv + ahead->offered];

			if (conn->flags & GANTRY_CONN_POINTS &&
			    !prim_offer(p, conn, lands ? coll_out(p, c, ahead) : NULL,
					lands ? ahead->count * p->elem : 0))
				return;
		}
	}
}

DEV void coll_prims(const struct gantry_coll *c, struct dev_prims *p)
{
	p->id = c->id;
	p->proto = c->proto;
	p->type = c->type;
	p->op = c->op;
	p->ptr = c->ptr;
	p->scalar = c->scalar_at ? dev_gather8((const char *)c->scalar_at, dev_type_bytes(c->type)) : c->scalar;
	dev_prims_init(p, c->step_bytes, c->slice_steps, c->chunk_steps);
}

/* One collective; how it ended. unpack, a constant: as in k_prim.h. */
DEV uint32_t coll_run(const struct gantry_coll *c, int unpack)
{
	struct coll_at at, ahead;
	struct dev_prims p;
	uint64_t error;
	int more;

	coll_prims(c, &p);
	coll_begin(c, &at);
	coll_begin(c, &ahead);
	more = (c->ptr & GANTRY_COLL_PTR_OFFERS) && dev_lane() == 0 && !p.error && coll_next(&p, c, &ahead);
	while (!p.error && coll_next(&p, c, &at)) {
		if (more)
			coll_offer(&p, c, &ahead, &more);
		coll_slice(&p, c, &at, unpack);
	}
	error = p.error;
	if (dev_lane() == 0)
		for (uint32_t k = 0; k < c->nconns; k++) {
			if (c->ptr && !error)
				error = prim_wait_lent(&p, c->conns[k]);
			if (!error) /* else reports tell where it was */
				prim_show(&p, c->conns[k], c->conns[k]->step, GANTRY_KERNEL_IDLE);
			c->conns[k]->coll = 0; /* the same share may come again: a graph */
		}
	error = dev_bcast(error);
	for (uint32_t k = 0; k < c->nconns; k++)
		k_show_counts(c->conns[k], dev_lane(), dev_lanes());
	return (uint32_t)error;
}

/*
 * Brought near, as in k_p2p.h: the share itself, which may lie in host memory, and its steps and its connections, if they
 * are few. Each connection once, however many entries of the table lead to it. Three rounds of loads, all lanes at once.
 */
#ifdef DEV_NEAR

enum { COLL_NEAR = 16, COLL_NEAR_TABLE = 64, COLL_NEAR_STEPS = 64 };

struct coll_near {
	struct gantry_coll c;
	struct gantry_conn conns[COLL_NEAR];
	struct gantry_conn *home[COLL_NEAR];	    /* of conns */
	struct gantry_conn *table[COLL_NEAR_TABLE]; /* as it is in the plan, then leading to conns */
	struct gantry_coll_step steps[COLL_NEAR_STEPS];
	uint64_t shifts[2 * COLL_NEAR_TABLE];
	uint32_t nconns;
};

/* Lane 0: the table made to lead to `conns`; 0: there are too many. */
DEV int coll_near_table(struct coll_near *near)
{
	near->nconns = 0;
	if (near->c.nconns > COLL_NEAR_TABLE)
		return 0;
	for (uint32_t i = 0, k; i < near->c.nconns; i++) {
		struct gantry_conn *home = near->table[i];

		for (k = 0; k < near->nconns && near->home[k] != home; k++)
			;
		if (k == COLL_NEAR) {
			near->nconns = 0;
			return 0;
		}
		near->home[k] = home;
		near->nconns += k == near->nconns;
		near->table[i] = &near->conns[k];
	}
	return 1;
}

DEV void coll_fetch(struct coll_near *near, const struct gantry_coll *home)
{
	k_words(&near->c, home, sizeof(*home));
	dev_barrier();
	if (near->c.nsteps <= COLL_NEAR_STEPS)
		k_words(near->steps, near->c.steps, near->c.nsteps * sizeof(*near->steps));
	if (near->c.nconns <= COLL_NEAR_TABLE)
		k_words(near->table, near->c.conns, near->c.nconns * sizeof(*near->table));
	if (near->c.shifts && near->c.nconns <= COLL_NEAR_TABLE)
		k_words(near->shifts, near->c.shifts, 2 * near->c.nconns * sizeof(*near->shifts));
	dev_barrier();
	if (dev_lane() == 0) {
		if (coll_near_table(near))
			near->c.conns = near->table;
		if (near->c.nsteps <= COLL_NEAR_STEPS)
			near->c.steps = near->steps;
		if (near->c.shifts && near->c.nconns <= COLL_NEAR_TABLE)
			near->c.shifts = near->shifts;
	}
	dev_barrier();
	for (uint32_t k = 0; k < near->nconns; k++)
		k_words(&near->conns[k], near->home[k], sizeof(near->conns[k]));
	dev_barrier();
}

DEV void coll_return(struct coll_near *near)
{
	for (uint32_t k = 0; k < near->nconns; k++)
		k_conn_return(near->home[k], &near->conns[k]);
	dev_barrier();
}

#endif

DEV uint32_t coll_do(const struct gantry_coll *c, int unpack)
{
#ifdef DEV_NEAR
	DEV_SHARED struct coll_near near;
	uint32_t error;

	coll_fetch(&near, c);
	error = coll_run(&near.c, unpack);
	coll_return(&near);
	return error;
#else
	return coll_run(c, unpack);
#endif
}

DEV void coll_all(const struct gantry_coll_args *a, int unpack)
{
	uint32_t error = GANTRY_OK;

	k_begin(&a->end);
	if (a->after && k_after(a->after, a->after_value))
		error = GANTRY_ERR_ABORTED;
	if (a->times && dev_lane() == 0)
		dev_store_relaxed(&a->times[dev_block()].begin, dev_clock());
	if (!error)
		error = coll_do(a->colls ? &a->colls[dev_block()] : &a->one, unpack);
	if (a->times && dev_lane() == 0 && !error) /* what failed has no end */
		dev_store_relaxed(&a->times[dev_block()].end, dev_clock());
	if (dev_lane() != 0)
		return;
	if (error)
		k_end_failed(a->result, error);
	dev_leave();
	k_end(&a->end);
}

DEV void k_coll(const struct gantry_coll_args *a)
{
	coll_all(a, 0);
}
DEV void k_coll_unpack(const struct gantry_coll_args *a)
{
	coll_all(a, 1);
}

#endif
