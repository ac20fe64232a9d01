/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementwise reduction and copy, without peers. The arithmetic and its rules are in types_dev.h.
 *
 * Sources are combined strictly in their order; the local input stands wherever its rank belongs, and `premul` says
 * where if PREMUL is to multiply it. Pointers are aligned to the element, otherwise as they like. A destination may be
 * the very same memory as a source, but not overlap it in another way: each piece (on a GPU: each pack) is read from all
 * sources before it is written anywhere.
 */
#ifndef GANTRY_DEVICE_K_REDUCE_H
#define GANTRY_DEVICE_K_REDUCE_H

#include "device/dev.h"
#include "device/types_dev.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
DEV void dev_reduce_many(const struct dev_reduction *d, uint64_t bytes)
{
	struct dev_plan p;

	dev_plan_of(&p, d);
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
	d.premul = DEV_PREMUL_NONE;
	d.scalar = d.last = 0;
	if (ndst > 1 && !odd) /* a reduction without a step */
		dev_reduce_many(&d, bytes);
	else
		for (uint32_t j = 0; j < ndst; j++)
			if (dsts[j] != src)
				dev_copy(dsts[j], src, bytes);
}
#else
/* Each lane has a contiguous part. */
DEV void dev_reduce_many(const struct dev_reduction *r, uint64_t bytes)
{
	uint64_t part = dev_lanes() == 1 ? bytes : (bytes / dev_lanes() + 64) & ~63ull, at = part * dev_lane();

	if (at < bytes)
		dev_reduce_span(r, at, dev_type_count(r->type, bytes - at < part ? bytes - at : part));
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
	if (r->nsrc == 1 && dev_red_single(r->op, r->premul, r->last) == DEV_RED_NONE)
		dev_copy_all(r->srcs[0], r->dsts, r->ndst, bytes);
	else
		dev_reduce_many(r, bytes);
}

#endif
