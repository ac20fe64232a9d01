/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote memory access among the ranks of a job, over Gantry's own network: put, put with signal, signal, get and flush. The target
 * calls nothing for it but rma_progress, as every rank does.
 *
 * Memory is named by a number: the n-th registration of each rank is memory n, so ranks register the same things in the same order and
 * exchange nothing. Offsets count from its base.
 *
 * Order. What a rank puts to another one in one context is visible there before a signal that it puts there later in the same
 * context. There is no order among contexts, nor for puts without signals. Signals are words of 64 bits, aligned, to
 * which `add` is added; additions from all ranks and contexts count, through several communicators of a process, too.
 *
 * A request is done when local memory may be used again, for a get when the data is there. It is not known then whether a put has
 * arrived; its signal shows that to the target.
 *
 * Any thread may call, but for rma_close, which no other call outlives. Nothing blocks but rma_open, rma_deregister and rma_close. The first error is
 * that of every call from then on, and it names a rank.
 *
 *   rma.c         life, calls, errors          rma_tx.c      this rank's puts, and answers to gets, on their way
 *   rma_wire.c    the header of a message      rma_rx.c      what other ranks send: where it goes, and in which order it counts
 *   rma_watch.c   counters, stall reports
 *   rma_mem.c     memory, copies               rma_signal.c  words in device memory, which the CPU does not address
 *   rma_claim.c   which communicator of the process adds to such a word
 */
#ifndef GANTRY_RMA_RMA_H
#define GANTRY_RMA_RMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"

struct gantry_device;
struct rma_comm;
struct rma_request;

enum rma_kind { RMA_HOST, RMA_DEVICE };
enum { RMA_NO_MEMORY = 0, RMA_CONTEXTS_MAX = 4096, RMA_MEMORIES_MAX = 65536, RMA_RANKS_MAX = 65536 };

struct rma_config {
	void *ctx, *listen; /* of Gantry's own network, with standing receives; borrowed */
	int dev;
	uint32_t ranks, rank;
	const void *const *handles; /* of each rank's listener: copied, never written */
	uint64_t timeout;	    /* ns, until all connections are there; of rma_deregister */
	const uint32_t *
		stop; /* nonzero (sequentially consistent) ends waits, that of rma_open with ERR_ABORTED; NULL: nothing does */
	struct gantry_device *device; /* whose memory RMA_DEVICE is; borrowed. NULL: there is none */
	bool staged; /* tests: memory of the device is copied by its queues although the CPU could address it */
};

/* Waits until all connections are there, or until the deadline, with an error that names the ranks that are missing. */
gantry_result rma_open(const struct rma_config *config, struct rma_comm **ret_comm);
/* NULL is fine; requests are gone with it. Waits until what was put has left, up to GANTRY_TIMEOUT. */
void rma_close(struct rma_comm *c);

/* By all ranks, in the same order. Numbers count from 1 and are not used again. */
gantry_result rma_register(struct rma_comm *c, void *base, size_t size, enum rma_kind kind, uint32_t *ret_number);
/* By a rank that cannot register what others do: the number names no memory here. */
gantry_result rma_register_nothing(struct rma_comm *c, uint32_t *ret_number);
/*
 * By each rank when it likes: what comes for it later is an error, as is what is under way. Waits until the network has no
 * part of answers from there any more. The memory is the user's again when it returns, or after rma_close.
 */
gantry_result rma_deregister(struct rma_comm *c, uint32_t number);

struct rma_place {
	uint32_t memory; /* RMA_NO_MEMORY: none; no bytes then */
	uint64_t offset;
};
struct rma_signal {
	struct rma_place at; /* RMA_NO_MEMORY: no signal */
	uint64_t add;
};
/* What all of them have in common. rank: this one too. */
struct rma_to {
	uint32_t rank, context;
};
gantry_result rma_put(struct rma_comm *c, struct rma_to to, struct rma_place from, struct rma_place at, uint64_t bytes,
		      const struct rma_signal *signal, struct rma_request **ret_request);
/* from: at the rank. */
gantry_result rma_get(struct rma_comm *c, struct rma_to to, struct rma_place from, struct rma_place at, uint64_t bytes,
		      struct rma_request **ret_request);
/* Done when all earlier requests to the rank in the context are. */
gantry_result rma_flush(struct rma_comm *c, struct rma_to to, struct rma_request **ret_request);
/* After it says done the request is gone. Makes progress on its rank. */
gantry_result rma_test(struct rma_request *request, int *ret_done);
/* The same, and makes no progress: for a thread that calls rma_progress. */
gantry_result rma_look(struct rma_request *request, int *ret_done);
/* On all that is under way, both of this rank and of others. */
gantry_result rma_progress(struct rma_comm *c);

/* Grows whenever something has come or left: a thread that serves requests of others goes on polling then. */
uint64_t rma_moves(const struct rma_comm *c);

/* The first error; OK: there was none. *ret_rank: that it is about, -1: not known; text: borrowed, lives as long as c. */
gantry_result rma_error(struct rma_comm *c, int *ret_rank, const char **ret_text);

struct rma_counts {
	uint64_t puts, gets, signals; /* of this rank's requests; signals: also those of puts */
	uint64_t bytes_out, bytes_in; /* that requests of this and of other ranks have written elsewhere and here */
	uint64_t applied;	      /* signals of others */
};
void rma_counts(const struct rma_comm *c, struct rma_counts *ret);

#endif
