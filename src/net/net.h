/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The versionless net interface: NCCL's v12 semantics without its version.
 *
 * A `struct gantry_net` is one network: Gantry's own TCP network, or a foreign
 * plugin that the loader has adapted to this table. Everything above (plugin
 * tables, tools, transports) sees only this.
 *
 * The contract, for implementers and callers alike:
 *  - Nothing blocks. connect and accept succeed with a NULL comm for "not yet";
 *    isend and irecv may succeed with a NULL request for "again later".
 *  - At least GANTRY_NET_MAX_REQUESTS requests are in flight per comm, times
 *    max_recvs on the sending side.
 *  - Messages of a connection match in posting order; tags only pick among the
 *    buffers of one grouped receive.
 *  - A receive may be larger than its send; the reverse is ERR_SIZE on both sides.
 *  - connect, accept, reg_mr and dereg_mr may be called by another thread than
 *    the one that calls isend, irecv, iflush, test and irecv_consumed.
 *  - test on any request of a comm makes progress on all of them. After it says
 *    done the request is gone (irecv_consumed may still name it).
 *  - UNPACK: accept fills the device handle, whose table (abi/unpack.h) says where the bytes of a receive lie. Every
 *    receive that is not OPTIONAL_RECV_COMPLETION takes the next slot of the queue, in posting order and whatever its
 *    memory, because NCCL's kernels count them so; its count is published before test says done, and slot, pages and
 *    tokens are free again after irecv_consumed. Without a free slot irecv gives a NULL request. A receive has one
 *    buffer. Only memory of type PTR_CUDA is described by the slot; all other receives, and optional ones, have their
 *    bytes in the buffer itself, with count 0. So have all receives of a comm whose accept got no device handle, as
 *    in NCCL's bootstrap: they take no slot and nothing is to be consumed.
 *  - Outputs are written only on success.
 */
#ifndef GANTRY_NET_NET_H
#define GANTRY_NET_NET_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"

enum {
	GANTRY_NET_HANDLE_SIZE = 128,
	GANTRY_NET_MAX_REQUESTS = 32,
	GANTRY_NET_MAX_RECVS = 8,
	GANTRY_NET_MAX_RAILS = 8,
	GANTRY_NET_PTR_HOST = 1,
	GANTRY_NET_PTR_CUDA = 2,
	GANTRY_NET_PTR_DMABUF = 4,
	GANTRY_NET_UNDEF = -1,
};
/* irecv entered with *request set to this: LL or LL128 data, the kernel polls flags in it. */
#define GANTRY_NET_OPTIONAL_RECV_COMPLETION ((void *)0x1)

enum gantry_net_device_type { GANTRY_NET_DEVICE_HOST = 0, GANTRY_NET_DEVICE_UNPACK = 1 };

struct gantry_net_vdevice {
	int ndevs;
	int devs[GANTRY_NET_MAX_RAILS];
};

struct gantry_net_properties {
	const char *name;     /* borrowed; lives as long as the network is initialised */
	const char *pci_path; /* borrowed; NULL for virtual interfaces */
	uint64_t guid;
	int ptr_support;
	int reg_is_global;
	int force_flush;
	int speed; /* Mbit/s */
	int port;
	float latency; /* microseconds */
	int max_comms;
	int max_recvs;
	int device_type; /* enum gantry_net_device_type */
	int device_version;
	struct gantry_net_vdevice vdev;
	size_t max_p2p_bytes;
	size_t max_coll_bytes;
	int max_multi_request_size;
	int16_t rail_id;
	int16_t plane_id;
};

/* Whether payload lands in device memory as fragments that a kernel gathers (device type UNPACK). */
enum gantry_net_unpack {
	GANTRY_NET_UNPACK_OFF = 0,  /* receive into host memory and copy */
	GANTRY_NET_UNPACK_PARAM,    /* as GANTRY_UNPACK says: what the plugin asks for */
	GANTRY_NET_UNPACK_EMULATED, /* through a NIC in user space */
	GANTRY_NET_UNPACK_KERNEL,   /* devmem TCP of Linux */
};

struct gantry_device;

struct gantry_net_config {
	int traffic_class; /* DSCP/TOS level, or GANTRY_NET_UNDEF */
	/* Below: Gantry's own; zero is how it was before there was UNPACK. */
	int unpack;	       /* enum gantry_net_unpack */
	int own_reports;       /* the caller detects stalls itself, as it does without a config */
	int links;	       /* connections to each peer: the fewer, the more lanes each; 0: not known, a few */
	int cpus;	       /* that this process can count on; 0: not known */
	int standing_receives; /* some receives wait for what may never be sent: a peer that closes is no error */
	struct gantry_device *device; /* borrowed, must outlive the context: whose memory is sent from and received
					 into. NULL: the GPU that is current in the thread that listens or connects, or
					 the host device where there is none */
};

/*
 * Hints for what is about to be connected, or sent and received. UNDEF in a field: not known. op, algo and proto are bits,
 * 1 << a number of the enums below, which are NCCL's; all of them set (UNDEF): any.
 */
enum gantry_net_func {
	GANTRY_NET_BROADCAST,
	GANTRY_NET_REDUCE,
	GANTRY_NET_ALL_GATHER,
	GANTRY_NET_REDUCE_SCATTER,
	GANTRY_NET_ALL_REDUCE,
	GANTRY_NET_SEND = 6,
	GANTRY_NET_RECV,
	GANTRY_NET_ALL_TO_ALL,
	GANTRY_NET_SCATTER,
	GANTRY_NET_GATHER,
	GANTRY_NET_PUT = 12,
};
enum gantry_net_algo {
	GANTRY_NET_ALGO_TREE,
	GANTRY_NET_ALGO_RING,
	GANTRY_NET_ALGO_COLLNET = 3, /* NCCL's CollNetChain */
	GANTRY_NET_ALGO_PAT = 6,
	GANTRY_NET_ALGO_NONE = 15, /* none of NCCL's; sends and receives */
};
struct gantry_net_attr_side {
	int32_t max_concurrent_peers, min_concurrent_peers, max_flows_per_peer, min_flows_per_peer;
};
struct gantry_net_attr {
	struct gantry_net_attr_side send, recv;
	uint32_t op, algo, proto;
};

/* Layout of NCCL's device handle, the same from v7 to v12; see src/abi/. */
struct gantry_net_device_handle {
	int type;
	int version;
	void *handle;
	size_t size;
	int needs_proxy_progress;
};

/* Which step of which connection a message is, for a plugin's own events in the trace (net/plugin_events.h). */
struct gantry_net_note {
	uint32_t conn, step;
};

struct gantry_net;
struct iovec;

struct gantry_net_ops {
	gantry_result (*init)(struct gantry_net *net, uint64_t comm_id, const struct gantry_net_config *config,
			      void **ret_ctx);
	gantry_result (*finalize)(struct gantry_net *net, void *ctx);
	gantry_result (*set_attr)(struct gantry_net *net, void *ctx, const struct gantry_net_attr *attr);
	gantry_result (*devices)(struct gantry_net *net, int *ret_count);
	gantry_result (*get_properties)(struct gantry_net *net, int dev, struct gantry_net_properties *ret_props);
	gantry_result (*make_vdevice)(struct gantry_net *net, const struct gantry_net_vdevice *vdev, int *ret_dev);
	/* handle: GANTRY_NET_HANDLE_SIZE bytes, filled. */
	gantry_result (*listen)(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_listen);
	/* Called again with the same handle (the plugin may keep state in it) until *ret_comm is not NULL. */
	gantry_result (*connect)(struct gantry_net *net, void *ctx, int dev, void *handle, void **ret_comm,
				 struct gantry_net_device_handle **dev_handle);
	gantry_result (*accept)(struct gantry_net *net, void *listen, void **ret_comm,
				struct gantry_net_device_handle **dev_handle);
	gantry_result (*close_send)(struct gantry_net *net, void *comm);
	gantry_result (*close_recv)(struct gantry_net *net, void *comm);
	gantry_result (*close_listen)(struct gantry_net *net, void *listen);
	gantry_result (*reg_mr)(struct gantry_net *net, void *comm, void *data, size_t size, int type, void **ret_mr);
	gantry_result (*reg_mr_dmabuf)(struct gantry_net *net, void *comm, void *data, size_t size, int type,
				       uint64_t offset, int fd, void **ret_mr);
	gantry_result (*dereg_mr)(struct gantry_net *net, void *comm, void *mr);
	/* Of receiving ends with a device handle, for each registration. NULL: kernels need nothing of it. */
	gantry_result (*get_device_mr)(struct gantry_net *net, void *comm, void *mr, void **ret_dptr);
	gantry_result (*isend)(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
			       void **ret_request);
	gantry_result (*irecv)(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
			       const int *tags, void **mrs, void **request);
	gantry_result (*iflush)(struct gantry_net *net, void *comm, int n, void **data, const int *sizes, void **mrs,
				void **ret_request);
	/* sizes: NULL or one entry per buffer of the request, written when done. */
	gantry_result (*test)(struct gantry_net *net, void *request, int *ret_done, int *sizes);
	gantry_result (*irecv_consumed)(struct gantry_net *net, void *comm, int n, void *request);

	/* Beyond NCCL's interface; optional: NULL where a network does not have them. */

	/* isend and irecv of a message whose bytes lie in n pieces of host memory, none of them empty: the network
	 * gathers or scatters while it moves them, without a copy in between. iov: borrowed until test says done, or
	 * the comm is closed. Such a send waits for its receive, however small it is. irecvv: ERR_UNSUPPORTED, without
	 * a word, on a connection that receives into device memory. */
	gantry_result (*isendv)(struct gantry_net *net, void *comm, const struct iovec *iov, uint32_t n, int tag,
				void **ret_request);
	gantry_result (*irecvv)(struct gantry_net *net, void *comm, const struct iovec *iov, uint32_t n, int tag,
				void **ret_request);
	/* isend and irecv with a note for each message, which a plugin's profiler events name (v10 and later). notes:
	 * borrowed until test says done. */
	gantry_result (*isendp)(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
				struct gantry_net_note *note, void **ret_request);
	gantry_result (*irecvp)(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
				const int *tags, void **mrs, struct gantry_net_note **notes, void **request);
	/* isend of n messages, in this order: small ones leave in one system call. *ret_requests has n entries; the first
	 * NULL and those behind it are still to be sent. */
	gantry_result (*isends)(struct gantry_net *net, void *comm, uint32_t n, void *const *data, const size_t *sizes,
				int tag, void **ret_requests);
	/* Is isendv faster than a copy to one place and isend? That may end while messages are on their way. */
	int (*isendv_pays)(struct gantry_net *net, void *comm);
	/* From now on messages of this tag wait for their receive even if they are small (not empty ones): so messages
	 * without a receive do not use the room that messages of other tags need. Of a send comm; of a receive comm: the
	 * peer has called it for this tag, so small messages of it come where large ones do. */
	gantry_result (*hold)(struct gantry_net *net, void *comm, int tag);
	/* The opposite: from now on messages of this tag may leave before their receive is posted though they are large,
	 * up to half of the room for such messages; alone: if they are the only ones on their way. Of a send comm. */
	gantry_result (*hasten)(struct gantry_net *net, void *comm, int tag, int alone);
	/* A handle has come from a peer that may lie: `connect` keeps in it which attempt of this process it belongs
	 * to, and what a stranger has written there would name another one. To be called before the first connect.
	 * ERR_PROTOCOL: it is no handle of this network. */
	gantry_result (*take_handle)(struct gantry_net *net, void *handle);
	/* Gives up on a connect that has returned neither a comm nor an error yet. Nothing happens if it was never
	 * called. */
	void (*cancel_connect)(struct gantry_net *net, void *handle);
};

struct gantry_net {
	const struct gantry_net_ops *ops; /* borrowed, const */
	const char *name;		  /* borrowed: what NCCL_NET= would name */
	int version;			  /* ABI version of its plugin; 0 for Gantry's own core */
	void *impl;			  /* the implementation's */
};

/* Gantry's own TCP network: one per process, always there. */
struct gantry_net *gantry_net_tcp(void);
/* How a context of it receives: enum gantry_net_unpack, PARAM resolved; text: the same for people, with the reason if
 * it is OFF. */
int gantry_net_tcp_unpack(const void *ctx, char *text, size_t len);
/* What its init was given. */
uint64_t gantry_net_tcp_comm_id(const void *ctx);
/* The other end of a comm: "10.0.0.2:4000 (node7 pid 123)". Borrowed while it is open. */
const char *gantry_net_tcp_peer(const void *comm);
/* The i-th message of a request that is not done, as events of the trace name it. *event: the caller's, until then; NULL
 * at first. 0: there is no such message. */
struct gantry_net_tcp_message {
	uint32_t link, tag, index;
	int send;
	uint64_t bytes;
	void **event;
};
int gantry_net_tcp_message(void *request, int i, struct gantry_net_tcp_message *ret_message);
/* Bulk lanes that a new connection of one of its devices asks for. */
int gantry_net_tcp_lanes(int dev, int links);

/* A peer died, a deadline passed and the like: what NCCL calls a remote error. */
static inline int gantry_result_is_remote(gantry_result r)
{
	return r == GANTRY_ERR_PEER_CLOSED || r == GANTRY_ERR_PEER_LOST || r == GANTRY_ERR_PEER_SILENT ||
	       r == GANTRY_ERR_UNREACHABLE || r == GANTRY_ERR_REFUSED || r == GANTRY_ERR_TIMEOUT;
}

#endif
