/*
 * What else the machine did while something was measured. Other processes on the CPUs of a measurement, or a hypervisor
 * that takes them away (steal), make its figures a property of the neighbours.
 */
#ifndef GANTRY_TOOLS_PERF_LOAD_H
#define GANTRY_TOOLS_PERF_LOAD_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

/* A reading. CPU seconds since boot, of the CPUs that this process may use. */
struct perf_cpu_times {
	double busy, steal; /* busy: by processes, whoever they belong to */
	double ours;	    /* by this process and by children that it has waited for */
	double wall;
	int cpus; /* 0: nothing could be read */
};

/* CPUs' worth of time between two readings; NAN: not known. */
struct perf_load {
	int cpus;
	double others, steal;
};

/* The text of /proc/stat; cpus: those that count; hz: ticks per second. Fills in busy, steal and cpus. */
void perf_load_parse(const char *stat, const cpu_set_t *cpus, long hz, struct perf_cpu_times *ret);
void perf_load_read(struct perf_cpu_times *ret);
/* Of the calling process so far. Ranks of one measurement that are on this machine (gantry_host_id) are ours, too. */
double perf_load_cpu_seconds(void);
struct perf_load perf_load_between(const struct perf_cpu_times *from, const struct perf_cpu_times *to);

/* 1: too much for figures to mean anything, and buf says so; else 0 and "". */
int perf_load_warning(const struct perf_load *load, char *buf, size_t len);

#endif
