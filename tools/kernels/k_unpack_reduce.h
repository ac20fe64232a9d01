/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking into a reduction: what arrives is combined with an input on its way, and never stored by itself.
 *
 * An element belongs to the fragment that has its first byte. So a fragment answers for the elements from the first
 * that starts in it to the last, of which up to 7 bytes may lie in the fragments that follow: they are looked up there.
 * The bytes before its first element are somebody else's.
 */
#ifndef GANTRY_KERNELS_K_UNPACK_REDUCE_H
#define GANTRY_KERNELS_K_UNPACK_REDUCE_H

#include "device/k_reduce.h"
#include "device/k_unpack.h"
#include "kernels/bench.h"

struct dev_unpack_sum {
	struct dev_frags f; /* dst: of the output */
	uintptr_t input;    /* the same place in the input */
	uint32_t type, elem, op, last;
	uint64_t scalar;
};

/* Where byte `pos` of the array lies, which is not in fragments up to i but in one that follows. 0: nowhere. */
DEV const char *dev_unpack_byte(const struct dev_frags *f, uint64_t i, uint64_t pos)
{
	while (++i < (uint32_t)f->n) { /* less than 2^31 */
		struct gantry_unpack_desc d = f->descs[i];

		if (pos >= d.dst_off && pos - d.dst_off < d.len)
			return (const char *)((uintptr_t)f->bounce + d.src_off + (uintptr_t)(pos - d.dst_off));
		if (d.len && pos < d.dst_off)
			break; /* not sorted, or with a gap: there is no such byte */
	}
	return NULL;
}

#ifdef __CUDACC__
#include "kernels/dev_unpack_reduce.h"
#else
/* n elements at `pos` of the input with those that arrived. */
DEV void dev_unpack_join(const struct dev_unpack_sum *r, uint64_t pos, const void *arrived, char *dst, uint64_t n)
{
	const char *const srcs[2] = {(const char *)(r->input + (uintptr_t)pos), arrived};
	const struct dev_reduction d = {srcs, &dst, 2, 1, r->type, r->op, r->scalar, 0, r->last};

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

/* Fragment i, by one lane. Its bytes may lie at any address, so they are brought to an aligned one. */
DEV void dev_unpack_sum_one(const struct dev_unpack_sum *r, uint64_t i)
{
	char piece[DEV_PIECE] __attribute__((aligned(64)));
	struct gantry_unpack_desc d = r->f.descs[i];
	uint64_t end = d.dst_off + d.len, pos = (d.dst_off + r->elem - 1) / r->elem * r->elem, n;

	for (; pos + r->elem <= end; pos += n) {
		n = end - pos < DEV_PIECE ? (end - pos) / r->elem * r->elem : (uint64_t)DEV_PIECE;
		memcpy(piece, (const char *)((uintptr_t)r->f.bounce + d.src_off + (uintptr_t)(pos - d.dst_off)), n);
		dev_unpack_join(r, pos, piece, (char *)((uintptr_t)r->f.dst + (uintptr_t)pos), n / r->elem);
	}
	if (pos < end)
		dev_unpack_cut(r, i, (const char *)((uintptr_t)r->f.bounce + d.src_off + (uintptr_t)(pos - d.dst_off)),
			       pos, end);
}

DEV void dev_unpack_reduce(const struct dev_unpack_sum *r, uint32_t share, uint32_t shares)
{
	const uint64_t all = (uint64_t)shares * dev_lanes();

	for (uint64_t i = (uint64_t)share * dev_lanes() + dev_lane(); i < r->f.n; i += all)
		dev_unpack_sum_one(r, i);
}
#endif

DEV void k_unpack_reduce(const struct gantry_unpack_reduce_args *a)
{
	struct dev_unpack_sum r;

	r.f.descs = a->descs;
	r.f.n = dev_unpack_count(a->count, a->n);
	r.f.bounce = (char *)a->bounce;
	r.f.dst = a->output;
	r.f.gather = 0;
	r.input = (uintptr_t)a->input;
	r.type = a->type;
	r.elem = dev_type_bytes(a->type);
	r.op = a->op;
	r.last = a->last;
	r.scalar = a->scalar;
	if (r.elem)
		dev_unpack_reduce(&r, dev_block(), dev_blocks());
}

#endif
