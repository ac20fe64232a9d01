/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes whose values tests know: patterns of messages, and little-endian numbers put together by hand. */
#ifndef GANTRY_TESTS_BYTES_H
#define GANTRY_TESTS_BYTES_H

#include "test.h"

/* Byte i of message `seed`: neighbours, pages and messages all differ. */
static inline uint8_t pattern_byte(uint64_t seed, uint64_t i)
{
	return (uint8_t)(i * 131 + (i >> 8) * 17 + (i >> 16) * 5 + seed * 59 + 7);
}

void pattern_fill(void *p, size_t n, uint64_t seed);

/* The first place where the bytes are not those of message `seed`, or n. */
size_t pattern_wrong_at(const void *p, size_t n, uint64_t seed);

/* All n bytes are those of message `seed`. */
#define CHECK_PATTERN(p, n, seed)                                                                                      \
	do {                                                                                                           \
		const uint8_t *check_p = (const uint8_t *)(p);                                                         \
		size_t check_n = (size_t)(n), check_at = pattern_wrong_at(check_p, check_n, (seed));                   \
		if (check_at != check_n)                                                                               \
			TEST_FAIL("byte %zu of %zu of %s is %u, expected %u", check_at, check_n, #p,                   \
				  check_p[check_at], pattern_byte((seed), check_at));                                  \
	} while (0)

/* All n bytes have this value: nothing was written there. */
size_t filled_until(const void *p, size_t n, uint8_t value);
#define CHECK_FILLED(p, n, value)                                                                                      \
	do {                                                                                                           \
		const uint8_t *check_p = (const uint8_t *)(p);                                                         \
		size_t check_n = (size_t)(n), check_at = filled_until(check_p, check_n, (value));                      \
		if (check_at != check_n)                                                                               \
			TEST_FAIL("byte %zu of %zu of %s is %u, expected it untouched", check_at, check_n, #p,         \
				  check_p[check_at]);                                                                  \
	} while (0)

void le_put(uint8_t *p, uint64_t v, int bytes);
uint64_t le_get(const uint8_t *p, int bytes);

#endif
