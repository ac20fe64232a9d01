/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where collNet will hook in: networks that reduce on their way (SHARP and the like), behind NCCL's collNet tables.
 *
 * Such a network joins all ranks of a communicator at once, so it is no way from one rank to another and says so. The
 * table is whole, so that the tool can list it, GANTRY_TRANSPORT=collnet gets its reason, and the collectives have a
 * place to put their proxies.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>

#include "base/log.h"
#include "transport/transport.h"

static int proxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer)
{
	(void)me;
	(void)peer;
	return GANTRY_TRANSPORT_PROXIED_SEND | GANTRY_TRANSPORT_PROXIED_RECV;
}

static gantry_result can_connect(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
				 char *why, size_t len)
{
	(void)me;
	(void)peer;
	*ret_can = 0;
	snprintf(why, len, "collnet carries collectives only, not point to point");
	return GANTRY_OK;
}

static gantry_result setup(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	(void)ret_info;
	return gantry_transport_unsupported_connector(c);
}

static gantry_result connect_end(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	(void)peer;
	return gantry_transport_unsupported_connector(c);
}

static const struct gantry_transport_side side = {
	.struct_size = sizeof(struct gantry_transport_side),
	.setup = setup,
	.connect = connect_end,
	.free = gantry_transport_unsupported_free,
	.proxy_setup = gantry_transport_unsupported_connector,
	.proxy_connect = gantry_transport_unsupported_connector,
	.proxy_progress = gantry_transport_unsupported_progress,
	.proxy_register = gantry_transport_unsupported_register,
	.proxy_deregister = gantry_transport_unsupported_deregister,
	.proxy_free = gantry_transport_unsupported_free,
};

const struct gantry_transport gantry_transport_collnet = {
	.struct_size = sizeof(struct gantry_transport),
	.name = "collnet",
	.proxied = proxied,
	.can_connect = can_connect,
	.send = &side,
	.recv = &side,
};
