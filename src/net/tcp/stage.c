/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/tcp/stage.h"

#include <stdlib.h>

#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/param_text.h"
#include "device/device.h"
#include "device/pinned.h"

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

static struct stages_mu stages_mu_one = MUTEX_INITIALIZER;
static struct gantry_list stages GUARDED_BY(stages_mu) = {&stages, &stages};

/* UNCHECKED: nobody else knows the stage any more. */
static void stage_free(struct tcp_stage *s) UNCHECKED
{
	if (!s)
		return;
	for (struct gantry_piece *b = s->draining; b; b = b->next)
		gantry_move_await(s->device, GANTRY_WAY_OUT, b->fence);
	gantry_pinned_free(&s->pool);
	gantry_device_close(s->device);
	mutex_destroy(&s->mu);
	free(s);
}

/* UNCHECKED: nobody else knows the stage yet. */
static gantry_result stage_new(struct gantry_device *dev, struct tcp_stage **ret_stage) UNCHECKED
{
	gantry_result r = GANTRY_OK;
	struct tcp_stage *s = calloc(1, sizeof(*s));

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a stage");
	mutex_init(&s->mu);
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
	gantry_list_each (pos, &stages) {
		struct tcp_stage *s = gantry_container(pos, struct tcp_stage, node);

		if (s->device == dev) {
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
	last = --s->refs == 0;
	if (last)
		gantry_list_remove(&s->node);
	stages_mu_unlock(&stages_mu_one);
	if (last)
		stage_free(s);
}

/* Pieces whose copies have ended since they were given back. */
static void sweep(struct tcp_stage *s) REQUIRES(stage_mu)
{
	for (struct gantry_piece **at = &s->draining, *b; (b = *at);) {
		/* After an error of the device nothing is copied any more. */
		if (s->device->ops->moved(s->device, GANTRY_WAY_OUT, b->fence) == GANTRY_AGAIN) {
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
	sweep(s);
	b = gantry_pinned_take(&s->pool, size);
	most = s->pool.memory;
	stage_mu_unlock(&s->mu);
	if (size > most)
		FAIL(GANTRY_ERR_LIMIT, "a message of %s from device memory does not fit GANTRY_UNPACK_STAGE (%s)",
		     SIZE_TEXT(size), SIZE_TEXT(most));
	if (!b)
		return GANTRY_AGAIN;
	TRY(dev->ops->move(dev, GANTRY_WAY_OUT, b->host, src, size));
	/* Without a fence nobody can know when the piece is free: it is lost, and the error ends the link. */
	b->fence = UINT64_MAX;
	b->copying = true;
	TRY(dev->ops->move_ticket(dev, GANTRY_WAY_OUT, &b->fence));
	*ret_piece = b;
	b = NULL;
out:
	if (b)
		tcp_stage_give(s, b);
	return r;
}

gantry_result tcp_stage_ready(struct tcp_stage *s, struct gantry_piece *b)
{
	gantry_result r = s->device->ops->moved(s->device, GANTRY_WAY_OUT, b->fence);

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

uint64_t tcp_stage_taken(struct tcp_stage *s)
{
	uint64_t taken;

	stage_mu_lock(&s->mu);
	sweep(s);
	taken = s->pool.taken;
	stage_mu_unlock(&s->mu);
	return taken;
}
