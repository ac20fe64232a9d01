/* `gantry perf net`: options and output. The measuring is in perf_net_run.c. */
#include "perf_net.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/param.h"
#include "cmd.h"
#include "json.h"
#include "perf_table.h"
#include "perf_util.h"
#include "preflight.h"
#include "suggest.h"

#define SIZE_LIMIT ((uint64_t)1 << 40)
enum { LANES_MAX = 16, ITERS_MAX = 1 << 30 };

static char command[1024]; /* the command line, for the header */
static const struct perf_opts defaults = {
	.repeats = 5, .depth = 8, .check = 1, .pin = 1, .huge = 1, .lanes = -1, .timeout_ns = 60000000000};

static void usage(FILE *f)
{
	fprintf(f,
		"usage: gantry perf net [OPTION]... [HOST[:PORT] | --listen]\n"
		"Two processes of this machine, or two machines, exchange messages over a net plugin; every byte is\n"
		"checked. Between machines: --listen on one, its HOST on the other, whose options count.\n\n"
		"  --listen         wait for a client, measure with it, and end\n"
		"  --forever        with --listen: client after client, until it is ended\n"
		"  --port N         where to listen, or to look for the listener (18520)\n"
		"  -b SIZE          smallest message (64)\n"
		"  -e SIZE          largest message (64M)\n"
		"  -f FACTOR        from one size to the next (4)\n"
		"  -n ITERS         messages per repeat (as many as take about 0.2 s)\n"
		"  -w WARMUP        messages before the first repeat (until the rate is known)\n"
		"  -c 0|1           check the bytes (1)\n"
		"  --repeats R      repeats: min, median and max are shown (5)\n"
		"  --depth D        requests in flight (8)\n"
		"  --raw            also a plain TCP mover, interleaved, and the ratios to it\n"
		"  --raw-nodelay    the same, with TCP_NODELAY on its streams too\n"
		"  --pin 0|1        each rank's thread keeps to its half of the CPUs (1)\n"
		"  --huge 0|1       ask for buffers on huge pages, for all movers alike (1)\n"
		"  --plugin P       a plugin by NCCL's rules, name or path (Gantry's own TCP network)\n"
		"  --ifname PATTERN interfaces, as in NCCL_SOCKET_IFNAME (lo)\n"
		"  --lanes N        sockets per connection, as GANTRY_LANES\n"
		"  --calls          list the system calls of both ranks at the end\n"
		"  --timeout TIME   without progress for so long it is a hang (60s)\n"
		"  --json           one JSON object per line\n\n"
		"GB is 10^9 bytes, MiB is 2^20. SIZE takes k, M and G. See gantry-perf(1).\n");
}

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
	perf_fact_int(&table, "depth", o->depth);
	perf_fact_int(&table, "repeats", o->repeats);
	perf_table_note(&table, "latency: one way; cpu and all calls: both sides; tx, rx: calls that moved bytes");
	perf_table_columns(&table, columns, o->raw ? COLUMNS : COLUMNS - RAW_COLUMNS);
}

static void print_row(const struct perf_opts *o, const struct perf_row *row)
{
	(void)o;
	perf_table_row(&table, row);
}

static void print_calls(const struct perf_opts *o, const struct perf_shared *sh)
{
	for (int rank = 0; rank < 2; rank++) {
		const struct perf_slot *s = &sh->rank[rank];

		for (int k = 0; s->calls_counted && k < CALL_KIND_COUNT; k++) {
			struct json_line j;

			if (!s->calls.made[k])
				continue;
			if (!o->json) {
				printf("# rank %d: %llu %s\n", rank, (unsigned long long)s->calls.made[k],
				       count_calls_name((enum call_kind)k));
				continue;
			}
			json_begin(&j, stdout);
			json_int(&j, "rank", rank);
			json_str(&j, "call", count_calls_name((enum call_kind)k));
			json_int(&j, "count", (int64_t)s->calls.made[k]);
			json_end(&j);
		}
	}
}

/* A whole number between min and max. */
static int number(const char *option, const char *text, int64_t min, int64_t max, int64_t *ret)
{
	int64_t v;

	if (gantry_parse_int(text, &v) != GANTRY_OK || v < min || v > max) {
		fprintf(stderr, "gantry perf net: %s %s: not a number from %lld to %lld\n", option, text,
			(long long)min, (long long)max);
		return -1;
	}
	*ret = v;
	return 0;
}

static int size_option(const char *option, const char *text, uint64_t *ret)
{
	uint64_t v;

	if (gantry_parse_size(text, &v) != GANTRY_OK || v < 1 || v > SIZE_LIMIT) {
		fprintf(stderr, "gantry perf net: %s %s: not a size from 1 to 1024G\n", option, text);
		return -1;
	}
	*ret = v;
	return 0;
}

struct range {
	uint64_t begin, end;
	int64_t factor;
};

enum {
	OPT_REPEATS = 256,
	OPT_DEPTH,
	OPT_RAW,
	OPT_RAW_NODELAY,
	OPT_PIN,
	OPT_HUGE,
	OPT_PLUGIN,
	OPT_IFNAME,
	OPT_LANES,
	OPT_CALLS,
	OPT_TIMEOUT,
	OPT_JSON,
	OPT_LISTEN,
	OPT_FOREVER,
	OPT_PORT
};

/* -1: wrong usage, and said so. */
static int take_option(int c, const char *arg, struct perf_opts *o, struct range *range)
{
	int64_t v = 0;
	int bad = 0;

	switch (c) {
	case 'b':
		return size_option("-b", arg, &range->begin);
	case 'e':
		return size_option("-e", arg, &range->end);
	case 'f':
		return number("-f", arg, 2, 1 << 20, &range->factor);
	case 'n':
		bad = number("-n", arg, 1, ITERS_MAX, &v);
		o->iters = (uint64_t)v;
		return bad;
	case 'w':
		bad = number("-w", arg, 0, ITERS_MAX, &v);
		o->warmup = (uint64_t)v;
		return bad;
	case 'c':
		bad = number("-c", arg, 0, 1, &v);
		o->check = (int)v;
		return bad;
	case OPT_REPEATS:
		bad = number("--repeats", arg, 1, PERF_REPEATS_MAX, &v);
		o->repeats = (int)v;
		return bad;
	case OPT_DEPTH:
		bad = number("--depth", arg, 1, PERF_DEPTH_MAX, &v);
		o->depth = (int)v;
		return bad;
	case OPT_LANES:
		bad = number("--lanes", arg, 0, LANES_MAX, &v);
		o->lanes = (int)v;
		return bad;
	case OPT_LISTEN:
		o->remote.listen = 1;
		return 0;
	case OPT_FOREVER:
		o->remote.forever = 1;
		return 0;
	case OPT_PORT:
		bad = number("--port", arg, 1, 65535, &v);
		o->remote.port = (int)v;
		return bad;
	case OPT_RAW:
		o->raw = 1;
		return 0;
	case OPT_RAW_NODELAY:
		o->raw = o->raw_nodelay = 1;
		return 0;
	case OPT_PIN:
		bad = number("--pin", arg, 0, 1, &v);
		o->pin = (int)v;
		return bad;
	case OPT_HUGE:
		bad = number("--huge", arg, 0, 1, &v);
		o->huge = (int)v;
		return bad;
	case OPT_PLUGIN:
		o->plugin = arg;
		return 0;
	case OPT_IFNAME:
		o->ifname = arg;
		return 0;
	case OPT_CALLS:
		o->calls = 1;
		return 0;
	case OPT_JSON:
		o->json = 1;
		return 0;
	case OPT_TIMEOUT:
		if (gantry_parse_duration(arg, &o->timeout_ns) == GANTRY_OK && o->timeout_ns > 0)
			return 0;
		fprintf(stderr, "gantry perf net: --timeout %s: not a duration, such as 500ms, 30s or 1m\n", arg);
		return -1;
	default:
		return -1;
	}
}

/* 0: go on; otherwise the exit status plus 1. */
static int parse(int argc, char **argv, struct perf_opts *o)
{
	static const struct option longs[] = {
		{"repeats", required_argument, NULL, OPT_REPEATS},
		{"depth", required_argument, NULL, OPT_DEPTH},
		{"raw-nodelay", no_argument, NULL, OPT_RAW_NODELAY},
		{"pin", required_argument, NULL, OPT_PIN},
		{"huge", required_argument, NULL, OPT_HUGE},
		{"raw", no_argument, NULL, OPT_RAW},
		{"plugin", required_argument, NULL, OPT_PLUGIN},
		{"ifname", required_argument, NULL, OPT_IFNAME},
		{"lanes", required_argument, NULL, OPT_LANES},
		{"calls", no_argument, NULL, OPT_CALLS},
		{"timeout", required_argument, NULL, OPT_TIMEOUT},
		{"json", no_argument, NULL, OPT_JSON},
		{"listen", no_argument, NULL, OPT_LISTEN},
		{"forever", no_argument, NULL, OPT_FOREVER},
		{"port", required_argument, NULL, OPT_PORT},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct range range = {.begin = 64, .end = 64 << 20, .factor = 4};
	int c;

	optind = 0;
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":b:e:f:n:w:c:h", longs, NULL)) >= 0) {
		if (c == 'h') {
			usage(stdout);
			return 1 + 0;
		}
		if (c == '?' || c == ':')
			return 1 + suggest_usage("gantry perf net", longs, c, argv[optind - 1]);
		if (take_option(c, optarg, o, &range) < 0)
			return 1 + 2;
	}
	if (optind < argc)
		o->remote.host = argv[optind++];
	if (optind < argc)
		return 1 + suggest_usage("gantry perf net", longs, '?', argv[optind]);
	if (perf_remote_check("gantry perf net", &o->remote) < 0)
		return 1 + 2;
	if (range.begin > range.end) {
		fprintf(stderr, "gantry perf net: -b is larger than -e\n");
		return 1 + 2;
	}
	o->nsizes = perf_sizes(range.begin, range.end, (uint64_t)range.factor, o->sizes, PERF_SIZES_MAX);
	return 0;
}

double perf_net_bytes(const struct perf_opts *o)
{
	uint64_t largest = 0;

	for (size_t i = 0; i < o->nsizes; i++)
		largest = o->sizes[i] > largest ? o->sizes[i] : largest;
	return (double)largest * o->depth;
}

void perf_net_tell(const struct perf_opts *o, struct perf_net_told *ret_told)
{
	*ret_told = (struct perf_net_told){.nsizes = o->nsizes,
					   .iters = o->iters,
					   .warmup = o->warmup,
					   .timeout_ns = o->timeout_ns,
					   .repeats = o->repeats,
					   .depth = o->depth,
					   .raw = o->raw,
					   .raw_nodelay = o->raw_nodelay,
					   .huge = o->huge,
					   .check = o->check,
					   .lanes = o->lanes};
	memcpy(ret_told->sizes, o->sizes, o->nsizes * sizeof(o->sizes[0]));
}

int perf_net_take(const struct perf_net_told *t, struct perf_opts *o)
{
	if (t->nsizes < 1 || t->nsizes > PERF_SIZES_MAX || t->repeats < 1 || t->repeats > PERF_REPEATS_MAX ||
	    t->depth < 1 || t->depth > PERF_DEPTH_MAX || t->lanes < -1 || t->lanes > LANES_MAX ||
	    t->iters > ITERS_MAX || t->warmup > ITERS_MAX || !t->timeout_ns)
		return -1;
	for (uint64_t i = 0; i < t->nsizes; i++)
		if (t->sizes[i] < 1 || t->sizes[i] > SIZE_LIMIT)
			return -1;
	memcpy(o->sizes, t->sizes, sizeof(o->sizes));
	o->nsizes = t->nsizes;
	o->iters = t->iters;
	o->warmup = t->warmup;
	o->timeout_ns = t->timeout_ns;
	o->repeats = (int)t->repeats;
	o->depth = (int)t->depth;
	o->raw = t->raw != 0;
	o->raw_nodelay = t->raw_nodelay != 0;
	o->huge = t->huge != 0;
	o->check = t->check != 0;
	o->lanes = (int)t->lanes;
	return 0;
}

/* What is measured is the client's to say: an option that would have no effect is refused. */
static int check_listener(const struct perf_opts *o)
{
	static struct perf_opts none;
	struct perf_net_told mine, plain;
	char *argv[] = {(char *)"net", NULL};

	none = defaults;
	parse(1, argv, &none);
	perf_net_tell(o, &mine);
	perf_net_tell(&none, &plain);
	if (!memcmp(&mine, &plain, sizeof(mine)))
		return 0;
	fprintf(stderr,
		"gantry perf net: with --listen the client says what is measured: give sizes, counts and --lanes "
		"there; --port, --forever, --plugin, --ifname, --calls and --json go with --listen\n");
	return -1;
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
	return gantry_params_load(1) == GANTRY_OK ? preflight("gantry perf net", o->plugin, NULL) : -1;
}

/* NULL: nothing was wrong. */
static const char *first_wrong(const struct perf_shared *sh)
{
	for (int rank = 0; sh && rank < 2; rank++)
		if (sh->rank[rank].wrong)
			return sh->rank[rank].first_wrong;
	return NULL;
}

void perf_net_set_lanes(const struct perf_opts *o)
{
	char text[16];

	if (o->lanes < 0)
		return;
	snprintf(text, sizeof(text), "%d", o->lanes);
	setenv("GANTRY_LANES", text, 1);
}

static int run_once(void *arg)
{
	static const struct perf_printer print = {.header = print_header, .row = print_row};
	const struct perf_opts *o = arg;
	const struct perf_shared *shared = NULL;
	int status;

	table.out = stdout;
	table.json = o->json;
	status = perf_net_run(o, &print, &shared);
	if (o->remote.listen && shared && !shared->served)
		return PERF_REMOTE_CANNOT;
	table.unchecked = shared && !shared->opts.check;
	if (o->calls && shared)
		print_calls(o, shared);
	return perf_table_end(&table, status, first_wrong(shared));
}

int cmd_perf_net(int argc, char **argv)
{
	static struct perf_opts o;
	int status;

	o = defaults;
	snprintf(command, sizeof(command), "gantry perf");
	for (int i = 0; i < argc; i++)
		snprintf(command + strlen(command), sizeof(command) - strlen(command), " %s", argv[i]);
	status = parse(argc, argv, &o);
	if (status)
		return status - 1;
	if ((o.remote.listen && check_listener(&o) < 0) || set_environment(&o) < 0)
		return 2;
	if (!o.remote.listen && perf_memory_check("net", perf_remote_wanted(&o.remote) ? 1 : 2, perf_net_bytes(&o)) < 0)
		return 1;
	if (o.remote.forever)
		return perf_remote_forever(run_once, &o);
	status = run_once(&o);
	return status == PERF_REMOTE_CANNOT ? 1 : status;
}
