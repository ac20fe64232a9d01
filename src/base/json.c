/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <inttypes.h>
#include <math.h>

/* The length of the UTF-8 character of more than one byte that begins here; 0: none does. */
static int utf8_length(const unsigned char *p)
{
	int n = p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : 0;

	for (int i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	/* Longer than need be, half of a pair, or beyond the last character. */
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf0 && p[1] < 0x90) ||
	    (p[0] == 0xf4 && p[1] >= 0x90))
		return 0;
	return n;
}

static void put_string(FILE *f, const char *text)
{
	const unsigned char *p = (const unsigned char *)text;

	putc('"', f);
	while (*p) {
		int n = utf8_length(p);

		if (n)
			fwrite(p, 1, (size_t)n, f);
		else if (*p == '"' || *p == '\\')
			fprintf(f, "\\%c", *p);
		else if (*p < 0x20 || *p > 0x7e)
			fprintf(f, "\\u%04x", *p);
		else
			putc(*p, f);
		p += n ? n : 1;
	}
	putc('"', f);
}

/* The comma and the key. */
static void put_key(struct gantry_json *j, const char *key)
{
	int tight = j->style == GANTRY_JSON_TIGHT;

	if (j->any)
		fputs(tight ? "," : ", ", j->out);
	j->any = 1;
	if (!key)
		return;
	put_string(j->out, key);
	fputs(tight ? ":" : ": ", j->out);
}

void gantry_json_begin(struct gantry_json *j, FILE *out, enum gantry_json_style style)
{
	*j = (struct gantry_json){.out = out, .style = style};
	putc('{', out);
}

void gantry_json_end(struct gantry_json *j)
{
	fputs("}\n", j->out);
	if (j->style == GANTRY_JSON_PEOPLE)
		fflush(j->out);
}

void gantry_json_open(struct gantry_json *j, const char *key, char bracket)
{
	put_key(j, key);
	putc(bracket, j->out);
	j->any = 0;
}

void gantry_json_close(struct gantry_json *j, char bracket)
{
	putc(bracket, j->out);
	j->any = 1;
}

void gantry_json_str(struct gantry_json *j, const char *key, const char *value)
{
	put_key(j, key);
	if (value)
		put_string(j->out, value);
	else
		fputs("null", j->out);
}

void gantry_json_int(struct gantry_json *j, const char *key, int64_t value)
{
	put_key(j, key);
	fprintf(j->out, "%" PRId64, value);
}

void gantry_json_uint(struct gantry_json *j, const char *key, uint64_t value)
{
	put_key(j, key);
	fprintf(j->out, "%" PRIu64, value);
}

void gantry_json_num(struct gantry_json *j, const char *key, double value)
{
	put_key(j, key);
	if (isfinite(value))
		fprintf(j->out, "%.6g", value);
	else
		fputs("null", j->out);
}

void gantry_json_bool(struct gantry_json *j, const char *key, int value)
{
	gantry_json_raw(j, key, value ? "true" : "false");
}

void gantry_json_raw(struct gantry_json *j, const char *key, const char *text)
{
	put_key(j, key);
	fputs(text, j->out);
}
