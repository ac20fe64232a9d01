/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device's copies (device/cuda/copy_queue.c) over a driver whose copies and writes run late: bytes, order, fences,
 * copies that become one, requests that nobody forgets. test_cuda_move_errors.c has what goes wrong.
 */
#include "cuda_move_util.h"

/* A fence is reached when the bytes are there and the write after them has come, and not before. */
TEST(fences)
{
	uint64_t in, out;

	CHECK_OK(moved(IN, fence_of(IN))); /* nothing was moved */
	for (int old = 0; old < 2; old++) {
		if (old) /* a driver without stores in streams */
			fail_next("cuStreamWriteValue32_v2", CUE_NOT_SUPPORTED);
		memset(device, 0, 64);
		CHECK_OK(move(IN, device, host, 64));
		in = fence_of(IN);
		CHECK_OK(move(OUT, host + 4096, device + 4096, 64));
		out = fence_of(OUT);
		CHECK_EQ(moved(IN, in), GANTRY_AGAIN);
		CHECK_EQ(moved(OUT, out), GANTRY_AGAIN);
		CHECK_EQ(fake->run(2), 2); /* the copy of each queue */
		CHECK(memcmp(device, host, 64) == 0);
		CHECK_EQ(moved(IN, in), GANTRY_AGAIN);
		CHECK_EQ(fake->run(1), 1);
		CHECK_OK(moved(IN, in));
		CHECK_EQ(moved(OUT, out), GANTRY_AGAIN);
		CHECK_EQ(fake->run(ALL), 1);
		CHECK_OK(moved(OUT, out));
	}
	CHECK_EQ(moved(IN, UINT64_MAX), GANTRY_AGAIN); /* nobody's */
	CHECK_OK(move(IN, device, host, 0));
	CHECK_EQ(fence_of(IN), in); /* nothing to do, no request */
}

static uint64_t word_at(size_t at)
{
	uint64_t value;

	memcpy(&value, device + at, sizeof(value));
	return value;
}

/* A word is stored behind the copies before it, and before those after it, whichever of them become one; not where the GPU cannot. */
TEST(stores)
{
	struct cuda_gpu *g = cuda_gpu_of(gpu);
	uint64_t fence;

	memset(device, 0, 128);
	memset(host, 7, 128);
	CHECK_OK(gpu->ops->queue_copy(gpu, IN, device, host, 16));
	CHECK_OK(gpu->ops->queue_store(gpu, IN, device + 16, 1ull << 40)); /* right behind the data */
	CHECK_OK(gpu->ops->queue_store(gpu, IN, device + 24, 5));
	CHECK_OK(gpu->ops->queue_copy(gpu, IN, device + 32, host + 32, 16));
	CHECK_OK(gpu->ops->queue_store(gpu, IN, device + 16, (1ull << 40) + 1));
	fence = fence_of(IN);
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(word_at(0), i > 0 ? 0x0707070707070707u : 0);
		CHECK_EQ(word_at(16), i > 1 ? 1ull << 40 : 0);
		CHECK_EQ(word_at(24), i > 2 ? 5u : 0);
		CHECK_EQ(moved(IN, fence), GANTRY_AGAIN);
		CHECK_EQ(fake->run(1), 1);
	}
	CHECK_EQ(fake->run(ALL), 2); /* the last word, and the fence */
	CHECK_EQ(word_at(16), (1ull << 40) + 1);
	CHECK_EQ(word_at(32), 0x0707070707070707u);
	CHECK_OK(moved(IN, fence));
	CHECK(g->stores);
	g->stores = false;
	CHECK_EQ(gpu->ops->queue_store(gpu, IN, device, 1), GANTRY_ERR_UNSUPPORTED);
	g->stores = true;
}

/* Words in a row go to the driver together, 64 at most, and in their order; one that stands alone, and old drivers, take one call each. */
TEST(rows_of_stores)
{
	struct cuda_gpu *g = cuda_gpu_of(gpu);
	struct gantry_cuda_api old = *g->api;
	const struct gantry_cuda_api *api = g->api;
	int rows = FAKE(rows);

	old.stream_batch_mem_op = NULL;
	for (int round = 0; round < 2; round++) {
		memset(device, 0, ARENA);
		for (uint64_t i = 0; i < 70; i++)
			CHECK_OK(gpu->ops->queue_store(gpu, IN, device + 8 * (i % 69), i + 1));
		CHECK_OK(gpu->ops->queue_copy(gpu, IN, device + 2048, host, 16));
		CHECK_OK(gpu->ops->queue_store(gpu, IN, device + 1024, 7));
		CHECK_OK(moved(IN, fence_of(IN) - 72)); /* all are begun */
		CHECK_EQ(FAKE(rows), rows + 2);
		for (uint64_t i = 0; i < 70; i++) {
			CHECK_EQ(word_at(8 * (i % 69)), i == 69 ? 1 : 0);
			CHECK_EQ(fake->run(1), 1);
			CHECK_EQ(word_at(8 * (i % 69)), i + 1);
		}
		CHECK_EQ(fake->run(2), 2);
		CHECK_EQ(word_at(1024), 7);
		fake->run(ALL);
		g->api = &old;
	}
	g->api = api;
}

/* Managed memory, to which the driver stores nothing: words are copied there, in the same order. */
TEST(stores_that_are_refused)
{
	static const unsigned refusals[] = {CUE_INVALID_VALUE, CUE_NOT_SUPPORTED};
	uint64_t fence;

	fail_next("cuStreamBatchMemOp_v2", CUE_INVALID_VALUE);

	for (uint64_t i = 0; i < 2; i++) {
		memset(device, 0, 128);
		fail_next("cuStreamWriteValue64_v2", refusals[i]);
		CHECK_OK(gpu->ops->queue_store(gpu, IN, device + 16, i + (1ull << 40)));
		CHECK_OK(gpu->ops->queue_store(gpu, IN, device + 24, 5));
		fence = fence_of(IN);
		CHECK_EQ(word_at(16), 0);
		CHECK_EQ(fake->run(1), 1);
		CHECK_EQ(word_at(16), i + (1ull << 40));
		CHECK_EQ(word_at(24), 0);
		CHECK_EQ(moved(IN, fence), GANTRY_AGAIN);
		CHECK_EQ(fake->run(ALL), 2);
		CHECK_EQ(word_at(24), 5);
		CHECK_OK(moved(IN, fence));
	}
	fake->managed = NULL;
}

/* The word has 32 bits, fences have more. Sets what would take half an hour. */
TEST(many_requests)
{
	struct cuda_copy_queue *w = &cuda_gpu_of(gpu)->queues[IN];
	uint64_t start = (1ull << 33) - 50, old = fence_of(IN);

	CHECK_EQ(w->put, w->taken);
	w->put = w->taken = w->fenced = w->wanted = start;
	__atomic_store_n(w->word, (uint32_t)start, __ATOMIC_SEQ_CST);
	CHECK_OK(moved(IN, old));
	CHECK_OK(moved(IN, start - (1ull << 31) - 5)); /* nobody looked for a long time */
	for (uint64_t i = 0; i < 100; i++) {
		CHECK_OK(move(IN, device + 2 * i, host + 2 * i, 1));
		CHECK_EQ(fence_of(IN), start + i + 1);
		CHECK_EQ(moved(IN, start + i + 1), GANTRY_AGAIN);
		CHECK_OK(moved(IN, start + i));
		CHECK_EQ(fake->run(ALL), 2);
		CHECK_OK(moved(IN, start + i + 1));
	}
}

/* Requests wait for their neighbours: for a fence, or until 256 KiB have come together; and only fences make the GPU write. */
TEST(patience)
{
	int copies = FAKE(copies);
	uint64_t fence;

	memset(device, 0, ARENA);
	for (uint64_t i = 0; i < 3; i++)
		CHECK_OK(request_copy(IN, device + i * 1000, host + i * 1000, 1000));
	CHECK_OK(request_copy(IN, device + 4000, host + 4000, 1000));
	CHECK_EQ(FAKE(copies), copies);
	fence = fence_of(IN);
	CHECK_EQ(FAKE(copies), copies + 2);
	CHECK_EQ(fence_of(IN), fence); /* the same, and no other write */
	CHECK_EQ(fake->run(ALL), 3);
	CHECK_OK(moved(IN, fence));
	CHECK(memcmp(device, host, 3000) == 0 && memcmp(device + 4000, host + 4000, 1000) == 0);

	for (uint64_t i = 0; i < 4; i++) {
		CHECK_EQ(FAKE(copies), copies + 2);
		CHECK_OK(request_copy(OUT, host + i * (64 << 10), device + i * (64 << 10), 64 << 10));
	}
	CHECK_EQ(FAKE(copies), copies + 3);
	CHECK_EQ(fake->run(ALL), 1);
	CHECK_OK(request_copy(OUT, host + (300 << 10), device, 1)); /* the sum has begun anew */
	CHECK_EQ(FAKE(copies), copies + 3);
	fence = fence_of(OUT);
	CHECK_EQ(fake->run(ALL), 2);
	CHECK_OK(moved(OUT, fence));
	pattern_fill(host, ARENA, 0);
}

/* While somebody is at the driver, others only leave requests, and neighbours among these become one copy. */
TEST(neighbours)
{
	struct mover at_driver;
	int before = FAKE(copies), first;
	uint64_t fence;

	memset(device, 0, ARENA);
	hold_one(&at_driver, FAKE_GATE_COPY, IN, device, host, 16);
	for (uint64_t i = 0; i < 500; i++) /* two rows, in turn */
		CHECK_OK(move(IN, device + 1000 + i / 2 * 64 + i % 2 * 20000, host + 1000 + i / 2 * 64 + i % 2 * 20000,
			      64));
	CHECK_OK(move(IN, device + 50000, host + 50000, 100));
	CHECK_OK(move(IN, device + 50100, host + 60000, 100)); /* a neighbour where it goes, not where it comes from */
	CHECK_OK(move(IN, device + 60000, host + 60100, 100)); /* and the other queue round */
	CHECK_OK(move(IN, device + 49900, host + 49900, 100)); /* before, not behind */
	CHECK_OK(move(IN, device + 70000, host + 70000, 100));
	for (uint64_t i = 0; i < 8; i++) /* so many that a neighbour is not found */
		CHECK_OK(move(IN, device + 80000 + i * 200, host + 80000 + i * 200, 100));
	CHECK_OK(move(IN, device + 70100, host + 70100, 100));
	fence = fence_of(IN);
	CHECK_EQ(FAKE(copies), before);
	CHECK_OK(let_go(&at_driver, FAKE_GATE_COPY));
	CHECK_EQ(FAKE(copies) - before, 1 + 2 + 4 + 1 + 8 + 1);
	first = before + 1;
	CHECK_EQ(fake->sizes[first % FAKE_SIZES], 250 * 64);
	CHECK_EQ(fake->sizes[(first + 1) % FAKE_SIZES], 250 * 64);
	for (int i = 2; i < 16; i++)
		CHECK_EQ(fake->sizes[(first + i) % FAKE_SIZES], 100);
	CHECK_EQ(moved(IN, fence), GANTRY_AGAIN);
	fake->run(ALL);
	CHECK_OK(moved(IN, fence));
	CHECK(memcmp(device, host, 16) == 0);
	CHECK(memcmp(device + 1000, host + 1000, 16000) == 0);
	CHECK(memcmp(device + 21000, host + 21000, 16000) == 0);
	CHECK(memcmp(device + 49900, host + 49900, 200) == 0);
	CHECK(memcmp(device + 50100, host + 60000, 100) == 0);
	CHECK(memcmp(device + 60000, host + 60100, 100) == 0);
	CHECK(memcmp(device + 70000, host + 70000, 200) == 0);
}

/* A copy does not become part of an older one past requests that it needs, or that need what it writes over. */
TEST(order)
{
	uint8_t *pool = device, *landing = device + 4096, *other = device + 8192;
	struct mover at_driver;

	/* As a table does: pieces come to the pool and go on from there. The first one has begun. */
	memset(device, 0, ARENA);
	hold_one(&at_driver, FAKE_GATE_COPY, IN, pool, host, 100);
	CHECK_OK(move(IN, landing, pool, 100));
	CHECK_OK(move(IN, pool + 100, host + 100, 100));
	CHECK_OK(move(IN, landing + 100, pool + 100, 100)); /* reads what the one before it writes */
	CHECK_OK(let_go(&at_driver, FAKE_GATE_COPY));
	fake->run(ALL);
	CHECK(memcmp(landing, host, 200) == 0);

	/* A page is read, and then gets new bytes, of which a neighbour waits. */
	memset(device, 0, ARENA);
	memcpy(pool + 100, host + 5000, 100);
	hold_one(&at_driver, FAKE_GATE_COPY, IN, other, host, 16);
	CHECK_OK(move(IN, pool, host, 100));
	CHECK_OK(move(IN, landing, pool + 100, 100));
	CHECK_OK(move(IN, pool + 100, host + 100, 100));
	CHECK_OK(let_go(&at_driver, FAKE_GATE_COPY));
	fake->run(ALL);
	CHECK(memcmp(landing, host + 5000, 100) == 0);
	CHECK(memcmp(pool, host, 200) == 0);

	/* Two go to one place: the later one wins. */
	hold_one(&at_driver, FAKE_GATE_COPY, IN, other, host, 16);
	CHECK_OK(move(IN, pool, host, 100));
	CHECK_OK(move(IN, pool + 150, host + 6000, 100));
	CHECK_OK(move(IN, pool + 100, host + 100, 100));
	CHECK_OK(let_go(&at_driver, FAKE_GATE_COPY));
	fake->run(ALL);
	CHECK(memcmp(pool, host, 200) == 0);
	CHECK(memcmp(pool + 200, host + 6050, 50) == 0);

	/* Neighbours that would be one copy which writes over what it has to read. */
	memcpy(pool, host, 300);
	hold_one(&at_driver, FAKE_GATE_COPY, IN, other, host, 16);
	CHECK_OK(move(IN, pool + 100, pool, 100));
	CHECK_OK(move(IN, pool + 200, pool + 100, 100));
	CHECK_OK(let_go(&at_driver, FAKE_GATE_COPY));
	fake->run(ALL);
	for (int i = 0; i < 3; i++)
		CHECK(memcmp(pool + 100 * i, host, 100) == 0);
}

/* Who has found no more requests, but has not left the driver yet, looks once more: the other one did not. */
TEST(left_behind)
{
	struct mover leaving, late;
	int before = FAKE(copies);

	hold_one(&leaving, FAKE_GATE_LEAVE, OUT, host, device, 10);
	CHECK_EQ(FAKE(copies), before + 1);
	mover_start(&late, OUT, host + 20, device + 20, 10);
	CHECK_OK(mover_end(&late)); /* at once: somebody is at the driver */
	CHECK_EQ(FAKE(copies), before + 1);
	CHECK_OK(let_go(&leaving, FAKE_GATE_LEAVE));
	CHECK_EQ(FAKE(copies), before + 2);
	fake->run(ALL);
	CHECK_OK(moved(OUT, fence_of(OUT)));
}

/* The same with nothing but chance: threads that move at the same time, again and again. */
enum { RACERS = 3, ROUNDS = SANITIZED ? 500 : 4000 };
static pthread_barrier_t start, end;

static void *racer(void *arg)
{
	uint64_t me = (uint64_t)(uintptr_t)arg;

	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&start);
		for (uint64_t k = random_below(200); k > 0; k--)
			__atomic_signal_fence(__ATOMIC_SEQ_CST);
		CHECK_OK(move(IN, device + me * 100, host + me * 100, 50));
		pthread_barrier_wait(&end);
	}
	return NULL;
}

TEST(nobody_is_forgotten)
{
	pthread_t threads[RACERS];

	CHECK(!pthread_barrier_init(&start, NULL, RACERS + 1) && !pthread_barrier_init(&end, NULL, RACERS + 1));
	threads_start(threads, RACERS, racer, NULL, 1);
	for (int i = 0; i < ROUNDS; i++) {
		memset(device, 0, RACERS * 100);
		pthread_barrier_wait(&start);
		pthread_barrier_wait(&end); /* all have returned: what was not begun now never will be */
		fake->run(ALL);
		CHECK_OK(moved(IN, fence_of(IN)));
		for (int k = 0; k < RACERS; k++)
			CHECK(memcmp(device + k * 100, host + k * 100, 50) == 0);
	}
	threads_join(threads, RACERS);
	pthread_barrier_destroy(&start);
	pthread_barrier_destroy(&end);
}

/* ---- many threads, both ways ---- */

enum { THREADS = 6, SHARE = ARENA / THREADS / 4096 * 4096, PART = SHARE / 3 };
static int gpu_runs; /* atomic */

/* Copies and fences come late, a few at a time. */
static void *gpu_main(void *arg)
{
	while (__atomic_load_n(&gpu_runs, __ATOMIC_SEQ_CST)) {
		if (!fake->run((unsigned)random_below(40)) || random_below(4) == 0)
			until_pause();
	}
	return NULL;
}

/* A row of pieces, neighbours mostly, small and large. */
static void move_row(enum gantry_copy_queue queue, uint8_t *dst, const uint8_t *src, uint64_t size)
{
	for (uint64_t at = 0; at < size;) {
		uint64_t n = 1 + random_below(random_below(4) ? 300 : 20000);

		n = n < size - at ? n : size - at;
		CHECK_OK(request_copy(queue, dst + at, src + at, n));
		at += n;
	}
}

/* To the GPU, on within it, and back; what comes back is what went. */
static void *traveller(void *arg)
{
	uint64_t me = (uint64_t)(uintptr_t)arg, at = me * SHARE;
	uint8_t *in = host + at, *back = host + at + PART, *pool = device + at, *landing = pool + PART;

	for (int round = 0; round < (SANITIZED ? 10 : 40); round++) {
		uint64_t size = 1 + random_below(PART), fence;

		pattern_fill(in, size, (uint64_t)round * 7919 + me);
		memset(back, 0, size);
		move_row(IN, pool, in, size);
		if (round % 3 == 0) {
			move_row(IN, landing, pool, size); /* without a fence: in the same queue */
		} else if (round % 3 == 1) {
			fence = fence_of(IN);
			CHECK_OK(gantry_fence_await(gpu, IN, fence));
			CHECK(memcmp(pool, in, size) == 0);
			memcpy(landing, pool, size); /* a kernel of the GPU */
		} else {
			for (uint64_t k = 0; k < size; k += 3000) { /* as it comes */
				uint64_t n = size - k < 3000 ? size - k : 3000;

				move_row(IN, pool + k, in + k, n);
				move_row(IN, landing + k, pool + k, n);
			}
		}
		CHECK_OK(gantry_fence_await(gpu, IN, fence_of(IN)));
		CHECK(memcmp(landing, in, size) == 0);
		move_row(OUT, back, landing, size);
		CHECK_OK(gantry_fence_await(gpu, OUT, fence_of(OUT)));
		CHECK(memcmp(back, in, size) == 0);
	}
	return NULL;
}

TEST(travel)
{
	pthread_t threads[THREADS], runs;

	gpu_runs = 1;
	CHECK(!pthread_create(&runs, NULL, gpu_main, NULL));
	threads_start(threads, THREADS, traveller, NULL, 1);
	threads_join(threads, THREADS);
	__atomic_store_n(&gpu_runs, 0, __ATOMIC_SEQ_CST);
	CHECK(!pthread_join(runs, NULL));
}

void tests_begin(void)
{
	load_fake();
	gpu_open();
}

void tests_end(void)
{
	gpu_close();
}
