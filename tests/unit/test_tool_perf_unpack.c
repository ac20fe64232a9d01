/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `perf unpack` itself: its lists are what their names say, and its checks see what is wrong: a byte of the message, a
 * byte of a gap, a byte of a guard.
 */
#include "perf/perf_unpack.h"

#include "test.h"

enum { BYTES = 200000 };

static void check_list(enum unpack_shape shape)
{
	struct unpack_list l, other;
	const char *why;
	char *used;
	uint64_t at = 0, sum = 0, same = 0;

	CHECK(unpack_list_make(&l, shape, BYTES, 1, &why));
	CHECK(unpack_list_make(&other, shape, BYTES, 2, &why));
	used = calloc(1, l.pool_bytes);
	CHECK(used);
	for (uint64_t i = 0; i < l.n; i++) {
		CHECK(l.descs[i].len > 0 && (uint64_t)l.descs[i].src_off + l.descs[i].len <= l.pool_bytes);
		CHECK(l.descs[i].src_off / 4096 == (l.descs[i].src_off + l.descs[i].len - 1) / 4096);
		for (uint32_t k = 0; k < l.descs[i].len; k++)
			CHECK(!used[l.descs[i].src_off + k]++);
		CHECK(l.descs[i].dst_off >= at && l.descs[i].dst_off - at < 16);
		if (shape != UNPACK_EVEN1500 && shape != UNPACK_EVEN9000)
			CHECK_EQ(l.descs[i].dst_off, at);
		else
			CHECK_EQ(l.descs[i].dst_off % 16, 0);
		at = l.descs[i].dst_off + l.descs[i].len;
		sum += l.descs[i].len;
		same += i < other.n && l.descs[i].src_off == other.descs[i].src_off;
	}
	CHECK_EQ(sum, l.bytes);
	CHECK_EQ(at, l.span);
	CHECK_EQ(l.bytes, shape == UNPACK_BYTES ? BYTES / 256 : BYTES);
	CHECK(l.n < 8 || same < l.n / 2); /* another seed, another order */
	free(used);
	unpack_list_free(&l);
	unpack_list_free(&other);
}

static uint64_t wrong(struct unpack_bench *b)
{
	uint64_t n = 0;

	CHECK_EQ(unpack_verify(b, b->dst, &n), GANTRY_OK);
	return n;
}

static void check_checks(enum unpack_shape shape)
{
	struct unpack_opts o = {.device = GANTRY_DEVICE_HOST, .bytes = BYTES, .seed = 1, .repeats = 1, .check_only = 1};
	struct unpack_bench b = {.dev = NULL};
	struct unpack_row row = {.wrong = 99};
	uint64_t spots[4];

	CHECK_EQ(unpack_bench_open(&b, &o, &shape, 1), GANTRY_OK);
	CHECK_EQ(unpack_bench_load(&b, shape), GANTRY_OK);
	CHECK_EQ(unpack_poison(&b, b.dst), GANTRY_OK);
	CHECK(wrong(&b) > b.l.bytes / 2); /* nothing has been unpacked */
	CHECK_EQ(unpack_measure(&b, 2, &row), GANTRY_OK);
	CHECK_EQ(row.wrong, 0);
	CHECK_EQ(wrong(&b), 0);
	spots[0] = UNPACK_GUARD - 1;
	spots[1] = UNPACK_GUARD + b.l.descs[3].dst_off;
	spots[2] = UNPACK_GUARD + b.l.span;
	spots[3] = UNPACK_GUARD + b.l.descs[1].dst_off - 1; /* even1500: in a gap */
	for (int i = 0; i < 4; i++) {
		char want[64];

		snprintf(want, sizeof(want), "at offset %llu of a message of ",
			 (unsigned long long)spots[i] - UNPACK_GUARD);
		b.first_wrong[0] = 0;
		b.dst[spots[i]] ^= 4;
		CHECK_EQ(wrong(&b), 1);
		b.dst[spots[i]] ^= 4;
		CHECK_HAS(b.first_wrong, i == 0	  ? "in front of offset 0 of"
					 : i == 2 ? "behind the end at offset"
						  : want);
	}
	CHECK_EQ(wrong(&b), 0);
	unpack_bench_close(&b);
}

int main(void)
{
	CHECK_EQ(gantry_params_load(0), GANTRY_OK);
	for (int i = 0; i < UNPACK_SHAPE_COUNT; i++)
		check_list((enum unpack_shape)i);
	check_checks(UNPACK_MTU1500);
	check_checks(UNPACK_EVEN1500);
	check_checks(UNPACK_BYTES);
	return 0;
}
