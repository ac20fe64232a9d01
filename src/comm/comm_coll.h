/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator has and does for collectives: coll.c makes it, coll_model.c and comm_collnet.c fill in what the ranks
 * agree on, small.c and note.c have their parts of it. The caller's thread has it, but for `held` and what reports look at.
 */
#ifndef GANTRY_COMM_COMM_COLL_H
#define GANTRY_COMM_COMM_COLL_H

#include "comm/comm.h"

/* A reduction with a scalar, made by gantry_op_create_premul. */
struct comm_op {
	struct gantry_list node;
	int number;
	enum gantry_type type;
	uint64_t scalar;
	const void *at; /* on the device; NULL: `scalar` it is */
};

/* Paths that collectives take, counted: the algorithms come first (enum coll_algo_id). */
enum comm_path {
	COMM_PATH_SLICES = COLL_ALGOS, /* slices of more than one step */
	COMM_PATH_CHUNKS,	       /* chunks of more than one slice */
	COMM_PATH_CALLER,	       /* small.c */
	COMM_PATHS_OF_COMM,
	/* What the transport net of the process did: struct gantry_net_counts. */
	COMM_PATH_POOL = COMM_PATHS_OF_COMM,
	COMM_PATH_POOL_MIXED,
	COMM_PATH_GROUPED,
	COMM_PATH_RAILS,
	COMM_PATHS
};

/* A collective, for reports and traces: note.c. */
enum { COMM_NOTES = 256 };
struct comm_note {
	uint64_t number, bytes, what;
	uint32_t op; /* of the proxy's operations; 0: they have several */
};

/* The newest call of all: the next one has the same arguments as a rule, but for the buffers. coll.c */
struct comm_again {
	const struct gantry_kernel *kernel; /* NULL: there is none */
	struct comm_collective coll;	    /* of its buffers only whether they are NULL counts */
	struct gantry_coll share;	    /* of the one channel, likewise; of no use if there are more */
};

struct comm_coll {
	struct coll_topo topo; /* by place */
	int *order;	       /* by place: the rank */
	struct coll_model model;
	struct gantry_list plans, ops;
	struct comm_again again;
	uint64_t calls; /* collectives so far; the same on all ranks */
	uint32_t held;	/* small.c's: a call uses the connections without the proxy; atomic, release */
	struct comm_note notes[COMM_NOTES]; /* by number */
	uint32_t track;			    /* of channel 0 in a trace; 0: none yet */
	uint32_t step_net;		    /* bytes of a step that the networks of all ranks hold */
	uint32_t crowd, cores;		    /* as in struct coll_limits */
	uint32_t mbps;			    /* of a host's NICs, where they are slowest; 0: not known */
	bool foreign;			    /* some rank has GANTRY_NET_PLUGIN */
	struct net_context *network;	    /* then: kept as long as the communicator. comm_nics.c */
	uint32_t latency;		    /* ns, of that; 0: not known */
	int collnet;			    /* the transport of that name is asked for */
	uint64_t takes;			    /* comm_collnet.c: types and operations that the network has */
	int warned;			    /* the same: the log says that a type or operation is missing */
	char no_network[400]; /* comm_collnet.c: why there are no reducers though they were asked for; "" */
	void *word;	      /* the barrier's, device memory */
	uint64_t paths[COMM_PATHS_OF_COMM]; /* relaxed: reports look */
};

/* The plans of one kind of collective, algorithm and root. */
struct comm_plan {
	struct gantry_list node;
	enum coll_algo_id algo;
	enum coll_kind kind;
	int root;
	struct { /* channel 0, small.c */
		bool known;
		uint32_t messages; /* by one connection, at most */
		uint64_t room;	   /* bytes that a connection may carry; 0: not this way */
	} small;
	struct {
		struct coll_plan *plan; /* NULL: not made */
		void *dev;		/* steps, then the table; NULL: its connections are not known to be made */
	} channels[COMM_CHANNELS_MAX];
};

/* One end of a channel's connection: an entry of a plan's table. */
static inline struct comm_conn *comm_coll_conn(const struct gantry_comm *comm, const struct coll_peer *p,
					       uint32_t channel)
{
	return &comm->peers[p->rank].conns[p->send][channel];
}

/* Two halves: with comm_make, and with comm_start, what the ranks agree on. Freed with or without the second. */
gantry_result comm_coll_make(struct gantry_comm *comm);
gantry_result comm_coll_init(struct gantry_comm *comm);
void comm_coll_free(struct gantry_comm *comm);
/* Bytes of a step of Simple that this rank can have where all peers are reached over the network. */
uint32_t comm_coll_step_net(const struct gantry_comm *comm);
/* What this rank can do, for its peer info. */
void comm_coll_describe(const struct gantry_comm *comm, struct gantry_peer_info *info);
/* comm_needs of a collective. */
size_t comm_coll_needs(struct gantry_comm *comm, const struct comm_collective *coll, struct comm_need *ret);
/* comm_collnet.c: the network takes the type and operation, if there is one. */
bool comm_collnet_takes(struct gantry_comm *comm, unsigned type, unsigned op);
gantry_result comm_coll_enqueue(struct gantry_comm *comm, const struct comm_collective *coll,
				struct gantry_stream *stream);
/* comm_nics.c: starts a plugin's network, and fills in mbps and latency by what it reports. All ranks together. */
gantry_result comm_nics_init(struct gantry_comm *comm);
struct comm_work;
/* small.c: whether a call with this one share is done by the thread that runs the stream; then launches that. */
int comm_small_takes(struct gantry_comm *comm, struct comm_plan *plan, const struct comm_work *w);
gantry_result comm_small_launch(struct gantry_comm *comm, const struct comm_plan *plan, struct comm_work *w);

/* comm_fit.c: times connections, and fits the cost model to them. All ranks together. */
gantry_result comm_coll_measure(struct gantry_comm *comm);
/* us that the model says a collective takes; 0: it does not know. what: as in gantry_comm_explain. */
double comm_coll_estimate(struct gantry_comm *comm, const char *what, size_t count, enum gantry_type type);

/* comm_collnet.c: connects reducers, if they are asked for, before the cost model is made. All ranks answer alike. */
gantry_result comm_collnet_init(struct gantry_comm *comm);
/* Takes collnet out of a list of transports, which is of ways from rank to rank: 1: it was there. */
int comm_collnet_take(char *transports);

#endif
