/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that put and signal (gantry/kernel.h) as threads of the CPU: several of each rank at a time, in contexts of their own and in the
 * same; every byte, sum and counter is compared. Barriers, flushes, resets, abort, and what open and register refuse.
 */
#include <stdbool.h>
#include <unistd.h>

#include "base/atomic.h"
#include "comm_world.h"
#include "gantry/kernel.h"

enum { BLOCKS = 3, ROUNDS = 10, ROOM = 40000, SUM = 60, BARRIER = 1 };

struct side {
	struct world *w;
	struct gantry_gin *gin;
	struct gantry_gin_view view;
	uint8_t *source, *target; /* [block][peer][ROOM] */
	uint32_t source_memory, target_memory;
	uint32_t failed;
};

struct block {
	struct side *s;
	uint32_t number;
};

static void open_side(struct side *s, struct world *w, struct gantry_comm *comm, struct gantry_device *dev)
{
	const struct gantry_gin_config config = {.struct_size = sizeof(config), .contexts = BLOCKS, .depth = 8};
	const size_t size = (size_t)BLOCKS * (size_t)w->nranks * ROOM;
	void *p;

	*s = (struct side){.w = w};
	CHECK_OK(gantry_gin_open(comm, &config, &s->gin));
	CHECK_OK(gantry_gin_view(s->gin, &s->view));
	CHECK_OK(gantry_mem_alloc(dev, size, &p));
	s->target = p;
	s->source = calloc(1, size); /* any host memory */
	CHECK_OK(gantry_gin_register(s->gin, s->source, size, &s->source_memory));
	CHECK_OK(gantry_gin_register(s->gin, s->target, size, &s->target_memory));
	CHECK(s->source_memory != s->target_memory);
}

static void close_side(struct side *s, struct gantry_device *dev)
{
	CHECK_OK(gantry_gin_deregister(s->gin, s->target_memory));
	gantry_gin_close(s->gin);
	CHECK_OK(gantry_mem_free(dev, s->target));
	free(s->source);
}

static void run_blocks(struct side *s, void *(*kernel)(void *))
{
	struct block blocks[BLOCKS];
	pthread_t t[BLOCKS];

	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = (struct block){s, i};
	threads_start(t, BLOCKS, kernel, blocks, sizeof(blocks[0]));
	threads_join(t, BLOCKS);
}

/* ---- all to all ---- */

static uint8_t byte_of(uint32_t round, uint32_t from, uint32_t to, uint32_t block, uint64_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + ((uint64_t)round << 32 | from << 16 | to << 8 | block);

	return (uint8_t)(x >> 40 ^ x >> 17);
}

static uint64_t size_of(uint32_t round, uint32_t from, uint32_t to, uint32_t block)
{
	return (round * 7919u + from * 104729u + to * 1299709u + block * 15485863u) % (ROOM + 1);
}

/* Each block has a context, and a signal for each peer; all add to one word, and meet at a barrier of their own after each round. */
static void *all_to_all(void *arg)
{
	const struct block *b = arg;
	struct side *s = b->s;
	const struct gantry_gin_view *v = &s->view;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t to = 0; to < v->ranks; to++) {
			const uint64_t at = ((uint64_t)b->number * v->ranks + to) * ROOM,
				       n = size_of(round, v->rank, to, b->number);
			const struct gantry_gin_place from = {s->source_memory, at};
			const struct gantry_gin_place there = {s->target_memory,
							       ((uint64_t)b->number * v->ranks + v->rank) * ROOM};

			for (uint64_t i = 0; i < n; i++)
				s->source[at + i] = byte_of(round, v->rank, to, b->number, i);
			CHECK_EQ(gantry_gin_post(v, b->number, to, from, there, n, b->number * v->ranks + v->rank, 1,
						 b->number),
				 0);
			CHECK_EQ(gantry_gin_signal(v, b->number, to, SUM, v->rank + 1), 0);
		}
		CHECK_EQ(gantry_gin_flush(v, b->number), 0);
		CHECK_EQ(gantry_gin_count(v, b->number), (uint64_t)v->ranks * (round + 1));
		memset(s->source + (size_t)b->number * v->ranks * ROOM, 0xee, (size_t)v->ranks * ROOM);
		for (uint32_t from = 0; from < v->ranks; from++) {
			const uint8_t *at = s->target + ((size_t)b->number * v->ranks + from) * ROOM;
			const uint64_t n = size_of(round, from, v->rank, b->number);

			CHECK_EQ(gantry_gin_wait(v, b->number * v->ranks + from, round + 1), 0);
			for (uint64_t i = 0; i < n; i++)
				CHECK_EQ(at[i], byte_of(round, from, v->rank, b->number, i));
		}
		CHECK_EQ(gantry_gin_barrier(v, b->number, b->number), 0);
	}
	return NULL;
}

/* ---- one queue, many threads ---- */

/* All blocks put single words in the same context to the next rank: the last of them shows all. */
static void *same_queue(void *arg)
{
	const struct block *b = arg;
	struct side *s = b->s;
	const struct gantry_gin_view *v = &s->view;
	const uint32_t next = (v->rank + 1) % v->ranks;

	for (uint32_t i = 0; i < 200; i++) {
		const uint64_t at = ((uint64_t)b->number * 200 + i) * 8;
		const struct gantry_gin_place from = {s->source_memory, at}, there = {s->target_memory, at};
		const uint64_t value = at * 31 + v->rank + 1;

		memcpy(s->source + at, &value, 8);
		CHECK_EQ(gantry_gin_put(v, 0, next, from, there, 8, BLOCKS * v->ranks), 0);
	}
	return NULL;
}

static void check_words(struct side *s)
{
	const struct gantry_gin_view *v = &s->view;
	const uint32_t signal = BLOCKS * v->ranks, before = (v->rank + v->ranks - 1) % v->ranks;

	CHECK_EQ(gantry_gin_wait(v, signal, BLOCKS * 200), 0);
	CHECK_EQ(gantry_gin_read(v, signal), BLOCKS * 200);
	for (uint64_t at = 0; at < BLOCKS * 200 * 8; at += 8) {
		uint64_t value;

		memcpy(&value, s->target + at, 8);
		CHECK_EQ(value, at * 31 + before + 1);
	}
	gantry_gin_reset(v, signal);
	CHECK_EQ(gantry_gin_read(v, signal), 0);
}

static void put_all(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		    struct gantry_stream *stream)
{
	struct side s;
	uint64_t sum;

	(void)rank, (void)stream;
	open_side(&s, w, comm, dev);
	run_blocks(&s, all_to_all);
	sum = (uint64_t)BLOCKS * ROUNDS * s.view.ranks * (s.view.ranks + 1) / 2;
	CHECK_EQ(gantry_gin_wait(&s.view, SUM, sum), 0);
	CHECK_EQ(gantry_gin_barrier(&s.view, 0, 5), 0);
	CHECK_EQ(gantry_gin_read(&s.view, SUM), sum);
	run_blocks(&s, same_queue);
	check_words(&s);
	CHECK_EQ(gantry_gin_barrier(&s.view, 0, 5), 0);
	CHECK_OK(gantry_comm_error(comm, NULL, NULL, 0));
	close_side(&s, dev);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(kernels_put_and_signal)
{
	for (int n = 1; n <= (SANITIZED ? 3 : 4); n++) {
		struct world w = {.nranks = n, .body = put_all};

		CASE("%d ranks", n);
		world_threads(&w, NULL);
	}
}

/* More threads than a queue has places: each has its turn, and none writes over another's request. */
static void crowd(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		  struct gantry_stream *stream)
{
	enum { THREADS = 9 };
	const uint32_t depth = *(const uint32_t *)w->user;
	const struct gantry_gin_config config = {.struct_size = sizeof(config), .depth = depth};
	struct block blocks[THREADS];
	pthread_t t[THREADS];
	struct side s = {.w = w};
	uint32_t signal, before;
	void *p;

	(void)rank, (void)stream;
	CHECK_OK(gantry_gin_open(comm, &config, &s.gin));
	CHECK_OK(gantry_gin_view(s.gin, &s.view));
	CHECK_OK(gantry_mem_alloc(dev, THREADS * 1600, &p));
	s.target = p;
	s.source = calloc(THREADS, 1600);
	CHECK_OK(gantry_gin_register(s.gin, s.source, THREADS * 1600, &s.source_memory));
	CHECK_OK(gantry_gin_register(s.gin, s.target, THREADS * 1600, &s.target_memory));
	for (uint32_t i = 0; i < THREADS; i++)
		blocks[i] = (struct block){&s, i};
	threads_start(t, THREADS, same_queue, blocks, sizeof(blocks[0]));
	threads_join(t, THREADS);
	signal = BLOCKS * s.view.ranks;
	before = (s.view.rank + s.view.ranks - 1) % s.view.ranks;
	CHECK_EQ(gantry_gin_wait(&s.view, signal, THREADS * 200), 0);
	CHECK_EQ(gantry_gin_flush(&s.view, 0), 0);
	for (uint64_t at = 0; at < THREADS * 1600; at += 8) {
		uint64_t value;

		memcpy(&value, s.target + at, 8);
		CHECK_EQ(value, at * 31 + before + 1);
	}
	CHECK_EQ(gantry_gin_barrier(&s.view, 0, BARRIER), 0);
	close_side(&s, dev);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(more_threads_than_places)
{
	for (uint32_t depth = 1; depth <= 4; depth *= 2) {
		struct world w = {.nranks = 2, .body = crowd, .user = &depth};

		CASE("%u places", depth);
		world_threads(&w, NULL);
	}
}

static void nothing(struct world *w)
{
	(void)w;
}

/* ---- few bytes ---- */

static uint8_t few_byte(uint32_t round, uint32_t rank, size_t i)
{
	return (uint8_t)(((i + 1) * 167 + round * 31 + rank * 7) % 251 + 1);
}

/* Few bytes travel with their request, more are fetched: around both limits and wherever they begin, they come whole and touch nothing else. */
static void few(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		struct gantry_stream *stream)
{
	static const uint32_t sizes[] = {1, 7, 8, 9, 56, 63, 64, 65, 100, 4088, 4095, 4096, 4097, 5000};
	enum { END = 6000 };
	const struct gantry_gin_view *v;
	uint32_t round = 0, me = (uint32_t)rank;
	struct side s;

	(void)stream;
	open_side(&s, w, comm, dev);
	v = &s.view;
	CHECK_EQ(v->carried, 4096);
	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
		for (uint32_t at = 0; at < 24; at += 4, round++) {
			const struct gantry_gin_place from = {s.source_memory, at},
						      to = {s.target_memory, at + round % 9};
			const uint64_t n = sizes[k];

			memset(s.target, 0, END);
			for (size_t i = 0; i < END; i++)
				s.source[i] = few_byte(round, me, i);
			CHECK_EQ(gantry_gin_barrier(v, 0, BARRIER), 0);
			CHECK_EQ(round % 2 ? gantry_gin_put(v, 0, 1 - me, from, to, n, 5)
					   : gantry_gin_put_warp(v, 0, 1 - me, from, to, n, 5),
				 0);
			CHECK_EQ(gantry_gin_wait(v, 5, round + 1), 0);
			for (size_t i = 0; i < END; i++)
				CHECK_EQ(s.target[i], i < to.offset || i >= to.offset + n
							      ? 0
							      : few_byte(round, 1 - me, i - to.offset + at));
			CHECK_EQ(gantry_gin_flush(v, 0), 0);
			CHECK_EQ(gantry_gin_barrier(v, 0, BARRIER), 0);
		}
	/* A kernel that says that more travelled than there is room for. */
	pthread_barrier_wait(&w->all);
	if (!rank) {
		const struct gantry_gin_place from = {GANTRY_GIN_CARRIED, 0}, to = {s.target_memory, 0};

		gantry_gin_write(v, 1, gantry_gin_add(&v->taken[1], 1), from, to, v->carried + 1, 5, 1,
				 GANTRY_GIN_NONE);
		UNTIL(gantry_comm_error(comm, NULL, NULL, 0) != GANTRY_OK);
		CHECK_HAS(gantry_last_error(), "4097 bytes with its request");
	}
	pthread_barrier_wait(&w->over);
	gantry_gin_close(s.gin);
	gantry_mem_free(dev, s.target);
	free(s.source);
	gantry_comm_abort(comm);
}

TEST(few_bytes_travel_with_their_request)
{
	struct world w = {.nranks = 2, .body = few};

	world_threads(&w, nothing);
}

/* What a kernel asks for is refused although the bytes are few: they are outside of the memory, or there is none of that number. */
struct outside {
	uint64_t offset, bytes;
	bool none, warp;
};

static void outside(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		    struct gantry_stream *stream)
{
	const struct outside *o = w->user;
	struct gantry_gin_place from, to;
	struct side s;
	uint32_t small;

	(void)stream;
	open_side(&s, w, comm, dev);
	CHECK_OK(gantry_gin_register(s.gin, s.source + 64, 64, &small));
	from = (struct gantry_gin_place){o->none ? GANTRY_GIN_NONE : small, o->offset};
	to = (struct gantry_gin_place){s.target_memory, 0};
	CHECK_EQ(gantry_gin_barrier(&s.view, 0, BARRIER), 0);
	pthread_barrier_wait(&w->all);
	if (!rank) {
		CHECK_EQ(o->warp ? gantry_gin_put_warp(&s.view, 0, 1, from, to, o->bytes, 5)
				 : gantry_gin_put(&s.view, 0, 1, from, to, o->bytes, 5),
			 0);
		UNTIL(gantry_comm_error(comm, NULL, NULL, 0) != GANTRY_OK);
		CHECK_HAS(gantry_last_error(), o->none ? "is not registered" : "exceed memory");
	}
	pthread_barrier_wait(&w->over);
	gantry_gin_close(s.gin);
	gantry_mem_free(dev, s.target);
	free(s.source);
	gantry_comm_abort(comm);
}

TEST(few_bytes_stay_in_their_memory)
{
	static const struct outside cases[] = {{64, 8, false, false},
					       {56, 16, false, false},
					       {0, 65, false, true},
					       {(uint64_t)-64, 8, false, true},
					       {(uint64_t)-8, 64, false, false},
					       {0, 8, true, false},
					       {0, 8, true, true}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct world w = {.nranks = 2, .body = outside, .user = &cases[i]};

		CASE("%llu bytes at %llu", (unsigned long long)cases[i].bytes, (unsigned long long)cases[i].offset);
		world_threads(&w, nothing);
	}
}

/* ---- forks ---- */

/* What kernels read and add to is shared with a child. It is refused there, and the parent's kernels still see their memory. */
static void forked(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		   struct gantry_stream *stream)
{
	struct gantry_gin_view v;
	struct side s;
	uint32_t memory;
	pid_t pid;

	(void)stream;
	open_side(&s, w, comm, dev);
	pid = rank ? -1 : child_fork();
	if (!pid) {
		CHECK_EQ(gantry_gin_view(s.gin, &v), GANTRY_ERR_USAGE);
		CHECK_HAS(gantry_last_error(), "forked");
		CHECK_EQ(gantry_gin_register(s.gin, s.source, 8, &memory), GANTRY_ERR_USAGE);
		CHECK_EQ(gantry_gin_deregister(s.gin, s.source_memory), GANTRY_ERR_USAGE);
		gantry_gin_close(s.gin);
		_exit(0);
	}
	if (!rank)
		child_wait(pid);
	CHECK(s.view.memory[2 * s.source_memory] == (const char *)s.source);
	CHECK_EQ(gantry_gin_barrier(&s.view, 0, BARRIER), 0);
	close_side(&s, dev);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(queues_of_a_parent)
{
	struct world w = {.nranks = 2, .body = forked};

	/* ThreadSanitizer does not follow a process with threads through a fork, AddressSanitizer's allocator may stay locked. */
	if (!SANITIZED)
		world_threads(&w, NULL);
}

/* ---- barriers ---- */

enum { SLOW = 96 << 20 };

/* Rank 1 puts much to rank 2 before it comes. Rank 0 comes a second time meanwhile: that is no reason for rank 2 to go on. */
static void barriers(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		     struct gantry_stream *stream)
{
	struct gantry_gin_view v;
	struct gantry_gin *gin;
	uint32_t memory;
	void *p;

	(void)w, (void)stream;
	CHECK_OK(gantry_gin_open(comm, NULL, &gin));
	CHECK_OK(gantry_gin_view(gin, &v));
	CHECK_OK(gantry_mem_alloc(dev, SLOW, &p));
	CHECK_OK(gantry_gin_register(gin, p, SLOW, &memory));
	for (uint32_t round = 1; round <= 3; round++) {
		const struct gantry_gin_place at = {memory, 0};

		memset(p, rank == 1 ? (int)round : 0, SLOW);
		CHECK_EQ(gantry_gin_barrier(&v, 0, BARRIER), 0);
		CHECK_EQ(gantry_gin_barrier(&v, 0, BARRIER), 0);
		if (rank == 1)
			CHECK_EQ(gantry_gin_put(&v, 0, 2, at, at, SLOW, GANTRY_GIN_NONE), 0);
		CHECK_EQ(gantry_gin_barrier(&v, 0, BARRIER), 0);
		if (rank == 2)
			CHECK_EQ(((const uint8_t *)p)[SLOW - 1], round);
		CHECK_EQ(gantry_gin_barrier(&v, 0, BARRIER), 0);
		CHECK_EQ(gantry_gin_barrier(&v, 0, BARRIER), 0);
	}
	gantry_gin_close(gin);
	CHECK_OK(gantry_mem_free(dev, p));
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(barriers_wait_for_each_rank)
{
	struct world w = {.nranks = 3, .body = barriers};

	world_threads(&w, NULL);
}

/* ---- idle ---- */

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nothing announces what kernels ask for, so threads look: but not all the time. */
static void idle(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		 struct gantry_stream *stream)
{
	struct gantry_gin *gin;
	uint64_t cpu;

	(void)dev, (void)stream;
	CHECK_OK(gantry_gin_open(comm, NULL, &gin));
	pthread_barrier_wait(&w->all);
	sleep_ms(200);
	cpu = cpu_ns();
	sleep_ms(1000);
	cpu = cpu_ns() - cpu;
	pthread_barrier_wait(&w->over);
	if (!rank)
		CHECK(cpu < (uint64_t)w->nranks * (SANITIZED ? 600000000u : 300000000u));
	gantry_gin_close(gin);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(idle_queues_sleep)
{
	struct world w = {.nranks = 4, .body = idle};

	world_threads(&w, nothing);
}

/* ---- ends ---- */

static void *wait_forever(void *arg)
{
	const struct block *b = arg;

	CHECK(gantry_gin_wait(&b->s->view, b->number, 1) != 0); /* no rank signals */
	CHECK(gantry_gin_barrier(&b->s->view, b->number, b->number) != 0);
	return NULL;
}

/* Rank 0 aborts while kernels of all ranks wait: all are released, and learn why. */
static void aborted(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		    struct gantry_stream *stream)
{
	struct block blocks[BLOCKS];
	pthread_t t[BLOCKS];
	struct side s;

	(void)stream;
	open_side(&s, w, comm, dev);
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = (struct block){&s, i};
	threads_start(t, BLOCKS, wait_forever, blocks, sizeof(blocks[0]));
	pthread_barrier_wait(&w->all);
	pthread_barrier_wait(&w->over);
	if (rank == 0) {
		gantry_gin_put(&s.view, 0, 1, (struct gantry_gin_place){s.source_memory, 0},
			       (struct gantry_gin_place){s.target_memory, 1u << 30}, 8,
			       GANTRY_GIN_NONE); /* beyond its end */
	}
	threads_join(t, BLOCKS);
	UNTIL(gantry_comm_error(comm, NULL, NULL, 0) != GANTRY_OK);
	gantry_gin_close(s.gin);
	gantry_mem_free(dev, s.target);
	free(s.source);
	gantry_comm_abort(comm);
}

TEST(errors_release_kernels)
{
	struct world w = {.nranks = 3, .body = aborted};

	world_threads(&w, nothing);
}

static void refused(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		    struct gantry_stream *stream)
{
	struct gantry_gin_config config = {.struct_size = sizeof(config), .depth = 6};
	struct gantry_gin *gin = NULL;
	uint32_t memory;

	(void)w, (void)dev, (void)stream;
	CHECK_EQ(gantry_gin_open(NULL, NULL, &gin), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_gin_open(comm, &config, &gin), GANTRY_ERR_INVALID);
	config = (struct gantry_gin_config){.struct_size = 3};
	CHECK_EQ(gantry_gin_open(comm, &config, &gin), GANTRY_ERR_INVALID);
	config = (struct gantry_gin_config){.struct_size = sizeof(config), .signals = 10 + (uint32_t)rank};
	CHECK_EQ(gantry_gin_open(comm, &config, &gin), GANTRY_ERR_USAGE); /* they have different sizes */
	CHECK_HAS(gantry_last_error(), "different sizes");
	CHECK_OK(gantry_gin_open(comm, NULL, &gin));
	CHECK_EQ(gantry_gin_register(gin, NULL, 5, &memory), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_gin_deregister(gin, 1), GANTRY_ERR_INVALID); /* the signals */
	CHECK_EQ(gantry_gin_deregister(gin, 9), GANTRY_ERR_INVALID);
	gantry_gin_close(gin);
	gantry_gin_close(NULL);
	CHECK_OK(gantry_comm_error(comm, NULL, NULL, 0));
	CHECK_OK(gantry_comm_destroy(comm));
}

/* One rank does it wrong: all learn it, none waits for ever, and what they do next works. */
static void one_is_wrong(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			 struct gantry_stream *stream)
{
	struct gantry_gin_config config = {.struct_size = sizeof(config), .depth = rank == 1 ? 6 : 8};
	struct gantry_gin *gin = NULL;
	struct gantry_gin_view v;
	uint32_t memory = 77, last;
	uint64_t *words;
	void *p;

	(void)w, (void)stream;
	CHECK_EQ(gantry_gin_open(comm, &config, &gin), GANTRY_ERR_INVALID);
	CHECK_HAS(gantry_last_error(), rank == 1 ? "power of two" : "gantry_gin_open failed on rank 1");
	CHECK_OK(gantry_gin_open(comm, NULL, &gin));
	CHECK_OK(gantry_gin_view(gin, &v));
	CHECK_OK(gantry_mem_alloc(dev, 4096, &p));
	words = p;
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(gantry_gin_register(gin, p, rank == i % 2 ? 0 : 4096, &memory), GANTRY_ERR_INVALID);
		CHECK_HAS(gantry_last_error(),
			  rank == i % 2 ? "invalid buffer (0 bytes" : "gantry_gin_register failed on rank");
		CHECK_EQ(memory, 77u);
	}
	CHECK_OK(gantry_gin_register(gin, p, 4096, &memory));
	CHECK_OK(gantry_gin_register(gin, p, 8, &last));
	CHECK_EQ(last, memory + 1);
	CHECK_EQ(gantry_gin_deregister(gin, memory - 1), GANTRY_ERR_INVALID);
	words[0] = 0;
	words[1] = (uint64_t)rank + 5;
	CHECK_EQ(gantry_gin_barrier(&v, 0, BARRIER), 0);
	CHECK_EQ(gantry_gin_put(&v, 0, (v.rank + 1) % v.ranks, (struct gantry_gin_place){memory, 8},
				(struct gantry_gin_place){last, 0}, 8, 3),
		 0);
	CHECK_EQ(gantry_gin_wait(&v, 3, 1), 0);
	CHECK_EQ(words[0], (uint64_t)(rank + w->nranks - 1) % (uint64_t)w->nranks + 5);
	CHECK_EQ(gantry_gin_barrier(&v, 0, BARRIER), 0);
	gantry_gin_close(gin);
	CHECK_OK(gantry_mem_free(dev, p));
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(what_fails_on_one_rank_fails_on_all)
{
	struct world w = {.nranks = 3, .body = one_is_wrong};

	world_threads(&w, NULL);
}

/* A thread has taken a place in a queue and was ended then; and queues are closed when their communicator has gone. */
static void left_over(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *stream)
{
	struct gantry_gin *gin = NULL, *second = NULL;
	struct gantry_gin_view v;
	uint32_t memory;

	(void)w, (void)rank, (void)dev, (void)stream;
	CHECK_OK(gantry_gin_open(comm, NULL, &gin));
	CHECK_OK(gantry_gin_open(comm, NULL, &second));
	CHECK_OK(gantry_gin_view(gin, &v));
	CHECK_EQ(gantry_gin_add(&v.taken[0], 1), 0u);
	gantry_gin_close(gin);
	CHECK_OK(gantry_comm_destroy(comm));
	CHECK_EQ(gantry_gin_view(second, &v), GANTRY_ERR_USAGE);
	CHECK_EQ(gantry_gin_register(second, &v, 8, &memory), GANTRY_ERR_USAGE);
	CHECK_EQ(gantry_gin_deregister(second, 2), GANTRY_ERR_USAGE);
	gantry_gin_close(second);
}

TEST(queues_close_whatever_happened)
{
	struct world w = {.nranks = 2, .body = left_over};

	set_params("GANTRY_TIMEOUT", "1s");
	world_threads(&w, NULL);
	set_params("GANTRY_TIMEOUT", NULL);
}

TEST(wrong_calls)
{
	struct world w = {.nranks = 2, .body = refused};

	world_threads(&w, NULL);
}
