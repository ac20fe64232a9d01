/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on a stream that the program captures into a graph: docs/design/0025-graphs.md.
 *
 * A captured launch has argument memory of its own, on the device, that stays as it is as long as the graph lives. What
 * changes from run to run (steps, transfers so far) is the connections', which kernels read and write by themselves. What
 * the host adds are operations for the proxy: a host call of the graph appends copies of them, before the kernel.
 *
 * Order. All kernels of a communicator run one after the other, in the order of calls and of launches of graphs. Within a
 * graph the `inner` event orders those on several streams. Between graphs, and between them and plain launches, `order`
 * does: each waits for it and records it, plain ones as long as there are captured launches. They append operations
 * by a host call then, too: one of a graph that was launched before may still be to come.
 *
 * The end. A graph may outlive the communicator: its kernels find nothing to do then, its host calls nobody to do it for.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/launches.h"

/* Launches whose memory is got at once, and the transfers that each has room for. */
enum { SLAB = 64, SLAB_XFERS = 64 };

MUTEX_KIND(comm_graphs_mu);

struct comm_graph_launch {
	struct comm_work work;	     /* first: a captured work is this */
	struct comm_graphs *all;     /* borrowed */
	uint32_t live;		     /* atomic: its graph is; 0: it may be used again */
	struct gantry_proxy_op *ops; /* what each run appends copies of; NULL: nothing */
	uint32_t nops;
	uint32_t nshares; /* of a collective; 0: transfers */
};

struct graph_slab {
	struct gantry_list node;
	void *dev;  /* owned: arguments of the launches */
	void *host; /* owned: the same as the CPU writes it; NULL: it writes there */
	uint32_t n;
	struct comm_graph_launch launches[];
};

/* The caller's thread has it, but for what is atomic or guarded. */
struct comm_graphs {
	struct comm_graphs_mu mu;
	struct gantry_comm *comm GUARDED_BY(comm_graphs_mu); /* borrowed; NULL: gone */
	struct gantry_list slabs;
	uint32_t live;			    /* atomic: captured launches */
	uint64_t *counts_host, *counts_dev; /* runs begun and ended; mapped */
	void *words;			    /* owned, the device's: runs, and blocks that have arrived */
	struct gantry_dev_event *order, *inner;
	uint64_t capture;		    /* of the last captured launch */
	const struct gantry_stream *stream; /* its; only compared */
	struct comm_graphs *next;	    /* of those that were left */
};

/* Of communicators that are gone, with graphs that are not: the driver frees no memory when it says that one is. */
static struct comm_graphs *left;

static struct comm_graph_launch *launch_of(struct comm_work *w)
{
	return (struct comm_graph_launch *)(void *)w;
}

static size_t launch_size(uint32_t capacity)
{
	return (capacity * sizeof(struct gantry_xfer) + (COMM_CHANNELS_MAX + 1) * sizeof(uint32_t) + 127) / 128 * 128;
}

/* Its arguments, to where kernels read them. */
static gantry_result upload(struct gantry_device *d, const struct comm_work *w)
{
	if (w->host.at == w->dev.at)
		return GANTRY_OK;
	return d->ops->copy(d, w->dev.at, w->host.at, launch_size(w->capacity));
}

/* ---- making and ending ---- */

static void graphs_free(struct gantry_device *d, struct comm_graphs *g)
{
	gantry_list_each_entry_safe (slab, &g->slabs, struct graph_slab, node) {
		d->ops->free(d, slab->dev);
		free(slab->host);
		free(slab);
	}
	d->ops->free(d, g->words);
	d->ops->event_destroy(d, g->order);
	d->ops->event_destroy(d, g->inner);
	if (g->counts_host)
		d->ops->free_mapped(d, g->counts_host);
	free(g);
}

static gantry_result graphs_make(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *d = comm->device;
	struct comm_graphs *g = calloc(1, sizeof(*g));
	void *host, *dev;

	if (!g)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for graphs");
	gantry_list_init(&g->slabs);
	comm_graphs_mu_lock(&g->mu);
	g->comm = comm;
	comm_graphs_mu_unlock(&g->mu);
	TRY(d->ops->alloc_mapped(d, 128, &host, &dev));
	g->counts_host = host;
	g->counts_dev = dev;
	TRY(d->ops->alloc(d, 128, &g->words));
	TRY(d->ops->event_create(d, &g->order));
	TRY(d->ops->event_create(d, &g->inner));
	store_release(&comm->graphs, g); /* the watchdog asks whether they are busy */
	g = NULL;
out:
	if (g)
		graphs_free(d, g);
	return r;
}

/* A launch of a graph that is still there shall do nothing: no block has transfers, no collective elements. */
static void disarm(struct gantry_device *d, struct comm_graph_launch *l)
{
	struct comm_work *w = &l->work;
	struct gantry_coll *shares = w->host.colls;

	if (!load_acquire(&l->live))
		return;
	for (uint32_t i = 0; i < l->nshares; i++) {
		shares[i].count = shares[i].nsteps = shares[i].nconns = shares[i].delay = shares[i].ptr = 0;
		shares[i].scalar_at = NULL;
	}
	if (!l->nshares)
		memset(w->first_host, 0, (COMM_CHANNELS_MAX + 1) * sizeof(uint32_t));
	if (upload(d, w) != GANTRY_OK)
		LOG_WARN(COMM, "a captured call could not be disarmed: do not launch its graph again");
}

void comm_graphs_end(struct gantry_comm *comm)
{
	struct comm_graphs *g = comm->graphs;
	uint32_t live;

	if (!g)
		return;
	comm_graphs_mu_lock(&g->mu); /* no host call is under way after this */
	g->comm = NULL;
	comm_graphs_mu_unlock(&g->mu);
	live = load_acquire(&g->live);
	if (!live)
		return;
	gantry_list_each_entry (slab, &g->slabs, struct graph_slab, node) {
		for (uint32_t i = 0; i < slab->n; i++)
			disarm(comm->device, &slab->launches[i]);
	}
	LOG_WARN(COMM, "%s: %s outlive it, and do nothing from now on; their memory is left to them",
		 COMM_TEXT_OF(comm), COUNT_TEXT((int)live, "captured call"));
}

void comm_graphs_free(struct gantry_comm *comm)
{
	struct comm_graphs *g = comm->graphs;

	if (!g)
		return;
	if (!load_acquire(&g->live)) {
		graphs_free(comm->device, g);
		return;
	}
	g->next = load_relaxed(&left);
	while (!cas_weak_release(&left, &g->next, g))
		;
}

int comm_graphs_busy(const struct gantry_comm *comm)
{
	const struct comm_graphs *g = load_acquire(&comm->graphs);
	uint64_t ended = g ? load_acquire(&g->counts_host[8]) : 0;

	return g && load_acquire(&g->counts_host[0]) != ended;
}

bool comm_graphs_any_live(const struct comm_graphs *graphs)
{
	return load_acquire(&graphs->live) != 0;
}

/* ---- memory of launches ---- */

static void place_launch(struct comm_graphs *g, struct comm_graph_launch *l, char *host, char *dev, uint32_t capacity)
{
	size_t first = capacity * sizeof(struct gantry_xfer);

	l->all = g;
	l->work = (struct comm_work){.host.at = host,
				     .first_host = (void *)(host + first),
				     .mapped.at = dev,
				     .dev.at = dev,
				     .first_dev = (void *)(dev + first),
				     .capacity = capacity,
				     .captured = 1,
				     .runs = g->words,
				     .arrived = (uint64_t *)g->words + 8,
				     .begun_dev = &g->counts_dev[0],
				     .finished_dev = &g->counts_dev[8]};
}

static gantry_result add_launches(struct gantry_comm *comm, uint32_t n, uint32_t capacity)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *d = comm->device;
	struct comm_graphs *g = comm->graphs;
	size_t size = launch_size(capacity);
	int apart = !gantry_traits(d)->cpu_reads_memory;
	struct graph_slab *slab = calloc(1, sizeof(*slab) + n * sizeof(*slab->launches));

	if (slab && apart)
		slab->host = calloc(n, size);
	if (!slab || (apart && !slab->host))
		FAIL(GANTRY_ERR_NOMEM, "no memory for %s", COUNT_TEXT((int)n, "captured call"));
	TRY(d->ops->alloc(d, n * size, &slab->dev));
	slab->n = n;
	for (uint32_t i = 0; i < n; i++)
		place_launch(g, &slab->launches[i], (char *)(apart ? slab->host : slab->dev) + i * size,
			     (char *)slab->dev + i * size, capacity);
	gantry_list_append(&g->slabs, &slab->node);
	slab = NULL;
out:
	if (slab)
		free(slab->host);
	free(slab);
	return r;
}

static struct comm_graph_launch *find_launch(struct comm_graphs *g, uint32_t capacity)
{
	gantry_list_each_entry (slab, &g->slabs, struct graph_slab, node) {
		for (uint32_t i = 0; i < slab->n; i++)
			if (slab->launches[i].work.capacity >= capacity && !load_acquire(&slab->launches[i].live))
				return &slab->launches[i];
	}
	return NULL;
}

static gantry_result get_launch(struct gantry_comm *comm, uint32_t capacity, struct comm_graph_launch **ret_launch)
{
	struct comm_graphs *g = comm->graphs;
	struct comm_graph_launch *l = find_launch(g, capacity);

	if (!l) {
		TRY_NOW(capacity <= SLAB_XFERS ? add_launches(comm, SLAB, SLAB_XFERS)
					       : add_launches(comm, 1, capacity));
		l = find_launch(g, capacity);
	}
	if (l->ops) /* of the graph that had it before */
		gantry_proxy_ops_put(comm->proxy, l->ops);
	l->ops = NULL;
	l->nops = 0;
	*ret_launch = l;
	return GANTRY_OK;
}

/* ---- capturing ---- */

/* Plain launches from before there were graphs have not recorded `order`. */
static gantry_result wait_for_plain(struct gantry_comm *comm)
{
	uint64_t begin = gantry_now_ns(), limit = gantry_params()->call_timeout;
	struct gantry_waiter wait;

	gantry_waiter_init(&wait, NULL);
	while (comm_works_busy(comm)) { /* for peers that are late, too; if one dies, the communicator fails */
		TRY_NOW(comm_check(comm));
		if (limit && gantry_now_ns() - begin > limit)
			FAIL_NOW(GANTRY_ERR_TIMEOUT,
				 "what was launched before the capture does not end (GANTRY_CALL_TIMEOUT)");
		gantry_waiter_idle(&wait, UINT64_MAX);
	}
	return GANTRY_OK;
}

static gantry_result begin_captured(struct gantry_comm *comm, struct gantry_stream *stream, uint64_t capture)
{
	struct gantry_device *d = comm->device;
	struct comm_graphs *g;

	if (!comm->graphs)
		TRY_NOW(graphs_make(comm));
	g = comm->graphs;
	if (!load_acquire(&g->live))
		TRY_NOW(wait_for_plain(comm));
	if (g->capture != capture)
		TRY_NOW(d->ops->graph_wait(d, stream, g->order));
	else if (g->stream != stream)
		TRY_NOW(d->ops->stream_wait(d, stream, g->inner));
	g->capture = capture;
	g->stream = stream;
	return GANTRY_OK;
}

gantry_result comm_graph_work(struct gantry_comm *comm, uint32_t capacity, struct gantry_stream *stream,
			      uint64_t capture, struct comm_work **ret_work)
{
	struct comm_graph_launch *l;

	TRY_NOW(begin_captured(comm, stream, capture));
	TRY_NOW(get_launch(comm, capacity, &l));
	l->work.stream = stream;
	*ret_work = &l->work;
	return GANTRY_OK;
}

/* The graph and what was made of it are gone. */
static void on_gone(void *launch)
{
	struct comm_graph_launch *l = launch;
	struct comm_graphs *g = l->all;

	store_release(&l->live, 0);
	fetch_sub_release(&g->live, 1);
}

/* ---- operations of the proxy ---- */

static gantry_result append_copies(struct gantry_comm *comm, const struct comm_graph_launch *l)
{
	struct gantry_proxy_op *first, *last = NULL;
	const struct gantry_proxy_op *from = l->ops;

	TRY_NOW(gantry_proxy_ops_get(comm->proxy, l->nops, &first));
	for (struct gantry_proxy_op *op = first; op; op = op->next, from = from->next) {
		struct gantry_proxy_op *next = op->next;

		*op = *from;
		op->next = next;
		last = op;
	}
	gantry_proxy_append(comm->proxy, first, last);
	return GANTRY_OK;
}

/* A run of the graph has come here. */
static void on_run(void *launch)
{
	struct comm_graph_launch *l = launch;
	struct comm_graphs *g = l->all;
	gantry_result r = GANTRY_OK;

	comm_graphs_mu_lock(&g->mu);
	if (g->comm)
		r = append_copies(g->comm, l);
	if (r != GANTRY_OK)
		comm_fail(g->comm, r, g->comm->rank, gantry_last_error());
	comm_graphs_mu_unlock(&g->mu);
}

gantry_result comm_graph_launch(struct gantry_comm *comm, struct comm_work *w, const struct gantry_launch *launch,
				struct gantry_proxy_op *ops)
{
	struct gantry_device *d = comm->device;
	struct comm_graphs *g = comm->graphs;
	struct comm_graph_launch *l = launch_of(w);
	gantry_result r;

	l->ops = ops;
	for (; ops; ops = ops->next)
		l->nops++;
	if (l->ops)
		TRY_NOW(d->ops->host_call(d, w->stream, on_run, l));
	TRY_NOW(upload(d, w));
	l->nshares = launch->kernel == &gantry_kernel_p2p ? 0 : launch->blocks;
	store_release(&l->live, 1);
	fetch_add_relaxed(&g->live, 1);
	r = d->ops->graph_keep(d, w->stream, on_gone, l);
	if (r != GANTRY_OK) {
		on_gone(l);
		return r;
	}
	TRY_NOW(d->ops->launch(d, w->stream, launch));
	TRY_NOW(d->ops->event_record(d, g->inner, w->stream));
	return d->ops->graph_record(d, w->stream, g->order);
}

/* ---- plain launches while captured ones live ---- */

struct plain_ops {
	struct gantry_proxy *proxy; /* borrowed */
	struct gantry_proxy_op *first, *last;
};

static void on_plain(void *ops)
{
	struct plain_ops *p = ops;

	gantry_proxy_append(p->proxy, p->first, p->last);
	free(p);
}

gantry_result comm_graph_plain_wait(struct gantry_comm *comm, struct gantry_stream *stream)
{
	return comm->device->ops->stream_wait(comm->device, stream, comm->graphs->order);
}

gantry_result comm_graph_plain_append(struct gantry_comm *comm, struct gantry_stream *stream,
				      struct gantry_proxy_op *first, struct gantry_proxy_op *last)
{
	struct gantry_device *d = comm->device;
	struct plain_ops *p = malloc(sizeof(*p));
	gantry_result r;

	if (!p)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for operations of the proxy");
	*p = (struct plain_ops){.proxy = comm->proxy, .first = first, .last = last};
	r = d->ops->host_call(d, stream, on_plain, p);
	if (r != GANTRY_OK)
		free(p);
	return r;
}

gantry_result comm_graph_plain_record(struct gantry_comm *comm, struct gantry_stream *stream)
{
	return comm->device->ops->event_record(comm->device, comm->graphs->order, stream);
}
