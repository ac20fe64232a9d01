/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames: the bytes on a lane once its hand-shake (hello.h) is over; docs/wire.md is the long form. All integers are
 * little-endian. A frame is a header and, for DATA, EAGER and ERROR, `length` bytes of payload. The header of EAGER, of
 * which a stream of small messages is made, is half as long as that of all others.
 *
 * Encoders and decoders are pure functions over byte buffers: nothing here touches a socket, so the fuzzers can reach
 * everything. Decoders never trust a length; whatever they accept is in range.
 */
#ifndef GANTRY_NET_TCP_WIRE_H
#define GANTRY_NET_TCP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"

enum {
	WIRE_FRAME_SIZE = 48,
	WIRE_EAGER_SIZE = 24,
	WIRE_ERROR_TEXT_MAX = 512,
	WIRE_MAX_LANES = 17, /* the control lane and up to 16 bulk lanes */
};

enum wire_kind {
	WIRE_DATA = 1,	 /* a piece of a bulk message */
	WIRE_STATE,	 /* the receiver's counters: posted receives, messages done, eager bytes consumed */
	WIRE_RTS,	 /* a message waits for a receive to be posted */
	WIRE_CLOSE,	 /* one direction ends */
	WIRE_ERROR,	 /* the sender of this frame has given up on the connection, with a text */
	WIRE_DESCRIPTOR, /* the header of a piece whose payload, and nothing else, travels on a bulk lane */
	WIRE_ARRIVED,	 /* how many bytes have arrived on a bulk lane */
	WIRE_EAGER,	 /* a small message, whole, on the control lane */
	WIRE_STOPPED =
		11, /* the sender of this frame uses a bulk lane's socket no more; more than one bit away from EAGER */
	WIRE_KINDS
};

/* Bits of the header's second byte; a decoder ignores those that its kind does not have. */
enum {
	WIRE_FLAG_CRC = 1,	/* on every frame of a link that has agreed on checksums, and on no other */
	WIRE_FLAG_TAG = 2,	/* STATE */
	WIRE_FLAG_RECEIVER = 4, /* CLOSE */
	WIRE_FLAG_ACK = 8,	/* DATA, DESCRIPTOR */
	WIRE_FLAG_DEEP = 16,	/* DATA, DESCRIPTOR */
	WIRE_FLAG_SENDS = 32,	/* STATE */
	WIRE_FLAGS = 63,
};

/* DATA, EAGER: its payload follows the header. DESCRIPTOR: its payload comes on bulk lane `lane`, behind what was
 * described for that lane before. */
struct wire_piece {
	bool eager; /* EAGER: counts against the eager window; offset 0, total is length, and of the rest tag and index */
	bool ack;   /* sent without a copy: the sender waits for STATE to say that it is done */
	bool deep; /* the sender has many messages in flight and can wait for an acknowledgement */
	uint32_t length;
	uint64_t seq;	 /* number among the bulk messages */
	uint64_t offset; /* place of the payload in the message */
	uint64_t total;	 /* size of the message */
	uint32_t tag;
	uint32_t index;	      /* number among the messages of this tag */
	uint32_t payload_crc; /* DATA, EAGER, if the link has checksums: CRC32C of the payload */
	uint32_t lane;	      /* DESCRIPTOR */
};

struct wire_state {
	uint64_t done;	    /* bulk messages done, all before the first that is not */
	uint32_t done_bits; /* bit k: bulk message done + 1 + k is done as well */
	uint64_t consumed;  /* eager bytes, headers included, that are in their buffers */
	uint64_t received;  /* eager bytes, headers included, that have come, in the order in which they were sent */
	bool sends;	    /* the sender of this has, or had, a comm that sends over the link */
	bool has_tag;	    /* tag and posted are set */
	uint32_t tag;
	uint32_t posted; /* receives posted with this tag */
};

struct wire_rts {
	uint64_t seq, total;
	uint32_t tag, index;
};

struct wire_close {
	bool by_receiver;   /* the receiving side of the direction closes, not the sending one */
	uint64_t bulk_sent; /* of the sending side: bulk messages sent whole */
};

struct wire_error {
	uint32_t result; /* gantry_result, if the peer knows it too */
	uint32_t length; /* of the text behind the header */
	uint32_t payload_crc;
	uint64_t sent_bytes, recv_bytes; /* ERR_SIZE: of the message and of its buffer */
};

struct wire_arrived {
	uint32_t lane, generation;
	uint64_t bytes, unread; /* those of them that were not read yet */
	uint64_t pieces;	/* that have come whole, in all generations */
};

/* resume.h */
struct wire_stopped {
	uint32_t lane, generation;
	uint64_t pieces; /* as of ARRIVED; no more will be taken from this generation */
};

struct wire_frame {
	enum wire_kind kind;
	union {
		struct wire_piece piece; /* DATA, EAGER, DESCRIPTOR */
		struct wire_state state;
		struct wire_rts rts;
		struct wire_close close;
		struct wire_error error;
		struct wire_arrived arrived;
		struct wire_stopped stopped;
	};
};

/*
 * crc: the link has agreed on checksums. The header then carries a sum of itself, so that no field of it is used before
 * it was checked; what travels behind it has its own, payload_crc, which the sum of the header covers.
 */
void wire_frame_encode(const struct wire_frame *f, bool crc, uint8_t out[WIRE_FRAME_SIZE]);
/* ERR_CORRUPT: the header's sum is wrong. ERR_PROTOCOL for anything this version does not send, and for a frame with a
 * checksum where none was agreed, or without where it was; *ret is not defined then. */
gantry_result wire_frame_decode(const uint8_t *in, bool crc, struct wire_frame *ret);
/* The same for EAGER: of p, length, tag, index and payload_crc. */
void wire_eager_encode(const struct wire_piece *p, bool crc, uint8_t out[WIRE_EAGER_SIZE]);

/* Of the header that begins with this byte: what must be there to decode it. The shorter one for kinds that do not exist,
 * so that a damaged EAGER is refused at once, and not when enough of other frames has come. */
static inline uint32_t wire_header_size(uint8_t kind)
{
	return (kind >= WIRE_DATA && kind < WIRE_EAGER) || kind == WIRE_STOPPED ? WIRE_FRAME_SIZE : WIRE_EAGER_SIZE;
}

#endif
