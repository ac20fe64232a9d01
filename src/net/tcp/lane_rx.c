/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: bytes off a lane, payload straight to its final place. frame_rx.c knows what they mean.
 *
 * The socket is read into an iovec of two parts: the rest of the current payload at its final place, and the read-ahead
 * buffer for what follows. On the control lane that buffer is large, so one call brings many small messages; on a bulk
 * lane, and behind a large eager message, it holds just the next header, so that no payload is copied twice. A read
 * that brings less than asked for has emptied the socket: no second call is made to hear EAGAIN.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/param.h"
#include "net/tcp/link.h"

/*
 * ---- where payload goes ----
 *
 * Where the payload of a frame goes, and what its end means: the memory of a posted receive, in one piece or several; a
 * buffer of our own for a message whose receive is not posted yet; the text of an error; nowhere. unpack_rx.c has the
 * one that ends in device memory.
 */

/* ---- memory that lies together, from dst on ---- */

static void list_together(struct tcp_lane_rx *rx, struct tcp_span *span) REQUIRES(lane_rx_mu)
{
	span->iov[0] = (struct iovec){rx->dst, rx->left};
	span->n = 1;
	span->bytes = rx->left;
}

static void advance_together(struct tcp_lane_rx *rx, uint64_t n) REQUIRES(lane_rx_mu)
{
	ASSERT(n <= rx->left);
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

int tcp_end_posted(struct tcp_lane *lane)
{
	ASSERT(lane->rx.recv && lane->rx.buffer && !lane->rx.left);
	return tcp_match_end(lane->link, &lane->rx.frame.piece, lane->rx.recv, lane->rx.buffer);
}

const struct tcp_target_ops tcp_target_buffer = {
	.posted = true,
	.list = list_together,
	.advance = advance_together,
	.put = put_together,
	.end = tcp_end_posted,
};

static void list_pieces(struct tcp_lane_rx *rx, struct tcp_span *span) REQUIRES(lane_rx_mu)
{
	span->n = tcp_vec_list(&rx->recv->vec, &rx->vec, rx->left, span->iov, LINK_VEC_MAX, &span->bytes);
}

static void advance_pieces(struct tcp_lane_rx *rx, uint64_t n) REQUIRES(lane_rx_mu)
{
	ASSERT(n <= rx->left);
	tcp_vec_skip(&rx->recv->vec, &rx->vec, n);
	rx->left -= n;
}

static int put_pieces(struct tcp_lane *lane, const uint8_t *data, uint32_t n) REQUIRES(lane_rx_mu, link_mu)
{
	ASSERT(n <= lane->rx.left);
	tcp_vec_put(&lane->rx.recv->vec, &lane->rx.vec, data, n);
	lane->rx.left -= n;
	return 0;
}

const struct tcp_target_ops tcp_target_pieces = {
	.posted = true,
	.list = list_pieces,
	.advance = advance_pieces,
	.put = put_pieces,
	.end = tcp_end_posted,
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
				     "peer reports: send of %llu bytes matched a receive of only %llu bytes",
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
	size_t room = LINK_NOWHERE;

	if (!rx->nowhere)
		rx->nowhere = malloc(LINK_NOWHERE);
	if (!rx->nowhere) /* the read-ahead buffer is empty while payload comes: slower, but it always does */
		room = rx->room;
	span->bytes = rx->left < room ? rx->left : room;
	span->iov[0] = (struct iovec){rx->nowhere ? rx->nowhere : rx->buf, span->bytes};
	span->n = 1;
}

static void advance_nowhere(struct tcp_lane_rx *rx, uint64_t n) REQUIRES(lane_rx_mu)
{
	ASSERT(n <= rx->left);
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

/* A large message is likely to be followed by another: no more than its header and a few small frames are read ahead. */
enum { AHEAD_OF_LARGE = 256 };

/* ---- headers and payload in line ---- */

/* Payload is summed as it comes, wherever it goes: its place may be the user's again before the piece is whole. */
static void sum_payload(struct tcp_lane_rx *rx, const struct iovec *iov, uint64_t n) REQUIRES(lane_rx_mu)
{
	for (uint64_t len; n; iov++, n -= len) {
		len = n < iov->iov_len ? n : iov->iov_len;
		rx->crc = gantry_crc32c(rx->crc, iov->iov_base, len);
	}
}

/* Where the next bytes may go; returns how many of them into the read-ahead buffer. */
static uint32_t list_span(struct tcp_lane_rx *rx, struct tcp_span *span) REQUIRES(lane_rx_mu)
{
	uint32_t ahead = rx->room - rx->tail;

	ASSERT(rx->head <= rx->tail && rx->tail <= rx->room);
	span->n = 0;
	span->bytes = 0;
	if (rx->state == TCP_RX_HEADER && rx->large && ahead > AHEAD_OF_LARGE)
		ahead = AHEAD_OF_LARGE;
	if (rx->state == TCP_RX_PAYLOAD && rx->left) {
		ASSERT(rx->head == rx->tail);
		rx->target->list(rx, span);
		if (span->bytes < rx->left)
			ahead = 0;
		else if (rx->frame.piece.length > LINK_COPY_TWICE)
			ahead = wire_header_size(rx->frame.kind); /* most likely one of the same kind follows */
	}
	if (ahead)
		span->iov[span->n++] = (struct iovec){rx->buf + rx->tail, ahead};
	return ahead;
}

/* So many bytes have come to where the span says. */
static void take_span(struct tcp_lane *lane, const struct tcp_span *span, uint64_t n) REQUIRES(lane_rx_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	uint64_t direct = n < span->bytes ? n : span->bytes;

	store_relaxed(&rx->bytes, rx->bytes + n);
	if (direct) {
		if (lane->link->session.crc)
			sum_payload(rx, span->iov, direct);
		rx->target->advance(rx, direct);
	}
	ASSERT(n - direct <= rx->room - rx->tail);
	rx->tail += (uint32_t)(n - direct);
}

static ssize_t fill_inline(struct tcp_lane *lane, bool *ret_drained) REQUIRES(lane_rx_mu)
{
	struct tcp_span span;
	uint32_t ahead = list_span(&lane->rx, &span);
	ssize_t n = lane->io.ops->recv(&lane->io, span.iov, span.n);

	if (n <= 0)
		return n;
	ASSERT((uint64_t)n <= span.bytes + ahead);
	*ret_drained = (uint64_t)n < span.bytes + ahead;
	take_span(lane, &span, (uint64_t)n);
	return n;
}

static void cancelled_inline(struct tcp_lane *lane, size_t n) REQUIRES(lane_rx_mu)
{
	struct tcp_span span;

	list_span(&lane->rx, &span); /* the same as when it began: nothing was parsed since */
	take_span(lane, &span, n);
}

static int digest_inline(struct tcp_lane *lane, bool force) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	uint32_t bounced = rx->bounced;

	rx->bounced = 0;
	if (bounced && rx->target->put(lane, rx->bounce, bounced))
		return -1;
	return tcp_frames_parse(lane, force);
}

static void settle_inline(struct tcp_lane *lane, bool drained)
{
	(void)lane;
	(void)drained;
}

static bool has_more_inline(const struct tcp_lane *lane) REQUIRES(lane_rx_mu)
{
	return lane->index && lane->rx.state == TCP_RX_PAYLOAD;
}

static void rest_inline(struct tcp_lane *lane)
{
	store_relaxed(&lane->rx.next_poll, gantry_ticks() + lane->link->session.pace_ticks);
}

const struct tcp_receive_ops tcp_receive_inline = {
	.fill = fill_inline,
	.cancelled = cancelled_inline,
	.digest = digest_inline,
	.settle = settle_inline,
	.has_more = has_more_inline,
	.rest = rest_inline,
};

/* ---- any lane ---- */

/*
 * Where lanes are replaced, an end (0) is distinguished from a reset: only the peer makes an end. A reset that follows
 * an end is EPIPE. And a socket without connection reads as ended once another thread has consumed the error of the
 * reset.
 */
static int cause_of_end(const struct tcp_lane *lane, int e)
{
	struct tcp_io_info info;

	if (!lane->link->resume)
		return e;
	if (e == 0 && lane->io.ops->info(&lane->io, &info) && info.closed)
		return ECONNRESET;
	return e == EPIPE ? 0 : e;
}

static void end_lane(struct tcp_lane *lane, int e)
{
	store_release(&lane->rx.eof, 1);
	tcp_link_ending(lane, cause_of_end(lane, e));
}

/*
 * A sender waits for `done`, and nothing speaks for keeping it waiting: its window is shallow, or enough has come
 * together, or the next message has not begun to arrive.
 */
static bool is_ack_due(const struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	const struct tcp_rx *rx = &lane->link->rx;

	return rx->done != rx->done_told && rx->done_told < rx->ack_upto &&
	       (!rx->deep_window || rx->done - rx->done_told >= LINK_ACK_EVERY || !lane->rx.ops->has_more(lane));
}

/* After bytes have come. 1: stop here, the sender waits for a report; -1: the link has failed. */
static int digest_lane(struct tcp_lane *lane, bool force) REQUIRES(lane_rx_mu)
{
	int rc;

	link_mu_lock(&lane->link->mu);
	rc = lane->rx.ops->digest(lane, force);
	if (rc == 0 && is_ack_due(lane))
		rc = 1;
	link_mu_unlock(&lane->link->mu);
	lane->rx.ops->settle(lane, false);
	return rc;
}

/* Reads and digests until the socket is empty, the lane is stalled, or it was enough. Returns bytes. */
static uint64_t read_lane(struct tcp_lane *lane, bool force, bool *ret_drained) REQUIRES(lane_rx_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	uint64_t moved = 0;

	while (!rx->stalled && !load_relaxed(&rx->eof) && moved < LINK_RX_PASS_BYTES && !*ret_drained &&
	       !tcp_link_failed(lane->link)) {
		ssize_t n = rx->ops->fill(lane, ret_drained);

		if (n > 0) {
			moved += (uint64_t)n;
			if (digest_lane(lane, force))
				break;
		} else if (n == 0) {
			end_lane(lane, 0);
		} else if (errno == EAGAIN || errno == EINPROGRESS) {
			*ret_drained = true;
		} else if (errno != EINTR) {
			end_lane(lane, errno);
		}
	}
	return moved;
}

void tcp_lane_rx_cancel(struct tcp_lane *lane)
{
	size_t n = lane->io.ops->cancel_recv(&lane->io);

	if (n)
		lane->rx.ops->cancelled(lane, n);
}

/* How long lanes that still deliver may put off the end of a link: an error must be there soon after the deadline. */
static uint64_t end_grace_max(void)
{
	uint64_t most = 4ull * LINK_END_GRACE_NS, half = gantry_params()->timeout / 2;

	return most < half ? most : half;
}

static void note_heard(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	uint64_t now = gantry_ticks();

	store_relaxed(&l->last.heard, now);
	if (lane->index)
		store_relaxed(&l->last.bulk_moved, now);
	/* A lane has ended, but this one still delivers: give it time, within bounds. */
	if (load_acquire(&l->end.ending) &&
	    (int64_t)(now - load_relaxed(&l->end.ending_since)) < (int64_t)gantry_ticks_of_ns(end_grace_max()))
		store_release(&l->end.ending, now | 1);
}

static void after_pass(struct tcp_lane *lane) REQUIRES(lane_rx_mu) EXCLUDES(control_mu, link_mu)
{
	struct tcp_link *l = lane->link;

	link_mu_lock(&l->mu);
	l->rx.ack_now |= is_ack_due(lane) || l->rx.unreported >= RESUME_REPORT;
	if (l->rx.ack_now || l->rx.consumed - l->rx.consumed_told >= LINK_TELL)
		store_relaxed(&l->tx.pending, 1);
	if (!tcp_link_failed(l))
		tcp_link_check_peer_closed(l);
	link_mu_unlock(&l->mu);
	tcp_link_hang_up(l);
}

/* Nothing more comes of what was sent at once: its sender may wait for a report. */
static void report_now(struct tcp_link *l)
{
	link_mu_lock(&l->mu);
	l->rx.ack_now = true;
	store_relaxed(&l->tx.pending, 1);
	link_mu_unlock(&l->mu);
}

int tcp_lane_rx(struct tcp_lane *lane, bool force)
{
	struct tcp_lane_rx *rx = &lane->rx;
	bool drained = false, stalled;
	uint64_t moved;

	if (load_relaxed(&rx->eof) || !lane_rx_mu_trylock(&rx->lock))
		return 0;
	stalled = rx->stalled;
	if (stalled)
		digest_lane(lane, force);
	moved = read_lane(lane, force, &drained);
	if (moved)
		note_heard(lane);
	if (moved || stalled)
		after_pass(lane);
	else if (!lane->index && load_relaxed(&lane->link->rx.unreported))
		report_now(lane->link);
	if (drained) {
		rx->ops->settle(lane, true);
		rx->ops->rest(lane);
	} else {
		store_relaxed(&rx->next_poll, 0);
	}
	stalled = rx->stalled;
	lane_rx_mu_unlock(&rx->lock);
	/* Payload is here before its descriptor: that is on the control lane, and a worker would not look there. */
	if (stalled && rx->ops->waits_for_control)
		tcp_lane_rx(&lane->link->lanes[0], false);
	return moved != 0;
}
