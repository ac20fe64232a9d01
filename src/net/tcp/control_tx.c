/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending on the control lane. Whoever flushes collects all that waits (control frames first, among them the headers of
 * pieces towards device memory, then staged and queued eager messages within the peer's window) into one iovec and
 * sends it with one system call. A short write leaves the rest in the batch; nothing else is added before it is out.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "net/tcp/link.h"

enum { DESCRIPTORS_PER_BATCH = LINK_CONTROL_FRAMES - 6 }; /* leaves room for counters, requests and ends */

static void add_iov(struct tcp_link *l, const void *base, size_t len)
{
	l->control.iov[l->control.iov_n++] = (struct iovec){(void *)(uintptr_t)base, len};
}

static int add_control(struct tcp_link *l, int n, const struct wire_frame *f)
{
	wire_frame_encode(f, l->session.crc, l->control.frames[n]);
	add_iov(l, l->control.frames[n], WIRE_FRAME_SIZE);
	return n + 1;
}

/* Bit k: bulk message done + 1 + k is done too, though one before it is not. */
static uint32_t done_behind(const struct tcp_link *l)
{
	uint32_t bits = 0;

	for (uint64_t k = 0; k < 32; k++) {
		uint64_t seq = l->rx.done + 1 + k;

		bits |= (uint32_t)(l->rx.done_bits[seq % LINK_DONE_BITS / 64] >> (seq % 64) & 1) << k;
	}
	return bits;
}

static int add_state(struct tcp_link *l, int n, const struct tcp_tag *t)
{
	struct wire_frame f = {
		.kind = WIRE_STATE,
		.state = {.done = l->rx.done,
			  .done_bits = done_behind(l),
			  .consumed = l->rx.consumed,
			  .has_tag = t != NULL,
			  .tag = t ? t->tag : 0,
			  .posted = t ? t->posted : 0},
	};

	gantry_event_put(GANTRY_EV_STATE_TX, l->session.id, f.state.posted, f.state.done);
	l->rx.done_told = l->rx.done;
	l->rx.consumed_told = l->rx.consumed;
	l->rx.ack_now = 0;
	l->rx.heartbeat_due = 0;
	return add_control(l, n, &f);
}

/* Counters that the peer should hear of. */
static int collect_state(struct tcp_link *l, int n)
{
	int first = n;

	for (int i = 0; i < l->rx.tags.count; i++) {
		struct tcp_tag *t = &l->rx.tags.items[i];

		if (!tcp_state_due(l, t))
			continue;
		if (n >= LINK_CONTROL_FRAMES - 4) { /* the rest goes with the next batch */
			store_relaxed(&l->tx.pending, 1);
			break;
		}
		n = add_state(l, n, t);
		t->advertised = t->posted;
	}
	if (n == first &&
	    (l->rx.ack_now || l->rx.heartbeat_due || l->rx.consumed - l->rx.consumed_told >= LINK_WINDOW / 4)) {
		struct tcp_tag *t = l->rx.tags.count ? &l->rx.tags.items[l->rx.tags.last] : NULL;

		/* The frame goes out anyway: the receives of the tag in use ride along. */
		n = add_state(l, n, t);
		if (t)
			t->advertised = t->posted;
	}
	return n;
}

/* Tell the peer of messages that wait for a receive, once each: it may have posted it without saying so. */
static int collect_rts(struct tcp_link *l, int n)
{
	gantry_list_each (pos, &l->tx.bulk) {
		struct tcp_send *s = gantry_container(pos, struct tcp_send, head.node);
		struct tcp_tag *t;

		if (n >= LINK_CONTROL_FRAMES - 3) /* room for the ends */
			break;
		if (s->announced || !s->announce || s->next)
			continue;
		t = tcp_tag_of(&l->tx.tags, s->tag);
		if (!t || (int32_t)(t->advertised - s->index) > 0)
			continue;
		n = add_control(l, n,
				&(struct wire_frame){
					.kind = WIRE_RTS,
					.rts = {.seq = s->seq, .total = s->size, .tag = s->tag, .index = s->index}});
		s->announced = 1;
	}
	return n;
}

/* What has arrived on bulk lanes, where the service thread has found news. */
static int collect_arrived(struct tcp_link *l, int n)
{
	for (int i = 1; i < l->nlanes; i++) {
		struct tcp_lane_rx *rx = &l->lanes[i].rx;

		if (!rx->tell_arrived)
			continue;
		if (n >= LINK_CONTROL_FRAMES - 3) { /* the rest goes with the next batch */
			store_relaxed(&l->tx.pending, 1);
			break;
		}
		rx->tell_arrived = 0;
		n = add_control(l, n,
				&(struct wire_frame){
					.kind = WIRE_ARRIVED,
					.arrived = {.lane = (uint32_t)i, .bytes = rx->arrived, .unread = rx->unread}});
	}
	return n;
}

int tcp_descriptor_room(const struct tcp_link *l)
{
	return l->tx.descriptors.n < LINK_DESCRIPTORS;
}

void tcp_descriptor_put(struct tcp_link *l, const struct wire_piece *f)
{
	wire_frame_encode(&(struct wire_frame){.kind = WIRE_DESCRIPTOR, .piece = *f}, l->session.crc,
			  l->tx.descriptors.frames[(l->tx.descriptors.head + l->tx.descriptors.n) % LINK_DESCRIPTORS]);
	l->tx.descriptors.n++;
	store_relaxed(&l->tx.pending, 1);
}

/* Headers of pieces that travel without: the first of all, because their payload waits for them. */
static int collect_descriptors(struct tcp_link *l, int n)
{
	for (; l->tx.descriptors.n && n < DESCRIPTORS_PER_BATCH; n++) {
		memcpy(l->control.frames[n], l->tx.descriptors.frames[l->tx.descriptors.head], WIRE_FRAME_SIZE);
		add_iov(l, l->control.frames[n], WIRE_FRAME_SIZE);
		l->tx.descriptors.head = (l->tx.descriptors.head + 1) % LINK_DESCRIPTORS;
		l->tx.descriptors.n--;
	}
	if (l->tx.descriptors.n) /* the rest goes with the next batch */
		store_relaxed(&l->tx.pending, 1);
	return n;
}

static int collect_ends(struct tcp_link *l, int n)
{
	if (l->end.tell) {
		size_t len = strnlen(l->end.text, WIRE_ERROR_TEXT_MAX);

		l->end.tell = 0;
		memcpy(l->control.text, l->end.text, len);
		n = add_control(
			l, n,
			&(struct wire_frame){
				.kind = WIRE_ERROR,
				.error = {.result = l->end.error,
					  .length = (uint32_t)len,
					  .payload_crc = l->session.crc ? gantry_crc32c(0, l->control.text, len) : 0,
					  .sent_bytes = l->end.sent_bytes,
					  .recv_bytes = l->end.recv_bytes}});
		add_iov(l, l->control.text, len);
	}
	/* The receiver counts on the header of every message that CLOSE says was sent. */
	if (l->tx.tell_close && (!l->tx.descriptors.n || tcp_link_failed(l))) {
		l->tx.tell_close = 0;
		n = add_control(l, n,
				&(struct wire_frame){.kind = WIRE_CLOSE, .close = {.bulk_sent = l->tx.bulk_sent}});
	}
	if (l->rx.tell_close) {
		l->rx.tell_close = 0;
		n = add_control(l, n, &(struct wire_frame){.kind = WIRE_CLOSE, .close = {.by_receiver = true}});
	}
	return n;
}

static void take_stage(struct tcp_link *l)
{
	if (!l->tx.coalesce.bytes)
		return;
	add_iov(l, l->tx.coalesce.buffers[l->tx.coalesce.now], l->tx.coalesce.bytes);
	if (l->tx.coalesce.newest)
		l->control.batch[l->control.batch_n++] = l->tx.coalesce.newest;
	l->tx.coalesce.newest = NULL;
	l->tx.coalesce.bytes = l->tx.coalesce.count = 0;
	l->tx.coalesce.now ^= 1;
}

/* Under mu and the lane's lock: what goes out next. Returns the number of iovec entries. */
static int collect(struct tcp_link *l)
{
	int n = 0;

	l->control.iov_at = l->control.iov_n = l->control.batch_n = 0;
	store_relaxed(&l->tx.pending, 0);
	if (!tcp_link_failed(l)) {
		n = collect_descriptors(l, n);
		n = collect_state(l, n);
		n = collect_rts(l, n);
		n = collect_arrived(l, n);
		l->tx.window_blocked = 0;
		take_stage(l);
		while (l->control.batch_n < LINK_BATCH && !gantry_list_empty(&l->tx.eager)) {
			struct tcp_send *s = gantry_container(l->tx.eager.next, struct tcp_send, head.node);
			uint64_t bytes = s->size + WIRE_FRAME_SIZE;

			if (l->tx.eager_out + bytes - l->tx.peer_consumed > l->session.peer_window) {
				l->tx.window_blocked = 1;
				break;
			}
			l->tx.eager_out += bytes;
			gantry_list_remove(&s->head.node);
			l->control.batch[l->control.batch_n++] = s;
			add_iov(l, s->header, WIRE_FRAME_SIZE);
			if (s->size)
				add_iov(l, s->data, s->size);
		}
		if (!gantry_list_empty(&l->tx.eager) && !l->tx.window_blocked)
			store_relaxed(&l->tx.pending, 1);
	}
	collect_ends(l, n);
	return l->control.iov_n;
}

static void batch_sent(struct tcp_link *l)
{
	pthread_mutex_lock(&l->mu);
	for (int i = 0; i < l->control.batch_n; i++)
		tcp_request_done(&l->control.batch[i]->head);
	l->control.batch_n = 0;
	pthread_mutex_unlock(&l->mu);
}

static void advance_batch(struct tcp_link *l, size_t n)
{
	while (l->control.iov_at < l->control.iov_n && n >= l->control.iov[l->control.iov_at].iov_len)
		n -= l->control.iov[l->control.iov_at++].iov_len;
	if (l->control.iov_at < l->control.iov_n) {
		l->control.iov[l->control.iov_at].iov_base = (uint8_t *)l->control.iov[l->control.iov_at].iov_base + n;
		l->control.iov[l->control.iov_at].iov_len -= n;
	}
}

void tcp_control_flush(struct tcp_link *l)
{
	struct tcp_lane *lane = &l->lanes[0];
	int full;

again:
	full = 0;
	if (load_relaxed(&lane->tx.dead) || pthread_mutex_trylock(&l->control.lock))
		return; /* the holder takes what waits, or the next test does */
	for (;;) {
		struct msghdr msg = {0};
		ssize_t n;

		if (l->control.iov_at == l->control.iov_n) {
			int some;

			pthread_mutex_lock(&l->mu);
			some = collect(l);
			pthread_mutex_unlock(&l->mu);
			if (!some)
				break;
		}
		msg.msg_iov = l->control.iov + l->control.iov_at;
		msg.msg_iovlen = (size_t)(l->control.iov_n - l->control.iov_at);
		n = sendmsg(lane->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN && errno != ENOBUFS)
				tcp_lane_lost(lane);
			full = 1;
			store_relaxed(&l->tx.pending, 1);
			break;
		}
		lane->tx.bytes += (uint64_t)n;
		gantry_event_put(GANTRY_EV_CHUNK_TX, 0, (uint64_t)l->control.batch_n, (uint64_t)n);
		store_relaxed(&l->last.told, gantry_ticks());
		advance_batch(l, (size_t)n);
		if (l->control.iov_at < l->control.iov_n)
			continue;
		batch_sent(l);
		if (!load_relaxed(&l->tx.pending))
			break;
	}
	pthread_mutex_unlock(&l->control.lock);
	/*
	 * Whoever set the hint and then failed to get the lock relies on its holder. A read-modify-write here and the
	 * lock's own ordering there: either he got the lock, or we see his hint.
	 */
	if (!full && fetch_or_seq(&l->tx.pending, 0))
		goto again;
	if (load_relaxed(&l->rx.peer_closed))
		tcp_link_hang_up(l);
}

int tcp_control_idle(struct tcp_link *l)
{
	struct tcp_lane *lane = &l->lanes[0];
	int idle = 0;

	if (load_relaxed(&lane->tx.dead))
		return 1;
	if (pthread_mutex_trylock(&l->control.lock))
		return 0;
	pthread_mutex_lock(&l->mu);
	idle = l->control.iov_at == l->control.iov_n && !l->tx.coalesce.bytes && !l->end.tell && !l->tx.tell_close &&
	       !l->rx.tell_close;
	pthread_mutex_unlock(&l->mu);
	pthread_mutex_unlock(&l->control.lock);
	return idle;
}
