/* SPDX-License-Identifier: Apache-2.0 */
/* Which launch a list of fragments gets: the numbers that docs/design/0007-unpack-kernel.md has for a GPU. */
#include "device/device.h"

#include "test.h"

static const struct gantry_device gpu = {.kind = GANTRY_DEVICE_CUDA, .max_blocks = 132, .default_lanes = 512};
static const struct gantry_device host = {.kind = GANTRY_DEVICE_HOST, .max_blocks = 64, .default_lanes = 1};

static void check(const struct gantry_device *dev, enum gantry_unpack_room room, uint64_t n, uint64_t bytes,
		  const struct gantry_kernel *kernel, uint32_t blocks, uint32_t lanes)
{
	struct gantry_launch l = {.args_size = 77};

	gantry_unpack_launch_shape(dev, room, n, bytes, &l);
	CHECK_EQ(l.kernel, kernel);
	CHECK_EQ(l.blocks, blocks);
	CHECK_EQ(l.lanes, lanes);
	CHECK_EQ(l.args_size, 77);
}

static void whole(uint64_t n, uint64_t bytes, const struct gantry_kernel *kernel, uint32_t blocks, uint32_t lanes)
{
	check(&gpu, GANTRY_UNPACK_WHOLE, n, bytes, kernel, blocks, lanes);
}

TEST(launches)
{
	const uint64_t big = 512ull << 20;

	/* Pages, and nearly pages: a warp each, also where they do not fill the GPU. */
	whole(131072, big, &gantry_kernel_unpack_grid, 32768, 128);
	whole(131105, big, &gantry_kernel_unpack_grid, 32777, 128);
	whole(16, 65536, &gantry_kernel_unpack_grid, 4, 128);
	/* Segments of 8948 bytes: two a warp, 4-KiB pages and shorter ones; random lengths: four. */
	whole(179998, big, &gantry_kernel_unpack_grid, 22500, 128);
	whole(262000, big, &gantry_kernel_unpack_grid, 16375, 128);
	/* But one each of fewer than twice what runs at once, 2640. */
	whole(5000, 5000 * 2048, &gantry_kernel_unpack_grid, 1250, 128);
	whole(5280, 5280 * 2048, &gantry_kernel_unpack_grid, 660, 128);
	/* Short ones: blocks that stay, and no more than have something to do. */
	whole(370768, big, &gantry_kernel_unpack, 132, 0);
	whole(33, 33 * 100, &gantry_kernel_unpack, 3, 0);
	/* Long ones are split; nothing at all, and too much. */
	whole(2, 2 << 20, &gantry_kernel_unpack_grid, 128, 128);
	whole(0, 0, &gantry_kernel_unpack_grid, 1, 128);
	whole(1, 0, &gantry_kernel_unpack, 1, 0);
	whole(1, UINT64_MAX, &gantry_kernel_unpack_grid, INT32_MAX, 128);

	check(&gpu, GANTRY_UNPACK_BESIDE, 256, 1 << 20, &gantry_kernel_unpack, 32, 128);
	check(&gpu, GANTRY_UNPACK_BESIDE, 8192, 32 << 20, &gantry_kernel_unpack, 32, 128);
	check(&gpu, GANTRY_UNPACK_BESIDE, 16, 65536, &gantry_kernel_unpack, 2, 128);
	check(&gpu, GANTRY_UNPACK_BESIDE, 1, 0, &gantry_kernel_unpack, 1, 128);

	check(&host, GANTRY_UNPACK_WHOLE, 131072, big, &gantry_kernel_unpack, 64, 0);
	check(&host, GANTRY_UNPACK_BESIDE, 131072, big, &gantry_kernel_unpack, 1, 0);
}
