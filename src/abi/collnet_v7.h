/* SPDX-License-Identifier: Apache-2.0 */
/* CollNet interface v7: v6 with v7's properties. */
#ifndef GANTRY_ABI_COLLNET_V7_H
#define GANTRY_ABI_COLLNET_V7_H

#include "abi/collnet_v6.h"
#include "abi/net_v7.h"

typedef struct {
	const char *name;
	ncclResult_t (*init)(ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v7_t *props);
	ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
	ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
	ncclResult_t (*regMr)(void *collComm, void *data, int size, int type, void **mhandle);
	ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
				    void **mhandle);
	ncclResult_t (*deregMr)(void *collComm, void *mhandle);
	ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, int count, ncclDataType_t dataType,
				   ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
	ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
	ncclResult_t (*test)(void *request, int *done, int *size);
	ncclResult_t (*closeColl)(void *collComm);
	ncclResult_t (*closeListen)(void *listenComm);
} ncclCollNet_v7_t;
NCCL_ABI_SIZE(ncclCollNet_v7_t, 120);
NCCL_ABI_OFFSET(ncclCollNet_v7_t, iallreduce, 80);
NCCL_ABI_OFFSET(ncclCollNet_v7_t, closeListen, 112);

#endif
