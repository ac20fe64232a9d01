/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiler interface v6 (NCCL 2.29): v5, and collectives that copy engines do instead of kernels. Those have an event of their own
 * in place of ncclProfileColl, around what NCCL enqueues; its children are synchronisations with the other ranks and
 * batches of copies. None of them has states.
 */
#ifndef GANTRY_ABI_PROFILER_V6_H
#define GANTRY_ABI_PROFILER_V6_H

#include "abi/profiler_v5.h"

typedef ncclProfilerEventState_v1_t ncclProfilerEventState_v6_t;

typedef struct {
	uint64_t type;
	void *parentObj;
	int rank;
	union {
		struct {
			_Bool graphCaptured;
			int groupDepth;
		} groupApi;
		struct {
			const char *func;
			size_t count;
			const char *datatype;
			int root;
			void *stream;
			_Bool graphCaptured;
		} collApi;
		struct {
			const char *func;
			size_t count;
			const char *datatype;
			void *stream;
			_Bool graphCaptured;
		} p2pApi;
		struct {
			void *stream;
		} kernelLaunch;
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
			void *parentGroup;
		} coll;
		struct {
			const char *func;
			void *buff;
			const char *datatype;
			size_t count;
			int peer;
			uint8_t nChannels;
			void *parentGroup;
		} p2p;
		NCCL_PROFILER_PROXY_OP;
		NCCL_PROFILER_PROXY_STEP;
		struct {
			uint8_t channelId;
			uint64_t pTimer; /* of the GPU */
		} kernelCh;
		NCCL_PROFILER_NET_PLUGIN;
		struct {
			uint64_t seqNumber;
			const char *func;
			const void *sendBuff;
			void *recvBuff;
			size_t count;
			int root;
			const char *datatype;
			const char *syncStrategy;
			_Bool intraBatchSync;
			uint32_t batchSize;
			uint32_t numBatches;
			uint32_t ceSeqNum;
			void *stream;
		} ceColl;
		struct {
			_Bool isComplete;
			int nRanks;
		} ceCollSync;
		struct {
			int numOps;
			size_t totalBytes;
			_Bool useIntraSync;
		} ceCollBatch;
	};
} ncclProfilerEventDescr_v6_t;
NCCL_ABI_SIZE(ncclProfilerEventDescr_v6_t, 112);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v6_t, ceColl.stream, 104);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v6_t, coll.parentGroup, 104);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v6_t, netPlugin.data, 32);

typedef ncclProfilerEventStateArgs_v5_t ncclProfilerEventStateArgs_v6_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, uint64_t commId, int *eActivationMask, const char *commName, int nNodes,
			     int nranks, int rank, ncclDebugLogger_t logfn);
	ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v6_t *eDescr);
	ncclResult_t (*stopEvent)(void *eHandle);
	ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v6_t eState,
					 ncclProfilerEventStateArgs_v6_t *eStateArgs);
	ncclResult_t (*finalize)(void *context);
} ncclProfiler_v6_t;
NCCL_ABI_SIZE(ncclProfiler_v6_t, 48);

#endif
