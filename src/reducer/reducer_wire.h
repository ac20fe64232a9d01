/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks and reducers say to each other, over connections of the network: one in each direction between two of them.
 * All numbers little-endian. docs/reducer.md has the picture.
 *
 * The parties of a job are its ranks and then its reducers, if these are processes of their own. A rank finds such a
 * reducer by address and port: it asks, in the payload of the hand-shake (inet/handshake.h), and is answered with the
 * handle of a listener of the network that is the job's.
 *
 *   ask      0 job(8)  8 comm id(8)  16 rank(4)  20 ranks(4)  24 reducer(4)  28 reducers(4)  32 handle of the rank(128)
 *            160 address(20) of the reducer that was dialled (inet/target.h)
 *   answer   0 handle(128)
 *
 * With a secret a reducer refuses a request for another address than its own: otherwise a man in the middle could
 * forward it to another reducer that has the same secret.
 *
 * The first message of a connection is a HELLO (tag DATA). After it tag DATA carries what ranks send to be reduced, and
 * tag RESULT what reducers send back. A message is a header of 64 bytes and, for PIECE and RESULT, the piece's bytes:
 *
 *   HELLO    0 magic(4)  4 kind(1)  5 version(1)  6 0(2)  8 index(4)  12 count(4)  16 job(8)  24 0(40)
 *   PIECE    0 magic(4)  4 kind(1)  5 coll(1)  6 type(1)  7 op(1)  8 owner(4)  12 0(4)  16 seq(8)  24 offset(8)
 *   RESULT   32 bytes(8)  40 total(8)  48 0(16)
 *   FAILED   0 magic(4)  4 kind(1)  5 why(1)  6 result(2)  8 rank(4)  12 other(4)  16 seq(8)  24 value(8)
 *            32 other_value(8)  40 0(24)
 *   REACHED  0 magic(4)  4 kind(1)  5 0(3)  8 lost(4)  12 by(4)  16 reached(32)  48 0(16)
 *
 * An operation, the seq-th of a job, has `total` bytes and is cut into pieces of `bytes` at `offset`. Ranks cut alike
 * and send in the same order, so the n-th PIECE of one rank to a reducer belongs to the n-th of every other, and their
 * headers must be equal. The n-th RESULT answers it. In an all-gather only the piece's owner sends and in a
 * reduce-scatter only the owner gets its bytes; the others have the header alone.
 *
 * REACHED goes between rank 0 and the others (tag DATA), behind the HELLO: which reducers a rank has reached, and back,
 * which of them all ranks have.
 */
#ifndef GANTRY_REDUCER_REDUCER_WIRE_H
#define GANTRY_REDUCER_REDUCER_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"
#include "inet/target.h"
#include "net/net.h"

enum {
	REDUCER_VERSION = 5, /* not below INET_FIRST_VERSION */
	REDUCER_HEADER = 64,
	REDUCER_RANKS_MAX = 4096,
	REDUCER_COUNT_MAX = 256, /* reducers of a job that are processes of their own */
	REDUCER_PORT = 18521,	 /* default port */
	REDUCER_TAG_DATA = 0,
	REDUCER_TAG_RESULT = 1,
};

enum reducer_kind { REDUCER_HELLO = 1, REDUCER_PIECE, REDUCER_RESULT, REDUCER_FAILED, REDUCER_REACHED, REDUCER_KINDS };
enum reducer_coll { REDUCER_ALL_REDUCE, REDUCER_ALL_GATHER, REDUCER_REDUCE_SCATTER, REDUCER_COLLS };

/* Why a reducer has given up a job: the field in which two ranks differ, or that one is gone. */
enum reducer_why {
	REDUCER_WHY_SEQ,
	REDUCER_WHY_COLL,
	REDUCER_WHY_TYPE,
	REDUCER_WHY_OP,
	REDUCER_WHY_TOTAL,
	REDUCER_WHY_CUT, /* owner, offset or bytes: ranks that cut differently */
	REDUCER_WHY_GONE,
	REDUCER_WHY_ENDED, /* the reducer itself was asked to shut down */
	REDUCER_WHYS
};

struct reducer_hello {
	uint32_t index, count; /* the sender, of how many parties */
	uint64_t job;
};

struct reducer_piece {
	uint8_t coll, type, op;
	uint32_t owner; /* of its bytes; 0 in an all-reduce */
	uint64_t seq, offset, bytes, total;
};

struct reducer_failed {
	uint8_t why;
	gantry_result result;
	uint32_t rank, other;
	uint64_t seq, value, other_value;
};

struct reducer_reached {
	uint32_t lost, by; /* the first reducer that one of the ranks does not reach, and that rank */
	uint8_t reached[REDUCER_COUNT_MAX / 8];
};

struct reducer_message {
	enum reducer_kind kind;
	union {
		struct reducer_hello hello;
		struct reducer_piece piece; /* RESULT too */
		struct reducer_failed failed;
		struct reducer_reached reached;
	};
};

void reducer_encode(const struct reducer_message *m, uint8_t out[REDUCER_HEADER]);
/* size: of the whole message. ERR_PROTOCOL, without a word: it is none, or what it says cannot be. */
gantry_result reducer_decode(const uint8_t *in, size_t size, struct reducer_message *ret);

/* The rendezvous: payloads of the hand-shake. */
enum {
	REDUCER_ASK_SIZE = 32 + GANTRY_NET_HANDLE_SIZE + INET_TARGET_SIZE,
	REDUCER_ANSWER_SIZE = GANTRY_NET_HANDLE_SIZE
};
struct reducer_ask {
	uint64_t job, comm_id;
	uint32_t rank, ranks;
	uint32_t reducer, reducers; /* which of how many the one that is asked is */
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct inet_target to;
};
extern const struct inet_protocol reducer_protocol;
void reducer_ask_encode(const struct reducer_ask *a, uint8_t out[REDUCER_ASK_SIZE]);
/* ERR_PROTOCOL, without a word: it is none, or there is no such job. */
gantry_result reducer_ask_decode(const uint8_t *in, size_t size, struct reducer_ask *ret);

/* The largest piece of a job of n ranks: a reducer's buffers for it are bounded by REDUCER_BUFFERS. */
enum { REDUCER_WINDOW = 8, REDUCER_PIECE_MAX = 128 << 10, REDUCER_PIECE_MIN = 4096, REDUCER_BUFFERS = 32 << 20 };
uint32_t reducer_piece_max(uint32_t ranks);

/* Whose bytes go over the wire: from rank to reducer, and back. */
static inline int reducer_sends(const struct reducer_piece *p, uint32_t rank)
{
	return p->coll != REDUCER_ALL_GATHER || p->owner == rank;
}
static inline int reducer_gets(const struct reducer_piece *p, uint32_t rank)
{
	return p->coll == REDUCER_ALL_REDUCE || (p->coll == REDUCER_ALL_GATHER) == (p->owner != rank);
}

#endif
