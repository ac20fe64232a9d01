/* SPDX-License-Identifier: Apache-2.0 */
#include "device/convert.h"

#include "device/k_unpack_as.h"

bool gantry_converts(uint32_t type)
{
	return type == GANTRY_TYPE_FLOAT16 || type == GANTRY_TYPE_BFLOAT16 || type == GANTRY_TYPE_FLOAT32;
}

void gantry_convert(void *dst, uint32_t to, const void *src, uint32_t from, uint64_t n)
{
	dev_convert(dst, to, src, from, n);
}
