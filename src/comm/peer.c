/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections, made lazily: the first transfer between two ranks connects all channels of that direction. Both ranks
 * come here from their own group, so waiting for the other's info is waiting for its call.
 *
 * Per end: setup -> own info to the peer by the control plane -> the peer's info -> connect, again and again -> ready.
 * A peer that has not called is late, and the control plane notices if it dies: there is no deadline for its info but
 * GANTRY_CALL_TIMEOUT. From then on both have called, and GANTRY_CONNECT_TIMEOUT runs for that end.
 * All ends of all communicators of a group advance together; nothing here waits for one of them alone.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/report.h"
#include "transport/transport.h"

static const uint64_t late_ns = 10000000000; /* ranks that have not called are logged after so long */

/* Sender's and receiver's messages of one channel have tags of their own. */
static uint64_t tag_of(const struct comm_conn *cc, int from_sender)
{
	return 1ull << 32 | (uint64_t)cc->c.channel << 1 | (uint64_t)from_sender;
}

gantry_result comm_end_begin(struct gantry_comm *comm, struct comm_conn *cc, int peer, int send, int channel)
{
	struct gantry_connector *c = &cc->c;
	int bits;

	ASSERT(peer >= 0 && peer < comm->nranks && channel >= 0 && channel < comm->nchannels);
	ASSERT(cc->stage == CONN_NONE && comm->peers[peer].transport);
	c->transport = comm->peers[peer].transport;
	c->device = comm->device;
	c->me = &comm->infos[comm->rank];
	c->peer = &comm->infos[peer];
	c->comm_id = comm->id;
	c->send = send;
	c->channel = channel;
	c->nchannels = comm->nchannels;
	c->nranks = comm->nranks;
	c->traffic_class = comm->life.traffic_class;
	c->net_name = comm->life.network;
	c->eventcount = comm->eventcounts ? &comm->eventcounts[channel] : NULL;
	c->eventcount_handle = comm->eventcounts ? &comm->eventcounts_handle : NULL;
	c->eventcount_offset = (uint64_t)channel * sizeof(struct gantry_eventcount);
	c->state = comm_state_host(comm, peer, send, channel);
	c->proxy_eventcount = comm->device->sleeps ? gantry_proxy_eventcount(comm->proxy) : NULL;
	bits = c->transport->proxied(c->me, c->peer);
	store_release(&cc->stage, CONN_SETUP); /* reports look at it: report.c */
	if (bits & (send ? GANTRY_TRANSPORT_PROXIED_SEND : GANTRY_TRANSPORT_PROXIED_RECV)) {
		/* Transports from elsewhere are promised the progress thread. */
		if (!gantry_transport_is_built_in(c->transport)) {
			gantry_proxy_group_bind(comm->group);
			comm->bound = 1;
		}
		TRY_NOW(gantry_proxy_conn_create(comm->proxy, comm->group, c, &c->proxy));
		TRY_NOW(comm_side_of(&cc->c)->proxy_setup(c));
	}
	cc->id = comm_trace_conn_id(c);
	return GANTRY_OK;
}

static gantry_result begin_end(struct gantry_comm *comm, struct comm_conn *cc, int peer, int send, int channel)
{
	struct gantry_connect_info info;

	TRY_NOW(comm_end_begin(comm, cc, peer, send, channel));
	TRY_NOW(comm_side_of(&cc->c)->setup(&cc->c, &info));
	return gantry_ctl_send(comm->ctl, peer, tag_of(cc, send), &info, sizeof(info));
}

/* Kernels at both ends, on the same device: between two of them, reading from afar is slower than writing. */
static int lends_memory(const struct gantry_connector *c)
{
	return !c->proxy && !c->max_step &&
	       (c->sharing == GANTRY_SHARES_ADDRESSES || c->sharing == GANTRY_SHARES_EXPORTED) &&
	       strncmp(c->me->bus_id, c->peer->bus_id, sizeof(c->me->bus_id)) == 0;
}

/* The device's copy; kernels see nothing of a connection before its first transfer. */
gantry_result comm_end_finish(struct gantry_comm *comm, struct comm_conn *cc)
{
	struct gantry_connector *c = &cc->c;
	size_t at = (size_t)(c->state - comm->states_host);

	ASSERT(at < (size_t)comm->nranks * 2 * (size_t)comm->nchannels && cc->stage != CONN_READY);
	if (c->proxy)
		TRY_NOW(comm_side_of(&cc->c)->proxy_connect(c));
	c->conn.state = &comm->states_dev[at];
	if (c->send)
		c->conn.flags |= GANTRY_CONN_SEND;
	if (c->proxy && c->sharing == GANTRY_SHARES_REGISTERED && (c->send || c->conn.offers))
		c->conn.flags |= GANTRY_CONN_POINTS;
	if (c->send && lends_memory(c))
		c->conn.flags |= GANTRY_CONN_LENDS;
	if (!c->peer_notifies)
		comm->all_notify = 0;
	cc->dev = &comm->conns_dev[at];
	TRY_NOW(comm->device->ops->copy(comm->device, cc->dev, &c->conn, sizeof(c->conn)));
	store_release(&cc->stage, CONN_READY);
	return GANTRY_OK;
}

/* OK: ready. AGAIN: not yet. poll: also ask a transport that has been asked before. */
static gantry_result advance_end(struct gantry_comm *comm, struct comm_conn *cc, int poll)
{
	ASSERT(cc->stage == CONN_SETUP || cc->stage == CONN_HAVE_INFO);
	TRY_NOW(comm_check(comm));
	if (cc->stage == CONN_HAVE_INFO && !poll)
		return GANTRY_AGAIN;
	if (cc->stage == CONN_SETUP) {
		TRY_NOW(gantry_ctl_try_recv(comm->ctl, cc->c.peer->rank, tag_of(cc, !cc->c.send), &cc->peer_info,
					    sizeof(cc->peer_info)));
		cc->since = gantry_now_ns();
		store_release(&cc->stage, CONN_HAVE_INFO);
	}
	if (cc->stage == CONN_HAVE_INFO) {
		TRY_NOW(comm_side_of(&cc->c)->connect(&cc->c, &cc->peer_info));
		TRY_NOW(comm_end_finish(comm, cc));
		LOG_DEBUG(COMM, "rank %d %s rank %d by %s, channel %d", comm->rank,
			  cc->c.send ? "sends to" : "receives from", cc->c.peer->rank, cc->c.transport->name,
			  cc->c.channel);
	}
	return GANTRY_OK;
}

/* Starts connecting one direction; *ret_pending counts the ends that are not ready. */
static gantry_result open_direction(struct gantry_comm *comm, int peer, int send)
{
	struct comm_peer *p = &comm->peers[peer];
	struct comm_conn **all = &p->conns[send];

	ASSERT(peer != comm->rank && !p->ready[send]);
	if (*all)
		return GANTRY_OK;
	TRY_NOW(comm_choose_transport(comm, peer));
	store_release(all, calloc((size_t)comm->nchannels, sizeof(**all))); /* reports look: report.c */
	if (!*all)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for connections to rank %d", peer);
	for (int ch = 0; ch < comm->nchannels; ch++)
		TRY_NOW(begin_end(comm, &(*all)[ch], peer, send, ch));
	return GANTRY_OK;
}

static gantry_result advance_direction(struct gantry_comm *comm, int peer, int send, int poll, int *ret_ready)
{
	struct comm_peer *p = &comm->peers[peer];
	struct comm_conn *all = p->conns[send];
	int ready = 1;

	ASSERT(all && !p->ready[send]);
	for (int ch = 0; ch < comm->nchannels; ch++) {
		gantry_result r = all[ch].stage == CONN_READY ? GANTRY_OK : advance_end(comm, &all[ch], poll);

		if (r == GANTRY_AGAIN)
			ready = 0;
		else if (r != GANTRY_OK)
			return r;
	}
	p->ready[send] = ready;
	*ret_ready = ready;
	return GANTRY_OK;
}

static int is_ready(const struct comm_need *c)
{
	return c->peer == c->comm->rank || c->comm->peers[c->peer].ready[c->send];
}

size_t comm_needs(const struct comm_call *call, struct comm_need *ret)
{
	struct comm_need need;

	if (call->kind == COMM_IS_COLL)
		return comm_coll_needs(call->comm, &call->coll, ret);
	if (call->kind != COMM_IS_TRANSFER)
		return 0;
	need = (struct comm_need){call->comm, call->transfer.peer, call->transfer.send};
	if (is_ready(&need))
		return 0;
	if (ret)
		*ret = need;
	return 1;
}

int comm_connected(const struct comm_call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (comm_needs(&calls[i], NULL) ||
		    (calls[i].kind == COMM_IS_PUT && !comm_onesided_reached(calls[i].comm, &calls[i].put)))
			return 0;
	return 1;
}

static gantry_result give_up(const struct comm_need *c, int has_called, uint64_t waited_ns)
{
	gantry_result r;
	char text[COMM_ERROR_TEXT];
	const struct comm_peer *p = &c->comm->peers[c->peer];

	snprintf(text, sizeof(text), "rank %d (%s) %s within %.1f s (%s), while connecting to it over %s", c->peer,
		 c->comm->infos[c->peer].host_name,
		 has_called ? "did not finish connecting"
		 : c->send  ? "has not called recv"
			    : "has not called send",
		 (double)waited_ns / 1e9, has_called ? "GANTRY_CONNECT_TIMEOUT" : "GANTRY_CALL_TIMEOUT",
		 p->transport ? p->transport->name : "?");
	FAIL(GANTRY_ERR_TIMEOUT, "%s", text);
out:
	comm_fail(c->comm, r, c->peer, text);
	return r;
}

/* What comm_connect waits for. */
struct progress {
	uint64_t start;			  /* ns: of this rank's call */
	uint64_t since;			  /* when the peer that came last has called; 0: none is connecting */
	const struct comm_need *overdue;  /* its peer has called, and connecting takes too long */
	const struct comm_need *uncalled; /* its peer has not called */
	uint64_t tell_at;		  /* when ranks that have not called are logged next */
};

static void look_at(const struct comm_need *c, struct progress *p, uint64_t now)
{
	const struct comm_conn *all = c->comm->peers[c->peer].conns[c->send];

	ASSERT(all);
	for (int ch = 0; ch < c->comm->nchannels; ch++) {
		if (all[ch].stage == CONN_SETUP)
			p->uncalled = c;
		if (all[ch].stage != CONN_HAVE_INFO)
			continue;
		if (all[ch].since > p->since)
			p->since = all[ch].since;
		if (now > all[ch].since && now - all[ch].since > gantry_params()->connect_timeout)
			p->overdue = c;
	}
}

static void look_at_all(const struct comm_need *needs, size_t n, struct progress *p, uint64_t now)
{
	p->since = 0;
	p->overdue = p->uncalled = NULL;
	for (size_t i = 0; i < n; i++)
		if (!is_ready(&needs[i]))
			look_at(&needs[i], p, now);
}

/* After 10, 20, 40 s and so on; those of the communicator of p->uncalled. */
static void tell_uncalled(const struct comm_need *needs, size_t n, struct progress *p, uint64_t now)
{
	const struct gantry_comm *comm = p->uncalled->comm;
	char list[128] = "";

	ASSERT(now >= p->start);
	if (now < p->tell_at)
		return;
	p->tell_at = now + (now - p->start);
	for (size_t i = 0; i < n; i++) {
		struct progress one = {.start = now};
		size_t before = 0;

		if (needs[i].comm == comm && !is_ready(&needs[i]))
			look_at(&needs[i], &one, now);
		while (one.uncalled && (needs[before].comm != comm || needs[before].peer != needs[i].peer))
			before++;
		if (one.uncalled && before == i)
			gantry_text_add(list, sizeof(list), "%s%d", *list ? ", " : "", needs[i].peer);
	}
	LOG_WARN(COMM, "rank %d of %s has waited %.0f s for these ranks to make their matching first call: %s",
		 comm->rank, COMM_TEXT_OF(comm), (double)(now - p->start) / 1e9, list);
}

/* A sixteenth of the time that connecting has taken so far, within bounds; after a while without a call a thousandth. */
static uint64_t poll_pause(const struct progress *p, uint64_t now)
{
	uint64_t began = p->since ? p->since : p->start, elapsed = now > began ? now - began : 0, pause = elapsed / 16;

	if (!p->since && elapsed > 5000000000)
		return elapsed < 50000000000 ? elapsed / 1000 : 50000000;
	return pause < 50000 ? 50000 : pause < 5000000 ? pause : 5000000;
}

/* Opens what is not connected. *ret_at: the one at which it failed. */
static gantry_result open_all(const struct comm_need *needs, size_t n, size_t *ret_at)
{
	gantry_result r = GANTRY_OK;
	size_t i;

	for (i = 0; i < n; i++)
		if (!is_ready(&needs[i]))
			TRY(open_direction(needs[i].comm, needs[i].peer, needs[i].send));
out:
	*ret_at = i;
	return r;
}

/* One step for each. *ret_waits: one that is not connected yet; NULL: all are. */
static gantry_result advance_all(const struct comm_need *needs, size_t n, int poll, size_t *ret_at,
				 const struct comm_need **ret_waits)
{
	gantry_result r = GANTRY_OK;
	size_t i;

	*ret_waits = NULL;
	for (i = 0; i < n; i++) {
		int ready = 1;

		if (is_ready(&needs[i]))
			continue;
		TRY(advance_direction(needs[i].comm, needs[i].peer, needs[i].send, poll, &ready));
		if (!ready)
			*ret_waits = &needs[i];
	}
out:
	*ret_at = i;
	return r;
}

gantry_result comm_connect(const struct comm_need *needs, size_t n)
{
	gantry_result r = GANTRY_OK;
	const struct comm_need *waits = NULL, *failed;
	struct progress p = {0};
	uint64_t next_poll = 0;
	size_t at = 0;

	while (at < n && is_ready(&needs[at]))
		at++;
	if (at == n)
		return GANTRY_OK;
	p.start = gantry_now_ns();
	p.tell_at = p.start + late_ns;
	TRY(open_all(needs, n, &at));
	for (;;) {
		uint64_t now = gantry_now_ns();
		int poll = now >= next_poll;

		TRY(advance_all(needs, n, poll, &at, &waits));
		if (!waits)
			return GANTRY_OK;
		look_at_all(needs, n, &p, now);
		if (p.overdue)
			return give_up(p.overdue, 1, gantry_params()->connect_timeout);
		if (p.uncalled && gantry_params()->call_timeout && now - p.start > gantry_params()->call_timeout)
			return give_up(p.uncalled, 0, now - p.start);
		if (p.uncalled)
			tell_uncalled(needs, n, &p, now);
		/*
		 * Infos ring the control plane; sockets do not: they are looked at again soon, and less often with
		 * time. Many ranks that ask about many connections all the time would keep the network from making
		 * them.
		 */
		if (poll)
			next_poll = now + poll_pause(&p, now);
		gantry_ctl_wait(waits->comm->ctl, poll_pause(&p, now));
	}
out:
	failed = &needs[at];
	comm_fail_for_cause(failed->comm, r, comm_error_about(failed->comm, r, failed->peer), gantry_last_error());
	return comm_check(failed->comm);
}

void comm_peer_free(struct gantry_comm *comm, int peer)
{
	for (int send = 0; send < 2; send++) {
		struct comm_conn *all = comm->peers[peer].conns[send];

		for (int ch = 0; all && ch < comm->nchannels; ch++) {
			struct gantry_connector *c = &all[ch].c;

			if (all[ch].stage == CONN_NONE)
				continue;
			comm_side_of(c)->free(c);
			if (c->proxy) {
				comm_side_of(c)->proxy_free(c);
				gantry_proxy_conn_destroy(c->proxy);
			}
		}
		free(all);
	}
	comm->peers[peer] = (struct comm_peer){0};
}

void comm_peers_free(struct gantry_comm *comm)
{
	for (int i = 0; i < comm->nranks; i++)
		comm_peer_free(comm, i);
}
