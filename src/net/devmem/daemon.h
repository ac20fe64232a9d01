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

#include <stdint.h>
#include <sys/types.h>

#include "gantry/result.h"
#include "net/devmem/session.h"

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
