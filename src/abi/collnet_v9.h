/* SPDX-License-Identifier: Apache-2.0 */
/* CollNet interface v9: size_t for counts and parts; fused devices. */
#ifndef GANTRY_ABI_COLLNET_V9_H
#define GANTRY_ABI_COLLNET_V9_H

#include "abi/collnet_v8.h"
#include "abi/net_v9.h"

typedef struct {
	void *mhandle;
	void *address;
	size_t size;
} ncclNetSGE_v9_t;
NCCL_ABI_SIZE(ncclNetSGE_v9_t, 24);
NCCL_ABI_OFFSET(ncclNetSGE_v9_t, size, 16);

typedef struct {
	const char *name;
	ncclResult_t (*init)(ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v9_t *props);
	ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
	ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
	ncclResult_t (*regMr)(void *collComm, void *data, size_t size, int type, void **mhandle);
	ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
				    void **mhandle);
	ncclResult_t (*deregMr)(void *collComm, void *mhandle);
	ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, size_t count,
				   ncclDataType_t dataType, ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle,
				   void **request);
	ncclResult_t (*iallgather)(void *collComm, void *sendData, int nRecvParts, ncclNetSGE_v9_t *recvParts,
				   size_t bytesPerRank, size_t windowOffset, size_t windowBytes, void *sendMhandle,
				   void **request);
	ncclResult_t (*ireducescatter)(void *collComm, int nSendParts, ncclNetSGE_v9_t *sendParts, void *recvData,
				       size_t bytesPerRank, size_t windowOffset, size_t windowBytes,
				       ncclDataType_t dataType, ncclRedOp_t redOp, void *recvMhandle, void **request);
	ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
	ncclResult_t (*test)(void *request, int *done, int *size);
	ncclResult_t (*closeColl)(void *collComm);
	ncclResult_t (*closeListen)(void *listenComm);
	ncclResult_t (*makeVDevice)(int *dev, ncclNetVDeviceProps_v9_t *props);
} ncclCollNet_v9_t;
NCCL_ABI_SIZE(ncclCollNet_v9_t, 144);
NCCL_ABI_OFFSET(ncclCollNet_v9_t, iallreduce, 80);
NCCL_ABI_OFFSET(ncclCollNet_v9_t, closeListen, 128);

#endif
