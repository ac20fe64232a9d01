/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_put.c on a GPU: the kernel of kernel_put.h, with a block of threads for each of its blocks. Two processes share GPU 0, so one
 * kernel of each must run at the same time as the other's: start it under MPS, or give each rank a GPU of its own. A kernel that waits for
 * the other rank needs copies meanwhile, so all kernels are loaded before: CUDA_MODULE_LOADING=EAGER, if there were more than one.
 *
 *   nvcc kernel_put.cu $(pkg-config --cflags --libs gantry) -o kernel_put_cuda
 *   ./kernel_put_cuda 0 ID & ./kernel_put_cuda 1 ID        ID: a file that rank 0 writes and rank 1 waits for
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <vector>

#include <gantry/comm.h>

#include "kernel_put.h"

#define CHECK(call)                                                                                                    \
	do {                                                                                                           \
		gantry_result got = (call);                                                                            \
		if (got != GANTRY_OK) {                                                                                \
			fprintf(stderr, "rank %d: %s: %s: %s\n", rank, #call, gantry_result_text(got), gantry_last_error()); \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { BYTES = 4 << 20 };

__global__ void kernel(struct exchange x, int *failed)
{
	if (threadIdx.x == 0 && exchange_block(&x, blockIdx.x))
		*failed = 1;
}

static unsigned char value(int rank, size_t i)
{
	return (unsigned char)(i * 7 + i / 251 + (size_t)rank * 101);
}

/* Rank 0 writes the id aside and renames it; rank 1 waits for the file. */
static void share(struct gantry_unique_id *id, int rank, const char *path)
{
	char aside[4096];
	FILE *f;

	if (rank == 0) {
		CHECK(gantry_unique_id_create(id));
		snprintf(aside, sizeof(aside), "%s.new", path);
		f = fopen(aside, "wb");
		if (!f || fwrite(id, sizeof(*id), 1, f) != 1 || fclose(f) || rename(aside, path)) {
			perror(path);
			exit(1);
		}
		return;
	}
	while (!(f = fopen(path, "rb")))
		usleep(1000);
	if (fread(id, sizeof(*id), 1, f) != 1) {
		perror(path);
		exit(1);
	}
	fclose(f);
}

int main(int argc, char **argv)
{
	const int rank = argc == 3 ? atoi(argv[1]) : -1;
	struct gantry_comm_config config = {};
	struct gantry_gin_config queues = {};
	std::vector<unsigned char> array(BYTES);
	struct exchange x = {};
	struct gantry_comm *comm;
	struct gantry_gin *gin;
	void *mine, *theirs, *failed;
	int bad = 0;
	size_t wrong = 0;

	if (rank != 0 && rank != 1) {
		fprintf(stderr, "usage: %s 0|1 FILE\n", argv[0]);
		return 2;
	}
	config.struct_size = sizeof(config);
	config.rank = rank;
	config.nranks = 2;
	share(&config.id, rank, argv[2]);
	CHECK(gantry_device_open(GANTRY_DEVICE_CUDA, 0, &config.device));
	CHECK(gantry_mem_alloc(config.device, BYTES, &mine));
	CHECK(gantry_mem_alloc(config.device, BYTES, &theirs));
	CHECK(gantry_mem_alloc(config.device, sizeof(int), &failed));
	CHECK(gantry_mem_copy(config.device, failed, &bad, sizeof(bad)));
	for (size_t i = 0; i < BYTES; i++)
		array[i] = value(rank, i);
	CHECK(gantry_mem_copy(config.device, mine, array.data(), BYTES));
	CHECK(gantry_comm_init(&config, &comm));
	queues.struct_size = sizeof(queues);
	queues.contexts = BLOCKS;
	CHECK(gantry_gin_open(comm, &queues, &gin));
	CHECK(gantry_gin_register(gin, mine, BYTES, &x.from));
	CHECK(gantry_gin_register(gin, theirs, BYTES, &x.to));
	CHECK(gantry_gin_view(gin, &x.view));
	x.bytes = BYTES;
	kernel<<<BLOCKS, 32>>>(x, (int *)failed);
	if (cudaDeviceSynchronize() != cudaSuccess) {
		fprintf(stderr, "rank %d: %s\n", rank, cudaGetErrorString(cudaGetLastError()));
		return 1;
	}
	CHECK(gantry_mem_copy(config.device, &bad, failed, sizeof(bad)));
	CHECK(gantry_mem_copy(config.device, array.data(), theirs, BYTES));
	for (size_t i = 0; i < BYTES; i++)
		wrong += array[i] != value(1 - rank, i);
	printf("rank %d: %zu of %d bytes are wrong%s\n", rank, wrong, BYTES, bad ? "; the communicator failed" : "");
	gantry_gin_close(gin);
	CHECK(gantry_comm_destroy(comm));
	CHECK(gantry_mem_free(config.device, mine));
	CHECK(gantry_mem_free(config.device, theirs));
	CHECK(gantry_mem_free(config.device, failed));
	gantry_device_close(config.device);
	return wrong || bad;
}
