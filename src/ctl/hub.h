/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub: where the ranks of one communicator meet, in the process that made its unique id. It lives on the service
 * thread (ctl_service.h).
 *
 *   OPEN ----- all ranks came ----> RUNNING --- the last one left or was lost ---> ENDED
 *    |                                                                              ^
 *    +--- a rank missing in time, twice the same rank, different counts,            |
 *    |    a rank lost while others were awaited ---> FAILED --- a while later ------+
 *    +--- no rank came at all ------------------------------------------------------+
 *
 * A FAILED hub stays for a while, so that ranks that come later get the cause instead of a refused connection.
 *
 * A rank whose connection outlives its sockets (GANTRY_RESUME) stays HERE while it has none: frames to it are kept.
 * It comes back with a hello of the next generation, in the same process, or it is silent for the deadline and lost. It is lost
 * earlier if its process is found to have ended: another one comes as this rank, or nothing listens at its address.
 *
 * All hubs of a process share a listening port, and share it with the data network (inet/listen.h). A connection that
 * has proved to know the key of one of the hubs belongs to one of that hub's ranks.
 *
 * What a hub is made of, and which file does what: hub_priv.h.
 */
#ifndef GANTRY_CTL_HUB_H
#define GANTRY_CTL_HUB_H

#include "ctl/ctl_service.h"
#include "inet/listen.h"

extern struct inet_service hub_service;
/* A hub with the id's number and key, at `addr`. */
gantry_result hub_start(const struct ctl_id *id, const struct gantry_addr *addr, struct gantry_addr *ret_bound);
/* 1: the communicator's hub is here; text: the ranks it waits for, "ranks 1, 3-5", and connections that were refused;
 * left as it is if it waits for none. */
int hub_awaits(uint64_t comm_id, char *buf, size_t len) REQUIRES(loop_mu);
/* No rank will come: it ends, unless one has. */
void hub_drop(uint64_t comm_id) REQUIRES(loop_mu);
/* Not all will come, for this reason: ranks that have come and those that come hear it. */
void hub_fail(uint64_t comm_id, gantry_result why, const char *text) REQUIRES(loop_mu);
void hub_tick(void) REQUIRES(loop_mu);
void hub_bye(void) REQUIRES(loop_mu); /* the process ends */

#endif
