/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_life CASE VICTIM TRANSPORT FOLDER: four processes, one rank each, that exchange messages in a loop, and what
 * becomes of their communicator. The id travels through a file in FOLDER.
 *
 *   shrink      the victim is killed; the others are told so, shrink the communicator without it (with abort) and
 *               exchange in the new one; then the new one's rank 0 is killed, and the last two do it again
 *   nonblock    the same, without blocking
 *   revoke      the same, but that the others revoke the communicator and shrink it without abort
 *   split       all but the victim split the communicator; the victim is killed instead
 *   meet        all but the victim and rank 3 shrink it without rank 3; the victim, whom they wait for, is killed
 *   orphans     rank 0 is killed, and with it the hub; all others but the victim shrink the communicator without rank 0.
 *               The victim is killed: nobody is left who could tell that, so the deadline of connecting does
 *   grow        a fifth rank is announced; the victim is killed instead of growing
 *
 * Survivors have as many descriptors and threads as before when all is over. A JSON line of each says how long it took.
 */
#include "comm_util.h"

enum { N = 4, ROOM = 100000, ROUNDS = 10, REDUCED = 10000 };

static struct shared {
	uint32_t rounds[N]; /* release, acquire: exchanged so far, in whatever communicator */
	uint32_t waits[N];  /* the same: is about to make the call that the victim does not make */
	uint64_t killed_ms;
} * shared;
static pid_t pids[N];
static const char *what, *transport, *folder;
static int victim;

static int is(const char *name)
{
	return strcmp(what, name) == 0;
}

/* ---- a rank ---- */

/* Rank r of the communicator gives (r + 1) times a number, which all can compute. */
static gantry_result reduce(struct node *me, uint32_t round)
{
	int64_t *in = (int64_t *)(void *)me->out, *out = (int64_t *)(void *)me->in, factor = me->n * (me->n + 1) / 2;
	gantry_result r;

	for (int64_t i = 0; i < REDUCED; i++)
		in[i] = (me->rank + 1) * (i + round);
	r = gantry_all_reduce(in, out, REDUCED, GANTRY_TYPE_INT64, GANTRY_OP_SUM, me->comm, me->stream);
	r = node_enqueued(me, r);
	if (r == GANTRY_OK)
		r = gantry_stream_sync(me->dev, me->stream);
	if (r == GANTRY_OK)
		r = gantry_comm_error(me->comm, NULL, NULL, 0);
	for (int64_t i = 0; r == GANTRY_OK && i < REDUCED; i++)
		CHECK_EQ(out[i], factor * (i + round));
	return r;
}

/* Until it fails; `rounds` > 0: so many. */
static gantry_result exchange(struct node *me, int self, uint32_t rounds)
{
	static const size_t sizes[] = {100, 4000, ROOM};
	gantry_result r = GANTRY_OK;

	for (uint32_t i = 0; r == GANTRY_OK && (!rounds || i < rounds); i++) {
		r = node_exchange(me, i % 2 ? me->n - 1 : 1, sizes[i / 2 % 3], i);
		if (r == GANTRY_OK && i % 3 == 2)
			r = reduce(me, i);
		fetch_add_release(&shared->rounds[self], r == GANTRY_OK);
		sleep_ms(1);
	}
	return r;
}

static gantry_result poll_error(struct gantry_comm *comm)
{
	gantry_result r;
	uint64_t began;

	do {
		began = now_ms();
		r = gantry_comm_error(comm, NULL, NULL, 0);
		CHECK(now_ms() - began < 1000); /* it never waits */
		sleep_ms(1);
	} while (r == GANTRY_AGAIN);
	return r;
}

/* Without that rank; the buffers are large enough. */
static void shrink_node(struct node *me, int without)
{
	struct gantry_comm_config config = GANTRY_COMM_CONFIG_INIT;
	struct gantry_comm *next = NULL;
	gantry_result r;

	config.transport = transport;
	config.nonblocking = is("nonblock");
	if (is("revoke"))
		CHECK_OK(gantry_comm_revoke(me->comm));
	r = gantry_comm_shrink(me->comm, &without, 1, !is("revoke"), &config, &next);
	if (config.nonblocking) {
		CHECK_EQ(r, GANTRY_AGAIN);
		r = poll_error(next);
	}
	if (r != GANTRY_OK)
		fprintf(stderr, "rank %d: %s\n", me->rank, gantry_last_error());
	CHECK_OK(r);
	gantry_comm_destroy(me->comm);
	me->comm = next;
	me->rank -= me->rank > without;
	me->n--;
	CHECK_EQ(gantry_comm_rank(next), me->rank);
	CHECK_EQ(gantry_comm_size(next), me->n);
}

/* The error that the rank's death is. */
static void check_death(struct node *me, gantry_result r, int dead)
{
	char text[256];
	int about = -2;

	CHECK_EQ(gantry_comm_error(me->comm, &about, text, sizeof(text)), r);
	if (about != dead)
		fprintf(stderr, "rank %d: %s about rank %d: %s\n", me->rank, gantry_result_name(r), about, text);
	CHECK(r == GANTRY_ERR_PEER_LOST || r == GANTRY_ERR_PEER_CLOSED || r == GANTRY_ERR_PEER_SILENT);
	CHECK_EQ(about, dead);
}

static void survive(struct node *me, int self)
{
	uint64_t began, took;

	check_death(me, exchange(me, self, 0), victim);
	began = now_ms();
	shrink_node(me, victim);
	took = now_ms() - began;
	check_death(me, exchange(me, self, 0), 0); /* the new one's rank 0 is killed */
	shrink_node(me, 0);
	CHECK_OK(exchange(me, self, ROUNDS));
	printf("{\"case\": \"%s\", \"victim\": %d, \"transport\": \"%s\", \"rank\": %d, \"shrink_ms\": %llu}\n", what,
	       victim, transport, self, (unsigned long long)took);
}

/* The call that the victim does not make fails, and names it; within the deadline of connecting, and in most cases soon. */
static void miss_it(struct node *me, int self)
{
	uint64_t limit = gantry_params()->connect_timeout / 1000000, timeout = gantry_params()->timeout / 1000000;
	struct gantry_comm *next = NULL;
	struct gantry_unique_id id;
	int without = 3;
	gantry_result r;
	char name[32];
	int64_t took;

	if (is("orphans")) {
		check_death(me, exchange(me, self, 0), 0);
		without = 0;
	}
	store_release(&shared->waits[self], 1);
	if (is("grow") && self == 1)
		CHECK_OK(gantry_comm_grow_id(me->comm, &id));
	if (is("split"))
		r = gantry_comm_split(me->comm, 0, 0, NULL, &next);
	else if (is("grow"))
		r = gantry_comm_grow(me->comm, N + 1, self == 1 ? &id : NULL, -1, NULL, &next);
	else
		r = gantry_comm_shrink(me->comm, &without, 1, 1, NULL, &next);
	took = (int64_t)(now_ms() - load_acquire(&shared->killed_ms));
	printf("{\"case\": \"%s\", \"victim\": %d, \"transport\": \"%s\", \"rank\": %d, \"result\": \"%s\", \"ms\": "
	       "%lld, "
	       "\"text\": \"%s\"}\n",
	       what, victim, transport, self, gantry_result_name(r), (long long)took, gantry_last_error());
	CHECK(r != GANTRY_OK && r != GANTRY_AGAIN && next == NULL);
	/* Without a control plane it is known by its number in the new one, or as the one that does not serve it. */
	snprintf(name, sizeof(name),
		 !is("orphans") ? "rank %d"
		 : victim == 1	? "root is rank %d"
				: "missing: rank %d",
		 is("orphans") && victim > 1 ? victim - 1 : victim);
	CHECK_HAS(gantry_last_error(), name);
	if (is("orphans"))
		CHECK_HAS(gantry_last_error(), "consists of ranks 1-3 of communicator");
	/* CTL_ANSWER_NS: the hub has a second to say who is missing. */
	CHECK(took < (int64_t)(is("orphans") ? limit + 1000 : 0) + (int64_t)pair_silence_ms(timeout));
	gantry_comm_destroy(me->comm);
	me->comm = NULL;
}

static void *nothing(void *arg)
{
	return arg;
}

static void be_rank(int rank)
{
	pthread_t first; /* with it a sanitizer starts one of its own */
	int fds = pair_fds(), threads, bystander = is("meet") && rank == 3;
	struct gantry_unique_id id;
	struct node me;

	alarm(PAIR_ALARM_S);
	if (SANITIZED) {
		threads_start(&first, 1, nothing, NULL, 0);
		threads_join(&first, 1);
		sleep_ms(200); /* it is listed for a moment still */
	}
	threads = pair_threads();
	id_meet(folder, "world", rank == 0, &id);
	node_open(&me, &id, rank, N, transport, 0, ROOM);
	if (is("shrink") || is("nonblock") || is("revoke")) {
		survive(&me, rank);
	} else {
		CHECK_OK(exchange(&me, rank, ROUNDS));
		if (rank == victim || bystander || (is("orphans") && rank == 0)) {
			store_release(&shared->waits[rank], 1);
			while (!bystander || !load_acquire(&shared->killed_ms))
				sleep_ms(5);
		} else {
			miss_it(&me, rank);
		}
	}
	node_close(&me);
	settle(fds, threads, "at the end");
}

/* ---- the parent ---- */

static void end_with(const char *why, int rank)
{
	fprintf(stderr, "rank %d: %s\n", rank, why);
	for (int i = 0; i < N; i++)
		kill(pids[i], SIGKILL);
	exit(1);
}

/* Until all of `who` (bits) have counted so far. */
static void until(const uint32_t *counters, uint32_t count, unsigned who, const char *why)
{
	uint64_t limit = now_ms() + PAIR_PATIENCE_MS;
	int status;

	for (int i = 0; i < N; i++) {
		while (who >> i & 1 && load_acquire(&counters[i]) < count) {
			if (waitpid(pids[i], &status, WNOHANG) != 0 || now_ms() > limit)
				end_with(why, i);
			sleep_ms(1);
		}
	}
}

static void kill_rank(int rank, unsigned *alive)
{
	store_release(&shared->killed_ms, now_ms());
	CHECK_EQ(kill(pids[rank], SIGKILL), 0);
	*alive &= ~(1u << rank);
}

/* Those of `who` have exchanged so many rounds more than now. */
static void until_rounds(unsigned who)
{
	uint32_t most = 0;

	for (int i = 0; i < N; i++) {
		uint32_t n = load_acquire(&shared->rounds[i]);

		most = n > most ? n : most;
	}
	until(shared->rounds, most + ROUNDS, who, "does not go on");
}

int main(int argc, char **argv)
{
	unsigned alive = (1u << N) - 1;
	int wrong = 0;

	CHECK_EQ(argc, 5);
	what = argv[1];
	victim = atoi(argv[2]);
	transport = argv[3];
	folder = argv[4];
	CHECK(victim >= 0 && victim < N);
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK_OK(gantry_params_load(0));
	shared = share_memory(sizeof(*shared));
	ranks_fork(N, be_rank, pids);
	until(shared->rounds, ROUNDS, alive, "does not begin");
	if (is("shrink") || is("nonblock") || is("revoke")) {
		kill_rank(victim, &alive);
		until_rounds(alive);
		kill_rank(victim == 0, &alive); /* the first of those that are left */
	} else {
		if (is("orphans")) {
			until(shared->waits, 1, 1u | 1u << victim, "does not come");
			kill_rank(0, &alive);
		}
		until(shared->waits, 1, alive, "does not come");
		sleep_ms(100); /* they wait in the call */
		kill_rank(victim, &alive);
	}
	for (int i = 0; i < N; i++)
		wrong |= pair_reap(pids[i], alive >> i & 1 ? 0 : SIGKILL);
	return wrong;
}
