/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How CPU threads wait. The phases and their order are in device/wait.h; here is why sleeping loses no wake-up.
 *
 *   sleeper                          ringer
 *   s = door->seq                    store the condition
 *   door->waiting = 1                if (door->waiting)
 *   look at the condition                    door->seq += 1, wake
 *   sleep unless door->seq != s
 *
 * All accesses are sequentially consistent. If the ringer reads waiting == 0, its read comes before the sleeper's
 * store, so its store of the condition comes before the sleeper's look: seen. If it reads 1, it adds to seq. Either it
 * does so after the sleeper read s, then the sleep ends or never begins; or before, and then its store of the condition
 * came before the sleeper's look. `waiting` may be left over from an earlier announcement: that costs a wake-up in
 * vain.
 *
 * A sleep that times out leaves the announcement in place: the sleeper looks again and goes on sleeping on the same s.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "device/wait.h"
#include "base/atomic.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "device/host/dev_host.h"
#include "device/host/host.h"

enum { SLEEP_NS = 100000000, NAP_MIN_NS = 50000, NAP_MAX_NS = 1000000, CALIBRATE = 256, FEW_CPUS = 4 };

_Thread_local struct dev_thread dev_self = {.lanes = 1, .blocks = 1};
uint32_t gantry_host_spin;

/* Written once, by `once`. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t spin_ticks, yield_ticks;
static int cpus;

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

static void setup(void)
{
	const struct gantry_params *p = gantry_params();
	uint64_t rounds;
	cpu_set_t set;

	cpus = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
	/* With one CPU, whoever is waited for runs only when the waiter does not. */
	spin_ticks = cpus > 1 ? gantry_ticks_of_ns(p->spin) : 0;
	yield_ticks = gantry_ticks_of_ns(p->yield);
	rounds = spin_ticks * CALIBRATE / ticks_per_calibration();
	gantry_host_spin = rounds < INT_MAX ? (uint32_t)rounds : INT_MAX;
	LOG_DEBUG(DEVICE, "%d CPUs: waiting threads spin %u rounds, then yield %llu ns", cpus, gantry_host_spin,
		  (unsigned long long)p->yield);
}

void gantry_host_wait_setup(void)
{
	pthread_once(&once, setup);
}

int gantry_host_cpus(void)
{
	gantry_host_wait_setup();
	return cpus;
}

/* 1: the time ran out. Without FUTEX_PRIVATE_FLAG: doors are shared between processes. */
static int futex_wait(uint32_t *word, uint32_t expected, uint64_t max_ns)
{
	struct timespec t = {(time_t)(max_ns / 1000000000), (long)(max_ns % 1000000000)};

	return syscall(SYS_futex, word, FUTEX_WAIT, expected, max_ns == UINT64_MAX ? NULL : &t, NULL, 0) < 0 &&
	       errno == ETIMEDOUT;
}

void gantry_host_futex_wait(uint32_t *word, uint32_t expected)
{
	futex_wait(word, expected, UINT64_MAX);
}

void gantry_host_futex_wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void gantry_door_wake(struct gantry_door *door)
{
	fetch_add_seq(&door->seq, 1);
	gantry_host_futex_wake(&door->seq);
}

/* Nobody rings: look again after a while, after longer and longer ones. */
static void nap(struct dev_wait *w, uint64_t max_ns)
{
	uint64_t ns = w->seq < NAP_MIN_NS ? NAP_MIN_NS : w->seq;
	struct timespec t = {0, (long)(ns < max_ns ? ns : max_ns)};

	w->seq = (uint32_t)(ns * 2 < NAP_MAX_NS ? ns * 2 : NAP_MAX_NS);
	nanosleep(&t, NULL);
}

/* The last two phases. 1: announced. */
static int announce_or_sleep(struct dev_wait *w, struct gantry_door *door, uint64_t max_ns)
{
	if (!door) {
		nap(w, max_ns);
		return 0;
	}
	if (!w->announced) {
		w->seq = load_seq(&door->seq);
		store_seq(&door->waiting, 1);
		w->announced = 1;
		return 1;
	}
	if (futex_wait(&door->seq, w->seq, max_ns))
		return 0;
	store_seq(&door->waiting, 0);
	w->announced = 0;
	w->since = 0; /* rung: more may follow soon */
	return 0;
}

/* Whether less than `ticks` have passed since this wait came here. */
static int within(struct dev_wait *w, uint64_t now, uint64_t ticks)
{
	if (!w->since) {
		w->since = now ? now : 1;
		w->seq = 0; /* no nap yet */
	}
	return now - w->since < ticks;
}

int gantry_host_wait(struct dev_wait *w)
{
	const uint32_t *stop = dev_self.abort;

	/* Sequentially consistent like any condition: it is looked at between the announcement and the sleep. */
	if (stop && load_seq(stop)) {
		dev_wait_done(w);
		return 1;
	}
	if (w->proxied && cpus <= FEW_CPUS)
		announce_or_sleep(w, dev_self.door, SLEEP_NS);
	else if (w->n < gantry_host_spin)
		gantry_cpu_pause();
	else if (!w->announced && within(w, gantry_ticks(), yield_ticks))
		sched_yield();
	else
		announce_or_sleep(w, dev_self.door, SLEEP_NS);
	return 0;
}

void gantry_host_wait_done(struct dev_wait *w)
{
	store_seq(&dev_self.door->waiting, 0);
	w->announced = 0;
}

void gantry_waiter_init(struct gantry_waiter *w, struct gantry_door *door)
{
	gantry_host_wait_setup();
	w->door = door;
	w->spin = spin_ticks;
	w->yield = yield_ticks;
	w->yields = w->sleeps = 0;
	dev_wait_init(&w->wait);
}

int gantry_waiter_brief(struct gantry_waiter *w)
{
	uint64_t now = gantry_ticks();

	/* By time and not by rounds: between two rounds its owner may look at very much. */
	if (within(&w->wait, now, w->spin)) {
		gantry_cpu_pause();
		return 0;
	}
	if (!within(&w->wait, now, w->spin + w->yield))
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
	w->sleeps += !w->door || w->wait.announced;
	return announce_or_sleep(&w->wait, w->door, max_sleep_ns);
}

/*
 * The last lane to arrive opens the next generation. Lanes that wait long (for their lane 0, which waits for a peer)
 * sleep; `sleeping` and `generation` are ordered like `waiting` and the condition above, with the futex's own look at
 * `generation` as the second look.
 */
void gantry_host_team_barrier(struct dev_team *t)
{
	uint32_t now = load_seq(&t->generation);
	struct gantry_waiter w;

	if (fetch_add_seq(&t->arrived, 1) + 1 == t->lanes) {
		store_seq(&t->arrived, 0);
		store_seq(&t->generation, now + 1);
		if (load_seq(&t->sleeping))
			gantry_host_futex_wake(&t->generation);
		return;
	}
	gantry_waiter_init(&w, NULL);
	while (load_seq(&t->generation) == now) {
		if (!gantry_waiter_brief(&w))
			continue;
		fetch_add_seq(&t->sleeping, 1);
		gantry_host_futex_wait(&t->generation, now);
		fetch_sub_seq(&t->sleeping, 1);
	}
}
