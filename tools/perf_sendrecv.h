/*
 * `gantry perf sendrecv`: what its files share.
 *
 *   perf_sendrecv.c        the command: table and JSON                              (the parent)
 *   perf_sendrecv_opts.c   options, sizes, and the environment that they become     (the parent)
 *   perf_sendrecv_run.c    forks the ranks and watches them                         (the parent)
 *   perf_sendrecv_rank.c   one rank: device, communicator, buffers
 *   perf_sendrecv_sync.c   ranks meet and see each other's samples
 *   perf_sendrecv_move.c   patterns: which messages an iteration has
 *   perf_sendrecv_echo.c   the pattern without calls: kernels that stay
 *   perf_sendrecv_check.c  what the messages carry: filled, poisoned, compared
 *   perf_sendrecv_row.c    one size: iterations, repeats, a row
 *   perf_sendrecv_math.c   bandwidths and names of what the counters say
 *   perf_baseline.h        memcpy and a bare flag, to compare with
 *   perf_launcher.h        ranks that mpirun, srun or torchrun started, and how they find each other
 *
 * The parent forks before any thread or GPU context exists, and then only sleeps, prints rows and watches. Ranks are
 * processes, or threads of one child (--threads); started by a launcher there is one child, and rank 0's parent
 * prints. All ranks run the same program of phases in step: whatever they must agree on is computed by each of them
 * from the same samples.
 */
#ifndef GANTRY_TOOLS_PERF_SENDRECV_H
#define GANTRY_TOOLS_PERF_SENDRECV_H

#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "gantry/comm.h"
#include "perf_baseline.h"
#include "perf_launcher.h"
#include "perf_util.h"

enum {
	SR_RANKS_MAX = 1024,
	SR_SIZES_MAX = 4096,
	SR_REPEATS_MAX = 101,
	SR_INFLIGHT_MAX = 1024,
	SR_GPUS_MAX = 64,
};

#define SR_PATTERNS "ring|oneway|pingpong|alltoall|echo"
enum sr_pattern { SR_RING, SR_ONEWAY, SR_PINGPONG, SR_ALLTOALL, SR_ECHO };
#define SR_MODES "auto|normal|offset|ptr"
enum sr_mode { SR_MODE_AUTO, SR_MODE_NORMAL, SR_MODE_OFFSET, SR_MODE_PTR };
#define SR_PROTOS "auto|simple|ll|ll128"
#define SR_DEVICES "host|cuda" /* in the order of enum gantry_device_kind */
#define SR_BUFFERS "shared|plain"
enum sr_buffers { SR_SHARED, SR_PLAIN };

struct sr_opts {
	/* Which sizes. */
	uint64_t begin, end, factor, step; /* factor 0, step 0: not given */
	int odd;
	int type; /* enum gantry_type; -1: not given */
	uint64_t sizes[SR_SIZES_MAX];
	size_t nsizes;
	/* How often. */
	uint64_t iters;	     /* 0: as many as fill a repeat of about 0.1 s */
	uint64_t warmup;     /* 0: until the rate is known */
	uint64_t timeout_ns; /* without progress this is a hang; 0 until the number of ranks is known */
	int repeats, check;
	/* Who and what. */
	int ranks; /* 0: not given */
	int rank;  /* -1: all of them are forked here; else a launcher started this one */
	const char *launcher;
	int threads;
	int device; /* enum gantry_device_kind */
	int gpus[SR_GPUS_MAX], ngpus;
	int pattern, mode, proto, buffers; /* indices into the lists above */
	int reg;			   /* register the buffers; -1: not given */
	int inflight, channels, pin;
	const char *transport, *plugin, *ifname, *root, *id_file;
	struct perf_launcher launched; /* by whom; and where its ranks meet, unless by the file */
	struct perf_root meet;
	int json, baseline;
	const char *type_text, *gpus_text; /* as given */
};

/* What one rank measured over one phase. Plain bytes: travels between hosts of one kind. */
struct sr_sample {
	uint64_t ns;
	uint64_t wrong;	       /* bytes, since the size began */
	char first_wrong[256]; /* where the first of them was */
	struct gantry_comm_counters counters;
	char transport[32];
	double memcpy_gbs;
	struct perf_flag_times flag;
	double cpu_seconds; /* of a whole rank, when it closes; and the machine it is on */
	uint64_t machine;
};

/* One line of the table. NAN: not measured. */
struct sr_row {
	uint64_t bytes, count, wrong;
	char first_wrong[256];
	struct perf_spread us, algbw, busbw; /* GB/s */
	double copies_send, copies_recv;
	double memcpy_gbs, memcpy_ratio, flag_ratio; /* busbw and time, divided by them */
	struct perf_flag_times flag;
	char transport[32], mode[32], proto[32];
};

/* One rank's part of the shared memory: written by that rank only, read by the others and by the parent. */
struct sr_slot {
	uint64_t arrived __attribute__((aligned(128)));	 /* release/acquire: barriers this rank has reached */
	uint64_t progress __attribute__((aligned(128))); /* relaxed: groups enqueued, for the watchdog */
	const char *phase; /* relaxed; a literal, so its address means the same in every process */
	uint64_t phase_bytes;
	/* Ordered by the barriers. In turns: others may read one while the next is written. */
	struct sr_sample samples[2];
	char error[512];
	uint64_t error_ns; /* release by the rank, acquire by the parent: when error was written; 0: there is none */
};

struct sr_shared {
	uint32_t dump;	/* the parent: say where you hang, and end */
	uint64_t nrows; /* release by rank 0, acquire by the parent: rows that can be printed */
	struct sr_row rows[SR_SIZES_MAX];
	int info_ready; /* the same, for what the header says */
	char device[64];
	double others_cpu; /* by rank 0, ordered by its end: CPU seconds of ranks on this machine that are not our
			      children */
	uint32_t id_ready; /* release by rank 0 */
	struct gantry_unique_id id;
	struct perf_flags flags;
	struct sr_slot rank[]; /* nranks of them */
};

/* A message of an iteration, as one rank sees it. */
struct sr_msg {
	int send, peer;
	int buf;     /* number among the buffers of its direction */
	int number;  /* the how-manieth between the two ranks in this direction */
	size_t skew; /* from the buffer's even address; not 0 only while checking */
};

/* One rank: a process or a thread. Owned by it. */
struct sr_rank {
	int rank, nranks;
	const struct sr_opts *opts; /* borrowed */
	struct sr_shared *shared;   /* borrowed */
	struct sr_slot *me;	    /* in shared */
	struct gantry_device *dev;
	struct gantry_stream *stream;
	struct gantry_comm *comm;
	cpu_set_t all_cpus; /* before pinning */
	int all_cpus_known;
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
	char *box;			  /* device memory for samples; only when started by a launcher */
	struct perf_memcpy memcpy;
	uint64_t syncs;
};

/* perf_sendrecv_opts.c */

/* 0: go on; otherwise the exit status plus 1, after a line on stderr. Does not look at the environment. */
int sr_parse(int argc, char **argv, struct sr_opts *o);
/* The sizes to measure, ascending, multiples of the type, none twice; at most max, and returns how many there are. */
size_t sr_sizes(const struct sr_opts *o, uint64_t *ret_sizes, size_t max);
size_t sr_type_bytes(int type);
const char *sr_type_name(int type);
/* Rank and size, if a launcher started this process; the options' variables; parameters. -1: wrong, and said so. */
int sr_environment(struct sr_opts *o);

/* perf_sendrecv_move.c */

/* Fills in msgs, groups and nbufs. */
gantry_result sr_plan(struct sr_rank *rk);
/* Where a message is, or its front guard. */
char *sr_place(const struct sr_rank *rk, const struct sr_msg *m);
/* Enqueues one iteration of messages of `bytes`. */
gantry_result sr_enqueue(struct sr_rank *rk, uint64_t bytes);
/* Until all that was enqueued is done; an error of the communicator is an error here. */
gantry_result sr_finish(struct sr_rank *rk);
/* This rank's threads from here on: on its part of the CPUs, or on all. */
void sr_pin(struct sr_rank *rk, int on);
/* --pattern echo: n round trips in one launch. */
gantry_result sr_echo(struct sr_rank *rk, uint64_t bytes, uint64_t n);
/* How many messages follow one another in an iteration's time. */
double sr_messages(const struct sr_opts *o);

/* perf_sendrecv_check.c */

/* In front of a message and behind it; the first of them begins a page before, so that messages begin at pages. */
enum { SR_FRONT = 4096, SR_GUARD = 64, SR_SKEW_MAX = 3 };
/* Fills in what was wrong, and where the first of it was. */
gantry_result sr_check(struct sr_rank *rk, uint64_t bytes, struct sr_sample *s);

/* perf_sendrecv_sync.c */

/* Waits for all ranks. */
gantry_result sr_sync(struct sr_rank *rk);
/* The same, and afterwards sr_sample_of gives what each rank brought with it, until the next but one. */
gantry_result sr_share(struct sr_rank *rk, const struct sr_sample *mine);
const struct sr_sample *sr_sample_of(const struct sr_rank *rk, int rank);

static inline void sr_phase(struct sr_rank *rk, const char *what, uint64_t bytes)
{
	__atomic_store_n(&rk->me->phase, what, __ATOMIC_RELAXED);
	__atomic_store_n(&rk->me->phase_bytes, bytes, __ATOMIC_RELAXED);
}
static inline void sr_progress(struct sr_rank *rk)
{
	__atomic_store_n(&rk->me->progress, rk->me->progress + 1, __ATOMIC_RELAXED);
}

/* perf_sendrecv_row.c */

/* Measures one size; rank 0's row counts. */
gantry_result sr_measure(struct sr_rank *rk, uint64_t bytes, struct sr_row *ret_row);

/* perf_sendrecv_math.c */

/* us: the time of one message. GB/s as nccl-tests counts them. */
void sr_bandwidth(enum sr_pattern pattern, int nranks, uint64_t bytes, double us, double *ret_alg, double *ret_bus);
/* The same of repeats: the longest time is the least bandwidth. */
void sr_bandwidths(enum sr_pattern pattern, int nranks, uint64_t bytes, struct perf_spread us,
		   struct perf_spread *ret_alg, struct perf_spread *ret_bus);
/* "ptr", "ptr+normal", "none": what steps were counted. */
void sr_mode_name(const struct gantry_comm_counters *c, char *buf, size_t len);
void sr_proto_name(const struct gantry_comm_counters *c, char *buf, size_t len);
/* c = c + d, c = c - d, word by word. */
void sr_counters_add(struct gantry_comm_counters *c, const struct gantry_comm_counters *d);
void sr_counters_sub(struct gantry_comm_counters *c, const struct gantry_comm_counters *d);
/* How often a message was copied. Bytes, because messages may be cut into steps. */
double sr_copies(uint64_t copied, uint64_t bytes);
/* Adds a name to a list joined by "+", once. */
void sr_join(char *list, size_t len, const char *name);

/* perf_sendrecv_rank.c */

/* Bytes of all buffers of a rank, of any rank the most. */
double sr_memory(const struct sr_opts *o);
/* A rank's whole life; its error, if any, is in its slot afterwards. */
gantry_result sr_rank_run(struct sr_rank *rk);
/* Where this rank is and what the communicator says, into its slot. From another thread, while the rank hangs. */
void sr_rank_dump(struct sr_rank *rk);

/* perf_sendrecv_run.c */

/* Called in the parent: once before the first row, then for each row. */
struct sr_printer {
	void (*header)(const struct sr_opts *opts, const struct sr_shared *shared);
	void (*row)(const struct sr_opts *opts, const struct sr_row *row);
};
/* Forks, watches, reaps. Returns 0, or 1 after a line on stderr about the first failure. *ret_shared can be read
 * until the process ends. */
int sr_run(const struct sr_opts *opts, const struct sr_printer *print, const struct sr_shared **ret_shared);

#endif
