/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's own header: what its files share.
 *
 *   device.c   the one object per process, its table of operations
 *   memory.c   allocations (a memfd each, if they can be exported) and the table that finds them by address
 *   ipc.c      allocations of other processes: handles, opened through /proc/PID/fd
 *   share.c    the same over a socket, for processes that do not see each other's /proc
 *   udmabuf.c  dma-bufs of allocations, for NICs
 *   stream.c   a stream: a ring of items and a thread that does them in order
 *   move.c     the device's own queues of copies
 *   event.c    marks in streams
 *   launch.c   a kernel on the stream's thread; more blocks and lanes on helper threads
 *   helper.c   those threads
 *   wait.c     how all of them wait
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

typedef void (*gantry_host_body)(const void *args);

enum { GANTRY_HOST_MAX_BLOCKS = 256, GANTRY_HOST_MAX_LANES = 64, GANTRY_HOST_MAX_THREADS = 1024 };

struct host_helper;
MUTEX_KIND(host_way_mu);
MUTEX_KIND(helpers_mu);
MUTEX_KIND(stream_mu);
MUTEX_KIND(stream_done_mu);

/* A queue of copies: move.c. */
struct host_way {
	struct host_way_mu lock;      /* of stream and tickets, and of the order of marks */
	struct gantry_stream *stream; /* owned; made on first use */
	uint64_t tickets;	      /* given out */
	uint64_t reached;	      /* release by the stream's thread, acquire by who waits */
};

/* One per process. Streams hold references, so it outlives them. */
struct host_device {
	struct gantry_device dev;	      /* first: the ops cast back */
	uint32_t refs;			      /* under device.c's lock */
	struct gantry_stream *default_stream; /* owned; made on first use, under device.c's lock */
	struct host_way ways[GANTRY_WAYS];
	struct helpers_mu helpers_mu;
	struct host_helper *idle; /* owned; block threads that no stream has; under helpers_mu while streams live */
	uint32_t nhelpers;	  /* all there are; written under helpers_mu, read relaxed */
};
static inline struct host_device *host_device(struct gantry_device *dev)
{
	return (struct host_device *)(void *)dev;
}
void gantry_host_ref(struct host_device *hd);
void gantry_host_unref(struct host_device *hd); /* the last one ends the helpers and frees */

#define gantry_host_free_mapped gantry_host_free		  /* all its memory is alike, */
#define gantry_host_stream_create_apart gantry_host_stream_create /* and each stream has a thread of its own */
#define OP(name, params) gantry_result gantry_host_##name params;
#include "device/ops.def"

/* memory.c: allocations and imports, found by address. The table is the process's, not the device's. */
struct host_mem {
	char *base;
	size_t size;	/* as asked for */
	size_t mapped;	/* whole pages */
	int fd;		/* -1: imported, or not to be exported */
	uint32_t opens; /* ipc_open, imported or our own */
	int owned;	/* allocated here and not freed yet */
	dev_t st_dev;	/* of a memfd, imported or our own; st_ino 0: anonymous memory */
	ino_t st_ino;
};
/* name: of the memfd, whose memory can be exported; NULL: anonymous. */
gantry_result gantry_host_alloc_file(const char *name, size_t size, void **ret_ptr);
/* For ipc.c and share.c. Pointers into the table are good until it is unlocked or something is added. */
MUTEX_KIND(host_mem_mu);
extern struct host_mem_mu gantry_host_mem_mu;				      /* of the table */
struct host_mem *gantry_host_mem_find(const void *ptr) REQUIRES(host_mem_mu); /* that holds this address, or NULL */
struct host_mem *gantry_host_mem_find_file(bool owned, dev_t dev, ino_t ino)
	REQUIRES(host_mem_mu); /* dev 0: any, for all memfds of a host are on one */
/* Maps a memfd of another process, whose size nobody can change and is this; the file stays the caller's. */
gantry_result gantry_host_mem_import(int fd, size_t size, struct host_mem **ret_mem) REQUIRES(host_mem_mu);
void gantry_host_mem_drop(struct host_mem *m) REQUIRES(host_mem_mu); /* unmaps it, if nobody has it any more */

int gantry_host_can_dmabuf(void); /* udmabuf.c */

/* What a stream does, in order. Items are preallocated; arguments that fit travel inside. */
enum host_item_kind {
	HOST_ITEM_LAUNCH,
	HOST_ITEM_COPY,
	HOST_ITEM_ROWS,
	HOST_ITEM_MARK, /* stores `size` at the 64-bit word `dst` */
	HOST_ITEM_RECORD,
	HOST_ITEM_WAIT,
	HOST_ITEM_STOP
};
enum { HOST_INLINE_ARGS = 184 };
struct host_mark;
struct host_item {
	uint32_t kind;
	uint16_t blocks, lanes;
	union {
		gantry_host_body fn;	/* LAUNCH */
		struct host_mark *mark; /* RECORD, WAIT: a reference */
		void *dst;		/* COPY, ROWS */
	};
	union {
		const void *args; /* LAUNCH: inline_args or owned */
		const void *src;
	};
	size_t size; /* of the arguments, of the copy or of one row */
	const uint32_t *abort;
	struct gantry_eventcount *eventcounts;
	size_t dst_stride, src_stride, rows; /* ROWS */
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
	/* Sleepers in gantry_host_wait_until. */
	struct stream_done_mu done_mu;
	struct gantry_cond done_cond;
	/* Each on a line of its own. All seq_cst, because each end looks at the other's before it sleeps. */
	char pad0[128];
	uint64_t tail; /* items enqueued; written by producers, read by the worker */
	char pad1[120];
	uint64_t done; /* items done, so their places are free; written by the worker */
	char pad2[120];
	uint64_t wake_at; /* the lowest `done` that somebody sleeps for; written under done_mu, read by the worker */
	char pad3[120];
	struct gantry_eventcount eventcount; /* the worker's: for items and for the helpers of a launch */
	struct dev_team team;		     /* block 0's, when it has several lanes */
};
gantry_result gantry_host_stream_new(struct host_device *hd, struct gantry_stream **ret_stream);
void gantry_host_stream_release(struct gantry_stream *s); /* the last one waits for what is in it; NULL is fine */
int gantry_host_is_stream(const struct gantry_stream *s);
/* Puts an item into the stream; args: item->size bytes, copied (LAUNCH), else NULL. Waits while the ring is full. */
gantry_result gantry_host_enqueue(struct gantry_stream *s, const struct host_item *item, const void *args);

/* event.c: both run on the stream's thread and use up the item's reference. */
void gantry_host_mark_reach(struct host_mark *m);
void gantry_host_mark_await(struct host_mark *m);

/* launch.c */
/* What launch does once it knows the body; also how tests run bodies of their own and how others call a host function
 * in stream order. The arguments are copied. lanes 0: one. */
gantry_result gantry_host_launch_body(struct gantry_device *dev, struct gantry_stream *s, uint32_t blocks,
				      uint32_t lanes, gantry_host_body fn, const void *args, size_t args_size,
				      const uint32_t *abort_flag, struct gantry_eventcount *eventcounts);
void gantry_host_run(struct gantry_stream *s, const struct host_item *item); /* on the stream's thread */

/* helper.c: threads for the further blocks and lanes of launches. */
struct host_helper {
	/* A job. Written by the stream's worker before it raises `given`; not touched by the helper once it has counted
	 * itself out of `pending`. */
	struct dev_thread self;
	gantry_host_body fn; /* NULL: end */
	const void *args;
	uint32_t *pending;			   /* of the launch: helpers still at work */
	struct gantry_eventcount *done_eventcount; /* of the worker: rung by the last one */
	uint64_t given;				   /* jobs; by the worker; seq_cst */
	uint64_t finished;			   /* jobs whose stream the helper no longer touches; by the helper */
	struct dev_team team;			   /* of the block whose lane 0 runs here */
	struct gantry_eventcount eventcount;
	struct host_device *hd; /* borrowed */
	pthread_t thread;
	struct host_helper *next; /* in its stream or among the idle */
};
/* n of them, chained; all or none. */
gantry_result gantry_host_helpers_take(struct host_device *hd, uint32_t n, struct host_helper **ret_first,
				       struct host_helper **ret_last);
void gantry_host_helpers_give(struct host_device *hd, struct host_helper *first); /* waits until they are quiet */
void gantry_host_helpers_end(struct host_device *hd);
void gantry_host_helper_start(struct host_helper *h); /* on the job that was written into it */

/* wait.c */
void gantry_host_wait_setup(void);

#endif
