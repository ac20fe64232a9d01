/* SPDX-License-Identifier: Apache-2.0 */
/*
 * types_dev.h's steps for GPUs. Part of types_dev.h.
 *
 * A block reduces in packs of 16 bytes: each lane loads four packs of every source, combines their elements in
 * registers and stores four packs to every destination. That needs all pointers to agree modulo 16; what comes before
 * the first and after the last aligned pack, and everything when they do not agree, goes a pack (or a part of one) at a
 * time with loads as wide as each pointer allows.
 *
 * 96 loops, one per type and step, would be 4 MB of code in every kernel and minutes of ptxas (tried). So one function
 * knows all types and steps and is called for each pack; it costs some 30 instructions beside the arithmetic. Sums of
 * the types that matter have loops of their own with the addition in line.
 */
#ifndef GANTRY_DEVICE_TYPES_CUDA_H
#define GANTRY_DEVICE_TYPES_CUDA_H

/* These are never contracted to a fused multiply-add. */
#define DEV_ADD_f32(a, b) __fadd_rn(a, b)
#define DEV_MUL_f32(a, b) __fmul_rn(a, b)
#define DEV_MAX_f32(a, b) fmaxf(a, b)
#define DEV_MIN_f32(a, b) fminf(a, b)
#define DEV_ADD_f64(a, b) __dadd_rn(a, b)
#define DEV_MUL_f64(a, b) __dmul_rn(a, b)
#define DEV_MAX_f64(a, b) fmax(a, b)
#define DEV_MIN_f64(a, b) fmin(a, b)
#define DEV_RED(tag, T, S, step, expr)                                                                                 \
	struct dev_##tag##_##step {                                                                                    \
		typedef T elem;                                                                                        \
		S s;                                                                                                   \
		__device__ __forceinline__ T operator()(T a, T b) const                                                \
		{                                                                                                      \
			(void)b;                                                                                       \
			return (T)(expr);                                                                              \
		}                                                                                                      \
	};

DEV_INTS(DEV_RED_INT)
DEV_RED_FLOAT(f16, uint16_t, float, f32, dev_f16_load, dev_f16_store)
DEV_RED_FLOAT(f32, float, float, f32, DEV_AS_IT_IS, DEV_AS_IT_IS)
DEV_RED_FLOAT(f64, double, double, f64, DEV_AS_IT_IS, DEV_AS_IT_IS)
DEV_RED_FLOAT(bf16, uint16_t, float, f32, dev_bf16_load, dev_bf16_store)
DEV_RED_FLOAT(e4m3, uint8_t, float, f32, dev_e4m3_load, dev_e4m3_store)
DEV_RED_FLOAT(e5m2, uint8_t, float, f32, dev_e5m2_load, dev_e5m2_store)

template <class F>
DEV_ELEM uint64_t dev_word(const F &f, uint64_t a, uint64_t b)
{
	typedef typename F::elem T;
	union {
		uint64_t w;
		T e[8 / sizeof(T)];
	} x, y;

	x.w = a;
	y.w = b;
#pragma unroll
	for (unsigned i = 0; i < 8 / sizeof(T); i++)
		x.e[i] = f(x.e[i], y.e[i]);
	return x.w;
}
struct dev_pack {
	uint64_t lo, hi;
};
DEV_ELEM struct dev_pack dev_pack_of(uint4 v)
{
	struct dev_pack p;

	p.lo = v.x | (uint64_t)v.y << 32;
	p.hi = v.z | (uint64_t)v.w << 32;
	return p;
}
DEV_ELEM uint4 dev_vec_of(struct dev_pack p)
{
	return make_uint4((uint32_t)p.lo, (uint32_t)(p.lo >> 32), (uint32_t)p.hi, (uint32_t)(p.hi >> 32));
}
template <class F>
DEV_ELEM struct dev_pack dev_pack_step(const F &f, struct dev_pack a, struct dev_pack b)
{
	a.lo = dev_word(f, a.lo, b.lo);
	a.hi = dev_word(f, a.hi, b.hi);
	return a;
}

/* FULL: n is 16 and the address a multiple of it. */
template <bool FULL>
DEV_ELEM struct dev_pack dev_pack_load(const char *p, uint32_t n)
{
	struct dev_pack v;

	if (FULL)
		return dev_pack_of(dev_load16_once(p));
	v.lo = dev_gather8(p, n < 8 ? n : 8);
	v.hi = dev_gather8(p + 8, n < 8 ? 0 : n - 8);
	return v;
}
template <bool FULL>
DEV_ELEM void dev_pack_store(char *p, struct dev_pack v, uint32_t n)
{
	if (FULL) {
		dev_store16(p, dev_vec_of(v));
	} else {
		dev_scatter8(p, v.lo, n < 8 ? n : 8);
		dev_scatter8(p + 8, v.hi, n < 8 ? 0 : n - 8);
	}
}

/* A scalar as the function objects take it, in the low bytes; computed once, because divisions are long. */
#define DEV_SCALAR_CASE(NAME, tag)                                                                                     \
	case GANTRY_TYPE_##NAME: {                                                                                     \
		dev_##tag##_scalar s = dev_##tag##_scalar_of(step, scalar);                                            \
		memcpy(&bits, &s, sizeof(s));                                                                          \
		break;                                                                                                 \
	}
DEV_BIG uint64_t dev_scalar_bits(uint32_t type, uint32_t step, uint64_t scalar)
{
	uint64_t bits = 0;

	if (step < DEV_RED_PREMUL)
		return 0;
	switch (type) {
		DEV_TYPES(DEV_SCALAR_CASE)
	}
	return bits;
}

/* Any step of any type on one pack. SCALE and DIV do not look at b. */
#define DEV_PACK_CASE(STEP, step, tag)                                                                                 \
	case DEV_RED_##STEP: {                                                                                         \
		struct dev_##tag##_##step f;                                                                           \
		memcpy(&f.s, &s, sizeof(f.s));                                                                         \
		return dev_pack_step(f, a, b);                                                                         \
	}
#define DEV_PACK_CASES(NAME, tag)                                                                                      \
	case GANTRY_TYPE_##NAME:                                                                                       \
		switch (step) {                                                                                        \
			DEV_STEPS(DEV_PACK_CASE, tag)                                                                  \
		}                                                                                                      \
		break;
DEV_BIG struct dev_pack dev_pack_any(uint32_t type, uint32_t step, struct dev_pack a, struct dev_pack b, uint64_t s)
{
	switch (type) {
		DEV_TYPES(DEV_PACK_CASES)
	}
	return a;
}

/* A reduction: source 1 is joined by the step `first`, the last one by `last`, others by `mid`. A single source goes
 * through `first` if that is SCALE or DIV. */
struct dev_plan {
	const char *const *srcs;
	char *const *dsts;
	uint32_t nsrc, ndst;
	uint32_t type, first, mid, last;
	uint64_t s;
};
DEV_ELEM uint32_t dev_plan_step(const struct dev_plan &p, uint32_t k)
{
	return k == 1 ? p.first : k + 1 == p.nsrc ? p.last : p.mid;
}
DEV_ELEM int dev_plan_single(const struct dev_plan &p)
{
	return p.nsrc == 1 && (p.first == DEV_RED_SCALE || p.first == DEV_RED_DIV);
}

struct dev_any {
};
template <class Mid>
DEV_ELEM struct dev_pack dev_join(const struct dev_plan &, uint32_t, const Mid &mid, struct dev_pack a,
				  struct dev_pack b)
{
	return dev_pack_step(mid, a, b);
}
DEV_ELEM struct dev_pack dev_join(const struct dev_plan &p, uint32_t step, const struct dev_any &, struct dev_pack a,
				  struct dev_pack b)
{
	return dev_pack_any(p.type, step, a, b, p.s);
}

/* block: whole groups of four packs per lane, from `from` on, all aligned. With a Mid that is not dev_any all steps are
 * that one. */
template <class Mid>
DEV_BIG void dev_reduce_groups(const struct dev_plan &p, uint64_t from, uint64_t to, Mid mid)
{
	const uint64_t apart = 16 * dev_lanes();
	struct dev_pack acc[4], v[4];

	for (uint64_t at = from + 16 * dev_lane(); at < to; at += 4 * apart) {
#pragma unroll
		for (int u = 0; u < 4; u++)
			acc[u] = dev_pack_load<true>(p.srcs[0] + at + u * apart, 16);
		if (dev_plan_single(p)) {
#pragma unroll
			for (int u = 0; u < 4; u++)
				acc[u] = dev_join(p, p.first, mid, acc[u], acc[u]);
		}
		for (uint32_t k = 1; k < p.nsrc; k++) {
#pragma unroll
			for (int u = 0; u < 4; u++)
				v[u] = dev_pack_load<true>(p.srcs[k] + at + u * apart, 16);
#pragma unroll
			for (int u = 0; u < 4; u++)
				acc[u] = dev_join(p, dev_plan_step(p, k), mid, acc[u], v[u]);
		}
		for (uint32_t k = 0; k < p.ndst; k++) {
#pragma unroll
			for (int u = 0; u < 4; u++)
				dev_pack_store<true>(p.dsts[k] + at + u * apart, acc[u], 16);
		}
	}
}

/* block: bytes [0, head) and [from, bytes), a pack or less at a time. */
DEV_BIG void dev_reduce_rest(const struct dev_plan &p, uint32_t head, uint64_t from, uint64_t bytes)
{
	const uint64_t pieces = 1 + (bytes - from + 15) / 16;

	for (uint64_t i = dev_lane(); i < pieces; i += dev_lanes()) {
		uint64_t at = i ? from + 16 * (i - 1) : 0, left = i ? bytes - at : head;
		uint32_t n = left < 16 ? (uint32_t)left : 16;
		struct dev_pack acc;

		if (n == 0)
			continue;
		acc = dev_pack_load<false>(p.srcs[0] + at, n);
		if (dev_plan_single(p))
			acc = dev_pack_any(p.type, p.first, acc, acc, p.s);
		for (uint32_t k = 1; k < p.nsrc; k++)
			acc = dev_pack_any(p.type, dev_plan_step(p, k), acc, dev_pack_load<false>(p.srcs[k] + at, n),
					   p.s);
		for (uint32_t k = 0; k < p.ndst; k++)
			dev_pack_store<false>(p.dsts[k] + at, acc, n);
	}
}

/* By whole groups, with the reduction of the plan made at compile time where it is a usual one. */
DEV void dev_block_reduce_groups(const struct dev_plan &p, uint64_t head, uint64_t end)
{
	const int sums = p.first == DEV_RED_SUM && p.mid == DEV_RED_SUM && p.last == DEV_RED_SUM;

	if (p.nsrc == 1 && !dev_plan_single(p))
		dev_reduce_groups(p, head, end, dev_u64_sum{0});
	else if (sums && p.type == GANTRY_TYPE_FLOAT32)
		dev_reduce_groups(p, head, end, dev_f32_sum{0});
	else if (sums && p.type == GANTRY_TYPE_FLOAT16)
		dev_reduce_groups(p, head, end, dev_f16_sum{0});
	else if (sums && p.type == GANTRY_TYPE_BFLOAT16)
		dev_reduce_groups(p, head, end, dev_bf16_sum{0});
	else
		dev_reduce_groups(p, head, end, dev_any());
}

/* block: the whole of it. Destination 0 is aligned behind `head`. */
DEV void dev_block_reduce(const struct dev_plan &p, uint64_t bytes)
{
	const uint64_t group = 64 * dev_lanes();
	uint32_t head = (uint32_t)(0 - (uintptr_t)p.dsts[0]) & 15, odd = 0;
	uint64_t end;

	if (head > bytes)
		head = (uint32_t)bytes;
	for (uint32_t k = 0; k < p.nsrc; k++)
		odd |= (uint32_t)((uintptr_t)p.srcs[k] + head) & 15;
	for (uint32_t k = 0; k < p.ndst; k++)
		odd |= (uint32_t)((uintptr_t)p.dsts[k] + head) & 15;
	end = odd ? head : head + (bytes - head) / group * group;
	if (end != head)
		dev_block_reduce_groups(p, head, end);
	dev_reduce_rest(p, head, end, bytes);
}

/* One step over whole words, by one lane. */
DEV void dev_words_step(uint32_t type, uint32_t step, uint64_t *d, const uint64_t *a, const uint64_t *b, uint32_t words,
			uint64_t scalar)
{
	uint64_t s = dev_scalar_bits(type, step, scalar);
	struct dev_pack x, y;

	for (uint32_t i = 0; i < words; i += 2) {
		x.lo = a[i];
		y.lo = b[i];
		x.hi = i + 1 < words ? a[i + 1] : 0;
		y.hi = i + 1 < words ? b[i + 1] : 0;
		x = dev_pack_any(type, step, x, y, s);
		d[i] = x.lo;
		if (i + 1 < words)
			d[i + 1] = x.hi;
	}
}

#endif
