/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net transport's own structures.
 *
 *   context  one network and its context per communicator (net_link.c)
 *   link     one network connection per peer and direction, shared by the channels on Gantry's own network, whose tags
 *            are independent of each other; between GPUs and elsewhere each channel has one (net_link.c). Registered user
 *            memory (net_mr.c)
 *   rails    the NICs that a context uses (net_rails.c), of a plugin merged into one device (net_nics.c)
 *   pool     where OFFSET steps live, of all channels and peers (net_pool.c)
 *   conn     one end of one channel: FIFO, rings of LL and LL128, requests in flight (net.c)
 *   hints    for a plugin that takes them (net_attr.c)
 *   lists    of fragments that a network received for kernels to gather (net_unpack.c)
 *
 * The progress thread owns requests, pieces and counters; the callers' threads own connecting. Registered memory is
 * under the link's lock.
 */
#ifndef GANTRY_TRANSPORT_NET_PRIV_H
#define GANTRY_TRANSPORT_NET_PRIV_H

#include "base/list.h"
#include "base/mutex.h"
#include "device/device.h"
#include "device/pinned.h"
#include "inet/nic.h"
#include "net/rails.h"
#include "transport/ends.h"

enum {
	NET_STAGE_STEP = 16384, /* where the proxy packs and unpacks either */
	NET_POOL_UNIT = 4096,
	NET_CHANNELS_MAX = 64,
	NET_RECVS = 64, /* grouped receives in flight per link */
	/* Tags of channels that share a link (net_progress.c); those of send and recv are the channels' numbers. */
	NET_TAG_EAGER = NET_CHANNELS_MAX,
	NET_TAG_GATED = 2 * NET_CHANNELS_MAX,
	NET_EAGER_MOST = 1 << 19,   /* half of the network's window */
	NET_HELPERS_CPUS = 4,	    /* from here on the network has helper threads */
	NET_EAGER_ALONE = 8 << 20,  /* to all peers: above this splicing is faster than copying, on two cores */
	NET_STEP_LEAST = 512 << 10, /* with many ranks; holds a slice of any collective */
	NET_P2P_MIN = 16384,	    /* the least maxP2pBytes of a network: steps of LL and LL128 have a fixed size */
};

MUTEX_KIND(net_globals_mu); /* of registrations that connections share; held while one is made or given back */
MUTEX_KIND(net_attr_mu);    /* of the hints given last; held while they are given */

/* The network that the transport uses: Gantry's own unless GANTRY_NET_PLUGIN names one. Ranks of one process have
 * contexts of their own. */
struct net_context {
	struct gantry_list node; /* of all of the process */
	int refs;
	uint64_t comm_id;
	int standing;			    /* as a connector has it */
	struct gantry_device *device;	    /* borrowed */
	struct gantry_net *net;		    /* borrowed */
	const struct gantry_loader *loader; /* of the network, borrowed; NULL: Gantry's own */
	void *ctx;
	int dev, listen_dev;		  /* the best one, and the rails together if there are several */
	int nearest;			  /* dev before NICs of a plugin were merged */
	struct gantry_net_vdevice merged; /* into dev; ndevs 0: none */
	struct gantry_rails rails;
	struct gantry_net_properties props;
	int gdr;	/* Simple buffers are in the device's own memory */
	int unpack;	/* ... those of receives, and the network fills pages that a kernel gathers from: k_gather.h */
	int any_memory; /* the network takes the device's memory without registration */
	int hints;	/* it takes hints */
	struct net_attr_mu attr_mu;
	struct gantry_net_attr attr GUARDED_BY(net_attr_mu); /* given last */
	struct gantry_list pools;			     /* net_pool.c's lock */
	struct net_globals_mu globals_mu;
	struct gantry_list globals GUARDED_BY(net_globals_mu);
	uint64_t pinned; /* bytes that its connections and pools have taken; relaxed */
};

/* A registration that all connections of a context share (regIsGlobal). */
struct net_global {
	struct gantry_list node; /* of its context; under the lock, as refs */
	const char *base;
	size_t size;
	int type, refs; /* refs: links that use it */
	void *mr;
};

struct net_mem {
	struct gantry_list node;
	char *base;
	size_t size;
	void *mr;
	struct net_global *global; /* counted; NULL: mr is this link's own */
	int refs;
};

/* A grouped receive: one request for the same moment of several channels. */
struct net_recv {
	void *request; /* the receive's, then the flush's */
	int n, arrived, over;
	struct gantry_proxy_conn *pc[GANTRY_NET_MAX_RECVS];
	uint64_t step[GANTRY_NET_MAX_RECVS];
	uint64_t number[GANTRY_NET_MAX_RECVS]; /* sequence number within its channel */
};

MUTEX_KIND(net_link_mu); /* of registered memory */
struct net_link {
	struct gantry_list node; /* of all links of the process */
	int refs;		 /* under the lock of all links */
	uint64_t comm_id;
	int me, peer, send, shared, tagged;
	int channels, nchannels;      /* of the communicator, and of those on this link */
	uint64_t eager_most;	      /* bytes of an operation that need not wait for its receives: net_progress.c */
	struct gantry_device *device; /* borrowed */
	struct net_context *context;  /* counted */
	void *listen, *comm;	      /* the network's */
	int dev;		      /* sending end: by which it connects; -1: not chosen yet */
	int rails;		      /* the same: NICs of that device */
	struct gantry_net_device_handle handle_dev, *device_handle; /* of a receiving end with UNPACK */
	uint64_t lists;						    /* receives posted that take one */
	_Alignas(8) unsigned char handle[GANTRY_NET_HANDLE_SIZE];   /* plugins keep structs in it */
	struct gantry_proxy_conn *subs[NET_CHANNELS_MAX];
	int nsubs;	       /* highest channel + 1 */
	struct net_conn *gone; /* freed ends; under the lock of all links */
	struct net_pool *pool; /* counted */
	void *pool_mr;
	int pool_slot; /* the first of its reserves there */
	/* Receives in flight, and their numbers in the order in which they were posted. Channels are at different places,
	 * so receives end in any order. */
	struct net_recv recvs[NET_RECVS];
	uint64_t recvs_used; /* a bit for each */
	uint8_t recv_order[NET_RECVS];
	int nrecvs;
	/* User memory. */
	struct net_link_mu mu;
	struct gantry_list memory;
};

/* What a step of a conn is using. */
struct net_step {
	void *request; /* send: the network's; recv: of one with a list, until it is consumed */
	char *data;
	void *mr;
	struct gantry_piece *piece; /* of the pool; NULL: none */
	bool shared;		    /* it is of the part that all connections share */
	uint32_t mode;
	uint64_t size, place;
	struct gantry_net_note note; /* of its message, for a plugin that records events */
};

struct net_conn {
	struct net_link *link; /* counted */
	struct net_conn *next; /* of link->gone */
	struct gantry_proxy_conn *pc;
	char *block_host, *block_dev; /* FIFO, then the rings of LL and LL128 */
	struct gantry_rings rings;    /* within it */
	char *stage;		      /* host: STEPS pieces of NET_STAGE_STEP */
	char *ring_host, *ring_dev;   /* NORMAL: Simple steps */
	size_t ring_size;
	void *ring_mr, *stage_mr;
	struct gantry_pinned reserve; /* OFFSET: of the pool, this connection's own */
	char *pool_dev;		      /* base of the offsets; NULL: no pool */
	uint64_t held;		      /* bytes of the pool's shared part */
	struct net_step steps[GANTRY_STEPS];
	uint64_t numbers, arrived; /* receives posted and handed over */
	int prepared;		   /* recv: steps[posted % STEPS] is filled in, the receive is not posted yet */
	int channel;
};

struct net_rail_info {
	uint16_t family;
	unsigned char addr[16]; /* as it travels in packets */
};

struct net_info {
	uint32_t magic, shared; /* net_link.shared */
	uint64_t max_step;
	uint32_t ll_step, ll128_step;
	uint32_t tagged; /* net_link.tagged: both ends must agree */
	_Alignas(8) unsigned char handle[GANTRY_NET_HANDLE_SIZE];
	char network[32]; /* its name */
	uint32_t nrails;
	struct net_rail_info rails[GANTRY_NET_MAX_RAILS];
};

/* Of a plugin's n devices the nearest one. */
gantry_result net_nics_nearest(const struct net_context *x, int n, int *ret_dev);
/* Merges a plugin's NICs, if there are several to merge and it can: then they are the context's device. */
gantry_result net_nics_merge(struct net_context *x);
/* The context's rails, if there are several worth using, and with them its devices and properties. */
gantry_result net_rails_find(struct net_context *x);
void net_rails_describe(const struct net_context *x, struct net_info *info);
/* The device by which to connect to a peer, and of how many NICs it is. is_here: the peer has the same interfaces. */
gantry_result net_rails_choose(const struct net_context *x, const struct net_info *peer, int is_here, int *ret_dev,
			       int *ret_rails);
/* The context of a communicator's connectors that are alike: counted. NULL is fine. */
gantry_result net_context_get(const struct gantry_connector *c, struct net_context **ret_context);
void net_context_put(struct net_context *x);
gantry_result net_link_get(struct gantry_connector *c, struct net_link **ret_link);
/* What the peer has to know of a link; a receiving end listens from here on. max_step: of this end. */
gantry_result net_link_describe(const struct gantry_connector *c, struct net_link *l, uint64_t max_step,
				struct net_info *ret_info);
/* The network's connection, once for all channels of the link. AGAIN: not yet. ret_info: the peer's part. */
gantry_result net_link_connect(const struct gantry_connector *c, struct net_link *l,
			       const struct gantry_connect_info *peer, struct net_info *ret_info);
void net_link_put(struct net_link *l, int channel);
/* The end of a conn: its memory goes when the link is closed, because requests that were cut short may refer to it. */
void net_link_retire(struct net_conn *nc);
/* The memory the network moves data from and to. */
gantry_result net_context_alloc(struct net_context *x, int send, size_t size, char **ret_host, char **ret_dev);
void net_context_free(struct net_context *x, int send, char *host);
int net_context_memory(const struct net_context *x, int send); /* its type: GANTRY_NET_PTR_* */
gantry_result net_link_register(struct net_link *l, char *p, size_t size, int type, void **ret_mr);
void net_globals_init(struct net_context *x);
/* The end of a user's registration, at once: the link is going. */
void net_link_forget(struct net_link *l, struct net_mem *m);
/* The same, registered. */
gantry_result net_link_alloc(struct net_link *l, size_t size, char **ret_host, char **ret_dev, void **ret_mr);
/* Gives a conn its reserve in a pool; step: the largest that this rank has; coll_step: of collectives, 0: as that. */
gantry_result net_pool_join(struct net_conn *nc, int nranks, size_t step, size_t coll_step);
size_t net_pool_reserve(size_t step, size_t coll_step); /* bytes of one connection, and those that all share */
size_t net_pool_shared(size_t step);
/* The end of a link: before its connection is closed, and after. */
void net_pool_deregister(struct net_link *l);
void net_pool_leave(struct net_link *l);
/* AGAIN: there is no room now. */
gantry_result net_pool_take(struct net_conn *nc, uint64_t size, struct net_step *s);
void net_pool_give(struct net_conn *nc, struct net_step *s);
void net_count_recv(int buffers);
void net_count_rails(void);
void *net_link_mr_of(struct net_link *l, const void *p, uint64_t size); /* NULL: not registered */

/* net_attr.c. Of a network that has started; before connect and accept; before isend and irecv. */
void net_attr_init(struct net_context *x);
void net_attr_connect(struct net_context *x, const struct gantry_connector *c);
void net_attr_transfer(struct net_context *x, const struct gantry_proxy_op *op, int send);

/* net_unpack.c. A receiving end with UNPACK: what its kernels read, from the network's device handle. */
gantry_result net_unpack_fill(struct net_link *l, struct gantry_conn *conn);
/* A buffer of its was registered. */
gantry_result net_unpack_registered(const struct net_link *l, void *mr);
/* A receive is about to be posted, was posted for a step, and the kernel is done with that. */
void net_unpack_mark(const struct net_link *l, const struct gantry_proxy_op *op, struct net_recv *recv);
void net_unpack_posted(struct net_link *l, const struct gantry_proxy_op *op, void *request, struct net_step *s);
gantry_result net_unpack_consumed(struct net_link *l, struct net_step *s);

gantry_result net_progress(struct gantry_proxy_conn *pc, int *ret_worked);
gantry_result net_register(struct gantry_proxy_conn *pc, void *ptr, size_t size, void **ret_handle);
gantry_result net_deregister(struct gantry_proxy_conn *pc, void *handle);

#endif
