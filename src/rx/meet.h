/*
 * Two rx meet: a rendezvous over a TCP connection of its own exchanges hellos, then the network's connections are made.
 *
 *   the one that connects:  DIAL -> SAY -> HEAR -> NET -> READY
 *   the one that accepts:           HEAR -> SAY -> NET -> READY
 *
 * Every state is non-blocking and has the meeting's deadline. A byte on the rendezvous connection says "I am ready", so
 * that an end of it before that means that the peer is gone.
 */
#ifndef GANTRY_RX_MEET_H
#define GANTRY_RX_MEET_H

#include "rx/rx.h"

enum meeting_state { MEET_DIAL, MEET_HEAR, MEET_SAY, MEET_NET, MEET_READY, MEET_FAILED };

struct meeting {
	struct gantry_list node;
	struct gantry_rx *rx; /* borrowed */
	enum meeting_state state;
	int dials; /* this side connects */
	int fd;	   /* -1 while there is none */
	struct gantry_addr to;
	uint64_t deadline, retry_at; /* ns */
	size_t at;		     /* bytes of the hello that were said or heard */
	uint8_t hello[RX_HELLO_SIZE];
	uint8_t handle[GANTRY_NET_HANDLE_SIZE]; /* the peer's; the network keeps its place in it */
	struct gantry_rx_conn *conn;		/* owned until READY */
	void *listen;				/* of the network, owned */
	int peer_ready;
	int stranger; /* FAILED: it never spoke our language */
	gantry_result error;
	char text[RX_TEXT];
};

/* fd: of an accepted connection, owned then; -1: dial `to`. */
gantry_result meeting_create(struct gantry_rx *rx, int fd, const struct gantry_addr *peer, uint64_t deadline,
			     struct meeting **ret_meeting);
/* One step. Never blocks, never fails: state says. */
void meeting_step(struct meeting *m);
void meeting_destroy(struct meeting *m); /* NULL is fine */

/* "host:port" to an address. listening: the host may be empty, and the port 0. */
gantry_result meeting_address(const char *text, int listening, struct gantry_addr *ret_addr);

struct gantry_rx_listener {
	struct gantry_list node; /* in rx->listeners */
	struct gantry_rx *rx;	 /* borrowed */
	int fd;
	struct gantry_list meetings;
	int nmeetings;
	struct gantry_ratelimit quiet;
	char address[GANTRY_ADDR_TEXT];
};

#endif
