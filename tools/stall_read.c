/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of reports become communicators, ranks and connections, or processes and requests. Of two reports of one rank
 * or process the newer one counts. */
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "stall.h"

enum { RANKS_MAX = 1 << 20 };

const char *const stall_waits_names[STALL_WAITS] = {"none", "kernel", "proxy", "peer", "socket", "flush", "space"};

static void copy_text(char *to, size_t len, const struct json_doc *line, const char *key)
{
	snprintf(to, len, "%s", json_get_text(line, key, ""));
}

static struct stall_comm *comm_of(struct stall_set *set, const char *id)
{
	struct stall_comm *c;

	for (size_t i = 0; i < set->ncomms; i++) {
		if (strcmp(set->comms[i].id, id) == 0)
			return &set->comms[i];
	}
	c = ARRAY_ADD(set->comms, set->ncomms);
	if (c)
		snprintf(c->id, sizeof(c->id), "%s", id);
	return c;
}

const struct stall_rank *stall_find(const struct stall_comm *c, int rank)
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
	r->proxy_pending = json_get_int(line, "proxy_pending", 0);
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
	c = comm_of(set, id);
	if (!c)
		return "no memory";
	if (c->nreports && c->nranks != nranks)
		return "another report of this communicator gives another number of ranks";
	c->nranks = (int)nranks;
	r = (struct stall_rank *)(uintptr_t)stall_find(c, (int)rank);
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

static const char *fill_conn(struct stall_conn *e, const struct json_doc *line)
{
	const char *waits = json_get_text(line, "waits_for", "none");
	const struct json_value *kernel = json_get(line, &line->values[0], "kernel");
	const struct json_value *phase = json_get(line, kernel, "phase"), *step = json_get(line, kernel, "step");

	e->send = strcmp(json_get_text(line, "dir", ""), "send") == 0;
	e->channel = (int)json_get_int(line, "channel", 0);
	e->connecting = strcmp(json_get_text(line, "stage", "ready"), "ready") != 0;
	e->proxied = json_get_int(line, "proxied", 0) != 0;
	e->pending = json_get_int(line, "pending", 0) != 0;
	e->wait_ms = json_get_int(line, "wait_ms", 0);
	e->calls = json_get_int(line, "calls", -1);
	e->peer_pid = json_get_int(line, "peer_pid", 0);
	copy_text(e->transport, sizeof(e->transport), line, "transport");
	copy_text(e->peer_host, sizeof(e->peer_host), line, "peer_host");
	snprintf(e->phase, sizeof(e->phase), "%s", phase && phase->type == JSON_STRING ? phase->text : "?");
	e->step = step ? step->integer : 0;
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
	struct stall_process *p = NULL;

	if (pid < 0)
		return "a process without its number";
	for (size_t i = 0; i < set->nprocesses && !p; i++) {
		if (set->processes[i].pid == pid && strcmp(set->processes[i].host, host) == 0)
			p = &set->processes[i];
	}
	if (p && p->time_ns > time_ns) {
		set->here = 2;
		return NULL;
	}
	if (p) {
		free(p->waits);
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
	copy_text(w->peer, sizeof(w->peer), line, "peer");
	return take_waits(json_get_text(line, "waits_for", "none"), &w->waits);
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
	return "not a line of a report: kind is none of comm, conn, process and wait";
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
		free(set->processes[i].waits);
	free(set->processes);
	memset(set, 0, sizeof(*set));
}
