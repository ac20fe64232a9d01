/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: registering is collective, because ranks that cannot map each other's memory connect then; nobody calls
 * anything later at the target of a put. Two exchanges by the control plane:
 *
 *   1. what each rank offers, and how its memory is mapped; each maps what it can
 *   2. whom each rank needs the network for: those pairs connect that are not connected already
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/onesided.h"
#include "transport/ends.h"
#include "transport/transport.h"

/* What a rank says when it registers a window. */
struct offer {
	uint64_t size;
	uint64_t address;     /* within its process */
	uint64_t from_handle; /* where the window begins within what the handle names */
	uint32_t ok;	      /* 0: its call was wrong */
	uint32_t exported;
	struct gantry_ipc_handle memory, block;
};

enum need { NEED_NOTHING, NEED_NET, NEED_WHAT_IS_NOT_ALLOWED };

/* ---- its own memory ---- */

static size_t words_of(const struct gantry_comm *comm)
{
	return (size_t)comm->nranks * GANTRY_SIGNALS;
}

static gantry_result find_target(void *ctx, int from, const struct gantry_put_request *put, char **ret_at,
				 int *ret_cpu_writes)
{
	struct gantry_comm *comm = ctx;
	struct comm_onesided *o = comm->onesided;
	gantry_result r = GANTRY_OK;
	uint64_t size = 0;

	*ret_at = NULL;
	*ret_cpu_writes = 1;
	if (put->signal < -1 || put->signal >= GANTRY_SIGNALS)
		FAIL(GANTRY_ERR_PROTOCOL, "rank %d raises signal %d", from, put->signal);
	if (!put->bytes)
		return GANTRY_OK;
	onesided_mu_lock(&o->mu);
	gantry_list_each_entry (w, &o->windows, struct gantry_window, node) {
		if (w->number != put->window)
			continue;
		size = w->peers[comm->rank].size;
		*ret_at = w->base;
		*ret_cpu_writes = w->cpu_writes;
	}
	onesided_mu_unlock(&o->mu);
	if (!*ret_at || put->bytes > size || put->offset > size - put->bytes)
		FAIL(GANTRY_ERR_PROTOCOL, "rank %d puts %llu bytes at %llu of window %u, which has %llu here", from,
		     (unsigned long long)put->bytes, (unsigned long long)put->offset, put->window,
		     (unsigned long long)size);
	*ret_at += put->offset;
out:
	return r;
}

/* Release: the data is there. Sequentially consistent like all that a kernel looks at before it sleeps. */
static void on_arrived(void *ctx, int from, int signal)
{
	struct gantry_comm *comm = ctx;
	struct comm_onesided *o = comm->onesided;
	uint64_t *word;

	if (signal >= 0) {
		word = &o->by_net_host[onesided_word(from, signal)];
		store_seq(word, load_relaxed(word) + 1);
		comm_onesided_wake(comm);
	}
	store_release(&o->peers[from].arrived, o->peers[from].arrived + 1);
}

/* Of standing receives. Those who leave after the last meeting close their ends. */
static void on_error(void *ctx, gantry_result r, int peer, const char *text)
{
	struct gantry_comm *comm = ctx;

	if (!load_acquire(&comm->closing))
		comm_suspect(comm, r, comm_error_about(comm, r, peer), text);
}

/* All that does not depend on peers. */
static gantry_result make_onesided(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *d = comm->device;
	size_t block = sizeof(struct onesided_block) + words_of(comm) * sizeof(uint64_t);
	struct comm_onesided *o = aligned_alloc(64, (sizeof(*o) + 63) / 64 * 64);
	void *p = NULL, *dev = NULL;

	if (!o)
		FAIL(GANTRY_ERR_NOMEM, "no memory for windows");
	memset(o, 0, sizeof(*o));
	store_release(&comm->onesided, o); /* comm_fail looks */
	onesided_mu_lock(&o->mu);
	gantry_list_init(&o->windows);
	onesided_mu_unlock(&o->mu);
	o->target = (struct gantry_put_target){.find = find_target, .arrived = on_arrived, .ctx = comm};
	o->peers = calloc((size_t)comm->nranks, sizeof(*o->peers));
	if (!o->peers)
		FAIL(GANTRY_ERR_NOMEM, "no memory for windows");
	TRY(d->ops->alloc(d, 2 * words_of(comm) * sizeof(uint64_t), &p));
	o->raised = p;
	o->taken = o->raised + words_of(comm);
	TRY(d->ops->alloc_mapped(d, words_of(comm) * sizeof(uint64_t), &p, &dev));
	o->by_net_host = p;
	o->by_net = dev;
	TRY(d->ops->alloc(d, block, &p));
	TRY(d->ops->ipc_export(d, p, block, &o->handle));
	store_release(&o->block, p);
	o->peers[comm->rank].block = o->block;
out:
	return r;
}

void comm_onesided_wake(struct gantry_comm *comm)
{
	struct comm_onesided *o = load_acquire(&comm->onesided);
	struct onesided_block *block = o && comm->device->sleeps ? load_acquire(&o->block) : NULL;

	if (block)
		gantry_eventcount_notify(&block->eventcount);
}

void comm_onesided_count(const struct gantry_comm *comm, struct gantry_comm_counters *c)
{
	const struct comm_onesided *o = load_acquire(&comm->onesided);
	const struct gantry_conn_state *states = o ? load_acquire(&o->states) : NULL;

	for (int i = 0; states && i < comm->nranks; i++) {
		c->send_bytes += load_relaxed(&states[i].counts.bytes);
		c->send_copies += load_relaxed(&states[i].counts.copies);
		c->send_copied += load_relaxed(&states[i].counts.copied);
		for (int k = 0; k < GANTRY_PROTOS * GANTRY_MODES; k++)
			c->steps[k / GANTRY_MODES][k % GANTRY_MODES] +=
				load_relaxed(&states[i].counts.steps[k / GANTRY_MODES][k % GANTRY_MODES]);
	}
}

/* ---- reaching others ---- */

/* Kernels of this rank may address memory of the peer. Both answer alike. */
static int is_near(const struct gantry_comm *comm, int peer)
{
	const struct gantry_peer_info *a = &comm->infos[comm->rank], *b = &comm->infos[peer];
	const struct gantry_transport *t = comm->peers[peer].transport;

	if (peer == comm->rank)
		return 1;
	if (t == &gantry_transport_shm) /* of a GPU: through host memory, and a window is none */
		return a->device_kind == GANTRY_DEVICE_HOST && b->device_kind == GANTRY_DEVICE_HOST &&
		       gantry_ends_see_each_other(a, b);
	return t == &gantry_transport_p2p;
}

static int allows_net(const struct gantry_comm *comm)
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

static gantry_result map_block(struct gantry_comm *comm, int peer, const struct offer *offer)
{
	struct onesided_peer *p = &comm->onesided->peers[peer];
	void *at = NULL;

	if (p->block)
		return GANTRY_OK;
	TRY_NOW(comm->device->ops->ipc_open(comm->device, &offer->block, &at));
	p->block = at;
	return GANTRY_OK;
}

/* The peer's window, if it can be mapped. */
static gantry_result map_window(struct gantry_comm *comm, struct gantry_window *w, int peer, const struct offer *offer)
{
	const struct gantry_peer_info *a = &comm->infos[comm->rank], *b = &comm->infos[peer];
	struct window_peer *p = &w->peers[peer];

	p->size = offer->size;
	if (!is_near(comm, peer))
		return GANTRY_OK;
	TRY_NOW(map_block(comm, peer, offer));
	if (gantry_ends_same_process(a, b)) {
		p->at = (char *)(uintptr_t)offer->address;
	} else if (offer->exported && offer->size) {
		TRY_NOW(comm->device->ops->ipc_open(comm->device, &offer->memory, &p->opened));
		p->at = (char *)p->opened + offer->from_handle;
	}
	return GANTRY_OK;
}

static enum need need_of(const struct gantry_comm *comm, const struct gantry_window *w, int peer)
{
	const struct onesided_peer *p = &comm->onesided->peers[peer];

	if (p->block && (w->peers[peer].at || !w->peers[peer].size))
		return NEED_NOTHING;
	return allows_net(comm) ? NEED_NET : NEED_WHAT_IS_NOT_ALLOWED;
}

/* ---- connections over the network ---- */

static uint64_t tag_of(int from_sender)
{
	return 2ull << 32 | (uint64_t)from_sender;
}

static gantry_result make_net(struct gantry_comm *comm)
{
	struct comm_onesided *o = comm->onesided;
	struct gantry_device *d = comm->device;
	const struct gantry_proxy_group_config config = {.on_error = on_error,
							 .abort = &comm->life.stop,
							 .ctx = comm,
							 .any_thread = d->kind == GANTRY_DEVICE_HOST};
	void *p = NULL, *dev = NULL;

	if (o->group)
		return GANTRY_OK;
	TRY_NOW(d->ops->alloc_mapped(d, (size_t)comm->nranks * sizeof(*o->states), &p, &dev));
	store_release(&o->states, p); /* comm_onesided_count looks */
	o->states_dev = dev;
	TRY_NOW(d->ops->alloc(d, (size_t)comm->nranks * sizeof(*o->conns_dev), &p));
	o->conns_dev = p;
	return gantry_proxy_group_create(comm->proxy, &config, &o->group);
}

static gantry_result open_end(struct gantry_comm *comm, int peer, int send)
{
	struct comm_onesided *o = comm->onesided;
	struct comm_conn *cc = send ? &o->peers[peer].send : &o->peers[peer].recv;
	struct gantry_connector *c = &cc->c;
	struct gantry_connect_info info;

	if (cc->stage != CONN_NONE)
		return GANTRY_OK;
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
	c->eventcount = comm->eventcounts ? &comm->eventcounts[peer % comm->nchannels] : NULL;
	c->state = send ? &o->states[peer] : NULL;
	c->proxy_eventcount = comm->device->sleeps ? gantry_proxy_eventcount(comm->proxy) : NULL;
	TRY_NOW(gantry_proxy_conn_create(comm->proxy, send ? comm->group : o->group, c, &c->proxy));
	cc->stage = CONN_SETUP;
	TRY_NOW(gantry_put_setup(c, send ? NULL : &o->target, &info));
	return gantry_ctl_send(comm->ctl, peer, tag_of(send), &info, sizeof(info));
}

/* A receiving end is the progress thread's from here on: an operation that never ends keeps it looking. */
static gantry_result finish_end(struct gantry_comm *comm, struct comm_conn *cc)
{
	struct gantry_connector *c = &cc->c;
	struct gantry_proxy_op *op = NULL;

	cc->stage = CONN_READY;
	if (c->send) {
		comm->onesided->peers[c->peer->rank].by_net |= !comm->onesided->peers[c->peer->rank].block;
		c->conn.state = &comm->onesided->states_dev[c->peer->rank];
		cc->dev = &comm->onesided->conns_dev[c->peer->rank];
		return comm->device->ops->copy(comm->device, cc->dev, &c->conn, sizeof(c->conn));
	}
	TRY_NOW(gantry_proxy_ops_get(comm->proxy, 1, &op));
	op->conn = c->proxy;
	op->nsteps = 1ull << 62;
	op->slice_steps = op->chunk_steps = 1;
	gantry_proxy_append(comm->proxy, op, op);
	return GANTRY_OK;
}

static gantry_result advance_end(struct gantry_comm *comm, struct comm_conn *cc)
{
	if (cc->stage == CONN_NONE || cc->stage == CONN_READY)
		return GANTRY_OK;
	TRY_NOW(comm_check(comm));
	if (cc->stage == CONN_SETUP)
		TRY_NOW(gantry_ctl_try_recv(comm->ctl, cc->c.peer->rank, tag_of(!cc->c.send), &cc->peer_info,
					    sizeof(cc->peer_info)));
	cc->stage = CONN_HAVE_INFO;
	TRY_NOW(gantry_put_connect(&cc->c, &cc->peer_info));
	return finish_end(comm, cc);
}

/* *ret_waits: one that is not connected yet; -1: all are. */
static gantry_result advance_all(struct gantry_comm *comm, int *ret_waits)
{
	*ret_waits = -1;
	for (int i = 0; i < 2 * comm->nranks; i++) {
		struct onesided_peer *p = &comm->onesided->peers[i / 2];
		gantry_result r = advance_end(comm, i % 2 ? &p->send : &p->recv);

		if (r == GANTRY_AGAIN)
			*ret_waits = i / 2;
		else
			TRY_NOW(r);
	}
	return GANTRY_OK;
}

static gantry_result connect_all(struct gantry_comm *comm)
{
	uint64_t start = gantry_now_ns();
	int waits;

	for (;;) {
		TRY_NOW(advance_all(comm, &waits));
		if (waits < 0)
			return GANTRY_OK;
		if (gantry_now_ns() - start > gantry_params()->connect_timeout)
			FAIL_NOW(GANTRY_ERR_TIMEOUT, "rank %d (%s) did not finish connecting for a window", waits,
				 comm->infos[waits].host_name);
		gantry_ctl_wait(comm->ctl, 200000);
	}
}

/* needs: of all ranks, nranks each. Pairs that differ in what they need have both directions. */
static gantry_result connect_needed(struct gantry_comm *comm, const unsigned char *needs)
{
	int n = comm->nranks, me = comm->rank;

	for (int i = 0; i < n * n; i++)
		if (needs[i] == NEED_WHAT_IS_NOT_ALLOWED)
			FAIL_NOW(GANTRY_ERR_UNREACHABLE,
				 "rank %d cannot map the window of rank %d (%s), and transport \"%s\" leaves out net; "
				 "memory "
				 "from gantry_mem_alloc can be mapped",
				 i / n, i % n, comm->infos[i % n].host_name, comm->transport);
	for (int peer = 0; peer < n; peer++) {
		if (peer == me)
			continue;
		if (needs[me * n + peer] || needs[peer * n + me])
			TRY_NOW(make_net(comm));
		if (needs[me * n + peer])
			TRY_NOW(open_end(comm, peer, 1));
		if (needs[peer * n + me])
			TRY_NOW(open_end(comm, peer, 0));
	}
	return connect_all(comm);
}

/* ---- registering ---- */

static gantry_result describe(struct gantry_comm *comm, void *ptr, size_t size, struct offer *ret_offer,
			      struct gantry_mem_info *ret_info)
{
	struct gantry_device *d = comm->device;

	memset(ret_info, 0, sizeof(*ret_info));
	ret_offer->size = size;
	ret_offer->address = (uint64_t)(uintptr_t)ptr;
	ret_offer->block = comm->onesided->handle;
	if (size)
		TRY_NOW(d->ops->pointer(d, ptr, ret_info));
	if (size && ret_info->kind == GANTRY_MEM_PAGEABLE)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_window_register: %s does not reach the memory at %p", d->name,
			 ptr);
	/* Without network and transport there is nobody to export it to. */
	if (size && ret_info->exportable && ret_info->base &&
	    d->ops->ipc_export(d, ret_info->base, ret_info->size, &ret_offer->memory) == GANTRY_OK) {
		ret_offer->exported = 1;
		ret_offer->from_handle = (uint64_t)((char *)ptr - (char *)ret_info->base);
	}
	ret_offer->ok = 1;
	return GANTRY_OK;
}

static gantry_result choose_transports(struct gantry_comm *comm)
{
	for (int i = 0; i < comm->nranks; i++) {
		struct comm_peer *p = &comm->peers[i];

		if (i != comm->rank && !p->transport)
			TRY_NOW(gantry_transport_choose(&comm->infos[comm->rank], &comm->infos[i], comm->transport,
							&p->transport));
	}
	return GANTRY_OK;
}

/* The two exchanges. */
static gantry_result agree_on_window(struct gantry_comm *comm, struct gantry_window *w, const struct offer *mine)
{
	gantry_result r = GANTRY_OK;
	size_t n = (size_t)comm->nranks;
	struct offer *all = calloc(n, sizeof(*all));
	unsigned char *needs = calloc(n + 1, n);

	if (!all || !needs)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a window of %d ranks", comm->nranks);
	TRY(gantry_ctl_allgather(comm->ctl, mine, sizeof(*mine), all));
	for (int i = 0; i < comm->nranks; i++)
		if (!all[i].ok)
			FAIL(GANTRY_ERR_INVALID, "gantry_window_register: the arguments of rank %d are wrong", i);
	TRY(choose_transports(comm));
	for (int i = 0; i < comm->nranks; i++) {
		TRY(map_window(comm, w, i, &all[i]));
		needs[n * n + (size_t)i] = (unsigned char)need_of(comm, w, i);
	}
	TRY(gantry_ctl_allgather(comm->ctl, needs + n * n, n, needs));
	TRY(connect_needed(comm, needs));
out:
	free(all);
	free(needs);
	return r;
}

static void window_free(struct gantry_comm *comm, struct gantry_window *w)
{
	for (int i = 0; w && i < comm->nranks; i++)
		if (w->peers[i].opened)
			comm->device->ops->ipc_close(comm->device, w->peers[i].opened);
	free(w);
}

static gantry_result register_window(struct gantry_comm *comm, void *ptr, size_t size,
				     struct gantry_window **ret_window)
{
	gantry_result r = GANTRY_OK;
	struct offer mine = {0};
	struct gantry_mem_info info;
	struct gantry_window *w = calloc(1, sizeof(*w) + (size_t)comm->nranks * sizeof(w->peers[0]));

	if (!w)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a window");
	if (!comm->onesided)
		TRY(make_onesided(comm));
	w->number = ++comm->onesided->last_number; /* also of a call that fails: all ranks count alike */
	if (size && !ptr)
		r = gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
				"gantry_window_register: %zu bytes at NULL", size);
	else
		r = describe(comm, ptr, size, &mine, &info);
	if (r != GANTRY_OK) { /* the others wait for this rank's word */
		agree_on_window(comm, w, &mine);
		goto out;
	}
	w->base = ptr;
	w->cpu_writes = info.kind != GANTRY_MEM_DEVICE || gantry_traits(comm->device)->cpu_reads_memory;
	/* Before the others know that it is there: puts may come as soon as all are connected. */
	w->peers[comm->rank].size = size;
	onesided_mu_lock(&comm->onesided->mu);
	gantry_list_append(&comm->onesided->windows, &w->node);
	onesided_mu_unlock(&comm->onesided->mu);
	r = agree_on_window(comm, w, &mine);
	if (r == GANTRY_OK) {
		*ret_window = w;
		return GANTRY_OK;
	}
	onesided_mu_lock(&comm->onesided->mu);
	gantry_list_remove(&w->node);
	onesided_mu_unlock(&comm->onesided->mu);
out:
	window_free(comm, w);
	return r;
}

gantry_result gantry_window_register(struct gantry_comm *comm, void *ptr, size_t size,
				     struct gantry_window **ret_window)
{
	gantry_result r;

	if (!comm || !ret_window)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_window_register: no communicator, or nowhere to put the window");
	TRY_NOW(comm_ready(comm, "gantry_window_register"));
	r = register_window(comm, ptr, size, ret_window);
	/* What all ranks have found alike leaves them as they were. */
	if (r != GANTRY_OK && r != GANTRY_ERR_INVALID && r != GANTRY_ERR_UNREACHABLE)
		comm_fail_for_cause(comm, r, comm_error_about(comm, r, -1), gantry_last_error());
	return r;
}

gantry_result comm_onesided_flush(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct comm_onesided *o = comm->onesided;
	size_t n = (size_t)comm->nranks;
	struct gantry_waiter wait;
	uint64_t *sent, start;

	if (!o)
		return GANTRY_OK;
	sent = calloc(n + 1, n * sizeof(*sent));
	if (!sent)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	for (size_t i = 0; i < n; i++)
		sent[n * n + i] = o->peers[i].sent;
	TRY(gantry_ctl_allgather(comm->ctl, sent + n * n, n * sizeof(*sent), sent));
	gantry_waiter_init(&wait, NULL);
	start = gantry_now_ns();
	for (size_t i = 0; i < n; i++) {
		while (load_acquire(&o->peers[i].arrived) < sent[i * n + (size_t)comm->rank]) {
			TRY(comm_check(comm));
			if (gantry_now_ns() - start > gantry_params()->timeout)
				FAIL(GANTRY_ERR_TIMEOUT, "puts of rank %zu have not arrived", i);
			gantry_waiter_idle(&wait, UINT64_MAX);
		}
	}
out:
	free(sent);
	return r;
}

static void close_end(struct comm_conn *cc)
{
	if (cc->stage == CONN_NONE)
		return;
	gantry_put_close(&cc->c);
	gantry_proxy_conn_destroy(cc->c.proxy);
	cc->stage = CONN_NONE;
}

/* After an error: the network lets go of windows before their owner frees them. */
static void close_receives(struct gantry_comm *comm)
{
	comm_onesided_stop(comm);
	for (int i = 0; i < comm->nranks; i++)
		close_end(&comm->onesided->peers[i].recv);
}

gantry_result gantry_window_deregister(struct gantry_comm *comm, struct gantry_window *window)
{
	gantry_result r;

	if (!comm)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_window_deregister: no communicator");
	if (!window)
		return GANTRY_OK;
	r = comm_drain(comm);
	if (r == GANTRY_OK)
		r = comm_onesided_flush(comm);
	if (r != GANTRY_OK)
		close_receives(comm);
	onesided_mu_lock(&comm->onesided->mu);
	gantry_list_remove(&window->node);
	onesided_mu_unlock(&comm->onesided->mu);
	window_free(comm, window);
	return r;
}

void *gantry_window_ptr(const struct gantry_window *window)
{
	return window ? window->base : NULL;
}

/* ---- the end ---- */

void comm_onesided_stop(struct gantry_comm *comm)
{
	if (comm->onesided && comm->onesided->group) {
		gantry_proxy_group_destroy(comm->onesided->group);
		comm->onesided->group = NULL;
	}
}

static void peer_free(struct gantry_comm *comm, int rank)
{
	struct onesided_peer *p = &comm->onesided->peers[rank];

	close_end(&p->send);
	close_end(&p->recv);
	if (p->block && rank != comm->rank)
		comm->device->ops->ipc_close(comm->device, p->block);
}

void comm_onesided_free(struct gantry_comm *comm)
{
	struct comm_onesided *o = comm->onesided;
	struct gantry_device *d = comm->device;

	if (!o)
		return;
	onesided_mu_lock(&o->mu);
	gantry_list_each_entry_safe (w, &o->windows, struct gantry_window, node)
		window_free(comm, w);
	onesided_mu_unlock(&o->mu);
	for (int i = 0; o->peers && i < comm->nranks; i++)
		peer_free(comm, i);
	free(o->peers);
	/* A rank on another GPU of this process may still store there, where no mapping of its own keeps the memory. */
	if (gantry_traits(d)->cpu_reads_memory || comm_check(comm) == GANTRY_OK)
		d->ops->free(d, o->block);
	d->ops->free(d, o->raised);
	if (o->by_net_host)
		d->ops->free_mapped(d, o->by_net_host);
	if (o->states)
		d->ops->free_mapped(d, o->states);
	d->ops->free(d, o->conns_dev);
	free(o);
	comm->onesided = NULL;
}
