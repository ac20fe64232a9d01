/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of the control plane. All integers are little-endian. A connection between a rank and the hub carries
 * frames: a head of CTL_HEAD_SIZE bytes and `size` bytes of body.
 *
 *    rank                                       hub
 *     | HELLO: version, who, nonce --------------> |   a stranger until its proof: small bodies, one deadline
 *     | <-- CHALLENGE: nonce, MAC over both ------ |   the hub proves itself first
 *     | PROOF: MAC over all of that -------------> |
 *     | <-- ACCEPTED (or REFUSED: cause, text) --- |
 *     | <-- TIME, a few times -------------------> |   the clock of the hub
 *     | <-- READY: all are here, who lives where - |
 *     | <-- LIFE, answered by LIFE --------------> |   the hub asks every timeout/32
 *     | <-- MESSAGE, CALL, REPLY ----------------> |   relayed to rank `to`
 *     | GATHER ----------------------------------> |   <- GATHERED to all, once all gave theirs
 *     | <-- LOST, LEFT: news of other ranks ------ |
 *     | LEAVE -----------------------------------> |   or <- BYE: the hub's process ends
 *
 * Without OpenSSL there is no HMAC: hub and rank each show their half of the key instead.
 *
 * Everything here is a pure function over bytes: nothing touches a socket, so the fuzzer reaches all of it. Decoders
 * never trust a length; whatever they accept is in range.
 */
#ifndef GANTRY_COMM_CTL_WIRE_H
#define GANTRY_COMM_CTL_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "comm/ctl.h"
#include "inet/nic.h"

#define CTL_MAGIC "GCTL" /* every frame begins with it */

enum {
	CTL_MAGIC_SIZE = 4,
	CTL_VERSION = 1,
	CTL_HEAD_SIZE = 32,
	CTL_HELLO_SIZE = 128,
	CTL_CHALLENGE_SIZE = 64,
	CTL_CHALLENGE_MAC = 32, /* where the hub's MAC stands; it covers what is before it */
	CTL_ACCEPTED_SIZE = 8,
	CTL_KEY_SIZE = 32,
	CTL_NONCE_SIZE = 16,
	CTL_MAC_SIZE = 32,
	CTL_WHO_SIZE = 48,
	CTL_BUILD_SIZE = 24,
	CTL_TEXT_MAX = 512,
	CTL_STRANGER_MAX = 256, /* the largest body taken from somebody who has not proved himself */
	CTL_RANKS_MAX = 32768,	/* times the largest part of an allgather still fits 32 bits */
};

/* X(NAME, largest body) */
/* clang-format off */
#define CTL_KINDS(X)                            \
	X(HELLO,     CTL_STRANGER_MAX)          \
	X(CHALLENGE, CTL_STRANGER_MAX)          \
	X(PROOF,     CTL_MAC_SIZE)              \
	X(ACCEPTED,  CTL_ACCEPTED_SIZE)         \
	X(REFUSED,   CTL_TEXT_MAX)              \
	X(TIME,      8)                         \
	X(READY,     CTL_RANKS_MAX / 8)         \
	X(LIFE,      0)                         \
	X(MESSAGE,   GANTRY_CTL_MESSAGE_MAX)    \
	X(CALL,      GANTRY_CTL_MESSAGE_MAX)    \
	X(REPLY,     GANTRY_CTL_MESSAGE_MAX)    \
	X(GATHER,    GANTRY_CTL_MESSAGE_MAX)    \
	X(GATHERED,  UINT32_MAX)                \
	X(LOST,      CTL_TEXT_MAX)              \
	X(LEAVE,     CTL_TEXT_MAX)              \
	X(LEFT,      0)                         \
	X(BYE,       0)
/* clang-format on */

enum ctl_kind {
	CTL_NONE,
#define CTL_KIND_ENUM(name, max) CTL_##name,
	CTL_KINDS(CTL_KIND_ENUM)
#undef CTL_KIND_ENUM
		CTL_KIND_COUNT
};
const char *ctl_kind_name(uint32_t kind);

struct ctl_head {
	uint32_t kind;
	int32_t from, to; /* ranks; -1: the hub. LOST, LEFT: from is whom it is about */
	uint64_t
		tag; /* MESSAGE: the user's. CALL, REPLY: number of the call. GATHER*: its number. TIME: rank's clock */
	uint32_t size;	 /* of the body */
	uint32_t result; /* a gantry_result. CALL: what is asked, the user's number */
};
void ctl_head_encode(const struct ctl_head *h, uint8_t out[CTL_HEAD_SIZE]);
/* ERR_PROTOCOL for anything this version does not send. */
gantry_result ctl_head_decode(const uint8_t in[CTL_HEAD_SIZE], struct ctl_head *ret);

/* Cuts a stream into frames. Zeroed except for the limits it is ready for use; ctl_parser_free drops half a frame. */
struct ctl_parser {
	uint32_t max_body;     /* larger ones are an error */
	uint32_t max_gathered; /* the same for GATHERED */
	uint32_t have;	       /* bytes of the head, or of the body once there is one */
	uint8_t raw[CTL_HEAD_SIZE];
	struct ctl_head head;
	uint8_t *body; /* owned; a body that came in pieces */
};
/* A whole frame; the body is borrowed. Non-zero: take no more. */
typedef int (*ctl_frame_fn)(void *ctx, const struct ctl_head *h, const uint8_t *body);
/* ERR_PROTOCOL, ERR_NOMEM; never logs. */
gantry_result ctl_parse(struct ctl_parser *p, const uint8_t *in, size_t n, ctl_frame_fn frame, void *ctx);
void ctl_parser_free(struct ctl_parser *p);

/* A text out of foreign bytes: ended, cut to `room`, and without bytes that could forge log lines. */
void ctl_get_text(char *out, size_t room, const uint8_t *in, size_t n);

/* ---- the unique id ---- */

struct ctl_id {
	uint16_t version;
	uint64_t comm_id;
	struct gantry_addr addr; /* without a scope: that is local to a host */
	uint8_t key[CTL_KEY_SIZE];
};
void ctl_id_encode(const struct ctl_id *id, struct gantry_unique_id *out);
/* ERR_INVALID: not an id. Any version is decoded: the caller compares. */
gantry_result ctl_id_decode(const struct gantry_unique_id *in, struct ctl_id *ret);

/* ---- the hand-shake ---- */

enum ctl_auth { CTL_AUTH_KEY, CTL_AUTH_HMAC, CTL_AUTH_SECRET, CTL_AUTHS };

struct ctl_hello {
	uint32_t version; /* of another version nothing else is known */
	uint32_t auth;	  /* enum ctl_auth */
	uint64_t comm_id;
	uint8_t nonce[CTL_NONCE_SIZE];
	uint64_t process; /* random, the same for all ranks of one process */
	int rank, nranks;
	uint32_t timeout_ms; /* after which this rank gives up a silent hub */
	uint32_t wait_ms;    /* how much longer it waits for the others to come */
	char build[CTL_BUILD_SIZE];
	char who[CTL_WHO_SIZE]; /* "hostname pid 123" */
};
void ctl_hello_encode(const struct ctl_hello *h, uint8_t out[CTL_HELLO_SIZE]);
gantry_result ctl_hello_decode(const uint8_t *in, size_t n, struct ctl_hello *ret);

struct ctl_challenge {
	uint32_t version;
	uint8_t nonce[CTL_NONCE_SIZE];
	uint8_t mac[CTL_MAC_SIZE];
};
void ctl_challenge_encode(const struct ctl_challenge *c, uint8_t out[CTL_CHALLENGE_SIZE]);
gantry_result ctl_challenge_decode(const uint8_t *in, size_t n, struct ctl_challenge *ret);

struct ctl_accepted {
	uint32_t timeout_ms; /* after which the hub gives up a silent rank */
	int same_process;    /* as the hub: one clock */
};
void ctl_accepted_encode(const struct ctl_accepted *a, uint8_t out[CTL_ACCEPTED_SIZE]);
gantry_result ctl_accepted_decode(const uint8_t *in, size_t n, struct ctl_accepted *ret);

/* The key that both sides prove: the id's, mixed with the secret if there is one. */
gantry_result ctl_key_mix(const uint8_t key[CTL_KEY_SIZE], const char *secret, uint8_t ret_key[CTL_KEY_SIZE]);
/* Over the bytes that went over the wire; `hub` picks the role, so that one proof cannot stand for the other. */
gantry_result ctl_prove(const uint8_t key[CTL_KEY_SIZE], int hub, const uint8_t hello[CTL_HELLO_SIZE],
			const uint8_t challenge[CTL_CHALLENGE_SIZE], uint8_t ret_mac[CTL_MAC_SIZE]);

#endif
