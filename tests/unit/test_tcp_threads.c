/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads, mostly for TSan. Two sides, in one process: on each, one thread moves messages of mixed sizes both ways, and
 * another registers memory, connects, uses and closes other comms at the same time, as NCCL's two threads do. Helper
 * threads and the service thread are at it too.
 */
#include "net/net.h"
#include "test.h"

enum { DEPTH = 6, MAX = 600000, MESSAGES = SANITIZED ? 150 : 250, ROUNDS = 12 };

static struct gantry_net *net;
static const struct gantry_net_ops *ops;
static void *ctx;

struct mailbox { /* how the handles travel: NCCL has its bootstrap for that */
	pthread_mutex_t mu;
	int full;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
};

struct side {
	int number;
	void *send, *recv;
	uint8_t *out[DEPTH], *in[DEPTH];
	struct mailbox *mine, *theirs; /* of the connecting threads */
};

static void maybe_pause(void)
{
	if (random_below(8) == 0)
		usleep(random_below(300));
}

/* Both ends know it: from nothing to large, most of them small. */
static size_t size_of(int from, int i)
{
	uint64_t number = random_at((uint64_t)(from * 1000 + i)), kind = number % 10;

	if (kind == 0)
		return 0;
	return (number >> 8) % (kind < 6 ? 3000 : kind < 8 ? 70000 : MAX);
}

static int tested(void *request, int *size)
{
	int done = 0;
	gantry_result r = ops->test(net, request, &done, size);

	if (r != GANTRY_OK)
		TEST_FAIL("test: %s: %s", gantry_result_name(r), gantry_last_error());
	return done;
}

/* Messages both ways, up to DEPTH in flight, on one send and one receive comm. */
static void *mover(void *arg)
{
	struct side *s = arg;
	void *sends[DEPTH] = {0}, *recvs[DEPTH] = {0};
	int sent = 0, posted = 0, got = 0, done = 0;

	WAIT_WHILE (got < MESSAGES || done < MESSAGES) {
		if (sent < MESSAGES && sent - done < DEPTH) {
			size_t size = size_of(s->number, sent);
			uint8_t *data = s->out[sent % DEPTH] + sent % 5;

			pattern_fill(data, size, (uint64_t)sent);
			CHECK_OK(ops->isend(net, s->send, data, size, 3, NULL, &sends[sent % DEPTH]));
			sent += sends[sent % DEPTH] != NULL;
		}
		if (posted < MESSAGES && posted - got < DEPTH) {
			void *data = s->in[posted % DEPTH] + posted % 3;
			size_t size = MAX;
			int tag = 3;

			CHECK_OK(ops->irecv(net, s->recv, 1, &data, &size, &tag, NULL, &recvs[posted % DEPTH]));
			posted += recvs[posted % DEPTH] != NULL;
		}
		if (done < sent && tested(sends[done % DEPTH], NULL))
			done++;
		if (got < posted) {
			int size = -1;

			if (tested(recvs[got % DEPTH], &size)) {
				const uint8_t *data = s->in[got % DEPTH] + got % 3;

				CHECK_EQ(size, size_of(!s->number, got));
				CASE("message %d", got);
				CHECK_PATTERN(data, size, (uint64_t)got);
				got++;
			}
		}
		maybe_pause();
	}
	return NULL;
}

static void give_handle(struct mailbox *box, const uint8_t *handle)
{
	for (int given = 0; !given;) {
		pthread_mutex_lock(&box->mu);
		if (!box->full) {
			memcpy(box->handle, handle, GANTRY_NET_HANDLE_SIZE);
			box->full = given = 1;
		}
		pthread_mutex_unlock(&box->mu);
	}
}

static int take_handle(struct mailbox *box, uint8_t *handle)
{
	int taken = 0;

	pthread_mutex_lock(&box->mu);
	if (box->full) {
		memcpy(handle, box->handle, GANTRY_NET_HANDLE_SIZE);
		box->full = 0;
		taken = 1;
	}
	pthread_mutex_unlock(&box->mu);
	return taken;
}

static void connect_sides(struct mailbox *mine, struct mailbox *theirs, void **ret_send, void **ret_recv)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], to[GANTRY_NET_HANDLE_SIZE];
	void *listen, *send = NULL, *recv = NULL;
	int known = 0;

	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	give_handle(theirs, handle);
	WAIT_WHILE (!send || !recv) {
		if (!known)
			known = take_handle(mine, to);
		if (known && !send)
			CHECK_OK(ops->connect(net, ctx, 0, to, &send, NULL));
		if (!recv)
			CHECK_OK(ops->accept(net, listen, &recv, NULL));
		maybe_pause();
	}
	CHECK_OK(ops->close_listen(net, listen));
	*ret_send = send;
	*ret_recv = recv;
}

/* Other comms come and go; some are closed with requests in flight. */
static void *connector(void *arg)
{
	struct side *s = arg;
	FREED uint8_t *memory = malloc(2 * MAX);

	CHECK(memory);
	for (int round = 0; round < ROUNDS; round++) {
		void *send, *recv, *mr, *in, *data = memory + MAX, *request;
		size_t size = round % 2 ? 1000 : MAX;
		int tag = 9, got = -1;

		connect_sides(s->mine, s->theirs, &send, &recv);
		CHECK_OK(ops->reg_mr(net, send, memory, 2 * MAX, GANTRY_NET_PTR_HOST, &mr));
		memset(memory, round, size);
		CHECK_OK(ops->irecv(net, recv, 1, &data, &size, &tag, NULL, &in));
		CHECK_OK(ops->isend(net, send, memory, size, tag, mr, &request));
		/* Each request is tested: the two directions may be on two links. */
		for (int left = 3; left;) {
			if ((left & 1) && tested(in, &got))
				left &= ~1;
			if ((left & 2) && tested(request, NULL))
				left &= ~2;
			maybe_pause();
		}
		CHECK_EQ(got, size);
		CHECK_EQ(memory[MAX], (uint8_t)round);
		CHECK_EQ(memory[MAX + size - 1], (uint8_t)round);
		if (round % 3 == 0) { /* nobody will send this; the other side may have closed already */
			gantry_result r;

			size = MAX;
			r = ops->irecv(net, recv, 1, &data, &size, &tag, NULL, &in);
			CHECK(r == GANTRY_OK || r == GANTRY_ERR_PEER_CLOSED);
		}
		CHECK_OK(ops->dereg_mr(net, send, mr));
		if (round % 2) {
			CHECK_OK(ops->close_recv(net, recv));
			maybe_pause();
			CHECK_OK(ops->close_send(net, send));
		} else {
			CHECK_OK(ops->close_send(net, send));
			CHECK_OK(ops->close_recv(net, recv));
		}
	}
	return NULL;
}

static void *connect_thread(void *arg)
{
	struct side *s = arg;

	connect_sides(s->mine, s->theirs, &s->send, &s->recv);
	return NULL;
}

static void run(const char *zerocopy)
{
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};
	struct mailbox boxes[4] = {{.mu = PTHREAD_MUTEX_INITIALIZER},
				   {.mu = PTHREAD_MUTEX_INITIALIZER},
				   {.mu = PTHREAD_MUTEX_INITIALIZER},
				   {.mu = PTHREAD_MUTEX_INITIALIZER}};
	struct side sides[2];
	pthread_t threads[4];

	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_LANES", "3", 1);
	setenv("GANTRY_HELPERS", "2", 1);
	setenv("GANTRY_ZEROCOPY", zerocopy, 1);
	setenv("GANTRY_ZEROCOPY_MIN", "100k", 1);
	setenv("GANTRY_TIMEOUT", "12s", 1); /* idle looks happen within the test; nobody is off its CPU for so long */
	gantry_log_configure(GANTRY_LOG_ERROR, GANTRY_SUBSYS_ALL, NULL);
	net = gantry_net_tcp();
	ops = net->ops;
	CHECK_OK(ops->init(net, 1, &config, &ctx));
	for (int i = 0; i < 2; i++) {
		sides[i] = (struct side){.number = i, .mine = &boxes[i], .theirs = &boxes[!i]};
		for (int k = 0; k < DEPTH; k++) {
			sides[i].out[k] = malloc(MAX + 8);
			sides[i].in[k] = malloc(MAX + 8);
			CHECK(sides[i].out[k] && sides[i].in[k]);
		}
	}
	threads_start(threads, 2, connect_thread, sides, sizeof(sides[0]));
	threads_join(threads, 2);
	for (int i = 0; i < 2; i++) {
		sides[i].mine = &boxes[2 + i];
		sides[i].theirs = &boxes[2 + !i];
		CHECK_EQ(pthread_create(&threads[i], NULL, mover, &sides[i]), 0);
		CHECK_EQ(pthread_create(&threads[2 + i], NULL, connector, &sides[i]), 0);
	}
	threads_join(threads, 4);
	for (int i = 0; i < 2; i++) {
		CHECK_OK(ops->close_send(net, sides[i].send));
		CHECK_OK(ops->close_recv(net, sides[i].recv));
		for (int k = 0; k < DEPTH; k++) {
			free(sides[i].out[k]);
			free(sides[i].in[k]);
		}
	}
	CHECK_OK(ops->finalize(net, ctx));
}

static const char *zerocopy;

static void one_way(void)
{
	run(zerocopy);
}

int main(int argc, char **argv)
{
	static const char *const ways[] = {"splice", "msg", "off"};
	int failed = 0;

	for (int i = 0; i < 3; i++) {
		zerocopy = ways[i];
		failed += run_row(ways[i], one_way, i == 0, argc > 1 ? argv[1] : NULL);
	}
	return failed != 0;
}
