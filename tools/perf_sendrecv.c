/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry perf sendrecv`: options, the variables that they become, the parent, and what it prints. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/param.h"
#include "cmd.h"
#include "options.h"
#include "perf_sendrecv.h"
#include "perf_table.h"

#define AT(field) offsetof(struct sr_opts, field)
#define SIZE_LIMIT ((uint64_t)1 << 40)
#define TIMEOUT_NS ((uint64_t)60000000000)

/* Names and letters are those of nccl-tests where it has them. */
/* clang-format off */
static const struct option_spec specs[] = {
	{'b', OPTION_SIZE, "minbytes", AT(begin), 0, SIZE_LIMIT, NULL, "SIZE", "smallest message, may be 0 (8)"},
	{'e', OPTION_SIZE, "maxbytes", AT(end), 0, SIZE_LIMIT, NULL, "SIZE", "largest message (32M)"},
	{'f', OPTION_COUNT, "stepfactor", AT(factor), 2, 1 << 20, NULL, "FACTOR", "from one size to the next (4)"},
	{'i', OPTION_SIZE, "stepbytes", AT(step), 1, SIZE_LIMIT, NULL, "SIZE", "or this much more from one to the next"},
	{0, OPTION_FLAG, "odd", AT(odd), 0, 0, NULL, NULL, "also 1 byte less and 1 and 3 bytes more than each size"},
	{'d', OPTION_TEXT, "datatype", AT(type_text), 0, 0, NULL, "TYPE", "float, int8, half, ... (float; with --odd int8)"},
	{'n', OPTION_COUNT, "iters", AT(iters), 1, 1 << 30, NULL, "ITERS", "iterations per repeat (as many as take 0.1 s)"},
	{'w', OPTION_COUNT, "warmup_iters", AT(warmup), 0, 1 << 30, NULL, "ITERS", "before the first repeat (until the rate is known)"},
	{'c', OPTION_INT, "check", AT(check), 0, 1, NULL, "0|1", "compare every byte (1)"},
	{'m', OPTION_INT, "inflight", AT(inflight), 1, SR_INFLIGHT_MAX, NULL, "M", "messages per group and peer (1)"},
	{0, OPTION_INT, "repeats", AT(repeats), 1, SR_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (5)"},
	{0, OPTION_CHOICE, "pattern", AT(pattern), 0, 0, SR_PATTERNS, NULL, "who sends to whom (ring)"},
	{0, OPTION_INT, "ranks", AT(ranks), 1, SR_RANKS_MAX, NULL, "N", "ranks, forked here (2, or what mpirun, srun, torchrun say)"},
	{0, OPTION_FLAG, "threads", AT(threads), 0, 0, NULL, NULL, "ranks are threads of one process"},
	{0, OPTION_CHOICE, "device", AT(device), 0, 0, SR_DEVICES, NULL, "where the kernels run (host)"},
	{0, OPTION_TEXT, "gpus", AT(gpus_text), 0, 0, NULL, "LIST", "GPUs, taken in turn by the ranks (0)"},
	{0, OPTION_TEXT, "transport", AT(transport), 0, 0, NULL, "NAMES", "auto, net, shm, p2p, ... or a list of those allowed (auto)"},
	{0, OPTION_CHOICE, "mode", AT(mode), 0, 0, SR_MODES, NULL, "how steps are handed over (auto)"},
	{0, OPTION_CHOICE, "proto", AT(proto), 0, 0, SR_PROTOS, NULL, "protocol, as GANTRY_PROTO (auto)"},
	{0, OPTION_INT, "register", AT(reg), 0, 1, NULL, "0|1", "register the buffers (1; modes normal and offset: 0)"},
	{0, OPTION_CHOICE, "buffers", AT(buffers), 0, 0, SR_BUFFERS, NULL, "memory that other processes can map, or ordinary (shared)"},
	{0, OPTION_INT, "channels", AT(channels), 0, 32, NULL, "N", "as GANTRY_CHANNELS"},
	{0, OPTION_TEXT, "plugin", AT(plugin), 0, 0, NULL, "P", "net plugin, as GANTRY_NET_PLUGIN"},
	{0, OPTION_TEXT, "ifname", AT(ifname), 0, 0, NULL, "PATTERN", "interfaces, as in NCCL_SOCKET_IFNAME (lo for forked ranks)"},
	{0, OPTION_TEXT, "root", AT(root), 0, 0, NULL, "HOST[:PORT]", "rank 0's host, where ranks that a launcher started meet (from its environment)"},
	{0, OPTION_TEXT, "id-file", AT(id_file), 0, 0, NULL, "FILE", "or they meet by this file, which all of them see"},
	{0, OPTION_INT, "pin", AT(pin), 0, 1, NULL, "0|1", "forked ranks keep to their part of the CPUs (1)"},
	{0, OPTION_FLAG, "baseline", AT(baseline), 0, 0, NULL, NULL, "also memcpy and a bare flag, interleaved"},
	{0, OPTION_TIME, "timeout", AT(timeout_ns), 0, 0, NULL, "TIME", "without progress for so long it is a hang (60s, and 1s more for each rank above 64)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf sendrecv",
	.about = "Ranks of a communicator send to and receive from each other; every byte is checked.\n",
	.notes = "\nGB is 10^9 bytes. SIZE takes k, M and G. See gantry-perf(1).\n",
	OPTION_SPECS(specs),
};

static const struct {
	const char *name;
	size_t bytes;
} types[GANTRY_TYPE_COUNT] = {
#define TYPE_ROW(name, number, bytes, text) [number] = {text, bytes},
	GANTRY_TYPES(TYPE_ROW)
#undef TYPE_ROW
};

size_t sr_type_bytes(int type)
{
	return types[type].bytes;
}

static int find_type(struct sr_opts *o)
{
	char names[256] = "";

	o->type = o->odd ? GANTRY_TYPE_INT8 : GANTRY_TYPE_FLOAT32;
	if (!o->type_text)
		return 0;
	for (o->type = 0; o->type < GANTRY_TYPE_COUNT; o->type++)
		if (strcmp(types[o->type].name, o->type_text) == 0)
			return 0;
	for (size_t i = 0; i < GANTRY_TYPE_COUNT; i++)
		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? "|" : "", types[i].name);
	options_bad_choice(set.program, "-d", o->type_text, names);
	return 1 + 2;
}

static int find_gpus(struct sr_opts *o)
{
	const char *p = o->gpus_text ? o->gpus_text : "0";
	char *end;

	if (o->gpus_text && o->device != GANTRY_DEVICE_CUDA)
		return 1 + options_wrong(&set, "--gpus needs --device cuda");
	for (o->ngpus = 0;; p = end + 1) {
		long v = strtol(p, &end, 10);

		if (end == p || v < 0 || v > 1023 || (*end && *end != ','))
			return 1 + options_wrong(&set, "--gpus: not a list of numbers: %s", o->gpus_text);
		if (o->ngpus == SR_GPUS_MAX)
			return 1 + options_wrong(&set, "--gpus: too many of them");
		o->gpus[o->ngpus++] = (int)v;
		if (!*end)
			return 0;
	}
}

/* Sorted, and each of them once. */
static size_t add_size(uint64_t *sizes, size_t n, size_t max, uint64_t size)
{
	size_t at = n;

	while (at > 0 && sizes[at - 1] > size)
		at--;
	if ((at > 0 && sizes[at - 1] == size) || n == max)
		return n;
	memmove(&sizes[at + 1], &sizes[at], (n - at) * sizeof(*sizes));
	sizes[at] = size;
	return n + 1;
}

/* The sizes to measure, ascending, multiples of the type, none twice; at most max, and returns how many there are. */
static size_t make_sizes(const struct sr_opts *o, uint64_t *ret_sizes, size_t max)
{
	uint64_t unit = sr_type_bytes(o->type), size = o->begin, next;
	size_t n = 0;

	while (size <= o->end && n < max) {
		n = add_size(ret_sizes, n, max, size / unit * unit);
		if (o->odd && size)
			n = add_size(ret_sizes, n, max, (size - 1) / unit * unit);
		if (o->odd) {
			n = add_size(ret_sizes, n, max, (size + 1) / unit * unit);
			n = add_size(ret_sizes, n, max, (size + 3) / unit * unit);
		}
		if (o->step)
			next = size + o->step;
		else /* after nothing comes one element */
			next = size ? size * o->factor : unit;
		size = next;
	}
	return n;
}

static int check_all(struct sr_opts *o)
{
	int status = find_type(o);

	if (!status)
		status = find_gpus(o);
	if (status)
		return status;
	if (o->factor && o->step)
		return 1 + options_wrong(&set, "-f and -i exclude each other");
	if (!o->factor)
		o->factor = 4;
	if (o->begin > o->end)
		return 1 + options_wrong(&set, "-b is larger than -e");
	if (o->buffers == SR_PLAIN && o->device == GANTRY_DEVICE_CUDA)
		return 1 + options_wrong(&set, "--buffers plain is for --device host");
	if (o->mode == SR_MODE_PTR && o->reg == 0)
		return 1 + options_wrong(&set, "--mode ptr needs registered buffers");
	if (o->reg < 0)
		o->reg = o->mode == SR_MODE_AUTO || o->mode == SR_MODE_PTR;
	o->nsizes = make_sizes(o, o->sizes, SR_SIZES_MAX);
	if (o->nsizes == SR_SIZES_MAX)
		return 1 + options_wrong(&set, "-i: too many sizes");
	return 0;
}

int sr_parse(int argc, char **argv, struct sr_opts *o)
{
	int status;

	*o = (struct sr_opts){
		.begin = 8, .end = 32 << 20, .rank = -1, .reg = -1, .pin = 1, .check = 1, .inflight = 1, .repeats = 5};
	status = options_parse(&set, argc, argv, o);
	return status ? status : check_all(o);
}

/* A launcher started this process: whether the options go with that, and where the ranks meet. */
static void take_launched(struct sr_opts *o, char *why, size_t len)
{
	o->launcher = o->launched.name;
	o->rank = o->launched.rank;
	o->ranks = o->launched.size;
	if (o->ranks > SR_RANKS_MAX)
		snprintf(why, len, "%s started %d ranks, at most %d", o->launcher, o->ranks, SR_RANKS_MAX);
	else if (o->threads)
		snprintf(why, len, "%s started this as rank %d of %d: it cannot have --threads too", o->launcher,
			 o->rank, o->ranks);
	else if (o->root && o->id_file)
		snprintf(why, len, "--root and --id-file exclude each other");
	else if (!o->id_file)
		perf_launcher_root(&o->launched, o->root, &o->meet, why, len);
}

/* Who starts the ranks: --ranks does it here, whatever the environment says. */
static int find_ranks(struct sr_opts *o)
{
	const char *option = o->root ? "--root" : o->id_file ? "--id-file" : NULL;
	char why[512] = "";

	if (!o->ranks)
		perf_launcher_find(&o->launched, why, sizeof(why));
	if (!why[0] && o->launched.name)
		take_launched(o, why, sizeof(why));
	else if (!why[0] && option)
		snprintf(why, sizeof(why), "%s is for ranks that mpirun, srun or torchrun starts, and %s", option,
			 o->ranks ? "--ranks forks them here" : "none of them started this process");
	if (why[0])
		return -options_wrong(&set, "%s", why);
	o->ranks = o->ranks ? o->ranks : 2;
	return 0;
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

/* Rank and size, if a launcher started this process; the options' variables; parameters. -1: wrong, and said so. */
static int set_environment(struct sr_opts *o)
{
	const char *given = getenv("GANTRY_IFNAME") ? getenv("GANTRY_IFNAME") : getenv("NCCL_SOCKET_IFNAME");
	const char *ifname = o->ifname;

	if (find_ranks(o) < 0)
		return -1;
	/* Hundreds of ranks share a few CPUs while they connect, and nothing counts as progress meanwhile. */
	if (!o->timeout_ns)
		o->timeout_ns = TIMEOUT_NS + (o->ranks > 64 ? (uint64_t)(o->ranks - 64) * 1000000000 : 0);
	/* Forked ranks are on one host: loopback, unless the user has named an interface. */
	if (!ifname && o->rank < 0 && !(given && given[0]))
		ifname = "lo";
	if (ifname) {
		setenv("GANTRY_IFNAME", ifname, 1);
		setenv("NCCL_SOCKET_IFNAME", ifname, 1);
	}
	if (o->plugin)
		setenv("GANTRY_NET_PLUGIN", o->plugin, 1);
	set_mode(o);
	if (gantry_params_load(1) != GANTRY_OK)
		return -1;
	return perf_preflight(set.program, gantry_params()->net_plugin,
			      o->transport ? o->transport : gantry_params()->transport);
}

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

static void print_header(const struct sr_opts *o, const struct sr_shared *sh)
{
	char name[32];

	perf_table_begin(&table, options_command(), "sends and receives of a communicator");
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
			    .type = types[o->type].name,
			    .pattern = options_choice_name(SR_PATTERNS, o->pattern, pattern),
			    .device = options_choice_name(SR_DEVICES, o->device, device),
			    .ranks = (uint64_t)o->ranks};

	perf_table_row(&table, &line);
}

/* The header before anything is measured. */
static void print_new(void *shared, struct perf_ranks *p)
{
	const struct sr_shared *sh = shared;
	size_t n = load_acquire(&sh->nrows);
	int header = !table.open && load_acquire(&sh->info_ready);

	if (header || p->printed < n)
		perf_ranks_clear(p);
	if (header)
		print_header(sh->opts, sh);
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

/* ---- the parent ---- */

static uint64_t timeout_of(void *shared)
{
	return ((const struct sr_shared *)shared)->opts->timeout_ns;
}

/* A thread of each child answers with what its communicator knows. */
static void ask_ranks(void *shared)
{
	const struct timespec grace = {1, 0};

	store_release(&((struct sr_shared *)shared)->dump, 1);
	nanosleep(&grace, NULL);
}

/* A rank has sockets to every other, and threads of one child have their descriptors in common: as many as the system
 * allows. */
static void allow_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int run_all(const struct sr_opts *o)
{
	const int launched = o->rank >= 0;
	struct sr_shared *shared =
		perf_ranks_map(set.program, sizeof(*shared) + (size_t)o->ranks * sizeof(shared->rank[0]));
	struct perf_ranks ranks = {
		.program = set.program,
		.unit = "groups",
		.first = launched ? o->rank : 0,
		.count = launched ? 1 : o->ranks,
		.together = o->threads,
		.tidy = 1,		       /* leaks are looked for on the way */
		.signals = o->id_file != NULL, /* which is not to stay: launchers end their ranks by signals */
		/* Ranks that were started elsewhere may come late, and joining has a deadline of its own, which says
		 * more. */
		.more_ns = launched ? gantry_params()->connect_timeout : 0,
		.rows = o->nsizes,
		.stride = sizeof(struct sr_slot),
		.ctx = shared,
		.run = sr_ranks_run,
		.print = print_new,
		.timeout = timeout_of,
		.ask = ask_ranks,
	};
	int status;

	if (!shared)
		return 1;
	shared->opts = o;
	ranks.states = &shared->rank[0].state;
	allow_descriptors();
	status = perf_ranks_run(&ranks);
	if (o->id_file && load_acquire(&shared->id_ready))
		perf_id_remove(o->id_file, &shared->id);
	if (ranks.ended_by)
		raise(ranks.ended_by);
	table.ours = shared->others_cpu;
	return perf_table_end(&table, status, first_wrong(shared));
}

int cmd_perf_sendrecv(int argc, char **argv)
{
	static struct sr_opts o;
	int status = sr_parse(argc, argv, &o);

	if (status)
		return status - 1;
	if (set_environment(&o) < 0)
		return 2;
	table.out = stdout;
	table.json = o.json;
	table.unchecked = !o.check;
	/* Where a launcher starts ranks, how many of them are on this host is not known. */
	if (o.device == GANTRY_DEVICE_HOST &&
	    perf_memory_check("sendrecv", o.rank < 0 ? o.ranks : 1, sr_memory(&o)) < 0)
		return 1;
	return run_all(&o);
}
