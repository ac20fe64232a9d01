/* SPDX-License-Identifier: Apache-2.0 */
/* Result codes and properties, from the core's form to each version's. */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include "base/log.h"
#include "plugin/plugin.h"

ncclResult_t gantry_plugin_result(gantry_result r)
{
	if (gantry_result_is_remote(r))
		return ncclRemoteError;
	switch (r) {
	case GANTRY_OK:
		return ncclSuccess;
	case GANTRY_ERR_SYSTEM:
	case GANTRY_ERR_LIMIT:
	case GANTRY_ERR_NOMEM:
		return ncclSystemError;
	case GANTRY_ERR_SIZE:
	case GANTRY_ERR_CONFIG:
	case GANTRY_ERR_SETTING:
	case GANTRY_ERR_VERSION:
	case GANTRY_ERR_AUTH:
	case GANTRY_ERR_USAGE:
		return ncclInvalidUsage;
	case GANTRY_ERR_INVALID:
		return ncclInvalidArgument;
	case GANTRY_AGAIN:
		LOG_ERROR(PLUGIN, "the core said \"again\" in a call that cannot pass it on");
		return ncclInternalError;
	default:
		return ncclInternalError;
	}
}

/*
 * Every version kept the fields of the one before and added some, in other
 * places: so each step names its own fields only. NCCL's char pointers are not
 * const, but it does not write through them.
 */
#define FILL_V6(to, from)                                                                                              \
	(to)->name = (char *)(from)->name;                                                                             \
	(to)->pciPath = (char *)(from)->pci_path;                                                                      \
	(to)->guid = (from)->guid;                                                                                     \
	(to)->ptrSupport = (from)->ptr_support;                                                                        \
	(to)->speed = (from)->speed;                                                                                   \
	(to)->port = (from)->port;                                                                                     \
	(to)->latency = (from)->latency;                                                                               \
	(to)->maxComms = (from)->max_comms;                                                                            \
	(to)->maxRecvs = (from)->max_recvs
#define FILL_V7(to, from)                                                                                              \
	FILL_V6(to, from);                                                                                             \
	(to)->netDeviceType = (ncclNetDeviceType)(from)->device_type;                                                  \
	(to)->netDeviceVersion = (from)->device_version
#define FILL_V8(to, from)                                                                                              \
	FILL_V7(to, from);                                                                                             \
	(to)->regIsGlobal = (from)->reg_is_global
#define FILL_V9(to, from)                                                                                              \
	FILL_V8(to, from);                                                                                             \
	(to)->forceFlush = (from)->force_flush;                                                                        \
	(to)->vProps.ndevs =                                                                                           \
		copy_devs(&(from)->vdev, (to)->vProps.devs, (int)(sizeof((to)->vProps.devs) / sizeof(int)));           \
	(to)->maxP2pBytes = (from)->max_p2p_bytes;                                                                     \
	(to)->maxCollBytes = (from)->max_coll_bytes
#define FILL_V11(to, from)                                                                                             \
	FILL_V9(to, from);                                                                                             \
	(to)->maxMultiRequestSize = (from)->max_multi_request_size
#define FILL_V12(to, from)                                                                                             \
	FILL_V11(to, from);                                                                                            \
	(to)->railId = (from)->rail_id;                                                                                \
	(to)->planeId = (from)->plane_id

/* A device fused from more than `max` is shown with its first ones; entries not used are 0. Returns how many. */
static int copy_devs(const struct gantry_net_vdevice *vdev, int *devs, int max)
{
	int n = vdev->ndevs < max ? vdev->ndevs : max;

	for (int i = 0; i < max; i++)
		devs[i] = i < n ? vdev->devs[i] : 0;
	return n;
}

#define DEFINE_PROPERTIES(version, fill, overlay)                                                                      \
	ncclResult_t gantry_plugin_properties_##version(int dev, ncclNetProperties_##version##_t *props)               \
	{                                                                                                              \
		struct gantry_net *net = gantry_net_tcp();                                                             \
		struct gantry_net_properties p;                                                                        \
		gantry_result r = net->ops->get_properties(net, dev, &p);                                              \
                                                                                                                       \
		if (r == GANTRY_OK) {                                                                                  \
			overlay(&p);                                                                                   \
			fill(props, &p);                                                                               \
		}                                                                                                      \
		return gantry_plugin_result(r);                                                                        \
	}

DEFINE_PROPERTIES(v6, FILL_V6, (void))
DEFINE_PROPERTIES(v7, FILL_V7, (void))
DEFINE_PROPERTIES(v8, FILL_V8, (void))
DEFINE_PROPERTIES(v9, FILL_V9, gantry_plugin_unpack_overlay)
DEFINE_PROPERTIES(v11, FILL_V11, gantry_plugin_unpack_overlay)
DEFINE_PROPERTIES(v12, FILL_V12, gantry_plugin_unpack_overlay)
