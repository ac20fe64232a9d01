/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GANTRY_PLUGIN_START_H
#define GANTRY_PLUGIN_START_H

#include "abi/nccl_types.h"
#include "gantry/result.h"

/* The first part of every table's init: NCCL's logger (NULL: none), then the parameters. */
gantry_result plugin_prepare(ncclDebugLogger_t log);
ncclResult_t plugin_result(gantry_result r);

/* Lines that NCCL would show are made, unless GANTRY_LOG says which are. Once the parameters are loaded. */
void plugin_follow_nccl_debug(void);
/* Version, lanes, what was done about NCCL's variables, security: one line at INFO. */
void plugin_say_start(const char *tuning);

#endif
