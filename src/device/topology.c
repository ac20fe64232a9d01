/* SPDX-License-Identifier: Apache-2.0 */
#include "device/topology.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mutex.h"
#include "device/device.h"

/* Version 1 had NUMA nodes as parents of their CPUs, 2.0 no way to leave components out. */
#if GANTRY_HAVE_HWLOC
#include <hwloc.h>
#define USE_HWLOC (HWLOC_API_VERSION >= 0x00020100)
#else
#define USE_HWLOC 0
#endif

const char *gantry_distance_text(enum gantry_distance d)
{
	static const char *const texts[] = {"behind the same PCIe switch", "below the same host bridge",
					    "at the same NUMA node", "at an unknown distance", "at another NUMA node"};

	return texts[d];
}

/* ---- /sys ---- */

static int node_of_path(const char *pci_path)
{
	char path[PATH_MAX + 16];
	int node = -1;

	snprintf(path, sizeof(path), "%s/numa_node", pci_path);
	return gantry_file_int(path, &node) ? node : -1;
}

static const char *last_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

enum gantry_distance gantry_topology_of_paths(const char *a, const char *b)
{
	const char *root = strstr(a, "/pci");
	int same = 0, nodes[2];

	/* /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0: the host bridge, ports and switches, the device. */
	for (size_t i = 0; root && a[i] && a[i] == b[i]; i++)
		same += a + i > root && a[i] == '/';
	if (same >= 2)
		return GANTRY_NEAR_SWITCH;
	if (same == 1)
		return GANTRY_NEAR_BRIDGE;
	nodes[0] = node_of_path(a);
	nodes[1] = node_of_path(b);
	if (nodes[0] < 0 || nodes[1] < 0)
		return GANTRY_NEAR_UNKNOWN;
	return nodes[0] == nodes[1] ? GANTRY_NEAR_NODE : GANTRY_NEAR_NOT;
}

static enum gantry_distance distance_by_sys(const char *bus_id, const char *pci_path)
{
	char path[64], *full;
	enum gantry_distance d = GANTRY_NEAR_UNKNOWN;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", bus_id);
	full = realpath(path, NULL);
	if (full)
		d = gantry_topology_of_paths(full, pci_path);
	free(full);
	return d;
}

/* ---- hwloc ---- */

#if USE_HWLOC

MUTEX_KIND(topology_mu);
static struct topology_mu topology_mu_one;

/*
 * Loaded once for the life of the process. I/O devices take longest to find: they are looked for on first use.
 * Components that open the driver of a GPU are left out: they would make a context there.
 */
static hwloc_topology_t load_topology(int io) REQUIRES(topology_mu)
{
	static const char *const drivers[] = {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"};
	static struct {
		int tried;
		hwloc_topology_t found;
	} kept[2];
	hwloc_topology_t t;

	if (kept[io].tried)
		return kept[io].found;
	kept[io].tried = 1;
	if (hwloc_topology_init(&t))
		return NULL;
	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
		hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, drivers[i]);
	/* NUMA nodes and I/O devices hang on packages and groups: without those, each node would have all CPUs. */
	if (hwloc_topology_set_all_types_filter(t, HWLOC_TYPE_FILTER_KEEP_STRUCTURE) ||
	    (io && hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL)) || hwloc_topology_load(t))
		hwloc_topology_destroy(t);
	else
		kept[io].found = t;
	return kept[io].found;
}

static int same_node(hwloc_obj_t a, hwloc_obj_t b)
{
	a = hwloc_get_non_io_ancestor_obj(NULL, a);
	b = hwloc_get_non_io_ancestor_obj(NULL, b);
	return a && b && hwloc_bitmap_intersects(a->nodeset, b->nodeset);
}

/* hwloc's own function goes by depth, which I/O objects do not have. */
static hwloc_obj_t common_ancestor(hwloc_obj_t a, hwloc_obj_t b)
{
	for (a = a->parent; a; a = a->parent)
		for (hwloc_obj_t x = b->parent; x; x = x->parent)
			if (x == a)
				return a;
	return NULL;
}

static enum gantry_distance distance_by_hwloc(const char *bus_id, const char *other_id) REQUIRES(topology_mu)
{
	hwloc_topology_t t = load_topology(1);
	hwloc_obj_t a = t ? hwloc_get_pcidev_by_busidstring(t, bus_id) : NULL;
	hwloc_obj_t b = t ? hwloc_get_pcidev_by_busidstring(t, other_id) : NULL, above;

	if (!a || !b)
		return GANTRY_NEAR_UNKNOWN;
	above = common_ancestor(a, b);
	if (!above || above->type != HWLOC_OBJ_BRIDGE)
		return same_node(a, b) ? GANTRY_NEAR_NODE : GANTRY_NEAR_NOT;
	return above->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? GANTRY_NEAR_SWITCH : GANTRY_NEAR_BRIDGE;
}

static hwloc_obj_t node_by_number(int node) REQUIRES(topology_mu)
{
	hwloc_topology_t t = load_topology(0);

	return t ? hwloc_get_numanode_obj_by_os_index(t, (unsigned)node) : NULL;
}

int gantry_topology_cpus(int node, cpu_set_t *ret_set)
{
	hwloc_obj_t o;
	int n = 0;

	CPU_ZERO(ret_set);
	topology_mu_lock(&topology_mu_one);
	o = node_by_number(node);
	for (int i = 0; o && i < CPU_SETSIZE; i++) {
		if (hwloc_bitmap_isset(o->cpuset, (unsigned)i)) {
			CPU_SET((size_t)i, ret_set);
			n++;
		}
	}
	topology_mu_unlock(&topology_mu_one);
	return n;
}

/* The NUMA node all of whose CPUs are in the set's; -1: they are of several, or of none that is known. */
static int node_of_cpus(const cpu_set_t *cpus) REQUIRES(topology_mu)
{
	hwloc_topology_t t = load_topology(0);
	hwloc_obj_t o = NULL;
	int found = -1;

	while (t && (o = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, o)) != NULL) {
		int some = 0;

		for (int i = 0; i < CPU_SETSIZE && !some; i++)
			some = CPU_ISSET((size_t)i, cpus) && hwloc_bitmap_isset(o->cpuset, (unsigned)i);
		if (some && found >= 0)
			return -1;
		if (some)
			found = (int)o->os_index;
	}
	return found;
}

/* -1: not known. */
static int node_of_pci(const char *bus_id) REQUIRES(topology_mu)
{
	hwloc_topology_t t = load_topology(1);
	hwloc_obj_t o = t ? hwloc_get_pcidev_by_busidstring(t, bus_id) : NULL;

	o = o ? hwloc_get_non_io_ancestor_obj(t, o) : NULL;
	return o && hwloc_bitmap_weight(o->nodeset) == 1 ? hwloc_bitmap_first(o->nodeset) : -1;
}

/* The node of a machine that has only one, which is all that hwloc would find in some milliseconds; -1: several. */
static int only_node(void)
{
	FILE *f;
	char end;
	int node = -1;

	if (getenv("HWLOC_XMLFILE") || getenv("HWLOC_SYNTHETIC"))
		return -1;
	f = fopen("/sys/devices/system/node/has_cpu", "re");
	if (f && (fscanf(f, "%d%c", &node, &end) != 2 || end != '\n'))
		node = -1;
	if (f)
		fclose(f);
	return node;
}

/* Of the CPUs that this process may use. Not of the calling thread: that one may be bound to a CPU of its own. */
static int node_of_process(void)
{
	cpu_set_t mine;
	int node = only_node();

	if (node >= 0)
		return node;
	topology_mu_lock(&topology_mu_one);
	if (!sched_getaffinity(getpid(), sizeof(mine), &mine))
		node = node_of_cpus(&mine);
	topology_mu_unlock(&topology_mu_one);
	return node;
}

static enum gantry_distance ask_hwloc(const char *bus_id, const char *other_id)
{
	enum gantry_distance d;

	topology_mu_lock(&topology_mu_one);
	d = distance_by_hwloc(bus_id, other_id);
	topology_mu_unlock(&topology_mu_one);
	return d;
}

static int ask_node(const char *bus_id)
{
	int node;

	topology_mu_lock(&topology_mu_one);
	node = node_of_pci(bus_id);
	topology_mu_unlock(&topology_mu_one);
	return node;
}

#else

int gantry_topology_cpus(int node, cpu_set_t *ret_set)
{
	(void)node;
	CPU_ZERO(ret_set);
	return 0;
}

static int node_of_process(void)
{
	return -1;
}

static enum gantry_distance ask_hwloc(const char *bus_id, const char *other_id)
{
	(void)bus_id, (void)other_id;
	return GANTRY_NEAR_UNKNOWN;
}

static int ask_node(const char *bus_id)
{
	(void)bus_id;
	return -1;
}

#endif

int gantry_topology_node(const struct gantry_device *dev)
{
	int node;

	if (!*dev->bus_id)
		return node_of_process();
	node = ask_node(dev->bus_id);
	return node >= 0 ? node : dev->numa_node;
}

enum gantry_distance gantry_topology_distance(const struct gantry_device *dev, const char *pci_path)
{
	enum gantry_distance d;
	int mine, its;

	if (!pci_path)
		return GANTRY_NEAR_UNKNOWN;
	if (*dev->bus_id) {
		d = ask_hwloc(dev->bus_id, last_of(pci_path));
		return d == GANTRY_NEAR_UNKNOWN ? distance_by_sys(dev->bus_id, pci_path) : d;
	}
	mine = node_of_process();
	its = ask_node(last_of(pci_path));
	if (its < 0)
		its = node_of_path(pci_path);
	if (mine < 0 || its < 0)
		return GANTRY_NEAR_UNKNOWN;
	return mine == its ? GANTRY_NEAR_NODE : GANTRY_NEAR_NOT;
}
