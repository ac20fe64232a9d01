/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives through reducers: each rank sends its bytes once and receives the result once.
 *
 * Piece k of operation s is reduced by reducer (s + k) % n. Reducers are processes of their own where GANTRY_REDUCERS names
 * some; ranks leave out, all of them, those that one of them cannot reach. Else the ranks themselves reduce, in the calls of
 * their own users. There is no thread: a request is done only when the pieces of it that this rank reduces are with all
 * ranks.
 *
 * Operations match by the order in which ranks post them; what does not fit together is ERR_USAGE on all ranks, with a
 * line that names two of them and the difference.
 *
 * A communicator belongs to the thread that posts and tests. Memory is host memory. Nothing blocks but reducer_open.
 */
#ifndef GANTRY_REDUCER_REDUCER_H
#define GANTRY_REDUCER_REDUCER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "gantry/result.h"
#include "gantry/types.h"

struct reducer_comm;
struct reducer_request;

enum { REDUCER_REQUESTS = 64 /* of a communicator, in flight */ };

struct reducer_config {
	void *ctx, *listen; /* of Gantry's own network, with standing receives; borrowed */
	int dev;
	uint32_t ranks, rank;
	const void *const *handles; /* of each rank's listener: copied, never written */
	uint64_t timeout;	    /* ns, for all of it */
	const char *reducers;	    /* host:port,...; NULL: GANTRY_REDUCERS; "": the ranks themselves */
	const uint32_t *stop;	    /* nonzero (sequentially consistent) ends it with ERR_ABORTED; NULL: nothing does */
};

/* Blocks until all connections are there, or until the deadline. */
gantry_result reducer_open(const struct reducer_config *config, struct reducer_comm **ret_comm);
void reducer_close(struct reducer_comm *c); /* NULL is fine; requests are gone with it */
/* "ranks reduce for each other", "2 of 3 reducers": what reduces. Returns buf. */
const char *reducer_describe(const struct reducer_comm *c, char *buf, size_t size);

/* The calls below give a NULL request for "again later". Buffers belong to the communicator until the test that says
 * done. Types and reductions are those of gantry/types.h; the parts of a list cover the window one after the other. */
gantry_result reducer_all_reduce(struct reducer_comm *c, const void *send, void *recv, size_t count, uint32_t type,
				 uint32_t op, struct reducer_request **ret_request);

/* `bytes` from byte `offset` on of what all ranks have together, per_rank of each. In an all-gather `own` is what this
 * rank has of that, and `parts` receive it all; in a reduce-scatter the other way round. */
struct reducer_window {
	void *own;
	const struct iovec *parts;
	uint32_t nparts;
	size_t per_rank, offset, bytes;
};
gantry_result reducer_all_gather(struct reducer_comm *c, const struct reducer_window *w,
				 struct reducer_request **ret_request);
gantry_result reducer_reduce_scatter(struct reducer_comm *c, const struct reducer_window *w, uint32_t type, uint32_t op,
				     struct reducer_request **ret_request);

/* Makes progress on everything of the communicator. */
gantry_result reducer_test(struct reducer_request *request, int *ret_done, size_t *ret_bytes);

/* After an error: the rank whose loss it is, or -1. */
int reducer_lost(const struct reducer_comm *c);

#endif
