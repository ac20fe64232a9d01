/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic on elements: every operation of a reduction for every type.
 *
 * A reduction over k sources is k - 1 steps in the sources' order, strictly: ranks that reduce the same sources in the
 * same order get the same bits. Types of 32 bits and more round at every step, as in NCCL. The smaller floats are
 * widened to float, stay so through all steps, and are rounded once, when the result is stored. A GPU and a CPU agree
 * bit for bit (but for which NaN, and for the sign of zero in max and min), and so do all protocols. The rules:
 *
 *   integers   wrap around
 *   float16, bfloat16, float8   are computed in float. For two sources the result of an addition or a multiplication
 *              is the correctly rounded one; for more it is that of the steps in float, rounded
 *   max, min   of a number and a NaN is the number, as with fmaxf and CUDA's __hmax; of two NaNs a NaN; of 0 and -0
 *              either
 *   avg        sums; a reduction marked `last` divides the sum by the divisor, an integer >= 1 in `scalar` (0 counts
 *              as 1). Integers: the sum wraps, then the quotient is cut towards zero, as in NCCL. Floats: times
 *              1/divisor, both in float (float64: double), before the small ones are rounded. Collectives do that for
 *              integers alone: a sum of floats may overflow where its average does not
 *   premul     one source, the local input, is multiplied by the scalar (its bits are in `scalar`), then all are
 *              summed. The product is rounded to the element's type, as in NCCL: a rank that sends it and one that adds
 *              it up by itself have the same. No multiply-and-add in one rounding anywhere
 *   mean       (DEV_OP_MEAN, of the small floats) premul with 1/divisor in float, as avg has it. What averages of
 *              collectives are for the small floats; for the others they are premul with 1/divisor
 *
 * Here are the words of it that both kinds of device share; the loops are in types_host.h and types_cuda.h.
 */
#ifndef GANTRY_DEVICE_TYPES_DEV_H
#define GANTRY_DEVICE_TYPES_DEV_H

#include <string.h>

#include "device/dev.h"
#include "gantry/types.h"

#if defined(__CUDACC__)
#define DEV_ELEM static __device__ __forceinline__
#define DEV_BIG static __device__ __noinline__
#elif defined(__HIPCC__)
#define DEV_ELEM static __device__ __forceinline__ __attribute__((unused))
#define DEV_BIG static __device__ __noinline__ __attribute__((unused))
#else
#define DEV_ELEM static inline __attribute__((always_inline, unused))
#define DEV_BIG static __attribute__((noinline, unused))
#endif

DEV_ELEM uint32_t dev_float_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}
DEV_ELEM float dev_bits_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/*
 * ---- small floats to and from float ----
 *
 * To float is exact. From float rounds to nearest, ties to even. What does not fit becomes infinity in the 16-bit types
 * and the largest finite number in the 8-bit ones (448 and 57344; infinities too), as CUDA's __NV_SATFINITE does. A NaN
 * stays a NaN; which one is not specified.
 *
 * e4m3 is OCP's "fn" kind: no infinities, the only NaNs are 0x7f and 0xff. e5m2 is the upper half of a float16.
 *
 * The bit code below has no branches and no tables, so that gcc and clang make vector code of a loop around it. GPUs
 * convert by themselves, and so do CPUs float16 (types_host.h).
 *
 * A format has a sign, `exp` bits of exponent, `man` bits of mantissa and the exponent's bias 2^(exp - 1) - 1:
 * constants at every call. With its bits moved to a float's places a number is 2^(bias - 127) times itself, subnormals
 * as well, for they become a float's subnormals. From `special` on it is infinite or no number.
 */
DEV_ELEM float dev_small_load(uint32_t v, int exp, int man, float special)
{
	const int bias = (1 << (exp - 1)) - 1, unused = 31 - exp - man;
	const uint32_t keep = 0x80000000u | ((1u << (23 + exp)) - 1);
	uint32_t u;
	float f;

	f = dev_bits_float((uint32_t)((int32_t)(v << unused) >> (8 - exp)) & keep) *
	    dev_bits_float((uint32_t)(254 - bias) << 23);
	u = dev_float_bits(f);
	return dev_bits_float(dev_bits_float(u & 0x7fffffffu) >= special ? u | 0x7f800000u : u);
}

/*
 * The other way. Normal numbers: the carry of adding half a unit rounds, and may well run into the exponent. Below the
 * smallest normal number, 2^(1 - bias): adding a float whose last bit is worth the format's smallest subnormal makes
 * the adder round. `top` is the bits of the largest float that is not cut off, and `nan` the answer to a NaN.
 */
DEV_ELEM uint32_t dev_small_store(float f, int exp, int man, int32_t top, int32_t nan)
{
	const int bias = (1 << (exp - 1)) - 1, drop = 23 - man;
	const int32_t magic = (128 - bias + drop) << 23;
	uint32_t bits = dev_float_bits(f);
	int32_t all = (int32_t)(bits & 0x7fffffffu), mag = all > top ? top : all, norm, sub, r;

	norm = ((mag + ((1 << (drop - 1)) - 1) + (mag >> drop & 1)) >> drop) - ((127 - bias) << man);
	sub = (int32_t)dev_float_bits(dev_bits_float((uint32_t)mag) + dev_bits_float((uint32_t)magic)) - magic;
	r = mag < (128 - bias) << 23 ? sub : norm;
	r = all > 0x7f800000 ? nan : r;
	return (uint32_t)r | bits >> 31 << (exp + man);
}

#define DEV_SMALL_FLOAT(tag, T, exp, man, special, top, nan)                                                           \
	DEV_ELEM float dev_##tag##_load(T v)                                                                           \
	{                                                                                                              \
		return dev_small_load(v, exp, man, special);                                                           \
	}                                                                                                              \
	DEV_ELEM T dev_##tag##_store(float f)                                                                          \
	{                                                                                                              \
		return (T)dev_small_store(f, exp, man, top, nan);                                                      \
	}

DEV_ELEM float dev_bf16_load(uint16_t v)
{
	return dev_bits_float((uint32_t)v << 16);
}
DEV_ELEM uint16_t dev_bf16_store(float f)
{
	uint32_t u = dev_float_bits(f), r = (u + 0x7fff + (u >> 16 & 1)) >> 16;

	return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fff : r);
}

#ifdef __CUDA_ARCH__
DEV_ELEM float dev_f16_load(uint16_t v)
{
	float f;

	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
	return f;
}
DEV_ELEM uint16_t dev_f16_store(float f)
{
	uint16_t v;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v) : "f"(f));
	return v;
}
#else
DEV_SMALL_FLOAT(f16, uint16_t, 5, 10, 65536.0f, 0x47800000, 0x7fff) /* top: 65536, which rounds to infinity */
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
/* The instructions take pairs; the other half of ours is zero. */
#define DEV_FLOAT8(tag)                                                                                                \
	DEV_ELEM float dev_##tag##_load(uint8_t v)                                                                     \
	{                                                                                                              \
		uint32_t pair;                                                                                         \
		asm("cvt.rn.f16x2." #tag "x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)v));                                \
		return dev_f16_load((uint16_t)pair);                                                                   \
	}                                                                                                              \
	DEV_ELEM uint8_t dev_##tag##_store(float f)                                                                    \
	{                                                                                                              \
		uint16_t pair;                                                                                         \
		asm("cvt.rn.satfinite." #tag "x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));                   \
		return (uint8_t)pair;                                                                                  \
	}
DEV_FLOAT8(e4m3)
DEV_FLOAT8(e5m2)
#else
DEV_SMALL_FLOAT(e4m3, uint8_t, 4, 3, 480.0f, 0x43e00000, 0x7f)
DEV_SMALL_FLOAT(e5m2, uint8_t, 5, 2, 65536.0f, 0x47600000, 0x7f)
#endif

/* ---- steps ---- */

/*
 * Steps of a reduction, each of two operands. PREMUL scales the first of them. SCALE and DIV have one: they are PREMUL
 * and AVG of nothing but the local input.
 */
enum dev_red {
	DEV_RED_SUM,
	DEV_RED_PROD,
	DEV_RED_MAX,
	DEV_RED_MIN,
	DEV_RED_PREMUL,
	DEV_RED_AVG,
	DEV_RED_SCALE,
	DEV_RED_DIV,
	DEV_REDS,
	DEV_RED_NONE = DEV_REDS /* a plain copy */
};

/* X(NAME of gantry/types.h, tag). The small ones are computed in float. */
/* clang-format off */
#define DEV_SMALL_TYPES(X)                                                                          \
	X(FLOAT16, f16) X(BFLOAT16, bf16) X(FLOAT8E4M3, e4m3) X(FLOAT8E5M2, e5m2)
#define DEV_WIDE_TYPES(X)                                                                           \
	X(INT8, i8) X(UINT8, u8) X(INT32, i32) X(UINT32, u32) X(INT64, i64) X(UINT64, u64)          \
	X(FLOAT32, f32) X(FLOAT64, f64)
#define DEV_TYPES(X) DEV_WIDE_TYPES(X) DEV_SMALL_TYPES(X)
/* clang-format on */

DEV_ELEM int dev_type_small(uint32_t type)
{
	switch (type) {
#define DEV_CASE(NAME, tag) case GANTRY_TYPE_##NAME:
		DEV_SMALL_TYPES(DEV_CASE)
#undef DEV_CASE
		return 1;
	}
	return 0;
}

/* 0 for what is no type. */
DEV_ELEM uint32_t dev_type_bytes(uint32_t type)
{
	switch (type) {
#define DEV_CASE(name, number, bytes, text)                                                                            \
	case number:                                                                                                   \
		return bytes;
		GANTRY_TYPES(DEV_CASE)
#undef DEV_CASE
	}
	return 0;
}

/* How many elements these are: without a division, which takes some 40 cycles where the size is not known. */
DEV_ELEM uint64_t dev_type_count(uint32_t type, uint64_t bytes)
{
	switch (type) {
#define DEV_CASE(name, number, size, text)                                                                             \
	case number:                                                                                                   \
		return bytes / size;
		GANTRY_TYPES(DEV_CASE)
#undef DEV_CASE
	}
	return 0;
}

/* The local input is not among the sources of a reduction, or PREMUL is not to scale it. */
#define DEV_PREMUL_NONE UINT32_MAX

enum { DEV_OP_MEAN = GANTRY_OP_COUNT }; /* beside those of gantry/types.h */

/* The local input is multiplied by something. */
DEV_ELEM int dev_op_scales(uint32_t op)
{
	return op == GANTRY_OP_PREMUL || op == DEV_OP_MEAN;
}

/* Elements of all sources, reduced, in all destinations: k_reduce.h. */
struct dev_reduction {
	const char *const *srcs;
	char *const *dsts;
	uint32_t nsrc, ndst;
	uint32_t type, op;
	uint64_t scalar;
	uint32_t premul; /* which source PREMUL scales, or DEV_PREMUL_NONE */
	uint32_t last;	 /* AVG divides */
};

/* The step that joins source k > 0, of nsrc, to the ones before. */
DEV_ELEM uint32_t dev_red_step(uint32_t op, uint32_t k, uint32_t nsrc, uint32_t premul, uint32_t last)
{
	switch (op) {
	case GANTRY_OP_PROD:
		return DEV_RED_PROD;
	case GANTRY_OP_MAX:
		return DEV_RED_MAX;
	case GANTRY_OP_MIN:
		return DEV_RED_MIN;
	case GANTRY_OP_AVG:
		return last && k + 1 == nsrc ? DEV_RED_AVG : DEV_RED_SUM;
	case GANTRY_OP_PREMUL:
		return premul == k || (premul == 0 && k == 1) ? DEV_RED_PREMUL : DEV_RED_SUM;
	default:
		return DEV_RED_SUM;
	}
}
/* Whether that step's first operand is source k itself and the second one the result so far. */
DEV_ELEM int dev_red_swapped(uint32_t op, uint32_t k, uint32_t premul)
{
	return op == GANTRY_OP_PREMUL && premul == k;
}

/* What happens to a single source. */
DEV_ELEM uint32_t dev_red_single(uint32_t op, uint32_t premul, uint32_t last)
{
	if (dev_op_scales(op) && premul == 0)
		return DEV_RED_SCALE;
	return op == GANTRY_OP_AVG && last ? DEV_RED_DIV : DEV_RED_NONE;
}

/*
 * The arithmetic itself: elements a and b and a scalar s give `expr`. types_host.h and types_cuda.h say what DEV_RED
 * makes of it. U: integers that wrap, D: what divides (the element's sign, no narrower than int), also the scalar's
 * type.
 */
#define DEV_RED_INT(tag, T, U, D)                                                                                      \
	typedef D dev_##tag##_scalar;                                                                                  \
	DEV_ELEM D dev_##tag##_scalar_of(uint32_t step, uint64_t bits)                                                 \
	{                                                                                                              \
		return step == DEV_RED_PREMUL || step == DEV_RED_SCALE ? (D)(T)bits : bits ? (D)bits : 1;              \
	}                                                                                                              \
	DEV_RED(tag, T, D, sum, (U)a + (U)b)                                                                           \
	DEV_RED(tag, T, D, prod, (U)a *(U)b)                                                                           \
	DEV_RED(tag, T, D, max, a > b ? a : b)                                                                         \
	DEV_RED(tag, T, D, min, a < b ? a : b)                                                                         \
	DEV_RED(tag, T, D, premul, (U)a *(U)s + (U)b)                                                                  \
	DEV_RED(tag, T, D, avg, (D)(T)((U)a + (U)b) / s)                                                               \
	DEV_RED(tag, T, D, scale, (U)a *(U)s)                                                                          \
	DEV_RED(tag, T, D, div, (D)a / s)

/* C: the type of computation, c: its tag, LD and ST: to C and back. */
#define DEV_RED_FLOAT(tag, T, C, c, LD, ST)                                                                            \
	typedef C dev_##tag##_scalar;                                                                                  \
	DEV_ELEM C dev_##tag##_scalar_of(uint32_t step, uint64_t bits)                                                 \
	{                                                                                                              \
		T v;                                                                                                   \
		memcpy(&v, &bits, sizeof(v));                                                                          \
		return step == DEV_RED_PREMUL || step == DEV_RED_SCALE ? LD(v) : (C)1 / (C)(bits ? bits : 1);          \
	}                                                                                                              \
	DEV_RED(tag, T, C, sum, ST(DEV_ADD_##c(LD(a), LD(b))))                                                         \
	DEV_RED(tag, T, C, prod, ST(DEV_MUL_##c(LD(a), LD(b))))                                                        \
	DEV_RED(tag, T, C, max, ST(DEV_MAX_##c(LD(a), LD(b))))                                                         \
	DEV_RED(tag, T, C, min, ST(DEV_MIN_##c(LD(a), LD(b))))                                                         \
	DEV_RED(tag, T, C, premul, ST(DEV_ADD_##c(DEV_MUL_##c(LD(a), s), LD(b))))                                      \
	DEV_RED(tag, T, C, avg, ST(DEV_MUL_##c(DEV_ADD_##c(LD(a), LD(b)), s)))                                         \
	DEV_RED(tag, T, C, scale, ST(DEV_MUL_##c(LD(a), s)))                                                           \
	DEV_RED(tag, T, C, div, ST(DEV_MUL_##c(LD(a), s)))
#define DEV_AS_IT_IS(x) (x)

/* X(tag, T, U, D), as DEV_RED_INT has them. */
#define DEV_INTS(X)                                                                                                    \
	X(i8, int8_t, uint32_t, int32_t)                                                                               \
	X(u8, uint8_t, uint32_t, uint32_t)                                                                             \
	X(i32, int32_t, uint32_t, int32_t)                                                                             \
	X(u32, uint32_t, uint32_t, uint32_t)                                                                           \
	X(i64, int64_t, uint64_t, int64_t)                                                                             \
	X(u64, uint64_t, uint64_t, uint64_t)

/* For switches over steps: X(NAME, name, type's tag). */
#define DEV_STEPS(X, tag)                                                                                              \
	X(SUM, sum, tag)                                                                                               \
	X(PROD, prod, tag)                                                                                             \
	X(MAX, max, tag)                                                                                               \
	X(MIN, min, tag)                                                                                               \
	X(PREMUL, premul, tag)                                                                                         \
	X(AVG, avg, tag)                                                                                               \
	X(SCALE, scale, tag)                                                                                           \
	X(DIV, div, tag)

#if defined(__CUDACC__) || defined(__HIPCC__)
#include "device/types_cuda.h"
#else
#include "device/types_host.h"
#endif

#endif
