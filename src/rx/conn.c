/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection: its life, its progress, and its end.
 *
 * Heads travel with tag 0 of each direction. They are small, or inline, so the network takes them at once and keeps
 * their order.
 *
 * A pipeline has no thread of its own, so the thread that waits for an op looks for ops that do not move: after a pass
 * that moved nothing. Time without calls does not count as a stall.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/stall.h"
#include "base/text.h"
#include "rx/rx.h"

/* Closing: time for the network to take what the peer waits for. And when the peer has closed: time for its earlier
 * messages, which may be on another link than the goodbye. */
enum { LAST_WORDS_NS = 100000000, LAST_HEADS_NS = 1000000000 };
enum { HEAD_ROOM = RX_HEAD_SIZE + RX_INLINE_MAX, HEADS_PER_PASS = 4 * RX_HEADS_IN };
enum { WAITS_MAX = 64, AWAY_NS = 1000000000 }; /* of stall reports */

/* ---- heads ---- */

static gantry_result heads_out(struct gantry_rx_conn *c, int *ret_moved)
{
	struct gantry_net *net = c->rx->net;
	int done = 1;

	gantry_list_each_entry (o, &c->outgoing, struct rx_out, node) {
		if (o->request)
			continue;
		TRY_NOW(net->ops->isend(net, c->out.comm, o->data, o->size, RX_TAG_HEAD, NULL, &o->request));
		if (!o->request)
			break;
	}
	while (done && !gantry_list_empty(&c->outgoing)) {
		struct rx_out *o = gantry_container(c->outgoing.next, struct rx_out, node);

		if (!o->request)
			break;
		TRY_NOW(net->ops->test(net, o->request, &done, NULL));
		if (!done)
			break;
		ASSERT(c->inline_out >= o->inlined && c->answers_out >= o->answer);
		c->inline_out -= o->inlined;
		c->answers_out -= o->answer;
		gantry_list_remove(&o->node);
		free(o);
		*ret_moved = 1;
	}
	return GANTRY_OK;
}

gantry_result rx_head_send(struct gantry_rx_conn *c, const struct rx_head *h, const struct rx_batch *inlined)
{
	size_t payload = inlined ? (size_t)inlined->bytes : 0;
	struct rx_out *o = malloc(sizeof(*o) + RX_HEAD_SIZE + payload);
	struct rx_cursor start = {0, 0, 0};
	int moved;

	if (c->leaving != GANTRY_OK) { /* the last heads are read, and nothing leaves any more: answers would pile up */
		free(o);
		return GANTRY_OK;
	}
	if (!o)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a control message of %zu bytes", payload);
	if (c->answering && c->answers_out == RX_ANSWERS_OUT) {
		free(o);
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s is not reading; %d replies are queued", c->peer, RX_ANSWERS_OUT);
	}
	o->request = NULL;
	o->size = RX_HEAD_SIZE + payload;
	o->inlined = payload != 0;
	c->inline_out += o->inlined;
	o->answer = c->answering;
	c->answers_out += o->answer;
	rx_head_encode(h, o->data);
	if (inlined)
		rx_batch_gather(inlined, start, o->data + RX_HEAD_SIZE, payload);
	gantry_list_append(&c->outgoing, &o->node);
	return heads_out(c, &moved);
}

/* Keeps RX_HEADS_IN receives posted, in the order of the ring. */
static gantry_result post_heads(struct gantry_rx_conn *c)
{
	struct gantry_net *net = c->rx->net;

	ASSERT(c->heads_posted - c->heads_next <= RX_HEADS_IN);
	while (c->heads_posted - c->heads_next < RX_HEADS_IN) {
		uint32_t i = c->heads_posted % RX_HEADS_IN;
		void *data = c->head_memory + (size_t)i * HEAD_ROOM, *mr = NULL;
		size_t size = HEAD_ROOM;
		int tag = RX_TAG_HEAD;

		c->heads[i] = GANTRY_NET_OPTIONAL_RECV_COMPLETION; /* takes no slot of the unpack queue */
		TRY_NOW(net->ops->irecv(net, c->in.comm, 1, &data, &size, &tag, &mr, &c->heads[i]));
		if (!c->heads[i])
			break;
		c->heads_posted++;
	}
	return GANTRY_OK;
}

/* The next head, in a buffer that is valid until the next call. *ret_head NULL: none has come. */
static gantry_result take_head(struct gantry_rx_conn *c, const uint8_t **ret_head, int *ret_size)
{
	struct gantry_net *net = c->rx->net;
	uint32_t i = c->heads_next % RX_HEADS_IN;
	gantry_result posted;
	int done = 0;

	ASSERT(c->head_memory);
	*ret_head = NULL;
	/* Fails once the peer has closed. The receives posted before may hold heads all the same. */
	posted = post_heads(c);
	if (c->heads_next == c->heads_posted)
		return posted;
	TRY_NOW(net->ops->test(net, c->heads[i], &done, ret_size));
	if (!done)
		return posted;
	c->heads_next++; /* whatever becomes of it: its request is gone */
	*ret_head = c->head_memory + (size_t)i * HEAD_ROOM;
	return GANTRY_OK;
}

static gantry_result heads_in(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	gantry_result r;
	const uint8_t *head;
	int size;

	for (int n = 0; n < HEADS_PER_PASS; n++) {
		TRY_NOW(take_head(c, &head, &size));
		if (!head)
			break;
		*ret_moved = 1;
		ASSERT(!c->answering);
		c->answering = 1;
		r = rx_transfer_hear(c, head, (size_t)size, false);
		c->answering = 0;
		if (r != GANTRY_OK)
			return r;
	}
	return GANTRY_OK;
}

/* The connection is about to fail: reads what the peer has reported about this side's sends. 0: more may come. */
static int heads_last(struct gantry_rx_conn *c) REQUIRES(rx_mu)
{
	const uint8_t *head;
	int size;

	for (int n = 0; c->head_memory && take_head(c, &head, &size) == GANTRY_OK; n++) {
		if (!head || n == RX_ANSWERS_OUT) /* bounded, whatever a peer keeps on sending */
			return 0;
		if (rx_transfer_hear(c, head, (size_t)size, true) != GANTRY_OK)
			break;
	}
	return 1;
}

/* ---- life ---- */

gantry_result rx_conn_create(struct gantry_rx *rx, uint64_t id, struct gantry_rx_conn **ret_conn)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx_conn *c = calloc(1, sizeof(*c));
	struct gantry_net_config config = {
		.traffic_class = GANTRY_NET_UNDEF, .own_reports = 1, .standing_receives = 1, .device = rx->device};

	if (!c)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection");
	c->rx = rx;
	c->id = id;
	c->net_dev = -1;
	gantry_list_init(&c->node);
	gantry_list_init(&c->outgoing);
	gantry_list_init(&c->early);
	for (int i = 0; i < 2; i++) {
		struct rx_side *s = i ? &c->in : &c->out;

		gantry_list_init(&s->waiting);
		gantry_list_init(&s->offered);
		gantry_list_init(&s->data);
	}
	if (rx->path == GANTRY_RX_PATH_UNPACK)
		config.unpack = GANTRY_NET_UNPACK_KERNEL;
	else if (rx->path == GANTRY_RX_PATH_EMULATED)
		config.unpack = GANTRY_NET_UNPACK_EMULATED;
	TRY(rx->net->ops->init(rx->net, id, &config, &c->ctx));
	*ret_conn = c;
	c = NULL;
out:
	rx_conn_destroy(c);
	return r;
}

static void describe_path(struct gantry_rx_conn *c)
{
	struct gantry_rx *rx = c->rx;

	if (rx->path == GANTRY_RX_PATH_HOST)
		snprintf(c->path, sizeof(c->path), "host: %s", rx->path_reason);
	else if (!c->unpack)
		snprintf(c->path, sizeof(c->path), "host: the network could not use %s with %s",
			 rx->path == GANTRY_RX_PATH_UNPACK ? "devmem TCP" : "the emulated NIC", c->peer);
	else
		snprintf(c->path, sizeof(c->path), "unpack (%s): %s",
			 rx->path == GANTRY_RX_PATH_UNPACK ? "devmem TCP" : "emulated NIC", rx->path_reason);
}

gantry_result rx_conn_start(struct gantry_rx_conn *c)
{
	struct gantry_rx *rx = c->rx;

	ASSERT_HELD(&rx->mu);
	ASSERT(c->in.comm && c->out.comm && !c->head_memory);
	if (c->device_handle.type == GANTRY_NET_DEVICE_UNPACK && c->device_handle.handle) {
		c->unpack = c->device_handle.handle;
		TRY_NOW(rx->device->ops->alloc(rx->device, rx->message, &c->landing));
		TRY_NOW(rx->net->ops->reg_mr(rx->net, c->in.comm, c->landing, rx->message, GANTRY_NET_PTR_CUDA,
					     &c->landing_mr));
		TRY_NOW(devmem_pool_get(rx->device,
					rx->path == GANTRY_RX_PATH_UNPACK ? GANTRY_NET_UNPACK_KERNEL
									  : GANTRY_NET_UNPACK_EMULATED,
					&c->pool));
	}
	/* Heads must get through whatever becomes of data: a receiver that is ending a transfer posts nothing until it
	 * has received the number of messages. */
	TRY_NOW(rx->net->ops->hold(rx->net, c->out.comm, RX_TAG_DATA));
	TRY_NOW(rx->net->ops->hold(rx->net, c->in.comm, RX_TAG_DATA));
	c->vec = 1;
	describe_path(c);
	c->head_memory = malloc((size_t)RX_HEADS_IN * HEAD_ROOM);
	if (!c->head_memory)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the heads of a connection");
	TRY_NOW(post_heads(c));
	gantry_list_append(&rx->conns, &c->node);
	rx_stages_reserve(rx);
	LOG_INFO(RX, "connected to %s, path %s, by %s", c->peer, c->path, COUNT_TEXT(c->nics, "interface"));
	return GANTRY_OK;
}

void rx_conn_forget_region(struct gantry_rx_conn *c, uint64_t region)
{
	for (size_t i = 0; i < c->nmrs; i++) {
		if (c->mrs[i].region != region)
			continue;
		if (c->mrs[i].mr && c->out.comm)
			c->rx->net->ops->dereg_mr(c->rx->net, c->out.comm, c->mrs[i].mr);
		c->mrs[i] = c->mrs[--c->nmrs];
		break;
	}
}

/* ---- the end ---- */

/* Nothing touches its memory: its result, if the peer has reported it. */
static void conclude_send(struct gantry_rx_op *op) REQUIRES(rx_mu)
{
	if (op->taken && !op->ending) {
		rx_count(&op->rx->counters.sent_bytes, op->total - op->bytes);
		op->bytes = op->total;
		rx_op_done(op, GANTRY_OK, "%s", "");
	} else if (op->by_peer) {
		rx_op_cancelled(op);
	}
}

/* Whether one of them failed by that. */
static int conclude_ops(struct gantry_list *list, gantry_result r, const char *text) REQUIRES(rx_mu)
{
	int failed = 0;

	while (!gantry_list_empty(list)) {
		struct gantry_rx_op *op = gantry_container(list->next, struct gantry_rx_op, node);

		ASSERT(!op->touching); /* shut_conn() came before */
		if (op->send)
			conclude_send(op);
		rx_op_done(op, r, "%s", text);
		failed |= op->result == r;
		rx_op_over(op);
	}
	return failed;
}

static void drop_flights(struct gantry_rx_conn *c, struct rx_side *s)
{
	for (; s->head != s->tail; s->head++) {
		struct rx_flight *f = rx_flight_at(s, s->head);

		ASSERT(f->op->touching >= f->touches);
		rx_stage_put(c->rx, s, f->stage);
		rx_descs_put(&c->rx->descs, f->descs);
		f->stage = NULL;
		f->descs = NULL;
		f->op->touching -= f->touches;
	}
}

static void free_nodes(struct gantry_rx_conn *c)
{
	gantry_list_each_safe (pos, &c->outgoing)
		free(gantry_container(pos, struct rx_out, node));
	gantry_list_each_safe (pos, &c->early)
		free(gantry_container(pos, struct rx_early, node));
	gantry_list_init(&c->outgoing);
	gantry_list_init(&c->early);
}

/*
 * The device first: kernels end by themselves, and write to the user's memory until then. Then the network: closing a
 * comm gives all buffers back at once. After that nothing touches the memory of any op.
 */
static void shut_conn(struct gantry_rx_conn *c)
{
	struct gantry_rx *rx = c->rx;
	struct gantry_net *net = rx->net;

	if (rx->in_stream && rx_flights(&c->in))
		rx->device->ops->stream_sync(rx->device, rx->in_stream);
	if (rx->out_stream && rx_flights(&c->out))
		rx->device->ops->stream_sync(rx->device, rx->out_stream);
	if (c->landing_mr)
		net->ops->dereg_mr(net, c->in.comm, c->landing_mr);
	c->landing_mr = NULL;
	for (; c->nmrs; c->nmrs--)
		if (c->mrs[c->nmrs - 1].mr)
			net->ops->dereg_mr(net, c->out.comm, c->mrs[c->nmrs - 1].mr);
	if (c->out.comm)
		net->ops->close_send(net, c->out.comm);
	if (c->in.comm)
		net->ops->close_recv(net, c->in.comm);
	c->out.comm = c->in.comm = NULL;
	drop_flights(c, &c->out);
	drop_flights(c, &c->in);
	free_nodes(c);
}

void rx_conn_fail(struct gantry_rx_conn *c, gantry_result r, const char *fmt, ...)
{
	ASSERT_HELD(&c->rx->mu);
	va_list args;
	int missed = 0;

	if (c->error != GANTRY_OK)
		return;
	c->error = r;
	va_start(args, fmt);
	vsnprintf(c->error_text, sizeof(c->error_text), fmt, args);
	va_end(args);
	if (r != GANTRY_ERR_PROTOCOL) /* the word of a peer that is at fault counts for nothing */
		heads_last(c);
	shut_conn(c);
	for (int i = 0; i < 2; i++) {
		struct rx_side *s = i ? &c->in : &c->out;

		missed |= conclude_ops(&s->waiting, r, c->error_text);
		missed |= conclude_ops(&s->offered, r, c->error_text);
		missed |= conclude_ops(&s->data, r, c->error_text);
	}
	/* That a peer closes is news only to operations that wait for it, and the network does not know of those. */
	if (missed && r == GANTRY_ERR_PEER_CLOSED)
		gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__, "%s", c->error_text);
	RX_DEBUG(c->rx, "%s: over: %s", c->peer, c->error_text);
}

void rx_conn_destroy(struct gantry_rx_conn *c)
{
	struct gantry_rx *rx;

	if (!c)
		return;
	rx = c->rx;
	rx_conn_fail(c, GANTRY_ERR_ABORTED, "the connection with %s was closed on this side", c->peer);
	for (uint32_t i = 0; i < RX_DEPTH_MAX; i++) {
		free(c->in.flights[i].iov);
		free(c->out.flights[i].iov);
		rx->device->ops->event_destroy(rx->device, c->out.flights[i].event);
		rx->device->ops->event_destroy(rx->device, c->in.flights[i].event);
	}
	if (c->ctx)
		rx->net->ops->finalize(rx->net, c->ctx);
	rx_unpacks_forget(c);
	devmem_pool_put(c->pool);
	rx->device->ops->free(rx->device, c->landing);
	gantry_list_remove(&c->node);
	free(c->mrs);
	free(c->head_memory);
	free(c);
}

/* ---- progress ---- */

static gantry_result step_conn(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	TRY_NOW(heads_in(c, ret_moved));
	TRY_NOW(rx_recv_progress(c, ret_moved));
	TRY_NOW(rx_send_progress(c, ret_moved));
	return heads_out(c, ret_moved);
}

/* The peer has closed or is gone. Its goodbye in one direction may come before its messages in the other. */
static int still_hearing(struct gantry_rx_conn *c, gantry_result r) REQUIRES(rx_mu)
{
	if (r != GANTRY_ERR_PEER_CLOSED && r != GANTRY_ERR_PEER_LOST)
		return 0;
	if (c->leaving == GANTRY_OK)
		c->leaving_until = gantry_now_ns() + LAST_HEADS_NS;
	c->leaving = r;
	return !heads_last(c) && rx_send_unanswered(c) && gantry_now_ns() < c->leaving_until;
}

int rx_conn_progress(struct gantry_rx_conn *c)
{
	gantry_result r = c->leaving;
	int moved = 0;

	ASSERT_HELD(&c->rx->mu);
	if (c->error != GANTRY_OK)
		return 0;
	if (r == GANTRY_OK)
		r = step_conn(c, &moved);
	if (r == GANTRY_OK)
		return moved;
	if (c->leaving == GANTRY_OK) {
		const char *why = gantry_last_error();

		snprintf(c->leaving_text, sizeof(c->leaving_text), "%s: %s", c->peer,
			 why[0] ? why : gantry_result_text(r));
	}
	if (!still_hearing(c, r)) {
		rx_conn_fail(c, r, "%s", c->leaving_text);
		moved = 1;
	}
	return moved;
}

static void see_ops(struct gantry_stall_wait *w, const struct gantry_list *ops)
{
	gantry_list_each_entry (op, ops, struct gantry_rx_op, node) {
		if (!w->requests++) {
			w->tag = op->tag;
			w->bytes = op->batch.bytes;
			w->waits_for = op->frags && op->touching ? "release"
				       : op->phase == RX_LOCAL	 ? "kernel"
								 : "peer";
		}
	}
}

static void tell_stall(struct gantry_rx *rx, uint64_t now)
{
	struct gantry_stall_wait waits[WAITS_MAX];
	size_t n = 0;

	gantry_list_each_entry (c, &rx->conns, struct gantry_rx_conn, node) {
		for (int send = 0; send < 2 && n < WAITS_MAX; send++) {
			struct rx_side *s = send ? &c->out : &c->in;
			struct gantry_stall_wait *w = &waits[n];

			*w = (struct gantry_stall_wait){.send = send};
			snprintf(w->peer, sizeof(w->peer), "%s", s->comm ? gantry_net_tcp_peer(s->comm) : c->peer);
			w->wait_ns = (uint64_t)(gantry_us_of_ticks(now - rx->stall.since) * 1e3);
			see_ops(w, &s->data);
			see_ops(w, &s->offered);
			see_ops(w, &s->waiting);
			n += w->requests != 0;
		}
	}
	if (n)
		gantry_stall_tell("rx", waits, n, 0);
}

/* After each pass: a report if ops have not moved for GANTRY_STALL, while a thread waits for them. */
static void look_for_stall(struct gantry_rx *rx, int moved)
{
	uint64_t now;

	if (!rx->stall.after)
		return;
	now = gantry_ticks();
	if (moved || !rx->stall.since || now - rx->stall.looked > gantry_ticks_of_ns(AWAY_NS)) {
		rx->stall.since = now;
		rx->stall.told = 0;
	} else if (now - rx->stall.since >= rx->stall.after && !rx->stall.told) {
		rx->stall.told = 1;
		tell_stall(rx, now);
	}
	rx->stall.looked = now;
}

int rx_progress(struct gantry_rx *rx)
{
	int moved = 0;

	ASSERT_HELD(&rx->mu);
	rx_unpacks_reap(rx);
	gantry_list_each (pos, &rx->conns)
		moved |= rx_conn_progress(gantry_container(pos, struct gantry_rx_conn, node));
	look_for_stall(rx, moved);
	return moved;
}

/* ---- public ---- */

/* What the peer waits to hear, above all that its transfers were taken: the network takes it at once, unless a peer
 * that does nothing has filled its window. */
static void say_last(struct gantry_rx_conn *c) REQUIRES(rx_mu)
{
	uint64_t end = gantry_now_ns() + LAST_WORDS_NS;
	int moved;

	while (c->error == GANTRY_OK && !gantry_list_empty(&c->outgoing) && gantry_now_ns() < end)
		if (heads_out(c, &moved) != GANTRY_OK)
			break;
}

void gantry_rx_conn_close(struct gantry_rx_conn *conn)
{
	struct gantry_rx *rx;

	if (!conn)
		return;
	rx = conn->rx;
	rx_mu_lock(&rx->mu);
	say_last(conn);
	rx_conn_destroy(conn);
	rx_mu_unlock(&rx->mu);
}

const char *gantry_rx_conn_path(const struct gantry_rx_conn *conn)
{
	return conn->path;
}

const char *gantry_rx_conn_peer(const struct gantry_rx_conn *conn)
{
	return conn->peer;
}

uint64_t gantry_rx_conn_peer_epoch(const struct gantry_rx_conn *conn)
{
	return conn->peer_epoch;
}

gantry_result gantry_rx_conn_error(struct gantry_rx_conn *conn, char *text, size_t len)
{
	gantry_result r;

	rx_mu_lock(&conn->rx->mu);
	r = conn->error;
	if (text && len)
		snprintf(text, len, "%s", conn->error_text);
	rx_mu_unlock(&conn->rx->mu);
	return r;
}
