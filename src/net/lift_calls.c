/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that look the same in all versions, or in several. */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include <stdlib.h>

#include "base/log.h"
#include "net/lift.h"

static struct gantry_lift *lift_of(struct gantry_net *net)
{
	return net->impl;
}

/* Calls an entry that is there in every version. */
#define CALL(l, version, entry, ...) gantry_lift_result((l), #entry, (l)->t.version.entry(__VA_ARGS__))

/* For entries that a plugin may leave out. */
#define NEED(l, entry)                                                                                                 \
	do {                                                                                                           \
		if (!(l)->t.v12.entry)                                                                                 \
			FAIL(GANTRY_ERR_UNSUPPORTED, "%s: the plugin has no " #entry " (v%d)", (l)->label,             \
			     (l)->net.version);                                                                        \
	} while (0)

/*
 * Up to v10 a plugin is initialised once, and knows no communicators: NCCL calls
 * init for the first one only, and has nothing to call for the last.
 */
gantry_result gantry_lift_init_once(struct gantry_net *net, uint64_t comm_id, const struct gantry_net_config *config,
				    void **ret_ctx)
{
	struct gantry_lift *l = lift_of(net);
	struct gantry_lift_ctx *ctx = calloc(1, sizeof(*ctx));
	gantry_result r = GANTRY_OK;

	(void)comm_id;
	pthread_mutex_lock(&l->lock);
	if (!ctx)
		FAIL(GANTRY_ERR_NOMEM, "%s: no memory for a context", l->label);
	ctx->config.trafficClass = config ? config->traffic_class : NCCL_NET_TRAFFIC_CLASS_UNDEF;
	if (l->users == 0) {
		if (net->version == 10)
			TRY(CALL(l, v10, init, l->logger, NULL));
		else
			TRY(CALL(l, v6, init, l->logger));
	}
	l->users++;
	*ret_ctx = ctx;
	ctx = NULL;
out:
	pthread_mutex_unlock(&l->lock);
	free(ctx);
	return r;
}

gantry_result gantry_lift_finalize_once(struct gantry_net *net, void *ctx)
{
	struct gantry_lift *l = lift_of(net);

	if (!ctx)
		return GANTRY_OK;
	pthread_mutex_lock(&l->lock);
	l->users--;
	pthread_mutex_unlock(&l->lock);
	free(ctx);
	return GANTRY_OK;
}

/* Attributes are hints: a plugin that cannot hear them is not at fault. */
gantry_result gantry_lift_set_attr_none(struct gantry_net *net, void *ctx, const struct gantry_net_attr *attr)
{
	(void)net;
	(void)ctx;
	(void)attr;
	return GANTRY_OK;
}

gantry_result gantry_lift_devices(struct gantry_net *net, int *ret_count)
{
	struct gantry_lift *l = lift_of(net);
	gantry_result r;
	int n = 0;

	TRY(CALL(l, v12, devices, &n));
	*ret_count = n;
out:
	return r;
}

gantry_result gantry_lift_make_vdevice_none(struct gantry_net *net, const struct gantry_net_vdevice *vdev, int *ret_dev)
{
	struct gantry_lift *l = lift_of(net);
	gantry_result r;

	(void)vdev;
	(void)ret_dev;
	FAIL(GANTRY_ERR_UNSUPPORTED, "%s: no fused devices before v9 (this is v%d)", l->label, net->version);
out:
	return r;
}

gantry_result gantry_lift_make_vdevice_v9(struct gantry_net *net, const struct gantry_net_vdevice *vdev, int *ret_dev)
{
	struct gantry_lift *l = lift_of(net);
	ncclNetVDeviceProps_v9_t props = {.ndevs = vdev->ndevs};
	gantry_result r;
	int dev = -1;

	NEED(l, makeVDevice);
	if (vdev->ndevs < 1 || vdev->ndevs > NCCL_NET_MAX_DEVS_PER_NIC_V9)
		FAIL(GANTRY_ERR_INVALID, "%s: a fused device of %d devices: v%d allows 1 to %d", l->label, vdev->ndevs,
		     net->version, NCCL_NET_MAX_DEVS_PER_NIC_V9);
	for (int i = 0; i < vdev->ndevs; i++)
		props.devs[i] = vdev->devs[i];
	TRY(CALL(l, v9, makeVDevice, &dev, &props));
	*ret_dev = dev;
out:
	return r;
}

gantry_result gantry_lift_listen_v6(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_listen)
{
	struct gantry_lift *l = lift_of(net);
	void *listen = NULL;
	gantry_result r;

	(void)ctx;
	TRY(CALL(l, v6, listen, dev, handle, &listen));
	*ret_listen = listen;
out:
	return r;
}

/* A caller without interest in device handles passes NULL; plugins expect a place that holds NULL. */
gantry_result gantry_lift_connect_v7(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_comm,
				     struct gantry_net_device_handle **dev_handle)
{
	struct gantry_lift *l = lift_of(net);
	ncclNetDeviceHandle_v7_t *none = NULL;
	void *comm = NULL;
	gantry_result r;

	(void)ctx;
	TRY(CALL(l, v7, connect, dev, handle, &comm, dev_handle ? (ncclNetDeviceHandle_v7_t **)dev_handle : &none));
	*ret_comm = comm;
out:
	return r;
}

gantry_result gantry_lift_accept(struct gantry_net *net, void *listen, void **ret_comm,
				 struct gantry_net_device_handle **dev_handle)
{
	struct gantry_lift *l = lift_of(net);
	ncclNetDeviceHandle_v7_t *none = NULL;
	void *comm = NULL;
	gantry_result r;

	TRY(CALL(l, v12, accept, listen, &comm, dev_handle ? (ncclNetDeviceHandle_v7_t **)dev_handle : &none));
	*ret_comm = comm;
out:
	return r;
}

gantry_result gantry_lift_close_send(struct gantry_net *net, void *comm)
{
	return CALL(lift_of(net), v12, closeSend, comm);
}

gantry_result gantry_lift_close_recv(struct gantry_net *net, void *comm)
{
	return CALL(lift_of(net), v12, closeRecv, comm);
}

gantry_result gantry_lift_close_listen(struct gantry_net *net, void *listen)
{
	return CALL(lift_of(net), v12, closeListen, listen);
}

gantry_result gantry_lift_reg_mr(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr)
{
	struct gantry_lift *l = lift_of(net);
	void *mr = NULL;
	gantry_result r;

	TRY(CALL(l, v12, regMr, comm, data, size, type, &mr));
	*ret_mr = mr;
out:
	return r;
}

gantry_result gantry_lift_reg_mr_dmabuf(struct gantry_net *net, void *comm, void *data, size_t size, int type,
					uint64_t offset, int fd, void **ret_mr)
{
	struct gantry_lift *l = lift_of(net);
	void *mr = NULL;
	gantry_result r;

	NEED(l, regMrDmaBuf);
	TRY(CALL(l, v12, regMrDmaBuf, comm, data, size, type, offset, fd, &mr));
	*ret_mr = mr;
out:
	return r;
}

gantry_result gantry_lift_dereg_mr(struct gantry_net *net, void *comm, void *mr)
{
	return CALL(lift_of(net), v12, deregMr, comm, mr);
}

gantry_result gantry_lift_get_device_mr(struct gantry_net *net, void *comm, void *mr, void **ret_dptr)
{
	struct gantry_lift *l = lift_of(net);
	void *dptr = NULL;
	gantry_result r;

	NEED(l, getDeviceMr);
	TRY(CALL(l, v12, getDeviceMr, comm, mr, &dptr));
	*ret_dptr = dptr;
out:
	return r;
}

gantry_result gantry_lift_isend_v10(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
				    void **ret_request)
{
	struct gantry_lift *l = lift_of(net);
	void *request = NULL;
	gantry_result r;

	TRY(CALL(l, v10, isend, comm, data, size, tag, mr, NULL, &request));
	*ret_request = request;
out:
	return r;
}

/* Plugins do not write to sizes and tags, though their types are not const. */
gantry_result gantry_lift_irecv_v10(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
				    const int *tags, void **mrs, void **request)
{
	struct gantry_lift *l = lift_of(net);
	void *phandles[GANTRY_NET_MAX_RECVS] = {NULL};
	void *req = *request == GANTRY_NET_OPTIONAL_RECV_COMPLETION ? *request : NULL;
	gantry_result r;

	TRY(gantry_lift_check_count(l, n));
	TRY(CALL(l, v10, irecv, comm, n, data, (size_t *)sizes, (int *)tags, mrs, phandles, &req));
	*request = req;
out:
	return r;
}

gantry_result gantry_lift_iflush(struct gantry_net *net, void *comm, int n, void **data, const int *sizes, void **mrs,
				 void **ret_request)
{
	struct gantry_lift *l = lift_of(net);
	void *request = NULL;
	gantry_result r;

	NEED(l, iflush);
	TRY(CALL(l, v12, iflush, comm, n, data, (int *)sizes, mrs, &request));
	*ret_request = request;
out:
	return r;
}

gantry_result gantry_lift_test(struct gantry_net *net, void *request, int *ret_done, int *sizes)
{
	struct gantry_lift *l = lift_of(net);
	gantry_result r;
	int done = 0;

	TRY(CALL(l, v12, test, request, &done, sizes));
	*ret_done = done;
out:
	return r;
}

/* NCCL skips the call where the plugin has none. */
gantry_result gantry_lift_irecv_consumed(struct gantry_net *net, void *comm, int n, void *request)
{
	struct gantry_lift *l = lift_of(net);

	return l->t.v12.irecvConsumed ? CALL(l, v12, irecvConsumed, comm, n, request) : GANTRY_OK;
}
