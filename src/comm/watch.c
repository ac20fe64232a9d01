/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watchdog, a client of the loop while there are communicators. It looks at them every min(1 s, GANTRY_STALL / 4),
 * when a report is wanted and on GANTRY_STALL_SIGNAL; all its work is to look, to log a line and to write a file.
 *
 *   stall    work is in flight and nothing moved for GANTRY_STALL     once, until something moves
 *   error    comm_watch_want                                          once
 *   symptom  comm_watch_cause: in every pass, and for no report       until its cause is known (cause.c)
 *   asked    every communicator of the process: GANTRY_STALL_SIGNAL,   each time
 *            or GANTRY_STALL_DIR/request is new
 *
 * loop_mu protects the list, and which communicator is looked at; it is not held while one is, because a file is
 * written then. A communicator that is looked at stays in the list: comm_watch_remove waits until the thread has put it
 * down.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/report.h"

#include <limits.h>
#include <stdlib.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/param.h"
#include "base/stall.h"
#include "base/text.h"
#include "base/trace.h"
#include "inet/asked.h"
#include "inet/loop.h"

enum { NAP_MAX_MS = 1000, NAP_MIN_MS = 5 };
enum { TOLD_ERROR = 1, TOLD_STALL = 2 }; /* report_written */

static struct {
	struct gantry_list comms GUARDED_BY(loop_mu);
	struct gantry_comm *held GUARDED_BY(loop_mu); /* the thread looks at it */
	uint64_t next GUARDED_BY(loop_mu);	      /* ns: the next look */
	int causes GUARDED_BY(loop_mu);		      /* some wait for a cause, which any pass may bring */
	uint32_t asked GUARDED_BY(loop_mu);	      /* signals seen */
	struct gantry_stall_request request GUARDED_BY(loop_mu);
	struct gantry_cond put_down;
} watch = {.comms = {&watch.comms, &watch.comms}};

/* ---- what it says ---- */

/* An end that waits for a peer is more informative than one that waits for its own kernel, proxy or memory. */
static int weigh_wait(enum comm_waits w)
{
	return w == COMM_WAITS_NONE ? 0 : w == COMM_WAITS_PEER || w == COMM_WAITS_SOCKET ? 2 : 1;
}

static void describe_wait(struct gantry_comm *comm, char *text, size_t len)
{
	struct comm_end named = {0}; /* of those that wait */
	const struct comm_end *e = &named;
	char more[48] = "", coll[COMM_COLL_TEXT] = "";
	struct comm_coll_view v;
	int n = 0;

	COMM_EACH_END (comm, end) {
		n += weigh_wait(end.waits) != 0;
		if (weigh_wait(end.waits) > weigh_wait(named.waits))
			named = end;
	}
	if (!n) {
		snprintf(text, len, "no connection is waiting; launches not started or still copying: %d",
			 comm_look_launches(comm));
		return;
	}
	if (n > 1)
		snprintf(more, sizeof(more), "; %d more connection%s", n - 1, n == 2 ? " waits" : "s wait");
	if (comm_coll_look(comm, e, &v))
		comm_coll_text(&v, coll);
	if (e->connecting)
		snprintf(text, len, "the %s rank %d (%s) waits for that rank's call, to connect by %s%s",
			 e->send ? "send to" : "receive from", e->peer, comm->infos[e->peer].host_name,
			 e->transport ? e->transport->name : "?", more);
	else
		snprintf(text, len, "the %s rank %d (%s) by %s, channel %d, waits for %s%s at step %llu%s%s%s",
			 e->send ? "send to" : "receive from", e->peer, comm->infos[e->peer].host_name,
			 e->transport ? e->transport->name : "?", e->channel,
			 e->waits == COMM_WAITS_PEER ? "that rank" : "its ",
			 e->waits == COMM_WAITS_PEER ? "" : comm_waits_name(e->waits), (unsigned long long)e->step,
			 *coll ? ", in " : "", coll, more);
}

/* `why` begins the line. */
static void tell_report(struct gantry_comm *comm, enum gantry_log_level level, const char *why)
{
	const char *dir = gantry_params()->stall_dir;
	char text[512], path[PATH_MAX];
	int written = 0;

	describe_wait(comm, text, sizeof(text)); /* before the file: that may take its time */
	if (*dir) {
		snprintf(path, sizeof(path), "%s/stall-%016llx-%d.jsonl", dir, (unsigned long long)comm->id,
			 comm->rank);
		written = gantry_file_write(path, "the stall report", comm_report_put, comm);
	}
	GANTRY_LOG(level, COMM, "rank %d of %s %s: %s%s%s", comm->rank, COMM_TEXT_OF(comm), why, text,
		   written ? "; report in " : "", written ? path : "");
}

/*
 * The error itself counts, not only that a report was requested: comm_fail requests it last, and a thread that sees the
 * error before that may destroy the communicator at once.
 */
static int owes_report(struct gantry_comm *comm)
{
	uint32_t error = load_acquire(&comm->error_seen);

	if (comm->watch.report_written & TOLD_ERROR || comm_is_revoked(comm))
		return 0;
	return load_acquire(&comm->watch.report_wanted) || (error != GANTRY_OK && error != GANTRY_ERR_ABORTED);
}

/* After an error: comm_fail has logged it, this line is a detail. */
static void tell_error(struct gantry_comm *comm)
{
	comm->watch.report_written |= TOLD_ERROR;
	tell_report(comm, GANTRY_LOG_INFO, "when it failed");
}

/* ---- when it says it: by the thread, while it holds the communicator and no lock ---- */

static void look_for_stall(struct gantry_comm *comm)
{
	uint64_t stall = gantry_params()->stall, now = gantry_now_ns(), sum;
	int connecting, busy;
	char why[64];

	if (!stall || load_acquire(&comm->error_seen))
		return;
	sum = comm_look_sum(comm, &connecting);
	busy = connecting || gantry_proxy_group_pending(comm->group) || comm_look_launches(comm);
	if (!busy || sum != comm->watch.stall_sum || !comm->watch.stall_since) {
		comm->watch.stall_sum = sum;
		store_relaxed(&comm->watch.stall_since, now);
		comm->watch.report_written &= ~TOLD_STALL;
	} else if (now - comm->watch.stall_since >= stall && !(comm->watch.report_written & TOLD_STALL)) {
		comm->watch.report_written |= TOLD_STALL;
		snprintf(why, sizeof(why), "has made no progress for %.1f s",
			 (double)(now - comm->watch.stall_since) / 1e9);
		tell_report(comm, GANTRY_LOG_WARN, why);
	}
}

static void attend_comm(struct gantry_comm *comm, int signalled)
{
	comm_check(comm); /* what a kernel has reported fails the communicator even if its owner never asks */
	look_for_stall(comm);
	if (owes_report(comm))
		tell_error(comm);
	if (signalled)
		tell_report(comm, GANTRY_LOG_WARN, "was asked");
}

/* ---- the loop's client ---- */

static uint64_t nap_ns(void)
{
	uint64_t ms = gantry_params()->stall / 4 / 1000000;

	return (ms > NAP_MAX_MS ? NAP_MAX_MS : ms < NAP_MIN_MS ? NAP_MIN_MS : ms) * 1000000;
}

static uint64_t next_due(void) REQUIRES(loop_mu)
{
	return watch.next;
}

/* Looks at one of them, without the lock: at all of it, or only for the cause of a symptom. */
static void hold_comm(struct gantry_comm *comm, int all, int signalled) REQUIRES(loop_mu)
{
	uint64_t until;

	ASSERT_HELD(&inet_loop.mu);
	ASSERT(!watch.held);
	watch.held = comm;
	inet_loop_unlock();
	until = comm_cause_look(comm);
	if (all)
		attend_comm(comm, signalled);
	inet_loop_lock();
	if (until && until < watch.next)
		watch.next = until;
	watch.causes |= until != 0;
	watch.held = NULL;
	gantry_cond_broadcast(&watch.put_down); /* a thread that removes it has the lock when we are past it */
}

static void watch_pass(void) REQUIRES(loop_mu)
{
	uint32_t asked = inet_asked();
	int signalled = asked != watch.asked, all = signalled || inet_due(watch.next);

	watch.asked = asked;
	if (all && gantry_stall_requested(&watch.request))
		signalled = 1;
	if (!all && !watch.causes)
		return;
	if (all)
		watch.next = gantry_params()->stall ? gantry_now_ns() + nap_ns() : UINT64_MAX;
	watch.causes = 0;
	gantry_list_each_entry (comm, &watch.comms, struct gantry_comm, node) {
		if (all || comm_cause_waits(comm))
			hold_comm(comm, all, signalled);
	}
}

static int watch_busy(void) REQUIRES(loop_mu)
{
	return !gantry_list_empty(&watch.comms);
}

static void watch_stop(void) REQUIRES(loop_mu)
{
	inet_asked_stop(INET_ASKED_COMM);
	inet_stats_remove(&comm_stats);
}

struct gantry_comm *comm_watch_next(const struct gantry_comm *comm)
{
	struct gantry_list *next = comm ? comm->node.next : watch.comms.next;

	return next == &watch.comms ? NULL : gantry_container(next, struct gantry_comm, node);
}

static void in_child(void) REQUIRES(loop_mu)
{
	inet_asked_in_child();
	watch.asked = inet_asked();
	watch.held = NULL;
	gantry_list_each_safe (e, &watch.comms)
		gantry_list_remove(e); /* so that destroying one here is harmless */
}

static struct inet_client client = {
	.due = next_due,
	.pass = watch_pass,
	.busy = watch_busy,
	.stop = watch_stop,
	.in_child = in_child,
};

static void look_soon(void) REQUIRES(loop_mu)
{
	ASSERT_HELD(&inet_loop.mu);
	watch.next = 0;
	if (client.active)
		inet_loop_wake();
}

void comm_watch_add(struct gantry_comm *comm)
{
	gantry_trace_begin();
	inet_loop_lock();
	if (inet_loop_start(&client) != GANTRY_OK)
		LOG_WARN(COMM, "stalls will not be detected");
	else
		inet_asked_start(INET_ASKED_COMM);
	ASSERT(gantry_list_empty(&comm->node));
	gantry_list_append(&watch.comms, &comm->node);
	inet_stats_add(&comm_stats);
	look_soon(); /* a report may be wanted already */
	inet_loop_unlock();
}

void comm_watch_remove(struct gantry_comm *comm)
{
	int was_in;

	inet_loop_lock();
	while (watch.held == comm)
		mutex_wait(&watch.put_down, &inet_loop.mu);
	was_in = !gantry_list_empty(&comm->node); /* not if its init failed, and not in a forked child */
	gantry_list_remove(&comm->node);
	inet_loop_unlock();
	/* An error and a destroy right after it: the thread may not have come to it. */
	if (was_in && owes_report(comm))
		tell_error(comm);
}

bool comm_watch_busy(const struct gantry_device *device)
{
	bool busy_one = false;

	inet_loop_lock();
	gantry_list_each_entry (comm, &watch.comms, struct gantry_comm, node)
		busy_one |= comm->device == device && comm_look_launches(comm);
	inet_loop_unlock();
	return busy_one;
}

void comm_watch_cause(void)
{
	inet_loop_lock();
	watch.causes = 1;
	if (client.active)
		inet_loop_wake();
	inet_loop_unlock();
}

void comm_watch_want(struct gantry_comm *comm)
{
	store_release(&comm->watch.report_wanted, 1);
	inet_loop_lock();
	look_soon();
	inet_loop_unlock();
}
