/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdio.h>

const char *gantry_size_text(uint64_t bytes, char *buf, size_t len)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	unsigned k = 0;

	while (k + 1 < sizeof(units) / sizeof(units[0]) && bytes >> 10 * (k + 1))
		k++;
	if (bytes % (UINT64_C(1) << 10 * k) == 0)
		snprintf(buf, len, "%llu %s", (unsigned long long)(bytes >> 10 * k), units[k]);
	else if (k < 2)
		snprintf(buf, len, "%llu B", (unsigned long long)bytes);
	else
		snprintf(buf, len, "%.1f %s", (double)bytes / (double)(UINT64_C(1) << 10 * k), units[k]);
	return buf;
}

const char *gantry_count_text(uint64_t n, const char *thing, char *buf, size_t len)
{
	snprintf(buf, len, "%llu %s%s", (unsigned long long)n, thing, n == 1 ? "" : "s");
	return buf;
}
