/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns: which messages a rank sends and receives in one iteration.
 *
 *   ring      to the next rank, from the previous one, in one group (nccl-tests' sendrecv)
 *   oneway    even ranks send, the odd rank after each receives
 *   pingpong  the same pairs, there and back: two groups, one after the other
 *   echo      the same pairs; timed without calls, between kernels that stay: sr_echo
 *   alltoall  to and from every rank, oneself included, in one group (nccl-tests' alltoall)
 *
 * -m repeats each message within its group.
 *
 * What messages carry. A message's bytes follow from its number, which is made of the round, both ranks and its place
 * in the group, and from its size: see figures.h. Before each round receive buffers are poisoned and guards stand in
 * front of each message and behind it.
 *
 *        page                                            even address
 *   ... |                                 front guard 64 | message ... | back guard 64 |
 *                                                  --> shifted by the skew: 0, 1 or 3 bytes
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/comm.h"
#include "common/figures.h"
#include "device/work.h"
#include "gantry/fifo.h"
#include "kernels/bench.h"
#include "perf/perf_message.h"
#include "perf/perf_sendrecv.h"

#define GUARD_SEQ 0x6775617264000000u
#define POISON_SEQ 0x706f69736f6e0000u
#define ROUNDS_ALL_BELOW ((uint64_t)16 << 20)

static void add(struct sr_rank *rk, int send, int peer)
{
	for (int i = 0; i < rk->opts->inflight; i++)
		rk->msgs[rk->nmsgs++] =
			(struct sr_msg){.send = send, .peer = peer, .buf = rk->nbufs[send]++, .number = i};
}

/* What is added from here on is in another group. */
static void next_group(struct sr_rank *rk)
{
	rk->first[++rk->ngroups] = rk->nmsgs;
}

gantry_result sr_plan(struct sr_rank *rk)
{
	int n = rk->base.nranks, me = rk->base.rank, even = me % 2 == 0, other = even ? me + 1 : me - 1;

	rk->msgs = calloc(2 * (size_t)n * (size_t)rk->opts->inflight, sizeof(*rk->msgs));
	if (!rk->msgs)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a list of messages");
	switch ((enum sr_pattern)rk->opts->pattern) {
	case SR_RING:
		add(rk, 1, (me + 1) % n);
		add(rk, 0, (me + n - 1) % n);
		break;
	case SR_ONEWAY:
		if (other < n)
			add(rk, even, other);
		break;
	case SR_PINGPONG:
	case SR_ECHO:
		if (other < n)
			add(rk, even, other);
		next_group(rk);
		if (other < n)
			add(rk, !even, other);
		break;
	case SR_ALLTOALL:
		for (int k = 0; k < n; k++) {
			add(rk, 1, (me + k) % n);
			add(rk, 0, (me + n - k) % n);
		}
		break;
	}
	next_group(rk);
	return GANTRY_OK;
}

/* Messages that follow one another in the time of an iteration: those of a group count as one after the other, as in
 * nccl-tests; a round trip is two. */
double sr_messages(const struct sr_opts *o)
{
	return (double)o->inflight * (o->pattern == SR_PINGPONG || o->pattern == SR_ECHO ? 2 : 1);
}

static char *place_of(const struct sr_rank *rk, const struct sr_msg *m)
{
	return rk->memory[m->send] + rk->stride * (size_t)m->buf + SR_FRONT + m->skew;
}

static gantry_result enqueue_group(struct sr_rank *rk, int g, uint64_t bytes)
{
	gantry_result r = GANTRY_OK, end;
	enum gantry_type type = (enum gantry_type)rk->opts->type;
	size_t count = bytes / rk->type_bytes;

	gantry_group_start();
	for (int i = rk->first[g]; i < rk->first[g + 1] && r == GANTRY_OK; i++) {
		const struct sr_msg *m = &rk->msgs[i];
		char *at = place_of(rk, m);

		r = m->send ? gantry_send(at, count, type, m->peer, rk->base.comm, rk->base.stream)
			    : gantry_recv(at, count, type, m->peer, rk->base.comm, rk->base.stream);
	}
	end = gantry_group_end(); /* in any case: a group that stays open would swallow all that follows */
	perf_progress(rk->base.state);
	return r == GANTRY_OK ? end : r;
}

/* One iteration of messages of `bytes`. */
static gantry_result sr_enqueue(struct sr_rank *rk, uint64_t bytes)
{
	for (int g = 0; g < rk->ngroups; g++)
		TRY_NOW(enqueue_group(rk, g, bytes));
	return GANTRY_OK;
}

/* ---- echo ---- */

static uint32_t proto_of(const struct gantry_conn *conn, uint64_t bytes)
{
	const struct gantry_params *p = gantry_params();

	if (p->proto)
		return (uint32_t)p->proto - 1;
	return bytes <= p->ll_max && conn->buffs[GANTRY_PROTO_LL] ? GANTRY_PROTO_LL : GANTRY_PROTO_SIMPLE;
}

/*
 * --pattern echo: a message to and fro between two kernels that stay, as a flag goes to and fro between two threads. It
 * shows what the steps of a connection cost without the calls and launches around them (--pattern pingpong has those).
 * Checked like pingpong, whose messages it has; timed by one launch for all iterations.
 */
static gantry_result sr_echo(struct sr_rank *rk, uint64_t bytes, uint64_t n)
{
	struct gantry_comm *comm = rk->base.comm;
	int peer = rk->base.rank ^ 1, channel;
	const struct comm_conn *send, *recv;
	struct gantry_echo_args args = {
		.bytes = bytes, .n = n, .first = rk->base.rank % 2 == 0, .result = comm->result_dev};
	struct gantry_launch l = {.kernel = &gantry_kernel_echo,
				  .blocks = 1,
				  .args = &args,
				  .args_size = sizeof(args),
				  .abort = comm->abort_dev,
				  .eventcounts = NULL};

	if (peer >= rk->base.nranks)
		return GANTRY_OK;
	channel = (rk->base.rank + peer) % comm->nchannels;
	send = &comm->peers[peer].conns[1][channel];
	recv = &comm->peers[peer].conns[0][channel];
	if ((send->c.conn.flags | recv->c.conn.flags) & GANTRY_CONN_PROXIED)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "--pattern echo needs kernels that reach each other (p2p or shm), not %s",
			 send->c.transport->name);
	args.send = send->dev;
	args.recv = recv->dev;
	args.proto = proto_of(&send->c.conn, bytes);
	args.input = rk->memory[1] + SR_FRONT;
	args.output = rk->memory[0] + SR_FRONT;
	l.eventcounts = comm->all_notify && comm->eventcounts ? &comm->eventcounts[channel]
							      : NULL; /* block 0 sleeps at the channel's */
	return rk->base.dev->ops->launch(rk->base.dev, rk->base.stream, &l);
}

/* ---- what messages carry ---- */

static uint64_t seq_of(const struct sr_rank *rk, const struct sr_msg *m)
{
	uint64_t n = (uint64_t)rk->base.nranks, from = (uint64_t)(m->send ? rk->base.rank : m->peer),
		 to = (uint64_t)(m->send ? m->peer : rk->base.rank);

	return ((rk->round * n + from) * n + to) * SR_INFLIGHT_MAX + (uint64_t)m->number;
}

/* Another one at every place: bytes copied beyond the end of a message must not look like the guard that they hit. */
static uint64_t guard_seq(const struct sr_rank *rk, const struct sr_msg *m, int back)
{
	return GUARD_SEQ + (((uint64_t)rk->base.rank * 2 + (uint64_t)m->send) * 2 + (uint64_t)back) + rk->round * 4096;
}

static struct perf_message message_of(const struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes)
{
	return (struct perf_message){.at = place_of(rk, m),
				     .bytes = bytes,
				     .seq = seq_of(rk, m),
				     .front = guard_seq(rk, m, 0),
				     .back = guard_seq(rk, m, 1)};
}

static gantry_result prepare(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes)
{
	const struct perf_message msg = message_of(rk, m, bytes);

	return perf_message_fill(&rk->base, &msg, m->send ? msg.seq : POISON_SEQ + rk->round);
}

/* Sent messages too: they must not have been written to. */
static gantry_result compare(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes)
{
	const struct perf_message msg = message_of(rk, m, bytes);
	const struct perf_wrong wrong = {rk->wrong_host, rk->wrong_dev};

	return perf_message_check(&rk->base, &msg, wrong);
}

static gantry_result locate(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes, char *text, size_t len)
{
	const struct perf_message msg = message_of(rk, m, bytes);
	char what[128];

	snprintf(what, sizeof(what), "a message of %s from rank %d to rank %d", SIZE_TEXT(bytes),
		 m->send ? rk->base.rank : m->peer, m->send ? m->peer : rk->base.rank);
	return perf_message_locate(&rk->base, &msg, what, m->send ? ", in the sender's buffer" : "", text, len);
}

static gantry_result check_round(struct sr_rank *rk, uint64_t bytes, struct sr_sample *s)
{
	gantry_result r = GANTRY_OK;
	static const size_t skews[] = {0, 1, SR_SKEW_MAX};

	rk->round++;
	for (int i = 0; i < rk->nmsgs; i++) {
		rk->msgs[i].skew = skews[(rk->round + (uint64_t)rk->msgs[i].number) % 3];
		TRY(prepare(rk, &rk->msgs[i], bytes));
	}
	TRY(sr_enqueue(rk, bytes));
	TRY(perf_rank_finish(&rk->base));
	for (int i = 0; i < rk->nmsgs; i++)
		TRY(compare(rk, &rk->msgs[i], bytes));
	TRY(perf_rank_finish(&rk->base));
	s->wrong = load_acquire(rk->wrong_host);
	for (int i = 0; s->wrong && !s->first_wrong[0] && i < rk->nmsgs; i++)
		TRY(locate(rk, &rk->msgs[i], bytes, s->first_wrong, sizeof(s->first_wrong)));
out:
	for (int i = 0; i < rk->nmsgs; i++)
		rk->msgs[i].skew = 0;
	return r;
}

/* Fills in what was wrong, and where the first of it was. Each message at each of the addresses; large ones, whose
 * filling takes longest, at two of them at least. */
static gantry_result sr_check(struct sr_rank *rk, uint64_t bytes, struct sr_sample *s)
{
	uint64_t all = bytes * (uint64_t)rk->opts->inflight;
	int rounds = all <= ROUNDS_ALL_BELOW ? 3 : rk->opts->inflight >= 2 ? 1 : 2;

	perf_phase(rk->base.state, "checking", bytes);
	*rk->wrong_host = 0;
	while ((rk->round + 1) % 3) /* every size begins at the even address */
		rk->round++;
	for (int i = 0; i < rounds; i++)
		TRY_NOW(check_round(rk, bytes, s));
	return GANTRY_OK;
}

/*
 * ---- one size ----
 *
 * Its bytes are checked, the number of iterations is found, and then repeats are timed and medians taken. The
 * baselines' repeats come between them, so that whatever else the machine does hits all of them alike.
 */

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
		perf_comm_join(buf, len,
			       rk->msgs[i].peer == rk->base.rank
				       ? "self"
				       : gantry_comm_transport(rk->base.comm, rk->msgs[i].peer));
}

static const struct sr_sample *sample_of(const struct sr_rank *rk, int rank)
{
	return perf_sample_of(&rk->base, rank);
}

/* All ranks run n iterations; *ret_ns is the time of the slowest, on every rank. */
static gantry_result timed(struct sr_rank *rk, uint64_t bytes, uint64_t n, uint64_t *ret_ns)
{
	struct gantry_comm_counters before = GANTRY_COMM_COUNTERS_INIT;
	struct sr_sample s;
	uint64_t start;

	memset(&s, 0, sizeof(s));
	s.counters.struct_size = sizeof(s.counters);
	TRY_NOW(perf_rank_sync(&rk->base));
	gantry_comm_get_counters(rk->base.comm, &before);
	start = gantry_now_ns();
	if (rk->opts->pattern == SR_ECHO)
		TRY_NOW(sr_echo(rk, bytes, n));
	for (uint64_t i = 0; i < n && rk->opts->pattern != SR_ECHO; i++)
		TRY_NOW(sr_enqueue(rk, bytes));
	TRY_NOW(perf_rank_finish(&rk->base));
	s.ns = gantry_now_ns() - start;
	gantry_comm_get_counters(rk->base.comm, &s.counters);
	perf_comm_counters_add(&s.counters, &before, -1);
	transports(rk, s.transport, sizeof(s.transport));
	TRY_NOW(perf_rank_share(&rk->base, &s));
	*ret_ns = 1;
	for (int i = 0; i < rk->base.nranks; i++)
		*ret_ns = sample_of(rk, i)->ns > *ret_ns ? sample_of(rk, i)->ns : *ret_ns;
	return GANTRY_OK;
}

/* All ranks come to the same count, because they see the same times. */
static gantry_result warm_up(struct sr_rank *rk, uint64_t bytes, uint64_t *ret_iters)
{
	const struct sr_opts *o = rk->opts;
	uint64_t n = o->warmup ? o->warmup : 1, ns;

	perf_phase(rk->base.state, "warming up", bytes);
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

	perf_phase(rk->base.state, "baselines", bytes);
	if (rk->base.rank == 0)
		se->memcpy_gbs[k] = memcpy_gbs(&rk->memcpy, bytes, MEMCPY_NS);
	TRY_NOW(perf_rank_sync(&rk->base));
	if (!rk->base.box && rk->base.nranks >= 2 && rk->base.rank < 2)
		perf_rank_pin(&rk->base, 0); /* it pins itself, and does not */
	if (!rk->base.box && rk->base.nranks >= 2 && rk->base.rank < 2)
		flag = pass_flag(&rk->shared->flags, rk->base.rank, FLAG_ROUNDS);
	perf_rank_pin(&rk->base, 1);
	se->flag_pinned[k] = flag.pinned;
	se->flag_unpinned[k] = flag.unpinned;
	perf_progress(rk->base.state);
	return perf_rank_sync(&rk->base);
}

static gantry_result repeat(struct sr_rank *rk, uint64_t bytes, uint64_t iters, struct series *se, int k)
{
	uint64_t ns = 0;

	perf_phase(rk->base.state, "timing", bytes);
	TRY_NOW(timed(rk, bytes, iters, &ns));
	se->us[k] = (double)ns / 1e3 / (double)iters / sr_messages(rk->opts);
	for (int i = 0; i < rk->base.nranks; i++) {
		const struct sr_sample *s = sample_of(rk, i);

		perf_comm_counters_add(&se->counters, &s->counters, 1);
		perf_comm_join(se->transport, sizeof(se->transport), s->transport);
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
	bandwidths((enum sr_pattern)rk->opts->pattern, rk->base.nranks, bytes, row->us, &row->algbw, &row->busbw);
	row->copies_send = perf_comm_copies(c->send_copied, c->send_bytes);
	row->copies_recv = perf_comm_copies(c->recv_copied, c->recv_bytes);
	perf_comm_mode_name(c, row->mode, sizeof(row->mode));
	perf_comm_proto_name(c, row->proto, sizeof(row->proto));
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
	TRY_NOW(perf_rank_share(&rk->base, &s));
	for (int i = 0; i < rk->base.nranks; i++) {
		const struct sr_sample *one = sample_of(rk, i);

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
