/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A membership: one rank's side of the control plane (struct gantry_ctl). Two kinds of threads meet in it: the service
 * thread has the connection and its steps, the callers' threads wait for news and queue what is to be sent.
 *
 *   PAUSE <-> CONNECTING -> SHAKING -> WAITING -> JOINED -> OVER
 *     ^            |            |          |                  ^
 *     +------------+------------+          +------------------+
 *     what may pass is tried again until   accepted: from here on a
 *     GANTRY_CONNECT_TIMEOUT, else OVER    broken connection is the end
 */
#ifndef GANTRY_COMM_CTL_MEMBER_H
#define GANTRY_COMM_CTL_MEMBER_H

#include "comm/ctl_service.h"
#include "inet/settings.h"

enum ctl_step { STEP_PAUSE, STEP_CONNECTING, STEP_SHAKING, STEP_WAITING, STEP_JOINED, STEP_OVER };

/* Another rank, as this one knows it. Under the membership's mu. */
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
/* On the stack of whoever waits; in the membership's list of calls until it is done. Under mu. */
struct ctl_call {
	struct gantry_list node;
	int to;
	uint64_t tag;
	void *reply;
	size_t room, size;
	gantry_result result;
	int done;
};

struct gantry_ctl {
	/* Fixed at joining. */
	struct gantry_ctl_config config; /* its id is not kept */
	struct ctl_id id;
	struct inet_key key;
	uint8_t key_bytes[INET_KEY_SIZE];
	uint64_t timeout, connect_timeout;
	int forks; /* inet_forked */
	struct gantry_addr addrs[INET_CANDIDATES];
	int naddrs;
	char hub[GANTRY_ADDR_TEXT];

	/* Under the service's mu. */
	struct gantry_list node;
	int leaving; /* the caller is gone: say goodbye and free it */
	int calling; /* a callback runs, without the lock */
	enum ctl_step step;
	struct inet_source dial; /* CONNECTING, SHAKING */
	struct inet_handshake shake;
	struct ctl_conn *conn; /* NULL before that is over */
	uint64_t deadline, retry_at, attempt_by;
	uint32_t tries;
	int reached;	 /* somebody has answered there at least once */
	char cause[160]; /* why the last attempt failed */
	int trips, ready; /* round trips still to make; all ranks are here */
	uint64_t best_trip;

	/* Shared with the callers' threads, under mu. */
	pthread_mutex_t mu;
	pthread_cond_t news; /* on CLOCK_MONOTONIC */
	int joined;
	gantry_result over; /* there is no control plane (any more): why */
	char over_text[CTL_TEXT_MAX];
	int64_t clock_offset;	/* constant once joined */
	struct ctl_peer *peers; /* [nranks] */
	size_t inbox_bytes;
	struct gantry_list outbox; /* of struct ctl_out */
	size_t outbox_bytes;
	struct gantry_list calls;
	uint64_t last_call;
	uint64_t last_gather;
	void *gather_into; /* of the one that is waited for; NULL: none */
	size_t gather_size;
	gantry_result gather_result;
	char gather_text[CTL_TEXT_MAX];
	uint64_t arrivals, seen; /* gantry_ctl_wait */
};

/* How much later than its deadline a rank may hear from the hub who is missing. */
enum { CTL_ANSWER_NS = 1000000000 };

/* ctl_member.c. The hub has accepted us. Takes the descriptor. */
gantry_result ctl_member_accepted(struct gantry_ctl *m, int fd, const struct ctl_accepted *a) REQUIRES(loop_mu);

/* ctl_life.c. The service's mu is held. */
void ctl_members_take(void) REQUIRES(loop_mu); /* what callers queued, and those who leave */
void ctl_members_tick(void) REQUIRES(loop_mu);
/* No control plane for this rank any more: everybody who waits hears it. Closes the connection. */
void ctl_member_over(struct gantry_ctl *m, gantry_result why, const char *fmt, ...)
	__attribute__((format(printf, 3, 4))) REQUIRES(loop_mu);
/*
 * The hub is gone. With it are the ranks of its process, unless they had left before: then it went as it should, and
 * the others do without. If no rank lives there, it is nobody (-1) who is lost. properly: it has said goodbye.
 */
void ctl_hub_gone(struct gantry_ctl *m, gantry_result why, const char *cause, int properly) REQUIRES(loop_mu);
/* The hub counts this very rank as lost, and so do all others: we were stopped, or cut off. */
void ctl_self_lost(struct gantry_ctl *m, gantry_result why, const char *text) REQUIRES(loop_mu);
/* The membership's mu is held as well. */
void ctl_member_news(struct gantry_ctl *m);
void ctl_call_done(struct ctl_call *call, gantry_result result);
void ctl_peer_gone(struct gantry_ctl *m, int rank, gantry_result why, const char *text);

/* ctl_join.c: until it is accepted. */
void ctl_join_tick(struct gantry_ctl *m) REQUIRES(loop_mu);

/* ctl_callback.c */
void ctl_callback_lost(struct gantry_ctl *m, int rank, gantry_result why, const char *text);
void ctl_callback_call(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body);
void ctl_callbacks_drop(const struct gantry_ctl *m);
/* Runs what is queued, without the lock; 1 if there was something. */
int ctl_members_call_back(void) REQUIRES(loop_mu);

/* ctl.c */
void ctl_member_free(struct gantry_ctl *m);

#endif
