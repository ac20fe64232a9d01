/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of dev_cuda.h on a GPU, one by one: dev_copy at every alignment against the CPU, LL and LL128 lines between
 * two blocks, dev_bcast, dev_share and dev_all; and how fast dev_copy is. A program of its own, built by words.sh with
 * nvcc, because no kernel of the library does only one of these.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/dev.h"

#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			printf("%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #cond,                                \
			       cudaGetErrorString(cudaGetLastError()));                                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
#define CUDA(call) CHECK((call) == cudaSuccess)

/* Copies each block's share; with one block just dev_copy. */
__global__ void __launch_bounds__(512, 1) copy(char *dst, const char *src, uint64_t n)
{
	uint64_t part = (n / dev_blocks() + 127) & ~127ull, from = part * dev_block();

	dev_begin(NULL);
	if (from < n)
		dev_copy(dst + from, src + from, n - from < part ? n - from : part);
}

/* Block 0 sends what block 1 gets, through lines. Lanes wait in their own loops, as k_conn.h does. */
__global__ void __launch_bounds__(512, 1)
	lines(uint64_t *ring, const char *src, char *dst, uint32_t n, uint64_t step, int ll128)
{
	const uint32_t size = ll128 ? GANTRY_LL128_DATA : GANTRY_LL_DATA, width = ll128 ? dev_ll128_width() : 1;
	const uint32_t words = (ll128 ? GANTRY_LL128_LINE : GANTRY_LL_LINE) / 8;

	dev_begin(NULL);
	for (uint32_t i = dev_lane() / width; i * size < n; i += dev_lanes() / width) {
		uint32_t part = n - i * size < size ? n - i * size : size;
		uint64_t *line = ring + (uint64_t)i * words, v;

		if (dev_block() == 0 && ll128) {
			dev_ll128_put(line, src + i * size, part, gantry_ll128_flag(step));
		} else if (dev_block() == 0) {
			dev_ll_store(line, dev_gather8(src + i * size, part), gantry_ll_flag(step));
		} else if (ll128) {
			while (!dev_ll128_get(line, dst + i * size, part, gantry_ll128_flag(step)))
				;
		} else {
			while (!dev_ll_load(line, gantry_ll_flag(step), &v))
				;
			dev_scatter8(dst + i * size, v, part);
		}
	}
}

struct box {
	uint64_t a, b;
	char *c;
};
__global__ void __launch_bounds__(512, 1) team(uint32_t *wrong)
{
	uint32_t bad = 0;

	dev_begin(NULL);
	for (uint64_t i = 0; i < 200; i++) {
		struct box x;

		x.a = i * 3 + dev_lane();
		x.b = i * 5 + dev_lane();
		x.c = (char *)(i + dev_lane());
		bad += dev_bcast(i + dev_lane()) != i;
		dev_share(&x, sizeof(x));
		bad += x.a != i * 3 || x.b != i * 5 || x.c != (char *)i;
		bad += dev_all(dev_lane() != i) != (i >= dev_lanes());
		bad += dev_all(1) != 1;
	}
	atomicAdd(wrong, bad);
}

static unsigned char *host;
static char *a, *b;
enum { ROOM = 4 << 20 };

static void check_copies(char *dst, char *src, const char *where)
{
	static unsigned char back[ROOM];
	static const uint32_t sizes[] = {0,	1,     3,     15,     16,     17,     31,	  33,
					 63,	64,    65,    79,     95,     127,    129,	  255,
					 1000,	4096,  8191,  8200,   16384,  24577,  32768,	  32784,
					 65536, 65537, 98305, 100000, 131072, 262144, 262145 + 77};
	static const uint32_t lanes[] = {32, 96, 512};
	int cases = 0;

	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++)
		for (uint32_t from = 0; from < 17; from++)
			for (uint32_t to = 0; to < 17; to += 1 + (sizes[k] > 70000)) {
				uint32_t n = sizes[k];

				CUDA(cudaMemset(dst, 0x5a, n + 256));
				copy<<<1, lanes[(k + from + to) % 3]>>>(dst + 64 + to, src + 64 + from, n);
				CUDA(cudaMemcpy(back, dst, n + 256, cudaMemcpyDefault));
				CHECK(memcmp(back + 64 + to, host + 64 + from, n) == 0);
				for (uint32_t i = 0; i < 64 + to; i++)
					CHECK(back[i] == 0x5a);
				for (uint32_t i = 64 + to + n; i < n + 256; i++)
					CHECK(back[i] == 0x5a);
				cases++;
			}
	printf("{\"test\": \"dev_copy\", \"memory\": \"%s\", \"cases\": %d}\n", where, cases);
}

static void check_lines(void)
{
	static unsigned char back[ROOM];
	uint64_t step = 0;

	for (int ll128 = 0; ll128 < 2; ll128++)
		for (uint32_t n = 1; n < 200000; n += n < 300 ? 1 : n)
			for (uint32_t from = 0; from < 9; from += 1 + (n > 300)) {
				uint32_t to = (from * 5 + n) % 9;

				CUDA(cudaMemset(b, 0x5a, n + 64));
				lines<<<2, 256>>>((uint64_t *)(b + (2 << 20)), a + from, b + to, n, ++step, ll128);
				CUDA(cudaMemcpy(back, b, n + 64, cudaMemcpyDefault));
				CHECK(memcmp(back + to, host + from, n) == 0);
				for (uint32_t i = 0; i < 9; i++)
					CHECK((i >= to || back[i] == 0x5a) && back[to + n + i] == 0x5a);
			}
	printf("{\"test\": \"lines\", \"cases\": %llu}\n", (unsigned long long)step);
}

static void measure(char *dst, char *src, uint64_t n, uint32_t blocks, uint32_t lanes, const char *name)
{
	cudaEvent_t from, to;
	float ms, best = 1e9f;

	CUDA(cudaEventCreate(&from));
	CUDA(cudaEventCreate(&to));
	for (int i = 0; i < 6; i++) {
		CUDA(cudaEventRecord(from));
		copy<<<blocks, lanes>>>(dst, src, n);
		CUDA(cudaEventRecord(to));
		CUDA(cudaEventSynchronize(to));
		CUDA(cudaEventElapsedTime(&ms, from, to));
		best = ms < best ? ms : best;
	}
	CUDA(cudaEventDestroy(from));
	CUDA(cudaEventDestroy(to));
	printf("{\"bench\": \"dev_copy\", \"case\": \"%s\", \"blocks\": %u, \"lanes\": %u, \"gbs\": %.1f}\n", name,
	       blocks, lanes, (double)n / 1e6 / (double)best);
}

int main(void)
{
	const uint64_t big = 256 << 20;
	uint32_t *wrong;
	char *mapped, *x, *y;
	int gpus = 0;

	if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
		printf("skipped: no GPU: %s\n", cudaGetErrorString(cudaGetLastError()));
		return 77;
	}
	host = (unsigned char *)malloc(ROOM);
	for (int i = 0; i < ROOM; i++)
		host[i] = (unsigned char)(rand() >> 8);
	CUDA(cudaMalloc(&a, ROOM));
	CUDA(cudaMalloc(&b, ROOM));
	CUDA(cudaMallocHost(&mapped, ROOM));
	CUDA(cudaMallocHost(&wrong, sizeof(*wrong)));
	CUDA(cudaMemcpy(a, host, ROOM, cudaMemcpyDefault));
	memcpy(mapped, host, ROOM);
	*wrong = 0;
	for (int lanes = 32; lanes <= 512; lanes *= 2)
		team<<<4, lanes>>>(wrong);
	CUDA(cudaDeviceSynchronize());
	CHECK(*wrong == 0);
	check_copies(b, a, "device to device");
	check_copies(b, mapped, "host to device");
	CUDA(cudaMemset(b, 0, ROOM));
	check_lines();
	check_copies(mapped, a, "device to host");
	if (getenv("CHECK"))
		return 0;

	CUDA(cudaMalloc(&x, big + 64));
	CUDA(cudaMalloc(&y, big + 64));
	for (int i = 0; i < 4; i++) {
		static const uint32_t counts[] = {1, 8, 32, 132};
		const uint32_t blocks = counts[i];
		const uint64_t n = blocks < 8 ? big / 8 : big;

		for (uint32_t lanes = 256; lanes <= 512; lanes *= 2) {
			measure(x, y, n, blocks, lanes, "aligned");
			measure(x + 4, y, n, blocks, lanes, "4 bytes apart");
			measure(x + 1, y, n, blocks, lanes, "1 byte apart");
		}
	}
	for (uint32_t blocks = 1; blocks <= 8; blocks *= 8) {
		measure(x, mapped, ROOM, blocks, 512, "from host, aligned");
		measure(x + 1, mapped, ROOM - 64, blocks, 512, "from host, 1 byte apart");
		measure(mapped, x, ROOM, blocks, 512, "to host, aligned");
		measure(mapped + 1, x, ROOM - 64, blocks, 512, "to host, 1 byte apart");
	}
	return 0;
}
