/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry report`: JSON lines of perf and of bench/ become a page with plots, or one plot, or the figures themselves.
 *
 *   report_read.c  lines -> series: what was measured (operation, group, name), of what (quantity), beside what (peer)
 *   report_plan.c  series -> sections, and plots in them: which lines stand together, ratios, two files compared
 *   report_plot.c  ranges -> logarithmic axes with ticks; a plot -> SVG
 *   report_page.c  sections -> HTML with the plots, and a table of figures below each; escaping of text that comes from
 *                  the files, names of sizes and numbers
 *   report.c       the command
 */
#ifndef GANTRY_TOOLS_REPORT_H
#define GANTRY_TOOLS_REPORT_H

#include <stddef.h>
#include <stdio.h>

#include "json_read.h"

enum report_quantity { REPORT_BANDWIDTH, REPORT_LATENCY, REPORT_CPU, REPORT_QUANTITIES };

enum report_op {
	REPORT_NET,
	REPORT_SENDRECV,
	REPORT_COLL,
	REPORT_ALLREDUCE,
	REPORT_BENCH,
	REPORT_RX,
	REPORT_UNPACK,
	REPORT_FIFO,
	REPORT_NCCL_UNPACK,
	REPORT_LIBRARIES,
	REPORT_OPS
};

/* One size: the figure, and how far repeats lay apart. */
struct report_point {
	double bytes; /* NAN: the figure does not belong to a size */
	double median, min, max;
	size_t n; /* lines that it was made of */
};

struct report_series {
	size_t file;
	enum report_op op;
	enum report_quantity quantity;
	char *group;		     /* of one operation: what should not be drawn together; "" if there is no need */
	char *name;		     /* of what was measured */
	char *commit;		     /* "" if the file does not say */
	const char *peer;	     /* what stood beside it, static; NULL: it is the thing itself */
	int named_commit;	     /* the file has the same of another commit */
	struct report_point *points; /* by size, once report_finish was called; one per line before */
	size_t npoints;
};

/* What a file says of the measurements after it. */
enum report_field {
	REPORT_HOST,
	REPORT_MACHINE,
	REPORT_COMMAND,
	REPORT_COMMIT,
	REPORT_DATE,
	REPORT_NOTE,
	REPORT_NETWORK,
	REPORT_NCCL,
	REPORT_FIELDS
};

struct report_run {
	char *fields[REPORT_FIELDS]; /* owned; "" if it does not say */
};

struct report_file {
	const char *path; /* borrowed */
	struct report_run *runs;
	size_t nruns;
	size_t rows, wrong_rows;
	double wrong;
	size_t checks;	 /* lines of tests and call counts, which are known and have no plot */
	size_t failures; /* runs that say they have failed */
	char failed[256];
	size_t warnings; /* runs that say their figures mean little; what the first says */
	char warning[256];
	size_t unknown;
	char unknown_lines[128], unknown_keys[128]; /* where the first of them are; the keys of the first */
	size_t range[2], range_at;		    /* the last numbers in unknown_lines, and where they begin */
};

struct report {
	struct report_file *files;
	size_t nfiles;
	struct report_series *series;
	size_t nseries;
};

/* 0, or -1 with one line in `why`. Files are numbered in the order in which they are read. */
int report_read(struct report *r, const char *path, char *why, size_t len);
/* One line that has been parsed, of the newest file: NULL, or a reason to stop. */
const char *report_take(struct report *r, const struct json_doc *line, size_t number);
/* A file that report_take adds to; NULL or a reason. */
const char *report_add_file(struct report *r, const char *path);
/* After the last file: the lines of each size become one point. 0, or -1 if there is no memory. */
int report_finish(struct report *r);
void report_free(struct report *r);

extern const struct report_op_text {
	const char *title, *about, *latency; /* the last: what its times are called */
} report_ops[REPORT_OPS];
extern const char *const report_quantity_keys[REPORT_QUANTITIES], *const report_units[REPORT_QUANTITIES];
const char *report_quantity_title(enum report_op op, enum report_quantity q);
const char *report_quantity_word(enum report_op op, enum report_quantity q);

/* ---- plots ---- */

enum report_kind {
	REPORT_PLOT_BANDWIDTH,
	REPORT_PLOT_LATENCY,
	REPORT_PLOT_CPU,
	REPORT_PLOT_RATIO,
	REPORT_PLOT_COMPARE
};

/* Colours, which is how many lines one plot has; bars that one plot should have at most. */
enum { REPORT_STYLES = 8, REPORT_LINES_MAX = 24 };

struct report_line {
	char name[400];
	char category[192]; /* of a bar: what it is grouped under */
	const char *bar;    /* of a bar: what it is called there */
	const struct report_point *points;
	struct report_point *owned; /* the same if they were made for this line; else NULL */
	size_t npoints;
	int style;			   /* 0 to REPORT_STYLES - 1: colour and marker */
	int level;			   /* it belongs to no size: a line across */
	int dashed;			   /* it is a peer */
	const struct report_series *a, *b; /* of two that are compared */
};

struct report_plot {
	enum report_kind kind;
	enum report_quantity quantity; /* not of RATIO */
	char title[96];
	const char *better; /* "higher is better" */
	int bars;	    /* there are no sizes to draw over */
	int table_only;
	struct report_line *lines;
	size_t nlines;
};

struct report_section {
	enum report_op op;
	const char *group; /* borrowed from a series */
	char title[192];
	struct report_plot *plots;
	size_t nplots;
};

struct report_plan {
	struct report_section *sections;
	size_t nsections;
};

/* Only sections whose title contains `only`, in whatever case; NULL: all. 0, or -1 if there is no memory. */
int report_plan(const struct report *r, const char *only, struct report_plan *ret_plan);
void report_plan_free(struct report_plan *p);
int report_plan_has(const struct report_plan *p, const struct report_series *s);
/* "A", "B", ... */
const char *report_letter(size_t file, char buf[8]);
/* How many times better a is than b: more bandwidth, less time. */
double report_times_better(enum report_quantity q, double a, double b);

/* ---- axes ---- */

enum { REPORT_TICKS_MAX = 9, REPORT_SIZE_TICKS_MAX = 7 };

struct report_tick {
	double at;
	char label[32];
};

/* Both kinds are logarithmic. */
struct report_axis {
	double lo, hi;
	struct report_tick ticks[REPORT_TICKS_MAX];
	size_t nticks;
	double minor[3 * REPORT_TICKS_MAX]; /* between the ticks, if these are powers of ten */
	size_t nminor;
};

/* Message sizes from lo to hi, both more than 0: at most REPORT_SIZE_TICKS_MAX powers of two. */
void report_size_axis(double lo, double hi, struct report_axis *ret);
/* Values from lo to hi, both drawable: ends at 1, 2 or 5 times a power of ten. */
void report_value_axis(double lo, double hi, enum report_kind kind, struct report_axis *ret);
/* 0 at lo, 1 at hi. */
double report_axis_at(const struct report_axis *axis, double value);
/* Whether a logarithmic axis can show it. */
int report_drawable(double value);

/* ---- text ---- */

/* Foreign text as HTML and XML want it, whatever its bytes; the second cuts it to so many characters. */
void report_put_text(FILE *f, const char *text);
void report_put_text_cut(FILE *f, const char *text, size_t characters);
/* "64 KiB"; what is no round number is in bytes if exact, else rounded. */
const char *report_size_name(double bytes, int exact, char buf[32]);
/* Three or four digits that count, without an exponent where people would not write one. */
const char *report_number(double value, char buf[32]);
/* With its unit: "3.42 µs", "13.3 ms", "11.9 GB/s", "2.42×" of a ratio. */
const char *report_value(double value, enum report_kind kind, char buf[32]);

/* ---- output ---- */

void report_write_css(FILE *f, int page);
void report_write_svg(const struct report_plot *p, FILE *f);
/* With title, labels at the lines and its colours inside; `made_by`: the command line, for readers of the file. */
void report_write_svg_file(const struct report *r, const struct report_section *s, const struct report_plot *p,
			   const char *made_by, FILE *f);
/* A line as it looks in a plot, for legends. */
void report_write_swatch(const struct report_line *l, FILE *f);
void report_write_page(const struct report *r, const struct report_plan *p, const char *title, FILE *f);
/* One line per point of each series in a section of the plan. */
void report_write_json(const struct report *r, const struct report_plan *p, FILE *f);

#endif
