/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of the progress engine: operations on their way, what a round does with them and with connections, groups as
 * their owners see them. engine.c has the thread that makes rounds; steps.c has gantry_proxy_* of gantry/transport.h:
 * talking to the kernel's end of a connection.
 *
 * Whose is what. Everything that is neither atomic nor behind a mutex belongs to the thread that makes a round (one at a
 * time, the progress thread or one that drives) once the first operation of a connection was appended. Others talk to it
 * through `inbox` alone, also when a group is destroyed: the message takes the same way as operations, so that whatever
 * was appended before it is settled before it.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PROXY
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "proxy/engine.h"

_Static_assert(offsetof(struct gantry_proxy_conn, first) == CACHE_LINE,
	       "the poll loop touches one line per connection");
_Static_assert(sizeof(struct gantry_proxy_op) == CACHE_LINE, "an operation is one line, slabs of them are aligned");

enum {
	SLAB_OPS = 255, /* and a line for the link: 16 KiB */
	COMPLAIN_S = 5,
	OP_BATCH_END = 1, /* in an operation's `reserved` */
};

struct gantry_proxy_group {
	struct gantry_proxy *proxy; /* borrowed */
	struct gantry_proxy_group_config config;
	uint64_t pending; /* appenders add, the thread subtracts (release) */
	int error;	  /* gantry_result, written once by the thread (release) */
	int bound;	  /* to the progress thread (release) */
	/* The progress thread's. */
	struct gantry_list in_active; /* in the engine's list while it has ready connections */
	struct gantry_list ready;     /* its connections with operations */
	/* The end. */
	struct gantry_proxy_op bye;    /* conn == NULL tells it from an operation */
	int gone GUARDED_BY(proxy_mu); /* the thread will not touch it again */
};

/*
 * ---- operations on their way: pool -> caller -> inbox -> progress thread -> pool ----
 *
 * The inbox is a stack onto which a whole chain is pushed by one compare-and-swap, and which the thread empties by one
 * exchange. No thread ever takes a single element, so a pointer that comes back between a load and a swap (ABA) does no
 * harm. An appender turns its chain round before it pushes it; the thread turns the whole stack round. So the order of
 * each appender is kept, and the chains of one appender stay in order among each other.
 *
 * The pool: takers share a mutex; the progress thread gives back by pushing onto a stack of its own, so it never waits
 * for a taker that lost its CPU.
 */

static gantry_result grow_pool(struct op_pool *pool, uint64_t n) REQUIRES(op_pool_mu)
{
	size_t size;
	char *slab;

	n = n < SLAB_OPS ? SLAB_OPS : n;
	size = (size_t)(n + 1) * CACHE_LINE;
	slab = aligned_alloc(CACHE_LINE, size);
	if (!slab)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %llu proxy operations", (unsigned long long)n);
	*(void **)(void *)slab = pool->slabs;
	pool->slabs = slab;
	/* From the end, so that the lowest address is handed out first. */
	for (uint64_t i = n; i > 0; i--) {
		struct gantry_proxy_op *op = (void *)(slab + i * CACHE_LINE);

		op->next = pool->free;
		pool->free = op;
	}
	pool->nfree += n;
	return GANTRY_OK;
}

/* What was given back is free again. */
static void collect_returned(struct op_pool *pool) REQUIRES(op_pool_mu)
{
	struct gantry_proxy_op *op = exchange_acquire(&pool->returned, NULL);

	while (op) {
		struct gantry_proxy_op *next = op->next;

		op->next = pool->free;
		pool->free = op;
		pool->nfree++;
		op = next;
	}
}

gantry_result gantry_proxy_ops_get(struct gantry_proxy *p, uint32_t n, struct gantry_proxy_op **ret_first)
{
	struct op_pool *pool = &p->pool;
	struct gantry_proxy_op *first = NULL;
	gantry_result r = GANTRY_OK;

	op_pool_mu_lock(&pool->mu);
	if (pool->nfree < n)
		collect_returned(pool);
	if (pool->nfree < n)
		TRY(grow_pool(pool, n - pool->nfree));
	for (uint32_t i = 0; i < n; i++) {
		struct gantry_proxy_op *op = pool->free;

		pool->free = op->next;
		memset(op, 0, sizeof(*op));
		op->next = first;
		first = op;
	}
	pool->nfree -= n;
	*ret_first = first;
out:
	op_pool_mu_unlock(&pool->mu);
	return r;
}

void gantry_proxy_ops_put(struct gantry_proxy *p, struct gantry_proxy_op *first)
{
	struct op_pool *pool = &p->pool;

	op_pool_mu_lock(&pool->mu);
	while (first) {
		struct gantry_proxy_op *next = first->next;

		first->next = pool->free;
		pool->free = first;
		pool->nfree++;
		first = next;
	}
	op_pool_mu_unlock(&pool->mu);
}

void gantry_proxy_pool_free(struct op_pool *pool)
{
	while (pool->slabs) {
		void *next = *(void **)pool->slabs;

		free(pool->slabs);
		pool->slabs = next;
	}
}

/* For the thread: what it has spent. */
static void give_back(struct gantry_proxy *p)
{
	struct gantry_proxy_op *top = load_relaxed(&p->pool.returned);

	if (!p->spent)
		return;
	do
		p->spent_last->next = top;
	while (!cas_weak_release(&p->pool.returned, &top, p->spent));
	p->spent = NULL;
}

/* Adds them to their groups' pending, one addition for each run of operations of one group. */
static void count_pending(const struct gantry_proxy_op *first, const struct gantry_proxy_op *last)
{
	struct gantry_proxy_group *g = first->conn->group;
	uint64_t n = 0;

	for (const struct gantry_proxy_op *op = first;; op = op->next) {
		if (op->conn->group != g) {
			fetch_add_relaxed(&g->pending, n);
			g = op->conn->group;
			n = 0;
		}
		n++;
		if (op == last)
			break;
	}
	fetch_add_relaxed(&g->pending, n);
}

static struct gantry_proxy_op *reverse_ops(struct gantry_proxy_op *first, const struct gantry_proxy_op *last)
{
	struct gantry_proxy_op *before = NULL;

	for (;;) {
		struct gantry_proxy_op *next = first->next;

		first->next = before;
		if (first == last || !next)
			return first;
		before = first;
		first = next;
	}
}

void gantry_proxy_append(struct gantry_proxy *p, struct gantry_proxy_op *first, struct gantry_proxy_op *last)
{
	gantry_proxy_push(p, first, last);
	store_seq(&p->driven, 0);
	gantry_eventcount_notify(&p->eventcount);
}

void gantry_proxy_push(struct gantry_proxy *p, struct gantry_proxy_op *first, struct gantry_proxy_op *last)
{
	struct gantry_proxy_op *top;

	if (!first)
		return;
	store_relaxed(&p->driven, (gantry_ticks() + p->pushed_ticks) | 1);
	if (first->conn) /* before the push, so that it never falls below zero */
		count_pending(first, last);
	last->reserved = OP_BATCH_END;
	reverse_ops(first, last);
	top = load_relaxed(&p->inbox);
	/* Sequentially consistent, like the thread's look at it: either it sees the push or we see that it sleeps. */
	do
		first->next = top;
	while (!cas_weak_seq(&p->inbox, &top, last));
}

/*
 * ---- what the progress thread does with operations and connections ----
 *
 * Steps. An operation begins at its connection's `end` rounded up to its chunk_steps, as the kernel does it. The steps
 * that are left out make a gap that is never filled: a counter that has come to the beginning of a gap is moved to its
 * end, on arrival of the operation or after the pass in which it came there. On a sending end the kernel is notified
 * too:
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

static uint64_t coarse_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void ready_add(struct gantry_proxy_conn *pc)
{
	struct gantry_proxy_group *g = pc->group;

	if (gantry_list_empty(&g->ready)) {
		gantry_list_append(&g->proxy->active, &g->in_active);
		ADD(g->proxy->nactive, 1);
		ADD(g->proxy->nown, !g->config.any_thread);
	}
	gantry_list_append(&g->ready, &pc->ready);
}

static void ready_remove(struct gantry_proxy_conn *pc)
{
	struct gantry_proxy_group *g = pc->group;

	gantry_list_remove(&pc->ready);
	if (gantry_list_empty(&g->ready)) {
		gantry_list_remove(&g->in_active);
		ADD(g->proxy->nactive, (uint32_t)-1);
		ADD(g->proxy->nown, -(uint32_t)!g->config.any_thread);
	}
}

/* The end of an operation that is on no queue any more; pending falls when the counters are shown. */
static void end_op(struct gantry_proxy *p, struct gantry_proxy_op *op, uint64_t how)
{
	uint64_t c = GANTRY_EV_BYTES(op->bytes) | (uint64_t)op->proto << 56 | how;

	gantry_event_put(GANTRY_EV_PROXY_OP, op->conn->id, op->id, c);
	op->next = NULL; /* back to the pool, with all others of this pass */
	if (p->spent)
		p->spent_last->next = op;
	else
		p->spent = op;
	p->spent_last = op;
}

/* Release, and after show_conn(): a thread that sees pending fall sees the counters. */
static void count_ended(struct gantry_proxy_group *g, uint64_t ops)
{
	if (ops)
		fetch_sub_release(&g->pending, ops);
}

static uint64_t sum_of(const struct gantry_proxy_conn *pc)
{
	return pc->posted + pc->moved + pc->flushed + pc->done;
}

static void show_conn(struct gantry_proxy_conn *pc)
{
	pc->sum = sum_of(pc);
	PUT(pc->shown.posted, pc->posted);
	PUT(pc->shown.moved, pc->moved);
	PUT(pc->shown.flushed, pc->flushed);
	PUT(pc->shown.done, pc->done);
	PUT(pc->shown.end, pc->end);
	PUT(pc->shown.op, pc->first ? pc->first->id : 0);
	PUT(pc->shown.busy, pc->first != NULL);
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
static void settle_conn(struct gantry_proxy_conn *pc)
{
	struct gantry_proxy_op *op;
	uint64_t n = 0;

	/* A transport may leave it to gantry_proxy_done to count. */
	if (pc->send && pc->told > pc->done)
		pc->done = pc->told;
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
	show_conn(pc);
	if (!pc->first)
		ready_remove(pc);
	count_ended(pc->group, n);
}

static void take_op(struct gantry_proxy *p, struct gantry_proxy_op *op)
{
	struct gantry_proxy_conn *pc = op->conn;
	struct gantry_proxy_group *g = pc->group;
	uint64_t chunk = op->chunk_steps ? op->chunk_steps : 1;

	ADD(p->stats.ops, 1);
	ADD(p->stats.batches, op->reserved == OP_BATCH_END);
	op->next = NULL;
	if (!op->slice_steps || op->proto != GANTRY_PROTO_SIMPLE)
		op->slice_steps = 1; /* a slice of lines is a step, whatever the collective says */
	ASSERT(op->nsteps % op->slice_steps == 0 && chunk % op->slice_steps == 0);
	/* One that moves nothing leaves no gap, as in device/k_prim.h. */
	op->base = op->nsteps ? (pc->end + chunk - 1) / chunk * chunk : pc->end;
	if (g->error != GANTRY_OK) {
		end_op(p, op, GANTRY_EV_OP_END | GANTRY_EV_OP_CUT);
		count_ended(g, 1);
		return;
	}
	gantry_event_put(GANTRY_EV_PROXY_OP, pc->id, op->id, GANTRY_EV_BYTES(op->bytes) | (uint64_t)op->proto << 56);
	pc->end = op->base + op->nsteps;
	if (pc->first) {
		pc->last->next = op;
	} else {
		pc->first = op;
		ready_add(pc);
		PUT(pc->progress_ns, coarse_ns()); /* a stall is counted from here */
	}
	pc->last = op;
	settle_conn(pc);
}

/* All operations of a group end here, done or not. */
static void drop_all(struct gantry_proxy *p, struct gantry_proxy_group *g)
{
	gantry_list_each_entry_safe (pc, &g->ready, struct gantry_proxy_conn, ready) {
		uint64_t n = 0;

		while (pc->first) {
			struct gantry_proxy_op *op = pc->first;

			pc->first = op->next;
			end_op(p, op, GANTRY_EV_OP_END | GANTRY_EV_OP_CUT);
			n++;
		}
		pc->last = pc->current = NULL;
		gantry_proxy_waits_end(pc);
		show_conn(pc);
		ready_remove(pc);
		count_ended(g, n);
	}
}

/* The error is set before any operation ends by it: a thread that sees pending fall finds the cause. */
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
static void release_group(struct gantry_proxy *p, struct gantry_proxy_group *g)
{
	drop_all(p, g);
	proxy_mu_lock(&p->mu);
	g->gone = 1;
	gantry_cond_broadcast(&p->cond);
	proxy_mu_unlock(&p->mu);
}

/* 1: there were some. */
static int take_arrivals(struct gantry_proxy *p)
{
	struct gantry_proxy_op *op, *next;

	/* A load first: the exchange would take the line from the appenders on every pass. */
	if (!load_seq(&p->inbox))
		return 0;
	for (op = reverse_ops(exchange_seq(&p->inbox, NULL), NULL); op; op = next) {
		next = op->next;
		if (op->conn)
			take_op(p, op);
		else
			release_group(p, gantry_container(op, struct gantry_proxy_group, bye));
	}
	return 1;
}

static void count_moved(struct gantry_proxy_conn *pc)
{
	uint64_t step = pc->shown.posted;

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
	settle_conn(pc);
}

/* 1: something moved. */
static int pass_group(struct gantry_proxy *p, struct gantry_proxy_group *g)
{
	int worked = 0;

	gantry_list_each_entry_safe (pc, &g->ready, struct gantry_proxy_conn, ready) {
		int did = 0;
		gantry_result r = pc->side->proxy_progress(pc, &did);

		if (__builtin_expect(r != GANTRY_OK && r != GANTRY_AGAIN, 0)) {
			int peer = pc->connector && pc->connector->peer ? pc->connector->peer->rank : -1;

			fail_group(p, g, r, pc->blames ? (pc->blames > 0 ? pc->blames - 1 : -1) : peer,
				   gantry_last_error());
			return 1;
		}
		/* The counters only grow, so their sum tells, whatever the transport says. Against the sum of the last
		 * time, not of before the call: a transport may move several of its connections in the call for one. */
		if (did || sum_of(pc) != pc->sum) {
			count_moved(pc);
			worked = 1;
		}
	}
	return worked;
}

/* Over all ready connections. 1: something moved. */
static int pass_all(struct gantry_proxy *p, int own_thread)
{
	int worked = 0;

	gantry_list_each_entry_safe (g, &p->active, struct gantry_proxy_group, in_active) {
		if (!own_thread && (!g->config.any_thread || load_acquire(&g->bound)))
			continue;
		/* Sequentially consistent: a thread that sets it and notifies is seen before the sleep. */
		if (g->config.abort && load_seq(g->config.abort)) {
			LOG_INFO(PROXY, "aborted: ending %llu operations", (unsigned long long)GET(g->pending));
			fail_group(p, g, GANTRY_ERR_ABORTED, -1, NULL);
			worked = 1;
			continue;
		}
		if (!g->config.held || !load_acquire(g->config.held))
			worked |= pass_group(p, g);
	}
	return worked;
}

/* ---- a round, and threads that drive ---- */

int gantry_proxy_round(struct gantry_proxy *p, int own_thread)
{
	uint32_t idle = 0;
	int worked;

	if (!cas_acq_rel(&p->driver, &idle, 1))
		return -1;
	worked = take_arrivals(p);
	worked |= pass_all(p, own_thread);
	give_back(p);
	ADD(p->stats.passes, 1);
	ADD(p->stats.worked, (uint64_t)worked);
	store_release(&p->driver, 0);
	return worked;
}

int gantry_proxy_drive(void *group)
{
	struct gantry_proxy_group *g = group;

	store_relaxed(&g->proxy->driven, (gantry_ticks() + g->proxy->driven_ticks) | 1);
	return gantry_proxy_round(g->proxy, 0) > 0;
}

void gantry_proxy_leave(void *group)
{
	struct gantry_proxy_group *g = group;

	store_seq(&g->proxy->driven, 0);
	/* Most of the time all that is left is to see what the kernel has just consumed. */
	if (load_seq(&g->pending))
		gantry_proxy_round(g->proxy, 0);
	if (load_seq(&g->pending))
		gantry_eventcount_notify(&g->proxy->eventcount);
}

/*
 * ---- groups and connections as their owners see them ----
 *
 * The progress thread learns of a connection by its first operation, and of the end of a group by a message in the
 * inbox.
 */

gantry_result gantry_proxy_group_create(struct gantry_proxy *p, const struct gantry_proxy_group_config *config,
					struct gantry_proxy_group **ret_group)
{
	struct gantry_proxy_group *g = calloc(1, sizeof(*g));

	if (!g)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a group of connections");
	g->proxy = p;
	g->config = *config;
	gantry_list_init(&g->in_active);
	gantry_list_init(&g->ready);
	*ret_group = g;
	return GANTRY_OK;
}

/* The thread passes in microseconds. If it does not, a transport blocks in it, and the user should hear that. */
static void wait_until_gone(struct gantry_proxy *p, struct gantry_proxy_group *g)
{
	int complained = 0;

	proxy_mu_lock(&p->mu);
	while (!g->gone) {
		if (!mutex_wait_until(&p->cond, &p->mu, gantry_now_ns() + COMPLAIN_S * 1000000000ull) && !complained++)
			LOG_WARN(PROXY,
				 "the progress thread has not responded for %d s: a transport call is blocking it",
				 COMPLAIN_S);
	}
	proxy_mu_unlock(&p->mu);
}

void gantry_proxy_group_destroy(struct gantry_proxy_group *g)
{
	if (!g)
		return;
	gantry_proxy_append(g->proxy, &g->bye, &g->bye);
	wait_until_gone(g->proxy, g);
	free(g);
}

gantry_result gantry_proxy_group_error(const struct gantry_proxy_group *g)
{
	return (gantry_result)load_acquire(&g->error);
}

void gantry_proxy_group_bind(struct gantry_proxy_group *g)
{
	store_release(&g->bound, 1);
}

uint64_t gantry_proxy_group_pending(const struct gantry_proxy_group *g)
{
	return load_acquire(&g->pending);
}

gantry_result gantry_proxy_conn_create(struct gantry_proxy *p, struct gantry_proxy_group *g, struct gantry_connector *c,
				       struct gantry_proxy_conn **ret_conn)
{
	static uint32_t last_id;
	size_t size = (sizeof(struct gantry_proxy_conn) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	struct gantry_proxy_conn *pc = aligned_alloc(CACHE_LINE, size);

	if (!pc)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a connection's proxy half");
	memset(pc, 0, size);
	gantry_list_init(&pc->ready);
	pc->connector = c;
	pc->proxy = p;
	pc->group = g;
	pc->send = c->send;
	pc->id = fetch_add_relaxed(&last_id, 1) + 1;
	if (c->transport)
		pc->side = c->send ? c->transport->send : c->transport->recv;
	*ret_conn = pc;
	return GANTRY_OK;
}

void gantry_proxy_conn_destroy(struct gantry_proxy_conn *pc)
{
	free(pc);
}
