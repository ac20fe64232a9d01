#include "json.h"

#include <inttypes.h>
#include <math.h>

static void put_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20)
			fprintf(f, "\\u%04x", c);
		else
			fputc(c, f);
	}
	fputc('"', f);
}

static void put_key(struct json_line *j, const char *key)
{
	fputs(j->nfields++ ? ", " : "{", j->out);
	put_string(j->out, key);
	fputs(": ", j->out);
}

void json_begin(struct json_line *j, FILE *out)
{
	j->out = out;
	j->nfields = 0;
}

void json_str(struct json_line *j, const char *key, const char *value)
{
	put_key(j, key);
	if (value)
		put_string(j->out, value);
	else
		fputs("null", j->out);
}

void json_int(struct json_line *j, const char *key, int64_t value)
{
	put_key(j, key);
	fprintf(j->out, "%" PRId64, value);
}

void json_num(struct json_line *j, const char *key, double value)
{
	put_key(j, key);
	if (isfinite(value))
		fprintf(j->out, "%.6g", value);
	else
		fputs("null", j->out);
}

void json_bool(struct json_line *j, const char *key, int value)
{
	put_key(j, key);
	fputs(value ? "true" : "false", j->out);
}

void json_end(struct json_line *j)
{
	fputs(j->nfields ? "}\n" : "{}\n", j->out);
	fflush(j->out);
}
