/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From gantry_send and gantry_recv to a launch (launches.h), in the order of this file:
 *
 *   plans    a transfer becomes xfers for the kernel's blocks and operations for the proxy. What both ends must agree on
 *            (protocol, split over channels, step size) is computed from what both know: the size, the settings compared
 *            at init, and what the connection settled. What is each end's own affair (copy or hand over) is not
 *   calls    gantry_send, gantry_recv
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/launches.h"
#include "comm/report.h"

/* ---- plans ---- */

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

static int may_ptr(struct gantry_comm *comm, struct comm_conn *cc, const struct comm_transfer *t, uint8_t proto,
		   uint64_t *ret_place)
{
	const struct gantry_params *p = gantry_params();

	if (!p->ptr || proto != GANTRY_PROTO_SIMPLE || !t->bytes || t->bytes < p->ptr_min || !cc->c.sharing)
		return 0;
	/* Between kernels the receiver reads where the slot says. */
	if (!t->send && !(cc->c.conn.flags & GANTRY_CONN_PROXIED && cc->c.conn.offers))
		return 0;
	return comm_memory_place(comm, cc, t->buf, t->bytes, ret_place);
}

/* One part of a call on one channel. op: NULL if the end is not proxied. */
static void plan_part(struct gantry_comm *comm, struct comm_conn *cc, const struct comm_transfer *t, uint64_t from,
		      uint64_t bytes, struct gantry_xfer *x, struct gantry_proxy_op *op)
{
	uint64_t place = 0;

	memset(x, 0, sizeof(*x));
	x->conn = cc->dev;
	x->buf = t->buf + from;
	x->bytes = bytes;
	x->send = (uint8_t)t->send;
	x->coll = t->number;
	x->proto = choose_proto(&cc->c.conn, bytes);
	x->ptr = (uint8_t)may_ptr(comm, cc, t, x->proto, &place);
	x->place = place + from;
	x->step_bytes = choose_step(&cc->c, x->proto, x->ptr);
	store_relaxed(&cc->turns, cc->turns + 1); /* reports look */
	comm_trace_xfer(cc, comm->launches->op_ids, x);
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
	op->id = comm->launches->op_ids;
}

static uint32_t parts_of(const struct gantry_comm *comm, uint64_t bytes)
{
	uint64_t per = gantry_params()->split_min, n;

	if (comm->nchannels == 1 || bytes < 2 * per)
		return 1;
	n = bytes / per;
	return n < (uint64_t)comm->nchannels ? (uint32_t)n : (uint32_t)comm->nchannels;
}

/* Parts are multiples of 4 KiB, so that they stay aligned as the buffer is. */
static uint64_t part_bytes(uint64_t bytes, uint32_t parts)
{
	return parts == 1 ? bytes : ((bytes + parts - 1) / parts + 4095) / 4096 * 4096;
}

/* The channel of a part: both ends count from the same one, and pairs differ. */
static uint32_t channel_of(const struct gantry_comm *comm, int peer, uint32_t part)
{
	return ((uint32_t)(comm->rank + peer) + part) % (uint32_t)comm->nchannels;
}

struct count {
	uint32_t xfers, ops, calls[2]; /* calls: receives and sends */
	uint32_t per_channel[COMM_CHANNELS_MAX];
};

static void count_calls(const struct gantry_comm *comm, const struct comm_call *calls, size_t n, struct count *c)
{
	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < n; i++) {
		const struct comm_transfer *t = &calls[i].transfer;
		uint32_t parts = parts_of(comm, t->bytes);

		if (t->peer == comm->rank)
			continue;
		c->calls[t->send]++;
		c->xfers += parts;
		for (uint32_t p = 0; p < parts; p++) {
			uint32_t ch = channel_of(comm, t->peer, p);

			c->per_channel[ch]++;
			c->ops += comm->peers[t->peer].conns[t->send][ch].c.proxy != NULL;
		}
	}
}

/* The first call from `at` on that is a rank's send to itself, or its receive; n: none. */
static size_t next_to_self(const struct comm_call *calls, size_t at, size_t n, int send)
{
	while (at < n && !(calls[at].transfer.peer == calls[at].comm->rank && calls[at].transfer.send == send))
		at++;
	return at;
}

/* A rank's messages to itself: the k-th send goes to the k-th receive. */
static gantry_result copy_to_self(struct gantry_comm *comm, const struct comm_call *calls, size_t n)
{
	struct gantry_device *d = comm->device;
	size_t s = 0, v = 0;

	for (;; s++, v++) {
		const struct comm_transfer *from, *to;

		s = next_to_self(calls, s, n, 1);
		v = next_to_self(calls, v, n, 0);
		if (s == n && v == n)
			return GANTRY_OK;
		if (s == n || v == n)
			FAIL_NOW(GANTRY_ERR_USAGE, "rank %d %s itself without the other half in the same group",
				 comm->rank, s < n ? "sends to" : "receives from");
		from = &calls[s].transfer;
		to = &calls[v].transfer;
		if (from->bytes > to->bytes)
			FAIL_NOW(GANTRY_ERR_SIZE, "rank %d sends itself %llu bytes and receives %llu", comm->rank,
				 (unsigned long long)from->bytes, (unsigned long long)to->bytes);
		if (from->bytes && from->buf != to->buf)
			TRY_NOW(d->ops->copy_async(d, calls[v].stream, to->buf, from->buf, from->bytes));
	}
}

/* Hints for the network. A peer that gets several messages of a group counts for each of them. */
static void hint_transfer(const struct gantry_comm *comm, const struct count *c, const struct comm_transfer *t,
			  uint32_t parts, struct gantry_proxy_op *op)
{
	uint32_t most = (uint32_t)comm->nranks - 1, n = c->calls[t->send] < most ? c->calls[t->send] : most;
	int func = t->func ? t->func : t->send ? GANTRY_NET_SEND : GANTRY_NET_RECV;

	op->called = GANTRY_PROXY_CALLED(func, GANTRY_NET_ALGO_NONE);
	op->channels = (uint8_t)parts;
	op->peers = n < UINT16_MAX ? (uint16_t)n : UINT16_MAX;
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
		const struct comm_transfer *t = &calls[i].transfer;
		uint32_t parts = parts_of(comm, t->bytes);
		uint64_t size = part_bytes(t->bytes, parts), from = 0;

		if (t->peer == comm->rank)
			continue;
		comm->launches->op_ids++;
		for (uint32_t p = 0; p < parts; p++) {
			uint32_t ch = channel_of(comm, t->peer, p);
			struct comm_conn *cc = &comm->peers[t->peer].conns[t->send][ch];
			uint64_t left = t->bytes - from, bytes = left < size ? left : size;
			struct gantry_xfer *x = &w->host.xfers[at[ch]];

			plan_part(comm, cc, t, from, bytes, x, cc->c.proxy ? op : NULL);
			if (cc->c.proxy && op)
				hint_transfer(comm, c, t, parts, op);
			if (w->times_host)
				comm_times_plan(&w->times_host[at[ch]], cc, comm->launches->op_ids, x);
			at[ch]++;
			from += bytes;
			op = cc->c.proxy && op ? op->next : op;
		}
	}
}

/* Plans, appends to the proxy, launches. */
gantry_result comm_enqueue_transfers(struct gantry_comm *comm, const struct comm_call *calls, size_t n)
{
	struct gantry_proxy_op *first = NULL;
	struct comm_work *w;
	struct count c;
	uint64_t bytes = 0;

	count_calls(comm, calls, n, &c);
	TRY_NOW(copy_to_self(comm, calls, n));
	if (!c.xfers)
		return GANTRY_OK;
	TRY_NOW(comm_work_get(comm, c.xfers * sizeof(struct gantry_xfer), calls[0].stream, &w));
	if (c.ops)
		TRY_NOW(gantry_proxy_ops_get(comm->proxy, c.ops, &first));
	fill(comm, calls, n, &c, w, first);
	for (size_t i = 0; i < n; i++)
		bytes += calls[i].transfer.bytes;
	return comm_launch_transfers(comm, w, c.xfers, first, first && comm_drives(comm, bytes));
}

/* ---- calls ---- */

static gantry_result check_transfer(const struct comm_call *call, size_t count, enum gantry_type type)
{
	const struct comm_transfer *t = &call->transfer;
	const char *what = t->send ? "gantry_send" : "gantry_recv";

	if (!call->comm || !call->stream)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %s is NULL", what, call->comm ? "stream" : "comm");
	TRY_NOW(comm_ready(call->comm, what));
	if ((unsigned)type >= GANTRY_TYPE_COUNT)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: there is no type %d", what, (int)type);
	if (t->peer < 0 || t->peer >= call->comm->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: peer %d of %s", what, t->peer,
			 COUNT_TEXT(call->comm->nranks, "rank"));
	if (count && !t->buf)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: buf is NULL (%zu elements)", what, count);
	if (count > GANTRY_SLOT_SIZE / coll_type_bytes(type))
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %zu elements are too many", what, count);
	return GANTRY_OK;
}

static gantry_result transfer(char *buf, size_t count, enum gantry_type type, int peer, int send,
			      struct gantry_comm *comm, struct gantry_stream *stream)
{
	struct comm_call call = {.comm = comm,
				 .stream = stream,
				 .kind = COMM_IS_TRANSFER,
				 .transfer = {.buf = buf, .peer = peer, .send = send}};
	gantry_result r = check_transfer(&call, count, type);

	if (r == GANTRY_OK)
		call.transfer.bytes = (uint64_t)count * coll_type_bytes(type);
	return comm_group_add(r, &call);
}

gantry_result gantry_send(const void *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
			  struct gantry_stream *stream)
{
	return transfer((char *)(uintptr_t)buf, count, type, peer, 1, comm, stream);
}

gantry_result gantry_recv(void *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
			  struct gantry_stream *stream)
{
	return transfer(buf, count, type, peer, 0, comm, stream);
}
