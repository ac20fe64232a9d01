/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One size: its bytes are checked, the number of iterations is found, and then repeats are timed and medians taken. The
 * baselines' repeats come between them, so that whatever else the machine does hits all of them alike.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "gantry/fifo.h"
#include "perf_sendrecv.h"
#include "perf_util.h"

#define REPEAT_NS 100000000u
#define MEMCPY_NS 20000000u
#define ITERS_MAX (1u << 20)
enum { FLAG_ROUNDS = 10000, PAGE = 4096, SPINS_BEFORE_YIELD = 1 << 16 };

/* Of all repeats of one size. */
struct series {
	double us[SR_REPEATS_MAX], memcpy_gbs[SR_REPEATS_MAX];
	double flag_pinned[SR_REPEATS_MAX], flag_unpinned[SR_REPEATS_MAX];
	struct gantry_comm_counters counters; /* of all ranks, over the timed iterations */
	char transport[32];
};

/* ---- arithmetic ---- */

/*
 * As nccl-tests: algbw is the size of an operation by its time, busbw what has to pass through the link of a rank. For
 * all pairs an operation moves nranks messages from each rank, one of which stays at home.
 */
void sr_bandwidth(enum sr_pattern pattern, int nranks, uint64_t bytes, double us, double *ret_alg, double *ret_bus)
{
	double gbs = us > 0 ? (double)bytes / us / 1e3 : 0;

	*ret_alg = pattern == SR_ALLTOALL ? gbs * nranks : gbs;
	*ret_bus = pattern == SR_ALLTOALL ? gbs * (nranks - 1) : gbs;
}

static void bandwidths(enum sr_pattern pattern, int nranks, uint64_t bytes, struct perf_spread us,
		       struct perf_spread *ret_alg, struct perf_spread *ret_bus)
{
	sr_bandwidth(pattern, nranks, bytes, us.max, &ret_alg->min, &ret_bus->min);
	sr_bandwidth(pattern, nranks, bytes, us.median, &ret_alg->median, &ret_bus->median);
	sr_bandwidth(pattern, nranks, bytes, us.min, &ret_alg->max, &ret_bus->max);
}

void sr_join(char *list, size_t len, const char *name)
{
	size_t n = strlen(name);

	if (!n)
		return;
	for (const char *p = list; *p; p += strcspn(p, "+"), p += *p == '+')
		if (strcspn(p, "+") == n && strncmp(p, name, n) == 0)
			return;
	snprintf(list + strlen(list), len - strlen(list), "%s%s", list[0] ? "+" : "", name);
}

void sr_mode_name(const struct gantry_comm_counters *c, char *buf, size_t len)
{
	/* The ones with fewer copies first. */
	static const enum gantry_mode order[] = {GANTRY_MODE_PTR, GANTRY_MODE_OFFSET, GANTRY_MODE_NORMAL};
	buf[0] = 0;
	for (int i = 0; i < GANTRY_MODES; i++)
		for (int p = 0; p < GANTRY_PROTOS; p++)
			if (c->steps[p][order[i]])
				sr_join(buf, len, gantry_trace_mode_names[order[i]]);
	sr_join(buf, len, buf[0] ? "" : "none");
}

void sr_proto_name(const struct gantry_comm_counters *c, char *buf, size_t len)
{
	buf[0] = 0;
	for (int p = 0; p < GANTRY_PROTOS; p++)
		for (int m = 0; m < GANTRY_MODES; m++)
			if (c->steps[p][m])
				sr_join(buf, len, gantry_trace_proto_names[p]);
	sr_join(buf, len, buf[0] ? "" : "none");
}

enum { WORDS = sizeof(struct gantry_comm_counters) / sizeof(uint64_t) };
_Static_assert(sizeof(struct gantry_comm_counters) % sizeof(uint64_t) == 0, "a size, and words");

static void change(struct gantry_comm_counters *c, const struct gantry_comm_counters *d, int sign)
{
	uint64_t a[WORDS], b[WORDS];

	memcpy(a, c, sizeof(a));
	memcpy(b, d, sizeof(b));
	for (size_t i = 1; i < WORDS; i++) /* the first is the size */
		a[i] += sign > 0 ? b[i] : -b[i];
	memcpy(c, a, sizeof(a));
}

void sr_counters_add(struct gantry_comm_counters *c, const struct gantry_comm_counters *d)
{
	change(c, d, 1);
}

void sr_counters_sub(struct gantry_comm_counters *c, const struct gantry_comm_counters *d)
{
	change(c, d, -1);
}

double sr_copies(uint64_t copied, uint64_t bytes)
{
	return bytes ? (double)copied / (double)bytes : NAN;
}

/* ---- what to compare with ---- */

int sr_memcpy_open(struct sr_memcpy *m, size_t largest)
{
	m->size = largest + PAGE;
	m->from = perf_map(m->size, 1);
	m->to = perf_map(m->size, 1);
	if (m->from && m->to)
		return 0;
	sr_memcpy_close(m);
	return -1;
}

void sr_memcpy_close(struct sr_memcpy *m)
{
	if (m->from)
		munmap(m->from, m->size);
	if (m->to)
		munmap(m->to, m->size);
	*m = (struct sr_memcpy){.size = 0};
}

/* Not inlined and the result escapes: every copy is made. */
static __attribute__((noinline)) void copy_times(char *to, const char *from, size_t size, uint64_t n)
{
	while (n--) {
		memcpy(to, from, size);
		__asm__ volatile("" : : "r"(to), "r"(from) : "memory");
	}
}

/* GB/s of one core between two buffers of `size` bytes, over about target_ns; NAN for size 0. */
static double memcpy_gbs(const struct sr_memcpy *m, size_t size, uint64_t target_ns)
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
	for (uint64_t n = 1; load_acquire(word) != value; n++)
		if (n % SPINS_BEFORE_YIELD == 0)
			sched_yield();
}

static double flag_pingpong(struct sr_flags *f, int side, uint64_t n)
{
	uint64_t mine = f->side[side].word, start = 0;

	/* Once round first: both are here. */
	for (uint64_t i = 0; i <= n; i++) {
		if (i == 1)
			start = gantry_now_ns();
		if (side == 1)
			await(&f->side[0].word, mine + 1);
		store_release(&f->side[side].word, ++mine);
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

/*
 * Both sides call it at the same time, with the same n: side 0 stores, side 1 answers, n times; nothing but loads and
 * stores. Once with each side kept to a CPU of its own and once as the scheduler likes. NAN on one CPU: there the two
 * would take turns.
 */
static struct sr_flag_times pass_flag(struct sr_flags *flags, int side, uint64_t n)
{
	struct sr_flag_times t = {NAN, NAN, NAN};
	cpu_set_t mine, all, one;

	if (sched_getaffinity(0, sizeof(mine), &mine) < 0 || all_cpus(&all) < 2)
		return t;
	sched_setaffinity(0, sizeof(all), &all);
	t.unpinned = flag_pingpong(flags, side, n);
	CPU_ZERO(&one);
	CPU_SET(nth_cpu(&all, side), &one);
	sched_setaffinity(0, sizeof(one), &one);
	t.pinned = flag_pingpong(flags, side, n);
	sched_setaffinity(0, sizeof(mine), &mine);
	t.best = t.pinned < t.unpinned ? t.pinned : t.unpinned;
	return t;
}

/* ---- measuring ---- */

/* The ways to this rank's peers. */
static void transports(const struct sr_rank *rk, char *buf, size_t len)
{
	buf[0] = 0;
	for (int i = 0; i < rk->nmsgs; i++)
		sr_join(buf, len,
			rk->msgs[i].peer == rk->rank ? "self" : gantry_comm_transport(rk->comm, rk->msgs[i].peer));
}

/* All ranks run n iterations; *ret_ns is the time of the slowest, on every rank. */
static gantry_result timed(struct sr_rank *rk, uint64_t bytes, uint64_t n, uint64_t *ret_ns)
{
	struct gantry_comm_counters before = GANTRY_COMM_COUNTERS_INIT;
	struct sr_sample s;
	uint64_t start;

	memset(&s, 0, sizeof(s));
	s.counters.struct_size = sizeof(s.counters);
	TRY_NOW(sr_sync(rk));
	gantry_comm_get_counters(rk->comm, &before);
	start = gantry_now_ns();
	if (rk->opts->pattern == SR_ECHO)
		TRY_NOW(sr_echo(rk, bytes, n));
	for (uint64_t i = 0; i < n && rk->opts->pattern != SR_ECHO; i++)
		TRY_NOW(sr_enqueue(rk, bytes));
	TRY_NOW(sr_finish(rk));
	s.ns = gantry_now_ns() - start;
	gantry_comm_get_counters(rk->comm, &s.counters);
	sr_counters_sub(&s.counters, &before);
	transports(rk, s.transport, sizeof(s.transport));
	TRY_NOW(sr_share(rk, &s));
	*ret_ns = 1;
	for (int i = 0; i < rk->nranks; i++)
		*ret_ns = sr_sample_of(rk, i)->ns > *ret_ns ? sr_sample_of(rk, i)->ns : *ret_ns;
	return GANTRY_OK;
}

/* All ranks come to the same count, because they see the same times. */
static gantry_result warm_up(struct sr_rank *rk, uint64_t bytes, uint64_t *ret_iters)
{
	const struct sr_opts *o = rk->opts;
	uint64_t n = o->warmup ? o->warmup : 1, ns;

	perf_phase(&rk->me->state, "warming up", bytes);
	for (int round = 0; round < 20; round++) {
		TRY_NOW(timed(rk, bytes, n, &ns));
		if (o->iters)
			break;
		n = perf_next_iters(n, ns, REPEAT_NS, 1, ITERS_MAX);
		if (ns >= REPEAT_NS / 8)
			break;
	}
	*ret_iters = o->iters ? o->iters : n;
	return GANTRY_OK;
}

/* Rank 0 alone copies; ranks 0 and 1 pass a flag, if they share memory. The others wait. */
static gantry_result baselines(struct sr_rank *rk, uint64_t bytes, struct series *se, int k)
{
	struct sr_flag_times flag = {NAN, NAN, NAN};

	perf_phase(&rk->me->state, "baselines", bytes);
	if (rk->rank == 0)
		se->memcpy_gbs[k] = memcpy_gbs(&rk->memcpy, bytes, MEMCPY_NS);
	TRY_NOW(sr_sync(rk));
	if (!rk->box && rk->nranks >= 2 && rk->rank < 2)
		sr_pin(rk, 0); /* it pins itself, and does not */
	if (!rk->box && rk->nranks >= 2 && rk->rank < 2)
		flag = pass_flag(&rk->shared->flags, rk->rank, FLAG_ROUNDS);
	sr_pin(rk, 1);
	se->flag_pinned[k] = flag.pinned;
	se->flag_unpinned[k] = flag.unpinned;
	perf_progress(&rk->me->state);
	return sr_sync(rk);
}

static gantry_result repeat(struct sr_rank *rk, uint64_t bytes, uint64_t iters, struct series *se, int k)
{
	uint64_t ns = 0;

	perf_phase(&rk->me->state, "timing", bytes);
	TRY_NOW(timed(rk, bytes, iters, &ns));
	se->us[k] = (double)ns / 1e3 / (double)iters / sr_messages(rk->opts);
	for (int i = 0; i < rk->nranks; i++) {
		const struct sr_sample *s = sr_sample_of(rk, i);
		char names[sizeof(s->transport) + 1], *rest = names, *name;

		sr_counters_add(&se->counters, &s->counters);
		snprintf(names, sizeof(names), "%s", s->transport);
		while ((name = strsep(&rest, "+")))
			sr_join(se->transport, sizeof(se->transport), name);
	}
	if (rk->opts->baseline)
		TRY_NOW(baselines(rk, bytes, se, k));
	return GANTRY_OK;
}

static void make_row(const struct sr_rank *rk, uint64_t bytes, struct series *se, struct sr_row *row)
{
	const struct gantry_comm_counters *c = &se->counters;
	size_t n = (size_t)rk->opts->repeats;

	row->bytes = bytes;
	row->count = bytes / rk->type_bytes;
	row->us = perf_spread_of(se->us, n);
	bandwidths((enum sr_pattern)rk->opts->pattern, rk->nranks, bytes, row->us, &row->algbw, &row->busbw);
	row->copies_send = sr_copies(c->send_copied, c->send_bytes);
	row->copies_recv = sr_copies(c->recv_copied, c->recv_bytes);
	sr_mode_name(c, row->mode, sizeof(row->mode));
	sr_proto_name(c, row->proto, sizeof(row->proto));
	memcpy(row->transport, se->transport, sizeof(row->transport));
	row->memcpy_gbs = row->flag.best = row->flag.pinned = row->flag.unpinned = NAN;
	if (rk->opts->baseline) {
		row->memcpy_gbs = perf_median(se->memcpy_gbs, n);
		row->flag.pinned = perf_median(se->flag_pinned, n);
		row->flag.unpinned = perf_median(se->flag_unpinned, n);
		row->flag.best = fmin(row->flag.pinned, row->flag.unpinned);
	}
	row->memcpy_ratio = row->busbw.median / row->memcpy_gbs;
	row->flag_ratio = row->us.median / row->flag.best;
}

static gantry_result check(struct sr_rank *rk, uint64_t bytes, struct sr_row *row)
{
	struct sr_sample s;

	memset(&s, 0, sizeof(s));
	TRY_NOW(sr_check(rk, bytes, &s));
	TRY_NOW(sr_share(rk, &s));
	for (int i = 0; i < rk->nranks; i++) {
		const struct sr_sample *one = sr_sample_of(rk, i);

		row->wrong += one->wrong;
		if (!row->first_wrong[0])
			memcpy(row->first_wrong, one->first_wrong, sizeof(row->first_wrong));
	}
	return GANTRY_OK;
}

gantry_result sr_measure(struct sr_rank *rk, uint64_t bytes, struct sr_row *ret_row)
{
	struct series se;
	uint64_t iters = 1;

	memset(&se, 0, sizeof(se));
	memset(ret_row, 0, sizeof(*ret_row));
	if (rk->opts->check)
		TRY_NOW(check(rk, bytes, ret_row));
	TRY_NOW(warm_up(rk, bytes, &iters));
	for (int k = 0; k < rk->opts->repeats; k++)
		TRY_NOW(repeat(rk, bytes, iters, &se, k));
	make_row(rk, bytes, &se, ret_row);
	return GANTRY_OK;
}
