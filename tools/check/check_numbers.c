/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers for reductions, of every type that NCCL has.
 *
 * Integers have all their bits, so that sums and products wrap, as NCCL's do, and order depends on the sign. Those of
 * floating point have as many bits as a sum or a product of all ranks holds exactly, so that the order of a reduction does
 * not matter.
 */
#include "check/check_numbers.h"

#include <math.h>
#include <string.h>

#include "check/check.h"

static const struct {
	int size, exponent, mantissa; /* bits, of floating point */
	int is_signed;
} types[CHECK_TYPES] = {
	[ncclInt8] = {1, 0, 0, 1},     [ncclUint8] = {1, 0, 0, 0},	[ncclInt32] = {4, 0, 0, 1},
	[ncclUint32] = {4, 0, 0, 0},   [ncclInt64] = {8, 0, 0, 1},	[ncclUint64] = {8, 0, 0, 0},
	[ncclFloat16] = {2, 5, 10, 1}, [ncclFloat32] = {4, 8, 23, 1},	[ncclFloat64] = {8, 11, 52, 1},
	[ncclBfloat16] = {2, 8, 7, 1}, [ncclFloat8e4m3] = {1, 4, 3, 1}, [ncclFloat8e5m2] = {1, 5, 2, 1},
};

union number {
	uint64_t whole; /* extended from the type's size by its sign */
	double real;
};

static int is_real(ncclDataType_t type)
{
	return types[type].exponent != 0;
}

static void encode(ncclDataType_t type, union number value, uint8_t *out)
{
	int mantissa = types[type].mantissa, bias = (1 << types[type].exponent) / 2 - 1, e;
	uint64_t word = value.whole;

	if (type == ncclFloat32) {
		memcpy(out, &(float){(float)value.real}, sizeof(float));
		return;
	}
	if (is_real(type)) {
		double m = frexp(fabs(value.real), &e); /* m * 2^e, m from 0.5 on */

		word = m > 0 ? (uint64_t)(e - 1 + bias) << mantissa | (uint64_t)ldexp(2 * m - 1, mantissa) : 0;
		if (value.real < 0)
			word |= 1ull << (types[type].size * 8 - 1);
	}
	memcpy(out, &word, (size_t)types[type].size); /* little-endian, as everything that NCCL runs on */
}

/* Zero, the ends of the range, and anything between. */
static union number whole_number(ncclDataType_t type, uint64_t x)
{
	int unused = 64 - types[type].size * 8;
	const uint64_t top = 1ull << (63 - unused), edges[] = {0, UINT64_MAX, top, top - 1};
	uint64_t bits = (x & 7) < 4 ? edges[x & 3] : x >> 3;

	bits <<= unused;
	return (union number){.whole = types[type].is_signed ? (uint64_t)((int64_t)bits >> unused) : bits >> unused};
}

/* 1 to 2^n, with a sign, and for what adds up with a fraction of two bits. */
static union number real_number(ncclDataType_t type, ncclRedOp_t red, uint64_t x, size_t element)
{
	int bits = types[type].mantissa + 1, n = red == ncclProd ? bits / 4 : bits - 2;
	static const double fractions[] = {1, 0.5, 0.25};
	double v = 1 + (double)((x >> 8) & ((1ull << (n > 0 ? n : 1)) - 1));

	if (red != ncclProd)
		v *= fractions[element % 3];
	return (union number){.real = x & 1 ? -v : v};
}

/* What a rank contributes at a place of operation k. */
static union number contribution(ncclDataType_t type, ncclRedOp_t red, int k, int rank, size_t element)
{
	uint64_t state = ((uint64_t)k << 40) + ((uint64_t)rank << 32) + element, x = check_random(&state);

	return is_real(type) ? real_number(type, red, x, element) : whole_number(type, x);
}

static double reduce_real(ncclRedOp_t red, double a, double b)
{
	switch (red) {
	case ncclSum:
		return a + b;
	case ncclProd:
		return a * b;
	case ncclMax:
		return a > b ? a : b;
	default:
		return a < b ? a : b;
	}
}

static uint64_t reduce_whole(ncclDataType_t type, ncclRedOp_t red, uint64_t a, uint64_t b)
{
	int more = types[type].is_signed ? (int64_t)a > (int64_t)b : a > b;

	switch (red) {
	case ncclSum:
		return a + b;
	case ncclProd:
		return a * b;
	case ncclMax:
		return more ? a : b;
	default:
		return more ? b : a;
	}
}

static union number reduced(ncclDataType_t type, ncclRedOp_t red, int k, size_t element)
{
	union number acc = contribution(type, red, k, 0, element);

	for (int r = 1; r < CHECK_RANKS; r++) {
		union number v = contribution(type, red, k, r, element);

		if (is_real(type))
			acc.real = reduce_real(red, acc.real, v.real);
		else
			acc.whole = reduce_whole(type, red, acc.whole, v.whole);
	}
	return acc;
}

size_t check_type_size(ncclDataType_t type)
{
	return (size_t)types[type].size;
}

void check_numbers(ncclDataType_t type, ncclRedOp_t red, int k, int rank, size_t offset, size_t bytes, uint8_t *out)
{
	size_t size = (size_t)types[type].size;

	for (size_t at = 0; at < bytes; at += size) {
		size_t element = (offset + at) / size;

		encode(type, rank < 0 ? reduced(type, red, k, element) : contribution(type, red, k, rank, element),
		       out + at);
	}
}
