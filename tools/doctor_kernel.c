/*
 * `gantry doctor`: what the kernel can do, found out by doing it on a loopback
 * connection. A version number says little: containers filter system calls and
 * distributions build features out.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "doctor.h"

static const char section[] = "kernel";

/* Not in every libc that we build with. */
enum { OPT_ZEROCOPY = 60, FLAG_ZEROCOPY = 0x4000000, OPT_DEVMEM_DONTNEED = 80 };
enum { ORIGIN_ZEROCOPY = 5, CODE_ZEROCOPY_COPIED = 1 };
enum { PROBE_BYTES = 16384 };

struct pair {
	int tx, rx;
	unsigned char *page; /* PROBE_BYTES, page-aligned */
};

static void pair_close(struct pair *p)
{
	if (p->tx >= 0)
		close(p->tx);
	if (p->rx >= 0)
		close(p->rx);
	if (p->page)
		munmap(p->page, PROBE_BYTES);
}

/* 0, or the errno of what failed. */
static int pair_open(struct pair *p)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {.tv_sec = 2};
	socklen_t len = sizeof(a);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), err = 0;
	void *page;

	p->tx = p->rx = -1;
	p->page = NULL;
	if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(listener, 1) != 0 ||
	    getsockname(listener, (struct sockaddr *)&a, &len) != 0)
		goto failed;
	p->tx = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (p->tx < 0 || setsockopt(p->tx, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0 ||
	    connect(p->tx, (struct sockaddr *)&a, sizeof(a)) != 0)
		goto failed;
	p->rx = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (p->rx < 0 || setsockopt(p->rx, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0)
		goto failed;
	page = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		goto failed;
	p->page = page;
	for (int i = 0; i < PROBE_BYTES; i++)
		p->page[i] = (unsigned char)(i * 7 + i / 256);
	close(listener);
	return 0;
failed:
	err = errno;
	if (listener >= 0)
		close(listener);
	return err;
}

/* Everything arrives and is what was sent? */
static int arrived(const struct pair *p, size_t bytes)
{
	unsigned char buf[PROBE_BYTES];

	return recv(p->rx, buf, bytes, MSG_WAITALL) == (ssize_t)bytes && memcmp(buf, p->page, bytes) == 0;
}

static void errno_finding(struct doctor *d, const char *name, enum doctor_level level, const char *call, int err,
			  const char *advice)
{
	char detail[160];

	snprintf(detail, sizeof(detail), "%s: %s", call, strerror(err));
	doctor_say(d, section, name, level, "no", detail, advice);
}

static void probe_splice(struct doctor *d, const struct pair *p)
{
	static const char advice[] =
		"messages within the host will be copied; allow vmsplice and splice if a container "
		"profile (seccomp) forbids them";
	struct iovec iov = {.iov_base = p->page, .iov_len = 4096};
	const char *call = "pipe";
	int pipefd[2] = {-1, -1};
	ssize_t n = -1;

	if (pipe2(pipefd, O_CLOEXEC) == 0) {
		call = "vmsplice";
		n = vmsplice(pipefd[1], &iov, 1, 0);
		if (n == 4096) {
			call = "splice";
			n = splice(pipefd[0], NULL, p->tx, NULL, 4096, 0);
		}
	}
	if (n != 4096)
		errno_finding(d, "splice", DOCTOR_WARN, call, n < 0 ? errno : EIO, advice);
	else if (!arrived(p, 4096))
		doctor_say(d, section, "splice", DOCTOR_WARN, "broken", "spliced bytes did not arrive as sent",
			   "set GANTRY_ZEROCOPY=off");
	else
		doctor_say(d, section, "splice", DOCTOR_OK, "yes",
			   "vmsplice and splice to TCP: no copy on the sending side within a host", "");
	if (pipefd[0] >= 0) {
		close(pipefd[0]);
		close(pipefd[1]);
	}
}

/* Waits for the completion on the error queue. 1 copied, 0 not copied, -1 none came. */
static int zerocopy_completion(int fd)
{
	union {
		char buf[256];
		struct cmsghdr align;
	} control;
	struct pollfd pfd = {.fd = fd}; /* POLLERR is always watched */

	for (int tries = 0; tries < 10; tries++) {
		struct msghdr msg = {.msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
		struct sock_extended_err e;
		struct cmsghdr *c;

		if (recvmsg(fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
			if (errno != EAGAIN && errno != EINTR)
				return -1;
			poll(&pfd, 1, 100);
			continue;
		}
		for (c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
			if (c->cmsg_len < CMSG_LEN(sizeof(e)))
				continue;
			memcpy(&e, CMSG_DATA(c), sizeof(e));
			if (e.ee_origin == ORIGIN_ZEROCOPY)
				return e.ee_code == CODE_ZEROCOPY_COPIED;
		}
	}
	return -1;
}

static void probe_zerocopy(struct doctor *d, const struct pair *p)
{
	static const char advice[] = "sends between hosts will be copied";
	int one = 1, copied;

	if (setsockopt(p->tx, SOL_SOCKET, OPT_ZEROCOPY, &one, sizeof(one)) != 0) {
		errno_finding(d, "MSG_ZEROCOPY", DOCTOR_NOTE, "setsockopt SO_ZEROCOPY", errno, advice);
		return;
	}
	if (send(p->tx, p->page, PROBE_BYTES, FLAG_ZEROCOPY) != PROBE_BYTES) {
		errno_finding(
			d, "MSG_ZEROCOPY", DOCTOR_NOTE, "send", errno,
			"raise RLIMIT_MEMLOCK and net.core.optmem_max; until then sends between hosts are copied");
		return;
	}
	if (!arrived(p, PROBE_BYTES)) {
		doctor_say(d, section, "MSG_ZEROCOPY", DOCTOR_WARN, "broken", "bytes did not arrive as sent",
			   "set GANTRY_ZEROCOPY=off");
		return;
	}
	copied = zerocopy_completion(p->tx);
	if (copied < 0)
		doctor_say(d, section, "MSG_ZEROCOPY", DOCTOR_NOTE, "no completion",
			   "sent, but no completion came within 1 s", advice);
	else
		doctor_say(d, section, "MSG_ZEROCOPY", DOCTOR_OK, "yes",
			   copied ? "used between hosts; loopback reports 'copied', as it always does"
				  : "used between hosts; not even loopback copied",
			   "");
}

static void probe_user_timeout(struct doctor *d, const struct pair *p)
{
	unsigned ms = 30000, got = 0;
	socklen_t len = sizeof(got);

	if (setsockopt(p->tx, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms)) != 0 ||
	    getsockopt(p->tx, IPPROTO_TCP, TCP_USER_TIMEOUT, &got, &len) != 0)
		errno_finding(d, "TCP_USER_TIMEOUT", DOCTOR_WARN, "setsockopt", errno,
			      "a dead peer is then noticed by heartbeats alone");
	else
		doctor_say(d, section, "TCP_USER_TIMEOUT", got == ms ? DOCTOR_OK : DOCTOR_WARN,
			   got == ms ? "yes" : "ignored", "the kernel gives up on a peer that does not acknowledge",
			   "");
}

static void probe_congestion(struct doctor *d, const struct pair *p)
{
	char now[64] = "unknown", available[256] = "unknown", allowed[256] = "unknown", detail[640];
	int bbr, reno = setsockopt(p->tx, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
	int reno_errno = errno;

	doctor_read_line("/proc/sys/net/ipv4/tcp_congestion_control", now, sizeof(now));
	doctor_read_line("/proc/sys/net/ipv4/tcp_available_congestion_control", available, sizeof(available));
	doctor_read_line("/proc/sys/net/ipv4/tcp_allowed_congestion_control", allowed, sizeof(allowed));
	bbr = strncmp(now, "bbr", 3) == 0;
	snprintf(detail, sizeof(detail), "default; available: %s; allowed without privilege: %s%s", available, allowed,
		 bbr ? "; bbr costs 15-25 % of bandwidth within a host" : "");
	doctor_say(d, section, "congestion control",
		   bbr && reno != 0 ? DOCTOR_WARN
		   : bbr	    ? DOCTOR_NOTE
				    : DOCTOR_OK,
		   now, detail,
		   bbr && reno == 0 ? "nothing: GANTRY_CONGESTION=auto uses reno within a host"
		   : bbr	    ? "allow reno: sysctl -w net.ipv4.tcp_allowed_congestion_control='reno bbr'"
				    : "");
	if (reno != 0)
		errno_finding(d, "reno", DOCTOR_NOTE, "setsockopt TCP_CONGESTION reno", reno_errno,
			      "connections within the host keep the default");
	else
		doctor_say(d, section, "reno", DOCTOR_OK, "yes", "may be set by this process", "");
}

static void probe_bind_device(struct doctor *d)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return;
	if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3) != 0)
		errno_finding(d, "SO_BINDTODEVICE", DOCTOR_NOTE, "setsockopt", errno,
			      "needs CAP_NET_RAW before Linux 5.7; without it several NICs of one subnet share one");
	else
		doctor_say(d, section, "SO_BINDTODEVICE", DOCTOR_OK, "yes",
			   "connections can be tied to their interface", "");
	close(fd);
}

/* Only whether the kernel knows it; whether a NIC can do it is another matter. */
static void probe_devmem(struct doctor *d, const struct pair *p)
{
	uint32_t none[2] = {0, 0};

	if (setsockopt(p->rx, SOL_SOCKET, OPT_DEVMEM_DONTNEED, none, sizeof(none)) >= 0)
		doctor_say(d, section, "devmem", DOCTOR_OK, "known",
			   "the kernel knows device memory TCP; the NIC must too", "");
	else if (errno == ENOPROTOOPT)
		doctor_say(d, section, "devmem", DOCTOR_NOTE, "no",
			   "kernel older than 6.12, or built without page pool",
			   "received data is staged in host memory");
	else
		errno_finding(d, "devmem", DOCTOR_NOTE, "setsockopt SO_DEVMEM_DONTNEED", errno,
			      "received data is staged in host memory");
}

void doctor_kernel(struct doctor *d)
{
	struct utsname u;
	struct pair p;
	char detail[128];
	int err;

	if (uname(&u) == 0)
		doctor_say(d, section, "version", DOCTOR_OK, u.release, u.machine, "");
	err = pair_open(&p);
	if (err) {
		snprintf(detail, sizeof(detail), "cannot connect over 127.0.0.1: %s", strerror(err));
		doctor_say(d, section, "loopback", DOCTOR_WARN, "no", detail,
			   "ip link set lo up; processes of one host cannot talk, and nothing could be tried here");
		doctor_can(d, DOCTOR_LOOPBACK, 0, detail);
	} else {
		doctor_can(d, DOCTOR_LOOPBACK, 1, "");
		probe_splice(d, &p);
		probe_zerocopy(d, &p);
		probe_user_timeout(d, &p);
		probe_congestion(d, &p);
		probe_bind_device(d);
		probe_devmem(d, &p);
	}
	pair_close(&p);
}
