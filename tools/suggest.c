#include "suggest.h"

#include <stdio.h>
#include <string.h>

#include "base/param_text.h"

enum { SUGGEST_OPTIONS = 64 };

const char *suggest(const char *word, const char *const *names, size_t count)
{
	const char *best = NULL;
	size_t len = strlen(word), least = len / (len > 6 ? 3 : 2) + 1; /* more of it wrong is another word */

	for (size_t i = 0; i < count; i++) {
		size_t n = gantry_edit_distance(word, names[i]);

		if (n < least) {
			least = n;
			best = names[i];
		}
	}
	return best;
}

int suggest_usage(const char *program, const struct option *options, int c, const char *word)
{
	const char *names[SUGGEST_OPTIONS], *near = NULL;
	size_t n = 0;

	if (c == ':') {
		fprintf(stderr, "%s: %s needs a value\n", program, word);
		return 2;
	}
	for (; n < SUGGEST_OPTIONS && options[n].name; n++) {
		size_t len = strlen(options[n].name);

		names[n] = options[n].name;
		if (options[n].has_arg == no_argument && strncmp(word, "--", 2) == 0 &&
		    strncmp(word + 2, names[n], len) == 0 && word[2 + len] == '=') {
			fprintf(stderr, "%s: --%s takes no value\n", program, names[n]);
			return 2;
		}
	}
	if (strncmp(word, "--", 2) == 0)
		near = suggest(word + 2, names, n);
	fprintf(stderr, "%s: unknown %s '%s'", program, *word == '-' ? "option" : "argument", word);
	if (near)
		fprintf(stderr, ", did you mean '--%s'?\n", near);
	else
		fprintf(stderr, "; %s --help lists the options\n", program);
	return 2;
}
