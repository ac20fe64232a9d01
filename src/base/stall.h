/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stall reports of processes without a communicator: NCCL with the plugin, gantry/rx.h, perf net. Whoever has requests
 * that do not move looks itself, when GANTRY_STALL_DIR is set, and tells what it saw here. docs/stall.md has the
 * fields; `gantry stall` reads them. Communicators have their own, comm/report.h.
 */
#ifndef GANTRY_BASE_STALL_H
#define GANTRY_BASE_STALL_H

#include <stddef.h>
#include <stdint.h>

/* Requests of one direction of a connection. */
struct gantry_stall_wait {
	char peer[160];
	const char *waits_for; /* borrowed, static: peer, socket, flush, kernel */
	int send;
	uint32_t requests;
	uint64_t tag, bytes; /* of the oldest */
	uint64_t wait_ns;    /* since one of them last moved */
};

/* GANTRY_STALL in ns; 0: stalls are not looked for, or there is no GANTRY_STALL_DIR. */
uint64_t gantry_stall_after(void);
/* How often to look for them. */
uint64_t gantry_stall_interval(void);
/* One line in the log, and GANTRY_STALL_DIR/stall-<host>-<pid>.jsonl. user: who has the requests. Writes a file: no
 * lock that others wait for. */
void gantry_stall_tell(const char *user, const struct gantry_stall_wait *waits, size_t n);

/* What ranks of NCCL this process has (base/ranks.h), to GANTRY_STALL_DIR/rank-<host>-<pid>.jsonl: one that is stopped
 * later cannot say it any more. */
void gantry_stall_write_ranks(void);

#endif
