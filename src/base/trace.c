/* SPDX-License-Identifier: Apache-2.0 */
/* The event ring as JSON lines. */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/trace.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/ranks.h"
#include "base/text.h"

enum { EVENTS = GANTRY_EVENTS_TRACED, LINKS = 4096 };

const char *const gantry_trace_proto_names[GANTRY_PROTOS] = {"simple", "ll", "ll128"};
const char *const gantry_trace_mode_names[GANTRY_MODES] = {"normal", "offset", "ptr"};

int gantry_trace_state;

struct point {
	uint64_t ns, ticks;
};
MUTEX_KIND(trace_mu); /* of writers; what is here is set once, and read without it */
static struct {
	struct trace_mu mu;
	struct point first;
	int owned;	    /* communicators write */
	char *peers[LINKS]; /* owned: by link; release when set, never freed */
} trace;

static struct point now(void)
{
	struct point p = {0, 0};

	gantry_clock_read(&p.ticks, &p.ns);
	return p;
}

void gantry_trace_begin(void)
{
	trace_mu_lock(&trace.mu);
	if (!trace.first.ns)
		trace.first = now();
	if (*gantry_params()->trace)
		gantry_event_keep_more();
	store_relaxed(&gantry_trace_state, *gantry_params()->trace != 0);
	trace_mu_unlock(&trace.mu);
}

void gantry_trace_own(void)
{
	store_relaxed(&trace.owned, 1);
}

void gantry_trace_link(uint32_t link, const char *peer)
{
	if (!gantry_trace_on() || link >= LINKS)
		return;
	trace_mu_lock(&trace.mu);
	if (!trace.peers[link])
		store_release(&trace.peers[link], strdup(peer));
	trace_mu_unlock(&trace.mu);
}

/* %r (host and pid where there is no rank) and %c, beside what all file names know. */
static void expand_path(const char *pattern, const struct gantry_trace_who *owner, char *ret_path, size_t len)
{
	char rank[96], comm[24], host[96];
	const char *const more[] = {rank, comm, host, NULL};

	if (owner->rank >= 0)
		snprintf(rank, sizeof(rank), "r%d", owner->rank);
	else
		snprintf(rank, sizeof(rank), "r%s-%d", owner->host, (int)getpid());
	snprintf(host, sizeof(host), "h%s", owner->host);
	snprintf(comm, sizeof(comm), "c%016llx", (unsigned long long)owner->comm);
	gantry_path_expand(pattern, more, ret_path, len);
}

static void put_pair(struct gantry_json *j, const char *key, uint64_t first, uint64_t last)
{
	gantry_json_open(j, key, '[');
	gantry_json_uint(j, NULL, first);
	gantry_json_uint(j, NULL, last);
	gantry_json_close(j, ']');
}

static void put_head(const struct gantry_trace_who *owner, size_t events, FILE *f)
{
	struct gantry_json j;
	struct point last;
	char id[20];

	do /* two points that are too near make a crooked line */
		last = now();
	while (last.ns - trace.first.ns < 1000000);
	snprintf(id, sizeof(id), "%016llx", (unsigned long long)owner->comm);
	gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
	gantry_json_str(&j, "kind", "trace");
	gantry_json_int(&j, "version", 1);
	gantry_json_str(&j, "comm", id);
	gantry_json_int(&j, "rank", owner->rank);
	gantry_json_int(&j, "nranks", owner->nranks);
	gantry_json_int(&j, "pid", getpid());
	gantry_json_str(&j, "host", owner->host);
	gantry_json_int(&j, "clock_offset_ns", owner->clock_offset_ns);
	put_pair(&j, "ns", trace.first.ns, last.ns);
	put_pair(&j, "ticks", trace.first.ticks, last.ticks);
	gantry_json_uint(&j, "events", events);
	gantry_json_end(&j);
}

static void put_links(FILE *f)
{
	for (uint32_t i = 0; i < LINKS; i++) {
		const char *peer = load_acquire(&trace.peers[i]);
		struct gantry_json j;

		if (!peer)
			continue;
		gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
		gantry_json_str(&j, "kind", "link");
		gantry_json_uint(&j, "link", i);
		gantry_json_str(&j, "peer", peer);
		gantry_json_end(&j);
	}
}

/* These pack protocol and mode into c; see event.h. */
static int is_packed(uint32_t kind)
{
	return kind == GANTRY_EV_PROXY_OP || kind == GANTRY_EV_PROXY_POST || kind == GANTRY_EV_PROXY_MOVE ||
	       kind == GANTRY_EV_PROXY_DONE || kind == GANTRY_EV_XFER || kind == GANTRY_EV_KERNEL_OP ||
	       kind == GANTRY_EV_COLL;
}

static int is_chunk(uint32_t kind)
{
	return kind == GANTRY_EV_CHUNK_TX || kind == GANTRY_EV_CHUNK_RX;
}

const char *gantry_trace_upper(uint32_t kind)
{
	switch (kind) {
	case GANTRY_EV_KERNEL_OP:
	case GANTRY_EV_PLUGIN:
		return "step";
	case GANTRY_EV_SEND_POST:
	case GANTRY_EV_SEND_DONE:
	case GANTRY_EV_RECV_POST:
	case GANTRY_EV_RECV_DONE:
	case GANTRY_EV_CHUNK_TX:
	case GANTRY_EV_CHUNK_RX:
		return "tag";
	case GANTRY_EV_RMA:
	case GANTRY_EV_RMA_SIGNAL:
		return "peer";
	default:
		return NULL;
	}
}

static void put_packed(struct gantry_json *j, const struct gantry_event *e)
{
	uint32_t proto = GANTRY_EV_PROTO(e->c), mode = GANTRY_EV_MODE(e->c);

	if (proto < GANTRY_PROTOS)
		gantry_json_str(j, "proto", gantry_trace_proto_names[proto]);
	if (e->kind == GANTRY_EV_PROXY_OP || e->kind == GANTRY_EV_KERNEL_OP || e->kind == GANTRY_EV_COLL) {
		gantry_json_int(j, "end", e->c & GANTRY_EV_OP_END ? 1 : 0);
		gantry_json_int(j, "cut", e->c & GANTRY_EV_OP_CUT ? 1 : 0);
	}
	if (e->kind != GANTRY_EV_PROXY_OP && mode < GANTRY_MODES) /* it has none: its steps have */
		gantry_json_str(j, "mode", gantry_trace_mode_names[mode]);
}

static void put_plugin(struct gantry_json *j, const struct gantry_event *e)
{
	int end = e->c & GANTRY_EV_OP_END ? 1 : 0, update = e->c & GANTRY_EV_OP_CUT ? 1 : 0;

	if (!end && !update)
		gantry_json_uint(j, "step", e->b >> 32);
	gantry_json_int(j, "end", end);
	gantry_json_int(j, "update", update);
}

static void put_rma(struct gantry_json *j, const struct gantry_event *e)
{
	uint32_t what = GANTRY_EV_RMA_WHAT(e->c);

	gantry_json_uint(j, "context", GANTRY_EV_RMA_CONTEXT(e->c));
	if (what < GANTRY_EV_IS_COUNT)
		gantry_json_str(j, "what", gantry_event_rma_names[what]);
	gantry_json_int(j, "end", e->c & GANTRY_EV_OP_END ? 1 : 0);
}

/* The third field of an event. */
static uint64_t third_of(const struct gantry_event *e)
{
	if (e->kind == GANTRY_EV_RMA)
		return GANTRY_EV_RMA_BYTES(e->c);
	return is_packed(e->kind) || is_chunk(e->kind) || e->kind == GANTRY_EV_PLUGIN ? GANTRY_EV_BYTES(e->c) : e->c;
}

static void put_event(const struct gantry_trace_who *owner, FILE *f, const struct gantry_event *e)
{
	enum gantry_event_kind kind = (enum gantry_event_kind)e->kind;
	const char *upper = gantry_trace_upper(e->kind);
	int coll = e->kind == GANTRY_EV_COLL, plugin = e->kind == GANTRY_EV_PLUGIN;
	uint64_t values[3] = {e->a, upper || coll ? (uint32_t)e->b : e->b, third_of(e)};
	struct gantry_json j;

	gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
	gantry_json_str(&j, "kind", "event");
	gantry_json_uint(&j, "ticks", e->ticks);
	gantry_json_str(&j, "name", gantry_event_name(kind));
	if (gantry_nccl_is_event(e->kind)) {
		gantry_nccl_put_event(&j, e);
		gantry_json_end(&j);
		return;
	}
	for (int i = 0; i < 3; i++)
		if (*gantry_event_field(kind, i))
			gantry_json_uint(&j, gantry_event_field(kind, i), values[i]);
	if (plugin)
		put_plugin(&j, e);
	else if (upper)
		gantry_json_uint(&j, upper, e->b >> 32);
	if (is_chunk(e->kind))
		gantry_json_uint(&j, "lane", GANTRY_EV_LANE(e->c));
	if (coll && owner->put_what)
		owner->put_what(&j, (uint32_t)(e->b >> 32));
	if (is_packed(e->kind))
		put_packed(&j, e);
	if (e->kind == GANTRY_EV_RMA)
		put_rma(&j, e);
	gantry_json_end(&j);
}

/* Events of kernels came late; the rest is nearly in order, and what is of one moment stays in it. */
static void sort_events(struct gantry_event *e, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		struct gantry_event moved = e[i];
		size_t k = i;

		for (; k && e[k - 1].ticks > moved.ticks; k--)
			e[k] = e[k - 1];
		e[k] = moved;
	}
}

struct whole {
	const struct gantry_trace_who *owner;
	struct gantry_event *events;
	size_t n;
};

static void put_whole(void *ctx, FILE *f)
{
	const struct whole *w = ctx;

	put_head(w->owner, w->n, f);
	if (w->owner->put_conns)
		w->owner->put_conns(w->owner->ctx, f);
	gantry_rank_put_lines(f, 1);
	put_links(f);
	for (size_t i = 0; i < w->n; i++)
		put_event(w->owner, f, &w->events[i]);
}

void gantry_trace_write(const struct gantry_trace_who *owner)
{
	const char *pattern = gantry_params()->trace;
	struct whole w = {.owner = owner};
	char path[PATH_MAX], in_folder[PATH_MAX];
	struct stat st;

	if (!*pattern)
		return;
	if (stat(pattern, &st) == 0 && S_ISDIR(st.st_mode)) {
		snprintf(in_folder, sizeof(in_folder), "%s/trace-%s%%r.jsonl", pattern, owner->rank < 0 ? "" : "%c-");
		pattern = in_folder;
	}
	if (owner->nranks != 1 && !strstr(pattern, "%r") && !strstr(pattern, "%p"))
		LOG_WARN(
			BASE,
			"GANTRY_TRACE=%s names one file for all ranks, so each rank overwrites it: add %%r to the name",
			pattern);
	gantry_trace_begin();
	w.events = malloc(EVENTS * sizeof(*w.events));
	if (!w.events) {
		LOG_WARN(BASE, "no memory for the trace");
		return;
	}
	w.n = gantry_event_snapshot(w.events, EVENTS);
	sort_events(w.events, w.n);
	expand_path(pattern, owner, path, sizeof(path));
	if (gantry_file_write(path, "the trace", put_whole, &w))
		LOG_INFO(BASE, "trace: %s in %s", COUNT_TEXT(w.n, "event"), path);
	free(w.events);
}

/* Added to the monotonic clock it gives the time of day. */
static int64_t time_of_day_offset(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - (int64_t)gantry_now_ns();
}

void gantry_trace_write_process(void)
{
	char host[64] = "";
	struct gantry_trace_who owner = {.rank = -1, .host = host};

	if (load_relaxed(&trace.owned) || !gantry_trace_on())
		return;
	gethostname(host, sizeof(host) - 1);
	owner.clock_offset_ns = time_of_day_offset();
	gantry_trace_write(&owner);
}
