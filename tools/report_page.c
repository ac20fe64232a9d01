/* SPDX-License-Identifier: Apache-2.0 */
/* The page: what was read, then a section per operation with plots and the figures below each. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "gantry/version.h"
#include "report.h"

/* ---- text and numbers as pages show them ---- */

enum { REPLACEMENT = 0xfffd };

/* Control characters and noncharacters are not allowed in XML; what turns the direction of writing
 * round would move text that is not the file's. */
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

const char *report_number(double v, char buf[32])
{
	double a = fabs(v);

	if (a == 0)
		snprintf(buf, 32, "0");
	else if (a >= 1e15 || a < 1e-4)
		snprintf(buf, 32, "%.3g", v);
	else if (a >= 999.5)
		snprintf(buf, 32, "%.0f", v);
	else if (a >= 0.9995)
		snprintf(buf, 32, "%.*f", a >= 99.95 ? 1 : a >= 9.995 ? 2 : 3, v);
	else
		snprintf(buf, 32, "%.4g", v);
	return buf;
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

/* Three digits that count, and no zeros behind them. */
static const char *short_number(double v, char buf[24])
{
	if (v >= 999.5)
		snprintf(buf, 24, "%.0f", v);
	else
		snprintf(buf, 24, "%.3g", v);
	return buf;
}

const char *report_value(double v, enum report_kind kind, char buf[32])
{
	static const struct {
		double from, scale;
		const char *unit;
	} times[] = {{999500, 1e6, "s"}, {999.5, 1e3, "ms"}, {0.9995, 1, "\302\265s"}, {0, 1e-3, "ns"}};
	char number[24];
	size_t i = 0;

	switch (kind) {
	case REPORT_PLOT_LATENCY:
		while (times[i].from > 0 && v < times[i].from)
			i++;
		snprintf(buf, 32, "%s %s", short_number(v / times[i].scale, number), times[i].unit);
		break;
	case REPORT_PLOT_BANDWIDTH:
		snprintf(buf, 32, "%s GB/s", short_number(v, number));
		break;
	case REPORT_PLOT_CPU:
		snprintf(buf, 32, "%s s/GB", short_number(v, number));
		break;
	default:
		snprintf(buf, 32, "%s\303\227", short_number(v, number));
		break;
	}
	return buf;
}

/* A ratio in a table: "2.42×". */
static const char *report_times(double v, char buf[32])
{
	if (v < 0.01 || v >= 1000)
		return report_value(v, REPORT_PLOT_RATIO, buf);
	snprintf(buf, 32, "%.2f\303\227", v);
	return buf;
}

/* ---- the page ---- */

static const char page_rules[] =
	"*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}"
	"body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,'Segoe "
	"UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
	"main{max-width:1240px;margin:0 auto;padding:32px 20px 56px}"
	"h1{font-size:1.75rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}h2{font-size:1.3rem;margin:44px 0 "
	"2px;"
	"letter-spacing:-.005em}h3{font-size:1rem;margin:0}p{margin:0 0 12px}a{color:var(--s0)}"
	".mut,.note{color:var(--mut)}.note{font-size:.9rem}.eye{color:var(--mut);font-size:.85rem;margin:0 0 2px}"
	"h1,h2,h3,p,dd,li,.leg{overflow-wrap:anywhere}"
	".bad{margin:14px 0;background:var(--badbg);color:var(--bad);border-radius:8px;padding:8px 14px}"
	".card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px;min-width:0}"
	".runs{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));margin:22px 0 "
	"8px}"
	"dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:6px 0 "
	"0;font-size:.9rem}dt{color:var(--mut)}"
	"dd{margin:0;min-width:0}code{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}"
	".runs+nav{margin-top:14px}nav ul{padding-left:1.2em;margin:6px 0 0}nav ul{columns:2 340px}"
	".tiles{display:flex;flex-wrap:wrap;gap:12px;margin:12px 0 16px}.tile{flex:0 1 auto;min-width:150px}"
	".tile b{display:block;font-size:1.45rem;line-height:1.25;font-weight:600;letter-spacing:-.01em}"
	".tile span{display:block;color:var(--mut);font-size:.85rem}"
	".plots{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,460px),1fr));align-items:"
	"start}"
	"figure{margin:0}figcaption{display:flex;flex-wrap:wrap;gap:0 12px;align-items:baseline;margin-bottom:8px}"
	"figcaption span{color:var(--mut);font-size:.85rem}"
	".leg{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;margin:0 0 "
	"6px;padding:0;font-size:.88rem;line-height:1.45}"
	".leg li{display:flex;gap:7px;align-items:center}.sw{flex:none;width:30px;height:12px}"
	"figure>svg{display:block;width:100%;height:auto}"
	".scroll{overflow-x:auto;margin-top:12px;border-top:1px solid var(--line)}"
	"table{border-collapse:collapse;width:100%;font-size:.85rem;font-variant-numeric:tabular-nums}"
	"th,td{padding:4px 0 4px 16px;text-align:right;white-space:nowrap;vertical-align:top}"
	"th:first-child,td:first-child{padding-left:2px;position:sticky;left:0;background:var(--card)}"
	"thead "
	"th{font-weight:600;white-space:normal;min-width:64px;vertical-align:bottom;line-height:1.3;padding-top:8px}"
	"tbody th{font-weight:400;color:var(--mut)}tbody tr{border-top:1px solid var(--grid)}"
	"td small{display:block;color:var(--mut);font-size:.92em;line-height:1.2}.left th:first-child{text-align:left;"
	"white-space:normal;min-width:120px}"
	"footer{margin-top:44px;color:var(--mut);font-size:.85rem}"
	"@media(max-width:560px){main{padding:20px 12px 40px}.card{padding:13px 12px}h1{font-size:1.45rem}"
	"figure>svg text{font-size:14px}}"
	"@media print{body{background:none}.card{break-inside:avoid}}";

static void put_fact(FILE *f, const char *name, const char *text, int code)
{
	if (!*text)
		return;
	fprintf(f, "<dt>%s</dt><dd>%s", name, code ? "<code>" : "");
	report_put_text(f, text);
	fprintf(f, "%s</dd>", code ? "</code>" : "");
}

/* A field of all runs of a file: each text once, the first ones if there are many. */
static void put_field(FILE *f, const struct report_file *file, const char *name, enum report_field field, int code)
{
	enum { SHOWN = 4 };
	size_t shown = 0, more = 0;

	for (size_t i = 0; i < file->nruns; i++) {
		const char *text = file->runs[i].fields[field];
		size_t k = 0;

		while (k < i && strcmp(file->runs[k].fields[field], text) != 0)
			k++;
		if (k < i || !*text)
			continue;
		if (shown < SHOWN) {
			put_fact(f, shown ? "" : name, text, code);
			shown++;
		} else {
			more++;
		}
	}
	if (more)
		fprintf(f, "<dt></dt><dd class=\"mut\">and %zu more</dd>", more);
}

static void put_file(FILE *f, const struct report *r, size_t i)
{
	const struct report_file *file = &r->files[i];
	const char *slash = strrchr(file->path, '/');
	char letter[8];

	fputs("<div class=\"card\"><h3>", f);
	if (r->nfiles > 1)
		fprintf(f, "%s: ", report_letter(i, letter));
	report_put_text(f, strcmp(file->path, "-") == 0 ? "standard input" : slash ? slash + 1 : file->path);
	fputs("</h3><dl>", f);
	put_field(f, file, "host", REPORT_HOST, 0);
	put_field(f, file, "machine", REPORT_MACHINE, 0);
	put_field(f, file, "NCCL", REPORT_NCCL, 0);
	put_field(f, file, "commit", REPORT_COMMIT, 1);
	put_field(f, file, "date", REPORT_DATE, 0);
	put_field(f, file, "command", REPORT_COMMAND, 1);
	put_field(f, file, "note", REPORT_NOTE, 0);
	fprintf(f, "<dt>rows</dt><dd>%zu%s</dd>", file->rows, file->wrong > 0 ? "" : ", no wrong byte reported");
	if (file->checks)
		fprintf(f, "<dt>no plot</dt><dd>%zu line%s of checks and call counts</dd>", file->checks,
			file->checks == 1 ? "" : "s");
	if (file->unknown) {
		fprintf(f, "<dt>unknown</dt><dd>%zu line%s, left out: ", file->unknown, file->unknown == 1 ? "" : "s");
		report_put_text(f, file->unknown_lines);
		fputs(" (first keys: ", f);
		report_put_text(f, file->unknown_keys);
		fputs(")</dd>", f);
	}
	fputs("</dl></div>\n", f);
}

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
	char number[32];

	for (size_t i = 0; i < r->nfiles; i++) {
		const struct report_file *file = &r->files[i];

		if (file->wrong > 0) {
			fprintf(f, "<p class=\"bad\"><b>Wrong bytes: %s in %zu row%s</b> of ",
				report_number(file->wrong, number), file->wrong_rows, file->wrong_rows == 1 ? "" : "s");
			report_put_text(f, file->path);
			fputs(". Its figures mean nothing.</p>\n", f);
		}
		if (file->failures)
			put_alarm(f, file, "Failed", file->failures, file->failed);
		if (file->warnings)
			put_alarm(f, file, "Warnings", file->warnings, file->warning);
	}
}

/* ---- figures ---- */

static void put_cell(FILE *f, const struct report_point *p)
{
	char a[32], b[32], c[32];

	if (!p) {
		fputs("<td></td>", f);
		return;
	}
	fprintf(f, "<td>%s", report_number(p->median, a));
	if (p->min < p->max)
		fprintf(f, "<small>%s\342\200\223%s</small>", report_number(p->min, b), report_number(p->max, c));
	fputs("</td>", f);
}

static void put_times(FILE *f, double v)
{
	char text[32];

	if (report_drawable(v))
		fprintf(f, "<td>%s</td>", report_times(v, text));
	else
		fputs("<td></td>", f);
}

static int same_bytes(double a, double b)
{
	return a == b || (isnan(a) && isnan(b));
}

static const struct report_point *point_at(const struct report_point *p, size_t n, double bytes)
{
	for (size_t i = 0; i < n; i++)
		if (same_bytes(p[i].bytes, bytes))
			return &p[i];
	return NULL;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	if (isnan(x) || isnan(y))
		return isnan(x) - isnan(y);
	return (x > y) - (x < y);
}

/* All sizes of a plot, once each; what has none comes last. NULL: no memory. */
static double *all_sizes(const struct report_plot *p, size_t *ret_n)
{
	size_t n = 0, made = 0;
	double *sizes;

	for (size_t i = 0; i < p->nlines; i++)
		n += p->lines[i].npoints;
	sizes = calloc(n ? n : 1, sizeof(*sizes));
	*ret_n = 0;
	if (!sizes)
		return NULL;
	n = 0;
	for (size_t i = 0; i < p->nlines; i++)
		for (size_t k = 0; k < p->lines[i].npoints; k++)
			sizes[n++] = p->lines[i].points[k].bytes;
	qsort(sizes, n, sizeof(*sizes), by_size);
	for (size_t i = 0; i < n; i++)
		if (!made || !same_bytes(sizes[made - 1], sizes[i]))
			sizes[made++] = sizes[i];
	*ret_n = made;
	return sizes;
}

static void put_size(FILE *f, double bytes)
{
	char name[32];

	fprintf(f, "<th scope=\"row\">%s</th>", isnan(bytes) ? "any" : report_size_name(bytes, 1, name));
}

static void put_heading(FILE *f, const char *text, const char *unit)
{
	fputs("<th scope=\"col\">", f);
	report_put_text(f, text);
	if (unit)
		fprintf(f, " <span class=\"mut\">%s</span>", unit);
	fputs("</th>", f);
}

/* One row per size. Files compared have both figures beside their ratio. */
static void put_size_table(FILE *f, const struct report_plot *p)
{
	int compared = p->kind == REPORT_PLOT_COMPARE;
	const char *unit = p->kind == REPORT_PLOT_RATIO ? NULL : report_units[p->quantity];
	size_t n;
	double *sizes = all_sizes(p, &n);
	char letter[8], text[200];

	fputs("<div class=\"scroll\"><table><thead><tr><th scope=\"col\">size</th>", f);
	for (size_t i = 0; i < p->nlines; i++) {
		const struct report_line *l = &p->lines[i];

		if (compared) {
			snprintf(text, sizeof(text), "A: %.150s", l->a->name);
			put_heading(f, text, unit);
			put_heading(f, l->name, unit);
			snprintf(text, sizeof(text), "%s to A", report_letter(l->b->file, letter));
		}
		put_heading(f, compared ? text : l->name, compared ? NULL : unit);
	}
	fputs("</tr></thead><tbody>\n", f);
	for (size_t k = 0; sizes && k < n; k++) {
		fputs("<tr>", f);
		put_size(f, sizes[k]);
		for (size_t i = 0; i < p->nlines; i++) {
			const struct report_line *l = &p->lines[i];
			const struct report_point *t = point_at(l->points, l->npoints, sizes[k]);

			if (compared) {
				put_cell(f, point_at(l->a->points, l->a->npoints, sizes[k]));
				put_cell(f, point_at(l->b->points, l->b->npoints, sizes[k]));
			}
			if (unit && !compared)
				put_cell(f, t);
			else
				put_times(f, t ? t->median : NAN);
		}
		fputs("</tr>\n", f);
	}
	fputs("</tbody></table></div>\n", f);
	free(sizes);
}

/* The names of bars in the order in which they come; at most REPORT_STYLES. */
static size_t bar_names(const struct report_plot *p, const char **names)
{
	size_t n = 0;

	for (size_t i = 0; i < p->nlines; i++) {
		size_t k = 0;

		while (k < n && strcmp(names[k], p->lines[i].bar) != 0)
			k++;
		if (k == n && n < REPORT_STYLES)
			names[n++] = p->lines[i].bar;
	}
	return n;
}

static const struct report_line *bar_of(const struct report_plot *p, size_t from, const char *name)
{
	for (size_t i = from; i < p->nlines && strcmp(p->lines[i].category, p->lines[from].category) == 0; i++)
		if (strcmp(p->lines[i].bar, name) == 0)
			return &p->lines[i];
	return NULL;
}

/* One row per thing measured, with its peers and how many times better it is. */
static void put_bar_table(FILE *f, const struct report_plot *p)
{
	const char *names[REPORT_STYLES];
	size_t n = bar_names(p, names);
	char text[96];

	fputs("<div class=\"scroll\"><table class=\"left\"><thead><tr><th scope=\"col\"></th><th "
	      "scope=\"col\">size</th>",
	      f);
	for (size_t k = 0; k < n; k++)
		put_heading(f, names[k], report_units[p->quantity]);
	for (size_t k = 1; k < n; k++) {
		snprintf(text, sizeof(text), "to %.80s", names[k]);
		put_heading(f, text, NULL);
	}
	fputs("</tr></thead><tbody>\n", f);
	for (size_t i = 0; i < p->nlines; i++) {
		const struct report_line *own = bar_of(p, i, names[0]), *other;

		if (i && strcmp(p->lines[i].category, p->lines[i - 1].category) == 0)
			continue;
		fputs("<tr><th scope=\"row\">", f);
		report_put_text(f, p->lines[i].category);
		fputs("</th>", f);
		fprintf(f, "<td>%s</td>",
			isnan(p->lines[i].points[0].bytes) ? ""
							   : report_size_name(p->lines[i].points[0].bytes, 1, text));
		for (size_t k = 0; k < n; k++) {
			other = bar_of(p, i, names[k]);
			put_cell(f, other ? &other->points[0] : NULL);
		}
		for (size_t k = 1; k < n; k++) {
			other = bar_of(p, i, names[k]);
			put_times(f, own && other ? report_times_better(p->quantity, own->points[0].median,
									other->points[0].median)
						  : NAN);
		}
		fputs("</tr>\n", f);
	}
	fputs("</tbody></table></div>\n", f);
}

static void put_figure(FILE *f, const struct report_plot *p)
{
	fputs("<figure class=\"card\"><figcaption><h3>", f);
	report_put_text(f, p->title);
	fprintf(f, "</h3><span>%s</span></figcaption>\n", p->better);
	if (!p->bars && !p->table_only) {
		fputs("<ul class=\"leg\">", f);
		for (size_t i = 0; i < p->nlines; i++) {
			fputs("<li>", f);
			report_write_swatch(&p->lines[i], f);
			fputs("<span>", f);
			report_put_text(f, p->lines[i].name);
			fputs("</span></li>", f);
		}
		fputs("</ul>\n", f);
	}
	if (!p->table_only)
		report_write_svg(p, f);
	if (p->bars && p->kind != REPORT_PLOT_COMPARE)
		put_bar_table(f, p);
	else
		put_size_table(f, p);
	fputs("</figure>\n", f);
}

/* ---- sections ---- */

/* What stood beside a line of a plot. */
static const struct report_line *peer_of(const struct report_plot *p, const struct report_line *l)
{
	for (const struct report_line *k = l + 1; k < &p->lines[p->nlines]; k++)
		if (k->dashed && !k->level && k->a->file == l->a->file &&
		    (!k->a->peer || strcmp(k->a->name, l->a->name) == 0))
			return k;
	return NULL;
}

struct best {
	const struct report_line *line, *peer;
	const struct report_point *at;
};

static void find_best(const struct report_plot *p, enum report_quantity q, struct best *best)
{
	for (size_t k = 0; k < p->nlines; k++) {
		const struct report_line *l = &p->lines[k];

		for (size_t j = 0; j < l->npoints && !l->dashed; j++) {
			const struct report_point *at = &l->points[j];

			if (report_drawable(at->median) &&
			    (!best->at || report_times_better(q, at->median, best->at->median) > 1))
				*best = (struct best){l, peer_of(p, l), at};
		}
	}
}

/* The best figure of what was measured, not of its peers, and how it compares at that size. */
static void put_tile(FILE *f, const struct report_section *s, enum report_quantity q)
{
	static const char *const heads[] = {"Most bandwidth", "Least time", "Least CPU time"};
	const struct report_point *other = NULL;
	struct best b = {0};
	char text[32];

	for (size_t i = 0; i < s->nplots; i++)
		if (s->plots[i].kind == (enum report_kind)q)
			find_best(&s->plots[i], q, &b);
	if (!b.at)
		return;
	if (b.peer)
		other = point_at(b.peer->points, b.peer->npoints, b.at->bytes);
	fprintf(f, "<div class=\"card tile\"><span>%s</span><b>%s</b><span>", heads[q],
		report_value(b.at->median, (enum report_kind)q, text));
	if (!isnan(b.at->bytes))
		fprintf(f, "at %s", report_size_name(b.at->bytes, 1, text));
	fputs("</span><span>", f);
	report_put_text_cut(f, b.line->name, 40);
	fputs("</span>", f);
	if (other && report_drawable(b.at->median / other->median)) {
		fprintf(f, "<span>%s ", report_times(b.at->median / other->median, text));
		report_put_text_cut(f, b.peer->a->peer ? b.peer->a->peer : b.peer->name, 40);
		fputs("</span>", f);
	}
	fputs("</div>\n", f);
}

static void put_section(FILE *f, const struct report_section *s, size_t number)
{
	fprintf(f, "<section id=\"s%zu\"><h2>", number);
	report_put_text(f, s->title);
	fprintf(f, "</h2><p class=\"mut\">%s</p>\n<div class=\"tiles\">", report_ops[s->op].about);
	for (int q = 0; q < REPORT_QUANTITIES; q++)
		put_tile(f, s, (enum report_quantity)q);
	fputs("</div><div class=\"plots\">\n", f);
	for (size_t i = 0; i < s->nplots; i++)
		put_figure(f, &s->plots[i]);
	fputs("</div></section>\n", f);
}

/* By default the operations. */
static void put_title(FILE *f, const struct report *r, const struct report_plan *p, const char *title)
{
	int seen[REPORT_OPS] = {0}, n = 0;

	if (title) {
		report_put_text(f, title);
		return;
	}
	for (size_t i = 0; i < p->nsections; i++)
		if (!seen[p->sections[i].op]++)
			fprintf(f, "%s%s", n++ ? ", " : "", report_ops[p->sections[i].op].title);
	if (r->nfiles > 1)
		fprintf(f, ": %zu files compared", r->nfiles);
}

static int has_comparison(const struct report_plan *p)
{
	for (size_t i = 0; i < p->nsections; i++)
		for (size_t k = 0; k < p->sections[i].nplots; k++)
			if (p->sections[i].plots[k].kind == REPORT_PLOT_COMPARE)
				return 1;
	return 0;
}

void report_write_page(const struct report *r, const struct report_plan *p, const char *title, FILE *f)
{
	fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
	      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Gantry: ",
	      f);
	put_title(f, r, p, title);
	fputs("</title>\n<style>", f);
	report_write_css(f, 1);
	fprintf(f, "%s</style></head>\n<body><main><p class=\"eye\">Gantry report</p><h1>", page_rules);
	put_title(f, r, p, title);
	fputs("</h1>\n", f);
	put_alarms(f, r);
	fputs("<div class=\"runs\">\n", f);
	for (size_t i = 0; i < r->nfiles; i++)
		put_file(f, r, i);
	fputs("</div>\n", f);
	if (r->nfiles > 1 && !has_comparison(p))
		fputs("<p class=\"note\">The files have no operation in common; there is nothing to compare.</p>\n", f);
	if (p->nsections > 1) {
		fputs("<nav class=\"card\"><h3>Contents</h3><ul>", f);
		for (size_t i = 0; i < p->nsections; i++) {
			fprintf(f, "<li><a href=\"#s%zu\">", i + 1);
			report_put_text(f, p->sections[i].title);
			fputs("</a></li>", f);
		}
		fputs("</ul></nav>\n", f);
	}
	for (size_t i = 0; i < p->nsections; i++)
		put_section(f, &p->sections[i], i + 1);
	fprintf(f,
		"<footer>GB is 10<sup>9</sup> bytes, MiB is 2<sup>20</sup> bytes. Figures are medians; whiskers and "
		"small "
		"figures are the least and the most of the repeats, where the files have them. Times better: bandwidth "
		"divided by the "
		"other's, time and CPU time the other way round. Made by gantry report "
		"%s.</footer></main></body></html>\n",
		GANTRY_VERSION);
}

void report_write_json(const struct report *r, const struct report_plan *plan, FILE *f)
{
	for (size_t i = 0; i < r->nseries; i++) {
		const struct report_series *s = &r->series[i];

		for (size_t k = 0; k < s->npoints && report_plan_has(plan, s); k++) {
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
