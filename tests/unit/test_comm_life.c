/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators made from others, and how they end: ranks as threads of this process. Every new communicator is used: a
 * ring of messages whose bytes say from whom to whom they go, in the new one's numbers. What happens to processes is in
 * tests/system/comm_life.sh.
 */
#include <pthread.h>
#include <unistd.h>

#include "comm_world.h"

enum { RING_BYTES = 5000 };

/* As a program does that does not want to wait. */
static gantry_result poll_error(struct gantry_comm *comm)
{
	gantry_result r;

	WAIT_WHILE ((r = gantry_comm_error(comm, NULL, NULL, 0)) == GANTRY_AGAIN)
		sleep_ms(1);
	return r;
}

/* A call is enqueued, or will be when ranks are connected, if the communicator does not block. */
static void enqueued(gantry_result r, struct gantry_comm *comm)
{
	if (r != GANTRY_AGAIN)
		CHECK_OK(r);
	CHECK_OK(poll_error(comm));
}

/* Sums that say who took part: rank r gives r + 1 in the low half and 1 above it. */
static void use_reduce(struct gantry_comm *comm, struct gantry_device *dev, struct gantry_stream *s)
{
	int rank = gantry_comm_rank(comm), n = gantry_comm_size(comm);
	int32_t in[300], out[300];

	for (int i = 0; i < 300; i++)
		in[i] = (1 << 16) + (rank + 1) * (i + 1);
	enqueued(gantry_all_reduce(in, out, 300, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s), comm);
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_comm_error(comm, NULL, NULL, 0));
	for (int i = 0; i < 300; i++)
		CHECK_EQ(out[i], (n << 16) + n * (n + 1) / 2 * (i + 1));
}

/* Everybody to its right neighbour, twice, so that connections are used again; then all with all. */
static void use_ring(struct gantry_comm *comm, struct gantry_device *dev, struct gantry_stream *s)
{
	int rank = gantry_comm_rank(comm), n = gantry_comm_size(comm);
	unsigned char FREED *out = malloc(RING_BYTES), FREED *in = malloc(RING_BYTES);
	int to = (rank + 1) % n, from = (rank + n - 1) % n;

	for (uint64_t round = 0; round < 2; round++) {
		pattern_fill(out, RING_BYTES, round * 1000 + (uint64_t)(rank * 20 + to));
		memset(in, 0xee, RING_BYTES);
		CHECK_OK(gantry_group_start());
		CHECK_OK(gantry_send(out, RING_BYTES, GANTRY_TYPE_UINT8, to, comm, s));
		CHECK_OK(gantry_recv(in, RING_BYTES, GANTRY_TYPE_UINT8, from, comm, s));
		enqueued(gantry_group_end(), comm);
		CHECK_OK(gantry_stream_sync(dev, s));
		CHECK_OK(gantry_comm_error(comm, NULL, NULL, 0));
		CHECK_PATTERN(in, RING_BYTES, round * 1000 + (uint64_t)(from * 20 + rank));
	}
	use_reduce(comm, dev, s);
}

/* Has this place in this size, works, and goes. */
static void use_up(struct gantry_comm *comm, int rank, int n, struct gantry_device *dev, struct gantry_stream *s)
{
	CHECK(comm != NULL);
	CHECK_EQ(gantry_comm_rank(comm), rank);
	CHECK_EQ(gantry_comm_size(comm), n);
	use_ring(comm, dev, s);
	CHECK_OK(gantry_comm_destroy(comm));
}

static pthread_barrier_t everybody; /* all ranks */

static void run_world(int n, const char *transport,
		      void (*body)(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
				   struct gantry_stream *s))
{
	struct world w = {.nranks = n, .transport = transport, .body = body};

	pthread_barrier_init(&everybody, NULL, (unsigned)n);
	world_threads(&w, NULL);
	pthread_barrier_destroy(&everybody);
}

void tests_begin(void)
{
	setenv("GANTRY_IFNAME", "lo", 0);
	setenv("GANTRY_LOG", "error", 0);
}

/* ---- split ---- */

static void split_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		       struct gantry_stream *s)
{
	int n = w->nranks, color = rank % 2, size = (n + 1 - color) / 2;
	struct gantry_comm *half, *same, *inner = NULL, *alone;

	/* By parity, in reverse order; the old one is used in between. */
	CHECK_OK(gantry_comm_split(comm, color, -rank, NULL, &half));
	use_ring(comm, dev, s);
	CHECK_EQ(gantry_comm_size(half), size);
	CHECK_EQ(gantry_comm_rank(half), size - 1 - rank / 2);
	use_ring(half, dev, s);
	/* The same keys: ranks stay in order. */
	CHECK_OK(gantry_comm_split(comm, 7, 3, NULL, &same));
	use_up(same, rank, n, dev, s);
	/* One of a half stays out; the rest of it are a communicator in a communicator. */
	CHECK_OK(gantry_comm_split(half, gantry_comm_rank(half) ? 0 : -1, 0, NULL, &inner));
	if (gantry_comm_rank(half))
		use_up(inner, gantry_comm_rank(half) - 1, size - 1, dev, s);
	else
		CHECK(inner == NULL);
	CHECK_OK(gantry_comm_split(half, gantry_comm_rank(half), 0, NULL, &alone));
	use_up(alone, 0, 1, dev, s);
	CHECK_OK(gantry_comm_destroy(comm)); /* before what was made from it */
	use_up(half, size - 1 - rank / 2, size, dev, s);
}

TEST(split_by_parity_and_reversed)
{
	for (int n = 2; n <= 7; n += n == 2 ? 3 : 2)
		run_world(n, "shm,p2p", split_body);
	run_world(4, "net", split_body);
}

/* ---- shrink ---- */

static void shrink_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			struct gantry_stream *s)
{
	static const int out[] = {1}, first[] = {0}, twice[] = {2, 1, 2};
	struct gantry_comm *small = NULL;
	int self = rank, n = w->nranks;

	use_ring(comm, dev, s);
	for (int i = 0; i < 2; i++) { /* the same list a second time is another communicator */
		if (rank == 1)
			break;
		CHECK_OK(gantry_comm_shrink(comm, out, 1, 0, NULL, &small));
		use_up(small, rank - (rank > 1), n - 1, dev, s);
	}
	/* Rank 1 has counted fewer calls than the others, and takes part. */
	if (rank != 0) {
		CHECK_OK(gantry_comm_shrink(comm, first, 1, 0, NULL, &small));
		use_up(small, rank - 1, n - 1, dev, s);
	}
	CHECK_ERROR(gantry_comm_shrink(comm, &self, 1, 0, NULL, &small), GANTRY_ERR_INVALID, "is in its own exclude list");
	CHECK_ERROR(gantry_comm_shrink(comm, &n, 1, 0, NULL, &small), GANTRY_ERR_INVALID, "no rank 4 in 4 ranks");
	CHECK_RESULT(gantry_comm_shrink(comm, NULL, 1, 0, NULL, &small), GANTRY_ERR_INVALID);
	use_ring(comm, dev, s); /* and the old one goes on */
	pthread_barrier_wait(&everybody);
	if (rank == 0 || rank == 3) {
		CHECK_OK(gantry_comm_shrink(comm, twice, 3, 1, NULL, &small)); /* with abort */
		CHECK_RESULT(gantry_comm_error(comm, NULL, NULL, 0), GANTRY_ERR_ABORTED);
		use_up(small, rank == 3, 2, dev, s);
	}
	gantry_comm_destroy(comm); /* it was aborted by some */
}

TEST(shrink)
{
	run_world(4, "auto", shrink_body);
	run_world(4, "net", shrink_body);
}

/* ---- grow ---- */

struct grown {
	struct gantry_unique_id id;
	pthread_barrier_t known;
	int nonblocking;
};
static struct grown grown;

static void *newcomer_main(void *arg)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *comm = NULL;
	struct gantry_stream *s;
	gantry_result r;

	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &config.device));
	CHECK_OK(gantry_stream_create(config.device, &s));
	config.nonblocking = grown.nonblocking;
	pthread_barrier_wait(&grown.known);
	r = gantry_comm_grow(NULL, 5, &grown.id, *(int *)arg, &config, &comm);
	CHECK_EQ(r, grown.nonblocking ? GANTRY_AGAIN : GANTRY_OK);
	CHECK_OK(poll_error(comm));
	use_up(comm, *(int *)arg, 5, config.device, s);
	gantry_stream_destroy(config.device, s);
	gantry_device_close(config.device);
	return NULL;
}

static void grow_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *large = NULL, *none;
	gantry_result r;

	(void)w;
	config.nonblocking = grown.nonblocking;
	CHECK_ERROR(gantry_comm_grow(comm, 5, NULL, -1, NULL, &none), GANTRY_ERR_USAGE, "no rank passed an id");
	CHECK_ERROR(gantry_comm_grow(comm, 3, NULL, -1, NULL, &none), GANTRY_ERR_INVALID, "from 3 to 3 ranks");
	CHECK_RESULT(gantry_comm_grow(comm, 5, NULL, !rank, NULL, &none), GANTRY_ERR_INVALID);
	if (rank == 1) {
		CHECK_OK(gantry_comm_grow_id(comm, &grown.id));
		pthread_barrier_wait(&grown.known);
	}
	r = gantry_comm_grow(comm, 5, rank == 1 ? &grown.id : NULL, -1, &config, &large);
	CHECK_EQ(r, grown.nonblocking ? GANTRY_AGAIN : GANTRY_OK);
	CHECK_OK(poll_error(large));
	CHECK_OK(poll_error(comm));
	use_ring(comm, dev, s);
	CHECK_OK(gantry_comm_destroy(comm));
	use_up(large, rank, 5, dev, s);
}

static void grow_by_two(int nonblocking)
{
	int ranks[] = {3, 4};
	pthread_t t[2];

	grown.nonblocking = nonblocking;
	pthread_barrier_init(&grown.known, NULL, 3);
	threads_start(t, 2, newcomer_main, ranks, sizeof(ranks[0]));
	run_world(3, "auto", grow_body);
	threads_join(t, 2);
	pthread_barrier_destroy(&grown.known);
}

TEST_CALL(grow, grow_by_two(0))
TEST_CALL(grow_nonblocking, grow_by_two(1))

/* ---- finalize, revoke ---- */

static void finalize_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			  struct gantry_stream *s)
{
	char FREED *buf = calloc(1, 1 << 20);
	struct gantry_comm *none;

	(void)w;
	use_ring(comm, dev, s);
	if (rank == 0)
		CHECK_OK(gantry_send(buf, 1 << 20, GANTRY_TYPE_UINT8, 1, comm, s));
	if (rank == 1)
		CHECK_OK(gantry_recv(buf, 1 << 20, GANTRY_TYPE_UINT8, 0, comm, s));
	CHECK_OK(gantry_comm_finalize(comm));
	CHECK_OK(gantry_stream_query(dev, s)); /* nothing is in flight */
	CHECK_ERROR(gantry_comm_finalize(comm), GANTRY_ERR_INVALID, "already finalized");
	CHECK_ERROR(gantry_send(buf, 1, GANTRY_TYPE_UINT8, !rank, comm, s), GANTRY_ERR_USAGE, "finalized");
	CHECK_RESULT(gantry_comm_split(comm, 0, 0, NULL, &none), GANTRY_ERR_USAGE);
	if (rank)
		sleep_ms(50); /* the others are gone: that is no loss */
	CHECK_OK(gantry_comm_error(comm, NULL, NULL, 0));
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST_CALL(finalize, run_world(3, "shm", finalize_body))

static void revoke_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			struct gantry_stream *s)
{
	static const int out[] = {0};
	char FREED *buf = calloc(1, 1 << 20);
	struct gantry_comm *half, *small;

	(void)w;
	use_ring(comm, dev, s);
	pthread_barrier_wait(
		&everybody); /* a send is over when its buffer is free: revoking would end what is on its way */
	/* It waits for what nobody sends. */
	CHECK_OK(gantry_recv(buf, 1 << 20, GANTRY_TYPE_UINT8, (rank + 3) % 4, comm, s));
	CHECK_RESULT(gantry_stream_query(dev, s), GANTRY_AGAIN);
	CHECK_OK(gantry_comm_revoke(comm));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_comm_error(comm, NULL, NULL, 0));
	CHECK_ERROR(gantry_send(buf, 1, GANTRY_TYPE_UINT8, (rank + 1) % 4, comm, s), GANTRY_ERR_USAGE, "revoked");
	CHECK_ERROR(gantry_comm_finalize(comm), GANTRY_ERR_USAGE, "revoked");
	CHECK_OK(gantry_comm_split(comm, rank / 2, 0, NULL, &half));
	use_up(half, rank % 2, 2, dev, s);
	if (rank) {
		CHECK_OK(gantry_comm_shrink(comm, out, 1, 0, NULL, &small));
		use_up(small, rank - 1, 3, dev, s);
	}
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(revoke_then_split)
{
	run_world(4, "shm", revoke_body);
	run_world(4, "net", revoke_body);
}

/* ---- non-blocking ---- */

static void nonblocking_body(struct world *w, int rank, struct gantry_comm *given, struct gantry_device *dev,
			     struct gantry_stream *s)
{
	static const int out[] = {2};
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *comm, *next = NULL, *none = (void *)&config;
	int color = rank == 3 ? -1 : 0;

	CHECK_OK(gantry_comm_destroy(given)); /* this one is better */
	if (rank == 0)
		CHECK_OK(gantry_unique_id_create(&w->id));
	pthread_barrier_wait(&w->all);
	config.id = w->id;
	config.rank = rank;
	config.nranks = 4;
	config.device = dev;
	config.nonblocking = 1;
	config.transport = "shm";
	if (rank == 3) { /* until it comes the others are not ready, and say so without waiting */
		pthread_barrier_wait(&w->over);
		CHECK_RESULT(gantry_comm_init(&config, &comm), GANTRY_AGAIN);
	} else {
		CHECK_RESULT(gantry_comm_init(&config, &comm), GANTRY_AGAIN);
		CHECK_RESULT(gantry_comm_error(comm, NULL, NULL, 0), GANTRY_AGAIN);
		CHECK_EQ(gantry_comm_rank(comm), rank);
		CHECK_ERROR(gantry_send(&config, 1, GANTRY_TYPE_UINT8, 0, comm, s), GANTRY_ERR_USAGE, "not ready");
		CHECK_ERROR(gantry_comm_split(comm, 0, 0, NULL, &next), GANTRY_ERR_USAGE, "not ready");
		CHECK_ERROR(gantry_comm_finalize(comm), GANTRY_ERR_USAGE, "not ready");
		pthread_barrier_wait(&w->over);
	}
	CHECK_OK(poll_error(comm));
	use_ring(comm, dev, s);
	if (color < 0) {
		CHECK_RESULT(gantry_comm_split(comm, color, 0, NULL, &none), GANTRY_AGAIN);
		CHECK(none == NULL);
	} else {
		CHECK_RESULT(gantry_comm_split(comm, color, -rank, NULL, &next), GANTRY_AGAIN);
		CHECK(next != NULL);
		CHECK_OK(poll_error(next));
		use_up(next, 2 - rank, 3, dev, s);
	}
	CHECK_OK(poll_error(comm));
	if (rank != 2) {
		CHECK_RESULT(gantry_comm_shrink(comm, out, 1, 0, NULL, &next), GANTRY_AGAIN);
		CHECK_OK(poll_error(comm));
		CHECK_OK(poll_error(next));
		use_ring(next, dev, s);
		CHECK_RESULT(gantry_comm_finalize(next), GANTRY_AGAIN);
		CHECK_OK(poll_error(next));
		CHECK_OK(gantry_comm_destroy(next));
	}
	/* Destroyed while it is being made: it waits until it is. */
	CHECK_RESULT(gantry_comm_split(comm, 0, 0, NULL, &next), GANTRY_AGAIN);
	CHECK_OK(gantry_comm_destroy(next));
	CHECK_OK(poll_error(comm));
	CHECK_RESULT(gantry_comm_finalize(comm), GANTRY_AGAIN);
	CHECK_OK(gantry_comm_destroy(comm));
}

static void let_go(struct world *w)
{
	(void)w; /* both barriers are the ranks' and this thread's */
}

TEST(nonblocking)
{
	struct world w = {.nranks = 4, .transport = "shm", .body = nonblocking_body};

	world_threads(&w, let_go);
}

/* Nobody else comes: an abort ends it at once, whatever the deadline. */
TEST(nonblocking_abort)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *comm;
	uint64_t began = now_ms();

	CHECK_OK(gantry_unique_id_create(&config.id));
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &config.device));
	config.nranks = 2;
	config.nonblocking = 1;
	CHECK_RESULT(gantry_comm_init(&config, &comm), GANTRY_AGAIN);
	sleep_ms(30);
	CHECK_RESULT(gantry_comm_error(comm, NULL, NULL, 0), GANTRY_AGAIN);
	CHECK_OK(gantry_comm_abort(comm));
	CHECK_RESULT(poll_error(comm), GANTRY_ERR_ABORTED);
	CHECK_OK(gantry_comm_destroy(comm));
	CHECK(now_ms() - began < 20000); /* GANTRY_CONNECT_TIMEOUT is 60 s */
	gantry_device_close(config.device);
}

/*
 * The first calls between ranks do not wait for the other one's: a collective, then a group on two communicators, whose
 * second one is destroyed while a thread works for both; and one that is aborted.
 */
static void later_body(struct world *w, int rank, struct gantry_comm *given, struct gantry_device *dev,
		       struct gantry_stream *s)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *c[4] = {NULL};
	int32_t word[4] = {rank + 1, 0, rank + 1, 0};

	(void)w;
	config.nonblocking = 1;
	for (int i = 0; i < 4; i++) {
		CHECK_RESULT(gantry_comm_split(given, 0, 0, &config, &c[i]), GANTRY_AGAIN);
		CHECK_OK(poll_error(c[i]));
		CHECK_OK(poll_error(given));
	}
	if (rank == 1)
		pthread_barrier_wait(&everybody);
	CHECK_RESULT(gantry_all_reduce(word, word + 1, 1, GANTRY_TYPE_INT32, GANTRY_OP_SUM, c[0], s), GANTRY_AGAIN);
	if (rank == 0) {
		sleep_ms(20);
		CHECK_RESULT(gantry_comm_error(c[0], NULL, NULL, 0), GANTRY_AGAIN);
		CHECK_ERROR(gantry_barrier(c[0], s), GANTRY_ERR_USAGE, "not ready");
		pthread_barrier_wait(&everybody); /* now the other one calls too */
	}
	CHECK_OK(poll_error(c[0]));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(word[1], 3);
	/* Its connections are there: this one is enqueued at once. */
	CHECK_OK(gantry_all_reduce(word, word + 1, 1, GANTRY_TYPE_INT32, GANTRY_OP_PROD, c[0], s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(word[1], 2);

	CHECK_OK(gantry_group_start());
	CHECK_OK(gantry_all_reduce(word, word + 1, 1, GANTRY_TYPE_INT32, GANTRY_OP_SUM, c[1], s));
	CHECK_OK(gantry_all_reduce(word + 2, word + 3, 1, GANTRY_TYPE_INT32, GANTRY_OP_MAX, c[2], s));
	CHECK_RESULT(gantry_group_end(), GANTRY_AGAIN);
	CHECK_OK(gantry_comm_destroy(c[2])); /* waits until it is done */
	CHECK_OK(poll_error(c[1]));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(word[1], 3);
	CHECK_EQ(word[3], 2);

	if (rank == 0) {
		CHECK_RESULT(gantry_recv(word, 1, GANTRY_TYPE_INT32, 1, c[3], s), GANTRY_AGAIN); /* nobody sends */
		CHECK_OK(gantry_comm_abort(c[3]));
		CHECK_RESULT(poll_error(c[3]), GANTRY_ERR_ABORTED);
	}
	pthread_barrier_wait(&everybody);
	gantry_comm_destroy(c[3]);
	CHECK_OK(gantry_comm_destroy(c[1]));
	CHECK_OK(gantry_comm_destroy(c[0]));
	CHECK_OK(gantry_comm_destroy(given));
}

TEST_CALL(nonblocking_calls, run_world(2, "shm,net", later_body))

static void *abort_soon(void *comm)
{
	sleep_ms(50);
	CHECK_OK(gantry_comm_abort(comm));
	return NULL;
}

/* A call that waits for ranks that do not come, ended by another thread: by the old communicator, whether it still
 * counts votes or the new one already meets; and by the new one. */
static void abort_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		       struct gantry_stream *s)
{
	static const int out[] = {2};
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *next = NULL, *half;
	uint64_t began = now_ms();
	pthread_t other;

	(void)w, (void)dev, (void)s;
	config.nonblocking = 1;
	CHECK_OK(gantry_comm_split(comm, 0, 0, NULL, &half));
	if (rank == 1) {
		CHECK_RESULT(gantry_comm_shrink(half, out, 1, 0, &config, &next), GANTRY_AGAIN);
		sleep_ms(30);
		CHECK_RESULT(gantry_comm_error(half, NULL, NULL, 0), GANTRY_AGAIN);
		CHECK_OK(gantry_comm_abort(next));
		CHECK_RESULT(poll_error(next), GANTRY_ERR_ABORTED);
		CHECK_OK(poll_error(half)); /* it goes on without */
		CHECK_OK(gantry_comm_destroy(next));
		threads_start(&other, 1, abort_soon, half, 0);
		CHECK_RESULT(gantry_comm_shrink(half, out, 1, 0, NULL, &next), GANTRY_ERR_ABORTED);
		threads_join(&other, 1);
		threads_start(&other, 1, abort_soon, comm, 0);
		CHECK_RESULT(gantry_comm_split(comm, 0, 0, NULL, &next), GANTRY_ERR_ABORTED);
		threads_join(&other, 1);
		CHECK(next == NULL);
		CHECK(now_ms() - began < 20000); /* GANTRY_CONNECT_TIMEOUT is 60 s */
	}
	pthread_barrier_wait(&everybody);
	gantry_comm_destroy(half);
	gantry_comm_destroy(comm);
}

TEST_CALL(abort_while_it_waits, run_world(3, "shm", abort_body))

/* What fails in the background is told with its text. */
TEST(nonblocking_failure)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *comm, *none;
	char text[256];

	set_params("GANTRY_CONNECT_TIMEOUT", "200ms", "GANTRY_CALL_TIMEOUT", "200ms");
	CHECK_OK(gantry_unique_id_create(&config.id));
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &config.device));
	config.nranks = 2;
	config.nonblocking = 1;
	CHECK_RESULT(gantry_comm_init(&config, &comm), GANTRY_AGAIN);
	CHECK_RESULT(poll_error(comm), GANTRY_ERR_TIMEOUT);
	CHECK_RESULT(gantry_comm_error(comm, NULL, text, sizeof(text)), GANTRY_ERR_TIMEOUT);
	CHECK_HAS(text, "missing: rank 1");
	/* Nothing can be made from it. */
	CHECK_ERROR(gantry_comm_shrink(comm, (int[]){1}, 1, 1, NULL, &none), GANTRY_ERR_USAGE, "failed to initialise");
	CHECK_OK(gantry_comm_revoke(comm));
	CHECK_ERROR(gantry_comm_split(comm, 0, 0, NULL, &none), GANTRY_ERR_USAGE, "failed to initialise");
	CHECK_RESULT(gantry_comm_destroy(comm), GANTRY_ERR_TIMEOUT);
	gantry_device_close(config.device);
	set_params("GANTRY_CONNECT_TIMEOUT", NULL, "GANTRY_CALL_TIMEOUT", NULL);
}

/* ---- a late rank ---- */

/* A receive is enqueued and the communicator destroyed, which waits for the sender, late by several deadlines. */
static void late_end_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			  struct gantry_stream *s)
{
	unsigned char FREED *bytes = malloc(RING_BYTES);

	(void)w;
	use_reduce(comm, dev, s);
	memset(bytes, 0xee, RING_BYTES);
	if (rank == 0) {
		CHECK_OK(gantry_recv(bytes, RING_BYTES, GANTRY_TYPE_UINT8, 1, comm, s));
	} else {
		sleep_ms(1000); /* GANTRY_TIMEOUT and GANTRY_CONNECT_TIMEOUT are 300 ms */
		pattern_fill(bytes, RING_BYTES, 7);
		CHECK_OK(gantry_send(bytes, RING_BYTES, GANTRY_TYPE_UINT8, 0, comm, s));
		sleep_ms(1000);
	}
	CHECK_OK(gantry_comm_destroy(comm));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_PATTERN(bytes, RING_BYTES, 7);
}

TEST(late_end)
{
	set_params("GANTRY_TIMEOUT", "300ms", "GANTRY_CONNECT_TIMEOUT", "300ms");
	run_world(2, "shm", late_end_body);
	set_params("GANTRY_TIMEOUT", NULL, "GANTRY_CONNECT_TIMEOUT", NULL);
}

/* ---- forks ---- */

/* A child's communicator is its parent's: calls that need other ranks are refused, and the parent's goes on. */
static void fork_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	(void)w;
	if (rank == 0) {
		pid_t child = child_fork();

		if (child == 0) {
			struct gantry_comm *next = NULL;
			const gantry_result refused[] = {gantry_comm_split(comm, 0, 0, NULL, &next),
							 gantry_barrier(comm, s), gantry_comm_abort(comm),
							 gantry_comm_destroy(comm)};

			for (int i = 0; i < 4; i++)
				if (refused[i] != GANTRY_ERR_USAGE || !strstr(gantry_last_error(), "fork"))
					_exit(1 + i);
			_exit(0);
		}
		child_wait(child);
	}
	use_ring(comm, dev, s);
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST_CALL(forked_child_is_refused, run_world(2, "net", fork_body))

/* ---- many at once, ids, names ---- */

enum { MANY = 8, EACH = 8 };
static struct gantry_unique_id many_ids[MANY][3];

static void *many_main(void *arg)
{
	int me = *(int *)arg;
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	char name[32], expected[64], *report = NULL;
	struct gantry_comm *comm;
	struct gantry_stream *s;
	size_t size;
	FILE *f = open_memstream(&report, &size);

	snprintf(name, sizeof(name), "number %d", me / EACH);
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &config.device));
	CHECK_OK(gantry_stream_create(config.device, &s));
	config.ids = many_ids[me / EACH];
	config.nids = 3;
	config.rank = me % EACH;
	config.nranks = EACH;
	config.name = name;
	CHECK_OK(gantry_comm_init(&config, &comm));
	use_ring(comm, config.device, s);
	CHECK(f != NULL);
	gantry_comm_report(comm, f);
	fclose(f);
	snprintf(expected, sizeof(expected), "\"name\":\"number %d\"", me / EACH);
	CHECK_HAS(report, expected);
	free(report);
	CHECK_OK(gantry_comm_destroy(comm));
	gantry_stream_destroy(config.device, s);
	gantry_device_close(config.device);
	return NULL;
}

TEST(many_at_once)
{
	int args[MANY * EACH], fds = held(HELD_FDS), threads = held(HELD_THREADS);
	pthread_t t[MANY * EACH];

	for (int i = 0; i < MANY * EACH; i++)
		args[i] = i;
	for (int i = 0; i < MANY; i++)
		for (int k = 0; k < 3; k++)
			CHECK_OK(gantry_unique_id_create(&many_ids[i][k]));
	threads_start(t, MANY * EACH, many_main, args, sizeof(args[0]));
	threads_join(t, MANY * EACH);
	/* Also the ids that were not used have given back what they held. */
	UNTIL(held(HELD_FDS) <= fds && held(HELD_THREADS) <= threads);
}
