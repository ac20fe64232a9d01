/*
 * Sending on bulk lanes. Lanes pull: one that has nothing takes the next piece of the oldest message whose receive is
 * posted. So a slow lane takes fewer pieces and slows nobody. A piece goes out in one of four ways:
 *   splice   vmsplice maps the user's pages into a pipe, splice moves them to the socket: no copy, also within a host.
 *            The kernel says nothing about when the pages are free again; STATE from the receiver does.
 *   zerocopy MSG_ZEROCOPY, for real NICs; completion by STATE as well, the error queue only tells whether it copied.
 *   copy     plain sendmsg.
 *   device   the NIC reads device memory: txmem.h.
 * Towards a side that receives into device memory a lane carries payload only: its CPU could not read a header there.
 * The headers go ahead on the control lane, at once, from whichever thread has pulled the piece.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "net/tcp/link.h"
#include "net/tcp/rail.h"
#include "net/tcp/sigpipe.h"
#include "net/tcp/txmem.h"

#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

enum { CHUNK_UNIT = 64 << 10, CHUNK_SHARED_MAX = 512 << 10, CHUNK_CRC_MAX = 1 << 20 };
enum { DEEP_WINDOW = 6, RTS_PACES = 40, TX_PACES = 1, SPLICE_TAIL = 16 << 10 };
enum { SLOW_PAUSE_NS = 200000 }; /* a lane that was too slow for a piece is asked again after this */

/* The socket takes nothing any more. Data of the peer may still be there to be read: the receiving half decides. */
void tcp_lane_lost(struct tcp_lane *lane)
{
	int e = errno;

	__atomic_store_n(&lane->tx.dead, 1, __ATOMIC_RELAXED);
	tcp_link_ending(lane, e);
}

static uint64_t chunk_size(const struct tcp_link *l, uint64_t total)
{
	uint64_t max = gantry_params()->chunk_max, chunk;
	int lanes = l->nlanes - 1;

	if (l->crc && !l->device_tx && max > CHUNK_CRC_MAX)
		max = CHUNK_CRC_MAX;
	if (lanes == 1)
		return max;
	/* Small enough that every lane gets some and a slow one holds little; large enough to be worth a call. */
	chunk = (total / (uint64_t)lanes + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
	/* Rails may differ in speed: the finer the pieces, the better they balance. */
	if (chunk > CHUNK_SHARED_MAX)
		chunk = CHUNK_SHARED_MAX;
	if (l->rails == 1 && chunk < gantry_params()->chunk_min)
		chunk = gantry_params()->chunk_min;
	return chunk < max ? chunk : max;
}

/* The oldest message whose receive is posted, or NULL. Under mu. */
static struct tcp_send *ready(struct tcp_link *l)
{
	gantry_list_each (pos, &l->bulk) {
		struct tcp_send *s = gantry_container(pos, struct tcp_send, head.node);
		struct tcp_tag *t = tcp_tag_of(&l->tx_tags, s->tag);

		/* The receiver keeps track of this many that may be done before an earlier one. */
		if (s->seq - l->peer_done >= LINK_DONE_BITS)
			continue;
		if (t && (int32_t)(t->advertised - s->index) > 0)
			return s;
		if (s->announced)
			continue;
		if (!s->blocked)
			s->blocked = gantry_ticks() | 1;
		s->announce |= (int64_t)(gantry_ticks() - s->blocked) > (int64_t)(RTS_PACES * l->pace_ticks);
		if (s->announce) /* the control lane will ask for it */
			__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* The next piece of the oldest message whose receive is posted. 1 if there is one, 0 if not, -1: left to other lanes.
 */
static int pull(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct wire_frame f = {.kind = WIRE_DATA};
	struct tcp_send *s;
	uint64_t chunk;
	int far;

	if (l->rails > 1)
		tcp_rail_weigh(lane);
	pthread_mutex_lock(&l->mu);
	s = ready(l);
	if (!s || l->peer_rx_closed || (l->device_tx && !tcp_ahead_room(l))) {
		pthread_mutex_unlock(&l->mu);
		return 0;
	}
	if (!s->txmem && tcp_txmem_busy(lane)) { /* bytes of another kind must not overtake */
		pthread_mutex_unlock(&l->mu);
		return 0;
	}
	chunk = chunk_size(l, s->size);
	if (chunk > s->size - s->next)
		chunk = s->size - s->next;
	if (l->rails > 1 && tcp_rail_too_slow(lane, chunk)) {
		pthread_mutex_unlock(&l->mu);
		__atomic_store_n(&tx->next_try, gantry_ticks() + gantry_ticks_of_ns(SLOW_PAUSE_NS), __ATOMIC_RELAXED);
		return -1;
	}
	l->bulk_bytes -= chunk;
	__atomic_store_n(&tx->queued, tx->queued + chunk, __ATOMIC_RELAXED);
	if (s->next == 0)
		s->needs_ack = s->txmem || ((__atomic_load_n(&l->splice, __ATOMIC_RELAXED) ||
					     __atomic_load_n(&l->msg_zerocopy, __ATOMIC_RELAXED)) &&
					    s->size >= gantry_params()->zerocopy_min);
	f.length = (uint32_t)chunk;
	f.seq = s->seq;
	f.offset = s->next;
	f.total = s->size;
	f.tag = s->tag;
	f.index = s->index;
	far = s->seq - l->peer_done >= LINK_DONE_BITS / 2;
	tx->send = s;
	tx->data = s->data + s->next;
	tx->left = tx->length = chunk;
	s->next += chunk;
	if (s->next == s->size) {
		gantry_list_remove(&s->head.node);
		/* Only a deep window can wait for its acknowledgements. */
		if (__atomic_load_n(&l->bulk_pending, __ATOMIC_RELAXED) >= DEEP_WINDOW)
			f.flags |= WIRE_FLAG_DEEP;
	}
	if (s->needs_ack || far)
		f.flags |= WIRE_FLAG_ACK;
	if (l->device_tx) {
		f.kind = WIRE_AHEAD;
		f.lane = (uint32_t)lane->index;
		tcp_ahead_put(l, &f);
	}
	pthread_mutex_unlock(&l->mu);

	if (l->device_tx) {
		tx->header_left = 0;
		tcp_control_flush(l);
	} else {
		if (l->crc) {
			f.flags |= WIRE_FLAG_CRC;
			f.crc = gantry_crc32c(0, tx->data, chunk);
		}
		wire_frame_encode(&f, tx->header);
		tx->header_left = WIRE_FRAME_SIZE;
	}
	tx->splicing = s->needs_ack && !s->txmem && __atomic_load_n(&l->splice, __ATOMIC_RELAXED);
	gantry_event_put(GANTRY_EV_CHUNK_TX, (uint32_t)lane->index, s->seq, chunk);
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
		l->bulk_sent++;
		if (s->needs_ack && !tcp_send_acked(l, s->seq)) {
			gantry_list_append(&l->unacked, &s->head.node);
		} else {
			__atomic_fetch_sub(&l->bulk_pending, 1, __ATOMIC_RELAXED);
			gantry_event_put(GANTRY_EV_SEND_DONE, l->id, s->index, s->size);
			tcp_request_done(&s->head);
		}
	}
	pthread_mutex_unlock(&l->mu);
}

static int open_pipe(struct tcp_lane *lane)
{
	int *p = lane->tx.pipe;

	if (p[0] >= 0)
		return 0;
	if (pipe2(p, O_CLOEXEC | O_NONBLOCK)) {
		p[0] = p[1] = -1;
		return -1;
	}
	/* Whatever the kernel grants: a large pipe saves calls. */
	for (int size = LINK_PIPE_SIZE; size > 1 << 16 && fcntl(p[1], F_SETPIPE_SZ, size) < 0;)
		size /= 2;
	if (fcntl(p[1], F_GETPIPE_SZ) >= LINK_PIPE_MIN)
		return 0;
	/* This user's share of pipe memory is used up (fs.pipe-user-pages-soft): copying is cheaper than tiny pipes. */
	close(p[0]);
	close(p[1]);
	p[0] = p[1] = -1;
	errno = EDQUOT;
	return -1;
}

/* This memory or this kernel does not splice: from now on the link copies. Only called with an empty pipe. */
static void stop_splicing(struct tcp_lane *lane, const char *what)
{
	LOG_INFO(DATA, "%s: %s: %s; large messages are copied from now on", lane->link->peer, what, strerror(errno));
	__atomic_store_n(&lane->link->splice, 0, __ATOMIC_RELAXED);
	lane->tx.splicing = 0;
}

/* 1: all of the piece is in the kernel; 0: the socket is full; -1: failed. */
static int push_spliced(struct tcp_lane *lane)
{
	struct tcp_lane_tx *tx = &lane->tx;

	while (tx->left || tx->in_pipe) {
		ssize_t n;

		if (!tx->in_pipe && !tx->header_left && tx->left <= SPLICE_TAIL) {
			/* A pipe of the usual size just misses a header and 1 MiB: one call for the tail, not two. */
			n = send(lane->fd, tx->data, tx->left, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (n < 0)
				return errno == EAGAIN || errno == EINTR ? 0 : -1;
			tx->data += n;
			tx->left -= (uint64_t)n;
			continue;
		}
		if (!tx->in_pipe) {
			/* The request outlives the piece, so a header in it may be mapped like the payload. */
			int whole = tx->header_left == WIRE_FRAME_SIZE && tx->length == tx->send->size;
			struct iovec iov[2] = {{tx->send->header, WIRE_FRAME_SIZE},
					       {(void *)(uintptr_t)tx->data, tx->left}};

			if (whole)
				memcpy(tx->send->header, tx->header, WIRE_FRAME_SIZE);
			else if (tx->header_left) {
				n = send(lane->fd, tx->header + WIRE_FRAME_SIZE - tx->header_left, tx->header_left,
					 MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
				if (n < 0)
					return errno == EAGAIN || errno == EINTR ? 0 : -1;
				tx->header_left -= (uint32_t)n;
				if (tx->header_left)
					return 0;
			}
			if (open_pipe(lane)) {
				stop_splicing(lane, "pipe");
				return 0;
			}
			n = vmsplice(tx->pipe[1], whole ? iov : iov + 1, whole ? 2 : 1, SPLICE_F_NONBLOCK);
			if (n <= 0) {
				if (n < 0 && errno == EINTR)
					continue;
				stop_splicing(lane, "vmsplice");
				return 0;
			}
			if (whole && n < WIRE_FRAME_SIZE) { /* cannot happen: a header lies within one page */
				errno = EIO;
				return -1;
			}
			tx->in_pipe = (uint64_t)n;
			if (whole) {
				tx->header_left = 0;
				n -= WIRE_FRAME_SIZE;
			}
			tx->data += n;
			tx->left -= (uint64_t)n;
		}
		n = splice(tx->pipe[0], NULL, lane->fd, NULL, tx->in_pipe,
			   SPLICE_F_NONBLOCK | SPLICE_F_MOVE | (tx->left ? SPLICE_F_MORE : 0));
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -1;
		tx->in_pipe -= (uint64_t)n;
	}
	return 1;
}

/* Reads what the kernel has to say about MSG_ZEROCOPY calls: if it copied after all, stop asking. */
static void drain_errors(struct tcp_lane *lane)
{
	struct tcp_lane_tx *tx = &lane->tx;
	uint8_t control[128];

	while (tx->zerocopy_seen != tx->zerocopy_calls) {
		struct msghdr msg = {.msg_control = control, .msg_controllen = sizeof(control)};
		struct cmsghdr *c;

		if (recvmsg(lane->fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			return;
		for (c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
			struct sock_extended_err ee;

			if (c->cmsg_level != SOL_IP && c->cmsg_level != SOL_IPV6)
				continue;
			memcpy(&ee, CMSG_DATA(c), sizeof(ee));
			if (ee.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
				continue;
			__atomic_store_n(&tx->zerocopy_seen, ee.ee_data + 1, __ATOMIC_RELAXED);
			if ((ee.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) &&
			    __atomic_exchange_n(&lane->link->msg_zerocopy, 0, __ATOMIC_RELAXED))
				LOG_INFO(DATA, "%s: the kernel copies despite MSG_ZEROCOPY; plain sends from now on",
					 lane->link->peer);
		}
	}
}

/* As push_spliced. */
static int push_copied(struct tcp_lane *lane)
{
	struct tcp_lane_tx *tx = &lane->tx;

	while (tx->left || tx->header_left) {
		int zerocopy = tx->send->needs_ack && __atomic_load_n(&lane->link->msg_zerocopy, __ATOMIC_RELAXED);
		/* A header must not be sent by reference: it is overwritten by the next piece's. */
		int header_only = zerocopy && tx->header_left;
		struct iovec iov[2] = {{tx->header + WIRE_FRAME_SIZE - tx->header_left, tx->header_left},
				       {(void *)(uintptr_t)tx->data, tx->left}};
		struct msghdr msg = {.msg_iov = tx->header_left ? iov : iov + 1,
				     .msg_iovlen = tx->header_left && !header_only ? 2 : 1};
		int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (header_only ? MSG_MORE : zerocopy ? MSG_ZEROCOPY : 0);
		ssize_t n = sendmsg(lane->fd, &msg, flags);

		if (n < 0 && errno == ENOBUFS && (flags & MSG_ZEROCOPY)) {
			drain_errors(lane);
			n = sendmsg(lane->fd, &msg, flags & ~MSG_ZEROCOPY);
		} else if (n < 0 && errno == EFAULT && (flags & MSG_ZEROCOPY)) {
			LOG_INFO(DATA, "%s: this memory cannot be pinned; plain sends from now on", lane->link->peer);
			__atomic_store_n(&lane->link->msg_zerocopy, 0, __ATOMIC_RELAXED);
			continue;
		} else if (n >= 0 && (flags & MSG_ZEROCOPY)) {
			__atomic_store_n(&tx->zerocopy_calls, tx->zerocopy_calls + 1, __ATOMIC_RELAXED);
		}
		if (n < 0)
			return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -1;
		if ((uint64_t)n <= tx->header_left) {
			tx->header_left -= (uint32_t)n;
		} else {
			n -= tx->header_left;
			tx->header_left = 0;
			tx->data += n;
			tx->left -= (uint64_t)n;
		}
	}
	if (tx->zerocopy_calls - tx->zerocopy_seen >= 8)
		drain_errors(lane);
	return 1;
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
	__atomic_store_n(&lane->tx.dead, 1, __ATOMIC_RELAXED);
}

int tcp_bulk_tx(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct sigpipe_guard guard = {0};
	int64_t moved = 0;
	int full = 0, pulled = 0, guarded = 0;

	if (__atomic_load_n(&tx->dead, __ATOMIC_RELAXED) ||
	    (int64_t)(gantry_ticks() - __atomic_load_n(&tx->next_try, __ATOMIC_RELAXED)) < 0 ||
	    pthread_mutex_trylock(&tx->lock))
		return 0;
	if (tcp_txmem_busy(lane))
		tcp_txmem_drain(lane);
	while (moved < LINK_PASS_BYTES && !tcp_link_failed(l) && !tx->dead) {
		uint64_t before;
		int rc;

		if (!tx->send && (pulled = pull(lane)) <= 0)
			break;
		if (tx->splicing && !guarded) {
			sigpipe_guard(&guard);
			guarded = 1;
		}
		before = tx->left + tx->in_pipe;
		rc = tx->send->txmem ? tcp_txmem_push(lane) : tx->splicing ? push_spliced(lane) : push_copied(lane);
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
		__atomic_store_n(&l->told, gantry_ticks(), __ATOMIC_RELAXED);
		__atomic_store_n(&l->bulk_moved, gantry_ticks(), __ATOMIC_RELAXED);
	}
	/* A socket that is full now has room for little in a moment: wait until a call is worth it. */
	if (pulled >= 0) /* else pull has said when */
		__atomic_store_n(&tx->next_try, full ? gantry_ticks() + TX_PACES * l->pace_ticks : 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&tx->lock);
	return moved > 0;
}
