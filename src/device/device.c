/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of gantry/device.h: they pick the device by its kind and go through its table. */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "device/device.h"

#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "device/freed.h"

#define AWAIT_NS 10000000000ull

const struct gantry_device_traits *gantry_traits_of_kind(int kind)
{
	static const struct gantry_device_traits none,
		kinds[] = {
			[GANTRY_DEVICE_HOST] = {.cpu_reads_memory = true,
						.ll128_host = true,
						.channels = 1,
						.p2p_step = 128u << 10,
						.net_step = 4u << 20,
						.coll_step = 256u << 10,
						.dmabuf_why =
							"host memory is exported through /dev/udmabuf, which cannot be "
							"opened",
						.dmabuf_help = "modprobe udmabuf, and be allowed to open /dev/udmabuf"},
			[GANTRY_DEVICE_CUDA] = {.needs_own_copy = true,
						.calls_may_wait = true,
						.has_own_clock = true,
						.link_per_channel = true,
						.channels = 8,
						.p2p_step = 512u << 10,
						.net_step = 1u << 20,
						.coll_step = 512u << 10,
						.dmabuf_why = "the GPU driver cannot export dma-buf",
						.dmabuf_help = "NVIDIA's open kernel modules, CUDA 11.7 or later"},
			[GANTRY_DEVICE_HIP] = {.needs_own_copy = true,
					       .calls_may_wait = true,
					       .has_own_clock = true,
					       .link_per_channel = true,
					       .channels = 8,
					       .p2p_step = 512u << 10,
					       .net_step = 1u << 20,
					       .coll_step = 512u << 10,
					       .dmabuf_why = "HIP memory cannot be exported as dma-buf yet",
					       .dmabuf_help = "a GPU with the CUDA driver"},
		};

	return kind >= 0 && (size_t)kind < sizeof(kinds) / sizeof(*kinds) ? &kinds[kind] : &none;
}

gantry_result gantry_device_open(enum gantry_device_kind kind, int index, struct gantry_device **ret_dev)
{
	switch (kind) {
	case GANTRY_DEVICE_HOST:
		if (index != 0)
			FAIL_NOW(GANTRY_ERR_INVALID, "host device %d does not exist: the only one is 0", index);
		return gantry_device_host(ret_dev);
	case GANTRY_DEVICE_CUDA:
		return gantry_device_cuda(index, ret_dev);
	case GANTRY_DEVICE_HIP:
		return gantry_device_hip(index, ret_dev);
	}
	FAIL_NOW(GANTRY_ERR_INVALID, "unknown device kind %d", (int)kind);
}

void gantry_device_close(struct gantry_device *dev)
{
	if (dev)
		dev->ops->close(dev);
}

const char *gantry_device_name(const struct gantry_device *dev)
{
	return dev->name;
}

gantry_result gantry_mem_free(struct gantry_device *dev, void *ptr)
{
	struct gantry_mem_info info;
	gantry_result r = GANTRY_AGAIN;

	gantry_log_trying(1); /* free says what is wrong with it */
	if (ptr)
		r = dev->ops->pointer(dev, ptr, &info);
	gantry_log_trying(0);
	if (r == GANTRY_OK && info.base)
		gantry_freed_put(info.base, info.size);
	return dev->ops->free(dev, ptr);
}

/* clang-format off */
#define PASS_ON(function, op, params, args)                                                                            \
	gantry_result function params                                                                                  \
	{                                                                                                              \
		return dev->ops->op args;                                                                              \
	}
PASS_ON(gantry_mem_alloc, alloc, (struct gantry_device *dev, size_t size, void **ret_ptr), (dev, size, ret_ptr))
PASS_ON(gantry_mem_copy, copy, (struct gantry_device *dev, void *dst, const void *src, size_t size),
	(dev, dst, src, size))
PASS_ON(gantry_stream_create, stream_create, (struct gantry_device *dev, struct gantry_stream **ret_stream),
	(dev, ret_stream))
PASS_ON(gantry_stream_wrap, stream_wrap, (struct gantry_device *dev, void *native, struct gantry_stream **ret_stream),
	(dev, native, ret_stream))
PASS_ON(gantry_stream_sync, stream_sync, (struct gantry_device *dev, struct gantry_stream *stream), (dev, stream))
PASS_ON(gantry_stream_query, stream_query, (struct gantry_device *dev, struct gantry_stream *stream), (dev, stream))
PASS_ON(gantry_stream_destroy, stream_destroy, (struct gantry_device *dev, struct gantry_stream *stream), (dev, stream))
/* clang-format on */

gantry_result gantry_fence_await(struct gantry_device *dev, enum gantry_copy_queue queue, uint64_t fence)
{
	uint64_t deadline = gantry_now_ns() + AWAIT_NS;
	struct gantry_waiter w;
	gantry_result r;

	gantry_waiter_init(&w, NULL);
	while ((r = dev->ops->fence_reached(dev, queue, fence)) == GANTRY_AGAIN) {
		gantry_waiter_idle(&w, 0);
		if (w.yields && gantry_now_ns() > deadline)
			return GANTRY_ERR_TIMEOUT;
	}
	return r;
}
