/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_boot threads|processes RANKS [VICTIM MS]: a communicator of many ranks over net starts, all-reduces and ends. A JSON
 * line says what that took, and what the root carried until all had started.
 *
 * With a victim (processes): it is killed so many milliseconds after its first step, wherever it is then; or, if they are
 * negative, it joins and dies while the others exchange what they know of each other. They must all end in time, with an
 * error that names it.
 */
#include "comm_util.h"
#include "ctl/hub_priv.h"

enum { RANKS_MAX = 1024, COUNT = 3 };

struct shared {
	struct gantry_unique_id id;
	uint32_t has_id;  /* release, acquire */
	uint32_t started; /* ranks; atomic */
	uint32_t go;	  /* the victim has begun; without one: the root was looked at */
	uint64_t killed;  /* ms; 0: not yet */
	uint64_t in, out; /* bytes of the root */
	uint64_t init_ms[RANKS_MAX], reduce_ms[RANKS_MAX], end_ms[RANKS_MAX];
	gantry_result result[RANKS_MAX];
	char text[RANKS_MAX][400];
};
static struct shared *sh;
static int ranks, victim = -1;

/* When all have started, and before any connects. */
static void read_root(int rank)
{
	const struct hub *hub;

	while (rank ? !load_acquire(&sh->go) : load_relaxed(&sh->started) < (uint32_t)ranks)
		sleep_ms(1);
	if (rank)
		return;
	inet_loop_lock();
	hub = hub_find(gantry_ctl_comm_id(&sh->id));
	CHECK(hub != NULL);
	sh->in = hub->traffic.in;
	sh->out = hub->traffic.out;
	inet_loop_unlock();
	store_release(&sh->go, 1);
}

static gantry_result reduce(struct node *me)
{
	int64_t *in = (int64_t *)me->out, *out = (int64_t *)me->in, n = ranks;

	for (int i = 0; i < COUNT; i++)
		in[i] = me->rank + i;
	TRY_NOW(gantry_all_reduce(in, out, COUNT, GANTRY_TYPE_INT64, GANTRY_OP_SUM, me->comm, me->stream));
	TRY_NOW(gantry_stream_sync(me->dev, me->stream));
	TRY_NOW(gantry_comm_error(me->comm, NULL, NULL, 0));
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(out[i], n * (n - 1) / 2 + n * i);
	return GANTRY_OK;
}

/* What the rank says at its end. */
static void note(int rank, gantry_result r, struct gantry_comm *comm)
{
	char *text = sh->text[rank];

	sh->result[rank] = r;
	if (r == GANTRY_OK)
		return;
	if (!comm || gantry_comm_error(comm, NULL, text, sizeof(sh->text[0])) == GANTRY_OK)
		snprintf(text, sizeof(sh->text[0]), "%s", gantry_last_error());
}

static void *rank_main(void *arg)
{
	int rank = (int)(intptr_t)arg;
	uint64_t began = now_ms();
	struct node me;
	gantry_result r;

	if (rank == victim)
		store_release(&sh->go, 1);
	r = node_try_open(&me, &sh->id, rank, ranks, "net", 0, COUNT * sizeof(int64_t));
	sh->init_ms[rank] = now_ms() - began;
	fetch_add_relaxed(&sh->started, 1);
	if (victim < 0 && r == GANTRY_OK)
		read_root(rank);
	began = now_ms();
	if (r == GANTRY_OK)
		r = reduce(&me);
	/* Where the start was through before the kill, the next ones find it. */
	while (r == GANTRY_OK && victim >= 0 && now_ms() - began < PAIR_PATIENCE_MS)
		r = reduce(&me);
	sh->reduce_ms[rank] = now_ms() - began;
	note(rank, r, me.comm);
	sh->end_ms[rank] = now_ms();
	r = node_close(&me);
	CHECK(victim >= 0 || r == GANTRY_OK);
	return NULL;
}

/* Comes, as the others do, and then no further. */
static void die_in_exchange(int rank)
{
	struct gantry_ctl_config config = {.id = &sh->id, .rank = rank, .nranks = ranks, .listens = 1};
	struct gantry_ctl *ctl;

	CHECK_OK(gantry_ctl_join(&config, &ctl));
	sleep_ms(100);
	sh->killed = now_ms();
	raise(SIGKILL);
}

static void process_main(int rank, int after_ms)
{
	alarm(PAIR_ALARM_S);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (rank == 0) {
		CHECK_OK(gantry_unique_id_create(&sh->id));
		store_release(&sh->has_id, 1);
	}
	UNTIL(load_acquire(&sh->has_id));
	if (rank == victim && after_ms < 0)
		die_in_exchange(rank);
	rank_main((void *)(intptr_t)rank);
	exit(0);
}

static void run_processes(int after_ms)
{
	pid_t pids[RANKS_MAX];
	int status;

	for (int i = 0; i < ranks; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		if (!pids[i])
			process_main(i, after_ms);
	}
	if (victim >= 0 && after_ms >= 0) {
		UNTIL(load_acquire(&sh->go));
		sleep_ms(after_ms);
		sh->killed = now_ms();
		kill(pids[victim], SIGKILL);
	}
	for (int i = 0; i < ranks; i++) {
		CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
		CHECK(i == victim ? WIFSIGNALED(status) : status == 0);
	}
}

/* A busy machine: the rank came when the root, with its rank, had ended because of the victim. It can know of nothing else. */
static bool came_too_late(int rank)
{
	return rank && sh->end_ms[0] <= sh->end_ms[rank] &&
	       strstr(sh->text[rank], "no connection to the bootstrap root at");
}

/* "missing: rank 3", or on a busy machine, where others are late too, "missing: ranks 3, 11". */
static bool named_as_missing(const char *text)
{
	const char *at = strstr(text, "missing: rank");

	for (at = at ? at + strcspn(at, "0123456789") : ""; *at; at += strspn(at, ", ")) {
		char *end;
		long rank = strtol(at, &end, 10);

		if (end == at || rank == victim)
			return end != at;
		at = end;
	}
	return false;
}

/* Of all survivors, in time. Of the rank with the hub it may be said by what the hub is. */
static void check_named(void)
{
	char name[32];
	uint64_t latest = 0;

	snprintf(name, sizeof(name), "rank %d ", victim);
	for (int i = 0; i < ranks; i++) {
		if (i == victim)
			continue;
		CASE("rank %d: %s: %s", i, gantry_result_name(sh->result[i]), sh->text[i]);
		CHECK(sh->result[i] != GANTRY_OK);
		CHECK(strstr(sh->text[i], name) || named_as_missing(sh->text[i]) ||
		      (!victim && strstr(sh->text[i], "bootstrap root at")) || came_too_late(i));
		latest = sh->end_ms[i] > latest ? sh->end_ms[i] : latest;
	}
	printf("{\"ranks\": %d, \"victim\": %d, \"noticed_ms\": %lld, \"text\": \"%s\"}\n", ranks, victim,
	       (long long)(latest - sh->killed), sh->text[victim ? 0 : 1]);
	CHECK(latest < sh->killed + pair_silence_ms(gantry_params()->connect_timeout / 1000000));
}

static uint64_t most(const uint64_t *of)
{
	uint64_t m = 0;

	for (int i = 0; i < ranks; i++)
		m = of[i] > m ? of[i] : m;
	return m;
}

int main(int argc, char **argv)
{
	int fds, before = pair_threads();
	uint64_t began = now_ms();

	CHECK(argc == 3 || argc == 5);
	sh = share_memory(sizeof(*sh));
	fds = pair_fds();
	ranks = atoi(argv[2]);
	CHECK(ranks > 1 && ranks <= RANKS_MAX);
	node_raise_limits();
	if (argc == 5)
		victim = atoi(argv[3]);
	if (strcmp(argv[1], "threads") == 0) {
		CHECK_OK(gantry_unique_id_create(&sh->id));
		ranks_thread(ranks, rank_main);
		settle(fds, before, "at the end");
	} else {
		run_processes(argc == 5 ? atoi(argv[4]) : 0);
	}
	if (victim >= 0) {
		CHECK_OK(gantry_params_load(0));
		check_named();
		return 0;
	}
	for (int i = 0; i < ranks; i++)
		CHECK_OK(sh->result[i]);
	printf("{\"how\": \"%s\", \"ranks\": %d, \"init_ms\": %llu, \"reduce_ms\": %llu, \"all_ms\": %llu, "
	       "\"root_in\": %llu, "
	       "\"root_out\": %llu}\n",
	       argv[1], ranks, (unsigned long long)most(sh->init_ms), (unsigned long long)most(sh->reduce_ms),
	       (unsigned long long)(now_ms() - began), (unsigned long long)sh->in, (unsigned long long)sh->out);
	return 0;
}
