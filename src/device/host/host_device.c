/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device: one counted object per process, its streams, and its queues of copies.
 *
 * A stream: a ring of items that are done in order by its runner: one thread at a time, the stream's own, the worker,
 * or one that waits for them (sync), which saves two changes of threads for a program that launches and waits in turn.
 *
 *   tail   items enqueued. Producers fill items[tail % ITEMS] and then raise it, under mu.
 *   done   items done. The runner raises it after each; what lies between done and tail is still to be done, and
 *          tail - done <= ITEMS, so an item is written again only when the runner has left it.
 *
 * An enqueue is a lock that is rarely contended, a copy of at most 256 bytes, one store and one load: the worker is
 * woken by a system call only when it sleeps and does not look by itself (`lazy`).
 *
 * Waiting for the runner (sync, a full ring) goes by position: a waiter that is about to sleep lowers wake_at to the
 * `done` it needs and looks at `done` again; the runner raises `done` and then looks at wake_at. Both sequentially
 * consistent, so one sees the other. A thousand small items ahead of a sync cost it one wake-up, not a thousand.
 *
 * The worker starts with the first item and ends with a STOP item, so destroying a stream waits for what is in it.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "device/host/host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* operations are given a device that few of them need */

MUTEX_KIND(host_device_mu);
static struct host_device_mu host_device_mu_one;
static struct host_device *the_device GUARDED_BY(host_device_mu); /* NULL: not open */

/* ---- streams ---- */

enum { ITEMS = 256, MAGIC = 0x73747265, LAZY_NS = 200000, LAZY_LOOKS = 100, HELD_NS = 1000000 };

static void wake_sleepers(struct gantry_stream *s)
{
	stream_done_mu_lock(&s->done_mu);
	/* Waiters whose value is not reached yet lower it again. */
	store_seq(&s->wake_at, UINT64_MAX);
	gantry_cond_broadcast(&s->done_cond);
	stream_done_mu_unlock(&s->done_mu);
}

/* What it failed with, a reference; NULL: it is done. `ending`: the stream is, and nothing in it may wait for a program. */
static struct gantry_failure *do_item(struct gantry_stream *s, const struct host_item *item, int ending)
{
	struct gantry_failure *failed = NULL;

	switch (item->kind) {
	case HOST_ITEM_LAUNCH:
		failed = gantry_host_run(s, item);
		if (item->args != item->inline_args)
			free((void *)(uintptr_t)item->args);
		break;
	case HOST_ITEM_COPY:
		if (load_seq(&s->held))
			break; /* it is destroyed with a copy of what never came */
		for (size_t i = 0; i < item->rows; i++)
			memcpy((char *)item->dst + i * item->dst_stride, (const char *)item->src + i * item->src_stride,
			       item->size);
		break;
	case HOST_ITEM_FENCE:
		store_release((uint64_t *)item->dst, (uint64_t)item->size);
		break;
	case HOST_ITEM_RECORD:
		gantry_host_mark_reach(item->mark);
		break;
	case HOST_ITEM_WAIT:
		failed = gantry_host_mark_await(item->mark, ending);
		break;
	}
	return failed;
}

/* From item `at` on nothing runs. Records that producers add see that themselves. */
static void stop_at(struct gantry_stream *s, uint64_t at)
{
	for (uint64_t tail = load_seq(&s->tail); at < tail; at++)
		if (s->items[at % ITEMS].kind == HOST_ITEM_RECORD)
			gantry_host_mark_held(s, s->items[at % ITEMS].mark);
	wake_sleepers(s);
}

/* Runs items up to `target`, if no other thread is running them. 1: something was done. *ret_stop: the last one was
 * STOP. */
static int run_items(struct gantry_stream *s, uint64_t target, int *ret_stop)
{
	uint32_t idle = 0;
	uint64_t at;
	int did = 0;

	if (load_seq(&s->done) >= target || !cas_acq_rel(&s->runner, &idle, 1))
		return 0;
	at = load_seq(&s->done);
	while (at < target && !gantry_host_held(s)) {
		const struct host_item *item = &s->items[at % ITEMS];
		int ending = load_seq(&s->ending), waits = item->kind == HOST_ITEM_WAIT && !ending;
		struct gantry_failure *failed;

		*ret_stop = item->kind == HOST_ITEM_STOP;
		failed = do_item(s, item, ending);
		if (!failed || !waits) /* a wait is looked at again when the hold is over */
			store_seq(&s->done, ++at);
		if (failed && gantry_host_hold(s, failed))
			stop_at(s, at);
		if (at >= load_seq(&s->wake_at))
			wake_sleepers(s);
		did = 1;
	}
	store_seq(&s->runner, 0);
	/* A thread that found the runner's place taken meanwhile has gone to sleep, or will look again. */
	if (load_seq(&s->tail) != at && !*ret_stop)
		gantry_eventcount_notify(&s->eventcount);
	return did;
}

/*
 * While a program waits for what it launches, and so runs the items itself, the worker is not woken for each item: it
 * polls, LAZY_NS after the last time, until it finds something to do, or no item has run for a while.
 */
static void idle_stream(struct gantry_stream *s, struct gantry_waiter *w, uint64_t *seen, int *looks)
{
	uint64_t done = load_seq(&s->done), sleeps = w->sleeps;
	int lazy = (int)load_seq(&s->lazy);

	if (load_seq(&s->held)) { /* nothing notifies when that ends */
		w->spin = w->yield = 0;
		gantry_waiter_idle(w, HELD_NS);
		return;
	}
	if (done != *seen)
		*looks = 0;
	*seen = done;
	if (lazy && *looks > LAZY_LOOKS) {
		/* Before the next look at `tail`: a producer that saw the old value has stored it before. */
		store_seq(&s->lazy, 0);
		lazy = 0;
	}
	w->spin = lazy ? 0 : gantry_wait_limits()->spin_ticks;
	w->yield = lazy ? 0 : gantry_wait_limits()->yield_ticks;
	gantry_waiter_idle(w, lazy ? LAZY_NS : UINT64_MAX);
	*looks += w->sleeps != sleeps;
}

static void *run_stream(void *arg)
{
	struct gantry_stream *s = arg;
	struct gantry_waiter w;
	uint64_t seen = 0;
	int stop = 0, looks = 0;

	gantry_waiter_init(&w, &s->eventcount);
	while (!stop) {
		if (run_items(s, load_seq(&s->tail), &stop)) {
			store_seq(&s->lazy, 0);
			gantry_waiter_done(&w);
		} else {
			idle_stream(s, &w, &seen, &looks);
		}
	}
	return NULL;
}

static int is_held(struct gantry_stream *s)
{
	return load_seq(&s->held) && !load_seq(&s->ending);
}

/* 1: `target` items are done, or something holds the stream. */
static int run_until(struct gantry_stream *s, uint64_t target)
{
	int stop = 0;

	if (run_items(s, target, &stop) && !load_seq(&s->lazy)) {
		store_seq(&s->lazy, 1);
		gantry_eventcount_notify(&s->eventcount); /* it may sleep without an end */
	}
	return load_seq(&s->done) >= target || is_held(s);
}

static void sleep_until(struct gantry_stream *s, uint64_t target)
{
	stream_done_mu_lock(&s->done_mu);
	for (;;) {
		if (load_seq(&s->wake_at) > target)
			store_seq(&s->wake_at, target);
		if (load_seq(&s->done) >= target || is_held(s))
			break;
		mutex_wait(&s->done_cond, &s->done_mu);
	}
	stream_done_mu_unlock(&s->done_mu);
}

/* Until `target` items are done, or something holds the stream. */
static void wait_until(struct gantry_stream *s, uint64_t target)
{
	struct gantry_waiter w;

	if (load_seq(&s->done) >= target || run_until(s, target))
		return;
	gantry_waiter_init(&w, NULL);
	while (!gantry_waiter_brief(&w))
		if (run_until(s, target))
			return;
	sleep_until(s, target);
}

/* When the ring is full, half of it is let drain: one wait for many items. */
static gantry_result await_room(struct gantry_stream *s)
{
	gantry_result r = GANTRY_OK;

	while (r == GANTRY_OK && s->tail - load_seq(&s->done) >= ITEMS) {
		wait_until(s, s->tail - ITEMS / 2);
		if (is_held(s))
			r = gantry_host_hold_result(s, gantry_failure_now());
	}
	return r;
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
		TRY(gantry_thread_start("gantry-stream", run_stream, s, &s->thread));
		s->started = 1;
	}
	TRY(await_room(s));
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
	if (r == GANTRY_OK && (item->kind == HOST_ITEM_STOP || !load_seq(&s->lazy)))
		gantry_eventcount_notify(&s->eventcount);
	free(copy);
	return r;
}

static gantry_result new_stream(struct host_device *hd, struct gantry_stream **ret_stream)
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
	*ret_stream = s;
	s = NULL;
out:
	free(s);
	return r;
}

/* The last one waits for what is in it; NULL is fine. */
static void release_stream(struct gantry_stream *s)
{
	struct host_item stop = {.kind = HOST_ITEM_STOP};

	if (!s || fetch_sub_acq_rel(&s->refs, 1) != 1)
		return;
	if (s->hd->owner != getpid())
		return; /* a copy of the parent's, without its thread: left as it is */
	s->magic = 0;
	store_seq(&s->ending, 1);
	if (s->started) {
		gantry_host_enqueue(s, &stop, NULL);
		pthread_join(s->thread, NULL);
	}
	gantry_host_helpers_give(s->hd, s->helpers);
	gantry_host_hold_release(s);
	free(s->items);
	free(s);
}

static void ref_device(struct host_device *hd)
{
	host_device_mu_lock(&host_device_mu_one);
	hd->refs++;
	host_device_mu_unlock(&host_device_mu_one);
}

/* The last one ends the helpers and frees. */
static void host_close(struct gantry_device *dev)
{
	struct host_device *hd = host_device(dev);

	host_device_mu_lock(&host_device_mu_one);
	if (--hd->refs || hd->owner != getpid())
		hd = NULL;
	else
		the_device = NULL;
	host_device_mu_unlock(&host_device_mu_one);
	if (!hd)
		return;
	/* Without the lock: the default stream may be busy for a while. An open during this time creates a new
	 * device. */
	release_stream(hd->default_stream);
	for (int i = 0; i < GANTRY_COPY_QUEUES; i++)
		release_stream(hd->queues[i].stream);
	gantry_host_helpers_end(hd);
	free(hd);
}

gantry_result gantry_host_stream_create(struct gantry_device *dev, struct gantry_stream **ret_stream)
{
	gantry_result r = new_stream(host_device(dev), ret_stream);

	if (r == GANTRY_OK)
		ref_device(host_device(dev));
	return r;
}

/*
 * The same object with one more reference: the caller that wrapped a stream destroys its reference and the stream
 * stays. The device holds a reference to the default stream from the beginning.
 */
gantry_result gantry_host_stream_wrap(struct gantry_device *dev, void *native, struct gantry_stream **ret_stream)
{
	gantry_result r = GANTRY_OK;
	struct host_device *hd = host_device(dev);
	struct gantry_stream *s = native;

	if (s && s->magic != MAGIC)
		FAIL(GANTRY_ERR_INVALID, "%p is not a stream of the host device", native);
	if (!s) {
		host_device_mu_lock(&host_device_mu_one);
		if (!hd->default_stream)
			r = new_stream(hd, &hd->default_stream);
		s = hd->default_stream;
		host_device_mu_unlock(&host_device_mu_one);
		if (r != GANTRY_OK)
			goto out;
	}
	ref_device(s->hd);
	fetch_add_relaxed(&s->refs, 1);
	*ret_stream = s;
out:
	return r;
}

/* Only the last destroy of a stream waits for what is in it. */
gantry_result gantry_host_stream_destroy(struct gantry_device *dev, struct gantry_stream *s)
{
	struct host_device *hd;

	if (!s)
		return GANTRY_OK;
	hd = s->hd;
	release_stream(s);
	host_close(&hd->dev);
	return GANTRY_OK;
}

/* It ends with its last reference, which waits for its items: a new stream at the same address is unaffected. */
gantry_result gantry_host_stream_number(struct gantry_device *dev, struct gantry_stream *s, uint64_t *ret_number)
{
	*ret_number = 0;
	return GANTRY_OK;
}

gantry_result gantry_host_stream_query(struct gantry_device *dev, struct gantry_stream *s)
{
	uint64_t tail = load_seq(&s->tail);

	TRY_NOW(gantry_host_hold_result(s, gantry_failure_now()));
	return load_seq(&s->done) >= tail ? GANTRY_OK : GANTRY_AGAIN;
}

gantry_result gantry_host_stream_sync(struct gantry_device *dev, struct gantry_stream *s)
{
	uint64_t since = gantry_failure_now(), target = load_seq(&s->tail);
	gantry_result r;

	do {
		wait_until(s, target);
		r = gantry_host_hold_result(s, since);
	} while (r == GANTRY_OK && load_seq(&s->done) < target); /* a hold that ended before this wait began */
	return r;
}

gantry_result gantry_host_copy_async(struct gantry_device *dev, struct gantry_stream *s, void *dst, const void *src,
				     size_t size)
{
	struct host_item item = {.kind = HOST_ITEM_COPY, .dst = dst, .src = src, .size = size, .rows = 1};

	return size ? gantry_host_enqueue(s, &item, NULL) : GANTRY_OK;
}

gantry_result gantry_host_copy_rows_async(struct gantry_device *dev, struct gantry_stream *s,
					  const struct gantry_rows *rows)
{
	struct host_item item = {.kind = HOST_ITEM_COPY,
				 .dst = rows->dst,
				 .src = rows->src,
				 .size = rows->width,
				 .dst_stride = rows->dst_stride,
				 .src_stride = rows->src_stride,
				 .rows = rows->count};

	return rows->width && rows->count ? gantry_host_enqueue(s, &item, NULL) : GANTRY_OK;
}

/* ---- graphs ---- */

/* There are no graphs: nothing asks for one where no stream is captured. */
gantry_result gantry_host_stream_captured(struct gantry_device *dev, struct gantry_stream *s, uint64_t *ret_capture)
{
	*ret_capture = 0;
	return GANTRY_OK;
}

static gantry_result no_graphs(void)
{
	FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "the host device has no graphs");
}

gantry_result gantry_host_host_call(struct gantry_device *dev, struct gantry_stream *s, void (*fn)(void *ctx),
				    void *ctx)
{
	return no_graphs();
}

gantry_result gantry_host_graph_keep(struct gantry_device *dev, struct gantry_stream *s, void (*gone)(void *ctx),
				     void *ctx)
{
	return no_graphs();
}

gantry_result gantry_host_graph_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	return no_graphs();
}

gantry_result gantry_host_graph_record(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	return no_graphs();
}

/* ---- queues of copies ---- */

/* A stream each, made on first use, and a word that its thread counts up. */
static gantry_result stream_of(struct gantry_device *dev, enum gantry_copy_queue queue,
			       struct gantry_stream **ret_stream)
{
	gantry_result r = GANTRY_OK;
	struct host_copy_queue *q = &host_device(dev)->queues[queue];

	host_queue_mu_lock(&q->lock);
	if (!q->stream)
		r = new_stream(host_device(dev), &q->stream);
	*ret_stream = q->stream;
	host_queue_mu_unlock(&q->lock);
	return r;
}

gantry_result gantry_host_queue_copy(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst,
				     const void *src, size_t size)
{
	struct gantry_stream *s;

	TRY_NOW(stream_of(dev, queue, &s));
	return gantry_host_copy_async(dev, s, dst, src, size);
}

gantry_result gantry_host_queue_store(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst,
				      uint64_t value)
{
	const struct host_item item = {.kind = HOST_ITEM_FENCE, .dst = dst, .size = (size_t)value};
	struct gantry_stream *s;

	TRY_NOW(stream_of(dev, queue, &s));
	return gantry_host_enqueue(s, &item, NULL);
}

gantry_result gantry_host_queue_fence(struct gantry_device *dev, enum gantry_copy_queue queue, uint64_t *ret_fence)
{
	gantry_result r = GANTRY_OK;
	struct host_copy_queue *q = &host_device(dev)->queues[queue];
	struct host_item item = {.kind = HOST_ITEM_FENCE, .dst = &q->reached};

	host_queue_mu_lock(&q->lock);
	item.size = (size_t)(q->fences + 1);
	if (q->stream)
		r = gantry_host_enqueue(q->stream, &item, NULL);
	if (r == GANTRY_OK)
		*ret_fence = q->stream ? ++q->fences : 0;
	host_queue_mu_unlock(&q->lock);
	return r;
}

gantry_result gantry_host_fence_reached(struct gantry_device *dev, enum gantry_copy_queue queue, uint64_t fence)
{
	return load_acquire(&host_device(dev)->queues[queue].reached) >= fence ? GANTRY_OK : GANTRY_AGAIN;
}

/* ---- the device ---- */

gantry_result gantry_host_peer_access(struct gantry_device *dev, struct gantry_device *other, int *ret_can)
{
	*ret_can = other->kind == GANTRY_DEVICE_HOST; /* CPU threads do not reach a GPU's memory */
	return GANTRY_OK;
}

/* A NIC's writes to host memory are in order with the completion that tells of them. */
gantry_result gantry_host_flush_remote_writes(struct gantry_device *dev)
{
	return GANTRY_OK;
}

static const struct gantry_device_ops host_ops = {
	.close = host_close,
#define OP(name, params) .name = gantry_host_##name,
#include "device/ops.def"
};

static gantry_result make_device(void) REQUIRES(host_device_mu)
{
	struct host_device *hd;
	int cpus;

	TRY_NOW(gantry_params_load(0));
	gantry_host_wait_setup();
	cpus = gantry_wait_limits()->cpus;
	hd = calloc(1, sizeof(*hd));
	if (!hd)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the host device");
	hd->dev = (struct gantry_device){.ops = &host_ops,
					 .kind = GANTRY_DEVICE_HOST,
					 .numa_node = -1, /* where its CPUs are, threads are anyway */
					 .dmabuf = gantry_host_can_dmabuf(),
					 .reports = 1,
					 .sleeps = 1,
					 .ll128_local = 1,
					 .max_blocks = GANTRY_HOST_MAX_BLOCKS,
					 .default_lanes = 1};
	hd->owner = getpid();
	snprintf(hd->dev.name, sizeof(hd->dev.name), "host, %d CPU%s", cpus, cpus == 1 ? "" : "s");
	the_device = hd;
	return GANTRY_OK;
}

gantry_result gantry_device_host(struct gantry_device **ret_dev)
{
	gantry_result r = GANTRY_OK;

	host_device_mu_lock(&host_device_mu_one);
	if (!the_device || the_device->owner != getpid())
		TRY(make_device());
	the_device->refs++;
	*ret_dev = &the_device->dev;
out:
	host_device_mu_unlock(&host_device_mu_one);
	return r;
}
