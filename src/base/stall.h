/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stall reports of processes without a communicator: NCCL with the plugin, gantry/rx.h, perf net. When GANTRY_STALL_DIR
 * is set, the owner of requests checks itself whether they make progress and reports here what it found. docs/stall.md
 * has the fields; `gantry stall` reads them. Communicators have their own reports, comm/report.h.
 */
#ifndef GANTRY_BASE_STALL_H
#define GANTRY_BASE_STALL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/list.h"

/* Requests of one direction of a connection. */
struct gantry_stall_wait {
	char peer[160];
	const char *waits_for; /* borrowed, static: peer, socket, flush, kernel, release */
	int send;
	uint32_t requests;
	uint64_t tag, bytes; /* of the oldest */
	uint64_t wait_ns;    /* since one of them last moved */
	uint64_t heard_ns;   /* since the last sign of life from the peer */
	int silent;	     /* that is long: a peer that lives says something now and then */
};

/* GANTRY_STALL in ns; 0: stalls are not looked for, or there is no GANTRY_STALL_DIR. */
uint64_t gantry_stall_after(void);
/* How often to look for them. */
uint64_t gantry_stall_interval(void);
/* One line in the log, and GANTRY_STALL_DIR/stall-<host>-<pid>.jsonl. user: name of the owner of the requests. asked:
 * by a signal or a request; then there may be no waiting requests. Writes a file: call it without locks that other
 * threads wait for. */
void gantry_stall_tell(const char *user, const struct gantry_stall_wait *waits, size_t n, int asked);
/* Whatever else is under way in the process: adds lines to each report, without any lock. Owned by its user. */
struct gantry_stall_source {
	struct gantry_list node;
	void (*put)(struct gantry_stall_source *s, FILE *f);
};
void gantry_stall_add(struct gantry_stall_source *s);
void gantry_stall_remove(struct gantry_stall_source *s); /* after it, put is not called any more */
/* GANTRY_STALL_DIR/request: `gantry stall --ask` writes it, all processes that see the folder report then. 1: it has
 * changed since the last look; the first one only remembers it. */
struct gantry_stall_request {
	int looked;
	int64_t changed; /* ns */
};
int gantry_stall_requested(struct gantry_stall_request *seen);

/* What ranks of NCCL this process has (base/ranks.h), to GANTRY_STALL_DIR/rank-<host>-<pid>.jsonl: one that is stopped
 * later cannot say it any more. */
void gantry_stall_write_ranks(void);

#endif
