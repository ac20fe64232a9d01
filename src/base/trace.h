/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace of a process: its event ring as JSON lines, for GANTRY_TRACE. docs/stall.md has the fields; `gantry trace`
 * reads them.
 *
 *   {"kind":"trace",...}  once: identity, and what relates ticks, nanoseconds and the clocks of other hosts
 *   {"kind":"conn",...}   per connection of a communicator: the writer's affair
 *   {"kind":"track",...}  per channel of a communicator that has called collectives, likewise
 *   {"kind":"link",...}   per link of the network: its number in events, and its peer
 *   {"kind":"event",...}  per event, oldest first; those of other users of the process too
 *
 * A process with communicators writes one file for each, when it is destroyed. A process without (NCCL's plugin,
 * gantry/rx.h, perf net) writes one when its last connection closes, and when it exits with some open.
 *
 * Clocks. Events are stamped in ticks. A point is ticks and nanoseconds read together; a straight line through the
 * first and one of now turns the one into the other. The offset to a clock that all ranks of a communicator share makes
 * their times comparable; processes without ranks have the time of day for that.
 */
#ifndef GANTRY_BASE_TRACE_H
#define GANTRY_BASE_TRACE_H

#include <stdint.h>
#include <stdio.h>

#include "base/atomic.h"
#include "base/json.h"
#include "gantry/fifo.h"

/* By enum gantry_proto and gantry_mode. */
extern const char *const gantry_trace_proto_names[GANTRY_PROTOS], *const gantry_trace_mode_names[GANTRY_MODES];

/* What stands in the upper half of b of such an event: "step", "tag"; NULL: nothing. */
const char *gantry_trace_upper(uint32_t kind);

/* GANTRY_TRACE is set and recording has begun: events that would otherwise cost too much are recorded too. */
extern int gantry_trace_state;
static inline int gantry_trace_on(void)
{
	return load_relaxed(&gantry_trace_state);
}

/* Once the parameters are loaded; a point of the two clocks: the earlier the better the trace's times. */
void gantry_trace_begin(void);
/* A communicator is there: it writes the traces of this process. */
void gantry_trace_own(void);
/* A link has come up. */
void gantry_trace_link(uint32_t link, const char *peer);

struct gantry_trace_who {
	uint64_t comm;
	int rank, nranks; /* -1, 0: a process without a communicator */
	const char *host; /* borrowed */
	int64_t clock_offset_ns;
	void (*put_conns)(void *ctx, FILE *f); /* NULL: none */
	void *ctx;
	void (*put_what)(struct gantry_json *j, uint32_t what); /* of collectives; NULL: nothing */
};
/* If GANTRY_TRACE is set. */
void gantry_trace_write(const struct gantry_trace_who *owner);
/* The same for a process without any communicator; does nothing otherwise. */
void gantry_trace_write_process(void);

#endif
