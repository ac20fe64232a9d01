/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What threads other than the caller's may see of a communicator, and what they make of it:
 *
 *   report.c      one end of a connection at a moment, what it waits for; sums; all of it as JSON lines
 *   watch.c       the watchdog: notices stalls, reports on a signal
 *   comm_stats.c  counters of all communicators, for inet/stats.h
 *   comm_trace.c  the communicator's part of a trace (base/trace.h), and events that kernels make
 *
 * Ends appear while others look: arrays of them are published by a release (peer.c, open_direction), an end by its
 * stage. Until it is ready nothing but its stage, its peer and its transport is looked at.
 */
#ifndef GANTRY_COMM_REPORT_H
#define GANTRY_COMM_REPORT_H

#include <stdio.h>

#include "base/json.h"
#include "comm/comm_coll.h"
#include "inet/stats.h"

enum comm_waits {
	COMM_WAITS_NONE,
	COMM_WAITS_PROXY,  /* of this rank, and that says not why */
	COMM_WAITS_KERNEL, /* of this rank: it has not posted, offered or consumed. From here on as gantry_wait_cause */
	COMM_WAITS_PEER,
	COMM_WAITS_SOCKET,
	COMM_WAITS_FLUSH,
	COMM_WAITS_SPACE,
	COMM_WAITS_COUNT
};

/* One end of a connection. Words are right each by itself; together they are a moment's blur. */
struct comm_end {
	const struct comm_conn *conn; /* borrowed; NULL: not ready yet */
	const struct gantry_transport *transport;
	int at; /* of comm_next_end */
	int peer, send, channel;
	int connecting; /* a call waits until the peer's call comes, or the transports meet */
	int proxied;
	int pending; /* work in flight, or cut off by an error */
	enum comm_waits waits;
	uint64_t wait_ns; /* 0: not known */
	uint32_t phase;	  /* enum gantry_kernel_phase */
	uint64_t step;
	uint32_t coll;	  /* which collective that is in; 0: none */
	uint64_t coll_at; /* GANTRY_COLL_AT */
	int has_words;	  /* head and tail could be read */
	uint64_t head, tail;
	struct gantry_proxy_conn_view proxy; /* zero if there is none */
	uint64_t calls;			     /* transfers planned so far: both ends count alike */
	uint64_t bytes, copies, copied;	     /* copies: of kernel and proxy */
	uint64_t unpacked, reduced;	     /* as in gantry_conn_state */
	uint64_t by[GANTRY_PROTOS][GANTRY_MODES];
	uint64_t waited_ns[GANTRY_COMM_WAITS];
};
/* The next one; 0: there is none. */
int comm_next_end(struct gantry_comm *comm, struct comm_end *e);
#define COMM_EACH_END(comm, e) for (struct comm_end e = {0}; comm_next_end(comm, &e);)
/* A number that changes whenever anything of the communicator moves, and how many ends are connecting. */
uint64_t comm_look_sum(struct gantry_comm *comm, int *ret_connecting);
/* Launches that have not ended, from any thread. */
int comm_look_launches(struct gantry_comm *comm);

const char *comm_waits_name(enum comm_waits w);
/* By enum comm_path. */
void comm_paths(const struct gantry_comm *comm, uint64_t ret[COMM_PATHS]);
const char *comm_path_name(int path);
const char *comm_wait_cause_name(int cause); /* enum gantry_comm_wait */
/* "waited_us":{"data":3,...}: what is not zero. */
void comm_json_waited(struct gantry_json *j, const uint64_t ns[GANTRY_COMM_WAITS]);

/* note.c: what collectives are. */
struct comm_coll_view {
	uint64_t number, bytes;
	uint64_t at; /* GANTRY_COLL_AT; 0: not known */
	unsigned kind;
	uint32_t op_id;
	int root;				     /* -1: it has none */
	const char *name, *type, *op, *algo, *proto; /* "": it has none */
};
/* The next collective is this one; its number. op: of the proxy's operations, or 0. */
uint32_t comm_note(struct gantry_comm *comm, const struct comm_collective *coll, uint32_t op);
const char *comm_kind_name(unsigned kind);
const char *comm_type_name(unsigned type);
/* The same in 32 bits, and their names: for events. */
uint32_t comm_note_what(const struct comm_note *n);
void comm_put_what(struct gantry_json *j, uint32_t what);
/* By the lower half of its number; what an end is at. 0: not known, or nothing. */
int comm_coll_find(const struct gantry_comm *comm, uint32_t number, struct comm_coll_view *ret);
int comm_coll_look(const struct gantry_comm *comm, const struct comm_end *e, struct comm_coll_view *ret);
/* "all_reduce #17 (1 MiB float sum, ring, simple), step 3 of 6, chunk 1" */
enum { COMM_COLL_TEXT = 160 };
const char *comm_coll_text(const struct comm_coll_view *v, char buf[COMM_COLL_TEXT]);
/* "by":{"simple normal":3,...}: what is not zero. */
void comm_json_steps(struct gantry_json *j, const uint64_t by[GANTRY_PROTOS][GANTRY_MODES]);
/* gantry_comm_report for gantry_file_write: says nothing of a file that is full. */
void comm_report_put(void *comm, FILE *f);

/* comm_trace.c. The number of a connection in events and tables, the same for proxy and kernels, unique in the process: for
 * comm_conn.id, once the proxy half is made. */
uint32_t comm_trace_conn_id(const struct gantry_connector *c);
/* A transfer goes to the kernels: an event. */
void comm_trace_xfer(const struct comm_conn *cc, uint32_t op, const struct gantry_xfer *x);
/* With launches->traced only. The share of a channel in the collective that was noted last. */
void comm_times_coll(struct gantry_comm *comm, struct gantry_xfer_time *t, uint32_t channel);
/* With launches->traced only. What becomes of a transfer that is planned. */
void comm_times_plan(struct gantry_xfer_time *t, const struct comm_conn *cc, uint32_t op, const struct gantry_xfer *x);
/* Puts the events of launches that have ended; all: also what others have begun. The caller's thread. */
void comm_times_collect(struct gantry_comm *comm, int all);
/* If GANTRY_TRACE is set: the events of the process. While the connections still are. */
void comm_trace_write(struct gantry_comm *comm);

/* comm_stats.c */
extern struct inet_stats_source comm_stats;
/* watch.c: the communicators of the process, none of which goes away meanwhile. NULL: the first; NULL: no more. */
struct gantry_comm *comm_watch_next(const struct gantry_comm *comm) REQUIRES(loop_mu);

#endif
