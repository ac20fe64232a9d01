/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev_copy for GPUs of both vendors: a block copies at full width whatever the alignment. Part of dev_cuda.h and of
 * hip/dev_hip.h.
 *
 *   both ends agree modulo 16    16-byte loads and stores, 4 of each in flight per lane
 *   they differ                  16-byte aligned stores; each is cut out of two aligned loads by a funnel shift. The
 *                                second load is the next lane's first, so it is a hit in L1
 *   less than 64 bytes           by bytes: one load and one store per lane
 *
 * The bytes before the first and after the last aligned store are copied one by one. Nothing past the end of `src` is
 * read; before its start, at most the rest of the aligned 16 bytes, which lie in the same allocation.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_COPY_H
#define GANTRY_DEVICE_CUDA_DEV_COPY_H

#ifdef __HIPCC__
#include "device/hip/dev_hip_access.h"
#else
#include "device/cuda/dev_access.h"
#endif

enum { DEV_COPY_SMALL = 64 };

/* Bytes [0, head) and [from, from + tail). */
DEV void dev_copy_ends(char *dst, const char *src, uint32_t head, uint64_t from, uint32_t tail)
{
	for (uint32_t i = dev_lane(); i < head + tail; i += dev_lanes()) {
		uint64_t at = i < head ? i : from + (i - head);

		dev_store_byte(dst + at, dev_load_byte(src + at));
	}
}

DEV void dev_copy_aligned(char *dst, const char *src, uint64_t vecs)
{
	const uint64_t lanes = dev_lanes();
	uint64_t i = dev_lane();

	for (; i + 3 * lanes < vecs; i += 4 * lanes) {
		uint4 a = dev_load16_once(src + 16 * i);
		uint4 b = dev_load16_once(src + 16 * (i + lanes));
		uint4 c = dev_load16_once(src + 16 * (i + 2 * lanes));
		uint4 d = dev_load16_once(src + 16 * (i + 3 * lanes));

		dev_store16(dst + 16 * i, a);
		dev_store16(dst + 16 * (i + lanes), b);
		dev_store16(dst + 16 * (i + 2 * lanes), c);
		dev_store16(dst + 16 * (i + 3 * lanes), d);
	}
	/* At most three are left: again all loads before the first store, so that they cost one latency together. */
	if (i < vecs) {
		uint4 a = dev_load16_once(src + 16 * i), b = a, c = a;

		if (i + lanes < vecs)
			b = dev_load16_once(src + 16 * (i + lanes));
		if (i + 2 * lanes < vecs)
			c = dev_load16_once(src + 16 * (i + 2 * lanes));
		dev_store16(dst + 16 * i, a);
		if (i + lanes < vecs)
			dev_store16(dst + 16 * (i + lanes), b);
		if (i + 2 * lanes < vecs)
			dev_store16(dst + 16 * (i + 2 * lanes), c);
	}
}

/* Bytes shift .. shift + 15 of the 32 in a and b. Two rounds of selects instead of an index: registers have none. */
DEV uint4 dev_funnel(uint4 a, uint4 b, uint32_t shift)
{
	const uint32_t two = shift & 8, one = shift & 4, bits = 8 * (shift & 3);
	uint32_t t0 = two ? a.z : a.x, t1 = two ? a.w : a.y, t2 = two ? b.x : a.z;
	uint32_t t3 = two ? b.y : a.w, t4 = two ? b.z : b.x, t5 = two ? b.w : b.y;
	uint4 v;

	t0 = one ? t1 : t0;
	t1 = one ? t2 : t1;
	t2 = one ? t3 : t2;
	t3 = one ? t4 : t3;
	t4 = one ? t5 : t4;
	v.x = __funnelshift_r(t0, t1, bits);
	v.y = __funnelshift_r(t1, t2, bits);
	v.z = __funnelshift_r(t2, t3, bits);
	v.w = __funnelshift_r(t3, t4, bits);
	return v;
}

/* src is aligned; the bytes wanted start `shift` into it. Reads vecs + 1 vectors, writes vecs. Not inlined: it is large
 * and stands in every kernel several times, and a call costs nothing beside the copy. */
static __device__ __noinline__ void dev_copy_shifted(char *dst, const char *src, uint64_t vecs, uint32_t shift)
{
	const uint64_t lanes = dev_lanes();
	uint64_t i = dev_lane();

	for (; i + 3 * lanes < vecs; i += 4 * lanes) {
		const char *s = src + 16 * i;
		char *d = dst + 16 * i;
		uint4 a0 = dev_load16(s), a1 = dev_load16(s + 16);
		uint4 b0 = dev_load16(s + 16 * lanes), b1 = dev_load16(s + 16 * lanes + 16);
		uint4 c0 = dev_load16(s + 32 * lanes), c1 = dev_load16(s + 32 * lanes + 16);
		uint4 d0 = dev_load16(s + 48 * lanes), d1 = dev_load16(s + 48 * lanes + 16);

		dev_store16(d, dev_funnel(a0, a1, shift));
		dev_store16(d + 16 * lanes, dev_funnel(b0, b1, shift));
		dev_store16(d + 32 * lanes, dev_funnel(c0, c1, shift));
		dev_store16(d + 48 * lanes, dev_funnel(d0, d1, shift));
	}
	if (i < vecs) {
		const char *s = src + 16 * i;
		char *d = dst + 16 * i;
		uint4 a0 = dev_load16(s), a1 = dev_load16(s + 16), b0 = a0, b1 = a1, c0 = a0, c1 = a1;

		if (i + lanes < vecs) {
			b0 = dev_load16(s + 16 * lanes);
			b1 = dev_load16(s + 16 * lanes + 16);
		}
		if (i + 2 * lanes < vecs) {
			c0 = dev_load16(s + 32 * lanes);
			c1 = dev_load16(s + 32 * lanes + 16);
		}
		dev_store16(d, dev_funnel(a0, a1, shift));
		if (i + lanes < vecs)
			dev_store16(d + 16 * lanes, dev_funnel(b0, b1, shift));
		if (i + 2 * lanes < vecs)
			dev_store16(d + 32 * lanes, dev_funnel(c0, c1, shift));
	}
}

DEV void dev_copy(void *dst, const void *src, uint64_t n)
{
	char *d = (char *)dst;
	const char *s = (const char *)src;
	const uint32_t head = (uint32_t)(0 - (uintptr_t)d) & 15;
	const uint32_t shift = (uint32_t)((uintptr_t)s + head) & 15;
	uint64_t vecs;

	if (n < DEV_COPY_SMALL) {
		dev_copy_ends(d, s, (uint32_t)n, 0, 0);
		return;
	}
	if (shift == 0) {
		vecs = (n - head) / 16;
		dev_copy_aligned(d + head, s + head, vecs);
	} else {
		vecs = (n - head + shift) / 16 - 1; /* aligned vectors that end within src, less one: each needs two */
		dev_copy_shifted(d + head, s + head - shift, vecs, shift);
	}
	dev_copy_ends(d, s, head, head + 16 * vecs, (uint32_t)(n - head - 16 * vecs));
}

#endif
