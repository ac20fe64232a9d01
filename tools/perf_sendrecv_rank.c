/* One rank of `gantry perf sendrecv`: opens its device, joins the communicator, measures size after size. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "perf_load.h"
#include "perf_rendezvous.h"
#include "perf_sendrecv.h"

enum { PAGE = 4096 };

/* Rank 0 makes it; the others wait. If rank 0 cannot, the parent ends them. */
static gantry_result get_id(struct sr_rank *rk, struct gantry_unique_id *ret_id)
{
	gantry_result r = GANTRY_OK;
	const struct timespec nap = {0, 1000000};
	const struct sr_opts *o = rk->opts;

	if (o->rank >= 0 && !o->id_file) {
		TRY(perf_id_exchange(&o->launched, &o->meet, ret_id));
	} else if (rk->rank == 0) {
		TRY(gantry_unique_id_create(ret_id));
		rk->shared->id = *ret_id;
		__atomic_store_n(&rk->shared->id_ready, 1, __ATOMIC_RELEASE);
		if (o->rank >= 0)
			TRY(perf_id_publish(o->id_file, ret_id));
	} else if (o->rank >= 0) {
		TRY(perf_id_await(o->id_file, rk->rank, gantry_params()->connect_timeout, ret_id));
	} else {
		while (!__atomic_load_n(&rk->shared->id_ready, __ATOMIC_ACQUIRE))
			nanosleep(&nap, NULL);
		*ret_id = rk->shared->id;
	}
out:
	return r;
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
	cpu_set_t part;
	int n, seen = 0;

	if (!rk->opts->pin || rk->opts->threads || rk->opts->rank >= 0)
		return;
	if (!rk->all_cpus_known && sched_getaffinity(0, sizeof(rk->all_cpus), &rk->all_cpus) < 0)
		return;
	rk->all_cpus_known = 1;
	n = CPU_COUNT(&rk->all_cpus);
	if (n < rk->nranks)
		return;
	CPU_ZERO(&part);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &rk->all_cpus) && seen++ * rk->nranks / n == rk->rank)
			CPU_SET(cpu, &part);
	sched_setaffinity(0, sizeof(part), on ? &part : &rk->all_cpus);
}

static gantry_result join(struct sr_rank *rk)
{
	gantry_result r = GANTRY_OK;
	const struct sr_opts *o = rk->opts;
	struct gantry_comm_config config = {
		.rank = rk->rank, .nranks = rk->nranks, .transport = o->transport, .channels = o->channels};
	struct perf_announcer *announcer = NULL;
	int index = o->device == GANTRY_DEVICE_CUDA ? o->gpus[rk->rank % o->ngpus] : 0;

	sr_phase(rk, "opening the device", 0);
	TRY(gantry_device_open((enum gantry_device_kind)o->device, index, &rk->dev));
	TRY(gantry_stream_create(rk->dev, &rk->stream));
	if (rk->rank == 0) {
		snprintf(rk->shared->device, sizeof(rk->shared->device), "%s", gantry_device_name(rk->dev));
		__atomic_store_n(&rk->shared->info_ready, 1, __ATOMIC_RELEASE);
	}
	sr_phase(rk, "joining", 0);
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
	sr_progress(rk);
out:
	return r;
}

/* Ordinary memory, as a program without Gantry's allocator has it; contiguous, as pinned memory mostly is. */
static gantry_result plain_alloc(size_t size, void **ret_p)
{
	gantry_result r = GANTRY_OK;
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), text[GANTRY_TEXT_MAX];

	if (p == MAP_FAILED)
		FAIL(GANTRY_ERR_NOMEM, "%s for buffers: %s", gantry_size_text(size, text, sizeof(text)),
		     strerror(errno));
	if (madvise(p, size, MADV_HUGEPAGE))
		LOG_DEBUG(TOOL, "no huge pages: %s", strerror(errno));
	*ret_p = p;
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
	gantry_result r = GANTRY_OK;
	const struct sr_opts *o = rk->opts;
	uint64_t largest = o->sizes[o->nsizes - 1];
	char text[GANTRY_TEXT_MAX];

	sr_phase(rk, "allocating", largest);
	rk->stride = stride_of(o);
	for (int d = 0; d < 2; d++) {
		void *p = NULL;

		if (!rk->nbufs[d])
			continue;
		if (rk->stride > SIZE_MAX / 2 / (size_t)rk->nbufs[d])
			FAIL(GANTRY_ERR_NOMEM, "%d buffers of %s do not fit", rk->nbufs[d],
			     gantry_size_text(largest, text, sizeof(text)));
		rk->memory_size[d] = rk->stride * (size_t)rk->nbufs[d];
		if (o->buffers == SR_PLAIN)
			TRY(plain_alloc(rk->memory_size[d], &p));
		else
			TRY(gantry_mem_alloc(rk->dev, rk->memory_size[d], &p));
		rk->memory[d] = p;
		/* Page faults are not what is measured. */
		if (rk->dev->kind == GANTRY_DEVICE_HOST)
			for (size_t at = 0; at < rk->memory_size[d]; at += PAGE)
				rk->memory[d][at] = 1;
		if (o->reg)
			TRY(gantry_comm_register(rk->comm, p, rk->memory_size[d], &rk->handle[d]));
	}
	if (o->baseline && rk->rank == 0 && perf_memcpy_open(&rk->memcpy, largest) < 0)
		FAIL(GANTRY_ERR_NOMEM, "no memory to copy %s", gantry_size_text(largest, text, sizeof(text)));
out:
	return r;
}

static gantry_result open_all(struct sr_rank *rk)
{
	gantry_result r = GANTRY_OK;
	void *host = NULL, *dev = NULL, *box = NULL;

	rk->type_bytes = sr_type_bytes(rk->opts->type);
	TRY(sr_plan(rk));
	TRY(join(rk));
	TRY(make_buffers(rk));
	TRY(rk->dev->ops->alloc_mapped(rk->dev, sizeof(*rk->wrong_host), &host, &dev));
	rk->wrong_host = host;
	rk->wrong_dev = dev;
	if (rk->opts->rank >= 0) {
		TRY(gantry_mem_alloc(rk->dev, sizeof(struct sr_sample) * (size_t)rk->nranks, &box));
		rk->box = box;
	}
out:
	return r;
}

/* All ranks have measured. Those that a launcher started on this machine are no other processes, see perf_load.h. */
static gantry_result close_run(struct sr_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct sr_sample s;

	sr_phase(rk, "closing", 0);
	memset(&s, 0, sizeof(s));
	s.cpu_seconds = perf_load_cpu_seconds();
	s.machine = perf_load_machine();
	TRY(sr_share(rk, &s));
	for (int i = 0; rk->opts->rank >= 0 && i < rk->nranks; i++)
		if (i != rk->rank && sr_sample_of(rk, i)->machine == s.machine)
			rk->shared->others_cpu += sr_sample_of(rk, i)->cpu_seconds;
out:
	return r;
}

static gantry_result work(struct sr_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct sr_row row;

	TRY(open_all(rk));
	for (size_t i = 0; i < rk->opts->nsizes; i++) {
		TRY(sr_measure(rk, rk->opts->sizes[i], &row));
		if (rk->rank == 0) {
			rk->shared->rows[i] = row;
			__atomic_store_n(&rk->shared->nrows, i + 1, __ATOMIC_RELEASE);
		}
	}
	TRY(close_run(rk));
out:
	return r;
}

/* The communicator's reason, if it has one: it names the peer. */
static void keep_error(struct sr_rank *rk, gantry_result r)
{
	char text[256] = "";
	int who = -1;

	if (rk->comm && gantry_comm_error(rk->comm, &who, text, sizeof(text)) != GANTRY_OK && text[0])
		snprintf(rk->me->error, sizeof(rk->me->error), "%s: %s", gantry_result_name(r), text);
	else
		snprintf(rk->me->error, sizeof(rk->me->error), "%s: %s", gantry_result_name(r),
			 gantry_last_error()[0] ? gantry_last_error() : gantry_result_text(r));
	__atomic_store_n(&rk->me->error_ns, gantry_now_ns(), __ATOMIC_RELEASE);
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
	__atomic_store_n(&rk->comm, NULL, __ATOMIC_SEQ_CST);
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
	perf_memcpy_close(&rk->memcpy);
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

void sr_rank_dump(struct sr_rank *rk)
{
	struct gantry_comm *comm = __atomic_load_n(&rk->comm, __ATOMIC_SEQ_CST);
	char text[256] = "";
	int who = -1;

	if (__atomic_load_n(&rk->me->error_ns, __ATOMIC_ACQUIRE))
		return;
	if (!comm)
		snprintf(text, sizeof(text), "it has no communicator");
	else if (gantry_comm_error(comm, &who, text, sizeof(text)) == GANTRY_OK)
		snprintf(text, sizeof(text), "the communicator knows of no error");
	snprintf(rk->me->error, sizeof(rk->me->error), "%s", text);
	if (comm)
		gantry_comm_report(comm, stderr);
	__atomic_store_n(&rk->me->error_ns, gantry_now_ns(), __ATOMIC_RELEASE);
}
