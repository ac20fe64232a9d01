/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The insides of a communicator of rma.h. All of it is under its mutex.
 *
 * A request on its way out, to a peer:
 *
 *   [held: a get, while RMA_GETS_OUT of them are not answered] ──> waiting ──head in a slot──> [bulk: its pieces, up to
 *   RMA_PIECES_OUT of them at a time] ──> done
 *
 * An operation that comes in, from a peer:
 *
 *   head received ──> [its pieces are received] ──> in place, or in the copy queue ──in the order of its context──> over:
 *                                                                                    its signal is added, a get answered
 *
 * Rings count: filled, sent, over (of what goes out) and posted, taken or arrived, over (of what comes in), each no larger than the
 * one before it, the first no further ahead of the last than the ring is long.
 */
#ifndef GANTRY_RMA_RMA_PRIV_H
#define GANTRY_RMA_RMA_PRIV_H

#include "base/assert.h"
#include "base/atomic.h"
#include "base/list.h"
#include "base/mutex.h"
#include "base/stall.h"
#include "device/device.h"
#include "net/mesh.h"
#include "rma/rma_wire.h"

#define RMA_NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum {
	RMA_HEADS_OUT = 32, /* on their way to one peer */
	RMA_PIECES_OUT = 32,
	RMA_HEADS_IN = 32, /* receives that wait for one peer */
	RMA_PIECES_IN = 32,
	RMA_PIECES_TAKEN = 8, /* by one call of progress, which has other peers to look after */
	RMA_OPS_MOST = 4096,  /* of one peer that are not over: then its heads wait */
	RMA_GETS_OUT = 256,   /* of this rank that a peer has not answered; further ones wait here */
	/* A get may be over at its rank while the last pieces of the answer still count as on their way here. */
	RMA_ANSWERS_MOST = RMA_GETS_OUT + RMA_PIECES_OUT,
	RMA_STAGES = 16,    /* pieces of device memory in each direction, of all peers; see rma_rx.c */
	RMA_IDLE_PEERS = 8, /* that a call of progress looks at although nothing is under way with them */
	RMA_TESTS = 16,	    /* of requests that are not the oldest of their peer: one makes progress */
};

MUTEX_KIND(rma_mu);

/* When a copy is over: with its batch. */
struct rma_fence {
	bool pending;
	enum gantry_copy_queue queue;
	uint64_t batch;
};

/*
 * Copies of a queue, in batches that share a fence of the device's, since a fence is a call of the driver. Copies join the open batch;
 * progress closes it when it has begun all that it can. Batches are numbered from 1 on, and over in that order.
 */
enum { RMA_BATCHES = 64 };
struct rma_batches {
	uint64_t open, over;	      /* the former's number; of the last that is over */
	bool joined;		      /* the open one has copies */
	uint64_t fences[RMA_BATCHES]; /* of those that are closed and not over, by number */
};

struct rma_memory {
	char *base; /* NULL: deregistered, or not there yet */
	uint64_t size;
	bool device; /* copies by the device's queues */
};

/* Bytes of memory. */
struct rma_span {
	char *at;
	bool device;
};

struct rma_request {
	struct gantry_list open;  /* of its peer: not done, in the order of calls */
	struct gantry_list queue; /* of its peer: without a head, then with pieces to be sent */
	struct rma_comm *comm;
	struct rma_peer *peer;
	struct rma_header head;
	struct rma_span local;
	uint64_t number;	/* of the peer's requests */
	uint64_t begun, over;	/* bytes in pieces */
	uint64_t since;		/* ns */
	struct rma_fence fence; /* of a copy within this rank */
	bool answer;		/* to a get of the peer's: no user waits for it */
	bool done;
};

/* ---- what goes out ---- */

struct rma_head_out {
	uint8_t *slot; /* always the same */
	uint32_t size;
	struct rma_fence fence;	     /* the data is in the slot */
	struct rma_request *request; /* that is done then; NULL: none */
	void *net;
};

struct rma_piece_out {
	struct rma_request *request;
	char *data;
	uint8_t *stage; /* where that is; NULL: the user's memory */
	uint32_t size;
	struct rma_fence fence;
	void *net;
};

struct rma_tx {
	struct gantry_list waiting, bulk; /* requests */
	struct gantry_list held;	  /* gets, which wait for answers to earlier ones */
	uint32_t gets, answers;		  /* gets that are not held nor answered; answers that are not done */
	struct rma_head_out heads[RMA_HEADS_OUT];
	uint64_t heads_filled, heads_sent, heads_over;
	struct rma_piece_out pieces[RMA_PIECES_OUT];
	uint64_t pieces_filled, pieces_sent, pieces_over;
};

/* ---- what comes in ---- */

struct rma_op {
	struct gantry_list order;    /* of its context, or of answers */
	struct rma_context *context; /* borrowed; NULL: an answer */
	struct gantry_list queue;    /* with pieces to be received */
	struct rma_header head;
	struct rma_span to;
	const char *from;	     /* of this rank's own; else NULL */
	struct rma_span word;	     /* of its signal; at NULL: it has none */
	bool expected;		     /* by rma_signal_expect */
	uint64_t posted, left;	     /* bytes: in receives so far; not in place yet, nor in the copy queue */
	struct rma_fence fence;	     /* the last copy */
	struct rma_request *request; /* of an answer, or of this rank to itself; NULL: none */
};

struct rma_head_in {
	void *net;
	uint8_t *buffer;
	struct rma_fence fence; /* it may be used again */
};

struct rma_piece_in {
	struct rma_op *op;
	char *data;
	uint8_t *stage;
	uint32_t size;
	uint64_t at; /* byte of the operation */
	struct rma_fence fence;
	void *net;
};

/* Operations of one context, in the order in which they were put. */
struct rma_context {
	struct gantry_list node; /* of those with operations */
	struct gantry_list ops;
	struct rma_fence
		fence; /* of operations that are over: their copies to the device, which no signal has waited for */
};

struct rma_rx {
	struct rma_head_in heads[RMA_HEADS_IN];
	uint64_t heads_posted, heads_taken, heads_over;
	struct rma_piece_in pieces[RMA_PIECES_IN];
	uint64_t pieces_posted, pieces_arrived, pieces_over;
	struct gantry_list bulk;       /* operations */
	struct gantry_list active;     /* contexts with operations */
	struct gantry_list answers;    /* to gets of this rank */
	uint32_t stages;	       /* held by pieces */
	bool closed;		       /* the peer has closed its end: nothing more comes */
	struct rma_context **contexts; /* owned; by number; NULL: it was not used yet */
	uint32_t ncontexts, nops;
};

struct rma_peer {
	uint32_t rank;
	struct net_mesh_end *end; /* borrowed; NULL: this rank itself */
	uint32_t tests;		  /* of requests that are not the oldest */
	struct gantry_list open;
	uint64_t requests;
	struct rma_tx tx;
	struct rma_rx rx;
	uint8_t *messages; /* owned: the buffers of heads, out and in; NULL: this rank itself */
};

/* A word of device memory with signals on their way: rma_signal.c. */
struct rma_word {
	struct gantry_list node;
	char *at;
	uint32_t expected;     /* signals that will come */
	bool known, unwritten; /* value is good; it has not been written yet */
	uint64_t value;
	bool reading, stale;	/* stale: what is being read is worth nothing */
	bool claimed;		/* no other communicator of the process may change it: rma_claim.c */
	uint64_t turn;		/* in which it was read or written */
	uint64_t *read;		/* where it is read to, in mapped memory; always the same */
	struct rma_fence fence; /* of the read, then of the newest write */
};
/*
 * Words at a time, half of which may be there only because signals are expected; and values being written, in mapped memory, apart
 * from each other and from anything else: copies of neighbours would become one.
 */
enum { RMA_WORDS = 512, RMA_VALUES = 256, RMA_VALUE_APART = 16 };

#define RMA_COPIES_NS 10000000000u /* that copies which are in the device's queues may take */

struct rma_comm {
	struct rma_mu mu;
	uint32_t ranks, rank;
	struct gantry_device *device; /* borrowed; NULL: none */
	bool staged;
	uint64_t timeout;     /* ns */
	const uint32_t *stop; /* borrowed; NULL: none */
	struct net_mesh *mesh;
	struct rma_peer *peers;
	uint32_t next_idle; /* peer that progress looks at next */
	struct {
		struct rma_memory *all; /* by number - 1 */
		uint32_t count, room;
	} memory;
	struct {
		uint8_t *block; /* owned: mapped for the device, if there is one */
		uint8_t **free;
		uint32_t nfree;
	} stages_out, stages_in;
	uint32_t piece;	       /* bytes of a stage */
	uint32_t inline_most;  /* bytes of data that follow a head, at most */
	uint32_t stage_owners; /* peers that hold stages_in */
	struct {
		struct gantry_list words, free;
		uint32_t nfree;
		struct rma_word *unwritten; /* NULL: none */
		struct rma_word *all;	    /* owned: RMA_WORDS; NULL: no device */
		char *values;		    /* owned: RMA_VALUES, then what is read of each word */
		struct rma_fence fences[RMA_VALUES];
		uint64_t given;
	} signals;
	struct gantry_list free_requests, free_ops;
	struct gantry_list blocks; /* owned: of requests and operations */
	struct rma_request **gets; /* by id: requests that wait for an answer; NULL: free */
	uint32_t ngets, next_get;
	struct {
		gantry_result result;
		int rank;
		char text[512];
	} error;
	uint8_t last_words[RMA_HEADER + 512]; /* to all peers, after it */
	struct rma_batches batches[GANTRY_COPY_QUEUES];
	struct rma_counts counts; /* read without the mutex */
	uint64_t moves;		  /* the same */
	struct {
		struct gantry_list node; /* of all communicators: loop_mu */
		struct gantry_stall_source source;
		int64_t number;
		bool stalls;		   /* are looked for */
		uint64_t calls;		   /* of progress; relaxed */
		uint64_t looked, reported; /* ns; reported: since when that request had waited */
	} watch;
};

#define RMA_MOVED(c) store_relaxed(&(c)->moves, (c)->moves + 1)
#define RMA_COUNT(c, field, n) store_relaxed(&(c)->counts.field, (c)->counts.field + (n))

/* rma_watch.c */
void rma_watch_open(struct rma_comm *c);
void rma_watch_close(struct rma_comm *c);
/* Now and then looks whether a request has waited too long. */
void rma_watch_progress(struct rma_comm *c);
/* For traces, if GANTRY_TRACE is set: a request of this rank begins or is done, a signal of the peer has been added. */
void rma_watch_request(const struct rma_request *q) REQUIRES(rma_mu);
void rma_watch_signal(const struct rma_comm *c, uint32_t peer, const struct rma_header *head) REQUIRES(rma_mu);

/* rma.c */
/* The first one counts; returns it. rank -1: about none. */
gantry_result rma_fail(struct rma_comm *c, gantry_result r, int rank, const char *text) REQUIRES(rma_mu);
/* Another rank has failed, and says why. */
gantry_result rma_heard(struct rma_comm *c, const struct rma_peer *p, const struct rma_header *h, const uint8_t *text)
	REQUIRES(rma_mu);
/* The network has logged it. */
gantry_result rma_peer_failed(struct rma_comm *c, const struct rma_peer *p, gantry_result r) REQUIRES(rma_mu);
gantry_result rma_progress_locked(struct rma_comm *c) REQUIRES(rma_mu);
gantry_result rma_request_get(struct rma_comm *c, struct rma_peer *p, struct rma_request **ret) REQUIRES(rma_mu);
void rma_request_done(struct rma_request *q) REQUIRES(rma_mu);
gantry_result rma_op_get(struct rma_comm *c, struct rma_op **ret) REQUIRES(rma_mu);
void rma_op_put(struct rma_comm *c, struct rma_op *op) REQUIRES(rma_mu);

/* rma_mem.c */
/* ERR_INVALID, with a line: it is not there. Of this rank's memory. */
gantry_result rma_span_of(const struct rma_comm *c, struct rma_place at, uint64_t bytes, struct rma_span *ret)
	REQUIRES(rma_mu);
/* Begins a copy; *ret_fence says when it is over, maybe at once. */
gantry_result rma_copy(struct rma_comm *c, struct rma_span to, struct rma_span from, uint64_t bytes,
		       struct rma_fence *ret_fence) REQUIRES(rma_mu);
/* A word, aligned, into the device; ERR_UNSUPPORTED: it has to be copied. */
gantry_result rma_store(struct rma_comm *c, char *to, uint64_t word, struct rma_fence *ret_fence) REQUIRES(rma_mu);
/* Closes the open batches: their copies begin. */
gantry_result rma_batches_close(struct rma_comm *c) REQUIRES(rma_mu);
/* AGAIN: not yet. */
gantry_result rma_fence_over(struct rma_comm *c, struct rma_fence *f) REQUIRES(rma_mu);
/* Memory of the device is copied by its queues. */
static inline bool rma_copies(const struct rma_comm *c)
{
	return c->device && (c->staged || !gantry_traits(c->device)->cpu_reads_memory);
}
/* Waits for what is in the device's queues. false: it is there still, with a line in the log. */
bool rma_finish_copies(struct rma_comm *c);
/* Host memory that the device addresses, if there is one. */
gantry_result rma_mapped_alloc(struct rma_comm *c, size_t size, void **ret);
void rma_mapped_free(struct rma_comm *c, void *p);

/* rma_tx.c */
void rma_tx_queue(struct rma_request *q) REQUIRES(rma_mu); /* its head is filled in */
void rma_tx_answered(struct rma_peer *p) REQUIRES(rma_mu); /* a get of this rank */
gantry_result rma_tx_begin(struct rma_comm *c, struct rma_peer *p)
	REQUIRES(rma_mu); /* what is queued, as far as there is room */
gantry_result rma_tx_progress(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu);
static inline bool rma_tx_busy(const struct rma_peer *p)
{
	return !gantry_list_empty(&p->tx.waiting) || !gantry_list_empty(&p->tx.bulk) ||
	       p->tx.heads_over != p->tx.heads_filled || p->tx.pieces_over != p->tx.pieces_filled;
}

/* rma_rx.c */
void rma_rx_init(struct rma_rx *rx) REQUIRES(rma_mu);
void rma_rx_free(struct rma_rx *rx) REQUIRES(rma_mu);
gantry_result rma_rx_progress(struct rma_comm *c, struct rma_peer *p) REQUIRES(rma_mu);
/* An operation of this rank with itself, whose data is in place or in the copy queue. */
gantry_result rma_rx_own(struct rma_comm *c, struct rma_op *op) REQUIRES(rma_mu);
static inline bool rma_rx_busy(const struct rma_peer *p)
{
	return p->rx.nops || p->rx.heads_over != p->rx.heads_taken || p->rx.pieces_over != p->rx.pieces_posted;
}

/* rma_signal.c */
gantry_result rma_signal_open(struct rma_comm *c) REQUIRES(rma_mu);
/* A signal for the word will come: what is there can be read meanwhile. *ret_expected: it was taken note of. */
gantry_result rma_signal_expect(struct rma_comm *c, struct rma_span word, bool *ret_expected) REQUIRES(rma_mu);
/* AGAIN: not now. In the copy queue it comes behind what is there already. expected: it was. */
gantry_result rma_signal_add(struct rma_comm *c, struct rma_span word, uint64_t add, bool expected) REQUIRES(rma_mu);
gantry_result rma_signal_progress(struct rma_comm *c) REQUIRES(rma_mu);
void rma_signal_end(struct rma_comm *c) REQUIRES(rma_mu); /* nothing is added any more */

/* rma_claim.c */
/* false: another communicator adds to it. Else what is known of it is right, or not known any more. */
bool rma_claim(const struct rma_comm *c, struct rma_word *w) REQUIRES(rma_mu);
void rma_claim_read(const struct rma_comm *c, struct rma_word *w) REQUIRES(rma_mu); /* reading it begins */
void rma_claim_end(struct rma_word *w) REQUIRES(rma_mu); /* what was added has been written, or nothing was */

#endif
