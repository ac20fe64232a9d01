/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that do not move, of users that do not look for stalls themselves: GANTRY_STALL_DIR. */
#ifndef GANTRY_NET_TCP_STALL_H
#define GANTRY_NET_TCP_STALL_H

#include <stdint.h>

#include "inet/loop.h"

/* The service thread's: looks at all links. 1: there is something to tell. */
int tcp_stall_tick(uint64_t now_ns) REQUIRES(loop_mu);
/* The service thread's, without a lock: writes what the last look has found. */
void tcp_stall_tell(void);

#endif
