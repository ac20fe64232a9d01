/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes whose rules are checked: by clang when the code is compiled, by ASSERT_HELD when a checked build runs.
 *
 * A kind of mutex is declared once, where its rules are written, and gives a type and its functions:
 *
 *	MUTEX_KIND(link_mu);                                 struct link_mu, link_mu_lock, link_mu_unlock, link_mu_trylock
 *
 *	struct tcp_link {
 *		struct link_mu mu;
 *		int failed GUARDED_BY(link_mu);              clang: touched only while some link_mu is held
 *	};
 *	void match_recv(struct tcp_link *l) REQUIRES(link_mu);   clang: called only while one is held
 *	...
 *	ASSERT_HELD(&l->mu);                                 checked builds: this thread holds this very one
 *
 * Why kinds: in C an annotation of a field cannot name another field of its struct (clang learns that in version 20),
 * and what a link's mutex guards lies in structs of its own that do not hold the mutex. So clang checks the kind, and
 * ASSERT_HELD checks the object. Two mutexes of one kind are never held together; a function that has to is marked
 * UNCHECKED with its reason. What is set up before other threads know it, is set up under the mutex too, or in a
 * function marked UNCHECKED.
 *
 * The mutex is the usual one of three states over a futex, like that of libc, but in line: a message takes six of them,
 * none contended, and the calls into libc were a seventh of all its instructions. Annotations describe it to
 * ThreadSanitizer.
 */
#ifndef GANTRY_BASE_MUTEX_H
#define GANTRY_BASE_MUTEX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"
#include "base/atomic.h"

#ifdef __clang__
#define MUTEX_ATTRIBUTE(x) __attribute__((x))
#else
#define MUTEX_ATTRIBUTE(x)
#endif
#define GUARDED_BY(kind) MUTEX_ATTRIBUTE(guarded_by(kind))
#define POINTS_TO_GUARDED_BY(kind) MUTEX_ATTRIBUTE(pt_guarded_by(kind))
#define REQUIRES(...) MUTEX_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) MUTEX_ATTRIBUTE(locks_excluded(__VA_ARGS__)) /* takes it: must not be held */
#define ACQUIRES(...) MUTEX_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASES(...) MUTEX_ATTRIBUTE(release_capability(__VA_ARGS__))
#define TRIES_TO_ACQUIRE(...) MUTEX_ATTRIBUTE(try_acquire_capability(true, __VA_ARGS__))
#define UNCHECKED MUTEX_ATTRIBUTE(no_thread_safety_analysis)

/* What clang knows a kind by. No object of it exists. */
struct MUTEX_ATTRIBUTE(capability("mutex")) gantry_mutex_kind {
	char none;
};

/* Sanitizers that follow mutexes (order of locking, unlocking by another thread) cannot guess that this is one. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define MUTEX_TELL(call, ...) __tsan_mutex_##call(__VA_ARGS__)
#else
#define MUTEX_TELL(call, ...) ((void)0)
#endif

enum { MUTEX_FREE, MUTEX_LOCKED, MUTEX_CONTENDED };

/* Zeroed: not held. */
struct gantry_mutex {
	uint32_t state;
#if GANTRY_CHECKED
	/* A thread finds its own id here only while it holds the mutex: so owner is stored before held, and loaded
	 * after it. Otherwise a thread that has unlocked might see another thread in the mutex, and still its own id. */
	pthread_t owner;
	bool held;
#endif
};

static inline void gantry_mutex_owned(struct gantry_mutex *m, bool held)
{
#if GANTRY_CHECKED
	if (held)
		store_relaxed(&m->owner, pthread_self());
	store_release(&m->held, held);
#else
	(void)m, (void)held;
#endif
}

static inline bool gantry_mutex_mine(const struct gantry_mutex *m)
{
#if GANTRY_CHECKED
	return load_acquire(&m->held) && pthread_equal(load_relaxed(&m->owner), pthread_self());
#else
	(void)m;
	return true;
#endif
}

/* Another thread has it. Returns when this one does. */
void gantry_mutex_contend(struct gantry_mutex *m);
void gantry_mutex_wake(struct gantry_mutex *m); /* a thread that contends */

static inline void gantry_mutex_lock(struct gantry_mutex *m)
{
	uint32_t found = MUTEX_FREE;

	ASSERT(!gantry_mutex_mine(m));
	MUTEX_TELL(pre_lock, m, 0);
	if (!cas_acquire(&m->state, &found, MUTEX_LOCKED))
		gantry_mutex_contend(m);
	MUTEX_TELL(post_lock, m, 0, 0);
	gantry_mutex_owned(m, true);
}

static inline bool gantry_mutex_trylock(struct gantry_mutex *m)
{
	uint32_t found = MUTEX_FREE;
	bool taken;

	MUTEX_TELL(pre_lock, m, __tsan_mutex_try_lock);
	taken = cas_acquire(&m->state, &found, MUTEX_LOCKED);
	MUTEX_TELL(post_lock, m, taken ? __tsan_mutex_try_lock : __tsan_mutex_try_lock_failed, 0);
	if (taken)
		gantry_mutex_owned(m, true);
	return taken;
}

static inline void gantry_mutex_unlock(struct gantry_mutex *m)
{
	ASSERT(gantry_mutex_mine(m));
	gantry_mutex_owned(m, false);
	MUTEX_TELL(pre_unlock, m, 0);
	if (exchange_release(&m->state, MUTEX_FREE) == MUTEX_CONTENDED)
		gantry_mutex_wake(m);
	MUTEX_TELL(post_unlock, m, 0);
}

#define MUTEX_KIND(kind)                                                                                               \
	extern struct gantry_mutex_kind kind;                                                                          \
	struct kind {                                                                                                  \
		struct gantry_mutex mutex;                                                                             \
	};                                                                                                             \
	__attribute__((unused)) static inline void kind##_lock(struct kind *m) ACQUIRES(kind) UNCHECKED                \
	{                                                                                                              \
		gantry_mutex_lock(&m->mutex);                                                                          \
	}                                                                                                              \
	__attribute__((unused)) static inline bool kind##_trylock(struct kind *m) TRIES_TO_ACQUIRE(kind) UNCHECKED     \
	{                                                                                                              \
		return gantry_mutex_trylock(&m->mutex);                                                                \
	}                                                                                                              \
	__attribute__((unused)) static inline void kind##_unlock(struct kind *m) RELEASES(kind) UNCHECKED              \
	{                                                                                                              \
		gantry_mutex_unlock(&m->mutex);                                                                        \
	}                                                                                                              \
	struct kind

/* Of any kind. */
#define ASSERT_HELD(x) ASSERT(gantry_mutex_mine(&(x)->mutex))

/* Condition variable for what a mutex of any kind guards. Zeroed: no waiters. As with pthread_cond_t, a wait may end
 * spuriously. */
struct gantry_cond {
	uint32_t seq; /* of broadcasts */
};
void gantry_cond_broadcast(struct gantry_cond *c);
/* Until a broadcast, or the deadline (gantry_now_ns, UINT64_MAX: none). False: that has passed. */
bool gantry_cond_wait(struct gantry_cond *c, struct gantry_mutex *m, uint64_t deadline);
#define mutex_wait(cond, x) ((void)gantry_cond_wait(cond, &(x)->mutex, UINT64_MAX))
#define mutex_wait_until(cond, x, deadline) gantry_cond_wait(cond, &(x)->mutex, deadline)

#endif
