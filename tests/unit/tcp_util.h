/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP network through its table, in one process that connects to itself over lo: ways, posts and waits.
 */
#ifndef GANTRY_TESTS_TCP_UTIL_H
#define GANTRY_TESTS_TCP_UTIL_H

#include "base/clock.h"
#include "net/net.h"
#include "test.h"

enum { MIB = 1 << 20, MAX = 8 * MIB };

/* Hangs end, and slow machines do not: 4 GiB take 10 s where ten others want the CPU. */
#define PATIENCE_NS (UNTIL_SECONDS * 1000000000ull)

static struct gantry_net *net;
static const struct gantry_net_ops *ops;
/* A send comm and the receive comm at its other end. */
struct way {
	void *send, *recv;
};

static inline struct way connect_way(void *ctx)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *listen = NULL;
	struct way w = {0};
	uint64_t until = gantry_now_ns() + PATIENCE_NS;

	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	while (!w.send || !w.recv) {
		if (!w.send)
			CHECK_OK(ops->connect(net, ctx, 0, handle, &w.send, NULL));
		if (!w.recv)
			CHECK_OK(ops->accept(net, listen, &w.recv, NULL));
		CHECK(gantry_now_ns() < until);
	}
	CHECK_OK(ops->close_listen(net, listen));
	return w;
}

static inline void close_way(struct way w)
{
	CHECK_OK(ops->close_send(net, w.send));
	CHECK_OK(ops->close_recv(net, w.recv));
}

/*
 * Waits for a request and returns its size. `other` is the request at the other end of the connection, or NULL: both
 * ends live in this thread, and only their own tests move them.
 */
static inline int wait_two(void *request, void *other, int *ret_other)
{
	int done[2] = {0, !other}, size[2] = {-1, -1};
	void *both[2] = {request, other};

	for (uint64_t until = gantry_now_ns() + PATIENCE_NS; !done[0] || !done[1];) {
		for (int i = 0; i < 2; i++) {
			if (!done[i])
				CHECK_OK(ops->test(net, both[i], &done[i], &size[i]));
		}
		CHECK(gantry_now_ns() < until);
	}
	if (ret_other)
		*ret_other = size[1];
	return size[0];
}

static inline int wait_done(void *request)
{
	return wait_two(request, NULL, NULL);
}

static inline void *post_send(void *comm, void *data, size_t size, int tag)
{
	void *request = NULL;

	CHECK_OK(ops->isend(net, comm, data, size, tag, NULL, &request));
	CHECK(request);
	return request;
}

static inline void *post_recv(void *comm, void *data, size_t size, int tag)
{
	void *request = NULL;

	CHECK_OK(ops->irecv(net, comm, 1, &data, &size, &tag, NULL, &request));
	CHECK(request);
	return request;
}

static inline void start(void **ret_ctx, int traffic_class)
{
	struct gantry_net_config config = {.traffic_class = traffic_class};

	setenv("GANTRY_IFNAME", "lo", 1);
	logs_keep();
	net = gantry_net_tcp();
	ops = net->ops;
	CHECK_OK(ops->init(net, 7, &config, ret_ctx));
}

#endif
