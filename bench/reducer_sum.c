/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one core of a reducer adds up, beside a plain loop that adds each rank's buffer to a sum of the same type: the same
 * buffers, pieces and count of operands. Prints one JSON line per type and number of ranks; "ratio" is the reducer's rate to
 * the loop's, "ratio_float" that to the loop's of floats: as many bytes, half as many numbers where they are small.
 * cc -O2 -D_GNU_SOURCE -fno-strict-aliasing -Iinclude -Isrc -o reducer_sum bench/reducer_sum.c src/reducer/sum.c
 * usage: reducer_sum [SECONDS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gantry/types.h"
#include "reducer/sum.h"

enum { RANKS = 8, WINDOW = 8, PIECE = 128 << 10 };

static char *buffers[RANKS + 1][WINDOW];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void reduce(uint32_t type, uint32_t n, uint32_t slot)
{
	const char *srcs[RANKS];

	for (uint32_t i = 0; i < n; i++)
		srcs[i] = buffers[i][slot];
	reducer_sum(type, GANTRY_OP_SUM, srcs, n, buffers[RANKS][slot], PIECE);
}

/* A plain loop, as fast as the compiler makes it. */
#define PLAIN(name, T)                                                                                                 \
	__attribute__((noinline, optimize("O3"))) static void name(T *restrict sum, const T *restrict x)               \
	{                                                                                                              \
		for (size_t i = 0; i < PIECE / sizeof(T); i++)                                                         \
			sum[i] += x[i];                                                                                \
	}
PLAIN(add_float, float)
PLAIN(add_double, double)
PLAIN(add_int, int)
PLAIN(add_half, _Float16)

static inline float of_bfloat(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

__attribute__((noinline, optimize("O3"))) static void add_bfloat(uint16_t *restrict sum, const uint16_t *restrict x)
{
	for (size_t i = 0; i < PIECE / sizeof(*sum); i++) {
		float f = of_bfloat(sum[i]) + of_bfloat(x[i]);
		uint32_t bits;

		memcpy(&bits, &f, sizeof(bits));
		sum[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	}
}

static void plain(uint32_t type, uint32_t n, uint32_t slot)
{
	void *sum = buffers[RANKS][slot];

	memcpy(sum, buffers[0][slot], PIECE);
	for (uint32_t i = 1; i < n; i++) {
		void *x = buffers[i][slot];

		switch (type) {
		case GANTRY_TYPE_FLOAT64:
			add_double(sum, x);
			break;
		case GANTRY_TYPE_INT32:
			add_int(sum, x);
			break;
		case GANTRY_TYPE_FLOAT16:
			add_half(sum, x);
			break;
		case GANTRY_TYPE_BFLOAT16:
			add_bfloat(sum, x);
			break;
		default:
			add_float(sum, x);
		}
	}
}

/* Operand bytes per second, the best of five. */
static double rate(void (*f)(uint32_t, uint32_t, uint32_t), uint32_t type, uint32_t n, double seconds)
{
	double best = 0;

	for (int again = 0; again < 5; again++) {
		double begun = now(), took;
		uint64_t pieces = 0;

		do {
			f(type, n, (uint32_t)(pieces++ % WINDOW));
			took = now() - begun;
		} while (took < seconds / 5);
		if ((double)pieces * n * PIECE / took > best)
			best = (double)pieces * n * PIECE / took;
	}
	return best;
}

int main(int argc, char **argv)
{
	static const struct {
		uint32_t type;
		const char *name;
	} types[] = {{GANTRY_TYPE_FLOAT32, "float"},
		     {GANTRY_TYPE_BFLOAT16, "bfloat16"},
		     {GANTRY_TYPE_FLOAT16, "half"},
		     {GANTRY_TYPE_FLOAT64, "double"},
		     {GANTRY_TYPE_INT32, "int32"}};
	double seconds = argc > 1 ? atof(argv[1]) : 0.5;

	for (int i = 0; i <= RANKS; i++)
		for (int k = 0; k < WINDOW; k++) {
			buffers[i][k] = aligned_alloc(64, PIECE);
			if (!buffers[i][k])
				return 2;
			memset(buffers[i][k], 0, PIECE);
		}
	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
		for (uint32_t n = 2; n <= RANKS; n *= 2) {
			double ours = rate(reduce, types[t].type, n, seconds),
			       loop = rate(plain, types[t].type, n, seconds),
			       floats = rate(plain, GANTRY_TYPE_FLOAT32, n, seconds);

			printf("{\"bench\": \"reducer_sum\", \"type\": \"%s\", \"ranks\": %u, \"reducer_gbs\": %.2f, "
			       "\"loop_gbs\": %.2f, \"ratio\": %.2f, \"ratio_float\": %.2f}\n",
			       types[t].name, n, ours / 1e9, loop / 1e9, ours / loop, ours / floats);
		}
	return 0;
}
