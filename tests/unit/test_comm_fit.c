/* SPDX-License-Identifier: Apache-2.0 */
/* GANTRY_MODEL=measured: communicators that time their connections when they are made, all ranks with the same figures. */
#include "comm/comm_coll.h"
#include "comm_world.h"

static struct coll_model seen[WORLD_MOST];

static void look(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		 struct gantry_stream *s)
{
	const struct coll_model *m = &comm->coll->model;
	int32_t words[300], sums[300];

	seen[rank] = *m;
	CHECK_EQ(m->fitted, w->nranks > 1);
	CHECK(!comm->coll->again.kernel); /* the program made none of the calls that were timed */
	for (int k = 1; k <= 300; k += 299) {
		for (int i = 0; i < k; i++)
			words[i] = rank * 1000 + i;
		CHECK_OK(gantry_all_reduce(words, sums, (size_t)k, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
		CHECK_OK(gantry_stream_sync(dev, s));
		for (int i = 0; i < k; i++)
			CHECK_EQ(sums[i], w->nranks * (w->nranks - 1) / 2 * 1000 + w->nranks * i);
	}
	CHECK(gantry_list_empty(&comm->regs));
	CHECK_OK(gantry_comm_destroy(comm));
}

static void run(struct world *w)
{
	world_threads(w, NULL);
	for (int i = 1; i < w->nranks; i++) {
		CHECK_EQ(seen[i].begin, seen[0].begin);
		CHECK(memcmp(seen[i].cost, seen[0].cost, sizeof(seen[0].cost)) == 0);
	}
}

TEST(all_ranks_alike)
{
	static const char *const transports[] = {"auto", "shm", "net"};
	struct world w = {.body = look};

	setenv("GANTRY_IFNAME", "lo", 0);
	setenv("GANTRY_MODEL", "measured", 1);
	for (size_t t = 0; t < TEST_COUNT(transports); t++)
		for (w.nranks = 1; w.nranks <= 4; w.nranks++) {
			w.transport = transports[t];
			CASE("%d ranks, %s", w.nranks, w.transport);
			run(&w);
		}
}

TEST(several_channels)
{
	struct world w = {.body = look, .nranks = 3, .channels = 4, .transport = "net"};

	run(&w);
}
