/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C three ways, one interface. The instruction has a latency of 2 to 3
 * cycles and takes a new operand every cycle, so long buffers are summed as
 * three neighbouring blocks at once and joined: crc(A B) is crc(A), moved on by
 * the length of B in zero bytes, xor crc(B). Moving on by a fixed length is a
 * linear map over the 32 bits, and four tables of 256 words hold it.
 */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#include "base/atomic.h"

#define POLYNOMIAL 0x82f63b78u /* 0x1edc6f41, bits reversed */
enum { BLOCK = 2048 };	       /* a multiple of 8; three of them fit in half of the smallest L1 */

static pthread_once_t tables_once = PTHREAD_ONCE_INIT;
static uint32_t slice[8][256]; /* slice[k][b]: the sum of byte b followed by k zero bytes */
static uint32_t skip[4][256];  /* skip[k][b]: byte k of a sum, moved on by BLOCK zero bytes */

static void make_tables(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t c = b;

		for (int bit = 0; bit < 8; bit++)
			c = c >> 1 ^ (c & 1 ? POLYNOMIAL : 0);
		slice[0][b] = c;
	}
	for (int k = 1; k < 8; k++) {
		for (int b = 0; b < 256; b++)
			slice[k][b] = slice[k - 1][b] >> 8 ^ slice[0][slice[k - 1][b] & 0xff];
	}
	for (int k = 0; k < 4; k++) {
		for (uint32_t b = 1; b < 256; b++) {
			uint32_t c = b << 8 * k;

			if (b & (b - 1)) { /* linear: several bits are the sum of each */
				skip[k][b] = skip[k][b & (b - 1)] ^ skip[k][b & -b];
				continue;
			}
			for (int i = 0; i < BLOCK; i++)
				c = c >> 8 ^ slice[0][c & 0xff];
			skip[k][b] = c;
		}
	}
}

static uint64_t load64(const unsigned char *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	v = __builtin_bswap64(v);
#endif
	return v;
}

uint32_t gantry_crc32c_soft(uint32_t crc, const void *data, size_t len)
{
	const unsigned char *p = data;
	uint32_t c = ~crc;

	pthread_once(&tables_once, make_tables);
	for (; len >= 8; p += 8, len -= 8) {
		uint64_t v = load64(p) ^ c;

		c = 0;
		for (int k = 0; k < 8; k++)
			c ^= slice[7 - k][v >> 8 * k & 0xff];
	}
	while (len--)
		c = c >> 8 ^ slice[0][(c ^ *p++) & 0xff];
	return ~c;
}

#if defined(__aarch64__) && defined(__clang__)
#define CRC_TARGET __attribute__((target("crc")))
#define CRC_WORD(c, v) __builtin_arm_crc32cd((c), (v))
#define CRC_BYTE(c, v) __builtin_arm_crc32cb((c), (v))
#elif defined(__aarch64__)
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC_WORD(c, v) __builtin_aarch64_crc32cx((c), (v))
#define CRC_BYTE(c, v) __builtin_aarch64_crc32cb((c), (v))
#elif defined(__x86_64__)
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_WORD(c, v) ((uint32_t)__builtin_ia32_crc32di((c), (v)))
#define CRC_BYTE(c, v) __builtin_ia32_crc32qi((c), (v))
#endif

#ifdef CRC_TARGET

static uint32_t skip_block(uint32_t c)
{
	return skip[0][c & 0xff] ^ skip[1][c >> 8 & 0xff] ^ skip[2][c >> 16 & 0xff] ^ skip[3][c >> 24];
}

CRC_TARGET static uint32_t crc32c_hard(uint32_t crc, const void *data, size_t len)
{
	const unsigned char *p = data;
	uint32_t c = ~crc;

	for (; len >= 3 * BLOCK; p += 3 * BLOCK, len -= 3 * BLOCK) {
		uint32_t c1 = 0, c2 = 0;

		for (int i = 0; i < BLOCK; i += 8) {
			c = CRC_WORD(c, load64(p + i));
			c1 = CRC_WORD(c1, load64(p + BLOCK + i));
			c2 = CRC_WORD(c2, load64(p + 2 * BLOCK + i));
		}
		c = skip_block(skip_block(c) ^ c1) ^ c2;
	}
	for (; len >= 8; p += 8, len -= 8)
		c = CRC_WORD(c, load64(p));
	while (len--)
		c = CRC_BYTE(c, *p++);
	return ~c;
}

static int have_hard(void)
{
#if defined(__aarch64__)
	return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
	return __builtin_cpu_supports("sse4.2") != 0;
#endif
}

#endif

typedef uint32_t (*crc_function)(uint32_t crc, const void *data, size_t len);

static crc_function chosen; /* NULL until first used; every thread chooses the same */

static crc_function choose(void)
{
	crc_function f = load_acquire(&chosen);

	if (f)
		return f;
	pthread_once(&tables_once, make_tables);
	f = gantry_crc32c_soft;
#ifdef CRC_TARGET
	if (have_hard())
		f = crc32c_hard;
#endif
	store_release(&chosen, f);
	return f;
}

uint32_t gantry_crc32c(uint32_t crc, const void *data, size_t len)
{
	return choose()(crc, data, len);
}

const char *gantry_crc32c_method(void)
{
	if (choose() == gantry_crc32c_soft)
		return "tables";
#if defined(__aarch64__)
	return "aarch64 crc32";
#else
	return "sse4.2";
#endif
}
