/* SPDX-License-Identifier: Apache-2.0 */
/* Which network the net transport uses, and its context per communicator. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "base/param_text.h"
#include "device/device.h"
#include "net/loader.h"
#include "transport/transport.h"

struct use {
	struct gantry_net_use pub;
	struct gantry_list node;
	uint64_t comm_id;
	struct gantry_device *device; /* borrowed: ranks of one process have contexts of their own */
	int refs;
};

MUTEX_KIND(uses_mu);
static struct uses_mu uses_mu_one = MUTEX_INITIALIZER;
static struct gantry_list uses = {&uses, &uses};
static struct gantry_loader *loader; /* opened once, for the life of the process */
static struct gantry_net *network;

static gantry_result find_network(struct gantry_net **ret_net)
{
	gantry_result r = GANTRY_OK;
	const char *name = gantry_params()->net_plugin;

	if (!network && name[0]) {
		if (!loader)
			TRY(gantry_loader_open(name, &loader));
		TRY(gantry_loader_net(loader, 0, &network));
	} else if (!network) {
		network = gantry_net_tcp();
	}
	*ret_net = network;
out:
	return r;
}

/* The device of the network: as asked, else the fastest, the first of equals. */
static gantry_result pick_device(struct gantry_net *net, int *ret_dev, struct gantry_net_properties *ret_props)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net_properties p;
	int n = 0, best = -1, asked = (int)gantry_params()->net_device;

	TRY(net->ops->devices(net, &n));
	if (n <= 0)
		FAIL(GANTRY_ERR_UNSUPPORTED, "network %s has no device here", net->name);
	if (asked >= n)
		FAIL(GANTRY_ERR_CONFIG, "GANTRY_NET_DEVICE=%d: network %s has %s, numbered from 0", asked, net->name,
		     COUNT_TEXT(n, "device"));
	for (int i = asked >= 0 ? asked : 0; i < (asked >= 0 ? asked + 1 : n); i++) {
		TRY(net->ops->get_properties(net, i, &p));
		if (best < 0 || p.speed > ret_props->speed) {
			best = i;
			*ret_props = p;
		}
	}
	*ret_dev = best;
out:
	return r;
}

/*
 * What the communicator cannot do, or cannot do without, is refused before anything is connected. The table in
 * docs/architecture.md has every property and what becomes of it.
 */
static gantry_result check_device(const struct gantry_net *net, int dev, const struct gantry_net_properties *p)
{
	gantry_result r = GANTRY_OK;
	char who[384];

	snprintf(who, sizeof(who), "network %s (%s), device %d (%s)", net->name,
		 loader ? gantry_loader_path(loader) : "Gantry's own", dev, p->name ? p->name : "");
	if (p->device_type != GANTRY_NET_DEVICE_HOST)
		FAIL(GANTRY_ERR_UNSUPPORTED,
		     "%s is of device type %d (%s): a kernel has to put together what it receives, and the "
		     "communicator's do not; set GANTRY_UNPACK=off if it is Gantry's plugin, else choose another "
		     "GANTRY_NET_PLUGIN or GANTRY_NET_DEVICE",
		     who, p->device_type, p->device_type == GANTRY_NET_DEVICE_UNPACK ? "UNPACK" : "unknown");
	if (!(p->ptr_support & GANTRY_NET_PTR_HOST))
		FAIL(GANTRY_ERR_UNSUPPORTED,
		     "%s does not take host memory (ptrSupport %#x), which the communicator sends small messages from",
		     who, (unsigned)p->ptr_support);
	if (p->max_p2p_bytes < GANTRY_NET_USE_P2P_MIN)
		FAIL(GANTRY_ERR_UNSUPPORTED,
		     "%s takes messages of %zu bytes at most (maxP2pBytes), the communicator "
		     "needs %d",
		     who, p->max_p2p_bytes, GANTRY_NET_USE_P2P_MIN);
	if (p->max_recvs < 1)
		FAIL(GANTRY_ERR_UNSUPPORTED, "%s takes no receive (maxRecvs %d)", who, p->max_recvs);
out:
	return r;
}

gantry_result gantry_net_use_get(uint64_t comm_id, struct gantry_device *device, const struct gantry_net_use **ret_use)
{
	gantry_result r = GANTRY_OK;
	struct use *u = NULL;

	uses_mu_lock(&uses_mu_one);
	gantry_list_each (pos, &uses) {
		struct use *it = gantry_container(pos, struct use, node);

		if (it->comm_id == comm_id && it->device == device) {
			it->refs++;
			*ret_use = &it->pub;
			goto out;
		}
	}
	u = calloc(1, sizeof(*u));
	if (!u)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a network context");
	TRY(find_network(&u->pub.net));
	TRY(u->pub.net->ops->init(u->pub.net, comm_id, NULL, &u->pub.ctx));
	u->comm_id = comm_id;
	u->device = device;
	r = pick_device(u->pub.net, &u->pub.dev, &u->pub.props);
	if (r == GANTRY_OK)
		r = check_device(u->pub.net, u->pub.dev, &u->pub.props);
	if (r != GANTRY_OK) {
		u->pub.net->ops->finalize(u->pub.net, u->pub.ctx);
		goto out;
	}
	u->refs = 1;
	gantry_list_append(&uses, &u->node);
	*ret_use = &u->pub;
	u = NULL;
out:
	free(u);
	uses_mu_unlock(&uses_mu_one);
	return r;
}

void gantry_net_use_put(const struct gantry_net_use *use)
{
	struct use *u;

	if (!use)
		return;
	u = (struct use *)(void *)(uintptr_t)use; /* pub comes first */
	uses_mu_lock(&uses_mu_one);
	if (--u->refs == 0) {
		gantry_list_remove(&u->node);
		u->pub.net->ops->finalize(u->pub.net, u->pub.ctx);
		free(u);
	}
	uses_mu_unlock(&uses_mu_one);
}
