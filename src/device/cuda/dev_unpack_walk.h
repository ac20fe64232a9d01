/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a warp goes through a list of fragments: which descriptors it takes, and what it works out of each. Part of
 * k_unpack.h; the warps' work itself is in dev_unpack.h and dev_unpack_reduce.h.
 *
 * Descriptors come by one load of the whole warp for a batch, a batch ahead of their use. Each lane works out one of
 * them; for its turn a fragment's places go from that lane to all.
 *
 * A FORM is what a kernel has in flight and how it shares out, all of it constants:
 *
 *   ITEMS, ROUNDS   items that are loaded before the first is stored, and vectors of a lane in one
 *   BATCH           descriptors that a warp takes at a time: a power of two up to 32
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_WALK_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_WALK_H

/* Whoever calls these is a whole warp. */
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
 * The list is handed out in rounds: in each of them all warps get equally many descriptors, BATCH or what is left for
 * everybody. In the last round there are fewer descriptors than warps; each is split in as many parts as there are
 * warps for it. So no warp has more to do than another but for a part of a fragment.
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

#endif
