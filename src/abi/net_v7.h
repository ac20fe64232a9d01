/* SPDX-License-Identifier: Apache-2.0 */
/* Net interface v7: device networking. connect and accept fill a device handle; getDeviceMr and irecvConsumed are new.
 */
#ifndef GANTRY_ABI_NET_V7_H
#define GANTRY_ABI_NET_V7_H

#include "abi/net_v6.h"

/* The same through v12. NCCL allocates it for receivers whose device type is UNPACK; else the pointer to it is NULL. */
typedef struct {
	ncclNetDeviceType netDeviceType;
	int netDeviceVersion;
	void *handle;
	size_t size;
	int needsProxyProgress;
} ncclNetDeviceHandle_v7_t;
NCCL_ABI_SIZE(ncclNetDeviceHandle_v7_t, 32);
NCCL_ABI_OFFSET(ncclNetDeviceHandle_v7_t, handle, 8);
NCCL_ABI_OFFSET(ncclNetDeviceHandle_v7_t, size, 16);
NCCL_ABI_OFFSET(ncclNetDeviceHandle_v7_t, needsProxyProgress, 24);

typedef struct {
	char *name;
	char *pciPath;
	uint64_t guid;
	int ptrSupport;
	int speed;
	int port;
	float latency;
	int maxComms;
	int maxRecvs;
	ncclNetDeviceType netDeviceType;
	int netDeviceVersion;
} ncclNetProperties_v7_t;
NCCL_ABI_SIZE(ncclNetProperties_v7_t, 56);
NCCL_ABI_OFFSET(ncclNetProperties_v7_t, netDeviceType, 48);

typedef struct {
	const char *name;
	ncclResult_t (*init)(ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v7_t *props);
	ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v7_t **sendDevComm);
	ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v7_t **recvDevComm);
	ncclResult_t (*regMr)(void *comm, void *data, int size, int type, void **mhandle);
	ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				    void **mhandle);
	ncclResult_t (*deregMr)(void *comm, void *mhandle);
	ncclResult_t (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle, void **request);
	ncclResult_t (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles,
			      void **request);
	ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
	ncclResult_t (*test)(void *request, int *done, int *sizes);
	ncclResult_t (*closeSend)(void *sendComm);
	ncclResult_t (*closeRecv)(void *recvComm);
	ncclResult_t (*closeListen)(void *listenComm);
	ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
	ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);
} ncclNet_v7_t;
NCCL_ABI_SIZE(ncclNet_v7_t, 152);
NCCL_ABI_OFFSET(ncclNet_v7_t, closeListen, 128);
NCCL_ABI_OFFSET(ncclNet_v7_t, irecvConsumed, 144);

#endif
