/* SPDX-License-Identifier: Apache-2.0 */
/* What a session keeps in case a socket breaks, and a lane that loses its socket and gets another. resume.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/tcp/network.h"

#ifndef RESUME_PLANTED
#define RESUME_PLANTED 0 /* 1: a bug for tests of tests; a piece that has come goes again */
#endif

enum { COPY_STEP = 32 << 10 };

/* ---- keeping ---- */

static void free_resume(struct tcp_resume *r)
{
	if (!r)
		return;
	free(r->lanes);
	free(r->kept);
	free(r->queue);
	free(r->ring);
	free(r);
}

gantry_result tcp_resume_init(struct tcp_link *l)
{
	struct tcp_resume *r = calloc(1, sizeof(*r));
	size_t pieces = (size_t)(l->nlanes - 1) * RESUME_KEPT;

	_Static_assert((int)RESUME_RING >= (int)LINK_WINDOW, "all eager bytes that may be under way are kept");
	if (!r)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a session that resumes");
	gantry_list_init(&r->held);
	r->lanes = calloc((size_t)l->nlanes, sizeof(*r->lanes));
	r->kept = calloc(pieces, sizeof(*r->kept));
	r->queue = malloc(pieces * sizeof(*r->queue));
	r->queue_size = (uint32_t)pieces;
	r->ring = malloc(RESUME_RING);
	if (!r->lanes || !r->kept || !r->queue || !r->ring) {
		free_resume(r);
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %zu pieces and %d eager bytes", pieces, RESUME_RING);
	}
	for (int i = 0; i < l->nlanes; i++) {
		l->lanes[i].resume = &r->lanes[i];
		if (i)
			r->lanes[i].kept = r->kept + (size_t)(i - 1) * RESUME_KEPT;
	}
	l->resume = r;
	return GANTRY_OK;
}

void tcp_resume_free(struct tcp_link *l)
{
	free_resume(l->resume);
}

int tcp_resume_list(const struct tcp_resume *r, uint64_t from, uint64_t to, struct iovec iov[2])
{
	uint32_t at = (uint32_t)(from % RESUME_RING), n = (uint32_t)(to - from), first = RESUME_RING - at;

	ASSERT(to - from <= RESUME_RING);
	if (n <= first) {
		iov[0] = (struct iovec){r->ring + at, n};
		return 1;
	}
	iov[0] = (struct iovec){r->ring + at, first};
	iov[1] = (struct iovec){r->ring, n - first};
	return 2;
}

void tcp_resume_keep(struct tcp_link *l, uint64_t at, const void *data, size_t n)
{
	struct iovec iov[2];

	ASSERT(at + n - l->tx.peer_received <= RESUME_RING);
	if (!n)
		return;
	if (tcp_resume_list(l->resume, at, at + n, iov) == 2)
		memcpy(iov[1].iov_base, (const uint8_t *)data + iov[0].iov_len, iov[1].iov_len);
	memcpy(iov[0].iov_base, data, iov[0].iov_len);
}

void tcp_resume_hold(struct tcp_link *l, struct tcp_send *s, uint64_t at)
{
	ASSERT_HELD(&l->mu);
	ASSERT(at >= l->tx.peer_received && !s->held_since);
	s->held = true;
	s->held_at = at;
	s->next = 0;
	gantry_list_append(&l->resume->held, &s->head.node);
	store_relaxed(&l->resume->held_n, l->resume->held_n + 1);
}

static void end_hold(struct tcp_resume *r, struct tcp_send *s) REQUIRES(link_mu)
{
	ASSERT(s->held && s->held_since && r->held_n);
	store_relaxed(&r->held_n, r->held_n - 1);
	s->held = false;
	gantry_list_remove(&s->head.node);
	tcp_request_done(&s->head);
}

/* False: all of it is copied, or it need not be: it has come, or goes again. */
static bool copy_held(struct tcp_link *l, struct tcp_send *s) REQUIRES(link_mu)
{
	struct tcp_resume *r = l->resume;
	uint64_t n = s->size - s->next < COPY_STEP ? s->size - s->next : COPY_STEP;

	if (!s->held || !s->held_since || tcp_link_failed(l))
		return false;
	if (s->held_at <
	    l->tx.peer_received) { /* its place was reused: the peer reported its arrival before it was out */
		end_hold(r, s);
		return false;
	}
	tcp_resume_keep(l, s->held_at + WIRE_EAGER_SIZE + s->next, s->data + s->next, n);
	s->next += n;
	if (s->next < s->size)
		return true;
	tcp_resume_keep(l, s->held_at, s->header, WIRE_EAGER_SIZE);
	r->adopted++;
	end_hold(r, s);
	return false;
}

/* A batch that is not out has the newest of them, and names them until then. */
void tcp_resume_release(struct tcp_link *l)
{
	struct tcp_resume *r = l->resume;

	ASSERT_HELD(&l->mu);
	gantry_list_each_entry_safe (s, &r->held, struct tcp_send, head.node) {
		bool came = s->held_at + s->size + WIRE_EAGER_SIZE <= l->tx.peer_received;

		if (!came && s->held_at < l->tx.peer_received)
			tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
					     "the peer acknowledged part of an eager message");
		/* Without resume, bytes handed to the kernel count as sent. */
		if (!s->held_since || (!came && !r->over && !l->tx.peer_closed))
			break;
		if (came || r->over || tcp_link_failed(l)) {
			end_hold(r, s);
			continue;
		}
		/* The receiver has closed, and the other direction goes on: if the control lane breaks, these bytes go again. */
		while (copy_held(l, s))
			;
	}
}

void tcp_resume_adopt(struct tcp_link *l, struct tcp_send *s)
{
	const struct tcp_resume *r = l->resume;
	uint64_t since = load_relaxed(&s->held_since), moved = load_relaxed(&r->received_at);
	uint64_t paces = load_relaxed(&r->held_n) > 1 ? RESUME_STREAM_PACES : RESUME_PACES;
	bool more = true;

	if (!since)
		return;
	/* While the peer takes what lies before it, its turn comes soon. */
	if ((int64_t)(moved - since) > 0)
		since = moved;
	if ((int64_t)(gantry_ticks() - since) < (int64_t)(paces * l->session.pace_ticks))
		return;
	while (more) { /* in steps: other threads wait for the lock */
		link_mu_lock(&l->mu);
		more = copy_held(l, s);
		link_mu_unlock(&l->mu);
	}
}

void tcp_resume_closed(struct tcp_link *l)
{
	bool sending = l->tx.wanted && !l->tx.peer_closed;
	bool receiving = l->recvs && !l->rx.closed && !l->rx.peer_closed;

	ASSERT_HELD(&l->mu);
	if (!l->resume)
		return;
	l->resume->closing = true;
	l->resume->over |= !sending && !receiving;
	tcp_resume_release(l);
}

/* The stream of eager bytes must be the same when it goes again; of bulk messages, CLOSE says which were sent. */
void tcp_resume_abandon(struct tcp_link *l)
{
	ASSERT(!l->control->batch_n); /* the rest of the batch has its own memory */
	gantry_list_each_entry_safe (s, &l->resume->held, struct tcp_send, head.node) {
		store_relaxed(&s->held_since, 1);
		while (copy_held(l, s))
			;
	}
	gantry_list_init(&l->resume->held);
	store_relaxed(&l->resume->held_n, 0);
	l->resume->queue_n = 0;
	for (int i = 1; i < l->nlanes; i++)
		for (int k = 0; k < RESUME_KEPT; k++)
			l->lanes[i].resume->kept[k].send = NULL;
}

bool tcp_resume_room(struct tcp_lane *lane)
{
	struct tcp_lane_resume *r = lane->resume;

	if (r->given - r->first < RESUME_KEPT)
		return true;
	while (r->first < r->given && tcp_send_acked(lane->link, r->kept[r->first % RESUME_KEPT].seq))
		r->first++;
	return r->given - r->first < RESUME_KEPT;
}

void tcp_resume_keep_piece(struct tcp_lane *lane, struct tcp_send *s, uint64_t offset, uint32_t length)
{
	struct tcp_lane_resume *r = lane->resume;

	ASSERT(r->given - r->first < RESUME_KEPT);
	r->kept[r->given++ % RESUME_KEPT] =
		(struct tcp_kept){.send = s, .seq = s->seq, .offset = offset, .length = length};
}

struct tcp_kept *tcp_resume_next(struct tcp_link *l)
{
	struct tcp_resume *r = l->resume;

	return r->queue_n ? &r->queue[r->queue_head] : NULL;
}

void tcp_resume_pop(struct tcp_link *l)
{
	struct tcp_resume *r = l->resume;

	ASSERT(r->queue_n);
	r->queue_head = (r->queue_head + 1) % r->queue_size;
	r->queue_n--;
}

void tcp_resume_count(struct tcp_lane *lane)
{
	struct tcp_lane_resume *r = lane->resume;

	r->pieces++;
	if (r->pieces - r->pieces_told < RESUME_TELL)
		return;
	lane->rx.arrived = lane->rx.bytes - lane->rx.base;
	lane->rx.tell_arrived = true;
	store_relaxed(&lane->link->tx.pending, 1);
}

/* The newest is kept: the thread that sends it may not have noted yet that it is out. */
void tcp_resume_arrived(struct tcp_lane_resume *r, uint64_t pieces)
{
	if (pieces == r->given && pieces)
		pieces--;
	if (pieces > r->first && pieces < r->given)
		r->first = pieces;
}

/* ---- stopping a lane ---- */

/* What has begun to come and is not whole will come again. */
static void undo_rx(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	struct tcp_unexpected *u = rx->unexpected;

	if (rx->state == TCP_RX_PAYLOAD && rx->buffer && rx->target->posted) {
		rx->buffer->begun -= rx->frame.piece.length;
		if (rx->frame.piece.eager)
			rx->buffer->started = false;
	}
	if (rx->state == TCP_RX_PAYLOAD && u) {
		lane->link->rx.unexpected_bytes -= u->total + WIRE_EAGER_SIZE;
		gantry_list_remove(&u->node);
		free(u);
	}
	rx->state = TCP_RX_HEADER;
	rx->recv = NULL;
	rx->buffer = NULL;
	rx->unexpected = NULL;
	rx->left = 0;
	rx->head = rx->tail = rx->bounced = 0;
	store_relaxed(&rx->stalled, false);
	rx->large = false;
}

static void stop_tx(struct tcp_lane *lane) REQUIRES(lane_tx_mu, link_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;

	tx->send = NULL;
	tx->left = tx->in_pipe = 0;
	tx->header_left = 0;
	for (int k = 0; k < 2; k++) {
		if (tx->pipe[k] >= 0)
			close(tx->pipe[k]);
		tx->pipe[k] = -1;
	}
	tx->share = tx->to_copy = 0;
	store_relaxed(&tx->completed, tx->calls);
}

/* What was on its way is kept, or held. */
static void stop_control(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	l->control->iov_at = l->control->iov_n = 0;
	tcp_batch_ended(l);
}

/* All locks of a lane, and its link's. UNCHECKED: which of the two sending locks depends on the lane. */
static void lock_lane(struct tcp_lane *lane) UNCHECKED
{
	lane_rx_mu_lock(&lane->rx.lock);
	if (lane->index)
		lane_tx_mu_lock(&lane->tx.lock);
	else
		control_mu_lock(&lane->link->control_mu);
	link_mu_lock(&lane->link->mu);
}

static void unlock_lane(struct tcp_lane *lane) UNCHECKED
{
	link_mu_unlock(&lane->link->mu);
	if (lane->index)
		lane_tx_mu_unlock(&lane->tx.lock);
	else
		control_mu_unlock(&lane->link->control_mu);
	lane_rx_mu_unlock(&lane->rx.lock);
}

/* UNCHECKED, as lock_lane. */
void tcp_lane_stop(struct tcp_lane *lane, uint64_t now) UNCHECKED
{
	struct tcp_link *l = lane->link;

	lock_lane(lane);
	store_release(&lane->rx.eof, 1);
	store_relaxed(&lane->tx.dead, 1);
	lane->io.ops->cancel_recv(&lane->io);
	lane->io.ops->cancel_send(&lane->io);
	undo_rx(lane);
	if (lane->index)
		stop_tx(lane);
	else
		stop_control(l);
	tcp_lane_reseal(lane, &(struct inet_seals){0});
	lane->io.ops->reset(&lane->io);
	lane->resume->stopped = true;
	lane->resume->tell = lane->index > 0;
	lane->resume->down_since = now;
	l->resume->lanes_lost++;
	store_relaxed(&l->tx.pending, 1);
	unlock_lane(lane);
	LOG_INFO(NET, "%s: lane %d: %s: not used until its socket is replaced", l->session.peer, lane->index,
		 load_acquire(&lane->resume->broken) ? lane->resume->error ? strerror(lane->resume->error) : "ended"
						     : "the peer stopped using it");
}

/* ---- what has not come goes again ---- */

static void queue_again(struct tcp_link *l, const struct tcp_kept *k) REQUIRES(link_mu)
{
	struct tcp_resume *r = l->resume;
	struct tcp_send *s = k->send;

	if (tcp_send_acked(l, k->seq)) {
		if (s && !k->ended) /* then the message is not out, and nothing else would end it */
			tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
					     "peer reports bulk message %llu finished, but a piece of it is missing",
					     (unsigned long long)k->seq);
		return;
	}
	if (!s) { /* its direction was closed before it had come: the peer must not wait for it */
		l->tx.bulk_sent = l->tx.peer_done + (uint64_t)__builtin_popcount(l->tx.peer_done_bits);
		l->tx.tell_close = true;
		return;
	}
	if (k->ended) {
		if (s->sent == s->size) { /* it waited for its acknowledgement */
			gantry_list_remove(&s->head.node);
			l->tx.bulk_sent--;
		}
		s->sent -= k->length;
	}
	ASSERT(r->queue_n < r->queue_size);
	r->queue[(r->queue_head + r->queue_n++) % r->queue_size] = *k;
	r->queue[(r->queue_head + r->queue_n - 1) % r->queue_size].ended = false;
	store_relaxed(&l->tx.bulk_bytes, l->tx.bulk_bytes + k->length);
}

/* Both sides have stopped. False: pieces of earlier losses must go first. */
bool tcp_lane_settle(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_resume *r = lane->resume;
	uint64_t lost;
	bool room;

	link_mu_lock(&l->mu);
	if (RESUME_PLANTED && r->peer_pieces > r->first)
		r->peer_pieces -= RESUME_PLANTED;
	lost = r->given - r->peer_pieces;
	room = l->resume->queue_size - l->resume->queue_n >= lost;
	/* The peer may have had the newest piece whole before the thread that sent it noted that down. */
	for (uint64_t i = r->first; room && i < r->peer_pieces; i++)
		if (!r->kept[i % RESUME_KEPT].ended && r->kept[i % RESUME_KEPT].send)
			tcp_send_note(l, r->kept[i % RESUME_KEPT].send, r->kept[i % RESUME_KEPT].length);
	for (uint64_t i = r->peer_pieces; room && i < r->given; i++)
		queue_again(l, &r->kept[i % RESUME_KEPT]);
	if (room) {
		r->given = r->first = r->peer_pieces;
		r->settled = true;
	}
	link_mu_unlock(&l->mu);
	if (room && lost)
		LOG_DEBUG(NET, "%s: lane %d: resending %llu pieces", l->session.peer, lane->index,
			  (unsigned long long)lost);
	return room;
}

/* ---- a new socket ---- */

static void reset_tx(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;

	store_relaxed(&tx->calls, 0);
	store_relaxed(&tx->completed, 0);
	store_relaxed(&tx->queued, 0);
	store_relaxed(&tx->rate, 0);
	store_relaxed(&tx->next_try, 0);
	store_relaxed(&tx->given, 0);
	store_relaxed(&tx->arrived, 0);
	store_relaxed(&tx->unread, 0);
	tx->arrived_seen = tx->still_since = 0;
	tx->backoff = (struct sock_backoff){0};
}

/* Which receives have been advertised to the peer is not known: surely those before the first that is still posted.
 * What has arrived is no evidence, since an eager message overtakes a bulk one that waits for its receive. */
static void rewind_credits(struct tcp_link *l) REQUIRES(link_mu)
{
	struct tcp_tags *tags = &l->rx.tags;

	for (int i = 0; i < tags->count; i++)
		tags->items[i].credit = tags->items[i].posted;
	gantry_list_each_entry (recv, &l->rx.posted, struct tcp_recv, head.node) {
		for (int i = 0; i < recv->n; i++) {
			struct tcp_tag *t = tcp_tag_find(tags, recv->buffers[i].tag);

			if ((int32_t)(recv->buffers[i].index - t->credit) < 0)
				t->credit = recv->buffers[i].index;
			t->due = true;
		}
	}
}

/* What was sent on the old control lane, and may not have arrived. */
static void say_again(struct tcp_link *l, uint64_t received) REQUIRES(control_mu, link_mu)
{
	struct tcp_resume *r = l->resume;
	struct tcp_coalesce *o = &l->tx.coalesce;

	l->tx.peer_received = r->again = received;
	r->again_end = l->tx.eager_out;
	tcp_resume_release(l);
	if (o->newest)
		tcp_request_done(&o->newest->head);
	o->newest = NULL;
	o->bytes = o->count = 0;
	rewind_credits(l);
	l->rx.ack_now = true;
	l->tx.tell_close |= l->tx.closed;
	l->rx.tell_close |= l->rx.closed;
	gantry_list_each_entry (s, &l->tx.bulk, struct tcp_send, head.node)
		s->rts_sent = false;
	for (int i = 1; i < l->nlanes; i++) {
		l->lanes[i].resume->tell = l->lanes[i].resume->stopped;
		l->lanes[i].rx.tell_arrived = !l->lanes[i].resume->stopped;
	}
}

bool tcp_resume_counts_fit(const struct tcp_link *l, uint64_t received)
{
	return received >= l->tx.peer_received && received <= l->tx.eager_out;
}

/*
 * Another thread may have read the peer's STOPPED for this very generation since the hand-shake was looked at: the peer has
 * had the socket and lost it, and the news must not be overwritten.
 */
static bool may_install(struct tcp_lane *lane, const struct tcp_new_socket *s) REQUIRES(link_mu)
{
	const struct tcp_lane_resume *r = lane->resume;

	if (tcp_link_failed(lane->link) || !r->stopped || s->generation <= r->generation ||
	    (lane->index && !r->settled))
		return false;
	if (lane->index || tcp_resume_counts_fit(lane->link, s->received))
		return true;
	tcp_link_fail_locked(
		lane->link, 0, GANTRY_ERR_PROTOCOL,
		"peer reports %llu eager bytes received, but %llu were sent and its previous report was %llu",
		(unsigned long long)s->received, (unsigned long long)lane->link->tx.eager_out,
		(unsigned long long)lane->link->tx.peer_received);
	return false;
}

static void discard_socket(struct tcp_new_socket *s)
{
	sock_reset(s->fd);
	close(s->fd);
	inet_seals_free(&s->seals);
}

/* UNCHECKED, as lock_lane. */
void tcp_lane_install(struct tcp_lane *lane, struct tcp_new_socket *s) UNCHECKED
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_resume *r = lane->resume;
	int e;

	tcp_lane_tune(lane, s->fd, &s->peer, s->device);
	lock_lane(lane);
	if (!may_install(lane, s)) {
		unlock_lane(lane);
		discard_socket(s);
		return;
	}
	e = lane->io.ops->replace(&lane->io, s->fd);
	if (e)
		tcp_link_fail_locked(l, 0, GANTRY_ERR_SYSTEM, "lane %d: dup3: %s", lane->index, strerror(e));
	tcp_lane_reseal(lane, &s->seals);
	reset_tx(lane);
	store_relaxed(&lane->rx.base, lane->rx.bytes);
	lane->rx.arrived = lane->rx.unread = 0;
	lane->rx.tell_arrived = false;
	store_relaxed(&lane->rx.next_poll, 0);
	r->generation = s->generation;
	r->stopped = r->peer_stopped = r->settled = r->tell = false;
	r->error = 0;
	store_release(&r->broken, 0);
	if (!lane->index)
		say_again(l, s->received);
	store_relaxed(&lane->tx.dead, 0);
	store_release(&lane->rx.eof, 0);
	store_relaxed(&l->tx.pending, 1);
	l->resume->resumed++;
	unlock_lane(lane);
	tcp_spread_survey(l);
	store_relaxed(&l->last.heard, gantry_ticks());
	LOG_INFO(NET, "%s: lane %d is back after %.3g s", l->session.peer, lane->index,
		 (double)(gantry_now_ns() - r->down_since) / 1e9);
	tcp_control_flush(l);
}
