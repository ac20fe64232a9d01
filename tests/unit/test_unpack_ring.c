/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that stays: jobs in order, more of them than entries, stop with jobs left, abort, and that nothing of a
 * job is missing when `done` says that it is over.
 */
#include "k_unpack_util.h"
#include "kernels/unpack_ring.h"

enum { SPACE = 1 << 20 };
#define LONG (UNTIL_SECONDS * 1000000000ull)

static struct area pool, dst;
static struct list list;

/* The stream that the last ring made for its kernel: a ring does not say when that has ended. */
static struct gantry_device_ops spied;
static gantry_result (*real_stream_create)(struct gantry_device *d, struct gantry_stream **ret_stream);
static struct gantry_stream *ring_stream;

static gantry_result spy_stream_create(struct gantry_device *d, struct gantry_stream **ret_stream)
{
	gantry_result r = real_stream_create(d, ret_stream);

	ring_stream = r == GANTRY_OK ? *ret_stream : NULL;
	return r;
}

/* Aborts, and waits until the kernel has noticed. */
static void abort_and_wait(struct gantry_unpack_ring *ring)
{
	gantry_unpack_ring_abort(ring);
	UNTIL(gantry_stream_query(dev, ring_stream) != GANTRY_AGAIN);
}

static struct gantry_unpack_ring *ring_of(uint32_t blocks, uint32_t gpu_lanes, uint32_t entries)
{
	struct gantry_unpack_ring *ring = NULL;

	CHECK_EQ(gantry_unpack_ring_create(dev, blocks, on_gpu ? gpu_lanes : 0, entries, false, &ring), GANTRY_OK);
	return ring;
}
static struct gantry_unpack_ring *ring_new(uint32_t blocks, uint32_t entries)
{
	return ring_of(blocks, 64, entries);
}

static struct gantry_unpack_job job_of(uint64_t first, uint64_t n, int gather)
{
	struct gantry_unpack_job job = {.descs = (const struct gantry_unpack_desc *)list.descs.device + first,
					.n = n,
					.bounce = pool.device,
					.dst = dst.device,
					.gather = (uint64_t)gather};

	return job;
}

/* Waits for the oldest job, not for one more than are done: by then all may be, and there is no next one. */
static void post(struct gantry_unpack_ring *ring, uint32_t entries, const struct gantry_unpack_job *job,
		 uint64_t number)
{
	uint64_t got = 0;

	while (gantry_unpack_ring_post(ring, job, &got) == GANTRY_AGAIN)
		CHECK_OK(gantry_unpack_ring_wait(ring, number - entries + 1, LONG));
	CHECK_EQ(got, number);
}

/* Each job copies what the one before wrote, so that order and visibility between jobs are both needed... within one
 * block. Between blocks a job may not read what another job writes, so here each block's share is the whole job. */
static void test_order(void)
{
	struct gantry_unpack_ring *ring = ring_new(1, 4);
	const uint64_t jobs = on_gpu || SANITIZED ? 300 : 2000;

	list.n = 0;
	random_fill(pool.host, SPACE);
	memset(dst.host, 0, SPACE);
	/* there: pool[0] -> dst[0]; back: dst[0] -> pool[1000], and so on along the pool */
	for (uint64_t k = 0; k < 200; k++) {
		list_add(&list, k * 1000, k * 999, 900);
		list_add(&list, (k + 1) * 1000, k * 999, 900);
	}
	for (uint64_t k = 0; k < jobs; k++) {
		struct gantry_unpack_job job = job_of(k % 400, 1, k % 2 == 1);

		post(ring, 4, &job, k);
		CHECK(gantry_unpack_ring_done(ring) <= k + 1);
	}
	CHECK_OK(gantry_unpack_ring_wait(ring, jobs, LONG));
	CHECK_EQ(gantry_unpack_ring_done(ring), jobs);
	for (uint64_t k = 1; k <= (jobs < 400 ? jobs : 400) / 2; k++)
		CHECK(memcmp(pool.host, pool.host + k * 1000, 900) == 0);
	CHECK_OK(gantry_unpack_ring_destroy(ring, LONG));
}

/* Several blocks, jobs of many fragments: all bytes are there when done says so. */
static void test_shares(uint32_t blocks, uint32_t gpu_lanes)
{
	struct gantry_unpack_ring *ring = ring_of(blocks, gpu_lanes, 8);
	FREED char *want = malloc(SPACE);

	CHECK(want);
	for (uint64_t k = 0; k < (SANITIZED ? 20 : 60); k++) {
		struct gantry_unpack_job job;

		list_cut(&list, 20000 + k * 777, k % 2 ? 1448 : 300, SPACE);
		random_fill(pool.host, SPACE);
		memset(dst.host, POISON, 100000);
		memset(want, POISON, 100000);
		for (uint64_t i = 0; i < list.n; i++)
			memcpy(want + list.d[i].dst_off, pool.host + list.d[i].src_off, list.d[i].len);
		job = job_of(0, list.n, 0);
		post(ring, 8, &job, k);
		CHECK_OK(gantry_unpack_ring_wait(ring, k + 1, LONG));
		CHECK(memcmp(dst.host, want, 100000) == 0);
	}
	CHECK_OK(gantry_unpack_ring_destroy(ring, LONG));
}

/* Many small jobs in flight, of fewer fragments than a GPU's block has warps. */
static void test_small(uint32_t gpu_lanes)
{
	struct gantry_unpack_ring *ring = ring_of(4, gpu_lanes, 16);
	const uint64_t jobs = 400, frags = 16, part = 500;

	list.n = 0;
	random_fill(pool.host, SPACE);
	memset(dst.host, 0, SPACE);
	for (uint64_t k = 0; k < jobs; k++)
		list_add(&list, k * 600 + 1, k * part, part);
	for (uint64_t k = 0; k < jobs / frags; k++) {
		struct gantry_unpack_job job = job_of(k * frags, frags, 0);

		post(ring, 16, &job, k);
	}
	CHECK_OK(gantry_unpack_ring_wait(ring, jobs / frags, LONG));
	for (uint64_t k = 0; k < jobs; k++)
		CHECK(memcmp(dst.host + k * part, pool.host + k * 600 + 1, part) == 0);
	CHECK_OK(gantry_unpack_ring_destroy(ring, LONG));
}

/* Jobs that are posted when the ring is told to stop are done all the same; an empty one too. */
static void test_stop(void)
{
	struct gantry_unpack_ring *ring = ring_new(2, 16);
	struct gantry_unpack_job job;

	list.n = 0;
	memset(dst.host, POISON, SPACE);
	for (uint64_t k = 0; k < 12; k++)
		list_add(&list, k * 5000, k * 4000, 4000);
	for (uint64_t k = 0; k < 12; k++) {
		job = job_of(k, k % 4 != 3, 0);
		CHECK_OK(gantry_unpack_ring_post(ring, &job, NULL));
	}
	CHECK_OK(gantry_unpack_ring_destroy(ring, LONG));
	for (uint64_t k = 0; k < 12; k++)
		if (k % 4 != 3)
			CHECK(memcmp(dst.host + k * 4000, pool.host + k * 5000, 4000) == 0);
		else
			CHECK_FILLED(dst.host + k * 4000, 4000, POISON);
}

/* After an abort nothing more is done, and nobody waits for it. */
static void test_abort(void)
{
	struct gantry_unpack_ring *ring = ring_new(2, 4);
	struct gantry_unpack_job job = job_of(0, 1, 0);

	CHECK_OK(gantry_unpack_ring_post(ring, &job, NULL));
	CHECK_OK(gantry_unpack_ring_wait(ring, 1, LONG));
	abort_and_wait(ring);
	CHECK_OK(gantry_unpack_ring_post(ring, &job, NULL));
	CHECK_EQ(gantry_unpack_ring_wait(ring, 2, LONG), GANTRY_ERR_ABORTED);
	CHECK_EQ(gantry_unpack_ring_destroy(ring, LONG), GANTRY_ERR_TIMEOUT);
}

/* A ring that nobody serves is full after `entries` jobs; none is overwritten. */
static void test_full(void)
{
	struct gantry_unpack_ring *ring = ring_new(1, 4);
	struct gantry_unpack_job job = job_of(0, 1, 0);
	uint64_t number = 99;

	abort_and_wait(ring);
	for (uint64_t k = 0; k < 4; k++) {
		CHECK_OK(gantry_unpack_ring_post(ring, &job, &number));
		CHECK_EQ(number, k);
	}
	CHECK_EQ(gantry_unpack_ring_post(ring, &job, &number), GANTRY_AGAIN);
	CHECK_EQ(number, 3);
	CHECK_EQ(gantry_unpack_ring_destroy(ring, LONG), GANTRY_ERR_TIMEOUT);
}

/* With marks: the same bytes, and what it tells of itself when a wait is in vain does no harm. */
static void test_marks(void)
{
	struct gantry_unpack_ring *ring = NULL;
	struct gantry_unpack_job job;

	CHECK_EQ(gantry_unpack_ring_create(dev, 3, on_gpu ? 512 : 0, 8, true, &ring), GANTRY_OK);
	list.n = 0;
	memset(dst.host, POISON, SPACE);
	for (uint64_t k = 0; k < 40; k++)
		list_add(&list, k * 2000 + 3, k * 1500, 1500);
	for (uint64_t k = 0; k < 5; k++) {
		job = job_of(k * 8, 8, 0);
		CHECK_OK(gantry_unpack_ring_post(ring, &job, NULL));
	}
	CHECK_OK(gantry_unpack_ring_wait(ring, 5, LONG));
	for (uint64_t k = 0; k < 40; k++)
		CHECK(memcmp(dst.host + k * 1500, pool.host + k * 2000 + 3, 1500) == 0);
	CHECK_EQ(gantry_unpack_ring_wait(ring, 6, 1000), GANTRY_ERR_TIMEOUT); /* there is no such job */
	CHECK_OK(gantry_unpack_ring_destroy(ring, LONG));
}

static void test_arguments(void)
{
	struct gantry_unpack_ring *ring = NULL;

	CHECK_EQ(gantry_unpack_ring_create(dev, 0, 0, 4, false, &ring), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_unpack_ring_create(dev, 1, 0, 0, false, &ring), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_unpack_ring_create(dev, 1, 0, 6, false, &ring), GANTRY_ERR_INVALID);
	CHECK(!ring);
	CHECK_OK(gantry_unpack_ring_destroy(NULL, 0));
	ring = ring_new(1, 2);
	CHECK_EQ(gantry_unpack_ring_wait(ring, 1, 1000), GANTRY_ERR_TIMEOUT); /* nothing is posted */
	CHECK_OK(gantry_unpack_ring_destroy(ring, LONG));
}

int main(int argc, char **argv)
{
	const struct gantry_device_ops *ops;

	open_device(argc, argv);
	ops = dev->ops;
	spied = *ops;
	real_stream_create = ops->stream_create;
	spied.stream_create = spy_stream_create;
	dev->ops = &spied;
	pool = area_new(SPACE);
	dst = area_new(SPACE);
	list = list_new();
	random_fill(pool.host, SPACE);
	RUN(test_arguments());
	RUN(test_order());
	RUN(test_shares(1, 32));
	RUN(test_shares(3, 64));
	RUN(test_shares(4, 512));
	RUN(test_small(512));
	RUN(test_marks());
	RUN(test_stop());
	RUN(test_abort());
	RUN(test_full());
	area_free(&list.descs);
	area_free(&dst);
	area_free(&pool);
	dev->ops = ops;
	close_device();
	return 0;
}
