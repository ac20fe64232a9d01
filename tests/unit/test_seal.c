/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed records: bytes that another implementation made, both ends against each other, and all that must not open. */
#include "base/seal.h"

#include "base/bytes.h"
#include "base/openssl.h"
#include "test.h"

#if GANTRY_HAVE_OPENSSL

/* The server's handshake secret of RFC 8448, 3: its key and initial vector stand there. */
static const uint8_t secret[GANTRY_SEAL_SECRET] = {
	0xb6, 0x7b, 0x7d, 0x69, 0x0c, 0xc1, 0x6c, 0x4e, 0x75, 0xe5, 0x42, 0x13, 0xcb, 0x2d, 0x37, 0xb4,
	0xe9, 0xc9, 0x12, 0xbc, 0xde, 0xd9, 0x10, 0x5d, 0x42, 0xbe, 0xfd, 0x59, 0xd3, 0x91, 0xad, 0x38,
};

enum { REKEY = 2 };
static const char *const texts[] = {"first", "the second", "after"};
/* Made with Python's hmac, hashlib and cryptography from the description in seal.h. New keys after REKEY. */
static const struct {
	enum gantry_cipher cipher;
	const char *records[3];
} known[] = {
	{GANTRY_CIPHER_AES_128_GCM,
	 {"47530100050000000000000000000000bf96411d221ab5362acee630d87e6df682f7fe119b",
	  "475301000a0000000100000000000000096e6c27f909522f152d47ad4273dfcc1796b9e0a1842cee5f3c",
	  "475301000500000002000000000000006081d67e132dd33e1c4aaa2c84f5f5a41a0e30ae53"}},
	{GANTRY_CIPHER_CHACHA20_POLY1305,
	 {"47530100050000000000000000000000361a07237735e6e5c77a92146bd398506c906f0218",
	  "475301000a00000001000000000000000cfa34950d236380d86b1d952eecb915238ca1564b7537c91ed1",
	  "4753010005000000020000000000000052d8727cfcba2c698e68e5f6f76ce8a7e7283855b9"}},
};

static struct gantry_seal *new_seal(enum gantry_cipher cipher, uint8_t direction, bool sealing)
{
	struct gantry_seal *s = NULL;

	CHECK_OK(gantry_openssl_load());
	CHECK_OK(gantry_seal_new(cipher, secret, direction, sealing, REKEY, &s));
	return s;
}

static bool open_one(struct gantry_seal *s, const uint8_t *record, void *out, char why[GANTRY_SEAL_WHY])
{
	uint32_t n = gantry_seal_length(s, record, why);
	struct iovec iov = {out, n};

	if (n)
		snprintf(why, GANTRY_SEAL_WHY, "not authentic");
	return n && gantry_seal_open(s, record, &iov, 1);
}

TEST(check_known)
{
	EACH_ROW (i, known) {
		struct gantry_seal *tx = new_seal(known[i].cipher, 1, true), *rx = new_seal(known[i].cipher, 1, false);

		for (int k = 0; k < 3; k++) {
			size_t n = strlen(texts[k]);
			/* In two parts: what lies in pieces is one record. */
			struct iovec iov[2] = {{(void *)(uintptr_t)texts[k], 3},
					       {(void *)(uintptr_t)(texts[k] + 3), n - 3}};
			uint8_t record[64];
			char hex[129], back[64] = "", why[GANTRY_SEAL_WHY];

			CHECK_EQ(gantry_seal_close(tx, iov, 2, record), n + GANTRY_SEAL_EXTRA);
			for (size_t b = 0; b < n + GANTRY_SEAL_EXTRA; b++)
				snprintf(hex + 2 * b, 3, "%02x", record[b]);
			CHECK_STR(hex, known[i].records[k]);
			CHECK(open_one(rx, record, back, why));
			CHECK_STR(back, texts[k]);
		}
		gantry_seal_free(tx);
		gantry_seal_free(rx);
	}
}

/* Whichever bit is flipped, the record is refused; and the one that is due still opens. */
TEST(check_flipped)
{
	struct gantry_seal *tx = new_seal(GANTRY_CIPHER_AES_128_GCM, 0, true),
			   *rx = new_seal(GANTRY_CIPHER_AES_128_GCM, 0, false);
	char text[] = "some plaintext";
	struct iovec iov = {text, 14};
	uint8_t record[64], out[64];
	size_t n = gantry_seal_close(tx, &iov, 1, record);
	char why[GANTRY_SEAL_WHY];

	for (size_t bit = 0; bit < 8 * n; bit++) {
		CASE("bit %zu", bit);
		if (bit / 8 >= 4 && bit / 8 < 8) /* a length that is too long names bytes that are not here */
			continue;
		record[bit / 8] ^= (uint8_t)(1 << bit % 8);
		CHECK(!open_one(rx, record, out, why));
		CHECK(*why);
		record[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	CHECK(open_one(rx, record, out, why));
	CHECK(memcmp(out, "some plaintext", 14) == 0);
	gantry_seal_free(tx);
	gantry_seal_free(rx);
}

TEST(check_order)
{
	struct gantry_seal *tx = new_seal(GANTRY_CIPHER_AES_128_GCM, 0, true),
			   *back = new_seal(GANTRY_CIPHER_AES_128_GCM, 1, false),
			   *rx = new_seal(GANTRY_CIPHER_AES_128_GCM, 0, false);
	uint8_t records[3][64], out[64];
	char text[] = "abc";
	char why[GANTRY_SEAL_WHY];

	for (int i = 0; i < 3; i++)
		gantry_seal_close(tx, &(struct iovec){text, 3}, 1, records[i]);
	CHECK(open_one(rx, records[0], out, why));
	CHECK(!open_one(rx, records[0], out, why));
	CHECK_STR(why, "received record 0, expected 1: replayed");
	CHECK(!open_one(rx, records[2], out, why));
	CHECK_STR(why, "received record 2, expected 1: records were dropped or reordered");
	CHECK(!open_one(back, records[0], out, why));
	CHECK_STR(why, "record 0 is one of our own, reflected back");
	/* Under a false number or direction the tag does not fit. */
	put64(records[2] + 8, 1);
	CHECK(!open_one(rx, records[2], out, why));
	CHECK_STR(why, "not authentic");
	records[0][2] = 1;
	CHECK(!open_one(back, records[0], out, why));
	CHECK_STR(why, "not authentic");
	memcpy(records[0], "GET /metrics HTT", 16);
	CHECK(!open_one(rx, records[0], out, why));
	CHECK_STR(why, "record 1 is not encrypted");
	CHECK(open_one(rx, records[1], out, why));
	gantry_seal_free(tx);
	gantry_seal_free(rx);
	gantry_seal_free(back);
}

TEST(check_largest)
{
	struct gantry_seal *tx = new_seal(gantry_cipher_preferred(), 0, true),
			   *rx = new_seal(gantry_cipher_preferred(), 0, false);
	uint8_t *plain = malloc(GANTRY_SEAL_MAX), *record = malloc(GANTRY_SEAL_MAX + GANTRY_SEAL_EXTRA);
	struct iovec iov = {plain, GANTRY_SEAL_MAX};
	char why[GANTRY_SEAL_WHY];

	for (size_t i = 0; i < GANTRY_SEAL_MAX; i++)
		plain[i] = (uint8_t)(i * 7 + (i >> 8));
	CHECK_EQ(gantry_seal_close(tx, &iov, 1, record), GANTRY_SEAL_MAX + GANTRY_SEAL_EXTRA);
	memset(plain, 0, GANTRY_SEAL_MAX);
	CHECK(open_one(rx, record, record + GANTRY_SEAL_HEADER, why)); /* in place */
	for (size_t i = 0; i < GANTRY_SEAL_MAX; i++)
		if (record[GANTRY_SEAL_HEADER + i] != (uint8_t)(i * 7 + (i >> 8)))
			CHECK_EQ(i, GANTRY_SEAL_MAX);
	put32(record + 4, GANTRY_SEAL_MAX + 1);
	put64(record + 8, 1);
	CHECK_EQ(gantry_seal_length(rx, record, why), 0);
	free(plain);
	free(record);
	gantry_seal_free(tx);
	gantry_seal_free(rx);
}

#else

TEST(check_refused)
{
	CHECK_EQ(gantry_openssl_load(), GANTRY_ERR_UNSUPPORTED);
}

#endif
