/* SPDX-License-Identifier: Apache-2.0 */
/* Small numbers as elements of any type, by the definition of floats: sign, exponent, fraction. */
#ifndef GANTRY_TESTS_NUMBER_UTIL_H
#define GANTRY_TESTS_NUMBER_UTIL_H

#include "gantry/types.h"
#include "test.h"

/* h halves, |h| < 256; integers have whole ones. The test itself is wrong if they do not fit. */
static inline uint64_t number_bits(uint32_t type, int64_t h)
{
	static const struct {
		int exp, man;
	} floats[GANTRY_TYPE_COUNT] = {
		[GANTRY_TYPE_FLOAT16] = {5, 10}, [GANTRY_TYPE_FLOAT32] = {8, 23},   [GANTRY_TYPE_FLOAT64] = {11, 52},
		[GANTRY_TYPE_BFLOAT16] = {8, 7}, [GANTRY_TYPE_FLOAT8E4M3] = {4, 3}, [GANTRY_TYPE_FLOAT8E5M2] = {5, 2},
	};
	int exp = floats[type].exp, man = floats[type].man, e = 0;
	uint64_t sign = h < 0 ? 1ull << (exp + man) : 0, m = (uint64_t)(h < 0 ? -h : h);

	if (!exp)
		return (uint64_t)(h / 2);
	if (!m)
		return 0;
	while (m >> (e + 1))
		e++;
	CHECK(e <= man || (m & ((1ull << (e - man)) - 1)) == 0);
	m = e <= man ? m << (man - e) : m >> (e - man);
	return sign | ((1ull << (exp - 1)) - 1 + (uint64_t)e - 1) << man | (m & ((1ull << man) - 1));
}

/* These machines have the low byte first. */
static inline void number_put(void *p, uint32_t type, size_t bytes, int64_t h)
{
	uint64_t bits = number_bits(type, h);

	memcpy(p, &bits, bytes);
}

#endif
