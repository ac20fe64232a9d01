/* SPDX-License-Identifier: Apache-2.0 */
/* What the transports within a host have in common: who reaches whom, rings, the eventcounts of other processes. */
#ifndef GANTRY_TRANSPORT_ENDS_H
#define GANTRY_TRANSPORT_ENDS_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
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
void gantry_rings_fill(struct gantry_conn *conn, const struct gantry_rings *rings, char *base);

/* What the memory of a connection begins with: the FIFO's words, and how its two ends meet. */
struct gantry_end_words {
	struct gantry_fifo fifo;
	uint64_t ready;	   /* by the maker: its own part of connecting is done, the other end may go on */
	uint64_t opened;   /* by the other end: it has the memory, and may be through with it by now */
	uint64_t probe[2]; /* the maker's own: p2p.c */
};
_Static_assert(sizeof(struct gantry_end_words) <= GANTRY_ENDS_PAGE, "rings begin on the next page");

/* An eventcount as it travels in a connect info. */
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
 * For connect. A kernel that notifies wants the eventcount of a kernel that sleeps. Opened by the handle also within a
 * process: then the page stays as long as it is open here, even if the communicator that it belongs to is destroyed
 * while this end's kernel is about to look at the eventcount.
 */
gantry_result gantry_remote_eventcount_open(struct gantry_remote_eventcount *d, const struct gantry_connector *c,
					    const struct gantry_eventcount_info *info);
void gantry_remote_eventcount_close(struct gantry_remote_eventcount *d);

/* For connect, after the end's words: rings at `base`, and what follows from the peer. */
void gantry_end_fill(struct gantry_connector *c, const struct gantry_rings *rings, char *base,
		     const struct gantry_remote_eventcount *remote);

/* As an entry of a transport's table: kernels of both ends do everything. */
int gantry_ends_unproxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer);

#endif
