/* SPDX-License-Identifier: Apache-2.0 */
/* JSON lines: commas and brackets in both styles; strings are valid JSON whatever their bytes. */
#include <math.h>

#include "base/json.h"
#include "test.h"

static char *text;
static size_t size;
static FILE *out;

static void expect(const char *want)
{
	fclose(out);
	CHECK_STR(text, want);
	free(text);
}

static struct gantry_json begin(enum gantry_json_style style)
{
	struct gantry_json j;

	out = open_memstream(&text, &size);
	CHECK(out != NULL);
	gantry_json_begin(&j, out, style);
	return j;
}

static void one_string(const char *value, const char *want)
{
	struct gantry_json j = begin(GANTRY_JSON_TIGHT);
	char line[128];

	gantry_json_str(&j, "k", value);
	gantry_json_end(&j);
	snprintf(line, sizeof(line), "{\"k\":%s}\n", want);
	expect(line);
}

TEST(styles)
{
	struct gantry_json j = begin(GANTRY_JSON_PEOPLE);

	gantry_json_end(&j);
	expect("{}\n");
	j = begin(GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "a", NULL);
	gantry_json_int(&j, "b", INT64_MIN);
	gantry_json_num(&j, "c", 0.1);
	gantry_json_num(&j, "d", NAN);
	gantry_json_bool(&j, "e", 1);
	gantry_json_end(&j);
	expect("{\"a\": null, \"b\": -9223372036854775808, \"c\": 0.1, \"d\": null, \"e\": true}\n");
	j = begin(GANTRY_JSON_TIGHT);
	gantry_json_open(&j, "a", '[');
	gantry_json_uint(&j, NULL, UINT64_MAX);
	gantry_json_open(&j, NULL, '{');
	gantry_json_close(&j, '}');
	gantry_json_open(&j, NULL, '{');
	gantry_json_raw(&j, "n", "1.500");
	gantry_json_close(&j, '}');
	gantry_json_close(&j, ']');
	gantry_json_int(&j, "b", 2);
	gantry_json_end(&j);
	expect("{\"a\":[18446744073709551615,{},{\"n\":1.500}],\"b\":2}\n");
}

TEST(strings)
{
	one_string("", "\"\"");
	one_string("a\"b\\c", "\"a\\\"b\\\\c\"");
	one_string("\n\x7f\x1f", "\"\\u000a\\u007f\\u001f\"");
	/* UTF-8 stays, and only that: of 1 to 4 bytes, cut off, too long, half of a pair, beyond the last. */
	one_string("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"");
	one_string("\xe2\x82", "\"\\u00e2\\u0082\"");
	one_string("\xc3", "\"\\u00c3\"");
	one_string("\xc0\xaf", "\"\\u00c0\\u00af\"");
	one_string("\xe0\x80\xaf", "\"\\u00e0\\u0080\\u00af\"");
	one_string("\xed\xa0\x80", "\"\\u00ed\\u00a0\\u0080\"");
	one_string("\xf4\x90\x80\x80", "\"\\u00f4\\u0090\\u0080\\u0080\"");
	one_string("\xff", "\"\\u00ff\"");
}
