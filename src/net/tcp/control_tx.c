/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending on the control lane. The flushing thread collects all that waits (control frames first, among them the
 * headers of pieces towards device memory, then coalesced and queued eager messages within the peer's window) into one
 * iovec and sends it with one system call. A short write leaves the rest in the batch; nothing else is added before it
 * is out.
 */
#include <errno.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "net/tcp/link.h"

enum { DESCRIPTORS_PER_BATCH = LINK_CONTROL_FRAMES - 6 }; /* leaves room for counters, requests and ends */
enum { ROOM_FOR_RTS = 4, ROOM_FOR_ENDS = 3 };		  /* frames at the end of a batch */

static void add_iov(struct tcp_control *c, const void *base, size_t len)
{
	ASSERT(c->iov_n < (int)(sizeof(c->iov) / sizeof(*c->iov)));
	c->iov[c->iov_n++] = (struct iovec){(void *)(uintptr_t)base, len};
}

static void add_frame(struct tcp_link *l, const struct wire_frame *f) REQUIRES(control_mu)
{
	struct tcp_control *c = l->control;

	ASSERT(c->nframes < LINK_CONTROL_FRAMES);
	wire_frame_encode(f, l->session.crc, c->frames[c->nframes]);
	add_iov(c, c->frames[c->nframes++], WIRE_FRAME_SIZE);
}

/* False: what is collected goes with the next batch. */
static bool has_room(struct tcp_link *l, int reserved) REQUIRES(control_mu)
{
	if (l->control->nframes < LINK_CONTROL_FRAMES - reserved)
		return true;
	store_relaxed(&l->tx.pending, 1);
	return false;
}

/* Bit k: bulk message done + 1 + k is done too, though one before it is not. */
static uint32_t done_behind(const struct tcp_rx *rx)
{
	uint32_t bits = 0;

	for (uint64_t k = 0; k < 32; k++) {
		uint64_t seq = rx->done + 1 + k;

		bits |= (uint32_t)(rx->done_bits[seq % LINK_DONE_BITS / 64] >> (seq % 64) & 1) << k;
	}
	return bits;
}

/* t: the tag whose receives it tells of, or NULL. */
static void add_state(struct tcp_link *l, struct tcp_tag *t) REQUIRES(control_mu, link_mu)
{
	struct tcp_rx *rx = &l->rx;
	struct wire_frame f = {
		.kind = WIRE_STATE,
		.state = {.done = rx->done,
			  .done_bits = done_behind(rx),
			  .consumed = rx->consumed,
			  .received = rx->eager_in,
			  .sends = l->tx.wanted || l->tx.closed,
			  .has_tag = t != NULL,
			  .tag = t ? t->tag : 0,
			  .posted = t ? t->posted : 0},
	};

	gantry_event_put(GANTRY_EV_STATE_TX, l->session.id, f.state.posted, f.state.done);
	ASSERT(rx->done >= rx->done_told && rx->consumed >= rx->consumed_told);
	rx->done_told = rx->done;
	rx->consumed_told = rx->consumed;
	store_relaxed(&rx->unreported, 0);
	rx->ack_now = false;
	rx->heartbeat_due = false;
	if (t) {
		t->credit = t->posted;
		t->due = false;
	}
	add_frame(l, &f);
}

/* Counters that should be sent to the peer. */
static void collect_state(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	struct tcp_rx *rx = &l->rx;
	int before = l->control->nframes;
	bool alone = gantry_list_empty(&l->tx.eager);
	uint64_t consumed = alone ? LINK_TELL : LINK_WINDOW / 16, report = alone ? RESUME_REPORT : 1;

	for (int i = 0; i < rx->tags.count; i++) {
		if (!tcp_state_due(l, &rx->tags.items[i]))
			continue;
		if (!has_room(l, ROOM_FOR_RTS))
			break;
		add_state(l, &rx->tags.items[i]);
	}
	/* The frame goes out anyway: the receives of the tag in use ride along. */
	if (l->control->nframes == before && (rx->ack_now || rx->heartbeat_due ||
					      rx->consumed - rx->consumed_told >= consumed || rx->unreported >= report))
		add_state(l, rx->tags.count ? &rx->tags.items[rx->tags.last] : NULL);
}

/* Tell the peer of messages that wait for a receive, once each: it may have posted it without saying so. */
static void collect_rts(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	gantry_list_each_entry (s, &l->tx.bulk, struct tcp_send, head.node) {
		struct tcp_tag *t;

		if (l->control->nframes >= LINK_CONTROL_FRAMES - ROOM_FOR_ENDS)
			break;
		if (s->rts_sent || !s->rts_wanted || s->next)
			continue;
		t = tcp_tag_of(&l->tx.tags, s->tag);
		if (!t || (int32_t)(t->credit - s->index) > 0)
			continue;
		add_frame(l, &(struct wire_frame){
				     .kind = WIRE_RTS,
				     .rts = {.seq = s->seq, .total = s->size, .tag = s->tag, .index = s->index}});
		s->rts_sent = true;
	}
}

/* What has arrived on bulk lanes, where the service thread has found news. */
static void collect_arrived(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	for (int i = 1; i < l->nlanes; i++) {
		struct tcp_lane_rx *rx = &l->lanes[i].rx;
		struct tcp_lane_resume *r = l->lanes[i].resume;

		if (!rx->tell_arrived)
			continue;
		if (!has_room(l, ROOM_FOR_ENDS))
			break;
		rx->tell_arrived = false;
		add_frame(l, &(struct wire_frame){.kind = WIRE_ARRIVED,
						  .arrived = {.lane = (uint32_t)i,
							      .generation = r ? r->generation : 0,
							      .bytes = rx->arrived,
							      .unread = rx->unread,
							      .pieces = r ? r->pieces : 0}});
		if (r)
			r->pieces_told = r->pieces;
	}
}

/* Lanes that this side uses no more. */
static void collect_stopped(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	for (int i = 1; i < l->nlanes; i++) {
		struct tcp_lane_resume *r = l->lanes[i].resume;

		if (!r->tell)
			continue;
		if (!has_room(l, ROOM_FOR_ENDS))
			break;
		r->tell = false;
		add_frame(l,
			  &(struct wire_frame){
				  .kind = WIRE_STOPPED,
				  .stopped = {.lane = (uint32_t)i, .generation = r->generation, .pieces = r->pieces}});
	}
}

/* Bytes that are kept: behind those before them, if they follow there. */
static void add_kept(struct tcp_link *l, uint64_t from, uint64_t to) REQUIRES(control_mu, link_mu)
{
	struct tcp_control *c = l->control;
	struct iovec parts[2], *last = c->iov_n ? &c->iov[c->iov_n - 1] : NULL;
	int n = tcp_resume_list(l->resume, from, to, parts), i = 0;

	if (last && (uint8_t *)last->iov_base + last->iov_len == parts[0].iov_base)
		last->iov_len += parts[i++].iov_len;
	for (; i < n; i++)
		add_iov(c, parts[i].iov_base, parts[i].iov_len);
}

/* A message from its own memory, which must not be reused until the batch is out. */
static void add_message(struct tcp_link *l, struct tcp_send *s) REQUIRES(control_mu, link_mu)
{
	struct tcp_control *c = l->control;

	ASSERT(load_relaxed(&s->head.state) == TCP_PENDING);
	store_relaxed(&s->held_since, 0);
	c->batch[c->batch_n++] = s;
	add_iov(c, s->header, WIRE_EAGER_SIZE);
	if (s->size)
		add_iov(c, s->data, s->size);
}

/* What the last control lane may have lost. False: there is more of it, and nothing may overtake that. */
static bool collect_again(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	struct tcp_resume *r = l->resume;

	if (r->again == r->again_end)
		return true;
	gantry_list_each_entry (s, &r->held, struct tcp_send, head.node) {
		if (s->held_at < r->again)
			continue;
		if (s->held_at >= r->again_end)
			break;
		if (l->control->batch_n >= LINK_BATCH / 2) {
			store_relaxed(&l->tx.pending, 1);
			return false;
		}
		if (s->held_at > r->again)
			add_kept(l, r->again, s->held_at);
		add_message(l, s);
		r->again = s->held_at + s->size + WIRE_EAGER_SIZE;
	}
	if (r->again < r->again_end)
		add_kept(l, r->again, r->again_end);
	r->again = r->again_end;
	return true;
}

bool tcp_descriptor_room(const struct tcp_link *l)
{
	return l->devmem->descriptors.n < LINK_DESCRIPTORS;
}

void tcp_descriptor_put(struct tcp_link *l, const struct wire_piece *f)
{
	struct tcp_descriptors *d = &l->devmem->descriptors;

	ASSERT_HELD(&l->mu);
	ASSERT(d->n < LINK_DESCRIPTORS);
	wire_frame_encode(&(struct wire_frame){.kind = WIRE_DESCRIPTOR, .piece = *f}, l->session.crc,
			  d->frames[(d->head + d->n) % LINK_DESCRIPTORS]);
	d->n++;
	store_relaxed(&l->tx.pending, 1);
}

/* Headers of pieces that travel without: the first of all, because their payload waits for them. */
static void collect_descriptors(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	struct tcp_descriptors *d = &l->devmem->descriptors;
	struct tcp_control *c = l->control;

	for (; d->n && c->nframes < DESCRIPTORS_PER_BATCH; d->n--) {
		memcpy(c->frames[c->nframes], d->frames[d->head], WIRE_FRAME_SIZE);
		add_iov(c, c->frames[c->nframes++], WIRE_FRAME_SIZE);
		d->head = (d->head + 1) % LINK_DESCRIPTORS;
	}
	if (d->n) /* the rest goes with the next batch */
		store_relaxed(&l->tx.pending, 1);
}

static void collect_error(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	struct tcp_control *c = l->control;
	size_t len = strnlen(l->end.text, WIRE_ERROR_TEXT_MAX);

	l->end.tell = false;
	memcpy(c->text, l->end.text, len);
	add_frame(l, &(struct wire_frame){.kind = WIRE_ERROR,
					  .error = {.result = l->end.error,
						    .length = (uint32_t)len,
						    .payload_crc = l->session.crc ? gantry_crc32c(0, c->text, len) : 0,
						    .sent_bytes = l->end.sent_bytes,
						    .recv_bytes = l->end.recv_bytes}});
	add_iov(c, c->text, len);
}

/* Eager bytes that the last control lane may have lost still wait. */
static bool goes_again(const struct tcp_link *l) REQUIRES(link_mu)
{
	return l->resume && l->resume->again != l->resume->again_end;
}

static void collect_ends(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	if (l->end.tell)
		collect_error(l);
	/* The receiver counts on the header of every message that CLOSE says was sent, and on what goes again. */
	if (l->tx.tell_close && ((!l->devmem->descriptors.n && !goes_again(l)) || tcp_link_failed(l))) {
		l->tx.tell_close = false;
		add_frame(l, &(struct wire_frame){.kind = WIRE_CLOSE, .close = {.bulk_sent = l->tx.bulk_sent}});
	}
	if (l->rx.tell_close) {
		l->rx.tell_close = false;
		add_frame(l, &(struct wire_frame){.kind = WIRE_CLOSE, .close = {.by_receiver = true}});
	}
}

static void collect_coalesced(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	struct tcp_coalesce *o = &l->tx.coalesce;
	struct tcp_control *c = l->control;

	if (!o->bytes)
		return;
	if (l->resume)
		add_kept(l, l->tx.eager_out - o->bytes, l->tx.eager_out);
	else
		add_iov(c, o->buffers[o->now], o->bytes);
	if (o->newest)
		c->batch[c->batch_n++] = o->newest;
	o->newest = NULL;
	o->bytes = o->count = 0;
	o->now ^= 1;
}

/* Queued messages within the peer's window. */
static void collect_eager(struct tcp_link *l) REQUIRES(control_mu, link_mu)
{
	struct tcp_control *c = l->control;
	struct tcp_tx *tx = &l->tx;

	tx->window_blocked = false;
	while (c->batch_n < LINK_BATCH && !gantry_list_empty(&tx->eager)) {
		struct tcp_send *s = gantry_container(tx->eager.next, struct tcp_send, head.node);
		uint64_t bytes = s->size + WIRE_EAGER_SIZE;

		if (tx->eager_out + bytes - tx->peer_consumed > l->session.peer_window) {
			tx->window_blocked = true;
			return;
		}
		tx->eager_out += bytes;
		gantry_list_remove(&s->head.node);
		tcp_trace_eager(l, GANTRY_EV_CHUNK_TX, s->tag, s->index, s->size);
		if (l->resume && s->size <= RESUME_COPY_MAX) {
			tcp_resume_keep(l, tx->eager_out - bytes, s->header, WIRE_EAGER_SIZE);
			tcp_resume_keep(l, tx->eager_out - s->size, s->data, s->size);
			add_kept(l, tx->eager_out - bytes, tx->eager_out);
			c->batch[c->batch_n++] = s;
			continue;
		}
		if (l->resume)
			tcp_resume_hold(l, s, tx->eager_out - bytes);
		add_message(l, s);
	}
	if (!gantry_list_empty(&tx->eager))
		store_relaxed(&tx->pending, 1);
}

/* What goes out next. False: nothing. */
static bool collect_batch(struct tcp_link *l) REQUIRES(control_mu) EXCLUDES(link_mu)
{
	struct tcp_control *c = l->control;

	ASSERT(c->iov_at == c->iov_n);
	link_mu_lock(&l->mu);
	c->iov_at = c->iov_n = c->batch_n = c->nframes = 0;
	store_relaxed(&l->tx.pending, 0);
	if (!tcp_link_failed(l)) {
		collect_descriptors(l);
		collect_state(l);
		collect_rts(l);
		collect_arrived(l);
		if (l->resume)
			collect_stopped(l);
		if (!l->resume || collect_again(l)) {
			collect_coalesced(l);
			collect_eager(l);
		}
	}
	collect_ends(l);
	link_mu_unlock(&l->mu);
	if (l->session.sealed && c->iov_n > 0 && !tcp_control_seal(l)) {
		c->iov_at = c->iov_n = 0;
		errno = ENOMEM;
		tcp_lane_lost(&l->lanes[0]);
	}
	return c->iov_n > 0;
}

/* The memory of its messages is not read any more. */
void tcp_batch_ended(struct tcp_link *l)
{
	struct tcp_control *c = l->control;

	for (int i = 0; i < c->batch_n; i++) {
		if (c->batch[i]->held)
			store_relaxed(&c->batch[i]->held_since, gantry_ticks() | 1);
		else
			tcp_request_done(&c->batch[i]->head);
	}
	c->batch_n = 0;
	if (l->resume)
		tcp_resume_release(l);
}

static void end_batch(struct tcp_link *l) REQUIRES(control_mu) EXCLUDES(link_mu)
{
	link_mu_lock(&l->mu);
	tcp_batch_ended(l);
	link_mu_unlock(&l->mu);
}

void tcp_control_advance(struct tcp_control *c, size_t n)
{
	while (c->iov_at < c->iov_n && n >= c->iov[c->iov_at].iov_len)
		n -= c->iov[c->iov_at++].iov_len;
	if (c->iov_at < c->iov_n) {
		c->iov[c->iov_at].iov_base = (uint8_t *)c->iov[c->iov_at].iov_base + n;
		c->iov[c->iov_at].iov_len -= n;
	}
}

/* What is left of the batch, in one call; a little of it from one buffer, which costs the kernel less than several. */
static ssize_t push_batch(struct tcp_io *io, struct tcp_control *c)
{
	size_t bytes = 0;

	for (int i = c->iov_at; i < c->iov_n; bytes += c->iov[i++].iov_len)
		if (c->iov[i].iov_len > LINK_GATHER - bytes)
			return io->ops->send(io, c->iov + c->iov_at, c->iov_n - c->iov_at, 0);
	bytes = 0;
	for (int i = c->iov_at; i < c->iov_n; bytes += c->iov[i++].iov_len)
		memcpy(c->together + bytes, c->iov[i].iov_base, c->iov[i].iov_len);
	return io->ops->send(io, &(struct iovec){c->together, bytes}, 1, 0);
}

/* The batch to the socket. False: it is full, or lost. */
static bool send_batch(struct tcp_link *l) REQUIRES(control_mu)
{
	struct tcp_lane *lane = &l->lanes[0];
	struct tcp_control *c = l->control;

	while (c->iov_at < c->iov_n) {
		ssize_t n = push_batch(&lane->io, c);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			if (errno == EAGAIN)
				tcp_spread_blocked(l);
			else if (!tcp_io_is_later(errno))
				tcp_lane_lost(lane);
			return false;
		}
		store_relaxed(&lane->tx.bytes, lane->tx.bytes + (uint64_t)n);
		store_relaxed(&l->last.told, gantry_ticks());
		tcp_control_advance(c, (size_t)n);
	}
	return true;
}

/* Batches until nothing waits. False: the socket is full. */
static bool flush_batches(struct tcp_link *l) REQUIRES(control_mu)
{
	do {
		if (l->control->iov_at == l->control->iov_n && !collect_batch(l))
			break;
		if (!send_batch(l)) {
			store_relaxed(&l->tx.pending, 1);
			return false;
		}
		end_batch(l);
	} while (load_relaxed(&l->tx.pending));
	return true;
}

void tcp_control_flush(struct tcp_link *l)
{
	bool more;

	do {
		if (load_relaxed(&l->lanes[0].tx.dead) || !control_mu_trylock(&l->control_mu))
			return; /* the holder takes what waits, or the next test does */
		more = !load_relaxed(&l->lanes[0].tx.dead) && flush_batches(l); /* it may have been stopped meanwhile */
		control_mu_unlock(&l->control_mu);
		/*
		 * A thread that set the hint and then failed to get the lock relies on its holder. A read-modify-write
		 * here and the lock's own ordering there: either that thread got the lock, or we see its hint.
		 */
	} while (more && fetch_or_seq(&l->tx.pending, 0));
	if (load_relaxed(&l->rx.peer_closed))
		tcp_link_hang_up(l);
}

bool tcp_control_idle(struct tcp_link *l)
{
	bool idle;

	if (load_relaxed(&l->lanes[0].tx.dead))
		return true;
	if (!control_mu_trylock(&l->control_mu))
		return false;
	link_mu_lock(&l->mu);
	idle = l->control->iov_at == l->control->iov_n && !l->tx.coalesce.bytes && !l->end.tell && !l->tx.tell_close &&
	       !l->rx.tell_close;
	link_mu_unlock(&l->mu);
	control_mu_unlock(&l->control_mu);
	return idle;
}
