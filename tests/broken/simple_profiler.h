/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small profiler that is right: each event is a record that lives as long as its context, because children come after
 * the end of their parents. BROKEN(name): see simple_net.h.
 */
#ifndef GANTRY_TESTS_SIMPLE_PROFILER_H
#define GANTRY_TESTS_SIMPLE_PROFILER_H

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/profiler_v6.h"

struct record {
	struct record *parent, *next;
	int kind, states;
};

struct profile {
	pthread_mutex_t mu;
	struct record *records; /* owned */
};

static int profile_contexts;
static pthread_t profile_thread;
static int profile_inside;

static ncclResult_t profile_begin(void **ctx, int *mask)
{
	struct profile *p = calloc(1, sizeof(*p));

	if (!p)
		return ncclSystemError;
	if (BROKEN(prof_mask_error))
		*mask = ncclProfileColl;
	if (BROKEN(prof_mask_error) || BROKEN(prof_refuses) || (BROKEN(prof_one) && profile_contexts++)) {
		free(p);
		return ncclSystemError;
	}
	pthread_mutex_init(&p->mu, NULL);
	profile_thread = 0;
	*ctx = p;
	*mask = BROKEN(prof_calls) ? ncclProfileColl : -1;
	return ncclSuccess;
}

static ncclResult_t profile_begin_v4(void **ctx, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
				     int rank, ncclDebugLogger_t log)
{
	(void)hash, (void)nodes, (void)ranks, (void)rank, (void)log;
	if (BROKEN(prof_name) && strlen(name) > 100)
		return ncclInvalidArgument;
	return profile_begin(ctx, mask);
}

static ncclResult_t profile_begin_v5(void **ctx, uint64_t comm, int *mask, const char *name, int nodes, int ranks,
				     int rank, ncclDebugLogger_t log)
{
	return profile_begin_v4(ctx, mask, name, comm, nodes, ranks, rank, log);
}

/* Variants that know one thread only. */
static void profile_enter(void)
{
	if (BROKEN(prof_one_thread) && profile_thread && !pthread_equal(profile_thread, pthread_self()))
		abort();
	profile_thread = pthread_self();
	if (BROKEN(prof_entered) && __atomic_fetch_add(&profile_inside, 1, __ATOMIC_ACQ_REL))
		abort();
}

static void profile_leave(void)
{
	if (BROKEN(prof_entered))
		__atomic_fetch_sub(&profile_inside, 1, __ATOMIC_ACQ_REL);
}

static ncclResult_t profile_start(struct profile *p, int kind, void *parent, pid_t pid, void **event)
{
	struct record *r;
	int ours = kind != ncclProfileProxyOp || pid == getpid() || BROKEN(prof_foreign);

	profile_enter();
	if (BROKEN(prof_entered))
		sched_yield();
	if (BROKEN(prof_waits) && kind == ncclProfileProxyStep)
		usleep(20000);
	if ((BROKEN(prof_stale) && kind == ncclProfileProxyCtrl) ||
	    (BROKEN(prof_stale_kernel) && kind == ncclProfileKernelCh)) {
		profile_leave();
		return ncclSuccess;
	}
	r = calloc(1, sizeof(*r));
	*event = r;
	if (r) {
		r->kind = kind;
		r->parent = ours ? parent : NULL;
		if (r->parent || BROKEN(prof_null_parent))
			r->states = r->parent->states;
		if (r->parent && BROKEN(prof_frees) && r->parent->parent)
			r->states += r->parent->parent->states;
		pthread_mutex_lock(&p->mu);
		r->next = BROKEN(prof_frees) ? NULL : p->records;
		p->records = r;
		pthread_mutex_unlock(&p->mu);
	}
	profile_leave();
	return ncclSuccess;
}

static ncclResult_t profile_stop(void *event)
{
	struct record *r = event;

	profile_enter();
	if (r || BROKEN(prof_null_stop))
		__atomic_fetch_add(&r->states, 1, __ATOMIC_RELAXED);
	if (BROKEN(prof_frees))
		free(r);
	profile_leave();
	return ncclSuccess;
}

static ncclResult_t profile_state(void *event)
{
	struct record *r = event;

	if (r || BROKEN(prof_null_state))
		__atomic_fetch_add(&r->states, 1, __ATOMIC_RELAXED);
	return ncclSuccess;
}

static ncclResult_t profile_end(void *ctx)
{
	struct profile *p = ctx;

	for (struct record *r; !BROKEN(prof_frees) && (r = p->records); free(r))
		p->records = r->next;
	pthread_mutex_destroy(&p->mu);
	free(p);
	return ncclSuccess;
}

static ncclResult_t profile_start_v1(void *ctx, void **event, ncclProfilerEventDescr_v1_t *e)
{
	return profile_start(ctx, e->type, e->parentObj, e->proxyOp.pid, event);
}

static ncclResult_t profile_start_v4(void *ctx, void **event, ncclProfilerEventDescr_v4_t *e)
{
	return profile_start(ctx, e->type, e->parentObj, e->proxyOp.pid, event);
}

static ncclResult_t profile_start_v5(void *ctx, void **event, ncclProfilerEventDescr_v5_t *e)
{
	return profile_start(ctx, (int)e->type, e->parentObj, e->proxyOp.pid, event);
}

static ncclResult_t profile_start_v6(void *ctx, void **event, ncclProfilerEventDescr_v6_t *e)
{
	if (BROKEN(prof_copies) && e->type == ncclProfileCeColl && strcmp(e->coll.algo, "RING") == 0) /* it has none */
		return ncclInvalidArgument;
	return profile_start(ctx, (int)e->type, e->parentObj, e->proxyOp.pid, event);
}

static ncclResult_t profile_state_v1(void *event, ncclProfilerEventState_v1_t state,
				     ncclProfilerEventStateArgs_v1_t *args)
{
	(void)state, (void)args;
	return profile_state(event);
}

static volatile size_t profile_bytes;

static ncclResult_t profile_state_v4(void *event, ncclProfilerEventState_v4_t state,
				     ncclProfilerEventStateArgs_v4_t *args)
{
	(void)state;
	if (args || BROKEN(prof_args))
		profile_bytes = args->proxyStep.transSize;
	return profile_state(event);
}

EXPORT ncclProfiler_v1_t ncclProfiler_v1 = {"simple",	  profile_begin,    profile_start_v1,
					    profile_stop, profile_state_v1, profile_end};
EXPORT ncclProfiler_v4_t ncclProfiler_v4 = {"simple",	  profile_begin_v4, profile_start_v4,
					    profile_stop, profile_state_v4, profile_end};
EXPORT ncclProfiler_v5_t ncclProfiler_v5 = {"simple",	  profile_begin_v5, profile_start_v5,
					    profile_stop, profile_state_v4, profile_end};
EXPORT ncclProfiler_v6_t ncclProfiler_v6 = {"simple",	  profile_begin_v5, profile_start_v6,
					    profile_stop, profile_state_v4, profile_end};

#endif
