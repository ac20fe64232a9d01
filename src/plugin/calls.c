/* SPDX-License-Identifier: Apache-2.0 */
/* Entries whose signature outlived several versions: straight calls into the core. */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include "base/log.h"
#include "plugin/plugin.h"

/* NCCL's device handle is handed to the core as it is. */
#define SAME_PLACE(ours, nccls)                                                                                        \
	_Static_assert(offsetof(struct gantry_net_device_handle, ours) == offsetof(ncclNetDeviceHandle_v7_t, nccls),   \
		       "the core writes into NCCL's device handle: the layouts must be one")
SAME_PLACE(type, netDeviceType);
SAME_PLACE(version, netDeviceVersion);
SAME_PLACE(handle, handle);
SAME_PLACE(size, size);
SAME_PLACE(needs_proxy_progress, needsProxyProgress);
_Static_assert(sizeof(struct gantry_net_device_handle) == sizeof(ncclNetDeviceHandle_v7_t),
	       "the core writes into NCCL's device handle: the layouts must be one");

/* Calls an operation of the core. */
#define CALL(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

/*
 * For calls that may say "not yet": the core does so by success with a NULL
 * comm or request, and "again" means the same.
 */
static ncclResult_t maybe(gantry_result r, void *value, void **ret_value)
{
	if (r == GANTRY_AGAIN) {
		value = NULL;
		r = GANTRY_OK;
	}
	if (r == GANTRY_OK)
		*ret_value = value;
	return gantry_plugin_result(r);
}

ncclResult_t gantry_plugin_devices(int *ndev)
{
	return gantry_plugin_result(CALL(devices, ndev));
}

ncclResult_t gantry_plugin_listen(void *ctx, int dev, void *handle, void **listen)
{
	return gantry_plugin_result(CALL(listen, ctx, dev, handle, listen));
}

ncclResult_t gantry_plugin_connect(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **dev_handle)
{
	void *c = NULL;
	gantry_result r = CALL(connect, ctx, dev, handle, &c, (struct gantry_net_device_handle **)dev_handle);

	return maybe(r, c, comm);
}

ncclResult_t gantry_plugin_accept(void *listen, void **comm, ncclNetDeviceHandle_v7_t **dev_handle)
{
	void *c = NULL;
	gantry_result r = CALL(accept, listen, &c, (struct gantry_net_device_handle **)dev_handle);

	return maybe(r, c, comm);
}

ncclResult_t gantry_plugin_close_send(void *comm)
{
	return gantry_plugin_result(CALL(close_send, comm));
}

ncclResult_t gantry_plugin_close_recv(void *comm)
{
	return gantry_plugin_result(CALL(close_recv, comm));
}

ncclResult_t gantry_plugin_close_listen(void *listen)
{
	return gantry_plugin_result(CALL(close_listen, listen));
}

ncclResult_t gantry_plugin_reg_mr(void *comm, void *data, size_t size, int type, void **mr)
{
	return gantry_plugin_result(CALL(reg_mr, comm, data, size, type, mr));
}

ncclResult_t gantry_plugin_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
					 void **mr)
{
	return gantry_plugin_result(CALL(reg_mr_dmabuf, comm, data, size, type, offset, fd, mr));
}

ncclResult_t gantry_plugin_dereg_mr(void *comm, void *mr)
{
	return gantry_plugin_result(CALL(dereg_mr, comm, mr));
}

ncclResult_t gantry_plugin_get_device_mr(void *comm, void *mr, void **dptr)
{
	return gantry_plugin_result(CALL(get_device_mr, comm, mr, dptr));
}

ncclResult_t gantry_plugin_isend(void *comm, void *data, size_t size, int tag, void *mr, void **request)
{
	void *req = NULL;
	gantry_result r = CALL(isend, comm, data, size, tag, mr, &req);

	return maybe(r, req, request);
}

/* *request is a hint on entry, but only that one value: else it is whatever NCCL left there. */
ncclResult_t gantry_plugin_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mrs, void **request)
{
	void *req = *request == GANTRY_NET_OPTIONAL_RECV_COMPLETION ? *request : NULL;
	gantry_result r = CALL(irecv, comm, n, data, sizes, tags, mrs, &req);

	return maybe(r, req, request);
}

ncclResult_t gantry_plugin_iflush(void *comm, int n, void **data, int *sizes, void **mrs, void **request)
{
	void *req = NULL;
	gantry_result r = CALL(iflush, comm, n, data, sizes, mrs, &req);

	return maybe(r, req, request);
}

ncclResult_t gantry_plugin_test(void *request, int *done, int *sizes)
{
	int d = 0;
	gantry_result r = CALL(test, request, &d, sizes);

	if (r == GANTRY_AGAIN) {
		d = 0;
		r = GANTRY_OK;
	}
	if (r == GANTRY_OK)
		*done = d;
	return gantry_plugin_result(r);
}

ncclResult_t gantry_plugin_irecv_consumed(void *comm, int n, void *request)
{
	return gantry_plugin_result(CALL(irecv_consumed, comm, n, request));
}

ncclResult_t gantry_plugin_make_vdevice(int *dev, int ndevs, const int *devs, int max)
{
	struct gantry_net_vdevice v = {.ndevs = ndevs};
	gantry_result r;

	if (ndevs < 1 || ndevs > max)
		FAIL(GANTRY_ERR_INVALID, "a fused device of %d devices: 1 to %d are possible", ndevs, max);
	for (int i = 0; i < ndevs; i++)
		v.devs[i] = devs[i];
	TRY(CALL(make_vdevice, &v, dev));
out:
	return gantry_plugin_result(r);
}
