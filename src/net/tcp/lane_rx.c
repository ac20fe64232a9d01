/*
 * Receiving: frames off a lane, payload straight to its final place.
 *
 * The socket is read into an iovec of two parts: the rest of the current payload at its final place, and the read-ahead
 * buffer for what follows. On the control lane that buffer is large, so one call brings many small messages; on a bulk
 * lane, and behind a large eager message, it holds just the next header, so that no payload is copied twice. A read
 * that brings less than asked for has emptied the socket: no second call is made to hear EAGAIN.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "net/tcp/flow.h"
#include "net/tcp/link.h"
#include "net/tcp/unpack.h"

enum {
	COPY_TWICE_MAX = 8 << 10, /* behind a payload up to this size, reading far ahead pays */
	EARLY_PER_LOOK = 16,
	NOWHERE = 16 << 10,
	VEC_MAX = 256, /* pieces in one system call */
};

/* Everything from here to parse runs under mu, taken once for all that one read has brought. */

static int broken(struct tcp_lane *lane, const char *what)
{
	tcp_link_fail_locked(lane->link, 1, GANTRY_ERR_PROTOCOL, "lane %d: %s", lane->index, what);
	return -1;
}

/* ---- control frames ---- */

static void on_state(struct tcp_link *l, const struct wire_frame *f)
{
	gantry_event_put(GANTRY_EV_STATE_RX, l->id, f->index, f->seq);
	if (f->total) {
		struct tcp_tag *t = tcp_tag_of(&l->tx_tags, f->tag);

		if (t && (int32_t)(f->index - t->advertised) > 0)
			t->advertised = f->index;
	}
	if (f->offset > l->peer_consumed && f->offset <= l->eager_out) {
		l->peer_consumed = f->offset;
		if (l->window_blocked)
			__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
	}
	if (f->seq < l->peer_done || f->seq > l->next_seq || (f->seq == l->peer_done && f->crc == l->peer_done_bits))
		return;
	l->peer_done = f->seq;
	l->peer_done_bits = f->crc;
	gantry_list_each_safe (pos, &l->unacked) {
		struct tcp_send *s = gantry_container(pos, struct tcp_send, head.node);

		if (!tcp_send_acked(l, s->seq))
			continue;
		gantry_list_remove(&s->head.node);
		__atomic_fetch_sub(&l->bulk_pending, 1, __ATOMIC_RELAXED);
		gantry_event_put(GANTRY_EV_SEND_DONE, l->id, s->index, s->size);
		tcp_request_done(&s->head);
	}
}

static void on_rts(struct tcp_link *l, const struct wire_frame *f)
{
	struct tcp_tag *t = tcp_tag_of(&l->rx_tags, f->tag);
	struct tcp_recv *recv;
	struct tcp_slot *slot;

	__atomic_store_n(&l->bulk_hint, 1, __ATOMIC_RELAXED);
	if (t && (int32_t)(f->index + 1 - t->announced) > 0)
		t->announced = f->index + 1;
	if (t)
		t->bulk = 1;
	slot = tcp_match_slot(l, f->tag, f->index, &recv);
	if (!slot || tcp_match_fits(l, f->total, slot))
		__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
}

static void check_peer_closed(struct tcp_link *l)
{
	if (tcp_link_peer_said_all(l))
		tcp_link_end(l, &l->rx_end, "the peer closed its sending side");
	if (l->peer_rx_closed)
		tcp_link_end(l, &l->tx_end, "the peer closed its receiving side");
}

static void on_control(struct tcp_link *l, const struct wire_frame *f)
{
	switch (f->kind) {
	case WIRE_STATE:
		on_state(l, f);
		break;
	case WIRE_RTS:
		on_rts(l, f);
		break;
	case WIRE_CLOSE:
		if (f->flags & WIRE_FLAG_RECEIVER) {
			l->peer_rx_closed = 1;
		} else {
			__atomic_store_n(&l->peer_tx_closed, 1, __ATOMIC_RELAXED);
			l->peer_bulk_sent = f->seq;
		}
		break;
	}
}

/* ---- data frames ---- */

/* Not posted yet: an eager message is kept, within the window that the peer was promised. */
static int begin_early(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_frame *f = &rx->frame;
	struct tcp_early *e;

	if (!(f->flags & WIRE_FLAG_EAGER) || f->length != f->total || f->total > LINK_WINDOW ||
	    l->early_bytes + f->total + WIRE_FRAME_SIZE > LINK_WINDOW) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "lane %d: data for a receive that was not posted",
				     lane->index);
		return -1;
	}
	e = malloc(sizeof(*e) + f->total);
	if (!e) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_NOMEM, "no memory for %u early bytes", f->length);
		return -1;
	}
	e->tag = f->tag;
	e->index = f->index;
	e->total = f->total;
	e->complete = 0;
	gantry_list_append(&l->early, &e->node);
	l->early_bytes += f->total + WIRE_FRAME_SIZE;
	rx->early = e;
	rx->target = TCP_TO_EARLY;
	rx->dst = e->data;
	return 0;
}

/* 1: not posted yet, and the frame may stay in the buffer for a moment. */
static int begin_data(struct tcp_lane *lane, int force)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_frame *f = &rx->frame;
	int rc;

	rx->left = f->length;
	rx->dst = NULL;
	rx->slot = tcp_match_slot(l, f->tag, f->index, &rx->recv);
	if (!rx->slot && !force && !l->rx_closed && (f->flags & WIRE_FLAG_EAGER))
		return 1;
	rc = tcp_match_begin(l, f, rx->recv, l->rx_closed ? NULL : rx->slot);
	if (rc)
		return rc;
	if (l->rx_closed) { /* nobody wants it */
		rx->target = TCP_TO_NOWHERE;
	} else if (!rx->slot) {
		rc = begin_early(lane);
	} else if (tcp_land_needed(rx->recv)) {
		rx->target = TCP_TO_LAND;
		rx->unlanded = rx->land_crc = 0;
	} else if (rx->recv->vec.n) {
		rx->target = TCP_TO_VEC;
		tcp_vec_seek(&rx->recv->vec, f->offset, &rx->vec);
	} else {
		rx->target = TCP_TO_SLOT;
		rx->dst = f->length ? rx->slot->data + f->offset : NULL;
	}
	rx->payload = rx->dst;
	return rc;
}

/* The next n bytes of a piece whose place only the unpack queue knows. */
static int land(struct tcp_lane *lane, const uint8_t *data, uint32_t n, uint64_t left)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_frame *f = &rx->frame;

	if (f->flags & WIRE_FLAG_CRC)
		rx->land_crc = gantry_crc32c(rx->land_crc, data, n);
	return tcp_land_host(lane->link, rx->recv, rx->slot, data, n, f->offset + f->length - left);
}

static int check_crc(struct tcp_lane *lane)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_frame *f = &rx->frame;
	uint32_t crc;

	if (!(f->flags & WIRE_FLAG_CRC) || rx->target > TCP_TO_LAND)
		return 0;
	crc = rx->target == TCP_TO_LAND ? rx->land_crc : gantry_crc32c(0, rx->payload, f->length);
	if (crc == f->crc)
		return 0;
	tcp_link_fail_locked(
		lane->link, 1, GANTRY_ERR_CORRUPT,
		"checksum mismatch on lane %d, message %u of tag %u, offset %llu, %u bytes: sent %08x, arrived %08x",
		lane->index, f->index, f->tag, (unsigned long long)f->offset, f->length, f->crc, crc);
	return -1;
}

static int end_early(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_early *e = lane->rx.early;
	struct tcp_recv *recv;
	struct tcp_slot *slot;

	e->complete = 1;
	/* Its receive may have been posted while it was arriving. */
	slot = tcp_match_slot(l, e->tag, e->index, &recv);
	if (slot)
		tcp_match_early(l, recv, slot);
	return 0;
}

static int end_data(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_frame *f = &rx->frame;
	int rc = check_crc(lane);

	if (rc)
		return rc;
	if (!(f->flags & WIRE_FLAG_EAGER))
		gantry_event_put(GANTRY_EV_CHUNK_RX, (uint32_t)lane->index, f->index, f->length);
	if (rx->target == TCP_TO_EARLY) {
		rc = end_early(lane);
	} else if (rx->target == TCP_TO_SLOT || rx->target == TCP_TO_LAND || rx->target == TCP_TO_VEC) {
		rc = tcp_match_end(l, f, rx->recv, rx->slot);
	} else if (f->flags & WIRE_FLAG_EAGER) {
		l->consumed += f->length + WIRE_FRAME_SIZE;
	}
	rx->recv = NULL;
	rx->slot = NULL;
	rx->early = NULL;
	return rc;
}

/* ---- the stream ---- */

/* A whole header is there. 0: go on; 1: leave it for now; -1: the link has failed. */
static int begin_frame(struct tcp_lane *lane, const uint8_t *header, int force)
{
	struct tcp_lane_rx *rx = &lane->rx;

	if (wire_frame_decode(header, &rx->frame) != GANTRY_OK)
		return broken(lane, "not a frame");
	if (rx->frame.kind == WIRE_DATA) {
		int rc = begin_data(lane, force);

		if (rc == 0)
			rx->state = TCP_RX_PAYLOAD;
		return rc;
	}
	if (lane->index != 0)
		return broken(lane, "a control frame on a bulk lane");
	if (rx->frame.kind == WIRE_ERROR) {
		rx->state = TCP_RX_PAYLOAD;
		rx->target = TCP_TO_TEXT;
		rx->dst = (uint8_t *)rx->text;
		rx->left = rx->frame.length;
		return 0;
	}
	if (rx->frame.kind == WIRE_AHEAD)
		return tcp_flow_announce(lane->link, &rx->frame);
	on_control(lane->link, &rx->frame);
	return 0;
}

static int peer_error(struct tcp_lane *lane)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_frame *f = &rx->frame;
	gantry_result r =
		f->tag > GANTRY_AGAIN && f->tag < GANTRY_RESULT_COUNT ? (gantry_result)f->tag : GANTRY_ERR_PEER_LOST;

	rx->text[f->length] = 0;
	for (char *c = rx->text; *c; c++)
		if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
			*c = '?';
	if (r == GANTRY_ERR_SIZE)
		tcp_link_fail_locked(lane->link, 0, r,
				     "a send of %llu bytes met a receive of %llu bytes, says the peer",
				     (unsigned long long)f->offset, (unsigned long long)f->total);
	else
		tcp_link_fail_locked(lane->link, 0, r, "the peer gave up: %s", rx->text);
	return -1;
}

static int end_frame(struct tcp_lane *lane)
{
	lane->rx.state = TCP_RX_HEADER;
	return lane->rx.target == TCP_TO_TEXT ? peer_error(lane) : end_data(lane);
}

/*
 * Consumes the read-ahead buffer as far as it goes. In a stream the buffer holds more messages than receives are
 * posted; they are best left there until they are. So a frame without a receive is parked on first sight. If it is
 * still without one on the next look, up to EARLY_PER_LOOK of them are taken in, because frames behind them must not
 * wait for a user.
 */
static int parse(struct tcp_lane *lane, int force)
{
	struct tcp_lane_rx *rx = &lane->rx;
	int early = force ? INT_MAX : 0, consumed = 0;

	for (;;) {
		uint32_t have = rx->tail - rx->head;

		if (rx->state == TCP_RX_HEADER) {
			int rc;

			if (have < WIRE_FRAME_SIZE)
				break;
			rc = begin_frame(lane, rx->buf + rx->head, early > 0);
			if (rc < 0)
				return -1;
			if (rc > 0) {
				if (!consumed && rx->parked) {
					early = EARLY_PER_LOOK;
					continue;
				}
				rx->parked = 1;
				break;
			}
			early -= early > 0;
			rx->head += WIRE_FRAME_SIZE;
		} else {
			uint32_t n = have < rx->left ? have : (uint32_t)rx->left;

			if (n && rx->target == TCP_TO_LAND) {
				if (land(lane, rx->buf + rx->head, n, rx->left))
					return -1;
			} else if (n && rx->target == TCP_TO_VEC) {
				tcp_vec_put(&rx->recv->vec, &rx->vec, rx->buf + rx->head, n);
			} else if (n && rx->target != TCP_TO_NOWHERE) {
				memcpy(rx->dst, rx->buf + rx->head, n);
				rx->dst += n;
			}
			rx->head += n;
			rx->left -= n;
			if (rx->left)
				break;
			if (end_frame(lane))
				return -1;
		}
		consumed = 1;
		rx->parked = 0;
	}
	if (rx->head == rx->tail) {
		rx->head = rx->tail = 0;
	} else if (rx->head && !rx->parked) {
		memmove(rx->buf, rx->buf + rx->head, rx->tail - rx->head);
		rx->tail -= rx->head;
		rx->head = 0;
	}
	return 0;
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
		else if (rx->frame.length > COPY_TWICE_MAX)
			ahead = WIRE_FRAME_SIZE;
	}
	if (ahead)
		iov[msg.msg_iovlen++] = (struct iovec){rx->buf + rx->tail, ahead};
	asked = direct + ahead;
	n = recvmsg(lane->fd, &msg, MSG_DONTWAIT);
	if (n <= 0)
		return n;
	*ret_short = (size_t)n < asked;
	rx->bytes += (uint64_t)n;
	if (direct) {
		uint64_t d = (uint64_t)n < direct ? (uint64_t)n : direct;

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
	__atomic_store_n(&lane->rx.eof, 1, __ATOMIC_RELEASE);
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

	return l->done != l->done_told && l->done_told < l->ack_upto &&
	       (!l->deep_window || !next_begun || l->done - l->done_told >= LINK_ACK_EVERY);
}

static void after_pass(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;

	pthread_mutex_lock(&l->mu);
	l->ack_now |= ack_due(lane);
	if (l->ack_now || l->consumed - l->consumed_told >= LINK_WINDOW / 4)
		__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
	if (!tcp_link_failed(l))
		check_peer_closed(l);
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
			rc = land(lane, rx->land, rx->unlanded, rx->left + rx->unlanded);
		rx->unlanded = 0;
		if (rc == 0 && rx->state == TCP_RX_PAYLOAD && !rx->left && rx->tail == rx->head)
			rc = end_frame(lane);
		if (rc == 0)
			rc = parse(lane, force);
	}
	if (rc == 0 && ack_due(lane))
		rc = 1;
	pthread_mutex_unlock(&lane->link->mu);
	if (lane->flow)
		tcp_flow_drop(lane, 0);
	return rc;
}

int tcp_lane_rx(struct tcp_lane *lane, int force)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_rx *rx = &lane->rx;
	uint64_t moved = 0;
	int drained = 0, parked;

	if (__atomic_load_n(&rx->eof, __ATOMIC_RELAXED) || pthread_mutex_trylock(&rx->lock))
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
		__atomic_store_n(&l->heard, gantry_ticks(), __ATOMIC_RELAXED);
		if (lane->index)
			__atomic_store_n(&l->bulk_moved, gantry_ticks(), __ATOMIC_RELAXED);
		/* A lane has ended, but this one still delivers: give it time, within bounds. */
		if (__atomic_load_n(&l->ending, __ATOMIC_ACQUIRE) &&
		    (int64_t)(gantry_ticks() - l->ending_since) < (int64_t)gantry_ticks_of_ns(4ull * LINK_END_GRACE_NS))
			__atomic_store_n(&l->ending, gantry_ticks() | 1, __ATOMIC_RELEASE);
	}
	if (moved || parked)
		after_pass(lane);
	if (lane->flow && drained)
		tcp_flow_drop(lane, 1);
	parked = lane->flow && rx->parked;
	__atomic_store_n(&rx->next_poll, drained ? gantry_ticks() + l->pace_ticks : 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&rx->lock);
	/* Payload is here before its header: that is on the control lane, and a helper would not look there. */
	if (parked)
		tcp_lane_rx(&l->lanes[0], 0);
	return moved != 0;
}
