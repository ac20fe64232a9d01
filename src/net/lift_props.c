/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of every version, lifted. Each version added fields: a lifted
 * device starts from what NCCL assumes where a field is missing, and each step
 * below takes over what its version added.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_LOADER
#include "base/log.h"
#include "net/lift.h"

static void assume(struct gantry_net_properties *p, int dev)
{
	*p = (struct gantry_net_properties){
		.device_type = GANTRY_NET_DEVICE_HOST,
		.device_version = NCCL_NET_DEVICE_INVALID_VERSION,
		.vdev = {.ndevs = 1, .devs = {dev}},
		.max_p2p_bytes = NCCL_MAX_NET_SIZE_BYTES_V8,
		.max_coll_bytes = NCCL_MAX_COLLNET_SIZE_BYTES,
		.max_multi_request_size = 1,
		.rail_id = NCCL_NET_ID_UNDEF,
		.plane_id = NCCL_NET_ID_UNDEF,
	};
}

/* A foreign count: never more than there is room for, and a device is at least itself. */
static void take_devs(struct gantry_net_vdevice *to, int ndevs, const int *devs, int max)
{
	int n = ndevs < max ? ndevs : max;

	if (n < 1)
		return;
	to->ndevs = n;
	for (int i = 0; i < n; i++)
		to->devs[i] = devs[i];
}

#define TAKE_V6(to, from)                                                                                              \
	(to)->name = (from)->name ? (from)->name : "";                                                                 \
	(to)->pci_path = (from)->pciPath;                                                                              \
	(to)->guid = (from)->guid;                                                                                     \
	(to)->ptr_support = (from)->ptrSupport;                                                                        \
	(to)->speed = (from)->speed;                                                                                   \
	(to)->port = (from)->port;                                                                                     \
	(to)->latency = (from)->latency;                                                                               \
	(to)->max_comms = (from)->maxComms;                                                                            \
	(to)->max_recvs = (from)->maxRecvs
#define TAKE_V7(to, from)                                                                                              \
	TAKE_V6(to, from);                                                                                             \
	(to)->device_type = (int)(from)->netDeviceType;                                                                \
	(to)->device_version = (from)->netDeviceVersion
#define TAKE_V8(to, from)                                                                                              \
	TAKE_V7(to, from);                                                                                             \
	(to)->reg_is_global = (from)->regIsGlobal
#define TAKE_V9(to, from)                                                                                              \
	TAKE_V8(to, from);                                                                                             \
	(to)->force_flush = (from)->forceFlush;                                                                        \
	take_devs(&(to)->vdev, (from)->vProps.ndevs, (from)->vProps.devs,                                              \
		  (int)(sizeof((from)->vProps.devs) / sizeof(int)));                                                   \
	(to)->max_p2p_bytes = (from)->maxP2pBytes;                                                                     \
	(to)->max_coll_bytes = (from)->maxCollBytes
#define TAKE_V11(to, from)                                                                                             \
	TAKE_V9(to, from);                                                                                             \
	(to)->max_multi_request_size = (from)->maxMultiRequestSize
#define TAKE_V12(to, from)                                                                                             \
	TAKE_V11(to, from);                                                                                            \
	(to)->rail_id = (from)->railId;                                                                                \
	(to)->plane_id = (from)->planeId

#define DEFINE_PROPERTIES(version, take)                                                                               \
	gantry_result gantry_lift_properties_##version(struct gantry_net *net, int dev,                                \
						       struct gantry_net_properties *ret_props)                        \
	{                                                                                                              \
		struct gantry_lift *l = net->impl;                                                                     \
		ncclNetProperties_##version##_t p = {0};                                                               \
		gantry_result r;                                                                                       \
                                                                                                                       \
		TRY(gantry_lift_result(l, "getProperties", l->t.version.getProperties(dev, &p)));                      \
		assume(ret_props, dev);                                                                                \
		take(ret_props, &p);                                                                                   \
	out:                                                                                                           \
		return r;                                                                                              \
	}

DEFINE_PROPERTIES(v6, TAKE_V6)
DEFINE_PROPERTIES(v7, TAKE_V7)
DEFINE_PROPERTIES(v8, TAKE_V8)
DEFINE_PROPERTIES(v9, TAKE_V9)
DEFINE_PROPERTIES(v11, TAKE_V11)
DEFINE_PROPERTIES(v12, TAKE_V12)
