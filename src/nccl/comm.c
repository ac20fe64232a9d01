/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of NCCL's API: how they begin and end, and what they say of themselves.
 *
 * ENDING TOGETHER. The end of a communicator of Gantry waits for all its ranks. NCCL's callers may have several ranks
 * in one thread and end them one after the other, without a group. So of the ranks that this process has of one
 * communicator, all but the last to be finalized or destroyed are only marked; the last call ends all of them, at the
 * same time. A rank that is aborted waits for nobody and is not waited for.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "nccl/nccl.h"

enum { CHANNELS_MAX = COMM_CHANNELS_MAX, VERSION_WITH_TRAFFIC_CLASS = 22600 };
enum { UNTIL_MADE = 2, MAKE_NAP_NS = 200000 }; /* the first: see gantry_comm_config.nonblocking */
#define BEGIN_PATIENCE_NS 1000000000ull
#define REAP_PATIENCE_NS 1000000000ull /* how long ncclCommAbort waits for memory to be given back */

MUTEX_KIND(nccl_comms_mu);
static struct nccl_comms_mu comms_mu;
static struct gantry_list comms GUARDED_BY(nccl_comms_mu) = {&comms, &comms};

struct ncclComm *nccl_comm_of(ncclComm_t c, const char *function)
{
	if (c && c->magic == NCCL_COMM_MAGIC && load_acquire(&c->comm))
		return c;
	gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__, "%s: %s", function,
		    !c				  ? "the communicator is NULL"
		    : c->magic == NCCL_COMM_MAGIC ? "the communicator is still being made"
						  : "this is no communicator, or it was destroyed");
	return NULL;
}

/* ---- ncclConfig_t ---- */

static bool set_wrongly(int value, int least, int most)
{
	return value != NCCL_CONFIG_UNDEF_INT && (value < least || value > most);
}

static gantry_result check_config(const ncclConfig_t *c)
{
	if (set_wrongly(c->blocking, 0, 1))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t: blocking is %d, neither 0 nor 1", c->blocking);
	if (set_wrongly(c->cgaClusterSize, 0, 8))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t: cgaClusterSize is %d, not 0 to 8", c->cgaClusterSize);
	if (set_wrongly(c->minCTAs, 1, INT_MAX) || set_wrongly(c->maxCTAs, 1, INT_MAX) ||
	    (c->maxCTAs > 0 && c->minCTAs > c->maxCTAs))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t: minCTAs is %d and maxCTAs %d", c->minCTAs, c->maxCTAs);
	if (set_wrongly(c->splitShare, 0, 1))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclConfig_t: splitShare is %d, neither 0 nor 1", c->splitShare);
	return GANTRY_OK;
}

/* The caller's struct may be shorter or longer than ours: what it lacks is not set, what we do not know is left. */
static gantry_result read_config(const ncclConfig_t *theirs, ncclConfig_t *ret)
{
	const int none = NCCL_CONFIG_UNDEF_INT;
	size_t size;

	*ret = (ncclConfig_t){.size = sizeof(*ret),
			      .magic = NCCL_API_MAGIC,
			      .blocking = none,
			      .cgaClusterSize = none,
			      .minCTAs = none,
			      .maxCTAs = none,
			      .splitShare = none,
			      .trafficClass = none};
	if (!theirs)
		return GANTRY_OK;
	if (theirs->magic != NCCL_API_MAGIC)
		FAIL_NOW(GANTRY_ERR_INVALID, "an ncclConfig_t that was not initialised by NCCL_CONFIG_INITIALIZER");
	size = theirs->size;
	if (size < offsetof(ncclConfig_t, cgaClusterSize))
		FAIL_NOW(GANTRY_ERR_INVALID, "an ncclConfig_t of %zu bytes", size);
	memcpy(ret, theirs, size < sizeof(*ret) ? size : sizeof(*ret));
	if (ret->version < VERSION_WITH_TRAFFIC_CLASS)
		ret->trafficClass = none;
	return check_config(ret);
}

/* Blocks of NCCL's kernels are channels here: a wish beyond what would be taken anyway is followed. */
static int channels_of(const ncclConfig_t *c, const struct gantry_device *device)
{
	int usual = (int)gantry_params()->channels;

	usual = usual ? usual : gantry_traits(device)->channels;
	if (c->maxCTAs > 0 && c->maxCTAs < usual)
		return c->maxCTAs;
	if (c->minCTAs > usual)
		return c->minCTAs < CHANNELS_MAX ? c->minCTAs : CHANNELS_MAX;
	return 0;
}

/* ---- beginning ---- */

static gantry_result comm_new(struct gantry_device *device, struct ncclComm **ret)
{
	struct ncclComm *c = calloc(1, sizeof(*c));

	if (!c)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a communicator");
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
static void comm_delete(struct ncclComm *c)
{
	if (c->own)
		gantry_stream_destroy(c->device, c->own);
	gantry_device_close(c->device);
	c->magic = 0;
	free(c);
}

/* The caller's variable has the communicator at once, and NULL after an error. Another thread may have aborted it, and
 * will free it. */
static void unmake(struct nccl_job *job)
{
	struct ncclComm *c = job->c;
	bool aborted;

	job->c = NULL;
	if (!c)
		return;
	store_release(job->made, NULL);
	nccl_comms_mu_lock(&comms_mu);
	aborted = c->ending == NCCL_ENDS;
	if (!aborted)
		gantry_list_remove(&c->node);
	nccl_comms_mu_unlock(&comms_mu);
	nccl_leave(c);
	if (aborted)
		return;
	gantry_comm_destroy(c->comm);
	comm_delete(c);
}

/*
 * Begins to make the communicator, also if it will block: so that all of a group can be begun by one thread, and so that
 * another thread can abort it.
 */
static gantry_result begin_make(struct nccl_job *job)
{
	struct gantry_comm *comm = NULL;
	gantry_result r = job->dropped ? GANTRY_ERR_CANCELLED : job->make(job, &comm);

	if (job->c)
		store_release(&job->c->comm, comm);
	return r;
}

/* Until it is made, or has failed. */
static gantry_result await_made(struct gantry_comm *comm)
{
	char text[COMM_ERROR_TEXT] = "";
	struct gantry_waiter w;
	gantry_result r;

	gantry_waiter_init(&w, NULL);
	while ((r = gantry_comm_error(comm, NULL, text, sizeof(text))) == GANTRY_AGAIN)
		gantry_waiter_idle(&w, MAKE_NAP_NS);
	if (r != GANTRY_OK)
		gantry_set_last_error(text);
	return r;
}

static gantry_result run_make(struct nccl_job *job)
{
	gantry_result r = job->r;

	if (r == GANTRY_AGAIN && job->config.nonblocking == UNTIL_MADE)
		r = await_made(job->c ? job->c->comm : job->parent->comm);
	if (job->parent)
		nccl_leave(job->parent);
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		unmake(job);
	else if (job->c)
		nccl_leave(job->c);
	return r;
}

static gantry_result make_init(struct nccl_job *job, struct gantry_comm **ret)
{
	return gantry_comm_init(&job->config, ret);
}

static gantry_result make_split(struct nccl_job *job, struct gantry_comm **ret)
{
	return gantry_comm_split(job->parent->comm, job->color, job->key, &job->config, ret);
}

static gantry_result make_shrink(struct nccl_job *job, struct gantry_comm **ret)
{
	return gantry_comm_shrink(job->parent->comm, job->exclude, job->nexclude, job->abort, &job->config, ret);
}

static gantry_result make_grow(struct nccl_job *job, struct gantry_comm **ret)
{
	return gantry_comm_grow(job->parent ? job->parent->comm : NULL, job->nranks, job->by, job->rank, &job->config,
				ret);
}

/* NCCL_COMM_BLOCKING counts before the caller's wish, and that before what the old communicator is. */
static bool wants_blocking(const ncclConfig_t *config, const struct ncclComm *parent)
{
	if (nccl_env_blocking() >= 0)
		return nccl_env_blocking();
	if (config->blocking != NCCL_CONFIG_UNDEF_INT)
		return config->blocking;
	return !parent || parent->blocking;
}

/* A job with what the caller wants of the communicator. parent: the one that it is made from, whose settings hold where
 * there is no config, or NULL. */
static gantry_result job_new(gantry_result (*make)(struct nccl_job *, struct gantry_comm **), struct ncclComm *parent,
			     const struct gantry_device *device, ncclComm_t *into, const ncclConfig_t *wanted,
			     struct nccl_job **ret)
{
	gantry_result r = GANTRY_OK;
	struct nccl_job *job = calloc(1, sizeof(*job));
	ncclConfig_t config;

	if (!job)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a communicator");
	TRY(read_config(wanted, &config));
	job->begin = begin_make;
	job->run = run_make;
	job->make = make;
	job->parent = parent;
	job->made = into;
	job->config.struct_size = sizeof(job->config);
	job->config.nonblocking = wants_blocking(&config, parent) ? UNTIL_MADE : 1;
	if (parent && !wanted) {
		job->config.transport = parent->comm->transport;
		job->config.channels = parent->comm->life.channels;
		job->config.name = parent->comm->life.name;
		job->config.traffic_class = parent->comm->life.traffic_class;
	} else {
		job->config.channels = channels_of(&config, device);
		if (config.trafficClass >= 0 && config.trafficClass <= 255)
			job->config.traffic_class = config.trafficClass;
		if (config.commName) {
			snprintf(job->name, sizeof(job->name), "%s", config.commName);
			job->config.name = job->name;
		}
	}
	*ret = job;
	job = NULL;
out:
	nccl_job_free(job);
	return r;
}

/* The communicator that the job will make, into the caller's variable. Takes the device over. */
static gantry_result job_comm(struct nccl_job *job, struct gantry_device *device)
{
	gantry_result r = comm_new(device, &job->c);

	if (r != GANTRY_OK) {
		gantry_device_close(device);
		return r;
	}
	job->c->blocking = job->config.nonblocking == UNTIL_MADE;
	nccl_enter(job->c); /* until it is made */
	job->config.device = device;
	store_release(job->made, job->c);
	return GANTRY_OK;
}

struct init_args {
	const char *function;
	int nranks, rank;
	const ncclUniqueId *ids;
	int nids;
	const ncclConfig_t *config;
	struct gantry_device *device; /* taken over */
};

/* The caller's may be gone when a group ends. */
static gantry_result copy_ids(const struct init_args *a, struct nccl_job *job)
{
	job->ids = calloc((size_t)a->nids, sizeof(*job->ids));
	if (!job->ids)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %d ids", a->nids);
	memcpy(job->ids, a->ids, (size_t)a->nids * sizeof(*job->ids));
	job->config.ids = job->ids;
	job->config.nids = a->nids;
	return GANTRY_OK;
}

static gantry_result init(const struct init_args *a, ncclComm_t *into)
{
	gantry_result r = GANTRY_OK;
	struct nccl_job *job = NULL;
	struct gantry_device *device = a->device;

	if (!into)
		FAIL(GANTRY_ERR_INVALID, "%s: no place for the communicator", a->function);
	if (a->nranks < 1 || a->rank < 0 || a->rank >= a->nranks)
		FAIL(GANTRY_ERR_INVALID, "%s: rank %d of %d", a->function, a->rank, a->nranks);
	*into = NULL;
	TRY(nccl_begin());
	nccl_env_begun();
	nccl_env_tell(a->rank);
	if (!device)
		TRY(nccl_device_here(&device));
	TRY(job_new(make_init, NULL, device, into, a->config, &job));
	memcpy(&job->config.id, a->ids, sizeof(*a->ids));
	if (a->nids > 1)
		TRY(copy_ids(a, job));
	job->config.rank = a->rank;
	job->config.nranks = a->nranks;
	r = job_comm(job, device);
	device = NULL;
	if (r != GANTRY_OK)
		goto out;
	r = nccl_group_run(job);
	job = NULL;
	return r;
out:
	gantry_device_close(device);
	nccl_job_free(job);
	return nccl_group_failed(r);
}

NCCL_FUNCTION(ncclResult_t, GetUniqueId, (ncclUniqueId * id))
{
	struct gantry_unique_id made_id;
	gantry_result r = id ? nccl_begin() : GANTRY_ERR_INVALID;

	nccl_env_begun();
	if (r == GANTRY_OK)
		r = gantry_unique_id_create(&made_id);
	if (r == GANTRY_OK)
		memcpy(id, &made_id, sizeof(*id));
	return nccl_result(r);
}

NCCL_FUNCTION(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))
{
	return nccl_result(init(&(struct init_args){"ncclCommInitRank", nranks, rank, &id, 1, NULL, NULL}, comm));
}

NCCL_FUNCTION(ncclResult_t, CommInitRankConfig,
	      (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))
{
	return nccl_result(
		init(&(struct init_args){"ncclCommInitRankConfig", nranks, rank, &id, 1, config, NULL}, comm));
}

NCCL_FUNCTION(ncclResult_t, CommInitRankScalable,
	      (ncclComm_t * comm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config))
{
	if (nids < 1 || nids > nranks || !ids)
		return nccl_result(nccl_group_failed(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
								 "ncclCommInitRankScalable: %d ids", nids)));
	return nccl_result(
		init(&(struct init_args){"ncclCommInitRankScalable", nranks, rank, ids, nids, config, NULL}, comm));
}

static gantry_result init_all(ncclComm_t *into, int ndev, const int *devs)
{
	gantry_result r = GANTRY_OK, end;
	struct gantry_unique_id id;
	struct init_args a = {.function = "ncclCommInitAll", .nranks = ndev, .ids = (void *)&id, .nids = 1};

	if (!into || ndev < 0)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommInitAll: %d devices", ndev);
	if (!ndev)
		return GANTRY_OK;
	TRY_NOW(nccl_begin());
	TRY_NOW(gantry_unique_id_create(&id));
	TRY_NOW(nccl_group_begin());
	for (int i = 0; i < ndev && r == GANTRY_OK; i++) {
		a.rank = i;
		a.device = NULL;
		r = nccl_group_failed(nccl_device_numbered(devs ? devs[i] : i, &a.device));
		if (r == GANTRY_OK)
			r = init(&a, &into[i]);
	}
	end = nccl_group_finish();
	return r == GANTRY_OK ? end : r;
}

NCCL_FUNCTION(ncclResult_t, CommInitAll, (ncclComm_t * comms_made, int ndev, const int *devs))
{
	return nccl_result(init_all(comms_made, ndev, devs));
}

/* ---- from another communicator ---- */

/* The device of a communicator that is made from this one: the same, with a reference of its own. */
static gantry_result same_device(const struct ncclComm *c, struct gantry_device **ret)
{
	return gantry_device_open(c->device->kind, c->device->index, ret);
}

/* The job of a new communicator from `c`, which is entered until the job has run. */
static gantry_result job_from(gantry_result (*make)(struct nccl_job *, struct gantry_comm **), struct ncclComm *c,
			      bool member, ncclComm_t *into, const ncclConfig_t *config, struct nccl_job **ret)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *device = NULL;
	struct nccl_job *job = NULL;

	*into = NULL;
	TRY(job_new(make, c, c->device, into, config, &job));
	if (member) {
		TRY(same_device(c, &device));
		TRY(job_comm(job, device));
	}
	nccl_enter(c);
	*ret = job;
	job = NULL;
out:
	nccl_job_free(job);
	return r;
}

static gantry_result split(ncclComm_t comm, int color, int key, ncclComm_t *into, const ncclConfig_t *config)
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommSplit");
	struct nccl_job *job;

	if (!c)
		return GANTRY_ERR_INVALID;
	if (!into)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommSplit: no place for the communicator");
	if (color < NCCL_SPLIT_NOCOLOR)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommSplit: color %d", color);
	TRY_NOW(job_from(make_split, c, color >= 0, into, config, &job));
	job->color = color;
	job->key = key;
	return nccl_group_run(job);
}

NCCL_FUNCTION(ncclResult_t, CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *into, ncclConfig_t *config))
{
	return nccl_result(nccl_group_failed(split(comm, color, key, into, config)));
}

static gantry_result shrink(ncclComm_t comm, const int *exclude, int n, ncclComm_t *into, const ncclConfig_t *config,
			    int flags)
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommShrink");
	struct nccl_job *job;

	if (!c)
		return GANTRY_ERR_INVALID;
	if (!into || !exclude || n < 1 || n >= gantry_comm_size(c->comm) || (flags & ~NCCL_SHRINK_ABORT))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommShrink: %d ranks to exclude, flags %d", n, flags);
	for (int i = 0; i < n; i++)
		if (exclude[i] < 0 || exclude[i] >= gantry_comm_size(c->comm) ||
		    exclude[i] == gantry_comm_rank(c->comm))
			FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommShrink: rank %d is to be excluded", exclude[i]);
	TRY_NOW(job_from(make_shrink, c, true, into, config, &job));
	job->exclude = malloc((size_t)n * sizeof(*exclude)); /* the caller's may be gone when the job runs */
	if (!job->exclude) {
		unmake(job);
		nccl_leave(c);
		nccl_job_free(job);
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a communicator");
	}
	memcpy(job->exclude, exclude, (size_t)n * sizeof(*exclude));
	job->nexclude = n;
	job->abort = flags & NCCL_SHRINK_ABORT;
	return nccl_group_run(job);
}

NCCL_FUNCTION(ncclResult_t, CommShrink,
	      (ncclComm_t comm, int *exclude, int nexclude, ncclComm_t *into, ncclConfig_t *config, int flags))
{
	return nccl_result(nccl_group_failed(shrink(comm, exclude, nexclude, into, config, flags)));
}

NCCL_FUNCTION(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommGetUniqueId");
	struct gantry_unique_id grown;
	gantry_result r = c && id ? GANTRY_OK : GANTRY_ERR_INVALID;

	if (r == GANTRY_OK)
		r = gantry_comm_grow_id(c->comm, &grown);
	if (r == GANTRY_OK)
		memcpy(id, &grown, sizeof(*id));
	return nccl_result(r);
}

static gantry_result grow(struct ncclComm *c, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *into,
			  const ncclConfig_t *config)
{
	struct gantry_device *device;
	struct nccl_job *job;

	if (!into || nranks < 1 || (c && (rank != -1 || nranks <= gantry_comm_size(c->comm))))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommGrow: rank %d of %d", rank, nranks);
	if (!c && (!id || rank < 0 || rank >= nranks))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommGrow: a new rank %d of %d", rank, nranks);
	if (c) {
		TRY_NOW(job_from(make_grow, c, true, into, config, &job));
	} else {
		TRY_NOW(nccl_begin());
		TRY_NOW(nccl_device_here(&device));
		*into = NULL;
		if (job_new(make_grow, NULL, device, into, config, &job) != GANTRY_OK) {
			gantry_device_close(device);
			return GANTRY_ERR_INVALID;
		}
		if (job_comm(job, device) != GANTRY_OK) {
			nccl_job_free(job);
			return GANTRY_ERR_NOMEM;
		}
	}
	job->nranks = nranks;
	job->rank = rank;
	if (id) {
		memcpy(&job->id, id, sizeof(job->id));
		job->by = &job->id;
	}
	return nccl_group_run(job);
}

NCCL_FUNCTION(ncclResult_t, CommGrow,
	      (ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *into, ncclConfig_t *config))
{
	if (comm && !nccl_comm_of(comm, "ncclCommGrow"))
		return nccl_result(nccl_group_failed(GANTRY_ERR_INVALID));
	return nccl_result(nccl_group_failed(grow(comm, nranks, id, rank, into, config)));
}

/* ---- ending ---- */

static gantry_result run_finalize(struct nccl_job *job)
{
	return gantry_comm_finalize(job->c->comm);
}

static gantry_result run_destroy(struct nccl_job *job)
{
	gantry_result r = gantry_comm_destroy(job->c->comm);

	comm_delete(job->c);
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

/* The least of what the ranks of this communicator in this process have been told. */
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

/* The jobs that end all of them; none as long as one has not been told, and none that only finalizes where another one is
 * to be destroyed already: destroying waits for the same. */
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

static gantry_result end_job(struct ncclComm *c, bool destroy)
{
	struct nccl_job *job = calloc(1, sizeof(*job));

	if (!job)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to end a communicator");
	job->run = run_end;
	job->c = c;
	job->destroy = destroy;
	return nccl_group_run(job);
}

static gantry_result finalize(ncclComm_t comm)
{
	struct ncclComm *c;

	if (!comm)
		return GANTRY_OK;
	c = nccl_comm_of(comm, "ncclCommFinalize");
	if (!c)
		return GANTRY_ERR_INVALID;
	if (c->ending != NCCL_LIVES || c->revoked)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommFinalize: the communicator %s",
			 c->revoked ? "was revoked" : "is being finalized already");
	return end_job(c, false);
}

NCCL_FUNCTION(ncclResult_t, CommFinalize, (ncclComm_t comm))
{
	return nccl_result(nccl_group_failed(finalize(comm)));
}

NCCL_FUNCTION(ncclResult_t, CommDestroy, (ncclComm_t comm))
{
	if (!comm)
		return ncclSuccess;
	if (!nccl_comm_of(comm, "ncclCommDestroy"))
		return nccl_result(nccl_group_failed(GANTRY_ERR_INVALID));
	return nccl_result(nccl_group_failed(end_job(comm, true)));
}

/* ---- aborting ---- */

/* Nobody is in a call of it any more, or the time for that is over. */
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
static void reclaim(struct ncclComm *c)
{
	if (!await_calls(c)) {
		LOG_WARN(COMM, "a thread is still in a call of an aborted communicator: its memory is left to it");
		return;
	}
	gantry_comm_destroy(c->comm);
	comm_delete(c);
}

MUTEX_KIND(nccl_reap_mu);
static struct nccl_reap_mu reap_mu;
static struct gantry_cond reap_cond;
struct reaping {
	struct ncclComm *c;
	bool done, left; /* nccl_reap_mu: by the thread; by its caller. The second one frees this */
};

static void *reap(void *arg)
{
	struct reaping *r = arg;
	bool left;

	reclaim(r->c);
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
	if (gantry_thread_start("gantry-reap", reap, r, &thread) != GANTRY_OK) {
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
		reclaim(job->c);
	return GANTRY_OK;
}

/* Another thread has just written the handle and is about to begin. In a group of this thread it will not. */
static void await_begun(const struct ncclComm *c)
{
	uint64_t deadline = gantry_now_ns() + BEGIN_PATIENCE_NS;

	while (!nccl_group_depth() && c->magic == NCCL_COMM_MAGIC && !load_acquire(&c->comm) &&
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
	gantry_comm_abort(c->comm);
	nccl_comms_mu_lock(&comms_mu);
	gantry_list_remove(&c->node);
	c->ending = NCCL_ENDS;
	others = ending_jobs(c, NCCL_ENDS); /* ranks of this process that were waiting for this one's end */
	nccl_comms_mu_unlock(&comms_mu);
	if (others)
		nccl_jobs_run(others);
	job = calloc(1, sizeof(*job));
	if (!job)
		return GANTRY_OK; /* its memory is lost, and it is aborted: what was asked for */
	job->run = run_reclaim;
	job->c = c;
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
	if (!c || flags != NCCL_REVOKE_DEFAULT || c->ending != NCCL_LIVES || c->revoked)
		return ncclInvalidArgument;
	nccl_enter(c);
	r = gantry_comm_revoke(c->comm);
	c->revoked = r == GANTRY_OK || r == GANTRY_AGAIN;
	nccl_leave(c);
	return nccl_result(r);
}

/* ---- what they say of themselves ---- */

/* On the host, what a non-blocking communicator was given is done when its stream is. */
static bool stream_busy(const struct ncclComm *c)
{
	return !c->blocking && c->own && gantry_stream_query(c->device, c->own) == GANTRY_AGAIN;
}

NCCL_FUNCTION(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *result))
{
	char text[COMM_ERROR_TEXT] = "";
	gantry_result r;

	if (!comm || comm->magic != NCCL_COMM_MAGIC || !result)
		return ncclInvalidArgument;
	if (!load_acquire(&comm->comm)) {
		*result = ncclInProgress;
		return ncclSuccess;
	}
	r = gantry_comm_error(comm->comm, NULL, text, sizeof(text));
	if (r == GANTRY_OK && stream_busy(comm))
		r = GANTRY_AGAIN;
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		nccl_keep_error(*text ? text : gantry_result_text(r));
	*result = nccl_code(r);
	return ncclSuccess;
}

/* Ranks and devices of a communicator are known when it is made. */
static ncclResult_t tell(ncclComm_t comm, const char *function, int (*ask)(const struct gantry_comm *), int *ret)
{
	struct ncclComm *c = nccl_comm_of(comm, function);

	if (!c || !ret)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!c->blocking && gantry_comm_error(c->comm, NULL, NULL, 0) == GANTRY_AGAIN)
		return ncclInvalidArgument;
	*ret = ask(c->comm);
	return ncclSuccess;
}

NCCL_FUNCTION(ncclResult_t, CommCount, (const ncclComm_t comm, int *count))
{
	return tell(comm, "ncclCommCount", gantry_comm_size, count);
}

NCCL_FUNCTION(ncclResult_t, CommUserRank, (const ncclComm_t comm, int *rank))
{
	return tell(comm, "ncclCommUserRank", gantry_comm_rank, rank);
}

NCCL_FUNCTION(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int *device))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommCuDevice");

	if (!c || !device)
		return nccl_result(GANTRY_ERR_INVALID);
	*device = c->device->index;
	return ncclSuccess;
}
