/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks contribute to a reduction, and what its result has to be. */
#ifndef GANTRY_TOOLS_CHECK_NUMBERS_H
#define GANTRY_TOOLS_CHECK_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

#include "abi/collnet_v12.h"

enum { CHECK_RANKS = 4, CHECK_TYPES = ncclFloat8e5m2 + 1 };

size_t check_type_size(ncclDataType_t type); /* bytes */
/* The elements of operation k from byte `offset` on: those of a rank or, rank < 0, those of all ranks reduced. */
void check_numbers(ncclDataType_t type, ncclRedOp_t red, int k, int rank, size_t offset, size_t bytes, uint8_t *out);

#endif
