/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_many TRANSPORT RANKS: all ranks of a communicator as threads of one process. Everybody exchanges with everybody
 * in a few sizes, every byte is checked, and afterwards the process is as it was. A JSON line says what it took.
 */
#include "comm_util.h"

static const size_t sizes[] = {1, 1000, 4000, 20000};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), ROOM = 20000, RANKS_MAX = 256 };

static struct gantry_unique_id id;
static const char *transport;
static int ranks;
static uint64_t init_ms[RANKS_MAX], first_ms[RANKS_MAX], last_ms[RANKS_MAX];
static int fds_most, threads_most;

static void *rank_main(void *arg)
{
	int rank = (int)(intptr_t)arg;
	uint64_t began = now_ms();
	struct node me;

	node_open(&me, &id, rank, ranks, transport, 0, ROOM);
	init_ms[rank] = now_ms() - began;
	for (uint32_t i = 0; i < SIZES; i++) {
		began = now_ms();
		CHECK_OK(node_exchange(&me, ranks - 1, sizes[i], i));
		*(i ? &last_ms[rank] : &first_ms[rank]) = now_ms() - began;
	}
	if (rank == 0) {
		fds_most = pair_fds();
		threads_most = pair_threads();
	}
	CHECK_OK(node_close(&me));
	return NULL;
}

static uint64_t most(const uint64_t *of)
{
	uint64_t m = 0;

	for (int i = 0; i < ranks; i++)
		m = of[i] > m ? of[i] : m;
	return m;
}

int main(int argc, char **argv)
{
	int fds = pair_fds(), before = pair_threads();
	uint64_t began = now_ms();

	CHECK(argc == 3);
	transport = argv[1];
	ranks = atoi(argv[2]);
	CHECK(ranks > 1 && ranks <= RANKS_MAX);
	node_raise_limits();
	CHECK_OK(gantry_unique_id_create(&id));
	ranks_thread(ranks, rank_main);
	settle(fds, before, "at the end");
	printf("{\"transport\": \"%s\", \"ranks\": %d, \"init_ms\": %llu, \"first_exchange_ms\": %llu, "
	       "\"last_exchange_ms\": %llu, \"all_ms\": %llu, \"cpu_ms\": %llu, \"fds\": %d, \"threads\": %d}\n",
	       transport, ranks, (unsigned long long)most(init_ms), (unsigned long long)most(first_ms),
	       (unsigned long long)most(last_ms), (unsigned long long)(now_ms() - began),
	       (unsigned long long)cpu_us() / 1000, fds_most, threads_most);
	return 0;
}
