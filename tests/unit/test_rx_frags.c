/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives that lend their fragments, and lists that are unpacked in a stream of the caller's, on the emulated NIC and
 * on path host. Every byte is compared where it arrived and where it was unpacked to, with the pattern that was sent;
 * fragments cover each message once. Then what the caller keeps: limits, other transfers behind it, a small page pool,
 * cancelling, closing, a peer that dies, a stream that stands still.
 */
#include "device/device.h"
#include "rx/rx.h"
#include "rx_util.h"

enum { MESSAGE = 256 << 10, NO_WAIT = 0 };

static struct rx_pair pair;
static struct gantry_stream *stream;
static struct gantry_rx_frag frags[GANTRY_RX_FRAGS];

static const enum gantry_rx_path paths[] = {GANTRY_RX_PATH_EMULATED, GANTRY_RX_PATH_HOST};

static void open_pair(enum gantry_rx_path path, int depth)
{
	struct gantry_rx_config config = {
		.struct_size = sizeof(config), .path = path, .message = MESSAGE, .depth = depth};

	rx_pair_open(&pair, &config);
	CHECK_OK(gantry_stream_create(pair.dev, &stream));
}

static void close_pair(void)
{
	CHECK_OK(gantry_stream_destroy(pair.dev, stream));
	rx_pair_close(&pair);
}

static void turn(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		gantry_rx_poll(pair.a.rx, NULL, 0);
		gantry_rx_poll(pair.b.rx, NULL, 0);
	}
}

/* Both sides are moved until both ops are done: the side whose op is done, too. */
static void finish(struct gantry_rx_op *s, struct gantry_rx_op *r)
{
	WAIT_WHILE (gantry_rx_test(s) != GANTRY_RX_DONE || gantry_rx_test(r) != GANTRY_RX_DONE)
		turn(1);
}

static struct gantry_rx_op *start_send(struct rx_end *e, unsigned char *m, size_t size, uint64_t tag, uint64_t seed)
{
	struct gantry_rx_piece p = {m, size, 0, 1};
	struct gantry_rx_op *op;

	pattern_fill(m, size, seed);
	CHECK_OK(gantry_rx_send(e->conn, &p, 1, tag, &op));
	return op;
}

static struct gantry_rx_op *start_recv(unsigned char *m, size_t size, uint64_t tag)
{
	struct gantry_rx_piece p = {m, size, 0, 1};
	struct gantry_rx_op *op;

	CHECK_OK(gantry_rx_recv(pair.b.conn, &p, 1, tag, &op));
	return op;
}

static struct gantry_rx_op *start_frags(size_t size, uint64_t tag)
{
	struct gantry_rx_op *op;

	CHECK_OK(gantry_rx_recv_frags(pair.b.conn, size, tag, &op));
	return op;
}

/* The next message, while the sender is moved too. */
static size_t next_frags(struct gantry_rx_op *op, struct gantry_rx_frag *list)
{
	gantry_result r = GANTRY_ERR_TIMEOUT;
	size_t n = 0;

	WAIT_WHILE (r == GANTRY_ERR_TIMEOUT) {
		gantry_rx_poll(pair.a.rx, NULL, 0);
		r = gantry_rx_op_frags(op, list, GANTRY_RX_FRAGS, NO_WAIT, &n);
	}
	CHECK_OK(r);
	return n;
}

/* They are bytes [from, from + sum) of the pattern, each once. Returns the sum. */
static uint64_t check_frags(const struct gantry_rx_frag *list, size_t n, uint64_t from, uint64_t seed)
{
	FREED unsigned char *seen = calloc(1, MESSAGE);
	uint64_t sum = 0;

	CHECK(seen);
	for (size_t i = 0; i < n; i++) {
		const struct gantry_rx_frag *g = &list[i];

		CHECK_EQ(g->message, list[0].message);
		CHECK(g->len && g->dst_off >= from && g->dst_off + g->len <= from + MESSAGE);
		CHECK_PATTERN_FROM(g->src, g->len, seed, g->dst_off);
		CHECK_FILLED(seen + (g->dst_off - from), g->len, 0);
		memset(seen + (g->dst_off - from), 1, g->len);
		sum += g->len;
	}
	CHECK_FILLED(seen, sum, 1);
	return sum;
}

/* One transfer: its fragments are looked at, unpacked and released message by message. */
static void transfer(size_t size, int device, uint64_t seed)
{
	unsigned char *src = rx_memory(&pair, &pair.a, size + 1, device),
		      *dst = rx_memory(&pair, &pair.b, size + 128, 1);
	struct gantry_rx_op *r = start_frags(size + seed % 3, 5), *s = start_send(&pair.a, src, size, 5, seed);
	uint64_t at = 0;
	size_t n;

	memset(dst, 0x5a, size + 128);
	while ((n = next_frags(r, frags))) {
		CHECK_OK(gantry_rx_unpack(r, frags, n, dst + 64, stream));
		at += check_frags(frags, n, at, seed);
		memset(frags, 0xff, sizeof(frags)); /* the list is ours again */
		CHECK_OK(gantry_rx_op_release(r, seed % 2 ? stream : NULL));
	}
	CHECK_EQ(at, size);
	finish(s, r);
	CHECK_OK(rx_result(s));
	CHECK_OK(rx_result(r));
	CHECK_OK(gantry_rx_op_release(r, NULL));
	CHECK_EQ(rx_bytes(r), size);
	CHECK_EQ(next_frags(r, frags), 0);
	CHECK_OK(gantry_stream_sync(pair.dev, stream));
	CHECK_PATTERN(dst + 64, size, seed);
	CHECK_FILLED(dst, 64, 0x5a);
	CHECK_FILLED(dst + 64 + size, 64, 0x5a);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, device);
	rx_memory_free(&pair, &pair.b, dst, 1);
}

TEST(sizes)
{
	static const size_t all[] = {0,		  1,	   100,		32768,	     32769,	      65537,
				     MESSAGE - 1, MESSAGE, MESSAGE + 1, 4 * MESSAGE, 13 * MESSAGE + 7};
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;

	EACH_ROW (k, paths) {
		open_pair(paths[k], 4);
		EACH_ROW (i, all)
			for (int device = 0; device < 2; device++)
				transfer(all[i], device, 2 * i + (uint64_t)device);
		gantry_rx_get_counters(pair.b.rx, &n);
		CHECK_EQ(n.unpacked_bytes != 0, paths[k] == GANTRY_RX_PATH_EMULATED);
		close_pair();
	}
}

TEST(shapes)
{
	static const char *const names[] = {"pages", "odd", "random", "mtu1500", "mtu9000", "bytes"};

	EACH_ROW (i, names) {
		set_params("GANTRY_EMU_SHAPE", names[i], "GANTRY_UNPACK_COALESCE", i % 2 ? "0" : "128",
			   "GANTRY_EMU_LINEAR", i % 3 == 2 ? "20" : "0");
		open_pair(GANTRY_RX_PATH_EMULATED, 8);
		transfer(5 * MESSAGE + 77, 0, i);
		transfer(999, 1, i + 7);
		close_pair();
	}
	set_params("GANTRY_EMU_SHAPE", NULL, "GANTRY_UNPACK_COALESCE", NULL, "GANTRY_EMU_LINEAR", NULL);
}

/* Lists of the caller's making: fragments cut, in any order, each to another place; launches of 16. */
TEST(lists)
{
	enum { SIZE = 3 * MESSAGE + 1001, CUTS = 3 };
	static struct gantry_rx_frag cut[CUTS * GANTRY_RX_FRAGS];
	struct gantry_rx_config config = {.struct_size = sizeof(config), .message = MESSAGE, .max_frags = 16};
	struct gantry_rx_counters before = GANTRY_RX_COUNTERS_INIT, after = GANTRY_RX_COUNTERS_INIT;

	EACH_ROW (k, paths) {
		FREED unsigned char *expected = malloc(SIZE);
		unsigned char *src, *dst;
		struct gantry_rx_op *r, *s;
		size_t n = 0, m;

		config.path = paths[k];
		rx_pair_open(&pair, &config);
		CHECK_OK(gantry_stream_create(pair.dev, &stream));
		src = rx_memory(&pair, &pair.a, SIZE, 0);
		dst = rx_memory(&pair, &pair.b, SIZE, 1);
		r = start_frags(SIZE, 1);
		s = start_send(&pair.a, src, SIZE, 1, 9);
		memset(expected, 0, SIZE);
		while ((m = next_frags(r, frags)))
			for (size_t i = 0; i < m; i++)
				for (uint32_t c = 0, at = 0; c < CUTS; c++) {
					uint32_t len = c + 1 < CUTS ? (frags[i].len - at) / 2 : frags[i].len - at;

					cut[n] = frags[i];
					cut[n].src = (const uint8_t *)frags[i].src + at;
					cut[n].dst_off += at;
					cut[n].len = len;
					at += len;
					n += len != 0;
				}
		for (size_t i = n - 1; i > 0; i--) { /* any order */
			size_t o = (size_t)random_below((unsigned)i + 1);
			struct gantry_rx_frag g = cut[i];

			cut[i] = cut[o];
			cut[o] = g;
		}
		for (size_t i = 0; i < n; i++) { /* mirrored, and every 7th is left out */
			uint64_t from = cut[i].dst_off;

			cut[i].dst_off = SIZE - from - cut[i].len;
			for (uint32_t b = 0; i % 7 && b < cut[i].len; b++)
				expected[cut[i].dst_off + b] = pattern_byte(9, from + b);
		}
		for (size_t i = n; i > 0; i--)
			if ((i - 1) % 7 == 0)
				cut[i - 1] = cut[--n];
		gantry_rx_get_counters(pair.b.rx, &before);
		CHECK_OK(gantry_rx_unpack(r, cut, n, dst, stream));
		memset(cut, 0, sizeof(cut));
		gantry_rx_get_counters(pair.b.rx, &after);
		CHECK(after.launches - before.launches >= (n + 15) / 16);
		CHECK_EQ(after.descriptors - before.descriptors, n);
		CHECK_OK(gantry_rx_op_release(r, NULL));
		finish(s, r); /* DONE only when nothing reads the pages any more */
		CHECK_OK(rx_result(r));
		CHECK_OK(gantry_stream_sync(pair.dev, stream));
		CHECK(memcmp(dst, expected, SIZE) == 0);
		gantry_rx_op_free(s);
		gantry_rx_op_free(r);
		rx_memory_free(&pair, &pair.a, src, 0);
		rx_memory_free(&pair, &pair.b, dst, 1);
		close_pair();
	}
}

/* ---- a stream that stands still ---- */

static int open_gate; /* relaxed */

static void wait_gate(const void *args)
{
	(void)args;
	while (!__atomic_load_n(&open_gate, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void block_stream(void)
{
	static struct gantry_kernel gate = {.name = "gate", .body = wait_gate, .args_size = 8, .lanes = 1};
	const uint64_t none = 0;
	struct gantry_launch l = {.kernel = &gate, .blocks = 1, .args = &none, .args_size = 8, .yields = 1};

	__atomic_store_n(&open_gate, 0, __ATOMIC_RELEASE);
	CHECK_OK(pair.dev->ops->launch(pair.dev, stream, &l));
}

static void unblock_stream(void)
{
	__atomic_store_n(&open_gate, 1, __ATOMIC_RELEASE);
	CHECK_OK(gantry_stream_sync(pair.dev, stream));
}

/* The receiver has so many, wherever they belong. */
static void await_bytes(uint64_t bytes)
{
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;

	WAIT_WHILE (n.unpacked_bytes + n.staged_bytes + n.direct_bytes < bytes) {
		turn(1);
		gantry_rx_get_counters(pair.b.rx, &n);
	}
}

/* What has arrived is in place: by another stream than the one that may stand still. */
static void await_memory(struct gantry_rx_op *op)
{
	struct gantry_stream *own;

	CHECK_OK(gantry_stream_create(pair.dev, &own));
	CHECK_OK(gantry_rx_stream_wait(op, own));
	CHECK_OK(gantry_stream_sync(pair.dev, own));
	CHECK_OK(gantry_stream_destroy(pair.dev, own));
}

/* Pages stay until the stream has passed, by the list that reads them or by the caller's word. Other receives into device
 * memory, on another connection, are unpacked meanwhile. */
static void blocked(enum gantry_rx_path path, int by_list)
{
	enum { SIZE = 2 * MESSAGE };
	unsigned char *src, *dst;
	struct gantry_rx_op *r, *s;
	size_t n;

	open_pair(path, 4);
	src = rx_memory(&pair, &pair.a, SIZE, 0);
	dst = rx_memory(&pair, &pair.b, SIZE, 1);
	r = start_frags(SIZE, 1);
	s = start_send(&pair.a, src, SIZE, 1, 4);
	block_stream();
	while ((n = next_frags(r, frags))) {
		if (by_list)
			CHECK_OK(gantry_rx_unpack(r, frags, n, dst, stream));
		CHECK_OK(gantry_rx_op_release(r, by_list ? NULL : stream));
		CHECK_EQ(gantry_rx_unpack(r, frags, n, dst, stream), GANTRY_ERR_INVALID); /* they are released */
	}
	turn(200);
	CHECK_EQ(gantry_rx_test(r), GANTRY_RX_ARRIVED);
	CHECK_EQ(rx_result(s), GANTRY_AGAIN);
	CHECK_FILLED(dst, SIZE, 0);
	unblock_stream();
	finish(s, r);
	CHECK_OK(rx_result(r));
	if (by_list)
		CHECK_PATTERN(dst, SIZE, 4);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_memory_free(&pair, &pair.b, dst, 1);
	close_pair();
}
TEST_CALL(blocked_list, blocked(GANTRY_RX_PATH_EMULATED, 1))
TEST_CALL(blocked_list_host, blocked(GANTRY_RX_PATH_HOST, 1))
TEST_CALL(blocked_release, blocked(GANTRY_RX_PATH_EMULATED, 0))
TEST_CALL(blocked_release_host, blocked(GANTRY_RX_PATH_HOST, 0))

/* Lists fill the memory that there is for them: AGAIN, and it goes on when the stream does. */
TEST(many_lists)
{
	enum { SIZE = MESSAGE };
	unsigned char *src, *src2, *dst, *other;
	struct gantry_rx_op *r, *s, *r2, *s2;
	gantry_result got = GANTRY_OK;
	size_t n;
	int lists = 0;

	open_pair(GANTRY_RX_PATH_EMULATED, 4);
	src = rx_memory(&pair, &pair.a, SIZE, 0);
	src2 = rx_memory(&pair, &pair.a, SIZE, 0);
	dst = rx_memory(&pair, &pair.b, SIZE, 1);
	other = rx_memory(&pair, &pair.b, SIZE, 1);
	r = start_frags(SIZE, 1);
	s = start_send(&pair.a, src, SIZE, 1, 4);
	n = next_frags(r, frags);
	block_stream();
	for (; got == GANTRY_OK && lists < 10000; lists += got == GANTRY_OK)
		got = gantry_rx_unpack(r, frags, n, dst, stream);
	CHECK_EQ(got, GANTRY_AGAIN);
	CHECK_EQ(lists, 64);
	r2 = start_recv(other, SIZE, 2); /* needs none of that memory */
	s2 = start_send(&pair.a, src2, SIZE, 2, 5);
	await_bytes(2 * SIZE);
	await_memory(r2);
	CHECK_PATTERN(other, SIZE, 5);
	unblock_stream();
	CHECK_OK(gantry_rx_unpack(r, frags, n, dst, stream));
	CHECK_OK(gantry_rx_op_release(r, NULL));
	finish(s, r);
	CHECK_OK(rx_result(r));
	CHECK_OK(gantry_stream_sync(pair.dev, stream));
	CHECK_PATTERN(dst, SIZE, 4);
	finish(s2, r2);
	CHECK_OK(rx_result(r2));
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	gantry_rx_op_free(s2);
	gantry_rx_op_free(r2);
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_memory_free(&pair, &pair.a, src2, 0);
	rx_memory_free(&pair, &pair.b, other, 1);
	rx_memory_free(&pair, &pair.b, dst, 1);
	close_pair();
}

/* ---- what the caller keeps ---- */

/* Takes messages until no more can come, and returns how many. */
static int keep_all(struct gantry_rx_op *op, uint64_t seed)
{
	uint64_t at = (uint64_t)op->handed * MESSAGE;
	gantry_result r = GANTRY_OK;
	size_t n = 0;
	int messages = 0;

	while (r == GANTRY_OK) {
		WAIT_WHILE ((r = gantry_rx_op_frags(op, frags, GANTRY_RX_FRAGS, NO_WAIT, &n)) == GANTRY_ERR_TIMEOUT)
			gantry_rx_poll(pair.a.rx, NULL, 0);
		if (r != GANTRY_OK || !n)
			break;
		at += check_frags(frags, n, at, seed);
		messages++;
	}
	CHECK(r == GANTRY_OK || r == GANTRY_ERR_LIMIT);
	return messages;
}

/* The ring is full of what the caller has: an error at once, whatever the timeout, and it goes on after a release.
 * A transfer behind it has its bytes in place, and ends later. */
TEST(full_ring)
{
	enum { DEPTH = 3, N = 7 };

	EACH_ROW (k, paths) {
		unsigned char *src, *dst, *small;
		struct gantry_rx_op *s, *r, *s2, *r2;
		size_t n;

		open_pair(paths[k], DEPTH);
		src = rx_memory(&pair, &pair.a, N * MESSAGE, 0);
		small = rx_memory(&pair, &pair.a, MESSAGE, 0);
		dst = rx_memory(&pair, &pair.b, MESSAGE, k == 0);
		r = start_frags(N * MESSAGE, 1);
		r2 = start_recv(dst, MESSAGE, 2);
		s = start_send(&pair.a, src, N * MESSAGE, 1, 6);
		s2 = start_send(&pair.a, small, MESSAGE, 2, 7);
		CHECK_EQ(keep_all(r, 6), DEPTH);
		CHECK_ERROR(gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, GANTRY_WAIT_FOREVER, &n), GANTRY_ERR_LIMIT,
			    "the caller has those of 3 messages");
		CHECK_EQ(gantry_rx_test(r), GANTRY_RX_PENDING);
		CHECK_OK(gantry_rx_op_release(r, NULL));
		CHECK_EQ(keep_all(r, 6), DEPTH);
		CHECK_OK(gantry_rx_op_release(r, NULL));
		CHECK_EQ(keep_all(r, 6), 1); /* the last one */
		await_bytes((N + 1) * MESSAGE);
		if (k == 0)
			await_memory(r2);
		CHECK_PATTERN(dst, MESSAGE, 7);
		CHECK(gantry_rx_test(r2) != GANTRY_RX_DONE);
		CHECK_EQ(gantry_rx_wait(r2, NO_WAIT), GANTRY_ERR_TIMEOUT);
		CHECK_EQ(gantry_rx_test(r), GANTRY_RX_ARRIVED);
		CHECK_ERROR(gantry_rx_stream_wait(r, stream), GANTRY_ERR_USAGE, "put in place by the caller");
		CHECK_OK(gantry_rx_op_release(r, NULL));
		finish(s, r);
		finish(s2, r2);
		CHECK_OK(rx_result(r));
		CHECK_OK(rx_result(r2));
		gantry_rx_op_free(s);
		gantry_rx_op_free(r);
		gantry_rx_op_free(s2);
		gantry_rx_op_free(r2);
		rx_memory_free(&pair, &pair.a, src, 0);
		rx_memory_free(&pair, &pair.a, small, 0);
		rx_memory_free(&pair, &pair.b, dst, k == 0);
		close_pair();
	}
}

/* Path host, and staging memory for one message. */
TEST(one_stage)
{
	struct gantry_rx_config config = {
		.struct_size = sizeof(config), .path = GANTRY_RX_PATH_HOST, .message = 1 << 20, .stage = 1 << 20};
	unsigned char *src;
	struct gantry_rx_op *s, *r;
	size_t n;
	int messages = 0;

	rx_pair_open(&pair, &config);
	src = rx_memory(&pair, &pair.a, 3 << 20, 0);
	r = start_frags(3 << 20, 1);
	s = start_send(&pair.a, src, 3 << 20, 1, 6);
	while ((n = next_frags(r, frags))) {
		CHECK_EQ(n, 1);
		CHECK_PATTERN_FROM(frags[0].src, frags[0].len, 6, frags[0].dst_off);
		turn(20);
		if (++messages < 3)
			CHECK_EQ(gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, GANTRY_WAIT_FOREVER, &n),
				 GANTRY_ERR_LIMIT);
		CHECK_OK(gantry_rx_op_release(r, NULL));
	}
	finish(s, r);
	CHECK_OK(rx_result(s));
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_pair_close(&pair);
}

/* Pages for four messages: what two connections keep leaves a third one none. It waits within its deadline, and gets on
 * when the first one's pages come back. */
TEST(small_pool)
{
	enum { N = 3, SIZE = 2 * MESSAGE - 40000 };
	struct rx_pair ends[N];
	struct gantry_rx_op *s[N], *r[N];
	unsigned char *src[N];
	uint64_t at = 0;
	size_t n;

	set_params("GANTRY_UNPACK_POOL", "1M");
	open_pair(GANTRY_RX_PATH_EMULATED, 2);
	for (int i = 0; i < N; i++) {
		ends[i] = pair;
		if (i)
			rx_pair_connect(&ends[i]);
		src[i] = rx_memory(&pair, &pair.a, SIZE, 0);
	}
	for (int i = 0; i < N; i++) {
		CHECK_OK(gantry_rx_recv_frags(ends[i].b.conn, SIZE, 1, &r[i]));
		s[i] = start_send(&ends[i].a, src[i], SIZE, 1, 20 + (uint64_t)i);
		for (at = 0; at < SIZE && i + 1 < N;)
			at += check_frags(frags, next_frags(r[i], frags), at, 20 + (uint64_t)i);
	}
	for (int i = 0; i < 5; i++) {
		turn(100);
		CHECK_EQ(gantry_rx_op_frags(r[2], frags, GANTRY_RX_FRAGS, 10000000, &n), GANTRY_ERR_TIMEOUT);
	}
	CHECK_OK(gantry_rx_op_release(r[0], NULL));
	for (at = 0; at < SIZE;)
		at += check_frags(frags, next_frags(r[2], frags), at, 22);
	for (int i = 0; i < N; i++) {
		CHECK_OK(gantry_rx_op_release(r[i], NULL));
		finish(s[i], r[i]);
		CHECK_OK(rx_result(r[i]));
		CHECK_OK(rx_result(s[i]));
		gantry_rx_op_free(s[i]);
		gantry_rx_op_free(r[i]);
		rx_memory_free(&pair, &pair.a, src[i], 0);
	}
	for (int i = 1; i < N; i++) {
		gantry_rx_conn_close(ends[i].a.conn);
		gantry_rx_conn_close(ends[i].b.conn);
	}
	close_pair();
	set_params("GANTRY_UNPACK_POOL", NULL);
}

/* No landing page is left for bytes that came through host memory: the connection ends, and says which parameter. */
TEST(small_landing)
{
	enum { SIZE = 8 * MESSAGE };
	unsigned char *src;
	struct gantry_rx_op *s, *r;
	gantry_result got = GANTRY_OK;
	uint64_t at = 0;
	size_t n;

	set_params("GANTRY_UNPACK_LANDING", "1M", "GANTRY_EMU_SHAPE", "bytes");
	open_pair(GANTRY_RX_PATH_EMULATED, 8);
	src = rx_memory(&pair, &pair.a, SIZE, 0);
	r = start_frags(SIZE, 1);
	s = start_send(&pair.a, src, SIZE, 1, 6);
	while (got == GANTRY_OK || got == GANTRY_ERR_TIMEOUT) {
		gantry_rx_poll(pair.a.rx, NULL, 0);
		got = gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, NO_WAIT, &n);
		if (got == GANTRY_OK)
			at += check_frags(frags, n, at, 6);
	}
	CHECK_EQ(got, GANTRY_ERR_LIMIT);
	CHECK_HAS(rx_text(r), "raise GANTRY_UNPACK_LANDING");
	CHECK_EQ(gantry_rx_op_release(r, NULL), GANTRY_ERR_LIMIT);
	finish(s, r);
	CHECK(rx_result(s) != GANTRY_OK);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 0);
	close_pair();
	set_params("GANTRY_UNPACK_LANDING", NULL, "GANTRY_EMU_SHAPE", NULL);
}

/* ---- ending ---- */

static void both_cancelled(struct gantry_rx_op *s, struct gantry_rx_op *r)
{
	finish(s, r);
	CHECK_EQ(rx_result(s), GANTRY_ERR_CANCELLED);
	CHECK_EQ(rx_result(r), GANTRY_ERR_CANCELLED);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
}

static void *move_sender(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
		gantry_rx_poll(pair.a.rx, NULL, 0);
	return NULL;
}

static void *cancel_send(void *op)
{
	CHECK_EQ(gantry_rx_cancel(op, LONG_ENOUGH * SECOND), GANTRY_ERR_CANCELLED);
	return NULL;
}

/* By the receiver while it has fragments, by the sender; behind others that the caller keeps. */
TEST(cancelled)
{
	enum { SIZE = 20 * MESSAGE }; /* more than both rings have */

	EACH_ROW (k, paths) {
		struct gantry_rx_op *s, *r, *s2[2], *r2[2];
		unsigned char *src, *behind[2];
		int stop = 0;
		pthread_t t, canceller;
		size_t n, more;

		open_pair(paths[k], 4);
		src = rx_memory(&pair, &pair.a, SIZE, 0);
		CHECK_EQ(pthread_create(&t, NULL, move_sender, &stop), 0);

		r = start_frags(SIZE, 1);
		s = start_send(&pair.a, src, SIZE, 1, 1);
		CHECK(next_frags(r, frags) > 0);
		CHECK_EQ(gantry_rx_cancel(r, LONG_ENOUGH * SECOND), GANTRY_ERR_CANCELLED);
		CHECK_EQ(gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, NO_WAIT, &n), GANTRY_ERR_CANCELLED);
		CHECK_EQ(gantry_rx_op_release(r, NULL), GANTRY_ERR_CANCELLED);
		both_cancelled(s, r);

		/* A small one, whose bytes came with their head. */
		r = start_frags(1000, 1);
		s = start_send(&pair.a, src, 1000, 1, 1);
		CHECK_EQ(next_frags(r, frags), 1);
		CHECK_EQ(gantry_rx_cancel(r, LONG_ENOUGH * SECOND), GANTRY_ERR_CANCELLED);
		both_cancelled(s, r);

		/* The sender: what the caller has stays its own until it is released. */
		r = start_frags(SIZE, 1);
		s = start_send(&pair.a, src, SIZE, 1, 2);
		n = next_frags(r, frags);
		CHECK_EQ(pthread_create(&canceller, NULL, cancel_send, s), 0);
		WAIT_WHILE (gantry_rx_op_frags(r, frags + n, 0, NO_WAIT, &more) != GANTRY_ERR_CANCELLED)
			;
		turn(100);
		CHECK_EQ(rx_result(r), GANTRY_AGAIN);
		CHECK_PATTERN_FROM(frags[0].src, frags[0].len, 2, frags[0].dst_off);
		gantry_rx_op_release(r, NULL);
		finish(s, r);
		CHECK_EQ(pthread_join(canceller, NULL), 0);
		both_cancelled(s, r);
		__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
		CHECK_EQ(pthread_join(t, NULL), 0);
		rx_memory_free(&pair, &pair.a, src, 0);
		close_pair();

		/* Behind what the caller keeps: a receive into host memory and one into device memory. */
		stop = 0;
		open_pair(paths[k], 4);
		src = rx_memory(&pair, &pair.a, SIZE, 0);
		r = start_frags(MESSAGE, 1);
		s = start_send(&pair.a, src, MESSAGE, 1, 3);
		for (int i = 0; i < 2; i++) {
			behind[i] = rx_memory(&pair, &pair.b, MESSAGE, i);
			r2[i] = start_recv(behind[i], MESSAGE, 2 + (uint64_t)i);
			s2[i] = start_send(&pair.a, src, MESSAGE, 2 + (uint64_t)i, 3);
		}
		CHECK(next_frags(r, frags) > 0);
		await_bytes(3 * MESSAGE);
		await_memory(r2[1]);
		CHECK_EQ(pthread_create(&t, NULL, move_sender, &stop), 0);
		for (int i = 0; i < 2; i++) {
			CHECK_EQ(gantry_rx_cancel(r2[i], LONG_ENOUGH * SECOND), GANTRY_ERR_CANCELLED);
			rx_memory_free(&pair, &pair.b, behind[i], i); /* nothing touches it */
		}
		CHECK_OK(gantry_rx_op_release(r, NULL));
		finish(s, r);
		CHECK_OK(rx_result(r));
		for (int i = 0; i < 2; i++) {
			finish(s2[i], r2[i]);
			gantry_rx_op_free(s2[i]);
			gantry_rx_op_free(r2[i]);
		}
		gantry_rx_op_free(s);
		gantry_rx_op_free(r);
		__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
		CHECK_EQ(pthread_join(t, NULL), 0);
		transfer(SIZE, 0, 5);
		rx_memory_free(&pair, &pair.a, src, 0);
		close_pair();
	}
}

/* Freeing an op whose fragments the caller has had all releases them; the peer's send is complete. */
TEST(freed)
{
	EACH_ROW (k, paths) {
		static const size_t all[] = {500, 3 * MESSAGE};

		open_pair(paths[k], 4);
		EACH_ROW (i, all) {
			unsigned char *src = rx_memory(&pair, &pair.a, all[i], 0),
				      *dst = rx_memory(&pair, &pair.b, all[i], 1);
			struct gantry_rx_op *r = start_frags(all[i], 1), *s = start_send(&pair.a, src, all[i], 1, 8);
			size_t n;

			block_stream();
			while ((n = next_frags(r, frags)))
				CHECK_OK(gantry_rx_unpack(r, frags, n, dst, stream));
			gantry_rx_op_free(r);
			turn(100);
			CHECK_EQ(rx_result(s), GANTRY_AGAIN); /* the list is not over */
			unblock_stream();
			WAIT_WHILE (gantry_rx_test(s) != GANTRY_RX_DONE)
				turn(1);
			CHECK_OK(rx_result(s));
			CHECK_PATTERN(dst, all[i], 8);
			gantry_rx_op_free(s);
			rx_memory_free(&pair, &pair.a, src, 0);
			rx_memory_free(&pair, &pair.b, dst, 1);
		}
		close_pair();
	}
}

/* The peer closes while the caller has fragments and its stream stands still: the op has the error, addresses stay
 * readable, and the list that is late harms nothing, even when the connection is closed by then. */
TEST(closed_by_peer)
{
	enum { SIZE = 6 * MESSAGE };

	EACH_ROW (k, paths) {
		unsigned char *src, *dst;
		struct gantry_rx_op *s, *r;
		struct gantry_rx_result end = GANTRY_RX_RESULT_INIT;
		volatile unsigned char sum = 0;
		size_t n, none;

		open_pair(paths[k], 4);
		src = rx_memory(&pair, &pair.a, SIZE, 0);
		dst = rx_memory(&pair, &pair.b, SIZE, 1);
		r = start_frags(SIZE, 1);
		s = start_send(&pair.a, src, SIZE, 1, 6);
		n = next_frags(r, frags);
		block_stream();
		CHECK_OK(gantry_rx_unpack(r, frags, n, dst, stream));
		gantry_rx_conn_close(pair.a.conn);
		pair.a.conn = NULL;
		WAIT_WHILE (gantry_rx_test(r) != GANTRY_RX_DONE)
			;
		gantry_rx_op_result(r, &end);
		CHECK(end.result == GANTRY_ERR_PEER_CLOSED || end.result == GANTRY_ERR_PEER_LOST);
		for (size_t i = 0; i < n; i++)
			sum = (unsigned char)(sum + ((const unsigned char *)frags[i].src)[frags[i].len - 1]);
		CHECK_EQ(gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, NO_WAIT, &none), end.result);
		CHECK_EQ(gantry_rx_unpack(r, frags, n, dst, stream), end.result);
		CHECK_EQ(gantry_rx_op_release(r, stream), end.result);
		gantry_rx_op_free(r);
		gantry_rx_conn_close(pair.b.conn);
		pair.b.conn = NULL;
		unblock_stream();
		gantry_rx_op_free(s);
		rx_memory_free(&pair, &pair.a, src, 0);
		rx_memory_free(&pair, &pair.b, dst, 1);
		close_pair();
	}
}

/* A process of its own that sends, and is killed. */
static void run_child(int from, int to)
{
	struct gantry_rx_config config = {
		.struct_size = sizeof(config), .path = GANTRY_RX_PATH_EMULATED, .message = MESSAGE};
	char address[128] = "";
	struct gantry_rx_op *op;
	struct rx_end e;
	FREED unsigned char *m = calloc(8, MESSAGE);

	CHECK(m && read(from, address, sizeof(address)) > 0);
	CHECK_OK(gantry_rx_open(&config, &e.rx));
	CHECK_OK(gantry_rx_connect(e.rx, address, LONG_ENOUGH * SECOND, &e.conn));
	CHECK_OK(gantry_rx_register(e.rx, m, 8 * MESSAGE));
	op = start_send(&e, m, 8 * MESSAGE, 1, 11);
	CHECK_EQ(write(to, "x", 1), 1);
	for (;;)
		gantry_rx_test(op);
}

TEST(killed_peer)
{
	struct gantry_rx_config config = {
		.struct_size = sizeof(config), .path = GANTRY_RX_PATH_EMULATED, .message = MESSAGE};
	struct gantry_rx_listener *l;
	struct gantry_rx_op *r;
	int down[2], up[2];
	pid_t child;
	size_t n;

	if (!CAN_FORK)
		return; /* threads of the tests before are there */
	CHECK_EQ(pipe(down) | pipe(up), 0);
	child = child_fork();
	if (!child)
		run_child(down[0], up[1]);
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &pair.dev));
	CHECK_OK(gantry_rx_open(&config, &pair.b.rx));
	CHECK_OK(gantry_rx_listen(pair.b.rx, "127.0.0.1:0", &l));
	CHECK(write(down[1], gantry_rx_listener_address(l), strlen(gantry_rx_listener_address(l)) + 1) > 0);
	CHECK_OK(gantry_rx_accept(l, LONG_ENOUGH * SECOND, &pair.b.conn));
	r = start_frags(8 * MESSAGE, 1);
	CHECK_OK(gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, LONG_ENOUGH * SECOND, &n));
	check_frags(frags, n, 0, 11);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	WAIT_WHILE (gantry_rx_test(r) != GANTRY_RX_DONE)
		;
	CHECK(rx_result(r) == GANTRY_ERR_PEER_LOST || rx_result(r) == GANTRY_ERR_PEER_CLOSED);
	CHECK(gantry_rx_op_release(r, NULL) == rx_result(r));
	gantry_rx_op_free(r);
	gantry_rx_listener_close(l);
	gantry_rx_conn_close(pair.b.conn);
	gantry_rx_close(pair.b.rx);
	gantry_device_close(pair.dev);
	for (int i = 0; i < 2; i++) {
		close(down[i]);
		close(up[i]);
	}
}

/* ---- wrong arguments ---- */

static void refused_list(struct gantry_rx_op *r, struct gantry_rx_frag g, void *dst, const char *text)
{
	CHECK_ERROR(gantry_rx_unpack(r, &g, 1, dst, stream), GANTRY_ERR_INVALID, text);
}

TEST(wrong_arguments)
{
	enum { SIZE = 2 * MESSAGE };

	EACH_ROW (k, paths) {
		unsigned char *src, *dst, *host;
		struct gantry_rx_op *r, *s, *plain;
		struct gantry_rx_frag g;
		size_t n = 99;

		open_pair(paths[k], 4);
		src = rx_memory(&pair, &pair.a, SIZE, 0);
		dst = rx_memory(&pair, &pair.b, SIZE, 1);
		host = rx_memory(&pair, &pair.b, SIZE, 0);
		plain = start_recv(host, SIZE, 2);
		CHECK_ERROR(gantry_rx_op_frags(plain, frags, 1, NO_WAIT, &n), GANTRY_ERR_USAGE, "has not made");
		CHECK_ERROR(gantry_rx_op_release(plain, NULL), GANTRY_ERR_USAGE, "has not made");
		CHECK_ERROR(gantry_rx_unpack(plain, frags, 0, dst, stream), GANTRY_ERR_USAGE, "has not made");
		CHECK_EQ(gantry_rx_cancel(plain, NO_WAIT), GANTRY_ERR_CANCELLED);
		gantry_rx_op_free(plain);

		r = start_frags(SIZE, 1);
		CHECK_EQ(gantry_rx_op_frags(r, NULL, 1, NO_WAIT, &n), GANTRY_ERR_INVALID);
		CHECK_EQ(gantry_rx_op_frags(r, frags, 1, NO_WAIT, NULL), GANTRY_ERR_INVALID);
		CHECK_EQ(gantry_rx_op_frags(r, frags, 1, -7, &n), GANTRY_ERR_INVALID);
		CHECK_EQ(gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, NO_WAIT, &n), GANTRY_ERR_TIMEOUT);
		CHECK_OK(gantry_rx_op_release(r, stream)); /* there is nothing to release yet */
		s = start_send(&pair.a, src, SIZE, 1, 6);
		UNTIL((turn(1), gantry_rx_op_frags(r, frags, 0, NO_WAIT, &n) == GANTRY_ERR_INVALID));
		CHECK_HAS(gantry_last_error(), "and the array room for 0");
		CHECK_EQ(n, 99); /* written only on success */
		n = next_frags(r, frags);
		g = frags[n / 2];
		CHECK_ERROR(gantry_rx_unpack(r, &g, 1, dst, NULL), GANTRY_ERR_INVALID, "the stream is NULL");
		CHECK_ERROR(gantry_rx_unpack(r, NULL, 1, dst, stream), GANTRY_ERR_INVALID,
			    "the list of fragments is NULL");
		CHECK_OK(gantry_rx_unpack(r, NULL, 0, dst, stream));
		refused_list(r, g, host, "are not in registered memory of the device");
		refused_list(r, g, dst + SIZE, "are not in registered memory of the device");
		refused_list(r, g, frags, "are not in registered memory of the device");
		g.dst_off = SIZE - g.len + 1;
		refused_list(r, g, dst, "are not in registered memory of the device");
		g.dst_off = UINT64_MAX;
		refused_list(r, g, dst, "are not in registered memory of the device");
		g = frags[n / 2];
		g.src = host;
		refused_list(r, g, dst, "the caller does not hold");
		g.src = (const uint8_t *)frags[n / 2].src + 1; /* beyond its end */
		refused_list(r, g, dst, "the caller does not hold");
		g = frags[n / 2];
		g.len = UINT32_MAX;
		refused_list(r, g, dst, "the caller does not hold");
		g = frags[n / 2];
		g.message = 1; /* not handed out yet */
		refused_list(r, g, dst, "the caller does not hold");
		CHECK_FILLED(dst, SIZE, 0);
		CHECK_OK(gantry_rx_op_release(r, NULL));
		refused_list(r, frags[0], dst, "the caller does not hold");
		CHECK(next_frags(r, frags) > 0);
		CHECK_OK(gantry_rx_op_release(r, NULL));
		finish(s, r);
		CHECK_OK(rx_result(r));
		CHECK_ERROR(gantry_rx_unpack(r, frags, 1, dst, stream), GANTRY_ERR_USAGE, "have been released");
		gantry_rx_op_free(r);
		gantry_rx_op_free(s);

		r = start_frags(SIZE - 1, 1);
		s = start_send(&pair.a, src, SIZE, 1, 6);
		finish(s, r);
		CHECK_EQ(rx_result(r), GANTRY_ERR_SIZE);
		CHECK_EQ(rx_result(s), GANTRY_ERR_SIZE);
		CHECK_EQ(gantry_rx_op_frags(r, frags, GANTRY_RX_FRAGS, NO_WAIT, &n), GANTRY_ERR_SIZE);
		gantry_rx_op_free(r);
		gantry_rx_op_free(s);
		rx_memory_free(&pair, &pair.a, src, 0);
		rx_memory_free(&pair, &pair.b, dst, 1);
		rx_memory_free(&pair, &pair.b, host, 0);
		close_pair();
	}
}

/* ---- several at once ---- */

struct worker {
	struct rx_pair ends;
	int number;
};

static void *send_all_of(void *arg)
{
	struct worker *w = arg;
	enum { ROUNDS = SANITIZED ? 6 : 20 };

	for (int i = 0; i < ROUNDS; i++) {
		size_t size = (size_t)(i * 7919 + w->number * 131) % (5 * MESSAGE) + 1;
		unsigned char *m = rx_memory(&w->ends, &w->ends.a, size, 0);
		struct gantry_rx_op *op = start_send(&w->ends.a, m, size, (uint64_t)i, (uint64_t)(w->number * 100 + i));

		CHECK_OK(gantry_rx_wait(op, LONG_ENOUGH * SECOND));
		gantry_rx_op_free(op);
		rx_memory_free(&w->ends, &w->ends.a, m, 0);
	}
	return NULL;
}

/* By turns fragments and an ordinary receive. */
static void *recv_all_of(void *arg)
{
	struct worker *w = arg;
	enum { ROUNDS = SANITIZED ? 6 : 20 };
	FREED struct gantry_rx_frag *list = malloc(GANTRY_RX_FRAGS * sizeof(*list));
	struct gantry_stream *own;

	CHECK_OK(gantry_stream_create(w->ends.dev, &own));
	for (int i = 0; i < ROUNDS; i++) {
		size_t size = (size_t)(i * 7919 + w->number * 131) % (5 * MESSAGE) + 1, n;
		unsigned char *m = rx_memory(&w->ends, &w->ends.b, size, 1);
		struct gantry_rx_piece p = {m, size, 0, 1};
		struct gantry_rx_op *op;

		if (i % 3 == 2) {
			CHECK_OK(gantry_rx_recv(w->ends.b.conn, &p, 1, (uint64_t)i, &op));
		} else {
			CHECK_OK(gantry_rx_recv_frags(w->ends.b.conn, size, (uint64_t)i, &op));
			for (;;) {
				CHECK_OK(gantry_rx_op_frags(op, list, GANTRY_RX_FRAGS, LONG_ENOUGH * SECOND, &n));
				if (!n)
					break;
				CHECK_OK(gantry_rx_unpack(op, list, n, m, own));
				CHECK_OK(gantry_rx_op_release(op, i % 2 ? own : NULL));
			}
		}
		CHECK_OK(gantry_rx_wait(op, LONG_ENOUGH * SECOND));
		CHECK_OK(gantry_stream_sync(w->ends.dev, own));
		CHECK_PATTERN(m, size, (uint64_t)(w->number * 100 + i));
		gantry_rx_op_free(op);
		rx_memory_free(&w->ends, &w->ends.b, m, 1);
	}
	CHECK_OK(gantry_stream_destroy(w->ends.dev, own));
	return NULL;
}

/* Two connections of one rx, a thread for each of their four ends. */
TEST(two_connections)
{
	EACH_ROW (k, paths) {
		struct worker w[2];
		pthread_t t[4];

		open_pair(paths[k], 3);
		for (int i = 0; i < 2; i++)
			w[i] = (struct worker){pair, i};
		rx_pair_connect(&w[1].ends);
		threads_start(t, 2, send_all_of, w, sizeof(w[0]));
		threads_start(t + 2, 2, recv_all_of, w, sizeof(w[0]));
		threads_join(t, 4);
		gantry_rx_conn_close(w[1].ends.a.conn);
		gantry_rx_conn_close(w[1].ends.b.conn);
		close_pair();
	}
}
