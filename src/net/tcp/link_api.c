/* Posting and testing requests. */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <limits.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/event.h"
#include "base/log.h"
#include "net/tcp/helper.h"
#include "net/tcp/link.h"

enum { STAGE_PACES = 4 };

static void encode_eager(const struct tcp_link *l, const struct tcp_send *s, uint8_t header[WIRE_FRAME_SIZE])
{
	struct wire_frame f = {
		.kind = WIRE_DATA,
		.flags = WIRE_FLAG_EAGER,
		.length = (uint32_t)s->size,
		.total = s->size,
		.tag = s->tag,
		.index = s->index,
	};

	if (l->crc) {
		f.flags |= WIRE_FLAG_CRC;
		f.crc = gantry_crc32c(0, s->data, s->size);
	}
	wire_frame_encode(&f, header);
}

/* Copies a message to the staging buffer; the one before it is done. 0: it must wait its turn in the queue. */
static int stage(struct tcp_link *l, struct tcp_send *s)
{
	uint32_t bytes = (uint32_t)s->size + WIRE_FRAME_SIZE;
	uint8_t *at = l->stage[l->stage_now] + l->stage_bytes;

	if (s->size > LINK_STAGE_MESSAGE || l->stage_bytes + bytes > LINK_STAGE || !gantry_list_empty(&l->eager) ||
	    l->eager_out + bytes - l->peer_consumed > l->peer_window)
		return 0;
	encode_eager(l, s, at);
	if (s->size)
		memcpy(at + WIRE_FRAME_SIZE, s->data, s->size);
	if (!l->stage_count++)
		l->stage_since = gantry_ticks();
	l->stage_bytes += bytes;
	l->eager_out += bytes;
	if (l->newest)
		tcp_request_done(&l->newest->head);
	l->newest = s;
	return 1;
}

/* Under mu. 1: the control lane should be flushed now. */
static int post_eager(struct tcp_link *l, struct tcp_send *s)
{
	int alone = l->sends.nfree + 1 == l->sends.count;

	__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
	if (!alone && stage(l, s))
		return l->stage_bytes > LINK_STAGE / 2 || gantry_ticks() - l->stage_since > STAGE_PACES * l->pace_ticks;
	encode_eager(l, s, s->header);
	gantry_list_append(&l->eager, &s->head.node);
	return alone || l->stage_bytes;
}

gantry_result tcp_link_isend(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request)
{
	/* The pool belongs to the thread that posts and tests: no lock. */
	struct tcp_send *s;
	struct tcp_tag *t;
	gantry_result r = tcp_link_status(l, &l->tx_end);
	int flush = 0;

	if (r != GANTRY_OK)
		return r;
	s = gantry_pool_get(&l->sends);
	if (!s) {
		*ret_request = NULL;
		return GANTRY_OK;
	}
	s->head.kind = TCP_SEND;
	s->head.link = l;
	s->head.state = TCP_PENDING;
	s->data = data;
	s->size = size;
	s->tag = (uint32_t)tag;
	s->next = s->sent = 0;
	s->needs_ack = s->announced = 0;
	s->blocked = 0;
	s->eager = size <= l->eager_max;
	pthread_mutex_lock(&l->mu);
	t = tcp_tag_of(&l->tx_tags, (uint32_t)tag);
	if (!t) {
		pthread_mutex_unlock(&l->mu);
		s->head.state = TCP_FREE;
		gantry_pool_put(&l->sends, s);
		*ret_request = NULL;
		return GANTRY_OK;
	}
	s->index = t->posted++;
	/* In a run of bulk messages the receiver says by itself what it posts; the first of them has to ask. */
	s->announce = !t->bulk;
	t->bulk = !s->eager;
	if (s->eager) {
		flush = post_eager(l, s);
	} else {
		s->seq = l->next_seq++;
		gantry_list_append(&l->bulk, &s->head.node);
		l->bulk_bytes += size;
		__atomic_fetch_add(&l->bulk_pending, 1, __ATOMIC_RELAXED);
		gantry_event_put(GANTRY_EV_SEND_POST, l->id, s->index, size);
	}
	pthread_mutex_unlock(&l->mu);
	LOG_TRACE(DATA, "link %u isend %u of tag %u: %zu bytes%s", l->id, s->index, s->tag, size,
		  s->eager ? "" : ", bulk");
	if (flush)
		tcp_control_flush(l);
	else if (!s->eager)
		tcp_helpers_notify();
	*ret_request = &s->head;
	return GANTRY_OK;
}

static void unpost(struct tcp_link *l, struct tcp_recv *recv)
{
	gantry_list_remove(&recv->head.node);
	tcp_count_posted(l, recv, -1);
	recv->head.state = TCP_FREE;
	gantry_pool_put(&l->recvs, recv);
}

gantry_result tcp_link_irecv(struct tcp_link *l, int n, void **data, const size_t *sizes, const int *tags,
			     void **ret_request)
{
	struct tcp_recv *recv;
	/* What the peer had sent before it left can still be received. */
	gantry_result gone = tcp_link_status(l, &l->rx_end);
	int due = 0, large = 0;

	recv = gantry_pool_get(&l->recvs); /* as for sends: the posting thread's own */
	pthread_mutex_lock(&l->mu);
	for (int i = 0; recv && i < n; i++) {
		/* Makes room for new tags before anything is posted, so that posting cannot fail half-way. */
		if (!tcp_tag_of(&l->rx_tags, (uint32_t)tags[i])) {
			gantry_pool_put(&l->recvs, recv);
			recv = NULL;
		}
	}
	if (!recv) {
		pthread_mutex_unlock(&l->mu);
		*ret_request = NULL;
		return GANTRY_OK;
	}
	recv->head.kind = TCP_RECV;
	recv->head.link = l;
	recv->head.state = TCP_PENDING;
	recv->n = n;
	recv->ncomplete = 0;
	/* NCCL's buffers are large whatever it sends: what came last tells what to expect. */
	for (int i = 0; i < n; i++)
		large |= sizes[i] > l->eager_max && tcp_tag_of(&l->rx_tags, (uint32_t)tags[i])->bulk;
	recv->large = large;
	tcp_count_posted(l, recv, 1);
	gantry_list_append(&l->posted, &recv->head.node);
	for (int i = 0; i < n; i++) {
		struct tcp_tag *t = tcp_tag_of(&l->rx_tags, (uint32_t)tags[i]);
		struct tcp_slot *slot = &recv->slots[i];

		*slot = (struct tcp_slot){.data = data[i], .size = sizes[i], .tag = t->tag, .index = t->posted++};
		due |= tcp_state_due(l, t);
	}
	if (large)
		gantry_event_put(GANTRY_EV_RECV_POST, l->id, recv->slots[0].index, recv->slots[0].size);
	for (int i = 0; i < n && !gantry_list_empty(&l->early); i++)
		tcp_match_early(l, recv, &recv->slots[i]);
	if (gone != GANTRY_OK && recv->ncomplete < n) {
		unpost(l, recv);
		pthread_mutex_unlock(&l->mu);
		return gone;
	}
	due |= l->consumed - l->consumed_told >= LINK_WINDOW / 4;
	if (due)
		__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&l->mu);
	LOG_TRACE(DATA, "link %u irecv %u of tag %d: %zu bytes, %d buffers", l->id, recv->slots[0].index, tags[0],
		  sizes[0], n);
	if (due)
		tcp_control_flush(l);
	if (large)
		tcp_helpers_notify();
	*ret_request = &recv->head;
	return GANTRY_OK;
}

/* The interface reports sizes as int, also for messages beyond 2 GiB. */
static int reported(uint64_t size)
{
	return size > INT_MAX ? INT_MAX : (int)size;
}

/*
 * The peer may have received, acknowledged and closed while a helper has not yet noted down that the last piece is out.
 * Whoever holds a lane's lock finishes his notes before he lets go.
 */
static int completed_meanwhile(struct tcp_request *req)
{
	for (int i = 0; req->kind == TCP_SEND && i < req->link->nlanes; i++) {
		pthread_mutex_lock(&req->link->lanes[i].tx.lock);
		pthread_mutex_unlock(&req->link->lanes[i].tx.lock);
	}
	return __atomic_load_n(&req->state, __ATOMIC_ACQUIRE) == TCP_DONE;
}

gantry_result tcp_link_test(struct tcp_request *req, int *ret_done, int *sizes)
{
	struct tcp_link *l = req->link;

	if (__atomic_load_n(&req->state, __ATOMIC_ACQUIRE) != TCP_DONE) {
		tcp_link_progress(l);
		if (__atomic_load_n(&req->state, __ATOMIC_ACQUIRE) != TCP_DONE) {
			gantry_result r = tcp_link_status(l, req->kind == TCP_SEND ? &l->tx_end : &l->rx_end);

			if (r == GANTRY_OK || !completed_meanwhile(req)) {
				*ret_done = 0;
				return r;
			}
		}
	}
	LOG_TRACE(DATA, "link %u %s done", l->id, req->kind == TCP_SEND ? "send" : "receive");
	req->state = TCP_FREE;
	if (req->kind == TCP_SEND) {
		struct tcp_send *s = gantry_container(req, struct tcp_send, head);

		if (sizes)
			sizes[0] = reported(s->size);
		gantry_pool_put(&l->sends, s);
	} else {
		struct tcp_recv *recv = gantry_container(req, struct tcp_recv, head);

		for (int i = 0; sizes && i < recv->n; i++)
			sizes[i] = reported(recv->slots[i].total);
		gantry_pool_put(&l->recvs, recv);
	}
	*ret_done = 1;
	return GANTRY_OK;
}
