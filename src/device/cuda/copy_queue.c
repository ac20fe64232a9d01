/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that kernels of the GPU's users may be waiting for, and how it is known that they are over.
 *
 * There are only two streams for all copies of a process, with a priority of their own: a copy that shares the queue of
 * a kernel which waits for that copy would wait for ever. A caller that needs a copy leaves a request; if no other
 * thread is inside the driver, which has one lock per GPU and process, the caller makes the driver calls for all
 * pending requests. The GPU reports its progress by a store to host memory in stream order, and waiters poll that word.
 * Requests for neighbouring bytes are merged into one copy while they wait, and they wait until enough has accumulated
 * or a caller takes a fence; only then does the GPU write. docs/design/0010-copies-that-kernels-wait-for.md has the
 * measurements.
 *
 * What is left: a program that makes the driver wait for the whole GPU while a kernel waits for a copy (loading a
 * kernel for the first time does that, unless CUDA_MODULE_LOADING=EAGER). Then the driver holds its lock, and no copy
 * begins. And the thread that is inside the driver stays there as long as others leave requests.
 *
 * Order. A fence is the number of requests that there were when it was taken; the word is the number of requests whose
 * copies are over. A request that is widened by a neighbour after a fence was taken only makes that fence wait for
 * more. Bytes in a request's source are visible to the thread that makes the calls through the lock of the requests,
 * and to the GPU through the calls. No fence is lost: a thread that takes one checks afterwards whether a thread is
 * inside the driver, and the thread that was inside checks after leaving whether there are requests or fences; both in
 * one order (sequentially consistent).
 *
 * Users rely on the order of the queue: bytes are copied to a page of the pool, and from there to where the message
 * lies, without a fence in between; and a page gets new bytes while the copy of its old ones waits. So a copy that
 * becomes part of an older request must not matter to the requests that it passes, nor to that request itself: none
 * writes what it reads or writes, and none reads what it writes (`touches`). Then all are as if they had been made in
 * order. A source holds its bytes until a fence is reached, or is a mirror, always copied to the same place: what a
 * copy brings too early or half is brought again by the copy that is asked for after the bytes were written.
 *
 * Errors. The first one ends its queue, for all users; it is reported only when nothing of that queue is being copied
 * any more, so that memory can be used again. Requests whose copies were not begun stay where they are.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <sched.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/gpu.h"

enum {
	WORD_STRIDE = 128,
	VALUE_AT = 64,
	WORDS_SIZE = 4096,
	LOOK_BACK = 8,
	BATCH = 64,
	LOOKS = 1 << 16,
	ENOUGH = 256 << 10
};
#define LONG_NS 10000000000ull /* how long a request waits for room, and a stream that ends for its copies */

gantry_result gantry_cuda_queues_open(struct cuda_gpu *g)
{
	gantry_result r = GANTRY_OK;
	void *device = NULL;

	TRY(gantry_cuda_alloc_mapped(&g->base, WORDS_SIZE, &g->words, &device));
	for (int i = 0; i < GANTRY_COPY_QUEUES; i++) {
		struct cuda_copy_queue *q = &g->queues[i];

		q->word = (uint32_t *)((char *)g->words + i * WORD_STRIDE);
		q->value = (uint64_t *)(void *)((char *)q->word + VALUE_AT);
		q->word_dev = (uintptr_t)device + (cu_ptr)(i * WORD_STRIDE);
		CU(gantry_cuda_stream_apart(g, &q->stream), "create a stream on gpu %d", g->base.index);
	}
out:
	return r;
}

/* Waits until nothing of the stream runs any more, be it for an error. 0: it still does. */
static int run_dry(const struct cuda_gpu *g, cu_stream stream)
{
	uint64_t since = gantry_now_ns();

	while (g->api->stream_query(stream) == CUE_NOT_READY) {
		if (gantry_now_ns() - since > LONG_NS)
			return 0;
		sched_yield();
	}
	return 1;
}

/* No thread is inside the driver any more. Requests are left only after an error, or where no caller has taken a fence.
 * But copies without a waiter may still run, and their fences are stores to `words`.
 */
void gantry_cuda_queues_close(struct cuda_gpu *g)
{
	int dry = 1;

	for (int i = 0; i < GANTRY_COPY_QUEUES; i++) {
		if (!g->queues[i].stream)
			continue;
		dry &= run_dry(g, g->queues[i].stream);
		g->api->stream_destroy(g->queues[i].stream);
	}
	if (!g->words)
		return;
	if (dry)
		g->api->mem_free_host(g->words);
	else
		LOG_WARN(DEVICE, "gpu %d is closed, but its copies did not finish within 10 s: %d bytes are leaked",
			 g->base.index, WORDS_SIZE);
}

/* ---- at the driver ---- */

/* A store that everything before it in the stream is visible with. Older drivers: a memset of one word. */
static unsigned write_fence(const struct cuda_gpu *g, struct cuda_copy_queue *q, uint32_t value)
{
	if (g->api->stream_write_value32) {
		unsigned e = g->api->stream_write_value32(q->stream, q->word_dev, value, 0);

		if (e != CUE_NOT_SUPPORTED)
			return e;
	}
	return g->api->memset_d32_async(q->word_dev, value, 1, q->stream);
}

/* Takes the oldest requests. */
static uint32_t take(struct cuda_copy_queue *q, struct cuda_request *ret_requests)
{
	uint32_t n = 0;

	cuda_queue_mu_lock(&q->lock);
	while (n < BATCH && q->taken + n < q->put) {
		ret_requests[n] = q->requests[(q->taken + n) % CUDA_REQUESTS];
		n++;
	}
	store_seq(&q->taken, q->taken + n);
	if (q->taken == q->put)
		q->bytes = 0;
	cuda_queue_mu_unlock(&q->lock);
	return n;
}

/* Does a fence wait to be written? */
static int fence_wanted(const struct cuda_copy_queue *q)
{
	return load_seq(&q->wanted) > load_seq(&q->fenced);
}

/* The driver takes no stores to managed memory. Its words are copied, from one place of pinned memory, so each waits for the one before it. */
static gantry_result copy_value(const struct cuda_gpu *g, struct cuda_copy_queue *q, const struct cuda_request *n)
{
	gantry_result r = GANTRY_OK;

	if (q->value_used && !run_dry(g, q->stream))
		FAIL(GANTRY_ERR_TIMEOUT, "gpu %d: the copy of a word did not finish within 10 s", g->base.index);
	q->value_used = true;
	*q->value = n->value;
	CU(g->api->memcpy_async(n->dst, (uintptr_t)q->value, sizeof(*q->value), q->stream), "copy a word to %#llx",
	   (unsigned long long)n->dst);
out:
	return r;
}

/* A store comes with a fence of the whole system before it, by the driver's documentation: so what was copied before is seen before. */
static gantry_result begin_store(const struct cuda_gpu *g, struct cuda_copy_queue *q, const struct cuda_request *n)
{
	gantry_result r = GANTRY_OK;
	unsigned e = g->api->stream_write_value64(q->stream, n->dst, n->value, 0);

	if (e == CUE_INVALID_VALUE || e == CUE_NOT_SUPPORTED)
		return copy_value(g, q, n);
	CU(e, "store a word at %#llx", (unsigned long long)n->dst);
out:
	return r;
}

static gantry_result begin_one(const struct cuda_gpu *g, struct cuda_copy_queue *q, const struct cuda_request *n)
{
	gantry_result r = GANTRY_OK;

	if (n->store)
		return begin_store(g, q, n);
	CU(g->api->memcpy_async(n->dst, n->src, n->size, q->stream), "copy %zu bytes from %#llx to %#llx", n->size,
	   (unsigned long long)n->src, (unsigned long long)n->dst);
out:
	return r;
}

/* Words in a row, by one call of the driver: each of 64 costs a tenth of a call then. It does all or, if one is managed memory's, none. */
static gantry_result begin_row(const struct cuda_gpu *g, struct cuda_copy_queue *q, const struct cuda_request *row,
			       uint32_t n)
{
	gantry_result r = GANTRY_OK;
	union cu_mem_op ops[BATCH];
	unsigned e;

	for (uint32_t i = 0; i < n; i++)
		ops[i] = (union cu_mem_op){
			.store = {.type = CUV_STREAM_MEM_OP_WRITE_VALUE_64, .at = row[i].dst, .value = row[i].value}};
	e = g->api->stream_batch_mem_op(q->stream, n, ops, 0);
	if (e == CUE_INVALID_VALUE || e == CUE_NOT_SUPPORTED)
		for (uint32_t i = 0; i < n; i++)
			TRY_NOW(begin_one(g, q, &row[i]));
	else
		CU(e, "store %u words", n);
out:
	return r;
}

/* How many of these, of which there is one at least, the driver can be given at once. */
static uint32_t length_of_row(const struct cuda_gpu *g, const struct cuda_request *requests, uint32_t n)
{
	uint32_t row = 0;

	while (g->api->stream_batch_mem_op && row < n && requests[row].store)
		row++;
	return row ? row : 1;
}

static gantry_result begin_batch(const struct cuda_gpu *g, struct cuda_copy_queue *q,
				 const struct cuda_request *requests, uint32_t n)
{
	for (uint32_t i = 0, row; i < n; i += row) {
		row = length_of_row(g, requests + i, n - i);
		TRY_NOW(row > 1 ? begin_row(g, q, requests + i, row) : begin_one(g, q, &requests[i]));
	}
	return GANTRY_OK;
}

/* Begins the copies of all requests, and has the GPU publish the fence if a caller needs it. No other thread makes this
 * queue's driver calls. */
static gantry_result begin(struct cuda_gpu *g, struct cuda_copy_queue *q)
{
	gantry_result r = GANTRY_OK;
	struct cuda_request requests[BATCH];
	struct cuda_was was = cuda_here(g);
	uint64_t begun;
	uint32_t n;

	ENTER(g, was);
	while ((n = take(q, requests)) != 0)
		TRY(begin_batch(g, q, requests, n));
	begun = load_relaxed(&q->taken); /* this is the only thread that takes */
	if (fence_wanted(q)) {
		CU(write_fence(g, q, (uint32_t)begun), "write a fence of gpu %d", g->base.index);
		store_seq(&q->fenced, begun);
	}
out:
	if (r != GANTRY_OK && !run_dry(g, q->stream))
		LOG_WARN(DEVICE, "gpu %d: copies started before this error did not finish within 10 s", g->base.index);
	cuda_leave(g, &was);
	return r;
}

static gantry_result error_of(struct cuda_copy_queue *q)
{
	return load_acquire(&q->error);
}

/* Makes the pending driver calls, unless another thread is making them. */
static void begin_all(struct cuda_gpu *g, struct cuda_copy_queue *q)
{
	while ((load_seq(&q->taken) != load_seq(&q->put) || fence_wanted(q)) && error_of(q) == GANTRY_OK &&
	       !exchange_seq(&q->at_driver, 1)) {
		gantry_result r = error_of(q); /* the previous thread in the driver may have set it since we looked */

		if (r == GANTRY_OK)
			r = begin(g, q);
		if (r != GANTRY_OK)
			store_release(&q->error, r);
		store_seq(&q->at_driver, 0);
	}
}

/* ---- requests ---- */

static int overlap(cu_ptr a, size_t a_size, cu_ptr b, size_t b_size)
{
	return a < b + b_size && b < a + a_size;
}

/* Does it matter which one of the two is copied first? */
static int touches(const struct cuda_request *a, const struct cuda_request *b)
{
	return overlap(a->dst, a->size, b->dst, b->size) || overlap(a->dst, a->size, b->src, b->size) ||
	       overlap(a->src, a->size, b->dst, b->size);
}

/* Is it a neighbour of a request that still waits, and may pass those after it? With the lock. */
static int widen(struct cuda_copy_queue *q, const struct cuda_request *n)
{
	for (uint64_t i = q->put; !n->store && i > q->taken && q->put - i < LOOK_BACK; i--) {
		struct cuda_request *old = &q->requests[(i - 1) % CUDA_REQUESTS];

		if (touches(old, n))
			break;
		if (!old->store && old->dst + old->size == n->dst && old->src + old->size == n->src) {
			old->size += n->size;
			return 1;
		}
	}
	return 0;
}

/* 0: there is no room. *ret_enough: it is time to begin. */
static int leave(struct cuda_copy_queue *q, const struct cuda_request *n, int *ret_enough)
{
	int left;

	cuda_queue_mu_lock(&q->lock);
	left = widen(q, n);
	if (!left && q->put - q->taken < CUDA_REQUESTS) {
		q->requests[q->put % CUDA_REQUESTS] = *n;
		store_seq(&q->put, q->put + 1);
		left = 1;
	}
	q->bytes += left ? n->size : 0;
	*ret_enough = q->bytes >= ENOUGH;
	cuda_queue_mu_unlock(&q->lock);
	return left;
}

static gantry_result queue_request(struct cuda_gpu *g, struct cuda_copy_queue *q, const struct cuda_request *n)
{
	gantry_result r = error_of(q);
	uint64_t since = 0;
	int enough = 0;

	while (r == GANTRY_OK && !leave(q, n, &enough)) {
		if (!since)
			since = gantry_now_ns();
		if (gantry_now_ns() - since > LONG_NS)
			FAIL(GANTRY_ERR_TIMEOUT, "%d copies are queued for gpu %d, and the queue stayed full for 10 s",
			     CUDA_REQUESTS, g->base.index);
		begin_all(g, q);
		sched_yield();
		r = error_of(q);
	}
	if (r == GANTRY_OK && enough) {
		begin_all(g, q);
		r = error_of(q);
	}
out:
	return r;
}

gantry_result gantry_cuda_queue_copy(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst,
				     const void *src, size_t size)
{
	const struct cuda_request n = {.dst = (uintptr_t)dst, .src = (uintptr_t)src, .size = size};
	struct cuda_gpu *g = cuda_gpu_of(dev);

	return size ? queue_request(g, &g->queues[queue], &n) : GANTRY_OK;
}

gantry_result gantry_cuda_queue_store(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst,
				      uint64_t value)
{
	const struct cuda_request n = {
		.dst = (uintptr_t)dst, .src = (uintptr_t)dst, .size = sizeof(value), .store = true, .value = value};
	struct cuda_gpu *g = cuda_gpu_of(dev);

	return g->stores ? queue_request(g, &g->queues[queue], &n) : GANTRY_ERR_UNSUPPORTED;
}

gantry_result gantry_cuda_queue_fence(struct gantry_device *dev, enum gantry_copy_queue queue, uint64_t *ret_fence)
{
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_copy_queue *q = &g->queues[queue];
	uint64_t fence = load_seq(&q->put);
	uint64_t wanted = load_seq(&q->wanted);

	while (wanted < fence && !cas_seq(&q->wanted, &wanted, fence))
		;
	begin_all(g, q);
	*ret_fence = fence;
	return GANTRY_OK; /* what went wrong `moved` says */
}

/* Requests whose copies are over: the word is the lower half of their number, which is near that of all requests. */
static uint64_t over(struct cuda_copy_queue *q)
{
	uint32_t low = load_acquire(q->word);
	uint64_t put = load_relaxed(&q->put);

	return put + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)put);
}

gantry_result gantry_cuda_fence_reached(struct gantry_device *dev, enum gantry_copy_queue queue, uint64_t fence)
{
	static _Thread_local uint32_t looks; /* one for all threads would go from CPU to CPU while they poll */
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_copy_queue *q = &g->queues[queue];
	gantry_result r = GANTRY_OK;
	struct cuda_was was = cuda_here(g);
	unsigned e;

	if (over(q) >= fence)
		return GANTRY_OK;
	r = error_of(q);
	if (r != GANTRY_OK)
		return r;
	/* After an error of the GPU the word stays as it is: the driver is asked now and then. */
	if (++looks % LOOKS)
		return GANTRY_AGAIN;
	ENTER(g, was);
	e = g->api->stream_query(q->stream);
	if (e != CUE_NOT_READY)
		CU(e, "look at a stream of gpu %d", dev->index);
	r = GANTRY_AGAIN;
out:
	cuda_leave(g, &was);
	if (r != GANTRY_AGAIN) /* such an error is the context's, and stays: the others need not ask */
		store_release(&q->error, r);
	return r;
}
