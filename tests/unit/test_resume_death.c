/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that ends by resets, as one that is killed with unread bytes in its sockets, where sessions outlive sockets.
 * Catches: a side that is dialled, and waits for such a peer until its deadline.
 */
#include <sys/socket.h>

#include "tcp_util.h"

/* The side that dials: connects, and ends as a process that is killed with unread bytes in all its sockets. */
static void die_by_resets(int to_parent)
{
	struct gantry_net_device_handle *none = NULL;
	struct linger hard = {1, 0};
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *ctx, *send = NULL;

	recv_all(to_parent, handle, sizeof(handle));
	start(&ctx, GANTRY_NET_UNDEF);
	WAIT_WHILE (!send)
		CHECK_OK(ops->connect(net, ctx, 0, handle, &send, &none));
	recv_all(to_parent, handle, 1); /* the other side is up */
	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node)
		for (int i = 0; i < l->nlanes; i++)
			setsockopt(l->lanes[i].fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	_exit(0);
}

/* The side that is dialled finds out long before its deadline, because the peer's host answers and nobody dials. */
TEST(a_peer_that_died_by_resets)
{
	struct gantry_net_device_handle handle_for, *h = &handle_for;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], in[100];
	void *ctx, *listen = NULL, *recv = NULL, *request;
	gantry_result r = GANTRY_OK;
	uint64_t since;
	int fd[2], done = 0;
	pid_t pid;

	set_params("GANTRY_RESUME", "on", "GANTRY_TIMEOUT", "8s");
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	pid = child_fork();
	if (pid == 0)
		die_by_resets(fd[1]);
	start(&ctx, GANTRY_NET_UNDEF);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	send_all(fd[0], handle, sizeof(handle));
	WAIT_WHILE (!recv)
		CHECK_OK(ops->accept(net, listen, &recv, &h));
	request = post_recv(recv, in, sizeof(in), 0);
	send_all(fd[0], handle, 1);
	child_wait(pid);
	since = gantry_now_ns();
	WAIT_WHILE (r == GANTRY_OK)
		r = ops->test(net, request, &done, NULL);
	CHECK_EQ(r, GANTRY_ERR_PEER_LOST);
	CHECK_HAS(gantry_last_error(), "its host answers");
	CHECK(gantry_now_ns() - since < 6000000000);
	CHECK_OK(ops->close_recv(net, recv));
	CHECK_OK(ops->close_listen(net, listen));
	CHECK_OK(ops->finalize(net, ctx));
}
