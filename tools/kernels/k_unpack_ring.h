/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking without launches: the kernel stays and its blocks take jobs from a ring. The host's side is unpack_ring.c.
 *
 *   word        where    writer    reader         meaning
 *   jobs[]      host     host      block 0        job k is in entry k % entries
 *   posted      host     host      block 0        jobs below it are there; with GANTRY_UNPACK_STOP no more will come
 *   relay[]     device   block 0   all blocks     job k is in entry k % entries, with its descriptors if they are few
 *   relayed     device   block 0   other blocks   as posted, of relay[]
 *   done[b]     host     block b   host           block b has done its share of all jobs below it
 *
 * Each word has one writer; posted, relayed and each done[b] stand on a line of their own.
 *
 * Block 0 looks at `posted` when it has done all that it has handed on, and then hands on all that is posted, at once,
 * 32 lanes for each job: strong loads of host memory are served one after the other, so only one block makes them.
 * Descriptors go along if there are at most GANTRY_UNPACK_RELAYED; those of a longer job every warp reads for itself.
 *
 * docs/design/0007-unpack-kernel.md ("The ring") has the measurements, and the proof: why blocks see what was posted,
 * why the host sees the bytes, why no entry is overwritten while it is read, and how stop, abort and waiting go.
 *
 * The host may do anything while the kernel stays but wait for the whole device: no freeing of device memory, no
 * allocation of pinned memory, no loading of kernels nor the first launch of one that needs more stack than all before
 * (the driver makes room for it), and no work in a stream whose queue to the GPU is the ring's.
 *
 * A ring that was made with marks says more of where it is: relaxed stores in mapped memory, one of each block when it
 * has taken a job, one of each warp that is through, and one of block 0 when it has handed on. They order nothing and
 * are only read when something is wrong.
 */
#ifndef GANTRY_KERNELS_K_UNPACK_RING_H
#define GANTRY_KERNELS_K_UNPACK_RING_H

#include "device/k_unpack.h"
#include "kernels/bench.h"

/* Lanes of block 0 that hand on a job together; and how often others look for one before they go through dev_wait. */
enum { DEV_UNPACK_CREW = 32, DEV_UNPACK_LOOKS = DEV_SLEEPS ? 1 : 16 };

DEV uint64_t dev_unpack_jobs(uint64_t word)
{
	return word & ~GANTRY_UNPACK_STOP;
}
/* Whether it is known if there will be a job k. */
DEV int dev_unpack_known(uint64_t word, uint64_t k)
{
	return dev_unpack_jobs(word) > k || (word & GANTRY_UNPACK_STOP);
}
DEV uint64_t dev_unpack_look(const struct gantry_unpack_ring_args *a)
{
	return dev_block() == 0 ? dev_load(a->posted) : dev_load_device(a->relayed);
}

/* Lane 0: waits until it is known if there will be a job k; how many there are, and STOP. Aborted: there is none. */
DEV uint64_t dev_unpack_wait(const struct gantry_unpack_ring_args *a, uint64_t k)
{
	const uint32_t looks = dev_block() == 0 ? 1 : DEV_UNPACK_LOOKS;
	uint64_t now = dev_unpack_look(a);
	struct dev_wait w;
	int aborted = 0;

	dev_wait_init(&w);
	while (!dev_unpack_known(now, k) && !aborted) {
		aborted = dev_wait(&w);
		for (uint32_t i = 0; i < looks && !dev_unpack_known(now, k); i++)
			now = dev_unpack_look(a);
	}
	dev_wait_done(&w);
	return aborted ? k | GANTRY_UNPACK_STOP : now;
}

/* By CREW lanes of block 0, `part` is which: one job. The job itself first, both loads of it under way together. */
DEV void dev_unpack_relay_job(const struct gantry_unpack_job *from, struct gantry_unpack_relay *to, uint32_t part)
{
	uint64_t descs, n;

	dev_read2(&from->descs, &descs, &n);
	if (part < sizeof(*from) / 16)
		dev_copy16((char *)&to->job + 16 * part, (const char *)from + 16 * part);
	if (n <= GANTRY_UNPACK_RELAYED)
		for (uint64_t i = part; i < n; i += DEV_UNPACK_CREW)
			dev_copy16(&to->descs[i], (const struct gantry_unpack_desc *)(uintptr_t)descs + i);
}

/* Block 0: hands on jobs k and following, as many as `posted` says. */
DEV void dev_unpack_relay(const struct gantry_unpack_ring_args *a, uint64_t k, uint64_t posted)
{
	const uint32_t n = (uint32_t)(dev_unpack_jobs(posted) - k) * DEV_UNPACK_CREW;

	for (uint32_t i = dev_lane(); i < n; i += dev_lanes()) {
		const uint64_t at = (k + i / DEV_UNPACK_CREW) & a->mask;

		dev_unpack_relay_job(&a->jobs[at], &a->relay[at], i % DEV_UNPACK_CREW);
	}
	dev_barrier();
	if (dev_lane() == 0) {
		dev_store_device(a->relayed, posted);
		for (uint32_t b = 1; a->eventcounts && b < dev_blocks(); b++)
			dev_notify(&a->eventcounts[b]);
		if (a->marks)
			dev_store_relaxed(&a->marks[0].relayed, dev_unpack_jobs(posted));
	}
}

/* Every lane: a job that was handed on. */
DEV void dev_unpack_take(const struct gantry_unpack_relay *r, struct dev_frags *f)
{
	uint64_t descs, bounce, dst, gather, none;

	dev_read2(&r->job.descs, &descs, &f->n);
	dev_read2(&r->job.bounce, &bounce, &dst);
	dev_read2(&r->job.gather, &gather, &none);
	f->descs = f->n <= GANTRY_UNPACK_RELAYED ? r->descs : (const struct gantry_unpack_desc *)(uintptr_t)descs;
	f->bounce = (char *)(uintptr_t)bounce;
	f->dst = (char *)(uintptr_t)dst;
	f->gather = gather != 0;
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
	uint64_t there = 0; /* the same in all lanes: jobs that have been handed on, as this block knows, and STOP */
	struct dev_frags f;

	for (uint64_t k = 0;; k++) {
		if (!dev_unpack_known(there, k)) {
			there = dev_bcast(dev_lane() == 0 ? dev_unpack_wait(a, k) : 0);
			if (dev_block() == 0)
				dev_unpack_relay(a, k, there);
		}
		if (dev_unpack_jobs(there) <= k)
			return;
		dev_unpack_take(&a->relay[k & a->mask], &f);
		if (a->marks)
			dev_unpack_mark(a, k, 0);
		dev_unpack(&f, dev_block(), dev_blocks());
		if (a->marks)
			dev_unpack_mark(a, k, 1);
		dev_barrier();
		if (dev_lane() == 0) {
			dev_store(&a->done[dev_block()].jobs, k + 1);
			dev_notify(a->eventcount);
		}
	}
}

#endif
