/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry run`: a program that uses NCCL, on Gantry's libnccl.so.2. It sets what has to be set and becomes the program;
 * where ranks have to be started, or MPS has to be stopped at the end, it stays and passes signals on.
 */
#include "run/run.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/identity.h"
#include "base/param.h"
#include "base/text.h"
#include "common/cmd.h"
#include "common/options.h"

enum { MPS_AUTO, MPS_ON, MPS_OFF, RANKS_MAX = 4096 };

struct request {
	int ranks; /* 0: one process, which may be a launcher */
	int mps;
	const char *library;
	struct option_words words;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{'n', OPTION_INT, "ranks", AT(ranks), 1, RANKS_MAX, NULL, "RANKS", "start so many copies on this machine, with torchrun's and mpirun's variables"},
	{0, OPTION_CHOICE, "mps", AT(mps), 0, 0, "auto|on|off", NULL, "NVIDIA's MPS, without which ranks that share a GPU take turns; auto: if they do and it is not running"},
	{0, OPTION_TEXT, "library", AT(library), 0, 0, NULL, "PATH", "another libnccl.so.2"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry run",
	.usage = "[OPTION]... [--] PROGRAM [ARGUMENT]...",
	.about = "Runs a program that uses NCCL on Gantry's libnccl.so.2, which it preloads.\n",
	.notes = "\nWith -n each copy has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and "
		 "Open\n"
		 "MPI's OMPI_COMM_WORLD_*. Output is passed on as it is. When one fails the others are ended. Exit "
		 "status: that\n"
		 "of the program, of the first copy that failed (128 and the number of its signal); 2 on wrong usage, "
		 "126 and\n"
		 "127 if it cannot be started.\n",
	OPTION_SPECS(specs),
	.operand = "PROGRAM",
	.operand_at = AT(words),
	.many = 1,
	.keep_params = 1,
};

/* ---- the library ---- */

/* Beside the tool where it was built, and where it was installed. */
static const char *const places[] = {"lib/libnccl.so.2", "../" GANTRY_LIBDIR "/gantry-nccl/libnccl.so.2",
				     "../lib/gantry-nccl/libnccl.so.2"};

static int find_library(const char *wish, char found[PATH_MAX])
{
	char exe[PATH_MAX], path[2 * PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	if (wish)
		return realpath(wish, found) ? 0 : options_wrong(&set, "%s: %s", wish, strerror(errno));
	exe[n > 0 ? n : 0] = 0;
	slash = strrchr(exe, '/');
	if (slash)
		*slash = 0;
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		snprintf(path, sizeof(path), "%s/%s", exe, places[i]);
		if (realpath(path, found))
			return 0;
	}
	return options_wrong(&set,
			     "there is no libnccl.so.2 in %s/lib nor in %s/../" GANTRY_LIBDIR
			     "/gantry-nccl; --library names it",
			     exe, exe);
}

/* In front of what is preloaded already. Blanks and colons separate there, so a path must have none. */
static int preload(const char *library)
{
	const char *before = gantry_variable("LD_PRELOAD");
	char *all = NULL;
	int r = 0;

	if (strpbrk(library, " :"))
		return options_wrong(&set, "%s: a path with blanks or colons cannot be preloaded", library);
	if (asprintf(&all, "%s%s%s", library, before ? ":" : "", before ? before : "") < 0 ||
	    setenv("LD_PRELOAD", all, 1) < 0)
		r = options_wrong(&set, "LD_PRELOAD: %s", strerror(errno));
	free(all);
	return r;
}

/* ---- how many ranks there will be on this machine ---- */

/* "--nproc-per-node=4", "--nproc_per_node 4", "-n 4": the number after one of the names. 0: it is not there. */
static int number_of(char **argv, int argc, const char *const *names)
{
	int64_t n;

	for (int i = 1; i < argc; i++) {
		for (const char *const *name = names; *name; name++) {
			size_t len = strlen(*name);
			const char *text = NULL;

			if (strncmp(argv[i], *name, len))
				continue;
			if (argv[i][len] == '=')
				text = argv[i] + len + 1;
			else if (!argv[i][len] && i + 1 < argc)
				text = argv[i + 1];
			if (text && gantry_parse_int(text, &n) == GANTRY_OK && n > 0 && n <= RANKS_MAX)
				return (int)n;
		}
	}
	return 0;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* What a launcher says that started this process, or what the command line of a launcher says that it starts. */
static int count_ranks(const struct request *r)
{
	static const char *const torch[] = {"--nproc-per-node", "--nproc_per_node", NULL};
	static const char *const mpi[] = {"-n", "-np", "--np", NULL};
	const char *program = base_name(r->words.word[0]);
	int64_t n;

	if (r->ranks)
		return r->ranks;
	for (const struct gantry_launcher *l = gantry_launchers; l->name; l++)
		if (gantry_launcher_speaks(l) && gantry_variable(l->local_size) &&
		    gantry_parse_int(gantry_variable(l->local_size), &n) == GANTRY_OK && n > 0 && n <= RANKS_MAX)
			return (int)n;
	if (strncmp(program, "mpirun", 6) == 0 || strncmp(program, "mpiexec", 7) == 0)
		return number_of(r->words.word, r->words.n, mpi);
	return number_of(r->words.word, r->words.n, torch);
}

/* Ranks on one GPU run at the same time only under MPS. 1: started here. */
static int set_up_mps(const struct request *r)
{
	int ranks = count_ranks(r), gpus;

	if (r->mps == MPS_OFF || (r->mps == MPS_AUTO && ranks < 2))
		return 0;
	gpus = run_count_gpus();
	if (!gpus || (r->mps == MPS_AUTO && ranks <= gpus) || run_mps_runs())
		return 0;
	if (run_mps_start() < 0)
		return 0;
	if (ranks)
		fprintf(stderr, "gantry run: %s on %s: started MPS for this job, so that they run at the same time\n",
			COUNT_TEXT(ranks, "rank"), COUNT_TEXT(gpus, "GPU"));
	else
		fprintf(stderr, "gantry run: started MPS for this job\n");
	return 1;
}

int cmd_run(int argc, char **argv)
{
	struct request r = {.mps = MPS_AUTO};
	int posix = getenv("POSIXLY_CORRECT") != NULL, started, status;
	char library[PATH_MAX];

	/* Options behind the program are its own. */
	setenv("POSIXLY_CORRECT", "1", 0);
	status = options_parse(&set, argc, argv, &r);
	if (!posix)
		unsetenv("POSIXLY_CORRECT");
	if (status)
		return status - 1;
	if (!r.words.n)
		return options_wrong(&set, "no program given");
	if (find_library(r.library, library) || preload(library))
		return 2;
	started = set_up_mps(&r);
	if (r.ranks || started) {
		status = run_ranks(r.words.word, r.ranks ? r.ranks : 1, r.ranks > 0);
		run_mps_stop();
		return status;
	}
	execvp(r.words.word[0], r.words.word);
	fprintf(stderr, "gantry run: %s: %s\n", r.words.word[0], strerror(errno));
	return errno == ENOENT ? 127 : 126;
}
