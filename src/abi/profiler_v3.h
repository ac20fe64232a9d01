/* SPDX-License-Identifier: Apache-2.0 */
/* Profiler interface v3 (NCCL 2.26): events of kernels' channels and of the network. */
#ifndef GANTRY_ABI_PROFILER_V3_H
#define GANTRY_ABI_PROFILER_V3_H

#include "abi/profiler_v2.h"

typedef ncclProfilerEventState_v1_t ncclProfilerEventState_v3_t;

typedef struct {
	uint8_t type;
	void *parentObj;
	int rank;
	union {
		struct {
			const char *name;
			uint64_t commHash;
			uint64_t seqNumber;
			const char *func;
			const void *sendBuff;
			void *recvBuff;
			size_t count;
			int root;
			const char *datatype;
			uint8_t nMaxChannels;
			uint8_t nWarps;
			const char *algo;
			const char *proto;
		} coll;
		struct {
			const char *name;
			uint64_t commHash;
			const char *func;
			void *buff;
			const char *datatype;
			size_t count;
			int peer;
		} p2p;
		NCCL_PROFILER_PROXY_OP;
		NCCL_PROFILER_PROXY_STEP;
		struct {
			uint8_t channelId;
		} kernelCh;
		NCCL_PROFILER_NET_PLUGIN;
	};
} ncclProfilerEventDescr_v3_t;
NCCL_ABI_SIZE(ncclProfilerEventDescr_v3_t, 120);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v3_t, coll.proto, 112);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v3_t, netPlugin.data, 32);

typedef ncclProfilerEventStateArgs_v1_t ncclProfilerEventStateArgs_v3_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, int *eActivationMask);
	ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v3_t *eDescr);
	ncclResult_t (*stopEvent)(void *eHandle);
	ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v3_t eState,
					 ncclProfilerEventStateArgs_v3_t *eStateArgs);
	ncclResult_t (*finalize)(void *context);
} ncclProfiler_v3_t;
NCCL_ABI_SIZE(ncclProfiler_v3_t, 48);

#endif
