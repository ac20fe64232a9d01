/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cancelling at random moments, by either side, over both paths: when cancel returns, nothing touches the buffer any
 * more, the other side hears of it, and the connection goes on. Each rx has a thread that moves it, as its own process
 * would.
 */
#include "rx/rx.h"
#include "rx_util.h"

enum { SIZE = SANITIZED ? 2 << 20 : 6 << 20, PIECE = 5000, STRIDE = 5500, ROUNDS = SANITIZED ? 24 : 42 };

static struct rx_pair pair;
static uint32_t stop;

static void *mover(void *rx)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		gantry_rx_poll(rx, NULL, 0);
		sched_yield();
	}
	return NULL;
}

static void await(struct gantry_rx_op *op)
{
	CHECK(gantry_rx_wait(op, LONG_ENOUGH * SECOND) != GANTRY_ERR_TIMEOUT);
	CHECK_EQ(gantry_rx_test(op), GANTRY_RX_DONE);
}

/* The connection still works, and what was sent before is through. */
static void still_fine(unsigned char *src, unsigned char *dst)
{
	struct gantry_rx_piece from = {src, SIZE, 0, 1}, to = {dst, SIZE, 0, 1};
	struct gantry_rx_op *s, *r;

	CHECK_OK(gantry_rx_send(pair.a.conn, &from, 1, 99, &s));
	CHECK_OK(gantry_rx_recv(pair.b.conn, &to, 1, 99, &r));
	await(s);
	await(r);
	CHECK_OK(rx_result(s));
	CHECK_OK(rx_result(r));
	CHECK(memcmp(src, dst, SIZE) == 0);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
}

static void check_all(const unsigned char *m, size_t size, unsigned char value, const char *what)
{
	size_t i = filled_until(m, size, value);

	if (i != size)
		TEST_FAIL("%s: byte %zu was written after cancel had returned", what, i);
}

struct buffers {
	unsigned char *src, *dst, *good, *sink;
	size_t dst_size;
};

/* by: 0 the sender cancels, 1 the receiver, 2 both at about the same time. Returns 1 if it came early enough. */
static int one(const struct buffers *b, int strided, int by, unsigned moment)
{
	struct gantry_rx_piece from = {b->src, SIZE, 0, 1};
	struct gantry_rx_piece to = {b->dst, SIZE, 0, 1};
	struct gantry_rx_op *s, *r;
	int early;

	if (strided)
		to = (struct gantry_rx_piece){b->dst, PIECE, STRIDE, SIZE / PIECE + 1};
	for (size_t i = 0; i < SIZE; i += 64)
		b->src[i] = (unsigned char)(i >> 6);
	memset(b->dst, 0x77, b->dst_size);
	CHECK_OK(gantry_rx_send(pair.a.conn, &from, 1, 1, &s));
	if (moment % 7 != 0) /* sometimes the receive comes after the cancel */
		CHECK_OK(gantry_rx_recv(pair.b.conn, &to, 1, 1, &r));
	for (unsigned k = 0; k < moment; k++)
		sched_yield();
	if (by != 1) {
		gantry_result got = gantry_rx_cancel(s, LONG_ENOUGH * SECOND);

		CHECK(got == GANTRY_OK || got == GANTRY_ERR_CANCELLED);
		memset(b->src, 0xdd, SIZE); /* what arrives must not be this */
	}
	if (moment % 7 == 0) {
		CHECK_OK(gantry_rx_recv(pair.b.conn, &to, 1, 1, &r));
		for (unsigned k = 0; k < moment; k++)
			sched_yield();
	}
	if (by != 0 || moment % 7 == 0) {
		gantry_result got = gantry_rx_cancel(r, LONG_ENOUGH * SECOND);

		CHECK(got == GANTRY_OK || got == GANTRY_ERR_CANCELLED);
		if (got == GANTRY_ERR_CANCELLED)
			CHECK_HAS(rx_text(r), "cancelled by");
	}
	if (by == 1 && strstr(rx_text(r), "before a send matched it")) /* so the send waits for another receive */
		gantry_rx_cancel(s, LONG_ENOUGH * SECOND);
	await(s);
	await(r);
	early = rx_result(r) == GANTRY_ERR_CANCELLED;
	CHECK(early || rx_result(r) == GANTRY_OK);
	for (size_t i = 0; !early && i < SIZE; i += 64) {
		size_t at = strided ? i / PIECE * STRIDE + i % PIECE : i;

		CHECK_EQ(b->dst[at], (unsigned char)(i >> 6));
	}
	/* Whatever came of it: from here on the buffer is ours. */
	memset(b->dst, 0xcc, b->dst_size);
	still_fine(b->good, b->sink);
	check_all(b->dst, b->dst_size, 0xcc, by ? "receiver" : "sender");
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	return early;
}

static void path(enum gantry_rx_path which, int device, int rounds)
{
	struct gantry_rx_config config = {
		.struct_size = sizeof(config), .path = which, .message = 256 << 10, .depth = 4};
	struct buffers b = {.dst_size = (size_t)(SIZE / PIECE + 2) * STRIDE};
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;
	pthread_t threads[2];
	int early = 0;

	rx_pair_open(&pair, &config);
	b.src = rx_memory(&pair, &pair.a, SIZE, device);
	b.good = rx_memory(&pair, &pair.a, SIZE, device);
	b.dst = rx_memory(&pair, &pair.b, b.dst_size, device);
	b.sink = rx_memory(&pair, &pair.b, SIZE, device);
	pattern_fill(b.good, SIZE, 4);
	stop = 0;
	CHECK_EQ(pthread_create(&threads[0], NULL, mover, pair.a.rx), 0);
	CHECK_EQ(pthread_create(&threads[1], NULL, mover, pair.b.rx), 0);
	for (int i = 0; i < rounds; i++)
		early += one(&b, i / 3 % 2, i % 3, (unsigned)random_below(i % 2 ? 20 : 200));
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	CHECK(early > 0); /* otherwise nothing was tried */
	/* No staging buffer was lost on the way. */
	gantry_rx_get_counters(pair.b.rx, &n);
	CHECK(n.stage_memory <= 64u << 20);
	rx_memory_free(&pair, &pair.a, b.src, device);
	rx_memory_free(&pair, &pair.a, b.good, device);
	rx_memory_free(&pair, &pair.b, b.dst, device);
	rx_memory_free(&pair, &pair.b, b.sink, device);
	rx_pair_close(&pair);
}
TEST_CALL(host, path(GANTRY_RX_PATH_HOST, 0, ROUNDS))
TEST_CALL(host_to_device, path(GANTRY_RX_PATH_HOST, 1, ROUNDS / 2))
TEST_CALL(emulated, path(GANTRY_RX_PATH_EMULATED, 1, ROUNDS))

/*
 * The sender has posted all of a transfer and cancels it, the receiver has posted a part of its receives and cancels
 * too: the sender has no need to be told how many messages there are, but the receiver has.
 */
TEST(both_when_all_is_out)
{
	enum { MESSAGE = 64 << 10, N = 16 };
	struct gantry_rx_config a = {.struct_size = sizeof(a),
				     .path = GANTRY_RX_PATH_HOST,
				     .message = MESSAGE,
				     .depth = N},
				b = a;
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;
	struct gantry_rx_piece p;
	struct gantry_rx_op *s, *r;
	unsigned char *src, *dst;

	b.depth = 1;
	rx_pair_open_each(&pair, a, b);
	src = rx_memory(&pair, &pair.a, N * MESSAGE, 1);
	dst = rx_memory(&pair, &pair.b, N * MESSAGE, 1);
	p = (struct gantry_rx_piece){src, N * MESSAGE, 0, 1};
	CHECK_OK(gantry_rx_send(pair.a.conn, &p, 1, 1, &s));
	p.base = dst;
	CHECK_OK(gantry_rx_recv(pair.b.conn, &p, 1, 1, &r));
	WAIT_WHILE (n.staged_bytes < (uint64_t)N * MESSAGE) {
		if (!n.staged_bytes)
			gantry_rx_poll(pair.b.rx, NULL, 0); /* until it has granted, and no longer */
		gantry_rx_poll(pair.a.rx, NULL, 0);
		gantry_rx_get_counters(pair.a.rx, &n);
	}
	CHECK_EQ(n.staged_bytes, (uint64_t)N * MESSAGE);
	CHECK_EQ(gantry_rx_cancel(s, LONG_ENOUGH * SECOND), GANTRY_ERR_CANCELLED);
	CHECK_EQ(gantry_rx_cancel(r, LONG_ENOUGH * SECOND), GANTRY_ERR_CANCELLED);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	CHECK_OK(gantry_rx_recv(pair.b.conn, &p, 1, 2, &r));
	p.base = src;
	CHECK_OK(gantry_rx_send(pair.a.conn, &p, 1, 2, &s));
	rx_both(s, r);
	CHECK_OK(rx_result(r));
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 1);
	rx_memory_free(&pair, &pair.b, dst, 1);
	rx_pair_close(&pair);
}

/* Moves the receiver's side: whether its send has come. */
static int has_met(struct gantry_rx_op *r)
{
	gantry_rx_poll(r->rx, NULL, 0);
	return r->phase != RX_WAITING;
}

/*
 * Bytes that came with their head, for device memory, behind a transfer that does not get on: nothing has begun to
 * write them, so their receive can be cancelled at once, and its memory let go.
 */
TEST(behind_another)
{
	enum { BIG = 4 << 20, SMALL = 5000 };
	struct gantry_rx_op *s[2], *r[2];
	struct gantry_rx_piece p = {NULL, BIG, 0, 1};
	unsigned char *src, *dst, *small;

	rx_pair_open(&pair, NULL);
	src = rx_memory(&pair, &pair.a, BIG, 0);
	dst = rx_memory(&pair, &pair.b, BIG, 1);
	small = rx_memory(&pair, &pair.b, SMALL, 1);
	pattern_fill(src, BIG, 8);
	p.base = src;
	CHECK_OK(gantry_rx_send(pair.a.conn, &p, 1, 1, &s[0]));
	p.piece_bytes = SMALL;
	CHECK_OK(gantry_rx_send(pair.a.conn, &p, 1, 2, &s[1]));
	p = (struct gantry_rx_piece){dst, BIG, 0, 1};
	CHECK_OK(gantry_rx_recv(pair.b.conn, &p, 1, 1, &r[0]));
	p = (struct gantry_rx_piece){small, SMALL, 0, 1};
	CHECK_OK(gantry_rx_recv(pair.b.conn, &p, 1, 2, &r[1]));
	UNTIL(has_met(r[0]) && has_met(r[1])); /* a is not moved: the first one cannot get on */
	for (int i = 0; i < 100; i++)
		gantry_rx_poll(pair.b.rx, NULL, 0);
	CHECK_STR(gantry_result_name(gantry_rx_cancel(r[1], LONG_ENOUGH * SECOND)), "ERR_CANCELLED");
	rx_memory_free(&pair, &pair.b, small, 1);
	rx_both(s[0], r[0]);
	CHECK_OK(rx_result(r[0]));
	rx_both(s[1], r[1]);
	CHECK_STR(gantry_result_name(rx_result(s[1])), "ERR_CANCELLED");
	CHECK_HAS(rx_text(s[1]), "cancelled by 127.0.0.1:");
	CHECK(memcmp(src, dst, BIG) == 0);
	for (int i = 0; i < 2; i++) {
		gantry_rx_op_free(s[i]);
		gantry_rx_op_free(r[i]);
	}
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_memory_free(&pair, &pair.b, dst, 1);
	rx_pair_close(&pair);
}

/* The peer is alive but does nothing: cancel ends the connection when its time is over, and the buffer is at rest. */
TEST(deaf_peer)
{
	struct gantry_rx_piece p;
	struct gantry_rx_op *s, *r;
	unsigned char *src, *dst;
	char text[512];

	rx_pair_open(&pair, NULL);
	src = rx_memory(&pair, &pair.a, SIZE, 0);
	dst = rx_memory(&pair, &pair.b, SIZE, 0);
	p = (struct gantry_rx_piece){dst, SIZE, 0, 1};
	CHECK_OK(gantry_rx_recv(pair.b.conn, &p, 1, 1, &r));
	p.base = src;
	CHECK_OK(gantry_rx_send(pair.a.conn, &p, 1, 1, &s));
	UNTIL(has_met(r));
	CHECK_EQ(gantry_rx_test(r), GANTRY_RX_PENDING);
	CHECK_EQ(gantry_rx_cancel(r, 50000000), GANTRY_ERR_TIMEOUT); /* a is not moved any more */
	CHECK_EQ(gantry_rx_conn_error(pair.b.conn, text, sizeof(text)), GANTRY_ERR_TIMEOUT);
	CHECK_HAS(text, "did not release a cancelled transfer");
	memset(dst, 0xcc, SIZE);
	await(s); /* a hears that b is gone */
	CHECK(rx_result(s) != GANTRY_OK);
	check_all(dst, SIZE, 0xcc, "deaf peer");
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_pair_close(&pair);
	free(src);
	free(dst);
}
