/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of transports and the choice among them. */
#ifndef GANTRY_TRANSPORT_TRANSPORT_H
#define GANTRY_TRANSPORT_TRANSPORT_H

#include "net/net.h"
#include "proxy/conn.h"

extern const struct gantry_transport gantry_transport_p2p, gantry_transport_shm, gantry_transport_net,
	gantry_transport_collnet;

/*
 * The first transport in order that can connect the two. `wanted`: "auto", "" or a comma-separated list of names that
 * may be used (GANTRY_TRANSPORT, --transport). If none can: ERR_UNREACHABLE, with every transport's reason in one line.
 */
gantry_result gantry_transport_choose(const struct gantry_peer_info *me, const struct gantry_peer_info *peer,
				      const char *wanted, const struct gantry_transport **ret_transport);
/* ERR_CONFIG unless every name in the list exists: a slip of the pen must not silently leave a transport out. */
gantry_result gantry_transport_check(const char *wanted);
const struct gantry_transport *gantry_transport_find(const char *name);
/* Loads the libraries of GANTRY_TRANSPORT_LIBS, once. */
gantry_result gantry_transport_load_libs(void);

/* The network that the net transport uses: Gantry's own unless GANTRY_NET_PLUGIN names one. One context per
 * communicator. */
struct gantry_net_use {
	struct gantry_net *net; /* borrowed */
	void *ctx;
	int dev;
	struct gantry_net_properties props;
};
/* The least maxP2pBytes of a network: steps of LL and LL128 have a fixed size. */
enum { GANTRY_NET_USE_P2P_MIN = 16384 };
/* ERR_UNSUPPORTED, naming network, device and property, when the communicator cannot use the device. */
gantry_result gantry_net_use_get(uint64_t comm_id, struct gantry_device *device, const struct gantry_net_use **ret_use);
void gantry_net_use_put(const struct gantry_net_use *use);

#endif
