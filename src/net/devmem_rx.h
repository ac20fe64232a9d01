/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving side of device memory: the result of a receive (fragments), their users (tokens), the memory they lie
 * in (pool), and the description of a message for a kernel (table).
 */
#ifndef GANTRY_NET_DEVMEM_RX_H
#define GANTRY_NET_DEVMEM_RX_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "abi/unpack.h"
#include "base/list.h"
#include "base/mutex.h"
#include "gantry/device.h"
#include "gantry/result.h"
#include "net/devmem.h"

/*
 * What one receive of a flow brought, normalised: control messages of the kernel (or the emulator) become a list of
 * fragments in stream order. Nothing is trusted: what is out of range, adds up to something else, or belongs to another
 * binding is ERR_PROTOCOL with a text. Then the list has the fragments before the bad one: their tokens are held and
 * may be given back; nothing else of them may be used.
 */

enum devmem_where {
	DEVMEM_IN_POOL, /* at `offset` of the binding's memory; held until `token` is given back */
	DEVMEM_LINEAR,	/* at `offset` of the receive's own buffer, beside fragments in the pool */
	DEVMEM_PLAIN,	/* the same, without any: an ordinary packet. Many of these: the flow is not steered */
};

struct devmem_frag {
	uint64_t offset;
	uint32_t len;
	uint32_t token; /* IN_POOL only; 0: it is the table's now (devmem_table_add) */
	enum devmem_where where;
};

enum { DEVMEM_LIST_MAX = 1024, DEVMEM_CONTROL_SIZE = DEVMEM_LIST_MAX * 40 };

struct devmem_list {
	uint32_t n;
	uint64_t bytes; /* of all of them: the result of the receive */
	struct devmem_frag frags[DEVMEM_LIST_MAX];
};

/* got: what receive returned, > 0; msg: as it was left; b: of the flow; iov_bytes: size of the receive's own buffer.
 * Only frags [0, n) are written; n and bytes are valid whatever is returned. */
gantry_result devmem_parse(const struct msghdr *msg, ssize_t got, const struct devmem_binding *b, uint64_t iov_bytes,
			   struct devmem_list *ret_list);

/*
 * The tokens of one flow: how many users a page still has, and returning tokens in few calls.
 *
 * A fragment may belong to two messages: its token counts its users. When the last one releases it, it is queued; a
 * flush sorts the queue, merges neighbours, and keeps the kernel's limits per call (128 ranges, 1024 fragments). The
 * kernel returns how many it freed: any other number than requested is a bug of ours, and is reported as ERR_INTERNAL.
 *
 * What is queued and below DEVMEM_FLUSH_AT stays queued until a thread flushes: a thread that finds nothing to do
 * should.
 *
 * Threads: any. The mutex stays locked while the kernel is called, which takes no lock of the socket.
 */

MUTEX_KIND(devmem_tokens_mu);

struct devmem_tokens {
	struct devmem_tokens_mu mu;
	struct devmem_flow *flow; /* borrowed */
	/* owned: by token; DEVMEM_QUEUED: none left, in the queue */
	uint32_t *users GUARDED_BY(devmem_tokens_mu);
	uint32_t *queued GUARDED_BY(devmem_tokens_mu); /* owned */
	uint32_t room GUARDED_BY(devmem_tokens_mu);    /* of both */
	uint32_t nqueued GUARDED_BY(devmem_tokens_mu);
	uint32_t held GUARDED_BY(devmem_tokens_mu);  /* tokens with users or queued */
	uint64_t calls GUARDED_BY(devmem_tokens_mu); /* for tests */
	uint64_t returned;			     /* for the log; relaxed */
};

/* More tokens than pages of the largest pool have fragments: a number above is no token. */
enum { DEVMEM_FLUSH_AT = 64, DEVMEM_TOKENS_MAX = 1 << 24 };
#define DEVMEM_QUEUED UINT32_MAX

void devmem_tokens_init(struct devmem_tokens *t, struct devmem_flow *flow);
/* Before the flow is detached: its end frees what is still held, which is counted as abandoned. */
void devmem_tokens_free(struct devmem_tokens *t);
/* Tokens that receive has just brought: one user each. ERR_PROTOCOL: one is out already, or none; those before it are
 * taken. Only this call allocates. */
gantry_result devmem_tokens_take(struct devmem_tokens *t, const uint32_t *tokens, uint32_t n);
/* One user more. ERR_INTERNAL: the token had no user. */
gantry_result devmem_tokens_use(struct devmem_tokens *t, uint32_t token);
/* One user less of each; flushes by itself when DEVMEM_FLUSH_AT are queued. ERR_INTERNAL: one of them had no user; the
 * others are dropped all the same. */
gantry_result devmem_tokens_drop(struct devmem_tokens *t, const uint32_t *tokens, uint32_t n);
gantry_result devmem_tokens_flush(struct devmem_tokens *t);

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
 * memcpy; else bytes are put into a bounce buffer in pinned memory and copied from there by the device:
 * all writes to landing pages are then in one queue, so a page may be given back and taken again while a copy to it
 * is under way.
 */

enum { DEVMEM_POOL_PARTS = 8, DEVMEM_LANDING_PAGE = 4096 };

struct devmem_part {
	char nic[16];
	uint64_t base, size;
	struct devmem_binding *binding; /* owned */
};

MUTEX_KIND(devmem_pool_mu); /* of a pool's landing pages: a few instructions */

struct devmem_pool {
	struct gantry_device *device; /* owned reference */
	struct devmem_memory memory;  /* owned: all of it */
	const struct devmem_source_ops *source;
	void *block;   /* what was allocated; memory begins at its first page border */
	int is_mapped; /* by alloc_mapped; else by alloc */
	/* Setting up: under the lock of the list of pools. */
	struct gantry_list link;
	int refs;
	int nparts;
	struct devmem_part parts[DEVMEM_POOL_PARTS];
	uint64_t part_size;    /* of each */
	uint64_t parts_end;    /* parts grow up to here ... */
	uint64_t landing_base; /* ... and landing pages are from here to the end */
	/* Where the CPU cannot write; else NULL. */
	uint8_t *bounce; /* owned, pinned: a buffer as large as the landing pages */
	struct devmem_pool_mu mu;
	uint32_t npages;
	uint32_t *free_pages GUARDED_BY(devmem_pool_mu); /* owned: stack of landing page numbers */
	uint32_t nfree GUARDED_BY(devmem_pool_mu);
	uint32_t lowest GUARDED_BY(devmem_pool_mu);  /* nfree at its lowest */
	uint64_t refused GUARDED_BY(devmem_pool_mu); /* takes that found too few */
};

/* The pool of a device, made when it is first asked for. kind: GANTRY_NET_UNPACK_EMULATED or GANTRY_NET_UNPACK_KERNEL; a pool that exists
 * with another kind is ERR_CONFIG. */
gantry_result devmem_pool_get(struct gantry_device *dev, enum gantry_net_unpack kind, struct devmem_pool **ret_pool);
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
 * Waiting for landing pages may be waiting for ever, if the messages that hold them are consumed only after this one. A
 * caller that knows the message's destination passes it as `direct`: bytes for which no landing page is free are copied
 * there, and need no entry. Then there is no AGAIN.
 *
 * The table remembers which tokens and landing pages it uses until devmem_table_release: then the kernel that read them
 * is done. A table belongs to one message at a time; its owner's lock protects it.
 */

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
	int recorded;	   /* ... and `fence` is behind all of them */
	uint64_t fence;
	/* What happened in its life, for the log. */
	uint64_t frags, merged, landed_bytes, direct_bytes, compacted;
};

gantry_result devmem_table_init(struct devmem_table *t, struct devmem_pool *pool, struct gantry_unpack_desc *descs,
				uint32_t max, uint32_t coalesce);
void devmem_table_free(struct devmem_table *t); /* gives back what it has; zeroed is fine */
/* A message of exactly `total` bytes begins; the table must be empty (new or released). */
gantry_result devmem_table_begin(struct devmem_table *t, uint64_t total, void *direct);
/* Bytes [skip, skip + len) of a fragment are bytes [dst_off, dst_off + len) of the message. */
struct devmem_piece {
	struct devmem_frag *frag;
	struct devmem_tokens *tokens; /* of its flow */
	uint64_t base;		      /* of the part that the fragment's offset is relative to */
	const uint8_t *linear;	      /* the receive's own buffer, for fragments that are not in the pool */
	uint32_t skip, len;
	uint64_t dst_off;
};
/*
 * Pieces come in any order and each byte once. If the table needs the fragment's token it becomes one more user; with
 * the fragment's last bytes, it takes over the caller's use instead, and frag->token is 0. AGAIN: nothing was done, too
 * few landing pages are free.
 */
gantry_result devmem_table_add(struct devmem_table *t, const struct devmem_piece *p);
/* Bytes in host memory, of any length: small messages. `data` may change when this has returned. */
gantry_result devmem_table_add_host(struct devmem_table *t, const void *data, uint64_t len, uint64_t dst_off);
/* Is all of the message there? AGAIN while bytes are missing or copies to the pool are under way. */
gantry_result devmem_table_ready(struct devmem_table *t);
/* The message is consumed, or will not be: tokens and pages go back, the table is empty. */
gantry_result devmem_table_release(struct devmem_table *t);

#endif
