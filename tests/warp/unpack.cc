/*
 * The unpack kernels' code for GPUs, lane by lane on a CPU, against a copy byte by byte. Lists are made of every kind
 * of fragment that a network or a program may bring, and of some that none does.
 */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "device/dev.h"
#include "device/work.h"

#include "device/k_unpack.h"
#include "device/k_unpack_as.h"
#include "kernels/k_unpack_reduce.h"

enum { ROOM = 1 << 18, DESCS = 4096, GUARD = 64 };

/* 4096-aligned, as pages are. */
static char *area_new(int i, size_t size, int reads, int writes)
{
	warp_area *a = &warp_areas[i];

	a->at = (char *)aligned_alloc(4096, size);
	a->size = size;
	a->may_read = reads ? (unsigned char *)calloc(1, size) : NULL;
	a->written = writes ? (unsigned char *)calloc(1, size) : NULL;
	return a->at;
}
static char *pool, *dst, *input;
static gantry_unpack_desc *descs;
static uint64_t n;

static uint32_t below(uint32_t most)
{
	return warp_random() % most;
}

/* Lengths 1 to `most`, sizes as the kind says; source and destination anywhere or at multiples of `align`. */
struct kind {
	const char *name;
	uint32_t least, most, frags, align;
};
static const struct kind kinds[] = {
	{"bytes", 1, 16, 700, 1},      {"tiny and empty", 0, 33, 500, 1}, {"short", 1, 100, 400, 1},
	{"mtu", 1448, 1448, 100, 1},   {"mtu, even", 1448, 1448, 90, 16}, {"pages", 4096, 4096, 50, 4096},
	{"lines", 128, 4096, 50, 128}, {"odd pages", 4095, 4095, 40, 1},  {"random", 1, 4096, 60, 1},
	{"large", 9000, 40000, 5, 1},  {"vectors", 16, 4096, 50, 16},	  {"mixed", 0, 0, 200, 1},
};

static uint64_t up(uint64_t v, uint64_t to)
{
	return (v + to - 1) / to * to;
}

/* gaps: fragments do not touch each other in the destination. */
static void make_list(const struct kind *k, uint32_t frags, int gaps)
{
	uint64_t s = below(48), d = below(48);

	n = 0;
	for (uint32_t i = 0; i < frags; i++) {
		uint32_t len = k->least + below(k->most - k->least + 1);

		if (!k->most)
			len = below(4) ? below(40) : below(5000); /* batches of both sorts, and of both together */
		if (k->align > 16)
			len = (uint32_t)up(len, 128);
		s = up(s, k->align) + (k->align == 1 ? below(20) : 0);
		d = up(d, k->align) + (gaps && k->align == 1 ? below(40) : 0);
		if (s + len + GUARD > ROOM || d + len + GUARD > ROOM)
			break;
		descs[n].src_off = (uint32_t)s;
		descs[n].len = len;
		descs[n].dst_off = d;
		n++;
		s += len;
		d += len;
	}
}

/* In pages' order, or in any. */
static void shuffle_sources(void)
{
	for (uint64_t i = n; i > 1; i--) {
		uint64_t k = below((uint32_t)i);

		if (descs[k].len == descs[i - 1].len) {
			uint32_t t = descs[k].src_off;

			descs[k].src_off = descs[i - 1].src_off;
			descs[i - 1].src_off = t;
		}
	}
}

/* What may be read: the aligned 16 bytes around each byte of a fragment. */
static void allow(warp_area *a, int source)
{
	memset(a->may_read, 0, a->size);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t at = source ? descs[i].src_off : descs[i].dst_off;

		if (descs[i].len)
			memset(a->may_read + at / 16 * 16, 1, up(at + descs[i].len, 16) - at / 16 * 16);
	}
}

static void fill(char *p, size_t size)
{
	for (size_t i = 0; i < size; i++)
		p[i] = (char)warp_random();
}

/* The kernels that copy, each with a form of its own. */
static const struct {
	const char *name;
	void (*body)(const gantry_unpack_args *a);
	uint32_t most_lanes;
} kernels[] = {{"unpack", k_unpack, 512}, {"unpack_grid", k_unpack_grid, 128}};
enum { KERNELS = sizeof(kernels) / sizeof(kernels[0]) };
struct call {
	gantry_unpack_args a;
	int kernel;
};
static void body(void *arg)
{
	call *c = (call *)arg;

	kernels[c->kernel].body(&c->a);
}

static void check(int kernel, const struct kind *k, uint32_t blocks, uint32_t lanes, int gather)
{
	char what[160];
	std::vector<char> want(ROOM);
	call c = {};
	char *to = gather ? pool : dst, *from = gather ? dst : pool;

	snprintf(what, sizeof(what), "%s, %s, %llu fragments, %u blocks of %u lanes, gather %d", kernels[kernel].name,
		 k->name, (unsigned long long)n, blocks, lanes, gather);
	warp_areas[0].written = gather ? warp_areas[0].written : NULL;
	memset(to, 0x5a, ROOM);
	memset(want.data(), 0x5a, ROOM);
	fill(from, ROOM);
	for (uint64_t i = 0; i < n; i++)
		memcpy(want.data() + (gather ? descs[i].src_off : descs[i].dst_off),
		       from + (gather ? descs[i].dst_off : descs[i].src_off), descs[i].len);
	warp_areas[0] = {from, ROOM, warp_areas[0].may_read, NULL};
	warp_areas[1] = {to, ROOM, NULL, warp_areas[1].written};
	allow(&warp_areas[0], !gather);
	memset(warp_areas[1].written, 0, ROOM);
	c.a.descs = descs;
	c.a.n = n;
	c.a.bounce = pool;
	c.a.dst = dst;
	c.a.gather = (uint32_t)gather;
	c.kernel = kernel;
	warp_run(blocks, lanes, body, &c, what);
	for (size_t i = 0; i < ROOM; i++)
		if (to[i] != want[i]) {
			fprintf(stderr, "%s: byte %zu is %d, expected %d\n", what, i, to[i], want[i]);
			exit(1);
		}
}

static const struct {
	uint32_t blocks, lanes;
} teams[] = {{1, 32}, {2, 64}, {1, 512}, {3, 96}};

static void test_copies(void)
{
	uint32_t t = 1;

	for (int kernel = 0; kernel < KERNELS; kernel++)
		for (const struct kind &k : kinds)
			for (int round = 0; round < 6; round++, t++) {
				uint32_t blocks = teams[t % 4].blocks, lanes = teams[t % 4].lanes;

				make_list(&k, t % 3 ? k.frags : 1 + below(40), (int)(t & 1));
				if (t % 3)
					shuffle_sources();
				if (round == 5) /* as many blocks as it takes for a warp each, and some have nothing */
					blocks = (uint32_t)(n / 2) + 1, lanes = 64;
				lanes = lanes < kernels[kernel].most_lanes ? lanes : kernels[kernel].most_lanes;
				check(kernel, &k, blocks, lanes, t % 5 == 4);
			}
	n = 0;
	for (int kernel = 0; kernel < KERNELS; kernel++)
		check(kernel, &kinds[0], 1, 64, 0);
}

/* Sums of floats that are whole numbers; what arrives is cut anywhere, and follows its destination without gaps. */
static void reduce_body(void *arg)
{
	k_unpack_reduce((const gantry_unpack_reduce_args *)arg);
}

static void check_reduce(const struct kind *k, uint32_t blocks, uint32_t lanes)
{
	char what[160];
	gantry_unpack_reduce_args a = {};
	std::vector<float> want(ROOM / 4);
	uint64_t bytes, skip = 4 * below(8);

	make_list(k, k->frags, 0);
	for (uint64_t i = 0, d = skip; i < n; i++) {
		descs[i].dst_off = d;
		d += descs[i].len;
	}
	bytes = n ? descs[n - 1].dst_off + descs[n - 1].len : 0;
	for (; n && bytes % 4; bytes--) {
		while (n && !descs[n - 1].len)
			n--;
		descs[n - 1].len--;
	}
	while (n && !descs[n - 1].len)
		n--;
	for (uint64_t i = n; lanes == 64 && i > 1; i--) /* as they arrive on several sockets */
		std::swap(descs[i - 1], descs[below((uint32_t)i)]);
	snprintf(what, sizeof(what), "reduce, %s, %llu fragments, %u blocks of %u lanes", k->name,
		 (unsigned long long)n, blocks, lanes);
	memset(pool, 0x77, ROOM);
	memset(dst, 0x5a, ROOM);
	memcpy(want.data(), dst, ROOM);
	for (size_t i = 0; i < ROOM / 4; i++)
		((float *)(void *)input)[i] = (float)below(1000);
	for (uint64_t i = 0; i < n; i++)
		for (uint32_t b = 0; b < descs[i].len; b++) {
			uint64_t at = descs[i].dst_off + b;
			float v = (float)(at / 4 * 7 % 1001);

			pool[descs[i].src_off + b] = ((char *)&v)[at % 4];
			want[at / 4] = v + ((float *)(void *)input)[at / 4];
		}
	warp_areas[0] = {pool, ROOM, warp_areas[0].may_read, NULL};
	warp_areas[1] = {dst, ROOM, NULL, warp_areas[1].written};
	allow(&warp_areas[0], 1);
	memset(warp_areas[1].written, 0, ROOM);
	a.descs = descs;
	a.n = n;
	a.bounce = pool;
	a.input = input;
	a.output = dst;
	a.type = GANTRY_TYPE_FLOAT32;
	a.op = GANTRY_OP_SUM;
	warp_run(blocks, lanes, reduce_body, &a, what);
	for (size_t i = 0; i < ROOM / 4; i++)
		if (((float *)(void *)dst)[i] != want[i] && (uint64_t)i * 4 < bytes) {
			fprintf(stderr, "%s: element %zu is %g, expected %g\n", what, i,
				(double)((float *)(void *)dst)[i], (double)want[i]);
			exit(1);
		}
	if (memcmp(dst + bytes, (char *)want.data() + bytes, ROOM - bytes)) {
		fprintf(stderr, "%s: something behind the end was written\n", what);
		exit(1);
	}
}

/* Elements as bytes anywhere in the pool, cut anywhere; stored at any address. What is right is the same conversion by
 * itself, which test_k_unpack_as compares with a model. */
static void as_body(void *arg)
{
	k_unpack_as((const gantry_unpack_args *)arg);
}

static void as_cut(gantry_unpack_args *a, uint32_t sent, uint32_t stored, uint32_t elems, uint32_t most, uint64_t base)
{
	uint64_t s = below(48);

	n = 0;
	for (uint64_t pos = 0; pos < (uint64_t)elems * sent && n < DESCS && s + most + GUARD < ROOM;) {
		uint64_t len = 1 + below(most), left = sent - pos % sent;

		len = len < (uint64_t)elems * sent - pos ? len : (uint64_t)elems * sent - pos;
		if (pos % sent || len < left)
			len = len < left ? len : left;
		else
			len -= len % sent;
		descs[n].src_off = (uint32_t)s;
		descs[n].len = (uint32_t)len;
		descs[n].dst_off = pos % sent ? GANTRY_UNPACK_GOES_ON : base + pos / sent * stored;
		n++;
		s += len + below(20);
		pos += len;
	}
	for (; n && descs[n - 1].dst_off == GANTRY_UNPACK_GOES_ON; n--) /* the last may be in part only */
		;
	n -= n && descs[n - 1].len < sent;
	a->n = n;
}

static void check_as(uint16_t from, uint16_t to, uint32_t elems, uint32_t most, uint32_t blocks, uint32_t lanes)
{
	const uint32_t sent = dev_type_bytes(from), stored = dev_type_bytes(to);
	std::vector<char> want(ROOM, 0x5a);
	gantry_unpack_args a = {};
	char what[160];

	as_cut(&a, sent, stored, elems, most, below(40));
	snprintf(what, sizeof(what), "type %u as %u, %llu fragments up to %u, %u blocks of %u lanes", from, to,
		 (unsigned long long)n, most, blocks, lanes);
	fill(pool, ROOM);
	memset(dst, 0x5a, ROOM);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t place = descs[i].dst_off;

		if (place == GANTRY_UNPACK_GOES_ON)
			continue;
		for (uint32_t k = 0; k < descs[i].len; k += sent, place += stored) {
			uint32_t bits = 0;
			uint64_t d = i, at = k;

			for (uint32_t b = 0; b < sent; b++, at++) {
				if (at == descs[d].len)
					d++, at = 0;
				bits |= (uint32_t)(unsigned char)pool[descs[d].src_off + at] << 8 * b;
			}
			bits = dev_of_float(to, dev_as_float(from, bits));
			memcpy(want.data() + place, &bits, stored);
		}
	}
	warp_areas[0] = {pool, ROOM, warp_areas[0].may_read, NULL};
	warp_areas[1] = {dst, ROOM, NULL, warp_areas[1].written};
	allow(&warp_areas[0], 1);
	memset(warp_areas[1].written, 0, ROOM);
	a.descs = descs;
	a.bounce = pool;
	a.dst = dst;
	a.from = from;
	a.to = to;
	warp_run(blocks, lanes, as_body, &a, what);
	for (size_t i = 0; i < ROOM; i++)
		if (dst[i] != want[i]) {
			fprintf(stderr, "%s: byte %zu is %d, expected %d\n", what, i, dst[i], want[i]);
			exit(1);
		}
}

static void test_as(void)
{
	static const uint16_t types[] = {GANTRY_TYPE_FLOAT16, GANTRY_TYPE_BFLOAT16, GANTRY_TYPE_FLOAT32};
	static const uint32_t mosts[] = {3, 17, 1448, 4096};
	uint32_t t = 0;

	for (uint16_t from : types)
		for (uint16_t to : types)
			for (uint32_t most : mosts)
				for (uint32_t elems : {1u, 7u, 1000u, 20001u})
					if (from != to)
						check_as(from, to, elems, most, teams[t % 4].blocks,
							 teams[t % 4].lanes < 128 ? teams[t % 4].lanes : 128), t++;
}

int main(void)
{
	uint32_t t = 0;

	pool = area_new(0, ROOM, 1, 0);
	dst = area_new(1, ROOM, 0, 1);
	descs = (gantry_unpack_desc *)(void *)area_new(2, DESCS * sizeof(*descs), 0, 0);
	input = area_new(3, ROOM, 0, 0);
	test_copies();
	for (const struct kind &k : kinds)
		for (int round = 0; round < 4; round++, t++)
			check_reduce(&k, teams[t % 4].blocks, teams[t % 4].lanes);
	test_as();
	printf("%d kernels, %zu kinds of lists\n", KERNELS + 2, sizeof(kinds) / sizeof(kinds[0]));
	return 0;
}
