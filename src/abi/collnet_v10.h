/* SPDX-License-Identifier: Apache-2.0 */
/* CollNet interface v10: v9's, with v10's names. */
#ifndef GANTRY_ABI_COLLNET_V10_H
#define GANTRY_ABI_COLLNET_V10_H

#include "abi/collnet_v9.h"
#include "abi/net_v10.h"

typedef ncclNetSGE_v9_t ncclNetSGE_v10_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v10_t *props);
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
	ncclResult_t (*iallgather)(void *collComm, void *sendData, int nRecvParts, ncclNetSGE_v10_t *recvParts,
				   size_t bytesPerRank, size_t windowOffset, size_t windowBytes, void *sendMhandle,
				   void **request);
	ncclResult_t (*ireducescatter)(void *collComm, int nSendParts, ncclNetSGE_v10_t *sendParts, void *recvData,
				       size_t bytesPerRank, size_t windowOffset, size_t windowBytes,
				       ncclDataType_t dataType, ncclRedOp_t redOp, void *recvMhandle, void **request);
	ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
	ncclResult_t (*test)(void *request, int *done, int *size);
	ncclResult_t (*closeColl)(void *collComm);
	ncclResult_t (*closeListen)(void *listenComm);
	ncclResult_t (*makeVDevice)(int *dev, ncclNetVDeviceProps_v10_t *props);
} ncclCollNet_v10_t;
NCCL_ABI_SIZE(ncclCollNet_v10_t, 144);
NCCL_ABI_OFFSET(ncclCollNet_v10_t, iallreduce, 80);
NCCL_ABI_OFFSET(ncclCollNet_v10_t, closeListen, 128);

#endif
