/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking as NCCL's kernels do it, written anew from a description of it: what `gantry perf unpack` compares with.
 * Not used anywhere else.
 *
 * A warp takes up to four descriptors at a time into its scratch. Each fragment goes at the largest width, up to 16,
 * that divides both offsets, with one load and one store of the warp at a time; the bytes behind the last whole 16 go
 * one per lane. On the host a lane stands for a warp.
 */
#ifndef GANTRY_KERNELS_K_UNPACK_SEED_H
#define GANTRY_KERNELS_K_UNPACK_SEED_H

#include "device/dev.h"
#include "kernels/bench.h"

enum { DEV_SEED_PAGES = 4, DEV_SEED_PAGE = 4096 };

/* How many descriptors a warp takes at a time. */
DEV uint32_t dev_seed_pages(uint64_t bytes, uint64_t warps)
{
	uint64_t pages = (bytes + DEV_SEED_PAGE - 1) / DEV_SEED_PAGE, n = (pages + warps - 1) / warps;

	while (n > DEV_SEED_PAGES)
		n /= 2;
	return n ? (uint32_t)n : 1;
}

#ifdef __CUDACC__
/* Volatile loads, as there: no two of them are in flight in one lane. */
DEV void dev_seed_load(const char *p, uint4 *ret_v)
{
	asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(ret_v->x), "=r"(ret_v->y), "=r"(ret_v->z), "=r"(ret_v->w)
		     : "l"(p)
		     : "memory");
}
template <class T>
DEV void dev_seed_load(const char *p, T *ret_v)
{
	*ret_v = *(const volatile T *)p;
}
template <class T>
DEV void dev_seed_bulk(uint32_t t, uint32_t len, const char *s, char *d)
{
#pragma unroll 1
	for (uint64_t i = t * sizeof(T); i + sizeof(T) <= len; i += 32 * sizeof(T)) {
		T v;

		dev_seed_load(s + i, &v);
		*(T *)(d + i) = v;
	}
}

DEV void dev_seed_copy(uint32_t t, uint32_t width, uint32_t len, const char *s, char *d)
{
	if (len >= 16) {
		if (width == 0)
			dev_seed_bulk<uint4>(t, len, s, d);
		else if (width & 8)
			dev_seed_bulk<uint64_t>(t, len, s, d);
		else if (width & 4)
			dev_seed_bulk<uint32_t>(t, len, s, d);
		else if (width & 2)
			dev_seed_bulk<uint16_t>(t, len, s, d);
		else
			dev_seed_bulk<uint8_t>(t, len, s, d);
	}
	if (t < len % 16) {
		uint64_t at = len / 16 * 16 + t;

		*(volatile char *)(d + at) = *(const volatile char *)(s + at);
	}
}

DEV void k_unpack_seed(const struct gantry_unpack_seed_args *a)
{
	__shared__ uint4 scratch[16][DEV_SEED_PAGES];
	const uint32_t here = dev_lane() / 32, t = dev_lane() % 32;
	const uint64_t w = (uint64_t)dev_block() * (dev_lanes() / 32) + here;
	const uint64_t nw = (uint64_t)dev_blocks() * (dev_lanes() / 32);
	const uint32_t pages = dev_seed_pages(a->bytes, nw);

	for (uint64_t from = w * pages; from < a->n; from += nw * pages) {
		uint32_t n = a->n - from < pages ? (uint32_t)(a->n - from) : pages;

		if (t < n)
			dev_seed_load((const char *)(a->descs + from + t), &scratch[here][t]);
		__syncwarp();
		for (uint32_t x = 0; x < n; x++) {
			uint4 m = scratch[here][x];
			uint64_t dst = m.z | (uint64_t)m.w << 32;
			uint32_t odd = (m.x | (uint32_t)dst) & 15;

			dev_seed_copy(t, odd & (0 - odd), m.y, a->bounce + m.x, a->dst + dst);
		}
		__syncwarp();
	}
}
#else
DEV void k_unpack_seed(const struct gantry_unpack_seed_args *a)
{
	const uint64_t w = (uint64_t)dev_block() * dev_lanes() + dev_lane(), nw = (uint64_t)dev_blocks() * dev_lanes();
	const uint32_t pages = dev_seed_pages(a->bytes, nw);

	for (uint64_t from = w * pages; from < a->n; from += nw * pages)
		for (uint64_t i = from; i < a->n && i < from + pages; i++) {
			const struct gantry_unpack_desc *m = &a->descs[i];
			const char *s = a->bounce + m->src_off;
			char *d = a->dst + m->dst_off;
			uint32_t odd = (m->src_off | (uint32_t)m->dst_off) & 15;
			uint32_t width = odd ? odd & (0 - odd) : 16, at = 0;

			for (; m->len >= 16 && at + width <= m->len; at += width)
				memcpy(d + at, s + at, width);
			for (; at < m->len; at++)
				d[at] = s[at];
		}
}
#endif

#endif
