/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small floats to and from float, for both kinds of device: float16, bfloat16, float8 e4m3 and e5m2.
 *
 * To float is exact. From float rounds to nearest, ties to even. What does not fit becomes infinity in the 16-bit types
 * and the largest finite number in the 8-bit ones (448 and 57344; infinities too), as CUDA's __NV_SATFINITE does. A NaN
 * stays a NaN; which one is not specified.
 *
 * e4m3 is OCP's "fn" kind: no infinities, the only NaNs are 0x7f and 0xff. e5m2 is the upper half of a float16.
 *
 * The bit code below has no branches and no tables, so that gcc and clang make vector code of a loop around it. GPUs
 * convert by themselves, and so do CPUs float16 (types_host.h).
 */
#ifndef GANTRY_DEVICE_TYPES_FLOAT_H
#define GANTRY_DEVICE_TYPES_FLOAT_H

#include "device/dev.h"

#ifdef __CUDACC__
#define DEV_ELEM static __device__ __forceinline__
#define DEV_BIG static __device__ __noinline__
DEV_ELEM uint32_t dev_float_bits(float f)
{
	return __float_as_uint(f);
}
DEV_ELEM float dev_bits_float(uint32_t u)
{
	return __uint_as_float(u);
}
#else
#define DEV_ELEM static inline __attribute__((always_inline, unused))
#define DEV_BIG static __attribute__((noinline, unused))
DEV_ELEM uint32_t dev_float_bits(float f)
{
	union {
		float f;
		uint32_t u;
	} v;

	v.f = f;
	return v.u;
}
DEV_ELEM float dev_bits_float(uint32_t u)
{
	union {
		float f;
		uint32_t u;
	} v;

	v.u = u;
	return v.f;
}
#endif

/*
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

/* float16's top is 65536, which rounds to infinity. */
DEV_ELEM float dev_f16_load_bits(uint32_t v)
{
	return dev_small_load(v, 5, 10, 65536.0f);
}
DEV_ELEM uint32_t dev_f16_store_bits(float f)
{
	return dev_small_store(f, 5, 10, 0x47800000, 0x7fff);
}
DEV_ELEM float dev_e4m3_load_bits(uint32_t v)
{
	return dev_small_load(v, 4, 3, 480.0f);
}
DEV_ELEM uint32_t dev_e4m3_store_bits(float f)
{
	return dev_small_store(f, 4, 3, 0x43e00000, 0x7f);
}
DEV_ELEM float dev_e5m2_load_bits(uint32_t v)
{
	return dev_small_load(v, 5, 2, 65536.0f);
}
DEV_ELEM uint32_t dev_e5m2_store_bits(float f)
{
	return dev_small_store(f, 5, 2, 0x47600000, 0x7f);
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
DEV_ELEM float dev_f16_load(uint16_t v)
{
	return dev_f16_load_bits(v);
}
DEV_ELEM uint16_t dev_f16_store(float f)
{
	return (uint16_t)dev_f16_store_bits(f);
}
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
#else
#define DEV_FLOAT8(tag)                                                                                                \
	DEV_ELEM float dev_##tag##_load(uint8_t v)                                                                     \
	{                                                                                                              \
		return dev_##tag##_load_bits(v);                                                                       \
	}                                                                                                              \
	DEV_ELEM uint8_t dev_##tag##_store(float f)                                                                    \
	{                                                                                                              \
		return (uint8_t)dev_##tag##_store_bits(f);                                                             \
	}
#endif
DEV_FLOAT8(e4m3)
DEV_FLOAT8(e5m2)

#endif
