/* SPDX-License-Identifier: Apache-2.0 */
/* Tuner interface v4 (NCCL 2.24): says whether the buffers are registered. */
#ifndef GANTRY_ABI_TUNER_V4_H
#define GANTRY_ABI_TUNER_V4_H

#include "abi/tuner_v3.h"

typedef struct {
	const char *name;
	ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t log, void **context);
	ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
				    float **collCostTable, int numAlgo, int numProto, int regBuff, int *nChannels);
	ncclResult_t (*destroy)(void *context);
} ncclTuner_v4_t;
NCCL_ABI_SIZE(ncclTuner_v4_t, 32);
NCCL_ABI_OFFSET(ncclTuner_v4_t, destroy, 24);

#endif
