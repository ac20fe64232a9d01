/*
 * The processes of `gantry perf sendrecv`, and the parent that watches them.
 *
 * A rank that fails writes the reason into its slot; others may then fail too or wait for ever. The parent reports the
 * first reason and ends the rest. When nothing has moved for the timeout it asks the children where
 * they are (shared->dump): a thread of each answers with what its communicator knows, and the parent ends them.
 * Children die with the parent (PR_SET_PDEATHSIG), so that no way of ending the tool leaves a process behind.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "perf_sendrecv.h"

/* A child: one rank, or with --threads all of them. */
struct child {
	pid_t pid; /* 0 once it is reaped */
	int status;
	int first, n; /* its ranks */
};

struct run {
	const struct sr_opts *opts;
	const struct sr_printer *print;
	struct sr_shared *shared;
	struct child children[SR_RANKS_MAX];
	int nchildren;
	sigset_t signals, before;
	int ended_by; /* a signal from outside */
	int header;   /* it is printed */
	size_t printed;
	int shown; /* a line about progress stands on the terminal */
	uint64_t shown_ns;
};

/* What the threads of a child share. */
struct team {
	struct sr_rank *ranks;
	int n;
	uint32_t stop;
};

static void *run_rank(void *arg)
{
	return (void *)(uintptr_t)(sr_rank_run(arg) != GANTRY_OK);
}

/* Sleeps, but for the moment when the parent wants to know where the ranks hang. */
static void *answer(void *arg)
{
	const struct timespec nap = {0, 50000000};
	struct team *t = arg;

	while (!__atomic_load_n(&t->stop, __ATOMIC_ACQUIRE)) {
		if (__atomic_load_n(&t->ranks[0].shared->dump, __ATOMIC_ACQUIRE)) {
			for (int i = 0; i < t->n; i++)
				sr_rank_dump(&t->ranks[i]);
			return NULL;
		}
		nanosleep(&nap, NULL);
	}
	return NULL;
}

static _Noreturn void child_main(const struct run *run, const struct child *c)
{
	struct team t = {.ranks = calloc((size_t)c->n, sizeof(*t.ranks)), .n = c->n};
	pthread_t threads[SR_RANKS_MAX], helper;
	int started = 0, failed = 0;

	for (int i = 0; t.ranks && i < c->n; i++)
		t.ranks[i] = (struct sr_rank){.rank = c->first + i,
					      .nranks = run->opts->ranks,
					      .opts = run->opts,
					      .shared = run->shared,
					      .me = &run->shared->rank[c->first + i]};
	if (!t.ranks || pthread_create(&helper, NULL, answer, &t))
		_exit(1);
	/* The last rank on this thread: a process that is one rank has no thread too many. */
	for (; started < c->n - 1; started++)
		if (pthread_create(&threads[started], NULL, run_rank, &t.ranks[started]))
			_exit(1);
	failed = run_rank(&t.ranks[c->n - 1]) != NULL;
	for (int i = 0; i < started; i++) {
		void *one = NULL;

		pthread_join(threads[i], &one);
		failed |= one != NULL;
	}
	__atomic_store_n(&t.stop, 1, __ATOMIC_RELEASE);
	pthread_join(helper, NULL);
	free(t.ranks);
	fflush(NULL);
	exit(failed); /* not _exit: leaks are looked for on the way */
}

static int spawn(struct run *run, int first, int n)
{
	struct child *c = &run->children[run->nchildren];
	pid_t parent = getpid();

	*c = (struct child){.first = first, .n = n};
	c->pid = fork();
	if (c->pid < 0) {
		fprintf(stderr, "gantry perf sendrecv: fork: %s\n", strerror(errno));
		c->pid = 0;
		return -1;
	}
	if (c->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		sigprocmask(SIG_SETMASK, &run->before, NULL);
		child_main(run, c);
	}
	run->nchildren++;
	return 0;
}

static int spawn_all(struct run *run)
{
	const struct sr_opts *o = run->opts;

	if (o->rank >= 0)
		return spawn(run, o->rank, 1);
	if (o->threads)
		return spawn(run, 0, o->ranks);
	for (int i = 0; i < o->ranks; i++)
		if (spawn(run, i, 1) < 0)
			return -1;
	return 0;
}

/* Takes the ends of children that have ended; returns how many still run. */
static int reap(struct run *run)
{
	int left = 0;

	for (int i = 0; i < run->nchildren; i++) {
		struct child *c = &run->children[i];

		if (c->pid && waitpid(c->pid, &c->status, WNOHANG) == c->pid)
			c->pid = 0;
		left += c->pid != 0;
	}
	return left;
}

static void end_all(struct run *run)
{
	for (int i = 0; i < run->nchildren; i++) {
		struct child *c = &run->children[i];

		if (c->pid) {
			kill(c->pid, SIGKILL);
			waitpid(c->pid, &c->status, 0);
			c->pid = 0;
		}
	}
}

/* The i-th of the ranks that run here, or -1; those that a launcher started elsewhere are not ours. */
static int nth_rank(const struct run *run, int i, struct sr_slot **ret_slot, const struct child **ret_child)
{
	for (int k = 0; k < run->nchildren; k++) {
		const struct child *c = &run->children[k];

		if (i < c->n) {
			*ret_slot = &run->shared->rank[c->first + i];
			*ret_child = c;
			return c->first + i;
		}
		i -= c->n;
	}
	return -1;
}

static void where(const struct sr_slot *s, char *buf, size_t len)
{
	const char *phase = __atomic_load_n(&s->phase, __ATOMIC_RELAXED);
	uint64_t bytes = __atomic_load_n(&s->phase_bytes, __ATOMIC_RELAXED);
	char size[GANTRY_TEXT_MAX];

	if (bytes)
		snprintf(buf, len, "%s, %s", phase ? phase : "starting", gantry_size_text(bytes, size, sizeof(size)));
	else
		snprintf(buf, len, "%s", phase ? phase : "starting");
}

static void clear_line(struct run *run)
{
	if (run->shown)
		fprintf(stderr, "\r\033[K");
	run->shown = 0;
}

/* On a terminal, when a row takes long. */
static void show_progress(struct run *run)
{
	const struct sr_slot *s = &run->shared->rank[run->children[0].first];
	char at[128];

	if (!isatty(STDERR_FILENO) || gantry_now_ns() - run->shown_ns < 1000000000u)
		return;
	where(s, at, sizeof(at));
	fprintf(stderr, "\r\033[K# %s; %zu of %zu sizes", at, run->printed, run->opts->nsizes);
	run->shown = 1;
	run->shown_ns = gantry_now_ns();
}

static void print_new(struct run *run)
{
	size_t n = __atomic_load_n(&run->shared->nrows, __ATOMIC_ACQUIRE);

	/* Before anything is measured. */
	if (!run->header && __atomic_load_n(&run->shared->info_ready, __ATOMIC_ACQUIRE)) {
		clear_line(run);
		run->print->header(run->opts, run->shared);
		run->header = 1;
	}
	if (run->printed < n) {
		clear_line(run);
		run->shown_ns = gantry_now_ns();
	}
	for (; run->printed < n; run->printed++)
		run->print->row(run->opts, &run->shared->rows[run->printed]);
}

static int child_failed(const struct child *c)
{
	return !c->pid && c->status != 0;
}

/* Some rank has failed, or a child ended badly. */
static int anything_failed(const struct run *run)
{
	const struct child *c;
	struct sr_slot *s;

	for (int i = 0; nth_rank(run, i, &s, &c) >= 0; i++)
		if (child_failed(c) || __atomic_load_n(&s->error_ns, __ATOMIC_ACQUIRE))
			return 1;
	return 0;
}

static void report_one(const struct sr_slot *s, const struct child *c, int rank)
{
	char at[128];

	where(s, at, sizeof(at));
	if (s->error_ns)
		fprintf(stderr, "gantry perf sendrecv: rank %d failed (%s): %s\n", rank, at, s->error);
	else if (WIFSIGNALED(c->status))
		fprintf(stderr, "gantry perf sendrecv: rank %d was killed by signal %d, %s (%s)\n", rank,
			WTERMSIG(c->status), strsignal(WTERMSIG(c->status)), at);
	else
		fprintf(stderr, "gantry perf sendrecv: rank %d exited with status %d (%s)\n", rank,
			WEXITSTATUS(c->status), at);
}

/* The first failure: what other ranks say after it is its consequence. A child that was killed is a cause. */
static void report(const struct run *run)
{
	const struct child *c, *child = NULL;
	struct sr_slot *s, *slot = NULL;
	uint64_t first = UINT64_MAX;
	int who = -1;

	for (int i = 0, rank; (rank = nth_rank(run, i, &s, &c)) >= 0; i++) {
		/* Of threads only their child's end is known: those that wrote nothing did not fail, but if it was
		 * killed. */
		int silent = child_failed(c) && !s->error_ns && !(c->n > 1 && WIFEXITED(c->status));
		uint64_t when = silent || (child_failed(c) && WIFSIGNALED(c->status)) ? 0 : s->error_ns;

		if ((!silent && !s->error_ns) || when >= first)
			continue;
		first = when;
		slot = s;
		child = c;
		who = rank;
	}
	if (who >= 0)
		report_one(slot, child, who);
}

static void report_hang(struct run *run)
{
	const struct timespec grace = {1, 0};
	const struct child *c;
	struct sr_slot *s;

	__atomic_store_n(&run->shared->dump, 1, __ATOMIC_RELEASE);
	nanosleep(&grace, NULL);
	for (int i = 0, rank; (rank = nth_rank(run, i, &s, &c)) >= 0; i++) {
		char at[128];

		where(s, at, sizeof(at));
		/* A rank whose process stands still has not even a word for that. */
		fprintf(stderr, "gantry perf sendrecv: no progress for %.1f s: rank %d after %llu groups (%s): %s\n",
			(double)run->opts->timeout_ns / 1e9, rank,
			(unsigned long long)__atomic_load_n(&s->progress, __ATOMIC_RELAXED), at,
			__atomic_load_n(&s->error_ns, __ATOMIC_ACQUIRE) ? s->error : "its process does not answer");
	}
}

static uint64_t total_progress(const struct run *run)
{
	const struct child *c;
	struct sr_slot *s;
	uint64_t sum = 0;

	for (int i = 0; nth_rank(run, i, &s, &c) >= 0; i++)
		sum += __atomic_load_n(&s->progress, __ATOMIC_RELAXED) + __atomic_load_n(&s->arrived, __ATOMIC_RELAXED);
	return sum;
}

/* Sleeps between looks; SIGCHLD (blocked) ends a sleep early. Returns 0 when all ranks ended well. */
static int watch(struct run *run)
{
	const struct timespec look = {0, 100000000}, grace = {0, 500000000};
	uint64_t last = 0, moved_ns = gantry_now_ns(), patience = run->opts->timeout_ns;
	int got;

	/* Ranks that were started elsewhere may come late, and joining has a deadline of its own, which says more. */
	if (run->opts->rank >= 0)
		patience += gantry_params()->connect_timeout;
	run->shown_ns = moved_ns;
	for (;;) {
		int left = reap(run);

		print_new(run);
		if (anything_failed(run)) {
			clear_line(run);
			/* Others may be about to say why; their reason may even be the first. */
			for (int i = 0; left && i < 4; i++) {
				sigtimedwait(&run->signals, NULL, &grace);
				left = reap(run);
			}
			report(run);
			return 1;
		}
		if (!left)
			return 0;
		if (total_progress(run) != last) {
			last = total_progress(run);
			moved_ns = gantry_now_ns();
			patience = run->opts->timeout_ns;
		} else if (gantry_now_ns() - moved_ns > patience) {
			clear_line(run);
			report_hang(run);
			return 1;
		}
		show_progress(run);
		got = sigtimedwait(&run->signals, NULL, &look);
		if (got > 0 && got != SIGCHLD) {
			run->ended_by = got;
			return 1;
		}
	}
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

int sr_run(const struct sr_opts *opts, const struct sr_printer *print, const struct sr_shared **ret_shared)
{
	size_t size = sizeof(struct sr_shared) + (size_t)opts->ranks * sizeof(struct sr_slot);
	void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static struct run run;
	int status = 1;

	if (shared == MAP_FAILED) {
		fprintf(stderr, "gantry perf sendrecv: shared memory: %s\n", strerror(errno));
		return 1;
	}
	run = (struct run){.opts = opts, .print = print, .shared = shared};
	*ret_shared = shared;
	sigemptyset(&run.signals);
	sigaddset(&run.signals, SIGCHLD);
	if (opts->id_file) { /* which is not to stay: launchers end their ranks by signals */
		sigaddset(&run.signals, SIGINT);
		sigaddset(&run.signals, SIGTERM);
		sigaddset(&run.signals, SIGHUP);
	}
	sigprocmask(SIG_BLOCK, &run.signals, &run.before);
	fflush(NULL);
	allow_descriptors();
	if (spawn_all(&run) == 0)
		status = watch(&run);
	end_all(&run);
	if (opts->id_file && __atomic_load_n(&run.shared->id_ready, __ATOMIC_ACQUIRE))
		perf_id_remove(opts->id_file, &run.shared->id);
	if (run.ended_by)
		raise(run.ended_by);
	sigprocmask(SIG_SETMASK, &run.before, NULL);
	return status;
}
