/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reducers, or a plugin's collNet, behind a communicator's kernels: what one rank of each host sends is added up on the
 * way, and what it receives is the sum of all hosts.
 *
 * Two ends, one that sends and one that receives, of a connection without a particular peer. Step n of the one is
 * answered by step n of the other, so both have the same operations. Used by the thread that moves the connections of a
 * group, one at a time; made and ended by the communicator's thread.
 */
#ifndef GANTRY_TRANSPORT_COLLNET_H
#define GANTRY_TRANSPORT_COLLNET_H

#include "gantry/types.h"
#include "net/net.h"
#include "transport/transport.h"

/* After both ends' proxy_setup: where the other hosts reach this one. ERR_UNSUPPORTED: the network has no collNet. */
gantry_result gantry_collnet_listen(struct gantry_connector *send, struct gantry_connector *recv,
				    unsigned char ret_handle[GANTRY_NET_HANDLE_SIZE]);
/* From then on: the most bytes of one reduction, here. */
uint64_t gantry_collnet_max_bytes(const struct gantry_connector *send);

struct gantry_collnet_hosts {
	uint32_t n, own;
	const void *const *handles; /* of each host */
	const int *ranks;	    /* of the communicator, that listen there */
	uint64_t max_bytes;	    /* the least of all hosts: slices are cut alike everywhere */
	const uint32_t *stop;	    /* nonzero: the communicator has failed; waits end */
};
/* Blocks until all are connected, or GANTRY_CONNECT_TIMEOUT (a plugin may take what it likes). `connect` of both ends
 * follows. *ret_takes: a bit for each reduction that can be had, GANTRY_COLLNET_BIT. */
#define GANTRY_COLLNET_BIT(type, op) (1ull << ((type)*4 + (op)))
gantry_result gantry_collnet_open(struct gantry_connector *send, const struct gantry_collnet_hosts *hosts,
				  uint64_t *ret_takes);
/* Averages are sums that kernels divide, and scalars are multiplied before. */
static inline uint32_t gantry_collnet_reduction_of(uint32_t op)
{
	return op >= GANTRY_OP_AVG ? GANTRY_OP_SUM : op;
}

#endif
