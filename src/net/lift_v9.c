/* SPDX-License-Identifier: Apache-2.0 */
/* v9 and v10: size_t everywhere and fused devices, but no context yet. v10's configuration comes with connect. */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include "base/log.h"
#include "net/lift.h"

static gantry_result isend_v9(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
			      void **ret_request)
{
	struct gantry_lift *l = net->impl;
	void *request = NULL;
	gantry_result r;

	TRY(gantry_lift_result(l, "isend", l->t.v9.isend(comm, data, size, tag, mr, &request)));
	*ret_request = request;
out:
	return r;
}

static gantry_result irecv_v9(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
			      const int *tags, void **mrs, void **request)
{
	struct gantry_lift *l = net->impl;
	void *req = *request == GANTRY_NET_OPTIONAL_RECV_COMPLETION ? *request : NULL;
	gantry_result r;

	TRY(gantry_lift_check_count(l, n));
	TRY(gantry_lift_result(l, "irecv", l->t.v9.irecv(comm, n, data, (size_t *)sizes, (int *)tags, mrs, &req)));
	*request = req;
out:
	return r;
}

static gantry_result connect_v10(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_comm,
				 struct gantry_net_device_handle **dev_handle)
{
	struct gantry_lift *l = net->impl;
	struct gantry_lift_ctx *c = ctx;
	ncclNetDeviceHandle_v10_t *none = NULL;
	void *comm = NULL;
	gantry_result r;

	if (!ctx)
		FAIL(GANTRY_ERR_INVALID, "%s: connect without a context from init", l->label);
	TRY(gantry_lift_result(l, "connect",
			       l->t.v10.connect(dev, &c->config, handle, &comm,
						dev_handle ? (ncclNetDeviceHandle_v10_t **)dev_handle : &none)));
	*ret_comm = comm;
out:
	return r;
}

/* clang-format off */
#define OPS_V9_TO_V10                                \
	GANTRY_LIFT_SAME_IN_ALL,                     \
	.init = gantry_lift_init_once,               \
	.finalize = gantry_lift_finalize_once,       \
	.set_attr = gantry_lift_set_attr_none,       \
	.get_properties = gantry_lift_properties_v9, \
	.make_vdevice = gantry_lift_make_vdevice_v9, \
	.listen = gantry_lift_listen_v6,             \
	.accept = gantry_lift_accept,                \
	.reg_mr = gantry_lift_reg_mr
/* clang-format on */

const struct gantry_net_ops gantry_lift_ops_v9 = {
	OPS_V9_TO_V10,
	.connect = gantry_lift_connect_v7,
	.isend = isend_v9,
	.irecv = irecv_v9,
};

const struct gantry_net_ops gantry_lift_ops_v10 = {
	OPS_V9_TO_V10,
	.connect = connect_v10,
	.isend = gantry_lift_isend_v10,
	.irecv = gantry_lift_irecv_v10,
};
