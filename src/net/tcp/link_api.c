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

static void encode_eager(const struct tcp_link *l, struct tcp_send *s)
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
	wire_frame_encode(&f, s->header);
}

gantry_result tcp_link_isend(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request)
{
	struct tcp_send *s;
	struct tcp_tag *t;
	int flush = 0;

	if (tcp_link_failed(l))
		return tcp_link_error(l);
	pthread_mutex_lock(&l->mu);
	s = gantry_pool_get(&l->sends);
	t = s ? tcp_tag_of(&l->tx_tags, (uint32_t)tag) : NULL;
	if (!t) {
		if (s)
			gantry_pool_put(&l->sends, s);
		pthread_mutex_unlock(&l->mu);
		*ret_request = NULL;
		return GANTRY_OK;
	}
	s->head.kind = TCP_SEND;
	s->head.link = l;
	s->head.state = TCP_PENDING;
	s->data = data;
	s->size = size;
	s->tag = (uint32_t)tag;
	s->index = t->posted++;
	s->next = s->sent = 0;
	s->needs_ack = s->announced = 0;
	s->eager = size <= l->eager_max;
	if (s->eager) {
		encode_eager(l, s);
		gantry_list_append(&l->eager, &s->head.node);
		__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
		/*
		 * A lone message leaves at once. When messages come in streams the next one is posted right
		 * behind, and test sends them together: one system call for many.
		 */
		flush = l->last_batch <= 1;
	} else {
		s->seq = l->next_seq++;
		gantry_list_append(&l->bulk, &s->head.node);
		__atomic_fetch_add(&l->bulk_pending, 1, __ATOMIC_RELAXED);
	}
	gantry_event_put(GANTRY_EV_SEND_POST, l->id, s->index, size);
	pthread_mutex_unlock(&l->mu);
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
	__atomic_fetch_sub(recv->large ? &l->large_posted : &l->small_posted, 1, __ATOMIC_RELAXED);
	recv->head.state = TCP_FREE;
	gantry_pool_put(&l->recvs, recv);
}

gantry_result tcp_link_irecv(struct tcp_link *l, int n, void **data, const size_t *sizes, const int *tags,
			     void **ret_request)
{
	struct tcp_recv *recv;
	int due = 0, large = 0, gone = tcp_link_failed(l);

	if (gone && (l->error != GANTRY_ERR_PEER_CLOSED || gantry_list_empty(&l->early)))
		return tcp_link_error(l);
	pthread_mutex_lock(&l->mu);
	recv = gantry_pool_get(&l->recvs);
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
	for (int i = 0; i < n; i++)
		large |= sizes[i] > l->eager_max;
	recv->large = large;
	__atomic_fetch_add(recv->large ? &l->large_posted : &l->small_posted, 1, __ATOMIC_RELAXED);
	gantry_list_append(&l->posted, &recv->head.node);
	for (int i = 0; i < n; i++) {
		struct tcp_tag *t = tcp_tag_of(&l->rx_tags, (uint32_t)tags[i]);
		struct tcp_slot *slot = &recv->slots[i];

		*slot = (struct tcp_slot){.data = data[i], .size = sizes[i], .tag = t->tag, .index = t->posted++};
		due |= tcp_state_due(l, t);
	}
	gantry_event_put(GANTRY_EV_RECV_POST, l->id, recv->slots[0].index, recv->slots[0].size);
	for (int i = 0; i < n && !gantry_list_empty(&l->early); i++)
		tcp_match_early(l, recv, &recv->slots[i]);
	if (gone && recv->ncomplete < n) {
		/* The peer is gone, and what it had sent before does not fill this receive. */
		unpost(l, recv);
		pthread_mutex_unlock(&l->mu);
		return tcp_link_error(l);
	}
	due |= l->consumed - l->consumed_told >= LINK_WINDOW / 4;
	if (due)
		__atomic_store_n(&l->tx_pending, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&l->mu);
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

gantry_result tcp_link_test(struct tcp_request *req, int *ret_done, int *sizes)
{
	struct tcp_link *l = req->link;

	if (__atomic_load_n(&req->state, __ATOMIC_ACQUIRE) != TCP_DONE) {
		tcp_link_progress(l);
		if (__atomic_load_n(&req->state, __ATOMIC_ACQUIRE) != TCP_DONE) {
			if (tcp_link_failed(l))
				return tcp_link_error(l);
			*ret_done = 0;
			return GANTRY_OK;
		}
	}
	pthread_mutex_lock(&l->mu);
	if (req->kind == TCP_SEND) {
		struct tcp_send *s = gantry_container(req, struct tcp_send, head);

		if (sizes)
			sizes[0] = reported(s->size);
		req->state = TCP_FREE;
		gantry_pool_put(&l->sends, s);
	} else {
		struct tcp_recv *recv = gantry_container(req, struct tcp_recv, head);

		for (int i = 0; sizes && i < recv->n; i++)
			sizes[i] = reported(recv->slots[i].total);
		req->state = TCP_FREE;
		gantry_pool_put(&l->recvs, recv);
	}
	pthread_mutex_unlock(&l->mu);
	*ret_done = 1;
	return GANTRY_OK;
}
