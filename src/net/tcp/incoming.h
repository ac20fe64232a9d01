/*
 * A connection that was accepted and is not a lane yet: shared by incoming.c (its life, as a stranger and after) and
 * verdict.c (what its hello is answered with, and what becomes of it). The engine's mu is held in all of this.
 */
#ifndef GANTRY_NET_TCP_INCOMING_H
#define GANTRY_NET_TCP_INCOMING_H

#include "net/tcp/engine.h"

enum incoming_state { READ_HELLO, DEFERRED, READ_PROOF };

struct tcp_incoming {
	struct tcp_source source;
	struct gantry_list node;
	struct gantry_addr addr;
	uint64_t deadline;
	enum incoming_state state;
	uint32_t got;
	uint8_t in[WIRE_HELLO_SIZE];
	uint8_t raw_hello[WIRE_HELLO_SIZE], raw_welcome[WIRE_WELCOME_SIZE];
	struct wire_hello hello;
	uint64_t listener; /* 0: still a stranger */
	int sharing;	   /* it was told to share the link `session`, and has not proved its right to it yet */
	uint8_t session[WIRE_SESSION_SIZE];
	int nic;
};

/* incoming.c */
void tcp_incoming_free(struct tcp_incoming *in);
/* It is no peer: counted, and gone. */
void tcp_incoming_stranger(struct tcp_incoming *in, const char *why);
/* The link that it was told to share; NULL: gone meanwhile. */
struct tcp_link *tcp_incoming_promised(const struct tcp_incoming *in);

/* verdict.c: all of its hello, or of its proof, is in `in`. Frees it, keeps it waiting, or makes a lane of it. */
void tcp_incoming_hello(struct tcp_incoming *in);
void tcp_incoming_proof(struct tcp_incoming *in);

#endif
