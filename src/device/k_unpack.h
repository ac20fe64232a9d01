/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking: the fragments of a received message, which lie on pages in any order, are copied to where they belong; or
 * gathered from there.
 *
 * A descriptor (abi/unpack.h) says which bytes; see gantry_unpack_args in work.h for what may be asked. On a GPU a warp
 * takes batches of descriptors (cuda/dev_unpack.h), on the host a lane takes one at a time. unpack_launch.c says which
 * of the two kernels a list should have; both unpack any list, with any number of blocks.
 */
#ifndef GANTRY_DEVICE_K_UNPACK_H
#define GANTRY_DEVICE_K_UNPACK_H

#include "device/dev.h"
#include "device/work.h"

/* The list that blocks share. */
struct dev_frags {
	const struct gantry_unpack_desc *descs;
	uint64_t n;
	char *bounce, *dst;
	uint32_t gather;
};

/*
 * block: its share of the list, one of `shares`. Descriptors are read like payload: those written during this kernel
 * are ordered by an acquire and a barrier. Ends without a barrier. dev_unpack is for blocks that have many fragments
 * each, dev_unpack_grid for short blocks, as many as the list needs, dev_unpack_beside for one block of a kernel that
 * does other things too.
 */
#if defined(__CUDACC__)
#include "device/cuda/dev_unpack.h"
#elif defined(__HIPCC__)
#include "device/hip/dev_hip_unpack.h"
#else
DEV void dev_unpack(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	for (uint64_t i = (uint64_t)share * dev_lanes() + dev_lane(); i < f->n; i += (uint64_t)shares * dev_lanes()) {
		const struct gantry_unpack_desc *d = &f->descs[i];
		/* Not by pointer arithmetic: a base may be 0. */
		char *page = (char *)((uintptr_t)f->bounce + d->src_off);
		char *place = (char *)((uintptr_t)f->dst + (uintptr_t)d->dst_off);

		if (d->len)
			memcpy(f->gather ? page : place, f->gather ? place : page, d->len);
	}
}
DEV void dev_unpack_grid(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	dev_unpack(f, share, shares);
}
DEV void dev_unpack_beside(const struct dev_frags *f)
{
	dev_unpack(f, 0, 1);
}
#endif

/* block: how many descriptors there are. */
DEV uint64_t dev_unpack_count(const uint64_t *count, uint64_t n)
{
	return count ? dev_bcast(dev_lane() == 0 ? dev_load(count) : 0) : n;
}

DEV void dev_unpack_list(const struct gantry_unpack_args *a, struct dev_frags *ret_f)
{
	ret_f->descs = a->descs;
	ret_f->n = dev_unpack_count(a->count, a->n);
	ret_f->bounce = a->bounce;
	ret_f->dst = a->dst;
	ret_f->gather = a->gather;
}
DEV void k_unpack(const struct gantry_unpack_args *a)
{
	struct dev_frags f;

	dev_unpack_list(a, &f);
	dev_unpack(&f, dev_block(), dev_blocks());
}
DEV void k_unpack_grid(const struct gantry_unpack_args *a)
{
	struct dev_frags f;

	dev_unpack_list(a, &f);
	dev_unpack_grid(&f, dev_block(), dev_blocks());
}

#endif
