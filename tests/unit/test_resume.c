/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that outlive their sockets: sockets are reset at random moments under load, every message is checked, and each
 * comes once and in order. Both ends live in this process, over lo.
 * Catches: a message or piece that is lost, doubled or put in the wrong place by a broken socket, a buffer that is given
 * back early, and a session that stands still afterwards.
 */
#include "resume_util.h"

static void run(const char *zerocopy, uint64_t messages, uint32_t every, enum cuts cuts)
{
	void *ctx;
	struct way w = open_way(zerocopy, &ctx);

	CHECK_OK(stream(w, messages, every, cuts));
	CHECK(!every || resumed() > 0);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

TEST_CALL(without_faults, run("auto", 300, 0, CUT_ONE))
TEST_CALL(one_lane_at_a_time, run("off", 400, 8, CUT_ONE))
TEST_CALL(spliced, run("splice", 400, 8, CUT_ONE))
TEST_CALL(zerocopy, run("msg", 300, 8, CUT_ONE))
TEST_CALL(all_at_once, run("auto", 300, 40, CUT_ALL))

enum { HELD = 64 << 10 };

/* Eager messages that are too large for a copy: the control lane is cut in the middle of them. pace: after some of them a
 * held message is copied. */
static void run_held(const char *pace, enum cuts cuts)
{
	void *ctx;
	struct way w;

	size_above = RESUME_COPY_MAX;
	size_most = 64 << 10;
	set_params("GANTRY_POLL_PACE", pace);
	w = open_way("auto", &ctx);
	/* Bulk lanes come back by what is said on the control lane: with all of them cut, it needs a moment. */
	CHECK_OK(stream(w, 600, cuts == CUT_ALL ? 40 : 8, cuts));
	CHECK(resumed() > 10);
	if (strcmp(pace, "0") == 0)
		CHECK(adopted() > 50);
	else
		CHECK(adopted() < 600);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

TEST_CALL(held_for_long, run_held("1ms", CUT_CONTROL))
TEST_CALL(held_for_a_moment, run_held("5us", CUT_CONTROL))
TEST_CALL(copied_at_once, run_held("0", CUT_CONTROL))
TEST_CALL(held_without_lanes, run_held("5us", CUT_ALL))

/* Two ways share a link, one each way. One is closed, with messages under way; the other goes on. */
static void run_half(bool sender_first)
{
	static uint8_t out[HELD], in[HELD];
	struct way first, second;
	void *ctx;

	first = open_way("auto", &ctx);
	second = connect_way(ctx);
	CHECK_EQ(links_open(), 2);
	CHECK_OK(stream(first, 20, 0, CUT_ONE));
	for (int i = 0; i < 4; i++) {
		post_recv(first.recv, in, HELD, 0);
		post_send(first.send, out, i % 2 ? HELD : 100, 0);
	}
	if (sender_first)
		CHECK_OK(ops->close_send(net, first.send));
	else
		CHECK_OK(ops->close_recv(net, first.recv));
	CHECK_OK(stream(second, 150, 10, CUT_ONE));
	if (sender_first)
		CHECK_OK(ops->close_recv(net, first.recv));
	else
		CHECK_OK(ops->close_send(net, first.send));
	CHECK_OK(stream(second, 150, 10, CUT_ALL));
	CHECK(resumed() > 10);
	close_way(second);
	CHECK_OK(ops->finalize(net, ctx));
}

TEST_CALL(one_direction_closed_by_its_sender, run_half(true))
TEST_CALL(one_direction_closed_by_its_receiver, run_half(false))

/* A message that nobody has read before its socket is cut. waits: its user asks for it before, and has its buffer back
 * without any word from the peer. */
static void run_unread(bool waits)
{
	uint8_t *out = malloc(HELD), *in = malloc(HELD);
	void *ctx, *send, *recv;
	uint64_t since;
	struct way w;

	w = open_way("auto", &ctx);
	CHECK(out && in);
	pattern_fill(out, HELD, 7);
	since = gantry_now_ns();
	send = post_send(w.send, out, HELD, 0);
	if (waits) {
		wait_done(send);
		CHECK(gantry_now_ns() - since < 1000000000); /* the service thread would read the message then */
		CHECK_EQ(adopted(), 1);
		memset(out, 0x5a, HELD);
	}
	cut_at(0, 0); /* the receiver's kernel drops what it has */
	recv = post_recv(w.recv, in, HELD, 0);
	wait_done(recv);
	CHECK_PATTERN(in, HELD, 7);
	CHECK_EQ(resumed(), 2);
	CHECK_EQ(adopted(), waits);
	if (!waits)
		wait_done(send);
	close_way(w);
	free(out);
	free(in);
	CHECK_OK(ops->finalize(net, ctx));
}

TEST_CALL(goes_again_from_its_buffer, run_unread(false))
TEST_CALL(goes_again_from_its_copy, run_unread(true))

/* Bytes of messages that came before their receives, of all links. */
static uint64_t unexpected_bytes(void)
{
	uint64_t n = 0;

	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node) {
		link_mu_lock(&l->mu);
		n += l->rx.unexpected_bytes;
		link_mu_unlock(&l->mu);
	}
	inet_loop_unlock();
	return n;
}

/* One look; a request that is done is NULL from then on. */
static bool is_out(void **request)
{
	int done = 0;

	if (*request)
		CHECK_OK(ops->test(net, *request, &done, NULL));
	if (done)
		*request = NULL;
	return !*request;
}

/* What the sender was told of a receive is lost, and a small message that left after the large one for that receive has come. */
TEST(told_again_of_an_overtaken_receive)
{
	uint8_t *out = malloc(MIB), *in = malloc(MIB), small = 7, got = 0, other = 0;
	void *ctx, *send, *overtaking, *recv, *waiting[2];
	struct way w = open_way("auto", &ctx);

	CHECK(out && in);
	pattern_fill(out, MIB, 3);
	send = post_send(w.send, out, MIB, 0);
	CHECK(!is_out(&send)); /* asks for its receive */
	overtaking = post_send(w.send, &small, 1, 0);
	waiting[0] = post_recv(w.recv, &other, 1, 1);
	WAIT_WHILE (!unexpected_bytes()) {
		is_out(&overtaking);
		CHECK(!is_out(&waiting[0]));
	}
	recv = post_recv(w.recv, in, MIB, 0);
	wait_done(post_recv(w.recv, &got, 1, 0));
	CHECK_EQ(got, 7);
	waiting[1] = post_recv(w.recv, &other, 1, 1); /* receives of the tag in use are told of with every counter */
	cut_at(1, 0);				      /* before the sender has looked */
	for (int i = 0; i < 2; i++)
		wait_two(waiting[i], post_send(w.send, &small, 1, 1), NULL);
	CHECK_EQ(other, 7);
	WAIT_WHILE (send || recv || overtaking) {
		is_out(&send);
		is_out(&recv);
		is_out(&overtaking);
	}
	CHECK_PATTERN(in, MIB, 3);
	close_way(w);
	free(out);
	free(in);
	CHECK_OK(ops->finalize(net, ctx));
}

void tests_begin(void)
{
	tests_apart(1);
}
