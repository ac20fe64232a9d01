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

gantry_result gantry_pool_init(struct gantry_pool *p, size_t object_size, size_t count)
{
	gantry_result r = GANTRY_OK;
	struct gantry_pool pool = {0};

	if (!object_size || !count)
		FAIL(GANTRY_ERR_INVALID, "invalid pool: %zu objects of %zu bytes", count, object_size);
	if (object_size > SIZE_MAX - CACHE_LINE)
		FAIL(GANTRY_ERR_NOMEM, "no memory for objects of %zu bytes", object_size);
	pool.object_size = (object_size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	pool.count = count;
	if (count > SIZE_MAX / pool.object_size)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %zu objects of %zu bytes", count, object_size);

	pool.memory = aligned_alloc(CACHE_LINE, pool.object_size * count);
	pool.free = calloc(count, sizeof(*pool.free));
	if (!pool.memory || !pool.free)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %zu objects of %zu bytes", count, object_size);
	memset(pool.memory, 0, pool.object_size * count);

	/* The lowest address is handed out first: small loads stay within few pages. */
	for (size_t i = 0; i < count; i++)
		pool.free[i] = (char *)pool.memory + (count - 1 - i) * pool.object_size;
	pool.nfree = count;
	*p = pool;
	memset(&pool, 0, sizeof(pool)); /* ownership moved */
out:
	gantry_pool_destroy(&pool);
	return r;
}

void gantry_pool_destroy(struct gantry_pool *p)
{
	if (!p)
		return;
	free(p->memory);
	free(p->free);
	memset(p, 0, sizeof(*p));
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
