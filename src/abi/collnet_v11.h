/* SPDX-License-Identifier: Apache-2.0 */
/* CollNet interface v11: a context per communicator, as in net v11. */
#ifndef GANTRY_ABI_COLLNET_V11_H
#define GANTRY_ABI_COLLNET_V11_H

#include "abi/collnet_v10.h"
#include "abi/net_v11.h"

typedef ncclNetSGE_v9_t ncclNetSGE_v11_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t *props);
	ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
	ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
	ncclResult_t (*regMr)(void *collComm, void *data, size_t size, int type, void **mhandle);
	ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
				    void **mhandle);
	ncclResult_t (*deregMr)(void *collComm, void *mhandle);
	ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, size_t count,
				   ncclDataType_t dataType, ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle,
				   void **request);
	ncclResult_t (*iallgather)(void *collComm, void *sendData, int nRecvParts, ncclNetSGE_v11_t *recvParts,
				   size_t bytesPerRank, size_t windowOffset, size_t windowBytes, void *sendMhandle,
				   void **request);
	ncclResult_t (*ireducescatter)(void *collComm, int nSendParts, ncclNetSGE_v11_t *sendParts, void *recvData,
				       size_t bytesPerRank, size_t windowOffset, size_t windowBytes,
				       ncclDataType_t dataType, ncclRedOp_t redOp, void *recvMhandle, void **request);
	ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
	ncclResult_t (*test)(void *request, int *done, int *size);
	ncclResult_t (*closeColl)(void *collComm);
	ncclResult_t (*closeListen)(void *listenComm);
	ncclResult_t (*makeVDevice)(int *dev, ncclNetVDeviceProps_v11_t *props);
	ncclResult_t (*finalize)(void *ctx);
} ncclCollNet_v11_t;
NCCL_ABI_SIZE(ncclCollNet_v11_t, 152);
NCCL_ABI_OFFSET(ncclCollNet_v11_t, iallreduce, 80);
NCCL_ABI_OFFSET(ncclCollNet_v11_t, closeListen, 128);

#endif
