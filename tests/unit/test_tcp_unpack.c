/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory through the network's table, in one process that connects to itself over lo, with the emulated NIC:
 * what each context asks for, what both sides agree on, which connections share a link, and that every byte arrives,
 * whichever of the two sides has its messages in device memory.
 */
#include <sys/mman.h>

#include "net/devmem.h"
#include "tcp_util.h"
#include "unpack_util.h"

enum { ROOM = 2 * MIB, WINDOW = 8 };

static struct gantry_device *host;
static void *context(int unpack)
{
	struct gantry_net_config config = {
		.traffic_class = GANTRY_NET_UNDEF, .unpack = unpack, .device = unpack ? host : NULL};
	void *ctx = NULL;

	CHECK_OK(ops->init(net, 77, &config, &ctx));
	return ctx;
}

static int links(void)
{
	int n = 0;

	inet_loop_lock();
	gantry_list_each (pos, &tcp_network.links)
		n++;
	inet_loop_unlock();
	return n;
}

/* Random messages one way; the kernel gathers what the queue describes. */
static void traffic(const struct way *w, int from_device, int to_device, uint32_t messages, uint64_t seed)
{
	FREED uint8_t *out = malloc((size_t)WINDOW * ROOM), *in = malloc((size_t)WINDOW * ROOM);
	void *sends[WINDOW] = {0}, *recvs[WINDOW] = {0}, *send_mr, *recv_mr;
	uint64_t sizes[WINDOW];
	uint32_t sent = 0, posted = 0, received = 0, finished = 0;

	CHECK_OK(ops->reg_mr(net, w->send, out, (size_t)WINDOW * ROOM,
			     from_device ? GANTRY_NET_PTR_CUDA : GANTRY_NET_PTR_HOST, &send_mr));
	CHECK_OK(ops->reg_mr(net, w->recv, in, (size_t)WINDOW * ROOM,
			     to_device ? GANTRY_NET_PTR_CUDA : GANTRY_NET_PTR_HOST, &recv_mr));
	WAIT_WHILE (received < messages || finished < messages) {
		if (posted < messages && posted < received + WINDOW && !recvs[posted % WINDOW]) {
			void *data = in + (size_t)(posted % WINDOW) * ROOM, *request = NULL;
			size_t room = ROOM;
			int tag = 0;

			memset(data, 0xa5, ROOM);
			CHECK_OK(ops->irecv(net, w->recv, 1, &data, &room, &tag, &recv_mr, &request));
			recvs[posted % WINDOW] = request;
			posted += request != NULL;
		}
		if (sent < messages && !sends[sent % WINDOW] && sent < received + WINDOW) {
			uint8_t *from = out + (size_t)(sent % WINDOW) * ROOM;
			uint64_t size = random_below(8) == 0 ? 0 : random_below(random_below(3) ? 9000 : ROOM);

			pattern_fill(from, size, seed + sent);
			sizes[sent % WINDOW] = size;
			CHECK_OK(ops->isend(net, w->send, from, size, 0, send_mr, &sends[sent % WINDOW]));
			sent += sends[sent % WINDOW] != NULL;
		}
		for (uint32_t i = 0; i < WINDOW; i++) {
			int done = 0;

			if (sends[i])
				CHECK_OK(ops->test(net, sends[i], &done, NULL));
			if (done) {
				sends[i] = NULL;
				finished++;
			}
		}
		while (received < posted) {
			uint32_t at = received % WINDOW;
			uint8_t *data = in + (size_t)at * ROOM;
			int done = 0, size = -1;

			CHECK_OK(ops->test(net, recvs[at], &done, &size));
			if (!done)
				break;
			CHECK_EQ(size, sizes[at]);
			if (to_device) {
				uint64_t n = kernel_unpack(w->handle.handle, data, ROOM);

				CHECK_EQ(n == 0, size == 0);
			}
			CHECK_EQ(pattern_wrong_at(data, (size_t)size, seed + received), size);
			if (size < ROOM)
				CHECK_EQ(data[size], 0xa5);
			CHECK_OK(ops->irecv_consumed(net, w->recv, 1, recvs[at]));
			recvs[at] = NULL;
			received++;
		}
	}
	CHECK_OK(ops->dereg_mr(net, w->send, send_mr));
	CHECK_OK(ops->dereg_mr(net, w->recv, recv_mr));
}

/* The last close gives memory of the device back: the pool is the test's alone again, and nothing of it is out, while the
 * service thread still sees links off. */
static void pool_is_back(struct devmem_pool *pool)
{
	CHECK_EQ(pool->refs, 1);
	CHECK(pool_is_whole(pool));
	UNTIL(links_are_gone());
	CHECK_EQ(pool->refs, 1);
}

/*
 * NCCL's bootstrap over the network: no device handle, nothing is consumed. Receives come to their buffers for as long as it
 * likes, in host memory and in memory of the device.
 */
TEST(no_device_handle)
{
	enum { MESSAGES = 5 * 16, SIZE = 70000 };
	static uint8_t out[SIZE], in[SIZE];
	void *a = context(GANTRY_NET_UNPACK_EMULATED), *listen = NULL, *send = NULL, *recv = NULL, *mr[2], *r, *s;
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	int tag = 0, size;

	CHECK_OK(ops->listen(net, a, 0, handle, &listen));
	WAIT_WHILE (!send || !recv) {
		if (!send)
			CHECK_OK(ops->connect(net, a, 0, handle, &send, &none));
		if (!recv)
			CHECK_OK(ops->accept(net, listen, &recv, &none));
	}
	CHECK_OK(ops->close_listen(net, listen));
	CHECK_OK(ops->reg_mr(net, recv, in, SIZE, GANTRY_NET_PTR_HOST, &mr[0]));
	CHECK_OK(ops->reg_mr(net, recv, in, SIZE, GANTRY_NET_PTR_CUDA, &mr[1]));
	for (uint64_t i = 0; i < MESSAGES; i++) {
		size_t bytes = i % 3 ? 100 : SIZE, room = SIZE;
		void *data = in;

		pattern_fill(out, bytes, i);
		memset(in, 0xa5, SIZE);
		r = s = NULL;
		CHECK_OK(ops->irecv(net, recv, 1, &data, &room, &tag, &mr[i % 2], &r));
		CHECK(r);
		CHECK_OK(ops->isend(net, send, out, bytes, 0, NULL, &s));
		CHECK_EQ(wait_two(r, s, &size), (int)bytes);
		CHECK_PATTERN(in, bytes, i);
	}
	for (int i = 0; i < 2; i++)
		CHECK_OK(ops->dereg_mr(net, recv, mr[i]));
	close_way((struct way){.send = send, .recv = recv});
	CHECK_OK(ops->finalize(net, a));
}

/* Both, either, or neither side in device memory: bytes, and what the link looks like. */
TEST(every_pair)
{
	struct devmem_pool *pool;

	CHECK_OK(devmem_pool_get(host, GANTRY_NET_UNPACK_EMULATED, &pool));
	for (int from = 0; from < 2; from++)
		for (int to = 0; to < 2; to++) {
			void *a = context(from ? GANTRY_NET_UNPACK_EMULATED : GANTRY_NET_UNPACK_OFF);
			void *b = context(to ? GANTRY_NET_UNPACK_EMULATED : GANTRY_NET_UNPACK_OFF);
			struct way w = connect_ways(a, b);
			int seen = 0;

			inet_loop_lock();
			gantry_list_each (pos, &tcp_network.links) {
				struct tcp_link *l = gantry_container(pos, struct tcp_link, node);

				CHECK_EQ(l->session.device_tx, l->entry->initiator ? to : from);
				CHECK_EQ(l->session.device_rx, l->entry->initiator ? from : to);
				CHECK_EQ(l->devmem->pool == pool, l->session.device_rx);
				seen++;
			}
			inet_loop_unlock();
			CHECK_EQ(seen, 2);
			CHECK_EQ(w.handle.type, to ? GANTRY_NET_DEVICE_UNPACK : GANTRY_NET_DEVICE_HOST);
			traffic(&w, from, to, SANITIZED ? 20 : 40, (uint64_t)from * 2 + (uint64_t)to);
			inet_loop_lock();
			gantry_list_each (pos, &tcp_network.links) {
				struct tcp_link *l = gantry_container(pos, struct tcp_link, node);
				uint32_t calls = 0;

				for (int i = 1; i < l->nlanes; i++)
					calls += __atomic_load_n(&l->lanes[i].tx.calls, __ATOMIC_RELAXED);
				CHECK_EQ(calls > 0, l->entry->initiator && from && to && !getenv("GANTRY_DEVMEM_TX"));
			}
			inet_loop_unlock();
			close_way(w);
			CHECK_OK(ops->finalize(net, a));
			CHECK_OK(ops->finalize(net, b));
		}
	pool_is_back(pool);
	devmem_pool_put(pool);
}

/* Without a copy where the emulated NIC can; else through the stage. */
TEST(through_the_stage)
{
	set_params("GANTRY_DEVMEM_TX", "off");
	every_pair();
	set_params("GANTRY_DEVMEM_TX", NULL);
}

/* Helper threads pull, flush headers and look after copies beside the user's. */
TEST(with_helpers)
{
	set_params("GANTRY_HELPERS", "2");
	every_pair();
	set_params("GANTRY_HELPERS", NULL);
}

/* The way back takes the other direction of the link only if both sides say what they said for it. */
TEST(sharing)
{
	for (int off = 0; off < 4; off++) {
		void *on = context(GANTRY_NET_UNPACK_EMULATED), *not = context(GANTRY_NET_UNPACK_OFF);
		struct way w = connect_ways(on, on), back;
		int same = off == 0;

		CHECK_EQ(links(), 2);
		back = connect_ways(off & 1 ? not : on, off & 2 ? not : on);
		CHECK_EQ(links(), same ? 2 : 4);
		traffic(&w, 1, 1, 10, 5);
		traffic(&back, !(off & 1), !(off & 2), 10, 6);
		traffic(&w, 1, 1, 10, 7);
		close_way(w);
		traffic(&back, !(off & 1), !(off & 2), 10, 8);
		close_way(back);
		CHECK_OK(ops->finalize(net, on));
		CHECK_OK(ops->finalize(net, not ));
	}
}

/* The service thread opens and closes others meanwhile. */
static int fds(void)
{
	return held_named("memfd:dmabuf-of-the-test");
}

TEST(registrations)
{
	void *on = context(GANTRY_NET_UNPACK_EMULATED), *not = context(GANTRY_NET_UNPACK_OFF), *mr = NULL;
	struct way w = connect_ways(on, on), plain = connect_ways(not, not );
	uint8_t data[4096];
	void *request = NULL;
	int fd = memfd_create("dmabuf-of-the-test", MFD_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_ERROR(ops->reg_mr(net, plain.send, data, sizeof(data), GANTRY_NET_PTR_CUDA, &mr), GANTRY_ERR_UNSUPPORTED,
		    "GANTRY_UNPACK");
	CHECK_EQ(ops->reg_mr(net, w.send, data, sizeof(data), 8, &mr), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(ops->reg_mr_dmabuf(net, plain.send, data, sizeof(data), GANTRY_NET_PTR_CUDA, 0, fd, &mr),
		 GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(ops->reg_mr_dmabuf(net, w.send, data, sizeof(data), GANTRY_NET_PTR_CUDA, 0, -1, &mr),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(fds(), 1);
	CHECK_EQ(ftruncate(fd, 2 * sizeof(data)), 0);
	CHECK_ERROR(ops->reg_mr_dmabuf(net, w.send, data, sizeof(data), GANTRY_NET_PTR_CUDA, sizeof(data) + 1, fd, &mr),
		    GANTRY_ERR_INVALID, "beyond the dma-buf");
	CHECK_EQ(ops->reg_mr_dmabuf(net, w.send, data, sizeof(data), GANTRY_NET_PTR_CUDA, UINT64_MAX, fd, &mr),
		 GANTRY_ERR_INVALID);
	CHECK_OK(ops->reg_mr_dmabuf(net, w.send, data, sizeof(data), GANTRY_NET_PTR_CUDA, sizeof(data), fd, &mr));
	CHECK_EQ(fds(), 1); /* the caller may close its own at once */
	CHECK_EQ(ops->isend(net, w.send, data + 1, sizeof(data), 0, mr, &request), GANTRY_ERR_INVALID);
	CHECK_OK(ops->dereg_mr(net, w.send, mr));
	CHECK_EQ(fds(), 1);
	close(fd);
	close_way(w);
	close_way(plain);
	CHECK_OK(ops->finalize(net, on));
	CHECK_OK(ops->finalize(net, not ));
}

/* One message of all of a registration, whose bytes the NIC reads. */
static void send_registration(const struct way *w, void *from, void *mr, size_t size, uint64_t seed)
{
	FREED uint8_t *in = malloc(size);
	void *recv_mr, *data = in, *r = NULL, *s = NULL;
	int tag = 0, got;

	memset(in, 0xa5, size);
	CHECK_OK(ops->reg_mr(net, w->recv, in, size, GANTRY_NET_PTR_CUDA, &recv_mr));
	CHECK_OK(ops->irecv(net, w->recv, 1, &data, &size, &tag, &recv_mr, &r));
	CHECK(r);
	CHECK_OK(ops->isend(net, w->send, from, size, 0, mr, &s));
	CHECK_EQ(wait_two(r, s, &got), (int)size);
	kernel_unpack(w->handle.handle, in, size);
	CHECK_OK(ops->irecv_consumed(net, w->recv, 1, r));
	CHECK_PATTERN(in, size, seed);
	CHECK_OK(ops->dereg_mr(net, w->recv, recv_mr));
}

/*
 * What is sent are the bytes of the dma-buf that was given, from its offset on: here others than those at the address. One
 * that cannot be bound is replaced by one of the device's.
 */
TEST(dmabuf_of_the_caller)
{
	enum { SIZE = 600000, OFFSET = 70001 };
	void *on = context(GANTRY_NET_UNPACK_EMULATED), *mr[2];
	struct way w = connect_ways(on, on);
	FREED uint8_t *data = malloc(SIZE), *file = malloc(OFFSET + SIZE);
	int fd = memfd_create("dmabuf-of-the-test", MFD_CLOEXEC), pipes[2];

	CHECK(fd >= 0 && pipe(pipes) == 0);
	CHECK_EQ(ftruncate(fd, OFFSET + SIZE), 0);
	pattern_fill(file, OFFSET, 1);
	pattern_fill(file + OFFSET, SIZE, 2);
	pattern_fill(data, SIZE, 3);
	CHECK_EQ(pwrite(fd, file, OFFSET + SIZE, 0), OFFSET + SIZE);
	CHECK_OK(ops->reg_mr_dmabuf(net, w.send, data, SIZE, GANTRY_NET_PTR_CUDA, OFFSET, fd, &mr[0]));
	close(fd);
	CHECK_OK(ops->reg_mr_dmabuf(net, w.send, data, SIZE, GANTRY_NET_PTR_CUDA, 0, pipes[0], &mr[1]));
	send_registration(&w, data, mr[0], SIZE, 2);
	send_registration(&w, data, mr[1], SIZE, 3);
	CHECK_OK(ops->dereg_mr(net, w.send, mr[0]));
	send_registration(&w, data, mr[1], SIZE, 3);
	CHECK_OK(ops->dereg_mr(net, w.send, mr[1]));
	close(pipes[0]);
	close(pipes[1]);
	close_way(w);
	CHECK_OK(ops->finalize(net, on));
}

/* GANTRY_UNPACK decides where a context leaves it to that; what cannot be is said. */
TEST(choosing)
{
	static const struct {
		const char *value;
		int unpack;
	} fixed[] = {{"off", GANTRY_NET_UNPACK_OFF}, {"emulated", GANTRY_NET_UNPACK_EMULATED}};
	struct gantry_net_config config = {
		.traffic_class = GANTRY_NET_UNDEF, .unpack = GANTRY_NET_UNPACK_PARAM, .device = host};
	char why[256] = "";
	void *ctx = NULL;
	int usable;

	EACH_ROW (i, fixed) {
		set_params("GANTRY_UNPACK", fixed[i].value);
		CHECK_OK(ops->init(net, 1, &config, &ctx));
		CHECK_EQ(((struct tcp_context *)ctx)->unpack, fixed[i].unpack);
		CHECK_OK(ops->finalize(net, ctx));
	}
	/* A context that wants none has none, whatever the parameter says. */
	CHECK_OK(ops->init(net, 1, NULL, &ctx));
	CHECK_EQ(((struct tcp_context *)ctx)->unpack, GANTRY_NET_UNPACK_OFF);
	CHECK_OK(ops->finalize(net, ctx));

	usable = devmem_kernel_usable("lo", host, why, sizeof(why));
	CHECK(!usable); /* loopback has no queues to bind */
	CHECK(why[0]);
	set_params("GANTRY_UNPACK", "auto");
	logs_forget();
	CHECK_OK(ops->init(net, 1, &config, &ctx));
	CHECK_EQ(((struct tcp_context *)ctx)->unpack, GANTRY_NET_UNPACK_OFF);
	CHECK_HAS(logs_text(), why);
	CHECK_OK(ops->finalize(net, ctx));
	set_params("GANTRY_UNPACK", "kernel");
	CHECK_ERROR(ops->init(net, 1, &config, &ctx), GANTRY_ERR_UNSUPPORTED, why);
	config.unpack = 99;
	CHECK_EQ(ops->init(net, 1, &config, &ctx), GANTRY_ERR_INVALID);
}

/* Devmem TCP brings in what comes through a NIC: between processes of one host both sides fall back, without asking. */
TEST(on_one_host)
{
	struct tcp_rx_memory kernel = {.kind = GANTRY_NET_UNPACK_KERNEL}, none = {.kind = GANTRY_NET_UNPACK_OFF};
	static const struct {
		int host, unpack, device_tx;
	} cases[] = {{1, WIRE_UNPACK_NO, 0}, {1, WIRE_UNPACK_YES, 1}, {1, WIRE_UNPACK_BETWEEN_HOSTS, 0},
		     {0, WIRE_UNPACK_NO, 0}, {0, WIRE_UNPACK_YES, 1}, {0, WIRE_UNPACK_BETWEEN_HOSTS, 1}};

	CHECK_OK(ops->finalize(net, context(GANTRY_NET_UNPACK_OFF)));
	logs_forget(); /* it has room for so much */
	EACH_ROW (i, cases) {
		const struct gantry_addr addr = {.in.sin_family = AF_INET};
		struct tcp_peer peer = {.host = tcp_network.host + !cases[i].host,
					.addr = &addr,
					.window = LINK_WINDOW,
					.eager_max = 4096,
					.unpack = (enum wire_unpack)cases[i].unpack};
		struct tcp_link *l;

		inet_loop_lock();
		CHECK_OK(tcp_link_for_session(2, &l));
		tcp_link_meet(l, cases[i].host ? &kernel : &none, &peer);
		CHECK_EQ(l->entry->own_unpack, cases[i].host ? WIRE_UNPACK_BETWEEN_HOSTS : WIRE_UNPACK_NO);
		inet_loop_unlock();
		CHECK_EQ(l->session.device_tx, cases[i].device_tx);
		CHECK_EQ(l->session.device_rx, 0);
		CHECK(!l->devmem->pool);
		tcp_link_free(l);
	}
	CHECK_HAS(logs_text(), "is on this host");
}

/* Sizes of eager messages are the smaller of both sides', bounces of an unpack queue have that size, and a window that could hold a
 * message back for ever is refused. */
TEST(agreed_sizes)
{
	enum { LEAST = 2 * (LINK_TELL + WIRE_EAGER_SIZE) };
	static const struct {
		uint32_t window, eager_max, agreed;
		gantry_result r;
	} rows[] = {
		{LINK_WINDOW, 1 << 20, 65536, GANTRY_OK},
		{LINK_WINDOW, 65536, 65536, GANTRY_OK},
		{LINK_WINDOW, 300, 300, GANTRY_OK},
		{LINK_WINDOW, 0, 0, GANTRY_OK},
		{UINT32_MAX, UINT32_MAX, 65536, GANTRY_OK},
		{LEAST, 65536, 65536, GANTRY_OK},
		{LEAST - 1, 65536, 0, GANTRY_ERR_PROTOCOL},
		{65536, 300, 0, GANTRY_ERR_PROTOCOL},
		{1, 1, 0, GANTRY_ERR_PROTOCOL},
		{0, 0, 0, GANTRY_ERR_PROTOCOL},
	};
	struct tcp_rx_memory none = {.kind = GANTRY_NET_UNPACK_OFF};

	set_params("GANTRY_EAGER_MAX", "65536");
	CHECK_OK(ops->finalize(net, context(GANTRY_NET_UNPACK_OFF)));
	EACH_ROW (i, rows) {
		for (int unpack = 0; unpack < 2; unpack++) {
			const struct gantry_addr addr = {.in.sin_family = AF_INET};
			struct tcp_peer peer = {.host = tcp_network.host,
						.addr = &addr,
						.window = rows[i].window,
						.eager_max = rows[i].eager_max,
						.unpack = unpack ? WIRE_UNPACK_YES : WIRE_UNPACK_NO};
			struct tcp_link *l;

			inet_loop_lock();
			CHECK_OK(tcp_link_for_session(2, &l));
			tcp_link_meet(l, &none, &peer);
			inet_loop_unlock();
			CHECK_EQ(tcp_link_failed(l) ? l->end.error : GANTRY_OK, rows[i].r);
			if (rows[i].r != GANTRY_OK) {
				CHECK_HAS(l->end.text, "eager bytes, which is too few");
			} else {
				CHECK_EQ(l->session.eager_max, rows[i].agreed);
				/* Larger ones are for receivers without an unpack queue. */
				CHECK(!unpack || (!l->session.lone_max && !l->session.hasty_max));
				CHECK(l->session.lone_max <= rows[i].window / 4);
				CHECK(l->session.hasty_max <= rows[i].window / 2);
			}
			tcp_link_free(l);
		}
	}
	set_params("GANTRY_EAGER_MAX", NULL);
}

/* ---- memory of a device is never given back with the loop's lock held: that may wait for the device ---- */

static const struct gantry_device_ops *true_ops;
static uint32_t frees; /* atomic */

/* Another thread may have the lock, for a moment; whoever has it himself never gets it. */
static gantry_result free_unlocked(struct gantry_device *dev, void *memory)
{
	if (memory) {
		UNTIL(loop_mu_trylock(&inet_loop.mu));
		inet_loop_unlock();
		__atomic_fetch_add(&frees, 1, __ATOMIC_RELAXED);
	}
	return true_ops->free_mapped(dev, memory);
}

/* Of so many things, by now or soon. */
static void check_frees(uint32_t n)
{
	UNTIL(__atomic_load_n(&frees, __ATOMIC_RELAXED) >= n);
	CHECK_EQ(__atomic_load_n(&frees, __ATOMIC_RELAXED), n);
	__atomic_store_n(&frees, 0, __ATOMIC_RELAXED);
}

TEST(freed_unlocked)
{
	struct gantry_device_ops watched = *host->ops;
	void *ctx = context(GANTRY_NET_UNPACK_EMULATED), *listen = NULL, *comm = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct way w;

	CHECK_OK(gantry_device_host(
		&host)); /* of this process: the one that was opened before the fork is not its own */
	true_ops = host->ops;
	watched.free_mapped = free_unlocked;
	host->ops = &watched;
	/* Whose pool is nobody else's: a listener, ... */
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	CHECK_OK(ops->close_listen(net, listen));
	check_frees(1);
	/* a connector that is given up (to an address where nobody is any more), ... */
	CHECK_OK(ops->connect(net, ctx, 0, handle, &comm, NULL));
	CHECK(!comm);
	ops->cancel_connect(net, handle);
	check_frees(1);
	/* and closed links, after the last of their comms. Sent through a stage, received with a queue. */
	set_params("GANTRY_DEVMEM_TX", "off");
	w = connect_ways(ctx, ctx);
	traffic(&w, 1, 1, 10, 3);
	CHECK_EQ(__atomic_load_n(&frees, __ATOMIC_RELAXED), 0);
	close_way(w);
	check_frees(3);
	set_params("GANTRY_DEVMEM_TX", NULL);
	CHECK_OK(ops->finalize(net, ctx));
	UNTIL(links_are_gone());
	host->ops = true_ops;
}

void tests_begin(void)
{
	set_params("GANTRY_IFNAME", "lo", "GANTRY_LANES", "2", "GANTRY_UNPACK_STAGE", "8388608", "GANTRY_UNPACK_POOL",
		   "16777216", "GANTRY_UNPACK_LANDING", "4194304", "GANTRY_EMU_RTO", "1ms", "GANTRY_LOG", "info");
	gantry_log_configure(GANTRY_LOG_INFO, GANTRY_SUBSYS_ALL, "");
	logs_keep();
	CHECK_OK(gantry_device_host(&host));
	net = gantry_net_tcp();
	ops = net->ops;
	tests_apart(0);
}
