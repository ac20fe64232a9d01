/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that only benchmarks launch: their argument structs, and their records for launches. */
#ifndef GANTRY_KERNELS_BENCH_H
#define GANTRY_KERNELS_BENCH_H

#include <stddef.h>

#include "device/kernels.h"
#include "device/work.h"
#include "gantry/kernel.h"

struct gantry_fifo_args {
	struct gantry_conn *conn;
	uint64_t n;
	uint32_t window; /* 1: ping-pong; STEPS: as many as fit */
	uint32_t bare;	 /* use flag instead of the FIFO: store tail, wait for head, nothing else */
	uint32_t *result;
};

struct gantry_echo_args {
	struct gantry_conn *send, *recv; /* between kernels, not proxied */
	const char *input;
	char *output;
	uint64_t bytes; /* at most a step */
	uint64_t n;
	uint32_t first, proto;
	uint32_t *result;
};

/*
 * Two ranks put and signal to each other: k_gin.h. Memory and places are alike on both. Signal b is that of context b; the kernel counts
 * from what earlier launches have added to it.
 */
struct gantry_gin_args {
	struct gantry_gin_view view;
	uint32_t peer;
	uint32_t first;	       /* begins an echo, sends a stream */
	uint32_t stream;       /* 0: an echo */
	uint32_t stamp, look;  /* write what a put of an echo carries; compare what has come */
	uint32_t from, to;     /* registered memory, */
	char *source, *target; /* as the kernel addresses it */
	uint64_t at, stride;   /* of the first place; from one to the next */
	uint64_t places;       /* of a stream */
	uint64_t bytes, n;     /* of a put; echoes, or puts of all contexts */
	uint64_t seq;	       /* number of the first put */
	uint64_t echoes;       /* signals so far, from the peer to context 0 */
	uint64_t streams;      /* the same, to each context */
	uint64_t *times;       /* host memory, dev_clock: that each echo took, or when each block began and ended */
	uint64_t *shown;       /* host memory: how far it has come, now and then */
	uint64_t *wrong;       /* host memory: added to */
	uint32_t *result;
};

/* The pattern of tools/common/figures.h: byte i of message seq. */
struct gantry_fill_args {
	char *dst;
	uint64_t bytes, seq;
};
struct gantry_verify_args {
	const char *src;
	uint64_t bytes, seq;
	uint64_t *wrong; /* host memory: added to */
};

enum { GANTRY_REDUCE_MOST = 8 };
struct gantry_reduce_args {
	const char *src[GANTRY_REDUCE_MOST];
	char *dst[GANTRY_REDUCE_MOST];
	uint32_t nsrc, ndst;
	uint64_t count;
	uint32_t type, op;
	uint64_t scalar;
	uint32_t last;
};

/*
 * output[i] = op(input[i], what arrived for element i). The unpacked elements are source 1 of a reduction of two (see
 * types_dev.h), input is source 0. Both and dst_off are offsets into the same array: element i has the bytes
 * i * size .. of it. Fragments may cut elements anywhere if the descriptors that share an element follow each other
 * in the list, in the order of dst_off; otherwise the list has any order. A len is at most 2^32 - 64.
 */
struct gantry_unpack_reduce_args {
	const struct gantry_unpack_desc *descs;
	const uint64_t *count;
	uint64_t n;
	const char *bounce;
	const char *input; /* aligned to the element, as output; may be output itself */
	char *output;
	uint64_t scalar;
	uint32_t type, op, last;
	uint32_t reserved; /* 0 */
};

/* Jobs for the blocks of a kernel that stays, see k_unpack_ring.h. In mapped memory; a host fills in one with each
 * post. */
struct gantry_unpack_job {
	const struct gantry_unpack_desc *descs;
	uint64_t n;
	char *bounce;
	char *dst;
	uint64_t gather;
	uint64_t reserved[3];
};
/* One per block. */
struct gantry_unpack_done {
	uint64_t jobs; /* written by the block: it has done its share of all jobs below this */
	char pad[120];
};
/* In the device's memory: a job as block 0 hands it on. */
enum { GANTRY_UNPACK_RELAYED = 64 };
struct gantry_unpack_relay {
	struct gantry_unpack_job job;
	struct gantry_unpack_desc descs[GANTRY_UNPACK_RELAYED]; /* the job's, if it has no more than these */
};
struct gantry_unpack_ring_args {
	const uint64_t *posted; /* jobs posted, and GANTRY_UNPACK_STOP */
	const struct gantry_unpack_job *jobs;
	uint64_t *relayed;		   /* device memory: jobs that block 0 has handed on, and GANTRY_UNPACK_STOP */
	struct gantry_unpack_relay *relay; /* device memory: as many as jobs */
	struct gantry_unpack_done *done;   /* by block */
	uint64_t mask;			   /* entries - 1 */
	struct gantry_eventcount *eventcount;  /* of the host that waits for done; NULL: it never sleeps */
	struct gantry_eventcount *eventcounts; /* of the blocks, for block 0 to ring; NULL: they never sleep */
	struct gantry_unpack_marks *marks;     /* by block; NULL: not needed */
};
/* Mapped memory: how far a block has come, for the case that it comes no further. */
enum { GANTRY_UNPACK_WARPS = 16 };
struct gantry_unpack_marks {
	uint64_t took;	  /* all lanes have seen jobs below it */
	uint64_t relayed; /* block 0: it has handed on jobs below it */
	char pad[112];
	uint64_t left[GANTRY_UNPACK_WARPS]; /* warp w has ended its part of all jobs below it */
};
#define GANTRY_UNPACK_STOP (1ull << 63)

#ifndef __cplusplus /* nvcc reads this as C++ */
_Static_assert(sizeof(struct gantry_unpack_job) == 64, "jobs are copied in whole vectors, and do not straddle lines");
_Static_assert(sizeof(struct gantry_unpack_relay) % 16 == 0, "descriptors are loaded 16 bytes at a time");
_Static_assert(offsetof(struct gantry_unpack_job, bounce) == 16 && offsetof(struct gantry_unpack_job, gather) == 32,
	       "a job is read in pairs of words: descs and n, bounce and dst, gather");
#endif

/* As NCCL's kernels unpack: for comparison. */
struct gantry_unpack_seed_args {
	const struct gantry_unpack_desc *descs;
	uint64_t n;
	const char *bounce;
	char *dst;
	uint64_t bytes; /* of all fragments */
};

#define KERNEL(name, args, most, wait) extern struct gantry_kernel gantry_kernel_##name;
#include "kernels/bench.def"
#undef KERNEL

#endif
