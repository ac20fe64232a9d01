/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks add up their arrays of floats, as data-parallel training does with its gradients: afterwards both have the
 * sum, and each checks every element of it. Any number of ranks works the same way, with nranks in the config.
 *
 *   cc all_reduce.c $(pkg-config --cflags --libs gantry) -o all_reduce
 *   ./all_reduce [BYTES] [host|cuda]         default: 16 MiB of host memory; cuda is GPU 0
 */
#include <stdio.h>
#include <stdlib.h>

#include <gantry/comm.h>

#include "two.h"

static const char *const names[2] = {"rank 0", "rank 1"};

#define CHECK(call)                                                                                                    \
	do {                                                                                                           \
		gantry_result got = (call);                                                                            \
		if (got != GANTRY_OK)                                                                                  \
			end(1, "rank %d: %s: %s", rank, #call, gantry_result_text(got));                               \
	} while (0)

/* Small integers: their sums are exact. */
static float value(int rank, size_t i)
{
	return (float)(i % 1000 + (size_t)rank * 5000);
}

/* The array of both ranks, in host memory, becomes its sum. */
static void add_up(const struct gantry_unique_id *id, int rank, enum gantry_device_kind kind, float *array,
		   size_t count)
{
	struct gantry_comm_config config = {.struct_size = sizeof(config), .id = *id, .rank = rank, .nranks = 2};
	struct gantry_stream *stream;
	struct gantry_comm *comm;
	void *buf;

	CHECK(gantry_device_open(kind, 0, &config.device)); /* the host, or GPU 0 */
	CHECK(gantry_stream_create(config.device, &stream));
	CHECK(gantry_mem_alloc(config.device, count * sizeof(float), &buf));
	CHECK(gantry_mem_copy(config.device, buf, array, count * sizeof(float)));
	CHECK(gantry_comm_init(&config, &comm)); /* returns when both ranks are there */

	/* In place: the result replaces what this rank had. All ranks call it, with the same count, type and reduction. */
	CHECK(gantry_all_reduce(buf, buf, count, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, comm, stream));
	CHECK(gantry_stream_sync(config.device, stream)); /* it has ended */
	CHECK(gantry_comm_error(comm, NULL, NULL, 0));	  /* without an error */
	CHECK(gantry_mem_copy(config.device, array, buf, count * sizeof(float)));
	printf("rank %d: the sum of %zu floats over %s\n", rank, count, gantry_comm_transport(comm, 1 - rank));

	CHECK(gantry_comm_destroy(comm));
	CHECK(gantry_mem_free(config.device, buf));
	CHECK(gantry_stream_destroy(config.device, stream));
	gantry_device_close(config.device);
}

static void run_rank(int rank, size_t bytes, int cuda)
{
	size_t count = bytes / sizeof(float) + (bytes % sizeof(float) != 0), wrong = 0;
	float *array = malloc(count * sizeof(float));
	struct gantry_unique_id id;

	if (!array)
		end(1, "rank %d: no memory for %zu floats", rank, count);
	for (size_t i = 0; i < count; i++)
		array[i] = value(rank, i);
	if (rank == 0) {
		CHECK(gantry_unique_id_create(&id)); /* the ranks meet at rank 0, and the id says where that is */
		tell(&id, sizeof(id));
	} else {
		hear(&id, sizeof(id));
	}
	add_up(&id, rank, cuda ? GANTRY_DEVICE_CUDA : GANTRY_DEVICE_HOST, array, count);
	for (size_t i = 0; i < count; i++)
		wrong += array[i] != value(0, i) + value(1, i);
	free(array);
	if (wrong)
		end(1, "rank %d: %zu sums are wrong", rank, wrong);
}

int main(int argc, char **argv)
{
	size_t bytes = 16 << 20;
	int cuda;

	parse(argc, argv, &bytes, &cuda);
	if (run_two(run_rank, bytes, cuda))
		return 1;
	printf("0 wrong\n");
	return 0;
}
