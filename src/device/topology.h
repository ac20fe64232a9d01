/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where things are in this machine: NUMA nodes, their CPUs, and what is near which device. From hwloc, where it was built
 * in (version 2), so that its variables (HWLOC_XMLFILE, HWLOC_SYNTHETIC) describe any machine for tests; else, and for
 * PCI devices that hwloc does not show, from /sys.
 */
#ifndef GANTRY_DEVICE_TOPOLOGY_H
#define GANTRY_DEVICE_TOPOLOGY_H

#include <sched.h>

struct gantry_device;

/* The nearest first. */
enum gantry_distance {
	GANTRY_NEAR_SWITCH,  /* behind one PCIe switch: data does not pass the CPU */
	GANTRY_NEAR_BRIDGE,  /* below one host bridge */
	GANTRY_NEAR_NODE,    /* at one NUMA node */
	GANTRY_NEAR_UNKNOWN, /* one of them is not known */
	GANTRY_NEAR_NOT,     /* at another NUMA node */
};
const char *gantry_distance_text(enum gantry_distance d); /* "behind the same PCIe switch" */

/* From a device to a NIC, by the NIC's directory in /sys (NULL: it is virtual). From the host device: from the NUMA node
 * of this process's CPUs. */
enum gantry_distance gantry_topology_distance(const struct gantry_device *dev, const char *pci_path);
/* The NUMA node of the device, or of the CPUs that this process may use; -1: several, or not known. */
int gantry_topology_node(const struct gantry_device *dev);
/* The CPUs of a NUMA node; returns how many, 0: not known. */
int gantry_topology_cpus(int node, cpu_set_t *ret_set);

/* Two PCI devices by their directories in /sys alone. Exposed for tests. */
enum gantry_distance gantry_topology_of_paths(const char *a, const char *b);

#endif
