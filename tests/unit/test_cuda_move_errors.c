/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device's copies (device/cuda/copy_queue.c) when things go wrong: no room for requests, calls that fail, a GPU that is
 * broken, a device that is closed while it copies.
 */
#include "cuda_move_util.h"

enum { LONG_S = 11 }; /* more than copy_queue.c waits for anything */

/* All requests are used, and the driver does not come back from a call. */
static void fill(struct mover *at_driver)
{
	memset(device, 0, ARENA);
	hold_one(at_driver, FAKE_GATE_COPY, IN, device + ARENA - 16, host, 16);
	for (uint64_t i = 0; i < CUDA_REQUESTS; i++)
		CHECK_OK(move(IN, device + 2 * i, host + 2 * i, 1));
}

/* One more, which waits: it looks at the clock. */
static void one_more(struct mover *m)
{
	mover_start(m, IN, device + 10000, host + 10000, 100);
	mover_waits(m);
}

TEST(no_room)
{
	struct mover at_driver, waits;
	int before = FAKE(copies);

	gpu_open();
	fill(&at_driver);
	/* A neighbour of the last needs none, and the other queue is another queue. */
	CHECK_OK(move(IN, device + 2 * CUDA_REQUESTS - 1, host + 2 * CUDA_REQUESTS - 1, 1));
	one_more(&waits);
	CHECK_OK(let_go(&at_driver, FAKE_GATE_COPY));
	CHECK_OK(mover_end(&waits));
	CHECK_EQ(FAKE(copies) - before, 1 + CUDA_REQUESTS + 1);
	fake->run(ALL);
	CHECK_OK(moved(IN, fence_of(IN)));
	for (uint64_t i = 0; i < CUDA_REQUESTS; i++)
		CHECK_EQ(device[2 * i], host[2 * i]);
	CHECK(memcmp(device + 10000, host + 10000, 100) == 0);

	fill(&at_driver);
	one_more(&waits);
	put_forward(LONG_S);
	CHECK_EQ(mover_end(&waits), GANTRY_ERR_TIMEOUT);
	CHECK_OK(let_go(&at_driver, FAKE_GATE_COPY)); /* nothing is lost but that one */
	fake->run(ALL);
	CHECK_OK(moved(IN, fence_of(IN)));
	gpu_close();
}

/* The queue in is over, for all and without waiting; the queue out goes on. */
static void check_over(uint64_t fence)
{
	int before = FAKE(copies);

	CHECK_EQ(moved(IN, fence), GANTRY_ERR_DEVICE);
	for (int i = 0; i < CUDA_REQUESTS + 10; i++) /* requests are not used up either */
		CHECK_EQ(move(IN, device + 2 * i, host, 1), GANTRY_ERR_DEVICE);
	CHECK_EQ(moved(IN, fence_of(IN)), GANTRY_ERR_DEVICE);
	CHECK_EQ(FAKE(copies), before);
	CHECK_OK(move(OUT, host, device, 100));
	fake->run(ALL);
	CHECK_OK(moved(OUT, fence_of(OUT)));
}

static void a_call_fails(const char *symbol)
{
	uint64_t before, fence;
	struct mover at_driver;

	gpu_open();
	FAKE_SET(late, 0);
	CHECK_OK(move(IN, device, host, 100));
	before = fence_of(IN);
	fail_next(symbol, 999);
	CHECK_EQ(move(IN, device + 200, host + 200, 100), GANTRY_ERR_DEVICE);
	fence = fence_of(IN);
	CHECK_HAS(gantry_last_error(), "CUDA_ERROR_FAKE, 999");
	CHECK_OK(moved(IN, before)); /* that one was over */
	check_over(fence);
	gpu_close();

	/* At the driver for others: they are told too, when they ask. */
	gpu_open();
	FAKE_SET(late, 0);
	hold_one(&at_driver, FAKE_GATE_COPY, IN, device, host, 100);
	CHECK_OK(move(IN, device + 200, host + 200, 100));
	fence = fence_of(IN);
	CHECK_EQ(moved(IN, fence), GANTRY_AGAIN);
	fail_next(symbol, 999);
	CHECK_EQ(let_go(&at_driver, FAKE_GATE_COPY), GANTRY_ERR_DEVICE);
	check_over(fence);
	gpu_close();
}
TEST_CALL(copy_fails, a_call_fails("cuMemcpyAsync"))
TEST_CALL(write_fails, a_call_fails("cuStreamWriteValue32_v2"))

/* Who waits for room is told as well. */
TEST(fails_while_full)
{
	struct mover at_driver, waits;

	gpu_open();
	fill(&at_driver);
	one_more(&waits);
	fail_next("cuMemcpyAsync", 999);
	CHECK_EQ(let_go(&at_driver, FAKE_GATE_COPY), GANTRY_ERR_DEVICE);
	CHECK_EQ(mover_end(&waits), GANTRY_ERR_DEVICE);
	check_over(fence_of(IN));
	gpu_close();
}

/* The error is told when the copies before it are over: who hears of it uses the memory again. */
TEST(fails_behind_copies)
{
	uint64_t fence;
	struct mover m;

	gpu_open();
	CHECK_OK(move(IN, device, host, 100));
	fence = fence_of(IN);
	fail_next("cuMemcpyAsync", 999);
	mover_start(&m, IN, device + 200, host + 200, 100);
	mover_waits(&m);
	CHECK_EQ(moved(IN, fence), GANTRY_AGAIN);
	CHECK_OK(move(IN, device + 400, host + 400, 100)); /* a request: not begun, and soon it never will be */
	CHECK_EQ(fake->run(ALL), 2);
	CHECK_EQ(mover_end(&m), GANTRY_ERR_DEVICE);
	CHECK_OK(moved(IN, fence));
	check_over(fence_of(IN));
	gpu_close();

	/* And if they never are, after a time. */
	gpu_open();
	CHECK_OK(move(IN, device, host, 100));
	fence = fence_of(IN);
	fail_next("cuStreamWriteValue32_v2", 999);
	mover_start(&m, IN, device + 200, host + 200, 100);
	mover_waits(&m);
	put_forward(LONG_S);
	CHECK_EQ(mover_end(&m), GANTRY_ERR_DEVICE);
	CHECK_EQ(moved(IN, fence), GANTRY_ERR_DEVICE);
	gpu_close();
}

/* The GPU stops: fences never come, and only the driver can say why. It is asked now and then. */
TEST(broken)
{
	gantry_result r = GANTRY_AGAIN;
	uint64_t fence, looks;

	gpu_open();
	CHECK_OK(move(IN, device, host, 100));
	CHECK_OK(move(OUT, host + 5000, device, 100));
	fence = fence_of(IN);
	FAKE_SET(broken, 700);
	CHECK_EQ(fake->run(ALL), 0);
	for (looks = 0; looks < 1 << 20 && r == GANTRY_AGAIN; looks++)
		r = moved(IN, fence);
	CHECK_EQ(r, GANTRY_ERR_DEVICE);
	CHECK(looks > 1000); /* seldom: the driver has a lock */
	CHECK_HAS(gantry_last_error(), "CUDA_ERROR_FAKE, 700");
	CHECK_EQ(moved(IN, fence), GANTRY_ERR_DEVICE); /* all know it now */
	CHECK_EQ(move(IN, device + 200, host, 100), GANTRY_ERR_DEVICE);
	CHECK_EQ(move(OUT, host + 6000, device, 100), GANTRY_ERR_DEVICE); /* as the call says */
	FAKE_SET(broken, 0);
	gpu_close();
}

struct closer {
	uint32_t asks; /* atomic */
	int over;      /* atomic */
};

static void *close_main(void *arg)
{
	struct closer *c = arg;

	asks = &c->asks;
	gantry_device_close(gpu);
	__atomic_store_n(&c->over, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* Closing waits for copies that nobody has waited for, but not for ever: then their fences keep their memory. */
static void closed_early(int ends)
{
	struct closer c = {0};
	pthread_t closer;
	void *words;
	cu_context ctx;

	gpu_open();
	CHECK_OK(gpu->ops->free(gpu, device));
	device = malloc(ARENA);
	ctx = cuda_gpu_of(gpu)->ctx;
	words = cuda_gpu_of(gpu)->words;
	CHECK_OK(move(IN, device, host, 100));
	CHECK_OK(move(OUT, host + 5000, device + 5000, 100));
	CHECK(!pthread_create(&closer, NULL, close_main, &c));
	UNTIL(__atomic_load_n(&c.over, __ATOMIC_SEQ_CST) || __atomic_load_n(&c.asks, __ATOMIC_SEQ_CST) > 4);
	CHECK(!__atomic_load_n(&c.over, __ATOMIC_SEQ_CST));
	if (ends)
		CHECK_EQ(fake->run(ALL), 4);
	for (int queue = 0; queue < GANTRY_COPY_QUEUES && !ends; queue++) {
		uint32_t asked = __atomic_load_n(&c.asks, __ATOMIC_SEQ_CST);

		put_forward(LONG_S);
		UNTIL(__atomic_load_n(&c.over, __ATOMIC_SEQ_CST) ||
		      __atomic_load_n(&c.asks, __ATOMIC_SEQ_CST) > asked + 4);
	}
	UNTIL(__atomic_load_n(&c.over, __ATOMIC_SEQ_CST));
	CHECK(!pthread_join(closer, NULL));
	CHECK_EQ(fake->streams + fake->contexts, 0);
	CHECK_EQ(fake->unfinished, ends ? 0 : 4);
	CHECK_EQ(fake->pinned, !ends);
	if (!ends) {
		CHECK_EQ(cu.ctx_set_current(ctx), CUE_SUCCESS);
		CHECK_EQ(cu.mem_free_host(words), CUE_SUCCESS);
		CHECK_EQ(cu.ctx_set_current(NULL), CUE_SUCCESS);
	}
	fake->unfinished = 0;
	FAKE_SET(late, 0);
	free(host);
	free(device);
}
TEST_CALL(closed_early_ends, closed_early(1))
TEST_CALL(closed_early_goes_on, closed_early(0))

void tests_begin(void)
{
	load_fake();
}
