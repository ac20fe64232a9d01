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
 * Streams of small messages. A message that is posted while others are in flight is not sent at once: it is coalesced
 * with them in a buffer, and the one before it is reported done. The newest one always stays pending until the kernel has it,
 * so its owner must come back and test it, and that flushes the buffer. A buffer that is half full, or older than a few
 * times GANTRY_POLL_PACE when the next message comes, is flushed too. So a lone message leaves at once, and a stream
 * costs one system call for hundreds of messages.
 *
 * Threads. A link has a mutex for its state, link_mu, and one for each socket and direction (below). Several threads
 * may progress one link (its users, workers, the service thread); a thread that finds a socket's mutex taken leaves
 * that socket to the holder, or to its next look: it may be taken for a moment just to give an idle lane its next
 * piece. Request state is store-released by the completing thread and load-acquired by test.
 *
 * Ways are tables: how the bytes of a piece get into a socket (tcp_push_ops), how a lane receives (tcp_receive_ops),
 * where received bytes go (tcp_target_ops, tcp_sink_ops), how a message leaves (tcp_leave_ops), what carries out an
 * operation on a socket (tcp_io_ops, io.h). A new way is a new table.
 */
#ifndef GANTRY_NET_TCP_LINK_H
#define GANTRY_NET_TCP_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/atomic.h"
#include "base/event.h"
#include "base/list.h"
#include "base/mutex.h"
#include "base/pool.h"
#include "base/trace.h"
#include "inet/handshake.h"
#include "inet/loop.h"
#include "inet/nic.h"
#include "inet/sock.h"
#include "net/net.h"
#include "net/tcp/hello.h"
#include "net/tcp/io.h"
#include "net/tcp/resume.h"
#include "net/tcp/spread.h"
#include "net/tcp/vec.h"

enum {
	LINK_SENDS = GANTRY_NET_MAX_REQUESTS * GANTRY_NET_MAX_RECVS,
	LINK_RECVS = 2 * GANTRY_NET_MAX_REQUESTS,
	LINK_WINDOW = 1 << 20, /* eager bytes buffered for receives that are not posted yet */
	LINK_TELL =
		LINK_WINDOW / 8 * 3, /* consumed bytes that must be reported now; fewer are piggybacked on messages */
	LINK_BATCH = 32,	     /* eager messages in one system call */
	LINK_CONTROL_FRAMES = 16,    /* control frames in one system call */
	LINK_GATHER = 256,	     /* bytes of a batch that are copied into one buffer, which costs the kernel less */
	LINK_READAHEAD = 64 << 10,   /* control lane: many small messages in one system call */
	LINK_COPY_TWICE = 8 << 10,   /* behind a payload up to this size, reading far ahead pays */
	LINK_COALESCE = 64 << 10,    /* small messages of a stream are collected up to here */
	LINK_COALESCE_MESSAGE = 4096, /* the largest that is worth copying for that */
	LINK_TAGS = 4096,	      /* distinct tags of one direction */
	LINK_DONE_BITS = 1024,	      /* bulk messages that may be complete out of order */
	LINK_PIPE_SIZE = 4 << 20,     /* asked for; the kernel may give less */
	LINK_PIPE_MIN = 256 << 10,
	LINK_PASS_BYTES = 8 << 20, /* sending: a lane is left after this much, so that others get their turn */
	/* Receiving: less, because the sender waits for acknowledgements and for the receives that the user posts next.
	 */
	LINK_RX_PASS_BYTES = 1 << 20,
	LINK_ACK_EVERY = 2,	       /* messages, while more data is there */
	LINK_BOUNCE = 64 << 10,	       /* payload on its way to a landing page */
	LINK_DESCRIPTORS = 64,	       /* DESCRIPTOR frames that wait for the control lane; then bulk lanes wait too */
	LINK_END_GRACE_NS = 500000000, /* how long other lanes may still deliver after one has ended */
};

/* In the order in which they are taken; the one before link_mu may be tried under it. Two of one kind are held together
 * only where a direction closes. */
MUTEX_KIND(lane_rx_mu); /* a lane's receiving half, while its socket is read */
MUTEX_KIND(lane_tx_mu); /* a bulk lane's sending half, while its socket is written */
MUTEX_KIND(control_mu); /* the same of the control lane */
MUTEX_KIND(link_mu);	/* everything else of a link, for short, non-blocking stretches */

enum tcp_request_kind { TCP_SEND = 1, TCP_RECV };
enum tcp_request_state {
	TCP_FREE,
	TCP_PENDING,
	TCP_DONE,
	TCP_UNCONSUMED, /* test has reported done; the user has its part of the unpack queue until irecv_consumed */
};

struct tcp_entry;
struct tcp_link;
struct tcp_lane;
struct tcp_lane_rx;
struct tcp_push_ops;
struct tcp_target_ops;
struct tcp_sink_ops;
struct devmem_pool;
struct devmem_tx;
struct gantry_piece;
struct tcp_flow;
struct tcp_stage;
struct tcp_txmem;
struct tcp_unpack;
struct tcp_unpack_recv;

struct tcp_request {
	uint32_t kind;
	uint32_t state; /* enum tcp_request_state; release by the completer, acquire in test */
	struct tcp_link *link;
	struct gantry_list node; /* in the queue it waits in; link_mu */
};

/* Filled by the posting thread, then link_mu; `sent` also by the thread that holds the lane that sends the last
 * piece. */
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
	bool eager, needs_ack;
	bool spread;			 /* it is small, and leaves the control lane's NIC alone: spread.h */
	bool by_reference;		 /* the kernel reads its memory after the call, in whatever piece */
	bool rts_wanted, rts_sent;	 /* an RTS for this message is to be sent; it was sent */
	const struct tcp_push_ops *push; /* the only way in which it can go; NULL: as the link does */
	struct tcp_txmem *txmem;	 /* borrowed: the NIC reads the message there by itself; NULL */
	struct gantry_piece *block; /* owned: where the bytes of a message from device memory are sent from; NULL */
	uint64_t staged;	    /* ticks: since when they are copied there */
	uint64_t blocked;	    /* ticks: since when it waits, 0: not yet */
	/* Held (resume.h): the eager bytes before it. And, in ticks, since when the kernel has all of it and its memory
	 * is not read any more; 0: not yet. Written under link_mu, read relaxed. */
	bool held;
	uint64_t held_at, held_since;
	void *event; /* the user's: gantry_net_tcp_message */
	/* Of an eager message, or of a bulk message in one piece. Aligned, so that it never crosses a page. */
	_Alignas(64) uint8_t header[WIRE_FRAME_SIZE];
};

/* How a message leaves: at once, in a batch of small ones, in pieces over the bulk lanes (post.c), or from device memory
 * by way of pinned memory (stage.c). */
enum tcp_wake { TCP_WAKE_NOBODY, TCP_WAKE_CONTROL, TCP_WAKE_WORKERS };
struct tcp_leave_ops {
	const char *trace; /* behind the message's line */
	/* Queues a message that has its number, under link_mu, and returns which thread should progress it then. */
	enum tcp_wake (*post)(struct tcp_link *l, struct tcp_send *s);
};

/* One buffer of a receive. */
struct tcp_buffer {
	uint8_t *data; /* borrowed until done */
	uint64_t size;
	uint64_t total;
	uint64_t begun, got; /* bytes of pieces that have begun to arrive, and that have arrived */
	uint64_t seq;	     /* among bulk messages, from the first piece */
	uint64_t cover;	     /* of the pieces that have arrived: frame_rx.c */
	uint32_t tag, index;
	bool started, complete;
	void *event; /* the user's: gantry_net_tcp_message */
};

struct tcp_recv {
	struct tcp_request head;
	int n, ncomplete;
	bool large;
	const struct tcp_sink_ops *sink; /* what becomes of its bytes; NULL: the CPU writes them to its memory */
	struct tcp_unpack_recv *unpack;	 /* borrowed from the unpack queue: the sink's */
	struct tcp_vec vec; /* buffers[0] lies in these pieces, if there are any, instead of at its data. vec.h */
	struct tcp_buffer buffers[GANTRY_NET_MAX_RECVS];
};

/* What becomes of a receive's bytes where that is not simply its memory: unpack_rx.c. All but release under link_mu;
 * -1: the link has failed. */
struct tcp_sink_ops {
	/* A message of this size begins to arrive; eager: all of it through host memory. */
	int (*begin)(struct tcp_link *l, struct tcp_recv *recv, uint64_t total, bool eager);
	/* Where a lane should read its payload to; NULL: to the buffer's data. */
	const struct tcp_target_ops *(*target)(const struct tcp_recv *recv);
	/* Bytes that have come through host memory. */
	int (*write)(struct tcp_link *l, struct tcp_recv *recv, const void *data, uint64_t len, uint64_t offset);
	/* The message is whole: the request is done, or will be when copies are. */
	void (*complete)(struct tcp_link *l, struct tcp_recv *recv);
	bool (*is_copying)(const struct tcp_recv *recv);
	/* The posting thread's: test has reported done, or it was not posted after all. */
	void (*release)(struct tcp_link *l, struct tcp_recv *recv, bool tested);
};

/* An eager message that came before its receive. */
struct tcp_unexpected {
	struct gantry_list node;
	uint32_t tag, index;
	uint64_t total;
	bool complete;
	uint8_t data[];
};

/* When messages of a tag leave. */
enum tcp_haste {
	TCP_HASTE_USUAL, /* up to eager_max at once; if alone, up to lone_max */
	TCP_HASTE_NONE,	 /* even small messages wait for their receive */
	TCP_HASTE_ALONE, /* if alone, up to hasty_max at once */
	TCP_HASTE_MUCH,	 /* up to hasty_max at once */
};

/* Counters of one tag in one direction. */
struct tcp_tag {
	uint32_t tag;
	uint32_t posted;  /* sending: messages posted. receiving: receives posted */
	uint32_t credit;  /* sending: receives the peer has posted. receiving: those advertised to it */
	uint32_t arrived; /* receiving: messages that have begun to arrive */
	uint32_t rts;	  /* receiving: messages the peer waits to send */
	bool bulk;	  /* the last message was a bulk one; the next is expected to be one too */
	uint32_t lone;	  /* eager messages in a row that are as large as bulk ones */
	uint32_t alone;	  /* sending: messages of that size in a row that were posted while no other was in flight */
	enum tcp_haste haste; /* receiving: NONE if the peer's is, else USUAL */
	bool due; /* receiving: advertise receives to the sender, whatever has come since they were posted */
};

struct tcp_tags {
	struct tcp_tag *items; /* owned */
	int count, room, last;
};

/*
 * How the bytes of a piece get into a bulk lane's socket; lane_tx_mu is held. A way is chosen for each piece:
 *   spliced   push.c. vmsplice maps the user's pages into a pipe, splice moves them to the socket: no copy, also within
 *             a host. The kernel says nothing about when the pages are free again; STATE from the receiver does.
 *   zerocopy  push.c. MSG_ZEROCOPY, for real NICs; completion by STATE as well, the error queue only tells whether the
 *             kernel has copied.
 *   copied    push.c. Plain sendmsg.
 *   device    txmem.c. The NIC reads device memory.
 *   sealed    sealed.c. Encrypted into a buffer, and copied from there.
 */
struct tcp_push_ops {
	const char *name;
	/* 1: all of the piece is in the kernel; 0: the socket is full; -1: it takes nothing any more, with errno. */
	int (*push)(struct tcp_lane *lane);
	/* Reads completions of calls; their bytes may leave after those of later calls of another way. NULL: never. */
	void (*drain)(struct tcp_lane *lane);
	bool may_raise_sigpipe;
};

/* A bulk lane's sending half. */
struct tcp_lane_tx {
	struct lane_tx_mu lock;
	struct tcp_send *send GUARDED_BY(lane_tx_mu); /* whose piece it is; NULL: none */
	const struct tcp_push_ops *push GUARDED_BY(lane_tx_mu);
	const uint8_t *data GUARDED_BY(lane_tx_mu);  /* of what is left, unless the message has a vec: */
	struct tcp_vec_at at GUARDED_BY(lane_tx_mu); /* its place there */
	uint64_t left GUARDED_BY(lane_tx_mu);	     /* of the piece, not yet given to the kernel or the pipe */
	uint64_t length GUARDED_BY(lane_tx_mu);	     /* of the piece */
	uint8_t header[WIRE_FRAME_SIZE] GUARDED_BY(lane_tx_mu);
	uint32_t header_left GUARDED_BY(lane_tx_mu);
	int pipe[2] GUARDED_BY(lane_tx_mu); /* opened on first use; -1 */
	uint64_t in_pipe GUARDED_BY(lane_tx_mu);
	/* Splicing: the receiver is behind, so of this many spliced bytes on the sender copies some; how many next. */
	uint64_t share GUARDED_BY(lane_tx_mu), to_copy GUARDED_BY(lane_tx_mu);
	/* Calls by reference whose completions come by the socket's error queue; written under the lock, read relaxed.
	 */
	uint32_t calls, completed;
	const struct tcp_push_ops *late GUARDED_BY(lane_tx_mu); /* whose: must be complete before another way */
	struct devmem_tx *device GUARDED_BY(lane_tx_mu);	/* borrowed: of the last call. txmem.h */
	int dead; /* sending failed (the receiving half tells why), or the direction was closed half-way; relaxed */
	uint32_t refused GUARDED_BY(lane_tx_mu); /* several rails: pieces in a row for which this one was too slow */
	/* Several rails: what this one holds and how fast it drains; written under the lock, read relaxed. */
	uint64_t queued, rate; /* bytes given and not acknowledged; bytes/s, 0: not known */
	uint64_t next_try;     /* ticks: when a full socket is tried again; written under the lock, read relaxed */
	/* For the log, tcp_stats.c and tests: payload (lane 0: all bytes), and pieces sent whole. Written under the lock, or
	 * control_mu; read relaxed. */
	uint64_t bytes, pieces;
	struct sock_backoff backoff; /* the service thread's */
	/* alive.c. Bytes given to the socket, headers included; written under the lock, read relaxed. */
	uint64_t given;
	uint64_t arrived, unread; /* what the peer says of them; written under link_mu, read relaxed */
	uint64_t arrived_seen;	  /* the service thread's: of its last look */
	uint64_t still_since;	  /* the service thread's, ticks: none has arrived from then on; 0: none is missing */
};

/* What one read may fill: payload to its target, then the read-ahead buffer. */
enum { LINK_VEC_MAX = 256, LINK_NOWHERE = 16 << 10 };
struct tcp_span {
	struct iovec iov[LINK_VEC_MAX + 1];
	int n;
	uint64_t bytes;
};

/* Where the payload of a frame goes; lane_rx_mu is held, and link_mu for put and end. lane_rx.c, unpack_rx.c. */
struct tcp_target_ops {
	bool posted; /* to a posted receive: nowhere once that is closed */
	void (*list)(struct tcp_lane_rx *rx, struct tcp_span *span); /* where its next bytes may be read to */
	void (*advance)(struct tcp_lane_rx *rx, uint64_t n);	     /* so many of them have been */
	/* Bytes that were read elsewhere. -1: the link has failed, as for end. */
	int (*put)(struct tcp_lane *lane, const uint8_t *data, uint32_t n);
	int (*end)(struct tcp_lane *lane); /* all of it is there */
};

/* How a lane receives; lane_rx_mu is held. Headers and payload in line (lane_rx.c), both in sealed records (sealed.c), or
 * payload alone (flow_rx.c). */
struct tcp_receive_ops {
	/* One operation (io.h). Bytes, 0 at the end of the stream, -1 with errno. *ret_drained: the socket is empty now. */
	ssize_t (*fill)(struct tcp_lane *lane, bool *ret_drained);
	/* The operation in flight was cancelled after it had moved n bytes, more than 0. */
	void (*cancelled)(struct tcp_lane *lane, size_t n);
	/* What has come goes to where it belongs. Under link_mu. -1: the link has failed. */
	int (*digest)(struct tcp_lane *lane, bool force);
	void (*settle)(struct tcp_lane *lane, bool drained); /* after that, without link_mu */
	bool (*has_more)(const struct tcp_lane *lane);	     /* the next message has begun to arrive. Under link_mu */
	void (*rest)(struct tcp_lane *lane);		     /* the socket is empty: when to look again */
	bool waits_for_control;				     /* when stalled, for what the control lane brings */
};

enum tcp_rx_state { TCP_RX_HEADER, TCP_RX_PAYLOAD };

/* A lane's receiving half. A partial header or payload is a state of its own: any split point is fine. */
struct tcp_lane_rx {
	struct lane_rx_mu lock;
	const struct tcp_receive_ops *ops; /* constant once the lane is up */
	enum tcp_rx_state state GUARDED_BY(lane_rx_mu);
	struct wire_frame frame GUARDED_BY(lane_rx_mu);
	const struct tcp_target_ops *target GUARDED_BY(lane_rx_mu);
	uint8_t *
		dst GUARDED_BY(lane_rx_mu); /* where the CPU may write the next byte of payload; NULL: ask the target */
	uint64_t left GUARDED_BY(lane_rx_mu);
	struct tcp_recv *recv GUARDED_BY(lane_rx_mu);
	struct tcp_buffer *buffer GUARDED_BY(lane_rx_mu);
	struct tcp_unexpected *unexpected GUARDED_BY(lane_rx_mu);
	struct tcp_vec_at vec GUARDED_BY(lane_rx_mu); /* pieces: where the next byte goes */
	/* Owned: LINK_BOUNCE bytes for payload whose place the CPU cannot write; NULL: no unpack queue. How much of it
	 * is filled. */
	uint8_t *bounce GUARDED_BY(lane_rx_mu);
	uint32_t bounced GUARDED_BY(lane_rx_mu);
	uint32_t crc GUARDED_BY(lane_rx_mu); /* of the payload that has come, if the link has checksums */
	uint8_t *buf GUARDED_BY(lane_rx_mu); /* owned read-ahead */
	uint8_t *nowhere
		GUARDED_BY(lane_rx_mu); /* owned: LINK_NOWHERE bytes for payload that is dropped; NULL until then */
	uint32_t room, head GUARDED_BY(lane_rx_mu), tail GUARDED_BY(lane_rx_mu);
	bool large GUARDED_BY(lane_rx_mu); /* the last message was too large to be worth a second copy */
	/* The next frame in the buffer is for a receive that is not posted yet; or fragments for a descriptor that is
	 * on its way. Written under the lock, read relaxed. */
	bool stalled;
	/* Ticks; relaxed. Written under the lock, and for a flow also under link_mu; and by a worker that saw the socket
	 * empty, which then may put off a look by a pace. */
	uint64_t next_poll;
	int eof;	/* release */
	uint64_t bytes; /* headers included; written under the lock, read relaxed */
	uint64_t base;	/* how many of them came by the lane's earlier sockets; the same */
	/* What is reported to the peer about a bulk lane: bytes that have arrived, and those of them not read. */
	uint64_t arrived GUARDED_BY(link_mu), unread GUARDED_BY(link_mu);
	bool tell_arrived GUARDED_BY(link_mu);
	char text[WIRE_ERROR_TEXT_MAX + 1] GUARDED_BY(lane_rx_mu);
};

/* A lane whose bytes travel in sealed records. The sending half's lock is that of the lane's, the receiving half's too. */
struct tcp_sealed {
	struct inet_seals seals; /* owned; of this socket, none while the lane is stopped (resume.h) */
	uint8_t *out, *in;	 /* owned: ciphertext on its way out, and as it came in */
	size_t out_room, out_at, out_n;
	size_t in_at, in_n;
	bool empty; /* the last read has emptied the socket */
};

struct tcp_lane {
	struct tcp_io io;
	int index;
	struct tcp_link *link;
	struct gantry_addr local, peer;
	struct tcp_lane_tx tx;
	struct tcp_lane_rx rx;
	struct tcp_flow *flow;		/* owned; device_rx: what arrives comes through it. flow.h */
	struct tcp_sealed *sealed;	/* owned; NULL: its bytes travel in the clear. Constant once the lane is up */
	struct tcp_lane_resume *resume; /* of the link's; NULL: the session does not outlive its sockets */
};

/* Why one direction ended while the link, and maybe the other direction, lives on. Written under mu. */
struct tcp_end {
	uint32_t over; /* release after text is set */
	char text[256];
};

/* Identity of the peer, and the agreed settings. Set before the link is shared, constant afterwards. */
struct tcp_session {
	uint32_t id;	/* of the link, within the process */
	int forks;	/* inet_forked */
	char peer[160]; /* "10.0.0.2:4000 (node7 pid 123)" */
	int dev;
	int same_host;
	int crc;    /* both sides have agreed that every frame has checksums; not where records have tags */
	int sealed; /* both sides encrypt: every lane is */
	uint32_t eager_max, peer_window;
	uint32_t lone_max;  /* a message that is the only one may be eager up to this size; 0: as any other */
	uint32_t hasty_max; /* enum tcp_haste */
	/* Payload lands in device memory: bulk lanes towards that side carry nothing else, descriptors go ahead on
	 * lane 0. */
	int device_tx, device_rx; /* the peer, this side */
	int rails;		  /* of our device: 1 is the usual one NIC */
	int traffic_class;
	uint64_t cover_key; /* random: frame_rx.c */
	uint64_t pace_ticks;
};

/* Small messages of a stream on their way into one system call. */
struct tcp_coalesce {
	uint8_t *buffers[2]; /* owned; one is filled while the other is being sent */
	int now;
	uint32_t bytes, count;
	uint64_t since;		 /* ticks */
	struct tcp_send *newest; /* the last message in it: pending until it is sent */
};

/* device_tx: headers of pieces that lanes have pulled, in that order: a ring. They go before CLOSE. */
struct tcp_descriptors {
	uint8_t frames[LINK_DESCRIPTORS][WIRE_FRAME_SIZE];
	uint32_t head, n;
};

/* The sending direction. Its lock is link_mu; what is read without it is read relaxed, as a hint. */
struct tcp_tx {
	struct tcp_tags tags;
	struct gantry_list eager, bulk, unacked;
	struct tcp_coalesce coalesce;
	uint64_t next_seq, peer_done;
	uint32_t peer_done_bits; /* of the messages behind the first one that is not done */
	uint64_t eager_out, peer_received, peer_consumed;
	bool window_blocked;
	uint64_t bulk_bytes; /* of bulk messages, not yet given to lanes; hint */
	uint64_t bulk_sent;  /* bulk messages given to the kernel whole */
	/* For tcp_stats.c: bulk messages that waited for their receive, and for how many ticks in all. */
	uint64_t credit_waits, credit_wait_ticks;
	uint32_t pending;	  /* hint, set without the lock too: something waits on the control lane */
	uint32_t bulk_pending;	  /* hint, atomic: bulk messages wait or are on their way */
	int splice, msg_zerocopy; /* how bulk messages may go; relaxed: cleared where that does not work */
	bool wanted;		  /* the direction is in use, or promised */
	bool closed;		  /* by this side */
	bool tell_close;	  /* a CLOSE frame is to be sent */
	bool peer_closed;	  /* the peer's receiving side is */
	struct tcp_end end;
};

/* The receiving direction. Its lock is link_mu; what is read without it is read relaxed, as a hint. */
struct tcp_rx {
	struct tcp_tags tags;
	struct gantry_list posted, unexpected;
	uint64_t unexpected_bytes;
	uint64_t done, done_told;
	uint64_t done_bits[LINK_DONE_BITS / 64];
	uint64_t eager_in, consumed, consumed_told; /* eager bytes */
	uint64_t unreported; /* resume.h: of eager messages that their sender holds, bytes not reported yet */
	uint32_t small_posted, large_posted; /* outstanding receives; hints */
	uint32_t bulk_hint;		     /* the peer has a bulk message for us; hint */
	uint32_t described;		     /* pieces described and not complete, of all lanes */
	uint64_t ack_upto; /* messages before this were sent without a copy: their sender waits for `done` */
	uint64_t bulk_received, newest_bulk;
	bool ack_now;
	bool deep_window; /* flag of the newest bulk message */
	bool heartbeat_due;
	bool closed; /* by this side */
	bool tell_close;
	bool peer_sends;  /* the peer has a comm that sends; read without the lock */
	bool peer_closed; /* the peer's sending side is, hint; it had sent this much: */
	uint64_t peer_bulk_sent;
	struct tcp_end end;
};

/* How the link ends. Its lock is link_mu. */
struct tcp_ending {
	uint32_t failed; /* release after error and text are set, which stay then */
	gantry_result error;
	char text[WIRE_ERROR_TEXT_MAX];
	uint64_t sent_bytes, recv_bytes; /* of ERR_SIZE */
	bool tell;			 /* an ERROR frame is to be sent */
	/* Ticks, 0: no. A lane has ended; what the others still hold is taken before the link fails. Release, after
	 * those below; lanes that still deliver renew it without the lock. */
	uint64_t ending;
	uint64_t ending_since; /* as ending, but never renewed */
	int ending_errno, ending_lane;
	bool hung_up; /* both sides have nothing more to send: our side of the sockets is shut */
};

/* Ticks, relaxed: last received from the peer; last sent to the peer; a user progressed the link; bulk bytes moved, or the
 * first of them were asked for. */
struct tcp_activity {
	uint64_t heard, told, progressed, bulk_moved;
	/* Relaxed: the peer's kernel has acknowledged nothing more of lane 0 for three eighths of the deadline, although
	 * there was more. */
	bool unanswered;
};

/* What only links have that send from, or receive into, device memory: tcp_unpack.h, stage.h, txmem.h. */
struct tcp_link_devmem {
	struct devmem_pool *pool;  /* device_rx: owned reference; constant while the link has a user */
	struct tcp_unpack *unpack; /* borrowed from the receiving comm; NULL unless with UNPACK */
	struct tcp_stage *staging; /* owned reference; NULL until memory of a device is to be sent; release */
	/* Owned references: what they were when the direction, or both, closed, to be dropped without any lock; guarded
	 * by loop_mu. */
	struct tcp_stage *staging_left;
	struct devmem_pool *pool_left;
	struct tcp_descriptors descriptors GUARDED_BY(link_mu);
	int warned_plain;				    /* that a flow is not steered; atomic */
	uint32_t copying_in_n, copying_out_n;		    /* of the lists below; written under link_mu, hints */
	struct gantry_list copying_in GUARDED_BY(link_mu);  /* receives whose bytes are here and still being copied */
	struct gantry_list copying_out GUARDED_BY(link_mu); /* sends whose bytes are on their way, oldest first */
	struct gantry_list txmems GUARDED_BY(link_mu);	    /* registered memory that NICs read by themselves */
	/* For the log: messages that were copied, and how long that took. */
	uint64_t staged GUARDED_BY(link_mu), staged_ticks GUARDED_BY(link_mu);
};

/* The control lane's sending half: its current batch. A holder of a bulk lane's lock may take its lock. */
struct tcp_control {
	struct iovec iov[3 * LINK_BATCH + LINK_CONTROL_FRAMES + 6];
	int iov_at, iov_n;
	struct tcp_send *batch[LINK_BATCH + 1];
	int batch_n;
	uint8_t together[LINK_GATHER]; /* a small batch, in one buffer */
	uint8_t frames[LINK_CONTROL_FRAMES][WIRE_FRAME_SIZE];
	int nframes;
	char text[WIRE_ERROR_TEXT_MAX];
	void *orphan; /* owned: bytes of a batch whose senders were closed in the middle */
};

struct tcp_link {
	struct tcp_session session;
	int nlanes;
	struct tcp_lane *lanes; /* owned: nlanes */

	struct gantry_list node; /* in the network's list of links; loop_mu */
	/* Owned: network.h. NULL: the network does not know the link. */
	struct tcp_entry *entry POINTS_TO_GUARDED_BY(loop_mu);
	int watched;	       /* atomic: a user of it does not look for stalls itself */
	int standing_receives; /* atomic: posted receives are no reason to miss the peer */

	struct gantry_pool *sends, *recvs; /* owned, the posting threads'; NULL until the direction opens */
	struct link_mu mu;
	struct tcp_tx tx GUARDED_BY(link_mu);
	struct tcp_rx rx GUARDED_BY(link_mu);
	struct tcp_ending end GUARDED_BY(link_mu);
	struct tcp_link_devmem *devmem; /* owned */
	struct tcp_activity last;
	struct tcp_spread *spread; /* owned */
	struct tcp_resume *resume; /* owned; NULL: the session does not outlive its sockets. Constant once it is up */
	struct control_mu control_mu;
	struct tcp_control *control POINTS_TO_GUARDED_BY(control_mu); /* owned */
};

/* link.c: life, failure. The caller holds a reference or loop_mu. */
gantry_result tcp_link_create(int nlanes, struct tcp_link **ret_link);
void tcp_link_free(struct tcp_link *l); /* closes what is open; accepts NULL */
gantry_result tcp_link_open_tx(struct tcp_link *l) REQUIRES(link_mu);
gantry_result tcp_link_open_rx(struct tcp_link *l) REQUIRES(link_mu);
/* No more data will come in the receiving direction: its receives fail with the reason. */
void tcp_link_end_rx(struct tcp_link *l, const char *why) EXCLUDES(link_mu);
/* Give all buffers back to their owners at once; what the stream still needs to keep its framing is kept. */
void tcp_link_close_tx(struct tcp_link *l) EXCLUDES(lane_tx_mu, control_mu, link_mu);
void tcp_link_close_rx(struct tcp_link *l) EXCLUDES(lane_rx_mu, control_mu, link_mu);
/* The first cause is kept and logged; later ones are dropped. tell: send the peer an ERROR frame. */
void tcp_link_fail(struct tcp_link *l, int tell, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 4, 5))) EXCLUDES(link_mu);
void tcp_link_fail_locked(struct tcp_link *l, int tell, gantry_result r, const char *fmt, ...)
	__attribute__((format(printf, 4, 5))) REQUIRES(link_mu);
/* A lane has ended (e 0) or broken: the link fails when all have, or a moment later. */
void tcp_link_ending(struct tcp_lane *lane, int e) EXCLUDES(link_mu);
void tcp_link_check_ending(struct tcp_link *l) EXCLUDES(link_mu);
void tcp_link_check_peer_closed(struct tcp_link *l) REQUIRES(link_mu);
/* If both sides have nothing more to send: shuts our side of the sockets, which the peer waits for. */
void tcp_link_hang_up(struct tcp_link *l) EXCLUDES(control_mu, link_mu);
/* GANTRY_OK, or why requests of this direction fail, with the text as this thread's last error. */
gantry_result tcp_link_status(struct tcp_link *l, const struct tcp_end *end);
struct tcp_tag *tcp_tag_find(struct tcp_tags *tags, uint32_t tag) REQUIRES(link_mu);

/* post.c: what a user does with it. All of one direction are called by one thread at a time. */
gantry_result tcp_link_isend(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request);
gantry_result tcp_link_isends(struct tcp_link *l, uint32_t n, void *const *data, const size_t *sizes, int tag,
			      void **ret_requests); /* isends of net.h */
gantry_result tcp_link_isend_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n, int tag, void **ret_request);
gantry_result tcp_link_hold(struct tcp_link *l, bool send, int tag);   /* hold of net.h */
gantry_result tcp_link_hasten(struct tcp_link *l, int tag, int alone); /* hasten of net.h */
gantry_result tcp_link_irecv(struct tcp_link *l, int n, void **data, const size_t *sizes, const int *tags,
			     void **ret_request);
gantry_result tcp_link_irecv_vec(struct tcp_link *l, const struct iovec *iov, uint32_t n, int tag, void **ret_request);
gantry_result tcp_link_test(struct tcp_request *req, int *ret_done, int *sizes);
/* For callers that post in ways of their own. A send that is not posted yet; NULL: too many are in flight. */
struct tcp_send *tcp_send_take(struct tcp_link *l, const void *data, size_t size, int tag);
void tcp_send_drop(struct tcp_link *l, struct tcp_send *s);
/* how NULL: by its size. *ret_request NULL: again later. */
gantry_result tcp_send_post(struct tcp_link *l, struct tcp_send *s, const struct tcp_leave_ops *how,
			    void **ret_request);
extern const struct tcp_leave_ops tcp_leave_bulk;
/* Encodes its header and puts it into the queue of eager messages. */
void tcp_send_queue_eager(struct tcp_link *l, struct tcp_send *s) REQUIRES(link_mu);
/* A receive that was taken from the link's pool, or from the unpack queue; NULL: none is free now. */
struct tcp_recv *tcp_recv_take(struct tcp_link *l);
gantry_result tcp_recv_post(struct tcp_link *l, struct tcp_recv *recv, int n, void **data, const size_t *sizes,
			    const int *tags, void **ret_request);

/* worker.c: one pass over all lanes. */
void tcp_link_progress(struct tcp_link *l);
/* The service thread's: drain the control lane, send a heartbeat if it is due. */
void tcp_link_service(struct tcp_link *l, int heartbeat);

/* alive.c: the service thread's, and what the peer says. now: ticks. */
int tcp_lanes_report(struct tcp_link *l); /* 1: there is something to tell */
void tcp_lanes_check(struct tcp_link *l, uint64_t now, uint64_t grace);
int tcp_lane_arrived(struct tcp_link *l, const struct wire_arrived *a) REQUIRES(link_mu); /* -1: the link has failed */

/* control_tx.c */
void tcp_control_flush(struct tcp_link *l) EXCLUDES(control_mu, link_mu);
void tcp_batch_ended(struct tcp_link *l) REQUIRES(control_mu, link_mu);
/* Nothing waits on the control lane any more. */
bool tcp_control_idle(struct tcp_link *l) EXCLUDES(control_mu, link_mu);
bool tcp_descriptor_room(const struct tcp_link *l) REQUIRES(link_mu);
/* The header of a piece whose payload, and nothing else, goes on bulk lane f->lane. There is room. */
void tcp_descriptor_put(struct tcp_link *l, const struct wire_piece *f) REQUIRES(link_mu);
void tcp_control_advance(struct tcp_control *c, size_t n); /* so many bytes of the batch are on their way */
/* keep.c, resume.c: resume.h */
/* Eager bytes to their place in the ring; there is room. */
void tcp_resume_keep(struct tcp_link *l, uint64_t at, const void *data, size_t n) REQUIRES(link_mu);
/* False: the lane must wait until more of its pieces are known to have come. */
bool tcp_resume_room(struct tcp_lane *lane) REQUIRES(link_mu);
void tcp_resume_keep_piece(struct tcp_lane *lane, struct tcp_send *s, uint64_t offset, uint32_t length)
	REQUIRES(link_mu);
/* An eager message that leaves from its user's buffer; messages whose arrival the peer has reported are done. */
void tcp_resume_hold(struct tcp_link *l, struct tcp_send *s, uint64_t at) REQUIRES(link_mu);
void tcp_resume_release(struct tcp_link *l) REQUIRES(link_mu);
/* A direction was closed, by either side; then, it was our sending one, whose buffers are their users' again. */
void tcp_resume_closed(struct tcp_link *l) REQUIRES(link_mu);
void tcp_resume_abandon(struct tcp_link *l) REQUIRES(control_mu, link_mu);
/* The user asks for a send that is not done. If it is held, and that for long, it is copied and done. */
void tcp_resume_adopt(struct tcp_link *l, struct tcp_send *s) EXCLUDES(link_mu);
/* The oldest piece that has to go once more, or NULL. */
struct tcp_kept *tcp_resume_next(struct tcp_link *l) REQUIRES(link_mu);
void tcp_resume_pop(struct tcp_link *l) REQUIRES(link_mu);
void tcp_resume_count(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu); /* a piece has come whole on this lane */
/* The peer says: so many pieces have come; it has stopped a lane. */
void tcp_resume_arrived(struct tcp_lane_resume *r, uint64_t pieces) REQUIRES(link_mu);
void tcp_resume_stopped(struct tcp_link *l, const struct wire_stopped *s) REQUIRES(link_mu);
/* What hello or answer say of the eager bytes that have come can be. */
bool tcp_resume_counts_fit(const struct tcp_link *l, uint64_t received) REQUIRES(link_mu);
/* A frame came damaged. True: nothing of it was used, and it will come again. */
bool tcp_resume_damaged(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu);
/* push.c */
/* What is left of the piece, or the beginning of it: how many parts, and bytes. */
int tcp_piece_list(const struct tcp_lane_tx *tx, struct iovec iov[LINK_VEC_MAX], uint64_t *ret_bytes)
	REQUIRES(lane_tx_mu);
void tcp_piece_advance(struct tcp_lane_tx *tx, uint64_t n) REQUIRES(lane_tx_mu);
extern const struct tcp_push_ops tcp_push_spliced, tcp_push_zerocopy, tcp_push_copied;
/* spread.c: spread.h. A message to be posted goes so; the lane may take pieces of a message. */
bool tcp_spread_takes(struct tcp_link *l, struct tcp_send *s, const struct tcp_tag *t) REQUIRES(link_mu);
bool tcp_spread_allows(const struct tcp_lane *lane, const struct tcp_send *s) REQUIRES(link_mu);
/* bulk_tx.c */
/* Bytes that it holds, and how fast it drains (bytes/s, 0: not known). False: the socket does not say. */
bool tcp_lane_weigh(const struct tcp_lane *lane, uint64_t *ret_queued, uint64_t *ret_rate);
int tcp_bulk_tx(struct tcp_lane *lane) EXCLUDES(lane_tx_mu, link_mu); /* 1: bytes moved */
void tcp_lane_tx_abandon(struct tcp_lane *lane) REQUIRES(lane_tx_mu);
void tcp_send_note(struct tcp_link *l, struct tcp_send *s, uint64_t n) REQUIRES(link_mu); /* a piece of it is out */
void tcp_lane_lost(struct tcp_lane *lane) EXCLUDES(link_mu); /* with errno: the socket takes nothing any more */
/* lane_rx.c. 1: bytes moved. force: also take in messages whose receives are not posted; otherwise they get a second
 * chance. */
int tcp_lane_rx(struct tcp_lane *lane, bool force) EXCLUDES(lane_rx_mu, link_mu);
/* Nothing is written to the place of its payload any more by what is in flight. */
void tcp_lane_rx_cancel(struct tcp_lane *lane) REQUIRES(lane_rx_mu);
extern const struct tcp_receive_ops tcp_receive_inline;
/* sealed.c. Takes the seals; before the lane is used. */
gantry_result tcp_lane_seal(struct tcp_lane *lane, struct inet_seals *seals);
/* Takes the seals of the lane's next socket, or none: the lane is stopped. The old ones are wiped. Both halves are locked. */
void tcp_lane_reseal(struct tcp_lane *lane, struct inet_seals *seals);
void tcp_lane_unseal(struct tcp_lane *lane);
/* The whole batch becomes its sealed records. False: no memory, or the library has failed. */
bool tcp_control_seal(struct tcp_link *l) REQUIRES(control_mu);
extern const struct tcp_push_ops tcp_push_sealed;
extern const struct tcp_receive_ops tcp_receive_sealed;
/* frame_rx.c. -1: the link has failed. */
/* What is in the read-ahead buffer. */
int tcp_frames_parse(struct tcp_lane *lane, bool force) REQUIRES(lane_rx_mu, link_mu);
/* lane_rx.c */
extern const struct tcp_target_ops tcp_target_buffer, tcp_target_pieces, tcp_target_unexpected, tcp_target_text,
	tcp_target_nowhere;
/* The end of a piece for a posted receive, whatever its target. */
int tcp_end_posted(struct tcp_lane *lane) REQUIRES(lane_rx_mu, link_mu);
/* Bytes that are here, to a receive's own memory. */
void tcp_recv_write(const struct tcp_recv *recv, const struct tcp_buffer *buffer, const void *data, uint64_t len,
		    uint64_t offset) REQUIRES(link_mu);
/* frame_rx.c */
struct tcp_buffer *tcp_match_buffer(struct tcp_link *l, uint32_t tag, uint32_t index, struct tcp_recv **ret_recv)
	REQUIRES(link_mu);
/* A piece begins to arrive for this buffer (NULL: not wanted any more). -1: it does not fit, the link has failed. */
int tcp_match_begin(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_buffer *buffer)
	REQUIRES(link_mu);
int tcp_match_end(struct tcp_link *l, const struct wire_piece *f, struct tcp_recv *recv, struct tcp_buffer *buffer)
	REQUIRES(link_mu);
/* A message that came before its receive, if there is one. */
void tcp_match_unexpected(struct tcp_link *l, struct tcp_recv *recv, struct tcp_buffer *buffer) REQUIRES(link_mu);
bool tcp_state_due(const struct tcp_link *l, const struct tcp_tag *tag) REQUIRES(link_mu);

static inline bool tcp_link_failed(const struct tcp_link *l)
{
	return load_acquire(&l->end.failed);
}

/* The counters of a tag, which is nearly always that of the last call. NULL: no memory, or too many tags. */
static inline struct tcp_tag *tcp_tag_of(struct tcp_tags *tags, uint32_t tag) REQUIRES(link_mu)
{
	if (tags->count && tags->items[tags->last].tag == tag)
		return &tags->items[tags->last];
	return tcp_tag_find(tags, tag);
}

enum { LINK_LONE_RUN = 4 };

/* What the sender of a message, and its receiver, take the next one of the tag for. A large one that went alone does not
 * end a run of bulk messages, several do. */
static inline void tcp_tag_expect(struct tcp_tag *t, bool eager, bool large)
{
	t->lone = eager && large ? t->lone + 1 : 0;
	if (!eager || !large || t->lone >= LINK_LONE_RUN)
		t->bulk = !eager;
}

/* Is this bulk message done, as STATE counts them? */
static inline bool tcp_counted_done(uint64_t done, uint32_t done_bits, uint64_t seq)
{
	return seq < done || (seq - done - 1 < 32 && (done_bits >> (seq - done - 1) & 1));
}

/* Has the receiver reported this bulk message as done? */
static inline bool tcp_send_acked(const struct tcp_link *l, uint64_t seq) REQUIRES(link_mu)
{
	return tcp_counted_done(l->tx.peer_done, l->tx.peer_done_bits, seq);
}

/* Bulk messages may come: receives of such a size are posted, the peer has announced one, or it sends small ones so. */
static inline bool tcp_bulk_expected(const struct tcp_link *l, uint64_t now)
{
	uint64_t seen = load_relaxed(&l->spread->seen);

	return load_relaxed(&l->rx.large_posted) || load_relaxed(&l->rx.bulk_hint) ||
	       (seen && (int64_t)(now - seen) < (int64_t)(SPREAD_SEEN_PACES * l->session.pace_ticks));
}

/* link.c: large receives outstanding in this process; atomic, a hint. */
extern uint32_t tcp_large_receives;

/* The lock makes an atomic sum needless; readers without it take the count as a hint. */
static inline void tcp_count_posted(struct tcp_link *l, const struct tcp_recv *recv, int change) REQUIRES(link_mu)
{
	uint32_t *count = recv->large ? &l->rx.large_posted : &l->rx.small_posted;

	store_relaxed(count, *count + (uint32_t)change);
	if (recv->large)
		fetch_add_relaxed(&tcp_large_receives, (uint32_t)change);
}

static inline void tcp_lane_given(struct tcp_lane *lane, ssize_t n) REQUIRES(lane_tx_mu)
{
	store_relaxed(&lane->tx.given, lane->tx.given + (uint64_t)n);
}

/* Calls by reference that the kernel may not be through with. */
static inline bool tcp_lane_busy(const struct tcp_lane *lane)
{
	return load_relaxed(&lane->tx.calls) != load_relaxed(&lane->tx.completed);
}

/* A small message goes, or has come, on the control lane. */
static inline void tcp_trace_eager(const struct tcp_link *l, enum gantry_event_kind kind, uint32_t tag, uint32_t index,
				   uint64_t bytes)
{
	if (gantry_trace_on())
		gantry_event_put(kind, l->session.id, GANTRY_EV_MSG(tag, index), GANTRY_EV_ON_LANE(bytes, 0));
}

static inline void tcp_request_done(struct tcp_request *req)
{
	store_release(&req->state, TCP_DONE);
}

#endif
