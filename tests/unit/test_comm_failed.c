/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A failed collective never looks finished. Rank 0 waits for what rank 1 never sends; rank 1 leaves. Where streams report
 * errors, every call that waits for rank 0's stream returns the error and nothing behind it runs, until rank 0 ends its
 * communicator. Where they do not (as on a GPU: the same kernels, with the host device's `reports` off), the stream waits.
 */
#include "comm/comm.h"
#include "comm_world.h"

enum { COUNT = 40000, LARGE = 3000000 };

/* The ways in which a kernel can be waiting, or have failed. */
enum way { REDUCE_SMALL, REDUCE, REDUCE_LARGE, RECEIVE, SEND, WAIT_SIGNAL, TOO_LARGE, WAYS };

struct calls {
	enum way way;
	float *in, *out;
	struct gantry_window *window;
};

static int reports; /* of the device */
static enum way way_now;
static const char *how; /* rank 0 ends it */
static int called;	/* rank 0 has made its calls; release, acquire */

static void make_call(const struct calls *c, struct gantry_comm *comm, struct gantry_stream *s)
{
	size_t n = c->way == REDUCE_SMALL ? 5 : c->way == REDUCE_LARGE ? LARGE : COUNT;
	const struct gantry_signal_wait wait = {.count = 1, .peer = 1};

	switch (c->way) {
	case RECEIVE:
	case TOO_LARGE:
		CHECK_OK(gantry_recv(c->out, c->way == TOO_LARGE ? LARGE - 1 : n, GANTRY_TYPE_FLOAT32, 1, comm, s));
		break;
	case SEND:
		CHECK_OK(gantry_send(c->in, LARGE, GANTRY_TYPE_FLOAT32, 1, comm, s));
		break;
	case WAIT_SIGNAL:
		CHECK_OK(gantry_wait_signals(&wait, 1, comm, s));
		break;
	default:
		CHECK_OK(gantry_all_reduce(c->in, c->out, n, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, comm, s));
	}
}

/* All of it once, with rank 1 there: connections are made. */
static void call_together(struct calls *c, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			  struct gantry_stream *s)
{
	c->way = way_now;
	c->in = calloc(LARGE, sizeof(float));
	c->out = calloc(LARGE, sizeof(float));
	if (way_now == WAIT_SIGNAL)
		CHECK_OK(gantry_window_register(comm, c->in, 64, &c->window));
	CHECK_OK(gantry_all_reduce(c->in, c->out, LARGE, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_all_reduce(c->in, c->out, 1, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, comm, s));
	CHECK_OK((rank ? gantry_send
		       : (gantry_result(*)(const void *, size_t, enum gantry_type, int, struct gantry_comm *,
					   struct gantry_stream *))gantry_recv)(c->in, 1, GANTRY_TYPE_FLOAT32, !rank,
										comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
}

static void calls_free(struct calls *c)
{
	free(c->in);
	free(c->out);
}

static void leave(const struct calls *c, struct gantry_comm *comm, struct gantry_stream *s)
{
	UNTIL(load_acquire(&called));
	if (c->way == TOO_LARGE)
		CHECK_OK(gantry_send(c->in, LARGE, GANTRY_TYPE_FLOAT32, 0, comm, s));
	else
		CHECK_OK(gantry_comm_abort(comm));
}

/* ---- streams that report errors ---- */

static void check_reported(struct gantry_device *dev, struct gantry_stream *s, struct gantry_comm *comm)
{
	gantry_result r = gantry_stream_sync(dev, s);

	CHECK(r != GANTRY_OK && r != GANTRY_AGAIN);
	CHECK_EQ(gantry_comm_error(comm, NULL, NULL, 0), r);
	CHECK_EQ(gantry_stream_query(dev, s), r);
	CHECK_EQ(gantry_stream_sync(dev, s), r); /* it stays */
}

static void end_comm(struct gantry_comm *comm)
{
	if (strcmp(how, "abort") == 0)
		CHECK_OK(gantry_comm_abort(comm));
	else if (strcmp(how, "revoke") == 0)
		CHECK_OK(gantry_comm_revoke(comm));
	else
		CHECK(gantry_comm_destroy(comm) != GANTRY_OK);
}

static void reported_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			  struct gantry_stream *s)
{
	struct gantry_stream *other;
	struct gantry_dev_event *event, *late;
	uint64_t from = 7, to = 1, beyond = 2;
	struct calls c = {0};

	(void)w;
	call_together(&c, rank, comm, dev, s);
	if (rank == 1) {
		leave(&c, comm, s);
		gantry_stream_sync(dev, s);
		gantry_comm_destroy(comm);
		calls_free(&c);
		return;
	}
	CHECK_OK(gantry_stream_create(dev, &other));
	CHECK_OK(dev->ops->event_create(dev, &event));
	CHECK_OK(dev->ops->event_create(dev, &late));
	make_call(&c, comm, s);
	CHECK_OK(dev->ops->copy_async(dev, s, &to, &from, sizeof(to)));
	CHECK_OK(dev->ops->event_record(dev, event, s));
	CHECK_OK(dev->ops->stream_wait(dev, other, event));
	CHECK_OK(dev->ops->copy_async(dev, other, &beyond, &from, sizeof(beyond)));
	store_release(&called, 1);
	check_reported(dev, s, comm);
	check_reported(dev, other, comm);
	CHECK_OK(dev->ops->event_record(dev, late, s));
	CHECK_EQ(dev->ops->event_query(dev, event), gantry_comm_error(comm, NULL, NULL, 0));
	CHECK_EQ(dev->ops->event_query(dev, late), gantry_comm_error(comm, NULL, NULL, 0));
	CHECK_EQ(to, 1);
	CHECK_EQ(beyond, 2);
	end_comm(comm);
	/* As it was asked for: streams get on, as a GPU's do. */
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_OK(gantry_stream_sync(dev, other));
	CHECK_OK(dev->ops->event_query(dev, event));
	CHECK_EQ(to, 7);
	CHECK_EQ(beyond, 7);
	if (strcmp(how, "destroy"))
		gantry_comm_destroy(comm);
	CHECK_OK(dev->ops->event_destroy(dev, event));
	CHECK_OK(dev->ops->event_destroy(dev, late));
	CHECK_OK(gantry_stream_destroy(dev, other));
	calls_free(&c);
}

static void run_ways(void (*body)(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
				  struct gantry_stream *s))
{
	static const char *const transports[] = {"shm", "p2p", "net"}, *const hows[] = {"abort", "revoke", "destroy"};
	struct gantry_device *dev;

	setenv("GANTRY_IFNAME", "lo", 0);
	CHECK_OK(gantry_device_host(&dev));
	dev->reports = reports;
	for (unsigned i = 0; i < 3 * WAYS; i++) {
		struct world w = {.body = body, .nranks = 2, .channels = 2, .transport = transports[i % 3]};

		way_now = (enum way)(i / 3);
		how = hows[(i / 3 + i) % 3];
		CASE("way %u, %s, %s", i / 3, w.transport, how);
		/* A send that was taken is done, whatever becomes of its receiver; a size is the network's to check. */
		if ((way_now == SEND && i % 3 != 1) || (way_now == TOO_LARGE && i % 3 == 2))
			continue;
		store_release(&called, 0);
		world_threads(&w, NULL);
	}
	dev->reports = 1;
	gantry_device_close(dev);
}

TEST(waits_return_the_error)
{
	reports = 1;
	run_ways(reported_body);
}

/* ---- streams that cannot ---- */

static void held_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	struct gantry_stream *other;
	uint64_t from = 7, to = 1;
	struct calls c = {0};
	int blamed = -1;

	(void)w;
	call_together(&c, rank, comm, dev, s);
	if (rank == 1) {
		leave(&c, comm, s);
		gantry_stream_sync(dev, s);
		gantry_comm_destroy(comm);
		calls_free(&c);
		return;
	}
	CHECK_OK(gantry_stream_create(dev, &other));
	make_call(&c, comm, s);
	CHECK_OK(dev->ops->copy_async(dev, s, &to, &from, sizeof(to)));
	make_call(&c, comm, other); /* has not begun when it fails */
	store_release(&called, 1);
	UNTIL(gantry_comm_error(comm, &blamed, NULL, 0) != GANTRY_OK);
	if (c.way != TOO_LARGE)
		CHECK_EQ(blamed, 1);
	/* A kernel that ended with the error would have done so within microseconds. */
	for (int i = 0; i < 50; i++) {
		CHECK_EQ(gantry_stream_query(dev, s), GANTRY_AGAIN);
		CHECK_EQ(gantry_stream_query(dev, other), GANTRY_AGAIN);
		sleep_ms(1);
	}
	CHECK_EQ(to, 1);
	end_comm(comm);
	UNTIL(gantry_stream_query(dev, s) == GANTRY_OK && gantry_stream_query(dev, other) == GANTRY_OK);
	CHECK_EQ(to, 7);
	if (strcmp(how, "destroy"))
		gantry_comm_destroy(comm);
	CHECK_OK(gantry_stream_destroy(dev, other));
	calls_free(&c);
}

TEST(kernels_wait_for_the_abort)
{
	reports = 0;
	run_ways(held_body);
}

/* ---- ends ---- */

/* The ring fills behind a call that failed: enqueueing returns the error in place of waiting for room for ever. A stream that
 * is destroyed so does not wait for anybody either, and copies nothing that never came. */
static void full_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		      struct gantry_stream *s)
{
	uint64_t from = 7, to = 1;
	struct gantry_stream *other;
	struct calls c = {0};
	gantry_result r = GANTRY_OK;

	(void)w;
	call_together(&c, rank, comm, dev, s);
	if (rank == 1) {
		leave(&c, comm, s);
	} else {
		CHECK_OK(gantry_stream_create(dev, &other));
		make_call(&c, comm, other);
		store_release(&called, 1);
		WAIT_WHILE (r == GANTRY_OK)
			r = dev->ops->copy_async(dev, other, &to, &from, sizeof(to));
		CHECK_EQ(r, gantry_comm_error(comm, NULL, NULL, 0));
		CHECK_OK(gantry_stream_destroy(dev, other));
		CHECK_EQ(to, 1);
	}
	gantry_comm_destroy(comm);
	calls_free(&c);
}

TEST(a_full_stream_returns_the_error)
{
	struct world w = {.body = full_body, .nranks = 2, .transport = "shm"};

	way_now = REDUCE;
	store_release(&called, 0);
	world_threads(&w, NULL);
}

/* A wait that began before the abort learns of it, one that begins after it does not; and the stream can be used again. */
static void *sync_now(void *stream)
{
	struct gantry_device *dev;
	gantry_result r;

	CHECK_OK(gantry_device_host(&dev));
	store_release(&called, 1);
	r = gantry_stream_sync(dev, stream);
	gantry_device_close(dev);
	return (void *)(uintptr_t)r;
}

static void aborted_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			 struct gantry_stream *s)
{
	struct calls c = {0};
	pthread_t t;
	void *r;

	call_together(&c, rank, comm, dev, s);
	if (rank == 0) {
		make_call(&c, comm, s);
		CHECK_EQ(pthread_create(&t, NULL, sync_now, s), 0);
		UNTIL(load_acquire(&called));
		sleep_ms(50); /* likely inside */
		CHECK_OK(gantry_comm_abort(comm));
		CHECK_EQ(pthread_join(t, &r), 0);
		/* ABORTED, or OK if that thread was off its CPU all the time. */
		CHECK((uintptr_t)r == GANTRY_ERR_ABORTED || (uintptr_t)r == GANTRY_OK);
		CHECK_OK(gantry_stream_sync(dev, s));
	}
	pthread_barrier_wait(&w->all);
	gantry_comm_destroy(comm);
	pthread_barrier_wait(&w->over);
	calls_free(&c);
}

static void nothing(struct world *w)
{
	(void)w;
}

TEST(a_wait_before_the_abort)
{
	struct world w = {.body = aborted_body, .nranks = 2, .transport = "shm"};

	way_now = RECEIVE;
	store_release(&called, 0);
	world_threads(&w, nothing);
}

/* Rank 2 leaves; the others shrink and reduce on the streams that have failed, the rest of which runs first. */
static void shrink_body(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
			struct gantry_stream *s)
{
	const int gone = 2;
	struct gantry_comm *small;
	int64_t in = 10 + rank, out = 0;

	(void)w;
	CHECK_OK(gantry_all_reduce(&in, &out, 1, GANTRY_TYPE_INT64, GANTRY_OP_SUM, comm, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(out, 33);
	if (rank == 2) {
		UNTIL(load_acquire(&called) == 2);
		CHECK_OK(gantry_comm_abort(comm));
		gantry_comm_destroy(comm);
		return;
	}
	fetch_add_release(&called, 1);
	if (gantry_all_reduce(&in, &out, 1, GANTRY_TYPE_INT64, GANTRY_OP_SUM, comm, s) == GANTRY_OK) {
		if (reports)
			CHECK(gantry_stream_sync(dev, s) != GANTRY_OK);
		else
			UNTIL(gantry_comm_error(comm, NULL, NULL, 0) != GANTRY_OK);
	}
	CHECK_OK(gantry_comm_shrink(comm, &gone, 1, 1, NULL, &small));
	CHECK_OK(gantry_all_reduce(&in, &out, 1, GANTRY_TYPE_INT64, GANTRY_OP_SUM, small, s));
	CHECK_OK(gantry_stream_sync(dev, s));
	CHECK_EQ(out, 21);
	CHECK_OK(gantry_comm_destroy(small));
	gantry_comm_destroy(comm);
}

TEST(shrink_and_go_on)
{
	struct gantry_device *dev;

	CHECK_OK(gantry_device_host(&dev));
	for (reports = 0; reports < 2; reports++) {
		struct world w = {.body = shrink_body, .nranks = 3, .transport = reports ? "net" : "shm"};

		dev->reports = reports;
		store_release(&called, 0);
		world_threads(&w, NULL);
	}
	gantry_device_close(dev);
}
