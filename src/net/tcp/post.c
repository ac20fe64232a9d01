/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a user does with a link: posts sends and receives, and tests requests.
 *
 * A message leaves in one of four ways, a table of its own each (link.h): eager, at once and by itself; coalesced with
 * other small ones of a stream; in bulk, which waits for its receive and goes over the bulk lanes in pieces; and, from
 * device memory, staged (stage.c): copied to pinned memory first, then in one of the other ways.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <limits.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "base/trace.h"
#include "net/tcp/link.h"
#include "net/tcp/stage.h"
#include "net/tcp/worker.h"

enum { COALESCE_PACES = 4 };

/* ---- how messages leave ---- */

static void encode_eager(const struct tcp_link *l, const struct tcp_send *s, uint8_t header[WIRE_EAGER_SIZE])
{
	struct wire_piece f = {.length = (uint32_t)s->size, .tag = s->tag, .index = s->index};

	if (l->session.crc)
		f.payload_crc = gantry_crc32c(0, s->data, s->size);
	wire_eager_encode(&f, l->session.crc, header);
}

void tcp_send_queue_eager(struct tcp_link *l, struct tcp_send *s)
{
	ASSERT_HELD(&l->mu);
	store_relaxed(&l->tx.pending, 1);
	encode_eager(l, s, s->header);
	gantry_list_append(&l->tx.eager, &s->head.node);
}

/* By itself; if others are in flight, behind them. */
static enum tcp_wake post_eager(struct tcp_link *l, struct tcp_send *s) REQUIRES(link_mu)
{
	bool alone = l->sends->nfree + 1 == l->sends->count;

	tcp_send_queue_eager(l, s);
	return alone || l->tx.coalesce.bytes ? TCP_WAKE_CONTROL : TCP_WAKE_NOBODY;
}

static const struct tcp_leave_ops tcp_leave_eager = {.trace = "", .post = post_eager};

/* Others are in flight, and it may overtake none that waits: only then is a copy worth it. */
static bool is_coalesced(const struct tcp_link *l, const struct tcp_send *s) REQUIRES(link_mu)
{
	const struct tcp_tx *tx = &l->tx;
	uint32_t bytes = (uint32_t)s->size + WIRE_EAGER_SIZE;

	return l->sends->nfree + 1 != l->sends->count && s->size <= LINK_COALESCE_MESSAGE &&
	       tx->coalesce.bytes + bytes <= LINK_COALESCE && gantry_list_empty(&tx->eager) &&
	       tx->eager_out + bytes - tx->peer_consumed <= l->session.peer_window;
}

/* Copied behind the others of the stream; the one before it is done. */
static enum tcp_wake post_coalesced(struct tcp_link *l, struct tcp_send *s) REQUIRES(link_mu)
{
	struct tcp_coalesce *c = &l->tx.coalesce;
	uint32_t bytes = (uint32_t)s->size + WIRE_EAGER_SIZE;
	uint8_t *at = c->buffers[c->now] + c->bytes;

	ASSERT_HELD(&l->mu);
	ASSERT(c->bytes + bytes <= LINK_COALESCE); /* is_coalesced */
	store_relaxed(&l->tx.pending, 1);
	if (l->resume) { /* they are kept, and sent from there */
		encode_eager(l, s, s->header);
		tcp_resume_keep(l, l->tx.eager_out, s->header, WIRE_EAGER_SIZE);
		tcp_resume_keep(l, l->tx.eager_out + WIRE_EAGER_SIZE, s->data, s->size);
	} else {
		encode_eager(l, s, at);
		if (s->size)
			memcpy(at + WIRE_EAGER_SIZE, s->data, s->size);
	}
	if (!c->count++)
		c->since = gantry_ticks();
	c->bytes += bytes;
	l->tx.eager_out += bytes;
	tcp_trace_eager(l, GANTRY_EV_CHUNK_TX, s->tag, s->index, s->size);
	if (c->newest)
		tcp_request_done(&c->newest->head);
	c->newest = s;
	return c->bytes > LINK_COALESCE / 2 || gantry_ticks() - c->since > COALESCE_PACES * l->session.pace_ticks
		       ? TCP_WAKE_CONTROL
		       : TCP_WAKE_NOBODY;
}

static const struct tcp_leave_ops tcp_leave_coalesced = {.trace = "", .post = post_coalesced};

static enum tcp_wake post_bulk(struct tcp_link *l, struct tcp_send *s) REQUIRES(link_mu)
{
	ASSERT_HELD(&l->mu);
	ASSERT(!s->next && !s->sent);
	gantry_list_append(&l->tx.bulk, &s->head.node);
	store_relaxed(&l->tx.bulk_bytes, l->tx.bulk_bytes + s->size);
	return TCP_WAKE_WORKERS;
}

const struct tcp_leave_ops tcp_leave_bulk = {.trace = ", bulk", .post = post_bulk};

static const struct tcp_leave_ops *choose_leave(const struct tcp_link *l, const struct tcp_send *s) REQUIRES(link_mu)
{
	if (!s->eager)
		return &tcp_leave_bulk;
	return is_coalesced(l, s) ? &tcp_leave_coalesced : &tcp_leave_eager;
}

/* ---- sends ---- */

/* The pool belongs to the thread that posts and tests: no lock. */
struct tcp_send *tcp_send_take(struct tcp_link *l, const void *data, size_t size, int tag)
{
	struct tcp_send *s = gantry_pool_get(l->sends);

	if (!s)
		return NULL;
	s->head.kind = TCP_SEND;
	s->head.link = l;
	s->head.state = TCP_PENDING;
	s->data = data;
	s->vec.n = 0;
	s->spread = false;
	s->size = size;
	s->tag = (uint32_t)tag;
	s->next = s->sent = 0;
	s->needs_ack = s->rts_sent = false;
	s->blocked = s->held_since = 0;
	s->held = false;
	s->event = NULL;
	s->block = NULL;
	s->push = NULL;
	s->txmem = NULL;
	s->eager = size <= l->session.eager_max;
	return s;
}

void tcp_send_drop(struct tcp_link *l, struct tcp_send *s)
{
	ASSERT(s->head.kind == TCP_SEND && s->head.link == l);
	s->head.state = TCP_FREE;
	if (s->block)
		tcp_stage_return(l, s);
	gantry_pool_put(l->sends, s);
}

/*
 * A message that is the only one gains from being eager even if it is large: no request, no credit, no acknowledgement,
 * one copy more, which nothing else waits for. In a stream that copy is dear, so several in a row must have been alone;
 * and since an eager one is done when the kernel has it, the peer must have consumed all but the last. Workers copy beside
 * the user's thread: where there are some, large messages are theirs.
 */
static bool goes_at_once(const struct tcp_link *l, const struct tcp_send *s, struct tcp_tag *t) REQUIRES(link_mu)
{
	const struct tcp_tx *tx = &l->tx;

	t->alone = l->sends->nfree + 1 == l->sends->count ? t->alone + 1 : 0;
	if (s->size > (t->haste == TCP_HASTE_USUAL ? l->session.lone_max : l->session.hasty_max))
		return false;
	return t->haste == TCP_HASTE_MUCH ||
	       (t->alone >= LINK_LONE_RUN && tx->eager_out - tx->peer_consumed <= s->size + WIRE_EAGER_SIZE);
}

/* Which message of its tag, and which bulk message, it is. */
static void number_send(struct tcp_link *l, struct tcp_send *s, struct tcp_tag *t) REQUIRES(link_mu)
{
	bool small = s->eager;

	ASSERT_HELD(&l->mu);
	s->index = t->posted++;
	if ((t->haste == TCP_HASTE_NONE || s->vec.n) && s->size)
		s->eager = false;
	else if (small)
		s->eager = !tcp_spread_takes(l, s, t);
	else
		s->eager = goes_at_once(l, s, t) && !s->push && !s->txmem && !s->block && !tcp_workers_exist();
	/* In a run of bulk messages the receiver says by itself what it posts; the first of them has to ask, and a
	 * small one, which the receiver does not expect to be one of them. */
	s->rts_wanted = !t->bulk || small;
	tcp_tag_expect(t, s->eager, s->size > l->session.eager_max);
	if (!s->eager || gantry_trace_on())
		gantry_event_put(GANTRY_EV_SEND_POST, l->session.id, GANTRY_EV_MSG(s->tag, s->index), s->size);
	if (s->eager)
		return;
	s->seq = l->tx.next_seq++;
	if (!fetch_add_relaxed(&l->tx.bulk_pending, 1))
		store_relaxed(&l->last.bulk_moved, gantry_ticks());
}

/* Does not send yet: *ret_wake says what has to be done for that. */
static void post_send(struct tcp_link *l, struct tcp_send *s, const struct tcp_leave_ops *how, enum tcp_wake *ret_wake,
		      void **ret_request)
{
	struct tcp_tag *t;

	if (s->eager)
		tcp_spread_look(l);
	link_mu_lock(&l->mu);
	t = tcp_tag_of(&l->tx.tags, s->tag);
	if (t) {
		number_send(l, s, t);
		if (!how)
			how = choose_leave(l, s);
		*ret_wake = how->post(l, s);
	}
	link_mu_unlock(&l->mu);
	if (!t) {
		tcp_send_drop(l, s);
		*ret_request = NULL;
		return;
	}
	LOG_TRACE(DATA, "link %u isend %u of tag %u: %llu bytes%s", l->session.id, s->index, s->tag,
		  (unsigned long long)s->size, how->trace);
	*ret_request = &s->head;
}

static void wake_senders(struct tcp_link *l, uint32_t wakes)
{
	if (wakes & 1u << TCP_WAKE_CONTROL)
		tcp_control_flush(l);
	if (wakes & 1u << TCP_WAKE_WORKERS)
		tcp_workers_notify();
}

gantry_result tcp_send_post(struct tcp_link *l, struct tcp_send *s, const struct tcp_leave_ops *how, void **ret_request)
{
	enum tcp_wake wake = TCP_WAKE_NOBODY;

	post_send(l, s, how, &wake, ret_request);
	wake_senders(l, 1u << wake);
	return GANTRY_OK;
}

gantry_result tcp_link_isend(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request)
{
	gantry_result r = tcp_link_status(l, &l->tx.end);
	struct tcp_send *s;

	if (r != GANTRY_OK)
		return r;
	*ret_request = NULL;
	s = tcp_send_take(l, data, size, tag);
	return s ? tcp_send_post(l, s, NULL, ret_request) : GANTRY_OK;
}

gantry_result tcp_link_isends(struct tcp_link *l, uint32_t n, void *const *data, const size_t *sizes, int tag,
			      void **ret_requests)
{
	gantry_result r = tcp_link_status(l, &l->tx.end);
	struct tcp_send *s;
	uint32_t wakes = 0; /* bits: 1 << enum tcp_wake */

	if (r != GANTRY_OK)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		enum tcp_wake wake = TCP_WAKE_NOBODY;

		ret_requests[i] = NULL;
		s = i && !ret_requests[i - 1] ? NULL : tcp_send_take(l, data[i], sizes[i], tag);
		if (s)
			post_send(l, s, NULL, &wake, &ret_requests[i]);
		wakes |= 1u << wake;
	}
	wake_senders(l, wakes);
	return GANTRY_OK;
}

gantry_result tcp_link_isend_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n, int tag, void **ret_request)
{
	struct tcp_vec vec = {iov, n};
	gantry_result r = tcp_link_status(l, &l->tx.end);
	struct tcp_send *s;

	if (r != GANTRY_OK)
		return r;
	*ret_request = NULL;
	s = tcp_send_take(l, NULL, tcp_vec_bytes(&vec), tag);
	if (!s)
		return GANTRY_OK;
	s->vec = vec;
	s->at = (struct tcp_vec_at){0, 0};
	return tcp_send_post(l, s, NULL, ret_request);
}

static gantry_result set_haste(struct tcp_link *l, bool send, int tag, enum tcp_haste haste)
{
	struct tcp_tag *t;

	link_mu_lock(&l->mu);
	t = tcp_tag_of(send ? &l->tx.tags : &l->rx.tags, (uint32_t)tag);
	if (t)
		t->haste = haste;
	link_mu_unlock(&l->mu);
	return t ? GANTRY_OK
		 : gantry_fail(GANTRY_ERR_NOMEM, LOG_SUBSYS, __FILE__, __LINE__, "no memory for tag %d", tag);
}

gantry_result tcp_link_hold(struct tcp_link *l, bool send, int tag)
{
	return set_haste(l, send, tag, TCP_HASTE_NONE);
}

gantry_result tcp_link_hasten(struct tcp_link *l, int tag, int alone)
{
	return set_haste(l, true, tag, alone ? TCP_HASTE_ALONE : TCP_HASTE_MUCH);
}

/* ---- receives ---- */

struct tcp_recv *tcp_recv_take(struct tcp_link *l)
{
	struct tcp_recv *recv = gantry_pool_get(l->recvs); /* as for sends: the posting thread's own */

	if (recv) {
		recv->sink = NULL;
		recv->unpack = NULL;
		recv->vec.n = 0;
	}
	return recv;
}

/* To where it was taken from. */
static void put_recv(struct tcp_link *l, struct tcp_recv *recv, bool tested)
{
	ASSERT(recv->head.kind == TCP_RECV && recv->head.link == l);
	recv->head.state = TCP_FREE;
	if (recv->sink)
		recv->sink->release(l, recv, tested);
	else
		gantry_pool_put(l->recvs, recv);
}

/* Makes room for new tags before anything is posted, so that posting cannot fail half-way. NCCL's buffers are large
 * whatever it sends: what came last tells what to expect. Of a tag whose messages wait for their receives every one is bulk. */
static bool has_tags(struct tcp_link *l, struct tcp_recv *recv, const size_t *sizes, const int *tags) REQUIRES(link_mu)
{
	recv->large = false;
	for (int i = 0; i < recv->n; i++) {
		const struct tcp_tag *t = tcp_tag_of(&l->rx.tags, (uint32_t)tags[i]);

		if (!t)
			return false;
		recv->large |= t->haste == TCP_HASTE_NONE || (t->bulk && sizes[i] > l->session.eager_max);
	}
	return true;
}

/* When new receives are advertised to the sender: in the next test, because more of them are likely to be posted before
 * it; or now, because the sender has no credit left. */
enum tell { TELL_NOTHING, TELL_SOON, TELL_NOW };

static bool is_starved(const struct tcp_tag *t)
{
	return (int32_t)(t->rts - t->credit) > 0 || (int32_t)(t->credit - t->arrived) <= 0;
}

/* Its buffers get their numbers, and what came for them already. */
static enum tell queue_recv(struct tcp_link *l, struct tcp_recv *recv, void **data, const size_t *sizes,
			    const int *tags) REQUIRES(link_mu)
{
	enum tell tell = TELL_NOTHING;

	ASSERT_HELD(&l->mu);
	if (recv->large && !load_relaxed(&l->rx.large_posted))
		store_relaxed(&l->last.bulk_moved, gantry_ticks());
	tcp_count_posted(l, recv, 1);
	gantry_list_append(&l->rx.posted, &recv->head.node);
	for (int i = 0; i < recv->n; i++) {
		struct tcp_tag *t = tcp_tag_of(&l->rx.tags, (uint32_t)tags[i]);

		recv->buffers[i] =
			(struct tcp_buffer){.data = data[i], .size = sizes[i], .tag = t->tag, .index = t->posted++};
		if (!tcp_state_due(l, t))
			continue;
		t->due = true;
		if (tell != TELL_NOW)
			tell = is_starved(t) ? TELL_NOW : TELL_SOON;
	}
	if (recv->large || gantry_trace_on())
		gantry_event_put(GANTRY_EV_RECV_POST, l->session.id,
				 GANTRY_EV_MSG(recv->buffers[0].tag, recv->buffers[0].index), recv->buffers[0].size);
	for (int i = 0; i < recv->n && !gantry_list_empty(&l->rx.unexpected); i++)
		tcp_match_unexpected(l, recv, &recv->buffers[i]);
	return l->rx.consumed - l->rx.consumed_told >= LINK_TELL ? TELL_NOW : tell;
}

gantry_result tcp_recv_post(struct tcp_link *l, struct tcp_recv *recv, int n, void **data, const size_t *sizes,
			    const int *tags, void **ret_request)
{
	/* What the peer had sent before it left can still be received. */
	gantry_result gone = tcp_link_status(l, &l->rx.end);
	enum tell tell = TELL_NOTHING;
	bool posted, large;

	if (!recv) {
		*ret_request = NULL;
		return GANTRY_OK;
	}
	recv->head.kind = TCP_RECV;
	recv->head.link = l;
	recv->head.state = TCP_PENDING;
	recv->n = n;
	recv->ncomplete = 0;
	link_mu_lock(&l->mu);
	posted = has_tags(l, recv, sizes, tags);
	if (posted) {
		tell = queue_recv(l, recv, data, sizes, tags);
		if (gone != GANTRY_OK && recv->ncomplete < n) {
			gantry_list_remove(&recv->head.node);
			tcp_count_posted(l, recv, -1);
			posted = false;
		} else if (tell != TELL_NOTHING) {
			store_relaxed(&l->tx.pending, 1);
		}
	} else {
		gone = GANTRY_OK;
		*ret_request = NULL;
	}
	large = recv->large;
	link_mu_unlock(&l->mu);
	if (!posted) {
		put_recv(l, recv, false);
		return gone;
	}
	LOG_TRACE(DATA, "link %u irecv %u of tag %d: %zu bytes, %d buffers", l->session.id, recv->buffers[0].index,
		  tags[0], sizes[0], n);
	if (tell == TELL_NOW)
		tcp_control_flush(l);
	if (large)
		tcp_workers_notify();
	*ret_request = &recv->head;
	return GANTRY_OK;
}

gantry_result tcp_link_irecv(struct tcp_link *l, int n, void **data, const size_t *sizes, const int *tags,
			     void **ret_request)
{
	return tcp_recv_post(l, tcp_recv_take(l), n, data, sizes, tags, ret_request);
}

gantry_result tcp_link_irecv_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n, int tag, void **ret_request)
{
	struct tcp_recv *recv = tcp_recv_take(l);
	struct tcp_vec vec = {iov, n};
	void *data = NULL;
	size_t size = tcp_vec_bytes(&vec);

	if (recv)
		recv->vec = vec;
	return tcp_recv_post(l, recv, 1, &data, &size, &tag, ret_request);
}

/* ---- test ---- */

/* The interface reports sizes as int, also for messages beyond 2 GiB. */
static int reported_size(uint64_t size)
{
	return size > INT_MAX ? INT_MAX : (int)size;
}

/*
 * The peer may have received, acknowledged and closed while a worker has not yet recorded that the last piece is out.
 * The holder of a lane's lock finishes its records before it releases the lock.
 */
static bool completed_meanwhile(struct tcp_request *req)
{
	struct tcp_link *l = req->link;

	for (int i = 1; req->kind == TCP_SEND && i < l->nlanes; i++) {
		lane_tx_mu_lock(&l->lanes[i].tx.lock);
		lane_tx_mu_unlock(&l->lanes[i].tx.lock);
	}
	if (req->kind == TCP_SEND) {
		control_mu_lock(&l->control_mu);
		control_mu_unlock(&l->control_mu);
	}
	return load_acquire(&req->state) == TCP_DONE;
}

/* All bytes of a receive are here, copies are under way: the peer may be gone, that is no matter any more. */
static bool is_copying(struct tcp_request *req)
{
	struct tcp_recv *recv = gantry_container(req, struct tcp_recv, head);
	bool copying;

	if (req->kind != TCP_RECV || !recv->sink)
		return false;
	link_mu_lock(&req->link->mu);
	copying = recv->sink->is_copying(recv);
	link_mu_unlock(&req->link->mu);
	return copying;
}

/* It is not done yet: GANTRY_OK, or why it never will be. *ret_done: it was meanwhile. */
static gantry_result test_pending(struct tcp_request *req, int *ret_done)
{
	struct tcp_link *l = req->link;
	gantry_result r;

	*ret_done = 0;
	tcp_link_progress(l);
	if (l->resume && req->kind == TCP_SEND)
		tcp_resume_adopt(l, gantry_container(req, struct tcp_send, head));
	if (load_acquire(&req->state) == TCP_DONE) {
		*ret_done = 1;
		return GANTRY_OK;
	}
	r = tcp_link_status(l, req->kind == TCP_SEND ? &l->tx.end : &l->rx.end);
	if (r == GANTRY_OK)
		return r;
	*ret_done = completed_meanwhile(req);
	return *ret_done || is_copying(req) ? GANTRY_OK : r;
}

static void end_send(struct tcp_link *l, struct tcp_send *s, int *sizes)
{
	if (s->eager && gantry_trace_on())
		gantry_event_put(GANTRY_EV_SEND_DONE, l->session.id, GANTRY_EV_MSG(s->tag, s->index), s->size);
	if (sizes)
		sizes[0] = reported_size(s->size);
	tcp_send_drop(l, s);
}

gantry_result tcp_link_test(struct tcp_request *req, int *ret_done, int *sizes)
{
	struct tcp_link *l = req->link;

	if (load_acquire(&req->state) != TCP_DONE) {
		gantry_result r = test_pending(req, ret_done);

		if (r != GANTRY_OK || !*ret_done)
			return r;
	}
	LOG_TRACE(DATA, "link %u %s done", l->session.id, req->kind == TCP_SEND ? "send" : "receive");
	if (req->kind == TCP_SEND) {
		end_send(l, gantry_container(req, struct tcp_send, head), sizes);
	} else {
		struct tcp_recv *recv = gantry_container(req, struct tcp_recv, head);

		for (int i = 0; sizes && i < recv->n; i++)
			sizes[i] = reported_size(recv->buffers[i].total);
		put_recv(l, recv, true);
	}
	*ret_done = 1;
	return GANTRY_OK;
}
