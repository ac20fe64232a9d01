/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry trace`: the traces of all ranks, read and put on one clock, as one picture for Chrome or Perfetto, or as a summary. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "base/event.h"
#include "base/json.h"
#include "base/trace.h"
#include "cmd.h"
#include "options.h"
#include "trace.h"

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
	c->proxied = json_get_int(line, "proxied", 0) != 0;
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
	if (e.kind == GANTRY_EV_COLL) {
		snprintf(e.coll, sizeof(e.coll), "%s", json_get_text(line, "collective", "?"));
		snprintf(e.type, sizeof(e.type), "%s", json_get_text(line, "type", ""));
		snprintf(e.redop, sizeof(e.redop), "%s", json_get_text(line, "redop", ""));
		snprintf(e.algo, sizeof(e.algo), "%s", json_get_text(line, "algo", ""));
	}
	e.end = json_get_int(line, "end", 0) != 0;
	e.cut = json_get_int(line, "cut", 0) != 0;
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
	    strcmp(kind, "event") != 0)
		return "not a line of a trace: kind is none of trace, conn, track, link and event";
	if (!f)
		return "a line before the head of the trace";
	return *kind == 'c'   ? take_conn(f, line)
	       : *kind == 't' ? take_track(f, line)
	       : *kind == 'l' ? take_link(f, line)
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
		free(set->files[i].events);
	}
	free(set->files);
	memset(set, 0, sizeof(*set));
}

/* NULL: not known. */
static const char *trace_peer_of_link(const struct trace_file *f, int64_t id)
{
	for (size_t i = 0; i < f->nlinks; i++) {
		if (f->links[i].id == id)
			return f->links[i].peer;
	}
	return NULL;
}

/* The same for collectives. */
static const struct trace_track *trace_track_of(const struct trace_file *f, int64_t id)
{
	for (size_t i = 0; i < f->ntracks; i++) {
		if (f->tracks[i].id == id)
			return &f->tracks[i];
	}
	return NULL;
}

/* NULL: it belongs to another communicator of the process. */
static const struct trace_conn *trace_conn_of(const struct trace_file *f, int64_t id)
{
	for (size_t i = 0; i < f->nconns; i++) {
		if (f->conns[i].id == id)
			return &f->conns[i];
	}
	return NULL;
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
	.usage = "[OPTION]... FILE...",
	.about = "Makes one Chrome trace (chrome://tracing, ui.perfetto.dev) of the files that ranks write to "
		 "GANTRY_TRACE.\n",
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

static int run(const struct request *q)
{
	struct trace_set set = {0};
	char why[PATH_MAX + 256];
	int good = 1;

	for (int i = 0; i < q->files.n; i++) {
		if (trace_read(&set, q->files.word[i], why, sizeof(why))) {
			fprintf(stderr, "gantry trace: %s\n", why);
			good = 0;
		}
	}
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
		return options_wrong(&command, "a FILE is missing; gantry trace --help says more");
	return run(&q);
}

/*
 * ---- the picture ----
 *
 * Chrome's trace format: a process per rank, a track per connection or link.
 *
 * What has a beginning and an end is one complete event ("X"): operations of the proxy, transfers of kernels, messages
 * of a link. Several of a track are in flight at once, and viewers want what overlaps on a track to nest; they end in
 * order, so each is drawn from where the one before ended, and "posted_us" tells when it truly began. The rest are
 * instants.
 *
 * The ring has the newest events only: an end without its beginning is an instant, a beginning without its end lasts to
 * the end of the trace and is marked "open".
 *
 * What Perfetto wants beyond that; tests/chrome_trace.py checks all of it:
 *   - Bars that touch must not overlap by a nanosecond, or one of them is dropped. All times are whole nanoseconds,
 *     and what a bar lasts is the difference of its rounded ends. Some versions cut off `microseconds * 1000` where
 *     others round it, so a number that a double would put below its nanosecond gets another digit: put_us.
 *   - 0 is the idle process and the idle thread, whatever they are called. Processes are numbered from 1.
 *   - Versions before 2025 name a thread by its number alone. No two tracks have the same number, and none that of a
 *     process, but for the track of a process itself: that is its main thread.
 *   - displayTimeUnit would change what some versions take the times for. It is left out.
 */

enum { OTHER_PROCESSES = 1 << 20, FIRST_TRACK = 1 << 22 }; /* ranks are below the first */

/* One row of the picture. */
struct track {
	const struct trace_conn *conn;	/* or */
	const struct trace_track *coll; /* or */
	int64_t link;			/* -1: none */
	int recv;			/* of a link */
	int64_t number;
	int64_t drawn_to; /* ns: where its last bar ended */
};

struct open {
	const struct trace_event *begin;
	struct track *track;
	int mode; /* of its steps, as far as seen */
};

/* One file being drawn. */
struct draw {
	struct gantry_json *j;
	const struct trace_file *f;
	int process;
	int links;	   /* no other file has drawn the links of this process */
	int64_t zero;	   /* ns: where the picture begins */
	struct open *open; /* owned: room for all events */
	size_t nopen;
	struct track *tracks; /* owned: room for all connections, all events and the process */
	size_t ntracks;
	int64_t *next_track; /* of the whole picture */
};

/* Each event begins a line. */
static void begin_event(struct gantry_json *j, const char *ph, const char *name, int process, int64_t track)
{
	putc('\n', j->out);
	gantry_json_open(j, NULL, '{');
	gantry_json_str(j, "ph", ph);
	gantry_json_str(j, "name", name);
	gantry_json_int(j, "pid", process);
	gantry_json_int(j, "tid", track);
}

static void put_name(struct gantry_json *j, const char *what, int process, int64_t track, const char *name)
{
	begin_event(j, "M", what, process, track);
	gantry_json_open(j, "args", '{');
	gantry_json_str(j, "name", name);
	gantry_json_close(j, '}');
	gantry_json_close(j, '}');
}

/* Nanoseconds, not negative, as microseconds. */
static void put_us(struct gantry_json *j, const char *key, int64_t ns)
{
	char text[40];

	snprintf(text, sizeof(text), "%lld.%03lld", (long long)(ns / 1000), (long long)(ns % 1000));
	if ((int64_t)(strtod(text, NULL) * 1000) < ns)
		strcat(text, "01");
	gantry_json_raw(j, key, text);
}

static int is_of_conn(uint32_t kind)
{
	return kind == GANTRY_EV_PROXY_OP || kind == GANTRY_EV_PROXY_POST || kind == GANTRY_EV_PROXY_MOVE ||
	       kind == GANTRY_EV_PROXY_DONE || kind == GANTRY_EV_XFER || kind == GANTRY_EV_KERNEL_OP;
}

static int is_of_link(uint32_t kind)
{
	return strcmp(gantry_event_field((enum gantry_event_kind)kind, 0), "link") == 0;
}

/* 0: of another communicator of the process, or drawn with another file of the same process. */
static int is_ours(const struct draw *d, const struct trace_event *e)
{
	if (e->kind == GANTRY_EV_COLL)
		return trace_track_of(d->f, e->v[0]) != NULL;
	return is_of_conn(e->kind) ? trace_conn_of(d->f, e->v[0]) != NULL : d->links;
}

/* Leaves them open. */
static void put_args(const struct draw *d, const struct trace_event *e, int mode)
{
	const struct trace_conn *c = is_of_conn(e->kind) ? trace_conn_of(d->f, e->v[0]) : NULL;

	gantry_json_open(d->j, "args", '{');
	for (int i = c || *e->coll ? 1 : 0; i < 3; i++) {
		const char *field = gantry_event_field((enum gantry_event_kind)e->kind, i);

		if (*field)
			gantry_json_int(d->j, field, e->v[i]);
	}
	if (e->more >= 0)
		gantry_json_int(d->j, gantry_trace_upper(e->kind), e->more);
	if (mode >= 0)
		gantry_json_str(d->j, "mode", gantry_trace_mode_names[mode]);
	if (e->proto >= 0)
		gantry_json_str(d->j, "protocol", gantry_trace_proto_names[e->proto]);
	if (*e->coll) {
		gantry_json_str(d->j, "type", e->type);
		if (*e->redop)
			gantry_json_str(d->j, "redop", e->redop);
		gantry_json_str(d->j, "algorithm", e->algo);
	}
	if (c) {
		gantry_json_str(d->j, "transport", c->transport);
		gantry_json_int(d->j, "peer", c->peer);
		gantry_json_int(d->j, "channel", c->channel);
	}
}

static void end_args(const struct draw *d)
{
	gantry_json_close(d->j, '}');
	gantry_json_close(d->j, '}');
}

static void name_track(const struct draw *d, const struct track *t, char *buf, size_t len)
{
	const char *peer = t->link >= 0 ? trace_peer_of_link(d->f, t->link) : NULL;

	if (t->conn)
		snprintf(buf, len, "%s rank %d, channel %d (%s)", t->conn->send ? "send to" : "recv from",
			 t->conn->peer, t->conn->channel, t->conn->transport);
	else if (t->coll)
		snprintf(buf, len, "collectives, channel %d", t->coll->channel);
	else if (peer)
		snprintf(buf, len, "link %lld, %s %s", (long long)t->link, t->recv ? "recv from" : "send to", peer);
	else if (t->link >= 0)
		snprintf(buf, len, "link %lld, %s", (long long)t->link, t->recv ? "receives" : "sends");
	else
		snprintf(buf, len, "process");
}

/* The row of an event, which is ours; made and named when it is first needed. */
static struct track *track_of(struct draw *d, const struct trace_event *e)
{
	struct track t = {.link = -1, .number = d->process, .drawn_to = d->zero};
	char name[200];

	if (is_of_conn(e->kind))
		t.conn = trace_conn_of(d->f, e->v[0]);
	else if (e->kind == GANTRY_EV_COLL)
		t.coll = trace_track_of(d->f, e->v[0]);
	else if (is_of_link(e->kind))
		t.link = e->v[0];
	t.recv = t.link >= 0 && (e->kind == GANTRY_EV_RECV_POST || e->kind == GANTRY_EV_RECV_DONE);
	for (size_t i = 0; i < d->ntracks; i++) {
		struct track *k = &d->tracks[i];

		if (k->conn == t.conn && k->coll == t.coll && k->link == t.link && k->recv == t.recv)
			return k;
	}
	name_track(d, &t, name, sizeof(name));
	if (t.conn || t.coll || t.link >= 0)
		t.number = (*d->next_track)++;
	put_name(d->j, "thread_name", d->process, t.number, name);
	d->tracks[d->ntracks] = t;
	return &d->tracks[d->ntracks++];
}

static void put_instant(struct draw *d, const struct trace_event *e)
{
	const struct track *t = track_of(d, e);

	begin_event(d->j, "i", gantry_event_name((enum gantry_event_kind)e->kind), d->process, t->number);
	gantry_json_str(d->j, "s", "t");
	put_us(d->j, "ts", e->ns - d->zero);
	put_args(d, e, e->mode);
	end_args(d);
}

/* end: NULL if it is open. */
static void put_complete(struct draw *d, const struct open *o, const struct trace_event *end, int64_t until)
{
	const struct trace_event *b = o->begin;
	struct track *t = o->track;
	int64_t from = b->ns > t->drawn_to ? b->ns : t->drawn_to;
	const char *name = b->kind == GANTRY_EV_SEND_POST   ? "send message"
			   : b->kind == GANTRY_EV_RECV_POST ? "receive message"
			   : t->coll			    ? b->coll
			   : t->conn->send		    ? "send"
							    : "recv";

	until = until > from ? until : from;
	t->drawn_to = until;
	begin_event(d->j, "X", name, d->process, t->number);
	put_us(d->j, "ts", from - d->zero);
	put_us(d->j, "dur", until - from);
	put_args(d, b, o->mode);
	put_us(d->j, "posted_us", b->ns - d->zero);
	if (!end || end->cut)
		gantry_json_int(d->j, end ? "cut" : "open", 1);
	end_args(d);
}

static int is_op(const struct trace_event *e)
{
	return e->kind == GANTRY_EV_PROXY_OP || e->kind == GANTRY_EV_KERNEL_OP || e->kind == GANTRY_EV_COLL;
}

static int begins(const struct trace_event *e)
{
	return (is_op(e) && !e->end) || e->kind == GANTRY_EV_SEND_POST || e->kind == GANTRY_EV_RECV_POST;
}

static int ends(const struct trace_event *e)
{
	return (is_op(e) && e->end) || e->kind == GANTRY_EV_SEND_DONE || e->kind == GANTRY_EV_RECV_DONE;
}

static int belong(const struct trace_event *b, const struct trace_event *e)
{
	uint32_t wanted = b->kind == GANTRY_EV_SEND_POST   ? GANTRY_EV_SEND_DONE
			  : b->kind == GANTRY_EV_RECV_POST ? GANTRY_EV_RECV_DONE
							   : b->kind;

	return e->kind == wanted && b->v[0] == e->v[0] && b->v[1] == e->v[1] && b->more == e->more;
}

static void draw_end(struct draw *d, const struct trace_event *e)
{
	for (size_t i = 0; i < d->nopen; i++) {
		if (!belong(d->open[i].begin, e))
			continue;
		put_complete(d, &d->open[i], e, e->ns);
		memmove(&d->open[i], &d->open[i + 1], (d->nopen - i - 1) * sizeof(d->open[0]));
		d->nopen--;
		return;
	}
	put_instant(d, e);
}

/* Operations do not know their mode; the first step of theirs that was moved does. */
static void learn_mode(struct draw *d, const struct trace_event *e)
{
	if (e->mode < 0 || (e->kind != GANTRY_EV_PROXY_MOVE && e->kind != GANTRY_EV_PROXY_DONE))
		return;
	for (size_t i = 0; i < d->nopen; i++) {
		if (d->open[i].begin->kind == GANTRY_EV_PROXY_OP && d->open[i].begin->v[0] == e->v[0]) {
			if (d->open[i].mode < 0)
				d->open[i].mode = e->mode;
			return;
		}
	}
}

static void draw_event(struct draw *d, const struct trace_event *e)
{
	if (!is_ours(d, e))
		return;
	learn_mode(d, e);
	if (begins(e))
		d->open[d->nopen++] = (struct open){e, track_of(d, e), e->mode};
	else if (ends(e))
		draw_end(d, e);
	else
		put_instant(d, e);
}

/* The rank, unless there is none or another file has drawn as that. */
static int process_number(const struct trace_set *set, size_t at)
{
	if (set->files[at].rank < 0)
		return OTHER_PROCESSES + (int)at + 1;
	for (size_t i = 0; i < at; i++) {
		if (set->files[i].rank == set->files[at].rank)
			return OTHER_PROCESSES + (int)at + 1;
	}
	return set->files[at].rank + 1;
}

static int first_of_process(const struct trace_set *set, size_t at)
{
	for (size_t i = 0; i < at; i++) {
		if (set->files[i].pid == set->files[at].pid && strcmp(set->files[i].host, set->files[at].host) == 0)
			return 0;
	}
	return 1;
}

static void name_process(const struct trace_set *set, size_t at, struct gantry_json *j)
{
	const struct trace_file *f = &set->files[at];
	int process = process_number(set, at);
	char name[160];

	if (f->rank < 0)
		snprintf(name, sizeof(name), "%s, pid %lld", f->host, (long long)f->pid);
	else
		snprintf(name, sizeof(name), "rank %d of %d, communicator %s (%s, pid %lld)", f->rank, f->nranks,
			 f->comm, f->host, (long long)f->pid);
	put_name(j, "process_name", process, process, name);
}

static void draw_file(const struct trace_set *set, size_t at, int64_t zero, int64_t *next_track, struct gantry_json *j)
{
	const struct trace_file *f = &set->files[at];
	struct draw d = {.j = j,
			 .f = f,
			 .process = process_number(set, at),
			 .links = first_of_process(set, at),
			 .zero = zero,
			 .next_track = next_track};

	d.open = malloc((f->nevents + 1) * sizeof(*d.open));
	d.tracks = malloc((f->nevents + 1) * sizeof(*d.tracks));
	for (size_t i = 0; d.open && d.tracks && i < f->nevents; i++)
		draw_event(&d, &f->events[i]);
	for (size_t i = 0; i < d.nopen; i++)
		put_complete(&d, &d.open[i], NULL, f->events[f->nevents - 1].ns);
	free(d.open);
	free(d.tracks);
}

void trace_write_chrome(const struct trace_set *set, FILE *out)
{
	int64_t zero = 0, next_track = FIRST_TRACK;
	struct gantry_json j;
	int any = 0;

	for (size_t i = 0; i < set->nfiles; i++) {
		for (size_t k = 0; k < set->files[i].nevents; k++) {
			int64_t ns = set->files[i].events[k].ns;

			zero = !any++ || ns < zero ? ns : zero;
		}
	}
	gantry_json_begin(&j, out, GANTRY_JSON_TIGHT);
	gantry_json_open(&j, "otherData", '{');
	gantry_json_str(&j, "made_by", "gantry trace");
	gantry_json_close(&j, '}');
	gantry_json_open(&j, "traceEvents", '[');
	for (size_t i = 0; i < set->nfiles; i++)
		name_process(set, i, &j);
	for (size_t i = 0; i < set->nfiles; i++)
		draw_file(set, i, zero, &next_track, &j);
	putc('\n', out);
	gantry_json_close(&j, ']');
	gantry_json_end(&j);
}
