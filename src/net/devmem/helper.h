/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The privileged helper's protocol: binding and steering for processes without CAP_NET_ADMIN.
 *
 * A unix socket of type SEQPACKET, a connection for each binding, fixed-size requests and replies:
 *
 *   BIND     with the dma-buf as SCM_RIGHTS: the NIC is set up and bound. Once per connection.
 *   STEER    with a connected TCP socket as SCM_RIGHTS: whoever has it may steer it. Its rule's location comes back.
 *   UNSTEER  a location that STEER gave on this connection
 *
 * When the connection ends, whatever the reason, everything that was done for it is taken back.
 */
#ifndef GANTRY_NET_DEVMEM_HELPER_H
#define GANTRY_NET_DEVMEM_HELPER_H

#include <net/if.h>
#include <stdint.h>
#include <sys/types.h>

#include "gantry/result.h"
#include "net/devmem/sys.h"

enum { DEVMEM_HELPER_VERSION = 1, DEVMEM_HELPER_CLIENTS = 64, DEVMEM_HELPER_TEXT = 256 };
#define DEVMEM_HELPER_MAGIC 0x47445648u /* "GDVH" */
enum devmem_helper_op { DEVMEM_HELPER_BIND = 1, DEVMEM_HELPER_STEER, DEVMEM_HELPER_UNSTEER };

struct devmem_request {
	uint32_t magic, version;
	uint32_t op;	    /* enum devmem_helper_op */
	uint32_t queues;    /* BIND */
	uint32_t location;  /* UNSTEER */
	char nic[IFNAMSIZ]; /* BIND */
	uint32_t zero;	    /* reserved: must be 0 */
};
struct devmem_reply {
	uint32_t magic, version;
	int32_t result;		       /* gantry_result */
	uint32_t dmabuf_id;	       /* BIND */
	uint32_t location;	       /* STEER */
	char text[DEVMEM_HELPER_TEXT]; /* of an error */
};
_Static_assert(sizeof(struct devmem_request) == 40, "both ends are of one build or of two");
_Static_assert(sizeof(struct devmem_reply) == 276, "both ends are of one build or of two");

/* NULL: fine; else what is wrong with these bytes (static text). has_fd: a file came with them. */
const char *devmem_request_check(const void *bytes, size_t len, int has_fd);

/* The client's side. */
struct devmem_helper; /* a connection */
gantry_result devmem_helper_bind(const char *path, const char *nic, int dmabuf, uint32_t queues,
				 uint32_t *ret_dmabuf_id, struct devmem_helper **ret_helper);
gantry_result devmem_helper_steer(struct devmem_helper *h, int fd, uint32_t *ret_location);
gantry_result devmem_helper_unsteer(struct devmem_helper *h, uint32_t location);
void devmem_helper_close(struct devmem_helper *h); /* NULL is fine; the helper takes everything back */

/* The helper's side: serves until *stop is not 0 (checked every 100 ms at least, and after a signal). */
struct devmem_helper_config {
	const char *path;
	const char *nic; /* only this one; NULL: any */
	uid_t uid;	 /* who may connect, besides root and the helper's own user */
	int has_uid;
};
gantry_result devmem_helper_serve(const struct devmem_helper_config *c, const volatile int *stop);

#endif
