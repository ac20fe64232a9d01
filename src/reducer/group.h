/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer's part of one job: its ranks send pieces, all of them are reduced in rank order and sent back.
 *
 * It has REDUCER_WINDOW buffers per rank and as many for results; piece number k uses buffer k % REDUCER_WINDOW. Per rank
 *
 *   confirmed <= sent <= reduced <= arrived <= posted <= reduced + REDUCER_WINDOW,   reduced <= confirmed + REDUCER_WINDOW
 *
 * A rank has at most REDUCER_WINDOW pieces without a result, so its messages always find a receive and a slow rank holds up
 * its job and nothing else: memory does not grow. A piece is reduced in one pass over all ranks' bytes when the last one
 * has come, not one rank at a time as they come: that reads each operand once, writes once, and keeps small floats in
 * float throughout (docs/design/0034).
 *
 * One of the ranks may be in this very process: its pieces are read where they lie (reducer_group_put).
 *
 * Belongs to one thread. Never blocks.
 */
#ifndef GANTRY_REDUCER_GROUP_H
#define GANTRY_REDUCER_GROUP_H

#include <sys/uio.h>

#include "net/mesh.h"
#include "reducer/reducer_wire.h"

enum { REDUCER_GRACE_NS = 250000000 /* for the cause of a peer's closing to arrive */ };
enum { REDUCER_PARTS_MAX = 8, REDUCER_NO_RANK = UINT32_MAX };

struct reducer_member {
	const struct net_mesh_end *end;	   /* borrowed */
	uint8_t *buffers;		   /* REDUCER_WINDOW messages, owned */
	const char *bytes[REDUCER_WINDOW]; /* of each piece: in the buffers, or the user's */
	struct reducer_piece pieces[REDUCER_WINDOW];
	void *recvs[REDUCER_WINDOW], *sends[REDUCER_WINDOW];
	uint64_t posted, arrived, sent, confirmed; /* pieces */
	gantry_result gone;			   /* OK: it is there */
};

/* Where the result of a piece of this process's own rank goes. */
struct reducer_own {
	struct iovec dst[REDUCER_PARTS_MAX];
	uint32_t ndst;
};

struct reducer_group {
	uint32_t ranks, own; /* own: the rank in this process, or REDUCER_NO_RANK */
	char name[32];	     /* for lines of the log: "reducer" */
	size_t piece, stride;
	uint8_t *memory, *results;		   /* owned: all buffers; borrowed from it: those of results */
	const char **srcs;			   /* owned: one for each rank */
	struct reducer_piece done[REDUCER_WINDOW]; /* what the results are of */
	struct reducer_own owns[REDUCER_WINDOW];
	uint64_t reduced, retired; /* pieces; retired: all ranks have the result */
	uint64_t missed_at;	   /* ns: when a rank was missed that has closed; 0: none was */
	gantry_result error;	   /* the job is over */
	struct reducer_failed failed;
	uint8_t last_words[REDUCER_HEADER]; /* on their way to all ranks, after a failure */
	uint64_t received, sent; /* bytes of pieces and results that came and went; other threads read them, relaxed */
	struct reducer_member members[];
};

/* What a group waits for, and which of its ranks is to blame. */
enum reducer_wait { REDUCER_WAIT_NONE, REDUCER_WAIT_RANK, REDUCER_WAIT_RESULT, REDUCER_WAITS };

/* ends: one per rank, borrowed; that of `own` is not looked at, and others may be filled in later. */
gantry_result reducer_group_create(uint32_t ranks, uint32_t own, const struct net_mesh_end *ends,
				   struct reducer_group **ret_group);
void reducer_group_destroy(struct reducer_group *g); /* NULL is fine */
/* Memory that one of so many ranks has. */
size_t reducer_group_bytes(uint32_t ranks);
/* RANK: the piece of that rank has not come, of another it has. RESULT: that rank does not take its results. */
enum reducer_wait reducer_group_waits(const struct reducer_group *g, uint32_t *ret_rank);
/* All ranks have closed: after a failure, too, if it is given time (reducer_group_progress). */
int reducer_group_is_over(const struct reducer_group *g);
/* The process ends: all ranks are notified. */
void reducer_group_end(struct reducer_group *g);
/* Does what can be done, at most one piece of reduction. How much it did: 0 is nothing. Look at error afterwards. */
uint32_t reducer_group_progress(struct reducer_group *g);
/* A piece of the own rank. False: no room, again later. It is done, and src and dst are the caller's again, when
 * g->retired is above the g->members[own].arrived of before the call. */
int reducer_group_put(struct reducer_group *g, const struct reducer_piece *p, const struct iovec *src, uint32_t nsrc,
		      const struct iovec *dst, uint32_t ndst);

/* "ranks 0 and 2 differ in operation 17: ..."; returns buf. */
enum { REDUCER_TEXT = 192 };
const char *reducer_failed_text(const struct reducer_failed *f, char buf[REDUCER_TEXT]);
/* Bytes [at, at + n) of `all`, in at most REDUCER_PARTS_MAX pieces, none of them empty: how many. */
uint32_t reducer_iov_slice(const struct iovec *all, uint32_t nall, size_t at, size_t n, struct iovec *ret);

#endif
