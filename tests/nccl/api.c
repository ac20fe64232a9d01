/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api processes|threads RANKS CASE...
 * api launched FILE CASE...            one rank, as RANK and WORLD_SIZE say; the file is where ids travel
 *
 * NCCL's API from end to end, by a program that uses nothing else. What is expected comes from arithmetic: element i of
 * rank r is r + i % 97. Buffers are plain memory, so it needs the host device.
 */
#include "use.h"

enum { COUNT = 1000, LARGE = 300000 };

#define N (world.nranks)
#define R (my_rank)

static int value_of(int rank, size_t i)
{
	return rank + (int)(i % 97);
}

static comm_t world_comm(void)
{
	comm_t comm = NULL;
	int v = -1;

	OK(nccl.CommInitRank(&comm, N, next_id(), R));
	TRUE(comm);
	OK(nccl.CommGetAsyncError(comm, &v));
	EQ(v, SUCCESS);
	return comm;
}

static int *ints(size_t n)
{
	int *p = calloc(n + 1, sizeof(*p));

	for (size_t i = 0; i < n; i++)
		p[i] = -7;
	return p;
}

static int *my_ints(size_t n)
{
	int *p = ints(n);

	for (size_t i = 0; i < n; i++)
		p[i] = value_of(R, i);
	return p;
}

/* ---- beginning and end ---- */

static void case_init(void)
{
	struct config config = CONFIG_INIT;
	struct unique_id id;
	comm_t comm = world_comm(), other = NULL;
	int v = -1;

	OK(nccl.CommCount(comm, &v));
	EQ(v, N);
	OK(nccl.CommUserRank(comm, &v));
	EQ(v, R);
	OK(nccl.CommCuDevice(comm, &v));
	EQ(v, 0);
	config.name = "second";
	config.blocking = 1;
	OK(nccl.CommInitRankConfig(&other, N, next_id(), R, &config));
	OK(nccl.CommFinalize(other));
	EQ(nccl.CommFinalize(other), INVALID_ARGUMENT);
	OK(nccl.CommDestroy(other));
	/* A struct of NCCL 2.17: 40 bytes, and what follows is not read. */
	config = (struct config)CONFIG_INIT;
	config.size = 40;
	config.version = 21700;
	config.split_share = 77;
	id = next_id();
	OK(nccl.CommInitRankScalable(&other, N, R, 1, &id, &config));
	OK(nccl.CommDestroy(other));
	OK(nccl.CommDestroy(comm));
	OK(nccl.CommDestroy(NULL));
	OK(nccl.CommFinalize(NULL));
	OK(nccl.CommAbort(NULL));
	OK(nccl.CommRevoke(NULL, 0));
}

static struct new_config new_config(size_t size, unsigned version)
{
	struct new_config c;

	for (int *at = (int *)&c; at < (int *)(&c + 1); at++)
		*at = INT_MIN;
	c.old = (struct config)CONFIG_INIT;
	c.old.size = size;
	c.old.version = version;
	return c;
}

/* A communicator with this configuration works, as an all_reduce. */
static void expect_config(struct new_config c)
{
	comm_t comm = NULL;
	int one = 1, sum = 0;

	OK(nccl.CommInitRankConfig(&comm, N, next_id(), R, &c.old));
	OK(nccl.AllReduce(&one, &sum, 1, INT32, SUM, comm, NULL));
	EQ(sum, N);
	OK(nccl.CommDestroy(comm));
}

/* rmaEagerInit would allow signals without any window: it is accepted, and they are not. */
static void signal_only(void)
{
	struct new_config c = new_config(CONFIG_2_31, 23102);
	comm_t comm = NULL;

	c.rma_eager = 1;
	OK(nccl.CommInitRankConfig(&comm, N, next_id(), R, &c.old));
	EQ(nccl.Signal((R + 1) % N, 0, 0, 0, comm, NULL), INVALID_USAGE);
	OK(nccl.CommDestroy(comm));
}

static void refuse_config(struct new_config c, const char *member)
{
	comm_t comm = NULL;

	EQ(nccl.CommInitRankConfig(&comm, N, next_id(), R, &c.old), INVALID_ARGUMENT);
	if (!world.threads) /* there is one text for the process */
		TRUE(strstr(nccl.GetLastError(NULL), member));
	TRUE(!comm);
}

/* The configurations of 2.30.7 to 2.32.3, as their initializers leave them and with something set. */
static void case_config(void)
{
	static const struct {
		size_t size;
		unsigned version;
	} known[] = {{96, 23007}, {CONFIG_2_31, 23102}, {CONFIG_2_32, 23203}, {sizeof(struct new_config), 23301}};
	struct new_config c;

	EQ(sizeof(struct new_config) - sizeof(c.later), CONFIG_2_32);
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		expect_config(new_config(known[i].size, known[i].version));
	c = new_config(CONFIG_2_31, 23102);
	c.old.blocking = 1;
	c.implicit_order = c.rma_eager = 0;
	c.rma_signals = 16;
	c.cft_mode = 3;
	expect_config(c);
	signal_only();
	/* What lies behind the caller's struct, or came after the caller's version, is not looked at. */
	c.nvls_mode = -5;
	expect_config(c);
	c = new_config(CONFIG_2_32, 22809);
	c.graph_mode = c.stream_ordering = c.implicit_order = c.rma_eager = c.cft_mode = c.nvls_mode = 77;
	expect_config(c);
	c = new_config(CONFIG_2_32, 23102);
	c.nvls_mode = -5;
	expect_config(c);
#define REFUSE(member, value, name)                                                                                    \
	do {                                                                                                           \
		c = new_config(CONFIG_2_32, 23203);                                                                    \
		c.member = value;                                                                                      \
		refuse_config(c, name);                                                                                \
	} while (0)
	REFUSE(nvls_mode, -5, "nvlsHostMode");
	REFUSE(cft_mode, 4, "hostCftMode");
	REFUSE(cft_mode, 0, "hostCftMode");
	REFUSE(rma_eager, 2, "rmaEagerInit");
	REFUSE(rma_signals, -1, "numRmaSig");
	REFUSE(implicit_order, 2, "launchOrderImplicit");
	REFUSE(stream_ordering, -1, "graphStreamOrdering");
	REFUSE(p2p_peers, 0, "maxP2pPeers");
	REFUSE(rma_contexts, -1, "numRmaCtx");
	REFUSE(graph_mode, 3, "graphUsageMode");
	REFUSE(old.collnet, 2, "collnetEnable");
	REFUSE(old.policy, 4, "CTAPolicy");
	REFUSE(old.nvls_ctas, 0, "nvlsCTAs");
	REFUSE(old.channels_per_peer, 65, "nChannelsPerNetPeer");
	REFUSE(old.sched, 2, "nvlinkCentricSched");
	REFUSE(old.shrink_share, 2, "shrinkShare");
	REFUSE(old.cluster, 9, "cgaClusterSize");
}

/* Asked for in vain, and named in the log. */
static void case_config_idle(void)
{
	struct new_config c = new_config(CONFIG_2_31, 23102);

	c.cft_mode = 1;
	c.rma_signals = 17;
	c.old.policy = 2;
	c.old.split_share = 1;
	expect_config(c);
	expect_config(c);
}

static comm_t comm_over(const char *network)
{
	struct config config = CONFIG_INIT;
	comm_t comm = NULL;

	config.net = network;
	OK(nccl.CommInitRankConfig(&comm, N, next_id(), R, &config));
	return comm;
}

static void ring_over(comm_t comm)
{
	int out = 1000 + R, in = -7;

	OK(nccl.GroupStart());
	OK(nccl.Send(&out, 1, INT32, (R + 1) % N, comm, NULL));
	OK(nccl.Recv(&in, 1, INT32, (R + N - 1) % N, comm, NULL));
	OK(nccl.GroupEnd());
	EQ(in, 1000 + (R + N - 1) % N);
}

/* Gantry's own network by each of its names, beside a plugin's where there is one; and a communicator made from another. */
static void case_network(void)
{
	const char *plugin = getenv("NCCL_NET_PLUGIN");
	struct config config = CONFIG_INIT;
	comm_t own = comm_over("GANTRY"), socket = comm_over("Socket"), other, half = NULL, none = NULL;

	other = comm_over(plugin ? "Simple" : NULL);
	ring_over(own);
	ring_over(other);
	ring_over(socket);
	OK(nccl.CommSplit(other, 0, R, &half, &config)); /* says nothing, and has the one that it is made from */
	ring_over(half);
	OK(nccl.CommDestroy(half));
	half = NULL;
	OK(nccl.CommSplit(other, 0, R, &half, NULL));
	ring_over(half);
	ring_over(own);
	OK(nccl.CommDestroy(half));
	OK(nccl.CommDestroy(other));
	OK(nccl.CommDestroy(socket));
	OK(nccl.CommDestroy(own));
	if (!plugin) {
		config.net = "IB";
		EQ(nccl.CommInitRankConfig(&none, N, next_id(), R, &config), INVALID_USAGE);
		TRUE(world.threads || strstr(nccl.GetLastError(NULL), "\"IB\" (the communicator's configuration)"));
	}
}

/* ---- send and receive ---- */

static void case_sendrecv(void)
{
	comm_t comm = world_comm();
	int right = (R + 1) % N, left = (R + N - 1) % N;
	void *handle = NULL;

	for (size_t n = 0; n <= LARGE; n = n ? n * 30 : 1) {
		int *out = my_ints(n), *in = ints(n);

		OK(nccl.GroupStart());
		OK(nccl.Send(out, n, INT32, right, comm, NULL));
		OK(nccl.GroupStart());
		OK(nccl.Recv(in, n, INT32, left, comm, (void *)0x1234));
		OK(nccl.GroupEnd());
		OK(nccl.GroupEnd());
		for (size_t i = 0; i < n; i++)
			EQ(in[i], value_of(left, i));
		free(out);
		free(in);
	}
	/* In memory that NCCL has given out, and registered. */
	int *buf = NULL;
	OK(nccl.MemAlloc((void **)&buf, 2 * COUNT * sizeof(int)));
	OK(nccl.CommRegister(comm, buf, 2 * COUNT * sizeof(int), &handle));
	for (size_t i = 0; i < COUNT; i++)
		buf[i] = value_of(R, i);
	OK(nccl.GroupStart());
	OK(nccl.Send(buf, COUNT, INT32, right, comm, NULL));
	OK(nccl.Recv(buf + COUNT, COUNT, INT32, left, comm, NULL));
	OK(nccl.GroupEnd());
	for (size_t i = 0; i < COUNT; i++)
		EQ(buf[COUNT + i], value_of(left, i));
	EQ(nccl.CommDeregister(comm, (void *)0x1234), INVALID_ARGUMENT);
	OK(nccl.CommDeregister(comm, handle));
	EQ(nccl.CommDeregister(comm, handle), INVALID_ARGUMENT);
	OK(nccl.CommDeregister(comm, NULL));
	OK(nccl.CommDestroy(comm));
	OK(nccl.MemFree(buf));
	EQ(nccl.MemFree(&handle), INVALID_ARGUMENT);
	OK(nccl.MemFree(NULL));
}

/* ---- collectives ---- */

static void check_all_reduce(comm_t comm, size_t n, int in_place)
{
	int *in = my_ints(n), *out = in_place ? in : ints(n);

	OK(nccl.AllReduce(in, out, n, INT32, SUM, comm, NULL));
	for (size_t i = 0; i < n; i++)
		EQ(out[i], N * (int)(i % 97) + N * (N - 1) / 2);
	if (!in_place)
		free(out);
	free(in);
}

static void case_all_reduce(void)
{
	comm_t comm = world_comm();

	for (size_t n = 0; n <= LARGE; n = n ? n * 30 : 1) {
		check_all_reduce(comm, n, 0);
		check_all_reduce(comm, n, 1);
	}
	OK(nccl.CommDestroy(comm));
}

static void case_rooted(void)
{
	comm_t comm = world_comm();
	int root = N - 1;
	int *in = my_ints(COUNT), *out = ints(COUNT), *all = ints((size_t)N * COUNT);

	OK(nccl.Reduce(in, R == root ? out : NULL, COUNT, INT32, MAX, root, comm, NULL));
	for (size_t i = 0; i < COUNT; i++)
		EQ(out[i], R == root ? value_of(N - 1, i) : -7);
	OK(nccl.Broadcast(R == root ? in : NULL, out, COUNT, INT32, root, comm, NULL));
	for (size_t i = 0; i < COUNT; i++)
		EQ(out[i], value_of(root, i));
	OK(nccl.Bcast(in, COUNT, INT32, 0, comm, NULL));
	for (size_t i = 0; i < COUNT; i++) {
		EQ(in[i], value_of(0, i));
		in[i] = value_of(R, i);
	}
	OK(nccl.Gather(in, R == root ? all : NULL, COUNT, INT32, root, comm, NULL));
	for (int r = 0; r < N; r++)
		for (size_t i = 0; i < COUNT; i++)
			EQ(all[(size_t)r * COUNT + i], R == root ? value_of(r, i) : -7);
	OK(nccl.Scatter(R == root ? all : NULL, out, COUNT, INT32, root, comm, NULL));
	for (size_t i = 0; i < COUNT; i++)
		EQ(out[i], value_of(R, i));
	free(in);
	free(out);
	free(all);
	OK(nccl.CommDestroy(comm));
}

static void case_parts(void)
{
	comm_t comm = world_comm();
	size_t n = (size_t)N * COUNT;
	int *in = my_ints(n), *out = ints(n);

	OK(nccl.AllGather(in, out, COUNT, INT32, comm, NULL));
	for (size_t i = 0; i < n; i++)
		EQ(out[i], value_of((int)(i / COUNT), i % COUNT));
	OK(nccl.ReduceScatter(in, out, COUNT, INT32, SUM, comm, NULL));
	for (size_t i = 0; i < COUNT; i++)
		EQ(out[i], N * (int)(((size_t)R * COUNT + i) % 97) + N * (N - 1) / 2);
	OK(nccl.AlltoAll(in, out, COUNT, INT32, comm, NULL));
	for (size_t i = 0; i < n; i++)
		EQ(out[i], value_of((int)(i / COUNT), (size_t)R * COUNT + i % COUNT));
	OK(nccl.AllReduceConfig(in, out, COUNT, INT32, MIN, comm, NULL, NULL));
	for (size_t i = 0; i < COUNT; i++)
		EQ(out[i], value_of(0, i));
	free(in);
	free(out);
	OK(nccl.CommDestroy(comm));
}

static void case_ops(void)
{
	comm_t comm = world_comm(), other = world_comm();
	float *in = malloc(COUNT * sizeof(*in)), *out = malloc(COUNT * sizeof(*out)), half = 0.5f;
	int op = -1;

	for (size_t i = 0; i < COUNT; i++)
		in[i] = (float)value_of(R, i);
	OK(nccl.AllReduce(in, out, COUNT, FLOAT, AVG, comm, NULL));
	for (size_t i = 0; i < COUNT; i++)
		EQ(out[i] * 2, 2 * (int)(i % 97) + N - 1);
	OK(nccl.RedOpCreatePreMulSum(&op, &half, FLOAT, 1, comm));
	TRUE(op > AVG);
	half = 77; /* it was read */
	OK(nccl.AllReduce(in, out, COUNT, FLOAT, op, comm, NULL));
	for (size_t i = 0; i < COUNT; i++)
		EQ(out[i] * 2, N * (int)(i % 97) + N * (N - 1) / 2);
	EQ(nccl.AllReduce(in, out, COUNT, FLOAT, op, other, NULL), INVALID_ARGUMENT);
	EQ(nccl.RedOpDestroy(op, other), INVALID_ARGUMENT);
	/* Before what uses it has run. */
	OK(nccl.GroupStart());
	OK(nccl.AllReduce(in, out, COUNT, FLOAT, op, comm, NULL));
	OK(nccl.RedOpDestroy(op, comm));
	OK(nccl.GroupEnd());
	for (size_t i = 0; i < COUNT; i++)
		EQ(out[i] * 2, N * (int)(i % 97) + N * (N - 1) / 2);
	EQ(nccl.AllReduce(in, out, COUNT, FLOAT, op, comm, NULL), INVALID_ARGUMENT);
	EQ(nccl.RedOpDestroy(op, comm), INVALID_ARGUMENT);
	EQ(nccl.RedOpDestroy(SUM, comm), INVALID_ARGUMENT);
	free(in);
	free(out);
	OK(nccl.CommDestroy(comm));
	OK(nccl.CommDestroy(other));
}

/* Sums that are of their round and place, until the file SUMS_UNTIL is there: for whoever does things to the network meanwhile. */
static void case_sums(void)
{
	const char *until = getenv("SUMS_UNTIL");
	comm_t comm = world_comm();
	int *in = ints(LARGE), *out = ints(LARGE);

	TRUE(until);
	out[0] = 0;
	for (int round = 0; !out[0]; round++) {
		in[0] = access(until, F_OK) == 0; /* all hear of it in the same round */
		for (size_t i = 1; i < LARGE; i++)
			in[i] = value_of(R, i) + round;
		OK(nccl.AllReduce(in, out, LARGE, INT32, SUM, comm, NULL));
		for (size_t i = 1; i < LARGE; i++)
			EQ(out[i], N * (value_of(0, i) + round) + N * (N - 1) / 2);
	}
	OK(nccl.CommDestroy(comm));
	free(in);
	free(out);
}

/* ---- one thread has all ranks ---- */

/* As PyTorch's DataParallel: one thread makes, uses and ends every rank, with groups only where NCCL asks for them. */
static void case_init_all(void)
{
	comm_t comms[8];
	int devices[8] = {0}, *in[8], *out[8], v, n = N < 8 ? N : 8;

	if (R != 0)
		return;
	OK(nccl.CommInitAll(comms, n, devices));
	OK(nccl.GroupStart());
	for (int r = 0; r < n; r++) {
		in[r] = ints(COUNT);
		out[r] = ints(COUNT);
		for (size_t i = 0; i < COUNT; i++)
			in[r][i] = value_of(r, i);
		OK(nccl.CommUserRank(comms[r], &v));
		EQ(v, r);
		OK(nccl.Send(in[r], COUNT, INT32, (r + 1) % n, comms[r], NULL));
		OK(nccl.Recv(out[r], COUNT, INT32, (r + n - 1) % n, comms[r], NULL));
	}
	OK(nccl.GroupEnd());
	for (int r = 0; r < n; r++) {
		for (size_t i = 0; i < COUNT; i++)
			EQ(out[r][i], value_of((r + n - 1) % n, i));
		free(in[r]);
		free(out[r]);
	}
	for (int r = 0; r < n; r++)
		OK(nccl.CommFinalize(comms[r]));
	for (int r = 0; r < n; r++)
		OK(nccl.CommDestroy(comms[r]));
	/* The same by hand, and ended by a group and by aborting. */
	struct unique_id id;
	OK(nccl.GetUniqueId(&id));
	OK(nccl.GroupStart());
	for (int r = 0; r < n; r++)
		OK(nccl.CommInitRank(&comms[r], n, id, r));
	OK(nccl.GroupEnd());
	OK(nccl.GroupStart());
	for (int r = 0; r < n; r++)
		OK(nccl.CommAbort(comms[r]));
	OK(nccl.GroupEnd());
	OK(nccl.CommInitAll(comms, n, NULL));
	OK(nccl.GroupStart());
	for (int r = 0; r < n; r++)
		OK(nccl.CommDestroy(comms[r]));
	OK(nccl.GroupEnd());
}

/* ---- communicators from communicators ---- */

/* The sum of ranks of the world in it, as a proof that it works. */
static void check_sum(comm_t comm, int wanted)
{
	int sum = -1;

	OK(nccl.AllReduce(&R, &sum, 1, INT32, SUM, comm, NULL));
	EQ(sum, wanted);
}

static void case_split(void)
{
	comm_t comm = world_comm(), half = NULL, none = (comm_t)1;
	int v, wanted = 0;

	/* By parity, in reverse. */
	OK(nccl.CommSplit(comm, R % 2, -R, &half, NULL));
	for (int r = R % 2; r < N; r += 2)
		wanted += r;
	OK(nccl.CommCount(half, &v));
	EQ(v, (N + 1 - R % 2) / 2);
	OK(nccl.CommUserRank(half, &v));
	EQ(v, (N - 1 - R) / 2);
	check_sum(half, wanted);
	OK(nccl.CommDestroy(half));
	OK(nccl.CommSplit(comm, R == 0 ? -1 : 3, 0, &none, NULL));
	EQ(none != NULL, R != 0);
	if (none)
		check_sum(none, N * (N - 1) / 2);
	OK(nccl.CommDestroy(none));
	EQ(nccl.CommSplit(comm, -2, 0, &none, NULL), INVALID_ARGUMENT);
	OK(nccl.CommDestroy(comm));
}

static void await(comm_t comm)
{
	int v = IN_PROGRESS;

	while (v == IN_PROGRESS) {
		OK(nccl.CommGetAsyncError(comm, &v));
		usleep(100);
	}
	EQ(v, SUCCESS);
}

static void started(int result)
{
	TRUE(result == SUCCESS || result == IN_PROGRESS);
}

/* Several communicators from one in a group, beside one from another, which ranks ask for in different orders; and a window of it. */
static void split_together(int blocking)
{
	comm_t comm = world_comm(), other = world_comm(), half = NULL, all = NULL, none = NULL, apart = NULL;
	struct config config = CONFIG_INIT;
	int mine[4], wanted = 0, end;
	void *window = NULL;

	config.blocking = blocking;
	for (int r = R % 2; r < N; r += 2)
		wanted += r;
	OK(nccl.GroupStart());
	if (R % 2)
		OK(nccl.CommSplit(other, 0, 0, &apart, &config));
	OK(nccl.CommSplit(comm, R % 2, 0, &half, &config));
	OK(nccl.CommSplit(comm, 0, -R, &all, &config));
	OK(nccl.CommWindowRegister(comm, mine, sizeof(mine), &window, 1));
	OK(nccl.CommSplit(comm, R == 0 ? -1 : 3, 0, &none, &config));
	if (R % 2 == 0)
		OK(nccl.CommSplit(other, 0, 0, &apart, &config));
	end = nccl.GroupEnd();
	EQ(end == SUCCESS || (!blocking && end == IN_PROGRESS), 1);
	EQ(none != NULL, R != 0);
	for (int i = 0; i < 4; i++) {
		comm_t made = (comm_t[]){half, all, apart, none}[i];

		if (!made)
			continue;
		await(made);
		if (blocking)
			check_sum(made, i ? N * (N - 1) / 2 : wanted);
	}
	await(comm);
	await(other);
	OK(nccl.CommWindowDeregister(comm, window));
	for (int i = 0; i < 6; i++)
		started(nccl.CommDestroy((comm_t[]){half, all, apart, none, other, comm}[i]));
}

static void case_split_group(void)
{
	split_together(1);
	split_together(0);
}

static void case_shrink(void)
{
	comm_t comm, rest = NULL;
	int last = N - 1, v;

	if (N < 2)
		return;
	comm = world_comm();
	EQ(nccl.CommShrink(comm, &last, 0, &rest, NULL, 0), INVALID_ARGUMENT);
	EQ(nccl.CommShrink(comm, &my_rank, 1, &rest, NULL, 0), INVALID_ARGUMENT);
	if (R != last) {
		OK(nccl.CommShrink(comm, &last, 1, &rest, NULL, 0));
		OK(nccl.CommCount(rest, &v));
		EQ(v, N - 1);
		check_sum(rest, (N - 1) * (N - 2) / 2);
		OK(nccl.CommDestroy(rest));
	}
	meet();
	OK(nccl.CommAbort(comm));
}

/* Two ends of one communicator in a group: the stronger one is done, once. */
static void case_ends(void)
{
	comm_t comm = world_comm();

	OK(nccl.GroupStart());
	OK(nccl.CommFinalize(comm));
	OK(nccl.CommDestroy(comm));
	OK(nccl.GroupEnd());

	comm = world_comm();
	meet();
	OK(nccl.GroupStart());
	OK(nccl.CommDestroy(comm));
	EQ(nccl.CommDestroy(comm), INVALID_ARGUMENT);
	EQ(nccl.CommFinalize(comm), INVALID_ARGUMENT);
	OK(nccl.CommAbort(comm));
	EQ(nccl.CommAbort(comm), INVALID_ARGUMENT);
	EQ(nccl.CommDestroy(comm), INVALID_ARGUMENT);
	EQ(nccl.GroupEnd(), INVALID_ARGUMENT);
}

/* A forked child has its parent's communicators, without the threads that serve them. */
static void case_forked(void)
{
	comm_t comm = world_comm();
	int one = 1, out = 0, status = -1;
	pid_t child = fork();

	if (child == 0) {
		EQ(nccl.AllReduce(&one, &out, 1, INT32, SUM, comm, NULL), INVALID_ARGUMENT);
		TRUE(strstr(nccl.GetLastError(NULL), "forked"));
		EQ(nccl.CommDestroy(comm), INVALID_ARGUMENT);
		EQ(nccl.CommAbort(comm), INVALID_ARGUMENT);
		_exit(0);
	}
	EQ(waitpid(child, &status, 0), child);
	EQ(status, 0);
	OK(nccl.AllReduce(&one, &out, 1, INT32, SUM, comm, NULL));
	OK(nccl.CommDestroy(comm));
	EQ(out, N);
}

static void case_revoke(void)
{
	comm_t comm = world_comm(), again = NULL;
	int one = 1, out;

	EQ(nccl.CommRevoke(comm, 1), INVALID_ARGUMENT);
	OK(nccl.CommRevoke(comm, 0));
	EQ(nccl.AllReduce(&one, &out, 1, INT32, SUM, comm, NULL), INVALID_USAGE);
	EQ(nccl.CommFinalize(comm), INVALID_ARGUMENT);
	EQ(nccl.CommRevoke(comm, 0), INVALID_ARGUMENT);
	OK(nccl.CommSplit(comm, 0, R, &again, NULL));
	check_sum(again, N * (N - 1) / 2);
	OK(nccl.CommDestroy(again));
	OK(nccl.CommDestroy(comm));
}

/* All ranks but the last one, then with it. */
static void case_grow(void)
{
	struct unique_id id, small = next_id();
	comm_t comm = NULL, grown = NULL;
	int v;

	if (N < 2)
		return;
	if (R < N - 1)
		OK(nccl.CommInitRank(&comm, N - 1, small, R));
	if (R == 0) {
		OK(nccl.CommGetUniqueId(comm, &id));
		world.ids[50] = id;
	}
	meet();
	id = world.ids[50];
	if (R < N - 1)
		OK(nccl.CommGrow(comm, N, R == 0 ? &id : NULL, -1, &grown, NULL));
	else
		OK(nccl.CommGrow(NULL, N, &id, N - 1, &grown, NULL));
	OK(nccl.CommUserRank(grown, &v));
	EQ(v, R);
	check_sum(grown, N * (N - 1) / 2);
	OK(nccl.CommDestroy(grown));
	OK(nccl.CommDestroy(comm));
}

/* ---- without waiting ---- */

static void case_nonblocking(void)
{
	struct config config = CONFIG_INIT;
	comm_t comm = NULL;
	int *out = my_ints(LARGE), *in = ints(LARGE);

	config.blocking = 0;
	started(nccl.CommInitRankConfig(&comm, N, next_id(), R, &config));
	await(comm);
	OK(nccl.GroupStart());
	started(nccl.Send(out, LARGE, INT32, (R + 1) % N, comm, NULL));
	started(nccl.Recv(in, LARGE, INT32, (R + N - 1) % N, comm, NULL));
	started(nccl.GroupEnd());
	await(comm);
	for (size_t i = 0; i < LARGE; i++)
		EQ(in[i], value_of((R + N - 1) % N, i));
	started(nccl.CommFinalize(comm));
	await(comm);
	started(nccl.CommDestroy(comm));
	free(out);
	free(in);
}

/* ---- aborting, and ranks that die ---- */

static void *abort_later(void *arg)
{
	comm_t *comm = arg, c;

	usleep(300000);
	while (!(c = __atomic_load_n(comm, __ATOMIC_ACQUIRE)))
		usleep(1000);
	OK(nccl.CommAbort(c));
	return NULL;
}

/* Another thread ends what would wait for ever: a receive that nobody sends to, a communicator whose ranks do not come. */
static void case_abort(void)
{
	struct unique_id id = next_id();
	comm_t comm = N > 1 ? world_comm() : NULL, lonely = NULL;
	int *in = ints(LARGE);
	pthread_t thread;

	if (N > 1) {
		TRUE(pthread_create(&thread, NULL, abort_later, &comm) == 0);
		TRUE(nccl.Recv(in, LARGE, INT32, (R + 1) % N, comm, NULL) != SUCCESS);
		pthread_join(thread, NULL);
	}
	if (R == 0) {
		TRUE(pthread_create(&thread, NULL, abort_later, &lonely) == 0);
		TRUE(nccl.CommInitRank(&lonely, N + 1, id, R) != SUCCESS);
		EQ(lonely == NULL, 1);
		pthread_join(thread, NULL);
	}
	free(in);
}

/* The last rank is killed; the others hear of it, and go on without it. */
static void case_death(void)
{
	comm_t comm = world_comm(), rest = NULL;
	int last = N - 1, v = SUCCESS, *in = my_ints(LARGE), *out = ints(LARGE);
	char wanted_text[32];

	TRUE(!world.threads && N > 2);
	OK(nccl.AllReduce(in, out, LARGE, INT32, SUM, comm, NULL));
	meet();
	if (R == last)
		kill(getpid(), SIGKILL);
	while (v == SUCCESS)
		v = nccl.AllReduce(in, out, LARGE, INT32, SUM, comm, NULL);
	EQ(v, REMOTE_ERROR);
	OK(nccl.CommGetAsyncError(comm, &v));
	EQ(v, REMOTE_ERROR);
	snprintf(wanted_text, sizeof(wanted_text), "rank %d", last);
	TRUE(strstr(nccl.GetLastError(comm), wanted_text));
	/* A later call says it again, whatever was wrong in between. */
	EQ(nccl.CommSplit(comm, 0, 0, NULL, NULL), INVALID_ARGUMENT);
	EQ(nccl.AllReduce(in, out, LARGE, INT32, SUM, comm, NULL), REMOTE_ERROR);
	TRUE(strstr(nccl.GetLastError(comm), wanted_text));
	OK(nccl.CommShrink(comm, &last, 1, &rest, NULL, 1));
	check_sum(rest, (N - 1) * (N - 2) / 2);
	OK(nccl.CommDestroy(rest));
	OK(nccl.CommAbort(comm));
	free(in);
	free(out);
}

/* ---- one-sided ---- */

static void case_window(void)
{
	comm_t comm = world_comm();
	int next = (R + 1) % N, before = (R + N - 1) % N, mine[8] = {-1, -1, -1, -1, -1, -1, -1, -1}, in[4];
	struct wait_signal wait = {1, before, 0, 0};
	void *window = NULL, *ptr = NULL;

	OK(nccl.CommWindowRegister(comm, mine, sizeof(mine), &window, 1));
	OK(nccl.WinGetUserPtr(comm, window, &ptr));
	EQ(ptr == mine, 1);
	EQ(nccl.WinGetUserPtr(comm, (void *)0x1234, &ptr), INVALID_ARGUMENT);
	EQ(nccl.WinGetUserPtr(comm, mine, &ptr), INVALID_ARGUMENT);
	EQ(nccl.WinGetUserPtr(comm, NULL, &ptr), INVALID_ARGUMENT);
	EQ(nccl.WinGetUserPtr(comm, window, NULL), INVALID_ARGUMENT);
	EQ(ptr == mine, 1); /* outputs are written only on success */
	for (int i = 0; i < 4; i++)
		in[i] = 100 * R + i;
	/* The wait is called first, and comes after the put all the same. */
	OK(nccl.GroupStart());
	OK(nccl.WaitSignal(1, &wait, comm, NULL));
	OK(nccl.PutSignal(in, 4, INT32, next, window, 8, 0, 0, 0, comm, NULL));
	OK(nccl.GroupEnd());
	for (int i = 0; i < 8; i++)
		EQ(mine[i], i >= 2 && i < 6 ? 100 * before + i - 2 : -1);
	for (int i = 0; i < 3; i++)
		OK(nccl.Signal(next, 0, 0, 0, comm, NULL));
	wait.count = 3;
	OK(nccl.WaitSignal(1, &wait, comm, NULL));
	EQ(nccl.PutSignal(in, 4, INT32, next, window, 8, 0, 1, 0, comm, NULL), INVALID_ARGUMENT);
	EQ(nccl.PutSignal(in, 4, INT32, next, window, 8, 0, 0, 1, comm, NULL), INVALID_ARGUMENT);
	EQ(nccl.PutSignal(in, 4, 12, next, window, 8, 0, 0, 0, comm, NULL), INVALID_ARGUMENT);
	TRUE(nccl.PutSignal(in, 4, INT32, next, window, 17, 0, 0, 0, comm, NULL) != SUCCESS);
	EQ(nccl.Signal(N, 0, 0, 0, comm, NULL), INVALID_ARGUMENT);
	/* Local: rank 0 goes first, the others reduce meanwhile. */
	if (R == 0)
		OK(nccl.CommWindowDeregister(comm, window));
	in[0] = 1;
	OK(nccl.AllReduce(in, in, 1, INT32, SUM, comm, NULL));
	EQ(in[0], N);
	if (R != 0)
		OK(nccl.CommWindowDeregister(comm, window));
	EQ(nccl.CommWindowDeregister(comm, window), INVALID_ARGUMENT);
	EQ(nccl.WinGetUserPtr(comm, window, &ptr), INVALID_ARGUMENT);
	EQ(nccl.PutSignal(in, 4, INT32, next, (void *)0x1234, 8, 0, 0, 0, comm, NULL), INVALID_ARGUMENT);
	OK(nccl.CommDestroy(comm));
}

/* ---- wrong calls ---- */

/* The call is refused, and the text is about this call. There is one text for the process. */
#define WRONG(call, function)                                                                                          \
	do {                                                                                                           \
		EQ(call, INVALID_ARGUMENT);                                                                            \
		if (!world.threads)                                                                                    \
			TRUE(strstr(nccl.GetLastError(NULL), function));                                               \
	} while (0)

static void case_wrong(void)
{
	struct config config = CONFIG_INIT;
	struct sim_info sim = {sizeof(sim), 0x74685283, 22809, 5};
	struct unique_id id = next_id();
	comm_t comm = NULL, half = NULL;
	void *window = &window;
	int v = 3, out = -7;
	const struct {
		size_t size;
		unsigned magic, version;
		char rest[80];
	} young = {96, 0xcafebeef, 23004, {0}}; /* device.c has those that are not refused */

	WRONG(nccl.GetVersion(NULL), "ncclGetVersion");
	WRONG(nccl.GetUniqueId(NULL), "ncclGetUniqueId");
	WRONG(nccl.CommInitRank(NULL, 1, id, 0), "ncclCommInitRank");
	EQ(nccl.CommInitRank(&comm, 0, id, 0), INVALID_ARGUMENT);
	EQ(nccl.CommInitRank(&comm, 2, id, 2), INVALID_ARGUMENT);
	EQ(nccl.CommInitRank(&comm, 2, id, -1), INVALID_ARGUMENT);
	EQ(nccl.CommInitAll(NULL, 1, NULL), INVALID_ARGUMENT);
	EQ(nccl.CommInitAll(&comm, -1, NULL), INVALID_ARGUMENT);
	config.magic = 1;
	EQ(nccl.CommInitRankConfig(&comm, N, id, R, &config), INVALID_ARGUMENT);
	config = (struct config)CONFIG_INIT;
	config.blocking = 2;
	EQ(nccl.CommInitRankConfig(&comm, N, id, R, &config), INVALID_ARGUMENT);
	config = (struct config)CONFIG_INIT;
	config.min_ctas = 4;
	config.max_ctas = 2;
	EQ(nccl.CommInitRankConfig(&comm, N, id, R, &config), INVALID_ARGUMENT);
	if (!world.threads) /* there is one text for the process */
		TRUE(strstr(nccl.GetLastError(NULL), "minCTAs"));
	EQ(comm == NULL, 1);
	WRONG(nccl.CommCount(NULL, &v), "ncclCommCount");
	WRONG(nccl.CommGetAsyncError(NULL, &v), "ncclCommGetAsyncError");
	WRONG(nccl.Send(&v, 1, INT32, 0, NULL, NULL), "ncclSend");
	EQ(nccl.GroupEnd(), INVALID_USAGE);

	comm = world_comm();
	WRONG(nccl.CommCount(comm, NULL), "ncclCommCount");
	WRONG(nccl.CommGetAsyncError(comm, NULL), "ncclCommGetAsyncError");
	WRONG(nccl.CommCuDevice(comm, NULL), "ncclCommCuDevice");
	WRONG(nccl.RedOpCreatePreMulSum(NULL, &v, INT32, 1, comm), "ncclRedOpCreatePreMulSum");
	WRONG(nccl.RedOpCreatePreMulSum(&out, &v, INT32, 2, comm), "residence 2");
	WRONG(nccl.AllReduce(&v, &out, 1, 99, SUM, comm, NULL), "type");
	for (int op = -2; op < SUM; op++) {
		WRONG(nccl.AllReduce(&v, &out, 1, INT32, op, comm, NULL), "no reduction -");
		WRONG(nccl.Reduce(&v, &out, 1, INT32, op, 0, comm, NULL), "no reduction -");
		WRONG(nccl.ReduceScatter(&v, &out, 1, INT32, op, comm, NULL), "no reduction -");
	}
	EQ(nccl.Send(&v, 1, 12, 0, comm, NULL), INVALID_ARGUMENT);
	EQ(nccl.Send(&v, 1, -1, 0, comm, NULL), INVALID_ARGUMENT);
	EQ(nccl.Send(&v, 1, INT32, N, comm, NULL), INVALID_ARGUMENT);
	EQ(nccl.Recv(NULL, 1, INT32, 0, comm, NULL), INVALID_ARGUMENT);
	/* A group with one wrong call does nothing, whichever side refuses it. */
	OK(nccl.GroupStart());
	OK(nccl.Send(&v, 1, INT32, R, comm, NULL));
	OK(nccl.Recv(&out, 1, INT32, R, comm, NULL));
	EQ(nccl.Send(&v, 1, INT32, 0, NULL, NULL), INVALID_ARGUMENT);
	EQ(nccl.GroupEnd(), INVALID_ARGUMENT);
	EQ(out, -7);
	OK(nccl.GroupStart());
	OK(nccl.CommSplit(comm, 0, R, &half, NULL));
	OK(nccl.GroupStart());
	EQ(nccl.Send(&v, 1, 12, R, comm, NULL), INVALID_ARGUMENT);
	OK(nccl.GroupEnd());
	EQ(nccl.GroupEnd(), INVALID_ARGUMENT);
	EQ(half == NULL, 1);
	OK(nccl.GroupStart());
	OK(nccl.Send(&v, 1, INT32, R, comm, NULL));
	OK(nccl.Recv(&out, 1, INT32, R, comm, NULL));
	OK(nccl.GroupSimulateEnd(&sim));
	EQ(sim.time, -1);
	EQ(out, -7);
	sim.magic = 0;
	OK(nccl.GroupStart());
	EQ(nccl.GroupSimulateEnd(&sim), INVALID_ARGUMENT);
	/* And the communicator is well. */
	OK(nccl.GroupStart());
	OK(nccl.Send(&v, 1, INT32, R, comm, NULL));
	OK(nccl.Recv(&out, 1, INT32, R, comm, NULL));
	OK(nccl.GroupEnd());
	EQ(out, 3);
	EQ(nccl.CommWindowRegister(comm, NULL, sizeof(v), &window, 1), INVALID_ARGUMENT);
	EQ(window == &window, 1);
	OK(nccl.CommWindowDeregister(comm, NULL));
	EQ(nccl.CommSuspend(comm, 1), INVALID_USAGE);
	EQ(nccl.DevCommCreate(comm, &young, &v), INVALID_USAGE);
	if (!world.threads)
		TRUE(strstr(nccl.GetLastError(comm), "ncclDevCommCreate"));
	meet();
	OK(nccl.CommAbort(comm));
	for (int i = -1; i < 20; i++)
		TRUE(*nccl.GetErrorString(i));
	TRUE(strcmp(nccl.GetErrorString(0), nccl.GetErrorString(9)) != 0);
}

/* ---- parameters ---- */

/* With the fake driver of the tests (fixtures/cuda), told to fail: what CUDA did not do is CUDA_ERROR, memory is not. */
static void case_cuda(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *p = NULL;
	struct {
		const char *symbol;
		unsigned error;
	} *fail = driver ? dlsym(driver, "fake_cuda") : NULL;

	TRUE(fail != NULL);
	OK(nccl.MemAlloc(&p, 1000));
	OK(nccl.MemFree(p));
	fail->error = 700;
	fail->symbol = "cuMemsetD8Async";
	EQ(nccl.MemAlloc(&p, 1000), CUDA_ERROR);
	TRUE(strstr(nccl.GetLastError(NULL), "700") != NULL);
	fail->error = 2;
	fail->symbol = "cuMemsetD8Async";
	EQ(nccl.MemAlloc(&p, 1000), SYSTEM_ERROR);
}

static void case_params(void)
{
	const char *text = NULL, **keys = NULL;
	void *handle = NULL;
	int32_t number = 0;
	uint8_t small = 0;
	char raw[8];
	int v = 0, found = 0;

	OK(nccl.GetVersion(&v));
	EQ(v, getenv("GANTRY_NCCL_VERSION") ? atoi(getenv("GANTRY_NCCL_VERSION")) : 22809);
	OK(nccl.ParamBind(&handle, "GANTRY_NCCL_VERSION"));
	OK(nccl.ParamGetI32(handle, &number));
	EQ(number, v);
	EQ(nccl.ParamGetU8(handle, &small), INVALID_ARGUMENT);
	OK(nccl.ParamGetStr(handle, &text));
	EQ(atoi(text), number);
	EQ(nccl.ParamGet(handle, raw, 4, &v), INVALID_ARGUMENT);
	EQ(v, 8);
	OK(nccl.ParamGet(handle, raw, 8, &v));
	EQ(nccl.ParamBind(&handle, "NCCL_NO_SUCH_THING"), INVALID_ARGUMENT);
	EQ(nccl.ParamGetI32(NULL, &number), INVALID_ARGUMENT);
	EQ(nccl.ParamGetParameter("NCCL_NO_SUCH_THING", &text, &v), INVALID_ARGUMENT);
	OK(nccl.ParamGetParameter("NCCL_DEBUG", &text, &v));
	EQ(strcmp(text, getenv("NCCL_DEBUG") ? getenv("NCCL_DEBUG") : ""), 0);
	EQ(v, strlen(text));
	OK(nccl.ParamGetAllParameterKeys(&keys, &v));
	for (int i = 0; i < v; i++)
		found += strcmp(keys[i], "NCCL_PROTO") == 0 || strcmp(keys[i], "GANTRY_TIMEOUT") == 0;
	EQ(found, 2);
}

/* Before anything else: wrong ones change nothing, and the right one may come twice. */
static void case_encrypt(void)
{
	static const char key[] = "a key of more than thirty-two characters";
	struct encryption e = {sizeof(e), 0xcafebeef, 23203, 1, "short"}, none = {sizeof(none), 0, 23203, 0, NULL};

	EQ(nccl.SetEncryption(&none), INVALID_ARGUMENT);
	EQ(nccl.SetEncryption(&e), INVALID_ARGUMENT);
	e.psk = NULL;
	EQ(nccl.SetEncryption(&e), INVALID_ARGUMENT);
	e.psk = key;
	e.mode = 7;
	EQ(nccl.SetEncryption(&e), INVALID_ARGUMENT);
	e.mode = 1;
	OK(nccl.SetEncryption(&e));
	OK(nccl.SetEncryption(&e));
}

/* It is too late for another one. */
static void case_encrypt_late(void)
{
	struct encryption e = {sizeof(e), 0xcafebeef, 23203, 1, "another key of more than thirty-two characters"};

	EQ(nccl.SetEncryption(&e), INVALID_USAGE);
}

/* NAME=VALUE of every parameter, for the script. */
static void case_show(void)
{
	const char **keys, *text;
	int n, len;

	OK(nccl.GetVersion(&n));
	OK(nccl.ParamGetAllParameterKeys(&keys, &n));
	for (int i = 0; i < n; i++) {
		OK(nccl.ParamGetParameter(keys[i], &text, &len));
		printf("%s=%s\n", keys[i], text);
	}
	fflush(stdout);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"init", case_init},
	{"sendrecv", case_sendrecv},
	{"all_reduce", case_all_reduce},
	{"sums", case_sums},
	{"rooted", case_rooted},
	{"parts", case_parts},
	{"ops", case_ops},
	{"init_all", case_init_all},
	{"config", case_config},
	{"config_idle", case_config_idle},
	{"network", case_network},
	{"split", case_split},
	{"split_group", case_split_group},
	{"shrink", case_shrink},
	{"ends", case_ends},
	{"forked", case_forked},
	{"revoke", case_revoke},
	{"grow", case_grow},
	{"nonblocking", case_nonblocking},
	{"wrong", case_wrong},
	{"params", case_params},
	{"show", case_show},
	{"abort", case_abort},
	{"death", case_death},
	{"cuda", case_cuda},
	{"window", case_window},
	{"encrypt", case_encrypt},
	{"encrypt_late", case_encrypt_late},
};

static char **wanted;

static void run_cases(void)
{
	for (char **name = wanted; *name; name++) {
		size_t i = 0;

		while (i < sizeof(cases) / sizeof(*cases) && strcmp(cases[i].name, *name))
			i++;
		TRUE(i < sizeof(cases) / sizeof(*cases));
		cases[i].run();
	}
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	wanted = argv + 3;
	if (strcmp(argv[1], "launched") == 0)
		return run_launched(argv[2], run_cases);
	return run_ranks(atoi(argv[2]), strcmp(argv[1], "threads") == 0, run_cases);
}
