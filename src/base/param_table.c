/* SPDX-License-Identifier: Apache-2.0 */
/* The table that params.def makes, and how a value of each kind is set and shown. */
#include "base/param_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/param_check.h"
#include "base/param_text.h"

#define COMMON(field, name, text, type)                                                                                \
	.env = name, .doc = text, .kind = type, .offset = offsetof(struct gantry_params, field)

const struct gantry_param_desc gantry_param_descs[GANTRY_NPARAMS] = {
/* clang-format off */
#define P_INT(field, env, d, lo, hi, doc) {COMMON(field, env, doc, GANTRY_PARAM_INT), .def.i = d, .min.i = lo, .max.i = hi},
#define P_SIZE(field, env, d, lo, hi, doc) {COMMON(field, env, doc, GANTRY_PARAM_SIZE), .def.u = d, .min.u = lo, .max.u = hi},
#define P_DURATION(field, env, d, lo, hi, doc) {COMMON(field, env, doc, GANTRY_PARAM_DURATION), .def.u = d, .min.u = lo, .max.u = hi},
#define P_BOOL(field, env, d, doc) {COMMON(field, env, doc, GANTRY_PARAM_BOOL), .def.i = d},
#define P_STRING(field, env, d, doc) {COMMON(field, env, doc, GANTRY_PARAM_STRING), .def_text = d},
#define P_CHECKED(field, env, d, fn, words, doc) {COMMON(field, env, doc, GANTRY_PARAM_STRING), .def_text = d, .check = fn, .allowed = words},
#define P_CHOICE(field, env, d, list, doc) {COMMON(field, env, doc, GANTRY_PARAM_CHOICE), .def_text = d, .choices = list},
#include "base/params.def"
	/* clang-format on */
};

const char *gantry_param_kind_name(enum gantry_param_kind kind)
{
	static const char *const names[] = {"int", "size", "duration", "bool", "string", "choice"};

	return names[kind];
}

/* Copies entry i of a |-separated list; 0 when there is none. Entries are far shorter than GANTRY_PARAM_TEXT. */
static int choice_text(const char *choices, int i, char buf[GANTRY_PARAM_TEXT])
{
	for (; i > 0; i--) {
		choices = strchr(choices, '|');
		if (!choices)
			return 0;
		choices++;
	}
	snprintf(buf, GANTRY_PARAM_TEXT, "%.*s", (int)strcspn(choices, "|"), choices);
	return 1;
}

/* Upper and lower case alike: people who write NCCL_DEBUG=WARN write GANTRY_LOG=WARN. */
static gantry_result parse_choice(const char *choices, const char *text, int *ret)
{
	char entry[GANTRY_PARAM_TEXT];

	for (int i = 0; choice_text(choices, i, entry); i++) {
		if (!strcasecmp(entry, text)) {
			*ret = i;
			return GANTRY_OK;
		}
	}
	return GANTRY_ERR_INVALID;
}

void gantry_param_set_default(const struct gantry_param_desc *d, void *at)
{
	switch (d->kind) {
	case GANTRY_PARAM_INT:
		*(int64_t *)at = d->def.i;
		break;
	case GANTRY_PARAM_SIZE:
	case GANTRY_PARAM_DURATION:
		*(uint64_t *)at = d->def.u;
		break;
	case GANTRY_PARAM_BOOL:
		*(int *)at = (int)d->def.i;
		break;
	case GANTRY_PARAM_STRING:
		*(const char **)at = d->def_text;
		break;
	case GANTRY_PARAM_CHOICE:
		*(int *)at = 0;
		parse_choice(d->choices, d->def_text, at);
		break;
	}
}

/* 0 stands for a value that is chosen automatically; any other has a least one. */
static int takes_zero(const struct gantry_param_desc *d)
{
	return d->kind != GANTRY_PARAM_INT && d->def.u == 0 && d->min.u > 0;
}

static gantry_result parse_unsigned(const struct gantry_param_desc *d, const char *text, uint64_t *ret)
{
	uint64_t v;
	gantry_result r = d->kind == GANTRY_PARAM_SIZE ? gantry_parse_size(text, &v) : gantry_parse_duration(text, &v);

	if (r == GANTRY_OK && (v < d->min.u || v > d->max.u) && !(v == 0 && takes_zero(d)))
		r = GANTRY_ERR_INVALID;
	if (r == GANTRY_OK)
		*ret = v;
	return r;
}

gantry_result gantry_param_set_text(const struct gantry_param_desc *d, const char *text, void *at, char **ret_string)
{
	int64_t i;

	switch (d->kind) {
	case GANTRY_PARAM_INT:
		if (gantry_parse_int(text, &i) != GANTRY_OK || i < d->min.i || i > d->max.i)
			return GANTRY_ERR_INVALID;
		*(int64_t *)at = i;
		return GANTRY_OK;
	case GANTRY_PARAM_SIZE:
	case GANTRY_PARAM_DURATION:
		return parse_unsigned(d, text, at);
	case GANTRY_PARAM_BOOL:
		return gantry_parse_bool(text, at);
	case GANTRY_PARAM_CHOICE:
		return parse_choice(d->choices, text, at);
	case GANTRY_PARAM_STRING:
		if (d->check && !d->check(text))
			return GANTRY_ERR_INVALID;
		*ret_string = strdup(text);
		if (!*ret_string)
			return GANTRY_ERR_NOMEM;
		*(const char **)at = *ret_string;
		return GANTRY_OK;
	}
	return GANTRY_ERR_INTERNAL;
}

void gantry_param_value_text(const struct gantry_param_desc *d, const void *at, char *buf, size_t n)
{
	char choice[GANTRY_PARAM_TEXT] = "";

	switch (d->kind) {
	case GANTRY_PARAM_INT:
		snprintf(buf, n, "%" PRId64, *(const int64_t *)at);
		break;
	case GANTRY_PARAM_SIZE:
		gantry_format_size(*(const uint64_t *)at, buf, n);
		break;
	case GANTRY_PARAM_DURATION:
		gantry_format_duration(*(const uint64_t *)at, buf, n);
		break;
	case GANTRY_PARAM_BOOL:
		snprintf(buf, n, "%s", *(const int *)at ? "on" : "off");
		break;
	case GANTRY_PARAM_STRING:
		snprintf(buf, n, "%s", *(const char *const *)at);
		break;
	case GANTRY_PARAM_CHOICE:
		choice_text(d->choices, *(const int *)at, choice);
		snprintf(buf, n, "%s", choice);
		break;
	}
}

void gantry_param_range_text(const struct gantry_param_desc *d, char *buf, size_t n)
{
	char lo[24] = "", hi[24] = "";

	switch (d->kind) {
	case GANTRY_PARAM_INT:
	case GANTRY_PARAM_SIZE:
	case GANTRY_PARAM_DURATION:
		gantry_param_value_text(d, &d->min, lo, sizeof(lo));
		gantry_param_value_text(d, &d->max, hi, sizeof(hi));
		snprintf(buf, n, "%s%s .. %s", takes_zero(d) ? "0, " : "", lo, hi);
		break;
	case GANTRY_PARAM_BOOL:
		snprintf(buf, n, "on|off");
		break;
	case GANTRY_PARAM_STRING:
		snprintf(buf, n, "%s", d->allowed ? d->allowed : "");
		break;
	case GANTRY_PARAM_CHOICE:
		snprintf(buf, n, "%s", d->choices);
		break;
	}
}
