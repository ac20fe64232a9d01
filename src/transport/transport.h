/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of transports and the choice among them. */
#ifndef GANTRY_TRANSPORT_TRANSPORT_H
#define GANTRY_TRANSPORT_TRANSPORT_H

#include "device/device.h"
#include "net/net.h"
#include "proxy/proxy_conn.h"

extern const struct gantry_transport gantry_transport_p2p, gantry_transport_shm, gantry_transport_net,
	gantry_transport_collnet;

/*
 * The first transport in order that can connect the two. `wanted`: "auto", "" or a comma-separated list of names that
 * may be used (GANTRY_TRANSPORT, --transport). If none can: ERR_UNREACHABLE, with every transport's reason in one line.
 */
gantry_result gantry_transport_choose(const struct gantry_peer_info *me, const struct gantry_peer_info *peer,
				      const char *wanted, const struct gantry_transport **ret_transport);
/* The same without one that was tried and does not connect them; NULL: all of them. */
gantry_result gantry_transport_choose_but(const struct gantry_peer_info *me, const struct gantry_peer_info *peer,
					  const char *wanted, const struct gantry_transport *but,
					  const struct gantry_transport **ret_transport);
/* ERR_CONFIG unless every name in the list exists: a slip of the pen must not silently leave a transport out. */
gantry_result gantry_transport_check(const char *wanted);
/* ERR_CONFIG: GANTRY_NET, or else `name` (NULL: none), names a network that there is not. A plugin's name shows when it is
 * loaded. */
gantry_result gantry_transport_net_check(const char *name);
/* What the net transports of the process have done, since it began; for tests and reports. */
struct gantry_net_counts {
	uint64_t pool_pieces;	 /* of pools, for OFFSET steps */
	uint64_t pool_shared;	 /* of these, from the part that all connections share */
	uint64_t pool_mixed;	 /* of those, while two channels and two peers at least had some at once */
	uint64_t recvs, grouped; /* receives, and those of several channels at once */
	uint64_t rails;		 /* sends over connections by several NICs */
};
void gantry_transport_net_counts(struct gantry_net_counts *ret);
/* Pinned memory of the net transport (on a network that reads a GPU's memory: of the GPU): of each end of each channel,
 * `conn`; of all ends of one direction, `shared` for every eight peers. step: the largest of a send or receive. */
struct gantry_net_memory {
	uint64_t step, conn, shared;
};
void gantry_transport_net_memory(const struct gantry_device *device, int nranks, uint64_t coll_step,
				 struct gantry_net_memory *ret);
/* Mbit/s of the NICs that Gantry's own network uses on this host; 0: not known, as of virtual ones. */
uint32_t gantry_transport_net_mbps(void);
/* NICs of a plugin's network that a communicator uses here. Those with the same guid and port are one NIC. */
struct gantry_net_nics {
	char network[64];    /* its name */
	uint32_t n;	     /* 0: the network is Gantry's own */
	uint32_t latency_ns; /* of the slowest; 0: not known */
	struct gantry_net_nic {
		uint64_t guid;
		int32_t port;
		uint32_t mbps; /* 0: not known */
	} nics[8];
};
struct net_context;
/* Starts the network, if it has not started, for connections of the communicator that `like` is of (any peer, channel and
 * direction), and keeps it until it is closed. */
gantry_result gantry_transport_net_open(const struct gantry_connector *like, struct net_context **ret_context,
					struct gantry_net_nics *ret_nics);
void gantry_transport_net_close(struct net_context *x); /* NULL is fine */
/* What a communicator of this process has of it now. */
uint64_t gantry_transport_net_pinned(uint64_t comm_id, const struct gantry_device *device);
/*
 * Whether GPUs reach each other's memory shows when they try (docs/design/0036): each rank exports some memory to the
 * others, opens that of the ranks that p2p would connect it with, writes there and looks whether it has arrived. All of it
 * is kept until the communicator ends: drivers may free and unmap only when no kernel runs, and one may be waiting for a
 * rank that is here.
 */
struct gantry_p2p_probe {
	struct gantry_device *device; /* borrowed */
	uint64_t *base;		      /* the device's: two words of its own, then one for each rank; NULL: none */
	void **opened;		      /* by rank; NULL: not opened */
	int nranks;
};
gantry_result gantry_p2p_probe_make(struct gantry_p2p_probe *p, struct gantry_device *device, int nranks,
				    struct gantry_ipc_handle *ret_handle);
gantry_result gantry_p2p_probe_try(struct gantry_p2p_probe *p, const struct gantry_peer_info *me,
				   const struct gantry_peer_info *peer, const struct gantry_ipc_handle *handle);
void gantry_p2p_probe_free(struct gantry_p2p_probe *p); /* zeroed or half-made ones too */
int gantry_transport_is_built_in(const struct gantry_transport *t);
/* Loads the libraries of GANTRY_TRANSPORT_LIBS, once. */
gantry_result gantry_transport_load_libs(void);

#endif
