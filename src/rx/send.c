/* SPDX-License-Identifier: Apache-2.0 */
/* The sending side of a connection: offering transfers, and moving the granted ones message by message. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include "rx/rx.h"

static struct gantry_rx_op *find(struct gantry_list *list, uint64_t transfer)
{
	gantry_list_each_entry (op, list, struct gantry_rx_op, node)
		if (op->transfer == transfer)
			return op;
	return NULL;
}

/* Heads of those that wait, as far as the window goes. */
static gantry_result offer(struct gantry_rx_conn *c, int *ret_moved)
{
	while (!gantry_list_empty(&c->out.waiting) && c->out.noffered < RX_WINDOW) {
		struct gantry_rx_op *op = gantry_container(c->out.waiting.next, struct gantry_rx_op, node);
		struct rx_head h = {
			.kind = RX_SEND,
			.flags = op->inlined ? RX_INLINE : 0,
			.transfer = op->transfer,
			.tag = op->tag,
			.bytes = op->total,
			.arg = c->rx->message,
		};

		if (op->inlined && c->inline_out >= RX_INLINE_OUT)
			break;
		gantry_list_remove(&op->node);
		gantry_list_append(&c->out.offered, &op->node);
		op->phase = RX_OFFERED;
		c->out.noffered++;
		RX_DEBUG(c->rx, "%s: transfer %llu of tag %llu offered, %llu bytes%s", c->peer,
			 (unsigned long long)op->transfer, (unsigned long long)op->tag, (unsigned long long)op->total,
			 op->inlined ? " with the head" : "");
		*ret_moved = 1;
		TRY_NOW(rx_head_send(c, &h, op->inlined ? &op->batch : NULL));
	}
	return GANTRY_OK;
}

static gantry_result tell_end(struct gantry_rx_conn *c, uint64_t transfer, uint64_t messages)
{
	struct rx_head h = {.kind = RX_END, .transfer = transfer, .arg = messages};

	return rx_head_send(c, &h, NULL);
}

gantry_result rx_send_granted(struct gantry_rx_conn *c, const struct rx_head *h)
{
	struct gantry_rx_op *op = find(&c->out.offered, h->transfer);

	if (!op || op->inlined || h->arg > c->rx->message)
		FAIL_NOW(GANTRY_ERR_PROTOCOL,
			 "%s granted transfer %llu with messages of %llu bytes, which was not asked for", c->peer,
			 (unsigned long long)h->transfer, (unsigned long long)h->arg);
	gantry_list_remove(&op->node);
	gantry_list_append(&c->out.data, &op->node);
	c->out.noffered--;
	op->phase = RX_GRANTED;
	op->message = h->arg;
	op->nmessages = (op->total - 1) / op->message + 1;
	RX_DEBUG(c->rx, "%s: transfer %llu granted, %llu messages of %llu bytes", c->peer,
		 (unsigned long long)op->transfer, (unsigned long long)op->nmessages, (unsigned long long)op->message);
	return GANTRY_OK;
}

gantry_result rx_send_answered(struct gantry_rx_conn *c, const struct rx_head *h)
{
	struct gantry_rx_op *op = find(&c->out.offered, h->transfer);

	if (!op && h->kind == RX_TAKEN) {
		op = find(&c->out.data, h->transfer);
		if (op && op->posted < op->nmessages && !op->ending)
			FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s has taken transfer %llu before it was sent", c->peer,
				 (unsigned long long)h->transfer);
		if (op) { /* else it was cancelled when all of it was out */
			op->taken = 1;
			rx_op_settle(op);
		}
		return GANTRY_OK;
	}
	if (!op || (h->kind == RX_TAKEN && !op->inlined))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s %s transfer %llu, which was not %s", c->peer,
			 h->kind == RX_TAKEN ? "has taken" : "rejected", (unsigned long long)h->transfer,
			 op ? "sent" : "offered");
	c->out.noffered--;
	if (h->kind == RX_TAKEN) {
		op->bytes = op->total;
		c->rx->counters.sent_bytes += op->total;
		rx_op_done(op, GANTRY_OK, "%s", "");
	} else {
		rx_op_done(op, GANTRY_ERR_SIZE, "a send of %llu bytes met a receive of %llu bytes (tag %llu, %s)",
			   (unsigned long long)op->total, (unsigned long long)h->bytes, (unsigned long long)op->tag,
			   c->peer);
	}
	rx_op_over(op);
	return GANTRY_OK;
}

gantry_result rx_send_stopped(struct gantry_rx_conn *c, const struct rx_head *h)
{
	struct gantry_rx_op *op = find(&c->out.data, h->transfer);

	if (!op && (op = find(&c->out.offered, h->transfer))) {
		if ((!op->told && !op->inlined) || h->arg)
			FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s stopped transfer %llu before it was granted", c->peer,
				 (unsigned long long)h->transfer);
		if (!op->ending)
			op->ending = op->by_peer = 1;
		c->out.noffered--;
		rx_op_settle(op);
		rx_op_over(op);
		return GANTRY_OK;
	}
	if (!op && h->transfer >= c->next_transfer)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s stopped transfer %llu, which does not exist", c->peer,
			 (unsigned long long)h->transfer);
	/* All of it is out: the receiver knows how many messages that is. */
	if (!op)
		return tell_end(c, h->transfer, UINT64_MAX);
	if (h->arg > op->nmessages)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s stopped transfer %llu at message %llu of %llu", c->peer,
			 (unsigned long long)h->transfer, (unsigned long long)h->arg,
			 (unsigned long long)op->nmessages);
	if (!op->ending)
		op->ending = op->by_peer = 1;
	if (!op->told) { /* also if the caller has cancelled, but all of it was out: the receiver counts on an END */
		op->told = 1;
		TRY_NOW(tell_end(c, op->transfer, op->posted));
	}
	op->heard = 1;
	op->limit = h->arg > op->posted ? h->arg : op->posted;
	rx_op_settle(op);
	return GANTRY_OK;
}

gantry_result rx_send_cancel(struct gantry_rx_op *op)
{
	if (op->ending || op->phase == RX_OVER)
		return GANTRY_OK;
	op->ending = 1;
	if (op->phase == RX_GRANTED && op->posted == op->nmessages) {
		rx_op_settle(op); /* nothing is left that could be held back: the peer gets all of it */
		return GANTRY_OK;
	}
	if (op->phase == RX_WAITING) {
		rx_op_settle(op);
		rx_op_over(op);
		return GANTRY_OK;
	}
	op->told = 1;
	TRY_NOW(tell_end(op->conn, op->transfer, op->posted));
	rx_op_settle(op);
	return GANTRY_OK;
}

int rx_send_unanswered(struct gantry_rx_conn *c)
{
	gantry_list_each_entry (op, &c->out.data, struct gantry_rx_op, node)
		if (!op->ending && !op->taken && op->posted == op->nmessages)
			return 1;
	gantry_list_each_entry (op, &c->out.offered, struct gantry_rx_op, node)
		if (!op->ending)
			return 1;
	return 0;
}

void rx_send_conclude(struct gantry_rx_op *op, gantry_result r, const char *text)
{
	if (op->taken && !op->ending) {
		op->rx->counters.sent_bytes += op->total - op->bytes;
		op->bytes = op->total;
		rx_op_done(op, GANTRY_OK, "%s", "");
	} else if (op->by_peer) {
		rx_op_settle(op);
	}
	rx_op_done(op, r, "%s", text);
}

/* ---- data ---- */

/* The bytes of a flight go through a staging buffer. AGAIN: none is free. */
static gantry_result stage(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	f->stage = rx_stage_get(c->rx, &c->out);
	if (!f->stage)
		return rx_stage_none(&c->out);
	c->rx->counters.staged_bytes += f->len;
	if (f->op->batch.device)
		f->touches = f->works = 1;
	else
		rx_batch_gather(&f->op->batch, f->from, f->stage->host, f->len);
	return GANTRY_OK;
}

/* Prepares the next message of an op. AGAIN: no staging buffer is free. */
static gantry_result prepare(struct gantry_rx_conn *c, struct gantry_rx_op *op) REQUIRES(rx_mu)
{
	struct gantry_net *net = c->rx->net;
	struct rx_flight *f = rx_flight_at(&c->out, c->out.tail);
	uint64_t len = op->ending ? 0 : rx_message_len(op, op->posted), run = 0;
	uint8_t *at = len ? rx_batch_run(&op->batch, &op->cursor, len, &run) : NULL;

	rx_flight_reset(f, op, len);
	if (at && run == len &&
	    (!op->batch.device || (f->mr = rx_conn_mr(c, &c->out, op->batch.regions[op->cursor.entry])))) {
		f->direct = at;
		f->touches = 1;
	} else if (len && !op->batch.device && net->ops->isendv_pays(net, c->out.comm) && rx_flight_list(f)) {
		f->touches = 1;
	} else if (len) {
		TRY_NOW(stage(c, f));
	}
	f->state = RX_FLIGHT_GATHER;
	op->touching += f->touches;
	op->posted++;
	rx_batch_skip(&op->batch, &op->cursor, len);
	c->out.tail++;
	return GANTRY_OK;
}

/* Gives a flight to the network. AGAIN: not now. */
static gantry_result post_one(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = c->rx->net;

	/* No way back to a staging buffer here: flights behind this one may hold all there are. */
	if (f->niov)
		r = net->ops->isendv(net, c->out.comm, f->iov, f->niov, RX_TAG_DATA, &f->request);
	else
		r = net->ops->isend(net, c->out.comm,
				    f->direct  ? f->direct
				    : f->stage ? f->stage->host
					       : NULL,
				    f->len, RX_TAG_DATA, f->mr, &f->request);
	if (r == GANTRY_OK && !f->request)
		r = GANTRY_AGAIN;
	if (r != GANTRY_OK)
		goto out;
	f->state = RX_FLIGHT_POSTED;
	if (f->direct || f->niov)
		c->rx->counters.direct_bytes += f->len;
out:
	return r;
}

/* Posts flights whose bytes are ready, in order. */
static gantry_result post(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;

	for (uint32_t i = c->out.head; i != c->out.tail; i++) {
		struct rx_flight *f = rx_flight_at(&c->out, i);

		if (f->state != RX_FLIGHT_GATHER)
			continue;
		if (f->works) {
			if (f->works == 1) {
				r = rx_work_gather(c, f);
				if (r == GANTRY_AGAIN)
					return GANTRY_OK;
				if (r != GANTRY_OK)
					return r;
				f->works = 2;
			}
			if (!rx_work_over(c, f, &r))
				return r;
			f->works = 0;
			f->op->touching -= f->touches;
			f->touches = 0;
			rx_op_settle(f->op);
		}
		r = post_one(c, f);
		if (r == GANTRY_AGAIN)
			return GANTRY_OK;
		if (r != GANTRY_OK)
			return r;
		*ret_moved = 1;
	}
	return r;
}

static void retire(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op = f->op;

	rx_stage_put(c->rx, &c->out, f->stage);
	f->stage = NULL;
	f->state = RX_FLIGHT_SPENT;
	op->touching -= f->touches;
	op->finished++;
	op->bytes += f->len;
	c->rx->counters.sent_bytes += f->len;
	c->out.head++;
	rx_op_settle(op);
}

gantry_result rx_send_progress(struct gantry_rx_conn *c, int *ret_moved)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = c->rx->net;
	struct gantry_rx_op *op;

	TRY(offer(c, ret_moved));
	while (c->out.head != c->out.tail) {
		struct rx_flight *f = rx_flight_at(&c->out, c->out.head);
		int done = 0;

		if (f->state != RX_FLIGHT_POSTED)
			break;
		TRY(net->ops->test(net, f->request, &done, NULL));
		if (!done)
			break;
		*ret_moved = 1;
		retire(c, f);
	}
	while (rx_flights(&c->out) < c->rx->depth && (op = rx_op_next(&c->out))) {
		r = prepare(c, op);
		if (r != GANTRY_OK)
			break;
		TRY(post(c, ret_moved));
	}
	if (r == GANTRY_AGAIN)
		r = GANTRY_OK;
	if (r == GANTRY_OK)
		r = post(c, ret_moved);
out:
	return r;
}
