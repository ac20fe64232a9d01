/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <inttypes.h>
#include <math.h>

#include "base/text.h"

static void put_string(FILE *f, const char *text)
{
	uint32_t rune;
	size_t n;

	putc('"', f);
	for (; *text; text += n) {
		n = gantry_next_rune(text, &rune);
		if (rune == '"' || rune == '\\')
			fprintf(f, "\\%c", *text);
		else if (rune >= 0x20 && rune != 0x7f && rune != GANTRY_NO_RUNE)
			fwrite(text, 1, n, f);
		else
			for (size_t i = 0; i < n; i++)
				fprintf(f, "\\u%04x", (unsigned char)text[i]);
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
