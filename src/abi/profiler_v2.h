/* SPDX-License-Identifier: Apache-2.0 */
/* Profiler interface v2 (NCCL 2.24, 2.25): functions, types, algorithms and protocols by their names. */
#ifndef GANTRY_ABI_PROFILER_V2_H
#define GANTRY_ABI_PROFILER_V2_H

#include "abi/profiler_v1.h"

typedef ncclProfilerEventState_v1_t ncclProfilerEventState_v2_t;

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
			size_t trafficBytes;
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
	};
} ncclProfilerEventDescr_v2_t;
NCCL_ABI_SIZE(ncclProfilerEventDescr_v2_t, 128);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v2_t, coll.proto, 120);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v2_t, p2p.peer, 72);

typedef ncclProfilerEventStateArgs_v1_t ncclProfilerEventStateArgs_v2_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, int *eActivationMask);
	ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v2_t *eDescr);
	ncclResult_t (*stopEvent)(void *eHandle);
	ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v2_t eState,
					 ncclProfilerEventStateArgs_v2_t *eStateArgs);
	ncclResult_t (*finalize)(void *context);
} ncclProfiler_v2_t;
NCCL_ABI_SIZE(ncclProfiler_v2_t, 48);

#endif
