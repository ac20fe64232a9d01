/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementwise reduction and copy, without peers. The arithmetic and its rules are in types_dev.h.
 *
 * Sources are combined in their order, source 0 first; it is the local input, the one that PREMUL multiplies when
 * `premul_first` says that it is among them. Pointers are aligned to the element, otherwise as they like. A destination
 * may be the very same memory as a source, but not overlap it in another way: each piece (on a GPU: each pack) is read
 * from all sources before it is written anywhere.
 */
#ifndef GANTRY_DEVICE_K_REDUCE_H
#define GANTRY_DEVICE_K_REDUCE_H

#include "device/dev.h"
#include "device/types_dev.h"

/* The step that joins source i > 0, of nsrc, to the ones before. */
DEV uint32_t dev_red_step(uint32_t op, uint32_t i, uint32_t nsrc, uint32_t premul_first, uint32_t last)
{
	switch (op) {
	case GANTRY_OP_PROD:
		return DEV_RED_PROD;
	case GANTRY_OP_MAX:
		return DEV_RED_MAX;
	case GANTRY_OP_MIN:
		return DEV_RED_MIN;
	case GANTRY_OP_AVG:
		return last && i + 1 == nsrc ? DEV_RED_AVG : DEV_RED_SUM;
	case GANTRY_OP_PREMUL:
		return premul_first && i == 1 ? DEV_RED_PREMUL : DEV_RED_SUM;
	default:
		return DEV_RED_SUM;
	}
}

/* Elements of all sources, reduced, in all destinations. */
struct dev_reduction {
	const char *const *srcs;
	char *const *dsts;
	uint32_t nsrc, ndst;
	uint32_t type, op;
	uint64_t scalar;
	uint32_t premul_first; /* PREMUL scales source 0 */
	uint32_t last;	       /* AVG divides */
};

/* What happens to a single source. */
DEV uint32_t dev_red_single(uint32_t op, uint32_t premul_first, uint32_t last)
{
	if (op == GANTRY_OP_PREMUL && premul_first)
		return DEV_RED_SCALE;
	return op == GANTRY_OP_AVG && last ? DEV_RED_DIV : DEV_RED_NONE;
}

/* On the host a piece, of sources and destinations together, stays in L1. */
enum { DEV_PIECE = 16384 };

#ifdef __CUDACC__
DEV void dev_reduce_many(const struct dev_reduction *d, uint64_t bytes)
{
	const uint32_t single = dev_red_single(d->op, d->premul_first, d->last), n = d->nsrc;
	struct dev_plan p;

	p.srcs = d->srcs;
	p.dsts = d->dsts;
	p.nsrc = n;
	p.ndst = d->ndst;
	p.type = d->type;
	p.first = n == 1 && single != DEV_RED_NONE ? single : dev_red_step(d->op, 1, n, d->premul_first, d->last);
	p.mid = dev_red_step(d->op, 0, 0, d->premul_first, d->last);
	p.last = dev_red_step(d->op, n - 1, n, d->premul_first, d->last);
	p.s = dev_scalar_bits(d->type, p.first >= DEV_RED_PREMUL ? p.first : p.last, d->scalar);
	dev_block_reduce(p, bytes);
}

/* One source. It is read once for all destinations if the pointers agree; dev_copy is better at those that do not. */
DEV void dev_copy_all(const char *src, char *const *dsts, uint32_t ndst, uint64_t bytes)
{
	struct dev_reduction d;
	uint32_t odd = 0;

	for (uint32_t j = 0; j < ndst; j++)
		odd |= (uint32_t)((uintptr_t)dsts[j] ^ (uintptr_t)src) & 15;
	d.srcs = &src;
	d.dsts = dsts;
	d.nsrc = 1;
	d.ndst = ndst;
	d.type = GANTRY_TYPE_UINT8;
	d.op = GANTRY_OP_SUM;
	d.scalar = d.premul_first = d.last = 0;
	if (ndst > 1 && !odd) /* a reduction without a step */
		dev_reduce_many(&d, bytes);
	else
		for (uint32_t j = 0; j < ndst; j++)
			if (dsts[j] != src)
				dev_copy(dsts[j], src, bytes);
}
#else
/* One piece, by one lane. Partial results are kept aside: a destination may be a source that is still to be read. */
DEV void dev_reduce_piece(const struct dev_reduction *r, uint64_t at, uint64_t bytes)
{
	char part[DEV_PIECE] __attribute__((aligned(64)));
	uint64_t n = bytes / dev_type_bytes(r->type);
	const char *a = r->srcs[0] + at;

	if (r->nsrc == 1)
		dev_step(r->type, dev_red_single(r->op, r->premul_first, r->last), r->dsts[0] + at, a, a, n, r->scalar);
	for (uint32_t k = 1; k < r->nsrc; k++) {
		char *d = k + 1 == r->nsrc ? r->dsts[0] + at : part;

		dev_step(r->type, dev_red_step(r->op, k, r->nsrc, r->premul_first, r->last), d, a, r->srcs[k] + at, n,
			 r->scalar);
		a = d;
	}
	for (uint32_t j = 1; j < r->ndst; j++)
		if (r->dsts[j] != r->dsts[0])
			memcpy(r->dsts[j] + at, r->dsts[0] + at, bytes);
}

/* Each lane has a contiguous part. */
DEV void dev_reduce_many(const struct dev_reduction *r, uint64_t bytes)
{
	uint64_t part = (bytes / dev_lanes() + 64) & ~63ull, at = part * dev_lane(), end = at + part, n;

	end = end < bytes ? end : bytes;
	for (; at < end; at += n) {
		n = (r->nsrc > 2 || r->ndst > 1) && end - at > DEV_PIECE ? (uint64_t)DEV_PIECE : end - at;
		dev_reduce_piece(r, at, n);
	}
}

DEV void dev_copy_all(const char *src, char *const *dsts, uint32_t ndst, uint64_t bytes)
{
	uint64_t at, n;

	for (at = 0; at < bytes; at += n) {
		n = ndst > 1 && bytes - at > DEV_PIECE ? (uint64_t)DEV_PIECE : bytes - at;
		for (uint32_t j = 0; j < ndst; j++)
			if (dsts[j] != src)
				dev_copy(dsts[j] + at, src + at, n);
	}
}
#endif

/* block: ends without a barrier. */
DEV void dev_reduce_copy(const struct dev_reduction *r, uint64_t count)
{
	uint64_t bytes = count * dev_type_bytes(r->type);

	if (r->nsrc == 0 || r->ndst == 0 || bytes == 0)
		return;
	if (r->nsrc == 1 && dev_red_single(r->op, r->premul_first, r->last) == DEV_RED_NONE)
		dev_copy_all(r->srcs[0], r->dsts, r->ndst, bytes);
	else
		dev_reduce_many(r, bytes);
}

#endif
