/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's warps on a CPU: takes the place of device/dev.h for code that is written for nvcc (__CUDACC__ is defined), so
 * that what warps do can be checked where there is no GPU. See tests/warp/warp.h for how lanes run.
 *
 * Only the words that the unpack kernels and reductions use are here; barriers of a block are not among them.
 */
#ifndef GANTRY_DEVICE_DEV_H
#define GANTRY_DEVICE_DEV_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define DEV static inline __attribute__((unused))
#define __shared__ static /* one for all blocks: such kernels are run with one */
#define __align__(n) __attribute__((aligned(n)))

#include "gantry/fifo.h"
#include "warp.h"

struct uint4 {
	uint32_t x, y, z, w;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return uint4{x, y, z, w};
}

DEV uint32_t dev_lane(void)
{
	return warp_now->lane;
}
DEV uint32_t dev_lanes(void)
{
	return warp_now->lanes;
}
DEV uint32_t dev_block(void)
{
	return warp_now->block;
}
DEV uint32_t dev_blocks(void)
{
	return warp_now->blocks;
}

/* All lanes have come to the same place, and each has left its value; an index beyond 31 wraps, as in hardware. */
template <class T>
static T warp_shfl(int line, uint32_t mask, T v, uint32_t from)
{
	return (T)warp_meet(line, mask, (uint64_t)v)[from & 31];
}
template <class T>
static T warp_shfl_down(int line, uint32_t mask, T v, uint32_t by)
{
	const uint32_t lane = dev_lane() & 31;

	return (T)warp_meet(line, mask, (uint64_t)v)[lane + by < 32 ? lane + by : lane];
}
template <class T>
static T warp_shfl_up(int line, uint32_t mask, T v, uint32_t by)
{
	const uint32_t lane = dev_lane() & 31;

	return (T)warp_meet(line, mask, (uint64_t)v)[lane >= by ? lane - by : lane];
}
static inline uint32_t warp_ballot(int line, uint32_t mask, int yes)
{
	const uint64_t *all = warp_meet(line, mask, yes != 0);
	uint32_t bits = 0;

	for (int i = 0; i < 32; i++)
		bits |= (uint32_t)all[i] << i;
	return bits;
}
#define __shfl_sync(mask, v, from) warp_shfl(__LINE__, mask, v, from)
#define __shfl_down_sync(mask, v, by) warp_shfl_down(__LINE__, mask, v, by)
#define __shfl_up_sync(mask, v, by) warp_shfl_up(__LINE__, mask, v, by)
#define __ballot_sync(mask, yes) warp_ballot(__LINE__, mask, yes)
#define __all_sync(mask, yes) (warp_ballot(__LINE__, mask, yes) == 0xffffffffu)
#define __any_sync(mask, yes) (warp_ballot(__LINE__, mask, yes) != 0)
#define __syncwarp() ((void)warp_ballot(__LINE__, 0xffffffffu, 1))

static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by)
{
	return (uint32_t)((low | (uint64_t)high << 32) >> (by & 31));
}
#define __fadd_rn(a, b) ((a) + (b))
#define __fmul_rn(a, b) ((a) * (b))
#define __dadd_rn(a, b) ((a) + (b))
#define __dmul_rn(a, b) ((a) * (b))
/* Of a number and a NaN the number, also if that is a signalling NaN, other than libm's. */
template <class T>
static T warp_max(T a, T b)
{
	return std::isnan(b) || a > b ? a : b;
}
template <class T>
static T warp_min(T a, T b)
{
	return std::isnan(b) || a < b ? a : b;
}
#define fmaxf(a, b) warp_max<float>(a, b)
#define fminf(a, b) warp_min<float>(a, b)
#define fmax(a, b) warp_max<double>(a, b)
#define fmin(a, b) warp_min<double>(a, b)
static inline uint32_t __float_as_uint(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return u;
}
static inline float __uint_as_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}

DEV uint64_t dev_bcast(uint64_t v)
{
	return v; /* of a block: not used here */
}
DEV uint64_t dev_load(const uint64_t *p)
{
	return *p;
}
DEV uint64_t dev_gather8(const char *p, uint32_t n)
{
	uint64_t v = 0;

	warp_read(p, n);
	memcpy(&v, p, n);
	return v;
}
DEV void dev_scatter8(char *p, uint64_t v, uint32_t n)
{
	warp_write(p, n);
	memcpy(p, &v, n);
}

#include "device/cuda/dev_copy.h"

#endif
