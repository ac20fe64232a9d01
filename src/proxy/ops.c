/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on their way: pool -> caller -> inbox -> progress thread -> pool.
 *
 * The inbox is a stack onto which a whole chain is pushed by one compare-and-swap, and which the thread empties by one
 * exchange. Nobody ever takes a single element, so a pointer that comes back between a load and a swap (ABA) does no
 * harm. An appender turns its chain round before it pushes it; the thread turns the whole stack round. So the order of
 * each appender is kept, and the chains of one appender stay in order among each other.
 *
 * The pool: takers share a mutex; those who give back push onto a stack of their own, so the progress thread never
 * waits for a taker that lost its CPU.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PROXY
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "proxy/engine.h"

enum { SLAB_OPS = 255 }; /* and a line for the link: 16 KiB */

void gantry_proxy_pool_init(struct op_pool *pool)
{
	memset(pool, 0, sizeof(*pool));
	mutex_init(&pool->mu);
}

void gantry_proxy_pool_destroy(struct op_pool *pool)
{
	while (pool->slabs) {
		void *next = *(void **)pool->slabs;

		free(pool->slabs);
		pool->slabs = next;
	}
	mutex_destroy(&pool->mu);
}

static gantry_result grow(struct op_pool *pool, uint64_t n) REQUIRES(op_pool_mu)
{
	gantry_result r = GANTRY_OK;
	size_t size;
	char *slab;

	n = n < SLAB_OPS ? SLAB_OPS : n;
	size = (size_t)(n + 1) * CACHE_LINE;
	slab = aligned_alloc(CACHE_LINE, size);
	if (!slab)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %llu proxy operations", (unsigned long long)n);
	*(void **)(void *)slab = pool->slabs;
	pool->slabs = slab;
	/* From the end, so that the lowest address is handed out first. */
	for (uint64_t i = n; i > 0; i--) {
		struct gantry_proxy_op *op = (void *)(slab + i * CACHE_LINE);

		op->next = pool->free;
		pool->free = op;
	}
	pool->nfree += n;
out:
	return r;
}

/* What was given back is free again. */
static void collect(struct op_pool *pool) REQUIRES(op_pool_mu)
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
		collect(pool);
	if (pool->nfree < n)
		TRY(grow(pool, n - pool->nfree));
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

void gantry_proxy_pool_put(struct op_pool *pool, struct gantry_proxy_op *first, struct gantry_proxy_op *last)
{
	struct gantry_proxy_op *top = load_relaxed(&pool->returned);

	do
		last->next = top;
	while (!cas_weak_release(&pool->returned, &top, first));
}

void gantry_proxy_ops_put(struct gantry_proxy *p, struct gantry_proxy_op *first)
{
	struct gantry_proxy_op *last = first;

	if (!first)
		return;
	while (last->next)
		last = last->next;
	gantry_proxy_pool_put(&p->pool, first, last);
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

/* Sequentially consistent, like the thread's look at it: either it sees the push or we see that it sleeps. */
static void push(struct gantry_proxy *p, struct gantry_proxy_op *newest, struct gantry_proxy_op *oldest)
{
	struct gantry_proxy_op *top = load_relaxed(&p->inbox);

	do
		oldest->next = top;
	while (!cas_weak_seq(&p->inbox, &top, newest));
	gantry_eventcount_notify(&p->eventcount);
}

static struct gantry_proxy_op *reversed(struct gantry_proxy_op *first, const struct gantry_proxy_op *last)
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
	if (!first)
		return;
	if (first->conn) /* before the push, so that it never falls below zero */
		count_pending(first, last);
	last->reserved = OP_BATCH_END;
	reversed(first, last);
	push(p, last, first);
}

struct gantry_proxy_op *gantry_proxy_take(struct gantry_proxy *p)
{
	struct gantry_proxy_op *newest;

	/* A load first: the exchange would take the line from the appenders on every pass. */
	if (!load_seq(&p->inbox))
		return NULL;
	newest = exchange_seq(&p->inbox, NULL);
	return reversed(newest, NULL);
}
