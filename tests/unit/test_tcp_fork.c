/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fork of a process that uses the network: what the parent made is refused in the child, what the child makes works,
 * and neither disturbs the other. The child holds no copy of the parent's sockets, which would hide its death.
 */
#include "tcp_util.h"

static void *ctx, *listener, *pending_send, *pending_recv;
static uint8_t handle[GANTRY_NET_HANDLE_SIZE], began[GANTRY_NET_HANDLE_SIZE];
static struct way way;
static char buf[64];

static void exchange(struct way w)
{
	char out[64], in[64] = "";
	void *s, *r;

	memset(out, 'x', sizeof(out));
	r = post_recv(w.recv, in, sizeof(in), 3);
	s = post_send(w.send, out, sizeof(out), 3);
	CHECK_EQ(wait_two(s, r, NULL), sizeof(out));
	CHECK(!memcmp(in, out, sizeof(in)));
}

static int count_sockets(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	CHECK(d);
	for (struct dirent *e; (e = readdir(d));) {
		socklen_t len = sizeof(int);
		int type;

		n += !getsockopt(atoi(e->d_name), SOL_SOCKET, SO_TYPE, &type, &len) && type == SOCK_STREAM;
	}
	closedir(d);
	return n;
}

#define REFUSED(call)                                                                                                  \
	do {                                                                                                           \
		CHECK_EQ(call, GANTRY_ERR_USAGE);                                                                      \
		CHECK_HAS(gantry_last_error(), "forked");                                                              \
	} while (0)

static void use_in_child(void)
{
	void *request = NULL, *data = buf, *comm = NULL;
	size_t size = sizeof(buf);
	int tag = 1, done, sizes;

	CHECK_EQ(count_sockets(), 0);
	REFUSED(ops->isend(net, way.send, buf, size, 1, NULL, &request));
	REFUSED(ops->irecv(net, way.recv, 1, &data, &size, &tag, NULL, &request));
	REFUSED(ops->test(net, pending_send, &done, &sizes));
	REFUSED(ops->test(net, pending_recv, &done, &sizes));
	REFUSED(ops->accept(net, listener, &comm, NULL));
	REFUSED(ops->connect(net, ctx, 0, began, &comm, NULL));
	REFUSED(ops->close_listen(net, listener));
	REFUSED(ops->close_send(net, way.send));
	REFUSED(ops->close_recv(net, way.recv));
	/* What is made here works, more than once. */
	for (int i = 0; i < 3; i++) {
		struct way w = connect_way(ctx);

		exchange(w);
		close_way(w);
		UNTIL(links_are_gone());
	}
	UNTIL(count_sockets() == 0);
}

static void make_all(void)
{
	void *none = NULL;

	way = connect_way(ctx);
	exchange(way);
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listener));
	memcpy(began, handle, sizeof(began));
	CHECK_OK(ops->connect(net, ctx, 0, began, &none, NULL));
	pending_send = post_send(way.send, buf, sizeof(buf), 1);
	pending_recv = post_recv(way.recv, buf, sizeof(buf), 2);
}

/* Children, and children of children. */
static void fork_deep(int depth)
{
	pid_t pid = child_fork();

	if (!pid) {
		use_in_child();
		make_all();
		if (depth)
			fork_deep(depth - 1);
		_exit(0);
	}
	child_wait(pid);
}

TEST(forks)
{
	if (!CAN_FORK)
		SKIP("ThreadSanitizer does not follow a process with threads through a fork");
	start(&ctx, GANTRY_NET_UNDEF);
	make_all();
	for (int i = 0; i < 3; i++)
		fork_deep(i);
	/* The parent has noticed nothing. */
	wait_two(pending_send, post_recv(way.recv, buf, sizeof(buf), 1), NULL);
	wait_two(pending_recv, post_send(way.send, buf, sizeof(buf), 2), NULL);
	exchange(way);
	close_way(way);
	ops->cancel_connect(net, began);
	CHECK_OK(ops->close_listen(net, listener));
	UNTIL(links_are_gone());
	CHECK_OK(ops->finalize(net, ctx));
}
