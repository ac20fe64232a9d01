/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: lanes over NICs of different speed. A socket buffer swallows far more than a slow rail can deliver soon, so
 * "takes the next piece when its socket has room" is not enough: before a rail pulls, what it holds and how fast it
 * drains is compared with what all rails together hold and deliver.
 */
#ifndef GANTRY_NET_TCP_RAIL_H
#define GANTRY_NET_TCP_RAIL_H

#include "net/tcp/link.h"

/* Reads what the kernel knows of this lane. The caller holds the lane's lock. */
void tcp_rail_weigh(struct tcp_lane *lane);
/* Should this piece be left to the other rails? Under mu. */
int tcp_rail_too_slow(const struct tcp_lane *lane, uint64_t chunk);

#endif
