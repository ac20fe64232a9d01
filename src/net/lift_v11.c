/* SPDX-License-Identifier: Apache-2.0 */
/* v11 and v12: a context per communicator. The two differ in properties and in the size of a fused device only. */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include <stdlib.h>

#include "base/log.h"
#include "net/lift.h"

static gantry_result init_v11(struct gantry_net *net, uint64_t comm_id, const struct gantry_net_config *config,
			      void **ret_ctx)
{
	struct gantry_lift *l = net->impl;
	struct gantry_lift_ctx *ctx = calloc(1, sizeof(*ctx));
	gantry_result r = GANTRY_OK;

	if (!ctx)
		FAIL(GANTRY_ERR_NOMEM, "%s: no memory for a context", l->label);
	ctx->config.trafficClass = config ? config->traffic_class : NCCL_NET_TRAFFIC_CLASS_UNDEF;
	TRY(gantry_lift_result(l, "init", l->t.v11.init(&ctx->ctx, comm_id, &ctx->config, l->logger, NULL)));
	*ret_ctx = ctx;
	ctx = NULL;
out:
	free(ctx);
	return r;
}

/* Whatever the plugin says, the context is gone. */
static gantry_result finalize_v11(struct gantry_net *net, void *ctx)
{
	struct gantry_lift *l = net->impl;
	struct gantry_lift_ctx *c = ctx;
	gantry_result r = GANTRY_OK;

	if (c && l->t.v11.finalize)
		r = gantry_lift_result(l, "finalize", l->t.v11.finalize(c->ctx));
	free(c);
	return r;
}

static ncclNetCommAttr_v11_t side(const struct gantry_net_attr_side *s)
{
	return (ncclNetCommAttr_v11_t){
		.maxConcurrentPeers = s->max_concurrent_peers,
		.minConcurrentPeers = s->min_concurrent_peers,
		.maxFlowsPerPeer = s->max_flows_per_peer,
		.minFlowsPerPeer = s->min_flows_per_peer,
	};
}

static gantry_result set_attr_v11(struct gantry_net *net, void *ctx, const struct gantry_net_attr *attr)
{
	struct gantry_lift *l = net->impl;
	struct gantry_lift_ctx *c = ctx;
	ncclNetAttr_v11_t a = {
		.sendCommAttr = side(&attr->send),
		.recvCommAttr = side(&attr->recv),
		.op = attr->op,
		.algo = attr->algo,
		.proto = attr->proto,
	};
	gantry_result r = GANTRY_OK;

	if (!c)
		FAIL(GANTRY_ERR_INVALID, "%s: setNetAttr without a context from init", l->label);
	if (l->t.v11.setNetAttr)
		TRY(gantry_lift_result(l, "setNetAttr", l->t.v11.setNetAttr(c->ctx, &a)));
out:
	return r;
}

static gantry_result listen_v11(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_listen)
{
	struct gantry_lift *l = net->impl;
	struct gantry_lift_ctx *c = ctx;
	void *listen = NULL;
	gantry_result r;

	if (!c)
		FAIL(GANTRY_ERR_INVALID, "%s: listen without a context from init", l->label);
	TRY(gantry_lift_result(l, "listen", l->t.v11.listen(c->ctx, dev, handle, &listen)));
	*ret_listen = listen;
out:
	return r;
}

static gantry_result connect_v11(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_comm,
				 struct gantry_net_device_handle **dev_handle)
{
	struct gantry_lift *l = net->impl;
	struct gantry_lift_ctx *c = ctx;
	ncclNetDeviceHandle_v11_t *none = NULL;
	void *comm = NULL;
	gantry_result r;

	if (!c)
		FAIL(GANTRY_ERR_INVALID, "%s: connect without a context from init", l->label);
	TRY(gantry_lift_result(l, "connect",
			       l->t.v11.connect(c->ctx, dev, handle, &comm,
						dev_handle ? (ncclNetDeviceHandle_v11_t **)dev_handle : &none)));
	*ret_comm = comm;
out:
	return r;
}

static gantry_result make_vdevice_v12(struct gantry_net *net, const struct gantry_net_vdevice *vdev, int *ret_dev)
{
	struct gantry_lift *l = net->impl;
	ncclNetVDeviceProps_v12_t props = {.ndevs = vdev->ndevs};
	gantry_result r;
	int dev = -1;

	if (!l->t.v12.makeVDevice)
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s: the plugin has no makeVDevice (v12)", l->label);
	if (vdev->ndevs < 1 || vdev->ndevs > NCCL_NET_MAX_DEVS_PER_NIC_V12)
		FAIL(GANTRY_ERR_INVALID, "%s: a fused device of %d devices: v12 allows 1 to %d", l->label, vdev->ndevs,
		     NCCL_NET_MAX_DEVS_PER_NIC_V12);
	for (int i = 0; i < vdev->ndevs; i++)
		props.devs[i] = vdev->devs[i];
	TRY(gantry_lift_result(l, "makeVDevice", l->t.v12.makeVDevice(&dev, &props)));
	*ret_dev = dev;
out:
	return r;
}

/* clang-format off */
#define OPS_V11_TO_V12                   \
	GANTRY_LIFT_SAME_IN_ALL,         \
	.init = init_v11,                \
	.finalize = finalize_v11,        \
	.set_attr = set_attr_v11,        \
	.listen = listen_v11,            \
	.connect = connect_v11,          \
	.accept = gantry_lift_accept,    \
	.reg_mr = gantry_lift_reg_mr,    \
	.isend = gantry_lift_isend_v10,  \
	.irecv = gantry_lift_irecv_v10
/* clang-format on */

const struct gantry_net_ops gantry_lift_ops_v11 = {
	OPS_V11_TO_V12,
	.get_properties = gantry_lift_properties_v11,
	.make_vdevice = gantry_lift_make_vdevice_v9,
};

const struct gantry_net_ops gantry_lift_ops_v12 = {
	OPS_V11_TO_V12,
	.get_properties = gantry_lift_properties_v12,
	.make_vdevice = make_vdevice_v12,
};
