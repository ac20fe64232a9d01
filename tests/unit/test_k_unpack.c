/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking and gathering: every alignment of source and destination, every short length, guards around every fragment,
 * blocks and lanes of several numbers. What is right is worked out byte by byte from the descriptors.
 */
#include "k_unpack_util.h"
#include "number_util.h"

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

/*
 * Unpacking into a reduction. Elements are small integers and halves, which every type here holds exactly, so what is
 * right is plain arithmetic in double. Fragments cut elements anywhere, down to one byte each.
 */

enum { REDUCE_SPACE = 1 << 21, ELEMS = 1500, ROOM = ELEMS * 8 + 4 * GUARD };

static struct area pages, input, output;

struct type {
	uint32_t type, bytes;
	int is_signed;
};
static const struct type types[] = {
	{GANTRY_TYPE_INT8, 1, 1},    {GANTRY_TYPE_UINT8, 1, 0},	  {GANTRY_TYPE_INT32, 4, 1},
	{GANTRY_TYPE_UINT64, 8, 0},  {GANTRY_TYPE_FLOAT16, 2, 1}, {GANTRY_TYPE_BFLOAT16, 2, 1},
	{GANTRY_TYPE_FLOAT32, 4, 1}, {GANTRY_TYPE_FLOAT64, 8, 1},
};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

static int64_t combine(uint32_t op, int64_t a, int64_t b)
{
	switch (op) {
	case GANTRY_OP_PROD:
		return a * b;
	case GANTRY_OP_MAX:
		return a > b ? a : b;
	case GANTRY_OP_MIN:
		return a < b ? a : b;
	case GANTRY_OP_AVG:
		return (a + b) / 2;
	case GANTRY_OP_PREMUL:
		return 3 * a + b;
	default:
		return a + b;
	}
}

/* Element i of the input (0) and of what arrives (1): 1 to 8, or the negative of it. Both have the same sign and sums
 * are even, so that no operation has a remainder or a zero, which might be negative. */
static int64_t value(const struct type *t, uint32_t which, uint32_t i)
{
	int64_t arrived = 1 + (i * 7 + i / 11) % 8, v = which ? arrived : 2 + 2 * (i * 5 % 4) - arrived % 2;

	return t->is_signed && i % 3 == 0 ? -v : v;
}

static void put(char *p, const struct type *t, int64_t v)
{
	number_put(p, t->type, t->bytes, 2 * v);
}

/* in_off and out_off: where the arrays begin, in bytes after an aligned address. */
static void check_reduce(const struct type *t, uint32_t op, uint64_t count, uint64_t in_off, uint64_t out_off,
			 int in_place, const struct team *team)
{
	struct area *in = in_place ? &output : &input;
	struct gantry_unpack_reduce_args a = {.descs = (const struct gantry_unpack_desc *)list.descs.device,
					      .n = list.n,
					      .bounce = pages.device,
					      .output = output.device + out_off,
					      .type = t->type,
					      .op = op,
					      .last = 1};
	FREED char *arrived = malloc(count * t->bytes + 1), *wanted = malloc(ROOM);

	CHECK(arrived && wanted);
	in_off = in_place ? out_off : in_off;
	a.input = in->device + in_off;
	a.scalar = op == GANTRY_OP_AVG ? 2 : number_bits(t->type, 2 * 3);
	memset(input.host, POISON, ROOM);
	memset(output.host, POISON, ROOM);
	memset(wanted, POISON, ROOM);
	for (uint32_t i = 0; i < count; i++) {
		int64_t x = value(t, 0, i), y = value(t, 1, i);

		put(in->host + in_off + (uint64_t)i * t->bytes, t, x);
		put(arrived + (uint64_t)i * t->bytes, t, y);
		put(wanted + out_off + (uint64_t)i * t->bytes, t, combine(op, x, y));
	}
	for (uint64_t i = 0; i < list.n; i++)
		memcpy(pages.host + list.d[i].src_off, arrived + list.d[i].dst_off, list.d[i].len);
	run(&gantry_kernel_unpack_reduce, team->blocks, team->lanes, &a, sizeof(a));
	for (size_t i = 0; i < ROOM; i++)
		if (output.host[i] != wanted[i])
			TEST_FAIL("type %u op %u, %llu elements in %llu fragments, %u blocks of %u lanes, offsets %llu "
				  "%llu: "
				  "byte %lld of the output is %d, expected %d",
				  t->type, op, (unsigned long long)count, (unsigned long long)list.n, team->blocks,
				  team->lanes, (unsigned long long)in_off, (unsigned long long)out_off,
				  (long long)i - (long long)out_off, output.host[i], wanted[i]);
}

/* Descriptors of no length between the others. */
static void add_empty(void)
{
	uint64_t n = list.n;

	for (uint64_t i = 0; i < 5 && n; i++) {
		uint64_t at = random_below(list.n);

		memmove(&list.d[at + 1], &list.d[at], (list.n - at) * sizeof(list.d[0]));
		list.d[at].len = 0;
		list.n++;
	}
}

/* Every operation, fragments of many sizes, any place of the arrays that the type allows. */
static void test_cut(void)
{
	static const uint32_t ops[] = {GANTRY_OP_SUM, GANTRY_OP_PROD, GANTRY_OP_MAX,
				       GANTRY_OP_MIN, GANTRY_OP_AVG,  GANTRY_OP_PREMUL};
	static const uint64_t most[] = {1, 3, 17, 100, 1448, 4096};
	uint32_t k = 0;

	for (uint32_t t = 0; t < TYPES; t++)
		for (uint32_t o = 0; o < 6; o++)
			for (uint32_t m = 0; m < 6; m++) {
				const struct team *team = &teams()[k % 4];
				uint64_t count = most[m] < 16 ? 40 + k % 17 : ELEMS - k % 23;
				uint64_t in_off = GUARD + random_below(16) * types[t].bytes % 16;
				uint64_t out_off = GUARD + random_below(16) * types[t].bytes % 16;

				if (k % 3 == 0)
					in_off = out_off; /* alike modulo 16: the fast way */
				list_cut(&list, count * types[t].bytes, most[m], REDUCE_SPACE);
				if (k % 4 == 1)
					add_empty();
				if (k % 7 > 4) /* as they arrive on several sockets */
					list_shuffle(&list);
				check_reduce(&types[t], ops[o], count, in_off, out_off, k % 5 == 0, team);
				k++;
			}
}

/* Whole elements in each fragment: any order, and gaps that stay as they are. */
static void test_any_order(void)
{
	for (uint32_t t = 0; t < TYPES; t++) {
		uint64_t bytes = types[t].bytes;

		list.n = 0;
		for (uint64_t i = 0; i < 100; i++)
			list_add(&list, i * 8192 + random_below(99), i * 15 * bytes, 15 * bytes);
		list_shuffle(&list);
		check_reduce(&types[t], GANTRY_OP_SUM, ELEMS, GUARD, GUARD, 0, &teams()[3]);
		check_reduce(&types[t], GANTRY_OP_MAX, ELEMS, GUARD, GUARD + bytes, 1, &teams()[1]);
	}
}

static void test_few_elements(void)
{
	for (uint32_t t = 0; t < TYPES; t++)
		for (uint64_t count = 0; count < 40; count++) {
			uint64_t bytes = count * types[t].bytes, half = bytes / 2;

			list.n = 0;
			list_add(&list, 5, 0, half);
			list_add(&list, 5000 + count, half, bytes - half);
			check_reduce(&types[t], GANTRY_OP_SUM, count, GUARD, GUARD, 0, &teams()[count % 4]);
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
	pages = area_new(REDUCE_SPACE);
	input = area_new(ROOM);
	output = area_new(ROOM);
	RUN(test_cut());
	RUN(test_any_order());
	RUN(test_few_elements());
	free(want);
	area_free(&list.descs);
	area_free(&output);
	area_free(&input);
	area_free(&pages);
	area_free(&dst);
	area_free(&pool);
	close_device();
	return 0;
}
