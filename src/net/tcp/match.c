/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes belong to which buffer, and what the sender is told about it. All of it runs under the link's mu. */
#include <stdlib.h>

#include "base/atomic.h"
#include "base/event.h"
#include "base/trace.h"
#include "net/tcp/link.h"
#include "net/tcp/unpack.h"

struct tcp_slot *tcp_match_slot(struct tcp_link *l, uint32_t tag, uint32_t index, struct tcp_recv **ret_recv)
{
	gantry_list_each (pos, &l->rx.posted) {
		struct tcp_recv *recv = gantry_container(pos, struct tcp_recv, head.node);

		for (int i = 0; i < recv->n; i++) {
			if (recv->slots[i].index == index && recv->slots[i].tag == tag) {
				*ret_recv = recv;
				return &recv->slots[i];
			}
		}
	}
	return NULL;
}

static void size_mismatch(struct tcp_link *l, uint64_t sent, const struct tcp_slot *slot)
{
	l->end.sent_bytes = sent;
	l->end.recv_bytes = slot->size;
	tcp_link_fail_locked(l, 1, GANTRY_ERR_SIZE, "a send of %llu bytes met a receive of %llu bytes (tag %u)",
			     (unsigned long long)sent, (unsigned long long)slot->size, slot->tag);
}

int tcp_match_fits(struct tcp_link *l, uint64_t total, const struct tcp_slot *slot)
{
	if (total <= slot->size)
		return 1;
	size_mismatch(l, total, slot);
	return 0;
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
static int check_cover(struct tcp_link *l, const struct tcp_slot *slot)
{
	if (slot->cover == cover_of(l, 0, slot->total))
		return 0;
	tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
			     "the pieces of message %u of tag %u do not cover it exactly once", slot->index, slot->tag);
	return -1;
}

int tcp_match_begin(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_slot *slot)
{
	struct tcp_tag *t = tcp_tag_of(&l->rx.tags, f->tag);

	if (!t) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "too many different tags");
		return -1;
	}
	if ((int32_t)(f->index + 1 - t->arrived) > 0)
		t->arrived = f->index + 1;
	t->bulk = !f->eager;
	if (!slot)
		return 0;
	if (!tcp_match_fits(l, f->total, slot))
		return -1;
	/* Checked before a byte is written: pieces may neither repeat nor disagree. */
	if (slot->complete || (slot->started && (slot->total != f->total || slot->seq != f->seq)) ||
	    f->length > f->total - slot->begun) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "the pieces of message %u of tag %u do not add up",
				     f->index, f->tag);
		return -1;
	}
	if (!slot->started && tcp_land_begin(l, recv, f->total, f->eager))
		return -1;
	slot->started = 1;
	slot->total = f->total;
	slot->seq = f->seq;
	slot->begun += f->length;
	return 0;
}

static int bulk_is_done(const struct tcp_link *l, uint64_t seq)
{
	return l->rx.done_bits[seq % LINK_DONE_BITS / 64] >> (seq % 64) & 1;
}

/* The last piece of a bulk message has come. */
static int bulk_whole(struct tcp_link *l, const struct wire_piece *f)
{
	if (f->seq - l->rx.done >= LINK_DONE_BITS || bulk_is_done(l, f->seq)) {
		tcp_link_fail_locked(
			l, 1, GANTRY_ERR_PROTOCOL,
			"message %u of tag %u has number %llu, which is taken or out of range (%llu are done)",
			f->index, f->tag, (unsigned long long)f->seq, (unsigned long long)l->rx.done);
		return -1;
	}
	tcp_match_bulk_done(l, f->seq);
	l->rx.bulk_received++;
	if (f->seq >= l->rx.newest_bulk) {
		l->rx.newest_bulk = f->seq;
		l->rx.deep_window = f->deep;
	}
	/* It overtook a message that may wait for its user: its own sender must not wait too. */
	if (f->seq >= l->rx.done && f->ack && l->rx.tags.count > 1)
		l->rx.ack_now = 1;
	if (f->ack && f->seq + 1 > l->rx.ack_upto)
		l->rx.ack_upto = f->seq + 1;
	store_relaxed(&l->rx.bulk_hint, l->rx.described != 0);
	return 0;
}

int tcp_match_end(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_slot *slot)
{
	int whole = f->length == slot->total; /* then it is the only piece, since all of them have no more bytes */

	slot->got += f->length;
	if (f->eager)
		l->rx.consumed += f->length + WIRE_FRAME_SIZE;
	if (!whole)
		slot->cover += cover_of(l, f->offset, f->offset + f->length);
	if (slot->got != slot->total)
		return 0;
	if ((!whole && check_cover(l, slot)) || (!f->eager && bulk_whole(l, f)))
		return -1;
	tcp_match_complete(l, recv, slot);
	return 0;
}

void tcp_match_complete(struct tcp_link *l, struct tcp_recv *recv, struct tcp_slot *slot)
{
	slot->complete = 1;
	if (++recv->ncomplete < recv->n)
		return;
	gantry_list_remove(&recv->head.node);
	tcp_count_posted(l, recv, -1);
	if (recv->large || gantry_trace_on())
		gantry_event_put(GANTRY_EV_RECV_DONE, l->session.id,
				 GANTRY_EV_MSG(recv->slots[0].tag, recv->slots[0].index), slot->total);
	if (recv->land)
		tcp_land_complete(l, recv);
	else
		tcp_request_done(&recv->head);
}

/* Bulk messages may complete out of order; `done` counts those before the first incomplete one. */
void tcp_match_bulk_done(struct tcp_link *l, uint64_t seq)
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

void tcp_match_early(struct tcp_link *l, struct tcp_recv *recv, struct tcp_slot *slot)
{
	gantry_list_each (pos, &l->rx.unexpected) {
		struct tcp_early *e = gantry_container(pos, struct tcp_early, node);

		if (e->tag != slot->tag || e->index != slot->index)
			continue;
		if (!tcp_match_fits(l, e->total, slot))
			return;
		if (!e->complete) /* still arriving: whoever reads its last byte completes the slot */
			return;
		if (tcp_land_begin(l, recv, e->total, 1) || tcp_land_host(l, recv, slot, e->data, e->total, 0))
			return;
		slot->total = slot->begun = slot->got = e->total;
		slot->started = 1;
		l->rx.unexpected_bytes -= e->total + WIRE_FRAME_SIZE;
		l->rx.consumed += e->total + WIRE_FRAME_SIZE;
		gantry_list_remove(&e->node);
		free(e);
		tcp_match_complete(l, recv, slot);
		return;
	}
}

/*
 * Is there something about this tag that the sender should hear now? Receives are advertised when it waits for one, or,
 * while bulk messages come, when a quarter of those outstanding are news to it: so a shallow window is known at once, a
 * deep one costs a frame for several messages, and streams of small messages into large buffers cost none.
 */
int tcp_state_due(const struct tcp_link *l, const struct tcp_tag *tag)
{
	uint32_t news = tag->posted - tag->advertised;

	if (!news)
		return 0;
	if ((int32_t)(tag->announced - tag->advertised) > 0)
		return 1;
	return l->rx.large_posted && tag->bulk && 4 * news >= tag->posted - tag->arrived;
}
