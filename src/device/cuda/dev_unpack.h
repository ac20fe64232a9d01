/*
 * Unpacking for GPUs: a warp moves fragment after fragment at full width, whatever their alignment, with several of
 * them in flight. Part of k_unpack.h.
 *
 * A fragment is cut into whole 16-byte vectors of the destination and, at its ends, up to 15 single bytes each. The
 * warp goes through its fragments in items of up to DEV_UNPACK_ROUNDS times 32 vectors. An item is loaded in one go: a
 * 16-byte load per lane and round, and with the first item of a fragment one more load for all the bytes at its ends.
 * Where source and destination do not agree modulo 16, each vector is cut out of two aligned loads; the second one is
 * the first of the next lane, and comes from there by a shuffle.
 *
 * DEV_UNPACK_ITEMS of them are in flight: the loads of the next item are issued as soon as the stores of the oldest
 * are, so a short fragment costs no more than a part of a long one. What a lane holds for an item is 16 bytes a round,
 * the same with and without a shift. Descriptors come by one load of the whole warp for a batch of up to 32, a batch
 * ahead of their use.
 *
 * Every vector that is loaded holds at least one byte of the fragment, so nothing beyond its enclosing aligned 16 bytes
 * is read; every byte that is stored is one of the fragment.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_H

enum { DEV_UNPACK_ITEMS = 2, DEV_UNPACK_ROUNDS = 4, DEV_UNPACK_BATCH = 32 };

#define DEV_WARP_ALL 0xffffffffu

/* Loads and stores of those lanes only for which `yes`, without a branch; others get what was in the register. */
DEV uint4 dev_load16_if(const void *p, int yes)
{
	uint4 v;

	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %5, 0;\n\t"
		     "@q ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p), "r"(yes)
		     : "memory");
	return v;
}
DEV void dev_store16_if(void *p, uint4 v, int yes)
{
	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %5, 0;\n\t"
		     "@q st.global.v4.u32 [%0], {%1, %2, %3, %4};\n\t}" ::"l"(p),
		     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(yes)
		     : "memory");
}
DEV uint32_t dev_load_byte_if(const void *p, int yes)
{
	uint32_t v;

	asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.s32 q, %2, 0;\n\t@q ld.global.u8 %0, [%1];\n\t}"
		     : "=r"(v)
		     : "l"(p), "r"(yes)
		     : "memory");
	return v;
}
DEV uint4 dev_shfl16(uint4 v, uint32_t lane)
{
	v.x = __shfl_sync(DEV_WARP_ALL, v.x, lane);
	v.y = __shfl_sync(DEV_WARP_ALL, v.y, lane);
	v.z = __shfl_sync(DEV_WARP_ALL, v.z, lane);
	v.w = __shfl_sync(DEV_WARP_ALL, v.w, lane);
	return v;
}

/* Where a warp is on its way through the list; all of it is the same in all lanes, but for the descriptors. */
struct dev_unpack_walk {
	const struct dev_frags *f;
	uint32_t splits, total; /* parts of each descriptor, of all */
	uint32_t at, stride;	/* at: the first part of the batch that `next` holds */
	uint32_t batch;
	uint32_t k, end;  /* the next part and the end of this batch */
	uint4 mine, next; /* this lane's descriptors of this batch and of the one after */
	/* Of the current fragment: what is left. */
	char *d;
	const char *s; /* aligned; the bytes wanted start `shift` into it */
	uint32_t left, shift;
};
template <int ROUNDS>
struct dev_unpack_item {
	uint4 v[ROUNDS + 1]; /* the last one: lane 0's, of the vector that follows */
	char *d;
	char *end; /* this lane's byte at an end; NULL: none */
	uint32_t byte;
	uint32_t vecs, shift;
};

DEV void dev_unpack_fetch(struct dev_unpack_walk *w)
{
	const uint32_t i = w->at + (dev_lane() & 31);

	if ((dev_lane() & 31) < w->batch && i < w->total)
		w->next = dev_load16(w->f->descs + (w->splits == 1 ? i : i / w->splits));
}

/*
 * Warp `warp` of `warps`. Batches as large as the list allows, so that all warps have equally many; where there are
 * fewer descriptors than warps, each is split in as many parts as there are warps for it.
 */
DEV void dev_unpack_begin(struct dev_unpack_walk *w, const struct dev_frags *f, uint32_t warp, uint32_t warps)
{
	const uint32_t n = (uint32_t)f->n, most = DEV_UNPACK_BATCH * warps;
	uint32_t rounds;

	w->f = f;
	w->splits = n && n < warps ? warps / n : 1;
	w->total = n * w->splits;
	rounds = w->total / most + (w->total % most != 0);
	rounds = rounds ? rounds * warps : 1;
	w->batch = w->total / rounds + (w->total % rounds != 0);
	w->at = warp * w->batch;
	w->stride = warps * w->batch;
	w->k = w->end = w->left = w->shift = 0;
	w->next.x = w->next.y = w->next.z = w->next.w = 0;
	w->mine = w->next;
	w->d = NULL;
	w->s = NULL;
	dev_unpack_fetch(w);
}

/* 0: the list is at its end. */
DEV int dev_unpack_refill(struct dev_unpack_walk *w)
{
	if (w->at >= w->total)
		return 0;
	w->mine = w->next;
	w->k = w->at;
	w->end = w->total - w->at < w->batch ? w->total : w->at + w->batch;
	w->at += w->stride;
	dev_unpack_fetch(w);
	return 1;
}
/* The next descriptor; k counts on. */
DEV uint4 dev_unpack_desc(struct dev_unpack_walk *w)
{
	return dev_shfl16(w->mine, w->k++ - (w->at - w->stride));
}

/* The vectors [*from, *to) of a fragment's `vecs` that are this warp's; 1: the bytes at its ends are as well. */
DEV int dev_unpack_part(const struct dev_unpack_walk *w, uint32_t vecs, uint32_t *from, uint32_t *to)
{
	uint32_t part;

	*from = 0;
	*to = vecs;
	if (w->splits == 1)
		return 1;
	part = (w->k - 1) % w->splits;
	*from = (uint32_t)((uint64_t)vecs * part / w->splits);
	*to = (uint32_t)((uint64_t)vecs * (part + 1) / w->splits);
	return part == 0;
}

/* The next fragment; its bytes at the ends are loaded into the item, the first ones by lanes 0 to 15, the last ones by
 * the others. 0: there is none. */
template <int ROUNDS>
DEV int dev_unpack_open(struct dev_unpack_walk *w, struct dev_unpack_item<ROUNDS> *it)
{
	const uint32_t lane = dev_lane() & 31;
	uint32_t head, vecs, from, to;
	const char *s;
	char *d;
	uint4 desc;
	uint64_t at;
	int mine;

	if (w->k == w->end && !dev_unpack_refill(w))
		return 0;
	desc = dev_unpack_desc(w);
	d = w->f->gather ? w->f->bounce + desc.x : w->f->dst + (desc.z | (uint64_t)desc.w << 32);
	s = w->f->gather ? w->f->dst + (desc.z | (uint64_t)desc.w << 32) : w->f->bounce + desc.x;
	head = (uint32_t)(0 - (uintptr_t)d) & 15;
	head = head < desc.y ? head : desc.y;
	vecs = (desc.y - head) / 16;
	mine = dev_unpack_part(w, vecs, &from, &to) && (lane < 16 ? lane < head : (lane & 15) < (desc.y - head) % 16);
	at = lane < 16 ? lane : head + 16ull * vecs + (lane & 15);
	it->byte = dev_load_byte_if(s + at, mine);
	it->end = mine ? d + at : NULL;
	w->shift = (uint32_t)((uintptr_t)s + head) & 15;
	w->s = s + head - w->shift + 16ull * from;
	w->d = d + head + 16ull * from;
	w->left = to - from;
	return 1;
}

/* Loads the next item. 0: there is none, and the item is empty. */
template <int ROUNDS>
DEV int dev_unpack_load(struct dev_unpack_walk *w, struct dev_unpack_item<ROUNDS> *it)
{
	const uint32_t lane = dev_lane() & 31;
	uint32_t loads;

	it->end = NULL;
	it->vecs = 0;
	if (w->left == 0 && !dev_unpack_open(w, it))
		return 0;
	it->vecs = w->left < 32 * ROUNDS ? w->left : 32 * ROUNDS;
	it->shift = w->shift;
	it->d = w->d;
	loads = it->vecs + (it->vecs != 0 && it->shift != 0);
#pragma unroll
	for (uint32_t u = 0; u < ROUNDS; u++)
		it->v[u] = dev_load16_if(w->s + 16 * (lane + 32 * u), lane + 32 * u < loads);
	it->v[ROUNDS] = dev_load16_if(w->s + 512 * ROUNDS, lane == 0 && loads > 32 * ROUNDS);
	w->left -= it->vecs;
	w->d += 512 * ROUNDS;
	w->s += 512 * ROUNDS;
	return 1;
}

/* The lane's vector of round u. */
template <int ROUNDS>
DEV uint4 dev_unpack_vec(const struct dev_unpack_item<ROUNDS> *it, uint32_t u)
{
	const uint32_t lane = dev_lane() & 31;
	uint4 next;

	if (it->shift == 0)
		return it->v[u];
	next.x = lane == 0 ? it->v[u + 1].x : it->v[u].x;
	next.y = lane == 0 ? it->v[u + 1].y : it->v[u].y;
	next.z = lane == 0 ? it->v[u + 1].z : it->v[u].z;
	next.w = lane == 0 ? it->v[u + 1].w : it->v[u].w;
	return dev_funnel(it->v[u], dev_shfl16(next, lane + 1), it->shift);
}

template <int ROUNDS>
DEV void dev_unpack_store(const struct dev_unpack_item<ROUNDS> *it)
{
	const uint32_t lane = dev_lane() & 31;

#pragma unroll
	for (uint32_t u = 0; u < ROUNDS; u++)
		dev_store16_if(it->d + 16 * (lane + 32 * u), dev_unpack_vec(it, u), lane + 32 * u < it->vecs);
	if (it->end)
		dev_store_byte(it->end, it->byte);
}

/* The first time round there is nothing to store, the last time nothing to load. */
template <int ITEMS, int ROUNDS>
DEV void dev_unpack_run(struct dev_unpack_walk *w)
{
	struct dev_unpack_item<ROUNDS> it[ITEMS];
	int any = 1;

#pragma unroll
	for (int i = 0; i < ITEMS; i++) {
		it[i].vecs = it[i].shift = 0;
		it[i].d = it[i].end = NULL;
	}
	while (any) {
		any = 0;
#pragma unroll
		for (int i = 0; i < ITEMS; i++) {
			dev_unpack_store(&it[i]);
			any |= dev_unpack_load(w, &it[i]);
		}
	}
}

DEV void dev_unpack(const struct dev_frags *f, uint32_t share, uint32_t shares)
{
	const uint32_t warps = dev_lanes() / 32;
	struct dev_unpack_walk w;

	dev_unpack_begin(&w, f, share * warps + dev_lane() / 32, shares * warps);
	dev_unpack_run<DEV_UNPACK_ITEMS, DEV_UNPACK_ROUNDS>(&w);
}

#endif
