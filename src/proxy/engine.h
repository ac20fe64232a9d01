/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress engine, as its two halves share it: proxy.c moves operations, round by round; engine.c has the thread, which
 * decides when to make a round and when to sleep. Nothing else includes this.
 */
#ifndef GANTRY_PROXY_ENGINE_H
#define GANTRY_PROXY_ENGINE_H

#include <pthread.h>
#include <stdint.h>

#include <sys/types.h>

#include "base/eventcount.h"
#include "base/mutex.h"
#include "proxy/proxy.h"

MUTEX_KIND(engines_mu); /* which engines there are, and their users */
MUTEX_KIND(proxy_mu);	/* of an engine */
MUTEX_KIND(op_pool_mu); /* of its pool */

struct op_pool {
	struct op_pool_mu mu; /* for takers; short */
	struct gantry_proxy_op *free GUARDED_BY(op_pool_mu);
	uint64_t nfree GUARDED_BY(op_pool_mu);
	void *slabs;				       /* owned: each begins with a pointer to the next */
	_Alignas(64) struct gantry_proxy_op *returned; /* returning threads push; takers exchange */
};

struct gantry_proxy {
	_Alignas(128) struct gantry_eventcount eventcount; /* what the thread sleeps at */
	struct gantry_proxy_op *inbox; /* newest first. Appenders push, the thread takes all; seq_cst */
	uint32_t stop;		       /* seq_cst: looked at between announcing and sleeping */
	_Alignas(64) struct op_pool pool;
	/* Of the thread that makes a round: the progress thread, or one that drives. */
	_Alignas(64) uint32_t driver;  /* 1: a thread is making a round */
	uint64_t driven;	       /* ticks until which one is trusted to drive, 0: it has left; relaxed */
	uint32_t nown;		       /* of the active groups those that only the progress thread moves; relaxed */
	uint32_t nactive;	       /* groups in `active`; relaxed */
	struct gantry_list active;     /* groups with ready connections */
	struct gantry_proxy_op *spent; /* to be given back at the end of the pass */
	struct gantry_proxy_op *spent_last;
	struct gantry_waiter waiter;
	uint64_t nap_ns;		     /* the next sleep with operations in flight */
	uint64_t nap_max_ns;		     /* GANTRY_PROXY_SLEEP */
	uint64_t pushed_ticks, driven_ticks; /* PUSHED_NS, DRIVEN_NS; constant */
	uint32_t crowd;			     /* naps are longer by 2^crowd: back_off */
	struct gantry_proxy_stats stats;     /* relaxed */
	/* Callers'. */
	struct proxy_mu mu; /* `gone` of groups */
	struct gantry_cond cond;
	struct gantry_device *key; /* borrowed: the device it is for; NULL: all of the process */
	int numa_node;		   /* to pin the thread to: of the device that started it, or -1 */
	int users GUARDED_BY(engines_mu);
	pid_t owner; /* the process that has its thread: a child of it starts its own */
	struct gantry_list in_engines GUARDED_BY(engines_mu);
	pthread_t thread;
};

/* proxy.c */
/* One round: take what was appended, pass over what is ready, give back what is spent. 1: something moved; 0; -1: another
 * thread is at it. own_thread: it is the progress thread. */
int gantry_proxy_round(struct gantry_proxy *p, int own_thread);
void gantry_proxy_pool_free(struct op_pool *pool); /* what it owns */

#endif
