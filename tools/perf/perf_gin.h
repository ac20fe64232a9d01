/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf gin`: what its files share. Ranks work in pairs: 0 with 1, 2 with 3. In each, kernels put and signal to each other.
 *
 *   perf_gin.c       options, one rank: its queues and memory, size after size; table and JSON
 *   perf_gin_move.c  one size: checks, echoes, streams, a row
 *   kernels/k_gin.h  the kernels
 */
#ifndef GANTRY_TOOLS_PERF_GIN_H
#define GANTRY_TOOLS_PERF_GIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/figures.h"
#include "gantry/kernel.h"
#include "perf/perf_comm.h"
#include "perf/perf_message.h"

enum {
	GIN_REPEATS_MAX = 101,
	GIN_CONTEXTS_MAX = 64,
	GIN_DEPTH_MAX = 4096,
	GIN_ECHOES_MAX = 1 << 16, /* of a launch */
	GIN_FRONT = 4096,	  /* in front of a put's bytes, so that they begin at a page */
	GIN_SKEW_MAX = 3,
};

struct gin_opts {
	struct perf_size_opts size;
	uint64_t sizes[PERF_SIZES_MAX];
	size_t nsizes;
	uint64_t iters;	 /* 0: as many as fill a repeat */
	uint64_t warmup; /* 0: until the rate is known */
	int repeats, check;
	int contexts, depth;
	struct perf_comm_opts c;
	int json;
};

/* What one rank measured over one phase. Plain bytes: travels between hosts of one kind. */
struct gin_sample {
	struct perf_sample base;
	uint64_t ns;	/* that the phase took */
	double echo_us; /* one way, the median of its echoes */
	uint64_t wrong;
	char first_wrong[256];
};

struct gin_row {
	uint64_t bytes, wrong;
	char first_wrong[256];
	struct perf_spread us, gbs;
	double puts; /* per second */
};

/* In memory that parent and ranks share. */
struct gin_shared {
	const struct gin_opts *opts; /* the parent's; its forked children have it at the same place */
	uint64_t nrows;		     /* release by rank 0, acquire by the parent: rows that can be printed */
	struct gin_row rows[PERF_SIZES_MAX];
};

/* Mapped memory, written by kernels. */
struct gin_mapped {
	uint64_t shown; /* how far a kernel has come */
	uint64_t wrong; /* by the kernel that puts, and by those that compare */
	uint32_t result;
	uint64_t times[GIN_ECHOES_MAX];
};

/* One rank: a process or a thread. Owned by it. */
struct gin_rank {
	struct perf_rank base;
	const struct gin_opts *opts; /* borrowed */
	struct gin_shared *shared;   /* borrowed */
	int peer;
	struct gantry_gin *queues;
	struct gantry_gin_view view;
	/* By direction: what comes, what goes. */
	char *memory[2];
	uint32_t number[2];
	size_t stride;
	uint64_t places;
	struct gin_mapped *host, *mapped; /* the same, as the CPU and as kernels address it */
	uint64_t echoes, streams;	  /* signals so far, from the peer */
	uint64_t round;			  /* checks begun; all ranks count alike */
};

/* perf_gin_move.c */

/* Places that puts of a rank have, one after the other. */
uint64_t gin_places(const struct gin_opts *o);
size_t gin_stride(const struct gin_opts *o);
/* Measures one size; rank 0's row counts. */
gantry_result gin_measure(struct gin_rank *rk, uint64_t bytes, struct gin_row *ret_row);

#endif
