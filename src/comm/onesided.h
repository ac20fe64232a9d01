/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided communication between window.c, which makes windows, reach.c, which reaches those of the others, and put.c,
 * which uses them. docs/design/0024 has the why.
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

enum { ONESIDED_WINDOWS = 4096 }; /* registered at the same time, per communicator */

/* What ranks store into and look at, in device memory that others map. */
struct onesided_block {
	struct gantry_eventcount eventcount; /* of waits; on its own lines */
	/* By slot: the number of the window that is registered there; 0: none. Written by the owner, read by kernels of the
	 * others before they copy into the window. */
	_Alignas(128) uint64_t windows[ONESIDED_WINDOWS];
	_Alignas(128) uint64_t words[]; /* GANTRY_SIGNALS of each rank */
};

MUTEX_KIND(onesided_mu);

/* The caller's thread has it, but for recv and arrived. */
struct onesided_peer {
	struct gantry_ipc_handle handle; /* of its block */
	struct onesided_block *block;	 /* as this device addresses it; NULL: it is not mapped */
	int mapped;			 /* mapping it was tried */
	int device; /* of this process, another one: 1: this one reaches it, -1: it does not; 0: not asked */
	int by_net; /* a put went that way: signals follow it, so that they do not overtake it */
	struct comm_conn *send;				/* owned; NULL: nothing was put over the network yet */
	uint64_t sent;					/* by the network */
	struct comm_conn *recv GUARDED_BY(onesided_mu); /* owned; the service thread makes it when the peer asks */
	uint64_t arrived; /* the same as `sent` of the peer's; atomic, by the progress thread */
};

struct comm_onesided {
	struct onesided_block *block; /* own */
	struct gantry_ipc_handle handle;
	uint64_t *raised, *taken;	/* device memory: one allocation */
	uint64_t *by_net_host, *by_net; /* mapped */
	struct onesided_peer *peers;
	struct gantry_put_target target;
	/* Of connections over the network. */
	struct gantry_proxy_group *group;	       /* standing receives, which end with the communicator */
	int receives;				       /* atomic: there is one */
	int is_open GUARDED_BY(onesided_mu);	       /* peers may connect */
	struct gantry_conn_state *states, *states_dev; /* of sending ends, by rank */
	struct gantry_conn *conns_dev;
	struct onesided_mu mu; /* the progress thread looks windows up */
	struct gantry_list windows GUARDED_BY(onesided_mu);
	uint32_t last_number GUARDED_BY(onesided_mu);
};

struct gantry_window {
	struct gantry_list node;
	uint32_t number; /* the same on all ranks */
	uint32_t slot;	 /* of this rank's block */
	char *base;
	uint64_t size;
	int cpu_writes;
	uint32_t incoming; /* puts over the network that have begun and are not in place; under onesided_mu */
	struct window_peer {
		uint64_t size;
		uint32_t slot;	      /* of the peer's block */
		int exported, mapped; /* mapping it was tried */
		char *at;	      /* as this device addresses it; NULL: by the network */
		void *opened;	      /* by ipc_open */
		uint64_t address;     /* in its process */
		uint64_t from_handle; /* where the window begins within what the handle names */
		struct gantry_ipc_handle handle;
	} peers[]; /* by rank, this one too */
};

/* The handle is that of a window. */
bool comm_window_is_registered(struct gantry_comm *comm, const struct gantry_window *window);

/* reach.c. Whether this rank's kernels may address memory of the peer. Both answer alike. */
int onesided_is_near(const struct gantry_comm *comm, int peer);
int onesided_allows_net(const struct gantry_comm *comm);
/* A window of the peer could be mapped, as far as what it offers says. */
int onesided_could_map(const struct gantry_comm *comm, const struct window_peer *p, int peer);
/* Closes an end of a connection over the network. NULL: there is none. */
void onesided_end_free(struct comm_conn *cc);

static inline size_t onesided_word(int rank, int signal)
{
	return (size_t)rank * GANTRY_SIGNALS + (size_t)signal;
}

#endif
