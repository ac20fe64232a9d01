/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of `gantry perf net`: its buffers, the other machine, and size after size.
 *
 * One size: how many iterations, the interleaved repeats, their medians. Repeat k of the network, of the spinning and of
 * the blocking mover follow one another directly, so that whatever else the machine does hits them alike.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "inet/settings.h"
#include "perf_net.h"

/* What of a slot the other host sees. */
struct far_slot {
	struct perf_sample sample;
	uint64_t wrong;
	char first_wrong[256];
	char handle[GANTRY_NET_HANDLE_SIZE];
	uint64_t raw_port;
};

static gantry_result sync_far(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct far_slot mine = {.sample = rk->me->sample, .wrong = rk->me->wrong, .raw_port = rk->me->raw_port}, other;

	memcpy(mine.first_wrong, rk->me->first_wrong, sizeof(mine.first_wrong));
	memcpy(mine.handle, rk->me->handle, sizeof(mine.handle));
	TRY(perf_remote_swap(rk->remote, &mine, &other, sizeof(mine), NULL, NULL));
	rk->other->sample = other.sample;
	rk->other->wrong = other.wrong;
	rk->other->raw_port = (uint16_t)other.raw_port;
	perf_remote_words(rk->other->first_wrong, other.first_wrong, sizeof(other.first_wrong));
	memcpy(rk->other->handle, other.handle, sizeof(other.handle));
	perf_progress(&rk->me->state);
out:
	return r;
}

gantry_result perf_sync(struct perf_rank *rk)
{
	if (rk->remote)
		return sync_far(rk);
	perf_ranks_meet(&rk->me->state, &rk->shared->rank[0].state, sizeof(struct perf_slot), 2);
	return GANTRY_OK;
}

static gantry_result make_buffers(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	size_t page = (size_t)sysconf(_SC_PAGESIZE), largest = 0;
	char size[GANTRY_TEXT_MAX];

	for (size_t i = 0; i < rk->opts->work.nsizes; i++)
		largest = rk->opts->work.sizes[i] > largest ? rk->opts->work.sizes[i] : largest;
	rk->nbufs = rk->opts->work.depth < 2 ? 2 : rk->opts->work.depth;
	rk->stride = (largest + PERF_BUF_PAD + page - 1) / page * page;
	rk->memory_size = rk->stride * (size_t)rk->nbufs;
	if (largest > SIZE_MAX / 2 / (size_t)rk->nbufs)
		FAIL(GANTRY_ERR_NOMEM, "%d buffers of %s do not fit", rk->nbufs,
		     gantry_size_text(largest, size, sizeof(size)));
	rk->memory = mmap(NULL, rk->memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (rk->memory == MAP_FAILED) {
		rk->memory = NULL;
		FAIL(GANTRY_ERR_NOMEM, "%d buffers of %s: %s; choose a smaller -e", rk->nbufs,
		     gantry_size_text(largest, size, sizeof(size)), strerror(errno));
	}
	/* As pinned buffers mostly are: contiguous. The movers of --raw use the same memory. */
	if (rk->opts->work.huge && madvise(rk->memory, rk->memory_size, MADV_HUGEPAGE))
		LOG_DEBUG(TOOL, "no huge pages: %s", strerror(errno));
	/* Page faults are not what is measured. */
	for (size_t at = 0; at < rk->memory_size; at += page)
		rk->memory[at] = 1;
out:
	return r;
}

/* The other machine, and what its user or this one wants to have measured. */
static gantry_result meet(struct perf_rank *rk, struct perf_remote *rm)
{
	gantry_result r = GANTRY_OK;
	const struct perf_opts *own = rk->opts;
	struct perf_shared *sh = rk->shared;
	struct perf_net_work other;
	char why[256];

	store_relaxed(&rk->me->state.alone, 1);
	r = perf_remote_open(rm, "gantry perf net", &own->remote);
	sh->served = rm->served;
	TRY(r);
	rk->remote = rm;
	memcpy(sh->peer, rm->peer, sizeof(sh->peer));
	snprintf(sh->ifname, sizeof(sh->ifname), "%s", inet_wanted_interfaces());
	TRY(perf_remote_swap(rm, &own->work, &other, sizeof(other), NULL, NULL));
	if (own->remote.listen && perf_net_take(&other, &sh->opts) < 0)
		FAIL(GANTRY_ERR_PROTOCOL, "the client's options make no sense here");
	if (own->remote.listen && !perf_memory_fits(1, perf_net_bytes(&sh->opts), why, sizeof(why)))
		FAIL(GANTRY_ERR_NOMEM, "%s", why);
	rk->opts = &sh->opts;
	perf_net_set_lanes(rk->opts);
	TRY(gantry_params_load(1));
	store_relaxed(&rk->me->state.alone, 0);
	perf_progress(&rk->me->state);
out:
	return r;
}

/* ---- one size ---- */

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
	perf_phase(&rk->me->state, kind == STREAM ? mv->name : "ping-pong", size);
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

static gantry_result measure(struct perf_rank *rk, size_t size, struct perf_row *ret_row)
{
	static struct series se[MOVERS_MAX];
	const struct perf_opts *o = rk->opts;
	int nmovers = o->work.raw ? MOVERS_MAX : 1;
	uint64_t wrong_before;
	gantry_result r = GANTRY_OK;

	perf_phase(&rk->me->state, "verified messages", size);
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

/* ---- a rank's life ---- */

/* Rank 0's row, for both to print. */
static gantry_result keep_row(struct perf_rank *rk, size_t i, const struct perf_row *row)
{
	gantry_result r = GANTRY_OK;
	struct perf_row *rows = rk->shared->rows;

	if (!rk->remote && rk->rank == 1)
		return GANTRY_OK;
	if (rk->remote)
		TRY(perf_remote_swap(rk->remote, row, &rows[i], sizeof(*row), NULL, NULL));
	if (rk->rank == 0)
		rows[i] = *row;
	store_release(&rk->shared->nrows, i + 1);
out:
	return r;
}

static gantry_result rank_work(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct perf_row row;

	TRY(make_buffers(rk));
	perf_phase(&rk->me->state, "connecting", 0);
	TRY(perf_peer_open(rk));
	if (rk->opts->work.raw)
		TRY(perf_raw_open(rk));
	/*
	 * Otherwise the blocking mover's wake-ups leave both ranks on one CPU, and whatever is measured next begins
	 * there, in turns of several milliseconds. After the network was opened, so that it and its threads see and may
	 * use all CPUs.
	 */
	if (rk->opts->pin && !rk->remote)
		perf_keep_to_part(rk->rank, 2);
	for (size_t i = 0; i < rk->opts->work.nsizes; i++) {
		TRY(measure(rk, rk->opts->work.sizes[i], &row));
		TRY(keep_row(rk, i, &row));
	}
	perf_phase(&rk->me->state, "closing", 0);
	if (rk->remote)
		TRY(perf_remote_load(rk->remote, &rk->shared->others_cpu));
	TRY(perf_sync(rk));
out:
	return r;
}

static void keep_calls(struct perf_slot *slot, const struct call_counts *before)
{
	if (!slot->calls_counted || !count_calls_now || !count_calls_now(&slot->calls))
		return;
	for (int k = 0; k < CALL_KIND_COUNT; k++)
		slot->calls.made[k] -= before->made[k];
	slot->calls.all -= before->all;
	slot->calls.moved -= before->moved;
}

int perf_net_rank(int rank, struct perf_shared *shared)
{
	struct perf_rank rk = {.rank = rank, .opts = &shared->opts, .shared = shared};
	struct perf_remote remote = {.ctl = NULL};
	struct call_counts before;
	gantry_result r = GANTRY_OK;

	rk.me = &shared->rank[rank];
	rk.other = &shared->rank[!rank];
	rk.me->calls_counted = count_calls_now && count_calls_now(&before);
	gantry_set_last_error("");
	if (perf_remote_wanted(&rk.opts->remote))
		r = meet(&rk, &remote);
	if (r == GANTRY_OK)
		r = rank_work(&rk);
	if (r != GANTRY_OK) {
		perf_fail(&rk.me->state, r);
		perf_remote_failed(&remote, rk.me->state.error, sizeof(rk.me->state.error));
		store_release(&rk.me->state.error_ns, gantry_now_ns());
	}
	raw_tcp_close(&rk.raw);
	perf_peer_close(&rk);
	if (rk.memory)
		munmap(rk.memory, rk.memory_size);
	keep_calls(rk.me, &before);
	perf_remote_close(&remote);
	return r != GANTRY_OK;
}
