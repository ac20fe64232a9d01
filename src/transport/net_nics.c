/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs of a plugin's network: which device a context uses, NICs merged into one device, and what they can do together.
 *
 * Two devices with the same guid and port are one NIC, reached in two ways: their bandwidth is counted once, and they are
 * never merged with each other. This is how NCCL reads the two properties.
 *
 * NICs are merged (makeVDevice) rather than used as rails side by side. A channel has one connection with a plugin, and only
 * the plugin knows which of its NICs reaches which NIC of the peer and how to cut a message over both: with rails, the core
 * would have to guess the pairs, and a message would still move on one NIC. By default, as in NCCL, the ports of one card are
 * merged; what lies further apart only if GANTRY_NET_MERGE or GANTRY_NET_FORCE_MERGE asks for it.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <string.h>

#include "abi/net_v12.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "device/topology.h"
#include "transport/net_priv.h"

enum { LATENCY_MOST_US = 1000000 };

static bool is_one_nic(const struct gantry_net_properties *a, const struct gantry_net_properties *b)
{
	return a->guid == b->guid && a->port == b->port;
}

/* What makeVDevice gave, unless the plugin lists nothing else. */
static bool is_merged(const struct gantry_net_properties *p)
{
	return p->vdev.ndevs > 1;
}

/* ---- which device ---- */

/* Devices that are worth it are half as fast as the fastest at least. */
static gantry_result find_fastest(const struct net_context *x, int n, int *ret_speed, bool *ret_physical)
{
	struct gantry_net_properties p;

	*ret_speed = 0;
	*ret_physical = false;
	for (int i = 0; i < n; i++) {
		TRY_NOW(x->net->ops->get_properties(x->net, i, &p));
		*ret_physical |= !is_merged(&p);
	}
	for (int i = 0; i < n; i++) {
		TRY_NOW(x->net->ops->get_properties(x->net, i, &p));
		if (!(is_merged(&p) && *ret_physical) && p.speed > *ret_speed)
			*ret_speed = p.speed;
	}
	return GANTRY_OK;
}

/* Of those, of equals the faster, then the first. */
gantry_result net_nics_nearest(const struct net_context *x, int n, int *ret_dev)
{
	enum gantry_distance nearest = GANTRY_NEAR_NOT, d;
	struct gantry_net_properties p;
	int fastest, speed = 0, best = -1;
	bool physical;

	TRY_NOW(find_fastest(x, n, &fastest, &physical));
	for (int i = 0; i < n; i++) {
		TRY_NOW(x->net->ops->get_properties(x->net, i, &p));
		d = gantry_topology_distance(x->device, p.pci_path);
		if ((is_merged(&p) && physical) || p.speed < fastest / 2 ||
		    (best >= 0 && (d > nearest || (d == nearest && p.speed <= speed))))
			continue;
		best = i;
		nearest = d;
		speed = p.speed;
	}
	*ret_dev = best;
	return GANTRY_OK;
}

/* ---- how near two NICs are ---- */

/* The length of the path without its last component, and of what stands before that. */
static size_t parent_of(const char *path, size_t len)
{
	while (len && path[len - 1] != '/')
		len--;
	return len ? len - 1 : 0;
}

/* One bridge at most lies between either device and what is common to both: one switch. */
static bool share_a_switch(const char *a, const char *b)
{
	size_t la = parent_of(a, parent_of(a, strlen(a))), lb = parent_of(b, parent_of(b, strlen(b)));

	return la == lb && strncmp(a, b, la) == 0;
}

/* Functions of one PCI device: all but the last digit of 0000:03:00.1 is the same. */
static bool are_functions(const char *a, const char *b)
{
	size_t len = strlen(a);

	return len > 1 && strlen(b) == len && a[len - 2] == '.' && strncmp(a, b, len - 1) == 0;
}

/* In the words of GANTRY_NET_MERGE, which are NCCL's. */
static int merge_distance(const struct gantry_net_properties *a, const struct gantry_net_properties *b)
{
	enum gantry_distance d;

	if (a->guid == b->guid) /* two ports */
		return PARAM_NET_MERGE_PORT;
	if (!a->pci_path || !b->pci_path)
		return PARAM_NET_MERGE_SYS;
	if (are_functions(a->pci_path, b->pci_path))
		return PARAM_NET_MERGE_PORT;
	d = gantry_topology_of_paths(a->pci_path, b->pci_path);
	if (d == GANTRY_NEAR_SWITCH)
		return share_a_switch(a->pci_path, b->pci_path) ? PARAM_NET_MERGE_PIX : PARAM_NET_MERGE_PXB;
	return d == GANTRY_NEAR_BRIDGE ? PARAM_NET_MERGE_PHB : PARAM_NET_MERGE_SYS;
}

/* ---- merging ---- */

/* The group of a list like "a,b;c,d" that has the name: its length, from *ret_group on; 0: none has it. */
static size_t forced_group(const char *name, const char **ret_group)
{
	const char *at = gantry_params()->net_force_merge;

	while (*at) {
		size_t len = strcspn(at, ";");

		for (size_t i = 0; i < len;) {
			size_t one = strcspn(at + i, ",;");

			if (one == strlen(name) && strncmp(at + i, name, one) == 0) {
				*ret_group = at;
				return len;
			}
			i += one + 1;
		}
		at += len + (at[len] == ';');
	}
	return 0;
}

static bool group_has(const char *group, size_t len, const char *name)
{
	for (size_t i = 0; i < len;) {
		size_t one = strcspn(group + i, ",;");

		if (one == strlen(name) && strncmp(group + i, name, one) == 0)
			return true;
		i += one + 1;
	}
	return false;
}

/* In the order of their numbers: all ranks of a host get the same device, and plugins pair NICs of both ends by their place. */
static void add_in_order(struct gantry_net_vdevice *v, int dev)
{
	int at = v->ndevs++;

	for (; at > 0 && v->devs[at - 1] > dev; at--)
		v->devs[at] = v->devs[at - 1];
	v->devs[at] = dev;
}

/* The NICs to merge with x->dev. */
static gantry_result choose_nics(const struct net_context *x, int n, struct gantry_net_vdevice *ret)
{
	const int level = gantry_params()->net_merge;
	const char *group = "";
	size_t forced = x->props.name ? forced_group(x->props.name, &group) : 0;
	int most = x->net->version >= 12 ? NCCL_NET_MAX_DEVS_PER_NIC_V12 : NCCL_NET_MAX_DEVS_PER_NIC_V9;
	struct gantry_net_properties kept[GANTRY_NET_MAX_RAILS], p;

	*ret = (struct gantry_net_vdevice){.ndevs = 1, .devs = {x->dev}};
	kept[0] = x->props;
	for (int dev = 0; dev < n && ret->ndevs < most && ret->ndevs < GANTRY_NET_MAX_RAILS; dev++) {
		bool fits;

		TRY_NOW(x->net->ops->get_properties(x->net, dev, &p));
		fits = !is_merged(&p) &&
		       (forced ? p.name && group_has(group, forced, p.name)
			       : p.speed >= x->props.speed / 2 && merge_distance(&x->props, &p) <= level);
		for (int i = 0; i < ret->ndevs && fits; i++)
			fits = !is_one_nic(&kept[i], &p);
		if (!fits)
			continue;
		kept[ret->ndevs] = p; /* in the order in which they are found */
		add_in_order(ret, dev);
	}
	return GANTRY_OK;
}

/* Communicators ask anew, and plugins need not know that they have such a device already. */
static gantry_result find_merged(const struct net_context *x, int n, const struct gantry_net_vdevice *v, int *ret_dev)
{
	struct gantry_net_properties p;

	*ret_dev = -1;
	for (int dev = 0; dev < n && *ret_dev < 0; dev++) {
		TRY_NOW(x->net->ops->get_properties(x->net, dev, &p));
		if (p.vdev.ndevs == v->ndevs && memcmp(p.vdev.devs, v->devs, (size_t)v->ndevs * sizeof(*v->devs)) == 0)
			*ret_dev = dev;
	}
	return GANTRY_OK;
}

gantry_result net_nics_merge(struct net_context *x)
{
	const struct gantry_params *p = gantry_params();
	struct gantry_net_vdevice v;
	struct gantry_net_properties props;
	int n = 0, dev;

	if (x->net == gantry_net_tcp() || x->net->version < 9 || p->net_device >= 0 || is_merged(&x->props) ||
	    (p->net_merge == PARAM_NET_MERGE_OFF && !*p->net_force_merge))
		return GANTRY_OK;
	TRY_NOW(x->net->ops->devices(x->net, &n));
	TRY_NOW(choose_nics(x, n, &v));
	if (v.ndevs < 2)
		return GANTRY_OK;
	TRY_NOW(find_merged(x, n, &v, &dev));
	/* A plugin may refuse, for reasons of its own: NICs of different kinds, or no such function. */
	if ((dev < 0 && x->net->ops->make_vdevice(x->net, &v, &dev) != GANTRY_OK) ||
	    x->net->ops->get_properties(x->net, dev, &props) != GANTRY_OK) {
		LOG_INFO(COMM, "network %s: %d NICs are not merged; using device %d (%s) alone", x->net->name, v.ndevs,
			 x->dev, x->props.name ? x->props.name : "");
		return GANTRY_OK;
	}
	LOG_INFO(COMM, "network %s: device %d (%s) merges %d NICs", x->net->name, dev, props.name ? props.name : "",
		 v.ndevs);
	x->dev = x->listen_dev = dev;
	x->props = props;
	x->merged = v;
	return GANTRY_OK;
}

/* ---- what they can do ---- */

static void add_nic(const struct gantry_net_properties *p, struct gantry_net_nics *ret)
{
	float us = p->latency;
	uint32_t ns = us > 0 && us < LATENCY_MOST_US ? (uint32_t)(us * 1000) : 0;
	struct gantry_net_nic nic = {
		.guid = p->guid, .port = p->port, .mbps = p->pci_path && p->speed > 0 ? (uint32_t)p->speed : 0};

	if (ns > ret->latency_ns)
		ret->latency_ns = ns;
	for (uint32_t i = 0; i < ret->n; i++)
		if (ret->nics[i].guid == nic.guid && ret->nics[i].port == nic.port)
			return;
	if (ret->n < GANTRY_NET_MAX_RAILS)
		ret->nics[ret->n++] = nic;
}

gantry_result gantry_transport_net_open(const struct gantry_connector *like, struct net_context **ret_context,
					struct gantry_net_nics *ret_nics)
{
	gantry_result r = GANTRY_OK;
	struct net_context *x = NULL;
	struct gantry_net_nics nics = {0};
	struct gantry_net_properties p;

	TRY(net_context_get(like, &x));
	snprintf(nics.network, sizeof(nics.network), "%s", x->net->name);
	if (x->net != gantry_net_tcp() && x->merged.ndevs < 2)
		add_nic(&x->props, &nics);
	for (int i = 0; i < x->merged.ndevs; i++) {
		TRY(x->net->ops->get_properties(x->net, x->merged.devs[i], &p));
		add_nic(&p, &nics);
	}
	*ret_nics = nics;
	*ret_context = x;
	x = NULL;
out:
	net_context_put(x);
	return r;
}

void gantry_transport_net_close(struct net_context *x)
{
	net_context_put(x);
}
