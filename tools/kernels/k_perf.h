/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of perf: messages to and fro, posts without payload, reductions, and the pattern that messages carry. */
#ifndef GANTRY_KERNELS_K_PERF_H
#define GANTRY_KERNELS_K_PERF_H

#include "device/k_prim.h"
#include "kernels/bench.h"
#include "kernels/pattern.h"

/*
 * A message to and fro between two kernels, n times: what the steps themselves cost, without launches. The first one
 * sends its input and waits for the answer; the other answers with what it received. `perf sendrecv --pattern echo`.
 */
DEV uint32_t echo_move(struct dev_prims *p, const struct gantry_echo_args *a, uint32_t what)
{
	struct prim_slice s;

	s.what = what;
	s.last = s.in_at = 0;
	s.nrecv = what & PRIM_RECV ? 1 : 0;
	s.nsend = what & PRIM_SEND ? 1 : 0;
	s.recv = &a->recv;
	s.send = &a->send;
	s.shifts = NULL;
	s.in = a->first ? a->input : a->output;
	s.out = a->output;
	s.count = a->bytes;
	return dev_prims_move(p, &s);
}

DEV void k_echo(const struct gantry_echo_args *a)
{
	struct dev_prims p;
	uint32_t r;

	if (dev_block() != 0)
		return;
	p.id = UINT64_MAX;
	p.proto = a->proto;
	p.type = GANTRY_TYPE_INT8;
	p.op = GANTRY_OP_SUM;
	p.scalar = 0;
	p.ptr = 0;
	r = dev_prims_init(&p, a->send->step_bytes[a->proto], 1, 1);
	for (uint64_t i = 0; i < a->n && r == GANTRY_OK; i++) {
		if (a->first)
			r = echo_move(&p, a, GANTRY_PRIM_SEND);
		if (r == GANTRY_OK)
			r = echo_move(&p, a, GANTRY_PRIM_RECV);
		if (r == GANTRY_OK && !a->first)
			r = echo_move(&p, a, GANTRY_PRIM_SEND);
	}
	dev_barrier();
	if (dev_lane() == 0) {
		prim_show(&p, a->recv, a->recv->step, GANTRY_KERNEL_IDLE);
		prim_show(&p, a->send, a->send->step, GANTRY_KERNEL_IDLE);
		if (r != GANTRY_OK)
			k_fail(a->result, r);
	}
}

/*
 * What a post and its answer cost, without any payload: `perf fifo`. Lane 0 of block 0 alone.
 *
 * Bare is the floor: one flag there, one flag back. The other side spins and stores head as far as it saw tail, without
 * notifying, so it is launched without eventcounts. Otherwise steps are posted as a send from a registered buffer posts
 * them. Both go on where the connection stands, so that launches can follow each other.
 */

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

/* The pattern of pattern.h, written (fill) and checked (verify) by all lanes of all blocks. */
DEV uint32_t k_fill_part(uint64_t bytes, uint64_t k)
{
	return bytes - 8 * k < 8 ? (uint32_t)(bytes - 8 * k) : 8;
}

DEV void k_fill(const struct gantry_fill_args *a)
{
	uint64_t seed = gantry_pattern_seed(a->bytes, a->seq), all = (uint64_t)dev_lanes() * dev_blocks();

	for (uint64_t k = (uint64_t)dev_block() * dev_lanes() + dev_lane(); 8 * k < a->bytes; k += all)
		dev_scatter8(a->dst + 8 * k, gantry_pattern_word(seed, k), k_fill_part(a->bytes, k));
}

DEV void k_verify(const struct gantry_verify_args *a)
{
	uint64_t seed = gantry_pattern_seed(a->bytes, a->seq), all = (uint64_t)dev_lanes() * dev_blocks();
	uint64_t differ, wrong = 0;
	uint32_t n;

	for (uint64_t k = (uint64_t)dev_block() * dev_lanes() + dev_lane(); 8 * k < a->bytes; k += all) {
		n = k_fill_part(a->bytes, k);
		differ = dev_gather8(a->src + 8 * k, n) ^ gantry_pattern_word(seed, k);
		if (n < 8)
			differ &= (1ull << 8 * n) - 1;
		for (; differ; differ >>= 8)
			wrong += (differ & 255) != 0;
	}
	if (wrong)
		dev_add(a->wrong, wrong);
}

/* Elements reduced without peers: each block has a contiguous part. */
DEV void k_reduce(const struct gantry_reduce_args *a)
{
	const char *srcs[GANTRY_REDUCE_MOST];
	char *dsts[GANTRY_REDUCE_MOST];
	uint64_t elem = dev_type_bytes(a->type), part, from;
	struct dev_reduction r;

	if (elem == 0 || a->nsrc > GANTRY_REDUCE_MOST || a->ndst > GANTRY_REDUCE_MOST)
		return;
	part = (a->count / dev_blocks() + 128) & ~127ull;
	from = part * dev_block();
	if (from >= a->count)
		return;
	part = a->count - from < part ? a->count - from : part;
	for (uint32_t i = 0; i < a->nsrc; i++)
		srcs[i] = a->src[i] + from * elem;
	for (uint32_t i = 0; i < a->ndst; i++)
		dsts[i] = a->dst[i] + from * elem;
	r.srcs = srcs;
	r.dsts = dsts;
	r.nsrc = a->nsrc;
	r.ndst = a->ndst;
	r.type = a->type;
	r.op = a->op;
	r.scalar = a->scalar;
	r.premul = 0;
	r.last = a->last;
	dev_reduce_copy(&r, part);
}

#endif
