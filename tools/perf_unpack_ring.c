/*
 * `perf unpack`: the kernel that stays, against a launch for every message. Messages are small, as they are when a
 * launch is too much: 16 pages, whose descriptors lie in mapped memory, where a network would write them.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/unpack_ring.h"
#include "perf_unpack.h"
#include "perf_util.h"

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
	gantry_result r = GANTRY_OK;
	uint64_t start = gantry_now_ns(), number = 0;

	for (uint64_t k = 0; k < n; k++) {
		struct gantry_unpack_job job = job_of(t, from + k);

		/* The window is no larger than the ring, so there is an entry. */
		TRY(gantry_unpack_ring_post(t->ring, &job, &number));
		if (number + 1 >= window)
			TRY(gantry_unpack_ring_wait(t->ring, number + 2 - window, long_ns(t->b)));
	}
	TRY(gantry_unpack_ring_wait(t->ring, number + 1, long_ns(t->b)));
	*ret_us = (double)(gantry_now_ns() - start) / 1e3 / (double)n;
out:
	return r;
}

static gantry_result run_launches(struct ring_bench *t, uint32_t blocks, uint64_t n, double *ret_us)
{
	gantry_result r = GANTRY_OK;
	uint64_t start = gantry_now_ns();

	for (uint64_t k = 0; k < n; k++) {
		struct gantry_unpack_job job = job_of(t, k);
		struct gantry_unpack_args a = {.descs = job.descs, .n = job.n, .bounce = job.bounce, .dst = job.dst};

		TRY(unpack_launch(t->b, blocks, GANTRY_KERNEL_UNPACK, &a, sizeof(a)));
		TRY(gantry_stream_sync(t->b->dev, t->b->stream));
	}
	*ret_us = (double)(gantry_now_ns() - start) / 1e3 / (double)n;
out:
	return r;
}

static gantry_result measure(struct ring_bench *t, uint32_t blocks, struct unpack_row *row)
{
	gantry_result r = GANTRY_OK;
	static double one[UNPACK_REPEATS_MAX], full[UNPACK_REPEATS_MAX], launch[UNPACK_REPEATS_MAX];
	int n = t->b->o->repeats;

	/* Launches first: while the ring lives its blocks are taken. */
	for (int k = -1; k < n; k++)
		TRY(run_launches(t, blocks, JOBS, &launch[k < 0 ? 0 : k]));
	TRY(gantry_unpack_ring_create(t->b->dev, blocks, 0, ENTRIES, &t->ring));
	for (int k = -1; k < n; k++) {
		TRY(run_jobs(t, 0, JOBS, 1, &one[k < 0 ? 0 : k]));
		TRY(run_jobs(t, 0, JOBS, ENTRIES, &full[k < 0 ? 0 : k]));
	}
	row->us_per_job = perf_spread_of(one, (size_t)n);
	row->jobs = 1e6 / perf_median(full, (size_t)n);
	row->launch_us = perf_median(launch, (size_t)n);
	row->ratio_launch = row->us_per_job.median / row->launch_us;
out:
	return r;
}

/* A kernel that does not even end when aborted: nothing more may be asked of the device. */
static gantry_result destroy(struct ring_bench *t)
{
	gantry_result r = gantry_unpack_ring_destroy(t->ring, long_ns(t->b));

	t->ring = NULL;
	t->b->stuck = r == GANTRY_ERR_INTERNAL;
	return r;
}

/* What the ring is told to do is the whole message in pieces. */
static gantry_result check(struct ring_bench *t, uint32_t blocks, struct unpack_row *row)
{
	gantry_result r = GANTRY_OK;
	double us;

	TRY(unpack_poison(t->b, t->b->dst));
	TRY(gantry_stream_sync(t->b->dev, t->b->stream));
	TRY(gantry_unpack_ring_create_marked(t->b->dev, blocks, 0, ENTRIES, &t->ring));
	TRY(run_jobs(t, 0, t->jobs, ENTRIES, &us));
	TRY(destroy(t));
	TRY(unpack_verify(t->b, t->b->dst, &row->wrong));
out:
	return r;
}

gantry_result unpack_measure_ring(struct unpack_bench *b, uint32_t blocks, struct unpack_row *ret)
{
	gantry_result r = GANTRY_OK, e;
	struct ring_bench t = {.b = b, .jobs = (b->l.n + JOB_FRAGS - 1) / JOB_FRAGS};
	struct gantry_launch l = unpack_shape_of(b, GANTRY_KERNEL_UNPACK_RING, blocks);
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
	TRY(check(&t, l.blocks, &row));
	if (!b->o->check_only)
		TRY(measure(&t, l.blocks, &row));
	*ret = row;
out:
	e = t.ring ? destroy(&t) : GANTRY_OK;
	if (host && !b->stuck)
		b->dev->ops->free_mapped(b->dev, host);
	return r != GANTRY_OK ? r : e;
}
