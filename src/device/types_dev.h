/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic on elements: every operation of a reduction for every type.
 *
 * A reduction over k sources is k - 1 steps in the sources' order, each of which takes the result so far and the next
 * source and stores an element of the type: rounding happens at every step, as in NCCL, and a GPU and a CPU agree bit
 * for bit (but for which NaN, and for the sign of zero in max and min). The rules:
 *
 *   integers   wrap around
 *   float16, bfloat16, float8   are computed in float and rounded back (types_float.h). For one addition or
 *              multiplication that is the correctly rounded result
 *   max, min   of a number and a NaN is the number, as with fmaxf and CUDA's __hmax; of two NaNs a NaN; of 0 and -0
 *              either
 *   avg        sums; the last step of the reduction marked `last` divides by the divisor, an integer >= 1 in `scalar`
 *              (0 counts as 1). Integers: the sum wraps, then the quotient is cut towards zero, as in NCCL. Floats:
 *              times 1/divisor, both in float (float64: double), between the addition and the rounding. (NCCL
 *              multiplies every float by 1/divisor beforehand: PREMUL with that scalar does just the same. It cannot
 *              overflow, but rounds more)
 *   premul     the local input, source 0, is multiplied by the scalar (its bits are in `scalar`) and rounded, then
 *              summed. No multiply-and-add in one rounding anywhere
 *
 * Here are the words of it that both kinds of device share; the loops are in types_host.h and types_cuda.h.
 */
#ifndef GANTRY_DEVICE_TYPES_DEV_H
#define GANTRY_DEVICE_TYPES_DEV_H

#include "device/types_float.h"
#include "gantry/types.h"

/* Steps of a reduction. SCALE and DIV have one source: they are PREMUL and AVG of nothing but the local input. */
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

/* X(NAME of gantry/types.h, tag) */
/* clang-format off */
#define DEV_TYPES(X)                                                                                \
	X(INT8, i8) X(UINT8, u8) X(INT32, i32) X(UINT32, u32) X(INT64, i64) X(UINT64, u64)          \
	X(FLOAT16, f16) X(FLOAT32, f32) X(FLOAT64, f64) X(BFLOAT16, bf16) X(FLOAT8E4M3, e4m3)       \
	X(FLOAT8E5M2, e5m2)
/* clang-format on */

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
	DEV_RED(tag, T, C, premul, ST(DEV_ADD_##c(LD(ST(DEV_MUL_##c(LD(a), s))), LD(b))))                              \
	DEV_RED(tag, T, C, avg, ST(DEV_MUL_##c(DEV_ADD_##c(LD(a), LD(b)), s)))                                         \
	DEV_RED(tag, T, C, scale, ST(DEV_MUL_##c(LD(a), s)))                                                           \
	DEV_RED(tag, T, C, div, ST(DEV_MUL_##c(LD(a), s)))
#define DEV_AS_IT_IS(x) (x)

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

#ifdef __CUDACC__
#include "device/types_cuda.h"
#else
#include "device/types_host.h"
#endif

#endif
