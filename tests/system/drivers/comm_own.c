/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_own CASE VICTIM TRANSPORT FOLDER: five processes, one rank each, that exchange messages in a ring. The victim
 * lacks something of its own when it connects:
 *
 *   plugin   the net plugin that GANTRY_NET_PLUGIN names is not there
 *   nofile   it may open no further descriptor
 *   late     the same; rank 4 is late, rank 3, which waits for it, is stopped until the hub has gone with rank 0, and so
 *            hears in one moment why rank 1 has left, that it has, and that the hub is gone
 *
 * Every rank must be told that this is about the victim, with the victim's reason: the victim, its neighbours and those
 * who have no connection to it. A line for each says what it was told.
 */
#include <signal.h>

#include "comm_util.h"

enum { N = 5 };

static const char *what, *transport, *folder;
static int victim;

static void be_late(int rank)
{
	if (rank == victim)
		usleep(300000);
	if (rank == 4)
		usleep(2500000);
	if (rank == 3 && fork() == 0) {
		usleep(150000);
		kill(getppid(), SIGSTOP);
		usleep(1500000);
		kill(getppid(), SIGCONT);
		_exit(0);
	}
}

/* Its network does not start, so no rank gets a communicator: each is given the rank and the reason. */
static void be_without_plugin(int rank)
{
	struct gantry_unique_id id;
	char name[32];
	struct node me;
	gantry_result r;

	if (rank == victim)
		setenv("GANTRY_NET_PLUGIN", "/nonexistent/libnccl-net-x.so", 1);
	id_meet(folder, "id", rank == 0, &id);
	r = node_try_open(&me, &id, rank, N, transport, 1, 4096);
	printf("rank %d: %s: %s\n", rank, gantry_result_name(r), gantry_last_error());
	fflush(stdout);
	CHECK_EQ(r, GANTRY_ERR_CONFIG);
	CHECK(strstr(gantry_last_error(), "/nonexistent/libnccl-net-x.so"));
	snprintf(name, sizeof(name), "rank %d ", victim);
	if (rank != victim)
		CHECK(strstr(gantry_last_error(), name));
	node_close(&me);
}

static void be_rank(int rank)
{
	int about = -1;
	struct gantry_unique_id id;
	char text[256] = "";
	gantry_result r = GANTRY_OK;
	struct node me;

	alarm(PAIR_PATIENCE_MS / 1000);
	if (strcmp(what, "plugin") == 0) {
		be_without_plugin(rank);
		return;
	}
	id_meet(folder, "id", rank == 0, &id);
	node_open(&me, &id, rank, N, transport, 1, 4096);
	if (rank == victim) {
		struct rlimit none = {.rlim_cur = 0, .rlim_max = 0};

		CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	}
	if (strcmp(what, "late") == 0)
		be_late(rank);
	for (uint32_t round = 0; r == GANTRY_OK; round++)
		r = node_exchange(&me, 1, 4096, round);
	CHECK_EQ(gantry_comm_error(me.comm, &about, text, sizeof(text)), r);
	printf("rank %d: %s about rank %d: %s\n", rank, gantry_result_name(r), about, text);
	fflush(stdout);
	CHECK_EQ(r, GANTRY_ERR_LIMIT);
	CHECK_EQ(about, victim);
	CHECK(strstr(text, "Too many open files"));
	if (rank != victim)
		CHECK(strstr(text, "failed and left"));
	node_close(&me);
}

int main(int argc, char **argv)
{
	pid_t pids[N];

	CHECK_EQ(argc, 5);
	what = argv[1];
	victim = atoi(argv[2]);
	transport = argv[3];
	folder = argv[4];
	ranks_fork(N, be_rank, pids);
	return ranks_reap(N, pids);
}
