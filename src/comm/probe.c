/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether ranks on GPUs reach each other's memory, tried while the communicator is made (docs/design/0036). What the driver
 * answers about two GPUs is not enough: a process may not see the other's GPU at all, CUDA IPC fails between containers and
 * between parts of a GPU (MIG), and writes may be dropped on the way.
 *
 * Two exchanges among all ranks, if p2p could connect any two of them that are on GPUs: handles of some memory of each; then
 * what has failed. After the second all ranks know the same, so both ends of a connection choose the same transport.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "transport/ends.h"
#include "transport/transport.h"

/* One rank's outcome. More than PROBE_FAILED_MAX: with all of its peers. */
enum { PROBE_FAILED_MAX = 15 };
struct outcome {
	uint32_t nfailed;
	uint32_t failed[PROBE_FAILED_MAX];
};

/* Quiet about ranks that nothing connects: whether they ever connect is not known. */
static int would_use_p2p(const struct gantry_comm *comm, int a, int b)
{
	const struct gantry_peer_info *x = &comm->infos[a], *y = &comm->infos[b];
	const struct gantry_transport *t = NULL;
	gantry_result r;

	if (a == b || x->host != y->host || !*x->bus_id || !*y->bus_id)
		return 0;
	if (gantry_ends_same_process(x, y) && strncmp(x->bus_id, y->bus_id, sizeof(x->bus_id)) == 0)
		return 0; /* addresses are good there */
	gantry_log_trying(1);
	r = gantry_transport_choose(x, y, comm->transport, &t);
	gantry_log_trying(0);
	return r == GANTRY_OK && t == &gantry_transport_p2p;
}

/* A rank that has no memory to offer has failed with all, and says so. */
static int is_none(const struct gantry_ipc_handle *handle)
{
	static const struct gantry_ipc_handle none;

	return memcmp(handle, &none, sizeof(none)) == 0;
}

static int is_needed(const struct gantry_comm *comm)
{
	for (int a = 0; a < comm->nranks; a++)
		for (int b = 0; b < a; b++)
			if (would_use_p2p(comm, a, b))
				return 1;
	return 0;
}

/* ret_list: the peers with which it failed. ret_why: the first reason. */
static void try_all(struct gantry_comm *comm, const struct gantry_ipc_handle *handles, struct outcome *ret,
		    char *ret_list, size_t list_len, char *ret_why, size_t why_len)
{
	for (int i = 0; i < comm->nranks; i++) {
		gantry_result r;

		if (!would_use_p2p(comm, comm->rank, i) || is_none(&handles[i]))
			continue;
		gantry_log_trying(1);
		r = gantry_p2p_probe_try(&comm->probe.memory, &comm->infos[comm->rank], &comm->infos[i], &handles[i]);
		gantry_log_trying(0);
		if (r == GANTRY_OK)
			continue;
		if (!ret->nfailed)
			snprintf(ret_why, why_len, "%s", gantry_last_error());
		if (ret->nfailed < PROBE_FAILED_MAX)
			ret->failed[ret->nfailed] = (uint32_t)i;
		ret->nfailed++;
		gantry_text_add(ret_list, list_len, "%s%d", *ret_list ? ", " : "", i);
	}
}

static int has_failed_with(const struct outcome *o, int peer)
{
	for (uint32_t i = 0; i < o->nfailed && i < PROBE_FAILED_MAX; i++)
		if (o->failed[i] == (uint32_t)peer)
			return 1;
	return o->nfailed > PROBE_FAILED_MAX;
}

static void take_outcomes(struct gantry_comm *comm, const struct outcome *all)
{
	for (int i = 0; i < comm->nranks; i++) {
		comm->probe.failed |= all[i].nfailed != 0;
		comm->peers[i].no_p2p = i != comm->rank &&
					(has_failed_with(&all[i], comm->rank) || has_failed_with(&all[comm->rank], i));
	}
}

gantry_result comm_probe(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct gantry_ipc_handle mine = {0}, *handles = NULL;
	struct outcome own = {0}, *all = NULL;
	char list[128] = "", why[COMM_ERROR_TEXT] = "";

	if (!is_needed(comm))
		return GANTRY_OK;
	handles = calloc((size_t)comm->nranks, sizeof(*handles));
	all = calloc((size_t)comm->nranks, sizeof(*all));
	if (!handles || !all)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	gantry_log_trying(1);
	r = gantry_p2p_probe_make(&comm->probe.memory, comm->device, comm->nranks, &mine);
	gantry_log_trying(0);
	if (r != GANTRY_OK) {
		own.nfailed = PROBE_FAILED_MAX + 1;
		snprintf(why, sizeof(why), "%s", gantry_last_error());
	}
	TRY(gantry_ctl_allgather(comm->ctl, &mine, sizeof(mine), handles));
	if (!own.nfailed)
		try_all(comm, handles, &own, list, sizeof(list), why, sizeof(why));
	TRY(gantry_ctl_allgather(comm->ctl, &own, sizeof(own), all));
	take_outcomes(comm, all);
	if (own.nfailed)
		LOG_WARN(COMM, "rank %d does not use p2p with %s%s: %s", comm->rank, *list ? "rank " : "any rank", list,
			 why);
out:
	free(handles);
	free(all);
	return r;
}

gantry_result comm_choose_transport(struct gantry_comm *comm, int peer)
{
	struct comm_peer *p = &comm->peers[peer];

	ASSERT(peer >= 0 && peer < comm->nranks && peer != comm->rank);
	if (p->transport)
		return GANTRY_OK;
	return gantry_transport_choose_but(&comm->infos[comm->rank], &comm->infos[peer], comm->transport,
					   p->no_p2p ? &gantry_transport_p2p : NULL, &p->transport);
}
