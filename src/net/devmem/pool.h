/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page pool of a device: one per process and device, because NCCL's kernels keep one base address for all their
 * peers. Shared and counted. It is one stretch of at most 4 GiB of addresses:
 *
 *   [ part of NIC 0 | part of NIC 1 | ... | landing pages ]
 *
 * There is room for GANTRY_UNPACK_NICS parts of GANTRY_UNPACK_POOL bytes, since the address cannot change later. A part
 * is bound to its NIC when that is first asked for; the NIC alone decides what lies where in it. Landing pages are
 * ours: bytes that came through host memory (small messages, linear and plain data, fragments too small to describe)
 * are put there, so that kernels find everything relative to one address.
 *
 * Memory: GANTRY_UNPACK_MEMORY. `mapped` is pinned host memory that kernels read over the bus; `device` is memory of
 * the device; devmem TCP always has the latter. Where the CPU can write (mapped, or the host device) landing is a
 * memcpy; else bytes are put into the landing page's twin in pinned memory and copied from there by the device:
 * all writes to landing pages are then in one queue, so a page may be given back and taken again while a copy to it
 * is under way.
 */
#ifndef GANTRY_NET_DEVMEM_POOL_H
#define GANTRY_NET_DEVMEM_POOL_H

#include <pthread.h>
#include <stdint.h>

#include "gantry/device.h"
#include "gantry/result.h"
#include "net/devmem/source.h"

enum { DEVMEM_POOL_PARTS = 8, DEVMEM_LANDING_PAGE = 4096 };

struct devmem_part {
	char nic[16];
	uint64_t base, size;
	struct devmem_binding *binding; /* owned */
};

struct devmem_pool {
	struct gantry_device *device; /* owned reference */
	struct devmem_memory memory;  /* owned: all of it */
	const struct devmem_source_ops *source;
	void *block;   /* what was allocated; memory begins at its first page border */
	int is_mapped; /* by alloc_mapped; else by alloc */
	/* Setting up: under the lock of the list of pools. */
	struct devmem_pool *next;
	int refs;
	int nparts;
	struct devmem_part parts[DEVMEM_POOL_PARTS];
	uint64_t part_size;    /* of each */
	uint64_t parts_end;    /* parts grow up to here ... */
	uint64_t landing_base; /* ... and landing pages are from here to the end */
	/* Where the CPU cannot write; else NULL. */
	uint8_t *twin;	      /* owned, pinned: of the landing pages */
	pthread_mutex_t lock; /* of everything below */
	uint32_t *free_pages; /* owned: stack of landing page numbers */
	uint32_t nfree, npages;
	uint32_t lowest;  /* nfree at its lowest */
	uint64_t refused; /* takes that found too few */
};

/* The pool of a device, made when it is first asked for. kind: DEVMEM_EMULATED or DEVMEM_KERNEL; a pool that exists
 * with another kind is ERR_CONFIG. */
gantry_result devmem_pool_get(struct gantry_device *dev, enum devmem_kind kind, struct devmem_pool **ret_pool);
/* The same by the source's table: for sources of other kinds. */
gantry_result devmem_pool_get_from(struct gantry_device *dev, const struct devmem_source_ops *source,
				   struct devmem_pool **ret_pool);
void devmem_pool_put(struct devmem_pool *p); /* NULL is fine. The last one unbinds: all flows must be detached */
/* The part bound to a NIC, bound when it is first asked for. Borrowed: it lives as long as the pool. ERR_LIMIT: there
 * is no room for another NIC. */
gantry_result devmem_pool_part(struct devmem_pool *p, const char *nic, struct devmem_part **ret_part);

/* Landing pages: 0 if there are that many (numbers in ret_pages, in order where they can be), -1: none taken. */
int devmem_pool_take(struct devmem_pool *p, uint32_t n, uint32_t *ret_pages);
void devmem_pool_give(struct devmem_pool *p, const uint32_t *pages, uint32_t n);
static inline uint64_t devmem_pool_page_offset(const struct devmem_pool *p, uint32_t page)
{
	return p->landing_base + (uint64_t)page * DEVMEM_LANDING_PAGE;
}
/* All landing pages are back, and flows that have ended gave every fragment back. Says so in the log, as the end of a
 * pool does. */
int devmem_pool_is_whole(struct devmem_pool *p);

#endif
