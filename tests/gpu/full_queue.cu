/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver does for other threads while one waits for room in a stream's queue.
 *
 * A kernel stays until the host lets it go, and a thread launches kernels behind it until a launch does not return: the
 * queue is full. Now another thread begins a copy in a stream of its own, as the network does for a kernel that waits
 * for bytes. If that call returns, and the copy ends while the kernel stays, the network may copy whatever the program
 * does. If not, a program that launches far ahead makes its own collective wait for ever.
 *
 * Then the same from a second context of the process: does it reach memory of the first, and is its way free?
 *
 * Built and run by full_queue.sh. Says what it saw, and fails only if it could not find out.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CUDA(call)                                                                                                     \
	do {                                                                                                           \
		cudaError_t e_ = (call);                                                                               \
		if (e_ != cudaSuccess) {                                                                               \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));                  \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { LAUNCHES = 20000, COPY = 1 << 20, QUIET_MS = 300, ANSWER_MS = 2000 };

/* At most ten seconds: nothing here may stay for good. */
__global__ void stay(volatile uint32_t *go)
{
	long long start = clock64();

	while (!*go && clock64() - start < 20000000000ll)
		;
}
__global__ void nothing(void)
{
}

static cudaStream_t program, apart;
static CUcontext second;
static CUstream second_stream;
static uint32_t launched; /* atomic */
static void *host, *device;

/* A copy by a thread of its own. */
struct try_copy {
	int in_second;
	CUresult result;
	uint32_t begun; /* atomic */
	pthread_t thread;
};

static void *launch(void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < LAUNCHES; i++) {
		nothing<<<1, 1, 0, program>>>();
		__atomic_store_n(&launched, i + 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

static void *copy(void *arg)
{
	struct try_copy *t = (struct try_copy *)arg;

	if (t->in_second) {
		CUcontext first;

		cuCtxGetCurrent(&first);
		cuCtxSetCurrent(second);
		t->result = cuMemcpyAsync((CUdeviceptr)device, (CUdeviceptr)host, COPY, second_stream);
		cuCtxSetCurrent(first);
	} else {
		CUDA(cudaSetDevice(0));
		t->result = (CUresult)cudaMemcpyAsync(device, host, COPY, cudaMemcpyHostToDevice, apart);
	}
	__atomic_store_n(&t->begun, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static uint32_t look(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* Begins a copy and looks whether it ends; within bounds, for the call may not come back before the queue has room. */
static void try_it(const char *from, struct try_copy *t, uint32_t full)
{
	int ms, ended = 0;

	pthread_create(&t->thread, NULL, copy, t);
	for (ms = 0; ms < ANSWER_MS && !look(&t->begun); ms++)
		usleep(1000);
	for (int i = 0; look(&t->begun) && !t->result && i < ANSWER_MS && !ended; i++) {
		CUcontext first;

		cuCtxGetCurrent(&first);
		cuCtxSetCurrent(t->in_second ? second : first);
		ended = (t->in_second ? cuStreamQuery(second_stream) : (CUresult)cudaStreamQuery(apart)) ==
			CUDA_SUCCESS;
		cuCtxSetCurrent(first);
		usleep(1000);
	}
	printf("{\"test\": \"full_queue\", \"from\": \"%s\", \"launched\": %u, \"full\": %u, \"call_returned\": %u, "
	       "\"ms\": %d, "
	       "\"error\": %d, \"copy_ended\": %d}\n",
	       from, look(&launched), full, look(&t->begun), ms, look(&t->begun) ? (int)t->result : 0, ended);
	fflush(stdout);
}

static void make_second(void)
{
	CUcontext first;
	CUdevice dev;

	cuCtxGetCurrent(&first);
	cuDeviceGet(&dev, 0);
#if CUDA_VERSION >= 13000
	if (cuCtxCreate(&second, NULL, 0, dev) || cuStreamCreate(&second_stream, CU_STREAM_NON_BLOCKING)) {
#else
	if (cuCtxCreate(&second, 0, dev) || cuStreamCreate(&second_stream, CU_STREAM_NON_BLOCKING)) {
#endif
		printf("no second context\n");
		exit(1);
	}
	cuCtxSetCurrent(first);
}

int main(void)
{
	struct try_copy one = {0}, two = {1};
	pthread_t launcher;
	uint32_t *go, seen = 0, full = 0;
	int least, greatest, quiet;
	void *p;

	CUDA(cudaHostAlloc(&p, 4096, cudaHostAllocMapped));
	go = (uint32_t *)p;
	*go = 0;
	CUDA(cudaHostAlloc(&host, COPY, cudaHostAllocDefault));
	CUDA(cudaMalloc(&device, COPY));
	CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
	CUDA(cudaStreamCreateWithFlags(&program, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithPriority(&apart, cudaStreamNonBlocking, greatest));
	make_second();
	/* Both kernels and the copy once, so that nothing is loaded later. */
	*go = 1;
	stay<<<1, 1, 0, program>>>(go);
	nothing<<<1, 1, 0, program>>>();
	CUDA(cudaMemcpyAsync(device, host, COPY, cudaMemcpyHostToDevice, apart));
	CUDA(cudaDeviceSynchronize());
	*go = 0;

	stay<<<1, 1, 0, program>>>(go);
	pthread_create(&launcher, NULL, launch, NULL);
	for (quiet = 0; quiet < QUIET_MS && look(&launched) < LAUNCHES; quiet++) {
		usleep(1000);
		if (look(&launched) != seen)
			quiet = 0;
		seen = look(&launched);
	}
	full = look(&launched) < LAUNCHES;
	try_it("stream", &one, full);
	try_it("context", &two, full);
	__atomic_store_n(go, 1, __ATOMIC_SEQ_CST);
	pthread_join(launcher, NULL);
	pthread_join(one.thread, NULL);
	pthread_join(two.thread, NULL);
	CUDA(cudaDeviceSynchronize());
	return full ? 0 : 1;
}
