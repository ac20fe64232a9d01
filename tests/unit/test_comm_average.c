/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Averages of floats, by every algorithm and protocol: inputs whose sum overflows have an average all the same, and
 * what is rounded on its way is the same bits on all ranks. Four ranks as threads; and by `hier` between two hosts, which two
 * processes play, of two and of three ranks each.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/atomic.h"
#include "base/param.h"
#include "comm_world.h"

enum { RANKS = 4, RANKS_MOST = 6, MOST = 40001 };

/* Large inputs of each type, as bits: four of them overflow it, and a quarter and its multiples are exact. And the largest number that
 * the type has: a quarter of it is exact, twice that as well, and three quarters are rounded so that the fourth makes the number whole. */
static const struct {
	enum gantry_type type;
	size_t bytes;
	uint64_t bits, max_bits;
} large[] = {
	{GANTRY_TYPE_FLOAT16, 2, 0x78e2, 0x7bff},			  /* 40000, 65504 */
	{GANTRY_TYPE_BFLOAT16, 2, 0x7f00, 0x7f7f},			  /* 2^127 */
	{GANTRY_TYPE_FLOAT8E4M3, 1, 0x74, 0x7e},			  /* 192, 448 */
	{GANTRY_TYPE_FLOAT8E5M2, 1, 0x78, 0x7b},			  /* 32768, 57344 */
	{GANTRY_TYPE_FLOAT32, 4, 0x7f000000, 0x7f7fffff},		  /* 2^127 */
	{GANTRY_TYPE_FLOAT64, 8, 0x7fe0000000000000, 0x7fefffffffffffff}, /* 2^1023 */
};
static const size_t counts[] = {1, 1000, MOST};
static const char *const algos[] = {"auto", "ring", "direct", "direct2", "tree", "hier", "pat"};
static const char *const protos[] = {"simple", "ll", "ll128"};

/* Of all ranks, in one process or two. */
static struct together {
	struct gantry_unique_id id;
	uint32_t ready;	       /* the id is there; release, acquire */
	pthread_barrier_t all; /* ranks */
	char results[RANKS_MOST][MOST * 8]; /* compared by rank 0 */
} *together;
static int nranks;

static void open_together(int n)
{
	pthread_barrierattr_t shared;

	nranks = n;
	together = mmap(NULL, sizeof(*together), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(together != MAP_FAILED);
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&together->all, &shared, (unsigned)n);
	pthread_barrierattr_destroy(&shared);
}

static void close_together(void)
{
	pthread_barrier_destroy(&together->all);
	munmap(together, sizeof(*together));
}

static void fill(char *to, size_t count, size_t bytes, uint64_t bits)
{
	for (size_t i = 0; i < count; i++)
		memcpy(to + i * bytes, &bits, bytes); /* little-endian, as everywhere here */
}

/* A quarter is exact. A sixth is rounded, and so is every partial sum: seven roundings, each of which moves the result by one at most
 * (tools/perf/perf_coll.h has the proof). */
static void check_result(const char *out, size_t count, size_t bytes, uint64_t bits)
{
	const uint64_t most = nranks == RANKS ? 0 : 7;

	for (size_t i = 0; i < count; i++) {
		uint64_t got = 0;

		memcpy(&got, out + i * bytes, bytes);
		if (got > bits + most || got + most < bits)
			TEST_FAIL("element %zu is %#llx, not %#llx", i, (unsigned long long)got,
				  (unsigned long long)bits);
	}
}

static void check_large(int rank, struct gantry_comm *comm, struct gantry_device *dev, struct gantry_stream *s,
			size_t t, size_t count, uint64_t bits)
{
	const size_t bytes = large[t].bytes;
	char *in = malloc((size_t)nranks * count * bytes), *out = together->results[rank];

	fill(in, (size_t)nranks * count, bytes, bits);
	memset(out, 0, count * bytes);
	CHECK_OK(gantry_all_reduce(in, out, count, large[t].type, GANTRY_OP_AVG, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	check_result(out, count, bytes, bits);
	memset(out, 0, count * bytes);
	CHECK_OK(gantry_reduce_scatter(in, out, count, large[t].type, GANTRY_OP_AVG, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	check_result(out, count, bytes, bits);
	memset(out, 0, count * bytes);
	CHECK_OK(gantry_reduce(in, out, count, large[t].type, GANTRY_OP_AVG, 1, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	if (rank == 1)
		check_result(out, count, bytes, bits);
	free(in);
}

/* Numbers between 1 and 2, or thereabouts: of the exponent's bits all but the highest are set. */
static uint64_t number(size_t t, int rank, size_t i)
{
	uint64_t h = ((uint64_t)rank + 1) * 0x9e3779b97f4a7c15u + i * 0xd1b54a32d192ed03u;

	h ^= h >> 29;
	switch (large[t].type) {
	case GANTRY_TYPE_FLOAT16:
		return 0x3c00 | (h & 0x3ff);
	case GANTRY_TYPE_BFLOAT16:
		return 0x3f80 | (h & 0x7f);
	case GANTRY_TYPE_FLOAT8E4M3:
		return 0x38 | (h & 7);
	case GANTRY_TYPE_FLOAT8E5M2:
		return 0x3c | (h & 3);
	case GANTRY_TYPE_FLOAT32:
		return 0x3f800000 | (h & 0x7fffff);
	default:
		return 0x3ff0000000000000 | (h & 0xfffffffffffff);
	}
}

static void check_alike(int rank, struct gantry_comm *comm, struct gantry_device *dev, struct gantry_stream *s,
			size_t t, size_t count)
{
	const size_t bytes = large[t].bytes;
	uint64_t scalar = number(t, 7, 3);
	char *in = malloc(count * bytes);
	int premul;

	CHECK_OK(gantry_op_create_premul(comm, large[t].type, &scalar, 0, &premul));
	for (size_t i = 0; i < count; i++)
		fill(in + i * bytes, 1, bytes, number(t, rank, i));
	for (int op = 0; op < 2; op++) {
		CHECK_OK(gantry_all_reduce(in, together->results[rank], count, large[t].type,
					   op ? premul : GANTRY_OP_AVG, comm, s));
		CHECK_OK(gantry_stream_sync(dev, s));
		pthread_barrier_wait(&together->all);
		for (int r = 1; rank == 0 && r < nranks; r++)
			CHECK(memcmp(together->results[0], together->results[r], count * bytes) == 0);
		pthread_barrier_wait(&together->all);
	}
	free(in);
}

static void rank_main(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	(void)w;
	for (size_t t = 0; t < TEST_COUNT(large); t++)
		for (size_t c = 0; c < TEST_COUNT(counts); c++) {
			check_large(rank, comm, dev, s, t, counts[c], large[t].bits);
			if (nranks == RANKS) /* a sixth may be rounded up, and six of that overflow */
				check_large(rank, comm, dev, s, t, counts[c], large[t].max_bits);
			check_alike(rank, comm, dev, s, t, counts[c]);
		}
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(all_algorithms)
{
	struct world w = {.body = rank_main, .nranks = RANKS};

	open_together(RANKS);
	for (size_t a = 0; a < TEST_COUNT(algos); a++)
		for (size_t p = 0; p < TEST_COUNT(protos); p++) {
			setenv("GANTRY_ALGO", algos[a], 1);
			setenv("GANTRY_PROTO", protos[p], 1);
			CHECK_OK(gantry_params_load(1));
			world_threads(&w, NULL);
		}
	close_together();
}

/* ---- between hosts ---- */

static void hier_main(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	CHECK_OK(gantry_comm_explain(comm, "all_reduce", MOST, GANTRY_TYPE_FLOAT16, f));
	fclose(f);
	CHECK_HAS(text, "on 2 hosts: hier");
	free(text);
	rank_main(w, rank, comm, dev, s);
}

/* The ranks of a host; the first one has the id. */
static void run_host(int host)
{
	struct world w = {.body = hier_main, .nranks = nranks};
	struct world_thread args[RANKS_MOST];
	const int n = nranks / 2;
	pthread_t t[RANKS_MOST];

	set_params("GANTRY_HOST_ID", host ? "second" : "first", "GANTRY_IFNAME", "lo", "GANTRY_ALGO", "hier");
	if (!host) {
		CHECK_OK(gantry_unique_id_create(&together->id));
		store_release(&together->ready, 1);
	}
	UNTIL(load_acquire(&together->ready));
	w.id = together->id;
	for (int i = 0; i < n; i++)
		args[i] = (struct world_thread){.w = &w, .rank = host * n + i};
	threads_start(t, n, world_thread_main, args, sizeof(args[0]));
	threads_join(t, n);
}

static void between_hosts(int n)
{
	pid_t pid;

	open_together(n);
	pid = child_fork();
	if (pid == 0) {
		run_host(1);
		child_end(0);
	}
	run_host(0);
	child_wait(pid);
	close_together();
}

TEST_CALL(two_hosts_of_two, between_hosts(4))
TEST_CALL(two_hosts_of_three, between_hosts(6))

void tests_begin(void)
{
	tests_apart(1);
}
