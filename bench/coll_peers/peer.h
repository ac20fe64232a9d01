/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the peers of Gantry's collectives have in common: options, buffers, the way of timing, the check, the JSON line.
 * C that a C++ compiler reads too, because gloo has no other interface.
 *
 * One call is timed like this, whatever the library: all ranks meet in shared memory, which no library has a part in;
 * each rank reads the clock, calls, and reads the clock again. The time of the call is that of the slowest rank; the
 * figure of a run is the median over the calls. `gantry perf` times its collectives in the same way.
 *
 * Sizes and bandwidths are those of nccl-tests: `bytes` is the larger of a rank's two buffers.
 */
#ifndef GANTRY_BENCH_PEER_H
#define GANTRY_BENCH_PEER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum peer_op { PEER_ALL_REDUCE, PEER_ALL_GATHER, PEER_REDUCE_SCATTER, PEER_ALL_TO_ALL, PEER_BROADCAST, PEER_OPS };
enum { PEER_RANKS_MAX = 16, PEER_CALLS_MAX = 20000 };

/* Shared by the ranks, zeroed at first. */
struct peer_shared {
	/* acq_rel: ranks that are at the meeting; release by the last one, acquire by the others: meetings so far */
	uint64_t arrived __attribute__((aligned(128)));
	uint64_t met __attribute__((aligned(128)));
	uint64_t calls; /* of the next measurement, by rank 0 before a meeting */
	uint64_t wrong[PEER_RANKS_MAX];
	uint64_t loop_ns[PEER_RANKS_MAX];
	uint64_t ns[PEER_RANKS_MAX][PEER_CALLS_MAX]; /* each row by its rank, before a meeting */
};

struct peer {
	const char *library, *version;
	/* Makes ready for p->op on p->send and p->recv; 0, or -1 after a line on stderr. May be NULL. */
	int (*prepare)(struct peer *p);
	int (*call)(struct peer *p);
	void (*release)(struct peer *p); /* may be NULL */
	/* While this rank waits for others that are still in their call: a library without a thread of its own moves on
	 * only in its calls. NULL: it needs none. */
	void (*poll)(struct peer *p);
	void *ctx;
	int in_place; /* by prepare: the call takes its input from recv */
	/* From the command line. */
	enum peer_op op;
	uint64_t begin, end, factor;
	uint64_t fixed_calls; /* 0: as many as take `seconds` */
	double seconds;
	const char *algo, *transport;
	/* Of this process. */
	int rank, ranks;
	struct peer_shared *shared;
	/* Of the present size. per_rank: elements that go from one rank to another. */
	size_t count, per_rank;
	float *send, *recv; /* of `count` elements each, whatever the operation needs */
};

/* 0, or -1 after a line on stderr. The caller has set the functions. */
int peer_options(struct peer *p, int argc, char **argv);
/* NULL path: for processes that are forked afterwards. 0, or -1 after a line on stderr. */
int peer_map(struct peer *p, const char *path);
/* Returns when all ranks are here. */
void peer_meet(struct peer *p);
/* All sizes: measured, checked, printed by rank 0. The exit status: 0; 1: something is wrong. */
int peer_run(struct peer *p);

#ifdef __cplusplus
}
#endif

#endif
