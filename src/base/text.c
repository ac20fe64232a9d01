/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdio.h>

const char *gantry_size_text(uint64_t bytes, char *buf, size_t len)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	unsigned k = 0;

	while (k + 1 < sizeof(units) / sizeof(units[0]) && bytes >> 10 * (k + 1))
		k++;
	if (bytes % (UINT64_C(1) << 10 * k) == 0)
		snprintf(buf, len, "%llu %s", (unsigned long long)(bytes >> 10 * k), units[k]);
	else if (k < 2)
		snprintf(buf, len, "%llu B", (unsigned long long)bytes);
	else
		snprintf(buf, len, "%.1f %s", (double)bytes / (double)(UINT64_C(1) << 10 * k), units[k]);
	return buf;
}

const char *gantry_count_text(uint64_t n, const char *thing, char *buf, size_t len)
{
	snprintf(buf, len, "%llu %s%s", (unsigned long long)n, thing, n == 1 ? "" : "s");
	return buf;
}

/* The bytes that a first byte of UTF-8 announces; 0: none can begin with it. */
static size_t rune_bytes(unsigned char c)
{
	return c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
}

size_t gantry_next_rune(const char *text, uint32_t *ret)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	unsigned char c = (unsigned char)text[0];
	size_t n = rune_bytes(c);
	uint32_t rune = n < 2 ? c : c & (0x7fu >> n);

	*ret = GANTRY_NO_RUNE;
	if (!n)
		return 1;
	for (size_t i = 1; i < n; i++) {
		if (((unsigned char)text[i] & 0xc0) != 0x80)
			return i;
		rune = rune << 6 | ((unsigned char)text[i] & 0x3f);
	}
	/* Not longer than need be, not half of a pair. */
	if (rune >= least[n] && rune <= 0x10ffff && (rune < 0xd800 || rune >= 0xe000))
		*ret = rune;
	return n;
}
