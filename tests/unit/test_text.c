/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people read them. */
#include "base/text.h"
#include "test.h"

static void size_is(uint64_t bytes, const char *want)
{
	char buf[GANTRY_TEXT_MAX];

	CHECK_STR(gantry_size_text(bytes, buf, sizeof(buf)), want);
}

static void count_is(uint64_t n, const char *want)
{
	char buf[GANTRY_TEXT_MAX];

	CHECK_STR(gantry_count_text(n, "rank", buf, sizeof(buf)), want);
}

TEST(texts)
{
	size_is(0, "0 B");
	size_is(64, "64 B");
	size_is(1023, "1023 B");
	size_is(1024, "1 KiB");
	size_is(1025, "1025 B");
	size_is(4096, "4 KiB");
	size_is(100001, "100001 B");
	size_is(1048575, "1048575 B");
	size_is(16 << 20, "16 MiB");
	size_is((1 << 20) + (1 << 19), "1.5 MiB");
	size_is(68719476736, "64 GiB");
	size_is(1099511627776, "1 TiB");
	size_is(UINT64_MAX, "16.0 EiB");
	size_is(UINT64_C(1) << 63, "8 EiB");
	count_is(0, "0 ranks");
	count_is(1, "1 rank");
	count_is(2, "2 ranks");
}

TEST(text_is_added)
{
	char buf[8] = "";

	gantry_text_add(buf, sizeof(buf), "%s", "");
	CHECK_STR(buf, "");
	gantry_text_add(buf, sizeof(buf), "%d", 12);
	gantry_text_add(buf, sizeof(buf), "-%d", 3456);
	CHECK_STR(buf, "12-3456"); /* which just fits */
	gantry_text_add(buf, sizeof(buf), "%s", "");
	CHECK_STR(buf, "12-3456");
	gantry_text_add(buf, sizeof(buf), ", %d", 7);
	CHECK_STR(buf, "12-3...");
	gantry_text_add(buf, sizeof(buf), "x");
	CHECK_STR(buf, "12-3...");
}
