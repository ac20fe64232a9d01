/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One direction of a link ends, by either side, also in the middle of a message. The other direction goes on as if
 * nothing had happened; whoever waits in the closed direction hears of it; nobody is handed bytes that were not sent;
 * the memory of closed requests is not touched any more.
 */
#include <malloc.h>

#include "link_match_util.h"

enum { BULK = 3000001, EAGER = 60000, REVERSE = 12, RIGHT_BEHIND = SANITIZED ? 300 : 1500 };

/* Progresses both sides until the request is done (GANTRY_OK) or has failed. */
static gantry_result outcome(struct tcp_link *l[2], void *request)
{
	gantry_result r;
	int done = 0;

	WAIT_WHILE ((r = tcp_link_test(request, &done, NULL)) == GANTRY_OK && !done)
		progress(l, 1);
	return r;
}

/* Of a receive that may be refused at once. */
static gantry_result recv_outcome(struct tcp_link *l[2], uint8_t *in, size_t size)
{
	void *data = in, *request = NULL;
	int tag = A;
	gantry_result r = tcp_link_irecv(l[1], 1, &data, &size, &tag, &request);

	return r == GANTRY_OK ? outcome(l, request) : r;
}

/* Messages from l[from] to the other side, eager and bulk, in both modes of arrival. */
static void traffic(struct tcp_link *l[2], int from)
{
	static const size_t sizes[REVERSE] = {0, 1, 5000, 65536, 65537, 300000, 64, 1000000, 7, 262144, 48, 2000001};
	static uint32_t count[2];
	FREED uint8_t *out = malloc(2000001), *in = malloc(2000001);

	for (int i = 0; i < REVERSE; i++, count[from]++) {
		void *s, *r = NULL;

		pattern_fill(out, sizes[i], count[from]);
		memset(in, 0, sizes[i]);
		if (i % 2)
			r = irecv(l[!from], in, sizes[i], B);
		s = isend(l[from], out, sizes[i], B);
		progress(l, 3);
		if (!r)
			r = irecv(l[!from], in, sizes[i], B);
		CHECK_OK(outcome(l, r));
		CHECK_OK(outcome(l, s));
		CHECK_PATTERN(in, sizes[i], count[from]);
	}
}

enum mode { COPY, SPLICE, ZEROCOPY };

static struct pair_config config_of(enum mode mode, int nlanes, int crc)
{
	struct pair_config c = {.nlanes = nlanes, .inet = 1, .buffer = 65536, .crc = crc};

	c.splice = mode == SPLICE;
	c.msg_zerocopy = mode == ZEROCOPY;
	return c;
}

/* Freed memory is used by somebody else at once. */
static void reuse_heap(void)
{
	void *blocks[64];

	for (int i = 0; i < 64; i++) {
		blocks[i] = malloc((size_t)(1000 + i * 3000));
		memset(blocks[i], 0xff, (size_t)(1000 + i * 3000));
	}
	for (int i = 0; i < 64; i++)
		free(blocks[i]);
}

/*
 * The sender closes while a bulk message is half-way: the receiver's lanes stand still, the sockets are full. The
 * receiver must not take what is left of it for the message.
 */
static void sender_closes_bulk(enum mode mode, int nlanes, int crc, int before, int late_news)
{
	struct pair_config c = config_of(mode, nlanes, crc);
	struct tcp_link *l[2];
	uint8_t *out = malloc(BULK), *in = calloc(1, BULK), *memory = out;
	void *r;
	gantry_result result;

	pair_links(&c, l);
	traffic(l, 1);
	if (before)
		traffic(l, 0);
	pattern_fill(out, BULK, 77);
	r = irecv(l[1], in, BULK, A);
	progress(l, 5);
	for (int i = 1; i < nlanes; i++)
		lane_rx_mu_lock(&l[1]->lanes[i].rx.lock);
	isend(l[0], out, BULK, A);
	UNTIL((progress(l, 10), l[0]->lanes[1].tx.send)); /* in the middle indeed */
	tcp_link_close_tx(l[0]);
	memset(memory, 0xff, BULK); /* it is the user's again */
	free(memory);
	reuse_heap();
	for (int i = 1; i < nlanes; i++)
		lane_rx_mu_unlock(&l[1]->lanes[i].rx.lock);
	if (late_news) {
		/* The bulk lanes overtake the goodbye on the control lane. */
		lane_rx_mu_lock(&l[1]->lanes[0].rx.lock);
		progress(l, 2000);
		lane_rx_mu_unlock(&l[1]->lanes[0].rx.lock);
	}
	result = outcome(l, r);
	if (result == GANTRY_OK)
		CHECK_PATTERN(in, BULK, 77);
	else
		CHECK_RESULT(result, GANTRY_ERR_PEER_CLOSED);
	traffic(l, 1);
	pair_free(l);
	free(in);
}

TEST_CALL(sender_closes_bulk_copy, sender_closes_bulk(COPY, 2, 0, 1, 0))
TEST_CALL(sender_closes_late_news, sender_closes_bulk(COPY, 2, 0, 0, 1))
TEST_CALL(sender_closes_late_news_crc, sender_closes_bulk(COPY, 2, 1, 0, 1))
TEST_CALL(sender_closes_bulk_lanes, sender_closes_bulk(COPY, 4, 0, 0, 0))
TEST_CALL(sender_closes_bulk_crc, sender_closes_bulk(COPY, 2, 1, 0, 0))
TEST_CALL(sender_closes_bulk_splice, sender_closes_bulk(SPLICE, 2, 0, 1, 0))
TEST_CALL(sender_closes_bulk_splice_lanes, sender_closes_bulk(SPLICE, 4, 0, 0, 0))
TEST_CALL(sender_closes_bulk_zerocopy, sender_closes_bulk(ZEROCOPY, 2, 0, 0, 0))

/*
 * A whole message of one piece lies in the pipe or the socket, header and all, when its sender closes: the header must
 * not be lost with the sender's memory, or the stream loses its framing.
 */
TEST(sender_closes_header)
{
	struct pair_config c = {.nlanes = 2, .inet = 1, .splice = 1};
	struct tcp_link *l[2];
	enum { SIZE = 300000 };
	FREED uint8_t *out = malloc(SIZE), *in = calloc(1, SIZE);
	void *r;

	pair_links(&c, l);
	pattern_fill(out, SIZE, 5);
	r = irecv(l[1], in, SIZE, A);
	progress(l, 5);
	lane_rx_mu_lock(&l[1]->lanes[1].rx.lock);
	isend(l[0], out, SIZE, A);
	UNTIL((progress(l, 10), l[0]->lanes[1].tx.bytes > 0 || l[0]->lanes[1].tx.send));
	tcp_link_close_tx(l[0]);
	reuse_heap();
	lane_rx_mu_unlock(&l[1]->lanes[1].rx.lock);
	if (outcome(l, r) == GANTRY_OK)
		CHECK_PATTERN(in, SIZE, 5);
	if (tcp_link_failed(l[1]))
		CHECK_RESULT(l[1]->end.error, GANTRY_ERR_PEER_CLOSED); /* and not a broken protocol */
	traffic(l, 1);
	pair_free(l);
}

/* The sender closes while eager messages wait for the socket: what it was told is done does arrive. */
TEST(sender_closes_eager)
{
	enum { N = 10 };
	struct pair_config c = {.nlanes = 2, .buffer = 16384};
	struct tcp_link *l[2];
	uint8_t *out[N], *in = malloc(EAGER);
	void *sends[N];
	int done = 0, ended = 0;

	pair_links(&c, l);
	traffic(l, 1);
	lane_rx_mu_lock(&l[1]->lanes[0].rx.lock);
	for (int i = 0; i < N; i++) {
		out[i] = malloc(EAGER);
		pattern_fill(out[i], EAGER, (uint64_t)i);
		sends[i] = isend(l[0], out[i], EAGER, A);
	}
	progress(l, 3);
	for (int i = 0; i < N; i++)
		done += ((struct tcp_request *)sends[i])->state == TCP_DONE;
	CHECK(done < N);
	tcp_link_close_tx(l[0]);
	for (int i = 0; i < N; i++) {
		memset(out[i], 0xff, EAGER);
		free(out[i]);
	}
	reuse_heap();
	lane_rx_mu_unlock(&l[1]->lanes[0].rx.lock);
	for (int i = 0; i < N && !ended; i++) {
		gantry_result result = recv_outcome(l, in, EAGER);

		if (result == GANTRY_OK) {
			CHECK_PATTERN(in, EAGER, (uint64_t)i);
			continue;
		}
		CHECK(i >= done);
		CHECK_RESULT(result, GANTRY_ERR_PEER_CLOSED);
		ended = 1;
	}
	traffic(l, 1);
	pair_free(l);
	free(in);
}

/* The receiver closes in the middle; its memory is its own again, the sender hears, the other direction goes on. */
static void receiver_closes(enum mode mode, size_t size, int nlanes)
{
	struct pair_config c = config_of(mode, nlanes, 0);
	struct tcp_link *l[2];
	FREED uint8_t *out = malloc(size), *in = calloc(1, size);
	void *s[8];
	int n = size > 65536 ? 1 : 8;

	pair_links(&c, l);
	traffic(l, 1);
	pattern_fill(out, size, 3);
	for (int i = 0; i < n; i++)
		irecv(l[1], in, size, A);
	progress(l, 5);
	for (int i = 0; i < n; i++)
		s[i] = isend(l[0], out, size, A);
	/* Some bytes of it arrive, not all. */
	for (int i = 0; i < 50 && !l[1]->lanes[0].rx.left && !l[1]->lanes[1].rx.left; i++)
		progress(l, 1);
	tcp_link_close_rx(l[1]);
	memset(in, 0x5a, size);
	for (int i = 0; i < n; i++) {
		gantry_result result = outcome(l, s[i]);

		/* What was copied to the kernel is done; a message that the receiver did not take to its end is not. */
		if (result != GANTRY_OK || size > 65536)
			CHECK_RESULT(result, GANTRY_ERR_PEER_CLOSED);
	}
	CHECK_FILLED(in, size, 0x5a);
	traffic(l, 1);
	pair_free(l);
}

TEST_CALL(receiver_closes_eager, receiver_closes(COPY, EAGER, 2))
TEST_CALL(receiver_closes_bulk_copy, receiver_closes(COPY, BULK, 2))
TEST_CALL(receiver_closes_bulk_splice, receiver_closes(SPLICE, BULK, 2))
TEST_CALL(receiver_closes_bulk_lanes, receiver_closes(SPLICE, BULK, 4))

static uint32_t helping;
static struct tcp_link *helped;

static void *helper(void *arg)
{
	while (__atomic_load_n(&helping, __ATOMIC_ACQUIRE))
		for (int i = 1; i < helped->nlanes; i++)
			tcp_bulk_tx(&helped->lanes[i]);
	return NULL;
}

/*
 * The receiver has all and closes at once. Another thread has sent the last piece, and may not have come to say so when
 * the goodbye is read: that send is done, not closed.
 */
TEST(closes_right_behind)
{
	enum { SIZE = 300000 };
	struct pair_config c = {.nlanes = 3, .inet = 1};
	FREED uint8_t *out = malloc(SIZE), *in = malloc(SIZE);
	uint64_t until = gantry_now_ns() + 4000000000u;

	pattern_fill(out, SIZE, 1);
	/* Two threads that spin: where others want the CPUs too, a round takes time slices and not microseconds. */
	for (int round = 0; round < RIGHT_BEHIND && (round < 5 || gantry_now_ns() < until); round++) {
		struct tcp_link *l[2];
		pthread_t thread;
		void *s, *r;
		int done = 0;

		pair_links(&c, l);
		helped = l[0];
		__atomic_store_n(&helping, 1, __ATOMIC_RELEASE);
		CHECK_EQ(pthread_create(&thread, NULL, helper, NULL), 0);
		r = irecv(l[1], in, SIZE, A);
		s = isend(l[0], out, SIZE, A);
		while (!done) {
			CHECK_OK(tcp_link_test(r, &done, NULL));
			tcp_control_flush(l[0]);
			tcp_lane_rx(&l[0]->lanes[0], 0); /* what the receiver says; the other thread sends */
		}
		tcp_link_close_rx(l[1]);
		CHECK_OK(outcome(l, s));
		__atomic_store_n(&helping, 0, __ATOMIC_RELEASE);
		pthread_join(thread, NULL);
		pair_free(l);
	}
}

/* Nothing outstanding: a closed direction is nobody's news. */
TEST(quiet_close)
{
	for (int who = 0; who < 2; who++) {
		struct pair_config c = config_of(SPLICE, 3, 0);
		struct tcp_link *l[2];

		pair_links(&c, l);
		traffic(l, 0);
		traffic(l, 1);
		who ? tcp_link_close_rx(l[1]) : tcp_link_close_tx(l[0]);
		progress(l, 5);
		traffic(l, 1);
		who ? tcp_link_close_tx(l[0]) : tcp_link_close_rx(l[1]);
		progress(l, 5);
		traffic(l, 1);
		done_with(l);
	}
}

/* A request posted after the other side's goodbye hears of it at once, without another byte from the peer. */
TEST(posted_after_close)
{
	struct pair_config c = config_of(COPY, 2, 0);
	struct tcp_link *l[2];
	uint8_t small[16], *big = calloc(1, BULK);
	void *request = NULL;
	gantry_result r;

	pair_links(&c, l);
	tcp_link_close_tx(l[0]);
	progress(l, 5);
	CHECK_RESULT(recv_outcome(l, small, sizeof(small)), GANTRY_ERR_PEER_CLOSED);
	pair_free(l);

	pair_links(&c, l);
	tcp_link_close_rx(l[1]);
	progress(l, 5);
	r = tcp_link_isend(l[0], big, BULK, A, &request);
	if (r == GANTRY_OK)
		r = outcome(l, request);
	CHECK_RESULT(r, GANTRY_ERR_PEER_CLOSED);
	pair_free(l);
	free(big);
}

/* Eager messages that came before the goodbye are still there for receives posted after it; then the end is told. */
TEST(early_before_close)
{
	struct pair_config c = config_of(COPY, 2, 0);
	struct tcp_link *l[2];
	uint8_t out[5][100], in[100];
	void *s[5];

	pair_links(&c, l);
	for (int i = 0; i < 5; i++) {
		pattern_fill(out[i], 100, (uint64_t)i);
		s[i] = isend(l[0], out[i], 100, A);
	}
	for (int i = 0; i < 5; i++)
		CHECK_OK(outcome(l, s[i]));
	tcp_link_close_tx(l[0]);
	tcp_link_close_rx(l[0]);
	UNTIL((tcp_control_flush(l[0]), tcp_control_idle(l[0])));
	for (int i = 0; i < 2; i++)
		shutdown(l[0]->lanes[i].io.fd, SHUT_WR);
	pair_passes(l[1], 5);
	for (int i = 0; i < 5; i++) {
		CHECK_OK(recv_outcome(l, in, 100));
		CHECK_PATTERN(in, 100, (uint64_t)i);
	}
	CHECK_RESULT(recv_outcome(l, in, 100), GANTRY_ERR_PEER_CLOSED);
	pair_free(l);
}

/* A peer that vanishes without a goodbye is lost, whatever it was doing; the text says so. */
TEST(vanished)
{
	for (int lanes_first = 0; lanes_first < 2; lanes_first++) {
		struct pair_config c = {.nlanes = 3};
		int raw[3];
		struct tcp_link *l = pair_raw(&c, raw);
		uint8_t in[100];
		void *r = irecv(l, in, 100, A);
		int done = 0;
		gantry_result result = GANTRY_OK;

		if (lanes_first)
			CHECK_EQ(send(raw[0], "\x01\x02GT", 4, 0), 4);
		for (int i = 0; i < 3; i++) {
			close(raw[i]);
			raw[i] = -1;
		}
		WAIT_WHILE (result == GANTRY_OK)
			result = tcp_link_test(r, &done, NULL);
		CHECK_RESULT(result, GANTRY_ERR_PEER_LOST);
		CHECK_HAS(gantry_last_error(), "raw peer");
		pair_raw_free(&c, l, raw);
	}
}

void tests_begin(void)
{
	logs_drop();
	tests_apart(0);
}
