/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress engine: one thread per process (or per device, GANTRY_PROXY_PER_DEVICE) that moves the steps of all
 * proxied connections of all communicators. CPU threads that run kernels and wait for it do its work meanwhile, one
 * thread at a time (gantry_proxy_drive).
 *
 *   caller --append(batch)--> lock-free stack --taken whole, reversed--> per-connection queues --> ready list
 *
 * A connection is on the ready list while it has operations; idle ones cost nothing. The thread passes over the ready
 * list, calls each connection's proxy_progress, and backs off when nothing moved: spin, yield, then sleep at its
 * eventcount. It sleeps without limit only when no operation is in flight; with operations in flight it looks again
 * after at most GANTRY_PROXY_SLEEP (sockets and GPUs do not ring).
 *
 * A group is a communicator's share: its connections, its abort flag and its first error. An error of one connection
 * ends the operations of its group and of no other.
 */
#ifndef GANTRY_PROXY_PROXY_H
#define GANTRY_PROXY_PROXY_H

#include <stddef.h>
#include <stdint.h>

#include "proxy/proxy_conn.h"

/* The engine for a device: the process's, or the device's own. Counted; the last release ends the thread, in bounded
 * time. The thread is pinned to the CPUs of the device's NUMA node when hwloc is there and GANTRY_PROXY_PIN is on. */
gantry_result gantry_proxy_get(struct gantry_device *dev, struct gantry_proxy **ret_proxy);
void gantry_proxy_put(struct gantry_proxy *p);
struct gantry_eventcount *gantry_proxy_eventcount(struct gantry_proxy *p);

/* on_error: called once by the progress thread with the first error, the peer's rank (-1: unknown) and a line of text.
 * It may append operations, but neither wait for the thread nor destroy a group. */
struct gantry_proxy_group_config {
	/* Borrowed: nonzero ends all operations of the group with ERR_ABORTED. Seen within GANTRY_PROXY_SLEEP, or at
	 * once if it is stored sequentially consistently and the engine's eventcount is notified. */
	const uint32_t *abort;
	void (*on_error)(void *ctx, gantry_result r, int peer, const char *text);
	void *ctx;
	int any_thread; /* its connections may be moved by whichever thread drives */
	/* Borrowed: while it is nonzero (release) nothing of the group is moved, because a thread uses its connections by
	 * itself (transport/direct.h). Operations wait; none is there when it is set. NULL: that never happens. */
	const uint32_t *held;
};
gantry_result gantry_proxy_group_create(struct gantry_proxy *p, const struct gantry_proxy_group_config *config,
					struct gantry_proxy_group **ret_group);
/* Ends its operations at once; returns when the progress thread no longer touches any of its connections. Bounded: the
 * thread never blocks. The connections themselves are freed by their owner afterwards. */
void gantry_proxy_group_destroy(struct gantry_proxy_group *g);
gantry_result gantry_proxy_group_error(const struct gantry_proxy_group *g); /* OK: none yet */
/* Its connections are moved by the progress thread alone from here on: before one of them has operations that must be. */
void gantry_proxy_group_bind(struct gantry_proxy_group *g);
/* Operations appended and not yet finished. */
uint64_t gantry_proxy_group_pending(const struct gantry_proxy_group *g);

/* A connection's proxy half; side, resources and fifo are filled in by the transport. */
gantry_result gantry_proxy_conn_create(struct gantry_proxy *p, struct gantry_proxy_group *g, struct gantry_connector *c,
				       struct gantry_proxy_conn **ret_conn);
/* After its group was destroyed, or before it had operations. */
void gantry_proxy_conn_destroy(struct gantry_proxy_conn *pc);

/* Takes n operations from the pool (all or none; grows the pool when it is empty), chained through next. */
gantry_result gantry_proxy_ops_get(struct gantry_proxy *p, uint32_t n, struct gantry_proxy_op **ret_first);
/* Gives back a chain that was not appended. */
void gantry_proxy_ops_put(struct gantry_proxy *p, struct gantry_proxy_op *first);
/* Appends a chain in order and wakes the thread: one atomic exchange and at most one wake-up for all of it. */
void gantry_proxy_append(struct gantry_proxy *p, struct gantry_proxy_op *first, struct gantry_proxy_op *last);
/* Without a wake-up: for a kernel that drives (device/help.h), by gantry_proxy_drive, until gantry_proxy_leave. */
void gantry_proxy_push(struct gantry_proxy *p, struct gantry_proxy_op *first, struct gantry_proxy_op *last);
/* Of a group, as gantry_help has them: a pass in the place of the progress thread's, if no other thread is in one; then
 * wakes the thread if operations of the group are left. */
int gantry_proxy_drive(void *group);
void gantry_proxy_leave(void *group);

/* A connection as other threads may see it. Words are right each by itself; together they are a moment's blur. */
struct gantry_proxy_conn_view {
	uint64_t posted, moved, flushed, done, end;
	uint64_t bytes, steps, ops, copies;
	uint64_t wait_ticks[GANTRY_WAIT_CAUSES]; /* the wait that is going on included */
	uint64_t progress_ns;			 /* when a step last moved, or the first operation came */
	int busy;				 /* it has operations */
	int waits;				 /* for waits_for */
	enum gantry_wait_cause waits_for;
	uint32_t op; /* id of the oldest operation, if busy */
};
/* From any thread while the connection lives. */
void gantry_proxy_conn_look(const struct gantry_proxy_conn *pc, struct gantry_proxy_conn_view *ret);

/* How the thread spent its life; for perf and tests. */
struct gantry_proxy_stats {
	uint64_t passes, worked, sleeps, wakes, batches, ops;
};
void gantry_proxy_get_stats(struct gantry_proxy *p, struct gantry_proxy_stats *ret);

/* ---- between proxy.c, engine.c and steps.c ---- */

enum { CACHE_LINE = 64 };

/* A word with one writer that others read: no order, no tearing. */
#define GET(x) load_relaxed(&(x))
#define PUT(x, v) store_relaxed(&(x), (v))
#define ADD(x, v) PUT(x, (x) + (v))

/* gantry_proxy_offered, with the mode: NORMAL if the step shall go to the proxy's own memory. */
int gantry_proxy_offered_as(struct gantry_proxy_conn *pc, uint64_t step, uint32_t *ret_mode, uint64_t *ret_size,
			    uint64_t *ret_place);
void gantry_proxy_tell_head(struct gantry_proxy_conn *pc, uint64_t step);
void gantry_proxy_step_event(struct gantry_proxy_conn *pc, int kind, uint64_t step, const struct gantry_proxy_op *op,
			     uint32_t mode, uint64_t bytes);
/* The wait that gantry_proxy_waits began is over. */
void gantry_proxy_waits_end(struct gantry_proxy_conn *pc);

#endif
