/* SPDX-License-Identifier: Apache-2.0 */
/* Net interface v6: the oldest that NCCL 2.30 still takes. All sizes are int. */
#ifndef GANTRY_ABI_NET_V6_H
#define GANTRY_ABI_NET_V6_H

#include "abi/nccl_types.h"

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
} ncclNetProperties_v6_t;
NCCL_ABI_SIZE(ncclNetProperties_v6_t, 48);
NCCL_ABI_OFFSET(ncclNetProperties_v6_t, ptrSupport, 24);
NCCL_ABI_OFFSET(ncclNetProperties_v6_t, latency, 36);
NCCL_ABI_OFFSET(ncclNetProperties_v6_t, maxRecvs, 44);

typedef struct {
	const char *name;
	ncclResult_t (*init)(ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v6_t *props);
	ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(int dev, void *handle, void **sendComm);
	ncclResult_t (*accept)(void *listenComm, void **recvComm);
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
} ncclNet_v6_t;
NCCL_ABI_SIZE(ncclNet_v6_t, 136);
NCCL_ABI_OFFSET(ncclNet_v6_t, isend, 80);
NCCL_ABI_OFFSET(ncclNet_v6_t, test, 104);
NCCL_ABI_OFFSET(ncclNet_v6_t, closeListen, 128);

#endif
