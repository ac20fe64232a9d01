/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In: heads are received into buffers of this rank's, one after the other; what a head announces is checked against this rank's
 * memory, and its pieces are received there, or in stages where the device has to copy them. An operation counts when its data is in
 * place, or in the device's queue before whatever shows that it is, and all operations before it in its context count.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "rma/rma_priv.h"

/* ---- its life ---- */

void rma_rx_init(struct rma_rx *rx)
{
	gantry_list_init(&rx->bulk);
	gantry_list_init(&rx->active);
	gantry_list_init(&rx->answers);
}

void rma_rx_free(struct rma_rx *rx)
{
	for (uint32_t i = 0; i < rx->ncontexts; i++)
		free(rx->contexts[i]);
	free(rx->contexts);
}

static gantry_result context_of(struct rma_rx *rx, uint32_t number, struct rma_context **ret)
{
	ASSERT(number < RMA_CONTEXTS_MAX);
	if (number >= rx->ncontexts) {
		uint32_t n = rx->ncontexts ? rx->ncontexts : 4;
		struct rma_context **grown;

		while (n <= number)
			n *= 2;
		grown = realloc(rx->contexts, n * sizeof(*grown));
		if (!grown)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %u contexts", n);
		for (; rx->ncontexts < n; rx->ncontexts++)
			grown[rx->ncontexts] = NULL;
		rx->contexts = grown;
	}
	if (!rx->contexts[number]) {
		struct rma_context *x = calloc(1, sizeof(*x));

		if (!x)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a context");
		gantry_list_init(&x->node);
		gantry_list_init(&x->ops);
		rx->contexts[number] = x;
	}
	*ret = rx->contexts[number];
	return GANTRY_OK;
}

static gantry_result append_op(struct rma_rx *rx, struct rma_op *op)
{
	struct rma_context *x = NULL;

	TRY_NOW(context_of(rx, op->head.context, &x));
	if (gantry_list_empty(&x->ops))
		gantry_list_append(&rx->active, &x->node);
	gantry_list_append(&x->ops, &op->order);
	op->context = x;
	return GANTRY_OK;
}

/* ---- what a head says ---- */

static gantry_result find_word(struct rma_comm *c, struct rma_op *op) REQUIRES(rma_mu)
{
	const struct rma_signal *s = &op->head.signal;

	if (s->at.memory == RMA_NO_MEMORY)
		return GANTRY_OK;
	TRY_NOW(rma_span_of(c, s->at, sizeof(uint64_t), &op->word));
	if ((uintptr_t)op->word.at % sizeof(uint64_t))
		FAIL_NOW(GANTRY_ERR_INVALID, "rank %u: a signal at %llu of memory %u is not aligned", c->rank,
			 (unsigned long long)s->at.offset, s->at.memory);
	return op->word.device ? rma_signal_expect(c, op->word, &op->expected) : GANTRY_OK;
}

static gantry_result find_answered(struct rma_comm *c, const struct rma_peer *p, struct rma_op *op) REQUIRES(rma_mu)
{
	uint64_t slot = op->head.id & UINT32_MAX;
	struct rma_request *q = slot < c->ngets ? c->gets[slot] : NULL;

	if (!q || q->head.id != op->head.id || q->peer != p || q->head.bytes != op->head.bytes ||
	    !gantry_list_empty(&q->queue)) /* its head has not even left */
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %u answered a get that it was not asked for", p->rank);
	c->gets[slot] = NULL;
	op->request = q;
	op->to = q->local;
	return GANTRY_OK;
}

/* Whatever is wrong with it is the peer's doing. */
static gantry_result check_op(struct rma_comm *c, const struct rma_peer *p, struct rma_op *op) REQUIRES(rma_mu)
{
	gantry_result r = op->head.what == RMA_REPLY ? find_answered(c, p, op)
						     : rma_span_of(c, op->head.at, op->head.bytes, &op->to);

	if (r == GANTRY_OK)
		r = find_word(c, op);
	if (r == GANTRY_ERR_INVALID) {
		char why[256];

		snprintf(why, sizeof(why), "%s", gantry_last_error());
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "invalid request of rank %u to %s", p->rank, why);
	}
	return r;
}

/* A word for the device travels in the queue itself, which is cheaper than a copy, and leaves the buffer of the head free. */
static gantry_result take_inlined(struct rma_comm *c, struct rma_head_in *h, struct rma_op *op, uint32_t bytes)
	REQUIRES(rma_mu)
{
	gantry_result r = GANTRY_ERR_UNSUPPORTED;
	uint64_t word;

	if (op->to.device && bytes == sizeof(word) && (uintptr_t)op->to.at % sizeof(word) == 0) {
		memcpy(&word, h->buffer + RMA_HEADER, sizeof(word));
		r = rma_store(c, op->to.at, word, &op->fence);
	}
	if (r != GANTRY_ERR_UNSUPPORTED)
		return r;
	TRY_NOW(rma_copy(c, op->to, (struct rma_span){(char *)h->buffer + RMA_HEADER, false}, bytes, &h->fence));
	op->fence = h->fence;
	return GANTRY_OK;
}

static gantry_result take_head(struct rma_comm *c, struct rma_peer *p, struct rma_head_in *h, size_t size)
	REQUIRES(rma_mu)
{
	struct rma_rx *rx = &p->rx;
	struct rma_op *op;
	uint32_t inlined;

	TRY_NOW(rma_op_get(c, &op));
	rx->nops++;
	if (rma_decode(h->buffer, size, c->inline_most, &op->head) != GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %u sent %zu bytes that are no request", p->rank, size);
	if (op->head.what == RMA_FAILED)
		return rma_heard(c, p, &op->head, h->buffer + RMA_HEADER);
	TRY_NOW(check_op(c, p, op));
	inlined = rma_inlined(&op->head, c->inline_most);
	op->left = op->head.what == RMA_GET ? 0 : op->head.bytes - inlined;
	if (op->head.what != RMA_GET)
		RMA_COUNT(c, bytes_in, op->head.bytes);
	TRY_NOW(take_inlined(c, h, op, inlined));
	op->posted = inlined;
	if (op->left)
		gantry_list_append(&rx->bulk, &op->queue);
	if (op->head.what != RMA_REPLY)
		return append_op(rx, op);
	gantry_list_append(&rx->answers, &op->order);
	return GANTRY_OK;
}

/* ---- receiving ---- */

/* A peer that has nothing more to do closes its end, which is no error as long as nothing is missing. */
static gantry_result note_closed(struct rma_peer *p, gantry_result r) REQUIRES(rma_mu)
{
	if (r != GANTRY_ERR_PEER_CLOSED || !gantry_list_empty(&p->rx.bulk) ||
	    p->rx.pieces_arrived != p->rx.pieces_posted)
		return r;
	gantry_list_each_entry (q, &p->open, struct rma_request, open)
		if (q->head.what == RMA_GET)
			return r;
	p->rx.closed = true;
	return GANTRY_OK;
}

/* AGAIN: not now. */
static gantry_result post_receive(struct rma_peer *p, void *data, size_t size, int tag, void **ret_net)
{
	void *net = NULL;

	TRY_NOW(RMA_NET(irecv, p->end->in, 1, &data, &size, &tag, NULL, &net));
	*ret_net = net;
	return net ? GANTRY_OK : GANTRY_AGAIN;
}

static gantry_result is_received(void **net, size_t *ret_size)
{
	int done = 0, size = 0;

	TRY_NOW(RMA_NET(test, *net, &done, &size));
	if (!done)
		return GANTRY_AGAIN;
	*net = NULL;
	*ret_size = (size_t)size;
	return GANTRY_OK;
}

/* AGAIN: no more now. */
static gantry_result take_heads(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	struct rma_rx *rx = &p->rx;
	size_t size;

	while (rx->heads_taken < rx->heads_posted && rx->nops < RMA_OPS_MOST) {
		struct rma_head_in *h = &rx->heads[rx->heads_taken % RMA_HEADS_IN];
		gantry_result r = is_received(&h->net, &size);

		if (r != GANTRY_OK)
			return r == GANTRY_AGAIN ? r : note_closed(p, r);
		rx->heads_taken++;
		RMA_MOVED(c);
		TRY_NOW(take_head(c, p, h, size));
	}
	return GANTRY_OK;
}

static gantry_result move_heads(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	struct rma_rx *rx = &p->rx;
	gantry_result r = take_heads(c, p);

	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	for (r = GANTRY_OK; r == GANTRY_OK && rx->heads_over < rx->heads_taken;) {
		r = rma_fence_over(c, &rx->heads[rx->heads_over % RMA_HEADS_IN].fence);
		rx->heads_over += r == GANTRY_OK;
	}
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	for (r = GANTRY_OK; r == GANTRY_OK && rx->heads_posted < rx->heads_over + RMA_HEADS_IN;) {
		struct rma_head_in *h = &rx->heads[rx->heads_posted % RMA_HEADS_IN];

		r = post_receive(p, h->buffer, RMA_HEADER + c->inline_most, RMA_TAG_HEAD, &h->net);
		rx->heads_posted += r == GANTRY_OK;
	}
	/* What has a receive may have come since take_heads looked: then only a test of that receive shows whether more is to come. */
	if (r == GANTRY_ERR_PEER_CLOSED && rx->heads_taken < rx->heads_posted)
		return GANTRY_OK;
	return r == GANTRY_OK || r == GANTRY_AGAIN ? GANTRY_OK : note_closed(p, r);
}

/*
 * A stage is held from the moment at which its receive is posted until its bytes are in the device. One is left for each peer that
 * holds none: else a peer whose data waits for something could hold all of them, and that something could be data of another peer, which
 * waits for a stage here. Among three ranks that is a circle, since senders have to find stages, too.
 */
static bool may_take_stage(const struct rma_comm *c, const struct rma_rx *rx) REQUIRES(rma_mu)
{
	return c->stages_in.nfree > (rx->stages ? c->ranks - 1 - c->stage_owners : 0);
}

static void take_stage(struct rma_comm *c, struct rma_rx *rx) REQUIRES(rma_mu)
{
	c->stages_in.nfree--;
	c->stage_owners += !rx->stages++;
}

static void return_stage(struct rma_comm *c, struct rma_rx *rx, uint8_t *stage) REQUIRES(rma_mu)
{
	c->stages_in.free[c->stages_in.nfree++] = stage;
	c->stage_owners -= !--rx->stages;
}

/* The next piece of the oldest operation that has some. */
static gantry_result post_piece(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	struct rma_rx *rx = &p->rx;
	struct rma_piece_in *i = &rx->pieces[rx->pieces_posted % RMA_PIECES_IN];
	struct rma_op *op;
	uint64_t left;

	if (gantry_list_empty(&rx->bulk))
		return GANTRY_AGAIN;
	op = gantry_container(rx->bulk.next, struct rma_op, queue);
	left = op->head.bytes - op->posted;
	if (op->to.device && !may_take_stage(c, rx))
		return GANTRY_AGAIN;
	*i = (struct rma_piece_in){.op = op, .size = (uint32_t)(left < c->piece ? left : c->piece), .at = op->posted};
	i->data = op->to.at + op->posted;
	if (op->to.device) {
		i->stage = c->stages_in.free[c->stages_in.nfree - 1];
		i->data = (char *)i->stage;
	}
	TRY_NOW(post_receive(p, i->data, i->size, RMA_TAG_BULK, &i->net));
	if (i->stage)
		take_stage(c, rx);
	op->posted += i->size;
	rx->pieces_posted++;
	if (op->posted == op->head.bytes)
		gantry_list_remove(&op->queue);
	return GANTRY_OK;
}

static gantry_result take_piece(struct rma_comm *c, struct rma_peer *p, struct rma_piece_in *i) REQUIRES(rma_mu)
{
	struct rma_op *op = i->op;
	size_t size = 0;

	TRY_NOW(is_received(&i->net, &size));
	if (size != i->size)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %u sent %zu bytes of a put, expected %u", p->rank, size, i->size);
	if (i->stage) {
		TRY_NOW(rma_copy(c, (struct rma_span){op->to.at + i->at, true},
				 (struct rma_span){(char *)i->stage, false}, i->size, &i->fence));
		op->fence = i->fence;
	}
	op->left -= i->size;
	RMA_MOVED(c);
	return GANTRY_OK;
}

/* Those whose copies are over return their stages, and further ones get a receive. AGAIN: no more now. */
static gantry_result turn_pieces(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	struct rma_rx *rx = &p->rx;
	gantry_result r = GANTRY_OK;

	while (r == GANTRY_OK && rx->pieces_over < rx->pieces_arrived) {
		struct rma_piece_in *i = &rx->pieces[rx->pieces_over % RMA_PIECES_IN];

		r = rma_fence_over(c, &i->fence);
		if (r == GANTRY_OK && i->stage)
			return_stage(c, rx, i->stage);
		rx->pieces_over += r == GANTRY_OK;
	}
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	for (r = GANTRY_OK; r == GANTRY_OK && rx->pieces_posted < rx->pieces_over + RMA_PIECES_IN;)
		r = post_piece(c, p);
	return r;
}

/* A test of a receive may take its bytes off the socket, so what has come is not left until all have been looked at. */
static gantry_result move_pieces(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	struct rma_rx *rx = &p->rx;
	gantry_result r, taken = GANTRY_OK;

	for (int k = 0; k < RMA_PIECES_TAKEN && taken == GANTRY_OK; k++) {
		taken = GANTRY_AGAIN;
		if (rx->pieces_arrived < rx->pieces_posted)
			taken = take_piece(c, p, &rx->pieces[rx->pieces_arrived % RMA_PIECES_IN]);
		if (taken != GANTRY_OK && taken != GANTRY_AGAIN)
			return taken;
		rx->pieces_arrived += taken == GANTRY_OK;
		r = turn_pieces(c, p);
		if (r != GANTRY_OK && r != GANTRY_AGAIN)
			return r;
	}
	return GANTRY_OK;
}

/* ---- what counts ---- */

static gantry_result answer(struct rma_comm *c, struct rma_peer *p, const struct rma_op *op) REQUIRES(rma_mu)
{
	struct rma_request *q;

	if (p->tx.answers == RMA_ANSWERS_MOST)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %u sent more than %d gets without taking the answers", p->rank,
			 RMA_GETS_OUT);
	TRY_NOW(rma_request_get(c, p, &q));
	p->tx.answers++;
	q->answer = true;
	q->head = (struct rma_header){
		.what = RMA_REPLY, .context = op->head.context, .bytes = op->head.bytes, .id = op->head.id};
	q->local = op->to;
	rma_tx_queue(q);
	return GANTRY_OK;
}

/*
 * Its data is where it belongs, as far as what follows can see. A signal in device memory follows in the queue that copies there; the
 * CPU's own waits for that queue, for earlier operations of the context too; and so does what this rank's own request reports.
 */
static gantry_result is_in_place(struct rma_comm *c, struct rma_op *op) REQUIRES(rma_mu)
{
	if (op->left)
		return GANTRY_AGAIN;
	if (op->request)
		TRY_NOW(rma_fence_over(c, &op->fence));
	if (!op->word.at || op->word.device)
		return GANTRY_OK;
	TRY_NOW(rma_fence_over(c, &op->fence));
	return rma_fence_over(c, &op->context->fence);
}

/* It is over, although its data may be in the queue still. Small data may have come to the queue before larger data of earlier ones. */
static void note_copies(struct rma_op *op) REQUIRES(rma_mu)
{
	struct rma_context *x = op->context;

	if (!x || !op->fence.pending)
		return;
	ASSERT(op->fence.queue == GANTRY_COPY_IN);
	if (!x->fence.pending || x->fence.batch < op->fence.batch)
		x->fence = op->fence;
}

static gantry_result add_signal(struct rma_comm *c, const struct rma_peer *p, const struct rma_op *op) REQUIRES(rma_mu)
{
	if (!op->word.at)
		return GANTRY_OK;
	if (op->word.device)
		TRY_NOW(rma_signal_add(c, op->word, op->head.signal.add, op->expected));
	else
		fetch_add_seq((uint64_t *)(void *)op->word.at, op->head.signal.add);
	RMA_COUNT(c, applied, 1);
	rma_watch_signal(c, p->rank, &op->head);
	return GANTRY_OK;
}

/* AGAIN: not yet. */
static gantry_result finish_op(struct rma_comm *c, struct rma_peer *p, struct rma_op *op) REQUIRES(rma_mu)
{
	TRY_NOW(is_in_place(c, op));
	TRY_NOW(add_signal(c, p, op));
	if (op->head.what == RMA_GET && !op->request)
		TRY_NOW(answer(c, p, op));
	if (op->request)
		rma_request_done(op->request);
	note_copies(op);
	RMA_MOVED(c);
	gantry_list_remove(&op->order);
	rma_op_put(c, op);
	p->rx.nops--;
	return GANTRY_OK;
}

static gantry_result finish_contexts(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	gantry_list_each_entry_safe (x, &p->rx.active, struct rma_context, node) {
		gantry_result r = GANTRY_OK;

		while (r == GANTRY_OK && !gantry_list_empty(&x->ops))
			r = finish_op(c, p, gantry_container(x->ops.next, struct rma_op, order));
		if (r != GANTRY_OK && r != GANTRY_AGAIN)
			return r;
		if (gantry_list_empty(&x->ops))
			gantry_list_remove(&x->node);
	}
	return GANTRY_OK;
}

static gantry_result finish_answers(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu)
{
	gantry_list_each_entry_safe (op, &p->rx.answers, struct rma_op, order) {
		gantry_result r = finish_op(c, p, op);

		if (r != GANTRY_OK && r != GANTRY_AGAIN)
			return r;
	}
	return GANTRY_OK;
}

gantry_result rma_rx_own(struct rma_comm *c, struct rma_op *op)
{
	struct rma_peer *p = &c->peers[c->rank];

	p->rx.nops++;
	TRY_NOW(find_word(c, op));
	return append_op(&p->rx, op);
}

gantry_result rma_rx_progress(struct rma_comm *c, struct rma_peer *p)
{
	if (p->end && !p->rx.closed)
		TRY_NOW(move_heads(c, p));
	if (p->end) {
		TRY_NOW(move_pieces(c, p));
		TRY_NOW(finish_answers(c, p));
	}
	return finish_contexts(c, p);
}
