/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails get pieces by how fast they deliver, as far as the kernel knows; and what it knows of a lane is as old as the
 * lane's last bytes. Catches: a rail that was slow once and gets nothing any more, a slow one that gets as much as the
 * others.
 */
#include "link_match_util.h"

enum { ROUNDS = 8, SIZE = 4 * MIB, FAST = 1000000000, SLOWER = 100000000, SLOW = 60000, WINDOW = 100000 };

/* What the kernel says of the second lane. */
static uint64_t slow_rate;
static uint32_t slow_rtt_us;

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
	return info_of(io, slow_rate, slow_rtt_us, ret);
}

/* The peer's kernel has acknowledged what the lane has sent. */
static bool has_drained(const struct tcp_lane *lane)
{
	uint64_t unacked = 1;

	CHECK(tcp_io_engine->unacked(&lane->io, &unacked));
	return !unacked;
}

/* Messages over two rails: how many pieces the second one got, if it drains before each. */
struct rails {
	struct tcp_io_ops fast, slow;
	struct tcp_link *l[2];
	uint8_t *out, *in;
};

static void open_rails(struct rails *r, uint64_t rate, uint32_t rtt_us)
{
	struct pair_config c = {.nlanes = 3, .inet = 1, .buffer = 256 << 10};

	slow_rate = rate;
	slow_rtt_us = rtt_us;
	r->fast = r->slow = *tcp_io_engine;
	r->fast.info = info_fast;
	r->slow.info = info_slow;
	pair_links(&c, r->l);
	r->l[0]->session.rails = 2;
	r->l[0]->lanes[1].io.ops = &r->fast;
	r->l[0]->lanes[2].io.ops = &r->slow;
	r->out = message(SIZE, 1);
	r->in = room(SIZE);
}

static uint64_t pieces_after(struct rails *r, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		void *recv = irecv(r->l[1], r->in, SIZE, A), *send = isend(r->l[0], r->out, SIZE, A);

		wait_for(r->l, send, NULL);
		wait_for(r->l, recv, NULL);
		CHECK_PATTERN(r->in, SIZE, 1);
		WAIT_WHILE (!has_drained(&r->l[0]->lanes[2]))
			progress(r->l, 1);
	}
	return r->l[0]->lanes[2].tx.pieces;
}

static void close_rails(struct rails *r)
{
	CHECK(r->l[0]->lanes[1].tx.pieces >= ROUNDS);
	done_with(r->l);
	free(r->out);
	free(r->in);
}

/* The round trip of a rail that has had this rate for long, with its window full. */
static uint32_t rtt_of(uint64_t rate)
{
	return (uint32_t)((uint64_t)WINDOW * 1000000 / rate);
}

/* Its window and its round trip are those of a fast lane: the sample is an old one. */
TEST(a_rail_that_was_slow_once_is_used)
{
	struct rails r;

	open_rails(&r, SLOW, rtt_of(FAST));
	CHECK(pieces_after(&r, ROUNDS) >= ROUNDS);
	close_rails(&r);
}

TEST(a_slow_rail_gets_next_to_nothing)
{
	struct rails r;

	open_rails(&r, SLOW, rtt_of(SLOW));
	CHECK(pieces_after(&r, ROUNDS) <= 1);
	close_rails(&r);
}

/* After 64 times as long as a piece would take. */
TEST(a_slow_rail_is_tried_again)
{
	struct rails r;

	open_rails(&r, SLOWER, rtt_of(SLOWER));
	CHECK(pieces_after(&r, ROUNDS) <= 1);
	WAIT_WHILE (pieces_after(&r, 1) < 2)
		;
	close_rails(&r);
}
