/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints for a plugin (setNetAttr, v11 and later), in the places where NCCL gives them: before each call of connect and
 * accept what the communicator may come to need, and before isend and irecv what the operation at hand needs, if that is
 * not what the plugin was given last.
 *
 * A connection of Gantry's serves collectives, sends and receives alike, so connecting names no operation, where NCCL has
 * connections for the latter alone and says so.
 */
#include <string.h>

#include "transport/net_priv.h"

enum { SINCE = 11 };

static const struct gantry_net_attr_side any_side = {GANTRY_NET_UNDEF, GANTRY_NET_UNDEF, GANTRY_NET_UNDEF,
						     GANTRY_NET_UNDEF};
static const uint32_t any = (uint32_t)GANTRY_NET_UNDEF;

void net_attr_init(struct net_context *x)
{
	x->hints = x->net->version >= SINCE;
	net_attr_mu_lock(&x->attr_mu);
	x->attr = (struct gantry_net_attr){any_side, any_side, any, any, any};
	net_attr_mu_unlock(&x->attr_mu);
}

/* As NCCL, it does not look at the result: a plugin that has no use for a hint works without. */
static void give_hints(struct net_context *x, const struct gantry_net_attr *attr) REQUIRES(net_attr_mu)
{
	x->attr = *attr;
	(void)x->net->ops->set_attr(x->net, x->ctx, attr);
}

void net_attr_connect(struct net_context *x, const struct gantry_connector *c)
{
	const struct gantry_net_attr_side side = {.max_concurrent_peers = c->nranks - 1,
						  .min_concurrent_peers = 1,
						  .max_flows_per_peer = c->nchannels,
						  .min_flows_per_peer = 1};
	const struct gantry_net_attr attr = {side, side, any, any, any};

	if (!x->hints)
		return;
	net_attr_mu_lock(&x->attr_mu);
	give_hints(x, &attr);
	net_attr_mu_unlock(&x->attr_mu);
}

void net_attr_transfer(struct net_context *x, const struct gantry_proxy_op *op, int send)
{
	const struct gantry_net_attr_side side = {op->peers, op->peers, op->channels, op->channels};
	uint32_t algo = GANTRY_PROXY_ALGO(op->called);
	/* NCCL's numbers, of gantry_proto's names. */
	static const uint32_t protos[GANTRY_PROTOS] = {
		[GANTRY_PROTO_LL] = 1 << 0, [GANTRY_PROTO_LL128] = 1 << 1, [GANTRY_PROTO_SIMPLE] = 1 << 2};
	struct gantry_net_attr attr;

	if (!x->hints || !op->channels)
		return;
	net_attr_mu_lock(&x->attr_mu);
	attr = x->attr;
	*(send ? &attr.send : &attr.recv) = side;
	attr.op = 1u << GANTRY_PROXY_FUNC(op->called);
	attr.algo = op->exact || algo == GANTRY_NET_ALGO_NONE ? any : 1u << algo;
	attr.proto = op->exact ? any : protos[op->proto];
	if (memcmp(&attr, &x->attr, sizeof(attr)) != 0)
		give_hints(x, &attr);
	net_attr_mu_unlock(&x->attr_mu);
}
