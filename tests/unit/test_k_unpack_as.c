/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking with a change of type: all pairs of types, all numbers of 16 bits, fragments of any length at any address,
 * elements cut anywhere, and places that are not aligned. Each element is compared with its definition (convert_util.h);
 * everything around them stays.
 */
#include "convert_util.h"
#include "device/convert.h"
#include "k_unpack_util.h"

enum { ELEMS = 70000, ROOM = 4 * ELEMS + 4 * GUARD, POOL = 1 << 20 };

static struct area pool, dst;
static struct list list;

/* The elements [first, + n) of the array at `base` come as fragments of 1 to `most` bytes, anywhere in the pool. */
static void cut(const struct convert_format *from, const struct convert_format *to, const unsigned char *bytes,
		uint64_t n, uint64_t base, uint32_t most)
{
	const uint64_t size = (uint64_t)from->bytes;
	uint64_t at = random_below(GUARD), pos = 0;

	list.n = 0;
	while (pos < n * size) {
		uint64_t len = 1 + random_below(most), left = size - pos % size;
		const uint64_t place = pos % size ? GANTRY_UNPACK_GOES_ON : base + pos / size * (uint64_t)to->bytes;

		len = len < n * size - pos ? len : n * size - pos;
		if (pos % size || len < left) /* a part of an element, alone */
			len = len < left ? len : left;
		else
			len -= len % size;
		memcpy(pool.host + at, bytes + pos, len);
		list_add(&list, at, place, len);
		at += len + random_below(20);
		pos += len;
		CHECK(at + most < POOL);
	}
}

static void run_list(const struct convert_format *from, const struct convert_format *to, const struct team *t)
{
	struct gantry_unpack_args a = {.descs = (const struct gantry_unpack_desc *)list.descs.device,
				       .n = list.n,
				       .bounce = pool.device,
				       .dst = dst.device,
				       .from = (uint16_t)from->type,
				       .to = (uint16_t)to->type};

	run(&gantry_kernel_unpack_as, t->blocks, t->lanes < 128 ? t->lanes : 128, &a, sizeof(a));
}

static void check(const struct convert_format *from, const struct convert_format *to, const unsigned char *bytes,
		  uint64_t n, uint64_t base)
{
	const uint64_t end = base + n * (uint64_t)to->bytes;

	for (uint64_t i = 0; i < n; i++)
		convert_check(from, to, convert_get(from, bytes + i * (uint64_t)from->bytes),
			      convert_get(to, dst.host + base + i * (uint64_t)to->bytes), i);
	CHECK_FILLED((unsigned char *)dst.host, base, POISON);
	CHECK_FILLED((unsigned char *)dst.host + end, ROOM - end, POISON);
}

static void one(const struct convert_format *from, const struct convert_format *to, uint64_t n, uint32_t most,
		uint64_t seed)
{
	FREED unsigned char *bytes = malloc(n * 4 + 1);
	const uint64_t base = GUARD + seed % 8;

	CHECK(bytes);
	convert_fill(from, bytes, n, seed);
	memset(dst.host, POISON, ROOM);
	cut(from, to, bytes, n, base, most);
	run_list(from, to, &teams()[seed % 4]);
	check(from, to, bytes, n, base);
	if (!on_gpu) { /* the CPU's way has the same bits */
		memset(dst.host, POISON, ROOM);
		gantry_convert(dst.host + base, to->type, bytes, from->type, n);
		check(from, to, bytes, n, base);
	}
}

static void pairs(uint64_t n, uint32_t most, uint64_t seed)
{
	EACH_ROW (i, formats)
		for (size_t k = 0; k < TEST_COUNT(formats); k++)
			if (i != k)
				one(&formats[i], &formats[k], n, most, seed + k);
}

int main(int argc, char **argv)
{
	open_device(argc, argv);
	pool = area_new(POOL);
	dst = area_new(ROOM);
	list = list_new();
	RUN(pairs(ELEMS, 4096, 0));
	RUN(pairs(ELEMS, 4096, 3));
	for (uint64_t n = 0; n < 40; n++)
		RUN(pairs(n, 3 + (uint32_t)(n % 9), n));
	RUN(pairs(2500, 5, 1)); /* nearly all of them cut */
	RUN(pairs(9001, 100, 6));
	RUN(pairs(9001, 1448, 9));
	CHECK(!gantry_converts(GANTRY_TYPE_FLOAT64) && !gantry_converts(GANTRY_TYPE_FLOAT8E4M3) &&
	      !gantry_converts(GANTRY_TYPE_COUNT));
	area_free(&list.descs);
	area_free(&dst);
	area_free(&pool);
	close_device();
	return 0;
}
