/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators made from others (split, shrink, grow), finalize and revoke; and what non-blocking communicators do in
 * the background. docs/design/0020 has the reasons.
 *
 * Meeting. The ranks of a new communicator derive its id, each for itself (gantry_ctl_derive_id), from the old one's key,
 * from the call and from the address of the first of them that can be reached. That rank serves it, the others dial
 * until it does. Nothing of this needs the old one's control plane, whose hub may have died:
 *
 *   split    the old control plane distributes all colors and keys; label: "split", which split, color
 *   shrink   without communication: all give the same list; label: "shrink", remaining ranks, how often they did that
 *   grow     by the old control plane the id of gantry_comm_grow_id travels to all: newcomers can derive nothing
 *
 * Waiting ends early (comm_stopped) when the new or the old communicator is aborted, or when the old control plane has
 * lost one of those that are waited for.
 *
 * Jobs. A call that has to wait for other ranks is a job: run by the caller, or by a thread of its own if the call does
 * not block. That thread belongs to the old communicator, or to a new one that comes from none, and is joined by the
 * next job or by destroy. While it runs, life.running of its owner and life.starting of the new one say so.
 *
 *   caller:  make, starting = 1, running = 1, thread ---> returns AGAIN      ... error: AGAIN ...   error: OK
 *   thread:                                     run, error of the new one, starting = 0, running = 0
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/launches.h"
#include "comm/report.h"
#include "inet/loop.h"
#include "inet/nic.h"

enum { CAUSE_LOOKS = 200 }; /* a millisecond each */

struct job {
	gantry_result (*run)(struct job *job);
	struct gantry_comm *parent; /* NULL: init */
	struct gantry_comm *child;  /* NULL: there is none, as of a negative color */
	int color, key;
	int abort, ends; /* shrink: ends what is in flight first; the parent's own end: finalize */
	int has_id;
	struct gantry_unique_id id; /* grow */
	uint64_t number;	    /* of the split or shrink */
	int nmembers;
	int *members; /* owned: by rank in the new one, their rank in the old one */
};

/* ---- jobs ---- */

static void job_free(struct job *job)
{
	if (job)
		free(job->members);
	free(job);
}

static struct gantry_comm *owner_of(const struct job *job)
{
	return job->parent ? job->parent : job->child;
}

/* What follows it may be looked at by other threads from now on; and the old one may go. */
static void child_done(struct gantry_comm *child)
{
	ASSERT(load_relaxed(&child->life.starting));
	child->life.parent = NULL;
	child->life.members = NULL;
	child->life.nmembers = 0;
	store_release(&child->life.starting, 0);
}

static void *job_main(void *arg)
{
	struct job *job = arg;
	struct gantry_comm *owner = owner_of(job);
	gantry_result r = job->run(job);

	if (r != GANTRY_OK && (job->child || job->ends))
		comm_fail(job->child ? job->child : job->parent, r, job->child ? job->child->life.blamed : -1,
			  gantry_last_error());
	if (job->child)
		child_done(job->child);
	ASSERT(load_relaxed(&owner->life.running));
	job_free(job);
	store_release(&owner->life.running, 0);
	return NULL;
}

/* Takes the job over. Blocking: the child is freed if it fails. */
static gantry_result job_start(struct job *job, int nonblocking, struct gantry_comm **ret_comm)
{
	struct gantry_comm *child = job->child, *owner = owner_of(job);
	struct comm_life *life = &owner->life;
	gantry_result r;

	if (job->parent)
		comm_life_wait(owner); /* a thread that has ended */
	ASSERT(!life->has_thread && !load_relaxed(&life->running));
	if (nonblocking) {
		store_release(&life->running, 1);
		if (ret_comm)
			*ret_comm = child; /* the thread may be done before we are */
		r = gantry_thread_start("gantry-life", job_main, job, &life->thread);
		life->has_thread = r == GANTRY_OK;
		if (r == GANTRY_OK)
			return GANTRY_AGAIN;
		store_release(&life->running, 0);
	} else {
		r = job->run(job);
	}
	if (child)
		child_done(child);
	if (r != GANTRY_OK && child) {
		comm_free(child);
		child = NULL;
	}
	if (ret_comm)
		*ret_comm = child;
	job_free(job);
	return r;
}

static gantry_result job_make(struct gantry_comm *parent, struct gantry_comm *child,
			      gantry_result (*run)(struct job *job), struct job **ret_job)
{
	struct job *job = calloc(1, sizeof(*job));
	size_t room = parent ? (size_t)parent->nranks : 1;

	if (job)
		job->members = calloc(room, sizeof(*job->members));
	if (!job || !job->members) {
		job_free(job);
		if (child)
			comm_free(child);
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to make a communicator");
	}
	job->parent = parent;
	job->child = child;
	job->run = run;
	*ret_job = job;
	return GANTRY_OK;
}

void comm_life_wait(struct gantry_comm *comm)
{
	struct comm_life *life = &comm->life;

	if (life->has_thread)
		pthread_join(life->thread, NULL);
	life->has_thread = 0;
	/* One that another communicator's thread makes, or works for (later.c). */
	while (load_acquire(&life->starting) || load_acquire(&life->running))
		usleep(1000);
}

/* ---- what may be called when ---- */

static gantry_result not_in_progress(const struct gantry_comm *comm, const char *what)
{
	if (inet_forked(comm->life.forks))
		return inet_refuse_forked(what);
	if (load_acquire(&comm->life.starting) || load_acquire(&comm->life.running))
		FAIL_NOW(GANTRY_ERR_USAGE, "%s: the communicator is not ready (gantry_comm_error returns GANTRY_AGAIN)",
			 what);
	if (comm->life.finalized)
		FAIL_NOW(GANTRY_ERR_USAGE, "%s: the communicator is finalized", what);
	return GANTRY_OK;
}

gantry_result comm_ready(struct gantry_comm *comm, const char *what)
{
	gantry_result r;

	TRY_NOW(not_in_progress(comm, what));
	r = comm_check(comm);
	if (r == GANTRY_ERR_USAGE && comm_is_revoked(comm))
		FAIL_NOW(GANTRY_ERR_USAGE, "%s: the communicator was revoked", what);
	return r;
}

/* For those that make another one: a revoked one is fine, and with abort also one that has failed. */
static gantry_result may_bear(struct gantry_comm *comm, const char *what, int abort)
{
	gantry_result r;

	TRY_NOW(not_in_progress(comm, what));
	if (!comm->life.made)
		FAIL_NOW(GANTRY_ERR_USAGE, "%s: the parent communicator failed to initialise", what);
	if (abort || load_acquire(&comm->life.revoked))
		return GANTRY_OK;
	r = comm_ready(comm, what);
	if (r != GANTRY_OK && r != GANTRY_ERR_USAGE) {
		char text[COMM_ERROR_TEXT];

		gantry_comm_error(comm, NULL, text, sizeof(text));
		gantry_set_last_error(text);
	}
	return r;
}

/* Without the old control plane nothing tells a rank that is late from one that is dead: then meeting has a deadline. */
static gantry_result blind_stop(struct gantry_comm *comm)
{
	uint64_t now = gantry_now_ns(), limit = gantry_params()->connect_timeout;

	ASSERT(comm->life.parent);
	if (comm->ctl || !gantry_ctl_is_over(comm->life.parent->ctl)) {
		comm->life.blind_since = 0;
		return GANTRY_OK;
	}
	if (!comm->life.blind_since)
		comm->life.blind_since = now;
	/* The hub of the new one keeps the same time and knows which ranks are missing: it comes first. */
	if (now - comm->life.blind_since <= limit + limit / 4)
		return GANTRY_OK;
	FAIL_NOW(GANTRY_ERR_TIMEOUT,
		 "not all ranks of the new communicator joined within %.1f s (GANTRY_CONNECT_TIMEOUT); the control "
		 "plane of %s is gone, so it is unknown whether they are alive",
		 (double)limit / 1e9, COMM_TEXT_OF(comm->life.parent));
}

uint64_t comm_blind_patience(const struct gantry_comm *comm)
{
	const struct gantry_comm *parent = comm->life.parent;

	return parent && gantry_ctl_is_over(parent->ctl) ? gantry_params()->connect_timeout : 0;
}

gantry_result comm_stopped(void *ctx)
{
	struct gantry_comm *comm = ctx, *parent = comm->life.parent;
	char text[COMM_ERROR_TEXT];

	if (load_acquire(&comm->life.cancel) || (parent && load_acquire(&parent->life.cancel)))
		goto aborted;
	for (int i = 0; parent && i < comm->life.nmembers; i++) {
		int rank = comm->life.members[i];
		gantry_result r = gantry_ctl_peer(parent->ctl, rank);

		/* Once all have met, a rank may be through before this one and leave the old one. Before that it cannot. */
		if (r == GANTRY_OK || (r == GANTRY_ERR_PEER_CLOSED && comm->ctl))
			continue;
		snprintf(text, sizeof(text), "%s", gantry_last_error());
		comm->life.blamed = i;
		FAIL_NOW(r, "cannot create a communicator of %s from %s: one of these ranks was lost: %s",
			 COUNT_TEXT(comm->life.nmembers, "rank"), COMM_TEXT_OF(parent), text);
	}
	return parent ? blind_stop(comm) : GANTRY_OK;
aborted: /* as wanted: nothing for the log */
	gantry_set_last_error("aborted by the caller");
	return GANTRY_ERR_ABORTED;
}

/* ---- meeting ---- */

static gantry_result run_init(struct job *job)
{
	return comm_start(job->child, 0);
}

gantry_result comm_init_run(struct gantry_comm *comm, int nonblocking, struct gantry_comm **ret_comm)
{
	struct job *job;

	TRY_NOW(job_make(NULL, comm, run_init, &job));
	return job_start(job, nonblocking, ret_comm);
}

/* The first of the members whose process can be reached; -1: none. */
static int leader_of(const struct job *job)
{
	for (int i = 0; i < job->nmembers; i++)
		if (job->parent->life.addrs[job->members[i]].sa.sa_family)
			return i;
	return -1;
}

/* Data that all members of the new communicator have, and no other rank of the same parent. Ranks of different byte
 * order do not match. */
struct label {
	char kind[8];
	uint64_t number, which;
};

/* The leader's half: a hub. If the leader fails, the others hear why, also those that come later. */
static gantry_result serve_and_start(struct job *job)
{
	struct gantry_comm *child = job->child;
	gantry_result r;

	TRY_NOW(gantry_ctl_serve_derived(job->parent->ctl, &child->life.unique));
	r = comm_start(child, 1);
	if (r != GANTRY_OK)
		gantry_ctl_fail_id(&child->life.unique, r, gantry_last_error());
	return r;
}

/* "1-3, 5": the members in their order, as the old communicator numbers them; cut where it does not fit. */
static void list_members(const struct job *job, char *buf, size_t room)
{
	const int *m = job->members;

	for (int i = 0, end; i < job->nmembers; i = end + 1) {
		for (end = i; end + 1 < job->nmembers && m[end + 1] == m[end] + 1; end++)
			;
		gantry_text_add(buf, room, "%s%d", i ? ", " : "", m[i]);
		if (end > i)
			gantry_text_add(buf, room, "-%d", m[end]);
	}
}

/* A rank that could not be reached has a number in the new communicator that its users have not seen yet. */
static gantry_result explain_failure(const struct job *job, int leader, gantry_result r)
{
	char text[2 * COMM_ERROR_TEXT], list[128] = "";

	if (r != GANTRY_ERR_UNREACHABLE && r != GANTRY_ERR_TIMEOUT && r != GANTRY_ERR_PEER_LOST)
		return r;
	list_members(job, list, sizeof(list));
	if (job->child->life.blamed >= 0) /* comm_stopped has reported it */
		return r;
	snprintf(text, sizeof(text), "%s", gantry_last_error());
	FAIL_NOW(r, "%s (the new communicator consists of ranks %s of %s, in this order; its root is rank %d)", text,
		 list, COMM_TEXT_OF(job->parent), job->members[leader]);
}

/* The members of the new communicator are known: it meets. */
static gantry_result meet_members(struct job *job, const char *kind, uint64_t number, uint64_t which)
{
	struct gantry_comm *child = job->child, *parent = job->parent;
	struct label label = {.number = number, .which = which};
	int leader = leader_of(job), own = -1;
	gantry_result r;

	for (int i = 0; i < job->nmembers; i++)
		if (job->members[i] == parent->rank)
			own = i;
	ASSERT(job->nmembers <= parent->nranks);
	child->life.parent = parent;
	child->life.members = job->members;
	child->life.nmembers = job->nmembers;
	store_relaxed(&child->nranks, job->nmembers);
	store_relaxed(&child->rank, own);
	if (job->nmembers == 1) {
		TRY_NOW(gantry_ctl_create_id(&child->life.unique));
		return comm_start(child, 0);
	}
	if (leader < 0)
		FAIL_NOW(GANTRY_ERR_UNREACHABLE,
			 "no rank of the new communicator is reachable: none could listen when %s was created",
			 COMM_TEXT_OF(parent));
	snprintf(label.kind, sizeof(label.kind), "%s", kind);
	TRY_NOW(gantry_ctl_derive_id(parent->ctl, &parent->life.addrs[job->members[leader]], &label, sizeof(label),
				     &child->life.unique));
	r = own == leader ? serve_and_start(job) : comm_start(child, 1);
	return r == GANTRY_OK ? r : explain_failure(job, leader, r);
}

/* The new communicator's config: the caller's, or as the old one's is. */
static gantry_result child_make(struct gantry_comm *parent, const struct gantry_comm_config *config,
				int *ret_nonblocking, struct gantry_comm **ret_child)
{
	struct gantry_comm_config own = {.struct_size = sizeof(own),
					 .transport = parent->transport,
					 .channels = parent->life.channels,
					 .name = parent->life.name,
					 .nonblocking = parent->life.nonblocking,
					 .traffic_class = parent->life.traffic_class,
					 .network = parent->life.network};

	if (config)
		TRY_NOW(comm_take_config(config, &own));
	own.device = parent->device;
	own.rank = -1;
	own.nranks = 0;
	*ret_nonblocking = own.nonblocking;
	if (!ret_child)
		return GANTRY_OK;
	TRY_NOW(comm_make(&own, ret_child));
	(*ret_child)->coll->collnet |= !config && parent->coll->collnet;
	return GANTRY_OK;
}

/* An allgather by the old one's control plane. If that has lost a rank, its error names it, and the caller of the
 * allgather may get the end of the hub before that is latched. */
static gantry_result gather_in(struct gantry_comm *parent, const void *mine, size_t size, void *all)
{
	gantry_result r = gantry_ctl_allgather(parent->ctl, mine, size, all), error = GANTRY_OK;
	char text[COMM_ERROR_TEXT];
	int about;

	if (r != GANTRY_ERR_PEER_LOST && r != GANTRY_ERR_PEER_SILENT && r != GANTRY_ERR_PEER_CLOSED)
		return r;
	for (int i = 0; i < CAUSE_LOOKS && !load_acquire(&parent->error_seen); i++)
		usleep(1000);
	comm_mu_lock(&parent->mu);
	about = parent->error.rank;
	if (about >= 0 && !comm_is_revoked(parent)) {
		error = parent->error.result;
		snprintf(text, sizeof(text), "%s", parent->error.text);
	}
	comm_mu_unlock(&parent->mu);
	if (error == GANTRY_OK || error == GANTRY_ERR_ABORTED)
		return r;
	gantry_set_last_error(text);
	return error;
}

/* ---- split ---- */

struct vote {
	int32_t color, key;
};

/* Of those with this rank's color: by key, then by rank. */
static void choose_members(struct job *job, const struct vote *votes)
{
	int n = 0;

	for (int i = 0; i < job->parent->nranks; i++) {
		int at = n;

		if (votes[i].color != job->color)
			continue;
		for (; at > 0 && votes[job->members[at - 1]].key > votes[i].key; at--)
			job->members[at] = job->members[at - 1];
		job->members[at] = i;
		n++;
	}
	job->nmembers = n;
}

static gantry_result run_split(struct job *job)
{
	gantry_result r = GANTRY_OK;
	struct vote mine = {job->color, job->key}, *votes = calloc((size_t)job->parent->nranks, sizeof(*votes));

	if (!votes)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", job->parent->nranks);
	TRY(gather_in(job->parent, &mine, sizeof(mine), votes));
	if (!job->child)
		goto out;
	choose_members(job, votes);
	TRY(meet_members(job, "split", job->number, (uint64_t)(uint32_t)job->color));
out:
	free(votes);
	return r;
}

gantry_result gantry_comm_split(struct gantry_comm *comm, int color, int key, const struct gantry_comm_config *config,
				struct gantry_comm **ret_comm)
{
	struct gantry_comm *child = NULL;
	struct job *job;
	int nonblocking;

	if (!comm || !ret_comm)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_split: comm or ret_comm is NULL");
	TRY_NOW(may_bear(comm, "gantry_comm_split", 0));
	TRY_NOW(child_make(comm, config, &nonblocking, color >= 0 ? &child : NULL));
	TRY_NOW(job_make(comm, child, run_split, &job));
	job->color = color < 0 ? -1 : color;
	job->key = key;
	job->number = comm->life.splits++;
	return job_start(job, nonblocking, ret_comm);
}

/* ---- shrink ---- */

/* Hash of the remaining ranks; FNV-1a. */
static uint64_t hash_members(const struct job *job)
{
	uint64_t h = 0xcbf29ce484222325;

	for (int i = 0; i < job->nmembers; i++)
		h = (h ^ (uint64_t)job->members[i]) * 0x100000001b3;
	return h;
}

static gantry_result run_shrink(struct job *job)
{
	gantry_result r;

	if (job->abort) {
		comm_fail(job->parent, GANTRY_ERR_ABORTED, job->parent->rank, "ended by gantry_comm_shrink");
		comm_end(job->parent);
	}
	r = comm_drain(job->parent);
	if (r != GANTRY_OK && !job->abort && !load_acquire(&job->parent->life.revoked))
		return r;
	return meet_members(job, "shrink", job->number, hash_members(job));
}

/* Which shrink to these members this is: they count alike, whatever others have called. */
static gantry_result count_shrink(struct gantry_comm *comm, const struct job *job, uint64_t *ret_number)
{
	struct comm_life *life = &comm->life;
	struct comm_shrink *grown;
	uint64_t members = hash_members(job);

	for (size_t i = 0; i < life->nshrinks; i++) {
		if (life->shrinks[i].members == members) {
			*ret_number = life->shrinks[i].count++;
			return GANTRY_OK;
		}
	}
	grown = realloc(life->shrinks, (life->nshrinks + 1) * sizeof(*grown));
	if (!grown)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to shrink a communicator");
	life->shrinks = grown;
	grown[life->nshrinks++] = (struct comm_shrink){members, 1};
	*ret_number = 0;
	return GANTRY_OK;
}

static gantry_result list_remaining(struct job *job, const int *exclude, int nexclude)
{
	const struct gantry_comm *comm = job->parent;
	int n = 0;

	for (int i = 0; i < nexclude; i++) {
		if (exclude[i] < 0 || exclude[i] >= comm->nranks)
			FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_shrink: there is no rank %d in %s", exclude[i],
				 COUNT_TEXT(comm->nranks, "rank"));
		if (exclude[i] == comm->rank)
			FAIL_NOW(GANTRY_ERR_INVALID,
				 "gantry_comm_shrink: rank %d is in its own exclude list; excluded ranks must not call",
				 comm->rank);
	}
	for (int i = 0; i < comm->nranks; i++) {
		int out = 0;

		for (int k = 0; k < nexclude; k++)
			out |= exclude[k] == i;
		if (!out)
			job->members[n++] = i;
	}
	ASSERT(n > 0); /* this rank remains */
	job->nmembers = n;
	return GANTRY_OK;
}

gantry_result gantry_comm_shrink(struct gantry_comm *comm, const int *exclude, int nexclude, int abort,
				 const struct gantry_comm_config *config, struct gantry_comm **ret_comm)
{
	gantry_result r = GANTRY_OK;
	struct gantry_comm *child = NULL;
	struct job *job = NULL;
	int nonblocking;

	if (!comm || !ret_comm || nexclude < 1 || !exclude)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "gantry_comm_shrink: comm, exclude or ret_comm is NULL, or the exclude list is empty");
	TRY_NOW(may_bear(comm, "gantry_comm_shrink", abort));
	TRY_NOW(job_make(comm, NULL, run_shrink, &job));
	TRY(list_remaining(job, exclude, nexclude));
	TRY(child_make(comm, config, &nonblocking, &child));
	job->child = child;
	r = count_shrink(comm, job, &job->number);
	if (r != GANTRY_OK) {
		comm_free(child);
		goto out;
	}
	job->abort = abort;
	return job_start(job, nonblocking, ret_comm);
out:
	job_free(job);
	return r;
}

/* ---- grow ---- */

gantry_result gantry_comm_grow_id(struct gantry_comm *comm, struct gantry_unique_id *ret_id)
{
	if (!comm || !ret_id)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_grow_id: comm or ret_id is NULL");
	TRY_NOW(comm_ready(comm, "gantry_comm_grow_id"));
	return gantry_ctl_create_id(ret_id);
}

struct grow_part {
	int32_t has_id;
	struct gantry_unique_id id;
};

/* The one id that a rank has passed. */
static gantry_result find_id(const struct job *job, const struct grow_part *parts, struct gantry_unique_id *ret_id)
{
	int found = -1;

	for (int i = 0; i < job->parent->nranks; i++) {
		if (!parts[i].has_id)
			continue;
		if (found >= 0 && memcmp(&parts[i].id, &parts[found].id, sizeof(parts[i].id)))
			FAIL_NOW(GANTRY_ERR_USAGE, "gantry_comm_grow: rank %d and rank %d have different ids", found,
				 i);
		found = i;
	}
	if (found < 0)
		FAIL_NOW(GANTRY_ERR_USAGE, "gantry_comm_grow: no rank passed an id from gantry_comm_grow_id");
	*ret_id = parts[found].id;
	return GANTRY_OK;
}

static gantry_result run_grow(struct job *job)
{
	gantry_result r = GANTRY_OK;
	struct gantry_comm *parent = job->parent, *child = job->child;
	struct grow_part mine = {.has_id = job->has_id, .id = job->id};
	struct grow_part *parts = calloc((size_t)parent->nranks, sizeof(*parts));

	if (!parts)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", parent->nranks);
	TRY(gather_in(parent, &mine, sizeof(mine), parts));
	TRY(find_id(job, parts, &child->life.unique));
	child->life.parent = parent;
	child->life.members = job->members;
	child->life.nmembers = job->nmembers;
	TRY(comm_start(child, 0));
out:
	free(parts);
	if (r != GANTRY_OK && job->has_id)
		gantry_ctl_fail_id(&job->id, r, gantry_last_error());
	return r;
}

/* A rank that was not in the old communicator. */
static gantry_result grow_newcomer(int nranks, const struct gantry_unique_id *id, int rank,
				   const struct gantry_comm_config *config, struct gantry_comm **ret_comm)
{
	struct gantry_comm_config own;

	if (!id || !config)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_grow: a new rank must pass the id, its rank and a config");
	TRY_NOW(comm_take_config(config, &own));
	own.struct_size = sizeof(own);
	own.id = *id;
	own.nids = 0;
	own.rank = rank;
	own.nranks = nranks;
	return gantry_comm_init(&own, ret_comm);
}

gantry_result gantry_comm_grow(struct gantry_comm *comm, int nranks, const struct gantry_unique_id *id, int rank,
			       const struct gantry_comm_config *config, struct gantry_comm **ret_comm)
{
	struct gantry_comm *child;
	struct job *job;
	int nonblocking;

	if (!ret_comm)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_grow: ret_comm is NULL");
	if (!comm)
		return grow_newcomer(nranks, id, rank, config, ret_comm);
	TRY_NOW(comm_ready(comm, "gantry_comm_grow"));
	if (nranks <= comm->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_grow: cannot grow from %d to %d ranks", comm->nranks, nranks);
	if (rank != -1 && rank != comm->rank)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_grow: existing rank %d must keep its number, got %d",
			 comm->rank, rank);
	TRY_NOW(child_make(comm, config, &nonblocking, &child));
	child->rank = comm->rank;
	child->nranks = nranks;
	TRY_NOW(job_make(comm, child, run_grow, &job));
	for (int i = 0; i < comm->nranks; i++)
		job->members[i] = i;
	job->nmembers = comm->nranks;
	job->has_id = id != NULL;
	if (id)
		job->id = *id;
	return job_start(job, nonblocking, ret_comm);
}

/* ---- finalize, revoke ---- */

static gantry_result run_finalize(struct job *job)
{
	TRY_NOW(comm_drain(job->parent));
	return comm_last_meeting(job->parent);
}

gantry_result gantry_comm_finalize(struct gantry_comm *comm)
{
	struct job *job;

	if (!comm)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_finalize: no communicator");
	if (comm->life.finalized)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_finalize: the communicator is already finalized");
	TRY_NOW(comm_ready(comm, "gantry_comm_finalize"));
	TRY_NOW(job_make(comm, NULL, run_finalize, &job));
	job->ends = 1;
	comm->life.finalized = 1;
	return job_start(job, comm->life.nonblocking, NULL);
}

gantry_result gantry_comm_revoke(struct gantry_comm *comm)
{
	if (!comm)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_revoke: no communicator");
	TRY_NOW(not_in_progress(comm, "gantry_comm_revoke"));
	comm_revoke(comm);
	if (comm->life.nonblocking)
		return comm_works_busy(comm) ? GANTRY_AGAIN : GANTRY_OK;
	comm_end(comm);
	return GANTRY_OK;
}
