/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the progress engine.
 *
 *   ops.c     operations: their pool, appending, taking them over
 *   group.c   groups and connections: made, destroyed, looked at
 *   pass.c    what the thread does with one connection: arrival, progress, completion, failure
 *   thread.c  the thread itself, its idle policy, the engines of the process
 *   steps.c   gantry_proxy_* of gantry/transport.h: talking to the kernel's end of a connection
 *   pin.c     CPUs near a device
 *
 * Whose is what. Everything that is neither atomic nor behind a mutex belongs to the progress thread once the first
 * operation of a connection was appended. Others talk to it through `inbox` alone, also when a group is destroyed: the
 * message takes the same way as operations, so that whatever was appended before it is settled before it.
 */
#ifndef GANTRY_PROXY_ENGINE_H
#define GANTRY_PROXY_ENGINE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/eventcount.h"
#include "base/list.h"
#include "base/mutex.h"
#include "device/dev.h"
#include "proxy/proxy.h"

enum { CACHE_LINE = 64 };

_Static_assert(offsetof(struct gantry_proxy_conn, first) == CACHE_LINE,
	       "the poll loop touches one line per connection");
_Static_assert(sizeof(struct gantry_proxy_op) == CACHE_LINE, "an operation is one line, slabs of them are aligned");

/* In an operation's `reserved`. */
enum { OP_BATCH_END = 1 };

/* A word with one writer that others read: no order, no tearing. */
#define GET(x) load_relaxed(&(x))
#define PUT(x, v) store_relaxed(&(x), (v))
#define ADD(x, v) PUT(x, (x) + (v))

struct conn {
	struct gantry_proxy_conn pub; /* first: transports hold a pointer to it */
	uint64_t sum;		      /* of the four counters when they were last settled */
	uint64_t told;		      /* head: send, as it was last stored; recv, as it was last seen */
	uint64_t seen;		      /* send: steps below were seen posted; an event is put once */
	uint64_t marked;	      /* steps whose slot (recv) or offer (send) was refreshed if it was their turn */
	struct gantry_list in_group;  /* group's mu */
	/* For other threads: copies of pub's words, which transports write plainly; stored relaxed after movement. */
	struct {
		uint64_t posted, moved, flushed, done, end;
		uint32_t op;
		int busy;
	} shown;
};

static inline struct conn *conn_of(const struct gantry_proxy_conn *pc)
{
	return gantry_container(pc, struct conn, pub);
}

MUTEX_KIND(engines_mu); /* which engines there are, and their users */
MUTEX_KIND(proxy_mu);	/* of an engine */
MUTEX_KIND(group_mu);	/* taken by callers only */
MUTEX_KIND(op_pool_mu);

struct gantry_proxy_group {
	struct gantry_proxy *proxy; /* borrowed */
	struct gantry_proxy_group_config config;
	uint64_t pending; /* appenders add, the thread subtracts (release) */
	int error;	  /* gantry_result, written once by the thread (release) */
	/* The progress thread's. */
	struct gantry_list in_active;	 /* in the engine's list while it has ready connections */
	struct gantry_proxy_conn *ready; /* its connections with operations */
	/* The end. */
	struct gantry_proxy_op bye;    /* conn == NULL tells it from an operation */
	int gone GUARDED_BY(proxy_mu); /* the thread will not touch it again */
	struct group_mu mu;
	struct gantry_list conns GUARDED_BY(group_mu);
};

struct op_pool {
	struct op_pool_mu mu; /* those who take; short */
	struct gantry_proxy_op *free GUARDED_BY(op_pool_mu);
	uint64_t nfree GUARDED_BY(op_pool_mu);
	void *slabs;				       /* owned: each begins with a pointer to the next */
	_Alignas(64) struct gantry_proxy_op *returned; /* whoever gives back pushes; takers exchange */
};

struct gantry_proxy {
	_Alignas(128) struct gantry_eventcount eventcount; /* what the thread sleeps at */
	struct gantry_proxy_op *inbox; /* newest first. Appenders push, the thread takes all; seq_cst */
	uint32_t stop;		       /* seq_cst: looked at between announcing and sleeping */
	_Alignas(64) struct op_pool pool;
	/* The progress thread's. */
	_Alignas(64) struct gantry_list active; /* groups with ready connections */
	struct gantry_proxy_op *spent;		/* to be given back at the end of the pass */
	struct gantry_proxy_op *spent_last;
	struct gantry_waiter waiter;
	uint64_t nap_ns;		 /* the next sleep with operations in flight */
	uint64_t nap_max_ns;		 /* GANTRY_PROXY_SLEEP */
	struct gantry_proxy_stats stats; /* relaxed */
	/* Callers'. */
	struct proxy_mu mu; /* `gone` of groups */
	struct gantry_cond cond;
	struct gantry_device *key; /* borrowed: the device it is for; NULL: all of the process */
	int numa_node;		   /* to pin the thread to: of the device that started it, or -1 */
	int users GUARDED_BY(engines_mu);
	struct gantry_list in_engines GUARDED_BY(engines_mu);
	pthread_t thread;
};

/* ops.c */
void gantry_proxy_pool_init(struct op_pool *pool);
void gantry_proxy_pool_destroy(struct op_pool *pool);
void gantry_proxy_pool_put(struct op_pool *pool, struct gantry_proxy_op *first, struct gantry_proxy_op *last);
/* For the thread: all that was appended, oldest first; NULL: nothing. */
struct gantry_proxy_op *gantry_proxy_take(struct gantry_proxy *p);

/* pass.c. All of them by the progress thread. */
int gantry_proxy_arrivals(struct gantry_proxy *p); /* 1: there were some */
int gantry_proxy_pass(struct gantry_proxy *p);	   /* over all ready connections; 1: something moved */

/* steps.c */
void gantry_proxy_tell_head(struct gantry_proxy_conn *pc, uint64_t step);
void gantry_proxy_step_event(struct gantry_proxy_conn *pc, int kind, uint64_t step, const struct gantry_proxy_op *op,
			     uint32_t mode, uint64_t bytes);
/* The wait that gantry_proxy_waits began is over. */
void gantry_proxy_waits_end(struct gantry_proxy_conn *pc);

/* pin.c: the calling thread; does nothing but log where it cannot. */
void gantry_proxy_pin(int numa_node);

#endif
