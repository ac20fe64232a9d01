/* SPDX-License-Identifier: Apache-2.0 */
/* float16, bfloat16 and float32 from their definition: sign, exponent, fraction. Rounding is libm's, in double. */
#ifndef GANTRY_TESTS_CONVERT_UTIL_H
#define GANTRY_TESTS_CONVERT_UTIL_H

#include <math.h>
#include <stdbool.h>

#include "gantry/types.h"
#include "test.h"

struct convert_format {
	enum gantry_type type;
	int bytes, exp, man;
};
static const struct convert_format formats[] = {
	{GANTRY_TYPE_FLOAT16, 2, 5, 10}, {GANTRY_TYPE_BFLOAT16, 2, 8, 7}, {GANTRY_TYPE_FLOAT32, 4, 8, 23}};

static inline uint32_t convert_infinity(const struct convert_format *f)
{
	return ((1u << f->exp) - 1) << f->man;
}
static inline uint32_t convert_sign(const struct convert_format *f)
{
	return 1u << (f->exp + f->man);
}
static inline bool convert_is_nan(const struct convert_format *f, uint32_t bits)
{
	return (bits & (convert_sign(f) - 1)) > convert_infinity(f);
}

/* Exact; not of a NaN. */
static inline double convert_value(const struct convert_format *f, uint32_t bits)
{
	const int bias = (1 << (f->exp - 1)) - 1, e = (int)((bits & (convert_sign(f) - 1)) >> f->man);
	const double fraction = (double)(bits & ((1u << f->man) - 1));
	double v = e ? ldexp(fraction + ldexp(1, f->man), e - bias - f->man) : ldexp(fraction, 1 - bias - f->man);

	if (e == (1 << f->exp) - 1)
		v = INFINITY;
	return bits & convert_sign(f) ? -v : v;
}
/* The nearest one, of two the even one. */
static inline uint32_t convert_nearest(const struct convert_format *f, double v)
{
	const int least = 2 - (1 << (f->exp - 1));
	const uint32_t sign = signbit(v) ? convert_sign(f) : 0;
	double units;
	int e;

	v = fabs(v);
	if (isinf(v))
		return sign | convert_infinity(f);
	frexp(v, &e);
	e = v == 0 || e - 1 < least ? least : e - 1;
	units = nearbyint(ldexp(v, f->man - e)) + ldexp(e - least, f->man);
	return sign | (units > convert_infinity(f) ? convert_infinity(f) : (uint32_t)units);
}

static inline uint32_t convert_get(const struct convert_format *f, const void *p)
{
	uint32_t bits = 0;

	memcpy(&bits, p, (size_t)f->bytes);
	return bits;
}

/* Element i as it is sent: all numbers of 16 bits in turn; of 32 those next to what ties, overflows or is subnormal in
 * the small types, and any others. */
static inline uint32_t convert_element(const struct convert_format *f, uint64_t seed, uint64_t i)
{
	static const uint32_t edges[] = {
		0x00000000, 0x80000000, 0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000, 0xff800000,
		0x7fc00000, 0x7f800001, 0xffc12345, 0x477fefff, 0x477ff000, 0x477ff001, 0x47800000, 0x477fe000,
		0xc77ff000, 0x33000000, 0x33000001, 0x32ffffff, 0x33800000, 0x33c00000, 0x387fc000, 0x38800000,
		0x387fffff, 0x3f801000, 0x3f803000, 0x3f801001, 0x3f800fff, 0x3f808000, 0x3f818000, 0x3f808001,
		0x7f7f8000, 0x7f7f7fff, 0x00008000, 0x00018000, 0x00007fff, 0x80008001, 0x3eaaaaab, 0x40490fdb};
	const uint64_t any = random_at(seed * 1000003 + i);

	if (f->bytes == 2)
		return (uint32_t)(i + seed * 4099) & 0xffff;
	if (i % 3 == 0)
		return edges[(i / 3 + seed) % TEST_COUNT(edges)];
	/* Of the small types' range, with the bits that rounding drops next to a half. */
	if (i % 3 == 1)
		return (uint32_t)(any & 0x80ffe000) | ((uint32_t)(0x33 + any % 22) << 24) | 0x0ff0 | (any >> 32 & 0x1f);
	return (uint32_t)any;
}
static inline void convert_fill(const struct convert_format *f, unsigned char *p, uint64_t n, uint64_t seed)
{
	for (uint64_t i = 0; i < n; i++) {
		const uint32_t bits = convert_element(f, seed, i);

		memcpy(p + i * (uint64_t)f->bytes, &bits, (size_t)f->bytes);
	}
}

static inline void convert_check(const struct convert_format *from, const struct convert_format *to, uint32_t sent,
				 uint32_t got, uint64_t i)
{
	if (convert_is_nan(from, sent)) {
		if (!convert_is_nan(to, got))
			TEST_FAIL("element %llu: NaN %#x became %#x", (unsigned long long)i, sent, got);
	} else if (got != convert_nearest(to, convert_value(from, sent))) {
		TEST_FAIL("element %llu: %#x (%.9g) of type %d became %#x of type %d, expected %#x",
			  (unsigned long long)i, sent, convert_value(from, sent), from->type, got, to->type,
			  convert_nearest(to, convert_value(from, sent)));
	}
}

#endif
