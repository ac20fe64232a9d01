/* JSON lines: one object per line, fields in the order they are added, strings escaped, no NaN. */
#ifndef GANTRY_TOOLS_JSON_H
#define GANTRY_TOOLS_JSON_H

#include <stdint.h>
#include <stdio.h>

struct json_line {
	FILE *out;
	int nfields;
};

void json_begin(struct json_line *j, FILE *out);
void json_str(struct json_line *j, const char *key, const char *value); /* NULL becomes null */
void json_int(struct json_line *j, const char *key, int64_t value);
void json_num(struct json_line *j, const char *key, double value); /* not finite: null */
void json_bool(struct json_line *j, const char *key, int value);
/* Ends the object and flushes the line, so that a reader of a pipe sees it at once. */
void json_end(struct json_line *j);

#endif
