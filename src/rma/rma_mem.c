/* SPDX-License-Identifier: Apache-2.0 */
/* Memory by number, and copies: at once between host memory, by the device's queues where it has a part in them. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "rma/rma_priv.h"

static gantry_result add_memory(struct rma_comm *c, const struct rma_memory *m, uint32_t *ret_number)
{
	gantry_result r = GANTRY_OK;
	struct rma_memory *grown;

	rma_mu_lock(&c->mu);
	if (c->memory.count == RMA_MEMORIES_MAX)
		FAIL(GANTRY_ERR_LIMIT, "more than %d registrations", RMA_MEMORIES_MAX);
	if (c->memory.count == c->memory.room) {
		uint32_t room = c->memory.room ? 2 * c->memory.room : 16;

		grown = realloc(c->memory.all, room * sizeof(*grown));
		if (!grown)
			FAIL(GANTRY_ERR_NOMEM, "no memory for %u registrations", room);
		c->memory.all = grown;
		c->memory.room = room;
	}
	c->memory.all[c->memory.count++] = *m;
	*ret_number = c->memory.count;
out:
	rma_mu_unlock(&c->mu);
	return r;
}

gantry_result rma_register(struct rma_comm *c, void *base, size_t size, enum rma_kind kind, uint32_t *ret_number)
{
	const struct rma_memory m = {.base = base, .size = size, .device = kind == RMA_DEVICE && rma_copies(c)};

	if (!base || !size || (kind == RMA_DEVICE && !c->device))
		FAIL_NOW(GANTRY_ERR_INVALID, "cannot register %zu bytes at %p%s", size, base,
			 kind == RMA_DEVICE && !c->device ? ": there is no device" : "");
	return add_memory(c, &m, ret_number);
}

gantry_result rma_register_nothing(struct rma_comm *c, uint32_t *ret_number)
{
	const struct rma_memory none = {0};

	return add_memory(c, &none, ret_number);
}

static bool lies_in(const struct rma_memory *m, const char *at)
{
	return at >= m->base && at < m->base + m->size;
}

/* Operations that have come and are not over. Their pieces are received there whenever bytes come, or their signals are added. */
static bool is_used_in(const struct rma_rx *rx, const struct rma_memory *m) REQUIRES(rma_mu)
{
	gantry_list_each_entry (op, &rx->answers, struct rma_op, order)
		if (lies_in(m, op->to.at))
			return true;
	gantry_list_each_entry (x, &rx->active, struct rma_context, node)
		gantry_list_each_entry (op, &x->ops, struct rma_op, order)
			if (lies_in(m, op->to.at) || lies_in(m, op->from) || lies_in(m, op->word.at))
				return true;
	return false;
}

/* Gets of this rank that are not answered, wherever they are. */
static bool is_wanted_in(const struct rma_comm *c, const struct rma_memory *m) REQUIRES(rma_mu)
{
	for (uint32_t i = 0; i < c->ngets; i++)
		if (c->gets[i] && lies_in(m, c->gets[i]->local.at))
			return true;
	return false;
}

static bool reads(const struct rma_request *q, const struct rma_memory *m, bool answers) REQUIRES(rma_mu)
{
	return q && q->answer == answers && lies_in(m, q->local.at);
}

/* Requests of this rank, or answers to others, that the network or a copy queue still reads from there. */
static bool is_used_out(const struct rma_tx *tx, const struct rma_memory *m, bool answers) REQUIRES(rma_mu)
{
	gantry_list_each_entry (q, &tx->waiting, struct rma_request, queue)
		if (reads(q, m, answers))
			return true;
	gantry_list_each_entry (q, &tx->bulk, struct rma_request, queue)
		if (reads(q, m, answers))
			return true;
	for (uint64_t k = tx->heads_sent; k < tx->heads_filled; k++)
		if (reads(tx->heads[k % RMA_HEADS_OUT].request, m, answers))
			return true;
	for (uint64_t k = tx->pieces_over; k < tx->pieces_filled; k++)
		if (reads(tx->pieces[k % RMA_PIECES_OUT].request, m, answers))
			return true;
	return false;
}

static bool is_answered_from(const struct rma_comm *c, const struct rma_memory *m) REQUIRES(rma_mu)
{
	for (uint32_t i = 0; i < c->ranks; i++)
		if (is_used_out(&c->peers[i].tx, m, true))
			return true;
	return false;
}

static bool is_used(const struct rma_comm *c, const struct rma_memory *m) REQUIRES(rma_mu)
{
	for (uint32_t i = 0; i < c->ranks; i++)
		if (is_used_in(&c->peers[i].rx, m) || is_used_out(&c->peers[i].tx, m, false))
			return true;
	return (c->signals.unwritten && lies_in(m, c->signals.unwritten->at)) || is_wanted_in(c, m) ||
	       is_answered_from(c, m);
}

/* A get may be done at its rank while the network here still has the answer, in case it has to be sent again. */
static void finish_answers(struct rma_comm *c, const struct rma_memory *m) REQUIRES(rma_mu)
{
	const struct timespec nap = {.tv_nsec = 50000};
	uint64_t deadline = gantry_now_ns() + c->timeout;

	while (c->error.result == GANTRY_OK && is_answered_from(c, m) && gantry_now_ns() < deadline) {
		rma_progress_locked(c); /* an error is latched */
		rma_mu_unlock(&c->mu);
		nanosleep(&nap, NULL);
		rma_mu_lock(&c->mu);
	}
}

/* The copies that are in the device's queues now are over, be it for an error. */
static bool are_copied(const struct rma_comm *c, const uint64_t fences[GANTRY_COPY_QUEUES])
{
	bool over = true;

	for (int i = 0; i < GANTRY_COPY_QUEUES; i++)
		over &= c->device->ops->fence_reached(c->device, (enum gantry_copy_queue)i, fences[i]) != GANTRY_AGAIN;
	return over;
}

bool rma_finish_copies(struct rma_comm *c)
{
	const struct timespec nap = {.tv_nsec = 20000};
	const uint64_t deadline = gantry_now_ns() + RMA_COPIES_NS;
	uint64_t fences[GANTRY_COPY_QUEUES] = {0};

	if (!rma_copies(c))
		return true;
	for (int i = 0; i < GANTRY_COPY_QUEUES; i++)
		if (c->device->ops->queue_fence(c->device, (enum gantry_copy_queue)i, &fences[i]) != GANTRY_OK)
			return false;
	while (!are_copied(c, fences)) {
		if (gantry_now_ns() >= deadline) {
			LOG_WARN(NET, "rank %u: copies of %s did not finish within 10 s", c->rank, c->device->name);
			return false;
		}
		nanosleep(&nap, NULL);
	}
	return true;
}

gantry_result rma_deregister(struct rma_comm *c, uint32_t number)
{
	gantry_result r = GANTRY_OK;
	struct rma_memory m = {0};

	rma_mu_lock(&c->mu);
	if (!number || number > c->memory.count || !c->memory.all[number - 1].base)
		FAIL(GANTRY_ERR_INVALID, "memory %u is not registered", number);
	m = c->memory.all[number - 1];
	c->memory.all[number - 1].base = NULL;
	finish_answers(c, &m);
	if (is_used(c, &m)) {
		if (c->error.result == GANTRY_OK) {
			rma_fail(c, GANTRY_ERR_USAGE, (int)c->rank,
				 "memory was deregistered while requests were using it");
			LOG_ERROR(NET, "rank %u: memory %u was deregistered while requests were using it", c->rank,
				  number);
		}
		net_mesh_destroy(c->mesh);
		c->mesh = NULL;
	}
out:
	rma_mu_unlock(&c->mu);
	if (m.base)
		rma_finish_copies(
			c); /* of operations that are over, too: these are when their copies are in the queue */
	return r;
}

gantry_result rma_span_of(const struct rma_comm *c, struct rma_place at, uint64_t bytes, struct rma_span *ret)
{
	const struct rma_memory *m = at.memory && at.memory <= c->memory.count ? &c->memory.all[at.memory - 1] : NULL;

	*ret = (struct rma_span){0};
	if (!bytes && at.memory == RMA_NO_MEMORY)
		return GANTRY_OK;
	if (!m || !m->base)
		FAIL_NOW(GANTRY_ERR_INVALID, "rank %u: memory %u is not registered", c->rank, at.memory);
	if (at.offset > m->size || bytes > m->size - at.offset)
		FAIL_NOW(GANTRY_ERR_INVALID, "rank %u: %llu bytes at %llu exceed memory %u of %llu bytes", c->rank,
			 (unsigned long long)bytes, (unsigned long long)at.offset, at.memory,
			 (unsigned long long)m->size);
	*ret = (struct rma_span){m->base + at.offset, m->device};
	return GANTRY_OK;
}

/* What the queue was just asked for joins its open batch. */
static void join_batch(struct rma_comm *c, enum gantry_copy_queue queue, struct rma_fence *ret_fence) REQUIRES(rma_mu)
{
	struct rma_batches *b = &c->batches[queue];

	b->joined = true;
	*ret_fence = (struct rma_fence){true, queue, b->open};
}

/* Those of which the device says so. */
static gantry_result end_batches(struct rma_comm *c, enum gantry_copy_queue queue) REQUIRES(rma_mu)
{
	struct rma_batches *b = &c->batches[queue];

	while (b->over + 1 < b->open) {
		TRY_NOW(c->device->ops->fence_reached(c->device, queue, b->fences[(b->over + 1) % RMA_BATCHES]));
		b->over++;
	}
	return GANTRY_OK;
}

static gantry_result close_batch(struct rma_comm *c, enum gantry_copy_queue queue) REQUIRES(rma_mu)
{
	struct rma_batches *b = &c->batches[queue];
	gantry_result r;

	if (!b->joined)
		return GANTRY_OK;
	r = end_batches(c, queue);
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	if (b->open - b->over == RMA_BATCHES) /* the next call of progress closes it */
		return GANTRY_OK;
	TRY_NOW(c->device->ops->queue_fence(c->device, queue, &b->fences[b->open % RMA_BATCHES]));
	b->joined = false;
	b->open++;
	return GANTRY_OK;
}

gantry_result rma_batches_close(struct rma_comm *c)
{
	for (int i = 0; i < GANTRY_COPY_QUEUES; i++)
		TRY_NOW(close_batch(c, (enum gantry_copy_queue)i));
	return GANTRY_OK;
}

gantry_result rma_store(struct rma_comm *c, char *to, uint64_t word, struct rma_fence *ret_fence)
{
	TRY_NOW(c->device->ops->queue_store(c->device, GANTRY_COPY_IN, to, word));
	join_batch(c, GANTRY_COPY_IN, ret_fence);
	return GANTRY_OK;
}

gantry_result rma_copy(struct rma_comm *c, struct rma_span to, struct rma_span from, uint64_t bytes,
		       struct rma_fence *ret_fence)
{
	struct gantry_device *d = c->device;

	*ret_fence = (struct rma_fence){.queue = to.device ? GANTRY_COPY_IN : GANTRY_COPY_OUT};
	if (!bytes)
		return GANTRY_OK;
	if (!to.device && !from.device) {
		memmove(to.at, from.at, bytes);
		return GANTRY_OK;
	}
	TRY_NOW(d->ops->queue_copy(d, ret_fence->queue, to.at, from.at, bytes));
	join_batch(c, ret_fence->queue, ret_fence);
	return GANTRY_OK;
}

gantry_result rma_fence_over(struct rma_comm *c, struct rma_fence *f)
{
	gantry_result r;

	if (!f->pending)
		return GANTRY_OK;
	if (f->batch > c->batches[f->queue].over) {
		r = end_batches(c, f->queue);
		if (r != GANTRY_OK && r != GANTRY_AGAIN)
			return r;
		if (f->batch > c->batches[f->queue].over)
			return GANTRY_AGAIN;
	}
	f->pending = false;
	return GANTRY_OK;
}

gantry_result rma_mapped_alloc(struct rma_comm *c, size_t size, void **ret)
{
	void *device;

	if (c->device)
		return c->device->ops->alloc_mapped(c->device, size, ret, &device);
	*ret = calloc(1, size);
	if (!*ret)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %zu bytes of messages", size);
	return GANTRY_OK;
}

void rma_mapped_free(struct rma_comm *c, void *p)
{
	if (c->device && p)
		c->device->ops->free_mapped(c->device, p);
	else
		free(p);
}
