/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `gantry top` reads from a socket: text that may be cut, damaged or made up. The reader stays within it, and its rows
 * hold texts that end.
 */
#include "script.h"
#include "top/top.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct top_process p = {.rank = -1};
	char *text = malloc(size + 1);

	MUST(text);
	memcpy(text, data, size);
	text[size] = 0;
	top_take(&p, text);
	for (size_t i = 0; i < p.nrows; i++) {
		const struct top_row *r = &p.rows[i];

		MUST(strlen(r->id) < sizeof(r->id) && strlen(r->peer) < sizeof(r->peer));
		MUST(strlen(r->waits_for) < sizeof(r->waits_for));
		MUST(r->ncauses >= 0 && r->ncauses <= TOP_CAUSES);
	}
	free(p.rows);
	free(text);
	return 0;
}
