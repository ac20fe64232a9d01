/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that starts its network operations itself, for GPUs (kernel_put.cu) and for CPU threads (kernel_put.c): each rank puts its array
 * into the other's, block by block, and waits for what the other one puts here.
 */
#ifndef KERNEL_PUT_H
#define KERNEL_PUT_H

#include <gantry/kernel.h>

enum { BLOCKS = 4 }; /* each has a context and a signal of its own */

struct exchange {
	struct gantry_gin_view view;
	uint32_t from, to; /* registered memory */
	uint64_t bytes;	   /* of the array */
};

/* By one thread of each block. Nonzero: the communicator has failed. */
GANTRY_FN int exchange_block(const struct exchange *x, uint32_t block)
{
	const uint64_t begin = x->bytes / BLOCKS * block,
		       end = block + 1 == BLOCKS ? x->bytes : x->bytes / BLOCKS * (block + 1);
	const struct gantry_gin_place from = {x->from, begin}, to = {x->to, begin};

	if (gantry_gin_put(&x->view, block, 1 - x->view.rank, from, to, end - begin, block))
		return 1;
	if (gantry_gin_wait(&x->view, block, 1)) /* the other rank's part is here */
		return 1;
	return gantry_gin_barrier(&x->view, block, block); /* and this rank's is there: both may close their queues */
}

#endif
