/* SPDX-License-Identifier: Apache-2.0 */
/* Argument memory of launches, and launching. Nothing is allocated per launch once the sizes have settled. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "comm/report.h"

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
	size_t times = comm->traced ? capacity * sizeof(struct gantry_xfer_time) : 0;

	return times_at(capacity) + (times + 127) / 128 * 128;
}

static void work_place(const struct gantry_comm *comm, struct comm_work *w, uint32_t capacity, char *host, char *dev,
		       char *own)
{
	size_t size = times_at(capacity);

	w->times_host = comm->traced ? (void *)(host + size) : NULL;
	w->times_dev = comm->traced ? (void *)(dev + size) : NULL;
	w->xfers_host = (void *)host;
	w->first_host = (void *)(host + xfers_size(capacity));
	w->finished_host = (void *)(host + size - 128);
	w->finished_dev = (void *)(dev + size - 128);
	w->mapped_dev = (void *)dev;
	w->xfers_dev = (void *)own;
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

	if (w->xfers_dev && (void *)w->xfers_dev != (void *)w->xfers_host)
		d->ops->free(d, w->xfers_dev);
	if (w->xfers_host)
		d->ops->free_mapped(d, w->xfers_host);
}

gantry_result comm_works_init(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;

	comm->traced = *gantry_params()->trace != 0;
	TRY(works_alloc(comm, comm->works, COMM_WORKS, first_capacity(comm)));
	comm->works_first = comm->works[0];
out:
	return r;
}

int comm_work_busy(const struct comm_work *w)
{
	return w->finished_host && load_acquire(w->finished_host) != load_relaxed(&w->expected);
}

int comm_works_busy(const struct gantry_comm *comm)
{
	int n = 0;

	for (int i = 0; i < COMM_WORKS; i++)
		n += comm_work_busy(&comm->works[i]);
	return n;
}

void comm_works_free(struct gantry_comm *comm)
{
	for (int i = 0; i < COMM_WORKS; i++) {
		if (comm->works[i].capacity > first_capacity(comm))
			works_release(comm, &comm->works[i]);
	}
	for (uint32_t i = 0; i < comm->noutgrown; i++)
		works_release(comm, &comm->outgrown[i]);
	free(comm->outgrown);
	works_release(comm, &comm->works_first);
}

/* The memory that was too small is kept to the end: a kernel may wait for its counter, and freeing may wait for
 * kernels. */
static gantry_result grow(struct gantry_comm *comm, struct comm_work *w, uint32_t capacity)
{
	gantry_result r = GANTRY_OK;
	struct comm_work now = {0}, *kept;

	kept = realloc(comm->outgrown, (comm->noutgrown + 1) * sizeof(*kept));
	if (!kept)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a launch of %u transfers", capacity);
	comm->outgrown = kept;
	TRY(works_alloc(comm, &now, 1, capacity));
	if (w->capacity > first_capacity(comm))
		comm->outgrown[comm->noutgrown++] = *w;
	comm_mu_lock(&comm->mu); /* the watchdog asks which works are busy */
	*w = now;
	comm_mu_unlock(&comm->mu);
out:
	return r;
}

gantry_result comm_work_get(struct gantry_comm *comm, uint32_t n, struct gantry_stream *stream,
			    struct comm_work **ret_work)
{
	gantry_result r = GANTRY_OK;
	struct comm_work *w = &comm->works[comm->launches % COMM_WORKS];
	uint32_t capacity = w->capacity;
	struct gantry_waiter wait;

	gantry_waiter_init(&wait, NULL);
	/* All in use: let the whole of it drain, so that caller and kernels do not take turns on a small machine. */
	while (comm_work_busy(w)) {
		TRY(comm_check(comm));
		TRY(comm->device->ops->stream_sync(comm->device, stream));
		if (comm_work_busy(w))
			gantry_waiter_idle(&wait, UINT64_MAX);
	}
	if (w->ntimes)
		comm_times_collect(comm, 0);
	if (n > capacity) {
		while (capacity < n)
			capacity *= 2;
		TRY(grow(comm, w, capacity));
	}
	*ret_work = w;
out:
	return r;
}

gantry_result comm_work_launch(struct gantry_comm *comm, struct comm_work *w, uint32_t n, uint32_t blocks,
			       struct gantry_stream *stream)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *d = comm->device;
	struct gantry_p2p_args args = {.xfers = w->xfers_dev,
				       .first = w->first_dev,
				       .result = comm->result_dev,
				       .finished = w->finished_dev,
				       .times = w->times_dev};
	struct gantry_launch l = {.kernel = &gantry_kernel_p2p,
				  .blocks = blocks,
				  .args = &args,
				  .args_size = sizeof(args),
				  .abort = comm->abort_dev,
				  .eventcounts = comm->all_notify ? comm->eventcounts : NULL};
	int near = 1;

	if (comm->last_work && comm->last_stream != stream) {
		args.after = comm->last_work->finished_dev;
		args.after_value = comm->last_work->expected;
	}
	/* A GPU's kernel works on a copy in its own memory: made by itself, or here if there are many. */
	for (uint32_t b = 0; b < blocks; b++)
		near &= w->first_host[b + 1] - w->first_host[b] <= XFERS_NEAR;
	if (near) {
		args.xfers = w->mapped_dev;
		args.first = (void *)((char *)w->mapped_dev + xfers_size(w->capacity));
	} else if (w->xfers_dev != w->mapped_dev) {
		TRY(d->ops->copy_async(d, stream, w->xfers_dev, w->xfers_host, n * sizeof(struct gantry_xfer)));
		TRY(d->ops->copy_async(d, stream, w->first_dev, w->first_host, (blocks + 1) * sizeof(uint32_t)));
	}
	store_relaxed(&w->expected, w->expected + blocks); /* the watchdog looks */
	comm->launches++;
	if (comm->traced) {
		w->ntimes = n;
		w->launched = gantry_ticks();
	}
	r = d->ops->launch(d, stream, &l);
	comm->last_stream = stream;
	comm->last_work = w;
	if (r != GANTRY_OK)
		store_relaxed(&w->expected, w->expected - blocks);
out:
	return r;
}
