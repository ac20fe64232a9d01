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
static uint64_t reference_float(uint32_t type, uint32_t step, uint64_t av, uint64_t bv, uint64_t scalar)
{
	double a = as_double(type, av), b = as_double(type, bv), s = as_double(type, scalar), r;

	switch (step) {
	case DEV_RED_SUM:
		return from_double(type, computed(type, a + b));
	case DEV_RED_PROD:
		return from_double(type, computed(type, a * b));
	case DEV_RED_MAX:
		return from_double(type, isnan(a) ? b : isnan(b) ? a : a > b ? a : b);
	case DEV_RED_MIN:
		return from_double(type, isnan(a) ? b : isnan(b) ? a : a < b ? a : b);
	case DEV_RED_PREMUL:
		r = as_double(type, from_double(type, computed(type, a * s)));
		return from_double(type, computed(type, r + b));
	case DEV_RED_AVG:
		r = computed(type, a + b);
		return from_double(type, computed(type, r * computed(type, 1.0 / (double)scalar)));
	case DEV_RED_SCALE:
		return from_double(type, computed(type, a * s));
	default:
		return from_double(type, computed(type, a * computed(type, 1.0 / (double)scalar)));
	}
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
static uint64_t reference_int(uint32_t type, uint32_t step, uint64_t av, uint64_t bv, uint64_t scalar)
{
	__int128 a = as_int(type, av), b = as_int(type, bv), n = (__int128)scalar;
	unsigned __int128 ua = (unsigned __int128)a, ub = (unsigned __int128)b,
			  us = (unsigned __int128)as_int(type, scalar);

	switch (step) {
	case DEV_RED_SUM:
		return (uint64_t)as_int(type, ua + ub);
	case DEV_RED_PROD:
		return (uint64_t)as_int(type, ua * ub);
	case DEV_RED_MAX:
		return (uint64_t)(a > b ? a : b);
	case DEV_RED_MIN:
		return (uint64_t)(a < b ? a : b);
	case DEV_RED_PREMUL:
		return (uint64_t)as_int(type, ua * us + ub);
	case DEV_RED_AVG:
		return (uint64_t)(as_int(type, ua + ub) / n);
	case DEV_RED_SCALE:
		return (uint64_t)as_int(type, ua * us);
	default:
		return (uint64_t)(a / n);
	}
}
static uint64_t reference(uint32_t type, uint32_t step, uint64_t a, uint64_t b, uint64_t scalar)
{
	uint32_t bytes = dev_type_bytes(type);
	uint64_t v =
		is_float(type) ? reference_float(type, step, a, b, scalar) : reference_int(type, step, a, b, scalar);

	return bytes == 8 ? v : v & ((1ull << 8 * bytes) - 1);
}
static int same(uint32_t type, uint32_t step, uint64_t a, uint64_t b)
{
	if (a == b)
		return 1;
	if (!is_float(type))
		return 0;
	if (isnan(as_double(type, a)) && isnan(as_double(type, b)))
		return 1;
	/* Of 0 and -0 either is the largest and the smallest. */
	return (step == DEV_RED_MAX || step == DEV_RED_MIN) && as_double(type, a) == 0 && as_double(type, b) == 0;
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
		if (!same(type, DEV_RED_SUM, one, ret[i]))
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

		if (!same(f->type, DEV_RED_SUM, got[i], want))
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
			CHECK(same(f->type, DEV_RED_SUM, back[3], v));
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

/* Steps. */

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
static uint64_t scalar_for(uint32_t type, uint32_t step)
{
	if (step == DEV_RED_AVG || step == DEV_RED_DIV)
		return 1 + random_next() % 13;
	return is_float(type) ? from_double(type, 0.3125) : random_next() % 5 - 2;
}

static void wrong(uint32_t type, uint32_t step, uint64_t i, uint64_t a, uint64_t b, uint64_t got, uint64_t want)
{
	TEST_FAIL("%s step %u, element %llu: of %#llx and %#llx %#llx, expected %#llx", type_names[type], step,
		  (unsigned long long)i, (unsigned long long)a, (unsigned long long)b, (unsigned long long)got,
		  (unsigned long long)want);
}

/* n elements, `shift` elements off alignment. place 0: apart, 1: d is a, 2: d is b. */
static void check_step(uint32_t type, uint32_t step, uint64_t n, uint64_t shift, int place)
{
	static char bufs[3][16384 + 256], olds[2][16384 + 256];
	uint32_t bytes = dev_type_bytes(type);
	uint64_t scalar = scalar_for(type, step), at = shift * bytes;
	char *a = bufs[0] + at, *b = bufs[1] + at, *d = place == 1 ? a : place == 2 ? b : bufs[2] + at;

	for (uint64_t i = 0; i < n + 1; i++) {
		put(a + i * bytes, bytes, element(type));
		put(b + i * bytes, bytes, element(type));
	}
	memcpy(olds, bufs, sizeof(olds));
	memset(bufs[2], 0x5a, sizeof(bufs[2]));
	dev_step(type, step, d, a, b, n, scalar);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t x = get(olds[0] + at + i * bytes, bytes), y = get(olds[1] + at + i * bytes, bytes);
		uint64_t got = get(d + i * bytes, bytes), want = reference(type, step, x, y, scalar);

		if (!same(type, step, got, want))
			wrong(type, step, i, x, y, got, want);
	}
	if (place == 0)
		CHECK_EQ(get(d + n * bytes, 1), 0x5a);
}

static void test_steps(uint32_t type)
{
	for (uint32_t step = 0; step < DEV_REDS; step++) {
		for (uint64_t n = 0; n < 70; n++)
			check_step(type, step, n, n % 5, (int)(n % 3));
		for (int k = 0; k < 6; k++)
			check_step(type, step, 1900 + random_next() % 100, (uint64_t)k % 4, k % 3);
	}
}

/* The 8-bit types have few enough pairs to try them all. */
static void test_all_pairs(uint32_t type)
{
	uint8_t a[256], b[256], d[256];

	for (uint32_t step = DEV_RED_SUM; step <= DEV_RED_AVG; step++)
		for (int x = 0; x < 256; x++) {
			uint64_t scalar = scalar_for(type, step);

			for (int y = 0; y < 256; y++) {
				a[y] = (uint8_t)x;
				b[y] = (uint8_t)y;
			}
			dev_step(type, step, d, a, b, 256, scalar);
			for (int y = 0; y < 256; y++) {
				uint64_t want = reference(type, step, (uint64_t)x, (uint64_t)y, scalar);

				if (!same(type, step, d[y], want))
					wrong(type, step, 0, (uint64_t)x, (uint64_t)y, d[y], want);
			}
		}
}

/* Reductions of several sources to several places. */

enum { MAX_BYTES = 3 * DEV_PIECE + 256 };
static char sources[4][MAX_BYTES + 64], kept[4][MAX_BYTES + 64], places[3][MAX_BYTES + 64];

static uint64_t reduced(uint32_t type, uint32_t op, uint32_t nsrc, uint64_t at, uint64_t scalar, uint32_t first,
			uint32_t last, uint32_t *ret_step)
{
	uint32_t bytes = dev_type_bytes(type), step = DEV_RED_SUM;
	uint64_t acc = get(kept[0] + at, bytes);

	if (nsrc == 1 && op == GANTRY_OP_PREMUL && first)
		acc = reference(type, step = DEV_RED_SCALE, acc, acc, scalar);
	if (nsrc == 1 && op == GANTRY_OP_AVG && last)
		acc = reference(type, step = DEV_RED_DIV, acc, acc, scalar);
	for (uint32_t k = 1; k < nsrc; k++) {
		step = op == GANTRY_OP_PROD			      ? DEV_RED_PROD
		       : op == GANTRY_OP_MAX			      ? DEV_RED_MAX
		       : op == GANTRY_OP_MIN			      ? DEV_RED_MIN
		       : op == GANTRY_OP_PREMUL && k == 1 && first    ? DEV_RED_PREMUL
		       : op == GANTRY_OP_AVG && k == nsrc - 1 && last ? DEV_RED_AVG
								      : DEV_RED_SUM;
		acc = reference(type, step, acc, get(kept[k] + at, bytes), scalar);
	}
	*ret_step = step;
	return acc;
}

/* alias: destination 0 is that source, 4: none of them. As k_reduce with `blocks` if that is not 0. */
static void check_reduce(uint32_t type, uint32_t op, uint32_t nsrc, uint32_t ndst, uint64_t count, uint32_t lanes,
			 uint32_t alias, uint32_t last, uint32_t blocks)
{
	uint32_t bytes = dev_type_bytes(type), step;
	uint64_t shift = 16 + random_next() % 3 * bytes, step_kind = op == GANTRY_OP_AVG ? DEV_RED_AVG : DEV_RED_PREMUL;
	uint64_t scalar = scalar_for(type, (uint32_t)step_kind);
	struct dev_team team = {.lanes = lanes};
	struct dev_reduction r;
	struct gantry_reduce_args args = {
		.nsrc = nsrc, .ndst = ndst, .count = count, .type = type, .op = op, .scalar = scalar, .last = last};
	uint32_t first = blocks ? 1 : (uint32_t)random_next() % 2;

	for (uint32_t k = 0; k < nsrc; k++) {
		for (uint64_t i = 0; i < count; i++)
			put(sources[k] + shift + i * bytes, bytes, element(type));
		args.src[k] = sources[k] + shift;
	}
	memcpy(kept, sources, sizeof(kept));
	memset(places, 0x5a, sizeof(places));
	for (uint32_t k = 0; k < ndst; k++)
		args.dst[k] = k == 0 && alias < nsrc ? sources[alias] + shift : places[k] + shift + k * bytes;
	r = (struct dev_reduction){args.src, args.dst, nsrc, ndst, type, op, scalar, first, last};
	/* Lanes and blocks do not talk to each other here, so one thread plays them all. */
	for (uint32_t block = 0; block < (blocks ? blocks : 1); block++)
		for (uint32_t lane = 0; lane < lanes; lane++) {
			dev_self = (struct dev_thread){.lane = lane,
						       .lanes = lanes,
						       .block = block,
						       .blocks = blocks ? blocks : 1,
						       .team = lanes > 1 ? &team : NULL};
			if (blocks)
				k_reduce(&args);
			else
				dev_reduce_copy(&r, count);
		}
	for (uint64_t i = 0; i < count; i++) {
		uint64_t want = reduced(type, op, nsrc, shift + i * bytes, scalar, first, last, &step);

		for (uint32_t k = 0; k < ndst; k++) {
			uint64_t got = get(args.dst[k] + i * bytes, bytes);

			if (!same(type, step, got, want))
				wrong(type, step, i, nsrc, k, got, want);
		}
	}
	for (uint32_t k = 0; k < ndst; k++)
		if (args.dst[k] != sources[alias % 4] + shift)
			CHECK_EQ(args.dst[k][count * bytes], 0x5a);
	dev_self = (struct dev_thread){.lanes = 1, .blocks = 1};
}

static void test_reduce(uint32_t type)
{
	uint64_t most = MAX_BYTES / dev_type_bytes(type) - 64;

	for (uint32_t op = 0; op < GANTRY_OP_COUNT; op++)
		for (uint32_t nsrc = 1; nsrc <= 4; nsrc++)
			for (uint32_t ndst = 1; ndst <= 3; ndst++)
				check_reduce(type, op, nsrc, ndst, random_next() % 200, 1 + (uint32_t)random_next() % 3,
					     (uint32_t)random_next() % 5, (uint32_t)random_next() % 2,
					     (uint32_t)random_next() % 3);
	/* More than a piece. */
	check_reduce(type, GANTRY_OP_SUM, 3, 2, most, 1, 2, 1, 0);
	check_reduce(type, GANTRY_OP_MAX, 2, 1, most - 3, 3, 4, 1, 0);
	check_reduce(type, GANTRY_OP_AVG, 4, 3, most - 1, 1, 1, 1, 2);
	check_reduce(type, GANTRY_OP_SUM, 1, 3, most - 2, 2, 4, 1, 0);
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
		test_steps(type);
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
