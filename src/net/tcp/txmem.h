/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from device memory without a copy: the NIC reads it itself (devmem TCP, or what stands for it).
 *
 * Memory is bound to the NICs of the connection when it is registered; where that cannot be, its messages go through
 * the stage (stage.h). Only bulk messages towards a side that receives into device memory go this way. Their lanes
 * carry payload only: no header has to find its place between calls that may be carried out late. When a lane changes
 * to messages of another kind, it waits until its calls are complete.
 *
 * A message is done when its receiver reports so, as with every other way of sending without a copy: then its bytes are
 * not needed any more, whatever the kernel still holds. Completions are read so that the kernel forgets about them.
 *
 * MSG_ZEROCOPY counts its calls on the same socket, so a link does one or the other.
 */
#ifndef GANTRY_NET_TCP_TXMEM_H
#define GANTRY_NET_TCP_TXMEM_H

#include <stdint.h>

#include "net/devmem.h"
#include "net/tcp/link.h"

struct tcp_txmem {
	struct gantry_list node; /* in the link's list; its mu */
	struct tcp_link *link;	 /* borrowed; NULL: its sending direction is closed */
	uint8_t *base;		 /* borrowed: the registration, widened to whole pages if the device exports it; never
				  * read here */
	uint64_t size;
	int n; /* NICs */
	const char *nics[GANTRY_NET_MAX_RAILS];
	struct devmem_tx *tx[GANTRY_NET_MAX_RAILS]; /* owned */
	uint8_t of_lane[WIRE_MAX_LANES];	    /* which of them */
};

/* A source that can send memory of `dev` on this link, or NULL: through the stage. */
const struct devmem_source_ops *tcp_txmem_source(const struct tcp_link *l, enum gantry_net_unpack kind,
						 const struct gantry_device *dev);
/* file: a dma-buf of the memory, borrowed until this returns; NULL, or it cannot be bound: the device makes one. */
gantry_result tcp_txmem_bind(struct tcp_link *l, const struct devmem_source_ops *ops, struct gantry_device *dev,
			     void *data, uint64_t size, const struct devmem_file *file, struct tcp_txmem **ret_mem);
void tcp_txmem_free(struct tcp_txmem *m); /* NULL is fine */
/* A bulk message within the memory. */
gantry_result tcp_link_isend_txmem(struct tcp_link *l, struct tcp_txmem *m, const void *data, size_t size, int tag,
				   void **ret_request);

/* The direction is closed. All lanes' sending locks are taken, or no other thread has the link. */
void tcp_txmem_close(struct tcp_link *l) REQUIRES(link_mu);

#endif
