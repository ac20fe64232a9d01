/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One service thread per process: the plugin's tables, two ranks of a communicator and a pipeline at the same time, all
 * of them at work, and threads of Gantry counted by their names. The plugin's sources are compiled into this file, so
 * that all of it is one copy, as it would be in one library.
 */
#include "plugin/plugin.c"
#include "plugin/profiler.c"
#include "plugin/start.c"
#include "plugin/tune.c"

#include "comm_world.h"
#include "inet/loop.h"
#include "rx_util.h"

static const ncclNet_v8_t *const plugin = &ncclNetPlugin_v8;

/* Threads with this name; NULL: threads of Gantry that are neither that nor helpers of streams, blocks or the proxy. */
static int count_threads(const char *name)
{
	static const char *const others[] = {"gantry-stream", "gantry-block", "gantry-proxy", "gantry-helper"};
	DIR *d = opendir("/proc/self/task");
	int n = 0;

	CHECK(d);
	for (struct dirent *e; (e = readdir(d));) {
		char path[300], comm[32] = "";
		FILE *f;
		int other = 0;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		f = fopen(path, "r");
		if (f && fgets(comm, sizeof(comm), f))
			comm[strcspn(comm, "\n")] = 0;
		if (f)
			fclose(f);
		for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
			other |= !strcmp(comm, others[i]);
		n += name ? !strcmp(comm, name) : !strncmp(comm, "gantry-", 7) && !other;
	}
	closedir(d);
	return n;
}

/* ---- a communicator of two ranks over the network ---- */

static void transfer(struct gantry_comm *comm, int rank, struct gantry_device *dev, struct gantry_stream *s)
{
	void *buf = NULL;

	CHECK_OK(gantry_mem_alloc(dev, 65536, &buf));
	CHECK_OK(rank ? gantry_recv(buf, 65536, GANTRY_TYPE_UINT8, 0, comm, s)
		      : gantry_send(buf, 65536, GANTRY_TYPE_UINT8, 1, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_mem_free(dev, buf));
}

static void run_rank(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		     struct gantry_stream *s)
{
	transfer(comm, rank, dev, s);
	pthread_barrier_wait(&w->all);
	transfer(comm, rank, dev, s);
	pthread_barrier_wait(&w->over);
	CHECK_OK(gantry_comm_destroy(comm));
}

/* ---- the plugin ---- */

static void no_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
}

static void *send_comm, *recv_comm;

static void connect_plugin(void)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE];
	void *listen = NULL;

	CHECK_EQ(plugin->init(no_log), ncclSuccess);
	CHECK_EQ(plugin->listen(0, handle, &listen), ncclSuccess);
	UNTIL((send_comm || plugin->connect(0, handle, &send_comm, NULL) == ncclSuccess) &&
	      (recv_comm || plugin->accept(listen, &recv_comm, NULL) == ncclSuccess) && send_comm && recv_comm);
	CHECK_EQ(plugin->closeListen(listen), ncclSuccess);
}

static void plugin_transfer(void)
{
	char out[100] = "to the plugin", in[100] = "";
	void *data = in, *none = NULL, *s = NULL, *r = NULL;
	int size = sizeof(in), tag = 7, done[2] = {0, 0};

	CHECK_EQ(plugin->irecv(recv_comm, 1, &data, &size, &tag, &none, &r), ncclSuccess);
	CHECK_EQ(plugin->isend(send_comm, out, size, tag, NULL, &s), ncclSuccess);
	CHECK(s && r);
	while (!done[0] || !done[1]) {
		if (!done[0])
			CHECK_EQ(plugin->test(s, &done[0], NULL), ncclSuccess);
		if (!done[1])
			CHECK_EQ(plugin->test(r, &done[1], NULL), ncclSuccess);
	}
	CHECK_STR(in, out);
}

/* The ranks, the plugin and a pipeline. */
static void all_at_work(struct world *w)
{
	struct rx_pair pipeline;
	uint64_t passes;

	rx_pair_open(&pipeline, NULL);
	plugin_transfer();
	CHECK_EQ(count_threads("gantry-service"), 1);
	CHECK_EQ(count_threads(NULL), 1);
	inet_loop_lock();
	passes = inet_loop.passes;
	inet_loop_unlock();
	CHECK(passes > 0);
	/* One goes after the other, and the thread with the last of them. */
	rx_pair_close(&pipeline);
	CHECK_EQ(count_threads("gantry-service"), 1);
}

TEST(one_loop)
{
	struct world w = {.nranks = 2, .transport = "net", .body = run_rank};

	CHECK_EQ(count_threads("gantry-service"), 0);
	connect_plugin();
	CHECK_EQ(count_threads("gantry-service"), 1);
	world_threads(&w, all_at_work);
	plugin_transfer();
	CHECK_EQ(count_threads("gantry-service"), 1);
	CHECK_EQ(plugin->closeSend(send_comm), ncclSuccess);
	CHECK_EQ(plugin->closeRecv(recv_comm), ncclSuccess);
	UNTIL(count_threads("gantry-service") == 0);
	CHECK_EQ(count_threads(NULL), 0);
}
