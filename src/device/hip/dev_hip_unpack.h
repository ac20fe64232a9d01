/* SPDX-License-Identifier: Apache-2.0 */
/* dev_unpack for AMD GPUs: a block copies fragment after fragment, with all its lanes. Part of k_unpack.h. */
#ifndef GANTRY_DEVICE_HIP_DEV_HIP_UNPACK_H
#define GANTRY_DEVICE_HIP_DEV_HIP_UNPACK_H

DEV void dev_unpack(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	for (uint64_t i = share; i < f->n; i += shares) {
		const struct gantry_unpack_desc *d = &f->descs[i];
		/* Not by pointer arithmetic: a base may be 0. */
		char *page = (char *)((uintptr_t)f->bounce + d->src_off);
		char *place = (char *)((uintptr_t)f->dst + (uintptr_t)d->dst_off);

		dev_copy(f->gather ? page : place, f->gather ? place : page, d->len);
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
