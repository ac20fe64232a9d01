/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_death MODE [RANK]: four processes, one rank each, joined by the control plane; the hub is in rank 0's. Then:
 *
 *   kill R    rank R gets SIGKILL
 *   stop R    rank R gets SIGSTOP, and SIGCONT once the others have seen it
 *   nap R     rank R is stopped for half the timeout: that is no death
 *   nap_all   all are stopped for two timeouts and woken up one by one: nor is that
 *   hogs      nothing happens, but all CPUs are busy: nor is that
 *   leave     rank 0 leaves and its process ends, and with it the hub: the others go on
 *   quit      rank 0's process ends without leaving
 *   parent    the hub is in the parent of all, made before the fork, and the parent ends: nobody is lost but the hub
 *
 * Every rank writes down whom it was told to have lost, why and when; the parent compares.
 */
#include "pair.h"

#include "ctl/ctl.h"

enum { N = 4, LOSSES = 8 };

struct report {
	uint32_t joined, ready_to_end; /* release, acquire */
	int nlost;		       /* the same */
	int rank[LOSSES];
	gantry_result why[LOSSES];
	uint64_t when[LOSSES]; /* ns */
	char text[LOSSES][256];
	int64_t clock_offset;
};
static struct shared {
	struct gantry_unique_id id;
	uint32_t have_id, end; /* release, acquire */
	struct report r[N];
} * shared;
static pid_t pids[N];
static unsigned timeout_ms;

static void on_lost(void *ctx, int rank, gantry_result why, const char *text)
{
	struct report *r = ctx;
	int n = r->nlost;

	CHECK(n < LOSSES);
	r->rank[n] = rank;
	r->why[n] = why;
	r->when[n] = gantry_now_ns();
	snprintf(r->text[n], sizeof(r->text[n]), "%s", text);
	store_release(&r->nlost, n + 1);
}

static void be_rank(int rank, const char *mode)
{
	struct report *r = &shared->r[rank];
	struct gantry_ctl_config config = {.id = &shared->id, .rank = rank, .nranks = N, .on_lost = on_lost, .ctx = r};
	struct gantry_ctl *ctl;
	int first = rank == 0 && (strcmp(mode, "leave") == 0 || strcmp(mode, "quit") == 0);
	int all[N], me = rank * 11;

	if (rank == 0 && !load_acquire(&shared->have_id)) {
		CHECK_OK(gantry_ctl_create_id(&shared->id));
		store_release(&shared->have_id, 1);
	}
	while (!load_acquire(&shared->have_id))
		sleep_ms(1);
	CHECK_OK(gantry_ctl_join(&config, &ctl));
	CHECK_OK(gantry_ctl_allgather(ctl, &me, sizeof(me), all));
	for (int i = 0; i < N; i++)
		CHECK_EQ(all[i], i * 11);
	r->clock_offset = gantry_ctl_clock_offset(ctl);
	store_release(&r->joined, 1);
	while (!load_acquire(&shared->end) && !(first && load_acquire(&r->ready_to_end)))
		sleep_ms(1);
	if (strcmp(mode, "quit") != 0 || rank != 0)
		gantry_ctl_leave(ctl);
	exit(0); /* not _exit: the library sees its connections off */
}

static void start(int rank, const char *mode)
{
	pids[rank] = pair_child();
	if (pids[rank] == 0) {
		if (strcmp(mode, "parent") == 0)
			prctl(PR_SET_PDEATHSIG, 0); /* its end is the case */
		be_rank(rank, mode);
	}
}

static void until_joined(void)
{
	for (int i = 0; i < N; i++)
		for (int ms = 0; !load_acquire(&shared->r[i].joined); ms++) {
			CHECK(ms < PAIR_PATIENCE_MS);
			CHECK_EQ(waitpid(pids[i], NULL, WNOHANG), 0);
			sleep_ms(1);
		}
	for (int i = 0; i < N; i++) { /* one kernel, one clock: the truth is zero */
		printf("rank %d: clock offset %.1f us\n", i, (double)shared->r[i].clock_offset / 1e3);
		/* A sample is wrong by half of its way there and back at most: that is long only on a loaded machine.
		 */
		CHECK(llabs(shared->r[i].clock_offset) < (int64_t)timeout_ms * 1000000 / 50);
	}
}

static int nlost(int rank)
{
	return load_acquire(&shared->r[rank].nlost);
}

/* `rank` was told of exactly `lost`, for this reason, within limit_ms of `since`. */
static void must_know(int rank, int lost, gantry_result why, uint64_t since, unsigned limit_ms)
{
	const struct report *r = &shared->r[rank];
	uint64_t end = gantry_now_ns() + (timeout_ms + PAIR_PATIENCE_MS) * 1000000ull;

	while (!nlost(rank) && gantry_now_ns() < end)
		sleep_ms(1);
	CHECK_EQ(nlost(rank), 1);
	printf("rank %d after %d ms: lost %d, %s: %s\n", rank, (int)((int64_t)(r->when[0] - since) / 1000000),
	       r->rank[0], gantry_result_name(r->why[0]), r->text[0]);
	CHECK_EQ(r->rank[0], lost);
	CHECK_STR(gantry_result_name(r->why[0]), gantry_result_name(why));
	CHECK((int64_t)(r->when[0] - since) < (int64_t)limit_ms * 1000000);
}

static void nobody_lost(void)
{
	for (int i = 0; i < N; i++) {
		if (nlost(i))
			fprintf(stderr, "rank %d lost rank %d: %s\n", i, shared->r[i].rank[0], shared->r[i].text[0]);
		CHECK_EQ(nlost(i), 0);
	}
}

static void reap(int but)
{
	store_release(&shared->end, 1);
	for (int i = 0; i < N; i++) {
		int status = -1;

		if (i == but)
			continue;
		CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
		CHECK_EQ(status, 0);
	}
}

static void run_kill(int victim)
{
	uint64_t since = gantry_now_ns();

	CHECK_EQ(kill(pids[victim], SIGKILL), 0);
	for (int i = 0; i < N; i++)
		if (i != victim)
			must_know(i, victim, GANTRY_ERR_PEER_LOST, since, timeout_ms / 2);
	waitpid(pids[victim], NULL, 0);
	reap(victim);
}

static void run_stop(int victim)
{
	uint64_t since = gantry_now_ns();
	const struct report *r = &shared->r[victim];

	CHECK_EQ(kill(pids[victim], SIGSTOP), 0);
	for (int i = 0; i < N; i++)
		if (i != victim)
			must_know(i, victim, GANTRY_ERR_PEER_SILENT, since, (unsigned)pair_silence_ms(timeout_ms));
	sleep_ms(timeout_ms * 3 / 2);
	CHECK_EQ(kill(pids[victim], SIGCONT), 0);
	since = gantry_now_ns();
	if (victim == 0) { /* the hub: the others have said why they went */
		while (nlost(0) < N - 1 && gantry_now_ns() - since < PAIR_PATIENCE_MS * 1000000ull)
			sleep_ms(1);
		CHECK_EQ(nlost(0), N - 1);
		for (int i = 0; i < N - 1; i++) {
			printf("rank 0, woken up: %s: %s\n", gantry_result_name(r->why[i]), r->text[i]);
			CHECK_EQ(r->why[i], GANTRY_ERR_PEER_LOST);
			CHECK_HAS(r->text[i], "gave up on the bootstrap root");
		}
	} else { /* it learns that it was given up, and blames nobody else */
		must_know(victim, victim, GANTRY_ERR_PEER_SILENT, since, PAIR_PATIENCE_MS);
	}
	reap(-1);
}

static void run_nap(int victim)
{
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(kill(pids[victim], SIGSTOP), 0);
		sleep_ms(timeout_ms / 2);
		CHECK_EQ(kill(pids[victim], SIGCONT), 0);
		sleep_ms(timeout_ms / 5);
	}
	nobody_lost();
	reap(-1);
}

static void run_nap_all(void)
{
	for (int i = 0; i < N; i++)
		CHECK_EQ(kill(pids[i], SIGSTOP), 0);
	sleep_ms(2 * timeout_ms);
	for (int i = N - 1; i >= 0; i--) {
		CHECK_EQ(kill(pids[i], SIGCONT), 0);
		sleep_ms(timeout_ms / 20);
	}
	sleep_ms(timeout_ms * 3 / 2);
	nobody_lost();
	reap(-1);
}

static void run_hogs(void)
{
	pid_t hogs[8];

	for (int i = 0; i < 8; i++) {
		hogs[i] = fork();
		CHECK(hogs[i] >= 0);
		for (volatile uint64_t k = 0; hogs[i] == 0; k++)
			;
	}
	sleep_ms(timeout_ms * 7 / 2);
	for (int i = 0; i < 8; i++) {
		kill(hogs[i], SIGKILL);
		waitpid(hogs[i], NULL, 0);
	}
	nobody_lost();
	reap(-1);
}

static void run_exit(int properly)
{
	uint64_t since = gantry_now_ns();
	int status = -1;

	store_release(&shared->r[0].ready_to_end, 1);
	CHECK_EQ(waitpid(pids[0], &status, 0), pids[0]);
	CHECK_EQ(status, 0);
	if (properly)
		sleep_ms(timeout_ms * 3 / 2);
	for (int i = 1; i < N; i++) {
		if (properly)
			CHECK_EQ(nlost(i), 0);
		else
			must_know(i, 0, GANTRY_ERR_PEER_LOST, since, timeout_ms / 2);
	}
	reap(0);
}

/* In a process of its own, which ends when all ranks are there. */
static void run_parent(void)
{
	uint64_t since = gantry_now_ns();
	pid_t hub = fork();

	CHECK(hub >= 0);
	if (hub == 0) {
		CHECK_OK(gantry_ctl_create_id(&shared->id));
		store_release(&shared->have_id, 1);
		for (int i = 0; i < N; i++)
			start(i, "parent");
		until_joined();
		nobody_lost();
		raise(SIGKILL);
	}
	CHECK_EQ(waitpid(hub, NULL, 0), hub);
	for (int i = 0; i < N; i++)
		must_know(i, -1, GANTRY_ERR_PEER_LOST, since, timeout_ms);
	store_release(&shared->end, 1);
	sleep_ms(200); /* orphans: nobody to wait for them */
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int rank = argc > 2 ? atoi(argv[2]) : 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK_OK(gantry_params_load(0));
	timeout_ms = (unsigned)(gantry_params()->timeout / 1000000);
	shared = share_memory(sizeof(*shared));
	CHECK(rank >= 0 && rank < N);
	if (strcmp(mode, "parent") == 0) {
		run_parent();
		return 0;
	}
	for (int i = 0; i < N; i++)
		start(i, mode);
	until_joined();
	sleep_ms(300);
	if (strcmp(mode, "kill") == 0)
		run_kill(rank);
	else if (strcmp(mode, "stop") == 0)
		run_stop(rank);
	else if (strcmp(mode, "nap") == 0)
		run_nap(rank);
	else if (strcmp(mode, "nap_all") == 0)
		run_nap_all();
	else if (strcmp(mode, "hogs") == 0)
		run_hogs();
	else if (strcmp(mode, "leave") == 0 || strcmp(mode, "quit") == 0)
		run_exit(strcmp(mode, "leave") == 0);
	else
		CHECK(!"a mode");
	return 0;
}
