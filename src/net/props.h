/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of a device as COPY(our name, NCCL's name), by version. Every version kept the fields of the one before and
 * added some, in other places. Names and fused devices (v9) are no plain copies: whoever uses the lists sees to them.
 */
#ifndef GANTRY_NET_PROPS_H
#define GANTRY_NET_PROPS_H

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

#endif
