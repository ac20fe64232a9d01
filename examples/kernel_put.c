/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that put and signal, on CPU threads: two ranks swap arrays without a collective. The kernel is in kernel_put.h; kernel_put.cu runs it
 * on a GPU.
 *
 *   cc kernel_put.c $(pkg-config --cflags --libs gantry) -pthread -o kernel_put
 *   ./kernel_put [BYTES]                     default: 4 MiB
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <gantry/comm.h>

#include "kernel_put.h"
#include "two.h"

static const char *const names[2] = {"rank 0", "rank 1"};

#define CHECK(call)                                                                                                    \
	do {                                                                                                           \
		gantry_result got = (call);                                                                            \
		if (got != GANTRY_OK)                                                                                  \
			end(1, "rank %d: %s: %s", rank, #call, gantry_result_text(got));                               \
	} while (0)

static unsigned char value(int rank, size_t i)
{
	return (unsigned char)(i * 7 + i / 251 + (size_t)rank * 101);
}

struct block {
	const struct exchange *x;
	uint32_t number;
	int failed;
};

static void *kernel(void *arg)
{
	struct block *b = arg;

	b->failed = exchange_block(b->x, b->number);
	return NULL;
}

static void launch(const struct exchange *x, int rank)
{
	struct block blocks[BLOCKS];
	pthread_t threads[BLOCKS];

	for (uint32_t i = 0; i < BLOCKS; i++) {
		blocks[i] = (struct block){x, i, 0};
		if (pthread_create(&threads[i], NULL, kernel, &blocks[i]) != 0)
			end(1, "rank %d: no thread", rank);
	}
	for (uint32_t i = 0; i < BLOCKS; i++) {
		pthread_join(threads[i], NULL);
		if (blocks[i].failed)
			end(1, "rank %d: the communicator failed: %s", rank, gantry_last_error());
	}
}

static void swap(const struct gantry_unique_id *id, int rank, unsigned char *mine, unsigned char *theirs, size_t bytes)
{
	struct gantry_comm_config config = {.struct_size = sizeof(config), .id = *id, .rank = rank, .nranks = 2};
	struct gantry_gin_config queues = {.struct_size = sizeof(queues), .contexts = BLOCKS};
	struct exchange x = {.bytes = bytes};
	struct gantry_comm *comm;
	struct gantry_gin *gin;

	CHECK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &config.device));
	CHECK(gantry_comm_init(&config, &comm)); /* returns when both ranks are there */
	CHECK(gantry_gin_open(comm, &queues, &gin));
	CHECK(gantry_gin_register(gin, mine, bytes, &x.from)); /* in the same order on both ranks */
	CHECK(gantry_gin_register(gin, theirs, bytes, &x.to));
	CHECK(gantry_gin_view(gin, &x.view));
	launch(&x, rank);
	gantry_gin_close(gin);
	CHECK(gantry_comm_destroy(comm));
	gantry_device_close(config.device);
}

static void run_rank(int rank, size_t bytes, int cuda)
{
	unsigned char *mine = malloc(bytes), *theirs = calloc(1, bytes);
	struct gantry_unique_id id;
	size_t wrong = 0;

	if (cuda)
		end(2, "kernel_put.cu is the program for GPUs");
	if (!mine || !theirs)
		end(1, "rank %d: no memory for %zu bytes", rank, bytes);
	for (size_t i = 0; i < bytes; i++)
		mine[i] = value(rank, i);
	if (rank == 0) {
		CHECK(gantry_unique_id_create(&id)); /* the ranks meet at rank 0, and the id says where that is */
		tell(&id, sizeof(id));
	} else {
		hear(&id, sizeof(id));
	}
	swap(&id, rank, mine, theirs, bytes);
	for (size_t i = 0; i < bytes; i++)
		wrong += theirs[i] != value(1 - rank, i);
	free(mine);
	free(theirs);
	if (wrong)
		end(1, "rank %d: %zu bytes are wrong", rank, wrong);
	printf("rank %d: %zu bytes put and received by %d kernels\n", rank, bytes, BLOCKS);
}

int main(int argc, char **argv)
{
	size_t bytes = 4 << 20;
	int cuda;

	parse(argc, argv, &bytes, &cuda);
	if (run_two(run_rank, bytes, cuda))
		return 1;
	printf("0 wrong\n");
	return 0;
}
