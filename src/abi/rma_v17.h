/* SPDX-License-Identifier: Apache-2.0 */
/* RMA interface v17 (NCCL 2.32): a context names its peers instead of a stride. */
#ifndef GANTRY_ABI_RMA_V17_H
#define GANTRY_ABI_RMA_V17_H

#include "abi/rma_v16.h"

typedef struct {
	int nContexts;
	int trafficClass;
	int *peerArray; /* the ranks that puts go to; NULL: all of them */
	int peerArrayCount;
} ncclRmaConfig_v17_t;
NCCL_ABI_SIZE(ncclRmaConfig_v17_t, 24);

typedef ncclRmaProperties_v16_t ncclRmaProperties_v17_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getRmaProperties)(void *collComm, ncclRmaProperties_v17_t *props);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t *props);
	ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *ctx, void *handles[], int nranks, int rank, void *listenComm, void **collComm);
	ncclResult_t (*createContext)(void *collComm, ncclRmaConfig_v17_t *config, void **rmaCtx);
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
} ncclRma_v17_t;
NCCL_ABI_SIZE(ncclRma_v17_t, 176);
NCCL_ABI_OFFSET(ncclRma_v17_t, getRmaProperties, 24);
NCCL_ABI_OFFSET(ncclRma_v17_t, regMrSym, 64);
NCCL_ABI_OFFSET(ncclRma_v17_t, iput, 112);
NCCL_ABI_OFFSET(ncclRma_v17_t, iget, 128);
NCCL_ABI_OFFSET(ncclRma_v17_t, iflush, 136);
NCCL_ABI_OFFSET(ncclRma_v17_t, test, 144);
NCCL_ABI_OFFSET(ncclRma_v17_t, finalize, 168);

#endif
