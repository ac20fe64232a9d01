/* SPDX-License-Identifier: Apache-2.0 */
/* Small collectives done by the caller: beside ranks that go the usual way, in reports while they wait, and aborted. */
#include "comm/report.h"
#include "comm_world.h"

enum { ROUNDS = 120, MOST = 30000 };

static uint64_t taken[WORLD_MOST]; /* calls that a rank did by itself */

static uint64_t count_taken(const struct gantry_comm *comm)
{
	uint64_t paths[COMM_PATHS];

	comm_paths(comm, paths);
	return paths[COMM_PATH_CALLER];
}

/* Elements of call k: mostly few, sometimes too many for a caller. */
static size_t elements(int k)
{
	return k % 7 == 6 ? MOST : (size_t)(1 + k * 37 % 900);
}

static bool gathers(int k)
{
	return k % 3 == 2;
}
static bool scatters(int k)
{
	return k % 3 == 1;
}

static void call(int k, const int32_t *in, int32_t *out, struct gantry_comm *comm, struct gantry_stream *s)
{
	if (gathers(k))
		CHECK_OK(gantry_all_gather(in, out, elements(k), GANTRY_TYPE_INT32, comm, s));
	else if (scatters(k))
		CHECK_OK(gantry_reduce_scatter(in, out, elements(k), GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
	else
		CHECK_OK(gantry_all_reduce(in, out, elements(k), GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
}

static void check_call(int k, int rank, int nranks, const int32_t *out)
{
	size_t n = elements(k), first = scatters(k) ? n * (size_t)rank : 0;

	for (size_t i = 0; i < (gathers(k) ? n * (size_t)nranks : n); i++) {
		int32_t want = gathers(k) ? (int32_t)(i / n) * 1000 + (int32_t)(i % n) + k
					  : nranks * (nranks - 1) / 2 * 1000 + nranks * ((int32_t)(first + i) + k);

		CHECK_EQ(out[i], want);
	}
}

/*
 * Rank 0 waits for each call, so nothing is under way when it makes the next. The others make several before they wait, on
 * two streams: those behind the first go the usual way. So both ways meet on one connection, in each direction.
 */
static void both_ways(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	enum { AHEAD = 4 };
	struct gantry_stream *streams[2] = {s, NULL};
	int32_t *in[AHEAD], *out[AHEAD];

	CHECK_OK(gantry_stream_create(dev, &streams[1]));
	for (int i = 0; i < AHEAD; i++) {
		in[i] = malloc(MOST * sizeof(**in) * (size_t)w->nranks);
		out[i] = malloc(MOST * sizeof(**out) * (size_t)w->nranks);
	}
	for (int k = 0; k < ROUNDS; k += AHEAD) {
		for (int i = 0; i < AHEAD; i++) {
			for (size_t e = 0; e < elements(k + i) * (scatters(k + i) ? (size_t)w->nranks : 1); e++)
				in[i][e] = rank * 1000 + (int32_t)e + k + i;
			call(k + i, in[i], out[i], comm, streams[(k + i) / 5 % 2]);
			if (rank == 0)
				CHECK_OK(gantry_stream_sync(dev, streams[(k + i) / 5 % 2]));
		}
		for (int i = 0; i < 2; i++)
			CHECK_OK(gantry_stream_sync(dev, streams[i]));
		for (int i = 0; i < AHEAD; i++)
			check_call(k + i, rank, w->nranks, out[i]);
	}
	taken[rank] = count_taken(comm);
	CHECK_OK(gantry_comm_destroy(comm));
	gantry_stream_destroy(dev, streams[1]);
	for (int i = 0; i < AHEAD; i++) {
		free(in[i]);
		free(out[i]);
	}
}

/* pat: messages that leave together on one rank, and one by one on another. */
static void beside_the_usual_way_by(const char *algo)
{
	static const int ranks[] = {2, 3, 4, 5, 8};
	struct world w = {.body = both_ways, .transport = "net"};

	setenv("GANTRY_IFNAME", "lo", 0);
	set_params("GANTRY_ALGO", algo);
	for (size_t n = 0; n < TEST_COUNT(ranks); n++) {
		w.nranks = ranks[n];
		world_threads(&w, NULL);
		CHECK(taken[0] > ROUNDS / 2);
		CHECK(taken[0] < ROUNDS);
		for (int i = 1; i < w.nranks; i++) {
			CHECK(taken[i] > 0);
			CHECK(taken[i] < taken[0]);
		}
		printf("%d ranks: %d calls, by the caller %d on rank 0, %d on rank 1\n", w.nranks, ROUNDS,
		       (int)taken[0], (int)taken[1]);
	}
	set_params("GANTRY_ALGO", NULL);
}

TEST(beside_the_usual_way)
{
	beside_the_usual_way_by(NULL);
}

TEST(together_and_one_by_one)
{
	beside_the_usual_way_by("pat");
}

/* ---- a rank that waits ---- */

static int met, ended; /* ranks that are connected; rank 1 has looked */

/* What rank 0's report says of its receiving end. */
static int report_has(struct gantry_comm *comm, const char *what)
{
	char *text = NULL, *line;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	int found = 0;

	CHECK_OK(gantry_comm_report(comm, f));
	fclose(f);
	for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		found |= strstr(line, "\"dir\":\"recv\"") && strstr(line, what);
	free(text);
	return found;
}

static struct gantry_comm *waiting;

static void *watch_report(void *arg)
{
	(void)arg;
	for (int i = 0; i < 400 && !report_has(waiting, "\"waits_for\":\"peer\""); i++)
		sleep_ms(5);
	CHECK(report_has(waiting, "\"waits_for\":\"peer\""));
	CHECK(report_has(waiting, "\"name\":\"all_reduce\""));
	CHECK(report_has(waiting, "\"phase\":\"wait data\""));
	store_release(&ended, 1);
	return NULL;
}

static void wait_in_report(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			   struct gantry_stream *s)
{
	int32_t word = 1;
	pthread_t t;

	(void)w;
	CHECK_OK(gantry_all_reduce(&word, &word, 1, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	if (rank == 0) {
		waiting = comm;
		CHECK_EQ(pthread_create(&t, NULL, watch_report, NULL), 0);
	}
	while (rank == 1 && !load_acquire(&ended))
		sleep_ms(1);
	CHECK_OK(gantry_all_reduce(&word, &word, 1, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(word, 4);
	CHECK_EQ(count_taken(comm), 2);
	if (rank == 0) {
		pthread_join(t, NULL);
		CHECK(!report_has(comm, "\"waits_for\":\"peer\""));
	}
	CHECK_OK(gantry_comm_destroy(comm));
}

TEST(reports_show_the_wait)
{
	struct world w = {.body = wait_in_report, .nranks = 2, .transport = "net"};

	world_threads(&w, NULL);
}

/* Rank 0 waits in a call that rank 1 never makes: rank 1 gives up, or another thread aborts rank 0. */
static int own_abort;

static void *abort_soon(void *comm)
{
	sleep_ms(20);
	CHECK_OK(gantry_comm_abort(comm));
	return NULL;
}

static void end_early(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	int32_t word = 1;
	gantry_result r;
	pthread_t t;

	(void)w;
	CHECK_OK(gantry_all_reduce(&word, &word, 1, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	fetch_add_release(&met, 1);
	while (load_acquire(&met) < 2)
		sched_yield();
	if (rank == 0)
		CHECK_OK(gantry_all_reduce(&word, &word, 1, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
	if (own_abort != rank) {
		threads_start(&t, 1, abort_soon, comm, 0);
		threads_join(&t, rank == 1);
	}
	if (rank == 0) {
		r = gantry_stream_sync(dev, s);
		CHECK(own_abort ? r == GANTRY_ERR_ABORTED || r == GANTRY_OK
				: r == gantry_comm_error(comm, NULL, NULL, 0));
		CHECK(gantry_comm_error(comm, NULL, NULL, 0) != GANTRY_OK);
		CHECK_EQ(word, 2); /* what it was */
		if (own_abort)
			threads_join(&t, 1);
		fetch_add_release(&met, 1);
	}
	while (own_abort && load_acquire(&met) < 3)
		sleep_ms(1); /* rank 1 is there meanwhile */
	gantry_comm_destroy(comm);
}

TEST(an_error_ends_the_wait)
{
	struct world w = {.body = end_early, .nranks = 2, .transport = "net"};

	for (own_abort = 0; own_abort < 2; own_abort++) {
		met = 0;
		world_threads(&w, NULL);
	}
}
