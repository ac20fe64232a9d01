/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Averages of floats, by every algorithm and protocol: inputs whose sum overflows have an average all the same, and
 * what is rounded on its way is the same bits on all ranks. Four ranks as threads.
 */
#include <string.h>

#include "base/param.h"
#include "comm_world.h"

enum { RANKS = 4, MOST = 40001 };

/* The largest input of each type, as bits: four of them overflow it, and a quarter and its multiples are exact. */
static const struct {
	enum gantry_type type;
	size_t bytes;
	uint64_t bits;
} large[] = {
	{GANTRY_TYPE_FLOAT16, 2, 0x78e2},	      /* 40000 */
	{GANTRY_TYPE_BFLOAT16, 2, 0x7f00},	      /* 2^127 */
	{GANTRY_TYPE_FLOAT8E4M3, 1, 0x74},	      /* 192 */
	{GANTRY_TYPE_FLOAT8E5M2, 1, 0x78},	      /* 32768 */
	{GANTRY_TYPE_FLOAT32, 4, 0x7f000000},	      /* 2^127 */
	{GANTRY_TYPE_FLOAT64, 8, 0x7fe0000000000000}, /* 2^1023 */
};
static const size_t counts[] = {1, 1000, MOST};
static const char *const algos[] = {"auto", "ring", "direct", "direct2", "tree", "hier", "pat"};
static const char *const protos[] = {"simple", "ll", "ll128"};

static char results[RANKS][MOST * 8]; /* of all ranks, compared by rank 0 */
static pthread_barrier_t ranks;

static void fill(char *to, size_t count, size_t bytes, uint64_t bits)
{
	for (size_t i = 0; i < count; i++)
		memcpy(to + i * bytes, &bits, bytes); /* little-endian, as everywhere here */
}

static void check_large(int rank, struct gantry_comm *comm, struct gantry_device *dev, struct gantry_stream *s,
			size_t t, size_t count)
{
	const size_t bytes = large[t].bytes;
	char *in = malloc(RANKS * count * bytes), *out = results[rank], *want = malloc(count * bytes);

	fill(in, RANKS * count, bytes, large[t].bits);
	fill(want, count, bytes, large[t].bits);
	memset(out, 0, count * bytes);
	CHECK_OK(gantry_all_reduce(in, out, count, large[t].type, GANTRY_OP_AVG, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK(memcmp(out, want, count * bytes) == 0);
	memset(out, 0, count * bytes);
	CHECK_OK(gantry_reduce_scatter(in, out, count, large[t].type, GANTRY_OP_AVG, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK(memcmp(out, want, count * bytes) == 0);
	memset(out, 0, count * bytes);
	CHECK_OK(gantry_reduce(in, out, count, large[t].type, GANTRY_OP_AVG, 1, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	if (rank == 1)
		CHECK(memcmp(out, want, count * bytes) == 0);
	free(in);
	free(want);
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
		CHECK_OK(gantry_all_reduce(in, results[rank], count, large[t].type, op ? premul : GANTRY_OP_AVG, comm,
					   s));
		CHECK_OK(gantry_stream_sync(dev, s));
		pthread_barrier_wait(&ranks);
		for (int r = 1; rank == 0 && r < RANKS; r++)
			CHECK(memcmp(results[0], results[r], count * bytes) == 0);
		pthread_barrier_wait(&ranks);
	}
	free(in);
}

static void rank_main(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	(void)w;
	for (size_t t = 0; t < TEST_COUNT(large); t++)
		for (size_t c = 0; c < TEST_COUNT(counts); c++) {
			check_large(rank, comm, dev, s, t, counts[c]);
			check_alike(rank, comm, dev, s, t, counts[c]);
		}
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(all_algorithms)
{
	struct world w = {.body = rank_main, .nranks = RANKS};

	pthread_barrier_init(&ranks, NULL, RANKS);
	for (size_t a = 0; a < TEST_COUNT(algos); a++)
		for (size_t p = 0; p < TEST_COUNT(protos); p++) {
			setenv("GANTRY_ALGO", algos[a], 1);
			setenv("GANTRY_PROTO", protos[p], 1);
			CHECK_OK(gantry_params_load(1));
			world_threads(&w, NULL);
		}
	pthread_barrier_destroy(&ranks);
}
