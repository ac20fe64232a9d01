/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank reaches windows of the others: at the first put or signal to a peer, so that a window that collectives alone
 * use costs nothing. The peer's caller does nothing for it. Memory that the peer offered is mapped here; where that cannot
 * be, the two connect over the network: this rank asks by a call of the control plane, the peer's service thread opens a
 * standing receive, and the progress thread there accepts.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/onesided.h"
#include "transport/ends.h"
#include "transport/transport.h"

/* ---- memory of a peer, mapped ---- */

int onesided_is_near(const struct gantry_comm *comm, int peer)
{
	const struct gantry_peer_info *a = &comm->infos[comm->rank], *b = &comm->infos[peer];
	const struct gantry_transport *t = comm->peers[peer].transport;

	ASSERT(peer >= 0 && peer < comm->nranks);
	if (peer == comm->rank)
		return 1;
	if (t == &gantry_transport_shm) /* of a GPU: through host memory, and a window is none */
		return a->device_kind == GANTRY_DEVICE_HOST && b->device_kind == GANTRY_DEVICE_HOST &&
		       gantry_ends_see_each_other(a, b);
	return t == &gantry_transport_p2p;
}

int onesided_allows_net(const struct gantry_comm *comm)
{
	const char *at = comm->transport;
	char name[64];

	if (!*at || strcmp(at, "auto") == 0)
		return 1;
	while (gantry_next_entry(&at, name, sizeof(name)))
		if (strcmp(name, "net") == 0)
			return 1;
	return 0;
}

static int same_process(const struct gantry_comm *comm, int peer)
{
	return gantry_ends_same_process(&comm->infos[comm->rank], &comm->infos[peer]);
}

/*
 * Within a process addresses are good on the device that they are of; another GPU must be given access, and gets it to what
 * cuMemAlloc gave alone, not to memory of pools and of cuMemMap. What can be exported is of the first kind.
 */
static int shares_device(const struct gantry_comm *comm, int peer)
{
	return strncmp(comm->infos[comm->rank].bus_id, comm->infos[peer].bus_id, sizeof(comm->infos[peer].bus_id)) == 0;
}

static int reaches_device(const struct gantry_comm *comm, int peer)
{
	struct onesided_peer *p = &comm->onesided->peers[peer];
	struct gantry_device *other = NULL;
	int can = 0;

	if (shares_device(comm, peer) || !same_process(comm, peer))
		return 1;
	if (!p->device && gantry_device_open((enum gantry_device_kind)comm->infos[peer].device_kind,
					     comm->infos[peer].device_index, &other) == GANTRY_OK) {
		if (comm->device->ops->peer_access(comm->device, other, &can) != GANTRY_OK)
			can = 0;
		gantry_device_close(other);
	}
	if (!p->device)
		p->device = can ? 1 : -1;
	return p->device > 0;
}

int onesided_could_map(const struct gantry_comm *comm, const struct window_peer *p, int peer)
{
	return onesided_is_near(comm, peer) && reaches_device(comm, peer) &&
	       (!p->size || p->exported || (same_process(comm, peer) && shares_device(comm, peer)));
}

static void map_block(struct gantry_comm *comm, int peer)
{
	struct onesided_peer *p = &comm->onesided->peers[peer];
	void *at = NULL;

	if (p->mapped || !onesided_is_near(comm, peer))
		return;
	ASSERT(!p->block);
	p->mapped = 1;
	if (peer == comm->rank)
		p->block = comm->onesided->block;
	else if (reaches_device(comm, peer) && comm->device->ops->ipc_open(comm->device, &p->handle, &at) == GANTRY_OK)
		p->block = at;
	else
		LOG_INFO(COMM, "memory of rank %d cannot be mapped (%s): puts to it go over the network", peer,
			 gantry_last_error());
}

static void map_window(struct gantry_comm *comm, struct window_peer *p, int peer)
{
	if (p->mapped || !comm->onesided->peers[peer].block || !onesided_could_map(comm, p, peer))
		return;
	ASSERT(!p->at && !p->opened);
	p->mapped = 1;
	if (same_process(comm, peer))
		p->at = (char *)(uintptr_t)p->address;
	else if (comm->device->ops->ipc_open(comm->device, &p->handle, &p->opened) == GANTRY_OK)
		p->at = (char *)p->opened + p->from_handle;
	else
		LOG_INFO(COMM, "a window of rank %d cannot be mapped (%s): puts to it go over the network", peer,
			 gantry_last_error());
}

/* ---- connections over the network ---- */

static gantry_result make_states(struct gantry_comm *comm)
{
	struct comm_onesided *o = comm->onesided;
	struct gantry_device *d = comm->device;
	void *p = NULL, *dev = NULL;

	if (!o->states) {
		TRY_NOW(d->ops->alloc_mapped(d, (size_t)comm->nranks * sizeof(*o->states), &p, &dev));
		o->states_dev = dev;
		store_release(&o->states, p); /* comm_onesided_count looks */
	}
	if (!o->conns_dev) {
		TRY_NOW(d->ops->alloc(d, (size_t)comm->nranks * sizeof(*o->conns_dev), &p));
		o->conns_dev = p;
	}
	return GANTRY_OK;
}

void onesided_end_free(struct comm_conn *cc)
{
	if (cc && cc->stage != CONN_NONE) {
		ASSERT(cc->stage == CONN_SETUP || cc->stage == CONN_READY);
		gantry_put_close(&cc->c);
		gantry_proxy_conn_destroy(cc->c.proxy);
	}
	free(cc);
}

/* An end that is not connected yet. */
static gantry_result make_end(struct gantry_comm *comm, int peer, int send, struct gantry_connect_info *ret_info,
			      struct comm_conn **ret_end)
{
	gantry_result r = GANTRY_OK;
	struct comm_onesided *o = comm->onesided;
	struct comm_conn *cc = calloc(1, sizeof(*cc));
	struct gantry_connector *c;

	ASSERT(peer != comm->rank && (!send || o->states));
	if (!cc)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection for puts with rank %d", peer);
	c = &cc->c;
	c->transport = &gantry_transport_net;
	c->device = comm->device;
	c->me = &comm->infos[comm->rank];
	c->peer = &comm->infos[peer];
	c->comm_id = comm->id;
	c->send = send;
	c->standing = 1;
	c->channel = 0;
	c->nchannels = 1;
	c->nranks = comm->nranks;
	c->traffic_class = comm->life.traffic_class;
	c->net_name = comm->life.network;
	c->eventcount = comm->eventcounts ? &comm->eventcounts[peer % comm->nchannels] : NULL;
	c->state = send ? &o->states[peer] : NULL;
	c->proxy_eventcount = comm->device->sleeps ? gantry_proxy_eventcount(comm->proxy) : NULL;
	TRY(gantry_proxy_conn_create(comm->proxy, send ? comm->group : o->group, c, &c->proxy));
	cc->stage = CONN_SETUP;
	TRY(gantry_put_setup(c, send ? NULL : &o->target, ret_info));
	*ret_end = cc;
	cc = NULL;
out:
	onesided_end_free(cc);
	return r;
}

static gantry_result await_end(struct gantry_comm *comm, int peer, struct comm_conn *cc)
{
	uint64_t start = gantry_now_ns();
	gantry_result r;

	while ((r = gantry_put_connect(&cc->c, &cc->peer_info)) == GANTRY_AGAIN) {
		TRY_NOW(comm_check(comm));
		if (gantry_now_ns() - start > gantry_params()->connect_timeout)
			FAIL_NOW(GANTRY_ERR_TIMEOUT, "rank %d (%s) did not finish connecting for puts", peer,
				 comm->infos[peer].host_name);
		gantry_ctl_wait(comm->ctl, 200000);
	}
	return r;
}

/* The peer's service thread answers, and its progress thread accepts: neither waits for a call of its program. */
static gantry_result connect_end(struct gantry_comm *comm, int peer, struct comm_conn **ret_end)
{
	gantry_result r = GANTRY_OK;
	struct gantry_connect_info mine;
	struct comm_conn *cc = NULL;
	size_t n = sizeof(cc->peer_info);

	TRY(make_states(comm));
	TRY(make_end(comm, peer, 1, &mine, &cc));
	TRY(gantry_ctl_call(comm->ctl, peer, COMM_CALL_PUT, &mine, sizeof(mine), &cc->peer_info, &n));
	if (n != sizeof(cc->peer_info))
		FAIL(GANTRY_ERR_PROTOCOL, "rank %d replied with %zu bytes, expected %zu", peer, n,
		     sizeof(cc->peer_info));
	TRY(await_end(comm, peer, cc));
	cc->c.conn.state = &comm->onesided->states_dev[peer];
	cc->dev = &comm->onesided->conns_dev[peer];
	TRY(comm->device->ops->copy(comm->device, cc->dev, &cc->c.conn, sizeof(cc->c.conn)));
	cc->stage = CONN_READY;
	*ret_end = cc;
	cc = NULL;
out:
	onesided_end_free(cc);
	return r;
}

/* The network is needed: for the data, or for a signal that nothing else carries, or that must not overtake data. */
static int needs_net(const struct gantry_comm *comm, const struct comm_put *put)
{
	const struct onesided_peer *p = &comm->onesided->peers[put->peer];

	return (put->bytes && !put->window->peers[put->peer].at) || (put->signal >= 0 && (!p->block || p->by_net));
}

int comm_onesided_reached(const struct gantry_comm *comm, const struct comm_put *put)
{
	const struct onesided_peer *p = &comm->onesided->peers[put->peer];

	if ((!p->mapped && onesided_is_near(comm, put->peer)) ||
	    (put->bytes && p->block && !put->window->peers[put->peer].mapped &&
	     onesided_could_map(comm, &put->window->peers[put->peer], put->peer)))
		return 0;
	return !needs_net(comm, put) || p->send;
}

gantry_result comm_onesided_reach(struct gantry_comm *comm, const struct comm_put *put)
{
	struct onesided_peer *p = &comm->onesided->peers[put->peer];

	if (comm_onesided_reached(comm, put))
		return GANTRY_OK;
	map_block(comm, put->peer);
	if (put->bytes)
		map_window(comm, &put->window->peers[put->peer], put->peer);
	if (!needs_net(comm, put) || p->send)
		return GANTRY_OK;
	if (!onesided_allows_net(comm))
		FAIL_NOW(GANTRY_ERR_UNREACHABLE,
			 "memory of rank %d (%s) cannot be mapped, and transport \"%s\" excludes net", put->peer,
			 comm->infos[put->peer].host_name, comm->transport);
	TRY_NOW(connect_end(comm, put->peer, &p->send));
	p->by_net |= !p->block;
	return GANTRY_OK;
}

/* The target's half. The progress thread has the end from here on: an operation that never ends keeps it looking. */
static gantry_result open_receive(struct gantry_comm *comm, int from, const struct gantry_connect_info *peer,
				  struct gantry_connect_info *ret_info) REQUIRES(onesided_mu)
{
	gantry_result r = GANTRY_OK;
	struct comm_onesided *o = comm->onesided;
	struct comm_conn *cc = NULL;
	struct gantry_proxy_op *op = NULL;

	ASSERT_HELD(&o->mu);
	if (o->peers[from].recv)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d connected for puts twice", from);
	TRY(make_end(comm, from, 0, ret_info, &cc));
	gantry_put_accept(&cc->c, peer);
	TRY(gantry_proxy_ops_get(comm->proxy, 1, &op));
	op->conn = cc->c.proxy;
	op->nsteps = 1ull << 62;
	op->slice_steps = op->chunk_steps = 1;
	cc->stage = CONN_READY;
	o->peers[from].recv = cc;
	cc = NULL;
	store_release(&o->receives, 1);
	gantry_proxy_append(comm->proxy, op, op);
out:
	onesided_end_free(cc);
	return r;
}

gantry_result comm_onesided_call(struct gantry_comm *comm, int from, const void *data, size_t size, void *reply,
				 size_t *reply_size)
{
	struct comm_onesided *o = load_acquire(&comm->onesided);
	struct gantry_connect_info peer, info;
	gantry_result r = GANTRY_OK;

	if (size != sizeof(peer) || *reply_size < sizeof(info) || !o || from < 0 || from >= comm->nranks ||
	    from == comm->rank)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d sent a put connect request of an invalid size (%zu bytes)", from,
			 size);
	memcpy(&peer, data, sizeof(peer));
	onesided_mu_lock(&o->mu);
	if (!o->is_open)
		FAIL(GANTRY_ERR_PEER_CLOSED, "rank %d connected for puts, but no window is registered", from);
	TRY(open_receive(comm, from, &peer, &info));
	memcpy(reply, &info, sizeof(info));
	*reply_size = sizeof(info);
out:
	onesided_mu_unlock(&o->mu);
	return r;
}
