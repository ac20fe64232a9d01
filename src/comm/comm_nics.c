/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plugin's network (GANTRY_NET_PLUGIN) reports about its NICs, for the cost model: latency, and bandwidth of each
 * host. All ranks exchange what they use; NICs with the same guid and port are one, also if several ranks of a host use it.
 *
 * The network starts here, as it does in NCCL, so a plugin that does not start is an error of gantry_comm_init on all ranks.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm_coll.h"
#include "transport/transport.h"

struct card {
	int32_t result; /* gantry_result */
	char why[252];
	struct gantry_net_nics nics;
};

enum { HOST_NICS = 64 };

/* NICs of one host. */
struct host {
	uint64_t mbps;
	bool unknown; /* what one of them adds */
	uint32_t n;
	struct gantry_net_nic nics[HOST_NICS];
};

static void add_nic(struct host *h, const struct gantry_net_nic *nic)
{
	for (uint32_t i = 0; i < h->n; i++)
		if (h->nics[i].guid == nic->guid && h->nics[i].port == nic->port)
			return;
	h->unknown |= !nic->mbps || h->n == HOST_NICS;
	h->mbps += nic->mbps;
	if (h->n < HOST_NICS)
		h->nics[h->n++] = *nic;
}

/* Ranks of a host follow each other in order. */
static void take_host(const struct gantry_comm *comm, const struct card *all, int *place, struct host *ret)
{
	const struct comm_coll *c = comm->coll;
	int host = c->topo.host[*place];

	memset(ret, 0, sizeof(*ret));
	for (; *place < comm->nranks && c->topo.host[*place] == host; (*place)++) {
		const struct gantry_net_nics *nics = &all[c->order[*place]].nics;

		for (uint32_t i = 0; i < nics->n && i < sizeof(nics->nics) / sizeof(*nics->nics); i++)
			add_nic(ret, &nics->nics[i]);
	}
}

static gantry_result take_cards(struct gantry_comm *comm, struct card *all)
{
	struct comm_coll *c = comm->coll;
	struct host host;

	for (int i = 0; i < comm->nranks; i++) {
		all[i].why[sizeof(all[i].why) - 1] = 0;
		all[i].nics.network[sizeof(all[i].nics.network) - 1] = 0;
		if (all[i].result != GANTRY_OK && i != comm->rank)
			FAIL_NOW((gantry_result)all[i].result, "network of rank %d (%s): %s", i,
				 comm->infos[i].host_name, all[i].why);
		if (all[i].nics.latency_ns > c->latency)
			c->latency = all[i].nics.latency_ns;
	}
	for (int i = 1; i < comm->nranks; i++)
		if (strcmp(all[i].nics.network, all[0].nics.network) != 0)
			FAIL_NOW(GANTRY_ERR_SETTING,
				 "rank %d uses network %s, but rank 0 uses %s; set the same GANTRY_NET_PLUGIN, and the "
				 "same "
				 "network, on all ranks",
				 i, all[i].nics.network, all[0].nics.network);
	for (int place = 0; place < comm->nranks;) {
		take_host(comm, all, &place, &host);
		if (host.n && !host.unknown && (!c->mbps || host.mbps < c->mbps))
			c->mbps = host.mbps < UINT32_MAX ? (uint32_t)host.mbps : UINT32_MAX;
	}
	return GANTRY_OK;
}

gantry_result comm_nics_init(struct gantry_comm *comm)
{
	const struct gantry_connector like = {.device = comm->device,
					      .me = &comm->infos[comm->rank],
					      .peer = &comm->infos[comm->rank],
					      .comm_id = comm->id,
					      .nchannels = comm->nchannels,
					      .nranks = comm->nranks,
					      .traffic_class = comm->life.traffic_class,
					      .net_name = comm->life.network};
	gantry_result r, own;
	struct card mine = {0}, *all = calloc((size_t)comm->nranks, sizeof(*all));

	ASSERT(!comm->coll->network && comm->ctl);
	if (!all)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the NICs of %d ranks", comm->nranks);
	own = gantry_transport_net_open(&like, &comm->coll->network, &mine.nics);
	mine.result = (int32_t)own;
	if (own != GANTRY_OK)
		snprintf(mine.why, sizeof(mine.why), "%s", gantry_last_error());
	r = gantry_ctl_allgather(comm->ctl, &mine, sizeof(mine), all);
	if (r == GANTRY_OK)
		r = own != GANTRY_OK ? own : take_cards(comm, all);
	free(all);
	return r;
}
