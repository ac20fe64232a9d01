/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening sockets: one per address in a process, whatever the number of protocols that are served there. A firewall,
 * a port mapping (GANTRY_ADVERTISE) or a range of one port (GANTRY_PORT_RANGE) then needs to know a single port.
 *
 * A protocol is a port_user, a client of the loop. Every user accepts from the sockets that it has opened,
 * so a connection may reach the wrong one. port_sort looks at the first bytes, without reading them, and passes the
 * connection on to the user whose magic they are.
 *
 * Locks: one of this module's own, always the last one taken. Users call in here with their locks held and are called
 * back (wake) only to write to an eventfd.
 */
#ifndef GANTRY_INET_PORT_H
#define GANTRY_INET_PORT_H

#include "base/list.h"
#include "gantry/result.h"
#include "inet/nic.h"

enum { PORT_MAGIC_MAX = 8, PORT_GIVEN_MAX = 256 };

struct port_user {
	const char *magic; /* the first bytes of every connection; no magic is the beginning of another one */
	size_t magic_size; /* at most PORT_MAGIC_MAX */
	/* Something was given to it. Called only while it has a port open, from other users' threads. */
	void (*wake)(void);

	/* The module's. */
	struct gantry_list node;
	int refs; /* ports it has open */
	int given[PORT_GIVEN_MAX];
	int ngiven;
};

/*
 * Listens on `addr` and its port, or, if it has none, one of GANTRY_PORT_RANGE; or joins whoever in this process listens
 * on that address (and port) already.
 * *ret_fd is the caller's own descriptor of the socket, non-blocking: it closes that before port_close.
 */
gantry_result port_open(struct port_user *u, const struct gantry_addr *addr, int *ret_fd,
			struct gantry_addr *ret_bound);
void port_close(struct port_user *u, const struct gantry_addr *bound);

enum port_sorted {
	PORT_OURS,  /* read it. Also if nobody knows these bytes, or whose they are cannot take it */
	PORT_WAIT,  /* too little has come to tell; epoll says when there is more */
	PORT_GIVEN, /* another user has it now, by a descriptor of its own: close this one */
};
/* An accepted connection is readable, and nothing of it was read so far. */
enum port_sorted port_sort(const struct port_user *self, int fd);
/* How many were given to this user and not taken yet. */
int port_waiting(const struct port_user *u);
/* A connection that was given to this user, which owns it now; -1: none. Non-blocking. */
int port_take(struct port_user *u, struct gantry_addr *ret_peer, struct gantry_addr *ret_local);

#endif
