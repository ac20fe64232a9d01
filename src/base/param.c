/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of this process: defaults, the environment over them, and the
 * listings. What the parameters are is in params.def, by way of param_table.h.
 *
 * A set of values is one allocation, published by a pointer. Readers hold
 * pointers into a set for as long as they like, so a reload makes a new set and
 * keeps the old one, chained behind it, until the process ends. Only tests and
 * tools reload; what is kept is a few hundred bytes and the strings each time.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/param.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param_check.h"
#include "base/param_table.h"
#include "base/param_text.h"
#include "base/secret.h"

struct set {
	struct gantry_params params;
	enum gantry_param_origin origin[GANTRY_NPARAMS];
	char *strings[GANTRY_NPARAMS]; /* owned copies; NULL where the default stands, and for the secret */
	struct set *previous;	       /* owned; see the top */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct set defaults;
/* Filled once, by `once`. */
static char def_texts[GANTRY_NPARAMS][GANTRY_PARAM_TEXT], range_texts[GANTRY_NPARAMS][GANTRY_PARAM_TEXT];

static struct set *current; /* release by load, acquire by readers; NULL before `once` */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static int loaded; /* under load_lock */

/* Its value goes to its field and nowhere else: no listing, no message; and the copy is kept out of core dumps. */
static int is_secret(const struct gantry_param_desc *d)
{
	return d->offset == offsetof(struct gantry_params, secret);
}

static void init_once(void)
{
	for (size_t i = 0; i < GANTRY_NPARAMS; i++) {
		void *at = gantry_param_field(&defaults.params, &gantry_param_descs[i]);

		gantry_param_set_default(&gantry_param_descs[i], at);
		gantry_param_value_text(&gantry_param_descs[i], at, def_texts[i], GANTRY_PARAM_TEXT);
		gantry_param_range_text(&gantry_param_descs[i], range_texts[i], GANTRY_PARAM_TEXT);
	}
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
	for (size_t i = 0; i < GANTRY_NPARAMS; i++)
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

/* All that is wrong is said, not only the first of it: a job script is then mended in one go. */
static gantry_result read_environment(struct set *s)
{
	gantry_result first = GANTRY_OK;

	for (size_t i = 0; i < GANTRY_NPARAMS; i++) {
		const struct gantry_param_desc *d = &gantry_param_descs[i];
		const char *text = getenv(d->env);
		gantry_result r;

		if (!text || !*text)
			continue; /* empty counts as not set: scripts write X= for that */
		if (is_secret(d))
			r = set_secret(&s->params, text);
		else
			r = gantry_param_set_text(d, text, gantry_param_field(&s->params, d), &s->strings[i]);
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

/* Set by the build and by tests for themselves. */
static int is_ours_to_ignore(const char *name)
{
	return !strcmp(name, "GANTRY_SANITIZED") || !strncmp(name, "GANTRY_TEST_", strlen("GANTRY_TEST_"));
}

/* A misspelt variable would be ignored in silence, and its owner would measure the default. */
static void warn_unknown(void)
{
	for (char **e = environ; e && *e; e++) {
		const char *nearest = gantry_param_descs[0].env;
		char name[GANTRY_PARAM_TEXT];
		int known = 0;

		if (strncmp(*e, "GANTRY_", strlen("GANTRY_")) != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e); /* the value may be a secret */
		for (size_t i = 0; i < GANTRY_NPARAMS; i++) {
			known |= !strcmp(name, gantry_param_descs[i].env);
			if (gantry_edit_distance(name, gantry_param_descs[i].env) < gantry_edit_distance(name, nearest))
				nearest = gantry_param_descs[i].env;
		}
		if (!known && !is_ours_to_ignore(name))
			LOG_WARN(BASE, "%s is set but unknown; the nearest known name is %s", name, nearest);
	}
}

gantry_result gantry_params_load(int reload)
{
	gantry_result r = GANTRY_OK;
	struct set *s = NULL;
	uint32_t mask = 0;

	pthread_once(&once, init_once);
	pthread_mutex_lock(&load_lock);
	if (loaded && !reload)
		goto out;
	s = calloc(1, sizeof(*s));
	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the parameters");
	s->params = defaults.params;
	TRY(read_environment(s));
	TRY(gantry_parse_subsys(s->params.log_subsys, &mask));

	/* The choices of GANTRY_LOG stand in the order of enum gantry_log_level. */
	gantry_log_configure((enum gantry_log_level)s->params.log_level, mask, s->params.log_file);
	s->previous = load_relaxed(&current);
	store_release(&current, s);
	s = NULL; /* ownership moved */
	loaded = 1;
	warn_unknown();
out:
	pthread_mutex_unlock(&load_lock);
	free_set(s);
	return r;
}

size_t gantry_param_count(void)
{
	return GANTRY_NPARAMS;
}

void gantry_param_describe(size_t i, struct gantry_param_info *ret_info)
{
	struct set *s = current_set();
	const struct gantry_param_desc *d = &gantry_param_descs[i];

	*ret_info = (struct gantry_param_info){
		.env = d->env,
		.type = gantry_param_kind_name(d->kind),
		.range = range_texts[i],
		.def = def_texts[i],
		.doc = d->doc,
		.origin = s->origin[i],
	};
	if (is_secret(d))
		snprintf(ret_info->value, sizeof(ret_info->value), "%s", *s->params.secret ? "(set)" : "");
	else
		gantry_param_value_text(d, gantry_param_field(&s->params, d), ret_info->value, sizeof(ret_info->value));
}

const char *gantry_param_refusal(size_t i, const char *text, char *buf, size_t len)
{
	const struct gantry_param_desc *d = &gantry_param_descs[i];
	int is_text = d->kind == GANTRY_PARAM_STRING;

	pthread_once(&once, init_once);
	snprintf(buf, len, "%s=%.200s is not allowed; it takes: %s%s%s", d->env, text,
		 is_text ? "" : gantry_param_kind_name(d->kind), is_text ? "" : ", ", range_texts[i]);
	return buf;
}

int gantry_param_allows(size_t i, const char *text)
{
	const struct gantry_param_desc *d = &gantry_param_descs[i];
	struct gantry_params scratch;
	char *string = NULL;
	gantry_result r = GANTRY_OK;

	if (*text && !is_secret(d))
		r = gantry_param_set_text(d, text, gantry_param_field(&scratch, d), &string);
	free(string);
	return r != GANTRY_ERR_INVALID;
}

/* What both pages say first. */
static const char intro[] =
	"Gantry is set up by environment variables, read once. An empty variable counts as not set. A value\n"
	"that is not allowed is an error; an unknown `GANTRY_` variable is a warning that names the nearest\n"
	"known one. `gantry doctor --params` lists what is in force and where it comes from.\n";
static const char *const kinds[][2] = {
	{"int", "a decimal number."},
	{"size", "bytes, or with a unit `k`, `M`, `G`, `T` (powers of 1024: `64k` is 65536)."},
	{"duration", "a number with a unit `ns`, `us`, `ms`, `s`, `m`, `h`; without one, seconds."},
	{"bool", "`on`, `yes`, `true`, `1` or `off`, `no`, `false`, `0`."},
	{"choice", "one of the words listed, in upper or lower case."},
	{"string", "any text."},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

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
	for (size_t i = 0; i < GANTRY_NPARAMS; i++) {
		struct gantry_param_info info;
		char values[3 * GANTRY_PARAM_TEXT];

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
	for (size_t i = 0; i < GANTRY_NPARAMS; i++) {
		struct gantry_param_info info;
		char values[3 * GANTRY_PARAM_TEXT];

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
