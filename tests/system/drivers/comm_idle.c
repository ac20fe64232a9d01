/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_idle TRANSPORT FILE COMMS CHANNELS: two processes with so many communicators and channels between them, all of
 * them connected both ways, used once and then left alone for some seconds: each process may use 1 % of a CPU at most,
 * in one of a few measurements (others on this machine can only make it more). JSON lines.
 */
#include "comm_util.h"

enum { COMMS_MAX = 256, PER_CHANNEL = 128 << 10, IDLE_MS = 3000, TIMES = 5 };

static int comms, channels;
static struct pair_shared *shared;

static void measure_idle(int rank, const char *transport)
{
	struct pair_side me = {.self = rank, .other = !rank, .shared = shared};
	uint64_t cpu, begun, used, took, (*good)[8] = shared->number;

	for (uint32_t i = 0; i < TIMES && !(i && good[0][0] && good[1][0]); i++) {
		pair_step(&me, 2 * i + 1);
		pair_wait_step(shared, !rank, 2 * i + 1);
		sleep_ms(500); /* spinning and yielding are over */
		cpu = cpu_us();
		begun = now_ms();
		sleep_ms(IDLE_MS);
		used = cpu_us() - cpu;
		took = now_ms() - begun;
		printf("{\"transport\": \"%s\", \"rank\": %d, \"connections\": %d, \"idle_ms\": %llu, \"cpu_us\": "
		       "%llu, "
		       "\"percent\": %.3f, \"threads\": %d, \"fds\": %d}\n",
		       transport, rank, comms * channels * 2, (unsigned long long)took, (unsigned long long)used,
		       (double)used / (double)took / 10, pair_threads(), pair_fds());
		if (used * 100 < took * 1000)
			good[rank][0] = 1;
		pair_step(&me, 2 * i + 2);
		pair_wait_step(shared, !rank, 2 * i + 2);
	}
	CHECK(good[rank][0]);
}

static void be_rank(int rank, const char *transport, const char *path)
{
	static struct node nodes[COMMS_MAX];
	size_t size = (size_t)channels * PER_CHANNEL;
	struct gantry_comm_counters counters = GANTRY_COMM_COUNTERS_INIT;

	for (int i = 0; i < comms; i++) {
		struct gantry_unique_id id;
		char name[4096];

		snprintf(name, sizeof(name), "%s.%d", path, i);
		id_meet(name, rank == 0, &id);
		node_open(&nodes[i], &id, rank, 2, transport, channels, size);
		CHECK_OK(node_exchange(&nodes[i], 1, size, (uint32_t)i));
		CHECK_STR(gantry_comm_transport(nodes[i].comm, !rank), transport);
		gantry_comm_get_counters(nodes[i].comm, &counters);
		CHECK_EQ(counters.send_bytes, size);
		CHECK_EQ(counters.recv_bytes, size);
	}
	measure_idle(rank, transport);
	for (int i = 0; i < comms; i++) { /* they still work */
		CHECK_OK(node_exchange(&nodes[i], 1, size, 100 + (uint32_t)i));
		CHECK_OK(node_close(&nodes[i]));
	}
}

int main(int argc, char **argv)
{
	pid_t pid[2];
	int failed = 0;

	CHECK(argc == 5);
	comms = atoi(argv[3]);
	channels = atoi(argv[4]);
	CHECK(comms > 0 && comms <= COMMS_MAX && channels > 0);
	node_raise_limits();
	shared = pair_share();
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0);
		if (pid[i] == 0) {
			alarm(PAIR_ALARM_S);
			be_rank(i, argv[1], argv[2]);
			exit(0);
		}
	}
	for (int i = 0; i < 2; i++)
		failed |= pair_reap(pid[i], 0);
	return failed;
}
