/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

struct sockaddr_in lo_addr(int port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons((uint16_t)port)};
}

int port_of(const char *address)
{
	return atoi(strrchr(address, ':') + 1);
}

int lo_bound(int port, int *ret_port)
{
	struct sockaddr_in a = lo_addr(port);
	socklen_t len = sizeof(a);
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	if (port)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK_EQ(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	CHECK_EQ(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	if (ret_port)
		*ret_port = ntohs(a.sin_port);
	return fd;
}

int lo_listen(int port, int *ret_port)
{
	int fd = lo_bound(port, ret_port);

	CHECK_EQ(listen(fd, 4096), 0);
	return fd;
}

/* Ports that the kernel gives to no socket by itself, *ret_n of them from 1024 on; 0: there are none. */
static void find_quiet_ports(int *ret_n)
{
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
	int first = 0, last = 0;

	CHECK(f && fscanf(f, "%d %d", &first, &last) == 2);
	fclose(f);
	*ret_n = first > 1024 ? first - 1024 : 0;
}

int lo_kept_port(int *ret_keeper)
{
	static uint32_t calls;
	struct sockaddr_in a;
	int n, one = 1, fd = -1, port = 0;

	find_quiet_ports(&n);
	for (int i = 0; i < n && fd < 0; i++) {
		uint32_t at = (uint32_t)getpid() * 2654435761u + __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) * 131;

		port = 1024 + (int)(at % (uint32_t)n);
		a = lo_addr(port);
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (bind(fd, (struct sockaddr *)&a, sizeof(a))) {
			close(fd);
			fd = -1;
		}
	}
	if (fd < 0)
		fd = lo_bound(0, &port);
	CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
	*ret_keeper = fd;
	return port;
}

int lo_free_port(void)
{
	int keeper, port = lo_kept_port(&keeper);

	close(keeper);
	return port;
}

int dial(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to))) {
		close(fd);
		return -1;
	}
	return fd;
}

int dial_hard(const struct sockaddr_in *to)
{
	int fd = dial(to);

	CHECK(fd >= 0);
	return fd;
}

int lo_dial(int port)
{
	struct sockaddr_in a = lo_addr(port);

	return dial_hard(&a);
}

void lo_pair(int fd[2])
{
	int port, listener = lo_listen(0, &port);

	fd[0] = lo_dial(port);
	fd[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(fd[1] >= 0);
	close(listener);
}

void send_all(int fd, const void *data, size_t n)
{
	for (const char *p = data; n;) {
		ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

		CHECK(k > 0);
		p += k;
		n -= (size_t)k;
	}
}

void recv_all(int fd, void *data, size_t n)
{
	CHECK_EQ(recv(fd, data, n, MSG_WAITALL), n);
}
