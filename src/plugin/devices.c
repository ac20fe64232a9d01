/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin launches no kernel and has no stream: NCCL's kernels unpack, and copies go through the device's own queues.
 * So it has a GPU without our kernels, and of the host device, for machines without a GPU, its memory only. What is
 * defined here stands in for device/cuda/launch.c and device/host/device.c, which are not linked then.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include <stdio.h>

#include "base/log.h"
#include "device/cuda/gpu.h"
#include "device/host/host.h"

void gantry_cuda_kernels_load(struct cuda_gpu *g)
{
	snprintf(g->no_kernels, sizeof(g->no_kernels), "the plugin has no kernels");
}

gantry_result gantry_cuda_launch(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	(void)s, (void)l;
	FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "gpu %d: the plugin has no kernels", dev->index);
}

static void host_close(struct gantry_device *dev)
{
	(void)dev;
}

/* Copies are over when they return: there is nothing to wait for. */
static gantry_result host_move(struct gantry_device *dev, enum gantry_way way, void *dst, const void *src, size_t size)
{
	(void)way;
	return gantry_host_copy(dev, dst, src, size);
}

static gantry_result host_move_ticket(struct gantry_device *dev, enum gantry_way way, uint64_t *ret_ticket)
{
	(void)dev, (void)way;
	*ret_ticket = 0;
	return GANTRY_OK;
}

static gantry_result host_moved(struct gantry_device *dev, enum gantry_way way, uint64_t ticket)
{
	(void)dev, (void)way, (void)ticket;
	return GANTRY_OK;
}

static gantry_result host_flush_remote_writes(struct gantry_device *dev)
{
	(void)dev;
	return GANTRY_OK;
}

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define LACKS(entry, ...)                                                                                              \
	static gantry_result no_##entry(struct gantry_device *dev, __VA_ARGS__)                                        \
	{                                                                                                              \
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "the host device of the plugin has no " #entry);                      \
	}
LACKS(copy_async, struct gantry_stream *s, void *dst, const void *src, size_t size)
LACKS(copy_rows_async, struct gantry_stream *s, const struct gantry_rows *rows)
LACKS(stream_create, struct gantry_stream **ret_stream)
LACKS(stream_wrap, void *native, struct gantry_stream **ret_stream)
LACKS(stream_use, struct gantry_stream *s)
LACKS(stream_wait, struct gantry_stream *s, struct gantry_dev_event *e)
LACKS(event_create, struct gantry_dev_event **ret_event)
LACKS(event_use, struct gantry_dev_event *e)
LACKS(event_record, struct gantry_dev_event *e, struct gantry_stream *s)
LACKS(event_elapsed, struct gantry_dev_event *from, struct gantry_dev_event *to, double *ret_us)
LACKS(launch, struct gantry_stream *s, const struct gantry_launch *l)
LACKS(peer_access, struct gantry_device *other, int *ret_can)
LACKS(ipc_export, void *base, size_t size, struct gantry_ipc_handle *ret_handle)
LACKS(ipc_open, const struct gantry_ipc_handle *handle, void **ret_ptr)
LACKS(ipc_close, void *ptr)

static const struct gantry_device_ops host_ops = {
	.close = host_close,
	.alloc = gantry_host_alloc,
	.free = gantry_host_free,
	.alloc_mapped = gantry_host_alloc_mapped,
	.free_mapped = gantry_host_free,
	.map_host = gantry_host_map,
	.unmap_host = gantry_host_unmap,
	.pointer = gantry_host_pointer,
	.copy = gantry_host_copy,
	.move = host_move,
	.move_ticket = host_move_ticket,
	.moved = host_moved,
	.dmabuf_export = gantry_host_dmabuf_export,
	.flush_remote_writes = host_flush_remote_writes,
	.copy_async = no_copy_async,
	.copy_rows_async = no_copy_rows_async,
	.stream_create = no_stream_create,
	.stream_create_apart = no_stream_create,
	.stream_wrap = no_stream_wrap,
	.stream_destroy = no_stream_use,
	.stream_query = no_stream_use,
	.stream_sync = no_stream_use,
	.stream_wait = no_stream_wait,
	.event_create = no_event_create,
	.event_destroy = no_event_use,
	.event_record = no_event_record,
	.event_query = no_event_use,
	.event_elapsed = no_event_elapsed,
	.launch = no_launch,
	.peer_access = no_peer_access,
	.ipc_export = no_ipc_export,
	.ipc_open = no_ipc_open,
	.ipc_close = no_ipc_close,
};

gantry_result gantry_device_host(struct gantry_device **ret_dev)
{
	static struct gantry_device host = {
		.ops = &host_ops, .kind = GANTRY_DEVICE_HOST, .numa_node = -1, .name = "host memory"};

	*ret_dev = &host;
	return GANTRY_OK;
}
