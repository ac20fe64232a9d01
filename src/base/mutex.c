/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mutex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* stderr and not the log: what is broken may be the log itself, or hold its mutex. */
void gantry_assert_failed(const char *what, const char *function, const char *file, int line)
{
	fprintf(stderr, "gantry: %s:%d: %s: assertion failed: %s\n", file, line, function, what);
	abort();
}

/* False: the deadline has passed. */
static bool wait_while(uint32_t *word, uint32_t value, uint64_t deadline)
{
	struct timespec until = {(time_t)(deadline / 1000000000), (long)(deadline % 1000000000)};

	return !syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, deadline == UINT64_MAX ? NULL : &until, NULL,
			FUTEX_BITSET_MATCH_ANY) ||
	       errno != ETIMEDOUT;
}

static void wake(uint32_t *word, int threads)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

void gantry_mutex_contend(struct gantry_mutex *m)
{
	/* A thread that has waited cannot know whether others still wait: it marks the mutex contended when it takes
	 * it. */
	while (exchange_acquire(&m->state, MUTEX_CONTENDED) != MUTEX_FREE)
		wait_while(&m->state, MUTEX_CONTENDED, UINT64_MAX);
}

void gantry_mutex_wake(struct gantry_mutex *m)
{
	wake(&m->state, 1);
}

void gantry_cond_broadcast(struct gantry_cond *c)
{
	fetch_add_release(&c->seq, 1);
	wake(&c->seq, INT_MAX);
}

bool gantry_cond_wait(struct gantry_cond *c, struct gantry_mutex *m, uint64_t deadline)
{
	/* Under the mutex, like the look at what is waited for: a change that this missed has its broadcast still to come. */
	uint32_t seq = load_relaxed(&c->seq);
	bool in_time;

	gantry_mutex_unlock(m);
	in_time = wait_while(&c->seq, seq, deadline);
	gantry_mutex_lock(m);
	return in_time;
}
