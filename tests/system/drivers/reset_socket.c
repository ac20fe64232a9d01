/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reset_socket PID FIRST LAST SEED: ends one TCP connection of a process by a reset, as a flushed conntrack table or a box on the
 * way does: one of those with a port FIRST to LAST on either end, drawn by the seed. Prints its ends. Exit status 1: there is
 * none; 77: this kernel or user may not take a descriptor of the process (pidfd_getfd).
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 1024 };

static int skip(const char *what)
{
	printf("skipped: %s: %s\n", what, strerror(errno));
	return 77;
}

/* The end's port; -1: it is none of a TCP connection. */
static int port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *), char *text, size_t len)
{
	struct sockaddr_in6 a = {0};
	struct sockaddr_in *a4 = (struct sockaddr_in *)&a;
	socklen_t size = sizeof(a);
	char host[INET6_ADDRSTRLEN] = "";
	int port;

	if (name(fd, (struct sockaddr *)&a, &size) || (a.sin6_family != AF_INET && a.sin6_family != AF_INET6))
		return -1;
	port = ntohs(a.sin6_family == AF_INET ? a4->sin_port : a.sin6_port);
	inet_ntop(a.sin6_family, a.sin6_family == AF_INET ? (void *)&a4->sin_addr : (void *)&a.sin6_addr, host,
		  sizeof(host));
	snprintf(text, len, "%s:%d", host, port);
	return port;
}

static int is_meant(int fd, int first, int last, char *text, size_t len)
{
	char here[64], there[64];
	int protocol = 0, a, b;
	socklen_t size = sizeof(protocol);

	if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) || protocol != IPPROTO_TCP)
		return 0;
	a = port_of(fd, getsockname, here, sizeof(here));
	b = port_of(fd, getpeername, there, sizeof(there));
	snprintf(text, len, "%s - %s", here, there);
	return a >= 0 && b >= 0 && ((a >= first && a <= last) || (b >= first && b <= last));
}

int main(int argc, char **argv)
{
	static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
	static int fds[MOST];
	char path[64], text[160];
	struct dirent *e;
	int process, n = 0, first, last;
	DIR *dir;

	if (argc != 5)
		return 2;
	first = atoi(argv[2]);
	last = atoi(argv[3]);
	srand((unsigned)atoi(argv[4]));
	process = (int)syscall(SYS_pidfd_open, atoi(argv[1]), 0);
	if (process < 0)
		return errno == ESRCH ? 1 : skip("pidfd_open");
	snprintf(path, sizeof(path), "/proc/%s/fd", argv[1]);
	dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? 1 : skip(path);
	while (n < MOST && (e = readdir(dir))) {
		int fd = e->d_name[0] == '.' ? -1 : (int)syscall(SYS_pidfd_getfd, process, atoi(e->d_name), 0);

		if (fd < 0 && e->d_name[0] != '.' && errno != EBADF && errno != ESRCH)
			return skip("pidfd_getfd");
		if (fd >= 0 && is_meant(fd, first, last, text, sizeof(text)))
			fds[n++] = fd;
		else if (fd >= 0)
			close(fd);
	}
	closedir(dir);
	if (!n)
		return 1;
	n = fds[rand() % n];
	is_meant(n, first, last, text, sizeof(text));
	if (connect(n, &nobody,
		    sizeof(nobody))) { /* disconnects; what is queued is dropped, and the peer gets a reset */
		perror("connect");
		return 1;
	}
	printf("%s\n", text);
	return 0;
}
