/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is near which device, on a machine that hwloc is told of (fixtures/two_nodes.xml): two NUMA nodes of a CPU each.
 * Node 0 has a GPU (01) and a NIC (02) behind a switch, a NIC (03) below the same host bridge, a NIC (41) below another
 * one; node 1 has a NIC (81). That file has no comment of its own: hwloc without libxml2 reads none.
 */
#include "device/device.h"
#include "device/topology.h"
#include "test.h"

static void read_machine(void)
{
	const char *source = getenv("SOURCE_DIR");
	char path[4096];

	if (!GANTRY_HAVE_HWLOC)
		SKIP("built without hwloc");
	snprintf(path, sizeof(path), "%s/tests/fixtures/two_nodes.xml", source ? source : ".");
	setenv("HWLOC_XMLFILE", path, 1);
}

/* By paths of /sys that do not exist, no NUMA node is known: only what the paths say. */
TEST(paths_show_switch_and_bridge)
{
	static const struct {
		const char *a, *b;
		enum gantry_distance d;
	} cases[] = {
		{"/sys/devices/pci0:0/0:0:1.0/0:1:0.0", "/sys/devices/pci0:0/0:0:1.0/0:2:0.0", GANTRY_NEAR_SWITCH},
		{"/sys/devices/pci0:0/0:0:1.0/0:1:0.0", "/sys/devices/pci0:0/0:0:2.0/0:3:0.0", GANTRY_NEAR_BRIDGE},
		{"/sys/devices/pci0:0/0:0:1.0", "/sys/devices/pci0:0/0:0:1.1", GANTRY_NEAR_BRIDGE},
		{"/sys/devices/platform/x/pci0:0/0:0:1.0", "/sys/devices/platform/x/pci1:0/1:0:1.0",
		 GANTRY_NEAR_UNKNOWN},
		{"/sys/devices/pci0:0/0:0:1.0/0:1:0.0", "/sys/devices/pci0:4/0:40:1.0/0:41:0.0", GANTRY_NEAR_UNKNOWN},
		{"/sys/devices/virtual/a", "/sys/devices/virtual/b", GANTRY_NEAR_UNKNOWN},
	};

	EACH_ROW (i, cases) {
		CHECK_EQ(gantry_topology_of_paths(cases[i].a, cases[i].b), cases[i].d);
		CHECK_EQ(gantry_topology_of_paths(cases[i].b, cases[i].a), cases[i].d);
	}
}

TEST(nics_by_distance_from_a_gpu)
{
	static const struct {
		const char *nic;
		enum gantry_distance d;
	} cases[] = {{"0000:02:00.0", GANTRY_NEAR_SWITCH},
		     {"0000:03:00.0", GANTRY_NEAR_BRIDGE},
		     {"0000:41:00.0", GANTRY_NEAR_NODE},
		     {"0000:81:00.0", GANTRY_NEAR_NOT},
		     {"0000:99:00.0", GANTRY_NEAR_UNKNOWN}};
	struct gantry_device gpu = {.kind = GANTRY_DEVICE_CUDA, .numa_node = -1, .bus_id = "0000:01:00.0"};
	char path[64];

	read_machine();
	EACH_ROW (i, cases) {
		snprintf(path, sizeof(path), "/sys/devices/pci/%s", cases[i].nic);
		CHECK_EQ(gantry_topology_distance(&gpu, path), cases[i].d);
	}
	CHECK_EQ(gantry_topology_distance(&gpu, NULL), GANTRY_NEAR_UNKNOWN);
	CHECK_EQ(gantry_topology_node(&gpu), 0);
	snprintf(gpu.bus_id, sizeof(gpu.bus_id), "0000:81:00.0");
	CHECK_EQ(gantry_topology_node(&gpu), 1);
	snprintf(gpu.bus_id, sizeof(gpu.bus_id), "0000:99:00.0");
	gpu.numa_node = 3; /* what the driver's device says, where hwloc does not show it */
	CHECK_EQ(gantry_topology_node(&gpu), 3);
}

/* The host device is where the CPUs of the process are. */
TEST(host_device_is_at_its_cpus)
{
	const struct gantry_device host = {.kind = GANTRY_DEVICE_HOST, .numa_node = -1};
	cpu_set_t before, one, cpus;

	read_machine();
	CHECK_EQ(gantry_topology_cpus(1, &cpus), 1);
	CHECK(CPU_ISSET(1, &cpus));
	CHECK_EQ(gantry_topology_cpus(7, &cpus), 0);
	CHECK_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
	if (!CPU_ISSET(0, &before) || !CPU_ISSET(1, &before))
		SKIP("this process may not use CPUs 0 and 1");
	for (int node = 0; node < 2; node++) {
		CPU_ZERO(&one);
		CPU_SET((size_t)node, &one);
		CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
		CHECK_EQ(gantry_topology_node(&host), node);
		CHECK_EQ(gantry_topology_distance(&host, "/x/0000:02:00.0"), node ? GANTRY_NEAR_NOT : GANTRY_NEAR_NODE);
		CHECK_EQ(gantry_topology_distance(&host, "/x/0000:81:00.0"), node ? GANTRY_NEAR_NODE : GANTRY_NEAR_NOT);
	}
	CPU_SET(0, &one);
	CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
	CHECK_EQ(gantry_topology_node(&host), -1);
	CHECK_EQ(gantry_topology_distance(&host, "/x/0000:02:00.0"), GANTRY_NEAR_UNKNOWN);
	sched_setaffinity(0, sizeof(before), &before);
}
