/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP network through its table, in one process that connects to itself over lo: ways, posts and waits.
 */
#ifndef GANTRY_TESTS_TCP_UTIL_H
#define GANTRY_TESTS_TCP_UTIL_H

#include "net/net.h"
#include "net/tcp/network.h"
#include "test.h"

enum { MIB = 1 << 20, MAX = 8 * MIB };

static struct gantry_net *net;
static const struct gantry_net_ops *ops;
/* A send comm, and the receive comm at its other end with its handle for kernels. */
struct way {
	void *send, *recv;
	struct gantry_net_device_handle handle;
};

static inline struct way connect_ways(void *from, void *to)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct gantry_net_device_handle *none = NULL, *h;
	void *listen = NULL;
	struct way w = {0};

	CHECK_OK(ops->listen(net, to, 0, handle, &listen));
	WAIT_WHILE (!w.send || !w.recv) {
		h = &w.handle;
		if (!w.send)
			CHECK_OK(ops->connect(net, from, 0, handle, &w.send, &none));
		if (!w.recv)
			CHECK_OK(ops->accept(net, listen, &w.recv, &h));
	}
	CHECK_OK(ops->close_listen(net, listen));
	return w;
}

static inline struct way connect_way(void *ctx)
{
	return connect_ways(ctx, ctx);
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

	WAIT_WHILE (!done[0] || !done[1])
		for (int i = 0; i < 2; i++)
			if (!done[i])
				CHECK_OK(ops->test(net, both[i], &done[i], &size[i]));
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

/* `find` of a relay: a listener of this process; when it is closed, the one that there was. */
static inline int listening_port(struct sockaddr_in *ret)
{
	int found = 0;

	inet_loop_lock();
	for (int i = 0; i < TCP_BUCKETS && !found; i++)
		gantry_list_each (pos, &tcp_network.listeners[i]) {
			*ret = gantry_container(pos, struct tcp_listener, node)->ports[0]->addr.in;
			found = 1;
		}
	inet_loop_unlock();
	return found || ret->sin_port;
}

/* Closed links are seen off and freed by the service thread, some time after the close. */
static inline int links_are_gone(void)
{
	int gone;

	inet_loop_lock();
	gone = gantry_list_empty(&tcp_network.links) && gantry_list_empty(&tcp_network.lingering) &&
	       !tcp_network.nburied;
	inet_loop_unlock();
	return gone;
}

#endif
