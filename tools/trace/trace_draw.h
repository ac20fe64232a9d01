/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What draws the picture of a trace.
 *
 *   trace_draw.c  communicators, links and lanes; Chrome's format
 *   trace_nccl.c  data of NCCL's profiler interface: calls, steps of the proxy, requests
 */
#ifndef GANTRY_TOOLS_TRACE_DRAW_H
#define GANTRY_TOOLS_TRACE_DRAW_H

#include "base/json.h"
#include "trace/trace_set.h"

struct open;
struct track;
struct nccl_view;

/* One file being drawn. */
struct draw {
	struct gantry_json *j;
	const struct trace_file *f;
	int process;
	int links;	   /* no other file has drawn the links of this process */
	int64_t zero;	   /* ns: where the picture begins */
	struct open *open; /* owned: room for all events */
	size_t nopen;
	struct track *tracks; /* owned: room for all connections, all events and the process */
	size_t ntracks;
	int64_t *next_track;	/* of the whole picture */
	struct nccl_view *nccl; /* owned; NULL: nothing of NCCL's in it, or no memory */
};

/* Each event begins a line. It is left open. */
void trace_begin_event(struct gantry_json *j, const char *ph, const char *name, int process, int64_t track);
void trace_put_name(struct gantry_json *j, const char *what, int process, int64_t track, const char *name);
/* Its arguments, and itself. */
void trace_end_event(const struct draw *d);
/* Nanoseconds, not negative, as microseconds. */
void trace_put_us(struct gantry_json *j, const char *key, int64_t ns);

struct nccl_view *trace_nccl_open(const struct trace_file *f);
void trace_nccl_free(struct nccl_view *v);
void trace_nccl_draw(struct draw *d);
/* Which step a link's message belongs to, if it is one of NCCL's. */
void trace_nccl_args(const struct draw *d, const struct trace_event *post);
/* The rank of its largest communicator; NULL: none is known. */
const struct trace_rank *trace_nccl_rank(const struct trace_file *f);

#endif
