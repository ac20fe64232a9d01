/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry perf net`: options, the parent and what it prints. The measuring is in perf_net_rank.c. */
#include "perf_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/param.h"
#include "cmd.h"
#include "options.h"
#include "perf_table.h"
#include "perf_util.h"
#include "preflight.h"

#define SIZE_LIMIT ((uint64_t)1 << 40)
enum { LANES_MAX = 16, ITERS_MAX = 1 << 30 };

static char command[1024]; /* the command line, for the header */
static const struct perf_opts defaults = {
	.work = {.repeats = 5, .depth = 8, .check = 1, .huge = 1, .lanes = -1, .timeout_ns = 60000000000},
	.begin = 64,
	.end = 64 << 20,
	.factor = 4,
	.pin = 1,
};

/* clang-format off */
#define FIELD(field) offsetof(struct perf_row, field)
static const struct perf_column columns[] = {
	{"size", "(B)", "bytes", PERF_COUNT, 11, FIELD(bytes)},
	{"bandwidth", "(GB/s)", "bw_gbs", PERF_SPREAD, 7, FIELD(bw)},
	{"latency", "(us)", "lat_us", PERF_SPREAD, 7, FIELD(lat)},
	{"rate", "(msg/s)", "msgs_per_s", PERF_FIGURE, 9, FIELD(rate)},
	{"cpu", "(s/GB)", "cpu_s_per_gb", PERF_FIGURE, 7, FIELD(cpu)},
	{"tx", "(/MiB)", "syscalls_per_mib_tx", PERF_FIGURE, 7, FIELD(moved_tx)},
	{"rx", "(/MiB)", "syscalls_per_mib_rx", PERF_FIGURE, 7, FIELD(moved_rx)},
	{"all", "(/MiB)", "calls_per_mib", PERF_FIGURE, 7, FIELD(all)},
	{"#wrong", "(B)", "wrong", PERF_WRONG, 7, FIELD(wrong)},
	/* From here on: --raw. */
	{"raw bw", "(GB/s)", "raw_bw_gbs", PERF_FIGURE, 7, FIELD(raw_bw)},
	{"ratio", "", "bw_ratio", PERF_FIGURE, 6, FIELD(bw_ratio)},
	{"raw lat", "(us)", "raw_lat_us", PERF_FIGURE, 7, FIELD(raw_lat)},
	{"ratio", "", "lat_ratio", PERF_FIGURE, 6, FIELD(lat_ratio)},
	{"raw cpu", "(s/GB)", "raw_cpu_s_per_gb", PERF_FIGURE, 7, FIELD(raw_cpu)},
	{"ratio", "", "cpu_ratio", PERF_FIGURE, 6, FIELD(cpu_ratio)},
};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]), RAW_COLUMNS = 6 };
/* clang-format on */

static struct perf_table table = {.op = "net"};

static void print_header(const struct perf_opts *o, const struct perf_shared *sh)
{
	const char *ifname = sh->ifname[0] ? sh->ifname : getenv("GANTRY_IFNAME");

	perf_table_begin(&table, command,
			 sh->peer[0] ? "isend and irecv of a net plugin, between two machines"
				     : "isend and irecv of a net plugin, between two processes");
	if (sh->peer[0])
		perf_fact_text(&table, "peer", sh->peer);
	perf_fact_text(&table, "network", sh->net_name);
	perf_fact_text(&table, "from", sh->net_from);
	if (o->json || sh->net_version)
		perf_fact_int(&table, "version", sh->net_version);
	perf_fact_text(&table, "device", sh->dev_name);
	perf_fact_text(&table, "interfaces", ifname ? ifname : "any");
	perf_fact_int(&table, "depth", o->work.depth);
	perf_fact_int(&table, "repeats", o->work.repeats);
	perf_table_note(&table, "latency: one way; cpu and all calls: both sides; tx, rx: calls that moved bytes");
	perf_table_columns(&table, columns, o->work.raw ? COLUMNS : COLUMNS - RAW_COLUMNS);
}

/* The header as soon as the network is known, before anything is measured. */
static void print_new(void *shared, struct perf_ranks *p)
{
	struct perf_shared *sh = shared;
	size_t n = load_acquire(&sh->nrows);

	if (!table.open && load_acquire(&sh->info_ready))
		print_header(&sh->opts, sh);
	for (; p->printed < n; p->printed++)
		perf_table_row(&table, &sh->rows[p->printed]);
}

static void print_calls(const struct perf_opts *o, const struct perf_shared *sh)
{
	for (int rank = 0; rank < 2; rank++) {
		const struct perf_slot *s = &sh->rank[rank];

		for (int k = 0; s->calls_counted && k < CALL_KIND_COUNT; k++) {
			struct gantry_json j;

			if (!s->calls.made[k])
				continue;
			if (!o->json) {
				printf("# rank %d: %llu %s\n", rank, (unsigned long long)s->calls.made[k],
				       count_calls_name((enum call_kind)k));
				continue;
			}
			gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
			gantry_json_int(&j, "rank", rank);
			gantry_json_str(&j, "call", count_calls_name((enum call_kind)k));
			gantry_json_int(&j, "count", (int64_t)s->calls.made[k]);
			gantry_json_end(&j);
		}
	}
}

/* clang-format off */
#define AT(field) offsetof(struct perf_opts, field)
static const struct option_spec specs[] = {
	{0, OPTION_FLAG, "listen", AT(remote.listen), 0, 0, NULL, NULL, "wait for a client, measure with it, and end"},
	{0, OPTION_FLAG, "forever", AT(remote.forever), 0, 0, NULL, NULL, "with --listen: client after client, until it is ended"},
	{0, OPTION_INT, "port", AT(remote.port), 1, 65535, NULL, "N", "where to listen, or to look for the listener (18520)"},
	{'b', OPTION_SIZE, NULL, AT(begin), 1, SIZE_LIMIT, NULL, "SIZE", "smallest message (64)"},
	{'e', OPTION_SIZE, NULL, AT(end), 1, SIZE_LIMIT, NULL, "SIZE", "largest message (64M)"},
	{'f', OPTION_COUNT, NULL, AT(factor), 2, 1 << 20, NULL, "FACTOR", "from one size to the next (4)"},
	{'n', OPTION_COUNT, NULL, AT(work.iters), 1, ITERS_MAX, NULL, "ITERS", "messages per repeat (as many as take about 0.2 s)"},
	{'w', OPTION_COUNT, NULL, AT(work.warmup), 0, ITERS_MAX, NULL, "WARMUP", "messages before the first repeat (until the rate is known)"},
	{'c', OPTION_INT, NULL, AT(work.check), 0, 1, NULL, "0|1", "check the bytes (1)"},
	{0, OPTION_INT, "repeats", AT(work.repeats), 1, PERF_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (5)"},
	{0, OPTION_INT, "depth", AT(work.depth), 1, PERF_DEPTH_MAX, NULL, "D", "requests in flight (8)"},
	{0, OPTION_FLAG, "raw", AT(work.raw), 0, 0, NULL, NULL, "also a plain TCP mover, interleaved, and the ratios to it"},
	{0, OPTION_FLAG, "raw-nodelay", AT(work.raw_nodelay), 0, 0, NULL, NULL, "the same, with TCP_NODELAY on its streams too"},
	{0, OPTION_INT, "pin", AT(pin), 0, 1, NULL, "0|1", "each rank's thread keeps to its half of the CPUs (1)"},
	{0, OPTION_INT, "huge", AT(work.huge), 0, 1, NULL, "0|1", "ask for buffers on huge pages, for all movers alike (1)"},
	{0, OPTION_TEXT, "plugin", AT(plugin), 0, 0, NULL, "P", "a plugin by NCCL's rules, name or path (Gantry's own TCP network)"},
	{0, OPTION_TEXT, "ifname", AT(ifname), 0, 0, NULL, "PATTERN", "interfaces, as in NCCL_SOCKET_IFNAME (lo)"},
	{0, OPTION_INT, "lanes", AT(work.lanes), 0, LANES_MAX, NULL, "N", "sockets per connection, as GANTRY_LANES"},
	{0, OPTION_FLAG, "calls", AT(calls), 0, 0, NULL, NULL, "list the system calls of both ranks at the end"},
	{0, OPTION_TIME, "timeout", AT(work.timeout_ns), 0, 0, NULL, "TIME", "without progress for so long it is a hang (60s)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf net",
	.usage = "[OPTION]... [HOST[:PORT] | --listen]",
	.about = "Two processes of this machine, or two machines, exchange messages over a net plugin; every byte is\n"
		 "checked. Between machines: --listen on one, its HOST on the other, whose options count.\n",
	.notes = "\nGB is 10^9 bytes, MiB is 2^20. SIZE takes k, M and G. See gantry-perf(1).\n",
	OPTION_SPECS(specs),
	.operand = "HOST",
	.operand_at = AT(remote.host),
	.keep_params = 1, /* set_environment does it */
};

static void make_sizes(struct perf_opts *o)
{
	o->work.raw |= o->work.raw_nodelay;
	o->work.nsizes = perf_sizes(o->begin, o->end, o->factor, o->work.sizes, PERF_SIZES_MAX);
}

/* 0, or the exit status plus 1 after a line on stderr. */
static int parse(int argc, char **argv, struct perf_opts *o)
{
	static struct perf_opts none;
	int status = options_parse(&set, argc, argv, o);

	if (status)
		return status;
	if (perf_remote_check(set.program, &o->remote) < 0)
		return 1 + 2;
	if (o->begin > o->end)
		return 1 + options_wrong(&set, "-b is larger than -e");
	make_sizes(o);
	none = defaults;
	make_sizes(&none);
	/* What is measured is the client's to say: an option that would have no effect is refused. */
	if (o->remote.listen && memcmp(&o->work, &none.work, sizeof(o->work)) != 0)
		return 1 + options_wrong(&set, "with --listen the client says what is measured: give sizes, counts "
					       "and --lanes there; --port, --forever, --plugin, --ifname, --calls and "
					       "--json go with --listen");
	return 0;
}

double perf_net_bytes(const struct perf_opts *o)
{
	uint64_t largest = 0;

	for (size_t i = 0; i < o->work.nsizes; i++)
		largest = o->work.sizes[i] > largest ? o->work.sizes[i] : largest;
	return (double)largest * o->work.depth;
}

int perf_net_take(const struct perf_net_work *t, struct perf_opts *o)
{
	if (t->nsizes < 1 || t->nsizes > PERF_SIZES_MAX || t->repeats < 1 || t->repeats > PERF_REPEATS_MAX ||
	    t->depth < 1 || t->depth > PERF_DEPTH_MAX || t->lanes < -1 || t->lanes > LANES_MAX ||
	    t->iters > ITERS_MAX || t->warmup > ITERS_MAX || !t->timeout_ns)
		return -1;
	for (uint64_t i = 0; i < t->nsizes; i++)
		if (t->sizes[i] < 1 || t->sizes[i] > SIZE_LIMIT)
			return -1;
	o->work = *t;
	return 0;
}

/* Options become variables, because a foreign plugin reads nothing else. Both ranks are on one host: loopback, unless
 * the user has named an interface. */
static int set_environment(const struct perf_opts *o)
{
	const char *given = getenv("GANTRY_IFNAME") ? getenv("GANTRY_IFNAME") : getenv("NCCL_SOCKET_IFNAME");
	const char *ifname = o->ifname ? o->ifname : given && given[0] ? given : "lo";

	if (o->ifname || !perf_remote_wanted(&o->remote)) {
		setenv("GANTRY_IFNAME", ifname, 1);
		setenv("NCCL_SOCKET_IFNAME", ifname, o->ifname != NULL);
	}
	perf_net_set_lanes(o);
	return gantry_params_load(1) == GANTRY_OK ? preflight(set.program, o->plugin, NULL) : -1;
}

/* NULL: nothing was wrong. */
static const char *first_wrong(const struct perf_shared *sh)
{
	for (int rank = 0; rank < 2; rank++)
		if (sh->rank[rank].wrong)
			return sh->rank[rank].first_wrong;
	return NULL;
}

void perf_net_set_lanes(const struct perf_opts *o)
{
	char text[16];

	if (o->work.lanes < 0)
		return;
	snprintf(text, sizeof(text), "%d", o->work.lanes);
	setenv("GANTRY_LANES", text, 1);
}

static int run_rank(void *shared, int first, int n)
{
	(void)n;
	return perf_net_rank(first, shared);
}

static uint64_t timeout_of(void *shared)
{
	return ((struct perf_shared *)shared)->opts.work.timeout_ns;
}

static int run_once(void *arg)
{
	const struct perf_opts *o = arg;
	const int remote = perf_remote_wanted(&o->remote);
	struct perf_shared *shared = perf_ranks_map(set.program, sizeof(*shared));
	struct perf_ranks ranks = {.program = set.program,
				   .unit = "messages",
				   .first = remote ? perf_remote_rank(&o->remote) : 0,
				   .count = remote ? 1 : 2,
				   .tidy = remote, /* its last words are on their way until then */
				   .more_ns = remote ? perf_remote_patience(&o->remote) : 0,
				   .states = shared ? &shared->rank[0].state : NULL,
				   .stride = sizeof(shared->rank[0]),
				   .ctx = shared,
				   .run = run_rank,
				   .print = print_new,
				   .timeout = timeout_of};
	int status;

	if (!shared)
		return 1;
	shared->opts = *o;
	table.out = stdout;
	table.json = o->json;
	status = perf_ranks_run(&ranks);
	if (o->remote.listen && !shared->served)
		return PERF_REMOTE_CANNOT;
	table.unchecked = !shared->opts.work.check;
	table.ours = shared->others_cpu;
	if (o->calls)
		print_calls(o, shared);
	return perf_table_end(&table, status, first_wrong(shared));
}

int cmd_perf_net(int argc, char **argv)
{
	static struct perf_opts o;
	int status;

	o = defaults;
	options_join(set.program, argc, argv, command, sizeof(command));
	status = parse(argc, argv, &o);
	if (status)
		return status - 1;
	if (set_environment(&o) < 0)
		return 2;
	if (!o.remote.listen && perf_memory_check("net", perf_remote_wanted(&o.remote) ? 1 : 2, perf_net_bytes(&o)) < 0)
		return 1;
	if (o.remote.forever)
		return perf_remote_forever(run_once, &o);
	status = run_once(&o);
	return status == PERF_REMOTE_CANNOT ? 1 : status;
}
