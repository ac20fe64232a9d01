/* SPDX-License-Identifier: Apache-2.0 */
/* What CPUs a rank counts on. Catches: ranks that take all CPUs for theirs, and ranks with CPUs of their own that divide them. */
#include <sched.h>

#include "base/eventcount.h"
#include "comm/comm.h"
#include "comm/comm_coll.h"
#include "comm_world.h"

enum { RANKS = 3 };

static bool apart; /* each rank's thread has a CPU of its own */

static void keep_to_cpu(int which)
{
	cpu_set_t all, one;
	int cpu = 0;

	CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
	while (!CPU_ISSET(cpu, &all) || which-- > 0)
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
}

static void look(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		 struct gantry_stream *s)
{
	uint32_t cpus = apart ? 1 : (uint32_t)gantry_wait_limits()->cpus, ranks = apart ? 1 : (uint32_t)w->nranks;

	(void)rank;
	(void)dev;
	(void)s;
	for (int i = 0; i < w->nranks; i++)
		CHECK_EQ(comm->infos[i].cpus, cpus); /* one process has all ranks */
	CHECK_EQ(comm->coll->model.limits.cores, cpus / ranks ? cpus / ranks : 1);
	CHECK_EQ(comm->coll->model.limits.crowd, ranks > cpus ? ranks * COLL_CROWD / cpus : COLL_CROWD);
	CHECK_OK(gantry_comm_destroy(comm));
}

static void *run_rank(void *arg)
{
	struct world_thread *t = arg;

	if (apart)
		keep_to_cpu(t->rank);
	world_rank(t->w, t->rank);
	return NULL;
}

static void run_ranks(int n)
{
	struct world w = {.nranks = n, .transport = "auto", .body = look};
	struct world_thread args[RANKS];
	pthread_t threads[RANKS];

	CHECK_OK(gantry_unique_id_create(&w.id));
	for (int i = 0; i < n; i++)
		args[i] = (struct world_thread){&w, i};
	threads_start(threads, n, run_rank, args, sizeof(args[0]));
	threads_join(threads, n);
}

TEST(ranks_share_cpus)
{
	apart = false;
	for (int n = 1; n <= RANKS; n++)
		run_ranks(n);
}

TEST(ranks_with_cpus_of_their_own)
{
	apart = true;
	if (gantry_wait_limits()->cpus >= 2)
		run_ranks(2);
}
