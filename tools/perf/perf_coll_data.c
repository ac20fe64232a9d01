/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contents of collectives. Nothing here is the product's: conversions to the small floats are made from their
 * definition, results are sums of whole numbers in double or in integers that wrap.
 */
#include <math.h>
#include <string.h>

#include "perf/perf_coll.h"

const struct pcoll_traits pcoll_traits[PCOLL_OP_COUNT] = {
#define ONE 0
#define ALL 1
#define PCOLL_ROW(NAME, name, in, out, reduces, rooted) [PCOLL_##NAME] = {name, in, out, reduces, rooted},
	PCOLL_OPS(PCOLL_ROW)
#undef PCOLL_ROW
#undef ALL
#undef ONE
};

const char *pcoll_redop(int op)
{
	static const char *const names[GANTRY_OP_COUNT] = {
#define OP_ROW(name, number, text) [number] = text,
		GANTRY_OPS(OP_ROW)
#undef OP_ROW
	};

	return op < 0 ? "none" : names[op];
}

/* ---- types ---- */

enum kind { SIGNED, UNSIGNED, FLOATING };

/* exact: whole numbers up to this one are elements of the type (floats), or the largest of it (integers). */
static const struct {
	enum kind kind;
	double exact;
	int mantissa, bias; /* of floats below 32 bits */
	uint32_t largest;   /* its bits */
} types[GANTRY_TYPE_COUNT] = {
	[GANTRY_TYPE_INT8] = {SIGNED, 127, 0, 0, 0},
	[GANTRY_TYPE_UINT8] = {UNSIGNED, 255, 0, 0, 0},
	[GANTRY_TYPE_INT32] = {SIGNED, 0x7fffffff, 0, 0, 0},
	[GANTRY_TYPE_UINT32] = {UNSIGNED, 0xffffffff, 0, 0, 0},
	/* Sums of 64-bit integers stay where a double is exact. */
	[GANTRY_TYPE_INT64] = {SIGNED, 0x1p52, 0, 0, 0},
	[GANTRY_TYPE_UINT64] = {UNSIGNED, 0x1p52, 0, 0, 0},
	[GANTRY_TYPE_FLOAT16] = {FLOATING, 2048, 10, 15, 0x7bff},
	[GANTRY_TYPE_FLOAT32] = {FLOATING, 0x1p24, 0, 0, 0},
	[GANTRY_TYPE_FLOAT64] = {FLOATING, 0x1p53, 0, 0, 0},
	[GANTRY_TYPE_BFLOAT16] = {FLOATING, 256, 7, 127, 0x7f7f},
	[GANTRY_TYPE_FLOAT8E4M3] = {FLOATING, 16, 3, 7, 0x7e},
	[GANTRY_TYPE_FLOAT8E5M2] = {FLOATING, 8, 2, 15, 0x7b},
};

/* Sign, exponent and mantissa of a float of less than 32 bits, rounded to nearest, ties to even. */
static uint32_t encode_small(int type, double v)
{
	const int mantissa = types[type].mantissa, bias = types[type].bias,
		  bits = perf_comm_type_bytes(type) == 1 ? 8 : 16;
	const uint32_t sign = signbit(v) ? 1u << (bits - 1) : 0;
	double a = fabs(v), q;
	int e;
	uint32_t u;

	if (a == 0)
		return sign;
	frexp(a, &e);
	e = e - 1 < 1 - bias ? 1 - bias : e - 1; /* below: subnormal, with the least exponent */
	q = nearbyint(ldexp(a, mantissa - e));
	/* A mantissa that was rounded up to the next power of two carries into the exponent by itself. */
	if (q >= ldexp(1, mantissa))
		u = (uint32_t)(e + bias) << mantissa;
	else
		u = 1u << mantissa; /* the exponent field is 0 */
	u = u + (uint32_t)q - (1u << mantissa);
	return sign | (e + bias > 1 << (bits - 1 - mantissa) || u > types[type].largest ? types[type].largest : u);
}

uint64_t pcoll_encode(int type, double v)
{
	uint64_t u = 0;
	float f = (float)v;

	if (type == GANTRY_TYPE_FLOAT64)
		memcpy(&u, &v, sizeof(v));
	else if (type == GANTRY_TYPE_FLOAT32)
		memcpy(&u, &f, sizeof(f)); /* its bytes come first on little-endian machines, see put() */
	else if (types[type].kind == FLOATING)
		u = encode_small(type, v);
	else
		u = (uint64_t)(int64_t)v;
	return u;
}

/* Elements as integers of their size; the machines that GPUs are in are little-endian. */
static void put(void *table, uint64_t i, size_t size, uint64_t bits)
{
	memcpy((char *)table + i * size, &bits, size);
}

static uint64_t get(const void *table, uint64_t i, size_t size)
{
	uint64_t bits = 0;

	memcpy(&bits, (const char *)table + i * size, size);
	return bits;
}

/* ---- inputs ---- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t hash(const struct pcoll_data *d, int rank, int part, uint64_t i)
{
	return mix(mix(d->seed + (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u + (uint64_t)part * 0xd1b54a32d192ed03u) +
		   i * 0x9e3779b97f4a7c15u);
}

/* How many ranks have a say about an element when it is summed or multiplied, and how large they may be, so that every
 * partial sum is exact. The others give 0, or 1. */
enum { SUMMANDS = 8, FACTORS = 6 };

static int contributes(const struct pcoll_data *d, int rank, int part, uint64_t i, int most)
{
	return d->nranks <= most || ((uint64_t)rank + hash(d, -1, part, i)) % (uint64_t)d->nranks < (uint64_t)most;
}

static double room_of(const struct pcoll_data *d)
{
	return d->op == GANTRY_OP_PREMUL ? types[d->type].exact / 2 : types[d->type].exact;
}

/* How many ranks give something other than 0 to a sum, at most. */
static int summands(const struct pcoll_data *d)
{
	int most = room_of(d) < SUMMANDS ? (int)room_of(d) : SUMMANDS;

	return d->nranks < most ? d->nranks : most;
}

static double summand(const struct pcoll_data *d, int rank, int part, uint64_t i)
{
	double largest = floor(room_of(d) / summands(d));
	uint64_t h = hash(d, rank, part, i), span = (uint64_t)largest;

	if (!contributes(d, rank, part, i, summands(d)))
		return 0;
	/* Averages of floats: each is scaled and rounded, so that a sum of both signs may have no digit right. */
	if (types[d->type].kind == UNSIGNED || (types[d->type].kind == FLOATING && d->op == GANTRY_OP_AVG))
		return (double)(h % (span + 1));
	return (double)(h % (2 * span + 1)) - largest;
}

static double factor(const struct pcoll_data *d, int rank, int part, uint64_t i)
{
	uint64_t h = hash(d, rank, part, i);
	double sign = h >> 8 & 1 ? -1 : 1;

	return contributes(d, rank, part, i, FACTORS) ? ldexp(sign, (int)(h % 3) - 1) : sign;
}

/* A float input of a reduction. */
static double number(const struct pcoll_data *d, int rank, int part, uint64_t i)
{
	uint64_t h = hash(d, rank, part, i);
	double span = 2 * types[d->type].exact + 1;

	if (d->bits) /* 53 bits of mantissa, and exponents that differ: the order of sums shows */
		return ldexp((h & 1 ? -1.0 : 1.0) * (1 + (double)(h >> 12) / 0x1p52),
			     d->op == GANTRY_OP_PROD ? -(int)(h >> 1 & 1) : (int)(h >> 1 & 7) - 4);
	switch (d->op) {
	case GANTRY_OP_PROD:
		return factor(d, rank, part, i);
	case GANTRY_OP_MAX:
	case GANTRY_OP_MIN:
		return fmod((double)(h >> 8), span) - types[d->type].exact;
	default:
		return summand(d, rank, part, i);
	}
}

/* The bits of an input. What is not reduced may be anything; integers wrap, but averages have to stay whole. */
static uint64_t input_bits(const struct pcoll_data *d, int rank, int part, uint64_t i)
{
	if (!pcoll_traits[d->what].reduces)
		return hash(d, rank, part, i);
	if (types[d->type].kind == FLOATING)
		return pcoll_encode(d->type, number(d, rank, part, i));
	if (d->op == GANTRY_OP_AVG)
		return pcoll_encode(d->type, summand(d, rank, part, i));
	return hash(d, rank, part, i);
}

uint64_t pcoll_table_length(uint64_t count)
{
	return count < PCOLL_PERIOD ? count : PCOLL_PERIOD;
}

void pcoll_input(const struct pcoll_data *d, int rank, int part, uint64_t length, void *table)
{
	size_t size = perf_comm_type_bytes(d->type);

	for (uint64_t i = 0; i < length; i++)
		put(table, i, size, input_bits(d, rank, part, i));
}

/* ---- results ---- */

static double scalar_of(int rank)
{
	return rank % 2 ? 2 : 1;
}

void pcoll_scalar(int type, int rank, void *ret_scalar)
{
	put(ret_scalar, 0, perf_comm_type_bytes(type), pcoll_encode(type, scalar_of(rank)));
}

static double join_floats(const struct pcoll_data *d, double a, double b)
{
	switch (d->op) {
	case GANTRY_OP_PROD:
		return a * b;
	case GANTRY_OP_MAX:
		return fmax(a, b);
	case GANTRY_OP_MIN:
		return fmin(a, b);
	default:
		return a + b;
	}
}

static uint64_t reduce_floats(const struct pcoll_data *d, int part, uint64_t i)
{
	double all = 0;

	for (int rank = 0; rank < d->nranks; rank++) {
		double v = number(d, rank, part, i);

		v = d->op == GANTRY_OP_PREMUL ? v * scalar_of(rank) : v;
		all = rank ? join_floats(d, all, v) : v;
	}
	return pcoll_encode(d->type, d->op == GANTRY_OP_AVG ? all / d->nranks : all);
}

/* An element of an integer type, with its sign. */
static int64_t widen(int type, uint64_t bits)
{
	const int shift = 64 - 8 * (int)perf_comm_type_bytes(type);

	return types[type].kind == SIGNED ? (int64_t)(bits << shift) >> shift : (int64_t)(bits << shift >> shift);
}

static int less(int type, uint64_t a, uint64_t b)
{
	return types[type].kind == SIGNED ? widen(type, a) < widen(type, b)
					  : (uint64_t)widen(type, a) < (uint64_t)widen(type, b);
}

static uint64_t join_integers(const struct pcoll_data *d, uint64_t a, uint64_t b)
{
	switch (d->op) {
	case GANTRY_OP_PROD:
		return a * b;
	case GANTRY_OP_MAX:
		return less(d->type, a, b) ? b : a;
	case GANTRY_OP_MIN:
		return less(d->type, a, b) ? a : b;
	default:
		return a + b;
	}
}

static uint64_t reduce_integers(const struct pcoll_data *d, int part, uint64_t i)
{
	uint64_t all = 0;

	for (int rank = 0; rank < d->nranks; rank++) {
		uint64_t v = input_bits(d, rank, part, i);

		v = d->op == GANTRY_OP_PREMUL ? v * (uint64_t)scalar_of(rank) : v;
		all = rank ? join_integers(d, all, v) : v;
	}
	if (d->op != GANTRY_OP_AVG)
		return all;
	if (types[d->type].kind == SIGNED)
		return (uint64_t)(widen(d->type, all) / d->nranks);
	return (uint64_t)widen(d->type, all) / (uint64_t)d->nranks;
}

void pcoll_expected(const struct pcoll_data *d, int rank, int part, uint64_t length, void *table)
{
	const struct pcoll_traits *t = &pcoll_traits[d->what];
	size_t size = perf_comm_type_bytes(d->type);
	/* Whose input it is, and which part of that. */
	int from = t->out_all ? part : d->root, of = t->in_all ? rank : 0;

	if (d->what == PCOLL_PUT)
		from = (rank + d->nranks - 1) % d->nranks;
	if (!t->reduces) {
		pcoll_input(d, from, of, length, table);
		return;
	}
	for (uint64_t i = 0; i < length; i++)
		put(table, i, size,
		    types[d->type].kind == FLOATING ? reduce_floats(d, of, i) : reduce_integers(d, of, i));
}

int pcoll_tolerance(const struct pcoll_data *d)
{
	const int n = d->nranks, m = summands(d), is_small = types[d->type].mantissa != 0,
		  is_subnormal = is_small && 1.0 / n < ldexp(1, 1 - types[d->type].bias);

	if (!pcoll_traits[d->what].reduces || d->op != GANTRY_OP_AVG || types[d->type].kind != FLOATING)
		return 0;
	if (!(n & (n - 1)) && !is_subnormal)
		return 0;
	return m - 1 + (is_small ? 1 : 2) + (is_subnormal ? (m + 1) / 2 : 0);
}

/* ---- buffers ---- */

void pcoll_fill(void *to, uint64_t count, size_t size, const void *table)
{
	uint64_t length = pcoll_table_length(count), n;

	for (uint64_t at = 0; at < count; at += n) {
		n = count - at < length ? count - at : length;
		memcpy((char *)to + at * size, table, n * size);
	}
}

/* In the order of the numbers: neighbours differ by 1. */
static int64_t ordered(uint64_t bits, size_t size)
{
	const uint64_t sign = (uint64_t)1 << (8 * size - 1);

	return bits & sign ? -(int64_t)(bits & ~sign) : (int64_t)bits;
}

static int differs(uint64_t a, uint64_t b, size_t size, int ulps)
{
	int64_t d = ordered(a, size) - ordered(b, size);

	return ulps ? d > ulps || d < -ulps : a != b;
}

uint64_t pcoll_compare(const void *got, uint64_t count, int type, const void *table, int ulps, uint64_t *ret_first)
{
	const size_t size = perf_comm_type_bytes(type);
	uint64_t length = pcoll_table_length(count), wrong = 0, n;

	for (uint64_t at = 0; at < count; at += n) {
		const char *from = (const char *)got + at * size;

		n = count - at < length ? count - at : length;
		if (memcmp(from, table, n * size) == 0)
			continue;
		for (uint64_t i = 0; i < n; i++)
			if (differs(get(from, i, size), get(table, i, size), size, ulps) && wrong++ == 0)
				*ret_first = at + i;
	}
	return wrong;
}

/* ---- bandwidths ---- */

/*
 * As nccl-tests: algbw is the size of an operation by its time, busbw what has to pass through the link of a rank: all
 * but its own part, and twice that where results come back.
 */
void pcoll_bandwidth(enum pcoll_op what, int nranks, uint64_t bytes, double us, double *ret_alg, double *ret_bus)
{
	double gbs = us > 0 ? (double)bytes / us / 1e3 : 0, others = (double)(nranks - 1) / nranks;

	*ret_alg = what == PCOLL_BARRIER ? NAN : gbs;
	switch (what) {
	case PCOLL_ALL_REDUCE:
		*ret_bus = 2 * others * gbs;
		break;
	case PCOLL_REDUCE:
	case PCOLL_BROADCAST:
	case PCOLL_PUT:
		*ret_bus = gbs;
		break;
	case PCOLL_BARRIER:
		*ret_bus = NAN;
		break;
	default:
		*ret_bus = others * gbs;
		break;
	}
}
