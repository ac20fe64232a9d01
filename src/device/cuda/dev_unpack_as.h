/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking with a change of type for GPUs. Part of k_unpack_as.h.
 *
 * A warp takes a fragment at a time, and each lane four neighbouring elements of it: two loads of eight bytes at most,
 * and as many stores. No lane waits for another, so there are no shuffles. It is not tuned: a lane has up to 16 bytes in
 * flight, where dev_unpack.h has 192.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_AS_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_AS_H

enum { DEV_AS_ELEMS = 4 };

/* Up to 16 bytes at any address. */
DEV void dev_as_load(const char *p, uint32_t bytes, uint64_t ret[2])
{
	ret[0] = dev_gather8(p, bytes < 8 ? bytes : 8);
	ret[1] = bytes > 8 ? dev_gather8(p + 8, bytes - 8) : 0;
}
DEV void dev_as_store(char *p, const uint64_t v[2], uint32_t bytes)
{
	dev_scatter8(p, v[0], bytes < 8 ? bytes : 8);
	if (bytes > 8)
		dev_scatter8(p + 8, v[1], bytes - 8);
}

/* lane: n elements, DEV_AS_ELEMS at most, of `sent` and `stored` bytes: 2 or 4. */
DEV void dev_as_some(char *d, uint32_t to, uint32_t stored, const char *s, uint32_t from, uint32_t sent, uint32_t n)
{
	uint64_t in[2], out[2] = {0, 0};

	dev_as_load(s, n * sent, in);
#pragma unroll
	for (uint32_t k = 0; k < DEV_AS_ELEMS; k++) {
		const uint64_t word = sent == 4 ? in[k / 2] >> 32 * (k % 2) : in[0] >> 16 * k;
		const uint32_t bits = dev_of_float(to, dev_as_float(from, (uint32_t)word));

		if (stored == 4)
			out[k / 2] |= (uint64_t)bits << 32 * (k % 2);
		else
			out[0] |= (uint64_t)(bits & 0xffff) << 16 * k;
	}
	dev_as_store(d, out, n * stored);
}

DEV void dev_unpack_as(const struct dev_frags *f, uint32_t from, uint32_t to, uint32_t share, uint32_t shares)
{
	const uint32_t sent = dev_type_bytes(from), stored = dev_type_bytes(to);
	const uint32_t lane = dev_lane() & 31, warps = dev_lanes() / 32;

	for (uint64_t i = (uint64_t)share * warps + dev_lane() / 32; i < f->n; i += (uint64_t)shares * warps) {
		const struct gantry_unpack_desc d = f->descs[i];
		const uint32_t n = d.len / sent;
		const char *page = f->bounce + d.src_off;
		char *place = f->dst + d.dst_off;

		if (d.dst_off == GANTRY_UNPACK_GOES_ON)
			continue;
		if (d.len % sent) {
			if (lane == 0)
				dev_scatter8(place,
					     dev_of_float(to, dev_as_float(from, dev_unpack_cut_bits(f, i, sent))),
					     stored);
			continue;
		}
		for (uint32_t e = DEV_AS_ELEMS * lane; e < n; e += 32 * DEV_AS_ELEMS)
			dev_as_some(place + (uint64_t)e * stored, to, stored, page + (uint64_t)e * sent, from, sent,
				    n - e < DEV_AS_ELEMS ? n - e : (uint32_t)DEV_AS_ELEMS);
	}
}

#endif
