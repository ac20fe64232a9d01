/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving side of a connection: bringing transfers and receives together, and messages to their place. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdlib.h>
#include <string.h>

#include "base/param_text.h"
#include "rx/rx.h"

static gantry_result answer(struct gantry_rx_conn *c, enum rx_kind kind, uint64_t transfer, uint64_t bytes,
			    uint64_t arg)
{
	struct rx_head h = {.kind = (uint16_t)kind, .transfer = transfer, .bytes = bytes, .arg = arg};

	return rx_head_send(c, &h, NULL);
}

/* The bytes came with the head and go to device memory: the device has to do that. */
static gantry_result keep_local(struct gantry_rx_op *op, const uint8_t *data)
{
	op->phase = RX_LOCAL;
	op->message = op->total;
	op->nmessages = 1;
	gantry_list_append(&op->conn->in.data, &op->node); /* first: what ends the connection finds its ops in lists */
	op->local = malloc(op->total);
	if (!op->local)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %s that have arrived", SIZE_TEXT(op->total));
	memcpy(op->local, data, op->total);
	return GANTRY_OK;
}

/* A transfer and its receive. The op is in no list. */
static gantry_result meet(struct gantry_rx_op *op, const struct rx_head *h, const uint8_t *data) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx_conn *c = op->conn;
	struct rx_cursor start = {0, 0, 0};

	op->transfer = h->transfer;
	op->total = h->bytes;
	RX_DEBUG(c->rx, "%s: transfer %llu of tag %llu, %llu bytes, meets a receive of %llu", c->peer,
		 (unsigned long long)h->transfer, (unsigned long long)h->tag, (unsigned long long)h->bytes,
		 (unsigned long long)op->batch.bytes);
	if (h->bytes > op->batch.bytes) {
		rx_op_done(op, GANTRY_ERR_SIZE, "a send of %llu bytes met a receive of %llu bytes (tag %llu, %s)",
			   (unsigned long long)h->bytes, (unsigned long long)op->batch.bytes,
			   (unsigned long long)h->tag, c->peer);
		r = answer(c, RX_REJECT, h->transfer, op->batch.bytes, 0);
		rx_op_over(op);
	} else if (!(h->flags & RX_INLINE)) {
		op->phase = RX_GRANTED;
		op->message = h->arg < c->rx->message ? h->arg : c->rx->message;
		op->nmessages = (op->total - 1) / op->message + 1;
		gantry_list_append(&c->in.data, &op->node);
		r = answer(c, RX_GRANT, h->transfer, 0, op->message);
	} else if (op->batch.device && op->total) {
		TRY(keep_local(op, data)); /* TAKEN when the device has put them in place */
	} else {
		rx_batch_scatter(&op->batch, start, data, op->total);
		c->rx->counters.received_bytes += op->total;
		op->bytes = op->total;
		rx_op_done(op, GANTRY_OK, "%s", "");
		r = answer(c, RX_TAKEN, h->transfer, 0, 0);
		rx_op_over(op);
	}
out:
	return r;
}

gantry_result rx_recv_offered(struct gantry_rx_conn *c, const struct rx_head *h, const uint8_t *data)
{
	size_t payload = h->flags & RX_INLINE ? (size_t)h->bytes : 0, waiting = 0;
	struct rx_early *e;

	if (!(h->flags & RX_INLINE) && !h->bytes)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s offered an empty transfer in messages", c->peer);
	gantry_list_each_entry (op, &c->in.waiting, struct gantry_rx_op, node) {
		if (op->tag != h->tag)
			continue;
		gantry_list_remove(&op->node);
		return meet(op, h, data);
	}
	gantry_list_each (pos, &c->early)
		waiting++;
	if (waiting >= RX_WINDOW)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s offered more than %d transfers without an answer", c->peer,
			 RX_WINDOW);
	e = malloc(sizeof(*e) + payload);
	if (!e)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a transfer of %s that came early", c->peer);
	e->head = *h;
	memcpy(e->data, data, payload);
	gantry_list_append(&c->early, &e->node);
	return GANTRY_OK;
}

gantry_result rx_recv_match(struct gantry_rx_op *op)
{
	struct gantry_rx_conn *c = op->conn;

	gantry_list_each_entry (e, &c->early, struct rx_early, node) {
		gantry_result r;

		if (e->head.tag != op->tag)
			continue;
		gantry_list_remove(&e->node);
		r = meet(op, &e->head, e->data);
		free(e);
		return r;
	}
	gantry_list_append(&c->in.waiting, &op->node);
	return GANTRY_OK;
}

/* ---- ending early ---- */

static struct gantry_rx_op *find(struct gantry_rx_conn *c, uint64_t transfer)
{
	gantry_list_each_entry (op, &c->in.data, struct gantry_rx_op, node)
		if (op->transfer == transfer)
			return op;
	return NULL;
}

static gantry_result drop_early(struct gantry_rx_conn *c, uint64_t transfer)
{
	gantry_list_each_entry (e, &c->early, struct rx_early, node) {
		if (e->head.transfer != transfer)
			continue;
		gantry_list_remove(&e->node);
		free(e);
		return answer(c, RX_STOP, transfer, 0, 0);
	}
	return GANTRY_OK; /* it has been answered: the sender will see that */
}

gantry_result rx_recv_ended(struct gantry_rx_conn *c, const struct rx_head *h)
{
	struct gantry_rx_op *op = find(c, h->transfer);
	uint64_t sent;

	if (!op)
		return drop_early(c, h->transfer);
	if (op->phase == RX_LOCAL)
		return GANTRY_OK;
	sent = h->arg < op->nmessages ? h->arg : op->nmessages;
	if (!op->ending)
		op->ending = op->by_peer = 1;
	op->heard = 1;
	op->limit = sent > op->posted ? sent : op->posted;
	if (!op->told) {
		op->told = 1;
		TRY_NOW(answer(c, RX_STOP, op->transfer, 0, op->posted));
	}
	rx_op_settle(op);
	return GANTRY_OK;
}

gantry_result rx_recv_cancel(struct gantry_rx_op *op)
{
	if (op->ending || op->phase == RX_OVER)
		return GANTRY_OK;
	if (op->phase == RX_LOCAL && op->touching)
		return GANTRY_OK; /* the device has begun, and waits for nobody */
	op->ending = 1;
	if (op->phase == RX_WAITING) {
		rx_op_settle(op);
		rx_op_over(op);
		return GANTRY_OK;
	}
	op->told = 1;
	if (op->phase == RX_LOCAL) { /* there are no messages to agree on */
		op->heard = 1;
		op->limit = op->posted;
	}
	TRY_NOW(answer(op->conn, RX_STOP, op->transfer, 0, op->phase == RX_LOCAL ? 0 : op->posted));
	rx_op_settle(op);
	return GANTRY_OK;
}

/* ---- data ---- */

/* Where the next message of an op is to land. AGAIN: nowhere now. */
static gantry_result place(struct gantry_rx_conn *c, struct gantry_rx_op *op, struct rx_flight *f, void **ret_data)
	REQUIRES(rx_mu)
{
	uint64_t run = 0;
	uint8_t *at = rx_batch_run(&op->batch, &op->cursor, f->len, &run);

	if (!op->ending && !op->local && op->batch.device && c->unpack) {
		*ret_data = c->landing;
		f->mr = c->landing_mr;
		f->slot = (int)(c->in.slots % GANTRY_UNPACK_DEPTH);
		return GANTRY_OK;
	}
	if (!op->ending && !op->batch.device && run == f->len) {
		*ret_data = f->direct = at;
		f->touches = 1;
		return GANTRY_OK;
	}
	if (!op->ending && !op->batch.device && c->vec && rx_flight_list(f)) {
		f->touches = 1;
		return GANTRY_OK;
	}
	f->niov = 0;
	f->stage = rx_stage_get(c->rx, &c->in);
	if (!f->stage)
		return rx_stage_none(&c->in);
	*ret_data = f->stage->host;
	return GANTRY_OK;
}

/* Posts a receive for the next message of an op. AGAIN: not now. */
static gantry_result post(struct gantry_rx_conn *c, struct gantry_rx_op *op) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = c->rx->net;
	struct rx_flight *f = rx_flight_at(&c->in, c->in.tail);
	size_t size;
	void *data = NULL;
	int tag = RX_TAG_DATA;

	rx_flight_reset(f, op, rx_message_len(op, op->posted));
	TRY(place(c, op, f, &data));
	size = (size_t)f->len;
	if (op->local) {
		memcpy(f->stage->host, op->local, op->total);
		f->got = op->total;
		f->state = RX_FLIGHT_HERE;
	} else if (f->niov) {
		r = net->ops->irecvv(net, c->in.comm, f->iov, f->niov, tag, &f->request);
		if (r == GANTRY_ERR_UNSUPPORTED)
			c->vec = 0;
		if (r == GANTRY_ERR_UNSUPPORTED || (r == GANTRY_OK && !f->request))
			r = GANTRY_AGAIN;
		if (r != GANTRY_OK)
			goto out;
		f->state = RX_FLIGHT_POSTED;
	} else {
		/* Only receives into device memory take slots of the unpack queue. */
		f->request = f->slot < 0 ? GANTRY_NET_OPTIONAL_RECV_COMPLETION : NULL;
		r = net->ops->irecv(net, c->in.comm, 1, &data, &size, &tag, &f->mr, &f->request);
		if (r == GANTRY_OK && !f->request)
			r = GANTRY_AGAIN;
		if (r != GANTRY_OK) {
			rx_stage_put(c->rx, &c->in, f->stage);
			goto out;
		}
		f->state = RX_FLIGHT_POSTED;
	}
	c->in.slots += f->slot >= 0;
	op->touching += f->touches;
	op->posted++;
	rx_batch_skip(&op->batch, &op->cursor, f->len);
	c->in.tail++;
out:
	return r;
}

/* A message is here. AGAIN: the device's work cannot be enqueued yet. */
static gantry_result arrived(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op = f->op;
	struct gantry_rx_counters *n = &c->rx->counters;

	if (op->ending && f->works) { /* a part of it is in the stream already */
		TRY_NOW(rx_work_seal(c, f));
		f->state = RX_FLIGHT_DEVICE;
		return GANTRY_OK;
	}
	if (op->ending) {
		f->state = RX_FLIGHT_SPENT;
		return GANTRY_OK;
	}
	if (f->got != f->len)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "message %llu of transfer %llu of %s has %llu bytes, expected %llu",
			 (unsigned long long)f->index, (unsigned long long)op->transfer, c->peer,
			 (unsigned long long)f->got, (unsigned long long)f->len);
	if (!op->batch.device) {
		if (f->stage)
			rx_batch_scatter(&op->batch, f->from, f->stage->host, f->len);
		*(f->stage ? &n->staged_bytes : &n->direct_bytes) += f->len;
		f->state = RX_FLIGHT_SPENT;
		return GANTRY_OK;
	}
	if (!f->works) {
		f->works = f->touches = 1;
		op->touching++;
	}
	TRY_NOW(f->slot >= 0 ? rx_work_unpack(c, f) : rx_work_scatter(c, f));
	*(f->slot >= 0 ? &n->unpacked_bytes : &n->staged_bytes) += f->len;
	f->state = RX_FLIGHT_DEVICE;
	if (++op->launched == op->nmessages && op->state == GANTRY_RX_PENDING)
		op->state = GANTRY_RX_ARRIVED;
	return GANTRY_OK;
}

/* The flight at the head is through. */
static gantry_result retire(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx_op *op = f->op;
	struct gantry_net *net = c->rx->net;

	if (f->slot >= 0)
		r = net->ops->irecv_consumed(net, c->in.comm, 1, f->request);
	rx_stage_put(c->rx, &c->in, f->stage);
	f->stage = NULL;
	op->touching -= f->touches;
	op->finished++;
	if (!op->ending) {
		op->bytes += f->len;
		c->rx->counters.received_bytes += f->len;
	}
	c->in.head++;
	if (r == GANTRY_OK && !op->ending && op->finished == op->nmessages)
		r = answer(c, RX_TAKEN, op->transfer, 0, 0);
	if (r == GANTRY_OK)
		rx_op_settle(op);
	return r;
}

/* What the network has received goes on to the device, or is in its place. */
static gantry_result take_arrivals(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	struct gantry_net *net = c->rx->net;
	gantry_result r = GANTRY_OK;

	for (uint32_t i = c->in.head; i != c->in.tail && r == GANTRY_OK; i++) {
		struct rx_flight *f = rx_flight_at(&c->in, i);
		int done = 0, size = 0;

		if (f->state == RX_FLIGHT_POSTED) {
			TRY(net->ops->test(net, f->request, &done, &size));
			if (!done)
				break;
			f->got = (uint64_t)size;
			f->state = RX_FLIGHT_HERE;
			*ret_moved = 1;
		}
		if (f->state == RX_FLIGHT_HERE)
			r = arrived(c, f);
	}
out:
	return r;
}

static gantry_result retire_spent(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;

	while (c->in.head != c->in.tail) {
		struct rx_flight *f = rx_flight_at(&c->in, c->in.head);

		if (f->state == RX_FLIGHT_DEVICE && rx_work_over(c, f, &r))
			f->state = RX_FLIGHT_SPENT;
		if (r != GANTRY_OK || f->state != RX_FLIGHT_SPENT)
			break;
		*ret_moved = 1;
		TRY(retire(c, f));
	}
out:
	return r;
}

static gantry_result post_more(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op;

	while (rx_flights(&c->in) < c->rx->depth && (op = rx_op_next(&c->in))) {
		TRY_NOW(post(c, op));
		*ret_moved = 1;
	}
	return GANTRY_OK;
}

/* AGAIN in one of them ends it for this time, and not the others. */
gantry_result rx_recv_progress(struct gantry_rx_conn *c, int *ret_moved)
{
	gantry_result r = take_arrivals(c, ret_moved);

	if (r == GANTRY_OK || r == GANTRY_AGAIN)
		r = retire_spent(c, ret_moved);
	if (r == GANTRY_OK)
		r = post_more(c, ret_moved);
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}
