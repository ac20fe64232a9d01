/* SPDX-License-Identifier: Apache-2.0 */
/* Tuner interface v7 (NCCL 2.32): v6, but the cost model's constants know one more GPU generation. */
#ifndef GANTRY_ABI_TUNER_V7_H
#define GANTRY_ABI_TUNER_V7_H

#include "abi/tuner_v6.h"

typedef ncclNvlDomainInfo_v5_t ncclNvlDomainInfo_v7_t;

typedef struct {
	double baseLatencies[7][3];
	double hwLatencies[3][7][3];
	double llMaxBws[5][3];
	double perChMaxRingLL128Bws[5][3];
	double perChMaxTreeLL128Bws[5][3];
	double perChMaxTreeBws[5][3];
	double perChMaxNVLSTreeBws[5][3];
} ncclTunerConstants_v7_t;
NCCL_ABI_SIZE(ncclTunerConstants_v7_t, 1272);
NCCL_ABI_OFFSET(ncclTunerConstants_v7_t, perChMaxRingLL128Bws, 792);

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, uint64_t commId, size_t nRanks, size_t nNodes, ncclDebugLogger_t log,
			     ncclNvlDomainInfo_v7_t *nvlDomainInfo, ncclTunerConstants_v7_t *constants);
	ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
				    float **collCostTable, int numAlgo, int numProto, int regBuff, int *nChannels);
	ncclResult_t (*finalize)(void *context);
	ncclResult_t (*getChunkSize)(void *context, ncclFunc_t collType, size_t nBytes, int algo, int proto,
				     int nChannels, size_t *chunkSize);
} ncclTuner_v7_t;
NCCL_ABI_SIZE(ncclTuner_v7_t, 40);
NCCL_ABI_OFFSET(ncclTuner_v7_t, getChunkSize, 32);

#endif
