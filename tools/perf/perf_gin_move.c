/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One size of `gantry perf gin`. Its bytes are checked, then echoes and streams are timed in turn, repeat by repeat, and medians taken.
 *
 * A check is a stream that fills each place once, and an echo, both ways round: places of the sender have the bytes of their number, those
 * of the receiver others, and all have guards. The receiver's kernel compares two words of each put when it sees the signal; when
 * the kernels have ended, every byte of both ranks is compared. Timed echoes carry new words in each round, which
 * are compared too.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_gin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "kernels/bench.h"

#define GUARD_SEQ 0x67696e0000000000u
#define POISON_SEQ 0x67696e8000000000u
#define ECHO_SEQ 0x6563686f00000000u
#define REPEAT_NS 100000000u
#define ECHO_NS 30000000u
#define PUTS_MAX (1u << 26)
#define PLACES_BYTES ((uint64_t)64 << 20)
#define ROUNDS_ALL_BELOW ((uint64_t)16 << 20)
enum { PAGE = 4096, NAP_NS = 100000 };

size_t gin_stride(const struct gin_opts *o)
{
	return (GIN_FRONT + o->sizes[o->nsizes - 1] + GIN_SKEW_MAX + PERF_GUARD + PAGE - 1) / PAGE * PAGE;
}

/* As many as are in flight, but no more memory than they need to be apart from each other. */
uint64_t gin_places(const struct gin_opts *o)
{
	const uint64_t most = (uint64_t)o->depth * (uint64_t)o->contexts, fit = PLACES_BYTES / gin_stride(o);

	return fit < (uint64_t)o->contexts ? (uint64_t)o->contexts : fit < most ? fit : most;
}

/* ---- launches ---- */

/* What a launch does beyond its bytes and its number of puts. */
struct gin_pass {
	bool stream, stamp, look;
	bool turned; /* the odd rank begins */
	uint64_t seq;
	size_t skew;
};

static bool is_first(const struct gin_rank *rk, const struct gin_pass *p)
{
	return (rk->base.rank % 2 == 0) != p->turned;
}

/* The kernel has ended before its work: the communicator is about to say why. */
static gantry_result cause_of(struct gin_rank *rk)
{
	const struct timespec nap = {.tv_nsec = 10000000};
	gantry_result r = GANTRY_OK;

	for (int i = 0; i < 1000 && r == GANTRY_OK; i++) {
		r = gantry_comm_error(rk->base.comm, NULL, NULL, 0);
		if (r == GANTRY_OK)
			nanosleep(&nap, NULL);
	}
	if (r == GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_ABORTED, "the queues of rank %d ended early", rk->base.rank);
	return r;
}

/*
 * All ranks. On the host by the queues themselves: what this thread has read and written before is ordered before what others put here
 * afterwards, also for ThreadSanitizer, which cannot see an order that goes through other processes.
 */
static gantry_result meet(struct gin_rank *rk)
{
	if (!gantry_traits(rk->base.dev)->cpu_reads_memory) /* the view is the device's */
		return perf_rank_sync(&rk->base);
	if (gantry_gin_barrier(&rk->view, 0, 0))
		return cause_of(rk);
	perf_progress(rk->base.state);
	return GANTRY_OK;
}

/* A kernel takes as long as -n says: it shows that it gets on. It takes its times itself, so this thread may sleep. */
static gantry_result await_kernel(struct gin_rank *rk)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	uint64_t seen = UINT64_MAX;

	while (gantry_stream_query(rk->base.dev, rk->base.stream) == GANTRY_AGAIN &&
	       gantry_comm_error(rk->base.comm, NULL, NULL, 0) == GANTRY_OK) {
		if (load_relaxed(&rk->host->shown) != seen)
			perf_progress(rk->base.state);
		seen = load_relaxed(&rk->host->shown);
		nanosleep(&nap, NULL);
	}
	return perf_rank_finish(&rk->base);
}

/* Returns when the kernel has ended, and with it what it asked for at this rank. */
static gantry_result launch(struct gin_rank *rk, const struct gin_pass *p, uint64_t bytes, uint64_t n)
{
	struct gantry_gin_args args = {.view = rk->view,
				       .peer = (uint32_t)rk->peer,
				       .first = is_first(rk, p),
				       .stream = p->stream,
				       .stamp = p->stamp,
				       .look = p->look,
				       .from = rk->number[1],
				       .to = rk->number[0],
				       .source = rk->memory[1],
				       .target = rk->memory[0],
				       .at = GIN_FRONT + p->skew,
				       .stride = rk->stride,
				       .places = rk->places,
				       .bytes = bytes,
				       .n = n,
				       .seq = p->seq,
				       .echoes = rk->echoes,
				       .streams = rk->streams,
				       .times = rk->mapped->times,
				       .shown = &rk->mapped->shown,
				       .wrong = &rk->mapped->wrong,
				       .result = &rk->mapped->result};
	const struct gantry_launch l = {.kernel = &gantry_kernel_gin,
					.blocks = p->stream ? (uint32_t)rk->opts->contexts : 1,
					.args = &args,
					.args_size = sizeof(args),
					.abort = rk->base.comm->abort_dev,
					.yields = 1};

	rk->echoes += p->stream ? 0 : n;
	rk->streams += p->stream;
	TRY_NOW(rk->base.dev->ops->launch(rk->base.dev, rk->base.stream, &l));
	TRY_NOW(await_kernel(rk));
	return load_acquire(&rk->host->result) == GANTRY_OK ? GANTRY_OK : cause_of(rk);
}

static double us_of(const struct gin_rank *rk, uint64_t clock)
{
	return gantry_traits(rk->base.dev)->has_own_clock ? (double)clock / 1e3 : gantry_us_of_ticks(clock);
}

static const struct gin_sample *sample_of(const struct gin_rank *rk, int rank)
{
	return perf_sample_of(&rk->base, rank);
}

/* ---- checks ---- */

static uint64_t pair_of(const struct gin_rank *rk)
{
	return (uint64_t)rk->base.rank / 2;
}

/* Of the first put of a check. */
static uint64_t check_seq(const struct gin_rank *rk)
{
	return (rk->round << 32) + (pair_of(rk) << 20);
}

/* A place of this rank, and what it carries once all have come; seq: of its put. */
static struct perf_message message_at(const struct gin_rank *rk, const struct gin_pass *p, int sent, uint64_t place,
				      uint64_t bytes, uint64_t seq)
{
	const uint64_t guard = GUARD_SEQ + (rk->round << 16) + (uint64_t)rk->base.rank * 4 + (uint64_t)sent * 2;

	return (struct perf_message){.at = rk->memory[sent] + rk->stride * place + GIN_FRONT + p->skew,
				     .bytes = bytes,
				     .seq = seq,
				     .front = guard,
				     .back = guard + 1};
}

static gantry_result locate(struct gin_rank *rk, const struct perf_message *m, int sent, struct gin_sample *s)
{
	const int from = sent ? rk->base.rank : rk->peer, to = sent ? rk->peer : rk->base.rank;
	char what[128];

	snprintf(what, sizeof(what), "a put of %s from rank %d to rank %d", SIZE_TEXT(m->bytes), from, to);
	return perf_message_locate(&rk->base, m, what, sent ? ", in the sender's memory" : "", s->first_wrong,
				   sizeof(s->first_wrong));
}

/* The places that this pass uses at this rank: of an echo the first of each direction, of a stream all of one. */
static gantry_result check_pass(struct gin_rank *rk, const struct gin_pass *p, uint64_t bytes, struct gin_sample *s)
{
	const struct perf_wrong wrong = {&rk->host->wrong, &rk->mapped->wrong};
	const uint64_t n = p->stream ? rk->places : 1, before = rk->host->wrong;
	const bool first = is_first(rk, p);
	uint64_t early;

	for (int sent = 0; sent < 2; sent++)
		for (uint64_t i = 0; i < n && (!p->stream || sent == first); i++) {
			const uint64_t seq = p->seq + (p->stream ? i : (uint64_t)(sent != first));
			const struct perf_message m = message_at(rk, p, sent, i, bytes, seq);

			TRY_NOW(perf_message_fill(&rk->base, &m, sent ? seq : POISON_SEQ + rk->round));
		}
	TRY_NOW(perf_rank_finish(&rk->base));
	TRY_NOW(meet(rk)); /* what comes now finds its place */
	TRY_NOW(launch(rk, p, bytes, n));
	early = load_acquire(&rk->host->wrong) - before;
	for (int sent = 0; sent < 2; sent++)
		for (uint64_t i = 0; i < n && (!p->stream || sent == first); i++) {
			const uint64_t seq = p->seq + (p->stream ? i : (uint64_t)(sent != first));
			const struct perf_message m = message_at(rk, p, sent, i, bytes, seq);

			TRY_NOW(perf_message_check(&rk->base, &m, wrong));
			TRY_NOW(perf_rank_finish(&rk->base));
			if (load_acquire(&rk->host->wrong) - before > early && !s->first_wrong[0])
				TRY_NOW(locate(rk, &m, sent, s));
		}
	if (early && !s->first_wrong[0])
		snprintf(s->first_wrong, sizeof(s->first_wrong),
			 "in a put of %s from rank %d to rank %d, whose signal came before its bytes", SIZE_TEXT(bytes),
			 rk->peer, rk->base.rank);
	return meet(rk); /* nothing of the next one comes while this one is compared */
}

/* At even and at odd addresses. Both ranks of a pair send streams and begin echoes. */
static gantry_result check(struct gin_rank *rk, uint64_t bytes, struct gin_sample *s)
{
	static const size_t skews[] = {0, 1, GIN_SKEW_MAX};
	const int rounds = bytes * rk->places <= ROUNDS_ALL_BELOW ? 4 : 2;

	perf_phase(rk->base.state, "checking", bytes);
	for (int i = 0; i < rounds; i++) {
		struct gin_pass p = {.look = true, .turned = i % 2, .skew = skews[i % 3]};

		rk->round++;
		p.seq = check_seq(rk);
		TRY_NOW(check_pass(rk, &p, bytes, s));
		rk->round++;
		p.stream = true;
		p.seq = check_seq(rk);
		TRY_NOW(check_pass(rk, &p, bytes, s));
	}
	return GANTRY_OK;
}

/* ---- times ---- */

/* What was wrong since the size began, at all ranks. */
static void take_wrong(const struct gin_rank *rk, struct gin_row *row)
{
	row->wrong = 0;
	for (int i = 0; i < rk->base.nranks; i++) {
		row->wrong += sample_of(rk, i)->wrong;
		if (!row->first_wrong[0])
			memcpy(row->first_wrong, sample_of(rk, i)->first_wrong, sizeof(row->first_wrong));
	}
}

static gantry_result share(struct gin_rank *rk, struct gin_sample *s, struct gin_row *row)
{
	s->wrong = load_acquire(&rk->host->wrong);
	TRY_NOW(perf_rank_share(&rk->base, s));
	take_wrong(rk, row);
	return GANTRY_OK;
}

/* *ret_us: one way, of the slowest pair; on every rank. */
static gantry_result time_echo(struct gin_rank *rk, uint64_t bytes, uint64_t n, struct gin_row *row, double *ret_us,
			       uint64_t *ret_ns)
{
	struct gin_pass p = {.stamp = rk->opts->check != 0, .look = rk->opts->check != 0};
	struct gin_sample s;
	double *us = malloc(n * sizeof(*us));
	gantry_result r = GANTRY_OK;
	const uint64_t before = load_acquire(&rk->host->wrong), start = gantry_now_ns();

	if (!us)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the times of %llu echoes", (unsigned long long)n);
	memset(&s, 0, sizeof(s));
	p.seq = ECHO_SEQ + (pair_of(rk) << 48) + 2 * rk->echoes;
	TRY(launch(rk, &p, bytes, n));
	s.ns = gantry_now_ns() - start;
	for (uint64_t i = 0; i < n; i++)
		us[i] = us_of(rk, load_relaxed(&rk->host->times[i])) / 2;
	if (is_first(rk, &p))
		s.echo_us = perf_median(us, n);
	if (load_acquire(&rk->host->wrong) > before)
		snprintf(s.first_wrong, sizeof(s.first_wrong),
			 "in the first or last word of a put of %s from rank %d to rank %d, when its signal had come",
			 SIZE_TEXT(bytes), rk->peer, rk->base.rank);
	TRY(share(rk, &s, row));
	*ret_us = 0;
	*ret_ns = 1;
	for (int i = 0; i < rk->base.nranks; i++) {
		*ret_us = fmax(*ret_us, sample_of(rk, i)->echo_us);
		*ret_ns = sample_of(rk, i)->ns > *ret_ns ? sample_of(rk, i)->ns : *ret_ns;
	}
out:
	free(us);
	return r;
}

/* From the first put to the answer: blocks begin and end together, but for a little. */
static uint64_t stream_ns(const struct gin_rank *rk)
{
	uint64_t begin = UINT64_MAX, end = 0;

	for (int b = 0; b < rk->opts->contexts; b++) {
		const uint64_t from = load_relaxed(&rk->host->times[2 * b]),
			       to = load_relaxed(&rk->host->times[2 * b + 1]);

		begin = from < begin ? from : begin;
		end = to > end ? to : end;
	}
	return end > begin ? (uint64_t)(us_of(rk, end - begin) * 1e3) : 1;
}

/* *ret_ns: of n puts, of the slowest pair; on every rank. */
static gantry_result time_stream(struct gin_rank *rk, uint64_t bytes, uint64_t n, struct gin_row *row, uint64_t *ret_ns)
{
	const struct gin_pass p = {.stream = true};
	struct gin_sample s;

	memset(&s, 0, sizeof(s));
	TRY_NOW(launch(rk, &p, bytes, n));
	if (is_first(rk, &p))
		s.ns = stream_ns(rk);
	TRY_NOW(share(rk, &s, row));
	*ret_ns = 1;
	for (int i = 0; i < rk->base.nranks; i++)
		*ret_ns = sample_of(rk, i)->ns > *ret_ns ? sample_of(rk, i)->ns : *ret_ns;
	return GANTRY_OK;
}

/* How many of each a repeat has. All ranks come to the same counts, because they see the same times. */
struct counts {
	uint64_t echoes, puts;
};

static gantry_result warm_up(struct gin_rank *rk, uint64_t bytes, struct gin_row *row, struct counts *ret)
{
	const struct gin_opts *o = rk->opts;
	struct counts n = {o->warmup ? o->warmup : 1, o->warmup ? o->warmup : 1};
	bool more = true;
	uint64_t ns;
	double us;

	perf_phase(rk->base.state, "warming up", bytes);
	n.echoes = n.echoes < GIN_ECHOES_MAX ? n.echoes : GIN_ECHOES_MAX;
	for (int round = 0; round < 20 && more; round++) {
		TRY_NOW(time_echo(rk, bytes, n.echoes, row, &us, &ns));
		n.echoes = perf_next_iters(n.echoes, ns, ECHO_NS, 1, GIN_ECHOES_MAX);
		more = ns < ECHO_NS / 8 && n.echoes < GIN_ECHOES_MAX && !o->iters;
	}
	more = true;
	for (int round = 0; round < 20 && more; round++) {
		TRY_NOW(time_stream(rk, bytes, n.puts, row, &ns));
		n.puts = perf_next_iters(n.puts, ns, REPEAT_NS, 1, PUTS_MAX);
		more = ns < REPEAT_NS / 8 && !o->iters;
	}
	if (o->iters)
		n = (struct counts){o->iters < GIN_ECHOES_MAX ? o->iters : GIN_ECHOES_MAX, o->iters};
	*ret = n;
	return GANTRY_OK;
}

gantry_result gin_measure(struct gin_rank *rk, uint64_t bytes, struct gin_row *ret_row)
{
	double us[GIN_REPEATS_MAX], gbs[GIN_REPEATS_MAX], puts[GIN_REPEATS_MAX];
	const size_t repeats = (size_t)rk->opts->repeats;
	struct gin_sample s;
	struct counts n;
	uint64_t ns;

	memset(ret_row, 0, sizeof(*ret_row));
	memset(&s, 0, sizeof(s));
	ret_row->bytes = bytes;
	store_release(&rk->host->wrong, 0);
	TRY_NOW(perf_rank_sync(&rk->base));
	if (rk->opts->check) {
		TRY_NOW(check(rk, bytes, &s));
		TRY_NOW(share(rk, &s, ret_row));
	}
	TRY_NOW(warm_up(rk, bytes, ret_row, &n));
	for (size_t k = 0; k < repeats; k++) {
		perf_phase(rk->base.state, "timing", bytes);
		TRY_NOW(time_echo(rk, bytes, n.echoes, ret_row, &us[k], &ns));
		TRY_NOW(time_stream(rk, bytes, n.puts, ret_row, &ns));
		gbs[k] = (double)bytes * (double)n.puts / (double)ns;
		puts[k] = (double)n.puts * 1e9 / (double)ns;
	}
	ret_row->us = perf_spread_of(us, repeats);
	ret_row->gbs = perf_spread_of(gbs, repeats);
	ret_row->puts = perf_median(puts, repeats);
	return GANTRY_OK;
}
