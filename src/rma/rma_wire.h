/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The message that begins an operation. Small data follows in it, larger data in messages of rma_piece bytes with another tag, in the
 * order of their headers.
 *
 *   0 magic  4 kind  5 flags  6 inlined u16  8 context  12 memory  16 offset  24 bytes  32 signal memory  36 zero
 *   40 signal offset  48 add  56 id
 *
 * PUT: memory, offset and signal are the target's. GET: memory and offset are the target's, which answers with REPLY and the
 * same id. FAILED: the last message of a rank; id is the code, memory 1 + the rank that the error is about (0: none), and a
 * text follows.
 */
#ifndef GANTRY_RMA_RMA_WIRE_H
#define GANTRY_RMA_RMA_WIRE_H

#include "rma/rma.h"

enum {
	RMA_HEADER = 64,
	RMA_INLINE = 16384, /* bytes of data that follow in the same message, at most; see rma_inline_most */
	RMA_INLINE_LEAST = 4096,
	RMA_PIECE = 1 << 20, /* of further messages, but for the last: at most, see rma_piece */
	RMA_PIECE_LEAST = 64 << 10,
	RMA_TAG_HEAD = 0,
	RMA_TAG_BULK = 1,
};
#define RMA_BYTES_MAX (1ull << 40)

enum rma_what { RMA_PUT = 1, RMA_GET, RMA_REPLY, RMA_FAILED, RMA_FLUSH /* does not travel */ };

struct rma_header {
	enum rma_what what;
	uint32_t context;
	struct rma_place at;
	uint64_t bytes;
	struct rma_signal signal;
	uint64_t id;
};

/* Among so many ranks: each has a buffer of that size for every other one, so that they have about 32 MiB together. */
static inline uint32_t rma_piece(uint32_t ranks)
{
	uint32_t piece = RMA_PIECE;

	while (piece > RMA_PIECE_LEAST && (uint64_t)piece * (ranks - 1) > 32 * (uint64_t)RMA_PIECE)
		piece /= 2;
	return piece;
}

/* Each rank has 64 buffers of that size for every other one: they have about 16 MiB together, or as little as is sensible. */
static inline uint32_t rma_inline_most(uint32_t ranks)
{
	return ranks <= 17 ? RMA_INLINE : RMA_INLINE_LEAST;
}

/* most: rma_inline_most of the job, here and below. */
static inline uint32_t rma_inlined(const struct rma_header *h, uint32_t most)
{
	return h->what != RMA_GET && h->bytes <= most ? (uint32_t)h->bytes : 0;
}

void rma_encode(const struct rma_header *h, uint32_t most, uint8_t out[RMA_HEADER]);
/* Decodes a message of `size` bytes. Returns ERR_PROTOCOL, without a log line, if it is not valid; memory numbers are not checked. */
gantry_result rma_decode(const uint8_t *message, size_t size, uint32_t most, struct rma_header *ret);

/* The hello of a connection: a job's rank. */
void rma_hello_encode(uint64_t job, uint32_t ranks, uint32_t rank, uint8_t out[RMA_HEADER]);
gantry_result rma_hello_decode(const uint8_t *message, size_t size, uint64_t job, uint32_t ranks, uint32_t *ret_rank);

#endif
