/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev.h's words for AMD GPUs (gfx90a; other GCN and CDNA ones by GANTRY_HIP_ARCHS), as hipcc compiles them. No such GPU
 * has run them yet: docs/design/0046-hip.md.
 *
 * Ordering. The compiler's atomics with a scope are AMD's memory model, so there is no asm here. A load that acquires
 * from the system drops what L1 and L2 hold of other writers' memory; a store that releases waits for the writes of the
 * block, which a barrier has brought to L2, and writes L2 back. Payload is loaded and stored plainly in between.
 *
 * Connections and what kernels read while others write it lie in fine-grained memory: hip_driver.c allocates nothing
 * else.
 *
 * Lanes of a wavefront (64) run in lock step: a lane that waits holds up its neighbours. No body waits for another lane of
 * its block but in a barrier.
 */
#ifndef GANTRY_DEVICE_HIP_DEV_HIP_H
#define GANTRY_DEVICE_HIP_DEV_HIP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <hip/hip_runtime.h>

#include "gantry/fifo.h"

#define DEV static __device__ __forceinline__ __attribute__((unused))
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
/* Lane by lane in the block's own memory: sums are taken once per launch. */
DEV uint64_t dev_sum(uint64_t v)
{
	unsigned long long *sum = &dev_my_team()->sum;

	if (dev_lane() == 0)
		*sum = 0;
	__syncthreads();
	if (v)
		atomicAdd(sum, (unsigned long long)v);
	__syncthreads();
	v = *sum;
	__syncthreads();
	return v;
}

#define DEV_LOAD(name, T, order, scope)                                                                                \
	DEV T name(const T *p)                                                                                         \
	{                                                                                                              \
		return __hip_atomic_load(p, order, scope);                                                             \
	}
#define DEV_STORE(name, T, order, scope)                                                                               \
	DEV void name(T *p, T v)                                                                                       \
	{                                                                                                              \
		__hip_atomic_store(p, v, order, scope);                                                                \
	}
DEV_LOAD(dev_load, uint64_t, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM)
DEV_LOAD(dev_load_relaxed, uint64_t, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)
DEV_LOAD(dev_load_relaxed32, uint32_t, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)
DEV_LOAD(dev_load_device, uint64_t, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT)
DEV_STORE(dev_store, uint64_t, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM)
DEV_STORE(dev_store_relaxed, uint64_t, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)
DEV_STORE(dev_store_relaxed32, uint32_t, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)
DEV_STORE(dev_store_device, uint64_t, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT)
#define dev_post_count dev_store_relaxed
/* In host memory an atomic operation of PCIe, which ROCm asks for. */
DEV void dev_add(uint64_t *p, uint64_t v)
{
	(void)__hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEV uint64_t dev_arrive(uint64_t *p)
{
	return __hip_atomic_fetch_add(p, (uint64_t)1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT) + 1;
}
/* A counter of 100 MHz that all compute units read. */
DEV uint64_t dev_clock(void)
{
	return __builtin_amdgcn_s_memrealtime() * 10;
}
DEV void dev_fence(void)
{
	__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "");
}

/* Each word is whole by itself. */
DEV void dev_store2(uint64_t *p, uint64_t a, uint64_t b)
{
	dev_store_relaxed(p, a);
	dev_store_relaxed(p + 1, b);
}
DEV void dev_load2(const uint64_t *p, uint64_t *ret_a, uint64_t *ret_b)
{
	*ret_a = dev_load_relaxed(p);
	*ret_b = dev_load_relaxed(p + 1);
}

/* 64 clocks. */
DEV void dev_nap(void)
{
	__builtin_amdgcn_s_sleep(1);
}

#include "device/cuda/dev_copy.h"
#include "device/cuda/dev_wait.h"

#include "device/cuda/dev_lines.h"

/*
 * LL128: a lane moves a line by itself. Nothing promises that it is seen whole, so the flag is released behind the rest and
 * acquired before it. That is right wherever a line lies, and costs a fence each: the host device chooses this protocol
 * for itself, this one does not (gantry_device.ll128_local).
 */
DEV uint32_t dev_ll128_width(void)
{
	return 1;
}
DEV void dev_ll128_put(uint64_t *line, const char *data, uint32_t bytes, uint64_t flag)
{
	for (uint32_t i = 0; 8 * i < bytes; i++)
		dev_store_relaxed(line + i, dev_gather8(data + 8 * i, bytes - 8 * i < 8 ? bytes - 8 * i : 8));
	dev_store(line + 15, flag);
}
/* 0: not there yet. */
DEV int dev_ll128_get(const uint64_t *line, char *data, uint32_t bytes, uint64_t flag)
{
	if (dev_load(line + 15) != flag)
		return 0;
	for (uint32_t i = 0; 8 * i < bytes; i++)
		dev_scatter8(data + 8 * i, dev_load_relaxed(line + i), bytes - 8 * i < 8 ? bytes - 8 * i : 8);
	return 1;
}

#endif
