/* SPDX-License-Identifier: Apache-2.0 */
/* See peer.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "peer.h"

/* LIFE_S: a library that hangs in a call must not hang the benchmark. */
enum { SPINS = 2000, CALLS_MIN = 7, WARM_CALLS = 3, LIFE_S = 200 };
#define LIMIT_NS ((uint64_t)60000000000)
#define PATTERN 61 /* a prime: neighbouring blocks of any power of two differ */

static const char *const op_names[PEER_OPS] = {
	[PEER_ALL_REDUCE] = "all_reduce", [PEER_ALL_GATHER] = "all_gather", [PEER_REDUCE_SCATTER] = "reduce_scatter",
	[PEER_ALL_TO_ALL] = "all_to_all", [PEER_BROADCAST] = "broadcast",
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- options ---- */

static uint64_t size_of(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	return *end == 'k' || *end == 'K' ? n << 10 : *end == 'M' ? n << 20 : *end == 'G' ? n << 30 : n;
}

static int take_option(struct peer *p, int letter, const char *value)
{
	switch (letter) {
	case 'b':
		p->begin = size_of(value);
		break;
	case 'e':
		p->end = size_of(value);
		break;
	case 'f':
		p->factor = size_of(value);
		break;
	case 'n':
		p->fixed_calls = size_of(value);
		break;
	case 's':
		p->seconds = atof(value);
		break;
	case 'r':
		p->ranks = atoi(value);
		break;
	case 'a':
		p->algo = value;
		break;
	case 't':
		p->transport = value;
		break;
	default:
		return -1;
	}
	return 0;
}

int peer_options(struct peer *p, int argc, char **argv)
{
	int c;

	p->op = PEER_OPS;
	for (int i = 0; argc > 1 && i < PEER_OPS; i++)
		if (strcmp(argv[1], op_names[i]) == 0)
			p->op = (enum peer_op)i;
	p->begin = p->end = 8;
	p->factor = 4;
	p->seconds = 0.5;
	p->ranks = 2;
	p->algo = "";
	p->transport = "net";
	for (optind = 2; p->op < PEER_OPS && (c = getopt(argc, argv, "b:e:f:n:s:r:a:t:")) != -1;)
		if (take_option(p, c, optarg))
			p->op = PEER_OPS;
	if (p->op == PEER_OPS || p->factor < 2 || p->end < p->begin || p->fixed_calls > PEER_CALLS_MAX ||
	    p->ranks < 1 || p->ranks > PEER_RANKS_MAX) {
		fprintf(stderr,
			"usage: %s all_reduce|all_gather|reduce_scatter|all_to_all|broadcast [-b SIZE] [-e SIZE]\n"
			"  [-f FACTOR] [-n CALLS] [-s SECONDS] [-r RANKS] [-a ALGORITHM] [-t LABEL]\n",
			argv[0]);
		return -1;
	}
	return 0;
}

int peer_map(struct peer *p, const char *path)
{
	int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	void *m = MAP_FAILED;

	if (!path)
		m = mmap(NULL, sizeof(*p->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	else if (fd >= 0 && ftruncate(fd, sizeof(*p->shared)) == 0)
		m = mmap(NULL, sizeof(*p->shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED)
		fprintf(stderr, "%s: memory for the ranks to meet in: %s\n", p->library, strerror(errno));
	if (fd >= 0)
		close(fd);
	p->shared = m == MAP_FAILED ? NULL : m;
	return p->shared ? 0 : -1;
}

/* ---- meeting ---- */

/* Ends the process when a rank does not come. */
static void wait_met(struct peer *p, uint64_t before, int poll)
{
	uint64_t since = 0;

	for (int spins = 0; __atomic_load_n(&p->shared->met, __ATOMIC_ACQUIRE) == before; spins++) {
		if (poll && p->poll)
			p->poll(p);
		if (spins < SPINS)
			continue;
		sched_yield();
		if (since == 0)
			since = now_ns();
		if (now_ns() - since > LIMIT_NS) {
			fprintf(stderr, "%s: rank %d waits in vain for the others\n", p->library, p->rank);
			_exit(1);
		}
	}
}

static void meet_once(struct peer *p, int poll)
{
	uint64_t before = __atomic_load_n(&p->shared->met, __ATOMIC_RELAXED);

	if (__atomic_add_fetch(&p->shared->arrived, 1, __ATOMIC_ACQ_REL) < (uint64_t)p->ranks) {
		wait_met(p, before, poll);
		return;
	}
	__atomic_store_n(&p->shared->arrived, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&p->shared->met, before + 1, __ATOMIC_RELEASE);
}

/* First until all calls have returned, with the library polled; then again without, so that ranks leave together. */
void peer_meet(struct peer *p)
{
	meet_once(p, 1);
	meet_once(p, 0);
}

/* ---- buffers and their check ---- */

/* Small whole numbers: sums are exact in any order. */
static float input(int rank, size_t i)
{
	return (float)(i % PATTERN + 3 * (size_t)rank);
}

static size_t recv_count(const struct peer *p)
{
	return p->op == PEER_REDUCE_SCATTER ? p->per_rank : p->count;
}

static float expected(const struct peer *p, size_t i)
{
	size_t at = p->op == PEER_REDUCE_SCATTER ? (size_t)p->rank * p->per_rank + i : i;
	float sum = 0;

	switch (p->op) {
	case PEER_ALL_GATHER:
		return input((int)(i / p->per_rank), i % p->per_rank);
	case PEER_ALL_TO_ALL:
		return input((int)(i / p->per_rank), (size_t)p->rank * p->per_rank + i % p->per_rank);
	case PEER_BROADCAST:
		return input(0, i);
	default:
		for (int r = 0; r < p->ranks; r++)
			sum += input(r, at);
		return sum;
	}
}

/* A broadcast is in place, as in MPI and gloo: what it carries is the root's receive buffer. */
static void fill(struct peer *p)
{
	int keeps = p->in_place || (p->op == PEER_BROADCAST && p->rank == 0);

	for (size_t i = 0; i < p->count; i++) {
		p->send[i] = input(p->rank, i);
		p->recv[i] = keeps ? input(p->rank, i) : -1;
	}
}

static uint64_t count_wrong(const struct peer *p)
{
	uint64_t wrong = 0;

	for (size_t i = 0; i < recv_count(p); i++)
		wrong += p->recv[i] != expected(p, i);
	return wrong;
}

static float *take_buffer(size_t count)
{
	size_t bytes = (count * sizeof(float) + 4095) & ~(size_t)4095;
	void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		return NULL;
	/* The kernel gives huge pages to programs that allocate so much, where it may. */
	madvise(m, bytes, MADV_HUGEPAGE);
	return m;
}

static void drop_buffer(float *m, size_t count)
{
	if (m)
		munmap(m, (count * sizeof(float) + 4095) & ~(size_t)4095);
}

/* ---- one size ---- */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Times p->shared->calls calls; 0 or -1. */
static int time_calls(struct peer *p)
{
	uint64_t n = p->shared->calls;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t start;

		peer_meet(p);
		start = now_ns();
		if (p->call(p))
			return -1;
		p->shared->ns[p->rank][i] = now_ns() - start;
	}
	peer_meet(p);
	return 0;
}

/* Back to back, as nccl-tests does; the meeting at the end is the caller's. */
static int time_loop(struct peer *p)
{
	uint64_t start;

	peer_meet(p);
	start = now_ns();
	for (uint64_t i = 0; i < p->shared->calls; i++)
		if (p->call(p))
			return -1;
	p->shared->loop_ns[p->rank] = now_ns() - start;
	peer_meet(p);
	return 0;
}

/* Every rank's row becomes that of the slowest rank, in rank 0's row and in order. */
static void merge(struct peer *p)
{
	for (int r = 1; r < p->ranks; r++) {
		for (uint64_t i = 0; i < p->shared->calls; i++)
			if (p->shared->ns[r][i] > p->shared->ns[0][i])
				p->shared->ns[0][i] = p->shared->ns[r][i];
		if (p->shared->loop_ns[r] > p->shared->loop_ns[0])
			p->shared->loop_ns[0] = p->shared->loop_ns[r];
	}
	qsort(p->shared->ns[0], p->shared->calls, sizeof(uint64_t), by_value);
}

static void choose_calls(struct peer *p)
{
	double one, n;

	merge(p);
	one = (double)p->shared->ns[0][p->shared->calls / 2] / 1e9;
	n = p->seconds / one;
	p->shared->calls = n < CALLS_MIN ? CALLS_MIN : n > PEER_CALLS_MAX ? PEER_CALLS_MAX : (uint64_t)n;
	if (p->fixed_calls)
		p->shared->calls = p->fixed_calls;
}

static int measure(struct peer *p)
{
	/* The first calls connect and touch memory; the next ones say how long a call takes. */
	for (int pass = 0; pass < 2; pass++) {
		if (p->rank == 0)
			p->shared->calls = WARM_CALLS;
		peer_meet(p);
		if (time_calls(p))
			return -1;
	}
	if (p->rank == 0)
		choose_calls(p);
	peer_meet(p);
	if (time_loop(p) || time_calls(p))
		return -1;
	/* Not one of those that were timed, so that nothing in the buffers is left from them. */
	fill(p);
	peer_meet(p);
	if (p->call(p))
		return -1;
	p->shared->wrong[p->rank] = count_wrong(p);
	peer_meet(p);
	return 0;
}

static uint64_t print_row(struct peer *p)
{
	static const struct {
		const char *key;
		int percent;
	} shares[] = {{"min_us", 0}, {"p25_us", 25}, {"p75_us", 75}, {"p99_us", 99}};
	uint64_t n = p->shared->calls, wrong = 0, *ns = p->shared->ns[0], bytes = p->count * sizeof(float);
	double share = p->op == PEER_BROADCAST ? 1 : (double)(p->ranks - 1) / p->ranks, us;

	merge(p);
	if (p->op == PEER_ALL_REDUCE)
		share *= 2;
	for (int r = 0; r < p->ranks; r++)
		wrong += p->shared->wrong[r];
	us = (double)(ns[(n - 1) / 2] + ns[n / 2]) / 2e3;
	printf("{\"library\": \"%s\", \"version\": \"%s\", \"op\": \"%s\", \"transport\": \"%s\", \"ranks\": %d, "
	       "\"algo\": \"%s\", \"type\": \"float\", \"bytes\": %" PRIu64 ", \"iters\": %" PRIu64
	       ", \"time_us\": %.3f, \"algbw_gbs\": %.5g, \"busbw_gbs\": %.5g",
	       p->library, p->version, op_names[p->op], p->transport, p->ranks, p->algo, bytes, n, us,
	       (double)bytes / us / 1e3, (double)bytes / us / 1e3 * share);
	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++)
		printf(", \"%s\": %.3f", shares[i].key, (double)ns[(n - 1) * (uint64_t)shares[i].percent / 100] / 1e3);
	printf(", \"loop_us\": %.3f, \"wrong\": %" PRIu64 "}\n", (double)p->shared->loop_ns[0] / (double)n / 1e3,
	       wrong);
	fflush(stdout);
	return wrong;
}

static int run_size(struct peer *p, uint64_t bytes)
{
	int bad = 0, ready = 0;

	p->per_rank = (size_t)bytes / sizeof(float) / (size_t)p->ranks;
	p->count = p->per_rank * (size_t)p->ranks;
	if (p->op == PEER_ALL_REDUCE || p->op == PEER_BROADCAST)
		p->count = (size_t)bytes / sizeof(float);
	if (p->count == 0)
		return 0;
	p->send = take_buffer(p->count);
	p->recv = take_buffer(p->count);
	if (!p->send || !p->recv) {
		fprintf(stderr, "%s: no memory for %" PRIu64 " bytes\n", p->library, bytes);
		bad = 1;
	}
	if (!bad) {
		ready = !p->prepare || p->prepare(p) == 0;
		fill(p);
		bad = !ready || measure(p);
	}
	if (!bad && p->rank == 0)
		bad = print_row(p) != 0;
	if (ready && p->release)
		p->release(p);
	drop_buffer(p->send, p->count);
	drop_buffer(p->recv, p->count);
	/* Rank 0 has read everybody's row. */
	if (!bad)
		peer_meet(p);
	return bad;
}

int peer_run(struct peer *p)
{
	int bad = 0;

	alarm(LIFE_S);
	for (uint64_t bytes = p->begin; !bad && bytes <= p->end; bytes *= p->factor)
		bad = run_size(p, bytes);
	return bad;
}
