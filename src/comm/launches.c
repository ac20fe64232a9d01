/* SPDX-License-Identifier: Apache-2.0 */
/* Argument memory of launches, their order, and launching. Nothing is allocated per launch once the sizes have settled. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/launches.h"

#include <stdlib.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "comm/report.h"

/* ---- works ---- */

/*
 * Transfers that a work holds from the start. On a GPU it is generous: memory is not got while kernels run there,
 * because the driver may wait for them, and they may be waiting for this very launch.
 */
enum { XFERS_FIRST = 4, XFERS_FIRST_GPU = 64, XFERS_NEAR = 8 /* P2P_NEAR: a block copies so few to itself */ };

static uint32_t first_capacity(const struct gantry_comm *comm)
{
	return gantry_traits(comm->device)->calls_may_wait ? XFERS_FIRST_GPU : XFERS_FIRST;
}

/* A work's memory: xfers, first[], on a line of its own finished, and behind it the times, if there is a trace. */
static size_t xfers_size(uint32_t capacity)
{
	return (size_t)capacity * sizeof(struct gantry_xfer);
}

static size_t times_at(uint32_t capacity)
{
	return (xfers_size(capacity) + (COMM_CHANNELS_MAX + 1) * sizeof(uint32_t) + 127) / 128 * 128 + 128;
}

static size_t work_size(const struct gantry_comm *comm, uint32_t capacity)
{
	size_t times = comm->launches->traced ? capacity * sizeof(struct gantry_xfer_time) : 0;

	return times_at(capacity) + (times + 127) / 128 * 128;
}

static void work_place(const struct gantry_comm *comm, struct comm_work *w, uint32_t capacity, char *host, char *dev,
		       char *own)
{
	size_t size = times_at(capacity);
	int traced = comm->launches->traced;

	w->times_host = traced ? (void *)(host + size) : NULL;
	w->times_dev = traced ? (void *)(dev + size) : NULL;
	w->host.at = host;
	w->first_host = (void *)(host + xfers_size(capacity));
	w->finished_host = (void *)(host + size - 128);
	w->finished_dev = (void *)(dev + size - 128);
	w->arrived = (void *)(own + size - 64);
	w->mapped.at = dev;
	w->dev.at = own;
	w->first_dev = (void *)(own + xfers_size(capacity));
	w->capacity = capacity;
	w->expected = 0;
}

/* Memory for n works. On a GPU the kernel works on a copy in its own memory. */
static gantry_result works_alloc(struct gantry_comm *comm, struct comm_work *w, uint32_t n, uint32_t capacity)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *d = comm->device;
	size_t size = work_size(comm, capacity);
	void *host = NULL, *dev = NULL, *own = NULL;

	TRY(d->ops->alloc_mapped(d, n * size, &host, &dev));
	own = dev;
	if (gantry_traits(d)->needs_own_copy) {
		r = d->ops->alloc(d, n * size, &own);
		if (r != GANTRY_OK) {
			d->ops->free_mapped(d, host);
			goto out;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		work_place(comm, &w[i], capacity, (char *)host + i * size, (char *)dev + i * size,
			   (char *)own + i * size);
out:
	return r;
}

static void works_release(struct gantry_comm *comm, struct comm_work *w)
{
	struct gantry_device *d = comm->device;

	if (w->dev.at && w->dev.at != w->host.at)
		d->ops->free(d, w->dev.at);
	if (w->host.at)
		d->ops->free_mapped(d, w->host.at);
}

gantry_result comm_launches_make(struct gantry_comm *comm)
{
	ASSERT(!comm->launches);
	comm->launches = calloc(1, sizeof(*comm->launches));
	if (!comm->launches)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the launches of a communicator");
	return GANTRY_OK;
}

gantry_result comm_launches_open(struct gantry_comm *comm)
{
	struct comm_launches *l = comm->launches;

	ASSERT(!l->count && !l->works_first.capacity);
	l->traced = *gantry_params()->trace != 0;
	TRY_NOW(works_alloc(comm, l->works, COMM_WORKS, first_capacity(comm)));
	l->works_first = l->works[0];
	return GANTRY_OK;
}

int comm_work_busy(const struct comm_work *w)
{
	return w->finished_host && load_acquire(w->finished_host) != load_relaxed(&w->expected);
}

int comm_works_busy(const struct gantry_comm *comm)
{
	const struct comm_launches *l = comm->launches;
	int n = 0;

	for (int i = 0; l && i < COMM_WORKS; i++)
		n += comm_work_busy(&l->works[i]);
	return n + comm_graphs_busy(comm);
}

void comm_launches_free(struct gantry_comm *comm)
{
	struct comm_launches *l = comm->launches;
	struct gantry_device *d = comm->device;

	if (!l)
		return;
	for (int i = 0; i < COMM_WORKS; i++) {
		if (l->works[i].capacity > first_capacity(comm))
			works_release(comm, &l->works[i]);
	}
	for (uint32_t i = 0; i < l->outgrown.n; i++)
		works_release(comm, &l->outgrown.works[i]);
	free(l->outgrown.works);
	works_release(comm, &l->works_first);
	d->ops->event_destroy(d, l->join);
	d->ops->event_destroy(d, l->behind);
	free(l);
	comm->launches = NULL;
}

/* The memory that was too small is kept to the end: a kernel may wait for its counter, and freeing may wait for
 * kernels. */
static gantry_result grow_work(struct gantry_comm *comm, struct comm_work *w, uint32_t capacity)
{
	struct comm_launches *l = comm->launches;
	struct comm_work now = {0}, *kept;

	kept = realloc(l->outgrown.works, (l->outgrown.n + 1) * sizeof(*kept));
	if (!kept)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a launch of %u transfers", capacity);
	l->outgrown.works = kept;
	TRY_NOW(works_alloc(comm, &now, 1, capacity));
	if (w->capacity > first_capacity(comm))
		l->outgrown.works[l->outgrown.n++] = *w;
	comm_mu_lock(&comm->mu); /* the watchdog asks which works are busy */
	*w = now;
	comm_mu_unlock(&comm->mu);
	return GANTRY_OK;
}

/*
 * Launches of a communicator follow each other. One on another stream than the last waits for the event behind that. The first
 * time there is none, and it may be too late for one, as the program may have destroyed that stream: the kernel waits then.
 */
static int is_elsewhere(const struct comm_launches *l, const struct comm_work *w)
{
	return l->last_work && (l->last_stream != w->stream || l->last_work->number != w->number);
}

static gantry_result order_work(struct gantry_comm *comm, struct comm_work *w)
{
	struct comm_launches *l = comm->launches;
	struct gantry_device *d = comm->device;

	w->ordered = 0;
	TRY_NOW(d->ops->stream_number(d, w->stream, &w->number));
	if (!is_elsewhere(l, w))
		return GANTRY_OK;
	if (!l->behind)
		TRY_NOW(d->ops->event_create(d, &l->behind));
	w->ordered = l->recorded;
	return w->ordered ? d->ops->stream_wait(d, w->stream, l->behind) : GANTRY_OK;
}

/*
 * All in use: lets the whole of it drain, so that caller and kernels do not take turns on a small machine. Where streams cannot
 * report an error, a wait inside the device would not end after one; and what was launched last may wait for a communicator
 * whose turn comes later.
 */
static gantry_result await_work(struct gantry_comm *comm, const struct comm_work *w, struct gantry_stream *stream)
{
	struct gantry_device *d = comm->device;
	struct gantry_waiter wait;

	gantry_waiter_init(&wait, NULL);
	while (comm_work_busy(w)) {
		TRY_NOW(comm_check(comm));
		if (d->reports && !comm->launches->in_turns)
			TRY_NOW(d->ops->stream_sync(d, stream));
		if (comm_work_busy(w))
			gantry_waiter_idle(&wait, UINT64_MAX);
	}
	return GANTRY_OK;
}

gantry_result comm_work_get(struct gantry_comm *comm, size_t bytes, struct gantry_stream *stream,
			    struct comm_work **ret_work)
{
	struct gantry_device *d = comm->device;
	struct comm_launches *l = comm->launches;
	struct comm_work *w = &l->works[l->count % COMM_WORKS];
	uint32_t capacity = w->capacity, n = (uint32_t)((bytes + xfers_size(1) - 1) / xfers_size(1));
	uint64_t capture;

	TRY_NOW(d->ops->stream_captured(d, stream, &capture));
	if (capture)
		return comm_graph_work(comm, n, stream, capture, ret_work);
	if (comm_graphs_live(comm))
		TRY_NOW(comm_graph_plain_wait(comm, stream));
	if (comm_work_busy(w))
		TRY_NOW(await_work(comm, w, stream));
	if (w->ntimes)
		comm_times_collect(comm, 0);
	if (n > capacity) {
		while (capacity < n)
			capacity *= 2;
		TRY_NOW(grow_work(comm, w, capacity));
	}
	w->stream = stream;
	*ret_work = w;
	return order_work(comm, w);
}

struct comm_order comm_work_order(const struct gantry_comm *comm, const struct comm_work *w)
{
	struct comm_order order = {.end = {.arrived = w->arrived,
					   .word = w->finished_dev,
					   .value = w->expected + 1,
					   .runs = w->runs,
					   .begun = w->begun_dev}};
	const struct comm_launches *l = comm->launches;

	if (!w->captured && !w->ordered && is_elsewhere(l, w)) {
		order.after = l->last_work->finished_dev;
		order.after_value = l->last_work->expected;
	}
	return order;
}

/*
 * A thread that waits for the proxy may as well be the proxy: that saves waking one and waiting for its turn on a CPU.
 * Where there are CPUs for both, and much to copy, they work side by side instead.
 */
enum { DRIVES_MAX = 65536, DRIVES_CPUS = 4 };

int comm_drives(const struct gantry_comm *comm, uint64_t bytes)
{
	return comm->device->sleeps && !comm->bound &&
	       (bytes <= DRIVES_MAX || gantry_wait_limits()->cpus <= DRIVES_CPUS);
}

static gantry_result append_ops(struct gantry_comm *comm, const struct comm_work *w, const struct comm_launch *launch)
{
	struct gantry_proxy_op *last = launch->ops;

	if (!last)
		return GANTRY_OK;
	while (last->next)
		last = last->next;
	if (comm_graphs_live(comm))
		return comm_graph_plain_append(comm, w->stream, launch->ops, last);
	if (launch->drives)
		gantry_proxy_push(comm->proxy, launch->ops, last);
	else
		gantry_proxy_append(comm->proxy, launch->ops, last);
	return GANTRY_OK;
}

static gantry_result launch_plain(struct gantry_comm *comm, struct comm_work *w, const struct gantry_launch *launch)
{
	struct comm_launches *l = comm->launches;
	struct gantry_device *d = comm->device;
	gantry_result r;

	store_relaxed(&w->expected, w->expected + 1); /* the watchdog looks */
	l->count++;
	r = d->ops->launch(d, w->stream, launch);
	l->last_stream = w->stream;
	l->last_work = w;
	l->recorded = false;
	if (r != GANTRY_OK) {
		store_relaxed(&w->expected, w->expected - 1);
		return r;
	}
	if (l->behind) {
		TRY_NOW(d->ops->event_record(d, l->behind, w->stream));
		l->recorded = true;
	}
	return comm_graphs_live(comm) ? comm_graph_plain_record(comm, w->stream) : GANTRY_OK;
}

gantry_result comm_work_launch(struct gantry_comm *comm, struct comm_work *w, const struct comm_launch *launch)
{
	const struct gantry_launch l = {.kernel = launch->kernel,
					.blocks = launch->blocks,
					.lanes = comm->device->sleeps ? 0 : launch->lanes,
					.args = launch->args,
					.args_size = launch->args_size,
					.abort = comm->abort_dev,
					.help = launch->drives && !w->captured ? &comm->help : NULL,
					.yields = comm->help.crowded && !launch->ops,
					.failure = comm->life.failure,
					.eventcounts = launch->eventcount ? launch->eventcount
						       : comm->all_notify ? comm->eventcounts
									  : NULL};

	if (w->captured)
		return comm_graph_launch(comm, w, &l, launch->ops);
	TRY_NOW(append_ops(comm, w, launch));
	if (comm->launches->traced) {
		w->ntimes = launch->ntimes;
		w->launched = gantry_ticks();
	}
	return launch_plain(comm, w, &l);
}

gantry_result comm_launch_transfers(struct gantry_comm *comm, struct comm_work *w, uint32_t n,
				    struct gantry_proxy_op *ops, int drives)
{
	struct gantry_device *d = comm->device;
	uint32_t blocks = (uint32_t)comm->nchannels;
	const struct comm_order order = comm_work_order(comm, w);
	struct gantry_p2p_args args = {.xfers = w->dev.xfers,
				       .first = w->first_dev,
				       .result = comm->result_dev,
				       .end = order.end,
				       .after = order.after,
				       .after_value = order.after_value,
				       .times = w->times_dev};
	const struct comm_launch launch = {.kernel = &gantry_kernel_p2p,
					   .args = &args,
					   .args_size = sizeof(args),
					   .blocks = blocks,
					   .ntimes = n,
					   .ops = ops,
					   .drives = drives};
	int near = 1;

	/* A GPU's kernel works on a copy in its own memory: made by itself, or here if there are many. */
	for (uint32_t b = 0; b < blocks; b++)
		near &= w->first_host[b + 1] - w->first_host[b] <= XFERS_NEAR;
	if (near) {
		args.xfers = w->mapped.xfers;
		args.first = (void *)&w->mapped.xfers[w->capacity];
	} else if (w->dev.at != w->mapped.at) {
		TRY_NOW(d->ops->copy_async(d, w->stream, w->dev.at, w->host.at, xfers_size(n)));
		TRY_NOW(d->ops->copy_async(d, w->stream, w->first_dev, w->first_host, (blocks + 1) * sizeof(uint32_t)));
	}
	return comm_work_launch(comm, w, &launch);
}
