/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator's part of a trace: who it is, its connections, and the transfers that it hands to kernels.
 *
 * Numbers of connections. Events name a connection by one number per process. A proxied connection has that of its
 * proxy half; others are numbered here, from 2^31 on, so that the two never meet.
 */
#include "base/trace.h"
#include "base/atomic.h"
#include "base/event.h"
#include "base/json.h"
#include "comm/report.h"

enum { UNPROXIED = 1u << 31 };

uint32_t comm_trace_conn_id(const struct gantry_connector *c)
{
	static uint32_t last;

	return c->proxy ? c->proxy->id : UNPROXIED | (fetch_add_relaxed(&last, 1) + 1);
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

static void put_end(void *ctx, const struct comm_end *e)
{
	struct gantry_json j;

	if (!e->conn)
		return;
	gantry_json_begin(&j, ctx, GANTRY_JSON_TIGHT);
	gantry_json_str(&j, "kind", "conn");
	gantry_json_uint(&j, "conn", id_of(e->conn));
	gantry_json_int(&j, "peer", e->peer);
	gantry_json_str(&j, "dir", e->send ? "send" : "recv");
	gantry_json_int(&j, "channel", e->channel);
	gantry_json_str(&j, "transport", e->transport ? e->transport->name : "");
	gantry_json_int(&j, "proxied", e->proxied);
	gantry_json_uint(&j, "calls", e->calls);
	gantry_json_uint(&j, "bytes", e->bytes);
	gantry_json_uint(&j, "copies", e->copies);
	comm_json_steps(&j, e->by);
	gantry_json_end(&j);
}

static void put_conns(void *comm, FILE *f)
{
	comm_ends_each(comm, put_end, f);
}

void comm_trace_write(struct gantry_comm *comm)
{
	struct gantry_trace_who who = {.comm = comm->id,
				       .rank = comm->rank,
				       .nranks = comm->nranks,
				       .host = comm->infos ? comm->infos[comm->rank].host_name : "",
				       .clock_offset_ns = comm->ctl ? gantry_ctl_clock_offset(comm->ctl) : 0,
				       .put_conns = put_conns,
				       .ctx = comm};

	if (!comm->peers)
		return;
	comm_times_collect(comm, 1);
	gantry_trace_write(&who);
}
