/* `gantry perf net`: options and output. The measuring is in perf_net_run.c. */
#include "perf_net.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/param.h"
#include "cmd.h"
#include "json.h"
#include "perf_util.h"

static char command[1024]; /* the command line, for the header */

static void usage(FILE *f)
{
	fprintf(f, "usage: gantry perf net [OPTION]...\n"
		   "Two processes of this machine exchange messages over a net plugin; every byte is checked.\n\n"
		   "  -b SIZE          smallest message (64)\n"
		   "  -e SIZE          largest message (64M)\n"
		   "  -f FACTOR        from one size to the next (4)\n"
		   "  -n ITERS         messages per repeat (as many as take about 0.2 s)\n"
		   "  -w WARMUP        messages before the first repeat (until the rate is known)\n"
		   "  -c 0|1           check the bytes (1)\n"
		   "  --repeats R      repeats; medians are reported (5)\n"
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

static void print_header(const struct perf_opts *o, const struct perf_shared *sh)
{
	const char *ifname = getenv("GANTRY_IFNAME");
	char machine[256];
	struct json_line j;

	perf_machine(machine, sizeof(machine));
	if (o->json) {
		json_begin(&j, stdout);
		json_str(&j, "machine", machine);
		json_str(&j, "command", command);
		json_str(&j, "commit", GANTRY_COMMIT);
		json_str(&j, "network", sh->net_name);
		json_str(&j, "from", sh->net_from);
		json_int(&j, "version", sh->net_version);
		json_str(&j, "device", sh->dev_name);
		json_int(&j, "repeats", o->repeats);
		json_int(&j, "depth", o->depth);
		json_end(&j);
		return;
	}
	printf("# %s\n# machine: %s; commit %s\n", command, machine, GANTRY_COMMIT);
	printf("# network: %s (%s", sh->net_name, sh->net_from);
	if (sh->net_version)
		printf(", v%d", sh->net_version);
	printf("); device: %s, the first of %d; interfaces: %s\n", sh->dev_name, sh->ndevs, ifname ? ifname : "any");
	printf("# %d in flight, medians of %d repeats; cpu and all calls: both sides; tx, rx: calls that moved "
	       "bytes\n#\n",
	       o->depth, o->repeats);
	printf("#%11s %9s %10s %9s %9s %9s %9s %9s %7s", "size", "bw", "rate", "latency", "cpu", "tx", "rx", "all",
	       "wrong");
	if (o->raw)
		printf(" %9s %6s %9s %6s %9s %6s", "raw bw", "ratio", "raw lat", "ratio", "raw cpu", "ratio");
	printf("\n#%11s %9s %10s %9s %9s %9s %9s %9s %7s", "(B)", "(GB/s)", "(msg/s)", "(us)", "(s/GB)", "(/MiB)",
	       "(/MiB)", "(/MiB)", "(B)");
	if (o->raw)
		printf(" %9s %6s %9s %6s %9s %6s", "(GB/s)", "", "(us)", "", "(s/GB)", "");
	printf("\n");
	fflush(stdout);
}

/* Four significant digits in a fixed width, "-" for what was not measured. */
static void cell(int width, double v)
{
	int digits = v >= 1000 ? 0 : v >= 100 ? 1 : v >= 10 ? 2 : v >= 0.1 ? 3 : 5;

	if (isfinite(v))
		printf(" %*.*f", width, digits, v);
	else
		printf(" %*s", width, "-");
}

static void print_row_json(const struct perf_opts *o, const struct perf_row *row)
{
	struct json_line j;

	json_begin(&j, stdout);
	json_int(&j, "bytes", (int64_t)row->bytes);
	json_num(&j, "bw_gbs", row->bw);
	json_num(&j, "lat_us", row->lat);
	json_num(&j, "cpu_s_per_gb", row->cpu);
	json_num(&j, "syscalls_per_mib_tx", row->moved_tx);
	json_num(&j, "syscalls_per_mib_rx", row->moved_rx);
	json_num(&j, "calls_per_mib", row->all);
	json_int(&j, "wrong", (int64_t)row->wrong);
	json_num(&j, "msgs_per_s", row->rate);
	if (o->raw) {
		json_num(&j, "raw_bw_gbs", row->raw_bw);
		json_num(&j, "raw_lat_us", row->raw_lat);
		json_num(&j, "raw_cpu_s_per_gb", row->raw_cpu);
		json_num(&j, "bw_ratio", row->bw / row->raw_bw);
		json_num(&j, "lat_ratio", row->lat / row->raw_lat);
		json_num(&j, "cpu_ratio", row->cpu / row->raw_cpu);
	}
	json_end(&j);
}

static void print_row(const struct perf_opts *o, const struct perf_row *row)
{
	if (o->json) {
		print_row_json(o, row);
		return;
	}
	printf(" %11llu", (unsigned long long)row->bytes);
	cell(9, row->bw);
	printf(" %10.0f", row->rate);
	cell(9, row->lat);
	cell(9, row->cpu);
	cell(9, row->moved_tx);
	cell(9, row->moved_rx);
	cell(9, row->all);
	printf(" %7llu", (unsigned long long)row->wrong);
	if (o->raw) {
		cell(9, row->raw_bw);
		printf(" %6.2f", row->bw / row->raw_bw);
		cell(9, row->raw_lat);
		printf(" %6.2f", row->lat / row->raw_lat);
		cell(9, row->raw_cpu);
		printf(" %6.2f", row->cpu / row->raw_cpu);
	}
	printf("\n");
	fflush(stdout);
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

	if (gantry_parse_size(text, &v) != GANTRY_OK || v < 1 || v > (uint64_t)1 << 40) {
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
	OPT_JSON
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
		bad = number("-n", arg, 1, 1 << 30, &v);
		o->iters = (uint64_t)v;
		return bad;
	case 'w':
		bad = number("-w", arg, 0, 1 << 30, &v);
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
		o->lanes = arg;
		return number("--lanes", arg, 0, 16, &v);
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
		fprintf(stderr, "gantry perf net: --timeout %s: not a duration\n", arg);
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
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct range range = {.begin = 64, .end = 64 << 20, .factor = 4};
	int c;

	optind = 1;
	while ((c = getopt_long(argc, argv, "b:e:f:n:w:c:h", longs, NULL)) >= 0) {
		if (c == 'h') {
			usage(stdout);
			return 1 + 0;
		}
		if (take_option(c, optarg, o, &range) < 0)
			return 1 + 2;
	}
	if (optind < argc) {
		fprintf(stderr, "gantry perf net: '%s' is no option; gantry perf net --help lists them\n",
			argv[optind]);
		return 1 + 2;
	}
	if (range.begin > range.end) {
		fprintf(stderr, "gantry perf net: -b is larger than -e\n");
		return 1 + 2;
	}
	o->nsizes = perf_sizes(range.begin, range.end, (uint64_t)range.factor, o->sizes, PERF_SIZES_MAX);
	return 0;
}

/* Options become variables, because a foreign plugin reads nothing else. Both ranks are on one host: loopback, unless
 * the user has named an interface. */
static int set_environment(const struct perf_opts *o)
{
	const char *given = getenv("GANTRY_IFNAME") ? getenv("GANTRY_IFNAME") : getenv("NCCL_SOCKET_IFNAME");
	const char *ifname = o->ifname ? o->ifname : given && given[0] ? given : "lo";

	setenv("GANTRY_IFNAME", ifname, 1);
	setenv("NCCL_SOCKET_IFNAME", ifname, o->ifname != NULL);
	if (o->lanes)
		setenv("GANTRY_LANES", o->lanes, 1);
	return gantry_params_load(1) == GANTRY_OK ? 0 : -1;
}

int cmd_perf_net(int argc, char **argv)
{
	static const struct perf_printer print = {.header = print_header, .row = print_row};
	static struct perf_opts o = {
		.repeats = 5, .depth = 8, .check = 1, .pin = 1, .huge = 1, .timeout_ns = 60000000000};
	const struct perf_shared *shared = NULL;
	uint64_t wrong = 0;
	int status;

	snprintf(command, sizeof(command), "gantry perf");
	for (int i = 0; i < argc; i++)
		snprintf(command + strlen(command), sizeof(command) - strlen(command), " %s", argv[i]);
	status = parse(argc, argv, &o);
	if (status)
		return status - 1;
	if (set_environment(&o) < 0)
		return 2;
	status = perf_net_run(&o, &print, &shared);
	for (uint64_t i = 0; shared && i < shared->nrows; i++)
		wrong += shared->rows[i].wrong;
	if (o.calls && shared)
		print_calls(&o, shared);
	if (!o.json)
		printf("# wrong bytes: %llu%s; %s\n", (unsigned long long)wrong, o.check ? "" : " (not checked)",
		       status  ? "FAILED"
		       : wrong ? "DATA DAMAGED"
			       : "OK");
	else if (wrong)
		fprintf(stderr, "gantry perf: %llu wrong bytes\n", (unsigned long long)wrong);
	return status || wrong;
}
