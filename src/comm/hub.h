/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub: where the ranks of one communicator meet, in the process that made its unique id. It lives on the service
 * thread (ctl_service.h).
 *
 *   OPEN ----- all ranks came ----> RUNNING --- the last one left or was lost ---> ENDED
 *    |                                                                              ^
 *    +--- somebody missing in time, twice the same rank, different counts,          |
 *    |    a rank lost while others were awaited ---> FAILED --- a while later ------+
 *    +--- nobody came at all -------------------------------------------------------+
 *
 * A FAILED hub stays for a while, so that ranks that come later hear the cause instead of a refused connection.
 *
 * A rank whose connection outlives its sockets (GANTRY_RESUME) stays HERE while it has none: what it is told is kept for it.
 * It comes back with a hello of the next generation, in the same process, or it is silent for the deadline and lost. It is lost
 * earlier if its process is found to have ended: another one comes as this rank, or nothing listens at its address.
 *
 * All hubs of a process share a listening port, and share it with the data network (inet/listen.h). A connection that
 * has proved to know the key of one of the hubs belongs to one of that hub's ranks.
 */
#ifndef GANTRY_COMM_HUB_H
#define GANTRY_COMM_HUB_H

#include "comm/ctl_service.h"
#include "inet/listen.h"

struct hub;
/* Dials a rank that has lost its socket, to see whether anybody listens there. */
struct hub_probe {
	struct inet_source source;
	struct hub_rank *rank; /* borrowed */
	uint64_t next;	       /* ns: the next attempt; while one is under way, its end */
	uint64_t refused_since;
	uint32_t failures;
};

enum hub_rank_state { HUB_ABSENT, HUB_HERE, HUB_LEFT, HUB_LOST };
struct hub_rank {
	struct hub *hub;
	enum hub_rank_state state;
	struct ctl_conn *conn;	 /* while HERE; its owner is this rank */
	uint32_t generation;	 /* of its socket */
	struct hub_probe *probe; /* owned, while it has no socket; NULL: none, or it has no address */
	struct gantry_addr addr;
	uint64_t process;
	char who[CTL_WHO_SIZE];
	int gave;	   /* its part of the allgather that is open, or, in an exchange, the word that it has begun */
	int has;	   /* exchange: all parts */
	int untold;	   /* LEFT: the others do not know yet */
	gantry_result why; /* LOST: told to whoever still asks for it */
};

/* One allgather at a time: a rank begins the next when it has the result of the last. */
struct hub_gather {
	uint64_t number;     /* of the one in progress or just ended */
	int open;	     /* some gave, not all */
	int count, nhave;    /* that gave; exchange: that have all parts */
	uint32_t size;	     /* per rank */
	struct ctl_buf *buf; /* the frame with everybody's part; exchange: with none */
	uint64_t deadline;
	gantry_result error; /* it failed: told to those that come to it later */
	char text[CTL_TEXT_MAX];
};

enum hub_state { HUB_OPEN, HUB_RUNNING, HUB_FAILED, HUB_ENDED };
struct hub {
	struct gantry_list node;
	struct inet_port *port; /* a reference */
	uint64_t comm_id;
	struct inet_key key;
	uint8_t key_bytes[INET_KEY_SIZE];
	uint64_t timeout, connect_timeout; /* ns */

	enum hub_state state;
	int nranks, nhere;
	int nuntold;
	int exchange; /* the ranks exchange parts directly: READY told them */
	struct ctl_traffic traffic;
	struct hub_rank *ranks;	   /* NULL before the first one came */
	struct gantry_addr *addrs; /* where ranks reach each other; family 0: nowhere. Beside the ranks, and as many */
	uint64_t beat, next_beat;
	uint64_t until;	  /* OPEN: when waiting ends. FAILED: when this ends */
	uint32_t refused; /* connections that named this hub and proved nothing: for the text of a failure, no more */
	int secrets;	  /* this side has a secret, or one of those said that it has */
	gantry_result error;
	char text[CTL_TEXT_MAX];
	struct hub_gather gather;
};

extern struct inet_service hub_service;
struct hub *hub_find(uint64_t comm_id) REQUIRES(loop_mu);
/* A hub with the id's number and key, at `addr`. */
gantry_result hub_start(const struct ctl_id *id, const struct gantry_addr *addr, struct gantry_addr *ret_bound);
/* 1: the communicator's hub is here; whom it waits for: "ranks 1, 3-5", and whether somebody failed to prove the key; left
 * as it is if for nobody. */
int hub_awaits(uint64_t comm_id, char *buf, size_t len) REQUIRES(loop_mu);
/* Nobody will come: it ends, unless somebody has. */
void hub_drop(uint64_t comm_id) REQUIRES(loop_mu);
void hub_tick(void) REQUIRES(loop_mu);
void hub_bye(void) REQUIRES(loop_mu); /* the process ends */

#endif
