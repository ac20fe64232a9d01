/* SPDX-License-Identifier: Apache-2.0 */
/* Net interface v8: registrations may be global, and regMr takes a size_t. */
#ifndef GANTRY_ABI_NET_V8_H
#define GANTRY_ABI_NET_V8_H

#include "abi/net_v7.h"

typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v8_t;

typedef struct {
	char *name;
	char *pciPath;
	uint64_t guid;
	int ptrSupport;
	int regIsGlobal;
	int speed;
	int port;
	float latency;
	int maxComms;
	int maxRecvs;
	ncclNetDeviceType netDeviceType;
	int netDeviceVersion;
} ncclNetProperties_v8_t;
NCCL_ABI_SIZE(ncclNetProperties_v8_t, 64);
NCCL_ABI_OFFSET(ncclNetProperties_v8_t, regIsGlobal, 28);
NCCL_ABI_OFFSET(ncclNetProperties_v8_t, speed, 32);
NCCL_ABI_OFFSET(ncclNetProperties_v8_t, netDeviceType, 52);

typedef struct {
	const char *name;
	ncclResult_t (*init)(ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v8_t *props);
	ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v8_t **sendDevComm);
	ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v8_t **recvDevComm);
	ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
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
} ncclNet_v8_t;
NCCL_ABI_SIZE(ncclNet_v8_t, 152);
NCCL_ABI_OFFSET(ncclNet_v8_t, irecvConsumed, 144);

#endif
