/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of NCCL's API: which there are, how they end, and what they say of themselves. comm_make.c makes them.
 *
 * ENDING TOGETHER. The end of a communicator of Gantry waits for all its ranks. NCCL's callers may have several ranks
 * in one thread and end them one after the other, without a group. So of the ranks that this process has of one
 * communicator, all but the last to be finalized or destroyed are only marked; the last call ends all of them, at the
 * same time. An aborted rank waits for no other rank, and no other rank waits for it.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "inet/loop.h"
#include "nccl/nccl.h"
#include "nccl/nccl_device.h"

#define BEGIN_PATIENCE_NS 1000000000ull
#define REAP_PATIENCE_NS 1000000000ull /* how long ncclCommAbort waits for memory to be given back */

static struct nccl_comms_mu comms_mu;
static struct gantry_list comms GUARDED_BY(nccl_comms_mu) = {&comms, &comms};

struct ncclComm *nccl_comm_of(ncclComm_t c, const char *function)
{
	if (c && c->magic == NCCL_COMM_MAGIC && load_acquire(&c->comm)) {
		if (!inet_forked(c->comm->life.forks))
			return c;
		inet_refuse_forked(function);
		return NULL;
	}
	gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__, "%s: %s", function,
		    !c				  ? "the communicator is NULL"
		    : c->magic == NCCL_COMM_MAGIC ? "the communicator is still being created"
						  : "not a communicator, or already destroyed");
	return NULL;
}

gantry_result nccl_comm_new(struct gantry_device *device, struct ncclComm **ret)
{
	struct ncclComm *c = calloc(1, sizeof(*c));

	if (!c || nccl_device_init(c) != GANTRY_OK) {
		free(c);
		gantry_device_close(device);
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a communicator");
	}
	c->magic = NCCL_COMM_MAGIC;
	c->device = device;
	c->blocking = true;
	nccl_comms_mu_lock(&comms_mu);
	gantry_list_append(&comms, &c->node);
	nccl_comms_mu_unlock(&comms_mu);
	*ret = c;
	return GANTRY_OK;
}

/* With the device's reference. It is in no list any more. */
static gantry_result comm_delete(struct ncclComm *c)
{
	const bool failed = c->comm && comm_check(c->comm) != GANTRY_OK;
	gantry_result r = gantry_comm_destroy(c->comm);

	nccl_device_end(c, failed);
	if (c->own)
		gantry_stream_destroy(c->device, c->own);
	gantry_device_close(c->device);
	c->magic = 0;
	free(c);
	return r;
}

void nccl_comm_drop(struct ncclComm *c)
{
	bool aborted;

	nccl_comms_mu_lock(&comms_mu);
	aborted = c->ending == NCCL_ENDS;
	if (!aborted)
		gantry_list_remove(&c->node);
	nccl_comms_mu_unlock(&comms_mu);
	nccl_leave(c);
	if (aborted)
		return;
	comm_delete(c);
}

/* ---- ending ---- */

static gantry_result run_finalize(struct nccl_job *job)
{
	return gantry_comm_finalize(job->c->comm);
}

static gantry_result run_destroy(struct nccl_job *job)
{
	gantry_result r = comm_delete(job->c);

	job->c = NULL;
	return r;
}

/* 0: not known yet. */
static uint64_t id_of(const struct ncclComm *c)
{
	const struct gantry_comm *comm = load_acquire(&c->comm);

	return comm ? load_relaxed(&comm->id) : 0;
}

static bool same_comm(const struct ncclComm *a, const struct ncclComm *b)
{
	return a == b || (id_of(a) && id_of(a) == id_of(b));
}

/* The least of what has been requested of the ranks of this communicator in this process. */
static enum nccl_ending least_ending(const struct ncclComm *c, bool *ret_destroyed) REQUIRES(nccl_comms_mu)
{
	enum nccl_ending least = NCCL_ENDS;

	*ret_destroyed = false;
	gantry_list_each_entry (other, &comms, struct ncclComm, node) {
		if (!same_comm(c, other))
			continue;
		least = other->ending < least ? other->ending : least;
		*ret_destroyed |= other->ending == NCCL_ENDS;
	}
	return least;
}

/* The jobs that end all of them; none as long as one has not been requested to, and none that only finalizes where
 * another one is already to be destroyed: destroying waits for the same. */
static struct nccl_job *ending_jobs(const struct ncclComm *c, enum nccl_ending ending) REQUIRES(nccl_comms_mu)
{
	struct nccl_job *jobs = NULL, *job;
	bool destroyed;

	if (least_ending(c, &destroyed) < ending || (ending != NCCL_ENDS && destroyed))
		return NULL;
	gantry_list_each_entry_safe (other, &comms, struct ncclComm, node) {
		if (!same_comm(c, other) || other->ending != ending)
			continue;
		job = calloc(1, sizeof(*job));
		if (!job)
			break; /* it stays marked: a leak is the least trouble of a process without memory */
		job->c = other;
		job->run = ending == NCCL_ENDS ? run_destroy : run_finalize;
		job->next = jobs;
		jobs = job;
		if (ending == NCCL_ENDS)
			gantry_list_remove(&other->node);
		else
			other->ending = NCCL_FINALIZED;
	}
	return jobs;
}

static gantry_result end_comm(struct ncclComm *c, enum nccl_ending ending)
{
	struct nccl_job *jobs;

	nccl_comms_mu_lock(&comms_mu);
	c->ending = ending;
	jobs = ending_jobs(c, ending);
	nccl_comms_mu_unlock(&comms_mu);
	return jobs ? nccl_jobs_run(jobs) : GANTRY_OK;
}

static gantry_result run_end(struct nccl_job *job)
{
	return end_comm(job->c, job->destroy ? NCCL_ENDS : NCCL_FINALIZES);
}

/* The ends of a group run at the same time, so a communicator has one of them there: the last that was asked for. */
static gantry_result end_job(struct ncclComm *c, bool destroy)
{
	struct nccl_job *job = nccl_group_ending(c);

	if (job && (job->destroy || job->aborted || !destroy))
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: the group already %s the communicator",
			 destroy ? "ncclCommDestroy" : "ncclCommFinalize",
			 job->aborted	? "aborts"
			 : job->destroy ? "destroys"
					: "finalizes");
	if (job) {
		job->destroy = true;
		return GANTRY_OK;
	}
	job = calloc(1, sizeof(*job));
	if (!job)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to end a communicator");
	job->run = run_end;
	job->c = c;
	job->ends = true;
	job->destroy = destroy;
	return nccl_group_run(job);
}

/* Another rank's call marks this one's communicator, too: ending_jobs. */
static bool is_ending(const struct ncclComm *c)
{
	bool ending;

	nccl_comms_mu_lock(&comms_mu);
	ending = c->ending != NCCL_LIVES;
	nccl_comms_mu_unlock(&comms_mu);
	return ending;
}

static gantry_result finalize_comm(ncclComm_t comm)
{
	struct ncclComm *c;

	if (!comm)
		return GANTRY_OK;
	c = nccl_comm_of(comm, "ncclCommFinalize");
	if (!c)
		return GANTRY_ERR_INVALID;
	if (c->revoked || is_ending(c))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommFinalize: the communicator %s",
			 c->revoked ? "was revoked" : "is already being finalized");
	return end_job(c, false);
}

NCCL_FUNCTION(ncclResult_t, CommFinalize, (ncclComm_t comm))
{
	return nccl_result(comm_group_fail(finalize_comm(comm)));
}

NCCL_FUNCTION(ncclResult_t, CommDestroy, (ncclComm_t comm))
{
	if (!comm)
		return ncclSuccess;
	if (!nccl_comm_of(comm, "ncclCommDestroy"))
		return nccl_result(comm_group_fail(GANTRY_ERR_INVALID));
	return nccl_result(comm_group_fail(end_job(comm, true)));
}

/* ---- aborting ---- */

/* No thread is in a call of it any more, or the time for that is over. */
static bool await_calls(const struct ncclComm *c)
{
	uint64_t deadline = gantry_now_ns() + gantry_params()->timeout;
	struct gantry_waiter w;

	gantry_waiter_init(&w, NULL);
	while (load_acquire(&c->calls) && gantry_now_ns() < deadline)
		gantry_waiter_idle(&w, 1000000);
	return !load_acquire(&c->calls);
}

/* An aborted communicator that is in no list. */
static void reclaim_comm(struct ncclComm *c)
{
	if (!await_calls(c)) {
		LOG_WARN(COMM,
			 "a thread is still inside a call on an aborted communicator, so its memory is not freed");
		return;
	}
	comm_delete(c);
}

MUTEX_KIND(nccl_reap_mu);
static struct nccl_reap_mu reap_mu;
static struct gantry_cond reap_cond;
struct reaping {
	struct ncclComm *c;
	bool done, left; /* nccl_reap_mu: by the thread; by its caller. The second one frees this */
};

static void *reap_main(void *arg)
{
	struct reaping *r = arg;
	bool left;

	reclaim_comm(r->c);
	nccl_reap_mu_lock(&reap_mu);
	r->done = true;
	left = r->left;
	gantry_cond_broadcast(&reap_cond);
	nccl_reap_mu_unlock(&reap_mu);
	if (left)
		free(r);
	return NULL;
}

/*
 * Giving memory of a GPU back may wait for every kernel on it, also for those of another communicator that hangs, which
 * the caller may be about to abort next. So another thread does it, and the caller waits for it only for a while.
 */
static void reclaim_beside(struct ncclComm *c)
{
	uint64_t deadline = gantry_now_ns() + REAP_PATIENCE_NS;
	struct reaping *r = calloc(1, sizeof(*r));
	pthread_t thread;
	bool done;

	if (!r)
		return; /* better a leak than a hang; below, too */
	r->c = c;
	if (gantry_thread_start("gantry-reap", reap_main, r, &thread) != GANTRY_OK) {
		free(r);
		return;
	}
	pthread_detach(thread);
	nccl_reap_mu_lock(&reap_mu);
	while (!r->done && mutex_wait_until(&reap_cond, &reap_mu, deadline))
		;
	done = r->done;
	r->left = !done;
	nccl_reap_mu_unlock(&reap_mu);
	if (done)
		free(r);
}

static gantry_result run_reclaim(struct nccl_job *job)
{
	if (gantry_traits(job->c->device)->calls_may_wait)
		reclaim_beside(job->c);
	else
		reclaim_comm(job->c);
	return GANTRY_OK;
}

/* Another thread has just written the handle and is about to begin. In a group of this thread it will not. */
static void await_begun(const struct ncclComm *c)
{
	uint64_t deadline = gantry_now_ns() + BEGIN_PATIENCE_NS;

	while (!comm_group_depth() && c->magic == NCCL_COMM_MAGIC && !load_acquire(&c->comm) &&
	       gantry_now_ns() < deadline)
		sched_yield();
}

/* Kernels and calls end now, in a group too; what it had is given back at the group's end. */
static gantry_result abort_comm(ncclComm_t comm)
{
	struct ncclComm *c;
	struct nccl_job *others, *job;

	if (!comm)
		return GANTRY_OK;
	await_begun(comm);
	c = nccl_comm_of(comm, "ncclCommAbort");
	if (!c)
		return GANTRY_ERR_INVALID;
	job = nccl_group_ending(c);
	if (job && job->aborted)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommAbort: the group already aborts the communicator");
	gantry_comm_abort(c->comm);
	nccl_comms_mu_lock(&comms_mu);
	gantry_list_remove(&c->node);
	c->ending = NCCL_ENDS;
	others = ending_jobs(c, NCCL_ENDS); /* ranks of this process that were waiting for this one's end */
	nccl_comms_mu_unlock(&comms_mu);
	if (others)
		nccl_jobs_run(others);
	if (job) { /* in place of another end that the group has for it */
		job->run = run_reclaim;
		job->aborted = true;
		return GANTRY_OK;
	}
	job = calloc(1, sizeof(*job));
	if (!job)
		return GANTRY_OK; /* its memory is lost, and it is aborted: what was asked for */
	job->run = run_reclaim;
	job->c = c;
	job->ends = job->aborted = true;
	return nccl_group_run(job);
}

NCCL_FUNCTION(ncclResult_t, CommAbort, (ncclComm_t comm))
{
	return nccl_result(abort_comm(comm));
}

NCCL_FUNCTION(ncclResult_t, CommRevoke, (ncclComm_t comm, int flags))
{
	struct ncclComm *c;
	gantry_result r;

	if (!comm)
		return ncclSuccess;
	c = nccl_comm_of(comm, "ncclCommRevoke");
	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (flags != NCCL_REVOKE_DEFAULT || c->revoked || is_ending(c))
		return nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					       "ncclCommRevoke: flags %d, of a communicator that %s", flags,
					       c->revoked     ? "was revoked"
					       : is_ending(c) ? "is ending"
							      : "lives"));
	nccl_enter(c);
	r = gantry_comm_revoke(c->comm);
	c->revoked = r == GANTRY_OK || r == GANTRY_AGAIN;
	nccl_leave(c);
	return nccl_result(r);
}

/* ---- what they say of themselves ---- */

/*
 * On the host, what a non-blocking communicator was given is done when its stream is. An error may come between the two questions, and
 * ends what the stream had: then the stream has that error, or is idle and only the communicator has it.
 */
static gantry_result state_of(const struct ncclComm *c, char *text, size_t size)
{
	gantry_result r = gantry_comm_error(c->comm, NULL, text, size);

	if (r != GANTRY_OK || c->blocking || !c->own)
		return r;
	r = gantry_stream_query(c->device, c->own);
	return r == GANTRY_AGAIN ? r : gantry_comm_error(c->comm, NULL, text, size);
}

NCCL_FUNCTION(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *result))
{
	char text[COMM_ERROR_TEXT] = "";
	gantry_result r;

	if (!result)
		return nccl_result(nccl_missing("ncclCommGetAsyncError"));
	if (!comm || comm->magic != NCCL_COMM_MAGIC) {
		nccl_comm_of(comm, "ncclCommGetAsyncError");
		return nccl_result(GANTRY_ERR_INVALID);
	}
	if (!load_acquire(&comm->comm)) {
		*result = ncclInProgress;
		return ncclSuccess;
	}
	r = state_of(comm, text, sizeof(text));
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		nccl_keep_error(*text ? text : gantry_result_text(r));
	*result = nccl_code(r);
	return ncclSuccess;
}

/* Ranks and devices of a communicator are known when it is made. */
static ncclResult_t tell_number(ncclComm_t comm, const char *function, int (*ask)(const struct gantry_comm *), int *ret)
{
	struct ncclComm *c = nccl_comm_of(comm, function);

	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!ret)
		return nccl_result(nccl_missing(function));
	if (!c->blocking && gantry_comm_error(c->comm, NULL, NULL, 0) == GANTRY_AGAIN)
		return nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					       "%s: the communicator is still being created", function));
	*ret = ask(c->comm);
	return ncclSuccess;
}

NCCL_FUNCTION(ncclResult_t, CommCount, (const ncclComm_t comm, int *count))
{
	return tell_number(comm, "ncclCommCount", gantry_comm_size, count);
}

NCCL_FUNCTION(ncclResult_t, CommUserRank, (const ncclComm_t comm, int *rank))
{
	return tell_number(comm, "ncclCommUserRank", gantry_comm_rank, rank);
}

NCCL_FUNCTION(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int *device))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommCuDevice");

	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!device)
		return nccl_result(nccl_missing("ncclCommCuDevice"));
	*device = c->device->index;
	return ncclSuccess;
}
