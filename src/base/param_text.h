/* SPDX-License-Identifier: Apache-2.0 */
/* Values as people write them: the counterparts of the parsers in param.h, and a measure of misspelling. */
#ifndef GANTRY_BASE_PARAM_TEXT_H
#define GANTRY_BASE_PARAM_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* In the largest unit that divides the value: "64k", "30s". gantry_parse_* reads back the same value. */
void gantry_format_size(uint64_t bytes, char *buf, size_t n);
void gantry_format_duration(uint64_t ns, char *buf, size_t n);

/* Texts of base/text.h as arguments of printf, FAIL and LOG_*: they live until the end of the block. */
#define SIZE_TEXT(bytes) gantry_size_text((bytes), (char[GANTRY_TEXT_MAX]){0}, GANTRY_TEXT_MAX)
#define COUNT_TEXT(n, thing) gantry_count_text((uint64_t)(n), (thing), (char[GANTRY_TEXT_MAX]){0}, GANTRY_TEXT_MAX)

/* How many letters must be added, dropped or changed to make b from a (Levenshtein); only the first 63 count. */
unsigned gantry_edit_distance(const char *a, const char *b);

#endif
