/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin launches no kernel and has no stream: NCCL's kernels unpack, and copies go through the device's own queues.
 * So it has a GPU without our kernels, and of the host device, for machines without a GPU, its memory only. What is
 * defined here stands in for device/cuda/cuda_launch.c and device/host/host_device.c, which are not linked then.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include <stdio.h>

#include "base/log.h"
#include "device/cuda/gpu.h"
#include "device/host/host.h"

void gantry_cuda_kernels_load(struct cuda_gpu *g)
{
	snprintf(g->no_kernels, sizeof(g->no_kernels), "the plugin contains no kernels");
}

gantry_result gantry_cuda_launch(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	(void)s, (void)l;
	FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "gpu %d: the plugin contains no kernels", dev->index);
}

static void host_close(struct gantry_device *dev)
{
	(void)dev;
}

/* Copies are over when they return: there is nothing to wait for. */
gantry_result gantry_host_queue_copy(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst,
				     const void *src, size_t size)
{
	(void)queue;
	return gantry_host_copy(dev, dst, src, size);
}

gantry_result gantry_host_queue_store(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst,
				      uint64_t value)
{
	(void)dev, (void)queue;
	store_seq((uint64_t *)dst, value);
	return GANTRY_OK;
}

gantry_result gantry_host_queue_fence(struct gantry_device *dev, enum gantry_copy_queue queue, uint64_t *ret_fence)
{
	(void)dev, (void)queue;
	*ret_fence = 0;
	return GANTRY_OK;
}

gantry_result gantry_host_fence_reached(struct gantry_device *dev, enum gantry_copy_queue queue, uint64_t fence)
{
	(void)dev, (void)queue, (void)fence;
	return GANTRY_OK;
}

gantry_result gantry_host_flush_remote_writes(struct gantry_device *dev)
{
	(void)dev;
	return GANTRY_OK;
}

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define OP(name, params)
#define KERNEL_OP(name, params)                                                                                        \
	static gantry_result no_##name params                                                                          \
	{                                                                                                              \
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "the host device of the plugin has no " #name);                       \
	}
#include "device/ops.def"

static const struct gantry_device_ops host_ops = {
	.close = host_close,
#define OP(name, params) .name = gantry_host_##name,
#define KERNEL_OP(name, params) .name = no_##name,
#include "device/ops.def"
};

gantry_result gantry_device_host(struct gantry_device **ret_dev)
{
	static struct gantry_device host = {
		.ops = &host_ops, .kind = GANTRY_DEVICE_HOST, .numa_node = -1, .name = "host memory"};

	*ret_dev = &host;
	return GANTRY_OK;
}
