/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child that is forked while its parent has communicators makes, uses and destroys its own, and so do children of it; the
 * parent's are refused there, and the parent notices nothing.
 */
#include "comm_world.h"

enum { COUNT = 50000 };

static struct gantry_comm *inherited;
static struct gantry_stream *inherited_stream;
static struct gantry_device *inherited_device;
static int depth;

static void reduce(int rank, int nranks, struct gantry_comm *comm, struct gantry_device *dev, struct gantry_stream *s)
{
	int32_t *in = malloc(COUNT * sizeof(*in)), *out = calloc(COUNT, sizeof(*out));

	for (int i = 0; i < COUNT; i++)
		in[i] = i + rank;
	CHECK_OK(gantry_all_reduce(in, out, COUNT, GANTRY_TYPE_INT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(out[i], nranks * i + nranks * (nranks - 1) / 2);
	free(in);
	free(out);
}

static void use_world(void (*middle)(struct world *w));

static void child_main(void)
{
	if (inherited) {
		CHECK_EQ(gantry_comm_destroy(inherited), GANTRY_ERR_USAGE);
		CHECK_HAS(gantry_last_error(), "forked");
		CHECK_OK(gantry_stream_destroy(inherited_device, inherited_stream));
		gantry_device_close(inherited_device);
	}
	use_world(NULL);
	if (depth--)
		use_world(NULL);
}

static void fork_now(struct world *w)
{
	pid_t pid = child_fork();

	(void)w;
	if (!pid) {
		child_main();
		_exit(0);
	}
	child_wait(pid);
}

static void body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		 struct gantry_stream *s)
{
	reduce(rank, w->nranks, comm, dev, s);
	if (w->dir[0]) {
		if (rank == 0) {
			inherited = comm;
			inherited_stream = s;
			inherited_device = dev;
		}
		pthread_barrier_wait(&w->all);
		pthread_barrier_wait(&w->over);
		reduce(rank, w->nranks, comm, dev, s);
	}
	CHECK_OK(gantry_comm_destroy(comm));
}

static const char *transport;

static void use_world(void (*middle)(struct world *w))
{
	struct world w = {.body = body, .nranks = 3, .channels = 2, .transport = transport};

	w.dir[0] = middle != NULL;
	world_threads(&w, middle);
}

TEST(a_child_has_its_own)
{
	static const char *const transports[] = {"shm", "p2p", "net"};

	if (!CAN_FORK)
		SKIP("ThreadSanitizer does not follow a process with threads through a fork");
#ifdef __SANITIZE_ADDRESS__
	SKIP("AddressSanitizer's allocator stays locked in a child if a thread of the parent was in it");
#endif
	setenv("GANTRY_IFNAME", "lo", 0);
	EACH_ROW (i, transports) {
		transport = transports[i];
		depth = 1;
		use_world(fork_now);
	}
}
