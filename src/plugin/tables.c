/* SPDX-License-Identifier: Apache-2.0 */
/* The seven tables that NCCL looks for, newest first, and the few entries that belong to some versions only. */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include "base/log.h"
#include "plugin/plugin.h"

#define EXPORT __attribute__((visibility("default")))

_Static_assert(NCCL_NET_HANDLE_MAXSIZE == GANTRY_NET_HANDLE_SIZE, "the core fills NCCL's handle");
_Static_assert(NCCL_NET_MAX_DEVS_PER_NIC_V12 == GANTRY_NET_MAX_RAILS, "vProps of v12 are copied entry by entry");

/* v6 to v8: sizes are int. */

static gantry_result check_size(const char *what, int size)
{
	gantry_result r = GANTRY_OK;

	if (size < 0)
		FAIL(GANTRY_ERR_INVALID, "%s of %d bytes", what, size);
out:
	return r;
}

static ncclResult_t reg_mr_int(void *comm, void *data, int size, int type, void **mr)
{
	gantry_result r = check_size("a registration", size);

	return r ? gantry_plugin_result(r) : gantry_plugin_reg_mr(comm, data, (size_t)size, type, mr);
}

static ncclResult_t isend_int(void *comm, void *data, int size, int tag, void *mr, void **request)
{
	gantry_result r = check_size("a send", size);

	return r ? gantry_plugin_result(r) : gantry_plugin_isend(comm, data, (size_t)size, tag, mr, request);
}

static ncclResult_t irecv_int(void *comm, int n, void **data, int *sizes, int *tags, void **mrs, void **request)
{
	size_t wide[GANTRY_NET_MAX_RECVS];
	gantry_result r;

	if (n < 1 || n > GANTRY_NET_MAX_RECVS)
		FAIL(GANTRY_ERR_INVALID, "a receive of %d buffers: 1 to %d are possible", n, GANTRY_NET_MAX_RECVS);
	for (int i = 0; i < n; i++) {
		TRY(check_size("a receive", sizes[i]));
		wide[i] = (size_t)sizes[i];
	}
	*request = NULL; /* no hint before v9 */
	return gantry_plugin_irecv(comm, n, data, wide, tags, mrs, request);
out:
	return gantry_plugin_result(r);
}

/* v6: no device handles. */

static ncclResult_t accept_v6(void *listen, void **comm)
{
	ncclNetDeviceHandle_v7_t *none = NULL;

	return gantry_plugin_accept(listen, comm, &none);
}

/* v6 to v10: no context. v10's configuration comes with connect. */

static ncclResult_t listen_in(int unpack, int dev, void *handle, void **listen)
{
	void *ctx;
	gantry_result r = gantry_plugin_shared_context(GANTRY_NET_UNDEF, unpack, &ctx);

	return r ? gantry_plugin_result(r) : gantry_plugin_listen(ctx, dev, handle, listen);
}

static ncclResult_t connect_in(int unpack, int traffic_class, int dev, void *handle, void **comm,
			       ncclNetDeviceHandle_v7_t **dev_handle)
{
	void *ctx;
	gantry_result r = gantry_plugin_shared_context(traffic_class, unpack, &ctx);

	return r ? gantry_plugin_result(r) : gantry_plugin_connect(ctx, dev, handle, comm, dev_handle);
}

static ncclResult_t listen_v6(int dev, void *handle, void **listen)
{
	return listen_in(GANTRY_NET_UNPACK_OFF, dev, handle, listen);
}

static ncclResult_t listen_v9(int dev, void *handle, void **listen)
{
	return listen_in(GANTRY_NET_UNPACK_PARAM, dev, handle, listen);
}

static ncclResult_t connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **comm,
				ncclNetDeviceHandle_v7_t **dev_handle)
{
	return connect_in(GANTRY_NET_UNPACK_PARAM, config ? config->trafficClass : GANTRY_NET_UNDEF, dev, handle, comm,
			  dev_handle);
}

static ncclResult_t connect_v9(int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **dev_handle)
{
	return connect_v10(dev, NULL, handle, comm, dev_handle);
}

static ncclResult_t connect_v7(int dev, void *handle, void **comm, ncclNetDeviceHandle_v7_t **dev_handle)
{
	return connect_in(GANTRY_NET_UNPACK_OFF, GANTRY_NET_UNDEF, dev, handle, comm, dev_handle);
}

static ncclResult_t connect_v6(int dev, void *handle, void **comm)
{
	ncclNetDeviceHandle_v7_t *none = NULL;

	return connect_v7(dev, handle, comm, &none);
}

static ncclResult_t init_v6(ncclDebugLogger_t log)
{
	return gantry_plugin_init_shared(log, GANTRY_NET_UNPACK_OFF);
}

static ncclResult_t init_v9(ncclDebugLogger_t log)
{
	return gantry_plugin_init_shared(log, GANTRY_NET_UNPACK_PARAM);
}

static ncclResult_t init_v10(ncclDebugLogger_t log, ncclProfilerCallback_t profiler)
{
	(void)profiler;
	return init_v9(log);
}

/* v10 on: handles for events of the profiler, which the core does not use. */

static ncclResult_t isend_v10(void *comm, void *data, size_t size, int tag, void *mr, void *phandle, void **request)
{
	(void)phandle;
	return gantry_plugin_isend(comm, data, size, tag, mr, request);
}

static ncclResult_t irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mrs, void **phandles,
			      void **request)
{
	(void)phandles;
	return gantry_plugin_irecv(comm, n, data, sizes, tags, mrs, request);
}

static ncclResult_t make_vdevice_v9(int *dev, ncclNetVDeviceProps_v9_t *props)
{
	return gantry_plugin_make_vdevice(dev, props->ndevs, props->devs, NCCL_NET_MAX_DEVS_PER_NIC_V9);
}

static ncclResult_t make_vdevice_v12(int *dev, ncclNetVDeviceProps_v12_t *props)
{
	return gantry_plugin_make_vdevice(dev, props->ndevs, props->devs, NCCL_NET_MAX_DEVS_PER_NIC_V12);
}

/* clang-format off */
#define SINCE_V6                                         \
	.name = "gantry",                                \
	.devices = gantry_plugin_devices,                \
	.regMrDmaBuf = gantry_plugin_reg_mr_dmabuf,      \
	.deregMr = gantry_plugin_dereg_mr,               \
	.iflush = gantry_plugin_iflush,                  \
	.test = gantry_plugin_test,                      \
	.closeSend = gantry_plugin_close_send,           \
	.closeRecv = gantry_plugin_close_recv,           \
	.closeListen = gantry_plugin_close_listen
#define SINCE_V7                                         \
	SINCE_V6,                                        \
	.accept = gantry_plugin_accept,                  \
	.getDeviceMr = gantry_plugin_get_device_mr,      \
	.irecvConsumed = gantry_plugin_irecv_consumed
#define SINCE_V8                                         \
	SINCE_V7,                                        \
	.regMr = gantry_plugin_reg_mr
#define SINCE_V10                                        \
	SINCE_V8,                                        \
	.isend = isend_v10,                              \
	.irecv = irecv_v10
#define SINCE_V11                                        \
	SINCE_V10,                                       \
	.init = gantry_plugin_init,                      \
	.listen = gantry_plugin_listen,                  \
	.connect = gantry_plugin_connect,                \
	.finalize = gantry_plugin_finalize,              \
	.setNetAttr = gantry_plugin_set_attr
/* clang-format on */

EXPORT const ncclNet_v6_t ncclNetPlugin_v6 = {
	SINCE_V6,
	.init = init_v6,
	.getProperties = gantry_plugin_properties_v6,
	.listen = listen_v6,
	.connect = connect_v6,
	.accept = accept_v6,
	.regMr = reg_mr_int,
	.isend = isend_int,
	.irecv = irecv_int,
};

EXPORT const ncclNet_v7_t ncclNetPlugin_v7 = {
	SINCE_V7,
	.init = init_v6,
	.getProperties = gantry_plugin_properties_v7,
	.listen = listen_v6,
	.connect = connect_v7,
	.regMr = reg_mr_int,
	.isend = isend_int,
	.irecv = irecv_int,
};

EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
	SINCE_V8,
	.init = init_v6,
	.getProperties = gantry_plugin_properties_v8,
	.listen = listen_v6,
	.connect = connect_v7,
	.isend = isend_int,
	.irecv = irecv_int,
};

EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
	SINCE_V8,
	.init = init_v9,
	.getProperties = gantry_plugin_properties_v9,
	.listen = listen_v9,
	.connect = connect_v9,
	.isend = gantry_plugin_isend,
	.irecv = gantry_plugin_irecv,
	.makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
	SINCE_V10,	     .init = init_v10,	     .getProperties = gantry_plugin_properties_v9,
	.listen = listen_v9, .connect = connect_v10, .makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
	SINCE_V11,
	.getProperties = gantry_plugin_properties_v11,
	.makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
	SINCE_V11,
	.getProperties = gantry_plugin_properties_v12,
	.makeVDevice = make_vdevice_v12,
};
