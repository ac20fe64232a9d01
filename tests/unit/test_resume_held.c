/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eager messages that leave from their user's buffer where the session outlives its sockets, frame by frame: when they are
 * done, what a receiver tells of them, and a peer that counts wrong.
 * Catches: a buffer that is given back before the peer has the message, a sender that waits for a peer that says nothing, news
 * that small messages do not need, and bytes of a ring that a wrong count would show to the peer.
 */
#include "link_pair.h"

enum { SIZE = 20000, LATE = 3600 };

static const struct pair_config config = {.nlanes = 2, .inet = 1};
static uint8_t data[SIZE];
static int raw[WIRE_MAX_LANES];

/* patient: its user waits for as long as it takes. */
static struct tcp_link *open_link(bool patient)
{
	struct tcp_link *l = pair_raw(&config, raw);

	l->session.pace_ticks = patient ? gantry_ticks_of_ns(LATE * 1000000000ull) : 0;
	CHECK_OK(tcp_resume_init(l));
	return l;
}

/* What the link says next. */
static void take(struct tcp_link *l, void *to, size_t n)
{
	size_t got = 0;

	WAIT_WHILE (got < n) {
		ssize_t more;

		tcp_link_progress(l);
		more = recv(raw[0], (uint8_t *)to + got, n - got, MSG_DONTWAIT);
		got += more > 0 ? (size_t)more : 0;
	}
}

static struct tcp_request *post_message(struct tcp_link *l)
{
	void *request = NULL;
	uint8_t header[48], got[SIZE];

	pattern_fill(data, SIZE, 1);
	CHECK_OK(tcp_link_isend(l, data, SIZE, 0, &request));
	CHECK(request);
	take(l, header, PAIR_EAGER_SIZE);
	CHECK_EQ(pair_frame_get(header).length, SIZE);
	take(l, got, SIZE);
	CHECK_PATTERN(got, SIZE, 1);
	return request;
}

static void say_received(uint64_t bytes)
{
	pair_say(raw[0], &(struct pair_frame){.kind = 2, .total = bytes}, NULL);
}

TEST(done_when_it_has_come)
{
	struct tcp_link *l = open_link(true);
	struct tcp_request *first = post_message(l), *second = post_message(l);
	int done = 0;

	for (int i = 0; i < 100; i++) {
		CHECK_OK(tcp_link_test(first, &done, NULL));
		CHECK(!done);
	}
	say_received(SIZE + PAIR_EAGER_SIZE);
	WAIT_WHILE (!done)
		CHECK_OK(tcp_link_test(first, &done, NULL));
	CHECK_OK(tcp_link_test(second, &done, NULL));
	CHECK(!done);
	say_received(2 * (SIZE + PAIR_EAGER_SIZE));
	WAIT_WHILE (!done)
		CHECK_OK(tcp_link_test(second, &done, NULL));
	CHECK_EQ(l->resume->adopted, 0);
	pair_raw_free(&config, l, raw);
}

TEST(done_when_it_is_copied)
{
	struct tcp_link *l = open_link(false);
	struct tcp_request *request = post_message(l);
	struct iovec iov[2];
	int done = 0;

	CHECK_OK(tcp_link_test(request, &done, NULL));
	CHECK(done);
	CHECK_EQ(l->resume->adopted, 1);
	CHECK_EQ(tcp_resume_list(l->resume, PAIR_EAGER_SIZE, PAIR_EAGER_SIZE + SIZE, iov), 1);
	CHECK_PATTERN(iov[0].iov_base, SIZE, 1);
	pair_raw_free(&config, l, raw);
}

/* The receiving side of the peer closes: nothing is resumed any more, and the kernel has the message. */
TEST(done_when_nothing_is_resumed)
{
	struct tcp_link *l = open_link(true);
	struct tcp_request *request = post_message(l);
	int done = 0;

	pair_say(raw[0], &(struct pair_frame){.kind = 4, .flags = 4}, NULL);
	WAIT_WHILE (!done)
		CHECK_OK(tcp_link_test(request, &done, NULL));
	pair_raw_free(&config, l, raw);
}

TEST(a_part_that_came)
{
	struct tcp_link *l = open_link(true);
	struct tcp_request *request = post_message(l);
	gantry_result r = GANTRY_OK;
	int done = 0;

	logs_keep();
	say_received(100);
	WAIT_WHILE (r == GANTRY_OK) {
		r = tcp_link_test(request, &done, NULL);
		CHECK(!done);
	}
	CHECK_EQ(r, GANTRY_ERR_PROTOCOL);
	CHECK_HAS(gantry_last_error(), "part of an eager message");
	pair_raw_free(&config, l, raw);
}

static void receive(struct tcp_link *l, uint32_t size, uint32_t index)
{
	static uint8_t in[SIZE];
	void *request = NULL, *to = in;
	size_t room = SIZE;
	int tag = 0, done = 0;

	CHECK_OK(tcp_link_irecv(l, 1, &to, &room, &tag, &request));
	pair_say(raw[0], &(struct pair_frame){.kind = PAIR_EAGER, .length = size, .index = index}, data);
	WAIT_WHILE (!done)
		CHECK_OK(tcp_link_test(request, &done, NULL));
}

/* The sender hears of a message that it may hold as soon as nothing follows it, and not of a small one. */
TEST(told_when_nothing_follows)
{
	struct tcp_link *l = open_link(true);
	uint8_t state[48];

	receive(l, 100, 0);
	pair_passes(l, 10);
	CHECK(recv(raw[0], state, sizeof(state), MSG_DONTWAIT) < 0);
	receive(l, RESUME_COPY_MAX + 1, 1);
	CHECK(recv(raw[0], state, sizeof(state), MSG_DONTWAIT) < 0); /* a reply would have it */
	take(l, state, sizeof(state));
	CHECK_EQ(pair_frame_get(state).kind, 2);
	CHECK_EQ(pair_frame_get(state).total, 100 + RESUME_COPY_MAX + 1 + 2 * PAIR_EAGER_SIZE);
	pair_passes(l, 10);
	CHECK(recv(raw[0], state, sizeof(state), MSG_DONTWAIT) < 0);
	pair_raw_free(&config, l, raw);
}
