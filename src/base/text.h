/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people read them; characters as machines do. */
#ifndef GANTRY_BASE_TEXT_H
#define GANTRY_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { GANTRY_TEXT_MAX = 64 }; /* room for any of them */

/* "64 B", "4 KiB", "64 GiB". What is no whole number of units: "100001 B", from 1 MiB on "1.5 MiB". Returns buf. */
const char *gantry_size_text(uint64_t bytes, char *buf, size_t len);
/* "1 rank", "2 ranks": thing is the singular of a word that takes an s. Returns buf. */
const char *gantry_count_text(uint64_t n, const char *thing, char *buf, size_t len);

/* One character of what may not be UTF-8 at all; returns the bytes it took, at least 1 unless the text is at its end.
 * *ret is GANTRY_NO_RUNE if they make none. */
#define GANTRY_NO_RUNE UINT32_MAX
size_t gantry_next_rune(const char *text, uint32_t *ret);

#endif
