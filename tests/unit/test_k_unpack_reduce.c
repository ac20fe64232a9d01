/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking into a reduction. Elements are small integers and halves, which every type here holds exactly, so what is
 * right is plain arithmetic in double. Fragments cut elements anywhere, down to one byte each.
 */
#include "k_unpack_util.h"
#include "number_util.h"

enum { SPACE = 1 << 21, ELEMS = 1500, ROOM = ELEMS * 8 + 4 * GUARD };

static struct area pool, input, output;
static struct list list;

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
static void check(const struct type *t, uint32_t op, uint64_t count, uint64_t in_off, uint64_t out_off, int in_place,
		  const struct team *team)
{
	struct area *in = in_place ? &output : &input;
	struct gantry_unpack_reduce_args a = {.descs = (const struct gantry_unpack_desc *)list.descs.device,
					      .n = list.n,
					      .bounce = pool.device,
					      .output = output.device + out_off,
					      .type = t->type,
					      .op = op,
					      .last = 1};
	FREED char *arrived = malloc(count * t->bytes + 1), *want = malloc(ROOM);

	CHECK(arrived && want);
	in_off = in_place ? out_off : in_off;
	a.input = in->device + in_off;
	a.scalar = op == GANTRY_OP_AVG ? 2 : number_bits(t->type, 2 * 3);
	memset(input.host, POISON, ROOM);
	memset(output.host, POISON, ROOM);
	memset(want, POISON, ROOM);
	for (uint32_t i = 0; i < count; i++) {
		int64_t x = value(t, 0, i), y = value(t, 1, i);

		put(in->host + in_off + (uint64_t)i * t->bytes, t, x);
		put(arrived + (uint64_t)i * t->bytes, t, y);
		put(want + out_off + (uint64_t)i * t->bytes, t, combine(op, x, y));
	}
	for (uint64_t i = 0; i < list.n; i++)
		memcpy(pool.host + list.d[i].src_off, arrived + list.d[i].dst_off, list.d[i].len);
	run(&gantry_kernel_unpack_reduce, team->blocks, team->lanes, &a, sizeof(a));
	for (size_t i = 0; i < ROOM; i++)
		if (output.host[i] != want[i])
			TEST_FAIL("type %u op %u, %llu elements in %llu fragments, %u blocks of %u lanes, offsets %llu "
				  "%llu: "
				  "byte %lld of the output is %d, expected %d",
				  t->type, op, (unsigned long long)count, (unsigned long long)list.n, team->blocks,
				  team->lanes, (unsigned long long)in_off, (unsigned long long)out_off,
				  (long long)i - (long long)out_off, output.host[i], want[i]);
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
				list_cut(&list, count * types[t].bytes, most[m], SPACE);
				if (k % 4 == 1)
					add_empty();
				check(&types[t], ops[o], count, in_off, out_off, k % 5 == 0, team);
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
		check(&types[t], GANTRY_OP_SUM, ELEMS, GUARD, GUARD, 0, &teams()[3]);
		check(&types[t], GANTRY_OP_MAX, ELEMS, GUARD, GUARD + bytes, 1, &teams()[1]);
	}
}

static void test_few(void)
{
	for (uint32_t t = 0; t < TYPES; t++)
		for (uint64_t count = 0; count < 40; count++) {
			uint64_t bytes = count * types[t].bytes, half = bytes / 2;

			list.n = 0;
			list_add(&list, 5, 0, half);
			list_add(&list, 5000 + count, half, bytes - half);
			check(&types[t], GANTRY_OP_SUM, count, GUARD, GUARD, 0, &teams()[count % 4]);
		}
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	pool = area_new(SPACE);
	input = area_new(ROOM);
	output = area_new(ROOM);
	list = list_new();
	RUN(test_cut());
	RUN(test_any_order());
	RUN(test_few());
	area_free(&list.descs);
	area_free(&output);
	area_free(&input);
	area_free(&pool);
	close_device();
	return 0;
}
