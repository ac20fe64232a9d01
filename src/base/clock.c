/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of the CPU's counter: read where the CPU states it, measured where it does not. */
#include "base/clock.h"

#include "base/atomic.h"

/* Ticks per nanosecond as a 32.32 fixed-point number; 0 until first asked for. */
static uint64_t ticks_per_ns_fixed;

enum { FIXED_SHIFT = 32 };

static uint64_t fixed_rate(uint64_t ticks, uint64_t ns)
{
	return (uint64_t)((((unsigned __int128)ticks << FIXED_SHIFT) + ns / 2) / ns);
}

/* Of several tries the one in which the least time passed: a thread may lose its CPU between the two reads. */
void gantry_clock_read(uint64_t *ret_ticks, uint64_t *ret_ns)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 9; i++) {
		uint64_t before = gantry_ticks(), ns = gantry_now_ns(), width = gantry_ticks() - before;

		if (width >= best)
			continue;
		best = width;
		*ret_ticks = before + width / 2;
		*ret_ns = ns;
	}
}

#if defined(__aarch64__)

static uint64_t find_rate(void)
{
	uint64_t hz;

	__asm__("mrs %0, cntfrq_el0" : "=r"(hz));
	return fixed_rate(hz, 1000000000u);
}

#elif defined(__x86_64__)

/* 2 ms against an uncertainty of some 50 ns: good to 1 in 10,000, far better than pacing needs. */
static uint64_t find_rate(void)
{
	uint64_t ticks0 = 0, ns0 = 0, ticks1 = 0, ns1 = 0;

	gantry_clock_read(&ticks0, &ns0);
	do {
		gantry_cpu_pause();
	} while (gantry_now_ns() - ns0 < 2000000u);
	gantry_clock_read(&ticks1, &ns1);
	return fixed_rate(ticks1 - ticks0, ns1 - ns0);
}

#else

static uint64_t find_rate(void)
{
	return fixed_rate(1, 1); /* gantry_ticks is gantry_now_ns */
}

#endif

uint64_t gantry_ticks_of_ns(uint64_t ns)
{
	/* Threads that meet here for the first time find the same rate twice: no lock, no harm. */
	uint64_t rate = load_relaxed(&ticks_per_ns_fixed);
	unsigned __int128 ticks;

	if (!rate) {
		rate = find_rate();
		store_relaxed(&ticks_per_ns_fixed, rate);
	}
	ticks = ((unsigned __int128)ns * rate) >> FIXED_SHIFT;
	return ticks > UINT64_MAX ? UINT64_MAX : (uint64_t)ticks;
}
