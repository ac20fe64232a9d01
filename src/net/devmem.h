/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where fragments come from. A source is the real thing (devmem/: devmem TCP of Linux) or stands for it (emulated/: a NIC
 * in user space over ordinary sockets). Everything above sees only this table and cannot tell them apart: receive
 * and give_back have the kernel's results, errno and limits, control messages included.
 *
 * A binding is memory that a NIC's queues write to. A flow is a connected TCP socket whose payload lands there. A
 * binding must outlive its flows; what flows still hold (tokens) stays valid until they are detached.
 *
 * Threads: calls on different flows may run at the same time. On one flow give_back may run beside receive, as with the
 * kernel; receive calls of one flow do not overlap.
 */
#ifndef GANTRY_NET_DEVMEM_H
#define GANTRY_NET_DEVMEM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "gantry/result.h"
#include "net/net.h"

/*
 * Linux's device-memory TCP interface: numbers and layouts that the headers of older distributions lack. The kernel's
 * own headers win where they have them.
 */

#ifndef MSG_SOCK_DEVMEM
#define MSG_SOCK_DEVMEM 0x2000000
#endif
#ifndef SO_DEVMEM_LINEAR
#define SO_DEVMEM_LINEAR 78 /* but for sparc and hppa, which have numbers of their own */
#define SO_DEVMEM_DMABUF 79
#define SO_DEVMEM_DONTNEED 80
#endif
#ifndef SCM_DEVMEM_LINEAR
#define SCM_DEVMEM_LINEAR SO_DEVMEM_LINEAR
#define SCM_DEVMEM_DMABUF SO_DEVMEM_DMABUF
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef SO_INCOMING_NAPI_ID
#define SO_INCOMING_NAPI_ID 56
#endif

/* Errors of the kernel's own that reach user space here; libc has no names for them. */
enum { DEVMEM_ETOOSMALL = 525, DEVMEM_ENOTSUPP = 524 };
/* Of one return call: ranges, and fragments looked at. */
enum { DEVMEM_MAX_RANGES = 128, DEVMEM_MAX_RETURNED = 1024 };

/* struct dmabuf_cmsg and struct dmabuf_token of linux/uio.h, under names of our own: newer headers have those. */
struct devmem_cmsg {
	uint64_t frag_offset;
	uint32_t frag_size, frag_token, dmabuf_id, flags;
};
struct devmem_token {
	uint32_t token_start, token_count;
};
_Static_assert(sizeof(struct devmem_cmsg) == 24, "the kernel writes these");
_Static_assert(sizeof(struct devmem_token) == 8, "the kernel reads these");

enum { DEVMEM_WHY = 320 }; /* room for a reason why not */

/* A dma-buf of memory that is sent from. */
struct devmem_file {
	int fd;
	uint64_t offset; /* at which the memory begins in it */
};

/* A stretch of memory that fragments land in. */
struct devmem_memory {
	struct gantry_device *device; /* borrowed: whose kernels read it */
	uint8_t *host;		      /* for the CPU; NULL: it cannot touch it */
	uint8_t *device_ptr;	      /* for kernels */
	uint64_t size;		      /* a multiple of the page size, without a file */
	uint32_t page;		      /* bytes of a page, a power of two: a fragment lies in one. 0: the system's */
	/* For bind_tx, until it returns: the memory is in this dma-buf, and offsets of `send` count from the beginning of the
	 * memory all the same. NULL: the device exports it. */
	const struct devmem_file *file;
};

static inline uint64_t devmem_page(const struct devmem_memory *m)
{
	return m->page ? m->page : (uint64_t)sysconf(_SC_PAGESIZE);
}

struct devmem_binding {
	const struct devmem_source_ops *ops; /* borrowed, const */
	uint32_t dmabuf_id;		     /* never 0 */
	struct devmem_memory memory;
	uint64_t abandoned; /* fragments that were not given back before their flow ended; relaxed (frags.c) */
	/*
	 * Reported bytes may still be on their way to the memory: copies in the device's queue GANTRY_COPY_IN find them
	 * there, all other readers once a fence of that queue is reached that was taken after receive has returned.
	 */
	int late;
};

struct devmem_flow {
	struct devmem_binding *binding; /* borrowed */
	int fd;				/* borrowed: a connected TCP socket */
};

/* Memory that is sent from without a copy. */
struct devmem_tx {
	const struct devmem_source_ops *ops; /* borrowed, const */
	uint32_t dmabuf_id;		     /* never 0: the kernel would read offsets as host addresses */
	struct devmem_memory memory;
};

struct devmem_source_ops {
	enum gantry_net_unpack kind;
	const char *name;
	uint32_t page; /* of memory that is made for it: as in devmem_memory */
	/* nic: name of the interface. The binding ends with unbind, or with the process. */
	gantry_result (*bind)(const struct devmem_memory *memory, const char *nic, struct devmem_binding **ret_binding);
	void (*unbind)(struct devmem_binding *b); /* NULL is fine */
	/* The payload that arrives at `fd` from now on lands in the binding (kernel: as soon as its flow rule works).
	 */
	gantry_result (*attach)(struct devmem_binding *b, int fd, struct devmem_flow **ret_flow);
	void (*detach)(struct devmem_flow *f); /* all its tokens are free; before the socket is closed; NULL is fine */
	/* recvmsg(fd, msg, flags | MSG_SOCK_DEVMEM) */
	ssize_t (*receive)(struct devmem_flow *f, struct msghdr *msg, int flags);
	/* setsockopt(fd, SOL_SOCKET, SO_DEVMEM_DONTNEED): the number of fragments freed, or -1 with errno. */
	int (*give_back)(struct devmem_flow *f, const struct devmem_token *ranges, size_t n);
	/* Sending. No rights are needed. ERR_UNSUPPORTED with a reason in the log where NIC or kernel cannot. */
	gantry_result (*bind_tx)(const struct devmem_memory *memory, const char *nic, struct devmem_tx **ret_tx);
	void (*unbind_tx)(struct devmem_tx *t); /* NULL is fine */
	/* sendmsg(MSG_ZEROCOPY | flags) of memory [offset, offset + len) on a socket with SO_ZEROCOPY: bytes taken, or
	 * -1 with errno. Each call that took something has the next number of its socket, from 0. */
	ssize_t (*send)(struct devmem_tx *t, int fd, uint64_t offset, size_t len, int flags);
	/* The next range [lo, hi] of calls whose memory may change again: 1, or 0: none now, or -1 with errno. */
	int (*completed)(struct devmem_tx *t, int fd, uint32_t *ret_lo, uint32_t *ret_hi);
	void (*forget)(struct devmem_tx *t, int fd); /* the socket is about to be closed */
	/* One line for people: which NIC, queue, memory, and what has come and gone. */
	void (*describe)(const struct devmem_binding *b, char *text, size_t len);
};

/* Until everything that flows of this binding have reported is in its memory. (page_pool.c) */
gantry_result devmem_settle(const struct devmem_binding *b);

extern const struct devmem_source_ops devmem_kernel;
/* The emulated NIC: linked in, or from its library. ERR_CONFIG: that is not there. (emulated/) */
gantry_result devmem_emulated_open(const struct devmem_source_ops **ret_ops);
/* The source of a kind. ERR_UNSUPPORTED for OFF, else as devmem_emulated_open. (detect.c) */
gantry_result devmem_source_get(enum gantry_net_unpack kind, const struct devmem_source_ops **ret_source);

/* Can devmem TCP of this kernel bring what arrives at `nic` to memory of `dev`? 1, or 0 with the first reason why not
 * and what to do about it. Changes nothing. (detect.c) */
int devmem_kernel_usable(const char *nic, struct gantry_device *dev, char *why, size_t len);

/* How payload reaches device memory: what was asked for against what NIC, kernel and device can do. */

/*
 * want: PARAM asks GANTRY_UNPACK. Devmem TCP that was asked for by name and cannot be used is ERR_UNSUPPORTED with the
 * reason; `auto` falls back to OFF and the reason stands in `why` (which is "" otherwise). Changes nothing.
 */
gantry_result devmem_choose(enum gantry_net_unpack want, const char *nic, struct gantry_device *dev,
			    enum gantry_net_unpack *ret_kind, char why[DEVMEM_WHY]);

#endif
