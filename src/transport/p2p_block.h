/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of one end that the other end's kernels store into.
 *
 *   page 0   the FIFO's words that this end waits on, and a word that says that the peer has opened the block
 *   then     a receiving end's rings
 *
 * Within a process the other end holds the block itself (shared.h); another process opens it by a handle of the device.
 */
#ifndef GANTRY_TRANSPORT_P2P_BLOCK_H
#define GANTRY_TRANSPORT_P2P_BLOCK_H

#include "transport/ends.h"
#include "transport/shared.h"

struct p2p_words {
	struct gantry_fifo fifo;
	uint64_t opened;
};

struct p2p_block {
	struct gantry_shared shared;  /* first */
	struct gantry_device *device; /* counted: the block may outlive its communicator */
	char *base;		      /* as the device addresses it */
	size_t size;
};

/* What the peer needs to find a block; travels in connect infos. */
struct p2p_block_info {
	struct gantry_token token;	 /* within the process */
	struct gantry_ipc_handle memory; /* from elsewhere */
};

gantry_result p2p_block_create(const struct gantry_connector *c, size_t size, struct p2p_block **ret_block);
gantry_result p2p_block_describe(const struct gantry_connector *c, struct p2p_block *b,
				 struct p2p_block_info *ret_info);
/* Whether the peer has opened it: OK or AGAIN. */
gantry_result p2p_block_is_opened(const struct gantry_connector *c, struct p2p_block *b);
void p2p_block_put(struct p2p_block *b); /* NULL is fine */

/* The peer's block. Zeroed is none. */
struct p2p_far {
	char *base;
	struct p2p_block *block; /* counted; NULL: of another process */
};
gantry_result p2p_far_open(const struct gantry_connector *c, const struct p2p_block_info *info,
			   struct p2p_far *ret_far);
void p2p_far_close(const struct gantry_connector *c, struct p2p_far *far);

#endif
