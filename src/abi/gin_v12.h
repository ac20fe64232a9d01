/* SPDX-License-Identifier: Apache-2.0 */
/* GIN interface v12 (NCCL 2.29.7): several connections in one collComm, each with an order of its own. */
#ifndef GANTRY_ABI_GIN_V12_H
#define GANTRY_ABI_GIN_V12_H

#include "abi/gin_v11.h"

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t *props);
	ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *ctx, void *handles[], int nranks, int rank, int nConnections, int queueDepth,
				void *listenComm, void **collComm);
	ncclResult_t (*createContext)(void *collComm, int nSignals, int nCounters, int nContexts, void **ginCtx,
				      ncclNetDeviceHandle_v11_t **devHandle);
	ncclResult_t (*regMrSym)(void *collComm, void *data, size_t size, int type, uint64_t mrFlags, void **mhandle,
				 void **ginHandle);
	ncclResult_t (*regMrSymDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
				       uint64_t mrFlags, void **mhandle, void **ginHandle);
	ncclResult_t (*deregMrSym)(void *collComm, void *mhandle);
	ncclResult_t (*destroyContext)(void *ginCtx);
	ncclResult_t (*closeColl)(void *collComm);
	ncclResult_t (*closeListen)(void *listenComm);
	ncclResult_t (*iput)(void *collComm, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
			     void *dstMhandle, uint32_t rank, int connectionId, void **request);
	ncclResult_t (*iputSignal)(void *collComm, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
				   void *dstMhandle, uint32_t rank, uint64_t signalOff, void *signalMhandle,
				   uint64_t signalValue, uint32_t signalOp, int connectionId, void **request);
	ncclResult_t (*test)(void *collComm, void *request, int *done);
	ncclResult_t (*ginProgress)(void *collComm);
	ncclResult_t (*queryLastError)(void *ginCtx, bool *hasError);
	ncclResult_t (*finalize)(void *ctx);
} ncclGin_v12_t;
NCCL_ABI_SIZE(ncclGin_v12_t, 152);
NCCL_ABI_OFFSET(ncclGin_v12_t, regMrSym, 56);
NCCL_ABI_OFFSET(ncclGin_v12_t, iput, 104);
NCCL_ABI_OFFSET(ncclGin_v12_t, test, 120);
NCCL_ABI_OFFSET(ncclGin_v12_t, finalize, 144);

#endif
