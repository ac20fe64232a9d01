/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames off a lane, as far as they have been read (lane_rx.c): what each means, and where its payload goes. All of it
 * runs under link_mu, taken once for all that one read has brought.
 */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "base/trace.h"
#include "net/tcp/flow.h"
#include "net/tcp/link.h"

/* ---- which bytes belong to which buffer ---- */

/* Which bytes belong to which buffer, and what is reported to the sender about it. */

struct tcp_buffer *tcp_match_buffer(struct tcp_link *l, uint32_t tag, uint32_t index, struct tcp_recv **ret_recv)
{
	gantry_list_each_entry (recv, &l->rx.posted, struct tcp_recv, head.node) {
		for (int i = 0; i < recv->n; i++) {
			if (recv->buffers[i].index == index && recv->buffers[i].tag == tag) {
				*ret_recv = recv;
				return &recv->buffers[i];
			}
		}
	}
	return NULL;
}

static void fail_size(struct tcp_link *l, uint64_t sent, const struct tcp_buffer *buffer) REQUIRES(link_mu)
{
	l->end.sent_bytes = sent;
	l->end.recv_bytes = buffer->size;
	tcp_link_fail_locked(l, 1, GANTRY_ERR_SIZE, "send of %llu bytes matched a receive of only %llu bytes (tag %u)",
			     (unsigned long long)sent, (unsigned long long)buffer->size, buffer->tag);
}

/* False: the send is larger, and the link has failed. */
static bool check_fits(struct tcp_link *l, uint64_t total, const struct tcp_buffer *buffer) REQUIRES(link_mu)
{
	if (total <= buffer->size)
		return true;
	fail_size(l, total, buffer);
	return false;
}

/*
 * Do the pieces of a message cover it exactly once? In constant memory, whatever their order. h maps a place in the
 * message to a random-looking number (cover_key is the link's secret, so a peer cannot look for places that collide). A
 * piece [a, b) adds h(b) - h(a); pieces that follow one another cancel at their common border, and those that cover the
 * message add up to h(total) - h(0).
 *
 * Conversely, let the sum be that. Then, but for an accident of about 2^-64, the places themselves cancel: every place
 * between is the begin of as many pieces as it is the end of, 0 is the begin of one more, and total the end of one
 * more. Pieces as edges of a graph then are one path from 0 to total and otherwise closed walks; but an edge goes
 * forward, because no piece is empty, and there is no closed walk. One path from 0 to total has every byte once.
 */
static uint64_t cover_hash(const struct tcp_link *l, uint64_t at)
{
	uint64_t x = at ^ l->session.cover_key; /* then the finalizer of splitmix64 */

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t cover_of(const struct tcp_link *l, uint64_t from, uint64_t to)
{
	return cover_hash(l, to) - cover_hash(l, from);
}

/* -1: the pieces of the message, all of which have come, are not what the message is made of. */
static int check_cover(struct tcp_link *l, const struct tcp_buffer *buffer) REQUIRES(link_mu)
{
	if (buffer->cover == cover_of(l, 0, buffer->total))
		return 0;
	tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
			     "the pieces of message %u of tag %u do not cover it exactly once", buffer->index,
			     buffer->tag);
	return -1;
}

/* -1: the link has failed. */
static int note_arrival(struct tcp_link *l, const struct wire_piece *f) REQUIRES(link_mu)
{
	struct tcp_tag *t = tcp_tag_of(&l->rx.tags, f->tag);

	if (!t) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "too many different tags");
		return -1;
	}
	if ((int32_t)(f->index + 1 - t->arrived) > 0)
		t->arrived = f->index + 1;
	tcp_tag_expect(t, f->eager, f->length > l->session.eager_max);
	return 0;
}

int tcp_match_begin(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_buffer *buffer)
{
	if (note_arrival(l, f))
		return -1;
	if (!buffer)
		return 0;
	if (!check_fits(l, f->total, buffer))
		return -1;
	/* Checked before a byte is written: pieces may neither repeat nor disagree. */
	if (buffer->complete || (buffer->started && (buffer->total != f->total || buffer->seq != f->seq)) ||
	    f->length > f->total - buffer->begun) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "the pieces of message %u of tag %u do not add up",
				     f->index, f->tag);
		return -1;
	}
	if (!buffer->started && recv->sink && recv->sink->begin(l, recv, f->total, f->eager))
		return -1;
	buffer->started = true;
	buffer->total = f->total;
	buffer->seq = f->seq;
	buffer->begun += f->length;
	return 0;
}

static bool bulk_is_done(const struct tcp_link *l, uint64_t seq) REQUIRES(link_mu)
{
	return l->rx.done_bits[seq % LINK_DONE_BITS / 64] >> (seq % 64) & 1;
}

/* Bulk messages may complete out of order; `done` counts those before the first incomplete one. */
static void mark_done(struct tcp_link *l, uint64_t seq) REQUIRES(link_mu)
{
	l->rx.done_bits[seq % LINK_DONE_BITS / 64] |= 1ull << (seq % 64);
	for (;;) {
		uint64_t *word = &l->rx.done_bits[l->rx.done % LINK_DONE_BITS / 64];
		uint64_t bit = 1ull << (l->rx.done % 64);

		if (!(*word & bit))
			break;
		*word &= ~bit;
		l->rx.done++;
	}
}

/* A small message that its tag did not keep waiting: more may come on the bulk lanes without an RTS. */
static void note_small(struct tcp_link *l, const struct wire_piece *f) REQUIRES(link_mu)
{
	const struct tcp_tag *t = tcp_tag_of(&l->rx.tags, f->tag);

	if (f->total <= l->session.eager_max && t && t->haste != TCP_HASTE_NONE)
		store_relaxed(&l->spread->seen, gantry_ticks());
}

/* The last piece of a bulk message has come. */
static int end_bulk(struct tcp_link *l, const struct wire_piece *f) REQUIRES(link_mu)
{
	if (f->seq - l->rx.done >= LINK_DONE_BITS || bulk_is_done(l, f->seq)) {
		tcp_link_fail_locked(
			l, 1, GANTRY_ERR_PROTOCOL,
			"message %u of tag %u has number %llu, which is taken or out of range (%llu are done)",
			f->index, f->tag, (unsigned long long)f->seq, (unsigned long long)l->rx.done);
		return -1;
	}
	mark_done(l, f->seq);
	l->rx.bulk_received++;
	note_small(l, f);
	if (f->seq >= l->rx.newest_bulk) {
		l->rx.newest_bulk = f->seq;
		l->rx.deep_window = f->deep;
	}
	/* It overtook a message that may wait for its user: its own sender must not wait too. */
	if (f->seq >= l->rx.done && f->ack && l->rx.tags.count > 1)
		l->rx.ack_now = true;
	if (f->ack && f->seq + 1 > l->rx.ack_upto)
		l->rx.ack_upto = f->seq + 1;
	store_relaxed(&l->rx.bulk_hint, l->rx.described != 0);
	return 0;
}

static void complete_buffer(struct tcp_link *l, struct tcp_recv *recv, struct tcp_buffer *buffer) REQUIRES(link_mu)
{
	ASSERT(!buffer->complete && buffer->got == buffer->total);
	buffer->complete = true;
	if (++recv->ncomplete < recv->n)
		return;
	gantry_list_remove(&recv->head.node);
	tcp_count_posted(l, recv, -1);
	if (recv->large || gantry_trace_on())
		gantry_event_put(GANTRY_EV_RECV_DONE, l->session.id,
				 GANTRY_EV_MSG(recv->buffers[0].tag, recv->buffers[0].index), buffer->total);
	if (recv->sink)
		recv->sink->complete(l, recv);
	else
		tcp_request_done(&recv->head);
}

int tcp_match_end(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_buffer *buffer)
{
	int whole = f->length == buffer->total; /* then it is the only piece, since all of them have no more bytes */

	buffer->got += f->length;
	if (f->eager)
		l->rx.consumed += f->length + WIRE_EAGER_SIZE;
	if (!whole)
		buffer->cover += cover_of(l, f->offset, f->offset + f->length);
	if (buffer->got != buffer->total)
		return 0;
	if ((!whole && check_cover(l, buffer)) || (!f->eager && end_bulk(l, f)))
		return -1;
	complete_buffer(l, recv, buffer);
	return 0;
}

/* An eager message, all of which is here. False: the link has failed. */
static bool take_whole(struct tcp_link *l, struct tcp_recv *recv, struct tcp_buffer *buffer, const uint8_t *data,
		       uint64_t total) REQUIRES(link_mu)
{
	if (buffer->complete || buffer->started) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "received message %u of tag %u twice", buffer->index,
				     buffer->tag);
		return false;
	}
	if (!check_fits(l, total, buffer))
		return false;
	if (!recv->sink)
		tcp_recv_write(recv, buffer, data, total, 0);
	else if (recv->sink->begin(l, recv, total, true) || recv->sink->write(l, recv, data, total, 0))
		return false;
	buffer->total = buffer->begun = buffer->got = total;
	buffer->started = true;
	l->rx.consumed += total + WIRE_EAGER_SIZE;
	complete_buffer(l, recv, buffer);
	return true;
}

static int match_eager(struct tcp_link *l, const struct wire_piece *f, const uint8_t *data, struct tcp_recv *recv,
		       struct tcp_buffer *buffer) REQUIRES(link_mu)
{
	return note_arrival(l, f) || !take_whole(l, recv, buffer, data, f->length) ? -1 : 0;
}

void tcp_match_unexpected(struct tcp_link *l, struct tcp_recv *recv, struct tcp_buffer *buffer)
{
	gantry_list_each_entry (u, &l->rx.unexpected, struct tcp_unexpected, node) {
		if (u->tag != buffer->tag || u->index != buffer->index)
			continue;
		if (!u->complete) { /* still arriving: the thread that reads its last byte completes the buffer */
			check_fits(l, u->total, buffer);
			return;
		}
		if (!take_whole(l, recv, buffer, u->data, u->total))
			return;
		l->rx.unexpected_bytes -= u->total + WIRE_EAGER_SIZE;
		gantry_list_remove(&u->node);
		free(u);
		return;
	}
}

/*
 * Should a report about this tag be sent to the sender now? Receives are advertised when the sender waits for one, or,
 * while bulk messages come, when a quarter of those outstanding are new to it: so a shallow window is known at once, a
 * deep one costs a frame for several messages, and streams of small messages into large buffers cost none.
 */
bool tcp_state_due(const struct tcp_link *l, const struct tcp_tag *tag)
{
	uint32_t news = tag->posted - tag->credit;

	if (!news)
		return false;
	if (tag->due || (int32_t)(tag->rts - tag->credit) > 0)
		return true;
	return l->rx.large_posted && tag->bulk && 4 * news >= tag->posted - tag->arrived;
}

enum { UNEXPECTED_PER_LOOK = 16 };

static int fail_protocol(struct tcp_lane *lane, const char *what) REQUIRES(link_mu)
{
	tcp_link_fail_locked(lane->link, 1, GANTRY_ERR_PROTOCOL, "lane %d: %s", lane->index, what);
	return -1;
}

/* A frame came damaged: its lane stops here, and so does the link unless the frame comes again. */
static int take_damaged(struct tcp_lane *lane, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int take_damaged(struct tcp_lane *lane, const char *fmt, ...) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_link *l = lane->link;
	char what[160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (tcp_resume_damaged(lane))
		LOG_WARN(NET, "%s: checksum mismatch on lane %d, %s; retransmitting", l->session.peer, lane->index,
			 what);
	else
		tcp_link_fail_locked(l, 1, GANTRY_ERR_CORRUPT, "checksum mismatch on lane %d, %s", lane->index, what);
	return -1;
}

/* ---- control frames ---- */

/* Do the messages that are done include those that were, and none of which pieces are still here? */
static bool done_fits(const struct tcp_link *l, const struct wire_state *s) REQUIRES(link_mu)
{
	const struct tcp_tx *tx = &l->tx;
	uint64_t more = s->done - tx->peer_done;
	uint64_t before = (uint64_t)tx->peer_done_bits << 1; /* bit k: message peer_done + k was done */

	if (s->done < tx->peer_done || s->done > tx->next_seq)
		return false;
	before = more < 64 ? before >> more : 0; /* bit k: message done + k was */
	if (before & ~((uint64_t)s->done_bits << 1))
		return false;
	if (s->done_bits && s->done + 32 - (uint64_t)__builtin_clz(s->done_bits) >= tx->next_seq)
		return false;
	gantry_list_each_entry (send, &tx->bulk, struct tcp_send, head.node) {
		if (send->seq > s->done + 32)
			break;
		if (tcp_counted_done(s->done, s->done_bits, send->seq))
			return false;
	}
	return true;
}

/* Counters only grow, and count what was sent. What leaves the replay ring, and which buffers go back to their users, depends on
 * that. -1: the link has failed. */
static int check_state(struct tcp_link *l, const struct wire_state *s) REQUIRES(link_mu)
{
	if (s->received < l->tx.peer_received || s->received > l->tx.eager_out)
		tcp_link_fail_locked(
			l, 1, GANTRY_ERR_PROTOCOL,
			"peer reports %llu eager bytes received, but %llu were sent; its previous report was %llu",
			(unsigned long long)s->received, (unsigned long long)l->tx.eager_out,
			(unsigned long long)l->tx.peer_received);
	else if (s->consumed < l->tx.peer_consumed || s->consumed > s->received)
		tcp_link_fail_locked(
			l, 1, GANTRY_ERR_PROTOCOL,
			"peer reports %llu eager bytes consumed, but %llu received; its previous report was %llu",
			(unsigned long long)s->consumed, (unsigned long long)s->received,
			(unsigned long long)l->tx.peer_consumed);
	else if (!done_fits(l, s))
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
				     "peer reports %llu bulk messages (and %08x) finished, but %llu were posted; its "
				     "previous report was %llu (and %08x), or some of them are not sent yet",
				     (unsigned long long)s->done, s->done_bits, (unsigned long long)l->tx.next_seq,
				     (unsigned long long)l->tx.peer_done, l->tx.peer_done_bits);
	else
		return 0;
	return -1;
}

static int on_state(struct tcp_link *l, const struct wire_state *s) REQUIRES(link_mu)
{
	if (check_state(l, s))
		return -1;
	gantry_event_put(GANTRY_EV_STATE_RX, l->session.id, s->posted, s->done);
	if (s->sends)
		store_relaxed(&l->rx.peer_sends, true);
	if (s->has_tag) {
		struct tcp_tag *t = tcp_tag_of(&l->tx.tags, s->tag);

		if (t && (int32_t)(s->posted - t->credit) > 0)
			t->credit = s->posted;
	}
	if (s->received > l->tx.peer_received) {
		l->tx.peer_received = s->received;
		if (l->resume) {
			store_relaxed(&l->resume->received_at, gantry_ticks());
			tcp_resume_release(l);
		}
	}
	if (s->consumed > l->tx.peer_consumed) {
		l->tx.peer_consumed = s->consumed;
		if (l->tx.window_blocked)
			store_relaxed(&l->tx.pending, 1);
	}
	if (s->done == l->tx.peer_done && s->done_bits == l->tx.peer_done_bits)
		return 0;
	l->tx.peer_done = s->done;
	l->tx.peer_done_bits = s->done_bits;
	gantry_list_each_entry_safe (send, &l->tx.unacked, struct tcp_send, head.node) {
		if (!tcp_send_acked(l, send->seq))
			continue;
		gantry_list_remove(&send->head.node);
		fetch_sub_relaxed(&l->tx.bulk_pending, 1);
		gantry_event_put(GANTRY_EV_SEND_DONE, l->session.id, GANTRY_EV_MSG(send->tag, send->index), send->size);
		tcp_request_done(&send->head);
	}
	return 0;
}

static void on_rts(struct tcp_link *l, const struct wire_rts *m) REQUIRES(link_mu)
{
	struct tcp_tag *t = tcp_tag_of(&l->rx.tags, m->tag);
	struct tcp_recv *recv;
	struct tcp_buffer *buffer;

	store_relaxed(&l->rx.bulk_hint, 1);
	if (t && (int32_t)(m->index + 1 - t->rts) > 0)
		t->rts = m->index + 1;
	if (t)
		t->bulk = true;
	buffer = tcp_match_buffer(l, m->tag, m->index, &recv);
	if (!buffer || check_fits(l, m->total, buffer))
		store_relaxed(&l->tx.pending, 1);
}

static void on_close(struct tcp_link *l, const struct wire_close *c) REQUIRES(link_mu)
{
	if (c->by_receiver) {
		l->tx.peer_closed = true;
	} else {
		store_relaxed(&l->rx.peer_closed, true);
		l->rx.peer_bulk_sent = c->bulk_sent;
	}
	tcp_resume_closed(l);
}

/* ---- data frames ---- */

/* Not posted yet: an eager message is kept, within the window that the peer was promised. */
static int begin_unexpected(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_piece *f = &rx->frame.piece;
	struct tcp_unexpected *u;

	if (!f->eager || f->total > LINK_WINDOW || l->rx.unexpected_bytes + f->total + WIRE_EAGER_SIZE > LINK_WINDOW)
		return fail_protocol(lane, "data for a receive that is not posted");
	u = malloc(sizeof(*u) + f->total);
	if (!u) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_NOMEM, "no memory for %u unexpected bytes", f->length);
		return -1;
	}
	u->tag = f->tag;
	u->index = f->index;
	u->total = f->total;
	u->complete = false;
	gantry_list_append(&l->rx.unexpected, &u->node);
	l->rx.unexpected_bytes += f->total + WIRE_EAGER_SIZE;
	rx->unexpected = u;
	rx->target = &tcp_target_unexpected;
	rx->dst = u->data;
	return 0;
}

/* Where the payload for a posted receive goes. */
static void begin_posted(struct tcp_lane_rx *rx) REQUIRES(lane_rx_mu, link_mu)
{
	const struct wire_piece *f = &rx->frame.piece;
	struct tcp_recv *recv = rx->recv;

	rx->target = recv->sink ? recv->sink->target(recv) : NULL;
	if (rx->target)
		return;
	if (recv->vec.n) {
		rx->target = &tcp_target_pieces;
		tcp_vec_seek(&recv->vec, f->offset, &rx->vec);
	} else {
		rx->target = &tcp_target_buffer;
		rx->dst = f->length ? rx->buffer->data + f->offset : NULL;
	}
}

/* All payload of the frame has come: is it what was sent? Checked before anything is reported as done. */
static int check_crc(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	const struct wire_frame *frame = &lane->rx.frame;
	const struct wire_piece *f = &frame->piece;
	uint32_t crc = lane->rx.crc, sent = frame->kind == WIRE_ERROR ? frame->error.payload_crc : f->payload_crc;

	if (!lane->link->session.crc || crc == sent)
		return 0;
	if (frame->kind == WIRE_ERROR) { /* the sender of this frame has given up: it resends nothing */
		tcp_link_fail_locked(
			lane->link, 1, GANTRY_ERR_CORRUPT,
			"checksum mismatch on lane %d, in the text of the peer's error: sent %08x, arrived %08x",
			lane->index, sent, crc);
		return -1;
	}
	return take_damaged(lane, "message %u of tag %u, offset %llu, %u bytes: sent %08x, arrived %08x", f->index,
			    f->tag, (unsigned long long)f->offset, f->length, sent, crc);
}

/* An eager message has come whole. */
static void count_eager(struct tcp_link *l, uint32_t length) REQUIRES(link_mu)
{
	l->rx.eager_in += length + WIRE_EAGER_SIZE;
	if (length > RESUME_COPY_MAX && l->resume)
		store_relaxed(&l->rx.unreported, l->rx.unreported + length);
}

/* An eager message of which all bytes are in the read-ahead buffer, for a posted receive: no state is needed. */
static int take_eager(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_piece *f = &rx->frame.piece;
	const uint8_t *data = rx->buf + rx->head + WIRE_EAGER_SIZE;

	if (lane->link->session.crc)
		rx->crc = gantry_crc32c(0, data, f->length);
	if (check_crc(lane) || match_eager(lane->link, f, data, rx->recv, rx->buffer))
		return -1;
	count_eager(lane->link, f->length);
	rx->head += f->length; /* and, by the caller, its header */
	rx->recv = NULL;
	rx->buffer = NULL;
	return 0;
}

/* 1: not posted yet, and the frame may stay in the buffer for a moment. */
static int begin_data(struct tcp_lane *lane, bool force) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_piece *f = &rx->frame.piece;
	int rc;

	rx->left = f->length;
	rx->large = f->length > LINK_COPY_TWICE;
	rx->dst = NULL;
	rx->bounced = 0;
	rx->buffer = tcp_match_buffer(l, f->tag, f->index, &rx->recv);
	if (!rx->buffer && !force && !l->rx.closed && f->eager)
		return 1;
	if (f->eager)
		tcp_trace_eager(l, GANTRY_EV_CHUNK_RX, f->tag, f->index, f->length);
	if (f->eager && rx->buffer && !l->rx.closed && rx->tail - rx->head >= (uint64_t)WIRE_EAGER_SIZE + f->length)
		return take_eager(lane);
	rc = tcp_match_begin(l, f, rx->recv, l->rx.closed ? NULL : rx->buffer);
	if (rc)
		return rc;
	if (l->rx.closed) /* not wanted any more */
		rx->target = &tcp_target_nowhere;
	else if (rx->buffer)
		begin_posted(rx);
	else if (begin_unexpected(lane))
		return -1;
	rx->state = TCP_RX_PAYLOAD; /* now it has a target */
	return 0;
}

/* All payload of the current frame is there. -1: the link has failed. */
static int end_frame(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_frame *f = &rx->frame;
	int rc;

	ASSERT_HELD(&lane->link->mu);
	ASSERT(rx->state == TCP_RX_PAYLOAD && !rx->left && !rx->bounced);
	if (check_crc(lane)) /* the payload stays under way: stopping the lane undoes it */
		return -1;
	rx->state = TCP_RX_HEADER;
	if (f->kind == WIRE_DATA)
		gantry_event_put(GANTRY_EV_CHUNK_RX, lane->link->session.id,
				 GANTRY_EV_MSG(f->piece.tag, f->piece.index),
				 GANTRY_EV_ON_LANE(f->piece.length, lane->index));
	if (f->kind == WIRE_EAGER)
		count_eager(lane->link, f->piece.length);
	else if (f->kind == WIRE_DATA && lane->link->resume)
		tcp_resume_count(lane);
	rc = rx->target->end(lane);
	rx->recv = NULL;
	rx->buffer = NULL;
	rx->unexpected = NULL;
	return rc;
}

/* ---- the stream ---- */

static int bad_header(struct tcp_lane *lane, gantry_result r, const uint8_t *header) REQUIRES(lane_rx_mu, link_mu)
{
	int crc = lane->link->session.crc;

	if (r == GANTRY_ERR_CORRUPT)
		return take_damaged(lane, "in the header of a frame");
	if (!(header[1] & WIRE_FLAG_CRC) != !crc)
		return fail_protocol(lane, crc ? "a frame without the checksum that was agreed on (GANTRY_CRC)"
					       : "not a frame, or a frame with a checksum that was not agreed on");
	return fail_protocol(lane, "not a frame");
}

/* -1: the link has failed. */
static int on_control(struct tcp_lane *lane, const struct wire_frame *f) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;

	switch (f->kind) {
	case WIRE_STATE:
		return on_state(lane->link, &f->state);
	case WIRE_RTS:
		on_rts(lane->link, &f->rts);
		break;
	case WIRE_CLOSE:
		on_close(lane->link, &f->close);
		break;
	case WIRE_ERROR:
		rx->state = TCP_RX_PAYLOAD;
		rx->target = &tcp_target_text;
		rx->dst = (uint8_t *)rx->text;
		rx->left = f->error.length;
		break;
	case WIRE_DESCRIPTOR:
		return tcp_flow_describe(lane->link, &f->piece);
	case WIRE_ARRIVED:
		return tcp_lane_arrived(lane->link, &f->arrived);
	case WIRE_STOPPED:
		if (!lane->link->resume || f->stopped.lane >= (uint32_t)lane->link->nlanes)
			return fail_protocol(lane, "a STOPPED frame for a lane that cannot be replaced");
		tcp_resume_stopped(lane->link, &f->stopped);
		break;
	case WIRE_DATA:
	case WIRE_EAGER:
	case WIRE_KINDS:
		break;
	}
	return 0;
}

/* A whole header is there. 0: go on; 1: leave it for now; -1: the link has failed. */
static int begin_frame(struct tcp_lane *lane, const uint8_t *header, bool force) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	gantry_result r = wire_frame_decode(header, lane->link->session.crc, &rx->frame);

	ASSERT(rx->state == TCP_RX_HEADER);
	if (r != GANTRY_OK)
		return bad_header(lane, r, header);
	rx->crc = 0;
	if (rx->frame.kind == WIRE_DATA)
		return lane->index ? begin_data(lane, force)
				   : fail_protocol(lane, "a piece of a bulk message on the control lane");
	if (lane->index != 0)
		return fail_protocol(lane, "a frame of the control lane on a bulk lane");
	return rx->frame.kind == WIRE_EAGER ? begin_data(lane, force) : on_control(lane, &rx->frame);
}

/* One look at the read-ahead buffer. */
struct look {
	int unexpected; /* so many more messages without a receive may be taken in */
	bool consumed;	/* something was */
};

/* The next header. 1: go on; 0: there is none, or it is left for now; -1: the link has failed. */
static int take_header(struct tcp_lane *lane, struct look *look) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	uint32_t size;
	int rc;

	if (rx->head == rx->tail || rx->tail - rx->head < (size = wire_header_size(rx->buf[rx->head])))
		return 0;
	rc = begin_frame(lane, rx->buf + rx->head, look->unexpected > 0);
	if (rc > 0 && !look->consumed && rx->stalled) { /* for the second time */
		look->unexpected = UNEXPECTED_PER_LOOK;
		rc = begin_frame(lane, rx->buf + rx->head, true);
	}
	if (rc > 0)
		store_relaxed(&rx->stalled, true);
	if (rc)
		return rc < 0 ? -1 : 0;
	look->unexpected -= look->unexpected > 0;
	rx->head += size;
	return 1;
}

/* Payload that was read ahead. As take_header; 0: the rest is to come. */
static int take_payload(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	uint32_t have = rx->tail - rx->head, n = have < rx->left ? have : (uint32_t)rx->left;
	const uint8_t *data = rx->buf + rx->head;

	if (n) {
		if (lane->link->session.crc)
			rx->crc = gantry_crc32c(rx->crc, data, n);
		if (rx->dst) { /* the usual case, without a call */
			memcpy(rx->dst, data, n);
			rx->dst += n;
			rx->left -= n;
		} else if (rx->target->put(lane, data, n)) {
			return -1;
		}
		rx->head += n;
	}
	if (rx->left)
		return 0;
	return end_frame(lane) ? -1 : 1;
}

/* What is left in the buffer moves to its front, unless it is a message that waits for its receive. */
static void compact_buffer(struct tcp_lane_rx *rx) REQUIRES(lane_rx_mu)
{
	if (rx->head == rx->tail) {
		rx->head = rx->tail = 0;
	} else if (rx->head && !rx->stalled) {
		memmove(rx->buf, rx->buf + rx->head, rx->tail - rx->head);
		rx->tail -= rx->head;
		rx->head = 0;
	}
}

/*
 * Consumes the read-ahead buffer as far as it goes. In a stream the buffer holds more messages than receives are
 * posted; they are best left there until they are. So at the first frame without a receive the lane is stalled. If that
 * is still without one on the next look, up to UNEXPECTED_PER_LOOK of them are taken in, because frames behind them
 * must not wait for a user.
 */
int tcp_frames_parse(struct tcp_lane *lane, bool force)
{
	struct tcp_lane_rx *rx = &lane->rx;
	struct look look = {.unexpected = force ? INT_MAX : 0};
	int rc;

	ASSERT_HELD(&lane->link->mu);
	while ((rc = rx->state == TCP_RX_HEADER ? take_header(lane, &look) : take_payload(lane)) > 0) {
		look.consumed = true;
		store_relaxed(&rx->stalled, false);
	}
	if (rc == 0)
		compact_buffer(rx);
	return rc;
}
