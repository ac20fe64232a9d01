/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `gantry report` reads: a file that may be cut, damaged or made up becomes a reason, or a page whose text and
 * figures do not leave their places, whatever they are.
 */
#include <ctype.h>

#include "report/series.h"
#include "script.h"

static int take_all(struct report *r, const char *name, const uint8_t *data, size_t size)
{
	struct script in = {data, data + size};
	struct json_doc doc = {0};
	size_t number = 0, n;
	int good = !report_add_file(r, name);

	for (char *line; good && (line = script_line(&in, &n));) {
		good = json_parse(line, n, &doc) == 0 && doc.values[0].type == JSON_OBJECT &&
		       !report_take(r, &doc, ++number);
		free(line);
	}
	json_free(&doc);
	return good;
}

/* Tags begin with a letter, paths have nothing but commands and numbers, and there is no tag that runs or fetches. */
static void check_markup(const char *text)
{
	MUST(!strcasestr(text, "<script") && !strcasestr(text, "<img"));
	for (const char *p = strchr(text, '<'); p; p = strchr(p + 1, '<'))
		MUST(isalpha((unsigned char)p[1]) || p[1] == '/' || p[1] == '!');
	for (const char *p = strstr(text, " d=\""); p; p = strstr(p + 1, " d=\"")) {
		p += 4;
		MUST(p[strspn(p, "MLHVhvmlaz0123456789. -")] == '"');
	}
}

/* The page has the template's two scripts and no other; the first is JSON again, in ASCII, and nothing in it is a tag. */
static void check_page(char *text)
{
	static const char begin[] = "<script type=\"application/json\" id=\"rows\">";
	char *rows = strstr(text, begin), *end = rows ? strstr(rows, "</script>") : NULL,
	     *own = end ? strstr(end, "<script>") : NULL;
	struct json_doc doc = {0};

	MUST(own && !strcasestr(own + 1, "<script"));
	*rows = *end = 0;
	rows += strlen(begin);
	for (const char *p = rows; *p; p++)
		MUST(*p != '<' && *p != '>' && *p != '&' && !(*p & 0x80));
	MUST(json_parse(rows, strlen(rows), &doc) == 0);
	json_free(&doc);
	MUST((text = strstr(text, "</style>")));
	check_markup(text);
}

static void draw(const struct report *r)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	MUST(f);
	report_write_page(r, NULL, f);
	fclose(f);
	MUST(strlen(text) == n);
	check_page(text);
	free(text);
	for (size_t i = 0; i < r->nsections; i++) {
		for (int kind = 0; kind <= REPORT_COMPARE; kind++) {
			f = open_memstream(&text, &n);
			MUST(f);
			report_write_picture(r, &r->sections[i], kind, "gantry report", f);
			fclose(f);
			MUST(strlen(text) == n);
			check_markup(text);
			free(text);
		}
	}
}

/* Each line of the figures must be JSON again. */
static void list(const struct report *r)
{
	struct json_doc doc = {0};
	char *text = NULL, *line, *rest;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	MUST(f);
	report_write_json(r, f);
	fclose(f);
	rest = text;
	while ((line = strsep(&rest, "\n")))
		MUST(!*line || json_parse(line, strlen(line), &doc) == 0);
	json_free(&doc);
	free(text);
}

/* The bytes are two files: what follows a line of one '=' is the second. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *cut = size ? memmem(data, size, "\n=\n", 3) : NULL;
	size_t first = cut ? (size_t)(cut - data) : size;
	struct report r = {0};

	if (take_all(&r, "a<b>.jsonl", data, first) &&
	    (!cut || take_all(&r, "b\"&'.jsonl", cut + 3, size - first - 3))) {
		MUST(!report_finish(&r, NULL));
		draw(&r);
		list(&r);
	}
	report_free(&r);
	return 0;
}
