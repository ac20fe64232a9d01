/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Networks that reduce on their way: Gantry's own by reducers (reducer/reducer.h), foreign ones by their plugin's collNet
 * table (net/net_collnet.h).
 *
 * Such a network joins all hosts of a communicator at once, so it is no way from one rank to another and says so
 * (can_connect). A collective's plan names it as the rank itself, and the core makes its two ends when the communicator
 * is made.
 *
 *   kernel --> ring of the sending end --> reducers --> ring of the receiving end --> kernel
 *
 * A slice is one reduction, or several where the network takes no more at once (maxCollBytes of a plugin). It is posted
 * when the kernel has filled its slot and there is room for the result, in the order of steps, which is the same on all
 * hosts, as is where slices are cut: that is how reductions match. Registered memory takes the place of either ring (PTR).
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "transport/collnet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "net/net_collnet.h"
#include "proxy/proxy.h"
#include "reducer/reducer.h"
#include "reducer/sum.h"
#include "transport/ends.h"
#include "transport/net_priv.h"

/* One direction. */
struct collnet_end {
	struct gantry_proxy_conn *pc; /* borrowed */
	char *host, *dev;	      /* FIFO and ring, as CPU and device address them */
	struct gantry_rings rings;
};

/* A step whose reductions are on their way. */
struct collnet_step {
	uint32_t mode; /* of the receiving end */
	uint64_t size, place;
};

/* A reduction on its way. */
struct collnet_part {
	void *request;
	bool last; /* of its step */
};

/* What is cut is of elements of any type. */
enum { COLLNET_UNIT = 8 };

struct collnet {
	int refs; /* of its two ends; the communicator's thread */
	struct net_context *context;
	void *listen;			      /* of the network */
	struct reducer_comm *comm;	      /* NULL: not open, or */
	struct gantry_collnet_plugin *plugin; /* of a foreign network */
	void *send_mr, *recv_mr;	      /* the rings, there */
	int open;
	int *ranks; /* by host */
	struct collnet_end *send, *recv;
	struct collnet_step steps[GANTRY_STEPS];
	/* As many as one step each: more than networks were asked for before slices were cut, none would have to take. */
	struct collnet_part parts[GANTRY_STEPS];
	uint64_t posted, done; /* of parts */
	uint64_t most;	       /* bytes of a part; a multiple of COLLNET_UNIT */
	uint64_t moved;	       /* bytes of the step that is being posted */
	char *from, *to;       /* its slots */
};

/* What a connector has: its own direction, and what both share. */
struct collnet_resources {
	struct collnet_end end;
	struct collnet *net; /* counted; NULL before it listens */
};

static gantry_result can_connect(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
				 char *why, size_t len)
{
	(void)me;
	(void)peer;
	*ret_can = 0;
	snprintf(why, len, "collnet carries collectives only, not point to point");
	return GANTRY_OK;
}

/* ---- making it ---- */

static gantry_result proxy_setup(struct gantry_connector *c)
{
	gantry_result r = GANTRY_OK;
	struct collnet_resources *res = calloc(1, sizeof(*res));
	void *host = NULL, *dev = NULL;

	if (!res)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection with the network");
	gantry_rings_layout(gantry_rings_round_step(c->me->coll_step), 0, 0, &res->end.rings);
	TRY(c->device->ops->alloc_mapped(c->device, res->end.rings.size, &host, &dev));
	res->end.pc = c->proxy;
	res->end.host = host;
	res->end.dev = dev;
	c->resources = c->proxy->resources = res;
	c->proxy->fifo = host;
	c->proxy->kernel_eventcount = c->eventcount;
	res = NULL;
out:
	free(res);
	return r;
}

static gantry_result setup_end(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	(void)ret_info;
	return gantry_transport_unsupported_connector(c);
}

gantry_result gantry_collnet_listen(struct gantry_connector *send, struct gantry_connector *recv,
				    unsigned char ret_handle[GANTRY_NET_HANDLE_SIZE])
{
	struct collnet_resources *out = send->resources, *in = recv->resources;
	struct collnet *n = calloc(1, sizeof(*n));

	ASSERT(send->send && !recv->send && !out->net && !in->net);
	if (!n)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for reducers");
	n->refs = 2;
	n->send = &out->end;
	n->recv = &in->end;
	out->net = in->net = n;
	TRY_NOW(net_context_get(send, &n->context));
	if (n->context->loader) {
		TRY_NOW(gantry_collnet_plugin_open(n->context->loader, 0, send->comm_id, n->context->nearest,
						   &n->plugin));
		return gantry_collnet_plugin_listen(n->plugin, ret_handle);
	}
	return gantry_net_tcp()->ops->listen(gantry_net_tcp(), n->context->ctx, n->context->dev, ret_handle,
					     &n->listen);
}

uint64_t gantry_collnet_max_bytes(const struct gantry_connector *send)
{
	const struct collnet *n = ((struct collnet_resources *)send->resources)->net;

	return n->plugin ? gantry_collnet_plugin_max_bytes(n->plugin) : UINT64_MAX;
}

static gantry_result open_plugin(struct collnet *n, const struct gantry_collnet_hosts *hosts, uint64_t *ret_takes)
{
	uint64_t takes = 0;

	if (hosts->max_bytes < COLLNET_UNIT)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "maxCollBytes of collNet is %llu: not even an element",
			 (unsigned long long)hosts->max_bytes);
	TRY_NOW(gantry_collnet_plugin_connect(n->plugin, hosts->handles, hosts->n, hosts->own));
	TRY_NOW(gantry_collnet_plugin_register(n->plugin, n->send->host, n->send->rings.size, &n->send_mr));
	TRY_NOW(gantry_collnet_plugin_register(n->plugin, n->recv->host, n->recv->rings.size, &n->recv_mr));
	for (uint32_t i = 0; i < 4u * GANTRY_TYPE_COUNT; i++)
		takes |= gantry_collnet_plugin_takes(n->plugin, i / 4, i % 4) ? 1ull << i : 0;
	*ret_takes = takes;
	return GANTRY_OK;
}

gantry_result gantry_collnet_open(struct gantry_connector *send, const struct gantry_collnet_hosts *hosts,
				  uint64_t *ret_takes)
{
	struct collnet *n = ((struct collnet_resources *)send->resources)->net;
	const struct reducer_config config = {.ctx = n->context->ctx,
					      .listen = n->listen,
					      .dev = n->context->dev,
					      .ranks = hosts->n,
					      .rank = hosts->own,
					      .handles = hosts->handles,
					      .timeout = gantry_params()->connect_timeout,
					      .stop = hosts->stop};

	ASSERT(!n->open && !n->ranks);
	n->ranks = calloc(hosts->n, sizeof(*n->ranks));
	if (!n->ranks)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for reducers");
	memcpy(n->ranks, hosts->ranks, hosts->n * sizeof(*n->ranks));
	n->most = hosts->max_bytes / COLLNET_UNIT * COLLNET_UNIT;
	*ret_takes = UINT64_MAX;
	TRY_NOW(n->plugin ? open_plugin(n, hosts, ret_takes) : reducer_open(&config, &n->comm));
	n->open = 1;
	return GANTRY_OK;
}

static gantry_result connect_end(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	struct collnet_resources *res = c->resources;

	(void)peer;
	if (!res || !res->net || !res->net->open)
		return gantry_transport_unsupported_connector(c);
	gantry_end_fill_proxied(c, (void *)res->end.dev);
	gantry_rings_fill(&c->conn, &res->end.rings, res->end.dev, 1);
	c->max_step = 0;
	c->any_memory = !res->net->plugin && gantry_traits(c->device)->cpu_reads_memory;
	c->sharing = c->any_memory ? GANTRY_SHARES_REGISTERED : GANTRY_SHARES_NOTHING;
	return GANTRY_OK;
}

static gantry_result proxy_connect(struct gantry_connector *c)
{
	(void)c;
	return GANTRY_OK;
}

/* Connections first: requests that were cut short refer to the rings. */
static void proxy_free(struct gantry_connector *c)
{
	struct collnet_resources *res = c->resources;
	struct collnet *n = res ? res->net : NULL;

	if (!res)
		return;
	if (n) {
		reducer_close(n->comm);
		n->comm = NULL;
		gantry_collnet_plugin_close(n->plugin);
		n->plugin = NULL;
		if (n->listen)
			gantry_net_tcp()->ops->close_listen(gantry_net_tcp(), n->listen);
		n->listen = NULL;
		ASSERT(n->refs > 0);
		if (--n->refs == 0) {
			net_context_put(n->context);
			free(n->ranks);
			free(n);
		}
	}
	c->device->ops->free_mapped(c->device, res->end.host);
	free(res);
	c->resources = NULL;
	if (c->proxy)
		c->proxy->resources = NULL;
}

/* ---- moving ---- */

static char *ring_of(const struct collnet_end *e, uint64_t step)
{
	return e->host + e->rings.at[GANTRY_PROTO_SIMPLE] +
	       step % GANTRY_STEPS * e->rings.step_bytes[GANTRY_PROTO_SIMPLE];
}

/* All slots of the ring are free to fill. */
static void offer_slots(struct gantry_proxy_conn *pc, int *worked)
{
	while (pc->posted < pc->end) {
		const struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->posted);
		uint64_t next = pc->posted + (op ? op->slice_steps : 1);

		if (next > pc->done + GANTRY_STEPS)
			break;
		pc->posted = next;
		*worked = 1;
	}
}

/* Where the result of the receiving end's next step goes. AGAIN: there is no room, or it is not known yet. */
static gantry_result place_result(struct collnet *n, struct collnet_step *s, char **ret_to)
{
	struct gantry_proxy_conn *pc = n->recv->pc;
	const struct gantry_proxy_op *op;
	uint64_t size;

	while (pc->posted < pc->end && !(op = gantry_proxy_op_of(pc, pc->posted)))
		pc->posted++; /* a gap left by aligning */
	if (pc->posted >= pc->end || pc->posted + op->slice_steps > pc->done + GANTRY_STEPS)
		return GANTRY_AGAIN;
	s->mode = GANTRY_MODE_NORMAL;
	s->place = 0;
	*ret_to = ring_of(n->recv, pc->posted);
	if (!op->ptr)
		return GANTRY_OK;
	if (!gantry_proxy_offered_as(pc, pc->posted, &s->mode, &size, &s->place))
		return GANTRY_AGAIN;
	if (s->mode == GANTRY_MODE_PTR)
		*ret_to = (char *)(uintptr_t)s->place;
	return GANTRY_OK;
}

static gantry_result start_reduction(struct collnet *n, const struct gantry_proxy_op *op, char *from, char *to,
				     uint64_t size, void **ret_request)
{
	const struct gantry_collnet_reduction q = {.send = from,
						   .recv = to,
						   .send_mr = n->send_mr,
						   .recv_mr = n->recv_mr,
						   .count = size / reducer_type_bytes(op->type),
						   .type = op->type,
						   .op = gantry_collnet_reduction_of(op->op)};
	struct reducer_request *request = NULL;

	if (n->plugin)
		return gantry_collnet_plugin_all_reduce(n->plugin, &q, ret_request);
	TRY_NOW(reducer_all_reduce(n->comm, from, to, q.count, q.type, q.op, &request));
	*ret_request = request;
	return GANTRY_OK;
}

/* Where the next step's bytes are, and where their sum goes. AGAIN: not yet. */
static gantry_result begin_step(struct collnet *n, struct collnet_step *s)
{
	struct gantry_proxy_conn *pc = n->send->pc, *back = n->recv->pc;
	uint64_t place;
	uint32_t mode;

	if (n->moved) /* a part of it is on its way */
		return GANTRY_OK;
	if (!gantry_proxy_posted(pc, pc->moved, &mode, &s->size, &place)) {
		gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
		return GANTRY_AGAIN;
	}
	if (place_result(n, s, &n->to) != GANTRY_OK) {
		gantry_proxy_waits(pc, GANTRY_WAIT_SPACE);
		return GANTRY_AGAIN;
	}
	if (pc->moved != back->posted)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "step %llu does not match its result step %llu",
			 (unsigned long long)pc->moved, (unsigned long long)back->posted);
	n->from = mode == GANTRY_MODE_PTR ? (char *)(uintptr_t)place : ring_of(n->send, pc->moved);
	return GANTRY_OK;
}

/* Posts the rest of a step. AGAIN: the network takes no more now. */
static gantry_result post_parts(struct collnet *n, const struct gantry_proxy_op *op, const struct collnet_step *s)
{
	do {
		uint64_t left = s->size - n->moved, bytes = left < n->most ? left : n->most;
		void *request = NULL;

		ASSERT(n->moved <= s->size && n->posted - n->done <= GANTRY_STEPS);
		if (n->posted - n->done < GANTRY_STEPS) /* else the oldest part has the slot */
			TRY_NOW(start_reduction(n, op, n->from + n->moved, n->to + n->moved, bytes, &request));
		if (!request) {
			gantry_proxy_waits(n->send->pc, GANTRY_WAIT_SOCKET);
			return GANTRY_AGAIN;
		}
		n->parts[n->posted++ % GANTRY_STEPS] = (struct collnet_part){request, bytes == left};
		n->moved += bytes;
	} while (n->moved < s->size);
	n->moved = 0;
	return GANTRY_OK;
}

/* Posts what kernels have filled. */
static gantry_result transmit_steps(struct collnet *n, int *worked)
{
	struct gantry_proxy_conn *pc = n->send->pc, *back = n->recv->pc;

	ASSERT(pc->send && !back->send);
	while (pc->moved < pc->posted) {
		const struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->moved);
		struct collnet_step *s = &n->steps[pc->moved % GANTRY_STEPS];
		uint64_t before = n->posted;
		gantry_result r;

		if (!op) {
			pc->moved++;
			continue;
		}
		r = begin_step(n, s);
		if (r == GANTRY_OK)
			r = post_parts(n, op, s);
		*worked |= n->posted != before;
		if (r != GANTRY_OK)
			return r == GANTRY_AGAIN ? GANTRY_OK : r;
		pc->moved += op->slice_steps;
		back->posted += op->slice_steps;
	}
	return GANTRY_OK;
}

/* Takes the reductions that are done, until one is the last of its step. AGAIN: none is. */
static gantry_result finish_step(struct collnet *n, int *worked)
{
	bool last = false;

	while (!last && n->done < n->posted) {
		struct collnet_part *part = &n->parts[n->done % GANTRY_STEPS];
		int done = 0;

		ASSERT(part->request);
		TRY_NOW(n->plugin ? gantry_collnet_plugin_test(n->plugin, part->request, &done)
				  : reducer_test(part->request, &done, NULL));
		if (!done)
			break;
		part->request = NULL;
		last = part->last;
		n->done++;
		*worked = 1;
	}
	return last ? GANTRY_OK : GANTRY_AGAIN;
}

/* Steps whose reductions are done: the slot is free again, and the result is there. */
static gantry_result complete_steps(struct collnet *n, int *worked)
{
	struct gantry_proxy_conn *pc = n->send->pc, *back = n->recv->pc;

	for (;;) {
		const struct gantry_proxy_op *op = NULL;
		const struct collnet_step *s;
		gantry_result r;

		while (pc->done < pc->moved && !(op = gantry_proxy_op_of(pc, pc->done)))
			pc->done++; /* a gap left by aligning */
		if (n->done == n->posted)
			return GANTRY_OK;
		r = finish_step(n, worked);
		if (r == GANTRY_AGAIN) {
			gantry_proxy_waits(pc, GANTRY_WAIT_PEER);
			gantry_proxy_waits(back, GANTRY_WAIT_PEER);
			return GANTRY_OK;
		}
		TRY_NOW(r);
		ASSERT(op); /* its last part was posted, so it has moved */
		s = &n->steps[pc->done % GANTRY_STEPS];
		back->moved = back->flushed = pc->done + op->slice_steps;
		gantry_proxy_publish(back, pc->done, s->mode, s->size, s->place);
		pc->done += op->slice_steps;
		gantry_proxy_done(pc, pc->done);
	}
}

static void count_consumed(struct gantry_proxy_conn *pc, int *worked)
{
	uint64_t head = gantry_proxy_consumed(pc);

	while (pc->done < pc->flushed) {
		const struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->done);
		uint64_t next = pc->done + (op ? op->slice_steps : 1);

		if (op && head < next) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			break;
		}
		pc->done = next;
		*worked = 1;
	}
}

static gantry_result collnet_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct collnet *n = ((struct collnet_resources *)pc->resources)->net;
	gantry_result r = GANTRY_OK;
	int lost;

	if (!pc->send) {
		count_consumed(pc, ret_worked);
		return GANTRY_OK;
	}
	offer_slots(pc, ret_worked);
	TRY(transmit_steps(n, ret_worked));
	TRY(complete_steps(n, ret_worked));
out:
	if (r != GANTRY_OK) {
		lost = n->plugin ? -1 : reducer_lost(n->comm);
		pc->blames = lost < 0 ? -1 : 1 + n->ranks[lost];
	}
	return r;
}

static const struct gantry_transport_side side = {
	.struct_size = sizeof(struct gantry_transport_side),
	.setup = setup_end,
	.connect = connect_end,
	.free = gantry_transport_unsupported_free, /* all of it is the proxy's */
	.proxy_setup = proxy_setup,
	.proxy_connect = proxy_connect,
	.proxy_progress = collnet_progress,
	.proxy_register = gantry_transport_unsupported_register,
	.proxy_deregister = gantry_transport_unsupported_deregister,
	.proxy_free = proxy_free,
};

const struct gantry_transport gantry_transport_collnet = {
	.struct_size = sizeof(struct gantry_transport),
	.name = "collnet",
	.proxied = gantry_ends_proxied,
	.can_connect = can_connect,
	.send = &side,
	.recv = &side,
};
