/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the payload of a frame goes, and what its end means: the memory of a posted receive, in one piece or several; a
 * buffer of our own for a message whose receive is not posted yet; the text of an error; nowhere. unpack_rx.c has the
 * one that ends in device memory.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <string.h>

#include "base/log.h"
#include "net/tcp/link.h"

/* ---- memory that lies together, from dst on ---- */

static void list_together(struct tcp_lane_rx *rx, struct tcp_span *span) REQUIRES(lane_rx_mu)
{
	span->iov[0] = (struct iovec){rx->dst, rx->left};
	span->n = 1;
	span->bytes = rx->left;
}

static void advance_together(struct tcp_lane_rx *rx, uint64_t n) REQUIRES(lane_rx_mu)
{
	rx->dst += n;
	rx->left -= n;
}

static int put_together(struct tcp_lane *lane, const uint8_t *data, uint32_t n) REQUIRES(lane_rx_mu, link_mu)
{
	memcpy(lane->rx.dst, data, n);
	advance_together(&lane->rx, n);
	return 0;
}

/* ---- a posted receive ---- */

static int end_posted(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	return tcp_match_end(lane->link, &lane->rx.frame.piece, lane->rx.recv, lane->rx.buffer);
}

const struct tcp_target_ops tcp_target_buffer = {
	.posted = true,
	.list = list_together,
	.advance = advance_together,
	.put = put_together,
	.end = end_posted,
};

static void list_pieces(struct tcp_lane_rx *rx, struct tcp_span *span) REQUIRES(lane_rx_mu)
{
	span->n = tcp_vec_list(&rx->recv->vec, &rx->vec, rx->left, span->iov, LINK_VEC_MAX, &span->bytes);
}

static void advance_pieces(struct tcp_lane_rx *rx, uint64_t n) REQUIRES(lane_rx_mu)
{
	tcp_vec_skip(&rx->recv->vec, &rx->vec, n);
	rx->left -= n;
}

static int put_pieces(struct tcp_lane *lane, const uint8_t *data, uint32_t n) REQUIRES(lane_rx_mu, link_mu)
{
	tcp_vec_put(&lane->rx.recv->vec, &lane->rx.vec, data, n);
	lane->rx.left -= n;
	return 0;
}

const struct tcp_target_ops tcp_target_pieces = {
	.posted = true,
	.list = list_pieces,
	.advance = advance_pieces,
	.put = put_pieces,
	.end = end_posted,
};

void tcp_recv_write(const struct tcp_recv *recv, const struct tcp_buffer *buffer, const void *data, uint64_t len,
		    uint64_t offset)
{
	struct tcp_vec_at at;

	if (!len)
		return;
	if (!recv->vec.n) {
		memcpy(buffer->data + offset, data, len);
		return;
	}
	tcp_vec_seek(&recv->vec, offset, &at);
	tcp_vec_put(&recv->vec, &at, data, len);
}

/* ---- no receive yet ---- */

static int end_unexpected(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_link *l = lane->link;
	struct tcp_unexpected *u = lane->rx.unexpected;
	struct tcp_recv *recv;
	struct tcp_buffer *buffer;

	ASSERT(!u->complete);
	u->complete = true;
	/* Its receive may have been posted while it was arriving. */
	buffer = tcp_match_buffer(l, u->tag, u->index, &recv);
	if (buffer)
		tcp_match_unexpected(l, recv, buffer);
	return 0;
}

const struct tcp_target_ops tcp_target_unexpected = {
	.list = list_together,
	.advance = advance_together,
	.put = put_together,
	.end = end_unexpected,
};

/* ---- the text of an error ---- */

static int end_text(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_error *e = &rx->frame.error;
	gantry_result r = e->result > GANTRY_AGAIN && e->result < GANTRY_RESULT_COUNT ? (gantry_result)e->result
										      : GANTRY_ERR_PEER_LOST;

	rx->text[e->length] = 0;
	for (char *c = rx->text; *c; c++)
		if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
			*c = '?';
	if (r == GANTRY_ERR_SIZE)
		tcp_link_fail_locked(lane->link, 0, r,
				     "a send of %llu bytes met a receive of %llu bytes, says the peer",
				     (unsigned long long)e->sent_bytes, (unsigned long long)e->recv_bytes);
	else
		tcp_link_fail_locked(lane->link, 0, r, "the peer gave up: %s", rx->text);
	return -1;
}

const struct tcp_target_ops tcp_target_text = {
	.list = list_together,
	.advance = advance_together,
	.put = put_together,
	.end = end_text,
};

/* ---- nowhere ---- */

static void list_nowhere(struct tcp_lane_rx *rx, struct tcp_span *span) REQUIRES(lane_rx_mu)
{
	span->bytes = rx->left < LINK_NOWHERE ? rx->left : LINK_NOWHERE;
	span->iov[0] = (struct iovec){span->nowhere, span->bytes};
	span->n = 1;
}

static void advance_nowhere(struct tcp_lane_rx *rx, uint64_t n) REQUIRES(lane_rx_mu)
{
	rx->left -= n;
}

static int put_nowhere(struct tcp_lane *lane, const uint8_t *data, uint32_t n) REQUIRES(lane_rx_mu, link_mu)
{
	(void)data;
	lane->rx.left -= n;
	return 0;
}

static int end_nowhere(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	const struct wire_piece *f = &lane->rx.frame.piece;

	if (f->eager)
		lane->link->rx.consumed += f->length + WIRE_EAGER_SIZE;
	return 0;
}

const struct tcp_target_ops tcp_target_nowhere = {
	.list = list_nowhere,
	.advance = advance_nowhere,
	.put = put_nowhere,
	.end = end_nowhere,
};
