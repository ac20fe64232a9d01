/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs and results of reductions over up to four ranks that are exact in every type, two bits of fraction included. */
#ifndef GANTRY_TESTS_REDUCE_UTIL_H
#define GANTRY_TESTS_REDUCE_UTIL_H

#include "number_util.h"

static inline size_t element_bytes(uint32_t type)
{
	static const uint8_t bytes[] = {
#define BYTES(name, number, size, text) size,
		GANTRY_TYPES(BYTES)
#undef BYTES
	};

	return bytes[type];
}

static inline int64_t value(uint32_t op, uint32_t rank, size_t i)
{
	return op == GANTRY_OP_PROD ? 1 + (int64_t)((i + rank * 7) % 2) : (int64_t)((i * 5 + rank * (i / 3 + 1)) % 3);
}

static inline int64_t expected(uint32_t op, uint32_t n, size_t i)
{
	int64_t v = value(op, 0, i);

	for (uint32_t k = 1; k < n; k++) {
		int64_t x = value(op, k, i);

		v = op == GANTRY_OP_SUM	   ? v + x
		    : op == GANTRY_OP_PROD ? v * x
		    : op == GANTRY_OP_MAX  ? (x > v ? x : v)
					   : (x < v ? x : v);
	}
	return v;
}

static inline void fill_values(char *p, uint32_t type, uint32_t op, uint32_t rank, size_t count)
{
	for (size_t i = 0; i < count; i++)
		number_put(p + i * element_bytes(type), type, element_bytes(type), 2 * value(op, rank, i));
}

static inline void fill_expected(char *p, uint32_t type, uint32_t op, uint32_t n, size_t count)
{
	for (size_t i = 0; i < count; i++)
		number_put(p + i * element_bytes(type), type, element_bytes(type), 2 * expected(op, n, i));
}

#endif
