/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting of CPU threads that poll: the proxy, streams, helpers of launches. Kernels have the same in dev.h's words.
 *
 * A waiter backs off in phases. It spins (GANTRY_SPIN), then yields its CPU between looks (GANTRY_YIELD), then
 * announces itself at its door, looks once more, and sleeps on a futex until somebody rings. A ring costs the ringer
 * one load as long as nobody has announced himself.
 *
 *	gantry_waiter_init(&w, door);
 *	for (;;) {
 *		if (look_for_work()) {
 *			gantry_waiter_worked(&w);
 *			continue;
 *		}
 *		gantry_waiter_idle(&w, max_sleep_ns);
 *	}
 *
 *   the other side:   store what look_for_work looks at; gantry_door_ring(door);
 *
 * Between two calls of gantry_waiter_idle everything that may ring must have been looked at: the call that announces
 * returns (with 1) for just that, and the next one sleeps. What is looked at must be read and stored sequentially
 * consistently (dev_load, dev_store, or __ATOMIC_SEQ_CST): then either the waiter sees the store or the ringer sees the
 * announcement. A mutex around both would do as well.
 *
 * A door has one sleeper. It may lie in memory shared by processes. gantry_waiter_done ends a wait early and for good;
 * after it nobody rings in vain.
 */
#ifndef GANTRY_DEVICE_WAIT_H
#define GANTRY_DEVICE_WAIT_H

#include <stdint.h>

#include "base/atomic.h"
#include "device/host/dev_host.h"
#include "gantry/fifo.h"

/* Owned by the waiting thread. */
struct gantry_waiter {
	struct gantry_door *door; /* borrowed; NULL: short naps, up to 1 ms, in place of sleep */
	uint64_t spin, yield;	  /* ticks that the phases last; may be changed after init */
	uint64_t yields, sleeps;  /* how often; for reports */
	struct dev_wait wait;
};

void gantry_waiter_init(struct gantry_waiter *w, struct gantry_door *door);

/* One round. max_sleep_ns: 0 never sleeps (what is waited for does not ring), UINT64_MAX sleeps until rung. Returns 1
 * when it has just announced itself: look again. */
int gantry_waiter_idle(struct gantry_waiter *w, uint64_t max_sleep_ns);
/* The first two phases alone, for those who sleep by other means: 0 after a round of them, 1 when they are over. */
int gantry_waiter_brief(struct gantry_waiter *w);

/* The announcement is withdrawn; the next idle round spins again. */
static inline void gantry_waiter_done(struct gantry_waiter *w)
{
	w->wait.since = 0;
	if (w->wait.announced) {
		store_seq(&w->door->waiting, 0);
		w->wait.announced = 0;
	}
}
/* There was something to do. */
static inline void gantry_waiter_worked(struct gantry_waiter *w)
{
	gantry_waiter_done(w);
}

/* After storing what the sleeper waits for. door may be NULL: nobody sleeps there. */
static inline void gantry_door_ring(struct gantry_door *door)
{
	dev_ring(door);
}

#endif
