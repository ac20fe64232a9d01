/* SPDX-License-Identifier: Apache-2.0 */
/* How kernels on CPU threads wait: by base/eventcount.h's rules, but that an abort flag ends every wait. */
#include <sched.h>

#include "base/clock.h"
#include "base/eventcount.h"
#include "device/host/dev_host.h"
#include "device/host/host.h"

enum { SLEEP_NS = 100000000, FEW_CPUS = 4 };

_Thread_local struct dev_thread dev_self = {.lanes = 1, .blocks = 1};
uint32_t gantry_host_spin;

void gantry_host_wait_setup(void)
{
	gantry_host_spin = gantry_wait_limits()->spin_rounds;
}

int gantry_host_wait(struct dev_wait *w)
{
	const struct gantry_wait_limits *l = gantry_wait_limits();
	const uint32_t *stop = dev_self.abort;

	/* Sequentially consistent like any condition: it is looked at between the announcement and the sleep. */
	if (stop && load_seq(stop)) {
		dev_wait_done(w);
		return 1;
	}
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
