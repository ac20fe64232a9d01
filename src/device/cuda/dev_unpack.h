/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking for GPUs: a warp moves fragment after fragment at full width, whatever their alignment, several of them at
 * once. Part of k_unpack.h.
 *
 * A fragment is cut into whole 16-byte vectors of the destination and, at its ends, up to 15 single bytes each. The
 * warp goes through its fragments in items of up to ROUNDS times 32 vectors. An item is loaded in one go: a 16-byte
 * load per lane and round, and with the first item of a fragment one more load for all the bytes at its ends. Where
 * source and destination do not agree modulo 16, each vector is cut out of two aligned loads; the second one is the
 * first of the next lane, and comes from there by a shuffle. So what a lane holds for an item is 16 bytes a round, with
 * a shift and without.
 *
 * ITEMS of them are loaded before the first is stored: a short fragment costs no more than a part of a long one. (To
 * load the next as soon as the oldest is stored would be better still, but a warp has six scoreboards to wait on, and
 * the compiler puts all loads of such a loop on one: each wait is for all of them. Measured, see
 * docs/design/0007-unpack-kernel.md.)
 *
 * Batches of nothing but tiny fragments go another way: dev_unpack_tiny.h.
 *
 * Every vector that is loaded holds at least one byte of the fragment, so nothing beyond its enclosing aligned 16 bytes
 * is read; every byte that is stored is one of the fragment.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_H

#include "device/cuda/dev_unpack_walk.h"

#include "device/cuda/dev_unpack_tiny.h"

/*
 * Measured, see docs/design/0007-unpack-kernel.md. A few blocks are bound by what they have in flight, and more does
 * not fit into a lane's 128 registers. With the whole GPU the memory is what counts, and it is best off with warps that
 * have a page at a time, all of it in flight at once, and soon end (unpack_launch.c).
 */
struct dev_unpack_few {
	enum { ITEMS = 3, ROUNDS = 4, BATCH = 8 };
};
struct dev_unpack_page {
	enum { ITEMS = 1, ROUNDS = 8, BATCH = 1 };
};

template <int ROUNDS>
struct dev_unpack_item {
	uint4 v[ROUNDS + 1]; /* the last one: lane 0's, of the vector that follows */
	char *d;
	char *end; /* where this lane's byte at an end belongs; NULL: it has none */
	uint32_t byte;
	uint32_t vecs;
	uint32_t shift; /* 0 to 15 */
};

/* Loads the next vectors of the fragment in work. */
template <class FORM>
DEV void dev_unpack_load_vecs(struct dev_unpack_walk *w, struct dev_unpack_item<FORM::ROUNDS> *it)
{
	const uint32_t lane = dev_lane() & 31, most = 32 * FORM::ROUNDS;
	uint32_t loads;

	it->vecs = w->now.vecs < most ? w->now.vecs : most;
	it->shift = w->now.bytes & 15;
	it->d = w->now.d + 16 * lane;
	loads = it->vecs + (it->vecs != 0 && it->shift != 0);
#pragma unroll
	for (uint32_t u = 0; u < FORM::ROUNDS; u++)
		it->v[u] = dev_load16_if(w->now.s + 16 * lane + 512 * u, lane + 32 * u < loads);
	it->v[FORM::ROUNDS] = dev_load16_if(w->now.s + 16 * most, lane == 0 && loads > most);
	w->now.vecs -= it->vecs;
	w->now.d += 16 * most;
	w->now.s += 16 * most;
}

/*
 * An item with nothing in it: what is stored of it is nothing, in all lanes alike. The shift is part of that: whether
 * there is one decides whether the warp shuffles, and a shuffle waits for all lanes. Left as it was, in a register that
 * something else had used, it was 0 in some lanes only, and the warp stopped for good. That happens to warps with fewer
 * items than ITEMS, which is every warp of a small message.
 */
template <int ROUNDS>
DEV void dev_unpack_nothing(struct dev_unpack_item<ROUNDS> *it)
{
	it->end = NULL;
	it->vecs = it->shift = 0;
}

/* Loads the next item. Bytes at the ends: the ones before by lanes 0 to 15, the ones after by the others. 0: there is
 * none, or a batch of tiny ones comes first; the item is empty. */
template <class FORM>
DEV int dev_unpack_load(struct dev_unpack_walk *w, struct dev_unpack_item<FORM::ROUNDS> *it)
{
	const uint32_t lane = dev_lane() & 31;
	struct dev_unpack_copy copy;

	dev_unpack_nothing(it);
	if (w->now.vecs == 0) {
		uint32_t head, mine;
		int64_t at;

		if (w->k == w->have && (dev_unpack_is_tiny(w) || !dev_unpack_refill<FORM>(w, copy)))
			return 0;
		dev_unpack_turn(w);
		head = w->now.bytes >> 4 & 15;
		mine = (lane & 15) < (lane < 16 ? head : w->now.bytes >> 8 & 15);
		at = lane < 16 ? (int64_t)lane - head : 16ll * w->now.vecs + (lane & 15);
		it->byte = dev_load_byte_if(w->now.s + (w->now.bytes & 15) + at, (int)mine);
		it->end = mine ? w->now.d + at : NULL;
	}
	dev_unpack_load_vecs<FORM>(w, it);
	return 1;
}

/* The lane's vector of round u; shifted. */
template <int ROUNDS>
DEV uint4 dev_unpack_vec(const struct dev_unpack_item<ROUNDS> *it, uint32_t u)
{
	const uint32_t lane = dev_lane() & 31;
	uint4 next;

	next.x = lane == 0 ? it->v[u + 1].x : it->v[u].x;
	next.y = lane == 0 ? it->v[u + 1].y : it->v[u].y;
	next.z = lane == 0 ? it->v[u + 1].z : it->v[u].z;
	next.w = lane == 0 ? it->v[u + 1].w : it->v[u].w;
	return dev_funnel(it->v[u], dev_shfl16(next, lane + 1), it->shift);
}

/* Whether this lane stores a vector in round u. */
template <int ROUNDS>
DEV int dev_unpack_mine(const struct dev_unpack_item<ROUNDS> *it, uint32_t u)
{
	return (dev_lane() & 31) + 32 * u < it->vecs;
}

/*
 * Shuffles cost as much as loads and stores do, so rounds without a vector are left out: those of a short fragment, and
 * of the end of a long one. The first two are one piece of code, for the second to begin while the first waits.
 */
template <int ROUNDS>
DEV void dev_unpack_store_shifted(const struct dev_unpack_item<ROUNDS> *it)
{
#pragma unroll
	for (uint32_t u = 0; u < 2; u++)
		dev_store16_if(it->d + 512 * u, dev_unpack_vec(it, u), dev_unpack_mine(it, u));
#pragma unroll
	for (uint32_t u = 2; u < ROUNDS; u++)
		if (32 * u < it->vecs)
			dev_store16_if(it->d + 512 * u, dev_unpack_vec(it, u), dev_unpack_mine(it, u));
}

template <int ROUNDS>
DEV void dev_unpack_store(const struct dev_unpack_item<ROUNDS> *it)
{
	if (it->shift == 0) {
#pragma unroll
		for (uint32_t u = 0; u < ROUNDS; u++)
			dev_store16_if(it->d + 512 * u, it->v[u], dev_unpack_mine(it, u));
	} else {
		dev_unpack_store_shifted(it);
	}
	dev_store_byte_if(it->end, it->byte, it->end != NULL);
}

template <class FORM>
DEV void dev_unpack_run(struct dev_unpack_walk *w)
{
	struct dev_unpack_item<FORM::ROUNDS> it[FORM::ITEMS];
	int more = 1;

	while (more) {
#pragma unroll
		for (int i = 0; i < FORM::ITEMS; i++)
			more = dev_unpack_load<FORM>(w, &it[i]);
#pragma unroll
		for (int i = 0; i < FORM::ITEMS; i++)
			dev_unpack_store(&it[i]);
		if (!more)
			more = dev_unpack_tiny_batches<FORM>(w);
	}
}

template <class FORM>
DEV void dev_unpack_as(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	const uint32_t warps = dev_lanes() / 32;
	struct dev_unpack_walk w;

	dev_unpack_begin<FORM>(&w, f, share * warps + dev_lane() / 32, shares * warps);
	dev_unpack_run<FORM>(&w);
}

/* For blocks that have many fragments each: of a collective, say, or of the ring. */
DEV void dev_unpack(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	dev_unpack_as<struct dev_unpack_few>(f, share, shares);
}
/* For short blocks, as many as the list needs. */
DEV void dev_unpack_grid(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	dev_unpack_as<struct dev_unpack_page>(f, share, shares);
}

#endif
