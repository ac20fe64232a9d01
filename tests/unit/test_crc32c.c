/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of RFC 3720 B.4, a bit-by-bit sum of our own, and the two implementations against both. */
#include "base/crc32c.h"
#include "test.h"

typedef uint32_t (*crc_function)(uint32_t crc, const void *data, size_t len);

/* The definition, one bit at a time: slow and plain. */
static uint32_t crc_by_bits(const unsigned char *p, size_t len)
{
	uint32_t c = 0xffffffffu;

	for (size_t i = 0; i < len; i++) {
		for (int bit = 0; bit < 8; bit++) {
			uint32_t top = (c ^ (uint32_t)(p[i] >> bit)) & 1;

			c = c >> 1 ^ (top ? 0x82f63b78u : 0);
		}
	}
	return ~c;
}

static void check_published(crc_function crc)
{
	/* The iSCSI read command of RFC 3720 B.4. */
	static const unsigned char command[48] = {
		0x01, 0xc0, 0, 0,    0, 0, 0, 0,    0,	  0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
		0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0,	  0,
	};
	unsigned char buf[32];

	CHECK_EQ(crc(0, "123456789", 9), 0xe3069283u);
	CHECK_EQ(crc(0, "", 0), 0);
	memset(buf, 0, sizeof(buf));
	CHECK_EQ(crc(0, buf, 32), 0x8a9136aau);
	memset(buf, 0xff, sizeof(buf));
	CHECK_EQ(crc(0, buf, 32), 0x62a8ab43u);
	for (int i = 0; i < 32; i++)
		buf[i] = (unsigned char)i;
	CHECK_EQ(crc(0, buf, 32), 0x46dd794eu);
	for (int i = 0; i < 32; i++)
		buf[i] = (unsigned char)(31 - i);
	CHECK_EQ(crc(0, buf, 32), 0x113fdb5cu);
	CHECK_EQ(crc(0, command, 48), 0xd9963a56u);
}

static unsigned char data[40000];

static void check_lengths(crc_function crc)
{
	/* Around the words and around the blocks that are summed side by side, at every alignment. */
	static const size_t sizes[] = {1,    7,	   8,	 9,    63,   64,    255,   2047,  2048,	 2049,
				       6143, 6144, 6145, 6151, 8192, 12287, 12288, 12289, 20000, 39990};

	EACH_ROW (i, sizes) {
		for (size_t shift = 0; shift < 9; shift++)
			CHECK_EQ(crc(0, data + shift, sizes[i]), crc_by_bits(data + shift, sizes[i]));
	}
}

/* A sum that goes on is the sum of the whole, wherever it was cut. */
static void check_running(crc_function crc)
{
	uint32_t whole = crc_by_bits(data, 13000);

	for (size_t cut = 0; cut <= 13000; cut += 997)
		CHECK_EQ(crc(crc(0, data, cut), data + cut, 13000 - cut), whole);
}

static void check_damage(crc_function crc)
{
	uint32_t good = crc(0, data, 9000);

	for (size_t at = 0; at < 9000; at += 501) {
		data[at] ^= 0x10;
		CHECK(crc(0, data, 9000) != good);
		data[at] ^= 0x10;
	}
}

TEST(both_functions)
{
	static const crc_function functions[] = {gantry_crc32c, gantry_crc32c_soft};

	random_fill(data, sizeof(data));
	for (int i = 0; i < 2; i++) {
		check_published(functions[i]);
		check_lengths(functions[i]);
		check_running(functions[i]);
		check_damage(functions[i]);
	}
	CHECK(*gantry_crc32c_method());
	printf("crc32c by %s\n", gantry_crc32c_method());
}
