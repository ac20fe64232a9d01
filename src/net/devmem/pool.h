/*
 * The page pool of a device: one per process and device, because NCCL's kernels keep one base address for all their
 * peers. Shared and counted. It is one stretch of at most 4 GiB of addresses:
 *
 *   [ part of NIC 0 | part of NIC 1 | ... | landing pages ]
 *
 * A part is bound to its NIC, which alone decides what lies where in it. Landing pages are ours: bytes that came
 * through host memory (small messages, linear and plain data, fragments too small to describe) are put there, so that
 * kernels find everything relative to one address.
 *
 * Memory: GANTRY_UNPACK_MEMORY. `mapped` is pinned host memory that kernels read over the bus; `device` is memory of
 * the device. Where the CPU can write (mapped, or the host device) landing is a memcpy; else a copy on the pool's
 * stream.
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
	pthread_mutex_t lock; /* of everything below */
	int refs;
	int nparts;
	struct devmem_part parts[DEVMEM_POOL_PARTS];
	uint64_t parts_end;    /* parts grow up to here ... */
	uint64_t landing_base; /* ... and landing pages are from here to the end */
	uint32_t *free_pages;  /* owned: stack of landing page numbers */
	uint32_t nfree, npages;
	struct gantry_stream *stream; /* owned: for copies where the CPU cannot write; NULL otherwise */
};

/* The pool of a device, made when it is first asked for. kind: DEVMEM_EMULATED or DEVMEM_KERNEL; a pool that exists
 * with another kind is ERR_CONFIG. */
gantry_result devmem_pool_get(struct gantry_device *dev, enum devmem_kind kind, struct devmem_pool **ret_pool);
void devmem_pool_put(struct devmem_pool *p); /* NULL is fine */
/* The part bound to a NIC, bound when it is first asked for. Borrowed: it lives as long as the pool. */
gantry_result devmem_pool_part(struct devmem_pool *p, const char *nic, struct devmem_part **ret_part);

/* Landing pages: 0 if there are that many (numbers in ret_pages), -1: none taken. */
int devmem_pool_take(struct devmem_pool *p, uint32_t n, uint32_t *ret_pages);
void devmem_pool_give(struct devmem_pool *p, const uint32_t *pages, uint32_t n);
static inline uint64_t devmem_pool_page_offset(const struct devmem_pool *p, uint32_t page)
{
	return p->landing_base + (uint64_t)page * DEVMEM_LANDING_PAGE;
}
/* All pages are back and no flow holds a token: what a soak test asks at its end. Logs one line either way. */
int devmem_pool_is_whole(struct devmem_pool *p);

#endif
