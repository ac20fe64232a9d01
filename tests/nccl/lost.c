/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lost RANKS ROUNDS SEED kill|stop [async]: in each round one rank is killed, or stopped, at a random moment of a run of collectives.
 * What a call of another rank returns success for is right, every element; one fails; and the ranks that are left go on without it.
 * async: communicators do not block, so ncclCommGetAsyncError says when a call is done, and whether it has failed.
 */
#include "use.h"

enum { MOST = 200000, KINDS = 3 };

static int nranks, victim, lost, async;

static int element(int rank, int k, int i)
{
	return 1000 * rank + 7 * k + i % 1000;
}

static size_t count_of(int k)
{
	static const size_t counts[] = {1, 300, 5000, MOST, 40000};

	return counts[k % 5];
}

static int call(comm_t comm, int n, int k, const int *in, int *out)
{
	if (k % KINDS == 0)
		return nccl.AllReduce(in, out, count_of(k), INT32, SUM, comm, NULL);
	if (k % KINDS == 1)
		return nccl.AllGather(in, out, count_of(k), INT32, comm, NULL);
	return nccl.Broadcast(in, out, count_of(k), INT32, k % n, comm, NULL);
}

/* What has become of a call, or of making a communicator. Asks without a pause: the moment of the error is what matters. */
static int outcome(comm_t comm, int r)
{
	if (!async || (r != SUCCESS && r != IN_PROGRESS))
		return r;
	do
		OK(nccl.CommGetAsyncError(comm, &r));
	while (r == IN_PROGRESS);
	return r;
}

/* members: which ranks of the first communicator these are. */
static void check(int n, const int *members, int k, const int *out)
{
	size_t count = count_of(k);

	for (size_t i = 0; i < (k % KINDS == 1 ? count * (size_t)n : count); i++) {
		int wanted = 0;

		for (int r = 0; k % KINDS == 0 && r < n; r++)
			wanted += element(members[r], k, (int)i);
		if (k % KINDS == 1)
			wanted = element(members[i / count], k, (int)(i % count));
		if (k % KINDS == 2)
			wanted = element(members[k % n], k, (int)i);
		EQ(out[i], wanted);
	}
}

static int round_of(comm_t comm, int n, const int *members, int k, int *in, int *out)
{
	int r;

	for (size_t i = 0; i < count_of(k); i++)
		in[i] = element(my_rank, k, (int)i);
	memset(out, 0xff, count_of(k) * (size_t)n * sizeof(*out));
	r = outcome(comm, call(comm, n, k, in, out));
	if (r == SUCCESS)
		check(n, members, k, out);
	return r;
}

static void run(void)
{
	int *in = malloc(MOST * sizeof(*in)), *out = malloc((size_t)nranks * MOST * sizeof(*out)), k = 0, r, v;
	int all[64], left[64], nleft = 0;
	struct config config = CONFIG_INIT;
	comm_t comm = NULL, rest = NULL;

	for (int i = 0; i < nranks; i++) {
		all[i] = i;
		if (i != victim)
			left[nleft++] = i;
	}
	config.blocking = !async;
	r = nccl.CommInitRankConfig(&comm, nranks, next_id(), my_rank, &config);
	OK(outcome(comm, r));
	for (r = SUCCESS; r == SUCCESS; k++) {
		r = round_of(comm, nranks, all, k, in, out);
		if (k == 2)
			__atomic_add_fetch(world.arrived, 1, __ATOMIC_ACQ_REL); /* main may choose its moment */
	}
	EQ(r, REMOTE_ERROR);
	OK(nccl.CommGetAsyncError(comm, &v));
	EQ(v, REMOTE_ERROR);
	r = nccl.CommShrink(comm, &victim, 1, &rest, NULL, 1);
	OK(outcome(rest, r));
	for (k = 0; k < 2 * KINDS; k++)
		OK(round_of(rest, nleft, left, k, in, out));
	r = nccl.CommDestroy(rest);
	TRUE(r == SUCCESS || (async && r == IN_PROGRESS));
	OK(nccl.CommAbort(comm));
	free(in);
	free(out);
}

/* Returns how many ranks have failed. */
static int lose_one(unsigned *seed, int signal)
{
	char *shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int failed = 0, status;
	pid_t pids[64];

	if (shared == MAP_FAILED)
		return 1;
	use_shared(nranks, 0, shared);
	victim = (int)(rand_r(seed) % (unsigned)nranks);
	for (int i = 0; i < nranks; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			alarm(200);
			nccl_open();
			rank_main(&(struct rank_args){i, run});
			exit(0);
		}
	}
	while (__atomic_load_n(world.arrived, __ATOMIC_ACQUIRE) < (uint32_t)nranks && waitpid(-1, NULL, WNOHANG) == 0)
		usleep(200);
	usleep((useconds_t)(rand_r(seed) % 30000));
	kill(pids[victim], signal);
	for (int i = 0; i < nranks; i++)
		if (i != victim)
			failed += waitpid(pids[i], &status, 0) != pids[i] || status != 0;
	kill(pids[victim], SIGKILL);
	waitpid(pids[victim], NULL, 0);
	munmap(shared, 1 << 16);
	return failed;
}

int main(int argc, char **argv)
{
	int rounds = argc > 4 ? atoi(argv[2]) : 0;
	unsigned seed = argc > 4 ? (unsigned)atoi(argv[3]) : 0;

	if (!rounds)
		return 2;
	nranks = atoi(argv[1]);
	async = argc > 5;
	for (lost = 0; lost < rounds; lost++) {
		if (lose_one(&seed, strcmp(argv[4], "stop") ? SIGKILL : SIGSTOP)) {
			fprintf(stderr, "round %d of seed %s: rank %d was lost\n", lost, argv[3], victim);
			return 1;
		}
	}
	printf("%d rounds\n", rounds);
	return 0;
}
