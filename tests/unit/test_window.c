/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided: windows, put, signal, wait, notifications; ranks as threads, all transports. Every byte is checked. */
#include "base/atomic.h"
#include "comm/onesided.h"
#include "comm_world.h"
#include "device/device.h"
#include "transport/transport.h"

enum { GUARD = 64, ROUNDS = 3 };

static const size_t sizes[] = {0, 1, 8, 4000, 4097, 70001, (1 << 20) + 3};
enum { NSIZES = sizeof(sizes) / sizeof(sizes[0]) };
#define ROOM ((size_t)((1 << 20) + 3 + 2 * GUARD))

/* What rank `from` puts into the window of rank `to`. */
static uint64_t seed_of(int from, int to, size_t k)
{
	return k * 1000 + (uint64_t)(from * 10 + to);
}

static int plain_memory; /* windows are memory that no other process could map */

static unsigned char *get_memory(struct gantry_device *dev, size_t size)
{
	void *p = NULL;

	if (plain_memory)
		return calloc(1, size);
	CHECK_OK(gantry_mem_alloc(dev, size, &p));
	return p;
}

static void free_memory(struct gantry_device *dev, void *p)
{
	if (plain_memory)
		free(p);
	else
		CHECK_OK(gantry_mem_free(dev, p));
}

static void finish(struct gantry_device *dev, struct gantry_comm *comm, struct gantry_stream *s)
{
	char text[256];
	gantry_result r;

	CHECK_OK(gantry_stream_sync(dev, s));
	r = gantry_comm_error(comm, NULL, text, sizeof(text));
	if (r != GANTRY_OK)
		printf("%s\n", text);
	CHECK_OK(r);
}

/* All ranks are ready for what the others put: a barrier orders memory, which TSan checks here. */
static void meet(struct gantry_device *dev, struct gantry_comm *comm, struct gantry_stream *s)
{
	CHECK_OK(gantry_barrier(comm, s));
	finish(dev, comm, s);
}

/* All ranks put into all windows at the same time, itself included: each has a place of its own there. */
static void rank_all_pairs(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			   struct gantry_stream *s)
{
	int n = w->nranks;
	struct gantry_window *window, *second;
	struct gantry_signal_wait waits[WORLD_MOST];
	unsigned char *mine = get_memory(dev, ROOM * (size_t)n), *out = malloc(ROOM * (size_t)n), few[16] = {0};

	CHECK_OK(gantry_window_register(comm, mine, ROOM * (size_t)n, &window));
	CHECK(gantry_window_ptr(window) == mine);
	/* Another one, of another size on each rank. */
	CHECK_OK(gantry_window_register(comm, rank ? few : NULL, (size_t)rank, &second));
	for (size_t z = 0; z < (SANITIZED ? NSIZES - 1 : NSIZES); z++) {
		memset(mine, 0xee, ROOM * (size_t)n);
		meet(dev, comm, s);
		for (int p = 0; p < n; p++) {
			unsigned char *from = out + ROOM * (size_t)p;

			pattern_fill(from, sizes[z], seed_of(rank, p, z));
			CHECK_OK(gantry_put(from, sizes[z], p, window, ROOM * (size_t)rank + GUARD, 3, comm, s));
			waits[p] = (struct gantry_signal_wait){.count = 1, .peer = p, .signal = 3};
		}
		CHECK_OK(gantry_wait_signals(waits, n, comm, s));
		finish(dev, comm, s);
		for (int p = 0; p < n; p++) {
			unsigned char *at = mine + ROOM * (size_t)p;

			CHECK_FILLED(at, GUARD, 0xee);
			CHECK_PATTERN(at + GUARD, sizes[z], seed_of(p, rank, z));
			CHECK_FILLED(at + GUARD + sizes[z], ROOM - GUARD - sizes[z], 0xee);
		}
	}
	/* The last byte of a window, and one beyond it, which names the peer. */
	for (int p = 1; p < n; p++)
		if (rank == 0) {
			CHECK_OK(gantry_put("x", 1, p, second, (size_t)p - 1, 0, comm, s));
			CHECK_RESULT(gantry_put("x", 1, p, second, (size_t)p, 0, comm, s), GANTRY_ERR_SIZE);
			CHECK(strstr(gantry_last_error(), "rank ") != NULL);
			CHECK_RESULT(gantry_put("x", 2, p, second, SIZE_MAX, 0, comm, s), GANTRY_ERR_SIZE);
		}
	if (rank) {
		waits[0] = (struct gantry_signal_wait){.count = 1, .peer = 0, .signal = 0};
		CHECK_OK(gantry_wait_signals(waits, 1, comm, s));
		finish(dev, comm, s);
		CHECK_EQ(few[rank - 1], 'x');
		CHECK_EQ(few[rank], 0);
	}
	CHECK_OK(gantry_window_deregister(comm, second));
	CHECK_OK(gantry_window_deregister(comm, window));
	CHECK_OK(gantry_comm_destroy(comm));
	free_memory(dev, mine);
	free(out);
}

static void run_all(void (*body)(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
				 struct gantry_stream *s))
{
	static const char *const transports[] = {"p2p", "shm", "net"};
	struct world w = {.body = body};

	setenv("GANTRY_IFNAME", "lo", 0);
	for (int t = 0; t < 3; t++) {
		for (int n = 1; n <= 4; n += n < 2 ? 1 : 2) {
			w.nranks = n;
			w.transport = transports[t];
			w.channels = t == 2 ? 2 : 0;
			world_threads(&w, NULL);
		}
		printf("%s: right\n", transports[t]);
		fflush(stdout);
	}
}

TEST(all_pairs)
{
	run_all(rank_all_pairs);
	plain_memory = 1;
	run_all(rank_all_pairs);
	plain_memory = 0;
}

/*
 * Signals are counted: rank 0 waits for what comes in pieces, in any number of waits; those of different numbers and peers
 * are apart. In a group the wait is last, whatever the order of calls.
 */
static void rank_counted(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			 struct gantry_stream *s)
{
	struct gantry_signal_wait wait = {.count = 0, .peer = 0, .signal = 0};
	int n = w->nranks, next = (rank + 1) % n, before = (rank + n - 1) % n;
	uint64_t slots[40] = {0}, values[40];
	struct gantry_window *window;

	CHECK_RESULT(gantry_signal(next, 0, comm, s), GANTRY_ERR_USAGE);
	CHECK_OK(gantry_window_register(comm, slots, sizeof(slots), &window));
	for (int i = 0; i < 40; i++) {
		values[i] = (uint64_t)(rank * 100 + i + 1);
		CHECK_OK(gantry_put(&values[i], 8, next, window, (size_t)i * 8, i % 2 ? 5 : GANTRY_NO_SIGNAL, comm, s));
	}
	for (int i = 0; i < 7; i++)
		CHECK_OK(gantry_signal(next, 6, comm, s));
	for (int i = 1; i <= 20; i += i < 3 ? 1 : 17) { /* 1, 2, 3, 20 of them in all */
		wait = (struct gantry_signal_wait){.count = i == 20 ? 17 : 1, .peer = before, .signal = 5};
		CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
		finish(dev, comm, s);
		for (int k = 0; k < 2 * i; k++)
			CHECK_EQ(slots[k], (uint64_t)(before * 100 + k + 1));
	}
	meet(dev, comm, s);
	/* A group, with its wait first; more calls than one launch takes. */
	CHECK_OK(gantry_group_start());
	wait = (struct gantry_signal_wait){.count = 300, .peer = before, .signal = 5};
	CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
	for (int i = 0; i < 300; i++) {
		values[i % 40] = (uint64_t)i;
		CHECK_OK(gantry_put(&values[i % 40], 8, next, window, (size_t)(i % 40) * 8, 5, comm, s));
	}
	CHECK_OK(gantry_group_end());
	finish(dev, comm, s);
	for (int k = 0; k < 40; k++)
		CHECK_EQ(slots[k], (uint64_t)(k < 20 ? 280 + k : 240 + k));
	wait = (struct gantry_signal_wait){.count = 7, .peer = before, .signal = 6};
	CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
	wait = (struct gantry_signal_wait){.count = 0, .peer = before, .signal = 14};
	CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
	finish(dev, comm, s);
	CHECK_RESULT(gantry_signal(next, GANTRY_SIGNALS, comm, s), GANTRY_ERR_INVALID);
	CHECK_RESULT(gantry_signal(n, 0, comm, s), GANTRY_ERR_INVALID);
	wait.count = -1;
	CHECK_RESULT(gantry_wait_signals(&wait, 1, comm, s), GANTRY_ERR_INVALID);
	CHECK_RESULT(gantry_put(NULL, 8, next, window, 0, 0, comm, s), GANTRY_ERR_INVALID);
	CHECK_OK(gantry_comm_destroy(comm)); /* with a window: it goes with the communicator */
}

TEST(counted)
{
	run_all(rank_counted);
}

/* A rank whose arguments are wrong does not leave the others waiting, and what they have goes on. */
static void rank_wrong_arguments(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
				 struct gantry_stream *s)
{
	struct gantry_signal_wait wait = {.count = 1, .peer = 0, .signal = 0};
	struct gantry_window *window = NULL;
	char memory[16] = {0};

	CHECK_RESULT(gantry_window_register(comm, rank ? memory : NULL, sizeof(memory), &window), GANTRY_ERR_INVALID);
	CHECK(strstr(gantry_last_error(), rank ? "rank 0" : "") != NULL);
	CHECK(!window);
	CHECK_OK(gantry_window_register(comm, memory, sizeof(memory), &window));
	if (rank == 0)
		CHECK_OK(gantry_put("hello", 5, w->nranks - 1, window, 1, 0, comm, s));
	if (rank == w->nranks - 1) {
		CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
		finish(dev, comm, s);
		CHECK(memcmp(memory, "\0hello", 7) == 0);
	}
	CHECK_OK(gantry_window_deregister(comm, window));
	CHECK_OK(gantry_window_deregister(comm, NULL));
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(wrong_arguments)
{
	run_all(rank_wrong_arguments);
}

/* Puts that nobody waits for have arrived when the communicator is destroyed. */
static void rank_flushed(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			 struct gantry_stream *s)
{
	int n = w->nranks;
	size_t size = 300001;
	unsigned char *mine = calloc((size_t)n, size), *out = malloc(size);
	struct gantry_window *window;

	(void)dev;
	CHECK_OK(gantry_window_register(comm, mine, size * (size_t)n, &window));
	pattern_fill(out, size, (uint64_t)rank);
	for (int p = 0; p < n; p++)
		CHECK_OK(gantry_put(out, size, p, window, size * (size_t)rank, GANTRY_NO_SIGNAL, comm, s));
	CHECK_OK(gantry_comm_destroy(comm));
	for (int p = 0; p < n; p++)
		CHECK_PATTERN(mine + size * (size_t)p, size, (uint64_t)p);
	free(mine);
	free(out);
}

TEST(flushed)
{
	run_all(rank_flushed);
}

/* ---- deregistering is local ---- */

static pthread_barrier_t ranks; /* of run_all's threads: order that the communicator knows nothing of */
static uint32_t step;

static void run_ordered(void (*body)(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
				     struct gantry_stream *s),
			int n)
{
	static const char *const transports[] = {"p2p", "shm", "net"};
	struct world w = {.body = body, .nranks = n};

	setenv("GANTRY_IFNAME", "lo", 0);
	for (int t = 0; t < 3; t++) {
		w.transport = transports[t];
		store_release(&step, 0);
		pthread_barrier_init(&ranks, NULL, (unsigned)n);
		world_threads(&w, NULL);
		pthread_barrier_destroy(&ranks);
	}
}

static void check_sum(int rank, int n, struct gantry_comm *comm, struct gantry_device *dev, struct gantry_stream *s)
{
	int32_t sum = rank + 1;

	CHECK_OK(gantry_all_reduce(&sum, &sum, 1, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
	finish(dev, comm, s);
	CHECK_EQ(sum, n * (n + 1) / 2);
}

/* Rank 0 deregisters before the others do anything; one that never does leaves it to destroy. */
static void rank_alone(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		       struct gantry_stream *s)
{
	int n = w->nranks, next = (rank + 1) % n;
	struct gantry_signal_wait wait = {.count = 1, .peer = (rank + n - 1) % n, .signal = 0};
	struct gantry_window *window;
	uint64_t mine = 0, value = (uint64_t)rank + 1;

	CHECK_OK(gantry_window_register(comm, &mine, sizeof(mine), &window));
	CHECK_OK(gantry_put(&value, sizeof(value), next, window, 0, 0, comm, s));
	CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
	finish(dev, comm, s);
	CHECK_EQ(mine, (uint64_t)wait.peer + 1);
	if (rank == 0) {
		CHECK_OK(gantry_window_deregister(comm, window));
		CHECK_RESULT(gantry_window_deregister(comm, window), GANTRY_ERR_INVALID);
		CHECK_RESULT(gantry_put(&value, 8, next, window, 0, 0, comm, s), GANTRY_ERR_INVALID);
		store_release(&step, 1);
	}
	UNTIL(load_acquire(&step));
	check_sum(rank, n, comm, dev, s);
	if (rank == 1)
		CHECK_OK(gantry_window_deregister(comm, window));
	check_sum(rank, n, comm, dev, s);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(deregister_is_local)
{
	run_ordered(rank_alone, 3);
}

/* Rank 0 deregisters, then splits; the others split, then deregister. */
static void rank_crossed(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			 struct gantry_stream *s)
{
	struct gantry_comm *half = NULL;
	struct gantry_window *window;
	char mine[64] = {0};

	CHECK_OK(gantry_window_register(comm, mine, sizeof(mine), &window));
	if (rank == 0)
		CHECK_OK(gantry_window_deregister(comm, window));
	CHECK_OK(gantry_comm_split(comm, 0, rank, NULL, &half));
	if (rank != 0)
		CHECK_OK(gantry_window_deregister(comm, window));
	check_sum(rank, w->nranks, half, dev, s);
	check_sum(rank, w->nranks, comm, dev, s);
	CHECK_OK(gantry_comm_destroy(half));
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(deregister_across_split)
{
	run_ordered(rank_crossed, 2);
}

/*
 * Rank 0 puts into a window that rank 1 has deregistered: one of them finds out, and nothing is written. size: in a header's
 * message, and in messages of its own.
 */
static size_t late_size;

static void rank_late(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	unsigned char *mine = malloc(late_size), *out = calloc(1, late_size);
	int by_net = strcmp(w->transport, "net") == 0;
	struct gantry_window *window;
	char text[256];

	memset(mine, 0xee, late_size);
	CHECK_OK(gantry_window_register(comm, mine, late_size, &window));
	if (rank == 1)
		CHECK_OK(gantry_window_deregister(comm, window));
	meet(dev, comm, s);
	pthread_barrier_wait(&ranks); /* the error of the put may not come while the other is still in meet */
	if (rank == 0)
		CHECK_OK(gantry_put(out, late_size, 1, window, 0, 0, comm, s));
	if (rank == by_net) {
		UNTIL(gantry_comm_error(comm, NULL, text, sizeof(text)) != GANTRY_OK);
		CHECK_RESULT(gantry_comm_error(comm, NULL, NULL, 0), GANTRY_ERR_USAGE);
		CHECK(strstr(text, "deregistered") != NULL);
	}
	pthread_barrier_wait(&ranks);
	if (rank == 1)
		CHECK_FILLED(mine, late_size, 0xee);
	gantry_comm_destroy(comm);
	free(mine);
	free(out);
}

TEST(put_after_deregister)
{
	late_size = 100;
	run_ordered(rank_late, 2);
	late_size = 300001;
	run_ordered(rank_late, 2);
}

/* A put is on its way when its window is deregistered: nothing is written from then on, whatever becomes of the put. */
static uint32_t incoming_of(struct gantry_comm *comm, const struct gantry_window *window)
{
	uint32_t n;

	onesided_mu_lock(&comm->onesided->mu);
	n = window->incoming;
	onesided_mu_unlock(&comm->onesided->mu);
	return n;
}

static void rank_under_put(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			   struct gantry_stream *s)
{
	size_t size = 8 << 20;
	unsigned char *mine = calloc(1, size), *copy = malloc(size);
	struct gantry_window *window;
	gantry_result r;

	(void)w;
	CHECK_OK(gantry_window_register(comm, mine, size, &window));
	if (rank == 0) {
		memset(copy, 0xee, size);
		CHECK_OK(gantry_put(copy, size, 1, window, 0, GANTRY_NO_SIGNAL, comm, s));
		gantry_stream_sync(dev, s);
	} else {
		UNTIL(load_acquire(&comm->onesided->peers[0].arrived) || incoming_of(comm, window));
		r = gantry_window_deregister(comm, window);
		CHECK(r == GANTRY_OK || r == GANTRY_ERR_USAGE);
		CHECK_RESULT(gantry_comm_error(comm, NULL, NULL, 0), r);
		memcpy(copy, mine, size);
	}
	pthread_barrier_wait(&ranks);
	if (rank == 1)
		CHECK(memcmp(copy, mine, size) == 0);
	gantry_comm_destroy(comm);
	free(mine);
	free(copy);
}

TEST(deregister_under_put)
{
	struct world w = {.body = rank_under_put, .nranks = 2, .transport = "net"};

	setenv("GANTRY_IFNAME", "lo", 0);
	for (int i = 0; i < 5; i++) {
		pthread_barrier_init(&ranks, NULL, 2);
		world_threads(&w, NULL);
		pthread_barrier_destroy(&ranks);
	}
}

/* What one rank cannot do all learn, with its code, and the communicator goes on. */
static const struct gantry_device_ops *host_ops;
static _Thread_local int no_memory;

static gantry_result failing_alloc(struct gantry_device *dev, size_t size, void **ret_ptr)
{
	return no_memory ? GANTRY_ERR_NOMEM : host_ops->alloc(dev, size, ret_ptr);
}

static void rank_without_memory(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
				struct gantry_stream *s)
{
	struct gantry_window *window = NULL;
	struct gantry_device_ops ops;
	char mine[64] = {0};

	pthread_barrier_wait(&ranks); /* all are made */
	if (rank == 0) {
		host_ops = dev->ops;
		ops = *host_ops;
		ops.alloc = failing_alloc;
		dev->ops = &ops;
		no_memory = 1;
	}
	pthread_barrier_wait(&ranks);
	CHECK_RESULT(gantry_window_register(comm, mine, sizeof(mine), &window), GANTRY_ERR_NOMEM);
	CHECK(!window);
	if (rank)
		CHECK(strstr(gantry_last_error(), "rank 0") != NULL);
	no_memory = 0;
	check_sum(rank, w->nranks, comm, dev, s);
	CHECK_OK(gantry_window_register(comm, mine, sizeof(mine), &window));
	if (rank == 0)
		CHECK_OK(gantry_put("hello", 5, 1, window, 1, 0, comm, s));
	if (rank == 1) {
		struct gantry_signal_wait wait = {.count = 1, .peer = 0, .signal = 0};

		CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
		finish(dev, comm, s);
		CHECK(memcmp(mine, "\0hello", 7) == 0);
	}
	pthread_barrier_wait(&ranks);
	if (rank == 0)
		dev->ops = host_ops;
	pthread_barrier_wait(&ranks);
	CHECK_OK(gantry_window_deregister(comm, window));
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(register_fails_alike)
{
	run_ordered(rank_without_memory, 2);
}

/* A window that nothing is put into takes no memory but that of signals: 16 words per rank and the block. */
static uint64_t got;

static gantry_result counting_mapped(struct gantry_device *dev, size_t size, void **ret_host, void **ret_device)
{
	fetch_add_relaxed(&got, size);
	return host_ops->alloc_mapped(dev, size, ret_host, ret_device);
}

static gantry_result counting_alloc(struct gantry_device *dev, size_t size, void **ret_ptr)
{
	fetch_add_relaxed(&got, size);
	return host_ops->alloc(dev, size, ret_ptr);
}

static void rank_unused(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			struct gantry_stream *s)
{
	struct gantry_window *window;
	struct gantry_device_ops ops;
	char mine[64] = {0};

	pthread_barrier_wait(&ranks); /* all are made */
	if (rank == 0) {
		host_ops = dev->ops;
		ops = *host_ops;
		ops.alloc = counting_alloc;
		ops.alloc_mapped = counting_mapped;
		dev->ops = &ops;
		store_relaxed(&got, 0);
	}
	pthread_barrier_wait(&ranks);
	CHECK_OK(gantry_window_register(comm, mine, sizeof(mine), &window));
	pthread_barrier_wait(&ranks);
	if (rank == 0) {
		CHECK(load_relaxed(&got) < (uint64_t)w->nranks << 16);
		dev->ops = host_ops;
	}
	pthread_barrier_wait(&ranks);
	CHECK_OK(gantry_window_deregister(comm, window));
	check_sum(rank, w->nranks, comm, dev, s);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(unused_windows_cost_nothing)
{
	run_ordered(rank_unused, 3);
}

/* Beside other traffic of the same communicator. */
static void rank_mixed(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		       struct gantry_stream *s)
{
	int n = w->nranks, next = (rank + 1) % n, before = (rank + n - 1) % n;
	size_t size = 100003;
	unsigned char *mine = get_memory(dev, size), *out = malloc(size);
	struct gantry_signal_wait wait = {.count = 1, .peer = before, .signal = 1};
	struct gantry_window *window;
	int32_t sum;

	CHECK_OK(gantry_window_register(comm, mine, size, &window));
	for (int i = 0; i < ROUNDS; i++) {
		sum = rank + 1;
		pattern_fill(out, size, seed_of(rank, next, (size_t)i));
		CHECK_OK(gantry_group_start());
		CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
		CHECK_OK(gantry_all_reduce(&sum, &sum, 1, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
		CHECK_OK(gantry_put(out, size, next, window, 0, 1, comm, s));
		CHECK_OK(gantry_group_end());
		finish(dev, comm, s);
		CHECK_EQ(sum, n * (n + 1) / 2);
		CHECK_PATTERN(mine, size, seed_of(before, rank, (size_t)i));
		meet(dev, comm, s);
	}
	CHECK_OK(gantry_window_deregister(comm, window));
	CHECK_OK(gantry_comm_destroy(comm));
	free_memory(dev, mine);
	free(out);
}

TEST(mixed)
{
	run_all(rank_mixed);
}

/* A wait for what never comes ends when the communicator is aborted, here or by the peer. */
static void rank_aborted(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			 struct gantry_stream *s)
{
	struct gantry_signal_wait wait = {.count = 1, .peer = 0, .signal = 0};
	struct gantry_window *window;
	char memory[16];
	int from = -1;

	CHECK_OK(gantry_window_register(comm, memory, sizeof(memory), &window));
	meet(dev, comm, s);
	if (rank == 0) {
		usleep(20000);
		CHECK_OK(gantry_comm_abort(comm));
		CHECK_OK(gantry_comm_destroy(comm));
		return;
	}
	CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
	gantry_stream_sync(dev, s);
	CHECK(gantry_comm_error(comm, &from, NULL, 0) != GANTRY_OK);
	CHECK_EQ(from, 0);
	CHECK(gantry_put("x", 1, 0, window, 0, 0, comm, s) != GANTRY_OK);
	gantry_window_deregister(comm, window);
	gantry_comm_destroy(comm);
}

TEST(aborted)
{
	struct world w = {.body = rank_aborted, .nranks = 3};

	setenv("GANTRY_IFNAME", "lo", 0);
	for (int t = 0; t < 3; t++) {
		w.transport = t == 0 ? "p2p" : t == 1 ? "shm" : "net";
		world_threads(&w, NULL);
	}
}

static void rank_notified(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			  struct gantry_stream *s)
{
	int n = w->nranks, next = (rank + 1) % n, before = (rank + n - 1) % n;
	char text[GANTRY_NOTIFY_MAX], expected[GANTRY_NOTIFY_MAX];
	gantry_result r;
	size_t size;

	(void)dev;
	(void)s;
	for (int i = 0; i < 5; i++) {
		snprintf(text, sizeof(text), "%d from %d", i, rank);
		CHECK_OK(gantry_notify(comm, next, text, i ? strlen(text) : 0));
	}
	CHECK_RESULT(gantry_notify(comm, next, text, GANTRY_NOTIFY_MAX + 1), GANTRY_ERR_INVALID);
	for (int i = 0; i < 5; i++) {
		do {
			size = sizeof(text);
			r = gantry_notified(comm, before, text, &size);
			if (r == GANTRY_AGAIN)
				usleep(200);
		} while (r == GANTRY_AGAIN);
		CHECK_OK(r);
		snprintf(expected, sizeof(expected), "%d from %d", i, before);
		CHECK_EQ(size, i ? strlen(expected) : 0);
		CHECK(memcmp(text, expected, size) == 0);
	}
	size = sizeof(text);
	CHECK_RESULT(gantry_notified(comm, before, text, &size), GANTRY_AGAIN);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(notified)
{
	struct world w = {.body = rank_notified, .nranks = 3};

	world_threads(&w, NULL);
}

/*
 * Another GPU of this process: it reaches memory only if it was given access, and of that what cuMemAlloc gave alone. A stand-in
 * device says what the driver would.
 */
static int may_access, is_exportable;

static gantry_result stand_in_access(struct gantry_device *dev, struct gantry_device *other, int *ret_can)
{
	(void)dev;
	(void)other;
	*ret_can = may_access;
	return GANTRY_OK;
}

static gantry_result stand_in_pointer(struct gantry_device *dev, const void *ptr, struct gantry_mem_info *ret_info)
{
	(void)dev;
	*ret_info = (struct gantry_mem_info){
		.kind = GANTRY_MEM_DEVICE, .device_ptr = (void *)(uintptr_t)ptr, .exportable = is_exportable};
	return GANTRY_OK;
}

TEST(another_gpu_of_the_process)
{
	struct gantry_peer_info infos[2] = {{.bus_id = "0000:01:00.0"}, {.bus_id = "0000:02:00.0"}};
	struct comm_peer peers[2] = {{0}, {.transport = &gantry_transport_p2p}};
	struct comm_conn cc = {.c = {.me = &infos[0], .peer = &infos[1], .sharing = GANTRY_SHARES_ADDRESSES}};
	struct gantry_comm *comm = calloc(1, sizeof(*comm));
	struct comm_onesided *o = aligned_alloc(64, (sizeof(*o) + 63) / 64 * 64);
	const char *buf = (const char *)peers;
	struct window_peer window = {.size = 8, .exported = 1};
	struct gantry_device *host, stand_in;
	struct gantry_device_ops ops;
	uint64_t place;

	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &host));
	ops = *host->ops;
	ops.peer_access = stand_in_access;
	ops.pointer = stand_in_pointer;
	stand_in = *host;
	stand_in.ops = &ops;
	memset(o, 0, sizeof(*o));
	o->peers = calloc(2, sizeof(*o->peers));
	comm->nranks = 2;
	comm->device = &stand_in;
	comm->infos = infos;
	comm->peers = peers;
	comm->onesided = o;
	CHECK(!onesided_could_map(comm, &window, 1));
	o->peers[1].device = 0; /* ask again */
	may_access = 1;
	CHECK(onesided_could_map(comm, &window, 1));
	window.exported = 0;
	CHECK(!onesided_could_map(comm, &window, 1));
	CHECK_EQ(comm_memory_place(comm, &cc, buf, 8, &place), 0);
	is_exportable = 1;
	CHECK_EQ(comm_memory_place(comm, &cc, buf, 8, &place), 1);
	CHECK_EQ(place, (uint64_t)(uintptr_t)peers);
	is_exportable = 0;
	memcpy(infos[1].bus_id, infos[0].bus_id, sizeof(infos[0].bus_id)); /* the same GPU */
	CHECK(onesided_could_map(comm, &window, 1));
	CHECK_EQ(comm_memory_place(comm, &cc, buf, 8, &place), 1);
	gantry_device_close(host);
	free(o->peers);
	free(o);
	free(comm);
}
