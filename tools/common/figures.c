/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "common/figures.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include "base/log.h"
#include "base/text.h"
#include "kernels/pattern.h"

size_t perf_sizes(uint64_t begin, uint64_t end, uint64_t factor, uint64_t *ret_sizes, size_t max)
{
	size_t n = 0;

	for (uint64_t s = begin; s <= end && n < max; s *= factor) {
		ret_sizes[n++] = s;
		if (s > end / factor)
			break;
	}
	return n;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double perf_median(double *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (isnan(v[i]))
			return NAN;
	if (!n)
		return NAN;
	qsort(v, n, sizeof(*v), compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct perf_spread perf_spread_of(double *v, size_t n)
{
	struct perf_spread s = {NAN, perf_median(v, n), NAN};

	if (!isnan(s.median)) {
		s.min = v[0];
		s.max = v[n - 1];
	}
	return s;
}

struct perf_spread perf_spread_scale(struct perf_spread s, double factor)
{
	return (struct perf_spread){s.min * factor, s.median * factor, s.max * factor};
}

uint64_t perf_next_iters(uint64_t iters, uint64_t ns, uint64_t target_ns, uint64_t min, uint64_t max)
{
	double want = (double)iters * (double)target_ns / (double)(ns ? ns : 1);

	if (want > 8.0 * (double)iters)
		want = 8.0 * (double)iters;
	if (want < (double)min)
		return min;
	return want > (double)max ? max : (uint64_t)want;
}

static uint64_t differing(const void *a, const void *b, size_t n)
{
	const unsigned char *x = a, *y = b;
	uint64_t wrong = 0;

	for (size_t i = 0; i < n; i++)
		wrong += x[i] != y[i];
	return wrong;
}

void perf_fill(void *p, size_t size, uint64_t seq)
{
	uint64_t seed = gantry_pattern_seed(size, seq), word;
	unsigned char *to = p;
	size_t k, words = size / 8;

	for (k = 0; k < words; k++) {
		word = gantry_pattern_word(seed, k);
		memcpy(to + 8 * k, &word, 8);
	}
	word = gantry_pattern_word(seed, k);
	memcpy(to + 8 * k, &word, size % 8);
}

uint64_t perf_check(const void *p, size_t size, uint64_t seq)
{
	uint64_t seed = gantry_pattern_seed(size, seq), word, got, wrong = 0;
	const unsigned char *from = p;
	size_t k, words = size / 8;

	for (k = 0; k < words; k++) {
		word = gantry_pattern_word(seed, k);
		memcpy(&got, from + 8 * k, 8);
		if (got != word)
			wrong += differing(&got, &word, 8);
	}
	word = gantry_pattern_word(seed, k);
	return wrong + differing(from + 8 * k, &word, size % 8);
}

void perf_stamp(void *p, size_t size, uint64_t seq)
{
	uint64_t first = gantry_pattern_seed(size, seq), last = ~first;

	memcpy(p, &first, size < 8 ? size : 8);
	if (size >= 16)
		memcpy((char *)p + size - 8, &last, 8);
}

uint64_t perf_stamp_check(const void *p, size_t size, uint64_t seq)
{
	uint64_t first = gantry_pattern_seed(size, seq), last = ~first, wrong;

	wrong = differing(p, &first, size < 8 ? size : 8);
	if (size >= 16)
		wrong += differing((const char *)p + size - 8, &last, 8);
	return wrong;
}

static uint64_t first_difference(const void *a, const void *b, size_t n)
{
	const unsigned char *x = a, *y = b;
	uint64_t i = 0;

	while (i < n && x[i] == y[i])
		i++;
	return i;
}

uint64_t perf_first_wrong(const void *p, size_t size, uint64_t seq)
{
	uint64_t seed = gantry_pattern_seed(size, seq), word;

	for (size_t at = 0; at < size; at += 8) {
		size_t n = size - at < 8 ? size - at : 8;
		uint64_t i;

		word = gantry_pattern_word(seed, at / 8);
		i = first_difference((const char *)p + at, &word, n);
		if (i < n)
			return at + i;
	}
	return size;
}

uint64_t perf_stamp_first_wrong(const void *p, size_t size, uint64_t seq)
{
	uint64_t first = gantry_pattern_seed(size, seq), last = ~first, n = size < 8 ? size : 8, i;

	i = first_difference(p, &first, n);
	if (i < n || size < 16)
		return i < n ? i : size;
	return size - 8 + first_difference((const char *)p + size - 8, &last, 8);
}

/* The value of the first line of /proc/cpuinfo that starts with key, or "". */
static void cpuinfo(const char *key, char *buf, size_t len)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256];

	buf[0] = 0;
	while (f && !buf[0] && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (strncmp(line, key, strlen(key)) == 0 && colon)
			snprintf(buf, len, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
	}
	if (f)
		fclose(f);
}

/* Of the whole machine, in bytes; 0: not known. */
static uint64_t memory_available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kib = 0;
	char line[256];

	while (f && !kib && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
			kib = 0;
	if (f)
		fclose(f);
	return (uint64_t)kib << 10;
}

int perf_memory_fits(int ranks, double each, char *why, size_t len)
{
	uint64_t available = memory_available();
	double all = each * ranks;

	if (!available || all <= (double)available)
		return 1;
	snprintf(why, len, "the buffers of %s take %s, and this machine has %s available: choose a smaller -e",
		 COUNT_TEXT(ranks, "rank"), SIZE_TEXT(all < 1e19 ? (uint64_t)all : UINT64_MAX), SIZE_TEXT(available));
	return 0;
}

int perf_memory_check(const char *op, int ranks, double each)
{
	char why[256];

	if (perf_memory_fits(ranks, each, why, sizeof(why)))
		return 0;
	fprintf(stderr, "gantry perf %s: %s\n", op, why);
	return -1;
}

void *perf_map(size_t size, int huge)
{
	enum { PAGE = 4096 };
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	if (huge && madvise(p, size, MADV_HUGEPAGE))
		LOG_DEBUG(TOOL, "no huge pages: %s", strerror(errno));
	for (size_t at = 0; at < size; at += PAGE)
		p[at] = 1;
	return p;
}

/* ARM kernels give numbers in place of a model name; these are the servers one meets. */
static const struct {
	unsigned part;
	const char *name;
} arm_parts[] = {
	{0xd0c, "Neoverse-N1"},
	{0xd40, "Neoverse-V1"},
	{0xd49, "Neoverse-N2"},
	{0xd4f, "Neoverse-V2"},
};

void perf_machine(char *buf, size_t len)
{
	char model[128], part[32];
	struct utsname u;
	cpu_set_t cpus;
	int n = 0;

	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		n = CPU_COUNT(&cpus);
	cpuinfo("model name", model, sizeof(model));
	if (!model[0]) {
		cpuinfo("CPU part", part, sizeof(part));
		snprintf(model, sizeof(model), "CPU part %s", part[0] ? part : "unknown");
		for (size_t i = 0; i < sizeof(arm_parts) / sizeof(arm_parts[0]); i++)
			if (part[0] && strtoul(part, NULL, 16) == arm_parts[i].part)
				snprintf(model, sizeof(model), "%s", arm_parts[i].name);
	}
	uname(&u);
	snprintf(buf, len, "%s, %d x %s, %s %s", u.machine, n, model, u.sysname, u.release);
}
