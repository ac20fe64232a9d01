/* SPDX-License-Identifier: Apache-2.0 */
/* Env interface v2 (NCCL 2.30.7): init gets NCCL's logger. NCCL takes v2 before v1. */
#ifndef GANTRY_ABI_ENV_V2_H
#define GANTRY_ABI_ENV_V2_H

#include "abi/env_v1.h"

typedef struct {
	const char *name;
	ncclResult_t (*init)(uint8_t ncclMajor, uint8_t ncclMinor, uint8_t ncclPatch, const char *suffix,
			     ncclDebugLogger_t log);
	ncclResult_t (*finalize)(void);
	const char *(*getEnv)(const char *name);
} ncclEnv_v2_t;
NCCL_ABI_SIZE(ncclEnv_v2_t, 32);
NCCL_ABI_OFFSET(ncclEnv_v2_t, getEnv, 24);

#endif
