/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: more calls than can be in flight, of several ranks in one thread, and on several streams. */
#include "comm/comm.h"
#include "comm_world.h"
#include "device/work.h"

enum { MANY = 1000, COUNT = 3 };

static void *init_rank(void *arg)
{
	struct world_thread *t = arg;
	static struct gantry_comm *comms[2];
	struct gantry_comm_config config = {.struct_size = sizeof(config),
					    .id = t->w->id,
					    .rank = t->rank,
					    .nranks = 2,
					    .transport = t->w->transport};

	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &config.device));
	CHECK_OK(gantry_comm_init(&config, &comms[t->rank]));
	return comms[t->rank];
}

/* Both ranks of a communicator, made by two threads for one. */
static void make_pair(const char *transport, struct gantry_comm **ret_comms)
{
	struct world w = {.nranks = 2, .transport = transport};
	struct world_thread args[2] = {{&w, 0}, {&w, 1}};
	pthread_t t[2];
	void *comm;

	CHECK_OK(gantry_unique_id_create(&w.id));
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, init_rank, &args[i]), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(pthread_join(t[i], &comm), 0);
		ret_comms[i] = comm;
	}
}

static void *destroy(void *comm)
{
	CHECK_OK(gantry_comm_destroy(comm));
	return NULL;
}

static void end_pair(struct gantry_comm **comms, struct gantry_device *dev)
{
	pthread_t t[2];

	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, destroy, comms[i]), 0);
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i], NULL);
		gantry_device_close(dev);
	}
}

/* calls[i] of rank i, all in one group of one thread. A rank's first call needs the other rank's. */
static void one_thread(const char *transport, const int *calls)
{
	static int32_t in[2][MANY][COUNT], out[2][MANY][COUNT];
	struct gantry_stream *s[2];
	struct gantry_comm *comms[2];
	struct gantry_device *dev;

	make_pair(transport, comms);
	CHECK_OK(gantry_device_host(&dev));
	memset(out, 0, sizeof(out));
	for (int i = 0; i < 2; i++)
		CHECK_OK(gantry_stream_create(dev, &s[i]));
	CHECK_OK(gantry_group_start());
	for (int i = 0; i < 2; i++) {
		for (int k = 0; k < calls[i]; k++) {
			for (int e = 0; e < COUNT; e++)
				in[i][k][e] = 100 * k + 10 * e + i;
			CHECK_OK(gantry_all_reduce(in[i][k], out[i][k], COUNT, GANTRY_TYPE_INT32, GANTRY_OP_SUM,
						   comms[i], s[i]));
		}
	}
	CHECK_OK(gantry_group_end());
	for (int i = 0; i < 2; i++)
		CHECK_OK(gantry_stream_sync(dev, s[i]));
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < calls[i]; k++)
			for (int e = 0; e < COUNT; e++)
				CHECK_EQ(out[i][k][e], 200 * k + 20 * e + 1);
	for (int i = 0; i < 2; i++)
		CHECK_OK(gantry_stream_destroy(dev, s[i]));
	end_pair(comms, dev);
	gantry_device_close(dev);
}

TEST(more_calls_than_fit)
{
	static const int counts[] = {256, 257, 300, MANY};

	setenv("GANTRY_IFNAME", "lo", 0);
	EACH_ROW (i, counts) {
		one_thread("shm", (const int[]){counts[i], counts[i]});
		if (i % 2)
			one_thread("net", (const int[]){counts[i], counts[i]});
	}
}

/* ---- several streams ---- */

enum { STREAMS = 3 };

/* What a slow program does on a stream before the group: the input is there when it is over. */
struct slow {
	int32_t *at, value;
};

static void run_slow(const void *args)
{
	const struct slow *a = args;

	sleep_ms(5);
	*a->at = a->value;
}

static const struct gantry_kernel slow = {
	.name = "slow", .body = run_slow, .args_size = sizeof(struct slow), .lanes = 1};

/* Ranks name the communicators in different orders, and streams that the other one does not. */
static void streams_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			 struct gantry_stream *first)
{
	static int32_t in[2][2][MANY], out[2][2][MANY], seen[2][2][MANY];
	struct gantry_stream *s[2][STREAMS] = {{first}};
	struct gantry_comm *comms[2] = {comm, NULL};

	(void)w;
	CHECK_OK(gantry_comm_split(comm, 0, rank, NULL, &comms[1]));
	for (int i = 0; i < 2 * STREAMS; i++)
		if (i)
			CHECK_OK(gantry_stream_create(dev, &s[i / STREAMS][i % STREAMS]));
	memset(in[rank], 0, sizeof(in[rank]));
	for (int c = 0; c < 2; c++) {
		for (int i = 0; i < STREAMS; i++) {
			struct slow args = {&in[rank][c][i], 1000 * c + i + rank};
			struct gantry_launch l = {
				.kernel = &slow, .blocks = 1, .args = &args, .args_size = sizeof(args)};

			CHECK_OK(dev->ops->launch(dev, s[c][i], &l));
		}
	}
	for (int c = 0; c < 2; c++)
		for (int k = STREAMS; k < MANY; k++)
			in[rank][c][k] = 1000 * c + k + rank;
	CHECK_OK(gantry_group_start());
	for (int k = 0; k < MANY; k++) {
		for (int i = 0; i < 2; i++) {
			int c = i ^ rank;

			/* The inputs that are late are used on another stream than the one that brings them. */
			CHECK_OK(gantry_all_reduce(&in[rank][c][k], &out[rank][c][k], 1, GANTRY_TYPE_INT32,
						   GANTRY_OP_SUM, comms[c], s[c][(k + 1 + rank) % STREAMS]));
		}
	}
	CHECK_OK(gantry_group_end());
	/* Every stream waits for all of it. */
	for (int c = 0; c < 2; c++)
		for (int i = 0; i < STREAMS; i++)
			CHECK_OK(dev->ops->copy_async(dev, s[c][i], &seen[rank][c][i], &out[rank][c][MANY - 1 - i],
						      sizeof(int32_t)));
	for (int i = 0; i < 2 * STREAMS; i++)
		CHECK_OK(gantry_stream_sync(dev, s[i / STREAMS][i % STREAMS]));
	for (int c = 0; c < 2; c++) {
		for (int k = 0; k < MANY; k++)
			CHECK_EQ(out[rank][c][k], 2 * (1000 * c + k) + 1);
		for (int i = 0; i < STREAMS; i++)
			CHECK_EQ(seen[rank][c][i], 2 * (1000 * c + MANY - 1 - i) + 1);
	}
	CHECK_OK(gantry_comm_destroy(comms[1]));
	CHECK_OK(gantry_comm_destroy(comms[0]));
	for (int i = 1; i < 2 * STREAMS; i++)
		CHECK_OK(gantry_stream_destroy(dev, s[i / STREAMS][i % STREAMS]));
}

TEST(several_streams)
{
	struct world w = {.body = streams_body, .nranks = 2, .transport = "shm"};

	world_threads(&w, NULL);
}

/*
 * Launches on changing streams: a kernel that waits for the one before would keep a part of the GPU from it, so only the
 * first does, and all others wait by an event. A stream that has got the handle of another one is another one.
 */
static struct gantry_device_ops counting;
static const struct gantry_device_ops *plain_ops;
static struct gantry_stream *watched[2]; /* rank 0's; atomic, the other rank looks, too */
static int waits, spins;		 /* rank 0's thread counts */
static uint64_t number;

static int is_watched(const struct gantry_stream *s)
{
	return s == load_acquire(&watched[0]) || s == load_acquire(&watched[1]);
}

static gantry_result count_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	if (is_watched(s))
		waits++;
	return plain_ops->stream_wait(dev, s, e);
}

static gantry_result count_spin(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	const struct gantry_p2p_args *args = l->args;

	if (is_watched(s) && l->kernel == &gantry_kernel_p2p && args->after)
		spins++;
	return plain_ops->launch(dev, s, l);
}

static gantry_result tell_number(struct gantry_device *dev, struct gantry_stream *s, uint64_t *ret_number)
{
	(void)dev;
	*ret_number = s == load_acquire(&watched[0]) ? number : 0;
	return GANTRY_OK;
}

static void order_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		       struct gantry_stream *s)
{
	/* Which stream a send goes to, and how many waits by events and by kernels there have been then. */
	static const struct {
		int stream, waits, spins;
	} sends[] = {{0, 0, 0}, {0, 0, 0}, {1, 0, 1}, {1, 0, 1}, {0, 1, 1}, {0, 1, 1}, {1, 2, 1}, {0, 3, 1}};
	enum { SENDS = 8 };
	struct gantry_stream *other;
	int32_t words[SENDS + 1];

	(void)w;
	CHECK_OK(gantry_stream_create(dev, &other));
	if (rank == 1) {
		for (int i = 0; i < SENDS + 1; i++)
			CHECK_OK(gantry_recv(&words[i], 1, GANTRY_TYPE_INT32, 0, comm, s));
		CHECK_OK(gantry_stream_sync(dev, s));
		for (int i = 0; i < SENDS + 1; i++)
			CHECK_EQ(words[i], 70 + i);
	} else {
		store_release(&watched[0], s);
		store_release(&watched[1], other);
		for (int i = 0; i < SENDS + 1; i++)
			words[i] = 70 + i;
		for (int i = 0; i < SENDS; i++) {
			CHECK_OK(gantry_send(&words[i], 1, GANTRY_TYPE_INT32, 1, comm, watched[sends[i].stream]));
			CASE("send %d", i);
			CHECK_EQ(waits, sends[i].waits);
			CHECK_EQ(spins, sends[i].spins);
		}
		number++; /* another stream where s was */
		CHECK_OK(gantry_send(&words[SENDS], 1, GANTRY_TYPE_INT32, 1, comm, s));
		CHECK_EQ(waits, 4);
		CHECK_EQ(spins, 1);
		CHECK_OK(gantry_stream_sync(dev, s));
	}
	CHECK_OK(gantry_comm_destroy(comm));
	CHECK_OK(gantry_stream_destroy(dev, other));
}

TEST(streams_follow_each_other)
{
	struct world w = {.body = order_body, .nranks = 2, .transport = "shm"};
	struct gantry_device *dev;

	CHECK_OK(gantry_device_host(&dev));
	plain_ops = dev->ops;
	counting = *plain_ops;
	counting.stream_wait = count_wait;
	counting.launch = count_spin;
	counting.stream_number = tell_number;
	dev->ops = &counting;
	world_threads(&w, NULL);
	dev->ops = plain_ops;
	gantry_device_close(dev);
}

/* A send on one stream and its receive on another, with a peer and with itself. */
static void transfers_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			   struct gantry_stream *s)
{
	int32_t in[2] = {rank, 10 + rank}, out[2] = {-1, -1};
	struct gantry_stream *other;

	(void)w;
	CHECK_OK(gantry_stream_create(dev, &other));
	CHECK_OK(gantry_group_start());
	CHECK_OK(gantry_send(&in[0], 1, GANTRY_TYPE_INT32, !rank, comm, s));
	CHECK_OK(gantry_recv(&out[0], 1, GANTRY_TYPE_INT32, !rank, comm, other));
	CHECK_OK(gantry_send(&in[1], 1, GANTRY_TYPE_INT32, rank, comm, other));
	CHECK_OK(gantry_recv(&out[1], 1, GANTRY_TYPE_INT32, rank, comm, s));
	CHECK_OK(gantry_group_end());
	CHECK_OK(gantry_stream_sync(dev, rank ? s : other)); /* either has all of it */
	CHECK_EQ(out[0], !rank);
	CHECK_EQ(out[1], 10 + rank);
	CHECK_OK(gantry_comm_destroy(comm));
	CHECK_OK(gantry_stream_destroy(dev, other));
}

TEST(transfers_on_two_streams)
{
	struct world w = {.body = transfers_body, .nranks = 2, .transport = "net"};

	setenv("GANTRY_IFNAME", "lo", 0);
	world_threads(&w, NULL);
}
