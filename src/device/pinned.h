/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of pinned memory: host memory that a device reads and writes, taken in pieces and given back. Everything that
 * stages bytes uses it: sending from device memory (net/tcp/stage.c), the pipeline (rx/stage.c) and the net
 * transport's OFFSET steps (transport/net_link.c).
 *
 * A pool has extents, each allocated by the pool (grow) or lent by its owner (add). An extent is tiled by pieces, free
 * and taken, in one list by address. A piece is the first free one that is large enough: low memory is used again and
 * again, so it stays in the cache. What is given back is merged with its free neighbours. Records of pieces are made
 * with their extent: taking and giving allocate nothing.
 *
 * Threads: the owner's lock, or its thread, guards all calls.
 */
#ifndef GANTRY_DEVICE_PINNED_H
#define GANTRY_DEVICE_PINNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "gantry/result.h"

struct gantry_device;

struct gantry_piece {
	struct gantry_list node; /* the pool's: all pieces by address, or its spare records */
	uint8_t *host, *dev;	 /* the same bytes as the CPU and as kernels address them */
	size_t size;
	bool taken, first; /* first: an extent begins here */
	/* For the user of a taken piece: */
	struct gantry_piece *next;
	uint64_t fence;
	bool copying;
};

struct gantry_pinned {
	struct gantry_device *device; /* borrowed */
	size_t unit;		      /* sizes of pieces are multiples of it */
	struct gantry_list pieces, spare;
	struct gantry_extent *extents; /* owned */
	uint64_t memory, taken;	       /* bytes of all extents, and of pieces that are not free */
};

void gantry_pinned_init(struct gantry_pinned *p, struct gantry_device *device, size_t unit);
void gantry_pinned_free(struct gantry_pinned *p); /* zeroed is fine; does not wait: no piece is in use any more */
/* Memory of the caller's, for pieces of which at most `pieces` records are needed at a time, free ones included. */
gantry_result gantry_pinned_add(struct gantry_pinned *p, void *host, void *dev, size_t size, uint32_t pieces);
/* The same with pinned memory of the device, which the pool owns. */
gantry_result gantry_pinned_grow(struct gantry_pinned *p, size_t size, uint32_t pieces);
/* NULL: there is no room now. size 0 counts as 1. */
struct gantry_piece *gantry_pinned_take(struct gantry_pinned *p, size_t size);
void gantry_pinned_give(struct gantry_pinned *p, struct gantry_piece *piece); /* NULL is fine */

#endif
