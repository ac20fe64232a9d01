/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the loader: one plugin table of any version, behind net.h. */
#ifndef GANTRY_NET_COMPAT_H
#define GANTRY_NET_COMPAT_H

#include "abi/net_v12.h"
#include "net/loader.h"
#include "net/net.h"

/* label: borrowed, the library's file name, for messages. ERR_CONFIG without a name or init; what else NCCL calls without
 * looking is looked for after init, which may fill the table: then init gives ERR_CONFIG, naming the entries. */
gantry_result gantry_compat_create(const void *table, int version, const char *label, ncclDebugLogger_t logger,
				   struct gantry_net **ret_net);
void gantry_compat_as_nccl(struct gantry_net *net, const struct gantry_net_nccl *nccl); /* loader.h */
void gantry_compat_destroy(struct gantry_net *net);					/* NULL is fine */
/* What a foreign result means. Failures are logged with the call's name. */
gantry_result gantry_compat_result(const char *label, const char *call, ncclResult_t nr);

#endif
