/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_pair TRANSPORT processes|threads FOLDER: two ranks exchange messages of many sizes in both directions, every byte
 * checked, over the transport of this name and no other. FOLDER: where the id is put for the other process.
 */
#include "comm_util.h"

static const size_t sizes[] = {0, 1, 3, 8, 1000, 4096, 65535, 65536, 65537, 700001, 5 << 20};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), ROOM = 5 << 20, ROUNDS = 3 };

static const char *transport, *folder;

static void be_rank(int rank)
{
	struct gantry_unique_id id;
	struct gantry_comm_counters counters = GANTRY_COMM_COUNTERS_INIT;
	uint64_t bytes = 0, begun = now_ms();
	struct node me;

	id_meet(folder, "id", rank == 0, &id);
	node_open(&me, &id, rank, 2, NULL, 0, ROOM); /* GANTRY_TRANSPORT says which */
	for (uint32_t i = 0; i < ROUNDS * SIZES; i++) {
		CHECK_OK(node_exchange(&me, 1, sizes[i % SIZES], i));
		bytes += sizes[i % SIZES];
	}
	CHECK_STR(gantry_comm_transport(me.comm, !rank), transport);
	gantry_comm_get_counters(me.comm, &counters);
	CHECK_EQ(counters.send_bytes, bytes);
	CHECK_EQ(counters.recv_bytes, bytes);
	CHECK_OK(node_close(&me));
	printf("{\"transport\": \"%s\", \"rank\": %d, \"messages\": %d, \"bytes\": %llu, \"ms\": %llu}\n", transport,
	       rank, ROUNDS * SIZES, (unsigned long long)bytes, (unsigned long long)(now_ms() - begun));
}

static void *rank_thread(void *arg)
{
	be_rank((int)(intptr_t)arg);
	return NULL;
}

int main(int argc, char **argv)
{
	pid_t pid[2];

	CHECK(argc == 4);
	transport = argv[1];
	folder = argv[3];
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(PAIR_ALARM_S);
	if (strcmp(argv[2], "threads") == 0) {
		ranks_thread(2, rank_thread);
		return 0;
	}
	ranks_fork(2, be_rank, pid);
	return ranks_reap(2, pid);
}
