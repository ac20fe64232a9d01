/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this library does not offer, and says so: every name that NCCL exports is there, because a missing one keeps a
 * program from starting, and callers look at results.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "base/log.h"
#include "base/param.h"
#include "nccl/nccl.h"

static ncclResult_t refuse(const char *function)
{
	return nccl_result(gantry_fail(GANTRY_ERR_UNSUPPORTED, LOG_SUBSYS, __FILE__, __LINE__,
				       "%s is not supported by Gantry (docs/nccl-api.md)", function));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define MAKE_FULL(type, name, params)
#define MAKE_HINT(type, name, params)
#define MAKE_REFUSED(type, name, params)                                                                               \
	NCCL_FUNCTION(type, name, params)                                                                              \
	{                                                                                                              \
		return refuse("nccl" #name);                                                                           \
	}
#define API(kind, type, name, params) MAKE_##kind(type, name, params)
#include "nccl/api.def"
#pragma GCC diagnostic pop
