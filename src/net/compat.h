/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the loader: one plugin table of any version, behind net.h. */
#ifndef GANTRY_NET_COMPAT_H
#define GANTRY_NET_COMPAT_H

#include "abi/net_v12.h"
#include "net/net.h"

/* label: borrowed, the library's file name, for messages. ERR_CONFIG, naming the entry, when one is missing that NCCL
 * calls without looking. */
gantry_result gantry_compat_create(const void *table, int version, const char *label, ncclDebugLogger_t logger,
				   struct gantry_net **ret_net);
void gantry_compat_destroy(struct gantry_net *net); /* NULL is fine */

#endif
