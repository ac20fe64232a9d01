/* SPDX-License-Identifier: Apache-2.0 */
/*
 * p2p is tried before it is chosen: ranks are processes, and the host device of each plays a GPU, which no other process
 * sees. Where one cannot open memory of another, or what it writes there does not arrive, both take shm, and their collectives
 * are right.
 */
#include <sys/socket.h>

#include "comm/comm.h"
#include "device/device.h"
#include "gantry/comm.h"
#include "test.h"

enum { COUNT = 100003, RANKS_MOST = 3 };

/* What a rank's GPU cannot do. */
enum fault { NO_FAULT, NO_EXPORT, NO_OPEN, DROPS_WRITES };

struct role {
	const char *bus_id;
	enum fault fault;
	const char *transports[RANKS_MOST]; /* expected, by peer; NULL: this rank */
	const char *logged;		    /* one line of warning or error with this; NULL: none */
};

static const struct gantry_device_ops *real_ops;
static int copies;

static gantry_result fail_export(struct gantry_device *d, void *base, size_t size, struct gantry_ipc_handle *ret_handle)
{
	(void)d, (void)base, (void)size, (void)ret_handle;
	return gantry_fail(GANTRY_ERR_DEVICE, GANTRY_SUBSYS_DEVICE, __FILE__, __LINE__, "export is not supported here");
}

static gantry_result fail_open(struct gantry_device *d, const struct gantry_ipc_handle *handle, void **ret_ptr)
{
	(void)d, (void)handle, (void)ret_ptr;
	return gantry_fail(GANTRY_ERR_DEVICE, GANTRY_SUBSYS_DEVICE, __FILE__, __LINE__,
			   "map memory: not permitted (800)");
}

/* The second copy of each probe goes to the peer. */
static gantry_result drop_copy(struct gantry_device *d, void *to, const void *from, size_t size)
{
	const uint64_t zero = 0;

	return real_ops->copy(d, to, size == sizeof(zero) && ++copies % 4 == 2 ? &zero : from, size);
}

static void plant(struct gantry_device_ops *ops, enum fault fault)
{
	if (fault == NO_EXPORT)
		ops->ipc_export = fail_export;
	if (fault == NO_OPEN)
		ops->ipc_open = fail_open;
	if (fault == DROPS_WRITES)
		ops->copy = drop_copy;
}

static void check_reduced(struct gantry_comm *comm, struct gantry_device *dev, int rank, int nranks)
{
	struct gantry_stream *s;
	void *in = NULL, *out = NULL;
	float *a, *b;

	CHECK_OK(gantry_stream_create(dev, &s));
	CHECK_OK(dev->ops->alloc(dev, COUNT * sizeof(float), &in));
	CHECK_OK(dev->ops->alloc(dev, COUNT * sizeof(float), &out));
	a = in;
	b = out;
	for (int i = 0; i < COUNT; i++)
		a[i] = (float)((i % 1000) * (rank + 1));
	CHECK_OK(gantry_all_reduce(in, out, COUNT, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(b[i], (i % 1000) * (nranks * (nranks + 1) / 2));
	/* Every pair, so that each chooses. */
	CHECK_OK(gantry_group_start());
	for (int i = 0; i < nranks; i++) {
		if (i == rank)
			continue;
		CHECK_OK(gantry_send(a, 1000, GANTRY_TYPE_FLOAT32, i, comm, s));
		CHECK_OK(gantry_recv(b + 1000 * i, 1000, GANTRY_TYPE_FLOAT32, i, comm, s));
	}
	CHECK_OK(gantry_group_end());
	CHECK_OK(gantry_stream_sync(dev, s));
	for (int i = 0; i < 1000 * nranks; i++)
		CHECK_EQ(b[i], (i % 1000) * (i / 1000 == rank ? nranks * (nranks + 1) / 2 : i / 1000 + 1));
	CHECK_OK(dev->ops->free(dev, in));
	CHECK_OK(dev->ops->free(dev, out));
	gantry_stream_destroy(dev, s);
}

/* fd: to rank 0, or rank 0's to all others. */
static void exchange_id(int rank, int nranks, const int *fds, struct gantry_unique_id *id)
{
	if (rank) {
		CHECK_EQ(recv(fds[rank * 2], id, sizeof(*id), MSG_WAITALL), sizeof(*id));
		return;
	}
	CHECK_OK(gantry_unique_id_create(id));
	for (int i = 1; i < nranks; i++)
		CHECK_EQ(write(fds[i * 2 + 1], id, sizeof(*id)), sizeof(*id));
}

static void run_rank(const struct role *role, int rank, int nranks, const int *fds, const char *transport)
{
	struct gantry_comm_config config = {
		.struct_size = sizeof(config), .rank = rank, .nranks = nranks, .transport = transport};
	struct gantry_device_ops ops;
	struct gantry_comm *comm;
	struct gantry_device *dev;

	logs_keep();
	CHECK_OK(gantry_device_host(&dev));
	snprintf(dev->bus_id, sizeof(dev->bus_id), "%s", role->bus_id);
	dev->sleeps = 0;
	real_ops = dev->ops;
	ops = *dev->ops;
	plant(&ops, role->fault);
	config.device = dev;
	exchange_id(rank, nranks, fds, &config.id);
	dev->ops = &ops;
	CHECK_OK(gantry_comm_init(&config, &comm));
	check_reduced(comm, dev, rank, nranks);
	for (int i = 0; i < nranks; i++)
		if (i != rank)
			CHECK_STR(gantry_comm_transport(comm, i), role->transports[i]);
	if (logs_count("WARN ") + logs_count("ERROR ") != (role->logged != NULL) ||
	    (role->logged && logs_count(role->logged) != 1))
		TEST_FAIL("rank %d logged:\n%s", rank, logs_text());
	CHECK_OK(gantry_comm_destroy(comm));
	dev->ops = real_ops;
	gantry_device_close(dev);
}

static void run_ranks(const struct role *roles, int nranks, const char *transport)
{
	int fds[RANKS_MOST * 2];
	pid_t pids[RANKS_MOST];

	for (int i = 0; i < nranks; i++)
		CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, &fds[i * 2]), 0);
	for (int i = 0; i < nranks; i++) {
		pids[i] = child_fork();
		if (pids[i] == 0) {
			run_rank(&roles[i], i, nranks, fds, transport);
			child_end(0);
		}
	}
	for (int i = 0; i < nranks * 2; i++)
		close(fds[i]);
	for (int i = 0; i < nranks; i++)
		child_wait(pids[i]);
}

#define GPU0 "0000:01:00.0"
#define GPU1 "0000:02:00.0"

TEST(gpus_that_see_only_themselves)
{
	static const struct role roles[] = {
		{GPU0, NO_FAULT, {NULL, "p2p"}, NULL},
		{GPU1, NO_FAULT, {"p2p", NULL}, NULL},
	};

	run_ranks(roles, 2, "auto");
}

TEST(memory_that_cannot_be_opened)
{
	static const struct role roles[] = {
		{GPU0, NO_FAULT, {NULL, "shm"}, NULL},
		{GPU1, NO_OPEN, {"shm", NULL}, "rank 1 does not use p2p with rank 0: map memory: not permitted (800)"},
	};

	run_ranks(roles, 2, "auto");
}

TEST(memory_that_cannot_be_exported)
{
	static const struct role roles[] = {
		{GPU0, NO_FAULT, {NULL, "shm"}, NULL},
		{GPU1, NO_EXPORT, {"shm", NULL}, "rank 1 does not use p2p with any rank: export is not supported here"},
	};

	run_ranks(roles, 2, "auto");
}

/* CUDA IPC fails between containers on the same GPU too. */
TEST(one_gpu)
{
	static const struct role good[] = {
		{GPU0, NO_FAULT, {NULL, "p2p"}, NULL},
		{GPU0, NO_FAULT, {"p2p", NULL}, NULL},
	};
	static const struct role bad[] = {
		{GPU0, NO_OPEN, {NULL, "shm"}, "rank 0 does not use p2p with rank 1: map memory: not permitted (800)"},
		{GPU0, NO_FAULT, {"shm", NULL}, NULL},
	};

	run_ranks(good, 2, "auto");
	run_ranks(bad, 2, "auto");
}

TEST(writes_that_do_not_arrive)
{
	static const struct role roles[] = {
		{GPU0,
		 DROPS_WRITES,
		 {NULL, "shm"},
		 "rank 0 does not use p2p with rank 1: writes of GPU " GPU0 " to memory of GPU " GPU1
		 " do not arrive"},
		{GPU1, NO_FAULT, {"shm", NULL}, NULL},
	};

	run_ranks(roles, 2, "auto");
}

/* The others keep p2p; without shm the network is left. */
TEST(one_of_three)
{
	static const struct role roles[] = {
		{GPU0, NO_FAULT, {NULL, "p2p", "net"}, NULL},
		{GPU1, NO_FAULT, {"p2p", NULL, "net"}, NULL},
		{"0000:03:00.0", NO_OPEN, {"net", "net", NULL}, "rank 2 does not use p2p with rank 0, 1: map memory"},
	};

	run_ranks(roles, 3, "p2p,net");
}

void tests_begin(void)
{
	if (!CAN_FORK)
		SKIP("fork and the thread sanitizer");
	CHECK_OK(gantry_params_load(0));
	/* Host devices have lines of LL128 everywhere, and p2p between two GPUs has none. */
	set_params("GANTRY_PROTO", "simple");
}

/* Ranks on these GPUs of these hosts; a host of 0: on its CPUs. */
static enum comm_reach reach(int nranks, const int *hosts, const char *const *gpus)
{
	struct gantry_peer_info infos[4];
	struct gantry_comm *comm = calloc(1, sizeof(*comm));
	enum comm_reach r;

	memset(infos, 0, sizeof(infos));
	for (int i = 0; i < nranks; i++) {
		infos[i].device_kind = hosts[i] ? GANTRY_DEVICE_CUDA : GANTRY_DEVICE_HOST;
		infos[i].host = (uint64_t)hosts[i];
		infos[i].process = (uint64_t)i + 1;
		snprintf(infos[i].bus_id, sizeof(infos[i].bus_id), "%s", gpus[i]);
	}
	comm->nranks = nranks;
	comm->infos = infos;
	comm->transport = (char[]){"auto"};
	r = comm_reach(comm);
	comm->probe.failed = 1;
	CHECK_EQ(comm_reach(comm), COMM_REACH_NOT);
	free(comm);
	return r;
}

TEST(how_far_gpus_reach)
{
	static const char *const one[] = {GPU0, GPU0, GPU0, GPU0}, *const two[] = {GPU0, GPU1, GPU0, GPU1};
	static const int host[] = {7, 7, 7, 7}, hosts[] = {7, 7, 8, 8}, mixed[] = {7, 0, 7, 7};

	CHECK_EQ(reach(4, host, one), COMM_REACH_GPU);
	CHECK_EQ(reach(4, host, two), COMM_REACH_HOST);
	CHECK_EQ(reach(4, hosts, two), COMM_REACH_HOSTS);
	CHECK_EQ(reach(4, hosts, one), COMM_REACH_HOSTS); /* GPUs of two hosts that are called alike */
	CHECK_EQ(reach(4, mixed, one), COMM_REACH_NOT);
}
