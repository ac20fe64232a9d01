/* SPDX-License-Identifier: Apache-2.0 */
/* Result codes and properties, from the core's form to each version's. */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include "base/log.h"
#include "net/props.h"
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

/* A device fused from more than `max` is shown with its first ones; entries not used are 0. Returns how many. */
static int copy_devs(const struct gantry_net_vdevice *vdev, int *devs, int max)
{
	int n = vdev->ndevs < max ? vdev->ndevs : max;

	for (int i = 0; i < max; i++)
		devs[i] = i < n ? vdev->devs[i] : 0;
	return n;
}

/* NCCL's char pointers are not const, but it does not write through them. */
#define FILL(ours, nccls) props->nccls = p.ours;
#define FILL_DEVS                                                                                                      \
	props->vProps.ndevs = copy_devs(&p.vdev, props->vProps.devs, (int)(sizeof(props->vProps.devs) / sizeof(int)))
#define DEFINE_PROPERTIES(version, list, devs, overlay)                                                                \
	ncclResult_t gantry_plugin_properties_##version(int dev, ncclNetProperties_##version##_t *props)               \
	{                                                                                                              \
		struct gantry_net *net = gantry_net_tcp();                                                             \
		struct gantry_net_properties p;                                                                        \
		gantry_result r = net->ops->get_properties(net, dev, &p);                                              \
                                                                                                                       \
		if (r == GANTRY_OK) {                                                                                  \
			overlay(&p);                                                                                   \
			props->name = (char *)p.name;                                                                  \
			props->pciPath = (char *)p.pci_path;                                                           \
			list(FILL) devs;                                                                               \
		}                                                                                                      \
		return gantry_plugin_result(r);                                                                        \
	}

DEFINE_PROPERTIES(v6, NET_PROPS_V6, , (void))
DEFINE_PROPERTIES(v7, NET_PROPS_V7, , (void))
DEFINE_PROPERTIES(v8, NET_PROPS_V8, , (void))
DEFINE_PROPERTIES(v9, NET_PROPS_V9, FILL_DEVS, gantry_plugin_unpack_overlay)
DEFINE_PROPERTIES(v11, NET_PROPS_V11, FILL_DEVS, gantry_plugin_unpack_overlay)
DEFINE_PROPERTIES(v12, NET_PROPS_V12, FILL_DEVS, gantry_plugin_unpack_overlay)
