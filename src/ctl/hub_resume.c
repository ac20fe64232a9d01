/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank between its sockets, where connections outlive them (GANTRY_RESUME). The rank dials, so all that this side can do
 * is to wait, and to find out early that the rank's process has ended.
 *
 * A process that was killed need not have ended its connections: the kernel resets those of which something was not read.
 * But it does not listen any more. So a probe dials the rank: being refused for long enough is the end of it, anything else
 * means nothing.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>

#include "base/assert.h"
#include "base/identity.h"
#include "base/log.h"
#include "ctl/hub_priv.h"
#include "inet/dial.h"
#include "inet/settings.h"

enum { PROBES = 8 }; /* in GANTRY_TIMEOUT */

/* Dials a rank that has lost its socket, to see whether its process still listens. */
struct hub_probe {
	struct inet_dial dial;
	struct hub_rank *rank; /* borrowed */
};

/* ---- whether its process lives ---- */

static bool aim_probe(struct inet_dial *d, struct inet_dial_aim *ret) REQUIRES(loop_mu)
{
	const struct hub_rank *rank = gantry_container(d, struct hub_probe, dial)->rank;

	ASSERT(rank->state == HUB_HERE);
	ret->to = rank->hub->addrs[hub_rank_index(rank)];
	ret->patience = rank->hub->timeout / PROBES;
	return true;
}

static void probe_connected(struct inet_dial *d) REQUIRES(loop_mu)
{
	inet_dial_stop(d);
	inet_dial_start(d, inet_dial_retry_at(d));
}

static void probe_failed(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct hub_rank *rank = gantry_container(d, struct hub_probe, dial)->rank;

	if (inet_dial_is_deserted(d, rank->hub->timeout))
		hub_rank_lost(rank, GANTRY_ERR_PEER_LOST,
			      "the connection broke, and nothing is listening there any more: its process ended");
	else
		inet_dial_start(d, inet_dial_retry_at(d));
}

static const struct inet_dial_ops probe_ops = {.aim = aim_probe, .done = probe_connected, .failed = probe_failed};

void hub_probe_drop(struct hub_rank *rank)
{
	if (!rank->probe)
		return;
	inet_dial_end(&rank->probe->dial);
	free(rank->probe);
	rank->probe = NULL;
}

void hub_rank_cut(struct inet_stream *c, const char *cause)
{
	struct hub_rank *rank = c->owner;
	char who[HUB_RANK_TEXT];

	LOG_INFO(COMM, "comm %016llx: the connection of %s broke (%s), it may come back",
		 (unsigned long long)rank->hub->comm_id, hub_rank_text(rank, who), cause);
	if (!rank->hub->addrs[hub_rank_index(rank)].sa.sa_family || rank->probe)
		return;
	rank->probe = calloc(1, sizeof(*rank->probe)); /* without one it is found by its silence */
	if (!rank->probe)
		return;
	inet_dial_init(&rank->probe->dial, &probe_ops);
	rank->probe->rank = rank;
	inet_dial_start(&rank->probe->dial,
			inet_dial_retry_at(&rank->probe->dial)); /* it comes back at once, if it can */
}

/* ---- coming back ---- */

bool hub_resumes(const struct ctl_hello *h)
{
	bool same_host = h->host == gantry_host_id();

	return inet_resume_wanted(inet_resume_says(), same_host) && inet_resume_wanted(h->resume, same_host);
}

/* Why a rank cannot go on where its last socket broke; NULL: it can. */
static const char *no_return(const struct hub *hub, const struct ctl_hello *h)
{
	const struct hub_rank *rank = hub->ranks && h->nranks == hub->nranks ? &hub->ranks[h->rank] : NULL;

	if (!rank || rank->state == HUB_ABSENT)
		return "this rank has never been here";
	if (rank->process != h->process)
		return "another process has this rank";
	if (rank->state == HUB_LEFT)
		return "this rank has left";
	if (rank->state == HUB_LOST)
		return "this rank was reported lost, and the other ranks know";
	if (!rank->conn->session.on)
		return "no frames were kept for this rank";
	if (h->generation && h->generation <= rank->generation)
		return "a socket from an earlier epoch of the connection";
	/* A later count may have come on the old socket. */
	return h->received < rank->conn->session.acked || inet_stream_counts(rank->conn, h->received)
		       ? NULL
		       : "its frame count does not match what was sent";
}

/* It was admitted, but its socket broke before the answer reached it, so it joins again. */
static bool never_began(const struct hub_rank *rank)
{
	return inet_stream_is_cut(rank->conn) && !rank->generation && !rank->conn->session.received;
}

/* The rank goes on with this socket. From the answer on nothing is read from the old one: the count in it is the last. */
static void resume_rank(struct hub_rank *rank, struct inet_conn *from, const struct ctl_hello *h) REQUIRES(loop_mu)
{
	const struct hub *hub = rank->hub;
	struct ctl_accepted a = {.timeout_ms = (uint32_t)(hub->timeout / 1000000),
				 .same_process = h->process == gantry_process_id(),
				 .resumes = 1,
				 .received = rank->conn->session.received,
				 .first = rank->conn->session.acked > h->received ? rank->conn->session.acked
										  : h->received};
	uint8_t answer[CTL_ACCEPTED_SIZE];
	struct inet_seals seals;
	char who[HUB_RANK_TEXT];
	int fd;

	ctl_accepted_encode(&a, answer);
	if (!inet_conn_accept(from, answer, sizeof(answer)))
		return;
	rank->generation = h->generation;
	rank->addr = from->addr;
	fd = inet_conn_take(from, &seals);
	if (inet_stream_resume(rank->conn, fd, &seals, &rank->addr, a.first, a.received) != GANTRY_OK)
		return; /* it finds the connection closed, and comes again */
	hub_probe_drop(rank);
	LOG_INFO(COMM, "comm %016llx: %s is back with socket %u", (unsigned long long)hub->comm_id,
		 hub_rank_text(rank, who), rank->generation);
}

bool hub_take_back(struct hub *hub, struct inet_conn *from, const struct ctl_hello *h)
{
	const char *why_not;

	if (hub->state == HUB_FAILED)
		return false; /* it hears the cause, as newcomers do */
	why_not = no_return(hub, h);
	if (!h->generation && (why_not || !never_began(&hub->ranks[h->rank])))
		return false;
	if (why_not)
		inet_conn_refuse(from, GANTRY_ERR_REFUSED, "%s", why_not);
	else
		resume_rank(&hub->ranks[h->rank], from, h);
	return true;
}
