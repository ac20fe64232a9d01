/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that two ends of a connection share, whatever their devices: an allocation of the host device, a memfd
 * whose size is sealed, so that nobody who maps it can be killed by somebody else who shrinks it. It has no name in any
 * file system; when the last process that maps it is gone, so is the memory.
 *
 * One end makes it and the other one gets it: within the process by its number, from another process by its file, which
 * travels over a socket (SCM_RIGHTS). ipc_open of the host device is the short cut for two processes that see each
 * other's /proc: nobody has to serve there. Here no /proc is needed, only a common network namespace.
 *
 * A process that offers memory listens on one abstract AF_UNIX socket with a random name, as long as it has offers. Who
 * wants the memory connects, presents its token (128 secret bits from the connect info) and is sent the file, if the
 * kernel says that it is the user that the offer is for. Strangers learn nothing: another user is shut out at once; a
 * wrong word as well; silence ends after a second, or earlier when others want the place. One who was shut out by such
 * a crowd simply comes again. Nothing blocks; the offerer serves whenever it looks whether its memory was taken.
 */
#ifndef GANTRY_DEVICE_SHARE_H
#define GANTRY_DEVICE_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "gantry/result.h"

/* Where shared memory is to be had; travels in connect infos. */
struct gantry_share_address {
	uint64_t name; /* of the socket; 0: none */
	uint64_t id;   /* within the process */
	uint8_t token[16];
};
/* Zeroed. Its pages come with their first use, on the NUMA node of the calling thread: most connections of many use a
 * few of them. A machine without memory for them ends a process then, as it does with all memory that is not touched
 * before its use. */
gantry_result gantry_share_create(size_t size, void **ret_ptr, struct gantry_share_address *ret_address);
void gantry_share_put(void *ptr, bool made); /* made: by this end; else got from the other one */
/* Nobody else can get it any more; saves a descriptor. */
void gantry_share_close_file(void *ptr);
/* Of this process. ERR_PEER_LOST: it is gone. */
gantry_result gantry_share_find(uint64_t id, void **ret_ptr);

/* An offer: owned by the one who made the memory. Zeroed is none. */
struct gantry_offer {
	struct gantry_list node; /* under share.c's lock, as given */
	void *memory;
	uint64_t user;
	uint8_t token[16];
	bool given;
};
gantry_result gantry_share_offer(struct gantry_offer *o, void *ptr, uint64_t user,
				 struct gantry_share_address *ret_address);
/* Serves whoever is at the socket. OK: somebody has taken this one; AGAIN: nobody yet. */
gantry_result gantry_share_serve(struct gantry_offer *o);
void gantry_share_withdraw(struct gantry_offer *o); /* offered, given or none: all are fine */

/* One who wants memory. Zeroed is a fresh one. */
struct gantry_taker {
	bool open; /* fd is there */
	int fd;
	uint64_t again_ns; /* not before this time */
};
/* One step. AGAIN: not yet, also when nobody listens there: whether the peer is alive is known elsewhere. */
gantry_result gantry_share_take(struct gantry_taker *t, const struct gantry_share_address *from, uint64_t user,
				size_t size, void **ret_ptr);
void gantry_share_taker_close(struct gantry_taker *t);

#endif
