/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided communication between window.c, which makes windows and reaches those of the others, and put.c, which uses
 * them. docs/design/0024 has the why.
 *
 * A rank reaches memory of a peer in one of two ways:
 *
 *   near   it is mapped here: a kernel copies into it and stores the signal
 *   net    the proxy sends, the peer's proxy writes into the window and raises the signal (transport/put.h)
 *
 * Signals are counted in words of one writer each. For each rank and number:
 *
 *   block.words      device memory of the target     near: written by kernels of the origin
 *   by_net           mapped memory of the target     net: written by the target's proxy
 *   raised, taken    device memory, own              by own kernels: what was stored in block.words of a peer, and how
 *                                                    many signals of a peer waits have taken: the sum of the first two
 *                                                    less this is what is there
 */
#ifndef GANTRY_COMM_ONESIDED_H
#define GANTRY_COMM_ONESIDED_H

#include "comm/comm.h"
#include "transport/put.h"

/* What ranks store into, in device memory that others map. */
struct onesided_block {
	struct gantry_eventcount eventcount; /* of waits; on its own lines */
	_Alignas(128) uint64_t words[];	     /* GANTRY_SIGNALS of each rank */
};

struct onesided_peer {
	struct onesided_block *block; /* as this device addresses it; NULL: it is not mapped */
	int by_net;		      /* a put went that way: signals follow it, so that they do not overtake it */
	struct comm_conn send, recv;  /* of CONN_NONE: there is no network between the two */
	uint64_t sent;		      /* by the network */
	uint64_t arrived;	      /* the same of the peer's; atomic, by the progress thread */
};

MUTEX_KIND(onesided_mu);

struct comm_onesided {
	struct onesided_block *block; /* own */
	struct gantry_ipc_handle handle;
	uint64_t *raised, *taken;	/* device memory: one allocation */
	uint64_t *by_net_host, *by_net; /* mapped */
	struct onesided_peer *peers;
	struct gantry_put_target target;
	/* Of connections over the network. */
	struct gantry_proxy_group *group; /* standing receives, which end with the communicator; NULL: none */
	struct gantry_conn_state *states, *states_dev; /* of sending ends, by rank */
	struct gantry_conn *conns_dev;
	struct onesided_mu mu; /* the progress thread looks windows up */
	struct gantry_list windows GUARDED_BY(onesided_mu);
	uint32_t last_number;
};

struct gantry_window {
	struct gantry_list node;
	uint32_t number; /* the same on all ranks */
	char *base;
	int cpu_writes;
	struct window_peer {
		uint64_t size;
		char *at;     /* as this device addresses it; NULL: by the network */
		void *opened; /* by ipc_open */
	} peers[];	      /* by rank, this one too */
};

static inline size_t onesided_word(int rank, int signal)
{
	return (size_t)rank * GANTRY_SIGNALS + (size_t)signal;
}

#endif
