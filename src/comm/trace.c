/*
 * The trace of a process: its event ring as JSON lines, written when a communicator is destroyed. docs/stall.md has the
 * fields; `gantry trace` reads them.
 *
 *   {"kind":"trace",...}  once: who, and what relates ticks, nanoseconds and the clocks of other ranks
 *   {"kind":"conn",...}   per connection of this communicator: the number in events, and what it really did
 *   {"kind":"event",...}  per event, oldest first; those of other communicators of the process too
 *
 * Numbers of connections. Events name a connection by one number per process. A proxied connection has that of its
 * proxy half; others are numbered here, from 2^31 on, so that the two never meet.
 *
 * Clocks. Events are stamped in ticks. A point is ticks and nanoseconds read together; a straight line through one of
 * the first communicator's beginning and one of now turns the one into the other. The offset to the clock of the
 * communicator's hub makes the times of all ranks comparable.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "comm/report.h"

enum { UNPROXIED = 1u << 31, EVENTS = 8192 /* the ring has no more */, READS = 9 };

struct point {
	uint64_t ns, ticks;
};
static struct point first;
static pthread_mutex_t first_lock = PTHREAD_MUTEX_INITIALIZER;

/* The reading with the fewest ticks around it: a thread that loses its CPU in between would bend the line. */
static struct point now(void)
{
	struct point best = {0, 0};
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < READS; i++) {
		uint64_t before = gantry_ticks(), ns = gantry_now_ns(), after = gantry_ticks();

		if (after - before >= least)
			continue;
		least = after - before;
		best = (struct point){ns, before + least / 2};
	}
	return best;
}

void comm_trace_begin(void)
{
	pthread_mutex_lock(&first_lock);
	if (!first.ns)
		first = now();
	pthread_mutex_unlock(&first_lock);
}

uint32_t comm_trace_conn_id(const struct gantry_connector *c)
{
	static uint32_t last;

	return c->proxy ? c->proxy->id : UNPROXIED | __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

/* Whatever comm_conn.id says, the proxy's events have the proxy's. */
static uint32_t id_of(const struct comm_conn *cc)
{
	return cc->c.proxy ? cc->c.proxy->id : cc->id;
}

void comm_trace_xfer(const struct comm_conn *cc, uint32_t op, const struct gantry_xfer *x)
{
	uint64_t mode = x->ptr									   ? GANTRY_MODE_PTR
			: x->proto == GANTRY_PROTO_SIMPLE && cc->c.conn.flags & GANTRY_CONN_OFFSET ? GANTRY_MODE_OFFSET
												   : GANTRY_MODE_NORMAL;

	gantry_event_put(GANTRY_EV_XFER, id_of(cc), op,
			 GANTRY_EV_BYTES(x->bytes) | (uint64_t)x->proto << 56 | mode << 60);
}

void comm_trace_path(const char *pattern, const struct gantry_comm *comm, char *ret_path, size_t len)
{
	size_t n = 0;

	ret_path[0] = 0;
	for (const char *p = pattern; *p && n + 1 < len; p++) {
		char piece[80] = {*p, 0};

		if (*p == '%' && p[1] == 'r')
			snprintf(piece, sizeof(piece), "%d", comm->rank);
		else if (*p == '%' && p[1] == 'c')
			snprintf(piece, sizeof(piece), "%016llx", (unsigned long long)comm->id);
		else if (*p == '%' && p[1] == 'p')
			snprintf(piece, sizeof(piece), "%d", (int)getpid());
		else if (*p == '%' && p[1] == 'h')
			snprintf(piece, sizeof(piece), "%s", comm->infos ? comm->infos[comm->rank].host_name : "");
		if (*p == '%' && p[1] && strchr("rcph%", p[1]))
			p++;
		n += (size_t)snprintf(ret_path + n, len - n, "%s", piece);
	}
}

static void put_head(const struct gantry_comm *comm, size_t events, FILE *f)
{
	struct point last;

	do /* two points that are too near make a crooked line */
		last = now();
	while (last.ns - first.ns < 1000000);
	fprintf(f,
		"{\"kind\":\"trace\",\"version\":1,\"comm\":\"%016llx\",\"rank\":%d,\"nranks\":%d,\"pid\":%d,\"host\":",
		(unsigned long long)comm->id, comm->rank, comm->nranks, (int)getpid());
	comm_json_string(f, comm->infos ? comm->infos[comm->rank].host_name : "");
	fprintf(f, ",\"clock_offset_ns\":%lld,\"ns\":[%llu,%llu],\"ticks\":[%llu,%llu],\"events\":%zu}\n",
		comm->ctl ? (long long)gantry_ctl_clock_offset(comm->ctl) : 0, (unsigned long long)first.ns,
		(unsigned long long)last.ns, (unsigned long long)first.ticks, (unsigned long long)last.ticks, events);
}

static void put_end(void *ctx, const struct comm_end *e)
{
	FILE *f = ctx;

	if (!e->conn)
		return;
	fprintf(f, "{\"kind\":\"conn\",\"conn\":%u,\"peer\":%d,\"dir\":\"%s\",\"channel\":%d,\"transport\":",
		id_of(e->conn), e->peer, e->send ? "send" : "recv", e->channel);
	comm_json_string(f, e->transport ? e->transport->name : "");
	fprintf(f, ",\"proxied\":%d,\"calls\":%llu,\"bytes\":%llu,\"copies\":%llu,\"by\":", e->proxied,
		(unsigned long long)e->calls, (unsigned long long)e->bytes, (unsigned long long)e->copies);
	comm_json_steps(f, e->by);
	fputs("}\n", f);
}

/* These pack protocol and mode into c; see event.h. */
static int is_packed(uint32_t kind)
{
	return kind == GANTRY_EV_PROXY_OP || kind == GANTRY_EV_PROXY_POST || kind == GANTRY_EV_PROXY_MOVE ||
	       kind == GANTRY_EV_PROXY_DONE || kind == GANTRY_EV_XFER || kind == GANTRY_EV_KERNEL_OP;
}

static void put_packed(FILE *f, const struct gantry_event *e)
{
	uint32_t proto = GANTRY_EV_PROTO(e->c), mode = GANTRY_EV_MODE(e->c);

	if (proto < GANTRY_PROTOS)
		fprintf(f, ",\"proto\":\"%s\"", comm_proto_names[proto]);
	if (e->kind == GANTRY_EV_KERNEL_OP)
		fprintf(f, ",\"step\":%u", (uint32_t)(e->b >> 32));
	if (e->kind == GANTRY_EV_PROXY_OP || e->kind == GANTRY_EV_KERNEL_OP)
		fprintf(f, ",\"end\":%d,\"cut\":%d", e->c & GANTRY_EV_OP_END ? 1 : 0, e->c & GANTRY_EV_OP_CUT ? 1 : 0);
	if (e->kind != GANTRY_EV_PROXY_OP && mode < GANTRY_MODES) /* it has none: its steps have */
		fprintf(f, ",\"mode\":\"%s\"", comm_mode_names[mode]);
}

static void put_event(FILE *f, const struct gantry_event *e)
{
	enum gantry_event_kind kind = (enum gantry_event_kind)e->kind;
	uint64_t values[3] = {e->a, e->kind == GANTRY_EV_KERNEL_OP ? (uint32_t)e->b : e->b,
			      is_packed(e->kind) ? GANTRY_EV_BYTES(e->c) : e->c};

	fprintf(f, "{\"kind\":\"event\",\"ticks\":%llu,\"name\":\"%s\"", (unsigned long long)e->ticks,
		gantry_event_name(kind));
	for (int i = 0; i < 3; i++) {
		if (*gantry_event_field(kind, i))
			fprintf(f, ",\"%s\":%llu", gantry_event_field(kind, i), (unsigned long long)values[i]);
	}
	if (is_packed(e->kind))
		put_packed(f, e);
	fputs("}\n", f);
}

struct whole {
	struct gantry_comm *comm;
	struct gantry_event *events;
	size_t n;
};

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

static void put_whole(void *ctx, FILE *f)
{
	const struct whole *w = ctx;

	put_head(w->comm, w->n, f);
	comm_ends_each(w->comm, put_end, f);
	for (size_t i = 0; i < w->n; i++)
		put_event(f, &w->events[i]);
}

void comm_trace_write(struct gantry_comm *comm)
{
	const char *pattern = gantry_params()->trace;
	struct whole w = {.comm = comm};
	char path[PATH_MAX];

	if (!*pattern || !comm->peers)
		return;
	if (comm->nranks > 1 && !strstr(pattern, "%r") && !strstr(pattern, "%p"))
		LOG_WARN(COMM, "GANTRY_TRACE=%s is one file for all ranks, and the last one's stays: put %%r into it",
			 pattern);
	comm_trace_begin();
	w.events = malloc(EVENTS * sizeof(*w.events));
	if (!w.events) {
		LOG_WARN(COMM, "no memory for the trace");
		return;
	}
	comm_times_collect(comm, 1);
	w.n = gantry_event_snapshot(w.events, EVENTS);
	sort_events(w.events, w.n);
	comm_trace_path(pattern, comm, path, sizeof(path));
	if (comm_file_write(path, "the trace", put_whole, &w))
		LOG_INFO(COMM, "rank %d: %zu events in %s", comm->rank, w.n, path);
	free(w.events);
}
