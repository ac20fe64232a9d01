/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stall reports (docs/stall.md) of several ranks, and what follows from them.
 *
 *   stall_judge.c  the verdict over ranks, and over processes without a communicator
 *   stall_ask.c    reports of a job that runs, on request
 *   cmd_stall.c    lines become communicators, ranks and connections; the command
 */
#ifndef GANTRY_TOOLS_STALL_SET_H
#define GANTRY_TOOLS_STALL_SET_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/json_read.h"
#include "common/options.h"

enum stall_waits {
	STALL_NONE,
	STALL_KERNEL,
	STALL_PROXY,
	STALL_PEER,
	STALL_SOCKET,
	STALL_FLUSH,
	STALL_SPACE,
	STALL_WAITS
};
extern const char *const stall_waits_names[STALL_WAITS];

/* The collective that an end is in. */
struct stall_coll {
	int64_t number; /* the same on all ranks; 0: it is in none */
	char text[128]; /* "all_reduce #17 (1 MiB float sum, ring, simple)" */
	char place[64]; /* ", step 3 of 6, chunk 1"; "": not known */
};

/* One end of a connection. */
struct stall_conn {
	int peer, send, channel;
	int connecting, pending;
	enum stall_waits waits;
	int64_t wait_ms, calls, step;
	uint64_t moved; /* a sum of counters that only grow */
	char transport[16], phase[16];
	char peer_host[64];
	int64_t peer_pid;
	struct stall_coll coll;
};

struct stall_rank {
	int rank;
	char host[64];
	int64_t pid;
	int64_t time_ns; /* by the clock that all ranks share */
	char error[24];	 /* "OK", "ERR_PEER_LOST", ... */
	int error_rank;
	char error_host[64];
	char text[256];
	int64_t launches;
	int64_t collectives;	  /* called so far; -1: not known */
	struct stall_conn *conns; /* owned */
	size_t nconns;
};

struct stall_comm {
	char id[20];
	int nranks;
	struct stall_rank *ranks; /* owned: those that have a report, in no order */
	size_t nreports;
	int moved; /* of a job that was asked: how many of them have moved meanwhile */
};

/* Requests of one direction of a connection. */
struct stall_wait {
	int send;
	enum stall_waits waits;
	int silent; /* no sign of life from the peer for heard_ms */
	int64_t requests, tag, bytes, wait_ms, heard_ms;
	char peer[160];
};

/* A process without a communicator. */
/* The oldest request of remote memory access that is not done. */
struct stall_rma {
	char what[24]; /* "put with signal" */
	int rank, peer, context;
	int64_t bytes, signal, wait_ms; /* signal: its offset; -1: none */
};

struct stall_process {
	char user[16], host[64];
	int64_t pid, time_ns;
	struct stall_wait *waits; /* owned */
	size_t nwaits;
	struct stall_rma *rmas; /* owned: one of each communicator */
	size_t nrmas;
};

/* A rank of NCCL's, and the process that it is. */
struct stall_member {
	char comm[20], host[64];
	int rank, nranks;
	int64_t pid;
	int64_t collectives; /* called so far */
	char last[128];	     /* the last one; "": not known */
};

/* Zeroed is empty. */
struct stall_set {
	struct stall_comm *comms; /* owned */
	size_t ncomms;
	struct stall_process *processes; /* owned */
	size_t nprocesses;
	struct stall_member *members; /* owned */
	size_t nmembers;
	size_t comm_at, rank_at, process_at; /* where lines of connections or requests belong; see `here` */
	int asked; /* every process that can report has reported; waits are those that last (stall_settle) */
	int here;  /* 0: nowhere; 1: a rank; 2: a report that is older than what we have; 3: a process */
};

/* A line of a report; NULL or what is wrong with it. ctx: a struct stall_set. */
const char *stall_take(void *set, const struct json_doc *line);
/* The lines of another file follow. */
void stall_next_file(struct stall_set *set);
void stall_free(struct stall_set *set);
int stall_is_report(const struct dirent *e); /* of a folder's files */
int stall_read(void *set, const char *path); /* 1: read; else the reason is on standard error */
/* NULL: it has no report. */
struct stall_rank *stall_find(const struct stall_comm *c, int rank);
struct stall_comm *stall_find_comm(const struct stall_set *set, const char *id);
struct stall_process *stall_find_process(const struct stall_set *set, const char *host, int64_t pid);

struct stall_verdict {
	char text[1024];
	int rank; /* the culprit, or one of them; -1: none */
	const char *
		cause; /* died, stopped, unreachable, failed, mismatch, missing call, deadlock, network, slow, no report,
			   none */
	int votes;     /* ranks whose reports say so */
	int reports;
	/* Of processes: the communicator that rank is of; "", 0: it is not known. */
	char comm[20];
	int nranks;
};
void stall_judge(const struct stall_set *set, size_t comm, struct stall_verdict *ret);

/* A process that is waited for and is silent, or has no report of its own, or has not made a call. */
void stall_judge_processes(const struct stall_set *set, struct stall_verdict *ret);
void stall_print_processes(const struct stall_set *set, FILE *f);

/* Has all processes that write to the folders report, three times; what does not move is left in *ret. 1: all was read. */
int stall_ask(const struct option_words *folders, struct stall_set *ret);
/* Of three sets of reports, one after the other, the one in the middle keeps the waits that last through all. */
void stall_settle(struct stall_set *set, const struct stall_set *first, const struct stall_set *last);

void stall_print_waits(const struct stall_comm *c, FILE *f);

#endif
