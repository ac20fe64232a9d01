/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions by the code for GPUs, lane by lane on a CPU: the host's code makes the same bits of the same sources, every
 * byte of a destination is written once, and nothing else is read or written. (The host's code is what test_types
 * compares with a model. Conversions are the ones in C here, not a GPU's instructions.)
 */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "device/dev.h"

#include "device/k_reduce.h"

extern "C" void host_reduce(const struct dev_reduction *r, uint64_t count);

enum { SOURCES = 9, PLACES = 3, ROOM = 3 * 64 * 96 + 256, ALL = (SOURCES + PLACES) * ROOM };
static char *memory;

static uint32_t below(uint32_t most)
{
	return warp_random() % most;
}

static int is_nan(uint32_t type, uint64_t v)
{
	float f;
	double d;

	memcpy(&f, &v, 4);
	memcpy(&d, &v, 8);
	switch (type) {
	case GANTRY_TYPE_FLOAT16:
		return (v & 0x7fff) > 0x7c00;
	case GANTRY_TYPE_BFLOAT16:
		return (v & 0x7fff) > 0x7f80;
	case GANTRY_TYPE_FLOAT8E4M3:
		return (v & 0x7f) == 0x7f;
	case GANTRY_TYPE_FLOAT8E5M2:
		return (v & 0x7f) > 0x7c;
	case GANTRY_TYPE_FLOAT32:
		return std::isnan(f);
	case GANTRY_TYPE_FLOAT64:
		return std::isnan(d);
	}
	return 0;
}
/* Up to what types_dev.h leaves open: which NaN, and of 0 and -0 either is the largest and the smallest. */
static int same(const dev_reduction *r, uint64_t a, uint64_t b)
{
	const uint32_t bytes = dev_type_bytes(r->type);
	const int floats = r->type >= GANTRY_TYPE_FLOAT16, either = r->op == GANTRY_OP_MAX || r->op == GANTRY_OP_MIN;
	const uint64_t sign = 1ull << (8 * bytes - 1);

	return a == b || (is_nan(r->type, a) && is_nan(r->type, b)) ||
	       (floats && either && ((a | b) & (sign - 1)) == 0);
}

struct call {
	dev_reduction r;
	uint64_t count;
	uint32_t words; /* not 0: lane 0 alone, by dev_words_reduce */
};
static void body(void *arg)
{
	const call *c = (const call *)arg;

	if (!c->words)
		dev_reduce_copy(&c->r, c->count);
	else if (dev_lane() == 0)
		dev_words_reduce(&c->r, c->words);
}

/* Small numbers, so that sums round in interesting ways, and any bits. */
static void fill(uint32_t type, char *p, uint64_t count)
{
	const uint32_t bytes = dev_type_bytes(type);

	for (uint64_t i = 0; i < count; i++) {
		uint64_t v = warp_random() | (uint64_t)warp_random() << 32;

		if (below(4)) /* exponents in the middle of the range, all bits of the mantissa */
			v = (v >> 2 & ~(3ull << (8 * bytes - 3))) | (uint64_t)below(2) << (8 * bytes - 1) |
			    1ull << (8 * bytes - 3);
		memcpy(p + i * bytes, &v, bytes);
	}
}

static uint32_t tried, groups;
static void check(call *c, const char *const *srcs, char *const *dsts, uint32_t lanes)
{
	const uint64_t bytes = c->count * dev_type_bytes(c->r.type), elem = dev_type_bytes(c->r.type);
	std::vector<char> old(ALL), want(bytes + 8);
	char what[200], *to = want.data();
	dev_reduction host = c->r;

	snprintf(what, sizeof(what),
		 "type %u, op %u, %u sources, premul %d, last %u, %u places, %llu elements, %u lanes", c->r.type,
		 c->r.op, c->r.nsrc, (int)c->r.premul, c->r.last, c->r.ndst, (unsigned long long)c->count, lanes);
	host.dsts = &to;
	host.ndst = 1;
	host_reduce(&host, c->count);
	memset(warp_areas[0].may_read, 0, ALL);
	memset(warp_areas[0].written, 1, ALL);
	for (uint32_t k = 0; k < c->r.nsrc; k++) { /* the aligned 16 bytes around each byte */
		const uint64_t first = (uint64_t)(srcs[k] - memory) / 16 * 16;

		memset(warp_areas[0].may_read + first, 1, (srcs[k] - memory + bytes + 15) / 16 * 16 - first);
	}
	for (uint32_t k = 0; k < c->r.ndst; k++)
		memset(warp_areas[0].written + (dsts[k] - memory), 0, bytes);
	warp_run(1, lanes, body, c, what);
	for (uint32_t k = 0; k < c->r.ndst; k++)
		for (uint64_t i = 0; i < c->count; i++) {
			uint64_t a = 0, b = 0;

			memcpy(&a, dsts[k] + i * elem, elem);
			memcpy(&b, to + i * elem, elem);
			if (!same(&c->r, a, b)) {
				fprintf(stderr, "%s: element %llu of place %u is %#llx, the host has %#llx\n", what,
					(unsigned long long)i, k, (unsigned long long)a, (unsigned long long)b);
				exit(1);
			}
		}
	tried++;
	groups += bytes >= 64 * lanes + 16;
}

static void check_some(uint32_t type, uint32_t op, uint32_t nsrc, uint32_t premul, int words)
{
	static const uint32_t teams[] = {32, 64, 96};
	const uint32_t lanes = words ? 32 : teams[below(3)], elem = dev_type_bytes(type);
	const uint32_t shift = words ? 0 : below(16) / elem * elem, odd = words || below(3) ? 0 : 16 / elem;
	const char *srcs[SOURCES];
	char *dsts[PLACES];
	call c = {};

	c.words = words ? 1 + below(16) : 0;
	c.count = words ? c.words * 8 / elem : below(4) ? below(3 * 64 * lanes / elem) : below(40);
	for (uint32_t k = 0; k < nsrc; k++) {
		char *p = memory + k * ROOM + 16 + shift + (odd ? below(odd) * elem : 0);

		fill(type, p, c.count);
		srcs[k] = p;
	}
	c.r.ndst = words ? 1 : 1 + below(PLACES);
	for (uint32_t k = 0; k < c.r.ndst; k++)
		dsts[k] = memory + (SOURCES + k) * ROOM + 16 + shift + (odd ? below(odd) * elem : 0);
	if (below(2)) /* in place */
		dsts[0] = memory + (srcs[below(nsrc)] - memory);
	c.r.srcs = srcs;
	c.r.dsts = dsts;
	c.r.nsrc = nsrc;
	c.r.type = type;
	c.r.op = op;
	c.r.premul = premul;
	c.r.last = below(2);
	c.r.scalar = below(6);
	if (op == GANTRY_OP_PREMUL)
		fill(type, (char *)&c.r.scalar, 1);
	check(&c, srcs, dsts, lanes);
}

int main(void)
{
	memory = (char *)aligned_alloc(4096, (ALL + 4095) / 4096 * 4096);
	warp_areas[0] = {memory, ALL, (unsigned char *)calloc(1, ALL), (unsigned char *)calloc(1, ALL)};
	for (uint32_t type = 0; type < GANTRY_TYPE_COUNT; type++)
		for (uint32_t op = 0; op <= (dev_type_small(type) ? (uint32_t)DEV_OP_MEAN : (uint32_t)GANTRY_OP_PREMUL);
		     op++)
			for (uint32_t nsrc = 1; nsrc <= SOURCES; nsrc++)
				for (uint32_t premul = 0; premul <= nsrc; premul++)
					if (dev_op_scales(op) || premul < 2)
						for (int words = 0; words < 2; words++)
							check_some(type, op, nsrc,
								   premul < nsrc ? premul : DEV_PREMUL_NONE, words);
	printf("%u reductions, %u with whole groups of packs\n", tried, groups);
	return groups > tried / 8 ? 0 : 1;
}
