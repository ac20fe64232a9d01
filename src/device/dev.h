/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words that device code is written in. Kernel bodies (k_*.h) are compiled from one source by nvcc and by hipcc for
 * GPUs and by the C compiler for CPU threads, and use nothing but these words, plain C and the layouts of gantry/fifo.h.
 *
 * A block is a team of lanes that share barriers: on a GPU a thread block, on the host one thread with one lane by
 * default (tests run several lanes, to check barriers). Words marked "block" are called by all lanes of a block at the
 * same place, with the same arguments; the others by single lanes.
 *
 *   dev_lane() dev_lanes() dev_block() dev_blocks()   position of this thread
 *   dev_barrier()              block: writes of all lanes before it are visible to all lanes after it
 *   dev_bcast(v)               block: lane 0's value, for all; a barrier too
 *   dev_share(p, n)            block: lane 0's n <= 64 bytes (whole words) at p, for all; a barrier too
 *   dev_all(yes)               block: whether all lanes say yes; a barrier too
 *   dev_sum(v)                 block: the sum of all lanes' values; a barrier too
 *   dev_copy(dst, src, n)      block: any alignment; ends without a barrier
 *
 *   dev_load(p)                acquire; also the load that looks again before a sleep
 *   dev_load_relaxed(p)
 *   dev_store(p, v)            release: what this block did before (after a barrier) is seen with it
 *   dev_store_relaxed(p, v)
 *   dev_load_relaxed32(p), dev_store_relaxed32(p, v)
 *   dev_load_device(p), dev_store_device(p, v)
 *                              acquire and release between blocks of this device, of a word in its own memory
 *   dev_post_count(p, v)       head or tail of a step without payload to order (LL): relaxed on a GPU, and on the host
 *                              the store that stands between the lines and dev_notify
 *   dev_add(p, v)              adds to a word that many write; relaxed on a GPU, and in host memory slow (0.8 us)
 *   dev_arrive(p)              adds 1 to a word of this device and answers the sum; acquire and release between its blocks
 *   dev_post(slot, meta, where)     both words, valid by themselves; orders nothing on a GPU
 *   dev_publish(slot, meta, where)  the same as a release: payload first
 *   dev_gather8(p, n), dev_scatter8(p, v, n)   n <= 8 bytes of plain memory at any address as a word, lowest first
 *   dev_read2(p, &a, &b)       two words of plain memory in one load, aligned to 16
 *   dev_copy16(dst, src)       16 bytes of plain memory in one load and one store, both aligned to 16
 *   dev_ll_store(line, data, flag), dev_ll_load(line, flag, &data)
 *                              a line of LL: 8 bytes; the load answers 0 if the line is not there yet
 *   dev_ll128_width()          lanes that move a line of LL128 together: neighbours, starting at a multiple of it
 *                              (lane i of them moves the words from i * 16 / width on)
 *   dev_ll128_put(line, data, n, flag), dev_ll128_get(line, data, n, flag)
 *                              by all of them with the same arguments, n <= 120; the get answers 0 like the load
 *   dev_notify(eventcount)     after a store, post or publish: wakes the other end if it sleeps
 *   dev_leave()                before the launch's owner is notified of its end: what this thread did for others
 *                              while it waited (device/help.h) is theirs from here on
 *   dev_failed(error)          lane 0, last: this block did not do its work. A GPU's stream cannot say so, so there it waits for
 *                              the abort flag; the host's takes the launch's failure
 *   dev_fence()                payload of earlier kernels is visible to the system before a post
 *   dev_clock()                time that all blocks of the device share: CPU ticks on the host, nanoseconds on a GPU
 *
 *   dev_wait_init(w), dev_wait(w), dev_wait_done(w)   lane 0 only; the loop around a condition:
 *
 *       dev_wait_init(&w);
 *       while (!(condition read with dev_load))
 *               if (dev_wait(&w)) { aborted }
 *       dev_wait_done(&w);
 *
 *   dev_wait_proxied(w, yes)   after dev_wait_init: only the proxy is waited for. It needs a CPU to get on, so on a
 *   small machine the waiter goes to sleep soon
 *   dev_wait_is_long(w)        whether it is time to show reports what is waited for: at once on the host; on a GPU after
 *                              about a millisecond, since the next fence waits for what is stored in host memory
 *
 *   dev_wait backs off: it spins, yields, then announces itself at the block's eventcount, returns once more for the
 *   condition to be looked at again, and then sleeps. It returns nonzero when the launch's abort flag is set.
 *
 * Why loads and stores of the host are sequentially consistent and not just acquire and release: sleeping needs "my
 * store of `waiting` before my load of the condition" against "my store of the condition before my load of `waiting`".
 * On x86 that makes a store an xchg (about 20 cycles), on ARMv8 it is stlr and ldar either way.
 */
#ifndef GANTRY_DEVICE_DEV_H
#define GANTRY_DEVICE_DEV_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/fifo.h"

#if defined(__CUDACC__)
#include "device/cuda/dev_cuda.h"
#elif defined(__HIPCC__)
#include "device/hip/dev_hip.h"
#else
#include "device/host/dev_host.h"
#endif

DEV uint64_t dev_bcast(uint64_t v)
{
	dev_share(&v, sizeof(v));
	return v;
}

#endif
