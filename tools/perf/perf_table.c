/* SPDX-License-Identifier: Apache-2.0 */
#include "perf/perf_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "common/figures.h"

/* ---- what else the machine did ---- */

/* Time is counted in ticks of mostly 10 ms, for each CPU: in less than this they say too little. */
#define SHORTEST_S 0.2
/* From these shares of all CPUs on. A CPU that is stolen stops a thread that spins, and its peer with it; one that
 * others use is mostly taken when nothing of ours wants it. */
#define OTHERS_SHARE 0.2
#define STEAL_SHARE 0.05

enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, FIELDS };

/* Interrupts are left out of busy: on some kernels they count as time of the process that they interrupt, and most of
 * them are the network that is measured. Guests are within user and nice. */
static void add_cpu(const char *fields, double hz, struct perf_cpu_times *ret)
{
	unsigned long long v[FIELDS] = {0};
	char *end;

	for (int i = 0; i < FIELDS; i++) {
		v[i] = strtoull(fields, &end, 10);
		if (end == fields)
			break; /* an old kernel has fewer */
		fields = end;
	}
	ret->busy += (double)(v[USER] + v[NICE] + v[SYSTEM]) / hz;
	ret->steal += (double)v[STEAL] / hz;
	ret->cpus++;
}

void perf_load_parse(const char *stat, const cpu_set_t *cpus, long hz, struct perf_cpu_times *ret)
{
	ret->busy = ret->steal = 0;
	ret->cpus = 0;
	for (const char *line = stat; line && strncmp(line, "cpu", 3) == 0; line = strchr(line, '\n'), line += !!line) {
		char *fields;
		unsigned long cpu = strtoul(line + 3, &fields, 10);

		/* The first line is the sum of all. */
		if (fields != line + 3 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, cpus))
			add_cpu(fields, (double)hz, ret);
	}
}

/* Owned by the caller; NULL: it cannot be read. The lines of CPUs come first, of some hundred bytes each. */
static char *read_stat(void)
{
	enum { MOST = 1 << 20 };
	FILE *f = fopen("/proc/stat", "re");
	char *text = f ? malloc(MOST) : NULL;

	if (text)
		text[fread(text, 1, MOST - 1, f)] = 0;
	if (f)
		fclose(f);
	return text;
}

static double cpu_seconds(int who)
{
	struct rusage u;

	getrusage(who, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

double perf_load_cpu_seconds(void)
{
	return cpu_seconds(RUSAGE_SELF);
}

void perf_load_read(struct perf_cpu_times *ret)
{
	char *stat = read_stat();
	cpu_set_t cpus;

	*ret = (struct perf_cpu_times){.cpus = 0};
	if (stat && sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		perf_load_parse(stat, &cpus, sysconf(_SC_CLK_TCK), ret);
	ret->ours = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN);
	ret->wall = (double)gantry_now_ns() / 1e9;
	free(stat);
}

struct perf_load perf_load_between(const struct perf_cpu_times *from, const struct perf_cpu_times *to)
{
	struct perf_load load = {.cpus = to->cpus, .others = NAN, .steal = NAN};
	double wall = to->wall - from->wall;

	if (!from->cpus || from->cpus != to->cpus || wall < SHORTEST_S)
		return load;
	/* Both are sums of many roundings: the difference can be a little below 0. */
	load.others = fmax(0, (to->busy - from->busy) - (to->ours - from->ours)) / wall;
	load.steal = fmax(0, to->steal - from->steal) / wall;
	return load;
}

int perf_load_warning(const struct perf_load *load, char *buf, size_t len)
{
	const int others = load->others >= OTHERS_SHARE * load->cpus, steal = load->steal >= STEAL_SHARE * load->cpus;
	char cpus[32];

	buf[0] = 0;
	if (!others && !steal)
		return 0;
	snprintf(cpus, sizeof(cpus), "of %d CPU%s", load->cpus, load->cpus == 1 ? "" : "s");
	if (others && steal)
		snprintf(buf, len, "other processes used %.1f and the hypervisor took %.1f %s", load->others,
			 load->steal, cpus);
	else
		snprintf(buf, len, "%s %.1f %s", others ? "other processes used" : "the hypervisor took",
			 others ? load->others : load->steal, cpus);
	snprintf(buf + strlen(buf), len - strlen(buf),
		 " during the measurement: these figures are unreliable (the machine is busy)");
	return 1;
}

/* ---- the table ---- */

enum { LINE_MAX_LENGTH = 1024, FACTS_WIDTH = 120, PARTS = 3 };

/* A line of the table while it grows. */
struct row_text {
	char text[LINE_MAX_LENGTH];
	size_t n;
};

static void add(struct row_text *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct row_text *r, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(r->text + r->n, sizeof(r->text) - r->n, fmt, args);
	va_end(args);
	r->n += n > 0 ? (size_t)n : 0;
	if (r->n >= sizeof(r->text))
		r->n = sizeof(r->text) - 1;
}

/* Without what stands behind the last cell; flushed, so that a waiting reader sees it. */
static void print_line(const struct perf_table *t, struct row_text *r)
{
	while (r->n && r->text[r->n - 1] == ' ')
		r->n--;
	fprintf(t->out, "%.*s\n", (int)r->n, r->text);
	fflush(t->out);
}

static void put_head(struct perf_table *t)
{
	gantry_json_str(&t->line, "machine", t->machine);
	gantry_json_str(&t->line, "command", t->command);
	gantry_json_str(&t->line, "commit", gantry_commit);
}

static void begin_json(struct perf_table *t, const char *host, const char *date)
{
	gantry_json_begin(&t->line, t->out, GANTRY_JSON_PEOPLE);
	gantry_json_str(&t->line, "op", t->op);
	gantry_json_str(&t->line, "command", t->command);
	gantry_json_str(&t->line, "host", host);
	gantry_json_str(&t->line, "machine", t->machine);
	gantry_json_int(&t->line, "cpus", t->start.cpus);
	gantry_json_str(&t->line, "date", date);
	gantry_json_str(&t->line, "commit", gantry_commit);
}

void perf_table_begin(struct perf_table *t, const char *command, const char *about)
{
	char host[256] = "", date[32];
	time_t now = time(NULL);
	struct tm utc;

	perf_load_read(&t->start);
	t->command = command;
	perf_machine(t->machine, sizeof(t->machine));
	gethostname(host, sizeof(host) - 1);
	gmtime_r(&now, &utc);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
	t->open = 1;
	t->wrong = 0;
	t->columns = NULL;
	t->length = 0;
	if (t->json) {
		begin_json(t, host, date);
		return;
	}
	fprintf(t->out, "# %s\n# %s\n", command, about);
	perf_fact_text(t, "host", host);
	perf_fact_text(t, "machine", t->machine);
	perf_fact_text(t, "commit", gantry_commit);
	perf_fact_text(t, "date", date);
	t->length = FACTS_WIDTH; /* what follows is about the operation */
}

void perf_fact_text(struct perf_table *t, const char *name, const char *value)
{
	char fact[512], *p;
	size_t n;

	if (t->json) {
		gantry_json_str(&t->line, name, value);
		return;
	}
	snprintf(fact, sizeof(fact), "%s: %s", name, value);
	for (p = fact; *p != ':'; p++)
		if (*p == '_')
			*p = ' ';
	n = strlen(fact);
	if (t->length && t->length + n > FACTS_WIDTH) {
		fputs("\n", t->out);
		t->length = 0;
	}
	fprintf(t->out, "%s%s", t->length ? "; " : "# ", fact);
	t->length += n + 2;
}

void perf_fact_int(struct perf_table *t, const char *name, int64_t value)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRId64, value);
	if (t->json)
		gantry_json_int(&t->line, name, value);
	else
		perf_fact_text(t, name, text);
}

void perf_fact_bool(struct perf_table *t, const char *name, int value)
{
	if (t->json)
		gantry_json_bool(&t->line, name, value);
	else
		perf_fact_text(t, name, value ? "yes" : "no");
}

void perf_table_note(struct perf_table *t, const char *text)
{
	if (t->json)
		return;
	fprintf(t->out, "%s# %s", t->length ? "\n" : "", text);
	t->length = FACTS_WIDTH;
}

static int width_of(const struct perf_column *c)
{
	int one = c->width < 0 ? -c->width : c->width;

	return c->kind == PERF_SPREAD ? PARTS * one + PARTS - 1 : one;
}

/* The upper line: a spread's name and unit, in the middle over its three columns. */
static void add_head(struct row_text *r, const struct perf_column *c)
{
	char text[64];
	int width = width_of(c), left;

	if (c->kind != PERF_SPREAD) {
		add(r, "%*s ", c->width, c->head);
		return;
	}
	snprintf(text, sizeof(text), "%s%s%s", c->head, c->unit[0] ? " " : "", c->unit);
	left = (width - (int)strlen(text) + 3) / 2;
	add(r, "%*s%-*s ", left > 0 ? left : 0, "", width - (left > 0 ? left : 0), text);
}

static void add_unit(struct row_text *r, const struct perf_column *c)
{
	if (c->kind == PERF_SPREAD)
		add(r, "%*s %*s %*s ", c->width, "min", c->width, "median", c->width, "max");
	else
		add(r, "%*s ", c->width, c->unit);
}

/* What stands over several columns begins where the first of them does. */
static void print_over(const struct perf_table *t, const struct perf_column *columns, size_t n)
{
	struct row_text line = {.n = 0};
	size_t at = 1, any = 0;

	add(&line, "#");
	for (size_t i = 0; i < n; i++) {
		if (columns[i].kind == PERF_OVER) {
			add(&line, "%*s%s", (int)(at > line.n ? at - line.n : 0), "", columns[i].head);
			any++;
		} else if (columns[i].head) {
			at += (size_t)width_of(&columns[i]) + 1;
		}
	}
	if (any)
		print_line(t, &line);
}

void perf_table_columns(struct perf_table *t, const struct perf_column *columns, size_t n)
{
	struct row_text head = {.n = 0}, unit = {.n = 0};
	const int first = !t->columns;

	t->columns = columns;
	t->ncolumns = n;
	if (t->json) {
		if (first)
			gantry_json_end(&t->line);
		return;
	}
	if (t->length)
		fputs("\n", t->out);
	t->length = 0;
	add(&head, "#");
	add(&unit, "#");
	for (size_t i = 0; i < n; i++) {
		if (!columns[i].head || columns[i].kind == PERF_OVER)
			continue;
		add_head(&head, &columns[i]);
		add_unit(&unit, &columns[i]);
	}
	fputs("#\n", t->out);
	print_over(t, columns, n);
	print_line(t, &head);
	print_line(t, &unit);
}

/* Four significant digits, and no more than five behind the point. */
static void add_figure(struct row_text *r, int width, double v)
{
	double size = fabs(v);
	int digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 || size == 0 ? 3 : 5;

	if (isfinite(v))
		add(r, "%*.*f ", width, digits, v);
	else
		add(r, "%*s ", width, "-");
}

static void add_cell(const struct perf_table *t, struct row_text *r, const struct perf_column *c, const char *field)
{
	const struct perf_spread *s = (const struct perf_spread *)field;

	switch (c->kind) {
	case PERF_FIGURE:
		add_figure(r, c->width, *(const double *)field);
		break;
	case PERF_SPREAD:
		add_figure(r, c->width, s->min);
		add_figure(r, c->width, s->median);
		add_figure(r, c->width, s->max);
		break;
	case PERF_WORD:
		add(r, "%*s ", c->width, field);
		break;
	case PERF_NAME:
		add(r, "%*s ", c->width, *(const char *const *)field);
		break;
	case PERF_WRONG:
		if (t->unchecked) {
			add(r, "%*s ", c->width, "N/A");
			break;
		}
		/* fall through */
	case PERF_COUNT:
		add(r, "%*" PRIu64 " ", c->width, *(const uint64_t *)field);
		break;
	case PERF_OVER:
		break;
	}
}

static void put_spread(struct gantry_json *j, const char *name, const struct perf_spread *s)
{
	char key[64];

	gantry_json_num(j, name, s->median);
	snprintf(key, sizeof(key), "%s_min", name);
	gantry_json_num(j, key, s->min);
	snprintf(key, sizeof(key), "%s_max", name);
	gantry_json_num(j, key, s->max);
}

static void put_field(struct gantry_json *j, const struct perf_column *c, const char *field)
{
	switch (c->kind) {
	case PERF_FIGURE:
		gantry_json_num(j, c->json, *(const double *)field);
		break;
	case PERF_SPREAD:
		put_spread(j, c->json, (const struct perf_spread *)field);
		break;
	case PERF_WORD:
		gantry_json_str(j, c->json, field);
		break;
	case PERF_NAME:
		gantry_json_str(j, c->json, *(const char *const *)field);
		break;
	case PERF_WRONG:
	case PERF_COUNT:
		gantry_json_int(j, c->json, (int64_t) * (const uint64_t *)field);
		break;
	case PERF_OVER:
		break;
	}
}

void perf_table_row(struct perf_table *t, const void *row)
{
	struct row_text text = {.n = 0};

	add(&text, " ");
	if (t->json)
		gantry_json_begin(&t->line, t->out, GANTRY_JSON_PEOPLE);
	for (size_t i = 0; i < t->ncolumns; i++) {
		const struct perf_column *c = &t->columns[i];
		const char *field = (const char *)row + c->at;

		if (c->kind == PERF_WRONG)
			t->wrong += *(const uint64_t *)field;
		if (t->json && c->json)
			put_field(&t->line, c, field);
		else if (!t->json && c->head)
			add_cell(t, &text, c, field);
	}
	if (!t->json) {
		print_line(t, &text);
		return;
	}
	if (t->whole)
		put_head(t);
	gantry_json_end(&t->line);
}

void perf_table_text(struct perf_table *t, const char *text)
{
	while (!t->json && *text) {
		size_t n = strcspn(text, "\n");

		fprintf(t->out, "#   %.*s\n", (int)n, text);
		text += n + (text[n] == '\n');
	}
	fflush(t->out);
}

static void end_json(struct perf_table *t, const struct perf_load *load, const char *warning, int bad)
{
	gantry_json_begin(&t->line, t->out, GANTRY_JSON_PEOPLE);
	if (t->unchecked)
		gantry_json_str(&t->line, t->elements ? "wrong_elements" : "wrong_bytes", NULL);
	else
		gantry_json_int(&t->line, t->elements ? "wrong_elements" : "wrong_bytes", (int64_t)t->wrong);
	if (t->has_busbw)
		gantry_json_num(&t->line, "avg_busbw_gbs", t->busbw);
	gantry_json_bool(&t->line, "ok", !bad);
	gantry_json_int(&t->line, "cpus", load->cpus);
	gantry_json_num(&t->line, "other_cpus", load->others);
	gantry_json_num(&t->line, "steal_cpus", load->steal);
	gantry_json_str(&t->line, "warning", warning[0] ? warning : NULL);
	gantry_json_end(&t->line);
}

int perf_table_end(struct perf_table *t, int failed, const char *where)
{
	const int bad = failed || t->wrong;
	struct perf_cpu_times now;
	struct perf_load load;
	char warning[256];

	if (t->wrong)
		fprintf(stderr, "gantry perf %s: %" PRIu64 " wrong %s%s%s%s\n", t->op, t->wrong,
			t->elements ? "element" : "byte", t->wrong == 1 ? "" : "s", where ? ", the first " : "",
			where ? where : "");
	if (!t->open)
		return bad;
	t->open = 0;
	/* A header that nothing follows is still a whole one. */
	if (!t->columns)
		perf_table_columns(t, (const struct perf_column[]){{.head = NULL}}, 0);
	perf_load_read(&now);
	now.ours += t->ours;
	load = perf_load_between(&t->start, &now);
	perf_load_warning(&load, warning, sizeof(warning));
	if (t->json) {
		end_json(t, &load, warning, bad);
		return bad;
	}
	if (warning[0] && !failed)
		fprintf(t->out, "# %s\n", warning);
	if (t->has_busbw && isfinite(t->busbw))
		fprintf(t->out, "# Avg bus bandwidth    : %.6g\n", t->busbw);
	fprintf(t->out, "# wrong %s: ", t->elements ? "elements" : "bytes");
	if (t->unchecked)
		fprintf(t->out, "not checked; %s\n", bad ? "FAILED" : "OK");
	else
		fprintf(t->out, "%" PRIu64 "; %s\n", t->wrong, bad ? "FAILED" : "OK");
	fflush(t->out);
	return bad;
}
