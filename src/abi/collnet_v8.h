/* SPDX-License-Identifier: Apache-2.0 */
/* CollNet interface v8: gathering and scattering collectives over lists of parts; regMr takes a size_t. */
#ifndef GANTRY_ABI_COLLNET_V8_H
#define GANTRY_ABI_COLLNET_V8_H

#include "abi/collnet_v7.h"
#include "abi/net_v8.h"

/* One part of a list: a registered piece of memory. */
typedef struct {
	void *mhandle;
	void *address;
	uint32_t size;
} ncclNetSGE_v8_t;
NCCL_ABI_SIZE(ncclNetSGE_v8_t, 24);
NCCL_ABI_OFFSET(ncclNetSGE_v8_t, size, 16);

typedef struct {
	const char *name;
	ncclResult_t (*init)(ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v8_t *props);
	ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
	ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
	ncclResult_t (*regMr)(void *collComm, void *data, size_t size, int type, void **mhandle);
	ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
				    void **mhandle);
	ncclResult_t (*deregMr)(void *collComm, void *mhandle);
	ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, int count, ncclDataType_t dataType,
				   ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
	ncclResult_t (*iallgather)(void *collComm, void *sendData, int nRecvParts, ncclNetSGE_v8_t *recvParts,
				   size_t bytesPerRank, size_t windowOffset, size_t windowBytes, void *sendMhandle,
				   void **request);
	ncclResult_t (*ireducescatter)(void *collComm, int nSendParts, ncclNetSGE_v8_t *sendParts, void *recvData,
				       size_t bytesPerRank, size_t windowOffset, size_t windowBytes,
				       ncclDataType_t dataType, ncclRedOp_t redOp, void *recvMhandle, void **request);
	ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
	ncclResult_t (*test)(void *request, int *done, int *size);
	ncclResult_t (*closeColl)(void *collComm);
	ncclResult_t (*closeListen)(void *listenComm);
} ncclCollNet_v8_t;
NCCL_ABI_SIZE(ncclCollNet_v8_t, 136);
NCCL_ABI_OFFSET(ncclCollNet_v8_t, iallreduce, 80);
NCCL_ABI_OFFSET(ncclCollNet_v8_t, closeListen, 128);

#endif
