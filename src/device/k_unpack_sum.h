/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking into a reduction: what arrives is combined with an input on its way, and never stored by itself.
 *
 * An element belongs to the fragment that has its first byte. So a fragment answers for the elements from the first
 * that starts in it to the last, of which up to 7 bytes may lie in other fragments: they are looked up there. The bytes
 * before its first element are another fragment's.
 */
#ifndef GANTRY_DEVICE_K_UNPACK_SUM_H
#define GANTRY_DEVICE_K_UNPACK_SUM_H

#include "device/k_reduce.h"
#include "device/k_unpack.h"

struct dev_unpack_sum {
	struct dev_frags f; /* dst: of the output */
	uintptr_t input;    /* the same place in the input */
	uint32_t input_at;  /* 1: what arrives stands before the input */
	uint32_t premul;    /* input_at, or DEV_PREMUL_NONE: as in dev_reduction */
	uint32_t type, elem, op, last;
	uint64_t scalar;
};

/* Where byte `pos` of the array lies, which is not in fragment i: most likely in the next one. NULL: nowhere. */
DEV const char *dev_unpack_byte(const struct dev_frags *f, uint64_t i, uint64_t pos)
{
	const uint32_t n = (uint32_t)f->n; /* less than 2^31 */

	for (uint32_t k = 1, at = (uint32_t)i + 1; k < n; k++, at++) {
		struct gantry_unpack_desc d;

		at = at < n ? at : 0;
		d = f->descs[at];
		if (pos >= d.dst_off && pos - d.dst_off < d.len)
			return (const char *)((uintptr_t)f->bounce + d.src_off + (uintptr_t)(pos - d.dst_off));
	}
	return NULL;
}

#if defined(__CUDACC__)
#include "device/cuda/dev_unpack_sum.h"
#elif defined(__HIPCC__)
#include "device/hip/dev_hip_unpack_sum.h"
#else
/* n elements at `pos` of the input with those that arrived. */
DEV void dev_unpack_join(const struct dev_unpack_sum *r, uint64_t pos, const void *arrived, char *dst, uint64_t n)
{
	const char *const input = (const char *)(r->input + (uintptr_t)pos);
	const char *const srcs[2] = {r->input_at ? arrived : input, r->input_at ? input : arrived};
	const struct dev_reduction d = {srcs, &dst, 2, 1, r->type, r->op, r->scalar, r->premul, r->last};

	dev_reduce_span(&d, 0, n);
}

/* An element that ends in other fragments. */
DEV void dev_unpack_cut(const struct dev_unpack_sum *r, uint64_t i, const char *src, uint64_t pos, uint64_t end)
{
	uint64_t word = 0, result;
	char bytes[8];

	for (uint32_t k = 0; k < r->elem; k++) {
		const char *p = pos + k < end ? src + k : dev_unpack_byte(&r->f, i, pos + k);

		bytes[k] = p ? *p : 0;
	}
	memcpy(&word, bytes, r->elem);
	dev_unpack_join(r, pos, &word, (char *)&result, 1);
	memcpy((char *)((uintptr_t)r->f.dst + (uintptr_t)pos), &result, r->elem);
}

/* Fragment i, by one lane. Bytes at an address that elements cannot have are brought to one that they can. */
DEV void dev_unpack_sum_one(const struct dev_unpack_sum *r, uint64_t i)
{
	char piece[DEV_PIECE] __attribute__((aligned(64)));
	struct gantry_unpack_desc d = r->f.descs[i];
	uint64_t end = d.dst_off + d.len, pos = (d.dst_off + r->elem - 1) / r->elem * r->elem, n;
	/* Of the byte at 0 of the array, if the fragment went back that far. */
	uintptr_t src = (uintptr_t)r->f.bounce + d.src_off - (uintptr_t)d.dst_off;
	const int odd = src % r->elem != 0;

	for (; pos + r->elem <= end; pos += n) {
		n = odd && end - pos >= DEV_PIECE ? (uint64_t)DEV_PIECE : (end - pos) / r->elem * r->elem;
		if (odd)
			memcpy(piece, (const char *)(src + (uintptr_t)pos), n);
		dev_unpack_join(r, pos, odd ? piece : (const char *)(src + (uintptr_t)pos),
				(char *)((uintptr_t)r->f.dst + (uintptr_t)pos), n / r->elem);
	}
	if (pos < end)
		dev_unpack_cut(r, i, (const char *)(src + (uintptr_t)pos), pos, end);
}

DEV void dev_unpack_reduce(const struct dev_unpack_sum *r, uint32_t share, uint32_t shares)
{
	const uint64_t all = (uint64_t)shares * dev_lanes();

	for (uint64_t i = (uint64_t)share * dev_lanes() + dev_lane(); i < r->f.n; i += all)
		dev_unpack_sum_one(r, i);
}
DEV void dev_unpack_reduce_beside(const struct dev_unpack_sum *r)
{
	dev_unpack_reduce(r, 0, 1);
}
#endif

#endif
