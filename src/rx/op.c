/* SPDX-License-Identifier: Apache-2.0 */
/* Ops: what the user posts, waits for, cancels and frees. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/api.h"
#include "base/clock.h"
#include "base/param.h"
#include "rx/rx.h"

/* ---- life ---- */

static void op_unref(struct gantry_rx_op *op)
{
	ASSERT(op->refs > 0);
	if (--op->refs)
		return;
	if (op->event)
		op->rx->device->ops->event_destroy(op->rx->device, op->event);
	rx_batch_free(&op->batch);
	free(op->local);
	free(op);
}

void rx_op_done(struct gantry_rx_op *op, gantry_result r, const char *fmt, ...)
{
	va_list args;

	if (op->state == GANTRY_RX_DONE)
		return;
	op->state = GANTRY_RX_DONE;
	op->result = r;
	rx_batch_release(&op->batch); /* the transfer may go on for a while */
	va_start(args, fmt);
	vsnprintf(op->text, sizeof(op->text), fmt, args);
	va_end(args);
	RX_DEBUG(op->rx, "%s of tag %llu done: %s, %llu bytes%s%s", op->send ? "send" : "receive",
		 (unsigned long long)op->tag, gantry_result_name(r), (unsigned long long)op->bytes,
		 op->text[0] ? ": " : "", op->text);
}

void rx_op_over(struct gantry_rx_op *op)
{
	ASSERT(op->phase != RX_OVER && op->conn);
	gantry_list_remove(&op->node);
	op->phase = RX_OVER;
	op->conn = NULL;
	op_unref(op);
}

void rx_op_cancelled(struct gantry_rx_op *op)
{
	ASSERT(op->ending && !op->touching);
	rx_op_done(op, GANTRY_ERR_CANCELLED, "cancelled by %s after %llu of %llu bytes (tag %llu)",
		   op->by_peer ? op->conn->peer : "the caller", (unsigned long long)op->bytes,
		   (unsigned long long)op->total, (unsigned long long)op->tag);
}

/* All messages that there will be are finished. */
static bool is_through(const struct gantry_rx_op *op)
{
	if (op->phase != RX_GRANTED && op->phase != RX_LOCAL)
		return false;
	if (op->posted == op->nmessages)
		return op->finished == op->nmessages;
	return op->told && op->heard && op->finished == op->limit;
}

void rx_op_settle(struct gantry_rx_op *op)
{
	unsigned long long tag = op->tag;
	bool through = is_through(op);

	if (op->phase == RX_WAITING) {
		if (op->ending)
			rx_op_done(op, GANTRY_ERR_CANCELLED,
				   "cancelled by the caller before %s (tag %llu); %s was not involved",
				   op->send ? "it was offered" : "a send matched it", tag, op->conn->peer);
		return;
	}
	if (op->ending && !op->touching)
		rx_op_cancelled(op);
	if (!op->ending && through && (op->taken || !op->send)) /* a receive needs no word of the peer */
		rx_op_done(op, GANTRY_OK, "%s", "");
	if (through && (op->ending || op->taken || !op->send))
		rx_op_over(op);
}

/* What the user asks for. */
struct posting {
	const struct gantry_rx_piece *pieces;
	size_t n;
	uint64_t tag;
	const struct rx_as *as;
	int send;
	bool frags;
	uint64_t bytes; /* frags: how many at most */
};

static gantry_result create_op(struct gantry_rx_conn *c, const struct posting *what, struct gantry_rx_op **ret_op)
	REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx_op *op = NULL;

	if (c->error != GANTRY_OK)
		FAIL(c->error, "%s", c->error_text);
	op = calloc(1, sizeof(*op));
	if (!op)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a transfer");
	op->rx = c->rx;
	op->rx->stall.since = 0; /* it has had no time to move */
	op->conn = c;
	op->send = what->send;
	op->tag = what->tag;
	op->refs = 2;
	op->result = GANTRY_AGAIN;
	gantry_list_init(&op->node);
	op->as = *what->as;
	TRY(rx_batch_init(c->rx, what->pieces, what->n, &op->batch));
	TRY(rx_as_fits(what->as, &op->batch));
	if (what->frags) {
		op->frags = true;
		op->batch.device = 1;
		op->batch.bytes = what->bytes;
		rx_lists_reserve(c->rx);
	}
	op->total = op->batch.bytes;
	*ret_op = op;
	op = NULL;
out:
	if (op)
		rx_batch_free(&op->batch);
	free(op);
	return r;
}

static gantry_result post_op(struct gantry_rx_conn *c, const struct posting *what, struct gantry_rx_op **ret_op)
{
	gantry_result r, posted = GANTRY_OK;
	struct gantry_rx_op *op = NULL;

	rx_mu_lock(&c->rx->mu);
	r = create_op(c, what, &op);
	if (r == GANTRY_OK) {
		*ret_op = op;
		if (what->send) {
			op->transfer = c->next_transfer++;
			op->inlined = !op->batch.device && op->total <= RX_INLINE_MAX;
			gantry_list_append(&c->out.waiting, &op->node);
		} else {
			posted = rx_recv_match(op);
		}
		/* An error while posting is the connection's; the op says it too. */
		if (posted != GANTRY_OK)
			rx_conn_fail(c, posted, "%s: %s", c->peer, gantry_last_error());
		else
			rx_conn_progress(c);
	}
	rx_mu_unlock(&c->rx->mu);
	return r;
}

const struct rx_as rx_as_it_is = {0, 0, 1, 1};

gantry_result gantry_rx_send(struct gantry_rx_conn *conn, const struct gantry_rx_piece *pieces, size_t n, uint64_t tag,
			     struct gantry_rx_op **ret_op)
{
	return post_op(conn, &(struct posting){.pieces = pieces, .n = n, .tag = tag, .as = &rx_as_it_is, .send = 1},
		       ret_op);
}

gantry_result gantry_rx_recv(struct gantry_rx_conn *conn, const struct gantry_rx_piece *pieces, size_t n, uint64_t tag,
			     struct gantry_rx_op **ret_op)
{
	return post_op(conn, &(struct posting){.pieces = pieces, .n = n, .tag = tag, .as = &rx_as_it_is}, ret_op);
}

gantry_result gantry_rx_recv_as(struct gantry_rx_conn *conn, const struct gantry_rx_piece *pieces, size_t n,
				uint64_t tag, enum gantry_type sent, enum gantry_type stored,
				struct gantry_rx_op **ret_op)
{
	struct rx_as as;

	TRY_NOW(rx_as_init(sent, stored, &as));
	return post_op(conn, &(struct posting){.pieces = pieces, .n = n, .tag = tag, .as = &as}, ret_op);
}

gantry_result gantry_rx_recv_frags(struct gantry_rx_conn *conn, uint64_t bytes, uint64_t tag,
				   struct gantry_rx_op **ret_op)
{
	return post_op(conn, &(struct posting){.tag = tag, .as = &rx_as_it_is, .frags = true, .bytes = bytes}, ret_op);
}

/* ---- waiting ---- */

enum gantry_rx_state gantry_rx_test(struct gantry_rx_op *op)
{
	struct gantry_rx *rx = op->rx;
	enum gantry_rx_state state;

	rx_mu_lock(&rx->mu);
	if (op->state != GANTRY_RX_DONE)
		rx_progress(rx);
	state = op->state;
	rx_mu_unlock(&rx->mu);
	return state;
}

size_t gantry_rx_poll(struct gantry_rx *rx, struct gantry_rx_op *const *ops, size_t n)
{
	size_t done = 0;

	rx_mu_lock(&rx->mu);
	rx_progress(rx);
	for (size_t i = 0; i < n; i++)
		done += ops[i] && ops[i]->state == GANTRY_RX_DONE;
	rx_mu_unlock(&rx->mu);
	return done;
}

void rx_idle(struct gantry_rx *rx, struct gantry_waiter *w, int moved, uint64_t deadline)
{
	uint64_t now = gantry_now_ns(), longest = gantry_params()->proxy_sleep;

	rx_mu_unlock(&rx->mu);
	if (moved)
		gantry_waiter_done(w);
	if (longest && now + longest > deadline)
		longest = deadline > now ? deadline - now : 1;
	gantry_waiter_idle(w, longest);
	rx_mu_lock(&rx->mu);
}

/* Until the op is done. 0: it is not, and the time is over. The mutex is let go in between. */
static int wait_done(struct gantry_rx_op *op, uint64_t deadline) REQUIRES(rx_mu)
{
	struct gantry_rx *rx = op->rx;
	struct gantry_waiter idle;

	gantry_waiter_init(&idle, NULL);
	while (op->state != GANTRY_RX_DONE) {
		int moved = rx_progress(rx);

		if (op->state == GANTRY_RX_DONE)
			break;
		if (gantry_now_ns() >= deadline)
			return 0;
		rx_idle(rx, &idle, moved, deadline);
	}
	return 1;
}

gantry_result gantry_rx_wait(struct gantry_rx_op *op, int64_t timeout_ns)
{
	uint64_t deadline;
	gantry_result r;

	TRY_NOW(gantry_deadline(timeout_ns, gantry_params()->timeout, &deadline));
	rx_mu_lock(&op->rx->mu);
	r = wait_done(op, deadline) ? op->result : GANTRY_ERR_TIMEOUT;
	rx_mu_unlock(&op->rx->mu);
	return r;
}

gantry_result gantry_rx_stream_wait(struct gantry_rx_op *op, struct gantry_stream *stream)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx *rx = op->rx;
	struct gantry_device *dev = rx->device;

	rx_mu_lock(&rx->mu);
	if (op->state == GANTRY_RX_PENDING)
		rx_progress(rx);
	if (op->state == GANTRY_RX_PENDING) {
		r = GANTRY_AGAIN;
		goto out;
	}
	if (op->state == GANTRY_RX_DONE) {
		r = op->result;
		goto out;
	}
	if (op->frags)
		FAIL(GANTRY_ERR_USAGE, "fragments are put in place by the caller: nothing of this op is in a stream");
	/* Behind the op's last launch, since those of a direction are in one stream. */
	if (!op->event)
		TRY(dev->ops->event_create(dev, &op->event));
	TRY(dev->ops->event_record(dev, op->event, rx->in_stream));
	TRY(dev->ops->stream_wait(dev, stream, op->event));
out:
	rx_mu_unlock(&rx->mu);
	return r;
}

/* ---- ending ---- */

static void cancel_op(struct gantry_rx_op *op, uint64_t deadline) REQUIRES(rx_mu)
{
	struct gantry_rx_conn *c = op->conn;
	uint64_t since = gantry_now_ns();
	gantry_result r;

	if (op->state == GANTRY_RX_DONE)
		return;
	r = rx_transfer_cancel(op);
	if (r != GANTRY_OK)
		rx_conn_fail(c, r, "%s: %s", c->peer, gantry_last_error());
	if (!wait_done(op, deadline))
		rx_conn_fail(op->conn, GANTRY_ERR_TIMEOUT,
			     "%s did not release a cancelled transfer within %.1f s: closing the connection",
			     op->conn->peer, (double)(gantry_now_ns() - since) / 1e9);
}

gantry_result gantry_rx_cancel(struct gantry_rx_op *op, int64_t timeout_ns)
{
	uint64_t deadline;
	gantry_result r;

	TRY_NOW(gantry_deadline(timeout_ns, gantry_params()->timeout, &deadline));
	rx_mu_lock(&op->rx->mu);
	cancel_op(op, deadline);
	r = op->result;
	rx_mu_unlock(&op->rx->mu);
	return r;
}

gantry_result gantry_rx_op_result(const struct gantry_rx_op *op, struct gantry_rx_result *ret_result)
{
	struct gantry_rx_result own = {.result = GANTRY_AGAIN, .text = ""};

	rx_mu_lock(&op->rx->mu);
	own.bytes = op->bytes;
	if (op->state == GANTRY_RX_DONE) {
		own.result = op->result;
		own.text = op->text;
	}
	rx_mu_unlock(&op->rx->mu);
	return STRUCT_GIVE(ret_result, &own, gantry_rx_result);
}

void gantry_rx_op_free(struct gantry_rx_op *op)
{
	struct gantry_rx *rx;

	if (!op)
		return;
	rx = op->rx;
	rx_mu_lock(&rx->mu);
	if (op->state != GANTRY_RX_DONE && rx_frags_give_all(op))
		rx_conn_progress(op->conn); /* it is complete, and its transfer lives on until nothing reads it */
	else
		cancel_op(op, gantry_now_ns() + gantry_params()->timeout);
	op_unref(op);
	rx_mu_unlock(&rx->mu);
}
