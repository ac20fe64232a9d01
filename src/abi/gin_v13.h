/* SPDX-License-Identifier: Apache-2.0 */
/* GIN interface v13 (NCCL 2.30): contexts in groups, made by createContext; gets and flushes. */
#ifndef GANTRY_ABI_GIN_V13_H
#define GANTRY_ABI_GIN_V13_H

#include "abi/gin_v12.h"
#include "abi/net_v12.h"

typedef struct {
	int nSignals;
	int nCounters;
	int nContexts;
	int queueDepth;
	int trafficClass;
} ncclGinConfig_v13_t;
NCCL_ABI_SIZE(ncclGinConfig_v13_t, 20);

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t *props);
	ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *ctx, void *handles[], int nranks, int rank, void *listenComm, void **collComm);
	ncclResult_t (*createContext)(void *collComm, ncclGinConfig_v13_t *config, void **ginCtx,
				      ncclNetDeviceHandle_v11_t **devHandle);
	ncclResult_t (*regMrSym)(void *collComm, void *data, size_t size, int type, uint64_t mrFlags, void **mhandle,
				 void **ginHandle);
	ncclResult_t (*regMrSymDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
				       uint64_t mrFlags, void **mhandle, void **ginHandle);
	ncclResult_t (*deregMrSym)(void *collComm, void *mhandle);
	ncclResult_t (*destroyContext)(void *ginCtx);
	ncclResult_t (*closeColl)(void *collComm);
	ncclResult_t (*closeListen)(void *listenComm);
	ncclResult_t (*iput)(void *ginCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
			     void *dstMhandle, uint32_t rank, void **request);
	ncclResult_t (*iputSignal)(void *ginCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size,
				   uint64_t dstOff, void *dstMhandle, uint32_t rank, uint64_t signalOff,
				   void *signalMhandle, uint64_t signalValue, uint32_t signalOp, void **request);
	ncclResult_t (*iget)(void *ginCtx, int context, uint64_t remoteOff, void *remoteMhandle, size_t size,
			     uint64_t localOff, void *localMhandle, uint32_t rank, void **request);
	ncclResult_t (*iflush)(void *ginCtx, int context, void *mhandle, uint32_t rank, void **request);
	ncclResult_t (*test)(void *collComm, void *request, int *done);
	ncclResult_t (*ginProgress)(void *ginCtx);
	ncclResult_t (*queryLastError)(void *ginCtx, bool *hasError);
	ncclResult_t (*finalize)(void *ctx);
} ncclGin_v13_t;
NCCL_ABI_SIZE(ncclGin_v13_t, 168);
NCCL_ABI_OFFSET(ncclGin_v13_t, regMrSym, 56);
NCCL_ABI_OFFSET(ncclGin_v13_t, iput, 104);
NCCL_ABI_OFFSET(ncclGin_v13_t, iget, 120);
NCCL_ABI_OFFSET(ncclGin_v13_t, iflush, 128);
NCCL_ABI_OFFSET(ncclGin_v13_t, test, 136);
NCCL_ABI_OFFSET(ncclGin_v13_t, finalize, 160);

#endif
