/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a post and its answer cost, without any payload: `perf fifo`. Lane 0 of block 0 alone.
 *
 * Bare is the floor: one flag there, one flag back. The other side spins and stores head as far as it saw tail; nobody
 * notifies, so it is launched without eventcounts. Otherwise steps are posted as a send from a registered buffer posts
 * them. Both go on where the connection stands, so that launches can follow each other.
 */
#ifndef GANTRY_KERNELS_K_FIFO_H
#define GANTRY_KERNELS_K_FIFO_H

#include "device/k_conn.h"
#include "kernels/bench.h"

/* Waits until the consumer's head is at least `want`; what it is then. */
DEV uint64_t k_fifo_wait(const uint64_t *head, uint64_t want, int *aborted)
{
	struct dev_wait w;
	uint64_t seen = dev_load(head);

	dev_wait_init(&w);
	while (!*aborted && seen < want) {
		*aborted = dev_wait(&w);
		seen = dev_load(head);
	}
	dev_wait_done(&w);
	return seen;
}

DEV void k_fifo(const struct gantry_fifo_args *a)
{
	struct gantry_conn *c = a->conn;
	uint64_t window = a->bare || a->window < 1 ? 1 : a->window > GANTRY_STEPS ? GANTRY_STEPS : a->window;
	uint64_t step = c->step, end = step + a->n, seen = step;
	uint64_t *tail = c->tail; /* locals: each acquire empties a GPU's L1 */
	const uint64_t *head = c->head;
	struct gantry_slot *slots = c->slots;
	struct gantry_eventcount *eventcount = c->eventcount;
	int aborted = 0;

	if (dev_block() != 0 || dev_lane() != 0)
		return;
	for (; !aborted && step < end; step++) {
		if (seen + window <=
		    step) /* a look at head is a trip over the bus: only when there is no credit left */
			seen = k_fifo_wait(head, step + 1 - window, &aborted);
		if (!a->bare)
			dev_post(&slots[step % GANTRY_STEPS], gantry_slot_meta(step, GANTRY_MODE_PTR, 8),
				 gantry_slot_where(step, 0x1000 + step % GANTRY_STEPS * 8));
		dev_store_relaxed(tail, step + 1);
		if (!a->bare)
			dev_notify(eventcount);
	}
	k_fifo_wait(head, step, &aborted);
	c->step = step;
	if (aborted)
		k_fail(a->result, GANTRY_ERR_ABORTED);
}

#endif
