/* SPDX-License-Identifier: Apache-2.0 */
/* Tuner interface v5 (NCCL 2.28): the communicator's identity, NVLink domains, and the constants of NCCL's own cost model. */
#ifndef GANTRY_ABI_TUNER_V5_H
#define GANTRY_ABI_TUNER_V5_H

#include "abi/tuner_v4.h"

typedef struct {
	int nNvlDomains;
	int minRanksPerNvlDomain;
	int maxRanksPerNvlDomain;
} ncclNvlDomainInfo_v5_t;
NCCL_ABI_SIZE(ncclNvlDomainInfo_v5_t, 12);

/* By algorithm and protocol; by kind of link; by GPU generation and number of nodes. */
typedef struct {
	double baseLatencies[7][3];
	double hwLatencies[3][7][3];
	double llMaxBws[4][3];
	double perChMaxRingLL128Bws[4][3];
	double perChMaxTreeLL128Bws[4][3];
	double perChMaxTreeBws[4][3];
	double perChMaxNVLSTreeBws[4][3];
} ncclTunerConstants_v5_t;
NCCL_ABI_SIZE(ncclTunerConstants_v5_t, 1152);
NCCL_ABI_OFFSET(ncclTunerConstants_v5_t, llMaxBws, 672);

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, uint64_t commId, size_t nRanks, size_t nNodes, ncclDebugLogger_t log,
			     ncclNvlDomainInfo_v5_t *nvlDomainInfo, ncclTunerConstants_v5_t *constants);
	ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
				    float **collCostTable, int numAlgo, int numProto, int regBuff, int *nChannels);
	ncclResult_t (*finalize)(void *context);
} ncclTuner_v5_t;
NCCL_ABI_SIZE(ncclTuner_v5_t, 32);
NCCL_ABI_OFFSET(ncclTuner_v5_t, finalize, 24);

#endif
