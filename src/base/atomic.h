/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words in which CPU threads share memory: the order is in the name, so a reader of a call knows what it promises.
 * Device code has its own in device/dev.h, with the same meanings. Fields that cross threads are touched by these only.
 *
 * acquire   what the writer did before its release is seen after this load
 * release   what this thread did before is visible to a thread that loads the value with acquire
 * relaxed   the value alone: counters, and hints that are looked at again under a lock
 * seq       one order for all threads: a flag that is raised before another is looked at (Dekker), as sleepers and
 *           their wakers do
 */
#ifndef GANTRY_BASE_ATOMIC_H
#define GANTRY_BASE_ATOMIC_H

#define load_relaxed(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define load_acquire(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define load_seq(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)

#define store_relaxed(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#define store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define store_seq(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)

/* All return the value from before. */
#define exchange_relaxed(p, v) __atomic_exchange_n(p, v, __ATOMIC_RELAXED)
#define exchange_acquire(p, v) __atomic_exchange_n(p, v, __ATOMIC_ACQUIRE)
#define exchange_release(p, v) __atomic_exchange_n(p, v, __ATOMIC_RELEASE)
#define exchange_acq_rel(p, v) __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL)
#define exchange_seq(p, v) __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)
#define fetch_add_relaxed(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELAXED)
#define fetch_add_release(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELEASE)
#define fetch_add_seq(p, v) __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST)
#define fetch_sub_relaxed(p, v) __atomic_fetch_sub(p, v, __ATOMIC_RELAXED)
#define fetch_sub_release(p, v) __atomic_fetch_sub(p, v, __ATOMIC_RELEASE)
#define fetch_sub_acq_rel(p, v) __atomic_fetch_sub(p, v, __ATOMIC_ACQ_REL)
#define fetch_sub_seq(p, v) __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST)
#define fetch_or_relaxed(p, v) __atomic_fetch_or(p, v, __ATOMIC_RELAXED)
#define fetch_or_seq(p, v) __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST)

/* True if *p was *expected and is v now; else *expected is what it was. `weak` may fail for no reason: for loops. */
#define cas_relaxed(p, expected, v) __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
#define cas_acquire(p, expected, v) __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)
#define cas_acq_rel(p, expected, v) __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
#define cas_seq(p, expected, v) __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#define cas_weak_release(p, expected, v)                                                                               \
	__atomic_compare_exchange_n(p, expected, v, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED)
#define cas_weak_seq(p, expected, v) __atomic_compare_exchange_n(p, expected, v, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)

#endif
