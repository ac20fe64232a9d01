/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane's part of the loop (inet/loop.h): hubs, memberships and their connections. The loop's thread alone
 * reads and writes the connections, and it alone frees things.
 *
 * Lock: loop_mu protects everything here, the hubs and the memberships. Other threads take it to add something, to mark
 * it for removal, to queue a frame and to look for news, so lists of objects do not change under the thread's feet.
 *
 * A pass: handle events (the loop); take new and leaving members; do what is due by the clock; write what the pass has
 * produced, batched; run callbacks, without the lock; free what was closed.
 *
 * Time. `due` is when the thread must look at the clock next; received messages only move their deadlines later, so
 * nothing is recomputed on the way. If the thread comes late, by its own starvation or because the process was stopped,
 * `late` is the delay, and ctl_silent gives peers time to send before it judges them.
 */
#ifndef GANTRY_CTL_CTL_SERVICE_H
#define GANTRY_CTL_CTL_SERVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "ctl/ctl_wire.h"
#include "inet/handshake.h"
#include "inet/loop.h"
#include "inet/sock.h"

/* ---- connections ---- */

enum { CTL_OUT_MAX = 64 << 20 }; /* bytes that may wait for a reader; beyond that it is no reader */
/* Of these a rank's user may fill so many: the service's own words (signs of life, a leave) must find room behind them,
 * or a hub that is merely slow would be given up. */
enum { CTL_USER_MAX = CTL_OUT_MAX / 2 };
enum {
	CTL_BEATS = 32
}; /* signs of life in GANTRY_TIMEOUT: the gap between two is lost to an outage that is survived */
/* What may come before a count of it goes back. So a sender keeps little, and the peer of one that has nothing else to say
 * is not asked for more than that. */
enum { CTL_ACK_FRAMES = 64, CTL_ACK_BYTES = 256 << 10 };

/* A frame as it goes over the wire; shared by the queues of all its receivers. */
struct ctl_buf {
	uint32_t refs; /* under the lock of the queue it is in */
	size_t size;
	uint8_t bytes[];
};
/* NULL: no memory. h->size bytes of body. */
struct ctl_buf *ctl_buf_make(const struct ctl_head *h, const void *body);
void ctl_buf_put(struct ctl_buf *b);
struct ctl_out {
	struct gantry_list node;
	struct ctl_buf *buf; /* a reference */
	struct ctl_buf *
		sealed; /* the same as records of this socket, while it is written; NULL: it is not, or not encrypted */
};
/* NULL: no memory. Takes over the reference in any case; NULL is fine. */
struct ctl_out *ctl_out_make(struct ctl_buf *b);
void ctl_out_free(struct ctl_out *o);

struct ctl_conn;
struct ctl_conn_ops {
	/* Non-zero: the connection was closed or given away, read no more. */
	int (*frame)(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body);
	/* The connection is of no use any more; the callee closes it. `cause` is half a sentence. */
	void (*broken)(struct ctl_conn *c, gantry_result why, const char *cause);
	/* It outlives its sockets, and this one broke: ctl_conn_resume with another, or ctl_conn_close. */
	void (*cut)(struct ctl_conn *c, const char *cause);
};

/*
 * A connection that outlives its sockets, seen from one side. A frame is kept until the peer's count says that it has come.
 * Signs of life are neither counted nor kept.
 */
struct ctl_session {
	bool on;
	bool parting;		 /* the last frame is out: once the peer has it, it ends the connection */
	struct gantry_list kept; /* of struct ctl_out: written, and not known to have come; in order */
	uint64_t acked;		 /* frames that the peer has: `kept` begins behind them */
	uint64_t nkept;
	uint64_t sent;	   /* frames that were written whole on any socket: the peer cannot have more */
	uint64_t received; /* of the peer's */
	uint64_t told;	   /* of these, the peer knows */
	size_t untold;	   /* bytes of those it does not know of */
	uint64_t twice;	   /* so many of those that come next have come before */
};

/* What an owner of several connections wants to know of all of them. */
struct ctl_traffic {
	uint64_t in, out; /* bytes, without hand-shakes */
};

struct ctl_conn {
	struct inet_source source;
	struct gantry_list node;  /* in conns, finishing or dead */
	struct gantry_list dirty; /* in the service's dirty list: something to write at the end of the pass */
	const struct ctl_conn_ops *ops;
	void *owner;		     /* borrowed */
	struct ctl_traffic *traffic; /* borrowed, until the connection is closed or finishes; NULL: not counted */
	struct gantry_addr peer;
	struct ctl_parser in;
	struct inet_seals seals; /* owned; none: it is not encrypted */
	uint8_t *cut;		 /* owned: a record of which some is missing */
	size_t cut_n;
	bool refused; /* one was */
	bool closed;
	struct ctl_session session;
	struct gantry_list out; /* of struct ctl_out */
	size_t out_bytes;	/* waiting, and kept */
	size_t out_at;		/* of the first one, already written */
	int out_dead;		/* errno of a write: what the peer sent before is still read, then comes the end */
	const char *fault;	/* what went wrong here, found at the end of the pass */
	uint64_t heard;		/* ns */
	uint64_t look_by;	/* ns: when the socket's back-off is looked at; 0: nothing is out */
	struct sock_backoff backoff;
	uint64_t finish_by; /* in finishing: when patience ends */
};

/* Takes the descriptor and the seals, also on failure. */
gantry_result ctl_conn_make(int fd, struct inet_seals *seals, const struct gantry_addr *peer,
			    const struct ctl_conn_ops *ops, void *owner, struct ctl_conn **ret_conn) REQUIRES(loop_mu);
/* Between its sockets. */
static inline bool ctl_conn_is_cut(const struct ctl_conn *c)
{
	return !c->closed && c->source.fd < 0;
}
/* Whether the peer's count of received frames is possible: not less than its previous count, nor more than was sent. */
bool ctl_conn_counts(const struct ctl_conn *c, uint64_t received);
/* A new socket for it, whose peer has so many frames (ctl_conn_counts); the old one is reset. first: the number of the frame
 * with which the peer goes on. Takes the descriptor and the seals, also on failure: then the connection is cut. */
gantry_result ctl_conn_resume(struct ctl_conn *c, int fd, struct inet_seals *seals, const struct gantry_addr *peer,
			      uint64_t received, uint64_t first) REQUIRES(loop_mu);
/* A sign of life, with the count. */
void ctl_conn_send_life(struct ctl_conn *c);
/* Queue for the end of the pass. Failures are reported by ops->broken, later. */
void ctl_conn_write(struct ctl_conn *c, struct ctl_out *o); /* takes it over */
void ctl_conn_share(struct ctl_conn *c, struct ctl_buf *b); /* takes a reference of its own */
void ctl_conn_send(struct ctl_conn *c, const struct ctl_head *h, const void *body);
/* Now; NULL is fine. */
void ctl_conn_close(struct ctl_conn *c) REQUIRES(loop_mu);
/* Writes what is queued, then says that this is all, and waits for the peer to do the same: but not longer than ns. */
void ctl_conn_finish(struct ctl_conn *c, uint64_t ns) REQUIRES(loop_mu);

/* ---- the service ---- */

struct ctl_service {
	struct gantry_cond quiet; /* a callback has returned */
	int initialised GUARDED_BY(loop_mu);
	int exiting GUARDED_BY(loop_mu); /* the process is about to be over: hubs say goodbye */
	uint64_t process;		 /* random */

	struct gantry_list conns GUARDED_BY(loop_mu), finishing GUARDED_BY(loop_mu); /* of connections */
	struct gantry_list dead GUARDED_BY(loop_mu), dirty GUARDED_BY(loop_mu);
	struct gantry_list hubs GUARDED_BY(loop_mu);				    /* hub.h */
	struct gantry_list members GUARDED_BY(loop_mu), events GUARDED_BY(loop_mu); /* ctl_member.h */
	int nleaving GUARDED_BY(loop_mu);

	/* ns: of the next look at the clock; by how much this pass came late */
	uint64_t due GUARDED_BY(loop_mu), late GUARDED_BY(loop_mu);
	uint8_t scratch[64 << 10] GUARDED_BY(loop_mu);
};
extern struct ctl_service ctl_service;

/* For what becomes a hub or a membership: there is a thread. */
gantry_result ctl_service_start(void) REQUIRES(loop_mu);
/* Look at the clock at `when` at the latest. */
void ctl_service_due(uint64_t when) REQUIRES(loop_mu);
/* Was the peer silent for too long? Time that this thread missed is not held against it. */
int ctl_silent(uint64_t *last_seen, uint64_t timeout) REQUIRES(loop_mu);
/* How long after its last word a peer counts as silent: it may have fallen silent a beat later. */
uint64_t ctl_patience(uint64_t timeout);
/* "0.5 s" of nanoseconds. */
const char *ctl_seconds(uint64_t ns, char buf[16]);

#endif
