/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending on bulk lanes. Lanes pull: one that has nothing takes the next piece of the oldest message whose receive is
 * posted. So a slow lane takes fewer pieces and delays no other lane. How the bytes of a piece get into the socket:
 * push.c.
 *
 * A message that lies in pieces of memory (vec.h) goes by zerocopy or copied, never through the pipe: a piece takes two
 * or three entries there and as many fragments of a packet, and the receiver pays for those. It is for links with
 * zerocopy, where nothing is copied at all; where something is, gathering into a buffer that stays in the cache is
 * faster. Pieces of 8 KiB that begin anywhere, over loopback, two cores: gathered and spliced 7.1 GB/s, spliced in
 * pieces 4.9, sendmsg of the pieces 4.6; without splicing, gathered 5.1. On page borders: 7.3, 5.9, 4.8; 5.2.
 *
 * Towards a side that receives into device memory a lane carries payload only: its CPU could not read a header there.
 * The headers go ahead on the control lane, at once, from whichever thread has pulled the piece, and with those of the
 * pieces that it has given to idle lanes.
 *
 * Rails: lanes over NICs of different speed. A socket buffer swallows far more than a slow rail can deliver soon, so
 * "takes the next piece when its socket has room" is not enough: before a rail pulls, what it holds and how fast it
 * drains is compared with what all rails together hold and deliver.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/param.h"
#include "net/tcp/link.h"

enum { CHUNK_UNIT = 64 << 10, CHUNK_SHARED_MAX = 512 << 10, CHUNK_DEEP_MAX = 1 << 20, CHUNK_CRC_MAX = 1 << 20 };
enum { DEEP_WINDOW = 6, RTS_PACES = 40, TX_PACES = 1 };
enum { SPLICED_MESSAGE = 512 << 10 }; /* from this size on always */
enum { SLOW_PAUSE_NS = 200000 };      /* a lane that was too slow for a piece is asked again after this */
enum { SLOW_TIMES = 64 }; /* an idle lane that was refused for this many times a piece's time gets the piece */

/* The socket takes nothing any more. Data of the peer may still be there to be read: the receiving half decides. */
void tcp_lane_lost(struct tcp_lane *lane)
{
	int e = errno;

	store_relaxed(&lane->tx.dead, 1);
	tcp_link_ending(lane, e);
}

/*
 * A lane's share of all that waits, with or without a receive, where lanes are alike: the more waits, the fewer
 * messages have to be cut for every lane to have work. A cut costs a header, and a system call or three on either side:
 * on a GPU machine one link of eight lanes moves 15 GB/s in pieces of 128 KiB and 25 in whole messages of 1 MiB, with
 * 0.42 and 0.25 CPU seconds per GB.
 */
static uint64_t deep_share(const struct tcp_link *l)
{
	uint64_t share = load_relaxed(&l->tx.bulk_bytes) / (uint64_t)(l->nlanes - 1) / CHUNK_UNIT * CHUNK_UNIT;

	return l->session.rails > 1 ? 0 : share < CHUNK_DEEP_MAX ? share : CHUNK_DEEP_MAX;
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
	if (chunk < deep_share(l))
		chunk = deep_share(l);
	return chunk < max ? chunk : max;
}

/* ---- rails ---- */

/*
 * Several lanes: what this one holds, and how fast the kernel has lately seen it deliver. The kernel leaves samples out
 * in which the lane had nothing to do, unless they were faster. So a lane whose last sample was slow because the peer
 * stood still would look slow for as long as it gets nothing, and would get nothing for as long as it looks slow: one
 * that has drained counts with what its window and round trip allow. A lane that really is slow keeps a long round
 * trip from when it was full.
 */
bool tcp_lane_weigh(const struct tcp_lane *lane, uint64_t *ret_queued, uint64_t *ret_rate)
{
	struct tcp_io_info info;

	if (!lane->io.ops->unacked(&lane->io, ret_queued) || !lane->io.ops->info(&lane->io, &info))
		return false;
	if (!*ret_queued && info.delivery_rate && info.rtt_us) {
		uint64_t allowed = info.window * 1000000 / info.rtt_us;

		info.delivery_rate = info.delivery_rate > allowed ? info.delivery_rate : allowed;
	}
	*ret_rate = info.delivery_rate;
	return true;
}

static void weigh_rail(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	uint64_t queued, rate;

	if (!tcp_lane_weigh(lane, &queued, &rate))
		return;
	store_relaxed(&lane->tx.queued, queued);
	store_relaxed(&lane->tx.rate, rate);
}

/* An idle lane's rate is never measured again: now and then it gets a piece all the same, for at most a 64th of the time. */
static bool is_due(const struct tcp_lane *lane, double piece_s) REQUIRES(lane_tx_mu)
{
	return !lane->tx.queued && (double)lane->tx.refused * (SLOW_PAUSE_NS / 1e9) > SLOW_TIMES * piece_s;
}

/*
 * Would this lane deliver one more piece later than all lanes together deliver everything that waits? Then the piece is
 * better left to the others, unless this is the lane that would be through with it first.
 */
static bool is_too_slow(const struct tcp_lane *lane, const struct tcp_send *s, uint64_t chunk)
	REQUIRES(lane_tx_mu, link_mu)
{
	const struct tcp_link *l = lane->link;
	double mine = ((double)lane->tx.queued + (double)chunk) / (double)lane->tx.rate, rates = 0,
	       bytes = (double)l->tx.bulk_bytes;
	int better = 0;

	if (!lane->tx.rate)
		return lane->tx.queued > 0; /* one piece to learn from */
	for (int i = 1; i < l->nlanes; i++) {
		const struct tcp_lane_tx *tx = &l->lanes[i].tx;
		uint64_t rate = load_relaxed(&tx->rate), queued = load_relaxed(&tx->queued);

		if (load_relaxed(&tx->dead) || !tcp_spread_allows(&l->lanes[i], s))
			continue;
		if (!rate)
			return 0;
		rates += (double)rate;
		bytes += (double)queued;
		better |= ((double)queued + (double)chunk) / (double)rate < mine;
	}
	return better && mine > bytes / rates && !is_due(lane, mine);
}

/* ---- pieces ---- */

/* The oldest message that the lane may take and whose receive is posted, or NULL. */
static struct tcp_send *find_ready(const struct tcp_lane *lane) REQUIRES(link_mu)
{
	struct tcp_link *l = lane->link;

	gantry_list_each_entry (s, &l->tx.bulk, struct tcp_send, head.node) {
		struct tcp_tag *t = tcp_tag_of(&l->tx.tags, s->tag);

		/* The receiver keeps track of this many that may be done before an earlier one. */
		if (s->seq - l->tx.peer_done >= LINK_DONE_BITS)
			continue;
		if (t && (int32_t)(t->credit - s->index) > 0) {
			if (tcp_spread_allows(lane, s))
				return s;
			continue;
		}
		if (s->rts_sent)
			continue;
		if (!s->blocked)
			s->blocked = gantry_ticks() | 1;
		s->rts_wanted |= (int64_t)(gantry_ticks() - s->blocked) > (int64_t)(RTS_PACES * l->session.pace_ticks);
		if (s->rts_wanted) /* the control lane will ask for it */
			store_relaxed(&l->tx.pending, 1);
	}
	return NULL;
}

/*
 * Several lanes cut a message of this size into pieces that are too small to be spliced well, three calls and an
 * acknowledgement each, and several threads copy them side by side: in a shallow window, where time counts, that is
 * faster. In a deep one splicing is, which costs less CPU.
 */
static bool is_better_copied(const struct tcp_link *l, const struct tcp_send *s)
{
	return l->nlanes > 2 && l->session.rails == 1 && s->size < SPLICED_MESSAGE &&
	       load_relaxed(&l->tx.bulk_pending) < DEEP_WINDOW;
}

/* Pieces are not spliced: see above. */
static bool is_sent_by_reference(const struct tcp_link *l, const struct tcp_send *s)
{
	bool splice = !s->vec.n && load_relaxed(&l->tx.splice) && !is_better_copied(l, s);

	return s->push || ((splice || load_relaxed(&l->tx.msg_zerocopy)) && s->size >= gantry_params()->zerocopy_min);
}

static const struct tcp_push_ops *choose_push(const struct tcp_link *l, const struct tcp_send *s)
{
	if (l->session.sealed)
		return &tcp_push_sealed;
	if (s->push)
		return s->push;
	if (s->by_reference && !s->vec.n && load_relaxed(&l->tx.splice))
		return &tcp_push_spliced;
	return s->by_reference && load_relaxed(&l->tx.msg_zerocopy) ? &tcp_push_zerocopy : &tcp_push_copied;
}

/* Only messages that were found without a receive have the time of it. */
static void count_credit_wait(struct tcp_link *l, const struct tcp_send *s) REQUIRES(link_mu)
{
	if (s->blocked) {
		l->tx.credit_waits++;
		l->tx.credit_wait_ticks += gantry_ticks() - s->blocked;
	}
}

/* The lane's next bytes are those of this message, from its `next` on. */
static void give_piece(struct tcp_lane *lane, struct tcp_send *s, uint64_t chunk) REQUIRES(lane_tx_mu, link_mu)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;

	ASSERT(!tx->send && !tx->left && !tx->in_pipe && chunk <= s->size - s->next);
	store_relaxed(&l->tx.bulk_bytes, l->tx.bulk_bytes - chunk);
	store_relaxed(&tx->queued, tx->queued + chunk);
	if (s->next == 0) {
		s->by_reference = is_sent_by_reference(l, s);
		s->needs_ack = l->resume || s->by_reference;
		count_credit_wait(l, s);
	}
	if (l->resume)
		tcp_resume_keep_piece(lane, s, s->next, (uint32_t)chunk);
	tx->send = s;
	tx->push = choose_push(l, s);
	if (s->vec.n) {
		tx->at = s->at;
		tcp_vec_skip(&s->vec, &s->at, chunk);
	} else {
		tx->data = s->data + s->next;
	}
	tx->left = tx->length = chunk;
	s->next += chunk;
	if (s->next == s->size)
		gantry_list_remove(&s->head.node);
}

/* The lane gets a piece that a broken lane has lost. */
static void give_again(struct tcp_lane *lane, const struct tcp_kept *k) REQUIRES(lane_tx_mu, link_mu)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct tcp_send *s = k->send;

	ASSERT(!tx->send && !tx->left && !tx->in_pipe && s->needs_ack);
	store_relaxed(&l->tx.bulk_bytes, l->tx.bulk_bytes - k->length);
	store_relaxed(&tx->queued, tx->queued + k->length);
	tcp_resume_keep_piece(lane, s, k->offset, k->length);
	tx->send = s;
	tx->push = choose_push(l, s);
	if (s->vec.n)
		tcp_vec_seek(&s->vec, k->offset, &tx->at);
	else
		tx->data = s->data + k->offset;
	tx->left = tx->length = k->length;
}

/* As take_piece. */
static int take_again(struct tcp_lane *lane, const struct tcp_kept *k, struct wire_piece *ret_piece)
	REQUIRES(lane_tx_mu, link_mu)
{
	struct tcp_link *l = lane->link;
	const struct tcp_send *s = k->send;

	if (l->session.rails > 1 && is_too_slow(lane, s, k->length))
		return -1;
	*ret_piece = (struct wire_piece){
		.ack = true,
		.length = k->length,
		.seq = s->seq,
		.offset = k->offset,
		.total = s->size,
		.tag = s->tag,
		.index = s->index,
	};
	give_again(lane, k);
	tcp_resume_pop(l);
	return 1;
}

/* As take_piece. */
static int take_next(struct tcp_lane *lane, struct wire_piece *ret_piece) REQUIRES(lane_tx_mu, link_mu)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct tcp_send *s = find_ready(lane);
	uint64_t chunk;

	if (!s || l->tx.peer_closed || (l->session.device_tx && !tcp_descriptor_room(l)))
		return 0;
	if (tx->late && tx->late != s->push && tcp_lane_busy(lane)) /* bytes of another way must not overtake */
		return 0;
	chunk = chunk_size(l, s->size);
	if (chunk > s->size - s->next)
		chunk = s->size - s->next;
	if (l->session.rails > 1 && is_too_slow(lane, s, chunk))
		return -1;
	*ret_piece = (struct wire_piece){
		.length = (uint32_t)chunk,
		.seq = s->seq,
		.offset = s->next,
		.total = s->size,
		.tag = s->tag,
		.index = s->index,
	};
	give_piece(lane, s, chunk);
	/* Only a deep window can wait for its acknowledgements. */
	ret_piece->deep = s->next == s->size && load_relaxed(&l->tx.bulk_pending) >= DEEP_WINDOW;
	ret_piece->ack = s->needs_ack || s->seq - l->tx.peer_done >= LINK_DONE_BITS / 2;
	if (l->session.device_tx) {
		ret_piece->lane = (uint32_t)lane->index;
		tcp_descriptor_put(l, ret_piece);
		tx->header_left = 0;
	}
	gantry_event_put(GANTRY_EV_CHUNK_TX, l->session.id, GANTRY_EV_MSG(s->tag, s->index),
			 GANTRY_EV_ON_LANE(chunk, lane->index));
	return 1;
}

/*
 * The lane gets the next piece of the oldest message whose receive is posted. 1 if there is one, 0 if not, -1: left to
 * other lanes. ret_piece: its header, which towards device memory waits on the control lane already.
 */
static int take_piece(struct tcp_lane *lane, struct wire_piece *ret_piece) REQUIRES(lane_tx_mu, link_mu)
{
	const struct tcp_kept *lost;

	if (!lane->link->resume)
		return take_next(lane, ret_piece);
	if (!tcp_resume_room(lane))
		return 0;
	lost = lane->link->tx.peer_closed ? NULL : tcp_resume_next(lane->link);
	return lost ? take_again(lane, lost, ret_piece) : take_next(lane, ret_piece);
}

/*
 * Headers that go ahead cost a call, here and there: so idle lanes get their pieces now, and one call takes all
 * headers. The next thread that visits such a lane finds what to send; true: a thread should visit one. Not where lanes
 * differ in speed. Locks of lanes come before link_mu elsewhere, so none is waited for; UNCHECKED: two of them.
 */
static bool take_for_others(const struct tcp_lane *lane) UNCHECKED
{
	struct tcp_link *l = lane->link;
	struct wire_piece f;
	bool given = false;

	ASSERT_HELD(&l->mu);
	for (int i = 1; i < l->nlanes && l->tx.bulk_bytes; i++) {
		struct tcp_lane *other = &l->lanes[i];

		if (other == lane || !lane_tx_mu_trylock(&other->tx.lock))
			continue;
		if (!other->tx.send && !other->tx.dead)
			given |= take_piece(other, &f) > 0;
		lane_tx_mu_unlock(&other->tx.lock);
	}
	return given;
}

/* What the lane sends next. As take_piece. *ret_given: other lanes have something now, too. */
static int pull_piece(struct tcp_lane *lane, bool *ret_given) REQUIRES(lane_tx_mu)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct wire_frame f = {.kind = WIRE_DATA};
	int taken;

	/* Workers ask all the time while a message waits for its acknowledgement: not with the lock. */
	if (!load_relaxed(&l->tx.bulk_bytes))
		return 0;
	if (l->session.rails > 1)
		weigh_rail(lane);
	link_mu_lock(&l->mu);
	taken = take_piece(lane, &f.piece);
	if (taken > 0 && l->session.device_tx && l->session.rails == 1)
		*ret_given = take_for_others(lane);
	link_mu_unlock(&l->mu);
	if (taken < 0) {
		tx->refused++;
		store_relaxed(&tx->next_try, gantry_ticks() + gantry_ticks_of_ns(SLOW_PAUSE_NS));
	}
	if (taken <= 0)
		return taken;
	tx->refused = 0;
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

void tcp_send_note(struct tcp_link *l, struct tcp_send *s, uint64_t n)
{
	s->sent += n;
	ASSERT(s->sent <= s->next);
	if (s->sent < s->size)
		return;
	l->tx.bulk_sent++;
	if (s->needs_ack && !tcp_send_acked(l, s->seq)) {
		gantry_list_append(&l->tx.unacked, &s->head.node);
	} else {
		fetch_sub_relaxed(&l->tx.bulk_pending, 1);
		gantry_event_put(GANTRY_EV_SEND_DONE, l->session.id, GANTRY_EV_MSG(s->tag, s->index), s->size);
		tcp_request_done(&s->head);
	}
}

static void end_piece(struct tcp_lane *lane) REQUIRES(lane_tx_mu) EXCLUDES(link_mu)
{
	struct tcp_link *l = lane->link;
	struct tcp_send *s = lane->tx.send;

	ASSERT(!lane->tx.left && !lane->tx.in_pipe && !lane->tx.header_left);
	store_relaxed(&lane->tx.bytes, lane->tx.bytes + lane->tx.length);
	store_relaxed(&lane->tx.pieces, lane->tx.pieces + 1);
	link_mu_lock(&l->mu);
	lane->tx.send = NULL;
	if (l->resume)
		lane->resume->kept[(lane->resume->given - 1) % RESUME_KEPT].ended = true;
	tcp_send_note(l, s, lane->tx.length);
	link_mu_unlock(&l->mu);
}

/*
 * The direction is closed and the message's memory goes back to its owner. Our half of a bulk lane carries nothing but
 * this direction, so nothing needs to follow, not even the rest of the piece: the close is sent to the peer on the
 * control lane.
 */
void tcp_lane_tx_abandon(struct tcp_lane *lane)
{
	ASSERT_HELD(&lane->tx.lock);
	lane->io.ops->cancel_send(&lane->io);
	lane->tx.send = NULL;
	lane->tx.left = 0;
	store_relaxed(&lane->tx.dead, 1);
}

/* ---- a pass ---- */

/*
 * splice knows no MSG_NOSIGNAL: on a socket that the peer has reset it raises SIGPIPE, whose default ends the process.
 * So the signal is blocked around a pass that may splice, and one that came of it is taken back; unless the program
 * ignores or blocks it anyway, as most do.
 */
struct sigpipe_guard {
	int on, was_pending;
	sigset_t old;
};

static void guard_sigpipe(struct sigpipe_guard *g)
{
	static _Thread_local int needed; /* 0: not known, 1: yes, 2: no */
	sigset_t set;

	if (!needed) {
		struct sigaction action;

		pthread_sigmask(SIG_BLOCK, NULL, &set);
		sigaction(SIGPIPE, NULL, &action);
		needed = sigismember(&set, SIGPIPE) || action.sa_handler == SIG_IGN ? 2 : 1;
	}
	g->on = needed == 1;
	if (!g->on)
		return;
	sigpending(&set);
	g->was_pending = sigismember(&set, SIGPIPE);
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &set, &g->old);
}

/* lost: a call on the socket has failed. Does nothing for a zeroed guard. */
static void unguard_sigpipe(const struct sigpipe_guard *g, int lost)
{
	struct timespec none = {0, 0};
	sigset_t set;

	if (!g->on)
		return;
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	if (lost && !g->was_pending)
		while (sigtimedwait(&set, NULL, &none) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &g->old, NULL);
}

struct pass {
	int64_t moved;
	int pulled; /* of the last pull: -1, it has set the time to try again */
	bool full;
	struct sigpipe_guard guard;
};

/* Pieces, until there is none, the socket is full, or it was enough. */
static void push_pieces(struct tcp_lane *lane, struct pass *p) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	bool given = false;

	/* What other lanes were given belongs to this message too, and comes before the next one's. */
	while (p->moved < LINK_PASS_BYTES && !given && !tcp_link_failed(lane->link) && !tx->dead) {
		uint64_t before;
		int rc;

		if (!tx->send && (p->pulled = pull_piece(lane, &given)) <= 0)
			return;
		if (tx->push->may_raise_sigpipe && !p->guard.on)
			guard_sigpipe(&p->guard);
		before = tx->left + tx->in_pipe;
		rc = tx->push->push(lane);
		if (rc < 0) {
			tcp_lane_lost(lane);
			return;
		}
		p->moved += (int64_t)(before - (tx->left + tx->in_pipe));
		p->full = rc == 0;
		if (p->full)
			return;
		end_piece(lane);
	}
}

int tcp_bulk_tx(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct pass pass = {0};

	if (load_relaxed(&tx->dead) || (int64_t)(gantry_ticks() - load_relaxed(&tx->next_try)) < 0 ||
	    !lane_tx_mu_trylock(&tx->lock))
		return 0;
	if (tx->late && tcp_lane_busy(lane))
		tx->late->drain(lane);
	push_pieces(lane, &pass);
	unguard_sigpipe(&pass.guard, tx->dead);
	if (pass.moved > 0) {
		store_relaxed(&l->last.told, gantry_ticks());
		store_relaxed(&l->last.bulk_moved, gantry_ticks());
	}
	/* A socket that is full now has room for little in a moment: wait until a call is worth it. */
	if (pass.pulled >= 0)
		store_relaxed(&tx->next_try, pass.full ? gantry_ticks() + TX_PACES * l->session.pace_ticks : 0);
	lane_tx_mu_unlock(&tx->lock);
	return pass.moved > 0;
}
