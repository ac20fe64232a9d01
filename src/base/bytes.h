/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that leave the process: little-endian integers at any alignment, and text in fields of fixed size.
 * Everything that travels, between processes of one host too, is written by these.
 */
#ifndef GANTRY_BASE_BYTES_H
#define GANTRY_BASE_BYTES_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void put16(uint8_t *p, uint16_t v)
{
	v = htole16(v);
	memcpy(p, &v, sizeof(v));
}
static inline void put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof(v));
}
static inline void put64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof(v));
}
static inline uint16_t get16(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return le16toh(v);
}
static inline uint32_t get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}
static inline uint64_t get64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

/* Cut to size - 1 bytes; the rest of the field is zero. */
static inline void put_text(uint8_t *field, size_t size, const char *text)
{
	size_t n = strnlen(text, size - 1);

	memset(field, 0, size);
	memcpy(field, text, n);
}
/* A peer's text, fit for a log line: at most size - 1 printable characters, always terminated. */
static inline void get_text(char *text, size_t size, const uint8_t *field)
{
	memcpy(text, field, size);
	text[size - 1] = 0;
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
			*c = '?';
}

#endif
