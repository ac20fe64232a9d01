/*
 * Sending: the control lane's batches and the bulk lanes' pieces.
 *
 * Control lane. Whoever flushes collects all that waits (control frames first, then eager messages within the peer's
 * window) into one iovec and sends it with one system call. A short write leaves the rest in the batch; nothing else
 * is added before it is out.
 *
 * Bulk lanes pull: a lane that has nothing takes the next piece of the oldest message whose receive is posted. So a
 * slow lane takes fewer pieces and slows nobody. A piece goes out in one of three ways:
 *   splice   vmsplice maps the user's pages into a pipe, splice moves them to the socket: no copy, also within a host.
 *            The kernel says nothing about when the pages are free again; STATE from the receiver does.
 *   zerocopy MSG_ZEROCOPY, for real NICs; completion by STATE as well, the error queue only tells whether it copied.
 *   copy     plain sendmsg.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "net/tcp/link.h"

#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

enum { CHUNK_UNIT = 64 << 10, CHUNK_MIN = 128 << 10, CHUNK_SHARED_MAX = 512 << 10, CHUNK_CRC_MAX = 1 << 20 };
enum { TX_PACES = 1, SPLICE_TAIL = 16 << 10 };

/* The socket takes nothing any more. Data of the peer may still be there to be read: the receiving half decides. */
static void lane_lost(struct tcp_lane *lane)
{
	int e = errno;

	__atomic_store_n(&lane->tx.dead, 1, __ATOMIC_RELAXED);
	tcp_link_ending(lane, e);
}

/* ---- control lane ---- */

static void add_iov(struct tcp_link *l, const void *base, size_t len)
{
	l->iov[l->iov_n++] = (struct iovec){(void *)(uintptr_t)base, len};
}

static int add_control(struct tcp_link *l, int n, const struct wire_frame *f)
{
	wire_frame_encode(f, l->control[n]);
	add_iov(l, l->control[n], WIRE_FRAME_SIZE);
	return n + 1;
}

static int add_state(struct tcp_link *l, int n, const struct tcp_tag *t)
{
	struct wire_frame f = {
		.kind = WIRE_STATE,
		.seq = l->done,
		.offset = l->consumed,
		.tag = t ? t->tag : 0,
		.index = t ? t->posted : 0,
		.total = t ? 1 : 0, /* 1: tag and index are set */
	};

	gantry_event_put(GANTRY_EV_STATE_TX, l->id, f.index, f.seq);
	l->done_told = l->done;
	l->consumed_told = l->consumed;
	l->ack_now = 0;
	l->heartbeat_due = 0;
	return add_control(l, n, &f);
}

/* Counters that the peer should hear of. */
static int collect_state(struct tcp_link *l, int n)
{
	int first = n;

	for (int i = 0; i < l->rx_tags.count; i++) {
		struct tcp_tag *t = &l->rx_tags.items[i];

		if (!tcp_state_due(l, t))
			continue;
		if (n >= LINK_CONTROL_FRAMES - 4) { /* the rest goes with the next batch */
			__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
			break;
		}
		n = add_state(l, n, t);
		t->advertised = t->posted;
	}
	if (n == first && (l->ack_now || l->heartbeat_due || l->consumed - l->consumed_told >= LINK_WINDOW / 4))
		n = add_state(l, n, NULL);
	return n;
}

/* Tell the peer of messages that wait for a receive, once each: it may have posted it without saying so. */
static int collect_rts(struct tcp_link *l, int n)
{
	gantry_list_each(pos, &l->bulk) {
		struct tcp_send *s = gantry_container(pos, struct tcp_send, head.node);
		struct tcp_tag *t;

		if (n >= LINK_CONTROL_FRAMES - 3) /* room for the ends */
			break;
		if (s->announced || s->next)
			continue;
		t = tcp_tag_of(&l->tx_tags, s->tag);
		if (!t || (int32_t)(t->advertised - s->index) > 0)
			continue;
		n = add_control(l, n, &(struct wire_frame){.kind = WIRE_RTS, .seq = s->seq, .total = s->size,
							   .tag = s->tag, .index = s->index});
		s->announced = 1;
	}
	return n;
}

static int collect_ends(struct tcp_link *l, int n)
{
	if (l->tell_error) {
		size_t len = strnlen(l->error_text, WIRE_ERROR_TEXT_MAX);

		l->tell_error = 0;
		memcpy(l->control_text, l->error_text, len);
		n = add_control(l, n, &(struct wire_frame){.kind = WIRE_ERROR, .tag = l->error, .length = (uint32_t)len,
							   .offset = l->error_sent_bytes, .total = l->error_recv_bytes});
		add_iov(l, l->control_text, len);
	}
	if (l->tell_tx_close) {
		l->tell_tx_close = 0;
		n = add_control(l, n, &(struct wire_frame){.kind = WIRE_CLOSE, .seq = l->bulk_sent});
	}
	if (l->tell_rx_close) {
		l->tell_rx_close = 0;
		n = add_control(l, n, &(struct wire_frame){.kind = WIRE_CLOSE, .flags = WIRE_FLAG_RECEIVER});
	}
	return n;
}

static void take_stage(struct tcp_link *l)
{
	if (!l->stage_bytes)
		return;
	add_iov(l, l->stage[l->stage_now], l->stage_bytes);
	if (l->newest)
		l->batch[l->batch_n++] = l->newest;
	l->newest = NULL;
	l->stage_bytes = l->stage_count = 0;
	l->stage_now ^= 1;
}

/* Under mu and the lane's lock: what goes out next. Returns the number of iovec entries. */
static int collect(struct tcp_link *l)
{
	int n = 0;

	l->iov_at = l->iov_n = l->batch_n = 0;
	__atomic_store_n(&l->tx_pending, 0, __ATOMIC_RELAXED);
	if (!tcp_link_failed(l)) {
		n = collect_state(l, n);
		n = collect_rts(l, n);
		l->window_blocked = 0;
		take_stage(l);
		while (l->batch_n < LINK_BATCH && !gantry_list_empty(&l->eager)) {
			struct tcp_send *s = gantry_container(l->eager.next, struct tcp_send, head.node);
			uint64_t bytes = s->size + WIRE_FRAME_SIZE;

			if (l->eager_out + bytes - l->peer_consumed > l->peer_window) {
				l->window_blocked = 1;
				break;
			}
			l->eager_out += bytes;
			gantry_list_remove(&s->head.node);
			l->batch[l->batch_n++] = s;
			add_iov(l, s->header, WIRE_FRAME_SIZE);
			if (s->size)
				add_iov(l, s->data, s->size);
		}
		if (!gantry_list_empty(&l->eager) && !l->window_blocked)
			__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
	}
	collect_ends(l, n);
	return l->iov_n;
}

static void batch_sent(struct tcp_link *l)
{
	pthread_mutex_lock(&l->mu);
	for (int i = 0; i < l->batch_n; i++)
		tcp_request_done(&l->batch[i]->head);
	l->batch_n = 0;
	pthread_mutex_unlock(&l->mu);
}

static void advance_batch(struct tcp_link *l, size_t n)
{
	while (l->iov_at < l->iov_n && n >= l->iov[l->iov_at].iov_len)
		n -= l->iov[l->iov_at++].iov_len;
	if (l->iov_at < l->iov_n) {
		l->iov[l->iov_at].iov_base = (uint8_t *)l->iov[l->iov_at].iov_base + n;
		l->iov[l->iov_at].iov_len -= n;
	}
}

void tcp_control_flush(struct tcp_link *l)
{
	struct tcp_lane *lane = &l->lanes[0];
	int full;

again:
	full = 0;
	if (__atomic_load_n(&lane->tx.dead, __ATOMIC_RELAXED) || pthread_mutex_trylock(&lane->tx.lock))
		return; /* the holder takes what waits, or the next test does */
	for (;;) {
		struct msghdr msg = {0};
		ssize_t n;

		if (l->iov_at == l->iov_n) {
			int some;

			pthread_mutex_lock(&l->mu);
			some = collect(l);
			pthread_mutex_unlock(&l->mu);
			if (!some)
				break;
		}
		msg.msg_iov = l->iov + l->iov_at;
		msg.msg_iovlen = (size_t)(l->iov_n - l->iov_at);
		n = sendmsg(lane->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN && errno != ENOBUFS)
				lane_lost(lane);
			full = 1;
			__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
			break;
		}
		lane->tx.bytes += (uint64_t)n;
		gantry_event_put(GANTRY_EV_CHUNK_TX, 0, (uint64_t)l->batch_n, (uint64_t)n);
		__atomic_store_n(&l->told, gantry_ticks(), __ATOMIC_RELAXED);
		advance_batch(l, (size_t)n);
		if (l->iov_at < l->iov_n)
			continue;
		batch_sent(l);
		if (!__atomic_load_n(&l->tx_pending, __ATOMIC_RELAXED))
			break;
	}
	pthread_mutex_unlock(&lane->tx.lock);
	/*
	 * Whoever set the hint and then failed to get the lock relies on its holder. A read-modify-write here and the
	 * lock's own ordering there: either he got the lock, or we see his hint.
	 */
	if (!full && __atomic_fetch_or(&l->tx_pending, 0, __ATOMIC_SEQ_CST))
		goto again;
}

int tcp_control_idle(struct tcp_link *l)
{
	struct tcp_lane *lane = &l->lanes[0];
	int idle = 0;

	if (__atomic_load_n(&lane->tx.dead, __ATOMIC_RELAXED))
		return 1;
	if (pthread_mutex_trylock(&lane->tx.lock))
		return 0;
	pthread_mutex_lock(&l->mu);
	idle = l->iov_at == l->iov_n && !l->stage_bytes && !l->tell_error && !l->tell_tx_close && !l->tell_rx_close;
	pthread_mutex_unlock(&l->mu);
	pthread_mutex_unlock(&lane->tx.lock);
	return idle;
}

/* ---- bulk lanes ---- */

static uint64_t chunk_size(const struct tcp_link *l, uint64_t total)
{
	uint64_t max = gantry_params()->chunk_max, chunk;
	int lanes = l->nlanes - 1;

	if (l->crc && max > CHUNK_CRC_MAX)
		max = CHUNK_CRC_MAX;
	if (lanes == 1)
		return max;
	/* Small enough that every lane gets some and a slow one holds little; large enough to be worth a call. */
	chunk = (total / (uint64_t)lanes + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
	if (chunk < CHUNK_MIN)
		chunk = CHUNK_MIN;
	if (chunk > CHUNK_SHARED_MAX)
		chunk = CHUNK_SHARED_MAX;
	return chunk < max ? chunk : max;
}

/* The next piece of the oldest message whose receive is posted. 1 if there is one. */
static int pull(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct wire_frame f = {.kind = WIRE_DATA};
	struct tcp_send *s = NULL;
	uint64_t chunk;

	pthread_mutex_lock(&l->mu);
	gantry_list_each(pos, &l->bulk) {
		struct tcp_send *candidate = gantry_container(pos, struct tcp_send, head.node);
		struct tcp_tag *t = tcp_tag_of(&l->tx_tags, candidate->tag);

		if (t && (int32_t)(t->advertised - candidate->index) > 0) {
			s = candidate;
			break;
		}
		if (!candidate->announced)
			__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
	}
	if (!s || l->peer_rx_closed) {
		pthread_mutex_unlock(&l->mu);
		return 0;
	}
	chunk = chunk_size(l, s->size);
	if (chunk > s->size - s->next)
		chunk = s->size - s->next;
	if (s->next == 0)
		s->needs_ack = (__atomic_load_n(&l->splice, __ATOMIC_RELAXED) ||
				__atomic_load_n(&l->msg_zerocopy, __ATOMIC_RELAXED)) &&
			       s->size >= gantry_params()->zerocopy_min;
	f.length = (uint32_t)chunk;
	f.seq = s->seq;
	f.offset = s->next;
	f.total = s->size;
	f.tag = s->tag;
	f.index = s->index;
	tx->send = s;
	tx->data = s->data + s->next;
	tx->left = tx->length = chunk;
	s->next += chunk;
	if (s->next == s->size)
		gantry_list_remove(&s->head.node);
	pthread_mutex_unlock(&l->mu);

	if (s->needs_ack)
		f.flags |= WIRE_FLAG_ACK;
	if (l->crc) {
		f.flags |= WIRE_FLAG_CRC;
		f.crc = gantry_crc32c(0, tx->data, chunk);
	}
	wire_frame_encode(&f, tx->header);
	tx->header_left = WIRE_FRAME_SIZE;
	tx->splicing = s->needs_ack && __atomic_load_n(&l->splice, __ATOMIC_RELAXED);
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
		if (s->needs_ack && l->peer_done <= s->seq) {
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
 * this direction, so nothing needs to follow, not even the rest of the piece: the peer hears of the close on the control
 * lane. The caller holds the lane's lock.
 */
void tcp_lane_tx_abandon(struct tcp_lane *lane)
{
	lane->tx.send = NULL;
	lane->tx.left = 0;
	__atomic_store_n(&lane->tx.dead, 1, __ATOMIC_RELAXED);
}

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

int tcp_bulk_tx(struct tcp_lane *lane)
{
	struct tcp_link *l = lane->link;
	struct tcp_lane_tx *tx = &lane->tx;
	struct sigpipe_guard guard = {0};
	int64_t moved = 0;
	int full = 0;

	if (__atomic_load_n(&tx->dead, __ATOMIC_RELAXED) ||
	    (int64_t)(gantry_ticks() - __atomic_load_n(&tx->next_try, __ATOMIC_RELAXED)) < 0 ||
	    pthread_mutex_trylock(&tx->lock))
		return 0;
	if (__atomic_load_n(&l->splice, __ATOMIC_RELAXED) || tx->in_pipe)
		guard_sigpipe(&guard);
	while (moved < LINK_PASS_BYTES && !tcp_link_failed(l) && !tx->dead) {
		uint64_t before;
		int rc;

		if (!tx->send && !pull(lane))
			break;
		before = tx->left + tx->in_pipe;
		rc = tx->splicing ? push_spliced(lane) : push_copied(lane);
		if (rc < 0) {
			lane_lost(lane);
			break;
		}
		moved += (int64_t)(before - (tx->left + tx->in_pipe));
		full = rc == 0;
		if (full)
			break;
		tx->bytes += tx->length;
		piece_sent(lane);
	}
	unguard_sigpipe(&guard, tx->dead);
	if (moved > 0)
		__atomic_store_n(&l->told, gantry_ticks(), __ATOMIC_RELAXED);
	/* A socket that is full now has room for little in a moment: wait until a call is worth it. */
	__atomic_store_n(&tx->next_try, full ? gantry_ticks() + TX_PACES * l->pace_ticks : 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&tx->lock);
	return moved > 0;
}
