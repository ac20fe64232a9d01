/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reducers of a communicator (transport/collnet.h): one rank of each host, the first in order, sends to them for all of its
 * host. They are connected when the communicator is made, if they are asked for, because all ranks must choose alike
 * whether a collective goes that way: whatever keeps one rank from it keeps all, and all know the reason.
 *
 *   listen at each host's rank --> all say where, or why not --> connect --> all say whether
 *
 * So for one channel after the other. Each has reducers' connections, or a plugin's collNet communicator, of its own: reductions
 * of one match by their order, and channels have none among each other.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "transport/collnet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/comm_coll.h"

/* What a rank says of itself in either round. */
struct card {
	int32_t failed;
	uint64_t takes;				      /* GANTRY_COLLNET_BIT, in the second one */
	uint64_t max_bytes;			      /* of a host's rank, in the first one, as the handle */
	unsigned char handle[GANTRY_NET_HANDLE_SIZE]; /* of a host's rank, in the first one */
	char why[384];				      /* gantry_last_error's: a reducer's own reason comes last in it */
};

int comm_collnet_take(char *transports)
{
	const char *pos = transports;
	char *kept = strdup(transports), name[64];
	int found = 0;

	if (!kept)
		return 0;
	*kept = 0;
	while (gantry_next_entry(&pos, name, sizeof(name))) {
		if (strcmp(name, gantry_transport_collnet.name) == 0)
			found = 1;
		else
			strcat(strcat(kept, *kept ? "," : ""), name); /* no longer than the list that it is from */
	}
	if (found)
		strcpy(transports, *kept ? kept : "auto"); /* shorter than collnet */
	free(kept);
	return found;
}

static int is_asked_for(const struct gantry_comm *comm)
{
	const struct gantry_params *p = gantry_params();

	return comm->nranks > 1 && (comm->coll->collnet || p->collnet || *p->reducers || p->algo == PARAM_ALGO_COLLNET);
}

/* The rank of each host that sends to reducers: its first place. */
static int *find_leaders(const struct gantry_comm *comm)
{
	const struct comm_coll *c = comm->coll;
	const struct coll_topo *t = &c->topo;
	int *leaders = calloc((size_t)t->nhosts, sizeof(*leaders));

	for (int i = t->nranks - 1; leaders && i >= 0; i--)
		leaders[t->host[i]] = c->order[i];
	return leaders;
}

static void card_fail(struct card *card)
{
	card->failed = 1;
	snprintf(card->why, sizeof(card->why), "%s", gantry_last_error());
}

/* The cards of all ranks; all keep the reason of the first that failed. */
static gantry_result exchange_cards(struct gantry_comm *comm, const struct card *mine, struct card *all)
{
	struct comm_coll *c = comm->coll;

	TRY_NOW(gantry_ctl_allgather(comm->ctl, mine, sizeof(*mine), all));
	for (int i = 0; i < comm->nranks && !*c->no_network; i++) {
		c->takes &= all[i].takes;
		if (!all[i].failed)
			continue;
		all[i].why[sizeof(all[i].why) - 1] = 0;
		snprintf(c->no_network, sizeof(c->no_network), "rank %d: %s", i, all[i].why);
	}
	return GANTRY_OK;
}

static struct gantry_connector *end_of(const struct gantry_comm *comm, int send, int channel)
{
	return &comm->peers[comm->rank].conns[send][channel].c;
}

/* Both ends stand where connections with this rank itself would. */
static gantry_result listen_here(struct gantry_comm *comm, int channel, struct card *mine)
{
	struct comm_peer *p = &comm->peers[comm->rank];

	ASSERT(channel ? p->transport == &gantry_transport_collnet : !p->transport && !p->conns[0] && !p->conns[1]);
	p->transport = &gantry_transport_collnet;
	for (int send = 0; send < 2; send++) {
		if (!p->conns[send])
			p->conns[send] = calloc((size_t)comm->nchannels, sizeof(*p->conns[send]));
		if (!p->conns[send])
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for connections with reducers");
		p->conns[send][channel].c.standing = 1;
		TRY_NOW(comm_end_begin(comm, &p->conns[send][channel], comm->rank, send, channel));
	}
	TRY_NOW(gantry_collnet_listen(end_of(comm, 1, channel), end_of(comm, 0, channel), mine->handle));
	mine->max_bytes = gantry_collnet_max_bytes(end_of(comm, 1, channel));
	return GANTRY_OK;
}

static gantry_result open_here(struct gantry_comm *comm, int channel, const int *leaders, const struct card *all,
			       uint64_t *ret_takes)
{
	gantry_result r = GANTRY_OK;
	uint32_t n = (uint32_t)comm->coll->topo.nhosts;
	const void **handles = calloc(n, sizeof(*handles));
	struct gantry_collnet_hosts hosts = {
		.n = n, .handles = handles, .ranks = leaders, .max_bytes = UINT64_MAX, .stop = &comm->life.stop};

	if (!handles)
		FAIL(GANTRY_ERR_NOMEM, "no memory for reducers");
	for (uint32_t i = 0; i < n; i++) {
		const struct card *card = &all[leaders[i]];

		handles[i] = card->handle;
		hosts.max_bytes = card->max_bytes < hosts.max_bytes ? card->max_bytes : hosts.max_bytes;
		hosts.own = leaders[i] == comm->rank ? i : hosts.own;
	}
	TRY(gantry_collnet_open(end_of(comm, 1, channel), &hosts, ret_takes));
	for (int send = 0; send < 2; send++) {
		struct comm_conn *cc = &comm->peers[comm->rank].conns[send][channel];

		TRY(comm_side_of(&cc->c)->connect(&cc->c, &cc->peer_info));
		TRY(comm_end_finish(comm, cc));
	}
out:
	free(handles);
	return r;
}

/* Two rounds, or one if a rank cannot even listen. */
static gantry_result connect_channel(struct gantry_comm *comm, int channel, const int *leaders, struct card *all)
{
	struct comm_coll *c = comm->coll;
	int leads = leaders[c->topo.host[c->topo.rank]] == comm->rank;
	struct card mine = {.takes = UINT64_MAX};

	if (leads && listen_here(comm, channel, &mine) != GANTRY_OK)
		card_fail(&mine);
	TRY_NOW(exchange_cards(comm, &mine, all));
	if (*c->no_network)
		return GANTRY_OK;
	if (leads && open_here(comm, channel, leaders, all, &mine.takes) != GANTRY_OK)
		card_fail(&mine);
	return exchange_cards(comm, &mine, all);
}

/* All channels, or none. */
static gantry_result connect_reducers(struct gantry_comm *comm, const int *leaders, struct card *all)
{
	comm->coll->takes = UINT64_MAX;
	for (int ch = 0; ch < comm->nchannels && !*comm->coll->no_network; ch++)
		TRY_NOW(connect_channel(comm, ch, leaders, all));
	return GANTRY_OK;
}

bool comm_collnet_takes(struct gantry_comm *comm, unsigned type, unsigned op)
{
	static const char *const types[] = {
#define TYPE_NAME(name, number, size, text) [number] = text,
		GANTRY_TYPES(TYPE_NAME)
#undef TYPE_NAME
	};
	struct comm_coll *c = comm->coll;

	if (!c->topo.network || c->takes & GANTRY_COLLNET_BIT(type, gantry_collnet_reduction_of(op)))
		return true;
	if (!c->warned && comm->rank == 0)
		LOG_WARN(COMM, "collnet: the network does not support reduction %u of %s; using another algorithm", op,
			 types[type]);
	c->warned = 1;
	return false;
}

gantry_result comm_collnet_init(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct comm_coll *c = comm->coll;
	struct coll_topo *t = &c->topo;
	const char *why;
	int *leaders = NULL;
	struct card *all = NULL;

	if (!is_asked_for(comm))
		return GANTRY_OK;
	why = coll_network_refuses(t);
	if (why) {
		snprintf(c->no_network, sizeof(c->no_network), "%s", why);
	} else {
		leaders = find_leaders(comm);
		all = calloc((size_t)comm->nranks, sizeof(*all));
		if (!leaders || !all)
			FAIL(GANTRY_ERR_NOMEM, "no memory for reducers");
		TRY(connect_reducers(comm, leaders, all));
	}
	t->network = !*c->no_network;
	if (t->network) {
		LOG_INFO(COMM, "collnet: one rank of each of %d hosts sends to reducers, %s", t->nhosts,
			 COUNT_TEXT(comm->nchannels, "channel"));
		goto out;
	}
	comm_peer_free(comm, comm->rank);
	if (comm->rank == 0)
		LOG_WARN(COMM, "collnet is unavailable, using other algorithms: %s", c->no_network);
out:
	free(leaders);
	free(all);
	return r;
}
