/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending on bulk lanes. Lanes pull: one that has nothing takes the next piece of the oldest message whose receive is
 * posted. So a slow lane takes fewer pieces and slows nobody. A piece goes out in one of four ways:
 *   splice   vmsplice maps the user's pages into a pipe, splice moves them to the socket: no copy, also within a host.
 *            The kernel says nothing about when the pages are free again; STATE from the receiver does.
 *   zerocopy MSG_ZEROCOPY, for real NICs; completion by STATE as well, the error queue only tells whether it copied.
 *   copy     plain sendmsg.
 *   device   the NIC reads device memory: txmem.h.
 * A message that lies in pieces of memory (vec.h) goes by zerocopy or copy, never through the pipe: a piece takes two
 * or three slots there and as many fragments of a packet, and the receiver pays for those. It is for links with
 * zerocopy, where nothing is copied at all; where something is, gathering into a buffer that stays in the cache is
 * faster. Pieces of 8 KiB that begin anywhere, over loopback, two cores: gathered and spliced 7.1 GB/s, spliced in
 * pieces 4.9, sendmsg of the pieces 4.6; without splicing, gathered 5.1. On page borders: 7.3, 5.9, 4.8; 5.2.
 *
 * Towards a side that receives into device memory a lane carries payload only: its CPU could not read a header there.
 * The headers go ahead on the control lane, at once, from whichever thread has pulled the piece, and with those of the
 * pieces that it has given to idle lanes.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <errno.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "net/tcp/link.h"
#include "net/tcp/rail.h"
#include "net/tcp/sigpipe.h"
#include "net/tcp/txmem.h"

enum { CHUNK_UNIT = 64 << 10, CHUNK_SHARED_MAX = 512 << 10, CHUNK_CRC_MAX = 1 << 20 };
enum { DEEP_WINDOW = 6, RTS_PACES = 40, TX_PACES = 1 };
enum { SLOW_PAUSE_NS = 200000 }; /* a lane that was too slow for a piece is asked again after this */

/* The socket takes nothing any more. Data of the peer may still be there to be read: the receiving half decides. */
void tcp_lane_lost(struct tcp_lane *lane)
{
	int e = errno;

	store_relaxed(&lane->tx.dead, 1);
	tcp_link_ending(lane, e);
}

static uint64_t chunk_size(const struct tcp_link *l, uint64_t total)
{
	uint64_t max = gantry_params()->chunk_max, chunk;
	int lanes = l->nlanes - 1;

	if (l->session.crc && !l->session.device_tx && max > CHUNK_CRC_MAX)
		max = CHUNK_CRC_MAX;
	if (lanes == 1)
		return max;
	/* Small enough that every lane gets some and a slow one holds little; large enough to be worth a call. */
	chunk = (total / (uint64_t)lanes + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
	/* Rails may differ in speed: the finer the pieces, the better they balance. */
	if (chunk > CHUNK_SHARED_MAX)
		chunk = CHUNK_SHARED_MAX;
	if (l->session.rails == 1 && chunk < gantry_params()->chunk_min)
		chunk = gantry_params()->chunk_min;
	return chunk < max ? chunk : max;
}

/* The oldest message whose receive is posted, or NULL. Under mu. */
static struct tcp_send *ready(struct tcp_link *l)
{
	gantry_list_each (pos, &l->tx.bulk) {
		struct tcp_send *s = gantry_container(pos, struct tcp_send, head.node);
		struct tcp_tag *t = tcp_tag_of(&l->tx.tags, s->tag);

		/* The receiver keeps track of this many that may be done before an earlier one. */
		if (s->seq - l->tx.peer_done >= LINK_DONE_BITS)
			continue;
		if (t && (int32_t)(t->advertised - s->index) > 0)
			return s;
		if (s->announced)
			continue;
		if (!s->blocked)
			s->blocked = gantry_ticks() | 1;
		s->announce |= (int64_t)(gantry_ticks() - s->blocked) > (int64_t)(RTS_PACES * l->session.pace_ticks);
		if (s->announce) /* the control lane will ask for it */
			store_relaxed(&l->tx.pending, 1);
	}
	return NULL;
}

/* Pieces are not spliced: see above. */
static int sent_by_reference(const struct tcp_link *l, const struct tcp_send *s)
{
	int splice = !s->vec.n && load_relaxed(&l->tx.splice);

	return s->txmem || ((splice || load_relaxed(&l->tx.msg_zerocopy)) && s->size >= gantry_params()->zerocopy_min);
}

/*
 * The lane gets the next piece of the oldest message whose receive is posted. 1 if there is one, 0 if not, -1: left to
 * other lanes. Under mu and the lane's lock. ret_piece: its header, which towards device memory waits on the control
 * lane already.
 */
static int take_piece(struct tcp_lane *lane, struct wire_piece *ret_piece)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct wire_piece f = {0};
	struct tcp_send *s = ready(l);
	uint64_t chunk;

	if (!s || l->tx.peer_closed || (l->session.device_tx && !tcp_descriptor_room(l)))
		return 0;
	if (!s->txmem && tcp_txmem_busy(lane)) /* bytes of another kind must not overtake */
		return 0;
	chunk = chunk_size(l, s->size);
	if (chunk > s->size - s->next)
		chunk = s->size - s->next;
	if (l->session.rails > 1 && tcp_rail_too_slow(lane, chunk))
		return -1;
	store_relaxed(&l->tx.bulk_bytes, l->tx.bulk_bytes - chunk);
	store_relaxed(&tx->queued, tx->queued + chunk);
	if (s->next == 0)
		s->needs_ack = sent_by_reference(l, s);
	f.length = (uint32_t)chunk;
	f.seq = s->seq;
	f.offset = s->next;
	f.total = s->size;
	f.tag = s->tag;
	f.index = s->index;
	tx->send = s;
	if (s->vec.n) {
		tx->at = s->at;
		tcp_vec_skip(&s->vec, &s->at, chunk);
	} else {
		tx->data = s->data + s->next;
	}
	tx->left = tx->length = chunk;
	s->next += chunk;
	if (s->next == s->size) {
		gantry_list_remove(&s->head.node);
		/* Only a deep window can wait for its acknowledgements. */
		if (load_relaxed(&l->tx.bulk_pending) >= DEEP_WINDOW)
			f.deep = true;
	}
	if (s->needs_ack || s->seq - l->tx.peer_done >= LINK_DONE_BITS / 2)
		f.ack = true;
	if (l->session.device_tx) {
		f.lane = (uint32_t)lane->index;
		tcp_descriptor_put(l, &f);
		tx->header_left = 0;
	}
	tx->splicing = s->needs_ack && !s->txmem && !s->vec.n && load_relaxed(&l->tx.splice);
	gantry_event_put(GANTRY_EV_CHUNK_TX, (uint32_t)lane->index, s->seq, chunk);
	*ret_piece = f;
	return 1;
}

/*
 * Headers that go ahead cost a call, here and there: so lanes that have nothing get their pieces now, and one call
 * takes all headers. Whoever comes to such a lane next finds what to send; 1: somebody should. Not where lanes differ
 * in speed. Under mu: locks of lanes come before it elsewhere, so none is waited for.
 */
static int take_for_others(const struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct wire_piece f;
	int given = 0;

	for (int i = 1; i < l->nlanes && l->tx.bulk_bytes; i++) {
		struct tcp_lane *other = &l->lanes[i];

		if (other == lane || pthread_mutex_trylock(&other->tx.lock))
			continue;
		if (!other->tx.send && !other->tx.dead)
			given |= take_piece(other, &f) > 0;
		pthread_mutex_unlock(&other->tx.lock);
	}
	return given;
}

/* What the lane sends next. As take_piece. *ret_given: other lanes have something now, too. */
static int pull(struct tcp_lane *lane, int *ret_given)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct wire_frame f = {.kind = WIRE_DATA};
	int taken;

	/* Helpers ask all the time while a message waits for its acknowledgement: not with the lock. */
	if (!load_relaxed(&l->tx.bulk_bytes))
		return 0;
	if (l->session.rails > 1)
		tcp_rail_weigh(lane);
	pthread_mutex_lock(&l->mu);
	taken = take_piece(lane, &f.piece);
	if (taken > 0 && l->session.device_tx && l->session.rails == 1)
		*ret_given = take_for_others(lane);
	pthread_mutex_unlock(&l->mu);
	if (taken < 0)
		store_relaxed(&tx->next_try, gantry_ticks() + gantry_ticks_of_ns(SLOW_PAUSE_NS));
	if (taken <= 0)
		return taken;
	if (l->session.device_tx) {
		tcp_control_flush(l);
		return 1;
	}
	if (l->session.crc)
		f.piece.payload_crc = tx->send->vec.n ? tcp_vec_crc(&tx->send->vec, &tx->at, tx->length)
						      : gantry_crc32c(0, tx->data, tx->length);
	wire_frame_encode(&f, l->session.crc, tx->header);
	tx->header_left = WIRE_FRAME_SIZE;
	return 1;
}

static void piece_sent(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_send *s = lane->tx.send;

	pthread_mutex_lock(&l->mu);
	lane->tx.send = NULL;
	s->sent += lane->tx.length;
	if (s->sent == s->size) {
		l->tx.bulk_sent++;
		if (s->needs_ack && !tcp_send_acked(l, s->seq)) {
			gantry_list_append(&l->tx.unacked, &s->head.node);
		} else {
			fetch_sub_relaxed(&l->tx.bulk_pending, 1);
			gantry_event_put(GANTRY_EV_SEND_DONE, l->session.id, GANTRY_EV_MSG(s->tag, s->index), s->size);
			tcp_request_done(&s->head);
		}
	}
	pthread_mutex_unlock(&l->mu);
}

/*
 * The direction is closed and the message's memory goes back to its owner. Our half of a bulk lane carries nothing but
 * this direction, so nothing needs to follow, not even the rest of the piece: the peer hears of the close on the
 * control lane. The caller holds the lane's lock.
 */
void tcp_lane_tx_abandon(struct tcp_lane *lane)
{
	lane->tx.send = NULL;
	lane->tx.left = 0;
	store_relaxed(&lane->tx.dead, 1);
}

int tcp_bulk_tx(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct sigpipe_guard guard = {0};
	int64_t moved = 0;
	int full = 0, pulled = 0, guarded = 0, given = 0;

	if (load_relaxed(&tx->dead) || (int64_t)(gantry_ticks() - load_relaxed(&tx->next_try)) < 0 ||
	    pthread_mutex_trylock(&tx->lock))
		return 0;
	if (tcp_txmem_busy(lane))
		tcp_txmem_drain(lane);
	/* What other lanes were given belongs to this message too, and comes before the next one's. */
	while (moved < LINK_PASS_BYTES && !given && !tcp_link_failed(l) && !tx->dead) {
		uint64_t before;
		int rc;

		if (!tx->send && (pulled = pull(lane, &given)) <= 0)
			break;
		if (tx->splicing && !guarded) {
			sigpipe_guard(&guard);
			guarded = 1;
		}
		before = tx->left + tx->in_pipe;
		rc = tx->send->txmem ? tcp_txmem_push(lane)
		     : tx->splicing  ? tcp_push_spliced(lane)
				     : tcp_push_copied(lane);
		if (rc < 0) {
			tcp_lane_lost(lane);
			break;
		}
		moved += (int64_t)(before - (tx->left + tx->in_pipe));
		full = rc == 0;
		if (full)
			break;
		tx->bytes += tx->length;
		piece_sent(lane);
	}
	sigpipe_unguard(&guard, tx->dead);
	if (moved > 0) {
		store_relaxed(&l->last.told, gantry_ticks());
		store_relaxed(&l->last.bulk_moved, gantry_ticks());
	}
	/* A socket that is full now has room for little in a moment: wait until a call is worth it. */
	if (pulled >= 0) /* else pull has said when */
		store_relaxed(&tx->next_try, full ? gantry_ticks() + TX_PACES * l->session.pace_ticks : 0);
	pthread_mutex_unlock(&tx->lock);
	return moved > 0;
}
