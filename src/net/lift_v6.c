/* SPDX-License-Identifier: Apache-2.0 */
/* v6, v7 and v8: sizes of messages are int, no hint to irecv, no fused devices, no context. */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include <limits.h>

#include "base/log.h"
#include "net/lift.h"

static gantry_result narrow(const struct gantry_lift *l, const char *call, size_t size, int *ret_size)
{
	gantry_result r = GANTRY_OK;

	if (size > INT_MAX)
		FAIL(GANTRY_ERR_INVALID, "%s: %s of %zu bytes: v%d takes at most %d", l->label, call, size,
		     l->net.version, INT_MAX);
	*ret_size = (int)size;
out:
	return r;
}

static gantry_result reg_mr_int(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr)
{
	struct gantry_lift *l = net->impl;
	void *mr = NULL;
	gantry_result r;
	int s = 0;

	TRY(narrow(l, "regMr", size, &s));
	TRY(gantry_lift_result(l, "regMr", l->t.v6.regMr(comm, data, s, type, &mr)));
	*ret_mr = mr;
out:
	return r;
}

static gantry_result isend_int(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
			       void **ret_request)
{
	struct gantry_lift *l = net->impl;
	void *request = NULL;
	gantry_result r;
	int s = 0;

	TRY(narrow(l, "isend", size, &s));
	TRY(gantry_lift_result(l, "isend", l->t.v6.isend(comm, data, s, tag, mr, &request)));
	*ret_request = request;
out:
	return r;
}

static gantry_result irecv_int(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
			       const int *tags, void **mrs, void **request)
{
	struct gantry_lift *l = net->impl;
	int s[GANTRY_NET_MAX_RECVS];
	void *req = NULL; /* whatever *request was: these versions do not know the hint */
	gantry_result r;

	TRY(gantry_lift_check_count(l, n));
	for (int i = 0; i < n; i++)
		TRY(narrow(l, "irecv", sizes[i], &s[i]));
	TRY(gantry_lift_result(l, "irecv", l->t.v6.irecv(comm, n, data, s, (int *)tags, mrs, &req)));
	*request = req;
out:
	return r;
}

static gantry_result connect_v6(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_comm,
				struct gantry_net_device_handle **dev_handle)
{
	struct gantry_lift *l = net->impl;
	void *comm = NULL;
	gantry_result r;

	(void)ctx;
	(void)dev_handle;
	TRY(gantry_lift_result(l, "connect", l->t.v6.connect(dev, handle, &comm)));
	*ret_comm = comm;
out:
	return r;
}

static gantry_result accept_v6(struct gantry_net *net, void *listen, void **ret_comm,
			       struct gantry_net_device_handle **dev_handle)
{
	struct gantry_lift *l = net->impl;
	void *comm = NULL;
	gantry_result r;

	(void)dev_handle;
	TRY(gantry_lift_result(l, "accept", l->t.v6.accept(listen, &comm)));
	*ret_comm = comm;
out:
	return r;
}

/* clang-format off */
#define OPS_V6_TO_V8                                 \
	GANTRY_LIFT_SAME_IN_ALL,                     \
	.init = gantry_lift_init_once,               \
	.finalize = gantry_lift_finalize_once,       \
	.set_attr = gantry_lift_set_attr_none,       \
	.make_vdevice = gantry_lift_make_vdevice_none, \
	.listen = gantry_lift_listen_v6,             \
	.isend = isend_int,                          \
	.irecv = irecv_int
/* clang-format on */

const struct gantry_net_ops gantry_lift_ops_v6 = {
	OPS_V6_TO_V8,	      .get_properties = gantry_lift_properties_v6, .connect = connect_v6, .accept = accept_v6,
	.reg_mr = reg_mr_int,
};

const struct gantry_net_ops gantry_lift_ops_v7 = {
	OPS_V6_TO_V8,
	.get_properties = gantry_lift_properties_v7,
	.connect = gantry_lift_connect_v7,
	.accept = gantry_lift_accept,
	.reg_mr = reg_mr_int,
};

const struct gantry_net_ops gantry_lift_ops_v8 = {
	OPS_V6_TO_V8,
	.get_properties = gantry_lift_properties_v8,
	.connect = gantry_lift_connect_v7,
	.accept = gantry_lift_accept,
	.reg_mr = gantry_lift_reg_mr,
};
