/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of this process: defaults, the environment over them, and the
 * listings. What the parameters are is in params.def.
 *
 * A set of values is one allocation, published by a pointer. Readers hold
 * pointers into a set for as long as they like, so a reload makes a new set and
 * keeps the old one, chained behind it, until the process ends. Only tests and
 * tools reload; what is kept is a few hundred bytes and the strings each time.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/param.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/secret.h"
#include "base/text.h"

/* ---- the table that params.def makes, and how a value of each kind is set and shown ---- */

enum param_kind {
	KIND_INT,
	KIND_SIZE,
	KIND_DURATION,
	KIND_BOOL,
	KIND_CHOICE,
	KIND_STRING,
};

union param_number {
	int64_t i;  /* INT, BOOL, CHOICE */
	uint64_t u; /* SIZE, DURATION */
};

struct param_desc {
	const char *env;
	const char *doc;
	enum param_kind kind;
	size_t offset; /* of the field in struct gantry_params */
	union param_number def, min, max;
	const char *def_text;		/* STRING */
	const char *const *choices;	/* CHOICE: the words; NULL behind the last */
	int (*check)(const char *text); /* STRING: is it allowed? NULL: any text is */
	const char *allowed;		/* STRING: what the check allows, in words */
};

enum { VALUE_TEXT = sizeof(((struct gantry_param_info *)0)->range) };

#define W(name, word) word,
#define P_CHOICE(field, env, def, words, doc) const char *const param_##field##_words[] = {words NULL};
#include "base/params.def"
#undef W

#define COMMON(field, name, text, type)                                                                                \
	.env = name, .doc = text, .kind = type, .offset = offsetof(struct gantry_params, field)

static const struct param_desc param_descs[] = {
/* clang-format off */
#define P_INT(field, env, d, lo, hi, doc) {COMMON(field, env, doc, KIND_INT), .def.i = d, .min.i = lo, .max.i = hi},
#define P_SIZE(field, env, d, lo, hi, doc) {COMMON(field, env, doc, KIND_SIZE), .def.u = d, .min.u = lo, .max.u = hi},
#define P_DURATION(field, env, d, lo, hi, doc) {COMMON(field, env, doc, KIND_DURATION), .def.u = d, .min.u = lo, .max.u = hi},
#define P_BOOL(field, env, d, doc) {COMMON(field, env, doc, KIND_BOOL), .def.i = d},
#define P_STRING(field, env, d, doc) {COMMON(field, env, doc, KIND_STRING), .def_text = d},
#define P_CHECKED(field, env, d, fn, words, doc) {COMMON(field, env, doc, KIND_STRING), .def_text = d, .check = fn, .allowed = words},
#define P_CHOICE(field, env, d, words, doc) {COMMON(field, env, doc, KIND_CHOICE), .def.i = d, .choices = param_##field##_words},
#include "base/params.def"
	/* clang-format on */
};
enum { NPARAMS = sizeof(param_descs) / sizeof(param_descs[0]) };

/* By enum param_kind: the name, and what the pages say of it. */
static const char *const kinds[][2] = {
	{"int", "a decimal number."},
	{"size", "bytes, or with a unit `k`, `M`, `G`, `T` (powers of 1024: `64k` is 65536)."},
	{"duration", "a number with a unit `ns`, `us`, `ms`, `s`, `m`, `h`; without one, seconds."},
	{"bool", "`on`, `yes`, `true`, `1` or `off`, `no`, `false`, `0`."},
	{"choice", "one of the words listed, in upper or lower case."},
	{"string", "any text."},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void *field_of(struct gantry_params *p, const struct param_desc *d)
{
	return (char *)p + d->offset;
}

/* Case-insensitive: GANTRY_LOG=WARN should work as NCCL_DEBUG=WARN does. */
static gantry_result parse_choice(const char *const *words, const char *text, int *ret)
{
	for (int i = 0; words[i]; i++) {
		if (!strcasecmp(words[i], text)) {
			*ret = i;
			return GANTRY_OK;
		}
	}
	return GANTRY_ERR_INVALID;
}

static void set_default(const struct param_desc *d, void *at)
{
	if (d->kind == KIND_STRING)
		*(const char **)at = d->def_text;
	else if (d->kind == KIND_BOOL || d->kind == KIND_CHOICE)
		*(int *)at = (int)d->def.i;
	else
		*(uint64_t *)at = d->def.u; /* the same bytes for an INT */
}

/* 0 stands for a value that is chosen automatically; any other has a least one. */
static int takes_zero(const struct param_desc *d)
{
	return d->kind != KIND_INT && d->def.u == 0 && d->min.u > 0;
}

static gantry_result parse_unsigned(const struct param_desc *d, const char *text, uint64_t *ret)
{
	uint64_t v;
	gantry_result r = d->kind == KIND_SIZE ? gantry_parse_size(text, &v) : gantry_parse_duration(text, &v);

	if (r == GANTRY_OK && (v < d->min.u || v > d->max.u) && !(v == 0 && takes_zero(d)))
		r = GANTRY_ERR_INVALID;
	if (r == GANTRY_OK)
		*ret = v;
	return r;
}

/* Writes the field only if the text is allowed, else ERR_INVALID; the caller logs. *ret_string: the copy of a STRING. */
static gantry_result set_text(const struct param_desc *d, const char *text, void *at, char **ret_string)
{
	int64_t i;

	switch (d->kind) {
	case KIND_INT:
		if (gantry_parse_int(text, &i) != GANTRY_OK || i < d->min.i || i > d->max.i)
			return GANTRY_ERR_INVALID;
		*(int64_t *)at = i;
		return GANTRY_OK;
	case KIND_SIZE:
	case KIND_DURATION:
		return parse_unsigned(d, text, at);
	case KIND_BOOL:
		return gantry_parse_bool(text, at);
	case KIND_CHOICE:
		return parse_choice(d->choices, text, at);
	case KIND_STRING:
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

static void value_text(const struct param_desc *d, const void *at, char *buf, size_t n)
{
	switch (d->kind) {
	case KIND_INT:
		snprintf(buf, n, "%" PRId64, *(const int64_t *)at);
		break;
	case KIND_SIZE:
		gantry_format_size(*(const uint64_t *)at, buf, n);
		break;
	case KIND_DURATION:
		gantry_format_duration(*(const uint64_t *)at, buf, n);
		break;
	case KIND_BOOL:
		snprintf(buf, n, "%s", *(const int *)at ? "on" : "off");
		break;
	case KIND_STRING:
		snprintf(buf, n, "%s", *(const char *const *)at);
		break;
	case KIND_CHOICE:
		snprintf(buf, n, "%s", d->choices[*(const int *)at]);
		break;
	}
}

/* What is allowed: "1ms .. 1h", "auto|off", for strings the check's words or "". */
static void range_text(const struct param_desc *d, char *buf, size_t n)
{
	char lo[24] = "", hi[24] = "";

	switch (d->kind) {
	case KIND_INT:
	case KIND_SIZE:
	case KIND_DURATION:
		value_text(d, &d->min, lo, sizeof(lo));
		value_text(d, &d->max, hi, sizeof(hi));
		snprintf(buf, n, "%s%s .. %s", takes_zero(d) ? "0, " : "", lo, hi);
		break;
	case KIND_BOOL:
		snprintf(buf, n, "on|off");
		break;
	case KIND_STRING:
		snprintf(buf, n, "%s", d->allowed ? d->allowed : "");
		break;
	case KIND_CHOICE:
		buf[0] = 0;
		for (size_t i = 0; d->choices[i]; i++)
			gantry_text_add(buf, n, "%s%s", i ? "|" : "", d->choices[i]);
		break;
	}
}

/* ---- the values of this process ---- */

struct set {
	struct gantry_params params;
	enum gantry_param_origin origin[NPARAMS];
	char *strings[NPARAMS]; /* owned copies; NULL where the default stands, and for the secret */
	struct set *previous;	/* owned; see the top */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct set defaults; /* filled by `once` */

static struct set *current; /* release by load, acquire by readers; NULL before `once` */
MUTEX_KIND(param_mu);	    /* loading */
static struct param_mu load_mu;
static bool loaded GUARDED_BY(param_mu);
static const char *(*fallback_now)(size_t i, const char *env)GUARDED_BY(param_mu);

/* Its value goes to its field and nowhere else: no listing, no message; and the copy is kept out of core dumps. */
static int is_secret(const struct param_desc *d)
{
	return d->offset == offsetof(struct gantry_params, secret);
}

static void init_once(void)
{
	for (size_t i = 0; i < NPARAMS; i++)
		set_default(&param_descs[i], field_of(&defaults.params, &param_descs[i]));
	store_release(&current, &defaults);
}

static struct set *current_set(void)
{
	struct set *s = load_acquire(&current);

	if (!s) {
		pthread_once(&once, init_once);
		s = load_acquire(&current);
	}
	return s;
}

const struct gantry_params *gantry_params(void)
{
	return &current_set()->params;
}

static void free_set(struct set *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < NPARAMS; i++)
		free(s->strings[i]);
	free(s);
}

static gantry_result set_secret(struct gantry_params *p, const char *text)
{
	const char *copy = gantry_secret_keep(text);

	if (!copy)
		return GANTRY_ERR_NOMEM;
	p->secret = copy;
	return GANTRY_OK;
}

/* A line for each, also in a tool that prints failures itself: that would print the last one only. */
static gantry_result refuse(size_t i, const char *text)
{
	char why[512];

	gantry_set_last_error(gantry_param_refusal(i, text, why, sizeof(why)));
	LOG_ERROR(BASE, "%s", why);
	return GANTRY_ERR_CONFIG;
}

void gantry_params_set_fallback(const char *(*fallback)(size_t i, const char *env))
{
	param_mu_lock(&load_mu);
	fallback_now = fallback;
	param_mu_unlock(&load_mu);
}

/* NULL: not set. Empty counts as that: scripts write X= for it. */
static const char *text_of(size_t i) REQUIRES(param_mu)
{
	const char *text = getenv(param_descs[i].env);

	if ((!text || !*text) && fallback_now)
		text = fallback_now(i, param_descs[i].env);
	return text && *text ? text : NULL;
}

/* Reports every invalid value, not only the first, so that a job script can be fixed in one go. */
static gantry_result read_environment(struct set *s) REQUIRES(param_mu)
{
	gantry_result first = GANTRY_OK;

	for (size_t i = 0; i < NPARAMS; i++) {
		const struct param_desc *d = &param_descs[i];
		const char *text = text_of(i);
		gantry_result r;

		if (!text)
			continue;
		if (is_secret(d))
			r = set_secret(&s->params, text);
		else
			r = set_text(d, text, field_of(&s->params, d), &s->strings[i]);
		s->origin[i] = GANTRY_ORIGIN_ENV;
		if (r == GANTRY_ERR_INVALID)
			r = refuse(i, text);
		else if (r != GANTRY_OK)
			r = gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__, "no memory for %s", d->env);
		if (first == GANTRY_OK)
			first = r;
	}
	return first;
}

/* Set by the build, by the plugin's tuning and by tests for themselves. */
static int is_ours_to_ignore(const char *name)
{
	return !strcmp(name, "GANTRY_SANITIZED") || !strcmp(name, "GANTRY_TUNED") ||
	       !strncmp(name, "GANTRY_TEST_", strlen("GANTRY_TEST_"));
}

/* A misspelt variable would be ignored in silence, and its owner would measure the default. */
static void warn_unknown(void)
{
	for (char **e = environ; e && *e; e++) {
		const char *nearest = param_descs[0].env;
		char name[VALUE_TEXT];
		int known = 0;

		if (strncmp(*e, "GANTRY_", strlen("GANTRY_")) != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e); /* the value may be a secret */
		for (size_t i = 0; i < NPARAMS; i++) {
			known |= !strcmp(name, param_descs[i].env);
			if (gantry_edit_distance(name, param_descs[i].env) < gantry_edit_distance(name, nearest))
				nearest = param_descs[i].env;
		}
		if (!known && !is_ours_to_ignore(name))
			LOG_WARN(BASE, "unknown variable %s is set; did you mean %s?", name, nearest);
	}
}

gantry_result gantry_params_load(int reload)
{
	gantry_result r = GANTRY_OK;
	struct set *s = NULL;
	uint32_t mask = 0;

	pthread_once(&once, init_once);
	param_mu_lock(&load_mu);
	if (loaded && !reload)
		goto out;
	s = calloc(1, sizeof(*s));
	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the parameters");
	s->params = defaults.params;
	TRY(read_environment(s));
	TRY(gantry_parse_subsys(s->params.log_subsys, &mask));

	_Static_assert((int)PARAM_LOG_LEVEL_ERROR == (int)GANTRY_LOG_ERROR &&
			       (int)PARAM_LOG_LEVEL_TRACE == (int)GANTRY_LOG_TRACE,
		       "the words of GANTRY_LOG stand in the order of the levels");
	gantry_log_configure((enum gantry_log_level)s->params.log_level, mask, s->params.log_file);
	s->previous = load_relaxed(&current);
	store_release(&current, s);
	s = NULL; /* ownership moved */
	loaded = true;
	warn_unknown();
out:
	param_mu_unlock(&load_mu);
	free_set(s);
	return r;
}

size_t gantry_param_count(void)
{
	return NPARAMS;
}

void gantry_param_describe(size_t i, struct gantry_param_info *ret_info)
{
	struct set *s = current_set();
	const struct param_desc *d = &param_descs[i];

	*ret_info = (struct gantry_param_info){
		.env = d->env,
		.type = kinds[d->kind][0],
		.doc = d->doc,
		.origin = s->origin[i],
	};
	range_text(d, ret_info->range, sizeof(ret_info->range));
	value_text(d, field_of(&defaults.params, d), ret_info->def, sizeof(ret_info->def));
	if (is_secret(d))
		snprintf(ret_info->value, sizeof(ret_info->value), "%s", *s->params.secret ? "(set)" : "");
	else
		value_text(d, field_of(&s->params, d), ret_info->value, sizeof(ret_info->value));
}

const char *gantry_param_refusal(size_t i, const char *text, char *buf, size_t len)
{
	const struct param_desc *d = &param_descs[i];
	int is_text = d->kind == KIND_STRING;
	char range[VALUE_TEXT];

	range_text(d, range, sizeof(range));
	snprintf(buf, len, "%s=%.200s is invalid: expected %s%s%s", d->env, text, is_text ? "" : kinds[d->kind][0],
		 is_text ? "" : ", ", range);
	return buf;
}

int gantry_param_allows(size_t i, const char *text)
{
	const struct param_desc *d = &param_descs[i];
	struct gantry_params scratch;
	char *string = NULL;
	gantry_result r = GANTRY_OK;

	if (*text && !is_secret(d))
		r = set_text(d, text, field_of(&scratch, d), &string);
	free(string);
	return r != GANTRY_ERR_INVALID;
}

/* What both pages say first. */
static const char intro[] =
	"Gantry is configured by environment variables, which it reads once. An empty variable counts as not\nset. An "
	"invalid value is an error; an unknown `GANTRY_` variable causes a warning that suggests the\nnearest known "
	"name. `gantry doctor --params` lists the values in effect and their origin.\n";

/* "int, default `0`, allowed `0 .. 16`" */
static void describe_values(const struct gantry_param_info *info, char *ret_text, size_t len)
{
	snprintf(ret_text, len, "%s, default %s%s%s%s%s%s", info->type, *info->def ? "`" : "",
		 *info->def ? info->def : "empty", *info->def ? "`" : "", *info->range ? ", allowed `" : "",
		 info->range, *info->range ? "`" : "");
}

void gantry_params_write_markdown(FILE *f)
{
	fprintf(f,
		"# Parameters\n"
		"\n"
		"<!-- Generated by `gantry doctor --params-markdown` from src/base/params.def: edit that. -->\n"
		"\n"
		"%s\n",
		intro);
	for (size_t i = 0; i < KINDS; i++)
		fprintf(f, "- **%s**: %s\n", kinds[i][0], kinds[i][1]);
	for (size_t i = 0; i < NPARAMS; i++) {
		struct gantry_param_info info;
		char values[3 * VALUE_TEXT];

		gantry_param_describe(i, &info);
		describe_values(&info, values, sizeof(values));
		fprintf(f, "\n## `%s`\n\n%s\n\n%s\n", info.env, values, info.doc);
	}
}

/* Markdown's `code` in bold, where a hyphen is a minus, as before a digit: both are there to be copied. */
static void put_roff(FILE *f, const char *text)
{
	int code = 0;

	for (const char *c = text; *c; c++) {
		if (*c == '`')
			fputs((code = !code) ? "\\fB" : "\\fR", f);
		else if (*c == '\\')
			fputs("\\e", f);
		else if (*c == '-' && (code || (c[1] >= '0' && c[1] <= '9')))
			fputs("\\-", f);
		else if ((*c == '.' || *c == '\'') && (c == text || c[-1] == '\n'))
			fprintf(f, "\\&%c", *c);
		else
			fputc(*c, f);
	}
}

void gantry_params_write_man(FILE *f)
{
	fputs(".\\\" Generated by `gantry doctor --params-man` from src/base/params.def: edit that.\n"
	      ".TH GANTRY\\-PARAMS 7 \"\" \"Gantry\" \"Gantry Manual\"\n"
	      ".SH NAME\n"
	      "gantry\\-params \\- the environment variables of Gantry\n"
	      ".SH DESCRIPTION\n",
	      f);
	put_roff(f, intro);
	for (size_t i = 0; i < KINDS; i++) {
		fprintf(f, ".TP\n.B %s\n", kinds[i][0]);
		put_roff(f, kinds[i][1]);
		fputc('\n', f);
	}
	fputs(".SH PARAMETERS\n", f);
	for (size_t i = 0; i < NPARAMS; i++) {
		struct gantry_param_info info;
		char values[3 * VALUE_TEXT];

		gantry_param_describe(i, &info);
		describe_values(&info, values, sizeof(values));
		fprintf(f, ".TP\n.B %s\n", info.env);
		put_roff(f, values);
		fputs("\n.IP\n", f);
		put_roff(f, info.doc);
		fputc('\n', f);
	}
	fputs(".SH SEE ALSO\n.BR gantry (1),\n.BR gantry\\-doctor (1)\n", f);
}
