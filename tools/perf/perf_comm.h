/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a communicator, for `perf sendrecv` and the collectives: the options that say which ranks there are and how
 * they reach each other, joining, waiting for one another, samples that all of them see, and failures.
 *
 * Ranks are processes, or threads of one child (--threads); started by a launcher there is one child, and rank 0's
 * parent prints. All ranks run the same program of phases in step: whatever they must agree on is computed by each of
 * them from the same samples.
 *
 *   perf_ranks.h       processes, and the parent that watches them
 *   perf_rendezvous.h  ranks that mpirun, srun or torchrun started, and how they find each other
 */
#ifndef GANTRY_TOOLS_PERF_COMM_H
#define GANTRY_TOOLS_PERF_COMM_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#include "common/options.h"
#include "device/device.h"
#include "gantry/comm.h"
#include "perf/perf_ranks.h"
#include "perf/perf_rendezvous.h"

enum { PERF_RANKS_MAX = 1024, PERF_GPUS_MAX = 64, PERF_SIZES_MAX = 4096 };
#define PERF_DEVICES "host|cuda|hip" /* in the order of enum gantry_device_kind */

struct perf_comm_opts {
	int ranks; /* 0: not given */
	int rank;  /* -1: all of them are forked here; else a launcher started this one */
	const char *launcher;
	int threads;
	int hosts;  /* 0: not given; else the forked ranks play so many */
	int device; /* enum gantry_device_kind */
	int gpus[PERF_GPUS_MAX], ngpus;
	int channels, pin;
	const char *transport, *plugin, *ifname, *root, *id_file;
	struct perf_launcher launched; /* the launcher; and where its ranks meet, unless by the file */
	struct perf_root meet;
	uint64_t timeout_ns;   /* without progress this is a hang; 0 until the number of ranks is known */
	const char *gpus_text; /* as given */
};
#define PERF_COMM_OPTS_INIT                                                                                            \
	{                                                                                                              \
		.rank = -1, .pin = 1                                                                                   \
	}

/* Lines of a table of options; the fields are those of member `c` of `type`. */
/* clang-format off */
#define PERF_COMM_AT(type, c, field) offsetof(type, c.field)
#define PERF_COMM_OPTIONS(type, c) \
	{0, OPTION_INT, "ranks", PERF_COMM_AT(type, c, ranks), 1, PERF_RANKS_MAX, NULL, "N", "ranks, forked here (2, or what mpirun, srun, torchrun say)"}, \
	{0, OPTION_INT, "hosts", PERF_COMM_AT(type, c, hosts), 1, PERF_RANKS_MAX, NULL, "H", "forked ranks count as ranks of so many hosts, by GANTRY_HOST_ID (1)"}, \
	{0, OPTION_FLAG, "threads", PERF_COMM_AT(type, c, threads), 0, 0, NULL, NULL, "ranks are threads of one process"}, \
	{0, OPTION_CHOICE, "device", PERF_COMM_AT(type, c, device), 0, 0, PERF_DEVICES, NULL, "where the kernels run (host)"}, \
	{0, OPTION_TEXT, "gpus", PERF_COMM_AT(type, c, gpus_text), 0, 0, NULL, "LIST", "GPUs, taken in turn by the ranks (0)"}, \
	{0, OPTION_TEXT, "transport", PERF_COMM_AT(type, c, transport), 0, 0, NULL, "NAMES", "auto, net, shm, p2p, ... or a list of those allowed (auto)"}, \
	{0, OPTION_INT, "channels", PERF_COMM_AT(type, c, channels), 0, 32, NULL, "N", "as GANTRY_CHANNELS"}, \
	{0, OPTION_TEXT, "plugin", PERF_COMM_AT(type, c, plugin), 0, 0, NULL, "P", "net plugin, as GANTRY_NET_PLUGIN"}, \
	{0, OPTION_TEXT, "ifname", PERF_COMM_AT(type, c, ifname), 0, 0, NULL, "PATTERN", "interfaces, as in NCCL_SOCKET_IFNAME (lo for forked ranks)"}, \
	{0, OPTION_TEXT, "root", PERF_COMM_AT(type, c, root), 0, 0, NULL, "HOST[:PORT]", "rank 0's host, where ranks that a launcher started meet (from its environment)"}, \
	{0, OPTION_TEXT, "id-file", PERF_COMM_AT(type, c, id_file), 0, 0, NULL, "FILE", "or they meet by this file, which all of them see"}, \
	{0, OPTION_INT, "pin", PERF_COMM_AT(type, c, pin), 0, 1, NULL, "0|1", "forked ranks keep to their part of the CPUs (1)"}, \
	{0, OPTION_TIME, "timeout", PERF_COMM_AT(type, c, timeout_ns), 0, 0, NULL, "TIME", "treat as hung after this long without progress (60s, and 1s more for each rank above 64)"}
/* clang-format on */

/* Which sizes: those of nccl-tests' options, and --odd. */
struct perf_size_opts {
	uint64_t begin, end, factor, step; /* factor 0, step 0: not given */
	int odd;
};
/* Ascending, multiples of unit, none twice, in ret_sizes of PERF_SIZES_MAX; 0, or 1 + the exit status of wrong usage. */
int perf_comm_sizes(const struct option_set *set, struct perf_size_opts *o, uint64_t unit, uint64_t *ret_sizes,
		    size_t *ret_n);
/* enum gantry_type; -1: there is none of that name, and a line on stderr says so. */
int perf_comm_type(const struct option_set *set, const char *name);
const char *perf_comm_type_name(int type);
size_t perf_comm_type_bytes(int type);

/* What one rank shows the others; the operation's own begins with it. Plain bytes: travels between hosts of one kind. */
struct perf_sample {
	double cpu_seconds; /* of a whole rank, when it closes; and the machine it is on */
	uint64_t machine;
};

/* In memory that parent and ranks share. */
struct perf_comm_shared {
	const struct perf_comm_op *op; /* the parent's; its forked children have them at the same place */
	const struct perf_comm_opts *opts;
	void *own;		   /* the operation's part */
	struct perf_state *states; /* of each rank */
	char *samples;		   /* two of each rank, see perf_rank_share */
	size_t size;		   /* of all of it */
	uint32_t dump;		   /* the parent: say where you hang, and end */
	int info_ready;		   /* release by rank 0, acquire by the parent: what the header says */
	char device[64];
	double others_cpu; /* by rank 0, ordered by its end: CPU seconds of ranks on this machine that are not our
			      children */
	uint32_t id_ready; /* release by rank 0 */
	struct gantry_unique_id id;
};

/* One rank: a process or a thread. Owned by it. An operation's own struct begins with it. */
struct perf_rank {
	int rank, nranks;
	const struct perf_comm_opts *opts; /* borrowed */
	struct perf_comm_shared *shared;   /* borrowed */
	struct perf_state *state;	   /* in shared */
	struct gantry_device *dev;
	struct gantry_stream *stream;
	struct gantry_comm *comm;
	char *box; /* device memory for samples; only when started by a launcher */
	uint64_t syncs;
	cpu_set_t all_cpus; /* before pinning */
	int all_cpus_known;
};

/* What is measured. The functions run in a rank and get its struct. */
struct perf_comm_op {
	const char *program; /* "gantry perf sendrecv" */
	const char *unit;    /* of progress: "groups" */
	size_t rank_size, sample_size;
	gantry_result (*work)(void *rank); /* the communicator is there */
	void (*deregister)(void *rank);	   /* what was registered with it; also when half of it was done */
	void (*free)(void *rank);	   /* there is no communicator any more */
};

/* ---- the parent ---- */

/* After options_parse. 0, or 1 + the exit status, after a line on stderr. Does not look at the environment. */
int perf_comm_check(const struct option_set *set, struct perf_comm_opts *o);
/* Rank and size, if a launcher started this process; the options' variables; parameters. -1: wrong, and reported. */
int perf_comm_environment(const struct option_set *set, struct perf_comm_opts *o);
/* Shared memory with own_size bytes for the operation; NULL after a line on stderr. */
struct perf_comm_shared *perf_comm_map(const struct perf_comm_op *op, const struct perf_comm_opts *o, size_t own_size);
void perf_comm_unmap(struct perf_comm_shared *sh);
/* Runs the ranks; print as in perf_ranks.h, with the struct above. 0, or 1 after a line on stderr. */
int perf_comm_run(struct perf_comm_shared *sh, size_t rows, void (*print)(void *shared, struct perf_ranks *p));

/* ---- a rank ---- */

/* Its whole life, with a struct of rank_size bytes that is zeroed but for what perf_rank_init sets; its error, if any,
 * is in its state afterwards. */
void perf_rank_init(struct perf_rank *rk, struct perf_comm_shared *sh, int rank);
gantry_result perf_rank_run(struct perf_rank *rk);
/* Waits for all ranks. */
gantry_result perf_rank_sync(struct perf_rank *rk);
/* The same, and afterwards perf_sample_of gives what each rank brought with it, until the next but one. */
gantry_result perf_rank_share(struct perf_rank *rk, const void *sample); /* NULL: zeroes */
const void *perf_sample_of(const struct perf_rank *rk, int rank);
/* Waits for the stream, but not after an error of the communicator. */
gantry_result perf_rank_wait(struct perf_rank *rk);
/* Until all that was enqueued is done; an error of the communicator is an error here. */
gantry_result perf_rank_finish(struct perf_rank *rk);
/* This rank's threads from here on: on its part of the CPUs, or on all. */
void perf_rank_pin(struct perf_rank *rk, int on);
/* Device memory that is there, page by page; NULL where size is 0. */
gantry_result perf_rank_alloc(struct perf_rank *rk, size_t size, void **ret_ptr);

/* ---- what the counters say ---- */

/* "ptr", "ptr+normal", "none": what steps were counted. */
void perf_comm_mode_name(const struct gantry_comm_counters *c, char *buf, size_t len);
void perf_comm_proto_name(const struct gantry_comm_counters *c, char *buf, size_t len);
/* Adds or, with a sign of -1, subtracts d word by word. */
void perf_comm_counters_add(struct gantry_comm_counters *c, const struct gantry_comm_counters *d, int sign);
/* How often a message was copied. Bytes, because messages may be cut into steps. */
double perf_comm_copies(uint64_t copied, uint64_t bytes);
/* Adds names, joined by "+", to such a list, each once. */
void perf_comm_join(char *list, size_t len, const char *names);

#endif
