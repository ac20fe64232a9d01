/* SPDX-License-Identifier: Apache-2.0 */
/* A stack of free objects over one block of memory. */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/pool.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* Objects are handed to different threads: two of them never share a line. */
enum { CACHE_LINE = 64 };

gantry_result gantry_pool_create(size_t object_size, size_t count, struct gantry_pool **ret_pool)
{
	gantry_result r = GANTRY_OK;
	struct gantry_pool *p = NULL;

	if (!object_size || !count)
		FAIL(GANTRY_ERR_INVALID, "invalid pool: %zu objects of %zu bytes", count, object_size);
	if (object_size > SIZE_MAX - CACHE_LINE)
		FAIL(GANTRY_ERR_NOMEM, "no memory for objects of %zu bytes", object_size);
	p = calloc(1, sizeof(*p));
	if (!p)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a pool");
	p->object_size = (object_size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	p->count = count;
	if (count > SIZE_MAX / p->object_size)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %zu objects of %zu bytes", count, object_size);

	p->memory = aligned_alloc(CACHE_LINE, p->object_size * count);
	p->free = calloc(count, sizeof(*p->free));
	if (!p->memory || !p->free)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %zu objects of %zu bytes", count, object_size);
	memset(p->memory, 0, p->object_size * count);

	/* The lowest address is handed out first: small loads stay within few pages. */
	for (size_t i = 0; i < count; i++)
		p->free[i] = (char *)p->memory + (count - 1 - i) * p->object_size;
	p->nfree = count;
	*ret_pool = p;
	p = NULL; /* ownership moved */
out:
	gantry_pool_free(p);
	return r;
}

void gantry_pool_free(struct gantry_pool *p)
{
	if (!p)
		return;
	free(p->memory);
	free(p->free);
	free(p);
}

void *gantry_pool_get(struct gantry_pool *p)
{
	return p->nfree ? p->free[--p->nfree] : NULL;
}

static bool owns(const struct gantry_pool *p, const void *object)
{
	/* Integers, because comparing pointers into different objects is undefined. */
	uintptr_t base = (uintptr_t)p->memory, at = (uintptr_t)object;

	return at >= base && at - base < p->object_size * p->count && (at - base) % p->object_size == 0;
}

void gantry_pool_put(struct gantry_pool *p, void *object)
{
	/* A bug of the caller must not become a write past the stack or an object owned twice by strangers. */
	if (!owns(p, object) || p->nfree == p->count) {
		LOG_ERROR(BASE, "%p was returned to the wrong pool: it %s", object,
			  p->nfree == p->count ? "has all its objects already" : "does not own it");
		return;
	}
	p->free[p->nfree++] = object;
}
