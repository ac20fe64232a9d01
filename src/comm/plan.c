/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer becomes work: xfers for the kernel's blocks and operations for the proxy. What both ends must agree on
 * (protocol, split over channels, step size) is computed from what both know: the size, the settings compared at init,
 * and what the connection settled. What is each end's own affair (copy or hand over) is not.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "comm/report.h"

static uint8_t choose_proto(const struct gantry_conn *conn, uint64_t bytes)
{
	const struct gantry_params *p = gantry_params();
	uint8_t asked = (uint8_t)(p->proto - PARAM_PROTO_SIMPLE);

	if (!bytes)
		return GANTRY_PROTO_SIMPLE;
	if (p->proto != PARAM_PROTO_AUTO)
		return conn->buffs[asked] ? asked : GANTRY_PROTO_SIMPLE;
	if (bytes <= p->ll_max && conn->buffs[GANTRY_PROTO_LL])
		return GANTRY_PROTO_LL;
	if (bytes <= p->ll128_max && conn->buffs[GANTRY_PROTO_LL128])
		return GANTRY_PROTO_LL128;
	return GANTRY_PROTO_SIMPLE;
}

/* Simple over a proxy: both ends cut alike. Between kernels the sender cuts as it likes. */
static uint64_t choose_step(const struct gantry_connector *c, uint8_t proto, int ptr)
{
	if (proto != GANTRY_PROTO_SIMPLE)
		return c->conn.step_bytes[proto];
	if (c->max_step)
		return c->max_step;
	return ptr ? gantry_params()->ptr_step : c->conn.step_bytes[proto];
}

static int may_ptr(struct gantry_comm *comm, struct comm_conn *cc, const struct comm_call *call, uint8_t proto,
		   uint64_t *ret_place)
{
	const struct gantry_params *p = gantry_params();

	if (!p->ptr || proto != GANTRY_PROTO_SIMPLE || !call->bytes || call->bytes < p->ptr_min || !cc->c.sharing)
		return 0;
	/* Between kernels the receiver reads where the slot says. */
	if (!call->send && !(cc->c.conn.flags & GANTRY_CONN_PROXIED && cc->c.conn.offers))
		return 0;
	return comm_memory_place(comm, cc, call, ret_place);
}

/* One part of a call on one channel. op: NULL if the end is not proxied. */
static void plan_part(struct gantry_comm *comm, struct comm_conn *cc, const struct comm_call *call, uint64_t from,
		      uint64_t bytes, struct gantry_xfer *x, struct gantry_proxy_op *op)
{
	uint64_t place = 0;

	memset(x, 0, sizeof(*x));
	x->conn = cc->dev;
	x->buf = call->buf + from;
	x->bytes = bytes;
	x->send = (uint8_t)call->send;
	x->proto = choose_proto(&cc->c.conn, bytes);
	x->ptr = (uint8_t)may_ptr(comm, cc, call, x->proto, &place);
	x->place = place + from;
	x->step_bytes = choose_step(&cc->c, x->proto, x->ptr);
	x->turn = cc->turns;
	store_relaxed(&cc->turns, x->turn + 1); /* reports look */
	comm_trace_xfer(cc, comm->op_ids, x);
	if (!op)
		return;
	op->conn = cc->c.proxy;
	op->bytes = bytes;
	op->step_bytes = x->step_bytes;
	op->nsteps = bytes ? (bytes + x->step_bytes - 1) / x->step_bytes : 1;
	op->slice_steps = op->chunk_steps = 1;
	op->proto = x->proto;
	op->ptr = x->ptr;
	op->exact = 1;
	op->id = comm->op_ids;
}

static uint32_t parts_of(const struct gantry_comm *comm, uint64_t bytes)
{
	uint64_t per = gantry_params()->split_min, n;

	if (comm->nchannels == 1 || bytes < 2 * per)
		return 1;
	n = bytes / per;
	return n < (uint64_t)comm->nchannels ? (uint32_t)n : (uint32_t)comm->nchannels;
}

static struct comm_conn *conns_of(const struct comm_call *call)
{
	struct comm_peer *p = &call->comm->peers[call->peer];

	return call->send ? p->send : p->recv;
}

/* Parts are multiples of 4 KiB, so that they stay aligned as the buffer is. */
static uint64_t part_bytes(uint64_t bytes, uint32_t parts)
{
	return parts == 1 ? bytes : ((bytes + parts - 1) / parts + 4095) / 4096 * 4096;
}

/* The channel of a part: both ends count from the same one, and pairs differ. */
static uint32_t channel_of(const struct comm_call *call, uint32_t part)
{
	return ((uint32_t)(call->comm->rank + call->peer) + part) % (uint32_t)call->comm->nchannels;
}

struct count {
	uint32_t xfers, ops;
	uint32_t per_channel[COMM_CHANNELS_MAX];
};

static void count_calls(const struct comm_call *calls, size_t n, struct count *c)
{
	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < n; i++) {
		uint32_t parts = parts_of(calls[i].comm, calls[i].bytes);

		if (calls[i].peer == calls[i].comm->rank)
			continue;
		c->xfers += parts;
		for (uint32_t p = 0; p < parts; p++) {
			uint32_t ch = channel_of(&calls[i], p);

			c->per_channel[ch]++;
			c->ops += conns_of(&calls[i])[ch].c.proxy != NULL;
		}
	}
}

/* The first call from `at` on that is a rank's send to itself, or its receive; n: none. */
static size_t next_to_self(const struct comm_call *calls, size_t at, size_t n, int send)
{
	while (at < n && !(calls[at].peer == calls[at].comm->rank && calls[at].send == send))
		at++;
	return at;
}

/* A rank's messages to itself: the k-th send goes to the k-th receive. */
static gantry_result copy_to_self(struct gantry_comm *comm, const struct comm_call *calls, size_t n)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *d = comm->device;
	size_t s = 0, v = 0;

	for (;;) {
		s = next_to_self(calls, s, n, 1);
		v = next_to_self(calls, v, n, 0);
		if (s == n && v == n)
			break;
		if (s == n || v == n)
			FAIL(GANTRY_ERR_USAGE, "rank %d %s itself without the other half in the same group", comm->rank,
			     s < n ? "sends to" : "receives from");
		if (calls[s].bytes > calls[v].bytes)
			FAIL(GANTRY_ERR_SIZE, "rank %d sends itself %llu bytes and receives %llu", comm->rank,
			     (unsigned long long)calls[s].bytes, (unsigned long long)calls[v].bytes);
		if (calls[s].bytes && calls[s].buf != calls[v].buf)
			TRY(d->ops->copy_async(d, calls[v].stream, calls[v].buf, calls[s].buf, calls[s].bytes));
		s++;
		v++;
	}
out:
	return r;
}

static void fill(struct gantry_comm *comm, const struct comm_call *calls, size_t n, const struct count *c,
		 struct comm_work *w, struct gantry_proxy_op *op)
{
	uint32_t at[COMM_CHANNELS_MAX], sum = 0;

	for (int ch = 0; ch < comm->nchannels; ch++) {
		w->first_host[ch] = at[ch] = sum;
		sum += c->per_channel[ch];
	}
	w->first_host[comm->nchannels] = sum;
	for (size_t i = 0; i < n; i++) {
		uint32_t parts = parts_of(comm, calls[i].bytes);
		uint64_t size = part_bytes(calls[i].bytes, parts), from = 0;

		if (calls[i].peer == comm->rank)
			continue;
		comm->op_ids++;
		for (uint32_t p = 0; p < parts; p++) {
			uint32_t ch = channel_of(&calls[i], p);
			struct comm_conn *cc = &conns_of(&calls[i])[ch];
			uint64_t left = calls[i].bytes - from, bytes = left < size ? left : size;
			struct gantry_xfer *x = &w->xfers_host[at[ch]];

			plan_part(comm, cc, &calls[i], from, bytes, x, cc->c.proxy ? op : NULL);
			if (comm->traced)
				comm_times_plan(&w->times_host[at[ch]], cc, comm->op_ids, x);
			at[ch]++;
			from += bytes;
			op = cc->c.proxy && op ? op->next : op;
		}
	}
}

gantry_result comm_enqueue(struct gantry_comm *comm, const struct comm_call *calls, size_t n)
{
	gantry_result r = GANTRY_OK;
	struct gantry_proxy_op *first = NULL, *last;
	struct comm_work *w;
	struct count c;

	TRY(comm_check(comm));
	for (size_t i = 1; i < n; i++) {
		if (calls[i].stream != calls[0].stream)
			FAIL(GANTRY_ERR_USAGE, "calls of one group and communicator use one stream");
	}
	count_calls(calls, n, &c);
	TRY(copy_to_self(comm, calls, n));
	if (!c.xfers)
		goto out;
	TRY(comm_work_get(comm, c.xfers, calls[0].stream, &w));
	if (c.ops)
		TRY(gantry_proxy_ops_get(comm->proxy, c.ops, &first));
	fill(comm, calls, n, &c, w, first);
	if (first) {
		for (last = first; last->next; last = last->next)
			;
		gantry_proxy_append(comm->proxy, first, last);
	}
	TRY(comm_work_launch(comm, w, c.xfers, (uint32_t)comm->nchannels, calls[0].stream));
out:
	if (r != GANTRY_OK && r != GANTRY_ERR_USAGE && r != GANTRY_ERR_SIZE)
		comm_fail(comm, r, comm->rank, gantry_last_error());
	return r;
}
