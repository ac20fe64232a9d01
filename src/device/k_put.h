/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations in order, by one block: copies into memory of peers, signals to them, waits for theirs.
 *
 * Order. Put: all lanes' copies, the barrier, then lane 0 stores the signal (release): a reader that acquires the
 * signal sees the data. What a copy engine has copied before the launch is ordered by the fence. Wait: lane 0 acquires
 * both words that count the peer's signals, and what follows on the stream comes after it.
 */
#ifndef GANTRY_DEVICE_K_PUT_H
#define GANTRY_DEVICE_K_PUT_H

#include "device/k_conn.h"
#include "device/work.h"

DEV void put_signal(const struct gantry_put *p)
{
	uint64_t n = dev_load_relaxed(p->count) + 1;

	dev_store_relaxed(p->count, n);
	dev_fence();
	dev_store(p->word, n);
	dev_notify(p->eventcount);
}

/* 1: aborted. */
DEV int put_wait(const struct gantry_put *p)
{
	uint64_t until = dev_load_relaxed(p->count) + p->expected;
	struct dev_wait w;
	int aborted = 0;

	dev_wait_init(&w);
	while (!aborted && dev_load(p->word) + dev_load(p->by_net) < until)
		aborted = dev_wait(&w);
	dev_wait_done(&w);
	if (!aborted)
		dev_store_relaxed(p->count, until);
	return aborted;
}

/* The owner has deregistered the window: nothing is copied there. The same on all lanes. */
DEV int put_is_late(const struct gantry_put *p)
{
	uint64_t late = 0;

	if (dev_lane() == 0)
		late = dev_load((uint64_t *)p->window) != p->number;
	return (int)dev_bcast(late);
}

DEV void k_put(const struct gantry_put_args *a)
{
	int aborted = a->after && k_after(a->after, a->after_value), late = 0;
	uint64_t i;

	for (i = 0; i < a->n && !aborted && !late; i++) {
		const struct gantry_put *p = &a->puts[i];

		if (p->bytes) {
			late = put_is_late(p);
			if (late)
				continue;
			dev_copy(p->to, p->from, p->bytes);
			dev_barrier();
		}
		if (dev_lane() == 0 && p->by_net)
			aborted = put_wait(p);
		else if (dev_lane() == 0 && p->count)
			put_signal(p);
		aborted = (int)dev_bcast((uint64_t)aborted);
	}
	if (dev_lane() != 0)
		return;
	if (aborted || late)
		k_end_failed(a->result, late ? GANTRY_ERR_USAGE : GANTRY_ERR_ABORTED);
	dev_leave();
	dev_fence(); /* the memory of puts may be used again */
	dev_add(a->finished, 1);
}

#endif
