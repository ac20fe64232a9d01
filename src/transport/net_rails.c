/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: which NICs of Gantry's own network a communicator uses.
 *
 * A rank listens on all NICs that are worth it: at least half as fast as the fastest one, those near the device first.
 * It tells its peer their addresses, and the end that connects takes those of its own that are in a subnet of one of
 * them: the network makes a lane at least for each rail, and a lane that cannot be connected would fail the connection.
 * So a NIC that only one of the two has, or that is on another network, is left out, and where no subnet is common (two
 * racks with routers between them) the first NIC is used alone.
 *
 * An address that both have on different hosts (a bridge of every host's own) is no way from one to the other.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "inet/settings.h"
#include "proxy/topology.h"
#include "transport/net_priv.h"

/* A device of the network, as it is compared. */
struct rail {
	int dev, speed;
	enum gantry_distance distance;
};

static int comes_before(const struct rail *a, const struct rail *b)
{
	if (a->distance != b->distance)
		return a->distance < b->distance;
	return a->speed > b->speed;
}

static const struct gantry_nic *nic_of(const struct gantry_nic_list *nics, const struct gantry_net_properties *p)
{
	for (int i = 0; i < nics->count; i++)
		if (p->name && strcmp(nics->nics[i].name, p->name) == 0)
			return &nics->nics[i];
	return NULL;
}

/* Physical devices, the best first. Returns how many. */
static int list_rails(struct net_context *x, const struct gantry_nic_list *nics, struct rail rails[GANTRY_NIC_MAX])
{
	struct gantry_net_properties p;
	int n = 0, count = 0;

	if (x->net->ops->devices(x->net, &n) != GANTRY_OK)
		return 0;
	for (int dev = 0; dev < n && count < GANTRY_NIC_MAX; dev++) {
		const struct gantry_nic *nic;
		struct rail r;
		int at;

		if (x->net->ops->get_properties(x->net, dev, &p) != GANTRY_OK || p.vdev.ndevs != 1 ||
		    !(nic = nic_of(nics, &p)))
			continue;
		r = (struct rail){.dev = dev, .speed = p.speed};
		r.distance = gantry_topology_distance(x->device, nic->pci_path);
		for (at = count++; at > 0 && comes_before(&r, &rails[at - 1]); at--)
			rails[at] = rails[at - 1];
		rails[at] = r;
	}
	return count;
}

static void keep_rail(struct net_context *x, const struct gantry_nic *nic, int dev)
{
	struct net_rail *to = &x->rails[x->nrails++];

	ASSERT(x->nrails <= GANTRY_NET_MAX_RAILS);
	to->dev = dev;
	to->addr = nic->addrs[0];
}

gantry_result net_rails_find(struct net_context *x)
{
	gantry_result r = GANTRY_OK;
	int most = (int)gantry_params()->net_rails, n, fastest = 0;
	struct rail rails[GANTRY_NIC_MAX];
	struct gantry_nic_list *nics = NULL;
	struct gantry_net_vdevice fused = {0};
	struct gantry_net_properties p;

	x->nrails = 0;
	if (x->net != gantry_net_tcp() || most == 1 || gantry_params()->net_device >= 0)
		return GANTRY_OK;
	TRY(inet_wanted_nics(&nics));
	n = list_rails(x, nics, rails);
	for (int i = 0; i < n; i++)
		fastest = rails[i].speed > fastest ? rails[i].speed : fastest;
	if (!most || most > GANTRY_NET_MAX_RAILS)
		most = GANTRY_NET_MAX_RAILS;
	for (int i = 0; i < n && x->nrails < most; i++) {
		if (rails[i].speed < fastest / 2)
			continue;
		TRY(x->net->ops->get_properties(x->net, rails[i].dev, &p));
		keep_rail(x, nic_of(nics, &p), rails[i].dev);
	}
	if (x->nrails)
		x->dev = x->rails[0].dev;
	for (int i = 0; i < x->nrails; i++)
		fused.devs[fused.ndevs++] = x->rails[i].dev;
	x->listen_dev = x->dev;
	if (fused.ndevs > 1)
		TRY(x->net->ops->make_vdevice(x->net, &fused, &x->listen_dev));
	TRY(x->net->ops->get_properties(x->net, x->listen_dev, &x->props));
out:
	gantry_nic_list_free(nics);
	return r;
}

static int nic_mbps(const struct gantry_nic *nic)
{
	return nic->pci_path && nic->speed_known ? nic->speed_mbps : 0;
}

uint32_t gantry_transport_net_mbps(void)
{
	const struct gantry_params *p = gantry_params();
	struct gantry_nic_list *nics = NULL;
	uint32_t sum = 0, fastest = 0;

	if (*p->net_plugin || inet_wanted_nics(&nics) != GANTRY_OK)
		return 0;
	for (int i = 0; i < nics->count; i++)
		fastest = (uint32_t)nic_mbps(&nics->nics[i]) > fastest ? (uint32_t)nic_mbps(&nics->nics[i]) : fastest;
	for (int i = 0; i < nics->count && fastest; i++) {
		uint32_t mbps = (uint32_t)nic_mbps(&nics->nics[i]);

		if (!mbps) /* what this one adds is not known */
			fastest = 0;
		sum += mbps >= fastest / 2 ? mbps : 0;
	}
	gantry_nic_list_free(nics);
	return !fastest ? 0 : p->net_rails == 1 ? fastest : sum;
}

void net_rails_describe(const struct net_context *x, struct net_info *info)
{
	info->nrails = (uint32_t)x->nrails;
	for (int i = 0; i < x->nrails; i++) {
		const struct gantry_addr *a = &x->rails[i].addr;
		struct net_rail_info *to = &info->rails[i];

		to->family = (uint16_t)a->sa.sa_family;
		if (a->sa.sa_family == AF_INET6)
			memcpy(to->addr, &a->in6.sin6_addr, sizeof(a->in6.sin6_addr));
		else
			memcpy(to->addr, &a->in.sin_addr, sizeof(a->in.sin_addr));
	}
}

static struct gantry_addr address_of(const struct net_rail_info *from)
{
	struct gantry_addr a;

	memset(&a, 0, sizeof(a));
	a.sa.sa_family = from->family;
	if (from->family == AF_INET6)
		memcpy(&a.in6.sin6_addr, from->addr, sizeof(a.in6.sin6_addr));
	else
		memcpy(&a.in.sin_addr, from->addr, sizeof(a.in.sin_addr));
	return a;
}

/* Whether a NIC leads to one of the peer's. */
static int leads_to(const struct gantry_nic *nic, const struct net_info *peer, int is_here)
{
	for (uint32_t j = 0; j < peer->nrails && j < GANTRY_NET_MAX_RAILS; j++) {
		struct gantry_addr to = address_of(&peer->rails[j]);
		int mine = 0, near = 0;

		for (int k = 0; k < nic->naddrs; k++) {
			mine |= gantry_addr_same_host(&nic->addrs[k], &to);
			near |= gantry_nic_same_subnet(nic, k, &to);
		}
		if (near && (!mine || is_here))
			return 1;
	}
	return 0;
}

gantry_result net_rails_choose(const struct net_context *x, const struct net_info *peer, int is_here, int *ret_dev,
			       int *ret_rails)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *nics = NULL;
	struct gantry_net_vdevice fused = {0};
	struct gantry_net_properties p;

	*ret_dev = x->dev;
	*ret_rails = 1;
	if (x->nrails < 2 || peer->nrails < 2)
		return GANTRY_OK;
	TRY(inet_wanted_nics(&nics));
	for (int i = 0; i < x->nrails; i++) {
		const struct gantry_nic *nic;

		TRY(x->net->ops->get_properties(x->net, x->rails[i].dev, &p));
		nic = nic_of(nics, &p);
		if (nic && leads_to(nic, peer, is_here))
			fused.devs[fused.ndevs++] = x->rails[i].dev;
	}
	if (fused.ndevs == 1)
		*ret_dev = fused.devs[0];
	else if (fused.ndevs > 1)
		TRY(x->net->ops->make_vdevice(x->net, &fused, ret_dev));
	*ret_rails = fused.ndevs > 1 ? fused.ndevs : 1;
out:
	gantry_nic_list_free(nics);
	return r;
}
