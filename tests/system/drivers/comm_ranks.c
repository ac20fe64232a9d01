/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_ranks CASE VICTIM TRANSPORT FOLDER [NETNS [COMMAND]]: four processes, one rank each, that exchange messages in a
 * loop. The id travels through a file in FOLDER. NETNS: rank i runs in the network namespace of that name followed by
 * i. Then something happens to the victim:
 *
 *   kill, stop     it gets SIGKILL or SIGSTOP
 *   command        COMMAND is run, which cuts it off
 *   abort          it aborts and destroys its communicator; its process lives on
 *   missing        it lives, but does not make its next call until two deadlines (GANTRY_TIMEOUT) later
 *   missing_first  it does not even make its first one
 *
 * Meanwhile the survivors, as the ranks of a second communicator and in threads of their own, go on exchanging. JSON
 * lines say what every survivor was told about the victim, when its stream was free and when its communicator was gone;
 * times in milliseconds since the act.
 */
#include "comm_util.h"

enum {
	N = 4,
	ROOM = 1 << 20,
	ROUNDS_BEFORE = 20,
};

struct report {
	uint32_t rounds, side_rounds;	    /* release, acquire */
	uint32_t done;			    /* the same: the first communicator is gone, what follows is written */
	gantry_result error, call, destroy; /* what gantry_comm_error says; what the call and destroy returned */
	int error_rank;
	uint64_t error_ms, sync_ms, destroyed_ms;
	uint64_t side_gap_ms; /* the longest between two rounds of the second communicator */
	char text[256];
};
static struct shared {
	uint32_t hold, abort, end; /* release, acquire: the victim makes no calls; it aborts; it is over */
	struct report r[N];
} * shared;
static pid_t pids[N];
static const char *what, *transport, *folder, *netns;
static int victim, rank_here = -1;
static uint64_t timeout_ms; /* all limits follow from it */

static int deadly(void)
{
	return strncmp(what, "missing", 7) != 0;
}

/* ---- a rank ---- */

struct watcher {
	struct gantry_comm *comm;
	struct report *r;
	uint32_t stop;
};

/* The error as a thread sees it that does not wait for a transfer. */
static void *watch_error(void *arg)
{
	struct watcher *w = arg;

	while (!load_acquire(&w->stop)) {
		if (rank_here == victim && load_acquire(&shared->abort))
			CHECK_OK(gantry_comm_abort(w->comm));
		w->r->error = gantry_comm_error(w->comm, &w->r->error_rank, w->r->text, sizeof(w->r->text));
		if (w->r->error != GANTRY_OK) {
			w->r->error_ms = now_ms();
			break;
		}
		sleep_ms(2);
	}
	return NULL;
}

/* The survivors' own communicator. Each message carries whether its sender would like to end; all see the same votes.
 */
static void *side_main(void *arg)
{
	struct report *r = arg;
	int me = rank_here - (rank_here > victim), want = 0, all = 0;
	uint64_t last = 0, now;
	struct gantry_unique_id id;
	struct node side;

	id_meet(folder, "side", me == 0, &id);
	node_open(&side, &id, me, N - 1, transport, 0, 70000);
	for (uint32_t round = 0; !all; round++) {
		static const size_t sizes[] = {8, 2000, 70000};

		CHECK_OK(node_exchange(&side, N - 2, sizes[round % 3], round));
		want = (int)load_acquire(&shared->end);
		memset(side.out, want, (size_t)(N - 1) * side.room);
		CHECK_OK(gantry_group_start());
		for (int p = 0; p < N - 1; p++) {
			if (p == me)
				continue;
			CHECK_OK(gantry_send(side.out, 1, GANTRY_TYPE_UINT8, p, side.comm, side.stream));
			CHECK_OK(gantry_recv(side.in + p, 1, GANTRY_TYPE_UINT8, p, side.comm, side.stream));
		}
		CHECK_OK(gantry_group_end());
		CHECK_OK(gantry_stream_sync(side.dev, side.stream));
		side.in[me] = (uint8_t)want;
		all = side.in[0] & side.in[1] & side.in[2];
		now = now_ms();
		if (last && now - last > r->side_gap_ms)
			r->side_gap_ms = now - last;
		last = now;
		store_release(&r->side_rounds, round + 1);
		sleep_ms(3);
	}
	CHECK_OK(gantry_comm_error(side.comm, NULL, NULL, 0));
	CHECK_OK(node_close(&side));
	return NULL;
}

/* Rings and exchanges of all with all, in turn. Ends with the first error, or when all are told to end. */
static void exchange_loop(struct node *me, struct report *r)
{
	static const size_t sizes[] = {100, 4000, 30000, ROOM};
	uint32_t round = 0;

	for (; r->call == GANTRY_OK; round++) {
		if (rank_here == victim && !deadly() && round == (strcmp(what, "missing") == 0 ? ROUNDS_BEFORE : 0))
			while (load_acquire(&shared->hold))
				sleep_ms(2);
		if (!deadly() && round == 2 * ROUNDS_BEFORE)
			break;
		r->call = node_exchange(me, round % 2 ? N - 1 : 1, sizes[round / 2 % 4], round);
		store_release(&r->rounds, round + (r->call == GANTRY_OK));
		sleep_ms(1);
	}
}

static void be_rank(int rank)
{
	struct report *r = &shared->r[rank];
	struct watcher w = {.r = r};
	struct gantry_unique_id id;
	pthread_t side, watcher;
	gantry_result synced;
	struct node me;
	char name[64];

	rank_here = rank;
	snprintf(name, sizeof(name), "%s%d", netns ? netns : "", rank);
	if (netns)
		enter_netns(name);
	id_meet(folder, "world", rank == 0, &id);
	node_open(&me, &id, rank, N, transport, 0, ROOM);
	if (rank != victim)
		CHECK_EQ(pthread_create(&side, NULL, side_main, r), 0);
	w.comm = me.comm;
	CHECK_EQ(pthread_create(&watcher, NULL, watch_error, &w), 0);
	exchange_loop(&me, r);
	/* Whatever the call returned, nothing waits for the dead: what was in flight is done, or the stream returns the error. */
	synced = gantry_stream_sync(me.dev, me.stream);
	CHECK(synced == GANTRY_OK || synced == gantry_comm_error(me.comm, NULL, NULL, 0));
	r->sync_ms = now_ms();
	store_release(&w.stop, deadly() ? 0 : 1);
	pthread_join(watcher, NULL);
	r->destroy = gantry_comm_destroy(me.comm);
	r->destroyed_ms = now_ms();
	me.comm = NULL;
	store_release(&r->done, 1);
	if (rank != victim)
		pthread_join(side, NULL);
	node_close(&me);
}

/* ---- the parent ---- */

/* 1: it has ended, though nobody told it to. */
static int ended(int rank)
{
	int status;

	if (waitpid(pids[rank], &status, WNOHANG) == 0)
		return 0;
	fprintf(stderr, "rank %d ended with status 0x%x\n", rank, (unsigned)status);
	return 1;
}

static void end_with(const char *why, int rank)
{
	fprintf(stderr, "rank %d: %s\n", rank, why);
	for (int i = 0; i < N; i++)
		kill(pids[i], SIGKILL);
	exit(1);
}

/* Until a rank has come so far with the one and the other. */
static void until(int rank, uint32_t rounds, uint32_t side_rounds, const char *why)
{
	uint64_t limit = now_ms() + PAIR_PATIENCE_MS;

	while (load_acquire(&shared->r[rank].rounds) < rounds ||
	       (rank != victim && load_acquire(&shared->r[rank].side_rounds) < side_rounds)) {
		if (ended(rank) || now_ms() > limit)
			end_with(why, rank);
		sleep_ms(1);
	}
}

static void act(const char *command)
{
	if (strcmp(what, "kill") == 0)
		CHECK_EQ(kill(pids[victim], SIGKILL), 0);
	else if (strcmp(what, "stop") == 0)
		CHECK_EQ(kill(pids[victim], SIGSTOP), 0);
	else if (strcmp(what, "command") == 0)
		CHECK_EQ(system(command), 0);
	else if (strcmp(what, "abort") == 0)
		store_release(&shared->abort, 1);
	else
		sleep_ms((unsigned)(2 * timeout_ms));
	store_release(&shared->hold, 0);
}

/* Which errors say what happened. */
static int fits(gantry_result r)
{
	if (strcmp(what, "kill") == 0)
		return r == GANTRY_ERR_PEER_LOST || r == GANTRY_ERR_PEER_CLOSED;
	if (strcmp(what, "stop") == 0)
		return r == GANTRY_ERR_PEER_SILENT || r == GANTRY_ERR_TIMEOUT;
	if (strcmp(what, "abort") == 0)
		return r == GANTRY_ERR_PEER_CLOSED;
	return r == GANTRY_ERR_PEER_SILENT || r == GANTRY_ERR_PEER_LOST || r == GANTRY_ERR_TIMEOUT;
}

static void print(int rank, uint64_t since)
{
	const struct report *r = &shared->r[rank];

	printf("{\"case\": \"%s\", \"transport\": \"%s\", \"victim\": %d, \"rank\": %d, \"error\": \"%s\", "
	       "\"error_rank\": %d, "
	       "\"error_ms\": %lld, \"sync_ms\": %lld, \"destroy_ms\": %lld, \"destroy\": \"%s\", \"rounds\": %u, "
	       "\"side_rounds\": %u, \"side_gap_ms\": %llu, \"text\": \"%s\"}\n",
	       what, transport, victim, rank, gantry_result_name(r->error), r->error_rank,
	       r->error_ms ? (long long)(r->error_ms - since) : -1, (long long)(r->sync_ms - since),
	       (long long)(r->destroyed_ms - r->sync_ms), gantry_result_name(r->destroy), load_acquire(&r->rounds),
	       load_acquire(&r->side_rounds), (unsigned long long)r->side_gap_ms, r->text);
}

static int survivor_is_right(int rank, uint64_t since, uint32_t side_before)
{
	const struct report *r = &shared->r[rank];
	int64_t limit = (int64_t)pair_silence_ms(timeout_ms);

	print(rank, since);
	if (!deadly())
		return r->error == GANTRY_OK && r->destroy == GANTRY_OK && r->rounds == 2 * ROUNDS_BEFORE;
	return fits(r->error) && r->error_rank == victim && r->call == r->error &&
	       (int64_t)(r->error_ms - since) <= limit && (int64_t)(r->sync_ms - since) <= limit &&
	       r->destroyed_ms - r->sync_ms <= timeout_ms / 2 && r->side_gap_ms <= timeout_ms * 3 / 4 &&
	       load_acquire(&r->side_rounds) > side_before + 10;
}

int main(int argc, char **argv)
{
	uint32_t side_before[N];
	uint64_t since, limit;
	int wrong = 0;

	CHECK(argc >= 5);
	what = argv[1];
	victim = atoi(argv[2]);
	transport = argv[3];
	folder = argv[4];
	netns = argc > 5 ? argv[5] : NULL;
	CHECK(victim >= 0 && victim < N);
	CHECK_OK(gantry_params_load(0));
	timeout_ms = gantry_params()->timeout / 1000000;
	shared = share_memory(sizeof(*shared));
	shared->hold = !deadly();
	ranks_fork(N, be_rank, pids);
	for (int i = 0; i < N; i++)
		until(i, strcmp(what, "missing_first") == 0 ? 0 : ROUNDS_BEFORE, ROUNDS_BEFORE, "does not begin");
	for (int i = 0; i < N; i++)
		side_before[i] = load_acquire(&shared->r[i].side_rounds);
	since = now_ms();
	act(argc > 6 ? argv[6] : "");
	limit = now_ms() + PAIR_PATIENCE_MS + 3 * timeout_ms;
	for (int i = 0; i < N; i++)
		while (i != victim && !load_acquire(&shared->r[i].done)) {
			if (ended(i) || now_ms() > limit)
				end_with("does not end its communicator", i);
			sleep_ms(1);
		}
	for (int i = 0; i < N; i++)
		if (i != victim)
			until(i, 0, load_acquire(&shared->r[i].side_rounds) + 20,
			      "its second communicator stands still");
	store_release(&shared->end, 1);
	if (strcmp(what, "stop") == 0)
		kill(pids[victim], SIGKILL);
	for (int i = 0; i < N; i++) {
		if (pair_reap(pids[i], i == victim ? SIGKILL : 0))
			wrong = 1;
		if (i != victim && !survivor_is_right(i, since, side_before[i])) {
			fprintf(stderr, "rank %d: not as it should be\n", i);
			wrong = 1;
		}
	}
	if (strcmp(what, "command") == 0 || strcmp(what, "abort") == 0)
		print(victim, since);
	return wrong;
}
