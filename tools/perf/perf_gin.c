/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry perf gin`: options, a rank's life, and what the parent prints. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_gin.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/text.h"
#include "common/cmd.h"
#include "common/options.h"
#include "perf/perf_table.h"

#define AT(field) offsetof(struct gin_opts, field)
#define SIZE_LIMIT ((uint64_t)1 << 32)

/* clang-format off */
static const struct option_spec specs[] = {
	{'b', OPTION_SIZE, "minbytes", AT(size.begin), 0, SIZE_LIMIT, NULL, "SIZE", "smallest put, may be 0 (8)"},
	{'e', OPTION_SIZE, "maxbytes", AT(size.end), 0, SIZE_LIMIT, NULL, "SIZE", "largest put (4M)"},
	{'f', OPTION_COUNT, "stepfactor", AT(size.factor), 2, 1 << 20, NULL, "FACTOR", "from one size to the next (4)"},
	{'i', OPTION_SIZE, "stepbytes", AT(size.step), 1, SIZE_LIMIT, NULL, "SIZE", "or this much more from one to the next"},
	{0, OPTION_FLAG, "odd", AT(size.odd), 0, 0, NULL, NULL, "also 1 byte less, and 1 and 3 bytes more"},
	{'n', OPTION_COUNT, "iters", AT(iters), 1, 1 << 30, NULL, "ITERS", "echoes and puts per repeat (those of 0.03, 0.1 s)"},
	{'w', OPTION_COUNT, "warmup_iters", AT(warmup), 0, 1 << 30, NULL, "ITERS", "before the first repeat (until the rate is known)"},
	{'c', OPTION_INT, "check", AT(check), 0, 1, NULL, "0|1", "compare every byte (1)"},
	{0, OPTION_INT, "repeats", AT(repeats), 1, GIN_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (5)"},
	{0, OPTION_INT, "contexts", AT(contexts), 1, GIN_CONTEXTS_MAX, NULL, "N", "contexts, with a block of the kernel each (1)"},
	{0, OPTION_INT, "depth", AT(depth), 1, GIN_DEPTH_MAX, NULL, "D", "puts of a context in flight, a power of two (64)"},
	PERF_COMM_OPTIONS(struct gin_opts, c),
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf gin",
	.about = "Kernels put and signal, in pairs of ranks; every byte is checked.\n",
	.notes = "\nGB is 10^9 bytes. SIZE takes k, M and G. See gantry-perf(1).\n",
	OPTION_SPECS(specs),
};

static int parse(int argc, char **argv, struct gin_opts *o)
{
	int status;

	*o = (struct gin_opts){.size = {.begin = 8, .end = 4 << 20},
			       .check = 1,
			       .repeats = 5,
			       .contexts = 1,
			       .depth = 64,
			       .c = PERF_COMM_OPTS_INIT};
	status = options_parse(&set, argc, argv, o);
	if (!status)
		status = perf_comm_check(&set, &o->c);
	if (!status)
		status = perf_comm_sizes(&set, &o->size, 1, o->sizes, &o->nsizes);
	if (!status && (o->depth & (o->depth - 1)))
		status = 1 + options_wrong(&set, "--depth %d is not a power of two", o->depth);
	return status;
}

/* ---- a rank: its queues and memory, size after size ---- */

static gantry_result make_memory(struct gin_rank *rk)
{
	rk->stride = gin_stride(rk->opts);
	rk->places = gin_places(rk->opts);
	perf_phase(rk->base.state, "allocating", rk->stride * rk->places);
	for (int sent = 0; sent < 2; sent++) {
		void *p = NULL;

		TRY_NOW(perf_rank_alloc(&rk->base, rk->stride * rk->places, &p));
		rk->memory[sent] = p;
		TRY_NOW(gantry_gin_register(rk->queues, p, rk->stride * rk->places, &rk->number[sent]));
	}
	return GANTRY_OK;
}

static gantry_result open_all(struct gin_rank *rk)
{
	const struct gantry_gin_config config = {.struct_size = sizeof(config),
						 .contexts = (uint32_t)rk->opts->contexts,
						 .depth = (uint32_t)rk->opts->depth};
	void *host = NULL, *mapped = NULL;

	rk->peer = rk->base.rank ^ 1;
	perf_phase(rk->base.state, "opening queues", 0);
	TRY_NOW(gantry_gin_open(rk->base.comm, &config, &rk->queues));
	TRY_NOW(gantry_gin_view(rk->queues, &rk->view));
	TRY_NOW(make_memory(rk));
	TRY_NOW(rk->base.dev->ops->alloc_mapped(rk->base.dev, sizeof(*rk->host), &host, &mapped));
	rk->host = host;
	rk->mapped = mapped;
	*rk->host = (struct gin_mapped){.wrong = 0};
	return GANTRY_OK;
}

static gantry_result work(void *rank)
{
	struct gin_rank *rk = rank;
	struct gin_row row;

	rk->shared = rk->base.shared->own;
	rk->opts = rk->shared->opts;
	TRY_NOW(open_all(rk));
	for (size_t i = 0; i < rk->opts->nsizes; i++) {
		TRY_NOW(gin_measure(rk, rk->opts->sizes[i], &row));
		if (rk->base.rank == 0) {
			rk->shared->rows[i] = row;
			store_release(&rk->shared->nrows, i + 1);
		}
	}
	return GANTRY_OK;
}

/* The kernel ends before its queues do: after an error it sees the stop word. */
static void close_queues(void *rank)
{
	struct gin_rank *rk = rank;

	if (rk->base.stream)
		gantry_stream_sync(rk->base.dev, rk->base.stream);
	gantry_gin_close(rk->queues);
}

static void free_all(void *rank)
{
	struct gin_rank *rk = rank;

	for (int sent = 0; sent < 2; sent++)
		if (rk->memory[sent])
			gantry_mem_free(rk->base.dev, rk->memory[sent]);
	if (rk->host)
		rk->base.dev->ops->free_mapped(rk->base.dev, rk->host);
}

static const struct perf_comm_op gin_op = {
	.program = "gantry perf gin",
	.unit = "launches",
	.rank_size = sizeof(struct gin_rank),
	.sample_size = sizeof(struct gin_sample),
	.work = work,
	.deregister = close_queues,
	.free = free_all,
};

/* ---- what is printed ---- */

struct line {
	struct gin_row row;
	const char *device;
	uint64_t ranks, contexts;
};

/* clang-format off */
#define FIELD(field) offsetof(struct line, field)
static const struct perf_column columns[] = {
	{"size", "(B)", "bytes", PERF_COUNT, 11, FIELD(row.bytes)},
	{"latency", "(us)", "lat_us", PERF_SPREAD, 7, FIELD(row.us)},
	{"bandwidth", "(GB/s)", "bw_gbs", PERF_SPREAD, 7, FIELD(row.gbs)},
	{"rate", "(puts/s)", "puts_per_s", PERF_FIGURE, 9, FIELD(row.puts)},
	{"#wrong", "(B)", "wrong", PERF_WRONG, 7, FIELD(row.wrong)},
	{NULL, "", "ranks", PERF_COUNT, 0, FIELD(ranks)},
	{NULL, "", "contexts", PERF_COUNT, 0, FIELD(contexts)},
	{NULL, "", "device", PERF_NAME, 0, FIELD(device)},
};
/* clang-format on */

static struct perf_table table = {.op = "gin"};

static void print_header(const struct gin_opts *o, const char *device)
{
	perf_table_begin(&table, options_command(), "puts and signals by kernels, from rank to rank of each pair");
	perf_fact_int(&table, "ranks", o->c.ranks);
	perf_fact_text(&table, "started_by", o->c.launcher ? o->c.launcher : "fork");
	perf_fact_bool(&table, "threads", o->c.threads);
	perf_fact_text(&table, "device_name", device);
	perf_fact_int(&table, "contexts", o->contexts);
	perf_fact_int(&table, "depth", o->depth);
	perf_fact_int(&table, "repeats", o->repeats);
	perf_table_columns(&table, columns, sizeof(columns) / sizeof(columns[0]));
}

static void print_row(const struct gin_opts *o, const struct gin_row *row)
{
	char device[32];
	const struct line line = {.row = *row,
				  .device = options_choice_name(PERF_DEVICES, o->c.device, device),
				  .ranks = (uint64_t)o->c.ranks,
				  .contexts = (uint64_t)o->contexts};

	perf_table_row(&table, &line);
}

/* The header before anything is measured. */
static void print_new(void *shared, struct perf_ranks *p)
{
	const struct perf_comm_shared *all = shared;
	const struct gin_shared *sh = all->own;
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
static const char *first_wrong(const struct gin_shared *sh)
{
	for (uint64_t i = 0; i < sh->nrows; i++)
		if (sh->rows[i].first_wrong[0])
			return sh->rows[i].first_wrong;
	return NULL;
}

static int run_all(const struct gin_opts *o)
{
	struct perf_comm_shared *all = perf_comm_map(&gin_op, &o->c, sizeof(struct gin_shared));
	struct gin_shared *sh;
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

int cmd_perf_gin(int argc, char **argv)
{
	static struct gin_opts o;
	int status = parse(argc, argv, &o);

	if (status)
		return status - 1;
	if (perf_comm_environment(&set, &o.c) < 0)
		return 2;
	if (o.c.ranks % 2)
		return options_wrong(&set, "ranks work in pairs, so their number is even, not %d", o.c.ranks);
	table.out = stdout;
	table.json = o.json;
	table.unchecked = !o.check;
	/* Where a launcher starts ranks, how many of them are on this host is not known. */
	if (o.c.device == GANTRY_DEVICE_HOST &&
	    perf_memory_check("gin", o.c.rank < 0 ? o.c.ranks : 1,
			      2.0 * (double)gin_places(&o) * (double)gin_stride(&o)) < 0)
		return 1;
	return run_all(&o);
}
