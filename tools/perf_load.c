#include "perf_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"

/* Time is counted in ticks of mostly 10 ms, for each CPU: in less than this they say too little. */
#define SHORTEST_S 0.2
/* From these shares of all CPUs on. A CPU that is stolen stops a thread that spins, and its peer with it; one that
 * others use is mostly taken when nothing of ours wants it. */
#define OTHERS_SHARE 0.2
#define STEAL_SHARE 0.05

enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, FIELDS };

/* Interrupts are left out of busy: on some kernels they count as time of the process that they interrupt, and most of
 * them are the network that is measured. Guests are within user and nice. */
static void add_cpu(const char *fields, double hz, struct perf_cpu_times *ret)
{
	unsigned long long v[FIELDS] = {0};
	char *end;

	for (int i = 0; i < FIELDS; i++) {
		v[i] = strtoull(fields, &end, 10);
		if (end == fields)
			break; /* an old kernel has fewer */
		fields = end;
	}
	ret->busy += (double)(v[USER] + v[NICE] + v[SYSTEM]) / hz;
	ret->steal += (double)v[STEAL] / hz;
	ret->cpus++;
}

void perf_load_parse(const char *stat, const cpu_set_t *cpus, long hz, struct perf_cpu_times *ret)
{
	ret->busy = ret->steal = 0;
	ret->cpus = 0;
	for (const char *line = stat; line && strncmp(line, "cpu", 3) == 0; line = strchr(line, '\n'), line += !!line) {
		char *fields;
		unsigned long cpu = strtoul(line + 3, &fields, 10);

		/* The first line is the sum of all. */
		if (fields != line + 3 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, cpus))
			add_cpu(fields, (double)hz, ret);
	}
}

/* Owned by the caller; NULL: it cannot be read. The lines of CPUs come first, of some hundred bytes each. */
static char *read_stat(void)
{
	enum { MOST = 1 << 20 };
	FILE *f = fopen("/proc/stat", "re");
	char *text = f ? malloc(MOST) : NULL;

	if (text)
		text[fread(text, 1, MOST - 1, f)] = 0;
	if (f)
		fclose(f);
	return text;
}

static double cpu_seconds(int who)
{
	struct rusage u;

	getrusage(who, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

double perf_load_cpu_seconds(void)
{
	return cpu_seconds(RUSAGE_SELF);
}

void perf_load_read(struct perf_cpu_times *ret)
{
	char *stat = read_stat();
	cpu_set_t cpus;

	*ret = (struct perf_cpu_times){.cpus = 0};
	if (stat && sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		perf_load_parse(stat, &cpus, sysconf(_SC_CLK_TCK), ret);
	ret->ours = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN);
	ret->wall = (double)gantry_now_ns() / 1e9;
	free(stat);
}

struct perf_load perf_load_between(const struct perf_cpu_times *from, const struct perf_cpu_times *to)
{
	struct perf_load load = {.cpus = to->cpus, .others = NAN, .steal = NAN};
	double wall = to->wall - from->wall;

	if (!from->cpus || from->cpus != to->cpus || wall < SHORTEST_S)
		return load;
	/* Both are sums of many roundings: the difference can be a little below 0. */
	load.others = fmax(0, (to->busy - from->busy) - (to->ours - from->ours)) / wall;
	load.steal = fmax(0, to->steal - from->steal) / wall;
	return load;
}

int perf_load_warning(const struct perf_load *load, char *buf, size_t len)
{
	const int others = load->others >= OTHERS_SHARE * load->cpus, steal = load->steal >= STEAL_SHARE * load->cpus;
	char cpus[32];

	buf[0] = 0;
	if (!others && !steal)
		return 0;
	snprintf(cpus, sizeof(cpus), "of %d CPU%s", load->cpus, load->cpus == 1 ? "" : "s");
	if (others && steal)
		snprintf(buf, len, "other processes used %.1f and the hypervisor took %.1f %s", load->others,
			 load->steal, cpus);
	else
		snprintf(buf, len, "%s %.1f %s", others ? "other processes used" : "the hypervisor took",
			 others ? load->others : load->steal, cpus);
	snprintf(buf + strlen(buf), len - strlen(buf), " while this was measured: the figures mean little");
	return 1;
}
