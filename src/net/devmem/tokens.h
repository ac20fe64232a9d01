/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens of one flow: who still needs the page, and giving them back in few calls.
 *
 * A fragment may belong to two messages: its token counts its users. When the last one lets go it is queued; a flush
 * sorts what is queued, merges neighbours, and keeps the kernel's limits per call (128 ranges, 1024 fragments). The
 * kernel says how many it freed: any other number than asked for is a bug of ours, and is said as ERR_INTERNAL.
 *
 * What is queued and below DEVMEM_FLUSH_AT stays queued until somebody flushes: whoever finds nothing to do should.
 *
 * Threads: any; a lock of its own, held while the kernel is called (which takes no lock of the socket).
 */
#ifndef GANTRY_NET_DEVMEM_TOKENS_H
#define GANTRY_NET_DEVMEM_TOKENS_H

#include <pthread.h>
#include <stdint.h>

#include "gantry/result.h"
#include "net/devmem/source.h"

struct devmem_tokens {
	pthread_mutex_t lock;
	struct devmem_flow *flow; /* borrowed */
	uint32_t *users;	  /* owned: by token; DEVMEM_QUEUED: none left, in the queue */
	uint32_t *queued;	  /* owned */
	uint32_t room, nqueued;	  /* room: of both */
	uint32_t held;		  /* tokens with users or queued */
	uint64_t returned;	  /* for tests and the log */
	uint64_t calls;
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
/* One user more. ERR_INTERNAL: nobody had it. */
gantry_result devmem_tokens_use(struct devmem_tokens *t, uint32_t token);
/* One user less of each; flushes by itself when DEVMEM_FLUSH_AT are queued. ERR_INTERNAL: one of them had no user; the
 * others are dropped all the same. */
gantry_result devmem_tokens_drop(struct devmem_tokens *t, const uint32_t *tokens, uint32_t n);
gantry_result devmem_tokens_flush(struct devmem_tokens *t);

#endif
