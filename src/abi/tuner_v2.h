/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuner interface v2 (NCCL 2.21): a plugin names algorithm, protocol and number of channels of a collective. NCCL 2.21 to 2.32
 * look for the newest version they know in NCCL_TUNER_PLUGIN and then in the net plugin's library: v2 2.21, v3 2.22, v4 2.24,
 * v5 2.28, v6 2.30, v7 2.32. All ranks must get the same answer for the same call, or the collective hangs.
 */
#ifndef GANTRY_ABI_TUNER_V2_H
#define GANTRY_ABI_TUNER_V2_H

#include "abi/nccl_types.h"

/* Collectives that a tuner is asked about; point to point is not among them. */
typedef enum {
	ncclFuncBroadcast = 0,
	ncclFuncReduce = 1,
	ncclFuncAllGather = 2,
	ncclFuncReduceScatter = 3,
	ncclFuncAllReduce = 4,
} ncclFunc_t;
NCCL_ABI_SIZE(ncclFunc_t, 4);

#define NCCL_ALGO_TREE 0
#define NCCL_ALGO_RING 1
#define NCCL_ALGO_PAT 6 /* since 2.23 */
#define NCCL_PROTO_LL 0
#define NCCL_PROTO_LL128 1
#define NCCL_PROTO_SIMPLE 2
/* In the table of costs: not to be had, by the topology or by NCCL_ALGO and NCCL_PROTO. */
#define NCCL_ALGO_PROTO_IGNORE (-1.0f)

typedef struct {
	const char *name;
	ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t log, void **context);
	/* What is left as it was, NCCL chooses; algorithm and protocol only together. */
	ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int collNetSupport,
				    int nvlsSupport, int numPipeOps, int *algorithm, int *protocol, int *nChannels);
	ncclResult_t (*destroy)(void *context);
} ncclTuner_v2_t;
NCCL_ABI_SIZE(ncclTuner_v2_t, 32);
NCCL_ABI_OFFSET(ncclTuner_v2_t, destroy, 24);

#endif
