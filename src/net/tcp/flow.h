/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bulk lane whose payload lands in device memory, receiving side.
 *
 * Such a lane carries nothing but payload. What it is comes ahead on the control lane, in order: the next `length`
 * bytes of this lane belong there and there. Payload may overtake its header, because both are on sockets of their own.
 * Then the fragments of one receive wait, and the lane is not read before they are attributed: what the kernel has
 * brought is bounded by one batch, and linear bytes stay where they are until then.
 *
 * Locks: `chunks` belongs to link_mu, because the control lane fills it; all else to the lane's lane_rx_mu.
 * Tokens have a lock of their own.
 */
#ifndef GANTRY_NET_TCP_FLOW_H
#define GANTRY_NET_TCP_FLOW_H

#include <stdint.h>
#include <sys/types.h>

#include "net/devmem_rx.h"
#include "net/tcp/link.h"

enum {
	FLOW_LINEAR = 1 << 20, /* bytes of one receive, wherever they land: the kernel wants real memory behind them */
	FLOW_CHUNKS = 64,      /* pieces described and not complete, to begin with */
	FLOW_CHUNKS_MAX = 64 << 10,
};

/* A piece that was described. */
struct tcp_chunk {
	struct wire_piece piece;
	uint32_t left;
	struct tcp_recv *recv;
	struct tcp_buffer *buffer; /* NULL: not wanted any more */
};

struct tcp_flow {
	struct devmem_flow *flow;	/* owned: attached */
	const struct devmem_part *part; /* borrowed from the link's pool */
	struct devmem_tokens tokens;
	uint8_t *linear;   /* owned: FLOW_LINEAR */
	uint8_t *control;  /* owned: DEVMEM_CONTROL_SIZE */
	uint32_t at, skip; /* of the list: the first fragment that is not attributed, and how much of it is */
	struct devmem_list list;
	uint32_t dropped[DEVMEM_LIST_MAX]; /* tokens of those that are: the lane itself needs them no more */
	uint32_t ndropped;
	struct tcp_chunk *chunks GUARDED_BY(link_mu); /* owned: a ring of `room`, a power of two */
	uint32_t room GUARDED_BY(link_mu), head GUARDED_BY(link_mu), n GUARDED_BY(link_mu);
	uint64_t frags, plain_bytes; /* for the log */
};

/* The lane's socket is connected, the link has its pool; nothing was received on it yet. */
gantry_result tcp_flow_attach(struct tcp_lane *lane);
/* The NIC that the lane's packets go through. Borrowed: the network's. */
const char *tcp_lane_nic(const struct tcp_lane *lane);
void tcp_flow_free(struct tcp_lane *lane); /* before the socket is closed; NULL is fine */

/* DESCRIPTOR came on the control lane. -1: the link has failed. */
int tcp_flow_describe(struct tcp_link *l, const struct wire_piece *f) REQUIRES(link_mu);
/* The receiving side is closed: described data is not wanted any more. */
void tcp_flow_forget(struct tcp_lane *lane) REQUIRES(link_mu);

#endif
