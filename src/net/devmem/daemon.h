/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The privileged daemon's protocol: binding and steering for processes without CAP_NET_ADMIN.
 *
 * A unix socket of type SEQPACKET, a connection for each binding, fixed-size requests and replies:
 *
 *   BIND     with the dma-buf as SCM_RIGHTS: the NIC is set up and bound. Once per connection.
 *   STEER    with a connected TCP socket as SCM_RIGHTS: whoever has it may steer it. Its rule's location comes back.
 *   UNSTEER  a location that STEER gave on this connection
 *
 * When the connection ends, whatever the reason, everything that was done for it is taken back.
 */
#ifndef GANTRY_NET_DEVMEM_DAEMON_H
#define GANTRY_NET_DEVMEM_DAEMON_H

#include <net/if.h>
#include <stdint.h>
#include <sys/types.h>

#include "gantry/result.h"
#include "net/devmem/session.h"

enum { DEVMEM_DAEMON_VERSION = 1, DEVMEM_DAEMON_CLIENTS = 64, DEVMEM_DAEMON_TEXT = 256 };
#define DEVMEM_DAEMON_MAGIC 0x47445648u /* "GDVH" */
enum devmem_daemon_op { DEVMEM_DAEMON_BIND = 1, DEVMEM_DAEMON_STEER, DEVMEM_DAEMON_UNSTEER };

/* On the wire: all integers little-endian, in the order of the fields, texts in fields of fixed size. */
struct devmem_request {
	uint32_t op;	    /* enum devmem_daemon_op */
	uint32_t queues;    /* BIND */
	uint32_t location;  /* UNSTEER */
	char nic[IFNAMSIZ]; /* BIND */
};
struct devmem_reply {
	gantry_result result;
	uint32_t dmabuf_id;	       /* BIND */
	uint32_t location;	       /* STEER */
	char text[DEVMEM_DAEMON_TEXT]; /* of an error */
};
enum {
	DEVMEM_REQUEST_SIZE = 5 * 4 + IFNAMSIZ + 4, /* magic, version, op, queues, location, nic, 0 */
	DEVMEM_REPLY_SIZE = 5 * 4 + DEVMEM_DAEMON_TEXT,
};
_Static_assert(DEVMEM_REQUEST_SIZE == 40 && DEVMEM_REPLY_SIZE == 276, "both ends are of one build or of two");

void devmem_request_encode(const struct devmem_request *q, uint8_t bytes[DEVMEM_REQUEST_SIZE]);
/* NULL: fine; else what is wrong with these bytes (static text). has_fd: a file came with them. */
const char *devmem_request_decode(const uint8_t *bytes, size_t len, int has_fd, struct devmem_request *ret_request);
void devmem_reply_encode(const struct devmem_reply *a, uint8_t bytes[DEVMEM_REPLY_SIZE]);
/* 0, or -1: not a reply, or of another version. */
int devmem_reply_decode(const uint8_t *bytes, size_t len, struct devmem_reply *ret_reply);

/* The client's side. */
struct devmem_daemon; /* a connection */
gantry_result devmem_daemon_bind(const char *path, const struct devmem_session_config *c, uint32_t *ret_dmabuf_id,
				 struct devmem_daemon **ret_daemon);
gantry_result devmem_daemon_steer(struct devmem_daemon *h, int fd, uint32_t *ret_location);
gantry_result devmem_daemon_unsteer(struct devmem_daemon *h, uint32_t location);
void devmem_daemon_close(struct devmem_daemon *h); /* NULL is fine; the daemon takes everything back */

/* The daemon's side: serves until *stop, which is atomic, is not 0 (looked at every 100 ms at least, and after a signal). */
struct devmem_daemon_config {
	const char *path;
	const char *nic; /* only this one; NULL: any */
	uid_t uid;	 /* who may connect, besides root and the daemon's own user */
	int has_uid;
};
gantry_result devmem_daemon_serve(const struct devmem_daemon_config *c, const int *stop);

#endif
