/* SPDX-License-Identifier: Apache-2.0 */
/* Properties, from the core's form to each version's: net and collNet tables must show the same devices. */
#ifndef GANTRY_PLUGIN_PLUGIN_PROPS_H
#define GANTRY_PLUGIN_PLUGIN_PROPS_H

#include "net/props.h"

/* A device fused from more than `max` is shown with its first ones; entries not used are 0. Returns how many. */
static inline int plugin_copy_devs(const struct gantry_net_vdevice *vdev, int *devs, int max)
{
	int n = vdev->ndevs < max ? vdev->ndevs : max;

	for (int i = 0; i < max; i++)
		devs[i] = i < n ? vdev->devs[i] : 0;
	return n;
}

/* NCCL's char pointers are not const, but it does not write through them. */
#define FILL(ours, nccls) props->nccls = p.ours;
#define FILL_DEVS                                                                                                      \
	props->vProps.ndevs =                                                                                          \
		plugin_copy_devs(&p.vdev, props->vProps.devs, (int)(sizeof(props->vProps.devs) / sizeof(int)))
#define DEFINE_PROPERTIES(prefix, version, list, devs, overlay)                                                        \
	static ncclResult_t prefix##_properties_##version(int dev, ncclNetProperties_##version##_t *props)             \
	{                                                                                                              \
		struct gantry_net_properties p;                                                                        \
		gantry_result r = gantry_net_tcp()->ops->get_properties(gantry_net_tcp(), dev, &p);                    \
                                                                                                                       \
		if (r == GANTRY_OK) {                                                                                  \
			overlay(&p);                                                                                   \
			props->name = (char *)p.name;                                                                  \
			props->pciPath = (char *)p.pci_path;                                                           \
			list(FILL) devs;                                                                               \
		}                                                                                                      \
		return plugin_result(r);                                                                               \
	}

#endif
