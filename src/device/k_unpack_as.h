/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking with a change of type: float16, bfloat16 and float32 are stored as one another. To float32 is exact; from
 * it rounds to nearest, ties to even, as types_dev.h has it. Between the two small ones the number passes through
 * float32, where it is exact, so it is rounded once.
 *
 * The list is that of k_unpack.h with two rules more. `len` counts bytes as they arrived, and a fragment has whole
 * elements, the first of which goes to dst + dst_off; the others follow it. An element that lies in several fragments is
 * as many descriptors, one behind the other in the list: the first has fewer bytes than an element and the element's
 * place, the others have GANTRY_UNPACK_GOES_ON for a place. Neither side is aligned, not even to an element. So all that
 * an element takes is in the list where it is read, and none is looked for: the whole message has arrived before the
 * list is made (rx/work.c).
 *
 * Lists have no fragments longer than some pages: a warp takes one at a time.
 */
#ifndef GANTRY_DEVICE_K_UNPACK_AS_H
#define GANTRY_DEVICE_K_UNPACK_AS_H

#include "device/k_unpack.h"
#include "device/types_dev.h"

/* An element to float, and back: in the low bits. Of other types: 0. */
DEV_ELEM float dev_as_float(uint32_t type, uint32_t bits)
{
	switch (type) {
	case GANTRY_TYPE_FLOAT16:
		return dev_f16_load((uint16_t)bits);
	case GANTRY_TYPE_BFLOAT16:
		return dev_bf16_load((uint16_t)bits);
	case GANTRY_TYPE_FLOAT32:
		return dev_bits_float(bits);
	}
	return 0;
}
DEV_ELEM uint32_t dev_of_float(uint32_t type, float f)
{
	switch (type) {
	case GANTRY_TYPE_FLOAT16:
		return dev_f16_store(f);
	case GANTRY_TYPE_BFLOAT16:
		return dev_bf16_store(f);
	case GANTRY_TYPE_FLOAT32:
		return dev_float_bits(f);
	}
	return 0;
}

/* The element that begins with descriptor i and goes on in those behind it. */
DEV uint32_t dev_unpack_cut_bits(const struct dev_frags *f, uint64_t i, uint32_t bytes)
{
	uint32_t bits = 0, have = 0;

	for (; have < bytes && i < f->n; i++) {
		const struct gantry_unpack_desc d = f->descs[i];
		const unsigned char *page = (const unsigned char *)((uintptr_t)f->bounce + d.src_off);

		for (uint32_t k = 0; k < d.len && have < bytes; k++)
			bits |= (uint32_t)page[k] << 8 * have++;
	}
	return bits;
}

#if defined(__CUDACC__) || defined(__HIPCC__)
#include "device/cuda/dev_unpack_as.h"
#else
enum { DEV_AS_BLOCK = 512 };

/*
 * n elements at any addresses: by way of a block of floats that stays in L1, and of a block of the bytes, because the
 * loops of types_host.h want their elements aligned.
 */
DEV void dev_convert(char *d, uint32_t to, const char *s, uint32_t from, uint64_t n)
{
	const uint32_t sent = dev_type_bytes(from), stored = dev_type_bytes(to);
	float wide[DEV_AS_BLOCK];
	uint16_t small[DEV_AS_BLOCK];
	uint64_t some;

	for (; n; n -= some, s += some * sent, d += some * stored) {
		some = n < DEV_AS_BLOCK ? n : (uint64_t)DEV_AS_BLOCK;
		if (from == GANTRY_TYPE_FLOAT32) {
			memcpy(wide, s, some * sizeof(*wide));
		} else {
			memcpy(small, s, some * sizeof(*small));
			dev_small_widen(from, wide, small, some);
		}
		if (to == GANTRY_TYPE_FLOAT32) {
			memcpy(d, wide, some * sizeof(*wide));
		} else {
			dev_small_narrow(to, small, wide, some);
			memcpy(d, small, some * sizeof(*small));
		}
	}
}

DEV void dev_unpack_as_one(const struct dev_frags *f, uint64_t i, uint32_t from, uint32_t to)
{
	const struct gantry_unpack_desc d = f->descs[i];
	const uint32_t sent = dev_type_bytes(from);
	const char *page = (const char *)((uintptr_t)f->bounce + d.src_off);
	char *place = (char *)((uintptr_t)f->dst + (uintptr_t)d.dst_off);
	uint32_t bits;

	if (d.dst_off == GANTRY_UNPACK_GOES_ON)
		return;
	if (d.len % sent == 0) {
		dev_convert(place, to, page, from, d.len / sent);
		return;
	}
	bits = dev_of_float(to, dev_as_float(from, dev_unpack_cut_bits(f, i, sent)));
	memcpy(place, &bits, dev_type_bytes(to));
}

DEV void dev_unpack_as(const struct dev_frags *f, uint32_t from, uint32_t to, uint32_t share, uint32_t shares)
{
	const uint64_t all = (uint64_t)shares * dev_lanes();

	for (uint64_t i = (uint64_t)share * dev_lanes() + dev_lane(); i < f->n; i += all)
		dev_unpack_as_one(f, i, from, to);
}
#endif

DEV void k_unpack_as(const struct gantry_unpack_args *a)
{
	struct dev_frags f;

	dev_unpack_list(a, &f);
	dev_unpack_as(&f, a->from, a->to, dev_block(), dev_blocks());
}

#endif
