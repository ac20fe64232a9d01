/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How block 0 of the ring hands jobs on: nothing is told before it is there, nothing is overwritten while a block may
 * read it, no other block looks at what is in the host's memory, and no wake-up gets lost.
 *
 * As many jobs as there are entries are under way nearly all the time. A job's entry is written anew as soon as post
 * lets it, its descriptors, pages and destination soon after it is done. A block that reads any of that too early or
 * too late leaves bytes that are wrong. Every byte is looked at, also those that are nobody's.
 *
 * On the host device the kernel's body is compiled here, with delays before everything that it publishes, and sleeps
 * have no end: no_timeouts.h takes the time-out away, so that a lost wake-up is a hang, which the alarm makes a
 * failure.
 */
#define GANTRY_TEST_DELAYS

#include "device/host/host.h"
#include "k_unpack_util.h"
#include "kernels/k_unpack_ring.h"
#include "kernels/unpack_ring.h"
#include "no_timeouts.h"

enum {
	MAX_ENTRIES = 8,
	MAX_SLOTS = 2 * MAX_ENTRIES,
	MAX_FRAGS = 2 * GANTRY_UNPACK_RELAYED,
	STRIDE = 48,
	AREA = MAX_FRAGS * STRIDE
};
#define LONG (UNTIL_SECONDS * 1000000000ull)

/* One publication, or part of one, in 32 is held up, for another thread's turn or for longer than a job takes. */
static void random_delay(void)
{
	if (random_below(32))
		return;
	if (random_below(2))
		usleep(random_below(128));
	else
		sched_yield();
}
void (*dev_delay)(void) = random_delay;

/* Only block 0 is told where the host's words are. */
static void body(const void *args)
{
	struct gantry_unpack_ring_args a = *(const struct gantry_unpack_ring_args *)args;

	if (dev_block() != 0) {
		a.posted = NULL;
		a.jobs = NULL;
	}
	k_unpack_ring(&a);
}
static gantry_result (*real_launch)(struct gantry_device *d, struct gantry_stream *s, const struct gantry_launch *l);
static gantry_result launch_body(struct gantry_device *d, struct gantry_stream *s, const struct gantry_launch *l)
{
	struct gantry_kernel kernel = {.body = body};
	struct gantry_launch other = *l;

	CHECK_EQ(l->kernel, &gantry_kernel_unpack_ring);
	other.kernel = &kernel;
	return real_launch(d, s, &other);
}

/* What belongs to a job, and how both areas are to look when it is done. */
struct slot {
	struct area descs, pages, dst;
	char *want_pages, *want_dst;
};
static struct slot slots[MAX_SLOTS];

static void make_job(struct slot *s, struct gantry_unpack_job *ret)
{
	static const uint64_t sizes[] = {0, 1, 3, 16, 33, 63, 64, 65, 100, MAX_FRAGS};
	struct gantry_unpack_desc *d = (struct gantry_unpack_desc *)s->descs.host;
	const uint64_t n = sizes[random_below(sizeof(sizes) / sizeof(*sizes))], turn = random_below(MAX_FRAGS);
	const int gather = random_below(3) == 0;

	random_fill(s->pages.host, AREA);
	random_fill(s->dst.host, AREA);
	memcpy(s->want_pages, s->pages.host, AREA);
	memcpy(s->want_dst, s->dst.host, AREA);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t len = random_below(33), page = (i * 5 + turn) % MAX_FRAGS;

		d[i].len = (uint32_t)len;
		d[i].src_off = (uint32_t)(page * STRIDE + random_below(STRIDE - len + 1));
		d[i].dst_off = i * STRIDE + random_below(STRIDE - len + 1);
		for (uint64_t k = 0; k < len; k++)
			if (gather)
				s->want_pages[d[i].src_off + k] = s->dst.host[d[i].dst_off + k];
			else
				s->want_dst[d[i].dst_off + k] = s->pages.host[d[i].src_off + k];
	}
	*ret = (struct gantry_unpack_job){.descs = (const struct gantry_unpack_desc *)s->descs.device,
					  .n = n,
					  .bounce = s->pages.device,
					  .dst = s->dst.device,
					  .gather = (uint64_t)gather};
}

static void check_job(const struct slot *s, uint64_t k)
{
	for (uint64_t i = 0; i < AREA; i++)
		if (s->pages.host[i] != s->want_pages[i] || s->dst.host[i] != s->want_dst[i]) {
			fprintf(stderr, "job %llu, byte %llu\n", (unsigned long long)k, (unsigned long long)i);
			CHECK_EQ(s->pages.host[i], s->want_pages[i]);
			CHECK_EQ(s->dst.host[i], s->want_dst[i]);
		}
	/* Whoever still reads it is lost. */
	memset(s->descs.host, 0xff, MAX_FRAGS * sizeof(struct gantry_unpack_desc));
}

static void post(struct gantry_unpack_ring *ring, uint32_t entries, const struct gantry_unpack_job *job, uint64_t k)
{
	uint64_t number = UINT64_MAX;

	while (gantry_unpack_ring_post(ring, job, &number) == GANTRY_AGAIN)
		CHECK_OK(gantry_unpack_ring_wait(ring, k - entries + 1, LONG));
	CHECK_EQ(number, k);
}

/* Twice as many slots as entries, so that it is the ring that says how many may be under way. The last jobs are when it
 * is told to stop. */
static void test_reuse(uint32_t blocks, uint32_t lanes, uint32_t gpu_lanes, uint32_t entries)
{
	const uint64_t jobs = SANITIZED ? 200 : 800, nslots = 2ull * entries;
	struct gantry_unpack_ring *ring = NULL;
	struct gantry_unpack_job job;

	CHECK_EQ(gantry_unpack_ring_create(dev, blocks, on_gpu ? gpu_lanes : lanes, entries, false, &ring), GANTRY_OK);
	for (uint64_t k = 0; k < jobs; k++) {
		struct slot *s = &slots[k % nslots];

		/* Now and then for all of them: blocks go to sleep, and are woken for one job. */
		if (k >= nslots) {
			CHECK_EQ(gantry_unpack_ring_wait(ring, random_below(16) ? k - nslots + 1 : k, LONG), GANTRY_OK);
			check_job(s, k - nslots);
		}
		make_job(s, &job);
		post(ring, entries, &job, k);
	}
	CHECK_OK(gantry_unpack_ring_destroy(ring, LONG));
	for (uint64_t k = jobs - nslots; k < jobs; k++)
		check_job(&slots[k % nslots], k);
}

/* Blocks that sleep are woken by an abort, however they sleep: some jobs have been handed on, or none. */
static void test_abort(uint32_t jobs)
{
	struct gantry_unpack_ring *ring = NULL;
	struct gantry_unpack_job job;

	CHECK_EQ(gantry_unpack_ring_create(dev, 3, on_gpu ? 64 : 1, MAX_ENTRIES, false, &ring), GANTRY_OK);
	for (uint32_t k = 0; k < jobs; k++) {
		make_job(&slots[k], &job);
		CHECK_OK(gantry_unpack_ring_post(ring, &job, NULL));
	}
	CHECK_OK(gantry_unpack_ring_wait(ring, jobs, LONG));
	gantry_unpack_ring_abort(ring);
	CHECK_OK(gantry_unpack_ring_destroy(ring, LONG)); /* all that was posted is done */
	for (uint32_t k = 0; k < jobs; k++)
		check_job(&slots[k], k);
}

int main(int argc, char **argv)
{
	const struct gantry_device_ops *ops;
	struct gantry_device_ops with_body;

	alarm(500);
	setenv("GANTRY_SPIN", "0", 1);
	setenv("GANTRY_YIELD", "0", 1);
	open_device(argc, argv);
	ops = dev->ops;
	with_body = *ops;
	real_launch = ops->launch;
	with_body.launch = launch_body;
	if (!on_gpu)
		dev->ops = &with_body;
	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		slots[i].descs = area_new(MAX_FRAGS * sizeof(struct gantry_unpack_desc));
		slots[i].pages = area_new(AREA);
		slots[i].dst = area_new(AREA);
		slots[i].want_pages = malloc(AREA);
		slots[i].want_dst = malloc(AREA);
		CHECK(slots[i].want_pages && slots[i].want_dst);
	}
	RUN(test_reuse(4, 1, 512, 2));
	RUN(test_reuse(3, 2, 32, 4));
	RUN(test_reuse(5, 1, 96, 8));
	RUN(test_reuse(2, 3, 64, 1));
	RUN(test_reuse(1, 1, 512, 2));
	RUN(test_abort(0));
	RUN(test_abort(5));
	CHECK(on_gpu || __atomic_load_n(&sleeps, __ATOMIC_RELAXED));
	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		area_free(&slots[i].descs);
		area_free(&slots[i].pages);
		area_free(&slots[i].dst);
		free(slots[i].want_pages);
		free(slots[i].want_dst);
	}
	dev->ops = ops;
	close_device();
	return 0;
}
