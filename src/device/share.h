/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that two ends of a connection share, whatever their devices: an allocation of the host device, a memfd
 * whose size is sealed, so that a process that maps it cannot be killed by another that shrinks it. It has no name in
 * any file system; when the last process that maps it is gone, so is the memory.
 *
 * One end makes it and the other one gets it: within the process by its number, from another process by its file, which
 * travels over a socket (SCM_RIGHTS). ipc_open of the host device is the short cut for two processes that see each
 * other's /proc: it needs no serving process. Here no /proc is needed, only a common network namespace.
 *
 * A process that offers memory listens on one abstract AF_UNIX socket with a random name, as long as it has offers. The
 * taker connects, presents its token (128 secret bits from the connect info) and is sent the file, if the kernel
 * confirms that it is the user that the offer is for. Other processes learn nothing: a connection of another user is
 * closed at once, as is one with a wrong token; a silent one is closed after a second, or earlier when others need its
 * place. A taker that was dropped by such a crowd simply reconnects. Nothing blocks; the offering process serves
 * whenever it checks whether its memory was taken.
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
/* Closes the descriptor: no further process can get the memory. */
void gantry_share_close_file(void *ptr);
/* Of this process. ERR_PEER_LOST: it is gone. */
gantry_result gantry_share_find(uint64_t id, void **ret_ptr);

/* An offer: owned by the creator of the memory. Zeroed: no offer. */
struct gantry_offer {
	struct gantry_list node; /* under share.c's lock, as given */
	void *memory;
	uint64_t user;
	uint8_t token[16];
	bool given;
};
gantry_result gantry_share_offer(struct gantry_offer *o, void *ptr, uint64_t user,
				 struct gantry_share_address *ret_address);
/* Serves connections at the socket. OK: this offer was taken; AGAIN: not yet. */
gantry_result gantry_share_serve(struct gantry_offer *o);
void gantry_share_withdraw(struct gantry_offer *o); /* offered, given or none: all are fine */

/* A taker of memory. Zeroed: a fresh one. */
struct gantry_taker {
	bool open; /* fd is there */
	int fd;
	uint64_t again_ns; /* not before this time */
};
/* One step. AGAIN: not yet, also when nothing listens there: whether the peer is alive is checked elsewhere. */
gantry_result gantry_share_take(struct gantry_taker *t, const struct gantry_share_address *from, uint64_t user,
				size_t size, void **ret_ptr);
void gantry_share_taker_close(struct gantry_taker *t);

#endif
