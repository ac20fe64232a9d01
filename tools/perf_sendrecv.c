/* `gantry perf sendrecv`: the command and its output. The measuring is in perf_sendrecv_rank.c. */
#include "perf_sendrecv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd.h"
#include "json.h"
#include "options.h"
#include "perf_util.h"

static char command[1024]; /* the command line, for the header */

static void print_header(const struct sr_opts *o, const struct sr_shared *sh)
{
	char machine[256], pattern[32], mode[32], proto[32];
	struct json_line j;

	perf_machine(machine, sizeof(machine));
	options_choice_name(SR_PATTERNS, o->pattern, pattern);
	options_choice_name(SR_MODES, o->mode, mode);
	options_choice_name(SR_PROTOS, o->proto, proto);
	if (o->json) {
		json_begin(&j, stdout);
		json_str(&j, "machine", machine);
		json_str(&j, "command", command);
		json_str(&j, "commit", GANTRY_COMMIT);
		json_str(&j, "device_name", sh->device);
		json_bool(&j, "threads", o->threads);
		json_bool(&j, "registered", o->reg);
		json_int(&j, "inflight", o->inflight);
		json_int(&j, "repeats", o->repeats);
		json_end(&j);
		return;
	}
	printf("# %s\n# machine: %s; commit %s\n", command, machine, GANTRY_COMMIT);
	printf("# %d ranks (%s) on %s; pattern %s, %d per group; medians of %d repeats\n#\n", o->ranks,
	       o->launcher  ? o->launcher
	       : o->threads ? "threads"
			    : "processes",
	       sh->device, pattern, o->inflight, o->repeats);
	printf("#%11s %12s %9s %9s %9s %9s %7s  %-10s %-12s %-8s %6s %6s", "size", "count", "type", "time", "algbw",
	       "busbw", "#wrong", "transport", "mode", "proto", "copies", "copies");
	if (o->baseline)
		printf(" %9s %6s %9s %6s", "memcpy", "ratio", "flag", "ratio");
	printf("\n#%11s %12s %9s %9s %9s %9s %7s  %-10s %-12s %-8s %6s %6s", "(B)", "(elements)", "", "(us)", "(GB/s)",
	       "(GB/s)", "(B)", "", "", "", "(send)", "(recv)");
	if (o->baseline)
		printf(" %9s %6s %9s %6s", "(GB/s)", "", "(us)", "");
	printf("\n");
	fflush(stdout);
}

/* Four significant digits in a fixed width, "-" for what was not measured. */
static void cell(int width, double v)
{
	int digits = v >= 1000 ? 0 : v >= 100 ? 1 : v >= 10 ? 2 : 3;

	if (isfinite(v))
		printf(" %*.*f", width, digits, v);
	else
		printf(" %*s", width, "-");
}

static void print_row_json(const struct sr_opts *o, const struct sr_row *row)
{
	struct json_line j;
	char name[32];

	json_begin(&j, stdout);
	json_int(&j, "bytes", (int64_t)row->bytes);
	json_int(&j, "count", (int64_t)row->count);
	json_str(&j, "type", sr_type_name(o->type));
	json_num(&j, "time_us", row->us);
	json_num(&j, "algbw_gbs", row->algbw);
	json_num(&j, "busbw_gbs", row->busbw);
	json_int(&j, "wrong", (int64_t)row->wrong);
	json_str(&j, "transport", row->transport);
	json_str(&j, "mode", row->mode);
	json_str(&j, "proto", row->proto);
	json_str(&j, "pattern", options_choice_name(SR_PATTERNS, o->pattern, name));
	json_int(&j, "ranks", o->ranks);
	json_str(&j, "device", options_choice_name(SR_DEVICES, o->device, name));
	json_num(&j, "copies_send", row->copies_send);
	json_num(&j, "copies_recv", row->copies_recv);
	if (o->baseline) {
		json_num(&j, "memcpy_gbs", row->memcpy_gbs);
		json_num(&j, "flag_us", row->flag.best);
		json_num(&j, "flag_pinned_us", row->flag.pinned);
		json_num(&j, "flag_unpinned_us", row->flag.unpinned);
	}
	json_end(&j);
}

static void print_row(const struct sr_opts *o, const struct sr_row *row)
{
	if (o->json) {
		print_row_json(o, row);
		return;
	}
	printf(" %11llu %12llu %9s", (unsigned long long)row->bytes, (unsigned long long)row->count,
	       sr_type_name(o->type));
	cell(9, row->us);
	cell(9, row->algbw);
	cell(9, row->busbw);
	if (o->check)
		printf(" %7llu", (unsigned long long)row->wrong);
	else
		printf(" %7s", "N/A");
	printf("  %-10s %-12s %-8s", row->transport, row->mode, row->proto);
	cell(6, row->copies_send);
	cell(6, row->copies_recv);
	if (o->baseline) {
		cell(9, row->memcpy_gbs);
		cell(6, row->busbw / row->memcpy_gbs);
		cell(9, row->flag.best);
		cell(6, row->us / row->flag.best);
	}
	printf("\n");
	fflush(stdout);
}

int cmd_perf_sendrecv(int argc, char **argv)
{
	static const struct sr_printer print = {.header = print_header, .row = print_row};
	static struct sr_opts o;
	const struct sr_shared *shared = NULL;
	uint64_t wrong = 0;
	int status;

	options_join("gantry perf sendrecv", argc, argv, command, sizeof(command));
	status = sr_parse(argc, argv, &o);
	if (status)
		return status - 1;
	if (sr_environment(&o) < 0)
		return 2;
	status = sr_run(&o, &print, &shared);
	for (uint64_t i = 0; shared && i < shared->nrows; i++)
		wrong += shared->rows[i].wrong;
	if (!o.json && o.rank <= 0)
		printf("# wrong bytes: %llu%s; %s\n", (unsigned long long)wrong, o.check ? "" : " (not checked)",
		       status  ? "FAILED"
		       : wrong ? "DATA DAMAGED"
			       : "OK");
	else if (wrong)
		fprintf(stderr, "gantry perf: %llu wrong bytes\n", (unsigned long long)wrong);
	return status || wrong;
}
