/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL's kernels read when a net plugin reports device type UNPACK, version 7: layouts only.
 *
 * The plugin hands NCCL a handle for each receiving connection. For the k-th receive that is not LL or LL128 the kernel
 * increments head (so it starts at -1), takes cnt[head % 16] descriptors of mem[head % 16], and copies len bytes from
 * bounce_buf + src_off to the receive's own buffer + dst_off. A block keeps one bounce_buf for all its peers: one pool
 * per GPU, and 32-bit offsets: at most 4 GiB of it.
 */
#ifndef GANTRY_ABI_UNPACK_H
#define GANTRY_ABI_UNPACK_H

#include <stdint.h>

enum {
	GANTRY_UNPACK_VERSION = 7,
	GANTRY_UNPACK_DEPTH = 16,
	GANTRY_UNPACK_MAX_SLICE = 4 << 20, /* bytes of one receive */
	GANTRY_UNPACK_MAX_DESCS = 2048,
};

struct gantry_unpack_desc {
	uint32_t src_off, len;
	uint64_t dst_off;
};
struct gantry_unpack_meta {
	struct gantry_unpack_desc mem[GANTRY_UNPACK_DEPTH][GANTRY_UNPACK_MAX_DESCS];
	uint64_t cnt[GANTRY_UNPACK_DEPTH];
};
struct gantry_unpack_handle {
	struct gantry_unpack_meta *meta;
	void *bounce_buf;
	uint64_t head;
};

#ifndef __cplusplus /* nvcc reads this as C++ */
_Static_assert(sizeof(struct gantry_unpack_desc) == 16, "NCCL's kernels load a descriptor with one 128-bit load");
_Static_assert(sizeof(struct gantry_unpack_meta) == 524416, "the table is read by NCCL's kernels");
_Static_assert(sizeof(struct gantry_unpack_handle) == 24, "the handle is read and written by NCCL's kernels");
#endif

#endif
