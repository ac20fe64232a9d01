/* SPDX-License-Identifier: Apache-2.0 */
/* Argument structs of the kernels: plain data, the same layout for gcc and nvcc. Pointers are valid on the device. */
#ifndef GANTRY_DEVICE_WORK_H
#define GANTRY_DEVICE_WORK_H

#include <stddef.h>
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
	uint64_t turn;	     /* the how-manieth transfer of its connection; begins when conn->turn has come to it */
	uint8_t send;
	uint8_t proto; /* enum gantry_proto */
	uint8_t ptr;   /* post or offer the user's buffer instead of copying */
	uint8_t reserved;
	/* Below: the kernel's own, zero at launch. */
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

struct gantry_p2p_args {
	struct gantry_xfer *xfers; /* read and written; sorted by block */
	const uint32_t *first;	   /* blocks + 1 entries: block b does xfers[first[b]] .. xfers[first[b+1]-1] */
	uint32_t *result;   /* host memory: the first error (gantry_result) and nothing else is stored, relaxed */
	uint64_t *finished; /* host memory: each block adds 1 when it is done with xfers; may be NULL */
	const uint64_t
		*after; /* begin when this is at least after_value: the launch before, on another stream; or NULL */
	uint64_t after_value;
	struct gantry_xfer_time *times; /* host memory: one per transfer; NULL: nobody asks */
};

enum gantry_prim_kind {
	GANTRY_PRIM_SEND,
	GANTRY_PRIM_RECV,
	GANTRY_PRIM_COPY_SEND,
	GANTRY_PRIM_RECV_COPY_SEND,
	GANTRY_PRIM_RECV_REDUCE_SEND,
	GANTRY_PRIM_RECV_REDUCE_COPY,
	GANTRY_PRIM_RECV_REDUCE_COPY_SEND,
	GANTRY_PRIMS
};
enum { GANTRY_PRIM_PEERS = 8 };
struct gantry_prim_args {
	uint32_t kind, proto, type, op;
	uint32_t nrecv, nsend;
	struct gantry_conn *recv[GANTRY_PRIM_PEERS], *send[GANTRY_PRIM_PEERS];
	const char *input;
	char *output;
	uint64_t count;	      /* elements */
	uint32_t slice_steps; /* a slice is this many steps; a chunk is chunk_steps, a multiple of it; both divide STEPS
			       */
	uint32_t chunk_steps;
	uint64_t scalar; /* PREMUL: the scalar's bits; AVG: the divisor, applied by the last reduction */
	uint32_t last;	 /* this reduction is the last one: AVG divides */
	uint32_t *result;
};

struct gantry_reduce_args {
	const char *src[GANTRY_PRIM_PEERS];
	char *dst[GANTRY_PRIM_PEERS];
	uint32_t nsrc, ndst;
	uint64_t count;
	uint32_t type, op;
	uint64_t scalar;
	uint32_t last;
};

struct gantry_fifo_args {
	struct gantry_conn *conn;
	uint64_t n;
	uint32_t window; /* 1: ping-pong; STEPS: as many as fit */
	uint32_t bare;	 /* use flag instead of the FIFO: store tail, wait for head, nothing else */
	uint32_t *result;
};

struct gantry_echo_args {
	struct gantry_conn *send, *recv; /* between kernels, not proxied */
	const char *input;
	char *output;
	uint64_t bytes; /* at most a step */
	uint64_t n;
	uint32_t first, proto;
	uint32_t *result;
};

/* The pattern of tools/perf_util.h: byte i of message seq. */
struct gantry_fill_args {
	char *dst;
	uint64_t bytes, seq;
};
struct gantry_verify_args {
	const char *src;
	uint64_t bytes, seq;
	uint64_t *wrong; /* host memory: added to */
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
	uint32_t gather;
	uint32_t reserved; /* 0 */
};

/*
 * output[i] = op(input[i], what arrived for element i). The unpacked elements are source 1 of a reduction of two (see
 * types_dev.h), input is source 0. Both and dst_off are offsets into the same array: element i has the bytes
 * i * size .. of it. Fragments may cut elements anywhere if the descriptors that share an element follow each other
 * in the list, in the order of dst_off; otherwise the list has any order. A len is at most 2^32 - 64.
 */
struct gantry_unpack_reduce_args {
	const struct gantry_unpack_desc *descs;
	const uint64_t *count;
	uint64_t n;
	const char *bounce;
	const char *input; /* aligned to the element, as output; may be output itself */
	char *output;
	uint64_t scalar;
	uint32_t type, op, last;
	uint32_t reserved; /* 0 */
};

/* Jobs for the blocks of a kernel that stays, see k_unpack_ring.h. In mapped memory; a host fills in one with each
 * post. */
struct gantry_unpack_job {
	const struct gantry_unpack_desc *descs;
	uint64_t n;
	char *bounce;
	char *dst;
	uint64_t gather;
	uint64_t reserved[3];
};
/* One per block. */
struct gantry_unpack_done {
	uint64_t jobs; /* written by the block: it has done its share of all jobs below this */
	char pad[120];
};
/* In the device's memory: a job as block 0 hands it on. */
enum { GANTRY_UNPACK_RELAYED = 64 };
struct gantry_unpack_relay {
	struct gantry_unpack_job job;
	struct gantry_unpack_desc descs[GANTRY_UNPACK_RELAYED]; /* the job's, if it has no more than these */
};
struct gantry_unpack_ring_args {
	const uint64_t *posted; /* jobs posted, and GANTRY_UNPACK_STOP */
	const struct gantry_unpack_job *jobs;
	uint64_t *relayed;		   /* device memory: jobs that block 0 has handed on, and GANTRY_UNPACK_STOP */
	struct gantry_unpack_relay *relay; /* device memory: as many as jobs */
	struct gantry_unpack_done *done;   /* by block */
	uint64_t mask;			   /* entries - 1 */
	struct gantry_eventcount *eventcount;  /* of the host that waits for done; NULL: it never sleeps */
	struct gantry_eventcount *eventcounts; /* of the blocks, for block 0 to ring; NULL: they never sleep */
	struct gantry_unpack_marks *marks;     /* by block; NULL: nobody wants to know */
};
/* Mapped memory: how far a block has come, for the case that it comes no further. */
enum { GANTRY_UNPACK_WARPS = 16 };
struct gantry_unpack_marks {
	uint64_t took;	  /* all lanes have heard of jobs below it */
	uint64_t relayed; /* block 0: it has handed on jobs below it */
	char pad[112];
	uint64_t left[GANTRY_UNPACK_WARPS]; /* warp w has ended its part of all jobs below it */
};
#define GANTRY_UNPACK_STOP (1ull << 63)

#ifndef __cplusplus /* nvcc reads this as C++ */
_Static_assert(sizeof(struct gantry_unpack_job) == 64, "jobs are copied in whole vectors, and do not straddle lines");
_Static_assert(sizeof(struct gantry_unpack_relay) % 16 == 0, "descriptors are loaded 16 bytes at a time");
_Static_assert(offsetof(struct gantry_unpack_job, bounce) == 16 && offsetof(struct gantry_unpack_job, gather) == 32,
	       "a job is read in pairs of words: descs and n, bounce and dst, gather");
#endif

/* As NCCL's kernels unpack: for comparison. */
struct gantry_unpack_seed_args {
	const struct gantry_unpack_desc *descs;
	uint64_t n;
	const char *bounce;
	char *dst;
	uint64_t bytes; /* of all fragments */
};

#endif
