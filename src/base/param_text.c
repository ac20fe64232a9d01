/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsing and writing of values. Units are tables that both directions share,
 * largest first. Parsers are strict: no blanks, nothing after the unit, no
 * overflow, because "10 0ms" is more likely a slip than an intention.
 */
#include "base/param_text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/param.h"

struct unit {
	const char *name;
	uint64_t factor;
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Powers of 1024 whatever the spelling, as in nccl-tests: "64k", "64K", "64kB" and "64KiB" are one size. */
static const struct unit size_units[] = {
	{"T", 1ull << 40},
	{"G", 1ull << 30},
	{"M", 1ull << 20},
	{"k", 1ull << 10},
};

static const struct unit duration_units[] = {
	{"h", 3600000000000u}, {"m", 60000000000u}, {"s", 1000000000u}, {"ms", 1000000u}, {"us", 1000u}, {"ns", 1u},
};

/* Digits at *text, and *text moved behind them. */
static gantry_result parse_digits(const char **text, uint64_t *ret)
{
	uint64_t v = 0;

	if (!isdigit((unsigned char)**text))
		return GANTRY_ERR_INVALID;
	for (; isdigit((unsigned char)**text); (*text)++) {
		if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(**text - '0'), &v))
			return GANTRY_ERR_INVALID;
	}
	*ret = v;
	return GANTRY_OK;
}

gantry_result gantry_parse_size(const char *text, uint64_t *ret)
{
	uint64_t v, factor = 1;

	if (parse_digits(&text, &v) != GANTRY_OK)
		return GANTRY_ERR_INVALID;
	for (size_t i = 0; i < COUNT(size_units); i++) {
		if (tolower((unsigned char)*text) != tolower((unsigned char)size_units[i].name[0]))
			continue;
		factor = size_units[i].factor;
		text++;
		if (*text == 'i' && text[1] == 'B')
			text++;
		break;
	}
	if (*text == 'B')
		text++;
	if (*text || __builtin_mul_overflow(v, factor, &v))
		return GANTRY_ERR_INVALID;
	*ret = v;
	return GANTRY_OK;
}

/* The part of a duration behind its point: "5" of "0.5s" is half a unit. At most nine digits, all of them exact. */
static gantry_result parse_fraction(const char **text, uint64_t *ret, uint64_t *ret_scale)
{
	const char *start = *text;
	uint64_t scale = 1;

	if (parse_digits(text, ret) != GANTRY_OK || *text - start > 9)
		return GANTRY_ERR_INVALID;
	for (ptrdiff_t i = 0; i < *text - start; i++)
		scale *= 10;
	*ret_scale = scale;
	return GANTRY_OK;
}

gantry_result gantry_parse_duration(const char *text, uint64_t *ret_ns)
{
	uint64_t v, fraction = 0, scale = 1, factor = 0;
	unsigned __int128 extra;

	if (parse_digits(&text, &v) != GANTRY_OK)
		return GANTRY_ERR_INVALID;
	if (*text == '.') {
		text++;
		if (parse_fraction(&text, &fraction, &scale) != GANTRY_OK)
			return GANTRY_ERR_INVALID;
	}
	if (!*text)
		text = "s";
	for (size_t i = 0; i < COUNT(duration_units); i++) {
		if (!strcmp(text, duration_units[i].name))
			factor = duration_units[i].factor;
	}
	extra = (unsigned __int128)fraction * factor / scale;
	if (!factor || __builtin_mul_overflow(v, factor, &v) || __builtin_add_overflow(v, (uint64_t)extra, &v))
		return GANTRY_ERR_INVALID;
	*ret_ns = v;
	return GANTRY_OK;
}

gantry_result gantry_parse_int(const char *text, int64_t *ret)
{
	char *end;
	long long v;
	int saved = errno, overflow;

	/* strtoll would skip blanks and accept a plus; neither is a number here. */
	if (!isdigit((unsigned char)text[*text == '-']))
		return GANTRY_ERR_INVALID;
	errno = 0;
	v = strtoll(text, &end, 10);
	overflow = errno == ERANGE;
	errno = saved;
	if (*end || overflow)
		return GANTRY_ERR_INVALID;
	*ret = v;
	return GANTRY_OK;
}

gantry_result gantry_parse_bool(const char *text, int *ret)
{
	static const char *const words[] = {"0", "1", "off", "on", "no", "yes", "false", "true"};

	for (size_t i = 0; i < COUNT(words); i++) {
		if (!strcasecmp(text, words[i])) {
			*ret = (int)(i & 1);
			return GANTRY_OK;
		}
	}
	return GANTRY_ERR_INVALID;
}

static void format(uint64_t v, const struct unit *units, size_t nunits, char *buf, size_t n)
{
	for (size_t i = 0; i < nunits; i++) {
		if (v && v % units[i].factor == 0) {
			snprintf(buf, n, "%" PRIu64 "%s", v / units[i].factor, units[i].name);
			return;
		}
	}
	snprintf(buf, n, "%" PRIu64, v);
}

void gantry_format_size(uint64_t bytes, char *buf, size_t n)
{
	format(bytes, size_units, COUNT(size_units), buf, n);
}

void gantry_format_duration(uint64_t ns, char *buf, size_t n)
{
	format(ns, duration_units, COUNT(duration_units), buf, n);
}

unsigned gantry_edit_distance(const char *a, const char *b)
{
	enum { LETTERS = 64 };
	size_t na = strnlen(a, LETTERS - 1), nb = strnlen(b, LETTERS - 1);
	unsigned row[LETTERS]; /* row[j]: the distance from the first i letters of a to the first j of b */

	for (size_t j = 0; j <= nb; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= na; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= nb; j++) {
			unsigned change = diagonal + (a[i - 1] != b[j - 1]);
			unsigned other = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);

			diagonal = row[j];
			row[j] = change < other ? change : other;
		}
	}
	return row[nb];
}
