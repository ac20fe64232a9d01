/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `perf unpack`: memory, the ways that are compared, what they must leave behind and how long they take; and the kernel
 * that stays, against a launch for every message. Its messages are small, as they are when a launch is too much: 16
 * pages, whose descriptors lie in mapped memory, where a network would write them.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "common/figures.h"
#include "device/device.h"
#include "gantry/types.h"
#include "kernels/pattern.h"
#include "kernels/unpack_ring.h"
#include "perf/perf_unpack.h"

/* ---- the ways ---- */

enum { TIMES = 3 };

/* The ways that are compared: each puts work into the stream. */
enum unpack_way { UNPACK_OURS, UNPACK_SEED, UNPACK_COPY, UNPACK_FUSED, UNPACK_TWO_STEP, UNPACK_WAYS };

/* Blocks and lanes of a kernel's launch. */
static struct gantry_launch shape_of(const struct unpack_bench *b, const struct gantry_kernel *kernel, uint32_t blocks)
{
	struct gantry_launch l = {.kernel = kernel, .blocks = blocks == UNPACK_ALL ? b->dev->max_blocks : blocks};

	if (kernel == &gantry_kernel_unpack && blocks == UNPACK_ALL)
		gantry_unpack_launch_shape(b->dev, GANTRY_UNPACK_WHOLE, b->l.n, b->l.bytes, &l);
	if (!l.lanes)
		l.lanes = b->dev->default_lanes;
	return l;
}

static gantry_result launch(struct unpack_bench *b, uint32_t blocks, const struct gantry_kernel *kernel,
			    const void *args, size_t size)
{
	struct gantry_launch l = shape_of(b, kernel, blocks);

	l.args = args;
	l.args_size = size;
	return b->dev->ops->launch(b->dev, b->stream, &l);
}

static gantry_result enqueue(struct unpack_bench *b, enum unpack_way way, uint32_t blocks)
{
	gantry_result r = GANTRY_OK;
	char *dst = b->dst + UNPACK_GUARD, *tmp = b->tmp + UNPACK_GUARD;
	struct gantry_unpack_args ours = {
		.descs = b->descs, .n = b->l.n, .bounce = b->pool, .dst = way == UNPACK_TWO_STEP ? tmp : dst};
	struct gantry_unpack_seed_args seed = {
		.descs = b->descs, .n = b->l.n, .bounce = b->pool, .dst = dst, .bytes = b->l.bytes};
	struct gantry_unpack_reduce_args fused = {.descs = b->descs,
						  .n = b->l.n,
						  .bounce = b->pool,
						  .input = dst,
						  .output = dst,
						  .type = GANTRY_TYPE_FLOAT32,
						  .op = GANTRY_OP_SUM};
	struct gantry_reduce_args sum = {.src = {dst, tmp},
					 .dst = {dst},
					 .nsrc = 2,
					 .ndst = 1,
					 .count = b->l.bytes / sizeof(float),
					 .type = GANTRY_TYPE_FLOAT32,
					 .op = GANTRY_OP_SUM};

	switch (way) {
	case UNPACK_COPY:
		r = b->dev->ops->copy_async(b->dev, b->stream, tmp, dst, b->l.bytes);
		break;
	case UNPACK_SEED:
		r = launch(b, blocks, &gantry_kernel_unpack_seed, &seed, sizeof(seed));
		break;
	case UNPACK_FUSED:
		r = launch(b, blocks, &gantry_kernel_unpack_reduce, &fused, sizeof(fused));
		break;
	case UNPACK_TWO_STEP:
		TRY(launch(b, blocks, &gantry_kernel_unpack, &ours, sizeof(ours)));
		TRY(launch(b, blocks, &gantry_kernel_reduce, &sum, sizeof(sum)));
		break;
	default:
		r = launch(b, blocks, &gantry_kernel_unpack, &ours, sizeof(ours));
	}
out:
	return r;
}

/* GB/s of payload, a few in a row between two events. */
static gantry_result time_once(struct unpack_bench *b, enum unpack_way way, uint32_t blocks, double *ret_gbs)
{
	double us = 0;

	TRY_NOW(b->dev->ops->event_record(b->dev, b->from, b->stream));
	for (int i = 0; i < TIMES; i++)
		TRY_NOW(enqueue(b, way, blocks));
	TRY_NOW(b->dev->ops->event_record(b->dev, b->to, b->stream));
	TRY_NOW(gantry_stream_sync(b->dev, b->stream));
	TRY_NOW(b->dev->ops->event_elapsed(b->dev, b->from, b->to, &us));
	*ret_gbs = us > 0 ? (double)b->l.bytes * TIMES / us / 1e3 : NAN;
	return GANTRY_OK;
}

/* Interleaved; one round to warm up. */
static gantry_result time_ways(struct unpack_bench *b, const enum unpack_way *ways, int n, uint32_t blocks,
			       struct perf_spread *ret_gbs)
{
	static double v[UNPACK_WAYS][UNPACK_REPEATS_MAX];

	for (int k = -1; k < b->o->repeats; k++)
		for (int i = 0; i < n; i++)
			TRY_NOW(time_once(b, ways[i], blocks, &v[i][k < 0 ? 0 : k]));
	for (int i = 0; i < n; i++)
		ret_gbs[i] = perf_spread_of(v[i], (size_t)b->o->repeats);
	return GANTRY_OK;
}

/* ---- checked ---- */

enum { SEQ_MESSAGE = 1, SEQ_POISON = 2, BEHIND = 1 << 20 };

static const struct perf_spread not_measured = {NAN, NAN, NAN}; /* --check-only */

static uint64_t area_bytes(const struct unpack_bench *b)
{
	return b->dst_bytes + 2 * UNPACK_GUARD;
}

gantry_result unpack_bench_open(struct unpack_bench *b, const struct unpack_opts *o, const enum unpack_shape *shapes,
				int nshapes)
{
	void *p = NULL, *q = NULL;
	const char *why;

	b->o = o;
	TRY_NOW(gantry_device_open((enum gantry_device_kind)o->device, o->gpu, &b->dev));
	for (int i = 0; i < nshapes; i++) {
		struct unpack_list l;

		if (!unpack_list_make(&l, shapes[i], o->bytes, o->seed, &why))
			FAIL_NOW(GANTRY_ERR_LIMIT, "%s of shape %s: %s", SIZE_TEXT(o->bytes),
				 unpack_shape_names[shapes[i]], why);
		b->pool_bytes = l.pool_bytes > b->pool_bytes ? l.pool_bytes : b->pool_bytes;
		b->dst_bytes = l.span > b->dst_bytes ? l.span : b->dst_bytes;
		b->max_descs = l.n > b->max_descs ? l.n : b->max_descs;
		unpack_list_free(&l);
	}
	b->dst_bytes = (b->dst_bytes + 15) / 16 * 16;
	b->page = malloc(b->pool_bytes);
	b->msg = malloc(area_bytes(b));
	if (!b->page || !b->msg)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a pool of %s and a message of %s; choose a smaller -e",
			 SIZE_TEXT(b->pool_bytes), SIZE_TEXT(b->dst_bytes));
	TRY_NOW(gantry_stream_create(b->dev, &b->stream));
	TRY_NOW(b->dev->ops->event_create(b->dev, &b->from));
	TRY_NOW(b->dev->ops->event_create(b->dev, &b->to));
	if (o->pages)
		TRY_NOW(b->dev->ops->alloc_mapped(b->dev, b->pool_bytes, &b->mapped, &p));
	else
		TRY_NOW(b->dev->ops->alloc(b->dev, b->pool_bytes, &p));
	b->pool = p;
	TRY_NOW(b->dev->ops->alloc(b->dev, area_bytes(b), &p));
	b->dst = p;
	TRY_NOW(b->dev->ops->alloc(b->dev, area_bytes(b), &p));
	b->tmp = p;
	TRY_NOW(b->dev->ops->alloc(b->dev, b->max_descs * sizeof(*b->descs), &p));
	b->descs = p;
	TRY_NOW(b->dev->ops->alloc_mapped(b->dev, sizeof(*b->wrong), &p, &q));
	b->wrong = p;
	b->wrong_dev = q;
	return GANTRY_OK;
}

void unpack_bench_close(struct unpack_bench *b)
{
	if (!b->dev)
		return;
	if (b->stream)
		gantry_stream_destroy(b->dev, b->stream);
	if (b->from)
		b->dev->ops->event_destroy(b->dev, b->from);
	if (b->to)
		b->dev->ops->event_destroy(b->dev, b->to);
	if (b->mapped)
		b->dev->ops->free_mapped(b->dev, b->mapped);
	else
		b->dev->ops->free(b->dev, b->pool);
	b->dev->ops->free(b->dev, b->dst);
	b->dev->ops->free(b->dev, b->tmp);
	b->dev->ops->free(b->dev, b->descs);
	if (b->wrong)
		b->dev->ops->free_mapped(b->dev, b->wrong);
	gantry_device_close(b->dev);
	unpack_list_free(&b->l);
	free(b->page);
	free(b->msg);
}

/* msg, which starts at dst_off 0, goes to its pages, and those to the device; what is between fragments is not 0. */
static gantry_result fill_pool(struct unpack_bench *b)
{
	memset(b->page, 0x5a, b->l.pool_bytes);
	for (uint64_t i = 0; i < b->l.n; i++)
		memcpy(b->page + b->l.descs[i].src_off, b->msg + b->l.descs[i].dst_off, b->l.descs[i].len);
	return b->dev->ops->copy(b->dev, b->mapped ? b->mapped : b->pool, b->page, b->l.pool_bytes);
}

static gantry_result make_list(struct unpack_bench *b, enum unpack_shape shape)
{
	const char *why;

	b->shape = shape;
	unpack_list_free(&b->l);
	if (!unpack_list_make(&b->l, shape, b->o->bytes, b->o->seed, &why))
		FAIL_NOW(GANTRY_ERR_LIMIT, "shape %s: %s", unpack_shape_names[shape], why);
	return b->dev->ops->copy(b->dev, b->descs, b->l.descs, b->l.n * sizeof(*b->descs));
}

gantry_result unpack_bench_load(struct unpack_bench *b, enum unpack_shape shape)
{
	TRY_NOW(make_list(b, shape));
	perf_fill(b->msg, b->l.span, SEQ_MESSAGE);
	return fill_pool(b);
}

static uint32_t many(const struct unpack_bench *b)
{
	return b->dev->sleeps ? 1 : UNPACK_ALL;
}

gantry_result unpack_poison(struct unpack_bench *b, char *area)
{
	struct gantry_fill_args a = {.dst = area, .bytes = area_bytes(b), .seq = SEQ_POISON};

	return launch(b, many(b), &gantry_kernel_fill, &a, sizeof(a));
}

/* Bytes of a piece of the area, fetched from the device, that are not poison. */
static gantry_result not_poison(struct unpack_bench *b, const char *area, uint64_t from, uint64_t n, uint64_t *wrong)
{
	gantry_result r = GANTRY_OK;
	uint64_t seed = gantry_pattern_seed(area_bytes(b), SEQ_POISON);
	char *got = malloc(n ? n : 1);

	if (!got)
		FAIL(GANTRY_ERR_NOMEM, "no memory to check %s", SIZE_TEXT(n));
	TRY(b->dev->ops->copy(b->dev, got, area + from, n));
	for (uint64_t i = 0; i < n; i++)
		*wrong += got[i] != (char)(gantry_pattern_word(seed, (from + i) / 8) >> (from + i) % 8 * 8);
out:
	free(got);
	return r;
}

/* The guard in front of the message, and what is behind it: the other guard or, after a short message, a part. */
static gantry_result check_guards(struct unpack_bench *b, const char *area, uint64_t *wrong)
{
	uint64_t end = UNPACK_GUARD + b->l.span, rest = area_bytes(b) - end;

	TRY_NOW(not_poison(b, area, 0, UNPACK_GUARD, wrong));
	return not_poison(b, area, end, rest < BEHIND ? rest : BEHIND, wrong);
}

static void note_first(struct unpack_bench *b, const char *where, uint64_t offset)
{
	if (!b->first_wrong[0])
		snprintf(b->first_wrong, sizeof(b->first_wrong), "%s %llu of a message of %s, shape %s", where,
			 (unsigned long long)offset, SIZE_TEXT(b->l.bytes), unpack_shape_names[b->shape]);
}

/* All of the area, byte for byte on the host: the message's fragments, and poison in gaps and guards. */
static gantry_result compare(struct unpack_bench *b, const char *area, uint64_t *ret_wrong)
{
	gantry_result r = GANTRY_OK;
	uint64_t n = area_bytes(b), first = n;
	char *want = malloc(n), *got = malloc(n);

	if (!want || !got)
		FAIL(GANTRY_ERR_NOMEM, "no memory to look for wrong bytes");
	TRY(b->dev->ops->copy(b->dev, got, area, n));
	perf_fill(want, n, SEQ_POISON);
	for (uint64_t i = 0; i < b->l.n; i++)
		memcpy(want + UNPACK_GUARD + b->l.descs[i].dst_off, b->msg + b->l.descs[i].dst_off, b->l.descs[i].len);
	*ret_wrong = 0;
	for (uint64_t at = n; at-- > 0;)
		if (got[at] != want[at]) {
			++*ret_wrong;
			first = at;
		}
	if (first < UNPACK_GUARD)
		note_first(b, "in front of offset", 0);
	else if (first < UNPACK_GUARD + b->l.span)
		note_first(b, "at offset", first - UNPACK_GUARD);
	else if (first < n)
		note_first(b, "behind the end at offset", b->l.span);
out:
	free(want);
	free(got);
	return r;
}

gantry_result unpack_verify(struct unpack_bench *b, const char *area, uint64_t *ret_wrong)
{
	struct gantry_verify_args a = {
		.src = area + UNPACK_GUARD, .bytes = b->l.span, .seq = SEQ_MESSAGE, .wrong = b->wrong_dev};
	const int gaps = b->l.span != b->l.bytes;
	uint64_t wrong = 0;

	*b->wrong = 0;
	TRY_NOW(gantry_stream_sync(b->dev, b->stream));
	if (!gaps) {
		TRY_NOW(launch(b, many(b), &gantry_kernel_verify, &a, sizeof(a)));
		TRY_NOW(gantry_stream_sync(b->dev, b->stream));
		wrong = load_acquire(b->wrong);
		TRY_NOW(check_guards(b, area, &wrong));
	}
	if (gaps || wrong) /* the kernel does not know where, nor anything of gaps */
		TRY_NOW(compare(b, area, &wrong));
	*ret_wrong += wrong;
	return GANTRY_OK;
}

static struct unpack_row row_of(const struct unpack_bench *b, const char *kind, const struct gantry_launch *l)
{
	return (struct unpack_row){.kind = kind,
				   .shape = unpack_shape_names[b->shape],
				   .blocks = l->blocks,
				   .lanes = l->lanes,
				   .bytes = b->l.bytes,
				   .frags = b->l.n};
}

gantry_result unpack_measure(struct unpack_bench *b, uint32_t blocks, struct unpack_row *ret)
{
	struct gantry_launch l = shape_of(b, &gantry_kernel_unpack, blocks);
	struct unpack_row row = row_of(b, "unpack", &l);
	static const enum unpack_way ways[] = {UNPACK_OURS, UNPACK_SEED, UNPACK_COPY};
	struct perf_spread gbs[3] = {not_measured, not_measured, not_measured};
	uint64_t seed_wrong = 0;

	TRY_NOW(unpack_poison(b, b->dst));
	TRY_NOW(enqueue(b, UNPACK_SEED, blocks));
	TRY_NOW(unpack_verify(b, b->dst, &seed_wrong));
	if (seed_wrong)
		FAIL_NOW(GANTRY_ERR_CORRUPT, "NCCL's loop, which is compared with, got %llu bytes wrong, the first %s",
			 (unsigned long long)seed_wrong, b->first_wrong);
	TRY_NOW(unpack_poison(b, b->dst));
	TRY_NOW(enqueue(b, UNPACK_OURS, blocks));
	TRY_NOW(unpack_verify(b, b->dst, &row.wrong));
	if (!b->o->check_only)
		TRY_NOW(time_ways(b, ways, 3, blocks, gbs));
	row.gbs = gbs[0];
	row.seed_gbs = gbs[1].median;
	row.copy_gbs = gbs[2].median;
	row.ratio_seed = row.gbs.median / row.seed_gbs;
	row.ratio_copy = row.gbs.median / row.copy_gbs;
	*ret = row;
	return GANTRY_OK;
}

/* Sums of two small whole numbers are exact in float. */
static float element(uint64_t i, int which)
{
	return (float)(gantry_pattern_mix(i + 1) >> (which ? 40 : 20) & 0xffff);
}

gantry_result unpack_bench_load_floats(struct unpack_bench *b, enum unpack_shape shape)
{
	float *f = (float *)b->msg;

	TRY_NOW(make_list(b, shape));
	for (uint64_t i = 0; i < b->l.bytes / sizeof(float); i++)
		f[i] = element(i, 0);
	TRY_NOW(fill_pool(b));
	for (uint64_t i = 0; i < b->l.bytes / sizeof(float); i++)
		f[i] = element(i, 1);
	return GANTRY_OK;
}

/* What arrives is added to what is in dst. */
static gantry_result check_reduce(struct unpack_bench *b, uint32_t blocks, uint64_t *wrong)
{
	gantry_result r = GANTRY_OK;
	uint64_t n = b->l.bytes / sizeof(float);
	float *got = malloc(n * sizeof(float) + 1);

	if (!got)
		FAIL(GANTRY_ERR_NOMEM, "no memory to check %s", SIZE_TEXT(b->l.bytes));
	TRY(unpack_poison(b, b->dst));
	TRY(gantry_stream_sync(b->dev, b->stream));
	TRY(b->dev->ops->copy(b->dev, b->dst + UNPACK_GUARD, b->msg, n * sizeof(float)));
	TRY(enqueue(b, UNPACK_FUSED, blocks));
	TRY(gantry_stream_sync(b->dev, b->stream));
	TRY(b->dev->ops->copy(b->dev, got, b->dst + UNPACK_GUARD, n * sizeof(float)));
	for (uint64_t i = 0; i < n; i++) {
		if (got[i] == element(i, 0) + element(i, 1))
			continue;
		note_first(b, "at offset", i * sizeof(float));
		*wrong += sizeof(float);
	}
	TRY(check_guards(b, b->dst, wrong));
out:
	free(got);
	return r;
}

gantry_result unpack_measure_reduce(struct unpack_bench *b, uint32_t blocks, struct unpack_row *ret)
{
	struct gantry_launch l = shape_of(b, &gantry_kernel_unpack_reduce, blocks);
	struct unpack_row row = row_of(b, "reduce", &l);
	static const enum unpack_way ways[] = {UNPACK_FUSED, UNPACK_TWO_STEP};
	struct perf_spread gbs[2] = {not_measured, not_measured};

	TRY_NOW(check_reduce(b, blocks, &row.wrong));
	if (!b->o->check_only)
		TRY_NOW(time_ways(b, ways, 2, blocks, gbs));
	row.fused_gbs = gbs[0];
	row.two_step_gbs = gbs[1].median;
	row.ratio_two_step = row.fused_gbs.median / row.two_step_gbs;
	*ret = row;
	return GANTRY_OK;
}

/* ---- the kernel that stays ---- */

enum { JOB_FRAGS = 16, ENTRIES = 16, JOBS = 1000 };

/* A job of a GPU takes microseconds. CPUs may have other things to do. */
static uint64_t long_ns(const struct unpack_bench *b)
{
	return b->dev->sleeps ? 20000000000ull : 3000000000ull;
}

struct ring_bench {
	struct unpack_bench *b;
	struct gantry_unpack_ring *ring;
	struct gantry_unpack_desc *host, *mapped; /* all descriptors of the list */
	uint64_t jobs;				  /* in the whole message */
};

static struct gantry_unpack_job job_of(const struct ring_bench *t, uint64_t k)
{
	uint64_t first = k % t->jobs * JOB_FRAGS, left = t->b->l.n - first;
	struct gantry_unpack_job job = {.descs = t->mapped + first,
					.n = left < JOB_FRAGS ? left : JOB_FRAGS,
					.bounce = t->b->pool,
					.dst = t->b->dst + UNPACK_GUARD};

	return job;
}

/* n jobs; window: how many may be posted and not done. */
static gantry_result run_jobs(struct ring_bench *t, uint64_t from, uint64_t n, uint64_t window, double *ret_us)
{
	uint64_t start = gantry_now_ns(), number = 0;

	for (uint64_t k = 0; k < n; k++) {
		struct gantry_unpack_job job = job_of(t, from + k);

		/* The window is no larger than the ring, so there is an entry. */
		TRY_NOW(gantry_unpack_ring_post(t->ring, &job, &number));
		if (number + 1 >= window)
			TRY_NOW(gantry_unpack_ring_wait(t->ring, number + 2 - window, long_ns(t->b)));
	}
	TRY_NOW(gantry_unpack_ring_wait(t->ring, number + 1, long_ns(t->b)));
	*ret_us = (double)(gantry_now_ns() - start) / 1e3 / (double)n;
	return GANTRY_OK;
}

static gantry_result run_launches(struct ring_bench *t, uint32_t blocks, uint64_t n, double *ret_us)
{
	uint64_t start = gantry_now_ns();

	for (uint64_t k = 0; k < n; k++) {
		struct gantry_unpack_job job = job_of(t, k);
		struct gantry_unpack_args a = {.descs = job.descs, .n = job.n, .bounce = job.bounce, .dst = job.dst};

		TRY_NOW(launch(t->b, blocks, &gantry_kernel_unpack, &a, sizeof(a)));
		TRY_NOW(gantry_stream_sync(t->b->dev, t->b->stream));
	}
	*ret_us = (double)(gantry_now_ns() - start) / 1e3 / (double)n;
	return GANTRY_OK;
}

static gantry_result measure_ring(struct ring_bench *t, uint32_t blocks, struct unpack_row *row)
{
	static double one[UNPACK_REPEATS_MAX], full[UNPACK_REPEATS_MAX], launch[UNPACK_REPEATS_MAX];
	int n = t->b->o->repeats;

	/* Launches first: while the ring lives its blocks are taken. */
	for (int k = -1; k < n; k++)
		TRY_NOW(run_launches(t, blocks, JOBS, &launch[k < 0 ? 0 : k]));
	TRY_NOW(gantry_unpack_ring_create(t->b->dev, blocks, 0, ENTRIES, false, &t->ring));
	for (int k = -1; k < n; k++) {
		TRY_NOW(run_jobs(t, 0, JOBS, 1, &one[k < 0 ? 0 : k]));
		TRY_NOW(run_jobs(t, 0, JOBS, ENTRIES, &full[k < 0 ? 0 : k]));
	}
	row->us_per_job = perf_spread_of(one, (size_t)n);
	row->jobs = 1e6 / perf_median(full, (size_t)n);
	row->launch_us = perf_median(launch, (size_t)n);
	row->ratio_launch = row->us_per_job.median / row->launch_us;
	return GANTRY_OK;
}

/* A kernel that does not even end when aborted: nothing more may be asked of the device. */
static gantry_result destroy(struct ring_bench *t)
{
	gantry_result r = gantry_unpack_ring_destroy(t->ring, long_ns(t->b));

	t->ring = NULL;
	t->b->stuck = r == GANTRY_ERR_INTERNAL;
	return r;
}

/* The ring's job is the whole message in pieces. */
static gantry_result check_ring(struct ring_bench *t, uint32_t blocks, struct unpack_row *row)
{
	double us;

	TRY_NOW(unpack_poison(t->b, t->b->dst));
	TRY_NOW(gantry_stream_sync(t->b->dev, t->b->stream));
	TRY_NOW(gantry_unpack_ring_create(t->b->dev, blocks, 0, ENTRIES, true, &t->ring));
	TRY_NOW(run_jobs(t, 0, t->jobs, ENTRIES, &us));
	TRY_NOW(destroy(t));
	return unpack_verify(t->b, t->b->dst, &row->wrong);
}

gantry_result unpack_measure_ring(struct unpack_bench *b, uint32_t blocks, struct unpack_row *ret)
{
	gantry_result r = GANTRY_OK, e;
	struct ring_bench t = {.b = b, .jobs = (b->l.n + JOB_FRAGS - 1) / JOB_FRAGS};
	struct gantry_launch l = shape_of(b, &gantry_kernel_unpack_ring, blocks);
	struct unpack_row row = {.kind = "ring",
				 .shape = "aligned",
				 .blocks = l.blocks,
				 .lanes = l.lanes,
				 .bytes = b->l.bytes / b->l.n * JOB_FRAGS,
				 .frags = JOB_FRAGS,
				 .jobs = NAN,
				 .us_per_job = {NAN, NAN, NAN},
				 .launch_us = NAN,
				 .ratio_launch = NAN};
	void *host = NULL, *mapped = NULL;

	TRY(b->dev->ops->alloc_mapped(b->dev, b->l.n * sizeof(*t.host), &host, &mapped));
	t.host = host;
	t.mapped = mapped;
	memcpy(t.host, b->l.descs, b->l.n * sizeof(*t.host));
	TRY(check_ring(&t, l.blocks, &row));
	if (!b->o->check_only)
		TRY(measure_ring(&t, l.blocks, &row));
	*ret = row;
out:
	e = t.ring ? destroy(&t) : GANTRY_OK;
	if (host && !b->stuck)
		b->dev->ops->free_mapped(b->dev, host);
	return r != GANTRY_OK ? r : e;
}
