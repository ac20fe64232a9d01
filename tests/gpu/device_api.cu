// SPDX-License-Identifier: Apache-2.0
/*
 * device_api RANKS: NCCL's device API in kernels, with the headers of the installed NCCL, on whichever libnccl.so.2 is found. Ranks are
 * threads that share GPU 0, each with a stream; their kernels run at the same time. Every word is compared on the host:
 *
 *   all to all   each rank puts a block to each other one and itself, by all contexts, with a signal; flush; barriers between rounds
 *   ring         a word goes round, with resetSignal; and a barrier of ranks that map each other's memory, which is one
 *   values       by value with a signal, of which NCCL's own proxy loses the signal in these versions
 *   abort        kernels wait for signals that no rank sends; ncclCommAbort lets them end
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <pthread.h>

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

static pthread_barrier_t ranks_meet;
static ncclUniqueId id;
static unsigned long long wrong_sum;

static void run_rank(int rank, int n)
{
	const size_t bytes = (size_t)contexts * n * block_words * 8;
	ncclComm_t comm;
	ncclDevComm d;
	ncclWindow_t from, to;
	cudaStream_t stream;
	void *source, *target;
	unsigned long long *wrong;
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
	ncclDevCommRequirements wishes = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
	ncclDevCommRequirements wishes;
	memset(&wishes, 0, sizeof(wishes));
#endif

	CUDA(cudaSetDevice(0));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMallocHost(&wrong, sizeof(*wrong)));
	*wrong = 0;
	NCCL(ncclCommInitRank(&comm, n, id, rank));
	NCCL(ncclMemAlloc(&source, bytes));
	NCCL(ncclMemAlloc(&target, bytes));
	NCCL(ncclCommWindowRegister(comm, source, bytes, &from, NCCL_WIN_COLL_SYMMETRIC));
	NCCL(ncclCommWindowRegister(comm, target, bytes, &to, NCCL_WIN_COLL_SYMMETRIC));
	wishes.ginForceEnable = true;
	wishes.ginContextCount = contexts;
	wishes.ginSignalCount = 32;
	wishes.ginCounterCount = 4;
	wishes.railGinBarrierCount = contexts;
	wishes.lsaBarrierCount = 2;
	NCCL(ncclDevCommCreate(comm, &wishes, &d));
	/* Loading and allocating may wait for kernels: all of that is done before the first one. */
	pthread_barrier_wait(&ranks_meet);
	all_to_all<<<contexts, threads, 0, stream>>>(d, from, to, wrong);
	CUDA(cudaStreamSynchronize(stream));
	pthread_barrier_wait(&ranks_meet);
	ring<<<1, 1, 0, stream>>>(d, from, to, wrong);
	CUDA(cudaStreamSynchronize(stream));
	pthread_barrier_wait(&ranks_meet);
	values<<<1, 1, 0, stream>>>(d, to, wrong);
	CUDA(cudaStreamSynchronize(stream));
	pthread_barrier_wait(&ranks_meet);
	__atomic_fetch_add(&wrong_sum, *wrong, __ATOMIC_RELAXED);
	wait_forever<<<contexts, 32, 0, stream>>>(d);
	pthread_barrier_wait(&ranks_meet);
	NCCL(ncclCommAbort(comm));
	CUDA(cudaStreamSynchronize(stream));
}

int main(int argc, char **argv)
{
	const int n = argc > 1 ? atoi(argv[1]) : 2;
	std::vector<std::thread> ranks;

	CUDA(cudaSetDevice(0));
	CUDA(cudaFree(0));
	NCCL(ncclGetUniqueId(&id));
	pthread_barrier_init(&ranks_meet, NULL, n);
	for (int i = 0; i < n; i++)
		ranks.emplace_back(run_rank, i, n);
	for (auto &t : ranks)
		t.join();
	printf("%d ranks: %llu wrong words of %llu\n", n, wrong_sum,
	       (unsigned long long)n * contexts * n * block_words * rounds);
	return wrong_sum != 0;
}
