/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of fixed-size objects, allocated once. Nothing is allocated between
 * posting and completing a request: pools are sized at connect.
 * Not thread-safe: the owner's lock protects it.
 */
#ifndef GANTRY_BASE_POOL_H
#define GANTRY_BASE_POOL_H

#include <stddef.h>

#include "gantry/result.h"

struct gantry_pool {
	void *memory;	    /* owned: count objects, cache-line aligned */
	void **free;	    /* owned: stack of free objects */
	size_t object_size; /* rounded up to a cache line */
	size_t count;
	size_t nfree;
};

gantry_result gantry_pool_create(size_t object_size, size_t count, struct gantry_pool **ret_pool);
void gantry_pool_free(struct gantry_pool *p); /* accepts NULL */
/* NULL when empty. Objects come zeroed only the first time. */
void *gantry_pool_get(struct gantry_pool *p);
void gantry_pool_put(struct gantry_pool *p, void *object);

#endif
