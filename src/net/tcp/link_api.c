/* SPDX-License-Identifier: Apache-2.0 */
/* Posting receives, and testing requests. link_send.c posts sends. */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <limits.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "base/trace.h"
#include "net/tcp/helper.h"
#include "net/tcp/link.h"
#include "net/tcp/stage.h"
#include "net/tcp/unpack.h"

/* To where it was taken from. */
static void put_recv(struct tcp_link *l, struct tcp_recv *recv)
{
	recv->head.state = TCP_FREE;
	if (recv->land)
		tcp_unpack_untake(l, recv);
	else
		gantry_pool_put(&l->rx.recvs, recv);
}

static void unpost(struct tcp_link *l, struct tcp_recv *recv)
{
	gantry_list_remove(&recv->head.node);
	tcp_count_posted(l, recv, -1);
	put_recv(l, recv);
}

/* recv NULL: none is free now. */
static gantry_result post(struct tcp_link *l, struct tcp_recv *recv, int n, void **data, const size_t *sizes,
			  const int *tags, void **ret_request)
{
	/* What the peer had sent before it left can still be received. */
	gantry_result gone = tcp_link_status(l, &l->rx.end);
	int due = 0, large = 0;

	pthread_mutex_lock(&l->mu);
	for (int i = 0; recv && i < n; i++) {
		/* Makes room for new tags before anything is posted, so that posting cannot fail half-way. */
		if (!tcp_tag_of(&l->rx.tags, (uint32_t)tags[i])) {
			put_recv(l, recv);
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
		large |= sizes[i] > l->session.eager_max && tcp_tag_of(&l->rx.tags, (uint32_t)tags[i])->bulk;
	recv->large = large;
	tcp_count_posted(l, recv, 1);
	gantry_list_append(&l->rx.posted, &recv->head.node);
	for (int i = 0; i < n; i++) {
		struct tcp_tag *t = tcp_tag_of(&l->rx.tags, (uint32_t)tags[i]);
		struct tcp_slot *slot = &recv->slots[i];

		*slot = (struct tcp_slot){.data = data[i], .size = sizes[i], .tag = t->tag, .index = t->posted++};
		due |= tcp_state_due(l, t);
	}
	if (large || gantry_trace_on())
		gantry_event_put(GANTRY_EV_RECV_POST, l->session.id,
				 GANTRY_EV_MSG(recv->slots[0].tag, recv->slots[0].index), recv->slots[0].size);
	for (int i = 0; i < n && !gantry_list_empty(&l->rx.unexpected); i++)
		tcp_match_early(l, recv, &recv->slots[i]);
	if (gone != GANTRY_OK && recv->ncomplete < n) {
		unpost(l, recv);
		pthread_mutex_unlock(&l->mu);
		return gone;
	}
	due |= l->rx.consumed - l->rx.consumed_told >= LINK_WINDOW / 4;
	if (due)
		store_relaxed(&l->tx.pending, 1);
	pthread_mutex_unlock(&l->mu);
	LOG_TRACE(DATA, "link %u irecv %u of tag %d: %zu bytes, %d buffers", l->session.id, recv->slots[0].index,
		  tags[0], sizes[0], n);
	if (due)
		tcp_control_flush(l);
	if (large)
		tcp_helpers_notify();
	*ret_request = &recv->head;
	return GANTRY_OK;
}

gantry_result tcp_link_irecv(struct tcp_link *l, int n, void **data, const size_t *sizes, const int *tags,
			     void **ret_request)
{
	struct tcp_recv *recv = gantry_pool_get(&l->rx.recvs); /* as for sends: the posting thread's own */

	if (recv) {
		recv->land = NULL;
		recv->vec.n = 0;
	}
	return post(l, recv, n, data, sizes, tags, ret_request);
}

gantry_result tcp_link_irecv_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n, int tag, void **ret_request)
{
	struct tcp_recv *recv = gantry_pool_get(&l->rx.recvs);
	struct tcp_vec vec = {iov, n};
	void *data = NULL;
	size_t size = tcp_vec_bytes(&vec);

	if (recv) {
		recv->land = NULL;
		recv->vec = vec;
	}
	return post(l, recv, 1, &data, &size, &tag, ret_request);
}

gantry_result tcp_link_irecv_unpack(struct tcp_link *l, void *data, size_t size, int tag, int device, int optional,
				    void **ret_request)
{
	struct tcp_recv *recv;
	gantry_result r = tcp_unpack_take(l, data, device, optional, &recv);

	if (r != GANTRY_OK)
		return r;
	return post(l, recv, 1, &data, &size, &tag, ret_request);
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
	for (int i = 1; req->kind == TCP_SEND && i < req->link->nlanes; i++) {
		pthread_mutex_lock(&req->link->lanes[i].tx.lock);
		pthread_mutex_unlock(&req->link->lanes[i].tx.lock);
	}
	pthread_mutex_lock(&req->link->control.lock);
	pthread_mutex_unlock(&req->link->control.lock);
	return load_acquire(&req->state) == TCP_DONE;
}

/* All bytes of a receive are here, copies are under way: the peer may be gone, that is no matter any more. */
static int is_landing(struct tcp_request *req)
{
	struct tcp_recv *recv = gantry_container(req, struct tcp_recv, head);
	int landing;

	if (req->kind != TCP_RECV || !recv->land)
		return 0;
	pthread_mutex_lock(&req->link->mu);
	landing = recv->land->landing;
	pthread_mutex_unlock(&req->link->mu);
	return landing;
}

gantry_result tcp_link_test(struct tcp_request *req, int *ret_done, int *sizes)
{
	struct tcp_link *l = req->link;

	if (load_acquire(&req->state) != TCP_DONE) {
		tcp_link_progress(l);
		if (load_acquire(&req->state) != TCP_DONE) {
			gantry_result r = tcp_link_status(l, req->kind == TCP_SEND ? &l->tx.end : &l->rx.end);

			if (r == GANTRY_OK || !completed_meanwhile(req)) {
				*ret_done = 0;
				return r == GANTRY_OK || is_landing(req) ? GANTRY_OK : r;
			}
		}
	}
	LOG_TRACE(DATA, "link %u %s done", l->session.id, req->kind == TCP_SEND ? "send" : "receive");
	req->state = TCP_FREE;
	if (req->kind == TCP_SEND) {
		struct tcp_send *s = gantry_container(req, struct tcp_send, head);

		if (s->eager && gantry_trace_on())
			gantry_event_put(GANTRY_EV_SEND_DONE, l->session.id, GANTRY_EV_MSG(s->tag, s->index), s->size);
		if (sizes)
			sizes[0] = reported(s->size);
		if (s->block)
			tcp_stage_give(l->devmem.staging, s->block);
		s->block = NULL;
		gantry_pool_put(&l->tx.sends, s);
	} else {
		struct tcp_recv *recv = gantry_container(req, struct tcp_recv, head);

		for (int i = 0; sizes && i < recv->n; i++)
			sizes[i] = reported(recv->slots[i].total);
		if (recv->land)
			tcp_unpack_tested(l, recv);
		else
			gantry_pool_put(&l->rx.recvs, recv);
	}
	*ret_done = 1;
	return GANTRY_OK;
}
