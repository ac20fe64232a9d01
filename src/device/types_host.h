/* SPDX-License-Identifier: Apache-2.0 */
/*
 * types_dev.h's steps as loops over contiguous memory, for one lane of a CPU. Part of types_dev.h.
 *
 * The loops are vectorised in every build: they alone are compiled with -O3 (clang needs no word), and a pragma says
 * that an element depends on no other, which is so in place as well but which a compiler cannot know. No fused
 * multiply-add: see types_dev.h. No traps: else gcc keeps branches around additions that might not be needed.
 *
 * The small floats go by way of float, in blocks that stay in L1: converting is most of their work, and where a CPU has
 * instructions for it (float16) those are used for all steps at once.
 */
#ifndef GANTRY_DEVICE_TYPES_HOST_H
#define GANTRY_DEVICE_TYPES_HOST_H

#if defined(__aarch64__)
#include <arm_neon.h>
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

#ifdef __clang__
#pragma clang diagnostic pop
#endif

enum { DEV_SMALL_BLOCK = 512 };
/* For float the scalar of PREMUL and SCALE becomes a float's bits; AVG and DIV divide by the same integer. */
#define DEV_STEP_OF_SMALL(tag, bytes)                                                                                  \
	static inline void dev_##tag##_step(uint32_t step, void *d, const void *a, const void *b, uint64_t n,          \
					    uint64_t scalar)                                                           \
	{                                                                                                              \
		float x[2 * DEV_SMALL_BLOCK], *y;                                                                      \
		uint64_t i, m, at;                                                                                     \
                                                                                                                       \
		if (step == DEV_RED_PREMUL || step == DEV_RED_SCALE)                                                   \
			scalar = dev_float_bits(dev_##tag##_load((dev_##tag)scalar));                                  \
		for (i = 0; i < n; i += m) {                                                                           \
			m = n - i < DEV_SMALL_BLOCK ? n - i : DEV_SMALL_BLOCK;                                         \
			at = i * bytes;                                                                                \
			dev_##tag##_widen(x, (const char *)a + at, m);                                                 \
			y = x;                                                                                         \
			if (step != DEV_RED_SCALE && step != DEV_RED_DIV) {                                            \
				y = x + DEV_SMALL_BLOCK;                                                               \
				dev_##tag##_widen(y, (const char *)b + at, m);                                         \
			}                                                                                              \
			if (step == DEV_RED_PREMUL) {                                                                  \
				dev_##tag half[DEV_SMALL_BLOCK];                                                       \
				dev_f32_step(DEV_RED_SCALE, x, x, x, m, scalar);                                       \
				dev_##tag##_narrow(half, x, m);                                                        \
				dev_##tag##_widen(x, half, m);                                                         \
			}                                                                                              \
			dev_f32_step(step == DEV_RED_PREMUL ? DEV_RED_SUM : step, x, x, y, m, scalar);                 \
			dev_##tag##_narrow((char *)d + at, x, m);                                                      \
		}                                                                                                      \
	}
typedef dev_u16 dev_f16;
typedef dev_u16 dev_bf16;
typedef dev_u8 dev_e4m3;
typedef dev_u8 dev_e5m2;
DEV_STEP_OF_SMALL(f16, 2)
DEV_STEP_OF_SMALL(bf16, 2)
DEV_STEP_OF_SMALL(e4m3, 1)
DEV_STEP_OF_SMALL(e5m2, 1)

static __attribute__((noinline, unused)) void dev_step(uint32_t type, uint32_t step, void *d, const void *a,
						       const void *b, uint64_t n, uint64_t scalar)
{
	switch (type) {
#define DEV_CASE(NAME, tag)                                                                                            \
	case GANTRY_TYPE_##NAME:                                                                                       \
		dev_##tag##_step(step, d, a, b, n, scalar);                                                            \
		break;
		DEV_TYPES(DEV_CASE)
#undef DEV_CASE
	}
}

/* One step over whole words in registers or on the stack, by one lane. */
DEV void dev_words_step(uint32_t type, uint32_t step, uint64_t *d, const uint64_t *a, const uint64_t *b, uint32_t words,
			uint64_t scalar)
{
	dev_step(type, step, d, a, b, words * 8 / dev_type_bytes(type), scalar);
}

#endif
