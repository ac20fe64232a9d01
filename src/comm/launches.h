/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches of a communicator: argument memory of those in flight, and their order: one after the other, whatever streams
 * they are on. The caller's thread has them, but for what the watchdog asks (comm_works_busy).
 */
#ifndef GANTRY_COMM_LAUNCHES_H
#define GANTRY_COMM_LAUNCHES_H

#include "comm/comm.h"

enum { COMM_WORKS = 256 }; /* launches in flight per communicator */

/* What a kernel works on. */
union comm_items {
	void *at;
	struct gantry_xfer *xfers;
	struct gantry_coll *colls; /* and behind them their shifts */
	struct gantry_put *puts;
};

/* Argument memory of one launch; free again when the last block has stored `expected` in finished. */
struct comm_work {
	union comm_items host, mapped;	  /* the same memory, as CPU and device address it */
	union comm_items dev;		  /* the same on the host device; else in the device's own */
	uint32_t *first_host, *first_dev; /* COMM_CHANNELS_MAX + 1 */
	uint32_t capacity;
	uint64_t *finished_host, *finished_dev;
	uint64_t *arrived;	      /* the device's: gantry_launch_end */
	uint64_t expected;	      /* launches with this memory since it was made */
	int captured;		      /* for a graph: graph.c. No host address of finished, no times */
	uint64_t *runs, *begun_dev;   /* captured: gantry_launch_end's */
	struct gantry_stream *stream; /* of the launch that it was last got for, */
	uint64_t number;	      /* its (stream_number), */
	int ordered;		      /* which waits for the launch before it, on another stream, by an event */
	/* Of the trace: NULL and 0 without one. */
	struct gantry_xfer_time *times_host, *times_dev;
	uint32_t ntimes;   /* of the last launch, not collected yet */
	uint64_t launched; /* ticks */
};

struct comm_launches {
	struct comm_work works[COMM_WORKS], works_first; /* the last: whose memory holds all that have not grown */
	struct {					 /* kept until the end, kernels may look at them */
		struct comm_work *works;
		uint32_t n;
	} outgrown;
	uint64_t count;	 /* of launches so far */
	uint32_t op_ids; /* of the proxy's operations: the last one that was given */
	int traced;	 /* GANTRY_TRACE: kernels keep times */
	/* Order of launches. */
	const struct gantry_stream *last_stream; /* only compared: the program may have destroyed it */
	struct comm_work *last_work;		 /* launched there, and knows its number */
	/* Launches go to several streams. This is recorded behind each one, for the next one elsewhere. */
	struct gantry_dev_event *behind;
	bool recorded;
	struct gantry_dev_event *join; /* group.c: of groups with several streams; NULL: there was none yet */
	bool in_turns;		       /* group.c: the group that is enqueued has other communicators, too */
};

/* Two halves: with comm_make, so that any thread may ask whether launches are busy, and with comm_start, its memory. */
gantry_result comm_launches_make(struct gantry_comm *comm);
gantry_result comm_launches_open(struct gantry_comm *comm);
/* Also a half-made one. No kernel is running. */
void comm_launches_free(struct gantry_comm *comm);
/*
 * A launch: argument memory is got, filled with items, and launched, with the operations of the proxy that it needs. On a
 * stream that is captured, getting and launching are graph.c's; the code that fills it is the same.
 *
 * The next argument memory with room for so many bytes of items; waits until it is free.
 */
gantry_result comm_work_get(struct gantry_comm *comm, size_t bytes, struct gantry_stream *stream,
			    struct comm_work **ret_work);
/* Launches a kernel whose arguments refer to that memory, after what the communicator has launched before. ntimes: of
 * its transfers. */
struct comm_launch {
	const struct gantry_kernel *kernel;
	const void *args;
	size_t args_size;
	uint32_t blocks, ntimes;
	struct gantry_proxy_op *ops;	      /* a chain, owned; NULL: none */
	int drives;			      /* result of comm_drives */
	struct gantry_eventcount *eventcount; /* what its one block sleeps on; NULL: the communicator's */
	uint32_t lanes;			      /* of a block on a GPU; 0: the kernel's default */
};
gantry_result comm_work_launch(struct gantry_comm *comm, struct comm_work *w, const struct comm_launch *launch);
/* The n transfers in it, sorted by block in first_host, on the communicator's connections or on others. */
gantry_result comm_launch_transfers(struct gantry_comm *comm, struct comm_work *w, uint32_t n,
				    struct gantry_proxy_op *ops, int drives);
/* For the kernel of the next launch with the work: what it must wait for (NULL: nothing), and how it reports its end. */
struct comm_order {
	const uint64_t *after;
	uint64_t after_value;
	struct gantry_launch_end end;
};
struct comm_order comm_work_order(const struct gantry_comm *comm, const struct comm_work *w);
/* Whether the kernels of a launch that moves so many bytes do the proxy's work while they wait: its operations are
 * appended without waking the proxy then. */
int comm_drives(const struct gantry_comm *comm, uint64_t bytes);
/* Launches that have not ended. */
int comm_works_busy(const struct gantry_comm *comm);
int comm_work_busy(const struct comm_work *w);

/* ---- graph.c ---- */

/* The two halves of a launch on a stream that is captured. */
gantry_result comm_graph_work(struct gantry_comm *comm, uint32_t capacity, struct gantry_stream *stream,
			      uint64_t capture, struct comm_work **ret_work);
gantry_result comm_graph_launch(struct gantry_comm *comm, struct comm_work *w, const struct gantry_launch *launch,
				struct gantry_proxy_op *ops);
/* While captured calls live, a plain launch waits for graphs before, has its operations appended by the stream, and graphs wait for
 * it after. */
bool comm_graphs_any_live(const struct comm_graphs *graphs);
static inline bool comm_graphs_live(const struct gantry_comm *comm)
{
	return comm->graphs && comm_graphs_any_live(comm->graphs);
}
gantry_result comm_graph_plain_wait(struct gantry_comm *comm, struct gantry_stream *stream);
gantry_result comm_graph_plain_append(struct gantry_comm *comm, struct gantry_stream *stream,
				      struct gantry_proxy_op *first, struct gantry_proxy_op *last);
gantry_result comm_graph_plain_record(struct gantry_comm *comm, struct gantry_stream *stream);

#endif
