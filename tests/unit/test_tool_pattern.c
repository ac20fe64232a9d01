/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels FILL and VERIFY write and expect the very bytes of perf_fill and perf_check. */
#include "common/figures.h"
#include "device/host/host.h"
#include "device/work.h"
#include "kernels/bench.h"
#include "test.h"

/* Runs a kernel lane by lane: these two have no barriers. */
static void run(const struct gantry_kernel *kernel, const void *args, uint32_t blocks, uint32_t lanes)
{
	for (uint32_t i = 0; i < blocks * lanes; i++) {
		dev_self = (struct dev_thread){.lane = i % lanes, .lanes = lanes, .block = i / lanes, .blocks = blocks};
		kernel->body(args);
	}
}

static void check_same(uint64_t bytes, uint64_t seq, int off, uint32_t blocks, uint32_t lanes)
{
	FREED char *want = malloc(bytes + 16), *got = malloc(bytes + 16);
	struct gantry_fill_args fill = {got + off, bytes, seq};
	uint64_t wrong = 5;
	struct gantry_verify_args verify = {got + off, bytes, seq, &wrong};

	CHECK(want && got);
	memset(want, 0x5a, bytes + 16);
	memset(got, 0x5a, bytes + 16);
	perf_fill(want + off, bytes, seq);
	run(&gantry_kernel_fill, &fill, blocks, lanes);
	CHECK(memcmp(want, got, bytes + 16) == 0);
	CHECK_EQ(perf_check(got + off, bytes, seq), 0);
	run(&gantry_kernel_verify, &verify, blocks, lanes);
	CHECK_EQ(wrong, 5);
	for (uint64_t i = 0; i < bytes; i += 1 + i / 2) {
		got[off + (int)i] ^= 0x40;
		wrong = 0;
		run(&gantry_kernel_verify, &verify, blocks, lanes);
		CHECK_EQ(wrong, perf_check(got + off, bytes, seq));
		CHECK(wrong > 0);
	}
}

TEST(same_bytes)
{
	/* Computed by hand, so that the pattern stays what it is. */
	static const unsigned char nineteen[] = {0x16, 0x02, 0x38, 0xea, 0x99, 0xa4, 0x43, 0x58, 0x0f, 0x3b,
						 0x07, 0xbf, 0xfc, 0xb7, 0xcb, 0x47, 0x50, 0xe7, 0xcf};
	static const unsigned char end[] = {0x71, 0xc2, 0xe8, 0xe5, 0x82};
	static const uint64_t sizes[] = {0, 1, 7, 8, 9, 64, 1000, 4096, 65539};
	char buf[4096];
	struct gantry_fill_args fill = {buf, 19, 7};

	run(&gantry_kernel_fill, &fill, 1, 1);
	CHECK(memcmp(buf, nineteen, 19) == 0);
	perf_fill(buf, 4096, 3);
	CHECK(memcmp(buf + 4091, end, 5) == 0);
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (int off = 0; off < 9; off += 3) {
			check_same(sizes[s], s, off, 1, 1);
			check_same(sizes[s], s, off, 3, 1);
			check_same(sizes[s], s, off, 2, 5);
		}
}
