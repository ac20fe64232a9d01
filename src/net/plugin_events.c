/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plugin records of its own through the profiler callback (v10 and later) becomes events of the ring, as part of
 * the message whose handle it names.
 *
 * The callback has no context, and a stop has nothing but what the start left in *event. That is a number, not a pointer,
 * so an event that ends after its message refers to nothing that could be gone:
 *
 *   1 << 63 | connection << 32 | number of the event
 */
#include "net/plugin_events.h"

#include "base/atomic.h"
#include "base/event.h"
#include "base/trace.h"

#define IS_EVENT (1ull << 63)
/* Which plugins of NCCL's the data is of; their layouts are in abi/profiler_v1.h. */
enum { IB = 1, SOCKET = 2 };

static uint64_t bytes_of(int64_t id, const void *data)
{
	int64_t from = id >> NCCL_PROFILER_NET_VER_BITS, version = id & ((1 << NCCL_PROFILER_NET_VER_BITS) - 1);
	const ncclProfilerNetIbDescr_v1_t *ib = data;
	const ncclProfilerNetSockDescr_v1_t *sock = data;

	if (!data || version != 1 || (from != IB && from != SOCKET))
		return 0;
	return from == IB ? ib->qp.length : sock->sock.length;
}

ncclResult_t gantry_plugin_event(void **event, int type, void *phandle, int64_t id, void *data)
{
	static uint32_t last;
	const struct gantry_net_note *note = phandle;
	uint64_t bytes, old;

	if (!event || !gantry_trace_on())
		return ncclSuccess;
	bytes = GANTRY_EV_BYTES(bytes_of(id, data));
	if (type == ncclProfilerNetEventStart) {
		uint32_t number = fetch_add_relaxed(&last, 1) + 1;

		*event = NULL;
		if (!note)
			return ncclSuccess;
		*event = (void *)(uintptr_t)(IS_EVENT | (uint64_t)note->conn << 32 | number);
		gantry_event_put(GANTRY_EV_PLUGIN, note->conn, number | (uint64_t)note->step << 32, bytes);
		return ncclSuccess;
	}
	old = (uint64_t)(uintptr_t)*event;
	if (!(old & IS_EVENT))
		return ncclSuccess;
	gantry_event_put(GANTRY_EV_PLUGIN, (uint32_t)(old >> 32) & INT32_MAX, (uint32_t)old,
			 bytes | (type == ncclProfilerNetEventUpdate ? GANTRY_EV_OP_CUT : GANTRY_EV_OP_END));
	return ncclSuccess;
}
