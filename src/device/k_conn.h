/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels do on one end of a connection, whichever way the data goes: addresses of a step, credit, reports,
 * and the refreshing of marks that would otherwise come round again.
 *
 * Marks come round. A slot's tag has 16 bits, so a slot that was not written for 65,536 steps looks written for the
 * step that is waited for; zeroed memory looks like step 65,535. That happens: steps of LL between two kernels write no
 * slot, steps of Simple no offer, and a connection may carry thousands of the one between two of the other. Therefore
 * eight steps in a row out of 32,768 write their slot and, on a receiving end, their offer, whatever their protocol:
 * a mark is never older than half a round when it is looked at. (A proxy owes the same to the kernel it serves, for
 * the slots and the offers that it writes.)
 * In the same way a line of LL that only long messages reach could be 2^32 steps old; eight steps out of 2^31 write
 * all lines of their ring slot. The flag of LL128 has 64 bits and never comes round.
 */
#ifndef GANTRY_DEVICE_K_CONN_H
#define GANTRY_DEVICE_K_CONN_H

#include "device/conn.h"
#include "device/dev.h"
#include "device/work.h"
#include "gantry/result.h"

#define K_REFRESH 0x7ff8ull	   /* steps that have all these bits */
#define K_REFRESH_LL 0x7ffffff8ull /* a subset of those */

/* Where the ring holds a step. */
DEV char *k_ring(const struct gantry_conn *c, uint32_t proto, uint64_t step)
{
	uint64_t slot = step % GANTRY_STEPS;

	if (proto == GANTRY_PROTO_LL)
		return c->buffs[GANTRY_PROTO_LL] + slot * gantry_ll_bytes(c->step_bytes[GANTRY_PROTO_LL]);
	if (proto == GANTRY_PROTO_LL128)
		return c->buffs[GANTRY_PROTO_LL128] + slot * gantry_ll128_bytes(c->step_bytes[GANTRY_PROTO_LL128]);
	return c->buffs[GANTRY_PROTO_SIMPLE] + slot * c->step_bytes[GANTRY_PROTO_SIMPLE];
}

/* Whether `step` may be written; lane 0. The line of head is looked at only when the credit known so far is used up. */
DEV int k_credit(struct gantry_conn *c, uint64_t step)
{
	if (c->seen + GANTRY_STEPS > step)
		return 1;
	c->seen = dev_load(c->head);
	return c->seen + GANTRY_STEPS > step;
}

DEV void k_refresh_lines(const struct gantry_conn *c, uint64_t step, uint32_t flag)
{
	char *line;
	uint64_t i, n;

	if ((step & K_REFRESH_LL) != K_REFRESH_LL || !c->buffs[GANTRY_PROTO_LL])
		return;
	line = k_ring(c, GANTRY_PROTO_LL, step);
	n = gantry_ll_bytes(c->step_bytes[GANTRY_PROTO_LL]) / GANTRY_LL_LINE;
	for (i = 0; i < n; i++)
		dev_ll_store((uint64_t *)(line + i * GANTRY_LL_LINE), 0, flag);
}

/* Before a step is sent; lane 0. `slot`: the step writes its slot itself. */
DEV void k_refresh_send(const struct gantry_conn *c, uint64_t step, int slot)
{
	if ((step & K_REFRESH) != K_REFRESH)
		return;
	if (!slot)
		dev_post(&c->slots[step % GANTRY_STEPS], gantry_slot_meta(step, GANTRY_MODE_NORMAL, 0),
			 gantry_slot_where(step, 0));
	k_refresh_lines(c, step, gantry_ll_flag(step - GANTRY_STEPS));
	dev_fence(); /* the marks before the step's own lines */
}

/* When a step has been read and before head says so; lane 0. `offer`: the step wrote its offer itself. */
DEV void k_refresh_recv(const struct gantry_conn *c, uint64_t step, int offer)
{
	if ((step & K_REFRESH) != K_REFRESH)
		return;
	if (!offer && c->offers)
		dev_post(&c->offers[step % GANTRY_STEPS], gantry_slot_meta(step, GANTRY_MODE_NORMAL, 0),
			 gantry_slot_where(step, 0));
	/* Between two kernels the sender has done it, in the same memory. */
	if (c->flags & GANTRY_CONN_PROXIED)
		k_refresh_lines(c, step, gantry_ll_flag(step));
}

/*
 * A step in the connection's counters; lane 0. The host sees each step at once; a GPU shows them when an operation ends
 * (k_show_counts), since the next step's fence would wait until they have crossed the bus.
 */
DEV void k_count(struct gantry_conn *c, uint32_t proto, uint32_t mode, uint64_t bytes, int copied)
{
	struct gantry_conn_counts *n = &c->shown;

	n->steps[proto][mode]++;
	n->bytes += bytes;
	if (copied) {
		n->copies++;
		n->copied += bytes;
	}
#ifndef DEV_NEAR
	dev_store_relaxed(&c->state->counts.steps[proto][mode], n->steps[proto][mode]);
	dev_store_relaxed(&c->state->counts.bytes, n->bytes);
	dev_store_relaxed(&c->state->counts.copies, n->copies);
	dev_store_relaxed(&c->state->counts.copied, n->copied);
#endif
}
/* By `lanes` neighbours: their words cross the bus together. */
DEV void k_show_counts(const struct gantry_conn *c, uint32_t lane, uint32_t lanes)
{
#ifdef DEV_NEAR
	const uint64_t *from = (const uint64_t *)&c->shown;
	uint64_t *to = (uint64_t *)&c->state->counts;

	for (uint32_t i = lane; i < sizeof(c->shown) / 8; i += lanes)
		dev_store_relaxed(&to[i], from[i]);
#else
	(void)c;
	(void)lane;
	(void)lanes;
#endif
}

/* A wait is over, or given up. A clock was looked at if it was no short one; lane 0. */
DEV void k_waited(struct gantry_conn *c, const struct dev_wait *w, uint32_t phase)
{
	if (!w->began)
		return;
	c->shown.waited[phase - 1] += dev_clock() - w->began;
#ifndef DEV_NEAR
	dev_store_relaxed(&c->state->counts.waited[phase - 1], c->shown.waited[phase - 1]);
#endif
}

/*
 * Publishes a copied step to the consumer, with those up to `next`; lane 0, after the barrier behind the copies. Lines
 * validate themselves: their slot is for a proxy. LL128 is for ends that see a line in order; the proxy checks LL's
 * flags itself. On the host the stores here stand between the lines and dev_notify.
 */
DEV void k_publish(struct gantry_conn *c, uint32_t proto, uint64_t step, uint64_t next, uint32_t mode, uint64_t place,
		   uint64_t bytes)
{
	struct gantry_slot *slot = &c->slots[step % GANTRY_STEPS];
	uint64_t meta = gantry_slot_meta(step, mode, bytes), where = gantry_slot_where(step, place);

	if (proto == GANTRY_PROTO_SIMPLE)
		dev_publish(slot, meta, where);
	else if (c->flags & GANTRY_CONN_PROXIED)
		dev_post(slot, meta, where);
	if (proto == GANTRY_PROTO_SIMPLE || c->flags & GANTRY_CONN_PROXIED)
		dev_store_relaxed(c->tail, next);
	else
		dev_post_count(c->tail, next);
	dev_notify(c->eventcount);
	k_count(c, proto, mode, bytes, mode != GANTRY_MODE_PTR);
}

/* Steps below `next` are consumed; lane 0. */
DEV void k_consume(struct gantry_conn *c, uint32_t proto, uint64_t next)
{
	if (proto == GANTRY_PROTO_SIMPLE)
		dev_store(c->head, next);
	else
		dev_post_count(c->head, next);
	dev_notify(c->eventcount);
}

/* Where a step of Simple lies that says so: of the ring, of the pool, or anywhere. */
DEV char *k_place(const struct gantry_conn *c, uint32_t mode, uint64_t step, uint64_t where)
{
	if (mode == GANTRY_MODE_NORMAL)
		return k_ring(c, GANTRY_PROTO_SIMPLE, step);
	return mode == GANTRY_MODE_OFFSET ? c->pool + gantry_slot_place(where)
					  : (char *)(uintptr_t)gantry_slot_place(where);
}

#ifdef DEV_NEAR
/* block: whole words, between the block's shared memory and the device's. */
DEV void k_words(void *to, const void *from, uint64_t bytes)
{
	for (uint64_t i = dev_lane(); i < bytes / 8; i += dev_lanes())
		((uint64_t *)to)[i] = ((const uint64_t *)from)[i];
}
/* What belongs to kernels, of a connection that a block has brought near. */
DEV void k_conn_return(struct gantry_conn *home, const struct gantry_conn *near)
{
	k_words(&home->step, &near->step, sizeof(*home) - offsetof(struct gantry_conn, step));
}
#endif

/* Launches of a communicator on different streams stay in order: begins when the launch before has ended, that is when
 * *after has come to `value`. Whether it was aborted. */
DEV int k_after(const uint64_t *after, uint64_t value)
{
	struct dev_wait w;
	int aborted = 0;

	if (dev_lane() == 0) {
		dev_wait_init(&w);
		while (!aborted && dev_load(after) < value)
			aborted = dev_wait(&w);
		dev_wait_done(&w);
	}
	return (int)dev_bcast((uint64_t)aborted);
}

/* All blocks, when they begin. */
DEV void k_begin(const struct gantry_launch_end *end)
{
	uint64_t n;

	if (!end->runs || dev_block() != 0 || dev_lane() != 0)
		return;
	n = dev_load_relaxed(end->runs) + 1;
	dev_store_relaxed(end->runs, n);
	dev_store_relaxed(end->begun, n);
}

/* Lane 0 of each block, when it is done. A store is sent off; adding to a word in host memory would make the blocks wait
 * for each other, 1.3 us each. */
DEV void k_end(const struct gantry_launch_end *end)
{
	if (!end->word)
		return;
	if (dev_blocks() > 1) {
		if (dev_arrive(end->arrived) != dev_blocks())
			return;
		dev_store_relaxed(end->arrived, 0);
	}
	dev_store(end->word, end->runs ? dev_load_relaxed(end->runs) : end->value);
}

/* The first error of a launch. */
DEV void k_fail(uint32_t *result, uint32_t error)
{
	if (dev_load_relaxed32(result) == GANTRY_OK)
		dev_store_relaxed32(result, error);
}

/* The same at the end of a block, lane 0: nothing that follows on the stream may take what is there for a result. */
DEV void k_end_failed(uint32_t *result, uint32_t error)
{
	k_fail(result, error);
	dev_failed(error);
}

/*
 * ---- lines ----
 *
 * LL and LL128: the bytes of a step as lines that carry their own validity. Plain loops over lines; which lines are a
 * lane's own follows from `lane` and `lanes`, so that one lane may also do a whole step alone. No barrier, no fence.
 *
 * The gets never block. They start at line `from` and answer the first own line that was not there, or the number of
 * lines when they have got everything; what was there has been copied out. DEV_TRIES is how often a lane looks again
 * at lines that are late before it gives up.
 */
#ifndef DEV_TRIES
#define DEV_TRIES 64
#endif

/* Bytes in the line that starts with byte `at`. */
DEV uint32_t k_ll_part(uint64_t bytes, uint64_t at, uint32_t line)
{
	return bytes - at < line ? (uint32_t)(bytes - at) : line;
}

DEV void k_ll_put(char *ring, const char *data, uint64_t bytes, uint64_t step, uint32_t lane, uint32_t lanes)
{
	uint32_t flag = gantry_ll_flag(step);

	for (uint64_t i = lane, at = i * GANTRY_LL_DATA; at < bytes; i += lanes, at = i * GANTRY_LL_DATA)
		dev_ll_store((uint64_t *)(ring + i * GANTRY_LL_LINE),
			     dev_gather8(data + at, k_ll_part(bytes, at, GANTRY_LL_DATA)), flag);
}

DEV uint64_t k_ll_get(char *data, const char *ring, uint64_t bytes, uint64_t step, uint64_t from, uint32_t lane,
		      uint32_t lanes)
{
	uint32_t flag = gantry_ll_flag(step), tries = DEV_TRIES;
	uint64_t i, at, word;

	for (i = from + lane, at = i * GANTRY_LL_DATA; at < bytes; i += lanes, at = i * GANTRY_LL_DATA) {
		while (!dev_ll_load((const uint64_t *)(ring + i * GANTRY_LL_LINE), flag, &word))
			if (--tries == 0)
				return i;
		dev_scatter8(data + at, word, k_ll_part(bytes, at, GANTRY_LL_DATA));
	}
	return (bytes + GANTRY_LL_DATA - 1) / GANTRY_LL_DATA;
}

DEV void k_ll128_put(char *ring, const char *data, uint64_t bytes, uint64_t step, uint32_t lane, uint32_t lanes)
{
	uint32_t groups = lanes / dev_ll128_width(), group = lane / dev_ll128_width(), n;
	uint64_t i, at, flag = gantry_ll128_flag(step);

	for (i = group, at = i * GANTRY_LL128_DATA; group < groups && at < bytes;
	     i += groups, at = i * GANTRY_LL128_DATA) {
		n = k_ll_part(bytes, at, GANTRY_LL128_DATA);
		dev_ll128_put((uint64_t *)(ring + i * GANTRY_LL128_LINE), data + at, n, flag);
	}
}

DEV uint64_t k_ll128_get(char *data, const char *ring, uint64_t bytes, uint64_t step, uint64_t from, uint32_t lane,
			 uint32_t lanes)
{
	uint32_t groups = lanes / dev_ll128_width(), group = lane / dev_ll128_width(), tries = DEV_TRIES, n;
	uint64_t i, at, flag = gantry_ll128_flag(step);

	for (i = from + group, at = i * GANTRY_LL128_DATA; group < groups && at < bytes;
	     i += groups, at = i * GANTRY_LL128_DATA) {
		n = k_ll_part(bytes, at, GANTRY_LL128_DATA);
		while (!dev_ll128_get((const uint64_t *)(ring + i * GANTRY_LL128_LINE), data + at, n, flag))
			if (--tries == 0)
				return i;
	}
	return (bytes + GANTRY_LL128_DATA - 1) / GANTRY_LL128_DATA;
}

#endif
