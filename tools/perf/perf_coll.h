/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf all_reduce` and the other collectives: what their files share.
 *
 *   perf_coll.c       options, the cases that they make, table and JSON
 *   perf_coll_data.c  what inputs hold and what results must be, computed without the product
 *   perf_coll_rank.c  one rank: buffers, checking, timing
 *   perf_comm.h       ranks of a communicator
 *
 * A case is one line of the table: a collective, a type, an operation, a root and a size. Each is checked and timed out
 * of place and in place.
 */
#ifndef GANTRY_TOOLS_PERF_COLL_H
#define GANTRY_TOOLS_PERF_COLL_H

#include <stddef.h>
#include <stdint.h>

#include "comm/report.h"
#include "common/figures.h"
#include "gantry/comm.h"
#include "perf/perf_comm.h"

/* X(NAME, "name", in, out, reduces, rooted): how many parts of `count` elements a rank's input and output have (ONE, or
 * ALL: one for each rank). The last is no collective: each rank puts into the window of the next one, and waits for the
 * signal of the one before. */
/* clang-format off */
#define PCOLL_OPS(X) \
	X(ALL_REDUCE,     "all_reduce",     ONE, ONE, 1, 0) \
	X(REDUCE,         "reduce",         ONE, ONE, 1, 1) \
	X(BROADCAST,      "broadcast",      ONE, ONE, 0, 1) \
	X(ALL_GATHER,     "all_gather",     ONE, ALL, 0, 0) \
	X(REDUCE_SCATTER, "reduce_scatter", ALL, ONE, 1, 0) \
	X(ALL_TO_ALL,     "all_to_all",     ALL, ALL, 0, 0) \
	X(GATHER,         "gather",         ONE, ALL, 0, 1) \
	X(SCATTER,        "scatter",        ALL, ONE, 0, 1) \
	X(BARRIER,        "barrier",        ONE, ONE, 0, 0) \
	X(PUT,            "put",            ONE, ONE, 0, 0)
/* clang-format on */

enum pcoll_op {
#define PCOLL_ENUM(NAME, name, in, out, reduces, rooted) PCOLL_##NAME,
	PCOLL_OPS(PCOLL_ENUM)
#undef PCOLL_ENUM
		PCOLL_OP_COUNT
};

struct pcoll_traits {
	const char *name;
	int in_all, out_all; /* parts: one for each rank */
	int reduces, rooted;
};
extern const struct pcoll_traits pcoll_traits[PCOLL_OP_COUNT];
const char *pcoll_redop(int op); /* "sum"; -1: "none" */

#define PCOLL_PLACES "no|yes|both"
enum pcoll_places { PCOLL_OUT_OF_PLACE, PCOLL_IN_PLACE, PCOLL_BOTH };
#define PCOLL_CHECKS "0|1|bits"
enum pcoll_check { PCOLL_UNCHECKED, PCOLL_VALUES, PCOLL_BITS };
#define PCOLL_TIMINGS "auto|call|batch"
enum pcoll_timing { PCOLL_TIMING_AUTO, PCOLL_TIMING_CALL, PCOLL_TIMING_BATCH };
#define PCOLL_PROTOS "auto|simple|ll|ll128"
#define PCOLL_BUFFERS "shared|plain"
enum pcoll_buffers { PCOLL_SHARED, PCOLL_PLAIN };

enum { PCOLL_REPEATS_MAX = 101, PCOLL_EXPLAIN_MAX = 4000, PCOLL_CASES_MAX = 1 << 16 };

/* A line of the table. */
struct pcoll_case {
	enum pcoll_op what;
	int type, op, root; /* op and root: -1 where the collective has none */
	uint64_t count;	    /* as the call takes it */
	uint64_t bytes;	    /* as nccl-tests shows it: of the larger buffer */
};

struct pcoll_opts {
	struct perf_size_opts size;
	struct pcoll_case *cases; /* owned */
	size_t ncases;
	/* How often. */
	uint64_t iters;	 /* 0: as many as fill a repeat of about 0.1 s */
	uint64_t warmup; /* 0: until the rate is known */
	int repeats, check, check_only, timing;
	/* What. */
	int first, last; /* enum pcoll_op: one, or all of them */
	int types[GANTRY_TYPE_COUNT], ntypes, ops[GANTRY_OP_COUNT], nops;
	int root; /* -1: each in turn */
	int places, proto, buffers, reg;
	struct perf_comm_opts c;
	int json, explain, waits;
	const char *type_text, *op_text, *root_text, *algo; /* as given */
};

/* ---- perf_coll_data.c ----
 *
 * What a part of an input holds follows from the rank whose it is, the number of the part, the element's position and a
 * seed. Floats that are summed are small whole numbers, so that any order of sums is exact; those that are multiplied are
 * powers of two. With `bits` they are anything: then nothing is expected but that all ranks and runs agree.
 *
 * Contents repeat after PCOLL_PERIOD elements, a prime: no chunk, slice or part of a power of two looks like another. So
 * a table of one period says all, and is compared at the speed of memcmp.
 */
enum { PCOLL_PERIOD = 16381 };

struct pcoll_data {
	enum pcoll_op what;
	int type, op, root;
	int nranks;
	uint64_t seed;
	int bits;
};

/* Elements of a table for `count` of them. */
uint64_t pcoll_table_length(uint64_t count);
/* What `rank` puts into part `part`. */
void pcoll_input(const struct pcoll_data *d, int rank, int part, uint64_t length, void *table);
/* What part `part` of the result of `rank` must be. */
void pcoll_expected(const struct pcoll_data *d, int rank, int part, uint64_t length, void *table);
/* The scalar by which a rank multiplies its input (mulsum): one element. */
void pcoll_scalar(int type, int rank, void *ret_scalar);
/*
 * By how many numbers of its type an element may differ from what is expected: 0, but for averages of floats, which are scaled by 1/n
 * and rounded, and rounded again at every addition. If n is a power of two all of that is exact.
 *
 * Let N(x) be the place of x > 0 among the numbers of a type with p bits of mantissa, linear between them. Over a factor of two there are
 * 2^(p-1) numbers, and x dN/dx = x / ulp(x) <= 2^p. Rounding to nearest changes ln x by at most ln(1 + u), u = 2^-p, so what follows from
 * it moves by at most 2^p ln(1 + u) < 1. A sum of positive numbers whose logarithms are each off by at most d is off by at most d. So
 * the result has moved by less than the number of roundings on the longest way to it, in whatever order ranks add:
 *
 *   m - 1   additions, of m inputs that are not 0; adding 0 is exact
 *   1       the product with 1/n
 *   1       1/n itself, for float and double; the smaller types are scaled by a float, whose 2^-24 are below 1/100 for all of them
 *
 * The expected value is rounded too, by 1/2 at most: the difference, a whole number, is at most that sum. Products below the smallest
 * normal number are rounded to multiples of the smallest subnormal: 1/2 each, for m of them.
 */
int pcoll_tolerance(const struct pcoll_data *d);

void pcoll_fill(void *to, uint64_t count, size_t size, const void *table);
/* How many elements are wrong; *ret_first: the first of them, if any. */
uint64_t pcoll_compare(const void *got, uint64_t count, int type, const void *table, int ulps, uint64_t *ret_first);
/* The element of a type that is nearest to v; the largest if v is beyond. */
uint64_t pcoll_encode(int type, double v);
/* Seconds and the bytes of a case to GB/s as nccl-tests counts them. */
void pcoll_bandwidth(enum pcoll_op what, int nranks, uint64_t bytes, double us, double *ret_alg, double *ret_bus);

/* ---- what is measured ---- */

/* Of one case, out of place or in place. NAN: not measured. */
struct pcoll_figures {
	struct perf_spread us, algbw, busbw;
	double p99_us;
	uint64_t wrong;
};

struct pcoll_row {
	struct pcoll_figures place[2]; /* by enum pcoll_places: out of place, in place */
	char first_wrong[256];
	char transport[32], mode[32], proto[32];
	char algo[64], paths[64];	   /* comm_path_name's words */
	double wait_us[GANTRY_COMM_WAITS]; /* per call and rank */
	double estimated_us;		   /* by the cost model; NAN: it does not know */
};

/* What one rank found out over one phase. */
struct pcoll_sample {
	struct perf_sample base;
	double min, median, p99, max; /* us, of its calls */
	uint64_t ns;		      /* the whole phase */
	uint64_t wrong;
	uint32_t crc; /* of the result */
	char first_wrong[256];
	struct gantry_comm_counters counters;
	uint64_t paths[COMM_PATHS];
	char transport[32];
};

struct pcoll_shared {
	const struct pcoll_opts *opts;
	uint64_t nrows;		       /* release by rank 0, acquire by the parent: rows that can be printed */
	uint64_t came[PERF_RANKS_MAX]; /* seq, by each rank: barriers it has come to */
	struct pcoll_row rows[]; /* ncases of them; behind them as many texts of PCOLL_EXPLAIN_MAX, if asked for */
};
char *pcoll_explain_of(struct pcoll_shared *sh, size_t row);

/* perf_coll.c. 0: go on; otherwise the exit status plus 1, after a line on stderr. Does not look at the environment. */
int pcoll_parse(int argc, char **argv, struct pcoll_opts *o);
/* When the number of ranks is known. The same result. */
int pcoll_make_cases(struct pcoll_opts *o);

/* perf_coll_rank.c */
extern struct perf_comm_op pcoll_op;
/* Bytes of all buffers of a rank. */
double pcoll_memory(const struct pcoll_opts *o);

#endif
