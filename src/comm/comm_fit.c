/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GANTRY_MODEL=measured: the ranks time their connections when the communicator is made, by the ways that collectives take, and
 * the cost model is fitted to that (coll/fit.c). Every rank does every trial or knows that it has no part in it, then all
 * exchange what they have measured; so they agree, and all leave together when one fails.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm_coll.h"

/*
 * Bytes of trials: few; many, with lines as many as they are good for; most, more than caches hold, unless that would take too
 * long. Few are repeated more often.
 */
enum { FEW = 8, MANY = 1 << 18, MANY_LINES = 1 << 15, MOST = 1 << 23, FAST_NS = 1000000 };
enum { WARM = 2, TIMED = 7, OFTEN = 15, TRIALS = 2 * GANTRY_PROTOS };

struct fit {
	struct gantry_comm *comm;
	struct gantry_stream *stream;
	char *memory; /* of the device: input, then output */
	void *reg;    /* of the memory: programs that care for speed register theirs */
	uint64_t *all;
	struct comm_plan *plans[2]; /* the list's; NULL: this rank has no part in trials of that kind */
};

static gantry_result make_plan(struct fit *f, bool remote)
{
	struct comm_coll *c = f->comm->coll;
	struct comm_plan *p;
	int next, prev;

	if (!coll_trial_circle(&c->topo, remote, &next, &prev))
		return GANTRY_OK;
	p = calloc(1, sizeof(*p));
	if (!p)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a plan");
	p->algo = COLL_ALGOS; /* no call looks for it */
	p->kind = COLL_ALL_REDUCE;
	gantry_list_append(&c->plans, &p->node);
	for (int i = 0; i < f->comm->nchannels; i++) {
		TRY_NOW(coll_trial_plan(&c->topo, next, prev, &p->channels[i].plan));
		coll_plan_name_ranks(p->channels[i].plan, p->kind, c->order);
	}
	f->plans[remote] = p;
	return GANTRY_OK;
}

static gantry_result run_once(struct fit *f, const struct comm_collective *coll, uint64_t *ret_ns)
{
	uint64_t begin = gantry_now_ns();

	TRY_NOW(comm_coll_enqueue(f->comm, coll, f->stream));
	TRY_NOW(f->comm->device->ops->stream_sync(f->comm->device, f->stream));
	TRY_NOW(comm_check(f->comm));
	*ret_ns = gantry_now_ns() - begin;
	return GANTRY_OK;
}

static gantry_result connect_plan(struct fit *f, const struct comm_collective *coll)
{
	struct comm_need needs[2 * COMM_CHANNELS_MAX];
	size_t n = comm_coll_needs(f->comm, coll, NULL);

	ASSERT(n <= sizeof(needs) / sizeof(needs[0]));
	comm_coll_needs(f->comm, coll, needs);
	return n ? comm_connect(needs, n) : GANTRY_OK;
}

static int compare_times(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Of this rank: the quarter that was disturbed least is believed. */
static gantry_result time_trial(struct fit *f, const struct coll_trial *t, uint64_t *ret_ns)
{
	struct comm_collective coll = {.kind = COLL_ALL_REDUCE,
				       .in = f->memory,
				       .out = f->memory + MOST,
				       .count = t->bytes,
				       .bytes = t->bytes,
				       .type = GANTRY_TYPE_UINT8,
				       .plan = f->plans[t->remote]};
	int often = t->bytes == FEW ? OFTEN : 1;
	uint64_t ns[TIMED * OFTEN], warm;

	coll_trial_choose(&f->comm->coll->model, t, &coll.choice);
	TRY_NOW(connect_plan(f, &coll));
	for (int i = 0; i < WARM * often; i++)
		TRY_NOW(run_once(f, &coll, &warm));
	for (int i = 0; i < TIMED * often; i++)
		TRY_NOW(run_once(f, &coll, &ns[i]));
	qsort(ns, (size_t)(TIMED * often), sizeof(ns[0]), compare_times);
	*ret_ns = ns[TIMED * often / 4];
	return GANTRY_OK;
}

/* By all ranks: the slowest one's time, the same on all of them. */
static gantry_result do_trial(struct fit *f, struct coll_trial *t)
{
	uint64_t mine = 0;

	if (f->plans[t->remote])
		TRY_NOW(time_trial(f, t, &mine));
	TRY_NOW(gantry_ctl_allgather(f->comm->ctl, &mine, sizeof(mine), f->all));
	t->ns = 0;
	for (int i = 0; i < f->comm->nranks; i++)
		t->ns = f->all[i] > t->ns ? f->all[i] : t->ns;
	return GANTRY_OK;
}

static gantry_result do_trials(struct fit *f)
{
	struct coll_model *m = &f->comm->coll->model;
	struct coll_trials trials[TRIALS] = {0};
	int n = 0;

	for (int remote = 0; remote < 2; remote++)
		for (int proto = 0; proto < GANTRY_PROTOS; proto++) {
			struct coll_trial t = {.remote = remote, .proto = (enum gantry_proto)proto, .bytes = FEW};
			struct coll_trials *three = &trials[n];

			if (!m->limits.step_bytes[proto])
				continue;
			three->few = three->many = three->most = t;
			three->many.bytes = proto == GANTRY_PROTO_SIMPLE ? MANY : MANY_LINES;
			three->most.bytes = MOST;
			TRY_NOW(do_trial(f, &three->few));
			TRY_NOW(do_trial(f, &three->many));
			if (proto == GANTRY_PROTO_SIMPLE && three->many.ns < FAST_NS)
				TRY_NOW(do_trial(f, &three->most));
			n++;
		}
	coll_fit(m, trials, n);
	return GANTRY_OK;
}

static gantry_result fit_open(struct fit *f)
{
	struct gantry_device *d = f->comm->device;
	void *memory = NULL;

	f->all = calloc((size_t)f->comm->nranks, sizeof(*f->all));
	if (!f->all)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %d ranks", f->comm->nranks);
	TRY_NOW(d->ops->stream_create(d, &f->stream));
	TRY_NOW(d->ops->alloc(d, 2 * MOST, &memory));
	f->memory = memory;
	TRY_NOW(comm_memory_register(f->comm, memory, 2 * MOST, &f->reg));
	TRY_NOW(make_plan(f, false));
	return make_plan(f, true);
}

gantry_result comm_coll_measure(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct fit f = {.comm = comm};
	uint64_t begin = gantry_now_ns();

	if (comm->nranks == 1)
		return GANTRY_OK;
	TRY(fit_open(&f));
	TRY(do_trials(&f));
	LOG_INFO(COMM, "%s: cost model measured in %.1f ms", COMM_TEXT_OF(comm), (double)(gantry_now_ns() - begin) / 1e6);
out:
	comm->coll->again.kernel = NULL; /* the program made none of these calls */
	if (f.reg)
		gantry_comm_deregister(comm, f.reg);
	if (f.stream)
		comm->device->ops->stream_destroy(comm->device, f.stream);
	comm->device->ops->free(comm->device, f.memory);
	free(f.all);
	return r;
}
