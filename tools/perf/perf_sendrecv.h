/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf sendrecv`: what its files share.
 *
 *   perf_sendrecv.c       options, the environment that they become, one rank: its buffers, size after size; table and JSON
 *   perf_sendrecv_move.c  patterns: which messages an iteration has, and what they carry; one size: iterations, repeats, a
 *                         row; bandwidths, names of what the counters say; memcpy and a bare flag, to compare with
 *   perf_comm.h           ranks of a communicator: their identity, how they join and wait for each other
 */
#ifndef GANTRY_TOOLS_PERF_SENDRECV_H
#define GANTRY_TOOLS_PERF_SENDRECV_H

#include <stddef.h>
#include <stdint.h>

#include "common/figures.h"
#include "device/device.h"
#include "gantry/comm.h"
#include "perf/perf_comm.h"

enum {
	SR_REPEATS_MAX = 101,
	SR_INFLIGHT_MAX = 1024,
};

#define SR_PATTERNS "ring|oneway|pingpong|alltoall|echo"
enum sr_pattern { SR_RING, SR_ONEWAY, SR_PINGPONG, SR_ALLTOALL, SR_ECHO };
#define SR_MODES "auto|normal|offset|ptr"
enum sr_mode { SR_MODE_AUTO, SR_MODE_NORMAL, SR_MODE_OFFSET, SR_MODE_PTR };
#define SR_PROTOS "auto|simple|ll|ll128"
#define SR_BUFFERS "shared|plain"
enum sr_buffers { SR_SHARED, SR_PLAIN };

struct sr_opts {
	/* Which sizes. */
	struct perf_size_opts size;
	int type; /* enum gantry_type; -1: not given */
	uint64_t sizes[PERF_SIZES_MAX];
	size_t nsizes;
	/* How often. */
	uint64_t iters;	 /* 0: as many as fill a repeat of about 0.1 s */
	uint64_t warmup; /* 0: until the rate is known */
	int repeats, check;
	/* Ranks and operation. */
	struct perf_comm_opts c;
	int pattern, mode, proto, buffers; /* indices into the lists above */
	int reg;			   /* register the buffers; -1: not given */
	int inflight;
	int json, baseline;
	const char *type_text; /* as given */
};

/* Two buffers, on huge pages where there are any. Zeroed is empty. */
struct sr_memcpy {
	char *from, *to; /* owned */
	size_t size;
};

/* Two words, each on lines of its own, in memory that both sides see. Zeroed at the beginning. */
struct sr_flags {
	struct {
		uint64_t word __attribute__((aligned(128))); /* written by that side (release), read by the other */
	} side[2];
	char pad[128];
};
/* Microseconds one way; NAN: not measured. */
struct sr_flag_times {
	double best, pinned, unpinned; /* best: the smaller of the two */
};

/* What one rank measured over one phase. Plain bytes: travels between hosts of one kind. */
struct sr_sample {
	struct perf_sample base;
	uint64_t ns;
	uint64_t wrong;	       /* bytes, since the size began */
	char first_wrong[256]; /* where the first of them was */
	struct gantry_comm_counters counters;
	char transport[32];
	double memcpy_gbs;
	struct sr_flag_times flag;
};

/* One line of the table. NAN: not measured. */
struct sr_row {
	uint64_t bytes, count, wrong;
	char first_wrong[256];
	struct perf_spread us, algbw, busbw; /* GB/s */
	double copies_send, copies_recv;
	double memcpy_gbs, memcpy_ratio, flag_ratio; /* busbw and time, divided by them */
	struct sr_flag_times flag;
	char transport[32], mode[32], proto[32];
};

/* In memory that parent and ranks share. */
struct sr_shared {
	const struct sr_opts *opts; /* the parent's; its forked children have it at the same place */
	uint64_t nrows;		    /* release by rank 0, acquire by the parent: rows that can be printed */
	struct sr_row rows[PERF_SIZES_MAX];
	struct sr_flags flags;
};

/* A message of an iteration, as one rank sees it. */
struct sr_msg {
	int send, peer;
	int buf;     /* number among the buffers of its direction */
	int number;  /* sequence number between the two ranks in this direction */
	size_t skew; /* from the buffer's even address; not 0 only while checking */
};

/* One rank: a process or a thread. Owned by it. */
struct sr_rank {
	struct perf_rank base;
	const struct sr_opts *opts; /* borrowed */
	struct sr_shared *shared;   /* borrowed */
	/* Messages: group after group; first[g] .. first[g + 1] - 1 are in group g. */
	struct sr_msg *msgs;
	int nmsgs, ngroups, first[3];
	int nbufs[2]; /* by direction: receive, send */
	char *memory[2];
	void *handle[2];
	size_t stride, memory_size[2];
	size_t type_bytes;
	uint64_t round;			  /* checks begun; all ranks count alike, message numbers are made of it */
	uint64_t *wrong_host, *wrong_dev; /* mapped: where VERIFY counts */
	struct sr_memcpy memcpy;
};

/* perf_sendrecv.c */

/* 0: go on; otherwise the exit status plus 1, after a line on stderr. Does not look at the environment. */
int sr_parse(int argc, char **argv, struct sr_opts *o);

/* What the ranks of this operation do. */
extern const struct perf_comm_op sr_op;

/* perf_sendrecv_move.c */

/* Fills in msgs, groups and nbufs. */
gantry_result sr_plan(struct sr_rank *rk);
/* How many messages follow one another in an iteration's time. */
double sr_messages(const struct sr_opts *o);
/* In front of a message and behind it; the first of them begins a page before, so that messages begin at pages. */
enum { SR_FRONT = 4096, SR_SKEW_MAX = 3 };
/* Measures one size; rank 0's row counts. */
gantry_result sr_measure(struct sr_rank *rk, uint64_t bytes, struct sr_row *ret_row);
/* The buffers that memcpy is measured with. -1: no memory. */
int sr_memcpy_open(struct sr_memcpy *m, size_t largest);
void sr_memcpy_close(struct sr_memcpy *m);
/* us: the time of one message. GB/s as nccl-tests counts them. */
void sr_bandwidth(enum sr_pattern pattern, int nranks, uint64_t bytes, double us, double *ret_alg, double *ret_bus);

#endif
