/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which lines are drawn together.
 *
 * A section is one operation and group, over all files. What was measured under one name, with its peers and in all
 * files, is a set; a set stays in one plot, and a plot takes as many sets as have colours. The plots of bandwidth,
 * latency and CPU time of the same sets give a line the same colour.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "report.h"

/* Series of bench/ that are peers of another series by name. */
static const struct {
	enum report_op op;
	enum report_quantity quantity;
	const char *own, *peer;
} bench_peers[] = {
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry", "NCCL Socket"},
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry", "NCCL Socket, 2 \303\227 2"},
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry, other settings", "NCCL Socket"},
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry, other settings", "NCCL Socket, 2 \303\227 2"},
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry, UNPACK", "Gantry, through host memory"},
	{REPORT_BENCH, REPORT_BANDWIDTH, "sendrecv over net", "perf net"},
	{REPORT_LIBRARIES, REPORT_LATENCY, "Gantry", "OpenMPI"},
	{REPORT_LIBRARIES, REPORT_LATENCY, "Gantry", "gloo"},
};
enum { BENCH_PEERS = sizeof(bench_peers) / sizeof(bench_peers[0]) };

const char *report_letter(size_t file, char buf[8])
{
	if (file < 26)
		snprintf(buf, 8, "%c", 'A' + (int)file);
	else
		snprintf(buf, 8, "%c%c", 'A' + (int)((file / 26 - 1) % 26), 'A' + (int)(file % 26));
	return buf;
}

double report_times_better(enum report_quantity q, double a, double b)
{
	return q == REPORT_BANDWIDTH ? a / b : b / a;
}

/* Lines of the same plots that keep their colours from one quantity to the next. */
enum { STYLES_KEPT = 512 };

/* A section while it is made. */
struct maker {
	const struct report *r;
	struct report_section *s;
	int bars;
	const struct report_series **sets; /* the first series of each */
	size_t nsets;
	/* What has a colour in these plots; bars have one for what they are called. */
	struct {
		const struct report_series *series;
		const char *bar;
		int slot; /* 0: the thing itself; else its first, second ... peer */
	} styles[STYLES_KEPT];
	size_t nstyles;
};

static int in_section(const struct maker *m, const struct report_series *s)
{
	return s->op == m->s->op && strcmp(s->group, m->s->group) == 0;
}

static int same_set(const struct report_series *a, const struct report_series *b)
{
	return a->op == b->op && strcmp(a->group, b->group) == 0 && strcmp(a->name, b->name) == 0 &&
	       (!(a->named_commit && b->named_commit) || strcmp(a->commit, b->commit) == 0);
}

/* bench/ measured it for comparison. */
static int is_beside(const struct report_series *s)
{
	for (size_t i = 0; i < BENCH_PEERS; i++)
		if (s->op == bench_peers[i].op && strcmp(s->name, bench_peers[i].peer) == 0)
			return 1;
	return s->peer != NULL || (s->op == REPORT_ALLREDUCE && isnan(s->points[0].bytes));
}

static size_t count_sizes(const struct report_series *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->npoints; i++)
		n += s->points[i].bytes > 0;
	return n;
}

/* A figure without a size among those that have one. */
static int is_level(const struct maker *m, const struct report_series *s)
{
	return !m->bars && isnan(s->points[0].bytes);
}

/* Nothing else is measured by it. */
static int is_gantry(enum report_op op)
{
	return op == REPORT_RX || op == REPORT_UNPACK || op == REPORT_FIFO || op == REPORT_NCCL_UNPACK;
}

/* ---- names ---- */

static void name_set(const struct maker *m, const struct report_series *s, char *buf, size_t len)
{
	char letter[8];
	int n = 0;

	buf[0] = 0;
	if (m->r->nfiles > 1)
		n = snprintf(buf, len, "%s: ", report_letter(s->file, letter));
	if (s->named_commit)
		snprintf(buf + n, len - (size_t)n, "%s (%s)", s->name, *s->commit ? s->commit : "no commit");
	else
		snprintf(buf + n, len - (size_t)n, "%s", s->name);
}

static void name_line(const struct maker *m, const struct report_series *s, char *buf, size_t len)
{
	char letter[8], set[192];

	name_set(m, s, set, sizeof(set));
	if (!s->peer)
		snprintf(buf, len, "%s", set);
	else if (m->nsets > 1)
		snprintf(buf, len, "%s beside %s", s->peer, set);
	else if (m->r->nfiles > 1)
		snprintf(buf, len, "%s: %s", report_letter(s->file, letter), s->peer);
	else
		snprintf(buf, len, "%s", s->peer);
}

/* ---- plots ---- */

static int same_size(const struct report_point *a, const struct report_point *b)
{
	return a->bytes == b->bytes || (isnan(a->bytes) && isnan(b->bytes));
}

static struct report_plot *add_plot(struct maker *m, enum report_kind kind, enum report_quantity q)
{
	static const char *const better[] = {"higher is better", "lower is better", "lower is better",
					     "above 1\303\227 it is ahead of its peer",
					     "above 1\303\227 the later file is better"};
	struct report_plot *p = ARRAY_ADD(m->s->plots, m->s->nplots);

	if (!p)
		return NULL;
	p->kind = kind;
	p->quantity = q;
	p->better = better[kind];
	p->bars = m->bars;
	snprintf(p->title, sizeof(p->title), "%s",
		 kind == REPORT_PLOT_RATIO ? "Times better than the peer" : report_quantity_title(m->s->op, q));
	if (kind == REPORT_PLOT_COMPARE)
		snprintf(p->title, sizeof(p->title), "Compared with A: %s", report_quantity_title(m->s->op, q));
	return p;
}

/* The peers of a set have the same colours in all plots, though one has raw TCP's bandwidth and the next its latency.
 */
static int slot_of(const struct report_plot *p, const struct report_series *s)
{
	int slot = s->peer != NULL;

	for (size_t i = 0; s->peer && i < p->nlines; i++)
		slot += p->lines[i].a && p->lines[i].a->peer && p->lines[i].a->file == s->file &&
			same_set(p->lines[i].a, s);
	return slot;
}

static int style_of(struct maker *m, const struct report_plot *p, const struct report_series *s, const char *bar)
{
	int slot = slot_of(p, s);
	size_t i;

	for (i = 0; i < m->nstyles; i++) {
		const struct report_series *t = m->styles[i].series;

		if (m->bars ? strcmp(m->styles[i].bar, bar) == 0
			    : t->file == s->file && same_set(t, s) && m->styles[i].slot == slot)
			return (int)(i % REPORT_STYLES);
	}
	if (i < STYLES_KEPT) {
		m->styles[i].series = s;
		m->styles[i].bar = bar;
		m->styles[i].slot = slot;
		m->nstyles++;
	}
	return (int)(i % REPORT_STYLES);
}

/* All points, or one of them as a bar. */
static int add_line(struct maker *m, struct report_plot *p, const struct report_series *s,
		    const struct report_point *bar)
{
	const char *called = s->peer ? s->peer : is_gantry(s->op) ? "Gantry" : "measured";
	int style = style_of(m, p, s, called);
	struct report_line *l = ARRAY_ADD(p->lines, p->nlines);
	char size[32];

	if (!l)
		return -1;
	name_line(m, s, l->name, sizeof(l->name));
	name_set(m, s, l->category, sizeof(l->category));
	l->bar = called;
	l->level = is_level(m, s);
	l->points = bar ? bar : s->points;
	l->npoints = bar ? 1 : s->npoints;
	if (bar && s->npoints > 1 && !isnan(bar->bytes)) {
		size_t used = strlen(l->category);

		snprintf(l->category + used, sizeof(l->category) - used, ", %s", report_size_name(bar->bytes, 1, size));
	}
	l->dashed = is_beside(s);
	l->style = style;
	l->a = s;
	return 0;
}

/* A bar for each size of a series, with its peers below it. */
static int add_bars(struct maker *m, struct report_plot *p, const struct report_series *own)
{
	for (size_t k = 0; k < own->npoints; k++) {
		if (add_line(m, p, own, &own->points[k]))
			return -1;
		for (size_t i = 0; i < m->r->nseries; i++) {
			const struct report_series *s = &m->r->series[i];

			if (!s->peer || s->file != own->file || s->quantity != own->quantity || !same_set(s, own))
				continue;
			for (size_t j = 0; j < s->npoints; j++)
				if (same_size(&s->points[j], &own->points[k]) && add_line(m, p, s, &s->points[j]))
					return -1;
		}
	}
	return 0;
}

/*
 * All series of a set and quantity: the files side by side, then what stood beside them. When all colours are used, which
 * takes more files than there are colours, another plot goes on; *p is the last one.
 */
static int add_set(struct maker *m, struct report_plot **p, const struct report_series *set)
{
	enum report_quantity q = (*p)->quantity;
	enum report_kind kind = (*p)->kind;

	for (int peers = 0; peers < 2; peers++) {
		for (size_t i = 0; i < m->r->nseries; i++) {
			const struct report_series *s = &m->r->series[i];

			if (!same_set(s, set) || s->quantity != q || (s->peer != NULL) != peers)
				continue;
			if (!m->bars && (*p)->nlines == REPORT_STYLES)
				*p = add_plot(m, kind, q);
			if (!*p || (m->bars ? !peers && add_bars(m, *p, s) : add_line(m, *p, s, NULL)))
				return -1;
		}
	}
	return 0;
}

static size_t lines_of(const struct maker *m, const struct report_series *set, enum report_quantity q)
{
	size_t n = 0;

	for (size_t i = 0; i < m->r->nseries; i++)
		if (same_set(&m->r->series[i], set) && m->r->series[i].quantity == q)
			n += m->bars ? m->r->series[i].npoints : 1;
	return n;
}

/* The end of the sets that have room in one plot, from `from` on; at least one of them. */
static size_t fits(const struct maker *m, size_t from)
{
	size_t most = m->bars ? REPORT_LINES_MAX : REPORT_STYLES, used[REPORT_QUANTITIES] = {0}, to;

	for (to = from; to < m->nsets; to++) {
		for (int q = 0; q < REPORT_QUANTITIES && !is_level(m, m->sets[to]); q++) {
			used[q] += lines_of(m, m->sets[to], (enum report_quantity)q);
			if (used[q] > most && to > from)
				return to;
		}
	}
	return to;
}

/* ---- ratios ---- */

/* How many times better a is than b, at each size that both have. */
static int add_ratio(struct maker *m, struct report_plot **p, enum report_kind kind, const struct report_series *a,
		     const struct report_series *b)
{
	struct report_point *points = calloc(a->npoints, sizeof(*points));
	struct report_line *l;
	size_t n = 0;

	if (!points)
		return -1;
	for (size_t i = 0; i < a->npoints; i++) {
		for (size_t k = 0; k < b->npoints; k++) {
			const struct report_point *x = &a->points[i], *y = &b->points[k];
			double v = report_times_better(a->quantity, x->median, y->median);

			if (same_size(x, y) && report_drawable(v))
				points[n++] = (struct report_point){x->bytes, v, v, v, 1};
		}
	}
	if (n && (!*p || (*p)->nlines == REPORT_STYLES))
		*p = add_plot(m, kind, a->quantity);
	l = n && *p ? ARRAY_ADD((*p)->lines, (*p)->nlines) : NULL;
	if (!l) {
		free(points);
		return n ? -1 : 0;
	}
	l->points = l->owned = points;
	l->npoints = n;
	l->style = (int)((*p)->nlines - 1) % REPORT_STYLES;
	l->a = b;
	l->b = a;
	return 0;
}

static int ratio_to(struct maker *m, struct report_plot **p, const struct report_series *own,
		    const struct report_series *peer)
{
	size_t before = *p ? (*p)->nlines : 0;
	char set[192], other[192];
	struct report_line *l;

	if (add_ratio(m, p, REPORT_PLOT_RATIO, own, peer))
		return -1;
	if (!*p || (*p)->nlines == before)
		return 0;
	l = &(*p)->lines[(*p)->nlines - 1];
	name_set(m, own, set, sizeof(set));
	name_set(m, peer, other, sizeof(other));
	if (!peer->peer)
		snprintf(l->name, sizeof(l->name), "%s to %s", set, other);
	else if (m->nsets > 1 || m->r->nfiles > 1)
		snprintf(l->name, sizeof(l->name), "%s: %s to %s", set, report_quantity_word(own->op, own->quantity),
			 peer->peer);
	else
		snprintf(l->name, sizeof(l->name), "%s to %s", report_quantity_word(own->op, own->quantity),
			 peer->peer);
	return 0;
}

static int is_peer_of(const struct report_series *own, const struct report_series *s)
{
	if (s->file != own->file || s->op != own->op || s->quantity != own->quantity ||
	    strcmp(s->group, own->group) != 0)
		return 0;
	if (s->peer)
		return same_set(own, s) && strcmp(s->commit, own->commit) == 0;
	for (size_t i = 0; i < BENCH_PEERS; i++) {
		if (own->op == bench_peers[i].op && own->quantity == bench_peers[i].quantity &&
		    strcmp(own->name, bench_peers[i].own) == 0 && strcmp(s->name, bench_peers[i].peer) == 0 &&
		    strcmp(s->commit, own->commit) == 0)
			return 1;
	}
	return 0;
}

static int plan_ratios(struct maker *m, size_t from, size_t to)
{
	const struct report *r = m->r;
	struct report_plot *p = NULL;

	for (size_t i = from; i < to; i++) {
		for (size_t k = 0; k < r->nseries; k++) {
			const struct report_series *own = &r->series[k];

			if (own->peer || !same_set(own, m->sets[i]))
				continue;
			for (size_t j = 0; j < r->nseries; j++) {
				if (is_peer_of(own, &r->series[j]) && ratio_to(m, &p, own, &r->series[j]))
					return -1;
			}
		}
	}
	return 0;
}

/* ---- files compared ---- */

/* The last series of the file under that name; or its only one, if the first file has only one too: runs with other
 * options are compared. */
static const struct report_series *counterpart(const struct maker *m, const struct report_series *a, size_t file)
{
	const struct report_series *found = NULL, *only = NULL;
	size_t here = 0, there = 0;

	for (size_t i = 0; i < m->r->nseries; i++) {
		const struct report_series *s = &m->r->series[i];

		if (s->peer || s->quantity != a->quantity || !in_section(m, s))
			continue;
		here += s->file == a->file;
		if (s->file != file)
			continue;
		there++;
		only = s;
		if (strcmp(s->name, a->name) == 0)
			found = s;
	}
	return found ? found : here == 1 && there == 1 ? only : NULL;
}

static int compare_with(struct maker *m, struct report_plot **p, const struct report_series *a, size_t file)
{
	const struct report_series *b = counterpart(m, a, file);
	size_t before = *p ? (*p)->nlines : 0;
	char letter[8];

	if (!b)
		return 0;
	if (add_ratio(m, p, REPORT_PLOT_COMPARE, b, a))
		return -1;
	if (*p && (*p)->nlines != before) {
		struct report_line *l = &(*p)->lines[(*p)->nlines - 1];

		(*p)->table_only = m->bars;
		snprintf(l->name, sizeof(l->name), "%s: %.150s", report_letter(file, letter), b->name);
	}
	return 0;
}

static int plan_compare(struct maker *m)
{
	for (int q = 0; q < REPORT_QUANTITIES; q++) {
		struct report_plot *p = NULL;

		for (size_t i = 0; i < m->nsets * m->r->nseries; i++) {
			const struct report_series *a = &m->r->series[i % m->r->nseries];

			if (a->file || a->peer || a->quantity != (enum report_quantity)q ||
			    !same_set(a, m->sets[i / m->r->nseries]) || is_level(m, a))
				continue;
			for (size_t file = 1; file < m->r->nfiles; file++)
				if (compare_with(m, &p, a, file))
					return -1;
		}
	}
	return 0;
}

/* ---- sections ---- */

/* Gantry first, then what it is compared with, lines across last: they take no colour from the others. */
static int rank_of(const struct maker *m, const struct report_series *s)
{
	return is_level(m, s) ? 2 : is_beside(s);
}

static int find_sets(struct maker *m)
{
	const struct report_series *s = m->r->series, *end = s + m->r->nseries;

	m->sets = calloc(m->r->nseries, sizeof(const struct report_series *));
	if (!m->sets)
		return -1;
	m->bars = 1;
	for (; s < end; s++)
		if (in_section(m, s) && count_sizes(s) > 1)
			m->bars = 0;
	for (int rank = 0; rank < 3; rank++) {
		for (s = m->r->series; s < end; s++) {
			size_t k = 0;

			if (!in_section(m, s) || rank_of(m, s) != rank)
				continue;
			while (k < m->nsets && !same_set(m->sets[k], s))
				k++;
			if (k == m->nsets)
				m->sets[m->nsets++] = s;
		}
	}
	return 0;
}

static int plan_plots(struct maker *m)
{
	for (size_t from = 0, to; from < m->nsets; from = to) {
		to = fits(m, from);
		m->nstyles = 0;
		for (int q = 0; q < REPORT_QUANTITIES; q++) {
			size_t lines = 0;
			struct report_plot *p;

			for (size_t i = from; i < to; i++)
				lines += lines_of(m, m->sets[i], (enum report_quantity)q);
			if (!lines)
				continue;
			p = add_plot(m, (enum report_kind)q, (enum report_quantity)q);
			if (!p)
				return -1;
			for (size_t i = from; i < to; i++)
				if (add_set(m, &p, m->sets[i]))
					return -1;
			if (!p->nlines) /* peers without what they were measured beside have no bars */
				m->s->nplots--;
		}
		if (!m->bars && plan_ratios(m, from, to))
			return -1;
	}
	return m->r->nfiles > 1 ? plan_compare(m) : 0;
}

static int plan_section(const struct report *r, struct report_section *s)
{
	struct maker m = {.r = r, .s = s};
	int bad = find_sets(&m) || plan_plots(&m);

	free(m.sets);
	return bad ? -1 : 0;
}

int report_plan_has(const struct report_plan *p, const struct report_series *s)
{
	for (size_t i = 0; i < p->nsections; i++)
		if (p->sections[i].op == s->op && strcmp(p->sections[i].group, s->group) == 0)
			return 1;
	return 0;
}

int report_plan(const struct report *r, const char *only, struct report_plan *ret_plan)
{
	struct report_plan p = {0};

	for (size_t i = 0; i < r->nseries; i++) {
		const struct report_series *s = &r->series[i];
		struct report_section made = {.op = s->op, .group = s->group}, *section;

		snprintf(made.title, sizeof(made.title), "%s%s%s", report_ops[s->op].title, *s->group ? ": " : "",
			 s->group);
		if (report_plan_has(&p, s) || (only && !strcasestr(made.title, only)))
			continue;
		section = ARRAY_ADD(p.sections, p.nsections);
		if (!section)
			goto bad;
		*section = made;
		if (plan_section(r, section))
			goto bad;
	}
	*ret_plan = p;
	return 0;
bad:
	report_plan_free(&p);
	return -1;
}

void report_plan_free(struct report_plan *p)
{
	for (size_t i = 0; i < p->nsections; i++) {
		for (size_t k = 0; k < p->sections[i].nplots; k++) {
			struct report_plot *plot = &p->sections[i].plots[k];

			for (size_t j = 0; j < plot->nlines; j++)
				free(plot->lines[j].owned);
			free(plot->lines);
		}
		free(p->sections[i].plots);
	}
	free(p->sections);
	memset(p, 0, sizeof(*p));
}
