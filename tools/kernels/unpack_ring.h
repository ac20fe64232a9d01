/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's side of k_unpack_ring.h: a kernel that stays, and jobs posted to it without a launch.
 *
 * A ring belongs to one thread at a time: post, done and wait are not for several at once. While it lives its blocks
 * keep their multiprocessors (on the host device: sleep), and on a GPU nothing may be called that waits for the whole
 * device: it would wait for the ring.
 */
#ifndef GANTRY_KERNELS_UNPACK_RING_H
#define GANTRY_KERNELS_UNPACK_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "kernels/bench.h"

struct gantry_unpack_ring;

/* Launches the kernel. entries: a power of two; so many jobs may be posted and not done. lanes: 0 for the device's
 * default. With marks (k_unpack_ring.h) a wait that times out tells how far each warp has come, and a job takes a little
 * longer. */
gantry_result gantry_unpack_ring_create(struct gantry_device *dev, uint32_t blocks, uint32_t lanes, uint32_t entries,
					bool marks, struct gantry_unpack_ring **ret_ring);
/* The job's pointers are the device's; descriptors and pages have been written. Its number is 1 more than that of the
 * job before, the first is 0. GANTRY_AGAIN: no entry is free. */
gantry_result gantry_unpack_ring_post(struct gantry_unpack_ring *ring, const struct gantry_unpack_job *job,
				      uint64_t *ret_number);
/* Jobs below this number are done, and what they wrote is to be seen. */
uint64_t gantry_unpack_ring_done(struct gantry_unpack_ring *ring);
/* Until done is at least `number`. ERR_TIMEOUT; ERR_ABORTED once aborted; what broke the kernel, if it has ended. */
gantry_result gantry_unpack_ring_wait(struct gantry_unpack_ring *ring, uint64_t number, uint64_t timeout_ns);
/* The blocks leave as soon as they look; jobs that are not done stay undone. */
void gantry_unpack_ring_abort(struct gantry_unpack_ring *ring);
/* Lets the jobs that were posted end, for timeout_ns at the most, then aborts. ERR_TIMEOUT: some were not done. If the
 * kernel does not end even then, for another timeout_ns, its memory is left to it: ERR_INTERNAL, and any later wait for
 * the device, by freeing memory say, never ends. NULL is fine. */
gantry_result gantry_unpack_ring_destroy(struct gantry_unpack_ring *ring, uint64_t timeout_ns);

#endif
