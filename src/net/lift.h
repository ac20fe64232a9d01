/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the loader: one plugin table, lifted to net.h.
 *
 * Three facts about NCCL's tables make this short. Entries are only ever
 * appended, so one list of names serves all versions. An entry that kept its
 * signature is called through v12's type, whatever version it came from. And
 * what a version lacks is NULL in the copy, as if the plugin had left it out.
 */
#ifndef GANTRY_NET_LIFT_H
#define GANTRY_NET_LIFT_H

#include <pthread.h>

#include "abi/net_v12.h"
#include "net/net.h"

union gantry_lift_table {
	ncclNet_v6_t v6;
	ncclNet_v7_t v7;
	ncclNet_v8_t v8;
	ncclNet_v9_t v9;
	ncclNet_v10_t v10;
	ncclNet_v11_t v11;
	ncclNet_v12_t v12;
};

struct gantry_lift {
	struct gantry_net net;	   /* net.impl is this object */
	union gantry_lift_table t; /* copy of the plugin's table, zero beyond its end */
	const char *label;	   /* borrowed from the loader: the library's file name, for messages */
	ncclDebugLogger_t logger;
	pthread_mutex_t lock; /* of users */
	int users;	      /* contexts; plugins up to v10 are initialised when the first one comes */
};

/* What init returns. The configuration stays in place as long as the context: a plugin may keep the pointer. */
struct gantry_lift_ctx {
	void *ctx; /* the plugin's, from v11 on */
	ncclNetCommConfig_v11_t config;
};

/* lift.c. ERR_CONFIG, naming the entry, when one is missing that NCCL calls without looking. */
gantry_result gantry_lift_create(const void *table, int version, const char *label, ncclDebugLogger_t logger,
				 struct gantry_lift **ret_lift);
void gantry_lift_destroy(struct gantry_lift *lift);

/* For the ops. Logs failures with the call's name. */
gantry_result gantry_lift_result(const struct gantry_lift *lift, const char *call, ncclResult_t nr);
gantry_result gantry_lift_check_count(const struct gantry_lift *lift, int n);

/* Calls that are the same in several versions' tables; each is an entry of struct gantry_net_ops. */
gantry_result gantry_lift_init_once(struct gantry_net *net, uint64_t comm_id, const struct gantry_net_config *config,
				    void **ret_ctx);
gantry_result gantry_lift_finalize_once(struct gantry_net *net, void *ctx);
gantry_result gantry_lift_set_attr_none(struct gantry_net *net, void *ctx, const struct gantry_net_attr *attr);
gantry_result gantry_lift_devices(struct gantry_net *net, int *ret_count);
gantry_result gantry_lift_make_vdevice_none(struct gantry_net *net, const struct gantry_net_vdevice *vdev,
					    int *ret_dev);
gantry_result gantry_lift_make_vdevice_v9(struct gantry_net *net, const struct gantry_net_vdevice *vdev, int *ret_dev);
gantry_result gantry_lift_listen_v6(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_listen);
gantry_result gantry_lift_connect_v7(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_comm,
				     struct gantry_net_device_handle **dev_handle);
gantry_result gantry_lift_accept(struct gantry_net *net, void *listen, void **ret_comm,
				 struct gantry_net_device_handle **dev_handle);
gantry_result gantry_lift_close_send(struct gantry_net *net, void *comm);
gantry_result gantry_lift_close_recv(struct gantry_net *net, void *comm);
gantry_result gantry_lift_close_listen(struct gantry_net *net, void *listen);
gantry_result gantry_lift_reg_mr(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr);
gantry_result gantry_lift_reg_mr_dmabuf(struct gantry_net *net, void *comm, void *data, size_t size, int type,
					uint64_t offset, int fd, void **ret_mr);
gantry_result gantry_lift_dereg_mr(struct gantry_net *net, void *comm, void *mr);
gantry_result gantry_lift_get_device_mr(struct gantry_net *net, void *comm, void *mr, void **ret_dptr);
gantry_result gantry_lift_isend_v10(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
				    void **ret_request);
gantry_result gantry_lift_irecv_v10(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
				    const int *tags, void **mrs, void **request);
gantry_result gantry_lift_iflush(struct gantry_net *net, void *comm, int n, void **data, const int *sizes, void **mrs,
				 void **ret_request);
gantry_result gantry_lift_test(struct gantry_net *net, void *request, int *ret_done, int *sizes);
gantry_result gantry_lift_irecv_consumed(struct gantry_net *net, void *comm, int n, void *request);

/* clang-format off */
/* The part of an ops table that no version changes. */
#define GANTRY_LIFT_SAME_IN_ALL                              \
	.devices = gantry_lift_devices,                      \
	.close_send = gantry_lift_close_send,                \
	.close_recv = gantry_lift_close_recv,                \
	.close_listen = gantry_lift_close_listen,            \
	.reg_mr_dmabuf = gantry_lift_reg_mr_dmabuf,          \
	.dereg_mr = gantry_lift_dereg_mr,                    \
	.get_device_mr = gantry_lift_get_device_mr,          \
	.iflush = gantry_lift_iflush,                        \
	.test = gantry_lift_test,                            \
	.irecv_consumed = gantry_lift_irecv_consumed
/* clang-format on */

extern const struct gantry_net_ops gantry_lift_ops_v6;	/* lift_v6.c */
extern const struct gantry_net_ops gantry_lift_ops_v7;	/* lift_v6.c */
extern const struct gantry_net_ops gantry_lift_ops_v8;	/* lift_v6.c */
extern const struct gantry_net_ops gantry_lift_ops_v9;	/* lift_v9.c */
extern const struct gantry_net_ops gantry_lift_ops_v10; /* lift_v9.c */
extern const struct gantry_net_ops gantry_lift_ops_v11; /* lift_v11.c */
extern const struct gantry_net_ops gantry_lift_ops_v12; /* lift_v11.c */

/* lift_props.c: get_properties of each version. */
gantry_result gantry_lift_properties_v6(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props);
gantry_result gantry_lift_properties_v7(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props);
gantry_result gantry_lift_properties_v8(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props);
gantry_result gantry_lift_properties_v9(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props);
gantry_result gantry_lift_properties_v11(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props);
gantry_result gantry_lift_properties_v12(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props);

/*
 * loader_log.c: NCCL's logger has no argument for its user, so each library gets
 * a function of its own from a fixed set. It stays the library's for ever: a
 * thread of a closed plugin may still log. When all are taken, one without a label.
 */
ncclDebugLogger_t gantry_loader_logger(const char *label);

#endif
