/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GIN interface v11 (NCCL 2.28.7): one-sided puts and signals that kernels ask for. regMrSym is called by all ranks in the same order;
 * createContext, destroyContext and queryLastError only where kernels drive the NIC themselves (docs/design/0041-remote-memory.md).
 */
#ifndef GANTRY_ABI_GIN_V11_H
#define GANTRY_ABI_GIN_V11_H

#include "abi/net_v11.h"

#include <stdbool.h>

#define NCCL_GIN_HANDLE_COUNT 4 /* contexts of a communicator, unless NCCL_GIN_NCONTEXTS says otherwise */

/* mrFlags */
#define NCCL_NET_MR_FLAG_FORCE_SO 1 /* strongly ordered: for signals */

#define NCCL_GIN_PROXY_VERSION 100 /* netDeviceVersion of a device of type GIN_PROXY */

/* signalOp: INC adds 1 whatever the value is. */
enum { NCCL_NET_SIGNAL_OP_INC = 1, NCCL_NET_SIGNAL_OP_ADD = 2 };

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *ndev);
	ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t *props);
	ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
	ncclResult_t (*connect)(void *ctx, void *handles[], int nranks, int rank, void *listenComm, void **collComm);
	ncclResult_t (*createContext)(void *collComm, int nSignals, int nCounters, void **ginCtx,
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
			     void *dstMhandle, uint32_t rank, void **request);
	ncclResult_t (*iputSignal)(void *collComm, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
				   void *dstMhandle, uint32_t rank, uint64_t signalOff, void *signalMhandle,
				   uint64_t signalValue, uint32_t signalOp, void **request);
	ncclResult_t (*test)(void *collComm, void *request, int *done);
	ncclResult_t (*ginProgress)(void *collComm);
	ncclResult_t (*queryLastError)(void *ginCtx, bool *hasError);
	ncclResult_t (*finalize)(void *ctx);
} ncclGin_v11_t;
NCCL_ABI_SIZE(ncclGin_v11_t, 152);
NCCL_ABI_OFFSET(ncclGin_v11_t, regMrSym, 56);
NCCL_ABI_OFFSET(ncclGin_v11_t, iput, 104);
NCCL_ABI_OFFSET(ncclGin_v11_t, test, 120);
NCCL_ABI_OFFSET(ncclGin_v11_t, finalize, 144);

#endif
