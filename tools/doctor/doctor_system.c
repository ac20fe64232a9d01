/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry doctor`: limits of this process and of the kernel that networking runs into; and what the kernel can do, found out
 * by doing it on a loopback connection. A version number says little: containers filter system calls and distributions
 * build features out.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/text.h"
#include "common/figures.h"
#include "common/raw_tcp.h"
#include "doctor/doctor.h"

enum { CAP_IPC_LOCK_BIT = 14, CAP_SYS_RESOURCE_BIT = 24 };

/* Is the capability in force? Limits on locked memory and on pipes do not bind processes that have it. */
static int has_capability(int bit)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[128];
	uint64_t caps = 0;

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "CapEff: %" SCNx64, &caps) == 1)
			break;
	fclose(f);
	return (caps >> bit) & 1;
}

#define AMOUNT(n) ((n) == RLIM_INFINITY ? "unlimited" : TEXT("%llu", (unsigned long long)(n)))

static void open_files(struct doctor *d)
{
	struct rlimit l;
	char how[GANTRY_ADVICE_TEXT];

	if (getrlimit(RLIMIT_NOFILE, &l) != 0)
		return;
	doctor_say(d, "limits", "RLIMIT_NOFILE", l.rlim_cur < 4096 ? DOCTOR_WARN : DOCTOR_OK, AMOUNT(l.rlim_cur),
		   TEXT("soft limit of open files and sockets; the hard one is %s", AMOUNT(l.rlim_max)),
		   l.rlim_cur < 4096 ? TEXT("%s; every lane is a socket", gantry_nofile_advice(how)) : "");
}

/* `ulimit -l` counts in KiB. */
static void locked_memory_advice(const struct rlimit *l, char *buf, size_t size)
{
	static const char else_copied[] = "or sends between hosts are copied when it is reached";

	if (l->rlim_cur >= l->rlim_max)
		snprintf(buf, size,
			 "raise the hard limit (memlock in /etc/security/limits.conf, LimitMEMLOCK= of a systemd "
			 "service), %s",
			 else_copied);
	else if (l->rlim_max == RLIM_INFINITY)
		snprintf(buf, size, "ulimit -l unlimited, %s", else_copied);
	else
		snprintf(buf, size, "ulimit -l %llu, %s", (unsigned long long)l->rlim_max >> 10, else_copied);
}

static void locked_memory(struct doctor *d)
{
	const rlim_t enough = 64u << 20;
	int exempt = has_capability(CAP_IPC_LOCK_BIT), low;
	struct rlimit l;
	char advice[192];

	if (getrlimit(RLIMIT_MEMLOCK, &l) != 0)
		return;
	low = l.rlim_cur < enough && !exempt;
	locked_memory_advice(&l, advice, sizeof(advice));
	doctor_say(d, "limits", "RLIMIT_MEMLOCK", low ? DOCTOR_NOTE : DOCTOR_OK,
		   l.rlim_cur == RLIM_INFINITY ? "unlimited" : SIZE_TEXT(l.rlim_cur),
		   exempt ? "does not bind this process (CAP_IPC_LOCK)" : "that MSG_ZEROCOPY may keep pinned",
		   low ? advice : "");
}

/* A file with one number: below `enough` it is worth `level` and the advice. */
static void sysctl_number(struct doctor *d, const char *path, long enough, enum doctor_level level, const char *detail,
			  const char *advice)
{
	char line[64];
	int low;

	if (!doctor_read_line(path, line, sizeof(line))) {
		doctor_say(d, "limits", strrchr(path, '/') + 1, DOCTOR_NOTE, "unknown", "cannot be read here", "");
		return;
	}
	low = atol(line) < enough;
	doctor_say(d, "limits", strrchr(path, '/') + 1, low ? level : DOCTOR_OK, line, detail, low ? advice : "");
}

static void port_range(struct doctor *d)
{
	int first = 0, last = 0, few;
	char line[64];

	if (!doctor_read_line("/proc/sys/net/ipv4/ip_local_port_range", line, sizeof(line)) ||
	    sscanf(line, "%d %d", &first, &last) != 2)
		return;
	few = last - first + 1 < 8192;
	doctor_say(d, "limits", "ip_local_port_range", few ? DOCTOR_WARN : DOCTOR_OK, TEXT("%d-%d", first, last),
		   TEXT("%d ports for outgoing connections", last - first + 1),
		   few ? "sysctl -w net.ipv4.ip_local_port_range='10240 65535'" : "");
}

/* tcp_rmem and tcp_wmem: least, initial, most. What counts is the most: it bounds the window. */
static void tcp_memory(struct doctor *d, const char *name, const char *what)
{
	char line[96];
	long least, initial, most;
	int low;

	if (!doctor_read_line(TEXT("/proc/sys/net/ipv4/%s", name), line, sizeof(line)) ||
	    sscanf(line, "%ld %ld %ld", &least, &initial, &most) != 3)
		return;
	low = most < 4 << 20;
	for (char *c = line; *c; c++)
		if (*c == '\t')
			*c = ' ';
	doctor_say(d, "limits", name, low ? DOCTOR_WARN : DOCTOR_OK, line,
		   TEXT("%s buffer per socket: at most %.1f MiB, which at 1 ms is %.0f Gbit/s", what,
			(double)most / (1 << 20), (double)most * 8 / 1e6),
		   low ? TEXT("sysctl -w net.ipv4.%s='4096 131072 16777216'", name) : "");
}

static void pipes(struct doctor *d)
{
	int exempt = has_capability(CAP_SYS_RESOURCE_BIT), fine;
	char line[64];
	long pages;

	sysctl_number(d, "/proc/sys/fs/pipe-max-size", 1 << 20, DOCTOR_NOTE,
		      "bytes a pipe may hold: one splice towards the same host",
		      "sysctl -w fs.pipe-max-size=1048576 for fewer system calls per MiB");
	if (!doctor_read_line("/proc/sys/fs/pipe-user-pages-soft", line, sizeof(line)))
		return;
	pages = atol(line);
	fine = !pages || pages >= 16384 || exempt;
	doctor_say(d, "limits", "pipe-user-pages-soft", fine ? DOCTOR_OK : DOCTOR_NOTE, line,
		   pages ? TEXT("pages in pipes per user (%ld MiB)%s", pages * (sysconf(_SC_PAGESIZE) >> 10) >> 10,
				exempt ? "; does not bind this process (CAP_SYS_RESOURCE)" : "")
			 : "pages in pipes per user: no limit",
		   fine ? "" : "sysctl -w fs.pipe-user-pages-soft=16384, or pipes shrink to one page");
}

/* The quota of one cgroup directory in CPUs, 0 if it has none. v2: "max 100000" or "150000 100000". */
static double quota_at(const char *dir)
{
	char line[64], period_line[64];
	double quota, period;

	if (doctor_read_line(TEXT("%s/cpu.max", dir), line, sizeof(line)))
		return sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : 0;
	if (!doctor_read_line(TEXT("%s/cpu.cfs_quota_us", dir), line, sizeof(line)) ||
	    !doctor_read_line(TEXT("%s/cpu.cfs_period_us", dir), period_line, sizeof(period_line)))
		return 0;
	quota = atof(line);
	period = atof(period_line);
	return quota > 0 && period > 0 ? quota / period : 0;
}

/* The least quota from `path` below `root` up to the root itself. */
static double quota_upwards(const char *root, const char *path)
{
	char dir[512];
	double least = 0;

	snprintf(dir, sizeof(dir), "%s%s", root, path);
	for (;;) {
		double q = quota_at(dir);
		char *slash = strrchr(dir, '/');

		if (q > 0 && (least <= 0 || q < least))
			least = q;
		if (!slash || strlen(dir) <= strlen(root))
			return least;
		*slash = 0;
	}
}

/* CPUs that the cgroups of this process grant, 0 if there is no quota. */
static double cgroup_quota(void)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[512];
	double least = 0, q;

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;

		if (!second)
			continue;
		line[strcspn(line, "\n")] = 0;
		*second++ = 0;
		if (first[1] == 0) /* "0::/path" is version 2 */
			q = quota_upwards("/sys/fs/cgroup", second);
		else if (strstr(first, "cpu"))
			q = quota_upwards("/sys/fs/cgroup/cpu", second);
		else
			continue;
		if (q > 0 && (least <= 0 || q < least))
			least = q;
	}
	fclose(f);
	return least;
}

static void cpus(struct doctor *d)
{
	cpu_set_t *set = CPU_ALLOC(8192);
	size_t size = CPU_ALLOC_SIZE(8192);
	long online = sysconf(_SC_NPROCESSORS_ONLN), allowed = online;
	double quota = cgroup_quota(), usable;

	if (set && sched_getaffinity(0, size, set) == 0)
		allowed = CPU_COUNT_S(size, set);
	if (set)
		CPU_FREE(set);
	usable = quota > 0 && quota < (double)allowed ? quota : (double)allowed;
	doctor_say(d, "limits", "cpus", usable < 2 ? DOCTOR_WARN : DOCTOR_OK, TEXT("%.3g", usable),
		   TEXT("%ld online, %ld allowed by affinity, %s", online, allowed,
			quota > 0 ? TEXT("cgroup quota %.3g", quota) : "no cgroup quota"),
		   usable < 2 ? "give the process at least two CPUs: sender and receiver of a host cannot run at once"
			      : "");
}

void doctor_limits(struct doctor *d)
{
	cpus(d);
	open_files(d);
	locked_memory(d);
	port_range(d);
	sysctl_number(d, "/proc/sys/net/core/somaxconn", 1024, DOCTOR_NOTE, "connections that may wait to be accepted",
		      "sysctl -w net.core.somaxconn=4096 for large jobs");
	tcp_memory(d, "tcp_rmem", "receive");
	tcp_memory(d, "tcp_wmem", "send");
	pipes(d);
	sysctl_number(d, "/proc/sys/net/core/optmem_max", 65536, DOCTOR_NOTE,
		      "bytes per socket for completions of MSG_ZEROCOPY", "sysctl -w net.core.optmem_max=131072");
}

/* ---- what the kernel can do ---- */

/* Not in every libc that we build with. */
enum { OPT_ZEROCOPY = 60, FLAG_ZEROCOPY = 0x4000000, OPT_DEVMEM_DONTNEED = 80 };
enum { ORIGIN_ZEROCOPY = 5, CODE_ZEROCOPY_COPIED = 1 };
enum { PROBE_BYTES = 16384 };

struct pair {
	struct raw_tcp out, in;
	int tx, rx;
	unsigned char *page; /* PROBE_BYTES, page-aligned */
};

static void pair_close(struct pair *p)
{
	raw_tcp_close(&p->out);
	raw_tcp_close(&p->in);
	if (p->page)
		munmap(p->page, PROBE_BYTES);
}

/* 0, or the errno of what failed. */
static int pair_open(struct pair *p)
{
	const uint64_t limit_ns = 2000000000;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr *at = (struct sockaddr *)&a;
	uint16_t port;

	*p = (struct pair){.page = perf_map(PROBE_BYTES, 0)};
	if (!p->page || raw_tcp_listen(&p->in, at, sizeof(a), limit_ns, &port))
		return errno;
	a.sin_port = htons(port);
	if (raw_tcp_join(&p->out, 1, at, sizeof(a), limit_ns) || raw_tcp_join(&p->in, 1, NULL, 0, limit_ns))
		return errno;
	p->tx = p->out.fd[0];
	p->rx = p->in.fd[0];
	for (int i = 0; i < PROBE_BYTES; i++)
		p->page[i] = (unsigned char)(i * 7 + i / 256);
	return 0;
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
	doctor_say(d, "kernel", name, level, "no", TEXT("%s: %s", call, strerror(err)), advice);
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
		doctor_say(d, "kernel", "splice", DOCTOR_WARN, "broken", "spliced bytes did not arrive as sent",
			   "set GANTRY_ZEROCOPY=off");
	else
		doctor_say(d, "kernel", "splice", DOCTOR_OK, "yes",
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
		doctor_say(d, "kernel", "MSG_ZEROCOPY", DOCTOR_WARN, "broken", "bytes did not arrive as sent",
			   "set GANTRY_ZEROCOPY=off");
		return;
	}
	copied = zerocopy_completion(p->tx);
	if (copied < 0)
		doctor_say(d, "kernel", "MSG_ZEROCOPY", DOCTOR_NOTE, "no completion",
			   "sent, but no completion came within 1 s", advice);
	else
		doctor_say(d, "kernel", "MSG_ZEROCOPY", DOCTOR_OK, "yes",
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
		doctor_say(d, "kernel", "TCP_USER_TIMEOUT", got == ms ? DOCTOR_OK : DOCTOR_WARN,
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
	doctor_say(d, "kernel", "congestion control",
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
		doctor_say(d, "kernel", "reno", DOCTOR_OK, "yes", "may be set by this process", "");
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
		doctor_say(d, "kernel", "SO_BINDTODEVICE", DOCTOR_OK, "yes",
			   "connections can be tied to their interface", "");
	close(fd);
}

/* Only whether the kernel knows it; whether a NIC can do it is another matter. */
static void probe_devmem(struct doctor *d, const struct pair *p)
{
	uint32_t none[2] = {0, 0};

	if (setsockopt(p->rx, SOL_SOCKET, OPT_DEVMEM_DONTNEED, none, sizeof(none)) >= 0)
		doctor_say(d, "kernel", "devmem", DOCTOR_OK, "known",
			   "the kernel knows device memory TCP; the NIC must too", "");
	else if (errno == ENOPROTOOPT)
		doctor_say(d, "kernel", "devmem", DOCTOR_NOTE, "no",
			   "kernel older than 6.12, or built without page pool",
			   "received data is staged in host memory");
	else
		errno_finding(d, "devmem", DOCTOR_NOTE, "setsockopt SO_DEVMEM_DONTNEED", errno,
			      "received data is staged in host memory");
}

void doctor_kernel(struct doctor *d)
{
	struct utsname u;
	const char *detail;
	struct pair p;
	int err;

	if (uname(&u) == 0)
		doctor_say(d, "kernel", "version", DOCTOR_OK, u.release, u.machine, "");
	err = pair_open(&p);
	if (err) {
		detail = TEXT("cannot connect over 127.0.0.1: %s", strerror(err));
		doctor_say(d, "kernel", "loopback", DOCTOR_WARN, "no", detail,
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
