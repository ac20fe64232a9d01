/* SPDX-License-Identifier: Apache-2.0 */
/* The page: page.html with the rows that its script draws, and what is there without it: alarms and a table of all figures. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "gantry/version.h"
#include "report/series.h"

/* clang-format off */
__asm__(".pushsection .rodata\n"
	".hidden gantry_report_template\n"
	".globl gantry_report_template\n"
	"gantry_report_template:\n"
	".incbin \"" GANTRY_REPORT_TEMPLATE "\"\n"
	".byte 0\n"
	".popsection\n");
/* clang-format on */

/* ---- text ---- */

enum { REPLACEMENT = 0xfffd };

/* XML does not allow control characters and noncharacters; what reverses the direction of writing would move text that is not
 * the file's. */
static int is_fit(uint32_t c)
{
	return c >= 0x20 && !(c >= 0x7f && c < 0xa0) && (c & 0xfffe) != 0xfffe && !(c >= 0x202a && c <= 0x202e) &&
	       !(c >= 0x2066 && c <= 0x2069);
}

static void put_character(FILE *f, uint32_t c)
{
	if (c == '&')
		fputs("&amp;", f);
	else if (c == '<')
		fputs("&lt;", f);
	else if (c == '>')
		fputs("&gt;", f);
	else if (c == '"')
		fputs("&quot;", f);
	else if (c == '\'')
		fputs("&#39;", f);
	else if (c == '\n' || c == '\t' || c == '\r')
		fputc(' ', f);
	else if (c < 0x80 && is_fit(c))
		fputc((int)c, f);
	else
		fprintf(f, "&#%u;", is_fit(c) ? (unsigned)c : (unsigned)REPLACEMENT);
}

void report_put_text_cut(FILE *f, const char *text, size_t characters)
{
	uint32_t c, last = 0;
	size_t n = 0;

	for (const char *p = text; *p; n++)
		p += gantry_next_rune(p, &c);
	for (size_t i = 0; *text && i < characters; i++) {
		text += gantry_next_rune(text, &c);
		last = c;
		if (n > characters && i + 1 == characters)
			last = 0x2026; /* ... */
		put_character(f, last);
	}
}

void report_put_text(FILE *f, const char *text)
{
	report_put_text_cut(f, text, SIZE_MAX);
}

void report_put_script(FILE *f, const char *json)
{
	uint32_t c;

	while (*json) {
		json += gantry_next_rune(json, &c);
		if (c < 0x80 && !strchr("<>&\177", (int)c))
			fputc((int)c, f);
		else if (!is_fit(c) || c == GANTRY_NO_RUNE)
			fprintf(f, "\\u%04x", (unsigned)REPLACEMENT);
		else if (c < 0x10000)
			fprintf(f, "\\u%04x", (unsigned)c);
		else
			fprintf(f, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (c >> 10)), (unsigned)(0xdc00 + (c & 0x3ff)));
	}
}

const char *report_size_name(double bytes, int exact, char buf[32])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double v = bytes;
	size_t u = 0;

	while (v >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
		v /= 1024;
		u++;
	}
	if (v == floor(v))
		snprintf(buf, 32, "%.0f %s", v, units[u]);
	else if (exact && v * 8 == floor(v * 8) && u)
		snprintf(buf, 32, "%g %s", v, units[u]);
	else if (exact)
		snprintf(buf, 32, "%.0f B", bytes);
	else
		snprintf(buf, 32, "%.3g %s", v, units[u]);
	return buf;
}

/* ---- what is left without scripts ---- */

static void put_alarm(FILE *f, const struct report_file *file, const char *what, size_t n, const char *text)
{
	fprintf(f, "<p class=\"bad\"><b>%s: %zu</b> in ", what, n);
	report_put_text(f, file->path);
	fputs(": ", f);
	report_put_text(f, text);
	fputs("</p>\n", f);
}

static void put_alarms(FILE *f, const struct report *r)
{
	for (size_t i = 0; i < r->nfiles; i++) {
		const struct report_file *file = &r->files[i];

		if (file->wrong > 0) {
			fprintf(f, "<p class=\"bad\"><b>Wrong bytes: %.0f in %zu row%s</b> of ", file->wrong,
				file->wrong_rows, file->wrong_rows == 1 ? "" : "s");
			report_put_text(f, file->path);
			fputs(". Its figures mean nothing.</p>\n", f);
		}
		if (file->failures)
			put_alarm(f, file, "Failed", file->failures, file->failed);
		if (file->warnings)
			put_alarm(f, file, "Warnings", file->warnings, file->warning);
	}
}

static void put_row(FILE *f, const struct report_section *in, const struct report_series *s,
		    const struct report_point *p)
{
	char letter[8], size[32];

	fputs("<tr><th scope=\"row\">", f);
	report_put_text(f, in->title);
	fprintf(f, "</th><td>%s: ", report_letter(s->file, letter));
	report_put_text(f, s->name);
	fprintf(f, "%s%s</td><td>%s, %s</td><td>%s</td><td>%.5g</td><td>%.5g</td><td>%.5g</td></tr>\n",
		s->peer ? ": " : "", s->peer ? s->peer : "", report_quantity_title(s->op, (int)s->quantity),
		report_units[s->quantity], isnan(p->bytes) ? "any" : report_size_name(p->bytes, 1, size), p->median,
		p->min, p->max);
}

static void put_table(FILE *f, const struct report *r)
{
	static const char *const heads[] = {"operation", "series", "quantity", "size", "median", "least", "most"};

	fputs("<noscript><p class=\"note\">Plots need a script; the table has all figures.</p>"
	      "<div class=\"card scroll\"><table class=\"left\"><thead><tr>",
	      f);
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
		fprintf(f, "<th scope=\"col\">%s</th>", heads[i]);
	fputs("</tr></thead><tbody>\n", f);
	for (size_t i = 0; i < r->nsections * r->nseries; i++) {
		const struct report_section *in = &r->sections[i / r->nseries];
		const struct report_series *s = &r->series[i % r->nseries];

		for (size_t k = 0; k < s->npoints && report_in_section(in, s); k++)
			put_row(f, in, s, &s->points[k]);
	}
	fputs("</tbody></table></div></noscript>\n", f);
}

/* ---- rows for the script ---- */

/* Which one of its section a series is. */
static int64_t place_of(const struct report *r, const struct report_section *in, const struct report_series *s)
{
	int64_t n = 0;

	for (const struct report_series *t = r->series; t < s; t++)
		n += report_in_section(in, t);
	return n;
}

static void add_number(struct gantry_json *j, double v)
{
	char text[32];

	snprintf(text, sizeof(text), "%.15g", v);
	gantry_json_raw(j, NULL, isfinite(v) ? text : "null");
}

static void add_series(struct gantry_json *j, const struct report *r, const struct report_section *in,
		       const struct report_series *s)
{
	gantry_json_open(j, NULL, '{');
	gantry_json_uint(j, "file", s->file);
	gantry_json_int(j, "quantity", (int64_t)s->quantity);
	gantry_json_str(j, "name", s->name);
	gantry_json_str(j, "commit", !s->named_commit ? NULL : *s->commit ? s->commit : "no commit");
	gantry_json_str(j, "peer", s->peer);
	gantry_json_bool(j, "beside", report_is_beside(s));
	gantry_json_open(j, "to", '[');
	for (const struct report_series *t = r->series; t < r->series + r->nseries; t++)
		if (report_is_peer(s, t))
			gantry_json_int(j, NULL, place_of(r, in, t));
	gantry_json_close(j, ']');
	gantry_json_open(j, "later", '[');
	for (size_t file = 1; file < r->nfiles && !s->file && !s->peer; file++) {
		const struct report_series *t = report_counterpart(r, s, file);

		if (t)
			gantry_json_int(j, NULL, place_of(r, in, t));
	}
	gantry_json_close(j, ']');
	gantry_json_open(j, "points", '[');
	for (const struct report_point *p = s->points; p < s->points + s->npoints; p++) {
		gantry_json_open(j, NULL, '[');
		add_number(j, p->bytes);
		add_number(j, p->median);
		add_number(j, p->min);
		add_number(j, p->max);
		gantry_json_close(j, ']');
	}
	gantry_json_close(j, ']');
	gantry_json_close(j, '}');
}

static void add_file(struct gantry_json *j, const struct report_file *file)
{
	const char *slash = strrchr(file->path, '/');

	gantry_json_open(j, NULL, '{');
	gantry_json_str(j, "name", strcmp(file->path, "-") == 0 ? "standard input" : slash ? slash + 1 : file->path);
	gantry_json_uint(j, "rows", file->rows);
	gantry_json_bool(j, "wrong", file->wrong > 0);
	gantry_json_uint(j, "checks", file->checks);
	gantry_json_uint(j, "unknown", file->unknown);
	gantry_json_str(j, "unknown_lines", file->unknown_lines);
	gantry_json_str(j, "unknown_keys", file->unknown_keys);
	gantry_json_open(j, "runs", '[');
	for (size_t i = 0; i < file->nruns; i++) {
		gantry_json_open(j, NULL, '{');
		for (int k = 0; k < REPORT_FIELDS; k++)
			gantry_json_str(j, report_field_keys[k], file->runs[i].fields[k]);
		gantry_json_close(j, '}');
	}
	gantry_json_close(j, ']');
	gantry_json_close(j, '}');
}

static void add_section(struct gantry_json *j, const struct report *r, const struct report_section *s)
{
	gantry_json_open(j, NULL, '{');
	gantry_json_str(j, "title", s->title);
	gantry_json_str(j, "about", report_ops[s->op].about);
	gantry_json_str(j, "latency", report_ops[s->op].latency);
	gantry_json_str(j, "word", report_quantity_word(s->op, REPORT_LATENCY));
	gantry_json_str(j, "bar", report_bar_name(s->op));
	gantry_json_open(j, "series", '[');
	for (size_t i = 0; i < r->nseries; i++)
		if (report_in_section(s, &r->series[i]))
			add_series(j, r, s, &r->series[i]);
	gantry_json_close(j, ']');
	gantry_json_close(j, '}');
}

static void put_rows(FILE *f, const struct report *r)
{
	struct gantry_json j;
	char *text = NULL;
	size_t n = 0;
	FILE *rows = open_memstream(&text, &n);

	if (!rows)
		return;
	gantry_json_begin(&j, rows, GANTRY_JSON_TIGHT);
	gantry_json_open(&j, "files", '[');
	for (size_t i = 0; i < r->nfiles; i++)
		add_file(&j, &r->files[i]);
	gantry_json_close(&j, ']');
	gantry_json_open(&j, "sections", '[');
	for (size_t i = 0; i < r->nsections; i++)
		add_section(&j, r, &r->sections[i]);
	gantry_json_close(&j, ']');
	gantry_json_end(&j);
	if (!fclose(rows))
		report_put_script(f, text);
	free(text);
}

/* ---- the page ---- */

/* By default the operations. */
static void put_title(FILE *f, const struct report *r, const char *title)
{
	int seen[REPORT_OPS] = {0}, n = 0;

	if (title) {
		report_put_text(f, title);
		return;
	}
	for (size_t i = 0; i < r->nsections; i++)
		if (!seen[r->sections[i].op]++)
			fprintf(f, "%s%s", n++ ? ", " : "", report_ops[r->sections[i].op].title);
	if (r->nfiles > 1)
		fprintf(f, ": %zu files compared", r->nfiles);
}

void report_write_page(const struct report *r, const char *title, FILE *f)
{
	const char *at = report_template, *mark;

	for (; (mark = strstr(at, "{{")); at = strstr(mark, "}}") + 2) {
		fwrite(at, 1, (size_t)(mark - at), f);
		if (strncmp(mark, "{{title", 7) == 0)
			put_title(f, r, title);
		else if (strncmp(mark, "{{body", 6) == 0)
			put_alarms(f, r), put_table(f, r);
		else if (strncmp(mark, "{{rows", 6) == 0)
			put_rows(f, r);
		else
			fputs(GANTRY_VERSION, f);
	}
	fputs(at, f);
}

void report_write_json(const struct report *r, FILE *f)
{
	for (size_t i = 0; i < r->nseries; i++) {
		const struct report_series *s = &r->series[i];

		for (size_t k = 0; k < s->npoints && report_has_section(r, s); k++) {
			const struct report_point *p = &s->points[k];
			struct gantry_json j;

			gantry_json_begin(&j, f, GANTRY_JSON_PEOPLE);
			gantry_json_str(&j, "file", r->files[s->file].path);
			gantry_json_str(&j, "operation", report_ops[s->op].title);
			gantry_json_str(&j, "group", s->group);
			gantry_json_str(&j, "name", s->name);
			gantry_json_str(&j, "commit", s->commit);
			gantry_json_str(&j, "peer", s->peer);
			gantry_json_str(&j, "quantity", report_quantity_keys[s->quantity]);
			gantry_json_str(&j, "unit", report_units[s->quantity]);
			if (isnan(p->bytes))
				gantry_json_num(&j, "bytes", p->bytes);
			else
				gantry_json_int(&j, "bytes", (int64_t)p->bytes);
			gantry_json_num(&j, "median", p->median);
			gantry_json_num(&j, "min", p->min);
			gantry_json_num(&j, "max", p->max);
			gantry_json_int(&j, "rows", (int64_t)p->n);
			gantry_json_end(&j);
		}
	}
}
