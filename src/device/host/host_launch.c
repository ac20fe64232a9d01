/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a kernel. Block 0's lane 0 is the thread that does the stream's items; each further lane of each block has a helper thread,
 * so that all blocks of a launch really run at the same time, however much they wait for each other.
 *
 * A stream keeps as many helpers as its largest launch needed, from the moment that launch is enqueued: so running it
 * cannot fail, takes no lock and never waits for other users of helpers. They go back to the device with the stream.
 *
 * The usual launch has one block of one lane and costs nothing but the queue's own accesses.
 *
 * Idle helpers sleep; they are made when a stream first needs more than there are and end with the device. A helper
 * counts itself out of its launch and notifies the stream's worker if it was the last; only then does it raise
 * `finished`. A stream gives its helpers back when they are all finished, so a notification never reaches into freed
 * memory.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/thread.h"
#include "device/failure.h"
#include "device/help.h"
#include "device/host/host.h"

/* ---- how kernels wait: by base/eventcount.h's rules, but that an abort flag ends every wait ---- */

enum { SLEEP_NS = 100000000, FEW_CPUS = 4, CROWDED_TIMES = 50 };

_Thread_local struct dev_thread dev_self = {.lanes = 1, .blocks = 1};
uint32_t gantry_host_spin;

void gantry_host_wait_setup(void)
{
	gantry_host_spin = gantry_wait_limits()->spin_rounds;
}

/*
 * For as long as a waiting thread would spin and yield, from when something moved last. Where ranks share a CPU much longer:
 * a yield gives it to the one that is waited for, and handing over to the proxy's thread would only add one that wants
 * it. 1: that was the wait's round.
 */
static int drive_proxy(struct dev_wait *w, const struct gantry_wait_limits *l)
{
	const struct gantry_help *help = dev_self.help;
	uint64_t now = gantry_ticks(), patience = l->spin_ticks + l->yield_ticks;

	if (!gantry_backoff_within(&w->backoff, now, help->crowded ? CROWDED_TIMES * patience : patience)) {
		help->leave(help->ctx);
		return 0;
	}
	if (help->drive(help->ctx))
		w->backoff.since = 0;
	else if (w->proxied && l->cpus <= FEW_CPUS &&
		 (help->crowded || !gantry_backoff_within(&w->backoff, now, l->spin_ticks)))
		sched_yield();
	return (int)w->proxied;
}

int gantry_host_wait(struct dev_wait *w)
{
	const struct gantry_wait_limits *l = gantry_wait_limits();
	const uint32_t *stop = dev_self.abort;

	if (!w->began)
		w->began = gantry_ticks();
	/* Sequentially consistent like any condition: it is looked at between the announcement and the sleep. */
	if (stop && load_seq(stop)) {
		dev_wait_done(w);
		return 1;
	}
	if (dev_self.help && !w->backoff.announced && drive_proxy(w, l))
		return 0;
	if (w->proxied && l->cpus <= FEW_CPUS)
		gantry_backoff_sleep(&w->backoff, dev_self.eventcount, SLEEP_NS);
	else if (w->n < gantry_host_spin)
		gantry_cpu_pause();
	else if (!w->backoff.announced && gantry_backoff_within(&w->backoff, gantry_ticks(), l->yield_ticks))
		sched_yield();
	else
		gantry_backoff_sleep(&w->backoff, dev_self.eventcount, SLEEP_NS);
	return 0;
}

void gantry_host_wait_done(struct dev_wait *w)
{
	store_seq(&dev_self.eventcount->waiting, 0);
	w->backoff.announced = 0;
}

/* Before the launch counts as ended: after that its owner may be gone. */
void gantry_host_failed(uint32_t error)
{
	struct dev_ending *e = dev_self.ending;
	struct gantry_failure *none = NULL;
	struct dev_wait w;

	if (e->failure) {
		if (error != GANTRY_ERR_ABORTED)
			store_release(&e->failure->found, error);
		gantry_failure_ref(e->failure);
		if (!cas_acq_rel(&e->failed, &none, e->failure))
			gantry_failure_put(e->failure);
	}
	if (!e->holds || !dev_self.abort)
		return;
	dev_wait_init(&w);
	while (!dev_wait(&w))
		;
}

/*
 * The last lane to arrive opens the next generation. Lanes that wait long (for their lane 0, which waits for a peer)
 * sleep; `sleeping` and `generation` are ordered like `waiting` and the condition in base/eventcount.c, with the
 * futex's own look at `generation` as the second look.
 */
void gantry_host_team_barrier(struct dev_team *t)
{
	uint32_t now = load_seq(&t->generation);
	struct gantry_waiter w;

	if (fetch_add_seq(&t->arrived, 1) + 1 == t->lanes) {
		store_seq(&t->arrived, 0);
		store_seq(&t->generation, now + 1);
		if (load_seq(&t->sleeping))
			gantry_futex_wake(&t->generation);
		return;
	}
	gantry_waiter_init(&w, NULL);
	while (load_seq(&t->generation) == now) {
		if (!gantry_waiter_brief(&w))
			continue;
		fetch_add_seq(&t->sleeping, 1);
		gantry_futex_wait(&t->generation, now);
		fetch_sub_seq(&t->sleeping, 1);
	}
}

/* ---- helpers ---- */

struct host_helper {
	/* A job. Written by the stream's worker before it raises `given`; not touched by the helper once it has counted
	 * itself out of `pending`. */
	struct dev_thread self;
	void (*fn)(const void *args); /* NULL: end */
	const void *args;
	uint32_t *pending;			   /* of the launch: helpers still at work */
	struct gantry_eventcount *done_eventcount; /* of the worker: notified by the last one */
	uint64_t given;				   /* jobs; by the worker; seq_cst */
	uint64_t finished;			   /* jobs whose stream the helper no longer touches; by the helper */
	struct dev_team team;			   /* of the block whose lane 0 runs here */
	struct gantry_eventcount eventcount;
	struct host_device *hd; /* borrowed */
	pthread_t thread;
	struct host_helper *next; /* in its stream or among the idle */
};

static void wait_for_job(struct host_helper *h, uint64_t seen)
{
	struct gantry_waiter w;

	gantry_waiter_init(&w, &h->eventcount);
	/* More helpers than CPUs: those that spin would keep those that work from it. */
	if ((int)load_relaxed(&h->hd->nhelpers) >= gantry_wait_limits()->cpus)
		w.spin = w.yield = 0;
	while (load_seq(&h->given) == seen)
		gantry_waiter_idle(&w, UINT64_MAX);
	gantry_waiter_done(&w);
}

static void *helper(void *arg)
{
	struct host_helper *h = arg;

	for (uint64_t seen = 0;; seen++) {
		struct gantry_eventcount *eventcount;

		wait_for_job(h, seen);
		if (!h->fn)
			return NULL;
		eventcount = h->done_eventcount;
		dev_self = h->self;
		h->fn(h->args);
		if (fetch_sub_seq(h->pending, 1) == 1)
			gantry_eventcount_notify(eventcount);
		store_release(&h->finished, seen + 1);
	}
}

/* On the job that was written into it. */
static void start_helper(struct host_helper *h)
{
	store_seq(&h->given, h->given + 1);
	gantry_eventcount_notify(&h->eventcount);
}

static void wait_finished(const struct host_helper *h)
{
	while (load_acquire(&h->finished) != h->given)
		sched_yield(); /* it is between its last notification and the next line */
}

static gantry_result add_helper(struct host_device *hd) REQUIRES(helpers_mu)
{
	gantry_result r = GANTRY_OK;
	struct host_helper *h = aligned_alloc(128, (sizeof(*h) + 127) & ~(size_t)127);

	if (!h)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a helper thread");
	memset(h, 0, sizeof(*h));
	h->hd = hd;
	TRY(gantry_thread_start("gantry-block", helper, h, &h->thread));
	h->next = hd->idle;
	hd->idle = h;
	h = NULL; /* the list's */
	store_relaxed(&hd->nhelpers, hd->nhelpers + 1);
out:
	free(h);
	return r;
}

/* n of them, chained; all or none. */
static gantry_result take_helpers(struct host_device *hd, uint32_t n, struct host_helper **ret_first,
				  struct host_helper **ret_last)
{
	gantry_result r = GANTRY_OK;
	struct host_helper *last;
	uint32_t have = 0;

	helpers_mu_lock(&hd->helpers_mu);
	for (struct host_helper *h = hd->idle; h && have < n; h = h->next)
		have++;
	for (; have < n; have++)
		TRY(add_helper(hd)); /* those made before a failure stay: idle ones cost nothing but memory */
	last = hd->idle;
	for (uint32_t i = 1; i < n; i++)
		last = last->next;
	*ret_first = hd->idle;
	*ret_last = last;
	hd->idle = last->next;
	last->next = NULL;
out:
	helpers_mu_unlock(&hd->helpers_mu);
	return r;
}

void gantry_host_helpers_give(struct host_device *hd, struct host_helper *first)
{
	helpers_mu_lock(&hd->helpers_mu);
	while (first) {
		struct host_helper *next = first->next;

		wait_finished(first);
		first->next = hd->idle;
		hd->idle = first;
		first = next;
	}
	helpers_mu_unlock(&hd->helpers_mu);
}

void gantry_host_helpers_end(struct host_device *hd)
{
	while (hd->idle) {
		struct host_helper *h = hd->idle;

		hd->idle = h->next;
		h->fn = NULL;
		start_helper(h);
		pthread_join(h->thread, NULL);
		free(h);
	}
}

/* ---- launches ---- */

static struct dev_thread make_thread(const struct host_item *item, uint32_t block, uint32_t lane, struct dev_team *team,
				     struct dev_ending *ending)
{
	return (struct dev_thread){.lane = lane,
				   .lanes = item->lanes,
				   .block = block,
				   .blocks = item->blocks,
				   .yields = item->yields,
				   .abort = item->abort,
				   .eventcount = item->eventcounts ? &item->eventcounts[block] : NULL,
				   .help = item->help,
				   .team = team,
				   .ending = ending};
}

static struct dev_team *start_team(struct dev_team *t, uint32_t lanes)
{
	if (lanes == 1)
		return NULL;
	*t = (struct dev_team){.lanes = lanes};
	return t;
}

/* All lanes except block 0's lane 0, in the order of the helpers. */
static void start_helpers(struct gantry_stream *s, const struct host_item *item, struct dev_team *team,
			  struct dev_ending *ending, uint32_t *pending)
{
	struct host_helper *h = s->helpers;
	uint32_t n = (uint32_t)item->blocks * item->lanes;

	for (uint32_t i = 1; i < n; i++) {
		uint32_t lane = i % item->lanes;

		if (i > 1)
			h = h->next;
		if (lane == 0)
			team = start_team(&h->team, item->lanes);
		h->self = make_thread(item, i / item->lanes, lane, team, ending);
		h->fn = item->fn;
		h->args = item->args;
		h->pending = pending;
		h->done_eventcount = &s->blocks;
		start_helper(h);
	}
}

static void run_many(struct gantry_stream *s, const struct host_item *item, struct dev_ending *ending)
{
	uint32_t pending = (uint32_t)item->blocks * item->lanes - 1;
	struct dev_team *team = start_team(&s->team, item->lanes);
	struct gantry_waiter w;

	start_helpers(s, item, team, ending, &pending);
	dev_self = make_thread(item, 0, 0, team, ending);
	item->fn(item->args);
	gantry_waiter_init(&w, &s->blocks);
	while (load_seq(&pending))
		gantry_waiter_idle(&w, UINT64_MAX);
	gantry_waiter_done(&w);
}

struct gantry_failure *gantry_host_run(struct gantry_stream *s, const struct host_item *item)
{
	struct dev_ending ending = {.failure = item->failure, .holds = !s->hd->dev.reports};

	if (item->blocks * item->lanes > 1) {
		run_many(s, item, &ending);
	} else {
		dev_self = make_thread(item, 0, 0, NULL, &ending);
		item->fn(item->args);
	}
	dev_self = (struct dev_thread){.lanes = 1, .blocks = 1}; /* this thread may be the caller's */
	return load_acquire(&ending.failed);
}

/* The stream has at least n helpers from here on. */
static gantry_result have_helpers(struct gantry_stream *s, uint32_t n)
{
	gantry_result r = GANTRY_OK;
	struct host_helper *first = NULL, *last = NULL;

	stream_mu_lock(&s->mu);
	if (s->nhelpers >= n)
		goto out;
	TRY(take_helpers(s->hd, n - s->nhelpers, &first, &last));
	/* The worker may be walking along the helpers it needs now; it does not look beyond the last of them. */
	if (s->last_helper)
		s->last_helper->next = first;
	else
		s->helpers = first;
	s->last_helper = last;
	s->nhelpers = n;
out:
	stream_mu_unlock(&s->mu);
	return r;
}

gantry_result gantry_host_launch(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	const uint32_t lanes = l->lanes ? l->lanes : 1;
	struct host_item item = {.kind = HOST_ITEM_LAUNCH,
				 .blocks = (uint16_t)l->blocks,
				 .lanes = (uint16_t)lanes,
				 .fn = l->kernel->body,
				 .size = l->args_size,
				 .abort = l->abort,
				 .eventcounts = l->eventcounts,
				 .help = l->help,
				 .yields = l->yields != 0,
				 .failure = l->failure};

	(void)dev;
	if (!l->blocks || l->blocks > GANTRY_HOST_MAX_BLOCKS || lanes > GANTRY_HOST_MAX_LANES ||
	    l->blocks * lanes > GANTRY_HOST_MAX_THREADS)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "cannot launch %u blocks of %u lanes: the host supports 1 to %d blocks of up to %d lanes, %d "
			 "lanes in total",
			 l->blocks, lanes, GANTRY_HOST_MAX_BLOCKS, GANTRY_HOST_MAX_LANES, GANTRY_HOST_MAX_THREADS);
	if (l->blocks * lanes > 1)
		TRY_NOW(have_helpers(s, l->blocks * lanes - 1));
	return gantry_host_enqueue(s, &item, l->args);
}
