/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's communicators of this process, as its profiler interface tells the plugin of them: for traces and stall
 * reports, which say by this table what rank a process is. Gantry's own communicators know that themselves.
 *
 * Entries are numbered; events of the trace (event.h) name them so. That of a communicator that has ended stays until
 * its place is needed.
 */
#ifndef GANTRY_BASE_RANKS_H
#define GANTRY_BASE_RANKS_H

#include <stdint.h>
#include <stdio.h>

#include "base/event.h"
#include "base/json.h"

enum { GANTRY_RANKS = 256 };

/* In the order of NCCL's numbers: v1 of its profiler interface has these. A name that is not known is the last. */
enum { GANTRY_NCCL_FUNCS = 12, GANTRY_NCCL_TYPES = 13, GANTRY_NCCL_ALGOS = 8, GANTRY_NCCL_PROTOS = 4 };
enum gantry_nccl_names { GANTRY_NCCL_FUNC, GANTRY_NCCL_TYPE, GANTRY_NCCL_ALGO, GANTRY_NCCL_PROTO };
uint32_t gantry_nccl_number(enum gantry_nccl_names of, const char *name); /* as NCCL spells it; NULL: not known */
uint32_t gantry_nccl_type_size(uint32_t type);				  /* bytes; 0: not known */

/* A call of NCCL's API. */
struct gantry_rank_call {
	uint32_t func, type, algo, proto; /* numbers as above */
	uint32_t channels;
	int p2p;
	uint64_t bytes;
	int root; /* of p2p: the peer */
};

/* The entry's number; -1: there is no room. rank -1: not known yet. */
int gantry_rank_add(uint64_t comm, int rank, int nranks, const char *name);
/* Versions that tell init nothing say it with the first call. */
void gantry_rank_learn(int entry, uint64_t comm, int rank);
void gantry_rank_end(int entry);
/* It has made this call. Returns its number: collectives of a communicator are counted from 1, alike on all ranks, and
 * transfers apart, from GANTRY_RANK_P2P + 1. */
#define GANTRY_RANK_P2P 0x80000000u
uint32_t gantry_rank_called(int entry, const struct gantry_rank_call *call);

/*
 * The events. NCCL_CALL: c = bytes | (root + 1) << 40, with OP_END; b = number | what << 32.
 * NCCL_OP: b = number | channel << 32 | entry << 40 | send << 48; c = peer | steps << 32, with OP_END.
 * NCCL_STEP: b = step | state << 32; c = bytes.
 * NCCL_REQUEST: b as that of the link's message; c = op | step << 32 | send << 62.
 */
enum gantry_nccl_state {
	GANTRY_NCCL_KERNEL,  /* send: the kernel has not filled it. recv: the kernel has not consumed it */
	GANTRY_NCCL_ROOM,    /* the network takes no further request */
	GANTRY_NCCL_NETWORK, /* the network has a request for it */
	GANTRY_NCCL_FLUSH,
	GANTRY_NCCL_END,
	GANTRY_NCCL_STATES
};
extern const char *const gantry_nccl_state_names[GANTRY_NCCL_STATES];
int gantry_nccl_is_event(uint32_t kind);
uint64_t gantry_rank_call_b(uint32_t number, const struct gantry_rank_call *call);
uint64_t gantry_rank_call_c(const struct gantry_rank_call *call);
void gantry_nccl_put_event(struct gantry_json *j, const struct gantry_event *e);

/* A line of kind "rank" for each entry with a rank; all: also those that have ended. */
void gantry_rank_put_lines(FILE *f, int all);

#endif
