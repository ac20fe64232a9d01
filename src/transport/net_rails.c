/* SPDX-License-Identifier: Apache-2.0 */
/* Rails of a communicator (net/rails.h): those of its own, what the peer learns of them, and those that lead to a peer. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "inet/settings.h"
#include "transport/net_priv.h"

gantry_result net_rails_find(struct net_context *x)
{
	int most = (int)gantry_params()->net_rails;

	x->rails.n = 0;
	if (x->net != gantry_net_tcp() || most == 1 || gantry_params()->net_device >= 0)
		return GANTRY_OK;
	TRY_NOW(gantry_rails_find(x->device, most, &x->rails));
	if (!x->rails.n)
		return GANTRY_OK;
	x->dev = x->rails.rail[0].dev;
	TRY_NOW(gantry_rails_fuse(&x->rails, &x->listen_dev));
	return x->net->ops->get_properties(x->net, x->listen_dev, &x->props);
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
	info->nrails = (uint32_t)x->rails.n;
	for (int i = 0; i < x->rails.n; i++) {
		const struct gantry_addr *a = &x->rails.rail[i].addr;
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

gantry_result net_rails_choose(const struct net_context *x, const struct net_info *peer, int is_here, int *ret_dev,
			       int *ret_rails)
{
	struct gantry_addr addrs[GANTRY_NET_MAX_RAILS];
	int n = 0;

	*ret_dev = x->dev;
	*ret_rails = 1;
	if (x->rails.n < 2 || peer->nrails < 2)
		return GANTRY_OK;
	for (; n < (int)peer->nrails && n < GANTRY_NET_MAX_RAILS; n++)
		addrs[n] = address_of(&peer->rails[n]);
	return gantry_rails_choose(&x->rails, addrs, n, is_here, ret_dev, ret_rails);
}
