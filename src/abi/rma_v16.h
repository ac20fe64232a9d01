/* SPDX-License-Identifier: Apache-2.0 */
/* RMA interface v16 (NCCL 2.32): what a collComm promises about its signals. */
#ifndef GANTRY_ABI_RMA_V16_H
#define GANTRY_ABI_RMA_V16_H

#include "abi/rma_v15.h"

typedef struct {
	bool flushesAllPutsOnAnySignal;
} ncclRmaProperties_v16_t;
NCCL_ABI_SIZE(ncclRmaProperties_v16_t, 1);

typedef ncclRmaConfig_v14_t ncclRmaConfig_v16_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getRmaProperties)(void *collComm, ncclRmaProperties_v16_t *props);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t *props);
	ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *ctx, void *handles[], int nranks, int rank, void *listenComm, void **collComm);
	ncclResult_t (*createContext)(void *collComm, ncclRmaConfig_v16_t *config, void **rmaCtx);
	ncclResult_t (*regMrSym)(void *collComm, void *data, size_t size, int type, uint64_t mrFlags, void **mhandle);
	ncclResult_t (*regMrSymDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
				       uint64_t mrFlags, void **mhandle);
	ncclResult_t (*deregMrSym)(void *collComm, void *mhandle);
	ncclResult_t (*destroyContext)(void *rmaCtx);
	ncclResult_t (*closeColl)(void *collComm);
	ncclResult_t (*closeListen)(void *listenComm);
	ncclResult_t (*iput)(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
			     void *dstMhandle, uint32_t rank, uint32_t optFlags, void **request);
	ncclResult_t (*iputSignal)(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size,
				   uint64_t dstOff, void *dstMhandle, uint32_t rank, uint64_t signalOff,
				   void *signalMhandle, uint64_t signalValue, uint32_t signalOp, bool isStrong,
				   uint32_t optFlags, void **request);
	ncclResult_t (*iget)(void *rmaCtx, int context, uint64_t remoteOff, void *remoteMhandle, size_t size,
			     uint64_t localOff, void *localMhandle, uint32_t rank, uint32_t optFlags, void **request);
	ncclResult_t (*iflush)(void *rmaCtx, int context, void *mhandle, uint32_t rank, void **request);
	ncclResult_t (*test)(void *collComm, void *request, int *done);
	ncclResult_t (*rmaProgress)(void *rmaCtx);
	ncclResult_t (*queryLastError)(void *rmaCtx, bool *hasError);
	ncclResult_t (*finalize)(void *ctx);
} ncclRma_v16_t;
NCCL_ABI_SIZE(ncclRma_v16_t, 176);
NCCL_ABI_OFFSET(ncclRma_v16_t, getRmaProperties, 24);
NCCL_ABI_OFFSET(ncclRma_v16_t, regMrSym, 64);
NCCL_ABI_OFFSET(ncclRma_v16_t, iput, 112);
NCCL_ABI_OFFSET(ncclRma_v16_t, iget, 128);
NCCL_ABI_OFFSET(ncclRma_v16_t, iflush, 136);
NCCL_ABI_OFFSET(ncclRma_v16_t, test, 144);
NCCL_ABI_OFFSET(ncclRma_v16_t, finalize, 168);

#endif
