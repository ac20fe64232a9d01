/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry report`: JSON lines of perf and of bench/ become a page with plots, or one plot, or the figures themselves.
 *
 *   read.c        lines -> series: what was measured (operation, group, name), of what (quantity), beside what (peer)
 *   compare.c     sections; which series is compared with which
 *   page.c        page.html with the rows as JSON, and a table of all figures for readers without scripts
 *   page.html     the template: its style, and the script that draws the rows in the reader's browser
 *   svg.c         --svg: one plot as a picture, for places that run no script (a README, a slide)
 *   cmd_report.c  the command
 */
#ifndef GANTRY_TOOLS_SERIES_H
#define GANTRY_TOOLS_SERIES_H

#include <stddef.h>
#include <stdio.h>

#include "common/json_read.h"

enum report_quantity { REPORT_BANDWIDTH, REPORT_LATENCY, REPORT_CPU, REPORT_QUANTITIES };
/* Of plots; the first ones are quantities. */
enum report_kind { REPORT_RATIO = REPORT_QUANTITIES, REPORT_COMPARE };

enum report_op {
	REPORT_NET,
	REPORT_SENDRECV,
	REPORT_COLL,
	REPORT_ALLREDUCE,
	REPORT_BENCH,
	REPORT_GIN,
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

/* One operation and group, over all files. */
struct report_section {
	enum report_op op;
	const char *group; /* borrowed from a series */
	char title[192];
};

struct report {
	struct report_file *files;
	size_t nfiles;
	struct report_series *series;
	size_t nseries;
	struct report_section *sections;
	size_t nsections;
};

/* 0, or -1 with one line in `why`. Files are numbered in the order in which they are read. */
int report_read(struct report *r, const char *path, char *why, size_t len);
/* One line that has been parsed, of the newest file: NULL, or a reason to stop. */
const char *report_take(struct report *r, const struct json_doc *line, size_t number);
/* A file that report_take adds to; NULL or a reason. */
const char *report_add_file(struct report *r, const char *path);
/* After the last file: the lines of each size become one point, the series sections; only those whose title contains
 * `only`, in whatever case; NULL: all. 0, or -1 if there is no memory. */
int report_finish(struct report *r, const char *only);
void report_free(struct report *r);

extern const struct report_op_text {
	const char *title, *about, *latency; /* the last: what its times are called */
} report_ops[REPORT_OPS];
extern const char *const report_quantity_keys[REPORT_QUANTITIES], *const report_units[REPORT_QUANTITIES];
extern const char *const report_field_keys[REPORT_FIELDS];
const char *report_quantity_title(enum report_op op, int quantity);
const char *report_quantity_word(enum report_op op, int quantity);
const char *report_bar_name(enum report_op op); /* of what was measured, where its peers have bars */

/* ---- comparisons ---- */

int report_in_section(const struct report_section *s, const struct report_series *x);
/* Whether it belongs to a section that is shown. */
int report_has_section(const struct report *r, const struct report_series *s);
/* bench/ measured it, or perf beside another thing, for comparison. */
int report_is_beside(const struct report_series *s);
/* Whether `own` is compared with s, which stood beside it. */
int report_is_peer(const struct report_series *own, const struct report_series *s);
/* What a series of the first file is compared with in a later one: the last under its name; or the only one, if the
 * first file has only one too: runs with other options are compared. NULL: none. */
const struct report_series *report_counterpart(const struct report *r, const struct report_series *a, size_t file);
/* Whether a logarithmic axis can show it. */
int report_drawable(double value);
/* How many times better a is than b (more bandwidth, less time), at each size that both have: how many there are. ret: room
 * for as many points as a has, or NULL. */
size_t report_ratio(const struct report_series *a, const struct report_series *b, struct report_point *ret);
/* "A", "B", ... */
const char *report_letter(size_t file, char buf[8]);

/* ---- text ---- */

/* Foreign text as HTML and XML want it, whatever its bytes; the second cuts it to so many characters. */
void report_put_text(FILE *f, const char *text);
void report_put_text_cut(FILE *f, const char *text, size_t characters);
/* JSON as it may stand in a <script>, in ASCII: no byte of it ends the element or begins a tag. */
void report_put_script(FILE *f, const char *json);
/* "64 KiB"; what is no round number is in bytes if exact, else rounded. */
const char *report_size_name(double bytes, int exact, char buf[32]);

/* ---- output ---- */

extern const char report_template[] __asm__("gantry_report_template")
	__attribute__((visibility("hidden"))); /* page.html */

void report_write_page(const struct report *r, const char *title, FILE *f);
/* One line per point of each series in a section. */
void report_write_json(const struct report *r, FILE *f);
/* How many lines a plot has of that quantity or kind; a picture shows the first ones. */
size_t report_picture_lines(const struct report *r, const struct report_section *s, int kind);
/* `made_by`: the command line, for readers of the file. Returns how many lines had no room. */
size_t report_write_picture(const struct report *r, const struct report_section *s, int kind, const char *made_by,
			    FILE *f);

#endif
