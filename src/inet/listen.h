/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening, once for the process: a port per address, shared and counted, whatever the number of protocols that are
 * served there. A firewall, a port mapping (GANTRY_ADVERTISE) or a range of one port (GANTRY_PORT_RANGE) then needs to
 * know a single one. A connection is accepted once; its hello (handshake.h) names the protocol whose service has it
 * from then on. A listener whose address its user names (gantry/rx.h) has a port of its own instead (inet_port_open).
 *
 * Until it has proved itself a connection is a stranger's, whatever it says. A stranger costs one small object, for at
 * most 5 s. There are at most 256 of them: when all places are taken, those that have had theirs for 0.1 s make room,
 * the oldest first, and the others wait in the kernel's backlog. A peer proves itself within a round trip, so a crowd
 * of strangers delays peers and does not keep them out; one that was crowded out, or was too slow, dials again.
 * Strangers are counted, and lines about them are written at most once a second. Where a port has one owner, and no
 * secret, any hello makes a peer: such a port has at most 256 connections that wait for something, with the same rule.
 *
 * All of it under loop_mu, on the loop's thread.
 */
#ifndef GANTRY_INET_LISTEN_H
#define GANTRY_INET_LISTEN_H

#include "inet/handshake.h"
#include "inet/loop.h"
#include "inet/nic.h"

struct inet_conn;

/* A protocol that is served here. The entries are called with the lock, and may free the connection. */
struct inet_service {
	struct inet_protocol protocol;
	/* The hello has arrived: call inet_conn_challenge or inet_conn_refuse. If it is of another version, only the
	 * parts of the payload whose place is fixed in all versions may be read. */
	void (*hello)(struct inet_conn *c);
	/* It is a peer: inet_conn_accept or inet_conn_refuse, now or later. */
	void (*proved)(struct inet_conn *c);
	/* It was refused, left, or was too late: shake.error and shake.text say why, shake.proved whether it was a
	 * peer. It is freed after this. NULL: no matter. */
	void (*lost)(struct inet_conn *c);
	bool warns; /* about peers that fail to authenticate: the service cannot report them to its user in another
		     * way */
	/* The module's. */
	struct gantry_list node;
	int refs; /* ports that are open for it */
};

struct inet_port {
	struct inet_source source;
	struct gantry_list node;
	struct gantry_addr addr; /* bound */
	int refs, forks, paused;
	int conns;		   /* that have come in here and were not taken yet */
	struct inet_service *only; /* the one that it is for; NULL: it is shared */
	void *owner;		   /* only: the service's */
};

struct inet_conn {
	struct inet_source source;
	struct gantry_list node;      /* the oldest first */
	struct gantry_addr addr;      /* the peer's */
	struct inet_port *port;	      /* borrowed; NULL: it is not open any more */
	uint64_t since, deadline;     /* ns */
	struct inet_service *service; /* NULL before its hello, if the port is shared */
	uint64_t tag;		      /* the service's */
	struct inet_handshake shake;
};

/* Those that no service has taken yet. */
extern struct inet_arrivals {
	struct gantry_list conns;
	int strangers; /* of these: those that have not proved to be peers */
} inet_arrivals GUARDED_BY(loop_mu);

/* Connections refused before they proved to be peers, so far; relaxed. */
extern uint64_t inet_strangers;

/* Listens for the service on `addr` and its port, or, if it has none, one of GANTRY_PORT_RANGE; or shares the port of
 * another service of this process that already listens on that address (and port). */
gantry_result inet_port_get(struct inet_service *s, const struct gantry_addr *addr, struct inet_port **ret_port)
	REQUIRES(loop_mu);
/* Listens for the service at a port that is not shared: that of `addr`, or, if it has none, one of the kernel's choice. The
 * service has all its connections from the start: `lost` is called for each that comes to nothing. */
gantry_result inet_port_open(struct inet_service *s, const struct gantry_addr *addr, void *owner,
			     struct inet_port **ret_port) REQUIRES(loop_mu);
void inet_port_put(struct inet_service *s, struct inet_port *p) REQUIRES(loop_mu); /* NULL is fine */

void inet_conn_challenge(struct inet_conn *c, const struct inet_key *key) REQUIRES(loop_mu);
void inet_conn_refuse(struct inet_conn *c, gantry_result r, const char *fmt, ...) REQUIRES(loop_mu)
	__attribute__((format(printf, 3, 4)));
/* Ends it without a word to the peer. */
void inet_conn_drop(struct inet_conn *c, const char *why) REQUIRES(loop_mu);
/* False: it does not take its answer, and is gone. */
bool inet_conn_accept(struct inet_conn *c, const void *payload, size_t size) REQUIRES(loop_mu);
/* Its descriptor, and its seals, which are the caller's now (NULL: not wanted); frees the rest. */
int inet_conn_take(struct inet_conn *c, struct inet_seals *ret_seals) REQUIRES(loop_mu);
/* The next of those of the service that wait for their answer; after NULL: the oldest. NULL: no more. */
struct inet_conn *inet_conn_waiting(const struct inet_service *s, const struct inet_conn *after) REQUIRES(loop_mu);
/* The one of these with this tag. NULL: it is gone. */
struct inet_conn *inet_conn_tagged(const struct inet_service *s, uint64_t tag) REQUIRES(loop_mu);
/* Those with this tag are dropped: what they were for, or their key, is gone. */
void inet_conns_drop(const struct inet_service *s, uint64_t tag) REQUIRES(loop_mu);

#endif
