/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub's own structures, and what its files call of each other. hub.h has the states.
 *
 *   hub.c         a hub from its start to its end, its clock, and the ranks that are here: messages, leaving, loss
 *   hub_join.c    ranks that come: checks, completion when all are here, and how joining fails
 *   hub_resume.c  ranks that have lost their socket: whether their process lives, and how they come back
 *   hub_gather.c  allgathers
 *
 * All of it is the service thread's, under loop_mu.
 */
#ifndef GANTRY_CTL_HUB_PRIV_H
#define GANTRY_CTL_HUB_PRIV_H

#include "ctl/hub.h"

struct hub;
enum hub_rank_state { HUB_ABSENT, HUB_HERE, HUB_LEFT, HUB_LOST };
struct hub_rank {
	struct hub *hub;
	enum hub_rank_state state;
	struct inet_stream *conn; /* while HERE; its owner is this rank */
	uint32_t generation;	  /* of its socket */
	struct hub_probe *probe;  /* owned, while it is HERE without a socket; NULL: none, or it has no address */
	struct gantry_addr addr;
	uint64_t process;
	char who[CTL_WHO_SIZE];
	int gave;	   /* its part of the allgather that is open, or, in an exchange, the word that it has begun */
	int has;	   /* exchange: all parts */
	int untold;	   /* LEFT: the others do not know yet */
	gantry_result why; /* LOST: sent to ranks that still call it */
};

/* Since when ranks that have called wait for others, and when that is logged next. */
struct hub_wait {
	uint64_t since, tell_at; /* ns */
};

/* One allgather at a time: a rank begins the next when it has the result of the last. */
struct hub_gather {
	uint64_t number;	/* of the one in progress or just ended */
	int open;		/* some gave, not all */
	int count, nhave;	/* that gave; exchange: that have all parts */
	uint32_t size;		/* per rank */
	struct inet_frame *buf; /* the frame with the parts of all ranks; exchange: with none */
	uint64_t deadline;	/* ns; UINT64_MAX: none */
	struct hub_wait wait;
	gantry_result error; /* it failed: sent to ranks that come to it later */
	char text[CTL_TEXT_MAX];
};

enum hub_state { HUB_OPEN, HUB_RUNNING, HUB_FAILED, HUB_ENDED };
struct hub {
	struct gantry_list node;
	struct inet_port *port; /* a reference */
	uint64_t comm_id;
	struct inet_key key;
	uint8_t key_bytes[INET_KEY_SIZE];
	bool fixed; /* its id is one that ranks make for themselves: the address alone tells it from other hubs */
	uint64_t timeout, connect_timeout, call_timeout; /* ns; the last one: 0 for none */

	enum hub_state state;
	int nranks, nhere;
	int nuntold;
	int exchange; /* the ranks exchange parts directly: announced in READY */
	struct inet_traffic traffic;
	struct hub_rank *ranks;	   /* NULL before the first one came */
	struct gantry_addr *addrs; /* where ranks reach each other; family 0: nowhere. Beside the ranks, and as many */
	uint64_t beat, next_beat;
	uint64_t until;	      /* OPEN: when waiting ends, UINT64_MAX: never. FAILED: when this ends */
	struct hub_wait wait; /* OPEN, from the first rank on */
	uint32_t refused; /* connections that named this hub and proved nothing: for the text of a failure, no more */
	int secrets;	  /* this side has a secret, or one of those reported one */
	char unfit[256];  /* the last rank that proved itself and did not fit, and why; empty: none */
	gantry_result error;
	char text[CTL_TEXT_MAX];
	struct hub_gather gather;
};

enum {
	HUB_LINGER_NS = 1000000000, /* how long a rank may take to read the last frame */
	HUB_RANK_TEXT = 16 + GANTRY_ADDR_TEXT + CTL_WHO_SIZE,
};

static inline int hub_rank_index(const struct hub_rank *rank)
{
	return (int)(rank - rank->hub->ranks);
}

/* ---- hub.c ---- */

struct hub *hub_find(uint64_t comm_id) REQUIRES(loop_mu); /* NULL: none, or it has ended */
/* "rank 2 (10.0.0.2:4000, node7 pid 12)" */
const char *hub_rank_text(const struct hub_rank *rank, char buf[HUB_RANK_TEXT]);
/* "1, 3-5" of those that it holds for; cut with "..." when it does not fit. */
void hub_list_ranks(const struct hub *hub, bool (*holds)(const struct hub_rank *rank), char *buf, size_t room);
/* A frame of the hub's own whose body is a text; NULL: no memory. */
struct inet_frame *hub_text_frame(struct inet_header h, const char *text);
/* To all ranks that are here. Takes over the reference. */
void hub_tell_all(struct hub *hub, struct inet_frame *b);
/* Closes the connections of all ranks, once they have what was sent to them. */
void hub_linger_all(struct hub *hub) REQUIRES(loop_mu);
void hub_wait_begin(struct hub_wait *w) REQUIRES(loop_mu);
/* Whether it is time to log which ranks are missing; *ret_waited: for how long they have been, ns. */
bool hub_wait_tells(struct hub_wait *w, uint64_t *ret_waited) REQUIRES(loop_mu);
/* All others hear it; while they are joining, it is the end of that. */
void hub_rank_lost(struct hub_rank *rank, gantry_result why, const char *cause) REQUIRES(loop_mu);
extern const struct inet_stream_ops hub_rank_ops; /* of connections whose owner is a rank */

/* ---- hub_join.c ---- */

/* The join has failed: all ranks that are here, and all that come, get the reason. */
void hub_join_fail(struct hub *hub, gantry_result why, const char *fmt, ...) __attribute__((format(printf, 3, 4)))
REQUIRES(loop_mu);
/* It ends: if joining failed, ranks that come still hear why. */
void hub_join_keep(const struct hub *hub) REQUIRES(loop_mu);
/* OPEN, FAILED: whether it has waited enough. */
void hub_join_tick(struct hub *hub) REQUIRES(loop_mu);

/* ---- hub_resume.c ---- */

/* Whether the connections of the rank that says this outlive their sockets. */
bool hub_resumes(const struct ctl_hello *h);
/* inet_stream_ops.cut: the rank has lost its socket. */
void hub_rank_cut(struct inet_stream *c, const char *cause) REQUIRES(loop_mu);
/* Whether its process still listens; no probe is fine for both. */
void hub_probe_drop(struct hub_rank *rank) REQUIRES(loop_mu);
/* A proved connection. False: it is a newcomer's. Else it is taken by a rank that goes on with it, or refused. */
bool hub_take_back(struct hub *hub, struct inet_conn *from, const struct ctl_hello *h) REQUIRES(loop_mu);

/* ---- hub_gather.c ---- */

/* Frames of a rank, as hub.c's table has them. */
int hub_hear_gather(struct hub_rank *rank, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu);
int hub_hear_have(struct hub_rank *rank, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu);
/* The rank is here no more. */
void hub_gather_without(const struct hub_rank *rank) REQUIRES(loop_mu);
void hub_gather_tick(struct hub *hub) REQUIRES(loop_mu);
void hub_gather_drop(struct hub *hub); /* without notifying ranks */

#endif
