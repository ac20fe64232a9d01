/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out: the head of each request into a slot of its peer's, with its data if that is small, then the pieces of larger data, from where they lie in
 * host memory or through stages where the device has to copy them. Heads and pieces have tags of their own, so neither waits for the
 * other; each kind leaves in order.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "base/clock.h"
#include "base/log.h"
#include "rma/rma_priv.h"

static struct rma_request *first_of(struct gantry_list *list)
{
	return gantry_list_empty(list) ? NULL : gantry_container(list->next, struct rma_request, queue);
}

/* Gets ask for memory at the peer, so there are not too many of them. They wait in a list of their own: answers must pass them. */
void rma_tx_queue(struct rma_request *q)
{
	struct rma_tx *tx = &q->peer->tx;
	const bool get = q->head.what == RMA_GET && q->peer->end;
	const bool held = get && tx->gets == RMA_GETS_OUT;

	q->since = gantry_now_ns();
	gantry_list_append(held ? &tx->held : &tx->waiting, &q->queue);
	tx->gets += get && !held;
}

void rma_tx_answered(struct rma_peer *p)
{
	struct rma_tx *tx = &p->tx;
	struct rma_request *next = first_of(&tx->held);

	ASSERT(tx->gets);
	tx->gets -= !next;
	if (!next)
		return;
	gantry_list_remove(&next->queue);
	gantry_list_append(&tx->waiting, &next->queue);
}

static gantry_result is_sent(void **net)
{
	int done = 0;

	TRY_NOW(RMA_NET(test, *net, &done, NULL));
	if (!done)
		return GANTRY_AGAIN;
	*net = NULL;
	return GANTRY_OK;
}

/* ---- heads ---- */

static gantry_result fill_head(struct rma_comm *c, struct rma_peer *p, struct rma_request *q) REQUIRES(rma_mu)
{
	struct rma_tx *tx = &p->tx;
	struct rma_head_out *h = &tx->heads[tx->heads_filled % RMA_HEADS_OUT];
	uint32_t inlined = rma_inlined(&q->head, c->inline_most);

	ASSERT(tx->heads_filled < tx->heads_over + RMA_HEADS_OUT);
	*h = (struct rma_head_out){.slot = h->slot, .size = RMA_HEADER + inlined};
	tx->heads_filled++;
	rma_encode(&q->head, c->inline_most, h->slot);
	TRY_NOW(rma_copy(c, (struct rma_span){(char *)h->slot + RMA_HEADER, false}, q->local, inlined, &h->fence));
	gantry_list_remove(&q->queue);
	if (q->head.what == RMA_GET)
		return GANTRY_OK; /* done when it is answered */
	if (inlined < q->head.bytes)
		gantry_list_append(&tx->bulk, &q->queue);
	else if (h->fence.pending)
		h->request = q;
	else
		rma_request_done(q);
	return GANTRY_OK;
}

/* AGAIN: its data is not in the slot yet, or the network takes nothing. */
static gantry_result send_head(struct rma_comm *c, struct rma_peer *p, struct rma_head_out *h) REQUIRES(rma_mu)
{
	TRY_NOW(rma_fence_over(c, &h->fence));
	if (h->request) {
		rma_request_done(h->request);
		h->request = NULL;
	}
	TRY_NOW(RMA_NET(isend, p->end->out, h->slot, h->size, RMA_TAG_HEAD, NULL, &h->net));
	return h->net ? GANTRY_OK : GANTRY_AGAIN;
}

/* Those that the network has taken free their slots. */
static gantry_result end_heads(struct rma_tx *tx)
{
	while (tx->heads_over < tx->heads_sent) {
		TRY_NOW(is_sent(&tx->heads[tx->heads_over % RMA_HEADS_OUT].net));
		tx->heads_over++;
	}
	return GANTRY_OK;
}

/*
 * While the network is not asked about earlier ones it lets further ones wait for each other, and sends them together: so that is done
 * by progress, and here only when there is no slot.
 */
static gantry_result begin_heads(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	struct rma_tx *tx = &p->tx;
	gantry_result r = GANTRY_OK;
	struct rma_request *q;

	if (tx->heads_filled == tx->heads_over + RMA_HEADS_OUT)
		r = end_heads(tx);
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	while (tx->heads_filled < tx->heads_over + RMA_HEADS_OUT && (q = first_of(&tx->waiting)))
		TRY_NOW(fill_head(c, p, q));
	for (r = GANTRY_OK; r == GANTRY_OK && tx->heads_sent < tx->heads_filled;) {
		r = send_head(c, p, &tx->heads[tx->heads_sent % RMA_HEADS_OUT]);
		tx->heads_sent += r == GANTRY_OK;
	}
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

/* ---- pieces ---- */

/* The next one of the oldest request. AGAIN: there is no stage for it. */
static gantry_result fill_piece(struct rma_comm *c, struct rma_peer *p, struct rma_request *q) REQUIRES(rma_mu)
{
	struct rma_tx *tx = &p->tx;
	struct rma_piece_out *o = &tx->pieces[tx->pieces_filled % RMA_PIECES_OUT];
	uint64_t left = q->head.bytes - q->begun;

	if (q->local.device && !c->stages_out.nfree)
		return GANTRY_AGAIN;
	*o = (struct rma_piece_out){.request = q, .size = (uint32_t)(left < c->piece ? left : c->piece)};
	o->data = q->local.at + q->begun;
	if (q->local.device) {
		o->stage = c->stages_out.free[--c->stages_out.nfree];
		tx->pieces_filled++;
		TRY_NOW(rma_copy(c, (struct rma_span){(char *)o->stage, false}, (struct rma_span){o->data, true},
				 o->size, &o->fence));
		o->data = (char *)o->stage;
	} else {
		tx->pieces_filled++;
	}
	q->begun += o->size;
	if (q->begun == q->head.bytes)
		gantry_list_remove(&q->queue);
	return GANTRY_OK;
}

/* The user's memory is not read any more for this piece. */
static void note_over(struct rma_piece_out *o) REQUIRES(rma_mu)
{
	struct rma_request *q = o->request;

	q->over += o->size;
	o->request = NULL;
	if (q->over == q->head.bytes)
		rma_request_done(q);
}

static gantry_result send_piece(struct rma_comm *c, struct rma_peer *p, struct rma_piece_out *o) REQUIRES(rma_mu)
{
	TRY_NOW(rma_fence_over(c, &o->fence));
	if (o->stage && o->request)
		note_over(o);
	TRY_NOW(RMA_NET(isend, p->end->out, o->data, o->size, RMA_TAG_BULK, NULL, &o->net));
	return o->net ? GANTRY_OK : GANTRY_AGAIN;
}

static gantry_result end_piece(struct rma_comm *c, struct rma_piece_out *o) REQUIRES(rma_mu)
{
	TRY_NOW(is_sent(&o->net));
	RMA_MOVED(c);
	if (o->stage)
		c->stages_out.free[c->stages_out.nfree++] = o->stage;
	else
		note_over(o);
	return GANTRY_OK;
}

static gantry_result move_pieces(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	struct rma_tx *tx = &p->tx;
	gantry_result r;
	struct rma_request *q;

	for (r = GANTRY_OK; r == GANTRY_OK && tx->pieces_over < tx->pieces_sent;) {
		r = end_piece(c, &tx->pieces[tx->pieces_over % RMA_PIECES_OUT]);
		tx->pieces_over += r == GANTRY_OK;
	}
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	for (r = GANTRY_OK; r == GANTRY_OK && tx->pieces_filled < tx->pieces_over + RMA_PIECES_OUT;) {
		q = first_of(&tx->bulk);
		r = q ? fill_piece(c, p, q) : GANTRY_AGAIN;
	}
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	for (r = GANTRY_OK; r == GANTRY_OK && tx->pieces_sent < tx->pieces_filled;) {
		r = send_piece(c, p, &tx->pieces[tx->pieces_sent % RMA_PIECES_OUT]);
		tx->pieces_sent += r == GANTRY_OK;
	}
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

/* ---- to this rank itself ---- */

enum { OWN_AT_ONCE = 4 << 20 };

/*
 * Within the device the driver may copy with a kernel, which needs room beside those that wait for it. So such data goes through stages, as
 * if to another rank: out, filled; in again, sent.
 */
static gantry_result fill_own(struct rma_comm *c, struct rma_peer *p, struct rma_request *q, struct rma_span from)
	REQUIRES(rma_mu)
{
	struct rma_tx *tx = &p->tx;

	while (tx->pieces_filled < tx->pieces_over + RMA_PIECES_OUT && q->begun < q->head.bytes &&
	       c->stages_out.nfree) {
		struct rma_piece_out *o = &tx->pieces[tx->pieces_filled++ % RMA_PIECES_OUT];
		uint64_t left = q->head.bytes - q->begun;

		*o = (struct rma_piece_out){.request = q,
					    .stage = c->stages_out.free[--c->stages_out.nfree],
					    .size = (uint32_t)(left < c->piece ? left : c->piece)};
		TRY_NOW(rma_copy(c, (struct rma_span){(char *)o->stage, false},
				 (struct rma_span){from.at + q->begun, true}, o->size, &o->fence));
		q->begun += o->size;
	}
	return GANTRY_OK;
}

static gantry_result send_own(struct rma_comm *c, struct rma_peer *p, struct rma_request *q, struct rma_span to)
	REQUIRES(rma_mu)
{
	struct rma_tx *tx = &p->tx;

	for (; tx->pieces_sent < tx->pieces_filled; tx->pieces_sent++) {
		struct rma_piece_out *o = &tx->pieces[tx->pieces_sent % RMA_PIECES_OUT];

		TRY_NOW(rma_fence_over(c, &o->fence));
		TRY_NOW(rma_copy(c, (struct rma_span){to.at + q->over, true},
				 (struct rma_span){(char *)o->stage, false}, o->size, &o->fence));
		q->over += o->size;
		q->fence = o->fence;
		o->request = NULL;
	}
	return GANTRY_OK;
}

static gantry_result end_own(struct rma_comm *c, struct rma_tx *tx) REQUIRES(rma_mu)
{
	for (; tx->pieces_over < tx->pieces_sent; tx->pieces_over++) {
		struct rma_piece_out *o = &tx->pieces[tx->pieces_over % RMA_PIECES_OUT];

		TRY_NOW(rma_fence_over(c, &o->fence));
		c->stages_out.free[c->stages_out.nfree++] = o->stage;
	}
	return GANTRY_OK;
}

/* AGAIN: not all of it yet. */
static gantry_result copy_staged(struct rma_comm *c, struct rma_peer *p, struct rma_request *q, struct rma_span to,
				 struct rma_span from) REQUIRES(rma_mu)
{
	gantry_result r;

	TRY_NOW(fill_own(c, p, q, from));
	r = send_own(c, p, q, to);
	return r == GANTRY_OK && q->over < q->head.bytes ? GANTRY_AGAIN : r;
}

/* AGAIN: not all of it yet. */
static gantry_result copy_straight(struct rma_comm *c, struct rma_request *q, struct rma_span to, struct rma_span from)
	REQUIRES(rma_mu)
{
	uint64_t n = q->head.bytes - q->begun;

	n = n < OWN_AT_ONCE ? n : OWN_AT_ONCE;
	if (n)
		TRY_NOW(rma_copy(c, (struct rma_span){to.at + q->begun, to.device},
				 (struct rma_span){from.at + q->begun, from.device}, n, &q->fence));
	q->begun += n;
	return q->begun < q->head.bytes ? GANTRY_AGAIN : GANTRY_OK;
}

/* Copies some of the oldest request; all of it is an operation like those of others. */
static gantry_result move_own(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	gantry_result r = end_own(c, &p->tx);
	struct rma_request *q = first_of(&p->tx.waiting);
	struct rma_span there, to, from;
	struct rma_op *op;

	if ((r != GANTRY_OK && r != GANTRY_AGAIN) || !q)
		return r == GANTRY_AGAIN ? GANTRY_OK : r;
	TRY_NOW(rma_span_of(c, q->head.at, q->head.bytes, &there));
	to = q->head.what == RMA_GET ? q->local : there;
	from = q->head.what == RMA_GET ? there : q->local;
	r = to.device && from.device ? copy_staged(c, p, q, to, from) : copy_straight(c, q, to, from);
	if (r != GANTRY_OK)
		return r == GANTRY_AGAIN ? GANTRY_OK : r;
	TRY_NOW(rma_op_get(c, &op));
	op->head = q->head;
	op->to = to;
	op->from = from.at;
	op->fence = q->fence;
	op->request = q;
	gantry_list_remove(&q->queue);
	return rma_rx_own(c, op);
}

gantry_result rma_tx_begin(struct rma_comm *c, struct rma_peer *p)
{
	if (!p->end)
		return move_own(c, p);
	TRY_NOW(begin_heads(c, p));
	return gantry_list_empty(&p->tx.bulk) ? GANTRY_OK : move_pieces(c, p);
}

gantry_result rma_tx_progress(struct rma_comm *c, struct rma_peer *p)
{
	gantry_result r = p->end ? end_heads(&p->tx) : GANTRY_OK;

	if (r == GANTRY_OK || r == GANTRY_AGAIN)
		r = rma_tx_begin(c, p);
	if (r == GANTRY_OK && p->end && gantry_list_empty(&p->tx.bulk))
		r = move_pieces(c, p);
	return r;
}
