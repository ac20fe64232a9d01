/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GANTRY_TESTS_POOL_WHOLE_H
#define GANTRY_TESTS_POOL_WHOLE_H

#include "base/atomic.h"
#include "net/devmem_rx.h"

/* All landing pages are back, and flows that have ended gave every fragment back. No other thread sets the pool up. */
static inline int pool_is_whole(struct devmem_pool *p)
{
	uint64_t abandoned = 0;
	uint32_t out;

	for (int i = 0; i < p->nparts; i++)
		abandoned += load_relaxed(&p->parts[i].binding->abandoned);
	devmem_pool_mu_lock(&p->mu);
	out = p->npages - p->nfree;
	devmem_pool_mu_unlock(&p->mu);
	return !out && !abandoned;
}

#endif
