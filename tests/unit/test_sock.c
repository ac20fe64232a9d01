/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets: options that are set, port ranges that run out, what errnos mean. */
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>

#include "inet/sock.h"
#include "test.h"

static struct gantry_addr loopback(void)
{
	return (struct gantry_addr){.in = lo_addr(0)};
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	CHECK_EQ(getsockopt(fd, level, name, &value, &len), 0);
	return value;
}

TEST(check_errnos)
{
	CHECK_EQ(sock_errno_class(ECONNREFUSED), SOCK_RETRY);
	CHECK_EQ(sock_errno_class(EINTR), SOCK_RETRY);
	CHECK_EQ(sock_errno_class(ECONNABORTED), SOCK_RETRY);
	CHECK_EQ(sock_errno_class(ETIMEDOUT), SOCK_RETRY);
	CHECK_EQ(sock_errno_class(EHOSTUNREACH), SOCK_RETRY);
	CHECK_EQ(sock_errno_class(EMFILE), SOCK_LIMIT);
	CHECK_EQ(sock_errno_class(ENFILE), SOCK_LIMIT);
	CHECK_EQ(sock_errno_class(EADDRNOTAVAIL), SOCK_LIMIT);
	CHECK_EQ(sock_errno_class(EPERM), SOCK_FATAL);
	CHECK_EQ(sock_errno_class(EXDEV), SOCK_FATAL);
	CHECK_HAS(sock_errno_hint(ECONNREFUSED), "nothing is listening");
	CHECK_HAS(sock_errno_hint(EMFILE), "ulimit -n");
	for (int e = 0; e < 200; e++)
		CHECK(*sock_errno_hint(e));
}

/* One port, twice. 0: somebody else got it in between. */
static int listens_again(void)
{
	struct gantry_addr a = loopback(), bound, again;
	int fd, more = -1;
	uint16_t port;

	CHECK_OK(sock_listen(&a, 0, 0, &fd, &bound));
	port = gantry_addr_port(&bound);
	CHECK(port > 0);
	CHECK_EQ(bound.in.sin_addr.s_addr, htonl(INADDR_LOOPBACK)); /* the chosen address, not all of them */
	CHECK(option(fd, SOL_SOCKET, SO_ACCEPTCONN));
	/* That one port is taken now: an error that names the range. */
	CHECK_EQ(sock_listen(&a, port, port, &more, &again), GANTRY_ERR_LIMIT);
	CHECK_EQ(more, -1);
	CHECK_HAS(gantry_last_error(), "in use");
	close(fd);
	if (sock_listen(&a, port, port, &fd, &bound) != GANTRY_OK)
		return 0;
	CHECK_EQ(gantry_addr_port(&bound), port);
	close(fd);
	return 1;
}

/* ERR_CONFIG, and no advice about ports: an address of the documentation's (RFC 5737) is nobody's. */
TEST(check_listen_elsewhere)
{
	struct gantry_addr a, bound;
	int fd = -1;

	CHECK_OK(gantry_addr_parse("192.0.2.1", &a));
	CHECK_ERROR(sock_listen(&a, 0, 0, &fd, &bound), GANTRY_ERR_CONFIG, "this machine has no such address");
	CHECK_EQ(fd, -1);
}

TEST(check_listen)
{
	struct gantry_addr a = loopback(), bound[3], again;
	int fd[3], more = -1, mixed = 0;

	UNTIL(listens_again());
	/* The first free port of the range. Others may take and leave ports meanwhile, but not all the time. */
	for (uint16_t first = 42000; first < 60000; first += 7) {
		int ok = 1;

		for (int i = 0; i < 3; i++)
			fd[i] = -1;
		for (int i = 0; i < 3 && ok; i++)
			ok = sock_listen(&a, first, (uint16_t)(first + 2), &fd[i], &bound[i]) == GANTRY_OK;
		for (int i = 0; i < 3 && ok; i++)
			if (gantry_addr_port(&bound[i]) != first + i) {
				CHECK(++mixed < 50);
				ok = 0;
			}
		if (ok) {
			CHECK_EQ(sock_listen(&a, first, (uint16_t)(first + 2), &more, &again), GANTRY_ERR_LIMIT);
		}
		for (int i = 0; i < 3; i++)
			if (fd[i] >= 0)
				close(fd[i]);
		if (ok)
			return;
	}
	SKIP("no three free ports in a row");
}

TEST(check_connect)
{
	struct gantry_addr a = loopback(), bound, from = loopback(), peer;
	socklen_t len = sizeof(peer);
	int listener, fd = -1, other, one = 1;
	struct pollfd p;

	CHECK_OK(sock_listen(&a, 0, 0, &listener, &bound));
	from.in.sin_addr.s_addr = htonl(0x7f000005); /* the source is bound */
	CHECK_EQ(sock_connect(&from, NULL, &bound, &fd), 0);
	p = (struct pollfd){.fd = fd, .events = POLLOUT};
	CHECK_EQ(poll(&p, 1, UNTIL_SECONDS * 1000), 1);
	CHECK_EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
	p = (struct pollfd){.fd = listener, .events = POLLIN};
	CHECK_EQ(poll(&p, 1, UNTIL_SECONDS * 1000), 1);
	other = accept(listener, &peer.sa, &len);
	CHECK(other >= 0);
	CHECK_EQ(peer.in.sin_addr.s_addr, htonl(0x7f000005));
	close(other);
	close(fd);

	/* An address that is not ours cannot be bound: errno, and no socket. */
	from.in.sin_addr.s_addr = htonl(0x08080808);
	fd = -1;
	CHECK_EQ(sock_connect(&from, NULL, &bound, &fd), EADDRNOTAVAIL);
	CHECK_EQ(fd, -1);

	/* Nobody listens: at once or a moment later. The port stays ours meanwhile, if we are quick enough. */
	close(listener);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK_EQ(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
	if (bind(listener, &bound.sa, sizeof(bound.in)) == 0 && sock_connect(NULL, NULL, &bound, &fd) == 0) {
		p = (struct pollfd){.fd = fd, .events = POLLOUT};
		CHECK_EQ(poll(&p, 1, UNTIL_SECONDS * 1000), 1);
		CHECK_EQ(option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
		close(fd);
	}
	close(listener);
}

/*
 * Trying again and again at a port of the kernel's range where nobody listens: the kernel goes through all its ports as
 * sources, and comes to that one. From there it is refused too, and is not a connection of the socket to itself.
 */
TEST(check_itself)
{
	unsigned first = 0, last = 0;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
	struct gantry_addr to = loopback(), bound;
	int listener, fd, refused = 0;

	CHECK(f && fscanf(f, "%u %u", &first, &last) == 2);
	fclose(f);
	/* Sources are looked for among every second port, beginning with the first. */
	for (unsigned port = first + (last - first) / 4 * 2;; port += 2) {
		if (port > last)
			SKIP("no free port from %u to %u", first, last);
		gantry_addr_set_port(&to, (uint16_t)port);
		if (sock_listen(&to, (uint16_t)port, (uint16_t)port, &listener, &bound) == GANTRY_OK)
			break;
	}
	close(listener);
	for (unsigned i = first; i <= last && !refused; i++) {
		struct gantry_addr self;
		socklen_t len = sizeof(self);

		refused = sock_connect(NULL, NULL, &to, &fd) == ECONNREFUSED;
		if (refused)
			break;
		CHECK_EQ(getsockname(fd, &self.sa, &len), 0);
		CHECK(gantry_addr_port(&self) != gantry_addr_port(&to));
		close(fd);
	}
	if (!refused)
		printf("the kernel took every port but that one\n");
}

/* The kernel caps the back-off where that is fine enough: it does not go below a second. */
static void check_backoff(int fd)
{
	enum { RTO_MAX_MS = 44 };
	struct sock_options o = {.traffic_class = -1, .timeout_ns = 24000000000};
	int value = 0;
	socklen_t len = sizeof(value);

	if (getsockopt(fd, IPPROTO_TCP, RTO_MAX_MS, &value, &len)) {
		printf("this kernel has no TCP_RTO_MAX_MS\n");
		return;
	}
	sock_tune(fd, &o);
	CHECK_EQ(option(fd, IPPROTO_TCP, RTO_MAX_MS), value);
	o.timeout_ns = 30000000000;
	sock_tune(fd, &o);
	CHECK_EQ(option(fd, IPPROTO_TCP, RTO_MAX_MS), 1000);
	o.timeout_ns = 86400000000000;
	sock_tune(fd, &o);
	CHECK_EQ(option(fd, IPPROTO_TCP, RTO_MAX_MS), 120000);
	CHECK_EQ(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 86400000);
}

TEST(check_tune)
{
	struct sock_options o = {.same_host = 1, .traffic_class = 46, .timeout_ns = 8000000000, .zerocopy = 1};
	int fd = socket(AF_INET, SOCK_STREAM, 0), plain = socket(AF_INET, SOCK_STREAM, 0);
	char name[32] = "", before[32] = "";
	socklen_t len = sizeof(before);

	CHECK(fd >= 0 && plain >= 0);
	sock_tune(fd, &o);
	CHECK(option(fd, IPPROTO_TCP, TCP_NODELAY));
	CHECK(option(fd, SOL_SOCKET, SO_KEEPALIVE));
	CHECK_EQ(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 4);
	CHECK_EQ(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 86400000); /* never before we do: sock.h */
	CHECK_EQ(option(fd, IPPROTO_IP, IP_TOS), 46 * 4);
	len = sizeof(name);
	CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
	CHECK_STR(name, "reno"); /* within a host, and allowed to everybody */

	len = sizeof(before);
	CHECK_EQ(getsockopt(plain, IPPROTO_TCP, TCP_CONGESTION, before, &len), 0);
	o.same_host = 0;
	o.traffic_class = -1;
	o.timeout_ns = 100000000; /* less than a second still means some */
	sock_tune(plain, &o);
	CHECK_EQ(option(plain, IPPROTO_IP, IP_TOS), 0);
	CHECK_EQ(option(plain, IPPROTO_TCP, TCP_KEEPIDLE), 1);
	CHECK_EQ(option(plain, IPPROTO_TCP, TCP_USER_TIMEOUT), 86400000);
	len = sizeof(name);
	CHECK_EQ(getsockopt(plain, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
	CHECK_STR(name, before); /* between hosts the system's choice stays */
	check_backoff(plain);
	close(fd);
	close(plain);
}

TEST(check_budget)
{
	long limit = 0, before = sock_fd_budget(&limit), after;
	struct rlimit r;
	int fds[5];

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &r), 0);
	CHECK_EQ(limit, r.rlim_cur);
	CHECK(before > 0 && before < limit);
	for (int i = 0; i < 5; i++)
		fds[i] = dup(0);
	after = sock_fd_budget(&limit);
	CHECK_EQ(before - after, 5);
	for (int i = 0; i < 5; i++)
		close(fds[i]);
}

/* Advice that can be followed: what `ulimit -n` can reach, or where the hard limit is set. */
TEST(check_nofile_advice)
{
	static const struct {
		rlim_t soft, hard;
		const char *advice;
	} cases[] = {
		{64, 4096, "process: raise it with `ulimit -n 4096`"},
		{64, 64,
		 "is at its hard limit, 64: raise the hard limit with nofile in /etc/security/limits.conf or LimitNOFILE="},
	};

	EACH_ROW (i, cases) {
		struct rlimit l = {cases[i].soft, cases[i].hard};
		pid_t child = child_fork();

		if (!child) {
			CHECK_EQ(setrlimit(RLIMIT_NOFILE, &l), 0);
			CHECK_HAS(sock_errno_hint(EMFILE), cases[i].advice);
			_exit(0);
		}
		child_wait(child);
	}
}

/* Where an ordinary user may have any port there is nothing to refuse. */
static int low_ports_are_free(void)
{
	FILE *f = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "re");
	int first = 1024;

	if (f && fscanf(f, "%d", &first) != 1)
		first = 1024;
	if (f)
		fclose(f);
	return first <= 81;
}

TEST(check_low_port)
{
	struct gantry_addr a, bound;
	int fd;
	pid_t child;

	CHECK_OK(gantry_addr_parse("127.0.0.1", &a));
	if (low_ports_are_free())
		return;
	child = child_fork();
	if (!child) {
		if (getuid() == 0)
			CHECK_EQ(setuid(65534), 0);
		CHECK_EQ(sock_listen(&a, 80, 81, &fd, &bound), GANTRY_ERR_CONFIG);
		CHECK_HAS(gantry_last_error(), "listen on 127.0.0.1:80: Permission denied; ports below 1024 need "
					       "CAP_NET_BIND_SERVICE: choose a higher one (GANTRY_PORT_RANGE)");
		_exit(0);
	}
	child_wait(child);
}

void tests_begin(void)
{
	logs_drop();
}
