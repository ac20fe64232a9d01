/* What to compare with: how fast one core copies, and how long a bare flag takes from one CPU to another. */
#ifndef GANTRY_TOOLS_PERF_BASELINE_H
#define GANTRY_TOOLS_PERF_BASELINE_H

#include <stddef.h>
#include <stdint.h>

/* Two buffers, on huge pages where there are any. Zeroed is empty. */
struct perf_memcpy {
	char *from, *to; /* owned */
	size_t size;
};
/* -1: no memory. */
int perf_memcpy_open(struct perf_memcpy *m, size_t largest);
void perf_memcpy_close(struct perf_memcpy *m);
/* GB/s of one core between two buffers of `size` bytes, over about target_ns; NAN for size 0. */
double perf_memcpy_gbs(const struct perf_memcpy *m, size_t size, uint64_t target_ns);

/* Two words, each on lines of its own, in memory that both sides see. Zeroed at the beginning. */
struct perf_flags {
	struct {
		uint64_t word __attribute__((aligned(128))); /* written by that side (release), read by the other */
	} side[2];
	char pad[128];
};
/* Microseconds one way; NAN: not measured. */
struct perf_flag_times {
	double best, pinned, unpinned; /* best: the smaller of the two */
};
/*
 * Both sides call it at the same time, with the same n: side 0 stores, side 1 answers, n times; nothing but loads and
 * stores. Once with each side kept to a CPU of its own and once as the scheduler likes. NAN on one CPU: there the two
 * would take turns.
 */
struct perf_flag_times perf_flag_pingpong(struct perf_flags *flags, int side, uint64_t n);

#endif
