/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuner interface v3 (NCCL 2.22): NCCL hands over what it thinks each algorithm and protocol costs, and takes the cheapest
 * after the plugin has changed that. The table is float[numAlgo][numProto] in one piece, whatever its type says.
 */
#ifndef GANTRY_ABI_TUNER_V3_H
#define GANTRY_ABI_TUNER_V3_H

#include "abi/tuner_v2.h"

typedef struct {
	const char *name;
	ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t log, void **context);
	ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
				    float **collCostTable, int numAlgo, int numProto, int *nChannels);
	ncclResult_t (*destroy)(void *context);
} ncclTuner_v3_t;
NCCL_ABI_SIZE(ncclTuner_v3_t, 32);
NCCL_ABI_OFFSET(ncclTuner_v3_t, destroy, 24);

#endif
