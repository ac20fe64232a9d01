/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_idle TRANSPORT FOLDER COMMS CHANNELS: two processes with so many communicators and channels between them, all of
 * them connected both ways, used once and then left alone for some seconds.
 */
#include "comm_util.h"

enum { COMMS_MAX = 256, PER_CHANNEL = 128 << 10, IDLE_MS = 3000 };

static int comms, channels;
static const char *transport, *folder;
static struct pair_shared *shared;

static void be_rank(int rank)
{
	static struct node nodes[COMMS_MAX];
	size_t size = (size_t)channels * PER_CHANNEL;
	struct gantry_comm_counters counters = GANTRY_COMM_COUNTERS_INIT;
	char name[64];

	for (int i = 0; i < comms; i++) {
		struct gantry_unique_id id;

		snprintf(name, sizeof(name), "%d", i);
		id_meet(folder, name, rank == 0, &id);
		node_open(&nodes[i], &id, rank, 2, transport, channels, size);
		CHECK_OK(node_exchange(&nodes[i], 1, size, (uint32_t)i));
		CHECK_STR(gantry_comm_transport(nodes[i].comm, !rank), transport);
		gantry_comm_get_counters(nodes[i].comm, &counters);
		CHECK_EQ(counters.send_bytes, size);
		CHECK_EQ(counters.recv_bytes, size);
	}
	snprintf(name, sizeof(name), "%s, %d connections", transport, comms * channels * 2);
	pair_measure_idle(&(struct pair_side){.self = rank, .other = !rank, .shared = shared}, name, IDLE_MS);
	for (int i = 0; i < comms; i++) { /* they still work */
		CHECK_OK(node_exchange(&nodes[i], 1, size, 100 + (uint32_t)i));
		CHECK_OK(node_close(&nodes[i]));
	}
}

int main(int argc, char **argv)
{
	pid_t pid[2];

	CHECK(argc == 5);
	transport = argv[1];
	folder = argv[2];
	comms = atoi(argv[3]);
	channels = atoi(argv[4]);
	CHECK(comms > 0 && comms <= COMMS_MAX && channels > 0);
	node_raise_limits();
	shared = pair_share();
	setvbuf(stdout, NULL, _IOLBF, 0);
	ranks_fork(2, be_rank, pid);
	return ranks_reap(2, pid);
}
