/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop: one epoll instance and one service thread per process, for everything that must proceed without calls from
 * the user. Its clients are the TCP network, the control plane and the watchdog. docs/design/0014 has the reasons.
 *
 * Lock: loop_mu protects the loop and all that its clients keep for it. The thread holds it while it works, never while
 * it waits; every holder keeps it briefly and calls nothing that may block. Order: loop_mu, then the locks of links and
 * ports.
 *
 * A pass of the thread: wait for events or for the earliest due time of a client; tell sources that are ready; let
 * every client do its part (pass), in which a client may let go of the lock for what takes longer; clients that have
 * nothing more to do stop. When no client is active the thread ends by itself: closing never waits for it. The
 * libraries are linked with -z nodelete, so unloading one right after the last close cannot pull the code from under
 * the thread.
 *
 * Events. epoll carries the number of a source and not its address, and numbers are never used again. So an event of a
 * source that was closed meanwhile, by another event of the same pass or by another thread, finds nothing: any holder
 * of the lock may close and free sources, at any time.
 *
 * Waking. A thread that has queued something calls inet_loop_wake. The service thread reads the eventfd, then clears
 * `woken`, then looks at the queues: entries queued before `woken` was cleared are found by that look, later ones write
 * the eventfd again.
 *
 * Fork. A child has no thread, but copies of all descriptors, which would hide the death of its parent from the peers.
 * So these are closed in the child. There the loop starts afresh with what is made there; what the parent made is
 * refused with ERR_USAGE (inet_forked).
 *
 * Exit. What was queued for peers that read gets out within microseconds; the process waits for that, twice and for at
 * most a second each: in an exit handler, before those of libraries that clients use, and in a destructor, after those
 * of the program. In between and after that no hand-shake is begun (parting): OpenSSL may be gone.
 */
#ifndef GANTRY_INET_LOOP_H
#define GANTRY_INET_LOOP_H

#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/mutex.h"
#include "gantry/result.h"

MUTEX_KIND(loop_mu);

enum { INET_BUCKETS = 1024 };

/* Something that epoll watches. */
struct inet_source {
	int fd; /* -1: none */
	void (*ready)(struct inet_source *s, uint32_t events);
	/* The loop's. */
	uint32_t events;
	uint64_t id; /* 0: not watched */
	struct gantry_list by_id;
};

/* One of those that the thread works for. All entries are called with the lock. */
struct inet_client {
	uint64_t (*due)(void);		  /* when the thread must come at the latest, ns */
	void (*pass)(void);		  /* in every pass; may let go of the lock and take it again */
	int (*busy)(void);		  /* there is something to be served */
	void (*stop)(void);		  /* it is not busy any more; NULL: nothing to do */
	int (*leaving)(int last, int ms); /* at exit: still waits to get something out. ms: since when; NULL: no */
	void (*in_child)(void);		  /* after a fork: forget all, without a word to the peers. No log lines */
	/* The loop's. */
	struct gantry_list node;
	int active;
	uint64_t planned; /* result of due before this pass */
};

struct inet_loop {
	struct loop_mu mu;
	int running GUARDED_BY(loop_mu);
	pid_t ended GUARDED_BY(loop_mu); /* the thread that has ended last and may not be gone yet; 0: none */
	int parting GUARDED_BY(loop_mu); /* exit has begun */
	int watched GUARDED_BY(loop_mu); /* forks and exit are */
	pid_t owner GUARDED_BY(loop_mu); /* the process that the thread is in */
	pthread_t thread GUARDED_BY(loop_mu);
	int epoll_fd GUARDED_BY(loop_mu);
	struct inet_source wake;
	int woken; /* exchange: 1 from a wake-up until the thread takes notice */
	uint64_t passes GUARDED_BY(loop_mu);
	uint64_t now GUARDED_BY(loop_mu); /* ns, of this pass */
	int crowded GUARDED_BY(loop_mu);  /* this pass had as many events as one may have */
	uint64_t last_id GUARDED_BY(loop_mu);
	struct gantry_list clients GUARDED_BY(loop_mu);
	struct gantry_list sources[INET_BUCKETS] GUARDED_BY(loop_mu);
	struct gantry_list abandoned GUARDED_BY(loop_mu); /* in a forked child: what was its parent's */
};
extern struct inet_loop inet_loop;
/* Of how many forks this process is the child. What is made in it keeps the number. */
extern int inet_forks;

static inline void inet_loop_lock(void) ACQUIRES(loop_mu)
{
	loop_mu_lock(&inet_loop.mu);
}

static inline void inet_loop_unlock(void) RELEASES(loop_mu)
{
	loop_mu_unlock(&inet_loop.mu);
}

/* The client has something for the thread, which runs from now on. */
gantry_result inet_loop_start(struct inet_client *c) REQUIRES(loop_mu);
/* With the lock, or while something of the caller's keeps the thread running. */
void inet_loop_wake(void);
/* A pass of the thread; the lock is let go while it waits. Returns how many events it had. */
int inet_loop_pass(void) REQUIRES(loop_mu);
/* Whether `when` has come. Not while there may be something left to read, because what was not read looks like silence;
 * but a flood must not stop the clock. */
int inet_due(uint64_t when) REQUIRES(loop_mu);
/* A client is about to use HMACs on the thread: see Exit. */
void inet_loop_uses_hmac(void);

gantry_result inet_source_add(struct inet_source *s, uint32_t events) REQUIRES(loop_mu);
void inet_source_set(struct inet_source *s, uint32_t events) REQUIRES(loop_mu);
/* It is not watched any more; the descriptor is the caller's. */
int inet_source_release(struct inet_source *s) REQUIRES(loop_mu);
void inet_source_close(struct inet_source *s) REQUIRES(loop_mu);
/* The same, without notifying the peer that this side has ended: for connections that continue over other sockets. */
void inet_source_reset(struct inet_source *s) REQUIRES(loop_mu);

/* A child of the process that made this: its copy is of no use. */
static inline int inet_forked(int forks)
{
	return forks != inet_forks;
}
/* ERR_USAGE with a line that says so. */
gantry_result inet_refuse_forked(const char *what);
/* For in_child: what was the parent's. Kept, because the program has pointers to it. */
void inet_abandon(struct gantry_list *list) REQUIRES(loop_mu);

/* When to retry after so many failures: pauses grow and are randomised, so that processes that failed together do not
 * retry together. */
uint64_t inet_retry_at(uint64_t now, uint32_t failures);

#endif
