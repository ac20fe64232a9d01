/* SPDX-License-Identifier: Apache-2.0 */
#include "common/options.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/param.h"
#include "base/text.h"

enum { LONG_BASE = 256, CHOICES_MAX = 32, NAME_MAX = 32, LEFT_MAX = 26, WRONG = 2 };

int options_choice(const char *choices, const char *word)
{
	size_t len = strlen(word);
	int index = 0;

	for (const char *p = choices;; p++, index++) {
		size_t n = strcspn(p, "|");

		if (n == len && len && strncmp(p, word, n) == 0)
			return index;
		p += n;
		if (!*p)
			return -1;
	}
}

const char *options_choice_name(const char *choices, int index, char *buf)
{
	const char *p = choices;

	for (; index > 0 && *p; index--) {
		p += strcspn(p, "|");
		p += *p == '|';
	}
	snprintf(buf, NAME_MAX, "%.*s", (int)strcspn(p, "|"), p);
	return buf;
}

static char command[1024];

const char *options_command(void)
{
	return command;
}

/* The name that takes the fewest edits, or NULL if none is near enough to be meant. */
static const char *nearest(const char *word, const char *const *names, size_t count)
{
	const char *best = NULL;
	size_t len = strlen(word), least = len / (len > 6 ? 3 : 2) + 1; /* more of it wrong is another word */

	for (size_t i = 0; i < count; i++) {
		size_t n = names[i] ? gantry_edit_distance(word, names[i]) : least;

		if (n < least) {
			least = n;
			best = names[i];
		}
	}
	return best;
}

int options_unknown(const char *what, const char *name, const char *const *names, size_t count, const char *lister)
{
	const char *near = nearest(name, names, count);

	if (near)
		fprintf(stderr, "%s '%s', did you mean '%s'?\n", what, name, near);
	else
		fprintf(stderr, "%s '%s'; %s lists them\n", what, name, lister);
	return WRONG;
}

int options_wrong(const struct option_set *set, const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", set->program);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	return WRONG;
}

/* "-b, --minbytes SIZE": returns its length. */
static int left_of(const struct option_spec *s, char *buf, size_t len)
{
	const char *value = s->kind == OPTION_FLAG ? "" : s->value ? s->value : s->choices;
	char letter[] = {'-', s->letter, 0};

	return snprintf(buf, len, "%s%s%s%s%s%s", s->letter ? letter : "", s->letter && s->name ? ", " : "",
			s->name ? "--" : "", s->name ? s->name : "", *value ? " " : "", value);
}

static void usage(const struct option_set *set, FILE *f)
{
	int width = (int)strlen("--help");
	char left[128];

	for (size_t i = 0; i < set->nspecs; i++) {
		int n = left_of(&set->specs[i], left, sizeof(left));

		width = n > width && n <= LEFT_MAX ? n : width;
	}
	fprintf(f, "usage: %s %s", set->program, set->usage ? set->usage : "[OPTION]...");
	if (set->operand && !set->usage)
		fprintf(f, " [%s]", set->operand);
	fprintf(f, "\n%s\n", set->about);
	for (size_t i = 0; i < set->nspecs; i++) {
		if (left_of(&set->specs[i], left, sizeof(left)) > width)
			fprintf(f, "  %s\n%*s%s\n", left, width + 4, "", set->specs[i].help);
		else
			fprintf(f, "  %-*s  %s\n", width, left, set->specs[i].help);
	}
	fprintf(f, "  %-*s  this text\n%s", width, "--help", set->notes);
}

/* As people give it. */
static const char *name_of(const struct option_spec *s, char buf[NAME_MAX])
{
	if (s->name)
		snprintf(buf, NAME_MAX, "--%s", s->name);
	else
		snprintf(buf, NAME_MAX, "-%c", s->letter);
	return buf;
}

static int wrong(const struct option_set *set, const struct option_spec *s, const char *text, const char *what)
{
	char name[NAME_MAX];

	options_wrong(set, "%s %s: %s", name_of(s, name), text, what);
	return -1;
}

void options_bad_choice(const char *program, const char *option, const char *word, const char *choices)
{
	char names[CHOICES_MAX][NAME_MAX];
	const char *list[CHOICES_MAX], *near;
	int n = 0;

	for (const char *p = choices; p && n < CHOICES_MAX; n++) {
		list[n] = options_choice_name(choices, n, names[n]);
		p = strchr(p, '|');
		p = p ? p + 1 : NULL;
	}
	near = nearest(word, list, (size_t)n);
	fprintf(stderr, "%s: %s %s: not one of %s%s%s%s\n", program, option, word, choices,
		near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int take_choice(const struct option_set *set, const struct option_spec *s, const char *text, int *ret)
{
	int index = options_choice(s->choices, text);
	char name[NAME_MAX];

	if (index >= 0) {
		*ret = index;
		return 0;
	}
	options_bad_choice(set->program, name_of(s, name), text, s->choices);
	return -1;
}

static int take_number(const struct option_set *set, const struct option_spec *s, const char *text, uint64_t *ret)
{
	char what[128], min[24], max[24];
	int64_t v = 0;
	uint64_t size = 0;

	if (s->kind == OPTION_SIZE) {
		if (gantry_parse_size(text, &size) == GANTRY_OK && size >= s->min && size <= s->max) {
			*ret = size;
			return 0;
		}
		gantry_format_size(s->min, min, sizeof(min));
		gantry_format_size(s->max, max, sizeof(max));
		snprintf(what, sizeof(what), "not a size from %s to %s", min, max);
		return wrong(set, s, text, what);
	}
	if (gantry_parse_int(text, &v) == GANTRY_OK && v >= 0 && (uint64_t)v >= s->min && (uint64_t)v <= s->max) {
		*ret = (uint64_t)v;
		return 0;
	}
	snprintf(what, sizeof(what), "not a number from %llu to %llu", (unsigned long long)s->min,
		 (unsigned long long)s->max);
	return wrong(set, s, text, what);
}

static int take_time(const struct option_set *set, const struct option_spec *s, const char *text, uint64_t *ret)
{
	char what[96], min[24];
	uint64_t v = 0;

	if (gantry_parse_duration(text, &v) == GANTRY_OK && v && v >= s->min) {
		*ret = v;
		return 0;
	}
	gantry_format_duration(s->min, min, sizeof(min));
	snprintf(what, sizeof(what), "not a duration%s%s, such as %s30s or 1m", s->min ? " of at least " : "",
		 s->min ? min : "", s->min ? "" : "500ms, ");
	return wrong(set, s, text, what);
}

/* -1: wrong, and reported. */
static int take(const struct option_set *set, const struct option_spec *s, const char *text, void *fields)
{
	void *field = (char *)fields + s->at;
	uint64_t v = 0;
	int bad;

	switch (s->kind) {
	case OPTION_FLAG:
		*(int *)field = 1;
		return 0;
	case OPTION_TEXT:
		*(const char **)field = text;
		return 0;
	case OPTION_CHOICE:
		return take_choice(set, s, text, field);
	case OPTION_TIME:
		return take_time(set, s, text, field);
	case OPTION_INT:
		bad = take_number(set, s, text, &v);
		if (!bad)
			*(int *)field = (int)v;
		return bad;
	default:
		return take_number(set, s, text, field);
	}
}

/* What getopt wants. */
struct tables {
	struct option longs[OPTIONS_MAX + 2];
	char letters[3 * OPTIONS_MAX];
};

static void make_tables(const struct option_set *set, struct tables *t)
{
	struct option *l = t->longs;
	char *p = t->letters;

	*p++ = ':'; /* so that a missing value is distinguished from an unknown option */
	*p++ = 'h';
	for (size_t i = 0; i < set->nspecs; i++) {
		const struct option_spec *s = &set->specs[i];
		int has = s->kind == OPTION_FLAG ? no_argument : required_argument;

		if (s->name)
			*l++ = (struct option){s->name, has, NULL, LONG_BASE + (int)i};
		if (!s->letter)
			continue;
		*p++ = s->letter;
		if (has == required_argument)
			*p++ = ':';
	}
	*p = 0;
	*l++ = (struct option){"help", no_argument, NULL, 'h'};
	*l = (struct option){NULL, 0, NULL, 0};
}

/* A line about a word that getopt_long did not take; c is what it returned: ':' for a value that is missing. */
static int not_taken(const struct option_set *set, const struct tables *t, int c, const char *word)
{
	const char *names[OPTIONS_MAX + 1], *near = NULL;
	size_t n = 0;

	if (c == ':')
		return options_wrong(set, "%s needs a value", word);
	for (; t->longs[n].name; n++) {
		size_t len = strlen(t->longs[n].name);

		names[n] = t->longs[n].name;
		if (t->longs[n].has_arg == no_argument && strncmp(word, "--", 2) == 0 &&
		    strncmp(word + 2, names[n], len) == 0 && word[2 + len] == '=')
			return options_wrong(set, "--%s takes no value", names[n]);
	}
	if (strncmp(word, "--", 2) == 0)
		near = nearest(word + 2, names, n);
	if (near)
		return options_wrong(set, "unknown option '%s', did you mean '--%s'?", word, near);
	return options_wrong(set, "unknown %s '%s'; %s --help lists the options", *word == '-' ? "option" : "argument",
			     word, set->program);
}

static const struct option_spec *by_code(const struct option_set *set, int c)
{
	if (c >= LONG_BASE)
		return &set->specs[c - LONG_BASE];
	for (size_t i = 0; i < set->nspecs; i++)
		if (set->specs[i].letter == c)
			return &set->specs[i];
	return NULL;
}

int options_parse(const struct option_set *set, int argc, char **argv, void *fields)
{
	void *operand = (char *)fields + set->operand_at;
	struct tables t;
	int c;

	snprintf(command, sizeof(command), "%s", set->program);
	for (int i = 1; i < argc; i++)
		snprintf(command + strlen(command), sizeof(command) - strlen(command), " %s", argv[i]);
	make_tables(set, &t);
	optind = 0; /* glibc: from the beginning, also the second time */
	opterr = 0;
	while ((c = getopt_long(argc, argv, t.letters, t.longs, NULL)) >= 0) {
		const struct option_spec *s;

		if (c == 'h') {
			usage(set, stdout);
			return 1 + 0;
		}
		s = c == '?' || c == ':' ? NULL : by_code(set, c);
		if (!s)
			return 1 + not_taken(set, &t, c, argv[optind - 1]);
		if (take(set, s, optarg, fields) < 0)
			return 1 + WRONG;
	}
	if (set->many) {
		*(struct option_words *)operand = (struct option_words){argv + optind, argc - optind};
		optind = argc;
	} else if (set->operand && optind < argc) {
		*(const char **)operand = argv[optind++];
	}
	if (optind < argc)
		return 1 + not_taken(set, &t, '?', argv[optind]);
	return set->keep_params || gantry_params_load(0) == GANTRY_OK ? 0 : 1 + WRONG;
}
