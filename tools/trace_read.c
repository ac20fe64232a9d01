/* Lines of traces become files, connections and events. */
#include <stdlib.h>
#include <string.h>

#include "base/event.h"
#include "base/trace.h"
#include "trace.h"

enum { RANKS_MAX = 1 << 20 };
/* Nanoseconds: 63 years. Two of them make a time, and the difference of two times still fits: a damaged file does no
 * harm. */
#define TIME_MAX 2000000000000000000

/* Room for one more; 0: no memory. */
static int room(void **array, size_t n, size_t *capacity, size_t size)
{
	size_t more = *capacity ? *capacity * 2 : 64;
	void *grown;

	if (n < *capacity)
		return 1;
	grown = realloc(*array, more * size);
	if (!grown)
		return 0;
	*array = grown;
	*capacity = more;
	return 1;
}

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

static const char *take_head(struct trace_set *set, const struct json_doc *line)
{
	int64_t ns[2], ticks[2], offset = json_get_int(line, "clock_offset_ns", 0),
				 rank = json_get_int(line, "rank", -1), nranks = json_get_int(line, "nranks", -1);
	struct trace_file *grown = realloc(set->files, (set->nfiles + 1) * sizeof(*grown)), *f;

	if (!grown)
		return "no memory";
	set->files = grown;
	if (json_get_int(line, "version", 0) != 1)
		return "a trace of a version that this program does not know";
	if ((nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks) && (rank != -1 || nranks != 0))
		return "the head of a trace without rank or nranks";
	if (!pair(line, "ns", ns) || !pair(line, "ticks", ticks) || ns[0] < 0 || ns[1] <= ns[0] || ticks[0] < 0 ||
	    ticks[1] <= ticks[0])
		return "the head of a trace without two points of its clocks";
	if (ns[0] > TIME_MAX / 2 || offset > TIME_MAX || offset < -TIME_MAX / 2 || ns[0] + offset > TIME_MAX)
		return "the head of a trace of an impossible time";
	f = &set->files[set->nfiles++];
	memset(f, 0, sizeof(*f));
	snprintf(f->comm, sizeof(f->comm), "%s", json_get_text(line, "comm", ""));
	snprintf(f->host, sizeof(f->host), "%s", json_get_text(line, "host", ""));
	f->rank = (int)rank;
	f->nranks = (int)nranks;
	f->pid = json_get_int(line, "pid", 0);
	f->ticks0 = ticks[0];
	f->ns_per_tick = (double)(ns[1] - ns[0]) / (double)(ticks[1] - ticks[0]);
	f->ns = ns[0] + offset;
	set->here = 1;
	return NULL;
}

static const char *take_conn(struct trace_file *f, const struct json_doc *line)
{
	struct trace_conn *c;
	void *array = f->conns;
	int64_t peer = json_get_int(line, "peer", -1);

	if (peer < 0 || peer >= f->nranks)
		return "a connection whose peer is no rank";
	if (!room(&array, f->nconns, &f->conns_room, sizeof(*c)))
		return "no memory";
	f->conns = array;
	c = &f->conns[f->nconns++];
	memset(c, 0, sizeof(*c));
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

static const char *take_link(struct trace_file *f, const struct json_doc *line)
{
	struct trace_link *l;
	void *array = f->links;

	if (!room(&array, f->nlinks, &f->links_room, sizeof(*l)))
		return "no memory";
	f->links = array;
	l = &f->links[f->nlinks++];
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
	struct trace_event e = {.kind = kind_of(json_get_text(line, "name", ""))};
	void *array = f->events;

	if (ticks < 0)
		return "an event without its time";
	if (e.kind == GANTRY_EV_COUNT) {
		set->unknown++;
		return NULL;
	}
	if (!room(&array, f->nevents, &f->events_room, sizeof(e)))
		return "no memory";
	f->events = array;
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
	e.end = json_get_int(line, "end", 0) != 0;
	e.cut = json_get_int(line, "cut", 0) != 0;
	f->events[f->nevents++] = e;
	return NULL;
}

static const char *take(void *ctx, const struct json_doc *line)
{
	struct trace_set *set = ctx;
	const char *kind = json_get_text(line, "kind", "");
	struct trace_file *f = set->here ? &set->files[set->nfiles - 1] : NULL;

	if (strcmp(kind, "trace") == 0)
		return take_head(set, line);
	if (strcmp(kind, "conn") != 0 && strcmp(kind, "link") != 0 && strcmp(kind, "event") != 0)
		return "not a line of a trace: kind is none of trace, conn, link and event";
	if (!f)
		return "a line before the head of the trace";
	return *kind == 'c' ? take_conn(f, line) : *kind == 'l' ? take_link(f, line) : take_event(set, f, line);
}

int trace_read(struct trace_set *set, const char *path, char *why, size_t len)
{
	set->here = 0;
	return json_read_lines(path, take, set, why, len);
}

void trace_free(struct trace_set *set)
{
	for (size_t i = 0; i < set->nfiles; i++) {
		free(set->files[i].conns);
		free(set->files[i].links);
		free(set->files[i].events);
	}
	free(set->files);
	memset(set, 0, sizeof(*set));
}

const char *trace_peer_of_link(const struct trace_file *f, int64_t id)
{
	for (size_t i = 0; i < f->nlinks; i++) {
		if (f->links[i].id == id)
			return f->links[i].peer;
	}
	return NULL;
}

const struct trace_conn *trace_conn_of(const struct trace_file *f, int64_t id)
{
	for (size_t i = 0; i < f->nconns; i++) {
		if (f->conns[i].id == id)
			return &f->conns[i];
	}
	return NULL;
}
