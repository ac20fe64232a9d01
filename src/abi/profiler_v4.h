/* SPDX-License-Identifier: Apache-2.0 */
/* Profiler interface v4 (NCCL 2.27): init gets the communicator and its rank; states of steps carry bytes. */
#ifndef GANTRY_ABI_PROFILER_V4_H
#define GANTRY_ABI_PROFILER_V4_H

#include "abi/profiler_v3.h"

typedef ncclProfilerEventState_v1_t ncclProfilerEventState_v4_t;

typedef struct {
	uint8_t type;
	void *parentObj;
	int rank;
	union {
		struct {
			uint64_t seqNumber;
			const char *func;
			const void *sendBuff;
			void *recvBuff;
			size_t count;
			int root;
			const char *datatype;
			uint8_t nChannels;
			uint8_t nWarps;
			const char *algo;
			const char *proto;
		} coll;
		struct {
			const char *func;
			void *buff;
			const char *datatype;
			size_t count;
			int peer;
			uint8_t nChannels;
		} p2p;
		NCCL_PROFILER_PROXY_OP;
		NCCL_PROFILER_PROXY_STEP;
		struct {
			uint8_t channelId;
			uint64_t pTimer; /* of the GPU */
		} kernelCh;
		NCCL_PROFILER_NET_PLUGIN;
	};
} ncclProfilerEventDescr_v4_t;
NCCL_ABI_SIZE(ncclProfilerEventDescr_v4_t, 104);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v4_t, coll.proto, 96);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v4_t, netPlugin.data, 32);

typedef union {
	struct {
		size_t transSize; /* of the last transfer: that of the step at SendWait and at RecvFlushWait */
	} proxyStep;
	struct {
		int appendedProxyOps;
	} proxyCtrl;
	struct {
		void *data;
	} netPlugin;
	struct {
		uint64_t pTimer;
	} kernelCh;
} ncclProfilerEventStateArgs_v4_t;
NCCL_ABI_SIZE(ncclProfilerEventStateArgs_v4_t, 8);

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, int *eActivationMask, const char *commName, uint64_t commHash, int nNodes,
			     int nranks, int rank, ncclDebugLogger_t logfn);
	ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v4_t *eDescr);
	ncclResult_t (*stopEvent)(void *eHandle);
	ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v4_t eState,
					 ncclProfilerEventStateArgs_v4_t *eStateArgs);
	ncclResult_t (*finalize)(void *context);
} ncclProfiler_v4_t;
NCCL_ABI_SIZE(ncclProfiler_v4_t, 48);

#endif
