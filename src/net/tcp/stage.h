/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from device memory through pinned host memory: one stage per device and process, shared and counted.
 *
 * A message takes a block of its size, and the device copies it there (never while anybody waits); the link sends the
 * block's bytes like any other memory once the copy is done. The block is free again when the message is, so what is in
 * flight is bounded by GANTRY_UNPACK_STAGE: without a free block a send has to come again later. Blocks are made with
 * the stage; nothing is allocated for a message.
 *
 * Blocks lie in a list by address. The search for room begins behind the block that was taken last: messages come and
 * go in about the same order, so that is where it is.
 *
 * Threads: any; a lock of its own, the innermost of all.
 */
#ifndef GANTRY_NET_TCP_STAGE_H
#define GANTRY_NET_TCP_STAGE_H

#include <stdint.h>

#include "base/list.h"
#include "gantry/result.h"

struct gantry_device;
struct tcp_link;
struct tcp_stage;

enum { STAGE_BLOCKS = 512, STAGE_UNIT = 4096 };

struct tcp_stage_block {
	struct gantry_list node;  /* among the blocks in use, by address; or among the idle ones */
	struct gantry_list drain; /* given back while the copy was under way: not free before that is over */
	uint64_t at, size;
	uint8_t *data;	 /* where the CPU finds it */
	uint64_t ticket; /* of its copy */
	int copying;
};

/* The stage of a device, made when it is first asked for. */
gantry_result tcp_stage_get(struct gantry_device *dev, struct tcp_stage **ret_stage);
void tcp_stage_put(struct tcp_stage *s); /* NULL is fine. The last one waits for copies: no lock held */
/* Begins to copy a message (size > 0) into a block. AGAIN: none is free. ERR_LIMIT: no block can be that large. */
gantry_result tcp_stage_copy(struct tcp_stage *s, const void *src, uint64_t size, struct tcp_stage_block **ret_block);
gantry_result tcp_stage_ready(struct tcp_stage *s, struct tcp_stage_block *b); /* AGAIN: the copy is under way */
void tcp_stage_give(struct tcp_stage *s, struct tcp_stage_block *b);
/* Bytes of blocks that are not free, for tests and the log. */
uint64_t tcp_stage_taken(struct tcp_stage *s);

/* link_send.c. The link will send memory of this device. */
gantry_result tcp_link_stage(struct tcp_link *l, struct gantry_device *dev);
/* Messages whose bytes have come are queued, in posting order. Takes mu. */
void tcp_stage_progress(struct tcp_link *l);
/* The direction is closed: all blocks go back, and the stage is left in stage_left. mu held; what is in flight refers
 * to none of them any more. */
void tcp_stage_close(struct tcp_link *l);

#endif
