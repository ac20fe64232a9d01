/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Net interface v9: fused (virtual) devices, and size_t for messages. iflush's
 * and test's sizes stay int. irecv may be entered with a hint in *request.
 */
#ifndef GANTRY_ABI_NET_V9_H
#define GANTRY_ABI_NET_V9_H

#include "abi/net_v8.h"

typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v9_t;

typedef struct {
	int ndevs;
	int devs[NCCL_NET_MAX_DEVS_PER_NIC_V9];
} ncclNetVDeviceProps_v9_t;
NCCL_ABI_SIZE(ncclNetVDeviceProps_v9_t, 20);

typedef struct {
	char *name;
	char *pciPath;
	uint64_t guid;
	int ptrSupport;
	int regIsGlobal;
	int forceFlush;
	int speed;
	int port;
	float latency;
	int maxComms;
	int maxRecvs;
	ncclNetDeviceType netDeviceType;
	int netDeviceVersion;
	ncclNetVDeviceProps_v9_t vProps;
	size_t maxP2pBytes;
	size_t maxCollBytes;
} ncclNetProperties_v9_t;
NCCL_ABI_SIZE(ncclNetProperties_v9_t, 104);
NCCL_ABI_OFFSET(ncclNetProperties_v9_t, forceFlush, 32);
NCCL_ABI_OFFSET(ncclNetProperties_v9_t, vProps, 64);
NCCL_ABI_OFFSET(ncclNetProperties_v9_t, maxP2pBytes, 88);

typedef struct {
	const char *name;
	ncclResult_t (*init)(ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v9_t *props);
	ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v9_t **sendDevComm);
	ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v9_t **recvDevComm);
	ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
	ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				    void **mhandle);
	ncclResult_t (*deregMr)(void *comm, void *mhandle);
	ncclResult_t (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void **request);
	ncclResult_t (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
			      void **request);
	ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
	ncclResult_t (*test)(void *request, int *done, int *sizes);
	ncclResult_t (*closeSend)(void *sendComm);
	ncclResult_t (*closeRecv)(void *recvComm);
	ncclResult_t (*closeListen)(void *listenComm);
	ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
	ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);
	ncclResult_t (*makeVDevice)(int *dev, ncclNetVDeviceProps_v9_t *props);
} ncclNet_v9_t;
NCCL_ABI_SIZE(ncclNet_v9_t, 160);
NCCL_ABI_OFFSET(ncclNet_v9_t, makeVDevice, 152);

#endif
