/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection FIFO: what the two ends of a connection share, and nothing else.
 *
 * A connection moves steps of data one way, from a producer to a consumer. Steps
 * are numbered by 64-bit counters that never go back; step s uses slot s % STEPS.
 * Either end is a kernel (on a GPU or on CPU threads) or a proxy.
 *
 *   word        writer    reader    meaning
 *   slots[]     producer  consumer  "step s is here, so many bytes, in this mode, at this place"
 *   head        consumer  producer  steps below head are consumed, their buffers may be written again
 *   offers[]    consumer  producer  "put step s there": space of a pool (OFFSET) or of the user (PTR)
 *   tail        producer  -         steps published; for reports only, no thread waits on it
 *
 * Each word has one writer, and each group stands on cache lines of its own.
 *
 * A slot is two 8-byte words, and each word is valid or invalid by itself: its
 * upper 16 bits are a tag made of the step. So a post that carries no payload
 * (PTR, an offer, LL) needs no fence, and the consumer never depends on two words
 * being seen together or in order. Measured on an H200, a release store after the
 * slot costs 24 % of a round trip and two thirds of the rate; see
 * docs/design/0005-fifo.md. A post that does carry payload (NORMAL, OFFSET) is a
 * release of `meta` after the payload; reading `meta` is an acquire.
 *
 *   0 <= published - head <= STEPS     the producer waits for head + STEPS > s before it writes step s
 *
 * Modes of a slot (`meta` says which):
 *   NORMAL  the bytes are in the connection's ring: buffs[proto] + (s % STEPS) * step_bytes[proto]
 *   OFFSET  the bytes are in the connection's pool, at the offset in `where`. Space is handed out by the proxy:
 *           to a sending kernel through offers[], to a receiving kernel in the slot itself
 *   PTR     the bytes are where `where` points: a registered user buffer. A sending kernel that posted it waits
 *           until head has passed the step before it ends; a receiving kernel offers its buffer, waits for the slot
 *
 * Waiting and waking. A waiter on the CPU may sleep on a eventcount (futex). It announces itself, looks again, and only
 * then sleeps; the publisher looks at `waiting` after publishing. Both sides use sequentially consistent accesses, so
 * one of them sees the other (the argument of Dekker's algorithm); models/eventcount.pml checks it. GPUs neither sleep
 * nor notify: a proxy that serves one polls while operations are in flight.
 */
#ifndef GANTRY_FIFO_H
#define GANTRY_FIFO_H

#include <stdint.h>

#ifdef __CUDACC__
#define GANTRY_FN static __host__ __device__ __forceinline__
#elif defined(__HIPCC__)
#define GANTRY_FN static inline __attribute__((host, device, always_inline, unused))
#else
#define GANTRY_FN static inline __attribute__((unused))
#endif

#define GANTRY_STEPS 8

enum gantry_mode { GANTRY_MODE_NORMAL = 0, GANTRY_MODE_OFFSET = 1, GANTRY_MODE_PTR = 2, GANTRY_MODES = 3 };
enum gantry_proto { GANTRY_PROTO_SIMPLE = 0, GANTRY_PROTO_LL = 1, GANTRY_PROTO_LL128 = 2, GANTRY_PROTOS = 3 };

/* meta: tag 63..48, mode 47..46, size 45..0.  where: tag 63..48, offset or address 47..0. */
struct gantry_slot {
	uint64_t meta;
	uint64_t where;
};
#define GANTRY_SLOT_BITS 48
#define GANTRY_SLOT_LOW ((1ull << 48) - 1)
#define GANTRY_SLOT_SIZE ((1ull << 46) - 1)

GANTRY_FN uint64_t gantry_slot_tag(uint64_t step)
{
	return (step + 1) << GANTRY_SLOT_BITS; /* never 0 for the first lap, so zeroed memory is empty */
}
GANTRY_FN uint64_t gantry_slot_meta(uint64_t step, uint32_t mode, uint64_t size)
{
	return gantry_slot_tag(step) | (uint64_t)mode << 46 | size;
}
GANTRY_FN uint64_t gantry_slot_where(uint64_t step, uint64_t place)
{
	return gantry_slot_tag(step) | (place & GANTRY_SLOT_LOW);
}
/* Whether a word was written for this step. */
GANTRY_FN int gantry_slot_is(uint64_t word, uint64_t step)
{
	return (word ^ gantry_slot_tag(step)) >> GANTRY_SLOT_BITS == 0;
}
GANTRY_FN uint32_t gantry_slot_mode(uint64_t meta)
{
	return (uint32_t)(meta >> 46) & 3;
}
GANTRY_FN uint64_t gantry_slot_size(uint64_t meta)
{
	return meta & GANTRY_SLOT_SIZE;
}
GANTRY_FN uint64_t gantry_slot_place(uint64_t where)
{
	return where & GANTRY_SLOT_LOW;
}
/* An address that fits in `where`; others are refused at registration. */
GANTRY_FN int gantry_slot_can_point(uint64_t address, uint64_t size)
{
	return address + size >= address && (address + size) >> GANTRY_SLOT_BITS == 0;
}

/* The usual arrangement, when both ends read and write the same memory. Zeroed memory is an empty FIFO. */
struct gantry_fifo {
	uint64_t head;
	char pad0[120];
	uint64_t tail;
	char pad1[120];
	struct gantry_slot slots[GANTRY_STEPS];
	struct gantry_slot offers[GANTRY_STEPS];
};

/* One per sleeper. In memory shared by all processes that notify it. */
struct gantry_eventcount {
	uint32_t seq;	  /* notifiers add 1; the futex word */
	uint32_t waiting; /* sleeper: 1 while it is about to sleep or sleeps; notifiers only read it */
	char pad[120];
};

/*
 * LL: lines of two 8-byte words, each 4 bytes of data below and a 32-bit flag above: a word is valid or not by itself,
 * no fence anywhere. LL128: lines of 15 data words and one flag word, for pairs of ends between which a line is seen in
 * order (the flag last).
 */
#define GANTRY_LL_LINE 16
#define GANTRY_LL_DATA 8
#define GANTRY_LL128_LINE 128
#define GANTRY_LL128_DATA 120
GANTRY_FN uint32_t gantry_ll_flag(uint64_t step)
{
	return (uint32_t)(step + 1);
}
GANTRY_FN uint64_t gantry_ll128_flag(uint64_t step)
{
	return step + 1;
}
/* Bytes on the wire or in the ring for `bytes` of data. */
GANTRY_FN uint64_t gantry_ll_bytes(uint64_t bytes)
{
	return (bytes + GANTRY_LL_DATA - 1) / GANTRY_LL_DATA * GANTRY_LL_LINE;
}
GANTRY_FN uint64_t gantry_ll128_bytes(uint64_t bytes)
{
	return (bytes + GANTRY_LL128_DATA - 1) / GANTRY_LL128_DATA * GANTRY_LL128_LINE;
}

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(struct gantry_slot) == 16, "a GPU posts a slot as one 16-byte store");
_Static_assert(sizeof(struct gantry_fifo) == 512, "shared between processes of different builds");
_Static_assert(sizeof(struct gantry_eventcount) == 128, "a line of its own");
#endif

#endif
