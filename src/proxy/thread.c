/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress thread, and which engine serves whom.
 *
 * The loop: take what was appended, pass over what is ready, give back what is spent, and if nothing moved, back off.
 * gantry_waiter_idle announces the sleep and returns, so that one whole round is made between the announcement and the
 * sleep; everything that notifies the eventcount is looked at in that round by sequentially consistent loads: the
 * inbox, the stop and abort flags, and the words of FIFOs.
 *
 * Waiting is idle. A connection that waits for its kernel or its peer does not keep the thread awake; it only bounds
 * the sleep, because sockets and GPUs do not notify.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PROXY
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "device/device.h"
#include "proxy/engine.h"

enum {
	NAP_MIN_NS = 50000,
	SLEEP_NS = 1000000000
}; /* without operations: a second, in case a notification is ever lost */

static struct engines_mu engines_mu_one = MUTEX_INITIALIZER;
static struct gantry_list engines GUARDED_BY(engines_mu) = {&engines, &engines}; /* a handful at most */

static void back_off(struct gantry_proxy *p)
{
	int busy = !gantry_list_empty(&p->active);
	uint64_t sleeps = p->waiter.sleeps, max = SLEEP_NS;

	if (busy)
		max = p->nap_ns < p->nap_max_ns ? p->nap_ns : p->nap_max_ns;
	gantry_waiter_idle(&p->waiter, max);
	PUT(p->stats.yields, p->waiter.yields);
	if (p->waiter.sleeps == sleeps)
		return;
	PUT(p->stats.sleeps, p->waiter.sleeps);
	if (!p->waiter.wait.announced)
		ADD(p->stats.wakes, 1);
	else if (busy && p->nap_ns < p->nap_max_ns)
		p->nap_ns *= 2; /* nobody notified: look again after a longer while */
}

static void give_back(struct gantry_proxy *p)
{
	if (!p->spent)
		return;
	gantry_proxy_pool_put(&p->pool, p->spent, p->spent_last);
	p->spent = NULL;
}

static void *progress(void *arg)
{
	struct gantry_proxy *p = arg;

	if (p->numa_node >= 0)
		gantry_proxy_pin(p->numa_node);
	gantry_waiter_init(&p->waiter, &p->eventcount);
	while (!load_seq(&p->stop)) {
		int worked = gantry_proxy_arrivals(p);

		worked |= gantry_proxy_pass(p);
		give_back(p);
		ADD(p->stats.passes, 1);
		if (worked) {
			ADD(p->stats.worked, 1);
			p->nap_ns = NAP_MIN_NS;
			gantry_waiter_done(&p->waiter);
		} else {
			back_off(p);
		}
	}
	gantry_waiter_done(&p->waiter);
	return NULL;
}

static void engine_free(struct gantry_proxy *p)
{
	if (!p)
		return;
	gantry_proxy_pool_destroy(&p->pool);
	mutex_destroy(&p->mu);
	free(p);
}

static gantry_result engine_start(struct gantry_device *key, int numa_node, struct gantry_proxy **ret_proxy)
{
	gantry_result r = GANTRY_OK;
	struct gantry_proxy *p = aligned_alloc(_Alignof(struct gantry_proxy), sizeof(*p));

	if (!p)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the progress engine");
	memset(p, 0, sizeof(*p));
	p->key = key;
	p->numa_node = gantry_params()->proxy_pin ? numa_node : -1;
	p->nap_ns = NAP_MIN_NS;
	p->nap_max_ns = gantry_params()->proxy_sleep;
	gantry_list_init(&p->active);
	gantry_proxy_pool_init(&p->pool);
	mutex_init(&p->mu);
	TRY(gantry_thread_start("gantry-proxy", progress, p, &p->thread));
	*ret_proxy = p;
	p = NULL; /* ownership moved */
out:
	engine_free(p);
	return r;
}

gantry_result gantry_proxy_get(struct gantry_device *dev, struct gantry_proxy **ret_proxy)
{
	struct gantry_device *key = gantry_params()->proxy_per_device ? dev : NULL;
	struct gantry_proxy *found = NULL;
	gantry_result r = GANTRY_OK;

	engines_mu_lock(&engines_mu_one);
	gantry_list_each (e, &engines) {
		struct gantry_proxy *p = gantry_container(e, struct gantry_proxy, in_engines);

		if (p->key == key)
			found = p;
	}
	if (!found) {
		TRY(engine_start(key, dev ? dev->numa_node : -1, &found));
		gantry_list_append(&engines, &found->in_engines);
	}
	found->users++;
	*ret_proxy = found;
out:
	engines_mu_unlock(&engines_mu_one);
	return r;
}

void gantry_proxy_put(struct gantry_proxy *p)
{
	int last;

	if (!p)
		return;
	engines_mu_lock(&engines_mu_one);
	last = --p->users == 0;
	if (last)
		gantry_list_remove(&p->in_engines);
	engines_mu_unlock(&engines_mu_one);
	if (!last)
		return;
	store_seq(&p->stop, 1);
	gantry_eventcount_notify(&p->eventcount);
	pthread_join(p->thread, NULL);
	engine_free(p);
}

struct gantry_eventcount *gantry_proxy_eventcount(struct gantry_proxy *p)
{
	return &p->eventcount;
}

void gantry_proxy_get_stats(struct gantry_proxy *p, struct gantry_proxy_stats *ret)
{
	ret->passes = GET(p->stats.passes);
	ret->worked = GET(p->stats.worked);
	ret->yields = GET(p->stats.yields);
	ret->sleeps = GET(p->stats.sleeps);
	ret->wakes = GET(p->stats.wakes);
	ret->batches = GET(p->stats.batches);
	ret->ops = GET(p->stats.ops);
}
