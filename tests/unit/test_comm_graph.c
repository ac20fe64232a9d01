/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captured calls, run again and again. The host device has no graphs, so this file lends it some: what is enqueued on a
 * captured stream is kept as a list, and a run enqueues the list on a stream. Memory, kernels and proxies are the real
 * ones, and results differ from run to run and by position.
 */
#include "comm_world.h"
#include "device/device.h"

enum { ITEMS = 64, KEPT = 64, ARGS = 512, COUNT = 5000, SMALL = 37 };
enum item_kind { ITEM_LAUNCH, ITEM_CALL, ITEM_WAIT, ITEM_RECORD };

struct item {
	enum item_kind kind;
	struct gantry_launch launch;
	_Alignas(16) char args[ARGS];
	void (*fn)(void *ctx);
	void *ctx;
	struct gantry_dev_event *event;
};

struct graph {
	uint64_t id;
	struct gantry_stream *streams[2];
	struct item items[ITEMS];
	int nitems;
	struct {
		void (*gone)(void *ctx);
		void *ctx;
	} kept[KEPT];
	int nkept;
};

static const struct gantry_device_ops *real;
static struct gantry_device_ops lent;
static _Thread_local struct graph *capturing;

static struct graph *graph_of(const struct gantry_stream *s)
{
	return capturing && (capturing->streams[0] == s || capturing->streams[1] == s) ? capturing : NULL;
}

static struct item *add_item(struct gantry_stream *s, enum item_kind kind)
{
	struct graph *g = graph_of(s);

	CHECK(g && g->nitems < ITEMS);
	g->items[g->nitems].kind = kind;
	return &g->items[g->nitems++];
}

struct call_args {
	void (*fn)(void *ctx);
	void *ctx;
};

static void call_body(const void *args)
{
	const struct call_args *a = args;

	a->fn(a->ctx);
}

static struct gantry_kernel call_kernel = {
	.name = "call", .body = call_body, .args_size = sizeof(struct call_args), .lanes = 1};

static gantry_result lent_stream_captured(struct gantry_device *dev, struct gantry_stream *s, uint64_t *ret_capture)
{
	struct graph *g = graph_of(s);

	(void)dev;
	*ret_capture = g ? g->id : 0;
	return GANTRY_OK;
}

static gantry_result lent_host_call(struct gantry_device *dev, struct gantry_stream *s, void (*fn)(void *ctx),
				    void *ctx)
{
	struct call_args args = {fn, ctx};
	struct gantry_launch l = {.kernel = &call_kernel, .blocks = 1, .args = &args, .args_size = sizeof(args)};
	struct item *i;

	if (!graph_of(s))
		return real->launch(dev, s, &l);
	i = add_item(s, ITEM_CALL);
	i->fn = fn;
	i->ctx = ctx;
	return GANTRY_OK;
}

static gantry_result lent_launch(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	struct item *i;

	if (!graph_of(s))
		return real->launch(dev, s, l);
	i = add_item(s, ITEM_LAUNCH);
	CHECK(l->args_size <= ARGS);
	i->launch = *l;
	memcpy(i->args, l->args, l->args_size);
	i->launch.args = i->args;
	return GANTRY_OK;
}

static gantry_result lent_graph_keep(struct gantry_device *dev, struct gantry_stream *s, void (*gone)(void *ctx),
				     void *ctx)
{
	struct graph *g = graph_of(s);

	(void)dev;
	CHECK(g && g->nkept < KEPT);
	g->kept[g->nkept].gone = gone;
	g->kept[g->nkept++].ctx = ctx;
	return GANTRY_OK;
}

static gantry_result lent_graph_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	(void)dev;
	add_item(s, ITEM_WAIT)->event = e;
	return GANTRY_OK;
}

static gantry_result lent_graph_record(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	(void)dev;
	add_item(s, ITEM_RECORD)->event = e;
	return GANTRY_OK;
}

/* An edge of the graph: the list has it by its order. */
static gantry_result lent_stream_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	return graph_of(s) ? GANTRY_OK : real->stream_wait(dev, s, e);
}
static gantry_result lent_event_record(struct gantry_device *dev, struct gantry_dev_event *e, struct gantry_stream *s)
{
	return graph_of(s) ? GANTRY_OK : real->event_record(dev, e, s);
}

/* What a driver does not allow while it captures. */
static gantry_result lent_stream_sync(struct gantry_device *dev, struct gantry_stream *s)
{
	CHECK(!graph_of(s));
	return real->stream_sync(dev, s);
}

/* Runs the ranks with a device that has graphs: a process has one host device, which all of them open. */
static void run_world(struct world *w, void (*middle)(struct world *w))
{
	struct gantry_device *dev;

	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &dev));
	real = dev->ops;
	lent = *real;
	lent.stream_captured = lent_stream_captured;
	lent.host_call = lent_host_call;
	lent.launch = lent_launch;
	lent.graph_keep = lent_graph_keep;
	lent.graph_wait = lent_graph_wait;
	lent.graph_record = lent_graph_record;
	lent.stream_wait = lent_stream_wait;
	lent.event_record = lent_event_record;
	lent.stream_sync = lent_stream_sync;
	dev->ops = &lent;
	world_threads(w, middle);
	dev->ops = real;
	gantry_device_close(dev);
}

static void capture_begin(struct graph *g, struct gantry_stream *s, struct gantry_stream *other)
{
	static uint64_t ids;

	memset(g, 0, sizeof(*g));
	g->id = __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED);
	g->streams[0] = s;
	g->streams[1] = other;
	capturing = g;
}

static void capture_end(void)
{
	capturing = NULL;
}

static void graph_run(struct gantry_device *dev, struct graph *g, struct gantry_stream *s)
{
	for (int k = 0; k < g->nitems; k++) {
		struct item *i = &g->items[k];

		switch (i->kind) {
		case ITEM_LAUNCH:
			CHECK_OK(real->launch(dev, s, &i->launch));
			break;
		case ITEM_CALL:
			CHECK_OK(lent_host_call(dev, s, i->fn, i->ctx));
			break;
		case ITEM_WAIT:
			CHECK_OK(real->stream_wait(dev, s, i->event));
			break;
		case ITEM_RECORD:
			CHECK_OK(real->event_record(dev, i->event, s));
			break;
		}
	}
}

static void graph_end(struct graph *g)
{
	for (int i = 0; i < g->nkept; i++)
		g->kept[i].gone(g->kept[i].ctx);
	g->nkept = 0;
}

/* ---- the scenarios ---- */

static int runs;

static uint32_t value(int rank, int run, int i)
{
	return (uint32_t)(i * 7 + rank * 1000003 + run * 10007);
}

static void fill_values(uint32_t *p, int n, int rank, int run)
{
	for (int i = 0; i < n; i++)
		p[i] = value(rank, run, i);
}

static int count_wrong_sums(const uint32_t *p, int n, int nranks, int run)
{
	int wrong = 0;

	for (int i = 0; i < n; i++) {
		uint32_t want = 0;

		for (int r = 0; r < nranks; r++)
			want += value(r, run, i);
		wrong += p[i] != want;
	}
	return wrong;
}

struct buffers {
	uint32_t in[COUNT], sum[COUNT], small[COUNT], all[WORLD_MOST * SMALL], got[COUNT], plain[COUNT];
};

static void enqueue_ring(struct buffers *b, int rank, int n, struct gantry_comm *comm, struct gantry_stream *s)
{
	CHECK_OK(gantry_group_start());
	CHECK_OK(gantry_send(b->in, COUNT / 2, GANTRY_TYPE_UINT32, (rank + 1) % n, comm, s));
	CHECK_OK(gantry_recv(b->got, COUNT / 2, GANTRY_TYPE_UINT32, (rank + n - 1) % n, comm, s));
	CHECK_OK(gantry_send(b->in + COUNT / 2, COUNT / 2, GANTRY_TYPE_UINT32, (rank + 1) % n, comm, s));
	CHECK_OK(gantry_recv(b->got + COUNT / 2, COUNT / 2, GANTRY_TYPE_UINT32, (rank + n - 1) % n, comm, s));
	CHECK_OK(gantry_group_end());
}

static void check_run(struct buffers *b, int rank, int n, int run)
{
	CHECK_EQ(count_wrong_sums(b->sum, COUNT, n, run), 0);
	CHECK_EQ(count_wrong_sums(b->small, SMALL, n, run), 0);
	for (int r = 0; r < n; r++)
		for (int i = 0; i < SMALL; i++)
			CHECK_EQ(b->all[r * SMALL + i], value(r, run, i));
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(b->got[i], value((rank + n - 1) % n, run, i));
}

/* Two graphs, one of them on two streams, run by turns, with plain calls on a third stream between them. */
static void replay(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		   struct gantry_stream *s)
{
	struct buffers *b = calloc(1, sizeof(*b));
	struct graph *one = malloc(sizeof(*one)), *two = malloc(sizeof(*two));
	struct gantry_stream *other, *third;
	int n = w->nranks;

	CHECK_OK(gantry_stream_create(dev, &other));
	CHECK_OK(gantry_stream_create(dev, &third));
	/* One that nobody waited for before the capture. */
	fill_values(b->plain, COUNT, rank, -1);
	CHECK_OK(gantry_all_reduce(b->plain, b->plain, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm, third));
	capture_begin(one, s, other);
	CHECK_OK(gantry_all_reduce(b->in, b->sum, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_all_gather(b->in, b->all, SMALL, GANTRY_TYPE_UINT32, comm, other));
	capture_end();
	capture_begin(two, other, NULL);
	CHECK_OK(gantry_all_reduce(b->in, b->small, SMALL, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm, other));
	enqueue_ring(b, rank, n, comm, other);
	capture_end();
	CHECK_OK(gantry_stream_sync(dev, third));
	CHECK_EQ(count_wrong_sums(b->plain, COUNT, n, -1), 0);
	for (int run = 0; run < runs; run++) {
		fill_values(b->in, COUNT, rank, run);
		graph_run(dev, one, s);
		fill_values(b->plain, COUNT, rank, run + 5);
		if (run % 3 == 1)
			CHECK_OK(gantry_all_reduce(b->plain, b->plain, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm,
						   third));
		graph_run(dev, two, run % 2 ? other : s);
		if (run % 5 == 2) /* again, with nothing between */
			graph_run(dev, one, other);
		CHECK_OK(gantry_stream_sync(dev, s));
		CHECK_OK(gantry_stream_sync(dev, other));
		CHECK_OK(gantry_stream_sync(dev, third));
		CHECK_OK(gantry_comm_error(comm, NULL, NULL, 0));
		check_run(b, rank, n, run);
		if (run % 3 == 1)
			CHECK_EQ(count_wrong_sums(b->plain, COUNT, n, run + 5), 0);
	}
	/* Memory of a graph that is gone serves the next one. */
	graph_end(one);
	capture_begin(one, s, NULL);
	CHECK_OK(gantry_all_reduce(b->in, b->sum, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_MAX, comm, s));
	capture_end();
	graph_run(dev, one, s);
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(b->sum[COUNT - 1], value(n - 1, runs - 1, COUNT - 1));
	graph_end(one);
	graph_end(two);
	/* None is left: a plain call is as it was. */
	CHECK_OK(gantry_all_reduce(b->in, b->sum, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm, third));
	CHECK_OK(gantry_stream_sync(dev, third));
	CHECK_EQ(count_wrong_sums(b->sum, COUNT, n, runs - 1), 0);
	CHECK_OK(gantry_comm_destroy(comm));
	gantry_stream_destroy(dev, other);
	gantry_stream_destroy(dev, third);
	free(one);
	free(two);
	free(b);
}

TEST(replays)
{
	static const char *const transports[] = {"p2p", "shm", "net"};
	struct world w = {.body = replay, .channels = 2};

	setenv("GANTRY_IFNAME", "lo", 0);
	for (int t = 0; t < 3; t++) {
		runs = (SANITIZED ? 20 : t == 2 ? 100 : 500) * (getenv("GANTRY_TEST_LONG") ? 100 : 1);
		w.nranks = t == 1 ? 3 : 2;
		w.transport = transports[t];
		run_world(&w, NULL);
		printf("%s: %d runs right\n", transports[t], runs);
	}
}

/* The others do not run it: an abort ends it, and those after it end at once. A graph that is left does nothing. */
static void abandoned(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	struct buffers *b = calloc(1, sizeof(*b));
	struct graph *g = malloc(sizeof(*g));
	uint64_t began;

	capture_begin(g, s, NULL);
	CHECK_OK(gantry_all_reduce(b->in, b->sum, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm, s));
	enqueue_ring(b, rank, 2, comm, s);
	capture_end();
	graph_run(dev, g, s);
	CHECK_OK(gantry_stream_sync(dev, s));
	if (rank == 0) {
		graph_run(dev, g, s);
		usleep(20000);
		CHECK_EQ(gantry_stream_query(dev, s), GANTRY_AGAIN);
	}
	pthread_barrier_wait(&w->all);
	pthread_barrier_wait(&w->over);
	CHECK_OK(gantry_comm_abort(comm));
	began = now_ms();
	graph_run(dev, g, s);
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK(now_ms() - began < 5000);
	CHECK(gantry_comm_error(comm, NULL, NULL, 0) != GANTRY_OK); /* its own abort, or the news of the other one */
	gantry_comm_destroy(comm);
	memset(b->sum, 0x55, sizeof(b->sum));
	graph_run(dev, g, s);
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_FILLED(b->sum, sizeof(b->sum), 0x55);
	graph_end(g);
	free(g);
	free(b);
}

static void go_on(struct world *w)
{
	(void)w;
}

TEST(abort_and_end)
{
	static const char *const transports[] = {"shm", "net"};
	struct world w = {.body = abandoned, .nranks = 2};

	for (int t = 0; t < 2; t++) {
		w.transport = transports[t];
		run_world(&w, go_on);
	}
}

/* A capture waits for plain calls before it, also when another rank is late with its part of one by several deadlines. */
static void late_capture(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			 struct gantry_stream *s)
{
	struct buffers *b = calloc(1, sizeof(*b));
	struct graph *g = malloc(sizeof(*g));
	struct gantry_stream *other;

	(void)w;
	CHECK_OK(gantry_stream_create(dev, &other));
	fill_values(b->in, COUNT, rank, 1);
	CHECK_OK(gantry_all_reduce(b->in, b->plain, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm, other));
	CHECK_OK(gantry_stream_sync(dev, other));
	memset(b->plain, 0, sizeof(b->plain));
	if (rank == 1)
		sleep_ms(1000); /* GANTRY_TIMEOUT is 300 ms */
	CHECK_OK(gantry_all_reduce(b->in, b->plain, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm, other));
	capture_begin(g, s, NULL);
	CHECK_OK(gantry_all_reduce(b->in, b->sum, COUNT, GANTRY_TYPE_UINT32, GANTRY_OP_SUM, comm, s));
	capture_end();
	graph_run(dev, g, s);
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_stream_sync(dev, other));
	CHECK_EQ(count_wrong_sums(b->plain, COUNT, 2, 1), 0);
	CHECK_EQ(count_wrong_sums(b->sum, COUNT, 2, 1), 0);
	graph_end(g);
	CHECK_OK(gantry_comm_destroy(comm));
	gantry_stream_destroy(dev, other);
	free(g);
	free(b);
}

TEST(waits_for_late_rank)
{
	struct world w = {.body = late_capture, .nranks = 2, .transport = "shm"};

	set_params("GANTRY_TIMEOUT", "300ms");
	run_world(&w, NULL);
	set_params("GANTRY_TIMEOUT", NULL);
}
