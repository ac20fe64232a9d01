/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/tcp/stage.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/param.h"
#include "base/param_text.h"
#include "device/device.h"

struct tcp_stage {
	struct gantry_list node; /* in `stages`; stages_lock, as refs */
	int refs;
	struct gantry_device *device; /* owned reference */
	uint8_t *memory;	      /* owned */
	uint64_t size;

	pthread_mutex_t lock; /* of everything below */
	struct tcp_stage_block blocks[STAGE_BLOCKS];
	struct gantry_list used, idle, draining;
	struct gantry_list *cursor; /* in `used`: the block that was taken last, or its head */
	uint64_t taken;
};

static pthread_mutex_t stages_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gantry_list stages = {&stages, &stages};

static void stage_free(struct tcp_stage *s)
{
	struct gantry_device *dev;

	if (!s)
		return;
	dev = s->device;
	if (dev) {
		for (int i = 0; i < STAGE_BLOCKS; i++)
			if (s->blocks[i].copying)
				gantry_move_await(dev, GANTRY_WAY_OUT, s->blocks[i].ticket);
		if (s->memory)
			dev->ops->free_mapped(dev, s->memory);
		gantry_device_close(dev);
	}
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static gantry_result stage_new(struct gantry_device *dev, struct tcp_stage **ret_stage)
{
	gantry_result r = GANTRY_OK;
	struct tcp_stage *s = calloc(1, sizeof(*s));
	void *host, *mapped;

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a stage");
	pthread_mutex_init(&s->lock, NULL);
	gantry_list_init(&s->used);
	gantry_list_init(&s->idle);
	gantry_list_init(&s->draining);
	s->cursor = &s->used;
	s->refs = 1;
	TRY(gantry_device_open(dev->kind, dev->index, &s->device));
	s->size = gantry_params()->unpack_stage / STAGE_UNIT * STAGE_UNIT;
	TRY(dev->ops->alloc_mapped(dev, s->size, &host, &mapped));
	s->memory = host;
	for (int i = 0; i < STAGE_BLOCKS; i++) {
		gantry_list_init(&s->blocks[i].drain);
		gantry_list_append(&s->idle, &s->blocks[i].node);
	}
	LOG_DEBUG(DATA, "%s: messages go out through %s of pinned memory", dev->name, SIZE_TEXT(s->size));
	*ret_stage = s;
	s = NULL;
out:
	stage_free(s);
	return r;
}

gantry_result tcp_stage_get(struct gantry_device *dev, struct tcp_stage **ret_stage)
{
	gantry_result r = GANTRY_OK;

	pthread_mutex_lock(&stages_lock);
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
	pthread_mutex_unlock(&stages_lock);
	return r;
}

void tcp_stage_put(struct tcp_stage *s)
{
	int last;

	if (!s)
		return;
	pthread_mutex_lock(&stages_lock);
	last = --s->refs == 0;
	if (last)
		gantry_list_remove(&s->node);
	pthread_mutex_unlock(&stages_lock);
	if (last)
		stage_free(s);
}

/* ---- blocks; with the lock ---- */

static void block_free(struct tcp_stage *s, struct tcp_stage_block *b)
{
	if (s->cursor == &b->node)
		s->cursor = b->node.prev;
	s->taken -= b->size;
	gantry_list_remove(&b->node);
	gantry_list_append(&s->idle, &b->node);
}

static void sweep(struct tcp_stage *s)
{
	gantry_list_each_safe (pos, &s->draining) {
		struct tcp_stage_block *b = gantry_container(pos, struct tcp_stage_block, drain);

		/* After an error of the device nothing is copied any more. */
		if (s->device->ops->moved(s->device, GANTRY_WAY_OUT, b->ticket) == GANTRY_AGAIN)
			continue;
		b->copying = 0;
		gantry_list_remove(&b->drain);
		block_free(s, b);
	}
}

static uint64_t end_of(const struct tcp_stage *s, const struct gantry_list *pos)
{
	const struct tcp_stage_block *b;

	if (pos == &s->used)
		return 0;
	b = gantry_container(pos, struct tcp_stage_block, node);
	return b->at + b->size;
}

static uint64_t start_of(const struct tcp_stage *s, const struct gantry_list *pos)
{
	return pos == &s->used ? s->size : gantry_container(pos, struct tcp_stage_block, node)->at;
}

/* NULL: there is no room now. */
static struct tcp_stage_block *block_take(struct tcp_stage *s, uint64_t size)
{
	struct gantry_list *pos = s->cursor;

	if (gantry_list_empty(&s->idle))
		return NULL;
	do {
		struct tcp_stage_block *b;
		uint64_t at = end_of(s, pos);

		if (start_of(s, pos->next) - at < size) {
			pos = pos->next;
			continue;
		}
		b = gantry_container(s->idle.next, struct tcp_stage_block, node);
		gantry_list_remove(&b->node);
		gantry_list_append(pos->next, &b->node); /* before its successor */
		b->at = at;
		b->size = size;
		b->data = s->memory + at;
		s->cursor = &b->node;
		s->taken += size;
		return b;
	} while (pos != s->cursor);
	return NULL;
}

gantry_result tcp_stage_copy(struct tcp_stage *s, const void *src, uint64_t size, struct tcp_stage_block **ret_block)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *dev = s->device;
	struct tcp_stage_block *b = NULL;

	if (size > s->size)
		FAIL(GANTRY_ERR_LIMIT, "a message of %s from device memory does not fit GANTRY_UNPACK_STAGE (%s)",
		     SIZE_TEXT(size), SIZE_TEXT(s->size));
	pthread_mutex_lock(&s->lock);
	if (!gantry_list_empty(&s->draining))
		sweep(s);
	b = block_take(s, (size + STAGE_UNIT - 1) / STAGE_UNIT * STAGE_UNIT);
	pthread_mutex_unlock(&s->lock);
	if (!b)
		return GANTRY_AGAIN;
	b->copying = 0;
	TRY(dev->ops->move(dev, GANTRY_WAY_OUT, b->data, src, size));
	/* Without a ticket nobody can know when the block is free: it is lost, and the error ends the link. */
	b->ticket = UINT64_MAX;
	b->copying = 1;
	TRY(dev->ops->move_ticket(dev, GANTRY_WAY_OUT, &b->ticket));
	*ret_block = b;
	b = NULL;
out:
	if (b)
		tcp_stage_give(s, b);
	return r;
}

gantry_result tcp_stage_ready(struct tcp_stage *s, struct tcp_stage_block *b)
{
	gantry_result r = s->device->ops->moved(s->device, GANTRY_WAY_OUT, b->ticket);

	if (r == GANTRY_OK)
		b->copying = 0;
	return r;
}

void tcp_stage_give(struct tcp_stage *s, struct tcp_stage_block *b)
{
	pthread_mutex_lock(&s->lock);
	if (b->copying)
		gantry_list_append(&s->draining, &b->drain);
	else
		block_free(s, b);
	pthread_mutex_unlock(&s->lock);
}

uint64_t tcp_stage_taken(struct tcp_stage *s)
{
	uint64_t taken;

	pthread_mutex_lock(&s->lock);
	sweep(s);
	taken = s->taken;
	pthread_mutex_unlock(&s->lock);
	return taken;
}
