/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry perf sendrecv`: options, the variables that they become, a rank's life, and what the parent prints. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/text.h"
#include "common/cmd.h"
#include "common/options.h"
#include "perf/perf_message.h"
#include "perf/perf_sendrecv.h"
#include "perf/perf_table.h"

#define AT(field) offsetof(struct sr_opts, field)
#define SIZE_LIMIT ((uint64_t)1 << 40)

/* Names and letters are those of nccl-tests where it has them. */
/* clang-format off */
static const struct option_spec specs[] = {
	{'b', OPTION_SIZE, "minbytes", AT(size.begin), 0, SIZE_LIMIT, NULL, "SIZE", "smallest message, may be 0 (8)"},
	{'e', OPTION_SIZE, "maxbytes", AT(size.end), 0, SIZE_LIMIT, NULL, "SIZE", "largest message (32M)"},
	{'f', OPTION_COUNT, "stepfactor", AT(size.factor), 2, 1 << 20, NULL, "FACTOR", "from one size to the next (4)"},
	{'i', OPTION_SIZE, "stepbytes", AT(size.step), 1, SIZE_LIMIT, NULL, "SIZE", "or this much more from one to the next"},
	{0, OPTION_FLAG, "odd", AT(size.odd), 0, 0, NULL, NULL, "also 1 byte less and 1 and 3 bytes more than each size"},
	{'d', OPTION_TEXT, "datatype", AT(type_text), 0, 0, NULL, "TYPE", "float, int8, half, ... (float; with --odd int8)"},
	{'n', OPTION_COUNT, "iters", AT(iters), 1, 1 << 30, NULL, "ITERS", "iterations per repeat (as many as take 0.1 s)"},
	{'w', OPTION_COUNT, "warmup_iters", AT(warmup), 0, 1 << 30, NULL, "ITERS", "before the first repeat (until the rate is known)"},
	{'c', OPTION_INT, "check", AT(check), 0, 1, NULL, "0|1", "compare every byte (1)"},
	{'m', OPTION_INT, "inflight", AT(inflight), 1, SR_INFLIGHT_MAX, NULL, "M", "messages per group and peer (1)"},
	{0, OPTION_INT, "repeats", AT(repeats), 1, SR_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (5)"},
	{0, OPTION_CHOICE, "pattern", AT(pattern), 0, 0, SR_PATTERNS, NULL, "which rank sends to which (ring)"},
	PERF_COMM_OPTIONS(struct sr_opts, c),
	{0, OPTION_CHOICE, "mode", AT(mode), 0, 0, SR_MODES, NULL, "how steps are handed over (auto)"},
	{0, OPTION_CHOICE, "proto", AT(proto), 0, 0, SR_PROTOS, NULL, "protocol, as GANTRY_PROTO (auto)"},
	{0, OPTION_INT, "register", AT(reg), 0, 1, NULL, "0|1", "register the buffers (1; modes normal and offset: 0)"},
	{0, OPTION_CHOICE, "buffers", AT(buffers), 0, 0, SR_BUFFERS, NULL, "memory that other processes can map, or ordinary (shared)"},
	{0, OPTION_FLAG, "baseline", AT(baseline), 0, 0, NULL, NULL, "also memcpy and a bare flag, interleaved"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf sendrecv",
	.about = "Ranks of a communicator send to and receive from each other; every byte is checked.\n",
	.notes = "\nGB is 10^9 bytes. SIZE takes k, M and G. See gantry-perf(1).\n",
	OPTION_SPECS(specs),
};

static int check_all(struct sr_opts *o)
{
	int status;

	o->type = o->size.odd ? GANTRY_TYPE_INT8 : GANTRY_TYPE_FLOAT32;
	if (o->type_text)
		o->type = perf_comm_type(&set, o->type_text);
	if (o->type < 0)
		return 1 + 2;
	status = perf_comm_check(&set, &o->c);
	if (!status)
		status = perf_comm_sizes(&set, &o->size, perf_comm_type_bytes(o->type), o->sizes, &o->nsizes);
	if (status)
		return status;
	if (o->buffers == SR_PLAIN && o->c.device != GANTRY_DEVICE_HOST)
		return 1 + options_wrong(&set, "--buffers plain is for --device host");
	if (o->mode == SR_MODE_PTR && o->reg == 0)
		return 1 + options_wrong(&set, "--mode ptr needs registered buffers");
	if (o->reg < 0)
		o->reg = o->mode == SR_MODE_AUTO || o->mode == SR_MODE_PTR;
	return 0;
}

int sr_parse(int argc, char **argv, struct sr_opts *o)
{
	int status;

	*o = (struct sr_opts){.size = {.begin = 8, .end = 32 << 20},
			      .reg = -1,
			      .check = 1,
			      .inflight = 1,
			      .repeats = 5,
			      .c = PERF_COMM_OPTS_INIT};
	status = options_parse(&set, argc, argv, o);
	return status ? status : check_all(o);
}

static void set_mode(const struct sr_opts *o)
{
	char name[32];

	if (o->mode == SR_MODE_NORMAL || o->mode == SR_MODE_OFFSET) {
		setenv("GANTRY_PTR", "0", 1);
		setenv("GANTRY_NET_BUFFERS", o->mode == SR_MODE_NORMAL ? "ring" : "pool", 1);
	} else if (o->mode == SR_MODE_PTR) {
		setenv("GANTRY_PTR", "1", 1);
		setenv("GANTRY_PTR_MIN", "0", 1);
	}
	if (o->proto)
		setenv("GANTRY_PROTO", options_choice_name(SR_PROTOS, o->proto, name), 1);
}

/* ---- a rank: its buffers, size after size ---- */

enum { PAGE = 4096 };

static size_t stride_of(const struct sr_opts *o)
{
	return (SR_FRONT + o->sizes[o->nsizes - 1] + SR_SKEW_MAX + PERF_GUARD + PAGE - 1) / PAGE * PAGE;
}

/* Bytes of all buffers of a rank, of any rank the most. */
static double sr_memory(const struct sr_opts *o)
{
	double most = 0;

	/* The last rank of an odd number has no partner in some patterns; the first two show all there is. */
	for (int i = 0; i < 2 && i < o->c.ranks; i++) {
		struct sr_rank rk = {.base = {.rank = i, .nranks = o->c.ranks}, .opts = o};
		double all = 0;

		if (sr_plan(&rk) == GANTRY_OK)
			all = ((double)rk.nbufs[0] + (double)rk.nbufs[1]) * (double)stride_of(o);
		most = all > most ? all : most;
		free(rk.msgs);
	}
	return most;
}

static gantry_result make_buffers(struct sr_rank *rk)
{
	const struct sr_opts *o = rk->opts;
	uint64_t largest = o->sizes[o->nsizes - 1];

	perf_phase(rk->base.state, "allocating", largest);
	rk->stride = stride_of(o);
	for (int d = 0; d < 2; d++) {
		void *p = NULL;

		if (!rk->nbufs[d])
			continue;
		if (rk->stride > SIZE_MAX / 2 / (size_t)rk->nbufs[d])
			FAIL_NOW(GANTRY_ERR_NOMEM, "%d buffers of %s do not fit", rk->nbufs[d], SIZE_TEXT(largest));
		rk->memory_size[d] = rk->stride * (size_t)rk->nbufs[d];
		if (o->buffers == SR_PLAIN) /* as a program without Gantry's allocator has it */
			p = perf_map(rk->memory_size[d], 1);
		else
			TRY_NOW(perf_rank_alloc(&rk->base, rk->memory_size[d], &p));
		if (!p)
			FAIL_NOW(GANTRY_ERR_NOMEM, "%s for buffers: %s", SIZE_TEXT(rk->memory_size[d]),
				 strerror(errno));
		rk->memory[d] = p;
		if (o->reg)
			TRY_NOW(gantry_comm_register(rk->base.comm, p, rk->memory_size[d], &rk->handle[d]));
	}
	if (o->baseline && rk->base.rank == 0 && sr_memcpy_open(&rk->memcpy, largest) < 0)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to copy %s", SIZE_TEXT(largest));
	return GANTRY_OK;
}

static gantry_result open_all(struct sr_rank *rk)
{
	void *host = NULL, *dev = NULL;

	rk->type_bytes = perf_comm_type_bytes(rk->opts->type);
	TRY_NOW(sr_plan(rk));
	TRY_NOW(make_buffers(rk));
	TRY_NOW(rk->base.dev->ops->alloc_mapped(rk->base.dev, sizeof(*rk->wrong_host), &host, &dev));
	rk->wrong_host = host;
	rk->wrong_dev = dev;
	return GANTRY_OK;
}

static gantry_result work(void *rank)
{
	struct sr_rank *rk = rank;
	struct sr_row row;

	rk->shared = rk->base.shared->own;
	rk->opts = rk->shared->opts;
	TRY_NOW(open_all(rk));
	for (size_t i = 0; i < rk->opts->nsizes; i++) {
		TRY_NOW(sr_measure(rk, rk->opts->sizes[i], &row));
		if (rk->base.rank == 0) {
			rk->shared->rows[i] = row;
			store_release(&rk->shared->nrows, i + 1);
		}
	}
	return GANTRY_OK;
}

static void deregister(void *rank)
{
	struct sr_rank *rk = rank;

	for (int d = 0; d < 2; d++)
		if (rk->handle[d])
			gantry_comm_deregister(rk->base.comm, rk->handle[d]);
}

static void free_all(void *rank)
{
	struct sr_rank *rk = rank;

	for (int d = 0; d < 2; d++) {
		if (rk->memory[d] && rk->opts->buffers == SR_PLAIN)
			munmap(rk->memory[d], rk->memory_size[d]);
		else if (rk->memory[d])
			gantry_mem_free(rk->base.dev, rk->memory[d]);
	}
	if (rk->wrong_host)
		rk->base.dev->ops->free_mapped(rk->base.dev, rk->wrong_host);
	sr_memcpy_close(&rk->memcpy);
	free(rk->msgs);
}

const struct perf_comm_op sr_op = {
	.program = "gantry perf sendrecv",
	.unit = "groups",
	.rank_size = sizeof(struct sr_rank),
	.sample_size = sizeof(struct sr_sample),
	.work = work,
	.deregister = deregister,
	.free = free_all,
};

/* ---- what is printed ---- */

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

static void print_header(const struct sr_opts *o, const char *device)
{
	char name[32];

	perf_table_begin(&table, options_command(), "sends and receives of a communicator");
	perf_fact_int(&table, "ranks", o->c.ranks);
	perf_fact_text(&table, "started_by", o->c.launcher ? o->c.launcher : "fork");
	perf_fact_bool(&table, "threads", o->c.threads);
	perf_fact_text(&table, "device_name", device);
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
			    .type = perf_comm_type_name(o->type),
			    .pattern = options_choice_name(SR_PATTERNS, o->pattern, pattern),
			    .device = options_choice_name(PERF_DEVICES, o->c.device, device),
			    .ranks = (uint64_t)o->c.ranks};

	perf_table_row(&table, &line);
}

/* The header before anything is measured. */
static void print_new(void *shared, struct perf_ranks *p)
{
	const struct perf_comm_shared *all = shared;
	const struct sr_shared *sh = all->own;
	size_t n = load_acquire(&sh->nrows);
	int header = !table.open && load_acquire(&all->info_ready);

	if (header || p->printed < n)
		perf_ranks_clear(p);
	if (header)
		print_header(sh->opts, all->device);
	for (; p->printed < n; p->printed++)
		print_row(sh->opts, &sh->rows[p->printed]);
}

/* NULL: nothing was wrong. */
static const char *first_wrong(const struct sr_shared *sh)
{
	for (uint64_t i = 0; i < sh->nrows; i++)
		if (sh->rows[i].wrong)
			return sh->rows[i].first_wrong;
	return NULL;
}

static int run_all(const struct sr_opts *o)
{
	struct perf_comm_shared *all = perf_comm_map(&sr_op, &o->c, sizeof(struct sr_shared));
	struct sr_shared *sh;
	int status;

	if (!all)
		return 1;
	sh = all->own;
	sh->opts = o;
	status = perf_comm_run(all, o->nsizes, print_new);
	table.ours = all->others_cpu;
	status = perf_table_end(&table, status, first_wrong(sh));
	perf_comm_unmap(all);
	return status;
}

int cmd_perf_sendrecv(int argc, char **argv)
{
	static struct sr_opts o;
	int status = sr_parse(argc, argv, &o);

	if (status)
		return status - 1;
	set_mode(&o);
	if (perf_comm_environment(&set, &o.c) < 0)
		return 2;
	table.out = stdout;
	table.json = o.json;
	table.unchecked = !o.check;
	/* Where a launcher starts ranks, how many of them are on this host is not known. */
	if (o.c.device == GANTRY_DEVICE_HOST &&
	    perf_memory_check("sendrecv", o.c.rank < 0 ? o.c.ranks : 1, sr_memory(&o)) < 0)
		return 1;
	return run_all(&o);
}
