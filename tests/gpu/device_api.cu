// SPDX-License-Identifier: Apache-2.0
/*
 * device_api RANKS [threads|processes] [stock|stopped] [few]: NCCL's device API in kernels, with the headers of the installed NCCL, on whichever
 * libnccl.so.2 is found. Ranks share GPU 0, each with a stream; their kernels run at the same time, as processes if MPS runs. A process counts as a
 * host of its own (NCCL_HOSTID). Every word is compared:
 *
 *   all to all   each rank puts a block to each other one and itself, by all contexts, with a signal; flush; barriers between rounds
 *   random       500,000 puts, each with a signal, of 1 to 16 words to places in a random order, by all contexts at once; all ranks add to one
 *                word in each context. Half way a second stream fills every SM
 *   ring         a word goes round, with resetSignal; and a barrier of ranks that map each other's memory, which is one
 *   values       by value with a signal; not with `stock`: NCCL's own proxy loses that signal in these versions
 *   abort        kernels wait for signals that no rank sends; ncclCommAbort lets them end. Not with `stock`, where they do not
 *   few          a hundredth of the random puts, for compute-sanitizer
 *   stopped      instead of abort: the last rank is stopped, and the others' kernels end once its loss is noticed
 */
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CUDA(call)                                                                                                     \
	do {                                                                                                           \
		cudaError_t e_ = (call);                                                                               \
		if (e_ != cudaSuccess) {                                                                               \
			fprintf(stderr, "FAILED: line %d: %s\n", __LINE__, cudaGetErrorString(e_));                    \
			_Exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
#define NCCL(call)                                                                                                     \
	do {                                                                                                           \
		ncclResult_t r_ = (call);                                                                              \
		if (r_ != ncclSuccess) {                                                                               \
			fprintf(stderr, "FAILED: line %d: %s: %s\n", __LINE__, ncclGetErrorString(r_),                 \
				ncclGetLastError(NULL));                                                               \
			_Exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

static const int contexts = 4, rounds = 20, block_words = 5000, laps = 50, threads = 128;
static const int slots = 64, slot_words = 16, random_puts = 500000, few_puts = 5000; /* slots of each pair of ranks and context */

__host__ __device__ static uint64_t word_of(int round, int from, int to, int context, int i)
{
	return ((uint64_t)(round * 64 + from) << 40 | (uint64_t)(to * 8 + context) << 20 | (uint64_t)i) *
	       0x9e3779b97f4a7c15ull;
}

/* A block of threads for each context. wrong: words that are not what their rank has put. */
__global__ void all_to_all(ncclDevComm d, ncclWindow_t from, ncclWindow_t to, unsigned long long *wrong)
{
	const int context = blockIdx.x, n = d.nRanks;
	ncclGin net(d, context);
	uint64_t *source = (uint64_t *)ncclGetLocalPointer(from, 0), *target = (uint64_t *)ncclGetLocalPointer(to, 0);
	ncclGinBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), net, ncclTeamTagRail(), context);

	for (int round = 0; round < rounds; round++) {
		for (int peer = 0; peer < n; peer++) {
			const size_t at = ((size_t)context * n + peer) * block_words,
				     there = ((size_t)context * n + d.rank) * block_words;

			for (int i = threadIdx.x; i < block_words; i += blockDim.x)
				source[at + i] = word_of(round, d.rank, peer, context, i);
			__syncthreads();
			net.put(ncclTeamWorld(d), peer, to, there * 8, from, at * 8, block_words * 8,
				ncclGin_SignalInc{0}, ncclGin_CounterInc{0}, ncclCoopCta());
		}
		net.flush(ncclCoopCta());
		for (int i = threadIdx.x; i < n * block_words; i += blockDim.x)
			source[(size_t)context * n * block_words + i] = 1; /* may be used again */
		net.waitSignal(ncclCoopCta(), 0, (uint64_t)n * (round + 1));
		for (int peer = 0; peer < n; peer++)
			for (int i = threadIdx.x; i < block_words; i += blockDim.x)
				if (target[((size_t)context * n + peer) * block_words + i] !=
				    word_of(round, peer, d.rank, context, i))
					atomicAdd(wrong, 1ull);
		barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
	}
	if (threadIdx.x == 0 && net.readCounter(0) != (uint64_t)n * rounds)
		atomicAdd(wrong, 1ull);
}

__host__ __device__ static int words_of(int round, int from, int to, int context, int slot)
{
	return 1 + (int)(word_of(round, from, to, context, slot) >> 33) % slot_words;
}

/*
 * A block for each context, in which each thread puts to its own slots, so that puts come in any order: places [from][slot], clear before each round.
 * The odd multiplier takes the slots in another order in each round.
 */
__global__ void random_order(ncclDevComm d, ncclWindow_t from, ncclWindow_t to, int first, int end,
			     unsigned long long *wrong)
{
	const int context = blockIdx.x, n = d.nRanks, all = n * slots;
	const size_t base = (size_t)context * all * slot_words;
	ncclGin net(d, context);
	uint64_t *source = (uint64_t *)ncclGetLocalPointer(from, 0) + base;
	volatile uint64_t *target = (volatile uint64_t *)ncclGetLocalPointer(to, 0) + base;
	ncclGinBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), net, ncclTeamTagRail(), context);

	for (int i = threadIdx.x; i < all * slot_words; i += blockDim.x)
		target[i] = 0;
	__threadfence_system();
	__syncthreads();
	barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
	for (int round = first; round < end; round++) {
		for (int i = threadIdx.x; i < all; i += blockDim.x) {
			const int peer = i % n, slot = (i / n) * (2 * round + 1) % slots,
				  words = words_of(round, d.rank, peer, context, slot);
			const size_t at = (size_t)(peer * slots + slot) * slot_words,
				     there = (size_t)(d.rank * slots + slot) * slot_words;

			for (int w = 0; w < words; w++)
				source[at + w] = word_of(round, d.rank, peer, context, slot * slot_words + w);
			net.put(ncclTeamWorld(d), peer, to, (base + there) * 8, from, (base + at) * 8, words * 8,
				ncclGin_SignalInc{12});
		}
		net.waitSignal(ncclCoopCta(), 12, (uint64_t)all * (round + 1));
		for (int i = threadIdx.x; i < all * slot_words; i += blockDim.x) {
			const int slot = i / slot_words % slots, peer = i / slot_words / slots, w = i % slot_words;
			const bool put = w < words_of(round, peer, d.rank, context, slot);

			if (target[i] != (put ? word_of(round, peer, d.rank, context, slot * slot_words + w) : 0))
				atomicAdd(wrong, 1ull);
			target[i] = 0;
		}
		net.flush(ncclCoopCta());
		__threadfence_system();
		barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
	}
}

/* What other work of the program does to them: no SM has room for long. */
__global__ void busy(uint64_t ns)
{
	uint64_t begin, now;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
	do
		asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
	while (now - begin < ns);
}

/* One thread: a word goes round, and each rank adds to it. */
__global__ void ring(ncclDevComm d, ncclWindow_t from, ncclWindow_t to, unsigned long long *wrong)
{
	const int n = d.nRanks, r = d.rank;
	const uint64_t lap_sum = (uint64_t)n * (n + 1) / 2;
	ncclGin net(d, 1);
	volatile uint64_t *in = (volatile uint64_t *)ncclGetLocalPointer(to, 8);
	uint64_t *out = (uint64_t *)ncclGetLocalPointer(from, 16), value = 0;

	for (int lap = 0; lap < laps; lap++) {
		if (r || lap) {
			net.waitSignal(ncclCoopThread(), 7, 1);
			value = *in;
			if (value != (r ? lap * lap_sum + (uint64_t)r * (r + 1) / 2 : lap * lap_sum))
				atomicAdd(wrong, 1ull);
			net.resetSignal(7);
			__threadfence_system();
		}
		*out = value + r + 1;
		net.put(ncclTeamWorld(d), (r + 1) % n, to, 8, from, 16, 8, ncclGin_SignalInc{7});
		net.flush(ncclCoopThread());
	}
	if (!r) {
		net.waitSignal(ncclCoopThread(), 7, 1);
		if (*in != laps * lap_sum)
			atomicAdd(wrong, 1ull);
	}
	ncclLsaBarrierSession<ncclCoopThread> lsa(ncclCoopThread(), d, ncclTeamTagLsa(), 0);
	lsa.sync(ncclCoopThread(), cuda::memory_order_acq_rel);
}

__global__ void values(ncclDevComm d, ncclWindow_t to, unsigned long long *wrong)
{
	const int n = d.nRanks, r = d.rank;
	ncclGin net(d, 2);
	volatile uint64_t *in = (volatile uint64_t *)ncclGetLocalPointer(to, 0);

	for (int peer = 0; peer < n; peer++)
		net.putValue(ncclTeamWorld(d), peer, to, 4096 + r * 8, (uint64_t)0x0123456789abcdefull * (r + 1) + peer,
			     ncclGin_SignalAdd{9, 3});
	net.waitSignal(ncclCoopThread(), 9, 3 * n);
	for (int peer = 0; peer < n; peer++)
		if (in[512 + peer] != 0x0123456789abcdefull * (peer + 1) + r)
			atomicAdd(wrong, 1ull);
}

__global__ void wait_forever(ncclDevComm d)
{
	ncclGin net(d, blockIdx.x);

	net.waitSignal(ncclCoopCta(), 20, 1);
	net.resetSignal(21);
	net.waitSignal(ncclCoopCta(), 21, 1);
}

/* Of all ranks, be they threads or processes. */
struct shared {
	pthread_barrier_t meet;
	ncclUniqueId id;
	unsigned long long wrong;
	int n, processes, stock, stopped, few;
};
static struct shared *job;

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct rank {
	int number;
	ncclComm_t comm;
	ncclDevComm d;
	ncclWindow_t from, to;
	cudaStream_t stream, other;
	unsigned long long *wrong;
};

/* All ranks' kernels run, and have ended. */
static void finish(struct rank *r)
{
	CUDA(cudaGetLastError());
	CUDA(cudaStreamSynchronize(r->stream));
	pthread_barrier_wait(&job->meet);
}

static void open_rank(struct rank *r)
{
	const size_t bytes = (size_t)contexts * job->n * block_words * 8;
	void *source, *target;
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
	ncclDevCommRequirements wishes = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
	ncclDevCommRequirements wishes;
	memset(&wishes, 0, sizeof(wishes));
#endif

	CUDA(cudaSetDevice(0));
	CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&r->other, cudaStreamNonBlocking));
	CUDA(cudaMallocHost(&r->wrong, sizeof(*r->wrong)));
	*r->wrong = 0;
	if (r->number == 0)
		NCCL(ncclGetUniqueId(&job->id));
	pthread_barrier_wait(&job->meet);
	NCCL(ncclCommInitRank(&r->comm, job->n, job->id, r->number));
	NCCL(ncclMemAlloc(&source, bytes));
	NCCL(ncclMemAlloc(&target, bytes));
	/* As nccl-tests: both in one group. */
	NCCL(ncclGroupStart());
	NCCL(ncclCommWindowRegister(r->comm, source, bytes, &r->from, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclCommWindowRegister(r->comm, target, bytes, &r->to, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclGroupEnd());
	wishes.ginForceEnable = true;
	wishes.ginContextCount = contexts;
	wishes.ginSignalCount = 32;
	wishes.ginCounterCount = 4;
	wishes.railGinBarrierCount = contexts;
	wishes.lsaBarrierCount = 2;
	NCCL(ncclDevCommCreate(r->comm, &wishes, &r->d));
	/* Loading and allocating may wait for kernels: all of that is done before the first one. */
	pthread_barrier_wait(&job->meet);
}

/* Returns the puts of all ranks. */
static long move_words(struct rank *r)
{
	const int n = job->n, of_round = contexts * n * n * slots, puts = job->few ? few_puts : random_puts,
		  end = (puts + of_round - 1) / of_round;
	cudaDeviceProp gpu;

	CUDA(cudaGetDeviceProperties(&gpu, 0));
	all_to_all<<<contexts, threads, 0, r->stream>>>(r->d, r->from, r->to, r->wrong);
	finish(r);
	random_order<<<contexts, threads, 0, r->stream>>>(r->d, r->from, r->to, 0, end / 2, r->wrong);
	finish(r);
	random_order<<<contexts, threads, 0, r->stream>>>(r->d, r->from, r->to, end / 2, end, r->wrong);
	busy<<<gpu.multiProcessorCount * 8, 1024, 0, r->other>>>(50 * 1000 * 1000);
	CUDA(cudaStreamSynchronize(r->other));
	finish(r);
	ring<<<1, 1, 0, r->stream>>>(r->d, r->from, r->to, r->wrong);
	finish(r);
	if (!job->stock)
		values<<<1, 1, 0, r->stream>>>(r->d, r->to, r->wrong);
	finish(r);
	__atomic_fetch_add(&job->wrong, *r->wrong, __ATOMIC_RELAXED);
	return (long)end * of_round;
}

/* The last rank stops, the others learn of it, abort, and their kernels end. */
static void lose_rank(struct rank *r)
{
	const double begin = seconds();
	ncclResult_t error = ncclSuccess;
	double noticed;

	if (r->number == job->n - 1)
		raise(SIGSTOP);
	while (error == ncclSuccess && seconds() - begin < 60) {
		usleep(1000);
		if (ncclCommGetAsyncError(r->comm, &error) != ncclSuccess)
			break;
	}
	noticed = seconds() - begin;
	NCCL(ncclCommAbort(r->comm));
	CUDA(cudaStreamSynchronize(r->stream));
	printf("rank %d: result %d after %.2f s, kernels ended %.2f s later: %s\n", r->number, error, noticed,
	       seconds() - begin - noticed, ncclGetLastError(NULL));
	fflush(stdout);
	if (error == ncclSuccess)
		_Exit(1);
}

static void close_rank(struct rank *r)
{
	if (job->stock) {
		NCCL(ncclCommWindowDeregister(r->comm, r->from));
		NCCL(ncclCommWindowDeregister(r->comm, r->to));
		NCCL(ncclDevCommDestroy(r->comm, &r->d));
		NCCL(ncclCommDestroy(r->comm));
		return;
	}
	wait_forever<<<contexts, 32, 0, r->stream>>>(r->d);
	pthread_barrier_wait(&job->meet);
	if (job->stopped) {
		lose_rank(r);
		return;
	}
	NCCL(ncclCommAbort(r->comm));
	CUDA(cudaStreamSynchronize(r->stream));
}

static void run_rank(int number)
{
	struct rank r = {};
	double begin;
	long puts;

	r.number = number;
	open_rank(&r);
	begin = seconds();
	puts = move_words(&r);
	if (number == 0) {
		printf("%d ranks (%s): %llu wrong words; %ld puts of a few words among others in %.1f s\n", job->n,
		       job->processes ? "processes" : "threads", job->wrong, puts, seconds() - begin);
		fflush(stdout);
	}
	close_rank(&r);
}

static int run_processes(void)
{
	std::vector<pid_t> pids;
	int failed = 0, status;

	for (int i = 0; i < job->n; i++) {
		const pid_t pid = fork();

		if (pid == 0) {
			setenv("NCCL_HOSTID", ("host" + std::to_string(i)).c_str(), 1);
			alarm(100);
			run_rank(i);
			_Exit(0);
		}
		pids.push_back(pid);
	}
	for (int left = job->n - job->stopped; left > 0 && !failed; left--)
		failed = wait(&status) < 0 || status != 0;
	for (pid_t pid : pids)
		kill(pid, SIGKILL);
	while (wait(&status) > 0 || errno == EINTR)
		;
	return failed;
}

int main(int argc, char **argv)
{
	pthread_barrierattr_t attr;
	int failed = 0;

	job = (struct shared *)mmap(NULL, sizeof(*job), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (job == MAP_FAILED)
		return 2;
	job->n = argc > 1 ? atoi(argv[1]) : 2;
	for (int i = 2; i < argc; i++) {
		job->processes |= !strcmp(argv[i], "processes");
		job->stock |= !strcmp(argv[i], "stock");
		job->stopped |= !strcmp(argv[i], "stopped");
		job->few |= !strcmp(argv[i], "few");
	}
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&job->meet, &attr, job->n);
	if (job->processes) {
		failed = run_processes();
	} else {
		std::vector<std::thread> ranks;

		CUDA(cudaSetDevice(0));
		CUDA(cudaFree(0));
		for (int i = 0; i < job->n; i++)
			ranks.emplace_back(run_rank, i);
		for (auto &t : ranks)
			t.join();
	}
	return failed || job->wrong != 0;
}
