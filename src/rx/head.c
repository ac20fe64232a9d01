/* SPDX-License-Identifier: Apache-2.0 */
/* Heads: tag 0 of each direction. They are small, or inline, so the network takes them at once and keeps their order.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdlib.h>

#include "rx/rx.h"

enum { HEAD_ROOM = RX_HEAD_SIZE + RX_INLINE_MAX, HEADS_PER_PASS = 4 * RX_HEADS_IN };

gantry_result rx_head_send(struct gantry_rx_conn *c, const struct rx_head *h, const struct rx_batch *inlined)
{
	size_t payload = inlined ? (size_t)inlined->bytes : 0;
	struct rx_out *o = malloc(sizeof(*o) + RX_HEAD_SIZE + payload);
	struct rx_cursor start = {0, 0, 0};
	int moved;

	if (!o)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a head of %zu bytes", payload);
	if (c->answering && c->answers_out == RX_ANSWERS_OUT) {
		free(o);
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s asks and does not listen: %d answers wait for it", c->peer,
			 RX_ANSWERS_OUT);
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
	return rx_heads_out(c, &moved);
}

gantry_result rx_heads_out(struct gantry_rx_conn *c, int *ret_moved)
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
		c->inline_out -= o->inlined;
		c->answers_out -= o->answer;
		gantry_list_remove(&o->node);
		free(o);
		*ret_moved = 1;
	}
	return GANTRY_OK;
}

static gantry_result handle(struct gantry_rx_conn *c, const uint8_t *data, int size) REQUIRES(rx_mu)
{
	struct rx_head h;

	if (rx_head_decode(data, (size_t)size, &h) != GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s sent a head of %d bytes that makes no sense", c->peer, size);
	switch ((enum rx_kind)h.kind) {
	case RX_SEND:
		return rx_recv_offered(c, &h, data + RX_HEAD_SIZE);
	case RX_END:
		return rx_recv_ended(c, &h);
	case RX_GRANT:
		return rx_send_granted(c, &h);
	case RX_TAKEN:
	case RX_REJECT:
		return rx_send_answered(c, &h);
	case RX_STOP:
		return rx_send_stopped(c, &h);
	case RX_KINDS:
		break;
	}
	return GANTRY_OK;
}

/* Keeps RX_HEADS_IN receives posted, in the order of the ring. */
static gantry_result post_heads(struct gantry_rx_conn *c)
{
	struct gantry_net *net = c->rx->net;

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
	int done = 0;

	*ret_head = NULL;
	TRY_NOW(post_heads(c));
	if (c->heads_next == c->heads_posted)
		return GANTRY_OK;
	TRY_NOW(net->ops->test(net, c->heads[i], &done, ret_size));
	if (!done)
		return GANTRY_OK;
	c->heads_next++; /* whatever becomes of it: its request is gone */
	*ret_head = c->head_memory + (size_t)i * HEAD_ROOM;
	return GANTRY_OK;
}

gantry_result rx_heads_in(struct gantry_rx_conn *c, int *ret_moved)
{
	gantry_result r = GANTRY_OK;
	const uint8_t *head;
	int size;

	for (int n = 0; n < HEADS_PER_PASS; n++) {
		TRY(take_head(c, &head, &size));
		if (!head)
			break;
		*ret_moved = 1;
		c->answering = 1;
		r = handle(c, head, size);
		c->answering = 0;
		if (r != GANTRY_OK)
			goto out;
	}
out:
	return r;
}

int rx_heads_last(struct gantry_rx_conn *c)
{
	const uint8_t *head;
	struct rx_head h;
	int size;

	for (int n = 0; c->head_memory && take_head(c, &head, &size) == GANTRY_OK; n++) {
		if (!head || n == RX_ANSWERS_OUT) /* bounded, whatever a peer keeps on sending */
			return 0;
		if (rx_head_decode(head, (size_t)size, &h) != GANTRY_OK)
			break;
		/* Nothing can be answered any more: what a head asks for is not done, what it says of a send holds. */
		if ((h.kind == RX_TAKEN || h.kind == RX_REJECT) && rx_send_answered(c, &h) != GANTRY_OK)
			break;
		if (h.kind == RX_STOP)
			rx_send_stopped(c, &h);
	}
	return 1;
}

gantry_result rx_heads_init(struct gantry_rx_conn *c)
{
	c->head_memory = malloc((size_t)RX_HEADS_IN * HEAD_ROOM);
	if (!c->head_memory)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the heads of a connection");
	return post_heads(c);
}
