/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launch for a list of fragments.
 *
 * With the whole GPU: short blocks, as many as it takes; the hardware starts one where another has ended. A warp has
 * one page, or several shorter fragments if there are enough of them to fill the GPU: what a warp costs must be paid
 * for. Fragments that are shorter still are better off with blocks that stay and have several items in flight.
 *
 * Beside others: few blocks, which leave the program its multiprocessors, and few warps. Each warp loads its
 * descriptors from the host's memory, and such loads come about 42 ns after one another however many there are.
 *
 * The numbers are measured, see docs/design/0007-unpack-kernel.md.
 */
#include "device/device.h"

enum { WARP = 32, PAGE = 4096, GRID_LANES = 128, GRID_WARPS = 20 /* that a multiprocessor runs at once */ };
enum { BESIDE_LANES = 128, BESIDE_BYTES = 32 << 10, BESIDE_BLOCKS = 32 };

static uint32_t up(uint64_t n, uint64_t unit, uint32_t most)
{
	uint64_t blocks = n / unit + (n % unit != 0);

	if (blocks > most)
		blocks = most;
	return blocks ? (uint32_t)blocks : 1;
}

/* Fragments of so many bytes for one warp of a short block; 0: blocks that stay do better. */
static uint64_t frags_per_warp(uint64_t mean)
{
	if (mean >= 3584)
		return 1;
	if (mean >= 2560)
		return 2;
	return mean >= 1792 ? 4 : 0;
}

static void whole(const struct gantry_device *dev, uint64_t n, uint64_t bytes, struct gantry_launch *l)
{
	const uint64_t pages = bytes / PAGE, fill = n / ((uint64_t)GRID_WARPS * dev->max_blocks);
	uint64_t per_warp = n ? frags_per_warp(bytes / n) : 1, warps;

	if (!per_warp) {
		l->blocks = up(n, dev->default_lanes / WARP, dev->max_blocks);
		return;
	}
	if (per_warp > fill)
		per_warp = fill ? fill : 1;
	warps = up(n, per_warp, INT32_MAX);
	if (n && bytes / n > PAGE) /* few and long: they are split */
		warps = pages;
	l->kernel = &gantry_kernel_unpack_grid;
	l->lanes = GRID_LANES;
	l->blocks = up(warps, GRID_LANES / WARP, INT32_MAX);
}

void gantry_unpack_launch_shape(const struct gantry_device *dev, enum gantry_unpack_room room, uint64_t n,
				uint64_t bytes, struct gantry_launch *l)
{
	l->kernel = &gantry_kernel_unpack;
	l->lanes = 0;
	if (dev->kind == GANTRY_DEVICE_HOST) {
		l->blocks = room == GANTRY_UNPACK_WHOLE ? dev->max_blocks : 1;
	} else if (room == GANTRY_UNPACK_WHOLE) {
		whole(dev, n, bytes, l);
	} else {
		l->lanes = BESIDE_LANES;
		l->blocks = up(bytes, BESIDE_BYTES, BESIDE_BLOCKS);
	}
}
