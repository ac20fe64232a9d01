#include "suggest.h"

#include <string.h>

#include "base/param_text.h"

const char *suggest(const char *word, const char *const *names, size_t count)
{
	const char *best = NULL;
	size_t least = strlen(word) / 2 + 1; /* more than half of it wrong is another word */

	for (size_t i = 0; i < count; i++) {
		size_t n = gantry_edit_distance(word, names[i]);

		if (n < least) {
			least = n;
			best = names[i];
		}
	}
	return best;
}
