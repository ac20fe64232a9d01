/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: block b carries out colls[first[b]] .. colls[first[b + 1] - 1], one after the other. Each is a plan, the
 * same for every size: steps, each a primitive on one part of the buffers. For every chunk of the parts the block does
 * all steps, in order; a step with a delay works on an earlier chunk, so that what comes back from far away is not
 * waited for while there is more to send.
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

DEV void coll_step(struct dev_prims *p, const struct gantry_coll *c, const struct gantry_coll_step *t, uint64_t at)
{
	uint64_t n = coll_part(c, t->part);
	struct prim_slice s;

	if (at >= n)
		return;
	s.count = n - at < c->chunk ? n - at : c->chunk;
	s.what = t->what;
	s.last = t->last;
	s.in_at = t->in_at;
	s.nrecv = t->nrecv;
	s.nsend = t->nsend;
	s.recv = c->conns + t->recv;
	s.send = c->conns + t->send;
	s.in = t->what & PRIM_IN ? c->in + (t->part * c->in_stride + c->begin + at) * p->elem : NULL;
	s.out = t->what & (PRIM_OUT | PRIM_ACC) ? c->out + (t->part * c->out_stride + c->begin + at) * p->elem : NULL;
	dev_prims_move(p, &s);
}

/* One collective; how it ended. */
DEV uint32_t coll_run(const struct gantry_coll *c)
{
	uint64_t chunks = (c->count + c->chunk - 1) / c->chunk;
	struct dev_prims p;

	p.id = c->id;
	p.proto = c->proto;
	p.type = c->type;
	p.op = c->op;
	p.scalar = c->scalar_at ? dev_gather8((const char *)c->scalar_at, dev_type_bytes(c->type)) : c->scalar;
	dev_prims_init(&p, c->step_bytes, c->slice_steps, c->chunk_steps);
	for (uint64_t i = 0; i < chunks + c->delay && !p.error; i++)
		for (uint32_t k = 0; k < c->nsteps && !p.error; k++) {
			const struct gantry_coll_step *t = &c->steps[k];

			if (i >= t->delay && i - t->delay < chunks)
				coll_step(&p, c, t, (i - t->delay) * c->chunk);
		}
	if (dev_lane() == 0)
		for (uint32_t k = 0; k < c->nconns; k++)
			prim_show(c->conns[k], c->conns[k]->step, GANTRY_KERNEL_IDLE);
	dev_barrier();
	return p.error;
}

/*
 * Brought near, as in k_p2p.h: the share itself, which lies in host memory, and its connections, if they are few. Each
 * connection once, however many entries of the table lead to it.
 */
#ifdef DEV_NEAR

enum { COLL_NEAR = 16, COLL_NEAR_TABLE = 64 };

struct coll_near {
	struct gantry_coll c;
	struct gantry_conn conns[COLL_NEAR];
	struct gantry_conn *home[COLL_NEAR]; /* of conns */
	struct gantry_conn *table[COLL_NEAR_TABLE];
	uint32_t nconns;
};

/* Lane 0: the table that leads to `conns`; 0: there are too many. */
DEV int coll_near_table(struct coll_near *near)
{
	near->nconns = 0;
	if (near->c.nconns > COLL_NEAR_TABLE)
		return 0;
	for (uint32_t i = 0, k; i < near->c.nconns; i++) {
		struct gantry_conn *home = near->c.conns[i];

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
	if (dev_lane() == 0 && coll_near_table(near))
		near->c.conns = near->table;
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

DEV uint32_t coll_do(const struct gantry_coll *c)
{
#ifdef DEV_NEAR
	DEV_SHARED struct coll_near near;
	uint32_t error;

	coll_fetch(&near, c);
	error = coll_run(&near.c);
	coll_return(&near);
	return error;
#else
	return coll_run(c);
#endif
}

DEV void k_coll(const struct gantry_coll_args *a)
{
	uint32_t error = GANTRY_OK;

	if (a->after && k_after(a->after, a->after_value))
		error = GANTRY_ERR_ABORTED;
	for (uint32_t i = a->first[dev_block()]; i < a->first[dev_block() + 1] && !error; i++)
		error = coll_do(&a->colls[i]);
	if (dev_lane() != 0)
		return;
	if (error)
		k_fail(a->result, error);
	if (a->finished) {
		dev_fence(); /* the memory of colls may be used again */
		dev_add(a->finished, 1);
	}
}

#endif
