/* SPDX-License-Identifier: Apache-2.0 */
/* Argument structs of the kernels: plain data, the same layout for gcc and nvcc. Pointers are valid on the device. */
#ifndef GANTRY_DEVICE_WORK_H
#define GANTRY_DEVICE_WORK_H

#include <stdint.h>

#include "abi/unpack.h"
#include "device/conn.h"

/* One send or receive of a group. */
struct gantry_xfer {
	struct gantry_conn *conn;
	char *buf;
	uint64_t bytes;
	uint64_t step_bytes; /* Simple: bytes per step (PTR: may be more than the ring's); LL, LL128: data per step */
	uint64_t place;	     /* PTR: the address of buf as the other end sees it; posted and offered instead of buf */
	uint8_t send;
	uint8_t proto; /* enum gantry_proto */
	uint8_t ptr;   /* post or offer the user's buffer instead of copying */
	uint8_t reserved;
	uint32_t coll; /* lower half of the number of the collective that it is a part of; 0: of none */
	/* Below: the kernel's own, set when it begins: the same memory may be launched again. */
	uint64_t turn;	/* sequence number of the transfer on its connection; it begins when conn->turn reaches it */
	uint64_t begun; /* bytes copied, posted or offered */
	uint64_t ended; /* bytes received, or whose buffers the consumer has given back */
	uint64_t first; /* step of byte 0 */
	uint64_t last;	/* send, PTR: head must pass this step */
	uint32_t phase;
	uint32_t error; /* gantry_result: what arrived does not fit */
	uint64_t error_bytes;
};

/* When a kernel began a transfer and when it was done with it, for traces. */
struct gantry_xfer_time {
	uint64_t begin, end; /* dev_clock, relaxed; 0: not yet */
	uint64_t step;	     /* of byte 0 */
	/* Below: the CPU's own, of the event that becomes of it. */
	uint64_t packed;
	uint32_t conn, op; /* conn 0: none */
};

/* How a launch says that it has ended, and that the memory of its arguments is free. */
struct gantry_launch_end {
	uint64_t *arrived; /* the device's own memory: blocks that have ended; 0 before and after the launch */
	uint64_t *word;	   /* host memory: the last block stores `value`; NULL: not needed */
	uint64_t value;
	/* Of a graph, whose launches the CPU does not make: NULL else. Counted in the device's memory, and that number is
	 * stored in host memory when a launch begins, and in `word` when it has ended. */
	uint64_t *runs, *begun;
};

struct gantry_p2p_args {
	struct gantry_xfer *xfers; /* read and written; sorted by block */
	const uint32_t *first;	   /* blocks + 1 entries: block b does xfers[first[b]] .. xfers[first[b+1]-1] */
	uint32_t *result; /* host memory: the first error (gantry_result) and nothing else is stored, relaxed */
	struct gantry_launch_end end;
	const uint64_t
		*after; /* begin when this is at least after_value: the launch before, on another stream; or NULL */
	uint64_t after_value;
	struct gantry_xfer_time *times; /* host memory: one per transfer; NULL: not needed */
};

/*
 * A step of a collective's plan: a primitive on one part of the buffers, chunk by chunk, with some peers. Peers are
 * entries of the plan's table of connections.
 */
struct gantry_coll_step {
	uint8_t what;  /* PRIM_*: k_prim.h */
	uint8_t last;  /* what comes out of it is the result: AVG divides */
	uint8_t in_at; /* how many of the received sources stand before the local input */
	uint8_t nrecv, nsend;
	uint8_t joins; /* bit i: what destination i gets may leave together with the plan's next message to it */
	uint16_t recv, send; /* first entry of each in the table */
	uint16_t delay;	     /* works on the chunk this many before the one that steps without a delay work on */
	uint32_t part;
};

/*
 * A block's share of a collective. Buffers have parts, and a block has the elements [begin, begin + count) of each; or,
 * where `whole` says so, the buffer is one piece of which the block has [begin, begin + whole), and parts are cut out of
 * that: each of `count` elements, but for the last ones, which are shorter or empty.
 */
struct gantry_coll {
	const struct gantry_coll_step *steps;
	struct gantry_conn *const *conns;
	/* Two for each of conns, for in and for out: what the other end adds to addresses, or GANTRY_COLL_KEPT. NULL: nothing. */
	const uint64_t *shifts;
	const char *in;
	char *out;
	uint64_t in_stride, out_stride; /* elements from part to part */
	uint64_t begin, count;
	uint64_t whole;	       /* UINT64_MAX: parts have all their elements */
	uint64_t chunk;	       /* elements of a part that a step moves at a time */
	uint64_t scalar;       /* PREMUL: the scalar's bits; AVG and DEV_OP_MEAN: the divisor */
	const void *scalar_at; /* PREMUL: where the scalar is, on the device; or NULL */
	uint64_t id;	       /* which collective of the communicator; not 0 */
	uint32_t nsteps, nconns;
	uint32_t step_bytes; /* of Simple, LL or LL128; no more than each of the connections has */
	uint16_t delay;	     /* the longest of the steps */
	uint8_t slice_steps, chunk_steps;
	uint8_t type, op, proto;
	uint8_t ptr; /* GANTRY_COLL_PTR_* */
};
/* What connections with GANTRY_CONN_POINTS read and write in place, and those with GANTRY_CONN_LENDS read. OFFERS: there
 * are some of the former that receive. */
enum { GANTRY_COLL_PTR_IN = 1, GANTRY_COLL_PTR_OUT = 2, GANTRY_COLL_PTR_OFFERS = 4 };
#define GANTRY_COLL_KEPT UINT64_MAX /* the other end cannot read that buffer */

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(struct gantry_coll_step) == 16, "a plan's steps follow each other");
_Static_assert(sizeof(struct gantry_coll) % 8 == 0, "a GPU copies it in words");
#endif

struct gantry_coll_args {
	const struct gantry_coll *colls; /* one for each block; NULL: there is one block, and `one` is its share */
	uint32_t *result;		 /* as in gantry_p2p_args, and so are the others */
	struct gantry_launch_end end;
	const uint64_t *after;
	uint64_t after_value;
	struct gantry_xfer_time *times; /* one per share; `step` is not the kernel's here */
	struct gantry_coll one;		/* a small call need not wait for a read over PCIe */
};

/*
 * A one-sided operation by loads and stores: a copy into a peer's memory, a signal there, or a wait for signals here. Of
 * words that count, each has one writer, whose launches follow each other.
 */
struct gantry_put {
	char *to; /* bytes 0: nothing is copied */
	const char *from;
	uint64_t bytes;
	uint64_t *count; /* device memory: signals raised so far, or of a wait taken; NULL: no signal */
	uint64_t *
		word; /* signal: the peer's word that shows `count`; wait: the own one that kernels of the peer write */
	uint64_t *by_net;  /* wait: mapped, what this rank's proxy has raised for the peer; NULL: this is no wait */
	uint64_t expected; /* wait: so many more than are taken */
	/* Copy: where the owner of the memory says which window is registered there, and which one it has to be. */
	const uint64_t *window;
	uint64_t number;
	struct gantry_eventcount *eventcount; /* signal: of the peer; NULL: it never sleeps */
};

struct gantry_put_args {
	const struct gantry_put *puts; /* mapped memory, carried out in order by one block */
	uint64_t n;
	uint32_t *result; /* as in gantry_p2p_args, and so are the others */
	uint64_t *finished;
	const uint64_t *after;
	uint64_t after_value;
};

/*
 * Copies len bytes from bounce + src_off to dst + dst_off for each descriptor; gather: from dst + dst_off to
 * bounce + src_off. Either base may be 0, with addresses for offsets. Ranges that are written do not overlap each other
 * or anything that is read. No alignment is asked for, and a len of 0 is fine.
 */
struct gantry_unpack_args {
	const struct gantry_unpack_desc *descs; /* 16-byte aligned; mapped host memory or device memory */
	const uint64_t *count; /* where their number is; acquired, so descs may be written just before. NULL: n */
	uint64_t n;	       /* less than 2^31 */
	char *bounce;
	char *dst;
	uint32_t gather;   /* k_unpack_as.h: 0 */
	uint16_t from, to; /* k_unpack_as.h: enum gantry_type, as it arrived and as it is stored */
};
#define GANTRY_UNPACK_GOES_ON UINT64_MAX /* k_unpack_as.h: in place of dst_off */

#endif
