/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptors that params.def makes, and the values they describe: private
 * to the parameter files. A value is reached through its descriptor's offset
 * into a struct gantry_params.
 */
#ifndef GANTRY_BASE_PARAM_TABLE_H
#define GANTRY_BASE_PARAM_TABLE_H

#include "base/param.h"

enum gantry_param_kind {
	GANTRY_PARAM_INT,
	GANTRY_PARAM_SIZE,
	GANTRY_PARAM_DURATION,
	GANTRY_PARAM_BOOL,
	GANTRY_PARAM_STRING,
	GANTRY_PARAM_CHOICE,
};

union gantry_param_number {
	int64_t i;  /* INT, BOOL */
	uint64_t u; /* SIZE, DURATION */
};

struct gantry_param_desc {
	const char *env;
	const char *doc;
	enum gantry_param_kind kind;
	size_t offset; /* of the field in struct gantry_params */
	union gantry_param_number def, min, max;
	const char *def_text;		/* STRING, CHOICE */
	const char *choices;		/* CHOICE: separated by | */
	int (*check)(const char *text); /* STRING: is it allowed? NULL: any text is */
	const char *allowed;		/* STRING: what the check allows, in words */
};

enum {
	GANTRY_NPARAMS = 0
#define P_INT(field, env, def, min, max, doc) +1
#define P_SIZE(field, env, def, min, max, doc) +1
#define P_DURATION(field, env, def, min, max, doc) +1
#define P_BOOL(field, env, def, doc) +1
#define P_STRING(field, env, def, doc) +1
#define P_CHECKED(field, env, def, check, allowed, doc) +1
#define P_CHOICE(field, env, def, choices, doc) +1
#include "base/params.def"
	,
	GANTRY_PARAM_TEXT = 160 /* enough for every default, bound and list of choices */
};

extern const struct gantry_param_desc gantry_param_descs[GANTRY_NPARAMS];

static inline void *gantry_param_field(struct gantry_params *p, const struct gantry_param_desc *d)
{
	return (char *)p + d->offset;
}

const char *gantry_param_kind_name(enum gantry_param_kind kind);
void gantry_param_set_default(const struct gantry_param_desc *d, void *field);
/* Writes the field only if the text is allowed, else ERR_INVALID; the caller logs. *ret_string: the copy of a STRING.
 */
gantry_result gantry_param_set_text(const struct gantry_param_desc *d, const char *text, void *field,
				    char **ret_string);
void gantry_param_value_text(const struct gantry_param_desc *d, const void *field, char *buf, size_t n);
/* What is allowed: "1ms .. 1h", "auto|off", for strings the check's words or "". */
void gantry_param_range_text(const struct gantry_param_desc *d, char *buf, size_t n);

#endif
