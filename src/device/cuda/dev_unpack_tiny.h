/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of nothing but tiny fragments. Part of dev_unpack.h.
 *
 * An item costs the same however little is in it, which is most of what a fragment of a few bytes costs. So where all
 * fragments of a batch are tiny, the warp takes the whole batch at once: 32 / BATCH lanes for each of them, each with
 * every so many-th byte.
 *
 * A batch that is not all tiny goes the usual way; items that are loaded by then are stored first, as what is done here
 * has no place beside them in the registers.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_TINY_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_TINY_H

enum { DEV_UNPACK_TINY = 32 };

/* Whether the next batch is that; also if there is none. Waits for its descriptors. */
DEV int dev_unpack_is_tiny(const struct dev_unpack_walk *w)
{
	const uint32_t lane = dev_lane() & 31;

	return __all_sync(DEV_WARP_ALL, lane >= w->next_have || w->next.y <= DEV_UNPACK_TINY) && w->next_splits == 1;
}

template <class FORM>
DEV void dev_unpack_tiny_batch(struct dev_unpack_walk *w)
{
	const uint32_t lane = dev_lane() & 31, lanes = 32 / FORM::BATCH, rounds = DEV_UNPACK_TINY / lanes;
	const uint32_t of = lane / lanes, from = lane % lanes;
	struct dev_unpack_copy copy;
	uint32_t len, v[rounds];
	char *d, *s;

	copy.ends(w, &d, &s);
	len = __shfl_sync(DEV_WARP_ALL, lane < w->next_have ? w->next.y : 0, of);
	d = (char *)__shfl_sync(DEV_WARP_ALL, (unsigned long long)d, of);
	s = (char *)__shfl_sync(DEV_WARP_ALL, (unsigned long long)s, of);
	dev_unpack_fetch<FORM>(w);
#pragma unroll
	for (uint32_t u = 0; u < rounds; u++)
		v[u] = dev_load_byte_if(s + from + lanes * u, from + lanes * u < len);
#pragma unroll
	for (uint32_t u = 0; u < rounds; u++)
		dev_store_byte_if(d + from + lanes * u, v[u], from + lanes * u < len);
}

/* All tiny batches up to the next that is not. 0: the list has ended. */
template <class FORM>
DEV int dev_unpack_tiny_batches(struct dev_unpack_walk *w)
{
	while (w->next_have && dev_unpack_is_tiny(w))
		dev_unpack_tiny_batch<FORM>(w);
	return w->next_have != 0;
}

#endif
