/*
 * Copies that kernels of the GPU's users may be waiting for, and how it is known that they are over.
 *
 * Two things are in the way of such copies, and both are met here as far as a library can:
 *
 *  - Streams share a few queues to the GPU (8, unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise), and what is in one
 *    queue runs in order. A copy that shares the queue of a kernel which waits for that copy would wait for ever. So
 *    there are only two streams for all copies of a process, made when the device is opened, with a priority that
 *    nobody else is likely to use, next to the highest.
 *  - The driver has one lock per GPU and process. Threads that poll events hold each other up, and the program too. So
 *    the GPU itself says how far it is, by a store to host memory in stream order, and who waits looks at that word.
 *
 * What is left: a program that makes the driver wait for the whole GPU while a kernel waits for a copy (loading a
 * kernel for the first time does that, unless CUDA_MODULE_LOADING=EAGER). Then the driver holds its lock, and no copy
 * begins.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "base/log.h"
#include "device/cuda/gpu.h"

enum { WORD_STRIDE = 128, WORDS_SIZE = 4096, LOOKS = 1 << 16 };

gantry_result gantry_cuda_stream_apart(struct cuda_gpu *g, cu_stream *ret_stream)
{
	gantry_result r = GANTRY_OK;
	int least = 0, greatest = 0;

	CU(cu.ctx_get_stream_priority_range(&least, &greatest), "priorities of gpu %d", g->base.index);
	CU(cu.stream_create_with_priority(ret_stream, CUV_STREAM_NON_BLOCKING,
					  greatest + 1 < least ? greatest + 1 : greatest),
	   "create a stream on gpu %d", g->base.index);
out:
	return r;
}

gantry_result gantry_cuda_ways_open(struct cuda_gpu *g)
{
	gantry_result r = GANTRY_OK;
	void *device = NULL;

	for (int i = 0; i < GANTRY_WAYS; i++)
		pthread_mutex_init(&g->ways[i].lock, NULL);
	TRY(gantry_cuda_alloc_mapped(&g->base, WORDS_SIZE, &g->words, &device));
	for (int i = 0; i < GANTRY_WAYS; i++) {
		struct cuda_way *w = &g->ways[i];

		w->word = (uint32_t *)((char *)g->words + i * WORD_STRIDE);
		w->word_dev = (uintptr_t)device + (cu_ptr)(i * WORD_STRIDE);
		TRY(gantry_cuda_stream_apart(g, &w->stream));
	}
out:
	return r;
}

void gantry_cuda_ways_close(struct cuda_gpu *g)
{
	for (int i = 0; i < GANTRY_WAYS; i++)
		if (g->ways[i].stream)
			cu.stream_destroy(g->ways[i].stream);
	if (g->words)
		cu.mem_free_host(g->words);
}

gantry_result gantry_cuda_move(struct gantry_device *dev, enum gantry_way way, void *dst, const void *src, size_t size)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_way *w = &g->ways[way];
	cu_context was = g->ctx;

	if (size == 0)
		return GANTRY_OK;
	ENTER(g, was);
	CU(cu.memcpy_async((uintptr_t)dst, (uintptr_t)src, size, w->stream), "copy %zu bytes from %p to %p", size, src,
	   dst);
	__atomic_store_n(&w->since, 1, __ATOMIC_RELEASE);
out:
	cuda_leave(g, was);
	return r;
}

/* A store that everything before it in the stream is visible with. Older drivers: a memset of one word. */
static unsigned mark(struct cuda_way *w, uint32_t value)
{
	if (cu.stream_write_value32) {
		unsigned e = cu.stream_write_value32(w->stream, w->word_dev, value, 0);

		if (e != CUE_NOT_SUPPORTED)
			return e;
	}
	return cu.memset_d32_async(w->word_dev, value, 1, w->stream);
}

gantry_result gantry_cuda_move_ticket(struct gantry_device *dev, enum gantry_way way, uint64_t *ret_ticket)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_way *w = &g->ways[way];
	cu_context was = g->ctx;

	pthread_mutex_lock(&w->lock);
	ENTER(g, was);
	/* Cleared before the mark: a copy that is begun meanwhile sets it again, and so has a mark to come. */
	if (__atomic_exchange_n(&w->since, 0, __ATOMIC_ACQ_REL)) {
		CU(mark(w, (uint32_t)(w->tickets + 1)), "mark a stream of gpu %d", dev->index);
		w->tickets++;
	}
	*ret_ticket = w->tickets;
out:
	cuda_leave(g, was);
	pthread_mutex_unlock(&w->lock);
	return r;
}

gantry_result gantry_cuda_moved(struct gantry_device *dev, enum gantry_way way, uint64_t ticket)
{
	gantry_result r = GANTRY_AGAIN;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_way *w = &g->ways[way];
	cu_context was = g->ctx;
	unsigned e;

	if ((int32_t)(__atomic_load_n(w->word, __ATOMIC_ACQUIRE) - (uint32_t)ticket) >= 0)
		return GANTRY_OK;
	/* After an error of the GPU the word stays as it is: the driver is asked now and then. */
	if (__atomic_add_fetch(&w->looks, 1, __ATOMIC_RELAXED) % LOOKS)
		return GANTRY_AGAIN;
	ENTER(g, was);
	e = cu.stream_query(w->stream);
	if (e != CUE_NOT_READY)
		CU(e, "look at a stream of gpu %d", dev->index);
out:
	cuda_leave(g, was);
	return r;
}
