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
 * Batches of nothing but tiny fragments go another way, see below.
 *
 * Every vector that is loaded holds at least one byte of the fragment, so nothing beyond its enclosing aligned 16 bytes
 * is read; every byte that is stored is one of the fragment.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_H

/*
 * ---- the walk ----
 *
 * How a warp goes through a list of fragments: which descriptors it takes, and what it works out of each.
 *
 * Descriptors come by one load of the whole warp for a batch, a batch ahead of their use. Each lane works out one of
 * them; for its turn a fragment's places go from that lane to all.
 *
 * A FORM is what a kernel has in flight and how it shares out, all of it constants:
 *
 *   ITEMS, ROUNDS   items that are loaded before the first is stored, and vectors of a lane in one
 *   BATCH           descriptors that a warp takes at a time: a power of two up to 32
 */

/* These are called by a whole warp. */
#define DEV_WARP_ALL 0xffffffffu

DEV uint4 dev_shfl16(uint4 v, uint32_t lane)
{
	v.x = __shfl_sync(DEV_WARP_ALL, v.x, lane);
	v.y = __shfl_sync(DEV_WARP_ALL, v.y, lane);
	v.z = __shfl_sync(DEV_WARP_ALL, v.z, lane);
	v.w = __shfl_sync(DEV_WARP_ALL, v.w, lane);
	return v;
}

/* What is left of a fragment, or of a part of one. */
struct dev_unpack_place {
	char *d;
	const char *s;	/* aligned; the bytes wanted start `shift` into it */
	uint32_t vecs;	/* whole vectors of the destination */
	uint32_t bytes; /* from bit 0: shift; from 4 and 8: how many bytes there are before the vectors and after */
};

/* Where a warp is on its way through the list; all of it is the same in all lanes, but for `next` and `mine`. */
struct dev_unpack_walk {
	const struct dev_frags *f;
	uint32_t warp, warps;
	uint32_t base;			   /* descriptors below it have been handed out */
	uint32_t next_first, next_have;	   /* the batch after this: its first descriptor and how many it has */
	uint32_t next_splits;		   /* parts that its only descriptor is split in; 1: it is whole */
	uint4 next;			   /* this lane's descriptor of it */
	uint32_t have, k;		   /* this batch: how many it has, and which one is next */
	struct dev_unpack_place mine, now; /* this lane's fragment of this batch; the one in work */
};

/*
 * The list is handed out in rounds: in each of them all warps get the same number of descriptors, BATCH or an equal
 * share of what is left. In the last round there are fewer descriptors than warps; each is split into as many parts as
 * there are warps for it. So no warp has more to do than another, except for a part of a fragment.
 */
template <class FORM>
DEV void dev_unpack_share(struct dev_unpack_walk *w)
{
	const uint32_t rest = (uint32_t)w->f->n - w->base;

	w->next_have = w->next_splits = 1;
	if (rest >= w->warps) {
		if (rest >= FORM::BATCH * w->warps)
			w->next_have = FORM::BATCH;
		else
			w->next_have = rest / w->warps;
		w->next_first = w->base + w->warp * w->next_have;
		w->base += w->warps * w->next_have;
	} else if (rest) {
		w->next_splits = w->warps / rest;
		w->next_first = w->base + w->warp / w->next_splits;
		w->next_have = w->warp < rest * w->next_splits;
		w->base += rest;
	} else {
		w->next_have = 0;
	}
}
template <class FORM>
DEV void dev_unpack_fetch(struct dev_unpack_walk *w)
{
	const uint32_t lane = dev_lane() & 31;

	dev_unpack_share<FORM>(w);
	w->next = dev_load16_if(w->f->descs + w->next_first + lane, lane < w->next_have);
}

/* Warp `warp` of `warps`. */
template <class FORM>
DEV void dev_unpack_begin(struct dev_unpack_walk *w, const struct dev_frags *f, uint32_t warp, uint32_t warps)
{
	w->f = f;
	w->warp = warp;
	w->warps = warps;
	w->base = w->next_first = 0;
	w->k = w->have = w->now.vecs = 0;
	dev_unpack_fetch<FORM>(w);
}

/* This warp's part of the fragment. The bytes before the vectors belong to the first part, those after to the last. */
DEV void dev_unpack_split(const struct dev_unpack_walk *w, struct dev_unpack_place *p)
{
	const uint32_t part = w->warp % w->next_splits;
	const uint32_t from = (uint32_t)((uint64_t)p->vecs * part / w->next_splits);
	const uint32_t to = (uint32_t)((uint64_t)p->vecs * (part + 1) / w->next_splits);

	p->d += 16ull * from;
	p->s += 16ull * from;
	p->vecs = to - from;
	p->bytes &= 0xfu | (part == 0 ? 0xf0u : 0) | (part + 1 == w->next_splits ? 0xffffff00u : 0);
}

/* What a copy makes of a descriptor. */
struct dev_unpack_copy {
	__device__ __forceinline__ void ends(const struct dev_unpack_walk *w, char **ret_d, char **ret_s)
	{
		char *place = w->f->dst + (w->next.z | (uint64_t)w->next.w << 32), *page = w->f->bounce + w->next.x;

		*ret_d = w->f->gather ? page : place;
		*ret_s = w->f->gather ? place : page;
	}
	__device__ __forceinline__ void work_out(const struct dev_unpack_walk *w, struct dev_unpack_place *p)
	{
		const uint32_t len = w->next.y;
		uint32_t head, shift;
		char *d, *s;

		ends(w, &d, &s);
		head = (uint32_t)(0 - (uintptr_t)d) & 15;
		head = head < len ? head : len;
		shift = (uint32_t)((uintptr_t)s + head) & 15;
		p->d = d + head;
		p->s = s + head - shift;
		p->vecs = (len - head) / 16;
		p->bytes = shift | head << 4 | (len - head) % 16 << 8;
	}
};

/* The next batch. 0: there is none. */
template <class FORM, class WHAT>
DEV int dev_unpack_refill(struct dev_unpack_walk *w, WHAT &what)
{
	if (w->next_have == 0)
		return 0;
	what.work_out(w, &w->mine);
	if (w->next_splits != 1)
		dev_unpack_split(w, &w->mine);
	w->k = 0;
	w->have = w->next_have;
	dev_unpack_fetch<FORM>(w);
	return 1;
}

/* The next fragment becomes the one in work. */
DEV void dev_unpack_turn(struct dev_unpack_walk *w)
{
	w->now.d = (char *)__shfl_sync(DEV_WARP_ALL, (unsigned long long)w->mine.d, w->k);
	w->now.s = (const char *)__shfl_sync(DEV_WARP_ALL, (unsigned long long)w->mine.s, w->k);
	w->now.vecs = __shfl_sync(DEV_WARP_ALL, w->mine.vecs, w->k);
	w->now.bytes = __shfl_sync(DEV_WARP_ALL, w->mine.bytes, w->k);
	w->k++;
}

/*
 * ---- tiny fragments ----
 *
 * Batches of nothing but tiny fragments.
 *
 * An item costs the same however little is in it, which is most of what a fragment of a few bytes costs. So where all
 * fragments of a batch are tiny, the warp takes the whole batch at once: 32 / BATCH lanes for each of them, each with
 * every so many-th byte.
 *
 * A batch that is not all tiny goes the usual way; items that are loaded by then are stored first, as what is done here
 * has no place beside them in the registers.
 */
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

/* ---- items ---- */

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
/* Beside other code, which has the registers. */
struct dev_unpack_lean {
	enum { ITEMS = 1, ROUNDS = 4, BATCH = 8 };
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

/* For blocks that have many fragments each, and nothing else to do. */
DEV void dev_unpack(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	dev_unpack_as<struct dev_unpack_few>(f, share, shares);
}
/* For a block of a kernel that does other things too. */
DEV void dev_unpack_beside(const struct dev_frags *f)
{
	dev_unpack_as<struct dev_unpack_lean>(f, 0, 1);
}
/* For short blocks, as many as the list needs. */
DEV void dev_unpack_grid(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	dev_unpack_as<struct dev_unpack_page>(f, share, shares);
}

#endif
