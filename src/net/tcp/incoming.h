/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection that was accepted and is not a lane yet: shared by incoming.c (its life, as a stranger and after) and
 * verdict.c (what its hello is answered with, and what becomes of it). The engine's mu is held in all of this.
 *
 *   READ_HELLO ── cookie, no secret ────────────────────────> proved ──> lane, or a direction of a link that is there
 *       └──────── cookie, secret: challenge ──> READ_PROOF ────┘ └─────> DEFERRED, until our own hello is answered
 *
 * Until it is proved it is a stranger, whatever it says: it is counted, it may hear why it is refused, and nobody else
 * hears of it.
 */
#ifndef GANTRY_NET_TCP_INCOMING_H
#define GANTRY_NET_TCP_INCOMING_H

#include "net/tcp/engine.h"

enum incoming_state { READ_HELLO, READ_PROOF, DEFERRED };

struct tcp_incoming {
	struct inet_source source;
	struct gantry_list node; /* in the engine's list, the oldest first */
	struct gantry_addr addr;
	uint64_t since, deadline; /* ns */
	enum incoming_state state;
	int proved; /* it knows what a peer knows: the secret, or, where there is none, the listener's cookie */
	uint32_t got;
	uint8_t in[WIRE_HELLO_SIZE];
	uint8_t raw_hello[WIRE_HELLO_SIZE],
		raw_welcome[WIRE_WELCOME_SIZE]; /* as they went over the wire, for the MACs */
	struct wire_hello hello;
	uint64_t listener;
	int nic;
};

/* incoming.c */
void tcp_incoming_free(struct tcp_incoming *in);
/* It is no peer: counted, and gone. */
void tcp_incoming_stranger(struct tcp_incoming *in, const char *why);
/* It is one: a place for another stranger is free, and it may wait for its answer as long as connecting may take. */
void tcp_incoming_proved(struct tcp_incoming *in);

/* verdict.c: all of its hello, or of its proof, is in `in`. Frees it, keeps it waiting, or makes a lane of it. */
void tcp_incoming_hello(struct tcp_incoming *in);
void tcp_incoming_proof(struct tcp_incoming *in);

#endif
