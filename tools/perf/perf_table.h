/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `gantry perf` shows, the same for all of its operations; as a table for people or as JSON lines.
 *
 *   # gantry perf net -b 64               the command
 *   # isend and irecv of a net plugin     what is measured
 *   # host: a; machine: ...; commit: ...  where
 *   # network: gantry; device: lo; ...    facts of the operation
 *   #
 *   #  size      bandwidth (GB/s)    ...  columns, before anything is measured
 *   #   (B)   min   median    max    ...
 *       64  0.107    0.121  0.124    ...  a row for each measurement
 *   # other processes used 1.7 of 2 CPUs during the measurement: these figures are unreliable (the machine is busy)
 *   # wrong bytes: 0; OK
 *
 * In JSON the header is the first object, each row one, and the closing line the last: with "ok", "wrong_bytes" (or
 * "wrong_elements") and what else the machine did. A table of columns makes heads, rows and objects; names and units
 * are those of nccl-tests where it has them.
 */
#ifndef GANTRY_TOOLS_PERF_TABLE_H
#define GANTRY_TOOLS_PERF_TABLE_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/json.h"

/* ---- what else the machine did while something was measured ----
 *
 * Other processes on the CPUs of a measurement, or a hypervisor that takes them away (steal), make its figures a property
 * of the neighbours. */

/* A reading. CPU seconds since boot, of the CPUs that this process may use. */
struct perf_cpu_times {
	double busy, steal; /* busy: by all processes */
	double ours;	    /* by this process and by children that it has waited for */
	double wall;
	int cpus; /* 0: nothing could be read */
};

/* CPUs' worth of time between two readings; NAN: not known. */
struct perf_load {
	int cpus;
	double others, steal;
};

/* The text of /proc/stat; cpus: those that count; hz: ticks per second. Fills in busy, steal and cpus. */
void perf_load_parse(const char *stat, const cpu_set_t *cpus, long hz, struct perf_cpu_times *ret);
void perf_load_read(struct perf_cpu_times *ret);
/* Of the calling process so far. Ranks of one measurement that are on this machine (gantry_boot_id) are ours, too. */
double perf_load_cpu_seconds(void);
struct perf_load perf_load_between(const struct perf_cpu_times *from, const struct perf_cpu_times *to);

/* 1: too much for figures to mean anything, and buf says so; else 0 and "". */
int perf_load_warning(const struct perf_load *load, char *buf, size_t len);

/* ---- the table ---- */

enum perf_kind {
	PERF_COUNT,  /* uint64_t */
	PERF_FIGURE, /* double; not finite: "-" and null */
	PERF_SPREAD, /* struct perf_spread: three columns; in JSON x is the median, x_min and x_max are beside it */
	PERF_WRONG,  /* uint64_t, wrong bytes or elements: summed up for the closing line */
	PERF_WORD,   /* an array of char */
	PERF_NAME,   /* const char * */
	PERF_OVER,   /* no field: stands above the heads, from the next column on */
};

struct perf_column {
	const char *head; /* NULL: in JSON only */
	const char *unit; /* "(GB/s)", or "" */
	const char *json; /* NULL: in the table only */
	enum perf_kind kind;
	int width; /* of a spread: of each of the three. Negative: to the left */
	size_t at; /* of the field in a row */
};

/* Zeroed but for the options it is closed; so it may be closed again. */
struct perf_table {
	const char *op; /* "net"; borrowed, as all texts here */
	FILE *out;
	int json;
	int unchecked; /* -c 0: nothing was compared */
	int elements;  /* it is elements that are counted when they are wrong, not bytes */
	int has_busbw; /* the closing lines have the average bus bandwidth, as those of nccl-tests; NAN: nothing has one */
	double busbw;
	int whole; /* a row's object also says where and by which command it was measured */
	/* Its own. */
	int open; /* the header has begun */
	const struct perf_column *columns;
	size_t ncolumns;
	uint64_t wrong;
	struct gantry_json line;
	size_t length; /* of the line of facts */
	const char *command;
	char machine[256];
	struct perf_cpu_times start;
	double ours; /* by the caller: CPU seconds of ours on this machine, beside this process and its children */
};

/* Begins the header. From here on the load of the machine counts. */
void perf_table_begin(struct perf_table *t, const char *command, const char *about);
/* Facts, in the header. Names are those of JSON; people see spaces in place of underscores. */
void perf_fact_text(struct perf_table *t, const char *name, const char *value);
void perf_fact_int(struct perf_table *t, const char *name, int64_t value);
void perf_fact_bool(struct perf_table *t, const char *name, int value);
/* A line of its own for people, in the header. */
void perf_table_note(struct perf_table *t, const char *text);
/* Ends the header, or begins another table below the first. */
void perf_table_columns(struct perf_table *t, const struct perf_column *columns, size_t n);
void perf_table_row(struct perf_table *t, const void *row);
/* Lines of text below a row, for people. */
void perf_table_text(struct perf_table *t, const char *text);
/*
 * The closing line, unless the header has not begun: there the error is the only output. failed: something other than a
 * wrong byte, and it was reported. where: of the first wrong byte; may be NULL. Returns the exit status.
 */
int perf_table_end(struct perf_table *t, int failed, const char *where);

#endif
