/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry perf all_reduce` and the other collectives: options, the cases that they make, and what the parent prints. */
#include "perf/perf_coll.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/param.h"
#include "base/text.h"
#include "common/array.h"
#include "common/cmd.h"
#include "perf/perf_table.h"

#define AT(field) offsetof(struct pcoll_opts, field)
#define SIZE_LIMIT ((uint64_t)1 << 40)
enum { ALL_ROOTS = -1 };

/* Names and letters are those of nccl-tests where it has them. */
/* clang-format off */
static const struct option_spec specs[] = {
	{'b', OPTION_SIZE, "minbytes", AT(size.begin), 0, SIZE_LIMIT, NULL, "SIZE", "smallest size, may be 0 (8)"},
	{'e', OPTION_SIZE, "maxbytes", AT(size.end), 0, SIZE_LIMIT, NULL, "SIZE", "largest size (32M)"},
	{'f', OPTION_COUNT, "stepfactor", AT(size.factor), 2, 1 << 20, NULL, "FACTOR", "from one size to the next (4)"},
	{'i', OPTION_SIZE, "stepbytes", AT(size.step), 1, SIZE_LIMIT, NULL, "SIZE", "or this much more from one to the next"},
	{0, OPTION_FLAG, "odd", AT(size.odd), 0, 0, NULL, NULL, "also 1 byte less and 1 and 3 bytes more than each size (-d int8)"},
	{'d', OPTION_TEXT, "datatype", AT(type_text), 0, 0, NULL, "TYPES", "float, int8, half, ..., several with commas, or all (float)"},
	{'o', OPTION_TEXT, "op", AT(op_text), 0, 0, NULL, "OPS", "sum, prod, max, min, avg, mulsum, several, or all (sum)"},
	{'r', OPTION_TEXT, NULL, AT(root_text), 0, 0, NULL, "ROOT", "rank of the root; -1: each in turn (0)"},
	{'n', OPTION_COUNT, "iters", AT(iters), 1, 1 << 30, NULL, "ITERS", "calls per repeat (as many as take 0.1 s)"},
	{'w', OPTION_COUNT, "warmup_iters", AT(warmup), 0, 1 << 30, NULL, "ITERS", "before the first repeat (until the rate is known)"},
	{'c', OPTION_CHOICE, "check", AT(check), 0, 0, PCOLL_CHECKS, NULL, "compare every element; bits: ranks and runs with each other (1)"},
	{0, OPTION_FLAG, "check-only", AT(check_only), 0, 0, NULL, NULL, "nothing is timed"},
	{0, OPTION_INT, "repeats", AT(repeats), 1, PCOLL_REPEATS_MAX, NULL, "R", "repeats (5)"},
	{0, OPTION_CHOICE, "in-place", AT(places), 0, 0, PCOLL_PLACES, NULL, "whether input and output are the same memory (both)"},
	{0, OPTION_CHOICE, "timing", AT(timing), 0, 0, PCOLL_TIMINGS, NULL, "each call, or all of a repeat at once as nccl-tests (host: call, cuda: batch)"},
	PERF_COMM_OPTIONS(struct pcoll_opts, c),
	{0, OPTION_TEXT, "algo", AT(algo), 0, 0, NULL, "NAME", "algorithm, as GANTRY_ALGO"},
	{0, OPTION_CHOICE, "proto", AT(proto), 0, 0, PCOLL_PROTOS, NULL, "protocol, as GANTRY_PROTO (auto)"},
	{0, OPTION_INT, "register", AT(reg), 0, 1, NULL, "0|1", "register the buffers (1)"},
	{0, OPTION_CHOICE, "buffers", AT(buffers), 0, 0, PCOLL_BUFFERS, NULL, "memory that other processes can map, or ordinary (shared)"},
	{0, OPTION_FLAG, "explain", AT(explain), 0, 0, NULL, NULL, "why each size goes as it does: the choice, and the costs of the others"},
	{0, OPTION_FLAG, "waits", AT(waits), 0, 0, NULL, NULL, "what ranks wait for in a call, and how long; in JSON always"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line"},
};
/* clang-format on */

static char program[64];
static struct option_set set = {
	.program = program,
	.about = "Ranks of a communicator call a collective; every element of every result is checked.\n",
	.notes = "\nGB is 10^9 bytes. SIZE takes k, M and G. See gantry-perf(1).\n",
	OPTION_SPECS(specs),
};

/* ---- options ---- */

static int find_op(const char *name)
{
	char names[128] = "";

	for (int op = 0; op < GANTRY_OP_COUNT; op++)
		if (strcmp(pcoll_redop(op), name) == 0)
			return op;
	for (int op = 0; op < GANTRY_OP_COUNT; op++)
		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", op ? "|" : "", pcoll_redop(op));
	options_bad_choice(set.program, "-o", name, names);
	return -1;
}

static int find_type(const char *name)
{
	return perf_comm_type(&set, name);
}

/* "half,float", or "all": the numbers of n names; how many there are, or -1 after a line on stderr. */
static int parse_list(const char *text, int (*find)(const char *name), int all, int *ret)
{
	char *copy = strdup(text), *rest = copy, *word;
	int n = 0;

	if (copy && strcmp(text, "all") == 0) {
		for (; n < all; n++)
			ret[n] = n;
		free(copy);
		return n;
	}
	while (copy && n >= 0 && (word = strsep(&rest, ","))) {
		int found = find(word);

		if (found >= 0 && n < all)
			ret[n++] = found;
		else if (found >= 0)
			n = -options_wrong(&set, "%s: more than there are", text);
		else
			n = -1;
	}
	free(copy);
	return copy ? n : -1;
}

/* --root is a rank if it is a number, as with nccl-tests, and otherwise where the ranks of a launcher meet. */
static int check_root(struct pcoll_opts *o)
{
	int64_t v = 0;

	if (o->c.root && gantry_parse_int(o->c.root, &v) == GANTRY_OK) {
		o->root_text = o->c.root;
		o->c.root = NULL;
	}
	if (o->root_text && (gantry_parse_int(o->root_text, &v) != GANTRY_OK || v < -1 || v >= PERF_RANKS_MAX))
		return 1 + options_wrong(&set, "-r %s: neither a rank nor -1", o->root_text);
	o->root = (int)v;
	return 0;
}

/* Which of them the first word names; "collectives" are all that are. */
static void find_collective(const char *name, struct pcoll_opts *o)
{
	o->first = 0;
	o->last = PCOLL_PUT - 1;
	for (int i = 0; i < PCOLL_OP_COUNT; i++)
		if (strcmp(pcoll_traits[i].name, name) == 0)
			o->first = o->last = i;
}

int pcoll_parse(int argc, char **argv, struct pcoll_opts *o)
{
	int status;

	*o = (struct pcoll_opts){.size = {.begin = 8, .end = 32 << 20},
				 .check = PCOLL_VALUES,
				 .repeats = 5,
				 .places = PCOLL_BOTH,
				 .reg = 1,
				 .c = PERF_COMM_OPTS_INIT};
	snprintf(program, sizeof(program), "gantry perf %s", argv[0]);
	find_collective(argv[0], o);
	status = options_parse(&set, argc, argv, o);
	if (!status)
		status = perf_comm_check(&set, &o->c);
	if (!status)
		status = check_root(o);
	if (status)
		return status;
	o->ntypes = parse_list(o->type_text  ? o->type_text
			       : o->size.odd ? "int8"
					     : "float",
			       find_type, GANTRY_TYPE_COUNT, o->types);
	o->nops = parse_list(o->op_text ? o->op_text : "sum", find_op, GANTRY_OP_COUNT, o->ops);
	if (o->ntypes < 0 || o->nops < 0)
		return 1 + 2;
	if (o->buffers == PCOLL_PLAIN && o->c.device != GANTRY_DEVICE_HOST)
		return 1 + options_wrong(&set, "--buffers plain is for --device host");
	if (o->explain && o->first == PCOLL_PUT)
		return 1 + options_wrong(&set, "--explain: a put has no algorithm");
	if (o->check_only && !o->check)
		return 1 + options_wrong(&set, "--check-only and -c 0 leave nothing to do");
	if (o->timing == PCOLL_TIMING_AUTO)
		o->timing = o->c.device != GANTRY_DEVICE_HOST ? PCOLL_TIMING_BATCH : PCOLL_TIMING_CALL;
	return 0;
}

/* ---- cases ---- */

static int add_case(struct pcoll_opts *o, const struct pcoll_case *c)
{
	struct pcoll_case *more;

	if (o->ncases == PCOLL_CASES_MAX)
		return 1 + options_wrong(&set, "more than %d lines", PCOLL_CASES_MAX);
	more = ARRAY_ADD(o->cases, o->ncases);
	if (!more)
		return 1 + options_wrong(&set, "no memory");
	*more = *c;
	return 0;
}

/* All sizes of one collective, type, operation and root. */
static int add_sizes(struct pcoll_opts *o, struct pcoll_case c)
{
	static uint64_t sizes[PERF_SIZES_MAX];
	const struct pcoll_traits *t = &pcoll_traits[c.what];
	uint64_t element = perf_comm_type_bytes(c.type),
		 unit = t->in_all || t->out_all ? element * (uint64_t)o->c.ranks : element;
	size_t n = 0;
	int status;

	if (c.what == PCOLL_BARRIER)
		return add_case(o, &c);
	status = perf_comm_sizes(&set, &o->size, unit, sizes, &n);
	for (size_t i = 0; i < n && !status; i++) {
		c.bytes = sizes[i];
		c.count = sizes[i] / unit;
		status = add_case(o, &c);
	}
	return status;
}

static int add_roots(struct pcoll_opts *o, struct pcoll_case c)
{
	int first = o->root == ALL_ROOTS ? 0 : o->root, last = o->root == ALL_ROOTS ? o->c.ranks - 1 : o->root,
	    status = 0;

	c.root = -1;
	if (!pcoll_traits[c.what].rooted)
		return add_sizes(o, c);
	if (last >= o->c.ranks)
		return 1 + options_wrong(&set, "-r %d: there are %d ranks", o->root, o->c.ranks);
	for (c.root = first; c.root <= last && !status; c.root++)
		status = add_sizes(o, c);
	return status;
}

int pcoll_make_cases(struct pcoll_opts *o)
{
	int status = 0;

	for (int what = o->first; what <= o->last; what++) {
		int nops = pcoll_traits[what].reduces ? o->nops : 1, ntypes = what == PCOLL_BARRIER ? 1 : o->ntypes;

		for (int i = 0; i < ntypes * nops && !status; i++) {
			struct pcoll_case c = {.what = (enum pcoll_op)what,
					       .type = o->types[i / nops],
					       .op = pcoll_traits[what].reduces ? o->ops[i % nops] : -1};

			status = add_roots(o, c);
		}
	}
	return status;
}

static int set_environment(struct pcoll_opts *o)
{
	char text[32];

	if (o->algo)
		setenv("GANTRY_ALGO", o->algo, 1);
	if (o->proto)
		setenv("GANTRY_PROTO", options_choice_name(PCOLL_PROTOS, o->proto, text), 1);
	if (o->c.channels) {
		snprintf(text, sizeof(text), "%d", o->c.channels);
		setenv("GANTRY_CHANNELS", text, 1);
	}
	return perf_comm_environment(&set, &o->c);
}

/* ---- what is printed ---- */

/* What a line of the table has beside the figures: the case and the options. */
struct line {
	struct pcoll_row row;
	const char *collective, *type, *redop, *device;
	char root[16], *explain;
	uint64_t bytes, count, ranks, wrong, root_number; /* -1: none, in two's complement */
};

/* clang-format off */
#define FIELD(field) offsetof(struct line, field)
#define PLACE(over, json, p) \
	{over, "", NULL, PERF_OVER, 0, 0}, \
	{NULL, "", json "time_us", PERF_SPREAD, 0, FIELD(row.place[p].us)}, \
	{"time", "(us)", NULL, PERF_FIGURE, 8, FIELD(row.place[p].us.median)}, \
	{NULL, "", json "time_us_p99", PERF_FIGURE, 0, FIELD(row.place[p].p99_us)}, \
	{NULL, "", json "algbw_gbs", PERF_SPREAD, 0, FIELD(row.place[p].algbw)}, \
	{"algbw", "(GB/s)", NULL, PERF_FIGURE, 7, FIELD(row.place[p].algbw.median)}, \
	{NULL, "", json "busbw_gbs", PERF_SPREAD, 0, FIELD(row.place[p].busbw)}, \
	{"busbw", "(GB/s)", NULL, PERF_FIGURE, 7, FIELD(row.place[p].busbw.median)}, \
	{"#wrong", "", json "wrong_elements", PERF_WRONG, 6, FIELD(row.place[p].wrong)}
#define WAIT(json, cause) {NULL, "", json, PERF_FIGURE, 0, FIELD(row.wait_us[GANTRY_COMM_WAIT_##cause])}
static const struct perf_column columns[] = {
	{"collective", "", "collective", PERF_NAME, -14, FIELD(collective)},
	{"size", "(B)", "bytes", PERF_COUNT, 11, FIELD(bytes)},
	{"count", "(elements)", "count", PERF_COUNT, 11, FIELD(count)},
	{"type", "", "type", PERF_NAME, 8, FIELD(type)},
	{"redop", "", "redop", PERF_NAME, 6, FIELD(redop)},
	{"root", "", NULL, PERF_WORD, 4, FIELD(root)},
	{NULL, "", "root", PERF_COUNT, 0, FIELD(root_number)},
	PLACE("   out-of-place", "", PCOLL_OUT_OF_PLACE),
	PLACE("   in-place", "in_place_", PCOLL_IN_PLACE),
	{NULL, "", "wrong", PERF_COUNT, 0, FIELD(wrong)},
	{"transport", "", "transport", PERF_WORD, -9, FIELD(row.transport)},
	{"mode", "", "mode", PERF_WORD, -10, FIELD(row.mode)},
	{"proto", "", "proto", PERF_WORD, -9, FIELD(row.proto)},
	{NULL, "", "algo", PERF_WORD, 0, FIELD(row.algo)},
	{NULL, "", "paths", PERF_WORD, 0, FIELD(row.paths)},
	{NULL, "", "ranks", PERF_COUNT, 0, FIELD(ranks)},
	{NULL, "", "device", PERF_NAME, 0, FIELD(device)},
	WAIT("wait_data_us", DATA), WAIT("wait_room_us", ROOM), WAIT("wait_proxy_us", PROXY), WAIT("wait_kernel_us", KERNEL),
	WAIT("wait_peer_us", PEER), WAIT("wait_network_us", NETWORK), WAIT("wait_flush_us", FLUSH), WAIT("wait_space_us", SPACE),
	{NULL, "", "estimated_us", PERF_FIGURE, 0, FIELD(row.estimated_us)},
	/* The last: --explain. */
	{NULL, "", "explain", PERF_NAME, 0, FIELD(explain)},
};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]) };
/* clang-format on */

static struct perf_table table = {.elements = 1, .has_busbw = 1};
/* Of all figures so far. */
static double busbw_sum;
static uint64_t busbw_n;

static void print_header(const struct pcoll_opts *o, const char *device)
{
	const int several = o->first != o->last, skipped = several ? 0 : 1;
	char name[32];

	perf_table_begin(&table, options_command(), "collectives of a communicator");
	perf_fact_int(&table, "ranks", o->c.ranks);
	if (o->c.hosts)
		perf_fact_int(&table, "hosts", o->c.hosts);
	perf_fact_text(&table, "started_by", o->c.launcher ? o->c.launcher : "fork");
	perf_fact_bool(&table, "threads", o->c.threads);
	perf_fact_text(&table, "device_name", device);
	perf_fact_bool(&table, "registered", o->reg);
	perf_fact_text(&table, "timing", options_choice_name(PCOLL_TIMINGS, o->timing, name));
	perf_fact_text(&table, "check", options_choice_name(PCOLL_CHECKS, o->check, name));
	perf_fact_int(&table, "repeats", o->repeats);
	/* A single collective's name stands in the command; JSON has it in every row. */
	if (table.json)
		perf_table_columns(&table, columns, o->explain ? COLUMNS : COLUMNS - 1);
	else
		perf_table_columns(&table, columns + skipped, COLUMNS - 1 - (size_t)skipped);
}

/* "waits per call and rank (us): kernels for the proxy 9.10, the proxy for the peer 7.20" */
static void print_waits(const struct pcoll_row *row)
{
	static const char *const names[GANTRY_COMM_WAITS] = {
		"kernels for data",	  "kernels for room",	       "kernels for the proxy", "the proxy for kernels",
		"the proxy for the peer", "the proxy for the network", "the proxy for a flush", "the proxy for space"};
	char text[512] = "    waits per call and rank (us)";

	for (int i = 0, n = 0; i < GANTRY_COMM_WAITS; i++)
		if (row->wait_us[i] >= 0.005)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %s %.2f", n++ ? "," : ":",
				 names[i], row->wait_us[i]);
	snprintf(text + strlen(text), sizeof(text) - strlen(text), "\n");
	perf_table_text(&table, text);
}

/* "    the model estimates 15.2 us; measured: 13.6 out of place (0.89)" */
static void print_estimate(const struct pcoll_row *row)
{
	static const char *const places[] = {"out of place", "in place"};
	char text[256];

	snprintf(text, sizeof(text), "    the model estimates %.4g us; measured:", row->estimated_us);
	for (int p = 0, n = 0; p < 2; p++)
		if (isfinite(row->place[p].us.median))
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %.4g %s (%.2f)", n++ ? "," : "",
				 row->place[p].us.median, places[p], row->place[p].us.median / row->estimated_us);
	snprintf(text + strlen(text), sizeof(text) - strlen(text), "\n");
	perf_table_text(&table, text);
}

static void print_row(const struct pcoll_opts *o, const struct pcoll_case *c, const struct pcoll_row *row,
		      char *explain)
{
	char device[32];
	struct line line = {.row = *row,
			    .collective = pcoll_traits[c->what].name,
			    .type = c->what == PCOLL_BARRIER ? "none" : perf_comm_type_name(c->type),
			    .redop = pcoll_redop(c->op),
			    .device = options_choice_name(PERF_DEVICES, o->c.device, device),
			    .explain = explain,
			    .bytes = c->bytes,
			    .count = c->count,
			    .ranks = (uint64_t)o->c.ranks,
			    .root_number = (uint64_t)(int64_t)c->root,
			    .wrong = row->place[0].wrong + row->place[1].wrong};

	snprintf(line.root, sizeof(line.root), "%d", c->root);
	for (int p = 0; p < 2; p++)
		if (isfinite(row->place[p].busbw.median)) {
			busbw_sum += row->place[p].busbw.median;
			busbw_n++;
		}
	perf_table_row(&table, &line);
	if (o->waits && !table.json)
		print_waits(row);
	if (o->explain)
		perf_table_text(&table, explain);
	if (o->explain && isfinite(row->estimated_us) && !table.json)
		print_estimate(row);
}

/* The header before anything is measured. */
static void print_new(void *shared, struct perf_ranks *p)
{
	struct perf_comm_shared *all = shared;
	struct pcoll_shared *sh = all->own;
	size_t n = load_acquire(&sh->nrows);
	int header = !table.open && load_acquire(&all->info_ready);

	if (header || p->printed < n)
		perf_ranks_clear(p);
	if (header)
		print_header(sh->opts, all->device);
	for (; p->printed < n; p->printed++)
		print_row(sh->opts, &sh->opts->cases[p->printed], &sh->rows[p->printed],
			  sh->opts->explain ? pcoll_explain_of(sh, p->printed) : NULL);
}

/* NULL: nothing was wrong. */
static const char *first_wrong(const struct pcoll_shared *sh)
{
	for (uint64_t i = 0; i < sh->nrows; i++)
		if (sh->rows[i].first_wrong[0])
			return sh->rows[i].first_wrong;
	return NULL;
}

static size_t shared_size(const struct pcoll_opts *o)
{
	return sizeof(struct pcoll_shared) +
	       o->ncases * (sizeof(struct pcoll_row) + (o->explain ? (size_t)PCOLL_EXPLAIN_MAX : 0));
}

char *pcoll_explain_of(struct pcoll_shared *sh, size_t row)
{
	return (char *)&sh->rows[sh->opts->ncases] + row * PCOLL_EXPLAIN_MAX;
}

static int run_all(const struct pcoll_opts *o)
{
	struct perf_comm_shared *all;
	struct pcoll_shared *sh;
	int status;

	pcoll_op.program = program;
	all = perf_comm_map(&pcoll_op, &o->c, shared_size(o));
	if (!all)
		return 1;
	sh = all->own;
	sh->opts = o;
	status = perf_comm_run(all, o->ncases, print_new);
	table.ours = all->others_cpu;
	table.busbw = busbw_n ? busbw_sum / (double)busbw_n : NAN;
	status = perf_table_end(&table, status, first_wrong(sh));
	perf_comm_unmap(all);
	return status;
}

int cmd_perf_coll(int argc, char **argv)
{
	static struct pcoll_opts o;
	int status = pcoll_parse(argc, argv, &o);

	if (status)
		return status - 1;
	if (set_environment(&o) < 0)
		return 2;
	status = pcoll_make_cases(&o);
	if (status)
		return status - 1;
	table.op = argv[0];
	table.out = stdout;
	table.json = o.json;
	table.unchecked = o.check == PCOLL_UNCHECKED;
	/* Where a launcher starts ranks, how many of them are on this host is not known. */
	if (o.c.device != GANTRY_DEVICE_HOST ||
	    perf_memory_check(argv[0], o.c.rank < 0 ? o.c.ranks : 1, pcoll_memory(&o)) == 0)
		status = run_all(&o);
	else
		status = 1;
	free(o.cases);
	return status;
}
