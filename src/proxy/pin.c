/* SPDX-License-Identifier: Apache-2.0 */
/* CPUs near a device. What the user or a batch system has allowed to the process is kept: only less of it is used. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "proxy/proxy.h"

#if GANTRY_HAVE_HWLOC
#include <hwloc.h>
#endif

/* Version 1 had NUMA nodes as parents of their CPUs and no filters. */
#if GANTRY_HAVE_HWLOC && HWLOC_API_VERSION >= 0x00020000

/* The CPUs of a NUMA node; returns how many, 0: not known. Only NUMA nodes are looked for, which is quick. */
static int cpus_of_node(int numa_node, cpu_set_t *ret_set)
{
	hwloc_topology_t topology;
	hwloc_obj_t node;
	int n = 0;

	CPU_ZERO(ret_set);
	if (hwloc_topology_init(&topology))
		return 0;
	if (hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE) || hwloc_topology_load(topology))
		goto out;
	node = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa_node);
	for (int i = 0; node && i < CPU_SETSIZE; i++) {
		if (hwloc_bitmap_isset(node->cpuset, (unsigned)i)) {
			CPU_SET((size_t)i, ret_set);
			n++;
		}
	}
out:
	hwloc_topology_destroy(topology);
	return n;
}

void gantry_proxy_pin(int numa_node)
{
	cpu_set_t near, mine, both;
	int rc;

	if (numa_node < 0)
		return;
	/* The process's, not the calling thread's: that one may be bound to a CPU which it wants for itself. */
	if (sched_getaffinity(getpid(), sizeof(mine), &mine)) {
		LOG_INFO(PROXY, "progress thread not pinned: sched_getaffinity: %s", strerror(errno));
		return;
	}
	if (!cpus_of_node(numa_node, &near)) {
		LOG_INFO(PROXY, "progress thread not pinned: the CPUs of NUMA node %d are not known", numa_node);
		return;
	}
	CPU_AND(&both, &near, &mine);
	if (CPU_COUNT(&both) == 0) {
		LOG_INFO(PROXY, "progress thread not pinned: this process may use no CPU of NUMA node %d", numa_node);
		return;
	}
	rc = pthread_setaffinity_np(pthread_self(), sizeof(both), &both);
	if (rc)
		LOG_WARN(PROXY, "progress thread not pinned: %s", strerror(rc));
	else
		LOG_INFO(PROXY, "progress thread pinned to %s of NUMA node %d", COUNT_TEXT(CPU_COUNT(&both), "CPU"),
			 numa_node);
}

#else

void gantry_proxy_pin(int numa_node)
{
	if (numa_node >= 0)
		LOG_INFO(PROXY, "progress thread not pinned to NUMA node %d: built without hwloc 2", numa_node);
}

#endif
