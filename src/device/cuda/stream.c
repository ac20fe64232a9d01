/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events.
 *
 * Waiting polls, with the pauses of every waiter of Gantry, and does not block inside the driver: a kernel of ours ends
 * when the launch's abort flag is set, and a poll also sees an error that has broken the context. The context's own way
 * of waiting (the flags of the primary context) is the program's business and is left alone.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <stdlib.h>

#include "base/eventcount.h"
#include "base/log.h"
#include "device/cuda/gpu.h"

/* Nothing notifies when a GPU is done: the longest nap is what a result may be late. */
enum { NAP_NS = 50000 };

gantry_result gantry_cuda_wait(struct cuda_gpu *g, cu_stream stream)
{
	gantry_result r = GANTRY_OK;
	struct gantry_waiter w;
	unsigned e;

	gantry_waiter_init(&w, NULL);
	while ((e = cu.stream_query(stream)) == CUE_NOT_READY)
		gantry_waiter_idle(&w, NAP_NS);
	CU(e, "wait for a stream of gpu %d", g->base.index);
out:
	return r;
}

static gantry_result create(struct gantry_device *dev, int apart, struct gantry_stream **ret_stream)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	struct cuda_stream *s = calloc(1, sizeof(*s));

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a stream");
	ENTER(g, was);
	if (apart)
		TRY(gantry_cuda_stream_apart(g, &s->native));
	else
		CU(cu.stream_create(&s->native, CUV_STREAM_NON_BLOCKING), "create a stream on gpu %d", dev->index);
	s->owned = 1;
	*ret_stream = (struct gantry_stream *)(void *)s;
	s = NULL;
out:
	cuda_leave(g, was);
	free(s);
	return r;
}

gantry_result gantry_cuda_stream_create(struct gantry_device *dev, struct gantry_stream **ret_stream)
{
	return create(dev, 0, ret_stream);
}

gantry_result gantry_cuda_stream_create_apart(struct gantry_device *dev, struct gantry_stream **ret_stream)
{
	return create(dev, 1, ret_stream);
}

gantry_result gantry_cuda_stream_wrap(struct gantry_device *dev, void *native, struct gantry_stream **ret_stream)
{
	gantry_result r = GANTRY_OK;
	struct cuda_stream *s = calloc(1, sizeof(*s));

	(void)dev;
	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a stream");
	s->native = native; /* NULL is the driver's own name for the default stream of the current context */
	*ret_stream = (struct gantry_stream *)(void *)s;
out:
	return r;
}

gantry_result gantry_cuda_stream_destroy(struct gantry_device *dev, struct gantry_stream *stream)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_stream *s = cuda_stream_of(stream);
	cu_context was = g->ctx;

	if (!s)
		return GANTRY_OK;
	ENTER(g, was);
	r = gantry_cuda_wait(g, s->native);
	if (s->owned) {
		unsigned e = cu.stream_destroy(s->native);

		if (r == GANTRY_OK) /* else the first error has been told */
			CU(e, "destroy a stream of gpu %d", dev->index);
	}
out:
	cuda_leave(g, was);
	free(s);
	return r;
}

gantry_result gantry_cuda_stream_query(struct gantry_device *dev, struct gantry_stream *s)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	unsigned e;

	ENTER(g, was);
	e = cu.stream_query(cuda_stream_of(s)->native);
	if (e == CUE_NOT_READY)
		r = GANTRY_AGAIN;
	else
		CU(e, "look at a stream of gpu %d", dev->index);
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_stream_sync(struct gantry_device *dev, struct gantry_stream *s)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;

	ENTER(g, was);
	TRY(gantry_cuda_wait(g, cuda_stream_of(s)->native));
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_stream_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;

	ENTER(g, was);
	CU(cu.stream_wait_event(cuda_stream_of(s)->native, cuda_event_of(e)->native, 0),
	   "let a stream of gpu %d wait for an event", dev->index);
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_copy_async(struct gantry_device *dev, struct gantry_stream *s, void *dst, const void *src,
				     size_t size)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;

	if (size == 0)
		return GANTRY_OK;
	ENTER(g, was);
	CU(cu.memcpy_async((uintptr_t)dst, (uintptr_t)src, size, cuda_stream_of(s)->native),
	   "copy %zu bytes from %p to %p", size, src, dst);
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_copy_rows_async(struct gantry_device *dev, struct gantry_stream *s,
					  const struct gantry_rows *rows)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	struct cu_copy_2d copy = {
		.src_type = CUV_MEMORYTYPE_UNIFIED,
		.src = (uintptr_t)rows->src,
		.src_pitch = rows->src_stride,
		.dst_type = CUV_MEMORYTYPE_UNIFIED,
		.dst = (uintptr_t)rows->dst,
		.dst_pitch = rows->dst_stride,
		.width = rows->width,
		.height = rows->count,
	};

	if (!rows->width || !rows->count)
		return GANTRY_OK;
	ENTER(g, was);
	CU(cu.memcpy_2d_async(&copy, cuda_stream_of(s)->native), "copy %zu rows of %zu bytes from %p to %p",
	   rows->count, rows->width, (const void *)rows->src, (void *)rows->dst);
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_event_create(struct gantry_device *dev, struct gantry_dev_event **ret_event)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	struct cuda_event *e = calloc(1, sizeof(*e));

	if (!e)
		FAIL(GANTRY_ERR_NOMEM, "no memory for an event");
	ENTER(g, was);
	CU(cu.event_create(&e->native, CUV_EVENT_DEFAULT), "create an event on gpu %d", dev->index);
	*ret_event = (struct gantry_dev_event *)(void *)e;
	e = NULL;
out:
	cuda_leave(g, was);
	free(e);
	return r;
}

gantry_result gantry_cuda_event_destroy(struct gantry_device *dev, struct gantry_dev_event *event)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_event *e = cuda_event_of(event);
	cu_context was = g->ctx;

	if (!e)
		return GANTRY_OK;
	ENTER(g, was);
	CU(cu.event_destroy(e->native), "destroy an event of gpu %d", dev->index);
out:
	cuda_leave(g, was);
	free(e);
	return r;
}

gantry_result gantry_cuda_event_record(struct gantry_device *dev, struct gantry_dev_event *e, struct gantry_stream *s)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;

	ENTER(g, was);
	CU(cu.event_record(cuda_event_of(e)->native, cuda_stream_of(s)->native), "record an event on gpu %d",
	   dev->index);
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_event_query(struct gantry_device *dev, struct gantry_dev_event *e)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	unsigned error;

	ENTER(g, was);
	error = cu.event_query(cuda_event_of(e)->native);
	if (error == CUE_NOT_READY)
		r = GANTRY_AGAIN;
	else
		CU(error, "look at an event of gpu %d", dev->index);
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_event_elapsed(struct gantry_device *dev, struct gantry_dev_event *from,
					struct gantry_dev_event *to, double *ret_us)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	unsigned e;
	float ms;

	ENTER(g, was);
	e = cu.event_elapsed_time(&ms, cuda_event_of(from)->native, cuda_event_of(to)->native);
	if (e == CUE_NOT_READY) {
		r = GANTRY_AGAIN;
		goto out;
	}
	CU(e, "time between two events of gpu %d", dev->index);
	*ret_us = 1000.0 * (double)ms;
out:
	cuda_leave(g, was);
	return r;
}
