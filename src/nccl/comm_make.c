/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How communicators of NCCL's API are made: anew, or from another one by splitting, shrinking or growing it, and what
 * the caller's ncclConfig_t wishes of them. Whichever it is, it becomes a job, which a group keeps until its end.
 *
 * The caller's variable has the handle before the job has run. Another thread may abort the communicator from then on, so
 * a job whose making fails gives it back by nccl_comm_drop.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "comm/comm.h"
#include "nccl/nccl.h"

enum { CHANNELS_MAX = COMM_CHANNELS_MAX };
enum { UNTIL_MADE = 2, MAKE_NAP_NS = 200000 }; /* the first: see gantry_comm_config.nonblocking */

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

/* ---- a job that makes one ---- */

/* The caller's variable has the communicator at once, and NULL after an error. */
static void unmake_comm(struct nccl_job *job)
{
	struct ncclComm *c = job->c;

	job->c = NULL;
	if (!c)
		return;
	store_release(job->made, NULL);
	nccl_comm_drop(c);
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

gantry_result nccl_await_made(struct gantry_comm *comm)
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
		r = nccl_await_made(job->c ? job->c->comm : job->parent->comm);
	if (job->parent)
		nccl_leave(job->parent);
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		unmake_comm(job);
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
			     const struct gantry_device *device, ncclComm_t *into, const ncclConfig_t *wanted, int rank,
			     struct nccl_job **ret)
{
	gantry_result r = GANTRY_OK;
	struct nccl_job *job = calloc(1, sizeof(*job));
	ncclConfig_t config;

	if (!job)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a communicator");
	TRY(nccl_config_read(wanted, parent ? parent->comm->rank : rank, &config));
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
		job->config.network = parent->comm->life.network;
	} else {
		job->config.channels = channels_of(&config, device);
		if (config.trafficClass >= 0 && config.trafficClass <= 255)
			job->config.traffic_class = config.trafficClass;
		if (config.commName) {
			snprintf(job->name, sizeof(job->name), "%s", config.commName);
			job->config.name = job->name;
		}
		if (config.netName) {
			snprintf(job->network, sizeof(job->network), "%s", config.netName);
			job->config.network = job->network;
		} else if (parent) {
			job->config.network = parent->comm->life.network;
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
	TRY_NOW(nccl_comm_new(device, &job->c));
	job->c->blocking = job->config.nonblocking == UNTIL_MADE;
	nccl_enter(job->c); /* until it is made */
	job->config.device = device;
	store_release(job->made, job->c);
	return GANTRY_OK;
}

/* ---- anew ---- */

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

static gantry_result init_comm(const struct init_args *a, ncclComm_t *into)
{
	gantry_result r = GANTRY_OK;
	struct nccl_job *job = NULL;
	struct gantry_device *device = a->device;

	if (!into)
		FAIL(GANTRY_ERR_INVALID, "%s: comm is NULL", a->function);
	if (a->nranks < 1 || a->rank < 0 || a->rank >= a->nranks)
		FAIL(GANTRY_ERR_INVALID, "%s: rank %d of %d", a->function, a->rank, a->nranks);
	*into = NULL;
	TRY(nccl_begin());
	nccl_env_begun();
	nccl_env_tell(a->rank);
	if (!device)
		TRY(nccl_device_here(&device));
	TRY(job_new(make_init, NULL, device, into, a->config, a->rank, &job));
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
	return comm_group_fail(r);
}

NCCL_FUNCTION(ncclResult_t, GetUniqueId, (ncclUniqueId * id))
{
	struct gantry_unique_id made_id;
	gantry_result r = id ? nccl_begin() : nccl_missing("ncclGetUniqueId");

	nccl_env_begun();
	if (r == GANTRY_OK)
		r = gantry_unique_id_create(&made_id);
	if (r == GANTRY_OK)
		memcpy(id, &made_id, sizeof(*id));
	return nccl_result(r);
}

NCCL_FUNCTION(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))
{
	return nccl_result(init_comm(&(struct init_args){"ncclCommInitRank", nranks, rank, &id, 1, NULL, NULL}, comm));
}

NCCL_FUNCTION(ncclResult_t, CommInitRankConfig,
	      (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))
{
	return nccl_result(
		init_comm(&(struct init_args){"ncclCommInitRankConfig", nranks, rank, &id, 1, config, NULL}, comm));
}

NCCL_FUNCTION(ncclResult_t, CommInitRankScalable,
	      (ncclComm_t * comm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config))
{
	if (nids < 1 || nids > nranks || !ids)
		return nccl_result(comm_group_fail(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
							       "ncclCommInitRankScalable: %d ids", nids)));
	return nccl_result(init_comm(
		&(struct init_args){"ncclCommInitRankScalable", nranks, rank, ids, nids, config, NULL}, comm));
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
	TRY_NOW(gantry_group_start());
	for (int i = 0; i < ndev && r == GANTRY_OK; i++) {
		a.rank = i;
		a.device = NULL;
		r = comm_group_fail(nccl_device_numbered(devs ? devs[i] : i, &a.device));
		if (r == GANTRY_OK)
			r = init_comm(&a, &into[i]);
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
	TRY(job_new(make, c, c->device, into, config, 0, &job));
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

static gantry_result split_comm(ncclComm_t comm, int color, int key, ncclComm_t *into, const ncclConfig_t *config)
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommSplit");
	struct nccl_job *job;

	if (!c)
		return GANTRY_ERR_INVALID;
	if (!into)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommSplit: newcomm is NULL");
	if (color < NCCL_SPLIT_NOCOLOR)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommSplit: color %d", color);
	TRY_NOW(job_from(make_split, c, color >= 0, into, config, &job));
	job->color = color;
	job->key = key;
	return nccl_group_run(job);
}

NCCL_FUNCTION(ncclResult_t, CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *into, ncclConfig_t *config))
{
	return nccl_result(comm_group_fail(split_comm(comm, color, key, into, config)));
}

static gantry_result shrink_comm(ncclComm_t comm, const int *exclude, int n, ncclComm_t *into,
				 const ncclConfig_t *config, int flags)
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommShrink");
	struct nccl_job *job;

	if (!c)
		return GANTRY_ERR_INVALID;
	if (!into || !exclude || n < 1 || n >= gantry_comm_size(c->comm) || (flags & ~NCCL_SHRINK_ABORT))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommShrink: invalid arguments: %d ranks to exclude, flags %d", n,
			 flags);
	for (int i = 0; i < n; i++)
		if (exclude[i] < 0 || exclude[i] >= gantry_comm_size(c->comm) ||
		    exclude[i] == gantry_comm_rank(c->comm))
			FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommShrink: cannot exclude rank %d", exclude[i]);
	TRY_NOW(job_from(make_shrink, c, true, into, config, &job));
	job->exclude = malloc((size_t)n * sizeof(*exclude)); /* the caller's may be gone when the job runs */
	if (!job->exclude) {
		unmake_comm(job);
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
	return nccl_result(comm_group_fail(shrink_comm(comm, exclude, nexclude, into, config, flags)));
}

NCCL_FUNCTION(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommGetUniqueId");
	struct gantry_unique_id grown;
	gantry_result r = c ? GANTRY_OK : GANTRY_ERR_INVALID;

	if (c && !id)
		r = nccl_missing("ncclCommGetUniqueId");
	if (r == GANTRY_OK)
		r = gantry_comm_grow_id(c->comm, &grown);
	if (r == GANTRY_OK)
		memcpy(id, &grown, sizeof(*id));
	return nccl_result(r);
}

static gantry_result grow_comm(struct ncclComm *c, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *into,
			       const ncclConfig_t *config)
{
	struct gantry_device *device;
	struct nccl_job *job;

	if (!into || nranks < 1 || (c && (rank != -1 || nranks <= gantry_comm_size(c->comm))))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommGrow: invalid rank %d of %d", rank, nranks);
	if (!c && (!id || rank < 0 || rank >= nranks))
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclCommGrow: invalid new rank %d of %d", rank, nranks);
	if (c) {
		TRY_NOW(job_from(make_grow, c, true, into, config, &job));
	} else {
		TRY_NOW(nccl_begin());
		TRY_NOW(nccl_device_here(&device));
		*into = NULL;
		if (job_new(make_grow, NULL, device, into, config, rank, &job) != GANTRY_OK) {
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
		return nccl_result(comm_group_fail(GANTRY_ERR_INVALID));
	return nccl_result(comm_group_fail(grow_comm(comm, nranks, id, rank, into, config)));
}
