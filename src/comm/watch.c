/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch: one thread per process while there are communicators. It wakes every min(1 s, GANTRY_STALL / 4), when a
 * report is wanted and on GANTRY_STALL_SIGNAL; all its work is to look, to log a line and to write a file.
 *
 *   stall    work is in flight and nothing moved for GANTRY_STALL     once, until something moves
 *   error    comm_watch_want                                          once
 *   signal   every communicator of the process                        each time
 *
 * Locks. `mu`: the list, and which communicator the thread works on; held for moments, never while a file is written,
 * because the progress thread comes here with an error. `life`: starting and ending the thread, so that a communicator
 * that comes while the last one goes waits for the end. Order: life, mu. A communicator that is worked on stays in the
 * list: comm_watch_remove waits until the thread has put it down.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/param.h"
#include "base/trace.h"
#include "comm/report.h"

enum { NAP_MAX_MS = 1000, NAP_MIN_MS = 5 };
enum { TOLD_ERROR = 1, TOLD_STALL = 2 }; /* comm->report_written */

static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;
static struct {
	pthread_mutex_t mu;
	pthread_cond_t put_down;
	struct gantry_list comms;
	struct gantry_comm *held; /* the thread works on it */
	int fd;			  /* eventfd; -1: there is no thread */
	int stop;
	/* Under life. */
	pthread_t thread;
	int running;
	int fd_stays; /* a signal handler has it */
} watch = {.mu = PTHREAD_MUTEX_INITIALIZER, .put_down = PTHREAD_COND_INITIALIZER, .fd = -1};

/* Under mu. */
static void kick(void)
{
	uint64_t one = 1;

	if (watch.fd >= 0 && write(watch.fd, &one, sizeof(one)) < 0)
		LOG_DEBUG(COMM, "waking the watch thread: %s", strerror(errno));
}

/* ---- what it says ---- */

struct waiting {
	struct comm_end first; /* the one to name */
	int n;
};

/* Who waits for somebody else tells more than who waits for its own kernel, proxy or memory. */
static int weight(enum comm_waits w)
{
	return w == COMM_WAITS_NONE ? 0 : w == COMM_WAITS_PEER || w == COMM_WAITS_SOCKET ? 2 : 1;
}

static void find_waiting(void *ctx, const struct comm_end *e)
{
	struct waiting *w = ctx;

	w->n += weight(e->waits) != 0;
	if (weight(e->waits) > weight(w->first.waits))
		w->first = *e;
}

static void describe(struct gantry_comm *comm, char *text, size_t len)
{
	struct waiting w = {.n = 0};
	const struct comm_end *e = &w.first;
	char more[48] = "";

	comm_ends_each(comm, find_waiting, &w);
	if (!w.n) {
		snprintf(text, len, "no connection waits; launches that have not started or still copy: %d",
			 comm_look_launches(comm));
		return;
	}
	if (w.n > 1)
		snprintf(more, sizeof(more), "; %d more connection%s", w.n - 1, w.n == 2 ? " waits" : "s wait");
	if (e->connecting)
		snprintf(text, len, "the %s rank %d (%s) waits for that rank's call, to connect by %s%s",
			 e->send ? "send to" : "receive from", e->peer, comm->infos[e->peer].host_name,
			 e->transport ? e->transport->name : "?", more);
	else
		snprintf(text, len, "the %s rank %d (%s) by %s, channel %d, waits for %s%s at step %llu%s",
			 e->send ? "send to" : "receive from", e->peer, comm->infos[e->peer].host_name,
			 e->transport ? e->transport->name : "?", e->channel,
			 e->waits == COMM_WAITS_PEER ? "that rank" : "its ",
			 e->waits == COMM_WAITS_PEER ? "" : comm_waits_name(e->waits), (unsigned long long)e->step,
			 more);
}

/* 1 with the path, if it was written. */
static int write_report(struct gantry_comm *comm, char *path, size_t len)
{
	const char *dir = gantry_params()->stall_dir;

	if (!*dir)
		return 0;
	snprintf(path, len, "%s/stall-%016llx-%d.jsonl", dir, (unsigned long long)comm->id, comm->rank);
	return gantry_file_write(path, "the report of who waits for whom", comm_report_put, comm);
}

/* `why` begins the line. */
static void tell(struct gantry_comm *comm, enum gantry_log_level level, const char *why)
{
	char text[512], path[PATH_MAX];
	int written;

	describe(comm, text, sizeof(text)); /* before the file: that may take its time */
	written = write_report(comm, path, sizeof(path));
	GANTRY_LOG(level, COMM, "rank %d of communicator %016llx %s: %s%s%s", comm->rank, (unsigned long long)comm->id,
		   why, text, written ? "; report in " : "", written ? path : "");
}

/*
 * The error itself counts, not only that a report was asked for: comm_fail asks last, and whoever sees the error before
 * that may destroy the communicator at once.
 */
static int owes_report(struct gantry_comm *comm)
{
	uint32_t error = load_acquire(&comm->error_seen);

	if (comm->report_written & TOLD_ERROR)
		return 0;
	return load_acquire(&comm->report_wanted) || (error != GANTRY_OK && error != GANTRY_ERR_ABORTED);
}

/* After an error: comm_fail has said which, the line is a detail. */
static void tell_error(struct gantry_comm *comm)
{
	comm->report_written |= TOLD_ERROR;
	tell(comm, GANTRY_LOG_INFO, "when it failed");
}

/* ---- when it says it: all of these by the thread, while it holds the communicator ---- */

static void look_for_stall(struct gantry_comm *comm)
{
	uint64_t stall = gantry_params()->stall, now = gantry_now_ns(), sum;
	int connecting, busy;
	char why[64];

	if (!stall || load_acquire(&comm->error_seen))
		return;
	sum = comm_look_sum(comm, &connecting);
	busy = connecting || gantry_proxy_group_pending(comm->group) || comm_look_launches(comm);
	if (!busy || sum != comm->stall_sum || !comm->stall_since) {
		comm->stall_sum = sum;
		store_relaxed(&comm->stall_since, now);
		comm->report_written &= ~TOLD_STALL;
	} else if (now - comm->stall_since >= stall && !(comm->report_written & TOLD_STALL)) {
		comm->report_written |= TOLD_STALL;
		snprintf(why, sizeof(why), "has not moved for %.1f s", (double)(now - comm->stall_since) / 1e9);
		tell(comm, GANTRY_LOG_WARN, why);
	}
}

static void attend(struct gantry_comm *comm, int signalled)
{
	comm_check(comm); /* what a kernel has reported fails the communicator even if its owner never asks */
	look_for_stall(comm);
	if (owes_report(comm))
		tell_error(comm);
	if (signalled)
		tell(comm, GANTRY_LOG_WARN, "was asked");
}

/* Under mu, which is let go while a communicator is attended to. */
static void round_of_all(int signalled)
{
	gantry_list_each (e, &watch.comms) {
		struct gantry_comm *comm = gantry_container(e, struct gantry_comm, node);

		watch.held = comm;
		pthread_mutex_unlock(&watch.mu);
		attend(comm, signalled);
		pthread_mutex_lock(&watch.mu);
		watch.held = NULL;
		pthread_cond_broadcast(
			&watch.put_down); /* whoever wants to remove it gets mu when the loop is past it */
	}
}

static int nap_ms(void)
{
	uint64_t ms = gantry_params()->stall / 4 / 1000000;

	if (!gantry_params()->stall)
		return -1;
	return ms > NAP_MAX_MS ? NAP_MAX_MS : ms < NAP_MIN_MS ? NAP_MIN_MS : (int)ms;
}

static void *watch_thread(void *arg)
{
	struct pollfd p = {.fd = watch.fd, .events = POLLIN};
	uint64_t n;

	(void)arg;
	pthread_mutex_lock(&watch.mu);
	while (!watch.stop) {
		round_of_all(comm_watch_signal_came());
		pthread_mutex_unlock(&watch.mu);
		if (poll(&p, 1, nap_ms()) > 0 && read(p.fd, &n, sizeof(n)) < 0 && errno != EAGAIN)
			LOG_DEBUG(COMM, "the watch thread's eventfd: %s", strerror(errno));
		pthread_mutex_lock(&watch.mu);
	}
	pthread_mutex_unlock(&watch.mu);
	return NULL;
}

/* ---- its life ---- */

static void before_fork(void)
{
	pthread_mutex_lock(&watch.mu);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&watch.mu);
}

/* The thread, its communicators and its eventfd are the parent's. */
static void in_child(void)
{
	pthread_mutex_init(&life, NULL);
	pthread_mutex_init(&watch.mu, NULL);
	pthread_cond_init(&watch.put_down, NULL);
	comm_watch_signal_forget();
	if (watch.fd >= 0)
		close(watch.fd);
	watch.fd = -1;
	watch.held = NULL;
	watch.running = watch.fd_stays = 0;
	gantry_list_each_safe (e, &watch.comms)
		gantry_list_remove(e); /* so that destroying one here is harmless */
}

static void once_per_process(void)
{
	gantry_list_init(&watch.comms);
	pthread_atfork(before_fork, in_parent, in_child);
}

/* Under life. */
static void start(void)
{
	sigset_t all, old;
	int fd = watch.fd >= 0 ? watch.fd : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), failed;

	if (fd < 0) {
		LOG_WARN(COMM, "eventfd: %s; stalls will not be noticed", strerror(errno));
		return;
	}
	pthread_mutex_lock(&watch.mu);
	watch.fd = fd;
	watch.stop = 0;
	pthread_mutex_unlock(&watch.mu);
	watch.fd_stays |= comm_watch_signal_install(fd);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	failed = pthread_create(&watch.thread, NULL, watch_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	watch.running = !failed;
	if (failed)
		LOG_WARN(COMM, "no thread: %s; stalls will not be noticed", strerror(failed));
	else
		pthread_setname_np(watch.thread, "gantry-watch");
}

/* Under life, and nobody is left in the list. */
static void stop(void)
{
	pthread_mutex_lock(&watch.mu);
	watch.stop = 1;
	kick();
	pthread_mutex_unlock(&watch.mu);
	if (watch.running)
		pthread_join(watch.thread, NULL);
	watch.running = 0;
	pthread_mutex_lock(&watch.mu);
	if (watch.fd >= 0 && !watch.fd_stays) {
		close(watch.fd);
		watch.fd = -1;
	}
	pthread_mutex_unlock(&watch.mu);
}

void comm_watch_add(struct gantry_comm *comm)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, once_per_process);
	gantry_trace_begin();
	pthread_mutex_lock(&life);
	pthread_mutex_lock(&watch.mu);
	gantry_list_append(&watch.comms, &comm->node);
	kick(); /* a report may be wanted already */
	pthread_mutex_unlock(&watch.mu);
	if (!watch.running)
		start();
	pthread_mutex_unlock(&life);
}

void comm_watch_remove(struct gantry_comm *comm)
{
	int was_in, last;

	pthread_mutex_lock(&life);
	pthread_mutex_lock(&watch.mu);
	while (watch.held == comm)
		pthread_cond_wait(&watch.put_down, &watch.mu);
	was_in = !gantry_list_empty(&comm->node); /* not if its init failed, and not in a forked child */
	gantry_list_remove(&comm->node);
	last = gantry_list_empty(&watch.comms);
	pthread_mutex_unlock(&watch.mu);
	if (!was_in)
		goto out;
	/* An error and a destroy right after it: the thread may not have come to it. */
	if (owes_report(comm))
		tell_error(comm);
	if (last)
		stop();
out:
	pthread_mutex_unlock(&life);
}

void comm_watch_want(struct gantry_comm *comm)
{
	pthread_mutex_lock(&watch.mu);
	store_release(&comm->report_wanted, 1);
	kick();
	pthread_mutex_unlock(&watch.mu);
}
