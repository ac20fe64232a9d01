/* "Did you mean": the nearest of some names. */
#ifndef GANTRY_TOOLS_SUGGEST_H
#define GANTRY_TOOLS_SUGGEST_H

#include <stddef.h>

/* The name that takes the fewest edits, or NULL if none is near enough to be meant. Borrowed from `names`. */
const char *suggest(const char *word, const char *const *names, size_t count);

#endif
