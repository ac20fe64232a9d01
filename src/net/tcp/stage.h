/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from device memory through pinned host memory: one stage per device and process, shared and counted.
 *
 * A message takes a piece of the stage's pool (device/pinned.h), and the device copies it there (no thread waits for
 * the copy); the link sends the piece's bytes like any other memory once the copy is done. The piece is free again when
 * the
 * message is, so what is in flight is bounded by GANTRY_UNPACK_STAGE: without a free piece a send has to come again
 * later. A piece that is given back while its copy is under way is free when that is over.
 *
 * Threads: any; a lock of its own, the innermost of all.
 */
#ifndef GANTRY_NET_TCP_STAGE_H
#define GANTRY_NET_TCP_STAGE_H

#include <stdint.h>

#include "gantry/result.h"
#include "net/tcp/link.h"

struct gantry_device;
struct tcp_stage;

enum { STAGE_PIECES = 1024, STAGE_UNIT = 4096 };

/* The stage of a device, made when it is first asked for. */
gantry_result tcp_stage_get(struct gantry_device *dev, struct tcp_stage **ret_stage);
void tcp_stage_put(struct tcp_stage *s); /* NULL is fine. The last one waits for copies: no lock held */
/* Begins to copy a message (size > 0) into a piece. AGAIN: none is free. ERR_LIMIT: no piece can be that large. */
gantry_result tcp_stage_copy(struct tcp_stage *s, const void *src, uint64_t size, struct gantry_piece **ret_piece);
gantry_result tcp_stage_ready(struct tcp_stage *s, struct gantry_piece *b); /* AGAIN: the copy is under way */
void tcp_stage_give(struct tcp_stage *s, struct gantry_piece *b);

/* The link will send memory of this device. */
gantry_result tcp_link_stage(struct tcp_link *l, struct gantry_device *dev);
/* data is memory of the device whose stage the link has. ERR_LIMIT: larger than that. */
gantry_result tcp_link_isend_device(struct tcp_link *l, const void *data, size_t size, int tag, void **ret_request);
/* Messages whose bytes have come are queued, in posting order. */
void tcp_stage_progress(struct tcp_link *l) EXCLUDES(link_mu);
/* The piece of a send that is over, or was never posted. */
void tcp_stage_return(struct tcp_link *l, struct tcp_send *s);
/* The direction is closed: all pieces go back, and the stage is left in staging_left. What is in flight refers to none
 * of them any more. */
void tcp_stage_close(struct tcp_link *l) REQUIRES(link_mu);

#endif
