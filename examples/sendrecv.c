/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks exchange bytes through Gantry's communicator, and each checks every byte that it got.
 *
 *   cc sendrecv.c $(pkg-config --cflags --libs gantry) -o sendrecv
 *   ./sendrecv [BYTES] [host|cuda]           default: 16 MiB of host memory; cuda is GPU 0
 */
#include <stdio.h>
#include <stdlib.h>

#include <gantry/comm.h>

#include "two.h"

static const char *const names[2] = {"rank 0", "rank 1"};

/* Every call of Gantry says how it went. Here a rank that fails says so and ends; the other one learns of it. */
#define CHECK(call)                                                                                                    \
	do {                                                                                                           \
		gantry_result got = (call);                                                                            \
		if (got != GANTRY_OK)                                                                                  \
			end(1, "rank %d: %s: %s", rank, #call, gantry_result_text(got));                               \
	} while (0)

static unsigned char pattern(int rank, size_t i)
{
	return (unsigned char)((i * 2654435761u >> 13) + (size_t)rank * 101);
}

/* Sends `mine` to the other rank and receives `theirs`, both in host memory. */
static void exchange(const struct gantry_unique_id *id, int rank, enum gantry_device_kind kind,
		     const unsigned char *mine, unsigned char *theirs, size_t bytes)
{
	struct gantry_comm_config config = {.struct_size = sizeof(config), .id = *id, .rank = rank, .nranks = 2};
	struct gantry_stream *stream;
	struct gantry_comm *comm;
	void *out, *in;

	CHECK(gantry_device_open(kind, 0, &config.device)); /* the host, or GPU 0 */
	CHECK(gantry_stream_create(config.device, &stream));
	CHECK(gantry_mem_alloc(config.device, bytes, &out));
	CHECK(gantry_mem_alloc(config.device, bytes, &in));
	CHECK(gantry_mem_copy(config.device, out, mine, bytes));
	CHECK(gantry_comm_init(&config, &comm)); /* returns when both ranks are there */

	CHECK(gantry_group_start());
	CHECK(gantry_send(out, bytes, GANTRY_TYPE_UINT8, 1 - rank, comm, stream));
	CHECK(gantry_recv(in, bytes, GANTRY_TYPE_UINT8, 1 - rank, comm, stream));
	CHECK(gantry_group_end());			  /* both are in the stream */
	CHECK(gantry_stream_sync(config.device, stream)); /* both have ended */
	CHECK(gantry_comm_error(comm, NULL, NULL, 0));	  /* without an error */
	CHECK(gantry_mem_copy(config.device, theirs, in, bytes));
	printf("rank %d: %zu bytes each way over %s\n", rank, bytes, gantry_comm_transport(comm, 1 - rank));

	CHECK(gantry_comm_destroy(comm));
	CHECK(gantry_mem_free(config.device, in));
	CHECK(gantry_mem_free(config.device, out));
	CHECK(gantry_stream_destroy(config.device, stream));
	gantry_device_close(config.device);
}

static void run_rank(int rank, size_t bytes, int cuda)
{
	unsigned char *mine = malloc(bytes), *theirs = malloc(bytes);
	struct gantry_unique_id id;
	size_t wrong = 0;

	if (!mine || !theirs)
		end(1, "rank %d: no memory for twice %zu bytes", rank, bytes);
	for (size_t i = 0; i < bytes; i++)
		mine[i] = pattern(rank, i);
	if (rank == 0) {
		CHECK(gantry_unique_id_create(&id)); /* the ranks meet at rank 0, and the id says where that is */
		tell(&id, sizeof(id));
	} else {
		hear(&id, sizeof(id));
	}
	exchange(&id, rank, cuda ? GANTRY_DEVICE_CUDA : GANTRY_DEVICE_HOST, mine, theirs, bytes);
	for (size_t i = 0; i < bytes; i++)
		wrong += theirs[i] != pattern(1 - rank, i);
	free(mine);
	free(theirs);
	if (wrong)
		end(1, "rank %d: %zu bytes are wrong", rank, wrong);
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
