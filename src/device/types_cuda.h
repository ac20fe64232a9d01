/* SPDX-License-Identifier: Apache-2.0 */
/*
 * types_dev.h's reductions for GPUs. Part of types_dev.h.
 *
 * A block reduces in packs of 16 bytes: each lane loads four packs of every source (two of 8-bit floats), combines their
 * elements in registers and stores as many to every destination. That needs all pointers to agree modulo 16; what comes
 * before the first and after the last aligned pack, and everything when they do not agree, goes a pack (or a part of
 * one) at a time with loads as wide as each pointer allows.
 *
 * 96 loops, one per type and step, would be 4 MB of code in every kernel and minutes of ptxas (tried). So, for the types
 * that round at every step, one function knows all types and steps and is called for each pack; it costs some 30
 * instructions beside the arithmetic. Sums of float have a loop of their own with the addition in line. The small floats
 * stay floats through all steps, which no function could hand on in registers: they have a loop per type with a branch
 * on the operation in it, the same for all lanes.
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

/* Any step of any type but the small floats on one pack. SCALE and DIV do not look at b. */
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
		DEV_WIDE_TYPES(DEV_PACK_CASES)
	}
	return a;
}

/* A reduction, with all that need not be worked out for each pack. */
struct dev_plan {
	const char *const *srcs;
	char *const *dsts;
	uint32_t nsrc, ndst;
	uint32_t type, mid; /* the step that joins most sources */
	uint32_t premul;    /* the source that is scaled, or DEV_PREMUL_NONE */
	uint32_t avg;	    /* the sum is divided */
	uint64_t s;	    /* dev_scalar_bits for that */
};
DEV_ELEM void dev_plan_steps(struct dev_plan *p, uint32_t op, uint32_t premul, uint32_t last, uint64_t scalar)
{
	p->mid = dev_red_step(op, 0, 0, DEV_PREMUL_NONE, 0);
	p->premul = dev_op_scales(op) ? premul : DEV_PREMUL_NONE;
	p->avg = op == GANTRY_OP_AVG && last;
	p->s = p->avg || p->premul != DEV_PREMUL_NONE
		       ? dev_scalar_bits(p->type, op == GANTRY_OP_PREMUL ? DEV_RED_PREMUL : DEV_RED_AVG, scalar)
		       : 0;
}
/* One source, which is only copied. */
DEV_ELEM int dev_plan_copies(const struct dev_plan &p)
{
	return p.nsrc == 1 && p.premul != 0 && !p.avg;
}

struct dev_any {
};
/* Joins source k, b, to the ones before it. */
template <class Mid>
DEV_ELEM struct dev_pack dev_join(const struct dev_plan &, uint32_t, const Mid &mid, struct dev_pack a,
				  struct dev_pack b)
{
	return dev_pack_step(mid, a, b);
}
DEV_ELEM struct dev_pack dev_join(const struct dev_plan &p, uint32_t k, const struct dev_any &, struct dev_pack a,
				  struct dev_pack b)
{
	if (k == p.premul)
		return dev_pack_any(p.type, DEV_RED_PREMUL, b, a, p.s);
	if (k == 1 && p.premul == 0)
		return dev_pack_any(p.type, DEV_RED_PREMUL, a, b, p.s);
	return dev_pack_any(p.type, p.avg && k + 1 == p.nsrc ? DEV_RED_AVG : p.mid, a, b, p.s);
}
/* What happens to a single source. */
DEV_ELEM struct dev_pack dev_single(const struct dev_plan &p, struct dev_pack a)
{
	return dev_plan_copies(p) ? a : dev_pack_any(p.type, p.avg ? DEV_RED_DIV : DEV_RED_SCALE, a, a, p.s);
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
		if (p.nsrc == 1 && !dev_plan_copies(p)) {
#pragma unroll
			for (int u = 0; u < 4; u++)
				acc[u] = dev_single(p, acc[u]);
		}
		for (uint32_t k = 1; k < p.nsrc; k++) {
#pragma unroll
			for (int u = 0; u < 4; u++)
				v[u] = dev_pack_load<true>(p.srcs[k] + at + u * apart, 16);
#pragma unroll
			for (int u = 0; u < 4; u++)
				acc[u] = dev_join(p, k, mid, acc[u], v[u]);
		}
		for (uint32_t k = 0; k < p.ndst; k++) {
#pragma unroll
			for (int u = 0; u < 4; u++)
				dev_pack_store<true>(p.dsts[k] + at + u * apart, acc[u], 16);
		}
	}
}

/* ---- small floats: dev_<tag>_small converts what is in 32 bits, N elements ---- */

struct dev_f16_small {
	enum { N = 2 };
	static __device__ __forceinline__ void widen(uint32_t w, float *f)
	{
		f[0] = dev_f16_load((uint16_t)w);
		f[1] = dev_f16_load((uint16_t)(w >> 16));
	}
	static __device__ __forceinline__ uint32_t narrow(const float *f)
	{
		return dev_f16_store(f[0]) | (uint32_t)dev_f16_store(f[1]) << 16;
	}
};
struct dev_bf16_small {
	enum { N = 2 };
	static __device__ __forceinline__ void widen(uint32_t w, float *f)
	{
		f[0] = dev_bits_float(w << 16);
		f[1] = dev_bits_float(w & 0xffff0000u);
	}
	static __device__ __forceinline__ uint32_t narrow(const float *f)
	{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
		uint32_t w;

		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(f[1]), "f"(f[0]));
		return w;
#else
		return dev_bf16_store(f[0]) | (uint32_t)dev_bf16_store(f[1]) << 16;
#endif
	}
};
#define DEV_FLOAT8_SMALL(tag)                                                                                          \
	struct dev_##tag##_small {                                                                                     \
		enum { N = 4 };                                                                                        \
		static __device__ __forceinline__ void widen(uint32_t w, float *f)                                     \
		{                                                                                                      \
			for (int i = 0; i < 4; i++)                                                                    \
				f[i] = dev_##tag##_load((uint8_t)(w >> 8 * i));                                        \
		}                                                                                                      \
		static __device__ __forceinline__ uint32_t narrow(const float *f)                                      \
		{                                                                                                      \
			uint32_t w = 0;                                                                                \
			for (int i = 0; i < 4; i++)                                                                    \
				w |= (uint32_t)dev_##tag##_store(f[i]) << 8 * i;                                       \
			return w;                                                                                      \
		}                                                                                                      \
	};
DEV_FLOAT8_SMALL(e4m3)
DEV_FLOAT8_SMALL(e5m2)

/* The floats of a pack, which are 4 * S::N. */
template <class S>
DEV_ELEM void dev_pack_widen(struct dev_pack p, float *f)
{
	const uint4 v = dev_vec_of(p);

	S::widen(v.x, f);
	S::widen(v.y, f + S::N);
	S::widen(v.z, f + 2 * S::N);
	S::widen(v.w, f + 3 * S::N);
}
template <class S>
DEV_ELEM struct dev_pack dev_pack_narrow(const float *f)
{
	return dev_pack_of(
		make_uint4(S::narrow(f), S::narrow(f + S::N), S::narrow(f + 2 * S::N), S::narrow(f + 3 * S::N)));
}

/* A step on N floats. */
template <int N>
DEV_ELEM void dev_small_scale(float *f, float s)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		f[i] = DEV_MUL_f32(f[i], s);
}
template <int N>
DEV_ELEM void dev_small_step(uint32_t step, float *acc, const float *v)
{
#define DEV_SMALL_CASE(STEP, c)                                                                                        \
	case DEV_RED_##STEP:                                                                                           \
		_Pragma("unroll") for (int i = 0; i < N; i++) acc[i] = c(acc[i], v[i]);                                \
		break;
	switch (step) {
		DEV_SMALL_CASE(SUM, DEV_ADD_f32)
		DEV_SMALL_CASE(PROD, DEV_MUL_f32)
		DEV_SMALL_CASE(MAX, DEV_MAX_f32)
		DEV_SMALL_CASE(MIN, DEV_MIN_f32)
	}
#undef DEV_SMALL_CASE
}

/* The local input's product, rounded to the type. */
template <class S>
DEV_ELEM void dev_small_product(float *f, float s)
{
	dev_small_scale<4 * S::N>(f, s);
	dev_pack_widen<S>(dev_pack_narrow<S>(f), f);
}

/* U packs, `apart` bytes apart, from byte `at` on. FULL, n: as dev_pack_load. Floats of one pack at a time besides the
 * sums: registers are few. */
template <class S, int U, bool FULL>
DEV_ELEM void dev_small_packs(const struct dev_plan &p, uint64_t at, uint64_t apart, uint32_t n)
{
	enum { PACK = 4 * S::N };
	const float s = dev_bits_float((uint32_t)p.s);
	struct dev_pack raw[U];
	float acc[U * PACK], v[PACK];

#pragma unroll
	for (int u = 0; u < U; u++)
		raw[u] = dev_pack_load<FULL>(p.srcs[0] + at + u * apart, n);
#pragma unroll
	for (int u = 0; u < U; u++)
		dev_pack_widen<S>(raw[u], acc + u * PACK);
	if (p.premul == 0) {
#pragma unroll
		for (int u = 0; u < U; u++)
			dev_small_product<S>(acc + u * PACK, s);
	}
#pragma unroll 1
	for (uint32_t k = 1; k < p.nsrc; k++) {
#pragma unroll
		for (int u = 0; u < U; u++)
			raw[u] = dev_pack_load<FULL>(p.srcs[k] + at + u * apart, n);
#pragma unroll
		for (int u = 0; u < U; u++) {
			dev_pack_widen<S>(raw[u], v);
			if (k == p.premul)
				dev_small_product<S>(v, s);
			dev_small_step<PACK>(p.mid, acc + u * PACK, v);
		}
	}
	if (p.avg)
		dev_small_scale<U * PACK>(acc, s);
#pragma unroll
	for (int u = 0; u < U; u++)
		raw[u] = dev_pack_narrow<S>(acc + u * PACK);
#pragma unroll 1
	for (uint32_t k = 0; k < p.ndst; k++) {
#pragma unroll
		for (int u = 0; u < U; u++)
			dev_pack_store<FULL>(p.dsts[k] + at + u * apart, raw[u], n);
	}
}

/* block: as dev_reduce_groups, also with groups of four packs per lane. */
template <class S>
DEV_BIG void dev_small_groups(const struct dev_plan &p, uint64_t from, uint64_t to)
{
	enum { U = 8 / S::N };
	const uint64_t apart = 16 * dev_lanes();

	for (uint64_t at = from + 16 * dev_lane(); at < to; at += U * apart)
		dev_small_packs<S, U, true>(p, at, apart, 16);
}

/* n <= 16 bytes from byte `at` on, by one lane. */
DEV_BIG void dev_reduce_pack(const struct dev_plan &p, uint64_t at, uint32_t n)
{
	struct dev_pack acc;

	if (!dev_plan_copies(p)) {
		switch (p.type) {
#define DEV_CASE(NAME, tag)                                                                                            \
	case GANTRY_TYPE_##NAME:                                                                                       \
		dev_small_packs<struct dev_##tag##_small, 1, false>(p, at, 0, n);                                      \
		return;
			DEV_SMALL_TYPES(DEV_CASE)
#undef DEV_CASE
		}
	}
	acc = dev_pack_load<false>(p.srcs[0] + at, n);
	if (p.nsrc == 1)
		acc = dev_single(p, acc);
	for (uint32_t k = 1; k < p.nsrc; k++)
		acc = dev_join(p, k, dev_any(), acc, dev_pack_load<false>(p.srcs[k] + at, n));
	for (uint32_t k = 0; k < p.ndst; k++)
		dev_pack_store<false>(p.dsts[k] + at, acc, n);
}

/* block: bytes [0, head) and [from, bytes), a pack or less at a time. */
DEV_BIG void dev_reduce_rest(const struct dev_plan &p, uint32_t head, uint64_t from, uint64_t bytes)
{
	const uint64_t pieces = 1 + (bytes - from + 15) / 16;

	for (uint64_t i = dev_lane(); i < pieces; i += dev_lanes()) {
		uint64_t at = i ? from + 16 * (i - 1) : 0, left = i ? bytes - at : head;

		if (left)
			dev_reduce_pack(p, at, left < 16 ? (uint32_t)left : 16);
	}
}

/* By whole groups, with the reduction of the plan made at compile time where it is a usual one. */
DEV void dev_block_reduce_groups(const struct dev_plan &p, uint64_t head, uint64_t end)
{
	const int sums = p.mid == DEV_RED_SUM && !p.avg && p.premul == DEV_PREMUL_NONE;

	if (dev_plan_copies(p)) {
		dev_reduce_groups(p, head, end, dev_u64_sum{0});
		return;
	}
	switch (p.type) {
#define DEV_CASE(NAME, tag)                                                                                            \
	case GANTRY_TYPE_##NAME:                                                                                       \
		dev_small_groups<struct dev_##tag##_small>(p, head, end);                                              \
		return;
		DEV_SMALL_TYPES(DEV_CASE)
#undef DEV_CASE
	case GANTRY_TYPE_FLOAT32:
		if (sums) {
			dev_reduce_groups(p, head, end, dev_f32_sum{0});
			return;
		}
	}
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

DEV_ELEM void dev_plan_of(struct dev_plan *p, const struct dev_reduction *r)
{
	p->srcs = r->srcs;
	p->dsts = r->dsts;
	p->nsrc = r->nsrc;
	p->ndst = r->ndst;
	p->type = r->type;
	dev_plan_steps(p, r->op, r->premul, r->last, r->scalar);
}

/* Whole words in memory that only this lane has. */
DEV void dev_words_reduce(const struct dev_reduction *r, uint32_t words)
{
	struct dev_plan p;

	dev_plan_of(&p, r);
	for (uint32_t i = 0; i < words; i += 2)
		dev_reduce_pack(p, 8 * i, words - i == 1 ? 8 : 16);
}

#endif
