/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's tables are thin: they translate versions, and nothing else.
 *
 *   tables.c   the seven exported tables and what only one version needs
 *   calls.c    entries whose signature outlived several versions
 *   context.c  init, NCCL's logger, and the contexts that v6 to v10 do not have
 *   convert.c  result codes and properties
 *   unpack.c   whether payload lands in GPU memory, and what NCCL is told of it
 *
 * All of them end in gantry_net_tcp(), the one versionless core. GANTRY_AGAIN
 * never reaches NCCL, which would take any code but zero for a failure: where
 * "not yet" has a form of its own (a NULL comm or request, done == 0) it becomes
 * that, elsewhere it is an internal error.
 */
#ifndef GANTRY_PLUGIN_PLUGIN_H
#define GANTRY_PLUGIN_PLUGIN_H

#include "abi/net_v12.h"
#include "net/net.h"

/* convert.c */
ncclResult_t gantry_plugin_result(gantry_result r);
ncclResult_t gantry_plugin_properties_v6(int dev, ncclNetProperties_v6_t *props);
ncclResult_t gantry_plugin_properties_v7(int dev, ncclNetProperties_v7_t *props);
ncclResult_t gantry_plugin_properties_v8(int dev, ncclNetProperties_v8_t *props);
ncclResult_t gantry_plugin_properties_v9(int dev, ncclNetProperties_v9_t *props); /* and v10 */
ncclResult_t gantry_plugin_properties_v11(int dev, ncclNetProperties_v11_t *props);
ncclResult_t gantry_plugin_properties_v12(int dev, ncclNetProperties_v12_t *props);

/* context.c: v11 and v12 have a context per communicator; v6 to v10 share one per traffic class. */
ncclResult_t gantry_plugin_init(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
				ncclProfilerCallback_t profiler);
ncclResult_t gantry_plugin_finalize(void *ctx);
ncclResult_t gantry_plugin_set_attr(void *ctx, ncclNetAttr_v11_t *attr);
ncclResult_t gantry_plugin_init_shared(ncclDebugLogger_t log, int unpack);
/* unpack: enum gantry_net_unpack, OFF or PARAM. */
gantry_result gantry_plugin_shared_context(int traffic_class, int unpack, void **ret_ctx);

/* unpack.c: from v9 on NCCL says which receives are LL or LL128, which the core must know. */
/* Once a context that asks for it is there: says in the log what became of it. */
void gantry_plugin_unpack_note(void *ctx);
/* What the properties are when it is on. */
void gantry_plugin_unpack_overlay(struct gantry_net_properties *p);

/* calls.c */
ncclResult_t gantry_plugin_devices(int *ndev);
ncclResult_t gantry_plugin_listen(void *ctx, int dev, void *handle, void **listen);
ncclResult_t gantry_plugin_connect(void *ctx, int dev, void *handle, void **comm,
				   ncclNetDeviceHandle_v7_t **dev_handle);
ncclResult_t gantry_plugin_accept(void *listen, void **comm, ncclNetDeviceHandle_v7_t **dev_handle);
ncclResult_t gantry_plugin_close_send(void *comm);
ncclResult_t gantry_plugin_close_recv(void *comm);
ncclResult_t gantry_plugin_close_listen(void *listen);
ncclResult_t gantry_plugin_reg_mr(void *comm, void *data, size_t size, int type, void **mr);
ncclResult_t gantry_plugin_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
					 void **mr);
ncclResult_t gantry_plugin_dereg_mr(void *comm, void *mr);
ncclResult_t gantry_plugin_get_device_mr(void *comm, void *mr, void **dptr);
ncclResult_t gantry_plugin_isend(void *comm, void *data, size_t size, int tag, void *mr, void **request);
ncclResult_t gantry_plugin_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mrs, void **request);
ncclResult_t gantry_plugin_iflush(void *comm, int n, void **data, int *sizes, void **mrs, void **request);
ncclResult_t gantry_plugin_test(void *request, int *done, int *sizes);
ncclResult_t gantry_plugin_irecv_consumed(void *comm, int n, void *request);
/* `max`: how many entries devs has in the caller's version. */
ncclResult_t gantry_plugin_make_vdevice(int *dev, int ndevs, const int *devs, int max);

#endif
