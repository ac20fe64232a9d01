/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane's part of the loop (inet/loop.h): hubs, memberships and their streams (inet/stream.h). The loop's
 * thread alone frees things.
 *
 * Lock: loop_mu protects everything here, the hubs and the memberships. Other threads take it to add something, to mark
 * it for removal, to queue a frame and to look for news, so lists of objects do not change under the thread's feet.
 *
 * A pass: handle events (the loop); take new and leaving members; do what is due by the clock; write what the pass has
 * produced, batched; run callbacks, without the lock; free what was closed.
 *
 * Time. `due` is when the thread must look at the clock next; received messages only move their deadlines later, so
 * nothing is recomputed on the way. If the thread comes late, by its own starvation or because the process was stopped,
 * `late` is the delay, and ctl_silent gives peers time to send before it judges them.
 */
#ifndef GANTRY_CTL_CTL_SERVICE_H
#define GANTRY_CTL_CTL_SERVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ctl/ctl_wire.h"

/* Of INET_STREAM_OUT_MAX a rank's user may fill so many: the service's own words (signs of life, a leave) must find room behind
 * them, or a hub that is merely slow would be given up. */
enum { CTL_USER_MAX = INET_STREAM_OUT_MAX / 2 };
enum {
	CTL_BEATS = 32
}; /* signs of life in GANTRY_TIMEOUT: the gap between two is lost to an outage that is survived */

struct ctl_service {
	struct gantry_cond quiet; /* a callback has returned */
	int initialised GUARDED_BY(loop_mu);
	int exiting GUARDED_BY(loop_mu); /* the process is about to be over: hubs say goodbye */
	uint64_t process;		 /* random */

	struct inet_streams streams GUARDED_BY(loop_mu);
	struct gantry_list hubs GUARDED_BY(loop_mu);				    /* hub.h */
	struct gantry_list members GUARDED_BY(loop_mu), events GUARDED_BY(loop_mu); /* ctl_member.h */
	int nleaving GUARDED_BY(loop_mu);

	/* ns: of the next look at the clock; by how much this pass came late */
	uint64_t due GUARDED_BY(loop_mu), late GUARDED_BY(loop_mu);
};
extern struct ctl_service ctl_service;

/* For what becomes a hub or a membership: there is a thread. */
gantry_result ctl_service_start(void) REQUIRES(loop_mu);
/* Look at the clock at `when` at the latest. */
void ctl_service_due(uint64_t when) REQUIRES(loop_mu);
/* Was the peer silent for too long? Time that this thread missed is not held against it. */
int ctl_silent(uint64_t *last_seen, uint64_t timeout) REQUIRES(loop_mu);
/* How long after its last word a peer counts as silent: it may have fallen silent a beat later. */
uint64_t ctl_patience(uint64_t timeout);
/* "0.5 s" of nanoseconds. */
const char *ctl_seconds(uint64_t ns, char buf[16]);

#endif
