/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads JSON: one text becomes values that point into it. For lines of reports and traces, which come from other
 * machines and may be cut or damaged: whatever the bytes, the answer is values or a reason.
 */
#ifndef GANTRY_TOOLS_JSON_READ_H
#define GANTRY_TOOLS_JSON_READ_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_value {
	enum json_type type;
	const char *key;  /* in an object; else NULL */
	const char *text; /* of a string, without escapes */
	double number;	  /* also 0 or 1 of a BOOL */
	int64_t integer;  /* the same; a number beyond its range or with a fraction is cut to it */
	size_t next;	  /* index of the next one of the same array or object; 0: the last */
	size_t first;	  /* of an array or object: index of its first; 0: it is empty */
};

struct json_doc {
	struct json_value *values; /* owned; [0] is the whole */
	size_t n;
	const char *why; /* after a failure: a few words; and where in the text */
	size_t at;
	size_t line; /* of the file, from 1: set by json_read_lines */
};

/* text[length] must be 0; it is changed, and must outlive the doc. 0, or -1 with why and at. The doc may be reused. */
int json_parse(char *text, size_t length, struct json_doc *doc);
void json_free(struct json_doc *doc);

/* NULL if `object` is none or has no such key. Of several the first. */
const struct json_value *json_get(const struct json_doc *doc, const struct json_value *object, const char *key);
const struct json_value *json_first(const struct json_doc *doc, const struct json_value *v);
const struct json_value *json_next(const struct json_doc *doc, const struct json_value *v);
/* Of the whole, by key; `otherwise` if it is not there or of another type. */
int64_t json_get_int(const struct json_doc *doc, const char *key, int64_t otherwise);
const char *json_get_text(const struct json_doc *doc, const char *key, const char *otherwise);

/*
 * Each line of a file, which must be an object; empty lines are passed over. What fn is given is good until it returns
 * NULL, or a reason to stop. 0, or -1 with one line in `why` that names the file and the line.
 */
int json_read_lines(const char *path, const char *(*fn)(void *ctx, const struct json_doc *doc), void *ctx, char *why,
		    size_t len);

/* Calls `read` for a file, or for all files of a folder that scandir's `pick` takes, in order. It returns 1, or 0 after
 * a line on stderr. 1: all went well, and there were some; `files`: what the error calls the files that a folder
 * lacks. */
int json_read_path(const char *program, const char *path, int (*pick)(const struct dirent *e), const char *files,
		   int (*read)(void *ctx, const char *path), void *ctx);

#endif
