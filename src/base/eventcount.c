/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why sleeping loses no wake-up. The phases and their order are in the header.
 *
 *   sleeper                          notifier
 *   s = e->seq                       store the condition
 *   e->waiting = 1                   if (e->waiting)
 *   look at the condition                    e->seq += 1, wake
 *   sleep unless e->seq != s
 *
 * All accesses are sequentially consistent. If the notifier reads waiting == 0, its read comes before the sleeper's
 * store, so its store of the condition comes before the sleeper's look: seen. If it reads 1, it adds to seq. Either it
 * does so after the sleeper read s, then the sleep ends or never begins; or before, and then its store of the condition
 * came before the sleeper's look. `waiting` may be left over from an earlier announcement: that costs a wake-up in
 * vain.
 *
 * A sleep that times out leaves the announcement in place: the sleeper looks again and goes on sleeping on the same s.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "base/eventcount.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"

enum { NAP_MIN_NS = 50000, NAP_MAX_NS = 1000000, CALIBRATE = 256 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct gantry_wait_limits limits; /* written by `once` */

/* What a round of spinning takes: CPUs differ by a factor of ten in how long their pause is. */
static uint64_t ticks_per_calibration(void)
{
	uint64_t best = UINT64_MAX, word = 0;

	for (int i = 0; i < 8; i++) {
		uint64_t from = gantry_ticks(), took;

		for (int k = 0; k < CALIBRATE; k++) {
			(void)load_seq(&word);
			gantry_cpu_pause();
		}
		took = gantry_ticks() - from;
		if (took < best)
			best = took;
	}
	return best ? best : 1;
}

static void read_limits(void)
{
	const struct gantry_params *p = gantry_params();
	uint64_t rounds;
	cpu_set_t set;

	limits.cpus = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
	/* With one CPU, the thread waited for runs only while the waiter does not. */
	limits.spin_ticks = limits.cpus > 1 ? gantry_ticks_of_ns(p->spin) : 0;
	limits.yield_ticks = gantry_ticks_of_ns(p->yield);
	rounds = limits.spin_ticks * CALIBRATE / ticks_per_calibration();
	limits.spin_rounds = rounds < INT_MAX ? (uint32_t)rounds : INT_MAX;
	LOG_DEBUG(DEVICE, "%d CPUs: waiting threads spin %u rounds, then yield %llu ns", limits.cpus,
		  limits.spin_rounds, (unsigned long long)p->yield);
}

const struct gantry_wait_limits *gantry_wait_limits(void)
{
	pthread_once(&once, read_limits);
	return &limits;
}

/* 1: the time ran out. Without FUTEX_PRIVATE_FLAG: eventcounts are shared between processes. */
static int futex_wait(uint32_t *word, uint32_t expected, uint64_t max_ns)
{
	struct timespec t = {(time_t)(max_ns / 1000000000), (long)(max_ns % 1000000000)};

	return syscall(SYS_futex, word, FUTEX_WAIT, expected, max_ns == UINT64_MAX ? NULL : &t, NULL, 0) < 0 &&
	       errno == ETIMEDOUT;
}

void gantry_futex_wait(uint32_t *word, uint32_t expected)
{
	futex_wait(word, expected, UINT64_MAX);
}

void gantry_futex_wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void gantry_eventcount_wake(struct gantry_eventcount *e)
{
	fetch_add_seq(&e->seq, 1);
	gantry_futex_wake(&e->seq);
}

/* No thread notifies here: poll at growing intervals. */
static void nap(struct gantry_backoff *b, uint64_t max_ns)
{
	uint64_t ns = b->seq < NAP_MIN_NS ? NAP_MIN_NS : b->seq;
	struct timespec t = {0, (long)(ns < max_ns ? ns : max_ns)};

	b->seq = (uint32_t)(ns * 2 < NAP_MAX_NS ? ns * 2 : NAP_MAX_NS);
	nanosleep(&t, NULL);
}

int gantry_backoff_sleep(struct gantry_backoff *b, struct gantry_eventcount *e, uint64_t max_ns)
{
	if (!e) {
		nap(b, max_ns);
		return 0;
	}
	if (!b->announced) {
		b->seq = load_seq(&e->seq);
		store_seq(&e->waiting, 1);
		b->announced = 1;
		return 1;
	}
	if (futex_wait(&e->seq, b->seq, max_ns))
		return 0;
	store_seq(&e->waiting, 0);
	b->announced = 0;
	b->since = 0; /* notified: more may follow soon */
	return 0;
}

int gantry_backoff_within(struct gantry_backoff *b, uint64_t now, uint64_t ticks)
{
	if (!b->since) {
		b->since = now ? now : 1;
		b->seq = 0; /* no nap yet */
	}
	return now - b->since < ticks;
}

void gantry_waiter_init(struct gantry_waiter *w, struct gantry_eventcount *eventcount)
{
	const struct gantry_wait_limits *l = gantry_wait_limits();

	*w = (struct gantry_waiter){.eventcount = eventcount, .spin = l->spin_ticks, .yield = l->yield_ticks};
}

int gantry_waiter_brief(struct gantry_waiter *w)
{
	uint64_t now = gantry_ticks();

	/* By time and not by rounds: between two rounds its owner may look at very much. */
	if (gantry_backoff_within(&w->wait, now, w->spin)) {
		gantry_cpu_pause();
		return 0;
	}
	if (!gantry_backoff_within(&w->wait, now, w->spin + w->yield))
		return 1;
	w->yields++;
	sched_yield();
	return 0;
}

int gantry_waiter_idle(struct gantry_waiter *w, uint64_t max_sleep_ns)
{
	if (!w->wait.announced && !gantry_waiter_brief(w))
		return 0;
	if (max_sleep_ns == 0) {
		w->yields++;
		sched_yield();
		return 0;
	}
	w->sleeps += !w->eventcount || w->wait.announced;
	return gantry_backoff_sleep(&w->wait, w->eventcount, max_sleep_ns);
}
