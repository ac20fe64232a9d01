/*
 * Unpacking into a reduction, for GPUs: the walk of dev_unpack.h, with the input's vectors loaded beside the
 * fragment's. Part of k_unpack_reduce.h.
 *
 * Vectors of the output are 16 aligned bytes and so hold whole elements. The elements before the first and after the
 * last whole vector of a fragment go byte by byte: lanes 0 to 15 load those before, lanes 16 to 31 those after, among
 * them the bytes of a last element that lie in other fragments. Three shuffles give each lane the eight bytes that
 * start at its own, and the lane at which an element starts combines and stores it.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_REDUCE_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_REDUCE_H

enum { DEV_UNPACK_SUM_ITEMS = 2, DEV_UNPACK_SUM_ROUNDS = 4 };

template <int ROUNDS>
struct dev_unpack_sum_item {
	struct dev_unpack_item<ROUNDS> it; /* end, byte: where this lane's element starts, or NULL; its first byte */
	uint4 in[ROUNDS];
	uint32_t in_byte;
	int ends; /* in all lanes the same: somebody has a byte */
};

/* The walk's `d` is the output's; the input lies `apart` from it. */
DEV uint4 dev_unpack_input(const char *p, int aligned, int yes)
{
	uint4 v = {0, 0, 0, 0};
	uint64_t low, high;

	if (aligned)
		return dev_load16_if(p, yes);
	if (yes) {
		low = dev_gather8(p, 8);
		high = dev_gather8(p + 8, 8);
		v.x = (uint32_t)low;
		v.y = (uint32_t)(low >> 32);
		v.z = (uint32_t)high;
		v.w = (uint32_t)(high >> 32);
	}
	return v;
}

/* A fragment's range of elements, in bytes of the array: `head` bytes from `first` on, `vecs` vectors, `tail` bytes. */
struct dev_unpack_range {
	uint64_t first, own; /* own: the end of the fragment's own bytes */
	uint32_t head, vecs, tail;
};
DEV void dev_unpack_range(const struct dev_unpack_sum *r, uint64_t off, uint32_t len, struct dev_unpack_range *g)
{
	const uint64_t mask = r->elem - 1;
	uint64_t end;

	g->first = (off + mask) & ~mask;
	g->own = off + len;
	end = (g->own + mask) & ~mask;
	g->head = (uint32_t)(0 - ((uintptr_t)r->f.dst + g->first)) & 15;
	g->vecs = 0;
	if (g->first + g->head > g->own)
		g->head = 0; /* all of it lies in one vector */
	else
		g->vecs = (uint32_t)((g->own - g->first - g->head) / 16);
	g->tail = (uint32_t)(end - g->first - g->head - 16ull * g->vecs);
}

template <int ROUNDS>
DEV int dev_unpack_sum_open(struct dev_unpack_walk *w, const struct dev_unpack_sum *r,
			    struct dev_unpack_sum_item<ROUNDS> *t)
{
	const uint32_t lane = dev_lane() & 31;
	struct dev_unpack_range g;
	uint32_t from, to;
	const char *s, *byte;
	uint64_t off, pos, index;
	uint4 desc;
	int mine;

	if (w->k == w->end && !dev_unpack_refill(w))
		return 0;
	desc = dev_unpack_desc(w);
	off = desc.z | (uint64_t)desc.w << 32;
	index = (w->k - 1) / w->splits;
	dev_unpack_range(r, off, desc.y, &g);
	s = r->f.bounce + desc.x;
	t->ends = dev_unpack_part(w, g.vecs, &from, &to) && g.head + g.tail != 0;
	mine = t->ends && (lane & 15) < (lane < 16 ? g.head : g.tail);
	pos = g.first + (lane & 15) + (lane < 16 ? 0 : g.head + 16ull * g.vecs);
	byte = s + (pos - off);
	if (mine && pos >= g.own)
		byte = dev_unpack_byte(&r->f, index, pos);
	t->it.byte = dev_load_byte_if(byte, mine && byte);
	t->in_byte = dev_load_byte_if((const char *)(r->input + pos), mine);
	t->it.end = mine && (pos & (r->elem - 1)) == 0 ? r->f.dst + pos : NULL;
	s += g.first + g.head - off;
	w->shift = (uint32_t)(uintptr_t)s & 15;
	w->s = s - w->shift + 16ull * from;
	w->d = r->f.dst + g.first + g.head + 16ull * from;
	w->left = to - from;
	return 1;
}

template <int ROUNDS>
DEV int dev_unpack_sum_load(struct dev_unpack_walk *w, const struct dev_unpack_sum *r,
			    struct dev_unpack_sum_item<ROUNDS> *t)
{
	const uint32_t lane = dev_lane() & 31;
	const int64_t apart = (int64_t)(r->input - (uintptr_t)r->f.dst);
	struct dev_unpack_item<ROUNDS> *it = &t->it;
	uint32_t loads;

	it->vecs = 0;
	t->ends = 0;
	if (w->left == 0 && !dev_unpack_sum_open(w, r, t))
		return 0;
	it->vecs = w->left < 32 * ROUNDS ? w->left : 32 * ROUNDS;
	it->shift = w->shift;
	it->d = w->d;
	loads = it->vecs + (it->vecs != 0 && it->shift != 0);
#pragma unroll
	for (uint32_t u = 0; u < ROUNDS; u++) {
		it->v[u] = dev_load16_if(w->s + 16 * (lane + 32 * u), lane + 32 * u < loads);
		t->in[u] = dev_unpack_input(it->d + apart + 16 * (lane + 32 * u), (apart & 15) == 0,
					    lane + 32 * u < it->vecs);
	}
	it->v[ROUNDS] = dev_load16_if(w->s + 512 * ROUNDS, lane == 0 && loads > 32 * ROUNDS);
	w->left -= it->vecs;
	w->d += 512 * ROUNDS;
	w->s += 512 * ROUNDS;
	return 1;
}

DEV struct dev_pack dev_pack_of(uint4 v)
{
	struct dev_pack p;

	p.lo = v.x | (uint64_t)v.y << 32;
	p.hi = v.z | (uint64_t)v.w << 32;
	return p;
}
DEV uint4 dev_vec_of(struct dev_pack p)
{
	uint4 v = {(uint32_t)p.lo, (uint32_t)(p.lo >> 32), (uint32_t)p.hi, (uint32_t)(p.hi >> 32)};

	return v;
}

/* The bytes of this lane and of the seven after it, this one's lowest. */
DEV uint64_t dev_unpack_eight(uint32_t byte)
{
	uint32_t two = byte | __shfl_down_sync(DEV_WARP_ALL, byte, 1) << 8;
	uint32_t four = two | __shfl_down_sync(DEV_WARP_ALL, two, 2) << 16;

	return four | (uint64_t)__shfl_down_sync(DEV_WARP_ALL, four, 4) << 32;
}

template <class Mid, int ROUNDS>
DEV void dev_unpack_sum_store(const struct dev_plan &p, const Mid &mid, uint32_t elem,
			      const struct dev_unpack_sum_item<ROUNDS> *t)
{
	const uint32_t lane = dev_lane() & 31;
	const struct dev_unpack_item<ROUNDS> *it = &t->it;

#pragma unroll
	for (uint32_t u = 0; u < ROUNDS; u++) {
		uint4 v = dev_unpack_vec(it, u);

		if (lane + 32 * u < it->vecs)
			dev_store16(it->d + 16 * (lane + 32 * u),
				    dev_vec_of(dev_join(p, p.first, mid, dev_pack_of(t->in[u]), dev_pack_of(v))));
	}
	if (t->ends) {
		struct dev_pack a, b;

		a.lo = dev_unpack_eight(t->in_byte);
		b.lo = dev_unpack_eight(it->byte);
		a.hi = b.hi = 0;
		if (it->end) {
			a = dev_join(p, p.first, mid, a, b);
			if (elem == 8)
				*(uint64_t *)it->end = a.lo;
			else if (elem == 4)
				*(uint32_t *)it->end = (uint32_t)a.lo;
			else if (elem == 2)
				*(uint16_t *)it->end = (uint16_t)a.lo;
			else
				*(uint8_t *)it->end = (uint8_t)a.lo;
		}
	}
}

template <class Mid>
DEV_BIG void dev_unpack_sum_run(struct dev_unpack_walk w, const struct dev_unpack_sum *r, const struct dev_plan &p,
				Mid mid)
{
	struct dev_unpack_sum_item<DEV_UNPACK_SUM_ROUNDS> t[DEV_UNPACK_SUM_ITEMS];
	int any = 1;

#pragma unroll
	for (int i = 0; i < DEV_UNPACK_SUM_ITEMS; i++) {
		t[i].it.vecs = t[i].it.shift = t[i].ends = 0;
		t[i].it.d = t[i].it.end = NULL;
	}
	while (any) {
		any = 0;
#pragma unroll
		for (int i = 0; i < DEV_UNPACK_SUM_ITEMS; i++) {
			dev_unpack_sum_store(p, mid, r->elem, &t[i]);
			any |= dev_unpack_sum_load(&w, r, &t[i]);
		}
	}
}

DEV void dev_unpack_reduce(const struct dev_unpack_sum *r, uint32_t share, uint32_t shares)
{
	const uint32_t warps = dev_lanes() / 32;
	struct dev_unpack_walk w;
	struct dev_plan p;

	p.srcs = NULL;
	p.dsts = NULL;
	p.nsrc = 2;
	p.ndst = 1;
	p.type = r->type;
	p.first = p.mid = p.last = r->step;
	p.s = dev_scalar_bits(r->type, r->step, r->scalar);
	dev_unpack_begin(&w, &r->f, share * warps + dev_lane() / 32, shares * warps);
	if (r->step == DEV_RED_SUM && r->type == GANTRY_TYPE_FLOAT32)
		dev_unpack_sum_run(w, r, p, dev_f32_sum{0});
	else if (r->step == DEV_RED_SUM && r->type == GANTRY_TYPE_FLOAT16)
		dev_unpack_sum_run(w, r, p, dev_f16_sum{0});
	else if (r->step == DEV_RED_SUM && r->type == GANTRY_TYPE_BFLOAT16)
		dev_unpack_sum_run(w, r, p, dev_bf16_sum{0});
	else
		dev_unpack_sum_run(w, r, p, dev_any());
}

#endif
