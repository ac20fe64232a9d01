/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What net.h's structs and NCCL's have in common. Properties of a device as COPY(our name, NCCL's name), by version: every
 * version kept the fields of the one before and added some, in other places. Names and fused devices (v9) are not plain
 * copies: users of the lists handle them.
 */
#ifndef GANTRY_NET_PROPS_H
#define GANTRY_NET_PROPS_H

#include "abi/net_v12.h"
#include "net/net.h"

/* clang-format off */
#define NET_PROPS_V6(COPY) COPY(guid, guid) COPY(ptr_support, ptrSupport) COPY(speed, speed) COPY(port, port) \
	COPY(latency, latency) COPY(max_comms, maxComms) COPY(max_recvs, maxRecvs)
#define NET_PROPS_V7(COPY) NET_PROPS_V6(COPY) COPY(device_type, netDeviceType) COPY(device_version, netDeviceVersion)
#define NET_PROPS_V8(COPY) NET_PROPS_V7(COPY) COPY(reg_is_global, regIsGlobal)
#define NET_PROPS_V9(COPY) NET_PROPS_V8(COPY) COPY(force_flush, forceFlush) COPY(max_p2p_bytes, maxP2pBytes) \
	COPY(max_coll_bytes, maxCollBytes)
#define NET_PROPS_V11(COPY) NET_PROPS_V9(COPY) COPY(max_multi_request_size, maxMultiRequestSize)
#define NET_PROPS_V12(COPY) NET_PROPS_V11(COPY) COPY(rail_id, railId) COPY(plane_id, planeId)
/* clang-format on */

/* Attributes of a communicator have NCCL's layout, and are copied as they are. */
#define NET_ATTR_SAME(ours, nccls)                                                                                     \
	_Static_assert(offsetof(struct gantry_net_attr, ours) == offsetof(ncclNetAttr_v11_t, nccls),                   \
		       "copied as a whole")
NET_ATTR_SAME(send.max_concurrent_peers, sendCommAttr.maxConcurrentPeers);
NET_ATTR_SAME(send.min_flows_per_peer, sendCommAttr.minFlowsPerPeer);
NET_ATTR_SAME(recv, recvCommAttr);
NET_ATTR_SAME(op, op);
NET_ATTR_SAME(proto, proto);
_Static_assert(sizeof(struct gantry_net_attr) == sizeof(ncclNetAttr_v11_t), "copied as a whole");

#endif
