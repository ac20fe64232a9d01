/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that kernels of the GPU's users may be waiting for, and how it is known that they are over.
 *
 * There are only two streams for all copies of a process, with a priority of their own: a copy that shares the queue of
 * a kernel which waits for that copy would wait for ever. Who wants a copy leaves a note, and whoever finds nobody at the
 * driver, which has one lock per GPU and process, makes the calls for all notes that there are. The GPU itself says how
 * far it is, by a store to host memory in stream order: who waits looks at that word. Notes about neighbours become one
 * copy while they wait, and they wait until enough has come together or somebody asks for a ticket; only then is there a
 * mark. docs/design/0010-copies-that-kernels-wait-for.md has the measurements.
 *
 * What is left: a program that makes the driver wait for the whole GPU while a kernel waits for a copy (loading a
 * kernel for the first time does that, unless CUDA_MODULE_LOADING=EAGER). Then the driver holds its lock, and no copy
 * begins. And who is at the driver stays there as long as others leave notes.
 *
 * Order. A ticket is the number of notes that there were when it was taken; the word is the number of notes whose
 * copies are over. A note that is widened by a neighbour after a ticket was taken only makes that ticket wait for more.
 * Bytes that a note's source holds are visible to whoever makes the calls by the lock of the notes, and to the GPU by
 * the calls. No ticket is forgotten: who takes one looks afterwards whether somebody is at the driver, and who was
 * there looks after he has left whether there are notes or tickets; both in one order (sequentially consistent).
 *
 * Users rely on the order of the queue: bytes are copied to a page of the pool, and from there to where the message
 * lies, without a ticket in between; and a page gets new bytes while the copy of its old ones waits. So a copy that
 * becomes part of an older note must not matter to the notes that it passes, nor to that note itself: none writes what
 * it reads or writes, and none reads what it writes (`touches`). Then all are as if they had been made in order.
 * A source holds its bytes until a ticket is reached, or is a mirror, always copied to the same place: what a copy
 * brings too early or half is brought again by the copy that is asked for after the bytes were written.
 *
 * Errors. The first one ends its way, for all; it is told when nothing of that way is copied any more, so that memory
 * can be used again. Notes whose copies were not begun stay where they are.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <sched.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/gpu.h"

enum { WORD_STRIDE = 128, WORDS_SIZE = 4096, LOOK_BACK = 8, BATCH = 64, LOOKS = 1 << 16, ENOUGH = 256 << 10 };
#define LONG_NS 10000000000ull /* how long a note waits for room, and a stream that ends for its copies */

gantry_result gantry_cuda_ways_open(struct cuda_gpu *g)
{
	gantry_result r = GANTRY_OK;
	void *device = NULL;

	for (int i = 0; i < GANTRY_WAYS; i++)
		mutex_init(&g->ways[i].lock);
	TRY(gantry_cuda_alloc_mapped(&g->base, WORDS_SIZE, &g->words, &device));
	for (int i = 0; i < GANTRY_WAYS; i++) {
		struct cuda_way *w = &g->ways[i];

		w->word = (uint32_t *)((char *)g->words + i * WORD_STRIDE);
		w->word_dev = (uintptr_t)device + (cu_ptr)(i * WORD_STRIDE);
		CU(gantry_cuda_stream_apart(&w->stream), "create a stream on gpu %d", g->base.index);
	}
out:
	return r;
}

/* Waits until nothing of the stream runs any more, be it for an error. 0: it still does. */
static int run_dry(cu_stream stream)
{
	uint64_t since = gantry_now_ns();

	while (cu.stream_query(stream) == CUE_NOT_READY) {
		if (gantry_now_ns() - since > LONG_NS)
			return 0;
		sched_yield();
	}
	return 1;
}

/* Nobody is at the driver any more. Notes are left only after an error, or where nobody has asked for a ticket. But
 * copies may run that nobody has waited for, and their marks are stores to `words`.
 */
void gantry_cuda_ways_close(struct cuda_gpu *g)
{
	int dry = 1;

	for (int i = 0; i < GANTRY_WAYS; i++) {
		if (!g->ways[i].stream)
			continue;
		dry &= run_dry(g->ways[i].stream);
		cu.stream_destroy(g->ways[i].stream);
	}
	if (!g->words)
		return;
	for (int i = 0; i < GANTRY_WAYS; i++)
		mutex_destroy(&g->ways[i].lock);
	if (dry)
		cu.mem_free_host(g->words);
	else
		LOG_WARN(DEVICE, "gpu %d is closed, but its copies are not over after 10 s: %d bytes are never freed",
			 g->base.index, WORDS_SIZE);
}

/* ---- at the driver ---- */

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

/* Takes the oldest notes. */
static uint32_t take(struct cuda_way *w, struct cuda_note *ret_notes)
{
	uint32_t n = 0;

	cuda_way_mu_lock(&w->lock);
	while (n < BATCH && w->taken + n < w->put) {
		ret_notes[n] = w->notes[(w->taken + n) % CUDA_NOTES];
		n++;
	}
	store_seq(&w->taken, w->taken + n);
	if (w->taken == w->put)
		w->bytes = 0;
	cuda_way_mu_unlock(&w->lock);
	return n;
}

/* Does a ticket wait for its mark? */
static int mark_wanted(const struct cuda_way *w)
{
	return load_seq(&w->wanted) > load_seq(&w->marked);
}

/* Begins the copies of all notes, and has the GPU say so if somebody asks. Nobody else is at the driver for this way.
 */
static gantry_result begin(struct cuda_gpu *g, struct cuda_way *w)
{
	gantry_result r = GANTRY_OK;
	struct cuda_note notes[BATCH];
	cu_context was = g->ctx;
	uint64_t begun;
	uint32_t n;

	ENTER(g, was);
	while ((n = take(w, notes)) != 0)
		for (uint32_t i = 0; i < n; i++)
			CU(cu.memcpy_async(notes[i].dst, notes[i].src, notes[i].size, w->stream),
			   "copy %zu bytes from %#llx to %#llx", notes[i].size, (unsigned long long)notes[i].src,
			   (unsigned long long)notes[i].dst);
	begun = load_relaxed(&w->taken); /* nobody else takes */
	if (mark_wanted(w)) {
		CU(mark(w, (uint32_t)begun), "mark a stream of gpu %d", g->base.index);
		store_seq(&w->marked, begun);
	}
out:
	if (r != GANTRY_OK && !run_dry(w->stream))
		LOG_WARN(DEVICE, "gpu %d: copies that were begun before this error are not over after 10 s",
			 g->base.index);
	cuda_leave(g, was);
	return r;
}

static gantry_result error_of(struct cuda_way *w)
{
	return load_acquire(&w->error);
}

/* Makes the calls that are to be made, unless somebody is at it. */
static void begin_all(struct cuda_gpu *g, struct cuda_way *w)
{
	while ((load_seq(&w->taken) != load_seq(&w->put) || mark_wanted(w)) && error_of(w) == GANTRY_OK &&
	       !exchange_seq(&w->at_driver, 1)) {
		gantry_result r = error_of(w); /* who was here before us may have left it since we looked */

		if (r == GANTRY_OK)
			r = begin(g, w);
		if (r != GANTRY_OK)
			store_release(&w->error, r);
		store_seq(&w->at_driver, 0);
	}
}

/* ---- notes ---- */

static int overlap(cu_ptr a, size_t a_size, cu_ptr b, size_t b_size)
{
	return a < b + b_size && b < a + a_size;
}

/* Does it matter which one of the two is copied first? */
static int touches(const struct cuda_note *a, const struct cuda_note *b)
{
	return overlap(a->dst, a->size, b->dst, b->size) || overlap(a->dst, a->size, b->src, b->size) ||
	       overlap(a->src, a->size, b->dst, b->size);
}

/* Is it a neighbour of a note that still waits, and may pass those after it? With the lock. */
static int widen(struct cuda_way *w, const struct cuda_note *n)
{
	for (uint64_t i = w->put; i > w->taken && w->put - i < LOOK_BACK; i--) {
		struct cuda_note *old = &w->notes[(i - 1) % CUDA_NOTES];

		if (touches(old, n))
			break;
		if (old->dst + old->size == n->dst && old->src + old->size == n->src) {
			old->size += n->size;
			return 1;
		}
	}
	return 0;
}

/* 0: there is no room. *ret_enough: it is time to begin. */
static int leave(struct cuda_way *w, const struct cuda_note *n, int *ret_enough)
{
	int left;

	cuda_way_mu_lock(&w->lock);
	left = widen(w, n);
	if (!left && w->put - w->taken < CUDA_NOTES) {
		w->notes[w->put % CUDA_NOTES] = *n;
		store_seq(&w->put, w->put + 1);
		left = 1;
	}
	w->bytes += left ? n->size : 0;
	*ret_enough = w->bytes >= ENOUGH;
	cuda_way_mu_unlock(&w->lock);
	return left;
}

gantry_result gantry_cuda_move(struct gantry_device *dev, enum gantry_way way, void *dst, const void *src, size_t size)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_way *w = &g->ways[way];
	struct cuda_note n = {(uintptr_t)dst, (uintptr_t)src, size};
	uint64_t since = 0;
	int enough = 0;

	if (size == 0)
		return GANTRY_OK;
	r = error_of(w);
	while (r == GANTRY_OK && !leave(w, &n, &enough)) {
		if (!since)
			since = gantry_now_ns();
		if (gantry_now_ns() - since > LONG_NS)
			FAIL(GANTRY_ERR_TIMEOUT,
			     "%d copies wait for gpu %d, and there is no room for one more for 10 s", CUDA_NOTES,
			     dev->index);
		begin_all(g, w);
		sched_yield();
		r = error_of(w);
	}
	if (r == GANTRY_OK && enough) {
		begin_all(g, w);
		r = error_of(w);
	}
out:
	return r;
}

gantry_result gantry_cuda_move_ticket(struct gantry_device *dev, enum gantry_way way, uint64_t *ret_ticket)
{
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_way *w = &g->ways[way];
	uint64_t ticket = load_seq(&w->put);
	uint64_t wanted = load_seq(&w->wanted);

	while (wanted < ticket && !cas_seq(&w->wanted, &wanted, ticket))
		;
	begin_all(g, w);
	*ret_ticket = ticket;
	return GANTRY_OK; /* what went wrong `moved` says */
}

/* Notes whose copies are over: the word is the lower half of their number, which is near that of all notes. */
static uint64_t over(struct cuda_way *w)
{
	uint32_t low = load_acquire(w->word);
	uint64_t put = load_relaxed(&w->put);

	return put + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)put);
}

gantry_result gantry_cuda_moved(struct gantry_device *dev, enum gantry_way way, uint64_t ticket)
{
	static _Thread_local uint32_t looks; /* one for all threads would go from CPU to CPU while they poll */
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_way *w = &g->ways[way];
	gantry_result r = GANTRY_OK;
	cu_context was = g->ctx;
	unsigned e;

	if (over(w) >= ticket)
		return GANTRY_OK;
	r = error_of(w);
	if (r != GANTRY_OK)
		return r;
	/* After an error of the GPU the word stays as it is: the driver is asked now and then. */
	if (++looks % LOOKS)
		return GANTRY_AGAIN;
	ENTER(g, was);
	e = cu.stream_query(w->stream);
	if (e != CUE_NOT_READY)
		CU(e, "look at a stream of gpu %d", dev->index);
	r = GANTRY_AGAIN;
out:
	cuda_leave(g, was);
	if (r != GANTRY_AGAIN) /* such an error is the context's, and stays: the others need not ask */
		store_release(&w->error, r);
	return r;
}
