/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of the result codes, from the one list in gantry/result.h. */
#include "gantry/result.h"

#include <stddef.h>

static const char *const names[] = {
#define RESULT_NAME(name, number, text) [GANTRY_##name] = #name,
	GANTRY_RESULTS(RESULT_NAME)
#undef RESULT_NAME
};

static const char *const texts[] = {
#define RESULT_TEXT(name, number, text) [GANTRY_##name] = text,
	GANTRY_RESULTS(RESULT_TEXT)
#undef RESULT_TEXT
};

/* Codes also come from foreign plugins and from the wire, so any integer must be safe here. */
static int known(gantry_result r)
{
	return (unsigned)r < GANTRY_RESULT_COUNT;
}

const char *gantry_result_name(gantry_result r)
{
	return known(r) ? names[r] : "UNKNOWN";
}

const char *gantry_result_text(gantry_result r)
{
	return known(r) ? texts[r] : "unknown result code";
}
