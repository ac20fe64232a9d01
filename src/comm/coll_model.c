/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ranks have agreed on for collectives when the communicator is made: the order of ranks, and the cost model, which
 * says how each call goes; and that as text.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/comm_coll.h"
#include "transport/ends.h"

static uint64_t least(uint64_t a, uint64_t b)
{
	return b && b < a ? b : a;
}

uint32_t comm_coll_step_net(const struct gantry_comm *comm)
{
	const struct gantry_params *p = gantry_params();
	uint64_t step = p->coll_step ? p->coll_step : gantry_traits(comm->device)->coll_step;

	if (*p->transport_libs) /* of transports from elsewhere nothing is known */
		step = least(least(step, p->shm_step), p->p2p_step);
	return (uint32_t)least(step, p->net_step / 2); /* a slice of two steps is one message */
}

void comm_coll_describe(const struct gantry_comm *comm, struct gantry_peer_info *info)
{
	const struct gantry_params *p = gantry_params();
	uint64_t step = comm_coll_step_net(comm);

	if (strcmp(comm->transport, "net") != 0)
		step = least(least(step, p->shm_step), p->p2p_step);
	info->coll_step = (uint32_t)step;
	info->coll_protos = 1u << GANTRY_PROTO_SIMPLE;
	/* Copy engines have no lines, and of transports from elsewhere nothing is known. */
	if (p->p2p_copy == PARAM_P2P_COPY_OFF && p->shm_copy == PARAM_SHM_COPY_OFF && !*p->transport_libs)
		info->coll_protos |= 1u << GANTRY_PROTO_LL | 1u << GANTRY_PROTO_LL128;
}

/* Hosts are counted in the order of their first ranks, then all ranks are put in order. */
static gantry_result make_topo(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct comm_coll *c = comm->coll;
	struct coll_topo *t = &c->topo;
	size_t n = (size_t)comm->nranks;
	struct coll_where *where = calloc(n, sizeof(*where));
	int *host = calloc(n, sizeof(*host));

	c->order = calloc(n, sizeof(*c->order));
	t->host = host;
	if (!where || !host || !c->order)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the topology of %d ranks", comm->nranks);
	for (int i = 0; i < comm->nranks; i++) {
		const struct gantry_peer_info *info = &comm->infos[i];
		int k;

		for (k = 0; k < i && comm->infos[k].host != info->host; k++)
			;
		where[i] = (struct coll_where){.rank = i,
					       .host = k < i ? where[k].host : t->nhosts++,
					       .numa = info->numa,
					       .device = info->bus_id};
	}
	coll_order(where, comm->nranks);
	t->nranks = comm->nranks;
	for (int i = 0; i < comm->nranks; i++) {
		c->order[i] = where[i].rank;
		host[i] = where[i].host;
		if (where[i].rank == comm->rank)
			t->rank = i;
	}
out:
	free(where);
	return r;
}

/* What all ranks use: each takes it for its own from here on. Where no two of them share a host, only the network's counts. */
static uint32_t agree_on_step(const struct gantry_comm *comm)
{
	const struct comm_coll *c = comm->coll;
	uint32_t step = UINT32_MAX;

	for (int i = 0; i < comm->nranks; i++)
		step = (uint32_t)least(step, comm->infos[i].coll_step);
	if (c->topo.nhosts == comm->nranks)
		step = c->step_net;
	for (int i = 0; i < comm->nranks; i++)
		comm->infos[i].coll_step = step;
	return step;
}

/* What connects ranks of a host, as all ranks see it. */
static void find_links(const struct gantry_comm *comm, struct coll_limits *l)
{
	const char *wanted = comm->transport;
	int gpu = 0, shared = strstr(wanted, "auto") || strstr(wanted, "shm") || strstr(wanted, "p2p");

	for (int i = 0; i < comm->nranks; i++)
		gpu |= comm->infos[i].device_kind != GANTRY_DEVICE_HOST;
	shared &= comm->coll->topo.nhosts < comm->nranks;
	l->remote = gpu ? COLL_LINK_GPU_NET : COLL_LINK_CPU_NET;
	l->local = !shared ? l->remote : !gpu ? COLL_LINK_CPU : comm_reach(comm) ? COLL_LINK_GPU : COLL_LINK_GPU_HOST;
}

static bool takes_network(const struct gantry_comm *comm, const struct coll_limits *l)
{
	return comm->nranks > 1 && (strstr(comm->transport, "auto") || strstr(comm->transport, "net")) &&
	       (comm->coll->topo.nhosts > 1 || l->local == l->remote);
}

gantry_result comm_coll_init(struct gantry_comm *comm)
{
	struct comm_coll *c = comm->coll;
	struct coll_limits limits = {0}, *l = &limits;
	uint32_t protos = UINT32_MAX;
	int whole_lines = 1;

	TRY_NOW(make_topo(comm));
	for (int i = 0; i < comm->nranks; i++) {
		const struct gantry_peer_info *info = &comm->infos[i];

		protos &= info->coll_protos;
		whole_lines &= info->device_kind == GANTRY_DEVICE_HOST;
	}
	/* Lines of LL128 arrive whole between CPUs, and within a GPU. */
	whole_lines |= comm_reach(comm) == COMM_REACH_GPU;
	l->channels = (uint32_t)comm->nchannels;
	l->step_bytes[GANTRY_PROTO_SIMPLE] = agree_on_step(comm);
	l->step_bytes[GANTRY_PROTO_LL] = protos & 1u << GANTRY_PROTO_LL ? GANTRY_ENDS_LL_STEP : 0;
	l->step_bytes[GANTRY_PROTO_LL128] =
		whole_lines && protos & 1u << GANTRY_PROTO_LL128 ? GANTRY_ENDS_LL128_STEP : 0;
	find_links(comm, l);
	l->crowd = c->crowd;
	l->cores = c->cores;
	if (c->foreign && takes_network(comm, l))
		TRY_NOW(comm_nics_init(comm));
	l->latency = c->latency;
	l->nics = c->mbps ? 8000000 / c->mbps : 0;
	l->network = c->collnet;
	l->reducers = *gantry_params()->reducers != 0;
	TRY_NOW(comm_collnet_init(comm));
	comm->help.crowded = l->crowd > COLL_CROWD;
	coll_model_init(&c->topo, l, &c->model);
	c->model.no_network = *c->no_network ? c->no_network : NULL;
	return GANTRY_OK;
}

/* ---- as text ---- */

/* "ranks by place: host a: 0 2 | 1 3; host b: 4 5", with a bar between NUMA nodes or GPUs; of many ranks the first. */
enum { ORDER_SHOWN = 64 };
static void explain_order(const struct gantry_comm *comm, FILE *f)
{
	const struct comm_coll *c = comm->coll;
	const struct gantry_peer_info *last = NULL;

	fprintf(f, "ranks by place:");
	for (int i = 0; i < comm->nranks && i < ORDER_SHOWN; i++) {
		int rank = c->order[i];
		const struct gantry_peer_info *info = &comm->infos[rank];

		if (!last || c->topo.host[i] != c->topo.host[i - 1])
			fprintf(f, "%s %.*s:", last ? ";" : "", (int)sizeof(info->host_name), info->host_name);
		else if (info->numa != last->numa || strcmp(info->bus_id, last->bus_id) != 0)
			fprintf(f, " |");
		fprintf(f, " %d", rank);
		last = info;
	}
	fprintf(f, "%s\n", comm->nranks > ORDER_SHOWN ? " ..." : "");
}

static void explain_memory(const struct gantry_comm *comm, FILE *f)
{
	struct gantry_net_memory m;

	gantry_transport_net_memory(comm->device, comm->nranks, comm->infos[comm->rank].coll_step, &m);
	fprintf(f, "pinned memory of the network: %s now; %s per peer and channel in each direction, %s shared\n",
		SIZE_TEXT(gantry_transport_net_pinned(comm->id, comm->device)), SIZE_TEXT(m.conn), SIZE_TEXT(m.shared));
}

/* What a call of that name asks the model; false: the model does not choose for it. */
static bool ask_for(struct gantry_comm *comm, const char *what, size_t count, enum gantry_type type, struct coll_ask *ret)
{
	bool barrier = strcmp(what, "barrier") == 0;
	int kind = 0;

	*ret = (struct coll_ask){.bytes = barrier ? 1 : count * (uint64_t)coll_type_bytes((unsigned)type),
				 .refused = !comm_collnet_takes(comm, (unsigned)type, GANTRY_OP_SUM)};
	while (!barrier && kind < COLL_KINDS && strcmp(what, coll_kind_name((enum coll_kind)kind)) != 0)
		kind++;
	if (kind == COLL_KINDS || (kind == COLL_ALL_TO_ALL && !coll_plans_exchange(&comm->coll->model, ret->bytes)))
		return false;
	ret->kind = (enum coll_kind)kind;
	if (coll_by_rank(ret->kind))
		ret->bytes *= (uint64_t)comm->nranks;
	return true;
}

double comm_coll_estimate(struct gantry_comm *comm, const char *what, size_t count, enum gantry_type type)
{
	struct coll_ask ask;

	return ask_for(comm, what, count, type, &ask) ? coll_estimate(&comm->coll->model, &ask) : 0;
}

gantry_result gantry_comm_explain(struct gantry_comm *comm, const char *what, size_t count, enum gantry_type type,
				  FILE *f)
{
	static const char *const groups[] = {"all_to_all", "gather", "scatter"};
	struct coll_ask ask;

	if (!comm || !what || !f || !coll_type_bytes((unsigned)type))
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_explain: no communicator, name, type or file");
	TRY_NOW(comm_ready(comm, "gantry_comm_explain"));
	explain_order(comm, f);
	explain_memory(comm, f);
	if (ask_for(comm, what, count, type, &ask))
		return coll_explain(&comm->coll->model, &ask, f);
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
		if (strcmp(what, groups[i]) == 0) {
			fprintf(f, "%s: a group of sends and receives of %s each\n", what, SIZE_TEXT(ask.bytes));
			return GANTRY_OK;
		}
	FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_explain: there is no collective %s", what);
}
