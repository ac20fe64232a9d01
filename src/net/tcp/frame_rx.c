/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames off a lane, as far as they have been read (lane_rx.c): what each means, and where its payload goes. All of it
 * runs under mu, taken once for all that one read has brought.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "net/tcp/flow.h"
#include "net/tcp/link.h"
#include "net/tcp/unpack.h"

enum { EARLY_PER_LOOK = 16 };

static int broken(struct tcp_lane *lane, const char *what)
{
	tcp_link_fail_locked(lane->link, 1, GANTRY_ERR_PROTOCOL, "lane %d: %s", lane->index, what);
	return -1;
}

/* ---- control frames ---- */

static void on_state(struct tcp_link *l, const struct wire_state *s)
{
	gantry_event_put(GANTRY_EV_STATE_RX, l->session.id, s->posted, s->done);
	if (s->has_tag) {
		struct tcp_tag *t = tcp_tag_of(&l->tx.tags, s->tag);

		if (t && (int32_t)(s->posted - t->advertised) > 0)
			t->advertised = s->posted;
	}
	if (s->consumed > l->tx.peer_consumed && s->consumed <= l->tx.eager_out) {
		l->tx.peer_consumed = s->consumed;
		if (l->tx.window_blocked)
			store_relaxed(&l->tx.pending, 1);
	}
	if (s->done < l->tx.peer_done || s->done > l->tx.next_seq ||
	    (s->done == l->tx.peer_done && s->done_bits == l->tx.peer_done_bits))
		return;
	l->tx.peer_done = s->done;
	l->tx.peer_done_bits = s->done_bits;
	gantry_list_each_safe (pos, &l->tx.unacked) {
		struct tcp_send *send = gantry_container(pos, struct tcp_send, head.node);

		if (!tcp_send_acked(l, send->seq))
			continue;
		gantry_list_remove(&send->head.node);
		fetch_sub_relaxed(&l->tx.bulk_pending, 1);
		gantry_event_put(GANTRY_EV_SEND_DONE, l->session.id, GANTRY_EV_MSG(send->tag, send->index), send->size);
		tcp_request_done(&send->head);
	}
}

static void on_rts(struct tcp_link *l, const struct wire_rts *m)
{
	struct tcp_tag *t = tcp_tag_of(&l->rx.tags, m->tag);
	struct tcp_recv *recv;
	struct tcp_slot *slot;

	store_relaxed(&l->rx.bulk_hint, 1);
	if (t && (int32_t)(m->index + 1 - t->announced) > 0)
		t->announced = m->index + 1;
	if (t)
		t->bulk = 1;
	slot = tcp_match_slot(l, m->tag, m->index, &recv);
	if (!slot || tcp_match_fits(l, m->total, slot))
		store_relaxed(&l->tx.pending, 1);
}

static void on_close(struct tcp_link *l, const struct wire_close *c)
{
	if (c->by_receiver) {
		l->tx.peer_closed = 1;
	} else {
		store_relaxed(&l->rx.peer_closed, 1);
		l->rx.peer_bulk_sent = c->bulk_sent;
	}
}

void tcp_link_check_peer_closed(struct tcp_link *l)
{
	if (tcp_link_peer_said_all(l))
		tcp_link_end(l, &l->rx.end, "the peer closed its sending side");
	if (l->tx.peer_closed)
		tcp_link_end(l, &l->tx.end, "the peer closed its receiving side");
}

/* ---- data frames ---- */

/* Not posted yet: an eager message is kept, within the window that the peer was promised. */
static int begin_early(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_piece *f = &rx->frame.piece;
	struct tcp_early *e;

	if (!f->eager || f->total > LINK_WINDOW || l->rx.unexpected_bytes + f->total + WIRE_FRAME_SIZE > LINK_WINDOW) {
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
	gantry_list_append(&l->rx.unexpected, &e->node);
	l->rx.unexpected_bytes += f->total + WIRE_FRAME_SIZE;
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
	const struct wire_piece *f = &rx->frame.piece;
	int rc;

	rx->left = f->length;
	rx->dst = NULL;
	rx->slot = tcp_match_slot(l, f->tag, f->index, &rx->recv);
	if (!rx->slot && !force && !l->rx.closed && f->eager)
		return 1;
	rc = tcp_match_begin(l, f, rx->recv, l->rx.closed ? NULL : rx->slot);
	if (rc)
		return rc;
	if (l->rx.closed) { /* nobody wants it */
		rx->target = TCP_TO_NOWHERE;
	} else if (!rx->slot) {
		rc = begin_early(lane);
	} else if (tcp_land_needed(rx->recv)) {
		rx->target = TCP_TO_LAND;
		rx->unlanded = 0;
	} else if (rx->recv->vec.n) {
		rx->target = TCP_TO_VEC;
		tcp_vec_seek(&rx->recv->vec, f->offset, &rx->vec);
	} else {
		rx->target = TCP_TO_SLOT;
		rx->dst = f->length ? rx->slot->data + f->offset : NULL;
	}
	return rc;
}

/* The next n bytes of a piece whose place only the unpack queue knows. */
int tcp_frames_land(struct tcp_lane *lane, const uint8_t *data, uint32_t n, uint64_t left)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_piece *f = &rx->frame.piece;

	return tcp_land_host(lane->link, rx->recv, rx->slot, data, n, f->offset + f->length - left);
}

/* All payload of the frame has come: is it what was sent? Before anything is said to be done. */
static int check_crc(struct tcp_lane *lane)
{
	const struct wire_frame *frame = &lane->rx.frame;
	const struct wire_piece *f = &frame->piece;
	uint32_t crc = lane->rx.crc, sent = frame->kind == WIRE_ERROR ? frame->error.payload_crc : f->payload_crc;

	if (!lane->link->session.crc || crc == sent)
		return 0;
	if (frame->kind == WIRE_ERROR)
		tcp_link_fail_locked(
			lane->link, 1, GANTRY_ERR_CORRUPT,
			"checksum mismatch on lane %d, in the text of the peer's error: sent %08x, arrived %08x",
			lane->index, sent, crc);
	else
		tcp_link_fail_locked(lane->link, 1, GANTRY_ERR_CORRUPT,
				     "checksum mismatch on lane %d, message %u of tag %u, offset %llu, %u bytes: sent "
				     "%08x, arrived %08x",
				     lane->index, f->index, f->tag, (unsigned long long)f->offset, f->length, sent,
				     crc);
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
	const struct wire_piece *f = &rx->frame.piece;
	int rc = 0;

	if (!f->eager)
		gantry_event_put(GANTRY_EV_CHUNK_RX, (uint32_t)lane->index, f->index, f->length);
	if (rx->target == TCP_TO_EARLY) {
		rc = end_early(lane);
	} else if (rx->target == TCP_TO_SLOT || rx->target == TCP_TO_LAND || rx->target == TCP_TO_VEC) {
		rc = tcp_match_end(l, f, rx->recv, rx->slot);
	} else if (f->eager) {
		l->rx.consumed += f->length + WIRE_FRAME_SIZE;
	}
	rx->recv = NULL;
	rx->slot = NULL;
	rx->early = NULL;
	return rc;
}

/* ---- the stream ---- */

static int bad_header(struct tcp_lane *lane, gantry_result r, const uint8_t *header)
{
	if (r == GANTRY_ERR_CORRUPT) {
		tcp_link_fail_locked(lane->link, 1, r, "checksum mismatch on lane %d, in the header of a frame",
				     lane->index);
		return -1;
	}
	if (!(header[1] & WIRE_FLAG_CRC) != !lane->link->session.crc)
		return broken(lane, lane->link->session.crc
					    ? "a frame without the checksum that was agreed on (GANTRY_CRC)"
					    : "not a frame, or one with a checksum, which was not agreed on");
	return broken(lane, "not a frame");
}

/* -1: the link has failed. */
static int on_control(struct tcp_lane *lane, const struct wire_frame *f)
{
	struct tcp_lane_rx *rx = &lane->rx;

	switch (f->kind) {
	case WIRE_STATE:
		on_state(lane->link, &f->state);
		break;
	case WIRE_RTS:
		on_rts(lane->link, &f->rts);
		break;
	case WIRE_CLOSE:
		on_close(lane->link, &f->close);
		break;
	case WIRE_ERROR:
		rx->state = TCP_RX_PAYLOAD;
		rx->target = TCP_TO_TEXT;
		rx->dst = (uint8_t *)rx->text;
		rx->left = f->error.length;
		break;
	case WIRE_DESCRIPTOR:
		return tcp_flow_describe(lane->link, &f->piece);
	case WIRE_ARRIVED:
		return tcp_lane_arrived(lane->link, &f->arrived);
	case WIRE_DATA:
	case WIRE_KINDS:
		break;
	}
	return 0;
}

/* A whole header is there. 0: go on; 1: leave it for now; -1: the link has failed. */
static int begin_frame(struct tcp_lane *lane, const uint8_t *header, int force)
{
	struct tcp_lane_rx *rx = &lane->rx;
	gantry_result r = wire_frame_decode(header, lane->link->session.crc, &rx->frame);

	if (r != GANTRY_OK)
		return bad_header(lane, r, header);
	rx->crc = 0;
	if (rx->frame.kind == WIRE_DATA) {
		int rc = begin_data(lane, force);

		if (rc == 0)
			rx->state = TCP_RX_PAYLOAD;
		return rc;
	}
	if (lane->index != 0)
		return broken(lane, "a control frame on a bulk lane");
	return on_control(lane, &rx->frame);
}

static int peer_error(struct tcp_lane *lane)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_error *f = &rx->frame.error;
	gantry_result r = f->result > GANTRY_AGAIN && f->result < GANTRY_RESULT_COUNT ? (gantry_result)f->result
										      : GANTRY_ERR_PEER_LOST;

	rx->text[f->length] = 0;
	for (char *c = rx->text; *c; c++)
		if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
			*c = '?';
	if (r == GANTRY_ERR_SIZE)
		tcp_link_fail_locked(lane->link, 0, r,
				     "a send of %llu bytes met a receive of %llu bytes, says the peer",
				     (unsigned long long)f->sent_bytes, (unsigned long long)f->recv_bytes);
	else
		tcp_link_fail_locked(lane->link, 0, r, "the peer gave up: %s", rx->text);
	return -1;
}

int tcp_frames_end(struct tcp_lane *lane)
{
	lane->rx.state = TCP_RX_HEADER;
	if (check_crc(lane))
		return -1;
	return lane->rx.target == TCP_TO_TEXT ? peer_error(lane) : end_data(lane);
}

/*
 * Consumes the read-ahead buffer as far as it goes. In a stream the buffer holds more messages than receives are
 * posted; they are best left there until they are. So a frame without a receive is parked on first sight. If it is
 * still without one on the next look, up to EARLY_PER_LOOK of them are taken in, because frames behind them must not
 * wait for a user.
 */
int tcp_frames_parse(struct tcp_lane *lane, int force)
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

			if (n && lane->link->session.crc)
				rx->crc = gantry_crc32c(rx->crc, rx->buf + rx->head, n);
			if (n && rx->target == TCP_TO_LAND) {
				if (tcp_frames_land(lane, rx->buf + rx->head, n, rx->left))
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
			if (tcp_frames_end(lane))
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
