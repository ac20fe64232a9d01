/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping and waking of CPU threads: one mechanism for the proxy, streams, the pipeline and all pollers. Kernels have
 * the same in the words of device/dev.h.
 *
 * A waiter backs off in phases. It spins (GANTRY_SPIN), then yields its CPU between looks (GANTRY_YIELD), then
 * announces itself at its eventcount, looks once more, and sleeps on a futex until it is notified. To notify costs one
 * load as long as no waiter has announced itself.
 *
 *	gantry_waiter_init(&w, eventcount);
 *	for (;;) {
 *		if (look_for_work()) {
 *			gantry_waiter_done(&w);
 *			continue;
 *		}
 *		gantry_waiter_idle(&w, max_sleep_ns);
 *	}
 *
 *   the other side:   store what look_for_work looks at; gantry_eventcount_notify(eventcount);
 *
 * Between two calls of gantry_waiter_idle everything that may notify must have been looked at: the call that announces
 * returns (with 1) for just that, and the next one sleeps. What is looked at must be read and stored sequentially
 * consistently (dev_load, dev_store, load_seq, store_seq): then either the waiter sees the store or the other side sees
 * the announcement. A mutex around both would do as well.
 *
 * An eventcount has one sleeper. It may lie in memory shared by processes. gantry_waiter_done ends a wait early and for
 * good; after it there are no spurious wake-ups.
 */
#ifndef GANTRY_BASE_EVENTCOUNT_H
#define GANTRY_BASE_EVENTCOUNT_H

#include <stdint.h>

#include "base/atomic.h"
#include "gantry/fifo.h"

/* How far a wait has come. Zeroed is one that has not begun. Owned by the waiting thread. */
struct gantry_backoff {
	uint64_t since; /* ticks at which it began, or spinning ended; 0: it has not */
	uint32_t seq;	/* of the eventcount when it announced itself; without one, ns of the last nap */
	uint32_t announced;
};

/* Owned by the waiting thread. */
struct gantry_waiter {
	struct gantry_eventcount *eventcount; /* borrowed; NULL: short naps, up to 1 ms, in place of sleep */
	uint64_t spin, yield;		      /* ticks that the phases last; may be changed after init */
	uint64_t yields, sleeps;	      /* how often; for reports */
	struct gantry_backoff wait;
};

void gantry_waiter_init(struct gantry_waiter *w, struct gantry_eventcount *eventcount);

/* One round. max_sleep_ns: 0 never sleeps (what is waited for does not notify), UINT64_MAX sleeps until notified.
 * Returns 1 when it has just announced itself: look again. */
int gantry_waiter_idle(struct gantry_waiter *w, uint64_t max_sleep_ns);
/* The first two phases alone, for waiters that sleep by other means: 0 after a round of them, 1 when they are over. */
int gantry_waiter_brief(struct gantry_waiter *w);

/* There was something to do, or the wait is over: the announcement is withdrawn; the next idle round spins again. */
static inline void gantry_waiter_done(struct gantry_waiter *w)
{
	w->wait.since = 0;
	if (w->wait.announced) {
		store_seq(&w->eventcount->waiting, 0);
		w->wait.announced = 0;
	}
}

void gantry_eventcount_wake(struct gantry_eventcount *e);
/* After storing the value that the sleeper waits for. NULL: there is no sleeper. */
static inline void gantry_eventcount_notify(struct gantry_eventcount *e)
{
	if (e && load_seq(&e->waiting))
		gantry_eventcount_wake(e);
}

/* ---- parts, for waiters with rules of their own ---- */

/* Whether less than `ticks` have passed since the wait came here. */
int gantry_backoff_within(struct gantry_backoff *b, uint64_t now, uint64_t ticks);
/* The last two phases. 1: announced. */
int gantry_backoff_sleep(struct gantry_backoff *b, struct gantry_eventcount *e, uint64_t max_ns);
void gantry_futex_wait(uint32_t *word, uint32_t expected);
void gantry_futex_wake(uint32_t *word);

/* What waiting threads go by: read from the parameters, and measured, once per process. */
struct gantry_wait_limits {
	uint64_t spin_ticks, yield_ticks;
	uint32_t spin_rounds; /* of a pause and a look; 0 on one CPU */
	int cpus;	      /* that this process may use */
};
const struct gantry_wait_limits *gantry_wait_limits(void);

#endif
