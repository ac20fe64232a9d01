/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the program that streams are captured into. The driver's calls for them came with CUDA 12.3. */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "base/log.h"
#include "device/cuda/gpu.h"

/* The context is current. A capture that has failed is still one: whatever is enqueued fails, and says so. */
static unsigned find_capture(const struct gantry_cuda_api *api, cu_stream s, uint64_t *ret_capture, cu_graph *ret_graph)
{
	unsigned status = 0;
	unsigned e = api->stream_is_capturing(s, &status);

	*ret_capture = 0;
	if (e != CUE_SUCCESS || status == CUV_STREAM_CAPTURE_STATUS_NONE)
		return e;
	if (!api->stream_get_capture_info)
		return CUE_NOT_SUPPORTED;
	e = api->stream_get_capture_info(s, &status, ret_capture, ret_graph, NULL, NULL, NULL);
	return e == CUE_SUCCESS && status != CUV_STREAM_CAPTURE_STATUS_ACTIVE ? CUE_STREAM_CAPTURE_INVALIDATED : e;
}

gantry_result gantry_cuda_stream_captured(struct gantry_device *dev, struct gantry_stream *s, uint64_t *ret_capture)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
	cu_graph graph;

	CU(cuda_enter_stream(g, &was), "make gpu %d current", dev->index);
	CU(find_capture(g->api, cuda_stream_of(s)->native, ret_capture, &graph),
	   "what a stream of gpu %d is captured into", dev->index);
out:
	cuda_leave(g, &was);
	return r;
}

static unsigned keep(const struct gantry_cuda_api *api, cu_stream s, void (*gone)(void *ctx), void *ctx)
{
	cu_user_object object;
	uint64_t capture;
	cu_graph graph;
	unsigned e = find_capture(api, s, &capture, &graph);

	if (e == CUE_SUCCESS && !capture)
		e = CUE_INVALID_VALUE;
	if (e == CUE_SUCCESS)
		e = api->user_object_create(&object, ctx, gone, 1, CUV_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	return e == CUE_SUCCESS ? api->graph_retain_user_object(graph, object, 1, CUV_GRAPH_USER_OBJECT_MOVE) : e;
}

gantry_result gantry_cuda_graph_keep(struct gantry_device *dev, struct gantry_stream *s, void (*gone)(void *ctx),
				     void *ctx)
{
	RETURN_CALL(cuda_gpu_of(dev), keep(cuda_api(dev), cuda_stream_of(s)->native, gone, ctx),
		    "keep something for a graph of gpu %d", dev->index);
}

gantry_result gantry_cuda_host_call(struct gantry_device *dev, struct gantry_stream *s, void (*fn)(void *ctx),
				    void *ctx)
{
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->launch_host_func(cuda_stream_of(s)->native, fn, ctx),
		    "call the host from a stream of gpu %d", dev->index);
}

gantry_result gantry_cuda_graph_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	RETURN_CALL(
		cuda_gpu_of(dev),
		cuda_api(dev)->stream_wait_event(cuda_stream_of(s)->native, cuda_event_of(e), CUV_EVENT_WAIT_EXTERNAL),
		"let a graph of gpu %d wait for an event", dev->index);
}

gantry_result gantry_cuda_graph_record(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	RETURN_CALL(cuda_gpu_of(dev),
		    cuda_api(dev)->event_record_with_flags(cuda_event_of(e), cuda_stream_of(s)->native,
							   CUV_EVENT_RECORD_EXTERNAL),
		    "let a graph of gpu %d record an event", dev->index);
}
