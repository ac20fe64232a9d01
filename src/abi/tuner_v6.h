/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuner interface v6 (NCCL 2.30): v5 and one more entry, which NCCL calls after it has taken algorithm and protocol. NCCL asks for
 * each share of a call that a channel carries, with nChannels 1 and the bytes of that share, cuts the answer down to what its
 * buffers hold and then to whole grains (512 bytes with Simple): less than a grain is a division by zero in NCCL. An error fails
 * the collective.
 */
#ifndef GANTRY_ABI_TUNER_V6_H
#define GANTRY_ABI_TUNER_V6_H

#include "abi/tuner_v5.h"

typedef ncclNvlDomainInfo_v5_t ncclNvlDomainInfo_v6_t;
typedef ncclTunerConstants_v5_t ncclTunerConstants_v6_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **context, uint64_t commId, size_t nRanks, size_t nNodes, ncclDebugLogger_t log,
			     ncclNvlDomainInfo_v6_t *nvlDomainInfo, ncclTunerConstants_v6_t *constants);
	ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
				    float **collCostTable, int numAlgo, int numProto, int regBuff, int *nChannels);
	ncclResult_t (*finalize)(void *context);
	/* May be NULL. *chunkSize is NCCL's own choice on entry. */
	ncclResult_t (*getChunkSize)(void *context, ncclFunc_t collType, size_t nBytes, int algo, int proto,
				     int nChannels, size_t *chunkSize);
} ncclTuner_v6_t;
NCCL_ABI_SIZE(ncclTuner_v6_t, 40);
NCCL_ABI_OFFSET(ncclTuner_v6_t, getChunkSize, 32);

#endif
