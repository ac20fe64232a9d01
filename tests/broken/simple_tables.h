/* SPDX-License-Identifier: Apache-2.0 */
/* The tables over simple_net.h: v8 and v11. Included by it, at its end. */
#ifndef GANTRY_TESTS_SIMPLE_TABLES_H
#define GANTRY_TESTS_SIMPLE_TABLES_H

static char simple_name[] = "simple";
enum { SIMPLE_MBITS = 10000, SIMPLE_COMMS = 1024 };

static ncclResult_t init_v8(ncclDebugLogger_t log)
{
	(void)log;
	return ncclSuccess;
}

static ncclResult_t properties_v8(int dev, ncclNetProperties_v8_t *props)
{
	if (dev != 0)
		return ncclInvalidArgument;
	*props = (ncclNetProperties_v8_t){
		.name = simple_name,
		.ptrSupport = NCCL_PTR_HOST,
		.speed = SIMPLE_MBITS,
		.maxComms = SIMPLE_COMMS,
		.maxRecvs = MAX_RECVS,
		.netDeviceType = NCCL_NET_DEVICE_HOST,
	};
	return ncclSuccess;
}

static ncclResult_t isend_v8(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
	(void)mhandle;
	return post_send(comm, data, (size_t)size, tag, request);
}

static ncclResult_t irecv_v8(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
	size_t wide[MAX_RECVS];

	(void)mhandles;
	for (int k = 0; k < n && k < MAX_RECVS; k++)
		wide[k] = (size_t)sizes[k];
	return post_recv(comm, n, data, wide, tags, request);
}

extern const ncclNet_v8_t ncclNetPlugin_v8;
EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
	.name = simple_name,
	.init = init_v8,
	.devices = simple_devices,
	.getProperties = properties_v8,
	.listen = simple_listen,
	.connect = simple_connect,
	.accept = simple_accept,
	.regMr = simple_reg,
	.deregMr = simple_dereg,
	.isend = isend_v8,
	.irecv = irecv_v8,
	.iflush = simple_flush,
	.test = simple_test,
	.closeSend = simple_close,
	.closeRecv = simple_close,
	.closeListen = simple_close_listen,
};

static ncclResult_t init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
			     ncclProfilerCallback_t profiler)
{
	(void)comm_id, (void)config, (void)log, (void)profiler;
	*ctx = malloc(1);
	return *ctx ? ncclSuccess : ncclSystemError;
}

static ncclResult_t finalize_v11(void *ctx)
{
	free(ctx);
	return ncclSuccess;
}

static ncclResult_t properties_v11(int dev, ncclNetProperties_v11_t *props)
{
	if (dev != 0)
		return ncclInvalidArgument;
	*props = (ncclNetProperties_v11_t){
		.name = simple_name,
		.ptrSupport = NCCL_PTR_HOST,
		.speed = SIMPLE_MBITS,
		.maxComms = SIMPLE_COMMS,
		.maxRecvs = MAX_RECVS,
		.netDeviceType = NCCL_NET_DEVICE_HOST,
		.vProps = {.ndevs = 1, .devs = {0}},
		.maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES,
		.maxCollBytes = NCCL_MAX_COLLNET_SIZE_BYTES,
		.maxMultiRequestSize = 1,
	};
#ifdef SIMPLE_PROPERTIES
	SIMPLE_PROPERTIES(props);
#endif
	return ncclSuccess;
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
	return simple_listen(dev, handle, listen_comm);
}

static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v11_t **dev_handle)
{
	(void)ctx;
	return simple_connect(dev, handle, comm, dev_handle);
}

static ncclResult_t isend_v11(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
			      void **request)
{
	(void)mhandle, (void)phandle;
	return post_send(comm, data, size, tag, request);
}

static ncclResult_t irecv_v11(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
			      void **phandles, void **request)
{
	(void)mhandles, (void)phandles;
	return post_recv(comm, n, data, sizes, tags, request);
}

extern const ncclNet_v11_t ncclNetPlugin_v11;
EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
	.name = simple_name,
	.init = init_v11,
	.devices = simple_devices,
	.getProperties = properties_v11,
	.listen = listen_v11,
	.connect = connect_v11,
	.accept = simple_accept,
	.regMr = simple_reg,
	.deregMr = simple_dereg,
	.isend = isend_v11,
	.irecv = irecv_v11,
	.iflush = simple_flush,
	.test = simple_test,
	.closeSend = simple_close,
	.closeRecv = simple_close,
	.closeListen = simple_close_listen,
	.finalize = finalize_v11,
};

#endif
