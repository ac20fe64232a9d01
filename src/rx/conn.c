/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: its life, its progress, and its end. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "rx/rx.h"

/* Closing: for the network to take what the peer waits to hear. And the peer has closed: for what it said before, which
 * may be on another link than the goodbye. */
enum { LAST_WORDS_NS = 100000000, LAST_HEADS_NS = 1000000000 };

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

gantry_result rx_conn_start(struct gantry_rx_conn *c)
{
	struct gantry_rx *rx = c->rx;

	if (c->device_handle.type == GANTRY_NET_DEVICE_UNPACK && c->device_handle.handle) {
		c->unpack = c->device_handle.handle;
		TRY_NOW(rx->device->ops->alloc(rx->device, rx->message, &c->landing));
		TRY_NOW(rx->net->ops->reg_mr(rx->net, c->in.comm, c->landing, rx->message, GANTRY_NET_PTR_CUDA,
					     &c->landing_mr));
	}
	/* Heads must get through whatever becomes of data: a receiver that is ending a transfer posts nothing until it
	 * has heard how many messages there are. */
	TRY_NOW(rx->net->ops->hold(rx->net, c->out.comm, RX_TAG_DATA));
	c->vec = 1;
	rx_path_of_conn(c);
	TRY_NOW(rx_heads_init(c));
	gantry_list_append(&rx->conns, &c->node);
	rx_stages_reserve(rx);
	LOG_INFO(RX, "connected with %s, path %s", c->peer, c->path);
	return GANTRY_OK;
}

void *rx_conn_mr(struct gantry_rx_conn *c, struct rx_side *side, const struct rx_region *region)
{
	struct gantry_net *net = c->rx->net;
	struct rx_mr *grown;
	void *mr = NULL;

	if (c->rx->path == GANTRY_RX_PATH_HOST)
		return NULL; /* the network knows host memory only */
	for (size_t i = 0; i < side->nmrs; i++)
		if (side->mrs[i].region == region->id)
			return side->mrs[i].mr;
	grown = realloc(side->mrs, (side->nmrs + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	side->mrs = grown;
	/* What the network does not take goes through staging: remembered, so that it is asked once. */
	if (net->ops->reg_mr(net, side->comm, region->base, region->size, GANTRY_NET_PTR_CUDA, &mr) != GANTRY_OK)
		mr = NULL;
	side->mrs[side->nmrs++] = (struct rx_mr){region->id, mr};
	return mr;
}

void rx_conn_forget_region(struct gantry_rx_conn *c, uint64_t region)
{
	for (int k = 0; k < 2; k++) {
		struct rx_side *s = k ? &c->in : &c->out;

		for (size_t i = 0; i < s->nmrs; i++) {
			if (s->mrs[i].region != region)
				continue;
			if (s->mrs[i].mr && s->comm)
				c->rx->net->ops->dereg_mr(c->rx->net, s->comm, s->mrs[i].mr);
			s->mrs[i] = s->mrs[--s->nmrs];
			break;
		}
	}
}

/* What the ring's place owns stays. */
void rx_flight_reset(struct rx_flight *f, struct gantry_rx_op *op, uint64_t len)
{
	struct rx_flight fresh = {.op = op, .index = op->posted, .len = len, .slot = -1};

	fresh.event = f->event;
	fresh.iov = f->iov;
	fresh.iov_room = f->iov_room;
	fresh.from = fresh.walk = op->cursor;
	*f = fresh;
}

/* ---- the end ---- */

/* Whether one of them failed by that. */
static int conclude(struct gantry_list *list, gantry_result r, const char *text) REQUIRES(rx_mu)
{
	int failed = 0;

	while (!gantry_list_empty(list)) {
		struct gantry_rx_op *op = gantry_container(list->next, struct gantry_rx_op, node);

		if (op->send)
			rx_send_conclude(op, r, text);
		else
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

		rx_stage_put(c->rx, s, f->stage);
		rx_descs_put(c->rx, f->descs);
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

static void close_side(struct gantry_rx_conn *c, struct rx_side *s, gantry_result (*close)(struct gantry_net *, void *))
{
	struct gantry_net *net = c->rx->net;

	if (!s->comm)
		return;
	for (size_t i = 0; i < s->nmrs; i++)
		if (s->mrs[i].mr)
			net->ops->dereg_mr(net, s->comm, s->mrs[i].mr);
	s->nmrs = 0;
	close(net, s->comm);
	s->comm = NULL;
}

/*
 * The device first: kernels end by themselves, and write to the user's memory until then. Then the network: closing a
 * comm gives all buffers back at once. After that nothing touches the memory of any op.
 */
static void shut(struct gantry_rx_conn *c)
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
	close_side(c, &c->out, net->ops->close_send);
	close_side(c, &c->in, net->ops->close_recv);
	drop_flights(c, &c->out);
	drop_flights(c, &c->in);
	free_nodes(c);
}

void rx_conn_fail(struct gantry_rx_conn *c, gantry_result r, const char *fmt, ...)
{
	va_list args;
	int missed = 0;

	if (c->error != GANTRY_OK)
		return;
	c->error = r;
	va_start(args, fmt);
	vsnprintf(c->error_text, sizeof(c->error_text), fmt, args);
	va_end(args);
	if (r != GANTRY_ERR_PROTOCOL) /* the word of a peer that is at fault counts for nothing */
		rx_heads_last(c);
	shut(c);
	for (int i = 0; i < 2; i++) {
		struct rx_side *s = i ? &c->in : &c->out;

		missed |= conclude(&s->waiting, r, c->error_text);
		missed |= conclude(&s->offered, r, c->error_text);
		missed |= conclude(&s->data, r, c->error_text);
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
	rx->device->ops->free(rx->device, c->landing);
	gantry_list_remove(&c->node);
	free(c->out.mrs);
	free(c->in.mrs);
	free(c->head_memory);
	free(c);
}

/* ---- progress ---- */

static gantry_result step(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	TRY_NOW(rx_heads_in(c, ret_moved));
	TRY_NOW(rx_recv_progress(c, ret_moved));
	TRY_NOW(rx_send_progress(c, ret_moved));
	return rx_heads_out(c, ret_moved);
}

/* The peer has closed or is gone. Its goodbye in one direction may come before what it said in the other. */
static int still_hearing(struct gantry_rx_conn *c, gantry_result r) REQUIRES(rx_mu)
{
	if (r != GANTRY_ERR_PEER_CLOSED && r != GANTRY_ERR_PEER_LOST)
		return 0;
	if (c->leaving == GANTRY_OK)
		c->leaving_until = gantry_now_ns() + LAST_HEADS_NS;
	c->leaving = r;
	return !rx_heads_last(c) && rx_send_unanswered(c) && gantry_now_ns() < c->leaving_until;
}

int rx_conn_progress(struct gantry_rx_conn *c)
{
	gantry_result r = c->leaving;
	int moved = 0;

	if (c->error != GANTRY_OK)
		return 0;
	if (r == GANTRY_OK)
		r = step(c, &moved);
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

int rx_progress(struct gantry_rx *rx)
{
	int moved = 0;

	gantry_list_each (pos, &rx->conns)
		moved |= rx_conn_progress(gantry_container(pos, struct gantry_rx_conn, node));
	rx_stall_look(rx, moved);
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
		if (rx_heads_out(c, &moved) != GANTRY_OK)
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
