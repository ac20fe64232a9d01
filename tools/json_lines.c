/* Files of JSON lines. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_read.h"

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
