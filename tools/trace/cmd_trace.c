/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry trace`: the traces of all ranks, read and put on one clock; the command, and its summary. trace_draw.c draws. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/event.h"
#include "base/json.h"
#include "base/ranks.h"
#include "base/trace.h"
#include "common/array.h"
#include "common/cmd.h"
#include "common/options.h"
#include "trace/trace_set.h"

/* ---- lines become files, connections and events ---- */

enum { RANKS_MAX = 1 << 20 };
/* Nanoseconds: 63 years. Two of them make a time, and the difference of two times still fits: a damaged file does no
 * harm. */
#define TIME_MAX 2000000000000000000

static int name_at(const char *const *names, int n, const char *name)
{
	for (int i = 0; name && i < n; i++) {
		if (strcmp(names[i], name) == 0)
			return i;
	}
	return -1;
}

/* [a, b] of whole numbers. */
static int pair(const struct json_doc *line, const char *key, int64_t ret[2])
{
	const struct json_value *v = json_first(line, json_get(line, &line->values[0], key));

	for (int i = 0; i < 2; i++) {
		if (!v || v->type != JSON_NUMBER)
			return 0;
		ret[i] = v->integer;
		v = json_next(line, v);
	}
	return 1;
}

/* Two points of its clocks. */
static const char *take_clock(struct trace_file *f, const struct json_doc *line)
{
	int64_t ns[2], ticks[2], offset = json_get_int(line, "clock_offset_ns", 0);

	if (!pair(line, "ns", ns) || !pair(line, "ticks", ticks) || ns[0] < 0 || ns[1] <= ns[0] || ticks[0] < 0 ||
	    ticks[1] <= ticks[0])
		return "the head of a trace without two points of its clocks";
	if (ns[0] > TIME_MAX / 2 || offset > TIME_MAX || offset < -TIME_MAX / 2 || ns[0] + offset > TIME_MAX)
		return "the head of a trace of an impossible time";
	f->ticks0 = ticks[0];
	f->ns_per_tick = (double)(ns[1] - ns[0]) / (double)(ticks[1] - ticks[0]);
	f->ns = ns[0] + offset;
	return NULL;
}

static const char *take_head(struct trace_set *set, const struct json_doc *line)
{
	int64_t rank = json_get_int(line, "rank", -1), nranks = json_get_int(line, "nranks", -1);
	struct trace_file *f;
	const char *bad;

	if (json_get_int(line, "version", 0) != 1)
		return "a trace of a version that this program does not know";
	if ((nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks) && (rank != -1 || nranks != 0))
		return "the head of a trace without rank or nranks";
	f = ARRAY_ADD(set->files, set->nfiles);
	bad = f ? take_clock(f, line) : "no memory";
	if (bad) {
		set->nfiles -= f != NULL;
		return bad;
	}
	snprintf(f->comm, sizeof(f->comm), "%s", json_get_text(line, "comm", ""));
	snprintf(f->host, sizeof(f->host), "%s", json_get_text(line, "host", ""));
	f->rank = (int)rank;
	f->nranks = (int)nranks;
	f->pid = json_get_int(line, "pid", 0);
	set->here = 1;
	return NULL;
}

static const char *take_conn(struct trace_file *f, const struct json_doc *line)
{
	struct trace_conn *c;
	int64_t peer = json_get_int(line, "peer", -1);

	if (peer < 0 || peer >= f->nranks)
		return "a connection whose peer is no rank";
	c = ARRAY_ADD(f->conns, f->nconns);
	if (!c)
		return "no memory";
	c->id = json_get_int(line, "conn", -1);
	c->peer = (int)peer;
	c->send = strcmp(json_get_text(line, "dir", ""), "send") == 0;
	c->channel = (int)json_get_int(line, "channel", 0);
	snprintf(c->transport, sizeof(c->transport), "%s", json_get_text(line, "transport", ""));
	c->calls = json_get_int(line, "calls", 0);
	c->bytes = json_get_int(line, "bytes", 0);
	c->copies = json_get_int(line, "copies", 0);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (int m = 0; m < GANTRY_MODES; m++) {
			const struct json_value *by = json_get(line, &line->values[0], "by"), *v;
			char key[32];

			snprintf(key, sizeof(key), "%s %s", gantry_trace_proto_names[p], gantry_trace_mode_names[m]);
			v = json_get(line, by, key);
			c->by[p][m] = v ? v->integer : 0;
		}
	}
	return NULL;
}

static const char *take_track(struct trace_file *f, const struct json_doc *line)
{
	struct trace_track *t = ARRAY_ADD(f->tracks, f->ntracks);

	if (!t)
		return "no memory";
	t->id = json_get_int(line, "track", -1);
	t->channel = (int)json_get_int(line, "channel", 0);
	return NULL;
}

static const char *take_rank(struct trace_file *f, const struct json_doc *line)
{
	struct trace_rank *r = ARRAY_ADD(f->ranks, f->nranks_of);

	if (!r)
		return "no memory";
	r->nccl = (int)json_get_int(line, "nccl", -1);
	r->rank = (int)json_get_int(line, "rank", -1);
	r->nranks = (int)json_get_int(line, "nranks", 0);
	snprintf(r->comm, sizeof(r->comm), "%s", json_get_text(line, "comm", ""));
	return NULL;
}

static const char *take_link(struct trace_file *f, const struct json_doc *line)
{
	struct trace_link *l = ARRAY_ADD(f->links, f->nlinks);

	if (!l)
		return "no memory";
	l->id = json_get_int(line, "link", -1);
	snprintf(l->peer, sizeof(l->peer), "%s", json_get_text(line, "peer", ""));
	return NULL;
}

static uint32_t kind_of(const char *name)
{
	uint32_t kind = 1;

	while (kind < GANTRY_EV_COUNT && strcmp(gantry_event_name((enum gantry_event_kind)kind), name) != 0)
		kind++;
	return kind;
}

static int64_t bounded(double ns)
{
	return ns > TIME_MAX ? TIME_MAX : ns < -TIME_MAX ? -TIME_MAX : (int64_t)ns;
}

/* Whole nanoseconds, once and for all: what was one moment is drawn as one. */
static int64_t time_of(const struct trace_file *f, int64_t ticks)
{
	return f->ns + bounded((double)(ticks - f->ticks0) * f->ns_per_tick);
}

/* Data of NCCL's profiler interface: fields of their own. */
static void take_nccl(struct trace_event *e, const struct json_doc *line)
{
	e->nccl = (int)json_get_int(line, "nccl", -1);
	e->channel = (int)json_get_int(line, "channel", 0);
	e->send = strcmp(json_get_text(line, "dir", ""), "send") == 0;
	e->root = (int)json_get_int(line, "root", -1);
	e->state = name_at(gantry_nccl_state_names, GANTRY_NCCL_STATES, json_get_text(line, "state", NULL));
	if (e->kind == GANTRY_EV_NCCL_REQUEST) {
		e->step = json_get_int(line, "step", 0);
		e->more = json_get_int(line, "tag", -1);
	}
}

static const char *take_event(struct trace_set *set, struct trace_file *f, const struct json_doc *line)
{
	int64_t ticks = json_get_int(line, "ticks", -1);
	struct trace_event e = {.kind = kind_of(json_get_text(line, "name", ""))}, *kept;

	if (ticks < 0)
		return "an event without its time";
	if (e.kind == GANTRY_EV_COUNT) {
		set->unknown++;
		return NULL;
	}
	for (int i = 0; i < 3; i++) {
		const char *field = gantry_event_field((enum gantry_event_kind)e.kind, i);

		e.v[i] = *field ? json_get_int(line, field, 0) : 0;
	}
	if (e.v[0] < 0 || e.v[0] > UINT32_MAX)
		return "an event of something with an impossible number";
	e.ns = time_of(f, ticks);
	e.proto = name_at(gantry_trace_proto_names, GANTRY_PROTOS, json_get_text(line, "proto", NULL));
	e.mode = name_at(gantry_trace_mode_names, GANTRY_MODES, json_get_text(line, "mode", NULL));
	e.more = gantry_trace_upper(e.kind) ? json_get_int(line, gantry_trace_upper(e.kind), -1) : -1;
	if (gantry_nccl_is_event(e.kind))
		take_nccl(&e, line);
	e.lane = (int)json_get_int(line, "lane", -1);
	if (e.kind == GANTRY_EV_COLL || e.kind == GANTRY_EV_NCCL_CALL) {
		snprintf(e.coll, sizeof(e.coll), "%s", json_get_text(line, "collective", "?"));
		snprintf(e.type, sizeof(e.type), "%s", json_get_text(line, "type", ""));
		snprintf(e.redop, sizeof(e.redop), "%s", json_get_text(line, "redop", ""));
		snprintf(e.algo, sizeof(e.algo), "%s", json_get_text(line, "algo", ""));
	}
	if (e.kind == GANTRY_EV_RMA) {
		snprintf(e.what, sizeof(e.what), "%s", json_get_text(line, "what", "?"));
		e.context = json_get_int(line, "context", 0);
	}
	e.end = json_get_int(line, "end", 0) != 0;
	e.cut = json_get_int(line, e.kind == GANTRY_EV_PLUGIN ? "update" : "cut", 0) != 0;
	kept = ARRAY_ADD(f->events, f->nevents);
	if (!kept)
		return "no memory";
	*kept = e;
	return NULL;
}

const char *trace_take(void *ctx, const struct json_doc *line)
{
	struct trace_set *set = ctx;
	const char *kind = json_get_text(line, "kind", "");
	struct trace_file *f = set->here ? &set->files[set->nfiles - 1] : NULL;

	if (strcmp(kind, "trace") == 0)
		return take_head(set, line);
	if (strcmp(kind, "conn") != 0 && strcmp(kind, "track") != 0 && strcmp(kind, "link") != 0 &&
	    strcmp(kind, "rank") != 0 && strcmp(kind, "event") != 0)
		return "not a line of a trace: kind is none of trace, conn, track, link, rank and event";
	if (!f)
		return "a line before the head of the trace";
	return *kind == 'c'   ? take_conn(f, line)
	       : *kind == 't' ? take_track(f, line)
	       : *kind == 'l' ? take_link(f, line)
	       : *kind == 'r' ? take_rank(f, line)
			      : take_event(set, f, line);
}

int trace_read(struct trace_set *set, const char *path, char *why, size_t len)
{
	set->here = 0;
	return json_read_lines(path, trace_take, set, why, len);
}

void trace_free(struct trace_set *set)
{
	for (size_t i = 0; i < set->nfiles; i++) {
		free(set->files[i].conns);
		free(set->files[i].tracks);
		free(set->files[i].links);
		free(set->files[i].ranks);
		free(set->files[i].events);
	}
	free(set->files);
	memset(set, 0, sizeof(*set));
}

/* ---- the command ---- */

enum { EXIT_FINE = 0, EXIT_BAD_FILE = 1 };

struct request {
	const char *output;
	int summary, json;
	struct option_words files;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{'o', OPTION_TEXT, "output", AT(output), 0, 0, NULL, "FILE", "write it there instead of to standard output"},
	{0, OPTION_FLAG, "summary", AT(summary), 0, 0, NULL, NULL, "per connection: transfers, bytes, steps by protocol and mode; no trace unless -o is given"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "the summary as one JSON object per connection"},
};
/* clang-format on */

static const struct option_set command = {
	.program = "gantry trace",
	.usage = "[OPTION]... FILE|FOLDER...",
	.about = "Makes one Chrome trace (chrome://tracing, ui.perfetto.dev) of the files that ranks write to "
		 "GANTRY_TRACE. Reads every *.jsonl file in a folder.\n",
	.notes = "\nExit status: 0, 1 if a file cannot be read or written, 2 on wrong usage.\n",
	OPTION_SPECS(specs),
	.operand_at = AT(files),
	.many = 1,
	.keep_params = 1,
};

static void summary_json(const struct trace_file *f, const struct trace_conn *c, FILE *out)
{
	struct gantry_json j;
	char key[32];

	gantry_json_begin(&j, out, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "comm", f->comm);
	gantry_json_int(&j, "rank", f->rank);
	gantry_json_str(&j, "dir", c->send ? "send" : "recv");
	gantry_json_int(&j, "peer", c->peer);
	gantry_json_int(&j, "channel", c->channel);
	gantry_json_str(&j, "transport", c->transport);
	gantry_json_int(&j, "ops", c->calls);
	gantry_json_int(&j, "bytes", c->bytes);
	gantry_json_int(&j, "copies", c->copies);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (int m = 0; m < GANTRY_MODES; m++) {
			snprintf(key, sizeof(key), "%s %s", gantry_trace_proto_names[p], gantry_trace_mode_names[m]);
			if (c->by[p][m])
				gantry_json_int(&j, key, c->by[p][m]);
		}
	}
	gantry_json_end(&j);
}

static void summary_text(const struct trace_file *f, const struct trace_conn *c, FILE *out)
{
	const char *comma = "";

	fprintf(out, "%6d  %-9s  %6d  %7d  %-9s  %10lld  %14lld  %10lld  ", f->rank, c->send ? "send to" : "recv from",
		c->peer, c->channel, c->transport, (long long)c->calls, (long long)c->bytes, (long long)c->copies);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (int m = 0; m < GANTRY_MODES; m++) {
			if (!c->by[p][m])
				continue;
			fprintf(out, "%s%lld %s %s", comma, (long long)c->by[p][m], gantry_trace_proto_names[p],
				gantry_trace_mode_names[m]);
			comma = ", ";
		}
	}
	fputs(*comma ? "\n" : "-\n", out);
}

void trace_write_summary(const struct trace_set *set, int json, FILE *out)
{
	const char *comm = "";

	for (size_t i = 0; i < set->nfiles; i++) {
		const struct trace_file *f = &set->files[i];

		if (f->rank < 0) {
			if (!json)
				fprintf(out, "%s, pid %lld: no communicator, %zu links, %zu events\n", f->host,
					(long long)f->pid, f->nlinks, f->nevents);
			trace_nccl_summary(f, json, out);
			continue;
		}
		if (!json && strcmp(comm, f->comm) != 0)
			fprintf(out, "communicator %s\n%6s  %-9s  %6s  %7s  %-9s  %10s  %14s  %10s  %s\n", f->comm,
				"rank", "", "peer", "channel", "transport", "ops", "bytes", "copies", "steps");
		comm = f->comm;
		for (size_t k = 0; k < f->nconns; k++) {
			if (json)
				summary_json(f, &f->conns[k], out);
			else
				summary_text(f, &f->conns[k], out);
		}
	}
}

/* 1: written. */
static int write_output(const struct trace_set *set, const char *path)
{
	FILE *f = path ? fopen(path, "we") : stdout;
	int bad;

	if (!f) {
		fprintf(stderr, "gantry trace: %s: %s\n", path, strerror(errno));
		return 0;
	}
	trace_write_chrome(set, f);
	if (!path)
		return 1; /* main sees to standard output */
	errno = 0;
	bad = fflush(f) || ferror(f);
	if (fclose(f))
		bad = 1;
	if (bad)
		fprintf(stderr, "gantry trace: %s: %s\n", path, errno ? strerror(errno) : "a write failed");
	return !bad;
}

/* Ranks of a communicator share its clock, processes without one have the time of day. 1: all files are of a kind. */
static int one_clock(const struct trace_set *set)
{
	for (size_t i = 1; i < set->nfiles; i++) {
		if ((set->files[i].rank < 0) == (set->files[0].rank < 0))
			continue;
		fprintf(stderr,
			"gantry trace: some files are of ranks and some of processes without a communicator, by "
			"different clocks: draw them apart\n");
		return 0;
	}
	return 1;
}

static int is_trace(const struct dirent *e)
{
	return fnmatch("*.jsonl", e->d_name, 0) == 0;
}

static int read_file(void *set, const char *path)
{
	char why[PATH_MAX + 256];

	if (!trace_read(set, path, why, sizeof(why)))
		return 1;
	fprintf(stderr, "gantry trace: %s\n", why);
	return 0;
}

static int run(const struct request *q)
{
	struct trace_set set = {0};
	int good = 1;

	for (int i = 0; i < q->files.n; i++)
		good &= json_read_path("gantry trace", q->files.word[i], is_trace, "*.jsonl", read_file, &set);
	if (set.unknown)
		fprintf(stderr, "gantry trace: %zu events of kinds that this version does not know are left out\n",
			set.unknown);
	/* A picture with a rank missing misleads; better none. */
	if (good && (q->output || !(q->summary || q->json)))
		good = one_clock(&set) && write_output(&set, q->output);
	if (good && (q->summary || q->json))
		trace_write_summary(&set, q->json, stdout);
	trace_free(&set);
	return good ? EXIT_FINE : EXIT_BAD_FILE;
}

int cmd_trace(int argc, char **argv)
{
	struct request q = {0};
	int status = options_parse(&command, argc, argv, &q);

	if (status)
		return status - 1;
	if (!q.files.n)
		return options_wrong(&command, "no FILE or FOLDER given; see gantry trace --help");
	return run(&q);
}
