/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's side of what gantry/transport.h names: ends, proxied ends and operations. Transports of the tree use the
 * fields, others the functions of that header (steps.c).
 */
#ifndef GANTRY_PROXY_PROXY_CONN_H
#define GANTRY_PROXY_PROXY_CONN_H

#include "base/list.h"
#include "device/conn.h"
#include "gantry/transport.h"

struct gantry_proxy;
struct gantry_proxy_group;

/* One end of a connection while it is made and as long as it lives. */
struct gantry_connector {
	/* Given. Borrowed. */
	const struct gantry_transport *transport;
	struct gantry_device *device;
	const struct gantry_peer_info *me, *peer;
	uint64_t comm_id; /* the same on all ranks */
	int send;
	int channel, nchannels;
	int nranks;			      /* of the communicator */
	int traffic_class;		      /* as IP_TOS has it; 0: none */
	const char *net_name;		      /* of the network, borrowed while it connects; NULL or "": any */
	int standing;			      /* receives wait for what may never be sent: transport/put.h */
	struct gantry_eventcount *eventcount; /* what this end's kernels sleep on; NULL: they never sleep */
	/* struct gantry_ipc_handle of the page that it lies in, with others; NULL if there is none */
	const void *eventcount_handle;
	uint64_t eventcount_offset;	 /* of `eventcount` within that page */
	struct gantry_conn_state *state; /* host memory */
	/* What the progress thread sleeps on: conn.eventcount of a proxied end on the host device. */
	struct gantry_eventcount *proxy_eventcount;
	/* Filled in. */
	struct gantry_conn conn;
	uint64_t max_step; /* largest Simple step of this connection; both ends agree; 0: the sender chooses freely */
	int peer_notifies; /* the other end wakes this end's eventcount */
	enum gantry_memory_sharing sharing;
	int any_memory; /* SHARES_REGISTERED: but any address of this device is good without proxy_register */
	struct gantry_proxy_conn *proxy; /* of a proxied end, made by the core before setup; else NULL */
	void *resources;		 /* the transport's own */
};

/* What the program called, and by which algorithm: numbers of net/net.h. */
#define GANTRY_PROXY_CALLED(func, algo) ((uint8_t)((func) | (algo) << 4))
#define GANTRY_PROXY_FUNC(called) ((called)&15)
#define GANTRY_PROXY_ALGO(called) ((called) >> 4)

/* A proxied operation: the steps of one transfer on one connection. From a pool; owned by the proxy once appended. */
struct gantry_proxy_op {
	struct gantry_proxy_op *next;
	struct gantry_proxy_conn *conn;
	uint64_t bytes;
	uint64_t step_bytes;
	uint64_t nsteps;     /* a multiple of slice_steps */
	uint64_t base;	     /* first step; set when the proxy takes the operation */
	uint8_t slice_steps; /* progress goes in slices of this many steps; 1 for send and recv */
	uint8_t chunk_steps; /* base is rounded up to a multiple of this */
	uint8_t called;	     /* GANTRY_PROXY_CALLED; for networks that take hints, as the next two lines */
	uint8_t channels;    /* that the call uses */
	uint16_t peers;	     /* of the same direction, about; UINT16_MAX: that many at least */
	uint8_t type, op;    /* of a reduction: what the network adds, and how (collnet) */
	uint8_t proto;	     /* enum gantry_proto */
	uint8_t ptr;	     /* steps name the user's buffer */
	uint8_t exact;	     /* sizes of steps follow from bytes and step_bytes; else only their maximum does */
	uint8_t reserved;
	uint32_t id; /* for the trace: the communicator's operation number */
};

/*
 * One proxied end. The first cache line is all that the poll loop touches. Steps are absolute;
 *   send: posted (space offered) >= moved (handed to the network) >= done (head published)
 *   recv: posted (receive posted) >= moved (arrived) >= flushed (kernel notified) >= done (kernel has consumed)
 * and none is beyond `end`. Owned by the thread that makes a round of the engine once connected.
 */
struct gantry_proxy_conn {
	uint64_t posted, moved, flushed, done;
	uint64_t end;				  /* steps of all operations taken so far */
	struct gantry_proxy_op *current;	  /* the operation that step `posted` belongs to */
	void *resources;			  /* the transport's */
	const struct gantry_transport_side *side; /* borrowed */
	/* Second line and further. */
	struct gantry_proxy_op *first, *last; /* operations not finished, in order */
	struct gantry_fifo *fifo; /* as the CPU addresses it: what the kernel end uses, given by the transport */
	struct gantry_eventcount *kernel_eventcount; /* rung after publishing; NULL: the kernel never sleeps */
	struct gantry_connector *connector;	     /* borrowed */
	struct gantry_proxy *proxy;		     /* borrowed: the engine */
	struct gantry_proxy_group *group;	     /* borrowed: the communicator it belongs to */
	struct gantry_list ready;		     /* in the group's list while it has operations */
	int send, waits_for;			     /* enum gantry_wait_cause while idle */
	int blames;				     /* 1 + the rank that an error is about; 0: the peer; -1: unknown */
	uint32_t id;				     /* for the trace */
	uint64_t waits_since;			     /* ticks */
	/* Counters: written by the progress thread, relaxed; read by any thread. */
	uint64_t bytes, steps, ops, copies;
	uint64_t wait_ticks[GANTRY_WAIT_CAUSES];
	uint64_t progress_ns; /* when a step last moved (coarse clock) */
	/* The engine's own. */
	uint64_t sum;	 /* of the four counters when they were last settled */
	uint64_t told;	 /* head: send, as it was last stored; recv, as it was last seen */
	uint64_t seen;	 /* send: steps below were seen posted; an event is put once */
	uint64_t marked; /* steps whose slot (recv) or offer (send) was refreshed if it was their turn */
	/* For other threads: copies of the words above, which transports write plainly; stored relaxed after movement. */
	struct {
		uint64_t posted, moved, flushed, done, end;
		uint32_t op;
		int busy;
	} shown;
};

#endif
