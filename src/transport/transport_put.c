/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts over a network; put.h says what for. All of progress is the thread's that makes a round of the proxy.
 *
 * Sending, per step: posted by the kernel -> header (first step of an operation) and data given to the network -> both
 * requests done -> published to the kernel.
 *
 * Receiving: a ring of receives, each for one message, in the order in which they are sent. What the next message is
 * follows from the header before it, so none is posted beyond a header that has not come.
 *
 * First it accepts the sender's connection, and gets its ring.
 *
 *   posted   the network has its buffer: the window itself where the network takes any memory and the CPU writes there;
 *            else the ring's own, registered memory
 *   moved    it has come, and what is not in place was copied, or its copy was queued
 *   done     it is in place. With the last message of a put the target is notified
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "transport/put.h"

#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "proxy/proxy.h"
#include "transport/net_priv.h"

#define PUT_MAGIC 0x70757431u /* "put1" */

enum {
	PUT_STEP = 256 << 10, /* of data messages, at most; a ring has 8 */
	PUT_HEAD = 4096,      /* a header and the data that follows it */
};

struct put_header {
	uint32_t magic;
	uint32_t inlined; /* bytes that follow the header */
	struct gantry_put_request put;
};
enum { PUT_INLINE = PUT_HEAD - sizeof(struct put_header) };

/* A step being sent. */
struct put_tx {
	void *head, *data; /* requests; NULL: none, or done */
	int head_sent;
	int inlined;
};

/* A receive. */
struct put_rx {
	void *request;
	int is_head;
	int last;	 /* of its put */
	int fenced;	 /* its copy is over when the fence is reached */
	uint32_t window; /* of the put */
	int signal;
	char *to;      /* where it goes; data only */
	char *buffer;  /* where it is received */
	uint64_t size; /* data only */
	uint64_t fence;
};

struct put_conn {
	struct net_link *link; /* counted */
	struct gantry_device *device;
	char *block_host, *block_dev; /* FIFO of a sending end */
	char *ring_host, *ring_dev;   /* STEPS of `step` bytes, behind STEPS headers */
	void *ring_mr;
	uint64_t step;
	/* Sending. Requests: the caller writes and adds to `given`, the progress thread adds to `taken`. */
	struct gantry_put_request requests[GANTRY_PUT_REQUESTS];
	uint64_t given, taken; /* taken: atomic */
	struct put_tx tx[GANTRY_STEPS];
	/* Receiving. */
	const struct gantry_put_target *target; /* borrowed */
	struct gantry_connect_info peer;	/* until it is connected */
	struct put_rx rx[GANTRY_STEPS];
	int awaits_head;
	/* The put whose data is being received. */
	char *to;
	uint64_t left; /* bytes for which no receive is posted */
	int cpu_writes, signal;
	uint32_t window; /* 0: none, it has no data */
};

static char *head_of(const struct put_conn *p, uint64_t step)
{
	return p->ring_host + step % GANTRY_STEPS * PUT_HEAD;
}

static uint64_t data_at(const struct put_conn *p, uint64_t step)
{
	return GANTRY_STEPS * (uint64_t)PUT_HEAD + step % GANTRY_STEPS * p->step;
}

/* ---- sending ---- */

static gantry_result is_done(const struct put_conn *p, void **request, int *sizes)
{
	struct gantry_net *net = p->link->context->net;
	int done = 0;

	if (!*request)
		return GANTRY_OK;
	TRY_NOW(net->ops->test(net, *request, &done, sizes));
	if (!done)
		return GANTRY_AGAIN;
	*request = NULL;
	return GANTRY_OK;
}

/* AGAIN: the network takes nothing now. */
static gantry_result post_send(const struct put_conn *p, char *data, size_t size, void *mr, void **ret_request)
{
	struct gantry_net *net = p->link->context->net;

	TRY_NOW(net->ops->isend(net, p->link->comm, data, size, 0, mr, ret_request));
	return *ret_request ? GANTRY_OK : GANTRY_AGAIN;
}

static gantry_result send_head(struct put_conn *p, const struct gantry_proxy_op *op, uint64_t step, const char *data,
			       uint64_t size)
{
	struct put_tx *t = &p->tx[step % GANTRY_STEPS];
	struct put_header h = {.magic = PUT_MAGIC, .put = p->requests[p->taken % GANTRY_PUT_REQUESTS]};
	char *at = head_of(p, step);

	if (op->nsteps == 1 && size <= PUT_INLINE)
		h.inlined = (uint32_t)size;
	memcpy(at, &h, sizeof(h));
	if (h.inlined)
		memcpy(at + sizeof(h), data, size);
	TRY_NOW(post_send(p, at, sizeof(h) + h.inlined, p->ring_mr, &t->head));
	t->head_sent = 1;
	t->inlined = h.inlined != 0;
	store_release(&p->taken, p->taken + 1);
	return GANTRY_OK;
}

/* AGAIN: the kernel has not come to it, or the network is busy. */
static gantry_result send_step(struct gantry_proxy_conn *pc, struct put_conn *p, uint64_t step)
{
	const struct gantry_proxy_op *op = gantry_proxy_op_of(pc, step);
	struct put_tx *t = &p->tx[step % GANTRY_STEPS];
	uint64_t size, place;
	uint32_t mode;
	char *data;

	if (!op || !gantry_proxy_posted(pc, step, &mode, &size, &place)) {
		gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
		return GANTRY_AGAIN;
	}
	data = mode == GANTRY_MODE_PTR ? (char *)(uintptr_t)place : p->ring_host + data_at(p, step);
	if (step == op->base && !t->head_sent)
		TRY_NOW(send_head(p, op, step, data, size));
	if (size && !t->inlined)
		TRY_NOW(post_send(p, data, size, mode == GANTRY_MODE_PTR ? NULL : p->ring_mr, &t->data));
	return GANTRY_OK;
}

static gantry_result progress_send(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct put_conn *p = pc->resources;
	gantry_result r = GANTRY_OK;

	ASSERT(pc->send && pc->moved - pc->done <= GANTRY_STEPS);
	while (pc->moved < pc->end && pc->moved < pc->done + GANTRY_STEPS) {
		r = send_step(pc, p, pc->moved);
		if (r != GANTRY_OK)
			break;
		pc->posted = ++pc->moved;
		*ret_worked = 1;
	}
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	while (pc->done < pc->moved) {
		struct put_tx *t = &p->tx[pc->done % GANTRY_STEPS];

		TRY_NOW(is_done(p, &t->head, NULL));
		TRY_NOW(is_done(p, &t->data, NULL));
		memset(t, 0, sizeof(*t));
		gantry_proxy_done(pc, pc->done + 1);
		pc->done++;
		*ret_worked = 1;
	}
	return GANTRY_OK;
}

/* ---- receiving ---- */

static int lands_in_place(const struct put_conn *p)
{
	return p->cpu_writes && p->link->context->any_memory;
}

/* AGAIN: there is nothing to post, or the network takes nothing now. */
static gantry_result post_receive(struct put_conn *p, uint64_t step)
{
	struct gantry_net *net = p->link->context->net;
	struct put_rx x = {.is_head = !p->left, .signal = p->signal, .window = p->window};
	void *data, *mr = p->ring_mr;
	int tag = 0;

	if (p->awaits_head)
		return GANTRY_AGAIN;
	if (x.is_head) {
		x.buffer = head_of(p, step);
		x.size = PUT_HEAD;
	} else {
		x.size = p->left < p->step ? p->left : p->step;
		x.to = p->to;
		x.buffer = lands_in_place(p) ? p->to : p->ring_host + data_at(p, step);
		x.last = x.size == p->left;
		mr = lands_in_place(p) ? NULL : mr;
	}
	data = x.buffer;
	TRY_NOW(net->ops->irecv(net, p->link->comm, 1, &data, (const size_t[]){x.size}, &tag, &mr, &x.request));
	if (!x.request)
		return GANTRY_AGAIN;
	ASSERT(!p->rx[step % GANTRY_STEPS].request);
	p->rx[step % GANTRY_STEPS] = x;
	p->awaits_head = x.is_head;
	if (!x.is_head) {
		p->to += x.size;
		p->left -= x.size;
	}
	return GANTRY_OK;
}

/* Into the window: at once, or by the device. */
static gantry_result copy_in(struct put_conn *p, struct put_rx *x, char *to, char *from, uint64_t size, int cpu_writes)
{
	struct gantry_device *d = p->device;

	if (!size || to == from)
		return GANTRY_OK;
	if (cpu_writes) {
		memcpy(to, from, size);
		return GANTRY_OK;
	}
	TRY_NOW(d->ops->queue_copy(d, GANTRY_COPY_IN, to, from, size));
	x->fenced = 1;
	return d->ops->queue_fence(d, GANTRY_COPY_IN, &x->fence);
}

static gantry_result take_head(struct gantry_proxy_conn *pc, struct put_conn *p, struct put_rx *x, uint64_t size)
{
	int from = pc->connector->peer->rank;
	struct put_header h;
	char *to = NULL;

	ASSERT(p->awaits_head && !p->left);
	memcpy(&h, x->buffer, size < sizeof(h) ? size : sizeof(h));
	if (size < sizeof(h) || h.magic != PUT_MAGIC || size != sizeof(h) + h.inlined ||
	    (h.inlined && h.inlined != h.put.bytes))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d sent %llu bytes that are not a put header", from,
			 (unsigned long long)size);
	TRY_NOW(p->target->find(p->target->ctx, from, &h.put, &to, &p->cpu_writes));
	p->awaits_head = 0;
	p->signal = x->signal = h.put.signal;
	p->window = x->window = h.put.bytes ? h.put.window : 0;
	p->to = to;
	p->left = h.put.bytes - h.inlined;
	x->last = !p->left;
	return copy_in(p, x, to, x->buffer + sizeof(h), h.inlined, p->cpu_writes);
}

static gantry_result take_message(struct gantry_proxy_conn *pc, struct put_conn *p, struct put_rx *x)
{
	int size = 0;

	TRY_NOW(is_done(p, &x->request, &size));
	if (x->is_head)
		return take_head(pc, p, x, (uint64_t)size);
	if ((uint64_t)size != x->size)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d sent %d bytes of a put, expected %llu",
			 pc->connector->peer->rank, size, (unsigned long long)x->size);
	/* A put whose data goes to a window that the CPU does not write is received in the ring. */
	return copy_in(p, x, x->to, x->buffer, x->size, p->cpu_writes);
}

static gantry_result finish_message(struct gantry_proxy_conn *pc, struct put_conn *p, const struct put_rx *x)
{
	if (x->fenced)
		TRY_NOW(p->device->ops->fence_reached(p->device, GANTRY_COPY_IN, x->fence));
	if (x->last)
		p->target->arrived(p->target->ctx, pc->connector->peer->rank, x->window, x->signal);
	return GANTRY_OK;
}

/* Steps of each counter as far as they go. */
static gantry_result advance_steps(struct gantry_proxy_conn *pc, struct put_conn *p, int *ret_worked)
{
	gantry_result r = GANTRY_OK;

	while (pc->posted < pc->done + GANTRY_STEPS && (r = post_receive(p, pc->posted)) == GANTRY_OK) {
		pc->posted++;
		*ret_worked = 1;
	}
	while ((r == GANTRY_OK || r == GANTRY_AGAIN) && pc->moved < pc->posted &&
	       (r = take_message(pc, p, &p->rx[pc->moved % GANTRY_STEPS])) == GANTRY_OK) {
		pc->flushed = ++pc->moved;
		*ret_worked = 1;
	}
	while ((r == GANTRY_OK || r == GANTRY_AGAIN) && pc->done < pc->moved &&
	       (r = finish_message(pc, p, &p->rx[pc->done % GANTRY_STEPS])) == GANTRY_OK) {
		pc->done++;
		*ret_worked = 1;
	}
	return r;
}

static gantry_result progress_recv(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct put_conn *p = pc->resources;
	int worked;
	gantry_result r;

	if (!p->ring_mr)
		TRY_NOW(gantry_put_connect(pc->connector, &p->peer));
	do {
		worked = 0;
		r = advance_steps(pc, pc->resources, &worked);
		*ret_worked |= worked;
	} while (worked && (r == GANTRY_OK || r == GANTRY_AGAIN));
	return r;
}

/* The proxy asks for nothing else. */
static const struct gantry_transport_side send_side = {.struct_size = sizeof(struct gantry_transport_side),
						       .proxy_progress = progress_send},
					  recv_side = {.struct_size = sizeof(struct gantry_transport_side),
						       .proxy_progress = progress_recv};

/* ---- its life ---- */

static uint64_t own_step(const struct put_conn *p)
{
	uint64_t most = p->link->context->props.max_p2p_bytes, want = gantry_params()->net_step;

	if (!want || want > PUT_STEP)
		want = PUT_STEP;
	return want < most ? want : most;
}

gantry_result gantry_put_setup(struct gantry_connector *c, const struct gantry_put_target *target,
			       struct gantry_connect_info *ret_info)
{
	struct put_conn *p = calloc(1, sizeof(*p));
	struct net_info info;
	void *host = NULL, *dev = NULL;

	if (!p)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a connection to rank %d", c->peer->rank);
	ASSERT(!c->resources);
	c->resources = c->proxy->resources = p;
	c->proxy->side = c->send ? &send_side : &recv_side;
	p->device = c->device;
	p->target = target;
	TRY_NOW(net_link_get(c, &p->link));
	if (p->link->context->unpack)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "puts to rank %d: network %s receives fragments, which puts do not support", c->peer->rank,
			 p->link->context->net->name);
	if (c->send) {
		TRY_NOW(c->device->ops->alloc_mapped(c->device, sizeof(struct gantry_fifo), &host, &dev));
		p->block_host = host;
		p->block_dev = dev;
		c->proxy->fifo = host;
		c->proxy->kernel_eventcount = c->eventcount;
	}
	TRY_NOW(net_link_describe(c, p->link, own_step(p), &info));
	memset(ret_info, 0, sizeof(*ret_info));
	memcpy(ret_info, &info, sizeof(info));
	return GANTRY_OK;
}

gantry_result gantry_put_connect(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	struct put_conn *p = c->resources;
	struct net_info info;
	void *host = NULL, *dev = NULL;

	ASSERT(!p->ring_mr);
	TRY_NOW(net_link_connect(c, p->link, peer, &info));
	p->step = c->max_step = own_step(p) < info.max_step ? own_step(p) : info.max_step;
	if (!p->ring_host) {
		TRY_NOW(c->device->ops->alloc_mapped(c->device, GANTRY_STEPS * (PUT_HEAD + p->step), &host, &dev));
		p->ring_host = host;
		p->ring_dev = dev;
	}
	TRY_NOW(net_link_register(p->link, p->ring_host, GANTRY_STEPS * (PUT_HEAD + p->step), GANTRY_NET_PTR_HOST,
				  &p->ring_mr));
	if (!c->send)
		return GANTRY_OK;
	gantry_end_fill_words(c, (void *)p->block_dev, GANTRY_CONN_PROXIED);
	c->conn.buffs[GANTRY_PROTO_SIMPLE] = p->ring_dev + data_at(p, 0);
	c->conn.step_bytes[GANTRY_PROTO_SIMPLE] = (uint32_t)p->step;
	c->conn.eventcount = c->proxy_eventcount;
	c->any_memory = p->link->context->any_memory;
	return GANTRY_OK;
}

void gantry_put_accept(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	((struct put_conn *)c->resources)->peer = *peer;
}

int gantry_put_has_room(const struct gantry_connector *c)
{
	const struct put_conn *p = c->resources;

	/* A launch brings fewer than half of them. */
	return p->given - load_acquire(&p->taken) <= GANTRY_PUT_REQUESTS / 2;
}

void gantry_put_give(struct gantry_connector *c, const struct gantry_put_request *put)
{
	struct put_conn *p = c->resources;

	ASSERT(p->given - load_acquire(&p->taken) < GANTRY_PUT_REQUESTS);
	p->requests[p->given++ % GANTRY_PUT_REQUESTS] = *put;
}

void gantry_put_close(struct gantry_connector *c)
{
	struct put_conn *p = c->resources;
	struct net_context *x = p && p->link ? p->link->context : NULL;

	if (!p)
		return;
	if (p->ring_mr)
		x->net->ops->dereg_mr(x->net, p->link->comm, p->ring_mr);
	if (p->link) /* closing is what ends requests that were cut short */
		net_link_put(p->link, 0);
	if (p->ring_host)
		c->device->ops->free_mapped(c->device, p->ring_host);
	if (p->block_host)
		c->device->ops->free_mapped(c->device, p->block_host);
	free(p);
	c->resources = NULL;
}
