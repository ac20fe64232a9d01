/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptors of one message: fragments in, entries for the unpack kernel out.
 *
 * Neighbours that follow each other in source and destination become one entry, of a page at most. Bytes that are in
 * host memory are copied to landing pages, and so are fragments below the coalesce threshold where the CPU can do it.
 * Landing is by position: page k of the message has a landing page of its own, in which every byte has its place,
 * whatever order bytes come in. When the table is full, all that it describes moves to landing pages and everything
 * after that lands there at once: one entry per page. So a message always fits, whatever it was cut into, if it has at
 * most `max` pages (4 MiB: 1024), or the table says AGAIN: too few landing pages are free now.
 *
 * To wait for landing pages may be to wait for ever, if those who hold them are consumed only after this message. Who
 * knows the message's destination gives it as `direct`: bytes that find no landing page are copied there, and need no
 * entry. Then there is no AGAIN.
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

enum {
	DEVMEM_TABLE_PAGES = GANTRY_UNPACK_MAX_SLICE / DEVMEM_LANDING_PAGE,
	DEVMEM_ENTRY = 4096, /* bytes: neighbours are merged up to here */
};

struct devmem_held {
	struct devmem_tokens *tokens; /* borrowed: of the flow it came from */
	uint32_t token;
};

struct devmem_table {
	struct devmem_pool *pool;	  /* borrowed */
	struct gantry_unpack_desc *descs; /* borrowed: max of them; the CPU reads them too */
	uint32_t max, n;
	uint32_t coalesce; /* fragments shorter than this are copied */
	/* The message. */
	uint64_t total, added;	  /* bytes */
	uint8_t *direct;	  /* borrowed: its destination, as kernels address it; NULL: not known */
	int went_direct;	  /* bytes are there that landing pages lack */
	int compact;		  /* everything is in landing pages, and all entries are made */
	struct devmem_held *held; /* owned */
	uint32_t nheld, held_room;
	uint32_t *page_of; /* owned: the landing page of each page of the message */
	uint32_t npages;   /* of them */
	int copying;	   /* copies to the pool are under way, ours or those of a binding that is late */
	int recorded;	   /* ... and `ticket` is behind all of them */
	uint64_t ticket;
	/* What happened in its life, for the log. */
	uint64_t frags, merged, landed_bytes, direct_bytes, compacted;
};

gantry_result devmem_table_init(struct devmem_table *t, struct devmem_pool *pool, struct gantry_unpack_desc *descs,
				uint32_t max, uint32_t coalesce);
void devmem_table_free(struct devmem_table *t); /* gives back what it has; zeroed is fine */
/* A message of exactly `total` bytes begins; the table must be empty (new or released). */
gantry_result devmem_table_begin(struct devmem_table *t, uint64_t total, void *direct);
/*
 * Bytes [skip, skip + len) of a fragment are bytes [dst_off, dst_off + len) of the message, which come in any order and
 * each once. `base`: of the part that the fragment's offset is relative to; `linear`: the receive's own buffer, for
 * fragments that are not in the pool. If the table needs the fragment's token it becomes one more user; with the
 * fragment's last bytes, it takes over the caller's use instead, and frag->token is 0. AGAIN: nothing was done, too few
 * landing pages are free.
 */
gantry_result devmem_table_add(struct devmem_table *t, struct devmem_tokens *tokens, struct devmem_frag *frag,
			       uint64_t base, const uint8_t *linear, uint32_t skip, uint32_t len, uint64_t dst_off);
/* Bytes in host memory, of any length: small messages. `data` may change when this has returned. */
gantry_result devmem_table_add_host(struct devmem_table *t, const void *data, uint64_t len, uint64_t dst_off);
/* Is all of the message there? AGAIN while bytes are missing or copies to the pool are under way. */
gantry_result devmem_table_ready(struct devmem_table *t);
/* The message is consumed, or will not be: tokens and pages go back, the table is empty. */
gantry_result devmem_table_release(struct devmem_table *t);

#endif
