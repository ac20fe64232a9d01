/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers of a connection: the sender offers them, the receiver matches them with its receives and grants them, and
 * the granted ones move message by message, in the order of their grants. Either side may end one early (rx_wire.h).
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "rx/rx.h"

/* ---- both sides ---- */

static struct gantry_rx_op *find_op(struct gantry_list *list, uint64_t transfer)
{
	gantry_list_each_entry (op, list, struct gantry_rx_op, node)
		if (op->transfer == transfer)
			return op;
	return NULL;
}

static gantry_result send_answer(struct gantry_rx_conn *c, enum rx_kind kind, uint64_t transfer, uint64_t bytes,
				 uint64_t arg)
{
	struct rx_head h = {.kind = (uint16_t)kind, .transfer = transfer, .bytes = bytes, .arg = arg};

	return rx_head_send(c, &h, NULL);
}

/* The first op of the queue that has messages to post now; NULL: none, or the one whose turn it is must wait. */
static struct gantry_rx_op *next_op(struct rx_side *s)
{
	gantry_list_each_entry (op, &s->data, struct gantry_rx_op, node) {
		uint64_t target = op->nmessages;

		if (op->ending && op->posted < op->nmessages) {
			if (!op->told || !op->heard)
				return NULL; /* how many messages there are is being settled */
			target = op->limit;
		}
		if (op->posted < target)
			return op;
	}
	return NULL;
}

/* What the ring's place owns stays. */
static void reset_flight(struct rx_flight *f, struct gantry_rx_op *op, uint64_t len)
{
	struct rx_flight fresh = {.op = op, .index = op->posted, .len = len, .slot = -1};

	ASSERT(!f->descs);
	fresh.event = f->event;
	fresh.iov = f->iov;
	fresh.iov_room = f->iov_room;
	fresh.from = fresh.walk = op->cursor;
	*f = fresh;
}

static uint64_t message_len(const struct gantry_rx_op *op, uint64_t index)
{
	uint64_t at = index * op->message;

	ASSERT(index < op->nmessages && op->message);
	return op->total - at < op->message ? op->total - at : op->message;
}

/* Its message is through: at the head of the ring there is another one. */
static void leave_ring(struct gantry_rx_conn *c, struct rx_side *s, struct rx_flight *f)
{
	ASSERT(s->head != s->tail && f == rx_flight_at(s, s->head));
	ASSERT(f->op->touching >= f->touches && f->op->finished < f->op->posted);
	rx_stage_put(c->rx, s, f->stage);
	f->stage = NULL;
	f->op->touching -= f->touches;
	f->op->finished++;
	s->head++;
}

/* The peer has sent the message up to which it goes on, and is answered in kind. */
static gantry_result hear_end(struct gantry_rx_op *op, uint64_t messages) REQUIRES(rx_mu)
{
	ASSERT(op->posted <= op->nmessages);
	if (!op->ending)
		op->ending = op->by_peer = 1;
	rx_frags_drop(op, op->handed); /* what the caller has, it may be reading */
	if (!op->told) { /* also if the caller has cancelled, but all of it was out: the receiver counts on an END */
		op->told = 1;
		TRY_NOW(send_answer(op->conn, op->send ? RX_END : RX_STOP, op->transfer, 0, op->posted));
	}
	op->heard = 1;
	op->limit = messages > op->posted ? messages : op->posted;
	rx_op_settle(op);
	return GANTRY_OK;
}

gantry_result rx_transfer_cancel(struct gantry_rx_op *op)
{
	bool local = op->phase == RX_LOCAL;

	if (op->ending || op->phase == RX_OVER)
		return GANTRY_OK;
	if (local && op->touching && !op->frags)
		return GANTRY_OK; /* the device has begun, and waits for nothing */
	op->ending = 1;
	rx_frags_drop(op, 0);
	if (op->send && op->phase == RX_GRANTED && op->posted == op->nmessages) {
		rx_op_settle(op); /* nothing is left that could be held back: the peer gets all of it */
		return GANTRY_OK;
	}
	if (op->phase == RX_WAITING) {
		rx_op_settle(op);
		rx_op_over(op);
		return GANTRY_OK;
	}
	op->told = 1;
	if (local) { /* there are no messages to agree on */
		op->heard = 1;
		op->limit = op->posted;
	}
	TRY_NOW(send_answer(op->conn, op->send ? RX_END : RX_STOP, op->transfer, 0, local ? 0 : op->posted));
	rx_op_settle(op);
	return GANTRY_OK;
}

/* ---- sending ---- */

/* Heads of those that wait, as far as the window goes. */
static gantry_result offer_waiting(struct gantry_rx_conn *c, int *ret_moved)
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

static gantry_result send_granted(struct gantry_rx_conn *c, const struct rx_head *h)
{
	struct gantry_rx_op *op = find_op(&c->out.offered, h->transfer);

	if (!op || op->inlined || h->arg > c->rx->message)
		FAIL_NOW(GANTRY_ERR_PROTOCOL,
			 "%s granted transfer %llu with messages of %llu bytes, which was not requested", c->peer,
			 (unsigned long long)h->transfer, (unsigned long long)h->arg);
	gantry_list_remove(&op->node);
	gantry_list_append(&c->out.data, &op->node);
	ASSERT(c->out.noffered && op->phase == RX_OFFERED);
	c->out.noffered--;
	op->phase = RX_GRANTED;
	op->message = h->arg;
	op->nmessages = (op->total - 1) / op->message + 1;
	RX_DEBUG(c->rx, "%s: transfer %llu granted, %llu messages of %llu bytes", c->peer,
		 (unsigned long long)op->transfer, (unsigned long long)op->nmessages, (unsigned long long)op->message);
	return GANTRY_OK;
}

/* It was, whatever has become of it since. */
static bool was_offered(struct gantry_rx_conn *c, uint64_t transfer)
{
	return transfer < c->next_transfer && !find_op(&c->out.waiting, transfer);
}

/* One that was granted, or is over: it was cancelled when all of it was out. */
static gantry_result send_taken(struct gantry_rx_conn *c, uint64_t transfer) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op = find_op(&c->out.data, transfer);

	if (op && op->posted < op->nmessages && !op->ending)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s confirmed transfer %llu before it was sent", c->peer,
			 (unsigned long long)transfer);
	if (op) {
		op->taken = 1;
		rx_op_settle(op);
	}
	return GANTRY_OK;
}

static gantry_result send_answered(struct gantry_rx_conn *c, const struct rx_head *h) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op = find_op(&c->out.offered, h->transfer);

	if (!op && h->kind == RX_TAKEN && was_offered(c, h->transfer))
		return send_taken(c, h->transfer);
	if (!op || (h->kind == RX_TAKEN && !op->inlined))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s %s transfer %llu, which was not %s", c->peer,
			 h->kind == RX_TAKEN ? "confirmed" : "rejected", (unsigned long long)h->transfer,
			 op ? "sent" : "offered");
	if (h->kind == RX_REJECT && h->bytes >= op->total)
		FAIL_NOW(GANTRY_ERR_PROTOCOL,
			 "%s rejected transfer %llu of %llu bytes, claiming a receive of %llu bytes", c->peer,
			 (unsigned long long)h->transfer, (unsigned long long)op->total, (unsigned long long)h->bytes);
	ASSERT(c->out.noffered && op->phase == RX_OFFERED);
	c->out.noffered--;
	if (h->kind == RX_TAKEN) {
		op->bytes = op->total;
		rx_count(&c->rx->counters.sent_bytes, op->total);
		rx_op_done(op, GANTRY_OK, "%s", "");
	} else if (h->arg) {
		rx_op_done(op, GANTRY_ERR_SIZE,
			   "send of %llu bytes matched a receive of elements of %llu bytes (tag %llu, %s)",
			   (unsigned long long)op->total, (unsigned long long)h->arg, (unsigned long long)op->tag,
			   c->peer);
	} else {
		rx_op_done(op, GANTRY_ERR_SIZE,
			   "send of %llu bytes matched a receive of only %llu bytes (tag %llu, %s)",
			   (unsigned long long)op->total, (unsigned long long)h->bytes, (unsigned long long)op->tag,
			   c->peer);
	}
	rx_op_over(op);
	return GANTRY_OK;
}

static gantry_result send_stopped(struct gantry_rx_conn *c, const struct rx_head *h) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op = find_op(&c->out.data, h->transfer);

	if (!op && (op = find_op(&c->out.offered, h->transfer))) {
		if ((!op->told && !op->inlined) || h->arg)
			FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s stopped transfer %llu before it was granted", c->peer,
				 (unsigned long long)h->transfer);
		if (!op->ending)
			op->ending = op->by_peer = 1;
		ASSERT(c->out.noffered && op->phase == RX_OFFERED);
		c->out.noffered--;
		rx_op_settle(op);
		rx_op_over(op);
		return GANTRY_OK;
	}
	if (!op && !was_offered(c, h->transfer))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s stopped transfer %llu, which was not offered", c->peer,
			 (unsigned long long)h->transfer);
	/* All of it is out: the receiver knows how many messages that is. */
	if (!op)
		return send_answer(c, RX_END, h->transfer, 0, UINT64_MAX);
	if (h->arg > op->nmessages)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s stopped transfer %llu at message %llu of %llu", c->peer,
			 (unsigned long long)h->transfer, (unsigned long long)h->arg,
			 (unsigned long long)op->nmessages);
	return hear_end(op, h->arg);
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

/* The network's registration of device memory; NULL: it does not take it. */
static void *mr_of(struct gantry_rx_conn *c, const struct rx_region *region)
{
	struct gantry_net *net = c->rx->net;
	struct rx_mr *grown;
	void *mr = NULL;

	if (c->rx->path == GANTRY_RX_PATH_HOST)
		return NULL; /* the network knows host memory only */
	for (size_t i = 0; i < c->nmrs; i++)
		if (c->mrs[i].region == region->id)
			return c->mrs[i].mr;
	grown = realloc(c->mrs, (c->nmrs + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	c->mrs = grown;
	/* What the network does not take goes through staging: remembered, so that it is asked once. */
	if (net->ops->reg_mr(net, c->out.comm, region->base, region->size, GANTRY_NET_PTR_CUDA, &mr) != GANTRY_OK)
		mr = NULL;
	c->mrs[c->nmrs++] = (struct rx_mr){region->id, mr};
	return mr;
}

/* Prepares the next message of an op. AGAIN: no staging buffer is free. */
static gantry_result prepare_send(struct gantry_rx_conn *c, struct gantry_rx_op *op) REQUIRES(rx_mu)
{
	struct gantry_net *net = c->rx->net;
	struct rx_flight *f = rx_flight_at(&c->out, c->out.tail);
	uint64_t len = op->ending ? 0 : message_len(op, op->posted), run = 0;
	uint8_t *at = len ? rx_batch_run(&op->batch, &op->cursor, len, &run) : NULL;

	ASSERT(rx_flights(&c->out) < RX_DEPTH_MAX);
	reset_flight(f, op, len);
	if (at && run == len && (!op->batch.device || (f->mr = mr_of(c, op->batch.regions[op->cursor.entry])))) {
		f->direct = at;
		f->touches = 1;
	} else if (len && !op->batch.device && net->ops->isendv_pays(net, c->out.comm) && rx_flight_list(f)) {
		f->touches = 1;
	} else if (len) {
		TRY_NOW(rx_stage_get(c->rx, &c->out, &f->stage));
		rx_count(&c->rx->counters.staged_bytes, len);
		if (op->batch.device)
			f->touches = f->works = 1;
		else
			rx_batch_gather(&op->batch, f->from, f->stage->host, len);
	}
	f->state = RX_FLIGHT_GATHER;
	op->touching += f->touches;
	op->posted++;
	rx_batch_skip(&op->batch, &op->cursor, len);
	c->out.tail++;
	return GANTRY_OK;
}

/* Gives a flight to the network. AGAIN: not now. */
static gantry_result post_send(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = c->rx->net;

	ASSERT(f->state == RX_FLIGHT_GATHER && !f->works && !f->request);
	/* No way back to a staging buffer here: flights behind this one may hold all there are. */
	if (f->niov)
		r = net->ops->isendv(net, c->out.comm, f->iov, f->niov, RX_TAG_DATA, &f->request);
	else
		r = net->ops->isend(net, c->out.comm,
				    f->direct  ? f->direct
				    : f->stage ? f->stage->host
					       : NULL,
				    f->len, RX_TAG_DATA, f->mr, &f->request);
	if (r != GANTRY_OK || !f->request)
		return r != GANTRY_OK ? r : GANTRY_AGAIN;
	f->state = RX_FLIGHT_POSTED;
	if (f->direct || f->niov)
		rx_count(&c->rx->counters.direct_bytes, f->len);
	return GANTRY_OK;
}

/* Posts flights whose bytes are ready, in order. */
static gantry_result post_ready_sends(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;

	for (uint32_t i = c->out.head; i != c->out.tail; i++) {
		struct rx_flight *f = rx_flight_at(&c->out, i);

		if (f->state != RX_FLIGHT_GATHER)
			continue;
		if (f->works) {
			if (f->works == 1) {
				r = rx_work_staged(c, f);
				if (r != GANTRY_OK)
					return r == GANTRY_AGAIN ? GANTRY_OK : r;
				f->works = 2;
			}
			if (!rx_work_over(c, f, &r))
				return r;
			f->works = 0;
			f->op->touching -= f->touches;
			f->touches = 0;
			rx_op_settle(f->op);
		}
		r = post_send(c, f);
		if (r != GANTRY_OK)
			return r == GANTRY_AGAIN ? GANTRY_OK : r;
		*ret_moved = 1;
	}
	return r;
}

gantry_result rx_send_progress(struct gantry_rx_conn *c, int *ret_moved)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = c->rx->net;
	struct gantry_rx_op *op;

	TRY_NOW(offer_waiting(c, ret_moved));
	while (c->out.head != c->out.tail) {
		struct rx_flight *f = rx_flight_at(&c->out, c->out.head);
		int done = 0;

		if (f->state != RX_FLIGHT_POSTED)
			break;
		TRY_NOW(net->ops->test(net, f->request, &done, NULL));
		if (!done)
			break;
		*ret_moved = 1;
		f->state = RX_FLIGHT_SPENT;
		f->op->bytes += f->len;
		rx_count(&c->rx->counters.sent_bytes, f->len);
		leave_ring(c, &c->out, f);
		rx_op_settle(f->op);
	}
	while (rx_flights(&c->out) < c->rx->depth && (op = next_op(&c->out))) {
		r = prepare_send(c, op);
		if (r != GANTRY_OK)
			break;
		TRY_NOW(post_ready_sends(c, ret_moved));
	}
	return r == GANTRY_OK || r == GANTRY_AGAIN ? post_ready_sends(c, ret_moved) : r;
}

/* ---- receiving: transfers and receives ---- */

/* The bytes came with the head and go to device memory: the device has to do that. */
static gantry_result keep_local(struct gantry_rx_op *op, const uint8_t *data)
{
	ASSERT(op->batch.device && !op->local);
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

static gantry_result grant_recv(struct gantry_rx_op *op, const struct rx_head *h) REQUIRES(rx_mu)
{
	struct gantry_rx_conn *c = op->conn;

	op->phase = RX_GRANTED;
	gantry_list_append(&c->in.data, &op->node); /* first, as above */
	op->message = h->arg < c->rx->message ? h->arg : c->rx->message;
	op->message -= op->message % op->as.sent; /* no element lies in two messages */
	if (!op->message)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s offers messages of %llu bytes, too small for elements of %d", c->peer,
			 (unsigned long long)h->arg, op->as.sent);
	op->nmessages = (op->total - 1) / op->message + 1;
	return send_answer(c, RX_GRANT, h->transfer, 0, op->message);
}

/* A transfer and its receive. The op is in no list. */
static gantry_result match_recv(struct gantry_rx_op *op, const struct rx_head *h, const uint8_t *data) REQUIRES(rx_mu)
{
	struct gantry_rx_conn *c = op->conn;
	struct rx_cursor start = {0, 0, 0};
	uint64_t room = rx_sent(op, op->batch.bytes);

	ASSERT(op->phase == RX_WAITING && !op->send);
	op->transfer = h->transfer;
	op->total = h->bytes;
	RX_DEBUG(c->rx, "%s: transfer %llu of tag %llu, %llu bytes, matched a receive of %llu", c->peer,
		 (unsigned long long)h->transfer, (unsigned long long)h->tag, (unsigned long long)h->bytes,
		 (unsigned long long)room);
	if (h->bytes > room) {
		rx_op_done(op, GANTRY_ERR_SIZE,
			   "send of %llu bytes matched a receive of only %llu bytes (tag %llu, %s)",
			   (unsigned long long)h->bytes, (unsigned long long)room, (unsigned long long)h->tag, c->peer);
		rx_op_over(op);
		return send_answer(c, RX_REJECT, h->transfer, room, 0);
	}
	if (h->bytes % op->as.sent) {
		rx_op_done(op, GANTRY_ERR_SIZE,
			   "send of %llu bytes is not a whole number of elements of %d (tag %llu, %s)",
			   (unsigned long long)h->bytes, op->as.sent, (unsigned long long)h->tag, c->peer);
		rx_op_over(op);
		return send_answer(c, RX_REJECT, h->transfer, h->bytes - h->bytes % op->as.sent, op->as.sent);
	}
	if (!(h->flags & RX_INLINE))
		return grant_recv(op, h);
	if (op->batch.device && op->total)
		return keep_local(op, data); /* TAKEN when the device has put them in place */
	rx_op_store(op, start, data, op->total);
	rx_count(&c->rx->counters.received_bytes, op->total);
	op->bytes = op->total;
	rx_op_done(op, GANTRY_OK, "%s", "");
	rx_op_over(op);
	return send_answer(c, RX_TAKEN, h->transfer, 0, 0);
}

static gantry_result recv_offered(struct gantry_rx_conn *c, const struct rx_head *h, const uint8_t *data)
	REQUIRES(rx_mu)
{
	size_t payload = h->flags & RX_INLINE ? (size_t)h->bytes : 0, waiting = 0;
	struct rx_early *e;

	if (!(h->flags & RX_INLINE) && !h->bytes)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s offered an empty transfer as messages", c->peer);
	gantry_list_each_entry (op, &c->in.waiting, struct gantry_rx_op, node) {
		if (op->tag != h->tag)
			continue;
		gantry_list_remove(&op->node);
		return match_recv(op, h, data);
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
		r = match_recv(op, &e->head, e->data);
		free(e);
		return r;
	}
	gantry_list_append(&c->in.waiting, &op->node);
	return GANTRY_OK;
}

static gantry_result drop_early(struct gantry_rx_conn *c, uint64_t transfer)
{
	gantry_list_each_entry (e, &c->early, struct rx_early, node) {
		if (e->head.transfer != transfer)
			continue;
		gantry_list_remove(&e->node);
		free(e);
		return send_answer(c, RX_STOP, transfer, 0, 0);
	}
	return GANTRY_OK; /* it has been answered: the sender will see that */
}

static gantry_result recv_ended(struct gantry_rx_conn *c, const struct rx_head *h) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op = find_op(&c->in.data, h->transfer);

	if (!op)
		return drop_early(c, h->transfer);
	if (op->phase == RX_LOCAL)
		return GANTRY_OK;
	return hear_end(op, h->arg < op->nmessages ? h->arg : op->nmessages);
}

/* ---- heads ---- */

/* UP is the first head, and comes once. */
static gantry_result check_up(struct gantry_rx_conn *c, const struct rx_head *h)
{
	if (c->up == (h->kind == RX_UP))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s sent a control message of kind %d %s UP", c->peer, h->kind,
			 c->up ? "after" : "before");
	c->up = 1;
	return GANTRY_OK;
}

gantry_result rx_transfer_hear(struct gantry_rx_conn *c, const uint8_t *data, size_t size, bool last)
{
	struct rx_head h;
	gantry_result r;

	ASSERT_HELD(&c->rx->mu);
	if (rx_head_decode(data, size, &h) != GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s sent an invalid control message of %zu bytes", c->peer, size);
	TRY_NOW(check_up(c, &h));
	switch ((enum rx_kind)h.kind) {
	case RX_SEND:
		return last ? GANTRY_OK : recv_offered(c, &h, data + RX_HEAD_SIZE);
	case RX_END:
		return last ? GANTRY_OK : recv_ended(c, &h);
	case RX_GRANT:
		return last ? GANTRY_OK : send_granted(c, &h);
	case RX_TAKEN:
	case RX_REJECT:
		return send_answered(c, &h);
	case RX_STOP:
		r = send_stopped(c, &h);
		return last ? GANTRY_OK : r; /* the answer may not get out; more heads may be there */
	case RX_UP:
	case RX_KINDS:
		break;
	}
	return GANTRY_OK;
}

/* ---- receiving: messages ---- */

/* Where the next message of an op is to land. AGAIN: nowhere now. */
static gantry_result place_recv(struct gantry_rx_conn *c, struct gantry_rx_op *op, struct rx_flight *f, void **ret_data)
	REQUIRES(rx_mu)
{
	bool in_place = !op->ending && !op->batch.device && !rx_converts(op);
	uint64_t run = 0;
	uint8_t *at = rx_batch_run(&op->batch, &op->cursor, f->len, &run);

	if (!op->ending && !op->local && op->batch.device && c->unpack) {
		*ret_data = c->landing;
		f->mr = c->landing_mr;
		f->slot = (int)(c->in.slots % GANTRY_UNPACK_DEPTH);
		return GANTRY_OK;
	}
	if (in_place && run == f->len) {
		*ret_data = f->direct = at;
		f->touches = 1;
		return GANTRY_OK;
	}
	if (in_place && c->vec && rx_flight_list(f)) {
		f->touches = 1;
		return GANTRY_OK;
	}
	f->niov = 0;
	TRY_NOW(rx_stage_get(c->rx, &c->in, &f->stage));
	*ret_data = f->stage->host;
	return GANTRY_OK;
}

/* Posts a receive for the next message of an op. AGAIN: not now. */
static gantry_result post_recv(struct gantry_rx_conn *c, struct gantry_rx_op *op) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = c->rx->net;
	struct rx_flight *f = rx_flight_at(&c->in, c->in.tail);
	size_t size;
	void *data = NULL;
	int tag = RX_TAG_DATA;

	ASSERT(rx_flights(&c->in) < RX_DEPTH_MAX);
	reset_flight(f, op, message_len(op, op->posted));
	TRY_NOW(place_recv(c, op, f, &data));
	size = (size_t)f->len;
	if (op->local) {
		memcpy(f->stage->host, op->local, op->total);
		f->got = op->total;
		f->state = RX_FLIGHT_HERE;
	} else if (f->niov) {
		r = net->ops->irecvv(net, c->in.comm, f->iov, f->niov, tag, &f->request);
		if (r == GANTRY_ERR_UNSUPPORTED) {
			c->vec = 0;
			r = GANTRY_AGAIN;
		}
	} else {
		/* Only receives into device memory take slots of the unpack queue. */
		f->request = f->slot < 0 ? GANTRY_NET_OPTIONAL_RECV_COMPLETION : NULL;
		r = net->ops->irecv(net, c->in.comm, 1, &data, &size, &tag, &f->mr, &f->request);
	}
	if (!op->local) {
		if (r == GANTRY_OK && !f->request)
			r = GANTRY_AGAIN;
		if (r != GANTRY_OK) {
			rx_stage_put(c->rx, &c->in, f->stage);
			return r;
		}
		f->state = RX_FLIGHT_POSTED;
	}
	c->in.slots += f->slot >= 0;
	op->touching += f->touches;
	op->posted++;
	rx_batch_skip(&op->batch, &op->cursor, rx_stored(op, f->len));
	c->in.tail++;
	return GANTRY_OK;
}

/* A message is here. AGAIN: the device's work cannot be enqueued yet. */
static gantry_result take_arrival(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op = f->op;
	struct gantry_rx_counters *n = &c->rx->counters;

	ASSERT(f->state == RX_FLIGHT_HERE);
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
			rx_op_store(op, f->from, f->stage->host, f->len);
		rx_count(f->stage ? &n->staged_bytes : &n->direct_bytes, f->len);
		f->state = RX_FLIGHT_SPENT;
		return GANTRY_OK;
	}
	if (!f->touches) {
		f->works = !op->frags;
		f->touches = 1;
		op->touching++;
	}
	if (op->frags)
		TRY_NOW(rx_frags_check(c, f));
	else
		TRY_NOW(f->slot >= 0 ? rx_work_unpack(c, f) : rx_work_staged(c, f));
	rx_count(f->slot >= 0 ? &n->unpacked_bytes : &n->staged_bytes, f->len);
	f->state = op->frags ? RX_FLIGHT_LENT : RX_FLIGHT_DEVICE;
	if (++op->launched == op->nmessages && op->state == GANTRY_RX_PENDING)
		op->state = GANTRY_RX_ARRIVED;
	return GANTRY_OK;
}

/* The flight at the head is through. */
static gantry_result retire_recv(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx_op *op = f->op;
	struct gantry_net *net = c->rx->net;

	ASSERT(f->state == RX_FLIGHT_SPENT);
	if (f->slot >= 0)
		r = net->ops->irecv_consumed(net, c->in.comm, 1, f->request);
	leave_ring(c, &c->in, f);
	if (!op->ending) {
		op->bytes += f->len;
		rx_count(&c->rx->counters.received_bytes, f->len);
	}
	if (r == GANTRY_OK && !op->ending && op->finished == op->nmessages)
		r = send_answer(c, RX_TAKEN, op->transfer, 0, 0);
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
			TRY_NOW(net->ops->test(net, f->request, &done, &size));
			if (!done)
				break;
			f->got = (uint64_t)size;
			f->state = RX_FLIGHT_HERE;
			*ret_moved = 1;
		}
		if (f->state == RX_FLIGHT_HERE)
			r = take_arrival(c, f);
	}
	return r;
}

/* Is the device's work for it over? Then nothing touches the user's memory for it any more. */
static gantry_result settle_flight(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;

	if (f->state == RX_FLIGHT_DEVICE && (f->op->frags ? rx_frags_over(c, f, &r) : rx_work_over(c, f, &r)))
		f->state = RX_FLIGHT_SPENT;
	if (r == GANTRY_OK && f->state == RX_FLIGHT_SPENT && f->touches) {
		f->op->touching -= f->touches;
		f->touches = 0;
		rx_op_settle(f->op);
	}
	return r;
}

/* In the order of the ring. Behind a message that the caller keeps others cannot leave, but what they have touched is
 * let go all the same: it may have been cancelled. */
static gantry_result retire_spent(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	bool kept = false;

	for (uint32_t i = c->in.head; i != c->in.tail; i++) {
		struct rx_flight *f = rx_flight_at(&c->in, i);

		TRY_NOW(settle_flight(c, f));
		if (f->state == RX_FLIGHT_SPENT && !kept) {
			*ret_moved = 1;
			TRY_NOW(retire_recv(c, f));
		} else if (kept || f->op->frags) {
			kept = true;
		} else {
			break;
		}
	}
	return GANTRY_OK;
}

static gantry_result post_recvs(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu)
{
	struct gantry_rx_op *op;

	while (rx_flights(&c->in) < c->rx->depth && (op = next_op(&c->in))) {
		TRY_NOW(post_recv(c, op));
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
		r = post_recvs(c, ret_moved);
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}
