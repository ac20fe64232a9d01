/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net transport: any network behind net.h, Gantry's own or a loaded plugin. Both ends are proxied.
 *
 * Simple steps live in a pool that channels and peers share (OFFSET, the default) or in a ring of the connection
 * (GANTRY_NET_BUFFERS=ring, NORMAL), in host memory that the device maps, or in the device's memory when the network
 * can read that. Registered user memory is given to the network as it is (PTR). What travels is always the payload
 * alone, in steps whose sizes both ends compute alike; how either end stores it is its own affair.
 *
 * LL and LL128: the proxy takes the flags off before it sends and puts flags on after it has received, word by word, so
 * a kernel sees each word whole whatever way TCP cut the stream.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "transport/ends.h"
#include "transport/net_priv.h"

enum { NET_MAGIC = 0x6e657431 }; /* "net1" */
_Static_assert(sizeof(struct net_info) <= GANTRY_CONNECT_INFO_SIZE, "travels in the connect info");
_Static_assert((int)NET_STAGE_STEP <= (int)NET_P2P_MIN, "any network that is taken carries steps of LL and LL128");

static gantry_result can_connect(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
				 char *why, size_t len)
{
	*ret_can = me->rank != peer->rank;
	if (!*ret_can)
		snprintf(why, len, "a rank does not connect to itself over the network");
	return GANTRY_OK;
}

/*
 * The more peers, the smaller the largest step: all of them may send at the same time. No smaller than a collective's slice, of
 * two of its steps.
 */
static uint64_t default_step(const struct gantry_device *device, int nranks, uint64_t coll_step)
{
	uint64_t step = gantry_traits(device)->net_step,
		 least = 2 * coll_step > NET_STEP_LEAST ? 2 * coll_step : NET_STEP_LEAST;

	for (int peers = nranks - 1; peers > 1 && step / 2 >= least; peers = (peers + 1) / 2)
		step /= 2;
	return step;
}

void gantry_transport_net_memory(const struct gantry_device *device, int nranks, uint64_t coll_step,
				 struct gantry_net_memory *ret)
{
	struct gantry_rings rings;

	gantry_rings_layout(0, 1, 1, &rings);
	ret->step = gantry_params()->net_step ? gantry_params()->net_step : default_step(device, nranks, coll_step);
	ret->conn = rings.size + (gantry_params()->net_buffers == PARAM_NET_BUFFERS_RING
					  ? GANTRY_STEPS * ret->step
					  : net_pool_reserve(ret->step, coll_step));
	ret->shared = gantry_params()->net_buffers == PARAM_NET_BUFFERS_RING ? 0 : net_pool_shared(ret->step);
}

static uint64_t own_max_step(const struct gantry_connector *c)
{
	const struct net_conn *nc = c->resources;
	/* The network's limit, which a slice of all steps must keep to, in whole lines, so that steps of a ring begin at
	 * lines. */
	uint64_t most = nc->link->context->props.max_p2p_bytes;
	uint64_t want = gantry_params()->net_step;

	if (nc->link->context->unpack && most > GANTRY_UNPACK_MAX_SLICE)
		most = GANTRY_UNPACK_MAX_SLICE;
	most = most / GANTRY_STEPS / GANTRY_LL128_LINE * GANTRY_LL128_LINE;
	if (!want)
		want = default_step(c->device, c->nranks, c->me->coll_step);
	return want < most ? want : most;
}

static gantry_result proxy_setup(struct gantry_connector *c)
{
	gantry_result r = GANTRY_OK;
	struct net_conn *nc = calloc(1, sizeof(*nc));
	void *host = NULL, *dev = NULL;

	if (!nc)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection to rank %d", c->peer->rank);
	if (c->channel >= NET_CHANNELS_MAX)
		FAIL(GANTRY_ERR_LIMIT, "channel %d does not exist: the net transport has %d", c->channel,
		     NET_CHANNELS_MAX);
	nc->channel = c->channel;
	nc->pc = c->proxy;
	TRY(net_link_get(c, &nc->link));
	gantry_rings_layout(0, 1, 1, &nc->rings);
	TRY(c->device->ops->alloc_mapped(c->device, nc->rings.size, &host, &dev));
	nc->block_host = host;
	nc->block_dev = dev;
	fetch_add_relaxed(&nc->link->context->pinned, nc->rings.size);
	nc->stage = calloc(GANTRY_STEPS, NET_STAGE_STEP);
	if (!nc->stage)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection to rank %d", c->peer->rank);
	c->resources = c->proxy->resources = nc;
	c->proxy->fifo = host;
	c->proxy->kernel_eventcount = c->eventcount;
	nc = NULL;
out:
	if (nc) {
		if (nc->link)
			net_link_put(nc->link, nc->channel);
		if (nc->block_host)
			c->device->ops->free_mapped(c->device, nc->block_host);
		free(nc);
	}
	return r;
}

gantry_result net_link_describe(const struct gantry_connector *c, struct net_link *l, uint64_t max_step,
				struct net_info *ret_info)
{
	struct net_info info = {.magic = NET_MAGIC,
				.shared = (uint32_t)l->shared,
				.max_step = max_step,
				.ll_step = GANTRY_ENDS_LL_STEP,
				.ll128_step = GANTRY_ENDS_LL128_STEP,
				.tagged = (uint32_t)l->tagged};

	if (!c->send && !l->listen && !l->comm)
		TRY_NOW(l->context->net->ops->listen(l->context->net, l->context->ctx, l->context->listen_dev,
						     l->handle, &l->listen));
	snprintf(info.network, sizeof(info.network), "%s", l->context->net->name);
	net_rails_describe(l->context, &info);
	memcpy(info.handle, l->handle, sizeof(info.handle));
	*ret_info = info;
	return GANTRY_OK;
}

static gantry_result setup_end(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	struct net_conn *nc = c->resources;
	struct net_info info;

	TRY_NOW(net_link_describe(c, nc->link, own_max_step(c), &info));
	memset(ret_info, 0, sizeof(*ret_info));
	memcpy(ret_info, &info, sizeof(info));
	return GANTRY_OK;
}

static gantry_result check_info(const struct gantry_connector *c, const struct net_link *l,
				const struct gantry_connect_info *peer, struct net_info *ret_info)
{
	memcpy(ret_info, peer, sizeof(*ret_info));
	if (ret_info->magic != NET_MAGIC)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d chose another transport than net", c->peer->rank);
	ret_info->network[sizeof(ret_info->network) - 1] = 0;
	if (strncmp(ret_info->network, l->context->net->name, sizeof(ret_info->network) - 1) != 0)
		FAIL_NOW(GANTRY_ERR_SETTING,
			 "rank %d uses network %s, but this rank uses %s; set the same GANTRY_NET_PLUGIN on all ranks",
			 c->peer->rank, ret_info->network, l->context->net->name);
	if (ret_info->ll_step != GANTRY_ENDS_LL_STEP || ret_info->ll128_step != GANTRY_ENDS_LL128_STEP)
		FAIL_NOW(GANTRY_ERR_VERSION, "rank %d has LL steps of %u and %u bytes, this rank %d and %d",
			 c->peer->rank, ret_info->ll_step, ret_info->ll128_step, GANTRY_ENDS_LL_STEP,
			 GANTRY_ENDS_LL128_STEP);
	if (ret_info->tagged != (uint32_t)l->tagged)
		FAIL_NOW(GANTRY_ERR_SETTING,
			 "rank %d receives %s UNPACK, this rank %s; set the same GANTRY_UNPACK on all ranks",
			 c->peer->rank, ret_info->tagged ? "without" : "with", l->tagged ? "without" : "with");
	if (ret_info->shared != (uint32_t)l->shared)
		FAIL_NOW(GANTRY_ERR_SETTING,
			 "rank %d has %s, this rank has %s; set the same GANTRY_NET_LINKS and GANTRY_CHANNELS on all "
			 "ranks",
			 c->peer->rank, l->shared ? "a link per channel" : "one link for all channels",
			 l->shared ? "one link for all channels" : "a link per channel");
	return GANTRY_OK;
}

/* Its addresses are this rank's own. */
static int is_here(const struct gantry_connector *c)
{
	return c->me->host == c->peer->host && c->me->net_ns == c->peer->net_ns;
}

gantry_result net_link_connect(const struct gantry_connector *c, struct net_link *l,
			       const struct gantry_connect_info *peer, struct net_info *ret_info)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = l->context->net;
	struct gantry_net_device_handle **handle = l->context->unpack ? &l->device_handle : NULL;

	TRY_NOW(check_info(c, l, peer, ret_info));
	if (l->comm)
		return GANTRY_OK;
	ASSERT(c->send == l->send && (c->send || l->listen));
	l->device_handle = &l->handle_dev; /* the network fills it in, or puts another one here */
	if (c->send && !l->handle[0] && !memcmp(l->handle, l->handle + 1, sizeof(l->handle) - 1))
		memcpy(l->handle, ret_info->handle, sizeof(l->handle)); /* the network keeps its state in it */
	if (c->send && l->dev < 0)
		TRY(net_rails_choose(l->context, ret_info, is_here(c), &l->dev, &l->rails));
	net_attr_connect(l->context, c);
	if (c->send)
		TRY(net->ops->connect(net, l->context->ctx, l->dev, l->handle, &l->comm, handle));
	else
		TRY(net->ops->accept(net, l->listen, &l->comm, handle));
	if (!l->comm)
		return GANTRY_AGAIN;
	if (!c->send) {
		r = net->ops->close_listen(net, l->listen);
		l->listen = NULL;
	}
out:
	return r;
}

static gantry_result make_buffers(struct gantry_connector *c, struct net_conn *nc)
{
	struct net_link *l = nc->link;

	TRY_NOW(l->context->net->ops->reg_mr(l->context->net, l->comm, nc->stage, (size_t)GANTRY_STEPS * NET_STAGE_STEP,
					     GANTRY_NET_PTR_HOST, &nc->stage_mr));
	TRY_NOW(net_unpack_registered(l, nc->stage_mr));
	if (gantry_params()->net_buffers != PARAM_NET_BUFFERS_RING || (l->context->unpack && !c->send))
		return net_pool_join(nc, c->nranks, own_max_step(c), c->me->coll_step);
	nc->ring_size = GANTRY_STEPS * c->max_step;
	return net_link_alloc(l, nc->ring_size, &nc->ring_host, &nc->ring_dev, &nc->ring_mr);
}

static gantry_result connect_end(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	struct net_conn *nc = c->resources;
	struct gantry_conn *conn = &c->conn;
	struct net_info info;

	TRY_NOW(net_link_connect(c, nc->link, peer, &info));
	c->max_step = own_max_step(c) < info.max_step ? own_max_step(c) : info.max_step;
	if (!nc->pool_dev && !nc->ring_dev)
		TRY_NOW(make_buffers(c, nc));
	gantry_end_fill_proxied(c, (void *)nc->block_dev);
	if (!gantry_ends_keep_lines(c))
		nc->rings.at[GANTRY_PROTO_LL128] = 0;
	gantry_rings_fill(conn, &nc->rings, nc->block_dev, 0);
	conn->step_bytes[GANTRY_PROTO_SIMPLE] = (uint32_t)c->max_step;
	conn->buffs[GANTRY_PROTO_SIMPLE] = nc->ring_dev;
	if (!nc->ring_dev) {
		conn->pool = nc->pool_dev;
		conn->flags |= GANTRY_CONN_OFFSET;
	}
	c->any_memory = nc->link->context->any_memory;
	if (nc->link->context->unpack && !c->send)
		return net_unpack_fill(nc->link, conn);
	c->sharing = GANTRY_SHARES_REGISTERED;
	return GANTRY_OK;
}

/* Only now may other channels of the link group with this one. */
static gantry_result proxy_connect(struct gantry_connector *c)
{
	struct net_conn *nc = c->resources;
	struct gantry_net *net = nc->link->context->net;

	if (nc->link->tagged)
		TRY_NOW(net->ops->hold(net, nc->link->comm, NET_TAG_GATED + c->channel));
	if (c->send && nc->link->tagged) {
		TRY_NOW(net->ops->hasten(net, nc->link->comm, NET_TAG_EAGER + c->channel, 0));
		if (!nc->link->shared)
			TRY_NOW(net->ops->hasten(net, nc->link->comm, c->channel, 1));
	}
	ASSERT(c->channel < NET_CHANNELS_MAX && !nc->link->subs[c->channel]);
	if (nc->link->nsubs <= c->channel)
		nc->link->nsubs = c->channel + 1;
	nc->link->subs[c->channel] = c->proxy;
	return GANTRY_OK;
}

static void proxy_free(struct gantry_connector *c)
{
	struct net_conn *nc = c->resources;

	if (!nc)
		return;
	net_link_retire(nc);
	c->resources = NULL;
	if (c->proxy)
		c->proxy->resources = NULL;
}

static const struct gantry_transport_side side = {
	.struct_size = sizeof(struct gantry_transport_side),
	.setup = setup_end,
	.connect = connect_end,
	.free = gantry_transport_unsupported_free, /* all of it is the proxy's */
	.proxy_setup = proxy_setup,
	.proxy_connect = proxy_connect,
	.proxy_progress = net_progress,
	.proxy_register = net_register,
	.proxy_deregister = net_deregister,
	.proxy_free = proxy_free,
};

const struct gantry_transport gantry_transport_net = {
	.struct_size = sizeof(struct gantry_transport),
	.name = "net",
	.proxied = gantry_ends_proxied,
	.can_connect = can_connect,
	.send = &side,
	.recv = &side,
};
