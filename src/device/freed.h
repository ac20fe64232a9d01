/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gantry_mem_free gave back, for those that keep registrations of memory: they look before they use one. A free is in
 * the record before its address can be given out again.
 */
#ifndef GANTRY_DEVICE_FREED_H
#define GANTRY_DEVICE_FREED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void gantry_freed_put(const void *base, size_t size);
/* Frees so far: one load. */
uint64_t gantry_freed_count(void);
/* Whether some of that memory was freed since there were `seen` frees. True, too, when that is too many frees ago. */
bool gantry_freed_since(uint64_t seen, const void *base, size_t size);

#endif
