/* SPDX-License-Identifier: Apache-2.0 */
/* See unpack_ring.h, and k_unpack_ring.h for the writers of each word and their order. */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "kernels/unpack_ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "kernels/bench.h"

enum { MAX_ENTRIES = 1 << 16, END_NAP_NS = 100000, LOOK_NS = 1000000, TOLD_BLOCKS = 4, RELAY_AT = 128 };

/* Mapped memory: this, then `entries` jobs, then one gantry_unpack_done, one gantry_unpack_marks and one eventcount per
 * block.
 */
struct shared {
	uint64_t posted;
	char pad0[120];
	struct gantry_eventcount eventcount; /* of the host, in gantry_unpack_ring_wait */
	uint32_t abort;
	char pad1[124];
};

struct gantry_unpack_ring {
	struct gantry_device *dev; /* borrowed */
	struct gantry_stream *stream;
	struct shared *shared; /* as the host addresses it */
	char *relay;	       /* device memory: the word `relayed` on a line of its own, then the entries of relay[] */
	struct gantry_unpack_job *jobs;
	struct gantry_unpack_done *done;
	struct gantry_unpack_marks *marks; /* NULL: none are made */
	struct gantry_eventcount *eventcounts;
	uint32_t blocks, entries;
	uint64_t posted, seen; /* seen: what the slowest block had done at the last look */
};

static gantry_result map(struct gantry_unpack_ring *ring, bool marks, struct gantry_unpack_ring_args *args,
			 const uint32_t **ret_abort)
{
	size_t jobs = sizeof(struct shared), done = jobs + ring->entries * sizeof(struct gantry_unpack_job);
	size_t marked, eventcounts, size;
	void *host = NULL, *device = NULL;
	char *h, *d;

	done = (done + 127) / 128 * 128;
	marked = done + ring->blocks * sizeof(struct gantry_unpack_done);
	eventcounts = marked + ring->blocks * sizeof(struct gantry_unpack_marks);
	size = eventcounts + ring->blocks * sizeof(struct gantry_eventcount);
	TRY_NOW(ring->dev->ops->alloc_mapped(ring->dev, size, &host, &device));
	h = host;
	d = device;
	ring->shared = host;
	ring->jobs = (struct gantry_unpack_job *)(h + jobs);
	ring->done = (struct gantry_unpack_done *)(h + done);
	ring->marks = marks ? (struct gantry_unpack_marks *)(h + marked) : NULL;
	ring->eventcounts = (struct gantry_eventcount *)(h + eventcounts);
	args->posted = &((struct shared *)d)->posted;
	args->jobs = (const struct gantry_unpack_job *)(d + jobs);
	args->done = (struct gantry_unpack_done *)(d + done);
	args->marks = marks ? (struct gantry_unpack_marks *)(d + marked) : NULL;
	args->mask = ring->entries - 1;
	args->eventcount = ring->dev->sleeps ? &((struct shared *)d)->eventcount : NULL;
	args->eventcounts = ring->dev->sleeps ? (struct gantry_eventcount *)(d + eventcounts) : NULL;
	*ret_abort = &((struct shared *)d)->abort;
	return GANTRY_OK;
}

/* It comes zeroed: nothing has been handed on. */
static gantry_result make_relay(struct gantry_unpack_ring *ring, struct gantry_unpack_ring_args *args)
{
	void *relay = NULL;

	TRY_NOW(ring->dev->ops->alloc(ring->dev, RELAY_AT + ring->entries * sizeof(*args->relay), &relay));
	ring->relay = relay;
	args->relayed = relay;
	args->relay = (struct gantry_unpack_relay *)(ring->relay + RELAY_AT);
	return GANTRY_OK;
}

/* The kernel has ended, or was never launched. */
static void release(struct gantry_unpack_ring *ring)
{
	if (ring && ring->dev) {
		ring->dev->ops->stream_destroy(ring->dev, ring->stream);
		ring->dev->ops->free_mapped(ring->dev, ring->shared);
		ring->dev->ops->free(ring->dev, ring->relay);
	}
	free(ring);
}

gantry_result gantry_unpack_ring_create(struct gantry_device *dev, uint32_t blocks, uint32_t lanes, uint32_t entries,
					bool marks, struct gantry_unpack_ring **ret_ring)
{
	gantry_result r = GANTRY_OK;
	struct gantry_unpack_ring *ring = calloc(1, sizeof(*ring));
	struct gantry_unpack_ring_args args = {.posted = NULL};
	struct gantry_launch l = {.kernel = &gantry_kernel_unpack_ring,
				  .blocks = blocks,
				  .lanes = lanes,
				  .args = &args,
				  .args_size = sizeof(args)};

	if (!ring)
		FAIL(GANTRY_ERR_NOMEM, "no memory for an unpack ring");
	if (!blocks || !entries || entries > MAX_ENTRIES || entries & (entries - 1))
		FAIL(GANTRY_ERR_INVALID,
		     "an unpack ring of %u blocks and %u entries: at least 1 block, and a power of two up to %d",
		     blocks, entries, MAX_ENTRIES);
	ring->dev = dev;
	ring->blocks = blocks;
	ring->entries = entries;
	TRY(map(ring, marks, &args, &l.abort));
	TRY(make_relay(ring, &args));
	TRY(dev->ops->stream_create(dev, &ring->stream));
	l.eventcounts = dev->sleeps ? ring->eventcounts : NULL;
	TRY(dev->ops->launch(dev, ring->stream, &l));
	*ret_ring = ring;
	ring = NULL;
out:
	release(ring);
	return r;
}

uint64_t gantry_unpack_ring_done(struct gantry_unpack_ring *ring)
{
	uint64_t least = ring->posted;

	for (uint32_t b = 0; b < ring->blocks; b++) {
		uint64_t jobs = load_seq(&ring->done[b].jobs);

		least = jobs < least ? jobs : least;
	}
	return ring->seen = least;
}

/* Sequentially consistent, not only a release: it stands before the look at `waiting`. Block 0 tells the others. */
static void store_posted(struct gantry_unpack_ring *ring, uint64_t word)
{
	store_seq(&ring->shared->posted, word);
	if (ring->dev->sleeps)
		gantry_eventcount_notify(&ring->eventcounts[0]);
}

gantry_result gantry_unpack_ring_post(struct gantry_unpack_ring *ring, const struct gantry_unpack_job *job,
				      uint64_t *ret_number)
{
	uint64_t number = ring->posted;

	if (number - ring->seen >= ring->entries && number - gantry_unpack_ring_done(ring) >= ring->entries)
		return GANTRY_AGAIN;
	ring->jobs[number & (ring->entries - 1)] = *job;
	ring->posted = number + 1;
	store_posted(ring, number + 1);
	if (ret_number)
		*ret_number = number;
	return GANTRY_OK;
}

/* Where a block is. A warp that has not left while others have, in a job that the block has taken, has stopped there.
 */
static void tell_block(const struct gantry_unpack_ring *ring, uint32_t b, char *text, size_t len)
{
	const struct gantry_unpack_marks *m = ring->marks ? &ring->marks[b] : NULL;
	size_t n = (size_t)snprintf(text, len, "block %u has done %llu", b,
				    (unsigned long long)load_seq(&ring->done[b].jobs));

	if (!m)
		return;
	if (b == 0)
		n += (size_t)snprintf(text + n, len - n, ", handed on %llu", (unsigned long long)load_seq(&m->relayed));
	n += (size_t)snprintf(text + n, len - n, ", taken %llu, its warps have left",
			      (unsigned long long)load_seq(&m->took));
	for (uint32_t w = 0; w < GANTRY_UNPACK_WARPS && n < len; w++)
		n += (size_t)snprintf(text + n, len - n, " %llu", (unsigned long long)load_seq(&m->left[w]));
}

/* What there is to know when something that should have happened has not: the first blocks that are behind. */
static void tell(const struct gantry_unpack_ring *ring)
{
	uint32_t behind = 0;
	char text[512];

	for (uint32_t b = 0; b < ring->blocks; b++) {
		if (load_seq(&ring->done[b].jobs) >= ring->posted || behind++ >= TOLD_BLOCKS)
			continue;
		tell_block(ring, b, text, sizeof(text));
		LOG_WARN(DEVICE, "unpack ring of %s: %s", ring->dev->name, text);
	}
	LOG_WARN(DEVICE, "unpack ring of %s: posted %llu (the word says %#llx), abort %u; %u of %u blocks are behind",
		 ring->dev->name, (unsigned long long)ring->posted, (unsigned long long)load_seq(&ring->shared->posted),
		 load_seq(&ring->shared->abort), behind, ring->blocks);
}

/* Checks whether the kernel is still running. */
static gantry_result alive(struct gantry_unpack_ring *ring, uint64_t number, uint64_t waited, uint64_t timeout_ns)
{
	gantry_result r = GANTRY_OK, e = ring->dev->ops->stream_query(ring->dev, ring->stream);

	if (load_seq(&ring->shared->abort))
		return GANTRY_ERR_ABORTED;
	if (e != GANTRY_AGAIN && gantry_unpack_ring_done(ring) < number)
		FAIL(e == GANTRY_OK ? GANTRY_ERR_INTERNAL : e,
		     "the kernel of an unpack ring on %s has ended with %llu jobs done, of %llu posted",
		     ring->dev->name, (unsigned long long)ring->seen, (unsigned long long)ring->posted);
	if (waited > timeout_ns && ring->posted)
		tell(ring);
	if (waited > timeout_ns)
		FAIL(GANTRY_ERR_TIMEOUT, "unpack job %llu is not done after %.3f s; %llu are, of %llu posted",
		     (unsigned long long)number - 1, (double)timeout_ns / 1e9, (unsigned long long)ring->seen,
		     (unsigned long long)ring->posted);
out:
	return r;
}

gantry_result gantry_unpack_ring_wait(struct gantry_unpack_ring *ring, uint64_t number, uint64_t timeout_ns)
{
	gantry_result r = GANTRY_OK;
	uint64_t start = gantry_now_ns(), looked = start, now;
	struct gantry_waiter w;

	gantry_waiter_init(&w, ring->dev->sleeps ? &ring->shared->eventcount : NULL);
	while (gantry_unpack_ring_done(ring) < number) {
		now = gantry_now_ns();
		if (now - looked > LOOK_NS || now - start > timeout_ns) {
			TRY(alive(ring, number, now - start, timeout_ns));
			looked = now;
		}
		/* A GPU does not ring, and a nap would be longer than its answer takes. */
		gantry_waiter_idle(&w, ring->dev->sleeps ? END_NAP_NS : 0);
	}
out:
	gantry_waiter_done(&w);
	return r;
}

void gantry_unpack_ring_abort(struct gantry_unpack_ring *ring)
{
	store_seq(&ring->shared->abort, 1);
	/* Each block looks at it for itself. */
	for (uint32_t b = 0; ring->dev->sleeps && b < ring->blocks; b++)
		gantry_eventcount_notify(&ring->eventcounts[b]);
}

/* Until the kernel has ended. */
static gantry_result ended(struct gantry_unpack_ring *ring, uint64_t timeout_ns)
{
	uint64_t start = gantry_now_ns();
	struct gantry_waiter w;
	gantry_result r;

	gantry_waiter_init(&w, NULL);
	while ((r = ring->dev->ops->stream_query(ring->dev, ring->stream)) == GANTRY_AGAIN &&
	       gantry_now_ns() - start <= timeout_ns)
		gantry_waiter_idle(&w, END_NAP_NS);
	return r;
}

gantry_result gantry_unpack_ring_destroy(struct gantry_unpack_ring *ring, uint64_t timeout_ns)
{
	gantry_result r = GANTRY_OK, e;

	if (!ring)
		return GANTRY_OK;
	store_posted(ring, ring->posted | GANTRY_UNPACK_STOP);
	e = ended(ring, timeout_ns);
	if (e == GANTRY_AGAIN) {
		tell(ring);
		gantry_unpack_ring_abort(ring);
		e = ended(ring, timeout_ns);
	}
	if (e == GANTRY_AGAIN)
		FAIL(GANTRY_ERR_INTERNAL,
		     "the unpack ring of %s does not end, not even aborted; its memory is left to it", ring->dev->name);
	if (e == GANTRY_OK && gantry_unpack_ring_done(ring) < ring->posted)
		r = gantry_fail(GANTRY_ERR_TIMEOUT, LOG_SUBSYS, __FILE__, __LINE__,
				"an unpack ring ended with %llu of %llu jobs done", (unsigned long long)ring->seen,
				(unsigned long long)ring->posted);
	else
		r = e;
	release(ring);
out:
	return r;
}
