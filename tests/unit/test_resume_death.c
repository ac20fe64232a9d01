/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that are away, and are not dead, where sessions outlive sockets.
 * Catches: a side that is dialled, and gives up a stopped peer that has lost its sockets before GANTRY_TIMEOUT is over; an end of
 * all sockets without a goodbye, as a proxy makes it, that is taken for the end of the process.
 */
#include "resume_util.h"

/* The side that dials: connects, is stopped from outside, and sends. */
static void send_later(int to_parent)
{
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], out[100];
	void *ctx, *send = NULL;

	recv_all(to_parent, handle, sizeof(handle));
	start(&ctx, GANTRY_NET_UNDEF);
	WAIT_WHILE (!send)
		CHECK_OK(ops->connect(net, ctx, 0, handle, &send, &none));
	recv_all(to_parent, handle, 1);
	pattern_fill(out, sizeof(out), 3);
	wait_done(post_send(send, out, sizeof(out), 0));
	recv_all(to_parent, handle, 1);
	CHECK_OK(ops->close_send(net, send));
	CHECK_OK(ops->finalize(net, ctx));
	child_end(0);
}

/* All lanes are reset while the peer is stopped for a third of the deadline. */
TEST(a_stopped_peer_without_sockets)
{
	struct gantry_net_device_handle handle_for, *h = &handle_for;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE], in[100];
	void *ctx, *listen = NULL, *recv = NULL, *request;
	uint64_t until;
	int fd[2], done = 0;
	pid_t pid;

	set_params("GANTRY_RESUME", "on", "GANTRY_TIMEOUT", "12s");
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	pid = child_fork();
	if (pid == 0)
		send_later(fd[1]);
	start(&ctx, GANTRY_NET_UNDEF);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	send_all(fd[0], handle, sizeof(handle));
	WAIT_WHILE (!recv)
		CHECK_OK(ops->accept(net, listen, &recv, &h));
	request = post_recv(recv, in, sizeof(in), 0);
	CHECK_EQ(kill(pid, SIGSTOP), 0);
	cut_at(0, -1);
	for (until = gantry_now_ns() + 4000000000; gantry_now_ns() < until; until_pause())
		CHECK_OK(ops->test(net, request, &done, NULL));
	CHECK_EQ(kill(pid, SIGCONT), 0);
	send_all(fd[0], handle, 1);
	CHECK_EQ(wait_done(request), sizeof(in));
	CHECK_PATTERN(in, sizeof(in), 3);
	send_all(fd[0], handle, 1);
	CHECK_OK(ops->close_recv(net, recv));
	CHECK_OK(ops->close_listen(net, listen));
	child_wait(pid);
	CHECK_OK(ops->finalize(net, ctx));
}

/* Every lane ends, at one side, and nobody has closed anything. */
static void run_ended(int initiator)
{
	struct way w;
	void *ctx;

	w = open_way("auto", &ctx);
	CHECK_OK(stream(w, 20, 0, CUT_ONE));
	inet_loop_lock();
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node)
		for (int i = 0; l->entry->initiator == initiator && i < l->nlanes; i++)
			CHECK_EQ(shutdown(l->lanes[i].io.fd, SHUT_WR), 0);
	inet_loop_unlock();
	CHECK_OK(stream(w, 20, 0, CUT_ONE));
	CHECK(resumed() > 0);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

TEST_CALL(ended_by_the_dialling_side, run_ended(1))
TEST_CALL(ended_by_the_side_that_is_dialled, run_ended(0))

void tests_begin(void)
{
	tests_apart(1);
}
