/* SPDX-License-Identifier: Apache-2.0 */
/* What transports have in common: which ends are proxied, reachability, rings, the eventcounts of other processes
 * (ends.c), and the copy engine that moves the steps of a proxied end (copy_engine.c). */
#ifndef GANTRY_TRANSPORT_ENDS_H
#define GANTRY_TRANSPORT_ENDS_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "device/share.h"
#include "transport/transport.h"

enum {
	GANTRY_ENDS_LL_STEP = 8192,	/* data bytes of an LL step */
	GANTRY_ENDS_LL128_STEP = 15360, /* of an LL128 step: 128 lines */
	GANTRY_ENDS_PAGE = 4096,	/* rings and sizes of steps are multiples of it */
};
#define GANTRY_ENDS_STEP_MAX (64u << 20)

int gantry_ends_same_process(const struct gantry_peer_info *a, const struct gantry_peer_info *b);
/* Whether each can open memory that the other one's host device exports (through /proc). */
int gantry_ends_see_each_other(const struct gantry_peer_info *a, const struct gantry_peer_info *b);

/* LL128 through host memory. A GPU reads it in pieces: the order within a line is certain on the host device only. */
int gantry_ends_keep_lines(const struct gantry_connector *c);

/* What kernels see of an end without its buffers: the FIFO's words as the device addresses them, and the flags. */
void gantry_end_fill_words(struct gantry_connector *c, struct gantry_fifo *fifo, uint32_t flags);
/* The same of a proxied end of a network, and that kernel and proxy notify each other. */
void gantry_end_fill_proxied(struct gantry_connector *c, struct gantry_fifo *fifo);
/* As an entry of a transport's table: the proxies of both ends move the steps. */
int gantry_ends_proxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer);

/* Where the rings of a connection are within its memory, behind a page with the FIFO's words. */
struct gantry_rings {
	uint64_t at[GANTRY_PROTOS]; /* 0: not there */
	uint32_t step_bytes[GANTRY_PROTOS];
	uint64_t size; /* of all, with the page before them */
};
void gantry_rings_layout(uint64_t simple_step, int ll, int ll128, struct gantry_rings *ret_rings);
/* Both sides of a ring agree about its step; the peer's word is checked. */
uint64_t gantry_rings_round_step(uint64_t step);
int gantry_rings_step_is_good(uint64_t step);
/* without_lines: Simple alone, for a copy engine does not copy words whole. */
void gantry_rings_fill(struct gantry_conn *conn, const struct gantry_rings *rings, char *base, int without_lines);

/* What the memory of a connection begins with: the FIFO's words, and how its two ends meet. */
struct gantry_end_words {
	struct gantry_fifo fifo;
	uint64_t ready;	   /* by the maker: its own part of connecting is done, the other end may go on */
	uint64_t opened;   /* by the other end: it has the memory, and may be through with it by now */
	uint64_t probe[2]; /* the maker's own: p2p.c */
};
_Static_assert(sizeof(struct gantry_end_words) <= GANTRY_ENDS_PAGE, "rings begin on the next page");

/* Host memory that one end makes and the other one gets (device/share.h). Zeroed is none. */
struct gantry_sharing {
	struct gantry_end_words *words; /* where it begins; counted */
	int made;			/* by this end */
	struct gantry_offer offer;	/* maker, to another process */
	struct gantry_taker taker;
};
/* For the maker's setup. */
gantry_result gantry_sharing_make(struct gantry_sharing *s, const struct gantry_connector *c, size_t size,
				  struct gantry_share_address *ret_address);
/* For connect. AGAIN until both ends have it: the maker knows that the other one has, too. */
gantry_result gantry_sharing_meet(struct gantry_sharing *s, const struct gantry_connector *c, size_t size,
				  const struct gantry_share_address *address);
void gantry_sharing_end(struct gantry_sharing *s);

/* A eventcount as it travels in a connect info. */
struct gantry_eventcount_info {
	uint32_t there;	   /* the end's kernels sleep */
	uint32_t exported; /* the page can be opened by its handle */
	uint64_t address;  /* within the process */
	uint64_t offset;   /* within the page */
	struct gantry_ipc_handle page;
};
void gantry_eventcount_describe(const struct gantry_connector *c, struct gantry_eventcount_info *ret_info);

/*
 * The eventcount of the other end, held. Zeroed is one that was not opened yet; opening it again does nothing. A
 * connect opens it before it does what the peer's connect waits for: a peer that is connected may be through with
 * everything and free its eventcount at once.
 */
struct gantry_remote_eventcount {
	struct gantry_eventcount *eventcount; /* NULL: it does not sleep, or cannot be reached */
	struct gantry_device *host;	      /* counted */
	void *page;
	int looked;
};

/*
 * What an end begins with, a connector's `resources`; the rest is its transport's. Owned by the thread that connects;
 * the engine by the proxy once connected.
 */
struct gantry_copy_engine;
struct gantry_end {
	struct gantry_remote_eventcount eventcount;
	struct gantry_copy_engine *engine; /* owned; of a proxied end */
};
/* The connector's end of that size: made, zeroed, when it is first asked for. NULL: no memory, and said so. */
void *gantry_end_get(struct gantry_connector *c, size_t size);
/* For connect: opens the peer's eventcount, if this end's kernels or its engine are to notify it. */
gantry_result gantry_end_open_eventcount(struct gantry_connector *c, const struct gantry_eventcount_info *info,
					 int peer_is_proxied);
/* For connect of an end that is not proxied, after its words: rings at `base`, and what follows from the peer. */
void gantry_end_fill(struct gantry_connector *c, const struct gantry_rings *rings, char *base, int peer_is_proxied);
/* What the above have made; the end itself and its memory are the transport's. */
void gantry_end_close(struct gantry_connector *c);

/*
 * ---- a proxied end: steps moved with the device's copy engine, driven by the proxy ----
 *
 *   send    kernel --> staging ring --copy--> the remote ring, and the remote FIFO is told
 *   recv    the remote ring --copy--> staging ring --> kernel
 *
 * The kernel's end is a FIFO in host memory that the device maps, and a staging ring in device memory; a PTR step takes
 * the user's buffer in place of the ring. The remote side is words that the CPU reads and writes and a ring that the
 * copy engine reaches; who is at its other end, a kernel or another copy engine, makes no difference.
 *
 * Steps keep their numbers on the way, so both ends agree about max_step, and about Simple alone: a copy engine copies
 * no words whole, which the lines of LL depend on.
 */

/* For proxy_setup: makes the engine and the kernel's FIFO. It is c->proxy's resources from here on. */
gantry_result gantry_end_proxy_setup(struct gantry_connector *c, size_t size);
/* For connect: makes the staging ring, fills in c->conn and the connector's results. remote: the other side's words, as this
 * process addresses them; ring: its ring, as the device does; both outlive the engine. takes_pointers (recv): the remote
 * producer posts addresses of this process. */
gantry_result gantry_end_proxy_fill(struct gantry_connector *c, uint64_t step_bytes, struct gantry_fifo *remote,
				    char *ring, int takes_pointers);
/* As entries of a transport's table. Freeing waits for copies that have begun, not for the peer. */
gantry_result gantry_end_proxy_connect(struct gantry_connector *c);
gantry_result gantry_end_proxy_progress(struct gantry_proxy_conn *pc, int *ret_worked);
void gantry_end_proxy_free(struct gantry_connector *c);

#endif
