/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element arithmetic against a reference that works differently: small floats are decoded by ldexp and encoded by
 * searching a table of all their values, sums and products are made in double and rounded by the compiler's cast,
 * integers in 128 bits modulo 2^n.
 */
#include "kernels/k_perf.h"

#include <math.h>

#include "test.h"

static const char *const type_names[] = {
#define NAME(name, number, bytes, text) text,
	GANTRY_TYPES(NAME)
#undef NAME
};

/* Small floats: `exp` and `man` bits, infinities or not ("fn"), saturating or not. */
struct format {
	uint32_t type;
	int exp, man, fn, sat, count;
	double values[32768]; /* of the non-negative finite numbers, ascending: index is the bits */
};
static struct format formats[] = {{.type = GANTRY_TYPE_FLOAT16, .exp = 5, .man = 10},
				  {.type = GANTRY_TYPE_BFLOAT16, .exp = 8, .man = 7},
				  {.type = GANTRY_TYPE_FLOAT8E4M3, .exp = 4, .man = 3, .fn = 1, .sat = 1},
				  {.type = GANTRY_TYPE_FLOAT8E5M2, .exp = 5, .man = 2, .sat = 1}};
enum { FORMATS = 4 };

static struct format *format_of(uint32_t type)
{
	for (int i = 0; i < FORMATS; i++)
		if (formats[i].type == type)
			return &formats[i];
	return NULL;
}
static uint32_t magnitudes(const struct format *f)
{
	return 1u << (f->exp + f->man);
}
static void make_format(struct format *f)
{
	int bias = (1 << (f->exp - 1)) - 1;

	f->count = (int)magnitudes(f) - (f->fn ? 1 : 1 << f->man);
	for (int v = 0; v < f->count; v++) {
		int e = v >> f->man, m = v & ((1 << f->man) - 1);

		f->values[v] = e ? ldexp((1 << f->man) + m, e - bias - f->man) : ldexp(m, 1 - bias - f->man);
	}
}
static double decode(const struct format *f, uint64_t bits)
{
	uint32_t mag = (uint32_t)bits & (magnitudes(f) - 1);
	double sign = bits >> (f->exp + f->man) & 1 ? -1 : 1;

	if ((int)mag < f->count)
		return sign * f->values[mag];
	return !f->fn && (int)mag == f->count ? sign * INFINITY : NAN;
}
/* Nearest, ties to the even index. NaN: any pattern that is one will do, see same(). */
static uint64_t encode(const struct format *f, double x)
{
	uint64_t sign = signbit(x) ? magnitudes(f) : 0;
	double top = f->values[f->count - 1], half = (top - f->values[f->count - 2]) / 2;
	int lo = 0, hi = f->count - 1;

	if (isnan(x))
		return magnitudes(f) - 1;
	x = fabs(x);
	if (x >= top)
		return sign | (uint64_t)(f->sat || x < top + half ? f->count - 1 : f->count);
	while (hi - lo > 1) {
		int mid = (lo + hi) / 2;

		if (f->values[mid] <= x)
			lo = mid;
		else
			hi = mid;
	}
	if (x - f->values[lo] == f->values[hi] - x)
		return sign | (uint64_t)(lo % 2 ? hi : lo);
	return sign | (uint64_t)(x - f->values[lo] < f->values[hi] - x ? lo : hi);
}

static uint64_t get(const void *p, uint32_t bytes)
{
	uint64_t v = 0;

	memcpy(&v, p, bytes);
	return v;
}
static void put(void *p, uint32_t bytes, uint64_t v)
{
	memcpy(p, &v, bytes);
}
static double as_double(uint32_t type, uint64_t v)
{
	struct format *f = format_of(type);
	float x;
	double y;

	if (f)
		return decode(f, v);
	if (type == GANTRY_TYPE_FLOAT32) {
		memcpy(&x, &v, 4);
		return x;
	}
	memcpy(&y, &v, 8);
	return y;
}
static uint64_t from_double(uint32_t type, double x)
{
	struct format *f = format_of(type);
	float y = (float)x;
	uint64_t v = 0;

	if (f)
		return encode(f, x);
	if (type == GANTRY_TYPE_FLOAT32)
		memcpy(&v, &y, 4);
	else
		memcpy(&v, &x, 8);
	return v;
}
static int is_float(uint32_t type)
{
	return format_of(type) || type == GANTRY_TYPE_FLOAT32 || type == GANTRY_TYPE_FLOAT64;
}

/* Rounded to the precision of computation. volatile: neither fused nor kept wider. */
static double computed(uint32_t type, double x)
{
	volatile double d = x;
	volatile float f = (float)x;

	return type == GANTRY_TYPE_FLOAT64 ? d : f;
}

/* A reduction of n elements of each source, the way types_dev.h says it. */
struct reduction {
	uint32_t type, op, nsrc, premul, last;
	uint64_t scalar;
};
enum { SOURCES = 9 };
static uint64_t divisor_of(const struct reduction *r)
{
	return r->scalar ? r->scalar : 1;
}
static double join_float(const struct reduction *r, double a, double b)
{
	switch (r->op) {
	case GANTRY_OP_PROD:
		return computed(r->type, a * b);
	case GANTRY_OP_MAX:
		return isnan(a) ? b : isnan(b) ? a : a > b ? a : b;
	case GANTRY_OP_MIN:
		return isnan(a) ? b : isnan(b) ? a : a < b ? a : b;
	default:
		return computed(r->type, a + b);
	}
}
static uint64_t reference_float(const struct reduction *r, const uint64_t *v)
{
	double acc = 0;

	for (uint32_t k = 0; k < r->nsrc; k++) {
		double x = as_double(r->type, v[k]);

		if (r->op == GANTRY_OP_PREMUL && k == r->premul)
			x = as_double(r->type,
				      from_double(r->type, computed(r->type, x * as_double(r->type, r->scalar))));
		if (r->op == DEV_OP_MEAN && k == r->premul)
			x = as_double(
				r->type,
				from_double(r->type,
					    computed(r->type, x * computed(r->type, 1.0 / (double)divisor_of(r)))));
		acc = k ? join_float(r, acc, x) : x;
	}
	if (r->op == GANTRY_OP_AVG && r->last)
		acc = computed(r->type, acc * computed(r->type, 1.0 / (double)divisor_of(r)));
	return from_double(r->type, acc);
}

static __int128 as_int(uint32_t type, unsigned __int128 v)
{
	uint32_t bits = 8 * dev_type_bytes(type);
	int is_signed = type == GANTRY_TYPE_INT8 || type == GANTRY_TYPE_INT32 || type == GANTRY_TYPE_INT64;

	v &= ((unsigned __int128)1 << bits) - 1;
	if (is_signed && v >> (bits - 1) & 1)
		return (__int128)v - ((__int128)1 << bits);
	return (__int128)v;
}
static uint64_t reference_int(const struct reduction *r, const uint64_t *v)
{
	unsigned __int128 scalar = (unsigned __int128)as_int(r->type, r->scalar);
	__int128 acc = 0;

	for (uint32_t k = 0; k < r->nsrc; k++) {
		__int128 x = as_int(r->type, v[k]);

		if (r->op == GANTRY_OP_PREMUL && k == r->premul)
			x = as_int(r->type, (unsigned __int128)x * scalar);
		if (k == 0)
			acc = x;
		else if (r->op == GANTRY_OP_PROD)
			acc = as_int(r->type, (unsigned __int128)acc * (unsigned __int128)x);
		else if (r->op == GANTRY_OP_MAX)
			acc = acc > x ? acc : x;
		else if (r->op == GANTRY_OP_MIN)
			acc = acc < x ? acc : x;
		else
			acc = as_int(r->type, (unsigned __int128)acc + (unsigned __int128)x);
	}
	return (uint64_t)(r->op == GANTRY_OP_AVG && r->last ? acc / (__int128)divisor_of(r) : acc);
}
static int only_copies(const struct reduction *r)
{
	return r->nsrc == 1 && !(r->op == GANTRY_OP_AVG && r->last) && !(dev_op_scales(r->op) && r->premul == 0);
}
static uint64_t reference(const struct reduction *r, const uint64_t *v)
{
	uint32_t bytes = dev_type_bytes(r->type);
	uint64_t result = only_copies(r) ? v[0] : is_float(r->type) ? reference_float(r, v) : reference_int(r, v);

	return bytes == 8 ? result : result & ((1ull << 8 * bytes) - 1);
}
static int same(uint32_t type, uint32_t op, uint64_t a, uint64_t b)
{
	if (a == b)
		return 1;
	if (!is_float(type))
		return 0;
	if (isnan(as_double(type, a)) && isnan(as_double(type, b)))
		return 1;
	/* Of 0 and -0 either is the largest and the smallest. */
	return (op == GANTRY_OP_MAX || op == GANTRY_OP_MIN) && as_double(type, a) == 0 && as_double(type, b) == 0;
}

/* Conversions. */

static float as_float(uint32_t type, uint64_t v)
{
	float f, g;

	switch (type) {
	case GANTRY_TYPE_FLOAT16:
		f = dev_f16_load((uint16_t)v);
		dev_f16_widen(&g, &v, 1);
		CHECK(memcmp(&f, &g, sizeof(f)) == 0 || (isnan(f) && isnan(g)));
		return f;
	case GANTRY_TYPE_BFLOAT16:
		return dev_bf16_load((uint16_t)v);
	case GANTRY_TYPE_FLOAT8E4M3:
		return dev_e4m3_load((uint8_t)v);
	default:
		return dev_e5m2_load((uint8_t)v);
	}
}
/* 16 at once, as the loops do it, and one by one. */
static void from_float(uint32_t type, const float *f, uint64_t *ret)
{
	uint16_t h[16], one;
	uint8_t b[16];

	switch (type) {
	case GANTRY_TYPE_FLOAT16:
		dev_f16_narrow(h, f, 16);
		break;
	case GANTRY_TYPE_BFLOAT16:
		dev_bf16_narrow(h, f, 16);
		break;
	case GANTRY_TYPE_FLOAT8E4M3:
		dev_e4m3_narrow(b, f, 16);
		break;
	default:
		dev_e5m2_narrow(b, f, 16);
	}
	for (int i = 0; i < 16; i++) {
		ret[i] = dev_type_bytes(type) == 2 ? h[i] : b[i];
		one = type == GANTRY_TYPE_FLOAT16      ? dev_f16_store(f[i])
		      : type == GANTRY_TYPE_BFLOAT16   ? dev_bf16_store(f[i])
		      : type == GANTRY_TYPE_FLOAT8E4M3 ? dev_e4m3_store(f[i])
						       : dev_e5m2_store(f[i]);
		if (!same(type, GANTRY_OP_SUM, one, ret[i]))
			TEST_FAIL("%s of %a: a loop makes %#llx, one alone %#x", type_names[type], f[i],
				  (unsigned long long)ret[i], one);
	}
}
static void check_store(const struct format *f, const float *x)
{
	uint64_t got[16];

	from_float(f->type, x, got);
	for (int i = 0; i < 16; i++) {
		uint64_t want = encode(f, x[i]);

		if (!same(f->type, GANTRY_OP_SUM, got[i], want))
			TEST_FAIL("%s of %a: %#llx, expected %#llx", type_names[f->type], x[i],
				  (unsigned long long)got[i], (unsigned long long)want);
	}
}

static void test_conversions(const struct format *f)
{
	float x[16];

	for (uint32_t v = 0; v < 2 * magnitudes(f); v++) {
		float got = as_float(f->type, v);
		double want = decode(f, v);

		if (isnan(want)) {
			CHECK(isnan(got));
		} else {
			CHECK(got == want);
			CHECK_EQ(signbit(got) != 0, signbit(want) != 0);
		}
		for (int i = 0; i < 16; i++)
			x[i] = got;
		if (!(f->sat && isinf(want))) {
			uint64_t back[16];

			from_float(f->type, x, back);
			CHECK(same(f->type, GANTRY_OP_SUM, back[3], v));
		}
	}
	/* Around every value and every midpoint. */
	for (int v = 0; v + 1 < f->count; v++) {
		float mid = (float)((f->values[v] + f->values[v + 1]) / 2), at = (float)f->values[v];
		float y[8] = {at,
			      nextafterf(at, INFINITY),
			      nextafterf(at, -1),
			      mid,
			      nextafterf(mid, INFINITY),
			      nextafterf(mid, -1),
			      nextafterf(nextafterf(mid, INFINITY), INFINITY),
			      at + (mid - at) / 3};

		for (int i = 0; i < 16; i++)
			x[i] = i < 8 ? y[i] : -y[i - 8];
		check_store(f, x);
	}
	for (int k = 0; k < 20000; k++) {
		for (int i = 0; i < 16; i++) {
			uint32_t bits = (uint32_t)random_next();

			memcpy(&x[i], &bits, 4);
		}
		check_store(f, x);
	}
	{
		double top = f->values[f->count - 1], half = (top - f->values[f->count - 2]) / 2;
		float edge = (float)(top + half < 3e38 ? top + half : 3.4e38);
		float y[16] = {0.0f,
			       -0.0f,
			       INFINITY,
			       -INFINITY,
			       NAN,
			       -NAN,
			       3.4028234e38f,
			       -3.4028234e38f,
			       edge,
			       nextafterf(edge, 0),
			       nextafterf(edge, INFINITY),
			       -edge,
			       1e-45f,
			       -1e-45f,
			       1e-38f,
			       65536.0f};

		check_store(f, y);
	}
}

/* Known by heart, so that reference and code cannot be wrong together. */
TEST(test_landmarks)
{
	CHECK_EQ(dev_f16_store(1.0f), 0x3c00);
	CHECK_EQ(dev_f16_store(65504.0f), 0x7bff);
	CHECK_EQ(dev_f16_store(65519.0f), 0x7bff);
	CHECK_EQ(dev_f16_store(65520.0f), 0x7c00);
	CHECK_EQ(dev_f16_store(5.9604645e-8f), 1);
	CHECK_EQ(dev_bf16_store(1.0f), 0x3f80);
	CHECK_EQ(dev_bf16_store(3.0e38f), 0x7f62);
	CHECK_EQ(dev_bf16_store(3.4e38f), 0x7f80);
	CHECK_EQ(dev_e4m3_store(1.0f), 0x38);
	CHECK_EQ(dev_e4m3_store(448.0f), 0x7e);
	CHECK_EQ(dev_e4m3_store(1e9f), 0x7e);
	CHECK_EQ(dev_e4m3_store(-INFINITY), 0xfe);
	CHECK_EQ(dev_e4m3_store(NAN) & 0x7f, 0x7f);
	CHECK_EQ(dev_e4m3_store(0.001953125f), 0x01);
	CHECK_EQ(dev_e5m2_store(1.0f), 0x3c);
	CHECK_EQ(dev_e5m2_store(57344.0f), 0x7b);
	CHECK_EQ(dev_e5m2_store(INFINITY), 0x7b);
	CHECK(dev_e4m3_load(0x7e) == 448.0f);
	CHECK(dev_e5m2_load(0x7b) == 57344.0f);
	CHECK(isinf(dev_e5m2_load(0x7c)));
	CHECK(isnan(dev_e5m2_load(0x7d)));
}

/* Reductions. */

static uint64_t special(uint32_t type, uint64_t k)
{
	static const double floats[] = {0.0,	 -0.0,	  INFINITY, -INFINITY, NAN,  1.0,   -1.0,	 448.0,
					57344.0, 65504.0, 3.4e38,   1e-45,     6e-8, -6e-8, 0.001953125, 1.7e308};
	static const uint64_t ints[] = {0, 1, UINT64_MAX, INT64_MAX, 1ull << 63, 127, 128, 1ull << 31, INT32_MAX, 255};

	return is_float(type) ? from_double(type, floats[k % 16]) : ints[k % 10];
}
/* Mostly numbers of like size, so that sums round in interesting ways; some specials; some any bits. */
static uint64_t element(uint32_t type)
{
	uint64_t r = random_next();

	if (r % 8 == 0)
		return special(type, r >> 8);
	if (r % 8 == 1 || !is_float(type))
		return random_next();
	return from_double(type, (double)(int64_t)random_next() / 9e18 * (r % 8 == 2 ? 1000 : 4));
}
static uint64_t scalar_for(uint32_t type, uint32_t op)
{
	if (op == GANTRY_OP_AVG || op == DEV_OP_MEAN)
		return random_next() % 14;
	return is_float(type) ? from_double(type, 0.3125) : random_next() % 5 - 2;
}

static void check_result(const struct reduction *r, uint64_t i, const uint64_t *v, uint64_t got)
{
	uint64_t want = reference(r, v);

	if (!same(r->type, r->op, got, want))
		TEST_FAIL("%s, operation %u of %u sources, premul %u, last %u, scalar %#llx, element %llu: of %#llx, "
			  "%#llx, "
			  "%#llx ... %#llx, expected %#llx",
			  type_names[r->type], r->op, r->nsrc, r->premul, r->last, (unsigned long long)r->scalar,
			  (unsigned long long)i, (unsigned long long)v[0], (unsigned long long)v[1],
			  (unsigned long long)v[2], (unsigned long long)got, (unsigned long long)want);
}

/* What a reduction is made with besides, and how. */
struct how {
	uint32_t ndst, lanes;
	uint32_t blocks; /* not 0: as k_reduce, with so many */
	uint32_t words;	 /* not 0: as dev_words_reduce, with so many */
	uint32_t alias;	 /* destination 0 is that source; no such source: none */
	uint64_t count;
	uint64_t shift, apart; /* bytes off alignment: all, and each destination from the one before */
};
enum { PLACES = 3, MAX_BYTES = 3 * DEV_PIECE + 256, MARGIN = 128 };
static char sources[SOURCES][MAX_BYTES + MARGIN], kept[SOURCES][MAX_BYTES + MARGIN], places[PLACES][MAX_BYTES + MARGIN];

/* Lanes and blocks do not talk to each other here, so one thread plays them all. */
static void reduce(const struct reduction *r, const struct how *h, const char *const *srcs, char *const *dsts)
{
	struct dev_reduction d = {srcs, dsts, r->nsrc, h->ndst, r->type, r->op, r->scalar, r->premul, r->last};
	struct gantry_reduce_args args = {.nsrc = r->nsrc,
					  .ndst = h->ndst,
					  .count = h->count,
					  .type = r->type,
					  .op = r->op,
					  .scalar = r->scalar,
					  .last = r->last};
	uint32_t blocks = h->blocks ? h->blocks : 1;
	struct dev_team team = {.lanes = h->lanes};

	for (uint32_t k = 0; k < r->nsrc && k < GANTRY_REDUCE_MOST; k++)
		args.src[k] = srcs[k];
	for (uint32_t k = 0; k < h->ndst; k++)
		args.dst[k] = dsts[k];
	for (uint32_t block = 0; block < blocks; block++)
		for (uint32_t lane = 0; lane < h->lanes; lane++) {
			dev_self = (struct dev_thread){.lane = lane,
						       .lanes = h->lanes,
						       .block = block,
						       .blocks = blocks,
						       .team = h->lanes > 1 ? &team : NULL};
			if (h->words)
				dev_words_reduce(&d, h->words);
			else if (h->blocks)
				k_reduce(&args);
			else
				dev_reduce_copy(&d, h->count);
		}
	dev_self = (struct dev_thread){.lanes = 1, .blocks = 1};
}

static void check_reduce(const struct reduction *r, const struct how *h)
{
	uint32_t bytes = dev_type_bytes(r->type);
	uint64_t v[SOURCES] = {0}, size = h->count * bytes;
	const char *srcs[SOURCES];
	char *dsts[PLACES];

	CHECK(h->shift + PLACES * h->apart + size + 1 <= sizeof(sources[0]));
	for (uint32_t k = 0; k < r->nsrc; k++) {
		for (uint64_t i = 0; i < h->count; i++)
			put(sources[k] + h->shift + i * bytes, bytes, element(r->type));
		memcpy(kept[k], sources[k], h->shift + size);
		srcs[k] = sources[k] + h->shift;
	}
	for (uint32_t k = 0; k < h->ndst; k++) {
		memset(places[k], 0x5a, sizeof(places[k]));
		dsts[k] = places[k] + h->shift + k * h->apart;
	}
	if (h->alias < r->nsrc)
		dsts[0] = sources[h->alias] + h->shift;
	reduce(r, h, srcs, dsts);
	for (uint64_t i = 0; i < h->count; i++) {
		for (uint32_t k = 0; k < r->nsrc; k++)
			v[k] = get(kept[k] + h->shift + i * bytes, bytes);
		for (uint32_t k = 0; k < h->ndst; k++)
			check_result(r, i, v, get(dsts[k] + i * bytes, bytes));
	}
	for (uint32_t k = 0; k < h->ndst; k++)
		if (k || h->alias >= r->nsrc) {
			CHECK_EQ(dsts[k][-1], 0x5a);
			CHECK_EQ(dsts[k][size], 0x5a);
		}
	for (uint32_t k = 0; k < r->nsrc; k++)
		if (k != h->alias)
			CHECK(memcmp(sources[k] + h->shift, kept[k] + h->shift, size) == 0);
}

/* Of every kind of size: nothing, less than a vector, some, with and without a rest. */
static uint64_t some_count(void)
{
	uint64_t r = random_next();

	return r % 4 == 0 ? r / 4 % 8 : r % 4 == 1 ? 32 * (r / 4 % 5) : r / 4 % 200;
}
static void check_some(uint32_t type, uint32_t op, uint32_t nsrc, uint32_t premul)
{
	uint32_t bytes = dev_type_bytes(type);
	struct reduction r = {.type = type,
			      .op = op,
			      .nsrc = nsrc,
			      .premul = premul,
			      .last = (uint32_t)random_next() % 2,
			      .scalar = scalar_for(type, op)};
	struct how h = {.ndst = 1 + (uint32_t)random_next() % PLACES,
			.lanes = 1 + (uint32_t)random_next() % 3,
			.alias = (uint32_t)random_next() % (nsrc + 2),
			.count = some_count(),
			.shift = 16 + random_next() % 16 * bytes,
			.apart = random_next() % 3 * bytes};

	if (premul == 0 && nsrc <= GANTRY_REDUCE_MOST)
		h.blocks = (uint32_t)random_next() % 3;
	check_reduce(&r, &h);
	h.lanes = h.ndst = 1;
	h.blocks = 0;
	h.words = 1 + (uint32_t)random_next() % 64;
	h.count = h.words * 8 / bytes;
	h.shift = 16;
	check_reduce(&r, &h);
}
/* Sources at every index for PREMUL; one more is none of them. */
static void test_reduce(uint32_t type)
{
	uint64_t most = MAX_BYTES / dev_type_bytes(type) - 64;

	for (uint32_t op = 0; op <= (dev_type_small(type) ? DEV_OP_MEAN : GANTRY_OP_PREMUL); op++)
		for (uint32_t nsrc = 1; nsrc <= SOURCES; nsrc++) {
			for (uint32_t premul = 0; premul < nsrc; premul++)
				check_some(type, op, nsrc, premul);
			check_some(type, op, nsrc, DEV_PREMUL_NONE);
			/* In place, every source. */
			for (uint32_t k = 0; k < nsrc; k++)
				check_reduce(
					&(struct reduction){type, op, nsrc, nsrc - 1 - k, 1, scalar_for(type, op)},
					&(struct how){.ndst = 2, .lanes = 1, .alias = k, .count = 77, .shift = 16});
		}
	/* More than a piece. */
	check_reduce(&(struct reduction){type, GANTRY_OP_SUM, 3, 0, 1, 0},
		     &(struct how){.ndst = 2, .lanes = 1, .alias = 2, .count = most, .shift = 16});
	check_reduce(&(struct reduction){type, GANTRY_OP_MAX, 2, 0, 1, 0},
		     &(struct how){.ndst = 1, .lanes = 3, .alias = SOURCES, .count = most - 3, .shift = 24});
	check_reduce(&(struct reduction){type, GANTRY_OP_PROD, 5, 0, 1, 0},
		     &(struct how){.ndst = 2, .lanes = 1, .alias = 3, .count = most - 3, .shift = 24, .apart = 8});
	check_reduce(&(struct reduction){type, GANTRY_OP_AVG, 4, 0, 1, 3},
		     &(struct how){.ndst = 3, .lanes = 1, .alias = 1, .blocks = 2, .count = most - 1, .shift = 16});
	check_reduce(&(struct reduction){type, GANTRY_OP_SUM, 1, 0, 1, 0},
		     &(struct how){.ndst = 3, .lanes = 2, .alias = SOURCES, .count = most - 2, .shift = 16});
}

/* The 8-bit types have few enough pairs to try them all. */
static void test_all_pairs(uint32_t type)
{
	uint8_t a[256], b[256], d[256];
	const char *srcs[2] = {(char *)a, (char *)b};
	char *dst = (char *)d;

	for (uint32_t op = 0; op <= (dev_type_small(type) ? DEV_OP_MEAN : GANTRY_OP_PREMUL); op++)
		for (int x = 0; x < 256; x++) {
			struct reduction r = {type, op, 2, (uint32_t)x % 2, 1, scalar_for(type, op)};

			for (int y = 0; y < 256; y++) {
				a[y] = (uint8_t)x;
				b[y] = (uint8_t)y;
			}
			reduce(&r, &(struct how){.ndst = 1, .lanes = 1, .count = 256}, srcs, &dst);
			for (int y = 0; y < 256; y++)
				check_result(&r, (uint64_t)y, (uint64_t[3]){(uint64_t)x, (uint64_t)y}, d[y]);
		}
}

/* One reduction of single elements, as a double. */
static double reduce_numbers(const struct reduction *r, const double *x)
{
	uint64_t v[SOURCES], result = 0;
	const char *srcs[SOURCES];
	char *dst = (char *)&result;

	for (uint32_t k = 0; k < r->nsrc; k++) {
		v[k] = from_double(r->type, x[k]);
		CHECK(as_double(r->type, v[k]) == x[k]);
		srcs[k] = (char *)&v[k];
	}
	reduce(r, &(struct how){.ndst = 1, .lanes = 1, .count = 1}, srcs, &dst);
	return as_double(r->type, result);
}

/* Sums that a float holds exactly: the result is the exact sum, rounded once. */
TEST(small_floats_round_once)
{
	for (int i = 0; i < FORMATS; i++)
		for (int round = 0; round < 3000; round++) {
			const struct format *f = &formats[i];
			struct reduction r = {f->type, GANTRY_OP_SUM, 2 + (uint32_t)round % 8, DEV_PREMUL_NONE, 1, 0};
			double x[SOURCES], sum = 0, got, want;

			for (uint32_t k = 0; k < r.nsrc; k++) {
				int64_t m = (int64_t)(random_next() % (4u << f->man)) - (2 << f->man);

				sum += x[k] = ldexp((double)m, (int)(random_next() % 4));
			}
			got = reduce_numbers(&r, x);
			want = decode(f, encode(f, sum));
			if (got != want)
				TEST_FAIL("%s: a sum of %u is %g, expected %g rounded: %g", type_names[f->type], r.nsrc,
					  got, sum, want);
		}
}
/* With a rounding at every step the first two are 256 and infinity; a product is rounded, to 1.25 here. */
TEST(small_floats_by_heart)
{
	struct reduction sum = {GANTRY_TYPE_BFLOAT16, GANTRY_OP_SUM, 3, DEV_PREMUL_NONE, 1, 0};
	struct reduction avg = {GANTRY_TYPE_FLOAT16, GANTRY_OP_AVG, 3, DEV_PREMUL_NONE, 1, 2};
	struct reduction premul = {GANTRY_TYPE_FLOAT8E4M3, GANTRY_OP_PREMUL, 2, 1, 1, 0x39}; /* 1.125 */

	CHECK(reduce_numbers(&sum, (double[]){256, 1, 1}) == 258);
	CHECK(reduce_numbers(&avg, (double[]){65504, 65504, -65504}) == 32752);
	CHECK(reduce_numbers(&premul, (double[]){-1.25, 1.125}) == 0);
	premul.premul = 0;
	CHECK(reduce_numbers(&premul, (double[]){1.125, -1.25}) == 0);
}

TEST(all_formats)
{
	for (int i = 0; i < FORMATS; i++)
		test_conversions(&formats[i]);
}

TEST(all_types)
{
	for (uint32_t type = 0; type < GANTRY_TYPE_COUNT; type++) {
		CASE("type %u", type);
		if (dev_type_bytes(type) == 1)
			test_all_pairs(type);
		test_reduce(type);
	}
}

void tests_begin(void)
{
	for (int i = 0; i < FORMATS; i++)
		make_format(&formats[i]);
}
