/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream: a ring of items and one thread, the worker, that does them in order.
 *
 *   tail   items enqueued. Producers fill items[tail % ITEMS] and then raise it, under mu.
 *   done   items done. The worker raises it after each; what lies between done and tail is still to be done, and
 *          tail - done <= ITEMS, so an item is written again only when the worker has left it.
 *
 * An enqueue is a lock that is rarely contended, a copy of at most 256 bytes, one store and one load: the worker is
 * woken by a system call only when it sleeps. It does so after it has spun and yielded for a while (device/wait.h), so
 * a program that launches and waits in turn never pays for a wake-up.
 *
 * Waiting for the worker (sync, a full ring) goes by position: a waiter that is about to sleep lowers wake_at to the
 * `done` it needs and looks at `done` again; the worker raises `done` and then looks at wake_at. Both sequentially
 * consistent, so one sees the other. A thousand small items ahead of a sync cost it one wake-up, not a thousand.
 *
 * The worker starts with the first item and ends with a STOP item, so destroying a stream waits for what is in it.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/thread.h"
#include "device/host/host.h"

enum { ITEMS = 256, MAGIC = 0x73747265 };

static void wake_sleepers(struct gantry_stream *s)
{
	stream_done_mu_lock(&s->done_mu);
	/* Those who are not there yet lower it again. */
	store_seq(&s->wake_at, UINT64_MAX);
	gantry_cond_broadcast(&s->done_cond);
	stream_done_mu_unlock(&s->done_mu);
}

static void do_item(struct gantry_stream *s, const struct host_item *item)
{
	switch (item->kind) {
	case HOST_ITEM_LAUNCH:
		gantry_host_run(s, item);
		if (item->args != item->inline_args)
			free((void *)(uintptr_t)item->args);
		break;
	case HOST_ITEM_COPY:
		memcpy(item->dst, item->src, item->size);
		break;
	case HOST_ITEM_ROWS:
		for (size_t i = 0; i < item->rows; i++)
			memcpy((char *)item->dst + i * item->dst_stride, (const char *)item->src + i * item->src_stride,
			       item->size);
		break;
	case HOST_ITEM_MARK:
		store_release((uint64_t *)item->dst, (uint64_t)item->size);
		break;
	case HOST_ITEM_RECORD:
		gantry_host_mark_reach(item->mark);
		break;
	case HOST_ITEM_WAIT:
		gantry_host_mark_await(item->mark);
		break;
	}
}

static void *worker(void *arg)
{
	struct gantry_stream *s = arg;
	struct gantry_waiter w;
	uint64_t at = 0;
	int stop = 0;

	gantry_waiter_init(&w, &s->eventcount);
	while (!stop) {
		const struct host_item *item = &s->items[at % ITEMS];

		if (load_seq(&s->tail) == at) {
			gantry_waiter_idle(&w, UINT64_MAX);
			continue;
		}
		gantry_waiter_done(&w);
		stop = item->kind == HOST_ITEM_STOP;
		do_item(s, item);
		at++;
		store_seq(&s->done, at);
		if (at >= load_seq(&s->wake_at))
			wake_sleepers(s);
	}
	return NULL;
}

/* Until `target` items are done. */
static void wait_until(struct gantry_stream *s, uint64_t target)
{
	struct gantry_waiter w;

	if (load_seq(&s->done) >= target)
		return;
	gantry_waiter_init(&w, NULL);
	do {
		if (load_seq(&s->done) >= target)
			return;
	} while (!gantry_waiter_brief(&w));
	stream_done_mu_lock(&s->done_mu);
	for (;;) {
		if (load_seq(&s->wake_at) > target)
			store_seq(&s->wake_at, target);
		if (load_seq(&s->done) >= target)
			break;
		mutex_wait(&s->done_cond, &s->done_mu);
	}
	stream_done_mu_unlock(&s->done_mu);
}

gantry_result gantry_host_enqueue(struct gantry_stream *s, const struct host_item *item, const void *args)
{
	gantry_result r = GANTRY_OK;
	struct host_item *to;
	void *copy = NULL;

	if (args && item->size > HOST_INLINE_ARGS) {
		copy = malloc(item->size);
		if (!copy)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %zu bytes of arguments", item->size);
		memcpy(copy, args, item->size);
	}
	stream_mu_lock(&s->mu);
	if (!s->started) {
		TRY(gantry_thread_start("gantry-stream", worker, s, &s->thread));
		s->started = 1;
	}
	/* When it is full, half of it is let drain: one wait for many items. */
	if (s->tail - load_seq(&s->done) >= ITEMS)
		wait_until(s, s->tail - ITEMS / 2);
	to = &s->items[s->tail % ITEMS];
	memcpy(to, item, offsetof(struct host_item, inline_args));
	if (item->kind == HOST_ITEM_LAUNCH) {
		to->args = copy ? copy : to->inline_args;
		if (!copy && args)
			memcpy(to->inline_args, args, item->size);
	}
	copy = NULL; /* the item's */
	store_seq(&s->tail, s->tail + 1);
out:
	stream_mu_unlock(&s->mu);
	if (r == GANTRY_OK)
		gantry_eventcount_notify(&s->eventcount);
	free(copy);
	return r;
}

gantry_result gantry_host_stream_new(struct host_device *hd, struct gantry_stream **ret_stream)
{
	gantry_result r = GANTRY_OK;
	struct gantry_stream *s = aligned_alloc(128, (sizeof(*s) + 127) & ~(size_t)127);

	if (s)
		memset(s, 0, sizeof(*s));
	if (!s || !(s->items = aligned_alloc(128, ITEMS * sizeof(*s->items))))
		FAIL(GANTRY_ERR_NOMEM, "no memory for a stream");
	s->magic = MAGIC;
	s->refs = 1;
	s->hd = hd;
	s->wake_at = UINT64_MAX;
	mutex_init(&s->mu);
	mutex_init(&s->done_mu);
	*ret_stream = s;
	s = NULL;
out:
	free(s);
	return r;
}

void gantry_host_stream_release(struct gantry_stream *s)
{
	struct host_item stop = {.kind = HOST_ITEM_STOP};

	if (!s || fetch_sub_acq_rel(&s->refs, 1) != 1)
		return;
	s->magic = 0;
	if (s->started) {
		gantry_host_enqueue(s, &stop, NULL);
		pthread_join(s->thread, NULL);
	}
	gantry_host_helpers_give(s->hd, s->helpers);
	mutex_destroy(&s->done_mu);
	mutex_destroy(&s->mu);
	free(s->items);
	free(s);
}

int gantry_host_is_stream(const struct gantry_stream *s)
{
	return s->magic == MAGIC;
}

gantry_result gantry_host_stream_query(struct gantry_device *dev, struct gantry_stream *s)
{
	uint64_t tail = load_seq(&s->tail);

	(void)dev;
	return load_seq(&s->done) >= tail ? GANTRY_OK : GANTRY_AGAIN;
}

gantry_result gantry_host_stream_sync(struct gantry_device *dev, struct gantry_stream *s)
{
	(void)dev;
	wait_until(s, load_seq(&s->tail));
	return GANTRY_OK;
}

gantry_result gantry_host_copy_async(struct gantry_device *dev, struct gantry_stream *s, void *dst, const void *src,
				     size_t size)
{
	struct host_item item = {.kind = HOST_ITEM_COPY, .dst = dst, .src = src, .size = size};

	(void)dev;
	return size ? gantry_host_enqueue(s, &item, NULL) : GANTRY_OK;
}

gantry_result gantry_host_copy_rows_async(struct gantry_device *dev, struct gantry_stream *s,
					  const struct gantry_rows *rows)
{
	struct host_item item = {.kind = HOST_ITEM_ROWS,
				 .dst = rows->dst,
				 .src = rows->src,
				 .size = rows->width,
				 .dst_stride = rows->dst_stride,
				 .src_stride = rows->src_stride,
				 .rows = rows->count};

	(void)dev;
	return rows->width && rows->count ? gantry_host_enqueue(s, &item, NULL) : GANTRY_OK;
}
