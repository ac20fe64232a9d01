/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of two ranks that put and signal to each other by gantry/kernel.h, as kernels of programs do: `perf gin`.
 *
 *   echo     a put with a signal there and one back, n times, in context 0: put by a warp of block 0, awaited by its lane 0
 *   stream   n puts from one rank to the other by all lanes of all blocks, in the order of their places; block b has context b, and
 *            ends it with one signal. The other rank answers each of these signals with one
 *
 * What a put carries. The first and the last word of its bytes are those of the pattern (pattern.h) of its size and its number. The receiver
 * looks at them as soon as it has seen the signal: what a signal shows is there. Before an answer is sent the put has arrived, so
 * its source may be written again.
 */
#ifndef GANTRY_KERNELS_K_GIN_H
#define GANTRY_KERNELS_K_GIN_H

#include "device/k_conn.h"
#include "kernels/bench.h"
#include "kernels/pattern.h"

enum { GIN_SHOWN = 256 }; /* rounds between stores that show how far it has come */

/* The words that are stamped: the first, and the last that has bytes of the put. */
DEV uint64_t gin_last_word(uint64_t bytes)
{
	return (bytes - 1) / 8;
}

DEV uint32_t gin_word_bytes(uint64_t bytes, uint64_t k)
{
	return bytes - 8 * k < 8 ? (uint32_t)(bytes - 8 * k) : 8;
}

DEV void gin_stamp(char *at, uint64_t bytes, uint64_t seq)
{
	const uint64_t seed = gantry_pattern_seed(bytes, seq), last = bytes ? gin_last_word(bytes) : 0;

	if (!bytes)
		return;
	dev_scatter8(at, gantry_pattern_word(seed, 0), gin_word_bytes(bytes, 0));
	if (last)
		dev_scatter8(at + 8 * last, gantry_pattern_word(seed, last), gin_word_bytes(bytes, last));
}

/* Wrong bytes of a word. */
DEV uint64_t gin_differ(const char *at, uint64_t bytes, uint64_t seed, uint64_t k)
{
	const uint32_t n = gin_word_bytes(bytes, k);
	uint64_t differ = dev_gather8(at + 8 * k, n) ^ gantry_pattern_word(seed, k), wrong = 0;

	if (n < 8)
		differ &= (1ull << 8 * n) - 1;
	for (; differ; differ >>= 8)
		wrong += (differ & 255) != 0;
	return wrong;
}

DEV uint64_t gin_look(const char *at, uint64_t bytes, uint64_t seq)
{
	const uint64_t seed = gantry_pattern_seed(bytes, seq), last = bytes ? gin_last_word(bytes) : 0;

	if (!bytes)
		return 0;
	return gin_differ(at, bytes, seed, 0) + (last ? gin_differ(at, bytes, seed, last) : 0);
}

/* ---- echo ---- */

/* By a warp. side: the one that sends it, 0 the first. */
DEV int gin_echo_put(const struct gantry_gin_args *a, uint64_t i, uint32_t side)
{
	struct gantry_gin_place from, to;

	from.memory = a->from;
	to.memory = a->to;
	from.offset = to.offset = a->at;
	if (a->stamp && dev_lane() == 0)
		gin_stamp(a->source + a->at, a->bytes, a->seq + 2 * i + side);
	return gantry_gin_put_warp(&a->view, 0, a->peer, from, to, a->bytes, 0);
}

/* By lane 0. */
DEV int gin_echo_take(const struct gantry_gin_args *a, uint64_t i, uint32_t side, uint64_t *wrong)
{
	if (gantry_gin_wait(&a->view, 0, a->echoes + a->streams + i + 1))
		return 1;
	if (a->look)
		*wrong += gin_look(a->target + a->at, a->bytes, a->seq + 2 * i + side);
	return 0;
}

/* By all lanes, which go round together. What ends a put of the second side's is seen in its next round. */
DEV int gin_echo(const struct gantry_gin_args *a, uint64_t *wrong)
{
	const int puts = dev_lane() < GANTRY_GIN_WARP, waits = dev_lane() == 0;
	int ended = 0;

	for (uint64_t i = 0; i < a->n; i++) {
		const uint64_t start = dev_clock();

		if (a->first && puts)
			ended = gin_echo_put(a, i, 0);
		if (waits && !ended)
			ended = gin_echo_take(a, i, a->first ? 1 : 0, wrong);
		if (dev_bcast((uint64_t)ended))
			return 1;
		if (!a->first && puts)
			ended = gin_echo_put(a, i, 1);
		if (waits)
			dev_store_relaxed(&a->times[i], dev_clock() - start);
		if (waits && i % GIN_SHOWN == 0)
			dev_store_relaxed(a->shown, i);
	}
	return ended;
}

/* ---- stream ---- */

/* This lane's puts of this block's. */
DEV int gin_stream_puts(const struct gantry_gin_args *a)
{
	const uint64_t lanes = (uint64_t)dev_lanes() * dev_blocks();
	struct gantry_gin_place from, to;

	from.memory = a->from;
	to.memory = a->to;
	for (uint64_t i = (uint64_t)dev_lane() * dev_blocks() + dev_block(); i < a->n; i += lanes) {
		from.offset = to.offset = a->at + i % a->places * a->stride;
		if (dev_lane() == 0 && dev_block() == 0 && i / lanes % GIN_SHOWN == 0)
			dev_store_relaxed(a->shown, i);
		if (gantry_gin_put(&a->view, dev_block(), a->peer, from, to, a->bytes, GANTRY_GIN_NONE))
			return 1;
	}
	return 0;
}

/* What this block's signal has shown: each place once. */
DEV uint64_t gin_stream_look(const struct gantry_gin_args *a)
{
	uint64_t wrong = 0;

	for (uint64_t i = dev_block(); i < a->n && i < a->places; i += dev_blocks())
		wrong += gin_look(a->target + a->at + i * a->stride, a->bytes, a->seq + i);
	return wrong;
}

DEV int gin_stream(const struct gantry_gin_args *a, uint64_t *wrong)
{
	const uint32_t b = dev_block();
	const uint64_t answer = a->streams + 1 + (b == 0 ? a->echoes : 0), start = dev_clock();
	int ended = 0;

	if (a->first)
		ended = gin_stream_puts(a);
	if (!dev_all(!ended)) /* and a barrier: the signal comes behind all puts */
		return 1;
	if (dev_lane() != 0)
		return 0;
	if (a->first && gantry_gin_signal(&a->view, b, a->peer, b, 1))
		return 1;
	if (gantry_gin_wait(&a->view, b, answer))
		return 1;
	if (!a->first && a->look)
		*wrong += gin_stream_look(a);
	if (!a->first && gantry_gin_signal(&a->view, b, a->peer, b, 1))
		return 1;
	dev_store_relaxed(&a->times[2 * b], start);
	dev_store_relaxed(&a->times[2 * b + 1], dev_clock());
	return 0;
}

DEV void k_gin(const struct gantry_gin_args *a)
{
	uint64_t wrong = 0;
	int ended = 0;

	if (a->stream)
		ended = gin_stream(a, &wrong);
	else if (dev_block() == 0)
		ended = gin_echo(a, &wrong);
	if (wrong)
		dev_add(a->wrong, wrong);
	if (ended)
		k_fail(a->result, GANTRY_ERR_ABORTED);
}

#endif
