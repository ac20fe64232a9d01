/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiler interface v1 (NCCL 2.23), and what all versions share: kinds and states of events.
 *
 * A kind that init puts into the mask brings the kinds above it too: a step comes with its operation, its call and its
 * group. NCCL does not look into the handles that startEvent returns; those of parents come back as parentObj. The
 * mask is one for the process, whoever set it last.
 */
#ifndef GANTRY_ABI_PROFILER_V1_H
#define GANTRY_ABI_PROFILER_V1_H

#include <sys/types.h>

#include "abi/nccl_types.h"

enum {
	ncclProfileGroup = 1 << 0,
	ncclProfileColl = 1 << 1,
	ncclProfileP2p = 1 << 2,
	ncclProfileProxyOp = 1 << 3,
	ncclProfileProxyStep = 1 << 4,
	ncclProfileProxyCtrl = 1 << 5,
	ncclProfileKernelCh = 1 << 6,  /* since v3 */
	ncclProfileNetPlugin = 1 << 7, /* since v3: a network's own, by ncclProfilerCallback_t */
	/* Since v5. */
	ncclProfileGroupApi = 1 << 8,
	ncclProfileCollApi = 1 << 9,
	ncclProfileP2pApi = 1 << 10,
	ncclProfileKernelLaunch = 1 << 11,
	/* Since v6. */
	ncclProfileCeColl = 1 << 12,
	ncclProfileCeSync = 1 << 13,
	ncclProfileCeBatch = 1 << 14,
};

/* Those that are missing here are of operations before v4, and of kinds that Gantry does not ask for. */
typedef enum {
	ncclProfilerProxyStepSendGPUWait = 8,
	ncclProfilerProxyStepSendWait = 9,
	ncclProfilerProxyStepRecvWait = 10,
	ncclProfilerProxyStepRecvFlushWait = 11,
	ncclProfilerProxyStepRecvGPUWait = 12,
	ncclProfilerProxyOpInProgress_v4 = 19,
	ncclProfilerProxyStepSendPeerWait_v4 = 20,
	ncclProfilerNetPluginUpdate = 21,
	ncclProfilerKernelChStop = 22,
} ncclProfilerEventState_v1_t;
NCCL_ABI_SIZE(ncclProfilerEventState_v1_t, 4);

/* `type` of ncclProfilerCallback_t. Stop and update are passed on whatever *event is, even NULL. */
enum {
	ncclProfilerNetEventStart = 0,
	ncclProfilerNetEventStop = 1,
	ncclProfilerNetEventUpdate = 2,
	ncclProfilerNetEventUpdateAndStop = 3,
};
/* The upper part of its plugin_id says whose data it is (IB has 1, Socket 2), the lower half which version. */
#define NCCL_PROFILER_NET_VER_BITS 16

/* Version 1 of IB's data, and of Socket's. */
typedef struct {
	uint8_t type;
	struct {
		int device;
		uint64_t wr_id;
		int opcode;
		int qpNum;
		size_t length;
	} qp;
} ncclProfilerNetIbDescr_v1_t;
NCCL_ABI_SIZE(ncclProfilerNetIbDescr_v1_t, 40);
typedef struct {
	uint8_t type;
	struct {
		int fd;
		int op;
		size_t length;
	} sock;
} ncclProfilerNetSockDescr_v1_t;
NCCL_ABI_SIZE(ncclProfilerNetSockDescr_v1_t, 24);

/* What the three kinds of the proxy are described by has outlived all versions. */
#define NCCL_PROFILER_PROXY_OP                                                                                         \
	struct {                                                                                                       \
		pid_t pid; /* whose call it is: parentObj is that process's */                                         \
		uint8_t channelId;                                                                                     \
		int peer;                                                                                              \
		int nSteps;                                                                                            \
		int chunkSize;                                                                                         \
		int isSend;                                                                                            \
	} proxyOp
#define NCCL_PROFILER_PROXY_STEP                                                                                       \
	struct {                                                                                                       \
		int step;                                                                                              \
	} proxyStep
#define NCCL_PROFILER_NET_PLUGIN                                                                                       \
	struct {                                                                                                       \
		int64_t id;                                                                                            \
		void *data;                                                                                            \
	} netPlugin

typedef struct {
	uint8_t type;
	void *parentObj;
	int rank;
	union {
		struct {
			const char *name;
			uint64_t commHash;
			uint64_t seqNumber;
			uint8_t func;
			const void *sendBuff;
			void *recvBuff;
			size_t count;
			int root;
			uint8_t datatype;
			uint32_t op;
			size_t trafficBytes;
			uint8_t nMaxChannels;
			uint8_t nWarps;
			uint8_t algo;
			uint8_t proto;
			int isCollnet;
			int isNvls;
		} coll;
		struct {
			const char *name;
			uint64_t commHash;
			uint8_t func;
			void *buff;
			uint8_t datatype;
			size_t count;
			int peer;
		} p2p;
		NCCL_PROFILER_PROXY_OP;
		NCCL_PROFILER_PROXY_STEP;
	};
} ncclProfilerEventDescr_v1_t;
NCCL_ABI_SIZE(ncclProfilerEventDescr_v1_t, 120);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v1_t, coll.proto, 107);
NCCL_ABI_OFFSET(ncclProfilerEventDescr_v1_t, proxyOp.isSend, 44);

typedef union {
	struct {
		size_t transSize;
		int steps;
	} proxyOp;
	struct {
		int appendedProxyOps;
	} proxyCtrl;
} ncclProfilerEventStateArgs_v1_t;
NCCL_ABI_SIZE(ncclProfilerEventStateArgs_v1_t, 16);

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, int *eActivationMask);
	ncclResult_t (*startEvent)(void *context, void **eHandle, ncclProfilerEventDescr_v1_t *eDescr);
	ncclResult_t (*stopEvent)(void *eHandle);
	ncclResult_t (*recordEventState)(void *eHandle, ncclProfilerEventState_v1_t eState,
					 ncclProfilerEventStateArgs_v1_t *eStateArgs);
	ncclResult_t (*finalize)(void *context);
} ncclProfiler_v1_t;
NCCL_ABI_SIZE(ncclProfiler_v1_t, 48);

#endif
