/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports: how steps get from one rank to another. This header is all that a transport needs, in the tree or out of
 * it; docs/adding-a-transport.md walks through one in six steps.
 *
 * A connection has a sending and a receiving end, each in the process of its rank. For each end:
 *
 *   can_connect   may these two ranks use this transport? Both ends must answer alike, from the two peer infos alone.
 *   setup         makes what the peer must know (an address, a handle) and writes it into `info`
 *   connect       has the peer's info; called again while it says AGAIN; hands in a gantry_kernel_end, what the kernels see
 *   free          undoes all of it, half-built too; never waits for the peer
 *
 * An end whose kernels cannot reach the other side by loads and stores is proxied: `proxied` says so, and the
 * progress thread moves its steps:
 *
 *   proxy_setup, proxy_connect     the proxy's part of the above, called before setup and after connect returned OK
 *   proxy_progress                 one pass over one connection that has operations; never blocks
 *   proxy_register, _deregister    user memory that PTR steps will name
 *   proxy_free
 *
 * THREADS. can_connect, setup, connect, free and the proxy's setup, connect, register and free run on threads of the
 * caller, one at a time per connection; proxy_progress runs on the progress thread only, and never at the same time as
 * proxy_free. Registering and unregistering may be done by any thread. What a transport lacks is the function
 * gantry_transport_unsupported_*, never NULL.
 */
#ifndef GANTRY_TRANSPORT_H
#define GANTRY_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/api.h"
#include "gantry/device.h"
#include "gantry/fifo.h"
#include "gantry/result.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every rank knows of every other. Plain bytes, the same on all hosts of one architecture family (little endian).
 */
struct gantry_peer_info {
	size_t struct_size;
	int32_t rank;
	int32_t device_kind; /* enum gantry_device_kind */
	int32_t device_index;
	int32_t sleeps;	  /* its kernels sleep on eventcounts */
	uint64_t host;	  /* same machine (boot id) and GANTRY_HOST_ID */
	uint64_t process; /* random: same process */
	uint64_t pid;
	uint64_t pid_ns, net_ns, user; /* inodes and uid: what can be shared between two processes of a host */
	char bus_id[24];	       /* the GPU's, "" for the host device */
	char host_name[64];
	char version[32];
	uint32_t coll_step;   /* collectives: bytes of a step of Simple that the rings of its transports hold */
	uint32_t coll_protos; /* 1 << enum gantry_proto: which all its connections have */
	uint32_t apart[16];   /* GPUs that its process sees and its own does not reach: hashes of bus ids; 0: none */
	uint32_t cpus;	      /* that its process may use, or its share if those of other ranks may use them too */
	uint32_t numa;	      /* 1 + NUMA node of its GPU, or of the CPUs of its process; 0: not known, or several */
};

enum { GANTRY_CONNECT_INFO_SIZE = 512 };
struct gantry_connect_info {
	unsigned char bytes[GANTRY_CONNECT_INFO_SIZE];
};

struct gantry_connector;
struct gantry_proxy_conn;
struct gantry_proxy_op;

/*
 * One end of a connection while it is made and as long as it lives. What the core has given it is asked for by these
 * functions. All that is returned is borrowed and lives as long as the end.
 */
GANTRY_API const struct gantry_peer_info *gantry_connector_me(const struct gantry_connector *c);
GANTRY_API const struct gantry_peer_info *gantry_connector_peer(const struct gantry_connector *c);
GANTRY_API struct gantry_device *gantry_connector_device(const struct gantry_connector *c);
GANTRY_API uint64_t gantry_connector_comm_id(const struct gantry_connector *c); /* the same on all ranks */
GANTRY_API int gantry_connector_sends(const struct gantry_connector *c);
GANTRY_API int gantry_connector_channel(const struct gantry_connector *c, int *ret_nchannels); /* that may be NULL */
/* What this end's kernels sleep on; NULL: they never sleep. */
GANTRY_API struct gantry_eventcount *gantry_connector_eventcount(const struct gantry_connector *c);
/* What the progress thread sleeps on; NULL if this end is not proxied. */
GANTRY_API struct gantry_eventcount *gantry_connector_proxy_eventcount(const struct gantry_connector *c);
/* The transport's own; of a proxied end gantry_proxy_resources is the same. */
GANTRY_API void gantry_connector_set_resources(struct gantry_connector *c, void *resources);
GANTRY_API void *gantry_connector_resources(const struct gantry_connector *c);
/* proxy_setup: the words that this end's kernels and the progress thread share, as the CPU addresses them. */
GANTRY_API void gantry_connector_set_fifo(struct gantry_connector *c, struct gantry_fifo *fifo);

/* PTR: when is an address of this process good at the other end? */
enum gantry_memory_sharing {
	GANTRY_SHARES_NOTHING = 0,    /* never */
	GANTRY_SHARES_ADDRESSES = 1,  /* always */
	GANTRY_SHARES_EXPORTED = 2,   /* after the memory was exported to the peer's process */
	GANTRY_SHARES_REGISTERED = 3, /* after proxy_register */
};

/* What kernels see of an end: connect fills it in when it is done. Pointers are valid on the device. */
struct gantry_kernel_end {
	size_t struct_size;
	uint64_t *head, *tail;
	struct gantry_slot *slots;
	struct gantry_slot *offers; /* NULL: this end has none (no OFFSET; on a receiving end no PTR) */
	char *buffs[GANTRY_PROTOS]; /* rings of GANTRY_STEPS steps; NULL: the protocol is not there */
	char *pool;		    /* NULL, or where Simple steps live that are not PTR: the base of their offsets */
	struct gantry_eventcount *eventcount; /* of the other end, or the progress thread's; NULL: it never sleeps */
	uint64_t max_step; /* largest Simple step of this connection; both ends agree; 0: the sender chooses freely */
	uint32_t step_bytes[GANTRY_PROTOS]; /* payload bytes a step holds (LL, LL128: data, not lines) */
	int peer_notifies;		    /* the other end, or the progress thread, wakes this end's eventcount */
	enum gantry_memory_sharing sharing;
};
#define GANTRY_KERNEL_END_INIT GANTRY_STRUCT_INIT(struct gantry_kernel_end)
GANTRY_API gantry_result gantry_connector_fill(struct gantry_connector *c, const struct gantry_kernel_end *end);

/* Where the time of a connection went: what it waited for. */
enum gantry_wait_cause {
	GANTRY_WAIT_KERNEL,
	GANTRY_WAIT_PEER,
	GANTRY_WAIT_SOCKET,
	GANTRY_WAIT_FLUSH,
	GANTRY_WAIT_SPACE,
	GANTRY_WAIT_CAUSES
};

struct gantry_transport_side {
	size_t struct_size;
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
	size_t struct_size;
	const char *name; /* as in --transport and GANTRY_TRANSPORT */
	/* Returns the GANTRY_TRANSPORT_PROXIED_* bits that this pair will need. */
	int (*proxied)(const struct gantry_peer_info *me, const struct gantry_peer_info *peer);
	/* why: one line, when the answer is no. */
	gantry_result (*can_connect)(const struct gantry_peer_info *me, const struct gantry_peer_info *peer,
				     int *ret_can, char *why, size_t len);
	const struct gantry_transport_side *send, *recv;
};

/*
 * Registers a transport, before or after the built-in ones (p2p, shm, net, in this order); at most 16. The table is
 * borrowed for the life of the process. Communicators made later see it.
 */
GANTRY_API gantry_result gantry_transport_register(const struct gantry_transport *t, int before_builtin);
GANTRY_API gantry_result gantry_transport_unregister(const struct gantry_transport *t);
/* A library named in GANTRY_TRANSPORT_LIBS exports this function, which registers the library's transports. The name
 * contains the version of this interface, so a library built for another version can be distinguished from a broken
 * one. */
GANTRY_API gantry_result gantry_transport_init_v1(void);

GANTRY_API gantry_result gantry_transport_unsupported_connector(struct gantry_connector *c);
GANTRY_API void gantry_transport_unsupported_free(struct gantry_connector *c);
GANTRY_API gantry_result gantry_transport_unsupported_progress(struct gantry_proxy_conn *pc, int *ret_worked);
GANTRY_API gantry_result gantry_transport_unsupported_register(struct gantry_proxy_conn *pc, void *ptr, size_t size,
							       void **ret_handle);
GANTRY_API gantry_result gantry_transport_unsupported_deregister(struct gantry_proxy_conn *pc, void *handle);

/*
 * A proxied end counts absolute steps:
 *   send: POSTED (space offered) >= MOVED (handed to the network) >= DONE (head published)
 *   recv: POSTED (receive posted) >= MOVED (arrived) >= FLUSHED (kernel notified) >= DONE (kernel has consumed)
 * advance: so far, and those before it in this order are at least as far. On the progress thread only.
 */
enum gantry_proxy_count { GANTRY_PROXY_POSTED, GANTRY_PROXY_MOVED, GANTRY_PROXY_FLUSHED, GANTRY_PROXY_DONE };
GANTRY_API uint64_t gantry_proxy_steps(const struct gantry_proxy_conn *pc, enum gantry_proxy_count which);
GANTRY_API void gantry_proxy_advance(struct gantry_proxy_conn *pc, enum gantry_proxy_count which, uint64_t to);
GANTRY_API void *gantry_proxy_resources(const struct gantry_proxy_conn *pc);
/* An operation, the steps of one transfer: progress goes in slices of so many steps; 1 for send and recv. */
GANTRY_API uint32_t gantry_proxy_op_slice(const struct gantry_proxy_op *op);
GANTRY_API enum gantry_proto gantry_proxy_op_proto(const struct gantry_proxy_op *op);
GANTRY_API int gantry_proxy_op_ptr(const struct gantry_proxy_op *op); /* its steps name the user's buffer */

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
/* For the report: what the connection waits for until it next moves. */
GANTRY_API void gantry_proxy_waits(struct gantry_proxy_conn *pc, enum gantry_wait_cause cause);

#ifdef __cplusplus
}
#endif
#endif
