/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers, their counterparts, and the measure of misspelling. */
#include "base/param_text.h"

#include "base/param.h"
#include "test.h"

TEST(check_size)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"0", 0},
		{"1", 1},
		{"64k", 65536},
		{"64K", 65536},
		{"64kB", 65536},
		{"64KiB", 65536},
		{"7B", 7},
		{"1M", 1048576},
		{"2GiB", 2147483648},
		{"3T", 3298534883328},
		{"18446744073709551615", UINT64_MAX},
	};
	static const char *const bad[] = {
		"",	     " 1",   "1 ",  "-1",   "+1",     "k",  "1.5M", "1kk",
		"1Ki",	     "1kib", "1 k", "0x10", "1bytes", "BB", "1BB",  "18446744073709551616",
		"16777216T",
	};
	uint64_t v;

	EACH_ROW (i, good) {
		CHECK_OK(gantry_parse_size(good[i].text, &v));
		CHECK_EQ(v, good[i].bytes);
	}
	EACH_ROW (i, bad) {
		v = 42;
		CHECK_EQ(gantry_parse_size(bad[i], &v), GANTRY_ERR_INVALID);
		CHECK_EQ(v, 42);
	}
}

TEST(check_duration)
{
	static const struct {
		const char *text;
		uint64_t ns;
	} good[] = {
		{"0", 0},
		{"3", 3000000000},
		{"3s", 3000000000},
		{"500ms", 500000000},
		{"5us", 5000},
		{"7ns", 7},
		{"1m", 60000000000},
		{"24h", 86400000000000},
		{"0.5", 500000000},
		{"1.25ms", 1250000},
		{"0.000000001", 1},
		{"1.5h", 5400000000000},
		{"18446744073709551615ns", UINT64_MAX},
	};
	static const char *const bad[] = {
		"",
		"s",
		"-1s",
		"1 s",
		"1S",
		"1min",
		"1.s",
		".5",
		"1.5.5",
		"1d",
		"0.0000000001",
		"18446744074",
		"18446744073709551615.5h",
		"1e3",
	};
	uint64_t v;

	EACH_ROW (i, good) {
		CHECK_OK(gantry_parse_duration(good[i].text, &v));
		CHECK_EQ(v, good[i].ns);
	}
	EACH_ROW (i, bad) {
		v = 42;
		CHECK_EQ(gantry_parse_duration(bad[i], &v), GANTRY_ERR_INVALID);
		CHECK_EQ(v, 42);
	}
}

TEST(check_int_and_bool)
{
	static const char *const bad_ints[] = {"", "-", "+1", " 1", "1 ", "1x", "0x10", "--1", "9223372036854775808"};
	static const char *const bad_bools[] = {"", "2", "o", "yess", " 1", "10"};
	static const char *const yes[] = {"1", "on", "ON", "yes", "True"}, *const no[] = {"0", "off", "No", "false"};
	int64_t v = 42;
	int b = 42;

	CHECK_OK(gantry_parse_int("-9223372036854775808", &v));
	CHECK_EQ(v, INT64_MIN);
	CHECK_OK(gantry_parse_int("010", &v));
	CHECK_EQ(v, 10); /* decimal, not octal */
	EACH_ROW (i, bad_ints)
		CHECK_EQ(gantry_parse_int(bad_ints[i], &v), GANTRY_ERR_INVALID);
	CHECK_EQ(v, 10);
	EACH_ROW (i, bad_bools)
		CHECK_EQ(gantry_parse_bool(bad_bools[i], &b), GANTRY_ERR_INVALID);
	CHECK_EQ(b, 42);
	EACH_ROW (i, yes) {
		CHECK_OK(gantry_parse_bool(yes[i], &b));
		CHECK_EQ(b, 1);
	}
	EACH_ROW (i, no) {
		CHECK_OK(gantry_parse_bool(no[i], &b));
		CHECK_EQ(b, 0);
	}
}

TEST(check_format)
{
	static const uint64_t values[] = {0,	   1,	       1000,	   1024,	  1025,		  65536,
					  1500000, 1000000000, 1073741824, 3600000000000, 86400000000000, UINT64_MAX};
	char text[32];
	uint64_t back;

	gantry_format_size(65536, text, sizeof(text));
	CHECK_STR(text, "64k");
	gantry_format_size(1536, text, sizeof(text));
	CHECK_STR(text, "1536");
	gantry_format_size(3ull << 30, text, sizeof(text));
	CHECK_STR(text, "3G");
	gantry_format_duration(0, text, sizeof(text));
	CHECK_STR(text, "0");
	gantry_format_duration(90000000000, text, sizeof(text));
	CHECK_STR(text, "90s");
	gantry_format_duration(1500000, text, sizeof(text));
	CHECK_STR(text, "1500us");
	gantry_format_duration(7200000000000, text, sizeof(text));
	CHECK_STR(text, "2h");
	EACH_ROW (i, values) {
		gantry_format_size(values[i], text, sizeof(text));
		CHECK_OK(gantry_parse_size(text, &back));
		CHECK_EQ(back, values[i]);
		gantry_format_duration(values[i], text, sizeof(text));
		CHECK_OK(gantry_parse_duration(text, &back));
		CHECK_EQ(back, values[i]);
	}
}

TEST(check_distance)
{
	char giant[300];

	CHECK_EQ(gantry_edit_distance("", ""), 0);
	CHECK_EQ(gantry_edit_distance("same", "same"), 0);
	CHECK_EQ(gantry_edit_distance("", "abc"), 3);
	CHECK_EQ(gantry_edit_distance("abc", ""), 3);
	CHECK_EQ(gantry_edit_distance("kitten", "sitting"), 3);
	CHECK_EQ(gantry_edit_distance("sunday", "saturday"), 3);
	memset(giant, 'x', sizeof(giant) - 1);
	giant[sizeof(giant) - 1] = 0;
	CHECK_EQ(gantry_edit_distance(giant, ""), 63); /* cut, not overrun */
	CHECK_EQ(gantry_edit_distance("x", giant), 62);
}
