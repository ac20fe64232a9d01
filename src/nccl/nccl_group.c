/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of NCCL. The thread's group of comm/group.c holds the transfers, and counts how deep groups are nested; what is
 * kept here for its end is the making and ending of communicators.
 *
 * At the end, in this order: communicators and windows are made, those of different communicators at the same time, those of one in turn;
 * transfers are enqueued; on the host they are waited for; communicators are ended, in the same way. A call that fails
 * makes the whole group fail: then nothing of it is done, but for ends, which are.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "nccl/nccl.h"

enum { ERROR_TEXT = 1024 };

struct job_list {
	struct nccl_job *first, **last; /* last: NULL while there is none */
};

static _Thread_local struct {
	struct job_list makes, ends;
	struct ncclComm *used;
} group;

static void job_append(struct job_list *l, struct nccl_job *job)
{
	job->next = NULL;
	*(l->last ? l->last : &l->first) = job;
	l->last = &job->next;
}

static struct nccl_job *jobs_take(struct job_list *l)
{
	struct nccl_job *first = l->first;

	*l = (struct job_list){NULL, NULL};
	return first;
}

void nccl_job_free(struct nccl_job *job)
{
	if (job) {
		free(job->exclude);
		free(job->ids);
		free(job->owned);
	}
	free(job);
}

/* The thread's own text of an error goes with the job: another thread may go on with it. */
static void note_error(struct nccl_job *job)
{
	if (job->r != GANTRY_OK && job->r != GANTRY_AGAIN && !*job->error)
		snprintf(job->error, sizeof(job->error), "%s", gantry_last_error());
}

static void begin_job(struct nccl_job *job)
{
	job->r = job->begin ? job->begin(job) : GANTRY_OK;
	note_error(job);
}

static void run_job(struct nccl_job *job)
{
	job->r = job->run(job);
	note_error(job);
}

/* The communicator whose ranks have the same jobs in the same order; NULL: one that is made anew has no others. */
static struct ncclComm *meets_on(const struct nccl_job *job)
{
	return job->parent ? job->parent : job->made ? NULL : job->c;
}

/*
 * Jobs of one communicator exchange messages with its other ranks, so they run one after the other. Called before the first job begins,
 * as a job may forget its communicator. What a job uses is entered until the job has run, as another thread may abort it
 * meanwhile; behind an end there is nothing to use.
 */
static void chain_jobs(struct nccl_job *jobs)
{
	for (struct nccl_job *job = jobs; job; job = job->next) {
		struct nccl_job *next = job->next;

		while (next && (!meets_on(job) || meets_on(next) != meets_on(job)))
			next = next->next;
		job->then = next;
		if (next) {
			next->waits = true;
			next->late = job->late || job->ends;
		}
		job->entered = job->uses && !job->late;
		if (job->entered)
			nccl_enter(job->c);
	}
}

static void *run_chain(void *arg)
{
	for (struct nccl_job *job = arg; job; job = job->then) {
		struct ncclComm *entered = job->entered ? job->c : NULL;

		if (job->waits) {
			if (entered || job->parent) /* else it ends */
				(void)nccl_await_made(meets_on(job)->comm);
			begin_job(job);
		}
		run_job(job);
		if (entered)
			nccl_leave(entered);
	}
	return NULL;
}

/* The first error, which becomes that of the calling thread; else AGAIN if one of them is in progress. */
static gantry_result jobs_end(struct nccl_job *jobs)
{
	gantry_result r = GANTRY_OK;

	while (jobs) {
		struct nccl_job *next = jobs->next;

		if (jobs->r != GANTRY_OK && (r == GANTRY_OK || r == GANTRY_AGAIN)) {
			r = jobs->r;
			if (r != GANTRY_AGAIN)
				gantry_set_last_error(jobs->error);
		}
		nccl_job_free(jobs);
		jobs = next;
	}
	return r;
}

struct chain_thread {
	pthread_t thread;
	bool started;
};

/*
 * threads: one for each job, or NULL. What was begun needs none if nothing comes after it, nor does the last chain. Without a thread jobs run one
 * after the other, and those that wait for the next ones end by a timeout.
 */
static void run_chains(struct nccl_job *jobs, struct chain_thread *threads)
{
	const struct nccl_job *last = NULL;
	struct chain_thread *t = threads;

	for (struct nccl_job *job = jobs; job; job = job->next)
		last = job->waits ? last : job;
	for (struct nccl_job *job = jobs; job; job = job->next, t += threads != NULL) {
		if (job->waits)
			continue;
		if (threads && job != last && (!job->begin || job->then))
			t->started = gantry_thread_start("gantry-nccl", run_chain, job, &t->thread) == GANTRY_OK;
		if (!threads || !t->started)
			run_chain(job);
	}
}

gantry_result nccl_jobs_run(struct nccl_job *jobs)
{
	struct chain_thread *threads = NULL;
	size_t n = 0;

	chain_jobs(jobs);
	for (struct nccl_job *job = jobs; job; job = job->next, n++)
		if (!job->waits)
			begin_job(job);
	if (n > 1)
		threads = calloc(n, sizeof(*threads));
	run_chains(jobs, threads);
	for (size_t i = 0; threads && i < n; i++)
		if (threads[i].started)
			pthread_join(threads[i].thread, NULL);
	free(threads);
	return jobs_end(jobs);
}

gantry_result nccl_group_run(struct nccl_job *job)
{
	bool makes = job->made || job->window;

	if (!comm_group_depth())
		return nccl_jobs_run(job);
	job_append(makes ? &group.makes : &group.ends, job);
	return GANTRY_OK;
}

struct nccl_job *nccl_group_ending(const struct ncclComm *c)
{
	struct nccl_job *job = group.ends.first;

	while (job && (job->c != c || !job->ends))
		job = job->next;
	return job;
}

void nccl_group_uses(struct ncclComm *c)
{
	if (c->used)
		return;
	nccl_enter(c); /* until nccl_group_settle */
	c->used = true;
	c->next_used = group.used;
	group.used = c;
}

/* On the host, and if they block, their streams are waited for: all transfers of the group are enqueued, so that none
 * waits for another one that comes after it. */
gantry_result nccl_group_settle(gantry_result r)
{
	while (group.used) {
		struct ncclComm *c = group.used;
		gantry_result one = GANTRY_OK;
		char text[ERROR_TEXT] = "";

		group.used = c->next_used;
		c->next_used = NULL;
		c->used = false;
		if (r == GANTRY_OK && c->own && c->blocking) {
			one = gantry_stream_sync(c->device, c->own);
			if (one == GANTRY_OK)
				one = gantry_comm_error(c->comm, NULL, text, sizeof(text));
			if (*text)
				gantry_set_last_error(text);
		}
		nccl_leave(c);
		r = r == GANTRY_OK ? one : r;
	}
	return r;
}

/* r: if the group has failed, none of them begins. */
static gantry_result make_all(gantry_result r)
{
	struct nccl_job *jobs = jobs_take(&group.makes);

	if (r == GANTRY_OK)
		return jobs ? nccl_jobs_run(jobs) : r;
	while (jobs) {
		struct nccl_job *next = jobs->next;

		jobs->dropped = true;
		jobs->r = jobs->begin ? jobs->begin(jobs) : GANTRY_OK;
		jobs->run(jobs);
		nccl_job_free(jobs);
		jobs = next;
	}
	return r;
}

static gantry_result end_all(void)
{
	struct nccl_job *jobs = jobs_take(&group.ends);

	return jobs ? nccl_jobs_run(jobs) : GANTRY_OK;
}

gantry_result nccl_group_finish(void)
{
	gantry_result r, made, moved, ended;

	if (!comm_group_depth())
		FAIL_NOW(GANTRY_ERR_USAGE, "ncclGroupEnd without ncclGroupStart");
	if (comm_group_depth() > 1)
		return gantry_group_end();
	made = comm_group_fail(make_all(comm_group_error()));
	moved = gantry_group_end();
	r = nccl_group_settle(moved == GANTRY_AGAIN ? GANTRY_OK : moved);
	ended = end_all();
	if (r == GANTRY_OK && ended != GANTRY_AGAIN)
		r = ended;
	if (r == GANTRY_OK && (made == GANTRY_AGAIN || moved == GANTRY_AGAIN || ended == GANTRY_AGAIN))
		r = GANTRY_AGAIN;
	return r;
}

gantry_result nccl_group_drop(void)
{
	gantry_result r;

	if (!comm_group_depth())
		FAIL_NOW(GANTRY_ERR_USAGE, "ncclGroupSimulateEnd without ncclGroupStart");
	if (comm_group_depth() > 1)
		return gantry_group_end();
	make_all(GANTRY_ERR_CANCELLED);
	r = comm_group_drop();
	nccl_group_settle(GANTRY_ERR_CANCELLED);
	for (struct nccl_job *job = jobs_take(&group.ends), *next; job; job = next) {
		next = job->next;
		nccl_job_free(job);
	}
	return r;
}

NCCL_FUNCTION(ncclResult_t, GroupStart, (void))
{
	return nccl_result(gantry_group_start());
}

NCCL_FUNCTION(ncclResult_t, GroupEnd, (void))
{
	return nccl_result(nccl_group_finish());
}
