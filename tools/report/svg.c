/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --svg: one plot as a picture with labels at its lines. Pages draw their plots themselves (page.html), but a README or a
 * slide runs no script. Colours, dashes and fonts are the page's own rules.
 */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/series.h"

enum {
	STYLES = 8,
	BARS_MAX = 24,
	TICKS_MAX = 9,
	SIZE_TICKS_MAX = 7,
	LABEL_CHARS = 30,
	LABEL_STEP = 17,
	BAR_CHARS = 60
};
enum { WIDTH = 760, HEIGHT = 420, LEFT = 70, TOP = 114, RIGHT = 468, BOTTOM = 366 }; /* the area inside the axes */
#define ALMOST 1e-9 /* ticks that rounding has put beside an end are at it */

struct line {
	char name[256];
	const char *bar; /* what a bar is called below the name */
	const struct report_point *points, *end;
	struct report_point *owned; /* the same if they were made for this line; else NULL */
	int style, beside;
	double y; /* of its label */
};

struct axis {
	double lo, hi, at[TICKS_MAX];
	size_t n;
};

struct picture {
	const struct report *r;
	const struct report_section *s;
	int kind, quantity; /* a quantity or enum report_kind; not of a ratio */
	int bars;	    /* there are no sizes to draw over */
	const char *only;   /* the name of all series, which needs no saying at each; NULL: they have several */
	size_t n, total;    /* lines that are shown, and all */
	struct line lines[BARS_MAX];
	struct axis x, y;
};

#define EACH_SERIES(s, p)                                                                                              \
	for (const struct report_series *s = (p)->r->series; s < (p)->r->series + (p)->r->nseries; s++)

/* ---- lines ---- */

/* Called "A: name (commit)" and more. NULL: the picture is full. */
static struct line *add_line(struct picture *p, const struct report_series *s, const char *more)
{
	const int files = p->r->nfiles > 1, commit = s->named_commit;
	struct line *l = &p->lines[p->n];
	char letter[8];

	p->total++;
	if (p->n == (size_t)(p->bars ? BARS_MAX : STYLES))
		return NULL;
	snprintf(l->name, sizeof(l->name), "%s%s%s%s%s%s%s", files ? report_letter(s->file, letter) : "",
		 files ? ": " : "", s->name, commit ? " (" : "", commit ? s->commit : "", commit ? ")" : "", more);
	if (p->only && strncmp(more, ": ", 2) == 0)
		snprintf(l->name, sizeof(l->name), "%s", more + 2);
	l->points = s->points;
	l->end = s->points + s->npoints;
	l->beside = p->kind < REPORT_QUANTITIES && report_is_beside(s);
	l->style = (int)p->n++ % STYLES;
	return l;
}

static void add_series(struct picture *p, const struct report_series *s)
{
	char more[96];

	snprintf(more, sizeof(more), ": %s", s->peer ? s->peer : "");
	add_line(p, s, s->peer ? more : "");
}

static void add_ratio(struct picture *p, const struct report_series *a, const struct report_series *b)
{
	size_t n = report_ratio(a, b, NULL);
	struct line *l;
	char more[256];

	if (b->peer)
		snprintf(more, sizeof(more), ": %s to %s", report_quantity_word(a->op, (int)a->quantity), b->peer);
	else
		snprintf(more, sizeof(more), " to %s", b->name);
	l = n ? add_line(p, a, p->kind == REPORT_RATIO ? more : "") : NULL;
	if (!l)
		return;
	l->points = l->end = l->owned = calloc(n, sizeof(*l->owned));
	if (l->owned)
		l->end += report_ratio(a, b, l->owned);
}

static void add_bar(struct picture *p, const struct report_series *s, const struct report_point *at, int style)
{
	char size[32], more[48];
	struct line *l;

	snprintf(more, sizeof(more), ", %s", isnan(at->bytes) ? "any size" : report_size_name(at->bytes, 1, size));
	l = add_line(p, s, s->npoints > 1 ? more : "");
	if (!l)
		return;
	l->bar = s->peer ? s->peer : report_bar_name(s->op);
	l->points = at;
	l->style = style % STYLES;
}

/* A bar for each size of a series, with its peers below it. */
static void add_bars(struct picture *p, const struct report_series *own)
{
	for (const struct report_point *at = own->points; at < own->points + own->npoints; at++) {
		int style = 0;

		add_bar(p, own, at, style++);
		EACH_SERIES (s, p)
			for (size_t i = 0; i < s->npoints && s->peer && report_is_peer(own, s); i++)
				if (s->points[i].bytes == at->bytes || (isnan(s->points[i].bytes) && isnan(at->bytes)))
					add_bar(p, s, &s->points[i], style++);
	}
}

/* What was measured first, then what stood beside it, then lines across. */
static void add_quantity(struct picture *p)
{
	for (int rank = 0; rank < 3; rank++) {
		EACH_SERIES (s, p) {
			int its = !p->bars && isnan(s->points[0].bytes) ? 2 : report_is_beside(s);

			if (!report_in_section(p->s, s) || (int)s->quantity != p->kind || its != rank)
				continue;
			if (!p->bars)
				add_series(p, s);
			else if (!s->peer)
				add_bars(p, s);
		}
	}
}

static void add_ratios(struct picture *p)
{
	EACH_SERIES (a, p) {
		EACH_SERIES (b, p)
			if (p->kind == REPORT_RATIO && report_in_section(p->s, a) && report_is_peer(a, b))
				add_ratio(p, a, b);
		for (size_t file = 1; file < p->r->nfiles && p->kind == REPORT_COMPARE; file++) {
			const struct report_series *b = NULL;

			if (report_in_section(p->s, a) && !a->file && !a->peer && (int)a->quantity == p->quantity)
				b = report_counterpart(p->r, a, file);
			if (b)
				add_ratio(p, b, a);
		}
	}
}

static void find_lines(struct picture *p)
{
	p->bars = 1;
	p->only = p->r->nfiles == 1 ? "" : NULL;
	EACH_SERIES (s, p) {
		if (!report_in_section(p->s, s))
			continue;
		if (s->npoints > 1 && s->points[s->npoints - 2].bytes > 0)
			p->bars = 0;
		if (p->only)
			p->only = (!*p->only || strcmp(p->only, s->name) == 0) && !s->named_commit ? s->name : NULL;
	}
	p->quantity = p->kind < REPORT_QUANTITIES ? p->kind : 0;
	if (p->kind < REPORT_QUANTITIES)
		add_quantity(p);
	else if (!p->bars)
		for (add_ratios(p); !p->n && p->quantity + 1 < REPORT_QUANTITIES; add_ratios(p))
			p->quantity++;
}

static void free_lines(struct picture *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->lines[i].owned);
}

size_t report_picture_lines(const struct report *r, const struct report_section *s, int kind)
{
	struct picture p = {.r = r, .s = s, .kind = kind};

	find_lines(&p);
	free_lines(&p);
	return p.total;
}

/* ---- logarithmic axes ---- */

/* Ticks at these steps of every so many powers; how many there are. */
static size_t find_ticks(struct axis *axis, double base, const double *steps, int every)
{
	size_t n = 0;

	for (int e = (int)floor(log(axis->lo) / log(base)); e <= (int)ceil(log(axis->hi) / log(base)); e++) {
		for (const double *s = steps; *s > 0 && e % every == 0; s++) {
			double v = *s * pow(base, e);

			if (v >= axis->lo * (1 - ALMOST) && v <= axis->hi * (1 + ALMOST) && n++ < TICKS_MAX)
				axis->at[n - 1] = v;
		}
	}
	axis->n = n < TICKS_MAX ? n : TICKS_MAX;
	return n;
}

static const double fine[] = {1, 1.5, 2, 3, 4, 5, 6, 8, 0}, middle[] = {1, 2, 5, 0}, coarse[] = {1, 0};

static void find_size_axis(struct axis *axis, double lo, double hi)
{
	double room = hi > lo ? pow(hi / lo, 0.025) : 2; /* the first and the last mark stand clear of the frame */
	int every = 1;

	*axis = (struct axis){.lo = lo, .hi = hi};
	while (find_ticks(axis, 2, coarse, every) > SIZE_TICKS_MAX)
		every = every == 2 ? 5 : 2 * every;
	if (axis->n < 2) { /* sizes close to each other: themselves */
		axis->at[0] = lo;
		axis->at[1] = hi;
		axis->n = hi > lo ? 2 : 1;
	}
	axis->lo /= room;
	axis->hi *= room;
}

/* The next 1, 2 or 5 times a power of ten: at or below v, or at or above it. */
static double snap(double v, int up)
{
	static const double steps[] = {1, 2, 5, 10};
	double unit = pow(10, floor(log10(v) + ALMOST));
	size_t i = 0;

	while (i < 3 && unit * steps[i] < v * (1 - ALMOST))
		i++;
	return up || !i || unit * steps[i] <= v * (1 + ALMOST) ? unit * steps[i] : unit * steps[i - 1];
}

static void find_value_axis(struct axis *axis, double lo, double hi)
{
	int every = 1;

	*axis = (struct axis){.lo = snap(lo, 0), .hi = snap(hi, 1)};
	if (axis->hi < axis->lo * 2 * (1 - ALMOST))
		*axis = (struct axis){.lo = snap(axis->lo * 0.9, 0), .hi = snap(axis->hi * 1.1, 1)};
	if (find_ticks(axis, 10, fine, 1) > TICKS_MAX && find_ticks(axis, 10, middle, 1) > TICKS_MAX)
		while (find_ticks(axis, 10, coarse, every) > TICKS_MAX)
			every++;
}

static int is_across(const struct report_point *t)
{
	return isnan(t->bytes) && report_drawable(t->median);
}

static int is_dot(const struct report_point *t)
{
	return report_drawable(t->bytes) && report_drawable(t->median);
}

static void widen(double range[2], double v)
{
	range[0] = report_drawable(v) ? fmin(range[0], v) : range[0];
	range[1] = report_drawable(v) ? fmax(range[1], v) : range[1];
}

/* 1: there is something to draw over sizes. */
static int find_axes(struct picture *p)
{
	double x[2] = {INFINITY, 0}, y[2] = {INFINITY, 0};

	for (const struct line *l = p->lines; l < p->lines + p->n; l++) {
		for (const struct report_point *t = l->points; t < l->end; t++) {
			widen(x, is_dot(t) ? t->bytes : 0);
			if (is_dot(t) || is_across(t))
				widen(y, t->min), widen(y, t->median), widen(y, t->max);
		}
	}
	if (x[1] <= 0)
		return 0;
	widen(y, p->kind >= REPORT_QUANTITIES ? 1 : 0);
	find_size_axis(&p->x, x[0], x[1]);
	find_value_axis(&p->y, y[0], y[1]);
	return 1;
}

static double x_at(const struct picture *p, double bytes)
{
	return LEFT + (RIGHT - LEFT) * log(bytes / p->x.lo) / log(p->x.hi / p->x.lo);
}

static double y_at(const struct picture *p, double value)
{
	return BOTTOM - (BOTTOM - TOP) * log(value / p->y.lo) / log(p->y.hi / p->y.lo);
}

/* ---- drawing ---- */

/* With its unit: "3.42 µs", "13.3 ms", "11.9 GB/s", "2.42×" of a ratio; three digits that count. */
static const char *value_text(double v, int kind, char buf[48])
{
	const char *unit = kind < REPORT_QUANTITIES ? report_units[kind] : "\303\227";

	if (kind == REPORT_LATENCY && !(v >= 0.9995 && v < 999.5)) {
		unit = v >= 999500 ? "s" : v >= 999.5 ? "ms" : "ns";
		v *= v >= 999500 ? 1e-6 : v >= 999.5 ? 1e-3 : 1e3;
	}
	snprintf(buf, 48, v >= 999.5 ? "%.0f%s%s" : "%.3g%s%s", v, kind < REPORT_QUANTITIES ? " " : "", unit);
	return buf;
}

static void put_axes(const struct picture *p, FILE *f)
{
	const int beside = p->kind == REPORT_BANDWIDTH || p->kind == REPORT_CPU; /* times have the unit at each tick */
	char text[48];

	fprintf(f, "<path class=\"a\" d=\"M%d %dH%d\"/>", LEFT, BOTTOM, RIGHT);
	for (size_t i = 0; i < p->y.n; i++) {
		double y = y_at(p, p->y.at[i]);

		value_text(p->y.at[i], p->kind, text);
		if (beside)
			snprintf(text, sizeof(text), "%.6g", p->y.at[i]);
		fprintf(f, "<path class=\"g\" d=\"M%d %.1fH%d\"/><text class=\"t e\" x=\"%d\" y=\"%.1f\">%s</text>\n",
			LEFT, y, RIGHT, LEFT - 7, y + 4, text);
	}
	for (size_t i = 0; i < p->x.n; i++) {
		double x = x_at(p, p->x.at[i]);

		fprintf(f, "<path class=\"g\" d=\"M%.1f %dV%d\"/><text class=\"t c\" x=\"%.1f\" y=\"%d\">%s</text>\n",
			x, TOP, BOTTOM, x, BOTTOM + 18, report_size_name(p->x.at[i], 0, text));
	}
	if (p->kind >= REPORT_QUANTITIES)
		fprintf(f, "<path class=\"one\" d=\"M%d %.1fH%d\"/>", LEFT, y_at(p, 1), RIGHT);
	fprintf(f, "<text class=\"t c\" x=\"%d\" y=\"%d\">message size</text>", (LEFT + RIGHT) / 2, BOTTOM + 36);
	if (beside)
		fprintf(f, "<text class=\"t e\" x=\"%d\" y=\"%d\">%s</text>", LEFT - 7, TOP - 16,
			report_units[p->kind]);
}

static void put_line(const struct picture *p, const struct line *l, FILE *f)
{
	/* Circle, square, triangle, diamond, the triangle's other directions, bow. */
	static const char *const marks[STYLES] = {"m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
						  "m-3.4 -3.4h6.8v6.8h-6.8z",
						  "m0 -4.3l4.3 7.9h-8.6z",
						  "m0 -4.7l4.7 4.7l-4.7 4.7l-4.7 -4.7z",
						  "m0 4.3l4.3 -7.9h-8.6z",
						  "m-4.3 0l7.9 -4.3v8.6z",
						  "m4.3 0l-7.9 -4.3v8.6z",
						  "m-4 -3.6l8 7.2v-7.2l-8 7.2z"};
	int dots = 0;

	fprintf(f, "<g class=\"s%d\"><path class=\"l%s\" d=\"", l->style,
		l->points < l->end && isnan(l->points->bytes) ? " v"
		: l->beside				      ? " d"
							      : "");
	for (const struct report_point *t = l->points; t < l->end; t++) {
		if (is_dot(t))
			fprintf(f, "%c%.1f %.1f", dots++ ? 'L' : 'M', x_at(p, t->bytes), y_at(p, t->median));
		else if (is_across(t))
			fprintf(f, "M%d %.1fH%d", LEFT, y_at(p, t->median), RIGHT);
	}
	fputs("\"/>", f);
	for (const struct report_point *t = l->points; t < l->end; t++) {
		if (!is_dot(t))
			continue;
		if (t->min < t->max && report_drawable(t->min) && report_drawable(t->max))
			fprintf(f, "<path class=\"w\" d=\"M%.1f %.1fh6m-3 0V%.1fm-3 0h6\"/>", x_at(p, t->bytes) - 3,
				y_at(p, t->min), y_at(p, t->max));
		fprintf(f, "<path class=\"m%s\" d=\"M%.1f %.1f%s\"/>", l->beside ? " o" : "", x_at(p, t->bytes),
			y_at(p, t->median), marks[l->style]);
	}
	fputs("</g>\n", f);
}

static const struct report_point *last_drawn(const struct line *l)
{
	for (const struct report_point *t = l->end; t > l->points; t--)
		if (is_dot(t - 1) || is_across(t - 1))
			return t - 1;
	return NULL;
}

static int by_height(const void *a, const void *b)
{
	double x = (*(struct line *const *)a)->y, y = (*(struct line *const *)b)->y;

	return (x > y) - (x < y);
}

/* In order of the ends of their lines, and as near to them as their height allows. */
static void put_labels(struct picture *p, FILE *f)
{
	struct line *sorted[BARS_MAX];
	char value[48];
	size_t n = 0;

	for (struct line *l = p->lines; l < p->lines + p->n; l++) {
		if (last_drawn(l)) {
			l->y = y_at(p, last_drawn(l)->median);
			sorted[n++] = l;
		}
	}
	qsort(sorted, n, sizeof(*sorted), by_height);
	for (size_t i = 1; i < n; i++)
		sorted[i]->y = fmax(sorted[i]->y, sorted[i - 1]->y + LABEL_STEP);
	for (size_t i = n; i > 0; i--) /* what was pushed out at the bottom pushes back */
		sorted[i - 1]->y = fmin(sorted[i - 1]->y, i == n ? BOTTOM : sorted[i]->y - LABEL_STEP);
	for (size_t i = 0; i < n; i++) {
		const struct report_point *last = last_drawn(sorted[i]);

		fprintf(f, "<g class=\"s%d\"><path class=\"k\" d=\"M%.1f %.1fL%d %.1f\"/></g>", sorted[i]->style,
			is_dot(last) ? x_at(p, last->bytes) + 7 : RIGHT, y_at(p, last->median), RIGHT + 12,
			sorted[i]->y);
		fprintf(f, "<text x=\"%d\" y=\"%.1f\">", RIGHT + 16, sorted[i]->y + 4);
		report_put_text_cut(f, sorted[i]->name, LABEL_CHARS);
		fprintf(f, "<tspan class=\"t\" dx=\"6\">%s</tspan></text>\n", value_text(last->median, p->kind, value));
	}
}

/* Returns how high the picture is. */
static double put_bars(const struct picture *p, FILE *f)
{
	double longest = 1e-300, y = 90;
	char value[48];

	for (size_t i = 0; i < p->n; i++)
		longest = fmax(longest, p->lines[i].points->max);
	for (const struct line *l = p->lines; l < p->lines + p->n; l++, y += 17) {
		const struct report_point *t = l->points;
		double full = WIDTH - 248, w = fmax(t->median / longest * full, 1),
		       hi = fmax(t->max / longest * full, w);

		if (!l->style) {
			y += l == p->lines ? 20 : 32;
			fprintf(f, "<text x=\"24\" y=\"%.1f\">", y - 7);
			report_put_text_cut(f, l->name, BAR_CHARS);
			fputs("</text>", f);
		}
		fprintf(f, "<rect class=\"b s%d\" x=\"24\" y=\"%.1f\" width=\"%.1f\" height=\"13\" rx=\"2\"/>",
			l->style, y, w);
		if (t->min < t->max)
			fprintf(f, "<path class=\"u\" d=\"M%.1f %.1fv5m0 -2.5H%.1fm0 -2.5v5\"/>",
				24 + fmax(t->min / longest * full, 0), y + 4, 24 + hi);
		fprintf(f, "<text x=\"%.1f\" y=\"%.1f\"><tspan class=\"n\">%s</tspan><tspan class=\"t\" dx=\"6\">",
			31 + hi, y + 10.5, value_text(t->median, p->kind, value));
		report_put_text_cut(f, l->bar, LABEL_CHARS);
		fputs("</tspan></text>\n", f);
	}
	return y + 16;
}

/* Returns how high the picture is. */
static double put_plot(struct picture *p, FILE *f)
{
	if (p->bars)
		return put_bars(p, f);
	if (find_axes(p)) {
		put_axes(p, f);
		/* What was measured lies over what stands beside it. */
		for (int beside = 1; beside >= 0; beside--)
			for (size_t i = 0; i < p->n; i++)
				if (p->lines[i].beside == beside)
					put_line(p, &p->lines[i], f);
		put_labels(p, f);
	}
	return HEIGHT;
}

static void put_heading(const struct picture *p, FILE *f)
{
	static const char *const better[] = {"higher is better", "lower is better", "lower is better",
					     "above 1\303\227 it is ahead of its peer",
					     "above 1\303\227 the later file is better"};
	const char *what =
		p->kind == REPORT_RATIO ? "Times better than the peer" : report_quantity_title(p->s->op, p->quantity);
	const struct report_run *run = p->r->files[0].nruns ? &p->r->files[0].runs[0] : NULL;

	fputs("<text class=\"h\" x=\"24\" y=\"34\">", f);
	report_put_text_cut(f, p->s->title, 50);
	/* "Bandwidth" goes on in small letters, "CPU" does not. */
	fprintf(f, ", %s%c%s</text><text class=\"t\" x=\"24\" y=\"55\">%s</text><text class=\"t\" x=\"24\" y=\"72\">",
		p->kind == REPORT_COMPARE ? "compared with A: " : "",
		isupper((unsigned char)what[1]) ? what[0] : tolower((unsigned char)what[0]), what + 1,
		report_ops[p->s->op].about);
	report_put_text_cut(f, run ? run->fields[REPORT_MACHINE] : "", 60);
	fputs(run && *run->fields[REPORT_MACHINE] ? "; " : "", f);
	fputs(run && *run->fields[REPORT_NCCL] ? "NCCL " : "", f);
	report_put_text_cut(f, run ? run->fields[REPORT_NCCL] : "", 12);
	fputs(run && *run->fields[REPORT_NCCL] ? "; " : "", f);
	fprintf(f, "%s</text>\n", better[p->kind]);
}

size_t report_write_picture(const struct report *r, const struct report_section *s, int kind, const char *made_by,
			    FILE *f)
{
	struct picture p = {.r = r, .s = s, .kind = kind};
	const char *rules = strstr(report_template, ":root{"), *end = strstr(report_template, "/* End of plots */");
	char *plot = NULL;
	size_t n = 0;
	FILE *inner = open_memstream(&plot, &n);
	double height;

	find_lines(&p);
	height = inner ? put_plot(&p, inner) : HEIGHT;
	if (inner)
		fclose(inner);
	fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"",
		WIDTH, height);
	report_put_text(f, s->title);
	fputs("\"><desc>", f);
	report_put_text(f, made_by);
	/* A background of its own: where the picture is shown may be light or dark, whatever the reader prefers. */
	fprintf(f,
		"</desc><style>%.*s</style>\n<rect x=\".5\" y=\".5\" width=\"%d\" height=\"%.0f\" rx=\"8\" "
		"fill=\"var(--card)\" stroke=\"var(--line)\"/>",
		(int)(end - rules), rules, WIDTH - 1, height - 1);
	put_heading(&p, f);
	fputs(plot ? plot : "", f);
	fputs("</svg>\n", f);
	free(plot);
	free_lines(&p);
	return p.total - p.n;
}
