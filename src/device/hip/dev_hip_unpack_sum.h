/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacking into a reduction for AMD GPUs: a block takes fragment after fragment, a lane an element. Part of
 * k_unpack_sum.h. */
#ifndef GANTRY_DEVICE_HIP_DEV_HIP_UNPACK_SUM_H
#define GANTRY_DEVICE_HIP_DEV_HIP_UNPACK_SUM_H

/* The element at `pos`, which starts in fragment i; src: of its first byte; end: of the fragment. */
DEV uint64_t dev_unpack_element(const struct dev_unpack_sum *r, uint64_t i, const char *src, uint64_t pos, uint64_t end)
{
	uint64_t v = 0;

	if (pos + r->elem <= end)
		return dev_gather8(src, r->elem);
	for (uint32_t k = 0; k < r->elem; k++) {
		const char *p = pos + k < end ? src + k : dev_unpack_byte(&r->f, i, pos + k);

		v |= (uint64_t)(p ? (unsigned char)*p : 0) << 8 * k;
	}
	return v;
}

DEV void dev_unpack_join(const struct dev_unpack_sum *r, uint64_t pos, uint64_t arrived)
{
	uint64_t input = dev_gather8((const char *)(r->input + (uintptr_t)pos), r->elem), result = 0;
	const char *const srcs[2] = {(const char *)(r->input_at ? &arrived : &input),
				     (const char *)(r->input_at ? &input : &arrived)};
	char *const dst = (char *)&result;
	const struct dev_reduction d = {srcs, &dst, 2, 1, r->type, r->op, r->scalar, r->premul, r->last};

	dev_words_reduce(&d, 1);
	dev_scatter8((char *)((uintptr_t)r->f.dst + (uintptr_t)pos), result, r->elem);
}

DEV void dev_unpack_reduce(const struct dev_unpack_sum *r, uint32_t share, uint32_t shares)
{
	for (uint64_t i = share; i < r->f.n; i += shares) {
		const struct gantry_unpack_desc d = r->f.descs[i];
		const uint64_t first = (d.dst_off + r->elem - 1) / r->elem * r->elem, end = d.dst_off + d.len;
		/* Of the byte at 0 of the array, if the fragment went back that far. */
		const uintptr_t src = (uintptr_t)r->f.bounce + d.src_off - (uintptr_t)d.dst_off;

		for (uint64_t pos = first + (uint64_t)dev_lane() * r->elem; pos < end;
		     pos += (uint64_t)dev_lanes() * r->elem)
			dev_unpack_join(r, pos,
					dev_unpack_element(r, i, (const char *)(src + (uintptr_t)pos), pos, end));
	}
}
DEV void dev_unpack_reduce_beside(const struct dev_unpack_sum *r)
{
	dev_unpack_reduce(r, 0, 1);
}

#endif
