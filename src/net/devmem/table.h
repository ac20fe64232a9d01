/*
 * The descriptors of one message: fragments in, entries for the unpack kernel out.
 *
 * Neighbours that follow each other in source and destination become one entry. Bytes that are in host memory, and
 * fragments below the coalesce threshold, are copied to landing pages, where neighbours merge; so does everything once
 * the table is nearly full. So a message always fits, whatever it was cut into, or the table says AGAIN: no landing
 * page is free now.
 *
 * The table remembers which tokens and landing pages it uses until devmem_table_release: then the kernel that read them
 * is done. A table belongs to one message at a time; its owner's lock protects it.
 */
#ifndef GANTRY_NET_DEVMEM_TABLE_H
#define GANTRY_NET_DEVMEM_TABLE_H

#include <stdint.h>

#include "abi/unpack.h"
#include "gantry/result.h"
#include "net/devmem/frags.h"
#include "net/devmem/pool.h"
#include "net/devmem/tokens.h"

struct devmem_held {
	struct devmem_tokens *tokens; /* borrowed: of the flow it came from */
	uint32_t token;
};

struct devmem_table {
	struct devmem_pool *pool;	  /* borrowed */
	struct gantry_unpack_desc *descs; /* borrowed: max of them */
	uint32_t max, n;
	uint32_t coalesce;	  /* fragments shorter than this are copied */
	struct devmem_held *held; /* owned */
	uint32_t nheld, held_room;
	uint32_t *pages; /* owned: landing pages */
	uint32_t npages, page_room;
	uint32_t page_used; /* bytes of the last one */
	int copying; /* copies to landing pages are under way on the pool's stream: not complete before they are */
	/* What happened, for the log. */
	uint64_t frags, merged, landed_bytes;
};

gantry_result devmem_table_init(struct devmem_table *t, struct devmem_pool *pool, struct gantry_unpack_desc *descs,
				uint32_t max, uint32_t coalesce);
void devmem_table_free(struct devmem_table *t);
/*
 * Bytes [skip, skip + len) of a fragment are bytes [dst_off, dst_off + len) of the message. `base`: of the part that
 * the fragment's offset is relative to; `linear`: the receive's own buffer, for fragments that are not in the pool. The
 * table becomes one more user of the fragment's token if it needs it (the caller keeps its own use). AGAIN: nothing was
 * done, no landing page is free.
 */
gantry_result devmem_table_add(struct devmem_table *t, struct devmem_tokens *tokens, const struct devmem_frag *frag,
			       uint64_t base, const uint8_t *linear, uint32_t skip, uint32_t len, uint64_t dst_off);
/* Bytes in host memory, of any length: small messages. */
gantry_result devmem_table_add_host(struct devmem_table *t, const void *data, uint64_t len, uint64_t dst_off);
/* Is what it describes there? AGAIN while copies to landing pages are under way. */
gantry_result devmem_table_ready(struct devmem_table *t);
/* The message is consumed: tokens and pages go back, the table is empty. */
gantry_result devmem_table_release(struct devmem_table *t);

#endif
