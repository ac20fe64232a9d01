/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost model: which algorithm and protocol, how many channels, which chunk.
 *
 *   time = begin
 *        + hops on the longest way * latency of a hop            (the algorithm's, by kind of link)
 *        + messages of a rank * what one costs                   (its plan's)
 *        + bytes that a rank moves and adds * what a byte costs  (its plan's)
 *        + hops * a chunk, where all of the buffer takes all hops
 *        + half of the hops' latency for each further chunk, where a rank ends one before it begins the next
 *
 * Bytes take no less time than the NICs of a host need for those of all its ranks.
 *
 * Where ranks are more than the cores they share, messages and bytes cost as many times more, messages over TCP also
 * what the kernel does for them, since no core does that beside the ranks, and a hop waits until its receiver gets a core.
 * There direct2 cuts the buffer into few parts: with one, a rank reduces for all, in as few messages as can be. Small messages
 * over TCP that leave together (coll_join_messages) cost what one does. On a GPU
 * channels share the bytes, as far as the network that is common to them is not the limit.
 *
 * All ranks must choose alike, so everything is computed from what is the same on all of them, and in integers: no two
 * compilers round differently. Amounts are taken once from the plans of some ranks, which are the same for every rank
 * that makes them; the answer for a size is kept, since programs call with the same size again and again.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "coll/coll.h"
#include "device/k_prim.h"

/* ---- what things cost ---- */

/*
 * CPU rows: two Neoverse-N1 cores, 2 and 4 ranks, `gantry perf all_reduce` with each algorithm and protocol forced, 8 B
 * to 2 MiB, least of 20 or 30 calls (docs/design/0019-collectives.md has the table). COLL_LINK_GPU: 2 and 4 ranks on one
 * H200, 1 KiB to 4 MiB, each algorithm and protocol with 1 to 32 channels (bench/results/2026-11-16-h200-sweep.md).
 * COLL_LINK_GPU_NET: the same machine over loopback, 1 KiB to 64 MiB (bench/results/2026-11-18-h200-engine.md); LL128 is not
 * there, since lines do not stay whole. COLL_LINK_GPU_HOST is a starting point after NCCL's model, not measured.
 */
static const struct coll_cost costs[COLL_LINKS][GANTRY_PROTOS] = {
	[COLL_LINK_CPU] = {[GANTRY_PROTO_SIMPLE] = {250, 150, 70, 40, 0, 0},
			   [GANTRY_PROTO_LL] = {200, 120, 900, 300, 0, 0},
			   [GANTRY_PROTO_LL128] = {220, 140, 1000, 300, 0, 0}},
	[COLL_LINK_CPU_NET] = {[GANTRY_PROTO_SIMPLE] = {8000, 1500, 430, 30, 0, 0},
			       [GANTRY_PROTO_LL] = {8000, 1100, 2800, 300, 0, 0},
			       [GANTRY_PROTO_LL128] = {8000, 1700, 2000, 300, 0, 0}},
	[COLL_LINK_GPU] = {[GANTRY_PROTO_SIMPLE] = {3000, 5000, 58, 34, 0, 0},
			   [GANTRY_PROTO_LL] = {500, 2300, 440, 890, 0, 0},
			   [GANTRY_PROTO_LL128] = {500, 2800, 670, 930, 0, 0}},
	[COLL_LINK_GPU_HOST] = {[GANTRY_PROTO_SIMPLE] = {6000, 600, 100, 5, 0, 0},
				[GANTRY_PROTO_LL] = {2500, 300, 300, 5, 0, 0},
				[GANTRY_PROTO_LL128] = {3000, 300, 150, 5, 0, 0}},
	[COLL_LINK_GPU_NET] = {[GANTRY_PROTO_SIMPLE] = {20000, 12000, 280, 5, 60, 0},
			       [GANTRY_PROTO_LL] = {8000, 6500, 2000, 5, 2000, 0},
			       [GANTRY_PROTO_LL128] = {8000, 6500, 2000, 5, 2000, 0}},
};
enum {
	BEGIN_CPU = 450,      /* ns: a call, without its hops */
	BEGIN_GPU = 14500,    /* with the launch */
	GET_CORE = 1000,      /* ns until a receiver that shares its core runs */
	GET_CORE_NET = 5000,  /* over TCP, where a hop's own time is longer; fitted with the next one */
	CROWD_MESSAGE = 2700, /* ns more for a message over TCP where ranks share cores */
	CROWD_PART = 32768,   /* bytes of a part there at least, by direct2 */
	JOINED_MOST = 32768,  /* bytes of a message that a caller sends together with others (comm/small.c) */
	WIRE_CORES = 8,	      /* that a rank on a GPU keeps busy when its network is: with fewer, bytes cost more */
};

static bool on_gpu(const struct coll_limits *l)
{
	return l->local >= COLL_LINK_GPU;
}

/* ---- amounts ---- */

/* What one rank does, or several together. */
struct tally {
	uint32_t local, wire[2]; /* wire: received and sent */
	uint32_t joined;	 /* sends among these */
	uint32_t added, parts, delay;
};

/* Adds what the plan of one rank says. */
static gantry_result tally_rank(const struct coll_topo *topo, enum coll_algo_id algo, enum coll_kind kind, int rank,
				struct tally *sum)
{
	struct coll_topo as = *topo;
	struct coll_plan *plan;

	as.rank = rank;
	TRY_NOW(coll_plan_make(&as, algo, kind, 0, 0, &plan));
	for (uint32_t i = 0; i < plan->nsteps; i++) {
		const struct gantry_coll_step *t = &plan->steps[i];
		uint32_t sources = (t->what & PRIM_IN ? 1 : 0) + (t->what & PRIM_ACC ? 1 : 0) + t->nrecv;

		sum->added += sources > 1 ? sources - 1 : 0;
		sum->joined += (uint32_t)__builtin_popcount(t->joins);
		for (uint32_t k = 0; k < (uint32_t)t->nrecv + t->nsend; k++) {
			int sends = k >= t->nrecv,
			    peer = plan->peers[sends ? t->send + k - t->nrecv : t->recv + k].rank;

			if (peer == rank || topo->host[peer] != topo->host[rank])
				sum->wire[sends]++;
			else
				sum->local++;
		}
	}
	sum->parts = plan->nparts;
	sum->delay = plan->delay;
	coll_plan_free(plan);
	return GANTRY_OK;
}

/* The most of each. */
static gantry_result add_amounts(const struct coll_topo *topo, enum coll_algo_id algo, enum coll_kind kind, int rank,
				 struct coll_amounts *a)
{
	struct tally t = {0};
	uint32_t wire;

	TRY_NOW(tally_rank(topo, algo, kind, rank, &t));
	wire = t.wire[0] + t.wire[1];
	a->parts = coll_by_rank(kind) ? (uint32_t)topo->nranks : t.parts;
	a->overlaps |= t.delay > 0;
	/* A rank with most of its messages over the network is the slowest. */
	if (wire > a->moved[1] || (wire == a->moved[1] && t.local > a->moved[0])) {
		a->moved[0] = t.local;
		a->moved[1] = wire;
		a->joined = 2 * t.joined; /* as many come so */
	}
	a->added = t.added > a->added ? t.added : a->added;
	return GANTRY_OK;
}

/* By all ranks of the host that has `rank`. */
static gantry_result add_wire(const struct coll_topo *topo, enum coll_algo_id algo, enum coll_kind kind, int rank,
			      struct coll_amounts *a)
{
	struct tally t = {0};

	for (int i = 0; i < topo->nranks; i++)
		if (topo->host[i] == topo->host[rank])
			TRY_NOW(tally_rank(topo, algo, kind, i, &t));
	for (int way = 0; way < 2; way++)
		a->wire = t.wire[way] > a->wire ? t.wire[way] : a->wire;
	return GANTRY_OK;
}

static gantry_result find_amounts(struct coll_model *m, enum coll_kind kind)
{
	int n = m->topo->nranks;
	const int some[] = {0, 1 % n, n / 2, n - 1};

	for (int algo = 0; algo < COLL_ALGOS; algo++) {
		struct coll_amounts *a = &m->amounts[algo][kind];

		if (!coll_algos[algo]->supports(m->topo, kind))
			continue;
		for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
			TRY_NOW(add_amounts(m->topo, (enum coll_algo_id)algo, kind, some[i], a));
		for (int last = 0; last < 2 && m->limits.nics && m->topo->nhosts > 1; last++)
			TRY_NOW(add_wire(m->topo, (enum coll_algo_id)algo, kind, last ? n - 1 : 0, a));
		a->hops = coll_algos[algo]->hops(m->topo, kind);
		/* Hosts that reduce for each other: as many bytes again, and a sum. */
		if (coll_algos[algo]->network && !m->limits.reducers) {
			a->wire *= 2;
			a->moved[1] *= 2;
			a->added++;
		}
	}
	m->kinds[kind].known = true;
	return GANTRY_OK;
}

void coll_model_init(const struct coll_topo *topo, const struct coll_limits *limits, struct coll_model *ret_model)
{
	memset(ret_model, 0, sizeof(*ret_model));
	ret_model->topo = topo;
	ret_model->limits = *limits;
	memcpy(ret_model->cost[0], costs[limits->local], sizeof(ret_model->cost[0]));
	memcpy(ret_model->cost[1], costs[limits->remote], sizeof(ret_model->cost[1]));
	for (int proto = 0; proto < GANTRY_PROTOS; proto++) {
		ret_model->cost[1][proto].hop += limits->latency;
		if (limits->local == limits->remote)
			ret_model->cost[0][proto].hop += limits->latency;
	}
	ret_model->begin = on_gpu(limits) ? BEGIN_GPU : BEGIN_CPU;
}

/* ---- a choice and its cost ---- */

enum { EXCHANGE_PLANNED = 65536 };
enum { LEAST_STEP = 16384, LEAST_UNIT = 4096, SLICE_CPU = 131072, SLICE_GPU = 262144 };
enum { SLICE_NET = 262144, SLICE_NET_LONG = 524288, DEEP_SLICES = 4 };

/* Ranks on GPUs, of which some or all are reached over the network. */
static bool on_gpu_net(const struct coll_model *m)
{
	return on_gpu(&m->limits) && (m->topo->nhosts > 1 || m->limits.local == COLL_LINK_GPU_NET);
}

/*
 * Steps, slices and chunks. Where all of the buffer takes all hops (one part), it is cut so that hops work at the same
 * time. Otherwise each part is at every rank at some time: one piece, if it is small; else slices that are still in the
 * cache when they are reduced, and chunks of two, one of which is moved while the other is worked on. 128 KiB are best
 * in shared memory. Over TCP a message more costs more than what the cache saves. docs/design/0021 has measurements. Between
 * a GPU and the network a slice passes six threads and back, so four of them are on their way (docs/design/0039).
 */
static uint32_t slice_for(const struct coll_model *m, uint64_t part)
{
	if (on_gpu_net(m))
		return part >= 4 * SLICE_NET_LONG ? SLICE_NET_LONG : SLICE_NET;
	if (on_gpu(&m->limits))
		return SLICE_GPU;
	if (m->limits.local != COLL_LINK_CPU_NET)
		return SLICE_CPU;
	return part >= SLICE_NET_LONG ? SLICE_NET_LONG : SLICE_NET;
}

/* Parts that are not empty. */
static uint64_t parts_of(const struct coll_amounts *a, uint64_t bytes, const struct coll_choice *c)
{
	uint64_t n = c->part_bytes ? (bytes / c->channels + c->part_bytes - 1) / c->part_bytes : a->parts;

	return n < 1 ? 1 : n < a->parts ? n : a->parts;
}

/* Bytes of a step that holds so many, if one can. */
static uint32_t step_for(const struct coll_choice *c, uint64_t bytes)
{
	bytes = (bytes + LEAST_UNIT - 1) / LEAST_UNIT * LEAST_UNIT;
	bytes = bytes > LEAST_STEP ? bytes : LEAST_STEP;
	return bytes < c->step_bytes ? (uint32_t)bytes : c->step_bytes;
}

static void choose_chunk(const struct coll_model *m, const struct coll_amounts *a, uint64_t bytes,
			 struct coll_choice *c)
{
	uint32_t hops = a->hops.local + a->hops.net, most = GANTRY_STEPS / coll_algos[c->algo]->chunks;
	uint64_t part = bytes / c->channels / parts_of(a, bytes, c), step = part / (2 * hops + 1);
	uint32_t slice = slice_for(m, part), deep;

	c->slice_steps = c->chunk_steps = 1;
	most = most < 4 ? most : 4;
	if (c->proto != GANTRY_PROTO_SIMPLE) {
		c->chunk_steps = most;
	} else if (a->parts == 1 && hops > 1 && step < c->step_bytes) {
		c->step_bytes = step_for(c, step);
	} else if (part > c->step_bytes || part > slice) {
		c->step_bytes = c->step_bytes < slice ? c->step_bytes : slice;
		/* Two steps are a message at most: coll_model.c. */
		if (most > 1 && 2 * c->step_bytes <= slice)
			c->slice_steps = 2;
		deep = c->slice_steps * (on_gpu_net(m) ? DEEP_SLICES : 2);
		c->chunk_steps = deep < most ? deep : most;
	} else if (m->limits.local == COLL_LINK_CPU_NET) {
		/* No larger than the part, which is cut at cache lines: messages of a call with many bytes in its steps wait
		 * for their receives (transport/net_progress.c). */
		c->step_bytes = step_for(c, (part > c->part_bytes ? part : c->part_bytes) + 128);
	}
}

/* Between kernels on GPUs a channel more costs next to nothing; elsewhere it is one more for a CPU to serve. */
enum { CHANNEL_GPU_SIMPLE = 32768, CHANNEL_GPU_LINES = 4096, CHANNEL_GPU_NET = 262144 };

static uint64_t channels_of(const struct coll_model *m, enum gantry_proto proto, uint64_t bytes)
{
	const struct coll_limits *l = &m->limits;
	uint64_t least = gantry_params()->split_min,
		 gpu = proto == GANTRY_PROTO_SIMPLE ? CHANNEL_GPU_SIMPLE : CHANNEL_GPU_LINES, n;

	if (on_gpu_net(m))
		gpu = CHANNEL_GPU_NET;
	if (on_gpu_net(m) || (m->topo->nhosts == 1 && l->local == COLL_LINK_GPU))
		least = gpu < least ? gpu : least;
	n = bytes / least;
	return n < 1 ? 1 : n < l->channels ? n : l->channels;
}

/*
 * ns that a hop costs again with every chunk but the first, where a rank waits for one before it begins the next. On one GPU that is not
 * seen with two ranks, which hand on nothing; four take 868 us for 128 MiB by rings and 700 by direct2.
 */
static uint64_t turn_cost(enum coll_link link, const struct coll_cost *c, uint32_t hops)
{
	if (link == COLL_LINK_GPU)
		return hops > 2 ? 2 * c->message : 0;
	return link == COLL_LINK_CPU_NET || link == COLL_LINK_GPU_NET ? c->hop / 2 : 0;
}

/* ps of bytes that a rank sends or receives: half of what moving them costs, the rest is the other rank's. all: of the buffer. */
static uint64_t move_cost(const struct coll_limits *l, const struct coll_cost *c, uint64_t bytes, uint64_t all,
			  uint32_t channels)
{
	uint64_t each = bytes * c->move / (on_gpu(l) ? channels : 1), wire = bytes * c->wire, cold = 0;

	if (c->cold && all > COLL_WARM)
		cold = bytes * ((uint64_t)c->cold * (all - COLL_WARM) / all);

	if (l->cores && l->cores < WIRE_CORES)
		wire = wire * WIRE_CORES / l->cores;
	return ((each > wire ? each : wire) + cold) / 2;
}

/* ps of a message, on all channels: a network serves them one after the other. */
static uint64_t message_cost(const struct coll_cost *c, uint32_t channels)
{
	return 1000ull * c->message * (c->wire ? channels : 1);
}

/* Chunks of a channel's part. The other figures were fitted with one more where the last is full. */
static uint64_t pieces_of(const struct coll_model *m, uint64_t part, uint64_t chunk)
{
	if (!on_gpu_net(m))
		return part / chunk + 1;
	return part ? (part + chunk - 1) / chunk : 1;
}

/*
 * ps until the last hop has something to do. All of the buffer takes all hops: a chunk at each. Otherwise every rank begins at
 * once, but between a GPU and the network even a slice takes long from hop to hop.
 */
static uint64_t fill_cost(const struct coll_model *m, const struct coll_amounts *a, uint64_t part,
			  const struct coll_choice *c)
{
	const struct coll_cost *local = &m->cost[0][c->proto], *net = &m->cost[1][c->proto];
	uint64_t chunk = (uint64_t)c->step_bytes * c->chunk_steps, slice = (uint64_t)c->step_bytes * c->slice_steps;
	uint32_t hops = a->hops.local + a->hops.net;

	if (hops < 2)
		return 0;
	if (a->parts == 1)
		return (chunk < part ? chunk : part) * (hops - 1) * (a->hops.net ? net->move : local->move);
	if (!on_gpu_net(m))
		return 0;
	part /= c->channels;
	return (slice < part ? slice : part) * (a->hops.local * local->move + a->hops.net * net->move) * (hops - 1) /
	       hops;
}

/* Messages of a rank that leave together with others; of one kind: all go over TCP. */
static uint32_t joined_of(const struct coll_model *m, const struct coll_amounts *a, uint64_t part,
			  const struct coll_choice *c)
{
	return m->limits.local == COLL_LINK_CPU_NET && part <= JOINED_MOST && c->channels == 1 ? a->joined : 0;
}

/* ps. Sizes above are as good as this one, and numbers stay far from where they would overflow. */
enum { COST_BYTES_BITS = 34 };
uint64_t coll_cost_of(const struct coll_model *m, const struct coll_amounts *a, uint64_t bytes,
		      const struct coll_choice *c)
{
	const struct coll_limits *l = &m->limits;
	const struct coll_cost *local = &m->cost[0][c->proto], *net = &m->cost[1][c->proto];
	uint64_t most = 1ull << COST_BYTES_BITS, parts = parts_of(a, bytes, c),
		 part = (bytes < most ? bytes : most) / parts + 1, chunk = (uint64_t)c->step_bytes * c->chunk_steps;
	uint64_t pieces = pieces_of(m, part / c->channels, chunk);
	uint64_t hop = 1000ull * (a->hops.local * local->hop + a->hops.net * net->hop), move, messages;
	uint32_t hops = a->hops.local + a->hops.net;
	bool all_tcp = l->local == COLL_LINK_CPU_NET;
	uint32_t joined = joined_of(m, a, part, c);

	messages = pieces *
		   (a->moved[0] * message_cost(local, c->channels) + a->moved[1] * message_cost(net, c->channels));
	messages -= joined * message_cost(net, c->channels);
	move = move_cost(l, local, part * a->moved[0], bytes, c->channels) +
	       move_cost(l, net, part * a->moved[1], bytes, c->channels) +
	       part * a->added * local->add / (on_gpu(l) ? c->channels : 1);
	if (!on_gpu(l) && l->crowd > COLL_CROWD) {
		if (all_tcp)
			messages += 1000ull * pieces * CROWD_MESSAGE * (a->moved[0] + a->moved[1] - joined);
		messages = messages * l->crowd / COLL_CROWD * parts / a->parts;
		move = move * l->crowd / COLL_CROWD * parts / a->parts;
		hop += 1000ull * (all_tcp ? GET_CORE_NET : GET_CORE) * hops;
	}
	if (!a->overlaps && hops > 1)
		hop += 1000ull * (pieces - 1) *
		       (a->hops.local * turn_cost(l->local, local, hops) +
			a->hops.net * turn_cost(l->remote, net, hops));
	move += fill_cost(m, a, part, c);
	if (move < part * a->wire * l->nics)
		move = part * a->wire * l->nics;
	return 1000ull * m->begin + hop + messages + move;
}

void coll_choose_sizes(const struct coll_model *m, const struct coll_amounts *a, uint64_t bytes, struct coll_choice *c)
{
	c->channels = (uint32_t)channels_of(m, c->proto, bytes);
	c->step_bytes = m->limits.step_bytes[c->proto];
	choose_chunk(m, a, bytes, c);
}

static uint64_t on_channels(const struct coll_model *m, const struct coll_ask *ask, enum coll_algo_id algo,
			    enum gantry_proto proto, uint64_t channels, struct coll_choice *c)
{
	const struct coll_amounts *a = &m->amounts[algo][ask->kind];

	*c = (struct coll_choice){.algo = algo,
				  .proto = proto,
				  .channels = (uint32_t)channels,
				  .step_bytes = m->limits.step_bytes[proto]};
	if (algo == COLL_DIRECT2 && m->limits.crowd > COLL_CROWD && m->limits.local == COLL_LINK_CPU_NET)
		c->part_bytes = CROWD_PART;
	choose_chunk(m, a, ask->bytes, c);
	return coll_cost_of(m, a, ask->bytes, c);
}

/*
 * Of a rank on a GPU with few cores: at least so much of a part to a channel that slices are long, or two channels. What the cores do
 * for a message then counts for more than what channels do at the same time, which no row of the model says (4 ranks on 16 CPUs, 16 MiB:
 * 4,500 to 4,900 us with 4 channels, 4,000 with 2; 128 MiB: 24,700 with 8, 29,600 with 2).
 */
static uint64_t fewer_channels(const struct coll_model *m, uint64_t part, uint64_t n)
{
	const uint32_t cores = m->limits.cores;

	while (on_gpu_net(m) && cores && cores < WIRE_CORES && n > 2 && part / n < DEEP_SLICES * SLICE_NET_LONG)
		n /= 2;
	return n;
}

/*
 * Fills in what follows from algorithm and protocol. Answers the cost; UINT64_MAX: it is not to be had. Between GPUs and a
 * network every channel has messages of its own to each rank. As long as these are short, half the channels are tried.
 */
static uint64_t make_choice(const struct coll_model *m, const struct coll_ask *ask, enum coll_algo_id algo,
			    enum gantry_proto proto, struct coll_choice *c)
{
	uint64_t least, n = channels_of(m, proto, ask->bytes), part;
	bool network = coll_algos[algo]->network;

	if (!m->amounts[algo][ask->kind].parts || !m->limits.step_bytes[proto] ||
	    (network && (proto != GANTRY_PROTO_SIMPLE || ask->refused)))
		return UINT64_MAX;
	part = ask->bytes / m->amounts[algo][ask->kind].parts;
	least = on_channels(m, ask, algo, proto, fewer_channels(m, part, n), c);
	while (on_gpu_net(m) && c->channels > 1 && part / c->channels <= SLICE_NET_LONG) {
		struct coll_choice half;
		uint64_t cost = on_channels(m, ask, algo, proto, c->channels / 2, &half);

		if (cost >= least)
			break;
		least = cost;
		*c = half;
	}
	return least;
}

/*
 * Sends and receives of a group interleave, and need no copy of large buffers. A plan is fewer instructions, and over the network
 * the thread that waits does a small one by itself.
 */
bool coll_plans_exchange(const struct coll_model *m, uint64_t part)
{
	return !on_gpu(&m->limits) && part <= EXCHANGE_PLANNED && coll_direct.supports(m->topo, COLL_ALL_TO_ALL);
}

/* The algorithm that is asked for, or -1. What it cannot do goes by rings or, if those cannot, as what reducers cannot do, by
 * what costs least. */
static int wanted_algo(const struct coll_model *m, const struct coll_ask *ask)
{
	const struct gantry_params *p = gantry_params();
	int algo = m->limits.network ? COLL_COLLNET : p->algo - PARAM_ALGO_AUTO - 1;

	if (algo >= 0 && coll_algos[algo]->network && (ask->refused || !m->amounts[algo][ask->kind].parts))
		return -1;
	if (algo < 0 || m->amounts[algo][ask->kind].parts)
		return algo;
	return m->amounts[COLL_RING][ask->kind].parts ? COLL_RING : -1;
}

/* Whether GANTRY_ALGO and GANTRY_PROTO allow it. What is asked for and cannot be done goes by Simple. */
static bool may_take(const struct coll_model *m, const struct coll_ask *ask, int algo, int proto)
{
	const struct gantry_params *p = gantry_params();
	int wants_algo = wanted_algo(m, ask), wants_proto = p->proto - PARAM_PROTO_SIMPLE;

	if (p->proto != PARAM_PROTO_AUTO &&
	    (!m->limits.step_bytes[wants_proto] || (wants_algo >= 0 && coll_algos[wants_algo]->network)))
		wants_proto = GANTRY_PROTO_SIMPLE;
	return (wants_algo < 0 || algo == wants_algo) && (p->proto == PARAM_PROTO_AUTO || proto == wants_proto);
}

gantry_result coll_choose(struct coll_model *m, const struct coll_ask *ask, struct coll_choice *ret_choice)
{
	struct coll_answer *last = &m->kinds[ask->kind];
	uint64_t least = UINT64_MAX;

	if (last->cost && last->bytes == ask->bytes && last->refused == ask->refused) {
		*ret_choice = last->choice;
		return GANTRY_OK;
	}
	if (!last->known)
		TRY_NOW(find_amounts(m, ask->kind));
	for (int algo = 0; algo < COLL_ALGOS; algo++)
		for (int proto = 0; proto < GANTRY_PROTOS; proto++) {
			struct coll_choice c;
			uint64_t cost;

			if (!may_take(m, ask, algo, proto))
				continue;
			cost = make_choice(m, ask, (enum coll_algo_id)algo, (enum gantry_proto)proto, &c);
			if (cost < least) {
				least = cost;
				*ret_choice = c;
			}
		}
	if (least == UINT64_MAX)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "no protocol is supported by all connections: %s among %d ranks",
			 coll_kind_name(ask->kind), m->topo->nranks);
	last->bytes = ask->bytes;
	last->refused = ask->refused;
	last->cost = least;
	last->choice = *ret_choice;
	return GANTRY_OK;
}

double coll_estimate(struct coll_model *m, const struct coll_ask *ask)
{
	struct coll_choice c;

	return coll_choose(m, ask, &c) == GANTRY_OK ? (double)m->kinds[ask->kind].cost / 1e6 : 0;
}

static const char *proto_name(int proto)
{
	return proto == GANTRY_PROTO_SIMPLE ? "simple" : proto == GANTRY_PROTO_LL ? "ll" : "ll128";
}

/* What reducers never do comes first: no setting helps there. */
static const char *why_not_network(const struct coll_model *m, const struct coll_ask *ask)
{
	if (ask->kind == COLL_ALL_GATHER)
		return "reducers do not lower the bytes that a host receives";
	if (!coll_reduces(ask->kind))
		return "reducers do reductions only";
	if (m->no_network)
		return m->no_network;
	return ask->refused ? "the network does not support the type" : "not enabled (GANTRY_COLLNET)";
}

/* What the estimates rest on. */
static void explain_figures(const struct coll_model *m, FILE *f)
{
	static const char *const where[2] = {"inside hosts", "between hosts"};
	bool used[2] = {m->topo->nhosts<m->topo->nranks, m->topo->nhosts> 1};

	fprintf(f, "figures, %s: a call %u ns\n", m->fitted ? "measured at init" : "built in (GANTRY_MODEL)", m->begin);
	for (int link = 0; link < 2; link++)
		for (int proto = 0; proto < GANTRY_PROTOS && used[link]; proto++) {
			const struct coll_cost *c = &m->cost[link][proto];

			if (m->limits.step_bytes[proto])
				fprintf(f, "  %s, %s: a hop %u ns, a message %u ns, a byte %u ps, beyond 1 MiB %u ps\n",
					where[link], proto_name(proto), c->hop, c->message,
					c->move > c->wire ? c->move : c->wire,
					(c->move > c->wire ? c->move : c->wire) + c->cold);
		}
}

gantry_result coll_explain(struct coll_model *m, const struct coll_ask *ask, FILE *f)
{
	struct coll_choice best, c;
	char size[GANTRY_TEXT_MAX], step[GANTRY_TEXT_MAX];

	TRY_NOW(coll_choose(m, ask, &best));
	fprintf(f, "%s of %s, %s on %s: %s, %s, channels %u, steps of %s, %u in a slice, %u in a chunk\n",
		coll_kind_name(ask->kind), gantry_size_text(ask->bytes, size, sizeof(size)),
		COUNT_TEXT(m->topo->nranks, "rank"), COUNT_TEXT(m->topo->nhosts, "host"), coll_algos[best.algo]->name,
		proto_name(best.proto), best.channels, gantry_size_text(best.step_bytes, step, sizeof(step)),
		best.slice_steps, best.chunk_steps);
	explain_figures(m, f);
	fprintf(f, "  %-8s %12s %12s %12s   hops inside and between hosts, estimated us\n", "", "simple", "ll",
		"ll128");
	for (int algo = 0; algo < COLL_ALGOS; algo++) {
		const struct coll_amounts *a = &m->amounts[algo][ask->kind];

		fprintf(f, "  %-8s", coll_algos[algo]->name);
		for (int proto = 0; proto < GANTRY_PROTOS; proto++) {
			uint64_t cost = make_choice(m, ask, (enum coll_algo_id)algo, (enum gantry_proto)proto, &c);
			char mark = algo == (int)best.algo && proto == (int)best.proto ? '*' : ' ';

			if (cost == UINT64_MAX)
				fprintf(f, " %11s ", "-");
			else
				fprintf(f, " %9llu.%llu%c", (unsigned long long)(cost / 1000000),
					(unsigned long long)(cost / 100000 % 10), mark);
		}
		if (a->parts && !(coll_algos[algo]->network && ask->refused))
			fprintf(f, "   %u + %u\n", a->hops.local, a->hops.net);
		else
			fprintf(f, "   not for this%s%s\n", coll_algos[algo]->network ? ": " : "",
				coll_algos[algo]->network ? why_not_network(m, ask) : "");
	}
	return GANTRY_OK;
}
