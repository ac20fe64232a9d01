/* SPDX-License-Identifier: Apache-2.0 */
#include "perf/perf_ranks.h"

#include <errno.h>
#include <fcntl.h>
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
#include "base/secret.h"
#include "base/text.h"
#include "inet/settings.h"
#include "net/loader.h"
#include "transport/transport.h"

enum { SPIN_FAR = 100, SPIN_CLOSE = 100000, NAP_NS = 50000 };

/* A process: one rank, or all of them. */
struct perf_child {
	pid_t pid; /* 0 once it is reaped */
	int status;
	int first, n;
};

void *perf_ranks_map(const char *program, size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p != MAP_FAILED)
		return p;
	fprintf(stderr, "%s: shared memory: %s\n", program, strerror(errno));
	return NULL;
}

/* ---- in a rank ---- */

void perf_fail(struct perf_state *s, gantry_result r)
{
	const char *text = gantry_last_error()[0] ? gantry_last_error() : gantry_result_text(r);

	if (load_relaxed(&s->alone))
		snprintf(s->error, sizeof(s->error), "%s", text);
	else
		snprintf(s->error, sizeof(s->error), "%s: %s", gantry_result_name(r), text);
}

/* First without burning a CPU that another rank may need, then once more closely: all leave within a microsecond, if
 * they have a CPU each. Ranks that share one look the less often the more they are. */
void perf_ranks_meet(struct perf_state *me, struct perf_state *states, size_t stride, int nranks)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN), per_cpu = cpus > 0 ? (nranks + cpus - 1) / cpus : 1;
	const struct timespec nap = {0, NAP_NS * per_cpu};

	for (int close = 0; close < 2; close++) {
		uint64_t count = me->arrived + 1;
		int n = 0, spin = close && per_cpu == 1 ? SPIN_CLOSE : SPIN_FAR;

		store_release(&me->arrived, count);
		for (int i = 0; i < nranks; i++)
			while (load_acquire(&perf_state_of(states, stride, i)->arrived) < count) {
				if (n++ < spin)
					gantry_cpu_pause();
				else
					nanosleep(&nap, NULL);
			}
	}
}

void perf_keep_to_part(int rank, int nranks)
{
	cpu_set_t all, part;
	int n, seen = 0;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return;
	n = CPU_COUNT(&all);
	CPU_ZERO(&part);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && seen++ * nranks / n == rank)
			CPU_SET(cpu, &part);
	if (n >= nranks)
		sched_setaffinity(0, sizeof(part), &part);
}

/* ---- processes ---- */

static int spawn(struct perf_ranks *p, int first, int n, const sigset_t *mask)
{
	struct perf_child *c = &p->children[p->nchildren];
	pid_t parent = getpid();
	int status;

	*c = (struct perf_child){.pid = fork(), .first = first, .n = n};
	if (c->pid < 0) {
		fprintf(stderr, "%s: fork: %s\n", p->program, strerror(errno));
		return -1;
	}
	p->nchildren++;
	if (c->pid > 0)
		return 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	sigprocmask(SIG_SETMASK, mask, NULL);
	status = p->run(p->ctx, first, n);
	if (!p->tidy)
		_exit(status);
	exit(status);
}

static int spawn_all(struct perf_ranks *p, const sigset_t *mask)
{
	int each = p->together ? p->count : 1;

	for (int i = 0; i < p->count; i += each)
		if (spawn(p, p->first + i, each, mask) < 0)
			return -1;
	return 0;
}

/* Takes the ends of children that have ended; returns how many still run. */
static int reap(struct perf_ranks *p)
{
	int left = 0;

	for (int i = 0; i < p->nchildren; i++) {
		struct perf_child *c = &p->children[i];

		if (c->pid && waitpid(c->pid, &c->status, WNOHANG) == c->pid)
			c->pid = 0;
		left += c->pid != 0;
	}
	return left;
}

static void end_all(struct perf_ranks *p)
{
	for (int i = 0; i < p->nchildren; i++) {
		struct perf_child *c = &p->children[i];

		if (c->pid) {
			kill(c->pid, SIGKILL);
			waitpid(c->pid, &c->status, 0);
		}
	}
}

static const struct perf_state *state_of(const struct perf_ranks *p, int rank)
{
	return perf_state_of(p->states, p->stride, rank);
}

static const struct perf_child *child_of(const struct perf_ranks *p, int rank)
{
	return &p->children[p->together ? 0 : rank - p->first];
}

/* ---- output ---- */

static const char *where(const struct perf_state *s, char *buf, size_t len)
{
	const char *phase = load_relaxed(&s->phase);
	uint64_t bytes = load_relaxed(&s->phase_bytes);

	snprintf(buf, len, "%s%s%s", phase ? phase : "starting", bytes ? ", " : "", bytes ? SIZE_TEXT(bytes) : "");
	return buf;
}

void perf_ranks_clear(struct perf_ranks *p)
{
	if (p->shown)
		fprintf(stderr, "\r\033[K");
	p->shown = 0;
	p->shown_ns = gantry_now_ns();
}

/* On a terminal, when a row takes long. */
static void show_progress(struct perf_ranks *p)
{
	char at[128];

	if (!p->rows || !isatty(STDERR_FILENO) || gantry_now_ns() - p->shown_ns < 1000000000u)
		return;
	fprintf(stderr, "\r\033[K# %s; %zu of %zu sizes", where(state_of(p, p->first), at, sizeof(at)), p->printed,
		p->rows);
	p->shown = 1;
	p->shown_ns = gantry_now_ns();
}

static int child_failed(const struct perf_child *c)
{
	return !c->pid && c->status != 0;
}

static int anything_failed(const struct perf_ranks *p)
{
	for (int rank = p->first; rank < p->first + p->count; rank++)
		if (child_failed(child_of(p, rank)) || load_acquire(&state_of(p, rank)->error_ns))
			return 1;
	return 0;
}

static void report_one(const struct perf_ranks *p, int rank)
{
	const struct perf_child *c = child_of(p, rank);
	const struct perf_state *s = state_of(p, rank);
	char at[128];

	where(s, at, sizeof(at));
	if (s->error_ns && load_relaxed(&s->alone))
		fprintf(stderr, "%s: %s\n", p->program, s->error);
	else if (s->error_ns)
		fprintf(stderr, "%s: rank %d failed (%s): %s\n", p->program, rank, at, s->error);
	else if (WIFSIGNALED(c->status))
		fprintf(stderr, "%s: rank %d was killed by signal %d, %s (%s)\n", p->program, rank, WTERMSIG(c->status),
			strsignal(WTERMSIG(c->status)), at);
	else
		fprintf(stderr, "%s: rank %d exited with status %d (%s)\n", p->program, rank, WEXITSTATUS(c->status),
			at);
}

/* The first failure: what other ranks say after it is its consequence. A child that was killed is a cause, even if
 * another wrote its complaint before its end was seen. */
static void report(const struct perf_ranks *p)
{
	uint64_t first = UINT64_MAX;
	int who = -1;

	for (int rank = p->first; rank < p->first + p->count; rank++) {
		const struct perf_child *c = child_of(p, rank);
		uint64_t error_ns = load_acquire(&state_of(p, rank)->error_ns);
		/* Of threads only their child's end is known: those that wrote nothing did not fail, but if it was
		 * killed. */
		int silent = child_failed(c) && !error_ns && !(c->n > 1 && WIFEXITED(c->status));
		uint64_t when = silent || (child_failed(c) && WIFSIGNALED(c->status)) ? 0 : error_ns;

		if ((!silent && !error_ns) || when >= first)
			continue;
		first = when;
		who = rank;
	}
	if (who >= 0)
		report_one(p, who);
}

static void report_hang(const struct perf_ranks *p)
{
	if (p->ask)
		p->ask(p->ctx);
	for (int rank = p->first; rank < p->first + p->count; rank++) {
		const struct perf_state *s = state_of(p, rank);
		int said = load_acquire(&s->error_ns) != 0;
		char at[128];

		/* A rank that was asked and whose process stands still has not even a word for that. */
		fprintf(stderr, "%s: no progress for %.1f s: rank %d after %llu %s (%s)%s%s\n", p->program,
			(double)p->timeout(p->ctx) / 1e9, rank, (unsigned long long)load_relaxed(&s->progress), p->unit,
			where(s, at, sizeof(at)), said || p->ask ? ": " : "",
			said	 ? s->error
			: p->ask ? "its process does not answer"
				 : "");
	}
}

/* ---- the parent ---- */

static uint64_t total_progress(const struct perf_ranks *p)
{
	uint64_t sum = 0;

	for (int rank = p->first; rank < p->first + p->count; rank++) {
		const struct perf_state *s = state_of(p, rank);

		sum += load_relaxed(&s->progress) + load_relaxed(&s->arrived);
	}
	return sum;
}

/* Others may be about to say why; their reason may even be the first. */
static void give_grace(struct perf_ranks *p, const sigset_t *signals)
{
	const struct timespec grace = {0, 500000000};

	for (int i = 0; reap(p) && i < 4; i++)
		sigtimedwait(signals, NULL, &grace);
	reap(p);
}

/* Sleeps between looks; SIGCHLD (blocked) ends a sleep early. Returns 0 when all ranks ended well. */
static int watch(struct perf_ranks *p, const sigset_t *signals)
{
	const struct timespec look = {0, 100000000};
	uint64_t last = 0, moved_ns = gantry_now_ns(), more = p->more_ns;

	p->shown_ns = moved_ns;
	for (;;) {
		/* One second more than the ranks' own deadlines, whose messages say more. */
		uint64_t patience = p->timeout(p->ctx) + more + 1000000000u;
		int left = reap(p), got;

		p->print(p->ctx, p);
		if (anything_failed(p)) {
			perf_ranks_clear(p);
			give_grace(p, signals);
			report(p);
			return 1;
		}
		if (!left)
			return 0;
		if (total_progress(p) != last) {
			last = total_progress(p);
			moved_ns = gantry_now_ns();
			more = 0;
		} else if (p->timeout(p->ctx) && gantry_now_ns() - moved_ns > patience) {
			perf_ranks_clear(p);
			report_hang(p);
			return 1;
		}
		show_progress(p);
		got = sigtimedwait(signals, NULL, &look);
		if (got > 0 && got != SIGCHLD) {
			p->ended_by = got;
			return 1;
		}
	}
}

int perf_ranks_run(struct perf_ranks *p)
{
	sigset_t signals, before;
	int status = 1;

	p->children = calloc((size_t)p->count, sizeof(*p->children));
	if (!p->children) {
		fprintf(stderr, "%s: no memory for %d ranks\n", p->program, p->count);
		return 1;
	}
	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	if (p->signals) {
		sigaddset(&signals, SIGINT);
		sigaddset(&signals, SIGTERM);
		sigaddset(&signals, SIGHUP);
	}
	sigprocmask(SIG_BLOCK, &signals, &before);
	fflush(NULL);
	if (spawn_all(p, &before) == 0)
		status = watch(p, &signals);
	end_all(p);
	free(p->children);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return status;
}

/* ---- before there are ranks ---- */

static gantry_result find_interfaces(void)
{
	struct gantry_nic_list *list = NULL;
	gantry_result r = inet_wanted_nics(&list);

	gantry_nic_list_free(list);
	return r;
}

/* Whether there is such a library, which for a name only the linker knows: asked in a process of its own, because what
 * a library does when it is loaded is not for the one that forks the ranks. 0, or -1 with the reason. One that is there
 * and is no plugin is a failure of the ranks. */
static int try_plugin(const char *plugin, char *why, size_t len)
{
	struct gantry_loader *loader = NULL;
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	if (plugin[0] == '/' && !strchr(plugin, ',')) {
		status = access(plugin, R_OK);
		if (status)
			snprintf(why, len, "plugin %s: %s", plugin, strerror(errno));
		return status;
	}
	if (pipe2(fds, O_CLOEXEC))
		return 0; /* the ranks will say it */
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (gantry_loader_open(plugin, &loader) != GANTRY_OK &&
		    write(fds[1], gantry_last_error(), strlen(gantry_last_error())) < 0)
			_exit(1);
		_exit(0);
	}
	close(fds[1]);
	n = pid < 0 ? 0 : read(fds[0], why, len - 1);
	why[n < 0 ? 0 : n] = 0;
	close(fds[0]);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return strstr(why, "cannot open shared object file: No such file") ? -1 : 0;
}

int perf_preflight(const char *program, const char *plugin, const char *transport)
{
	int own = !plugin || !*plugin;
	const char *secret;
	gantry_result r = GANTRY_OK;
	char why[512];

	if (!own && try_plugin(plugin, why, sizeof(why)) < 0) {
		fprintf(stderr, "%s: %s\n", program, why);
		return -1;
	}
	if (own || transport)
		r = gantry_secret(&secret);
	if (r == GANTRY_OK && (own || transport))
		r = find_interfaces();
	/* Libraries may bring transports; loading them is the ranks' own business. */
	if (r == GANTRY_OK && transport && !*gantry_params()->transport_libs)
		r = gantry_transport_check(transport);
	if (r != GANTRY_OK)
		fprintf(stderr, "%s: %s\n", program, gantry_last_error());
	return r == GANTRY_OK ? 0 : -1;
}
