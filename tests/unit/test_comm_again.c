/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that repeat the one before them, which the communicator knows to be right and planned (comm_again), among calls that
 * differ from it in one argument: every element of every result, and the errors that a call of its own would get.
 */
#include "comm/comm_coll.h"
#include "comm_world.h"

enum { CALLS = 400, MOST = 5000, TIMES = 3 };

/* ---- results ---- */

struct asked {
	enum coll_kind kind;
	size_t count;
	enum gantry_op op;
	int root, premul; /* premul: by a reduction with a scalar of its own */
	int in_place;
};

/* What a rank contributes, differently in each repetition. */
static int32_t input(int rank, uint64_t element, int call)
{
	return (int32_t)((uint32_t)(rank + 1) * 1000003u + (uint32_t)element * 7919u + (uint32_t)call * 104729u) % 4096;
}

static int32_t reduce_inputs(const struct asked *a, int nranks, uint64_t element, int call)
{
	int32_t sum = 0, max = INT32_MIN;

	for (int i = 0; i < nranks; i++) {
		int32_t v = input(i, element, call);

		sum += a->premul ? v * a->premul : v;
		max = v > max ? v : max;
	}
	return a->op == GANTRY_OP_MAX && !a->premul ? max : sum;
}

/* The element of the output of rank `rank`. */
static int32_t expected(const struct asked *a, int nranks, int rank, uint64_t i, int call)
{
	switch (a->kind) {
	case COLL_BROADCAST:
		return input(a->root, i, call);
	case COLL_ALL_GATHER:
		return input((int)(i / a->count), i % a->count, call);
	case COLL_ALL_TO_ALL:
		return input((int)(i / a->count), (uint64_t)rank * a->count + i % a->count, call);
	case COLL_REDUCE_SCATTER:
		return reduce_inputs(a, nranks, (uint64_t)rank * a->count + i, call);
	default:
		return reduce_inputs(a, nranks, i, call);
	}
}

static gantry_result make_call(const struct asked *a, const int32_t *in, int32_t *out, int op, struct gantry_comm *comm,
			       struct gantry_stream *s)
{
	const enum gantry_type type = GANTRY_TYPE_INT32;

	switch (a->kind) {
	case COLL_REDUCE:
		return gantry_reduce(in, out, a->count, type, op, a->root, comm, s);
	case COLL_BROADCAST:
		return gantry_broadcast(in, out, a->count, type, a->root, comm, s);
	case COLL_ALL_GATHER:
		return gantry_all_gather(in, out, a->count, type, comm, s);
	case COLL_REDUCE_SCATTER:
		return gantry_reduce_scatter(in, out, a->count, type, op, comm, s);
	case COLL_ALL_TO_ALL:
		return gantry_all_to_all(in, out, a->count, type, comm, s);
	default:
		return gantry_all_reduce(in, out, a->count, type, op, comm, s);
	}
}

/* One argument of the call before changes, or all of them; the same on all ranks. */
static void next_asked(struct asked *a, int nranks)
{
	switch (random_below(8)) {
	case 0:
		a->kind = (enum coll_kind)random_below(COLL_KINDS);
		break;
	case 1:
		a->count = 1 + random_below(random_below(2) ? MOST : 60);
		break;
	case 2:
		a->op = random_below(2) ? GANTRY_OP_SUM : GANTRY_OP_MAX;
		break;
	case 3:
		a->root = (int)random_below((uint32_t)nranks);
		break;
	case 4:
		a->premul = (int)random_below(3) * 3;
		break;
	case 5:
		a->in_place ^= 1;
		break;
	default:
		*a = (struct asked){.kind = (enum coll_kind)random_below(COLL_KINDS),
				    .count = 1 + random_below(60),
				    .root = (int)random_below((uint32_t)nranks)};
	}
}

struct buffers {
	int32_t *memory, *in, *out;
};

static void fill(const struct asked *a, int nranks, int rank, int call, struct buffers *b)
{
	size_t nin = a->count * (coll_in_by_rank(a->kind) ? (size_t)nranks : 1), all = a->count * (size_t)nranks;
	int in_place = a->in_place && a->kind != COLL_ALL_TO_ALL;

	b->memory = malloc(2 * all * sizeof(*b->memory));
	b->in = b->memory;
	b->out = b->memory + all;
	if (in_place && a->kind == COLL_ALL_GATHER) {
		b->out = b->memory;
		b->in = b->out + (size_t)rank * a->count;
	} else if (in_place) {
		b->out = b->in + (a->kind == COLL_REDUCE_SCATTER ? (size_t)rank * a->count : 0);
	}
	for (size_t i = 0; i < nin; i++)
		b->in[i] = input(rank, i, call);
}

static void check(const struct asked *a, int nranks, int rank, int call, const struct buffers *b)
{
	size_t n = a->count * (coll_out_by_rank(a->kind) ? (size_t)nranks : 1);

	for (size_t i = 0; i < n && (a->kind != COLL_REDUCE || rank == a->root); i++)
		CHECK_EQ(b->out[i], expected(a, nranks, rank, i, call));
}

static uint64_t repeated[WORLD_MOST]; /* calls of a rank that were the newest one again */

/* Each call up to TIMES times in a row, with other buffers each time, all of them before the first is waited for or none. */
static void many_calls(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		       struct gantry_stream *s)
{
	struct asked a = {.kind = COLL_ALL_REDUCE, .count = 1};
	struct buffers b[TIMES];
	struct gantry_stream *other;
	uint64_t again = 0;

	random_seed(1); /* all ranks draw the same */
	CHECK_OK(gantry_stream_create(dev, &other));
	for (int k = 0; k < CALLS; k++) {
		int times = 1 + (int)random_below(TIMES), grouped = random_below(6) == 0, op = a.op;
		int syncs = (int)random_below(2);

		next_asked(&a, w->nranks);
		CASE("call %d: %s, %zu elements, root %d, op %d, premul %d%s%s", k, coll_kind_name(a.kind), a.count,
		     a.root, a.op, a.premul, a.in_place ? ", in place" : "", grouped ? ", in a group" : "");
		op = a.op;
		if (a.premul)
			CHECK_OK(gantry_op_create_premul(comm, GANTRY_TYPE_INT32, &a.premul, 0, &op));
		if (grouped)
			CHECK_OK(gantry_group_start());
		for (int i = 0; i < times; i++) {
			struct gantry_stream *on = random_below(5) || grouped ? s : other;
			const struct gantry_kernel *known = comm->coll->again.kernel;
			uint64_t calls = comm->coll->calls;

			fill(&a, w->nranks, rank, k * TIMES + i, &b[i]);
			CHECK_OK(make_call(&a, b[i].in, b[i].out, op, comm, on));
			again += i && known && comm->coll->again.coll.out == (char *)b[i].out && comm->coll->calls == calls + 1;
			if (syncs && !grouped)
				CHECK_OK(gantry_stream_sync(dev, on));
		}
		if (grouped)
			CHECK_OK(gantry_group_end());
		if (a.premul)
			CHECK_OK(gantry_op_destroy(comm, op));
		CHECK_OK(gantry_stream_sync(dev, s));
		CHECK_OK(gantry_stream_sync(dev, other));
		for (int i = 0; i < times; i++) {
			check(&a, w->nranks, rank, k * TIMES + i, &b[i]);
			free(b[i].memory);
		}
	}
	repeated[rank] = again;
	CHECK_OK(gantry_comm_destroy(comm));
	gantry_stream_destroy(dev, other);
}

TEST(results)
{
	static const char *const transports[] = {"auto", "shm", "net"};
	struct world w = {.body = many_calls};

	setenv("GANTRY_IFNAME", "lo", 0);
	for (size_t t = 0; t < TEST_COUNT(transports); t++)
		for (w.nranks = 1; w.nranks <= 3; w.nranks++) {
			w.transport = transports[t];
			world_threads(&w, NULL);
			for (int i = 0; i < w.nranks; i++)
				CHECK(repeated[i] > CALLS / 4);
		}
}

/* Several channels: a share each, which is planned anew. */
TEST(several_channels)
{
	struct world w = {.body = many_calls, .nranks = 2, .channels = 3, .transport = "shm"};

	world_threads(&w, NULL);
	CHECK(repeated[0] > CALLS / 4);
}

/* ---- errors ---- */

static void wrong_calls(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			struct gantry_stream *s)
{
	const enum gantry_type type = GANTRY_TYPE_INT32;
	int32_t a[4] = {1, 2, 3, 4}, b[4], factor = 2;
	int op;

	(void)w;
	for (int i = 0; i < 2; i++) {
		CHECK_OK(gantry_all_reduce(a, b, 2, type, GANTRY_OP_SUM, comm, s));
		CHECK_EQ(gantry_all_reduce(a, NULL, 2, type, GANTRY_OP_SUM, comm, s), GANTRY_ERR_INVALID);
		CHECK_EQ(gantry_all_reduce(NULL, b, 2, type, GANTRY_OP_SUM, comm, s), GANTRY_ERR_INVALID);
		CHECK_EQ(gantry_all_reduce(a, b, 2, type, GANTRY_OP_SUM, comm, NULL), GANTRY_ERR_INVALID);
		CHECK_EQ(gantry_all_reduce(a, b, 2, type, GANTRY_OP_SUM, NULL, s), GANTRY_ERR_INVALID);
	}
	CHECK_OK(gantry_stream_sync(dev, s));
	/* A rank that is not the root needs no input, and the root does. */
	for (int i = 0; i < 2; i++)
		CHECK_OK(gantry_broadcast(rank ? NULL : a, b, 2, type, 0, comm, s));
	if (rank == 0)
		CHECK_EQ(gantry_broadcast(NULL, b, 2, type, 0, comm, s), GANTRY_ERR_INVALID);
	/* The number of a reduction with a scalar, and that of none: GANTRY_OP_PREMUL itself. */
	CHECK_OK(gantry_op_create_premul(comm, type, &factor, 0, &op));
	CHECK_OK(gantry_all_reduce(a, b, 2, type, op, comm, s));
	CHECK_OK(gantry_op_destroy(comm, op));
	CHECK_EQ(gantry_all_reduce(a, b, 2, type, op, comm, s), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_all_reduce(a, b, 2, type, GANTRY_OP_PREMUL, comm, s), GANTRY_ERR_INVALID);
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(b[0], 4);
	/* In a group that has an error already, nothing of it is done. */
	CHECK_OK(gantry_all_reduce(a, b, 2, type, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_group_start());
	CHECK_EQ(gantry_all_reduce(a, NULL, 2, type, GANTRY_OP_SUM, comm, s), GANTRY_ERR_INVALID);
	CHECK_OK(gantry_all_reduce(a, b, 2, type, GANTRY_OP_SUM, comm, s));
	CHECK_EQ(gantry_group_end(), GANTRY_ERR_INVALID);
	/* And after the end. */
	CHECK_OK(gantry_all_reduce(a, b, 2, type, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_comm_finalize(comm));
	CHECK_EQ(gantry_all_reduce(a, b, 2, type, GANTRY_OP_SUM, comm, s), GANTRY_ERR_USAGE);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(errors)
{
	struct world w = {.body = wrong_calls, .nranks = 2, .transport = "shm"};

	world_threads(&w, NULL);
}
