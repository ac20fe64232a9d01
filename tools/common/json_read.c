/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recursive descent over the text, at most DEPTH_MAX deep. Values are put into one array in the order in which they
 * begin and refer to each other by index, because the array moves when it grows. Strings lose their escapes in place.
 */
#include "common/json_read.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/array.h"

enum { DEPTH_MAX = 32 };

struct reader {
	char *text;
	size_t at, end;
	struct json_doc *doc;
	int depth;
};

static int fail(struct reader *r, const char *why)
{
	r->doc->why = why;
	r->doc->at = r->at;
	return -1;
}

static void skip_space(struct reader *r)
{
	while (r->at < r->end && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at])
		r->at++;
}

static int add(struct reader *r, enum json_type type, size_t *ret_index)
{
	struct json_value *v = ARRAY_ADD(r->doc->values, r->doc->n);

	if (!v)
		return fail(r, "no memory");
	v->type = type;
	*ret_index = r->doc->n - 1;
	return 0;
}

static int hex4(const char *p, unsigned *ret)
{
	char word[5] = "";

	for (int i = 0; i < 4; i++) {
		if (!isxdigit((unsigned char)p[i]))
			return 0;
		word[i] = p[i];
	}
	*ret = (unsigned)strtoul(word, NULL, 16);
	return 1;
}

/* As UTF-8; halves of pairs become '?', 0 too: strings here end with it. */
static char *put_rune(char *out, unsigned c)
{
	if (c == 0 || (c >= 0xd800 && c < 0xe000)) {
		*out++ = '?';
	} else if (c < 0x80) {
		*out++ = (char)c;
	} else if (c < 0x800) {
		*out++ = (char)(0xc0 | c >> 6);
		*out++ = (char)(0x80 | (c & 0x3f));
	} else {
		*out++ = (char)(0xe0 | c >> 12);
		*out++ = (char)(0x80 | (c >> 6 & 0x3f));
		*out++ = (char)(0x80 | (c & 0x3f));
	}
	return out;
}

/* At the opening quote. */
static int read_string(struct reader *r, const char **ret_text)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	char *out = &r->text[++r->at];
	unsigned rune;

	*ret_text = out;
	while (r->at < r->end && r->text[r->at] != '"') {
		char c = r->text[r->at];
		const char *simple;

		if ((unsigned char)c < 0x20)
			return fail(r, "a control character in a string");
		if (c != '\\') {
			*out++ = c;
			r->at++;
			continue;
		}
		c = r->text[r->at + 1]; /* the text ends with 0 */
		simple = c ? strchr(from, c) : NULL;
		if (simple) {
			*out++ = to[simple - from];
			r->at += 2;
		} else if (c == 'u' && r->end - r->at >= 6 && hex4(&r->text[r->at + 2], &rune)) {
			out = put_rune(out, rune);
			r->at += 6;
		} else {
			return fail(r, "an unknown escape in a string");
		}
	}
	if (r->at >= r->end)
		return fail(r, "a string that does not end");
	r->at++;
	*out = 0;
	return 0;
}

static int read_number(struct reader *r, struct json_value *v)
{
	size_t n = strspn(&r->text[r->at], "+-0123456789.eE");
	char word[64], *end;

	if (n >= sizeof(word))
		return fail(r, "a number that is too long");
	memcpy(word, &r->text[r->at], n);
	word[n] = 0;
	v->number = strtod(word, &end);
	if (!n || *end || word[0] == '+' || !isfinite(v->number))
		return fail(r, n ? "not a number" : "not a value");
	errno = 0;
	v->integer = strtoll(word, &end, 10);
	if (*end) /* the cast of what does not fit is undefined */
		v->integer = v->number >= 9.2e18 ? INT64_MAX : v->number <= -9.2e18 ? INT64_MIN : (int64_t)v->number;
	r->at += n;
	return 0;
}

static int read_word(struct reader *r, struct json_value *v)
{
	static const struct {
		const char *word;
		enum json_type type;
		int number;
	} words[] = {{"null", JSON_NULL, 0}, {"true", JSON_BOOL, 1}, {"false", JSON_BOOL, 0}};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		size_t n = strlen(words[i].word);

		if (strncmp(&r->text[r->at], words[i].word, n) != 0)
			continue;
		v->type = words[i].type;
		v->number = words[i].number;
		v->integer = words[i].number;
		r->at += n;
		return 0;
	}
	return read_number(r, v);
}

static int read_value(struct reader *r, const char *key, size_t *ret_index);

/* At the bracket. */
static int read_members(struct reader *r, size_t self)
{
	int object = r->text[r->at] == '{';
	char close = object ? '}' : ']';
	size_t last = 0, index;

	r->at++;
	skip_space(r);
	if (r->text[r->at] == close) {
		r->at++;
		return 0;
	}
	for (;;) {
		const char *key = NULL;

		skip_space(r);
		if (object) {
			if (r->text[r->at] != '"')
				return fail(r, "a key is missing");
			if (read_string(r, &key))
				return -1;
			skip_space(r);
			if (r->text[r->at++] != ':')
				return fail(r, "a colon is missing");
		}
		if (read_value(r, key, &index))
			return -1;
		if (last)
			r->doc->values[last].next = index;
		else
			r->doc->values[self].first = index;
		last = index;
		skip_space(r);
		if (r->text[r->at] != ',' && r->text[r->at] != close)
			return fail(r, r->at < r->end ? "a comma is missing" : "the line is cut off");
		if (r->text[r->at++] == close)
			return 0;
	}
}

static int read_value(struct reader *r, const char *key, size_t *ret_index)
{
	size_t self;
	int bad;

	skip_space(r);
	if (r->at >= r->end)
		return fail(r, "the line is cut off");
	if (r->depth >= DEPTH_MAX)
		return fail(r, "nested too deeply");
	if (add(r, JSON_NUMBER, &self))
		return -1;
	r->doc->values[self].key = key;
	r->depth++;
	if (r->text[r->at] == '{' || r->text[r->at] == '[') {
		r->doc->values[self].type = r->text[r->at] == '{' ? JSON_OBJECT : JSON_ARRAY;
		bad = read_members(r, self);
	} else if (r->text[r->at] == '"') {
		r->doc->values[self].type = JSON_STRING;
		bad = read_string(r, &r->doc->values[self].text);
	} else {
		bad = read_word(r, &r->doc->values[self]);
	}
	r->depth--;
	*ret_index = self;
	return bad;
}

int json_parse(char *text, size_t length, struct json_doc *doc)
{
	struct reader r = {.text = text, .end = length, .doc = doc};
	size_t whole;

	doc->n = 0;
	doc->why = NULL;
	if (memchr(text, 0, length))
		return fail(&r, "a zero byte");
	if (read_value(&r, NULL, &whole))
		return -1;
	skip_space(&r);
	return r.at == r.end ? 0 : fail(&r, "something after the end");
}

void json_free(struct json_doc *doc)
{
	free(doc->values);
	memset(doc, 0, sizeof(*doc));
}

const struct json_value *json_first(const struct json_doc *doc, const struct json_value *v)
{
	return v && v->first ? &doc->values[v->first] : NULL;
}

const struct json_value *json_next(const struct json_doc *doc, const struct json_value *v)
{
	return v && v->next ? &doc->values[v->next] : NULL;
}

const struct json_value *json_get(const struct json_doc *doc, const struct json_value *object, const char *key)
{
	if (!object || object->type != JSON_OBJECT)
		return NULL;
	for (const struct json_value *v = json_first(doc, object); v; v = json_next(doc, v)) {
		if (strcmp(v->key, key) == 0)
			return v;
	}
	return NULL;
}

int64_t json_get_int(const struct json_doc *doc, const char *key, int64_t otherwise)
{
	const struct json_value *v = json_get(doc, &doc->values[0], key);

	return v && v->type == JSON_NUMBER ? v->integer : otherwise;
}

const char *json_get_text(const struct json_doc *doc, const char *key, const char *otherwise)
{
	const struct json_value *v = json_get(doc, &doc->values[0], key);

	return v && v->type == JSON_STRING ? v->text : otherwise;
}

/* ---- files of lines ---- */

/* One line without its end; 1: go on. */
static int take_line(const char *path, size_t number, char *line, size_t length, struct json_doc *doc,
		     const char *(*fn)(void *ctx, const struct json_doc *doc), void *ctx, char *why, size_t len)
{
	const char *bad;

	if (json_parse(line, length, doc)) {
		snprintf(why, len, "%s:%zu: %s at byte %zu", path, number, doc->why, doc->at + 1);
		return 0;
	}
	doc->line = number;
	bad = doc->values[0].type == JSON_OBJECT ? fn(ctx, doc) : "not an object";
	if (bad)
		snprintf(why, len, "%s:%zu: %s", path, number, bad);
	return !bad;
}

int json_read_lines(const char *path, const char *(*fn)(void *ctx, const struct json_doc *doc), void *ctx, char *why,
		    size_t len)
{
	FILE *f = fopen(path, "re");
	struct json_doc doc = {0};
	char *line = NULL;
	size_t size = 0, number = 0;
	ssize_t n = 0;
	int good = f != NULL;

	if (!f)
		snprintf(why, len, "%s: %s", path, strerror(errno));
	errno = 0;
	while (good && (n = getline(&line, &size, f)) >= 0) {
		number++;
		if (n && line[n - 1] == '\n')
			line[--n] = 0;
		if (n)
			good = take_line(path, number, line, (size_t)n, &doc, fn, ctx, why, len);
	}
	if (good && ferror(f)) {
		snprintf(why, len, "%s: %s", path, strerror(errno));
		good = 0;
	} else if (good && !number) {
		snprintf(why, len, "%s: the file is empty", path);
		good = 0;
	}
	if (f)
		fclose(f);
	free(line);
	json_free(&doc);
	return good ? 0 : -1;
}

int json_read_path(const char *program, const char *path, int (*pick)(const struct dirent *e), const char *files,
		   int (*read)(void *ctx, const char *path), void *ctx)
{
	struct dirent **names = NULL;
	char file[PATH_MAX];
	struct stat st;
	int n, good = 1;

	if (stat(path, &st) || !S_ISDIR(st.st_mode))
		return read(ctx, path);
	n = scandir(path, &names, pick, alphasort);
	if (n < 0)
		fprintf(stderr, "%s: %s: %s\n", program, path, strerror(errno));
	else if (!n)
		fprintf(stderr, "%s: %s has no files %s\n", program, path, files);
	for (int i = 0; i < n; i++) {
		snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name);
		good &= read(ctx, file);
		free(names[i]);
	}
	free(names);
	return good && n > 0;
}
