/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counters of this process at any time: a Unix socket per process, which answers HTTP's GET with the text of
 * base/metrics.h. `gantry top` reads it, curl does, and Prometheus' scrapers through a proxy. docs/counters.md
 * describes it.
 *
 * The loop's thread serves it, as one more client (loop.h), and only while there is a source of counters. Sources are
 * asked under loop_mu and take no lock that is held for long; the text is made and sent without it. A reader that is
 * slow, or says nothing, is closed after a while; more readers than there are places close the oldest.
 *
 * The socket is GANTRY_STATS_DIR/<pid>-<random>.sock, readable by its owner. It is made whole under another name, so one
 * that refuses a connection is dead for good: a process that starts removes those of processes that were killed.
 */
#ifndef GANTRY_INET_STATS_H
#define GANTRY_INET_STATS_H

#include "base/list.h"
#include "base/metrics.h"
#include "inet/loop.h"

/* A provider of counters. Static, as the loop's clients are. */
struct inet_stats_source {
	void (*collect)(struct gantry_metrics *m); /* under loop_mu */
	int passive;				   /* shown while others are, and no reason to run for */
	struct gantry_list node;		   /* of stats.c */
};

/* Idempotent, both. While there is a source that is not passive the process is served, unless GANTRY_STATS_DIR is off. */
void inet_stats_add(struct inet_stats_source *s) REQUIRES(loop_mu);
void inet_stats_remove(struct inet_stats_source *s) REQUIRES(loop_mu);

/* Where the sockets of this user are: GANTRY_STATS_DIR or its default. 0: nowhere, it is off. */
int inet_stats_dir(char *ret_dir, size_t len);
/* Connects to such a socket; the descriptor does not block. -1 with errno; ECONNREFUSED: its process is gone. */
int inet_stats_connect(const char *path);

#endif
