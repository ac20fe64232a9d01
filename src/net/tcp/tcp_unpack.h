/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unpack queue of a receiving direction: what NCCL's kernels read (abi/unpack.h), and where received bytes go.
 *
 * Every receive that is not LL or LL128 takes the next of 16 slots, in posting order, because the kernel counts them
 * so. A slot is its user's until irecv_consumed: only then are its pages, its tokens and the slot itself free. The
 * other receives have requests of the link's pool, which test recycles.
 *
 * Places. The bytes of a receive end
 *
 *   TABLE    in pool pages that the slot's descriptors name, for the kernel to gather
 *   BUFFER   in the buffer itself, written by the CPU; the slot, if there is one, says 0 descriptors
 *   BOUNCE   in pinned memory, and from there by one copy of the device in the buffer
 *   GATHER   in pool pages that the CPU cannot read, and by copies of the device in the buffer
 *   DIRECT   in the buffer, each stretch by a copy that is waited for: messages too large for a table, which NCCL does
 *            not send
 *
 *                      memory of the device              host memory
 *   takes a slot       TABLE                             BUFFER, or GATHER where the CPU cannot read the pool
 *   LL, LL128          BUFFER on the host device, else   the same
 *                      GATHER
 *
 * What GATHER says holds for bulk messages. An eager one, whose bytes come through host memory, ends in BUFFER, or in
 * BOUNCE where only the device writes the buffer.
 *
 * While kernels run that wait for a receive, nothing may be done that waits for kernels: no memory is allocated or
 * freed after the queue is attached, and copies go through the device's own queues.
 *
 * A message that is whole is done when the copies it needs are: until then it is in the link's list `copying_in`. Order of
 * publication: payload, descriptors, count, done.
 *
 * No landing page is free: the table puts bytes into the buffer itself, by copies that are waited for. That is slow and
 * is logged, but nothing stalls: the pages may be held by other messages that are not whole either.
 *
 * Threads: taking and consuming belong to the thread that posts and tests; what arrives is handled under link_mu.
 */
#ifndef GANTRY_NET_TCP_TCP_UNPACK_H
#define GANTRY_NET_TCP_TCP_UNPACK_H

#include <stdint.h>

#include "abi/unpack.h"
#include "net/devmem_rx.h"
#include "net/net.h"
#include "net/tcp/hello.h"
#include "net/tcp/link.h"

/* Where the messages of a listener or connector are: in memory of a device, whose pool payload lands in, or (kind OFF)
 * in host memory. */
struct tcp_context;

struct tcp_rx_memory {
	enum gantry_net_unpack kind;
	struct gantry_device *device; /* owned reference; NULL for OFF */
	struct devmem_pool *pool;     /* the same */
};

/* How this context receives: ctx->unpack is OFF, EMULATED or KERNEL, PARAM resolved against all NICs; ctx->why says why
 * it is OFF. */
gantry_result tcp_rx_memory_resolve(const struct gantry_net_config *config, struct tcp_context *ctx);
/* The context's device, or the current one, and its pool. Slow the first time: no lock held. */
gantry_result tcp_rx_memory_open(const struct tcp_context *ctx, struct tcp_rx_memory *ret_memory);
/* Both leave it empty. close: the last reference to a pool waits for the device, so no lock held; callers that hold one
 * take it out and close it later. */
struct tcp_rx_memory tcp_rx_memory_take(struct tcp_rx_memory *h);
void tcp_rx_memory_close(struct tcp_rx_memory *h);
enum wire_unpack tcp_rx_memory_says(const struct tcp_rx_memory *h);

enum { UNPACK_SPARE = 16 }; /* LL and LL128 receives with a place other than BUFFER */

enum tcp_place { TCP_PLACE_TABLE, TCP_PLACE_BUFFER, TCP_PLACE_BOUNCE, TCP_PLACE_GATHER, TCP_PLACE_DIRECT };

/* What a receive needs besides its buffer. */
struct tcp_unpack_recv {
	enum tcp_place place;
	int slot; /* of the queue; -1: none */
	bool busy;
	uint8_t *user;	/* borrowed: the receive's buffer */
	bool to_device; /* which only the device writes */
	struct devmem_table table;
	struct gantry_unpack_desc *descs; /* owned, of those without a slot */
	uint8_t *bounce; /* part of the queue's: room for an eager message; NULL where the CPU writes everything */
	bool copying;	 /* copies to the buffer were begun */
	uint64_t fence;	 /* ... and are over when this is reached */
	bool finishing;	 /* in the link's list copying_in; link_mu */
	uint64_t since;	 /* ticks: when it was whole; once test may say so, when that was */
};

struct tcp_unpack_slot {
	struct tcp_recv recv;
	struct tcp_unpack_recv side;
};

struct tcp_unpack {
	struct devmem_pool *pool;	     /* owned reference */
	struct gantry_device *dev;	     /* borrowed from the pool */
	void *memory;			     /* owned, mapped: both of the following */
	void *bounces;			     /* owned, mapped: of the spares; NULL: none needed */
	size_t bounce_size;		     /* of each: the largest eager message that was agreed on */
	struct gantry_unpack_meta *meta;     /* as the CPU sees it */
	struct gantry_unpack_handle *handle; /* the same */
	void *device_handle;		     /* as kernels see it */
	int copies;			     /* the device copies what the CPU cannot */
	int cpu_memory, cpu_pool;	     /* the CPU writes memory of the device; it reads and writes the pool */
	uint64_t table_max;		     /* bytes of a message that a table holds */
	uint64_t posted;		     /* slots taken so far */
	uint32_t busy, unconsumed; /* slots taken now; those that test has reported as done. Relaxed, for the log */
	struct tcp_unpack_slot slots[GANTRY_UNPACK_DEPTH];
	struct tcp_unpack_recv spare[UNPACK_SPARE];
	/* For the log; link_mu, but for the last two, which are the posting thread's. */
	uint64_t messages, descs, starved;
	uint64_t landing_ticks;		  /* from whole to done, all messages */
	uint64_t consumed, holding_ticks; /* slots that came back, and from done to there */
};

/* unpack.c. kind: of the device's page pool. */
gantry_result tcp_unpack_create(struct gantry_device *dev, enum gantry_net_unpack kind, struct tcp_unpack **ret_unpack);
void tcp_unpack_destroy(struct tcp_unpack *u); /* may wait for the device: no lock held; NULL is fine */
void tcp_unpack_describe(const struct tcp_unpack *u, struct gantry_net_device_handle *ret_handle);
/* From now on receives of this link go through it. */
gantry_result tcp_unpack_attach(struct tcp_link *l, struct tcp_unpack *u);
/* Detaches it from the link: everything goes back. All lanes' receiving locks are taken, or no other thread has the
 * link. */
void tcp_unpack_detach(struct tcp_link *l) REQUIRES(link_mu);
/* device: data is memory of the queue's device; optional: LL or LL128. */
gantry_result tcp_link_irecv_unpack(struct tcp_link *l, void *data, size_t size, int tag, bool device, bool optional,
				    void **ret_request);
void tcp_unpack_release(struct tcp_link *l, struct tcp_recv *recv, bool tested); /* of the sink */
gantry_result tcp_unpack_consumed(struct tcp_link *l, struct tcp_request *req);
/* Tokens that are collected go back now. */
void tcp_unpack_flush(struct tcp_link *l);

/* unpack_rx.c. */
extern const struct tcp_sink_ops tcp_sink_unpack;
/* Bytes [skip, skip + len) of a fragment are those at `offset` of the message. -1: the link has failed. */
int tcp_unpack_frag(struct tcp_lane *lane, struct tcp_recv *recv, struct tcp_buffer *buffer, struct devmem_frag *frag,
		    uint32_t skip, uint32_t len, uint64_t offset) REQUIRES(lane_rx_mu, link_mu);
/* Until all copies that were begun are over, within bounds. */
void tcp_unpack_await(struct tcp_unpack *u);
/* Looks after copies. */
void tcp_unpack_progress(struct tcp_link *l) EXCLUDES(link_mu);

#endif
