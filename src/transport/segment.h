/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A piece of shared memory: a memfd whose size is sealed, so that nobody who maps it can be killed by somebody else who
 * shrinks it. It has no name in any file system; when the last process that maps it is gone, so is the memory.
 *
 * One end of a connection makes it and the other one gets it: a thread of the same process by its token (shared.h),
 * another process by its file, which travels over a socket.
 *
 * Handing over. A process that offers segments listens on one abstract AF_UNIX socket with a random name, as long as it
 * has offers. Who wants a segment connects, presents its token (128 secret bits from the connect info) and is sent the
 * file, if the kernel says that he is the user that the offer is for. Strangers learn nothing: another user is shut out
 * at once; a wrong word as well; silence ends after a second, or earlier when others want the place. One who
 * was shut out by such a crowd simply comes again. Nothing blocks. A segment is given only once its maker has begun to
 * ask whether it was: then the maker's own part of connecting is done, and a taker that has it may be through with the
 * connection and gone before the maker looks again.
 */
#ifndef GANTRY_TRANSPORT_SEGMENT_H
#define GANTRY_TRANSPORT_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

#include "transport/shared.h"

struct gantry_segment {
	struct gantry_shared shared; /* first */
	char *base;
	size_t size;
	int fd; /* -1: closed, for it is no longer needed */
};

/* Zeroed. Its pages come with their first use, on the NUMA node of the calling thread: most connections of many use a
 * few of them. A machine without memory for them ends a process then, as it does with all memory that is not touched
 * before its use. */
gantry_result gantry_segment_create(size_t size, struct gantry_segment **ret_segment);
/* Maps a file of exactly this size that nobody can shrink. The file stays the caller's. */
gantry_result gantry_segment_map(int fd, size_t size, struct gantry_segment **ret_segment);
/* By the token of one that was created in this process, at the same addresses. AGAIN: its maker is not ready.
 * ERR_PEER_LOST: it is gone. */
gantry_result gantry_segment_find(const struct gantry_token *token, struct gantry_segment **ret_segment);
void gantry_segment_close_file(struct gantry_segment *s);
void gantry_segment_put(struct gantry_segment *s); /* NULL is fine */

/* Where a segment is to be had; travels in connect infos. */
struct gantry_handover_address {
	uint64_t name; /* of the socket; 0: none */
	struct gantry_token token;
};

/* An offer: owned by the end that makes the segment. */
struct gantry_offer {
	struct gantry_list node; /* under handover.c's lock, as are asked and given */
	struct gantry_segment *segment;
	uint64_t user;
	int asked, given;
};
gantry_result gantry_handover_offer(struct gantry_offer *o, struct gantry_segment *s, uint64_t user,
				    struct gantry_handover_address *ret_address);
/* One look. AGAIN: nobody has taken it yet. */
gantry_result gantry_handover_given(struct gantry_offer *o);
/* Offered, given or never offered (zeroed): all are fine. */
void gantry_handover_withdraw(struct gantry_offer *o);

/* One who wants a segment. Zeroed is a fresh one. */
struct gantry_taker {
	int open; /* fd is there */
	int fd;
	uint64_t again_ns; /* not before this time */
};
/* One step. AGAIN: not yet, also when nobody listens there: whether the peer is alive is known elsewhere. */
gantry_result gantry_handover_take(struct gantry_taker *t, const struct gantry_handover_address *from, uint64_t user,
				   size_t size, struct gantry_segment **ret_segment);
void gantry_handover_taker_close(struct gantry_taker *t);

#endif
