/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline between two rx of one process: sizes, layouts, both directions, tags, and what does not fit. Everything
 * runs for host memory and for memory of the host device, over the host path and over the emulated NIC.
 */
#include <fcntl.h>

#include "rx_util.h"

static struct rx_pair pair;
static int device; /* kind of memory */
static int small;  /* messages of few fragments and bytes: there are many of them already for little data */

/* One transfer from x to y, checked byte by byte. */
static void move(struct rx_end *x, struct rx_end *y, const struct rx_layout *from, const struct rx_layout *to,
		 uint64_t seed)
{
	size_t nx, ny, size = rx_span(to) + 64;
	unsigned char *src = rx_memory(&pair, x, rx_span(from) + 64, device);
	unsigned char *dst = rx_memory(&pair, y, size, device);
	struct gantry_rx_piece px[2], py[2];
	struct gantry_rx_op *s, *r;
	struct rx_layout got = *to;

	rx_fill(from, src, seed);
	memset(dst, 0x5a, size);
	nx = rx_pieces(from, src, px);
	ny = rx_pieces(to, dst, py);
	if (seed & 1) {
		CHECK_OK(gantry_rx_recv(y->conn, py, ny, seed, &r));
		CHECK_OK(gantry_rx_send(x->conn, px, nx, seed, &s));
	} else {
		CHECK_OK(gantry_rx_send(x->conn, px, nx, seed, &s));
		CHECK_OK(gantry_rx_recv(y->conn, py, ny, seed, &r));
	}
	rx_both(s, r);
	CHECK_STR(gantry_result_name(rx_result(s)), "OK");
	CHECK_STR(gantry_result_name(rx_result(r)), "OK");
	CHECK_EQ(rx_bytes(s), from->total);
	CHECK_EQ(rx_bytes(r), from->total);
	got.total = from->total;
	rx_check(&got, dst, size, seed, 0x5a);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, x, src, device);
	rx_memory_free(&pair, y, dst, device);
}

static void sizes(void)
{
	static const size_t all[] = {0,	    1,	   7,	  64,	  4095,	   32767,   32768,   32769,
				     65536, 65537, 99999, 262143, 1048575, 1048576, 1048577, 8388608 + 13};

	EACH_ROW (i, all) {
		struct rx_layout l = {all[i] ? all[i] : 1, all[i] ? all[i] : 1, all[i]};

		move(&pair.a, &pair.b, &l, &l, i);
		if (all[i] < 100000)
			move(&pair.b, &pair.a, &l, &l, i + 100);
	}
}

static void layouts(void)
{
	size_t piece[] = {1, 100, 8192, 1048576 + 5}, most = 1500007;

	if (small || SANITIZED) {
		piece[3] = 131072 + 5;
		most = 300007;
	}
	for (size_t i = 0; i < 4; i++)
		for (size_t k = 0; k < 4; k++) {
			size_t total = i && k ? most : 70001;
			struct rx_layout from = {piece[i], piece[i] + i * 13, total};
			struct rx_layout to = {piece[k], piece[k] + k * 7, total + k};

			move(&pair.a, &pair.b, &from, &to, 7 * i + k);
		}
}

static struct gantry_rx_op *start(struct rx_end *e, unsigned char *m, size_t size, uint64_t tag, int send)
{
	struct gantry_rx_piece p = {m, size, 0, 1};
	struct gantry_rx_op *op;

	CHECK_OK(send ? gantry_rx_send(e->conn, &p, 1, tag, &op) : gantry_rx_recv(e->conn, &p, 1, tag, &op));
	return op;
}

/* Many at once in both directions, received in another order than they were sent in. */
static void crowd(void)
{
	enum { N = 16 };
	static const size_t sizes_of[] = {10, 40000, 300000, 1200000};
	struct gantry_rx_op *ops[4 * N];
	unsigned char *m[4 * N];
	struct rx_layout l;

	for (int i = 0; i < 4 * N; i++) {
		size_t size = sizes_of[i % N % 4] + (size_t)(i % N);
		int send = i / N % 2 == 0;
		/* Runs: a sends, b receives, b sends, a receives. Receives go backwards through the tags. */
		struct rx_end *e = i / N == 0 || i / N == 3 ? &pair.a : &pair.b;
		int tag = send ? i % N : N - 1 - i % N;

		if (!send)
			size = sizes_of[tag % 4] + (size_t)tag;
		m[i] = rx_memory(&pair, e, size, device);
		l = (struct rx_layout){size, size, size};
		if (send)
			pattern_fill(m[i], size, (uint64_t)(i / N * 1000 + tag));
		ops[i] = start(e, m[i], size, (uint64_t)tag, send);
	}
	WAIT_WHILE (gantry_rx_poll(pair.a.rx, ops, 4 * N) < 4 * N)
		gantry_rx_poll(pair.b.rx, NULL, 0);
	for (int i = 0; i < 4 * N; i++) {
		int send = i / N % 2 == 0, tag = send ? i % N : N - 1 - i % N;

		CHECK_OK(rx_result(ops[i]));
		if (!send) {
			size_t size = sizes_of[tag % 4] + (size_t)tag;

			l = (struct rx_layout){size, size, size};
			rx_check(&l, m[i], size, (uint64_t)((i / N - 1) * 1000 + tag), 0);
		}
		gantry_rx_op_free(ops[i]);
		rx_memory_free(&pair, i / N == 0 || i / N == 3 ? &pair.a : &pair.b, m[i], device);
	}
}

/* More sends than the window: those of one tag keep their order. */
static void order(void)
{
	enum { N = 80 };
	unsigned char *src = rx_memory(&pair, &pair.a, N * 4, device), *dst = rx_memory(&pair, &pair.b, N * 4, device);
	struct gantry_rx_op *ops[N], *r;

	for (int i = 0; i < N; i++) {
		memset(src + 4 * i, i, 4);
		ops[i] = start(&pair.a, src + 4 * i, 4, 5, 1);
	}
	for (int i = 0; i < N; i++) {
		r = start(&pair.b, dst + 4 * i, 4, 5, 0);
		rx_both(ops[i], r);
		CHECK_OK(rx_result(r));
		CHECK_EQ(dst[4 * i + 3], (unsigned char)i);
		gantry_rx_op_free(r);
		gantry_rx_op_free(ops[i]);
	}
	rx_memory_free(&pair, &pair.a, src, device);
	rx_memory_free(&pair, &pair.b, dst, device);
}

/* Too small a receive: both sides say so, with both sizes, and the connection goes on. */
static void mismatch(size_t sent, size_t received)
{
	unsigned char *src = rx_memory(&pair, &pair.a, sent, device), *dst = rx_memory(&pair, &pair.b, sent, device);
	struct gantry_rx_op *s = start(&pair.a, src, sent, 9, 1), *r = start(&pair.b, dst, received, 9, 0);
	char both[128];

	snprintf(both, sizeof(both), "send of %zu bytes matched a receive of only %zu bytes (tag 9", sent, received);
	memset(dst, 0x11, sent);
	rx_both(s, r);
	CHECK_EQ(rx_result(s), GANTRY_ERR_SIZE);
	CHECK_EQ(rx_result(r), GANTRY_ERR_SIZE);
	CHECK_HAS(rx_text(s), both);
	CHECK_HAS(rx_text(r), both);
	CHECK_FILLED(dst, sent, 0x11);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	CHECK_OK(gantry_rx_conn_error(pair.a.conn, NULL, 0));
	rx_memory_free(&pair, &pair.a, src, device);
	rx_memory_free(&pair, &pair.b, dst, device);
}

static void refused_batches(void)
{
	unsigned char *m = rx_memory(&pair, &pair.a, 1000, device), other[8];
	struct gantry_rx_piece p = {m, 100, 50, 2};
	struct gantry_rx_op *op;

	CHECK_EQ(gantry_rx_send(pair.a.conn, &p, 1, 0, &op), GANTRY_ERR_INVALID); /* overlapping */
	p = (struct gantry_rx_piece){m, 100, 200, 6};
	CHECK_EQ(gantry_rx_send(pair.a.conn, &p, 1, 0, &op), GANTRY_ERR_INVALID); /* beyond the registration */
	p = (struct gantry_rx_piece){m, 100, (size_t)1 << 62, 6};
	CHECK_EQ(gantry_rx_recv(pair.a.conn, &p, 1, 0, &op), GANTRY_ERR_INVALID); /* beyond everything */
	p = (struct gantry_rx_piece){other, 8, 0, 1};
	CHECK_EQ(gantry_rx_recv(pair.a.conn, &p, 1, 0, &op), GANTRY_ERR_INVALID); /* not registered */
	CHECK_EQ(gantry_rx_deregister(pair.a.rx, other), GANTRY_ERR_INVALID);
	op = start(&pair.a, m, 10, 77, 0);
	CHECK_EQ(gantry_rx_deregister(pair.a.rx, m), GANTRY_ERR_USAGE);
	CHECK_EQ(gantry_rx_wait(op, 1000000), GANTRY_ERR_TIMEOUT);
	CHECK_EQ(gantry_rx_test(op), GANTRY_RX_PENDING);
	CHECK_EQ(gantry_rx_cancel(op, GANTRY_WAIT_DEFAULT), GANTRY_ERR_CANCELLED);
	gantry_rx_op_free(op);
	rx_memory_free(&pair, &pair.a, m, device);
}

/* Another thread's stream sees the data without the CPU having waited for it. */
static void stream(void)
{
	size_t size = 3000000;
	unsigned char *src = rx_memory(&pair, &pair.a, size, device), *dst = rx_memory(&pair, &pair.b, size, device);
	FREED unsigned char *copy = calloc(1, size);
	struct gantry_rx_op *s, *r;
	struct gantry_stream *st;
	struct rx_layout l = {size, size, size};
	gantry_result got;

	CHECK_OK(gantry_stream_create(pair.dev, &st));
	pattern_fill(src, size, 3);
	r = start(&pair.b, dst, size, 1, 0);
	CHECK_EQ(gantry_rx_stream_wait(r, st), GANTRY_AGAIN);
	s = start(&pair.a, src, size, 1, 1);
	WAIT_WHILE ((got = gantry_rx_stream_wait(r, st)) == GANTRY_AGAIN)
		gantry_rx_test(s);
	CHECK_OK(got);
	CHECK_OK(gantry_stream_sync(pair.dev, st));
	CHECK_OK(gantry_mem_copy(pair.dev, copy, dst, size));
	rx_check(&l, copy, size, 3, 0);
	rx_both(s, r);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	CHECK_OK(gantry_stream_destroy(pair.dev, st));
	rx_memory_free(&pair, &pair.a, src, device);
	rx_memory_free(&pair, &pair.b, dst, device);
}

static void all(const struct gantry_rx_config *config, const char *path)
{
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;
	uint64_t pinned;

	rx_pair_open(&pair, config);
	gantry_rx_get_counters(pair.b.rx, &n);
	pinned = n.stage_memory;
	CHECK_HAS(gantry_rx_conn_path(pair.a.conn), path);
	CHECK_HAS(gantry_rx_conn_path(pair.b.conn), path);
	CHECK_EQ(gantry_rx_conn_peer_epoch(pair.a.conn), gantry_rx_epoch(pair.b.rx));
	CHECK_EQ(gantry_rx_conn_peer_epoch(pair.b.conn), gantry_rx_epoch(pair.a.rx));
	small = config->max_frags != 0;
	for (device = 0; device < 2; device++) {
		layouts();
		crowd();
		if (small) /* only what its limits matter for */
			continue;
		sizes();
		order();
		mismatch(100, 99);
		mismatch(2000000, 1999999);
		mismatch(40000, 0);
		refused_batches();
		stream();
		gantry_rx_get_counters(pair.b.rx, &n);
		CHECK_EQ(n.unpacked_bytes != 0, device && config->path == GANTRY_RX_PATH_EMULATED);
		CHECK(n.stage_memory <= (64u << 20) + (2u << 20));
		if (!device)
			CHECK(n.direct_bytes > 0);
	}
	/* What the connection needed was there when it began. */
	for (int i = 0; i < 2; i++) {
		gantry_rx_get_counters(i ? pair.b.rx : pair.a.rx, &n);
		CHECK(n.stage_memory > 0);
		CHECK_EQ(n.stage_memory, pinned);
	}
	rx_pair_close(&pair);
}

/*
 * Pieces of host memory that are not tiny: the network writes them itself, and reads them itself where it copies
 * nothing, with checksums too. Loopback copies despite MSG_ZEROCOPY; once the kernel has said so, pieces are gathered
 * again.
 */
static void in_place(const char *zerocopy, int crc)
{
	int by_reference = !strcmp(zerocopy, "msg");
	struct gantry_rx_config config = {.struct_size = sizeof(config), .path = GANTRY_RX_PATH_HOST};
	struct rx_layout from = {8192, 12290, 3000003}, to = {5000, 5007, 3000003};
	struct gantry_rx_counters a = GANTRY_RX_COUNTERS_INIT, b = GANTRY_RX_COUNTERS_INIT;

	set_params("GANTRY_CRC", crc ? "1" : "0", "GANTRY_ZEROCOPY", zerocopy);
	rx_pair_open(&pair, &config);
	device = 0;
	move(&pair.a, &pair.b, &from, &to, 1);
	move(&pair.a, &pair.b, &from, &to, 2);
	gantry_rx_get_counters(pair.a.rx, &a);
	gantry_rx_get_counters(pair.b.rx, &b);
	CHECK_EQ(a.staged_bytes + a.direct_bytes, 2 * from.total);
	CHECK_EQ(a.direct_bytes > 0, by_reference);
	CHECK_EQ(b.direct_bytes, 2 * from.total);
	CHECK_EQ(b.staged_bytes, 0u);
	rx_pair_close(&pair);
	set_params("GANTRY_CRC", NULL, "GANTRY_ZEROCOPY", NULL);
}

/* Of a transfer that comes as fragments. */
static uint64_t launches_with(const char *most)
{
	struct gantry_rx_config config = {.struct_size = sizeof(config), .path = GANTRY_RX_PATH_EMULATED};
	const struct rx_layout l = {1 << 20, 1 << 20, 1 << 20};
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;

	set_params("GANTRY_RX_MAX_FRAGS", most);
	rx_pair_open(&pair, &config);
	device = 1;
	move(&pair.a, &pair.b, &l, &l, 1);
	gantry_rx_get_counters(pair.b.rx, &n);
	CHECK_EQ(n.unpacked_bytes, l.total);
	CHECK(!most || n.launches * (uint64_t)atoi(most) >= n.descriptors);
	rx_pair_close(&pair);
	set_params("GANTRY_RX_MAX_FRAGS", NULL);
	return n.launches;
}

static void wrong_configs(void)
{
	struct gantry_rx_config c = {.struct_size = sizeof(c), .message = 1000};
	struct gantry_rx *rx;

	CHECK_EQ(gantry_rx_open(&c, &rx), GANTRY_ERR_CONFIG);
	c = (struct gantry_rx_config){.struct_size = sizeof(struct gantry_rx_config), .max_frags = 15};
	CHECK_EQ(gantry_rx_open(&c, &rx), GANTRY_ERR_CONFIG);
	c = (struct gantry_rx_config){.struct_size = sizeof(struct gantry_rx_config), .depth = 17};
	CHECK_EQ(gantry_rx_open(&c, &rx), GANTRY_ERR_CONFIG);
	c = (struct gantry_rx_config){.struct_size = sizeof(struct gantry_rx_config), .nic = "nosuchnic0"};
	CHECK_EQ(gantry_rx_open(&c, &rx), GANTRY_ERR_CONFIG);
	c = (struct gantry_rx_config){.struct_size = sizeof(struct gantry_rx_config), .nic = "lo+lo"};
	CHECK_EQ(gantry_rx_open(&c, &rx), GANTRY_ERR_CONFIG);
	c = (struct gantry_rx_config){.struct_size = sizeof(struct gantry_rx_config), .path = GANTRY_RX_PATH_UNPACK};
	CHECK_EQ(gantry_rx_open(&c, &rx), GANTRY_ERR_UNSUPPORTED);
}

int main(int argc, char **argv)
{
	struct gantry_rx_config host = {.struct_size = sizeof(host), .path = GANTRY_RX_PATH_HOST};
	struct gantry_rx_config narrow = {.struct_size = sizeof(narrow),
					  .path = GANTRY_RX_PATH_HOST,
					  .message = 65536,
					  .depth = 2,
					  .stage = 1 << 20,
					  .max_frags = 16};
	struct gantry_rx_config emulated = {.struct_size = sizeof(emulated), .path = GANTRY_RX_PATH_EMULATED};
	const char *only = argc > 1 ? argv[1] : "";

	RUN(wrong_configs());
	RUN(in_place("splice", 0));
	RUN(in_place("msg", 0));
	RUN(in_place("off", 0));
	RUN(in_place("splice", 1));
	RUN(in_place("msg", 1));
	if (!*only || !strcmp(only, "host"))
		RUN(all(&host, "host: requested by the program"));
	if (!*only || !strcmp(only, "narrow"))
		RUN(all(&narrow, "host: requested by the program"));
	if (!*only || !strcmp(only, "emulated"))
		RUN(CHECK(launches_with("16") > launches_with(NULL)));
	if (!*only || !strcmp(only, "emulated"))
		RUN(all(&emulated, "unpack (emulated NIC): requested by the program"));
	return 0;
}
