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

#endif
