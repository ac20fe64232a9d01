/*
 * The two processes of `gantry perf net`, and the parent that watches them.
 *
 * A rank that fails writes the reason into its slot and exits with 1; the other
 * may then fail too or wait at a barrier for ever. The parent reports the first
 * reason, ends the other one, and calls it a hang when nothing has moved for the
 * timeout. Ranks die with the parent (PR_SET_PDEATHSIG), so that no
 * way of ending the tool leaves a process behind.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "inet/settings.h"
#include "perf_net.h"

static const char MEETING[] = "meeting"; /* a phase: the other machine is not there yet */

static void wait_for(const struct perf_rank *rk, uint64_t count, int spin)
{
	const struct timespec nap = {0, 50000};

	for (unsigned n = 0; __atomic_load_n(&rk->other->arrived, __ATOMIC_ACQUIRE) < count; n++) {
		if (n < (unsigned)spin)
			gantry_cpu_pause();
		else
			nanosleep(&nap, NULL);
	}
}

/* What of a slot the other host sees. */
struct far_slot {
	struct perf_sample sample;
	uint64_t wrong;
	char first_wrong[256];
	char handle[GANTRY_NET_HANDLE_SIZE];
	uint64_t raw_port;
};

static gantry_result sync_far(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct far_slot mine = {.sample = rk->me->sample, .wrong = rk->me->wrong, .raw_port = rk->me->raw_port}, other;

	memcpy(mine.first_wrong, rk->me->first_wrong, sizeof(mine.first_wrong));
	memcpy(mine.handle, rk->me->handle, sizeof(mine.handle));
	TRY(perf_remote_swap(rk->remote, &mine, &other, sizeof(mine), NULL, NULL));
	rk->other->sample = other.sample;
	rk->other->wrong = other.wrong;
	rk->other->raw_port = (uint16_t)other.raw_port;
	perf_remote_words(rk->other->first_wrong, other.first_wrong, sizeof(other.first_wrong));
	memcpy(rk->other->handle, other.handle, sizeof(other.handle));
	__atomic_store_n(&rk->me->arrived, rk->me->arrived + 1, __ATOMIC_RELEASE);
out:
	return r;
}

/* First without burning a CPU that the other rank may need, then once more closely: both leave within a microsecond,
 * so that short measurements start together. */
gantry_result perf_sync(struct perf_rank *rk)
{
	if (rk->remote)
		return sync_far(rk);
	for (int close = 0; close < 2; close++) {
		uint64_t count = rk->me->arrived + 1;

		__atomic_store_n(&rk->me->arrived, count, __ATOMIC_RELEASE);
		wait_for(rk, count, close ? 100000 : 100);
	}
	return GANTRY_OK;
}

static gantry_result make_buffers(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	size_t page = (size_t)sysconf(_SC_PAGESIZE), largest = 0;
	char size[GANTRY_TEXT_MAX];

	for (size_t i = 0; i < rk->opts->work.nsizes; i++)
		largest = rk->opts->work.sizes[i] > largest ? rk->opts->work.sizes[i] : largest;
	rk->nbufs = rk->opts->work.depth < 2 ? 2 : rk->opts->work.depth;
	rk->stride = (largest + PERF_BUF_PAD + page - 1) / page * page;
	rk->memory_size = rk->stride * (size_t)rk->nbufs;
	if (largest > SIZE_MAX / 2 / (size_t)rk->nbufs)
		FAIL(GANTRY_ERR_NOMEM, "%d buffers of %s do not fit", rk->nbufs,
		     gantry_size_text(largest, size, sizeof(size)));
	rk->memory = mmap(NULL, rk->memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (rk->memory == MAP_FAILED) {
		rk->memory = NULL;
		FAIL(GANTRY_ERR_NOMEM, "%d buffers of %s: %s; choose a smaller -e", rk->nbufs,
		     gantry_size_text(largest, size, sizeof(size)), strerror(errno));
	}
	/* As pinned buffers mostly are: contiguous. The movers of --raw use the same memory. */
	if (rk->opts->work.huge && madvise(rk->memory, rk->memory_size, MADV_HUGEPAGE))
		LOG_DEBUG(TOOL, "no huge pages: %s", strerror(errno));
	/* Page faults are not what is measured. */
	for (size_t at = 0; at < rk->memory_size; at += page)
		rk->memory[at] = 1;
out:
	return r;
}

/*
 * Each rank's own thread keeps to its half of the CPUs. Otherwise the blocking
 * mover's wake-ups leave both ranks on one CPU, and whatever is measured next
 * begins there, in turns of several milliseconds. Done after the network was
 * opened, so that it and its threads see and may use all CPUs.
 */
static void keep_to_half(int rank)
{
	cpu_set_t all, half;
	int n, seen = 0;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return;
	n = CPU_COUNT(&all);
	CPU_ZERO(&half);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && (seen++ >= n / 2) == rank)
			CPU_SET(cpu, &half);
	if (n >= 2)
		sched_setaffinity(0, sizeof(half), &half);
}

/* The other machine, and what its user or this one wants to have measured. */
static gantry_result meet(struct perf_rank *rk, struct perf_remote *rm)
{
	gantry_result r = GANTRY_OK;
	const struct perf_opts *own = rk->opts;
	struct perf_shared *sh = rk->shared;
	struct perf_net_work other;
	char why[256];

	__atomic_store_n(&rk->me->phase, MEETING, __ATOMIC_RELAXED);
	r = perf_remote_open(rm, "gantry perf net", &own->remote);
	sh->served = rm->served;
	TRY(r);
	rk->remote = rm;
	memcpy(sh->peer, rm->peer, sizeof(sh->peer));
	snprintf(sh->ifname, sizeof(sh->ifname), "%s", inet_wanted_interfaces());
	TRY(perf_remote_swap(rm, &own->work, &other, sizeof(other), NULL, NULL));
	if (own->remote.listen && perf_net_take(&other, &sh->opts) < 0)
		FAIL(GANTRY_ERR_PROTOCOL, "the client's options make no sense here");
	if (own->remote.listen && !perf_memory_fits(1, perf_net_bytes(&sh->opts), why, sizeof(why)))
		FAIL(GANTRY_ERR_NOMEM, "%s", why);
	rk->opts = &sh->opts;
	perf_net_set_lanes(rk->opts);
	TRY(gantry_params_load(1));
	__atomic_store_n(&sh->met, 1, __ATOMIC_RELEASE);
	perf_progress(rk);
out:
	return r;
}

/* Rank 0's row, for both to print. */
static gantry_result keep_row(struct perf_rank *rk, size_t i, const struct perf_row *row)
{
	gantry_result r = GANTRY_OK;
	struct perf_row *rows = rk->shared->rows;

	if (!rk->remote && rk->rank == 1)
		return GANTRY_OK;
	if (rk->remote)
		TRY(perf_remote_swap(rk->remote, row, &rows[i], sizeof(*row), NULL, NULL));
	if (rk->rank == 0)
		rows[i] = *row;
	__atomic_store_n(&rk->shared->nrows, i + 1, __ATOMIC_RELEASE);
out:
	return r;
}

static gantry_result rank_work(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct perf_row row;

	TRY(make_buffers(rk));
	__atomic_store_n(&rk->me->phase, "connecting", __ATOMIC_RELAXED);
	TRY(perf_peer_open(rk));
	if (rk->opts->work.raw)
		TRY(perf_raw_open(rk));
	if (rk->opts->pin && !rk->remote)
		keep_to_half(rk->rank);
	for (size_t i = 0; i < rk->opts->work.nsizes; i++) {
		TRY(perf_net_measure(rk, rk->opts->work.sizes[i], &row));
		TRY(keep_row(rk, i, &row));
	}
	__atomic_store_n(&rk->me->phase, "closing", __ATOMIC_RELAXED);
	TRY(perf_sync(rk));
out:
	return r;
}

static void keep_calls(struct perf_slot *slot, const struct call_counts *before)
{
	if (!slot->calls_counted || !count_calls_now || !count_calls_now(&slot->calls))
		return;
	for (int k = 0; k < CALL_KIND_COUNT; k++)
		slot->calls.made[k] -= before->made[k];
	slot->calls.all -= before->all;
	slot->calls.moved -= before->moved;
}

static _Noreturn void rank_main(int rank, const struct perf_opts *opts, struct perf_shared *shared)
{
	struct perf_rank rk = {.rank = rank, .opts = opts, .shared = shared};
	struct perf_remote remote = {.ctl = NULL};
	struct call_counts before;
	gantry_result r = GANTRY_OK;

	rk.me = &shared->rank[rank];
	rk.other = &shared->rank[!rank];
	rk.me->calls_counted = count_calls_now && count_calls_now(&before);
	gantry_set_last_error("");
	if (perf_remote_wanted(&opts->remote))
		r = meet(&rk, &remote);
	if (r == GANTRY_OK)
		r = rank_work(&rk);
	if (r != GANTRY_OK) {
		const char *text = gantry_last_error();

		if (perf_remote_wanted(&opts->remote) && !shared->met)
			snprintf(rk.me->error, sizeof(rk.me->error), "%s", text[0] ? text : gantry_result_text(r));
		else
			snprintf(rk.me->error, sizeof(rk.me->error), "%s: %s", gantry_result_name(r),
				 text[0] ? text : gantry_result_text(r));
		perf_remote_failed(&remote, rk.me->error, sizeof(rk.me->error));
		__atomic_store_n(&rk.me->error_ns, gantry_now_ns(), __ATOMIC_RELEASE);
	}
	perf_raw_close(&rk);
	perf_peer_close(&rk);
	if (rk.memory)
		munmap(rk.memory, rk.memory_size);
	keep_calls(rk.me, &before);
	perf_remote_close(&remote);
	if (remote.opts) /* its last words are on their way until then */
		exit(r == GANTRY_OK ? 0 : 1);
	_exit(r == GANTRY_OK ? 0 : 1);
}

/* What the parent has printed. */
struct progress {
	int header;
	size_t rows;
};

/* The parent's view of a rank. */
struct child {
	pid_t pid; /* 0 once it is reaped */
	int status;
};

static int spawn(int rank, const struct perf_opts *opts, struct perf_shared *shared, const sigset_t *mask,
		 struct child *ret_child)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0) {
		fprintf(stderr, "gantry perf net: fork: %s\n", strerror(errno));
		return -1;
	}
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		sigprocmask(SIG_SETMASK, mask, NULL);
		rank_main(rank, opts, shared);
	}
	*ret_child = (struct child){.pid = pid};
	return 0;
}

/* Takes the ends of ranks that have ended; returns how many still run. */
static int reap(struct child c[2])
{
	int left = 0;

	for (int i = 0; i < 2; i++) {
		if (c[i].pid && waitpid(c[i].pid, &c[i].status, WNOHANG) == c[i].pid)
			c[i].pid = 0;
		left += c[i].pid != 0;
	}
	return left;
}

static void end_all(struct child c[2])
{
	for (int i = 0; i < 2; i++)
		if (c[i].pid) {
			kill(c[i].pid, SIGKILL);
			waitpid(c[i].pid, &c[i].status, 0);
			c[i].pid = 0;
		}
}

/* What there is to print by now: the header as soon as the network is known, before anything is measured. */
static void print_new(const struct perf_printer *print, const struct perf_shared *shared, struct progress *p)
{
	size_t n = __atomic_load_n(&shared->nrows, __ATOMIC_ACQUIRE);
	const struct perf_opts *o = &shared->opts;

	if (!p->header && __atomic_load_n(&shared->info_ready, __ATOMIC_ACQUIRE)) {
		print->header(o, shared);
		p->header = 1;
	}
	for (; p->rows < n; p->rows++)
		print->row(o, &shared->rows[p->rows]);
}

static void where(const struct perf_slot *s, char *buf, size_t len)
{
	const char *phase = __atomic_load_n(&s->phase, __ATOMIC_RELAXED);
	uint64_t bytes = __atomic_load_n(&s->phase_bytes, __ATOMIC_RELAXED);
	char size[GANTRY_TEXT_MAX];

	if (bytes)
		snprintf(buf, len, "%s, %s", phase ? phase : "starting", gantry_size_text(bytes, size, sizeof(size)));
	else
		snprintf(buf, len, "%s", phase ? phase : "starting");
}

static int failed(const struct child *c)
{
	return !c->pid && c->status != 0;
}

/* The first failure: what the other rank says after it is its consequence. */
static void report(const struct perf_shared *shared, const struct child c[2])
{
	const struct perf_slot *s;
	uint64_t when[2];
	char at[128];
	int i;

	/* A rank that was killed is a cause, even if the other one wrote its complaint before its end was seen. */
	for (i = 0; i < 2; i++)
		when[i] = WIFSIGNALED(c[i].status) ? 0 : shared->rank[i].error_ns;
	i = failed(&c[1]) && (!failed(&c[0]) || when[1] < when[0]);
	s = &shared->rank[i];
	where(s, at, sizeof(at));
	if (s->error_ns && s->phase == MEETING)
		fprintf(stderr, "gantry perf net: %s\n", s->error);
	else if (s->error_ns)
		fprintf(stderr, "gantry perf net: rank %d failed (%s): %s\n", i, at, s->error);
	else if (WIFSIGNALED(c[i].status))
		fprintf(stderr, "gantry perf net: rank %d was killed by signal %d, %s (%s)\n", i, WTERMSIG(c[i].status),
			strsignal(WTERMSIG(c[i].status)), at);
	else
		fprintf(stderr, "gantry perf net: rank %d exited with status %d (%s)\n", i, WEXITSTATUS(c[i].status),
			at);
}

static void report_hang(const struct perf_shared *shared)
{
	const struct perf_opts *opts = &shared->opts;

	for (int i = 0; i < 2; i++) {
		const struct perf_slot *s = &shared->rank[i];
		char at[128];

		if (perf_remote_wanted(&opts->remote) && i != perf_remote_rank(&opts->remote))
			continue;
		where(s, at, sizeof(at));
		fprintf(stderr, "gantry perf net: no progress for %.1f s: rank %d after %llu messages (%s)\n",
			(double)opts->work.timeout_ns / 1e9, i,
			(unsigned long long)__atomic_load_n(&s->progress, __ATOMIC_RELAXED), at);
		if (__atomic_load_n(&s->error_ns, __ATOMIC_ACQUIRE))
			fprintf(stderr, "gantry perf net: rank %d had failed and hung while closing: %s\n", i,
				s->error);
	}
}

static uint64_t total_progress(const struct perf_shared *shared)
{
	uint64_t sum = 0;

	for (int i = 0; i < 2; i++)
		sum += __atomic_load_n(&shared->rank[i].progress, __ATOMIC_RELAXED) +
		       __atomic_load_n(&shared->rank[i].arrived, __ATOMIC_RELAXED);
	return sum;
}

/* Sleeps between looks; SIGCHLD (blocked) ends a sleep early. Returns 0 when both ranks ended well. */
static int watch(const struct perf_opts *opts, const struct perf_printer *print, struct perf_shared *shared,
		 const sigset_t *chld, struct child c[2])
{
	const struct timespec look = {0, 100000000}, grace = {1, 0};
	uint64_t last = 0, moved_ns = gantry_now_ns(), patience = opts->work.timeout_ns;
	struct progress printed = {0};

	if (perf_remote_wanted(&opts->remote))
		patience += perf_remote_patience(&opts->remote);
	for (;;) {
		int left = reap(c);

		print_new(print, shared, &printed);
		if (failed(&c[0]) || failed(&c[1])) {
			/* The other one may be about to say why; its reason may even be the first. */
			if (left && sigtimedwait(chld, NULL, &grace) >= 0)
				reap(c);
			report(shared, c);
			return 1;
		}
		if (!left)
			return 0;
		if (total_progress(shared) != last) {
			last = total_progress(shared);
			moved_ns = gantry_now_ns();
			patience = shared->opts.work.timeout_ns;
		} else if (gantry_now_ns() - moved_ns > patience + 1000000000u) {
			/* One second more than the ranks' own deadlines, whose messages say more. */
			report_hang(shared);
			return 1;
		}
		sigtimedwait(chld, NULL, &look);
	}
}

int perf_net_run(const struct perf_opts *opts, const struct perf_printer *print, const struct perf_shared **ret_shared)
{
	struct perf_shared *shared =
		mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct child c[2] = {{0}, {0}};
	sigset_t chld, before;
	int started = 1, status = 1;

	if (shared == MAP_FAILED) {
		fprintf(stderr, "gantry perf net: shared memory: %s\n", strerror(errno));
		return 1;
	}
	shared->opts = *opts;
	*ret_shared = shared;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, &before);
	fflush(NULL);
	for (int rank = 0; rank < 2 && started; rank++)
		if (!perf_remote_wanted(&opts->remote) || rank == perf_remote_rank(&opts->remote))
			started = spawn(rank, opts, shared, &before, &c[rank]) == 0;
	if (started)
		status = watch(opts, print, shared, &chld, c);
	end_all(c);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return status;
}
