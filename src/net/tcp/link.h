/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link: one session of TCP sockets between two processes, carrying up to one connection in each direction.
 *
 * Lane 0 is the control lane: small ("eager") messages of both directions and all control frames. Lanes 1.. are bulk
 * lanes: pieces of large messages. A NCCL send comm and the receive comm of the opposite direction share one link
 * where they can, so that acknowledgements ride along and half of the sockets are saved.
 *
 * The rule that keeps both directions apart: a frame is sent only if the other side can take it off the socket without
 * waiting for its user. Eager messages fit the window that the receiver buffers for; bulk messages are sent once their
 * receive is posted. So every socket can always be drained, whatever the users do, and neither direction can block the
 * other, nor control frames.
 *
 * Counters flow back in STATE frames, cumulative and therefore idempotent: receives posted (per tag), bulk messages
 * done, eager bytes consumed. A message that was sent without a copy is complete when STATE says it is done; any other
 * when the kernel has its last byte.
 *
 * Matching: the k-th message of a tag goes to the k-th posted buffer of that tag. Both ends count k by themselves, so
 * lanes may deliver in any order, and for programs that keep NCCL's rules this equals posting order.
 *
 * Streams of small messages. A message that is posted while others are in flight is not sent at once: it is copied to a
 * staging buffer, and the one before it is reported done. The newest one always stays pending until the kernel has it,
 * so its owner must come back and test it, and that flushes the buffer. A buffer that is half full, or older than a few
 * times GANTRY_POLL_PACE when the next message comes, is flushed too. So a lone message leaves at once, and a stream
 * costs one system call for hundreds of messages.
 *
 * Threads. `mu` protects everything but lane I/O state and is held for short, non-blocking stretches. Each lane has a
 * lock per direction that is held while its socket is used. Order: lane lock, then mu; a lane lock may be *tried* under
 * mu. Several threads may progress one link (its users, helpers, the service thread); whoever finds a lane lock taken
 * leaves that lane to the holder, or to its next look: a lock may be held for a moment just to give an idle lane its
 * next piece. Request state is store-released by whoever completes it and load-acquired by test.
 */
#ifndef GANTRY_NET_TCP_LINK_H
#define GANTRY_NET_TCP_LINK_H

#include <pthread.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/atomic.h"
#include "base/list.h"
#include "base/pool.h"
#include "inet/backoff.h"
#include "inet/nic.h"
#include "net/net.h"
#include "net/tcp/vec.h"
#include "net/tcp/hello.h"

enum {
	LINK_SENDS = GANTRY_NET_MAX_REQUESTS * GANTRY_NET_MAX_RECVS,
	LINK_RECVS = 2 * GANTRY_NET_MAX_REQUESTS,
	LINK_WINDOW = 1 << 20,	   /* eager bytes buffered for receives that are not posted yet */
	LINK_BATCH = 32,	   /* eager messages in one system call */
	LINK_CONTROL_FRAMES = 16,  /* control frames in one system call */
	LINK_READAHEAD = 64 << 10, /* control lane: many small messages in one system call */
	LINK_STAGE = 64 << 10,	   /* small messages of a stream are collected up to here */
	LINK_STAGE_MESSAGE = 4096, /* the largest that is worth copying for that */
	LINK_TAGS = 4096,	   /* distinct tags of one direction */
	LINK_DONE_BITS = 1024,	   /* bulk messages that may be complete out of order */
	LINK_PIPE_SIZE = 4 << 20,  /* asked for; the kernel may give less */
	LINK_PIPE_MIN = 256 << 10,
	LINK_PASS_BYTES = 8 << 20, /* sending: a lane is left after this much, so that others get their turn */
	/* Receiving: less, because the sender waits for acknowledgements and for the receives that the user posts next.
	 */
	LINK_RX_PASS_BYTES = 1 << 20,
	LINK_ACK_EVERY = 2,	       /* messages, while more data is there */
	LINK_LAND = 64 << 10,	       /* payload on its way to a landing page */
	LINK_DESCRIPTORS = 64,	       /* DESCRIPTOR frames that wait for the control lane; then bulk lanes wait too */
	LINK_END_GRACE_NS = 500000000, /* how long other lanes may still deliver after one has ended */
};

enum tcp_request_kind { TCP_SEND = 1, TCP_RECV };
enum tcp_request_state {
	TCP_FREE,
	TCP_PENDING,
	TCP_DONE,
	TCP_HELD, /* test has said done; what it holds of the unpack queue is the user's until irecv_consumed */
};

struct tcp_request {
	uint32_t kind;
	uint32_t state; /* enum tcp_request_state; release by the completer, acquire in test */
	struct tcp_link *link;
	struct gantry_list node; /* in the queue it waits in; mu */
};

struct tcp_send {
	struct tcp_request head;
	const uint8_t *data;  /* borrowed until done */
	struct tcp_vec vec;   /* a bulk message that lies in these pieces, if there are any, instead of at data */
	struct tcp_vec_at at; /* the place of `next` in them */
	uint64_t size;
	uint64_t seq;  /* among bulk messages */
	uint64_t next; /* bytes given to lanes */
	uint64_t sent; /* bytes in the kernel */
	uint32_t tag, index;
	uint8_t eager, needs_ack;
	uint8_t announce, announced;   /* the peer is to be told that this waits for a receive; it was told */
	struct tcp_txmem *txmem;       /* borrowed: the NIC reads the message there by itself; NULL */
	struct gantry_piece *block; /* owned: where the bytes of a message from device memory are sent from; NULL */
	uint64_t staged;	       /* ticks: since when they are copied there */
	uint64_t blocked;	       /* ticks: since when it waits, 0: not yet */
	/* Of an eager message, or of a bulk message in one piece. Aligned, so that it never crosses a page. */
	_Alignas(64) uint8_t header[WIRE_FRAME_SIZE];
};

struct tcp_slot {
	uint8_t *data; /* borrowed until done */
	uint64_t size;
	uint64_t total;
	uint64_t begun, got; /* bytes of pieces that have begun to arrive, and that have arrived */
	uint64_t seq;	     /* among bulk messages, as the first piece said */
	uint64_t cover;	     /* of the pieces that have arrived: match.c */
	uint32_t tag, index;
	uint8_t started, complete;
};

struct tcp_recv {
	struct tcp_request head;
	int n, ncomplete, large;
	/* Borrowed from the unpack queue: bytes go elsewhere than to slots[0].data, or copies follow. NULL: neither. */
	struct tcp_land *land;
	struct tcp_vec vec; /* slots[0] lies in these pieces, if there are any, instead of at its data. vec.h */
	struct tcp_slot slots[GANTRY_NET_MAX_RECVS];
};

/* An eager message that came before its receive. */
struct tcp_early {
	struct gantry_list node;
	uint32_t tag, index;
	uint64_t total;
	int complete;
	uint8_t data[];
};

/* Counters of one tag in one direction. */
struct tcp_tag {
	uint32_t tag;
	uint32_t posted;     /* sending: messages posted. receiving: receives posted */
	uint32_t advertised; /* sending: receives the peer has posted. receiving: what it was told of */
	uint32_t arrived;    /* receiving: messages that have begun to arrive */
	uint32_t announced;  /* receiving: messages the peer waits to send */
	uint32_t bulk;	     /* the last message was a bulk one; the next is expected to be one too */
	uint32_t held;	     /* sending: even small messages wait for their receive */
};

struct tcp_tags {
	struct tcp_tag *items; /* owned */
	int count, room, last;
};

/* A lane's sending half; its lock is held while the socket is written. */
struct tcp_lane_tx {
	pthread_mutex_t lock;
	struct tcp_send *send; /* bulk: the message the current piece belongs to; NULL: none */
	const uint8_t *data;   /* of what is left, unless the message has a vec: */
	struct tcp_vec_at at;  /* its place there */
	uint64_t left;	       /* of the piece, not yet given to the kernel or the pipe */
	uint64_t length;       /* of the piece */
	uint8_t header[WIRE_FRAME_SIZE];
	uint32_t header_left;
	int splicing; /* how this piece goes */
	int pipe[2];  /* opened on first use; -1 */
	uint64_t in_pipe;
	int dead; /* sending failed (the receiving half tells why), or the direction was closed half-way */
	uint32_t zerocopy_calls, zerocopy_seen;
	/* Sending from device memory without a copy: txmem.h. Calls and completions of this socket. */
	struct devmem_tx *device; /* borrowed: of the last call */
	uint32_t device_calls, device_done;
	/* Several rails: what this one holds and how fast it drains; written under the lock, read relaxed. */
	uint64_t queued, rate; /* bytes given and not acknowledged; bytes/s, 0: not known */
	uint64_t next_try;     /* ticks: when a full socket is tried again; written under the lock, read relaxed */
	uint64_t bytes;	       /* payload, for the log and for tests */
	struct sock_backoff backoff; /* the service thread's */
	/* Bulk lanes, lane_alive.c. Bytes given to the socket, headers included; written under the lock, read relaxed.
	 */
	uint64_t given;
	uint64_t arrived, unread; /* what the peer says of them; written under mu, read relaxed */
	uint64_t arrived_seen;	  /* the service thread's: of its last look */
	uint64_t still_since;	  /* the service thread's, ticks: none has arrived from then on; 0: none is missing */
};

enum tcp_rx_state { TCP_RX_HEADER, TCP_RX_PAYLOAD };
enum tcp_rx_target { TCP_TO_SLOT, TCP_TO_EARLY, TCP_TO_LAND, TCP_TO_TEXT, TCP_TO_NOWHERE, TCP_TO_VEC };

/* A lane's receiving half. A partial header or payload is a state of its own: any split point is fine. */
struct tcp_lane_rx {
	pthread_mutex_t lock;
	enum tcp_rx_state state;
	enum tcp_rx_target target;
	struct wire_frame frame;
	uint8_t *dst;
	uint64_t left;
	struct tcp_recv *recv;
	struct tcp_slot *slot;
	struct tcp_early *early;
	struct tcp_vec_at vec; /* TCP_TO_VEC: where the next byte goes */
	uint8_t *land; /* owned: LINK_LAND bytes for payload whose place the CPU cannot write; NULL: no unpack queue */
	uint32_t unlanded; /* bytes of it that are filled */
	uint32_t crc;	   /* of the payload that has come, if the link has checksums */
	uint8_t *buf;	   /* owned read-ahead */
	uint32_t room, head, tail;
	uint64_t next_poll; /* ticks; relaxed. Written under the lock, and for a flow also under mu */
	/* The next frame in the buffer is for a receive that is not posted yet; or fragments for a header that is on
	 * its way. */
	int parked;
	int eof;
	uint64_t bytes; /* headers included; written under the lock, read relaxed */
	/* What the peer is told of a bulk lane: bytes that have arrived, and those of them not read. mu */
	uint64_t arrived, unread;
	int tell_arrived;
	char text[WIRE_ERROR_TEXT_MAX + 1];
};

struct tcp_lane {
	int fd;
	int index;
	struct tcp_link *link;
	struct gantry_addr local, peer;
	struct tcp_lane_tx tx;
	struct tcp_lane_rx rx;
	struct tcp_flow *flow; /* owned; device_rx: what arrives comes through it. flow.h */
};

/* Why one direction ended while the link, and maybe the other direction, lives on. Written under mu. */
struct tcp_end {
	uint32_t over; /* release after text is set */
	char text[256];
};

enum tcp_direction_state {
	TCP_UNUSED,   /* nobody has asked for this direction yet */
	TCP_RESERVED, /* promised to a connector or listener, the link is not up yet */
	TCP_OPEN,
	TCP_CLOSED, /* by this side */
};

struct devmem_pool;
struct devmem_tx;
struct tcp_txmem;
struct tcp_stage;
struct gantry_piece;
struct tcp_unpack;
struct tcp_flow;

/* The service thread's: what it last saw of a direction. stall.c */
struct tcp_stall {
	uint64_t sum, since; /* ns */
	int told;
};

/* Who the peer is, and what both sides agreed on. Set before the link is shared, constant afterwards. */
struct tcp_session {
	uint32_t id; /* of the link, within the process */
	int forks;   /* inet_forked */
	uint8_t key[WIRE_SESSION_SIZE];
	char peer[160]; /* "10.0.0.2:4000 (node7 pid 123)" */
	uint64_t peer_process, comm_id;
	int dev, peer_dev;
	int initiator; /* this side opened the sockets */
	int same_host;
	int crc; /* both sides have agreed that every frame has checksums */
	uint32_t eager_max, peer_window;
	/* Payload lands in device memory: bulk lanes towards that side carry nothing else, descriptors go ahead on
	 * lane 0. */
	int device_tx, device_rx;    /* the peer, this side */
	int own_unpack, peer_unpack; /* what both said in the hand-shake: enum wire_unpack */
	int rails;		     /* of our device: 1 is the usual one NIC */
	uint64_t cover_key;	     /* random: match.c */
	uint64_t pace_ticks;
};

/* Small messages of a stream on their way into one system call; link_mu. */
struct tcp_coalesce {
	uint8_t *buffers[2]; /* owned; one is filled while the other is being sent */
	int now;
	uint32_t bytes, count;
	uint64_t since;		 /* ticks */
	struct tcp_send *newest; /* the last message in it: pending until it is sent */
};

/* device_tx: headers of pieces that lanes have pulled, in that order: a ring. They go before CLOSE. link_mu. */
struct tcp_descriptors {
	uint8_t frames[LINK_DESCRIPTORS][WIRE_FRAME_SIZE];
	uint32_t head, n;
};

/* The sending direction; link_mu, but for what says otherwise. */
struct tcp_tx {
	struct gantry_pool sends; /* the posting thread's */
	struct tcp_tags tags;
	struct gantry_list eager, bulk, unacked;
	struct tcp_coalesce coalesce;
	struct tcp_descriptors descriptors;
	uint64_t next_seq, peer_done;
	uint32_t peer_done_bits; /* of the messages behind the first one that is not done */
	uint64_t eager_out, peer_consumed;
	int window_blocked;
	uint64_t bulk_bytes;	  /* of bulk messages, not yet given to lanes; read without the lock as well */
	uint64_t bulk_sent;	  /* bulk messages given to the kernel whole */
	uint32_t pending;	  /* relaxed hint: something waits on the control lane */
	uint32_t bulk_pending;	  /* relaxed hint: bulk messages wait or are on their way */
	int splice, msg_zerocopy; /* how bulk messages may go; relaxed: cleared where that does not work */
	int wanted;		  /* the direction is in use, or promised */
	int tell_close;		  /* a CLOSE frame is to be sent */
	int peer_closed;	  /* the peer's receiving side is */
	struct tcp_end end;
};

/* The receiving direction; link_mu. */
struct tcp_rx {
	struct gantry_pool recvs; /* the posting thread's */
	struct tcp_tags tags;
	struct gantry_list posted, unexpected;
	uint64_t unexpected_bytes;
	uint64_t done, done_told;
	uint64_t done_bits[LINK_DONE_BITS / 64];
	uint64_t consumed, consumed_told;
	uint32_t small_posted, large_posted; /* outstanding receives; read relaxed as hints */
	uint32_t bulk_hint;		     /* the peer has a bulk message for us; read relaxed */
	uint32_t described;		     /* pieces described and not complete, of all lanes */
	uint64_t ack_upto; /* messages before this were sent without a copy: their sender waits for `done` */
	uint64_t bulk_received, newest_bulk;
	int ack_now;
	int deep_window; /* the sender said so in the newest bulk message */
	int heartbeat_due;
	int closed; /* by this side */
	int tell_close;
	int peer_closed; /* the peer's sending side is; it had sent this much: */
	uint64_t peer_bulk_sent;
	struct tcp_end end;
};

/* How the link ends; link_mu. */
struct tcp_ending {
	uint32_t failed; /* release after error and text are set */
	gantry_result error;
	char text[WIRE_ERROR_TEXT_MAX];
	uint64_t sent_bytes, recv_bytes; /* of ERR_SIZE */
	int tell;			 /* an ERROR frame is to be sent */
	uint64_t ending; /* ticks, 0: no. A lane has ended; what the others still hold is taken before the link fails */
	uint64_t ending_since; /* as ending, but never renewed */
	int ending_errno;
	int ending_lane;
	int hung_up; /* the peer has said all and we have nothing to say: our side of the sockets is shut */
};

/* Ticks, relaxed: heard of the peer; told the peer; a user progressed the link; bulk bytes moved. */
struct tcp_activity {
	uint64_t heard, told, progressed, bulk_moved;
};

/* What only links have that send from, or receive into, device memory: unpack.h, staging.h, txmem.h; link_mu. */
struct tcp_link_devmem {
	struct devmem_pool *pool;	/* device_rx: owned reference */
	struct tcp_unpack *unpack;	/* borrowed from the receiving comm; NULL unless with UNPACK */
	struct gantry_list copying_in;	/* receives whose bytes are here and still being copied */
	uint32_t copying_in_n;		/* read relaxed as a hint */
	int warned_plain;		/* that a flow is not steered; atomic */
	struct tcp_stage *staging;	/* owned reference; NULL until memory of a device is to be sent */
	struct tcp_stage *staging_left; /* owned reference: what it was when the direction closed, for whoever has let
					   go of all locks; the engine's mu */
	struct gantry_list copying_out; /* sends whose bytes are on their way from device memory, oldest first */
	uint32_t copying_out_n;		/* read relaxed as a hint */
	struct gantry_list txmems;	/* registered memory that NICs read by themselves */
	uint64_t staged, staged_ticks;	/* messages that were copied, and how long that took; for the log */
};

/* The control lane's sending half: its current batch. It may be taken by who has a bulk lane's lock. */
struct tcp_control {
	pthread_mutex_t lock;
	struct iovec iov[2 * LINK_BATCH + LINK_CONTROL_FRAMES + 2];
	int iov_at, iov_n;
	struct tcp_send *batch[LINK_BATCH + 1];
	int batch_n;
	uint8_t frames[LINK_CONTROL_FRAMES][WIRE_FRAME_SIZE];
	char text[WIRE_ERROR_TEXT_MAX];
	void *orphan; /* owned: bytes of a batch whose senders were closed in the middle */
};

struct tcp_link {
	struct tcp_session session;
	int nlanes;
	struct tcp_lane *lanes; /* owned: nlanes */

	/* Engine lock. In the engine's lists: of all links; of peers' sessions; and of those that are opening, or whose
	 * other direction is free. engine.h */
	struct gantry_list node, by_session, waiting;
	int up;					     /* all lanes are there; engine lock */
	enum tcp_direction_state tx_state, rx_state; /* engine lock */
	uint64_t rx_listener;	   /* who gets the receiving direction when the link is up; engine lock */
	uint64_t linger_until;	   /* ns; engine lock */
	int watched;		   /* atomic: a user of it does not look for stalls itself */
	int standing_receives;	   /* atomic: posted receives are no reason to miss the peer */
	struct tcp_stall stall[2]; /* receiving, sending */
	int shut;		   /* our side of the sockets is shut; engine lock */
	int lanes_here;		   /* during set-up; engine lock */

	pthread_mutex_t mu;
	struct tcp_tx tx;
	struct tcp_rx rx;
	struct tcp_ending end;
	struct tcp_link_devmem devmem;
	struct tcp_activity last;
	struct tcp_control control;
};

/* link.c: life, failure. The caller holds a reference or the engine lock. */
gantry_result tcp_link_create(int nlanes, struct tcp_link **ret_link);
void tcp_link_free(struct tcp_link *l);		    /* closes what is open; accepts NULL */
gantry_result tcp_link_open_tx(struct tcp_link *l); /* mu held, as for open_rx */
gantry_result tcp_link_open_rx(struct tcp_link *l);
/* Give all buffers back to their owners at once; what the stream still needs to keep its framing is kept. */
void tcp_link_close_tx(struct tcp_link *l);
void tcp_link_close_rx(struct tcp_link *l);
/* The first cause is kept and logged; later ones are dropped. Takes mu. tell: send the peer an ERROR frame. */
void tcp_link_fail(struct tcp_link *l, int tell, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void tcp_link_fail_locked(struct tcp_link *l, int tell, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int tcp_link_failed(const struct tcp_link *l);
/* A lane has ended (e 0) or broken: the link fails when all have, or a moment later. Takes mu. */
void tcp_link_ending(struct tcp_lane *lane, int e);
void tcp_link_check_ending(struct tcp_link *l);
/* Everything the peer had sent before it closed has been taken. mu held. */
int tcp_link_peer_said_all(const struct tcp_link *l);
/* If both sides have said all: shuts our side of the sockets, which the peer waits for. No lock of the link held but a
 * lane's receiving one. */
void tcp_link_hang_up(struct tcp_link *l);
/* The peer has closed one direction. mu held. */
void tcp_link_end(struct tcp_link *l, struct tcp_end *end, const char *why);
/* GANTRY_OK, or why requests of this direction fail, with the text as this thread's last error. */
gantry_result tcp_link_status(struct tcp_link *l, const struct tcp_end *end);
/* Nothing waits on the control lane any more. */
int tcp_control_idle(struct tcp_link *l);
struct tcp_tag *tcp_tag_of(struct tcp_tags *tags, uint32_t tag); /* NULL: no memory, or too many tags */

/* link_api.c: what a user does with it. */
gantry_result tcp_link_irecv_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n, int tag, void **ret_request);
gantry_result tcp_link_isend_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n, int tag, void **ret_request);
gantry_result tcp_link_hold(struct tcp_link *l, int tag); /* tcp_hold of vec.h */
gantry_result tcp_link_isend(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request);
/* data is memory of the device whose stage the link has. ERR_LIMIT: larger than that. */
gantry_result tcp_link_isend_device(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request);
gantry_result tcp_link_irecv(struct tcp_link *l, int n, void **data, const size_t *sizes, const int *tags,
			     void **ret_request);
/* On a link with an unpack queue; device: data is memory of its device; optional: LL or LL128. */
gantry_result tcp_link_irecv_unpack(struct tcp_link *l, void *data, size_t size, int tag, int device, int optional,
				    void **ret_request);
gantry_result tcp_link_test(struct tcp_request *req, int *ret_done, int *sizes);

/* progress.c: one pass over all lanes. */
void tcp_link_progress(struct tcp_link *l);
/* The service thread's: drain the control lane, send a heartbeat if it is due. */
void tcp_link_service(struct tcp_link *l, int heartbeat);

/* lane_alive.c: the service thread's, and what the peer says. now: ticks. */
int tcp_lanes_report(struct tcp_link *l); /* 1: there is something to tell */
void tcp_lanes_check(struct tcp_link *l, uint64_t now, uint64_t grace);
int tcp_lane_arrived(struct tcp_link *l, const struct wire_arrived *a); /* mu held. -1: the link has failed */

/* control_tx.c */
void tcp_control_flush(struct tcp_link *l);
int tcp_descriptor_room(const struct tcp_link *l); /* mu held, as for put */
/* The header of a piece whose payload, and nothing else, goes on bulk lane f->lane. There is room. */
void tcp_descriptor_put(struct tcp_link *l, const struct wire_piece *f);
/* bulk_push.c: the piece that a lane has pulled to its socket. 1: all of it is in the kernel; 0: the socket is full;
 * -1: failed. */
int tcp_push_spliced(struct tcp_lane *lane);
int tcp_push_copied(struct tcp_lane *lane);
/* bulk_tx.c */
int tcp_bulk_tx(struct tcp_lane *lane); /* 1: bytes moved */
void tcp_lane_tx_abandon(struct tcp_lane *lane);
void tcp_lane_lost(struct tcp_lane *lane); /* with errno: the socket takes nothing any more */
/* frame_rx.c. mu held, and the lane's rx.lock. -1: the link has failed. */
int tcp_frames_parse(struct tcp_lane *lane, int force); /* what is in the read-ahead buffer */
int tcp_frames_end(struct tcp_lane *lane);		/* all payload of the current one is there */
/* Bytes of the current payload for device memory; left: from their first on. */
int tcp_frames_land(struct tcp_lane *lane, const uint8_t *data, uint32_t n, uint64_t left);
void tcp_link_check_peer_closed(struct tcp_link *l);
/* lane_rx.c */
/* 1: bytes moved. force: also take in messages whose receives are not posted; otherwise they get a second chance. */
int tcp_lane_rx(struct tcp_lane *lane, int force);
/* match.c: under mu. */
struct tcp_slot *tcp_match_slot(struct tcp_link *l, uint32_t tag, uint32_t index, struct tcp_recv **ret_recv);
/* 0: the send is larger, and the link has failed. */
int tcp_match_fits(struct tcp_link *l, uint64_t total, const struct tcp_slot *slot);
/* A piece begins to arrive for this slot (NULL: nobody wants it). -1: it does not fit, the link has failed. */
int tcp_match_begin(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_slot *slot);
int tcp_match_end(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_slot *slot);
void tcp_match_complete(struct tcp_link *l, struct tcp_recv *recv, struct tcp_slot *slot);
void tcp_match_bulk_done(struct tcp_link *l, uint64_t seq);
void tcp_match_early(struct tcp_link *l, struct tcp_recv *recv, struct tcp_slot *slot);
int tcp_state_due(const struct tcp_link *l, const struct tcp_tag *tag);

/* Has the receiver said that this bulk message is done? Under mu. */
static inline int tcp_send_acked(const struct tcp_link *l, uint64_t seq)
{
	return seq < l->tx.peer_done ||
	       (seq - l->tx.peer_done - 1 < 32 && (l->tx.peer_done_bits >> (seq - l->tx.peer_done - 1) & 1));
}

/* Under mu, so the sum needs no atomic; readers without mu take the count as a hint. */
static inline void tcp_count_posted(struct tcp_link *l, const struct tcp_recv *recv, int change)
{
	uint32_t *count = recv->large ? &l->rx.large_posted : &l->rx.small_posted;

	store_relaxed(count, *count + (uint32_t)change);
}

/* The lane's lock is held. */
static inline void tcp_lane_given(struct tcp_lane *lane, ssize_t n)
{
	store_relaxed(&lane->tx.given, lane->tx.given + (uint64_t)n);
}

/* Is it worth a call to look at this socket? */
static inline int tcp_lane_due(const struct tcp_lane *lane, uint64_t now)
{
	return (int64_t)(now - load_relaxed(&lane->rx.next_poll)) >= 0;
}

static inline void tcp_request_done(struct tcp_request *req)
{
	store_release(&req->state, TCP_DONE);
}

#endif
