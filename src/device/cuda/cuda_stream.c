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

unsigned gantry_cuda_wait(const struct cuda_gpu *g, cu_stream stream)
{
	struct gantry_waiter w;
	unsigned e;

	gantry_waiter_init(&w, NULL);
	while ((e = g->api->stream_query(stream)) == CUE_NOT_READY)
		gantry_waiter_idle(&w, NAP_NS);
	return e;
}

/* With a priority that other code is unlikely to use, next to the highest. */
unsigned gantry_cuda_stream_apart(const struct cuda_gpu *g, cu_stream *ret_stream)
{
	int least = 0, greatest = 0;
	unsigned e = g->api->ctx_get_stream_priority_range(&least, &greatest);

	if (e != CUE_SUCCESS)
		return e;
	return g->api->stream_create_with_priority(ret_stream, CUV_STREAM_NON_BLOCKING,
						   greatest + 1 < least ? greatest + 1 : greatest);
}

static gantry_result create(struct gantry_device *dev, bool apart, struct gantry_stream **ret_stream)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
	struct cuda_stream *s = calloc(1, sizeof(*s));

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a stream");
	ENTER(g, was);
	CU(apart ? gantry_cuda_stream_apart(g, &s->native) : g->api->stream_create(&s->native, CUV_STREAM_NON_BLOCKING),
	   "create a stream on gpu %d", dev->index);
	s->owned = 1;
	*ret_stream = (struct gantry_stream *)(void *)s;
	s = NULL;
out:
	cuda_leave(g, &was);
	free(s);
	return r;
}

gantry_result gantry_cuda_stream_create(struct gantry_device *dev, struct gantry_stream **ret_stream)
{
	return create(dev, false, ret_stream);
}

gantry_result gantry_cuda_stream_create_apart(struct gantry_device *dev, struct gantry_stream **ret_stream)
{
	return create(dev, true, ret_stream);
}

gantry_result gantry_cuda_stream_wrap(struct gantry_device *dev, void *native, struct gantry_stream **ret_stream)
{
	struct cuda_stream *s = calloc(1, sizeof(*s));

	(void)dev;
	if (!s)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a stream");
	s->native = native; /* NULL is the driver's own name for the default stream of the current context */
	*ret_stream = (struct gantry_stream *)(void *)s;
	return GANTRY_OK;
}

/* A wrapped stream is not ours to destroy. The first error is the one reported. */
static unsigned end_stream(const struct cuda_gpu *g, const struct cuda_stream *s)
{
	unsigned e = gantry_cuda_wait(g, s->native),
		 destroyed = s->owned ? g->api->stream_destroy(s->native) : CUE_SUCCESS;

	return e != CUE_SUCCESS ? e : destroyed;
}

gantry_result gantry_cuda_stream_destroy(struct gantry_device *dev, struct gantry_stream *stream)
{
	struct cuda_stream *s = cuda_stream_of(stream), ended;

	if (!s)
		return GANTRY_OK;
	ended = *s;
	free(s);
	RETURN_CALL(cuda_gpu_of(dev), end_stream(cuda_gpu_of(dev), &ended), "destroy a stream of gpu %d", dev->index);
}

/* Older drivers do not number streams: there the handle is all there is. */
gantry_result gantry_cuda_stream_number(struct gantry_device *dev, struct gantry_stream *s, uint64_t *ret_number)
{
	unsigned long long number = 0;
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);

	if (g->api->stream_get_id) {
		CU(cuda_enter_stream(g, &was), "make gpu %d current", dev->index);
		CU(g->api->stream_get_id(cuda_stream_of(s)->native, &number), "number a stream of gpu %d", dev->index);
	}
	*ret_number = number;
out:
	cuda_leave(g, &was);
	return r;
}

gantry_result gantry_cuda_stream_query(struct gantry_device *dev, struct gantry_stream *s)
{
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->stream_query(cuda_stream_of(s)->native),
		    "look at a stream of gpu %d", dev->index);
}

gantry_result gantry_cuda_stream_sync(struct gantry_device *dev, struct gantry_stream *s)
{
	RETURN_CALL(cuda_gpu_of(dev), gantry_cuda_wait(cuda_gpu_of(dev), cuda_stream_of(s)->native),
		    "wait for a stream of gpu %d", dev->index);
}

gantry_result gantry_cuda_stream_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->stream_wait_event(cuda_stream_of(s)->native, cuda_event_of(e), 0),
		    "let a stream of gpu %d wait for an event", dev->index);
}

gantry_result gantry_cuda_copy_async(struct gantry_device *dev, struct gantry_stream *s, void *dst, const void *src,
				     size_t size)
{
	if (size == 0)
		return GANTRY_OK;
	RETURN_CALL(cuda_gpu_of(dev),
		    cuda_api(dev)->memcpy_async((uintptr_t)dst, (uintptr_t)src, size, cuda_stream_of(s)->native),
		    "copy %zu bytes from %p to %p", size, src, dst);
}

gantry_result gantry_cuda_copy_rows_async(struct gantry_device *dev, struct gantry_stream *s,
					  const struct gantry_rows *rows)
{
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
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->memcpy_2d_async(&copy, cuda_stream_of(s)->native),
		    "copy %zu rows of %zu bytes from %p to %p", rows->count, rows->width, (const void *)rows->src,
		    (void *)rows->dst);
}

gantry_result gantry_cuda_event_create(struct gantry_device *dev, struct gantry_dev_event **ret_event)
{
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->event_create((cu_event *)(void *)ret_event, CUV_EVENT_DEFAULT),
		    "create an event on gpu %d", dev->index);
}

gantry_result gantry_cuda_event_destroy(struct gantry_device *dev, struct gantry_dev_event *e)
{
	if (!e)
		return GANTRY_OK;
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->event_destroy(cuda_event_of(e)), "destroy an event of gpu %d",
		    dev->index);
}

gantry_result gantry_cuda_event_record(struct gantry_device *dev, struct gantry_dev_event *e, struct gantry_stream *s)
{
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->event_record(cuda_event_of(e), cuda_stream_of(s)->native),
		    "record an event on gpu %d", dev->index);
}

gantry_result gantry_cuda_event_query(struct gantry_device *dev, struct gantry_dev_event *e)
{
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->event_query(cuda_event_of(e)), "look at an event of gpu %d",
		    dev->index);
}

static unsigned elapsed_us(const struct gantry_cuda_api *api, cu_event from, cu_event to, double *ret_us)
{
	float ms = 0;
	unsigned e = api->event_elapsed_time(&ms, from, to);

	if (e == CUE_SUCCESS)
		*ret_us = 1000.0 * (double)ms;
	return e;
}

gantry_result gantry_cuda_event_elapsed(struct gantry_device *dev, struct gantry_dev_event *from,
					struct gantry_dev_event *to, double *ret_us)
{
	RETURN_CALL(cuda_gpu_of(dev), elapsed_us(cuda_api(dev), cuda_event_of(from), cuda_event_of(to), ret_us),
		    "time between two events of gpu %d", dev->index);
}
