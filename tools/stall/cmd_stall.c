/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry stall`: which rank waits for which, and the culprit, from the reports of several ranks. Lines of reports
 * become communicators, ranks and connections, or processes and requests; of two reports of one rank or process the
 * newer one counts.
 */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/text.h"
#include "common/array.h"
#include "common/cmd.h"
#include "common/options.h"
#include "stall/stall_set.h"

enum { RANKS_MAX = 1 << 20 };

const char *const stall_waits_names[STALL_WAITS] = {"none", "kernel", "proxy", "peer", "socket", "flush", "space"};

static void copy_text(char *to, size_t len, const struct json_doc *line, const char *key)
{
	snprintf(to, len, "%s", json_get_text(line, key, ""));
}

struct stall_comm *stall_find_comm(const struct stall_set *set, const char *id)
{
	for (size_t i = 0; i < set->ncomms; i++) {
		if (strcmp(set->comms[i].id, id) == 0)
			return &set->comms[i];
	}
	return NULL;
}

struct stall_process *stall_find_process(const struct stall_set *set, const char *host, int64_t pid)
{
	for (size_t i = 0; i < set->nprocesses; i++) {
		if (set->processes[i].pid == pid && strcmp(set->processes[i].host, host) == 0)
			return &set->processes[i];
	}
	return NULL;
}

struct stall_rank *stall_find(const struct stall_comm *c, int rank)
{
	for (size_t i = 0; i < c->nreports; i++) {
		if (c->ranks[i].rank == rank)
			return &c->ranks[i];
	}
	return NULL;
}

static void fill_rank(struct stall_rank *r, const struct json_doc *line, int64_t time_ns)
{
	r->time_ns = time_ns;
	copy_text(r->host, sizeof(r->host), line, "host");
	r->pid = json_get_int(line, "pid", 0);
	snprintf(r->error, sizeof(r->error), "%s", json_get_text(line, "error", "OK"));
	r->error_rank = (int)json_get_int(line, "error_rank", -1);
	copy_text(r->error_host, sizeof(r->error_host), line, "error_host");
	copy_text(r->text, sizeof(r->text), line, "text");
	r->launches = json_get_int(line, "launches_running", 0);
	r->collectives = json_get_int(line, "collectives", -1);
}

static const char *take_comm(struct stall_set *set, const struct json_doc *line)
{
	const char *id = json_get_text(line, "comm", NULL);
	int64_t rank = json_get_int(line, "rank", -1), nranks = json_get_int(line, "nranks", -1);
	/* Unsigned: whatever the two numbers are, the sum of damaged ones is no overflow. */
	int64_t time_ns = (int64_t)((uint64_t)json_get_int(line, "time_ns", 0) +
				    (uint64_t)json_get_int(line, "clock_offset_ns", 0));
	struct stall_comm *c;
	struct stall_rank *r;

	if (!id || nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks)
		return "not the first line of a report: comm, rank or nranks is missing";
	c = stall_find_comm(set, id);
	if (!c) {
		c = ARRAY_ADD(set->comms, set->ncomms);
		if (!c)
			return "no memory";
		snprintf(c->id, sizeof(c->id), "%s", id);
	}
	if (c->nreports && c->nranks != nranks)
		return "another report of this communicator gives another number of ranks";
	c->nranks = (int)nranks;
	r = stall_find(c, (int)rank);
	if (r && r->time_ns > time_ns) {
		set->here = 2;
		return NULL;
	}
	if (r) {
		free(r->conns);
		memset(r, 0, sizeof(*r));
	} else {
		r = ARRAY_ADD(c->ranks, c->nreports);
		if (!r)
			return "no memory";
	}
	r->rank = (int)rank;
	fill_rank(r, line, time_ns);
	set->here = 1;
	set->comm_at = (size_t)(c - set->comms);
	set->rank_at = (size_t)(r - c->ranks);
	return NULL;
}

static const char *take_waits(const char *name, enum stall_waits *ret)
{
	for (int i = 0; i < STALL_WAITS; i++) {
		if (strcmp(name, stall_waits_names[i]) == 0) {
			*ret = (enum stall_waits)i;
			return NULL;
		}
	}
	return "waits_for is something unknown";
}

static const char *text_in(const struct json_doc *line, const struct json_value *object, const char *key)
{
	const struct json_value *v = json_get(line, object, key);

	return v && v->type == JSON_STRING ? v->text : "";
}

static int64_t int_in(const struct json_doc *line, const struct json_value *object, const char *key)
{
	const struct json_value *v = json_get(line, object, key);

	return v && v->type == JSON_NUMBER ? v->integer : -1;
}

static void fill_coll(struct stall_coll *c, const struct json_doc *line)
{
	const struct json_value *o = json_get(line, &line->values[0], "coll");
	const char *op = text_in(line, o, "op"), *algo = text_in(line, o, "algo");
	int64_t bytes = int_in(line, o, "bytes"), root = int_in(line, o, "root"), step = int_in(line, o, "step");
	char where[32] = "";

	c->number = int_in(line, o, "number");
	if (c->number <= 0) {
		c->number = 0;
		return;
	}
	if (root >= 0)
		snprintf(where, sizeof(where), ", root %lld", (long long)root);
	snprintf(c->text, sizeof(c->text), "%.20s #%lld (%s %.12s%s%.12s%s%s%.12s%s%.12s)", text_in(line, o, "name"),
		 (long long)c->number, SIZE_TEXT(bytes < 0 ? 0 : (uint64_t)bytes), text_in(line, o, "type"),
		 *op ? " " : "", op, where, *algo ? ", " : "", algo, *algo ? ", " : "", text_in(line, o, "proto"));
	if (step > 0)
		snprintf(c->place, sizeof(c->place), ", step %lld of %lld, chunk %lld", (long long)step,
			 (long long)int_in(line, o, "of"), (long long)int_in(line, o, "chunk"));
}

static const char *fill_conn(struct stall_conn *e, const struct json_doc *line)
{
	static const char *const counts[] = {"posted", "moved", "flushed", "done"};
	const char *waits = json_get_text(line, "waits_for", "none");
	const struct json_value *steps = json_get(line, &line->values[0], "steps");
	const struct json_value *kernel = json_get(line, &line->values[0], "kernel");
	const struct json_value *phase = json_get(line, kernel, "phase"), *step = json_get(line, kernel, "step");

	e->send = strcmp(json_get_text(line, "dir", ""), "send") == 0;
	e->channel = (int)json_get_int(line, "channel", 0);
	e->connecting = strcmp(json_get_text(line, "stage", "ready"), "ready") != 0;
	e->pending = json_get_int(line, "pending", 0) != 0;
	e->wait_ms = json_get_int(line, "wait_ms", 0);
	e->calls = json_get_int(line, "calls", -1);
	e->peer_pid = json_get_int(line, "peer_pid", 0);
	copy_text(e->transport, sizeof(e->transport), line, "transport");
	copy_text(e->peer_host, sizeof(e->peer_host), line, "peer_host");
	snprintf(e->phase, sizeof(e->phase), "%s", phase && phase->type == JSON_STRING ? phase->text : "?");
	e->step = step ? step->integer : 0;
	e->moved = (uint64_t)e->calls + (uint64_t)e->step + (uint64_t)json_get_int(line, "bytes", 0);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		e->moved += (uint64_t)int_in(line, steps, counts[i]);
	fill_coll(&e->coll, line);
	return take_waits(waits, &e->waits);
}

static const char *take_conn(struct stall_set *set, const struct json_doc *line)
{
	int64_t peer = json_get_int(line, "peer", -1);
	struct stall_comm *c;
	struct stall_rank *r;
	struct stall_conn *e;

	if (set->here != 1 && set->here != 2)
		return "a connection before the communicator it belongs to";
	if (set->here == 2)
		return NULL;
	c = &set->comms[set->comm_at];
	r = &c->ranks[set->rank_at];
	if (peer < 0 || peer >= c->nranks)
		return "a connection whose peer is no rank";
	e = ARRAY_ADD(r->conns, r->nconns);
	if (!e)
		return "no memory";
	e->peer = (int)peer;
	return fill_conn(e, line);
}

static const char *take_process(struct stall_set *set, const struct json_doc *line)
{
	const char *host = json_get_text(line, "host", "");
	int64_t pid = json_get_int(line, "pid", -1), time_ns = json_get_int(line, "time_ns", 0);
	struct stall_process *p = stall_find_process(set, host, pid);

	if (pid < 0)
		return "a process without its number";
	if (p && p->time_ns > time_ns) {
		set->here = 2;
		return NULL;
	}
	if (p) {
		free(p->waits);
		free(p->rmas);
		memset(p, 0, sizeof(*p));
	} else {
		p = ARRAY_ADD(set->processes, set->nprocesses);
		if (!p)
			return "no memory";
	}
	copy_text(p->user, sizeof(p->user), line, "user");
	copy_text(p->host, sizeof(p->host), line, "host");
	p->pid = pid;
	p->time_ns = time_ns;
	set->here = 3;
	set->process_at = (size_t)(p - set->processes);
	return NULL;
}

static const char *take_wait(struct stall_set *set, const struct json_doc *line)
{
	struct stall_process *p;
	struct stall_wait *w;

	if (set->here == 2)
		return NULL;
	if (set->here != 3)
		return "requests before the process they belong to";
	p = &set->processes[set->process_at];
	w = ARRAY_ADD(p->waits, p->nwaits);
	if (!w)
		return "no memory";
	w->send = strcmp(json_get_text(line, "dir", ""), "send") == 0;
	w->requests = json_get_int(line, "requests", 0);
	w->tag = json_get_int(line, "tag", 0);
	w->bytes = json_get_int(line, "bytes", 0);
	w->wait_ms = json_get_int(line, "wait_ms", 0);
	w->heard_ms = json_get_int(line, "heard_ms", 0);
	w->silent = json_get_int(line, "silent", 0) != 0;
	copy_text(w->peer, sizeof(w->peer), line, "peer");
	return take_waits(json_get_text(line, "waits_for", "none"), &w->waits);
}

static const char *take_rma(struct stall_set *set, const struct json_doc *line)
{
	struct stall_process *p;
	struct stall_rma *q;

	if (set->here == 2)
		return NULL;
	if (set->here != 3)
		return "a remote memory request before the process it belongs to";
	p = &set->processes[set->process_at];
	q = ARRAY_ADD(p->rmas, p->nrmas);
	if (!q)
		return "no memory";
	q->rank = (int)json_get_int(line, "rank", -1);
	q->peer = (int)json_get_int(line, "peer", -1);
	q->context = (int)json_get_int(line, "context", -1);
	q->bytes = json_get_int(line, "bytes", 0);
	q->signal = json_get_int(line, "signal", -1);
	q->wait_ms = json_get_int(line, "wait_ms", 0);
	copy_text(q->what, sizeof(q->what), line, "what");
	return NULL;
}

/* A rank may be reported when it began, and in each report: the line with the most calls is the newest. */
static const char *take_rank(struct stall_set *set, const struct json_doc *line)
{
	const struct json_value *last = json_get(line, &line->values[0], "last");
	int64_t rank = json_get_int(line, "rank", -1), pid = json_get_int(line, "pid", -1), bytes;
	int64_t collectives = json_get_int(line, "collectives", 0);
	const char *comm = json_get_text(line, "comm", ""), *host = json_get_text(line, "host", "");
	struct stall_member *m = NULL;

	if (rank < 0 || rank > RANKS_MAX || pid < 0)
		return "a rank without its number or process";
	for (size_t i = 0; i < set->nmembers && !m; i++) {
		struct stall_member *k = &set->members[i];

		if (k->rank == rank && k->pid == pid && !strcmp(k->comm, comm) && !strcmp(k->host, host))
			m = k;
	}
	if (m && m->collectives > collectives)
		return NULL;
	if (!m)
		m = ARRAY_ADD(set->members, set->nmembers);
	if (!m)
		return "no memory";
	snprintf(m->comm, sizeof(m->comm), "%s", comm);
	snprintf(m->host, sizeof(m->host), "%s", host);
	m->rank = (int)rank;
	m->nranks = (int)json_get_int(line, "nranks", 0);
	m->pid = pid;
	m->collectives = collectives;
	bytes = int_in(line, last, "bytes");
	if (last)
		snprintf(m->last, sizeof(m->last), "%.20s #%lld (%s %.16s, %.16s, %.8s)",
			 text_in(line, last, "collective"), (long long)collectives,
			 SIZE_TEXT(bytes < 0 ? 0 : (uint64_t)bytes), text_in(line, last, "type"),
			 text_in(line, last, "algo"), text_in(line, last, "proto"));
	return NULL;
}

const char *stall_take(void *set, const struct json_doc *line)
{
	const char *kind = json_get_text(line, "kind", "");

	if (strcmp(kind, "comm") == 0)
		return take_comm(set, line);
	if (strcmp(kind, "conn") == 0)
		return take_conn(set, line);
	if (strcmp(kind, "process") == 0)
		return take_process(set, line);
	if (strcmp(kind, "wait") == 0)
		return take_wait(set, line);
	if (strcmp(kind, "rank") == 0)
		return take_rank(set, line);
	if (strcmp(kind, "rma") == 0)
		return take_rma(set, line);
	return "not a line of a report: kind is none of comm, conn, process, rank, rma and wait";
}

void stall_next_file(struct stall_set *set)
{
	set->here = 0;
}

void stall_free(struct stall_set *set)
{
	for (size_t i = 0; i < set->ncomms; i++) {
		for (size_t k = 0; k < set->comms[i].nreports; k++)
			free(set->comms[i].ranks[k].conns);
		free(set->comms[i].ranks);
	}
	free(set->comms);
	for (size_t i = 0; i < set->nprocesses; i++)
		free(set->processes[i].waits), free(set->processes[i].rmas);
	free(set->processes);
	free(set->members);
	memset(set, 0, sizeof(*set));
}

/* ---- the command ---- */

enum { EXIT_FINE = 0, EXIT_UNREADABLE = 1 };

struct request {
	int json, ask;
	struct option_words paths;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{0, OPTION_FLAG, "ask", AT(ask), 0, 0, NULL, NULL, "first have all processes of a folder report, three times within some six seconds; what moved meanwhile is not to blame"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per communicator, and one for the processes without: verdict rank cause votes reports comm nranks"},
};
/* clang-format on */

static const struct option_set command = {
	.program = "gantry stall",
	.usage = "[OPTION]... FILE|FOLDER...",
	.about = "Merges the stall reports of a hung job: which rank waits for which, and which one is the "
		 "culprit.\nReads every stall-*.jsonl file in a folder; ranks and other processes write them to "
		 "GANTRY_STALL_DIR.\n",
	.notes = "\nExit status: 0, 1 if a file cannot be read, 2 on wrong usage.\n",
	OPTION_SPECS(specs),
	.operand_at = AT(paths),
	.many = 1,
	.keep_params = 1,
};

int stall_read(void *set, const char *path)
{
	char why[PATH_MAX + 256];

	stall_next_file(set);
	if (!json_read_lines(path, stall_take, set, why, sizeof(why)))
		return 1;
	fprintf(stderr, "gantry stall: %s\n", why);
	return 0;
}

int stall_is_report(const struct dirent *e)
{
	return fnmatch("stall-*.jsonl", e->d_name, 0) == 0 || fnmatch("rank-*.jsonl", e->d_name, 0) == 0;
}

static int by_rank(const void *a, const void *b)
{
	const struct stall_rank *x = a, *y = b;

	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void print_wait(const struct stall_rank *r, const struct stall_conn *e, FILE *f)
{
	char wait[24] = "-";

	if (e->wait_ms > 0)
		snprintf(wait, sizeof(wait), "%.1f", (double)e->wait_ms / 1e3);
	fprintf(f, "  %6d  %-9s  %4d  %7d  %-9s  %-7s  %-10s  %10lld  %7s%s%s%s\n", r->rank,
		e->send ? "send to" : "recv from", e->peer, e->channel, e->transport, stall_waits_names[e->waits],
		e->connecting ? "connecting" : e->phase, (long long)e->step, wait, e->coll.number ? "  " : "",
		e->coll.text, e->coll.place);
}

void stall_print_waits(const struct stall_comm *c, FILE *f)
{
	int any = 0;

	for (size_t i = 0; i < c->nreports; i++) {
		const struct stall_rank *r = &c->ranks[i];

		for (size_t k = 0; k < r->nconns; k++) {
			if (r->conns[k].waits == STALL_NONE)
				continue;
			if (!any++)
				fprintf(f, "  %6s  %-9s  %4s  %7s  %-9s  %-7s  %-10s  %10s  %7s\n", "rank", "call",
					"peer", "channel", "transport", "waits", "kernel", "step", "since s");
			print_wait(r, &r->conns[k], f);
		}
	}
	for (size_t i = 0; i < c->nreports; i++) {
		if (strcmp(c->ranks[i].error, "OK") != 0)
			fprintf(f, "  rank %d: %s (about rank %d): %s\n", c->ranks[i].rank, c->ranks[i].error,
				c->ranks[i].error_rank, c->ranks[i].text);
	}
}

static void print_verdict(const struct stall_comm *c, const struct stall_verdict *v)
{
	printf("communicator %s: %zu of %s %s a report\n", c->id, c->nreports, COUNT_TEXT(c->nranks, "rank"),
	       c->nreports == 1 ? "has" : "have");
	stall_print_waits(c, stdout);
	printf("verdict (%s, %d of %s %s so): %s\n", v->cause, v->votes, COUNT_TEXT(v->reports, "report"),
	       v->votes == 1 ? "says" : "say", v->text);
}

static void print_verdict_json(const char *comm, int nranks, const struct stall_verdict *v)
{
	struct gantry_json j;

	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "verdict", v->text);
	gantry_json_int(&j, "rank", v->rank);
	gantry_json_str(&j, "cause", v->cause);
	gantry_json_int(&j, "votes", v->votes);
	gantry_json_int(&j, "reports", v->reports);
	gantry_json_str(&j, "comm", comm);
	gantry_json_int(&j, "nranks", nranks);
	gantry_json_end(&j);
}

static void judge_processes(const struct stall_set *set, int json)
{
	struct stall_verdict v;

	stall_judge_processes(set, &v);
	if (json) {
		print_verdict_json(v.comm, v.nranks, &v);
		return;
	}
	printf("processes without a communicator: %zu have a report\n", set->nprocesses);
	stall_print_processes(set, stdout);
	printf("verdict (%s, %d of %d reports say so): %s\n", v.cause, v.votes, v.reports, v.text);
}

static int run(const struct request *q)
{
	struct stall_set set = {0};
	struct stall_verdict v;
	int good = 1;

	if (q->ask)
		good = stall_ask(&q->paths, &set);
	for (int i = 0; i < q->paths.n && !q->ask; i++)
		good &= json_read_path("gantry stall", q->paths.word[i], stall_is_report, "stall-*.jsonl", stall_read,
				       &set);
	for (size_t i = 0; i < set.ncomms; i++) {
		if (!set.comms[i].nreports)
			continue;
		qsort(set.comms[i].ranks, set.comms[i].nreports, sizeof(set.comms[i].ranks[0]), by_rank);
		stall_judge(&set, i, &v);
		if (q->json)
			print_verdict_json(set.comms[i].id, set.comms[i].nranks, &v);
		else
			print_verdict(&set.comms[i], &v);
	}
	if (set.nprocesses)
		judge_processes(&set, q->json);
	stall_free(&set);
	return good ? EXIT_FINE : EXIT_UNREADABLE;
}

int cmd_stall(int argc, char **argv)
{
	struct request q = {0};
	int status = options_parse(&command, argc, argv, &q);

	if (status)
		return status - 1;
	if (!q.paths.n)
		return options_wrong(&command, "no FILE or FOLDER given; see gantry stall --help");
	return run(&q);
}
