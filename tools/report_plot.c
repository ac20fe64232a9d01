/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plots as SVG. Colours, dashes and fonts are classes whose rules stand in the page, or in the file itself if there is
 * no page; coordinates are those of a viewBox, so that a plot is as wide as the place it is given.
 */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* Where a plot has what. */
struct frame {
	double width, height;		 /* of the picture */
	double left, top, right, bottom; /* of the area inside the axes */
	struct report_axis x, y;
};

/* ---- logarithmic axes ---- */

/* Beyond these there is no figure of a measurement, and arithmetic has its limits. */
#define VALUE_MIN 1e-9
#define VALUE_MAX 1e12
#define ALMOST 1e-9 /* ticks that rounding has put beside an end are at it */

int report_drawable(double v)
{
	return v >= VALUE_MIN && v <= VALUE_MAX;
}

double report_axis_at(const struct report_axis *axis, double value)
{
	return log(value / axis->lo) / log(axis->hi / axis->lo);
}

/* Powers of two that get a label, from dense to sparse: 1, 2, 4, 8 ...; 1, 4, 16, 64 ...; 64 B, 1 KiB, 64 KiB, 1 MiB
 * ...; 1 KiB, 1 MiB ...; 1 B, 1 MiB ... */
static int has_tick(int level, int exponent)
{
	switch (level) {
	case 0:
		return 1;
	case 1:
		return exponent % 2 == 0;
	case 2:
		return exponent % 10 == 0 || exponent % 10 == 6;
	case 3:
		return exponent % 10 == 0;
	default:
		return exponent % 20 == 0;
	}
}

static void add_size_tick(struct report_axis *axis, double at)
{
	struct report_tick *t = &axis->ticks[axis->nticks++];

	t->at = at;
	report_size_name(at, 0, t->label);
}

void report_size_axis(double lo, double hi, struct report_axis *ret)
{
	int first = (int)ceil(log2(lo) - ALMOST), last = (int)floor(log2(hi) + ALMOST), level = 0, n;

	*ret = (struct report_axis){.lo = lo, .hi = hi};
	if (hi <= lo) {
		add_size_tick(ret, lo);
		ret->lo = lo / 2;
		ret->hi = lo * 2;
		return;
	}
	for (;; level++) {
		n = 0;
		for (int e = first; e <= last; e++)
			n += has_tick(level, e);
		if (n <= REPORT_SIZE_TICKS_MAX)
			break;
	}
	for (int e = first; e <= last; e++)
		if (has_tick(level, e))
			add_size_tick(ret, ldexp(1, e));
	if (ret->nticks < 2) { /* sizes close to each other: themselves */
		ret->nticks = 0;
		add_size_tick(ret, lo);
		add_size_tick(ret, hi);
	}
}

static const double coarse[] = {1}, middle[] = {1, 2, 5}, fine[] = {1, 1.5, 2, 3, 4, 5, 6, 8};
static const struct {
	const double *steps;
	size_t n;
} densities[] = {{fine, 8}, {middle, 3}, {coarse, 1}};

static void add_value(struct report_axis *axis, double at, enum report_kind kind)
{
	struct report_tick *t = &axis->ticks[axis->nticks++];

	t->at = at;
	/* Times have units of their own, from ns to s; others have it beside the axis. */
	if (kind == REPORT_PLOT_LATENCY || kind == REPORT_PLOT_RATIO || kind == REPORT_PLOT_COMPARE)
		report_value(at, kind, t->label);
	else
		snprintf(t->label, sizeof(t->label), "%.6g", at);
}

/* Counts ticks of a density in every `decades`-th decade, and adds them if `add`. */
static size_t walk(struct report_axis *axis, size_t density, int decades, enum report_kind kind, int add)
{
	int first = (int)floor(log10(axis->lo)), last = (int)ceil(log10(axis->hi));
	size_t n = 0;

	for (int e = first; e <= last; e++) {
		for (size_t i = 0; i < densities[density].n; i++) {
			double v = densities[density].steps[i] * pow(10, e);

			if (e % decades || v < axis->lo * (1 - ALMOST) || v > axis->hi * (1 + ALMOST))
				continue;
			n++;
			if (add)
				add_value(axis, v, kind);
		}
	}
	return n;
}

/* The next 1, 2 or 5 times a power of ten: at or below v, or at or above it. */
static double snap(double v, int up)
{
	int e = (int)floor(log10(v));
	double best = up ? 10 * pow(10, e + 1) : pow(10, e - 1);

	for (int k = e - 1; k <= e + 1; k++) {
		for (size_t i = 0; i < 3; i++) {
			double s = middle[i] * pow(10, k);

			if (up && s >= v * (1 - ALMOST) && s < best)
				best = s;
			if (!up && s <= v * (1 + ALMOST) && s > best)
				best = s;
		}
	}
	return best;
}

void report_value_axis(double lo, double hi, enum report_kind kind, struct report_axis *ret)
{
	size_t density = 0;
	int decades = 1;

	*ret = (struct report_axis){.lo = snap(lo, 0), .hi = snap(hi, 1)};
	if (ret->hi < ret->lo * 2 * (1 - ALMOST)) {
		ret->lo = snap(ret->lo * 0.9, 0);
		ret->hi = snap(ret->hi * 1.1, 1);
	}
	while (walk(ret, density, decades, kind, 0) > REPORT_TICKS_MAX) {
		if (density + 1 < sizeof(densities) / sizeof(densities[0]))
			density++;
		else
			decades++;
	}
	walk(ret, density, decades, kind, 1);
	/* 2 and 5 show that the axis is logarithmic. */
	for (size_t i = 0; densities[density].n == 1 && decades == 1 && i < ret->nticks; i++) {
		const double at[] = {ret->ticks[i].at / 5, ret->ticks[i].at / 2, ret->ticks[i].at * 2,
				     ret->ticks[i].at * 5};

		/* Those below a tick belong to the one before it, if there is one. */
		for (size_t k = i ? 2 : 0; k < 4; k++)
			if (at[k] > ret->lo && at[k] < ret->hi)
				ret->minor[ret->nminor++] = at[k];
	}
}

/* ---- classes ---- */

enum { LABEL_CHARS = 34, BAR_CHARS = 60 };

static const char rules[] =
	/* Text: muted, to the end, centred, heading, strong */
	"svg text{fill:var(--fg);font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
	"svg .t{fill:var(--mut)}svg .e{text-anchor:end}svg .c{text-anchor:middle}"
	"svg .h{font-size:17px;font-weight:600}svg .n{font-weight:600}"
	/* Grid, its finer lines, axis, the line at 1 */
	".g{stroke:var(--grid);fill:none}.f{opacity:.5}.a{stroke:var(--axis);fill:none}"
	".one{stroke:var(--mut);fill:none;stroke-width:1.5}"
	/* Line, line of a peer, line across */
	".l{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
	".d{stroke-dasharray:1 5;stroke-width:2.4}.v{stroke-dasharray:8 5;stroke-width:1.6}"
	/* Mark, mark of a peer, whiskers, bar, its whiskers, line to a label */
	".m{fill:currentColor;stroke:currentColor;stroke-width:1.5;stroke-linejoin:round}.d+.m,.m.o{fill:var(--card)}"
	".w{fill:none;stroke:currentColor;stroke-width:1.2;opacity:.75}.b{fill:currentColor}"
	".u{fill:none;stroke:var(--fg);stroke-width:1.2}.k{stroke:currentColor;fill:none;opacity:.45}"
	".s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}"
	".s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}";

/* Told apart by people who see red and green alike, and at least 3:1 against their background (text 4.5:1). */
static const char light[] =
	"--bg:#f6f7f9;--card:#fff;--fg:#1c2128;--mut:#59636e;--grid:#e4e8ec;--axis:#8b949e;--line:#d5dae0;"
	"--bad:#b42318;--badbg:#fdecea;"
	"--s0:#0b63b5;--s1:#c24e00;--s2:#00806a;--s3:#9b3da0;--s4:#7a6200;--s5:#c2255c;--s6:#3f7fae;"
	"--s7:#555b66";
static const char dark[] =
	"--bg:#0e1116;--card:#161b22;--fg:#e6eaf0;--mut:#9ba6b2;--grid:#272e38;--axis:#5f6b79;--line:#2d3540;"
	"--bad:#ff9a90;--badbg:#3a1d1c;"
	"--s0:#5eb1ff;--s1:#ff9e4a;--s2:#3ccfae;--s3:#df8fe6;--s4:#d8c04a;--s5:#ff7fa8;--s6:#9cc9ea;"
	"--s7:#b4bcc8";

void report_write_css(FILE *f, int page)
{
	const char *root = page ? ":root" : "svg";

	fprintf(f, "%s{color-scheme:light dark;%s}@media(prefers-color-scheme:dark){%s{%s}}%s", root, light, root, dark,
		rules);
}

/* ---- marks ---- */

static void put_marker(FILE *f, int style, double x, double y, double r)
{
	static const double diamond[] = {0, -1.3, 1.3, 0, 0, 1.3, -1.3, 0}, up[] = {0, -1.2, 1.2, 1, -1.2, 1},
			    down[] = {0, 1.2, 1.2, -1, -1.2, -1},
			    square[] = {-.95, -.95, .95, -.95, .95, .95, -.95, .95},
			    left[] = {-1.2, 0, 1, -1.2, 1, 1.2}, right[] = {1.2, 0, -1, -1.2, -1, 1.2},
			    bow[] = {-1.1, -1, 1.1, 1, 1.1, -1, -1.1, 1};
	static const struct {
		const double *at;
		size_t n;
	} shapes[REPORT_STYLES] = {{NULL, 0}, {square, 4}, {up, 3},    {diamond, 4},
				   {down, 3}, {left, 3},   {right, 3}, {bow, 4}};

	if (!shapes[style].at) {
		fprintf(f, "M%.1f %.1fa%.1f %.1f 0 1 0 %.1f 0a%.1f %.1f 0 1 0 %.1f 0z", x - r, y, r, r, 2 * r, r, r,
			-2 * r);
		return;
	}
	for (size_t i = 0; i < shapes[style].n; i++)
		fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', x + r * shapes[style].at[2 * i],
			y + r * shapes[style].at[2 * i + 1]);
	fputc('z', f);
}

static const char *line_class(const struct report_line *l)
{
	return l->level ? " v" : l->dashed ? " d" : "";
}

void report_write_swatch(const struct report_line *l, FILE *f)
{
	fprintf(f,
		"<svg class=\"sw s%d\" viewBox=\"0 0 30 12\" width=\"30\" height=\"12\" aria-hidden=\"true\"><path "
		"class=\"l%s\" "
		"d=\"M1 6H29\"/>",
		l->style, line_class(l));
	if (!l->level) {
		fputs("<path class=\"m\" d=\"", f);
		put_marker(f, l->style, 15, 6, 3.6);
		fputs("\"/>", f);
	}
	fputs("</svg>", f);
}

/* ---- lines over sizes ---- */

static double x_at(const struct frame *fr, double bytes)
{
	return fr->left + (fr->right - fr->left) * report_axis_at(&fr->x, bytes);
}

static double y_at(const struct frame *fr, double value)
{
	return fr->bottom - (fr->bottom - fr->top) * report_axis_at(&fr->y, value);
}

static int is_across(const struct report_point *p)
{
	return isnan(p->bytes) && report_drawable(p->median);
}

static int is_dot(const struct report_point *p)
{
	return p->bytes > 0 && report_drawable(p->bytes) && report_drawable(p->median);
}

struct range {
	double lo, hi;
};

static void widen(struct range *r, double v)
{
	if (!report_drawable(v))
		return;
	r->lo = fmin(r->lo, v);
	r->hi = fmax(r->hi, v);
}

/* 1: there is something to draw over sizes. */
static int find_axes(const struct report_plot *p, struct frame *fr)
{
	struct range x = {INFINITY, 0}, y = {INFINITY, 0};

	if (p->kind == REPORT_PLOT_RATIO || p->kind == REPORT_PLOT_COMPARE)
		widen(&y, 1);
	for (size_t i = 0; i < p->nlines; i++) {
		for (size_t k = 0; k < p->lines[i].npoints; k++) {
			const struct report_point *t = &p->lines[i].points[k];

			if (is_dot(t))
				widen(&x, t->bytes);
			if (is_dot(t) || is_across(t)) {
				widen(&y, t->min);
				widen(&y, t->max);
				widen(&y, t->median);
			}
		}
	}
	if (x.hi <= 0 || y.hi <= 0)
		return 0;
	report_size_axis(x.lo, x.hi, &fr->x);
	report_value_axis(y.lo, y.hi, p->kind, &fr->y);
	/* So that the first and the last mark stand clear of the frame. */
	if (x.hi > x.lo) {
		double room = pow(x.hi / x.lo, 0.025);

		fr->x.lo /= room;
		fr->x.hi *= room;
	}
	return 1;
}

static void put_axes(const struct report_plot *p, const struct frame *fr, FILE *f)
{
	int ratio = p->kind == REPORT_PLOT_RATIO || p->kind == REPORT_PLOT_COMPARE;

	if (fr->y.nminor) {
		fputs("<path class=\"g f\" d=\"", f);
		for (size_t i = 0; i < fr->y.nminor; i++)
			fprintf(f, "M%.1f %.1fH%.1f", fr->left, y_at(fr, fr->y.minor[i]), fr->right);
		fputs("\"/>", f);
	}
	fputs("<path class=\"g\" d=\"", f);
	for (size_t i = 0; i < fr->y.nticks; i++)
		fprintf(f, "M%.1f %.1fH%.1f", fr->left, y_at(fr, fr->y.ticks[i].at), fr->right);
	for (size_t i = 0; i < fr->x.nticks; i++)
		fprintf(f, "M%.1f %.1fV%.1f", x_at(fr, fr->x.ticks[i].at), fr->top, fr->bottom);
	fprintf(f, "\"/><path class=\"a\" d=\"M%.1f %.1fH%.1f", fr->left, fr->bottom, fr->right);
	for (size_t i = 0; i < fr->x.nticks; i++)
		fprintf(f, "M%.1f %.1fv4", x_at(fr, fr->x.ticks[i].at), fr->bottom);
	fputs("\"/>", f);
	if (ratio)
		fprintf(f, "<path class=\"one\" d=\"M%.1f %.1fH%.1f\"/>", fr->left, y_at(fr, 1), fr->right);
	for (size_t i = 0; i < fr->y.nticks; i++)
		fprintf(f, "<text class=\"t e\" x=\"%.1f\" y=\"%.1f\">%s</text>", fr->left - 7,
			y_at(fr, fr->y.ticks[i].at) + 4, fr->y.ticks[i].label);
	for (size_t i = 0; i < fr->x.nticks; i++)
		fprintf(f, "<text class=\"t c\" x=\"%.1f\" y=\"%.1f\">%s</text>", x_at(fr, fr->x.ticks[i].at),
			fr->bottom + 18, fr->x.ticks[i].label);
	fprintf(f, "<text class=\"t c\" x=\"%.1f\" y=\"%.1f\">message size</text>", (fr->left + fr->right) / 2,
		fr->bottom + 36);
	if (!ratio && p->kind != REPORT_PLOT_LATENCY)
		fprintf(f, "<text class=\"t e\" x=\"%.1f\" y=\"%.1f\">%s</text>", fr->left - 7, fr->top - 16,
			report_units[p->quantity]);
}

static void put_tip(const struct report_plot *p, const struct report_line *l, const struct report_point *t, FILE *f)
{
	char a[32], b[32], c[32], d[32];

	fputs("<title>", f);
	report_put_text(f, l->name);
	fprintf(f, ", %s: %s", isnan(t->bytes) ? "any size" : report_size_name(t->bytes, 1, a),
		report_value(t->median, p->kind, b));
	if (t->min < t->max)
		fprintf(f, " (%s to %s)", report_value(t->min, p->kind, c), report_value(t->max, p->kind, d));
	fputs("</title>", f);
}

static void put_whiskers(const struct report_line *l, const struct frame *fr, FILE *f)
{
	int open = 0;

	for (size_t i = 0; i < l->npoints; i++) {
		const struct report_point *t = &l->points[i];
		double x;

		if (!is_dot(t) || !(t->min < t->max) || !report_drawable(t->min) || !report_drawable(t->max))
			continue;
		fputs(open++ ? "" : "<path class=\"w\" d=\"", f);
		x = x_at(fr, t->bytes);
		fprintf(f, "M%.1f %.1fh6m-3 0V%.1fm-3 0h6", x - 3, y_at(fr, t->min), y_at(fr, t->max));
	}
	fputs(open ? "\"/>" : "", f);
}

static void put_line(const struct report_plot *p, const struct report_line *l, const struct frame *fr, FILE *f)
{
	int dots = 0, level = 0;

	fprintf(f, "<g class=\"s%d\">", l->style);
	put_whiskers(l, fr, f);
	fprintf(f, "<path class=\"l%s\" d=\"", line_class(l));
	for (size_t i = 0; i < l->npoints; i++) {
		const struct report_point *t = &l->points[i];

		if (is_dot(t))
			fprintf(f, "%c%.1f %.1f", dots++ ? 'L' : 'M', x_at(fr, t->bytes), y_at(fr, t->median));
		else if (is_across(t) && !level++)
			fprintf(f, "M%.1f %.1fH%.1f", fr->left, y_at(fr, t->median), fr->right);
	}
	fputs("\"/>", f);
	for (size_t i = 0; i < l->npoints; i++) {
		const struct report_point *t = &l->points[i];

		if (!is_dot(t))
			continue;
		fprintf(f, "<path class=\"m%s\" d=\"", l->dashed ? " o" : "");
		put_marker(f, l->style, x_at(fr, t->bytes), y_at(fr, t->median), 3.6);
		fputs("\">", f);
		put_tip(p, l, t, f);
		fputs("</path>", f);
	}
	fputs("</g>\n", f);
}

/* What was measured lies over what stands beside it. */
static void put_lines(const struct report_plot *p, const struct frame *fr, FILE *f)
{
	for (int dashed = 1; dashed >= 0; dashed--)
		for (size_t i = 0; i < p->nlines; i++)
			if (p->lines[i].dashed == dashed)
				put_line(p, &p->lines[i], fr, f);
}

static void put_open(const struct frame *fr, const struct report_plot *p, const char *more, FILE *f)
{
	fprintf(f, "<svg %sviewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", more, fr->width, fr->height);
	report_put_text(f, p->title);
	fprintf(f, ", %s\">", p->better);
}

/* ---- bars ---- */

enum { BAR = 13, BAR_STEP = 17, CATEGORY = 20, CATEGORY_GAP = 12 };

/* A bar as long as a figure; the longest in the picture is that of `longest`. */
static double bar_length(double value, double longest, double full)
{
	return value > 0 && longest > 0 ? full * (value / longest) : 0;
}

static double bars_height(const struct report_plot *p)
{
	double h = 4;

	for (size_t i = 0; i < p->nlines; i++) {
		if (!i || strcmp(p->lines[i].category, p->lines[i - 1].category) != 0)
			h += CATEGORY + (i ? CATEGORY_GAP : 0);
		h += BAR_STEP;
	}
	return h;
}

static void put_bar(const struct report_plot *p, const struct report_line *l, double longest, double full, double y,
		    FILE *f)
{
	const struct report_point *t = &l->points[0];
	double w = fmax(bar_length(t->median, longest, full), 1), lo = bar_length(t->min, longest, full),
	       hi = bar_length(t->max, longest, full);
	char value[32];

	fprintf(f, "<rect class=\"b s%d\" x=\"0\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\">", l->style, y, w,
		BAR);
	put_tip(p, l, t, f);
	fputs("</rect>", f);
	if (t->min < t->max)
		fprintf(f, "<path class=\"u\" d=\"M%.1f %.1fv5m0 -2.5H%.1fm0 -2.5v5\"/>", lo, y + 4, hi);
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\"><tspan class=\"n\">%s</tspan>", fmax(w, hi) + 7, y + 10.5,
		report_value(t->median, p->kind, value));
	fputs("<tspan class=\"t\" dx=\"6\">", f);
	report_put_text_cut(f, l->bar, LABEL_CHARS);
	fputs("</tspan></text>\n", f);
}

static void put_bars(const struct report_plot *p, double width, double y, FILE *f)
{
	double longest = 0;

	for (size_t i = 0; i < p->nlines; i++)
		longest = fmax(longest, p->lines[i].points[0].max);
	for (size_t i = 0; i < p->nlines; i++) {
		const struct report_line *l = &p->lines[i];

		if (!i || strcmp(l->category, p->lines[i - 1].category) != 0) {
			y += i ? CATEGORY_GAP : 0;
			fprintf(f, "<text x=\"0\" y=\"%.1f\">", y + 13);
			report_put_text_cut(f, l->category, BAR_CHARS);
			fputs("</text>", f);
			y += CATEGORY;
		}
		put_bar(p, l, longest, width - 200, y, f);
		y += BAR_STEP;
	}
}

/* ---- whole pictures ---- */

void report_write_svg(const struct report_plot *p, FILE *f)
{
	struct frame fr = {.width = 480, .height = 306, .left = 58, .top = 30, .right = 458, .bottom = 262};

	if (p->bars) {
		fr.height = bars_height(p);
		put_open(&fr, p, "", f);
		put_bars(p, fr.width, 2, f);
		fputs("</svg>\n", f);
		return;
	}
	if (!find_axes(p, &fr)) {
		fputs("<p class=\"note\">No figure here can be drawn on a logarithmic axis; the table has them.</p>\n",
		      f);
		return;
	}
	put_open(&fr, p, "", f);
	put_axes(p, &fr, f);
	put_lines(p, &fr, f);
	fputs("</svg>\n", f);
}

struct label {
	const struct report_line *line;
	double at, y; /* of the line's end, of the text */
};

static int by_height(const void *a, const void *b)
{
	double x = ((const struct label *)a)->at, y = ((const struct label *)b)->at;

	return (x > y) - (x < y);
}

enum { LABEL_STEP = 17 };

/* Labels in order of the ends of their lines, and as near to them as their height allows. */
static void spread_labels(struct label *l, size_t n, double top, double bottom)
{
	for (int round = 0; round < 200; round++) {
		for (size_t i = 1; i < n; i++) {
			double gap = l[i].y - l[i - 1].y;

			if (gap < LABEL_STEP) {
				l[i - 1].y -= (LABEL_STEP - gap) / 2;
				l[i].y += (LABEL_STEP - gap) / 2;
			}
		}
		if (n && l[0].y < top)
			l[0].y = top;
		if (n && l[n - 1].y > bottom)
			l[n - 1].y = bottom;
	}
}

static const struct report_point *last_drawn(const struct report_line *l)
{
	for (size_t i = l->npoints; i > 0; i--)
		if (is_dot(&l->points[i - 1]) || is_across(&l->points[i - 1]))
			return &l->points[i - 1];
	return NULL;
}

static void put_labels(const struct report_plot *p, const struct frame *fr, FILE *f)
{
	struct label labels[REPORT_LINES_MAX];
	char value[32];
	size_t n = 0;

	for (size_t i = 0; i < p->nlines && n < REPORT_LINES_MAX; i++) {
		const struct report_point *last = last_drawn(&p->lines[i]);

		if (last) {
			labels[n] = (struct label){&p->lines[i], y_at(fr, last->median), y_at(fr, last->median)};
			n++;
		}
	}
	qsort(labels, n, sizeof(labels[0]), by_height);
	spread_labels(labels, n, fr->top, fr->bottom);
	for (size_t i = 0; i < n; i++) {
		const struct report_line *l = labels[i].line;
		const struct report_point *last = last_drawn(l);
		double x = is_dot(last) ? x_at(fr, last->bytes) + 7 : fr->right;

		fprintf(f,
			"<g class=\"s%d\"><path class=\"k\" d=\"M%.1f %.1fL%.1f %.1f\"/></g><text x=\"%.1f\" "
			"y=\"%.1f\">",
			l->style, x, labels[i].at, fr->right + 12, labels[i].y, fr->right + 16, labels[i].y + 4);
		report_put_text_cut(f, l->name, LABEL_CHARS);
		fprintf(f, "<tspan class=\"t\" dx=\"6\">%s</tspan></text>", report_value(last->median, p->kind, value));
	}
}

/* Where the area of a plot has to end so that the labels beside it have room; letters are some 6.7 wide. */
static double room_for_labels(const struct report_plot *p, double width)
{
	double longest = 0;
	char value[32];

	for (size_t i = 0; i < p->nlines; i++) {
		const struct report_line *l = &p->lines[i];
		double name = fmin((double)strlen(l->name), LABEL_CHARS);
		const struct report_point *last = last_drawn(l);

		if (last)
			name += (double)strlen(report_value(last->median, p->kind, value));
		longest = fmax(longest, name * 6.7);
	}
	return width - 16 - 6 - longest - 16;
}

static void put_subtitle(const struct report *r, const struct report_plot *p, FILE *f)
{
	const struct report_run *run = r->files[0].nruns ? &r->files[0].runs[0] : NULL;

	if (run && *run->fields[REPORT_MACHINE]) {
		report_put_text_cut(f, run->fields[REPORT_MACHINE], 60);
		fputs("; ", f);
	}
	if (run && *run->fields[REPORT_NCCL]) {
		fputs("NCCL ", f);
		report_put_text_cut(f, run->fields[REPORT_NCCL], 12);
		fputs("; ", f);
	}
	fputs(p->better, f);
}

void report_write_svg_file(const struct report *r, const struct report_section *s, const struct report_plot *p,
			   const char *made_by, FILE *f)
{
	struct frame fr = {.width = 760, .height = 420, .left = 70, .top = 114, .right = 536, .bottom = 366};
	int drawn = p->bars || find_axes(p, &fr);
	char title[sizeof(p->title)];

	fr.right = room_for_labels(p, fr.width);
	if (p->bars)
		fr.height = 90 + bars_height(p) + 12;
	put_open(&fr, p, "xmlns=\"http://www.w3.org/2000/svg\" ", f);
	fputs("<desc>", f);
	report_put_text(f, made_by);
	fputs("</desc><style>", f);
	report_write_css(f, 0);
	/* A background of its own: where the picture is shown may be light or dark, whatever the reader prefers. */
	fprintf(f,
		"</style>\n<rect x=\".5\" y=\".5\" width=\"%.0f\" height=\"%.0f\" rx=\"8\" fill=\"var(--card)\" "
		"stroke=\"var(--line)\"/><text class=\"h\" x=\"24\" y=\"34\">",
		fr.width - 1, fr.height - 1);
	report_put_text_cut(f, s->title, 50);
	/* "Bandwidth" goes on in small letters, "CPU" does not. */
	snprintf(title, sizeof(title), "%s", p->title);
	if (!isupper((unsigned char)title[1]))
		title[0] = (char)tolower((unsigned char)title[0]);
	fputs(", ", f);
	report_put_text(f, title);
	fprintf(f, "</text><text class=\"t\" x=\"24\" y=\"55\">%s</text><text class=\"t\" x=\"24\" y=\"72\">",
		report_ops[s->op].about);
	put_subtitle(r, p, f);
	fputs("</text>\n", f);
	if (p->bars) {
		fputs("<g transform=\"translate(24 90)\">", f);
		put_bars(p, fr.width - 48, 0, f);
		fputs("</g>", f);
	} else if (drawn) {
		put_axes(p, &fr, f);
		put_lines(p, &fr, f);
		put_labels(p, &fr, f);
	}
	fputs("</svg>\n", f);
}
