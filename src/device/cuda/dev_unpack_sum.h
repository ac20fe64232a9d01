/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking into a reduction, for GPUs: the walk of dev_unpack.h, with the input's vectors loaded beside the
 * fragment's. Part of k_unpack_sum.h.
 *
 * Vectors of the output are 16 aligned bytes and so hold whole elements. The elements before the first and after the
 * last whole vector of a fragment go byte by byte: lanes 0 to 15 load those before, lanes 16 to 31 those after, among
 * them the bytes of a last element that lie in other fragments. Three shuffles give each lane the eight bytes that
 * start at its own, and the lane at which an element starts combines and stores it.
 *
 * An input that does not agree with the output modulo 16 is loaded as wide as it allows, and steps other than sums of
 * the types that matter are a call for each vector (see types_cuda.h); both with less in flight.
 */
#ifndef GANTRY_DEVICE_CUDA_DEV_UNPACK_SUM_H
#define GANTRY_DEVICE_CUDA_DEV_UNPACK_SUM_H

struct dev_unpack_sums {
	enum { ITEMS = 2, ROUNDS = 4, BATCH = 8 };
};
/* The same beside other code, which has the registers. */
struct dev_unpack_sums_lean {
	enum { ITEMS = 1, ROUNDS = 4, BATCH = 8 };
};
/* Where each vector is a call, or an input at any address. */
struct dev_unpack_any {
	enum { ITEMS = 1, ROUNDS = 2, BATCH = 8 };
};

/* Registers are what decides how much is in flight: nothing here is wider than it must be. */
template <int ROUNDS>
struct dev_unpack_sum_item {
	struct dev_unpack_item<ROUNDS> it; /* `end` is not used */
	uint4 in[ROUNDS];
	uint32_t in_byte;
	uint32_t end; /* 16 more than where the element that starts at this lane belongs, from the item's first vector
			 on; 0: none does */
};
/* In the shift of an item, in all lanes alike: at least one lane has a byte. */
enum { DEV_UNPACK_ENDS = 64 };

/* In `bytes` of a place: the next fragment has all of the rest of the last element. */
#define DEV_UNPACK_OVER (1u << 31)
/*
 * `bytes` of a place also has, from bit 16 on, how many of the bytes after the vectors are the fragment's own. There
 * may be 16 after: 15 of its own, and one more of the last element.
 */
struct dev_unpack_into {
	const struct dev_unpack_sum *r;
	uint32_t over; /* this lane's: where in the pool its last element goes on, if DEV_UNPACK_OVER is set; else the
			  number of the next fragment */

	__device__ __forceinline__ void work_out(const struct dev_unpack_walk *w, struct dev_unpack_place *p)
	{
		const uint64_t mask = r->elem - 1, off = w->next.z | (uint64_t)w->next.w << 32;
		const uint64_t first = (off + mask) & ~mask, own = off + w->next.y, end = (own + mask) & ~mask;
		uint32_t head = (uint32_t)(0 - ((uintptr_t)r->f.dst + first)) & 15, shift, rest;
		const char *s = r->f.bounce + w->next.x + (first - off);

		p->vecs = 0;
		if (first + head > own)
			head = 0; /* all of it lies in one vector */
		else
			p->vecs = (uint32_t)((own - first - head) / 16);
		s += head;
		shift = (uint32_t)(uintptr_t)s & 15;
		p->s = s - shift;
		p->d = r->f.dst + first + head;
		rest = first < end ? (uint32_t)(own - first - head - 16ull * p->vecs) : 0;
		p->bytes = shift | head << 4 | (uint32_t)(end - first - head - 16ull * p->vecs) << 8 | rest << 16;
		if (end > own && first < end && find_over(w, own, (uint32_t)(end - own)))
			p->bytes |= DEV_UNPACK_OVER;
	}
	__device__ __forceinline__ int find_over(const struct dev_unpack_walk *w, uint64_t pos, uint32_t need)
	{
		const uint32_t i = w->next_first + (dev_lane() & 31) + 1;
		uint4 d;

		over = i;
		if ((dev_lane() & 31) >= w->next_have || i >= (uint32_t)r->f.n)
			return 0;
		d = dev_load16(r->f.descs + i);
		if (d.y < need || (d.z | (uint64_t)d.w << 32) != pos)
			return 0;
		over = d.x;
		return 1;
	}
};

/* Bytes at the ends. 0: there are none, which is the same in all lanes. */
template <int ROUNDS>
DEV uint32_t dev_unpack_sum_ends(const struct dev_unpack_walk *w, const struct dev_unpack_into &into,
				 struct dev_unpack_sum_item<ROUNDS> *t)
{
	const struct dev_unpack_sum *r = into.r;
	const uint32_t lane = dev_lane() & 31, i = lane & 15;
	const uint32_t head = w->now.bytes >> 4 & 15, tail = w->now.bytes >> 8 & 31, own = w->now.bytes >> 16 & 31;
	const uint32_t mine = i < (lane < 16 ? head : tail);
	const int64_t at = lane < 16 ? (int64_t)lane - head : 16ll * w->now.vecs + i;
	const uint64_t pos = (uint64_t)(w->now.d + at - r->f.dst);
	const char *byte = w->now.s + (w->now.bytes & 15) + at;

	if (tail > own) {
		const uint32_t over = __shfl_sync(DEV_WARP_ALL, into.over, w->k - 1);

		if ((w->now.bytes & DEV_UNPACK_OVER) && lane >= 16 && i >= own)
			byte = r->f.bounce + over + (i - own);
		else if (mine && lane >= 16 && i >= own)
			byte = dev_unpack_byte(&r->f, over - 1, pos);
	}
	t->it.byte = dev_load_byte_if(byte, mine && byte);
	t->in_byte = dev_load_byte_if((const char *)(r->input + pos), (int)mine);
	t->end = mine && (pos & (r->elem - 1)) == 0 ? (uint32_t)at + 16 : 0;
	return head | tail;
}

template <class FORM, bool SAME>
DEV int dev_unpack_sum_load(struct dev_unpack_walk *w, struct dev_unpack_into &into,
			    struct dev_unpack_sum_item<FORM::ROUNDS> *t)
{
	const struct dev_unpack_sum *r = into.r;
	const int64_t apart = (int64_t)(r->input - (uintptr_t)r->f.dst);
	const uint32_t lane = dev_lane() & 31;

	uint32_t ends = 0;

	dev_unpack_nothing(&t->it);
	t->end = 0;
	if (w->now.vecs == 0) {
		if (w->k == w->have && !dev_unpack_refill<FORM>(w, into))
			return 0;
		dev_unpack_turn(w);
		ends = dev_unpack_sum_ends(w, into, t);
	}
	dev_unpack_load_vecs<FORM>(w, &t->it);
	t->it.shift |= ends ? DEV_UNPACK_ENDS : 0;
#pragma unroll
	for (uint32_t u = 0; u < FORM::ROUNDS; u++) {
		const char *p = t->it.d + apart + 512 * u;
		const int yes = lane + 32 * u < t->it.vecs;

		if (SAME) {
			t->in[u] = dev_load16_if(p, yes);
		} else if (yes) {
			uint64_t low = dev_gather8(p, 8), high = dev_gather8(p + 8, 8);

			t->in[u] = make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high,
					      (uint32_t)(high >> 32));
		}
	}
	return 1;
}

/* The bytes of this lane and of the seven after it, this one's lowest. */
DEV uint64_t dev_unpack_eight(uint32_t byte)
{
	uint32_t two = byte | __shfl_down_sync(DEV_WARP_ALL, byte, 1) << 8;
	uint32_t four = two | __shfl_down_sync(DEV_WARP_ALL, two, 2) << 16;

	return four | (uint64_t)__shfl_down_sync(DEV_WARP_ALL, four, 4) << 32;
}

template <class Mid, int ROUNDS>
DEV void dev_unpack_sum_vec(const struct dev_plan &p, const Mid &mid, const struct dev_unpack_sum_item<ROUNDS> *t,
			    uint32_t u)
{
	const uint32_t lane = dev_lane() & 31;
	const struct dev_unpack_item<ROUNDS> *it = &t->it;
	uint4 v = it->shift & 15 ? dev_unpack_vec(it, u) : it->v[u];

	v = dev_vec_of(dev_join(p, 1, mid, dev_pack_of(t->in[u]), dev_pack_of(v)));
	dev_store16_if(it->d + 512 * u, v, lane + 32 * u < it->vecs);
}

/* Any type and operation. The small floats go through memory of the lane's own. The order of the two matters to the sign
 * of zero in max and min; sums do not know it. */
struct dev_unpack_all {
	uint32_t input_at;
};
DEV_BIG struct dev_pack dev_unpack_join_small(const struct dev_plan &p, struct dev_pack a, struct dev_pack b)
{
	const char *const srcs[2] = {(const char *)&a, (const char *)&b};
	char *const dst = (char *)&a;
	struct dev_plan q = p;

	q.srcs = srcs;
	q.dsts = &dst;
	dev_reduce_pack(q, 0, 16);
	return a;
}
DEV struct dev_pack dev_join(const struct dev_plan &p, uint32_t k, const struct dev_unpack_all &all,
			     struct dev_pack input, struct dev_pack arrived)
{
	const struct dev_pack a = all.input_at ? arrived : input, b = all.input_at ? input : arrived;

	return dev_type_small(p.type) ? dev_unpack_join_small(p, a, b) : dev_join(p, k, dev_any(), a, b);
}

/* How large an element is, where the type is known. */
template <class Mid>
struct dev_unpack_elem {
	__device__ __forceinline__ static uint32_t bytes(const struct dev_unpack_sum *)
	{
		return sizeof(typename Mid::elem);
	}
};
template <>
struct dev_unpack_elem<struct dev_unpack_all> {
	__device__ __forceinline__ static uint32_t bytes(const struct dev_unpack_sum *r)
	{
		return r->elem;
	}
};

/* The elements at the ends. */
template <class Mid, int ROUNDS>
DEV void dev_unpack_sum_store_ends(const struct dev_unpack_sum *r, const struct dev_plan &p, const Mid &mid,
				   const struct dev_unpack_sum_item<ROUNDS> *t)
{
	const uint32_t elem = dev_unpack_elem<Mid>::bytes(r);
	char *end = t->it.d - 16 * (dev_lane() & 31) - 16 + t->end;
	struct dev_pack a, b;

	a.lo = dev_unpack_eight(t->in_byte);
	b.lo = dev_unpack_eight(t->it.byte);
	a.hi = b.hi = 0;
	a = dev_join(p, 1, mid, a, b);
	if (t->end && elem == 4)
		*(uint32_t *)end = (uint32_t)a.lo;
	else if (t->end && elem == 2)
		*(uint16_t *)end = (uint16_t)a.lo;
	else if (t->end)
		dev_scatter8(end, a.lo, elem);
}

template <class Mid, int ROUNDS>
DEV void dev_unpack_sum_store(const struct dev_unpack_sum *r, const struct dev_plan &p, const Mid &mid,
			      const struct dev_unpack_sum_item<ROUNDS> *t)
{
	/* As in dev_unpack_store_shifted. */
#pragma unroll
	for (uint32_t u = 0; u < 2; u++)
		dev_unpack_sum_vec(p, mid, t, u);
#pragma unroll
	for (uint32_t u = 2; u < ROUNDS; u++)
		if (32 * u < t->it.vecs)
			dev_unpack_sum_vec(p, mid, t, u);
	if (t->it.shift & DEV_UNPACK_ENDS)
		dev_unpack_sum_store_ends(r, p, mid, t);
}

template <class FORM, bool SAME, class Mid>
DEV void dev_unpack_sum_run(struct dev_unpack_walk *w, const struct dev_unpack_sum *r, const struct dev_plan &p,
			    const Mid &mid)
{
	struct dev_unpack_sum_item<FORM::ROUNDS> t[FORM::ITEMS];
	struct dev_unpack_into into = {r, 0};
	int more = 1;

	while (more) {
#pragma unroll
		for (int i = 0; i < FORM::ITEMS; i++)
			more = dev_unpack_sum_load<FORM, SAME>(w, into, &t[i]);
#pragma unroll
		for (int i = 0; i < FORM::ITEMS; i++)
			dev_unpack_sum_store(r, p, mid, &t[i]);
	}
}

/* A function of its own: what it calls takes registers. */
DEV_BIG void dev_unpack_sum_any(struct dev_unpack_walk *w, const struct dev_unpack_sum *r, const struct dev_plan &p)
{
	dev_unpack_sum_run<struct dev_unpack_any, false>(w, r, p, dev_unpack_all{r->input_at});
}

template <class SUMS>
DEV void dev_unpack_reduce_as(const struct dev_unpack_sum *r, uint32_t share, uint32_t shares)
{
	const uint32_t warps = dev_lanes() / 32;
	struct dev_unpack_walk w;
	struct dev_plan p;
	int fast;

	p.srcs = NULL;
	p.dsts = NULL;
	p.nsrc = 2;
	p.ndst = 1;
	p.type = r->type;
	dev_plan_steps(&p, r->op, r->premul, r->last, r->scalar);
	fast = p.mid == DEV_RED_SUM && !p.avg && p.premul == DEV_PREMUL_NONE &&
	       ((r->input ^ (uintptr_t)r->f.dst) & 15) == 0;
	dev_unpack_begin<SUMS>(&w, &r->f, share * warps + dev_lane() / 32, shares * warps);
	if (fast && r->type == GANTRY_TYPE_FLOAT32)
		dev_unpack_sum_run<SUMS, true>(&w, r, p, dev_f32_sum{0});
	else if (fast && r->type == GANTRY_TYPE_FLOAT16)
		dev_unpack_sum_run<SUMS, true>(&w, r, p, dev_f16_sum{0});
	else if (fast && r->type == GANTRY_TYPE_BFLOAT16)
		dev_unpack_sum_run<SUMS, true>(&w, r, p, dev_bf16_sum{0});
	else
		dev_unpack_sum_any(&w, r, p);
}

DEV void dev_unpack_reduce(const struct dev_unpack_sum *r, uint32_t share, uint32_t shares)
{
	dev_unpack_reduce_as<struct dev_unpack_sums>(r, share, shares);
}
/* For a block of a kernel that does other things too. */
DEV void dev_unpack_reduce_beside(const struct dev_unpack_sum *r)
{
	dev_unpack_reduce_as<struct dev_unpack_sums_lean>(r, 0, 1);
}

#endif
