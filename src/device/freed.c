/* SPDX-License-Identifier: Apache-2.0 */
#include "device/freed.h"

#include "base/atomic.h"
#include "base/mutex.h"

enum { FREED = 64 };

MUTEX_KIND(freed_mu);
static struct freed_mu freed_mu_one;
static struct freed {
	const char *base;
	size_t size;
} ring[FREED] GUARDED_BY(freed_mu);
static uint64_t freed; /* atomic; written under the lock */

void gantry_freed_put(const void *base, size_t size)
{
	freed_mu_lock(&freed_mu_one);
	ring[freed % FREED] = (struct freed){base, size};
	store_release(&freed, freed + 1);
	freed_mu_unlock(&freed_mu_one);
}

uint64_t gantry_freed_count(void)
{
	return load_acquire(&freed);
}

bool gantry_freed_since(uint64_t seen, const void *base, size_t size)
{
	const char *from = base;
	bool found;

	freed_mu_lock(&freed_mu_one);
	found = freed - seen > FREED;
	for (uint64_t i = seen; !found && i < freed; i++) {
		const struct freed *f = &ring[i % FREED];

		found = f->base < from + size && from < f->base + f->size;
	}
	freed_mu_unlock(&freed_mu_one);
	return found;
}
