/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Networks of device type UNPACK: what is received lies on pages, a list of the network's device handle says where, and a
 * kernel gathers it (device/k_gather.h). Lists are taken in the order of posting, by every receive that is not marked as
 * one of LL or LL128. A list is the network's again after irecv_consumed, which follows the kernel's head.
 *
 * Each channel has a connection of its own: kernels of several would wait for each other's lists. A connection has 16
 * lists and at most GANTRY_STEPS receives in flight, so it never waits for one.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "base/log.h"
#include "transport/net_priv.h"

_Static_assert((int)GANTRY_STEPS <= (int)GANTRY_UNPACK_DEPTH, "a step in flight has a list");
_Static_assert(NET_POOL_UNIT % GANTRY_UNPACK_DEPTH == 0, "places in the pool have room for the number of a list");

/* From here on *request says whether a receive takes a list. Before v9 of the interface all do. */
enum { MARKS_SINCE = 9 };

gantry_result net_unpack_fill(struct net_link *l, struct gantry_conn *conn)
{
	const struct gantry_net_device_handle *h = l->device_handle;
	const struct gantry_net *net = l->context->net;
	struct gantry_unpack_handle own;

	if (!h || h->type != GANTRY_NET_DEVICE_UNPACK || h->version != GANTRY_UNPACK_VERSION || !h->handle)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "network %s is of device type UNPACK, but accept of rank %d gave type %d",
			 net->name, l->peer, h ? h->type : -1);
	/* It may be memory that only the device reads. */
	TRY_NOW(l->device->ops->copy(l->device, &own, h->handle, sizeof(own)));
	if (!own.meta)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "network %s gave a device handle without lists", net->name);
	/* NCCL posts no receives then, and waits for ever. */
	if (!h->needs_proxy_progress)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "the device handle of network %s has needsProxyProgress 0: kernels read lists, but the "
			 "progress thread must post the receives",
			 net->name);
	conn->lists = own.meta;
	conn->pages = own.bounce_buf;
	conn->list_head = &((struct gantry_unpack_handle *)h->handle)->head;
	conn->list = own.head;
	conn->flags |= GANTRY_CONN_UNPACK;
	return GANTRY_OK;
}

/* What the plugin gives for kernels goes unread here, as in NCCL's kernels: lists name all that they need. */
gantry_result net_unpack_registered(const struct net_link *l, void *mr)
{
	void *dptr = NULL;

	if (!l->context->unpack || l->send)
		return GANTRY_OK;
	return l->context->net->ops->get_device_mr(l->context->net, l->comm, mr, &dptr);
}

void net_unpack_mark(const struct net_link *l, const struct gantry_proxy_op *op, struct net_recv *recv)
{
	if (l->context->unpack && op->proto != GANTRY_PROTO_SIMPLE)
		recv->request = GANTRY_NET_OPTIONAL_RECV_COMPLETION;
}

void net_unpack_posted(struct net_link *l, const struct gantry_proxy_op *op, void *request, struct net_step *s)
{
	const int version = l->context->net->version;

	s->request = NULL;
	if (!l->context->unpack || (op->proto != GANTRY_PROTO_SIMPLE && (!version || version >= MARKS_SINCE)))
		return;
	s->request = request;
	s->place |= l->lists++ % GANTRY_UNPACK_DEPTH;
}

gantry_result net_unpack_consumed(struct net_link *l, struct net_step *s)
{
	void *request = s->request;

	s->request = NULL;
	return request ? l->context->net->ops->irecv_consumed(l->context->net, l->comm, 1, request) : GANTRY_OK;
}
