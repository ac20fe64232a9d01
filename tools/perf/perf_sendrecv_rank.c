/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of `gantry perf sendrecv`: buffers, and size after size. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/text.h"
#include "perf/perf_sendrecv.h"
#include "perf/perf_table.h"

enum { PAGE = 4096 };

static size_t stride_of(const struct sr_opts *o)
{
	return (SR_FRONT + o->sizes[o->nsizes - 1] + SR_SKEW_MAX + SR_GUARD + PAGE - 1) / PAGE * PAGE;
}

double sr_memory(const struct sr_opts *o)
{
	double most = 0;

	/* The last rank of an odd number has no partner in some patterns; the first two show all there is. */
	for (int i = 0; i < 2 && i < o->c.ranks; i++) {
		struct sr_rank rk = {.base = {.rank = i, .nranks = o->c.ranks}, .opts = o};
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

	perf_phase(rk->base.state, "allocating", largest);
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
			TRY_NOW(perf_rank_alloc(&rk->base, rk->memory_size[d], &p));
		if (!p)
			FAIL_NOW(GANTRY_ERR_NOMEM, "%s for buffers: %s",
				 gantry_size_text(rk->memory_size[d], text, sizeof(text)), strerror(errno));
		rk->memory[d] = p;
		if (o->reg)
			TRY_NOW(gantry_comm_register(rk->base.comm, p, rk->memory_size[d], &rk->handle[d]));
	}
	if (o->baseline && rk->base.rank == 0 && sr_memcpy_open(&rk->memcpy, largest) < 0)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to copy %s", gantry_size_text(largest, text, sizeof(text)));
	return GANTRY_OK;
}

static gantry_result open_all(struct sr_rank *rk)
{
	void *host = NULL, *dev = NULL;

	rk->type_bytes = perf_comm_type_bytes(rk->opts->type);
	TRY_NOW(sr_plan(rk));
	TRY_NOW(make_buffers(rk));
	TRY_NOW(rk->base.dev->ops->alloc_mapped(rk->base.dev, sizeof(*rk->wrong_host), &host, &dev));
	rk->wrong_host = host;
	rk->wrong_dev = dev;
	return GANTRY_OK;
}

static gantry_result work(void *rank)
{
	struct sr_rank *rk = rank;
	struct sr_row row;

	rk->shared = rk->base.shared->own;
	rk->opts = rk->shared->opts;
	TRY_NOW(open_all(rk));
	for (size_t i = 0; i < rk->opts->nsizes; i++) {
		TRY_NOW(sr_measure(rk, rk->opts->sizes[i], &row));
		if (rk->base.rank == 0) {
			rk->shared->rows[i] = row;
			store_release(&rk->shared->nrows, i + 1);
		}
	}
	return GANTRY_OK;
}

static void deregister(void *rank)
{
	struct sr_rank *rk = rank;

	for (int d = 0; d < 2; d++)
		if (rk->handle[d])
			gantry_comm_deregister(rk->base.comm, rk->handle[d]);
}

static void free_all(void *rank)
{
	struct sr_rank *rk = rank;

	for (int d = 0; d < 2; d++) {
		if (rk->memory[d] && rk->opts->buffers == SR_PLAIN)
			munmap(rk->memory[d], rk->memory_size[d]);
		else if (rk->memory[d])
			gantry_mem_free(rk->base.dev, rk->memory[d]);
	}
	if (rk->wrong_host)
		rk->base.dev->ops->free_mapped(rk->base.dev, rk->wrong_host);
	sr_memcpy_close(&rk->memcpy);
	free(rk->msgs);
}

const struct perf_comm_op sr_op = {
	.program = "gantry perf sendrecv",
	.unit = "groups",
	.rank_size = sizeof(struct sr_rank),
	.sample_size = sizeof(struct sr_sample),
	.work = work,
	.deregister = deregister,
	.free = free_all,
};
