/* SPDX-License-Identifier: Apache-2.0 */
/* The pattern of pattern.h, written (fill) and checked (verify) by all lanes of all blocks. */
#ifndef GANTRY_KERNELS_K_FILL_H
#define GANTRY_KERNELS_K_FILL_H

#include "device/dev.h"
#include "kernels/bench.h"
#include "kernels/pattern.h"

DEV uint32_t k_fill_part(uint64_t bytes, uint64_t k)
{
	return bytes - 8 * k < 8 ? (uint32_t)(bytes - 8 * k) : 8;
}

DEV void k_fill(const struct gantry_fill_args *a)
{
	uint64_t seed = gantry_pattern_seed(a->bytes, a->seq), all = (uint64_t)dev_lanes() * dev_blocks();

	for (uint64_t k = (uint64_t)dev_block() * dev_lanes() + dev_lane(); 8 * k < a->bytes; k += all)
		dev_scatter8(a->dst + 8 * k, gantry_pattern_word(seed, k), k_fill_part(a->bytes, k));
}

DEV void k_verify(const struct gantry_verify_args *a)
{
	uint64_t seed = gantry_pattern_seed(a->bytes, a->seq), all = (uint64_t)dev_lanes() * dev_blocks();
	uint64_t differ, wrong = 0;
	uint32_t n;

	for (uint64_t k = (uint64_t)dev_block() * dev_lanes() + dev_lane(); 8 * k < a->bytes; k += all) {
		n = k_fill_part(a->bytes, k);
		differ = dev_gather8(a->src + 8 * k, n) ^ gantry_pattern_word(seed, k);
		if (n < 8)
			differ &= (1ull << 8 * n) - 1;
		for (; differ; differ >>= 8)
			wrong += (differ & 255) != 0;
	}
	if (wrong)
		dev_add(a->wrong, wrong);
}

#endif
