/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the progress thread does with operations and connections.
 *
 * Steps. An operation begins at its connection's `end` rounded up to its chunk_steps, as the kernel does it. The steps
 * that are left out make a gap that nobody fills: a counter that has come to the beginning of a gap is moved to its
 * end, on arrival of the operation or after the pass in which it came there. On a sending end the kernel is told too:
 * with chunks as large as the ring it could not begin without the room of the gap. Within one pass a transport sees a
 * gap as "no operation known" (gantry_proxy_op_of) and stops there until the next one.
 *
 *        ...|---- op 1 ----|  gap  |---- op 2 ----|
 *                        done --> done
 *
 * States of a connection:
 *   idle    no operations; on no list              arrival -> ready
 *   ready   on its group's list, polled            last operation done -> idle; error, abort or destroy -> idle
 * States of a group:
 *   idle    no ready connections                   first one -> active
 *   active  in the engine's list                   last one idle -> idle; error or abort -> failed
 *   failed  error is set; arrivals are given back at once
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PROXY
#include <stdio.h>
#include <time.h>

#include "base/atomic.h"
#include "base/event.h"
#include "base/log.h"
#include "proxy/engine.h"

static uint64_t coarse_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void ready_add(struct gantry_proxy_conn *pc)
{
	struct gantry_proxy_group *g = pc->group;

	if (!g->ready)
		gantry_list_append(&g->proxy->active, &g->in_active);
	pc->ready_prev = NULL;
	pc->ready_next = g->ready;
	if (g->ready)
		g->ready->ready_prev = pc;
	g->ready = pc;
	pc->ready = 1;
}

static void ready_remove(struct gantry_proxy_conn *pc)
{
	struct gantry_proxy_group *g = pc->group;

	if (pc->ready_prev)
		pc->ready_prev->ready_next = pc->ready_next;
	else
		g->ready = pc->ready_next;
	if (pc->ready_next)
		pc->ready_next->ready_prev = pc->ready_prev;
	pc->ready = 0;
	if (!g->ready)
		gantry_list_remove(&g->in_active);
}

/* Back to the pool, with all others of this pass. */
static void spend(struct gantry_proxy *p, struct gantry_proxy_op *op)
{
	op->next = NULL;
	if (p->spent)
		p->spent_last->next = op;
	else
		p->spent = op;
	p->spent_last = op;
}

/* The end of an operation that is on no queue any more; pending falls when the counters are shown. */
static void end_op(struct gantry_proxy *p, struct gantry_proxy_op *op, uint64_t how)
{
	uint64_t c = GANTRY_EV_BYTES(op->bytes) | (uint64_t)op->proto << 56 | how;

	gantry_event_put(GANTRY_EV_PROXY_OP, op->conn->id, op->id, c);
	spend(p, op);
}

/* Release, and after show(): who sees pending fall sees the counters. */
static void ended(struct gantry_proxy_group *g, uint64_t ops)
{
	if (ops)
		fetch_sub_release(&g->pending, ops);
}

static uint64_t sum_of(const struct gantry_proxy_conn *pc)
{
	return pc->posted + pc->moved + pc->flushed + pc->done;
}

static void show(struct gantry_proxy_conn *pc)
{
	struct conn *c = conn_of(pc);

	c->sum = sum_of(pc);
	PUT(c->shown.posted, pc->posted);
	PUT(c->shown.moved, pc->moved);
	PUT(c->shown.flushed, pc->flushed);
	PUT(c->shown.done, pc->done);
	PUT(c->shown.end, pc->end);
	PUT(c->shown.op, pc->first ? pc->first->id : 0);
	PUT(c->shown.busy, pc->first != NULL);
}

/* A counter, moved over the gap that it stands in, if it does; and the operation it is in, NULL after the last. */
static uint64_t over_gap(struct gantry_proxy_op *op, uint64_t step, struct gantry_proxy_op **ret_op)
{
	while (op && step >= op->base + op->nsteps)
		op = op->next;
	*ret_op = op;
	return op && step < op->base ? op->base : step;
}

/* Takes what is done off the queue and the counters out of gaps. */
static void settle(struct gantry_proxy_conn *pc)
{
	struct gantry_proxy_op *op;
	uint64_t n = 0;

	/* A transport may leave it to gantry_proxy_done to count. */
	if (pc->send && conn_of(pc)->told > pc->done)
		pc->done = conn_of(pc)->told;
	while ((op = pc->first)) {
		if (pc->done < op->base) {
			pc->done = op->base;
			if (pc->send && pc->fifo)
				gantry_proxy_tell_head(pc, op->base);
		}
		if (pc->done < op->base + op->nsteps)
			break;
		pc->first = op->next;
		if (!pc->first)
			pc->last = NULL;
		ADD(pc->ops, 1);
		end_op(pc->proxy, op, GANTRY_EV_OP_END);
		n++;
	}
	pc->flushed = over_gap(pc->first, pc->flushed, &op);
	pc->moved = over_gap(pc->first, pc->moved, &op);
	pc->posted = over_gap(pc->first, pc->posted, &pc->current);
	show(pc);
	if (!pc->first)
		ready_remove(pc);
	ended(pc->group, n);
}

static void arrive(struct gantry_proxy *p, struct gantry_proxy_op *op)
{
	struct gantry_proxy_conn *pc = op->conn;
	struct gantry_proxy_group *g = pc->group;
	uint64_t chunk = op->chunk_steps ? op->chunk_steps : 1;

	ADD(p->stats.ops, 1);
	ADD(p->stats.batches, op->reserved == OP_BATCH_END);
	op->next = NULL;
	op->base = (pc->end + chunk - 1) / chunk * chunk;
	if (g->error != GANTRY_OK) {
		end_op(p, op, GANTRY_EV_OP_END | GANTRY_EV_OP_CUT);
		ended(g, 1);
		return;
	}
	gantry_event_put(GANTRY_EV_PROXY_OP, pc->id, op->id, GANTRY_EV_BYTES(op->bytes) | (uint64_t)op->proto << 56);
	pc->end = op->base + op->nsteps;
	if (pc->first)
		pc->last->next = op;
	else
		pc->first = op;
	pc->last = op;
	if (!pc->ready) {
		ready_add(pc);
		PUT(pc->progress_ns, coarse_ns()); /* a stall is counted from here */
	}
	settle(pc);
}

/* All operations of a group end here, done or not. */
static void drop_all(struct gantry_proxy *p, struct gantry_proxy_group *g)
{
	while (g->ready) {
		struct gantry_proxy_conn *pc = g->ready;
		uint64_t n = 0;

		while (pc->first) {
			struct gantry_proxy_op *op = pc->first;

			pc->first = op->next;
			end_op(p, op, GANTRY_EV_OP_END | GANTRY_EV_OP_CUT);
			n++;
		}
		pc->last = pc->current = NULL;
		gantry_proxy_waits_end(pc);
		show(pc);
		ready_remove(pc);
		ended(g, n);
	}
}

/* The error is set before any operation ends by it: who sees pending fall finds the cause. */
static void fail_group(struct gantry_proxy *p, struct gantry_proxy_group *g, gantry_result why, int peer,
		       const char *text)
{
	char copy[512];

	/* The text may be this thread's last error, which the callback may well replace. */
	snprintf(copy, sizeof(copy), "%s", text && *text ? text : gantry_result_text(why));
	store_release(&g->error, why);
	drop_all(p, g);
	if (g->config.on_error)
		g->config.on_error(g->config.ctx, why, peer, copy);
	gantry_set_last_error(""); /* so that a transport that gives no text is not given this one */
}

/* The group's owner waits for this. It may free the group as soon as the mutex is released. */
static void leave(struct gantry_proxy *p, struct gantry_proxy_group *g)
{
	drop_all(p, g);
	proxy_mu_lock(&p->mu);
	g->gone = 1;
	gantry_cond_broadcast(&p->cond);
	proxy_mu_unlock(&p->mu);
}

int gantry_proxy_arrivals(struct gantry_proxy *p)
{
	struct gantry_proxy_op *op = gantry_proxy_take(p), *next;

	if (!op)
		return 0;
	for (; op; op = next) {
		next = op->next;
		if (op->conn)
			arrive(p, op);
		else
			leave(p, gantry_container(op, struct gantry_proxy_group, bye));
	}
	return 1;
}

static void moved(struct gantry_proxy_conn *pc)
{
	uint64_t step = conn_of(pc)->shown.posted;

	while (step < pc->posted) {
		const struct gantry_proxy_op *op = gantry_proxy_op_of(pc, step);

		if (op)
			gantry_proxy_step_event(pc, GANTRY_EV_PROXY_POST, step, op,
						op->ptr ? GANTRY_MODE_PTR : GANTRY_MODE_NORMAL,
						gantry_proxy_step_bytes(op, step));
		step += op && op->slice_steps ? op->slice_steps : 1;
	}
	gantry_proxy_waits_end(pc);
	PUT(pc->progress_ns, coarse_ns());
	settle(pc);
}

/* 1: something moved. */
static int pass_group(struct gantry_proxy *p, struct gantry_proxy_group *g)
{
	int worked = 0;

	for (struct gantry_proxy_conn *pc = g->ready, *next; pc; pc = next) {
		int did = 0;
		gantry_result r = pc->side->proxy_progress(pc, &did);

		next = pc->ready_next;
		if (__builtin_expect(r != GANTRY_OK && r != GANTRY_AGAIN, 0)) {
			fail_group(p, g, r, pc->connector && pc->connector->peer ? pc->connector->peer->rank : -1,
				   gantry_last_error());
			return 1;
		}
		/* The counters only grow, so their sum tells, whatever the transport says. Against the sum of the last
		 * time, not of before the call: a transport may move several of its connections in the call for one. */
		if (did || sum_of(pc) != conn_of(pc)->sum) {
			moved(pc);
			worked = 1;
		}
	}
	return worked;
}

int gantry_proxy_pass(struct gantry_proxy *p)
{
	int worked = 0;

	gantry_list_each_safe (e, &p->active) {
		struct gantry_proxy_group *g = gantry_container(e, struct gantry_proxy_group, in_active);

		/* Sequentially consistent: whoever sets it and rings is seen before the sleep. */
		if (g->config.abort && load_seq(g->config.abort)) {
			LOG_INFO(PROXY, "aborted: %llu operations end", (unsigned long long)GET(g->pending));
			fail_group(p, g, GANTRY_ERR_ABORTED, -1, NULL);
			worked = 1;
			continue;
		}
		worked |= pass_group(p, g);
	}
	return worked;
}
