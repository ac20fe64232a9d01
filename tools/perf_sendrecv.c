/* `gantry perf sendrecv`: the command and its output. The measuring is in perf_sendrecv_rank.c. */
#include "perf_sendrecv.h"

#include <stdio.h>
#include <string.h>

#include "cmd.h"
#include "options.h"
#include "perf_table.h"

static char command[1024]; /* the command line, for the header */

/* What a line of the table has beside the figures: the options. */
struct line {
	struct sr_row row;
	const char *type, *pattern, *device;
	uint64_t ranks;
};

/* clang-format off */
#define FIELD(field) offsetof(struct line, field)
static const struct perf_column columns[] = {
	{"size", "(B)", "bytes", PERF_COUNT, 11, FIELD(row.bytes)},
	{"count", "(elements)", "count", PERF_COUNT, 11, FIELD(row.count)},
	{"type", "", "type", PERF_NAME, 8, FIELD(type)},
	{"time", "(us)", "time_us", PERF_SPREAD, 7, FIELD(row.us)},
	{NULL, "", "algbw_gbs", PERF_SPREAD, 0, FIELD(row.algbw)},
	{"algbw", "(GB/s)", NULL, PERF_FIGURE, 7, FIELD(row.algbw.median)},
	{NULL, "", "busbw_gbs", PERF_SPREAD, 0, FIELD(row.busbw)},
	{"busbw", "(GB/s)", NULL, PERF_FIGURE, 7, FIELD(row.busbw.median)},
	{"#wrong", "(B)", "wrong", PERF_WRONG, 7, FIELD(row.wrong)},
	{"transport", "", "transport", PERF_WORD, -9, FIELD(row.transport)},
	{"mode", "", "mode", PERF_WORD, -10, FIELD(row.mode)},
	{"proto", "", "proto", PERF_WORD, -9, FIELD(row.proto)},
	{NULL, "", "pattern", PERF_NAME, 0, FIELD(pattern)},
	{NULL, "", "ranks", PERF_COUNT, 0, FIELD(ranks)},
	{NULL, "", "device", PERF_NAME, 0, FIELD(device)},
	{"copies", "(send)", "copies_send", PERF_FIGURE, 6, FIELD(row.copies_send)},
	{"copies", "(recv)", "copies_recv", PERF_FIGURE, 6, FIELD(row.copies_recv)},
	/* From here on: --baseline. */
	{"memcpy", "(GB/s)", "memcpy_gbs", PERF_FIGURE, 7, FIELD(row.memcpy_gbs)},
	{"ratio", "", NULL, PERF_FIGURE, 7, FIELD(row.memcpy_ratio)},
	{"flag", "(us)", "flag_us", PERF_FIGURE, 7, FIELD(row.flag.best)},
	{"ratio", "", NULL, PERF_FIGURE, 7, FIELD(row.flag_ratio)},
	{NULL, "", "flag_pinned_us", PERF_FIGURE, 0, FIELD(row.flag.pinned)},
	{NULL, "", "flag_unpinned_us", PERF_FIGURE, 0, FIELD(row.flag.unpinned)},
};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]), BASELINE_COLUMNS = 6 };
/* clang-format on */

static struct perf_table table = {.op = "sendrecv"};

static void print_header(const struct sr_opts *o, const struct sr_shared *sh)
{
	char name[32];

	perf_table_begin(&table, command, "sends and receives of a communicator");
	perf_fact_int(&table, "ranks", o->ranks);
	perf_fact_text(&table, "started_by", o->launcher ? o->launcher : "fork");
	perf_fact_bool(&table, "threads", o->threads);
	perf_fact_text(&table, "device_name", sh->device);
	perf_fact_text(&table, "pattern", options_choice_name(SR_PATTERNS, o->pattern, name));
	perf_fact_bool(&table, "registered", o->reg);
	perf_fact_int(&table, "inflight", o->inflight);
	perf_fact_int(&table, "repeats", o->repeats);
	perf_table_columns(&table, columns, o->baseline ? COLUMNS : COLUMNS - BASELINE_COLUMNS);
}

static void print_row(const struct sr_opts *o, const struct sr_row *row)
{
	char pattern[32], device[32];
	struct line line = {.row = *row,
			    .type = sr_type_name(o->type),
			    .pattern = options_choice_name(SR_PATTERNS, o->pattern, pattern),
			    .device = options_choice_name(SR_DEVICES, o->device, device),
			    .ranks = (uint64_t)o->ranks};

	perf_table_row(&table, &line);
}

/* NULL: nothing was wrong. */
static const char *first_wrong(const struct sr_shared *sh)
{
	for (uint64_t i = 0; sh && i < sh->nrows; i++)
		if (sh->rows[i].wrong)
			return sh->rows[i].first_wrong;
	return NULL;
}

int cmd_perf_sendrecv(int argc, char **argv)
{
	static const struct sr_printer print = {.header = print_header, .row = print_row};
	static struct sr_opts o;
	const struct sr_shared *shared = NULL;
	int status;

	options_join("gantry perf sendrecv", argc, argv, command, sizeof(command));
	status = sr_parse(argc, argv, &o);
	if (status)
		return status - 1;
	if (sr_environment(&o) < 0)
		return 2;
	table.out = stdout;
	table.json = o.json;
	table.unchecked = !o.check;
	/* Where a launcher starts ranks, how many of them are on this host is not known. */
	if (o.device == GANTRY_DEVICE_HOST &&
	    perf_memory_check("sendrecv", o.rank < 0 ? o.ranks : 1, sr_memory(&o)) < 0)
		return 1;
	status = sr_run(&o, &print, &shared);
	table.ours = shared ? shared->others_cpu : 0;
	return perf_table_end(&table, status, first_wrong(shared));
}
