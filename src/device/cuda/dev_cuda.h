/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev.h's words for NVIDIA GPUs (compute capability 8.0 and later).
 *
 * Ordering. The PTX memory model is written out where it matters, in asm, because C++ atomics of CUDA cannot say
 * "16 bytes at once" and because a reader should see which instruction is paid for:
 *
 *   ld.acquire.sys   a load, then the block's L1 lines are dropped: weak loads of any lane that a barrier orders after
 *                    it see what the releasing side wrote
 *   st.release.sys   waits until every write of this block (those ordered before by a barrier included) is visible to
 *                    the system, then stores; over PCIe that wait is a round trip
 *   *.acquire.gpu, *.release.gpu   the same among the blocks of one GPU: neither leaves it
 *   *.relaxed.sys    goes to where the whole system sees it, and orders nothing
 *
 * Every address here is global memory: device memory, or host memory mapped into the device. Loads of payload are weak
 * and never .nc (the "read-only" path), as another processor may have written it during this kernel.
 *
 * Blocks are whole warps (cuda/launch.c refuses others), one dimension.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_CUDA_H
#define GANTRY_DEVICE_CUDA_DEV_CUDA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gantry/fifo.h"

#define DEV static __device__ __forceinline__
#define DEV_SHARED __shared__
#define DEV_NEAR 1 /* see k_p2p.h */

DEV uint32_t dev_lane(void)
{
	return threadIdx.x;
}
DEV uint32_t dev_lanes(void)
{
	return blockDim.x;
}
DEV uint32_t dev_block(void)
{
	return blockIdx.x;
}
DEV uint32_t dev_blocks(void)
{
	return gridDim.x;
}

#define DEV_SLEEPS 0
#include "device/cuda/dev_team.h"

DEV int dev_all(int yes)
{
	return __syncthreads_and(yes);
}
DEV uint64_t dev_sum(uint64_t v)
{
	unsigned long long *sum = &dev_my_team()->sum;

	if (dev_lane() == 0)
		*sum = 0;
	__syncthreads();
	for (uint32_t far = 16; far; far /= 2)
		v += __shfl_down_sync(0xffffffffu, (unsigned long long)v, far);
	if (dev_lane() % 32 == 0)
		atomicAdd(sum, (unsigned long long)v);
	__syncthreads();
	v = *sum;
	__syncthreads();
	return v;
}

#define DEV_LOAD(name, T, instruction, reg)                                                                            \
	DEV T name(const T *p)                                                                                         \
	{                                                                                                              \
		T v;                                                                                                   \
		asm volatile(instruction " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                               \
		return v;                                                                                              \
	}
#define DEV_STORE(name, T, instruction, reg)                                                                           \
	DEV void name(T *p, T v)                                                                                       \
	{                                                                                                              \
		asm volatile(instruction " [%0], %1;" ::"l"(p), reg(v) : "memory");                                    \
	}
DEV_LOAD(dev_load, uint64_t, "ld.acquire.sys.global.u64", "l")
DEV_LOAD(dev_load_relaxed, uint64_t, "ld.relaxed.sys.global.u64", "l")
DEV_LOAD(dev_load_relaxed32, uint32_t, "ld.relaxed.sys.global.u32", "r")
DEV_LOAD(dev_load_device, uint64_t, "ld.acquire.gpu.global.u64", "l")
DEV_STORE(dev_store, uint64_t, "st.release.sys.global.u64", "l")
DEV_STORE(dev_store_relaxed, uint64_t, "st.relaxed.sys.global.u64", "l")
DEV_STORE(dev_store_relaxed32, uint32_t, "st.relaxed.sys.global.u32", "r")
DEV_STORE(dev_store_device, uint64_t, "st.release.gpu.global.u64", "l")
#define dev_post_count dev_store_relaxed
/*
 * Additions leave without waiting for an answer. A load and a store would stall the lane for a round trip over PCIe
 * where the counter is in host memory. Scope gpu: atomic among the lanes of this GPU, which is all that writes there.
 * (To be atomic against CPUs as well takes more than every PCIe root port can do.)
 */
DEV void dev_add(uint64_t *p, uint64_t v)
{
	asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
DEV uint64_t dev_arrive(uint64_t *p)
{
	uint64_t before;

	asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;" : "=l"(before) : "l"(p) : "memory");
	return before + 1;
}
/* All multiprocessors read the same timer. How finely it counts (32 ns, 1 us) is the driver's choice. */
DEV uint64_t dev_clock(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
	return t;
}
DEV void dev_fence(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Two words in one access. Each word is whole by itself; that both arrive together is usual and never relied upon. */
DEV void dev_store2(uint64_t *p, uint64_t a, uint64_t b)
{
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
DEV void dev_load2(const uint64_t *p, uint64_t *ret_a, uint64_t *ret_b)
{
	uint64_t a, b;

	asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
	*ret_a = a;
	*ret_b = b;
}

DEV void dev_nap(void)
{
	__nanosleep(40);
}

#include "device/cuda/dev_copy.h"
#include "device/cuda/dev_wait.h"

#include "device/cuda/dev_lines.h"

/*
 * LL128: eight neighbouring lanes move a line together, 16 bytes each; the last one has the flag in its upper word.
 * Here the flag does vouch for the other lanes' data. That holds because the eight accesses of one instruction are one
 * 128-byte access, and such a line is written and read whole in the memory of a GPU (and over NVLink), from compute
 * capability 7.0 on; it does not hold over PCIe. So the eight lanes must be together at the instruction itself.
 */

/* Lanes per line: they call dev_ll128_put and dev_ll128_get together, with the same arguments. */
DEV uint32_t dev_ll128_width(void)
{
	return 8;
}
DEV uint32_t dev_ll128_mask(void)
{
	return 0xffu << (dev_lane() & 24);
}
/* How many of `bytes` lie in the 8 bytes from `from`. */
DEV uint32_t dev_ll128_part(uint32_t bytes, uint32_t from)
{
	return bytes <= from ? 0 : bytes - from < 8 ? bytes - from : 8;
}
DEV void dev_ll128_put(uint64_t *line, const char *data, uint32_t bytes, uint64_t flag)
{
	const uint32_t i = dev_lane() & 7;
	uint64_t a = dev_gather8(data + 16 * i, dev_ll128_part(bytes, 16 * i));
	uint64_t b = i == 7 ? flag : dev_gather8(data + 16 * i + 8, dev_ll128_part(bytes, 16 * i + 8));

	__syncwarp(dev_ll128_mask());
	dev_store2(line + 2 * i, a, b);
}
/* 0 for all eight: not there yet. */
DEV int dev_ll128_get(const uint64_t *line, char *data, uint32_t bytes, uint64_t flag)
{
	const uint32_t i = dev_lane() & 7;
	uint64_t a, b;

	__syncwarp(dev_ll128_mask());
	dev_load2(line + 2 * i, &a, &b);
	if (__ballot_sync(dev_ll128_mask(), i == 7 && b == flag) == 0)
		return 0;
	dev_scatter8(data + 16 * i, a, dev_ll128_part(bytes, 16 * i));
	if (i != 7)
		dev_scatter8(data + 16 * i + 8, b, dev_ll128_part(bytes, 16 * i + 8));
	return 1;
}

#endif
