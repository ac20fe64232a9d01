/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/tcp/stage.h"

#include <stdlib.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/text.h"
#include "device/device.h"
#include "device/pinned.h"
#include "net/tcp/worker.h"

MUTEX_KIND(stage_mu);  /* the innermost lock of all */
MUTEX_KIND(stages_mu); /* of the list of stages and their counts */

struct tcp_stage {
	struct gantry_list node; /* in `stages`; stages_mu, as refs */
	int refs;
	struct gantry_device *device; /* owned reference */
	struct stage_mu mu;
	struct gantry_pinned pool GUARDED_BY(stage_mu);
	struct gantry_piece *draining GUARDED_BY(stage_mu); /* given back while the copy was under way */
};

static struct stages_mu stages_mu_one;
static struct gantry_list stages GUARDED_BY(stages_mu) = {&stages, &stages};

/* UNCHECKED: no other thread has a reference to the stage any more. */
static void stage_free(struct tcp_stage *s) UNCHECKED
{
	if (!s)
		return;
	for (struct gantry_piece *b = s->draining; b; b = b->next)
		gantry_fence_await(s->device, GANTRY_COPY_OUT, b->fence);
	gantry_pinned_free(&s->pool);
	gantry_device_close(s->device);
	free(s);
}

/* UNCHECKED: no other thread has a reference to the stage yet. */
static gantry_result stage_new(struct gantry_device *dev, struct tcp_stage **ret_stage) UNCHECKED
{
	gantry_result r = GANTRY_OK;
	struct tcp_stage *s = calloc(1, sizeof(*s));

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a stage");
	s->refs = 1;
	TRY(gantry_device_open(dev->kind, dev->index, &s->device));
	gantry_pinned_init(&s->pool, dev, STAGE_UNIT);
	TRY(gantry_pinned_grow(&s->pool, gantry_params()->unpack_stage / STAGE_UNIT * STAGE_UNIT, STAGE_PIECES));
	LOG_DEBUG(DATA, "%s: messages go out through %s of pinned memory", dev->name, SIZE_TEXT(s->pool.memory));
	*ret_stage = s;
	s = NULL;
out:
	stage_free(s);
	return r;
}

gantry_result tcp_stage_get(struct gantry_device *dev, struct tcp_stage **ret_stage)
{
	gantry_result r = GANTRY_OK;

	stages_mu_lock(&stages_mu_one);
	gantry_list_each_entry (s, &stages, struct tcp_stage, node) {
		if (s->device == dev) {
			ASSERT(s->refs > 0);
			s->refs++;
			*ret_stage = s;
			goto out;
		}
	}
	TRY(stage_new(dev, ret_stage));
	gantry_list_append(&stages, &(*ret_stage)->node);
out:
	stages_mu_unlock(&stages_mu_one);
	return r;
}

void tcp_stage_put(struct tcp_stage *s)
{
	int last;

	if (!s)
		return;
	stages_mu_lock(&stages_mu_one);
	ASSERT(s->refs > 0);
	last = --s->refs == 0;
	if (last)
		gantry_list_remove(&s->node);
	stages_mu_unlock(&stages_mu_one);
	if (last)
		stage_free(s);
}

/* Pieces whose copies have ended since they were given back. */
static void sweep_draining(struct tcp_stage *s) REQUIRES(stage_mu)
{
	ASSERT_HELD(&s->mu);
	for (struct gantry_piece **at = &s->draining, *b; (b = *at);) {
		/* After an error of the device nothing is copied any more. */
		if (s->device->ops->fence_reached(s->device, GANTRY_COPY_OUT, b->fence) == GANTRY_AGAIN) {
			at = &b->next;
			continue;
		}
		*at = b->next;
		gantry_pinned_give(&s->pool, b);
	}
}

gantry_result tcp_stage_copy(struct tcp_stage *s, const void *src, uint64_t size, struct gantry_piece **ret_piece)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *dev = s->device;
	struct gantry_piece *b = NULL;
	uint64_t most;

	stage_mu_lock(&s->mu);
	sweep_draining(s);
	b = gantry_pinned_take(&s->pool, size);
	most = s->pool.memory;
	stage_mu_unlock(&s->mu);
	if (size > most)
		FAIL(GANTRY_ERR_LIMIT, "a message of %s from device memory does not fit GANTRY_UNPACK_STAGE (%s)",
		     SIZE_TEXT(size), SIZE_TEXT(most));
	if (!b)
		return GANTRY_AGAIN;
	TRY(dev->ops->queue_copy(dev, GANTRY_COPY_OUT, b->host, src, size));
	/* Without a fence there is no way to know when the piece is free: it is lost, and the error ends the link. */
	b->fence = UINT64_MAX;
	b->copying = true;
	TRY(dev->ops->queue_fence(dev, GANTRY_COPY_OUT, &b->fence));
	*ret_piece = b;
	b = NULL;
out:
	if (b)
		tcp_stage_give(s, b);
	return r;
}

gantry_result tcp_stage_ready(struct tcp_stage *s, struct gantry_piece *b)
{
	gantry_result r = s->device->ops->fence_reached(s->device, GANTRY_COPY_OUT, b->fence);

	if (r == GANTRY_OK)
		b->copying = false;
	return r;
}

void tcp_stage_give(struct tcp_stage *s, struct gantry_piece *b)
{
	stage_mu_lock(&s->mu);
	if (b->copying) {
		b->next = s->draining;
		s->draining = b;
	} else {
		gantry_pinned_give(&s->pool, b);
	}
	stage_mu_unlock(&s->mu);
}

/* ---- of a link ---- */

gantry_result tcp_link_stage(struct tcp_link *l, struct gantry_device *dev)
{
	gantry_result r = GANTRY_OK;
	struct tcp_stage *stage = NULL;

	if (load_acquire(&l->devmem->staging))
		return GANTRY_OK;
	TRY(tcp_stage_get(dev, &stage));
	link_mu_lock(&l->mu);
	if (!l->devmem->staging) {
		store_release(&l->devmem->staging, stage);
		stage = NULL;
	}
	link_mu_unlock(&l->mu);
out:
	tcp_stage_put(stage);
	return r;
}

static enum tcp_wake post_staged(struct tcp_link *l, struct tcp_send *s) REQUIRES(link_mu)
{
	ASSERT_HELD(&l->mu);
	ASSERT(s->block);
	s->staged = gantry_ticks();
	gantry_list_append(&l->devmem->copying_out, &s->head.node);
	store_relaxed(&l->devmem->copying_out_n, l->devmem->copying_out_n + 1);
	return s->eager ? TCP_WAKE_NOBODY : TCP_WAKE_WORKERS;
}

static const struct tcp_leave_ops leave_staged = {.trace = ", from device memory", .post = post_staged};

gantry_result tcp_link_isend_device(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request)
{
	gantry_result r = GANTRY_OK;
	struct tcp_stage *stage = load_acquire(&l->devmem->staging);
	struct tcp_send *s;

	TRY(tcp_link_status(l, &l->tx.end));
	if (!size)
		return tcp_link_isend(l, NULL, 0, tag, ret_request);
	if (!stage)
		FAIL(GANTRY_ERR_USAGE, "isend from device memory that is not registered with this comm");
	*ret_request = NULL;
	/* Pieces of what is already sent come back when it is tested; copies that are done must not wait for that. */
	tcp_stage_progress(l);
	s = tcp_send_take(l, NULL, size, tag);
	if (!s)
		return GANTRY_OK;
	r = tcp_stage_copy(stage, data, size, &s->block);
	if (r != GANTRY_OK) {
		tcp_send_drop(l, s);
		return r == GANTRY_AGAIN ? GANTRY_OK : r;
	}
	s->data = s->block->host;
	r = tcp_send_post(l, s, &leave_staged, ret_request);
out:
	return r;
}

/* The oldest message that is being copied goes on its way. AGAIN: its bytes are not here yet. */
static gantry_result finish_copy(struct tcp_link *l, bool *ret_flush) REQUIRES(link_mu)
{
	struct tcp_link_devmem *d = l->devmem;
	struct tcp_send *s = gantry_container(d->copying_out.next, struct tcp_send, head.node);
	gantry_result r = tcp_stage_ready(d->staging, s->block);

	ASSERT_HELD(&l->mu);
	ASSERT(d->copying_out_n);
	if (r != GANTRY_OK)
		return r;
	gantry_list_remove(&s->head.node);
	store_relaxed(&d->copying_out_n, d->copying_out_n - 1);
	d->staged++;
	d->staged_ticks += gantry_ticks() - s->staged;
	/* Not as it would be posted: this may be a worker, and the pool of sends is the posting thread's. */
	if (s->eager)
		tcp_send_queue_eager(l, s);
	else
		tcp_leave_bulk.post(l, s);
	*ret_flush |= s->eager;
	return GANTRY_OK;
}

void tcp_stage_progress(struct tcp_link *l)
{
	gantry_result r = GANTRY_OK;
	bool flush = false;

	/* A thread that finds the lock taken leaves it to the next look. */
	if (!load_relaxed(&l->devmem->copying_out_n) || tcp_link_failed(l) || !link_mu_trylock(&l->mu))
		return;
	while (r == GANTRY_OK && !gantry_list_empty(&l->devmem->copying_out))
		r = finish_copy(l, &flush);
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		tcp_link_fail_locked(l, 1, r, "a copy from device memory failed: %s", gantry_last_error());
	link_mu_unlock(&l->mu);
	if (flush)
		tcp_control_flush(l);
}

void tcp_stage_return(struct tcp_link *l, struct tcp_send *s)
{
	ASSERT(l->devmem->staging && s->block);
	tcp_stage_give(l->devmem->staging, s->block);
	s->block = NULL;
}

void tcp_stage_close(struct tcp_link *l)
{
	struct tcp_link_devmem *d = l->devmem;
	struct tcp_stage *stage = d->staging;
	const struct gantry_pool *sends = l->sends;

	ASSERT_HELD(&l->mu);
	ASSERT(!stage || sends);
	gantry_list_init(&d->copying_out);
	store_relaxed(&d->copying_out_n, 0);
	for (size_t i = 0; stage && i < sends->count; i++) {
		struct tcp_send *s = (void *)((char *)sends->memory + i * sends->object_size);

		if (s->block)
			tcp_stage_return(l, s);
	}
	store_release(&d->staging, NULL);
	if (stage)
		d->staging_left = stage;
	if (d->staged)
		LOG_INFO(DATA, "%s sent from device memory, %.1f us each until in pinned memory (%s)",
			 COUNT_TEXT(d->staged, "message"), gantry_us_of_ticks(d->staged_ticks) / (double)d->staged,
			 l->session.peer);
	d->staged = 0;
}
