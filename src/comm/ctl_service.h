/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service thread of the control plane: one per process, whatever the number of hubs and memberships in it. It alone
 * reads and writes their connections, on one epoll instance, and it alone frees things.
 *
 * Locks: `mu` protects everything here, the hubs, and the service's half of the memberships. The thread holds it while
 * it works, never while it waits or calls back. Other threads take it only to add something or to mark it for removal,
 * so lists do not change under the thread's feet. What the callers' threads share with a membership day by day (inbox,
 * outbox, news) stands under that membership's own lock. Order: mu, then a membership's.
 *
 * A turn of the thread: wait; take what callers queued; handle events; do what is due by the clock; write what the turn
 * has produced, batched; run callbacks, without the lock; free what was closed. It runs while there are hubs,
 * memberships and connections to be seen off, then ends by itself.
 *
 * Time. `due` is when the thread must look at the clock next; things that are heard only move their deadlines later, so
 * nothing is recomputed on the way. If the thread comes late, by its own starvation or because the process was stopped,
 * `late` says by how much, and ctl_silent gives peers time to be heard before it judges them.
 *
 * Fork. A child has no thread, but copies of all descriptors, which would hide the death of the parent from its peers.
 * So they are closed in the child, which starts afresh; memberships of the parent cannot be used there.
 */
#ifndef GANTRY_COMM_CTL_SERVICE_H
#define GANTRY_COMM_CTL_SERVICE_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "comm/ctl_wire.h"
#include "inet/backoff.h"

/* ---- connections ---- */

enum { CTL_OUT_MAX = 64 << 20 }; /* bytes that may wait for a reader; beyond that it is no reader */
/* Of these a rank's user may fill so many: the service's own words (signs of life, a leave) must find room behind them,
 * or a hub that is merely slow would be given up. */
enum { CTL_USER_MAX = CTL_OUT_MAX / 2 };
enum {
	CTL_BEATS = 32
}; /* signs of life in GANTRY_TIMEOUT: the gap between two is lost to an outage that is survived */

/* Something epoll watches. */
struct ctl_source {
	int fd; /* -1: closed, waits to be freed */
	uint32_t events;
	void (*ready)(struct ctl_source *s, uint32_t events);
};
gantry_result ctl_source_add(struct ctl_source *s, uint32_t events);
void ctl_source_set(struct ctl_source *s, uint32_t events);
void ctl_source_close(struct ctl_source *s);

/* A frame as it goes over the wire; shared by the queues of all who get it. */
struct ctl_buf {
	uint32_t refs; /* by whoever holds the lock of the queue it is in */
	size_t size;
	uint8_t bytes[];
};
/* NULL: no memory. h->size bytes of body. */
struct ctl_buf *ctl_buf_make(const struct ctl_head *h, const void *body);
void ctl_buf_put(struct ctl_buf *b);
struct ctl_out {
	struct gantry_list node;
	struct ctl_buf *buf; /* a reference */
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
	/* Something can be read. Non-zero: not by us, or not yet. NULL: always by us. */
	int (*elsewhere)(struct ctl_conn *c);
	/* The outcome of ctl_conn_connect: 0, or an errno. */
	void (*connected)(struct ctl_conn *c, int e);
};

struct ctl_conn {
	struct ctl_source source;
	struct gantry_list node;  /* in conns, finishing or dead */
	struct gantry_list dirty; /* in the service's dirty list: something to write at the end of the turn */
	const struct ctl_conn_ops *ops;
	void *owner; /* borrowed */
	struct gantry_addr peer;
	int connecting;
	struct ctl_parser in;
	struct gantry_list out;	  /* of struct ctl_out */
	size_t out_bytes, out_at; /* waiting; of the first one, already written */
	int out_dead;		  /* errno of a write: what the peer said before is still read, then comes the end */
	const char *fault;	  /* what went wrong here, found at the end of the turn */
	uint64_t heard;		  /* ns */
	uint64_t look_by;	  /* ns: when the socket's back-off is looked at; 0: nothing is out */
	struct sock_backoff backoff;
	uint64_t finish_by; /* in finishing: when patience ends */
};

/* Takes the descriptor, also on failure. */
gantry_result ctl_conn_make(int fd, const struct gantry_addr *peer, const struct ctl_conn_ops *ops, void *owner,
			    struct ctl_conn **ret_conn);
/* errno or 0; the outcome comes by ops->connected. Never logs. */
int ctl_conn_connect(const struct gantry_addr *to, const struct ctl_conn_ops *ops, void *owner,
		     struct ctl_conn **ret_conn);
/* Queue for the end of the turn. Failures are reported by ops->broken, later. */
void ctl_conn_write(struct ctl_conn *c, struct ctl_out *o); /* takes it over */
void ctl_conn_share(struct ctl_conn *c, struct ctl_buf *b); /* takes a reference of its own */
void ctl_conn_send(struct ctl_conn *c, const struct ctl_head *h, const void *body);
/* Now; NULL is fine. */
void ctl_conn_close(struct ctl_conn *c);
/* Writes what is queued, then says that this is all, and waits for the peer to do the same: but not longer than ns. */
void ctl_conn_finish(struct ctl_conn *c, uint64_t ns);

/* ---- the thread ---- */

struct ctl_service {
	pthread_mutex_t mu;
	pthread_cond_t quiet; /* a callback has returned */
	int initialised;
	int running;
	int ended;   /* the thread has nothing more to do, but was not joined yet */
	int parting; /* exit has begun: no new hand-shakes */
	int exiting; /* it is about to be over: hubs say goodbye */
	pid_t owner; /* the process the thread is in */
	int forks;   /* of how many forks this process is the child: memberships of the parent are not its own */
	pthread_t thread;
	int epoll_fd;
	struct ctl_source wake;
	int woken; /* exchange: 1 from the wake-up until the thread takes notice */
	uint64_t turns;

	uint64_t process; /* random */
	char who[CTL_WHO_SIZE];

	struct gantry_list conns, finishing, dead, dirty; /* of connections */
	struct gantry_list hubs, listeners, strangers;	  /* hub.h */
	struct gantry_list members, events;		  /* ctl_member.h */
	struct gantry_list abandoned;			  /* in a forked child: what belonged to the parent */
	int nstrangers, nleaving;
	uint64_t refused; /* strangers so far */

	uint64_t now, due, late; /* ns: of this turn; of the next look at the clock; by how much this one came late */
	uint8_t scratch[64 << 10];
};
extern struct ctl_service ctl_service;

/* Locks mu with the thread running (not locked on failure); done unlocks and wakes the thread. */
gantry_result ctl_service_enter(void);
void ctl_service_done(void);
void ctl_service_wake(void);
/* A turn of the thread. mu held; let go while it waits. */
void ctl_service_turn(void);
/* mu held: look at the clock at `when` at the latest. */
void ctl_service_due(uint64_t when);
/* mu held. Was the peer silent for too long? Time that this thread missed is not held against it. */
int ctl_silent(uint64_t *heard, uint64_t timeout);
/* How long after its last word a peer counts as silent: it may have fallen silent a beat later. */
uint64_t ctl_patience(uint64_t timeout);
/* "0.5 s" of nanoseconds. */
const char *ctl_seconds(uint64_t ns, char buf[16]);

/* ctl_process.c: forks and exit, from now on. */
void ctl_process_watch(void);

/* ctl_conn.c, for the thread. */
void ctl_conns_flush(void);
void ctl_conns_tick(void);
void ctl_conns_reap(void);

#endif
