/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The env tables: what plugin_tune() decides reaches NCCL as answers to its look-ups, and the environment stays as the user
 * made it. NCCL opens them only where NCCL_ENV_PLUGIN names this library; otherwise plugin_tune() sets variables.
 */
#include <stdlib.h>

#include "abi/env_v2.h"
#include "plugin/tune.h"

#define EXPORT __attribute__((visibility("default")))

/* Nothing is read here: GANTRY_TUNE and the rest count when the network starts, and an invalid one must not fail NCCL. */
static ncclResult_t env_init_v1(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix)
{
	(void)major, (void)minor, (void)patch, (void)suffix;
	plugin_tune_by_answers(true);
	return ncclSuccess;
}

static ncclResult_t env_init_v2(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix, ncclDebugLogger_t log)
{
	if (log)
		log(NCCL_LOG_INFO, NCCL_ENV, __FILE__, __LINE__,
		    "gantry answers NCCL %d.%d.%d's look-ups of variables that are not set", major, minor, patch);
	return env_init_v1(major, minor, patch, suffix);
}

static ncclResult_t env_end(void)
{
	plugin_tune_by_answers(false);
	return ncclSuccess;
}

/* Logs nothing: NCCL's logger asks for variables itself. */
static const char *env_get(const char *name)
{
	const char *value = getenv(name);

	return value ? value : plugin_tune_answer(name);
}

EXPORT const ncclEnv_v1_t ncclEnvPlugin_v1 = {
	.name = "gantry", .init = env_init_v1, .finalize = env_end, .getEnv = env_get};
EXPORT const ncclEnv_v2_t ncclEnvPlugin_v2 = {
	.name = "gantry", .init = env_init_v2, .finalize = env_end, .getEnv = env_get};
