/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer that is a process of its own: it serves any number of jobs at once, in the calls of one thread.
 *
 *   asked by the first rank ──> GATHERS ── all ranks are connected ──> WORKS ── all have closed ──> gone
 *                                                                        └── one is lost: FAILED, until the others close
 *                                  └────── not within GANTRY_CONNECT_TIMEOUT ──────────────────────> gone
 *
 * Jobs are apart: each has its id, its listener and connections, its buffers (group.h). They take turns, with one piece of
 * reduction at most. Memory is counted when a job is asked for, and bounded, for a job and for all together: a job beyond
 * that is refused, with the reason for its ranks. A job's own buffers bound what its ranks send.
 *
 * Belongs to one thread; the loop's thread accepts joining ranks, and reads counters, under loop_mu. One per process.
 */
#ifndef GANTRY_REDUCER_SERVER_H
#define GANTRY_REDUCER_SERVER_H

#include "inet/nic.h"
#include "reducer/group.h"

struct reducer_server;

/* What has happened. Texts are borrowed for the call. */
enum reducer_event_kind {
	REDUCER_EVENT_ASKED,   /* a job: its first rank is here */
	REDUCER_EVENT_BEGUN,   /* all of its ranks are */
	REDUCER_EVENT_ENDED,   /* they have closed */
	REDUCER_EVENT_FAILED,  /* text: why */
	REDUCER_EVENT_REFUSED, /* the same */
	REDUCER_EVENTS
};
struct reducer_event {
	enum reducer_event_kind kind;
	uint64_t job;
	uint32_t ranks;
	uint64_t pieces, received, sent; /* bytes */
	uint64_t ns;			 /* since all of its ranks were there */
	const char *text;		 /* "" if there is nothing to say */
};

struct reducer_server_config {
	struct gantry_addr listen;		     /* where ranks ask; with a port */
	uint64_t memory, job_memory;		     /* bytes: for all jobs, for one */
	void (*tell)(const struct reducer_event *e); /* NULL: not reported */
};

struct reducer_server_status {
	uint32_t jobs, gathering;	 /* now; of these: those whose ranks are not all here */
	uint64_t memory;		 /* bytes that these have */
	uint64_t begun, failed, refused; /* jobs since the beginning */
	uint64_t pieces, received, sent; /* of all jobs since then */
};

gantry_result reducer_server_open(const struct reducer_server_config *config, struct reducer_server **ret_server);
/* Does what can be done. How much that was: 0 is nothing. */
uint32_t reducer_server_step(struct reducer_server *s);
/* Until there may be something to do, or for so long. moved: result of the last step. */
void reducer_server_wait(struct reducer_server *s, uint32_t moved, uint64_t max_ns);
void reducer_server_status(const struct reducer_server *s, struct reducer_server_status *ret);
/* All ranks of all jobs are notified, and it ends when they have closed, or after a second. NULL is fine. */
void reducer_server_close(struct reducer_server *s);

#endif
