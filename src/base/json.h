/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON lines: one object per line, fields in the order they are added, strings escaped, no NaN. What is in a string is
 * valid JSON whatever its bytes: UTF-8 stays, a byte that is none becomes the character of its number.
 *
 *	struct gantry_json j;
 *
 *	gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
 *	gantry_json_str(&j, "kind", "event");
 *	gantry_json_open(&j, "ns", '[');
 *	gantry_json_uint(&j, NULL, first);
 *	gantry_json_close(&j, ']');
 *	gantry_json_end(&j);
 */
#ifndef GANTRY_BASE_JSON_H
#define GANTRY_BASE_JSON_H

#include <stdint.h>
#include <stdio.h>

enum gantry_json_style {
	GANTRY_JSON_PEOPLE, /* spaces; each line is flushed, so that a reader of a pipe sees it at once */
	GANTRY_JSON_TIGHT,  /* none of that: files that programs read */
};

struct gantry_json {
	FILE *out; /* borrowed */
	enum gantry_json_style style;
	int any; /* a value stands before the next one */
};

/* Opens an object; its end closes the line. */
void gantry_json_begin(struct gantry_json *j, FILE *out, enum gantry_json_style style);
void gantry_json_end(struct gantry_json *j);
/* An object '{' or an array '[' inside, and its end '}' or ']'. Values of an array have no key: NULL. */
void gantry_json_open(struct gantry_json *j, const char *key, char bracket);
void gantry_json_close(struct gantry_json *j, char bracket);

void gantry_json_str(struct gantry_json *j, const char *key, const char *value); /* NULL becomes null */
void gantry_json_int(struct gantry_json *j, const char *key, int64_t value);
void gantry_json_uint(struct gantry_json *j, const char *key, uint64_t value);
void gantry_json_num(struct gantry_json *j, const char *key, double value); /* not finite: null */
void gantry_json_bool(struct gantry_json *j, const char *key, int value);
/* The text is a value as it stands. */
void gantry_json_raw(struct gantry_json *j, const char *key, const char *text);

#endif
