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
 */
#ifndef GANTRY_BASE_MUTEX_H
#define GANTRY_BASE_MUTEX_H

#include <pthread.h>
#include <stdbool.h>

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

struct gantry_mutex {
	pthread_mutex_t m;
#if GANTRY_CHECKED
	/* Only the owner itself can find its own name here while it is held: so owner is stored before held, and loaded
	 * after it. Else a thread that has let go might see that somebody else has the mutex, and still its own name. */
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

static inline void gantry_mutex_lock(struct gantry_mutex *m)
{
	ASSERT(!gantry_mutex_mine(m));
	pthread_mutex_lock(&m->m);
	gantry_mutex_owned(m, true);
}

static inline bool gantry_mutex_trylock(struct gantry_mutex *m)
{
	if (pthread_mutex_trylock(&m->m) != 0)
		return false;
	gantry_mutex_owned(m, true);
	return true;
}

static inline void gantry_mutex_unlock(struct gantry_mutex *m)
{
	ASSERT(gantry_mutex_mine(m));
	gantry_mutex_owned(m, false);
	pthread_mutex_unlock(&m->m);
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
#define MUTEX_INITIALIZER                                                                                              \
	{                                                                                                              \
		.mutex = {.m = PTHREAD_MUTEX_INITIALIZER }                                                             \
	}
#define mutex_init(x) ((x)->mutex = (struct gantry_mutex){.m = PTHREAD_MUTEX_INITIALIZER})
#define mutex_destroy(x) ((void)pthread_mutex_destroy(&(x)->mutex.m))
#define ASSERT_HELD(x) ASSERT(gantry_mutex_mine(&(x)->mutex))
#define ASSERT_NOT_HELD(x) ASSERT(!GANTRY_CHECKED || !gantry_mutex_mine(&(x)->mutex))

/* pthread_cond_wait and pthread_cond_timedwait, with the mutex of any kind. */
int gantry_cond_wait(pthread_cond_t *cond, struct gantry_mutex *m, const struct timespec *until);
#define mutex_wait(cond, x) ((void)gantry_cond_wait(cond, &(x)->mutex, NULL))
#define mutex_timedwait(cond, x, until) gantry_cond_wait(cond, &(x)->mutex, until)

#endif
