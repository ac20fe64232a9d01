/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's API as a program sees it that was compiled against NCCL's header: prototypes of its own and the library found
 * at run time. Nothing of Gantry's is included. Ranks are processes, or threads of one.
 */
#ifndef TESTS_NCCL_USE_H
#define TESTS_NCCL_USE_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16, E4M3, E5M2 };
enum { SUM, PROD, MAX, MIN, AVG };

typedef struct comm *comm_t;
struct unique_id {
	char bytes[128];
};
/* NCCL 2.28's, of 80 bytes. */
struct config {
	size_t size;
	unsigned magic, version;
	int blocking, cluster, min_ctas, max_ctas;
	const char *net;
	int split_share, traffic_class;
	const char *name;
	int collnet, policy, shrink_share, nvls_ctas, channels_per_peer, sched;
};
#define CONFIG_INIT                                                                                                    \
	{                                                                                                              \
		sizeof(struct config), 0xcafebeef, 22809, INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN, INT_MIN,  \
			NULL, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN                                     \
	}
/* NCCL 2.32's, of 120 bytes, the first 112 of which are 2.31's; and of an NCCL to come. */
struct new_config {
	struct config old;
	int graph_mode, rma_contexts, p2p_peers, stream_ordering;
	int implicit_order, rma_signals, rma_eager, cft_mode; /* since 2.31 */
	int nvls_mode, padding;				      /* since 2.32 */
	char later[32];
};
enum { CONFIG_2_31 = 112, CONFIG_2_32 = 120 };
struct encryption {
	size_t size;
	unsigned magic, version;
	int mode;
	const char *psk;
};
struct sim_info {
	size_t size;
	unsigned magic, version;
	float time;
};

struct wait_signal {
	int count, peer, signal, context;
};

/* X(type, name, parameters) */
/* clang-format off */
#define FUNCTIONS(X)                                                                                                   \
	X(int, GetVersion, (int *))                                                                                    \
	X(int, SetEncryption, (const struct encryption *))                                                             \
	X(int, GetUniqueId, (struct unique_id *))                                                                      \
	X(int, CommInitRank, (comm_t *, int, struct unique_id, int))                                                   \
	X(int, CommInitRankConfig, (comm_t *, int, struct unique_id, int, struct config *))                            \
	X(int, CommInitRankScalable, (comm_t *, int, int, int, struct unique_id *, struct config *))                   \
	X(int, CommInitAll, (comm_t *, int, const int *))                                                              \
	X(int, CommFinalize, (comm_t))                                                                                 \
	X(int, CommDestroy, (comm_t))                                                                                  \
	X(int, CommAbort, (comm_t))                                                                                    \
	X(int, CommRevoke, (comm_t, int))                                                                              \
	X(int, CommSplit, (comm_t, int, int, comm_t *, struct config *))                                               \
	X(int, CommShrink, (comm_t, int *, int, comm_t *, struct config *, int))                                       \
	X(int, CommGetUniqueId, (comm_t, struct unique_id *))                                                          \
	X(int, CommGrow, (comm_t, int, const struct unique_id *, int, comm_t *, struct config *))                      \
	X(const char *, GetErrorString, (int))                                                                         \
	X(const char *, GetLastError, (comm_t))                                                                        \
	X(int, CommGetAsyncError, (comm_t, int *))                                                                     \
	X(int, CommCount, (comm_t, int *))                                                                             \
	X(int, CommCuDevice, (comm_t, int *))                                                                          \
	X(int, CommUserRank, (comm_t, int *))                                                                          \
	X(int, RedOpCreatePreMulSum, (int *, void *, int, int, comm_t))                                                \
	X(int, RedOpDestroy, (int, comm_t))                                                                            \
	X(int, Reduce, (const void *, void *, size_t, int, int, int, comm_t, void *))                                  \
	X(int, Bcast, (void *, size_t, int, int, comm_t, void *))                                                      \
	X(int, Broadcast, (const void *, void *, size_t, int, int, comm_t, void *))                                    \
	X(int, AllReduce, (const void *, void *, size_t, int, int, comm_t, void *))                                    \
	X(int, ReduceScatter, (const void *, void *, size_t, int, int, comm_t, void *))                                \
	X(int, AllGather, (const void *, void *, size_t, int, comm_t, void *))                                         \
	X(int, AlltoAll, (const void *, void *, size_t, int, comm_t, void *))                                          \
	X(int, Gather, (const void *, void *, size_t, int, int, comm_t, void *))                                       \
	X(int, Scatter, (const void *, void *, size_t, int, int, comm_t, void *))                                      \
	X(int, AllReduceConfig, (const void *, void *, size_t, int, int, comm_t, void *, const void *))                \
	X(int, Send, (const void *, size_t, int, int, comm_t, void *))                                                 \
	X(int, Recv, (void *, size_t, int, int, comm_t, void *))                                                       \
	X(int, GroupStart, (void))                                                                                     \
	X(int, GroupEnd, (void))                                                                                       \
	X(int, GroupSimulateEnd, (struct sim_info *))                                                                  \
	X(int, CommRegister, (comm_t, void *, size_t, void **))                                                        \
	X(int, CommDeregister, (comm_t, void *))                                                                       \
	X(int, MemAlloc, (void **, size_t))                                                                            \
	X(int, MemFree, (void *))                                                                                      \
	X(int, CommWindowRegister, (comm_t, void *, size_t, void **, int))                                             \
	X(int, CommWindowDeregister, (comm_t, void *))                                                                 \
	X(int, PutSignal,                                                                                              \
	  (const void *, size_t, int, int, void *, size_t, int, int, unsigned, comm_t, void *))                        \
	X(int, Signal, (int, int, int, unsigned, comm_t, void *))                                                      \
	X(int, WaitSignal, (int, struct wait_signal *, comm_t, void *))                                                \
	X(int, WinGetUserPtr, (comm_t, void *, void **))                                                               \
	X(int, CommSuspend, (comm_t, int))                                                                             \
	X(int, DevCommCreate, (comm_t, const void *, void *))                                                          \
	X(int, DevCommDestroy, (comm_t, const void *))                                                                 \
	X(int, CommQueryProperties, (comm_t, void *))                                                                  \
	X(int, GetLsaDevicePointer, (void *, size_t, int, void **))                                                    \
	X(int, GetPeerDevicePointer, (void *, size_t, int, void **))                                                   \
	X(int, ParamBind, (void **, const char *))                                                                     \
	X(int, ParamGetI32, (void *, int32_t *))                                                                       \
	X(int, ParamGetU8, (void *, uint8_t *))                                                                        \
	X(int, ParamGetStr, (void *, const char **))                                                                   \
	X(int, ParamGet, (void *, void *, int, int *))                                                                 \
	X(int, ParamGetParameter, (const char *, const char **, int *))                                                \
	X(int, ParamGetAllParameterKeys, (const char ***, int *))
/* clang-format on */

struct nccl {
#define FIELD(type, name, params) type(*name) params;
	FUNCTIONS(FIELD)
#undef FIELD
};
static struct nccl nccl;

static void nccl_open(void)
{
	void *lib = dlopen("libnccl.so.2", RTLD_NOW);

	if (!lib) {
		fprintf(stderr, "FAILED: %s\n", dlerror());
		exit(1);
	}
#define FIND(type, name, params)                                                                                       \
	{                                                                                                              \
		void *p = dlsym(lib, "nccl" #name);                                                                    \
		if (!p)                                                                                                \
			fprintf(stderr, "FAILED: no nccl" #name "\n"), exit(1);                                        \
		memcpy(&nccl.name, &p, sizeof(p));                                                                     \
	}
	FUNCTIONS(FIND)
#undef FIND
}

/* ---- checks: both values are printed, and the process ends ---- */

static _Thread_local int my_rank;

#define EQ(got, wanted)                                                                                                \
	do {                                                                                                           \
		long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                      \
		if (got_ != wanted_) {                                                                                 \
			fprintf(stderr, "FAILED: %s:%d rank %d: %s is %lld, not %s (%lld); last error: %s\n",          \
				__FILE__, __LINE__, my_rank, #got, got_, #wanted, wanted_, nccl.GetLastError(NULL));   \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
#define OK(call) EQ(call, SUCCESS)
#define TRUE(x) EQ(!(x), 0)

/* ---- ranks ---- */

struct world {
	int nranks, threads;
	struct unique_id *ids; /* shared memory; [i]: the i-th that rank 0 has made */
	uint32_t *made;	       /* atomic: how many there are */
	uint32_t *arrived;     /* atomic: ranks at meetings */
};
static struct world world;

static _Thread_local uint32_t ids_taken, meetings;

/* All ranks, in the same order. */
static struct unique_id next_id(void)
{
	uint32_t i = ids_taken++;

	if (my_rank == 0) {
		OK(nccl.GetUniqueId(&world.ids[i]));
		__atomic_store_n(world.made, i + 1, __ATOMIC_RELEASE);
	}
	while (__atomic_load_n(world.made, __ATOMIC_ACQUIRE) <= i)
		usleep(200);
	return world.ids[i];
}

__attribute__((unused)) static void meet(void)
{
	uint32_t all = (uint32_t)world.nranks * ++meetings;

	__atomic_add_fetch(world.arrived, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(world.arrived, __ATOMIC_ACQUIRE) < all)
		usleep(200);
}

struct rank_args {
	int rank;
	void (*run)(void);
};

static void *rank_main(void *arg)
{
	const struct rank_args *a = arg;

	my_rank = a->rank;
	a->run();
	return NULL;
}

static void run_threads(int n, struct rank_args *args)
{
	pthread_t threads[64];

	nccl_open();
	for (int i = 0; i < n; i++)
		TRUE(pthread_create(&threads[i], NULL, rank_main, &args[i]) == 0);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

static int run_processes(int n, struct rank_args *args)
{
	int failed = 0, status;

	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			alarm(200);
			nccl_open();
			rank_main(&args[i]);
			exit(0);
		}
	}
	while (wait(&status) > 0 || errno == EINTR)
		failed |= status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* case_death */
	return failed;
}

static void use_shared(int n, int threads, char *shared)
{
	world = (struct world){.nranks = n, .threads = threads, .ids = (void *)shared};
	world.made = (void *)(shared + (1 << 15));
	world.arrived = (void *)(shared + (1 << 15) + 128);
}

/* One rank of those that a launcher has started; ids travel by a file. */
__attribute__((unused)) static int run_launched(const char *file, void (*run)(void))
{
	int fd = open(file, O_RDWR | O_CREAT, 0600), rank = atoi(getenv("RANK")), n = atoi(getenv("WORLD_SIZE"));
	char *shared;

	if (fd < 0 || ftruncate(fd, 1 << 16) < 0)
		return 1;
	shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (shared == MAP_FAILED)
		return 1;
	use_shared(n, 0, shared);
	alarm(200);
	nccl_open();
	rank_main(&(struct rank_args){rank, run});
	return 0;
}

/* n ranks, each of which calls run. 0: all of them returned. */
__attribute__((unused)) static int run_ranks(int n, int threads, void (*run)(void))
{
	struct rank_args args[64];
	char *shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (shared == MAP_FAILED || n > 64)
		return 1;
	use_shared(n, threads, shared);
	for (int i = 0; i < n; i++)
		args[i] = (struct rank_args){i, run};
	if (!threads)
		return run_processes(n, args);
	alarm(200);
	run_threads(n, args);
	return 0;
}

#endif
