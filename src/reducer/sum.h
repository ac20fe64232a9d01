/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions of a piece: the host device's own loops (device/types_dev.h, which has the rules of the arithmetic). */
#ifndef GANTRY_REDUCER_SUM_H
#define GANTRY_REDUCER_SUM_H

#include <stddef.h>
#include <stdint.h>

/* 0: no such type. */
size_t reducer_type_bytes(uint32_t type);
/* sum, prod, max and min: ranks multiply or divide by themselves. */
int reducer_op_known(uint32_t op);
/* n sources, strictly in their order. dst may be one of them. */
void reducer_sum(uint32_t type, uint32_t op, const char *const *srcs, uint32_t n, char *dst, size_t bytes);

#endif
