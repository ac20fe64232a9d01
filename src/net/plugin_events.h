/* SPDX-License-Identifier: Apache-2.0 */
/* Events that a foreign plugin records of its own: what the communicator hands it for that. */
#ifndef GANTRY_NET_PLUGIN_EVENTS_H
#define GANTRY_NET_PLUGIN_EVENTS_H

#include "abi/profiler_v1.h"
#include "net/net.h"

/* For init: events become part of the trace (GANTRY_TRACE). A handle of a message is a struct gantry_net_note. */
ncclResult_t gantry_plugin_event(void **event, int type, void *phandle, int64_t id, void *data);

#endif
