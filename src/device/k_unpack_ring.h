/*
 * Unpacking without launches: the kernel stays and its blocks take jobs from a ring in mapped memory. The host's side
 * is unpack_ring.c.
 *
 *   word        writer         reader   meaning
 *   jobs[]      host           blocks   job k is in entry k % entries
 *   posted      host           blocks   jobs below it are there; with GANTRY_UNPACK_STOP no more will come
 *   done[b]     block b        host     block b has done its share of all jobs below it
 *
 * Each word has one writer; posted and each done[b] stand on a line of their own.
 *
 * Why a block sees a job, its descriptors and the pages: the host writes all of them (or has heard from their writer)
 * before it stores `posted`, a release. Lane 0 of a block loads it with an acquire, reads the job, and dev_share, a
 * barrier, orders the other lanes' reads behind it. Why the host sees the bytes: all lanes' stores come before the
 * barrier that follows dev_unpack, and lane 0's release store of done[b] after it. A host that has acquired done[b] > k
 * from every block therefore sees all of job k; and since blocks take jobs in order, all jobs before.
 *
 * Why an entry is not overwritten while a block may read it: the host posts job k only when all done[b] > k - entries.
 * A block has read entry k % entries into registers before it stores done[b] = k + 1.
 *
 * Waiting: a block that finds nothing goes through dev_wait, on the host device down to sleeping at its door, which the
 * host rings after it has stored `posted`; done[b] is followed by a ring of the host's door. An abort ends a wait, and
 * the block leaves without a word: jobs that it has not done stay undone. Only waits for jobs are ended that way: what
 * dev_unpack does has no end but its own, so nothing in there may depend on a lane that does not come (see
 * dev_unpack_nothing in cuda/dev_unpack.h).
 *
 * The host may do anything while the kernel stays but wait for the whole device: no freeing of device memory, no
 * allocation of pinned memory, no loading of kernels nor the first launch of one that needs more stack than all before
 * (the driver makes room for it), and no work in a stream whose queue to the GPU is the ring's.
 *
 * A ring that was made with marks says more of where it is: relaxed stores in mapped memory, one of each block when it
 * has taken a job and one of each warp that is through. They order nothing and are only read when something is wrong.
 */
#ifndef GANTRY_DEVICE_K_UNPACK_RING_H
#define GANTRY_DEVICE_K_UNPACK_RING_H

#include "device/k_unpack.h"

/* What lane 0 has found, for all. */
struct dev_unpack_turn {
	struct dev_frags f;
	uint32_t end;
};

/* Lane 0: waits for job k. 0: there will be none. */
DEV int dev_unpack_wait(const uint64_t *posted, uint64_t k)
{
	uint64_t now = dev_load(posted);
	struct dev_wait w;
	int aborted = 0;

	dev_wait_init(&w);
	while ((now & ~GANTRY_UNPACK_STOP) <= k && !(now & GANTRY_UNPACK_STOP) && !aborted) {
		aborted = dev_wait(&w);
		now = dev_load(posted);
	}
	dev_wait_done(&w);
	return !aborted && (now & ~GANTRY_UNPACK_STOP) > k;
}

/* Behind dev_unpack, which ends without a barrier: what a warp says is of itself alone. */
DEV void dev_unpack_mark(const struct gantry_unpack_ring_args *a, uint64_t k, int left)
{
	const uint32_t warp = dev_lane() / 32;
	struct gantry_unpack_marks *m = &a->marks[dev_block()];

	if (!left && dev_lane() == 0)
		dev_store_relaxed(&m->took, k + 1);
	else if (left && dev_lane() % 32 == 0 && warp < GANTRY_UNPACK_WARPS)
		dev_store_relaxed(&m->left[warp], k + 1);
}

DEV void k_unpack_ring(const struct gantry_unpack_ring_args *a)
{
	struct dev_unpack_turn turn;

	turn.f.descs = NULL;
	turn.f.bounce = turn.f.dst = NULL;
	turn.f.n = 0;
	turn.f.gather = turn.end = 0;
	for (uint64_t k = 0;; k++) {
		if (dev_lane() == 0) {
			const struct gantry_unpack_job *job = &a->jobs[k & a->mask];

			turn.end = !dev_unpack_wait(a->posted, k);
			if (!turn.end) {
				uint64_t descs = dev_load_relaxed((const uint64_t *)&job->descs);
				uint64_t bounce = dev_load_relaxed((const uint64_t *)&job->bounce);
				uint64_t dst = dev_load_relaxed((const uint64_t *)&job->dst);
				uint64_t gather = dev_load_relaxed(&job->gather);

				turn.f.n = dev_load_relaxed(&job->n);
				turn.f.descs = (const struct gantry_unpack_desc *)(uintptr_t)descs;
				turn.f.bounce = (char *)(uintptr_t)bounce;
				turn.f.dst = (char *)(uintptr_t)dst;
				turn.f.gather = gather != 0;
			}
		}
		dev_share(&turn, sizeof(turn));
		if (turn.end)
			return;
		if (a->marks)
			dev_unpack_mark(a, k, 0);
		dev_unpack(&turn.f, dev_block(), dev_blocks());
		if (a->marks)
			dev_unpack_mark(a, k, 1);
		dev_barrier();
		if (dev_lane() == 0) {
			dev_store(&a->done[dev_block()].jobs, k + 1);
			dev_ring(a->door);
		}
	}
}

#endif
