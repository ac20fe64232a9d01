/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of frames to one peer, driven by the loop: framed, counted, sealed, and resumable over further sockets.
 * docs/design/0038 has the reasons and the users.
 *
 *    OPEN --socket dies--> CUT --inet_stream_resume--> OPEN             where session.on; else, or after a fault here:
 *     |                     |                                           ops.broken, and the owner closes it
 *     +------ inet_stream_close -----------------------------> closed, freed at the end of the pass
 *     +------ inet_stream_finish --> FINISHING: the peer ends, or time is over --> closed
 *
 * Ownership. A stream owns its socket, seals, queue and half a frame of input, and belongs to a set (struct inet_streams) whose
 * owner is a client of the loop: it calls tick, flush and reap in each pass. `owner` and `traffic` are borrowed until the stream is
 * closed or finishes. How sockets are dialled or accepted is the owner's matter (inet/dial.h, inet/listen.h). Everything is
 * under loop_mu; the service thread alone reads, writes and frees, other threads may queue frames.
 *
 * Frames are delivered whole. What they mean is the owner's protocol, but for signs of life (INET_LIFE). Where a socket has keys,
 * frames travel in sealed records; a record that is not authentic is the end of the stream, not of its socket. Writing
 * neither blocks nor fails: frames go out at the end of the pass, in order. A stream that has more than INET_STREAM_OUT_MAX bytes
 * waiting or kept is broken, as is one for which memory is missing.
 *
 * Counting (session.on). Each side counts the frames that came whole, but for signs of life, whose tag is that count. A frame that
 * was written is kept until the peer's count covers it; a count goes back after 64 frames or 256 KiB at the latest.
 *
 * When a socket dies it is reset, half a frame of either direction is forgotten, and ops.cut runs. Over the next socket the sides
 * tell each other their counts, then inet_stream_resume sends again what is behind the peer's, sealed anew, and what waits. A side
 * that has read on from the old socket since gets frames twice and drops them: the other side's answer names the first that it
 * sends. So every frame is delivered once and in order, or a count cannot be and the stream ends with an error (models/resume.pml).
 * A stream has two deadlines, for TCP's back-off and for finishing; its owner judges silence (`received_at`).
 */
#ifndef GANTRY_INET_STREAM_H
#define GANTRY_INET_STREAM_H

#include "inet/handshake.h"
#include "inet/loop.h"
#include "inet/nic.h"
#include "inet/sock.h"

enum { INET_STREAM_OUT_MAX = 64 << 20 }; /* bytes that may wait for a reader; beyond that it is no reader */

/* ---- frames ---- */

enum { INET_HEADER_SIZE = 32, INET_LIFE = 8 };
struct inet_header {
	uint32_t kind;	  /* INET_LIFE, or the protocol's */
	int32_t from, to; /* the protocol's, as `result` */
	uint64_t tag;	  /* the protocol's. INET_LIFE: frames that have come, where the stream outlives its sockets */
	uint32_t size;	  /* of the body */
	uint32_t result;
};
void inet_header_encode(const struct inet_header *h, uint8_t out[INET_HEADER_SIZE]);
/* ERR_PROTOCOL: it is none. */
gantry_result inet_header_decode(const uint8_t in[INET_HEADER_SIZE], struct inet_header *ret);

/* Cuts bytes into frames. Zeroed but for the first three it is ready for use; inet_parser_free drops half a frame. */
struct inet_parser {
	bool (*allows)(const struct inet_header *h,
		       const struct inet_parser *p); /* whether the protocol has such a frame */
	uint32_t max_body, max_grown;		     /* two limits of bodies, for `allows` */
	size_t have;				     /* bytes of the header and the body */
	uint8_t raw[INET_HEADER_SIZE];
	struct inet_header header;
	uint8_t *body; /* owned; once the header is whole */
};
/* A whole frame; the body is borrowed. Non-zero: take no more. */
typedef int (*inet_frame_fn)(void *ctx, const struct inet_header *h, const uint8_t *body);
/* ERR_PROTOCOL, ERR_NOMEM; never logs. */
gantry_result inet_parse(struct inet_parser *p, const uint8_t *in, size_t n, inet_frame_fn frame, void *ctx);
void inet_parser_free(struct inet_parser *p);

/* A frame as it goes over the wire; shared by the queues of all its receivers. */
struct inet_frame {
	uint32_t refs; /* under the lock of the queue it is in */
	size_t size;
	uint8_t bytes[];
};
/* NULL: no memory. h->size bytes of body. */
struct inet_frame *inet_frame_make(const struct inet_header *h, const void *body);
void inet_frame_put(struct inet_frame *f);
struct inet_queued {
	struct gantry_list node;
	struct inet_frame *frame; /* a reference */
	struct inet_frame
		*sealed; /* as records of this socket, while it is written; NULL: it is not, or not encrypted */
};
/* NULL: no memory. Takes over the reference in any case; NULL is fine. */
struct inet_queued *inet_queued_make(struct inet_frame *f);

/* ---- streams ---- */

struct inet_stream;
struct inet_stream_ops {
	/* Non-zero: the stream was closed or given away, read no more. */
	int (*frame)(struct inet_stream *s, const struct inet_header *h, const uint8_t *body);
	/* The stream is of no use any more; the callee closes it. `cause` is half a sentence. */
	void (*broken)(struct inet_stream *s, gantry_result why, const char *cause);
	/* It outlives its sockets, and this one broke: inet_stream_resume with another, or inet_stream_close. */
	void (*cut)(struct inet_stream *s, const char *cause);
};

/* The streams of one client of the loop, which have one protocol. The first three are the client's. */
struct inet_streams {
	bool (*allows)(const struct inet_header *h, const struct inet_parser *p); /* of their parsers, as max_body */
	uint32_t max_body;
	void (*due)(uint64_t when);			 /* the client's next pass is at `when` (ns) at the latest */
	struct gantry_list open, finishing, dead, dirty; /* of streams */
};

/* A stream that outlives its sockets, seen from one side. */
struct inet_session {
	bool on;		 /* the owner's, as `parting` */
	bool parting;		 /* the last frame is out: once the peer has it, it ends the stream */
	struct gantry_list kept; /* of struct inet_queued: written, and not known to have come; in order */
	uint64_t acked;		 /* frames that the peer has: `kept` begins behind them */
	uint64_t nkept;
	uint64_t sent;	   /* frames that were written whole on any socket: the peer cannot have more */
	uint64_t received; /* of the peer's */
	uint64_t reported; /* the last count that went to the peer */
	size_t unreported; /* bytes of the frames behind that count */
	uint64_t twice;	   /* so many of those that come next have come before */
};

/* What an owner of several streams wants to know of all of them. */
struct inet_traffic {
	uint64_t in, out; /* bytes, without hand-shakes */
};

struct inet_stream {
	struct inet_source source;
	struct inet_streams *set;	   /* borrowed */
	struct gantry_list node;	   /* in the set's open, finishing or dead */
	struct gantry_list dirty;	   /* in the set's dirty list: something to write at the end of the pass */
	const struct inet_stream_ops *ops; /* NULL: it finishes or is closed */
	void *owner;			   /* borrowed */
	struct inet_traffic *traffic;	   /* borrowed; NULL: not counted */
	struct gantry_addr peer;
	struct inet_parser in;
	struct inet_seals seals; /* owned; none: it is not encrypted */
	uint8_t *cut;		 /* owned: a record of which some is missing */
	size_t cut_n;
	bool refused; /* one was */
	bool closed;
	struct inet_session session;
	struct gantry_list out; /* of struct inet_queued */
	size_t out_bytes;	/* waiting, and kept */
	size_t out_at;		/* of the first one, already written */
	int out_dead;		/* errno of a write: what the peer sent before is still read, then comes the end */
	const char *fault;	/* what went wrong here, found at the end of the pass */
	uint64_t received_at;	/* ns: when bytes last came */
	uint64_t look_by;	/* ns: when the socket's back-off is looked at; 0: nothing is out */
	struct sock_backoff backoff;
	uint64_t finish_by; /* in finishing: when patience ends */
};

/* Takes the descriptor and the seals, also on failure. */
gantry_result inet_stream_make(struct inet_streams *set, int fd, struct inet_seals *seals,
			       const struct gantry_addr *peer, const struct inet_stream_ops *ops, void *owner,
			       struct inet_stream **ret_stream) REQUIRES(loop_mu);
/* Between its sockets. */
static inline bool inet_stream_is_cut(const struct inet_stream *s)
{
	return !s->closed && s->source.fd < 0;
}
/* Whether the peer's count of received frames is possible: not less than its previous count, nor more than was sent. */
bool inet_stream_counts(const struct inet_stream *s, uint64_t received);
/* A new socket for it, whose peer has so many frames (inet_stream_counts); the old one is reset. first: the number of the frame with
 * which the peer goes on. Takes the descriptor and the seals, also on failure: then the stream is cut. */
gantry_result inet_stream_resume(struct inet_stream *s, int fd, struct inet_seals *seals,
				 const struct gantry_addr *peer, uint64_t received, uint64_t first) REQUIRES(loop_mu);
/* A sign of life, with the count. */
void inet_stream_send_life(struct inet_stream *s);
/* Queue for the end of the pass. Failures are reported by ops->broken, later. */
void inet_stream_write(struct inet_stream *s, struct inet_queued *q); /* takes it over */
void inet_stream_share(struct inet_stream *s, struct inet_frame *f);  /* takes a reference of its own */
void inet_stream_send(struct inet_stream *s, const struct inet_header *h, const void *body);
/* Now; NULL is fine. */
void inet_stream_close(struct inet_stream *s) REQUIRES(loop_mu);
/* Writes what is queued, then says that this is all, and waits for the peer to do the same: but not longer than ns. */
void inet_stream_finish(struct inet_stream *s, uint64_t ns) REQUIRES(loop_mu);

/* For the client's pass, in this order; and for a forked child. */
void inet_streams_tick(struct inet_streams *set) REQUIRES(loop_mu);
void inet_streams_flush(struct inet_streams *set) REQUIRES(loop_mu); /* may call ops->broken */
void inet_streams_reap(struct inet_streams *set) REQUIRES(loop_mu);
void inet_streams_in_child(struct inet_streams *set) REQUIRES(loop_mu);

#endif
