/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf net`: options, a rank, the parent and what it prints.
 *
 * One size: how many iterations, the interleaved repeats, their medians. Repeat k of the network, of the spinning and of
 * the blocking mover follow one another directly, so that whatever else the machine does hits them alike.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_net.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "common/cmd.h"
#include "common/options.h"
#include "inet/settings.h"
#include "perf/perf_table.h"

#define SIZE_LIMIT ((uint64_t)1 << 40)
enum { LANES_MAX = 16, ITERS_MAX = 1 << 30 };

static const struct perf_opts defaults = {
	.work = {.repeats = 5, .depth = 8, .check = 1, .huge = 1, .lanes = -1, .timeout_ns = 60000000000},
	.begin = 64,
	.end = 64 << 20,
	.factor = 4,
	.pin = 1,
};

/* clang-format off */
#define AT(field) offsetof(struct perf_opts, field)
static const struct option_spec specs[] = {
	{0, OPTION_FLAG, "listen", AT(remote.listen), 0, 0, NULL, NULL, "wait for a client, measure with it, and end"},
	{0, OPTION_FLAG, "forever", AT(remote.forever), 0, 0, NULL, NULL, "with --listen: client after client, until it is ended"},
	{0, OPTION_INT, "port", AT(remote.port), 1, 65535, NULL, "N", "where to listen, or to look for the listener (18520)"},
	{'b', OPTION_SIZE, NULL, AT(begin), 1, SIZE_LIMIT, NULL, "SIZE", "smallest message (64)"},
	{'e', OPTION_SIZE, NULL, AT(end), 1, SIZE_LIMIT, NULL, "SIZE", "largest message (64M)"},
	{'f', OPTION_COUNT, NULL, AT(factor), 2, 1 << 20, NULL, "FACTOR", "from one size to the next (4)"},
	{'n', OPTION_COUNT, NULL, AT(work.iters), 1, ITERS_MAX, NULL, "ITERS", "messages per repeat (as many as take about 0.2 s)"},
	{'w', OPTION_COUNT, NULL, AT(work.warmup), 0, ITERS_MAX, NULL, "WARMUP", "messages before the first repeat (until the rate is known)"},
	{'c', OPTION_INT, NULL, AT(work.check), 0, 1, NULL, "0|1", "check the bytes (1)"},
	{0, OPTION_INT, "repeats", AT(work.repeats), 1, PERF_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (5)"},
	{0, OPTION_INT, "depth", AT(work.depth), 1, PERF_DEPTH_MAX, NULL, "D", "requests in flight (8)"},
	{0, OPTION_FLAG, "raw", AT(work.raw), 0, 0, NULL, NULL, "also a plain TCP mover, interleaved, and the ratios to it"},
	{0, OPTION_FLAG, "raw-nodelay", AT(work.raw_nodelay), 0, 0, NULL, NULL, "the same, with TCP_NODELAY on its streams too"},
	{0, OPTION_INT, "channels", AT(work.channels), 1, PERF_CHANNELS_MAX, NULL, "N", "as NCCL does: N connections each way, both directions at once"},
	{0, OPTION_INT, "pin", AT(pin), 0, 1, NULL, "0|1", "each rank's thread keeps to its half of the CPUs (1)"},
	{0, OPTION_INT, "huge", AT(work.huge), 0, 1, NULL, "0|1", "ask for buffers on huge pages, for all movers alike (1)"},
	{0, OPTION_TEXT, "plugin", AT(plugin), 0, 0, NULL, "P", "a plugin by NCCL's rules, name or path (Gantry's own TCP network)"},
	{0, OPTION_TEXT, "ifname", AT(ifname), 0, 0, NULL, "PATTERN", "interfaces, as in NCCL_SOCKET_IFNAME (lo)"},
	{0, OPTION_INT, "lanes", AT(work.lanes), 0, LANES_MAX, NULL, "N", "sockets per connection, as GANTRY_LANES"},
	{0, OPTION_FLAG, "calls", AT(calls), 0, 0, NULL, NULL, "list the system calls of both ranks at the end"},
	{0, OPTION_TIME, "timeout", AT(work.timeout_ns), 0, 0, NULL, "TIME", "treat as hung after this long without progress (60s)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf net",
	.usage = "[OPTION]... [HOST[:PORT] | --listen]",
	.about = "Two processes of this machine, or two machines, exchange messages over a net plugin; every byte is\n"
		 "checked. Between machines: --listen on one, its HOST on the other, whose options count.\n",
	.notes = "\nGB is 10^9 bytes, MiB is 2^20. SIZE takes k, M and G. See gantry-perf(1).\n",
	OPTION_SPECS(specs),
	.operand = "HOST",
	.operand_at = AT(remote.host),
	.keep_params = 1, /* set_environment does it */
};

static void make_sizes(struct perf_opts *o)
{
	o->work.raw |= o->work.raw_nodelay;
	o->work.nsizes = perf_sizes(o->begin, o->end, o->factor, o->work.sizes, PERF_SIZES_MAX);
}

/* 0, or the exit status plus 1 after a line on stderr. */
static int parse(int argc, char **argv, struct perf_opts *o)
{
	static struct perf_opts none;
	int status = options_parse(&set, argc, argv, o);

	if (status)
		return status;
	if (perf_remote_check(set.program, &o->remote) < 0)
		return 1 + 2;
	if (o->begin > o->end)
		return 1 + options_wrong(&set, "-b is larger than -e");
	if (o->work.channels && (o->work.raw || o->work.raw_nodelay))
		return 1 + options_wrong(&set, "--channels moves messages in both directions, --raw in one");
	make_sizes(o);
	none = defaults;
	make_sizes(&none);
	/* What is measured is the client's to say: an option that would have no effect is refused. */
	if (o->remote.listen && memcmp(&o->work, &none.work, sizeof(o->work)) != 0)
		return 1 + options_wrong(&set, "with --listen the client says what is measured: give sizes, counts "
					       "and --lanes there; --port, --forever, --plugin, --ifname, --calls and "
					       "--json go with --listen");
	return 0;
}

static uint64_t largest_size(const struct perf_opts *o)
{
	uint64_t largest = 0;

	for (size_t i = 0; i < o->work.nsizes; i++)
		largest = o->work.sizes[i] > largest ? o->work.sizes[i] : largest;
	return largest;
}

/* Channels are busy in both directions: buffers for each. */
static int buffers_of(const struct perf_opts *o, int slots)
{
	return o->work.channels ? 2 * o->work.channels * slots : slots;
}

/* Of a rank's buffers. */
static double buffer_bytes(const struct perf_opts *o)
{
	return (double)largest_size(o) * buffers_of(o, o->work.depth);
}

/* --lanes, for whatever network is opened later. */
static void set_lanes(const struct perf_opts *o)
{
	char text[16];

	if (o->work.lanes < 0)
		return;
	snprintf(text, sizeof(text), "%d", o->work.lanes);
	setenv("GANTRY_LANES", text, 1);
}

int perf_net_take(const struct perf_net_work *t, struct perf_opts *o)
{
	if (t->nsizes < 1 || t->nsizes > PERF_SIZES_MAX || t->repeats < 1 || t->repeats > PERF_REPEATS_MAX ||
	    t->depth < 1 || t->depth > PERF_DEPTH_MAX || t->lanes < -1 || t->lanes > LANES_MAX || t->channels < 0 ||
	    t->channels > PERF_CHANNELS_MAX || (t->channels && t->raw) || t->iters > ITERS_MAX ||
	    t->warmup > ITERS_MAX || !t->timeout_ns)
		return -1;
	for (uint64_t i = 0; i < t->nsizes; i++)
		if (t->sizes[i] < 1 || t->sizes[i] > SIZE_LIMIT)
			return -1;
	o->work = *t;
	return 0;
}

/* Options become variables, because a foreign plugin reads nothing else. Both ranks are on one host: loopback, unless
 * the user has named an interface. */
static int set_environment(const struct perf_opts *o)
{
	const char *given = getenv("GANTRY_IFNAME") ? getenv("GANTRY_IFNAME") : getenv("NCCL_SOCKET_IFNAME");
	const char *ifname = o->ifname ? o->ifname : given && given[0] ? given : "lo";

	if (o->ifname || !perf_remote_wanted(&o->remote)) {
		setenv("GANTRY_IFNAME", ifname, 1);
		setenv("NCCL_SOCKET_IFNAME", ifname, o->ifname != NULL);
	}
	set_lanes(o);
	return gantry_params_load(1) == GANTRY_OK ? perf_preflight(set.program, o->plugin, NULL) : -1;
}

/* ---- a rank ---- */

/* What of a slot the other host sees. */
struct far_slot {
	struct perf_sample sample;
	uint64_t wrong;
	char first_wrong[256];
	char handle[GANTRY_NET_HANDLE_SIZE];
	uint64_t raw_port;
};

static gantry_result sync_far(struct perf_net_rank *rk)
{
	struct far_slot mine = {.sample = rk->me->sample, .wrong = rk->me->wrong, .raw_port = rk->me->raw_port}, other;

	memcpy(mine.first_wrong, rk->me->first_wrong, sizeof(mine.first_wrong));
	memcpy(mine.handle, rk->me->handle, sizeof(mine.handle));
	TRY_NOW(perf_remote_swap(rk->remote, &mine, &other, sizeof(mine), NULL, NULL));
	rk->other->sample = other.sample;
	rk->other->wrong = other.wrong;
	rk->other->raw_port = (uint16_t)other.raw_port;
	perf_remote_words(rk->other->first_wrong, other.first_wrong, sizeof(other.first_wrong));
	memcpy(rk->other->handle, other.handle, sizeof(other.handle));
	perf_progress(rk->state);
	return GANTRY_OK;
}

gantry_result perf_sync(struct perf_net_rank *rk)
{
	if (rk->remote)
		return sync_far(rk);
	perf_ranks_meet(rk->state, rk->shared->pair.state, sizeof(struct perf_state), 2);
	return GANTRY_OK;
}

static gantry_result make_buffers(struct perf_net_rank *rk)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), largest = (size_t)largest_size(rk->opts);

	/* Without channels one buffer is sent from and another received into. */
	rk->nslots = rk->opts->work.depth < 2 && !rk->opts->work.channels ? 2 : rk->opts->work.depth;
	rk->nbufs = buffers_of(rk->opts, rk->nslots);
	rk->stride = (largest + PERF_BUF_PAD + page - 1) / page * page;
	rk->memory_size = rk->stride * (size_t)rk->nbufs;
	if (largest > SIZE_MAX / 2 / (size_t)rk->nbufs)
		FAIL_NOW(GANTRY_ERR_NOMEM, "%d buffers of %s do not fit", rk->nbufs, SIZE_TEXT(largest));
	rk->memory = perf_map(rk->memory_size, rk->opts->work.huge); /* the movers of --raw use it, too */
	if (!rk->memory)
		FAIL_NOW(GANTRY_ERR_NOMEM, "%d buffers of %s: %s; choose a smaller -e", rk->nbufs, SIZE_TEXT(largest),
			 strerror(errno));
	return GANTRY_OK;
}

/* The other machine, and what its user or this one wants to have measured. */
static gantry_result meet(struct perf_net_rank *rk, struct perf_remote *rm)
{
	const struct perf_opts *own = rk->opts;
	struct perf_shared *sh = rk->shared;
	struct perf_net_work other;
	char why[256];

	TRY_NOW(perf_pair_meet(&sh->pair, rm, set.program, &own->remote, &own->work, &other, sizeof(other)));
	rk->remote = rm;
	snprintf(sh->ifname, sizeof(sh->ifname), "%s", inet_wanted_interfaces());
	if (own->remote.listen && perf_net_take(&other, &sh->opts) < 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "the client's options make no sense here");
	if (own->remote.listen && !perf_memory_fits(1, buffer_bytes(&sh->opts), why, sizeof(why)))
		FAIL_NOW(GANTRY_ERR_NOMEM, "%s", why);
	set_lanes(rk->opts);
	TRY_NOW(gantry_params_load(1));
	store_relaxed(&rk->state->alone, 0);
	perf_progress(rk->state);
	return GANTRY_OK;
}

/* ---- one size ---- */

enum { MOVERS_MAX = 3, NETWORK = 0, RAW_SPIN = 1, RAW_BLOCK = 2 };
#define STREAM_NS 200000000u
#define PINGPONG_NS 30000000u
#define ITERS_TIMED_MAX (1u << 26)

static const struct perf_mover *const movers[MOVERS_MAX] = {&perf_mover_peer, &perf_mover_raw_spin,
							    &perf_mover_raw_block};

static const struct perf_mover *mover_of(const struct perf_opts *o, int m)
{
	return m == NETWORK && o->work.channels ? &perf_mover_channels : movers[m];
}

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
static gantry_result timed(struct perf_net_rank *rk, const struct perf_mover *mv, enum kind kind, size_t size,
			   uint64_t iters, uint64_t *ret_ns)
{
	struct call_counts before = {.all = 0}, after = {.all = 0};
	struct perf_sample s;
	uint64_t cpu;

	rk->round++;
	perf_phase(rk->state, kind == STREAM ? mv->name : "ping-pong", size);
	TRY_NOW(perf_sync(rk));
	s.counted = calls_now(&before);
	cpu = cpu_ns();
	s.start_ns = gantry_now_ns();
	TRY_NOW(kind == STREAM ? mv->stream(rk, size, iters) : mv->pingpong(rk, size, iters));
	s.end_ns = gantry_now_ns();
	s.cpu_ns = cpu_ns() - cpu;
	calls_now(&after);
	s.all = after.all - before.all;
	s.moved = after.moved - before.moved;
	rk->me->sample = s;
	TRY_NOW(perf_sync(rk));
	/* The other rank writes its sample again only after the next barrier, where it waits for us. */
	*ret_ns = rk->remote ? longer(&s, &rk->other->sample) : both(&s, &rk->other->sample);
	return GANTRY_OK;
}

/* Both ranks come to the same count, because they see the same times. */
static gantry_result calibrate(struct perf_net_rank *rk, const struct perf_mover *mv, enum kind kind, size_t size,
			       uint64_t *ret_iters)
{
	const struct perf_opts *o = rk->opts;
	uint64_t target = kind == STREAM ? STREAM_NS : PINGPONG_NS,
		 min = kind == STREAM ? 2u * (unsigned)o->work.depth : 2;
	uint64_t iters = o->work.warmup ? o->work.warmup : min, ns;

	for (int round = 0; round < 20; round++) {
		TRY_NOW(timed(rk, mv, kind, size, iters, &ns));
		if (o->work.iters)
			break;
		iters = perf_next_iters(iters, ns, target, min, ITERS_TIMED_MAX);
		if (ns >= target / 8)
			break;
	}
	*ret_iters = o->work.iters ? o->work.iters : iters;
	return GANTRY_OK;
}

static void keep_stream(const struct perf_net_rank *rk, struct series *se, int k, uint64_t iters, uint64_t ns)
{
	const struct perf_sample *tx = &rk->shared->rank[0].sample, *rx = &rk->shared->rank[1].sample;
	int channels = rk->opts->work.channels;
	/* Messages of one direction, and of those there were. */
	double one = (double)iters * (channels ? channels : 1), n = one * (channels ? 2 : 1);
	int counted = tx->counted && rx->counted;

	se->rate[k] = one * 1e9 / (double)(ns ? ns : 1);
	se->cpu[k] = (double)(tx->cpu_ns + rx->cpu_ns) / n;
	se->moved_tx[k] = counted ? (double)tx->moved / n : NAN;
	se->moved_rx[k] = counted ? (double)rx->moved / n : NAN;
	se->all[k] = counted ? (double)(tx->all + rx->all) / n : NAN;
}

static gantry_result repeat(struct perf_net_rank *rk, const struct perf_mover *mv, enum kind kind, size_t size,
			    struct series *se, int k)
{
	const struct perf_opts *o = rk->opts;
	uint64_t ns, iters = se->iters[kind];

	TRY_NOW(timed(rk, mv, kind, size, iters, &ns));
	if (kind == STREAM)
		keep_stream(rk, se, k, iters, ns);
	else
		se->lat[k] = (double)ns / 1e3 / (2.0 * (double)iters);
	/* A calibration that met a hiccup is corrected by the first repeats. */
	if (!o->work.iters)
		se->iters[kind] = perf_next_iters(iters, ns, kind == STREAM ? STREAM_NS : PINGPONG_NS,
						  kind == STREAM ? 2u * (unsigned)o->work.depth : 2, ITERS_TIMED_MAX);
	return GANTRY_OK;
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

static gantry_result measure(struct perf_net_rank *rk, size_t size, struct perf_row *ret_row)
{
	static struct series se[MOVERS_MAX];
	const struct perf_opts *o = rk->opts;
	int nmovers = o->work.raw ? MOVERS_MAX : 1;
	uint64_t wrong_before;

	perf_phase(rk->state, "verified messages", size);
	TRY_NOW(perf_sync(rk));
	wrong_before = rk->me->wrong + rk->other->wrong;
	TRY_NOW(perf_sync(rk));
	if (o->work.check)
		TRY_NOW(perf_peer_verify(rk, size));
	for (int kind = 0; kind < KINDS; kind++)
		for (int m = 0; m < nmovers; m++) {
			if (kind == PINGPONG && !movers[m]->pingpong)
				continue;
			TRY_NOW(calibrate(rk, mover_of(o, m), (enum kind)kind, size, &se[m].iters[kind]));
		}
	for (int k = 0; k < o->work.repeats; k++)
		for (int kind = 0; kind < KINDS; kind++)
			for (int m = 0; m < nmovers; m++) {
				if (kind == PINGPONG && !movers[m]->pingpong)
					continue;
				TRY_NOW(repeat(rk, mover_of(o, m), (enum kind)kind, size, &se[m], k));
			}
	*ret_row = (struct perf_row){.bytes = size, .wrong = rk->me->wrong + rk->other->wrong - wrong_before};
	make_row(o, se, size, ret_row);
	return GANTRY_OK;
}

/* ---- a rank's life ---- */

/* Rank 0's row, for both to print. */
static gantry_result keep_row(struct perf_net_rank *rk, size_t i, const struct perf_row *row)
{
	struct perf_row *rows = rk->shared->rows;

	if (!rk->remote && rk->rank == 1)
		return GANTRY_OK;
	if (rk->remote)
		TRY_NOW(perf_remote_swap(rk->remote, row, &rows[i], sizeof(*row), NULL, NULL));
	if (rk->rank == 0)
		rows[i] = *row;
	store_release(&rk->shared->nrows, i + 1);
	return GANTRY_OK;
}

static gantry_result rank_work(struct perf_net_rank *rk)
{
	struct perf_row row;

	TRY_NOW(make_buffers(rk));
	perf_phase(rk->state, "connecting", 0);
	TRY_NOW(perf_peer_open(rk));
	if (rk->opts->work.raw)
		TRY_NOW(perf_raw_open(rk));
	/*
	 * Otherwise the blocking mover's wake-ups leave both ranks on one CPU, and whatever is measured next begins
	 * there, in turns of several milliseconds. After the network was opened, so that it and its threads see and may
	 * use all CPUs.
	 */
	if (rk->opts->pin && !rk->remote)
		perf_keep_to_part(rk->rank, 2);
	for (size_t i = 0; i < rk->opts->work.nsizes; i++) {
		TRY_NOW(measure(rk, rk->opts->work.sizes[i], &row));
		TRY_NOW(keep_row(rk, i, &row));
	}
	perf_phase(rk->state, "closing", 0);
	if (rk->remote)
		TRY_NOW(perf_remote_load(rk->remote, &rk->shared->pair.others_cpu));
	return perf_sync(rk);
}

static void keep_calls(struct perf_slot *slot, const struct call_counts *before)
{
	if (!slot->calls_counted || !calls_now(&slot->calls))
		return;
	for (int k = 0; k < CALL_KIND_COUNT; k++)
		slot->calls.made[k] -= before->made[k];
	slot->calls.all -= before->all;
	slot->calls.moved -= before->moved;
}

/* In a process of its own. */
static int run_rank(void *ctx, int rank, int n)
{
	struct perf_shared *shared = ctx;
	struct perf_net_rank rk = {.rank = rank,
				   .opts = &shared->opts,
				   .shared = shared,
				   .state = &shared->pair.state[rank],
				   .me = &shared->rank[rank],
				   .other = &shared->rank[!rank]};
	struct perf_remote remote = {.ctl = NULL};
	struct call_counts before;
	gantry_result r = GANTRY_OK;

	(void)n;
	rk.me->calls_counted = calls_now(&before);
	gantry_set_last_error("");
	if (perf_remote_wanted(&rk.opts->remote))
		r = meet(&rk, &remote);
	if (r == GANTRY_OK)
		r = rank_work(&rk);
	if (r != GANTRY_OK)
		perf_pair_failed(&shared->pair, rank, &remote, r);
	raw_tcp_close(&rk.raw);
	perf_peer_close(&rk);
	if (rk.memory)
		munmap(rk.memory, rk.memory_size);
	keep_calls(rk.me, &before);
	perf_remote_close(&remote);
	return r != GANTRY_OK;
}

/* ---- the parent ---- */

/* clang-format off */
#define FIELD(field) offsetof(struct perf_row, field)
static const struct perf_column columns[] = {
	{"size", "(B)", "bytes", PERF_COUNT, 11, FIELD(bytes)},
	{"bandwidth", "(GB/s)", "bw_gbs", PERF_SPREAD, 7, FIELD(bw)},
	{"latency", "(us)", "lat_us", PERF_SPREAD, 7, FIELD(lat)},
	{"rate", "(msg/s)", "msgs_per_s", PERF_FIGURE, 9, FIELD(rate)},
	{"cpu", "(s/GB)", "cpu_s_per_gb", PERF_FIGURE, 7, FIELD(cpu)},
	{"tx", "(/MiB)", "syscalls_per_mib_tx", PERF_FIGURE, 7, FIELD(moved_tx)},
	{"rx", "(/MiB)", "syscalls_per_mib_rx", PERF_FIGURE, 7, FIELD(moved_rx)},
	{"all", "(/MiB)", "calls_per_mib", PERF_FIGURE, 7, FIELD(all)},
	{"#wrong", "(B)", "wrong", PERF_WRONG, 7, FIELD(wrong)},
	/* From here on: --raw. */
	{"raw bw", "(GB/s)", "raw_bw_gbs", PERF_FIGURE, 7, FIELD(raw_bw)},
	{"ratio", "", "bw_ratio", PERF_FIGURE, 6, FIELD(bw_ratio)},
	{"raw lat", "(us)", "raw_lat_us", PERF_FIGURE, 7, FIELD(raw_lat)},
	{"ratio", "", "lat_ratio", PERF_FIGURE, 6, FIELD(lat_ratio)},
	{"raw cpu", "(s/GB)", "raw_cpu_s_per_gb", PERF_FIGURE, 7, FIELD(raw_cpu)},
	{"ratio", "", "cpu_ratio", PERF_FIGURE, 6, FIELD(cpu_ratio)},
};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]), RAW_COLUMNS = 6 };
/* clang-format on */

static struct perf_table table = {.op = "net"};

static void print_header(const struct perf_opts *o, const struct perf_shared *sh)
{
	const char *ifname = sh->ifname[0] ? sh->ifname : getenv("GANTRY_IFNAME");

	perf_table_begin(&table, options_command(),
			 sh->pair.peer[0] ? "isend and irecv of a net plugin, between two machines"
					  : "isend and irecv of a net plugin, between two processes");
	if (sh->pair.peer[0])
		perf_fact_text(&table, "peer", sh->pair.peer);
	perf_fact_text(&table, "network", sh->net_name);
	perf_fact_text(&table, "from", sh->net_from);
	if (o->json || sh->net_version)
		perf_fact_int(&table, "version", sh->net_version);
	perf_fact_text(&table, "device", sh->dev_name);
	perf_fact_text(&table, "interfaces", ifname ? ifname : "any");
	perf_fact_int(&table, "depth", o->work.depth);
	perf_fact_int(&table, "repeats", o->work.repeats);
	if (o->work.channels) {
		perf_fact_int(&table, "channels", o->work.channels);
		perf_table_note(
			&table,
			"bandwidth, rate: of each direction; latency: of one message each way on all channels; "
			"cpu, calls: of both directions' bytes; tx, rx: calls of rank 0 and 1 that moved bytes");
	} else {
		perf_table_note(&table,
				"latency: one way; cpu and all calls: both sides; tx, rx: calls that moved bytes");
	}
	perf_table_columns(&table, columns, o->work.raw ? COLUMNS : COLUMNS - RAW_COLUMNS);
}

/* The header as soon as the network is known, before anything is measured. */
static void print_new(void *shared, struct perf_ranks *p)
{
	struct perf_shared *sh = shared;
	size_t n = load_acquire(&sh->nrows);

	if (!table.open && load_acquire(&sh->pair.info_ready))
		print_header(&sh->opts, sh);
	for (; p->printed < n; p->printed++)
		perf_table_row(&table, &sh->rows[p->printed]);
}

static void print_calls(const struct perf_opts *o, const struct perf_shared *sh)
{
	for (int rank = 0; rank < 2; rank++) {
		const struct perf_slot *s = &sh->rank[rank];

		for (int k = 0; s->calls_counted && k < CALL_KIND_COUNT; k++) {
			struct gantry_json j;

			if (!s->calls.made[k])
				continue;
			if (!o->json) {
				printf("# rank %d: %llu %s\n", rank, (unsigned long long)s->calls.made[k],
				       count_calls_name((enum call_kind)k));
				continue;
			}
			gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
			gantry_json_int(&j, "rank", rank);
			gantry_json_str(&j, "call", count_calls_name((enum call_kind)k));
			gantry_json_int(&j, "count", (int64_t)s->calls.made[k]);
			gantry_json_end(&j);
		}
	}
}

/* NULL: nothing was wrong. */
static const char *first_wrong(const struct perf_shared *sh)
{
	for (int rank = 0; rank < 2; rank++)
		if (sh->rank[rank].wrong)
			return sh->rank[rank].first_wrong;
	return NULL;
}

static uint64_t timeout_of(void *shared)
{
	return ((struct perf_shared *)shared)->opts.work.timeout_ns;
}

static int run_once(void *arg)
{
	const struct perf_opts *o = arg;
	struct perf_shared *shared = perf_ranks_map(set.program, sizeof(*shared));
	struct perf_ranks ranks = {.program = set.program,
				   .unit = "messages",
				   .ctx = shared,
				   .run = run_rank,
				   .print = print_new,
				   .timeout = timeout_of};
	int status;

	if (!shared)
		return 1;
	shared->opts = *o;
	table.out = stdout;
	table.json = o->json;
	status = perf_pair_run(&shared->pair, &o->remote, &ranks);
	if (status == PERF_REMOTE_CANNOT)
		return status;
	table.unchecked = !shared->opts.work.check;
	table.ours = shared->pair.others_cpu;
	if (o->calls)
		print_calls(o, shared);
	return perf_table_end(&table, status, first_wrong(shared));
}

/* The built-in network moves host memory here; a user who sets UNPACK wants to measure that. */
static void say_unpack_unused(const struct perf_opts *o)
{
	enum param_unpack wanted = gantry_params()->unpack;

	if (!o->plugin && (wanted == PARAM_UNPACK_KERNEL || wanted == PARAM_UNPACK_EMULATED))
		fprintf(stderr,
			"%s: GANTRY_UNPACK=%s is not used: the built-in network is measured with host memory; "
			"--plugin libnccl-net-gantry.so measures the plugin with it, gantry perf rx the pipeline\n",
			set.program, param_unpack_words[wanted]);
}

int cmd_perf_net(int argc, char **argv)
{
	static struct perf_opts o;
	int status;

	o = defaults;
	status = parse(argc, argv, &o);
	if (status)
		return status - 1;
	if (set_environment(&o) < 0)
		return 2;
	say_unpack_unused(&o);
	if (!o.remote.listen && perf_memory_check("net", perf_remote_wanted(&o.remote) ? 1 : 2, buffer_bytes(&o)) < 0)
		return 1;
	return perf_remote_main(&o.remote, run_once, &o);
}
