/*
 * Copies that kernels of the GPU's users may be waiting for, and how it is known that they are over.
 *
 * Three things are in the way of such copies, and all are met here as far as a library can:
 *
 *  - Streams share a few queues to the GPU (8, unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise), and what is in one
 *    queue runs in order. A copy that shares the queue of a kernel which waits for that copy would wait for ever. So
 *    there are only two streams for all copies of a process, made when the device is opened, with a priority that
 *    nobody else is likely to use, next to the highest.
 *  - The driver has one lock per GPU and process. Threads that begin copies or poll events hold each other up, several
 *    times as long as a call takes. So one thread, the mover, makes all the calls, and who wants a copy leaves a note;
 *    and the GPU itself says how far it is, by a store to host memory in stream order, and who waits looks at that
 *    word.
 *  - A copy costs microseconds, however small. Notes about neighbours become one copy while they wait. So that they
 *    wait when it helps and not when it does not, the GPU has two batches at a time and no more: while it works on
 *    one, the next is ready, and what comes after gathers.
 *
 * What is left: a program that makes the driver wait for the whole GPU while a kernel waits for a copy (loading a
 * kernel for the first time does that, unless CUDA_MODULE_LOADING=EAGER). Then the driver holds its lock, and no copy
 * begins.
 *
 * Order. A ticket is the number of notes that there were when it was taken; the word is the number of notes whose
 * copies are over. A note that is widened by a neighbour after a ticket was taken only makes that ticket wait for more.
 * Bytes that a note's source holds are visible to the mover by the lock of the queue, and to the GPU by the driver's
 * call.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/gpu.h"

enum { WORD_STRIDE = 128, WORDS_SIZE = 4096, LOOK_BACK = 8, BATCH = 64, NAP_NS = 100000, ASK_NS = 100000000 };
#define FULL_NS 10000000000ull /* how long a note waits for room */

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
	pthread_mutex_init(&g->mover.lock, NULL);
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
	if (g->mover.runs) {
		__atomic_store_n(&g->mover.stop, 1, __ATOMIC_SEQ_CST);
		gantry_door_ring(&g->mover.door);
		pthread_join(g->mover.thread, NULL);
	}
	for (int i = 0; i < GANTRY_WAYS; i++)
		if (g->ways[i].stream)
			cu.stream_destroy(g->ways[i].stream);
	if (g->words)
		cu.mem_free_host(g->words);
}

/* ---- the mover ---- */

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

static int reached(const struct cuda_way *w, uint64_t ticket)
{
	return (int32_t)(__atomic_load_n(w->word, __ATOMIC_ACQUIRE) - (uint32_t)ticket) >= 0;
}

static void fail(struct cuda_way *w, gantry_result r)
{
	__atomic_store_n(&w->error, r, __ATOMIC_RELEASE);
}

/* Takes the oldest notes. */
static uint32_t take(struct cuda_way *w, struct cuda_note *ret_notes)
{
	uint32_t n = 0;

	pthread_mutex_lock(&w->lock);
	while (n < BATCH && w->taken < w->put)
		ret_notes[n++] = w->notes[w->taken++ % CUDA_NOTES];
	pthread_mutex_unlock(&w->lock);
	return n;
}

/* After an error of the GPU the word stays as it is: the driver is asked now and then. */
static void ask(struct cuda_gpu *g, struct cuda_way *w)
{
	uint64_t now = gantry_now_ns();
	gantry_result r = GANTRY_OK;
	unsigned e;

	if (now - w->asked < ASK_NS)
		return;
	w->asked = now;
	e = cu.stream_query(w->stream);
	if (e != CUE_NOT_READY)
		CU(e, "copies of gpu %d", g->base.index);
out:
	if (r != GANTRY_OK)
		fail(w, r);
}

/* 1: copies were begun. */
static int turn(struct cuda_gpu *g, struct cuda_way *w)
{
	gantry_result r = GANTRY_OK;
	struct cuda_note notes[BATCH];
	uint32_t n, i;

	if (!reached(w, w->last) && !__atomic_load_n(&w->error, __ATOMIC_RELAXED))
		ask(g, w);
	if (!reached(w, w->before) && !__atomic_load_n(&w->error, __ATOMIC_RELAXED))
		return 0;
	n = take(w, notes);
	if (!n || __atomic_load_n(&w->error, __ATOMIC_RELAXED))
		return n != 0;
	for (i = 0; i < n; i++)
		CU(cu.memcpy_async(notes[i].dst, notes[i].src, notes[i].size, w->stream),
		   "copy %zu bytes from %#llx to %#llx", notes[i].size, (unsigned long long)notes[i].src,
		   (unsigned long long)notes[i].dst);
	CU(mark(w, (uint32_t)(w->last + n)), "mark a stream of gpu %d", g->base.index);
	w->before = w->last;
	w->last += n;
	w->asked = gantry_now_ns();
out:
	if (r != GANTRY_OK)
		fail(w, r);
	return 1;
}

/* Is there anything to look after? */
static int busy(const struct cuda_way *w)
{
	return __atomic_load_n(&w->put, __ATOMIC_SEQ_CST) != w->last && !__atomic_load_n(&w->error, __ATOMIC_RELAXED);
}

static void *move_all(void *arg)
{
	struct cuda_gpu *g = arg;
	struct gantry_waiter waiter;
	int waits = 1;

	gantry_waiter_init(&waiter, &g->mover.door);
	if (cu.ctx_set_current(g->ctx) != CUE_SUCCESS) {
		LOG_ERROR(DEVICE, "the thread for copies cannot use gpu %d", g->base.index);
		for (int i = 0; i < GANTRY_WAYS; i++)
			fail(&g->ways[i], GANTRY_ERR_SYSTEM);
	}
	while (waits || !__atomic_load_n(&g->mover.stop, __ATOMIC_SEQ_CST)) {
		int worked = 0;

		waits = 0;
		for (int i = 0; i < GANTRY_WAYS; i++) {
			worked |= turn(g, &g->ways[i]);
			waits |= busy(&g->ways[i]);
		}
		for (int i = 0; i < GANTRY_WAYS && !waits; i++)
			waits |= !reached(&g->ways[i], g->ways[i].last) &&
				 !__atomic_load_n(&g->ways[i].error, __ATOMIC_RELAXED);
		if (worked)
			gantry_waiter_worked(&waiter);
		else
			gantry_waiter_idle(&waiter, waits ? NAP_NS : UINT64_MAX);
	}
	gantry_waiter_done(&waiter);
	return NULL;
}

static gantry_result start(struct cuda_gpu *g)
{
	gantry_result r = GANTRY_OK;
	sigset_t all, old;
	int rc;

	if (__atomic_load_n(&g->mover.runs, __ATOMIC_ACQUIRE))
		return GANTRY_OK;
	pthread_mutex_lock(&g->mover.lock);
	if (!g->mover.runs) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		rc = pthread_create(&g->mover.thread, NULL, move_all, g);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		if (rc)
			FAIL(GANTRY_ERR_SYSTEM, "no thread for copies of gpu %d: %s", g->base.index, strerror(rc));
		pthread_setname_np(g->mover.thread, "gantry-mover");
		__atomic_store_n(&g->mover.runs, 1, __ATOMIC_RELEASE);
	}
out:
	pthread_mutex_unlock(&g->mover.lock);
	return r;
}

/* ---- notes ---- */

/* Is it a neighbour of a note that still waits? With the lock. */
static int widen(struct cuda_way *w, const struct cuda_note *n)
{
	for (uint64_t i = w->put; i > w->taken && w->put - i < LOOK_BACK; i--) {
		struct cuda_note *old = &w->notes[(i - 1) % CUDA_NOTES];

		if (old->dst + old->size == n->dst && old->src + old->size == n->src) {
			old->size += n->size;
			return 1;
		}
	}
	return 0;
}

/* 0: there is no room. */
static int leave(struct cuda_way *w, const struct cuda_note *n)
{
	int left;

	pthread_mutex_lock(&w->lock);
	left = widen(w, n);
	if (!left && w->put - w->taken < CUDA_NOTES) {
		w->notes[w->put % CUDA_NOTES] = *n;
		__atomic_store_n(&w->put, w->put + 1, __ATOMIC_SEQ_CST);
		left = 1;
	}
	pthread_mutex_unlock(&w->lock);
	return left;
}

gantry_result gantry_cuda_move(struct gantry_device *dev, enum gantry_way way, void *dst, const void *src, size_t size)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_way *w = &g->ways[way];
	struct cuda_note n = {(uintptr_t)dst, (uintptr_t)src, size};
	uint64_t since = 0;

	if (size == 0)
		return GANTRY_OK;
	TRY(start(g));
	while (!leave(w, &n)) {
		if (!since)
			since = gantry_now_ns();
		if (gantry_now_ns() - since > FULL_NS)
			FAIL(GANTRY_ERR_TIMEOUT, "%d copies wait for gpu %d, and none has begun for 10 s", CUDA_NOTES,
			     dev->index);
		sched_yield();
	}
	gantry_door_ring(&g->mover.door);
	r = __atomic_load_n(&w->error, __ATOMIC_ACQUIRE);
out:
	return r;
}

gantry_result gantry_cuda_move_ticket(struct gantry_device *dev, enum gantry_way way, uint64_t *ret_ticket)
{
	*ret_ticket = __atomic_load_n(&cuda_gpu_of(dev)->ways[way].put, __ATOMIC_SEQ_CST);
	return GANTRY_OK;
}

gantry_result gantry_cuda_moved(struct gantry_device *dev, enum gantry_way way, uint64_t ticket)
{
	const struct cuda_way *w = &cuda_gpu_of(dev)->ways[way];
	gantry_result error;

	if (reached(w, ticket))
		return GANTRY_OK;
	error = __atomic_load_n(&w->error, __ATOMIC_ACQUIRE);
	return error == GANTRY_OK ? GANTRY_AGAIN : error;
}
