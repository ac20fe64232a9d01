/* SPDX-License-Identifier: Apache-2.0 */
/* CPUs near a device. What the user or a batch system has allowed to the process is kept: only less of it is used. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "proxy/proxy.h"
#include "proxy/topology.h"

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
	if (!gantry_topology_cpus(numa_node, &near)) {
		LOG_INFO(PROXY, "progress thread not pinned: the CPUs of NUMA node %d are not known%s", numa_node,
			 GANTRY_HAVE_HWLOC ? "" : " without hwloc");
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
