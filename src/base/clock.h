/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks. gantry_now_ns is monotonic and costs a vDSO call (20 to 40 ns);
 * gantry_ticks reads the CPU's own counter (a few ns) for pacing decisions
 * on the data path, where only differences of microseconds matter.
 */
#ifndef GANTRY_BASE_CLOCK_H
#define GANTRY_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t gantry_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t gantry_ticks(void)
{
#if defined(__aarch64__)
	uint64_t t;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#elif defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return gantry_now_ns();
#endif
}

/* Both clocks, as of one moment. */
void gantry_clock_read(uint64_t *ret_ticks, uint64_t *ret_ns);

/* Ticks in `ns` nanoseconds; measured once, on first use. */
uint64_t gantry_ticks_of_ns(uint64_t ns);
static inline double gantry_us_of_ticks(uint64_t ticks)
{
	return (double)ticks * 1e6 / (double)gantry_ticks_of_ns(1000000000);
}

static inline void gantry_cpu_pause(void)
{
#if defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#elif defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

#endif
