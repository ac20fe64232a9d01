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
#include <sys/socket.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "net/tcp/flow.h"
#include "net/tcp/link.h"

enum {
	COPY_TWICE_MAX = 8 << 10, /* behind a payload up to this size, reading far ahead pays */
	NOWHERE = 16 << 10,
	VEC_MAX = 256, /* pieces in one system call */
	FLOW_IDLE_PACES = 200,
};

/* Payload is summed as it comes, wherever it goes: its place may be the user's again before the piece is whole. */
static void sum_payload(struct tcp_lane_rx *rx, const struct iovec *iov, uint64_t n)
{
	for (uint64_t len; n; iov++, n -= len) {
		len = n < iov->iov_len ? n : iov->iov_len;
		rx->crc = gantry_crc32c(rx->crc, iov->iov_base, len);
	}
}

/* One call. Returns bytes read, 0 at the end of the stream, -1 with errno. *ret_short: the socket is empty now. */
static ssize_t fill(struct tcp_lane *lane, int *ret_short)
{
	struct tcp_lane_rx *rx = &lane->rx;
	struct iovec iov[VEC_MAX + 1];
	struct msghdr msg = {.msg_iov = iov};
	size_t asked = 0;
	ssize_t n;
	uint8_t nowhere[NOWHERE]; /* no thread-local variable: a plugin has little room for those */
	uint64_t direct = 0;
	uint32_t ahead = rx->room - rx->tail;

	if (rx->state == TCP_RX_PAYLOAD && rx->left) { /* then the buffer is empty */
		uint8_t *dst = rx->target == TCP_TO_NOWHERE ? nowhere : rx->target == TCP_TO_LAND ? rx->land : rx->dst;

		direct = rx->left;
		if (rx->target == TCP_TO_NOWHERE && direct > NOWHERE)
			direct = NOWHERE;
		if (rx->target == TCP_TO_LAND && direct > LINK_LAND)
			direct = LINK_LAND;
		iov[0] = (struct iovec){dst, direct};
		msg.msg_iovlen = 1;
		if (rx->target == TCP_TO_VEC)
			msg.msg_iovlen =
				(size_t)tcp_vec_list(&rx->recv->vec, &rx->vec, rx->left, iov, VEC_MAX, &direct);
		if (direct < rx->left)
			ahead = 0;
		else if (rx->frame.piece.length > COPY_TWICE_MAX)
			ahead = WIRE_FRAME_SIZE;
	}
	if (ahead)
		iov[msg.msg_iovlen++] = (struct iovec){rx->buf + rx->tail, ahead};
	asked = direct + ahead;
	n = recvmsg(lane->fd, &msg, MSG_DONTWAIT);
	if (n <= 0)
		return n;
	*ret_short = (size_t)n < asked;
	store_relaxed(&rx->bytes, rx->bytes + (uint64_t)n);
	if (direct) {
		uint64_t d = (uint64_t)n < direct ? (uint64_t)n : direct;

		if (lane->link->session.crc)
			sum_payload(rx, iov, d);
		if (rx->target == TCP_TO_LAND)
			rx->unlanded = (uint32_t)d;
		else if (rx->target == TCP_TO_VEC)
			tcp_vec_skip(&rx->recv->vec, &rx->vec, d);
		else if (rx->target != TCP_TO_NOWHERE)
			rx->dst += d;
		rx->left -= d;
		rx->tail += (uint32_t)((uint64_t)n - d);
	} else {
		rx->tail += (uint32_t)n;
	}
	return n;
}

static void lane_ended(struct tcp_lane *lane, int e)
{
	store_release(&lane->rx.eof, 1);
	tcp_link_ending(lane, e);
}

/*
 * Somebody waits for `done`, and nothing speaks for keeping him waiting: his window is shallow, or enough has come
 * together, or the next message has not begun to arrive. Under mu.
 */
static int ack_due(const struct tcp_lane *lane)
{
	const struct tcp_link *l = lane->link;
	int next_begun = lane->flow ? lane->flow->n != 0 : lane->index && lane->rx.state == TCP_RX_PAYLOAD;

	return l->rx.done != l->rx.done_told && l->rx.done_told < l->rx.ack_upto &&
	       (!l->rx.deep_window || !next_begun || l->rx.done - l->rx.done_told >= LINK_ACK_EVERY);
}

static void after_pass(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;

	pthread_mutex_lock(&l->mu);
	l->rx.ack_now |= ack_due(lane);
	if (l->rx.ack_now || l->rx.consumed - l->rx.consumed_told >= LINK_WINDOW / 4)
		store_relaxed(&l->tx.pending, 1);
	if (!tcp_link_failed(l))
		tcp_link_check_peer_closed(l);
	pthread_mutex_unlock(&l->mu);
	tcp_link_hang_up(l);
}

/* After bytes have come. 1: stop here, the sender waits to hear of it; -1: the link has failed. */
static int digest(struct tcp_lane *lane, int force)
{
	struct tcp_lane_rx *rx = &lane->rx;
	int rc = 0;

	pthread_mutex_lock(&lane->link->mu);
	if (lane->flow) {
		rc = tcp_flow_attribute(lane);
	} else {
		if (rx->unlanded)
			rc = tcp_frames_land(lane, rx->land, rx->unlanded, rx->left + rx->unlanded);
		rx->unlanded = 0;
		if (rc == 0 && rx->state == TCP_RX_PAYLOAD && !rx->left && rx->tail == rx->head)
			rc = tcp_frames_end(lane);
		if (rc == 0)
			rc = tcp_frames_parse(lane, force);
	}
	if (rc == 0 && ack_due(lane))
		rc = 1;
	pthread_mutex_unlock(&lane->link->mu);
	if (lane->flow)
		tcp_flow_drop(lane, 0);
	return rc;
}

/*
 * When is it worth looking again? An empty socket after a while. One whose payload is announced ahead, and of which
 * nothing is, only to see whether it has ended: the announcement makes it due. That is under mu, so it is not missed.
 */
static void next_look(struct tcp_lane *lane, int drained)
{
	struct tcp_link *l = lane->link;
	uint64_t next = drained ? gantry_ticks() + l->session.pace_ticks : 0;

	if (drained && lane->flow) {
		pthread_mutex_lock(&l->mu);
		if (!lane->flow->n)
			next += FLOW_IDLE_PACES * l->session.pace_ticks;
		store_relaxed(&lane->rx.next_poll, next);
		pthread_mutex_unlock(&l->mu);
	} else {
		store_relaxed(&lane->rx.next_poll, next);
	}
}

int tcp_lane_rx(struct tcp_lane *lane, int force)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_rx *rx = &lane->rx;
	uint64_t moved = 0;
	int drained = 0, parked;

	if (load_relaxed(&rx->eof) || pthread_mutex_trylock(&rx->lock))
		return 0;
	parked = rx->parked;
	if (parked)
		digest(lane, force);
	while (!rx->parked && !rx->eof && moved < LINK_RX_PASS_BYTES && !drained && !tcp_link_failed(l)) {
		ssize_t n = lane->flow ? tcp_flow_fill(lane) : fill(lane, &drained);

		if (n > 0) {
			moved += (uint64_t)n;
			if (digest(lane, force))
				break;
		} else if (n == 0) {
			lane_ended(lane, 0);
		} else if (errno == EAGAIN) {
			drained = 1;
		} else if (errno != EINTR) {
			lane_ended(lane, errno);
		}
	}
	if (moved) {
		store_relaxed(&l->last.heard, gantry_ticks());
		if (lane->index)
			store_relaxed(&l->last.bulk_moved, gantry_ticks());
		/* A lane has ended, but this one still delivers: give it time, within bounds. */
		if (load_acquire(&l->end.ending) && (int64_t)(gantry_ticks() - l->end.ending_since) <
							    (int64_t)gantry_ticks_of_ns(4ull * LINK_END_GRACE_NS))
			store_release(&l->end.ending, gantry_ticks() | 1);
	}
	if (moved || parked)
		after_pass(lane);
	if (lane->flow && drained)
		tcp_flow_drop(lane, 1);
	parked = lane->flow && rx->parked;
	next_look(lane, drained);
	pthread_mutex_unlock(&rx->lock);
	/* Payload is here before its header: that is on the control lane, and a helper would not look there. */
	if (parked)
		tcp_lane_rx(&l->lanes[0], 0);
	return moved != 0;
}
