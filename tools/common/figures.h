/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of measurements, for perf and whatever shows or checks its figures: sizes, medians, iteration counts, and the bytes that messages carry. */
#ifndef GANTRY_TOOLS_FIGURES_H
#define GANTRY_TOOLS_FIGURES_H

#include <stddef.h>
#include <stdint.h>

/* The sizes begin, begin*factor, ... up to end; returns how many, at most max. begin and factor are at least 1 and 2.
 */
size_t perf_sizes(uint64_t begin, uint64_t end, uint64_t factor, uint64_t *ret_sizes, size_t max);

/* Sorts v. NaN when n is 0 or any value is NaN. */
double perf_median(double *v, size_t n);

/* Of some repeats. NAN: not measured. */
struct perf_spread {
	double min, median, max;
};
/* Sorts v. All of it NaN when n is 0 or any value is NaN. */
struct perf_spread perf_spread_of(double *v, size_t n);
struct perf_spread perf_spread_scale(struct perf_spread s, double factor); /* factor > 0 */

/* How often to repeat what took ns for iters repetitions, so that it takes about target_ns. Grows at most eightfold, so
 * that one bad sample cannot make the next round endless; stays within min and max. */
uint64_t perf_next_iters(uint64_t iters, uint64_t ns, uint64_t target_ns, uint64_t min, uint64_t max);

/*
 * The contents of message number seq: 8-byte words of a mixed counter that
 * depend on seq, on the size and on the position, so that a message in the wrong
 * place, a stale one and a shifted one are all seen. perf_check returns the
 * number of wrong bytes.
 */
void perf_fill(void *p, size_t size, uint64_t seq);
uint64_t perf_check(const void *p, size_t size, uint64_t seq);

/* Where the first wrong byte is; size if there is none. */
uint64_t perf_first_wrong(const void *p, size_t size, uint64_t seq);

/* The cheap form for timed phases: only the first and the last 8 bytes (less if the message is shorter). */
void perf_stamp(void *p, size_t size, uint64_t seq);
uint64_t perf_stamp_check(const void *p, size_t size, uint64_t seq);
uint64_t perf_stamp_first_wrong(const void *p, size_t size, uint64_t seq);

/* -1, after a line on stderr: this machine has not the memory for so many bytes for each of the ranks. To begin would
 * be to be killed, or to have others killed. */
int perf_memory_check(const char *op, int ranks, double each);
/* The same without the line: 1, or 0 and the sentence. */
int perf_memory_fits(int ranks, double each, char *why, size_t len);

/* Private memory, as pinned buffers mostly are: contiguous, on huge pages where the system has them and `huge` is not 0;
 * every page is there. NULL, with errno. munmap ends it. */
void *perf_map(size_t size, int huge);

/* "aarch64, 2 x Neoverse-N1, Linux 6.1": architecture, CPUs this process may use, their model, kernel. */
void perf_machine(char *buf, size_t len);

#endif
