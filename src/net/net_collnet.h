/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign collNet tables, v6 to v12, behind one set of calls: what one communicator does with the table of an open
 * library. Called as NCCL calls it: listen on each rank, then one connect that may block, then operations in the same
 * order on all ranks. Errors are logged with the plugin's name and the call's.
 */
#ifndef GANTRY_NET_NET_COLLNET_H
#define GANTRY_NET_NET_COLLNET_H

#include "net/loader.h"

struct gantry_collnet_plugin;

/* One version of the table (0: the highest there is), begun for a communicator, at that device. ERR_UNSUPPORTED: the
 * library has none. The library outlives it. */
gantry_result gantry_collnet_plugin_open(const struct gantry_loader *loader, int version, uint64_t comm_id, int dev,
					 struct gantry_collnet_plugin **ret_plugin);
void gantry_collnet_plugin_close(struct gantry_collnet_plugin *p);	       /* NULL is fine */
size_t gantry_collnet_plugin_max_bytes(const struct gantry_collnet_plugin *p); /* of an operation */
gantry_result gantry_collnet_plugin_listen(struct gantry_collnet_plugin *p,
					   unsigned char ret_handle[GANTRY_NET_HANDLE_SIZE]);
gantry_result gantry_collnet_plugin_connect(struct gantry_collnet_plugin *p, const void *const *handles, uint32_t ranks,
					    uint32_t rank);
/* Types and reductions are those of gantry/types.h, which are NCCL's. */
int gantry_collnet_plugin_takes(const struct gantry_collnet_plugin *p, uint32_t type, uint32_t op);
/* Host memory; given back by closing. */
gantry_result gantry_collnet_plugin_register(struct gantry_collnet_plugin *p, void *data, size_t size, void **ret_mr);
struct gantry_collnet_reduction {
	void *send, *recv, *send_mr, *recv_mr;
	size_t count; /* elements */
	uint32_t type, op;
};
/* A NULL request: again later. */
gantry_result gantry_collnet_plugin_all_reduce(struct gantry_collnet_plugin *p,
					       const struct gantry_collnet_reduction *q, void **ret_request);
gantry_result gantry_collnet_plugin_test(struct gantry_collnet_plugin *p, void *request, int *ret_done);

#endif
