/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that outlive their sockets (GANTRY_RESUME). docs/design/0031 has the protocol and the reasons, models/resume.pml
 * its model.
 *
 * What may be lost with a socket is kept. Of the control lane: eager messages, until STATE says that they have come. Small
 * ones as bytes in a ring, at their place in the stream. Larger ones are held: they leave from their user's buffer, and their
 * place in the ring stays free; the user has the buffer back when they have come, or when it waits for too long and they are
 * copied to that place after all. Of a bulk lane: which pieces it was given; their bytes stay in the user's buffer, because every bulk
 * message waits for its acknowledgement. Everything else on the wire is a counter, and is resent.
 *
 * A lane's socket is used until it breaks, or stalls while others do not. Then the lane is stopped: its socket is reset,
 * nothing is read from it or written to it any more, and a STOPPED frame tells the peer how many pieces have come whole.
 * Each side stops by itself or when it hears that the other has. When a side has stopped and knows the peer's count it
 * queues what has not come for the other lanes: no piece is ever sent twice, and none is written to a buffer that was
 * given back. Then the side that opened the session dials a new socket for the lane, with the next generation.
 *
 * A frame that came damaged (GANTRY_CRC) has not come: its lane is broken, and it goes again like all that followed it.
 *
 * An encrypted lane gets new keys with each socket, from a TLS run of its own, and its records begin anew: what is counted
 * lies above the records. The old keys are wiped when the lane is stopped, so nothing of the old socket is opened after that.
 *
 * The control lane is replaced in the same way, but the counts travel in hello and welcome. Its generation is the epoch of
 * the session; a hello whose generation is not newer than the lane's is refused.
 *
 *   up ── breaks, stalls, STOPPED of the peer ──> stopped ── the peer has stopped too ──> settled ── hello, welcome ──> up
 *
 * Threads. A thread that finds a socket broken records it; the service thread does the rest, under loop_mu, and takes
 * all locks of a lane while it changes it. The number of the lane's descriptor never changes: a new socket takes the
 * old one's place (dup3), so no thread has to look at it under a lock.
 */
#ifndef GANTRY_NET_TCP_RESUME_H
#define GANTRY_NET_TCP_RESUME_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/atomic.h"
#include "base/list.h"
#include "inet/handshake.h"
#include "inet/loop.h"
#include "inet/nic.h"
#include "net/net.h"
#include "net/tcp/tcp_wire.h"

enum {
	RESUME_COPY_MAX = 8 << 10, /* a larger eager message is held, not copied */
	RESUME_REPORT = 128 << 10, /* bytes of such messages that must be reported to their sender now */
	/* Its user waits, and the peer takes nothing, for so many paces of the link: a copy is better. Sooner where
	 * several are held: that is a stream, and its sender would stall; the arrival of a single message is reported
	 * with the reply. */
	RESUME_PACES = 8,
	RESUME_STREAM_PACES = 1,
	RESUME_RING = 1 << 20, /* eager bytes that are kept: the window */
	RESUME_KEPT = 256,     /* pieces of one lane that are not known to have come; then the lane waits */
	RESUME_TELL = 64,      /* pieces that a receiver must tell of */
	RESUME_REPAIRS = 16,   /* of one lane within ten seconds: a path that damages more than this is of no use */
};

struct tcp_dial;
struct tcp_lane;
struct tcp_link;
struct tcp_send;
struct inet_conn;
struct inet_port;
struct wire_hello;

/* A piece that a lane was given. */
struct tcp_kept {
	struct tcp_send *send; /* only while `seq` is not acknowledged */
	uint64_t seq, offset;
	uint32_t length;
	bool ended; /* the kernel has all of it */
};

/* Of a lane of a session that resumes. Its lock is link_mu, but where it says otherwise. */
struct tcp_lane_resume {
	uint32_t generation;
	bool stopped;		    /* this side uses the socket no more */
	bool tell;		    /* a STOPPED frame is to be sent */
	bool peer_stopped, settled; /* stopped: the peer has too; its count was acted upon */
	uint64_t peer_pieces;
	uint64_t pieces, pieces_told; /* that have come whole; what was reported to the peer, roughly */
	/* Pieces that it was given, and of these the first that is kept, in a ring of RESUME_KEPT. */
	uint64_t given, first;
	struct tcp_kept *kept;	/* the lane's part of the link's; NULL for lane 0 */
	int broken;		/* release: the socket is of no use any more, and why: */
	int error;		/* errno; 0: the peer ended it; EBADMSG: a frame came damaged */
	uint32_t repairs;	/* such frames since: */
	uint64_t repairs_since; /* ns */
	/* The service thread's, loop_mu. */
	struct tcp_dial *dial; /* owned: while it is to have another socket; NULL */
	uint64_t down_since;   /* ns */
	uint64_t acked;	       /* bytes that the peer's kernel had acknowledged at the last look, */
	uint32_t still;	       /* and looks in a row that found it no further, while packets were on their way */
};

/* Of a link; only sessions that resume have one. Its lock is link_mu, but where it says otherwise. */
struct tcp_resume {
	struct tcp_lane_resume *lanes; /* owned: one for each lane */
	struct tcp_kept *kept;	       /* owned: RESUME_KEPT for each bulk lane */
	/* Owned: RESUME_RING bytes. Eager bytes from tx.peer_received to tx.eager_out, each at its count modulo that. */
	uint8_t *ring;
	uint64_t received_at;	 /* ticks: when the peer last reported more eager bytes */
	struct gantry_list held; /* sends: eager messages that left from their user's buffer, in that order */
	uint32_t held_n;	 /* how many */
	uint64_t adopted;	 /* of these, how many were copied after all: for the log and tests */
	uint64_t again;		 /* eager bytes from here to again_end are to be sent once more */
	uint64_t again_end;
	struct tcp_kept *queue; /* owned: a ring of pieces to be sent once more */
	uint32_t queue_size, queue_head, queue_n;
	bool closing;	   /* a side has closed a direction: a lane that the peer ends may be its goodbye */
	bool over;	   /* no direction is in use any more: from then on a broken socket is the end */
	uint32_t repaired; /* frames that came damaged, and go again: for tests */
	/* The service thread's, loop_mu. */
	struct inet_port *ports[GANTRY_NET_MAX_RAILS]; /* owned references: the peer dials there */
	uint32_t epoch;				       /* of the last hello for lane 0 */
	uint32_t lanes_lost, resumed;		       /* for the log and tests */
};

/* ---- keep.c ---- */

/* What the session needs, when both sides have agreed: from then on l->resume says so. */
gantry_result tcp_resume_init(struct tcp_link *l);
void tcp_resume_free(struct tcp_link *l);

/* The bytes from..to of the ring: one or two parts. */
int tcp_resume_list(const struct tcp_resume *r, uint64_t from, uint64_t to, struct iovec iov[2]);
/* What needs link_mu is in link.h. */

/* The lane's socket is used no more. The service thread's, as the next two. */
void tcp_lane_stop(struct tcp_lane *lane, uint64_t now);
/* Both sides have stopped: what has not come is queued. False: pieces of earlier losses must go first. */
bool tcp_lane_settle(struct tcp_lane *lane);
/* A socket whose hand-shake is over. */
struct tcp_new_socket {
	int fd;			 /* owned, as the next */
	struct inet_seals seals; /* none: the session is not encrypted */
	struct gantry_addr peer; /* where it goes: a socket that was reset meanwhile does not know it any more */
	const char *device;	 /* as of tcp_lane_tune */
	uint32_t generation;
	uint64_t received; /* lane 0: eager bytes that the peer says have come */
};
/* The socket becomes the lane's, if that still waits for this generation; otherwise it is reset. */
void tcp_lane_install(struct tcp_lane *lane, struct tcp_new_socket *s);

/* ---- resume.c ---- */

/* The lane's socket is of no use any more. False: the session does not outlive it. */
bool tcp_resume_broken(struct tcp_lane *lane, int e);
/* The service thread's part. */
void tcp_resume_pass(uint64_t now) REQUIRES(loop_mu);
uint64_t tcp_resume_due(void) REQUIRES(loop_mu); /* UINT64_MAX: nothing to do */
/* A hello with a generation: is the session here? Then, the peer is proved: its answer. */
bool tcp_resume_knows(const struct wire_hello *h) REQUIRES(loop_mu);
void tcp_resume_accept(struct inet_conn *c, const struct wire_hello *h) REQUIRES(loop_mu);
/* The link leaves the network's lists. */
void tcp_resume_forget(struct tcp_link *l) REQUIRES(loop_mu);

#endif
