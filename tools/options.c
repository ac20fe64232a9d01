#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/param.h"
#include "base/param_text.h"
#include "suggest.h"

enum { LONG_BASE = 256, CHOICES_MAX = 32, NAME_MAX = 32 };

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

void options_join(const char *program, int argc, char **argv, char *buf, size_t len)
{
	snprintf(buf, len, "%s", program);
	for (int i = 1; i < argc; i++)
		snprintf(buf + strlen(buf), len - strlen(buf), " %s", argv[i]);
}

static void usage(const struct option_set *set, FILE *f)
{
	fprintf(f, "usage: %s [OPTION]...", set->program);
	if (set->operand)
		fprintf(f, " [%s]", set->operand);
	fprintf(f, "\n%s\n", set->about);
	for (size_t i = 0; i < set->nspecs; i++) {
		const struct option_spec *s = &set->specs[i];
		const char *value = s->kind == OPTION_FLAG ? "" : s->value ? s->value : s->choices;
		char left[128];

		if (s->letter)
			snprintf(left, sizeof(left), "-%c, --%s %s", s->letter, s->name, value);
		else
			snprintf(left, sizeof(left), "--%s %s", s->name, value);
		if (strlen(left) > 26)
			fprintf(f, "  %s\n%29s%s\n", left, "", s->help);
		else
			fprintf(f, "  %-26s %s\n", left, s->help);
	}
	fprintf(f, "%s", set->notes);
}

static int wrong(const struct option_set *set, const struct option_spec *s, const char *text, const char *what)
{
	fprintf(stderr, "%s: --%s %s: %s\n", set->program, s->name, text, what);
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
	near = suggest(word, list, (size_t)n);
	fprintf(stderr, "%s: %s %s: not one of %s%s%s%s\n", program, option, word, choices,
		near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int take_choice(const struct option_set *set, const struct option_spec *s, const char *text, int *ret)
{
	int index = options_choice(s->choices, text);
	char option[64];

	if (index >= 0) {
		*ret = index;
		return 0;
	}
	snprintf(option, sizeof(option), "--%s", s->name);
	options_bad_choice(set->program, option, text, s->choices);
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

/* -1: wrong, and said so. */
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
		if (gantry_parse_duration(text, &v) != GANTRY_OK || !v)
			return wrong(set, s, text, "not a duration, such as 500ms, 30s or 1m");
		*(uint64_t *)field = v;
		return 0;
	case OPTION_INT:
		bad = take_number(set, s, text, &v);
		if (!bad)
			*(int *)field = (int)v;
		return bad;
	default:
		return take_number(set, s, text, field);
	}
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

/* What getopt wants. */
struct tables {
	struct option longs[OPTIONS_MAX + 2];
	char letters[3 * OPTIONS_MAX];
};

static void make_tables(const struct option_set *set, struct tables *t)
{
	char *p = t->letters;
	size_t i;

	*p++ = ':'; /* so that a missing value is told from an unknown option */
	*p++ = 'h';
	for (i = 0; i < set->nspecs; i++) {
		const struct option_spec *s = &set->specs[i];
		int has = s->kind == OPTION_FLAG ? no_argument : required_argument;

		t->longs[i] = (struct option){s->name, has, NULL, LONG_BASE + (int)i};
		if (!s->letter)
			continue;
		*p++ = s->letter;
		if (has == required_argument)
			*p++ = ':';
	}
	*p = 0;
	t->longs[i] = (struct option){"help", no_argument, NULL, 'h'};
	t->longs[i + 1] = (struct option){NULL, 0, NULL, 0};
}

int options_parse(const struct option_set *set, int argc, char **argv, void *fields)
{
	struct tables t;
	int c;

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
			return 1 + suggest_usage(set->program, t.longs, c, argv[optind - 1]);
		if (take(set, s, optarg, fields) < 0)
			return 1 + 2;
	}
	if (set->operand && optind < argc)
		*(const char **)((char *)fields + set->operand_at) = argv[optind++];
	if (optind < argc)
		return 1 + suggest_usage(set->program, t.longs, '?', argv[optind]);
	return gantry_params_load(0) == GANTRY_OK ? 0 : 1 + 2;
}
