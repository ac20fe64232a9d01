/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes belong to which buffer, and what the sender is told about it. */
#include <stdlib.h>

#include "base/atomic.h"
#include "base/event.h"
#include "base/trace.h"
#include "net/tcp/link.h"

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
	tcp_link_fail_locked(l, 1, GANTRY_ERR_SIZE, "a send of %llu bytes met a receive of %llu bytes (tag %u)",
			     (unsigned long long)sent, (unsigned long long)buffer->size, buffer->tag);
}

bool tcp_match_fits(struct tcp_link *l, uint64_t total, const struct tcp_buffer *buffer)
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
	t->bulk = !f->eager;
	return 0;
}

int tcp_match_begin(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_buffer *buffer)
{
	if (note_arrival(l, f))
		return -1;
	if (!buffer)
		return 0;
	if (!tcp_match_fits(l, f->total, buffer))
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
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "message %u of tag %u came twice", buffer->index,
				     buffer->tag);
		return false;
	}
	if (!tcp_match_fits(l, total, buffer))
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

int tcp_match_eager(struct tcp_link *l, const struct wire_piece *f, const uint8_t *data, struct tcp_recv *recv,
		    struct tcp_buffer *buffer)
{
	return note_arrival(l, f) || !take_whole(l, recv, buffer, data, f->length) ? -1 : 0;
}

void tcp_match_unexpected(struct tcp_link *l, struct tcp_recv *recv, struct tcp_buffer *buffer)
{
	gantry_list_each_entry (u, &l->rx.unexpected, struct tcp_unexpected, node) {
		if (u->tag != buffer->tag || u->index != buffer->index)
			continue;
		if (!u->complete) { /* still arriving: whoever reads its last byte completes the buffer */
			tcp_match_fits(l, u->total, buffer);
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
 * Is there something about this tag that the sender should hear now? Receives are told of when it waits for one, or,
 * while bulk messages come, when a quarter of those outstanding are news to it: so a shallow window is known at once, a
 * deep one costs a frame for several messages, and streams of small messages into large buffers cost none.
 */
bool tcp_state_due(const struct tcp_link *l, const struct tcp_tag *tag)
{
	uint32_t news = tag->posted - tag->credit;

	if (!news)
		return false;
	if ((int32_t)(tag->rts - tag->credit) > 0)
		return true;
	return l->rx.large_posted && tag->bulk && 4 * news >= tag->posted - tag->arrived;
}
