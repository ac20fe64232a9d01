/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters: one table (params.def) makes the struct, the parser, the listing
 * of `gantry doctor`, docs/params.md and gantry-params(7).
 *
 * Values come from the environment, once, in gantry_params_load. A value that
 * does not parse or is out of range is an error that names the variable, the
 * value and what is allowed; an unknown GANTRY_* variable is warned about with
 * the nearest known name. After loading the struct is read-only.
 */
#ifndef GANTRY_BASE_PARAM_H
#define GANTRY_BASE_PARAM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gantry/result.h"

/* CHOICE: enum param_zerocopy { PARAM_ZEROCOPY_AUTO, ... } and the like, in the order of their words. */
#define W(name, word) name,
#define P_CHOICE(field, env, def, words, doc)                                                                          \
	enum param_##field{words};                                                                                     \
	extern const char *const param_##field##_words[]; /* by the enum; NULL behind the last */
#include "base/params.def"
#undef W

/* Types: INT int64_t; SIZE bytes "64k" "1M" "2GiB"; DURATION ns "500ms" "3s" "1m", a bare number is seconds;
 * BOOL "0/1/on/off/yes/no/true/false"; STRING a copy, CHECKED one with a syntax; CHOICE one of several words. */
struct gantry_params {
#define P_INT(field, env, def, min, max, doc) int64_t field;
#define P_SIZE(field, env, def, min, max, doc) uint64_t field;
#define P_DURATION(field, env, def, min, max, doc) uint64_t field;
#define P_BOOL(field, env, def, doc) int field;
#define P_STRING(field, env, def, doc) const char *field;
#define P_CHECKED(field, env, def, check, allowed, doc) const char *field;
#define P_CHOICE(field, env, def, words, doc) enum param_##field field;
#include "base/params.def"
};

/* The loaded parameters; defaults until gantry_params_load has run. */
const struct gantry_params *gantry_params(void);

/* Asked for the text of each parameter whose variable is not set: NULL leaves the default. The text lives until the next
 * call. It must be one that the parameter allows. Set before the first load. */
void gantry_params_set_fallback(const char *(*fallback)(size_t i, const char *env));
/* Reads the environment; idempotent unless `reload`. Thread-safe. */
gantry_result gantry_params_load(int reload);

enum gantry_param_origin { GANTRY_ORIGIN_DEFAULT, GANTRY_ORIGIN_ENV };
struct gantry_param_info {
	const char *env;  /* "GANTRY_TIMEOUT" */
	const char *type; /* "duration" */
	const char *doc;  /* one sentence or more */
	char range[160];  /* "1ms .. 1h", "auto|splice|msg|off", a sentence or "" for strings */
	char def[160];	  /* default, as text */
	char value[128];  /* current value, as text */
	enum gantry_param_origin origin;
};
size_t gantry_param_count(void);
void gantry_param_describe(size_t i, struct gantry_param_info *ret_info);
/* Could the i-th parameter have this value? "" counts as not set. */
int gantry_param_allows(size_t i, const char *text);
/* "GANTRY_LANES=99 is invalid: expected int, 0 .. 16". Returns buf. */
const char *gantry_param_refusal(size_t i, const char *text, char *buf, size_t len);
/* The pages docs/params.md and man/gantry-params.7. */
void gantry_params_write_markdown(FILE *f);
void gantry_params_write_man(FILE *f);

/* Parsers, shared with command lines. *ret is written only on success; none of them logs. */
gantry_result gantry_parse_size(const char *text, uint64_t *ret);
gantry_result gantry_parse_duration(const char *text, uint64_t *ret_ns);
gantry_result gantry_parse_int(const char *text, int64_t *ret);
gantry_result gantry_parse_bool(const char *text, int *ret);

#endif
