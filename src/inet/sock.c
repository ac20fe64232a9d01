/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "inet/sock.h"

#include <dirent.h>
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/file.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "base/thread.h"

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

enum { WINDOW_BYTES = 4 << 20, FILES_PLENTY = 65536 };

static const struct {
	int e;
	enum sock_errno_class class;
	const char *hint;
} errnos[] = {
	{EINTR, SOCK_RETRY, "interrupted"},
	{EAGAIN, SOCK_RETRY, "no local port or resource right now"},
	{ECONNREFUSED, SOCK_RETRY, "nothing is listening there yet"},
	{ECONNABORTED, SOCK_RETRY, "the connection was aborted"},
	{ECONNRESET, SOCK_RETRY, "the other side reset the connection"},
	{EPIPE, SOCK_RETRY, "the other side closed the connection"},
	{EHOSTUNREACH, SOCK_RETRY, "no route to that host, or the host does not respond"},
	{ENETUNREACH, SOCK_RETRY, "no route to that network"},
	{EHOSTDOWN, SOCK_RETRY, "that host is down"},
	{ENETDOWN, SOCK_RETRY, "the network interface is down"},
	{ETIMEDOUT, SOCK_RETRY, "no response; a firewall may be dropping packets"},
	{EINPROGRESS, SOCK_RETRY, "no response; a firewall may be dropping packets"},
	{EALREADY, SOCK_RETRY, "already connecting"},
	{ENOBUFS, SOCK_RETRY, "no buffer space"},
	{EPROTO, SOCK_RETRY, "protocol error"},
	{ENOPROTOOPT, SOCK_RETRY, "protocol error"},
	{EADDRNOTAVAIL, SOCK_LIMIT, "no free local port or address: see net.ipv4.ip_local_port_range"},
	{EMFILE, SOCK_LIMIT, "too many open files in this process"}, /* and advice, see sock_errno_hint */
	{ENFILE, SOCK_LIMIT, "too many open files on this machine: raise fs.file-max"},
	{ENOMEM, SOCK_LIMIT, "out of memory"},
	{EACCES, SOCK_FATAL, "forbidden by a local policy"},
	{EPERM, SOCK_FATAL, "forbidden by a local firewall"},
	{EAFNOSUPPORT, SOCK_FATAL, "this address family is not available"},
	{EINVAL, SOCK_FATAL, "this address cannot be reached from that interface"},
};

enum sock_errno_class sock_errno_class(int e)
{
	for (size_t i = 0; i < sizeof(errnos) / sizeof(*errnos); i++)
		if (errnos[i].e == e)
			return errnos[i].class;
	return SOCK_FATAL;
}

const char *sock_errno_hint(int e)
{
	char advice[GANTRY_ADVICE_TEXT], *of_process;

	if (e == EMFILE) {
		of_process = gantry_thread_text(GANTRY_TEXT_SOCK_HINT);
		snprintf(of_process, GANTRY_THREAD_TEXT, "too many open files in this process: %s",
			 gantry_nofile_advice(advice));
		return of_process;
	}
	for (size_t i = 0; i < sizeof(errnos) / sizeof(*errnos); i++)
		if (errnos[i].e == e)
			return errnos[i].hint;
	return "unexpected";
}

/*
 * A wide receive window, asked for before the connection exists, because that is when TCP fixes its limits. With a
 * narrow one the sender's data waits for the receiver's next read, and within a host it is then the receiver's CPU that
 * pushes it; with a wide one both CPUs work at once. Only where the administrator allows as much as TCP itself might
 * grow to: a fixed small buffer would be worse than the automatic one.
 */
static void widen_window(int fd)
{
	static int allowed = -1; /* every thread finds the same */
	int bytes = load_relaxed(&allowed);

	if (bytes < 0) {
		bytes = 0;
		gantry_file_int("/proc/sys/net/core/rmem_max", &bytes);
		store_relaxed(&allowed, bytes);
	}
	if (bytes < WINDOW_BYTES)
		return;
	bytes = WINDOW_BYTES;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

/* errno, or 0 and a listening socket. */
static int listen_on(const struct gantry_addr *a, int *ret_fd)
{
	int one = 1, only_v6, e = 0;
	int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return errno;
	/* A port of the user's range may still be in TIME_WAIT from the last run. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	/* The wildcard stands for all addresses of the host, those of IPv4 too. */
	only_v6 = a->sa.sa_family == AF_INET6 && !IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
	if (a->sa.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6));
	widen_window(fd);
	if (bind(fd, &a->sa, gantry_addr_len(a)) || listen(fd, 4096)) {
		e = errno;
		close(fd);
		return e;
	}
	*ret_fd = fd;
	return 0;
}

/* Why no port of the range could be listened on, and what to do. `at` is the last one that was tried. */
static gantry_result cannot_listen(const struct gantry_addr *addr, const struct gantry_addr *at, uint16_t first,
				   uint16_t last, int e)
{
	gantry_result r = e == EADDRINUSE || e == EMFILE || e == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM;
	char text[GANTRY_ADDR_TEXT];

	if (e == EADDRINUSE && !first)
		FAIL_NOW(r, "%s: no port is free", gantry_addr_text(addr, text));
	if (e == EADDRINUSE && first == last)
		FAIL_NOW(r,
			 "%s: port %u is in use by another program; choose another port or a wider GANTRY_PORT_RANGE",
			 gantry_addr_text(addr, text), first);
	if (e == EADDRINUSE)
		FAIL_NOW(r,
			 "%s: ports %u to %u are all in use; each process needs one port: choose a wider "
			 "GANTRY_PORT_RANGE",
			 gantry_addr_text(addr, text), first, last);
	if (e == EACCES && first && first < 1024)
		FAIL_NOW(GANTRY_ERR_CONFIG,
			 "listen on %s: %s; ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one "
			 "(GANTRY_PORT_RANGE)",
			 gantry_addr_text(at, text), strerror(e));
	if (e == EADDRNOTAVAIL) /* which means something else when connecting */
		FAIL_NOW(GANTRY_ERR_CONFIG, "listen on %s: %s: this machine has no such address",
			 gantry_addr_text(at, text), strerror(e));
	FAIL_NOW(r, "listen on %s: %s (%s)", gantry_addr_text(at, text), strerror(e), sock_errno_hint(e));
}

gantry_result sock_listen(const struct gantry_addr *addr, uint16_t first, uint16_t last, int *ret_fd,
			  struct gantry_addr *ret_bound)
{
	gantry_result r = GANTRY_OK;
	struct gantry_addr a = *addr;
	socklen_t len = sizeof(*ret_bound);
	int e = EADDRINUSE, fd = -1;

	/* A new socket for each port: one whose listen failed is bound for good. */
	for (uint32_t port = first; port <= last && e == EADDRINUSE; port++) {
		gantry_addr_set_port(&a, (uint16_t)port);
		e = listen_on(&a, &fd);
	}
	if (e)
		TRY(cannot_listen(addr, &a, first, last, e));
	if (getsockname(fd, &ret_bound->sa, &len))
		FAIL(GANTRY_ERR_SYSTEM, "getsockname: %s", strerror(errno));
	*ret_fd = fd;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	return r;
}

/*
 * A socket that connects to a port in the kernel's own range while nothing listens there may be given that very port as
 * its local port. TCP then connects the socket to itself, and the intended listener finds its port in use.
 */
static int met_itself(int fd, const struct gantry_addr *to)
{
	struct gantry_addr self;
	socklen_t len = sizeof(self);

	memset(&self, 0, sizeof(self));
	return !getsockname(fd, &self.sa, &len) && gantry_addr_same_host(&self, to) &&
	       gantry_addr_port(&self) == gantry_addr_port(to);
}

int sock_connect(const struct gantry_addr *from, const char *device, const struct gantry_addr *to, int *ret_fd)
{
	int one = 1, e = 0;
	int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return errno;
	widen_window(fd);
	if (device && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device) + 1))
		LOG_DEBUG(NET, "bind to device %s: %s", device, strerror(errno));
	if (from && from->sa.sa_family == to->sa.sa_family) {
		struct gantry_addr a = *from;

		gantry_addr_set_port(&a, 0);
		setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
		if (bind(fd, &a.sa, gantry_addr_len(&a)))
			e = errno;
	}
	if (!e && connect(fd, &to->sa, gantry_addr_len(to)) && errno != EINPROGRESS && errno != EINTR)
		e = errno;
	if (!e && met_itself(fd, to))
		e = ECONNREFUSED;
	if (e) {
		close(fd);
		return e;
	}
	*ret_fd = fd;
	return 0;
}

/* ---- back-off ---- */

enum { NEVER_MS = 86400000, CAP_MIN_MS = 1000, CAP_MAX_MS = 120000 };
enum { MS = 1000000 };

/*
 * When retransmissions are asked for, and how long before that the next one is: in 1/1000 of the deadline. The gap to
 * the one before is larger than that, also if the kernel's timer is late, which it may be by 1/8 of its time.
 */
static const struct {
	uint32_t at, early;
} targets[] = {{800, 110}, {910, 62}, {955, 30}};

static void set_user_timeout(int fd, uint64_t ms)
{
	int value = ms < NEVER_MS ? (int)ms : NEVER_MS;

	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof(value));
}

static void init_backoff(int fd, uint64_t timeout_ns)
{
	uint64_t ms = timeout_ns / MS / 30;
	int cap = ms < CAP_MIN_MS ? CAP_MIN_MS : ms > CAP_MAX_MS ? CAP_MAX_MS : (int)ms;

	/* Never without the time-out: the kernel counts retransmissions otherwise, and 15 of them are over soon. */
	set_user_timeout(fd, NEVER_MS);
	if ((uint64_t)cap * MS <= timeout_ns / 25)
		setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &cap, sizeof(cap)); /* fails before Linux 6.15 */
}

void sock_backoff_leave(int fd, uint64_t timeout_ns)
{
	set_user_timeout(fd, timeout_ns / MS);
}

static int is_capped(int fd, uint64_t timeout_ns)
{
	int cap = 0;
	socklen_t len = sizeof(cap);

	return !getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &cap, &len) && cap > 0 &&
	       (uint64_t)cap * MS <= timeout_ns / 25;
}

/* When the kernel shall retransmit, counted as it does: from the first retransmission. */
static uint64_t user_timeout(const struct sock_backoff *b, uint64_t now, uint64_t timeout)
{
	uint64_t waited = (now - b->since) / (timeout / 1000);

	for (size_t i = 0; i < sizeof(targets) / sizeof(*targets); i++) {
		uint64_t at = b->since + timeout / 1000 * targets[i].at;

		if (waited < targets[i].at - targets[i].early)
			return at > b->resent ? (at - b->resent) / MS : NEVER_MS;
	}
	return NEVER_MS;
}

/* Bytes that are in the network. */
static uint64_t in_flight(int fd, const struct tcp_info *info)
{
	int queued = 0;

	if (ioctl(fd, SIOCOUTQ, &queued) || queued < 0 || (uint32_t)queued < info->tcpi_notsent_bytes)
		return 0;
	return (uint64_t)queued - info->tcpi_notsent_bytes;
}

/* The time between two retransmissions doubles from one to the next. In ns. */
static uint64_t since_first_resent(const struct tcp_info *info)
{
	uint64_t first = (uint64_t)(info->tcpi_rto >> info->tcpi_backoff) * 1000;

	if (!info->tcpi_retransmits || info->tcpi_retransmits != info->tcpi_backoff || info->tcpi_retransmits > 8)
		return 0;
	return (uint64_t)info->tcpi_last_data_sent * MS + first * ((1u << info->tcpi_retransmits) - 2);
}

/*
 * What the kernel tells, and since when. Its own clock starts with the first retransmission and runs until all that was
 * out at that time is acknowledged, not just until something is; then it starts again, and both may happen between two
 * looks.
 */
static void note_backoff(struct sock_backoff *b, int fd, const struct tcp_info *info, uint64_t now)
{
	int known = b->since && info->tcpi_bytes_acked == b->acked;

	b->acked = info->tcpi_bytes_acked;
	if ((!info->tcpi_retransmits && info->tcpi_ca_state < TCP_CA_Recovery) || b->acked >= b->recovered_at)
		b->resent = 0;
	if (!b->resent && (info->tcpi_retransmits || info->tcpi_ca_state >= TCP_CA_Recovery)) {
		b->resent = now - since_first_resent(info);
		b->recovered_at = b->acked + in_flight(fd, info);
	}
	if (!info->tcpi_unacked)
		b->since = 0;
	else if (!known)
		b->since = now;
}

int sock_backoff_tick(struct sock_backoff *b, int fd, uint64_t now, uint64_t timeout_ns)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);
	uint64_t ms;

	if (b->kind == BACKOFF_UNKNOWN)
		b->kind = is_capped(fd, timeout_ns) ? BACKOFF_CAPPED : BACKOFF_MOVED;
	if (b->kind == BACKOFF_CAPPED)
		return 0;
	memset(&info, 0, sizeof(info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return 0;
	note_backoff(b, fd, &info, now);
	ms = b->since && info.tcpi_retransmits ? user_timeout(b, now, timeout_ns) : NEVER_MS;
	if (ms != (b->user_ms ? b->user_ms : NEVER_MS)) {
		set_user_timeout(fd, ms);
		b->user_ms = (uint32_t)ms;
	}
	return b->since != 0;
}

/* ---- options ---- */

/* What Gantry chose itself is worth no line; what the user chose is, once. */
static void refused_congestion(const char *name, int e)
{
	static int logged;

	if (strcmp(gantry_params()->congestion, "auto") == 0 || exchange_relaxed(&logged, 1))
		LOG_DEBUG(NET, "congestion control %s: %s", name, strerror(e));
	else
		LOG_WARN(NET, "GANTRY_CONGESTION=%s: %s; connections keep the system's default", name,
			 e == ENOENT ? "the kernel does not have this congestion control" : strerror(e));
}

static void set_congestion(int fd, int same_host)
{
	const char *name = gantry_params()->congestion;

	if (strcmp(name, "keep") == 0)
		return;
	if (strcmp(name, "auto") == 0) {
		if (!same_host)
			return;
		name = "reno"; /* nothing to probe for within a host; pacing only costs */
	}
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)))
		refused_congestion(name, errno);
}

void sock_reset(int fd)
{
	static const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};

	if (connect(fd, &nowhere, sizeof(nowhere)))
		shutdown(fd, SHUT_RDWR);
}

int sock_error(int fd)
{
	socklen_t len = sizeof(int);
	int e = 0;

	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) ? errno : e;
}

bool sock_local(int fd, struct gantry_addr *ret_addr)
{
	socklen_t len = sizeof(*ret_addr);

	memset(ret_addr, 0, sizeof(*ret_addr));
	return getsockname(fd, &ret_addr->sa, &len) == 0;
}

int sock_allow_zerocopy(int fd)
{
	int on = 1;

	return setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) ? errno : 0;
}

void sock_tune(int fd, const struct sock_options *o)
{
	int one = 1, idle = (int)(o->timeout_ns / 1000000000 / 2);

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* Keeps idle flows alive in middleboxes; our own heartbeat decides about life and death. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	if (idle < 1)
		idle = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	init_backoff(fd, o->timeout_ns);
	if (o->traffic_class >= 0) {
		int tos = (o->traffic_class & 0x3f) << 2;

		setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
		setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
	}
	if (o->zerocopy)
		sock_allow_zerocopy(fd);
	if (o->unsent_max)
		setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &o->unsent_max, sizeof(o->unsent_max));
	if (o->device)
		setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, o->device, (socklen_t)strlen(o->device) + 1);
	set_congestion(fd, o->same_host);
}

long sock_fd_budget(long *ret_limit)
{
	struct rlimit limit = {0};
	long used = 0;
	DIR *d = opendir("/proc/self/fd");

	while (d && readdir(d))
		used++;
	if (d)
		closedir(d);
	getrlimit(RLIMIT_NOFILE, &limit);
	*ret_limit = (long)limit.rlim_cur;
	return (long)limit.rlim_cur - used;
}

bool sock_fd_reserve(long n, long spare)
{
	long soft, left = sock_fd_budget(&soft), wanted = soft - left + 2 * (n + spare);
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY || left >= n + spare)
		return true;
	if (limit.rlim_cur >= limit.rlim_max)
		return left >= n;
	/* Not for nothing to the hard limit: it may be a billion, and some programs close everything up to the soft one. */
	wanted = wanted > FILES_PLENTY ? wanted : FILES_PLENTY;
	limit.rlim_cur = limit.rlim_max > (rlim_t)wanted ? (rlim_t)wanted : limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit)) {
		LOG_WARN(NET, "setrlimit RLIMIT_NOFILE to %lld: %s", (long long)limit.rlim_cur, strerror(errno));
		return left >= n;
	}
	LOG_INFO(NET, "raised the limit of open files (RLIMIT_NOFILE) from %ld to %lld; %ld more were needed", soft,
		 (long long)limit.rlim_cur, n);
	return sock_fd_budget(&soft) >= n;
}
