/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads: more hands for large messages where there are CPUs to spare. None on small machines.
 *
 * They only accelerate. The thread that calls test progresses every lane by itself, so nothing depends on a worker
 * being awake, and a lane that another thread works on is left alone (its lock is taken).
 *
 * A worker with nothing to do sleeps in poll: on the sockets of links that have large messages outstanding, and on an
 * eventfd. Posting a large message writes to that eventfd only if a worker sleeps. Where CPUs are short, workers beyond
 * what the links with such messages keep busy rest on an eventfd of their own, to which a worker writes that counts more
 * links.
 *
 * Links are in a small table. A worker publishes the link it works on before it checks that the link is still in the
 * table; tcp_workers_forget takes the link out and then waits until no worker has it published (a pass, at most a few
 * milliseconds). Both sides are sequentially consistent, so one of them sees the other.
 */
#ifndef GANTRY_NET_TCP_WORKER_H
#define GANTRY_NET_TCP_WORKER_H

#include "net/tcp/link.h"

void tcp_workers_stop(void);
void tcp_workers_abandon(void); /* in a forked child: they are the parent's */
void tcp_workers_know(struct tcp_link *l);
void tcp_workers_forget(struct tcp_link *l);
/* A large message was posted. */
void tcp_workers_notify(void);
bool tcp_workers_exist(void);
/* Some are at work or looking for it. */
int tcp_workers_awake(void);

#endif
