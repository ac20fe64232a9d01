/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of the control plane. All integers are little-endian. A connection between a rank and the hub begins with
 * the hand-shake of all connections (inet/handshake.h), whose payloads are below. Then it carries frames (inet/stream.h).
 *
 *    rank                                       hub
 *     | hello .. answer: both know the key ------> |   and the rank gets the hub's deadline
 *     | <-- REFUSED: cause, text ----------------- |   known by its key, but it does not fit in
 *     | <-- TIME, a few times -------------------> |   the clock of the hub
 *     | <-- READY: all are here, and their hosts - |
 *     | <-- LIFE, answered by LIFE --------------> |   the hub asks every timeout/32
 *     | <-- MESSAGE, CALL, REPLY ----------------> |   relayed to rank `to`
 *     | GATHER ----------------------------------> |   <- GATHERED to all, once all gave theirs
 *     | GATHER, then HAVE -----------------------> |   the same where ranks exchange their parts directly (READY says so)
 *     | <-- LOST, LEFT: news of other ranks ------ |
 *     | LEAVE -----------------------------------> |   with a cause if it gave up; or <- BYE: the hub's process ends
 *
 * Where hub and rank have agreed on it (GANTRY_RESUME), all of that outlives its socket. After one has broken the rank dials
 * another, with a generation that is greater than all before; hello and answer say both counts, and the answer also names the
 * frame with which the hub goes on.
 *
 * Between two ranks that exchange directly, a connection per message; its hand-shake says for which allgather it is:
 *
 *    sender                                     receiver
 *     | BLOCK -----------------------------------> |
 *     | <------------------------------------ HAVE |   the block is in its place
 *
 * Everything here is a pure function over bytes: nothing touches a socket, so the fuzzer reaches all of it. Decoders
 * never trust a length; whatever they accept is in range.
 */
#ifndef GANTRY_CTL_CTL_WIRE_H
#define GANTRY_CTL_CTL_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "ctl/ctl.h"
#include "inet/settings.h"
#include "inet/stream.h"
#include "inet/target.h"

enum {
	CTL_VERSION = 7,
	CTL_ADDR_SIZE = 20,
	CTL_HELLO_SIZE = 32 + CTL_ADDR_SIZE + 24 + INET_TARGET_SIZE,
	CTL_ACCEPTED_SIZE = 24,
	CTL_EXCHANGE_SIZE = 24,
	CTL_WHO_SIZE = INET_SELF_SIZE,
	CTL_TEXT_MAX = 512,
	CTL_RANKS_MAX = 32768, /* times the largest part of an allgather still fits 32 bits */
	CTL_ROUNDS_MAX = 15,   /* ctl_bruck_rounds(CTL_RANKS_MAX) */
	CTL_READY_MAX = 8 + 8 * (CTL_RANKS_MAX / 2) + CTL_ROUNDS_MAX * CTL_ADDR_SIZE,
};

/* X(NAME, largest body) */
/* clang-format off */
#define CTL_KINDS(X)                            \
	X(REFUSED,   CTL_TEXT_MAX)              \
	X(TIME,      8)                         \
	X(READY,     CTL_READY_MAX)             \
	X(LIFE,      0)                         \
	X(MESSAGE,   GANTRY_CTL_MESSAGE_MAX)    \
	X(CALL,      GANTRY_CTL_MESSAGE_MAX)    \
	X(REPLY,     GANTRY_CTL_MESSAGE_MAX)    \
	X(GATHER,    GANTRY_CTL_MESSAGE_MAX)    \
	X(GATHERED,  UINT32_MAX)                \
	X(LOST,      CTL_TEXT_MAX)              \
	X(LEAVE,     CTL_TEXT_MAX)              \
	X(LEFT,      4 * CTL_RANKS_MAX)         \
	X(BYE,       0)                         \
	X(HAVE,      CTL_TEXT_MAX)              \
	X(BLOCK,     UINT32_MAX)
/* clang-format on */

enum ctl_kind {
	CTL_NONE = 4, /* up to here: the hand-shake of versions before 4 */
#define CTL_KIND_ENUM(name, max) CTL_##name,
	CTL_KINDS(CTL_KIND_ENUM)
#undef CTL_KIND_ENUM
		CTL_KIND_COUNT
};
const char *ctl_kind_name(uint32_t kind);

_Static_assert((int)CTL_LIFE == (int)INET_LIFE, "a stream makes its signs of life itself");
/* Whether this version sends such a frame; max_grown bounds READY, GATHERED, LEFT and BLOCK. Of the header's fields:
 *   from, to  ranks; -1: the hub. LOST: from is the lost rank
 *   tag       MESSAGE: the user's. CALL, REPLY: number of the call. GATHER*: its number. TIME: rank's clock
 *   result    a gantry_result. CALL: what is asked, the user's number */
bool ctl_allows(const struct inet_header *h, const struct inet_parser *p);

/* A text out of foreign bytes: ended, cut to `room`, and without bytes that could forge log lines. */
void ctl_get_text(char *out, size_t room, const uint8_t *in, size_t n);

/* ---- the unique id ---- */

struct ctl_id {
	uint16_t version;
	uint64_t comm_id;
	struct gantry_addr addr; /* without a scope: that is local to a host */
	uint8_t key[INET_KEY_SIZE];
};
void ctl_id_encode(const struct ctl_id *id, struct gantry_unique_id *out);
/* ERR_INVALID: not an id. Any version is decoded: the caller compares. */
gantry_result ctl_id_decode(const struct gantry_unique_id *in, struct ctl_id *ret);
bool ctl_id_is_fixed(const struct ctl_id *id); /* gantry_ctl_fixed_id: it has no key */

/* ---- the payloads of hello and answer ---- */

#define CTL_WAIT_FOREVER UINT32_MAX
struct ctl_hello {
	uint64_t comm_id;
	uint64_t process; /* random, the same for all ranks of one process */
	int rank, nranks;
	uint32_t timeout_ms;	 /* after which this rank gives up a silent hub */
	uint32_t wait_ms;	 /* how much longer it waits for the others to come; CTL_WAIT_FOREVER: no limit */
	struct gantry_addr addr; /* where other ranks reach it; family 0: nowhere */
	enum inet_resume resume;
	uint32_t generation; /* which socket of this membership it is; 0: it joins */
	uint64_t host;	     /* gantry_host_id */
	uint64_t received;   /* frames of the hub that have come, signs of life not counted */
	struct inet_target to;
};
void ctl_hello_encode(const struct ctl_hello *h, uint8_t out[CTL_HELLO_SIZE]);
/* ERR_PROTOCOL: it is none. Of another version only the communicator is known, which stays where it is. */
gantry_result ctl_hello_decode(const uint8_t *in, size_t n, int version, struct ctl_hello *ret);

struct ctl_accepted {
	uint32_t timeout_ms; /* after which the hub gives up a silent rank */
	int same_process;    /* as the hub: one clock */
	int resumes;	     /* the connection outlives its sockets */
	uint64_t received;   /* as in hello, of the rank's frames */
	uint64_t first;	     /* number of the first frame that the hub sends on this socket */
};
void ctl_accepted_encode(const struct ctl_accepted *a, uint8_t out[CTL_ACCEPTED_SIZE]);
gantry_result ctl_accepted_decode(const uint8_t *in, size_t n, struct ctl_accepted *ret);

/* ---- ranks by their numbers, in order; the body of LEFT ---- */

struct ctl_range {
	int first, count;
};
void ctl_ranges_encode(const struct ctl_range *ranges, int n, uint8_t *out); /* 8 bytes each */
/* Calls `each` for every rank of them. ERR_PROTOCOL: they are none of so many ranks, and nothing was called. */
gantry_result ctl_ranges_decode(const uint8_t *in, size_t size, int nranks, void (*each)(void *ctx, int rank),
				void *ctx);

/* ---- READY ---- */

/* For one rank: which ranks live in the hub's process; and the addresses of those to which it sends in the rounds of an
 * exchange (ctl_bruck_to), or none if allgathers go through the hub (addrs NULL, else those of all ranks). */
size_t ctl_ready_size(int nranges, const struct gantry_addr *addrs, int nranks);
void ctl_ready_encode(int rank, int nranks, const struct ctl_range *ranges, int nranges,
		      const struct gantry_addr *addrs, uint8_t *out);
/* Calls `with_hub` for each rank of the ranges. ERR_PROTOCOL: it is none for so many ranks; nothing was called. */
gantry_result ctl_ready_decode(const uint8_t *in, size_t n, int nranks, void (*with_hub)(void *ctx, int rank),
			       void *ctx, struct gantry_addr ret_addrs[CTL_ROUNDS_MAX], int *ret_naddrs);

/* ---- a connection between two ranks: the payload of its hello. The answer's is a byte: it has the block already ---- */

struct ctl_exchange_hello {
	uint64_t comm_id, number; /* of the allgather */
	int from, to;
};
void ctl_exchange_hello_encode(const struct ctl_exchange_hello *h, uint8_t out[CTL_EXCHANGE_SIZE]);
gantry_result ctl_exchange_hello_decode(const uint8_t *in, size_t n, struct ctl_exchange_hello *ret);

#endif
