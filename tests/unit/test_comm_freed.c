/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a program registers and frees without deregistering it, under a foreign network whose registrations are for
 * all connections (regIsGlobal). What was freed is given back to the network before the address is used again, so a
 * buffer that comes to lie there is registered anew; otherwise it is registered once for all channels, and deregistered
 * with its last user.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/param.h"
#include "comm_world.h"
#include "device/freed.h"

enum { BYTES = 1 << 20, RANKS = 2, CHANNELS = 4 };

static char plugin[512];
static const int *regs, *deregs;

static void take_counters(void)
{
	void *dl = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);

	CHECK(dl);
	regs = dlsym(dl, "device_regs");
	deregs = dlsym(dl, "device_deregs");
	CHECK(regs && deregs);
}

/* To the other rank and back, all channels. */
static void exchange(struct gantry_comm *comm, struct gantry_device *dev, struct gantry_stream *s, int rank, char *out,
		     char *in, int salt)
{
	memset(out, rank + salt, BYTES);
	memset(in, 0, BYTES);
	CHECK_OK(gantry_group_start());
	CHECK_OK(gantry_send(out, BYTES, GANTRY_TYPE_UINT8, 1 - rank, comm, s));
	CHECK_OK(gantry_recv(in, BYTES, GANTRY_TYPE_UINT8, 1 - rank, comm, s));
	CHECK_OK(gantry_group_end());
	CHECK_OK(gantry_stream_sync(dev, s));
	for (int i = 0; i < BYTES; i++)
		CHECK_EQ(in[i], 1 - rank + salt);
}

static pthread_barrier_t both;
static int regs_before;

/* Both ranks are here, and one of them looks. */
static void check_counts(int rank, int more_regs, int all_deregs)
{
	pthread_barrier_wait(&both);
	if (rank == 0) {
		CHECK_EQ(*regs, regs_before + more_regs);
		CHECK_EQ(*deregs, all_deregs);
	}
	pthread_barrier_wait(&both);
}

static void body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		 struct gantry_stream *s)
{
	void *out, *in, *first, *second, *third;

	(void)w;
	CHECK_OK(gantry_mem_alloc(dev, BYTES, &out));
	CHECK_OK(gantry_mem_alloc(dev, BYTES, &in));
	CHECK_OK(gantry_comm_register(comm, out, BYTES, &first));
	CHECK_OK(gantry_comm_register(comm, in, BYTES, &second));
	exchange(comm, dev, s, rank, out, in, 1);
	pthread_barrier_wait(&both);
	if (rank == 0)
		regs_before = *regs;
	CHECK(*regs >= 2 * RANKS); /* and pools */
	check_counts(rank, 0, 0);
	exchange(comm, dev, s, rank, out, in, 2);
	check_counts(rank, 0, 0);
	for (int turn = 0; turn < RANKS; turn++) { /* else one rank may get what the other has freed */
		if (turn == rank) {
			CHECK_OK(gantry_mem_free(dev, out));
			CHECK_OK(gantry_mem_alloc(dev, BYTES, &out)); /* most likely where it was */
		}
		pthread_barrier_wait(&both);
	}
	CHECK_OK(gantry_comm_register(comm, out, BYTES, &third));
	exchange(comm, dev, s, rank, out, in, 3);
	check_counts(rank, RANKS, RANKS);
	CHECK_OK(gantry_comm_deregister(comm, third));
	CHECK_OK(gantry_comm_deregister(comm, first));
	CHECK_OK(gantry_comm_deregister(comm, second));
	check_counts(rank, RANKS, 3 * RANKS);
	CHECK_OK(gantry_comm_destroy(comm));
	pthread_barrier_wait(&both);
	CHECK_EQ(*regs, *deregs);
	CHECK_OK(gantry_mem_free(dev, out));
	CHECK_OK(gantry_mem_free(dev, in));
}

/* The record alone: what overlaps, and what is too long ago to know. */
TEST(check_record)
{
	char memory[256];
	uint64_t seen = gantry_freed_count();

	CHECK(!gantry_freed_since(seen, memory, sizeof(memory)));
	gantry_freed_put(memory + 64, 64);
	CHECK_EQ(gantry_freed_count(), seen + 1);
	CHECK(gantry_freed_since(seen, memory, sizeof(memory)));
	CHECK(gantry_freed_since(seen, memory + 127, 1));
	CHECK(gantry_freed_since(seen, memory + 60, 5));
	CHECK(!gantry_freed_since(seen, memory + 128, 64));
	CHECK(!gantry_freed_since(seen, memory, 64));
	CHECK(!gantry_freed_since(seen + 1, memory, sizeof(memory)));
	for (int i = 0; i < 63; i++)
		gantry_freed_put(memory + 200, 1);
	CHECK(!gantry_freed_since(seen, memory, 64));
	gantry_freed_put(memory + 200, 1);
	CHECK(gantry_freed_since(seen, memory, 64));
}

TEST(check_global)
{
	const char *build = getenv("BUILD_DIR");
	struct world w = {.nranks = RANKS, .channels = CHANNELS, .transport = "net", .body = body};

	if (!build)
		SKIP("no fixtures: set BUILD_DIR to the build folder");
	snprintf(plugin, sizeof(plugin), "%s/fixtures/libnccl-net-device.so", build);
	setenv("GANTRY_NET_PLUGIN", plugin, 1);
	setenv("GANTRY_TEST_GLOBAL", "1", 1);
	setenv("GANTRY_SPLIT_MIN", "65536", 1);
	setenv("GANTRY_IFNAME", "lo", 1);
	CHECK_OK(gantry_params_load(1));
	take_counters();
	pthread_barrier_init(&both, NULL, RANKS);
	world_threads(&w, NULL);
	pthread_barrier_destroy(&both);
}
