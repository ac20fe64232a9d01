/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/rails.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/text.h"
#include "device/topology.h"
#include "inet/settings.h"

/* A device of the network, as it is compared. */
struct candidate {
	int dev, speed;
	enum gantry_distance distance;
	const struct gantry_nic *nic;
};

static bool comes_before(const struct candidate *a, const struct candidate *b)
{
	if (a->distance != b->distance)
		return a->distance < b->distance;
	return a->speed > b->speed;
}

static const struct gantry_nic *nic_named(const struct gantry_nic_list *nics, const char *name)
{
	for (int i = 0; i < nics->count; i++)
		if (name && strcmp(nics->nics[i].name, name) == 0)
			return &nics->nics[i];
	return NULL;
}

/* Physical devices; with a device the best for it first, else in the network's order. Returns how many. */
static int list_candidates(const struct gantry_device *device, const struct gantry_nic_list *nics,
			   struct candidate list[GANTRY_NIC_MAX])
{
	struct gantry_net *net = gantry_net_tcp();
	struct gantry_net_properties p;
	int n = 0, count = 0;

	if (net->ops->devices(net, &n) != GANTRY_OK)
		return 0;
	for (int dev = 0; dev < n && count < GANTRY_NIC_MAX; dev++) {
		const struct gantry_nic *nic;
		struct candidate c;
		int at;

		if (net->ops->get_properties(net, dev, &p) != GANTRY_OK || p.vdev.ndevs != 1 ||
		    !(nic = nic_named(nics, p.name)))
			continue;
		c = (struct candidate){.dev = dev, .speed = p.speed, .nic = nic};
		if (device)
			c.distance = gantry_topology_distance(device, nic->pci_path);
		for (at = count++; device && at > 0 && comes_before(&c, &list[at - 1]); at--)
			list[at] = list[at - 1];
		list[at] = c;
	}
	return count;
}

static void add_rail(struct gantry_rails *rails, const struct candidate *c)
{
	struct gantry_rail *to = &rails->rail[rails->n++];

	ASSERT(rails->n <= GANTRY_NET_MAX_RAILS);
	to->dev = c->dev;
	to->addr = c->nic->addrs[0];
	memcpy(to->name, c->nic->name, sizeof(to->name));
}

gantry_result gantry_rails_find(const struct gantry_device *device, int most, struct gantry_rails *ret_rails)
{
	struct candidate list[GANTRY_NIC_MAX];
	struct gantry_nic_list *nics = NULL;
	int n, fastest = 0;

	TRY_NOW(inet_wanted_nics(&nics));
	n = list_candidates(device, nics, list);
	for (int i = 0; i < n; i++)
		fastest = list[i].speed > fastest ? list[i].speed : fastest;
	if (!most || most > GANTRY_NET_MAX_RAILS)
		most = GANTRY_NET_MAX_RAILS;
	ret_rails->n = 0;
	for (int i = 0; i < n && ret_rails->n < most; i++)
		if (list[i].speed >= fastest / 2)
			add_rail(ret_rails, &list[i]);
	gantry_nic_list_free(nics);
	return GANTRY_OK;
}

static gantry_result add_named(struct gantry_rails *rails, const struct candidate *list, int n, const char *name)
{
	char known[256] = "";

	for (int i = 0; i < rails->n; i++)
		if (strcmp(rails->rail[i].name, name) == 0)
			FAIL_NOW(GANTRY_ERR_CONFIG, "interface %s is named twice", name);
	if (rails->n == GANTRY_NET_MAX_RAILS)
		FAIL_NOW(GANTRY_ERR_CONFIG, "more than %d interfaces are named", GANTRY_NET_MAX_RAILS);
	for (int i = 0; i < n; i++) {
		if (strcmp(list[i].nic->name, name) == 0) {
			add_rail(rails, &list[i]);
			return GANTRY_OK;
		}
		gantry_text_add(known, sizeof(known), "%s%s", i ? ", " : "", list[i].nic->name);
	}
	FAIL_NOW(GANTRY_ERR_CONFIG, "interface %s is not usable; usable: %s", name, known[0] ? known : "none");
}

gantry_result gantry_rails_named(const char *names, struct gantry_rails *ret_rails)
{
	gantry_result r = GANTRY_OK;
	struct candidate list[GANTRY_NIC_MAX];
	struct gantry_nic_list *nics = NULL;
	char name[64];
	int n;

	TRY(inet_wanted_nics(&nics));
	n = list_candidates(NULL, nics, list);
	ret_rails->n = 0;
	for (;;) {
		size_t len = strcspn(names, "+");

		snprintf(name, sizeof(name), "%.*s", (int)len, names);
		TRY(add_named(ret_rails, list, n, name));
		if (!names[len])
			break;
		names += len + 1;
	}
out:
	gantry_nic_list_free(nics);
	return r;
}

const char *gantry_rails_text(const struct gantry_rails *rails, char *buf, size_t len)
{
	buf[0] = 0;
	for (int i = 0; i < rails->n; i++)
		gantry_text_add(buf, len, "%s%s", i ? "+" : "", rails->rail[i].name);
	return buf;
}

static gantry_result fuse_devs(const struct gantry_net_vdevice *devs, int *ret_dev)
{
	struct gantry_net *net = gantry_net_tcp();

	*ret_dev = devs->devs[0];
	return devs->ndevs > 1 ? net->ops->make_vdevice(net, devs, ret_dev) : GANTRY_OK;
}

gantry_result gantry_rails_fuse(const struct gantry_rails *rails, int *ret_dev)
{
	struct gantry_net_vdevice devs = {0};

	ASSERT(rails->n > 0);
	for (int i = 0; i < rails->n; i++)
		devs.devs[devs.ndevs++] = rails->rail[i].dev;
	return fuse_devs(&devs, ret_dev);
}

/* Whether a NIC leads to one of the peer's. */
static bool leads_to(const struct gantry_nic *nic, const struct gantry_addr *peer, int npeer, bool is_here)
{
	for (int j = 0; j < npeer; j++) {
		bool mine = false, near = false;

		for (int k = 0; k < nic->naddrs; k++) {
			mine |= gantry_addr_same_host(&nic->addrs[k], &peer[j]);
			near |= gantry_nic_same_subnet(nic, k, &peer[j]);
		}
		if (near && (!mine || is_here))
			return true;
	}
	return false;
}

gantry_result gantry_rails_choose(const struct gantry_rails *rails, const struct gantry_addr *peer, int npeer,
				  bool is_here, int *ret_dev, int *ret_count)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *nics = NULL;
	struct gantry_net_vdevice devs = {0};

	ASSERT(rails->n > 0);
	*ret_dev = rails->rail[0].dev;
	*ret_count = 1;
	if (rails->n < 2)
		return GANTRY_OK;
	TRY(inet_wanted_nics(&nics));
	for (int i = 0; i < rails->n; i++) {
		const struct gantry_nic *nic = nic_named(nics, rails->rail[i].name);

		if (nic && leads_to(nic, peer, npeer, is_here))
			devs.devs[devs.ndevs++] = rails->rail[i].dev;
	}
	if (devs.ndevs)
		TRY(fuse_devs(&devs, ret_dev));
	*ret_count = devs.ndevs > 1 ? devs.ndevs : 1;
out:
	gantry_nic_list_free(nics);
	return r;
}
