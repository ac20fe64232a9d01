/*
 * One size: how many iterations, the interleaved repeats, their medians.
 *
 * Repeat k of the network, of the spinning and of the blocking mover follow one
 * another directly, so that whatever else the machine does hits them alike.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <math.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/log.h"
#include "perf_net.h"
#include "perf_util.h"

enum { MOVERS_MAX = 3, NETWORK = 0, RAW_SPIN = 1, RAW_BLOCK = 2 };
#define STREAM_NS 200000000u
#define PINGPONG_NS 30000000u
#define ITERS_MAX (1u << 26)

static const struct perf_mover *const movers[MOVERS_MAX] = {&perf_mover_peer, &perf_mover_raw_spin,
							    &perf_mover_raw_block};

enum kind { STREAM, PINGPONG, KINDS };

/* The repeats of one mover; by repeat. */
struct series {
	uint64_t iters[KINDS];
	double rate[PERF_REPEATS_MAX], lat[PERF_REPEATS_MAX], cpu[PERF_REPEATS_MAX];
	double moved_tx[PERF_REPEATS_MAX], moved_rx[PERF_REPEATS_MAX], all[PERF_REPEATS_MAX];
};

static uint64_t cpu_ns(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return ((uint64_t)u.ru_utime.tv_sec + (uint64_t)u.ru_stime.tv_sec) * 1000000000u +
	       ((uint64_t)u.ru_utime.tv_usec + (uint64_t)u.ru_stime.tv_usec) * 1000u;
}

static int calls_now(struct call_counts *ret_counts)
{
	return count_calls_now && count_calls_now(ret_counts);
}

static uint64_t both(const struct perf_sample *a, const struct perf_sample *b)
{
	uint64_t first = a->start_ns < b->start_ns ? a->start_ns : b->start_ns;
	uint64_t last = a->end_ns > b->end_ns ? a->end_ns : b->end_ns;

	return last - first;
}

/* Two hosts have two clocks. Both begin within a trip of the message that lets them go. */
static uint64_t longer(const struct perf_sample *a, const struct perf_sample *b)
{
	uint64_t x = a->end_ns - a->start_ns, y = b->end_ns - b->start_ns;

	return x > y ? x : y;
}

/* Runs it on both ranks and leaves what each measured in shared memory; *ret_ns is the time from first to last. */
static gantry_result timed(struct perf_rank *rk, const struct perf_mover *mv, enum kind kind, size_t size,
			   uint64_t iters, uint64_t *ret_ns)
{
	gantry_result r = GANTRY_OK;
	struct call_counts before = {.all = 0}, after = {.all = 0};
	struct perf_sample s;
	uint64_t cpu;

	rk->round++;
	__atomic_store_n(&rk->me->phase, kind == STREAM ? mv->name : "ping-pong", __ATOMIC_RELAXED);
	TRY(perf_sync(rk));
	s.counted = calls_now(&before);
	cpu = cpu_ns();
	s.start_ns = gantry_now_ns();
	TRY(kind == STREAM ? mv->stream(rk, size, iters) : mv->pingpong(rk, size, iters));
	s.end_ns = gantry_now_ns();
	s.cpu_ns = cpu_ns() - cpu;
	calls_now(&after);
	s.all = after.all - before.all;
	s.moved = after.moved - before.moved;
	rk->me->sample = s;
	TRY(perf_sync(rk));
	/* The other rank writes its sample again only after the next barrier, where it waits for us. */
	*ret_ns = rk->remote ? longer(&s, &rk->other->sample) : both(&s, &rk->other->sample);
out:
	return r;
}

/* Both ranks come to the same count, because they see the same times. */
static gantry_result calibrate(struct perf_rank *rk, const struct perf_mover *mv, enum kind kind, size_t size,
			       uint64_t *ret_iters)
{
	const struct perf_opts *o = rk->opts;
	uint64_t target = kind == STREAM ? STREAM_NS : PINGPONG_NS,
		 min = kind == STREAM ? 2u * (unsigned)o->work.depth : 2;
	uint64_t iters = o->work.warmup ? o->work.warmup : min, ns;
	gantry_result r;

	for (int round = 0; round < 20; round++) {
		r = timed(rk, mv, kind, size, iters, &ns);
		if (r != GANTRY_OK)
			return r;
		if (o->work.iters)
			break;
		iters = perf_next_iters(iters, ns, target, min, ITERS_MAX);
		if (ns >= target / 8)
			break;
	}
	*ret_iters = o->work.iters ? o->work.iters : iters;
	return GANTRY_OK;
}

static void keep_stream(const struct perf_rank *rk, struct series *se, int k, uint64_t iters, uint64_t ns)
{
	const struct perf_sample *tx = &rk->shared->rank[0].sample, *rx = &rk->shared->rank[1].sample;
	double n = (double)iters;
	int counted = tx->counted && rx->counted;

	se->rate[k] = n * 1e9 / (double)(ns ? ns : 1);
	se->cpu[k] = (double)(tx->cpu_ns + rx->cpu_ns) / n;
	se->moved_tx[k] = counted ? (double)tx->moved / n : NAN;
	se->moved_rx[k] = counted ? (double)rx->moved / n : NAN;
	se->all[k] = counted ? (double)(tx->all + rx->all) / n : NAN;
}

static gantry_result repeat(struct perf_rank *rk, const struct perf_mover *mv, enum kind kind, size_t size,
			    struct series *se, int k)
{
	const struct perf_opts *o = rk->opts;
	uint64_t ns, iters = se->iters[kind];
	gantry_result r = timed(rk, mv, kind, size, iters, &ns);

	if (r != GANTRY_OK)
		return r;
	if (kind == STREAM)
		keep_stream(rk, se, k, iters, ns);
	else
		se->lat[k] = (double)ns / 1e3 / (2.0 * (double)iters);
	/* A calibration that met a hiccup is corrected by the first repeats. */
	if (!o->work.iters)
		se->iters[kind] = perf_next_iters(iters, ns, kind == STREAM ? STREAM_NS : PINGPONG_NS,
						  kind == STREAM ? 2u * (unsigned)o->work.depth : 2, ITERS_MAX);
	return r;
}

static void make_row(const struct perf_opts *o, struct series *se, size_t size, struct perf_row *row)
{
	size_t n = (size_t)o->work.repeats;
	double bytes = (double)size, per_mib = 1048576.0 / bytes;
	struct perf_spread rate = perf_spread_of(se[NETWORK].rate, n);

	row->rate = rate.median;
	row->bw = perf_spread_scale(rate, bytes / 1e9);
	row->lat = perf_spread_of(se[NETWORK].lat, n);
	row->cpu = perf_median(se[NETWORK].cpu, n) / bytes;
	row->moved_tx = perf_median(se[NETWORK].moved_tx, n) * per_mib;
	row->moved_rx = perf_median(se[NETWORK].moved_rx, n) * per_mib;
	row->all = perf_median(se[NETWORK].all, n) * per_mib;
	row->raw_bw = row->raw_lat = row->raw_cpu = NAN;
	if (o->work.raw) {
		double spin = perf_median(se[RAW_SPIN].rate, n), block = perf_median(se[RAW_BLOCK].rate, n);
		struct series *best = &se[spin >= block ? RAW_SPIN : RAW_BLOCK];

		row->raw_bw = (spin >= block ? spin : block) * bytes / 1e9;
		row->raw_cpu = perf_median(best->cpu, n) / bytes;
		row->raw_lat = perf_median(se[RAW_SPIN].lat, n);
	}
	row->bw_ratio = row->bw.median / row->raw_bw;
	row->lat_ratio = row->lat.median / row->raw_lat;
	row->cpu_ratio = row->cpu / row->raw_cpu;
}

gantry_result perf_net_measure(struct perf_rank *rk, size_t size, struct perf_row *ret_row)
{
	static struct series se[MOVERS_MAX];
	const struct perf_opts *o = rk->opts;
	int nmovers = o->work.raw ? MOVERS_MAX : 1;
	uint64_t wrong_before;
	gantry_result r = GANTRY_OK;

	__atomic_store_n(&rk->me->phase_bytes, size, __ATOMIC_RELAXED);
	__atomic_store_n(&rk->me->phase, "verified messages", __ATOMIC_RELAXED);
	TRY(perf_sync(rk));
	wrong_before = rk->me->wrong + rk->other->wrong;
	TRY(perf_sync(rk));
	if (o->work.check)
		TRY(perf_peer_verify(rk, size));
	for (int kind = 0; kind < KINDS; kind++)
		for (int m = 0; m < nmovers; m++) {
			if (kind == PINGPONG && !movers[m]->pingpong)
				continue;
			TRY(calibrate(rk, movers[m], (enum kind)kind, size, &se[m].iters[kind]));
		}
	for (int k = 0; k < o->work.repeats; k++)
		for (int kind = 0; kind < KINDS; kind++)
			for (int m = 0; m < nmovers; m++) {
				if (kind == PINGPONG && !movers[m]->pingpong)
					continue;
				TRY(repeat(rk, movers[m], (enum kind)kind, size, &se[m], k));
			}
	*ret_row = (struct perf_row){.bytes = size, .wrong = rk->me->wrong + rk->other->wrong - wrong_before};
	make_row(o, se, size, ret_row);
out:
	return r;
}
