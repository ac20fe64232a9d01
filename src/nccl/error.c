/* SPDX-License-Identifier: Apache-2.0 */
/* Results of Gantry as NCCL's, and what programs print about them. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "nccl/nccl.h"
#include "net/net.h"

enum { ERROR_TEXT = GANTRY_THREAD_TEXT, VERSION_WITH_TIMEOUT = 23000 };

/* NCCL has one text for the process: PyTorch asks on another thread than the one whose call failed. */
MUTEX_KIND(nccl_error_mu);
static struct nccl_error_mu error_mu;
static char last_error[ERROR_TEXT] GUARDED_BY(nccl_error_mu);

void nccl_keep_error(const char *text)
{
	nccl_error_mu_lock(&error_mu);
	snprintf(last_error, sizeof(last_error), "%s", text);
	nccl_error_mu_unlock(&error_mu);
}

/* As the plugin's (docs/contract.md), with what only an API of whole communicators has. What is not here is
 * ncclInternalError. */
static const ncclResult_t codes[GANTRY_RESULT_COUNT] = {
	[GANTRY_OK] = ncclSuccess,
	[GANTRY_AGAIN] = ncclInProgress,
	[GANTRY_ERR_DEVICE] = ncclUnhandledCudaError,
	[GANTRY_ERR_SYSTEM] = ncclSystemError,
	[GANTRY_ERR_LIMIT] = ncclSystemError,
	[GANTRY_ERR_NOMEM] = ncclSystemError,
	[GANTRY_ERR_INVALID] = ncclInvalidArgument,
	[GANTRY_ERR_SIZE] = ncclInvalidUsage,
	[GANTRY_ERR_CONFIG] = ncclInvalidUsage,
	[GANTRY_ERR_SETTING] = ncclInvalidUsage,
	[GANTRY_ERR_VERSION] = ncclInvalidUsage,
	[GANTRY_ERR_AUTH] = ncclInvalidUsage,
	[GANTRY_ERR_USAGE] = ncclInvalidUsage,
	[GANTRY_ERR_UNSUPPORTED] = ncclInvalidUsage,
	[GANTRY_ERR_ABORTED] = ncclInvalidUsage,
	[GANTRY_ERR_CANCELLED] = ncclInvalidUsage,
};

ncclResult_t nccl_code(gantry_result r)
{
	if (r == GANTRY_ERR_TIMEOUT && gantry_params()->nccl_version >= VERSION_WITH_TIMEOUT)
		return ncclTimeout;
	if (gantry_result_is_remote(r))
		return ncclRemoteError;
	if (r != GANTRY_OK && ((unsigned)r >= GANTRY_RESULT_COUNT || codes[r] == ncclSuccess))
		return ncclInternalError;
	return codes[r];
}

ncclResult_t nccl_result(gantry_result r)
{
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		nccl_keep_error(*gantry_last_error() ? gantry_last_error() : gantry_result_text(r));
	return nccl_code(r);
}

gantry_result nccl_missing(const char *function)
{
	FAIL_NOW(GANTRY_ERR_INVALID, "%s: an argument is NULL, or was not initialised", function);
}

NCCL_FUNCTION(const char *, GetErrorString, (ncclResult_t result))
{
	static const char *const texts[] = {
		[ncclSuccess] = "no error",
		[ncclUnhandledCudaError] = "a CUDA call failed (GANTRY_LOG=info shows details)",
		[ncclSystemError] = "a system call failed, or a resource is exhausted (GANTRY_LOG=info shows details)",
		[ncclInternalError] = "internal error in Gantry; please report it",
		[ncclInvalidArgument] = "invalid argument (ncclGetLastError names it)",
		[ncclInvalidUsage] = "invalid use of the API (ncclGetLastError gives the reason)",
		[ncclRemoteError] = "another rank or the network to it failed (ncclGetLastError names it)",
		[ncclInProgress] = "the operation is in progress",
		[ncclTimeout] = "the operation timed out (ncclGetLastError names it)",
	};

	if ((unsigned)result >= sizeof(texts) / sizeof(*texts))
		return "unknown result code";
	return texts[result];
}

/* The calling thread's own copy: another thread may fail while this one prints. */
NCCL_FUNCTION(const char *, GetLastError, (ncclComm_t comm))
{
	char *copy = gantry_thread_text(GANTRY_TEXT_NCCL_ERROR);

	(void)comm;
	nccl_error_mu_lock(&error_mu);
	memcpy(copy, last_error, sizeof(last_error));
	nccl_error_mu_unlock(&error_mu);
	return copy;
}

NCCL_FUNCTION(ncclResult_t, GetVersion, (int *version))
{
	if (!version)
		return nccl_result(nccl_missing("ncclGetVersion"));
	if (nccl_begin() != GANTRY_OK)
		return nccl_result(GANTRY_ERR_CONFIG);
	*version = (int)gantry_params()->nccl_version;
	return ncclSuccess;
}
