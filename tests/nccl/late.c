/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late CASE HOW [RANK]: four ranks of NCCL's API, of which one (2, unless RANK says another) does not make a call that the
 * others have made. It makes it later, or is killed, or stopped; LATE_S in the environment says after how many seconds, from
 * when all others are about to call.
 *
 *   late      it calls: nothing fails, and every result is right
 *   dead      it is killed: the others get an error that names it, within LIMIT_S seconds of that
 *   stopped   the same with SIGSTOP
 *
 *   init      ncclCommInitRank (late only: a rank that was never there has no name)
 *   coll      the first collectives of a communicator, by whatever GANTRY_ALGO says
 *   sendrecv  the first send and receive
 *   split, shrink, grow, window, finalize, destroy
 *
 * HOSTS in the environment: so many hosts for the ranks to be on.
 */
#include "use.h"

#include <sys/prctl.h>
#include <time.h>

enum { N = 4, MANY = 50000 };
static const char *what, *how;
static int odd = 2;
static double late_s, limit_s;

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int is_case(const char *name)
{
	return strcmp(what, name) == 0;
}

/* ---- where the odd rank is late ---- */

static double *odd_at;	/* shared: when it was killed or stopped */
static uint32_t *ended; /* shared, atomic: others that have their error */

/* All ranks, before the call. The odd one goes on when all others have come, and so much later. */
static void be_late(void)
{
	meet();
	if (my_rank != odd)
		return;
	usleep((useconds_t)(late_s * 1e6));
	*odd_at = now_s();
	if (strcmp(how, "dead") == 0)
		raise(SIGKILL);
	if (strcmp(how, "stopped") == 0)
		raise(SIGSTOP);
}

/* No rank ends before all others have their error: its own end would be another one. */
static void end_together(void)
{
	double until = now_s() + 30;

	__atomic_add_fetch(ended, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(ended, __ATOMIC_ACQUIRE) < N - 1 && now_s() < until)
		usleep(1000);
	_exit(0);
}

/* What a call has given that needs the odd rank. With an error this process ends, as it should. */
static void judge(int result)
{
	char name[16];

	if (strcmp(how, "late") == 0) {
		OK(result);
		return;
	}
	snprintf(name, sizeof(name), "rank %d", odd);
	if (result != REMOTE_ERROR && result != SYSTEM_ERROR)
		EQ(result, REMOTE_ERROR);
	if (!strstr(nccl.GetLastError(NULL), name) || now_s() - *odd_at > limit_s) {
		fprintf(stderr, "FAILED: %s %s: rank %d, %.1f s after rank %d was: %s\n", what, how, my_rank,
			now_s() - *odd_at, odd, nccl.GetLastError(NULL));
		_exit(1);
	}
	end_together();
}

/* ---- results: rank r gives r + 1 times a number ---- */

static int64_t *numbers(size_t n, int factor)
{
	int64_t *p = malloc(n * sizeof(*p));

	TRUE(p);
	for (size_t i = 0; i < n; i++)
		p[i] = factor * ((int64_t)i + 1);
	return p;
}

static int sum_in(comm_t comm, int n, int rank)
{
	int64_t *in = numbers(MANY, rank + 1), *out = numbers(MANY, 0);
	int r = nccl.AllReduce(in, out, MANY, INT64, SUM, comm, NULL);

	for (int64_t i = 0; r == SUCCESS && i < MANY; i++)
		EQ(out[i], n * (n + 1) / 2 * (i + 1));
	free(in);
	free(out);
	return r;
}

static int gather_in(comm_t comm)
{
	int64_t *in = numbers(MANY, my_rank + 1), *out = numbers((size_t)MANY * N, 0);
	int r = nccl.AllGather(in, out, MANY, INT64, comm, NULL);

	for (int64_t i = 0; r == SUCCESS && i < MANY * N; i++)
		EQ(out[i], (i / MANY + 1) * (i % MANY + 1));
	free(in);
	free(out);
	return r;
}

static int scatter_in(comm_t comm)
{
	int64_t *in = numbers((size_t)MANY * N, my_rank + 1), *out = numbers(MANY, 0);
	int r = nccl.ReduceScatter(in, out, MANY, INT64, SUM, comm, NULL);

	for (int64_t i = 0; r == SUCCESS && i < MANY; i++)
		EQ(out[i], N * (N + 1) / 2 * (my_rank * MANY + i + 1));
	free(in);
	free(out);
	return r;
}

static comm_t world_comm(void)
{
	struct unique_id id = next_id();
	comm_t comm = NULL;

	OK(nccl.CommInitRank(&comm, N, id, my_rank));
	return comm;
}

/* ---- the cases ---- */

static void first_sendrecv(comm_t comm)
{
	int64_t *out = numbers(MANY, my_rank + 1), *in = numbers(MANY, 0);
	int from = (my_rank + N - 1) % N;

	be_late();
	OK(nccl.GroupStart());
	OK(nccl.Send(out, MANY, INT64, (my_rank + 1) % N, comm, NULL));
	OK(nccl.Recv(in, MANY, INT64, from, comm, NULL));
	judge(nccl.GroupEnd());
	for (int64_t i = 0; i < MANY; i++)
		EQ(in[i], (from + 1) * (i + 1));
	free(in);
	free(out);
}

static void first_collectives(comm_t comm)
{
	be_late();
	judge(sum_in(comm, N, my_rank));
	OK(gather_in(comm));
	OK(scatter_in(comm));
}

static void first_window(comm_t comm)
{
	int from = (my_rank + N - 1) % N, mine[4] = {0}, in[4] = {my_rank, 1, 2, 3};
	struct wait_signal wait = {1, from, 0, 0};
	void *window = NULL;

	be_late();
	judge(nccl.CommWindowRegister(comm, mine, sizeof(mine), &window, 1));
	OK(nccl.PutSignal(in, 4, INT32, (my_rank + 1) % N, window, 0, 0, 0, 0, comm, NULL));
	OK(nccl.WaitSignal(1, &wait, comm, NULL));
	EQ(mine[0], from);
	EQ(mine[3], 3);
	OK(nccl.CommWindowDeregister(comm, window));
}

static void split_in_two(comm_t comm)
{
	comm_t half = NULL;

	be_late();
	judge(nccl.CommSplit(comm, my_rank % 2, my_rank, &half, NULL));
	OK(sum_in(half, 2, my_rank / 2));
	OK(nccl.CommDestroy(half));
}

/* Without rank 1, which may be doing anything meanwhile. */
static void shrink_by_one(comm_t comm)
{
	int gone = 1;
	comm_t rest = NULL;

	be_late();
	if (my_rank != gone) {
		judge(nccl.CommShrink(comm, &gone, 1, &rest, NULL, 0));
		OK(sum_in(rest, N - 1, my_rank - (my_rank > gone)));
		OK(nccl.CommDestroy(rest));
	} else if (strcmp(how, "late")) {
		end_together();
	}
}

/* From three ranks to four. */
static void grow_by_one(void)
{
	struct unique_id small = next_id();
	comm_t comm = NULL, grown = NULL;

	if (my_rank < N - 1)
		OK(nccl.CommInitRank(&comm, N - 1, small, my_rank));
	if (my_rank == 0)
		OK(nccl.CommGetUniqueId(comm, &world.ids[50]));
	meet();
	be_late();
	if (my_rank < N - 1)
		judge(nccl.CommGrow(comm, N, my_rank == 0 ? &world.ids[50] : NULL, -1, &grown, NULL));
	else
		judge(nccl.CommGrow(NULL, N, &world.ids[50], N - 1, &grown, NULL));
	OK(sum_in(grown, N, my_rank));
	OK(nccl.CommDestroy(grown));
	OK(nccl.CommDestroy(comm));
}

static void init_late(void)
{
	struct unique_id id = next_id();
	comm_t comm = NULL;

	be_late();
	judge(nccl.CommInitRank(&comm, N, id, my_rank));
	OK(sum_in(comm, N, my_rank));
	OK(nccl.CommDestroy(comm));
}

static void run(void)
{
	comm_t comm;

	if (is_case("init") || is_case("grow")) {
		if (is_case("init"))
			init_late();
		else
			grow_by_one();
		return;
	}
	comm = world_comm();
	if (is_case("coll"))
		first_collectives(comm);
	else if (is_case("sendrecv"))
		first_sendrecv(comm);
	else if (is_case("window"))
		first_window(comm);
	else if (is_case("split"))
		split_in_two(comm);
	else if (is_case("shrink"))
		shrink_by_one(comm);
	else
		OK(sum_in(comm, N, my_rank));
	if (is_case("finalize") || is_case("destroy"))
		be_late();
	if (is_case("finalize"))
		judge(nccl.CommFinalize(comm));
	if (is_case("destroy"))
		judge(nccl.CommDestroy(comm));
	else
		OK(nccl.CommDestroy(comm));
}

/* ---- processes ---- */

static void be_on_host(int rank)
{
	const char *hosts = getenv("HOSTS");
	char name[32];

	if (!hosts)
		return;
	snprintf(name, sizeof(name), "late-%d", rank * atoi(hosts) / N);
	setenv("GANTRY_HOST_ID", name, 1);
}

static int await_ranks(const pid_t *pids)
{
	int failed = 0, status;

	for (int i = 0; i < N; i++) {
		if (i == odd && strcmp(how, "late"))
			continue;
		while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
			;
		failed |= status != 0;
	}
	if (strcmp(how, "late")) {
		kill(pids[odd], SIGKILL);
		waitpid(pids[odd], &status, 0);
	}
	return failed;
}

int main(int argc, char **argv)
{
	char *shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[N];

	if (argc < 3 || shared == MAP_FAILED || !getenv("LATE_S"))
		return 2;
	what = argv[1];
	how = argv[2];
	odd = argc > 3 ? atoi(argv[3]) : odd;
	late_s = atof(getenv("LATE_S"));
	limit_s = getenv("LIMIT_S") ? atof(getenv("LIMIT_S")) : 0;
	use_shared(N, 0, shared);
	odd_at = (void *)(shared + (1 << 15) + 256);
	ended = (void *)(shared + (1 << 15) + 384);
	for (int i = 0; i < N; i++) {
		pids[i] = fork();
		if (pids[i])
			continue;
		alarm(250);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		be_on_host(i);
		nccl_open();
		rank_main(&(struct rank_args){i, run});
		exit(0);
	}
	return await_ranks(pids);
}
