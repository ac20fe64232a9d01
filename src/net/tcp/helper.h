/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper threads: more hands for large messages where there are CPUs to spare. None on small machines.
 *
 * They only accelerate. Whoever calls test progresses every lane by himself, so nothing depends on a helper being
 * awake, and a lane that somebody works on is left alone (its lock is taken).
 *
 * A helper with nothing to do sleeps in poll: on the sockets of links that have large messages outstanding, and on an
 * eventfd. Posting a large message writes to that eventfd only if a helper sleeps.
 *
 * Links are in a small table. A helper publishes the link it works on before it checks that the link is still in the
 * table; tcp_helpers_forget takes the link out and then waits until no helper has it published (a pass, at most a few
 * milliseconds). Both sides are sequentially consistent, so one of them sees the other.
 */
#ifndef GANTRY_NET_TCP_HELPER_H
#define GANTRY_NET_TCP_HELPER_H

#include "net/tcp/link.h"

/* How many this process should have. */
int tcp_helpers_wanted(void);
void tcp_helpers_start(void); /* idempotent; with loop_mu */
void tcp_helpers_stop(void);
void tcp_helpers_abandon(void); /* in a forked child: they are the parent's */
void tcp_helpers_know(struct tcp_link *l);
void tcp_helpers_forget(struct tcp_link *l);
/* A large message was posted. */
void tcp_helpers_notify(void);
/* Some are at work or looking for it. */
int tcp_helpers_awake(void);

#endif
