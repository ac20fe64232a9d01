/* SPDX-License-Identifier: Apache-2.0 */
#include "reducer/sum.h"

#include <string.h>

#include "device/types_dev.h"

size_t reducer_type_bytes(uint32_t type)
{
	return dev_type_bytes(type);
}

int reducer_op_known(uint32_t op)
{
	return op == GANTRY_OP_SUM || op == GANTRY_OP_PROD || op == GANTRY_OP_MAX || op == GANTRY_OP_MIN;
}

void reducer_sum(uint32_t type, uint32_t op, const char *const *srcs, uint32_t n, char *dst, size_t bytes)
{
	struct dev_reduction r = {
		.srcs = srcs, .dsts = &dst, .nsrc = n, .ndst = 1, .type = type, .op = op, .premul = DEV_PREMUL_NONE};

	if (n > 1)
		dev_reduce_span(&r, 0, bytes / dev_type_bytes(type));
	else if (srcs[0] != dst)
		memcpy(dst, srcs[0], bytes);
}
