/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports: how steps get from one rank to another. This header is all that a transport needs, in the tree or out of
 * it; docs/adding-a-transport.md walks through one in six steps.
 *
 * A connection has a sending and a receiving end, each in the process of its rank. For each end:
 *
 *   can_connect   may these two ranks use this transport? Both ends must answer alike, from the two peer infos alone.
 *   setup         makes what the peer must know (an address, a handle) and writes it into `info`
 *   connect       has the peer's info; called again while it says AGAIN; fills c->conn, what the kernels see
 *   free          undoes all of it, half-built too; never waits for the peer
 *
 * An end whose kernels cannot reach the other side by loads and stores is proxied: it sets GANTRY_CONN_PROXIED and the
 * progress thread moves its steps:
 *
 *   proxy_setup, proxy_connect     the proxy's part of the above, called before setup and after connect returned OK
 *   proxy_progress                 one pass over one connection that has operations; never blocks
 *   proxy_register, _deregister    user memory that PTR steps will name
 *   proxy_free
 *
 * Threads: can_connect, setup, connect, free and the proxy's setup, connect, register and free run on threads of the
 * caller, one at a time per connection; proxy_progress runs on the progress thread only, and never at the same time as
 * proxy_free. What a transport lacks is the function gantry_transport_unsupported_*, never NULL.
 */
#ifndef GANTRY_TRANSPORT_H
#define GANTRY_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/device.h"
#include "gantry/fifo.h"
#include "gantry/result.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every rank knows of every other. Plain bytes, the same on all hosts of one architecture family (little endian).
 */
struct gantry_peer_info {
	int32_t rank;
	int32_t device_kind; /* enum gantry_device_kind */
	int32_t device_index;
	int32_t sleeps;	  /* its kernels sleep on eventcounts */
	uint64_t host;	  /* same machine (boot id) */
	uint64_t process; /* random: same process */
	uint64_t pid;
	uint64_t pid_ns, net_ns, user; /* inodes and uid: what can be shared between two processes of a host */
	char bus_id[24];	       /* the GPU's, "" for the host device */
	char host_name[64];
	char version[32];
};

enum { GANTRY_CONNECT_INFO_SIZE = 512 };
struct gantry_connect_info {
	unsigned char bytes[GANTRY_CONNECT_INFO_SIZE];
};

struct gantry_transport;
struct gantry_proxy_conn;
struct gantry_comm;

/* One end of a connection while it is made and as long as it lives. */
struct gantry_connector {
	/* Given. Borrowed. */
	const struct gantry_transport *transport;
	struct gantry_device *device;
	const struct gantry_peer_info *me, *peer;
	uint64_t comm_id; /* the same on all ranks */
	int send;
	int channel, nchannels;
	struct gantry_eventcount *eventcount; /* what this end's kernels sleep on; NULL: they never sleep */
	/* struct gantry_ipc_handle of the page that it lies in, with others; NULL if there is none */
	const void *eventcount_handle;
	uint64_t eventcount_offset;	 /* of `eventcount` within that page */
	struct gantry_conn_state *state; /* host memory */
	/* What the progress thread sleeps on: conn.eventcount of a proxied end on the host device. */
	struct gantry_eventcount *proxy_eventcount;
	/* Filled in. */
	struct gantry_conn conn;
	uint64_t max_step; /* largest Simple step of this connection; both ends agree; 0: the sender chooses freely */
	int peer_notifies; /* the other end wakes this end's eventcount */
	int shares_memory; /* PTR: 0 no; 1 any address of this process is good at the other end too; 2 after the memory
			      was exported to the peer's process; 3 after proxy_register */
	struct gantry_proxy_conn *proxy; /* of a proxied end, made by the core before setup; else NULL */
	void *resources;		 /* the transport's own */
};

/* A proxied operation: the steps of one transfer on one connection. From a pool; owned by the proxy once appended. */
struct gantry_proxy_op {
	struct gantry_proxy_op *next;
	struct gantry_proxy_conn *conn;
	uint64_t bytes;
	uint64_t step_bytes;
	uint64_t nsteps;      /* a multiple of slice_steps */
	uint64_t base;	      /* first step; set when the proxy takes the operation */
	uint32_t slice_steps; /* progress goes in slices of this many steps; 1 for send and recv */
	uint32_t chunk_steps; /* base is rounded up to a multiple of this */
	uint8_t proto;	      /* enum gantry_proto */
	uint8_t ptr;	      /* steps name the user's buffer */
	uint8_t exact;	      /* sizes of steps follow from bytes and step_bytes; else only their maximum does */
	uint8_t reserved;
	uint32_t id; /* for the trace: the communicator's operation number */
};

/* Where the time of a connection went: waiting for whom. */
enum gantry_wait_cause {
	GANTRY_WAIT_KERNEL,
	GANTRY_WAIT_PEER,
	GANTRY_WAIT_SOCKET,
	GANTRY_WAIT_FLUSH,
	GANTRY_WAIT_SPACE,
	GANTRY_WAIT_CAUSES
};

/*
 * One proxied end. The first cache line is all that the poll loop touches. Steps are absolute;
 *   send: posted (space offered) >= moved (handed to the network) >= done (head told)
 *   recv: posted (receive posted) >= moved (arrived) >= flushed (kernel told) >= done (kernel has consumed)
 * and none is beyond `end`. Owned by the progress thread once connected.
 */
struct gantry_proxy_conn {
	uint64_t posted, moved, flushed, done;
	uint64_t end;				  /* steps of all operations taken so far */
	struct gantry_proxy_op *current;	  /* the operation that step `posted` belongs to */
	void *resources;			  /* the transport's */
	const struct gantry_transport_side *side; /* borrowed */
	/* Second line and further. */
	struct gantry_proxy_op *first, *last; /* operations not finished, in order */
	struct gantry_fifo *fifo; /* as the CPU addresses it: what the kernel end uses, given by the transport */
	struct gantry_eventcount *kernel_eventcount;	   /* rung after publishing; NULL: the kernel never sleeps */
	struct gantry_connector *connector;		   /* borrowed */
	struct gantry_proxy *proxy;			   /* borrowed: the engine */
	struct gantry_proxy_group *group;		   /* borrowed: the communicator it belongs to */
	struct gantry_proxy_conn *ready_next, *ready_prev; /* the list of connections with work */
	int ready, send, waits_for;			   /* enum gantry_wait_cause while idle */
	uint32_t id;					   /* for the trace */
	uint64_t waits_since;				   /* ticks */
	/* Counters: written by the progress thread, relaxed; read by anybody. */
	uint64_t bytes, steps, ops, copies;
	uint64_t wait_ticks[GANTRY_WAIT_CAUSES];
	uint64_t progress_ns; /* when a step last moved (coarse clock) */
};

struct gantry_transport_side {
	gantry_result (*setup)(struct gantry_connector *c, struct gantry_connect_info *ret_info);
	gantry_result (*connect)(struct gantry_connector *c, const struct gantry_connect_info *peer);
	void (*free)(struct gantry_connector *c);
	gantry_result (*proxy_setup)(struct gantry_connector *c);
	gantry_result (*proxy_connect)(struct gantry_connector *c);
	gantry_result (*proxy_progress)(struct gantry_proxy_conn *pc, int *ret_worked);
	gantry_result (*proxy_register)(struct gantry_proxy_conn *pc, void *ptr, size_t size, void **ret_handle);
	gantry_result (*proxy_deregister)(struct gantry_proxy_conn *pc, void *handle);
	void (*proxy_free)(struct gantry_connector *c);
};

#define GANTRY_TRANSPORT_PROXIED_SEND 1 /* its sending ends need the proxy */
#define GANTRY_TRANSPORT_PROXIED_RECV 2

struct gantry_transport {
	const char *name; /* as in --transport and GANTRY_TRANSPORT */
	/* Returns the GANTRY_TRANSPORT_PROXIED_* bits that this pair will need. */
	int (*proxied)(const struct gantry_peer_info *me, const struct gantry_peer_info *peer);
	/* why: one line, when the answer is no. */
	gantry_result (*can_connect)(const struct gantry_peer_info *me, const struct gantry_peer_info *peer,
				     int *ret_can, char *why, size_t len);
	struct gantry_transport_side send, recv;
};

#define GANTRY_API __attribute__((visibility("default")))

/*
 * Registers a transport, before or after the built-in ones (p2p, shm, net, in this order); at most 16. The table is
 * borrowed for the life of the process. Communicators made later see it.
 */
GANTRY_API gantry_result gantry_transport_register(const struct gantry_transport *t, int before_builtin);
GANTRY_API gantry_result gantry_transport_unregister(const struct gantry_transport *t);
/* A library named in GANTRY_TRANSPORT_LIBS has this function; it registers what the library brings. */
typedef gantry_result (*gantry_transport_init_fn)(void);
#define GANTRY_TRANSPORT_INIT_SYMBOL "gantry_transport_init"

GANTRY_API gantry_result gantry_transport_unsupported_connector(struct gantry_connector *c);
GANTRY_API void gantry_transport_unsupported_free(struct gantry_connector *c);
GANTRY_API gantry_result gantry_transport_unsupported_progress(struct gantry_proxy_conn *pc, int *ret_worked);
GANTRY_API gantry_result gantry_transport_unsupported_register(struct gantry_proxy_conn *pc, void *ptr, size_t size,
							       void **ret_handle);
GANTRY_API gantry_result gantry_transport_unsupported_deregister(struct gantry_proxy_conn *pc, void *handle);

/*
 * For proxy_progress. Sending end: has the kernel posted step s? Fills mode, size and the place (an offset or an
 * address) and returns 1, else 0. Then, when the peer has the data: gantry_proxy_done, which tells the kernel.
 */
GANTRY_API int gantry_proxy_posted(struct gantry_proxy_conn *pc, uint64_t step, uint32_t *ret_mode, uint64_t *ret_size,
				   uint64_t *ret_place);
/* Sending end, OFFSET: hands space to the kernel. */
GANTRY_API void gantry_proxy_offer(struct gantry_proxy_conn *pc, uint64_t step, uint64_t offset, uint64_t size);
/* Sending end: steps below `step` are done; their buffers are the kernel's again. */
GANTRY_API void gantry_proxy_done(struct gantry_proxy_conn *pc, uint64_t step);
/* Receiving end, PTR: has the kernel offered a buffer for step s? */
GANTRY_API int gantry_proxy_offered(struct gantry_proxy_conn *pc, uint64_t step, uint64_t *ret_size,
				    uint64_t *ret_place);
/* Receiving end: step s is here. */
GANTRY_API void gantry_proxy_publish(struct gantry_proxy_conn *pc, uint64_t step, uint32_t mode, uint64_t size,
				     uint64_t place);
/* Receiving end: steps below this are consumed. */
GANTRY_API uint64_t gantry_proxy_consumed(struct gantry_proxy_conn *pc);
/* Payload bytes of step s of an operation; the maximum if they do not follow from its size. */
GANTRY_API uint64_t gantry_proxy_step_bytes(const struct gantry_proxy_op *op, uint64_t step);
/* The operation that step s belongs to; NULL if none is known yet. */
GANTRY_API struct gantry_proxy_op *gantry_proxy_op_of(struct gantry_proxy_conn *pc, uint64_t step);
/* For the report: whom the connection waits for until it next moves. */
GANTRY_API void gantry_proxy_waits(struct gantry_proxy_conn *pc, enum gantry_wait_cause cause);

#ifdef __cplusplus
}
#endif
#endif
