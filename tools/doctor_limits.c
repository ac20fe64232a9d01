/* `gantry doctor`: limits of this process and of the kernel that networking runs into. */
#include <inttypes.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/param_text.h"
#include "doctor.h"

static const char section[] = "limits";

enum { CAP_IPC_LOCK_BIT = 14, CAP_SYS_RESOURCE_BIT = 24 };

/* Is the capability in force? Limits on locked memory and on pipes do not bind those who have it. */
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

static const char *amount(rlim_t n, char *buf, size_t size)
{
	if (n == RLIM_INFINITY)
		snprintf(buf, size, "unlimited");
	else
		snprintf(buf, size, "%llu", (unsigned long long)n);
	return buf;
}

static void open_files(struct doctor *d)
{
	struct rlimit l;
	char soft[32], detail[128], hard[32], how[GANTRY_ADVICE_TEXT], advice[GANTRY_ADVICE_TEXT + 64];

	if (getrlimit(RLIMIT_NOFILE, &l) != 0)
		return;
	snprintf(advice, sizeof(advice), "%s; every lane is a socket", gantry_nofile_advice(how));
	snprintf(detail, sizeof(detail), "soft limit of open files and sockets; the hard one is %s",
		 amount(l.rlim_max, hard, sizeof(hard)));
	doctor_say(d, section, "RLIMIT_NOFILE", l.rlim_cur < 4096 ? DOCTOR_WARN : DOCTOR_OK,
		   amount(l.rlim_cur, soft, sizeof(soft)), detail, l.rlim_cur < 4096 ? advice : "");
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
	doctor_say(d, section, "RLIMIT_MEMLOCK", low ? DOCTOR_NOTE : DOCTOR_OK,
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
		doctor_say(d, section, strrchr(path, '/') + 1, DOCTOR_NOTE, "unknown", "cannot be read here", "");
		return;
	}
	low = atol(line) < enough;
	doctor_say(d, section, strrchr(path, '/') + 1, low ? level : DOCTOR_OK, line, detail, low ? advice : "");
}

static void port_range(struct doctor *d)
{
	int first = 0, last = 0, few;
	char line[64], value[32], detail[96];

	if (!doctor_read_line("/proc/sys/net/ipv4/ip_local_port_range", line, sizeof(line)) ||
	    sscanf(line, "%d %d", &first, &last) != 2)
		return;
	few = last - first + 1 < 8192;
	snprintf(value, sizeof(value), "%d-%d", first, last);
	snprintf(detail, sizeof(detail), "%d ports for outgoing connections", last - first + 1);
	doctor_say(d, section, "ip_local_port_range", few ? DOCTOR_WARN : DOCTOR_OK, value, detail,
		   few ? "sysctl -w net.ipv4.ip_local_port_range='10240 65535'" : "");
}

/* tcp_rmem and tcp_wmem: least, initial, most. What counts is the most: it bounds the window. */
static void tcp_memory(struct doctor *d, const char *name, const char *what)
{
	char path[64], line[96], detail[128], advice[96];
	long least, initial, most;
	int low;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/%s", name);
	if (!doctor_read_line(path, line, sizeof(line)) || sscanf(line, "%ld %ld %ld", &least, &initial, &most) != 3)
		return;
	low = most < 4 << 20;
	for (char *c = line; *c; c++)
		if (*c == '\t')
			*c = ' ';
	snprintf(detail, sizeof(detail), "%s buffer per socket: at most %.1f MiB, which at 1 ms is %.0f Gbit/s", what,
		 (double)most / (1 << 20), (double)most * 8 / 1e6);
	snprintf(advice, sizeof(advice), "sysctl -w net.ipv4.%s='4096 131072 16777216'", name);
	doctor_say(d, section, name, low ? DOCTOR_WARN : DOCTOR_OK, line, detail, low ? advice : "");
}

static void pipes(struct doctor *d)
{
	int exempt = has_capability(CAP_SYS_RESOURCE_BIT);
	char line[64], detail[128];
	long pages;

	sysctl_number(d, "/proc/sys/fs/pipe-max-size", 1 << 20, DOCTOR_NOTE,
		      "bytes a pipe may hold: one splice towards the same host",
		      "sysctl -w fs.pipe-max-size=1048576 for fewer system calls per MiB");
	if (!doctor_read_line("/proc/sys/fs/pipe-user-pages-soft", line, sizeof(line)))
		return;
	pages = atol(line);
	if (pages == 0)
		snprintf(detail, sizeof(detail), "pages in pipes per user: no limit");
	else
		snprintf(detail, sizeof(detail), "pages in pipes per user (%ld MiB)%s",
			 pages * (sysconf(_SC_PAGESIZE) >> 10) >> 10,
			 exempt ? "; does not bind this process (CAP_SYS_RESOURCE)" : "");
	doctor_say(d, section, "pipe-user-pages-soft", !pages || pages >= 16384 || exempt ? DOCTOR_OK : DOCTOR_NOTE,
		   line, detail,
		   !pages || pages >= 16384 || exempt
			   ? ""
			   : "sysctl -w fs.pipe-user-pages-soft=16384, or pipes shrink to one page");
}

/* The quota of one cgroup directory in CPUs, 0 if it has none. v2: "max 100000" or "150000 100000". */
static double quota_at(const char *dir)
{
	char path[640], line[64], period_line[64];
	double quota, period;

	snprintf(path, sizeof(path), "%s/cpu.max", dir);
	if (doctor_read_line(path, line, sizeof(line)))
		return sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : 0;
	snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", dir);
	if (!doctor_read_line(path, line, sizeof(line)))
		return 0;
	snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", dir);
	if (!doctor_read_line(path, period_line, sizeof(period_line)))
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
	char value[32], detail[160];

	if (set && sched_getaffinity(0, size, set) == 0)
		allowed = CPU_COUNT_S(size, set);
	if (set)
		CPU_FREE(set);
	usable = quota > 0 && quota < (double)allowed ? quota : (double)allowed;
	snprintf(value, sizeof(value), "%.3g", usable);
	if (quota > 0)
		snprintf(detail, sizeof(detail), "%ld online, %ld allowed by affinity, cgroup quota %.3g", online,
			 allowed, quota);
	else
		snprintf(detail, sizeof(detail), "%ld online, %ld allowed by affinity, no cgroup quota", online,
			 allowed);
	if (usable < 2)
		doctor_say(d, section, "cpus", DOCTOR_WARN, value, detail,
			   "give the process at least two CPUs: sender and receiver of a host cannot run at once");
	else
		doctor_say(d, section, "cpus", DOCTOR_OK, value, detail, "");
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
