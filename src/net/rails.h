/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: which NICs of Gantry's own network one user of it takes, and which of them lead to a given peer.
 *
 * A side listens on all NICs that are worth it: at least half as fast as the fastest one, those near its device first.
 * The peer learns their addresses, and the end that connects takes those of its own NICs that are in a subnet of one of
 * them: the network makes a lane at least for each rail, and a lane that cannot be connected would fail the connection.
 * So a NIC that only one of the two has, or that is on another network, is left out, and where no subnet is common (two
 * racks with routers between them) the first NIC is used alone.
 *
 * An address that both have on different hosts (a bridge of every host's own) is no way from one to the other.
 */
#ifndef GANTRY_NET_RAILS_H
#define GANTRY_NET_RAILS_H

#include <stdbool.h>

#include "inet/nic.h"
#include "net/net.h"

struct gantry_device;

struct gantry_rail {
	int dev;	     /* of the network */
	char name[IFNAMSIZ]; /* of the interface */
	struct gantry_addr addr;
};

struct gantry_rails {
	int n;
	struct gantry_rail rail[GANTRY_NET_MAX_RAILS]; /* the nearest first */
};

/* Those worth using near a device, at most `most` (0: as many as there may be). The network's init has been called. */
gantry_result gantry_rails_find(const struct gantry_device *device, int most, struct gantry_rails *ret_rails);
/* The interfaces of these names, with '+' between them. ERR_CONFIG names those that could be used. */
gantry_result gantry_rails_named(const char *names, struct gantry_rails *ret_rails);
/* "eth0+eth1". Returns buf. */
const char *gantry_rails_text(const struct gantry_rails *rails, char *buf, size_t len);
/* The network's device for all of them together; there is at least one. */
gantry_result gantry_rails_fuse(const struct gantry_rails *rails, int *ret_dev);
/* The device by which to connect to a peer that listens at these addresses, and of how many NICs it is. is_here: the
 * peer has the same interfaces. */
gantry_result gantry_rails_choose(const struct gantry_rails *rails, const struct gantry_addr *peer, int npeer,
				  bool is_here, int *ret_dev, int *ret_count);

#endif
