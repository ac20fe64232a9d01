/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU behind device.h's table: shared by the files of this folder. They reach the driver through a GPU's own table of
 * calls (struct gantry_cuda_api); what tables cannot say is in struct cuda_driver. There are two drivers: NVIDIA's, and
 * AMD's HIP runtime (device/hip; docs/design/0046-hip.md).
 */
#ifndef GANTRY_DEVICE_CUDA_GPU_H
#define GANTRY_DEVICE_CUDA_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/mutex.h"
#include "device/cuda/driver.h"
#include "device/device.h"

enum {
	CUDA_WARP = 32,
	CUDA_MAX_LANES = 512, /* of any kernel */
	CUDA_MODULES = 4,
	CUDA_MAX_BLOCKS = INT32_MAX,
	CUDA_MAX_GPUS = 64, /* bits of `peers` */
};

enum { CUDA_REQUESTS = 4096 };

/* A copy that is wanted, or a word to be stored: then src is dst, so that it touches what dst does. */
struct cuda_request {
	cu_ptr dst, src;
	size_t size;
	bool store;
	uint64_t value;
};

/* A copy queue: copy_queue.c. */
MUTEX_KIND(cuda_queue_mu);
MUTEX_KIND(cuda_gpu_mu);
struct cuda_copy_queue {
	struct cuda_queue_mu lock; /* of the requests */
	struct cuda_request requests[CUDA_REQUESTS];
	uint64_t put, taken; /* requests so far, and those taken to the driver; atomic, written with the lock */
	uint64_t bytes;	     /* of those that wait, or a little more; with the lock */
	uint64_t wanted;     /* atomic: the highest fence that was given out */
	int at_driver;	     /* atomic: a thread is making the driver calls, for all */
	gantry_result error; /* atomic: nothing is copied any more */

	cu_stream stream; /* owned */
	uint32_t *word;	  /* in mapped memory: so many requests' copies are over; written by the GPU */
	cu_ptr word_dev;  /* the same for the GPU */
	uint64_t fenced;  /* atomic: what the word will be; written by the thread inside the driver */
	uint64_t
		*value; /* in mapped memory: a word on its way to memory that takes no stores; of that thread, as is: */
	bool value_used;
};

struct cuda_gpu;

/* A vendor's driver: cuda_driver.c, device/hip/hip_driver.c. */
struct cuda_driver {
	enum gantry_device_kind kind;
	const char *name;			      /* in texts: "CUDA" */
	const char *compiler;			      /* that makes kernels for it */
	const struct gantry_cuda_api *api;	      /* borrowed; complete once `load` has returned OK */
	gantry_result (*load)(char *why, size_t len); /* called once; initialises the driver; logs nothing */
	void (*describe)(struct cuda_gpu *g);	      /* what only it says about a GPU; g->device is known */
	gantry_result (*flush)(struct cuda_gpu *g);   /* flush_remote_writes; the context is not current */
	const unsigned char *(*image)(const struct gantry_kernel_set *set); /* NULL: built without its compiler */
};
extern const struct cuda_driver gantry_driver_cuda, gantry_driver_hip;

struct cuda_gpu {
	struct gantry_device base; /* first: a struct gantry_device * is this */
	const struct cuda_driver *driver;
	const struct gantry_cuda_api *api; /* the driver's */
	uint32_t refs;			   /* under the lock of cuda_device.c */
	cu_device device;
	cu_context ctx; /* the primary context: the one that the CUDA runtime, PyTorch and NCCL use */
	cu_stream side; /* non-blocking, for copies and clearing that must not wait for any kernel */
	struct cuda_copy_queue queues[GANTRY_COPY_QUEUES];
	void *words; /* owned, mapped: theirs */
	uint32_t sms;
	bool stores;			    /* words of 64 bits in stream order */
	int writes_ordering, flush_options; /* of NICs' writes: what the CUDA driver says */
	uint32_t *hdp_flush;		    /* borrowed; a register of an AMD GPU: hip_driver.c. NULL: there is none */
	uint64_t peers;			    /* atomic: GPUs whose memory kernels here may address */

	cu_module modules[CUDA_MODULES]; /* one per set of kernels; none: `no_kernels` says why launches fail */
	uint32_t nmodules;
	char no_kernels[128];
	cu_function functions[GANTRY_KERNELS_MAX];
	/* atomic: how many blocks of so many warps run at the same time; 0: not asked yet */
	uint32_t fit[GANTRY_KERNELS_MAX][CUDA_MAX_LANES / CUDA_WARP + 1];

	struct cuda_gpu_mu lock; /* ipcs */
	struct gantry_list ipcs; /* what ipc_open has mapped */
};

struct cuda_stream {
	cu_stream native;
	int owned;
};

static inline struct cuda_gpu *cuda_gpu_of(struct gantry_device *dev)
{
	return (struct cuda_gpu *)dev;
}
static inline struct cuda_stream *cuda_stream_of(struct gantry_stream *s)
{
	return (struct cuda_stream *)(void *)s;
}
static inline const struct gantry_cuda_api *cuda_api(struct gantry_device *dev)
{
	return cuda_gpu_of(dev)->api;
}
/* An event is the driver's own. */
static inline cu_event cuda_event_of(struct gantry_dev_event *e)
{
	return (cu_event)(void *)e;
}

/*
 * Every call of the driver is made between these two, as its context is a property of the thread. The caller's own is
 * put back, because a program that uses the CUDA runtime has chosen its GPU by it. Where they are the same, which is
 * usual, this costs one read of a thread's variable; so nothing is cached here, and nothing can be stale.
 *
 * The capture mode is such a property, too. While the program captures a graph, on this thread or another, the driver
 * refuses calls that might be meant for it, such as to get memory or to look at another stream. None of ours is, so
 * they are made in relaxed mode. What only adds to the program's stream (a launch) does without: cuda_enter_stream.
 */
struct cuda_was {
	cu_context ctx;
	unsigned mode;
};
static inline struct cuda_was cuda_here(const struct cuda_gpu *g)
{
	return (struct cuda_was){.ctx = g->ctx, .mode = CUV_STREAM_CAPTURE_MODE_RELAXED};
}
static inline unsigned cuda_enter_stream(struct cuda_gpu *g, struct cuda_was *ret_was)
{
	unsigned e = g->api->ctx_get_current(&ret_was->ctx);

	ret_was->mode = CUV_STREAM_CAPTURE_MODE_RELAXED;
	if (e != CUE_SUCCESS || ret_was->ctx == g->ctx)
		return e;
	return g->api->ctx_set_current(g->ctx);
}
static inline unsigned cuda_enter(struct cuda_gpu *g, struct cuda_was *ret_was)
{
	unsigned e = cuda_enter_stream(g, ret_was);

	return e == CUE_SUCCESS ? g->api->thread_exchange_capture_mode(&ret_was->mode) : e;
}
static inline void cuda_leave(struct cuda_gpu *g, struct cuda_was *was)
{
	if (was->mode != CUV_STREAM_CAPTURE_MODE_RELAXED)
		g->api->thread_exchange_capture_mode(&was->mode);
	if (was->ctx != g->ctx)
		g->api->ctx_set_current(was->ctx);
}
/* In functions with `r` and `out`; `was` starts as cuda_here(g), so that leaving without having entered does nothing. */
#define ENTER(g, was) CU(cuda_enter((g), &(was)), "make gpu %d current", (g)->base.index)
/* The end of an operation that is one call of the driver. NOT_READY is AGAIN, without a line in the log. */
#define RETURN_CALL(gpu, call, ...)                                                                                    \
	do {                                                                                                           \
		struct cuda_gpu *cu_gpu = (gpu);                                                                       \
		struct cuda_was cu_was = cuda_here(cu_gpu);                                                            \
		unsigned cu_error = cuda_enter(cu_gpu, &cu_was);                                                       \
		if (cu_error == CUE_SUCCESS)                                                                           \
			cu_error = (call);                                                                             \
		cuda_leave(cu_gpu, &cu_was);                                                                           \
		if (cu_error == CUE_SUCCESS || cu_error == CUE_NOT_READY)                                              \
			return cu_error == CUE_SUCCESS ? GANTRY_OK : GANTRY_AGAIN;                                     \
		return gantry_cuda_fail(cu_gpu->api, cu_error, __FILE__, __LINE__, __VA_ARGS__);                       \
	} while (0)

/* cuda_device.c: what gantry_device_cuda, _hip and their counts do. */
gantry_result gantry_cuda_open(const struct cuda_driver *d, int index, struct gantry_device **ret_dev);
int gantry_cuda_count(const struct cuda_driver *d, char *why, size_t len);
int gantry_cuda_attribute(const struct cuda_gpu *g, unsigned attribute); /* 0 where the driver does not know it */
/* cuda_launch.c: finds the kernels; that there are none is no error until something is launched. */
void gantry_cuda_kernels_load(struct cuda_gpu *g);
static inline void cuda_unload_kernels(struct cuda_gpu *g)
{
	while (g->nmodules)
		g->api->module_unload(g->modules[--g->nmodules]);
}
/* cuda_memory.c: unmaps what was never closed. */
void gantry_cuda_ipc_close_all(struct cuda_gpu *g);
/* cuda_stream.c: returns when everything in the stream is done, as the driver's calls do; the context is current. */
unsigned gantry_cuda_wait(const struct cuda_gpu *g, cu_stream stream);
unsigned gantry_cuda_stream_apart(const struct cuda_gpu *g,
				  cu_stream *ret_stream); /* for stream_create_apart and the device's own; the same */

#define OP(name, params) gantry_result gantry_cuda_##name params;
#include "device/ops.def"

/* copy_queue.c. The context is current. */
gantry_result gantry_cuda_queues_open(struct cuda_gpu *g);
void gantry_cuda_queues_close(struct cuda_gpu *g);

#endif
