/* SPDX-License-Identifier: Apache-2.0 */
/* One promise broken, or kept in an unusual way, by the name in the variable BROKEN. */
#include <stdlib.h>
#include <string.h>

static int broken(const char *what)
{
	static const char *asked;

	if (!asked)
		asked = getenv("BROKEN") ? getenv("BROKEN") : "";
	return strcmp(asked, what) == 0;
}
#define BROKEN(name) broken(#name)
#include "simple_net.h"

#include "simple_coll.h"
#include "simple_gin.h"
#include "simple_profiler.h"
#include "simple_tuner.h"

static ncclNet_v8_t whole_v8;
static ncclNet_v11_t whole_v11;

static ncclResult_t late_init_v8(ncclDebugLogger_t log)
{
	ncclNetPlugin_v8 = whole_v8;
	return init_v8(log);
}

static ncclResult_t late_init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
				  ncclProfilerCallback_t profiler)
{
	ncclNetPlugin_v11 = whole_v11;
	return init_v11(ctx, comm_id, config, log, profiler);
}

/* fuse_lost: a device that devices does not count. */
static ncclResult_t fuse_v11(int *dev, ncclNetVDeviceProps_v11_t *props)
{
	if (BROKEN(fuse_refused) || props->ndevs != 2)
		return ncclInvalidUsage;
	fused = !BROKEN(fuse_lost);
	*dev = 2;
	return ncclSuccess;
}

/* Tables that lack something, or have it only after init. */
__attribute__((constructor)) static void change_tables(void)
{
	whole_v8 = ncclNetPlugin_v8;
	whole_v11 = ncclNetPlugin_v11;
	if (BROKEN(no_test))
		ncclNetPlugin_v8.test = NULL;
	if (BROKEN(no_closesend))
		ncclNetPlugin_v8.closeSend = NULL;
	if (BROKEN(tuner_no_end))
		ncclTunerPlugin_v5.finalize = NULL;
	if (BROKEN(coll_no_test))
		ncclCollNetPlugin_v6.test = NULL;
	if (BROKEN(coll_no_close))
		ncclCollNetPlugin_v12.closeColl = NULL;
	if (BROKEN(gin_no_test))
		ncclGinPlugin_v12.test = NULL;
	if (BROKEN(gin_no_create))
		ncclGinPlugin_v13.createContext = NULL;
	if (BROKEN(gin_no_put))
		ncclGinPlugin_v11.iput = NULL;
	if (BROKEN(gin_no_get))
		ncclRmaPlugin_v14.iget = NULL;
	if (BROKEN(gin_no_promises))
		ncclRmaPlugin_v16.getRmaProperties = NULL;
	if (BROKEN(prof_no_end))
		ncclProfiler_v5.finalize = NULL;
	if (BROKEN(tuner_no_info))
		ncclTunerPlugin_v5.getCollInfo = NULL;
	if (SIMPLE_FUSES)
		ncclNetPlugin_v11.makeVDevice = fuse_v11;
	if (BROKEN(late_table)) {
		ncclNetPlugin_v8 = (ncclNet_v8_t){.name = simple_name, .init = late_init_v8};
		ncclNetPlugin_v11 = (ncclNet_v11_t){.name = simple_name, .init = late_init_v11};
	}
}
