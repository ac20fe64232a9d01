/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allgather between the ranks, past the hub: ctl_bruck.h has the schedule. A message has a connection of its own,
 * dialled when the message may go, to the port that the receiver's process listens on; the receiver answers the
 * handshake once it is in the same allgather, so nothing has to be kept for later, and sends HAVE when the block is in
 * its place. A connection that breaks before that is dialled again: blocks are where they were, and one that comes twice
 * changes nothing.
 *
 * The hub carries no parts, but every rank reports to it that it begins (GATHER) and that it has finished (HAVE), and
 * the hub announces when all have (GATHERED). So it knows the missing ranks, and a rank that is lost on the way fails
 * the allgather for all, by name, as in one that goes through the hub.
 *
 * All of it on the service thread, under loop_mu, but for begin and end.
 */
#ifndef GANTRY_CTL_CTL_EXCHANGE_H
#define GANTRY_CTL_CTL_EXCHANGE_H

#include "ctl/ctl_bruck.h"
#include "ctl/ctl_service.h"
#include "inet/dial.h"
#include "inet/listen.h"
#include "inet/settings.h"

enum exchange_step { EXCHANGE_IDLE, EXCHANGE_DIALLING, EXCHANGE_SENT };

struct gantry_ctl;
struct ctl_exchange {
	struct gantry_ctl *member; /* whose it is */
	struct ctl_bruck bruck;
	uint64_t number; /* of the allgather */
	int begun;	 /* the service thread has seen it */
	int told;	 /* the hub knows how it went here */

	/* The message on its way. */
	enum exchange_step step;
	struct inet_dial dial;
	struct inet_stream *conn; /* SENT: until HAVE */
	struct gantry_addr addrs[INET_CANDIDATES];
	int naddrs;
	uint64_t failing_since; /* ns; 0: the last attempt has not failed */
};

/* A member's part in exchanges. */
struct ctl_direct {
	struct gantry_addr addr;		    /* where others reach it; family 0: nowhere. Fixed at joining */
	struct inet_port *port GUARDED_BY(loop_mu); /* a reference */
	uint64_t tag GUARDED_BY(loop_mu);	    /* of connections to it; 0: none may come */
	/* Its destination in each round; none: allgathers go through the hub. Fixed once joined. */
	struct gantry_addr addrs[CTL_ROUNDS_MAX];
	int naddrs;
	struct ctl_exchange *exchange GUARDED_BY(loop_mu); /* the one that goes on; owned */
};

extern struct inet_service exchange_service;
/* By the caller's thread: NULL without memory. `all` has this rank's part in its place, and is the exchange's until the end. */
struct ctl_exchange *ctl_exchange_make(struct gantry_ctl *m, size_t part, void *all);
void ctl_exchange_end(struct gantry_ctl *m) REQUIRES(loop_mu); /* closes and frees; none is fine */
/* The service thread: a new one begins; what is due is done. */
void ctl_exchange_tick(struct gantry_ctl *m) REQUIRES(loop_mu);
/* The membership ends: its key is gone, and with it all connections that need it. */
void ctl_exchange_forget(struct gantry_ctl *m) REQUIRES(loop_mu);

#endif
