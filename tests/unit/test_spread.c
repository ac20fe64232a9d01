/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small messages go over other NICs when the control lane's is full, as far as its socket shows. Lane 1 leaves by the
 * control lane's NIC, lanes 2 and 3 by others. Catches: small messages that wait for a full NIC while others are idle, that
 * go over a slower one, or over the full one by another lane; messages that are lost, repeated or in disorder because
 * some of them went another way.
 */
#include "link_match_util.h"

enum { LANES = 4, ELSEWHERE = 1 << 2 | 1 << 3, SMALL = 8 << 10, MANY = 24, FAST = 1000000000, SLOW = 1000000 };

/* What the kernel says of each lane. */
static struct {
	uint64_t unacked, rate;
} says[LANES];

static bool unacked_of(uint64_t *ret, int lane)
{
	*ret = load_relaxed(&says[lane].unacked);
	return true;
}

static bool info_of(const struct tcp_io *io, struct tcp_io_info *ret, int lane)
{
	if (!tcp_io_engine->info(io, ret))
		return false;
	ret->delivery_rate = load_relaxed(&says[lane].rate);
	ret->window = 0; /* the rate alone counts */
	return true;
}

#define LANE(i)                                                                                                        \
	static bool unacked_##i(const struct tcp_io *io, uint64_t *ret)                                                \
	{                                                                                                              \
		(void)io;                                                                                              \
		return unacked_of(ret, i);                                                                             \
	}                                                                                                              \
	static bool info_##i(const struct tcp_io *io, struct tcp_io_info *ret)                                         \
	{                                                                                                              \
		return info_of(io, ret, i);                                                                            \
	}
LANE(0)
LANE(1)
LANE(2)
LANE(3)

struct world {
	struct tcp_io_ops ops[LANES];
	struct tcp_link *l[2];
	uint8_t *out[MANY], *in[MANY];
	size_t size;
};

static void open_world(struct world *w, size_t size)
{
	static bool (*const unacked[])(const struct tcp_io *, uint64_t *) = {unacked_0, unacked_1, unacked_2,
									     unacked_3};
	static bool (*const info[])(const struct tcp_io *, struct tcp_io_info *) = {info_0, info_1, info_2, info_3};
	struct pair_config c = {.nlanes = LANES, .inet = 1, .buffer = 1 << 20};

	pair_links(&c, w->l);
	w->l[0]->session.rails = 3;
	w->l[0]->session.pace_ticks = 0; /* looks again each time */
	store_relaxed(&w->l[0]->spread->elsewhere, ELSEWHERE);
	for (int i = 0; i < LANES; i++) {
		says[i].unacked = 0;
		says[i].rate = FAST;
		w->ops[i] = *tcp_io_engine;
		w->ops[i].unacked = unacked[i];
		w->ops[i].info = info[i];
		w->l[0]->lanes[i].io.ops = &w->ops[i];
	}
	w->size = size;
	for (int i = 0; i < MANY; i++) {
		w->out[i] = message(size, (uint64_t)i);
		w->in[i] = room(size);
	}
}

static void close_world(struct world *w)
{
	done_with(w->l);
	for (int i = 0; i < MANY; i++) {
		free(w->out[i]);
		free(w->in[i]);
	}
}

/* MANY messages, every one checked at its place; early: before their receives are posted. Returns how many were spread. */
static uint64_t move(struct world *w, int tag, bool early)
{
	uint64_t before = w->l[0]->spread->messages;
	void *send[MANY], *recv[MANY];

	for (int round = 0; round < 2; round++)
		for (int i = 0; i < MANY; i++) {
			if ((round == 0) == early)
				send[i] = isend(w->l[0], w->out[i], w->size, tag);
			else
				recv[i] = irecv(w->l[1], w->in[i], w->size, tag);
			progress(w->l, 1);
		}
	for (int i = 0; i < MANY; i++) {
		wait_for(w->l, recv[i], NULL);
		wait_for(w->l, send[i], NULL);
		CHECK_PATTERN(w->in[i], w->size, (uint64_t)i);
		memset(w->in[i], 0, w->size);
	}
	return w->l[0]->spread->messages - before;
}

static uint64_t pieces_of(const struct world *w, int lane)
{
	return w->l[0]->lanes[lane].tx.pieces;
}

/* The control lane's NIC is full, as the next messages will find. */
static void fill_nic(struct world *w)
{
	store_relaxed(&says[0].unacked, 2 * SPREAD_FULL);
	w->l[0]->spread->given = w->l[0]->lanes[0].tx.bytes - SPREAD_BYTES; /* enough was sent: a look is due */
}

TEST(a_nic_with_room_is_used_alone)
{
	struct world w;

	open_world(&w, SMALL);
	CHECK_EQ(move(&w, A, false), 0);
	CHECK_EQ(move(&w, A, true), 0);
	CHECK_EQ(pieces_of(&w, 1) + pieces_of(&w, 2) + pieces_of(&w, 3), 0);
	close_world(&w);
}

TEST(messages_leave_a_full_nic_alone)
{
	struct world w;

	open_world(&w, SMALL);
	CHECK_EQ(move(&w, A, false), 0);
	fill_nic(&w);
	CHECK_EQ(move(&w, A, false), MANY);
	CHECK_EQ(move(&w, A, true), MANY);
	CHECK_EQ(pieces_of(&w, 1), 0);
	CHECK_EQ(pieces_of(&w, 2) + pieces_of(&w, 3), 2 * MANY);
	close_world(&w);
}

/* Some of a tag's messages go the one way and some the other, and all are in their order. */
TEST(they_come_back)
{
	struct world w;

	open_world(&w, SMALL);
	for (int i = 0; i < 8; i++) {
		fill_nic(&w);
		CHECK_EQ(move(&w, A, i & 1), MANY);
		store_relaxed(&says[0].unacked, SPREAD_FULL - 1);
		CHECK_EQ(move(&w, i & 2 ? A : B, i & 4), 0);
	}
	close_world(&w);
}

TEST(a_nic_that_takes_longer_is_left_alone)
{
	struct world w;

	open_world(&w, SMALL);
	fill_nic(&w);
	for (int i = 2; i < LANES; i++) {
		says[i].unacked = SPREAD_FULL;
		says[i].rate = SLOW;
	}
	CHECK_EQ(move(&w, A, false), 0);
	close_world(&w);
}

/* Without other NICs that work the control lane is as good as any. */
TEST(lanes_that_are_lost_are_not_waited_for)
{
	struct world w;

	open_world(&w, SMALL);
	fill_nic(&w);
	store_relaxed(&w.l[0]->lanes[2].tx.dead, 1);
	CHECK_EQ(move(&w, A, false), MANY);
	CHECK_EQ(pieces_of(&w, 3), MANY);
	store_relaxed(&w.l[0]->lanes[3].tx.dead, 1);
	CHECK_EQ(move(&w, A, false), 0);
	close_world(&w);
}

TEST(tiny_and_hastened_messages_stay)
{
	struct world w;

	open_world(&w, SPREAD_LEAST - 1);
	fill_nic(&w);
	CHECK_EQ(move(&w, A, false), 0);
	close_world(&w);
	open_world(&w, SMALL);
	CHECK_OK(tcp_link_hasten(w.l[0], C, 0));
	fill_nic(&w);
	CHECK_EQ(move(&w, C, false), 0);
	CHECK_EQ(move(&w, B, false), MANY);
	close_world(&w);
}

/* A socket that takes no more, however little it holds: until the next look. */
TEST(a_full_socket_is_enough)
{
	struct world w;

	open_world(&w, SMALL);
	says[0].unacked = 1000;
	tcp_spread_blocked(w.l[0]);
	CHECK(move(&w, A, true) > 0);
	CHECK_EQ(w.l[0]->spread->full, 0); /* it has not been so again */
	CHECK_EQ(pieces_of(&w, 1), 0);
	close_world(&w);
}

/* But not if the others are slower. */
TEST(a_full_socket_beside_slow_ones)
{
	struct world w;

	open_world(&w, SMALL);
	says[0].unacked = 1000;
	for (int i = 2; i < LANES; i++) {
		says[i].unacked = 1 << 20;
		says[i].rate = SLOW;
	}
	tcp_spread_blocked(w.l[0]);
	CHECK_EQ(move(&w, A, true), 0);
	close_world(&w);
}
