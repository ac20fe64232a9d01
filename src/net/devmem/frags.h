/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one receive of a flow brought, normalised: control messages of the kernel (or the emulator) become a list of
 * fragments in stream order. Nothing is trusted: what is out of range, adds up to something else, or belongs to another
 * binding is ERR_PROTOCOL with a text. Then the list has the fragments before the bad one: their tokens are held and
 * may be given back; nothing else of them may be used.
 *
 * With GANTRY_DEVMEM_VEC12 the 12-byte vectors of kernels before 6.12 (Google's) are read instead.
 */
#ifndef GANTRY_NET_DEVMEM_FRAGS_H
#define GANTRY_NET_DEVMEM_FRAGS_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "gantry/result.h"

enum devmem_where {
	DEVMEM_IN_POOL, /* at `offset` of the binding's memory; held until `token` is given back */
	DEVMEM_LINEAR,	/* at `offset` of the receive's own buffer, beside fragments in the pool */
	DEVMEM_PLAIN,	/* the same, without any: an ordinary packet. Many of these: the flow is not steered */
};

struct devmem_frag {
	uint64_t offset;
	uint32_t len;
	uint32_t token; /* IN_POOL only; 0: it is somebody else's now (table.h) */
	enum devmem_where where;
};

enum { DEVMEM_LIST_MAX = 1024, DEVMEM_CONTROL_SIZE = DEVMEM_LIST_MAX * 40 };

struct devmem_list {
	uint32_t n;
	uint64_t bytes; /* of all of them: the result of the receive */
	struct devmem_frag frags[DEVMEM_LIST_MAX];
};

/* got: what receive returned, > 0; msg: as it was left; iov_bytes: size of the receive's own buffer. Only frags [0, n)
 * are written; n and bytes are valid whatever is returned. */
gantry_result devmem_parse(const struct msghdr *msg, ssize_t got, uint32_t dmabuf_id, uint64_t memory_size,
			   uint64_t iov_bytes, struct devmem_list *ret_list);

#endif
