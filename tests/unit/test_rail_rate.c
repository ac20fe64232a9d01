/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails get pieces by how fast they deliver, as far as the kernel knows it. What the kernel knows of a lane is as old as
 * the lane's last bytes. Catches: a rail that was slow once and gets nothing any more, a slow one that gets as much as
 * the others.
 */
#include "link_match_util.h"

enum { ROUNDS = 8, SIZE = 4 * MIB, FAST = 1000000000, SLOW = 60000, WINDOW = 100000 };

static uint32_t slow_rtt_us;

/* What a kernel says of a lane of this speed that has drained. */
static bool info_of(const struct tcp_io *io, uint64_t rate, uint32_t rtt_us, struct tcp_io_info *ret)
{
	if (!tcp_io_engine->info(io, ret))
		return false;
	ret->delivery_rate = rate;
	ret->window = WINDOW;
	ret->rtt_us = rtt_us;
	return true;
}

static bool info_fast(const struct tcp_io *io, struct tcp_io_info *ret)
{
	return info_of(io, FAST, 100, ret);
}

static bool info_slow(const struct tcp_io *io, struct tcp_io_info *ret)
{
	return info_of(io, SLOW, slow_rtt_us, ret);
}

/* The peer's kernel has acknowledged what the lane has sent. */
static bool has_drained(const struct tcp_lane *lane)
{
	uint64_t unacked = 1;

	CHECK(tcp_io_engine->unacked(&lane->io, &unacked));
	return !unacked;
}

/* Pieces that went over the lane whose last sample was slow, of messages that went over two. */
static uint64_t pieces_of_slow(uint32_t rtt_us)
{
	struct tcp_io_ops fast = *tcp_io_engine, slow = *tcp_io_engine;
	struct pair_config c = {.nlanes = 3, .inet = 1, .buffer = 256 << 10};
	FREED uint8_t *out = message(SIZE, 1), *in = room(SIZE);
	struct tcp_link *l[2];
	uint64_t pieces;

	slow_rtt_us = rtt_us;
	fast.info = info_fast;
	slow.info = info_slow;
	pair_links(&c, l);
	l[0]->session.rails = 2;
	l[0]->lanes[1].io.ops = &fast;
	l[0]->lanes[2].io.ops = &slow;
	for (int i = 0; i < ROUNDS; i++) {
		void *recv = irecv(l[1], in, SIZE, A), *send = isend(l[0], out, SIZE, A);

		wait_for(l, send, NULL);
		wait_for(l, recv, NULL);
		CHECK_PATTERN(in, SIZE, 1);
		WAIT_WHILE (!has_drained(&l[0]->lanes[2]))
			progress(l, 1);
	}
	pieces = l[0]->lanes[2].tx.pieces;
	CHECK(l[0]->lanes[1].tx.pieces >= ROUNDS);
	done_with(l);
	return pieces;
}

/* Its queue is empty, its window and its round trip are those of a fast lane: the sample is an old one. */
TEST(a_rail_that_was_slow_once_is_used)
{
	CHECK(pieces_of_slow(100) >= ROUNDS);
}

/* A round trip that waited in the queue of a slow rail tells that the sample is right. */
TEST(a_slow_rail_gets_next_to_nothing)
{
	CHECK(pieces_of_slow((uint32_t)((uint64_t)WINDOW * 1000000 / SLOW)) <= 1);
}
