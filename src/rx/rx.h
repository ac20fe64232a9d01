/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline behind gantry/rx.h, from inside.
 *
 *   op      what the user holds: a send or a receive. It is also the state of its transfer, so it may live on after the
 *           user has let go of it (refs): a cancelled transfer has to be brought to an end with the peer
 *   conn    one connection: for each direction a network comm, its queue of heads, its queue of transfers in the order
 *           of their grants, and its flights
 *   flight  one data message: from posting, through arrival and the device's work, to its end. Ring of `depth`. Of a
 *           receive of fragments it is LENT instead: its bytes stay where they arrived until the caller releases them
 *   unpack  launches of a list of the caller's, on a stream of the caller's (lend.c)
 *
 * A send:     WAITING (for a place in the window) -> OFFERED (head sent) -> GRANTED (data flows) -> over
 * A receive:  WAITING (for its transfer) -> GRANTED (or LOCAL: the bytes came with the head and go to device memory)
 *             -> over
 * A transfer that is ended early is `ending`: it posts nothing more than what it takes to reach the number of messages
 * that both sides agree on, and moves no byte of the user's memory any more. The user's op is done as soon as nothing
 * touches its memory (`touching`), the transfer later.
 *
 * A connection ends in this order: the peer's last heads are read, because its reports about this side's sends hold
 * even if it closed right behind them; the device and the network release all memory; each op gets its result: the one
 * that the peer has reported, or the cause of the end. The network's result of a send is not needed for that: it may be
 * "the peer closed" for bytes that the peer has.
 *
 * One mutex per rx protects everything here, listeners included.
 */
#ifndef GANTRY_RX_RX_H
#define GANTRY_RX_RX_H

#include <stdint.h>
#include <sys/uio.h>

#include "abi/unpack.h"
#include "base/atomic.h"
#include "base/eventcount.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "device/device.h"
#include "device/pinned.h"
#include "gantry/rx.h"
#include "inet/loop.h"
#include "inet/nic.h"
#include "inet/settings.h"
#include "net/devmem_rx.h"
#include "net/net.h"
#include "net/rails.h"
#include "rx/rx_wire.h"

enum {
	RX_INLINE_MAX = 32 << 10, /* transfers from host memory up to this travel with their head */
	RX_WINDOW = 64,		  /* transfers of a direction that have not met their receive */
	RX_HEADS_IN = 8,	  /* receives posted for heads */
	RX_INLINE_OUT = 16,	  /* inline transfers on their way */
	RX_ANSWERS_OUT = 1024,	  /* answers that the network has not taken: a peer that asks more is at fault */
	RX_DEPTH_MAX = 16,	  /* GANTRY_UNPACK_DEPTH: slots of the network's table */
	RX_MESSAGE_MIN = 64 << 10,
	RX_MESSAGE_MAX = 4 << 20, /* GANTRY_UNPACK_MAX_SLICE */
	RX_VEC_PIECE = 2048,	  /* host memory: pieces from this size on are moved in place */
	RX_AS_FRAG = 4096,	  /* converting: bytes of a descriptor, which one warp takes; as many as a page has */
	RX_TEXT = 384,
};
enum { RX_TAG_HEAD = 0, RX_TAG_DATA = 1 };

MUTEX_KIND(rx_mu); /* one per rx */

/* ---- memory ---- */

struct rx_region {
	struct gantry_list node;
	uint8_t *base;
	size_t size;
	uint64_t id; /* never reused: what connections remember registrations by */
	int device;  /* memory of the device; else host memory */
	int users;   /* ops */
};

/* A place in a batch: byte `at` of piece `k` of entry `entry`. */
struct rx_cursor {
	size_t entry, k, at;
};

struct rx_batch {
	struct gantry_rx_piece *pieces; /* owned; none is empty */
	struct rx_region **regions;	/* owned array of borrowed regions, one per entry; NULL: released */
	size_t n;
	uint64_t bytes;
	int device;
};

/* ---- transfers ---- */

/* What a receive's elements were sent as and are stored as, enum gantry_type, and how many bytes one has. The same type
 * twice: bytes, which nothing looks at, and one byte each. */
struct rx_as {
	uint16_t from, to;
	uint8_t sent, stored;
};

enum rx_phase { RX_WAITING, RX_OFFERED, RX_GRANTED, RX_LOCAL, RX_OVER };

struct gantry_rx_op {
	struct gantry_list node;     /* in its connection's list for its phase */
	struct gantry_rx *rx;	     /* borrowed */
	struct gantry_rx_conn *conn; /* borrowed; NULL once the transfer is over */
	int refs;		     /* the user's, the connection's */
	int send;
	uint64_t tag;
	int inlined;	 /* a send whose bytes travel with its head */
	bool frags;	 /* a receive whose bytes are lent where they arrived; the batch has a size only */
	uint64_t handed; /* frags: messages whose fragments the caller has got */
	struct rx_batch batch;
	struct rx_as as;
	/* What the user sees. */
	enum gantry_rx_state state GUARDED_BY(rx_mu);
	gantry_result result;
	uint64_t bytes;
	char text[RX_TEXT];
	/* The transfer. Bytes and messages are counted as they are sent; the batch has those that are stored. */
	enum rx_phase phase;
	uint64_t transfer, total, message, nmessages;
	uint64_t posted, finished;	/* messages */
	struct rx_cursor cursor;	/* where the next message begins */
	uint8_t *local;			/* owned: LOCAL, the bytes */
	int touching;			/* flights that read or write the user's memory, or lend theirs */
	int taken;			/* a send: the peer has all of it */
	uint64_t launched;		/* messages whose device work is in the stream */
	struct gantry_dev_event *event; /* owned: of gantry_rx_stream_wait */
	/* Ending early. */
	int ending, told, heard; /* STOP or END: `told` was sent by us, `heard` has come from the peer */
	int by_peer;		 /* it began the end */
	uint64_t limit;		 /* ending: messages there will be, once sent and received */
};

static inline bool rx_converts(const struct gantry_rx_op *op)
{
	return op->as.from != op->as.to;
}
/* What so many bytes take up in the batch, and the other way round: of whole elements. */
static inline uint64_t rx_stored(const struct gantry_rx_op *op, uint64_t sent)
{
	return sent / op->as.sent * op->as.stored;
}
static inline uint64_t rx_sent(const struct gantry_rx_op *op, uint64_t stored)
{
	return stored / op->as.stored * op->as.sent;
}

/* LENT: for the caller, until it gives them back; then DEVICE, while work that reads them may be in a stream. */
enum rx_flight_state {
	RX_FLIGHT_GATHER,
	RX_FLIGHT_POSTED,
	RX_FLIGHT_HERE,
	RX_FLIGHT_LENT,
	RX_FLIGHT_DEVICE,
	RX_FLIGHT_SPENT
};

struct rx_flight {
	enum rx_flight_state state;
	struct gantry_rx_op *op; /* borrowed: its connection holds a reference until the transfer is over */
	void *request;
	uint64_t index, len, got;
	struct rx_cursor from; /* its place in the batch */
	uint8_t *direct;       /* the user's memory, where the network reads or writes it; else NULL */
	int touches;	       /* counted in op->touching */
	int works;	       /* the device has work for it; sending: 1: to be enqueued, 2: enqueued; given back: the
				  event is behind the caller's work */
	void *mr;	       /* borrowed from the connection; NULL: host memory */
	int slot;	       /* of the network's table; -1: none */
	struct iovec *iov;     /* owned, of the ring's place: pieces that the network reads or writes */
	uint32_t niov, iov_room;
	struct gantry_piece *stage;	/* pinned memory of the message; NULL: none */
	struct gantry_dev_event *event; /* owned; device work of this flight */
	struct gantry_piece *descs;	/* pinned descriptors in use by that work, a buffer per launch */
	/* How far the descriptors of the message have been turned into launches. */
	uint32_t desc_at, desc_skip;
	struct rx_cursor walk;
	uint64_t walk_pos, unpacked; /* bytes as sent */
};

/* A head on its way out, bytes behind it. */
struct rx_out {
	struct gantry_list node;
	void *request; /* NULL: not posted yet */
	size_t size;
	int inlined; /* counted in inline_out */
	int answer;  /* counted in answers_out */
	uint8_t data[];
};

/* A transfer whose receive has not been posted. */
struct rx_early {
	struct gantry_list node;
	struct rx_head head;
	uint8_t data[];
};

struct rx_mr {
	uint64_t region;
	void *mr;
};

struct rx_side {
	void *comm;
	struct gantry_list waiting; /* ops in RX_WAITING */
	struct gantry_list offered; /* sends in RX_OFFERED */
	struct gantry_list data;    /* RX_GRANTED and RX_LOCAL, in the order of their grants */
	struct rx_flight flights[RX_DEPTH_MAX];
	uint32_t head, tail; /* flights [head, tail) modulo RX_DEPTH_MAX */
	uint32_t noffered;
	int staged;	/* staging buffers this side holds */
	uint64_t slots; /* receives that took a slot of the table so far */
};

struct gantry_rx_conn {
	struct gantry_list node; /* in rx->conns */
	struct gantry_rx *rx;	 /* borrowed */
	void *ctx;		 /* of the network, owned */
	int net_dev;		 /* of the network: by which it connects to the peer; -1: not known yet */
	int nics;		 /* how many NICs that are */
	struct rx_side out, in;
	struct rx_mr *mrs; /* owned: what the sending side has registered with the network */
	size_t nmrs;
	struct gantry_list outgoing; /* rx_out, in order */
	int inline_out, answers_out;
	int up;			  /* the peer has both connections: it has sent UP */
	int answering;		  /* a head of the peer is being handled */
	struct gantry_list early; /* rx_early, in order */
	void *heads[RX_HEADS_IN]; /* receives posted for heads */
	uint32_t heads_next, heads_posted;
	uint8_t *head_memory;			       /* owned: their buffers */
	struct gantry_net_device_handle device_handle; /* UNPACK: what accept filled */
	struct gantry_unpack_handle *unpack;	       /* borrowed from the network; NULL: host path */
	int vec;				       /* the network may receive into pieces, until it says no */
	void *landing, *landing_mr; /* UNPACK: what receives name as their buffer; never read, see rx_work_whole */
	struct devmem_pool *pool;   /* UNPACK: owned reference, so that fragments stay mapped until this is closed */
	uint64_t next_transfer;
	uint64_t peer_epoch, id;
	gantry_result leaving;	/* not OK: the peer has gone, its last heads are waited for until leaving_until */
	uint64_t leaving_until; /* ns */
	char leaving_text[RX_TEXT];
	gantry_result error GUARDED_BY(rx_mu); /* not OK: over */
	char error_text[RX_TEXT];
	char peer[160], path[256];
};

/* A call of gantry_rx_unpack whose launches may still run. */
struct rx_unpack {
	struct gantry_list node;	/* in rx->unpacks */
	struct gantry_rx_conn *conn;	/* borrowed; NULL once that is closed */
	uint32_t flights;		/* whose bytes it reads: bits, by their place in the ring */
	struct gantry_dev_event *event; /* owned; behind the launches */
	struct gantry_piece *descs;	/* owned: what they read, of rx->lists */
	struct devmem_pool *pool; /* owned reference, or NULL: kernels read there, whatever becomes of the connection */
};

struct gantry_rx_listener {
	struct gantry_list node; /* in rx->listeners */
	struct gantry_rx *rx;	 /* borrowed */
	struct inet_port *port;
	struct gantry_list meetings; /* the oldest first */
	int nmeetings;
	struct gantry_ratelimit quiet;
	char address[GANTRY_ADDR_TEXT];
	struct gantry_addr advertised; /* the address given to peers, for one whose address is translated */
};

struct gantry_rx {
	struct rx_mu mu;
	struct gantry_net *net;	      /* borrowed: the TCP network */
	struct inet_key key;	      /* GANTRY_SECRET, or none */
	struct gantry_device *device; /* owned reference */
	struct gantry_rails rails;    /* the NICs it uses; constant */
	int listen_dev;		      /* of the network: all of them together */
	char nics[128];		      /* their names: "eth0+eth1" */
	enum gantry_rx_path path;     /* UNPACK, EMULATED or HOST */
	char path_reason[192];
	uint64_t epoch, message, stage_limit;
	uint32_t depth, max_descs;
	int debug;
	bool recv_sync; /* GANTRY_RX_RECV_SYNC */
	uint64_t next_region;
	struct gantry_list regions GUARDED_BY(rx_mu), conns GUARDED_BY(rx_mu), listeners GUARDED_BY(rx_mu);
	struct gantry_stream *in_stream, *out_stream; /* owned; made when first needed */
	struct gantry_pinned stages, descs; /* one extent per message, and per buffer of max_descs descriptors */
	struct gantry_pinned lists;	    /* as descs: of callers, whose streams may stand still */
	struct gantry_list unpacks GUARDED_BY(rx_mu); /* rx_unpack, in the order of their calls */
	struct gantry_rx_counters counters;	      /* written under the mutex; rx_stats.c reads them relaxed */
	uint64_t strangers; /* relaxed: the loop's thread counts them too; in the counters when these are read */
	struct gantry_list node GUARDED_BY(loop_mu); /* rx_stats.c */
	uint32_t number;			     /* of this one, in the process */
	struct {				     /* ticks */
		uint64_t after;			     /* 0: not needed */
		uint64_t since, looked;
		int told;
	} stall;
};

static inline void rx_count(uint64_t *counter, uint64_t n) REQUIRES(rx_mu)
{
	store_relaxed(counter, *counter + n);
}

/* rx_stats.c: its counters are shown (inet/stats.h) from the one to the other. */
void rx_stats_add(struct gantry_rx *rx);
void rx_stats_remove(struct gantry_rx *rx); /* also of one that was never added */

/* A log line about what a transfer does: if the user wants them, whatever the log level. */
#define RX_DEBUG(rx, ...)                                                                                              \
	do {                                                                                                           \
		if ((rx)->debug)                                                                                       \
			gantry_log_write(GANTRY_LOG_DEBUG, GANTRY_SUBSYS_RX, __FILE__, __LINE__, __VA_ARGS__);         \
		else                                                                                                   \
			LOG_TRACE(RX, __VA_ARGS__);                                                                    \
	} while (0)

/* work.c */
gantry_result rx_batch_init(struct gantry_rx *rx, const struct gantry_rx_piece *pieces, size_t n, struct rx_batch *b);
/* Nothing reads or writes its memory any more: that may be deregistered. The layout stays. */
void rx_batch_release(struct rx_batch *b);
void rx_batch_free(struct rx_batch *b);
/* The contiguous bytes at the cursor, at most `max`; NULL at the end of the batch. */
uint8_t *rx_batch_run(const struct rx_batch *b, const struct rx_cursor *c, uint64_t max, uint64_t *ret_len);
void rx_batch_skip(const struct rx_batch *b, struct rx_cursor *c, uint64_t bytes);
/* With the CPU. */
void rx_batch_gather(const struct rx_batch *b, struct rx_cursor c, uint8_t *to, uint64_t bytes);
void rx_batch_scatter(const struct rx_batch *b, struct rx_cursor c, const uint8_t *from, uint64_t bytes);
/* recv_as.c */
gantry_result rx_as_init(enum gantry_type sent, enum gantry_type stored, struct rx_as *ret_as);
/* Pieces hold whole elements. */
gantry_result rx_as_fits(const struct rx_as *as, const struct rx_batch *b);
/* With the CPU: bytes as sent, to where the cursor is in the op's batch. */
void rx_op_store(const struct gantry_rx_op *op, struct rx_cursor c, const uint8_t *from, uint64_t bytes);
/* work.c again. The pieces of its message in niov and iov. 0: not worth it, and niov is 0. */
int rx_flight_list(struct rx_flight *f);
/* The descriptors of a launch: of what memory, and which. */
struct rx_plan {
	struct gantry_rx *rx;
	struct gantry_stream *stream;
	uint8_t *bounce; /* what src_off is relative to; dst_off is an address */
	int gather;
	const struct rx_as *as;
};
struct rx_list {
	struct gantry_piece *descs; /* pinned memory; NULL: none yet */
	uint32_t n;
	uint64_t bytes;
};
void rx_list_add(struct rx_list *l, uint64_t src_off, uint64_t len, uint64_t place);
/* Its descriptors go to `used`, before all others there: they are in use until what is in the stream now is over. */
gantry_result rx_list_launch(const struct rx_plan *p, struct rx_list *l, struct gantry_piece **used) REQUIRES(rx_mu);
/* What the device does for a flight. AGAIN: no descriptors are free now, call again. Staged: gather or scatter. */
gantry_result rx_work_staged(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu);
gantry_result rx_work_unpack(struct gantry_rx_conn *c, struct rx_flight *f) REQUIRES(rx_mu);
/* All bytes of a message that came to the page pool are described. */
gantry_result rx_work_whole(const struct rx_flight *f, uint64_t described);
/* What has been enqueued so far is all there will be. */
gantry_result rx_work_seal(struct gantry_rx_conn *c, struct rx_flight *f);
/* 1: all of it is done. */
int rx_work_over(struct gantry_rx_conn *c, struct rx_flight *f, gantry_result *ret_r);

/* open.c: staging. */
/* What the connections there are need if each is busy, as far as the limits go. More comes when it is needed. */
void rx_stages_reserve(struct gantry_rx *rx) REQUIRES(rx_mu);
/* AGAIN: none is free now. ERR_NOMEM: the one that every side may have could not be allocated. */
gantry_result rx_stage_get(struct gantry_rx *rx, struct rx_side *side, struct gantry_piece **ret_stage) REQUIRES(rx_mu);
void rx_stage_put(struct gantry_rx *rx, struct rx_side *side, struct gantry_piece *s);
/* Of rx->descs or rx->lists. NULL: there is none now. */
struct gantry_piece *rx_descs_get(struct gantry_rx *rx, struct gantry_pinned *pool);
void rx_descs_put(struct gantry_pinned *pool, struct gantry_piece *d);
/* Buffers that rx->lists has at most, and at least: so many launches one call may have. */
uint32_t rx_lists_most(const struct gantry_rx *rx);
/* Some of them, before kernels run that allocating may wait for. */
void rx_lists_reserve(struct gantry_rx *rx) REQUIRES(rx_mu);

/* lend.c */
/* The message can be lent: it is described as a whole. */
gantry_result rx_frags_check(struct gantry_rx_conn *c, const struct rx_flight *f);
/* 1: no work reads what was given back any more. */
int rx_frags_over(struct gantry_rx_conn *c, struct rx_flight *f, gantry_result *ret_r) REQUIRES(rx_mu);
/* Takes back what is lent of messages from `first` on: the op is ending. */
void rx_frags_drop(struct gantry_rx_op *op, uint64_t first);
/* Gives all of them back, if the caller has got all there is. False: it has not. */
bool rx_frags_give_all(struct gantry_rx_op *op);
/* The caller has got the fragments, and has not given them back. */
bool rx_frags_held(const struct rx_flight *f);
/* Of those that are over, memory and pages go back. */
void rx_unpacks_reap(struct gantry_rx *rx) REQUIRES(rx_mu);
void rx_unpacks_forget(struct gantry_rx_conn *c) REQUIRES(rx_mu);
void rx_unpacks_await(struct gantry_rx *rx) REQUIRES(rx_mu); /* all of them */

/* address.c */
/* "host:port" to an address. listening: the host may be empty, and the port 0. */
gantry_result rx_address_parse(const char *text, int listening, struct gantry_addr *ret_addr);
/* "host:port#epoch": the epoch, 0 if there is none, and the rest in `room`. */
gantry_result rx_address_epoch(const char *address, char *room, size_t size, uint64_t *ret_epoch);
/* An address of the nearest interface that the rx uses. */
gantry_result rx_address_own(struct gantry_rx *rx, struct gantry_addr *ret_addr);

/* conn.c */
gantry_result rx_conn_create(struct gantry_rx *rx, uint64_t id, struct gantry_rx_conn **ret_conn) REQUIRES(rx_mu);
/* Both comms are there: heads can come. */
gantry_result rx_conn_start(struct gantry_rx_conn *c) REQUIRES(rx_mu);
void rx_conn_destroy(struct gantry_rx_conn *c) REQUIRES(rx_mu); /* NULL is fine */
/* The first cause counts. All ops of the connection end; their memory is at rest. */
void rx_conn_fail(struct gantry_rx_conn *c, gantry_result r, const char *fmt, ...) REQUIRES(rx_mu)
	__attribute__((format(printf, 3, 4)));
/* 1: something moved. Failures end the connection, not the caller. */
int rx_conn_progress(struct gantry_rx_conn *c) REQUIRES(rx_mu);
int rx_progress(struct gantry_rx *rx) REQUIRES(rx_mu);
void rx_conn_forget_region(struct gantry_rx_conn *c, uint64_t region);
gantry_result rx_head_send(struct gantry_rx_conn *c, const struct rx_head *h, const struct rx_batch *inlined);

/* transfer.c */
/* A head has come. last: nothing can be answered any more; what it asks for is not done, what it says of a send holds. */
gantry_result rx_transfer_hear(struct gantry_rx_conn *c, const uint8_t *data, size_t size, bool last) REQUIRES(rx_mu);
gantry_result rx_send_progress(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu);
/* Is there a send that is out whole, and whose outcome the peer has not reported? */
int rx_send_unanswered(struct gantry_rx_conn *c);
gantry_result rx_recv_progress(struct gantry_rx_conn *c, int *ret_moved) REQUIRES(rx_mu);
/* A receive was posted: is its transfer here already? */
gantry_result rx_recv_match(struct gantry_rx_op *op) REQUIRES(rx_mu);
gantry_result rx_transfer_cancel(struct gantry_rx_op *op) REQUIRES(rx_mu);

/* op.c */
extern const struct rx_as rx_as_it_is;
/* The user's part is over; the first result counts. */
void rx_op_done(struct gantry_rx_op *op, gantry_result r, const char *fmt, ...) REQUIRES(rx_mu)
	__attribute__((format(printf, 3, 4)));
/* ... because it was ended early, by either side, and nothing touches its memory any more. */
void rx_op_cancelled(struct gantry_rx_op *op) REQUIRES(rx_mu);
/* The transfer is over: the connection lets go. */
void rx_op_over(struct gantry_rx_op *op);
/* An op that is ending is done when nothing touches its memory; its transfer is over when all messages are through. */
void rx_op_settle(struct gantry_rx_op *op) REQUIRES(rx_mu);
/* A round of waiting for events without notification, with naps no longer than GANTRY_PROXY_SLEEP. Not beyond the
 * deadline. The mutex is released in between. moved: something did since the last round. */
void rx_idle(struct gantry_rx *rx, struct gantry_waiter *w, int moved, uint64_t deadline) REQUIRES(rx_mu);

static inline uint32_t rx_flights(const struct rx_side *s)
{
	return s->tail - s->head;
}
static inline struct rx_flight *rx_flight_at(struct rx_side *s, uint32_t i)
{
	return &s->flights[i % RX_DEPTH_MAX];
}

#endif
