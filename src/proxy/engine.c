/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress thread: when it makes rounds and when it sleeps; and which engine serves which device.
 *
 * The loop: a round, and if nothing moved, back off. A thread that drives makes rounds too; the progress thread, which
 * then finds its place taken, may go to sleep with operations in flight: a thread that drives wakes it when it leaves.
 * gantry_waiter_idle announces the sleep and returns, so that one whole round is made between the announcement and the
 * sleep; everything that notifies the eventcount is looked at in that round by sequentially consistent loads: the
 * inbox, the stop and abort flags, and the words of FIFOs.
 *
 * Waiting is idle. A connection that waits for its kernel or its peer does not keep the thread awake; it only bounds
 * the sleep, because sockets and GPUs do not notify.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PROXY
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "base/thread.h"
#include "device/device.h"
#include "device/topology.h"
#include "proxy/engine.h"

enum {
	NAP_MIN_NS = 50000,
	PUSHED_NS = 1000000,  /* how long one that is to drive is trusted to begin */
	DRIVEN_NS = 20000000, /* and one that drives to come again: it may have lost its CPU for some turns of others */
	CROWD_LATE_NS = 1000000,
	CROWD_MAX = 4,
	SLEEP_NS = 1000000000, /* without operations: a second, in case a notification is ever lost */
};

static struct engines_mu engines_mu_one;
static struct gantry_list engines GUARDED_BY(engines_mu) = {&engines, &engines}; /* a handful at most */

/*
 * A nap that ends a millisecond late says that others wait for the CPUs. Where hundreds of ranks share a few of them it is
 * their looking that keeps the CPUs busy: 256 processes that look once in a millisecond need five. So such a thread looks
 * less often, until its naps end in time again.
 */
static void judge_nap(struct gantry_proxy *p, uint64_t wanted, uint64_t took)
{
	uint64_t late = took > wanted ? took - wanted : 0;

	if (late > CROWD_LATE_NS && p->crowd < CROWD_MAX)
		p->crowd++;
	else if (late < CROWD_LATE_NS / 2 && p->crowd)
		p->crowd--;
}

static void back_off(struct gantry_proxy *p, int driven)
{
	int busy = load_relaxed(&p->nactive) != 0;
	uint64_t sleeps = p->waiter.sleeps, max = SLEEP_NS;
	uint64_t began = p->waiter.wait.announced ? gantry_now_ns() : 0; /* the next thing that it does is to sleep */

	if (busy)
		max = (p->nap_ns < p->nap_max_ns ? p->nap_ns : p->nap_max_ns) << p->crowd;
	p->waiter.spin = driven ? 0 : gantry_wait_limits()->spin_ticks;
	p->waiter.yield = driven ? 0 : gantry_wait_limits()->yield_ticks;
	gantry_waiter_idle(&p->waiter, driven ? PUSHED_NS : max);
	if (p->waiter.sleeps == sleeps)
		return;
	PUT(p->stats.sleeps, p->waiter.sleeps);
	if (!p->waiter.wait.announced) {
		ADD(p->stats.wakes, 1);
		return;
	}
	if (!busy)
		return;
	judge_nap(p, max, gantry_now_ns() - began);
	if (p->nap_ns < p->nap_max_ns)
		p->nap_ns *= 2; /* not notified: look again after a longer while */
}

/*
 * A thread drives and does so again soon: two that take turns at the same connections on a CPU would only cost time. One
 * that has not come for a while is stuck, or its kernel has not begun.
 */
static int is_driven(const struct gantry_proxy *p)
{
	uint64_t until = load_seq(&p->driven);

	return until && (int64_t)(until - gantry_ticks()) > 0 && !load_relaxed(&p->nown);
}

/*
 * Pins the calling thread to CPUs near a device; does nothing but log where it cannot. What the user or a batch system
 * has allowed to the process is kept: only less of it is used.
 */
static void pin_thread(int numa_node)
{
	cpu_set_t near, mine, both;
	int rc;

	if (numa_node < 0)
		return;
	/* The process's, not the calling thread's: that one may be bound to a CPU which it wants for itself. */
	if (sched_getaffinity(getpid(), sizeof(mine), &mine)) {
		LOG_INFO(PROXY, "progress thread not pinned: sched_getaffinity: %s", strerror(errno));
		return;
	}
	if (!gantry_topology_cpus(numa_node, &near)) {
		LOG_INFO(PROXY, "progress thread not pinned: the CPUs of NUMA node %d are not known%s", numa_node,
			 GANTRY_HAVE_HWLOC ? "" : " without hwloc");
		return;
	}
	CPU_AND(&both, &near, &mine);
	if (CPU_COUNT(&both) == 0) {
		LOG_INFO(PROXY, "progress thread not pinned: this process may use no CPU of NUMA node %d", numa_node);
		return;
	}
	rc = pthread_setaffinity_np(pthread_self(), sizeof(both), &both);
	if (rc)
		LOG_WARN(PROXY, "progress thread not pinned: %s", strerror(rc));
	else
		LOG_INFO(PROXY, "progress thread pinned to %s of NUMA node %d", COUNT_TEXT(CPU_COUNT(&both), "CPU"),
			 numa_node);
}

static void *run_engine(void *arg)
{
	struct gantry_proxy *p = arg;

	if (p->numa_node >= 0)
		pin_thread(p->numa_node);
	gantry_waiter_init(&p->waiter, &p->eventcount);
	while (!load_seq(&p->stop)) {
		int driven = is_driven(p);

		if (!driven && gantry_proxy_round(p, 1) > 0) {
			p->nap_ns = NAP_MIN_NS;
			gantry_waiter_done(&p->waiter);
		} else {
			back_off(p, driven);
		}
	}
	gantry_waiter_done(&p->waiter);
	return NULL;
}

static void engine_free(struct gantry_proxy *p)
{
	if (!p)
		return;
	gantry_proxy_pool_free(&p->pool);
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
	p->owner = getpid();
	p->numa_node = gantry_params()->proxy_pin ? numa_node : -1;
	p->nap_ns = NAP_MIN_NS;
	p->nap_max_ns = gantry_params()->proxy_sleep;
	p->pushed_ticks = gantry_ticks_of_ns(PUSHED_NS);
	p->driven_ticks = gantry_ticks_of_ns(DRIVEN_NS);
	gantry_list_init(&p->active);
	TRY(gantry_thread_start("gantry-proxy", run_engine, p, &p->thread));
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
	gantry_list_each_entry (p, &engines, struct gantry_proxy, in_engines) {
		if (p->key == key && p->owner == getpid())
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
	ret->sleeps = GET(p->stats.sleeps);
	ret->wakes = GET(p->stats.wakes);
	ret->batches = GET(p->stats.batches);
	ret->ops = GET(p->stats.ops);
}
