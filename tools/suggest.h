/* "Did you mean": the nearest of some names, and what is said of an option that there is not. */
#ifndef GANTRY_TOOLS_SUGGEST_H
#define GANTRY_TOOLS_SUGGEST_H

#include <getopt.h>
#include <stddef.h>

/* The name that takes the fewest edits, or NULL if none is near enough to be meant. Borrowed from `names`. */
const char *suggest(const char *word, const char *const *names, size_t count);
/* A line on stderr about a word that getopt_long did not take; c is what it returned: ':' for a value that is missing.
 * options: as given to it. Returns 2, the exit status of wrong usage. */
int suggest_usage(const char *program, const struct option *options, int c, const char *word);

#endif
