/* SPDX-License-Identifier: Apache-2.0 */
/*
 * types_dev.h's reductions for one lane of a CPU. Part of types_dev.h. Three ways:
 *
 *   sums       of float, bfloat16 and float16, avg and premul with them: all sources pass through registers, 32 elements
 *              at a time, and every destination is written from there
 *   small      the small floats otherwise: in blocks that stay in L1, each source is widened and joined to a block of
 *              floats, which is rounded at the end
 *   wide       the other types: one loop per step. With more than two sources the results of all but the last step are
 *              in a piece that stays in L1
 *
 * The loops are vectorised in every build: they alone are compiled with -O3 (clang needs no word), and a pragma says
 * that an element depends on no other, which is so in place as well but which a compiler cannot know. No fused
 * multiply-add: see types_dev.h. No traps: else gcc keeps branches around additions that might not be needed.
 */
#ifndef GANTRY_DEVICE_TYPES_HOST_H
#define GANTRY_DEVICE_TYPES_HOST_H

#if defined(__aarch64__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#define DEV_ADD_f32(a, b) ((a) + (b))
#define DEV_MUL_f32(a, b) ((a) * (b))
/* Not fmaxf: on x86 that is a call per element. The bitwise or keeps branches out. */
#define DEV_MAX_f32(a, b) ((((a) > (b)) | ((b) != (b))) ? (a) : (b))
#define DEV_MIN_f32(a, b) ((((a) < (b)) | ((b) != (b))) ? (a) : (b))
#define DEV_ADD_f64 DEV_ADD_f32
#define DEV_MUL_f64 DEV_MUL_f32
#define DEV_MAX_f64 DEV_MAX_f32
#define DEV_MIN_f64 DEV_MIN_f32
#ifdef __clang__
#define DEV_LOOP static __attribute__((noinline, unused))
#define DEV_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#define DEV_NO_FMA _Pragma("clang fp contract(off)")
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed" /* it did not vectorise: sanitizers, -O0 */
#else
#define DEV_NO_FMA
#define DEV_LOOP static __attribute__((noinline, unused, optimize("O3", "fp-contract=off", "no-trapping-math")))
#define DEV_IVDEP _Pragma("GCC ivdep")
#endif
#define DEV_RED(tag, T, S, step, expr)                                                                                 \
	DEV_LOOP void dev_##tag##_##step(void *dp, const void *ap, const void *bp, uint64_t n, S s)                    \
	{                                                                                                              \
		DEV_NO_FMA                                                                                             \
		T *d = (T *)dp;                                                                                        \
		const T *as = (const T *)ap, *bs = (const T *)bp;                                                      \
		(void)s;                                                                                               \
		DEV_IVDEP for (uint64_t i = 0; i < n; i++)                                                             \
		{                                                                                                      \
			T a = as[i], b = bs[i];                                                                        \
			(void)b;                                                                                       \
			d[i] = (T)(expr);                                                                              \
		}                                                                                                      \
	}

/* The same memory also holds other types, whatever the build's flags say. */
#define DEV_ALIAS(tag, T, U, D) typedef T dev_##tag __attribute__((may_alias));
DEV_INTS(DEV_ALIAS)
DEV_ALIAS(f32, float, , )
DEV_ALIAS(f64, double, , )
DEV_ALIAS(u16, uint16_t, , )

#define DEV_RED_ALIAS(tag, T, U, D) DEV_RED_INT(tag, dev_##tag, U, D)
DEV_INTS(DEV_RED_ALIAS)
DEV_RED_FLOAT(f32, dev_f32, float, f32, DEV_AS_IT_IS, DEV_AS_IT_IS)
DEV_RED_FLOAT(f64, dev_f64, double, f64, DEV_AS_IT_IS, DEV_AS_IT_IS)

/* d[i] = step(a[i], b[i]). SCALE and DIV make nothing of b, but it must be readable. */
#define DEV_STEP_CASE(STEP, step, tag)                                                                                 \
	case DEV_RED_##STEP:                                                                                           \
		dev_##tag##_##step(d, a, b, n, s);                                                                     \
		break;
#define DEV_STEP_OF(tag, T, U, D)                                                                                      \
	static inline void dev_##tag##_step(uint32_t step, void *d, const void *a, const void *b, uint64_t n,          \
					    uint64_t scalar)                                                           \
	{                                                                                                              \
		dev_##tag##_scalar s = dev_##tag##_scalar_of(step, scalar);                                            \
		switch (step) {                                                                                        \
			DEV_STEPS(DEV_STEP_CASE, tag)                                                                  \
		}                                                                                                      \
	}
DEV_INTS(DEV_STEP_OF)
DEV_STEP_OF(f32, , , )
DEV_STEP_OF(f64, , , )

#define DEV_CONVERT(tag, suffix, T)                                                                                    \
	DEV_LOOP void dev_##tag##_widen##suffix(float *d, const void *sp, uint64_t n)                                  \
	{                                                                                                              \
		const T *s = (const T *)sp;                                                                            \
		DEV_IVDEP for (uint64_t i = 0; i < n; i++) d[i] = dev_##tag##_load(s[i]);                              \
	}                                                                                                              \
	DEV_LOOP void dev_##tag##_narrow##suffix(void *dp, const float *s, uint64_t n)                                 \
	{                                                                                                              \
		T *d = (T *)dp;                                                                                        \
		DEV_IVDEP for (uint64_t i = 0; i < n; i++) d[i] = (T)dev_##tag##_store(s[i]);                          \
	}
DEV_CONVERT(f16, _bits, dev_u16)
DEV_CONVERT(bf16, , dev_u16)
DEV_CONVERT(e4m3, , dev_u8)
DEV_CONVERT(e5m2, , dev_u8)

#if defined(__aarch64__)
DEV_LOOP void dev_f16_widen(float *d, const void *sp, uint64_t n)
{
	const char *s = (const char *)sp;
	uint64_t i;

	for (i = 0; i + 8 <= n; i += 8) {
		float16x8_t v;

		memcpy(&v, s + 2 * i, sizeof(v));
		vst1q_f32(d + i, vcvt_f32_f16(vget_low_f16(v)));
		vst1q_f32(d + i + 4, vcvt_high_f32_f16(v));
	}
	dev_f16_widen_bits(d + i, s + 2 * i, n - i);
}
DEV_LOOP void dev_f16_narrow(void *dp, const float *s, uint64_t n)
{
	char *d = (char *)dp;
	uint64_t i;

	for (i = 0; i + 8 <= n; i += 8) {
		float16x8_t v = vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(s + i)), vld1q_f32(s + i + 4));

		memcpy(d + 2 * i, &v, sizeof(v));
	}
	dev_f16_narrow_bits(d + 2 * i, s + i, n - i);
}
#elif defined(__x86_64__)
/* Every CPU that has AVX2 has these instructions. */
static __attribute__((noinline, unused, target("avx2,f16c"))) uint64_t dev_f16_widen_f16c(float *d, const char *s,
											  uint64_t n)
{
	uint64_t i;

	for (i = 0; i + 8 <= n; i += 8)
		_mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(s + 2 * i))));
	return i;
}
static __attribute__((noinline, unused, target("avx2,f16c"))) uint64_t dev_f16_narrow_f16c(char *d, const float *s,
											   uint64_t n)
{
	uint64_t i;

	for (i = 0; i + 8 <= n; i += 8)
		_mm_storeu_si128((__m128i *)(d + 2 * i),
				 _mm256_cvtps_ph(_mm256_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT));
	return i;
}
static inline void dev_f16_widen(float *d, const void *sp, uint64_t n)
{
	const char *s = (const char *)sp;
	uint64_t i = __builtin_cpu_supports("avx2") ? dev_f16_widen_f16c(d, s, n) : 0;

	dev_f16_widen_bits(d + i, s + 2 * i, n - i);
}
static inline void dev_f16_narrow(void *dp, const float *s, uint64_t n)
{
	char *d = (char *)dp;
	uint64_t i = __builtin_cpu_supports("avx2") ? dev_f16_narrow_f16c(d, s, n) : 0;

	dev_f16_narrow_bits(d + 2 * i, s + i, n - i);
}
#else
#define dev_f16_widen dev_f16_widen_bits
#define dev_f16_narrow dev_f16_narrow_bits
#endif

/*
 * ---- sums in registers ----
 *
 * GCC's vectors and not loops, because the sources' loop is inside that over the elements, and single ones and not an
 * array of them, which gcc would keep in memory. dev_<tag>_get makes 8 floats, x and y, of 8 elements at p; _put rounds
 * them. They are macros: a compiler takes no function into one of another target.
 */
typedef float dev_v4f __attribute__((vector_size(16)));
typedef uint32_t dev_v4u __attribute__((vector_size(16)));
typedef uint16_t dev_v8h __attribute__((vector_size(16)));
/* In memory, at any address. (memcpy would do, but of a vector that it stores twice gcc makes two words.) */
typedef float dev_v4f_mem __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t dev_v8h_mem __attribute__((vector_size(16), aligned(1), may_alias));

#ifdef __clang__
#define DEV_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define DEV_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (dev_v8h){__VA_ARGS__})
#endif

#define dev_f32_get(x, y, p)                                                                                           \
	do {                                                                                                           \
		x = ((const dev_v4f_mem *)(p))[0];                                                                     \
		y = ((const dev_v4f_mem *)(p))[1];                                                                     \
	} while (0)
#define dev_f32_put(x, y, p)                                                                                           \
	do {                                                                                                           \
		((dev_v4f_mem *)(p))[0] = x;                                                                           \
		((dev_v4f_mem *)(p))[1] = y;                                                                           \
	} while (0)

/*
 * A bfloat16 is the upper half of a float. No NaN needs care here, other than in dev_bf16_store: those that come out of
 * sums and products of widened numbers are quiet and have no bits in the lower half that rounding could carry.
 */
#define dev_bf16_get(x, y, p)                                                                                          \
	do {                                                                                                           \
		const dev_v8h h_ = *(const dev_v8h_mem *)(p), zero_ = {0};                                             \
		x = (dev_v4f)DEV_SHUFFLE(zero_, h_, 0, 8, 1, 9, 2, 10, 3, 11);                                         \
		y = (dev_v4f)DEV_SHUFFLE(zero_, h_, 4, 12, 5, 13, 6, 14, 7, 15);                                       \
	} while (0)
#define dev_bf16_put(x, y, p)                                                                                          \
	do {                                                                                                           \
		dev_v4u x_ = (dev_v4u)(x), y_ = (dev_v4u)(y);                                                          \
		x_ += 0x7fff - (dev_v4u)((x_ & 0x10000) != 0);                                                         \
		y_ += 0x7fff - (dev_v4u)((y_ & 0x10000) != 0);                                                         \
		*(dev_v8h_mem *)(p) = DEV_SHUFFLE((dev_v8h)x_, (dev_v8h)y_, 1, 3, 5, 7, 9, 11, 13, 15);                \
	} while (0)

#if defined(__aarch64__)
#define DEV_F16_TARGET
#define DEV_F16_SUMS 1
#define dev_f16_get(x, y, p)                                                                                           \
	do {                                                                                                           \
		const float16x8_t h_ = (float16x8_t) * (const dev_v8h_mem *)(p);                                       \
		x = (dev_v4f)vcvt_f32_f16(vget_low_f16(h_));                                                           \
		y = (dev_v4f)vcvt_high_f32_f16(h_);                                                                    \
	} while (0)
#define dev_f16_put(x, y, p)                                                                                           \
	do {                                                                                                           \
		*(dev_v8h_mem *)(p) = (dev_v8h)vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)(x)), (float32x4_t)(y));    \
	} while (0)
#elif defined(__x86_64__)
#define DEV_F16_TARGET __attribute__((target("avx2,f16c")))
#define DEV_F16_SUMS __builtin_cpu_supports("avx2")
#define dev_f16_get(x, y, p)                                                                                           \
	do {                                                                                                           \
		x = (dev_v4f)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(p)));                                      \
		y = (dev_v4f)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)((p) + 8)));                                \
	} while (0)
#define dev_f16_put(x, y, p)                                                                                           \
	do {                                                                                                           \
		_mm_storel_epi64((__m128i *)(p), _mm_cvtps_ph((__m128)(x), _MM_FROUND_TO_NEAREST_INT));                \
		_mm_storel_epi64((__m128i *)((p) + 8), _mm_cvtps_ph((__m128)(y), _MM_FROUND_TO_NEAREST_INT));          \
	} while (0)
#endif

/* 32 elements, and what is done with all of them. */
enum { DEV_SUM_ELEMS = 32, DEV_SUM_AHEAD = 256 /* bytes: an N1's own prefetchers lose track of three sources */ };
#define DEV_SUM_VECS(v) v##0, v##1, v##2, v##3, v##4, v##5, v##6, v##7
#define DEV_SUM_PUT(tag, v, p, bytes)                                                                                  \
	do {                                                                                                           \
		char *p_ = p;                                                                                          \
		dev_##tag##_put(v##0, v##1, p_);                                                                       \
		dev_##tag##_put(v##2, v##3, p_ + 8 * bytes);                                                           \
		dev_##tag##_put(v##4, v##5, p_ + 16 * bytes);                                                          \
		dev_##tag##_put(v##6, v##7, p_ + 24 * bytes);                                                          \
	} while (0)
#define DEV_SUM_GET(tag, v, p, bytes)                                                                                  \
	do {                                                                                                           \
		const char *p_ = p;                                                                                    \
		dev_##tag##_get(v##0, v##1, p_);                                                                       \
		dev_##tag##_get(v##2, v##3, p_ + 8 * bytes);                                                           \
		dev_##tag##_get(v##4, v##5, p_ + 16 * bytes);                                                          \
		dev_##tag##_get(v##6, v##7, p_ + 24 * bytes);                                                          \
	} while (0)
#define DEV_SUM_ALL(a, op, b)                                                                                          \
	a(0) op b(0), a(1) op b(1), a(2) op b(2), a(3) op b(3), a(4) op b(4), a(5) op b(5), a(6) op b(6), a(7) op b(7)
#define DEV_SUM_A(i) a##i
#define DEV_SUM_V(i) v##i
#define DEV_SUM_S(i) s

/*
 * Two sources or more. How many elements it did: all but the last few. factor: what the source `scaled`, or the sum, is
 * multiplied by, if this is not `plain`.
 */
#define DEV_SUMS_OF(tag, name, bytes, plain, target)                                                                   \
	target DEV_LOOP uint64_t dev_##tag##_##name(const struct dev_reduction *r, uint64_t at, uint64_t n, float s)   \
	{                                                                                                              \
		DEV_NO_FMA                                                                                             \
		const uint32_t nsrc = r->nsrc, ndst = r->ndst;                                                         \
		const uint32_t scaled = !plain && dev_op_scales(r->op) ? r->premul : DEV_PREMUL_NONE;                  \
		const int avg = !plain && r->op == GANTRY_OP_AVG && r->last;                                           \
		const char *const *srcs = r->srcs, *const s0 = srcs[0], *const s1 = srcs[1];                           \
		char *const *dsts = r->dsts, *const d0 = dsts[0];                                                      \
		dev_v4f DEV_SUM_VECS(a), DEV_SUM_VECS(v);                                                              \
		uint64_t i;                                                                                            \
                                                                                                                       \
		for (i = 0; i + DEV_SUM_ELEMS <= n; i += DEV_SUM_ELEMS, at += DEV_SUM_ELEMS * bytes) {                 \
			DEV_SUM_GET(tag, a, s0 + at, bytes);                                                           \
			DEV_SUM_GET(tag, v, s1 + at, bytes);                                                           \
			if (scaled == 0)                                                                               \
				DEV_SUM_ALL(DEV_SUM_A, *=, DEV_SUM_S);                                                 \
			if (scaled == 1)                                                                               \
				DEV_SUM_ALL(DEV_SUM_V, *=, DEV_SUM_S);                                                 \
			DEV_SUM_ALL(DEV_SUM_A, +=, DEV_SUM_V);                                                         \
			for (uint32_t k = 2; k < nsrc; k++) {                                                          \
				DEV_SUM_GET(tag, v, srcs[k] + at, bytes);                                              \
				for (int j = 0; j < DEV_SUM_ELEMS * bytes; j += 64)                                    \
					__builtin_prefetch(srcs[k] + at + DEV_SUM_AHEAD + j);                          \
				if (scaled == k)                                                                       \
					DEV_SUM_ALL(DEV_SUM_V, *=, DEV_SUM_S);                                         \
				DEV_SUM_ALL(DEV_SUM_A, +=, DEV_SUM_V);                                                 \
			}                                                                                              \
			if (avg)                                                                                       \
				DEV_SUM_ALL(DEV_SUM_A, *=, DEV_SUM_S);                                                 \
			DEV_SUM_PUT(tag, a, d0 + at, bytes);                                                           \
			for (uint32_t k = 1; k < ndst; k++)                                                            \
				DEV_SUM_PUT(tag, a, dsts[k] + at, bytes);                                              \
		}                                                                                                      \
		return i;                                                                                              \
	}
static inline int dev_red_plain(const struct dev_reduction *r)
{
	return r->op == GANTRY_OP_SUM || (r->op == GANTRY_OP_AVG && !r->last) ||
	       (dev_op_scales(r->op) && r->premul >= r->nsrc);
}
#define DEV_SUMS(tag, bytes, target)                                                                                   \
	DEV_SUMS_OF(tag, plain_sums, bytes, 1, target)                                                                 \
	DEV_SUMS_OF(tag, scaled_sums, bytes, 0, target)                                                                \
	static inline uint64_t dev_##tag##_sums(const struct dev_reduction *r, uint64_t at, uint64_t n, float s)       \
	{                                                                                                              \
		return dev_red_plain(r) ? dev_##tag##_plain_sums(r, at, n, s) : dev_##tag##_scaled_sums(r, at, n, s);  \
	}
DEV_SUMS(f32, 4, )
DEV_SUMS(bf16, 2, )
#ifdef DEV_F16_SUMS
DEV_SUMS(f16, 2, DEV_F16_TARGET)
#endif

#if defined(__aarch64__)
/*
 * The sum of two in float16 itself, where the CPU can add those: six times faster than to float and back on an N1. It is
 * the exact sum rounded once, and so is that by way of float, for 24 bits are enough of a sum of two numbers of 11.
 */
#ifdef __clang__
#define DEV_F16_NATIVE __attribute__((target("fullfp16")))
#else
#define DEV_F16_NATIVE __attribute__((target("arch=armv8.2-a+fp16")))
#endif
#define DEV_F16_ADD(d, a, b) __asm__("fadd %0.8h, %1.8h, %2.8h" : "=w"(d) : "w"(a), "w"(b))
DEV_F16_NATIVE DEV_LOOP uint64_t dev_f16_pairs(const struct dev_reduction *r, uint64_t at, uint64_t n)
{
	const dev_v8h_mem *a = (const dev_v8h_mem *)(r->srcs[0] + at), *b = (const dev_v8h_mem *)(r->srcs[1] + at);
	const uint32_t ndst = r->ndst;
	char *const *dsts = r->dsts, *const d0 = dsts[0];
	uint64_t i;

	for (i = 0; i + DEV_SUM_ELEMS <= n; i += DEV_SUM_ELEMS, a += 4, b += 4, at += 2 * DEV_SUM_ELEMS) {
		dev_v8h x0 = a[0], x1 = a[1], x2 = a[2], x3 = a[3], y0 = b[0], y1 = b[1], y2 = b[2], y3 = b[3];

		DEV_F16_ADD(x0, x0, y0);
		DEV_F16_ADD(x1, x1, y1);
		DEV_F16_ADD(x2, x2, y2);
		DEV_F16_ADD(x3, x3, y3);
		for (uint32_t k = 0; k < ndst; k++) {
			dev_v8h_mem *d = (dev_v8h_mem *)((k ? dsts[k] : d0) + at);

			d[0] = x0;
			d[1] = x1;
			d[2] = x2;
			d[3] = x3;
		}
	}
	return i;
}
static inline int dev_f16_adds(void)
{
	return (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0;
}
#endif

#ifdef __clang__
#pragma clang diagnostic pop
#endif

enum { DEV_SMALL_BLOCK = 512 };

/* Widens n <= DEV_SMALL_BLOCK elements to float, or rounds floats to them. */
static inline void dev_small_widen(uint32_t type, float *d, const void *s, uint64_t n)
{
	switch (type) {
#define DEV_CASE(NAME, tag)                                                                                            \
	case GANTRY_TYPE_##NAME:                                                                                       \
		dev_##tag##_widen(d, s, n);                                                                            \
		break;
		DEV_SMALL_TYPES(DEV_CASE)
#undef DEV_CASE
	}
}
static inline void dev_small_narrow(uint32_t type, void *d, const float *s, uint64_t n)
{
	switch (type) {
#define DEV_CASE(NAME, tag)                                                                                            \
	case GANTRY_TYPE_##NAME:                                                                                       \
		dev_##tag##_narrow(d, s, n);                                                                           \
		break;
		DEV_SMALL_TYPES(DEV_CASE)
#undef DEV_CASE
	}
}

/* What PREMUL or AVG multiplies by, where that is a float. */
static inline float dev_red_factor(const struct dev_reduction *r)
{
	float s;

	if (r->op != GANTRY_OP_PREMUL)
		return dev_f32_scalar_of(DEV_RED_AVG, r->scalar);
	if (!dev_type_small(r->type))
		return dev_f32_scalar_of(DEV_RED_PREMUL, r->scalar);
	dev_small_widen(r->type, &s, &r->scalar, 1);
	return s;
}

/* Destination 0 has the result from byte `at` on: the others get it. */
static inline void dev_copy_result(const struct dev_reduction *r, uint64_t at, uint64_t bytes)
{
	for (uint32_t j = 1; j < r->ndst; j++)
		if (r->dsts[j] != r->dsts[0])
			memcpy(r->dsts[j] + at, r->dsts[0] + at, bytes);
}

/* A block of floats, to and fro. */
static void dev_small_block(const struct dev_reduction *r, uint64_t at, uint64_t n, float s)
{
	float acc[DEV_SMALL_BLOCK], next[DEV_SMALL_BLOCK];
	uint16_t product[DEV_SMALL_BLOCK];
	const uint32_t step = dev_red_step(r->op, 0, 0, DEV_PREMUL_NONE, 0);

	for (uint32_t k = 0; k < r->nsrc; k++) {
		float *x = k ? next : acc;

		dev_small_widen(r->type, x, r->srcs[k] + at, n);
		if (dev_op_scales(r->op) && r->premul == k) {
			dev_f32_scale(x, x, x, n, s);
			dev_small_narrow(r->type, product, x, n);
			dev_small_widen(r->type, x, product, n);
		}
		if (k)
			dev_f32_step(step, acc, acc, next, n, 0);
	}
	if (r->op == GANTRY_OP_AVG && r->last)
		dev_f32_scale(acc, acc, acc, n, s);
	dev_small_narrow(r->type, r->dsts[0] + at, acc, n);
}
static inline void dev_small_reduce(const struct dev_reduction *r, uint64_t at, uint64_t n, float s)
{
	const uint64_t bytes = dev_type_bytes(r->type);
	uint64_t m;

	for (; n; n -= m, at += m * bytes) {
		m = n < DEV_SMALL_BLOCK ? n : (uint64_t)DEV_SMALL_BLOCK;
		dev_small_block(r, at, m, s);
		dev_copy_result(r, at, m * bytes);
	}
}

static inline void dev_wide_step(uint32_t type, uint32_t step, void *d, const void *a, const void *b, uint64_t n,
				 uint64_t scalar)
{
	switch (type) {
#define DEV_CASE(NAME, tag)                                                                                            \
	case GANTRY_TYPE_##NAME:                                                                                       \
		dev_##tag##_step(step, d, a, b, n, scalar);                                                            \
		break;
		DEV_WIDE_TYPES(DEV_CASE)
#undef DEV_CASE
	}
}

/* On the host a piece, of sources and destinations together, stays in L1. */
enum { DEV_PIECE = 16384 };

/* Partial results are kept aside: a destination may be a source that is still to be read. */
static void dev_wide_piece(const struct dev_reduction *r, uint64_t at, uint64_t n)
{
	char part[DEV_PIECE] __attribute__((aligned(64)));
	const char *a = r->srcs[0] + at;

	if (r->nsrc == 1)
		dev_wide_step(r->type, dev_red_single(r->op, r->premul, r->last), r->dsts[0] + at, a, a, n, r->scalar);
	for (uint32_t k = 1; k < r->nsrc; k++) {
		const uint32_t step = dev_red_step(r->op, k, r->nsrc, r->premul, r->last);
		const int swapped = dev_red_swapped(r->op, k, r->premul);
		const char *b = r->srcs[k] + at;
		char *d = k + 1 == r->nsrc ? r->dsts[0] + at : part;

		dev_wide_step(r->type, step, d, swapped ? b : a, swapped ? a : b, n, r->scalar);
		a = d;
	}
}
static inline void dev_wide_reduce(const struct dev_reduction *r, uint64_t at, uint64_t n)
{
	const uint64_t bytes = dev_type_bytes(r->type);
	uint64_t m;

	for (; n; n -= m, at += m * bytes) {
		m = (r->nsrc > 2 || r->ndst > 1) && n * bytes > DEV_PIECE ? DEV_PIECE / bytes : n;
		dev_wide_piece(r, at, m);
		dev_copy_result(r, at, m * bytes);
	}
}

/* As many elements as there are loops for that hold them in registers. */
static inline uint64_t dev_reduce_sums(const struct dev_reduction *r, uint64_t at, uint64_t n, float s)
{
	if (r->nsrc < 2 || (r->op != GANTRY_OP_SUM && r->op != GANTRY_OP_AVG && !dev_op_scales(r->op)))
		return 0;
	/* Their product is rounded to the type. */
	if (dev_type_small(r->type) && dev_op_scales(r->op) && r->premul < r->nsrc)
		return 0;
	switch (r->type) {
	case GANTRY_TYPE_FLOAT32:
		return dev_f32_sums(r, at, n, s);
	case GANTRY_TYPE_BFLOAT16:
		return dev_bf16_sums(r, at, n, s);
#ifdef DEV_F16_SUMS
	case GANTRY_TYPE_FLOAT16:
#ifdef DEV_F16_ADD
		if (r->nsrc == 2 && dev_red_plain(r) && dev_f16_adds())
			return dev_f16_pairs(r, at, n);
#endif
		return DEV_F16_SUMS ? dev_f16_sums(r, at, n, s) : 0;
#endif
	}
	return 0;
}

/* n elements from byte `at` on, by one lane. What is only copied does not come here. */
static __attribute__((noinline, unused)) void dev_reduce_span(const struct dev_reduction *r, uint64_t at, uint64_t n)
{
	const int small = dev_type_small(r->type), factor = small || r->type == GANTRY_TYPE_FLOAT32;
	const float s = factor ? dev_red_factor(r) : 0;
	const uint64_t done = dev_reduce_sums(r, at, n, s);

	at += done * dev_type_bytes(r->type);
	if (small)
		dev_small_reduce(r, at, n - done, s);
	else
		dev_wide_reduce(r, at, n - done);
}

/* Whole words in memory that only this lane has. */
DEV void dev_words_reduce(const struct dev_reduction *r, uint32_t words)
{
	const uint64_t bytes = 8ull * words;

	if (r->nsrc > 1 || dev_red_single(r->op, r->premul, r->last) != DEV_RED_NONE)
		dev_reduce_span(r, 0, dev_type_count(r->type, bytes));
	else
		for (uint32_t j = 0; j < r->ndst; j++)
			if (r->dsts[j] != r->srcs[0])
				memcpy(r->dsts[j], r->srcs[0], bytes);
}

#endif
