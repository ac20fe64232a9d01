/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A membership: one rank's side of the control plane (struct gantry_ctl). Two kinds of threads meet in it, under loop_mu:
 * the service thread moves the connection along its steps, the callers' threads queue frames and wait for news.
 *
 *   JOINING -> WAITING -> JOINED -> OVER
 *      |          |                  ^
 *      |          +------------------+   accepted: from here on a broken connection is the end, or, where it outlives its
 *      |                             |   sockets (GANTRY_RESUME), dialled again until GANTRY_TIMEOUT
 *      +-----------------------------+   what may pass is tried again until GANTRY_CONNECT_TIMEOUT
 *
 * WAITING has no deadline but GANTRY_CALL_TIMEOUT: ranks that have not come are late. A hub that falls silent is noticed.
 * Dialling, for the first time or again, has states of its own (inet/dial.h).
 */
#ifndef GANTRY_CTL_CTL_MEMBER_H
#define GANTRY_CTL_CTL_MEMBER_H

#include "ctl/ctl_exchange.h"
#include "ctl/ctl_service.h"
#include "inet/dial.h"
#include "inet/listen.h"
#include "inet/settings.h"

enum ctl_step { STEP_JOINING, STEP_WAITING, STEP_JOINED, STEP_OVER };

/* Another rank, as this one knows it. */
struct ctl_peer {
	struct gantry_list inbox; /* of struct ctl_message, in order of arrival */
	gantry_result gone;	  /* OK: it is here. PEER_CLOSED: it left. Else it is lost */
	char *text;		  /* of a loss; owned */
	int with_hub;		  /* lives in the hub's process */
};
struct ctl_message {
	struct gantry_list node;
	uint64_t tag;
	size_t size;
	uint8_t bytes[];
};
/* On the stack of the waiting thread; in the membership's list of calls until it is done. Under loop_mu. */
struct ctl_call {
	struct gantry_list node;
	int to; /* -1: an allgather, which the hub answers */
	uint64_t tag;
	void *reply;
	size_t room, size;
	gantry_result result;
	int done;
	char text[CTL_TEXT_MAX]; /* why an allgather failed; "" if only the result says so */
};

/* How a membership reaches the hub, for the first time and again. */
struct ctl_dial {
	struct inet_dial to_hub;
	struct gantry_ctl *member;
	uint32_t way;	     /* of the addresses, the first to try */
	int reached;	     /* a connection was accepted there at least once */
	uint32_t generation; /* of the socket, dialling again */
};

struct gantry_ctl {
	/* Fixed at joining. */
	struct gantry_ctl_config config; /* its id is not kept */
	struct ctl_id id;
	struct inet_key key;
	uint8_t key_bytes[INET_KEY_SIZE];
	uint64_t timeout, connect_timeout;
	uint64_t patience, call_timeout; /* for other ranks to join, and for their calls; 0: no limit */
	int forks;			 /* inet_forked */
	struct gantry_addr addrs[INET_CANDIDATES];
	int naddrs;
	char hub[GANTRY_ADDR_TEXT];

	struct gantry_list node GUARDED_BY(loop_mu);
	struct inet_port *port GUARDED_BY(loop_mu); /* a reference: for hubs of further communicators; NULL: none */
	struct ctl_direct direct;
	int leaving GUARDED_BY(loop_mu); /* the caller is gone: say goodbye and free it */
	/* Why it does not wait any longer for the others to join; "": it does. */
	char gave_up[CTL_TEXT_MAX] GUARDED_BY(loop_mu);
	int calling GUARDED_BY(loop_mu); /* a callback runs, without the lock */
	/* Queued or running. Until none is left, callers get no loss: the order in which on_lost reports several is
	 * that of cause and consequence, and a caller that finds the last one first would take it for the cause. */
	int callbacks GUARDED_BY(loop_mu);
	enum ctl_step step GUARDED_BY(loop_mu);
	uint64_t leave_by GUARDED_BY(loop_mu);		     /* ns: the hub knows that it leaves, or will; 0: not yet */
	struct ctl_dial *dial POINTS_TO_GUARDED_BY(loop_mu); /* owned */
	struct inet_stream *conn GUARDED_BY(loop_mu);	     /* NULL before it was accepted */
	uint64_t deadline GUARDED_BY(loop_mu); /* of reaching the hub, then of waiting there; UINT64_MAX: none */
	uint64_t wait_by GUARDED_BY(loop_mu);  /* when it stops waiting for other ranks to join; UINT64_MAX: never */
	int trips GUARDED_BY(loop_mu);	       /* round trips still to make */
	int ready GUARDED_BY(loop_mu);	       /* all ranks are here */
	uint64_t best_trip GUARDED_BY(loop_mu);

	/* What the callers' threads wait for. */
	struct gantry_cond news;
	int joined GUARDED_BY(loop_mu);
	/* Final once set, and read without the lock then. clock_offset: constant once joined. */
	gantry_result over; /* there is no control plane (any more): why */
	char over_text[CTL_TEXT_MAX];
	int64_t clock_offset;
	struct ctl_peer *peers; /* [nranks] */
	/* The rank that was lost before any other, and one: for an allgather that cause is better than what followed from it,
	 * the end of the hub's process, say. 0: none was. */
	int first_lost GUARDED_BY(loop_mu);
	size_t inbox_bytes GUARDED_BY(loop_mu);
	struct gantry_list calls GUARDED_BY(loop_mu);
	uint64_t last_call GUARDED_BY(loop_mu), last_gather GUARDED_BY(loop_mu);
	uint64_t arrivals GUARDED_BY(loop_mu), seen GUARDED_BY(loop_mu); /* gantry_ctl_wait */
};

/* An exchange may take so many times GANTRY_CONNECT_TIMEOUT from when all ranks have come to it. */
enum { CTL_GATHER_TIMES = 2 };
/* How much later than its deadline a rank may get the list of missing ranks from the hub. */
enum { CTL_ANSWER_NS = 1000000000 };

/* ctl_member.c */
void ctl_members_take(void) REQUIRES(loop_mu); /* those that are new, and those that leave */
void ctl_members_tick(void) REQUIRES(loop_mu);
/* Runs what is queued, without the lock; 1 if there was something. */
int ctl_members_call_back(void) REQUIRES(loop_mu);
/* The hub has accepted it: m->conn is new. */
void ctl_member_accepted(struct gantry_ctl *m, const struct ctl_accepted *a) REQUIRES(loop_mu);
/* The hub is gone without a goodbye, and with it the ranks of its process. Closes the connection. */
void ctl_member_hub_lost(struct gantry_ctl *m, gantry_result why, const char *cause) REQUIRES(loop_mu);
/* No control plane for this rank any more: all waiters get the error. Closes the connection. */
void ctl_member_over(struct gantry_ctl *m, gantry_result why, const char *fmt, ...) REQUIRES(loop_mu)
	__attribute__((format(printf, 3, 4)));
extern const struct inet_stream_ops ctl_member_ops; /* of m->conn */

/* ctl_dial.c */
extern const struct inet_dial_ops ctl_dial_ops;		     /* of m->dial->to_hub */
void ctl_dial_again(struct gantry_ctl *m) REQUIRES(loop_mu); /* unless it does already */
/* JOINING: whether a deadline has passed, which ends it. */
void ctl_join_watch(struct gantry_ctl *m) REQUIRES(loop_mu);

/* ctl.c */
void ctl_member_free(struct gantry_ctl *m);

#endif
