/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

void pattern_fill_from(void *p, size_t n, uint64_t seed, uint64_t from)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)p)[i] = pattern_byte(seed, from + i);
}

size_t pattern_wrong_from(const void *p, size_t n, uint64_t seed, uint64_t from)
{
	for (size_t i = 0; i < n; i++)
		if (((const uint8_t *)p)[i] != pattern_byte(seed, from + i))
			return i;
	return n;
}

size_t filled_until(const void *p, size_t n, uint8_t value)
{
	for (size_t i = 0; i < n; i++)
		if (((const uint8_t *)p)[i] != value)
			return i;
	return n;
}

void le_put(uint8_t *p, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

uint64_t le_get(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	for (int i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}
