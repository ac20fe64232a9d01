/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the network's requests, for NCCL's profiler: ours (profiler.c), or whichever the user has NCCL load. */
#ifndef GANTRY_PLUGIN_PROFILER_H
#define GANTRY_PLUGIN_PROFILER_H

#include "abi/nccl_types.h"
#include "base/atomic.h"
#include "net/net.h"

/* A consumer of events exists; relaxed, set by init. */
extern int plugin_profiled;

void plugin_profile_begin(ncclProfilerCallback_t callback);
/* A request was posted, with NCCL's handles of its n messages; phandles, or one of them: NULL where NCCL has none. */
void plugin_profile_posted(void *request, int n, void **phandles);
/* What is to be reported when a request that is about to be tested turns out to be done: it is gone then. */
struct plugin_profile_events {
	int n;
	void *event[GANTRY_NET_MAX_RECVS];
};
void plugin_profile_take(void *request, struct plugin_profile_events *ret_events);
void plugin_profile_done(const struct plugin_profile_events *events);

#endif
