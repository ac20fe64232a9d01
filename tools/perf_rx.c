/*
 * `gantry perf rx`: the pipeline of gantry/rx.h between two processes of this host, beside plain TCP and, on a GPU,
 * beside the bus.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf_rx.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/build.h"
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
	const char *path, *device, *machine, *command, *commit;
};

/* clang-format off */
#define AT(field) offsetof(struct prx_opts, field)
static const struct option_spec specs[] = {
	{0, OPTION_CHOICE, "device", AT(device), 0, 0, "host|cuda", NULL, "whose memory (host)"},
	{0, OPTION_INT, "gpu", AT(gpu), 0, 1023, NULL, "N", "which GPU (0)"},
	{0, OPTION_CHOICE, "path", AT(path), 0, 0, PRX_PATHS, NULL, "how bytes come to device memory (GANTRY_RX_PATH)"},
	{0, OPTION_CHOICE, "memory", AT(memory), 0, 0, PRX_MEMORY, NULL, "auto: host memory on the host's own path, else the device's"},
	{'e', OPTION_SIZE, "end", AT(end), 1, 1ull << 36, NULL, "SIZE", "bytes of a transfer (256M); with --pieces their sum counts"},
	{0, OPTION_COUNT, "pieces", AT(pieces), 1, 1 << 26, NULL, "N", "also as so many pieces"},
	{0, OPTION_SIZE, "piece-bytes", AT(piece_bytes), 1, 1 << 30, NULL, "SIZE", "bytes of a piece (8k)"},
	{0, OPTION_SIZE, "stride", AT(stride), 1, 1ull << 32, NULL, "SIZE", "from piece to piece (twice their size)"},
	{0, OPTION_INT, "repeats", AT(repeats), 1, PRX_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (5)"},
	{0, OPTION_TIME, "timeout", AT(timeout_ns), 0, 0, NULL, "TIME", "the longest that a repeat may take (120s)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "a JSON object"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf rx",
	.about = "The pipeline of gantry/rx.h between two processes; every byte is checked.\n",
	.notes = "\nSee gantry-perf(1) and gantry-rx(3).\n",
	.specs = specs,
	.nspecs = sizeof(specs) / sizeof(specs[0]),
};

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
	{NULL, "", "machine", PERF_NAME, 0, FIELD(machine)},
	{NULL, "", "command", PERF_NAME, 0, FIELD(command)},
	{NULL, "", "commit", PERF_NAME, 0, FIELD(commit)},
};
/* clang-format on */

static struct row row_of(const struct prx_opts *o, struct prx_shared *s)
{
	struct row r = {.bytes = o->pieces ? o->pieces * o->piece_bytes : o->end,
			.wrong = s->wrong,
			.pieces = o->pieces,
			.streams = (uint64_t)s->streams,
			.repeats = (uint64_t)o->repeats,
			.pcie = NAN,
			.piece_ratio = NAN,
			.path = s->path,
			.device = s->device,
			.commit = gantry_commit};
	size_t n = (size_t)o->repeats;
	double limit, down, up;

	r.gbs = perf_spread_of(s->gbs[PRX_RX], n);
	r.raw = perf_median(s->gbs[PRX_RAW], n);
	limit = r.raw;
	if (o->device == GANTRY_DEVICE_CUDA) {
		down = perf_median(s->pcie[0], n);
		up = perf_median(s->pcie[1], n);
		r.pcie = down < up ? down : up;
		limit = r.pcie < limit ? r.pcie : limit;
	}
	r.ratio = r.gbs.median / limit;
	if (o->pieces)
		r.piece_ratio = perf_median(s->gbs[PRX_PIECES], n) / r.gbs.median;
	return r;
}

static void print_header(const struct prx_opts *o, const struct prx_shared *s, const char *command,
			 struct perf_table *t)
{
	perf_table_begin(t, command, "the pipeline of gantry/rx.h between two processes, beside plain TCP and the bus");
	perf_fact_text(t, "device", s->device);
	perf_fact_text(t, "path", s->path);
	perf_fact_int(t, "streams", s->streams);
	perf_fact_int(t, "repeats", o->repeats);
	perf_table_note(t, "raw: plain TCP; ratio: bandwidth by the smaller of raw and bus, pieces by contiguous");
	perf_table_columns(t, columns, sizeof(columns) / sizeof(columns[0]));
}

static void print_row(const struct prx_opts *o, struct prx_shared *s, const char *command, struct perf_table *t)
{
	struct row row = row_of(o, s);
	char machine[256];

	perf_machine(machine, sizeof(machine));
	row.machine = machine;
	row.command = command;
	perf_table_row(t, &row);
}

static pid_t spawn(int rank, const struct prx_opts *o, struct prx_shared *s)
{
	pid_t parent = getpid(), pid = fork();
	struct prx_rank rk = {.rank = rank, .opts = o, .shared = s};

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	_exit(prx_rank_run(&rk) != GANTRY_OK);
}

/* Takes note of how a rank has ended; 1: well. */
static int ended_well(struct prx_shared *s, int rank, int status)
{
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return 1;
	__atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
	if (WIFSIGNALED(status)) {
		snprintf(s->error[rank], sizeof(s->error[rank]), "killed by signal %d, %s", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
		s->error_ns[rank] = 1; /* before whatever the other says about it */
	}
	return 0;
}

/* The first error is the cause; what the other rank says then is its consequence. */
static void report(const struct prx_shared *s)
{
	int rank = !s->error_ns[0] || (s->error_ns[1] && s->error_ns[1] < s->error_ns[0]);

	fprintf(stderr, "gantry perf rx: rank %d: %s\n", rank,
		s->error[rank][0] ? s->error[rank] : "ended without a word");
}

/* Both ranks as processes of their own, the header as soon as they know what it says. 0: both ended well. */
static int run(const struct prx_opts *o, struct prx_shared *s, const char *command, struct perf_table *t)
{
	const struct timespec nap = {0, 10000000};
	pid_t pids[2] = {0, 0};
	int bad = 0, left = 0, status;

	fflush(NULL);
	for (int rank = 0; rank < 2 && !bad; rank++) {
		pids[rank] = spawn(rank, o, s);
		bad = pids[rank] < 0;
		left += !bad;
	}
	if (bad) {
		fprintf(stderr, "gantry perf rx: fork: %s\n", strerror(errno));
		if (left)
			kill(pids[0], SIGKILL);
		return 1;
	}
	while (left) {
		for (int rank = 0; rank < 2; rank++) {
			if (!pids[rank] || waitpid(pids[rank], &status, WNOHANG) != pids[rank])
				continue;
			pids[rank] = 0;
			left--;
			bad |= !ended_well(s, rank, status);
		}
		if (!t->open && __atomic_load_n(&s->info_ready, __ATOMIC_ACQUIRE))
			print_header(o, s, command, t);
		if (left)
			nanosleep(&nap, NULL);
	}
	if (bad)
		report(s);
	return bad;
}

/* Of the buffers of a rank: contiguous and, with --pieces, with gaps. */
static double bytes_of(const struct prx_opts *o)
{
	if (!o->pieces)
		return (double)o->end;
	return (double)o->pieces * ((double)o->piece_bytes + (double)o->stride);
}

int cmd_perf_rx(int argc, char **argv)
{
	struct prx_opts o = {
		.path = -1, .end = 256 << 20, .piece_bytes = 8192, .repeats = 5, .timeout_ns = 120000000000};
	struct perf_table t = {.op = "rx", .out = stdout};
	char command[512], stride[GANTRY_TEXT_MAX], piece[GANTRY_TEXT_MAX];
	struct prx_shared *s;
	int status;

	options_join(set.program, argc, argv, command, sizeof(command));
	status = options_parse(&set, argc, argv, &o);
	if (status)
		return status - 1;
	if (!o.stride)
		o.stride = 2 * o.piece_bytes;
	if (o.stride < o.piece_bytes) {
		fprintf(stderr, "gantry perf rx: --stride %s is less than --piece-bytes %s\n",
			gantry_size_text(o.stride, stride, sizeof(stride)),
			gantry_size_text(o.piece_bytes, piece, sizeof(piece)));
		return 2;
	}
	if (preflight(set.program, NULL, NULL) < 0)
		return 2;
	/* Each rank has an image of what it moves, to fill it and to check it. */
	if (o.device == GANTRY_DEVICE_HOST && perf_memory_check("rx", 2, 2 * bytes_of(&o)) < 0)
		return 1;
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED) {
		perror("gantry perf rx: mmap");
		return 1;
	}
	t.json = o.json;
	status = run(&o, s, command, &t);
	if (!status)
		print_row(&o, s, command, &t);
	return perf_table_end(&t, status, s->wrong ? s->first_wrong : NULL);
}
