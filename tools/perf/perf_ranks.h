/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a measurement, and the parent that watches them; for `perf net`, `perf sendrecv` and `perf rx`.
 *
 * The parent forks before any thread, network object or GPU context exists, and then only sleeps, prints and watches. A
 * rank that fails writes the reason into its state; others may then fail too or wait for ever. The parent reports the
 * first reason and ends the rest, and calls it a hang when nothing has moved for the timeout. Ranks die with the parent
 * (PR_SET_PDEATHSIG), so that no way of ending the tool leaves a process behind.
 */
#ifndef GANTRY_TOOLS_PERF_RANKS_H
#define GANTRY_TOOLS_PERF_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "gantry/result.h"

/* What a rank tells the others and the parent: in shared memory, written by that rank only. */
struct perf_state {
	uint64_t arrived __attribute__((aligned(128)));	 /* release/acquire: barriers this rank has reached */
	uint64_t progress __attribute__((aligned(128))); /* relaxed: units of work, for the watchdog */
	const char *phase; /* relaxed; a literal, so its address means the same in every process */
	uint64_t phase_bytes;
	int alone; /* relaxed: the other machine is not there yet, and what fails is not a rank's */
	char error[512];
	uint64_t error_ns; /* release by the rank, acquire by the parent: when error was written; 0: there is none */
};

static inline struct perf_state *perf_state_of(struct perf_state *states, size_t stride, int rank)
{
	return (struct perf_state *)((char *)states + stride * (size_t)rank);
}
static inline void perf_phase(struct perf_state *s, const char *what, uint64_t bytes)
{
	store_relaxed(&s->phase, what);
	store_relaxed(&s->phase_bytes, bytes);
}
static inline void perf_progress(struct perf_state *s)
{
	store_relaxed(&s->progress, s->progress + 1);
}
/* Keeps why this rank has failed: gantry_last_error, or what r means. */
void perf_fail(struct perf_state *s, gantry_result r);

struct perf_ranks {
	const char *program;	   /* "gantry perf net" */
	const char *unit;	   /* of progress: "messages" */
	int first, count;	   /* the ranks that run here */
	int together;		   /* in one process */
	int tidy;		   /* processes end by exit, not by _exit: what runs then has its turn */
	int signals;		   /* SIGINT, SIGTERM and SIGHUP end the measurement in order */
	uint64_t more_ns;	   /* beyond the timeout, until the first progress */
	size_t rows;		   /* 0: nothing is shown on a terminal while a row takes long */
	struct perf_state *states; /* that of rank 0; in shared memory, as all of them */
	size_t stride;		   /* bytes from one to the next */
	void *ctx;
	/* In the new process: runs n ranks from `first` on. 0: all went well. */
	int (*run)(void *ctx, int first, int n);
	/* In the parent, now and then: prints what is there to be printed. Before it does, it calls perf_ranks_clear. */
	void (*print)(void *ctx, struct perf_ranks *p);
	uint64_t (*timeout)(void *ctx); /* ns without progress that are a hang; 0: nothing is */
	void (*ask)(void *ctx);		/* before a hang is reported: lets ranks say where they are; may be NULL */
	/* Its own, and results. */
	struct perf_child *children;
	int nchildren;
	int ended_by; /* by `signals` */
	int shown;    /* a line about progress stands on the terminal */
	uint64_t shown_ns;
	size_t printed; /* rows, by print */
};

/*
 * Settings that every rank would refuse, looked at before any is started: one message, and the exit status of wrong
 * usage, instead of a failure of each. The secret, the interfaces, the plugin's file, the transports. plugin: that of the
 * network, NULL or "" for Gantry's own. transport: names that may be used, NULL: no communicator is made. 0, or -1 after
 * a line on stderr.
 */
int perf_preflight(const char *program, const char *plugin, const char *transport);
/* Forks, watches, reaps. Returns 0, or 1 after a line on stderr about the first failure. */
int perf_ranks_run(struct perf_ranks *p);
void perf_ranks_clear(struct perf_ranks *p);
/* Memory that the parent and the ranks share, zeroed; NULL after a line on stderr. */
void *perf_ranks_map(const char *program, size_t size);

/* In a rank: waits until all are here, and then sees what they have written. The parent ends this process if that never
 * happens. */
void perf_ranks_meet(struct perf_state *me, struct perf_state *states, size_t stride, int nranks);

/* This process keeps to its part of the CPUs, if each of the ranks can have one. */
void perf_keep_to_part(int rank, int nranks);

#endif
