/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking and gathering: every alignment of source and destination, every short length, guards around every fragment,
 * blocks and lanes of several numbers. What is right is worked out byte by byte from the descriptors.
 */
#include "k_unpack_util.h"

enum { SPACE = 1 << 18, GRID_LANES = 128 };

static struct area pool, dst;
static struct list list;
static char *want;
static const struct gantry_kernel *kernel; /* UNPACK, and then UNPACK_GRID */

static void launch(uint32_t blocks, uint32_t lanes, int gather)
{
	struct gantry_unpack_args a = {.descs = (const struct gantry_unpack_desc *)list.descs.device,
				       .n = list.n,
				       .bounce = pool.device,
				       .dst = dst.device,
				       .gather = (uint32_t)gather};

	if (kernel == &gantry_kernel_unpack_grid && lanes > GRID_LANES) {
		blocks *= lanes / GRID_LANES;
		lanes = GRID_LANES;
	}
	run(kernel, blocks, lanes, &a, sizeof(a));
}

/* Runs the list; all of the side that is written, and of the side that is read, is compared. */
static void check(uint32_t blocks, uint32_t lanes, int gather, const char *what)
{
	struct area *to = gather ? &pool : &dst, *from = gather ? &dst : &pool;
	FREED char *kept = malloc(from->size);

	CHECK(kept);
	memset(to->host, POISON, to->size);
	memset(want, POISON, to->size);
	memcpy(kept, from->host, from->size);
	for (uint64_t i = 0; i < list.n; i++)
		for (uint32_t k = 0; k < list.d[i].len; k++) {
			uint64_t page = list.d[i].src_off + k, place = list.d[i].dst_off + k;

			want[gather ? page : place] = from->host[gather ? place : page];
		}
	launch(blocks, lanes, gather);
	if (memcmp(to->host, want, to->size)) {
		size_t i = 0;

		while (to->host[i] == want[i])
			i++;
		TEST_FAIL("%s, %u blocks of %u lanes, gather %d: byte %zu is %d, expected %d", what, blocks, lanes,
			  gather, i, to->host[i], want[i]);
	}
	CHECK(memcmp(kept, from->host, from->size) == 0);
}

static const uint32_t lengths[] = {255,	 256,  257,  511,  512,	 513,  1447, 1448, 1449,  2047, 2048,
				   2049, 2063, 2064, 2065, 4095, 4096, 4097, 9000, 16384, 40001};

/* All lengths at one pair of alignments; GUARD bytes or more stay between fragments. */
static void lay_out(uint32_t src_align, uint32_t dst_align)
{
	uint64_t s = 0, d = 0;

	list.n = 0;
	for (uint32_t i = 0; i < 201 + sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint32_t len = i < 201 ? i : lengths[i - 201];

		s = (s + GUARD + 15) / 16 * 16 + src_align;
		d = (d + GUARD + 15) / 16 * 16 + dst_align;
		list_add(&list, s, d, len);
		s += len;
		d += len;
	}
	CHECK(s + GUARD < SPACE && d + GUARD < SPACE);
}

static void test_alignments(void)
{
	const struct team *t = teams();
	uint32_t k = 0;

	random_fill(pool.host, SPACE);
	random_fill(dst.host, SPACE);
	for (uint32_t s = 0; s < 16; s++)
		for (uint32_t d = 0; d < 16; d++) {
			lay_out(s, d);
			if (k & 1)
				list_shuffle(&list);
			check(t[k % 4].blocks, t[k % 4].lanes, k % 8 >= 6, "alignments");
			if (k % 8 >= 6)
				random_fill(dst.host, SPACE); /* the next one reads the pool, that one was written */
			if (k % 8 >= 6)
				random_fill(pool.host, SPACE);
			k++;
		}
}

/* Few descriptors for many lanes: on a GPU they are split; one of them is everything. */
static void test_few(void)
{
	static const uint32_t sizes[] = {0, 1, 15, 16, 17, 31, 100, 4096, 16385, 60001};

	random_fill(pool.host, SPACE);
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (uint32_t n = 0; n <= 3; n++)
			for (const struct team *t = teams(); t->blocks; t++) {
				list.n = 0;
				for (uint32_t k = 0; k < n; k++)
					list_add(&list, 64 + k * 70003, 64 + k * 70001, sizes[i]);
				check(t->blocks, t->lanes, 0, "few");
			}
}

static void test_shapes(void)
{
	static const uint64_t most[] = {1, 2, 9, 40, 1448, 4096};

	random_fill(pool.host, SPACE);
	for (uint32_t i = 0; i < sizeof(most) / sizeof(most[0]); i++)
		for (const struct team *t = teams(); t->blocks; t++) {
			list_cut(&list, most[i] < 1000 ? 4000 : 12 * most[i], most[i], SPACE);
			for (uint64_t k = 0; k < list.n; k++)
				list.d[k].dst_off += 1000 + i;
			if (t->blocks > 1)
				list_shuffle(&list);
			check(t->blocks, t->lanes, 0, "shapes");
		}
}

/* The count from memory, and addresses in place of offsets. */
static void test_count_and_base(void)
{
	struct area count = area_new(sizeof(uint64_t));
	struct gantry_unpack_args a = {.descs = (const struct gantry_unpack_desc *)list.descs.device,
				       .count = (const uint64_t *)count.device,
				       .n = 1000000,
				       .bounce = pool.device};
	const struct team *t = &teams()[2];

	random_fill(pool.host, SPACE);
	memset(dst.host, POISON, SPACE);
	list.n = 0;
	for (uint64_t k = 0; k < 10; k++)
		list_add(&list, 100 + 1000 * k, (uintptr_t)dst.device + 3000 * k + k, 900 + k);
	*(uint64_t *)count.host = 8;
	run(&gantry_kernel_unpack, t->blocks, t->lanes, &a, sizeof(a));
	for (uint64_t k = 0; k < 10; k++)
		for (uint64_t i = 0; i < 3000; i++)
			CHECK_EQ(dst.host[3000 * k + k + i] == (char)POISON || (k < 8 && i < 900 + k), 1);
	for (uint64_t k = 0; k < 8; k++)
		CHECK(memcmp(dst.host + 3000 * k + k, pool.host + 100 + 1000 * k, 900 + k) == 0);
	area_free(&count);
}

/* NCCL's loop, which perf compares with, must be right to be a comparison. */
static void test_seed(void)
{
	struct gantry_unpack_seed_args a = {.descs = (const struct gantry_unpack_desc *)list.descs.device,
					    .bounce = pool.device,
					    .dst = dst.device};
	uint64_t bytes;

	random_fill(pool.host, SPACE);
	for (uint32_t k = 0; k < 64; k++) {
		const struct team *t = &teams()[k % 4];

		lay_out(k % 16, k / 16 * 4 + k % 3);
		memset(dst.host, POISON, SPACE);
		memset(want, POISON, SPACE);
		bytes = 0;
		for (uint64_t i = 0; i < list.n; i++) {
			memcpy(want + list.d[i].dst_off, pool.host + list.d[i].src_off, list.d[i].len);
			bytes += list.d[i].len;
		}
		a.n = list.n;
		a.bytes = bytes;
		run(&gantry_kernel_unpack_seed, t->blocks, t->lanes, &a, sizeof(a));
		CHECK(memcmp(dst.host, want, SPACE) == 0);
	}
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	pool = area_new(SPACE);
	dst = area_new(SPACE);
	list = list_new();
	want = malloc(SPACE);
	CHECK(want);
	for (int grid = 0; grid < 2; grid++) {
		kernel = grid ? &gantry_kernel_unpack_grid : &gantry_kernel_unpack;
		RUN(test_alignments());
		RUN(test_few());
		RUN(test_shapes());
	}
	RUN(test_count_and_base());
	RUN(test_seed());
	free(want);
	area_free(&list.descs);
	area_free(&dst);
	area_free(&pool);
	close_device();
	return 0;
}
