/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of `gantry perf sendrecv`: each opens its device, joins the communicator, measures size after size. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "perf_sendrecv.h"
#include "perf_table.h"

enum { PAGE = 4096 };

/*
 * ---- ranks meet ----
 *
 * Those of one host meet in shared memory, where they also leave what they measured. Ranks that a launcher started may
 * be on several hosts: they send their samples to rank 0 and get all of them back, by the communicator itself, between
 * the phases that are measured.
 */

static struct sr_sample *sample_at(const struct sr_rank *rk, int rank)
{
	return &rk->shared->rank[rank].samples[rk->syncs % 2];
}

const struct sr_sample *sr_sample_of(const struct sr_rank *rk, int rank)
{
	return sample_at(rk, rank);
}

static void meet(struct sr_rank *rk)
{
	perf_ranks_meet(&rk->me->state, &rk->shared->rank[0].state, sizeof(struct sr_slot), rk->nranks);
}

/* Rank 0's half of the exchange, or another's. The box holds a sample of each rank. */
static gantry_result exchange(struct sr_rank *rk)
{
	const size_t one = sizeof(struct sr_sample), all = one * (size_t)rk->nranks;

	if (rk->rank == 0) {
		gantry_group_start();
		for (int i = 1; i < rk->nranks; i++)
			gantry_recv(rk->box + one * (size_t)i, one, GANTRY_TYPE_INT8, i, rk->comm, rk->stream);
		TRY_NOW(gantry_group_end());
		gantry_group_start();
		for (int i = 1; i < rk->nranks; i++)
			gantry_send(rk->box, all, GANTRY_TYPE_INT8, i, rk->comm, rk->stream);
		TRY_NOW(gantry_group_end());
	} else {
		TRY_NOW(gantry_send(rk->box + one * (size_t)rk->rank, one, GANTRY_TYPE_INT8, 0, rk->comm, rk->stream));
		/* What comes back is all of them: to the beginning, not where the own one still lies. */
		TRY_NOW(gantry_recv(rk->box, all, GANTRY_TYPE_INT8, 0, rk->comm, rk->stream));
	}
	return sr_finish(rk);
}

static gantry_result share_far(struct sr_rank *rk)
{
	const size_t one = sizeof(struct sr_sample);

	TRY_NOW(gantry_mem_copy(rk->dev, rk->box + one * (size_t)rk->rank, sample_at(rk, rk->rank), one));
	TRY_NOW(exchange(rk));
	for (int i = 0; i < rk->nranks; i++)
		if (i != rk->rank)
			TRY_NOW(gantry_mem_copy(rk->dev, sample_at(rk, i), rk->box + one * (size_t)i, one));
	return GANTRY_OK;
}

gantry_result sr_share(struct sr_rank *rk, const struct sr_sample *mine)
{
	rk->syncs++;
	memcpy(sample_at(rk, rk->rank), mine, sizeof(*mine));
	if (rk->box)
		return share_far(rk);
	meet(rk);
	return GANTRY_OK;
}

gantry_result sr_sync(struct sr_rank *rk)
{
	const struct sr_sample nothing = {.ns = 0};

	if (rk->box)
		return sr_share(rk, &nothing);
	meet(rk);
	return GANTRY_OK;
}

/* ---- a rank's life ---- */

/* Rank 0 makes it; the others wait. If rank 0 cannot, the parent ends them. */
static gantry_result get_id(struct sr_rank *rk, struct gantry_unique_id *ret_id)
{
	const struct timespec nap = {0, 1000000};
	const struct sr_opts *o = rk->opts;

	if (o->rank >= 0 && !o->id_file) {
		TRY_NOW(perf_id_exchange(&o->launched, &o->meet, ret_id));
	} else if (rk->rank == 0) {
		TRY_NOW(gantry_unique_id_create(ret_id));
		rk->shared->id = *ret_id;
		store_release(&rk->shared->id_ready, 1);
		if (o->rank >= 0)
			TRY_NOW(perf_id_publish(o->id_file, ret_id));
	} else if (o->rank >= 0) {
		TRY_NOW(perf_id_await(o->id_file, rk->rank, gantry_params()->connect_timeout, ret_id));
	} else {
		while (!load_acquire(&rk->shared->id_ready))
			nanosleep(&nap, NULL);
		*ret_id = rk->shared->id;
	}
	return GANTRY_OK;
}

/* Rank 0's process has the hub, which knows who is missing. */
static int say_waiting(void *ctx, const char *awaits)
{
	(void)ctx;
	fprintf(stderr, "gantry perf sendrecv: rank 0 waits for %s\n", awaits);
	return 1;
}

/*
 * Each forked rank keeps to its part of the CPUs, as in `perf net` and for its reasons. After the device and the
 * communicator were opened, so that they see all CPUs; the stream's thread comes later and keeps to the part too.
 */
void sr_pin(struct sr_rank *rk, int on)
{
	if (!rk->opts->pin || rk->opts->threads || rk->opts->rank >= 0)
		return;
	if (!rk->all_cpus_known && sched_getaffinity(0, sizeof(rk->all_cpus), &rk->all_cpus) < 0)
		return;
	rk->all_cpus_known = 1;
	sched_setaffinity(0, sizeof(rk->all_cpus), &rk->all_cpus);
	if (on)
		perf_keep_to_part(rk->rank, rk->nranks);
}

static gantry_result join(struct sr_rank *rk)
{
	gantry_result r = GANTRY_OK;
	const struct sr_opts *o = rk->opts;
	struct gantry_comm_config config = {.struct_size = sizeof(config),
					    .rank = rk->rank,
					    .nranks = rk->nranks,
					    .transport = o->transport,
					    .channels = o->channels};
	struct perf_announcer *announcer = NULL;
	int index = o->device == GANTRY_DEVICE_CUDA ? o->gpus[rk->rank % o->ngpus] : 0;

	perf_phase(&rk->me->state, "opening the device", 0);
	TRY(gantry_device_open((enum gantry_device_kind)o->device, index, &rk->dev));
	TRY(gantry_stream_create(rk->dev, &rk->stream));
	if (rk->rank == 0) {
		snprintf(rk->shared->device, sizeof(rk->shared->device), "%s", gantry_device_name(rk->dev));
		store_release(&rk->shared->info_ready, 1);
	}
	perf_phase(&rk->me->state, "joining", 0);
	TRY(get_id(rk, &config.id));
	config.device = rk->dev;
	if (rk->rank == 0 && o->id_file)
		announcer = perf_announce_start(&config.id, say_waiting, NULL);
	r = gantry_comm_init(&config, &rk->comm);
	perf_announce_stop(announcer);
	if (rk->rank == 0 && o->id_file)
		perf_id_remove(o->id_file, &config.id); /* all have read it, or never will */
	TRY(r);
	sr_pin(rk, 1);
	perf_progress(&rk->me->state);
out:
	return r;
}

static size_t stride_of(const struct sr_opts *o)
{
	return (SR_FRONT + o->sizes[o->nsizes - 1] + SR_SKEW_MAX + SR_GUARD + PAGE - 1) / PAGE * PAGE;
}

double sr_memory(const struct sr_opts *o)
{
	double most = 0;

	/* The last rank of an odd number has no partner in some patterns; the first two show all there is. */
	for (int i = 0; i < 2 && i < o->ranks; i++) {
		struct sr_rank rk = {.rank = i, .nranks = o->ranks, .opts = o};
		double all = 0;

		if (sr_plan(&rk) == GANTRY_OK)
			all = ((double)rk.nbufs[0] + (double)rk.nbufs[1]) * (double)stride_of(o);
		most = all > most ? all : most;
		free(rk.msgs);
	}
	return most;
}

static gantry_result make_buffers(struct sr_rank *rk)
{
	const struct sr_opts *o = rk->opts;
	uint64_t largest = o->sizes[o->nsizes - 1];
	char text[GANTRY_TEXT_MAX];

	perf_phase(&rk->me->state, "allocating", largest);
	rk->stride = stride_of(o);
	for (int d = 0; d < 2; d++) {
		void *p = NULL;

		if (!rk->nbufs[d])
			continue;
		if (rk->stride > SIZE_MAX / 2 / (size_t)rk->nbufs[d])
			FAIL_NOW(GANTRY_ERR_NOMEM, "%d buffers of %s do not fit", rk->nbufs[d],
				 gantry_size_text(largest, text, sizeof(text)));
		rk->memory_size[d] = rk->stride * (size_t)rk->nbufs[d];
		if (o->buffers == SR_PLAIN) /* as a program without Gantry's allocator has it */
			p = perf_map(rk->memory_size[d], 1);
		else
			TRY_NOW(gantry_mem_alloc(rk->dev, rk->memory_size[d], &p));
		if (!p)
			FAIL_NOW(GANTRY_ERR_NOMEM, "%s for buffers: %s",
				 gantry_size_text(rk->memory_size[d], text, sizeof(text)), strerror(errno));
		rk->memory[d] = p;
		/* Page faults are not what is measured. */
		if (rk->dev->kind == GANTRY_DEVICE_HOST)
			for (size_t at = 0; at < rk->memory_size[d]; at += PAGE)
				rk->memory[d][at] = 1;
		if (o->reg)
			TRY_NOW(gantry_comm_register(rk->comm, p, rk->memory_size[d], &rk->handle[d]));
	}
	if (o->baseline && rk->rank == 0 && sr_memcpy_open(&rk->memcpy, largest) < 0)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to copy %s", gantry_size_text(largest, text, sizeof(text)));
	return GANTRY_OK;
}

static gantry_result open_all(struct sr_rank *rk)
{
	void *host = NULL, *dev = NULL, *box = NULL;

	rk->type_bytes = sr_type_bytes(rk->opts->type);
	TRY_NOW(sr_plan(rk));
	TRY_NOW(join(rk));
	TRY_NOW(make_buffers(rk));
	TRY_NOW(rk->dev->ops->alloc_mapped(rk->dev, sizeof(*rk->wrong_host), &host, &dev));
	rk->wrong_host = host;
	rk->wrong_dev = dev;
	if (rk->opts->rank >= 0) {
		TRY_NOW(gantry_mem_alloc(rk->dev, sizeof(struct sr_sample) * (size_t)rk->nranks, &box));
		rk->box = box;
	}
	return GANTRY_OK;
}

/* All ranks have measured. Those that a launcher started on this machine are no other processes, see perf_table.h. */
static gantry_result close_run(struct sr_rank *rk)
{
	struct sr_sample s;

	perf_phase(&rk->me->state, "closing", 0);
	memset(&s, 0, sizeof(s));
	s.cpu_seconds = perf_load_cpu_seconds();
	s.machine = gantry_host_id();
	TRY_NOW(sr_share(rk, &s));
	for (int i = 0; rk->opts->rank >= 0 && i < rk->nranks; i++)
		if (i != rk->rank && sr_sample_of(rk, i)->machine == s.machine)
			rk->shared->others_cpu += sr_sample_of(rk, i)->cpu_seconds;
	return GANTRY_OK;
}

static gantry_result work(struct sr_rank *rk)
{
	struct sr_row row;

	TRY_NOW(open_all(rk));
	for (size_t i = 0; i < rk->opts->nsizes; i++) {
		TRY_NOW(sr_measure(rk, rk->opts->sizes[i], &row));
		if (rk->rank == 0) {
			rk->shared->rows[i] = row;
			store_release(&rk->shared->nrows, i + 1);
		}
	}
	return close_run(rk);
}

/* The communicator's reason, if it has one: it names the peer. */
static void keep_error(struct sr_rank *rk, gantry_result r)
{
	char text[256] = "";
	int who = -1;

	if (rk->comm && gantry_comm_error(rk->comm, &who, text, sizeof(text)) != GANTRY_OK && text[0])
		snprintf(rk->me->state.error, sizeof(rk->me->state.error), "%s: %s", gantry_result_name(r), text);
	else
		perf_fail(&rk->me->state, r);
	store_release(&rk->me->state.error_ns, gantry_now_ns());
}

/* Half-built things too. */
static gantry_result close_all(struct sr_rank *rk)
{
	gantry_result r;
	struct gantry_comm *comm = rk->comm;

	for (int d = 0; d < 2; d++)
		if (rk->handle[d])
			gantry_comm_deregister(comm, rk->handle[d]);
	/* From here on the other thread finds no communicator to ask. */
	store_seq(&rk->comm, NULL);
	r = gantry_comm_destroy(comm);
	for (int d = 0; d < 2; d++) {
		if (rk->memory[d] && rk->opts->buffers == SR_PLAIN)
			munmap(rk->memory[d], rk->memory_size[d]);
		else if (rk->memory[d])
			gantry_mem_free(rk->dev, rk->memory[d]);
	}
	if (rk->wrong_host)
		rk->dev->ops->free_mapped(rk->dev, rk->wrong_host);
	if (rk->box)
		gantry_mem_free(rk->dev, rk->box);
	if (rk->stream)
		gantry_stream_destroy(rk->dev, rk->stream);
	if (rk->dev)
		gantry_device_close(rk->dev);
	sr_memcpy_close(&rk->memcpy);
	free(rk->msgs);
	return r;
}

gantry_result sr_rank_run(struct sr_rank *rk)
{
	gantry_result r, end;

	gantry_set_last_error("");
	r = work(rk);
	if (r != GANTRY_OK) {
		keep_error(rk, r);
		if (rk->comm)
			gantry_comm_abort(rk->comm); /* the others need not wait */
	}
	end = close_all(rk);
	if (r == GANTRY_OK && end != GANTRY_OK) {
		keep_error(rk, end);
		r = end;
	}
	return r;
}

/* Where this rank is and what the communicator says, into its state. From another thread, while the rank hangs. */
static void dump(struct sr_rank *rk)
{
	struct gantry_comm *comm = load_seq(&rk->comm);
	char text[256] = "";
	int who = -1;

	if (load_acquire(&rk->me->state.error_ns))
		return;
	if (!comm)
		snprintf(text, sizeof(text), "it has no communicator");
	else if (gantry_comm_error(comm, &who, text, sizeof(text)) == GANTRY_OK)
		snprintf(text, sizeof(text), "the communicator knows of no error");
	snprintf(rk->me->state.error, sizeof(rk->me->state.error), "%s", text);
	if (comm)
		gantry_comm_report(comm, stderr);
	store_release(&rk->me->state.error_ns, gantry_now_ns());
}

/* ---- processes ---- */

/* What the threads of a child share. */
struct team {
	struct sr_rank *ranks;
	int n;
	uint32_t stop;
};

static void *run_rank(void *arg)
{
	return (void *)(uintptr_t)(sr_rank_run(arg) != GANTRY_OK);
}

/* Sleeps, but for the moment when the parent wants to know where the ranks hang. */
static void *answer(void *arg)
{
	const struct timespec nap = {0, 50000000};
	struct team *t = arg;

	while (!load_acquire(&t->stop)) {
		if (load_acquire(&t->ranks[0].shared->dump)) {
			for (int i = 0; i < t->n; i++)
				dump(&t->ranks[i]);
			return NULL;
		}
		nanosleep(&nap, NULL);
	}
	return NULL;
}

int sr_ranks_run(void *ctx, int first, int n)
{
	struct sr_shared *shared = ctx;
	const struct sr_opts *o = shared->opts;
	struct team t = {.ranks = calloc((size_t)n, sizeof(*t.ranks)), .n = n};
	pthread_t threads[SR_RANKS_MAX], helper;
	int started = 0, failed = 0;

	for (int i = 0; t.ranks && i < n; i++)
		t.ranks[i] = (struct sr_rank){.rank = first + i,
					      .nranks = o->ranks,
					      .opts = o,
					      .shared = shared,
					      .me = &shared->rank[first + i]};
	if (!t.ranks || pthread_create(&helper, NULL, answer, &t))
		return 1;
	/* The last rank on this thread: a process that is one rank has no thread too many. */
	for (; started < n - 1; started++)
		if (pthread_create(&threads[started], NULL, run_rank, &t.ranks[started]))
			return 1;
	failed = run_rank(&t.ranks[n - 1]) != NULL;
	for (int i = 0; i < started; i++) {
		void *one = NULL;

		pthread_join(threads[i], &one);
		failed |= one != NULL;
	}
	store_release(&t.stop, 1);
	pthread_join(helper, NULL);
	free(t.ranks);
	return failed;
}
