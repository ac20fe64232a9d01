/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives that are stored as another type than they were sent as: all pairs of types, through host memory, staging and
 * the emulated NIC, whose fragments end inside elements. Each element is compared with its definition (convert_util.h),
 * and nothing else is written.
 */
#include "convert_util.h"
#include "rx_util.h"

static struct rx_pair pair;
static int device; /* kind of the receiver's memory */

/* Sends `bytes` bytes and receives into what is given. */
static void exchange(unsigned char *src, size_t bytes, const struct gantry_rx_piece *to, size_t n,
		     const struct convert_format *from, const struct convert_format *as, struct gantry_rx_op **ret_s,
		     struct gantry_rx_op **ret_r)
{
	struct gantry_rx_piece p = {src, bytes, 0, 1};

	CHECK_OK(gantry_rx_recv_as(pair.b.conn, to, n, 7, from->type, as->type, ret_r));
	CHECK_OK(gantry_rx_send(pair.a.conn, &p, 1, 7, ret_s));
	rx_both(*ret_s, *ret_r);
}

/* n elements, sent from `shift` bytes into memory; stored in pieces of `piece` elements with `gap` bytes between. */
static void move(const struct convert_format *from, const struct convert_format *to, size_t n, size_t piece, size_t gap,
		 uint64_t seed)
{
	const size_t bytes = n * (size_t)from->bytes, shift = seed % 4, width = piece * (size_t)to->bytes;
	const struct rx_layout l = {width, width + gap, n * (size_t)to->bytes};
	const size_t size = rx_span(&l) + 64;
	unsigned char *src = rx_memory(&pair, &pair.a, bytes + 8, 0), *dst = rx_memory(&pair, &pair.b, size, device);
	struct gantry_rx_piece p[2];
	struct gantry_rx_op *s, *r;
	size_t at = 0;

	convert_fill(from, src + shift, n, seed);
	memset(dst, 0x5a, size);
	exchange(src + shift, bytes, p, rx_pieces(&l, dst + shift, p), from, to, &s, &r);
	CHECK_STR(rx_text(r), "");
	CHECK_OK(rx_result(s));
	CHECK_OK(rx_result(r));
	CHECK_EQ(rx_bytes(s), bytes);
	CHECK_EQ(rx_bytes(r), bytes);
	for (size_t i = 0; i < n; i++) {
		const size_t place = shift + i / piece * l.stride + i % piece * (size_t)to->bytes;

		CHECK_FILLED(dst + at, place - at, 0x5a);
		convert_check(from, to, convert_get(from, src + shift + i * (size_t)from->bytes),
			      convert_get(to, dst + place), i);
		at = place + (size_t)to->bytes;
	}
	CHECK_FILLED(dst + at, size - at, 0x5a);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_memory_free(&pair, &pair.b, dst, device);
}

static void pairs(size_t n, size_t piece, size_t gap, uint64_t seed)
{
	for (size_t i = 0; i < TEST_COUNT(formats); i++)
		for (size_t k = 0; k < TEST_COUNT(formats); k++)
			if (i != k)
				move(&formats[i], &formats[k], n, piece, gap, seed + i + k);
}

/* With the head, as one message and as many; together, and in pieces. */
static void layouts(void)
{
	const size_t many = SANITIZED ? 150001 : 700001;

	pairs(1, 1, 0, 1);
	pairs(999, 999, 0, 2);
	pairs(999, 7, 3, 3);
	pairs(8193, 100, 1, 4);
	pairs(30001, 30001, 0, 5);
	pairs(30001, 1, 5, 6);
	pairs(many, many, 0, 7);
	pairs(many, 4097, 14, 8);
}

static void wrong_sizes(const struct convert_format *from, const struct convert_format *to, size_t sent, size_t stored,
			const char *sender, const char *receiver)
{
	unsigned char *src = rx_memory(&pair, &pair.a, sent, 0), *dst = rx_memory(&pair, &pair.b, stored, device);
	struct gantry_rx_piece p = {dst, stored, 0, 1};
	struct gantry_rx_op *s, *r;

	memset(dst, 0x5a, stored);
	exchange(src, sent, &p, 1, from, to, &s, &r);
	CHECK_EQ(rx_result(s), GANTRY_ERR_SIZE);
	CHECK_EQ(rx_result(r), GANTRY_ERR_SIZE);
	CHECK_HAS(rx_text(s), sender);
	CHECK_HAS(rx_text(r), receiver);
	CHECK_FILLED(dst, stored, 0x5a);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_memory_free(&pair, &pair.b, dst, device);
}

/* What does not fit or is not of whole elements ends the transfer on both sides, and the connection goes on. */
static void sizes(void)
{
	const struct convert_format *f16 = &formats[0], *f32 = &formats[2];

	/* 4000 bytes of float32 are 2000 of float16, and 4000 of float16 are 8000 of float32. */
	wrong_sizes(f32, f16, 4004, 2000, "send of 4004 bytes matched a receive of only 4000",
		    "send of 4004 bytes matched a receive of only 4000");
	wrong_sizes(f16, f32, 100002, 200000, "send of 100002 bytes matched a receive of only 100000",
		    "send of 100002 bytes matched a receive of only 100000");
	wrong_sizes(f32, f16, 4003, 4000, "send of 4003 bytes matched a receive of elements of 4 bytes",
		    "send of 4003 bytes is not a whole number of elements of 4");
	wrong_sizes(f16, f32, 100001, 400000, "send of 100001 bytes matched a receive of elements of 2 bytes",
		    "send of 100001 bytes is not a whole number of elements of 2");
	pairs(999, 999, 0, 9);
}

static void refused_types(void)
{
	unsigned char *dst = rx_memory(&pair, &pair.b, 64, device);
	struct gantry_rx_piece p = {dst, 64, 0, 1}, odd = {dst, 6, 0, 1}, strided = {dst, 6, 8, 4};
	struct gantry_rx_op *op;

	CHECK_ERROR(gantry_rx_recv_as(pair.b.conn, &p, 1, 0, GANTRY_TYPE_INT8, GANTRY_TYPE_FLOAT32, &op),
		    GANTRY_ERR_UNSUPPORTED, "cannot store int8 as float: only half, bfloat16 and float are converted");
	CHECK_ERROR(gantry_rx_recv_as(pair.b.conn, &p, 1, 0, GANTRY_TYPE_FLOAT32, GANTRY_TYPE_FLOAT64, &op),
		    GANTRY_ERR_UNSUPPORTED, "cannot store float as double");
	CHECK_ERROR(gantry_rx_recv_as(pair.b.conn, &p, 1, 0, GANTRY_TYPE_FLOAT8E4M3, GANTRY_TYPE_FLOAT16, &op),
		    GANTRY_ERR_UNSUPPORTED, "cannot store f8e4m3 as half");
	CHECK_ERROR(gantry_rx_recv_as(pair.b.conn, &p, 1, 0, GANTRY_TYPE_FLOAT16, (enum gantry_type)99, &op),
		    GANTRY_ERR_INVALID, "type 99 does not exist");
	CHECK_ERROR(gantry_rx_recv_as(pair.b.conn, &odd, 1, 0, GANTRY_TYPE_FLOAT16, GANTRY_TYPE_FLOAT32, &op),
		    GANTRY_ERR_INVALID, "a piece of 6 bytes does not hold whole elements of float");
	CHECK_ERROR(gantry_rx_recv_as(pair.b.conn, &strided, 1, 0, GANTRY_TYPE_FLOAT16, GANTRY_TYPE_FLOAT32, &op),
		    GANTRY_ERR_INVALID, "a piece of 6 bytes does not hold whole elements of float");
	rx_memory_free(&pair, &pair.b, dst, device);
}

/* The same type twice is an ordinary receive, of any number of bytes. */
static void same_type(void)
{
	enum { SIZE = 100001 };
	unsigned char *src = rx_memory(&pair, &pair.a, SIZE, 0), *dst = rx_memory(&pair, &pair.b, SIZE, device);
	struct gantry_rx_piece p = {dst, SIZE, 0, 1};
	struct gantry_rx_op *s, *r;

	pattern_fill(src, SIZE, 4);
	exchange(src, SIZE, &p, 1, &formats[1], &formats[1], &s, &r);
	CHECK_OK(rx_result(r));
	CHECK_PATTERN(dst, SIZE, 4);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	rx_memory_free(&pair, &pair.a, src, 0);
	rx_memory_free(&pair, &pair.b, dst, device);
}

static void all(const struct gantry_rx_config *config, const char *path)
{
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;

	rx_pair_open(&pair, config);
	CHECK_HAS(gantry_rx_conn_path(pair.b.conn), path);
	for (device = 0; device < 2; device++) {
		layouts();
		sizes();
		refused_types();
		same_type();
	}
	gantry_rx_get_counters(pair.b.rx, &n);
	CHECK_EQ(n.unpacked_bytes != 0, config->path == GANTRY_RX_PATH_EMULATED);
	rx_pair_close(&pair);
}

/* Fragments of every shape: elements are cut by their borders. */
static void shapes(void)
{
	static const char *const names[] = {"pages", "odd", "random", "mtu1500", "mtu9000", "bytes"};
	struct gantry_rx_config emulated = {.struct_size = sizeof(emulated), .path = GANTRY_RX_PATH_EMULATED};
	struct gantry_rx_config narrow = emulated;

	narrow.max_frags = 16;	/* an element's parts stay in one launch */
	narrow.message = 65537; /* messages of whole elements all the same */
	EACH_ROW (i, names) {
		set_params("GANTRY_EMU_SHAPE", names[i], "GANTRY_UNPACK_COALESCE", i % 2 ? "0" : "128",
			   "GANTRY_EMU_LINEAR", i % 3 == 2 ? "20" : "0");
		rx_pair_open(&pair, i % 2 ? &narrow : &emulated);
		device = 1;
		pairs(SANITIZED ? 40001 : 150001, 4097, 14, i);
		pairs(30001, 30001, 0, i);
		pairs(8193, 1, 2, i);
		rx_pair_close(&pair);
	}
	set_params("GANTRY_EMU_SHAPE", NULL, "GANTRY_UNPACK_COALESCE", NULL, "GANTRY_EMU_LINEAR", NULL);
}

int main(void)
{
	struct gantry_rx_config host = {.struct_size = sizeof(host), .path = GANTRY_RX_PATH_HOST};
	struct gantry_rx_config emulated = {.struct_size = sizeof(emulated), .path = GANTRY_RX_PATH_EMULATED};

	RUN(all(&host, "host: requested by the program"));
	RUN(all(&emulated, "unpack (emulated NIC): requested by the program"));
	RUN(shapes());
	return 0;
}
