/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf unpack`: fragments of pages to where they belong. perf_unpack.c has the command and what fragments look
 * like, perf_unpack_run.c measures.
 */
#ifndef GANTRY_TOOLS_PERF_UNPACK_H
#define GANTRY_TOOLS_PERF_UNPACK_H

#include <stdint.h>

#include "common/figures.h"
#include "device/device.h"
#include "device/work.h"
#include "kernels/bench.h"

enum { UNPACK_REPEATS_MAX = 101, UNPACK_BLOCKS_MAX = 16, UNPACK_GUARD = 4096 };

/* As a number of blocks: the whole device. Unpacking has the launch that is best for the list, everything else as many
 * blocks as run at the same time. */
enum { UNPACK_ALL = 0 };

/* X(NAME, "name") in the order of --shape. */
#define UNPACK_SHAPES(X)                                                                                               \
	X(ALIGNED, aligned)                                                                                            \
	X(MTU1500, mtu1500)                                                                                            \
	X(EVEN1500, even1500)                                                                                          \
	X(MTU9000, mtu9000)                                                                                            \
	X(EVEN9000, even9000)                                                                                          \
	X(ODD, odd)                                                                                                    \
	X(RANDOM, random)                                                                                              \
	X(BYTES, bytes)
enum unpack_shape {
#define X(NAME, name) UNPACK_##NAME,
	UNPACK_SHAPES(X)
#undef X
		UNPACK_SHAPE_COUNT
};
extern const char *const unpack_shape_names[UNPACK_SHAPE_COUNT];

struct unpack_opts {
	int device, gpu, pages, shape, kind, repeats, json, check_only; /* pages: 1: mapped host memory */
	uint64_t bytes, seed;
	const char *blocks;
};

/* The fragments of one message. */
struct unpack_list {
	struct gantry_unpack_desc *descs; /* owned */
	size_t n;
	uint64_t bytes;	     /* of all fragments */
	uint64_t span;	     /* dst_off goes up to here; more than bytes: there are gaps */
	uint64_t pool_bytes; /* whole pages */
};
/* False: no memory, or the pool would be larger than an offset of 32 bits reaches. */
int unpack_list_make(struct unpack_list *l, enum unpack_shape shape, uint64_t bytes, uint64_t seed,
		     const char **ret_why);
void unpack_list_free(struct unpack_list *l);

/* Memory for the longest message of all shapes that are asked for. */
struct unpack_bench {
	const struct unpack_opts *o;
	struct gantry_device *dev;
	struct gantry_stream *stream;
	struct gantry_dev_event *from, *to;
	uint32_t blocks[UNPACK_BLOCKS_MAX]; /* UNPACK_ALL among them */
	int nblocks;
	char *pool, *dst, *tmp;		  /* device; dst and tmp stand between guards */
	void *mapped;			  /* the pool is this, pinned host memory; else NULL */
	struct gantry_unpack_desc *descs; /* device */
	uint64_t pool_bytes, dst_bytes, max_descs;
	char *page, *msg;      /* host: the pool and a message as they should be */
	char first_wrong[256]; /* where the first wrong byte of all measurements was */
	int stuck;	       /* a kernel does not end: nothing may be freed, which would be to wait for it */
	uint64_t *wrong;       /* mapped */
	uint64_t *wrong_dev;   /* the same for kernels */
	enum unpack_shape shape;
	struct unpack_list l; /* what is in the pool */
};

struct unpack_row {
	const char *kind; /* unpack, reduce or ring */
	const char *shape;
	uint64_t blocks, lanes; /* of Gantry's own kernel */
	uint64_t bytes, frags, wrong;
	struct perf_spread gbs; /* unpack; in GB/s, as the others */
	double seed_gbs, copy_gbs, ratio_seed, ratio_copy;
	struct perf_spread fused_gbs; /* reduce */
	double two_step_gbs, ratio_two_step;
	struct perf_spread us_per_job;	      /* ring */
	double launch_us, ratio_launch, jobs; /* jobs per second, with the ring full */
};

gantry_result unpack_bench_open(struct unpack_bench *b, const struct unpack_opts *o, const enum unpack_shape *shapes,
				int nshapes);
void unpack_bench_close(struct unpack_bench *b);
/* Makes the fragments of a shape and puts them into the pool. */
gantry_result unpack_bench_load(struct unpack_bench *b, enum unpack_shape shape);
/* The same with numbers, for unpack_measure_reduce. */
gantry_result unpack_bench_load_floats(struct unpack_bench *b, enum unpack_shape shape);
/* Of the shape that was loaded. */
gantry_result unpack_measure(struct unpack_bench *b, uint32_t blocks, struct unpack_row *ret);
gantry_result unpack_measure_reduce(struct unpack_bench *b, uint32_t blocks, struct unpack_row *ret);
gantry_result unpack_measure_ring(struct unpack_bench *b, uint32_t blocks, struct unpack_row *ret);
/* An area of the device: filled with a pattern that is never written; counts bytes that differ from the expected
 * message. */
gantry_result unpack_poison(struct unpack_bench *b, char *area);
gantry_result unpack_verify(struct unpack_bench *b, const char *area, uint64_t *ret_wrong);

#endif
