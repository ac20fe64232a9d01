/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of `gantry perf`: sizes, medians, iteration counts, message contents. */
#include <math.h>

#include "perf_util.h"
#include "test.h"

TEST(sizes)
{
	uint64_t s[8];

	CHECK_EQ(perf_sizes(64, 64 << 20, 4, s, 8), 8); /* there are eleven: cut at the room */
	CHECK_EQ(s[7], 64 << 14);
	CHECK_EQ(perf_sizes(1, 1000, 10, s, 8), 4);
	CHECK_EQ(s[3], 1000);
	CHECK_EQ(perf_sizes(7, 7, 2, s, 8), 1);
	CHECK_EQ(s[0], 7);
	CHECK_EQ(perf_sizes(3, 10, 2, s, 8), 2);
	CHECK_EQ(s[1], 6);
	CHECK_EQ(perf_sizes(8, 7, 2, s, 8), 0);
	/* The largest sizes must not wrap around. */
	CHECK_EQ(perf_sizes(UINT64_MAX / 2, UINT64_MAX, 4, s, 8), 1);
}

TEST(medians)
{
	double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, one[] = {7}, bad[] = {1, NAN, 2};

	CHECK(perf_median(odd, 3) == 3);
	CHECK(perf_median(even, 4) == 2.5);
	CHECK(perf_median(one, 1) == 7);
	CHECK(isnan(perf_median(bad, 3)));
	CHECK(isnan(perf_median(one, 0)));
}

TEST(iterations)
{
	CHECK_EQ(perf_next_iters(100, 1000, 2000, 1, 1000), 200);
	CHECK_EQ(perf_next_iters(100, 1000, 500, 1, 1000), 50);
	CHECK_EQ(perf_next_iters(100, 1000, 1000000, 1, 100000), 800); /* at most eightfold */
	CHECK_EQ(perf_next_iters(100, 0, 1000, 1, 100000), 800);
	CHECK_EQ(perf_next_iters(100, 1000000, 1000, 16, 1000), 16);
	CHECK_EQ(perf_next_iters(100, 1000, 8000, 1, 300), 300);
}

/* Every single wrong byte is one, whatever the size and the address. */
TEST(contents)
{
	unsigned char buf[128 + 16];

	for (size_t size = 0; size <= 128; size++) {
		unsigned char *p = buf + size % 9;

		memset(buf, 0xa5, sizeof(buf));
		perf_fill(p, size, 42);
		CHECK_EQ(perf_check(p, size, 42), 0);
		CHECK_EQ(perf_first_wrong(p, size, 42), size);
		CHECK_EQ(p[size], 0xa5); /* nothing beyond the end */
		for (size_t i = 0; i < size; i++) {
			p[i] ^= 1;
			CHECK_EQ(perf_check(p, size, 42), 1);
			CHECK_EQ(perf_first_wrong(p, size, 42), i);
			p[i] ^= 1;
		}
	}
}

/* A message in another's place, an old one and a shifted one are seen as almost all wrong. */
TEST(confusion)
{
	static unsigned char buf[4096 + 8], other[4096];

	perf_fill(buf, 4096, 1);
	CHECK(perf_check(buf, 4096, 2) > 4000);
	CHECK(perf_check(buf, 4088, 1) > 4000);
	memmove(other, buf + 8, 4088);
	CHECK(perf_check(other, 4088, 1) > 4000);
	/* Two words swapped: at most 16 bytes differ, and all of them are likely to. */
	perf_fill(buf, 64, 3);
	memcpy(other, buf + 8, 8);
	memmove(buf + 8, buf + 16, 8);
	memcpy(buf + 16, other, 8);
	CHECK(perf_check(buf, 64, 3) >= 8);
}

TEST(stamps)
{
	unsigned char buf[65];

	for (size_t size = 0; size <= 64; size++) {
		size_t stamped = size < 8 ? size : size < 16 ? 8 : 16;

		memset(buf, 0, sizeof(buf));
		perf_stamp(buf, size, 9);
		CHECK_EQ(perf_stamp_check(buf, size, 9), 0);
		CHECK_EQ(perf_stamp_first_wrong(buf, size, 9), size);
		CHECK_EQ(buf[size], 0);
		for (size_t i = 0; i < size; i++) {
			int seen = i < 8 || (size >= 16 && i >= size - 8);

			buf[i] ^= 1;
			CHECK_EQ(perf_stamp_first_wrong(buf, size, 9), seen ? i : size);
			buf[i] ^= 1;
		}
		memset(buf, 0, sizeof(buf));
		perf_stamp(buf, size, 9);
		for (size_t i = 0; i < size; i++)
			buf[i] = (unsigned char)~buf[i];
		CHECK_EQ(perf_stamp_check(buf, size, 9), stamped);
	}
	perf_stamp(buf, 64, 1);
	CHECK(perf_stamp_check(buf, 64, 2) > 8);
}

TEST(machine)
{
	char text[256];

	perf_machine(text, sizeof(text));
	CHECK_HAS(text, "Linux");
	printf("%s\n", text);
}
