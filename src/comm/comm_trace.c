/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator's part of a trace: its identity, its connections, and the transfers that it hands to kernels.
 *
 * Numbers of connections. Events name a connection by one number per process. A proxied connection has that of its
 * proxy half; others are numbered here, from 2^31 on, and tracks of collectives from 3 * 2^30 on, so that they never
 * meet.
 */
#include "base/trace.h"

#include <stdlib.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/json.h"
#include "comm/launches.h"
#include "comm/report.h"

enum { UNPROXIED = 1u << 31, TRACKS = 3u << 30 };

uint32_t comm_trace_conn_id(const struct gantry_connector *c)
{
	static uint32_t last;

	return c->proxy ? c->proxy->id : UNPROXIED | (fetch_add_relaxed(&last, 1) + 1);
}

void comm_trace_xfer(const struct comm_conn *cc, uint32_t op, const struct gantry_xfer *x)
{
	uint64_t mode = x->ptr									   ? GANTRY_MODE_PTR
			: x->proto == GANTRY_PROTO_SIMPLE && cc->c.conn.flags & GANTRY_CONN_OFFSET ? GANTRY_MODE_OFFSET
												   : GANTRY_MODE_NORMAL;

	gantry_event_put(GANTRY_EV_XFER, cc->id, op, GANTRY_EV_BYTES(x->bytes) | (uint64_t)x->proto << 56 | mode << 60);
}

/*
 * When kernels began and ended transfers: bars in a trace for connections that no progress thread serves.
 *
 * With GANTRY_TRACE set, a launch has a gantry_xfer_time for each of its transfers. The kernel stores when it began one
 * and when it was done, and the CPU turns that into events some launches later, when it needs the memory again, or when
 * the trace is written. Without it there is no such memory, and a kernel asks for one pointer twice per transfer.
 *
 * Clocks. On the host kernels store ticks, as events have them. A GPU has a clock of its own. No kernel begins before
 * it was launched, so of a few hundred launches the one that began soonest gives the offset between the two, but for
 * the few microseconds that the fastest launch takes. It is found anew for each lot, as the clocks drift.
 */
#define READ(x) load_relaxed(&(x))

/* One moment on both clocks. */
struct anchor {
	uint64_t dev, ticks;
	int found;
};

void comm_times_plan(struct gantry_xfer_time *t, const struct comm_conn *cc, uint32_t op, const struct gantry_xfer *x)
{
	uint64_t mode = !x->send ? GANTRY_EV_MODE_NONE : x->ptr ? (uint64_t)GANTRY_MODE_PTR << 60 : 0;

	*t = (struct gantry_xfer_time){.conn = cc->c.proxy ? 0 : cc->id, .op = op};
	t->packed = GANTRY_EV_BYTES(x->bytes) | (uint64_t)x->proto << 56 | mode;
}

void comm_times_coll(struct gantry_comm *comm, struct gantry_xfer_time *t, uint32_t channel)
{
	static uint32_t last;
	struct comm_coll *c = comm->coll;
	const struct comm_note *n = &c->notes[c->calls % COMM_NOTES];

	ASSERT(channel < COMM_CHANNELS_MAX);
	if (!c->track)
		c->track = TRACKS | fetch_add_relaxed(&last, COMM_CHANNELS_MAX);
	*t = (struct gantry_xfer_time){.conn = c->track + channel, .op = (uint32_t)n->number};
	t->step = comm_note_what(n);
	t->packed = GANTRY_EV_BYTES(n->bytes) | (n->what >> 32 & 15) << 56 | GANTRY_EV_MODE_NONE;
}

static int64_t ns_of(int64_t ticks)
{
	return (int64_t)(gantry_us_of_ticks((uint64_t)llabs(ticks)) * 1e3) * (ticks < 0 ? -1 : 1);
}

/* A launch that began sooner after its call than the one that is known. */
static void take_anchor(const struct comm_work *w, struct anchor *a)
{
	for (uint32_t i = 0; i < w->ntimes; i++) {
		uint64_t dev = READ(w->times_host[i].begin);

		if (dev && (!a->found || (int64_t)(dev - a->dev) < ns_of((int64_t)(w->launched - a->ticks))))
			*a = (struct anchor){dev, w->launched, 1};
	}
}

static uint64_t ticks_of(const struct anchor *a, uint64_t dev)
{
	if (!a->found)
		return dev; /* the host's are ticks */
	return dev >= a->dev ? a->ticks + gantry_ticks_of_ns(dev - a->dev)
			     : a->ticks - gantry_ticks_of_ns(a->dev - dev);
}

static void put_events(const struct comm_work *w, const struct anchor *a)
{
	int over = !comm_work_busy(w);

	for (uint32_t i = 0; i < w->ntimes; i++) {
		const struct gantry_xfer_time *t = &w->times_host[i];
		uint64_t begin = READ(t->begin), end = READ(t->end), b = t->op | READ(t->step) << 32;
		enum gantry_event_kind kind = t->conn >= TRACKS ? GANTRY_EV_COLL : GANTRY_EV_KERNEL_OP;

		if (!t->conn || !begin)
			continue;
		gantry_event_put_at(ticks_of(a, begin), kind, t->conn, b, t->packed);
		if (end)
			gantry_event_put_at(ticks_of(a, end), kind, t->conn, b, t->packed | GANTRY_EV_OP_END);
		else if (over) /* the kernel left it behind: an abort, or an error */
			gantry_event_put(kind, t->conn, b, t->packed | GANTRY_EV_OP_END | GANTRY_EV_OP_CUT);
	}
}

void comm_times_collect(struct gantry_comm *comm, int all)
{
	struct comm_launches *l = comm->launches;
	struct anchor a = {0};

	for (int i = 0; i < COMM_WORKS && gantry_traits(comm->device)->has_own_clock; i++)
		take_anchor(&l->works[i], &a);
	for (uint64_t i = 0; i < COMM_WORKS; i++) {
		struct comm_work *w = &l->works[(l->count + i) % COMM_WORKS];

		if (!w->ntimes || (!all && comm_work_busy(w)))
			continue;
		ASSERT(w->times_host);
		put_events(w, &a);
		w->ntimes = 0;
	}
}

static void put_tracks(const struct gantry_comm *comm, FILE *f)
{
	struct gantry_json j;

	for (int ch = 0; comm->coll->track && ch < comm->nchannels; ch++) {
		gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
		gantry_json_str(&j, "kind", "track");
		gantry_json_uint(&j, "track", comm->coll->track + (uint32_t)ch);
		gantry_json_int(&j, "channel", ch);
		gantry_json_end(&j);
	}
}

static void put_conns(void *comm, FILE *f)
{
	struct gantry_json j;

	COMM_EACH_END (comm, e) {
		if (!e.conn)
			continue;
		gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
		gantry_json_str(&j, "kind", "conn");
		gantry_json_uint(&j, "conn", e.conn->id);
		gantry_json_int(&j, "peer", e.peer);
		gantry_json_str(&j, "dir", e.send ? "send" : "recv");
		gantry_json_int(&j, "channel", e.channel);
		gantry_json_str(&j, "transport", e.transport ? e.transport->name : "");
		gantry_json_int(&j, "proxied", e.proxied);
		gantry_json_uint(&j, "calls", e.calls);
		gantry_json_uint(&j, "bytes", e.bytes);
		gantry_json_uint(&j, "copies", e.copies);
		comm_json_steps(&j, e.by);
		comm_json_waited(&j, e.waited_ns);
		gantry_json_end(&j);
	}
	put_tracks(comm, f);
}

void comm_trace_write(struct gantry_comm *comm)
{
	struct gantry_trace_who owner = {.comm = comm->id,
				       .rank = comm->rank,
				       .nranks = comm->nranks,
				       .host = comm->infos ? comm->infos[comm->rank].host_name : "",
				       .clock_offset_ns = comm->ctl ? gantry_ctl_clock_offset(comm->ctl) : 0,
				       .put_conns = put_conns,
				       .put_what = comm_put_what,
				       .ctx = comm};

	if (!comm->peers)
		return;
	comm_times_collect(comm, 1);
	gantry_trace_write(&owner);
}
