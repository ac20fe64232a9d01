/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf rx`: the pipeline of gantry/rx.h between two processes of this host, or between two hosts, beside plain
 * TCP and, on a GPU, beside the bus.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf_rx.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "cmd.h"
#include "options.h"
#include "perf_table.h"
#include "perf_util.h"
#include "preflight.h"

/* The one line of the table. NAN: not measured. */
struct row {
	uint64_t bytes, wrong, pieces, streams, repeats;
	struct perf_spread gbs;
	double raw, pcie, ratio, piece_ratio;
	const char *path, *device;
};

#define END_MAX ((uint64_t)1 << 36)
#define STRIDE_MAX ((uint64_t)1 << 32)
enum { PIECES_MAX = 1 << 26, PIECE_MAX = 1 << 30 };

/* clang-format off */
#define AT(field) offsetof(struct prx_opts, field)
static const struct option_spec specs[] = {
	{0, OPTION_CHOICE, "device", AT(work.device), 0, 0, "host|cuda", NULL, "whose memory (host)"},
	{0, OPTION_INT, "gpu", AT(gpu), 0, 1023, NULL, "N", "which GPU (0)"},
	{0, OPTION_CHOICE, "path", AT(work.path), 0, 0, PRX_PATHS, NULL, "how bytes come to device memory (GANTRY_RX_PATH)"},
	{0, OPTION_CHOICE, "memory", AT(work.memory), 0, 0, PRX_MEMORY, NULL, "auto: host memory on the host's own path, else the device's"},
	{'e', OPTION_SIZE, "end", AT(work.end), 1, END_MAX, NULL, "SIZE", "bytes of a transfer (256M); with --pieces their sum counts"},
	{0, OPTION_COUNT, "pieces", AT(work.pieces), 1, PIECES_MAX, NULL, "N", "also as so many pieces"},
	{0, OPTION_SIZE, "piece-bytes", AT(work.piece_bytes), 1, PIECE_MAX, NULL, "SIZE", "bytes of a piece (8k)"},
	{0, OPTION_SIZE, "stride", AT(work.stride), 1, STRIDE_MAX, NULL, "SIZE", "from piece to piece (twice their size)"},
	{0, OPTION_INT, "repeats", AT(work.repeats), 1, PRX_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (5)"},
	{0, OPTION_TIME, "timeout", AT(work.timeout_ns), 0, 0, NULL, "TIME", "the longest that a repeat may take (120s)"},
	{0, OPTION_FLAG, "listen", AT(remote.listen), 0, 0, NULL, NULL, "wait for a client on another machine, measure with it, and end"},
	{0, OPTION_FLAG, "forever", AT(remote.forever), 0, 0, NULL, NULL, "with --listen: client after client, until it is ended"},
	{0, OPTION_INT, "port", AT(remote.port), 1, 65535, NULL, "N", "where to listen, or to look for the listener (18520)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "a JSON object"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf rx",
	.about = "The pipeline of gantry/rx.h between two processes of this machine, or two machines: --listen on one, "
		 "its\n"
		 "HOST on the other, whose options count. Every byte is checked.\n",
	.notes = "\nSee gantry-perf(1) and gantry-rx(3).\n",
	OPTION_SPECS(specs),
	.operand = "HOST[:PORT]",
	.operand_at = AT(remote.host),
};

static const struct prx_opts defaults = {
	.work = {.path = -1, .end = 256 << 20, .piece_bytes = 8192, .repeats = 5, .timeout_ns = 120000000000}};
static char command[512]; /* the command line, for the header */

/* clang-format off */
#define FIELD(field) offsetof(struct row, field)
static const struct perf_column columns[] = {
	{"size", "(B)", "bytes", PERF_COUNT, 13, FIELD(bytes)},
	{NULL, "", "path", PERF_NAME, 0, FIELD(path)},
	{"bandwidth", "(GB/s)", "gbs", PERF_SPREAD, 7, FIELD(gbs)},
	{"raw", "(GB/s)", "raw_gbs", PERF_FIGURE, 8, FIELD(raw)},
	{"bus", "(GB/s)", "pcie_gbs", PERF_FIGURE, 8, FIELD(pcie)},
	{"ratio", "", "ratio", PERF_FIGURE, 7, FIELD(ratio)},
	{"#wrong", "(B)", "wrong", PERF_WRONG, 7, FIELD(wrong)},
	{"pieces", "", "pieces", PERF_COUNT, 9, FIELD(pieces)},
	{"ratio", "", "piece_ratio", PERF_FIGURE, 7, FIELD(piece_ratio)},
	{NULL, "", "streams", PERF_COUNT, 0, FIELD(streams)},
	{NULL, "", "device", PERF_NAME, 0, FIELD(device)},
	{NULL, "", "repeats", PERF_COUNT, 0, FIELD(repeats)},
};
/* clang-format on */

/* What the parent works with. */
struct run {
	struct prx_shared *shared;
	struct perf_table *table;
};

static struct row row_of(const struct prx_opts *o, struct prx_shared *s)
{
	struct row r = {.bytes = o->work.pieces ? o->work.pieces * o->work.piece_bytes : o->work.end,
			.wrong = s->wrong,
			.pieces = o->work.pieces,
			.streams = (uint64_t)s->streams,
			.repeats = (uint64_t)o->work.repeats,
			.pcie = NAN,
			.piece_ratio = NAN,
			.path = s->path,
			.device = s->device};
	size_t n = (size_t)o->work.repeats;
	double limit, down, up;

	r.gbs = perf_spread_of(s->gbs[PRX_RX], n);
	r.raw = perf_median(s->gbs[PRX_RAW], n);
	limit = r.raw;
	if (o->work.device == GANTRY_DEVICE_CUDA) {
		down = perf_median(s->pcie[0], n);
		up = perf_median(s->pcie[1], n);
		r.pcie = down < up ? down : up;
		limit = r.pcie < limit ? r.pcie : limit;
	}
	r.ratio = r.gbs.median / limit;
	if (o->work.pieces)
		r.piece_ratio = perf_median(s->gbs[PRX_PIECES], n) / r.gbs.median;
	return r;
}

static void print_header(const struct prx_opts *o, const struct prx_shared *s, struct perf_table *t)
{
	perf_table_begin(t, command,
			 s->peer[0]
				 ? "the pipeline of gantry/rx.h between two machines, beside plain TCP and the bus"
				 : "the pipeline of gantry/rx.h between two processes, beside plain TCP and the bus");
	if (s->peer[0])
		perf_fact_text(t, "peer", s->peer);
	perf_fact_text(t, "device", s->device);
	perf_fact_text(t, "path", s->path);
	perf_fact_int(t, "streams", s->streams);
	perf_fact_int(t, "repeats", o->work.repeats);
	perf_table_note(t, "raw: plain TCP; ratio: bandwidth by the smaller of raw and bus, pieces by contiguous");
	perf_table_columns(t, columns, sizeof(columns) / sizeof(columns[0]));
}

static void print_row(const struct prx_opts *o, struct prx_shared *s, struct perf_table *t)
{
	struct row row = row_of(o, s);

	perf_table_row(t, &row);
}

static int within(int64_t v, int64_t min, int64_t max)
{
	return v >= min && v <= max;
}

int prx_take(const struct prx_work *t, struct prx_opts *o)
{
	if (t->end < 1 || t->end > END_MAX || t->pieces > PIECES_MAX || t->piece_bytes < 1 ||
	    t->piece_bytes > PIECE_MAX || t->stride < t->piece_bytes || t->stride > STRIDE_MAX || !t->timeout_ns ||
	    !within(t->device, 0, 1) || !within(t->path, -1, 3) || !within(t->memory, 0, PRX_MEMORY_DEVICE) ||
	    !within(t->repeats, 1, PRX_REPEATS_MAX))
		return -1;
	o->work = *t;
	return 0;
}

/* The header as soon as the ranks know what it says. */
static void print_new(void *run, struct perf_ranks *p)
{
	const struct run *r = run;

	(void)p;
	if (!r->table->open && load_acquire(&r->shared->info_ready))
		print_header(&r->shared->opts, r->shared, r->table);
}

static int run_rank(void *run, int first, int n)
{
	(void)n;
	return prx_rank_run(first, ((const struct run *)run)->shared);
}

/* Ranks have deadlines of their own. */
static uint64_t no_timeout(void *run)
{
	(void)run;
	return 0;
}

double prx_bytes(const struct prx_opts *o)
{
	if (!o->work.pieces)
		return 2 * (double)o->work.end;
	return 2 * (double)o->work.pieces * ((double)o->work.piece_bytes + (double)o->work.stride);
}

static int run_once(void *arg)
{
	const struct prx_opts *o = arg;
	const int remote = perf_remote_wanted(&o->remote);
	struct perf_table t = {.op = "rx", .out = stdout, .json = o->json, .whole = 1};
	struct prx_shared *s = perf_ranks_map(set.program, sizeof(*s));
	struct run run = {.shared = s, .table = &t};
	struct perf_ranks ranks = {.program = set.program,
				   .first = remote ? perf_remote_rank(&o->remote) : 0,
				   .count = remote ? 1 : 2,
				   .tidy = remote, /* its last words are on their way until then */
				   .states = s ? s->state : NULL,
				   .stride = sizeof(struct perf_state),
				   .ctx = &run,
				   .run = run_rank,
				   .print = print_new,
				   .timeout = no_timeout};
	int status;

	if (!s)
		return 1;
	s->opts = *o;
	status = perf_ranks_run(&ranks);
	if (o->remote.listen && !s->served)
		return PERF_REMOTE_CANNOT;
	t.ours = s->others_cpu;
	if (!status)
		print_row(&s->opts, s, &t);
	return perf_table_end(&t, status, s->wrong ? s->first_wrong : NULL);
}

/* 0, or the exit status plus 1 after a line on stderr. */
static int parse(int argc, char **argv, struct prx_opts *o)
{
	char stride[GANTRY_TEXT_MAX], piece[GANTRY_TEXT_MAX];
	int status = options_parse(&set, argc, argv, o);

	if (status)
		return status;
	if (perf_remote_check(set.program, &o->remote) < 0)
		return 1 + 2;
	if (o->remote.listen && memcmp(&o->work, &defaults.work, sizeof(o->work)) != 0)
		return 1 + options_wrong(&set, "with --listen the client says what is measured: only --port, "
					       "--forever, --gpu and --json go with it");
	if (!o->work.stride)
		o->work.stride = 2 * o->work.piece_bytes;
	if (o->work.stride < o->work.piece_bytes)
		return 1 + options_wrong(&set, "--stride %s is less than --piece-bytes %s",
					 gantry_size_text(o->work.stride, stride, sizeof(stride)),
					 gantry_size_text(o->work.piece_bytes, piece, sizeof(piece)));
	return 0;
}

int cmd_perf_rx(int argc, char **argv)
{
	struct prx_opts o = defaults;
	int status;

	options_join(set.program, argc, argv, command, sizeof(command));
	status = parse(argc, argv, &o);
	if (status)
		return status - 1;
	if (preflight(set.program, NULL, NULL) < 0)
		return 2;
	if (!o.remote.listen && o.work.device == GANTRY_DEVICE_HOST &&
	    perf_memory_check("rx", perf_remote_wanted(&o.remote) ? 1 : 2, prx_bytes(&o)) < 0)
		return 1;
	if (o.remote.forever)
		return perf_remote_forever(run_once, &o);
	status = run_once(&o);
	return status == PERF_REMOTE_CANNOT ? 1 : status;
}
