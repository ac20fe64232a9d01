/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's own header: what its files share.
 *
 *   host_device.c  the one object per process, its table of operations; streams and queues of copies
 *   host_event.c   events
 *   hold.c         streams behind a kernel that failed
 *   host_launch.c  a kernel on the stream's thread; more blocks and lanes on helper threads; how all of them wait
 *   host_memory.c  allocations (a memfd each, if they can be exported), found by address; handles and dma-bufs of them
 *   share.c        memory for processes that do not see each other's /proc, over a socket
 */
#ifndef GANTRY_DEVICE_HOST_HOST_H
#define GANTRY_DEVICE_HOST_HOST_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/mutex.h"
#include "device/dev.h"
#include "device/device.h"
#include "device/failure.h"

enum { GANTRY_HOST_MAX_BLOCKS = 256, GANTRY_HOST_MAX_LANES = 64, GANTRY_HOST_MAX_THREADS = 1024 };

struct host_helper;
MUTEX_KIND(host_queue_mu);
MUTEX_KIND(helpers_mu);
MUTEX_KIND(stream_mu);
MUTEX_KIND(stream_done_mu);

/* A queue of copies. */
struct host_copy_queue {
	struct host_queue_mu lock;    /* of stream and fences, and of their order */
	struct gantry_stream *stream; /* owned; made on first use */
	uint64_t fences;	      /* given out */
	uint64_t reached;	      /* release by the stream's thread, acquire by waiters */
};

/* One per process. Streams hold references, so it outlives them. */
struct host_device {
	struct gantry_device dev; /* first: the ops cast back */
	pid_t owner;		  /* the process that has its threads: a child of it gets a device of its own */
	uint32_t refs;		  /* under host_device.c's lock */
	struct gantry_stream *default_stream; /* owned; made on first use, under host_device.c's lock */
	struct host_copy_queue queues[GANTRY_COPY_QUEUES];
	struct helpers_mu helpers_mu;
	struct host_helper *idle; /* owned; block threads that no stream has; under helpers_mu while streams live */
	uint32_t nhelpers;	  /* all there are; written under helpers_mu, read relaxed */
};
static inline struct host_device *host_device(struct gantry_device *dev)
{
	return (struct host_device *)(void *)dev;
}

#define gantry_host_free_mapped gantry_host_free		  /* all its memory is alike, */
#define gantry_host_stream_create_apart gantry_host_stream_create /* and each stream has a thread of its own */
#define OP(name, params) gantry_result gantry_host_##name params;
#include "device/ops.def"

/* host_memory.c */
int gantry_host_file_of(const void *ptr); /* of an allocation; -1: it was closed */
/* Maps a memfd of another process, whose size is sealed, until ipc_close; the file stays the caller's. */
gantry_result gantry_host_import(int fd, size_t size, void **ret_ptr);
int gantry_host_can_dmabuf(void);

/* What a stream does, in order. Items are preallocated; arguments that fit travel inside. */
enum host_item_kind {
	HOST_ITEM_LAUNCH,
	HOST_ITEM_COPY,
	HOST_ITEM_FENCE, /* stores `size` at the 64-bit word `dst` */
	HOST_ITEM_RECORD,
	HOST_ITEM_WAIT,
	HOST_ITEM_STOP
};
enum { HOST_INLINE_ARGS = 176 };
struct host_mark;
struct host_item {
	uint16_t kind;
	uint16_t blocks, lanes;
	uint16_t yields; /* LAUNCH */
	union {
		void (*fn)(const void *args); /* LAUNCH */
		struct host_mark *mark;	      /* RECORD, WAIT: a reference */
		void *dst;		      /* COPY */
	};
	union {
		const void *args; /* LAUNCH: inline_args or owned */
		const void *src;
	};
	size_t size; /* of the arguments or of one row */
	const uint32_t *abort;
	struct gantry_eventcount *eventcounts;
	const struct gantry_help *help;
	union {
		struct {
			size_t dst_stride, src_stride, rows; /* COPY */
		};
		struct gantry_failure *failure; /* LAUNCH; borrowed while its kernel runs */
	};
	char inline_args[HOST_INLINE_ARGS];
};
_Static_assert(sizeof(struct host_item) == 256, "items of a ring start on cache lines");

struct gantry_stream {
	uint32_t magic;		 /* of a live stream: stream_wrap is given pointers by users */
	uint32_t refs;		 /* creator and wrappers; fetch_add, fetch_sub */
	struct host_device *hd;	 /* a reference, but for the default stream, which the device owns */
	struct host_item *items; /* owned: the ring */
	/* Producers'. */
	struct stream_mu mu;
	pthread_t thread;
	int started;
	struct host_helper *helpers, *last_helper; /* owned while the stream lives; appended to, never taken from */
	uint32_t nhelpers;
	/* Sleepers in wait_until. */
	struct stream_done_mu done_mu;
	struct gantry_cond done_cond;
	/* Each on a line of its own. All seq_cst, because each end looks at the other's before it sleeps. */
	char pad0[128];
	uint64_t tail; /* items enqueued; written by producers, read by the runner */
	char pad1[120];
	uint64_t done;	 /* items done, so their places are free; written by the runner */
	uint32_t runner; /* a thread is running items: the worker, or one that waits for them */
	uint32_t lazy;	 /* the worker looks by itself every now and then: producers need not wake it */
	char pad2[112];
	uint64_t wake_at; /* the lowest `done` that a thread sleeps for; written under done_mu, read by the runner */
	char pad3[120];
	struct gantry_eventcount eventcount; /* the worker's */
	struct gantry_eventcount blocks;     /* the runner's: for the helpers of a launch */
	struct dev_team team;		     /* block 0's, when it has several lanes */
	/* hold.c's, written under its lock; whether there is one may be asked without it, seq_cst. */
	struct gantry_failure *held; /* a reference; NULL: nothing holds it */
	struct gantry_hold_end last_end;
	int ending; /* it is destroyed: nothing holds it any more; seq_cst */
};
/* Puts an item into the stream; args: item->size bytes, copied (LAUNCH), else NULL. Waits while the ring is full. */
gantry_result gantry_host_enqueue(struct gantry_stream *s, const struct host_item *item, const void *args);

/* host_event.c. Reaching uses up the item's reference, and so does waiting unless it returns what holds the mark, a reference;
 * with `ending` it does both. */
void gantry_host_mark_reach(struct host_mark *m);
struct gantry_failure *gantry_host_mark_await(struct host_mark *m, int ending);
/* The stream does not come to it as long as it is held. */
void gantry_host_mark_held(struct gantry_stream *s, struct host_mark *m);

/* hold.c */
int gantry_host_hold(struct gantry_stream *s, struct gantry_failure *f); /* takes the reference over; 1: it is held */
int gantry_host_held(struct gantry_stream *s);				 /* the runner's, before each item */
/* What a wait returns that began when gantry_failure_now() was `since`. */
gantry_result gantry_host_hold_result(struct gantry_stream *s, uint64_t since);
void gantry_host_hold_release(struct gantry_stream *s); /* no other thread has a reference */
/* A mark's: takes the stream's failure, or returns what holds it, a reference. */
void gantry_host_hold_mark(struct gantry_stream *s, struct gantry_failure **at);
struct gantry_failure *gantry_host_holding(struct gantry_failure **at);

/* host_launch.c */
/* On the runner's thread. What the kernel failed with: a reference; NULL: it did its work. */
struct gantry_failure *gantry_host_run(struct gantry_stream *s, const struct host_item *item);

void gantry_host_helpers_give(struct host_device *hd, struct host_helper *first); /* waits until they are quiet */
void gantry_host_helpers_end(struct host_device *hd);
void gantry_host_wait_setup(void);

#endif
