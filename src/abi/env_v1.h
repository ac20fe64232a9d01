/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Env interface v1 (NCCL 2.28.7): NCCL asks a plugin for every variable, in place of the environment. NCCL opens the library
 * that NCCL_ENV_PLUGIN names, else libnccl-env.so, with its first call and before any network; it does not look into the
 * net plugin's library. getEnv is called from any thread, within NCCL's critical sections too; NCCL keeps what it returns until
 * finalize, which comes when the process exits, or until it asks for the same name again. An error of init fails NCCL.
 */
#ifndef GANTRY_ABI_ENV_V1_H
#define GANTRY_ABI_ENV_V1_H

#include "abi/nccl_types.h"

typedef struct {
	const char *name;
	ncclResult_t (*init)(uint8_t ncclMajor, uint8_t ncclMinor, uint8_t ncclPatch, const char *suffix);
	ncclResult_t (*finalize)(void);
	const char *(*getEnv)(const char *name); /* NULL: not set */
} ncclEnv_v1_t;
NCCL_ABI_SIZE(ncclEnv_v1_t, 32);
NCCL_ABI_OFFSET(ncclEnv_v1_t, getEnv, 24);

#endif
