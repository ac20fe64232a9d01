/*
 * `gantry perf rx`: the pipeline of gantry/rx.h between two processes of this host, beside plain TCP and, on a GPU,
 * beside the bus.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf_rx.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd.h"
#include "json.h"
#include "options.h"
#include "perf_util.h"

struct row {
	uint64_t bytes;
	double gbs, raw, pcie, ratio, piece_ratio; /* NAN: not measured */
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
	{0, OPTION_INT, "repeats", AT(repeats), 1, PRX_REPEATS_MAX, NULL, "R", "repeats; medians are reported (5)"},
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

static struct row row_of(const struct prx_opts *o, struct prx_shared *s)
{
	struct row r = {.bytes = o->pieces ? o->pieces * o->piece_bytes : o->end, .pcie = NAN, .piece_ratio = NAN};
	size_t n = (size_t)o->repeats;
	double limit, down, up;

	r.gbs = perf_median(s->gbs[PRX_RX], n);
	r.raw = perf_median(s->gbs[PRX_RAW], n);
	limit = r.raw;
	if (o->device == GANTRY_DEVICE_CUDA) {
		down = perf_median(s->pcie[0], n);
		up = perf_median(s->pcie[1], n);
		r.pcie = down < up ? down : up;
		limit = r.pcie < limit ? r.pcie : limit;
	}
	r.ratio = r.gbs / limit;
	if (o->pieces)
		r.piece_ratio = perf_median(s->gbs[PRX_PIECES], n) / r.gbs;
	return r;
}

static void print(const struct prx_opts *o, struct prx_shared *s, const char *command)
{
	struct row r = row_of(o, s);
	char machine[256];
	struct json_line j;

	perf_machine(machine, sizeof(machine));
	if (!o->json) {
		printf("# %s\n# machine: %s; commit %s\n# device: %s; %d raw streams; medians of %d repeats\n"
		       "# path: %s\n#\n",
		       command, machine, GANTRY_COMMIT, s->device, s->streams, o->repeats, s->path);
		printf("#%13s %8s %8s %9s %6s %6s %9s %12s\n", "bytes", "gbs", "raw_gbs", "pcie_gbs", "ratio", "wrong",
		       "pieces", "piece_ratio");
		printf(" %13llu %8.3f %8.3f", (unsigned long long)r.bytes, r.gbs, r.raw);
		if (isnan(r.pcie))
			printf(" %9s", "-");
		else
			printf(" %9.3f", r.pcie);
		printf(" %6.3f %6llu %9llu", r.ratio, (unsigned long long)s->wrong, (unsigned long long)o->pieces);
		if (isnan(r.piece_ratio))
			printf(" %12s\n", "-");
		else
			printf(" %12.3f\n", r.piece_ratio);
		return;
	}
	json_begin(&j, stdout);
	json_int(&j, "bytes", (int64_t)r.bytes);
	json_str(&j, "path", s->path);
	json_num(&j, "gbs", r.gbs);
	json_num(&j, "raw_gbs", r.raw);
	json_num(&j, "pcie_gbs", r.pcie);
	json_num(&j, "ratio", r.ratio);
	json_int(&j, "wrong", (int64_t)s->wrong);
	json_int(&j, "pieces", (int64_t)o->pieces);
	json_num(&j, "piece_ratio", r.piece_ratio);
	json_int(&j, "streams", s->streams);
	json_str(&j, "device", s->device);
	json_int(&j, "repeats", o->repeats);
	json_str(&j, "machine", machine);
	json_str(&j, "command", command);
	json_str(&j, "commit", GANTRY_COMMIT);
	json_end(&j);
}

/* Both ranks as processes of their own. 0: both ended well. */
static int run(const struct prx_opts *o, struct prx_shared *s)
{
	pid_t pids[2], parent = getpid();
	int bad = 0, status;

	for (int rank = 0; rank < 2; rank++) {
		pids[rank] = fork();
		if (pids[rank] == 0) {
			struct prx_rank rk = {.rank = rank, .opts = o, .shared = s};

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(1);
			_exit(prx_rank_run(&rk) != GANTRY_OK);
		}
	}
	for (int left = 2; left > 0; left--) {
		pid_t pid = pids[0] > 0 && pids[1] > 0 ? waitpid(-1, &status, 0) : -1;
		int rank = pid == pids[1];

		if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) {
			bad = 1;
			__atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
			if (pid > 0 && WIFSIGNALED(status))
				snprintf(s->error[rank], sizeof(s->error[rank]), "killed by signal %d",
					 WTERMSIG(status));
		}
	}
	for (int rank = 0; rank < 2; rank++)
		if (s->error[rank][0])
			fprintf(stderr, "gantry perf rx: rank %d: %s\n", rank, s->error[rank]);
	return bad;
}

int cmd_perf_rx(int argc, char **argv)
{
	struct prx_opts o = {
		.path = -1, .end = 256 << 20, .piece_bytes = 8192, .repeats = 5, .timeout_ns = 120000000000};
	struct prx_shared *s;
	char command[512];
	int status;

	options_join(set.program, argc, argv, command, sizeof(command));
	status = options_parse(&set, argc, argv, &o);
	if (status)
		return status - 1;
	if (!o.stride)
		o.stride = 2 * o.piece_bytes;
	if (o.stride < o.piece_bytes) {
		fprintf(stderr, "gantry perf rx: a stride of %llu bytes is less than a piece\n",
			(unsigned long long)o.stride);
		return 2;
	}
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED) {
		perror("gantry perf rx: mmap");
		return 1;
	}
	status = run(&o, s);
	if (!status)
		print(&o, s, command);
	if (s->wrong)
		fprintf(stderr, "gantry perf rx: %llu bytes were wrong\n", (unsigned long long)s->wrong);
	return status || s->wrong;
}
