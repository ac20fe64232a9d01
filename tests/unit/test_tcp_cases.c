/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP network through its table (tcp_util.h): what is not about sizes and settings, each case for itself. */
#include "tcp_util.h"

/* Who waited for the peer in a close would wait for 10 s, the time for which a link lingers. */
#define AT_ONCE_NS 5000000000u

/* What was sent before the other side got round to accepting is not lost. */
TEST(late_accept)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], out[3][100], in[100];
	void *ctx, *listen, *send = NULL, *recv = NULL, *sends[3];

	setenv("GANTRY_TIMEOUT", "8s", 1); /* the service thread reads idle links every 500 ms */
	start(&ctx, GANTRY_NET_UNDEF);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	while (!send)
		CHECK_OK(ops->connect(net, ctx, 0, handle, &send, NULL));
	for (int i = 0; i < 3; i++) {
		pattern_fill(out[i], 100, (uint64_t)i);
		sends[i] = post_send(send, out[i], 100, 1);
	}
	for (int i = 0; i < 3; i++)
		wait_done(sends[i]);
	usleep(1200000);
	while (!recv)
		CHECK_OK(ops->accept(net, listen, &recv, NULL));
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(wait_done(post_recv(recv, in, 100, 1)), 100);
		CHECK(memcmp(in, out[i], 100) == 0);
	}
	CHECK_OK(ops->close_send(net, send));
	CHECK_OK(ops->close_recv(net, recv));
	CHECK_OK(ops->close_listen(net, listen));
	CHECK_OK(ops->finalize(net, ctx));
}

/* The same when the way back shares the link, and somebody is busy with its first direction meanwhile. */
TEST(late_accept_of_shared)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], small[100], in[100], *out = calloc(2, MIB), *big = out + MIB;
	void *ctx, *listen, *send = NULL, *recv = NULL, *s, *r;
	struct way first;

	start(&ctx, GANTRY_NET_UNDEF);
	first = connect_way(ctx);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	while (!send)
		CHECK_OK(ops->connect(net, ctx, 0, handle, &send, NULL));
	pattern_fill(small, 100, 4);
	s = post_send(send, small, 100, 1);
	wait_done(s);
	for (int i = 0; i < 3; i++) {
		r = post_recv(first.recv, big, MIB, 2);
		s = post_send(first.send, out, MIB, 2);
		wait_two(r, s, NULL);
	}
	while (!recv)
		CHECK_OK(ops->accept(net, listen, &recv, NULL));
	CHECK_EQ(wait_done(post_recv(recv, in, 100, 1)), 100);
	CHECK(memcmp(in, small, 100) == 0);
	CHECK_OK(ops->close_send(net, send));
	CHECK_OK(ops->close_recv(net, recv));
	CHECK_OK(ops->close_listen(net, listen));
	close_way(first);
	CHECK_OK(ops->finalize(net, ctx));
	free(out);
}

/* All ranks of a job connect to a listener before it is asked for the first of them. */
TEST(late_accept_of_many)
{
	enum { MANY = 20 };
	uint8_t first[GANTRY_NET_HANDLE_SIZE], handles[MANY][GANTRY_NET_HANDLE_SIZE];
	void *ctx, *from[MANY], *listen, *send[MANY] = {NULL}, *recv[MANY] = {NULL};
	struct gantry_net_device_handle *none = NULL;

	start(&ctx, GANTRY_NET_UNDEF);
	CHECK_OK(ops->listen(net, ctx, 0, first, &listen));
	for (int i = 0; i < MANY; i++) {
		memcpy(handles[i], first, sizeof(first));
		CHECK_OK(ops->init(net, (uint64_t)i + 1, NULL, &from[i]));
		WAIT_WHILE (!send[i])
			CHECK_OK(ops->connect(net, from[i], 0, handles[i], &send[i], &none));
	}
	for (int i = 0; i < MANY; i++)
		WAIT_WHILE (!recv[i])
			CHECK_OK(ops->accept(net, listen, &recv[i], &none));
	for (int i = 0; i < MANY; i++) {
		CHECK_OK(ops->close_send(net, send[i]));
		CHECK_OK(ops->close_recv(net, recv[i]));
		CHECK_OK(ops->finalize(net, from[i]));
	}
	CHECK_OK(ops->close_listen(net, listen));
	CHECK_OK(ops->finalize(net, ctx));
}

TEST(registrations)
{
	static uint8_t block[1001];
	uint8_t *memory = block + 1;
	struct way w;
	void *ctx, *mr = memory, *request, *data = memory + 990, *mrs[1];
	size_t size = 11;
	int tag = 1, fd = 0;

	start(&ctx, GANTRY_NET_UNDEF);
	w = connect_way(ctx);
	CHECK_EQ(ops->reg_mr(net, w.send, memory, 1000, GANTRY_NET_PTR_CUDA, &mr), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(ops->reg_mr(net, w.send, memory, 1000, 0, &mr), GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(ops->reg_mr(net, w.send, NULL, 1, GANTRY_NET_PTR_HOST, &mr), GANTRY_ERR_INVALID);
	CHECK_ERROR(ops->reg_mr(net, w.send, memory, SIZE_MAX, GANTRY_NET_PTR_HOST, &mr), GANTRY_ERR_INVALID, "wraps");
	CHECK_EQ(ops->reg_mr_dmabuf(net, w.send, memory, 1000, GANTRY_NET_PTR_CUDA, 0, fd, &mr),
		 GANTRY_ERR_UNSUPPORTED);
	CHECK_EQ(ops->get_device_mr(net, w.send, NULL, &mr), GANTRY_ERR_INVALID);
	CHECK(mr == memory); /* outputs are written only on success */
	CHECK_OK(ops->reg_mr(net, w.send, NULL, 0, GANTRY_NET_PTR_HOST, &mr));
	CHECK_OK(ops->dereg_mr(net, w.send, mr));
	CHECK_OK(ops->reg_mr(net, w.send, memory, 1000, GANTRY_NET_PTR_HOST, &mr));

	/* Messages lie within their registration. */
	CHECK_ERROR(ops->isend(net, w.send, memory + 990, 11, 1, mr, &request), GANTRY_ERR_INVALID,
		    "outside its registration");
	CHECK_EQ(ops->isend(net, w.send, block, 1, 1, mr, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->isend(net, w.send, memory + 1, SIZE_MAX, 1, mr, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->isend(net, w.send, NULL, 1, 1, NULL, &request), GANTRY_ERR_INVALID);
	mrs[0] = mr;
	CHECK_EQ(ops->irecv(net, w.recv, 1, &data, &size, &tag, mrs, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->irecv(net, w.recv, 0, &data, &size, &tag, NULL, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->irecv(net, w.recv, 9, &data, &size, &tag, NULL, &request), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->isend(net, w.recv, memory, 1, 1, mr, &request), GANTRY_ERR_USAGE);
	CHECK_EQ(ops->irecv(net, w.send, 1, &data, &size, &tag, NULL, &request), GANTRY_ERR_USAGE);
	CHECK_EQ(ops->close_send(net, w.recv), GANTRY_ERR_USAGE);
	CHECK_EQ(ops->close_recv(net, w.send), GANTRY_ERR_USAGE);
	/* Up to the last byte is fine, and so is nothing at its very end. */
	memset(memory + 990, 0x42, 10);
	request = post_recv(w.recv, memory, 10, 1);
	CHECK_OK(ops->isend(net, w.send, memory + 990, 10, 1, mr, &data));
	CHECK_EQ(wait_done(request), 10);
	wait_done(data);
	CHECK_EQ(memory[9], 0x42);
	request = post_recv(w.recv, NULL, 0, 1);
	CHECK_OK(ops->isend(net, w.send, memory + 1000, 0, 1, mr, &data));
	CHECK_EQ(wait_done(request), 0);
	wait_done(data);
	CHECK_OK(ops->dereg_mr(net, w.send, mr));
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

TEST(devices)
{
	struct gantry_net_vdevice v = {.ndevs = 1, .devs = {0}};
	struct gantry_net_properties p;
	int n = 0, dev = -7;
	void *ctx;

	CHECK_EQ(gantry_net_tcp()->ops->get_properties(gantry_net_tcp(), 0, &p), GANTRY_ERR_USAGE); /* before init */
	start(&ctx, GANTRY_NET_UNDEF);
	CHECK_OK(ops->devices(net, &n));
	CHECK_EQ(n, 1);
	CHECK_OK(ops->get_properties(net, 0, &p));
	CHECK_STR(p.name, "lo");
	CHECK_EQ(p.max_recvs, 8);
	CHECK_EQ(p.ptr_support, GANTRY_NET_PTR_HOST);
	CHECK_EQ(p.vdev.ndevs, 1);
	CHECK(p.max_p2p_bytes > (size_t)4 << 30);
	CHECK_EQ(ops->get_properties(net, 1, &p), GANTRY_ERR_INVALID);
	CHECK_EQ(ops->get_properties(net, -1, &p), GANTRY_ERR_INVALID);

	/* 1 to 8 devices that exist, none twice. */
	v.ndevs = 0;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	v.ndevs = 9;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	v.ndevs = 2;
	CHECK_ERROR(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID, "twice");
	v.devs[1] = 1;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	v.devs[1] = -1;
	CHECK_EQ(ops->make_vdevice(net, &v, &dev), GANTRY_ERR_INVALID);
	CHECK_EQ(dev, -7);
	v.ndevs = 1;
	CHECK_OK(ops->make_vdevice(net, &v, &dev));
	CHECK_OK(ops->get_properties(net, dev, &p));
	CHECK_STR(p.name, "lo");
	/* Every communicator makes its own; that must not use up anything. */
	for (int i = 0; i < 1000; i++)
		CHECK_OK(ops->make_vdevice(net, &v, &dev));
	CHECK_OK(ops->finalize(net, ctx));
}

/* Connected sockets of this process, and those of them with this type of service. */
static int connected_sockets(int wanted, int *ret_marked)
{
	DIR *d = opendir(HELD_FDS);
	struct dirent *e;
	int sockets = 0;

	*ret_marked = 0;
	CHECK(d);
	while ((e = readdir(d))) {
		struct sockaddr_storage peer;
		socklen_t len = sizeof(peer);
		int fd = atoi(e->d_name), tos = -1;

		if (getpeername(fd, (struct sockaddr *)&peer, &len))
			continue;
		len = sizeof(tos);
		if (peer.ss_family != AF_INET || getsockopt(fd, IPPROTO_IP, IP_TOS, &tos, &len))
			continue;
		sockets++;
		*ret_marked += tos == wanted;
	}
	closedir(d);
	return sockets;
}

/* A traffic class is the upper six bits of the type of service, on every lane of both sides. */
TEST(traffic_class)
{
	struct gantry_net_config bad = {.traffic_class = 64};
	struct way w;
	int marked;
	void *ctx, *none = NULL;

	setenv("GANTRY_LANES", "2", 1);
	start(&ctx, 46);
	CHECK_EQ(ops->init(net, 7, &bad, &none), GANTRY_ERR_CONFIG);
	w = connect_way(ctx);
	UNTIL(connected_sockets(46 << 2, &marked) ==
	      6); /* three lanes, both ends; none of an attempt that was given up */
	CHECK_EQ(marked, 6);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

/* Closes with requests in flight; the other end hears of it. Returns how long that took. */
static uint64_t close_once(void *ctx, uint8_t *memory)
{
	uint64_t before, took;
	struct way w = connect_way(ctx);
	void *r = post_recv(w.recv, memory, MAX, 1);
	gantry_result result = GANTRY_OK;
	int done = 0;

	for (int i = 0; i < 8; i++)
		post_send(w.send, memory + MAX, MAX, 2); /* nobody receives these */
	for (int i = 0; i < 100; i++)
		CHECK_OK(ops->test(net, r, &done, NULL));
	before = gantry_now_ns();
	CHECK_OK(ops->close_send(net, w.send));
	took = gantry_now_ns() - before;
	WAIT_WHILE (result == GANTRY_OK)
		result = ops->test(net, r, &done, NULL);
	CHECK_EQ(result, GANTRY_ERR_PEER_CLOSED);
	before = gantry_now_ns();
	CHECK_OK(ops->close_recv(net, w.recv));
	return took + gantry_now_ns() - before;
}

/* That waits for nobody. This thread itself may have been kept from running once, but not every time. */
TEST(close_in_flight)
{
	FREED uint8_t *memory = calloc(2, MAX);
	int slow = 0;
	void *ctx;

	start(&ctx, GANTRY_NET_UNDEF);
	while (close_once(ctx, memory) >= AT_ONCE_NS)
		CHECK(++slow < 5);
	CHECK_OK(ops->finalize(net, ctx));
}

/* Nobody can ask any more what becomes of a connect whose context has ended: it ends as well. */
TEST(finalize_ends_connects)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	int fds = held(HELD_FDS), threads = held(HELD_THREADS);
	void *ctx, *listen, *send = NULL;

	setenv("GANTRY_CONNECT_TIMEOUT", "10000s", 1);
	start(&ctx, GANTRY_NET_UNDEF);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	CHECK_OK(ops->close_listen(net, listen));
	for (int i = 0; i < 50; i++) {
		CHECK_OK(ops->connect(net, ctx, 0, handle, &send, NULL));
		CHECK(!send);
		usleep(1000);
	}
	CHECK_OK(ops->finalize(net, ctx));
	CHECK(held_at_most(HELD_FDS, fds));
	CHECK(SANITIZED || held_at_most(HELD_THREADS, threads));
}

void tests_begin(void)
{
	tests_apart(1);
}
