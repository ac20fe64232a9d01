/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper threads for launches of several blocks or lanes. Idle ones sleep; they are made when a stream first needs more
 * than there are and end with the device.
 *
 * A helper counts itself out of its launch and notifies the stream's worker if it was the last; only then does it raise
 * `finished`. A stream gives its helpers back when they are all finished, so a notification never reaches into freed
 * memory.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/thread.h"
#include "device/host/host.h"

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

void gantry_host_helper_start(struct host_helper *h)
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

gantry_result gantry_host_helpers_take(struct host_device *hd, uint32_t n, struct host_helper **ret_first,
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
		gantry_host_helper_start(h);
		pthread_join(h->thread, NULL);
		free(h);
	}
}
