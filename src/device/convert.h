/* SPDX-License-Identifier: Apache-2.0 */
/* What types can be stored as one another (k_unpack_as.h), and the CPU's way of doing it for memory that no kernel
 * writes: the same code, so that it does not matter which way bytes took. */
#ifndef GANTRY_DEVICE_CONVERT_H
#define GANTRY_DEVICE_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

/* enum gantry_type; others are fine. */
bool gantry_converts(uint32_t type);
/* n elements, at any addresses; the two places do not overlap. */
void gantry_convert(void *dst, uint32_t to, const void *src, uint32_t from, uint64_t n);

#endif
