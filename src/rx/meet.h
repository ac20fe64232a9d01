/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous of two rx over a TCP connection of its own (wire.h), and then the network's connections.
 *
 *   connecting:  DIAL -> SHAKE -> NET -> READY
 *   accepting:   SHAKE -> PLACE -> SHAKE (what is left of the answer) -> NET -> READY
 *
 * Until PLACE a meeting of the accepting side is a socket and this struct: it has no connection, no listener of the
 * network, and nothing of ours has been told to the peer. The accepting side connects back to the handle in the peer's
 * offer only when the network has accepted the peer's own connection: one that says hello and nothing else makes it
 * dial nowhere. docs/design/0011 has the reasons.
 *
 * Every state is non-blocking and has the meeting's deadline. A byte on the rendezvous connection says "I am ready", so
 * that an end of it before that means that the peer is gone.
 */
#ifndef GANTRY_RX_MEET_H
#define GANTRY_RX_MEET_H

#include "inet/handshake.h"
#include "rx/rx.h"

enum meeting_state {
	MEET_DIAL,
	MEET_SHAKE,
	MEET_PLACE, /* until its listener has a place for it: meeting_place */
	MEET_NET,
	MEET_READY,
	MEET_FAILED,
};

struct meeting {
	struct gantry_list node;
	struct gantry_rx *rx; /* borrowed */
	enum meeting_state state;
	int dials; /* this side connects */
	int fd;	   /* -1 while there is none */
	struct gantry_addr to;
	uint64_t deadline, retry_at; /* ns */
	uint32_t failures;	     /* attempts */
	uint64_t since;		     /* ns: when it came, or got its place */
	struct inet_handshake shake;
	uint64_t id, peer_epoch;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE]; /* the peer's; the network keeps its place in it */
	struct gantry_rx_conn *conn;		/* owned until READY */
	void *listen;				/* of the network, owned */
	int peer_ready;
	int stranger; /* FAILED: because of the peer */
	gantry_result error;
	char text[RX_TEXT];
};

/* fd: of an accepted connection, owned then; -1: dial `to`. */
gantry_result meeting_create(struct gantry_rx *rx, int fd, const struct gantry_addr *peer, uint64_t deadline,
			     struct meeting **ret_meeting);
/* One step. Never blocks, never fails: state says. */
void meeting_step(struct meeting *m);
/* PLACE: it may have a connection and a listener of the network now, and is answered. */
void meeting_place(struct meeting *m) REQUIRES(rx_mu);
/* Does it hold a place, i.e. more than a socket and its struct? */
int meeting_placed(const struct meeting *m);
void meeting_destroy(struct meeting *m) REQUIRES(rx_mu); /* NULL is fine */

/* "host:port" to an address. listening: the host may be empty, and the port 0. */
gantry_result meeting_address(const char *text, int listening, struct gantry_addr *ret_addr);

struct gantry_rx_listener {
	struct gantry_list node; /* in rx->listeners */
	struct gantry_rx *rx;	 /* borrowed */
	int fd;
	struct gantry_list meetings; /* the oldest first */
	int nmeetings, nplaced;
	struct gantry_ratelimit quiet;
	char address[GANTRY_ADDR_TEXT];
};

#endif
