/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a collective is made of, before ranks are connected or anything is launched.
 *
 *   plan.c      the table of algorithms; plans: what each rank does, as data that device/k_coll.h runs
 *   order.c     the order of ranks, by where they are
 *   choose.c    the cost model: which algorithm, protocol, how many channels, which chunk
 *   fit.c       the model's figures from connections that were timed
 *   ring.c ...  one algorithm each
 *
 * A plan follows from the kind, the root, the channel and the topology, not from sizes; so it is made once and used for
 * every call. All ranks make theirs by themselves, from what all of them know: the same answers everywhere, or the ranks
 * would wait for each other for ever.
 */
#ifndef GANTRY_COLL_COLL_H
#define GANTRY_COLL_COLL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "device/work.h"
#include "gantry/result.h"
#include "gantry/types.h"

static inline uint32_t coll_type_bytes(unsigned type)
{
	static const uint8_t bytes[GANTRY_TYPE_COUNT] = {
#define COLL_TYPE_BYTES(name, number, size, text) [number] = size,
		GANTRY_TYPES(COLL_TYPE_BYTES)
#undef COLL_TYPE_BYTES
	};

	return type < GANTRY_TYPE_COUNT ? bytes[type] : 0;
}

enum coll_kind {
	COLL_ALL_REDUCE,
	COLL_REDUCE,
	COLL_BROADCAST,
	/* Buffers with a part of each rank: */
	COLL_ALL_GATHER,
	COLL_REDUCE_SCATTER,
	COLL_ALL_TO_ALL, /* if coll_plans_exchange */
	COLL_KINDS
};

static inline bool coll_by_rank(enum coll_kind kind)
{
	return kind >= COLL_ALL_GATHER;
}
static inline bool coll_in_by_rank(enum coll_kind kind)
{
	return kind == COLL_REDUCE_SCATTER || kind == COLL_ALL_TO_ALL;
}
static inline bool coll_out_by_rank(enum coll_kind kind)
{
	return kind == COLL_ALL_GATHER || kind == COLL_ALL_TO_ALL;
}
static inline bool coll_reduces(enum coll_kind kind)
{
	return kind == COLL_ALL_REDUCE || kind == COLL_REDUCE || kind == COLL_REDUCE_SCATTER;
}

/*
 * The ranks of a communicator and where they are. The same on all ranks, but for `rank`. To algorithms and the cost model
 * a rank is its place in the order of order.c; coll_plan_name_ranks turns places into ranks when a plan is made.
 */
struct coll_topo {
	int rank, nranks;
	int nhosts;
	const int *host; /* by rank: which host, counted from 0 */
	bool network;	 /* reducers are connected: one rank of each host may send to the network (coll_collnet.c) */
};

/* Where a rank is. */
struct coll_where {
	int rank, host;
	uint32_t numa;	    /* 1 + NUMA node; 0: not known */
	const char *device; /* bus id of its GPU, or "" */
};
/* Sorts: the i-th is at place i. */
void coll_order(struct coll_where *where, int n);

/* One direction to or from a peer: what a plan is connected with. */
struct coll_peer {
	int32_t rank;
	int32_t send;
};

struct coll_plan {
	uint32_t nsteps, npeers;
	uint32_t nparts; /* all_reduce, reduce and broadcast: the buffer is cut into so many */
	uint32_t delay;	 /* the longest of the steps */
	struct gantry_coll_step *steps;
	struct coll_peer *peers; /* what `recv` and `send` of the steps count in */
};

/* A plan while an algorithm makes it. */
struct coll_builder {
	const struct coll_topo *topo;
	enum coll_kind kind;
	int root;
	int channel;
	uint32_t delay; /* of the steps that follow, in addition to their own */
	struct coll_plan *plan;
	uint32_t room_steps, room_peers;
	bool no_memory;
};

gantry_result coll_builder_begin(struct coll_builder *b, const struct coll_topo *topo);
gantry_result coll_builder_end(struct coll_builder *b, struct coll_plan **ret_plan); /* frees it if memory was missing */

/* A step as an algorithm says it. */
struct coll_spec {
	uint32_t what; /* PRIM_* */
	uint32_t part;
	const int *recv, *send; /* ranks */
	uint32_t nrecv, nsend;
	uint32_t in_at, last, delay;
};
void coll_add(struct coll_builder *b, const struct coll_spec *spec);
/* The usual case: from at most one peer, to at most one; -1: none. */
void coll_add_one(struct coll_builder *b, uint32_t what, uint32_t part, int from, int to, uint32_t last);
/* One source, `first` or (behind the first GANTRY_PRIM_PEERS) `more`, to all of these ranks. */
void coll_add_sends(struct coll_builder *b, uint32_t first, uint32_t more, uint32_t part, const int *ranks, uint32_t n);
/* The result of a part: own input, then what the ranks sent; with partial ones in the output, if they are many. */
void coll_add_reduce(struct coll_builder *b, uint32_t part, const int *ranks, uint32_t n);
/* No peer needs a message of the steps so far before the last one that it gets: they may leave together. For kinds by
 * rank, where no part is empty unless all are. */
void coll_join_messages(struct coll_builder *b);

/* Messages that follow each other on the longest way through a collective. */
struct coll_hops {
	uint32_t local, net; /* inside and between hosts */
};

struct coll_algo {
	const char *name; /* as in GANTRY_ALGO */
	/* That a connection holds at least (GANTRY_STEPS / chunk_steps): with fewer, ranks would wait for each other. */
	uint32_t chunks;
	bool (*supports)(const struct coll_topo *topo, enum coll_kind kind);
	/* Adds the steps of topo->rank and sets plan->nparts. */
	void (*plan)(struct coll_builder *b);
	struct coll_hops (*hops)(const struct coll_topo *topo, enum coll_kind kind);
	/* In place, a rank may write its output before its peers have got all of its input from there. */
	bool overwrites;
	bool network; /* by reducers: a peer that is the rank itself is the network. Simple */
};

/* In the order of GANTRY_ALGO's words behind `auto`. */
enum coll_algo_id { COLL_RING, COLL_DIRECT, COLL_DIRECT2, COLL_TREE, COLL_HIER, COLL_PAT, COLL_COLLNET, COLL_ALGOS };
extern const struct coll_algo *const coll_algos[COLL_ALGOS];
extern const struct coll_algo coll_ring, coll_direct, coll_direct2, coll_tree, coll_hier, coll_pat, coll_collnet;

const char *coll_kind_name(enum coll_kind kind);
/* All of n hops between the ranks of the topology: inside its host, or if there are more of them, between. */
struct coll_hops coll_hops_any(const struct coll_topo *topo, uint32_t n);

/* Why reducers cannot serve ranks that are so placed; NULL: they can. */
const char *coll_network_refuses(const struct coll_topo *topo);

gantry_result coll_plan_make(const struct coll_topo *topo, enum coll_algo_id algo, enum coll_kind kind, int root,
			     int channel, struct coll_plan **ret_plan);
void coll_plan_free(struct coll_plan *plan);
/* Of a plan of places: order[place] is the rank there. */
void coll_plan_name_ranks(struct coll_plan *plan, enum coll_kind kind, const int *order);

/* How a call is carried out. */
struct coll_choice {
	enum coll_algo_id algo;
	enum gantry_proto proto;
	uint32_t channels;
	uint32_t step_bytes;
	uint32_t slice_steps, chunk_steps;
	uint32_t part_bytes; /* where the buffer is cut into parts: least of one, so that the last ones may be empty */
};

/* Kinds of connections that cost differently. */
enum coll_link {
	COLL_LINK_CPU, /* shared memory between CPUs */
	COLL_LINK_CPU_NET,
	COLL_LINK_GPU, /* on one GPU */
	COLL_LINK_GPU_HOST,
	COLL_LINK_GPU_NET,
	COLL_LINKS,
};
enum { COLL_CROWD = 16 }; /* a rank per core */

/* What the choice depends on besides the topology; the same on all ranks. */
struct coll_limits {
	uint32_t channels;		    /* at most */
	uint32_t step_bytes[GANTRY_PROTOS]; /* that every connection has; 0: the protocol is not there everywhere */
	enum coll_link local, remote;	    /* inside and between hosts */
	uint32_t crowd;			    /* ranks per core where they are most, in parts of COLL_CROWD */
	uint32_t cores;			    /* of a rank where they are fewest; 0: not known */
	uint32_t nics;			    /* ps per byte by the NICs of a host, the slowest of all; 0: not known */
	uint32_t latency; /* ns that a plugin says its network takes, the slowest of all; 0: not known */
	bool network;	  /* by reducers wherever they can, whatever GANTRY_ALGO says */
	bool reducers;	  /* which are other machines: hosts do not reduce for each other */
};

/* What the plan of an algorithm makes a rank do; in parts of the buffer. */
struct coll_amounts {
	uint32_t parts;	   /* 0: the algorithm cannot do it */
	uint32_t moved[2]; /* sends and receives inside and between hosts, of the busiest of some ranks */
	uint32_t joined;   /* of these, if they are small: that leave together with others */
	uint32_t added;
	uint32_t wire; /* that a host sends, or receives if that is more, of the busier of some hosts; 0: not known */
	bool overlaps; /* chunks, by steps with a delay */
	struct coll_hops hops;
};

/* What a kind of connection costs, by protocol. */
struct coll_cost {
	uint32_t hop;	  /* ns */
	uint32_t message; /* ns of a rank, to send or to receive one */
	uint32_t move;	  /* ps per byte, sent here and received there */
	uint32_t add;	  /* ps per byte */
	uint32_t wire;	  /* on a GPU: ps per byte as with move, however many channels there are */
	uint32_t cold;	  /* ps more per byte of a buffer beyond COLL_WARM, which caches hold; known from measuring only */
};
enum { COLL_WARM = 1 << 20 };

/* The cost model of a communicator; its caller's thread's. */
struct coll_model {
	const struct coll_topo *topo; /* borrowed */
	struct coll_limits limits;
	struct coll_cost cost[2][GANTRY_PROTOS]; /* inside and between hosts */
	uint32_t begin;				 /* ns: a call, without its hops */
	bool fitted;				 /* these are measured */
	/* Why there are no reducers though they were enabled; borrowed; NULL: not enabled, or there are. */
	const char *no_network;
	struct coll_amounts amounts[COLL_ALGOS][COLL_KINDS];
	struct coll_answer {
		bool known; /* amounts */
		bool refused;
		uint64_t bytes, cost;
		struct coll_choice choice; /* for that many bytes; cost 0: none yet */
	} kinds[COLL_KINDS];
};
void coll_model_init(const struct coll_topo *topo, const struct coll_limits *limits, struct coll_model *ret_model);

/* The call to choose for; the same on all ranks. */
struct coll_ask {
	enum coll_kind kind;
	bool refused;	/* reducers do not support its type and operation */
	uint64_t bytes; /* of the whole buffer (of all parts) */
};
/* GANTRY_ALGO and GANTRY_PROTO decide where they are set. */
gantry_result coll_choose(struct coll_model *m, const struct coll_ask *ask, struct coll_choice *ret_choice);
/* Whether an all_to_all with parts of so many bytes has a plan; else it is a group of sends and receives. */
bool coll_plans_exchange(const struct coll_model *m, uint64_t part);
/* What it would choose, and what the others would cost, as lines of text. */
gantry_result coll_explain(struct coll_model *m, const struct coll_ask *ask, FILE *f);

/* us that it would take by the choice; 0: not known. */
double coll_estimate(struct coll_model *m, const struct coll_ask *ask);

/* ---- fit.c ---- */

/*
 * Connections are timed by what is not in the table of algorithms: every rank of a circle sends a message to the next one, while
 * it receives one from the rank before. One kind of connections at a time, by one protocol.
 */
struct coll_trial {
	bool remote; /* circles through all hosts, of the ranks at the same place of each; or through all ranks of a host */
	enum gantry_proto proto;
	uint64_t bytes;
	uint64_t ns; /* what the slowest rank has taken; 0: nothing was measured */
};
/* The neighbours of a rank; false: it has none and takes no part. */
bool coll_trial_circle(const struct coll_topo *topo, bool remote, int *ret_next, int *ret_prev);
gantry_result coll_trial_plan(const struct coll_topo *topo, int next, int prev, struct coll_plan **ret_plan);
void coll_trial_choose(const struct coll_model *m, const struct coll_trial *t, struct coll_choice *ret_choice);
/* What the model says, ps. */
uint64_t coll_trial_cost(const struct coll_model *m, const struct coll_trial *t);
/* Each kind and protocol: a trial of a few bytes, one of many, and one of more than caches hold; ns 0: it was not done. The
 * figures become those with which the model says what was measured. */
struct coll_trials {
	struct coll_trial few, many, most;
};
void coll_fit(struct coll_model *m, const struct coll_trials *trials, int n);

/* choose.c, for fit.c */
void coll_choose_sizes(const struct coll_model *m, const struct coll_amounts *a, uint64_t bytes, struct coll_choice *c);
uint64_t coll_cost_of(const struct coll_model *m, const struct coll_amounts *a, uint64_t bytes,
		      const struct coll_choice *c);

/* A call's buffers, for the share of one block. */
struct coll_shape {
	enum coll_kind kind;
	uint64_t count; /* as in gantry/comm.h */
	uint32_t elem;	/* bytes of an element */
	int nranks;
};
/* Fills in strides, begin, count, whole and chunk of channel's share; nothing to do: count 0. */
void coll_share(const struct coll_shape *shape, const struct coll_plan *plan, const struct coll_choice *choice,
		uint32_t channel, struct gantry_coll *ret);
/* Steps that this share moves on entry `peer` of the plan, a multiple of slice_steps. *ret_lent: all of them are sent
 * from where they lie (GANTRY_COLL_PTR_*). */
uint64_t coll_steps_on(const struct coll_plan *plan, const struct gantry_coll *share, uint32_t peer, bool *ret_lent);

#endif
