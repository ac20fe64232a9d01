/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that messages carry in measurements and tests: 8-byte words of a mixed counter that depend on the
 * message's number and size and on the position, so that a message in the wrong place, a stale one and a shifted one
 * are all seen. Filled and checked on the host by tools/common/figures.c and by kernels in k_perf.h.
 */
#ifndef GANTRY_KERNELS_PATTERN_H
#define GANTRY_KERNELS_PATTERN_H

#include "gantry/fifo.h"

GANTRY_FN uint64_t gantry_pattern_mix(uint64_t x)
{
	x *= 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	return x * 0xbf58476d1ce4e5b9u;
}
GANTRY_FN uint64_t gantry_pattern_seed(uint64_t size, uint64_t seq)
{
	return gantry_pattern_mix(seq ^ gantry_pattern_mix(size));
}
/* Bytes 8k to 8k + 7, in the byte order of the machine; a message that ends among them has the first of them. */
GANTRY_FN uint64_t gantry_pattern_word(uint64_t seed, uint64_t k)
{
	return gantry_pattern_mix(seed + k);
}

#endif
