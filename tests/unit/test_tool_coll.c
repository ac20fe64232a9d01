/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf` of collectives: options and the cases that they make, bandwidths, and the contents by which results are
 * judged: the elements of the small floats against their definition, sums that are exact in any order, and that an element
 * which is wrong, moved or stale is seen.
 */
#include <math.h>

#include "perf/perf_coll.h"
#include "test.h"

static struct pcoll_opts o;

/* The exit status that the words lead to; -1: go on. */
static int parse(const char *words)
{
	char text[512], *argv[64], *rest = text, *word;
	int argc = 0, status;

	snprintf(text, sizeof(text), "%s", words);
	while ((word = strsep(&rest, " ")))
		if (*word)
			argv[argc++] = word;
	argv[argc] = NULL;
	free(o.cases);
	status = pcoll_parse(argc, argv, &o);
	return (status ? status : pcoll_make_cases(&o)) - 1;
}

TEST(options)
{
	CHECK_EQ(parse("all_reduce --ranks 2 -b 8 -e 32 -f 2"), -1);
	CHECK_EQ(o.ncases, 3);
	CHECK_EQ(o.cases[2].bytes, 32);
	CHECK_EQ(o.cases[2].count, 8);
	CHECK_EQ(o.cases[2].type, GANTRY_TYPE_FLOAT32);
	CHECK_EQ(o.cases[2].op, GANTRY_OP_SUM);
	CHECK_EQ(o.cases[2].root, -1);
	CHECK_EQ(o.timing, PCOLL_TIMING_CALL);
	/* The size is that of the larger buffer: three parts, of two floats each. */
	CHECK_EQ(parse("all_gather --ranks 3 -b 32 -e 32"), -1);
	CHECK_EQ(o.cases[0].bytes, 24);
	CHECK_EQ(o.cases[0].count, 2);
	CHECK_EQ(o.cases[0].op, -1);
	CHECK_EQ(parse("reduce --ranks 3 -b 8 -e 8 -d half,f8e4m3 -o all -r -1"), -1);
	CHECK_EQ(o.ncases, 2 * 6 * 3);
	CHECK_EQ(o.cases[35].type, GANTRY_TYPE_FLOAT8E4M3);
	CHECK_EQ(o.cases[35].op, GANTRY_OP_PREMUL);
	CHECK_EQ(o.cases[35].root, 2);
	CHECK_EQ(parse("broadcast --ranks 3 -b 8 -e 8 -d all --root 1"), -1);
	CHECK_EQ(o.ncases, 12);
	CHECK_EQ(o.cases[0].root, 1);
	CHECK_EQ(parse("broadcast --ranks 3 --root node7:400 -r 2 -b 8 -e 8"), -1); /* where ranks meet, and the rank */
	CHECK_EQ(o.cases[0].root, 2);
	CHECK_STR(o.c.root, "node7:400");
	CHECK_EQ(parse("collectives --ranks 2 -b 8 -e 8"), -1);
	CHECK_EQ(o.ncases, PCOLL_PUT); /* which is none */
	CHECK_EQ(parse("put --ranks 2 -b 8 -e 8"), -1);
	CHECK_EQ(o.ncases, 1);
	CHECK_EQ(parse("put --ranks 2 --explain"), 2);
	CHECK_EQ(parse("barrier --ranks 2 -d all"), -1);
	CHECK_EQ(o.ncases, 1);
	CHECK_EQ(parse("all_reduce --ranks 2 --device cuda"), -1);
	CHECK_EQ(o.timing, PCOLL_TIMING_BATCH);
}

TEST(wrong_options)
{
	static const char *const wrong[] = {"-d quad",
					    "-d half,quad",
					    "-d half,",
					    "-o xor",
					    "-r 2",
					    "-r -2",
					    "-r x",
					    "-b 2k -e 1k",
					    "-c 2",
					    "--in-place no no",
					    "--hosts 2 --threads",
					    "--check-only -c 0",
					    "--timing never",
					    "-f 2 -i 4",
					    "--device cuda --buffers plain"};
	char words[128];

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		snprintf(words, sizeof(words), "reduce --ranks 2 %s", wrong[i]);
		printf("wrong: %s\n", words);
		CHECK_EQ(parse(words), 2);
	}
}

static double bus(enum pcoll_op what)
{
	double alg, bus;

	pcoll_bandwidth(what, 4, 1000000, 100, &alg, &bus); /* 1 MB in 100 us */
	if (what != PCOLL_BARRIER)
		CHECK(fabs(alg - 10) < 1e-9);
	return bus;
}

TEST(bandwidths)
{
	CHECK(fabs(bus(PCOLL_ALL_REDUCE) - 15) < 1e-9);
	CHECK(fabs(bus(PCOLL_REDUCE) - 10) < 1e-9);
	CHECK(fabs(bus(PCOLL_BROADCAST) - 10) < 1e-9);
	CHECK(fabs(bus(PCOLL_ALL_GATHER) - 7.5) < 1e-9);
	CHECK(fabs(bus(PCOLL_REDUCE_SCATTER) - 7.5) < 1e-9);
	CHECK(fabs(bus(PCOLL_ALL_TO_ALL) - 7.5) < 1e-9);
	CHECK(fabs(bus(PCOLL_PUT) - 10) < 1e-9);
	CHECK(isnan(bus(PCOLL_BARRIER)));
}

/* The number of an element of a small float, straight from its fields. */
static double decode(int type, uint64_t bits)
{
	static const struct {
		int mantissa, exponent, bias;
	} fields[GANTRY_TYPE_COUNT] = {[GANTRY_TYPE_FLOAT16] = {10, 5, 15},
				       [GANTRY_TYPE_BFLOAT16] = {7, 8, 127},
				       [GANTRY_TYPE_FLOAT8E4M3] = {3, 4, 7},
				       [GANTRY_TYPE_FLOAT8E5M2] = {2, 5, 15}};
	const int m = fields[type].mantissa, e = fields[type].exponent;
	double part = (double)(bits & ((1u << m) - 1)) / (1 << m);
	int field = (int)(bits >> m) & ((1 << e) - 1);
	double v = field ? ldexp(1 + part, field - fields[type].bias) : ldexp(part, 1 - fields[type].bias);

	return bits >> (m + e) & 1 ? -v : v;
}

static const int small[] = {GANTRY_TYPE_FLOAT16, GANTRY_TYPE_BFLOAT16, GANTRY_TYPE_FLOAT8E4M3, GANTRY_TYPE_FLOAT8E5M2};
static const uint64_t largest[] = {0x7bff, 0x7f7f, 0x7e, 0x7b};

/* Every element is its own nearest one; halfway between two it is the even one; beyond the largest it is that. */
TEST(small_floats)
{
	for (size_t t = 0; t < 4; t++) {
		uint64_t sign = perf_comm_type_bytes(small[t]) == 1 ? 0x80 : 0x8000;

		for (uint64_t u = 0; u <= largest[t]; u++) {
			double v = decode(small[t], u), next = decode(small[t], u + 1);

			CHECK_EQ(pcoll_encode(small[t], v), u);
			CHECK_EQ(pcoll_encode(small[t], -v), u | sign);
			if (u == largest[t])
				break;
			CHECK_EQ(pcoll_encode(small[t], (v + next) / 2), u % 2 ? u + 1 : u);
			CHECK_EQ(pcoll_encode(small[t], v + (next - v) * 0.75), u + 1);
		}
		CHECK_EQ(pcoll_encode(small[t], 1e300), largest[t]);
		CHECK_EQ(pcoll_encode(small[t], -1e300), largest[t] | sign);
	}
	CHECK_EQ(pcoll_encode(GANTRY_TYPE_FLOAT32, 1), 0x3f800000);
	CHECK_EQ(pcoll_encode(GANTRY_TYPE_INT8, -1) & 0xff, 0xff);
}

enum { COUNT = 300, RANKS_MAX = 12 };

static double value(int type, const void *table, int i)
{
	uint64_t bits = 0;
	float f;
	double d;
	size_t size = perf_comm_type_bytes(type);

	memcpy(&bits, (const char *)table + (size_t)i * size, size);
	memcpy(&f, &bits, sizeof(f));
	memcpy(&d, &bits, sizeof(d));
	return type == GANTRY_TYPE_FLOAT64 ? d : type == GANTRY_TYPE_FLOAT32 ? (double)f : decode(type, bits);
}

static double scalar(int type, int rank)
{
	uint64_t bits = 0;

	pcoll_scalar(type, rank, &bits);
	return value(type, &bits, 0);
}

static double step(int op, double a, double b)
{
	return op == GANTRY_OP_PROD  ? a * b
	       : op == GANTRY_OP_MAX ? (a > b ? a : b)
	       : op == GANTRY_OP_MIN ? (a < b ? a : b)
				     : a + b;
}

/* Rounded after every step, beginning at any rank and in both directions: always what is expected. */
static void check_order(int type, int op, int nranks)
{
	static uint64_t inputs[RANKS_MAX][COUNT], expected[COUNT];
	const struct pcoll_data d = {.what = PCOLL_ALL_REDUCE, .type = type, .op = op, .nranks = nranks, .seed = 7};
	int distinct = 0;

	for (int r = 0; r < nranks; r++)
		pcoll_input(&d, r, 0, COUNT, inputs[r]);
	pcoll_expected(&d, 0, 0, COUNT, expected);
	for (int i = 0; i < COUNT; i++) {
		for (int order = 0; order < 2 * nranks; order++) {
			double all = 0;

			for (int k = 0; k < nranks; k++) {
				int r = (order / 2 + (order % 2 ? nranks - k : k)) % nranks;
				double v = value(type, inputs[r], i);

				v = op == GANTRY_OP_PREMUL ? v * scalar(type, r) : v;
				all = k ? step(op, all, v) : v;
				CHECK(value(type, (uint64_t[]){pcoll_encode(type, all)}, 0) == all);
			}
			if (op != GANTRY_OP_AVG)
				CHECK(all == value(type, expected, i));
			else
				CHECK(fabs(all / nranks - value(type, expected, i)) <= fabs(all) / 8);
		}
		distinct += i && value(type, expected, i) != value(type, expected, i - 1);
	}
	CHECK(distinct > COUNT / 4); /* a shift by an element shows */
}

TEST(sums_in_any_order)
{
	static const int types[] = {GANTRY_TYPE_FLOAT16,  GANTRY_TYPE_FLOAT32,	  GANTRY_TYPE_FLOAT64,
				    GANTRY_TYPE_BFLOAT16, GANTRY_TYPE_FLOAT8E4M3, GANTRY_TYPE_FLOAT8E5M2};
	static const int ranks[] = {1, 2, 3, 8, RANKS_MAX};

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
		for (int op = 0; op < GANTRY_OP_COUNT; op++)
			for (size_t n = 0; n < sizeof(ranks) / sizeof(ranks[0]); n++)
				check_order(types[t], op, ranks[n]);
}

/* Integers: by hand, in another width. */
TEST(integers)
{
	int8_t in[3][COUNT], out[COUNT];
	struct pcoll_data d = {.what = PCOLL_ALL_REDUCE, .type = GANTRY_TYPE_INT8, .nranks = 3, .seed = 3};

	for (d.op = 0; d.op < GANTRY_OP_COUNT; d.op++) {
		for (int r = 0; r < 3; r++)
			pcoll_input(&d, r, 0, COUNT, in[r]);
		pcoll_expected(&d, 1, 0, COUNT, out);
		for (int i = 0; i < COUNT; i++) {
			int a = in[0][i], b = in[1][i], c = in[2][i], max = a > b ? a : b, min = a < b ? a : b, want;

			want = d.op == GANTRY_OP_SUM	? a + b + c
			       : d.op == GANTRY_OP_PROD ? a * b * c
			       : d.op == GANTRY_OP_MAX	? (max > c ? max : c)
			       : d.op == GANTRY_OP_MIN	? (min < c ? min : c)
			       : d.op == GANTRY_OP_AVG	? (a + b + c) / 3
							: a + 2 * b + c;
			CHECK_EQ(out[i], (int8_t)want);
		}
	}
}

/* Which rank's which part a result is made of. */
TEST(movement)
{
	uint32_t want[COUNT], got[COUNT];
	struct pcoll_data d = {.type = GANTRY_TYPE_UINT32, .op = -1, .root = 2, .nranks = 4, .seed = 9};
	static const struct {
		enum pcoll_op what;
		int rank, part, from, of;
	} moves[] = {{PCOLL_BROADCAST, 1, 0, 2, 0},
		     {PCOLL_ALL_GATHER, 1, 3, 3, 0},
		     {PCOLL_ALL_TO_ALL, 1, 3, 3, 1},
		     {PCOLL_GATHER, 2, 1, 1, 0},
		     {PCOLL_SCATTER, 3, 0, 2, 3}};

	for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++) {
		d.what = moves[i].what;
		pcoll_expected(&d, moves[i].rank, moves[i].part, COUNT, got);
		pcoll_input(&d, moves[i].from, moves[i].of, COUNT, want);
		CHECK_EQ(memcmp(got, want, sizeof(got)), 0);
		pcoll_input(&d, (moves[i].from + 1) % 4, moves[i].of, COUNT, want);
		CHECK(memcmp(got, want, sizeof(got)) != 0);
	}
}

TEST(wrong_elements)
{
	enum { LONG = 3 * PCOLL_PERIOD + 5 };
	const struct pcoll_data d = {
		.what = PCOLL_ALL_REDUCE, .type = GANTRY_TYPE_FLOAT32, .op = GANTRY_OP_AVG, .nranks = 3, .seed = 1};
	float *table = malloc(PCOLL_PERIOD * sizeof(*table)), *got = malloc(LONG * sizeof(*got));
	uint64_t first = 0;

	CHECK_EQ(pcoll_table_length(LONG), PCOLL_PERIOD);
	CHECK_EQ(pcoll_table_length(7), 7);
	pcoll_expected(&d, 0, 0, PCOLL_PERIOD, table);
	pcoll_fill(got, LONG, sizeof(*got), table);
	CHECK_EQ(pcoll_compare(got, LONG, d.type, table, 0, &first), 0);
	got[2 * PCOLL_PERIOD + 3] = nextafterf(nextafterf(table[3], 1e9f), 1e9f);
	CHECK_EQ(pcoll_tolerance(&d), 4); /* two additions, the product, and 1/3 */
	CHECK_EQ(pcoll_compare(got, LONG, d.type, table, 2, &first), 0);
	CHECK_EQ(pcoll_compare(got, LONG, d.type, table, 0, &first), 1);
	CHECK_EQ(first, 2 * PCOLL_PERIOD + 3);
	got[2 * PCOLL_PERIOD + 3] = nextafterf(got[2 * PCOLL_PERIOD + 3], 1e9f);
	CHECK_EQ(pcoll_compare(got, LONG, d.type, table, 2, &first), 1);
	for (int i = 0; i < 2; i++) /* five in all: one more than may be */
		got[2 * PCOLL_PERIOD + 3] = nextafterf(got[2 * PCOLL_PERIOD + 3], 1e9f);
	CHECK_EQ(pcoll_compare(got, LONG, d.type, table, pcoll_tolerance(&d), &first), 1);
	/* A chunk from another place. */
	pcoll_fill(got, LONG, sizeof(*got), table);
	memcpy(got + 32768, got, 4096 * sizeof(*got));
	CHECK(pcoll_compare(got, LONG, d.type, table, 2, &first) > 4000);
	CHECK_EQ(first, 32768);
	free(table);
	free(got);
}

/* ---- how far averages may be off ---- */

static double rounded(int type, double v)
{
	uint64_t bits = pcoll_encode(type, v);

	return value(type, &bits, 0);
}

/* An average as ranks make it: scaled first, then added up in whatever order, every sum rounded. */
static uint64_t average_somehow(const struct pcoll_data *d, double *left)
{
	double by = d->type == GANTRY_TYPE_FLOAT64 ? 1.0 / d->nranks : (double)(float)(1.0 / d->nranks);

	for (int i = 0; i < d->nranks; i++)
		left[i] = rounded(d->type, left[i] * by);
	for (uint32_t n = (uint32_t)d->nranks; n > 1; n--) {
		uint32_t a = random_below(n), b = random_below(n - 1);
		double *to = &left[b < a ? b : b + 1];

		*to = rounded(d->type, *to + left[a]);
		left[a] = left[n - 1];
	}
	return pcoll_encode(d->type, left[0]);
}

/* The worst of many elements, each averaged in an order of its own. */
static int64_t furthest_off(const struct pcoll_data *d)
{
	enum { TABLE = 500 };
	const size_t size = perf_comm_type_bytes(d->type);
	char *in = calloc((size_t)d->nranks, TABLE * size), *want = calloc(TABLE, size);
	double *all = calloc((size_t)d->nranks, sizeof(*all));
	int64_t worst = 0;

	pcoll_expected(d, 0, 0, TABLE, want);
	for (int r = 0; r < d->nranks; r++)
		pcoll_input(d, r, 0, TABLE, in + (size_t)r * TABLE * size);
	for (int i = 0; i < TABLE; i++) {
		uint64_t expected = 0;
		int64_t off;

		for (int r = 0; r < d->nranks; r++)
			all[r] = value(d->type, in + (size_t)r * TABLE * size, i);
		memcpy(&expected, want + (size_t)i * size, size);
		off = (int64_t)(average_somehow(d, all) - expected);
		worst = llabs(off) > worst ? llabs(off) : worst;
	}
	free(in);
	free(want);
	free(all);
	return worst;
}

/* No order of additions takes an average further than the tolerance. */
TEST(tolerance)
{
	static const int types[] = {GANTRY_TYPE_FLOAT16,    GANTRY_TYPE_BFLOAT16, GANTRY_TYPE_FLOAT8E4M3,
				    GANTRY_TYPE_FLOAT8E5M2, GANTRY_TYPE_FLOAT32,  GANTRY_TYPE_FLOAT64};
	static const int ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 31, 65, 128, 300};

	EACH_ROW (t, types) {
		EACH_ROW (k, ranks) {
			const struct pcoll_data d = {.what = PCOLL_ALL_REDUCE,
						     .type = types[t],
						     .op = GANTRY_OP_AVG,
						     .nranks = ranks[k],
						     .seed = 3};
			int64_t worst = furthest_off(&d);

			printf("type %d, %d ranks: %d off, %d allowed\n", d.type, d.nranks, (int)worst,
			       pcoll_tolerance(&d));
			CHECK(worst <= pcoll_tolerance(&d));
			CHECK(ranks[k] > 8 || ranks[k] & (ranks[k] - 1) || !pcoll_tolerance(&d));
		}
	}
}

/* Copies of the host device, and how they go wrong: a rank that is alone has all-to-all with itself. */
static gantry_result (*right_copy)(struct gantry_device *, struct gantry_stream *, void *, const void *, size_t);
static enum { RIGHT, SHORT, LONG, SHIFTED, SOURCE, UNSTEADY } damage;
static int copies;

static gantry_result copy(struct gantry_device *dev, struct gantry_stream *s, void *dst, const void *src, size_t n)
{
	gantry_result r;

	if (damage == SHORT)
		n -= 4; /* the last element stays poisoned */
	else if (damage == LONG)
		n += 4; /* into the guard */
	else if (damage == SHIFTED)
		src = (const char *)src + 4;
	r = right_copy(dev, s, dst, src, n);
	gantry_stream_sync(dev, s);
	if (damage == SOURCE)
		((char *)(uintptr_t)src)[n / 2] ^= 1;
	if (damage == UNSTEADY && copies++ % 2)
		((char *)dst)[n / 2] ^= 1;
	return r;
}

static uint64_t wrong_after(int how)
{
	struct perf_comm_shared *all =
		perf_comm_map(&pcoll_op, &o.c, sizeof(struct pcoll_shared) + sizeof(struct pcoll_row));
	struct pcoll_shared *shared = all->own;
	struct perf_rank *rk = calloc(1, pcoll_op.rank_size);
	struct gantry_device *dev = NULL;
	struct gantry_device_ops ops;
	const struct gantry_device_ops *before;
	uint64_t wrong;

	shared->opts = &o;
	perf_rank_init(rk, all, 0);
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &dev));
	before = dev->ops;
	ops = *before;
	right_copy = ops.copy_async;
	ops.copy_async = copy;
	damage = how;
	copies = 0;
	dev->ops = &ops; /* one object per process: the rank gets the same */
	CHECK_OK(perf_rank_run(rk));
	dev->ops = before;
	gantry_device_close(dev);
	CHECK_EQ(shared->nrows, 1);
	wrong = shared->rows[0].place[PCOLL_OUT_OF_PLACE].wrong;
	CHECK_EQ(wrong != 0, shared->rows[0].first_wrong[0] != 0);
	printf("%d: %s\n", how, shared->rows[0].first_wrong);
	perf_comm_unmap(all);
	free(rk);
	return wrong;
}

TEST(damaged)
{
	CHECK_EQ(parse("gather --ranks 1 -b 1000 -e 1000 --in-place no --check-only"), -1);
	CHECK_EQ(wrong_after(RIGHT), 0);
	CHECK_EQ(wrong_after(SHORT), 2);    /* in each of the two runs */
	CHECK_EQ(wrong_after(LONG), 2);	    /* the guard, in both */
	CHECK(wrong_after(SHIFTED) > 490);  /* nearly all, of both */
	CHECK_EQ(wrong_after(SOURCE), 2);   /* the input */
	CHECK_EQ(wrong_after(UNSTEADY), 2); /* the element, and that the second run differs from the first */
	CHECK_EQ(parse("gather --ranks 1 -b 1000 -e 1000 --in-place no -c 0 -n 1 -w 1 --repeats 1"), -1);
	CHECK_EQ(wrong_after(SHORT), 0); /* nobody looks */
}
