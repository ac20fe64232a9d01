/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_message.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "common/figures.h"
#include "kernels/bench.h"

enum { BLOCKS = 16 };

static gantry_result launch(const struct perf_rank *rk, const struct gantry_kernel *kernel, const void *args,
			    size_t size)
{
	const struct gantry_launch l = {.kernel = kernel, .blocks = BLOCKS, .args = args, .args_size = size};

	return rk->dev->ops->launch(rk->dev, rk->stream, &l);
}

static gantry_result fill(const struct perf_rank *rk, char *p, uint64_t bytes, uint64_t seq)
{
	const struct gantry_fill_args args = {.dst = p, .bytes = bytes, .seq = seq};

	if (!bytes)
		return GANTRY_OK;
	if (rk->dev->kind != GANTRY_DEVICE_HOST)
		return launch(rk, &gantry_kernel_fill, &args, sizeof(args));
	perf_fill(p, bytes, seq);
	return GANTRY_OK;
}

static gantry_result verify(const struct perf_rank *rk, const char *p, uint64_t bytes, uint64_t seq,
			    struct perf_wrong wrong)
{
	const struct gantry_verify_args args = {.src = p, .bytes = bytes, .seq = seq, .wrong = wrong.dev};

	if (!bytes)
		return GANTRY_OK;
	if (rk->dev->kind != GANTRY_DEVICE_HOST)
		return launch(rk, &gantry_kernel_verify, &args, sizeof(args));
	*wrong.host += perf_check(p, bytes, seq);
	return GANTRY_OK;
}

gantry_result perf_message_fill(const struct perf_rank *rk, const struct perf_message *m, uint64_t seq)
{
	TRY_NOW(fill(rk, m->at - PERF_GUARD, PERF_GUARD, m->front));
	TRY_NOW(fill(rk, m->at, m->bytes, seq));
	TRY_NOW(fill(rk, m->at + m->bytes, PERF_GUARD, m->back));
	perf_progress(rk->state);
	return GANTRY_OK;
}

gantry_result perf_message_check(const struct perf_rank *rk, const struct perf_message *m, struct perf_wrong wrong)
{
	TRY_NOW(verify(rk, m->at - PERF_GUARD, PERF_GUARD, m->front, wrong));
	TRY_NOW(verify(rk, m->at, m->bytes, m->seq, wrong));
	TRY_NOW(verify(rk, m->at + m->bytes, PERF_GUARD, m->back, wrong));
	perf_progress(rk->state);
	return GANTRY_OK;
}

gantry_result perf_message_locate(const struct perf_rank *rk, const struct perf_message *m, const char *what,
				  const char *more, char *text, size_t len)
{
	gantry_result r = GANTRY_OK;
	unsigned char *copy = malloc(PERF_GUARD + m->bytes + PERF_GUARD), *at;
	uint64_t first;

	if (!copy)
		FAIL(GANTRY_ERR_NOMEM, "no memory to look for the first wrong byte");
	at = copy + PERF_GUARD;
	TRY(gantry_mem_copy(rk->dev, copy, m->at - PERF_GUARD, PERF_GUARD + m->bytes + PERF_GUARD));
	first = perf_first_wrong(at, m->bytes, m->seq);
	if (first < m->bytes)
		snprintf(text, len, "at offset %llu of %s%s", (unsigned long long)first, what, more);
	else if (perf_check(copy, PERF_GUARD, m->front))
		snprintf(text, len, "in front of %s, at rank %d", what, rk->rank);
	else if (perf_check(at + m->bytes, PERF_GUARD, m->back))
		snprintf(text, len, "behind %s, at rank %d", what, rk->rank);
out:
	free(copy);
	return r;
}
