/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of ranks (docs/stall.md) and the picture made of them.
 */
#ifndef GANTRY_TOOLS_TRACE_SET_H
#define GANTRY_TOOLS_TRACE_SET_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/json_read.h"
#include "gantry/fifo.h"

struct trace_conn {
	int64_t id; /* in events */
	int peer, send, channel;
	char transport[16];
	int64_t calls, bytes, copies;
	int64_t by[GANTRY_PROTOS][GANTRY_MODES]; /* steps */
};

struct trace_event {
	int64_t ns;	 /* on the clock that all ranks share */
	uint32_t kind;	 /* enum gantry_event_kind */
	int64_t v[3];	 /* its fields */
	int proto, mode; /* -1: it has none */
	int end, cut;	 /* PROXY_OP, KERNEL_OP, RMA; of PLUGIN, cut: an update */
	int64_t more;	 /* what gantry_trace_upper names; -1: it has none */
	/* Of a collective; "": it has none. */
	char coll[16], type[12], redop[8], algo[16];
	int lane;      /* of a chunk; -1: it has none */
	char what[16]; /* RMA */
	/* Data from NCCL: base/ranks.h. */
	int nccl, channel, send, root, state;
	int64_t step;
	int64_t context; /* RMA */
};

/* A communicator of NCCL's that the process has. */
struct trace_rank {
	int nccl; /* in events */
	int rank, nranks;
	char comm[20];
};

/* A channel of a communicator, in which collectives run. */
struct trace_track {
	int64_t id; /* in events */
	int channel;
};

struct trace_link {
	int64_t id; /* in events */
	char peer[128];
};

/* What one rank wrote, or a process that has none. */
struct trace_file {
	char comm[20], host[64];
	int rank, nranks; /* -1, 0: it has no communicator, and its clock is the time of day */
	int64_t pid;
	int64_t ns;	    /* at ticks0, with the offset to the shared clock */
	double ns_per_tick; /* the slope */
	int64_t ticks0;
	struct trace_conn *conns; /* owned */
	size_t nconns;
	struct trace_track *tracks; /* owned */
	size_t ntracks;
	struct trace_link *links; /* owned */
	size_t nlinks;
	struct trace_rank *ranks; /* owned */
	size_t nranks_of;
	struct trace_event *events; /* owned */
	size_t nevents;
};

/* Zeroed is empty. */
struct trace_set {
	struct trace_file *files; /* owned */
	size_t nfiles;
	int here;	/* the last file takes lines */
	size_t unknown; /* events of kinds that this version does not know */
};

/* 0, or -1 with one line that names file and line. */
int trace_read(struct trace_set *set, const char *path, char *why, size_t len);
/* One line of a trace; NULL or what is wrong with it. ctx: a struct trace_set. */
const char *trace_take(void *set, const struct json_doc *line);
void trace_free(struct trace_set *set);
void trace_write_chrome(const struct trace_set *set, FILE *out);
/* A line per connection: transfers, bytes, steps by protocol and mode. */
void trace_write_summary(const struct trace_set *set, int json, FILE *out);
/* trace_nccl.c: the same for NCCL's connections, with waiting times by cause. */
void trace_nccl_summary(const struct trace_file *f, int json, FILE *out);

#endif
