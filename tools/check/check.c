/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry check`: conformance of a net plugin library, rule by rule and version by version. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/param.h"
#include "check/check.h"
#include "common/cmd.h"
#include "common/options.h"

/*
 * ---- the processes of a rule ----
 *
 * Forks the processes of a rule, watches
 * them and turns what became of them into a verdict.
 *
 * In the order in which they count: a process that died of a signal or ended by
 * itself, a plugin call longer than the rule's limit, the deadline, and the verdicts of the processes themselves. A
 * crash counts first because the other process often sees a broken connection sooner than the tool sees the dead
 * process.
 */

struct check_options {
	const char *plugin;
	uint64_t timeout_ns;
	int verbose;
	int device;  /* enum check_device */
	int retries; /* second runs that may fail before a failure of time is reported at once */
	struct check_extent extent;
};

enum { REPLAY_MAX = 16384, GRACE_MS = 100, RETRY_STRETCH = 3 };

/* What the runs so far have shown besides their verdicts, and how the next one goes. */
struct history {
	int connected; /* CHECK_CONNECTED, CHECK_ACCEPTED */
	int moved;     /* a message has arrived */
	int failed;    /* a rule with two processes */
	int hung;      /* such a rule, and because something took too long */
	int retried;   /* second runs that failed as well */
	int timed;     /* the last run failed, and only because something took too long */
	int stretch;   /* of the next run: 1, or RETRY_STRETCH */
};

struct pair {
	const struct check_rule *rule;
	struct check_shared *shared;
	int n; /* processes */
	pid_t pid[2];
	int alive[2], status[2];
	int log_fd, stretch;
	uint64_t start_ns, timeout_ns;
};

/* sigabbrev_np is younger than some C libraries in use. */
static const char *signal_name(int sig, char buf[16])
{
	static const struct {
		int sig;
		const char *name;
	} names[] = {{SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
		     {SIGILL, "SIGILL"},   {SIGPIPE, "SIGPIPE"}, {SIGKILL, "SIGKILL"}, {SIGTERM, "SIGTERM"},
		     {SIGTRAP, "SIGTRAP"}, {SIGSYS, "SIGSYS"}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].sig == sig)
			return names[i].name;
	snprintf(buf, 16, "signal %d", sig);
	return buf;
}

static const char *side_name(const struct pair *p, int i)
{
	return p->n == 1 ? "the process" : i ? "process B" : "process A";
}

/* Everything the plugin prints goes to a file in memory, so that it can neither mix with the report nor be lost. */
static void redirect_output(int log_fd)
{
	if (log_fd >= 0) {
		dup2(log_fd, STDOUT_FILENO);
		dup2(log_fd, STDERR_FILENO);
	} else {
		dup2(STDERR_FILENO, STDOUT_FILENO);
	}
}

/* In the new process: its own group, so that helpers the plugin forks go with it, and no life without the tool. */
static void become_child(pid_t tool, int log_fd)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != tool)
		_exit(1);
	signal(SIGPIPE, SIG_IGN); /* as in most programs that run NCCL: Python ignores it */
	redirect_output(log_fd);
}

static void start(struct pair *p, const struct check_options *opt, const char *symbol, int version)
{
	int fds[2] = {-1, -1};
	pid_t tool = getpid();

	if (p->n == 2 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
		perror("gantry check: socketpair");
		exit(1);
	}
	fflush(NULL);
	p->start_ns = gantry_now_ns();
	for (int i = 0; i < p->n; i++) {
		p->pid[i] = fork();
		if (p->pid[i] < 0) {
			perror("gantry check: fork");
			exit(1);
		}
		if (p->pid[i] == 0) {
			struct check_side s = {.rule = p->rule, .version = version, .role = i, .peer_fd = fds[i]};

			s.symbol = symbol;
			s.device = (enum check_device)opt->device;
			s.extent = opt->extent;
			s.stretch = p->stretch;
			if (p->n == 2)
				close(fds[!i]);
			become_child(tool, p->log_fd);
			s.shared = p->shared;
			s.me = &p->shared->side[i];
			s.start_ns = p->start_ns;
			/* A rule that gives up by itself says more than the tool can: leave it time for that. */
			s.soft_ns = p->start_ns + p->timeout_ns - p->timeout_ns / 16;
			check_side_main(&s, opt->plugin);
		}
		p->alive[i] = 1;
	}
	for (int i = 0; i < 2 && p->n == 2; i++)
		close(fds[i]);
}

static void reap(struct pair *p, int flags)
{
	for (int i = 0; i < p->n; i++)
		if (p->alive[i] && waitpid(p->pid[i], &p->status[i], flags) == p->pid[i])
			p->alive[i] = 0;
}

static void kill_all(struct pair *p)
{
	for (int i = 0; i < p->n; i++) {
		/* Also the group of a process that has ended: it may have left others behind. */
		kill(-p->pid[i], SIGKILL);
		if (p->alive[i])
			kill(p->pid[i], SIGKILL);
	}
	reap(p, 0);
}

static int said(const struct pair *p, int i)
{
	return load_acquire(&p->shared->side[i].verdict);
}

/* Writes what became of process i if that alone decides; 1 if so. Call it before the processes are killed. */
static int died(const struct pair *p, int i, char detail[CHECK_DETAIL])
{
	const struct check_status *st = &p->shared->side[i];
	const char *call = NULL, *sep;
	char buf[16];

	if (p->alive[i] || (i == 1 && p->shared->expect_death))
		return 0;
	for (int t = CHECK_THREADS - 1; t >= 0; t--) /* a progress thread's before its service thread's */
		call = st->call[t] && (!call || t % CHECK_OF_ONE == CHECK_PROGRESS) ? st->call[t] : call;
	sep = call ? " in " : "";
	call = call ? call : "";
	if (WIFSIGNALED(p->status[i]))
		snprintf(detail, CHECK_DETAIL, "%s crashed with %s%s%s, phase: %s", side_name(p, i),
			 signal_name(WTERMSIG(p->status[i]), buf), sep, call, st->phase);
	else if (said(p, i) == CHECK_NONE && WEXITSTATUS(p->status[i]) != CHECK_EXIT_PEER_GONE)
		snprintf(detail, CHECK_DETAIL, "%s ended with exit status %d%s%s, phase: %s", side_name(p, i),
			 WEXITSTATUS(p->status[i]), sep, call, st->phase);
	else
		return 0;
	return 1;
}

/* A call that has been going on for longer than the limit; 1 and the detail if there is one. */
static int stuck(const struct pair *p, uint64_t limit_ns, char detail[CHECK_DETAIL])
{
	for (int i = 0; i < p->n; i++) {
		const struct check_status *st = &p->shared->side[i];

		for (int t = 0; t < CHECK_THREADS; t++) {
			const char *call = load_acquire(&st->call[t]);
			uint64_t since = load_relaxed(&st->call_ns[t]);
			uint64_t now = gantry_now_ns();

			if (!p->alive[i] || !call || now < since || now - since < limit_ns)
				continue;
			snprintf(detail, CHECK_DETAIL, "%s has not returned after %.1f s in %s, phase: %s", call,
				 (double)(now - since) / 1e9, side_name(p, i), st->phase);
			return 1;
		}
	}
	return 0;
}

static void hung(const struct pair *p, char detail[CHECK_DETAIL])
{
	size_t at = (size_t)snprintf(detail, CHECK_DETAIL, "hung for %.3g s;", (double)p->timeout_ns / 1e9);

	for (int i = 0; i < p->n && at < CHECK_DETAIL; i++)
		at += (size_t)snprintf(detail + at, CHECK_DETAIL - at, " %s: %s%s", side_name(p, i),
				       p->alive[i] ? p->shared->side[i].phase : "ended", i + 1 < p->n ? "," : "");
}

/* The verdicts of the processes themselves. */
static enum check_verdict conclude(const struct pair *p, char detail[CHECK_DETAIL])
{
	const struct check_status *st = p->shared->side;
	int first = p->shared->first_fail;

	if (first) {
		snprintf(detail, CHECK_DETAIL, "%s%.250s", p->n == 2 ? first == 2 ? "B: " : "A: " : "",
			 st[first - 1].detail);
		return CHECK_FAIL;
	}
	for (int i = 0; i < p->n; i++)
		if (said(p, i) == CHECK_SKIP || said(p, i) == CHECK_REFUSED) {
			snprintf(detail, CHECK_DETAIL, "%s", st[i].detail);
			return (enum check_verdict)said(p, i);
		}
	for (int i = 0; i < p->n; i++)
		if (said(p, i) != CHECK_PASS && !(i == 1 && p->shared->expect_death)) {
			snprintf(detail, CHECK_DETAIL, "%s reported no result, phase: %s", side_name(p, i),
				 st[i].phase);
			return CHECK_FAIL;
		}
	snprintf(detail, CHECK_DETAIL, "%s", st[0].detail[0] ? st[0].detail : st[1].detail);
	return CHECK_PASS;
}

/*
 * A call longer than the rule's limit, or the deadline; 1 and the detail. Both count from the end of init, which has the
 * same deadline for itself: NCCL gives it as long as it takes.
 */
static int late(const struct pair *p, char detail[CHECK_DETAIL])
{
	uint64_t limit_ns = (uint64_t)p->rule->call_limit_ms * (uint64_t)p->stretch * CHECK_MS, from = p->start_ns;

	for (int i = 0; i < p->n; i++) {
		uint64_t ready = load_relaxed(&p->shared->side[i].ready_ns);

		limit_ns = ready ? limit_ns : 0;
		from = ready > from ? ready : from;
	}
	if (limit_ns && stuck(p, limit_ns, detail))
		return 1;
	if (gantry_now_ns() - from <= p->timeout_ns)
		return 0;
	if (!stuck(p, 1000 * (uint64_t)CHECK_MS, detail))
		hung(p, detail);
	return 1;
}

static enum check_verdict watch(struct pair *p, char detail[CHECK_DETAIL])
{
	uint64_t ended_ns = 0;

	for (;;) {
		uint64_t now = gantry_now_ns();

		reap(p, WNOHANG);
		if (died(p, 0, detail) || (p->n == 2 && died(p, 1, detail)))
			return CHECK_FAIL;
		if (!p->alive[0] && !p->alive[1])
			return conclude(p, detail);
		/* One has failed or skipped: the other has a moment to turn out to be the one that crashed. */
		if (p->shared->first_fail || said(p, 0) >= CHECK_SKIP || said(p, 1) >= CHECK_SKIP) {
			ended_ns = ended_ns ? ended_ns : now;
			if (now - ended_ns > GRACE_MS * (uint64_t)CHECK_MS)
				return conclude(p, detail);
		} else if (late(p, detail)) {
			p->shared->timed = 1;
			return CHECK_FAIL;
		}
		usleep(2000);
	}
}

/* The end of what the processes printed. */
static void replay(int fd, const char *rule, int version)
{
	char text[REPLAY_MAX + 1];
	off_t end = lseek(fd, 0, SEEK_END);
	off_t from = end > REPLAY_MAX ? end - REPLAY_MAX : 0;
	ssize_t got = end > 0 ? pread(fd, text, REPLAY_MAX, from) : 0;

	if (got <= 0)
		return;
	text[got] = 0;
	fprintf(stderr, "-- printed during %s", rule);
	if (version)
		fprintf(stderr, " at v%d", version);
	fprintf(stderr, "%s:\n%s%s", from ? " (its end)" : "", text, text[got - 1] == '\n' ? "" : "\n");
}

static struct check_shared *shared_map(void)
{
	void *m = mmap(NULL, sizeof(struct check_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED) {
		perror("gantry check: mmap");
		exit(1);
	}
	return m;
}

static const struct {
	const char *name, *symbol;
	int min, max;
	const struct check_rule *rules[4];
} tables[CHECK_TABLES] = {
	[CHECK_NET] = {"net",
		       "ncclNetPlugin_v",
		       GANTRY_NET_VERSION_MIN,
		       GANTRY_NET_VERSION_MAX,
		       {check_rules_connect, check_rules_data, check_rules_nccl, check_rules_gpu}},
	[CHECK_COLLNET] = {"collnet",
			   "ncclCollNetPlugin_v",
			   GANTRY_NET_VERSION_MIN,
			   GANTRY_NET_VERSION_MAX,
			   {check_rules_collnet}},
	[CHECK_TUNER] = {"tuner", "ncclTunerPlugin_v", 2, 7, {check_rules_tuner}},
	[CHECK_PROFILER] = {"profiler", "ncclProfiler_v", 1, 6, {check_rules_profiler}},
	[CHECK_GIN] = {"gin", "ncclGinPlugin_v", 11, 13, {check_rules_gin}},
	[CHECK_RMA] = {"rma", "ncclRmaPlugin_v", 13, CHECK_VERSION_MAX, {check_rules_rma}},
};

/* One rule of one version of a table, once. */
static enum check_verdict run_once(const struct check_options *opt, enum check_table table, int version,
				   const struct check_rule *rule, char detail[CHECK_DETAIL], struct history *h)
{
	struct pair p = {.rule = rule, .n = rule->flags & CHECK_ALONE ? 1 : 2, .stretch = h->stretch};
	enum check_verdict v;
	char symbol[32];

	p.timeout_ns = opt->timeout_ns * (uint64_t)h->stretch;
	if (rule->flags & CHECK_HEAVY)
		p.timeout_ns *= CHECK_HEAVY_TIMES;
	p.shared = shared_map();
	p.log_fd = memfd_create("gantry-check", MFD_CLOEXEC);
	snprintf(symbol, sizeof(symbol), "%s%d", tables[table].symbol, version);
	start(&p, opt, table == CHECK_NET ? NULL : symbol, version);
	v = watch(&p, detail);
	kill_all(&p);
	h->timed = v == CHECK_FAIL && p.shared->timed;
	if (p.log_fd >= 0) {
		if (opt->verbose || (v == CHECK_FAIL && !(h->timed && h->stretch == 1 && h->retried < opt->retries)))
			replay(p.log_fd, rule->name, version);
		close(p.log_fd);
	}
	h->connected |= p.shared->connected;
	h->moved |= p.shared->moved;
	munmap(p.shared, sizeof(*p.shared));
	return v;
}

/*
 * The same, and once more with longer limits if it failed only because something took too long: that may be a busy
 * machine. A plugin whose second runs fail as well gets no more of them, so the whole check ends in bounded time.
 */
static enum check_verdict check_run(const struct check_options *opt, enum check_table table, int version,
				    const struct check_rule *rule, char detail[CHECK_DETAIL], struct history *h)
{
	enum check_verdict v;
	size_t at;

	h->stretch = 1;
	v = run_once(opt, table, version, rule, detail, h);
	if (v != CHECK_FAIL || !h->timed || h->retried >= opt->retries)
		return v;
	h->stretch = RETRY_STRETCH;
	v = run_once(opt, table, version, rule, detail, h);
	h->retried += v == CHECK_FAIL;
	at = strlen(detail);
	snprintf(detail + at, CHECK_DETAIL - at, " (second run, limits %d times as long)", RETRY_STRETCH);
	return v;
}

/* A word for each table: a bit for each version that is exported. */
static void probe_run(struct check_side *s)
{
	unsigned mask[CHECK_TABLES] = {0};
	char symbol[32];

	for (int t = 0; t < CHECK_TABLES; t++)
		for (int v = tables[t].min; v <= tables[t].max; v++) {
			snprintf(symbol, sizeof(symbol), "%s%d", tables[t].symbol, v);
			if (gantry_loader_symbol(s->loader, symbol))
				mask[t] |= 1u << v;
		}
	check_note(s, "%x %x %x %x %x %x", mask[CHECK_NET], mask[CHECK_COLLNET], mask[CHECK_TUNER],
		   mask[CHECK_PROFILER], mask[CHECK_GIN], mask[CHECK_RMA]);
}

/* Opens the library in a process of its own: the versions of each table. 0, and why not, if it has none. */
static int check_probe(const struct check_options *opt, unsigned mask[CHECK_TABLES], char detail[CHECK_DETAIL])
{
	static const struct check_rule probe = {"open", "the library opens", probe_run, CHECK_ALONE | CHECK_RAW, 0};
	struct history h = {.stretch = 1};

	return run_once(opt, CHECK_NET, 0, &probe, detail, &h) == CHECK_PASS &&
	       sscanf(detail, "%x %x %x %x %x %x", &mask[CHECK_NET], &mask[CHECK_COLLNET], &mask[CHECK_TUNER],
		      &mask[CHECK_PROFILER], &mask[CHECK_GIN], &mask[CHECK_RMA]) == CHECK_TABLES;
}

/* ---- the command ---- */

enum { EXIT_FINE = 0, EXIT_NOT_FINE = 1, EXIT_USAGE = 2, RULES_MAX = 256 };
enum { DEFAULT_TIMEOUT_S = 10, DEFAULT_RETRIES = 3, DEFAULT_LATE_S = 3, DEFAULT_COMMS = 64 };
#ifdef GANTRY_SANITIZED /* sanitizers make every byte ten times as dear */
enum { DEFAULT_LARGE = 16 << 20 };
#else
enum { DEFAULT_LARGE = 256 << 20 };
#endif

static const char *const verdict_names[] = {"none", "pass", "fail", "skip"};

struct request {
	struct check_options opt;
	int version; /* 0: every one that is exported */
	int table;   /* 0: all; else 1 + enum check_table */
	const char *rule;
	int json, list;
};

struct tally {
	int verdicts[CHECK_REFUSED + 1], versions;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{0, OPTION_CHOICE, "table", AT(table), 0, 0, "all|net|collnet|tuner|profiler|gin|rma", NULL, "tables of this kind only (all)"},
	{0, OPTION_INT, "version", AT(version), 1, CHECK_VERSION_MAX, NULL, "N", "this version only (every one that is exported)"},
	{0, OPTION_TEXT, "rule", AT(rule), 0, 0, NULL, "NAME", "this rule only (all)"},
	{0, OPTION_CHOICE, "device", AT(opt.device), 0, 0, "auto|cuda|host", NULL, "device memory to test with (auto: GPU 0 if there is one)"},
	{0, OPTION_TIME, "timeout", AT(opt.timeout_ns), 1000000000, 0, NULL, "S", "the longest that a rule may take (10s)"},
	{0, OPTION_INT, "retries", AT(opt.retries), 0, 100, NULL, "N", "second runs that may fail before timing failures are reported at once (3)"},
	{0, OPTION_TIME, "late", AT(opt.extent.late_ns), 1000000, 0, NULL, "S", "how late the latest peer is (3s; at most a third of the timeout)"},
	{0, OPTION_SIZE, "large", AT(opt.extent.large), 1, (uint64_t)1 << 40, NULL, "SIZE", "the largest message (256M)"},
	{0, OPTION_INT, "comms", AT(opt.extent.comms), 2, 4096, NULL, "N", "connections at once (64)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line"},
	{0, OPTION_FLAG, "verbose", AT(opt.verbose), 0, 0, NULL, NULL, "show what the plugin prints, also where it passes"},
	{0, OPTION_FLAG, "list", AT(list), 0, 0, NULL, NULL, "only list the rules"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry check",
	.usage = "PLUGIN [--table KIND] [--version N] [--rule NAME] [--device D]\n"
		 "       [--timeout S] [--retries N] [--late S] [--large SIZE] [--comms N]\n"
		 "       [--json] [--verbose]\n"
		 "       gantry check --list",
	.about =
		"Runs NCCL's side of the net plugin interface against PLUGIN, in two processes with two threads each,\n"
		"at every version it exports, and of the collNet, tuner, profiler, GIN and RMA interfaces where it has "
		"them.\n"
		"PLUGIN is a path or what NCCL_NET_PLUGIN would hold. See gantry-check(1).\n",
	.notes = "",
	OPTION_SPECS(specs),
	.operand = "PLUGIN",
	.operand_at = AT(opt.plugin),
	.keep_params = 1,
};

/* The rules of all tables one after the other; *ret_table: whose it is. */
struct rule_walk {
	size_t table, list, at;
};

static const struct check_rule *rule_next(struct rule_walk *w, enum check_table *ret_table)
{
	for (; w->table < CHECK_TABLES; w->table++, w->list = 0)
		for (; w->list < sizeof(tables[0].rules) / sizeof(tables[0].rules[0]); w->list++, w->at = 0) {
			const struct check_rule *list = tables[w->table].rules[w->list];

			if (!list || !list[w->at].name)
				continue;
			*ret_table = (enum check_table)w->table;
			return &list[w->at++];
		}
	return NULL;
}

/* 0, or 2 after a line on stderr: there is no such rule. */
static int check_rule(const char *name)
{
	const char *names[RULES_MAX];
	const struct check_rule *r;
	struct rule_walk w = {0};
	enum check_table table;
	size_t n = 0;

	while (n < RULES_MAX && (r = rule_next(&w, &table))) {
		if (strcmp(r->name, name) == 0)
			return 0;
		names[n++] = r->name;
	}
	return options_unknown("gantry check: unknown rule", name, names, n, "gantry check --list");
}

static int table_asked(const struct request *q, enum check_table table)
{
	return !q->table || q->table == 1 + (int)table;
}

static void list_rules(const struct request *q)
{
	const struct check_rule *r;
	struct rule_walk w = {0};
	enum check_table table;

	while ((r = rule_next(&w, &table))) {
		struct gantry_json j;

		if (!table_asked(q, table))
			continue;
		if (!q->json) {
			printf("%-22s  %s\n", r->name, r->says);
			continue;
		}
		gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
		gantry_json_str(&j, "rule", r->name);
		gantry_json_str(&j, "says", r->says);
		gantry_json_end(&j);
	}
}

static void report(const struct request *q, const char *rule, int version, enum check_verdict v, const char *detail)
{
	static int lines;
	struct gantry_json j;

	if (!q->json && !lines++)
		printf("%-22s  %-7s  %-7s  %s\n", "rule", "version", "verdict", "detail");
	if (!q->json) {
		printf("%-22s  v%-6d  %-7s  %s\n", rule, version, verdict_names[v], detail);
		fflush(stdout);
		return;
	}
	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "rule", rule);
	gantry_json_int(&j, "version", version);
	gantry_json_str(&j, "verdict", verdict_names[v]);
	gantry_json_str(&j, "detail", detail);
	gantry_json_end(&j);
}

static void count(const struct request *q, struct tally *t, const char *rule, int version, enum check_verdict v,
		  const char *detail)
{
	t->verdicts[v]++;
	report(q, rule, version, v, detail);
}

static void usable_run(struct check_side *s)
{
	check_note(s, "init succeeds");
}

/*
 * Opens and initialises it before anything else: a plugin that refuses this machine, or that init has left without a
 * table, is one line and not one for each rule. 1 if there is something to test.
 */
static int usable(const struct request *q, int version, struct tally *t, char detail[CHECK_DETAIL])
{
	static const struct check_rule probe = {"table", "", usable_run, CHECK_ALONE, 0};
	struct history h = {0};
	enum check_verdict v = check_run(&q->opt, CHECK_NET, version, &probe, detail, &h);

	if (v == CHECK_FAIL)
		count(q, t, "table", version, v, detail);
	else if (v == CHECK_REFUSED)
		t->verdicts[v]++;
	return v == CHECK_PASS;
}

/* Why a rule that needs connections would only fail once more; NULL: run it. */
static const char *hopeless(const struct history *h)
{
	if (!h->failed || h->moved)
		return NULL;
	if (!(h->connected & CHECK_CONNECTED) && !(h->connected & CHECK_ACCEPTED))
		return "not run: no connection could be made";
	if (!(h->connected & CHECK_CONNECTED))
		return "not run: connect has never given a comm";
	if (!(h->connected & CHECK_ACCEPTED))
		return "not run: accept has never given a comm";
	return h->hung ? "not run: no message has ever arrived" : NULL;
}

static void run_version(const struct request *q, enum check_table table, int version, struct tally *t)
{
	const struct check_rule *r;
	struct rule_walk w = {.table = table};
	struct history h = {0};
	enum check_table of;

	t->versions++;
	while ((r = rule_next(&w, &of)) && of == table) {
		int pair = !(r->flags & CHECK_ALONE) && table == CHECK_NET;
		char detail[CHECK_DETAIL] = "";
		enum check_verdict v;

		if (q->rule && strcmp(q->rule, r->name) != 0)
			continue;
		if (pair && hopeless(&h)) {
			count(q, t, r->name, version, CHECK_SKIP, hopeless(&h));
			continue;
		}
		v = check_run(&q->opt, table, version, r, detail, &h);
		if (v == CHECK_REFUSED) /* a net plugin did not before */
			v = table == CHECK_NET ? CHECK_FAIL : CHECK_SKIP;
		h.failed |= v == CHECK_FAIL && pair;
		h.hung |= v == CHECK_FAIL && pair && h.timed;
		count(q, t, r->name, version, v, detail);
	}
}

/* Does the rule that was asked for, or any, belong to the table? */
static int table_has_rule(const struct request *q, enum check_table table)
{
	const struct check_rule *r;
	struct rule_walk w = {.table = table};
	enum check_table of;

	while ((r = rule_next(&w, &of)) && of == table)
		if (!q->rule || strcmp(q->rule, r->name) == 0)
			return 1;
	return 0;
}

/* What was asked for and is not there: a failure of the rule on symbols. */
static int missing(const struct request *q, const unsigned mask[CHECK_TABLES])
{
	char detail[CHECK_DETAIL];
	int asked = q->table ? q->table - 1 : CHECK_NET;

	for (int t = 0; t < CHECK_TABLES; t++)
		if (table_asked(q, (enum check_table)t) && (q->version ? mask[t] & 1u << q->version : mask[t]))
			return 0;
	if (q->version)
		snprintf(detail, sizeof(detail), "%s%d is not exported", tables[asked].symbol, q->version);
	else
		snprintf(detail, sizeof(detail), "no %s%d to v%d is exported", tables[asked].symbol, tables[asked].min,
			 tables[asked].max);
	report(q, "symbols", q->version, CHECK_FAIL, detail);
	return 1;
}

static void run_table(const struct request *q, enum check_table table, unsigned versions, struct tally *t,
		      char detail[CHECK_DETAIL])
{
	for (int v = tables[table].min; v <= tables[table].max; v++)
		if (versions & 1u << v && (!q->version || q->version == v) &&
		    (table != CHECK_NET || usable(q, v, t, detail)))
			run_version(q, table, v, t);
}

static int run_all(const struct request *q)
{
	char detail[CHECK_DETAIL] = "";
	unsigned mask[CHECK_TABLES] = {0};
	uint64_t since = gantry_now_ns();
	struct tally t = {0};

	if (!check_probe(&q->opt, mask, detail)) {
		fprintf(stderr, "gantry check: %s: %s\n", q->opt.plugin, detail);
		return EXIT_USAGE;
	}
	t.verdicts[CHECK_FAIL] += missing(q, mask);
	for (int i = 0; i < CHECK_TABLES; i++)
		if (table_asked(q, (enum check_table)i) && table_has_rule(q, (enum check_table)i) &&
		    (t.versions || !t.verdicts[CHECK_REFUSED])) /* else NCCL goes on without the library */
			run_table(q, (enum check_table)i, mask[i], &t, detail);
	if (!t.versions && t.verdicts[CHECK_REFUSED] && !t.verdicts[CHECK_FAIL]) {
		fprintf(stderr, "gantry check: %s cannot be tested here: %s (--verbose shows what it printed)\n",
			q->opt.plugin, detail);
		return EXIT_USAGE;
	}
	if (!q->json)
		printf("%s: %d passed, %d failed, %d skipped over %d version%s in %.0f s\n", q->opt.plugin,
		       t.verdicts[CHECK_PASS], t.verdicts[CHECK_FAIL], t.verdicts[CHECK_SKIP], t.versions,
		       t.versions == 1 ? "" : "s", (double)(gantry_now_ns() - since) / 1e9);
	return t.verdicts[CHECK_FAIL] ? EXIT_NOT_FINE : EXIT_FINE;
}

int cmd_check(int argc, char **argv)
{
	struct request q = {.opt = {.timeout_ns = DEFAULT_TIMEOUT_S * 1000 * (uint64_t)CHECK_MS,
				    .retries = DEFAULT_RETRIES,
				    .extent = {.late_ns = DEFAULT_LATE_S * 1000 * (uint64_t)CHECK_MS,
					       .large = DEFAULT_LARGE,
					       .comms = DEFAULT_COMMS}}};
	int status = options_parse(&set, argc, argv, &q);

	if (status)
		return status - 1;
	if (q.rule && check_rule(q.rule))
		return EXIT_USAGE;
	if (q.list) {
		list_rules(&q);
		return EXIT_FINE;
	}
	if (!q.opt.plugin)
		return options_wrong(&set, "no PLUGIN given; see gantry check --help");
	/* A plugin whose deadline is longer than a rule's would look as if it never reported a dead peer. */
	setenv("GANTRY_TIMEOUT", "3s", 0);
	if (gantry_params_load(0) != GANTRY_OK)
		return EXIT_USAGE;
	return run_all(&q);
}
