#include "perf_baseline.h"

#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"

enum { PAGE = 4096, SPINS_BEFORE_YIELD = 1 << 16, CPUS_MAX = 1024 };

static char *map(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size, MADV_HUGEPAGE); /* without them it is slower, not wrong */
	for (size_t at = 0; at < size; at += PAGE)
		p[at] = 1;
	return p;
}

int perf_memcpy_open(struct perf_memcpy *m, size_t largest)
{
	m->size = largest + PAGE;
	m->from = map(m->size);
	m->to = map(m->size);
	if (m->from && m->to)
		return 0;
	perf_memcpy_close(m);
	return -1;
}

void perf_memcpy_close(struct perf_memcpy *m)
{
	if (m->from)
		munmap(m->from, m->size);
	if (m->to)
		munmap(m->to, m->size);
	*m = (struct perf_memcpy){.size = 0};
}

/* Not inlined and the result escapes: every copy is made. */
static __attribute__((noinline)) void copy_times(char *to, const char *from, size_t size, uint64_t n)
{
	while (n--) {
		memcpy(to, from, size);
		__asm__ volatile("" : : "r"(to), "r"(from) : "memory");
	}
}

double perf_memcpy_gbs(const struct perf_memcpy *m, size_t size, uint64_t target_ns)
{
	uint64_t n = 1, start, ns;

	if (!size || !m->from)
		return NAN;
	copy_times(m->to, m->from, size, 1);
	for (;;) {
		start = gantry_now_ns();
		copy_times(m->to, m->from, size, n);
		ns = gantry_now_ns() - start;
		if (ns >= target_ns || n > (uint64_t)1 << 40)
			return (double)size * (double)n / (double)(ns ? ns : 1);
		/* Straight to the target once the clock can tell. */
		n = ns > target_ns / 50 ? (uint64_t)((double)n * 1.2 * (double)target_ns / (double)ns) + 1 : n * 8;
	}
}

/* No pause: what is measured is the wire between the CPUs. If the other side has lost its CPU it may have ours. */
static void await(const uint64_t *word, uint64_t value)
{
	for (uint64_t n = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; n++)
		if (n % SPINS_BEFORE_YIELD == 0)
			sched_yield();
}

static double pingpong(struct perf_flags *f, int side, uint64_t n)
{
	uint64_t mine = f->side[side].word, start = 0;

	/* Once round first: both are here. */
	for (uint64_t i = 0; i <= n; i++) {
		if (i == 1)
			start = gantry_now_ns();
		if (side == 1)
			await(&f->side[0].word, mine + 1);
		__atomic_store_n(&f->side[side].word, ++mine, __ATOMIC_RELEASE);
		if (side == 0)
			await(&f->side[1].word, mine);
	}
	return n ? (double)(gantry_now_ns() - start) / (double)n / 2e3 : NAN;
}

/* The nth of them. */
static int nth_cpu(const cpu_set_t *all, int nth)
{
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, all) && nth-- == 0)
			return cpu;
	return -1;
}

/* The CPUs of the tool that forked this rank: the rank itself may keep to its part of them. */
static int all_cpus(cpu_set_t *ret_all)
{
	return sched_getaffinity(getppid(), sizeof(*ret_all), ret_all) < 0 ? 0 : CPU_COUNT(ret_all);
}

struct perf_flag_times perf_flag_pingpong(struct perf_flags *flags, int side, uint64_t n)
{
	struct perf_flag_times t = {NAN, NAN, NAN};
	cpu_set_t mine, all, one;

	if (sched_getaffinity(0, sizeof(mine), &mine) < 0 || all_cpus(&all) < 2)
		return t;
	sched_setaffinity(0, sizeof(all), &all);
	t.unpinned = pingpong(flags, side, n);
	CPU_ZERO(&one);
	CPU_SET(nth_cpu(&all, side), &one);
	sched_setaffinity(0, sizeof(one), &one);
	t.pinned = pingpong(flags, side, n);
	sched_setaffinity(0, sizeof(mine), &mine);
	t.best = t.pinned < t.unpinned ? t.pinned : t.unpinned;
	return t;
}
